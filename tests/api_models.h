/* SPDX-License-Identifier: Apache-2.0 */
/* A spread of small models, every shape odd: what runs fused, what runs in several kernels, what rows see of each
 * other. */
#ifndef LF_TESTS_API_MODELS_H
#define LF_TESTS_API_MODELS_H

typedef struct spread_model {
    const char *name;
    const char *text;  /* its first named extent, where it has any, is the batch; a second one is S */
    int k;             /* longest sum */
} spread_model;

#define LINEAR_45_70 "input x f32[B, 45]\nparam w f32[70, 45]\nparam b f32[70]\na = linear(x, w, b)\n"

static const spread_model spread[] = {
    {"lse_chain",
     LINEAR_45_70 "c = logsumexp(a, dim=1, keepdim=true)\nd = leaky_relu(c)\ne = leaky_relu(d)\nf = gelu(e)\n"
                  "g = gelu(f)\nreturn g\n",
     70},
    {"softmax", LINEAR_45_70 "c = gelu(a)\nd = softmax(c, dim=1)\nreturn d\n", 70},
    {"mean_residual",
     "input x f32[B, 37]\nparam w f32[37, 37]\nparam b f32[37]\nparam s f32[37]\na = linear(x, w, b)\nc = sub(a, s)\n"
     "d = mean(c, dim=1, keepdim=true)\ne = logsumexp(d, dim=1, keepdim=true)\nf = gelu(e)\ng = add(f, x)\nreturn g\n",
     37},
    {"group_norm",
     "input x f32[B, 33]\nparam w f32[48, 33]\nparam nw f32[48]\nparam nb f32[48]\na = linear(x, w)\n"
     "c = group_norm(a, 6, nw, nb)\nd = hardtanh(c, min_val=-2, max_val=2)\nreturn d\n",
     48},
    {"batch_norm_train",
     LINEAR_45_70 "param m f32[35]\nparam v f32[35]\nr = reshape(a, [-1, 35, 2])\n"
                  "c = batch_norm(r, m, v, training=true)\nd = relu(c)\nreturn d\n",
     200},
    {"mlp",
     "input x f32[B, 29]\nparam w f32[31, 29]\nparam b f32[31]\nparam u f32[10, 31]\nparam c f32[10]\n"
     "h = linear(x, w, b)\ni = gelu(h)\nj = linear(i, u, c)\nk = log_softmax(j, dim=1)\nreturn k\n",
     31},
    {"pool", LINEAR_45_70 "c = max_pool1d(a, kernel_size=2)\nd = sum(c, dim=1)\ne = mul(d, 0.5)\nreturn e\n", 70},
    {"prenorm",
     "input x f32[B, S, 24]\nparam nw f32[24]\nparam nb f32[24]\nparam w f32[24, 24]\nparam b f32[24]\n"
     "a = layer_norm(x, [24], nw, nb)\nc = linear(a, w, b)\nd = silu(c)\ne = add(x, d)\nreturn e\n",
     24},
    {"no product", "input x f32[B, 53]\na = rms_norm(x, [53])\nb = mul(a, 2)\nc = softmax(b, dim=-1)\nreturn c\n", 53},
    {"two inputs, two outputs",
     "input x f32[B, 21]\ninput y f32[B, 21]\nparam w f32[34, 21]\na = add(x, y)\nb = linear(a, w)\nc = tanh(b)\n"
     "d = mean(c, dim=1)\nreturn c, d\n",
     34},
    {"matmul of inputs", "input x f32[B, 17]\ninput y f32[17, 19]\na = matmul(x, y)\nb = relu(a)\nreturn b\n", 17},
    {"over the batch", "input x f32[B, 23]\na = exp(x)\nb = sum(a, dim=0)\nc = logsumexp(x, dim=[0, 1])\nreturn b, c\n",
     200},
    {"fixed batch",
     "input x f32[7, 33]\nparam w f32[18, 33]\na = linear(x, w)\nb = mean(a, dim=1)\nc = sigmoid(b)\nreturn c\n", 33},
    {"transposed",
     "input x f32[B, S, 6]\nparam w f32[9, 6]\na = transpose(x, 0, 1)\nb = linear(a, w)\nc = softmax(b, dim=2)\n"
     "return c\n",
     9},
    {"returned as they are", "input x f32[B, 5]\nparam w f32[3, 4]\na = relu(x)\nb = clone(x)\nreturn x, w, a, a, b\n",
     1},
    {"several strips", /* more than 256 of everything: sums and rows are taken in parts */
     "input x f32[B, 270]\nparam w f32[530, 270]\nparam nw f32[530]\na = linear(x, w)\nb = rms_norm(a, [530], nw)\n"
     "c = gelu(b)\nd = logsumexp(c, dim=1, keepdim=true)\ne = sub(c, d)\nreturn e, d\n",
     530},
    {"a number as bias", "input x f32[B, 19]\nparam w f32[1, 19]\na = linear(x, w)\nb = add(a, 0.5)\nreturn b\n", 19},
    {"consecutive linears",
     "input x f32[B, 26]\nparam w f32[40, 26]\nparam u f32[5, 40]\nparam c f32[5]\na = linear(x, w)\n"
     "b = linear(a, u, c)\nreturn b\n",
     40},
};

enum { SPREAD = sizeof spread / sizeof *spread };

#endif
