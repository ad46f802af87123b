/* SPDX-License-Identifier: Apache-2.0 */
#include "base/finite.h"

#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"

enum { CHUNK = 1 << 18 }; /* elements a thread takes at a time */

static bool floats_finite(const float *x, int64_t count)
{
    uint32_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        found |= (uint32_t)((bits & 0x7f800000u) == 0x7f800000u);
    }
    return !found;
}

static bool all_finite(lf_dtype type, const void *x, int64_t count)
{
    enum { AT_ONCE = 512 };
    bool finite = true;
    if (type == LF_F32)
        return floats_finite(x, count);
    for (int64_t i = 0; i < count && finite; i += AT_ONCE) {
        float floats[AT_ONCE];
        const int64_t n = lf_min64(AT_ONCE, count - i);
        lf_to_f32(type, (const char *)x + (size_t)i * lf_dtype_size(type), 1, floats, n);
        finite = floats_finite(floats, n);
    }
    return finite;
}

typedef struct checking {
    lf_dtype type;
    const void *x;
    int64_t count;
    atomic_bool found; /* one that is not finite */
} checking;

static void check_chunk(void *arg, int64_t index, int slot)
{
    checking *c = arg;
    (void)slot;
    const char *from = (const char *)c->x + (size_t)index * CHUNK * lf_dtype_size(c->type);
    if (!all_finite(c->type, from, lf_min64(CHUNK, c->count - index * CHUNK)))
        atomic_store_explicit(&c->found, true, memory_order_relaxed);
}

bool lf_all_finite_shared(lf_dtype type, const void *x, int64_t count, lf_pool *pool)
{
    checking c = {.type = type, .x = x, .count = count};
    lf_pool_run(pool, lf_ceil_div(count, CHUNK), check_chunk, &c);
    return !atomic_load_explicit(&c.found, memory_order_relaxed);
}
