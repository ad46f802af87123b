/* SPDX-License-Identifier: Apache-2.0 */
/* AVX-512 for everything but products, which go through AMX's tiles: kern_tiles.h. */
#define _DEFAULT_SOURCE /* syscall */
#define KERN_ISA amx
#define KERN_LANES 16
#define KERN_MR 14
#define KERN_NV 2
#define KERN_TILES
#define KERN_USABLE                                                                                                  \
    (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&  \
     tiles_usable())
#include "cpu/kern_template.h"
