/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA C into machine code, remembered on disk. */
#ifndef LF_CUDA_COMPILE_H
#define LF_CUDA_COMPILE_H

#include "base/status.h"

/* What is compiled of a text: all but comments, which name the model's values and so tell apart what is one. Caller
 * frees. NULL: no memory. */
char *lf_cuda_code(const char *text);

/* arch: "sm_90a". *cubin: malloc'ed, caller frees. Looks into the user's cache first: an entry is named by a hash of
 * the source's code, options and compiler version, holds all three, and is recompiled when it is damaged or another's.
 * log (may be NULL): what the compiler said, malloc'ed, NULL when it came from the cache.
 * Fails: LF_ERR_DEVICE where there is no compiler, LF_ERR_NOMEM; LF_ERR_UNSUPPORTED when it refuses the source, with
 * its first complaint. */
lf_status lf_cuda_compile(const char *source, const char *arch, char **cubin, size_t *size, char **log, lf_diag *diag);

#endif
