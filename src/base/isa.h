/* SPDX-License-Identifier: Apache-2.0 */
/* Which vector instructions this machine has: those of the CPU whose registers the operating system saves. Asked of the
 * CPU itself, since what __builtin_cpu_supports calls does not come with every compiler (zig's has none). */
#ifndef LF_BASE_ISA_H
#define LF_BASE_ISA_H

#include <stdbool.h>

bool lf_has_avx2(void);   /* and FMA, F16C */
bool lf_has_avx512(void); /* F, DQ, VL; and all of the above */
bool lf_has_avx512_bf16(void);

/* May this process multiply bf16 in AMX's tiles? Linux lends tile registers to processes that ask, which this does the
 * first time: from then on what the kernel saves for signal handlers is 8 KiB larger, in all threads, and it refuses
 * alternate signal stacks too small for that. (It refuses tiles where there is such a stack already.) */
bool lf_has_amx_bf16(void);

#endif
