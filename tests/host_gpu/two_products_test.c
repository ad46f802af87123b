/* SPDX-License-Identifier: Apache-2.0 */
/* Two products of one x that tensor cores make as one, run without a GPU: the bits of the same products made apart, in
 * all types and precisions, with every shape of tiles and for any number of rows; statistics behind them. */
#include "api_fixture.h"
#include "base/dtype.h"
#include "plan/gpu.h"

#include "machine.h"

enum { MOST_ROWS = 300, DOWN = 1, LATE = 2, ORDERS = 4 };

static void set_unit(const char *unit)
{
    assert_int_equal(setenv("LINFUSE_CUDA", unit, 1), 0);
}

/* "": the cost model's. */
static void set_shape(const char *shape)
{
    assert_int_equal(setenv("LINFUSE_CUDA_SHAPE", shape, 1), 0);
}

/* ---- models ---- */

/* What a model is made of; is_kn: the second weight lies as matmul has it. */
typedef struct making {
    const char *type; /* of x and the weights */
    int n, k;
    const char *op; /* of the first product */
    bool bias, is_kn;
    const char *tail; /* of h, and what is returned */
} making;

/* apart: the second product multiplies another x. Values behind products are f32, so that storing one rounds nothing.
 * Caller frees. */
static char *text_of(const making *m, bool apart)
{
    char *text = malloc(4096);
    assert_non_null(text);
    int used = snprintf(text, 4096, "input x %s[B, %d]\nparam g %s[%d, %d]\n", m->type, m->k, m->type, m->n, m->k);
    if (apart)
        used += snprintf(text + used, 4096 - (size_t)used, "input z %s[B, %d]\n", m->type, m->k);
    used += snprintf(text + used, 4096 - (size_t)used, "param u %s[%d, %d]\n", m->type, m->is_kn ? m->k : m->n,
                     m->is_kn ? m->n : m->k);
    if (m->bias)
        used += snprintf(text + used, 4096 - (size_t)used, "param c %s[%d]\nparam d %s[%d]\n", m->type, m->n, m->type,
                         m->n);
    used += snprintf(text + used, 4096 - (size_t)used,
                     "a0 = linear(x, g%s)\nb0 = %s(%s, u)\na = to(a0, dtype=\"f32\")\nb1 = to(b0, dtype=\"f32\")\n"
                     "%sv = %s(a)\nh = mul(v, b)\n%s",
                     m->bias ? ", c" : "", m->is_kn ? "matmul" : "linear", apart ? "z" : "x",
                     m->bias ? "d1 = to(d, dtype=\"f32\")\nb = add(b1, d1)\n" : "b = neg(b1)\n", m->op, m->tail);
    assert_true(used < 4096);
    return text;
}

/* Fills x with elements of the model's type, and z with the same. special: a few rows get what not every unit can hold,
 * which changes no other. */
static void draw(tensors *t, const making *m, bool special)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY, 1e30f, 1e-30f, 0.0f};
    const size_t rows = t->in_count[0] / (size_t)m->k;
    for (size_t i = 0; special && i < sizeof odd / sizeof *odd; i++)
        if (i * 7 % 23 < rows)
            t->in[0][i * 7 % 23 * (size_t)m->k + i % (size_t)m->k] = odd[i];
    for (size_t i = 0; i < t->in_count[0]; i++) { /* in place: they are no longer than f32 */
        const float x = t->in[0][i];
        const lf_dtype type = lf_model_port_dtype(t->model, LF_PORT_INPUT, 0);
        lf_from_f32(type, &x, (char *)t->in[0] + i * lf_dtype_size(type), 1, 1);
    }
    if (t->ins > 1)
        memcpy(t->in[1], t->in[0], t->in_count[0] * sizeof(float));
}

static void run(rig *r, tensors *t, int order)
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
    OK_CALL(r->call, run_at(r->call, t->dims, in, out, 0));
}

static bool shares(rig *r)
{
    char *words = NULL;
    OK_PROGRAM(r->program, lf_program_explain(r->program, NULL, false, &words));
    const bool found = strstr(words, "2 products share x");
    lf_string_free(words);
    return found;
}

/* All NaN are one. */
static void assert_rows_same(const tensors *one, const tensors *other, int64_t rows, const char *what)
{
    for (size_t o = 0; o < one->outs; o++) {
        const size_t width = other->out_count[o] / (size_t)other->dims[0];
        for (size_t i = 0; i < (size_t)rows * width; i++) {
            const float a = one->out[o][i], b = other->out[o][i];
            if (memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b)))
                continue;
            print_error("%s: output %zu, row %zu, column %zu: %a and %a\n", what, o, i / width, i % width, (double)a,
                        (double)b);
            fail();
        }
    }
}

/* ---- tests ---- */

/* A run of fewer rows gives what the same rows of `most` are. */
static void assert_as_in_a_batch(rig *r, const tensors *most, int64_t rows, int order, const char *what)
{
    tensors t = tensors_begin(r->model, &rows);
    memcpy(t.in[0], most->in[0], t.in_count[0] * sizeof(float)); /* of f32; of shorter ones too much, and no less */
    run(r, &t, order);
    assert_rows_same(&t, most, rows, what);
    tensors_end(&t);
}

static void assert_as_apart(const making *m, const char *words)
{
    static const int64_t fewer[] = {1, 7, 129};
    const int64_t rows = MOST_ROWS;
    char *text = text_of(m, false), *text_apart = text_of(m, true), what[128];
    rig r = rig_begin(1, text, words), apart = rig_begin(1, text_apart, words);
    tensors got = tensors_begin(r.model, &rows), want = tensors_begin(apart.model, &rows);
    snprintf(what, sizeof what, "%s %s %s of %d x %d", getenv("LINFUSE_CUDA"), words, m->type, m->n, m->k);
    assert_true(shares(&r));
    assert_false(shares(&apart));
    draw(&got, m, true);
    draw(&want, m, true);
    run(&r, &got, 0);
    run(&apart, &want, 0);
    assert_rows_same(&got, &want, rows, what);
    for (size_t i = 0; i < sizeof fewer / sizeof *fewer; i++)
        assert_as_in_a_batch(&r, &got, fewer[i], (int)i + 1, what);
    tensors_end(&got);
    tensors_end(&want);
    rig_end(&r);
    rig_end(&apart);
    free(text);
    free(text_apart);
}

static const char *const units[] = {"mma", "wgmma"};
enum { UNITS = sizeof units / sizeof *units };

static void bits_are_those_of_products_apart(void **state)
{
    (void)state;
    static const struct {
        const char *words;
        making m;
    } cases[] = {
        {"device=cuda", {"f32", 200, 100, "silu", false, true, "return h\n"}},
        {"device=cuda", {"f32", 131, 301, "gelu", true, false, "return h, v\n"}},
        {"device=cuda precision=tf32", {"f32", 77, 70, "relu", true, true, "return h\n"}},
        {"device=cuda precision=bf16", {"f32", 136, 128, "sigmoid", false, false, "return h\n"}},
        {"device=cuda precision=fp16", {"f32", 9, 333, "silu", true, false, "return h\n"}},
        {"device=cuda", {"bf16", 264, 192, "silu", false, false, "return h\n"}},
        {"device=cuda", {"bf16", 65, 71, "silu", true, true, "return h\n"}},
        {"device=cuda", {"f16", 140, 64, "gelu", true, false, "return h\n"}},
        {"device=cuda", {"f16", 33, 99, "silu", false, true, "return h\n"}},
    };
    for (int u = 0; u < UNITS; u++) {
        set_unit(units[u]);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            assert_as_apart(&cases[i].m, cases[i].words);
    }
    set_unit("plain");
}

/* What is stored has the bits of any other shape. */
static void shapes_give_the_same_bits(void **state)
{
    (void)state;
    static const making made[] = {
        {"bf16", 200, 130, "silu", true, false, "s = softmax(h, dim=1)\nreturn h, s\n"},
        {"f32", 149, 90, "silu", true, false, "l = logsumexp(h, dim=1)\nreturn h, l\n"},
        {"f32", 149, 200, "silu", true, false, "l = layer_norm(h, [149])\nreturn h, l\n"},
    };
    static const int64_t fewer[] = {13, 60, 200};
    for (int u = 0; u < UNITS; u++)
        for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
            char *text = text_of(&made[i], false);
            const int64_t rows = 200;
            set_unit(units[u]);
            set_shape("pairs");
            rig first = rig_begin(1, text, "device=cuda");
            tensors want = tensors_begin(first.model, &rows);
            draw(&want, &made[i], false);
            run(&first, &want, 0);
            for (int shape = 0; shape < LF_TILE_SHAPES; shape++) {
                set_shape(lf_tile_table[shape].name);
                rig r = rig_begin(1, text, "device=cuda");
                for (size_t f = 0; f < sizeof fewer / sizeof *fewer; f++)
                    assert_as_in_a_batch(&r, &want, fewer[f], shape % ORDERS, lf_tile_table[shape].name);
                rig_end(&r);
            }
            assert_int_equal(unsetenv("LINFUSE_CUDA_SHAPE"), 0);
            tensors_end(&want);
            rig_end(&first);
            free(text);
        }
    set_unit("plain");
}

/* With statistics of rows behind them, against double precision. */
static void statistics_follow(void **state)
{
    (void)state;
    static const char *const tails[] = {
        "s = softmax(h, dim=1)\nreturn s\n",
        "s = logsumexp(h, dim=1)\nreturn s, h\n",
        "s = layer_norm(h, [150])\nw = sum(v, dim=1)\nreturn s, w\n",
        "s = mean(h, dim=1, keepdim=true)\nw = sub(h, s)\nreturn w\n",
    };
    for (int u = 0; u < UNITS; u++)
        for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
            const making m = {"f32", 150, 70, i % 2 ? "tanh" : "silu", i > 1, i == 1, tails[i]};
            const int64_t rows = 131;
            char *text = text_of(&m, false);
            set_unit(units[u]);
            rig r = rig_begin(1, text, "device=cuda");
            assert_true(shares(&r));
            tensors t = tensors_begin(r.model, &rows);
            tensors_eval(&t, r.model, r.program);
            run(&r, &t, (int)i % ORDERS);
            assert_close(&t, tolerance(150), tails[i]);
            tensors_end(&t);
            rig_end(&r);
            free(text);
        }
    set_unit("plain");
}

/* ---- x as it lies ---- */

static rig rig_of(const char *ports, const char *type, const char *body, const char *words)
{
    char text[1024];
    int used = 0;
    for (const char *at = ports; *at; at++) /* # stands for the type */
        used += snprintf(text + used, sizeof text - (size_t)used, *at == '#' ? "%s" : "%.1s", *at == '#' ? type : at);
    snprintf(text + used, sizeof text - (size_t)used, "%s", body);
    return rig_begin(1, text, words);
}

static void assert_lies_so(rig *r, const char *type)
{
    char *text = NULL;
    OK_PROGRAM(r->program, lf_program_emit(r->program, "sm_90a", &text));
    if (strstr(text, "BROUGHT = 1") || !strstr(text, "    written_to_copied();\n    grid_sync(c);\n"))
        print_error("%s: x is brought into lines\n", type);
    assert_null(strstr(text, "BROUGHT = 1"));
    assert_non_null(strstr(text, "    written_to_copied();\n    grid_sync(c);\n    written_to_copied();\n"));
    lf_string_free(text);
}

/* Of a gated MLP x and what its last product multiplies lie as they are read: the bits of that product by itself, of an
 * input that has what the others made. */
static void x_is_read_as_it_lies(void **state)
{
    (void)state;
    static const struct {
        const char *type, *words;
    } cases[] = {{"bf16", "device=cuda"}, {"f32", "device=cuda precision=tf32"}};
    static const char *const shapes[] = {"pairs", "turns", "few16"};
    static const char ports[] = "input x #[B, 128]\nparam g #[192, 128]\nparam u #[192, 128]\n",
                      gate[] = "a = linear(x, g)\nb = linear(x, u)\ns = silu(a)\nh = mul(s, b)\n";
    set_unit("wgmma");
    for (size_t i = 0; i < 2 * 3; i++) {
        const int64_t rows = i % 3 == 2 ? 13 : 200;
        const char *type = cases[i / 3].type, *words = cases[i / 3].words;
        const making m = {.type = type, .n = 192, .k = 128};
        char body[512];
        set_shape(shapes[i % 3]);
        snprintf(body, sizeof body, "param d %s[130, 192]\n%sy = linear(h, d)\nreturn y\n", type, gate);
        rig all = rig_of(ports, type, body, words);
        snprintf(body, sizeof body, "%sreturn h\n", gate);
        rig first = rig_of(ports, type, body, words),
            second = rig_of("input h #[B, 192]\nparam d #[130, 192]\n", type, "y = linear(h, d)\nreturn y\n", words);
        assert_true(shares(&all));
        assert_lies_so(&all, type);
        tensors y = tensors_begin(all.model, &rows), h = tensors_begin(first.model, &rows),
                want = tensors_begin(second.model, &rows);
        draw(&y, &m, false);
        draw(&h, &m, false);
        run(&first, &h, 0);
        memcpy(want.in[0], h.out[0], want.in_count[0] * sizeof(float));
        run(&second, &want, 0);
        for (int order = 0; order < ORDERS; order++) {
            run(&all, &y, order);
            assert_memory_equal(y.out[0], want.out[0],
                                y.out_count[0] * lf_dtype_size(lf_model_port_dtype(all.model, LF_PORT_OUTPUT, 0)));
        }
        tensors_end(&y);
        tensors_end(&h);
        tensors_end(&want);
        rig_end(&all);
        rig_end(&first);
        rig_end(&second);
    }
    assert_int_equal(unsetenv("LINFUSE_CUDA_SHAPE"), 0);
    set_unit("plain");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_those_of_products_apart),
        cmocka_unit_test(shapes_give_the_same_bits),
        cmocka_unit_test(statistics_follow),
        cmocka_unit_test(x_is_read_as_it_lies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
