/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of linfuse.h: models, their questions, and what wrong use is answered with. Running is in run_test.c,
 * linfuse_tools.h in tools_test.c. */
#include "api_fixture.h"

#include <sys/stat.h>
#include <unistd.h>

static const char small[] =
    "input x f32[B, 4]\nparam w f32[3, 4]\nparam b f32[3]\na = linear(x, w, b)\ny = relu(a)\nreturn y\n";

/* ---- building and reading ---- */

static lf_value op(lf_model *m, const char *name, const char *what, const lf_arg *args, size_t count)
{
    lf_value out = LF_NO_VALUE;
    OK_MODEL(m, lf_model_op(m, name, what, args, count, &out));
    return out;
}

/* Every kind of argument: by position, by name, numbers, words, lists, None. */
static lf_model *build(lf_context *context)
{
    lf_model *m;
    lf_value x, w;
    OK_CONTEXT(context, lf_model_new(context, &m));
    OK_MODEL(m, lf_model_input(m, "x", LF_F32, 3, (lf_dim[]){{0, "B"}, {0, "S"}, {12, NULL}}, &x));
    OK_MODEL(m, lf_model_param(m, "net.w", LF_F32, 2, (lf_dim[]){{8, NULL}, {12, NULL}}, &w));
    lf_value a = op(m, "a", "linear", (lf_arg[]){VALUE(x), VALUE(w), {.kind = LF_ARG_NONE}}, 3);
    lf_value g =
        op(m, "g", "gelu", (lf_arg[]){VALUE(a), {.key = "approximate", .kind = LF_ARG_STRING, .string = "tanh"}}, 2);
    lf_value h = op(m, "h", "mul", (lf_arg[]){VALUE(g), NUMBER(0.125)}, 2);
    const double axes[] = {1, -1}, widths[] = {8};
    lf_value n = op(m, "n", "layer_norm", (lf_arg[]){VALUE(h), {.kind = LF_ARG_LIST, .list = widths, .count = 1}}, 2);
    lf_value s = op(m, "s", "sum", (lf_arg[]){VALUE(n), {.key = "dim", .kind = LF_ARG_LIST, .list = axes, .count = 2},
                    {.key = "keepdim", .kind = LF_ARG_BOOL, .number = 1}}, 3);
    int rank = 0;
    int64_t extents[LF_MAX_RANK];
    OK_MODEL(m, lf_model_value_shape(m, g, (int64_t[]){3, 5}, &rank, extents));
    assert_true(rank == 3 && extents[0] == 3 && extents[1] == 5 && extents[2] == 8);
    assert_int_equal(lf_model_value_dtype(m, g), LF_F32);
    REFUSES(LF_ERR_ARG, "value of this model", lf_model_value_shape(m, 999, (int64_t[]){3, 5}, &rank, extents),
            lf_model_message(m));
    REFUSES(LF_ERR_ARG, "`dims`", lf_model_value_shape(m, g, NULL, &rank, extents), lf_model_message(m));
    REFUSES(LF_ERR_ARG, "`rank`", lf_model_value_shape(m, g, (int64_t[]){3, 5}, NULL, extents), lf_model_message(m));
    REFUSES(LF_ERR_ARG, "`extents`", lf_model_value_shape(m, g, (int64_t[]){3, 5}, &rank, NULL), lf_model_message(m));
    OK_MODEL(m, lf_model_return(m, (lf_value[]){s, g}, 2));
    return m;
}

static const char built[] =
    "# the same\n\ninput x f32[B, S, 12]\nparam net.w f32[8, 12]\n a = linear(input=x, weight=net.w)\n"
    "g = gelu(a, approximate=\"tanh\")\nh = mul(g, .125)  # an eighth\nn = layer_norm(h, [8])\n"
    "s = sum(n, [1, -1], keepdim=true)\nreturn s, g\n";

static void builder_and_reader_give_equal_models(void **state)
{
    (void)state;
    lf_context *context = context_of(1);
    lf_model *a = build(context), *b = model_of(context, built);
    char *texts[3];
    OK_MODEL(a, lf_model_print(a, &texts[0]));
    OK_MODEL(b, lf_model_print(b, &texts[1]));
    assert_string_equal(texts[0], texts[1]);
    lf_model *c = model_of(context, texts[0]);
    OK_MODEL(c, lf_model_print(c, &texts[2]));
    assert_string_equal(texts[0], texts[2]);

    lf_program *programs[] = {program_of(context, a, NULL), program_of(context, b, NULL)};
    tensors t[2];
    for (int i = 0; i < 2; i++) {
        lf_call *call;
        t[i] = tensors_begin(i ? b : a, (int64_t[]){3, 5});
        OK_PROGRAM(programs[i], lf_program_draw_params(programs[i], 1));
        OK_PROGRAM(programs[i], lf_program_prepare(programs[i]));
        OK_PROGRAM(programs[i], lf_call_new(programs[i], &call));
        tensors_run(&t[i], call);
        lf_call_free(call);
        lf_program_free(programs[i]);
    }
    assert_same_bits(&t[0], &t[1], "built and read");
    for (int i = 0; i < 2; i++)
        tensors_end(&t[i]);
    for (int i = 0; i < 3; i++)
        lf_string_free(texts[i]);
    lf_model_free(a);
    lf_model_free(b);
    lf_model_free(c);
    lf_context_free(context);
}

static void ports_and_dims(void **state)
{
    (void)state;
    lf_context *context = context_of(1);
    lf_model *m = model_of(context, "input x f32[B, S, 6]\ninput y i64[S]\nparam w f32[4, 6]\nparam v f16[4]\n"
                                    "a = linear(x, w)\nb = sum(x, dim=[1, 2])\nreturn a, b\n");
    const int64_t dims[] = {5, 7};
    assert_int_equal(lf_model_port_count(m, LF_PORT_INPUT), 2);
    assert_int_equal(lf_model_port_count(m, LF_PORT_PARAM), 2);
    assert_int_equal(lf_model_port_count(m, LF_PORT_OUTPUT), 2);
    assert_string_equal(lf_model_port_name(m, LF_PORT_INPUT, 1), "y");
    assert_string_equal(lf_model_port_name(m, LF_PORT_PARAM, 0), "w");
    assert_string_equal(lf_model_port_name(m, LF_PORT_OUTPUT, 1), "b");
    assert_int_equal(lf_model_port_dtype(m, LF_PORT_INPUT, 1), LF_I64);
    assert_int_equal(lf_model_port_dtype(m, LF_PORT_PARAM, 1), LF_F16);
    assert_int_equal(lf_model_port_rank(m, LF_PORT_OUTPUT, 0), 3);
    assert_int_equal(lf_model_port_rank(m, LF_PORT_OUTPUT, 1), 1);
    assert_int_equal(lf_model_dim_count(m), 2);
    assert_string_equal(lf_model_dim_name(m, 0), "B");
    assert_string_equal(lf_model_dim_name(m, 1), "S");
    assert_int_equal(lf_model_port_extent(m, LF_PORT_INPUT, 0, 0, dims), 5);
    assert_int_equal(lf_model_port_extent(m, LF_PORT_INPUT, 1, 0, dims), 7);
    assert_int_equal(lf_model_port_extent(m, LF_PORT_OUTPUT, 0, 2, dims), 4);
    /* Out of range, and no model at all. */
    assert_null(lf_model_port_name(m, LF_PORT_INPUT, 2));
    assert_null(lf_model_dim_name(m, 2));
    assert_int_equal(lf_model_port_rank(m, LF_PORT_PARAM, 9), -1);
    assert_int_equal(lf_model_port_extent(m, LF_PORT_INPUT, 0, 3, dims), -1);
    assert_int_equal(lf_model_port_extent(m, LF_PORT_INPUT, 0, -1, dims), -1);
    assert_int_equal(lf_model_port_extent(m, LF_PORT_INPUT, 5, 0, dims), -1);
    assert_int_equal(lf_model_port_extent(m, LF_PORT_INPUT, 0, 0, NULL), -1);
    assert_int_equal(lf_model_port_count(NULL, LF_PORT_INPUT), 0);
    assert_null(lf_model_port_name(NULL, LF_PORT_INPUT, 0));
    assert_int_equal(lf_model_dim_count(NULL), 0);
    lf_model_free(m);
    lf_context_free(context);
}

/* What an extent is made of: a number, a name, products of them. */
static void extents_have_factors(void **state)
{
    (void)state;
    lf_context *context = context_of(1);
    lf_model *m = model_of(context, "input x f32[B, S, 6]\ninput y f32[S, S]\nparam w f32[4, 6]\na = flatten(x, 0, 1)\n"
                                    "b = flatten(x, 1, 2)\nc = flatten(y)\nreturn a, b, c\n");
    static const struct {
        lf_port port;
        size_t index;
        int axis;
        int64_t number;
        int powers[2];
    } known[] = {
        {LF_PORT_INPUT, 0, 0, 1, {1, 0}},  {LF_PORT_INPUT, 0, 1, 1, {0, 1}},  {LF_PORT_INPUT, 0, 2, 6, {0, 0}},
        {LF_PORT_PARAM, 0, 1, 6, {0, 0}},  {LF_PORT_OUTPUT, 0, 0, 1, {1, 1}}, {LF_PORT_OUTPUT, 1, 1, 6, {0, 1}},
        {LF_PORT_OUTPUT, 2, 0, 1, {0, 2}},
    };
    const int64_t dims[] = {5, 7};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        int powers[LF_MAX_DIMS] = {9, 9, 9};
        assert_int_equal(lf_model_port_factors(m, known[i].port, known[i].index, known[i].axis, powers),
                         known[i].number);
        assert_memory_equal(powers, known[i].powers, sizeof known[i].powers);
        assert_int_equal(powers[2], 9); /* as many as there are names */
        int64_t extent = known[i].number;
        for (int d = 0; d < 2; d++)
            for (int p = 0; p < powers[d]; p++)
                extent *= dims[d];
        assert_int_equal(lf_model_port_extent(m, known[i].port, known[i].index, known[i].axis, dims), extent);
    }
    assert_int_equal(lf_model_port_factors(m, LF_PORT_PARAM, 0, 0, NULL), 4);
    assert_int_equal(lf_model_port_factors(m, LF_PORT_PARAM, 1, 0, NULL), -1);
    assert_int_equal(lf_model_port_factors(m, LF_PORT_PARAM, 0, 2, NULL), -1);
    assert_int_equal(lf_model_port_factors(m, LF_PORT_PARAM, 0, -1, NULL), -1);
    assert_int_equal(lf_model_port_factors(NULL, LF_PORT_PARAM, 0, 0, NULL), -1);
    lf_model_free(m);
    lf_context_free(context);
}

/* A copy in another context reads the same, and needs nothing of the first. */
static void models_move_between_contexts(void **state)
{
    (void)state;
    lf_context *from = context_of(1), *to = context_of(2);
    lf_model *first = build(from), *copy = NULL, *open = NULL;
    char *texts[2];
    assert_int_equal(lf_model_copy(first, NULL, &copy), LF_ERR_ARG);
    REFUSES(LF_ERR_ARG, "`model`", lf_model_copy(NULL, to, &copy), lf_context_message(to));
    REFUSES(LF_ERR_ARG, "`out`", lf_model_copy(first, to, NULL), lf_context_message(to));
    OK_CONTEXT(from, lf_model_new(from, &open));
    REFUSES(LF_ERR_ARG, "not finished", lf_model_copy(open, to, &copy), lf_context_message(to));
    assert_null(copy);
    OK_CONTEXT(to, lf_model_copy(first, to, &copy));
    OK_MODEL(first, lf_model_print(first, &texts[0]));
    OK_MODEL(copy, lf_model_print(copy, &texts[1]));
    assert_string_equal(texts[0], texts[1]);
    lf_model_free(first);
    lf_model_free(open);
    lf_context_free(from);
    assert_string_equal(lf_model_dim_name(copy, 1), "S");
    lf_program_free(program_of(to, copy, NULL));
    lf_string_free(texts[0]);
    lf_string_free(texts[1]);
    lf_model_free(copy);
    lf_context_free(to);
}

static void rows_are_asked_for(void **state)
{
    (void)state;
    lf_context *context = context_of(1);
    bool has_rows[2] = {false, true};
    lf_model *m = model_of(context, "input x f32[B, 6]\ninput y f32[6]\na = mul(x, y)\nreturn a\n");
    assert_true(lf_model_rows_independent(m, has_rows));
    assert_true(has_rows[0] && !has_rows[1]);
    assert_true(lf_model_rows_independent(m, NULL));
    lf_model_free(m);
    m = model_of(context, "input x f32[B, 6]\na = mean(x, dim=0)\nreturn a\n");
    assert_false(lf_model_rows_independent(m, has_rows));
    lf_model_free(m);
    assert_false(lf_model_rows_independent(NULL, NULL));
    lf_context_free(context);
}

static void table_of_ops(void **state)
{
    (void)state;
    size_t count = 0;
    bool linear = false;
    for (; lf_op_name(count); count++) {
        assert_non_null(lf_op_kind(count));
        assert_non_null(lf_op_signature(count));
        linear = linear || strcmp(lf_op_name(count), "linear") == 0;
        assert_string_not_equal(lf_op_name(count), "guard");
    }
    assert_true(count > 50 && linear);
    assert_null(lf_op_kind(count));
    assert_null(lf_op_signature(count));
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", LF_VERSION_MAJOR, LF_VERSION_MINOR, LF_VERSION_PATCH);
    assert_string_equal(lf_version(), version);
    for (int s = LF_OK; s <= LF_ERR_UNSUPPORTED; s++)
        assert_string_not_equal(lf_status_name((lf_status)s), "unknown status");
    assert_string_equal(lf_status_name((lf_status)99), "unknown status");
}

/* ---- wrong use ---- */

static void nothing_where_a_handle_should_be(void **state)
{
    (void)state;
    lf_context *context = context_of(1);
    lf_model *model = model_of(context, small), *m = NULL;
    lf_program *program = program_of(context, model, NULL), *p = NULL;
    lf_options *o = NULL;
    lf_call *c = NULL;
    lf_value v;
    char *text;
    assert_int_equal(lf_context_new(NULL), LF_ERR_ARG);
    assert_int_equal(lf_context_set_threads(NULL, 1), LF_ERR_ARG);
    assert_int_equal(lf_model_new(NULL, &m), LF_ERR_ARG);
    assert_int_equal(lf_model_read(NULL, "x", small, sizeof small - 1, &m), LF_ERR_ARG);
    assert_int_equal(lf_model_read_file(NULL, "x", &m), LF_ERR_ARG);
    assert_int_equal(lf_model_input(NULL, "x", LF_F32, 0, NULL, &v), LF_ERR_ARG);
    assert_int_equal(lf_model_op(NULL, "x", "relu", NULL, 0, &v), LF_ERR_ARG);
    assert_int_equal(lf_model_return(NULL, &v, 1), LF_ERR_ARG);
    assert_int_equal(lf_model_print(NULL, &text), LF_ERR_ARG);
    assert_int_equal(lf_model_eval(NULL, NULL, NULL, NULL), LF_ERR_ARG);
    assert_int_equal(lf_options_new(NULL, &o), LF_ERR_ARG);
    assert_int_equal(lf_options_set(NULL, "device", "cpu"), LF_ERR_ARG);
    assert_int_equal(lf_program_new(NULL, NULL, &p), LF_ERR_ARG);
    assert_int_equal(lf_program_set_param(NULL, "w", NULL, LF_COPY, NULL), LF_ERR_ARG);
    assert_int_equal(lf_program_load_params(NULL, "x"), LF_ERR_ARG);
    assert_int_equal(lf_program_prepare(NULL), LF_ERR_ARG);
    assert_int_equal(lf_program_explain(NULL, NULL, true, &text), LF_ERR_ARG);
    lf_account *account;
    assert_int_equal(lf_program_account(NULL, NULL, &account), LF_ERR_ARG);
    assert_int_equal(lf_account_print(NULL, true, &text), LF_ERR_ARG);
    assert_int_equal(lf_call_new(NULL, &c), LF_ERR_ARG);
    assert_int_equal(lf_call_set_input(NULL, 0, NULL), LF_ERR_ARG);
    assert_int_equal(lf_call_output(NULL, 0, NULL), LF_ERR_ARG);
    assert_int_equal(lf_call_set_output(NULL, 0, NULL), LF_ERR_ARG);
    assert_int_equal(lf_call_run(NULL, NULL), LF_ERR_ARG);
    assert_int_equal(lf_call_run_at(NULL, NULL, NULL, NULL, NULL), LF_ERR_ARG);
    assert_int_equal(lf_call_workspace(NULL, NULL, NULL), LF_ERR_ARG);
    assert_null(lf_program_param(NULL, "w").data);
    assert_true(lf_tensor_count(NULL) == 0 && lf_tensor_bytes(NULL) == 0);
    assert_int_equal(lf_call_rows_redone(NULL), 0);
    assert_int_equal(lf_call_memory(NULL), 0);
    lf_program_memory(NULL, NULL, NULL, NULL);
    assert_true(lf_context_message(NULL) && lf_model_message(NULL) && lf_options_message(NULL) &&
                lf_program_message(NULL) && lf_call_message(NULL));

    const lf_tensor params[2] = {*F32(small, 3, 4), *F32(small, 3)};
    double *const nowhere[1] = {NULL};
    lf_model *open;
    OK_CONTEXT(context, lf_model_new(context, &open));
    REFUSES(LF_ERR_ARG, "`out`", lf_model_new(context, NULL), lf_context_message(context));
    REFUSES(LF_ERR_ARG, "`text`", lf_model_read(context, "x", NULL, 3, &m), lf_context_message(context));
    REFUSES(LF_ERR_ARG, "`name`", lf_model_read(context, NULL, small, 3, &m), lf_context_message(context));
    REFUSES(LF_ERR_ARG, "`out`", lf_model_read(context, "x", small, 3, NULL), lf_context_message(context));
    REFUSES(LF_ERR_ARG, "`path`", lf_model_read_file(context, NULL, &m), lf_context_message(context));
    REFUSES(LF_ERR_ARG, "`out`", lf_model_read_file(context, "x", NULL), lf_context_message(context));
    REFUSES(LF_ERR_ARG, "`out`", lf_model_input(open, "x", LF_F32, 0, NULL, NULL), lf_model_message(open));
    REFUSES(LF_ERR_ARG, "`dims`", lf_model_input(open, "x", LF_F32, 1, NULL, &v), lf_model_message(open));
    REFUSES(LF_ERR_ARG, "`dtype` is 77", lf_model_input(open, "x", (lf_dtype)77, 0, NULL, &v), lf_model_message(open));
    REFUSES(LF_ERR_ARG, "`args`", lf_model_op(open, "y", "relu", NULL, 1, &v), lf_model_message(open));
    REFUSES(LF_ERR_ARG, "`out`", lf_model_op(open, "y", "relu", NULL, 0, NULL), lf_model_message(open));
    REFUSES(LF_ERR_ARG, "`values`", lf_model_return(open, NULL, 1), lf_model_message(open));
    REFUSES(LF_ERR_ARG, "`out`", lf_model_print(model, NULL), lf_model_message(model));
    REFUSES(LF_ERR_ARG, "not finished", lf_model_eval(open, NULL, NULL, nowhere), lf_model_message(open));
    REFUSES(LF_ERR_ARG, "`inputs`", lf_model_eval(model, NULL, params, nowhere), lf_model_message(model));
    REFUSES(LF_ERR_ARG, "`params`", lf_model_eval(model, F32(small, 1, 4), NULL, nowhere), lf_model_message(model));
    REFUSES(LF_ERR_ARG, "`outputs`", lf_model_eval(model, F32(small, 1, 4), params, NULL), lf_model_message(model));
    lf_model_free(open);
    REFUSES(LF_ERR_ARG, "output y", lf_model_eval(model, F32(small, 1, 4), params, nowhere), lf_model_message(model));
    REFUSES(LF_ERR_DATA, "-3", lf_model_eval(model, F32(small, -3, 4), params, nowhere), lf_model_message(model));
    REFUSES(LF_ERR_DATA, "parameter w is f32[3, 4], but the tensor has rank 1",
            lf_model_eval(model, F32(small, 1, 4), (lf_tensor[]){params[1], params[1]}, nowhere),
            lf_model_message(model));
    REFUSES(LF_ERR_DATA, "B", lf_program_explain(program, (int64_t[]){-3}, true, &text), lf_program_message(program));
    REFUSES(LF_ERR_DATA, "counted", lf_program_explain(program, (int64_t[]){INT64_MAX}, true, &text),
            lf_program_message(program));
    assert_null(text);
    REFUSES(LF_ERR_ARG, "`out`", lf_options_new(context, NULL), lf_context_message(context));
    REFUSES(LF_ERR_ARG, "`out`", lf_program_new(model, NULL, NULL), lf_model_message(model));
    REFUSES(LF_ERR_ARG, "`name`", lf_program_set_param(program, NULL, NULL, LF_COPY, NULL),
            lf_program_message(program));
    REFUSES(LF_ERR_ARG, "`path`", lf_program_load_params(program, NULL), lf_program_message(program));
    REFUSES(LF_ERR_ARG, "`out`", lf_program_explain(program, NULL, true, NULL), lf_program_message(program));
    REFUSES(LF_ERR_ARG, "`out`", lf_program_account(program, NULL, NULL), lf_program_message(program));
    REFUSES(LF_ERR_ARG, "`out`", lf_call_new(program, NULL), lf_program_message(program));
    lf_program_free(program);
    lf_model_free(model);
    lf_context_free(context);
    lf_context_free(NULL);
    lf_model_free(NULL);
    lf_options_free(NULL);
    lf_program_free(NULL);
    lf_call_free(NULL);
    lf_string_free(NULL);
}

static void threads_are_set_before_programs(void **state)
{
    (void)state;
    lf_context *context = context_of(3);
    assert_int_equal(lf_context_threads(context), 3);
    REFUSES(LF_ERR_ARG, "-1", lf_context_set_threads(context, -1), lf_context_message(context));
    REFUSES(LF_ERR_ARG, "5000", lf_context_set_threads(context, 5000), lf_context_message(context));
    OK_CONTEXT(context, lf_context_set_threads(context, 0));
    assert_true(lf_context_threads(context) >= 1);
    REFUSES(LF_ERR_UNSUPPORTED, "no runtime", lf_context_use_openmp(context), lf_context_message(context));
    lf_model *model = model_of(context, small);
    lf_program *program = program_of(context, model, NULL);
    REFUSES(LF_ERR_ARG, "before the first program", lf_context_set_threads(context, 2), lf_context_message(context));
    lf_program_free(program);
    lf_model_free(model);
    lf_context_free(context);
}

static void models_that_are_wrong(void **state)
{
    (void)state;
    lf_context *context = context_of(1);
    lf_model *m = NULL;
    const char *bad = "input x f32[B, 4]\ny = reluu(x)\nreturn y\n";
    REFUSES(LF_ERR_MODEL, "bad.lf:2:", lf_model_read(context, "bad.lf", bad, strlen(bad), &m),
            lf_context_message(context));
    assert_null(m);
    assert_non_null(strstr(lf_context_message(context), "reluu"));
    REFUSES(LF_ERR_IO, "no/such.lf", lf_model_read_file(context, "no/such.lf", &m), lf_context_message(context));
    assert_null(m);

    lf_value x, w;
    char *text = NULL;
    lf_program *program = NULL;
    OK_CONTEXT(context, lf_model_new(context, &m));
    REFUSES(LF_ERR_ARG, "`rank` is 9", lf_model_input(m, "x", LF_F32, 9, NULL, &x), lf_model_message(m));
    REFUSES(LF_ERR_ARG, "`name`", lf_model_input(m, NULL, LF_F32, 0, NULL, &x), lf_model_message(m));
    REFUSES(LF_ERR_MODEL, "2x", lf_model_input(m, "2x", LF_F32, 1, (lf_dim[]){{0, "Q"}}, &x), lf_model_message(m));
    REFUSES(LF_ERR_MODEL, "x", lf_model_input(m, "x", LF_F32, 1, (lf_dim[]){{-3, NULL}}, &x), lf_model_message(m));
    REFUSES(LF_ERR_MODEL, "w", lf_model_param(m, "w", LF_F32, 1, (lf_dim[]){{0, "B"}}, &w), lf_model_message(m));
    assert_int_equal(lf_model_dim_count(m), 0); /* what failed has left no names behind */
    OK_MODEL(m, lf_model_input(m, "x", LF_F32, 2, (lf_dim[]){{0, "B"}, {4, NULL}}, &x));
    REFUSES(LF_ERR_MODEL, "x", lf_model_param(m, "x", LF_F32, 1, (lf_dim[]){{4, NULL}}, &w), lf_model_message(m));
    OK_MODEL(m, lf_model_param(m, "w", LF_F32, 2, (lf_dim[]){{3, NULL}, {5, NULL}}, &w));
    REFUSES(LF_ERR_MODEL, "linear", lf_model_op(m, "y", "linear", (lf_arg[]){VALUE(x), VALUE(w)}, 2, &x),
            lf_model_message(m));
    REFUSES(LF_ERR_MODEL, "nosuch", lf_model_op(m, "y", "nosuch", (lf_arg[]){VALUE(x)}, 1, &x), lf_model_message(m));
    REFUSES(LF_ERR_ARG, "argument 1", lf_model_op(m, "y", "relu", (lf_arg[]){VALUE(77)}, 1, &x), lf_model_message(m));
    REFUSES(LF_ERR_ARG, "argument 1", lf_model_op(m, "y", "relu", (lf_arg[]){VALUE(LF_NO_VALUE)}, 1, &x),
            lf_model_message(m));
    REFUSES(LF_ERR_ARG, "`op`", lf_model_op(m, "y", NULL, NULL, 0, &x), lf_model_message(m));
    REFUSES(LF_ERR_ARG, "value 1", lf_model_return(m, (lf_value[]){44}, 1), lf_model_message(m));
    REFUSES(LF_ERR_MODEL, "return", lf_model_return(m, NULL, 0), lf_model_message(m));
    REFUSES(LF_ERR_ARG, "not finished", lf_model_print(m, &text), lf_model_message(m));
    REFUSES(LF_ERR_ARG, "not finished", lf_program_new(m, NULL, &program), lf_model_message(m));
    lf_value y = op(m, NULL, "relu", (lf_arg[]){VALUE(x)}, 1);
    OK_MODEL(m, lf_model_return(m, &y, 1));
    REFUSES(LF_ERR_ARG, "finished", lf_model_op(m, "z", "relu", (lf_arg[]){VALUE(x)}, 1, &y), lf_model_message(m));
    REFUSES(LF_ERR_ARG, "finished", lf_model_input(m, "z", LF_F32, 0, NULL, &y), lf_model_message(m));
    REFUSES(LF_ERR_ARG, "already", lf_model_return(m, &y, 1), lf_model_message(m));
    assert_int_equal(lf_model_dim_count(m), 1);
    lf_program_free(program_of(context, m, NULL));
    lf_model_free(m);
    lf_context_free(context);
}

/* Every word that an option says it takes, it takes. */
static void options_tell_their_words(void **state)
{
    (void)state;
    static const char *const keys[] = {"device", "precision", "assume_finite", "fuse", "tune"};
    lf_context *context = context_of(1);
    lf_options *o = options_of(context, NULL);
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        size_t i = 0;
        for (const char *word; (word = lf_option_word(keys[k], i)) != NULL; i++)
            assert_int_equal(lf_options_set(o, keys[k], word), LF_OK);
        assert_true(i >= 2);
        assert_null(lf_option_word(keys[k], i));
        assert_null(lf_option_word(keys[k], SIZE_MAX));
    }
    assert_string_equal(lf_option_word("device", 0), "cpu");
    assert_string_equal(lf_option_word("device", 1), "cuda");
    assert_true(lf_device_runs("cpu") && lf_device_runs("cuda"));
    for (size_t i = 2; lf_option_word("device", i); i++)
        assert_false(lf_device_runs(lf_option_word("device", i)));
    assert_false(lf_device_runs("abacus") || lf_device_runs(NULL));
    assert_null(lf_option_word("rules", 0));
    assert_null(lf_option_word("no such option", 0));
    assert_null(lf_option_word(NULL, 0));
    assert_true(lf_precision_unit("fp32") == 0x1p-24 && lf_precision_unit("tf32") == 0x1p-12);
    assert_true(lf_precision_unit("bf16") == 0x1p-9 && lf_precision_unit("fp16") == 0x1p-12);
    assert_true(lf_precision_unit("half") == 0 && lf_precision_unit(NULL) == 0);
    lf_options_free(o);
    lf_context_free(context);
}

static void options_that_are_wrong(void **state)
{
    (void)state;
    static const struct { const char *key, *value, *words; } bad[] = {
        {"devise", "cpu", "devise"}, {"device", "tpu", "tpu"}, {"precision", "fp64", "fp64"}, {"fuse", "yes", "yes"},
        {"assume_finite", "", "assume_finite"}, {"dim.B", "", "dim.B"}, {"dim.B", "12x", "12x"}, {"dim.B", "-1", "-1"},
        {"dim.B", "99999999999999999999", "dim.B"}, {"first.B", "x", "first.B"}, {"", "", "options: there is no ''"},
        {"rules", "-all,+no_such_rule", "no rule 'no_such_rule'; there are all"},
    };
    lf_context *context = context_of(1);
    lf_model *model = model_of(context, small);
    lf_options *o = options_of(context, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        REFUSES(LF_ERR_ARG, bad[i].words, lf_options_set(o, bad[i].key, bad[i].value), lf_options_message(o));
    REFUSES(LF_ERR_ARG, "did you mean h200? It is one of cpu, cuda, h200", lf_options_set(o, "device", "h20"),
            lf_options_message(o));
    REFUSES(LF_ERR_ARG, "did you mean cuda?", lf_options_set(o, "device", "cdua"), lf_options_message(o));
    REFUSES(LF_ERR_ARG, "options: there is no 'devcie'; did you mean device? It is one of device, precision",
            lf_options_set(o, "devcie", "cpu"), lf_options_message(o));
    REFUSES(LF_ERR_ARG, "it is one of fp32, tf32, bf16, fp16", lf_options_set(o, "precision", "half"),
            lf_options_message(o));
    REFUSES(LF_ERR_ARG, "`key`", lf_options_set(o, NULL, "cpu"), lf_options_message(o));
    REFUSES(LF_ERR_ARG, "`value`", lf_options_set(o, "device", NULL), lf_options_message(o));
    OK_OPTIONS(o, lf_options_set(o, "rules", "-all, +add_zero"));
    OK_OPTIONS(o, lf_options_check(o));
    lf_options_free(o);
    assert_int_equal(lf_options_check(NULL), LF_ERR_ARG);

    static const struct { const char *words, *said; lf_status status; } programs[] = {
        {"device=cuda", "cuda", LF_ERR_DEVICE},           {"precision=tf32", "tf32", LF_ERR_UNSUPPORTED},
        {"precision=bf16", "bf16", LF_ERR_UNSUPPORTED},   {"precision=fp16", "fp16", LF_ERR_UNSUPPORTED},
        {"tune=true", "tune", LF_ERR_UNSUPPORTED},        {"dim.Z=4", "Z", LF_ERR_ARG},
    };
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        lf_program *program = (lf_program *)&program;
        o = options_of(context, programs[i].words);
        if (programs[i].status == LF_ERR_ARG) /* the model's business */
            OK_OPTIONS(o, lf_options_check(o));
        else
            REFUSES(programs[i].status, programs[i].said, lf_options_check(o), lf_options_message(o));
        REFUSES(programs[i].status, programs[i].said, lf_program_new(model, o, &program), lf_model_message(model));
        assert_null(program);
        lf_options_free(o);
    }
    /* Costed, not run. */
    lf_program *program =
        program_of(context, model, "device=h200 precision=fp32 dim.B=64 rules=none assume_finite=true");
    lf_call *call = NULL;
    REFUSES(LF_ERR_DEVICE, "h200", lf_call_new(program, &call), lf_program_message(program));
    assert_null(call);
    /* What is refused next is what the message is about. */
    char *source = (char *)&source;
    for (size_t i = 0; i == 0 || lf_arch_name(i); i++) /* with all that would have done */
        REFUSES(LF_ERR_ARG, lf_arch_name(i), lf_program_emit(program, "sm_10", &source), lf_program_message(program));
    assert_non_null(strstr(lf_program_message(program), "'sm_10'"));
    assert_null(source);
    REFUSES(LF_ERR_ARG, "`arch`", lf_program_emit(program, NULL, &source), lf_program_message(program));
    REFUSES(LF_ERR_ARG, "`out`", lf_program_emit(program, "sm_80", NULL), lf_program_message(program));
    lf_program_free(program);
    lf_model_free(model);
    lf_context_free(context);
}

static void parameters_that_are_wrong(void **state)
{
    (void)state;
    lf_context *context = context_of(1);
    lf_model *model = model_of(context, small);
    lf_program *p = program_of(context, model, NULL);
    lf_model_free(model); /* the program needs it no more */
    const float values[12] = {1, 2, 3};
    REFUSES(LF_ERR_ARG, "nosuch", give(p, "nosuch", values), lf_program_message(p));
    REFUSES(LF_ERR_ARG, "no parameter x", give(p, "x", values), lf_program_message(p)); /* an input */
    REFUSES(LF_ERR_ARG, "`values`", lf_program_set_param(p, "w", NULL, LF_COPY, NULL), lf_program_message(p));
    assert_null(lf_program_param(p, "w").data);
    assert_null(lf_program_param(p, "nosuch").data);
    REFUSES(LF_ERR_DATA, "w", lf_program_prepare(p), lf_program_message(p));
    OK_PROGRAM(p, give(p, "w", values));
    const lf_tensor w = lf_program_param(p, "w");
    assert_true(w.dtype == LF_F32 && w.rank == 2 && w.extents[0] == 3 && w.extents[1] == 4 && w.memory == LF_HOST);
    assert_memory_equal(w.data, values, sizeof values);
    REFUSES(LF_ERR_DATA, "b has no values", lf_program_prepare(p), lf_program_message(p));
    REFUSES(LF_ERR_IO, "no/such", lf_program_load_params(p, "no/such.safetensors"), lf_program_message(p));
    OK_PROGRAM(p, give(p, "b", values));
    OK_PROGRAM(p, lf_program_prepare(p));
    lf_program_free(p);
    lf_context_free(context);
}

static void calls_that_are_wrong(void **state)
{
    (void)state;
    lf_context *context = context_of(1);
    lf_model *model =
        model_of(context, "input x f32[B, 4]\ninput y f32[B, 3]\nparam w f32[3, 4]\na = linear(x, w)\nb = add(a, y)\n"
                          "c = sum(b, dim=1)\nreturn b, c\n");
    lf_program *p = program_of(context, model, NULL);
    lf_call *c;
    float x[8] = {0}, y[9] = {0}, b[9], sums[3];
    lf_tensor out;
    OK_PROGRAM(p, lf_program_draw_params(p, 1));
    OK_PROGRAM(p, lf_call_new(p, &c));
    REFUSES(LF_ERR_ARG, "not prepared", lf_call_run(c, NULL), lf_call_message(c));
    OK_PROGRAM(p, lf_program_prepare(p));
    REFUSES(LF_ERR_ARG, "input x is not bound", lf_call_run(c, NULL), lf_call_message(c));
    REFUSES(LF_ERR_ARG, "input 2", lf_call_set_input(c, 2, F32(x, 2, 4)), lf_call_message(c));
    REFUSES(LF_ERR_DATA, "rank 1", lf_call_set_input(c, 0, F32(x, 2)), lf_call_message(c));
    REFUSES(LF_ERR_DATA, "[B, 4]", lf_call_set_input(c, 0, F32(x, 2, 5)), lf_call_message(c));
    REFUSES(LF_ERR_DATA, "-2", lf_call_set_input(c, 0, F32(x, -2, 4)), lf_call_message(c));
    REFUSES(LF_ERR_ARG, "input x: `data`", lf_call_set_input(c, 0, F32(NULL, 2, 4)), lf_call_message(c));
    OK_CALL(c, lf_call_set_input(c, 0, F32(x, 2, 4)));
    REFUSES(LF_ERR_ARG, "input y is not bound", lf_call_output(c, 0, &out), lf_call_message(c));
    OK_CALL(c, lf_call_set_input(c, 1, F32(y, 3, 3)));
    REFUSES(LF_ERR_DATA, "extent B is 2 in input x but 3 in input y", lf_call_run(c, NULL), lf_call_message(c));
    OK_CALL(c, lf_call_set_input(c, 1, F32(y, 2, 3)));
    OK_CALL(c, lf_call_output(c, 0, &out));
    assert_true(!out.data && out.dtype == LF_F32 && out.rank == 2 && out.extents[0] == 2 && out.extents[1] == 3);
    OK_CALL(c, lf_call_output(c, 1, &out));
    assert_true(out.rank == 1 && out.extents[0] == 2);
    REFUSES(LF_ERR_ARG, "output 2", lf_call_output(c, 2, &out), lf_call_message(c));
    REFUSES(LF_ERR_ARG, "`out`", lf_call_output(c, 0, NULL), lf_call_message(c));
    REFUSES(LF_ERR_ARG, "output 2", lf_call_set_output(c, 2, F32(b, 2, 3)), lf_call_message(c));
    REFUSES(LF_ERR_ARG, "output b is not bound", lf_call_run(c, NULL), lf_call_message(c));
    OK_CALL(c, lf_call_set_output(c, 0, F32(y + 3, 2, 3)));
    OK_CALL(c, lf_call_set_output(c, 1, F32(sums, 2)));
    REFUSES(LF_ERR_ARG, "output b overlaps input y", lf_call_run(c, NULL), lf_call_message(c));
    OK_CALL(c, lf_call_set_output(c, 0, F32(b, 2, 3)));
    OK_CALL(c, lf_call_set_output(c, 1, F32(b + 5, 2)));
    REFUSES(LF_ERR_ARG, "output c overlaps output b", lf_call_run(c, NULL), lf_call_message(c));
    OK_CALL(c, lf_call_set_output(c, 1, F32(b + 6, 2))); /* beside each other is fine */
    OK_CALL(c, lf_call_run(c, NULL));
    OK_CALL(c, lf_call_run(c, NULL));
    /* What was found right is found wrong once it changes, and right again. */
    OK_CALL(c, lf_call_set_output(c, 0, F32(y + 3, 2, 3)));
    for (int i = 0; i < 2; i++)
        REFUSES(LF_ERR_ARG, "output b overlaps input y", lf_call_run(c, NULL), lf_call_message(c));
    OK_CALL(c, lf_call_set_output(c, 0, F32(b, 2, 3)));
    OK_CALL(c, lf_call_run(c, NULL));
    OK_CALL(c, lf_call_set_input(c, 1, F32(b + 3, 2, 3)));
    REFUSES(LF_ERR_ARG, "output b overlaps input y", lf_call_run(c, NULL), lf_call_message(c));
    OK_CALL(c, lf_call_set_input(c, 1, F32(y, 3, 3)));
    for (int i = 0; i < 2; i++)
        REFUSES(LF_ERR_DATA, "extent B is 2 in input x but 3 in input y", lf_call_run(c, NULL), lf_call_message(c));
    OK_CALL(c, lf_call_set_input(c, 1, F32(y, 2, 3)));
    OK_CALL(c, lf_call_run(c, NULL));
    /* More elements than can be counted: said, not tried. */
    OK_CALL(c, lf_call_set_input(c, 0, F32(x, INT64_C(1) << 45, 4)));
    OK_CALL(c, lf_call_set_input(c, 1, F32(y, INT64_C(1) << 45, 3)));
    REFUSES(LF_ERR_DATA, "elements", lf_call_run(c, NULL), lf_call_message(c));
    lf_call_free(c);
    lf_program_free(p);
    lf_model_free(model);
    lf_context_free(context);
}

/* ---- files ---- */

/* ---- files ---- */

static void write_file(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

/* A safetensors file: the header, then data bytes. */
static void write_safetensors(const char *path, const char *header, const void *data, size_t size)
{
    unsigned char bytes[4096] = {(unsigned char)strlen(header), (unsigned char)(strlen(header) >> 8)};
    assert_true(8 + strlen(header) + size <= sizeof bytes);
    memcpy(bytes + 8, header, strlen(header));
    memcpy(bytes + 8 + strlen(header), data, size);
    write_file(path, bytes, 8 + strlen(header) + size);
}

static void parameters_from_files(void **state)
{
    (void)state;
    lf_context *context = context_of(1);
    lf_model *model = model_of(context, small);
    lf_program *p = program_of(context, model, NULL);
    float values[15];
    for (int i = 0; i < 15; i++)
        values[i] = (float)i;
    write_safetensors("good",
                      "{\"b\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[48,60]},\"w\":{\"dtype\":\"F32\","
                      "\"shape\":[3,4],\"data_offsets\":[0,48]}}",
                      values, 60);
    write_safetensors("lacking", "{\"w\":{\"dtype\":\"F32\",\"shape\":[3,4],\"data_offsets\":[0,48]}}", values, 48);
    write_safetensors("turned", "{\"w\":{\"dtype\":\"F32\",\"shape\":[4,3],\"data_offsets\":[0,48]}}", values, 48);
    write_safetensors("typed", "{\"w\":{\"dtype\":\"I32\",\"shape\":[3,4],\"data_offsets\":[0,48]}}", values, 48);
    REFUSES(LF_ERR_DATA, "I32", lf_program_load_params(p, "typed"), lf_program_message(p));
    assert_null(lf_program_param(p, "w").data); /* no values rather than anything */
    REFUSES(LF_ERR_DATA, "b", lf_program_load_params(p, "lacking"), lf_program_message(p));
    REFUSES(LF_ERR_DATA, "[3, 4]", lf_program_load_params(p, "turned"), lf_program_message(p));
    OK_PROGRAM(p, lf_program_load_params(p, "good"));
    assert_memory_equal(lf_program_param(p, "w").data, values, 48);
    assert_memory_equal(lf_program_param(p, "b").data, values + 12, 12);
    lf_program_free(p);
    lf_model_free(model);
    lf_context_free(context);
}

static char folder[] = "/tmp/linfuse_api_test_XXXXXX";

static int enter_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

static int leave_folder(void **state)
{
    (void)state;
    static const char *const files[] = {"good", "lacking", "turned", "typed"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        remove(files[i]);
    return chdir("/") == 0 && rmdir(folder) == 0 ? 0 : -1; /* fails where something else was left behind */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(builder_and_reader_give_equal_models),
        cmocka_unit_test(ports_and_dims),
        cmocka_unit_test(extents_have_factors),
        cmocka_unit_test(models_move_between_contexts),
        cmocka_unit_test(rows_are_asked_for),
        cmocka_unit_test(table_of_ops),
        cmocka_unit_test(nothing_where_a_handle_should_be),
        cmocka_unit_test(threads_are_set_before_programs),
        cmocka_unit_test(models_that_are_wrong),
        cmocka_unit_test(options_tell_their_words),
        cmocka_unit_test(options_that_are_wrong),
        cmocka_unit_test(parameters_that_are_wrong),
        cmocka_unit_test(calls_that_are_wrong),
        cmocka_unit_test(parameters_from_files),
    };
    return cmocka_run_group_tests_name("api", tests, enter_folder, leave_folder);
}
