/* SPDX-License-Identifier: Apache-2.0 */
/* The ir room: op table, extents, names, binding, verify. Shapes and rows: ir_shape_test.c. */
#include "ir_fixture.h"

/* ---- the tables ---- */

static void table_rows_are_sane(void **state)
{
    (void)state;
    for (int i = 0; i < LF_OP_COUNT; i++) {
        const lf_op_info *row = lf_op_row((lf_op)i);
        lf_op found;
        assert_true(lf_op_find(row->name, strlen(row->name), &found));
        assert_int_equal(found, i); /* names are unique */
        assert_int_equal(row->arg_count + row->attr_count, row->param_count);
        assert_true(row->arg_count <= LF_MAX_ARGS && row->attr_count <= LF_MAX_ATTRS);
        assert_true(strlen(row->expression) > 0);
        assert_true(row->kind == LF_LEAF || row->param[0].type == 'T' || row->param[0].type == 'V');
        bool needs = row->kind == LF_REDUCE || row->kind == LF_NORMALIZE || row->kind == LF_POOL;
        assert_int_equal(needs, row->monoid != LF_MONOID_none);
        for (int p = 0; p < row->param_count; p++)
            for (int q = 0; q < p; q++)
                assert_string_not_equal(row->param[p].name, row->param[q].name);
        if (row->kind == LF_REDUCE) /* inference reads it there */
            assert_string_equal(row->param[1].name, "dim");
    }
    lf_op op;
    assert_false(lf_op_find("reluu", 5, &op));
    assert_true(lf_op_find("reluu", 4, &op) && op == LF_OP_relu);
    assert_false(lf_op_public(LF_OP_input) || lf_op_public(LF_OP_guard));
    assert_string_equal(lf_kind_name(LF_NORMALIZE), "normalize");
}

static void signatures_parse(void **state)
{
    (void)state;
    const lf_op_info *gelu = lf_op_row(LF_OP_gelu), *bn = lf_op_row(LF_OP_batch_norm);
    assert_int_equal(gelu->param[1].choices, 2);
    assert_string_equal(gelu->param[1].choice[1], "tanh");
    assert_true(gelu->param[1].has_default && gelu->param[1].number == 0.0);
    assert_true(bn->param[1].optional && !bn->param[1].has_default);
    assert_int_equal(bn->param[5].slot, 0);
    assert_true(bn->param[7].number == 1e-5);
    const lf_param_info *training = &lf_op_row(LF_OP_dropout)->param[2];
    assert_true(training->type == 'B' && training->number == 1.0);
    assert_string_equal(lf_op_row(LF_OP_relu)->expression, "relu(x)");
    assert_string_equal(lf_op_row(LF_OP_logsumexp)->expression, "sel(isinf(x), x, x + log(y))");
    assert_string_equal(lf_monoid_row(LF_MONOID_max)->identity, "{ s0 = -INFINITY; }");
    assert_string_equal(lf_monoid_row(LF_MONOID_moments)->finish, "{ r0 = s1; r1 = s2 / s0; }");
}

/* ---- extents ---- */

static void extents_are_monomials(void **state)
{
    (void)state;
    lf_shape s = shape("[B, 4, S]");
    lf_extent b = s.dim[0], all, e;
    assert_true(lf_shape_elements(&s, &all));
    assert_string_equal(lf_extent_text(&g, all), "4*B*S");
    assert_string_equal(lf_extent_text(&g, b), "B");
    assert_true(lf_extent_div(all, b, &e));
    assert_string_equal(lf_extent_text(&g, e), "4*S");
    assert_false(lf_extent_div(b, all, &e) || lf_extent_div(all, lf_extent_of(3), &e) ||
                 lf_extent_div(b, lf_extent_of(0), &e));
    assert_true(lf_extent_same(b, b) && !lf_extent_same(b, s.dim[2]));
    assert_true(lf_extent_is(s.dim[1], 4) && !lf_extent_is(b, 1) && !lf_extent_known(b));
    assert_true(lf_extent_mul(b, b, &e));
    assert_string_equal(lf_extent_text(&g, e), "B*B");
    const int64_t dims[] = {3, 5};
    assert_int_equal(lf_extent_at(all, dims), 60);
    assert_int_equal(lf_shape_count(&s, dims), 60);
    assert_false(lf_extent_mul(lf_extent_of(INT64_MAX), lf_extent_of(2), &e));
    const int64_t huge[] = {(int64_t)1 << 45, 1};
    assert_int_equal(lf_extent_at(all, huge), -1);
    assert_int_equal(lf_shape_count(&s, huge), -1);
    assert_string_equal(lf_shape_text(&g, &(lf_shape){0}), "[]");
    e = b;
    e.pow[0] = 255;
    assert_false(lf_extent_mul(e, b, &e));
}

static void broadcast_strides(void **state)
{
    (void)state;
    lf_shape to = shape("[B, 4, 8]"), full = to, column = shape("[4, 1]"), row = shape("[B, 1, 8]"), scalar = {0};
    lf_extent stride[LF_MAX_RANK];
    lf_broadcast_strides(&full, &to, stride);
    assert_true(lf_extent_is(stride[0], 32) && lf_extent_is(stride[1], 8) && lf_extent_is(stride[2], 1));
    lf_broadcast_strides(&column, &to, stride);
    assert_true(lf_extent_is(stride[0], 0) && lf_extent_is(stride[1], 1) && lf_extent_is(stride[2], 0));
    lf_broadcast_strides(&row, &to, stride);
    assert_true(lf_extent_is(stride[0], 8) && lf_extent_is(stride[1], 0) && lf_extent_is(stride[2], 1));
    lf_broadcast_strides(&scalar, &to, stride);
    assert_true(lf_extent_is(stride[0], 0) && lf_extent_is(stride[2], 0));
    lf_shape inner = shape("[4, B, 2]");
    lf_broadcast_strides(&inner, &inner, stride);
    assert_string_equal(lf_extent_text(&g, stride[0]), "2*B");
}

/* ---- names, leaves, storage ---- */

static void names(void **state)
{
    (void)state;
    lf_node x = leaf(LF_OP_input, "x", LF_F32, "[B, 4]"), n;
    lf_shape s = shape("[B, 4]");
    assert_int_equal(lf_graph_leaf(&g, LF_OP_input, "x", LF_F32, &s, &n), LF_ERR_MODEL);
    assert_non_null(strstr(diag.text, "taken"));
    const char *const malformed[] = {"", "1x", "a b", "a-b", "\xc3\xa9", "true", "None", "inf"};
    for (size_t i = 0; i < sizeof malformed / sizeof malformed[0]; i++)
        assert_int_equal(lf_graph_leaf(&g, LF_OP_input, malformed[i], LF_F32, &s, &n), LF_ERR_MODEL);
    char longest[LF_MAX_NAME + 2];
    memset(longest, 'a', sizeof longest - 1);
    longest[LF_MAX_NAME + 1] = '\0';
    assert_int_equal(lf_graph_leaf(&g, LF_OP_input, longest, LF_F32, &s, &n), LF_ERR_MODEL);
    longest[LF_MAX_NAME] = '\0';
    assert_int_equal(lf_graph_leaf(&g, LF_OP_input, longest, LF_F32, &s, &n), LF_OK);

    /* The constant of the first op takes v2 until the model wants it. */
    lf_node a = make("a", "add", ARGS(V(x), N(2)));
    assert_string_equal(lf_at(&g, 2)->name, "v2");
    assert_int_equal(lf_graph_find(&g, "v2", 2), LF_NONE);
    assert_int_equal(lf_graph_named(&g, "v2"), 2);
    lf_node v2 = make("v2", "relu", ARGS(V(a)));
    assert_int_equal(lf_graph_find(&g, "v2", 2), v2);
    assert_string_equal(lf_at(&g, 2)->name, "v2_1");
    assert_int_equal(lf_graph_find(&g, "a", 1), a);
    assert_int_equal(lf_graph_return(&g, &v2, 1), LF_OK);
    assert_int_equal(lf_graph_verify(&g), LF_OK);
}

static void leaves(void **state)
{
    (void)state;
    lf_node n;
    lf_shape s = shape("[B, 4]");
    assert_int_equal(lf_graph_leaf(&g, LF_OP_param, "w", LF_F32, &s, &n), LF_ERR_MODEL);
    assert_non_null(strstr(diag.text, "parameter w [B, 4]: every extent of a parameter is a number"));
    s = shape("[0]");
    assert_int_equal(lf_graph_leaf(&g, LF_OP_input, "x", LF_F32, &s, &n), LF_ERR_MODEL);
    s = shape("[16777216, 16777216]");
    assert_int_equal(lf_graph_leaf(&g, LF_OP_input, "x", LF_F32, &s, &n), LF_ERR_MODEL);
    assert_non_null(strstr(diag.text, "too many elements"));
    s = (lf_shape){.rank = LF_MAX_RANK + 1};
    assert_int_equal(lf_graph_leaf(&g, LF_OP_input, "x", LF_F32, &s, &n), LF_ERR_MODEL);
    s = shape("[B]");
    s.dim[0].coef = 2;
    assert_int_equal(lf_graph_leaf(&g, LF_OP_input, "x", LF_F32, &s, &n), LF_ERR_MODEL);
    assert_int_equal(g.count + g.inputs + g.params, 0);

    int symbol;
    for (char name = 'C'; g.symbols < LF_MAX_SYMBOLS; name++)
        assert_int_equal(lf_graph_symbol(&g, &name, 1, &symbol), LF_OK);
    assert_int_equal(lf_graph_symbol(&g, "Z", 1, &symbol), LF_ERR_MODEL);
    assert_int_equal(lf_graph_symbol(&g, "B", 1, &symbol), LF_OK);
    assert_int_equal(symbol, 0);
}

static void graphs_grow(void **state)
{
    (void)state;
    lf_node last = in("[B, 4]");
    for (int i = 0; i < 500; i++)
        last = OP("add", V(last), V(in("[B, 4]")));
    for (int i = 0; i < 100; i++)
        last = OP("mul", V(last), V(par("[4]")));
    assert_int_equal(g.inputs, 501);
    assert_int_equal(g.params, 100);
    assert_int_equal(lf_graph_return(&g, &last, 1), LF_OK);
    assert_int_equal(lf_graph_verify(&g), LF_OK);
    for (int i = 0; i < g.inputs; i++)
        assert_int_equal(lf_graph_named(&g, lf_at(&g, g.input[i])->name), g.input[i]);
    while (g.count < LF_MAX_NODES)
        last = OP("neg", V(last));
    FAILS("values in one model", -1, "neg", V(last));
}

static void returning(void **state)
{
    (void)state;
    lf_node x = in("[B, 4]"), missing = 7;
    assert_int_equal(lf_graph_return(&g, &x, 0), LF_ERR_MODEL);
    assert_int_equal(lf_graph_return(&g, &missing, 1), LF_ERR_ARG);
    assert_int_equal(lf_graph_verify(&g), LF_ERR_MODEL); /* nothing returned yet */
    assert_int_equal(lf_graph_return(&g, &x, 1), LF_OK);
    assert_int_equal(lf_graph_verify(&g), LF_OK);
}

/* ---- binding ---- */

static void binding_by_position_and_key(void **state)
{
    (void)state;
    lf_node x = in("[B, 4]"), w = par("[3, 4]"), b = par("[3]");
    lf_node n = OP("linear", V(x), key("bias", V(b)), key("weight", V(w)));
    assert_int_equal(lf_arg_of(&g, n, 1), w);
    assert_int_equal(lf_arg_of(&g, n, 2), b);
    assert_int_equal(lf_arg_of(&g, n, 3), LF_NONE);
    n = OP("linear", V(x), V(w), NONE);
    assert_int_equal(lf_arg_of(&g, n, 2), LF_NONE);
    n = OP("gelu", V(x), key("approximate", S("tanh")));
    assert_true(lf_attr_of(&g, n, "approximate")->number == 1.0);
    n = OP("sum", V(x), N(-1), B(1));
    assert_int_equal(lf_attr_of(&g, n, "dim")->count, 1);
    assert_int_equal(lf_attr_of(&g, n, "dim")->list[0], -1);
    n = OP("add", N(2.5), V(x), key("alpha", N(3)));
    assert_int_equal(lf_at(&g, lf_arg_of(&g, n, 0))->op, LF_OP_constant);
    assert_true(lf_at(&g, lf_arg_of(&g, n, 0))->value == 2.5);
    assert_int_equal(lf_at(&g, lf_arg_of(&g, n, 0))->shape.rank, 0);
    n = OP("clamp", V(x), key("max", N(INFINITY)));
    assert_true(lf_attr_of(&g, n, "min")->none);
    OP("hardtanh", V(x), N(-INFINITY), N(6));
    OP("mul", V(x), N(INFINITY));
    GIVES("[B, 2]", "avg_pool1d", V(x), L(2), key("stride", L(2)));
}

static void binding_mistakes(void **state)
{
    (void)state;
    lf_node x = in("[B, 4]"), w = par("[3, 4]");
    FAILS("there is no op leaky_rulu; did you mean leaky_relu?", -1, "leaky_rulu", V(x));
    FAILS("there is no op convolution; `linfuse ops`", -1, "convolution", V(x));
    FAILS("there is no op guard", -1, "guard", V(x), V(x));
    FAILS("there is no op input", -1, "input", V(x));
    FAILS("gelu: there is no parameter approx; it takes (input, approximate)", 1, "gelu", V(x),
          key("approx", S("tanh")));
    FAILS("gelu: approximate is \"erf\"; it wants \"none\" or \"tanh\"", 1, "gelu", V(x), S("erf"));
    FAILS("linear: weight is missing; it takes (input, weight, bias)", -1, "linear", V(x));
    FAILS("batch_norm: running_var is missing", -1, "batch_norm", V(x), NONE);
    FAILS("relu: input wants a value, not the number 3", 0, "relu", N(3));
    FAILS("linear: bias wants a value or None, not a list", 2, "linear", V(x), V(w), L(1, 2));
    FAILS("linear: weight wants a value, not None", 1, "linear", V(x), NONE);
    FAILS("add: both sides are numbers", 1, "add", N(1), N(2));
    FAILS("add: other wants a value or a number, not true", 1, "add", V(x), B(1));
    FAILS("add: an argument without a key follows", 1, "add", key("input", V(x)), V(x));
    FAILS("add: input is given twice", 2, "add", V(x), V(x), key("input", V(x)));
    FAILS("relu: 2 arguments, but it takes at most 1 (input)", 1, "relu", V(x), N(1));
    FAILS("softmax: dim is 0.5; it wants an integer", 1, "softmax", V(x), N(0.5));
    FAILS("softmax: dim is 1e+300; it wants an integer", 1, "softmax", V(x), N(1e300));
    FAILS("softmax: dim wants an integer, not a list", 1, "softmax", V(x), L(1));
    FAILS("sum: dim has 0.5 in it; it wants integers", 1, "sum", V(x), L(0, 0.5));
    FAILS("sum: dim has nan in it", 1, "sum", V(x), N(NAN));
    FAILS("sum: dim has 9 numbers", 1, "sum", V(x), L(0, 1, 2, 3, 4, 5, 6, 7, 8));
    FAILS("sum: keepdim wants true or false, not the number 1", 2, "sum", V(x), N(0), N(1));
    FAILS("leaky_relu: negative_slope is nan; it wants a finite number", 1, "leaky_relu", V(x), N(NAN));
    FAILS("leaky_relu: negative_slope is inf; it wants a finite number", 1, "leaky_relu", V(x), N(INFINITY));
    FAILS("clamp: min is nan", 1, "clamp", V(x), N(NAN));
    FAILS("pow: exponent wants a number, not the value x0", 1, "pow", V(x), V(x));
    FAILS("elu: alpha wants a number, not None", 1, "elu", V(x), NONE);
    FAILS("gelu: approximate wants a string, not true", 1, "gelu", V(x), B(1));
    FAILS("relu: input is value 99", 0, "relu", V(99));
    fails("relu: input is missing", -1, "relu", NULL, 0);
}

static void defaults_without_attrs(void **state)
{
    (void)state;
    lf_node x = in("[B, 4]"), n;
    double abc[3];
    assert_int_equal(lf_graph_op(&g, "y", LF_OP_leaky_relu, &x, NULL, &n), LF_OK);
    lf_op_numbers(&g, n, abc);
    assert_true(abc[0] == 0.01 && abc[1] == 0.0);
    assert_int_equal(lf_graph_op(&g, NULL, LF_OP_softmax, &x, NULL, &n), LF_ERR_MODEL);
    assert_non_null(strstr(diag.text, "softmax: dim is missing"));
    assert_int_equal(lf_graph_op(&g, "y", LF_OP_relu, &x, NULL, &n), LF_ERR_MODEL);
}

/* ---- verify ---- */

static void verify_finds(const char *want)
{
    assert_int_equal(lf_graph_verify(&g), LF_ERR_MODEL);
    if (!strstr(diag.text, want))
        print_error("wanted \"%s\" in \"%s\"\n", want, diag.text);
    assert_non_null(strstr(diag.text, want));
}

static void verify_catches_corruption(void **state)
{
    (void)state;
    lf_node x = in("[B, 4]"), w = par("[3, 4]"), y = OP("linear", V(x), V(w)), z = OP("softmax", V(y), N(1));
    assert_int_equal(lf_graph_return(&g, &z, 1), LF_OK);
    assert_int_equal(lf_graph_verify(&g), LF_OK);
#define BREAK(node_, change, want)                                                                                     \
    do {                                                                                                               \
        lf_node_info saved_ = g.node[node_];                                                                           \
        change;                                                                                                        \
        verify_finds(want);                                                                                            \
        g.node[node_] = saved_;                                                                                        \
        assert_int_equal(lf_graph_verify(&g), 0);                                                                      \
    } while (0)
    BREAK(y, g.node[y].shape.dim[1].coef = 5, "is [B, 5], but linear gives [B, 3]");
    BREAK(y, g.node[y].arg[1] = z, "does not come before");
    BREAK(y, g.node[y].arg[1] = y, "does not come before");
    BREAK(y, g.node[y].arg[1] = -2, "does not come before");
    BREAK(y, g.node[y].arg[1] = LF_NONE, "weight is missing");
    BREAK(y, g.node[y].arg[4] = x, "an argument too many");
    BREAK(y, g.node[y].dtype = LF_F16, "dtype");
    BREAK(y, g.node[y].op = LF_OP_COUNT, "no such op");
    BREAK(y, g.node[y].op = LF_OP_matmul, "matmul: other");
    BREAK(z, g.node[z].name = g.node[y].name, "name");
    BREAK(z, g.node[z].name = NULL, "no name");
    BREAK(z, g.node[z].attr = NULL, "attributes are missing");
    lf_attr wild = {.number = 7};
    BREAK(z, g.node[z].attr = &wild, "dim 7 is out of range");
    wild.number = NAN;
    BREAK(z, g.node[z].attr = &wild, "wants an integer");
    BREAK(w, g.node[w].op = LF_OP_input, "not listed");
    BREAK(w, g.node[w].shape.dim[0].coef = 0, "out of range");
    BREAK(w, g.node[w].shape.rank = 9, "rank");
    g.outputs = 0;
    verify_finds("returns at least one value");
    g.outputs = 1;
    g.output[0] = 99;
    verify_finds("output 0");
}

/* What PyTorch refuses once the batch is known. */
static void extents_that_cannot_be_run(void **state)
{
    (void)state;
    const char text[] = "input x f32[B, 4]\na = batch_norm(x, None, None, training=true)\nb = max(x, dim=0)\n"
                        "c = group_norm(x, num_groups=4)\nd = sum(x, dim=1, keepdim=true)\n"
                        "e = group_norm(d, num_groups=1)\nreturn a, b, c, e\n";
    assert_int_equal(lf_text_read(&g, "model", text, sizeof text - 1), LF_OK);
    assert_int_equal(lf_graph_check_dims(&g, (int64_t[]){2}, &diag), LF_OK);
    assert_int_equal(lf_graph_check_dims(&g, (int64_t[]){1}, &diag), LF_ERR_DATA);
    assert_non_null(strstr(diag.text, "a: batch_norm over one value"));
    assert_int_equal(lf_graph_check_dims(&g, (int64_t[]){0}, &diag), LF_ERR_DATA);
    assert_non_null(strstr(diag.text, "b: max of no elements"));
    assert_int_equal(lf_graph_check_dims(&g, (int64_t[]){(int64_t)1 << 60}, &diag), LF_ERR_DATA);
    assert_int_equal(lf_graph_check_dims(&g, (int64_t[]){-1}, &diag), LF_ERR_DATA);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(table_rows_are_sane),
        TEST(signatures_parse),
        TEST(extents_are_monomials),
        TEST(broadcast_strides),
        TEST(names),
        TEST(leaves),
        TEST(graphs_grow),
        TEST(returning),
        TEST(binding_by_position_and_key),
        TEST(binding_mistakes),
        TEST(defaults_without_attrs),
        TEST(verify_catches_corruption),
        TEST(extents_that_cannot_be_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
