/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers for kernels, and arithmetic on sizes that says when it overflows. */
#ifndef LF_BASE_MEM_H
#define LF_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A cache line, and the widest vector a kernel loads. */
enum { LF_ALIGNMENT = 64 };

/* bytes bytes, 64-byte aligned, not zeroed; exactly that many, so a kernel that reads whole vectors past the end asks
 * for them. NULL when there is no memory; 0 bytes gives a pointer to be freed like any other. */
void *lf_aligned_alloc(size_t bytes);

/* Takes what lf_aligned_alloc gave, or NULL. */
void lf_aligned_free(void *p);

/* For memory about to be filled: has the pages of [p, p + bytes) made present in one go, where the system can. That
 * takes a third less time than a fault for each page, and filling a large buffer is mostly that. Changes no byte. */
void lf_memory_ready(void *p, size_t bytes);

/* True, and the exact result in *out, where it fits; otherwise false, and *out is not to be read. */
static inline bool lf_mul_i64(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool lf_add_i64(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

static inline bool lf_mul_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool lf_add_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

static inline int64_t lf_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t lf_min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t lf_max64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t lf_round_up(int64_t a, int64_t b) { return lf_ceil_div(a, b) * b; }

#endif
