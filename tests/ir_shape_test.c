/* SPDX-License-Identifier: Apache-2.0 */
/* The ir room: shape inference, questions about nodes, rows. */
#include "ir_fixture.h"

/* ---- shapes ---- */

static void pointwise_shapes(void **state)
{
    (void)state;
    lf_node x = in("[B, 4]"), y = in("[B, 1]"), z = in("[S, 1, 1]"), one = in("[1, 4]"), five = in("[5]");
    GIVES("[B, 4]", "relu", V(x));
    GIVES("[B, 4]", "add", V(x), V(y));
    GIVES("[S, B, 4]", "mul", V(z), V(x));
    GIVES("[B, 4]", "div", V(one), V(y));
    GIVES("[B, 5]", "maximum", V(five), V(y));
    GIVES("[B, 4]", "sub", N(1), V(x));
    FAILS("add: input x0 [B, 4] and other x4 [5] do not broadcast", -1, "add", V(x), V(five));
    FAILS("do not broadcast", -1, "add", V(x), V(in("[S, 4]")));
    FAILS("do not broadcast", -1, "add", V(x), V(in("[3, 4]")));
    FAILS("clamp: min and max are both missing", -1, "clamp", V(x));
    FAILS("hardtanh: min_val 1 is greater than max_val -1", -1, "hardtanh", V(x), N(1), N(-1));
    GIVES("[B, 4]", "clamp", V(x), N(1), N(-1));
    FAILS("celu: alpha is 0", -1, "celu", V(x), N(0));
    lf_node big = in("[16777216, 1]"), wide = in("[16777216]");
    FAILS("too many elements", -1, "add", V(big), V(wide));
}

static void product_shapes(void **state)
{
    (void)state;
    lf_node x = leaf(LF_OP_input, "x", LF_F32, "[B, 31]"), w = par("[64, 32]"), deep = in("[B, 7, 32]");
    FAILS("linear: weight w1 [64, 32] wants input [..., 32], but input x is [B, 31]", -1, "linear", V(x), V(w));
    GIVES("[B, 7, 64]", "linear", V(deep), V(w), V(par("[64]")));
    FAILS("wants bias [64], but it has bias", -1, "linear", V(deep), V(w), V(par("[1]")));
    FAILS("wants bias [64]", -1, "linear", V(deep), V(w), V(par("[1, 64]")));
    FAILS("only 2-D is supported", -1, "linear", V(deep), V(par("[32]")));
    FAILS("has rank 1; it wants 2 or more", -1, "linear", V(in("[32]")), V(w));
    GIVES("[B, 5]", "matmul", V(x), V(par("[31, 5]")));
    FAILS("matmul: other w1 [64, 32] wants input [..., 64]", -1, "matmul", V(x), V(w));
    FAILS("only 2-D is supported", -1, "matmul", V(deep), V(in("[B, 32, 4]")));
    GIVES("[B, S]", "linear", V(in("[B, K]")), V(in("[S, K]")));
}

static void dtypes(void **state)
{
    (void)state;
    lf_node f = leaf(LF_OP_input, "f", LF_F32, "[B, 4]"), i = leaf(LF_OP_input, "i", LF_I64, "[B, 4]");
    FAILS("add: other i [B, 4] is i64, which counts positions; it takes f32, f16 or bf16", -1, "add", V(f), V(i));
    FAILS("relu: input i [B, 4] is i64, which counts positions; it takes f32, f16 or bf16", -1, "relu", V(i));
    lf_node n = OP("flatten", V(i));
    assert_int_equal(lf_at(&g, n)->dtype, LF_I64);
}

static lf_node of_type(lf_dtype type, const char *text)
{
    char name[16];
    snprintf(name, sizeof name, "t%d", (int)g.count);
    return leaf(LF_OP_input, name, type, text);
}

#define TYPE_OF(...) lf_at(&g, OP(__VA_ARGS__))->dtype

/* As torch.result_type has them: values with extents before those of rank 0, numbers never. */
static void promotion(void **state)
{
    (void)state;
    static const lf_dtype of_two[3][3] = {/* f32, f16, bf16 */
                                          {LF_F32, LF_F32, LF_F32},
                                          {LF_F32, LF_F16, LF_F32},
                                          {LF_F32, LF_F32, LF_BF16}};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) {
            const lf_dtype x = (lf_dtype)i, y = (lf_dtype)k;
            lf_node a = of_type(x, "[B, 4]"), b = of_type(y, "[4]"), none = of_type(y, "[]"), other = of_type(x, "[]");
            assert_int_equal(TYPE_OF("add", V(a), V(b)), of_two[i][k]);
            assert_int_equal(TYPE_OF("maximum", V(a), V(b)), of_two[i][k]);
            assert_int_equal(TYPE_OF("mul", V(a), V(none)), x);
            assert_int_equal(TYPE_OF("mul", V(none), V(a)), x);
            assert_int_equal(TYPE_OF("mul", V(other), V(none)), of_two[i][k]);
            assert_int_equal(TYPE_OF("sub", N(0.5), V(a)), x);
        }
}

/* What an op of narrow numbers yields is narrow; what PyTorch would not mix is refused. */
static void types_of_ops(void **state)
{
    (void)state;
    lf_node x = of_type(LF_BF16, "[B, 4]"), w = of_type(LF_BF16, "[3, 4]"), b = of_type(LF_BF16, "[3]");
    lf_node wide = of_type(LF_F32, "[4]"), half = of_type(LF_F16, "[4]"), w32 = par("[3, 4]");
    assert_int_equal(TYPE_OF("linear", V(x), V(w), V(b)), LF_BF16);
    assert_int_equal(TYPE_OF("sum", V(x)), LF_BF16);
    assert_int_equal(TYPE_OF("logsumexp", V(x), N(1)), LF_BF16);
    assert_int_equal(TYPE_OF("softmax", V(x), N(1)), LF_BF16);
    assert_int_equal(TYPE_OF("avg_pool1d", V(x), N(2)), LF_BF16);
    assert_int_equal(TYPE_OF("transpose", V(x), N(0), N(1)), LF_BF16);
    assert_int_equal(TYPE_OF("pow", V(x), N(2.5)), LF_BF16);
    assert_int_equal(TYPE_OF("layer_norm", V(x), L(4), V(wide), V(wide)), LF_BF16);
    assert_int_equal(TYPE_OF("batch_norm", V(x), V(wide), V(wide)), LF_BF16);
    assert_int_equal(TYPE_OF("to", V(x), S("f16")), LF_F16);
    assert_int_equal(TYPE_OF("to", V(x), key("dtype", S("f32"))), LF_F32);
    FAILS("linear: input t0 is bf16, and weight w5 is f32; PyTorch does not mix them here", 1, "linear", V(x), V(w32));
    FAILS("is bf16, and bias", 2, "linear", V(x), V(w), V(par("[3]")));
    FAILS("is bf16, and weight t4 is f16", 2, "layer_norm", V(x), L(4), V(half));
    FAILS("dtype is \"i64\"; it wants \"f32\" or \"f16\" or \"bf16\"", 1, "to", V(x), S("i64"));
    FAILS("dtype is missing", -1, "to", V(x));
}

static void reduce_shapes(void **state)
{
    (void)state;
    lf_node x = in("[B, 3, 4]"), scalar = OP("sum", V(x));
    GIVES("[]", "sum", V(x));
    GIVES("[1, 1, 1]", "mean", V(x), NONE, B(1));
    GIVES("[]", "max", V(x), EMPTY);
    GIVES("[B, 4]", "min", V(x), N(1));
    GIVES("[B, 3, 1]", "logsumexp", V(x), N(-1), B(1));
    GIVES("[3]", "sum", V(x), L(0, -1));
    GIVES("[]", "logsumexp", V(x), L(2, 1, 0));
    GIVES("[]", "sum", V(scalar), N(0));
    GIVES("[]", "sum", V(scalar), N(-1), B(1));
    FAILS("sum: dim 3 is out of range for input x0 [B, 3, 4]; it runs from -3 to 2", -1, "sum", V(x), N(3));
    FAILS("sum: dim -4 is out of range", -1, "sum", V(x), N(-4));
    FAILS("sum: dim 1 appears twice", -1, "sum", V(x), L(1, -2));
    FAILS("logsumexp: dim is an empty list", -1, "logsumexp", V(x), EMPTY);
    FAILS("logsumexp: dim is missing", -1, "logsumexp", V(x));
    FAILS("out of range", -1, "sum", V(scalar), N(1));
}

static void normalize_shapes(void **state)
{
    (void)state;
    lf_node x = in("[B, 6, 4]"), w4 = par("[4]"), w6 = par("[6]"), w64 = par("[6, 4]"), flat = in("[B, 6]");
    GIVES("[B, 6, 4]", "softmax", V(x), N(-3));
    FAILS("log_softmax: dim 3 is out of range", -1, "log_softmax", V(x), N(3));
    GIVES("[B, 6, 4]", "layer_norm", V(x), N(4), V(w4), V(w4));
    GIVES("[B, 6, 4]", "layer_norm", V(x), L(6, 4), V(w64));
    GIVES("[B, 6, 4]", "rms_norm", V(x), L(4), V(w4), key("eps", NONE));
    FAILS("layer_norm: normalized_shape [6] is not how input x0 [B, 6, 4] ends", -1, "layer_norm", V(x), L(6));
    FAILS("is not how", -1, "layer_norm", V(x), L(1, 1, 6, 4));
    FAILS("normalized_shape is empty", -1, "rms_norm", V(x), EMPTY);
    FAILS("weight w2 [6] has to be [4] for input", -1, "layer_norm", V(x), L(4), V(w6));
    FAILS("bias w2 [6] has to be [4]", -1, "layer_norm", V(x), L(4), NONE, V(w6));
    GIVES("[B, 6]", "group_norm", V(flat), N(3), V(w6), V(w6));
    GIVES("[B, 6]", "group_norm", V(flat), N(6));
    FAILS("6 channels of input", -1, "group_norm", V(flat), N(4));
    FAILS("do not divide into num_groups 0", -1, "group_norm", V(flat), N(0));
    FAILS("has to be [6]", -1, "group_norm", V(flat), N(3), V(w4));
    FAILS("has rank 1; it wants 2 or more", -1, "group_norm", V(w6), N(3));
    FAILS("have to be a number", -1, "group_norm", V(in("[6, B]")), N(3));
    FAILS("has one value a group", -1, "group_norm", V(in("[1, 6]")), N(6));
    GIVES("[2, 6]", "group_norm", V(in("[2, 6]")), N(6));
    GIVES("[B, 6, 4]", "instance_norm", V(x), NONE, NONE, V(w6), V(w6));
    FAILS("it wants 3 or more", -1, "instance_norm", V(flat));
    FAILS("has one value a channel", -1, "instance_norm", V(in("[B, 6, 1]")));
    FAILS("running_mean is needed unless", -1, "instance_norm", V(flat), key("use_input_stats", B(0)));
    GIVES("[B, 6]", "instance_norm", V(flat), V(w6), V(w6), key("use_input_stats", B(0)));
    GIVES("[B, 6]", "batch_norm", V(flat), V(w6), V(w6));
    GIVES("[B, 6, 4]", "batch_norm", V(x), NONE, NONE, V(w6), V(w6), B(1));
    FAILS("running_var is needed unless", -1, "batch_norm", V(flat), V(w6), NONE);
    FAILS("running_mean w1 [4] has to be [6]", -1, "batch_norm", V(flat), V(w4), V(w6));
    FAILS("has one value a channel", -1, "batch_norm", V(in("[1, 6]")), NONE, NONE, key("training", B(1)));
    FAILS("eps is -1", -1, "batch_norm", V(flat), V(w6), V(w6), key("eps", N(-1)));
}

static void pool_shapes(void **state)
{
    (void)state;
    lf_node x = in("[B, 3, 10]"), y = in("[B, 5]");
    GIVES("[B, 3, 5]", "max_pool1d", V(x), N(2));
    GIVES("[B, 3, 4]", "avg_pool1d", V(x), N(3), N(2));
    GIVES("[B, 3, 5]", "avg_pool1d", V(x), N(3), N(2), key("ceil_mode", B(1)));
    GIVES("[B, 3, 5]", "avg_pool1d", V(x), N(3), N(2), N(1));
    GIVES("[B, 3, 6]", "max_pool1d", V(x), N(3), N(1), N(0), N(2));
    /* The third window would start in the right padding. */
    GIVES("[B, 2]", "avg_pool1d", V(y), N(2), N(3), N(1), key("ceil_mode", B(1)));
    GIVES("[B, 1]", "avg_pool1d", V(y), N(6), N(2), key("ceil_mode", B(1)));
    FAILS("no window of kernel_size 6", -1, "max_pool1d", V(y), N(6));
    FAILS("no window", -1, "max_pool1d", V(y), N(9e15), N(1), N(0), N(9e15));
    FAILS("padding 2 has to lie between 0 and half of kernel_size 3", -1, "max_pool1d", V(y), N(3), N(1), N(2));
    FAILS("padding -1", -1, "max_pool1d", V(y), N(3), N(1), N(-1));
    FAILS("have to be 1 or more", -1, "max_pool1d", V(y), N(0));
    FAILS("have to be 1 or more", -1, "avg_pool1d", V(y), N(2), N(0));
    FAILS("has rank 1; it wants 2 or 3", -1, "avg_pool1d", V(in("[5]")), N(2));
    FAILS("has rank 4", -1, "avg_pool1d", V(in("[2, 2, 2, 5]")), N(2));
    FAILS("the last extent of input", -1, "avg_pool1d", V(in("[5, B]")), N(2));
}

static void view_shapes(void **state)
{
    (void)state;
    lf_node x = in("[B, 6, 4]"), ones = in("[1, B, 1]"), six = in("[2, 3]"), scalar = OP("sum", V(x));
    GIVES("[B, 2, 12]", "reshape", V(x), L(-1, 2, 12));
    GIVES("[24*B]", "reshape", V(x), N(-1));
    GIVES("[8, 3*B]", "reshape", V(x), L(8, -1));
    GIVES("[3, 2]", "reshape", V(six), L(3, 2));
    GIVES("[]", "reshape", V(scalar), EMPTY);
    FAILS("shape [-1, 5] does not hold the 24*B elements of input x0 [B, 6, 4]", -1, "reshape", V(x), L(-1, 5));
    FAILS("-1 stands for the extent with a name", -1, "reshape", V(x), L(24));
    FAILS("more than one -1", -1, "reshape", V(x), L(-1, -1));
    FAILS("shape has 0 in it", -1, "reshape", V(x), L(0, -1));
    FAILS("shape [5] does not hold the 6 elements", -1, "reshape", V(six), N(5));
    FAILS("too large", 1, "reshape", V(six), L(9e15, -1));
    FAILS("does not hold", -1, "reshape", V(six), L(70e12, 70e12, -1));
    GIVES("[B]", "squeeze", V(ones));
    GIVES("[B, 1]", "squeeze", V(ones), N(0));
    GIVES("[1, B, 1]", "squeeze", V(ones), N(1)); /* B is not known to be 1 */
    GIVES("[1, B, 1]", "squeeze", V(ones), EMPTY);
    GIVES("[B]", "squeeze", V(ones), L(0, -1));
    FAILS("dim 0 appears twice", -1, "squeeze", V(ones), L(0, 0));
    GIVES("[B, 6, 4, 1]", "unsqueeze", V(x), N(-1));
    GIVES("[1, B, 6, 4]", "unsqueeze", V(x), N(-4));
    FAILS("dim 4 is out of range", -1, "unsqueeze", V(x), N(4));
    FAILS("the most there can be", -1, "unsqueeze", V(in("[1, 1, 1, 1, 1, 1, 1, 1]")), N(0));
    GIVES("[24*B]", "flatten", V(x));
    GIVES("[B, 24]", "flatten", V(x), N(1));
    GIVES("[6*B, 4]", "flatten", V(x), N(0), N(-2));
    GIVES("[1]", "flatten", V(scalar));
    FAILS("start_dim 2 comes after end_dim 1", -1, "flatten", V(x), N(2), N(1));
    GIVES("[4, 6, B]", "transpose", V(x), N(0), N(-1));
    GIVES("[]", "transpose", V(scalar), N(0), N(-1));
    FAILS("dim1 3 is out of range", -1, "transpose", V(x), N(0), N(3));
    GIVES("[B, 6, 3]", "slice", V(x), N(-1), N(1));
    GIVES("[B, 3, 4]", "slice", V(x), N(1), N(-9), N(99), N(2));
    GIVES("[B, 6, 4]", "slice", V(x), N(0));
    FAILS("extent 0 of input x0 [B, 6, 4] has a name; only one that is a number can be cut", -1, "slice", V(x), N(0),
          N(1));
    FAILS("nothing of extent 1 of input x0 [B, 6, 4] lies between start and end", -1, "slice", V(x), N(1), N(3), N(3));
    FAILS("step is 0; it wants 1 or more", -1, "slice", V(x), N(1), N(0), N(3), N(0));
    FAILS("is one number, which has no parts", -1, "slice", V(scalar));
    FAILS("dim 3 is out of range", -1, "slice", V(x), N(3));
    GIVES("[B, 6, 4]", "clone", V(x));
    GIVES("[B, 6, 4]", "dropout", V(x), N(0.1), B(0));
    GIVES("[B, 6, 4]", "dropout", V(x), N(0), B(1));
    FAILS("dropout in training is random", -1, "dropout", V(x));
    FAILS("p is 1.5", -1, "dropout", V(x), N(1.5), B(0));
}

/* ---- questions ---- */

static void numbers_of_expressions(void **state)
{
    (void)state;
    lf_node x = in("[B, 6, 4]"), w = par("[6]");
    double abc[3];
    lf_op_numbers(&g, OP("clamp", V(x), key("max", N(2))), abc);
    assert_true(isinf(abc[0]) && abc[0] < 0 && abc[1] == 2.0 && abc[2] == 0.0);
    lf_op_numbers(&g, OP("clamp", V(x), N(2)), abc);
    assert_true(abc[0] == 2.0 && isinf(abc[1]) && abc[1] > 0);
    lf_op_numbers(&g, OP("gelu", V(x), S("tanh")), abc);
    assert_true(abc[0] == 1.0);
    lf_op_numbers(&g, OP("softplus", V(x), N(2), N(9)), abc);
    assert_true(abc[0] == 2.0 && abc[1] == 9.0);
    lf_op_numbers(&g, OP("rms_norm", V(x), N(4)), abc);
    assert_true(abc[0] == 0x1p-23);
    lf_op_numbers(&g, OP("group_norm", V(x), N(3), key("eps", N(0.5))), abc);
    assert_true(abc[0] == 0.5 && abc[1] == 0.0);
    lf_op_numbers(&g, OP("batch_norm", V(x), V(w), V(w), key("eps", N(0.25))), abc);
    assert_true(abc[0] == 0.25 && abc[1] == 0.0);
    lf_op_numbers(&g, OP("sum", V(x), N(0), B(1)), abc);
    assert_true(abc[0] == 0.0);
}

static void spans(void **state)
{
    (void)state;
    lf_node x = in("[B, 6, 4]"), w = par("[6]"), n;
    assert_int_equal(lf_span_axes(&g, OP("softmax", V(x), N(-2))), 2);
    assert_int_equal(lf_span_axes(&g, OP("sum", V(x))), 7);
    assert_int_equal(lf_span_axes(&g, OP("max", V(x), L(0, -1))), 5);
    assert_int_equal(lf_span_axes(&g, OP("sum", V(OP("sum", V(x))), N(0))), 0);
    assert_int_equal(lf_span_axes(&g, OP("layer_norm", V(x), L(6, 4))), 6);
    assert_int_equal(lf_span_axes(&g, OP("rms_norm", V(x), N(4))), 4);
    assert_int_equal(lf_span_axes(&g, OP("instance_norm", V(x))), 4);
    assert_int_equal(lf_span_axes(&g, OP("max_pool1d", V(x), N(2))), 4);
    n = OP("group_norm", V(x), N(3), V(w));
    assert_int_equal(lf_span_axes(&g, n), 6);
    assert_int_equal(lf_segments(&g, n), 3);
    n = OP("batch_norm", V(x), V(w), V(w), V(w), V(w), B(1));
    assert_int_equal(lf_span_axes(&g, n), 5);
    assert_int_equal(lf_segments(&g, n), 1);
    assert_false(lf_uses_running_stats(&g, n));
    n = OP("batch_norm", V(x), V(w), V(w));
    assert_true(lf_uses_running_stats(&g, n));
    assert_int_equal(lf_span_axes(&g, n), 0);
    assert_false(lf_uses_running_stats(&g, OP("dropout", V(x), N(0.5), B(0))));
}

static void affines_and_windows(void **state)
{
    (void)state;
    lf_node x = in("[B, 6, 4]"), w6 = par("[6]"), w4 = par("[4]");
    lf_affine a = lf_affine_of(&g, OP("layer_norm", V(x), N(4), V(w4), V(w4)));
    assert_true(a.weight_slot == 1 && a.bias_slot == 2 && a.axis == 2 && !a.channels);
    a = lf_affine_of(&g, OP("batch_norm", V(x), V(w6), V(w6), NONE, V(w6)));
    assert_true(a.weight_slot == -1 && a.bias_slot == 4 && a.axis == 1 && a.channels);
    a = lf_affine_of(&g, OP("rms_norm", V(x), N(4), V(w4)));
    assert_true(a.weight_slot == 1 && a.bias_slot == -1 && a.axis == 2);
    a = lf_affine_of(&g, OP("softmax", V(x), N(1)));
    assert_true(a.weight_slot == -1 && a.bias_slot == -1 && a.axis == -1);
    a = lf_affine_of(&g, OP("linear", V(x), V(par("[3, 4]")), V(par("[3]"))));
    assert_true(a.weight_slot == -1 && a.bias_slot == -1);
    lf_window win = lf_window_of(&g, OP("avg_pool1d", V(x), N(3), key("padding", N(1))));
    assert_true(win.kernel == 3 && win.stride == 3 && win.padding == 1 && win.dilation == 1 && win.include_pad);
    win = lf_window_of(&g, OP("max_pool1d", V(x), N(2), N(1), key("dilation", N(2))));
    assert_true(win.stride == 1 && win.dilation == 2 && !win.include_pad);
}

static void what_is_fixed(void **state)
{
    (void)state;
    lf_node x = in("[B, 4]"), w = par("[4]"), e = OP("exp", V(w)), y = OP("mul", V(x), V(e)), z = OP("add", V(y), N(1));
    lf_node outputs[] = {z, y};
    bool fixed[8];
    assert_int_equal(lf_graph_return(&g, outputs, 2), LF_OK);
    lf_graph_fixed(&g, fixed);
    assert_true(!fixed[x] && fixed[w] && fixed[e] && !fixed[y] && !fixed[z] && fixed[lf_arg_of(&g, z, 1)]);
}

/* ---- rows ---- */

static bool rows[64];
static lf_node why;

static bool independent(lf_node out)
{
    assert_true(g.count <= 64);
    assert_int_equal(lf_graph_return(&g, &out, 1), LF_OK);
    why = LF_NONE;
    return lf_graph_rows(&g, rows, &why);
}

static void rows_that_are_apart(void **state)
{
    (void)state;
    lf_node x = in("[B, 8]"), w = par("[6, 8]"), c = par("[6]"), skip = in("[B, 6]"), row = in("[1, 6]");
    lf_node y = OP("linear", V(x), V(w), V(c)), s;
    y = OP("add", V(y), V(skip));
    y = OP("mul", V(y), V(row));
    y = OP("batch_norm", V(y), V(c), V(c));
    y = OP("group_norm", V(y), N(3), V(c));
    y = OP("layer_norm", V(y), N(6));
    s = OP("logsumexp", V(y), N(1), B(1));
    y = OP("sub", V(y), V(s));
    y = OP("reshape", V(y), L(-1, 2, 3));
    y = OP("transpose", V(y), N(1), N(2));
    y = OP("flatten", V(y), N(1));
    y = OP("unsqueeze", V(y), N(1));
    y = OP("max_pool1d", V(y), N(2));
    y = OP("sum", V(y), L(1, 2));
    y = OP("add", V(y), N(1));
    y = OP("unsqueeze", V(y), N(1));
    assert_true(independent(y));
    assert_true(rows[x] && rows[skip] && rows[y] && rows[s] && !rows[w] && !rows[c] && !rows[row]);
    assert_true(lf_graph_rows(&g, rows, NULL));
}

static void rows_that_are_left_out(void **state)
{
    (void)state;
    in("[4, 8]");
    const lf_node some = OP("slice", V(0), N(0), N(1));
    assert_false(independent(some));
    assert_int_equal(why, some);
}

/* One op in a graph of its own, in which value 0 is an input [B, 8] and value 1 a parameter [8]. */
static void mixes(const char *op, const lf_arg *args, size_t count)
{
    teardown(NULL);
    assert_int_equal(setup(NULL), 0);
    in("[B, 8]");
    par("[8]");
    lf_node n = make(NULL, op, args, count);
    assert_false(independent(n));
    assert_int_equal(why, n);
}

static void rows_that_mix(void **state)
{
    (void)state;
    mixes("sum", ARGS(V(0), N(0)));
    mixes("sum", ARGS(V(0)));
    mixes("softmax", ARGS(V(0), N(0)));
    mixes("softmax", ARGS(V(0), N(-2)));
    mixes("batch_norm", ARGS(V(0), NONE, NONE, key("training", B(1))));
    mixes("transpose", ARGS(V(0), N(0), N(1)));
    mixes("transpose", ARGS(V(0), N(-1), N(-2)));
    mixes("flatten", ARGS(V(0)));
    mixes("reshape", ARGS(V(0), L(4, -1)));
    mixes("unsqueeze", ARGS(V(0), N(0)));
    mixes("exp", ARGS(V(1))); /* no rows come out */
}

static void rows_over_layer_norm_of_all(void **state)
{
    (void)state;
    lf_node x = in("[5, 8]");
    assert_false(independent(OP("layer_norm", V(x), L(5, 8))));
}

static void rows_as_a_weight(void **state)
{
    (void)state;
    lf_node x = in("[8, 8]"), y = in("[8, 8]"), n = OP("matmul", V(x), V(y));
    assert_false(independent(n));
    assert_int_equal(why, n);
}

static void rows_against_other_axes(void **state)
{
    (void)state;
    lf_node x = in("[4, 4]"), w = par("[4, 4]");
    assert_true(independent(OP("relu", V(x))));
    assert_false(independent(OP("add", V(x), V(w)))); /* the parameter has rows of its own */
}

static void rows_of_higher_rank(void **state)
{
    (void)state;
    lf_node x = in("[4, 4]"), z = in("[3, 4, 4]");
    assert_false(independent(OP("add", V(x), V(z))));
}

static void rows_of_one(void **state)
{
    (void)state;
    lf_node x = in("[1, 8]"), w = par("[8]");
    assert_true(independent(OP("mul", V(OP("softmax", V(x), N(1))), V(w))));
    assert_true(rows[x]);
    assert_false(independent(OP("add", V(x), V(par("[5, 8]")))));
}

static void rows_need_their_name_alone(void **state)
{
    (void)state;
    lf_node x = in("[B, 8]"), mask = in("[B]"), column = OP("unsqueeze", V(mask), N(1));
    assert_false(independent(OP("mul", V(x), V(column))));
    assert_int_equal(why, mask); /* fewer rows would leave it too long */
}

static void rows_need_rank_2(void **state)
{
    (void)state;
    lf_node x = in("[B]");
    assert_false(independent(OP("relu", V(x))));
    assert_int_equal(why, x);
}

static void rows_need_an_input(void **state)
{
    (void)state;
    assert_false(independent(OP("relu", V(par("[4, 4]")))));
}

static void rows_of_wide_constants(void **state)
{
    (void)state;
    lf_node x = in("[B, 8]"), c;
    lf_shape s = shape("[B, 8]");
    assert_int_equal(lf_graph_constant(&g, 1.0, &s, &c), LF_OK);
    lf_node args[LF_MAX_ARGS] = {OP("add", V(x), V(c)), OP("sum", V(x), N(1), B(1))}, n;
    assert_int_equal(lf_graph_op(&g, NULL, LF_OP_guard, args, NULL, &n), LF_OK);
    assert_true(independent(n));
    args[1] = OP("unsqueeze", V(x), N(0));
    assert_int_equal(lf_graph_op(&g, NULL, LF_OP_guard, args, NULL, &n), LF_ERR_MODEL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(pointwise_shapes),
        TEST(product_shapes),
        TEST(dtypes), TEST(promotion), TEST(types_of_ops),
        TEST(reduce_shapes),
        TEST(normalize_shapes),
        TEST(pool_shapes),
        TEST(view_shapes),
        TEST(numbers_of_expressions),
        TEST(spans),
        TEST(affines_and_windows),
        TEST(what_is_fixed),
        TEST(rows_that_are_apart),
        TEST(rows_that_are_left_out),
        TEST(rows_that_mix),
        TEST(rows_over_layer_norm_of_all),
        TEST(rows_as_a_weight),
        TEST(rows_against_other_axes),
        TEST(rows_of_higher_rank),
        TEST(rows_of_one),
        TEST(rows_need_their_name_alone),
        TEST(rows_need_rank_2),
        TEST(rows_need_an_input),
        TEST(rows_of_wide_constants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
