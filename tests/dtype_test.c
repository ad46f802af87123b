/* SPDX-License-Identifier: Apache-2.0 */
/* Models in f16 and bf16 on the CPU, on every table: as close to double precision as PyTorch is, which rounds after
 * every op; the same bits for any number of threads and rows; special values rounded as PyTorch rounds them.
 * LINFUSE_TEST_DEVICE=cuda: programs alone, on the GPU. */
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

/* How many times as far off as rounding after every op a model may be: as it is written, and rewritten. Then sums are
 * taken in another order, and values that are stored, and rounded, between two kernels are others. */
enum { AS_WRITTEN = 1, REWRITTEN = 3 };

/* No further off, at worst and on the whole, own rounding included. */
static void compare(const char *what, lf_dtype type, int times, const float *y, const double *ref, const double *plain,
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
        const double bound = times * worst + own + tolerance * fmax(fabs(ref[i]), rms);
        if (!(fabs((double)y[i] - ref[i]) <= bound))
            fail_msg("%s: element %d of %d is %.9g, not %.17g; off by more than %g, with a rounding per op %.9g", what,
                     (int)i, (int)count, (double)y[i], ref[i], bound, plain[i]);
    }
    const double chance = finite < 64 ? 1 : 0.1; /* of a few elements, own rounding may go either way */
    const double most = 1.1 * times * sqrt(plain_off) + (tolerance + chance * unit_of(type)) * sqrt(squares) + 0x1p-25;
    if (!(sqrt(off) <= most))
        fail_msg("%s: off by %g in all, rounding per op by %g", what, sqrt(off), sqrt(plain_off));
}

/* ---- models ---- */

static size_t bytes_of(const rig *r, int32_t output, int64_t count)
{
    return (size_t)count * lf_dtype_size(lf_at(&r->graph, r->graph.output[output])->dtype);
}

static void run_typed(const cpu_model *m, const char *text, bool fuse, const lf_kern *kern, int64_t batch)
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
        compare(what, lf_at(&r.graph, n)->dtype, AS_WRITTEN, one.data[i], ref[i], plain[n], one.count[i], m->tolerance);
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

/* ---- the same through the library's calls: rewritten, guarded, rows redone ---- */

#define OK(kind, handle, call)                                                                                       \
    do {                                                                                                             \
        if ((call) != LF_OK)                                                                                         \
            fail_msg("%s: %s", #call, lf_##kind##_message(handle));                                                  \
    } while (0)

/* A value at these extents, which are written to `extents`. */
static lf_tensor tensor_of(const lf_graph *g, lf_node node, const int64_t *dims, int64_t *extents, void *data)
{
    const lf_node_info *info = lf_at(g, node);
    for (int axis = 0; axis < info->shape.rank; axis++)
        extents[axis] = lf_extent_at(info->shape.dim[axis], dims);
    return (lf_tensor){.data = data, .dtype = info->dtype, .rank = info->shape.rank, .extents = extents};
}

/* A program for the device that is tested, and what it comes from. */
typedef struct made {
    lf_context *context;
    lf_model *model;
    lf_program *program;
} made;

static const char *tested_device(void)
{
    return getenv("LINFUSE_TEST_DEVICE");
}

static made made_begin(const char *text)
{
    made m = {0};
    lf_options *options = NULL;
    assert_int_equal(lf_context_new(&m.context), LF_OK);
    OK(context, m.context, lf_model_read(m.context, "test", text, strlen(text), &m.model));
    OK(context, m.context, lf_options_new(m.context, &options));
    if (tested_device())
        OK(options, options, lf_options_set(options, "device", tested_device()));
    OK(model, m.model, lf_program_new(m.model, options, &m.program));
    lf_options_free(options);
    return m;
}

static void made_end(made *m)
{
    lf_program_free(m->program);
    lf_model_free(m->model);
    lf_context_free(m->context);
}

static void run_program(const cpu_model *m, const char *text, int64_t batch, bool odd)
{
    rig r; /* for data and references */
    char what[160];
    rig_open(&r, text, true, lf_kern_pick());
    const int64_t dims[LF_MAX_SYMBOLS] = {batch};
    rig_ports in = rig_inputs(&r, dims, RIG_UNIFORM), out = rig_outputs(&r, dims);
    const lf_dtype type = lf_at(&r.graph, r.graph.input[0])->dtype;
    if (odd) { /* in one row, or in two */
        const float bad[] = {INFINITY, NAN};
        lf_from_f32(type, bad, (uint8_t *)in.typed[0] + (size_t)(in.count[0] / 2) * lf_dtype_size(type), 1, 1);
        lf_from_f32(type, bad + 1, (uint8_t *)in.typed[0] + (size_t)(in.count[0] - 1) * lf_dtype_size(type), 1, 1);
        lf_to_f32(type, in.typed[0], 1, in.data[0], in.count[0]);
    }
    made of = made_begin(text);
    lf_program *program = of.program;
    lf_call *call = NULL;
    int64_t extents[LF_MAX_RANK];
    for (int32_t i = 0; i < r.graph.params; i++) {
        const lf_node param = r.graph.param[i];
        const lf_tensor values = tensor_of(&r.graph, param, dims, extents, r.typed[param]);
        OK(program, program,
           lf_program_set_param(program, lf_at(&r.graph, param)->name, &values, i % 2 ? LF_COPY : LF_BORROW, NULL));
    }
    OK(program, program, lf_program_prepare(program));
    assert_true(lf_program_params_hold(program));
    assert_int_equal(lf_call_new(program, &call), LF_OK);
    for (int32_t i = 0; i < r.graph.inputs; i++) {
        const lf_tensor input = tensor_of(&r.graph, r.graph.input[i], dims, extents, in.typed[i]);
        OK(call, call, lf_call_set_input(call, (size_t)i, &input));
    }
    for (int32_t i = 0; i < r.graph.outputs; i++) {
        const lf_tensor output = tensor_of(&r.graph, r.graph.output[i], dims, extents, out.typed[i]);
        OK(call, call, lf_call_set_output(call, (size_t)i, &output));
    }
    OK(call, call, lf_call_run(call, NULL));
    double **plain = eager(&r, dims, &in), *ref[RIG_PORTS] = {0};
    rig_eval(&r, dims, &in, ref);
    for (int32_t i = 0; i < r.graph.outputs; i++) {
        const lf_node n = r.graph.output[i];
        rig_take_output(&r, &out, i);
        snprintf(what, sizeof what, "%s, output %d in %s, by a program%s", m->name, (int)i,
                 lf_dtype_name(lf_at(&r.graph, n)->dtype), odd ? ", odd rows" : "");
        compare(what, lf_at(&r.graph, n)->dtype, REWRITTEN, out.data[i], ref[i], plain[n], out.count[i],
                m->tolerance);
        free(ref[i]);
    }
    for (lf_node n = 0; n < r.graph.count; n++)
        free(plain[n]);
    free(plain);
    lf_call_free(call);
    made_end(&of);
    rig_ports_free(&in);
    rig_ports_free(&out);
    rig_close(&r);
}

static void programs_match(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = {/* N, K, batch */ {7, 9, 5}, {37, 300, 70}};
    for (int i = 0; i < MODELS; i += rig_slow() ? 5 : 1)
        for (int k = 0; k < TYPINGS; k++)
            for (int s = 0; s < 2; s++) {
                if (tested_device() && k != (i + s) % TYPINGS)
                    continue; /* each is compiled */
                char *text = typed_text(models[i].text, sizes[s][0], sizes[s][1], typings[k]);
                if (!is_refused(text) && sizes[s][0] >= models[i].least) {
                    run_program(&models[i], text, sizes[s][2], false);
                    run_program(&models[i], text, sizes[s][2], true);
                }
                free(text);
            }
}

static void refuses(const char *text, const char *device, lf_status status, const char *words)
{
    lf_context *context = NULL;
    lf_model *model = NULL;
    lf_options *options = NULL;
    lf_program *program = NULL;
    assert_int_equal(lf_context_new(&context), LF_OK);
    OK(context, context, lf_model_read(context, "test", text, strlen(text), &model));
    assert_int_equal(lf_options_new(context, &options), LF_OK);
    OK(options, options, lf_options_set(options, "device", device));
    assert_int_equal(lf_program_new(model, options, &program), status);
    if (!strstr(lf_model_message(model), words))
        fail_msg("\"%s\" is not in \"%s\"", words, lf_model_message(model));
    lf_options_free(options);
    lf_model_free(model);
    lf_context_free(context);
    cases++;
}

/* What cannot run is said when it is compiled. */
static void what_cannot_run_is_told(void **state)
{
    (void)state;
    refuses("input x f32[B, 4]\nparam i i64[4]\na = relu(x)\nreturn a\n", "cpu", LF_ERR_MODEL, "parameter i is i64");
    refuses("input x f32[B, 4]\ninput i i64[B]\na = relu(x)\nreturn a, i\n", "cpu", LF_ERR_MODEL,
            "i is i64, which counts positions");
}

static void positions_are_carried(void **state)
{
    (void)state;
    static const char text[] = "input x bf16[B, 2]\ninput target i64[B]\na = neg(x)\nreturn a\n";
    const uint16_t x[] = {0x3f80, 0xc000, 0x0000, 0x7f80};
    const int64_t target[] = {INT64_MAX, -100}, matrix[] = {2, 2};
    uint16_t y[4];
    made of = made_begin(text);
    lf_model *model = of.model;
    lf_program *program = of.program;
    lf_call *call = NULL;
    assert_int_equal(lf_model_port_dtype(model, LF_PORT_INPUT, 1), LF_I64);
    assert_int_equal(lf_model_port_dtype(model, LF_PORT_OUTPUT, 0), LF_BF16);
    OK(program, program, lf_program_prepare(program));
    assert_int_equal(lf_call_new(program, &call), LF_OK);
    const lf_tensor input = {.data = (void *)x, .dtype = LF_BF16, .rank = 2, .extents = matrix},
                    positions = {.data = (void *)target, .dtype = LF_I64, .rank = 1, .extents = matrix};
    lf_tensor output = {.data = y, .dtype = LF_BF16, .rank = 2, .extents = matrix};
    OK(call, call, lf_call_set_input(call, 0, &input));
    OK(call, call, lf_call_set_input(call, 1, &positions));
    OK(call, call, lf_call_set_output(call, 0, &output));
    OK(call, call, lf_call_run(call, NULL));
    for (int i = 0; i < 4; i++, cases++)
        assert_int_equal(y[i], x[i] ^ 0x8000);
    /* bytes, not elements, overlap */
    output.data = (uint16_t *)(uintptr_t)x + 2;
    OK(call, call, lf_call_set_output(call, 0, &output));
    assert_int_equal(lf_call_run(call, NULL), LF_ERR_ARG);
    lf_call_free(call);
    made_end(&of);
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
            if (row->kind != LF_POINTWISE || !lf_op_public((lf_op)op))
                continue;
            const char *attributes = op == LF_OP_clamp ? ", -0.5, 0.25"
                                     : op == LF_OP_pow ? ", 3"
                                     : op == LF_OP_to  ? ", \"bf16\""
                                                       : "";
            char text[512];
            snprintf(text, sizeof text,
                     "input x f32[B, {N}]\nparam y f32[{N}]\na = %s(x%s%s)\nb = mul(a, 2)\nreturn a, b\n", row->name,
                     (const char *[]){"", ", y", ", y, x"}[row->arg_count - 1], attributes);
            char *typed = typed_text(text, 300, 1, typings[k]);
            const cpu_model m = {row->name, NULL, 1, false, 1e-6};
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

/* What a program makes of count elements in rows of `width`, from one type to another. */
static void convert_by_program(lf_dtype from, const void *x, lf_dtype to, void *y, int64_t count, int64_t width)
{
    char text[160];
    snprintf(text, sizeof text, "input x %s[B, %d]\na = to(x, dtype=\"%s\")\nreturn a\n", lf_dtype_name(from),
             (int)width, lf_dtype_name(to));
    made of = made_begin(text);
    lf_call *call = NULL;
    const int64_t extents[] = {count / width, width};
    const lf_tensor input = {.data = (void *)(uintptr_t)x, .dtype = from, .rank = 2, .extents = extents},
                    output = {.data = y, .dtype = to, .rank = 2, .extents = extents};
    OK(program, of.program, lf_program_prepare(of.program));
    assert_int_equal(lf_call_new(of.program, &call), LF_OK);
    OK(call, call, lf_call_set_input(call, 0, &input));
    OK(call, call, lf_call_set_output(call, 0, &output));
    OK(call, call, lf_call_run(call, NULL));
    lf_call_free(call);
    made_end(&of);
}

/* Every number of 16 bits; and as what is stored each, what lies next to it in f32 and half-way to the next. Rows of
 * one element and of four, which kernels load and store one by one and together. */
static void every_number_is_converted(void **state)
{
    (void)state;
    enum { ALL = 1 << 16, BESIDE = 5, COUNT = ALL * BESIDE };
    uint16_t *bits = malloc(COUNT * sizeof *bits), *want_bits = malloc(COUNT * sizeof *bits);
    float *x = malloc(COUNT * sizeof *x), *want = malloc(COUNT * sizeof *want);
    assert_true(bits && want_bits && x && want);
    for (int h = 0; h < 2; h++)
        for (int64_t width = 1; width <= 4; width += 3) {
            const lf_dtype type = h ? LF_BF16 : LF_F16;
            const uint32_t half = h ? 1u << 15 : 1u << 12, beside[BESIDE] = {0, 1, half - 1, half, half + 1};
            for (int i = 0; i < ALL; i++)
                bits[i] = (uint16_t)i;
            lf_to_f32(type, bits, 1, want, ALL);
            convert_by_program(type, bits, LF_F32, x, ALL, width);
            for (int i = 0; i < ALL; i++, cases++)
                if (isnan(want[i]) ? !isnan(x[i]) : memcmp(&x[i], &want[i], sizeof *x) != 0)
                    fail_msg("%s %#x is %a, not %a", lf_dtype_name(type), (unsigned)i, (double)x[i], (double)want[i]);
            for (int i = 0; i < COUNT; i++) {
                uint32_t f32;
                memcpy(&f32, &want[i % ALL], sizeof f32);
                f32 += isnan(want[i % ALL]) ? 0 : beside[i / ALL];
                memcpy(&x[i], &f32, sizeof f32);
            }
            lf_from_f32(type, x, want_bits, 1, COUNT);
            convert_by_program(LF_F32, x, type, bits, COUNT, width);
            for (int i = 0; i < COUNT; i++, cases++) {
                float got;
                lf_to_f32(type, &bits[i], 1, &got, 1);
                if (isnan(x[i]) ? !isnan(got) : bits[i] != want_bits[i])
                    fail_msg("%a as %s is %#x, not %#x", (double)x[i], lf_dtype_name(type), (unsigned)bits[i],
                             (unsigned)want_bits[i]);
            }
        }
    free(bits);
    free(want_bits);
    free(x);
    free(want);
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
        TEST(models_match), TEST(long_rows_match),            TEST(pointwise_ops_match),
        TEST(stores_round), TEST(casts_inside_round_nothing), TEST(what_cannot_run_is_told),
        TEST(programs_match), TEST(positions_are_carried), TEST(every_number_is_converted),
    };
    const struct CMUnitTest on_device[] = {
        TEST(programs_match), TEST(positions_are_carried), TEST(every_number_is_converted),
    };
    if (tested_device())
        return cmocka_run_group_tests(on_device, make_pools, free_pools);
    return cmocka_run_group_tests(tests, make_pools, free_pools);
}
