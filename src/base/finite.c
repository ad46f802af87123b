/* SPDX-License-Identifier: Apache-2.0 */
#include "base/finite.h"

#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"

enum { CHUNK = 1 << 18 }; /* elements a thread takes at a time */

static bool all_finite(const float *x, int64_t count)
{
    uint32_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        found |= (uint32_t)((bits & 0x7f800000u) == 0x7f800000u);
    }
    return !found;
}

typedef struct checking {
    const float *x;
    int64_t count;
    atomic_bool found; /* one that is not finite */
} checking;

static void check_chunk(void *arg, int64_t index, int slot)
{
    checking *c = arg;
    (void)slot;
    if (!all_finite(c->x + index * CHUNK, lf_min64(CHUNK, c->count - index * CHUNK)))
        atomic_store_explicit(&c->found, true, memory_order_relaxed);
}

bool lf_all_finite_shared(const float *x, int64_t count, lf_pool *pool)
{
    checking c = {.x = x, .count = count};
    lf_pool_run(pool, lf_ceil_div(count, CHUNK), check_chunk, &c);
    return !atomic_load_explicit(&c.found, memory_order_relaxed);
}
