/* SPDX-License-Identifier: Apache-2.0 */
/* 32 registers: 16 sums, 2 of b, 2 of a. Every aarch64 has it. */
#define KERN_ISA neon
#define KERN_LANES 4
#define KERN_MR 8
#define KERN_NV 2
#define KERN_USABLE true
#include "cpu/kern_template.h"
