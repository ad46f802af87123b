/* SPDX-License-Identifier: Apache-2.0 */
/* Rows and columns whose sums or squares floats do not hold, among ordinary ones: right against double precision on
 * every table, and the same bits whatever rows are beside them; NaN and Inf where they were. */
#include "cpu_support.h"

typedef struct model {
    const char *text; /* input x, of 1 or more axes after B; one output */
    bool columns;     /* each of its statistics is of a column */
    bool plain;       /* its outputs are as large as its input, and otherwise near 1 */
} model;

#define X "input x f32[B, {N}]\n"
#define RETURN "\nreturn y\n"
static const model models[] = {
    {X "y = layer_norm(x, normalized_shape=[{N}])" RETURN, false, false},
    {X "y = layer_norm(x, normalized_shape=[{N}], eps=0)" RETURN, false, false},
    {X "a = neg(x)\nb = layer_norm(a, normalized_shape=[{N}], eps=0)\ny = mul(b, 2)" RETURN, false, false},
    {X "y = rms_norm(x, normalized_shape=[{N}])" RETURN, false, false},
    {X "y = rms_norm(x, normalized_shape=[{N}], eps=0)" RETURN, false, false},
    {X "y = group_norm(x, num_groups=4)" RETURN, false, false},
    {X "y = group_norm(x, num_groups=4, eps=0)" RETURN, false, false},
    {"input x f32[B, 4, {N}]\ny = instance_norm(x, eps=0)" RETURN, false, false},
    {"input x f32[B, 4, {N}]\ny = layer_norm(x, normalized_shape=[4, {N}])" RETURN, false, false},
    {X "y = batch_norm(x, None, None, training=true)" RETURN, true, false},
    {"input x f32[B, 4, {N}]\na = neg(x)\ny = batch_norm(a, None, None, training=true)" RETURN, true, false},
    {X "a = neg(x)\ny = mean(a, dim=[1])" RETURN, false, true},
    {X "a = neg(x)\ny = sum(a, dim=[1])" RETURN, false, true},
    {"input x f32[B, 4, {N}]\na = neg(x)\ny = mean(a, dim=[1, 2])" RETURN, false, true},
    {"input x f32[B, 1, {N}]\na = neg(x)\ny = avg_pool1d(a, kernel_size=4)" RETURN, false, true},
};
enum { MODELS = sizeof models / sizeof models[0], TEMPERS = 10, SHAPES = 3, KINDS = TEMPERS * SHAPES + 4 };
static const float temper[TEMPERS] = {1, 1e18f, 2e19f, 1e25f, 3.4e38f, 1e-12f, 1e-17f, 1e-19f, 1e-25f, 1e-36f};

/* Element i of n of a kind of row (or column): of a temper, with signs, up to it, or one like no other; and rows that
 * have NaN or Inf. */
static float element(int kind, int64_t i, int64_t n, lf_rng *r)
{
    const int odd = kind - TEMPERS * SHAPES;
    const float u = lf_rng_uniform(r, -1, 1), size = odd >= 0 ? 1 : temper[kind / SHAPES];
    if (odd >= 0)
        return i != n / 3 ? u : odd == 0 ? NAN : odd == 1 ? INFINITY : odd == 2 ? -INFINITY : 0;
    return size * (kind % SHAPES == 0 ? (u < 0 ? -1.0f : 1.0f) : kind % SHAPES == 1 ? u : i == n / 2 ? 1.0f : -1.0f);
}

/* y[i], each `apart` from the next, against ref; off by so much of the larger of it and their root mean square, or of
 * what was added up. */
static void check(const char *what, const float *y, const double *ref, int64_t n, int64_t apart, double size)
{
    double squares = 0;
    for (int64_t i = 0; i < n; i++)
        squares += isfinite(ref[i * apart]) ? ref[i * apart] * ref[i * apart] : 0;
    for (int64_t i = 0; i < n; i++, cases++) {
        const double got = (double)y[i * apart], want = (double)(float)ref[i * apart];
        const double bound = 2e-6 * fmax(fmax(fabs(want), sqrt(squares / (double)n)), size) + 0x1p-148;
        if (isfinite(want) ? !(fabs(got - want) <= bound) : isnan(want) ? !isnan(got) : got != want)
            fail_msg("%s: element %d is %.9g, not %.9g", what, (int)i, got, want);
    }
}

/* Mean magnitude of what a row's sum adds up: sums are as wrong as that is large. */
static double size_of(const float *x, int64_t n, int64_t terms)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += isfinite(x[i]) ? fabs((double)x[i]) : 0;
    return sum / (double)n * (double)terms;
}

static void check_model(const model *m, int64_t n, const lf_kern *kern, bool fuse, lf_pool *pool)
{
    const int64_t each = n * (strstr(m->text, "B, 4,") ? 4 : 1), rows = m->columns ? 37 : KINDS;
    const int64_t dims[LF_MAX_SYMBOLS] = {rows}, one[LF_MAX_SYMBOLS] = {1};
    char *text = rig_text(m->text, "N", &n), what[160];
    rig r;
    rig_open(&r, text, fuse, kern);
    rig_ports in = rig_inputs(&r, dims, RIG_UNIFORM);
    lf_rng rng = lf_rng_seed(13, "range");
    /* a column of batch_norm(x [B, C, L]) is a channel */
    const int64_t span = m->columns ? each / (strstr(m->text, "B, 4,") ? n : 1) : 1;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < each; j++) {
            const int64_t column = j / (each / span);
            in.data[0][i * each + j] = m->columns ? element((int)(column % 15), i, rows, &rng)
                                                  : element((int)i, j, each, &rng);
        }
    double *ref[RIG_PORTS] = {0};
    rig_eval(&r, dims, &in, ref);
    rig_ports out = rig_run(&r, dims, &in, pool, NULL, rows);
    const int64_t to = out.count[0] / rows, terms = strstr(m->text, "= sum(") ? each : 1;
    for (int64_t i = 0; i < (m->columns ? to : rows); i++) {
        snprintf(what, sizeof what, "%s, model %d, N=%d, %s %d", kern->isa, (int)(m - models), (int)n,
                 m->columns ? "column" : "row", (int)i);
        if (m->columns)
            check(what, out.data[0] + i, ref[0] + i, rows, to, 0);
        else
            check(what, out.data[0] + i * to, ref[0] + i * to, to, 1,
                  m->plain ? size_of(in.data[0] + i * each, each, terms) : 0);
    }
    for (int64_t i = 0; !m->columns && i < rows; i += 3) {
        rig_ports alone_in = {.data = {in.data[0] + i * each}, .typed = {in.data[0] + i * each}};
        rig_ports alone = rig_run(&r, one, &alone_in, pool, NULL, 1);
        for (int64_t j = 0; j < to; j++)
            assert_true(rig_bits(alone.data[0][j]) == rig_bits(out.data[0][i * to + j]) || isnan(alone.data[0][j]));
        rig_ports_free(&alone);
    }
    free(ref[0]);
    rig_ports_free(&in);
    rig_ports_free(&out);
    rig_close(&r);
    free(text);
}

static void any_magnitude_is_right(void **state)
{
    (void)state;
    static const int64_t lengths[] = {4, 24, 100, 256, 300, 1200};
    lf_pool *pool;
    assert_true(lf_pool_new(2, &pool) == LF_OK);
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int i = 0; i < MODELS; i++)
            for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k += rig_slow() ? 2 : 1)
                check_model(&models[i], lengths[k], lf_kern_at(t), k % 3 != 2, pool);
    lf_pool_free(pool);
}

/* A running variance below 0 is the caller's affair: what the square root of it and eps says. */
static void running_variances_are_not_encoded(void **state)
{
    (void)state;
    const int64_t dims[LF_MAX_SYMBOLS] = {3};
    for (size_t t = 0; lf_kern_at(t); t++) {
        rig r;
        rig_open(&r, "input x f32[B, 2]\ninput m f32[2]\ninput v f32[2]\n"
                     "y = batch_norm(x, m, v, eps=1)\nreturn y\n", true, lf_kern_at(t));
        rig_ports in = rig_inputs(&r, dims, RIG_UNIFORM);
        in.data[2][0] = -0.75f, in.data[2][1] = -4;
        rig_ports out = rig_run(&r, dims, &in, NULL, NULL, 3);
        for (int i = 0; i < 6; i++, cases++) {
            const float want = (in.data[0][i] - in.data[1][i % 2]) / 0.5f;
            assert_true(i % 2 ? isnan(out.data[0][i]) : fabsf(out.data[0][i] - want) <= 1e-6f);
        }
        rig_ports_free(&in);
        rig_ports_free(&out);
        rig_close(&r);
    }
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, some_ran)
    const struct CMUnitTest tests[] = {
        TEST(any_magnitude_is_right),
        TEST(running_variances_are_not_encoded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
