/* SPDX-License-Identifier: Apache-2.0 */
/* What is lent instead of copied and done in one go instead of step by step: the same bits, over every model and thread
 * count. */
#include "api_fixture.h"
#include "api_models.h"

enum { MODELS = sizeof spread / sizeof *spread };

static const int64_t batches[] = {1, 7, 130, 0};

/* The program's parameters, lent to another program from memory of the test's own. */
typedef struct lent {
    size_t count, elements[64];
    float *data[64];
} lent;

static lent lend(const rig *from, lf_program *to)
{
    lent l = {.count = lf_model_port_count(from->model, LF_PORT_PARAM)};
    for (size_t i = 0; i < l.count; i++) {
        const char *name = lf_model_port_name(from->model, LF_PORT_PARAM, i);
        l.elements[i] = port_elements(from->model, LF_PORT_PARAM, i, (int64_t[MAX_DIMS]){0});
        l.data[i] = malloc(l.elements[i] * sizeof(float));
        assert_non_null(l.data[i]);
        memcpy(l.data[i], lf_program_param(from->program, name).data, l.elements[i] * sizeof(float));
        OK_PROGRAM(to, lend_param(to, name, l.data[i]));
    }
    return l;
}

static void lent_end(lent *l)
{
    for (size_t i = 0; i < l->count; i++)
        free(l->data[i]);
}

static tensors run_of(const rig *r, const int64_t *dims, lf_call *call, float poison)
{
    tensors t = tensors_begin(r->model, dims);
    if (t.in_count[0] > 3)
        t.in[0][3] = poison; /* not finite: a row that guarded rewrites redo */
    tensors_run(&t, call);
    return t;
}

static void lent_parameters_give_the_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < MODELS; i++) {
        rig r = rig_begin(2, spread[i].text, NULL);
        lf_program *program = program_of(r.context, r.model, NULL);
        lent l = lend(&r, program);
        lf_call *call;
        size_t params = 1, copied = 0;
        OK_PROGRAM(program, lf_program_prepare(program));
        OK_PROGRAM(program, lf_call_new(program, &call));
        lf_program_memory(program, &params, NULL, NULL);
        lf_program_memory(r.program, &copied, NULL, NULL);
        assert_int_equal(params, 0);
        for (size_t k = 0; k < l.count; k++)
            copied -= l.elements[k] * sizeof(float);
        assert_int_equal(copied, 0);
        for (size_t b = 0; b < 3; b++)
            for (int bad = 0; bad < 2; bad++) {
                const int64_t dims[MAX_DIMS] = {batches[b], 3};
                tensors a = run_of(&r, dims, r.call, bad ? NAN : 1.0f), c = run_of(&r, dims, call, bad ? NAN : 1.0f);
                if (!bad) /* which NaN comes out is not promised */
                    assert_same_bits(&a, &c, spread[i].name);
                for (size_t o = 0; o < a.outs; o++)
                    for (size_t k = 0; k < a.out_count[o]; k++)
                        assert_true(a.out[o][k] == c.out[o][k] || (isnan(a.out[o][k]) && isnan(c.out[o][k])));
                tensors_end(&a);
                tensors_end(&c);
            }
        lf_call_free(call);
        lf_program_free(program);
        lent_end(&l);
        rig_end(&r);
    }
}

/* Lent, changed, lent again; lent, then copied, then lent: what was given last counts. */
static void what_was_given_last_counts(void **state)
{
    (void)state;
    static const char text[] = "input x f32[B, 4]\nparam w f32[1, 4]\na = linear(x, w)\nreturn a\n";
    rig r = rig_begin(1, text, NULL);
    float w[4] = {1, 2, 3, 4}, x[4] = {1, 1, 1, 1}, y = 0;
    const float *in[] = {x};
    float *out[] = {&y};
    const int64_t one = 1;
    for (int round = 0; round < 6; round++) {
        w[0] = (float)round;
        OK_PROGRAM(r.program, give_from(LF_HOST, r.program, "w", w, round % 3 == 1 ? LF_COPY : LF_BORROW));
        assert_int_equal(lf_program_param(r.program, "w").data == w, round % 3 != 1);
        assert_int_equal(run_at(r.call, &one, in, out, 0), LF_ERR_ARG);
        assert_non_null(strstr(lf_call_message(r.call), "not prepared"));
        OK_PROGRAM(r.program, lf_program_prepare(r.program));
        OK_CALL(r.call, run_at(r.call, &one, in, out, 0));
        assert_true(y == (float)(round + 9));
    }
    assert_int_equal(lf_program_set_param(NULL, "w", F32(w, 1, 4), LF_BORROW, NULL), LF_ERR_ARG);
    assert_int_equal(lend_param(r.program, "v", w), LF_ERR_ARG);
    assert_int_equal(lend_param(r.program, "w", NULL), LF_ERR_ARG);
    assert_int_equal(lf_program_set_param(r.program, "w", F32(w, 1, 5), LF_BORROW, NULL), LF_ERR_DATA);
    assert_non_null(strstr(lf_program_message(r.program), "parameter w is f32[1, 4], but extent 1 of the tensor is 5"));
    OK_CALL(r.call, run_at(r.call, &one, in, out, 0)); /* what was refused changed nothing */
    rig_end(&r);
}

/* Whoever writes into lent values without a word is noticed: any value of a small tensor, most of a large one. */
static void writes_into_lent_values_are_seen(void **state)
{
    (void)state;
    enum { SMALL = 100 * 7, LARGE = 300 * 301 };
    static float w[SMALL + LARGE];
    static const char text[] = "input x f32[B, 7]\nparam w f32[100, 7]\nparam u f32[300, 301]\na = linear(x, w)\n"
                               "b = sum(u)\nc = add(a, b)\nreturn c\n";
    rig r = rig_begin(2, text, NULL);
    assert_true(lf_program_params_hold(r.program)); /* copies: nobody can write into them */
    lf_draw_uniform(3, "w", -1, 1, SMALL + LARGE, w);
    OK_PROGRAM(r.program, lend_param(r.program, "w", w));
    OK_PROGRAM(r.program, lend_param(r.program, "u", w + SMALL));
    assert_true(lf_program_params_hold(r.program));
    OK_PROGRAM(r.program, lf_program_prepare(r.program));
    for (int i = 0; i < SMALL; i++) {
        const float before = w[i];
        w[i] = i % 2 ? -before : nextafterf(before, 2.0f);
        assert_false(lf_program_params_hold(r.program));
        w[i] = before;
        assert_true(lf_program_params_hold(r.program));
    }
    const float swapped = w[0]; /* the same values elsewhere */
    w[0] = w[16];
    w[16] = swapped;
    assert_false(lf_program_params_hold(r.program));
    w[16] = w[0];
    w[0] = swapped;
    for (int i = SMALL; i < SMALL + LARGE; i++)
        w[i] *= 0.999f;
    assert_false(lf_program_params_hold(r.program));
    OK_PROGRAM(r.program, lf_program_prepare(r.program));
    assert_true(lf_program_params_hold(r.program));
    assert_true(lf_program_params_hold(NULL));
    rig_end(&r);
}

/* In one go and step by step, with every number of threads, back and forth between extents. */
static void one_go_gives_the_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < MODELS; i++) {
        rig r = rig_begin(3, spread[i].text, NULL);
        lf_call *call;
        OK_PROGRAM(r.program, lf_call_new(r.program, &call));
        for (int turn = 0; turn < 8; turn++) {
            const int64_t dims[MAX_DIMS] = {batches[turn % 4], 1 + turn % 3};
            tensors a = tensors_begin(r.model, dims), b = tensors_begin(r.model, dims);
            tensors_bind(&a, r.call);
            const lf_status want = lf_call_run(r.call, NULL);
            const lf_status got = run_at(call, dims, (const float *const *)b.in, b.out, turn % 5);
            assert_int_equal(got, want);
            if (got == LF_OK)
                assert_same_bits(&a, &b, spread[i].name);
            else
                assert_string_equal(lf_call_message(call), lf_call_message(r.call));
            tensors_end(&a);
            tensors_end(&b);
        }
        lf_call_free(call);
        rig_end(&r);
    }
}

static void one_go_refuses(void **state)
{
    (void)state;
    rig r = rig_begin(1, LINEAR_45_70 "return a\n", NULL);
    const int64_t two = 2, minus = -1, none = 0;
    tensors t = tensors_begin(r.model, &two);
    const float *const *in = (const float *const *)t.in, *missing[] = {NULL};
    assert_int_equal(run_at(NULL, &two, in, t.out, 0), LF_ERR_ARG);
    assert_int_equal(run_at(r.call, NULL, in, t.out, 0), LF_ERR_ARG);
    assert_int_equal(run_at(r.call, &two, NULL, t.out, 0), LF_ERR_ARG);
    assert_int_equal(run_at(r.call, &two, in, NULL, 0), LF_ERR_ARG);
    assert_int_equal(run_at(r.call, &minus, in, t.out, 0), LF_ERR_DATA);
    assert_int_equal(run_at(r.call, &two, missing, t.out, 0), LF_ERR_ARG);
    assert_non_null(strstr(lf_call_message(r.call), "input x: the address must not be NULL"));
    assert_int_equal(lf_call_run(r.call, NULL), LF_ERR_ARG); /* and what was refused is not bound */
    assert_int_equal(run_at(r.call, &two, in, (float *[]){t.in[0]}, 0), LF_ERR_ARG);
    assert_non_null(strstr(lf_call_message(r.call), "overlaps"));
    OK_CALL(r.call, run_at(r.call, &none, missing, (float *[]){NULL}, 0));
    OK_CALL(r.call, run_at(r.call, &two, in, t.out, 4096));
    tensors_eval(&t, r.model, r.program);
    assert_close(&t, tolerance(45), "after refusals");
    tensors_end(&t);
    rig_end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lent_parameters_give_the_same_bits),
        cmocka_unit_test(what_was_given_last_counts),
        cmocka_unit_test(writes_into_lent_values_are_seen),
        cmocka_unit_test(one_go_gives_the_same_bits),
        cmocka_unit_test(one_go_refuses),
    };
    return cmocka_run_group_tests_name("run_lent", tests, NULL, NULL);
}
