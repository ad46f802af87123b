/* SPDX-License-Identifier: Apache-2.0 */
/* Models in f16 and bf16 on the CPU, on every table: as close to double precision as PyTorch is, which rounds after
 * every op; the same bits for any number of threads and rows; special values rounded as PyTorch rounds them. */
#include "cpu_models.h"
#include "cpu_support.h"

static lf_pool *pools[4]; /* by threads */

static int make_pools(void **state)
{
    (void)state;
    for (int t = 1; t <= 3; t++)
        if (lf_pool_new(t, &pools[t]) != LF_OK)
            return -1;
    return 0;
}

static int free_pools(void **state)
{
    (void)state;
    for (int t = 1; t <= 3; t++)
        lf_pool_free(pools[t]);
    return 0;
}

/* ---- texts ---- */

/* The types a model's ports get. */
typedef struct typing {
    const char *input, *param;
} typing;

static const typing typings[] = {{"bf16", "bf16"}, {"f16", "f16"}, {"bf16", "f32"}, {"f32", "f16"}};
enum { TYPINGS = sizeof typings / sizeof typings[0] };

/* The text with its extents, and its ports of those types. Caller frees. */
static char *typed_text(const char *text, int64_t n, int64_t k, typing t)
{
    int64_t groups = 1;
    for (int64_t g = 2; g <= 6; g++)
        groups = n % g == 0 ? g : groups;
    char *plain = rig_text(text, "NKG", (const int64_t[]){n, k, groups});
    char *out = calloc(1, 2 * strlen(plain) + 1);
    assert_non_null(out);
    const char *type = t.input;
    for (const char *at = plain; *at;) {
        if (strncmp(at, "input ", 6) == 0 || strncmp(at, "param ", 6) == 0)
            type = *at == 'i' ? t.input : t.param;
        if (strncmp(at, " f32[", 5) == 0) {
            strcat(strcat(strcat(out, " "), type), "[");
            at += 5;
        } else {
            strncat(out, at++, 1);
        }
    }
    free(plain);
    return out;
}

/* PyTorch would not mix these types in this model, or its extents do not fit. */
static bool is_refused(const char *text)
{
    lf_arena arena;
    lf_diag diag;
    lf_graph graph;
    lf_arena_init(&arena);
    const bool refused = lf_graph_init(&graph, &arena, &diag) != LF_OK ||
                         lf_text_read(&graph, "test", text, strlen(text)) != LF_OK;
    lf_arena_free(&arena);
    return refused;
}

/* ---- what PyTorch would compute: every op in double precision, rounded to its type ---- */

static void round_to(lf_dtype type, double *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        float f = (float)x[i];
        unsigned char bits[4];
        lf_from_f32(type, &f, bits, 1, 1);
        lf_to_f32(type, bits, 1, &f, 1);
        x[i] = (double)f;
    }
}

/* One value per node; caller frees each. */
static double **eager(rig *r, const int64_t *dims, const rig_ports *in)
{
    const lf_graph *g = &r->graph;
    double **value = calloc((size_t)g->count, sizeof *value);
    lf_bound *bound = calloc((size_t)g->count, sizeof *bound);
    assert_true(value && bound);
    for (int32_t i = 0; i < g->inputs; i++)
        bound[g->input[i]].data = in->data[i];
    for (int32_t i = 0; i < g->params; i++)
        bound[g->param[i]].data = r->param[g->param[i]];
    for (lf_node n = 0; n < g->count; n++) {
        const int64_t count = lf_shape_count(&lf_at(g, n)->shape, dims);
        value[n] = malloc((size_t)(count + 1) * sizeof(double));
        assert_non_null(value[n]);
        rig_ok(r, lf_eval(g, dims, bound, &n, 1, &value[n], &r->diag));
        const lf_kind kind = lf_kind_of(g, n);
        if (kind == LF_LEAF || kind == LF_VIEW)
            continue;
        round_to(lf_at(g, n)->dtype, value[n], count);
        bound[n] = (lf_bound){.f64 = value[n], .known = true};
    }
    free(bound);
    return value;
}

/* Half of a unit in the last place, relative; of f32 what a kernel's sums may be off. */
static double unit_of(lf_dtype type)
{
    return type == LF_BF16 ? 0x1p-9 : type == LF_F16 ? 0x1p-12 : 1e-5;
}

/* No further off, at worst and on the whole, than rounding after every op; own rounding included. */
static void compare(const char *what, lf_dtype type, const float *y, const double *ref, const double *plain,
                    int64_t count, double tolerance)
{
    double worst = 0, squares = 0, off = 0, plain_off = 0;
    int64_t finite = 0;
    for (int64_t i = 0; i < count; i++)
        if (isfinite(ref[i]) && isfinite(plain[i])) {
            worst = fmax(worst, fabs(plain[i] - ref[i]));
            squares += ref[i] * ref[i];
            plain_off += (plain[i] - ref[i]) * (plain[i] - ref[i]);
            finite++;
        }
    const double rms = finite ? sqrt(squares / (double)finite) : 0;
    for (int64_t i = 0; i < count; i++, cases++) {
        double nearest = ref[i];
        round_to(type, &nearest, 1);
        if (!isfinite(nearest) || !isfinite(plain[i])) {
            if (isnan(ref[i]) != isnan(y[i]) && isnan(plain[i]) != isnan(y[i]))
                fail_msg("%s: element %d is %g, not %g", what, (int)i, (double)y[i], ref[i]);
            continue;
        }
        off += ((double)y[i] - ref[i]) * ((double)y[i] - ref[i]);
        const double own = 1.01 * unit_of(type) * fabs(ref[i]) + 0x1p-25;
        const double bound = worst + own + tolerance * fmax(fabs(ref[i]), rms);
        if (!(fabs((double)y[i] - ref[i]) <= bound))
            fail_msg("%s: element %d of %d is %.9g, not %.17g; off by more than %g, with a rounding per op %.9g", what,
                     (int)i, (int)count, (double)y[i], ref[i], bound, plain[i]);
    }
    const double most = 1.1 * sqrt(plain_off) + (tolerance + 0.1 * unit_of(type)) * sqrt(squares) + 0x1p-25;
    if (!(sqrt(off) <= most))
        fail_msg("%s: off by %g in all, rounding per op by %g", what, sqrt(off), sqrt(plain_off));
}

/* ---- models ---- */

static size_t bytes_of(const rig *r, int32_t output, int64_t count)
{
    return (size_t)count * lf_dtype_size(lf_at(&r->graph, r->graph.output[output])->dtype);
}

static void run_typed(const model *m, const char *text, bool fuse, const lf_kern *kern, int64_t batch)
{
    rig r;
    char what[160];
    rig_open(&r, text, fuse, kern);
    const int64_t dims[LF_MAX_SYMBOLS] = {batch}, fewer[LF_MAX_SYMBOLS] = {(batch + 1) / 2};
    rig_ports in = rig_inputs(&r, dims, RIG_UNIFORM), part = rig_inputs(&r, fewer, RIG_UNIFORM);
    rig_ports one = rig_run(&r, dims, &in, pools[1], NULL, batch), all = rig_run(&r, dims, &in, pools[3], NULL, batch);
    rig_ports some = rig_run(&r, fewer, &part, pools[2], NULL, fewer[0]);
    double **plain = eager(&r, dims, &in), *ref[RIG_PORTS] = {0};
    rig_eval(&r, dims, &in, ref);
    for (int32_t i = 0; i < r.graph.outputs; i++) {
        const lf_node n = r.graph.output[i];
        snprintf(what, sizeof what, "%s, output %d in %s, %s, %s, batch %d", m->name, (int)i,
                 lf_dtype_name(lf_at(&r.graph, n)->dtype), fuse ? "fused" : "op by op", kern->isa, (int)batch);
        compare(what, lf_at(&r.graph, n)->dtype, one.data[i], ref[i], plain[n], one.count[i], m->tolerance);
        if (memcmp(one.typed[i], all.typed[i], bytes_of(&r, i, one.count[i])) != 0)
            fail_msg("%s: other bits with other threads", what);
        if (!m->columns && memcmp(one.typed[i], some.typed[i], bytes_of(&r, i, some.count[i])) != 0)
            fail_msg("%s: other bits in a smaller batch", what);
        free(ref[i]);
    }
    for (lf_node n = 0; n < r.graph.count; n++)
        free(plain[n]);
    free(plain);
    rig_ports_free(&in);
    rig_ports_free(&part);
    rig_ports_free(&one);
    rig_ports_free(&all);
    rig_ports_free(&some);
    rig_close(&r);
}

static void models_match(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = {/* N, K, batch */ {1, 1, 1}, {7, 1, 5}, {1, 7, 7}, {37, 300, 17}, {300, 33, 9}};
    int ran = 0;
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int i = 0; i < MODELS; i += rig_step())
            for (int s = rig_slow() ? 3 : 0; s < 5; s += rig_slow() ? 2 : 1)
                for (int k = 0; k < TYPINGS; k++) {
                    const int64_t n = sizes[s][0], depth = sizes[s][1];
                    if (n < models[i].least || depth < models[i].least)
                        continue;
                    char *text = typed_text(models[i].text, n, depth, typings[k]);
                    if (!is_refused(text)) {
                        run_typed(&models[i], text, true, lf_kern_at(t), sizes[s][2]);
                        if (s == 3)
                            run_typed(&models[i], text, false, lf_kern_at(t), sizes[s][2]);
                        ran++;
                    }
                    free(text);
                }
    assert_true(ran > MODELS);
}

static void long_rows_match(void **state)
{
    (void)state;
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int i = (int)t; i < MODELS; i += rig_slow() ? 12 : 4)
            for (int k = 0; k < 2; k++) {
                char *text = typed_text(models[i].text, 8191, 3, typings[k]);
                if (!is_refused(text) && !strstr(text, "{N}"))
                    run_typed(&models[i], text, true, lf_kern_at(t), 3);
                free(text);
            }
}

static void pointwise_ops_match(void **state)
{
    (void)state;
    for (int op = 0; op < LF_OP_COUNT; op++)
        for (int k = 0; k < TYPINGS; k++) {
            const lf_op_info *row = lf_op_row((lf_op)op);
            if (row->kind != LF_POINTWISE)
                continue;
            const char *attributes = op == LF_OP_clamp ? ", -0.5, 0.25"
                                     : op == LF_OP_pow ? ", 3"
                                     : op == LF_OP_to  ? ", \"bf16\""
                                                       : "";
            char text[512];
            snprintf(text, sizeof text,
                     "input x f32[B, {N}]\nparam y f32[{N}]\na = %s(x%s%s)\nb = mul(a, 2)\nreturn a, b\n", row->name,
                     row->arg_count == 2 ? ", y" : "", attributes);
            char *typed = typed_text(text, 300, 1, typings[k]);
            const model m = {row->name, NULL, 1, false, 1e-6};
            for (size_t t = 0; lf_kern_at(t); t++)
                run_typed(&m, typed, true, lf_kern_at(t), 11);
            free(typed);
        }
}

/* ---- special values ---- */

/* out[i] = what the model makes of x. */
static void run_values(const char *text, const lf_kern *kern, const float *x, int64_t count, float *out, uint16_t *bits)
{
    rig r;
    rig_open(&r, text, true, kern);
    const int64_t dims[LF_MAX_SYMBOLS] = {count};
    rig_ports in = rig_inputs(&r, dims, RIG_UNIFORM);
    assert_int_equal(in.count[0], count);
    const lf_dtype type = lf_at(&r.graph, r.graph.input[0])->dtype;
    lf_from_f32(type, x, in.typed[0], 1, count);
    rig_ports y = rig_run(&r, dims, &in, pools[1], NULL, count);
    memcpy(out, y.data[0], (size_t)count * sizeof *out);
    if (bits)
        memcpy(bits, y.typed[0], (size_t)count * sizeof *bits);
    rig_ports_free(&in);
    rig_ports_free(&y);
    rig_close(&r);
}

/* Rounded to nearest, ties to even; too large: infinite; a NaN stays one; denormals and the sign of zero are kept. */
static void stores_round(void **state)
{
    (void)state;
    static const float x[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 65504.0f, 65519.0f, 65520.0f, -1e30f, 3.4e38f,
                              0x1p-24f, 0x1p-25f, 0x1.8p-25f, -0x1.4p-24f, 1.0f + 0x1p-8f, 1.0f + 0x1.8p-8f,
                              1.0f + 0x1p-11f, 1.0f + 0x1.8p-10f, 0x1p-126f, 0x1p-133f, 0x1p-134f};
    enum { COUNT = sizeof x / sizeof x[0] };
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int h = 0; h < 2; h++) {
            const lf_dtype type = h ? LF_BF16 : LF_F16;
            char text[128];
            float y[COUNT];
            uint16_t got[COUNT], want[COUNT];
            snprintf(text, sizeof text, "input x f32[B, 1]\na = to(x, dtype=\"%s\")\nreturn a\n", lf_dtype_name(type));
            run_values(text, lf_kern_at(t), x, COUNT, y, got);
            lf_from_f32(type, x, want, 1, COUNT);
            for (int i = 0; i < COUNT; i++, cases++)
                if (isnan(x[i]) ? !isnan(y[i]) : got[i] != want[i])
                    fail_msg("%s: %a as %s is %a", lf_kern_at(t)->isa, (double)x[i], lf_dtype_name(type), (double)y[i]);
        }
}

/* A cast back and forth between ops of one kernel rounds nothing: values stay f32 until they are stored. */
static void casts_inside_round_nothing(void **state)
{
    (void)state;
    const float x[] = {1.0f + 0x1p-20f, 1e6f};
    float y[2];
    run_values("input x f32[B, 1]\na = to(x, dtype=\"f16\")\nb = to(a, dtype=\"f32\")\nreturn b\n", lf_kern_pick(), x,
               2, y, NULL);
    assert_true(y[0] == x[0] && y[1] == x[1]);
    run_values("input x f32[B, 1]\na = to(x, dtype=\"f16\")\nb = to(a, dtype=\"f32\")\nc = mul(b, 2)\nreturn c\n",
               lf_kern_pick(), x, 2, y, NULL);
    assert_true(y[0] == 2 * x[0] && y[1] == 2 * x[1]);
    cases++;
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, some_ran)
    const struct CMUnitTest tests[] = {
        TEST(models_match),  TEST(long_rows_match), TEST(pointwise_ops_match),
        TEST(stores_round), TEST(casts_inside_round_nothing),
    };
    return cmocka_run_group_tests(tests, make_pools, free_pools);
}
