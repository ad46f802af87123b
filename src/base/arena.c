/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"
#include "base/mem.h"

#include <assert.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Under AddressSanitizer each allocation is its own exact malloc, so that its red zones find overruns that a shared
 * chunk would swallow. GCC says so with a macro, clang with a feature test. */
#if defined(__SANITIZE_ADDRESS__)
#define ONE_CHUNK_EACH true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ONE_CHUNK_EACH true
#endif
#endif
#ifndef ONE_CHUNK_EACH
#define ONE_CHUNK_EACH false
#endif

enum {
    ALIGN = 16,
    /* A small model's graph fits a few of the first chunks; the last size keeps the number of mallocs small for large
     * ones while a half-empty last chunk still costs nothing that matters. */
    FIRST_CHUNK = 4096,
    LAST_CHUNK = 1 << 20
};

struct lf_arena_chunk {
    _Alignas(ALIGN) struct lf_arena_chunk *older;
    size_t used;
    size_t capacity; /* payload bytes, which follow this header */
};

/* A whole number of alignments in the header keeps the payload behind it aligned. */
_Static_assert(sizeof(struct lf_arena_chunk) % ALIGN == 0, "arena chunk header must keep the alignment");

void lf_arena_init(lf_arena *a)
{
    *a = (lf_arena){0};
}

/* From calloc, and a chunk's bytes are handed out once: that is what makes every allocation zeroed. */
static struct lf_arena_chunk *chunk_new(lf_arena *a, size_t capacity)
{
    struct lf_arena_chunk *c = calloc(1, sizeof *c + capacity);
    if (!c)
        return NULL;
    assert((uintptr_t)c % ALIGN == 0);
    c->capacity = capacity;
    a->bytes += sizeof *c + capacity;
    return c;
}

static void *chunk_take(struct lf_arena_chunk *c, size_t size)
{
    char *p = (char *)(c + 1) + c->used;
    c->used += size;
    return p;
}

void *lf_arena_alloc(lf_arena *a, size_t size)
{
    if (size > PTRDIFF_MAX - sizeof(struct lf_arena_chunk) - ALIGN)
        return NULL;
    size_t rounded = (size + ALIGN - 1) / ALIGN * ALIGN;

    struct lf_arena_chunk *head = a->chunks;
    if (!ONE_CHUNK_EACH && head && rounded <= head->capacity - head->used)
        return chunk_take(head, rounded);

    size_t ordinary = a->next_chunk ? a->next_chunk : FIRST_CHUNK;
    bool alone = ONE_CHUNK_EACH || rounded > ordinary / 2;
    struct lf_arena_chunk *c = chunk_new(a, ONE_CHUNK_EACH ? size : alone ? rounded : ordinary);
    if (!c)
        return NULL;
    if (alone && head) {
        /* Filled at once, so it goes behind the head, whose room is still good for small ones. */
        c->older = head->older;
        head->older = c;
    } else {
        c->older = head;
        a->chunks = c;
    }
    if (!alone)
        a->next_chunk = ordinary < LAST_CHUNK ? ordinary * 2 : ordinary;
    return chunk_take(c, ONE_CHUNK_EACH ? size : rounded);
}

void *lf_arena_array(lf_arena *a, size_t count, size_t size)
{
    size_t bytes;
    if (!lf_mul_size(count, size, &bytes))
        return NULL;
    return lf_arena_alloc(a, bytes);
}

char *lf_arena_strndup(lf_arena *a, const char *text, size_t length)
{
    length = strnlen(text, length);
    char *copy = lf_arena_alloc(a, length + 1);
    if (copy)
        memcpy(copy, text, length);
    return copy;
}

char *lf_arena_printf(lf_arena *a, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, fmt, args);
    va_end(args);

    char *text = length < 0 ? NULL : lf_arena_alloc(a, (size_t)length + 1);
    if (text)
        vsnprintf(text, (size_t)length + 1, fmt, again);
    va_end(again);
    return text;
}

size_t lf_arena_bytes(const lf_arena *a)
{
    return a->bytes;
}

void lf_arena_free(lf_arena *a)
{
    for (struct lf_arena_chunk *c = a->chunks; c;) {
        struct lf_arena_chunk *older = c->older;
        free(c);
        c = older;
    }
    lf_arena_init(a);
}
