/* SPDX-License-Identifier: Apache-2.0 */
/* 32 registers: 28 sums, 2 of b; a comes from memory with the multiplication, broadcast on the way. And the table amx,
 * all of whose other functions are these. */
#define KERN_ISA avx512
#define KERN_LANES 16
#define KERN_MR 14
#define KERN_NV 2
#define KERN_USABLE lf_has_avx512()
#define KERN_PAIRS_USABLE lf_has_avx512_bf16()
#include "cpu/kern_template.h"

#include "cpu/kern_tiles.h"
