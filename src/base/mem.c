/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE /* for madvise */
#include "base/mem.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

void *lf_aligned_alloc(size_t bytes)
{
    /* posix_memalign and not aligned_alloc: no need to round the size up, which would hide an overrun from ASan. */
    void *p = NULL;
    if (bytes > PTRDIFF_MAX - LF_ALIGNMENT)
        return NULL;
    return posix_memalign(&p, LF_ALIGNMENT, bytes ? bytes : 1) == 0 ? p : NULL;
}

void lf_memory_ready(void *p, size_t bytes)
{
#ifdef MADV_POPULATE_WRITE
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), before = (page - (uintptr_t)p % page) % page;
    if (bytes >= before + page)
        (void)madvise((char *)p + before, (bytes - before) / page * page, MADV_POPULATE_WRITE);
#else
    (void)p, (void)bytes;
#endif
}

void lf_aligned_free(void *p)
{
    free(p);
}
