/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"

#include <stdlib.h>

void *lf_aligned_alloc(size_t bytes)
{
    /* posix_memalign and not aligned_alloc: no need to round the size up, which would hide an overrun from ASan. */
    void *p = NULL;
    if (bytes > PTRDIFF_MAX - LF_ALIGNMENT)
        return NULL;
    return posix_memalign(&p, LF_ALIGNMENT, bytes ? bytes : 1) == 0 ? p : NULL;
}

void lf_aligned_free(void *p)
{
    free(p);
}
