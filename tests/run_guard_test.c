/* SPDX-License-Identifier: Apache-2.0 */
/* Guarded rewrites through the public API: a row in which a number is not finite comes out as the model is written,
 * every other row keeps its bits, and the call tells how many were redone. */
#include "api_fixture.h"
#include "api_models.h"

#include <float.h>

#define LINEAR    "param w f32[30, 24]\nparam b f32[30]\na = linear(x, w, b)\n"
#define TWO_PARTS "input x f32[B, 24]\n" LINEAR

static const char mean_gelu[] = TWO_PARTS "m = mean(a, dim=1, keepdim=true)\ng = gelu(m)\nreturn g\n";
static const char sum_sigmoid[] = TWO_PARTS "m = sum(a, dim=1)\ng = sigmoid(m)\nreturn g\n";
static const char residual[] =
    "input x f32[B, 24]\nparam w f32[24, 24]\nparam b f32[24]\nparam s f32[24]\na = linear(x, w, b)\nc = sub(a, s)\n"
    "d = mean(c, dim=1, keepdim=true)\ne = logsumexp(d, dim=1, keepdim=true)\nf = gelu(e)\ng = add(f, x)\nreturn g\n";
static const char pooled[] = TWO_PARTS "m = avg_pool1d(a, kernel_size=3)\ng = tanh(m)\nreturn g\n";
static const char fixed[] = "input x f32[70, 24]\n" LINEAR "m = mean(a, dim=1, keepdim=true)\ng = gelu(m)\nreturn g\n";
static const char rank3[] = "input x f32[B, S, 24]\n" LINEAR "m = mean(a, dim=2)\ng = sigmoid(m)\nreturn g\n";
static const char rank3_all[] =
    "input x f32[B, S, 24]\n" LINEAR "m = sum(a, dim=2)\nn = sum(m, dim=1)\ng = sigmoid(n)\nreturn g\n";
static const char two_outputs[] = TWO_PARTS "m = mean(a, dim=1)\nh = softmax(x, dim=1)\nreturn m, h\n";
static const char own_mean[] =
    TWO_PARTS "m = mean(a, dim=1, keepdim=true)\nn = mean(m, dim=1, keepdim=true)\nd = sub(m, n)\nreturn d\n";

static size_t rows_of(const tensors *t, size_t out, size_t row, size_t rows, size_t *first)
{
    size_t width = t->out_count[out] / rows;
    *first = row * width;
    return width;
}

/* Row `row` of t is what `want` says, as far as rounding lets it: t->want. */
static void assert_row_as_written(const tensors *t, size_t row, size_t rows, const char *what)
{
    for (size_t o = 0; o < t->outs; o++) {
        size_t first, width = rows_of(t, o, row, rows, &first);
        double worst = worst_error(t->out[o] + first, t->want[o] + first, width);
        if (!(worst <= tolerance(30)))
            print_error("%s: output %zu, row %zu of %zu: %g where %g is meant\n", what, o, row, rows,
                        (double)t->out[o][first], t->want[o][first]);
        assert_true(worst <= tolerance(30));
    }
}

static void assert_row_unchanged(const tensors *t, const tensors *before, size_t row, size_t rows, const char *what)
{
    for (size_t o = 0; o < t->outs; o++) {
        size_t first, width = rows_of(t, o, row, rows, &first);
        if (memcmp(t->out[o] + first, before->out[o] + first, width * sizeof(float)) != 0)
            print_error("%s: row %zu of %zu changed\n", what, row, rows);
        assert_memory_equal(t->out[o] + first, before->out[o] + first, width * sizeof(float));
    }
}

/* The account names a guarded rewrite: without one, nothing here would be tested. Asked for a device that need not be
 * measured. */
static bool is_guarded(const char *text, const char *words)
{
    rig r = {.context = context_of(1)};
    char *json = NULL;
    r.model = model_of(r.context, text);
    r.program = program_of(r.context, r.model, words);
    OK_PROGRAM(r.program, lf_program_explain(r.program, NULL, true, &json));
    bool found = strstr(json, "\"GUARDED\"") != NULL;
    lf_string_free(json);
    rig_end(&r);
    return found;
}

static const float evil[] = {NAN, INFINITY, -INFINITY};

/* Runs it with and without evil numbers in the rows that bad[] names, each in its own place. */
static void plant(const char *what, const char *text, const char *words, int64_t *dims, size_t rows, const bool *bad,
                  int threads)
{
    rig r = rig_begin(threads, text, words);
    tensors clean = tensors_begin(r.model, dims), t = tensors_begin(r.model, dims);
    size_t width = t.in_count[0] / rows;
    int64_t planted = 0;
    tensors_run(&clean, r.call);
    assert_int_equal(lf_call_rows_redone(r.call), 0);
    for (size_t row = 0; row < rows; row++)
        if (bad[row]) {
            t.in[0][row * width + (row * 7) % width] = evil[row % 3];
            if (row % 4 == 3) /* two of them may cancel: Inf - Inf */
                t.in[0][row * width + (row * 7 + 5) % width] = -evil[row % 3];
            planted++;
        }
    tensors_run(&t, r.call);
    assert_int_equal(lf_call_rows_redone(r.call), planted);
    tensors_eval(&t, r.model, r.program);
    for (size_t row = 0; row < rows; row++)
        if (bad[row])
            assert_row_as_written(&t, row, rows, what);
        else
            assert_row_unchanged(&t, &clean, row, rows, what);
    /* The next call starts anew. */
    tensors_run(&clean, r.call);
    assert_int_equal(lf_call_rows_redone(r.call), 0);
    tensors_end(&clean);
    tensors_end(&t);
    rig_end(&r);
}

enum { MOST_ROWS = 200 };

static void rows_planted_are_redone(void **state)
{
    (void)state;
    static const struct { const char *name, *text; } models[] = {
        {"mean, gelu", mean_gelu}, {"sum, sigmoid", sum_sigmoid}, {"residual", residual}, {"pooled", pooled},
        {"rank 3", rank3}, {"rank 3, all", rank3_all}, {"two outputs", two_outputs}, {"own mean", own_mean},
    };
    static const size_t sizes[] = {1, 2, 63, 64, 65, 130, MOST_ROWS};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        bool guarded = is_guarded(models[m].text, "device=h200");
        if (!guarded)
            print_error("%s: no guarded rewrite\n", models[m].name);
        assert_true(guarded);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (size_t every = 1; every <= 9; every += 2) { /* all rows, a third, a fifth ... */
                bool bad[MOST_ROWS];
                for (size_t row = 0; row < sizes[s]; row++)
                    bad[row] = row % every == every / 2;
                plant(models[m].name, models[m].text, NULL, (int64_t[]){(int64_t)sizes[s], 3}, sizes[s], bad,
                      1 + (int)(s % 3));
            }
    }
}

/* Guarded or not, fused or not: what is not finite lands where the model's meaning puts it, in every model there is. */
static void evil_lands_where_it_should(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 5, 66};
    for (int m = 0; m < SPREAD; m++)
        for (int fuse = 0; fuse < 2; fuse++) {
            rig r = rig_begin(2, spread[m].text, fuse ? NULL : "fuse=false");
            for (int s = 0; s < 3; s++)
                for (size_t e = 0; e < 6; e++) {
                    tensors t = tensors_begin(r.model, (int64_t[]){sizes[s], 3});
                    float *x = t.in[e % t.ins];
                    size_t count = t.in_count[e % t.ins];
                    x[count * 3 / 7] = evil[e % 3];
                    x[count * 5 / 7] = e < 3 ? -evil[e % 3] : evil[(e + 1) % 3];
                    tensors_run(&t, r.call);
                    tensors_eval(&t, r.model, r.program);
                    assert_close(&t, tolerance(spread[m].k), spread[m].name);
                    tensors_end(&t);
                }
            rig_end(&r);
        }
}

/* The batch is a number: there is no running on fewer rows. */
static void a_fixed_batch(void **state)
{
    (void)state;
    for (size_t every = 1; every <= 71; every += 5) {
        bool bad[70];
        for (size_t row = 0; row < 70; row++)
            bad[row] = (row + 1) % every == 0;
        plant("fixed batch", fixed, NULL, NULL, 70, bad, 2);
    }
}

/* An input that all rows share. */
static void what_rows_share(void **state)
{
    (void)state;
    enum { ROWS = 67 };
    rig r = rig_begin(2,
                      "input x f32[B, 24]\ninput y f32[24]\nz = add(x, y)\nparam w f32[30, 24]\na = linear(z, w)\n"
                      "m = mean(a, dim=1)\nreturn m\n",
                      NULL);
    tensors t = tensors_begin(r.model, (int64_t[]){ROWS});
    tensors_run(&t, r.call);
    assert_int_equal(lf_call_rows_redone(r.call), 0);
    t.in[1][7] = INFINITY;
    tensors_run(&t, r.call);
    assert_int_equal(lf_call_rows_redone(r.call), ROWS);
    tensors_eval(&t, r.model, r.program);
    assert_close(&t, tolerance(30), "shared");
    tensors_end(&t);
    rig_end(&r);
}

/* The bits of redone rows: those of the model run without any rewrite, for any number of threads. */
static void redone_rows_have_bits_too(void **state)
{
    (void)state;
    enum { ROWS = 133 };
    tensors t[4];
    rig r[4];
    for (int i = 0; i < 4; i++) {
        r[i] = rig_begin(i + 1, mean_gelu, i == 3 ? "rules=none" : NULL);
        t[i] = tensors_begin(r[i].model, (int64_t[]){ROWS});
        for (size_t row = 0; row < ROWS; row++)
            t[i].in[0][row * 24 + 3] = FLT_MAX; /* too large for a sum of them, so w decides */
        for (size_t row = 0; row < ROWS; row += 2)
            t[i].in[0][row * 24 + 5] = INFINITY;
        tensors_run(&t[i], r[i].call);
        if (i == 1 || i == 2)
            assert_same_bits(&t[0], &t[i], "threads");
    }
    assert_int_equal(lf_call_rows_redone(r[3].call), 0);
    assert_true(lf_call_rows_redone(r[0].call) >= ROWS / 2);
    for (size_t row = 0; row < ROWS; row += 2)
        assert_true(isnan(t[0].out[0][row]) ? isnan(t[3].out[0][row]) : t[0].out[0][row] == t[3].out[0][row]);
    for (int i = 0; i < 4; i++) {
        tensors_end(&t[i]);
        rig_end(&r[i]);
    }
}

/* Numbers so large that sums overflow: with weights of one sign they do so however it is written. */
static void sums_that_overflow(void **state)
{
    (void)state;
    enum { ROWS = 66 };
    rig r = rig_begin(2, mean_gelu, NULL), plain = rig_begin(2, mean_gelu, "fuse=false");
    float w[30 * 24];
    for (int i = 0; i < 30 * 24; i++)
        w[i] = 0.5f + (float)(i % 7) * 0.25f;
    tensors t = tensors_begin(r.model, (int64_t[]){ROWS}), as_written = tensors_begin(r.model, (int64_t[]){ROWS});
    lf_program *programs[] = {r.program, plain.program};
    for (int i = 0; i < 2; i++) {
        OK_PROGRAM(programs[i], give(programs[i], "w", w));
        OK_PROGRAM(programs[i], lf_program_prepare(programs[i]));
    }
    int64_t huge = 0;
    for (size_t row = 0; row < ROWS; row += 5, huge++)
        for (size_t k = 0; k < 24; k++)
            t.in[0][row * 24 + k] = as_written.in[0][row * 24 + k] = row % 2 ? -2e38f : 2e38f;
    tensors_run(&t, r.call);
    assert_int_equal(lf_call_rows_redone(r.call), huge);
    tensors_run(&as_written, plain.call);
    for (size_t i = 0; i < t.out_count[0]; i++)
        t.want[0][i] = as_written.out[0][i];
    assert_close(&t, tolerance(30), "overflow");
    assert_true(isinf(t.out[0][0]));
    tensors_end(&t);
    tensors_end(&as_written);
    rig_end(&r);
    rig_end(&plain);
}

/* A factor taken into the weights makes the sums that lead to a result larger, or weights denormal; results that are
 * ordinary as written stay so. w: two neighbours' weights, x: their inputs. */
static void folding_loses_nothing(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        float w[2], s, x[2];
        bool redone; /* otherwise sums are made in double precision, or the weights are not folded at all */
    } cases[] = {
        {"c = div(a, 1e-30)\nreturn c\n", {1, -1.001f}, 1, {1e10f, 1e10f}, true},
        {"c = mul(3, a)\nd = gelu(c)\nreturn d\n", {1, -1.001f}, 1, {2e38f, 2e38f}, true},
        {"c = mul(a, s)\nd = mean(c, dim=1)\nreturn d\n", {1, -1.001f}, 1e20f, {1e19f, 1e19f}, false},
        {"c = mul(a, 1e-12)\nreturn c\n", {1, 1e-30f}, 1, {1, 1e38f}, false},
        {"c = mul(a, s)\nreturn c\n", {1, 1e-30f}, 1e-12f, {1, 1e38f}, false},
    };
    enum { ROWS = 9, BAD = 4 };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        char text[256];
        float w[16 * 4], s[16];
        snprintf(text, sizeof text, "input x f32[B, 4]\nparam w f32[16, 4]\nparam s f32[16]\na = linear(x, w)\n%s",
                 cases[c].text);
        rig r = rig_begin(2, text, NULL);
        for (int i = 0; i < 16 * 4; i++)
            w[i] = cases[c].w[i % 2];
        for (int i = 0; i < 16; i++)
            s[i] = cases[c].s;
        OK_PROGRAM(r.program, give(r.program, "w", w));
        OK_PROGRAM(r.program, give(r.program, "s", s));
        OK_PROGRAM(r.program, lf_program_prepare(r.program));
        tensors t = tensors_begin(r.model, (int64_t[]){ROWS});
        for (size_t k = 0; k < 4; k++)
            t.in[0][BAD * 4 + k] = cases[c].x[k % 2];
        tensors_run(&t, r.call);
        assert_int_equal(lf_call_rows_redone(r.call), cases[c].redone);
        tensors_eval(&t, r.model, r.program);
        size_t first, width = rows_of(&t, 0, BAD, ROWS, &first);
        for (size_t i = first; i < first + width; i++)
            if (!(fabs(t.out[0][i] - t.want[0][i]) <= 1e-3 * fabs(t.want[0][i])))
                fail_msg("%s: %g, not %g", cases[c].text, (double)t.out[0][i], t.want[0][i]);
        tensors_end(&t);
        rig_end(&r);
    }
}

/* The witness is infinite and the final value would not be: 1 / (1 + exp(-Inf)) is 1, where Inf - Inf is meant. */
static void a_finite_result_hides_nothing(void **state)
{
    (void)state;
    rig r = rig_begin(1, sum_sigmoid, NULL);
    float w[30 * 24];
    for (int i = 0; i < 30 * 24; i++)
        /* the sum of a column is 28: Inf stays Inf; the first output alone is -Inf */
        w[i] = i / 24 == 0 ? -1.0f : 1.0f;
    OK_PROGRAM(r.program, give(r.program, "w", w));
    OK_PROGRAM(r.program, lf_program_prepare(r.program));
    tensors t = tensors_begin(r.model, (int64_t[]){9});
    t.in[0][4 * 24] = INFINITY;
    tensors_run(&t, r.call);
    assert_int_equal(lf_call_rows_redone(r.call), 1);
    assert_true(isnan(t.out[0][4]));
    tensors_eval(&t, r.model, r.program);
    assert_close(&t, tolerance(30), "sigmoid");
    tensors_end(&t);
    rig_end(&r);
}

/* Weights that are not finite: nothing is guarded, the model runs as written. Good ones again: rewritten again. */
static void weights_that_are_not_finite(void **state)
{
    (void)state;
    static const char *const texts[] = {mean_gelu, sum_sigmoid, own_mean, pooled, two_outputs};
    static const char *const names[] = {"w", "b"};
    for (size_t m = 0; m < sizeof texts / sizeof *texts; m++)
        for (int e = 0; e < 6; e++) {
            rig r = rig_begin(2, texts[m], NULL);
            tensors t = tensors_begin(r.model, (int64_t[]){37}), clean = tensors_begin(r.model, (int64_t[]){37});
            float values[30 * 24];
            size_t count = e % 2 ? 30 : 30 * 24;
            tensors_run(&clean, r.call);
            memcpy(values, lf_program_param(r.program, names[e % 2]).data, count * sizeof *values);
            values[17] = evil[e / 2];
            OK_PROGRAM(r.program, give(r.program, names[e % 2], values));
            OK_PROGRAM(r.program, lf_program_prepare(r.program));
            t.in[0][50] = NAN;
            tensors_run(&t, r.call);
            assert_int_equal(lf_call_rows_redone(r.call), 0);
            tensors_eval(&t, r.model, r.program);
            assert_close(&t, tolerance(30), "weights");
            OK_PROGRAM(r.program, lf_program_draw_params(r.program, 11));
            OK_PROGRAM(r.program, lf_program_prepare(r.program));
            t.in[0][50] = clean.in[0][50];
            tensors_run(&t, r.call);
            assert_same_bits(&t, &clean, "weights put right");
            tensors_end(&t);
            tensors_end(&clean);
            rig_end(&r);
        }
}

/* A parameter that the rewritten model does not read any more: as written it is read. */
static void weights_that_were_rewritten_away(void **state)
{
    (void)state;
    rig r = rig_begin(1,
                      "input x f32[B, 6]\nparam w f32[1, 6]\na = linear(x, w)\nm = mean(a, dim=1, keepdim=true)\n"
                      "d = sub(a, m)\nreturn d\n",
                      NULL);
    tensors t = tensors_begin(r.model, (int64_t[]){5});
    float w[6] = {1, 2, NAN, 4, 5, 6};
    tensors_run(&t, r.call);
    for (int i = 0; i < 5; i++)
        assert_true(t.out[0][i] == 0.0f);
    OK_PROGRAM(r.program, give(r.program, "w", w));
    OK_PROGRAM(r.program, lf_program_prepare(r.program));
    tensors_run(&t, r.call);
    tensors_eval(&t, r.model, r.program);
    assert_close(&t, 0.0, "NaN in w");
    assert_true(isnan(t.out[0][0]));
    tensors_end(&t);
    rig_end(&r);
}

static void guards_switched_off(void **state)
{
    (void)state;
    enum { ROWS = 20 };
    rig r = rig_begin(2, mean_gelu, "assume_finite=true"), guarded = rig_begin(2, mean_gelu, NULL);
    assert_false(is_guarded(mean_gelu, "device=h200 assume_finite=true"));
    tensors t = tensors_begin(r.model, (int64_t[]){ROWS}), clean = tensors_begin(r.model, (int64_t[]){ROWS});
    tensors_run(&clean, guarded.call);
    t.in[0][3 * 24] = NAN;
    t.in[0][5 * 24] = INFINITY;
    tensors_run(&t, r.call);
    assert_int_equal(lf_call_rows_redone(r.call), 0);
    for (size_t row = 0; row < ROWS; row++)
        if (row != 3 && row != 5)
            assert_row_unchanged(&t, &clean, row, ROWS, "assumed finite");
    tensors_end(&t);
    tensors_end(&clean);
    rig_end(&r);
    rig_end(&guarded);
}

/* No rows, and rows of no elements. */
static void nothing_to_redo(void **state)
{
    (void)state;
    static const int64_t dims[][2] = {{0, 3}, {5, 0}, {0, 0}};
    static const char *const texts[] = {rank3, rank3_all};
    for (int m = 0; m < 2; m++)
        for (int i = 0; i < 3; i++) {
            rig r = rig_begin(2, texts[m], NULL);
            tensors t = tensors_begin(r.model, dims[i]);
            int64_t extents[] = {dims[i][0], dims[i][1], 24};
            tensors_bind(&t, r.call);
            OK_CALL(r.call, lf_call_set_input(r.call, 0, &(lf_tensor){.rank = 3, .extents = extents}));
            OK_CALL(r.call, lf_call_run(r.call, NULL));
            tensors_eval(&t, r.model, r.program);
            assert_close(&t, tolerance(30), "empty");
            tensors_end(&t);
            rig_end(&r);
        }
    /* A mean over nothing is not a number, and so a row to be redone: with no input to gather it from. */
    rig r = rig_begin(1, "input x f32[B, S, 24]\n" LINEAR "m = mean(a, dim=2)\nn = mean(m, dim=1)\nreturn n\n", NULL);
    tensors t = tensors_begin(r.model, (int64_t[]){5, 0});
    tensors_bind(&t, r.call);
    OK_CALL(r.call, lf_call_set_input(r.call, 0, F32(NULL, 5, 0, 24)));
    OK_CALL(r.call, lf_call_run(r.call, NULL));
    for (int i = 0; i < 5; i++)
        assert_true(isnan(t.out[0][i]));
    tensors_end(&t);
    rig_end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_planted_are_redone),
        cmocka_unit_test(evil_lands_where_it_should),
        cmocka_unit_test(a_fixed_batch),
        cmocka_unit_test(what_rows_share),
        cmocka_unit_test(redone_rows_have_bits_too),
        cmocka_unit_test(sums_that_overflow),
        cmocka_unit_test(folding_loses_nothing),
        cmocka_unit_test(a_finite_result_hides_nothing),
        cmocka_unit_test(weights_that_are_not_finite),
        cmocka_unit_test(weights_that_were_rewritten_away),
        cmocka_unit_test(guards_switched_off),
        cmocka_unit_test(nothing_to_redo),
    };
    return cmocka_run_group_tests_name("run_guard", tests, NULL, NULL);
}
