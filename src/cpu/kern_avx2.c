/* SPDX-License-Identifier: Apache-2.0 */
/* 16 registers: 12 sums, 2 of b, 1 of a. */
#define KERN_ISA avx2
#define KERN_LANES 8
#define KERN_MR 6
#define KERN_NV 2
#define KERN_USABLE lf_has_avx2()
#include "cpu/kern_template.h"
