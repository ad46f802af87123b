/* SPDX-License-Identifier: Apache-2.0 */
/* Models that go through every way the CPU executor has. */
#ifndef LF_TESTS_CPU_MODELS_H
#define LF_TESTS_CPU_MODELS_H

#include <stdbool.h>
#include <stdint.h>

/* Models over a batch B, with {N} outputs, {K} inputs, {G} a divisor of N. */
typedef struct cpu_model {
    const char *name, *text;
    int64_t least;   /* the smallest N (and K) it works for */
    bool columns;    /* rows see each other */
    double tolerance;
} cpu_model;

#define X "input x f32[B, {K}]\n"
#define LINEAR X "param w f32[{N}, {K}]\nparam bias f32[{N}]\na = linear(x, w, bias)\n"
#define AFFINE "param g f32[{N}]\nparam h f32[{N}]\n"
#define RUNNING "param m f32[{N}]\nparam var f32[{N}]\n"
#define SIBLINGS                                                                                                       \
    X "param w f32[{N}, {K}]\nparam v f32[{N}, {K}]\nparam t f32[{K}, {N}]\nparam bias f32[{N}]\n"
#define DEEP "input x f32[B, 5, {K}]\nparam w f32[{N}, {K}]\nparam bias f32[{N}]\na = linear(x, w, bias)\n"

static const cpu_model models[] = {
    {"linear", LINEAR "return a\n", 1, false, 1e-5},
    {"no_bias", X "param w f32[{N}, {K}]\na = linear(x, w)\nreturn a\n", 1, false, 1e-5},
    {"gelu_softmax", LINEAR "b = gelu(a)\nc = softmax(b, dim=1)\nreturn c\n", 1, false, 1e-4},
    {"lse_chain", LINEAR "b = logsumexp(a, dim=1, keepdim=true)\nc = leaky_relu(b)\nd = gelu(c)\nreturn d\n", 1, false,
     1e-4},
    {"mean_residual",
     LINEAR "param s f32[{N}]\nb = sub(a, s)\nc = mean(b, dim=1, keepdim=true)\nd = logsumexp(c, dim=1, keepdim=true)\n"
            "e = gelu(d)\nf = add(e, x)\nreturn f\n",
     1, false, 1e-4},
    {"log_softmax", LINEAR "b = log_softmax(a, dim=-1)\nreturn b\n", 1, false, 1e-4},
    {"row_sums",
     LINEAR "b = sum(a, dim=1)\nc = max(a, dim=1)\nd = min(a, dim=1)\ne = add(b, c)\nf = sub(e, d)\nreturn f\n", 1,
     false, 1e-4},
    {"layer_norm", LINEAR AFFINE "b = layer_norm(a, [{N}], g, h)\nc = silu(b)\nreturn c\n", 1, false, 2e-4},
    {"rms_norm", LINEAR "param g f32[{N}]\nb = rms_norm(a, [{N}], g, eps=0.001)\nreturn b\n", 1, false, 1e-4},
    {"group_norm", LINEAR AFFINE "b = group_norm(a, {G}, g, h)\nc = hardtanh(b, -2, 2)\nreturn c\n", 1, false, 1e-3},
    {"two_norms",
     LINEAR AFFINE "b = group_norm(a, {G})\nc = layer_norm(b, [{N}], g, h)\nd = softmax(c, dim=1)\nreturn d\n", 1,
     false, 1e-3},
    {"batch_norm_eval", LINEAR AFFINE RUNNING "b = batch_norm(a, m, var, g, h)\nc = relu(b)\nreturn c\n", 1, false,
     1e-4},
    {"batch_norm_train",
     LINEAR AFFINE RUNNING "b = batch_norm(a, m, var, g, h, training=true)\nc = relu(b)\nreturn c\n", 1, true, 2e-3},
    {"batch_norm_bare",
     "input x f32[B, {N}]\n" RUNNING "b = batch_norm(x, m, var, training=true)\nc = softmax(b, dim=1)\nreturn c\n", 1,
     true, 2e-3},
    {"max_pool", LINEAR "b = max_pool1d(a, 3, 2, 1)\nc = sum(b, dim=1)\nreturn c\n", 3, false, 1e-4},
    {"max_pool_wide", LINEAR "b = max_pool1d(a, 2, 1, 0, 3)\nreturn b\n", 5, false, 1e-5},
    {"max_pool_ceil", LINEAR "b = max_pool1d(a, 4, 3, 2, 1, true)\nreturn b\n", 4, false, 1e-5},
    {"avg_pool", LINEAR "b = avg_pool1d(a, 3, 2, 1)\nc = tanh(b)\nreturn c\n", 3, false, 1e-4},
    {"avg_pool_ceil", LINEAR "b = avg_pool1d(a, 4, 3, 2, true)\nc = avg_pool1d(a, 4, 3, 2, true, false)\nreturn b, c\n",
     4, false, 1e-4},
    {"avg_pool_all", LINEAR "b = avg_pool1d(a, {N})\nreturn b\n", 1, false, 1e-4},
    {"sum_rows", LINEAR "b = sum(a, dim=0)\nreturn b\n", 1, true, 1e-4},
    {"column_reductions",
     LINEAR "b = mean(a, dim=0, keepdim=true)\nc = max(a, dim=0)\nd = add(a, b)\ne = sub(d, c)\nreturn e\n", 1, true,
     1e-4},
    {"lse_rows", "input x f32[B, {N}]\nb = logsumexp(x, dim=0)\nc = exp(b)\nreturn c\n", 1, true, 1e-4},
    {"softmax_returned", LINEAR "b = softmax(a, dim=1)\nc = softmax(b, dim=0)\nreturn c, a\n", 1, true, 1e-3},
    {"softmax_rows", LINEAR "b = softmax(a, dim=0)\nreturn b\n", 1, true, 1e-3},
    {"sum_all", LINEAR "b = sum(a)\nc = mean(a, dim=[0, 1])\nd = add(b, c)\nreturn d\n", 1, true, 1e-3},
    {"operands",
     LINEAR "input r f32[B, 1]\ninput full f32[B, {N}]\nparam col f32[{N}]\nparam one f32[1]\nb = mul(a, r)\n"
            "c = add(b, full, alpha=0.5)\nd = div(c, 3)\ne = maximum(d, col)\nf = minimum(e, one)\nreturn f\n",
     1, false, 1e-4},
    {"two_linears",
     LINEAR
     "param w2 f32[{K}, {N}]\nparam b2 f32[{K}]\nb = gelu(a)\nc = linear(b, w2, b2)\nd = softmax(c, dim=1)\nreturn d\n",
     1, false, 2e-3},
    {"three_linears",
     LINEAR "param w2 f32[{K}, {N}]\nparam w3 f32[10, {K}]\nb = tanh(a)\nc = linear(b, w2)\nd = tanh(c)\n"
            "e = linear(d, w3)\nf = log_softmax(e, dim=1)\nreturn f\n",
     1, false, 2e-3},
    {"same_weight_twice",
     "input x f32[B, {N}]\nparam w f32[{N}, {N}]\na = linear(x, w)\nb = tanh(a)\nc = linear(b, w)\nreturn c\n", 1,
     false, 2e-3},
    {"prenorm",
     X "param p f32[{K}]\nparam q f32[{K}]\nparam w f32[{N}, {K}]\nparam bias f32[{N}]\n"
       "n = layer_norm(x, [{K}], p, q)\na = linear(n, w, bias)\nc = silu(a)\nd = mean(c, dim=1, keepdim=true)\n"
       "e = add(x, d)\nreturn e\n",
     2, false, 1e-3},
    {"several_outputs", LINEAR "b = softmax(a, dim=1)\nc = mean(a, dim=1)\nreturn a, b, c\n", 1, false, 1e-4},
    {"returned_inputs", LINEAR "b = relu(a)\nreturn x, b, bias, b\n", 1, false, 1e-5},
    {"constants", X "a = mul(x, 0)\nb = add(a, 2)\nc = sum(b, dim=1)\nreturn b, c\n", 1, false, 1e-5},
    {"matmul_inputs", X "input y f32[{K}, {N}]\na = matmul(x, y)\nb = relu(a)\nreturn b\n", 1, false, 1e-5},
    {"linear_inputs", X "input y f32[{N}, {K}]\na = linear(x, y)\nb = softmax(a, dim=1)\nreturn b\n", 1, false, 1e-3},
    {"matmul_param", X "param y f32[{K}, {N}]\na = matmul(x, y)\nb = relu(a)\nreturn b\n", 1, false, 1e-5},
    {"residual", X "input y f32[B, {N}]\nparam w f32[{N}, {K}]\na = linear(x, w)\nb = add(a, y)\nreturn b\n", 1, false,
     1e-5},
    {"matmul_folded", X "param y f32[{K}, {N}]\ns = mul(y, 3)\nt = exp(s)\na = matmul(x, t)\nreturn a\n", 1, false,
     1e-4},
    {"few_columns",
     X "param y f32[{K}, 3]\na = matmul(x, y)\nb = softmax(a, dim=1)\nparam w f32[1, {K}]\nc = linear(x, w)\n"
       "d = mul(b, c)\nreturn d\n",
     1, false, 1e-3},
    {"few_columns_inputs",
     X "input y f32[{K}, 2]\ninput z f32[3, {K}]\na = matmul(x, y)\nb = linear(x, z)\nreturn a, b\n", 1, false, 1e-5},
    {"deep_norm", DEEP AFFINE "b = layer_norm(a, [{N}], g, h)\nreturn b\n", 2, false, 1e-3},
    {"deep_norm_two", DEEP "b = layer_norm(a, [5, {N}])\nc = gelu(b)\nreturn c\n", 1, false, 1e-3},
    {"deep_across", DEEP "b = softmax(a, dim=1)\nc = sum(a, dim=1)\nreturn b, c\n", 1, false, 1e-3},
    {"deep_max", DEEP "b = max(a, dim=[1, 2])\nc = mean(a, dim=2)\nreturn b, c\n", 1, false, 1e-4},
    {"deep_first_last", DEEP "b = sum(a, dim=[0, 2])\nc = mean(a, dim=0)\nreturn b, c\n", 1, true, 1e-3},
    {"instance_norm", DEEP "param g f32[5]\nparam h f32[5]\nb = instance_norm(a, None, None, g, h)\nreturn b\n", 2,
     false, 1e-3},
    {"group_norm_deep", DEEP "param g f32[5]\nparam h f32[5]\nb = group_norm(a, 1, g, h)\nreturn b\n", 2, false, 1e-3},
    {"batch_norm_deep",
     DEEP "param g f32[5]\nparam m f32[5]\nparam var f32[5]\nb = batch_norm(a, m, var, g, training=true)\nc = relu(b)\n"
          "return c\n",
     2, true, 1e-3},
    {"batch_norm_deep_eval",
     DEEP "param g f32[5]\nparam m f32[5]\nparam var f32[5]\nb = batch_norm(a, m, var, g)\nreturn b\n", 2, false, 1e-4},
    {"transposed", DEEP "b = transpose(a, 1, 2)\nc = softmax(b, dim=2)\nd = relu(c)\nreturn d\n", 1, false, 1e-3},
    {"transposed_linear",
     "input x f32[B, {K}, 5]\nt = transpose(x, 1, 2)\nparam w f32[{N}, {K}]\na = linear(t, w)\nb = tanh(a)\nreturn b\n",
     1, false, 1e-4},
    {"views", DEEP "b = reshape(a, [-1, {N}])\nc = relu(b)\nd = unsqueeze(c, 1)\ne = flatten(d)\nreturn d, e\n", 1,
     true, 1e-5},
    {"pool_deep", DEEP "b = avg_pool1d(a, 2, 2)\nc = max_pool1d(a, 2, 1, 1)\nreturn b, c\n", 2, false, 1e-4},
    {"gated", SIBLINGS "g = linear(x, w)\ns = silu(g)\nu = linear(x, v)\nh = mul(s, u)\nreturn h\n", 1, false, 1e-4},
    {"gated_down",
     SIBLINGS "param d f32[{K}, {N}]\ng = linear(x, w, bias)\ns = gelu(g)\nu = matmul(x, t)\nh = mul(s, u)\n"
              "y = linear(h, d)\nreturn y\n",
     1, false, 2e-3},
    {"gates", SIBLINGS "g = linear(x, w)\nr = relu(g)\nu = linear(x, v, bias)\ns = sigmoid(u)\nh = mul(r, s)\n"
                       "m = linear(x, w)\ni = add(h, m)\nj = mean(i, dim=1)\nreturn h, j\n",
     1, false, 1e-3},
    {"qkv",
     SIBLINGS "param few f32[3, {K}]\nparam odd f32[8191, {K}]\nparam b f32[8191]\nq = linear(x, w, bias)\n"
              "k = linear(x, few)\nl = matmul(x, t)\no = linear(x, odd, b)\nm = max(o, dim=1)\nreturn q, k, l, m\n",
     1, false, 1e-4},
    {"heads",
     SIBLINGS "r = relu(x)\np = linear(r, w)\ns = softmax(p, dim=1)\nq = matmul(r, t)\n"
              "l = logsumexp(q, dim=1, keepdim=true)\nparam few f32[5, {K}]\nf = linear(r, few)\nreturn s, l, f\n",
     1, false, 1e-3},
    {"narrow_heads",
     X "param a f32[2, {K}]\nparam b f32[2, {K}]\nparam c f32[7, {K}]\nparam d f32[7]\np = linear(x, a)\n"
       "q = linear(x, b)\nr = mul(p, q)\ns = linear(x, c, d)\nt = softmax(s, dim=1)\nreturn r, t\n",
     1, false, 1e-4},
    {"deep_gated",
     "input x f32[B, {K}, 5]\nt = transpose(x, 1, 2)\nparam w f32[{N}, {K}]\nparam v f32[{N}, {K}]\na = linear(t, w)\n"
     "b = linear(t, v)\nc = sigmoid(b)\nd = mul(a, c)\nreturn d\n",
     1, false, 1e-4},
    {"bare_softmax", "input x f32[B, {N}]\nb = softmax(x, dim=1)\nreturn b\n", 1, false, 1e-5},
    {"bare_chain",
     "input x f32[B, {N}]\n" AFFINE
     "b = layer_norm(x, [{N}], g, h)\nc = add(b, x)\nd = rms_norm(c, [{N}], eps=0.001)\nreturn d\n",
     2, false, 1e-3},
    {"bare_one_row", "input x f32[{N}]\nb = softmax(x, dim=0)\nc = sum(b)\nreturn b, c\n", 1, false, 1e-4},
};
enum { MODELS = sizeof models / sizeof models[0] };

#endif
