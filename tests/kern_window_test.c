/* SPDX-License-Identifier: Apache-2.0 */
/* Windows, spreads and streams of every table, and windows as models have them, against double precision. */
#include "cpu_support.h"

enum { LONGEST = 70, GUARD = 24 };

/* ---- kernels ---- */

typedef struct shape {
    int64_t windows, taps, stride, dilation;
} shape;

/* Elements that the windows span: not one more may be read, so there are no more. */
static int64_t span_of(const shape *s)
{
    return s->windows == 0 || s->taps == 0 ? 0 : (s->windows - 1) * s->stride + (s->taps - 1) * s->dilation + 1;
}

static double window_of(lf_monoid m, const shape *s, const float *x, int64_t window, double n)
{
    double result = m == LF_MONOID_max ? -INFINITY : m == LF_MONOID_min ? INFINITY : 0;
    for (int64_t t = 0; t < s->taps; t++) {
        const double e = x[window * s->stride + t * s->dilation];
        if (m == LF_MONOID_max)
            result = isnan(result) || result > e ? result : e;
        else if (m == LF_MONOID_min)
            result = isnan(result) || result < e ? result : e;
        else
            result += m == LF_MONOID_meansquare ? e * e : e;
    }
    return m == LF_MONOID_mean || m == LF_MONOID_meansquare ? result / n : result;
}

static void window_case(const lf_kern *kern, lf_monoid m, const shape *s, bool odd)
{
    const int64_t span = span_of(s);
    float *x = malloc(sizeof(float) * (size_t)(span + 1)), r[LONGEST + 2 * GUARD];
    lf_rng rng = lf_rng_seed(11, "windows");
    assert_non_null(x);
    for (int64_t i = 0; i < span; i++)
        x[i + 1] =
            odd && lf_rng_u64(&rng) % 8 == 0 ? (lf_rng_u64(&rng) % 2 ? NAN : INFINITY) : lf_rng_uniform(&rng, -4, 4);
    rig_fill(r, LONGEST + 2 * GUARD);
    kern->window[m](s->windows, s->taps, x + 1, s->stride, s->dilation, (double)s->taps + 1, r + GUARD);
    for (int64_t i = 0; i < LONGEST + 2 * GUARD; i++, cases++) {
        if (i < GUARD || i >= GUARD + s->windows) {
            assert_true(rig_is_poison(r[i]));
            continue;
        }
        const float ref = (float)window_of(m, s, x + 1, i - GUARD, (double)s->taps + 1);
        if (r[i] != ref && !(isnan(r[i]) && isnan(ref)))
            fail_msg("%s: window %s, %d of %d, %d taps, stride %d, dilation %d: %.9g, not %.9g", kern->isa,
                     lf_monoid_row(m)->name, (int)(i - GUARD), (int)s->windows, (int)s->taps, (int)s->stride,
                     (int)s->dilation, (double)r[i], (double)ref);
    }
    free(x);
}

static void windows_are_folds(void **state)
{
    (void)state;
    const int64_t taps[] = {0, 1, 2, 3, 7, 40}, dilations[] = {1, 2, 5};
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int m = 0; m < LF_MONOID_COUNT; m++) {
            const lf_kern *kern = lf_kern_at(t);
            if (lf_monoid_row((lf_monoid)m)->states > 1) {
                assert_null(kern->window[m]);
                continue;
            }
            for (int64_t windows = 0; windows <= LONGEST; windows += windows < 34 ? 1 : 9)
                for (int64_t stride = 1; stride <= 5; stride++)
                    for (size_t i = 0; i < 6; i++)
                        for (size_t k = 0; k < 3; k++) {
                            const shape s = {windows, taps[i], stride, dilations[k]};
                            window_case(kern, (lf_monoid)m, &s, false);
                            window_case(kern, (lf_monoid)m, &s, true);
                        }
        }
}

static void spreads_repeat(void **state)
{
    (void)state;
    float from[LF_STRIP + 1], out[LF_STRIP + 2 * GUARD];
    for (int i = 0; i <= LF_STRIP; i++)
        from[i] = (float)i;
    const int64_t lengths[] = {0, 1, 5, 16, 31, 64, 100, 255, LF_STRIP},
                  eaches[] = {1, 2, 3, 4, 7, 10, 16, 17, 33, 64, 300};
    for (size_t t = 0; lf_kern_at(t); t++)
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
            for (size_t k = 0; k < sizeof eaches / sizeof eaches[0]; k++)
                for (int64_t skip = 0; skip < eaches[k]; skip += eaches[k] > 17 ? 13 : 1) {
                    const int64_t n = lengths[i], each = eaches[k];
                    rig_fill(out, LF_STRIP + 2 * GUARD);
                    lf_kern_at(t)->spread(n, skip, each, from, out + GUARD);
                    for (int64_t at = 0; at < LF_STRIP + 2 * GUARD; at++, cases++)
                        if (at < GUARD || at >= GUARD + n)
                            assert_true(rig_is_poison(out[at]));
                        else
                            assert_true(out[at] == (float)((skip + at - GUARD) / each));
                }
}

static void streams_copy(void **state)
{
    (void)state;
    float from[LF_STRIP + 32], *to = lf_aligned_alloc(sizeof(float) * (LF_STRIP + 4 * GUARD));
    assert_non_null(to);
    for (int i = 0; i < LF_STRIP + 32; i++)
        from[i] = (float)i;
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int64_t n = 0; n <= LF_STRIP; n += n < 70 ? 1 : 31)
            for (int64_t shift = 0; shift < 20; shift++) {
                rig_fill(to, LF_STRIP + 4 * GUARD);
                lf_kern_at(t)->stream(n, from + shift % 3, to + GUARD + shift);
                lf_kern_at(t)->stream_end();
                for (int64_t at = 0; at < LF_STRIP + 4 * GUARD; at++, cases++)
                    if (at < GUARD + shift || at >= GUARD + shift + n)
                        assert_true(rig_is_poison(to[at]));
                    else
                        assert_true(to[at] == from[shift % 3 + at - GUARD - shift]);
            }
    lf_aligned_free(to);
}

/* ---- models ---- */

static lf_pool *one, *two;

static int make_pools(void **state)
{
    (void)state;
    return lf_pool_new(1, &one) == LF_OK && lf_pool_new(2, &two) == LF_OK ? 0 : -1;
}

static int free_pools(void **state)
{
    (void)state;
    lf_pool_free(one);
    lf_pool_free(two);
    return 0;
}

/* Bits from one thread and from two, and the first against the reference. */
static void run_model(const char *text, const int64_t *dims, double tolerance)
{
    for (size_t t = 0; lf_kern_at(t); t++, cases++) {
        rig r;
        rig_open(&r, text, true, lf_kern_at(t));
        rig_ports in = rig_inputs(&r, dims, RIG_UNIFORM), out = rig_run(&r, dims, &in, one, NULL, 0),
                  again = rig_run(&r, dims, &in, two, NULL, 0);
        double *ref[RIG_PORTS];
        rig_eval(&r, dims, &in, ref);
        rig_compare(text, out.data[0], ref[0], out.count[0], tolerance);
        assert_memory_equal(out.data[0], again.data[0], sizeof(float) * (size_t)out.count[0]);
        free(ref[0]);
        rig_ports_free(&in);
        rig_ports_free(&out);
        rig_ports_free(&again);
        rig_close(&r);
    }
}

/* kernel, stride, padding, dilation, ceil_mode, over runs of every length that has a window; several runs a row. */
static void pools_are_pools(void **state)
{
    (void)state;
    const int64_t lengths[] = {1, 2, 5, 16, 33, 100, 700}, kernels[] = {1, 2, 3, 5, 30, 300}, dims[] = {3};
    for (size_t i = 0; i < 7; i++)
        for (size_t k = 0; k < 6; k++)
            for (int64_t stride = 1; stride <= 4; stride++)
                for (int64_t padding = 0; padding <= kernels[k] / 2; padding += padding < 2 ? 1 : kernels[k] / 2 - 1)
                    for (int way = 0; way < 4; way++) {
                        const int64_t dilation = 1 + way / 2, reach = (kernels[k] - 1) * dilation + 1;
                        char text[256];
                        if (lengths[i] + 2 * padding < reach || (kernels[k] == 30 && lengths[i] == 700))
                            continue;
                        snprintf(text, sizeof text,
                                 "input x f32[B, 3, %d]\nb = max_pool1d(x, %d, %d, %d, %d, %s)\nreturn b\n",
                                 (int)lengths[i], (int)kernels[k], (int)stride, (int)padding, (int)dilation,
                                 way % 2 ? "true" : "false");
                        run_model(text, dims, 0);
                        snprintf(text, sizeof text,
                                 "input x f32[B, 3, %d]\nb = avg_pool1d(x, %d, %d, %d, %s, %s)\nreturn b\n",
                                 (int)lengths[i], (int)kernels[k], (int)stride, (int)padding,
                                 way % 2 ? "true" : "false", way / 2 ? "true" : "false");
                        if (lengths[i] + 2 * padding >= kernels[k])
                            run_model(text, dims, 2e-6);
                    }
}

/* Past four MiB a thread an output is streamed, below that it is not: the same bits. */
static void streamed_outputs_are_whole(void **state)
{
    (void)state;
    const char *texts[] = {"input x f32[B, 1001]\nb = softmax(x, dim=1)\nreturn b\n",
                           "input x f32[B, 7, 143]\nb = relu(x)\nreturn b\n",
                           "input x f32[B, 1001]\nb = mean(x, dim=1, keepdim=true)\nc = add(b, x)\nreturn c\n"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        run_model(texts[i], (const int64_t[]){1100}, 1e-5);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, some_ran)
    const struct CMUnitTest tests[] = {
        TEST(windows_are_folds), TEST(spreads_repeat),  TEST(streams_copy),
        TEST(pools_are_pools),   TEST(streamed_outputs_are_whole),
    };
    return cmocka_run_group_tests(tests, make_pools, free_pools);
}
