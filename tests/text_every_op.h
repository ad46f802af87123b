/* SPDX-License-Identifier: Apache-2.0 */
/* A text with every op in it, attributes other than the defaults, exactly as it prints. */
#ifndef TEXT_EVERY_OP_H
#define TEXT_EVERY_OP_H

static const char every_op[] =
    "input x f32[B, 8]\n" "input s f32[B, 6, S]\n" "input input f16[B, 8]\n" "param w f32[4, 8]\n"
    "param b f32[4]\n" "param m f32[8, 3]\n" "param c f32[8]\n" "param d f32[6]\n" "linear = linear(x, w)\n"
    "p1 = linear(x, w, b)\n" "p2 = matmul(x, m)\n" "a1 = relu(x)\n" "a2 = leaky_relu(a1, negative_slope=-0.3)\n"
    "a3 = gelu(a2, approximate=\"tanh\")\n" "a4 = sigmoid(a3)\n" "a5 = tanh(a4)\n" "a6 = silu(a5)\n"
    "a7 = mish(a6)\n" "a8 = softplus(a7, beta=2.5, threshold=1e+30)\n" "a9 = clamp(a8, max=0.1)\n"
    "a10 = clamp(a9, min=-inf, max=inf)\n" "a11 = hardtanh(a10, min_val=-1e-300)\n" "a12 = hardswish(a11)\n"
    "a13 = hardsigmoid(a12)\n" "a14 = elu(a13, alpha=0.3333333333333333)\n" "a15 = selu(a14)\n"
    "a16 = celu(a15, alpha=5e-324)\n" "a17 = exp(a16)\n" "a18 = log(a17)\n" "a19 = abs(a18)\n" "a20 = neg(a19)\n"
    "a21 = sqrt(a20)\n" "a22 = rsqrt(a21)\n" "a23 = reciprocal(a22)\n" "a24 = pow(a23, exponent=-2)\n"
    "a25 = clone(a24)\n" "a26 = dropout(a25, p=0.25, training=false)\n" "b1 = add(a26, c, alpha=-0)\n"
    "b2 = sub(1, b1, alpha=3)\n" "b3 = mul(b2, -0)\n" "b4 = div(b3, x)\n" "b5 = minimum(b4, inf)\n"
    "b6 = maximum(-inf, b5)\n" "r1 = sum(s)\n" "r2 = mean(s, dim=-1, keepdim=true)\n" "r3 = max(s, dim=[0, 2])\n"
    "r4 = min(s, dim=1)\n" "r5 = logsumexp(s, dim=[1, 2], keepdim=true)\n" "n1 = softmax(x, dim=-1)\n"
    "n2 = log_softmax(x, dim=0)\n" "n3 = layer_norm(x, normalized_shape=[8], bias=c, eps=1e-12)\n"
    "n4 = group_norm(s, num_groups=3, weight=d, bias=d)\n" "n5 = instance_norm(s, weight=d, momentum=0.5)\n"
    "n6 = rms_norm(x, normalized_shape=[8], weight=c, eps=0.5)\n"
    "n7 = batch_norm(x, None, None, bias=c, training=true)\n"
    "n8 = batch_norm(x, c, c, c, c, momentum=0, eps=0.001)\n"
    "q1 = avg_pool1d(x, kernel_size=3, stride=1, padding=1, ceil_mode=true, count_include_pad=false)\n"
    "q2 = max_pool1d(x, kernel_size=2, stride=3, dilation=2)\n" "v1 = reshape(x, shape=[-1, 2, 4])\n"
    "v2 = squeeze(r2, dim=-1)\n" "v3 = unsqueeze(v2, dim=0)\n" "v4 = flatten(v3, start_dim=1)\n"
    "v5 = transpose(v4, dim0=0, dim1=1)\n" "v6 = add(v5, 0.5)\n" "v7 = sum(v6, dim=[])\n"
    "v8 = slice(x, dim=-1, start=-7, step=3)\n"
    "w1 = gt(x, 0.5)\n" "w2 = lt(1, x)\n" "w3 = ge(x, c)\n" "w4 = le(c, x)\n" "w5 = eq(x, inf)\n" "w6 = ne(x, x)\n"
    "w7 = logical_and(w1, w2)\n" "w8 = logical_or(w7, w3)\n" "w9 = logical_not(w8)\n" "w10 = where(w9, w4, -inf)\n"
    "w11 = where(w5, 1, 0)\n"
    "t1 = to(input, dtype=\"f32\")\n" "t2 = to(t1, dtype=\"bf16\")\n"
    "e1 = erf(x)\n" "e2 = expm1(e1)\n" "e3 = log1p(e2)\n" "e4 = softsign(e3)\n" "e5 = logsigmoid(e4)\n"
    "e6 = hardshrink(e5, lambd=0.25)\n" "e7 = softshrink(e6, lambd=2)\n"
    "input k i64[B, S]\n" "input j i64[B]\n" "l1 = cross_entropy(s, k, d, ignore_index=3, label_smoothing=0.25)\n"
    "l2 = cross_entropy(x, j, reduction=\"sum\")\n" "l3 = cross_entropy(s, k, reduction=\"none\")\n"
    "return b6, v5, b6, x, linear\n";

#endif
