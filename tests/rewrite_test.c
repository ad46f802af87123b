/* SPDX-License-Identifier: Apache-2.0 */
/* Every rule: the graph before, the graph after with that rule alone, and both evaluated. A test bears its rule's name.
 */
#include "rewrite_support.h"

#include <assert.h>

#define X        "input x f32[B, 4]; "
#define XY       X "input y f32[B, 4]; "
#define LINEAR   X "param w f32[6, 4]; param b f32[6]; a = linear(x, w, b); "
#define LINEAR_P X "param w f32[6, 4]; param b f32[6]; param p f32[6]; a = linear(x, w, b); "
#define LINEAR3  "input x f32[B, S, 4]; param w f32[6, 4]; param b f32[6]; a = linear(x, w, b); "
#define BARE_P   X "param w f32[6, 4]; param p f32[6]; a = linear(x, w); "

/* Statements are separated by "; ". */
typedef struct example {
    const char *rules; /* the rule, and after a comma those it needs here: "name,+other" */
    const char *before;
    const char *after; /* as printed, without inputs and parameters */
} example;

static const example examples[] = {
    {"fold_constants,+fold_bias,+fold_scale", BARE_P "c = sub(a, 2); d = div(c, 4); return d",
     "v4 = full([6], -0.5); v5 = div(w, 4); d = linear(x, v5, v4); return d"},
    {"fold_constants,+fold_bias,+sum_of_linear",
     BARE_P "c = sub(a, 2); d = reshape(c, [-1, 2, 3]); e = sum(d, dim=1); return e",
     "v3 = reshape(w, shape=[2, 3, 4]); v4 = sum(v3, dim=0, keepdim=true); v5 = squeeze(v4, dim=0); "
     "v6 = full([3], -4); v7 = linear(x, v5, v6); e = guard(v7, v7); return e"},
    {"fold_constants,+fold_bias,+fold_scale,+sum_of_linear",
     BARE_P "c = add(a, 0); d = neg(c); e = sum(d, dim=1); return e",
     "v3 = neg(w); v4 = sum(v3, dim=0, keepdim=true); v5 = full([1], 0); v6 = linear(x, v4, v5); "
     "v7 = squeeze(v6, dim=1); e = guard(v7, v7); return e"},
    {"reduce_in_turn", LINEAR "c = mean(a); return c",
     "a = linear(x, w, b); v4 = mean(a, dim=1, keepdim=true); c = mean(v4, dim=[0, 1]); return c"},
    {"reduce_in_turn", LINEAR3 "c = relu(a); d = logsumexp(c, dim=[1, 2]); return d",
     "a = linear(x, w, b); c = relu(a); v5 = logsumexp(c, dim=2, keepdim=true); d = logsumexp(v5, dim=[1, 2]); return "
     "d"},
    {"add_zero", X "a = add(x, -0.0); b = add(-0.0, a); c = sub(b, 0, alpha=3); d = relu(c); return d",
     "d = relu(x); return d"},
    {"add_zero", X "a = add(x, 0); b = exp(a); c = add(b, 0); d = add(0, c); e = sub(d, 0, alpha=-1); return e",
     "a = add(x, 0); e = exp(a); return e"},
    {"mul_one", X "a = mul(x, 1); b = mul(1, a); c = div(b, 1); d = relu(c); return d", "d = relu(x); return d"},
    {"pow_one", X "a = pow(x, 1); b = relu(a); return b", "b = relu(x); return b"},
    {"silu_by_hand", X "a = sigmoid(x); b = mul(a, x); return b", "b = silu(x); return b"},
    {"swish_by_hand", X "a = mul(1.702, x); b = sigmoid(a); c = mul(x, b); return c",
     "c = swish(x, beta=1.702); return c"},
    {"swish_by_hand", X "a = div(x, -4); b = sigmoid(a); c = mul(b, x); return c",
     "c = swish(x, beta=-0.25); return c"},
    {"gelu_by_hand",
     X "a = mul(x, 0.5); b = div(x, 1.4142135623730951); c = erf(b); d = add(c, 1); e = mul(a, d); return e",
     "e = gelu(x); return e"},
    {"gelu_by_hand",
     X "a = pow(x, 3); b = mul(a, 0.044715); c = add(x, b); d = mul(0.7978845608028654, c); e = tanh(d); "
       "f = add(1, e); g = mul(0.5, f); h = mul(x, g); return h",
     "h = gelu(x, approximate=\"tanh\"); return h"},
    {"gelu_by_hand",
     X "p = abs(x); a = pow(p, 3); b = add(p, a, alpha=0.044715); d = mul(b, 0.7978845608028654); e = tanh(d); "
       "f = add(e, 1); g = mul(p, f); h = div(g, 2); return h",
     "p = abs(x); h = gelu(p, approximate=\"tanh\"); return h"},
    {"gelu_by_hand",
     X "a = mul(x, 0.7978845608028654); b = mul(x, 0.044715); c = mul(b, x); d = add(c, 1); e = mul(a, d); "
       "f = tanh(e); g = add(f, 1); h = mul(x, 0.5); i = mul(h, g); return i",
     "i = gelu(x, approximate=\"tanh\"); return i"},
    {"rms_norm_by_hand",
     X "a = pow(x, 2); b = mean(a, dim=-1, keepdim=true); c = add(b, 1e-6); d = rsqrt(c); e = mul(x, d); return e",
     "e = rms_norm(x, normalized_shape=[4], eps=1e-06); return e"},
    {"rms_norm_by_hand",
     X "h = to(x, dtype=\"bf16\"); f = to(h, dtype=\"f32\"); a = mul(f, f); b = mean(a, dim=1, keepdim=true); "
       "c = add(0.125, b); d = pow(c, -0.5); e = mul(d, h); g = to(e, dtype=\"bf16\"); return g",
     "h = to(x, dtype=\"bf16\"); f = to(h, dtype=\"f32\"); e = rms_norm(f, normalized_shape=[4], eps=0.125); "
     "g = to(e, dtype=\"bf16\"); return g"},
    {"rms_norm_by_hand",
     X "a = pow(x, 2); b = mean(a, dim=1, keepdim=true); c = add(b, 0.5); d = sqrt(c); e = div(x, d); return e",
     "e = rms_norm(x, normalized_shape=[4], eps=0.5); return e"},
    {"leaky_relu_one", X "a = leaky_relu(x, 1); b = relu(a); return b", "b = relu(x); return b"},
    {"clamp_open", X "a = clamp(x, min=-inf, max=inf); b = relu(a); return b", "b = relu(x); return b"},
    {"extremum_of_same", X "a = maximum(x, x); b = minimum(a, a); c = exp(b); return c", "c = exp(x); return c"},
    {"extremum_as_clamp", X "a = maximum(x, -1); b = minimum(0.5, a); return b",
     "a = clamp(x, min=-1); b = clamp(a, max=0.5); return b"},
    {"through_held", X "a = clamp(x, 0.5, 0.5); b = gelu(a); c = sub(2, b); return c",
     "c = clamp(x, min=1.6542687693629934, max=1.6542687693629934); return c"},
    {"clamp_of_clamp", X "a = clamp(x, min=-1, max=1); b = relu(a); return b", "b = clamp(x, min=0, max=1); return b"},
    {"clamp_of_clamp",
     X "a = relu(x); b = clamp(a, min=-3); c = hardtanh(b, min_val=-1, max_val=6); d = clamp(c, max=9); "
       "return d",
     "d = clamp(x, min=0, max=6); return d"},
    {"clamp_of_clamp", X "a = clamp(x, min=2, max=1); b = clamp(a, min=-5, max=-4); return b",
     "b = clamp(x, min=-4, max=-4); return b"},
    {"clamp_of_clamp", X "a = clamp(x, min=-2); b = relu(a); return b", "b = relu(x); return b"},
    {"idempotent", X "a = abs(x); b = abs(a); return b", "b = abs(x); return b"},
    {"idempotent", X "a = clamp(x, min=1); b = clamp(a, min=1); c = clamp(b, min=2); return c",
     "a = clamp(x, min=1); c = clamp(a, min=2); return c"},
    {"of_nonnegative", X "a = exp(x); b = abs(a); c = leaky_relu(b, 0.5); d = relu(c); return d",
     "d = exp(x); return d"},
    {"of_nonnegative", X "a = hardtanh(x, min_val=0.5, max_val=6); b = abs(a); return b",
     "b = hardtanh(x, min_val=0.5, max_val=6); return b"},
    {"of_nonnegative", X "a = pow(x, 2); b = abs(a); return b", "b = pow(x, exponent=2); return b"},
    {"neg_of_neg", X "a = neg(x); b = neg(a); c = exp(b); return c", "c = exp(x); return c"},
    {"abs_of_neg", X "a = neg(x); b = abs(a); return b", "b = abs(x); return b"},
    {"leaky_relu_twice", X "a = leaky_relu(x, 0.25); b = leaky_relu(a, 0.5); return b",
     "b = leaky_relu(x, negative_slope=0.125); return b"},
    {"leaky_relu_twice", X "a = leaky_relu(x, 4); b = leaky_relu(a, -3); return b",
     "b = leaky_relu(x, negative_slope=-12); return b"},
    {"leaky_relu_twice", X "a = leaky_relu(x, -2); b = leaky_relu(a, 3); return b",
     "b = leaky_relu(x, negative_slope=-2); return b"},
    {"leaky_relu_twice", X "a = leaky_relu(x, 0); b = leaky_relu(a, 3); c = leaky_relu(b, 0); return c",
     "c = leaky_relu(x, negative_slope=0); return c"},
    {"drop_clone", X "a = clone(x); b = relu(a); return b", "b = relu(x); return b"},
    {"drop_dropout", X "a = dropout(x, p=0.5, training=false); b = relu(a); return b", "b = relu(x); return b"},
    {"same_view", X "a = reshape(x, [-1, 4]); b = flatten(a, 1, 1); c = relu(b); return c", "c = relu(x); return c"},
    {"view_of_view",
     X "a = unsqueeze(x, 1); b = reshape(a, [-1, 2, 2]); c = flatten(b, 1); d = unsqueeze(c, 2); return d",
     "d = unsqueeze(x, dim=2); return d"},
    {"view_of_view",
     "input x f32[B, S, 4]; a = unsqueeze(x, 1); b = unsqueeze(a, 0); c = squeeze(b, 2); d = exp(c); return d",
     "c = unsqueeze(x, dim=0); d = exp(c); return d"},
    {"transpose_pair", "input x f32[B, 3, 4]; a = transpose(x, 1, 2); b = transpose(a, -1, 1); c = relu(b); return c",
     "c = relu(x); return c"},
    {"transpose_of_ones", "input x f32[B, 1, 4]; a = transpose(x, 1, 2); b = relu(a); return b",
     "a = reshape(x, shape=[-1, 4, 1]); b = relu(a); return b"},
    {"view_goes_out",
     LINEAR_P "c = unsqueeze(a, 1); d = mul(c, p); e = add(2, d); f = relu(e); g = squeeze(f, 1); return g",
     "a = linear(x, w, b); v5 = mul(a, p); v7 = add(2, v5); v8 = relu(v7); f = unsqueeze(v8, dim=1); "
     "g = squeeze(f, dim=1); return g"},
    {"view_goes_out", LINEAR "c = reshape(a, [-1, 2, 3]); d = tanh(c); return d",
     "a = linear(x, w, b); v4 = tanh(a); d = reshape(v4, shape=[-1, 2, 3]); return d"},
    {"slice_of_all", X "a = slice(x, 1, 0, 9); b = relu(a); return b", "b = relu(x); return b"},
    {"slice_of_slice", X "a = slice(x, 1, 1); b = slice(a, -1, 0, -1, 2); c = relu(b); return a, c",
     "a = slice(x, dim=1, start=1); b = slice(x, dim=1, start=1, end=2); c = relu(b); return a, c"},
    {"slice_of_slice", "input x f32[B, 30]; a = slice(x, 1, 3, 29, 2); b = slice(a, 1, 1, 12, 3); return b",
     "b = slice(x, dim=1, start=5, end=24, step=6); return b"},
    {"slice_of_view",
     "input x f32[B, 12]; a = reshape(x, [-1, 3, 2, 2]); b = slice(a, 1, 1, 3); c = exp(b); return c",
     "v1 = slice(x, dim=1, start=4, end=12); b = reshape(v1, shape=[-1, 2, 2, 2]); c = exp(b); return c"},
    {"slice_of_view",
     "input x f32[B, 3, 8]; a = reshape(x, [-1, 3, 4, 2]); b = slice(a, 1, 0, 3, 2); c = slice(a, 2, 3); "
     "d = exp(b); e = exp(c); return d, e",
     "v1 = slice(x, dim=1, start=0, end=3, step=2); b = reshape(v1, shape=[-1, 2, 4, 2]); "
     "v3 = slice(x, dim=2, start=6, end=8); c = unsqueeze(v3, dim=2); d = exp(b); e = exp(c); "
     "return d, e"},
    {"slice_of_transpose",
     "input x f32[B, 3, 4]; a = relu(x); b = transpose(a, 1, 2); c = slice(b, 1, 1, 3); d = exp(c); return d",
     "a = relu(x); v2 = slice(a, dim=2, start=1, end=3); c = transpose(v2, dim0=1, dim1=2); d = exp(c); "
     "return d"},
    {"slice_goes_in",
     X "param p f32[4]; a = mul(x, p); b = add(a, 1); c = slice(b, 1, 0, 2); d = slice(b, 1, 2); e = mul(c, d); "
       "return e",
     "v3 = slice(x, dim=1, start=0, end=2); v4 = slice(p, start=0, end=2); "
     "v5 = mul(v3, v4); c = add(v5, 1); v7 = slice(x, dim=1, start=2, end=4); "
     "v8 = slice(p, start=2, end=4); v9 = mul(v7, v8); d = add(v9, 1); e = mul(c, d); return e"},
    {"slice_of_linear", LINEAR "c = slice(a, 1, 0, 2); d = slice(a, 1, 2, 6); e = silu(c); return d, e",
     "v3 = slice(w, start=0, end=2); v4 = slice(b, start=0, end=2); "
     "c = linear(x, v3, v4); v6 = slice(w, start=2, end=6); "
     "v7 = slice(b, start=2, end=6); d = linear(x, v6, v7); e = silu(c); return d, e"},
    {"slice_of_rows",
     "input x f32[B, 3, 4]; param w f32[5, 4]; param g f32[5]; a = linear(x, w); b = layer_norm(a, [5], g); "
     "c = slice(b, 1, 0, 1); return c",
     "v3 = slice(x, dim=1, start=0, end=1); v4 = linear(v3, w); c = layer_norm(v4, normalized_shape=[5], "
     "weight=g); return c"},
    {"view_goes_out",
     LINEAR "c = reshape(a, [-1, 2, 3]); d = gt(c, 0); e = where(d, c, 0.5); f = exp(c); g = add(e, f); return g",
     "a = linear(x, w, b); v5 = gt(a, 0); v7 = where(v5, a, 0.5); v8 = exp(a); v9 = add(v7, v8); "
     "g = reshape(v9, shape=[-1, 2, 3]); return g"},
    {"norm_of_known",
     X "param m f32[4]; param var f32[4]; param g f32[4]; param h f32[4]; a = batch_norm(x, m, var, g, h); "
       "return a",
     "v6 = add(var, 1e-05); v7 = rsqrt(v6); v8 = mul(g, v7); v9 = sub(x, m); v10 = mul(v9, v8); "
     "a = add(v10, h); return a"},
    {"norm_of_known",
     "input x f32[B, 3, 4]; param m f32[3]; param var f32[3]; "
     "a = instance_norm(x, m, var, use_input_stats=false); return a",
     "v4 = add(var, 1e-05); v5 = rsqrt(v4); v6 = unsqueeze(m, dim=1); v7 = sub(x, v6); "
     "v8 = unsqueeze(v5, dim=1); a = mul(v7, v8); return a"},
    {"matmul_as_linear", X "param w f32[4, 3]; a = matmul(x, w); return a",
     "v2 = transpose(w, dim0=0, dim1=1); a = linear(x, v2); return a"},
    {"matmul_as_linear", X "param w f32[3, 4]; t = transpose(w, 0, 1); a = matmul(x, t); return a",
     "a = linear(x, w); return a"},
    {"fold_bias", LINEAR_P "c = add(a, p); d = sub(c, 3); e = sub(p, d); return e",
     "v4 = add(b, p); v6 = sub(v4, 3); v7 = sub(p, v6); v8 = neg(w); e = linear(x, v8, v7); return e"},
    {"fold_bias", BARE_P "c = add(a, p); d = add(p, c, alpha=1); e = sub(d, p, alpha=2); return e",
     "v3 = add(p, p); v4 = sub(v3, p, alpha=2); e = linear(x, w, v4); return e"},
    {"fold_bias", BARE_P "c = sub(a, 2); return c",
     "v4 = full([6], 0); v5 = sub(v4, 2); c = linear(x, w, v5); return c"},
    {"fold_scale", LINEAR "c = mul(a, -1); d = div(c, 3); e = neg(d); f = mul(0.5, e); return f",
     "v4 = mul(b, -1); v5 = mul(w, -1); v7 = div(v4, 3); v8 = div(v5, 3); v9 = neg(v7); v10 = neg(v8); v12 = "
     "mul(v9, 0.5); v13 = mul(v10, 0.5); f = linear(x, v13, v12); return f"},
    {"fold_scale", BARE_P "c = mul(a, -0.25); return c", "v4 = mul(w, -0.25); c = linear(x, v4); return c"},
    {"fold_gain", LINEAR_P "c = mul(a, p); d = div(c, 0.5); e = mul(3, d); return e",
     "v4 = mul(b, p); v5 = unsqueeze(p, dim=1); v6 = mul(w, v5); v8 = div(v4, 0.5); v9 = div(v6, 0.5); "
     "v11 = mul(v8, 3); v12 = mul(v9, 3); v13 = linear(x, v12, v11); e = guard(v13, v13); return e"},
    {"fold_gain", BARE_P "c = div(a, p); return c",
     "v3 = unsqueeze(p, dim=1); v4 = div(w, v3); v5 = linear(x, v4); c = guard(v5, v5); return c"},
    {"fold_input_scale",
     X "param w f32[6, 4]; param b f32[6]; param s f32[4]; c = mul(x, s); d = div(c, 4); a = linear(d, w, b); "
       "return a",
     "v5 = div(w, 4); v6 = mul(v5, s); a = linear(x, v6, b); return a"},
    {"merge_linears", LINEAR "param v f32[2, 6]; param c f32[2]; d = linear(a, v, c); return d",
     "v5 = unsqueeze(b, dim=0); v6 = linear(v5, v, c); v7 = squeeze(v6, dim=0); v8 = matmul(v, w); "
     "v9 = linear(x, v8, v7); d = guard(v9, v9); return d"},
    {"merge_linears", X "param w f32[6, 4]; param v f32[2, 6]; a = linear(x, w); d = linear(a, v); return d",
     "v3 = matmul(v, w); v4 = linear(x, v3); d = guard(v4, v4); return d"},
    {"sum_of_linear", LINEAR "c = sum(a, dim=1); return c",
     "v3 = sum(w, dim=0, keepdim=true); v4 = sum(b, dim=0, keepdim=true); v5 = linear(x, v3, v4); "
     "v6 = squeeze(v5, dim=1); c = guard(v6, v6); return c"},
    {"sum_of_linear", LINEAR3 "c = mean(a, dim=-1, keepdim=true); return c",
     "v3 = mean(w, dim=0, keepdim=true); v4 = mean(b, dim=0, keepdim=true); v5 = linear(x, v3, v4); "
     "c = guard(v5, v5); return c"},
    {"sum_of_linear", LINEAR "c = reshape(a, [-1, 2, 3]); d = mean(c, dim=2); return d",
     "v3 = reshape(w, shape=[2, 3, 4]); v4 = mean(v3, dim=1, keepdim=true); v5 = squeeze(v4, dim=1); "
     "v6 = reshape(b, shape=[2, 3]); v7 = mean(v6, dim=1, keepdim=true); v8 = squeeze(v7, dim=1); "
     "v9 = linear(x, v5, v8); d = guard(v9, v9); return d"},
    {"sum_of_linear", LINEAR "c = reshape(a, [-1, 1, 2, 3]); d = sum(c, dim=[1, 2], keepdim=true); return d",
     "v3 = reshape(w, shape=[2, 3, 4]); v4 = sum(v3, dim=0, keepdim=true); v5 = squeeze(v4, dim=0); "
     "v6 = reshape(b, shape=[2, 3]); v7 = sum(v6, dim=0, keepdim=true); v8 = squeeze(v7, dim=0); "
     "v9 = linear(x, v5, v8); v10 = reshape(v9, shape=[-1, 1, 1, 3]); d = guard(v10, v10); return d"},
    {"sum_through_scale",
     XY "param w f32[4, 4]; a = linear(x, w); m = max(y, dim=1, keepdim=true); c = mul(m, a); e = neg(c); "
        "f = div(e, m); g = sum(f, dim=1, keepdim=true); return g",
     "a = linear(x, w); m = max(y, dim=1, keepdim=true); v5 = sum(a, dim=1, keepdim=true); v6 = mul(m, v5); "
     "v7 = neg(v6); v8 = div(v7, m); g = guard(v8, v8); return g"},
    {"avg_pool_of_linear", LINEAR "c = avg_pool1d(a, kernel_size=2); return c",
     "v3 = transpose(w, dim0=0, dim1=1); v4 = avg_pool1d(v3, kernel_size=2); v5 = unsqueeze(b, dim=0); "
     "v6 = avg_pool1d(v5, kernel_size=2); v7 = squeeze(v6, dim=0); v8 = transpose(v4, dim0=0, dim1=1); "
     "v9 = linear(x, v8, v7); c = guard(v9, v9); return c"},
    {"avg_pool_of_linear",
     LINEAR "c = unsqueeze(a, 1); "
            "d = avg_pool1d(c, kernel_size=3, stride=2, padding=1, count_include_pad=false); return d",
     "v3 = transpose(w, dim0=0, dim1=1); "
     "v4 = avg_pool1d(v3, kernel_size=3, stride=2, padding=1, count_include_pad=false); "
     "v5 = unsqueeze(b, dim=0); "
     "v6 = avg_pool1d(v5, kernel_size=3, stride=2, padding=1, count_include_pad=false); "
     "v7 = squeeze(v6, dim=0); v8 = transpose(v4, dim0=0, dim1=1); v9 = linear(x, v8, v7); "
     "v10 = unsqueeze(v9, dim=1); d = guard(v10, v10); return d"},
    {"avg_pool_of_linear",
     X "param w f32[6, 4]; a = linear(x, w); c = avg_pool1d(a, kernel_size=2, stride=3, padding=1); return c",
     "v2 = transpose(w, dim0=0, dim1=1); v3 = avg_pool1d(v2, kernel_size=2, stride=3, padding=1); "
     "v4 = transpose(v3, dim0=0, dim1=1); v5 = linear(x, v4); c = guard(v5, v5); return c"},
    {"max_of_one",
     "input x f32[B, 1]; a = max(x, dim=1, keepdim=true); b = min(a, dim=1); c = exp(b); return c",
     "b = squeeze(x, dim=1); c = exp(b); return c"},
    {"sum_of_one",
     "input x f32[B, 1]; a = logsumexp(x, dim=1, keepdim=true); b = mean(a, dim=1, keepdim=true); "
     "d = sum(b, dim=1); e = exp(d); return e",
     "d = squeeze(x, dim=1); e = exp(d); return e"},
    {"sum_of_one_exactly",
     "input x f32[B, 1]; a = logsumexp(x, dim=1, keepdim=true); b = mean(a, dim=1); d = exp(b); return d",
     "a = add(x, 0); v3 = squeeze(a, dim=1); b = add(v3, 0); d = exp(b); return d"},
    {"max_through_monotone", X "a = relu(x); b = neg(a); c = max(b, dim=1); return c",
     "v1 = min(x, dim=1); v2 = relu(v1); c = neg(v2); return c"},
    {"max_through_monotone", X "a = relu(x); b = reshape(a, [-1, 2, 2]); c = min(b, dim=2); return c",
     "v1 = reshape(x, shape=[-1, 2, 2]); v2 = min(v1, dim=2); c = relu(v2); return c"},
    {"max_through_monotone",
     X "a = mul(x, -2); b = sigmoid(a); c = sub(3, b); d = min(c, dim=1, keepdim=true); return d",
     "v3 = min(x, dim=1, keepdim=true); v4 = mul(v3, -2); v5 = sigmoid(v4); d = sub(3, v5); return d"},
    {"max_through_monotone",
     X "a = exp(x); b = sqrt(a); c = leaky_relu(b, 0.1); d = div(c, 3); e = max(d, dim=1); return e",
     "v2 = max(x, dim=1); v3 = exp(v2); v4 = sqrt(v3); v5 = leaky_relu(v4, negative_slope=0.1); "
     "e = div(v5, 3); return e"},
    {"minus_itself", LINEAR "c = max(a, dim=1, keepdim=true); d = sub(c, c); e = gelu(d); return e",
     "v3 = abs(x); v4 = sum(v3, dim=1, keepdim=true); v5 = abs(w); v6 = max(v5, dim=[0, 1]); v8 = mul(v6, 2); "
     "v9 = mul(v4, v8); v10 = abs(b); v11 = max(v10, dim=0); v12 = mul(v11, 2); v13 = add(v9, v12); "
     "v14 = guard(v13, v13); d = clamp(v14, min=0, max=0); e = gelu(d); return e"},
    {"minus_itself", LINEAR3 "c = leaky_relu(a, 2); d = mean(c, dim=2); e = sub(d, d); return e",
     "v3 = abs(x); v4 = sum(v3, dim=[1, 2], keepdim=true); v5 = abs(w); v6 = max(v5, dim=[0, 1]); "
     "v8 = mul(v6, 24); v9 = mul(v4, v8); v10 = abs(b); v11 = max(v10, dim=0); v12 = mul(v11, 24); "
     "v13 = add(v9, v12); v14 = squeeze(v13, dim=2); v15 = guard(v14, v14); v16 = clamp(v15, min=0, max=0); "
     "v17 = full([1, S], 0); e = add(v16, v17); return e"},
    {"softmax_of_one", "input x f32[B, 1]; a = softmax(x, dim=1); b = log_softmax(a, dim=1); return b",
     "v1 = guard(x, x); v2 = clamp(v1, min=1, max=1); a = guard(v2, v2); b = clamp(a, min=0, max=0); return b"},
    {"softmax_shift",
     X "param p f32[1]; a = add(x, p); b = softmax(a, dim=1); c = sub(b, 3); d = log_softmax(c, dim=-1); "
       "return d",
     "b = softmax(x, dim=1); d = log_softmax(b, dim=1); return d"},
    {"softmax_row_shift", X "a = max(x, dim=1, keepdim=true); b = sub(x, a); c = softmax(b, dim=1); return c",
     "a = max(x, dim=1, keepdim=true); v2 = softmax(x, dim=1); c = guard(v2, a); return c"},
    {"softmax_row_shift",
     XY "a = max(y, dim=1, keepdim=true); b = add(x, a); c = log_softmax(b, dim=1); d = max(c, dim=1); return d",
     "a = max(y, dim=1, keepdim=true); c = log_softmax(x, dim=1); v4 = max(c, dim=1); v5 = squeeze(a, dim=1); "
     "d = guard(v4, v5); return d"},
    {"logsumexp_shift", X "a = exp(x); b = add(2, a); c = logsumexp(b, dim=1, keepdim=true); return c",
     "a = exp(x); v3 = logsumexp(a, dim=1, keepdim=true); c = add(2, v3); return c"},
    {"exp_of_log_softmax", X "a = log_softmax(x, dim=-1); b = exp(a); return b", "b = softmax(x, dim=1); return b"},
    {"log_of_softmax", X "a = softmax(x, dim=1); b = log(a); return b",
     "v1 = log_softmax(x, dim=1); v3 = mul(v1, 3.911291340672746e+36); b = guard(v1, v3); return b"},
    {"log_of_softmax", X "a = softmax(x, dim=1); b = log(a); c = max(b, dim=1); return c",
     "b = log_softmax(x, dim=1); v3 = mul(b, 3.911291340672746e+36); v4 = max(b, dim=1); v5 = abs(v3); "
     "v6 = sum(v5, dim=1, keepdim=true); v7 = squeeze(v6, dim=1); c = guard(v4, v7); return c"},
    {"minus_logsumexp", X "a = logsumexp(x, dim=1, keepdim=true); b = sub(x, a); return b",
     "a = logsumexp(x, dim=1, keepdim=true); v2 = log_softmax(x, dim=1); b = guard(v2, a); return b"},
    {"minus_logsumexp", X "a = logsumexp(x, dim=1); b = unsqueeze(a, 1); c = sub(x, b); d = exp(c); return d",
     "a = logsumexp(x, dim=1); c = log_softmax(x, dim=1); v3 = exp(c); v4 = unsqueeze(a, dim=1); "
     "d = guard(v3, v4); return d"},
    {"common_subexpression",
     XY "a = add(x, y); b = add(y, x); c = logsumexp(a, dim=1); d = logsumexp(b, dim=-1); e = mul(c, d); "
        "return e",
     "a = add(x, y); c = logsumexp(a, dim=1); e = mul(c, c); return e"},
    {"dead_code", X "a = exp(x); b = relu(x); c = log(a); return b", "b = relu(x); return b"},
};
enum { EXAMPLES = sizeof examples / sizeof examples[0] };

/* The rule an example is of; the names live as long as the rules. */
static const lf_rule_info *rule_of(const example *e)
{
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(e->rules, ","), e->rules);
    return rule_named(name);
}

static void try_example(const example *e)
{
    const char *rule = rule_of(e)->name;
    model before;
    rewritten r;
    char rules[256], *text;
    snprintf(rules, sizeof rules, "none,+%s", e->rules);
    model_read(&before, e->before);
    model_rewrite(&before, (lf_rewrite_options){.rules = rules}, &r);
    text = computed_text(&r.m.g);
    if (strcmp(text, e->after) != 0)
        fail_msg("%s: wanted\n%s\ngot\n%s", rule, e->after, text);
    free(text);
    assert_true(count_notes(r.notes.done, r.notes.done_count, rule) > 0);
    for (int32_t i = 0; i < r.notes.done_count; i++) {
        assert_true(strlen(r.notes.done[i].why) > 0);
        assert_true(strlen(r.notes.done[i].at) > 0);
    }
    bool guarded = rule_named(rule)->class == LF_GUARDED;
    if (!strchr(e->rules, ','))
        assert_int_equal(has_guard(&r.m.g), guarded);
    compare(&before.g, &r.m.g, rule);
    rewritten_free(&r);

    model_rewrite(&before, (lf_rewrite_options){0}, &r); /* with every other rule at work */
    compare(&before.g, &r.m.g, "all rules");
    rewritten_free(&r);
    lf_arena_free(&before.arena);
}

/* Switched off, the rule does nothing; and only rules that change no bit remain as written. */
static void try_switches(const example *e)
{
    const char *rule = rule_of(e)->name;
    model before;
    rewritten r;
    char rules[256];
    model_read(&before, e->before);
    snprintf(rules, sizeof rules, "-%s", rule);
    model_rewrite(&before, (lf_rewrite_options){.rules = rules}, &r);
    assert_int_equal(count_notes(r.notes.done, r.notes.done_count, rule), 0);
    assert_int_equal(count_notes(r.notes.refused, r.notes.refused_count, rule), 0);
    compare(&before.g, &r.m.g, rules);
    rewritten_free(&r);

    model_rewrite(&before, (lf_rewrite_options){.as_written = true}, &r);
    for (int32_t i = 0; i < r.notes.done_count; i++)
        assert_int_equal(r.notes.done[i].class, LF_EXACT);
    assert_false(has_guard(&r.m.g));
    compare(&before.g, &r.m.g, "as written");
    rewritten_free(&r);

    model_rewrite(&before, (lf_rewrite_options){.assume_finite = true}, &r);
    assert_false(has_guard(&r.m.g));
    for (int32_t i = 0; i < r.notes.done_count; i++)
        assert_int_not_equal(r.notes.done[i].class, LF_GUARDED);
    for (uint64_t seed = 1; seed <= 4; seed++)
        compare_on(&before.g, &r.m.g, seed, PLAIN, "assume_finite");
    rewritten_free(&r);
    lf_arena_free(&before.arena);
}

static void rule_holds(void **state)
{
    const lf_rule_info *rule = *state;
    int cases = 0;
    for (int i = 0; i < EXAMPLES; i++)
        if (rule_of(&examples[i]) == rule) {
            try_example(&examples[i]);
            try_switches(&examples[i]);
            cases++;
        }
    if (cases == 0)
        fail_msg("rule %s has no example", rule->name);
}

/* Almost a gelu, a silu or an rms_norm: other constants, another value, a part that somebody else reads. */
static void close_to_a_spelled_op(void **state)
{
    (void)state;
    static const char *const models[] = {
        X "a = mul(x, 0.5); b = div(x, 1.5); c = erf(b); d = add(c, 1); e = mul(a, d); return e",
        X "a = mul(x, 0.4); b = div(x, 1.4142135623730951); c = erf(b); d = add(c, 1); e = mul(a, d); return e",
        X "a = mul(x, 0.5); b = div(x, 1.4142135623730951); c = erf(b); d = add(c, 2); e = mul(a, d); return e",
        XY "a = mul(y, 0.5); b = div(x, 1.4142135623730951); c = erf(b); d = add(c, 1); e = mul(a, d); return e",
        X "a = mul(x, 0.5); b = div(x, 1.4142135623730951); c = tanh(b); d = add(c, 1); e = mul(a, d); return e",
        X "a = mul(x, 0.5); b = mul(x, 0.7978845608028654); c = tanh(b); d = add(c, 1); e = mul(a, d); return e",
#define SQUARE X "a = pow(x, 2); "
#define MEAN SQUARE "b = mean(a, dim=1, keepdim=true); "
        SQUARE "b = mean(a, dim=0, keepdim=true); c = add(b, 0.5); d = rsqrt(c); e = mul(x, d); return e",
        X "a = pow(x, 3); b = mean(a, dim=1, keepdim=true); c = add(b, 0.5); d = rsqrt(c); e = mul(x, d); return e",
        MEAN "c = add(b, 0.5); d = rsqrt(c); e = mul(a, d); return e",
        MEAN "c = add(b, 0.5); d = rsqrt(c); e = div(x, d); return e",
        MEAN "c = add(b, 0.5); d = sqrt(c); e = mul(x, d); return e",
        MEAN "c = sub(b, 0.5); d = rsqrt(c); e = mul(x, d); return e",
        MEAN "c = add(b, 0.5); d = rsqrt(c); e = mul(x, d); return e, d",
        MEAN "c = add(b, 0.5); d = rsqrt(c); e = mul(x, d); f = exp(b); return e, f",
#undef MEAN
#undef SQUARE
        XY "a = sigmoid(x); b = mul(a, y); return b",
        XY "c = mul(x, 1.5); a = sigmoid(c); b = mul(a, y); return b",
        X "c = mul(x, x); a = sigmoid(c); b = mul(a, x); return b",
        X "c = mul(x, 1.5); a = sigmoid(c); b = mul(a, x); d = exp(a); return b, d",
        X "a = sigmoid(x); b = mul(a, x); c = exp(a); return b, c",
    };
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        model m;
        rewritten r;
        model_read(&m, models[i]);
        model_rewrite(&m, (lf_rewrite_options){0}, &r);
        assert_int_equal(count_notes(r.notes.done, r.notes.done_count, "gelu_by_hand"), 0);
        assert_int_equal(count_notes(r.notes.done, r.notes.done_count, "silu_by_hand"), 0);
        assert_int_equal(count_notes(r.notes.done, r.notes.done_count, "swish_by_hand"), 0);
        assert_int_equal(count_notes(r.notes.done, r.notes.done_count, "rms_norm_by_hand"), 0);
        compare(&m.g, &r.m.g, models[i]);
        rewritten_free(&r);
        lf_arena_free(&m.arena);
    }
}

/* ---- rules that keep every bit ---- */

/* Where they could fail to: zeros of either sign, above all. */
static const char *const bit_cases[] = {
    X "a = mul(x, 1.5); b = add(a, 0.0); return b",
    X "a = add(x, -0.0); b = add(0.0, x); c = add(-0.0, x); d = add(x, 0, alpha=-1); return a, b, c, d",
    X "a = sub(x, 0.0); b = sub(x, -0.0); c = sub(x, 0, alpha=-2); d = sub(0.0, x); return a, b, c, d",
    X "a = mul(x, 1); b = div(x, 1); c = pow(x, 1); d = leaky_relu(x, 1); e = pow(x, 0); return a, b, c, d, e",
    X "a = relu(x); b = abs(a); c = relu(b); d = leaky_relu(a, 0.5); e = leaky_relu(a, -0.5); return b, c, d, e",
    X "a = sqrt(x); b = abs(a); c = relu(a); d = leaky_relu(a, 0); e = leaky_relu(a, -0.0); return b, c, d, e",
    X "a = clamp(x, min=0); b = abs(a); c = leaky_relu(a, -1); d = exp(x); e = leaky_relu(d, -1); return b, c, e",
    X "a = clamp(x, min=-0.0, max=2); b = abs(a); c = relu(a); d = clamp(a, max=1); return b, c, d",
    X "a = clamp(x, min=-1); b = clamp(a, min=-0.0); c = relu(a); d = clamp(c, min=-0.0); return b, d",
    X "a = relu(x); b = clamp(a, max=-0.0); c = clamp(x, max=-0.0); d = relu(c); e = clamp(c, min=0); return b, d, e",
    X "a = hardtanh(x, min_val=0, max_val=6); b = abs(a); c = clamp(a, min=-0.0); d = relu(a); return b, c, d",
    X "a = maximum(x, 0); b = minimum(x, 0); c = maximum(0, x); d = minimum(0, x); return a, b, c, d",
    X "a = maximum(x, -0.0); b = minimum(x, -0.0); c = maximum(-0.0, x); d = minimum(-0.0, x); return a, b, c, d",
    X "a = abs(x); b = maximum(a, 0); c = maximum(a, -0.0); d = minimum(a, 0); e = minimum(a, -0.0); return b, c, d, e",
    XY "a = maximum(x, y); b = maximum(y, x); c = minimum(x, y); d = minimum(y, x); return a, b, c, d",
    XY "a = add(x, y); b = add(y, x); c = mul(x, y); d = mul(y, x); e = add(y, x, alpha=2); return a, b, c, d, e",
    X "a = neg(x); b = neg(a); c = abs(a); d = sub(x, x); e = neg(d); return b, c, e",
    X "a = relu(x); b = max(a, dim=1); c = min(a, dim=1); return b, c",
    X "d = neg(x); e = max(d, dim=1); f = min(d, dim=1); return e, f",
    X "a = clamp(x, min=0, max=1); b = max(a, dim=1); c = clamp(x, min=-1, max=-0.0); d = min(c, dim=1); return b, d",
    "input x f32[B, 1]; a = sum(x, dim=1); b = mean(x, dim=1); c = logsumexp(x, dim=1); return a, b, c",
    "input x f32[B, 1]; d = max(x, dim=1); e = min(x, dim=1); return d, e",
    "input x f32[B, 1, 4]; a = transpose(x, 1, 2); b = add(a, 0); c = squeeze(b); d = clone(c); return d",
};

/* Every pair of special numbers, then any of them anywhere. */
enum { SPECIALS = 17, ROUNDS = SPECIALS * SPECIALS + 200 };
static const double special[SPECIALS] = {0.0,  -0.0, 0x1p-149, -0x1p-149, 0x1p-126, -0x1.8p-127, 1.0,  -1.0,     0.5,
                                         3.25, -5.0, 0x1.fffffep127, -0x1.fffffep127, 1e20, INFINITY, -INFINITY, NAN};

static lf_bound *plant_specials(const lf_graph *g, int round)
{
    lf_bound *bound = draw_leaves(g, (uint64_t)round, PLAIN);
    for (int32_t i = 0; i < g->inputs; i++) {
        int64_t count = lf_shape_count(&lf_at(g, g->input[i])->shape, test_dims);
        lf_rng rng = lf_rng_seed((uint64_t)round, lf_at(g, g->input[i])->name);
        for (int64_t k = 0; k < count; k++) {
            int64_t pair = (round + k) % (SPECIALS * SPECIALS);
            uint64_t any = lf_rng_u64(&rng);
            double *data = (double *)(uintptr_t)bound[g->input[i]].f64;
            data[k] = special[round >= SPECIALS * SPECIALS ? any % SPECIALS
                              : i % 2 == 0                 ? (uint64_t)(pair / SPECIALS)
                                                           : (uint64_t)(pair % SPECIALS)];
        }
    }
    return bound;
}

static bool same_float(double a, double b)
{
    float x = (float)a, y = (float)b;
    return (isnan(x) && isnan(y)) || memcmp(&x, &y, sizeof x) == 0;
}

static void check_bits(const char *text)
{
    model before;
    rewritten r;
    model_read(&before, text);
    model_rewrite(&before, (lf_rewrite_options){.as_written = true}, &r);
    for (int round = 0; round < ROUNDS; round++) {
        lf_bound *left = plant_specials(&before.g, round), *right = plant_specials(&r.m.g, round);
        for (int32_t i = 0; i < before.g.outputs; i++) {
            int64_t count, same;
            double *a = evaluate(&before.g, left, before.g.output[i], &count);
            double *b = evaluate(&r.m.g, right, r.m.g.output[i], &same);
            assert_int_equal(count, same);
            for (int64_t k = 0; k < count; k++)
                if (!same_float(a[k], b[k]))
                    fail_msg("%s: output %d: %g as written, %g with exact rules", text, (int)i, a[k], b[k]);
            free(a);
            free(b);
        }
        free_leaves(&before.g, left);
        free_leaves(&r.m.g, right);
    }
    rewritten_free(&r);
    lf_arena_free(&before.arena);
}

static void exact_rules_keep_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bit_cases / sizeof bit_cases[0]; i++)
        check_bits(bit_cases[i]);
    for (int i = 0; i < EXAMPLES; i++)
        if (rule_of(&examples[i])->class == LF_EXACT)
            check_bits(examples[i].before);
}

static void examples_are_of_rules(void **state)
{
    (void)state;
    for (int i = 0; i < EXAMPLES; i++)
        rule_of(&examples[i]);
}

int main(void)
{
    struct CMUnitTest tests[128] = {cmocka_unit_test(examples_are_of_rules), cmocka_unit_test(exact_rules_keep_bits),
                                   cmocka_unit_test(close_to_a_spelled_op)};
    const size_t others = 3;
    size_t count = others;
    for (; lf_rule_at(count - others); count++) {
        const lf_rule_info *rule = lf_rule_at(count - others);
        assert(count < 128);
        tests[count] = (struct CMUnitTest){rule->name, rule_holds, NULL, NULL, (void *)(uintptr_t)rule};
    }
    return _cmocka_run_group_tests("rewrite", tests, count, NULL, NULL);
}
