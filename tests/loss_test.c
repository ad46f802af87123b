/* SPDX-License-Identifier: Apache-2.0 */
/* cross_entropy, compiled: fused with what makes the logits, against its meaning in double precision; what it refuses.
 * That the meaning is PyTorch's: tests/python/test_eval_torch.py. LINFUSE_TEST_DEVICE=cuda: on the GPU. */
#include "api_fixture.h"

/* Of a row of logits: what kind of numbers they are. */
enum { USUAL, HUGE_ONES, MASKED, NONFINITE, KINDS };

typedef struct shape {
    int rows, depth, classes;
} shape;

static const shape shapes[] = {{1, 1, 1}, {7, 3, 5}, {65, 33, 300}, {19, 7, 1025}, {3, 64, 8191}};
enum { SHAPES = sizeof shapes / sizeof *shapes, IGNORED = 2 };

static const char *const tails[] = {
    "l = cross_entropy(y, t)",
    "l = cross_entropy(y, t, ignore_index=2, reduction=\"sum\")",
    "l = cross_entropy(y, t, ignore_index=2, reduction=\"none\")",
    "l = cross_entropy(y, t, c, ignore_index=2)",
    "l = cross_entropy(y, t, c, ignore_index=2, label_smoothing=0.1)",
    "l = cross_entropy(y, t, ignore_index=2, label_smoothing=0.3, reduction=\"none\")",
    "l = cross_entropy(y, t, c, ignore_index=2, label_smoothing=1, reduction=\"none\")",
};
enum { TAILS = sizeof tails / sizeof *tails };

/* b is added to the logits: where they are huge, or masked. */
static char *text_of(const shape *s, const char *tail)
{
    static char text[512];
    snprintf(text, sizeof text,
             "input x f32[B, %d]\ninput b f32[B, %d]\ninput t i64[B]\nparam w f32[%d, %d]\nparam c f32[%d]\n"
             "p = linear(x, w)\ny = add(p, b)\n%s\nm = max(y, dim=1)\nreturn l, m\n",
             s->depth, s->classes, s->classes, s->depth, s->classes, tail);
    return text;
}

static void fill_added(float *b, const shape *s, int kind)
{
    for (int row = 0; row < s->rows; row++)
        for (int c = 0; c < s->classes; c++, b++) {
            *b = 0;
            if (kind == HUGE_ONES)
                *b = c % 3 == 1 ? 4096 : c % 3 ? -1e30f : 4095;
            else if (kind == MASKED)
                *b = c % 2 || row % 5 == 4 ? -INFINITY : 0;
            else if (kind == NONFINITE)
                *b = c != s->classes / 2 ? 0 : row % 3 == 0 ? NAN : row % 3 == 1 ? INFINITY : 0;
        }
}

/* One class in most rows, as in text; some rows are left out. */
static int64_t *targets_of(const shape *s)
{
    int64_t *t = malloc((size_t)s->rows * sizeof *t);
    float *u = malloc((size_t)s->rows * sizeof *u);
    assert_true(t && u);
    lf_draw_uniform(3, "targets", 0, 1, (size_t)s->rows, u);
    for (int i = 0; i < s->rows; i++)
        t[i] = u[i] < 0.5f || s->classes <= IGNORED ? 0 : u[i] < 0.7f ? IGNORED : (int64_t)(u[i] * (float)s->classes);
    free(u);
    return t;
}

static tensors tensors_with_targets(const rig *r, const shape *s, int kind)
{
    tensors t = tensors_begin(r->model, (const int64_t[]){s->rows});
    fill_added(t.in[1], s, kind);
    free(t.in[2]);
    t.in[2] = (float *)(void *)targets_of(s);
    return t;
}

static bool on_gpu(void)
{
    return getenv("LINFUSE_TEST_DEVICE");
}

static void compiled_is_what_it_means(void **state)
{
    (void)state;
    static const char *const how[] = {"fuse=true", "fuse=false", "rules=none"}, *const there[] = {"device=cuda"};
    for (int i = 0; i < SHAPES; i++)
        for (int k = 0; k < TAILS; k++)
            for (int h = 0; h < (on_gpu() ? 1 : 3); h++) {
                rig r = rig_begin(2, text_of(&shapes[i], tails[k]), on_gpu() ? there[h] : how[h]);
                for (int kind = 0; kind < KINDS; kind++) {
                    char what[256];
                    tensors t = tensors_with_targets(&r, &shapes[i], kind);
                    snprintf(what, sizeof what, "%s, numbers %d, %s", tails[k], kind, how[h]);
                    tensors_run(&t, r.call);
                    tensors_eval(&t, r.model, r.program);
                    /* a logit of 4096 is rounded by up to 2^-12, whoever computes it */
                    assert_close(&t, kind == HUGE_ONES ? 0x1p-10 : tolerance(shapes[i].depth), what);
                    tensors_end(&t);
                }
                rig_end(&r);
            }
}

static void one_kernel_stores_no_logits(void **state)
{
    (void)state;
    static const char text[] = "input x f32[B, 64]\ninput t i64[B]\nparam w f32[5000, 64]\ny = linear(x, w)\n"
                               "l = cross_entropy(y, t, label_smoothing=0.1)\nreturn l\n";
    rig r = rig_begin(1, text, NULL);
    lf_account *account;
    OK_PROGRAM(r.program, lf_program_account(r.program, (const int64_t[]){512}, &account));
    assert_true(lf_account_number(account, "fused", "launches", 0) == 1);
    assert_true(lf_account_number(account, "fused", "intermediate_bytes", 0) == 0);
    assert_true(lf_account_number(account, "fused", "workspace_bytes", 0) < 512.0 * 5000 * 4 / 2);
    lf_account_free(account);
    rig_end(&r);
}

static void threads_and_neighbours_change_no_bits(void **state)
{
    (void)state;
    const shape s = {130, 33, 1025};
    for (int k = 0; k < TAILS; k++) {
        rig one = rig_begin(1, text_of(&s, tails[k]), NULL), three = rig_begin(3, text_of(&s, tails[k]), NULL);
        tensors a = tensors_with_targets(&one, &s, USUAL), b = tensors_with_targets(&three, &s, USUAL);
        tensors_run(&a, one.call);
        tensors_run(&b, three.call);
        assert_same_bits(&a, &b, tails[k]);
        for (int row = 0; row < s.rows && strstr(tails[k], "none"); row += 43) {
            float alone[2];
            const int64_t dims[] = {1};
            const float *in[] = {a.in[0] + row * s.depth, a.in[1] + row * s.classes,
                                 (const float *)(const void *)((const int64_t *)(const void *)a.in[2] + row)};
            OK_CALL(one.call, run_at(one.call, dims, in, (float *const[]){alone, alone + 1}, 1));
            assert_memory_equal(alone, a.out[0] + row, sizeof(float));
        }
        tensors_end(&a);
        tensors_end(&b);
        rig_end(&one);
        rig_end(&three);
    }
}

static void all_rows_may_be_left_out(void **state)
{
    (void)state;
    static const char text[] = "input x f32[B, 4]\ninput t i64[B]\nl = cross_entropy(x, t)\n"
                               "s = cross_entropy(x, t, reduction=\"sum\")\n"
                               "n = cross_entropy(x, t, reduction=\"none\")\nreturn l, s, n\n";
    const float x[] = {1, 2, NAN, 4, INFINITY, 6, 7, 8};
    const int64_t t[] = {-100, -100}, dims[] = {2};
    float mean, sum, none[2];
    rig r = rig_begin(1, text, on_gpu() ? "device=cuda" : NULL);
    OK_CALL(r.call, run_at(r.call, dims, (const float *const[]){x, (const float *)(const void *)t},
                           (float *const[]){&mean, &sum, none}, 1));
    assert_true(isnan(mean) && sum == 0 && none[0] == 0 && none[1] == 0);
    rig_end(&r);
}

/* As in PyTorch, an error; from a run and from evaluation. */
static void targets_out_of_range_are_refused(void **state)
{
    (void)state;
    static const char text[] = "input x f32[B, 2]\ninput t i64[2, B]\nr = reshape(t, shape=[-1])\n"
                               "y = reshape(x, shape=[-1, 1])\nl = cross_entropy(y, r)\nreturn l\n";
    static const char words[] = "input t: target 3 is 1, but l has classes 0 to 0; give a target that is to be left "
                                "out as ignore_index=-100";
    const float x[] = {1, 2, 3, 4};
    int64_t t[] = {0, -100, 0, 1};
    float y;
    rig r = rig_begin(1, text, NULL);
    const lf_tensor in[] = {*F32(x, 2, 2), {.data = t, .dtype = LF_I64, .rank = 2, .extents = EXTENTS(2, 2)}};
    OK_CALL(r.call, lf_call_set_input(r.call, 0, &in[0]));
    OK_CALL(r.call, lf_call_set_input(r.call, 1, &in[1]));
    OK_CALL(r.call, lf_call_set_output(r.call, 0, &(lf_tensor){.data = &y}));
    REFUSES(LF_ERR_DATA, words, lf_call_run(r.call, NULL), lf_call_message(r.call));
    REFUSES(LF_ERR_DATA, words, lf_model_eval(r.model, in, NULL, (double *const[]){&(double){0}}),
            lf_model_message(r.model));
    t[3] = -1;
    REFUSES(LF_ERR_DATA, "target 3 is -1", lf_call_run(r.call, NULL), lf_call_message(r.call));
    t[3] = -100;
    OK_CALL(r.call, lf_call_run(r.call, NULL));
    assert_true(y == 0);
    rig_end(&r);
}

static void short_types_and_several_axes(void **state)
{
    (void)state;
    static const char text[] = "input x f32[B, 9, 4]\ninput b f32[1]\ninput t i64[B, 4]\nh = to(x, dtype=\"bf16\")\n"
                               "n = cross_entropy(x, t, ignore_index=2, label_smoothing=0.1, reduction=\"none\")\n"
                               "m = cross_entropy(h, t)\no = to(m, dtype=\"f32\")\nreturn n, o\n";
    const shape s = {6 * 4, 1, 9};
    rig r = rig_begin(2, text, on_gpu() ? "device=cuda" : NULL);
    tensors t = tensors_begin(r.model, (const int64_t[]){6});
    free(t.in[2]);
    t.in[2] = (float *)(void *)targets_of(&s);
    tensors_run(&t, r.call);
    tensors_eval(&t, r.model, r.program);
    assert_true(worst_error(t.out[0], t.want[0], t.out_count[0]) < 1e-6);
    assert_true(worst_error(t.out[1], t.want[1], 1) < 0x1p-8); /* one rounding to bf16 */
    tensors_end(&t);
    rig_end(&r);
}

static void mistakes_are_named(void **state)
{
    (void)state;
    static const struct { const char *text, *words; } bad[] = {
        {"input x f32[B, 4]\ninput t f32[B]\nl = cross_entropy(x, t)\nreturn l\n",
         "target t [B] is f32; it counts classes"},
        {"input x f32[B, 4]\ninput t i64[4]\nl = cross_entropy(x, t)\nreturn l\n", "target t [4] has to be [B]"},
        {"input x f32[B, C]\ninput t i64[B]\nl = cross_entropy(x, t)\nreturn l\n",
         "the classes, extent 1, have to be"},
        {"input x f32[B, 4]\ninput t i64[B]\nparam w f32[3]\nl = cross_entropy(x, t, w)\nreturn l\n",
         "weight w [3] has to be [4]"},
        {"input x f32[B, 4]\ninput t i64[B]\nl = cross_entropy(x, t, label_smoothing=2)\nreturn l\n",
         "label_smoothing is 2; it lies between 0 and 1"},
        {"input x f32[B, 4]\ninput t i64[B]\nl = cross_entropy(x, t, ignore_index=16777217)\nreturn l\n",
         "ignore_index is 16777217"},
        {"input x bf16[B, 4]\ninput t i64[B]\nparam w f32[4]\nl = cross_entropy(x, t, w)\nreturn l\n",
         "PyTorch does not mix them"},
        {"input x i64[B, 4]\ninput t i64[B]\nl = cross_entropy(x, t)\nreturn l\n", "input x [B, 4] is i64"},
    };
    lf_context *context = context_of(1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        lf_model *model;
        REFUSES(LF_ERR_MODEL, bad[i].words, lf_model_read(context, "bad.lf", bad[i].text, strlen(bad[i].text), &model),
                lf_context_message(context));
    }
    lf_context_free(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compiled_is_what_it_means),
        cmocka_unit_test(one_kernel_stores_no_logits),
        cmocka_unit_test(threads_and_neighbours_change_no_bits),
        cmocka_unit_test(all_rows_may_be_left_out),
        cmocka_unit_test(targets_out_of_range_are_refused),
        cmocka_unit_test(short_types_and_several_axes),
        cmocka_unit_test(mistakes_are_named),
    };
    const struct CMUnitTest on_device[] = {
        cmocka_unit_test(compiled_is_what_it_means),
        cmocka_unit_test(short_types_and_several_axes),
        cmocka_unit_test(all_rows_may_be_left_out),
    };
    if (on_gpu())
        return cmocka_run_group_tests(on_device, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
