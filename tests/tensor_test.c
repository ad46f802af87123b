/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor descriptors: what is wrong with one is said in its own words, wherever it is given; elements that do not lie
 * in order are copied where that is cheap, and refused where not. */
#include "api_fixture.h"

static const char text[] = "input x f32[B, 4]\nparam w f32[3, 4]\ny = linear(x, w)\nreturn y\n";

enum { K = 4, N = 3 };

/* Every field, wrong, and what is said of it behind "input x" and the like. */
static const struct {
    const char *what;
    lf_status status;
    const char *words;
} mistakes[] = {
    {"dtype", LF_ERR_DATA, "the tensor is bf16"},       {"no dtype", LF_ERR_ARG, "`dtype` is 77"},
    {"rank", LF_ERR_DATA, "the tensor has rank 1"},     {"extents", LF_ERR_ARG, "`extents` must not be NULL"},
    {"extent", LF_ERR_DATA, "extent 1 of the tensor is 5"}, {"negative", LF_ERR_DATA, "extent 0 of the tensor is -3"},
    {"data", LF_ERR_ARG, "`data` must not be NULL"},    {"memory", LF_ERR_ARG, "`memory` is 9"},
    {"device", LF_ERR_ARG, "device memory needs a program compiled for cuda"},
};
enum { MISTAKES = sizeof mistakes / sizeof *mistakes };

static lf_tensor with_mistake(lf_tensor t, const char *what)
{
    static const int64_t wide[] = {3, 5}, negative[] = {-3, 4};
    if (strcmp(what, "dtype") == 0)
        t.dtype = LF_BF16;
    else if (strcmp(what, "no dtype") == 0)
        t.dtype = (lf_dtype)77;
    else if (strcmp(what, "rank") == 0)
        t.rank = 1;
    else if (strcmp(what, "extents") == 0)
        t.extents = NULL;
    else if (strcmp(what, "extent") == 0)
        t.extents = wide;
    else if (strcmp(what, "negative") == 0)
        t.extents = negative;
    else if (strcmp(what, "data") == 0)
        t.data = NULL;
    else if (strcmp(what, "memory") == 0)
        t.memory = (lf_memory)9;
    else
        t.memory = LF_DEVICE;
    return t;
}

static void refused(const char *message, const char *port, const char *words)
{
    if (!strstr(message, port) || !strstr(message, words))
        print_error("\"%s\" should have \"%s\" and \"%s\"\n", message, port, words);
    assert_true(strstr(message, port) && strstr(message, words));
}

static void what_is_wrong_is_named(void **state)
{
    (void)state;
    rig r = rig_begin(1, text, NULL);
    float x[12] = {0}, y[9], w[12] = {0};
    double z[9];
    for (int i = 0; i < MISTAKES; i++) {
        const lf_tensor input = with_mistake(*F32(x, 3, 4), mistakes[i].what),
                        param = with_mistake(*F32(w, 3, 4), mistakes[i].what);
        assert_int_equal(lf_call_set_input(r.call, 0, &input), mistakes[i].status);
        refused(lf_call_message(r.call), "input x", mistakes[i].words);
        for (int holding = LF_COPY; holding <= LF_BORROW; holding++) {
            assert_int_equal(lf_program_set_param(r.program, "w", &param, (lf_holding)holding, NULL),
                             mistakes[i].status);
            refused(lf_program_message(r.program), "parameter w", mistakes[i].words);
        }
        const char *words = strcmp(mistakes[i].what, "device") == 0 ? "host memory" : mistakes[i].words;
        assert_int_equal(lf_model_eval(r.model, &input, F32(w, 3, 4), (double *[]){z}), mistakes[i].status);
        refused(lf_model_message(r.model), "input x", words);
        assert_int_equal(lf_model_eval(r.model, F32(x, 3, 4), &param, (double *[]){z}), mistakes[i].status);
        refused(lf_model_message(r.model), "parameter w", words);
    }
    assert_int_equal(lf_call_set_input(r.call, 0, NULL), LF_ERR_ARG);
    refused(lf_call_message(r.call), "input x", "must not be NULL");
    assert_int_equal(lf_call_set_output(r.call, 0, NULL), LF_ERR_ARG);
    refused(lf_call_message(r.call), "output y", "must not be NULL");
    assert_int_equal(lf_call_set_output(r.call, 0, F32(y, 3, 4)), LF_ERR_DATA);
    refused(lf_call_message(r.call), "output y is f32[B, 3]", "extent 1 of the tensor is 4");
    assert_int_equal(lf_program_set_param(r.program, "w", F32(w, 3, 4), (lf_holding)5, NULL), LF_ERR_ARG);
    refused(lf_program_message(r.program), "`holding` is 5", "LF_BORROW");
    assert_int_equal(lf_program_set_param(r.program, "w", F32(w, 3, 4), LF_COPY, x), LF_ERR_ARG);
    refused(lf_program_message(r.program), "parameter w", "`stream` needs a program compiled for cuda");
    /* nothing of it counted */
    OK_CALL(r.call, lf_call_set_input(r.call, 0, F32(x, 3, 4)));
    OK_CALL(r.call, lf_call_set_output(r.call, 0, F32(y, 3, 3)));
    OK_CALL(r.call, lf_call_run(r.call, NULL));
    rig_end(&r);
}

/* An output has to have the extents that the inputs ask for when it runs, in whatever order they are bound. */
static void outputs_have_the_inputs_extents(void **state)
{
    (void)state;
    rig r = rig_begin(1, text, NULL);
    float x[12] = {0}, y[9];
    OK_CALL(r.call, lf_call_set_output(r.call, 0, F32(y, 2, 3)));
    OK_CALL(r.call, lf_call_set_input(r.call, 0, F32(x, 3, 4)));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(lf_call_run(r.call, NULL), LF_ERR_DATA);
        refused(lf_call_message(r.call), "output y", "extent 0 is 3 for these inputs, but the tensor bound has 2");
    }
    OK_CALL(r.call, lf_call_set_output(r.call, 0, F32(y, 3, 3)));
    OK_CALL(r.call, lf_call_run(r.call, NULL));
    OK_CALL(r.call, lf_call_set_input(r.call, 0, F32(x, 2, 4))); /* and again when they change */
    assert_int_equal(lf_call_run(r.call, NULL), LF_ERR_DATA);
    const float *in[] = {x};
    float *out[] = {y};
    const int64_t one = 1, three = 3;
    OK_CALL(r.call, run_at(r.call, &three, in, out, 0)); /* the fast path binds what it was given */
    OK_CALL(r.call, lf_call_run(r.call, NULL));
    OK_CALL(r.call, run_at(r.call, &one, in, out, 0));
    const int64_t too_many = INT64_MAX;
    assert_int_equal(run_at(r.call, &too_many, in, out, 0), LF_ERR_DATA);
    refused(lf_call_message(r.call), "x would have more elements than can be counted", "");
    OK_CALL(r.call, lf_call_run(r.call, NULL));
    OK_CALL(r.call, lf_call_set_input(r.call, 0, F32(x, 3, 4)));
    assert_int_equal(lf_call_run(r.call, NULL), LF_ERR_DATA);
    refused(lf_call_message(r.call), "output y", "but the tensor bound has 1");
    rig_end(&r);
}

/* w transposed, w backwards, every row the same, every other column: as if the elements lay in order. */
static void strided_values_are_copied(void **state)
{
    (void)state;
    static const struct {
        int64_t strides[2];
        size_t first;
    } views[] = {{{1, N}, 0}, {{-K, -1}, N * K - 1}, {{0, 1}, 2}, {{2 * K, 2}, 0}, {{K, 1}, 0}};
    float memory[2 * N * 2 * K], x[2 * K], dense[N * K], want[2 * N], got[2 * N];
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        memory[i] = (float)(i * i % 37) - 18;
    lf_draw_uniform(1, "x", -1, 1, 2 * K, x);
    rig r = rig_begin(2, text, NULL);
    const float *in[] = {x};
    const int64_t two = 2, input_strides[] = {1, 2};
    for (size_t v = 0; v < sizeof views / sizeof *views; v++) {
        lf_tensor w = *F32(memory + views[v].first, N, K);
        w.strides = views[v].strides;
        for (int64_t n = 0; n < N; n++)
            for (int64_t k = 0; k < K; k++)
                dense[n * K + k] = memory[(int64_t)views[v].first + n * w.strides[0] + k * w.strides[1]];
        OK_PROGRAM(r.program, give(r.program, "w", dense));
        OK_PROGRAM(r.program, lf_program_prepare(r.program));
        OK_CALL(r.call, run_at(r.call, &two, in, (float *[]){want}, 0));
        OK_PROGRAM(r.program, lf_program_set_param(r.program, "w", &w, LF_COPY, NULL));
        assert_memory_equal(lf_program_param(r.program, "w").data, dense, sizeof dense);
        OK_PROGRAM(r.program, lf_program_prepare(r.program));
        OK_CALL(r.call, run_at(r.call, &two, in, (float *[]){got}, 0));
        assert_memory_equal(got, want, sizeof want);
        /* evaluation takes them too, on either side */
        double meaning[2][2 * N];
        float turned[2 * K];
        for (int i = 0; i < 2 * K; i++)
            turned[i % K * 2 + i / K] = x[i];
        lf_tensor input = *F32(turned, 2, K);
        input.strides = input_strides;
        OK_MODEL(r.model, lf_model_eval(r.model, F32(x, 2, K), F32(dense, N, K), (double *[]){meaning[0]}));
        OK_MODEL(r.model, lf_model_eval(r.model, &input, &w, (double *[]){meaning[1]}));
        assert_memory_equal(meaning[0], meaning[1], sizeof meaning[0]);
        if (v + 1 < sizeof views / sizeof *views) { /* but they cannot be read where they are */
            assert_int_equal(lf_program_set_param(r.program, "w", &w, LF_BORROW, NULL), LF_ERR_UNSUPPORTED);
            refused(lf_program_message(r.program), "parameter w", "`strides` must be row-major without gaps");
        }
    }
    lf_tensor input = *F32(x, 2, K);
    input.strides = input_strides;
    assert_int_equal(lf_call_set_input(r.call, 0, &input), LF_ERR_UNSUPPORTED);
    refused(lf_call_message(r.call), "input x", "pass a dense copy");
    lf_tensor output = *F32(got, 2, N);
    output.strides = input_strides;
    assert_int_equal(lf_call_set_output(r.call, 0, &output), LF_ERR_UNSUPPORTED);
    refused(lf_call_message(r.call), "output y", "pass a dense copy");
    rig_end(&r);
}

/* Strides of extents of 1, and of tensors without elements, say nothing. */
static void strides_that_say_nothing(void **state)
{
    (void)state;
    rig r = rig_begin(1, text, NULL);
    const int64_t odd[] = {99, 1}, odder[] = {0, 7};
    float x[K] = {0}, y[N];
    lf_tensor one = *F32(x, 1, K), none = *F32(NULL, 0, K), output = *F32(y, 1, N);
    one.strides = output.strides = odd;
    none.strides = odder;
    OK_CALL(r.call, lf_call_set_input(r.call, 0, &one));
    OK_CALL(r.call, lf_call_set_output(r.call, 0, &output));
    OK_CALL(r.call, lf_call_run(r.call, NULL));
    OK_CALL(r.call, lf_call_set_input(r.call, 0, &none));
    rig_end(&r);
}

static void bytes_are_counted(void **state)
{
    (void)state;
    lf_tensor t = {.rank = 0};
    assert_true(lf_tensor_count(&t) == 1 && lf_tensor_bytes(&t) == 4);
    t = *F32(NULL, 3, 0, 5);
    assert_true(lf_tensor_count(&t) == 0 && lf_tensor_bytes(&t) == 0);
    t = *F32(NULL, 3, 5);
    t.dtype = LF_BF16;
    assert_true(lf_tensor_count(&t) == 15 && lf_tensor_bytes(&t) == 30);
    t.dtype = LF_I64;
    assert_int_equal(lf_tensor_bytes(&t), 120);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_wrong_is_named),    cmocka_unit_test(outputs_have_the_inputs_extents),
        cmocka_unit_test(strided_values_are_copied), cmocka_unit_test(strides_that_say_nothing),
        cmocka_unit_test(bytes_are_counted),
    };
    return cmocka_run_group_tests_name("tensor", tests, NULL, NULL);
}
