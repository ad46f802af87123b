/* SPDX-License-Identifier: Apache-2.0 */
/* lf_eval by hand: a few values of every kind of op, and what PyTorch cannot witness: memory, errors, guards, batch 0.
 * The meaning of each op at large is test_eval_torch.py's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/graph.h"

/* ---- memory that runs out ---- */

static bool counting;        /* only inside the call under test */
static long allowed, living; /* allocations until one fails (negative: none does), and blocks not yet freed */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void __real_free(void *p);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void __wrap_free(void *p);

static bool refuse(void)
{
    return counting && allowed >= 0 && allowed-- == 0;
}

void *__wrap_malloc(size_t size)
{
    void *p = refuse() ? NULL : __real_malloc(size);
    living += counting && p;
    return p;
}

void *__wrap_calloc(size_t count, size_t size)
{
    void *p = refuse() ? NULL : __real_calloc(count, size);
    living += counting && p;
    return p;
}

void __wrap_free(void *p)
{
    living -= counting && p;
    __real_free(p);
}

/* ---- a model and its data ---- */

typedef struct model {
    lf_arena arena;
    lf_diag diag;
    lf_graph g;
    lf_bound bound[64];
    int64_t dims[LF_MAX_SYMBOLS];
} model;

static model *model_new(const char *text)
{
    model *m = calloc(1, sizeof *m);
    assert_non_null(m);
    lf_arena_init(&m->arena);
    assert_int_equal(lf_graph_init(&m->g, &m->arena, &m->diag), LF_OK);
    if (lf_text_read(&m->g, "test", text, strlen(text)) != LF_OK)
        fail_msg("%s", m->diag.text);
    assert_in_range(m->g.count, 1, 64);
    return m;
}

static void model_free(model *m)
{
    lf_arena_free(&m->arena);
    free(m);
}

static lf_node named(const model *m, const char *name)
{
    lf_node n = lf_graph_find(&m->g, name, strlen(name));
    assert_int_not_equal(n, LF_NONE);
    return n;
}

static void bind_f32(model *m, const char *name, const float *data)
{
    m->bound[named(m, name)] = (lf_bound){.data = data};
}

static lf_status eval_one(model *m, lf_node n, double *out)
{
    return lf_eval(&m->g, m->dims, m->bound, &n, 1, &out, &m->diag);
}

static void expect_values(const double *got, const double *want, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        bool same = isnan(want[i])   ? isnan(got[i])
                    : isinf(want[i]) ? got[i] == want[i]
                                     : fabs(got[i] - want[i]) <= 1e-14 * fmax(1, fabs(want[i]));
        if (!same)
            fail_msg("value %zu is %.17g, not %.17g", i, got[i], want[i]);
    }
}

#define VALUES(...) (const double[]){__VA_ARGS__}, sizeof((const double[]){__VA_ARGS__}) / sizeof(double)

/* The op's one result on x, declared f32[shape]; `rest` may declare more and is bound to y. */
static void check(const char *shape, const float *x, const char *rest, const float *y, const char *call,
                  const double *want, size_t count)
{
    char text[512];
    double got[64];
    snprintf(text, sizeof text, "input x f32[%s]\n%s\nr = %s\nreturn r\n", shape, rest ? rest : "", call);
    model *m = model_new(text);
    bind_f32(m, "x", x);
    if (rest)
        bind_f32(m, "y", y);
    assert_int_equal(lf_shape_count(&lf_at(&m->g, m->g.output[0])->shape, m->dims), (int64_t)count);
    assert_in_range(count, 1, 64);
    assert_int_equal(eval_one(m, m->g.output[0], got), LF_OK);
    expect_values(got, want, count);
    model_free(m);
}

static const float one_to_six[] = {1, 2, 3, 4, 5, 6};

static void products(void **state)
{
    (void)state;
    static const float w[] = {1, 0, -1, 2, 2, 2}, zeros[] = {0, 0, 0, 0, 0, INFINITY};
    check("2, 3", one_to_six, "param y f32[2, 3]", w, "linear(x, y)", VALUES(-2, 12, -2, 30));
    check("1, 3", one_to_six, "param y f32[3, 2]", w, "matmul(x, y)", VALUES(1 - 2 + 6, 4 + 6));
    check("2, 3", one_to_six, "param y f32[2]", w, "linear(x, x, y)", VALUES(15, 32, 33, 77));
    check("2, 3", zeros, "param y f32[1, 3]", w, "linear(x, y)", VALUES(0, -INFINITY));
    check("2, 3", one_to_six, "param y f32[2, 3]", zeros, "linear(x, y)", VALUES(0, INFINITY, 0, INFINITY));
    check("2, 3", zeros, "param y f32[2, 3]", zeros, "linear(x, y)", VALUES(0, NAN, NAN, INFINITY)); /* 0 * Inf */
}

static void pointwise(void **state)
{
    (void)state;
    static const float x[] = {-2, 0, 3, NAN}, y[] = {10, 20};
    check("4", x, NULL, NULL, "relu(x)", VALUES(0, 0, 3, NAN));
    check("4", x, NULL, NULL, "leaky_relu(x, negative_slope=0.25)", VALUES(-0.5, 0, 3, NAN));
    check("4", x, NULL, NULL, "clamp(x, max=1)", VALUES(-2, 0, 1, NAN));
    check("4", x, NULL, NULL, "pow(x, 2)", VALUES(4, 0, 9, NAN));
    check("4", x, NULL, NULL, "reciprocal(x)", VALUES(-0.5, INFINITY, 1.0 / 3, NAN));
    check("4", x, NULL, NULL, "maximum(1, x)", VALUES(1, 1, 3, NAN));
    check("3, 1", x, "input y f32[2]", y, "sub(x, y, alpha=0.5)", VALUES(-7, -12, -5, -10, -2, -7));
    check("4", x, NULL, NULL, "div(x, 0)", VALUES(-INFINITY, NAN, INFINITY, NAN));
}

static void reductions(void **state)
{
    (void)state;
    static const float x[] = {1, NAN, -INFINITY, -INFINITY, INFINITY, 0}, two[] = {0, 0};
    check("2, 3", one_to_six, NULL, NULL, "sum(x, dim=0)", VALUES(5, 7, 9));
    check("2, 3", one_to_six, NULL, NULL, "mean(x, dim=-1, keepdim=true)", VALUES(2, 5));
    check("2, 3", one_to_six, NULL, NULL, "max(x)", VALUES(6));
    check("3, 2, 1", one_to_six, NULL, NULL, "sum(x, dim=[0, 2])", VALUES(9, 12));
    check("3, 2", x, NULL, NULL, "max(x, dim=1)", VALUES(NAN, -INFINITY, INFINITY));
    check("3, 2", x, NULL, NULL, "min(x, dim=1)", VALUES(NAN, -INFINITY, 0));
    check("3, 2", x, NULL, NULL, "logsumexp(x, dim=1)", VALUES(NAN, -INFINITY, INFINITY));
    check("2", two, NULL, NULL, "logsumexp(x, dim=0)", VALUES(0.69314718055994530942));
}

static void normalisations(void **state)
{
    (void)state;
    static const float x[] = {0, 2, -3, 3}, far[] = {-INFINITY, 5, 5}, none[] = {-INFINITY, -INFINITY};
    static const float y[] = {10, 1};
    check("3", far, NULL, NULL, "softmax(x, dim=0)", VALUES(0, 0.5, 0.5));
    check("2", none, NULL, NULL, "softmax(x, dim=0)", VALUES(NAN, NAN));
    check("3", far, NULL, NULL, "log_softmax(x, dim=0)",
          VALUES(-INFINITY, -0.69314718055994530942, -0.69314718055994530942));
    check("2, 2", x, NULL, NULL, "layer_norm(x, [2], eps=0)", VALUES(-1, 1, -1, 1));
    check("2, 2", x, "param y f32[2]", y, "layer_norm(x, [2], y, y, eps=3)",
          VALUES(5, 1.5, 10 - 30 / sqrt(12), 1 + 3 / sqrt(12)));
    check("1, 4", x, NULL, NULL, "group_norm(x, 2, eps=0)", VALUES(-1, 1, -1, 1));
    check("1, 2, 2", x, NULL, NULL, "instance_norm(x, eps=0)", VALUES(-1, 1, -1, 1));
    check("2", (const float[]){3, 4}, NULL, NULL, "rms_norm(x, [2], eps=0)", VALUES(3 / sqrt(12.5), 4 / sqrt(12.5)));
    check("1", (const float[]){0x1p-12f}, NULL, NULL, "rms_norm(x, [1])", VALUES(0x1p-12 / sqrt(0x1p-24 + 0x1p-23)));
    check("2, 2", x, NULL, NULL, "batch_norm(x, None, None, training=true, eps=0)", VALUES(1, -1, -1, 1));
    check("2, 2", x, "param y f32[2]", y, "batch_norm(x, y, y, eps=6)",
          VALUES(-2.5, 1 / sqrt(7), -13.0 / 4, 2 / sqrt(7)));
}

static void pools(void **state)
{
    (void)state;
    static const float x[] = {1, 2, NAN, 4, 5};
    check("1, 6", one_to_six, NULL, NULL, "avg_pool1d(x, 3)", VALUES(2, 5));
    check("1, 6", one_to_six, NULL, NULL, "avg_pool1d(x, 4, padding=2)", VALUES(0.75, 4.5));
    check("1, 6", one_to_six, NULL, NULL, "avg_pool1d(x, 4, padding=2, count_include_pad=false)", VALUES(1.5, 4.5));
    check("1, 6", one_to_six, NULL, NULL, "avg_pool1d(x, 4, ceil_mode=true)", VALUES(2.5, 5.5));
    check("1, 5", x, NULL, NULL, "max_pool1d(x, 2, 1)", VALUES(2, NAN, NAN, 5));
    check("1, 5", x, NULL, NULL, "max_pool1d(x, 2, stride=1, padding=1, dilation=3)", VALUES(NAN, 4, 5, NAN));
}

static void shapes(void **state)
{
    (void)state;
    check("2, 3", one_to_six, NULL, NULL, "transpose(x, 0, -1)", VALUES(1, 4, 2, 5, 3, 6));
    check("2, 3", one_to_six, NULL, NULL, "slice(x, 1, 1)", VALUES(2, 3, 5, 6));
    check("2, 3", one_to_six, NULL, NULL, "slice(x, -1, None, 9, 2)", VALUES(1, 3, 4, 6));
    check("2, 3", one_to_six, NULL, NULL, "slice(x, start=-1)", VALUES(4, 5, 6));
    check("2, 3", one_to_six, NULL, NULL, "reshape(x, [3, -1])", VALUES(1, 2, 3, 4, 5, 6));
    check("1, 2, 3", one_to_six, NULL, NULL, "squeeze(x)", VALUES(1, 2, 3, 4, 5, 6));
    check("2, 3", one_to_six, NULL, NULL, "dropout(x, 0.5, training=false)", VALUES(1, 2, 3, 4, 5, 6));
}

/* Values that several nodes, views and places share, each filled; doubles are taken as well as floats. */
static void several_results(void **state)
{
    (void)state;
    model *m =
        model_new("input x f32[2]\nparam w f32[2]\na = add(x, w)\nb = reshape(a, [2, 1])\nc = mul(b, 2)\nreturn c\n");
    const double w[] = {0.5, 1e-20};
    double out[6][2];
    bind_f32(m, "x", one_to_six);
    m->bound[named(m, "w")] = (lf_bound){.f64 = w};
    const lf_node wanted[] = {named(m, "b"), named(m, "a"), named(m, "c"), named(m, "a"), named(m, "x"), named(m, "w")};
    double *const to[] = {out[0], out[1], out[2], out[3], out[4], out[5]};
    assert_int_equal(lf_eval(&m->g, m->dims, m->bound, wanted, 6, to, &m->diag), LF_OK);
    expect_values(&out[0][0], VALUES(1.5, 2, 1.5, 2, 3, 4, 1.5, 2, 1, 2, 0.5, 1e-20));
    assert_true(out[5][1] == 1e-20);
    assert_int_equal(lf_eval(&m->g, m->dims, m->bound, NULL, 0, NULL, &m->diag), LF_OK);
    model_free(m);
}

/* What the caller knows already is taken as it is, and what only it was made from is not asked for. */
static void given_values(void **state)
{
    (void)state;
    model *m =
        model_new("input x f32[2]\nparam w f32[2]\na = add(x, w)\nb = reshape(a, [2, 1])\nc = mul(b, 2)\nreturn c\n");
    const double a[] = {0.25, -7};
    double out[2][2];
    m->bound[named(m, "a")] = (lf_bound){.f64 = a, .known = true};
    const lf_node wanted[] = {named(m, "c"), named(m, "a")};
    assert_int_equal(lf_eval(&m->g, m->dims, m->bound, wanted, 2, (double *const[]){out[0], out[1]}, &m->diag), LF_OK);
    expect_values(&out[0][0], VALUES(0.5, -14, 0.25, -7));
    model_free(m);
}

/* A guard is its first value, and does not ask for its witness; a constant fills its shape. */
static void guard_and_constant(void **state)
{
    (void)state;
    model *m = model_new("input x f32[3]\ninput y f32[1]\na = neg(x)\nb = neg(y)\nreturn a, b\n");
    double out[3];
    lf_node guard, constant;
    assert_int_equal(
        lf_graph_op(&m->g, NULL, LF_OP_guard, (const lf_node[]){named(m, "a"), named(m, "b")}, NULL, &guard), LF_OK);
    bind_f32(m, "x", one_to_six);
    assert_int_equal(eval_one(m, guard, out), LF_OK);
    expect_values(out, VALUES(-1, -2, -3));
    const lf_shape three = {.rank = 1, .dim = {lf_extent_of(3)}};
    assert_int_equal(lf_graph_constant(&m->g, 0.1, &three, &constant), LF_OK);
    assert_int_equal(eval_one(m, constant, out), LF_OK);
    expect_values(out, VALUES(0.1, 0.1, 0.1));
    model_free(m);
}

static void missing_data(void **state)
{
    (void)state;
    model *m = model_new("input x f32[2]\nparam lost.w f32[2]\na = neg(x)\nb = add(a, lost.w)\nreturn b\n");
    double out[2];
    bind_f32(m, "x", one_to_six);
    assert_int_equal(eval_one(m, named(m, "b"), out), LF_ERR_DATA);
    assert_string_equal(m->diag.text, "lost.w has no data");
    assert_int_equal(eval_one(m, named(m, "a"), out), LF_OK); /* which does not need it */
    expect_values(out, VALUES(-1, -2));
    model_free(m);
}

static const char every_kind[] =
    "input x f32[B, 4]\nparam w f32[6, 4]\nparam v f32[6]\n"
    "a = linear(x, w, v)\nb = gelu(a)\nc = group_norm(b, 2, v, v)\nd = softmax(c, dim=1)\n"
    "e = max_pool1d(d, 2)\nf = transpose(e, 0, 1)\ng = matmul(f, d)\nh = reshape(g, [-1])\n"
    "i = logsumexp(g, dim=1)\nj = sum(d, dim=0)\nk = mean(d, dim=0)\n"
    "l = batch_norm(b, None, None, training=true)\nreturn h, i, j, k, l\n";

/* No rows: what keeps them is empty, what sums over them sums nothing. */
static void batch_of_none(void **state)
{
    (void)state;
    model *m = model_new(every_kind);
    static const float data[24] = {1};
    double h[18], i[3], j[6], k[6], l[1] = {7};
    double *const out[] = {h, i, j, k, l};
    bind_f32(m, "w", data);
    bind_f32(m, "v", data);
    m->dims[0] = 0;
    assert_int_equal(lf_eval(&m->g, m->dims, m->bound, m->g.output, 5, out, &m->diag), LF_OK);
    expect_values(h, VALUES(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
    expect_values(i, VALUES(log(6), log(6), log(6)));
    expect_values(j, VALUES(0, 0, 0, 0, 0, 0));
    expect_values(k, VALUES(NAN, NAN, NAN, NAN, NAN, NAN));
    assert_true(l[0] == 7);
    model_free(m);
}

/* Each allocation fails in turn; the last round has all it wants. Nothing stays behind in any. */
static void memory_runs_out(void **state)
{
    (void)state;
    model *m = model_new(every_kind);
    float x[12], w[24];
    double h[18], k[6];
    for (int i = 0; i < 24; i++)
        w[i] = x[i % 12] = (float)i / 8;
    bind_f32(m, "x", x);
    bind_f32(m, "w", w);
    bind_f32(m, "v", w);
    m->dims[0] = 3;
    const lf_node wanted[] = {named(m, "h"), named(m, "k")};
    double *const out[] = {h, k};
    lf_status status = LF_ERR_NOMEM;
    long rounds = 0;
    for (; status == LF_ERR_NOMEM && rounds < 1000; rounds++) {
        counting = true;
        allowed = rounds;
        living = 0;
        status = lf_eval(&m->g, m->dims, m->bound, wanted, 2, out, &m->diag);
        counting = false;
        assert_int_equal(living, 0);
        assert_true(status == LF_OK || strstr(m->diag.text, "out of memory"));
    }
    assert_int_equal(status, LF_OK);
    assert_true(rounds > 10); /* it did sweep */
    model_free(m);
}

/* Sizes around the product's panels, in small integers, where every sum is exact. */
static void product_panels(void **state)
{
    (void)state;
    static const int sizes[][3] = {{1, 127, 255}, {3, 128, 256}, {4, 129, 257}, {5, 257, 1}, {9, 1, 513}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int rows = sizes[s][0], inputs = sizes[s][1], outputs = sizes[s][2];
        char text[256];
        snprintf(text, sizeof text,
                 "input x f32[%d, %d]\nparam w f32[%d, %d]\na = linear(x, w)\nb = transpose(w, 0, 1)\n"
                 "c = matmul(x, b)\nreturn a, c\n",
                 rows, inputs, outputs, inputs);
        model *m = model_new(text);
        float *x = malloc(sizeof(float) * (size_t)(rows * inputs)),
              *w = malloc(sizeof(float) * (size_t)(outputs * inputs));
        double *a = malloc(sizeof(double) * (size_t)(rows * outputs)),
               *c = malloc(sizeof(double) * (size_t)(rows * outputs));
        assert_true(x && w && a && c);
        for (int i = 0; i < rows * inputs; i++)
            x[i] = (float)(i * 7 % 11 - 5);
        for (int i = 0; i < outputs * inputs; i++)
            w[i] = (float)(i * 5 % 13 - 6);
        bind_f32(m, "x", x);
        bind_f32(m, "w", w);
        assert_int_equal(lf_eval(&m->g, m->dims, m->bound, m->g.output, 2, (double *const[]){a, c}, &m->diag), LF_OK);
        for (int i = 0; i < rows; i++)
            for (int n = 0; n < outputs; n++) {
                long sum = 0;
                for (int k = 0; k < inputs; k++)
                    sum += (long)x[i * inputs + k] * (long)w[n * inputs + k];
                assert_true(a[i * outputs + n] == (double)sum && c[i * outputs + n] == (double)sum);
            }
        free(x), free(w), free(a), free(c);
        model_free(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products),        cmocka_unit_test(pointwise),
        cmocka_unit_test(reductions),      cmocka_unit_test(normalisations),
        cmocka_unit_test(pools),           cmocka_unit_test(shapes),
        cmocka_unit_test(several_results), cmocka_unit_test(given_values), cmocka_unit_test(guard_and_constant),
        cmocka_unit_test(missing_data),    cmocka_unit_test(batch_of_none),
        cmocka_unit_test(memory_runs_out), cmocka_unit_test(product_panels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
