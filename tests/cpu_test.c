/* SPDX-License-Identifier: Apache-2.0 */
/* Whole plans on the CPU, fused and op by op, against double precision; and the promise that bits depend on nothing
 * but a row's own numbers. */
#include "cpu_support.h"

#include <pthread.h>

/* Models over a batch B, with {N} outputs, {K} inputs, {G} a divisor of N. */
typedef struct model {
    const char *name, *text;
    int64_t least;   /* the smallest N (and K) it works for */
    bool columns;    /* rows see each other */
    double tolerance;
} model;

#define X "input x f32[B, {K}]\n"
#define LINEAR X "param w f32[{N}, {K}]\nparam bias f32[{N}]\na = linear(x, w, bias)\n"
#define AFFINE "param g f32[{N}]\nparam h f32[{N}]\n"
#define RUNNING "param m f32[{N}]\nparam var f32[{N}]\n"
#define SIBLINGS                                                                                                       \
    X "param w f32[{N}, {K}]\nparam v f32[{N}, {K}]\nparam t f32[{K}, {N}]\nparam bias f32[{N}]\n"
#define DEEP "input x f32[B, 5, {K}]\nparam w f32[{N}, {K}]\nparam bias f32[{N}]\na = linear(x, w, bias)\n"

static const model models[] = {
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

typedef struct extents { int64_t n, k; } extents;
static const extents sizes[] = {{1, 7}, {7, 1}, {33, 31}, {255, 257}, {257, 255}, {1000, 64}, {64, 1000}, {520, 300}};
enum { SIZES = sizeof sizes / sizeof sizes[0] };
static const int64_t batches[] = {0, 1, 2, 3, 17, 129};
enum { BATCHES = sizeof batches / sizeof batches[0] };

static char *text_of(const model *m, extents e)
{
    int64_t g = 1;
    for (int64_t d = 2; d <= 8; d++)
        g = e.n % d == 0 ? d : g;
    return rig_text(m->text, "NKG", (const int64_t[]){e.n, e.k, g});
}

static bool fits(const model *m, extents e)
{
    return e.n >= m->least && e.k >= (m->least > 1 ? 2 : 1);
}

static lf_pool *pools[5]; /* of 1 to 4 threads, by number */

static int make_pools(void **state)
{
    (void)state;
    for (int i = 1; i <= 4; i++)
        if (lf_pool_new(i, &pools[i]) != LF_OK)
            return -1;
    return 0;
}

static int free_pools(void **state)
{
    (void)state;
    for (int i = 1; i <= 4; i++)
        lf_pool_free(pools[i]);
    return 0;
}

/* ---- against double precision ---- */

/* One run of each rig (the same model, planned in different ways) against one evaluation. */
static void against_double(rig *rigs, int count, const model *m, extents e, int64_t batch, lf_pool *pool)
{
    const int64_t dims[LF_MAX_SYMBOLS] = {batch};
    const bool compared = batch > 0 || !m->columns; /* over no rows at all there is nothing to compare with */
    rig_ports in = rig_inputs(rigs, dims, RIG_UNIFORM);
    double *ref[RIG_PORTS] = {0};
    if (compared)
        rig_eval(rigs, dims, &in, ref);
    for (int way = 0; way < count; way++, cases++) {
        rig_ports out = rig_run(&rigs[way], dims, &in, pool, NULL, batch);
        for (int32_t i = 0; compared && i < rigs[way].graph.outputs; i++) {
            char what[160];
            snprintf(what, sizeof what, "%s way %d N=%d K=%d B=%d %s output %d", m->name, way, (int)e.n, (int)e.k,
                     (int)batch, rigs[way].kern->isa, (int)i);
            rig_compare(what, out.data[i], ref[i], out.count[i], m->tolerance);
        }
        rig_ports_free(&out);
    }
    for (int i = 0; i < RIG_PORTS; i++)
        free(ref[i]);
    rig_ports_free(&in);
}

/* Fused and op by op. */
static void both_ways(const model *m, extents e, const int64_t *batch, int count, const lf_kern *kern, int turn)
{
    char *text = text_of(m, e);
    rig rigs[2];
    rig_open(&rigs[0], text, true, kern);
    rig_open(&rigs[1], text, false, kern);
    for (int b = 0; b < count; b++)
        against_double(rigs, 2, m, e, batch[b], pools[1 + (turn + b) % 3]);
    rig_close(&rigs[0]);
    rig_close(&rigs[1]);
    free(text);
}

static void models_match(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i += rig_step())
        for (int s = rig_slow() ? i % 3 : 0; s < SIZES; s += rig_slow() ? 3 : 1)
            if (fits(&models[i], sizes[s]))
                both_ways(&models[i], sizes[s], batches, BATCHES, lf_kern_pick(), i + s);
}

static void models_match_on_every_table(void **state)
{
    (void)state;
    const int64_t batch = 17;
    for (size_t t = 1; lf_kern_at(t); t++) /* the first has had its turn */
        for (int i = 0; i < MODELS; i += rig_step())
            for (int s = rig_slow() ? 3 : 2; s < SIZES; s += rig_slow() ? 8 : 2)
                both_ways(&models[i], sizes[s], &batch, 1, lf_kern_at(t), i);
    cases++; /* where there is no other table */
}

/* Rows of more than a stretch, the last one short; groups of two strips each, and groups that end inside a strip. */
static void long_rows_match(void **state)
{
    (void)state;
    static const extents longer[] = {{4096, 6}, {2 * LF_STRETCH + 3 * LF_STRIP + 5, 3}};
    const int64_t batch = 5;
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int i = 0; i < MODELS; i += rig_step())
            both_ways(&models[i], longer[(t + (size_t)i) % 2], &batch, 1, lf_kern_at(t), i);
    static const model bare[] = {
        {"bare_groups", "input x f32[B, {N}]\n" AFFINE "b = group_norm(x, {G}, g, h)\nc = mul(b, x)\nreturn c, b\n", 1,
         false, 1e-3},
        {"bare_turned", "input x f32[B, {N}]\na = mean(x, dim=1, keepdim=True)\nb = sub(a, x)\nreturn b\n", 1, false,
         1e-3},
    };
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int i = 0; i < 4; i++)
            both_ways(&bare[i / 2], longer[i % 2], &batch, 1, lf_kern_at(t), i);
}

/* Every pointwise op, as a model of its own and behind a product. */
static void ops_match(void **state)
{
    (void)state;
    for (int op = 0; op < LF_OP_COUNT; op++) {
        const lf_op_info *row = lf_op_row((lf_op)op);
        if (row->kind != LF_POINTWISE)
            continue;
        const char *attributes = op == LF_OP_clamp ? ", -0.5, 0.25"
                                 : op == LF_OP_pow ? ", 3"
                                 : op == LF_OP_to  ? ", \"f32\""
                                                   : "";
        char text[512];
        snprintf(text, sizeof text,
                 "input x f32[B, 300]\ninput y f32[B, 300]\nparam w f32[40, 300]\na = %s(x%s%s)\nb = linear(x, w)\n"
                 "c = %s(b%s%s)\nreturn a, c\n",
                 row->name, row->arg_count == 2 ? ", y" : "", attributes, row->name, row->arg_count == 2 ? ", 1.5" : "",
                 attributes);
        const model m = {row->name, text, 1, false, 3e-4};
        const int64_t batch = 19;
        both_ways(&m, (extents){40, 300}, &batch, 1, lf_kern_pick(), 1);
    }
}

/* Small integers stay exact through products and sums, whatever the order. */
static void integers_are_exact(void **state)
{
    (void)state;
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int s = 0; s < SIZES; s++) {
            const model m = {
                "integers",
                LINEAR "b = sum(a, dim=1)\nc = max(a, dim=1)\nd = relu(a)\ne = sum(a, dim=0)\nreturn b, c, d, e\n", 1,
                true, 0};
            char *text = text_of(&m, sizes[s]);
            rig r;
            rig_open_drawn(&r, text, true, s % 2, lf_kern_at(t), pools[2], RIG_INTEGERS);
            const int64_t dims[LF_MAX_SYMBOLS] = {37};
            rig_ports in = rig_inputs(&r, dims, RIG_INTEGERS), out = rig_run(&r, dims, &in, pools[3], NULL, 37);
            double *ref[RIG_PORTS] = {0};
            rig_eval(&r, dims, &in, ref);
            for (int32_t i = 0; i < r.graph.outputs; i++, cases++) {
                rig_compare("integers", out.data[i], ref[i], out.count[i], 0);
                free(ref[i]);
            }
            rig_ports_free(&in);
            rig_ports_free(&out);
            rig_close(&r);
            free(text);
        }
}

/* ---- the same bits ---- */

static void assert_same_bits(const char *name, const float *a, const float *b, int64_t count, const char *over)
{
    for (int64_t i = 0; i < count; i++)
        if (rig_bits(a[i]) != rig_bits(b[i]))
            fail_msg("%s: element %lld is %.9g and %.9g: bits depend on %s", name, (long long)i, (double)a[i],
                     (double)b[i], over);
}

/* Each output of a batch is the beginning of the same output of a larger one, where rows do not see each other. */
static void same_rows(const model *m, rig *r, const rig_ports *all, int64_t most, int64_t batch, lf_pool *pool,
                      const char *over)
{
    const int64_t dims[LF_MAX_SYMBOLS] = {batch};
    rig_ports in = rig_inputs(r, dims, RIG_UNIFORM), out = rig_run(r, dims, &in, pool, NULL, batch);
    for (int32_t i = 0; i < r->graph.outputs; i++, cases++) {
        assert_true(batch == most || all->count[i] * batch == out.count[i] * most || out.count[i] == all->count[i]);
        assert_same_bits(m->name, out.data[i], all->data[i], out.count[i], over);
    }
    rig_ports_free(&in);
    rig_ports_free(&out);
}

static void bits_are_a_rows_own(void **state)
{
    (void)state;
    const int64_t most = rig_slow() ? 140 : 300; /* several blocks of rows */
    const extents large = rig_slow() ? (extents){520, 64} : (extents){700, 300};
    for (int i = 0; i < MODELS; i += rig_step())
        for (int fuse = 0; fuse < 2; fuse++) {
            const model *m = &models[i];
            char *text = text_of(m, large);
            rig r;
            rig_open(&r, text, fuse, lf_kern_pick());
            const int64_t dims[LF_MAX_SYMBOLS] = {most};
            rig_ports in = rig_inputs(&r, dims, RIG_UNIFORM), all = rig_run(&r, dims, &in, pools[1], NULL, most);
            for (int threads = 2; threads <= 4; threads++)
                same_rows(m, &r, &all, most, most, pools[threads], "the number of threads");
            const int64_t fewer[] = {1, 2, 3, 17, 129, most - 1};
            for (size_t b = 0; !m->columns && b < sizeof fewer / sizeof fewer[0]; b += rig_slow() ? 2 : 1)
                for (int threads = 1; threads <= 4; threads += 1 + (int)b % 2)
                    same_rows(m, &r, &all, most, fewer[b], pools[threads], "the batch");
            rig_ports_free(&in);
            rig_ports_free(&all);
            rig_close(&r);
            free(text);
        }
}

static void bits_are_the_same_twenty_times(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i += rig_slow() ? 7 : 3) {
        const model *m = &models[i];
        char *text = text_of(m, (extents){520, 300});
        rig r;
        rig_open(&r, text, true, lf_kern_pick());
        const int64_t dims[LF_MAX_SYMBOLS] = {129};
        rig_ports in = rig_inputs(&r, dims, RIG_UNIFORM), all = rig_run(&r, dims, &in, pools[3], NULL, 129);
        for (int again = 0; again < 20; again++)
            same_rows(m, &r, &all, 129, 129, pools[3], "chance");
        rig_ports_free(&in);
        rig_ports_free(&all);
        rig_close(&r);
        free(text);
    }
}

/* Weights packed at the call give the bits of weights packed before. */
static void packing_changes_no_bits(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i += rig_step())
        for (int s = 3; s < SIZES; s += 2) {
            char *text = text_of(&models[i], sizes[s]);
            rig packed, plain;
            rig_open_drawn(&packed, text, true, true, lf_kern_pick(), pools[2], RIG_UNIFORM);
            rig_open_drawn(&plain, text, true, false, lf_kern_pick(), NULL, RIG_UNIFORM);
            assert_true(lf_cpu_weights_bytes(packed.weights) > 0 && lf_cpu_weights_bytes(plain.weights) > 0);
            const int64_t dims[LF_MAX_SYMBOLS] = {29};
            rig_ports in = rig_inputs(&packed, dims, RIG_UNIFORM),
                      all = rig_run(&packed, dims, &in, pools[1], NULL, 29);
            same_rows(&models[i], &plain, &all, 29, 29, pools[2], "when weights are packed");
            rig_ports_free(&in);
            rig_ports_free(&all);
            rig_close(&packed);
            rig_close(&plain);
            free(text);
        }
}

/* Products that share x give the bits of products by themselves, whatever x holds. */
static void sharing_changes_no_bits(void **state)
{
    (void)state;
    static const int64_t few[] = {1, 7, 67};
    for (int i = 0; i < MODELS; i++)
        for (int s = i % 2; s < SIZES; s += rig_slow() ? 4 : 2) {
            if (!fits(&models[i], sizes[s]))
                continue;
            const lf_plan_options share = {.fuse = true, .share_x = true}, alone = {.fuse = true};
            char *text = text_of(&models[i], sizes[s]);
            rig one, other;
            rig_open_planned(&one, text, share, true, lf_kern_at((size_t)s % 2), NULL, RIG_UNIFORM);
            rig_open_planned(&other, text, alone, true, one.kern, NULL, RIG_UNIFORM);
            for (size_t b = 0; b < sizeof few / sizeof few[0] && one.plan->groups < other.plan->groups; b++) {
                const int64_t dims[LF_MAX_SYMBOLS] = {few[b]};
                rig_ports in = rig_inputs(&one, dims, RIG_UNIFORM);
                in.data[0][0] = b == 1 ? NAN : in.data[0][0];
                in.data[0][in.count[0] - 1] = b == 2 ? INFINITY : in.data[0][in.count[0] - 1];
                rig_ports y = rig_run(&one, dims, &in, pools[1 + b], NULL, few[b]),
                          z = rig_run(&other, dims, &in, pools[3 - b], NULL, few[b]);
                for (int32_t o = 0; o < one.graph.outputs; o++, cases++)
                    for (int64_t k = 0; k < y.count[o]; k++)
                        if (!(isnan(y.data[o][k]) && isnan(z.data[o][k]))) /* whose sign may differ */
                            assert_same_bits(models[i].name, &y.data[o][k], &z.data[o][k], 1, "what shares x");
                rig_ports_free(&in);
                rig_ports_free(&y);
                rig_ports_free(&z);
            }
            rig_close(&one);
            rig_close(&other);
            free(text);
        }
}

/* One instance, one set of weights and one pool, many threads at once: each with a workspace of its own. */
typedef struct caller {
    const lf_cpu_instance *instance;
    rig *r;
    const rig_ports *in;
    rig_ports out;
    float *workspace;
    lf_pool *pool;
} caller;

static void *call_often(void *arg)
{
    caller *c = arg;
    for (int i = 0; i < 3; i++)
        lf_cpu_run(c->instance, c->r->weights, (const float *const *)c->in->data, c->out.data, c->workspace, NULL, 129,
                   c->pool);
    return NULL;
}

static void one_instance_serves_many(void **state)
{
    (void)state;
    enum { CALLERS = 6 };
    for (int i = 0; i < MODELS; i += 5) {
        char *text = text_of(&models[i], (extents){520, 300});
        rig r;
        rig_open(&r, text, true, lf_kern_pick());
        const int64_t dims[LF_MAX_SYMBOLS] = {129};
        rig_ports in = rig_inputs(&r, dims, RIG_UNIFORM), all = rig_run(&r, dims, &in, pools[1], NULL, 129);
        lf_cpu_instance *instance;
        rig_ok(&r, lf_cpu_instance_new(r.plan, r.kern, dims, 2, &instance, &r.diag));
        assert_true(lf_cpu_instance_bytes(instance) > 0);
        caller callers[CALLERS];
        pthread_t threads[CALLERS];
        for (int c = 0; c < CALLERS; c++) {
            callers[c] =
                (caller){.instance = instance, .r = &r, .in = &in, .out = rig_outputs(&r, dims), .pool = pools[2]};
            callers[c].workspace = lf_aligned_alloc(lf_cpu_workspace(instance));
            assert_non_null(callers[c].workspace);
        }
        for (int c = 0; c < CALLERS; c++)
            assert_int_equal(pthread_create(&threads[c], NULL, call_often, &callers[c]), 0);
        for (int c = 0; c < CALLERS; c++) {
            pthread_join(threads[c], NULL);
            for (int32_t o = 0; o < r.graph.outputs; o++, cases++)
                assert_same_bits(models[i].name, callers[c].out.data[o], all.data[o], all.count[o], "who else runs");
            rig_ports_free(&callers[c].out);
            lf_aligned_free(callers[c].workspace);
        }
        lf_cpu_instance_free(instance);
        rig_ports_free(&in);
        rig_ports_free(&all);
        rig_close(&r);
        free(text);
    }
}

/* ---- the edges ---- */

static void nothing_comes_of_no_rows(void **state)
{
    (void)state;
    rig r;
    rig_open(&r,
             "input x f32[B, 300]\na = sum(x, dim=0)\nb = mean(x, dim=0)\nc = max(x, dim=0)\nd = sum(x)\n"
             "return a, b, c, d\n",
             true, lf_kern_pick());
    const int64_t dims[LF_MAX_SYMBOLS] = {0};
    rig_ports in = rig_inputs(&r, dims, RIG_UNIFORM), out = rig_run(&r, dims, &in, pools[2], NULL, 0);
    for (int i = 0; i < 300; i++, cases++)
        assert_true(out.data[0][i] == 0 && isnan(out.data[1][i]) && out.data[2][i] == -INFINITY);
    assert_true(out.data[3][0] == 0);
    rig_ports_free(&in);
    rig_ports_free(&out);
    rig_close(&r);
}

/* A chain far longer than there are registers anywhere. */
static void long_programs_run(void **state)
{
    (void)state;
    enum { LINKS = 240 };
    char text[LINKS * 48 + 128], *to = text;
    to += sprintf(to, "input x f32[B, 300]\nparam p f32[300]\nv0 = add(x, p)\n");
    for (int i = 1; i < LINKS; i++)
        to += sprintf(to, "v%d = %s(v%d, v%d)\n", i, i % 3 ? "sub" : "maximum", i - 1, i / 2);
    sprintf(to, "return v%d, v%d\n", LINKS - 1, LINKS / 2);
    const model m = {"long", text, 1, false, 1e-3};
    const int64_t batch = 17;
    both_ways(&m, (extents){300, 300}, &batch, 1, lf_kern_pick(), 1);
}

static void too_large_is_said(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, "input x f32[B, S, 300]\nparam w f32[300, 300]\na = linear(x, w)\nb = softmax(a, dim=1)\nreturn b\n",
             true, lf_kern_pick());
    const int64_t large[][2] = {{INT64_C(1) << 40, INT64_C(1) << 40}, {INT64_MAX, 1}, {INT64_C(1) << 45, 3}};
    for (size_t i = 0; i < sizeof large / sizeof large[0]; i++, cases++) {
        const int64_t dims[LF_MAX_SYMBOLS] = {large[i][0], large[i][1]};
        lf_cpu_instance *instance;
        assert_int_equal(lf_cpu_instance_new(r.plan, r.kern, dims, 2, &instance, &r.diag), LF_ERR_DATA);
        assert_null(instance);
        assert_true(strlen(r.diag.text) > 0);
    }
    rig_close(&r);
}

/* A witness that is not finite flags its row of the batch, and no other. */
static void witnesses_flag_their_rows(void **state)
{
    (void)state;
    const char *const texts[] = {
        "input x f32[B, 300]\nv = relu(x)\nt = sum(x, dim=1, keepdim=true)\nreturn v, t\n",
        "input x f32[B, 300]\nparam w f32[70, 300]\nv = linear(x, w)\nt = sum(x, dim=1, keepdim=true)\nreturn v, t\n",
        "input x f32[B, 5, 300]\nv = relu(x)\nt = mul(x, 2)\nreturn v, t\n",
    };
    enum { BATCH = 41 };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        for (int threads = 1; threads <= 3; threads++) {
            rig r = {0};
            lf_arena_init(&r.arena);
            rig_ok(&r, lf_graph_init(&r.graph, &r.arena, &r.diag));
            rig_ok(&r, lf_text_read(&r.graph, "test", texts[i], strlen(texts[i])));
            lf_node guarded, both[LF_MAX_ARGS] = {r.graph.output[0], r.graph.output[1], LF_NONE, LF_NONE, LF_NONE};
            rig_ok(&r, lf_graph_op(&r.graph, NULL, LF_OP_guard, both, NULL, &guarded));
            rig_ok(&r, lf_graph_return(&r.graph, &guarded, 1));
            rig_ok(&r, lf_plan_build(&r.graph, (lf_plan_options){.fuse = true, .share_x = true}, &r.arena, &r.plan));
            r.param = calloc((size_t)r.graph.count, sizeof *r.param);
            assert_non_null(r.param);
            for (int32_t p = 0; p < r.graph.params; p++)
                r.param[r.graph.param[p]] = calloc(70 * 300, sizeof(float));
            r.kern = lf_kern_pick();
            rig_ok(&r, rig_prepare(&r, true, NULL, NULL, &r.weights));
            const int64_t dims[LF_MAX_SYMBOLS] = {BATCH};
            rig_ports in = rig_inputs(&r, dims, RIG_UNIFORM);
            const int64_t row = in.count[0] / BATCH;
            in.data[0][7 * row + 299] = NAN;
            in.data[0][40 * row + row / 2] = INFINITY;
            unsigned char flagged[BATCH] = {0};
            rig_ports out = rig_run(&r, dims, &in, pools[threads], flagged, BATCH);
            for (int b = 0; b < BATCH; b++, cases++)
                assert_int_equal(flagged[b], b == 7 || b == 40);
            rig_ports_free(&in);
            rig_ports_free(&out);
            rig_close(&r);
        }
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, some_ran)
    const struct CMUnitTest tests[] = {
        TEST(models_match),
        TEST(models_match_on_every_table),
        TEST(long_rows_match),
        TEST(ops_match),
        TEST(integers_are_exact),
        TEST(bits_are_a_rows_own),
        TEST(bits_are_the_same_twenty_times),
        TEST(packing_changes_no_bits),
        TEST(sharing_changes_no_bits),
        TEST(one_instance_serves_many),
        TEST(nothing_comes_of_no_rows),
        TEST(long_programs_run),
        TEST(too_large_is_said),
        TEST(witnesses_flag_their_rows),
    };
    return cmocka_run_group_tests(tests, make_pools, free_pools);
}
