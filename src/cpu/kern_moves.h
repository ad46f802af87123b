/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers from place to place: one number many times, and past the caches; and whether all are finite. Included by
 * kern_template.h. */
#include "cpu/kern_vec.h"

/* Contract: kern.h. Whole vectors, into what comes next too, which is written after. */
static void spread(int64_t n, int64_t skip, int64_t each, const float *from, float *out)
{
    assert(skip >= 0 && skip < each);
    for (int64_t at = -skip; at < n; at += each, from++) {
        const vec v = wide(*from);
        const int64_t end = at + each < n ? at + each : n;
        int64_t i = at < 0 ? 0 : at;
        for (; i < end && i + KERN_LANES <= n; i += KERN_LANES)
            store(out + i, v);
        if (i < end)
            store_some(end - i, out + i, v);
    }
}

/* Contract: kern.h. 0 times what is not finite is NaN, and stays so in a sum. */
static bool all_finite(int64_t n, const float *x)
{
    enum { CHAINS = 4 };
    const vec zero = {0};
    vec sum[CHAINS] = {{0}};
    int64_t i = 0;
    for (; i + CHAINS * KERN_LANES <= n; i += CHAINS * KERN_LANES) {
        UNROLL
        for (int v = 0; v < CHAINS; v++)
            sum[v] = mul_add(load(x + i + v * KERN_LANES), zero, sum[v]);
    }
    for (; i + KERN_LANES <= n; i += KERN_LANES)
        sum[0] = mul_add(load(x + i), zero, sum[0]);
    if (i < n)
        sum[1] = mul_add(load_some(n - i, x + i, 0.0f), zero, sum[1]);
    sum[0] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    return !any(sum[0] != sum[0]);
}

#if HAS_STREAM
/* Contract: kern.h. What is no whole cache line goes the usual way. */
static void stream_strip(int64_t n, const float *from, float *to)
{
    const int64_t into = (int64_t)((uintptr_t)to / sizeof *to % LINE), head = into == 0 ? 0 : LINE - into;
    const int64_t lines = n > head ? (n - head) / LINE * LINE : 0, begin = lines > 0 ? head : n;
    memcpy(to, from, (size_t)begin * sizeof *to);
    for (int64_t i = begin; i < begin + lines; i += KERN_LANES)
        stream(to + i, load(from + i));
    memcpy(to + begin + lines, from + begin + lines, (size_t)(n - begin - lines) * sizeof *to);
}

static void stream_end(void)
{
    stream_fence();
}
#else
static void stream_strip(int64_t n, const float *from, float *to)
{
    memcpy(to, from, (size_t)n * sizeof *to);
}

static void stream_end(void)
{
}
#endif
