/* SPDX-License-Identifier: Apache-2.0 */
/* Memory by lifetime: many small allocations that are all given back at once. */
#ifndef LF_BASE_ARENA_H
#define LF_BASE_ARENA_H

#include <stddef.h>

struct lf_arena_chunk;

/* Public so that it may live inside the struct whose memory it holds. All zero is an empty arena. Not shared between
 * threads without a lock. */
typedef struct lf_arena {
    struct lf_arena_chunk *chunks; /* newest first; owned; only the first has room left to hand out */
    size_t bytes;                  /* held from malloc, headers included */
    size_t next_chunk;             /* payload bytes of the next ordinary chunk; 0 before the first */
} lf_arena;

void lf_arena_init(lf_arena *a);

/* size zeroed bytes, 16-byte aligned, owned by the arena. NULL when there is no memory or size is absurd. Size 0 gives
 * a pointer that is not NULL, with no bytes behind it, and not necessarily different from the next one. */
void *lf_arena_alloc(lf_arena *a, size_t size);

/* count * size zeroed bytes; NULL also when the product overflows. */
void *lf_arena_array(lf_arena *a, size_t count, size_t size);

/* At most length bytes of text, or up to its NUL, with a NUL added. */
char *lf_arena_strndup(lf_arena *a, const char *text, size_t length);

char *lf_arena_printf(lf_arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Bytes held from malloc, used or not. */
size_t lf_arena_bytes(const lf_arena *a);

/* Gives everything back and leaves an empty arena, ready for use. */
void lf_arena_free(lf_arena *a);

#endif
