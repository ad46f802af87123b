/* SPDX-License-Identifier: Apache-2.0 */
/* 16 registers: 12 sums, 2 of b, 1 of a. Every CPU with AVX2 and FMA converts halves (F16C), which clang 14 cannot ask
 * about. */
#define KERN_ISA avx2
#define KERN_LANES 8
#define KERN_MR 6
#define KERN_NV 2
#define KERN_USABLE (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#include "cpu/kern_template.h"
