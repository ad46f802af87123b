/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax, whose exps are kept from when a row is summed up: every table, rows of any length and temper, against double
 * precision; NaN and Inf where PyTorch has them; the same bits however many rows and threads there are. */
#include "cpu_support.h"

#define UNIT 0x1p-24

/* Models whose first output is the softmax of x * scale, kept in different ways. */
typedef struct model {
    const char *text;
    float scale;
} model;

#define X "input x f32[B, {N}]\n"
static const model models[] = {
    {X "b = softmax(x, dim=1)\nreturn b\n", 1},
    /* the argument is cheap to calculate again */
    {X "a = mul(x, 0.5)\nb = softmax(a, dim=1)\nreturn b\n", 0.5f},
    {X "a = mul(x, 2)\nb = softmax(a, dim=1)\nc = sub(a, 1)\nreturn b, c\n", 2}, /* others want it */
    /* it is an output; others want the sum */
    {X "a = neg(x)\nb = softmax(a, dim=1)\nc = logsumexp(a, dim=1)\nreturn b, a, c\n", -1},
    {X "a = mul(x, 0.5)\nb = softmax(a, dim=1)\nc = log_softmax(a, dim=1)\nd = softmax(b, dim=1)\nreturn b, c, d\n",
     0.5f},
    {"input x f32[B, 3, {N}]\nb = softmax(x, dim=-1)\nc = mul(b, 3)\nreturn b, c\n", 1},
};
enum { MODELS = sizeof models / sizeof models[0] };

enum { KINDS = 12 };

/* Element i of n of a row of some kind. */
static float element(int kind, int64_t i, int64_t n, lf_rng *r)
{
    const float u = lf_rng_uniform(r, -2, 2);
    switch (kind) {
    case 0: return u;
    case 1: return i == n - 1 ? 3000 + u : u;                          /* one huge, late */
    case 2: return i == 0 ? 3000 + u : u;                              /* or early */
    case 3: return 0.02f * (float)i + u;                               /* every strip has a larger largest */
    case 4: return -0.02f * (float)i + u;
    case 5: return i >= n / 4 && i < n - n / 4 ? -INFINITY : u;        /* masked: whole strips of it */
    case 6: return -INFINITY;
    case 7: return i == n / 2 ? NAN : u;
    case 8: return i == n / 2 ? INFINITY : u;
    case 9: return i == n / 3 ? u : -1e30f;
    case 10: return 27 * u - 54;                                       /* down to where exps are denormal, and 0 */
    default: return i == 0 ? -INFINITY : i == n - 1 ? NAN : -INFINITY; /* nothing but that one */
    }
}

static void fill(float *x, int64_t rows, int64_t n)
{
    lf_rng r = lf_rng_seed(3, "softmax");
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < n; i++)
            x[row * n + i] = element((int)(row % KINDS), i, n, &r);
}

/* One row: an exp of at most 1 ulp, the rounding of what it is taken of, a factor and a product; and what denormals
 * lose. */
static void check_row(const char *what, const float *y, const float *x, int64_t n, float scale)
{
    double largest = -INFINITY, sum = 0;
    bool nan = false;
    for (int64_t i = 0; i < n; i++) {
        nan = nan || isnan(x[i]);
        largest = fmax(largest, (double)scale * (double)x[i]);
    }
    for (int64_t i = 0; i < n; i++)
        sum += exp((double)scale * (double)x[i] - largest);
    nan = nan || isinf(largest);
    for (int64_t i = 0; i < n; i++, cases++) {
        const double below = largest - (double)scale * (double)x[i], want = exp(-below) / sum;
        const double bound = want * UNIT * (8 + fmin(below, 200)) + 0x1p-148;
        if (nan ? !isnan(y[i]) : !(fabs((double)y[i] - want) <= bound))
            fail_msg("%s: element %lld is %.9g, not %.17g", what, (long long)i, (double)y[i], nan ? NAN : want);
    }
}

static void check_model(const model *m, int64_t n, const lf_kern *kern, bool fuse, lf_pool *const *pools)
{
    char *text = rig_text(m->text, "N", &n), what[120];
    const int64_t each = strstr(m->text, "B, 3,") ? 3 : 1, batch = (KINDS + 2) / each, rows = batch * each;
    const int64_t dims[LF_MAX_SYMBOLS] = {batch}, one[LF_MAX_SYMBOLS] = {1};
    rig r;
    rig_open(&r, text, fuse, kern);
    rig_ports in = rig_inputs(&r, dims, RIG_UNIFORM);
    fill(in.data[0], rows, n);
    rig_ports out = rig_run(&r, dims, &in, pools[0], NULL, batch),
              again = rig_run(&r, dims, &in, pools[1], NULL, batch);
    for (int64_t row = 0; row < rows; row++) {
        snprintf(what, sizeof what, "%s, model %d, N=%d, row %d", kern->isa, (int)(m - models), (int)n, (int)row);
        check_row(what, out.data[0] + row * n, in.data[0] + row * n, n, m->scale);
    }
    for (int64_t b = 0; b < batch; b++) {
        float *const first = in.data[0] + b * each * n;
        rig_ports alone_in = {.data = {first}, .typed = {first}};
        rig_ports alone = rig_run(&r, one, &alone_in, pools[b % 2], NULL, 1);
        for (int64_t i = 0; i < each * n; i++) {
            const float y = out.data[0][b * each * n + i];
            assert_true(rig_bits(y) == rig_bits(again.data[0][b * each * n + i]) || isnan(y));
            assert_true(rig_bits(y) == rig_bits(alone.data[0][i]) || isnan(y));
        }
        rig_ports_free(&alone);
    }
    rig_ports_free(&in);
    rig_ports_free(&out);
    rig_ports_free(&again);
    rig_close(&r);
    free(text);
}

static void rows_of_any_length_and_temper(void **state)
{
    (void)state;
    static const int64_t lengths[] = {1, 2, 7, 31, 127, 128, 129, 255, 256, 257, 511, 1000, 1024, 1025, 1300, 8191};
    lf_pool *pools[2];
    assert_true(lf_pool_new(1, &pools[0]) == LF_OK && lf_pool_new(3, &pools[1]) == LF_OK);
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int i = 0; i < MODELS; i += rig_step())
            for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k += rig_slow() ? 4 : 1)
                check_model(&models[i], lengths[k], lf_kern_at(t), k % 4 != 3, pools);
    check_model(&models[0], 100003, lf_kern_pick(), true, pools);
    lf_pool_free(pools[0]);
    lf_pool_free(pools[1]);
}

/* The kernel: states as the fold without exps has them, exps where they belong and nowhere else. */
static void folds_leave_exps(void **state)
{
    (void)state;
    enum { ROWS = KINDS, LDX = LF_STRIP + 5, LDE = LF_STRIP + 3 };
    static float x[ROWS * LDX], exps[ROWS * LDE + 1];
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int64_t n = 0; n <= LF_STRIP; n = n == 70 ? 255 : n + 1) {
            const lf_kern *kern = lf_kern_at(t);
            double states[2 * ROWS + 1], alone[2];
            lf_rng r = lf_rng_seed(4, "exps");
            for (int row = 0; row < ROWS; row++)
                for (int64_t i = 0; i < n; i++)
                    x[row * LDX + i] = element(row, i, n, &r);
            rig_fill(exps, ROWS * LDE + 1);
            states[2 * ROWS] = 42;
            kern->fold_exps(ROWS, n, x, LDX, 0, states, exps, LDE);
            assert_true(states[2 * ROWS] == 42);
            for (int row = 0; row < ROWS; row++) {
                kern->fold[LF_MONOID_maxsumexp](1, n, x + row * LDX, 0, alone);
                for (int k = 0; k < 2; k++)
                    assert_true(alone[k] == states[2 * row + k] || isnan(alone[k]));
                assert_true(isnan(alone[1]) == isnan(states[2 * row + 1]) && isnan(alone[0]) == isnan(states[2 * row]));
                for (int64_t i = 0; i < LDE; i++, cases++) {
                    const float e = exps[row * LDE + i];
                    const double want = alone[0] == -INFINITY ? 0 : exp((double)(x[row * LDX + i] - (float)alone[0]));
                    if (i >= n)
                        assert_true(rig_is_poison(e));
                    else if (!isnan(alone[1]))
                        assert_true(fabs((double)e - want) <= 4 * UNIT * want + 0x1p-149);
                }
            }
        }
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, some_ran)
    const struct CMUnitTest tests[] = {
        TEST(rows_of_any_length_and_temper),
        TEST(folds_leave_exps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
