/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel tables are put together from. Only kern_*.c include this. */
#ifndef LF_CPU_KERN_PARTS_H
#define LF_CPU_KERN_PARTS_H

#include <assert.h>

#include "cpu/kern.h"

#define sel(p, u, v) ((p) ? (u) : (v)) /* as ops.def and monoids.def use it */

extern const lf_kern lf_kern_scalar;
#if defined(__x86_64__)
extern const lf_kern lf_kern_avx2, lf_kern_avx512, lf_kern_amx;
#elif defined(__aarch64__)
extern const lf_kern lf_kern_neon;
#endif

#endif
