/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels run without a GPU: models of models/ give what they mean, the same bits in either order of threads and
 * whenever copies are made, and mistakes that one could make in a kernel are found. (gpu_test and random_test run here
 * too.) */
#include "api_fixture.h"
#include "cache_fixture.h"
#include "plan/gpu.h"

#include "machine.h"

enum { ROWS = 5, DOWN = 1, LATE = 2, ORDERS = 4 };

static char *slurp(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *text = calloc(1, 1 << 16);
    assert_true(f && text);
    assert_true(fread(text, 1, (1 << 16) - 1, f) > 0);
    fclose(f);
    return text;
}

/* Runs it in one order; outputs begin as NaN. */
static lf_status run_in_order(rig *r, tensors *t, int order)
{
    const float *in[MAX_PORTS] = {NULL};
    float *out[MAX_PORTS] = {NULL};
    host_gpu_downwards = order & DOWN, host_gpu_late = order & LATE;
    for (size_t i = 0; i < t->ins; i++)
        in[i] = t->in[i];
    for (size_t i = 0; i < t->outs; i++) {
        out[i] = t->out[i];
        memset(out[i], 0xff, t->out_count[i] * sizeof(float));
    }
    return run_at(r->call, t->dims, in, out, 0);
}

/* The two others are products of 8192 columns: seconds each, and nothing that these have not. */
static const char *const models[] = {"batch_norm_train", "group_norm", "mean_residual", "mlp", "pool", "prenorm"};
static const char *const units[] = {"plain", "mma", "wgmma"};

static void assert_means_the_same(const char *name)
{
    const char *source = getenv("LINFUSE_SOURCE_DIR");
    const int64_t dims[MAX_DIMS] = {ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, ROWS};
    char path[1024], *text;
    snprintf(path, sizeof path, "%s/models/%s.lf", source ? source : ".", name);
    text = slurp(path);
    rig r = rig_begin(1, text, "device=cuda");
    tensors up = tensors_begin(r.model, dims), down = tensors_begin(r.model, dims);
    tensors_eval(&up, r.model, r.program);
    OK_CALL(r.call, run_in_order(&r, &up, 0));
    OK_CALL(r.call, run_in_order(&r, &down, DOWN | LATE));
    assert_close(&up, tolerance(1024), name);
    assert_same_bits(&up, &down, name);
    tensors_end(&up);
    tensors_end(&down);
    rig_end(&r);
    free(text);
}

static void models_mean_the_same_in_either_order(void **state)
{
    (void)state;
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        assert_int_equal(setenv("LINFUSE_CUDA", units[u], 1), 0);
        for (size_t i = 0; i < sizeof models / sizeof *models; i++)
            assert_means_the_same(models[i]);
    }
    assert_int_equal(setenv("LINFUSE_CUDA", "plain", 1), 0);
}

/* Products of one x: what they share, and what comes of them in either order. */
static void products_share_what_they_multiply(void **state)
{
    (void)state;
    static const struct {
        const char *text, *shared;
    } cases[] = {
        /* one phase of two weights, which lie differently, and one of its own with statistics of rows */
        {"input x f32[B, 301]\nparam g f32[200, 301]\nparam u f32[301, 200]\nparam v f32[130, 301]\n"
         "a = linear(x, g)\nb = silu(a)\nc = matmul(x, u)\nd = mul(b, c)\ne = linear(x, v)\n"
         "f = layer_norm(e, [130])\nh = logsumexp(e, dim=1, keepdim=true)\nk = add(d, h)\nreturn f, k\n",
         "3 products share x"},
        /* narrow ones beside each other, one after them, and a wide one */
        {"input x f32[B, 256]\nparam g f32[3, 256]\nparam u f32[3, 256]\nparam v f32[5, 256]\nparam z f32[140, 256]\n"
         "a = linear(x, g)\nc = linear(x, u)\nd = mul(a, c)\ns = softmax(d, dim=1)\nf = linear(x, v)\n"
         "h = logsumexp(f, dim=1, keepdim=true)\nk = mul(s, h)\nq = linear(x, z)\nr = add(q, h)\nt = gelu(r)\n"
         "m = max(t, dim=1, keepdim=true)\nn = sub(x, m)\nreturn k, n\n",
         "4 products share x"},
        /* six in a phase: more than are written out */
        {"input x f32[B, 40]\nparam a f32[20, 40]\nparam b f32[20, 40]\nparam c f32[20, 40]\nparam d f32[20, 40]\n"
         "param e f32[20, 40]\nparam f f32[20, 40]\na1 = linear(x, a)\nb1 = linear(x, b)\nc1 = linear(x, c)\n"
         "d1 = linear(x, d)\ne1 = linear(x, e)\nf1 = linear(x, f)\nu = mul(a1, b1)\nv = mul(c1, d1)\n"
         "w = mul(e1, f1)\ny = sub(u, v)\nz = div(y, w)\nt = tanh(z)\nreturn t\n",
         "6 products share x"},
    };
    static const int64_t rows[] = {1, 5, 200};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        rig r = rig_begin(1, cases[c].text, "device=cuda");
        char *words = NULL;
        OK_PROGRAM(r.program, lf_program_explain(r.program, NULL, false, &words));
        if (!strstr(words, cases[c].shared))
            print_error("%s\n", words);
        assert_non_null(strstr(words, cases[c].shared));
        lf_string_free(words);
        for (size_t m = 0; m < sizeof rows / sizeof *rows; m++) {
            tensors up = tensors_begin(r.model, &rows[m]), down = tensors_begin(r.model, &rows[m]);
            tensors_eval(&up, r.model, r.program);
            OK_CALL(r.call, run_in_order(&r, &up, 0));
            OK_CALL(r.call, run_in_order(&r, &down, DOWN));
            assert_close(&up, tolerance(301), cases[c].shared);
            assert_same_bits(&up, &down, cases[c].shared);
            tensors_end(&up);
            tensors_end(&down);
        }
        rig_end(&r);
    }
}

/* Two tiles of rows and of columns, K longer than a run of sums and no multiple of a step; partials of rows. */
static const char product_text[] = "input x f32[B, 301]\nparam w f32[150, 301]\na = linear(x, w)\nb = gelu(a)\n"
                                   "c = logsumexp(b, dim=1)\nreturn b, c\n";
/* rows of several warps; a narrow product */
static const char rows_text[] = "input x f32[B, 1500]\nparam w f32[3, 1500]\na = layer_norm(x, [1500])\n"
                                "b = linear(a, w)\nc = softmax(b, dim=1)\nreturn a, c\n";
/* a stage that wants all of another */
static const char columns_text[] = "input x f32[B, 40]\na = gelu(x)\nb = sum(a, dim=0, keepdim=true)\nc = sub(a, b)\n"
                                   "return c\n";
/* rows that do not begin at multiples of 16 bytes, where they are taken four at a time */
/* x is brought into lines by way of shared memory; more of them than there are stages */
static const char tensor_text[] = "input x f32[B, 300]\nparam w f32[150, 300]\na = linear(x, w)\nb = gelu(a)\n"
                                  "c = logsumexp(b, dim=1)\nreturn b, c\n";
static const char unaligned_text[] = "input x f32[B, 301]\nparam w f32[3, 301]\na = linear(x, w)\nreturn a\n";

/* where the machine may refuse what else gives wrong numbers */
#define LAUNCH "launching the program"

static const struct mistake {
    const char *units, *shape, *model, *from, *to;
    const char *message; /* of the run that fails, if it does; NULL: it does not, and the numbers are wrong */
} mistakes[] = {
    {"plain", "", product_text, "plain_sync();\n            fetch(k0 + STEP);", "fetch(k0 + STEP);", NULL},
    {"plain", "", product_text, "plain_sync();\n            if ((k0", "if ((k0", NULL},
    {"plain", "", product_text, "line < down && tx < deep", "line < down && tx <= deep", NULL},
    {"plain", "", product_text, "col >= across)", "col > across)", NULL},
    {"plain", "", product_text, "(k0 + STEP) % RUN == 0 || k0 + STEP >= k", "(k0 + STEP) % RUN == 0", NULL},
    {"plain", "", product_text, "plain_sync();", "if (threadIdx.x < 128) plain_sync();", "wait for others"},
    {"plain", "", product_text, "float[STEP][ROWS + 4]", "float[2 * STEP][ROWS + 4]", "past the shared memory"},
    {"plain", "", rows_text, "= s;\n        row_sync<T>();\n        s = of_warp[0];", "= s;\n        s = of_warp[0];",
     NULL},
    {"plain", "", rows_text, "    row_sync<T>();\n    return y;", "    return y;", NULL},
    {"plain", "", columns_text, "    grid_sync(c);\n", "", NULL},
    {"plain", "", columns_text, "wait_for(c.barrier, [=]", "wait_for(c.barrier + 1, [=]", "wait for others"},
    {"plain", "", unaligned_text, "if (((size_t)x & (W * sizeof(E) - 1)) == 0) { // no", "if (true) { // no",
     "misaligned"},
    /* Ampere's tensor cores: copies that are not waited for, or not by all; stages that are not free yet */
    {"mma", "", tensor_text, "copy_wait<S::STAGES - 2>();\n        __syncthreads();", "__syncthreads();", NULL},
    {"mma", "", tensor_text, "copy_wait<S::STAGES - 2>();\n        __syncthreads();", "copy_wait<S::STAGES - 2>();",
     NULL},
    {"mma", "", tensor_text, "copy_wait<S::STAGES - 2>", "copy_wait<S::STAGES - 1>", NULL},
    {"mma", "", tensor_text, "copy_wait<DEEP - 1>();", "copy_wait<DEEP>();", NULL},
    {"mma", "", tensor_text, "        __syncthreads(); // the stage that", "        // the stage that", NULL},
    {"mma", "", tensor_text, "        pair_sync();\n#pragma", "#pragma", NULL},
    /* another swizzle; other halves of the operands; sums that do not begin with 0 */
    {"mma", "", tensor_text, "(threadIdx.x ^ threadIdx.x / 8) % 8 * 16", "threadIdx.x % 8 * 16", NULL},
    {"mma", "", tensor_text, "lane / 8 % 2 ^ row_b % 8", "lane / 16 ^ row_b % 8", NULL},
    {"mma", "", tensor_text, "product(acc, p, 1, 0, fresh);", "product(acc, p, 0, 1, fresh);", NULL},
    {"mma", "", tensor_text, "&& c == 0 && p < across", "&& c == 0 && p <= across", NULL},
    /* Hopper's: copies and products that are not waited for, stages that are free too early, other descriptors and
       swizzles, halves that belong together, blocks that do not wait for each other */
    {"wgmma", "pairs", tensor_text, "ring.wait();\n            wgmma_fence();", "wgmma_fence();", LAUNCH},
    {"wgmma", "pairs", tensor_text, "wgmma_wait<0>();\n        pin(acc);\n        if (ends)", "if (ends)", LAUNCH},
    {"wgmma", "pairs", tensor_text,
     "wgmma_wait<0>();\n        pin(acc);\n        if (ends)\n            ring.free(ring.last, peer);",
     "if (ends)\n            ring.free(ring.last, peer);\n        wgmma_wait<0>();", LAUNCH},
    {"wgmma", "pairs", tensor_text, "TILE_HIGH 0x40000040", "TILE_HIGH 0x40000020", LAUNCH},
    {"wgmma", "pairs", tensor_text, "TILE_HIGH 0x40000040", "TILE_HIGH 0x00000040", LAUNCH},
    {"wgmma", "pairs", tensor_text, "PRODUCT(__VA_ARGS__, 6, 2, t)", "PRODUCT(__VA_ARGS__, 2, 6, t)", LAUNCH},
    {"wgmma", "pairs", tensor_text, "STAGE); // all that lands", "STAGE / 2); // all that lands", LAUNCH},
    {"wgmma", "pairs", tensor_text, "nt * S::N + rank * (S::N / CM)", "nt * S::N", LAUNCH},
    {"wgmma", "pairs", tensor_text, "cluster_sync();\n    if (threadIdx.x < 128) {", "if (threadIdx.x < 128) {",
     LAUNCH},
    {"wgmma", "few16", tensor_text, "barrier_wait<true>(r.ready, turn);", "", LAUNCH},
    {"wgmma", "few16", tensor_text, "barrier_wait_both(r.full_x + 8 * s, r.full_w + 8 * s, phase)",
     "barrier_wait(r.full_x + 8 * s, phase)", LAUNCH},
};

/* Short K, whose sums are promoted every half line. */
static const char short_text[] = "input x f32[B, 90]\nparam w f32[300, 90]\na = linear(x, w)\nb = gelu(a)\n"
                                 "c = softmax(b, dim=1)\nreturn a, c\n";

static void assert_shapes_agree(const char *text, const char *words, int64_t rows)
{
    rig first = rig_begin(1, text, words);
    tensors want = tensors_begin(first.model, &rows);
    tensors_eval(&want, first.model, first.program);
    OK_CALL(first.call, run_in_order(&first, &want, 0));
    if (strcmp(words, "device=cuda") == 0)
        assert_close(&want, tolerance(300), words);
    for (int shape = 0; shape < LF_TILE_SHAPES; shape++) {
        assert_int_equal(setenv("LINFUSE_CUDA_SHAPE", lf_tile_table[shape].name, 1), 0);
        rig r = rig_begin(1, text, words);
        tensors t = tensors_begin(r.model, &rows);
        OK_CALL(r.call, run_in_order(&r, &t, shape % ORDERS));
        assert_same_bits(&want, &t, lf_tile_table[shape].name);
        tensors_end(&t);
        rig_end(&r);
    }
    assert_int_equal(unsetenv("LINFUSE_CUDA_SHAPE"), 0);
    tensors_end(&want);
    rig_end(&first);
}

/* Hopper's, whichever they are told to take; one that cannot serve leaves it to another. */
static void shapes_give_the_same_bits(void **state)
{
    (void)state;
    assert_int_equal(setenv("LINFUSE_CUDA", "wgmma", 1), 0);
    assert_shapes_agree(tensor_text, "device=cuda", 13);
    assert_shapes_agree(short_text, "device=cuda", 140);
    assert_shapes_agree(tensor_text, "device=cuda precision=tf32", 60);
    assert_int_equal(setenv("LINFUSE_CUDA", "plain", 1), 0);
}

/* Is it found, in one order or another? */
static bool is_found(const struct mistake *m)
{
    const int64_t rows = strncmp(m->shape, "few", 3) == 0 ? 13 : 200;
    bool found = false;
    assert_int_equal(setenv("LINFUSE_CUDA", m->units, 1), 0);
    assert_int_equal(setenv("LINFUSE_CUDA_SHAPE", m->shape, 1), 0);
    rig r = rig_begin(1, m->model, "device=cuda");
    tensors t = tensors_begin(r.model, &rows);
    tensors_eval(&t, r.model, r.program);
    for (int order = 0; order < ORDERS && !found; order++) {
        const lf_status status = run_in_order(&r, &t, order);
        if (status != LF_OK)
            found = m->message && strstr(lf_call_message(r.call), m->message);
        for (size_t i = 0; i < t.outs && status == LF_OK; i++)
            found = found || !(worst_error(t.out[i], t.want[i], t.out_count[i]) < 1e-5);
    }
    tensors_end(&t);
    rig_end(&r);
    return found;
}

static void mistakes_are_found(void **state)
{
    (void)state;
    bool all = true;
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        assert_int_equal(cache_begin(), 0); /* one goes by the text that was asked for */
        host_gpu_change_from = mistakes[i].from, host_gpu_change_to = mistakes[i].to;
        if (!is_found(&mistakes[i])) {
            print_error("not found: '%s' in the place of '%s'\n", mistakes[i].to, mistakes[i].from);
            all = false;
        }
        host_gpu_change_from = host_gpu_change_to = NULL;
        cache_end();
    }
    assert_int_equal(unsetenv("LINFUSE_CUDA_SHAPE"), 0);
    assert_true(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_mean_the_same_in_either_order),
        cmocka_unit_test(products_share_what_they_multiply),
        cmocka_unit_test(shapes_give_the_same_bits),
        cmocka_unit_test(mistakes_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
