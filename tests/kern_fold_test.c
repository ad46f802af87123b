/* SPDX-License-Identifier: Apache-2.0 */
/* The monoids of every table: fold and put against one element after the other, in double precision; parts combined. */
#include "cpu_support.h"

#include <tgmath.h>

enum { LONGEST = 70, GUARD = 32 };
#define UNIT         0x1p-24
#define sel(p, u, v) ((p) ? (u) : (v)) /* as monoids.def uses it */

static const float odd[] = {NAN, INFINITY, -INFINITY};
static const double untouched = -0x1.23456789p-765; /* a state that no fold leaves */

/* One element after the other in double precision: the text of monoids.def again. */
#define number double
#define LF_MONOID(name, states, results, least, flops, identity, PUT, ...)                                             \
    static void sequence_##name(int64_t n, const float *elements, double *state)                                       \
    {                                                                                                                  \
        double s0 = 0, s1 = 0, s2 = 0;                                                                                 \
        identity for (int64_t i = 0; i < n; i++)                                                                       \
        {                                                                                                              \
            const double x = elements[i];                                                                              \
            PUT                                                                                                        \
        }                                                                                                              \
        state[0] = s0, state[1] = s1, state[2] = s2;                                                                   \
    }
#include "ir/monoids.def"
#undef LF_MONOID
#undef number
static void (*const sequence[])(int64_t, const float *, double *) = {
#define LF_MONOID(name, ...) sequence_##name,
#include "ir/monoids.def"
#undef LF_MONOID
};

static void fold_case(const lf_kern *kern, lf_monoid m, const float *x, int64_t n)
{
    const lf_monoid_info *row = lf_monoid_row(m);
    double s[LF_MAX_STATE + 1], ref[LF_MAX_STATE], size = 0, squares = 0;
    for (int i = 0; i <= LF_MAX_STATE; i++)
        s[i] = untouched;
    kern->fold[m](1, n, x, 0, s);
    sequence[m](n, x, ref);
    for (int64_t i = 0; i < n; i++) {
        size += fabs((double)x[i]);
        squares += (double)x[i] * (double)x[i];
    }
    assert_true(s[row->states] == untouched);
    for (int i = 0; i < row->states; i++, cases++) {
        /* n roundings of what was added: elements, or their squares */
        double bound =
            (double)(n + 4) * UNIT * fmax(fabs(ref[i]), m == LF_MONOID_meansquare || i == 2 ? squares : size);
        if (isinf(ref[i]) ? s[i] != ref[i] : !(fabs(s[i] - ref[i]) <= bound))
            fail_msg("%s: fold %s of %d, state %d is %.9g, not %.17g", kern->isa, row->name, (int)n, i, s[i], ref[i]);
    }
}

static bool same_class(double a, double b)
{
    return isnan(a) ? isnan(b) : isinf(a) ? a == b : isfinite(b);
}

/* NaN and Inf, one or two of them, in every lane: where put after put leaves them. */
static void fold_specials(const lf_kern *kern, lf_monoid m)
{
    float x[67];
    lf_rng r = lf_rng_seed(5, "specials");
    for (int n = 1; n <= 67; n += 11)
        for (int first = 0; first < n; first++)
            for (int kind = 0; kind < 9; kind++) {
                int second = (int)(lf_rng_u64(&r) % (uint64_t)n);
                for (int i = 0; i < n; i++)
                    x[i] = lf_rng_uniform(&r, -4, 4);
                x[first] = odd[kind / 3];
                if (second != first)
                    x[second] = odd[kind % 3];
                double s[LF_MAX_STATE];
                float t[LF_MAX_STATE];
                kern->fold[m](1, n, x, 0, s);
                lf_monoid_identity(m, t);
                for (int i = 0; i < n; i++)
                    kern->put[m](1, x + i, t, 1);
                for (int i = 0; i < lf_monoid_row(m)->states; i++, cases++)
                    if (!same_class(s[i], (double)t[i]))
                        fail_msg("%s: fold %s of %d, state %d: %g where put leaves %g", kern->isa,
                                 lf_monoid_row(m)->name, n, i, s[i], (double)t[i]);
            }
    for (int i = 0; i < 67; i++)
        x[i] = -INFINITY;
    double s[LF_MAX_STATE];
    float t[LF_MAX_STATE];
    kern->fold[m](1, 67, x, 0, s);
    lf_monoid_identity(m, t);
    for (int i = 0; i < 67; i++)
        kern->put[m](1, x + i, t, 1);
    for (int i = 0; i < lf_monoid_row(m)->states; i++)
        assert_true(same_class(s[i], (double)t[i]));
}

static void folds_are_sequences(void **state)
{
    (void)state;
    float x[LF_STRIP], far[LF_STRIP];
    lf_rng r = lf_rng_seed(6, "folds");
    for (int i = 0; i < LF_STRIP; i++) {
        x[i] = lf_rng_uniform(&r, -4, 4);
        far[i] = lf_rng_uniform(&r, 999, 1001); /* a mean far from 0: what moments are for */
    }
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int m = 0; m < LF_MONOID_COUNT; m++) {
            for (int64_t n = 0; n <= LF_STRIP; n = n == LONGEST ? 255 : n + 1) {
                fold_case(lf_kern_at(t), (lf_monoid)m, x, n);
                fold_case(lf_kern_at(t), (lf_monoid)m, far, n);
            }
            fold_specials(lf_kern_at(t), (lf_monoid)m);
        }
}

/* Rows at any distance, each as if it were alone. */
static void rows_fold_alone(void **state)
{
    (void)state;
    enum { ROWS = 5 };
    float x[ROWS * (LONGEST + 7)];
    lf_rng r = lf_rng_seed(10, "rows");
    for (size_t i = 0; i < sizeof x / sizeof x[0]; i++)
        x[i] = lf_rng_u64(&r) % 64 ? lf_rng_uniform(&r, -4, 4) : odd[lf_rng_u64(&r) % 3];
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int m = 0; m < LF_MONOID_COUNT; m++)
            for (int64_t n = 0; n <= LONGEST; n++)
                for (int64_t ldx = 0; ldx <= n + 7; ldx += n + 7) {
                    const int states = lf_monoid_row((lf_monoid)m)->states;
                    double all[ROWS * LF_MAX_STATE + 1], alone[LF_MAX_STATE];
                    all[ROWS * states] = untouched;
                    lf_kern_at(t)->fold[m](ROWS, n, x, ldx, all);
                    assert_true(all[ROWS * states] == untouched);
                    for (int row = 0; row < ROWS; row++, cases++) {
                        lf_kern_at(t)->fold[m](1, n, x + row * ldx, 0, alone);
                        for (int s = 0; s < states; s++)
                            assert_true(memcmp(&all[row * states + s], &alone[s], sizeof alone[s]) == 0 ||
                                        (isnan(all[row * states + s]) && isnan(alone[s])));
                    }
                }
}

/* The variance of numbers around 1000 keeps its digits. */
static void moments_are_centred(void **state)
{
    (void)state;
    float x[LF_STRIP];
    lf_rng r = lf_rng_seed(7, "centred");
    for (int i = 0; i < LF_STRIP; i++)
        x[i] = lf_rng_uniform(&r, 999, 1001);
    double ref[LF_MAX_STATE];
    sequence[LF_MONOID_moments](LF_STRIP, x, ref);
    for (size_t t = 0; lf_kern_at(t); t++, cases++) {
        double s[LF_MAX_STATE];
        lf_kern_at(t)->fold[LF_MONOID_moments](1, LF_STRIP, x, 0, s);
        assert_true(fabs(s[1] - ref[1]) <= 2 * UNIT * ref[1]);
        assert_true(fabs(s[2] - ref[2]) <= 1e-5 * ref[2]);
    }
}

/* Columns side by side, each as if it were alone; strides between states; nothing else written. */
static void put_case(const lf_kern *kern, lf_monoid m, int64_t n, int64_t lds)
{
    enum { ROWS = 5 };
    const int states = lf_monoid_row(m)->states;
    float state[LF_MAX_STATE * (LONGEST + 8) + GUARD], x[LONGEST], alone[LONGEST][LF_MAX_STATE];
    lf_rng r = lf_rng_seed(8, "put");
    rig_fill(state, (int64_t)(sizeof state / sizeof state[0]));
    for (int64_t j = 0; j < n; j++) {
        lf_monoid_identity(m, alone[j]);
        for (int s = 0; s < states; s++)
            state[s * lds + j] = alone[j][s];
    }
    for (int row = 0; row < ROWS; row++) {
        for (int64_t j = 0; j < n; j++) {
            x[j] = lf_rng_u64(&r) % 16 ? lf_rng_uniform(&r, -4, 4) : odd[lf_rng_u64(&r) % 3];
            kern->put[m](1, x + j, alone[j], 1);
        }
        kern->put[m](n, x, state, lds);
    }
    for (int64_t i = 0; i < (int64_t)(sizeof state / sizeof state[0]); i++, cases++) {
        int64_t s = i / lds, j = i % lds;
        if (s >= states || j >= n)
            assert_true(rig_is_poison(state[i]));
        else
            assert_true(rig_bits(state[i]) == rig_bits(alone[j][s]) || (isnan(state[i]) && isnan(alone[j][s])));
    }
}

static void puts_go_by_columns(void **state)
{
    (void)state;
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int m = 0; m < LF_MONOID_COUNT; m++)
            for (int64_t n = 1; n <= LONGEST; n++) {
                put_case(lf_kern_at(t), (lf_monoid)m, n, n);
                put_case(lf_kern_at(t), (lf_monoid)m, n, n + 7);
            }
}

/* Two parts of x, settled, as they lie in rows and as they lie in columns of three statistics. */
static void settled_alike(lf_monoid m, int64_t cut, const float *x, const float *result)
{
    enum { COUNT = 3 };
    const int states = lf_monoid_row(m)->states;
    double t[2 * LF_MAX_STATE], rows[COUNT * 2 * LF_MAX_STATE];
    float columns[COUNT * 2 * LF_MAX_STATE], r[LF_MAX_RESULTS][COUNT];
    float *const to[LF_MAX_RESULTS] = {r[0], r[1]};
    lf_kern_at(0)->fold[m](1, cut, x, 0, t);
    lf_kern_at(0)->fold[m](1, LF_STRIP - cut, x + cut, 0, t + states);
    for (int i = 0; i < COUNT; i++)
        for (int k = 0; k < 2 * states; k++)
            rows[i * 2 * states + k] = (double)(columns[k * COUNT + i] = (float)t[k]);
    const lf_partials ways[] = {{rows, NULL, 2 * states, states, 1, 2},
                                {NULL, columns, 1, COUNT * states, COUNT, 2}};
    for (int way = 0; way < 2; way++) {
        lf_monoid_settle(m, COUNT, &ways[way], LF_STRIP, to);
        for (int i = 0; i < COUNT * lf_monoid_row(m)->results; i++, cases++)
            assert_true(rig_bits(r[i / COUNT][i % COUNT]) == rig_bits(result[i / COUNT]));
    }
}

/* Parts combined in order are the whole; an empty part changes nothing. */
static void parts_combine(void **state)
{
    (void)state;
    float x[LF_STRIP];
    lf_rng r = lf_rng_seed(9, "parts");
    for (int i = 0; i < LF_STRIP; i++)
        x[i] = lf_rng_uniform(&r, -4, 4);
    for (int m = 0; m < LF_MONOID_COUNT; m++)
        for (int64_t cut = 0; cut <= LF_STRIP; cut++) {
            float result[LF_MAX_RESULTS];
            double ref[LF_MAX_STATE], s[LF_MAX_STATE], t[LF_MAX_STATE];
            lf_monoid_begin((lf_monoid)m, s);
            lf_kern_at(0)->fold[m](1, cut, x, 0, t);
            lf_monoid_combine((lf_monoid)m, s, t);
            lf_kern_at(0)->fold[m](1, LF_STRIP - cut, x + cut, 0, t);
            lf_monoid_combine((lf_monoid)m, s, t);
            sequence[m](LF_STRIP, x, ref);
            for (int i = 0; i < lf_monoid_row((lf_monoid)m)->states; i++, cases++)
                assert_true(fabs(s[i] - ref[i]) <= 1e-5 * fmax(1, fabs(ref[i])));
            lf_monoid_finish((lf_monoid)m, s, LF_STRIP, result);
            for (int i = 0; i < lf_monoid_row((lf_monoid)m)->results; i++)
                assert_true(isfinite(result[i]));
            settled_alike((lf_monoid)m, cut, x, result);
        }
}

/* ---- what floats do not hold ---- */

static const float magnitudes[] = {3.4e38f, 1e30f, 3e19f, 1e18f, 1e-17f, 1e-19f, 1e-25f, 1e-37f};
enum { MAGNITUDES = sizeof magnitudes / sizeof magnitudes[0] };

static bool has_sums(lf_monoid m)
{
    return m == LF_MONOID_sum || m == LF_MONOID_mean || m == LF_MONOID_meansquare || m == LF_MONOID_moments;
}

/* Sums that overflow, squares that overflow or vanish: relative to what was added, as if nothing had. */
static void folds_hold_any_sum(void **state)
{
    (void)state;
    float x[LF_STRIP];
    for (int k = 0; k < 2 * MAGNITUDES; k++) {
        lf_rng r = lf_rng_seed(11, "any");
        for (int i = 0; i < LF_STRIP; i++) /* as large as that with any sign, or up to it */
            x[i] = magnitudes[k / 2] * (k % 2 ? lf_rng_uniform(&r, -1, 1) : lf_rng_u64(&r) & 1 ? 1.0f : -1.0f);
        for (size_t t = 0; lf_kern_at(t); t++)
            for (int m = 0; m < LF_MONOID_COUNT; m++)
                for (int64_t n = 1; has_sums((lf_monoid)m) && n <= LF_STRIP; n = n == LONGEST ? 255 : n + 1)
                    fold_case(lf_kern_at(t), (lf_monoid)m, x, n);
    }
}

/* Elements that are all alike have no variance, however large or small they are. */
static void alike_is_no_variance(void **state)
{
    (void)state;
    float x[LF_STRIP];
    for (int k = 0; k < MAGNITUDES; k++) {
        for (int i = 0; i < LF_STRIP; i++)
            x[i] = magnitudes[k];
        for (size_t t = 0; lf_kern_at(t); t++)
            for (int64_t n = 1; n <= LF_STRIP; n = n == LONGEST ? 255 : n + 1, cases++) {
                double s[LF_MAX_STATE];
                lf_kern_at(t)->fold[LF_MONOID_moments](1, n, x, 0, s);
                assert_true(s[2] <= 1e-12 * (double)n * (double)x[0] * (double)x[0]);
            }
    }
}

/* Columns of any magnitude side by side, each as if it were alone, settled as what they are. */
static void puts_hold_squares(void **state)
{
    (void)state;
    enum { ROWS = 100, N = 3 * MAGNITUDES + 2 };
    static float x[ROWS][N], column[ROWS];
    lf_rng r = lf_rng_seed(12, "columns");
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < N; j++)
            x[i][j] = lf_rng_uniform(&r, -1, 1) * (j % 3 ? 1 : magnitudes[j / 3 % 4]);
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int k = 0; k < 2; k++) {
            const lf_monoid m = k ? LF_MONOID_moments : LF_MONOID_meansquare;
            const int states = lf_monoid_row(m)->states, results = lf_monoid_row(m)->results;
            float all[LF_MAX_STATE * N], alone[LF_MAX_STATE], identity[LF_MAX_STATE], r0[N], r1[N];
            lf_monoid_identity(m, identity);
            for (int j = 0; j < states * N; j++)
                all[j] = identity[j / N];
            for (int i = 0; i < ROWS; i++)
                lf_kern_at(t)->put[m](N, x[i], all, N);
            const lf_partials from = {.put = all, .item = 1, .part = states * N, .state = N, .parts = 1};
            lf_monoid_settle(m, N, &from, ROWS, (float *const[]){r0, r1});
            for (int j = 0; j < N; j++, cases++) {
                double ref[LF_MAX_STATE];
                memcpy(alone, identity, sizeof alone);
                for (int i = 0; i < ROWS; i++) {
                    column[i] = x[i][j];
                    lf_kern_at(t)->put[m](1, x[i] + j, alone, 1);
                }
                for (int s = 0; s < states; s++)
                    assert_true(rig_bits(all[s * N + j]) == rig_bits(alone[s]));
                sequence[m](ROWS, column, ref);
                const double last = (double)(results > 1 ? r1 : r0)[j], root = last < 0 ? -last : sqrt(last);
                const double want = sqrt(ref[states - 1] / ROWS);
                if (!(fabs(root - want) <= 1e-5 * want))
                    fail_msg("%s: column %d of %s: %g, not %g", lf_kern_at(t)->isa, j, lf_monoid_row(m)->name, root,
                             want);
            }
        }
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, some_ran)
    const struct CMUnitTest tests[] = {
        TEST(folds_are_sequences),
        TEST(rows_fold_alone),
        TEST(moments_are_centred),
        TEST(puts_go_by_columns),
        TEST(parts_combine),
        TEST(folds_hold_any_sum),
        TEST(alike_is_no_variance),
        TEST(puts_hold_squares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
