/* SPDX-License-Identifier: Apache-2.0 */
/* One case, every way it can be run, through the public API. (The rewrites that were made are read from the program's
 * own notes.) */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "random_model.h"
#include "run/handles.h"

/* Bytes on either side of an output that nobody may touch, and what they hold: as elements, numbers nobody computes. */
enum { CANARY_BYTES = 128, POISON_BYTE = 0xa9 };

typedef struct subject {
    rnd_bench *bench;
    const rnd_case *c;
    rnd_failure *f;
    lf_rng r;
    rnd_graph graph;
    lf_model *one, *two;  /* the model under the two contexts */
    float **leaf;         /* one per node: the data of inputs and params, owned */
    bool independent, has_rows[RND_NODES];
    int64_t batch;
    rnd_judge judge;
    float **plain, **fused; /* outputs */
} subject;

static void *need(size_t size)
{
    void *p = calloc(1, size + 1);
    if (!p) {
        fputs("random_test: no memory\n", stderr);
        abort();
    }
    return p;
}

__attribute__((format(printf, 3, 4))) static bool fail(subject *s, const char *label, const char *fmt, ...)
{
    va_list list;
    va_start(list, fmt);
    snprintf(s->f->label, sizeof s->f->label, "%s", label);
    vsnprintf(s->f->what, sizeof s->f->what, fmt, list);
    va_end(list);
    return false;
}

/* ---- outputs ---- */

static int32_t outputs(const subject *s) { return s->graph.g.outputs; }
static int64_t output_count(const subject *s, int32_t o) { return rnd_count(&s->graph, s->graph.g.output[o]); }

/* One array per output. */
static float **outputs_new(const subject *s)
{
    float **out = need((size_t)outputs(s) * sizeof *out);
    for (int32_t o = 0; o < outputs(s); o++)
        out[o] = need((size_t)output_count(s, o) * sizeof(float));
    return out;
}

static void outputs_free(const subject *s, float **out)
{
    for (int32_t o = 0; out && o < outputs(s); o++)
        free(out[o]);
    free(out);
}

static bool same_bits(subject *s, const char *label, float *const *a, float *const *b, const char *words)
{
    for (int32_t o = 0; o < outputs(s); o++)
        for (int64_t i = 0; i < output_count(s, o); i++)
            if (memcmp(&a[o][i], &b[o][i], sizeof(float)) != 0)
                return fail(s, label, "output %d, element %lld: %.9g and %.9g, %s", (int)o, (long long)i,
                            (double)a[o][i], (double)b[o][i], words);
    return true;
}

/* ---- compiling and running ---- */

static int rule_index(const char *name)
{
    for (int i = 0; lf_rule_at((size_t)i); i++)
        if (strcmp(lf_rule_at((size_t)i)->name, name) == 0)
            return i;
    return 0;
}

/* The first elements of a leaf's data in its type, as many as its extents in force say; caller frees. */
static void *typed_of(const subject *s, lf_node leaf, const float *data)
{
    const lf_dtype type = lf_at(&s->graph.g, leaf)->dtype;
    const int64_t count = rnd_count(&s->graph, leaf);
    void *typed = need((size_t)count * lf_dtype_size(type));
    lf_from_f32(type, data, typed, 1, count);
    return typed;
}

/* A leaf as a call takes it, with the extents in force, which are written to `extents`. */
static lf_tensor tensor_of(const subject *s, lf_node leaf, int64_t *extents, void *typed)
{
    const lf_node_info *info = lf_at(&s->graph.g, leaf);
    for (int axis = 0; axis < info->shape.rank; axis++)
        extents[axis] = lf_extent_at(info->shape.dim[axis], s->graph.dims);
    return (lf_tensor){.data = typed, .dtype = info->dtype, .rank = info->shape.rank, .extents = extents};
}

/* key, value pairs, NULL at the end. hint: also tell the compiler the extents. NULL: failed, and said so. */
static lf_program *compile(subject *s, lf_model *model, const char *label, bool hint, const char *const *pairs)
{
    lf_context *context = model == s->two ? s->bench->two : s->bench->one;
    lf_options *options = NULL;
    lf_program *program = NULL;
    char number[24], key[16];
    const char *device = getenv("LINFUSE_TEST_DEVICE"), *precision = getenv("LINFUSE_TEST_PRECISION");
    lf_status status = lf_options_new(context, &options);
    if (status == LF_OK && device)
        status = lf_options_set(options, "device", device);
    if (status == LF_OK && precision)
        status = lf_options_set(options, "precision", precision);
    for (; status == LF_OK && pairs && pairs[0]; pairs += 2)
        status = lf_options_set(options, pairs[0], pairs[1]);
    for (int i = 0; status == LF_OK && hint && i < s->graph.g.symbols; i++) {
        snprintf(key, sizeof key, "dim.%s", s->graph.g.symbol[i]);
        snprintf(number, sizeof number, "%lld", (long long)s->graph.dims[i]);
        status = lf_options_set(options, key, number);
    }
    if (status == LF_OK)
        status = lf_program_new(model, options, &program);
    const lf_graph *g = &s->graph.g;
    for (int32_t i = 0; status == LF_OK && i < g->params; i++) {
        int64_t extents[LF_MAX_RANK];
        const lf_tensor values =
            tensor_of(s, g->param[i], extents, typed_of(s, g->param[i], s->leaf[g->param[i]]));
        status = lf_program_set_param(program, lf_at(g, g->param[i])->name, &values, LF_COPY, NULL);
        free(values.data);
    }
    if (status == LF_OK)
        status = lf_program_prepare(program);
    if (status != LF_OK) {
        fail(s, label, "compiling: %s; %s; %s", lf_options_message(options), lf_model_message(model),
             lf_program_message(program));
        lf_program_free(program);
        program = NULL;
    }
    lf_options_free(options);
    s->bench->counts.programs++;
    for (int32_t i = 0; program && i < program->fused.notes.done_count; i++)
        s->bench->counts.fired[rule_index(program->fused.notes.done[i].rule)]++;
    return program;
}

/* What a call reads and writes: elements of the ports' types, outputs between canaries. */
typedef struct binding {
    void **in;           /* owned */
    unsigned char **out; /* one per output: CANARY_BYTES, its elements, CANARY_BYTES; owned */
} binding;

static size_t output_bytes(const subject *s, int32_t o)
{
    return (size_t)output_count(s, o) * lf_dtype_size(lf_at(&s->graph.g, s->graph.g.output[o])->dtype);
}

/* Inputs, those with rows from row `from` on, as many as the extents in force say; outputs poisoned. */
static binding binding_new(const subject *s, float *const *leaf, int64_t from)
{
    const lf_graph *g = &s->graph.g;
    binding b = {.in = need((size_t)g->inputs * sizeof *b.in), .out = need((size_t)g->outputs * sizeof *b.out)};
    for (int32_t i = 0; i < g->inputs; i++) {
        int64_t skip = s->has_rows[i] ? from * (rnd_count(&s->graph, g->input[i]) / s->batch) : 0;
        b.in[i] = typed_of(s, g->input[i], leaf[g->input[i]] + skip);
    }
    for (int32_t o = 0; o < outputs(s); o++) {
        b.out[o] = need(output_bytes(s, o) + 2 * CANARY_BYTES);
        memset(b.out[o], POISON_BYTE, output_bytes(s, o) + 2 * CANARY_BYTES);
    }
    return b;
}

static void binding_free(const subject *s, binding *b)
{
    for (int32_t i = 0; i < s->graph.g.inputs; i++)
        free(b->in[i]);
    for (int32_t o = 0; o < outputs(s); o++)
        free(b->out[o]);
    free(b->in);
    free(b->out);
}

static bool bind(subject *s, const char *label, lf_call *call, const binding *b)
{
    const lf_graph *g = &s->graph.g;
    lf_status status = LF_OK;
    for (int32_t i = 0; i < g->inputs && status == LF_OK; i++) {
        int64_t extents[LF_MAX_RANK];
        const lf_tensor input = tensor_of(s, g->input[i], extents, b->in[i]);
        status = lf_call_set_input(call, (size_t)i, &input);
    }
    for (int32_t o = 0; o < g->outputs && status == LF_OK; o++) {
        lf_tensor output;
        status = lf_call_output(call, (size_t)o, &output);
        output.data = b->out[o] + CANARY_BYTES;
        if (status == LF_OK)
            status = lf_call_set_output(call, (size_t)o, &output);
    }
    return status == LF_OK || fail(s, label, "binding: %s", lf_call_message(call));
}

static bool canaries_live(subject *s, const char *label, const binding *b)
{
    for (int32_t o = 0; o < outputs(s); o++)
        for (size_t i = 0; i < CANARY_BYTES; i++)
            if (b->out[o][i] != POISON_BYTE || b->out[o][CANARY_BYTES + output_bytes(s, o) + i] != POISON_BYTE)
                return fail(s, label, "something was written beside output %d", (int)o);
    return true;
}

/* Runs it, from row `from` on, into fresh outputs, twice. */
static float **run(subject *s, const char *label, lf_program *program, float *const *leaf, int64_t from)
{
    float **out = outputs_new(s), **again = outputs_new(s);
    lf_call *call = NULL;
    bool ok = lf_call_new(program, &call) == LF_OK || fail(s, label, "%s", lf_program_message(program));
    for (int twice = 0; twice < 2 && ok; twice++) {
        float **to = twice ? again : out;
        binding b = binding_new(s, leaf, from);
        ok = bind(s, label, call, &b);
        ok = ok && (lf_call_run(call, NULL) == LF_OK || fail(s, label, "running: %s", lf_call_message(call)));
        ok = ok && canaries_live(s, label, &b);
        for (int32_t o = 0; o < outputs(s); o++)
            lf_to_f32(lf_at(&s->graph.g, s->graph.g.output[o])->dtype, b.out[o] + CANARY_BYTES, 1, to[o],
                      output_count(s, o));
        binding_free(s, &b);
    }
    ok = ok && same_bits(s, "second run", out, again, "the first and the second run of one call");
    s->bench->counts.rows_redone += lf_call_rows_redone(call);
    lf_call_free(call);
    outputs_free(s, again);
    if (ok)
        return out;
    outputs_free(s, out);
    return NULL;
}

/* What the outputs should be for this data. */
static bool judge_begin(subject *s, rnd_judge *j, float *const *leaf)
{
    const lf_graph *g = &s->graph.g;
    lf_tensor *in = need((size_t)g->inputs * sizeof *in), *par = need((size_t)g->params * sizeof *par);
    int64_t(*extents)[LF_MAX_RANK] = need((size_t)(g->inputs + g->params) * sizeof *extents);
    double **ref = need((size_t)g->outputs * sizeof *ref);
    for (int32_t i = 0; i < g->inputs; i++)
        in[i] = tensor_of(s, g->input[i], extents[i], typed_of(s, g->input[i], leaf[g->input[i]]));
    for (int32_t i = 0; i < g->params; i++)
        par[i] = tensor_of(s, g->param[i], extents[g->inputs + i], typed_of(s, g->param[i], leaf[g->param[i]]));
    for (int32_t o = 0; o < g->outputs; o++)
        ref[o] = need((size_t)output_count(s, o) * sizeof(double));
    lf_status status = lf_model_eval(s->one, in, par, ref);
    bool ok = rnd_judge_begin(j, &s->graph, (const float *const *)leaf, ref, s->c->seed) && status == LF_OK;
    for (int32_t i = 0; i < g->inputs; i++)
        free(in[i].data);
    for (int32_t i = 0; i < g->params; i++)
        free(par[i].data);
    free(in);
    free(par);
    free(extents);
    return ok || fail(s, "eval", "evaluating in double: %s", lf_model_message(s->one));
}

/* skip: rows of the batch that nothing is expected of; NULL: none. */
static bool judge(subject *s, rnd_judge *j, const char *label, float *const *out, const bool *skip)
{
    char what[900];
    for (int32_t o = 0; o < outputs(s); o++) {
        int64_t rows = skip ? s->batch : 1, width = output_count(s, o) / (rows ? rows : 1);
        for (int64_t r = 0; r < rows; r++) {
            if (skip && skip[r])
                continue;
            if (!rnd_judge_accepts(j, o, out[o], r * width, (r + 1) * width, &s->bench->counts.unsure, what,
                                   sizeof what))
                return fail(s, label, "%s", what);
            s->bench->counts.elements += width;
        }
    }
    return true;
}

/* Compiles, runs and judges one more variant. */
static bool variant(subject *s, const char *label, bool hint, const char *const *pairs)
{
    lf_program *program = compile(s, s->one, label, hint, pairs);
    float **out = program ? run(s, label, program, s->leaf, 0) : NULL;
    bool ok = out && judge(s, &s->judge, label, out, NULL);
    outputs_free(s, out);
    lf_program_free(program);
    return ok;
}

/* ---- comparisons ---- */

static bool check_threads(subject *s)
{
    lf_program *program = compile(s, s->two, "two threads", false, NULL);
    float **out = program ? run(s, "two threads", program, s->leaf, 0) : NULL;
    bool ok = out && same_bits(s, "two threads", s->fused, out, "with one thread and with two");
    outputs_free(s, out);
    lf_program_free(program);
    return ok;
}

/* The named extent that counts rows; -1 where a number does. */
static int batch_symbol(const subject *s)
{
    const lf_shape *first = &lf_at(&s->graph.g, s->graph.g.input[0])->shape;
    for (int i = 0; s->independent && i < s->graph.g.symbols; i++)
        if (first->dim[0].pow[i])
            return i;
    return -1;
}

/* Some of the rows alone. */
static bool check_part(subject *s, lf_program *program)
{
    int symbol = batch_symbol(s);
    int64_t whole = s->batch;
    if (symbol < 0 || whole < 2)
        return true;
    int64_t from = rnd_below(&s->r, (int)whole), rows = 1 + rnd_below(&s->r, (int)(whole - from));
    s->graph.dims[symbol] = s->batch = rows;
    if (lf_graph_check_dims(&s->graph.g, s->graph.dims, &s->graph.diag) != LF_OK) { /* a statistic of one value */
        s->graph.dims[symbol] = s->batch = whole;
        return true;
    }
    float **out = run(s, "part of the rows", program, s->leaf, from);
    bool ok = out != NULL;
    for (int32_t o = 0; ok && o < outputs(s); o++) {
        int64_t count = output_count(s, o), width = count / rows;
        const float *among = s->fused[o] + from * width;
        for (int64_t i = 0; ok && i < count; i++)
            if (memcmp(&out[o][i], &among[i], sizeof(float)) != 0)
                ok = fail(
                    s, "part of the rows",
                    "output %d, row %lld, element %lld: %.9g when rows %lld to %lld are run alone, %.9g among %lld",
                    (int)o, (long long)(from + i / width), (long long)(i % width), (double)out[o][i], (long long)from,
                    (long long)(from + rows - 1), (double)among[i], (long long)whole);
    }
    s->graph.dims[symbol] = s->batch = whole;
    outputs_free(s, out);
    s->bench->counts.parts++;
    return ok;
}

/* ---- what is not finite ---- */

/* Puts NaN, Inf, huge and tiny numbers into the data of a leaf, at one or three places of row `row` (row < 0:
 * anywhere). True where one of them is huge: then f32 may overflow where double does not, and nothing is expected. */
static bool plant(subject *s, lf_node n, int64_t row, float *data)
{
    const lf_dtype type = lf_at(&s->graph.g, n)->dtype;
    const float denormal = type == LF_F32 ? 1e-42f : type == LF_F16 ? 0x1.8p-23f : 0x1.8p-132f,
                largest = type == LF_F16 ? 65504.0f : 3e38f,
                bad[] = {NAN, INFINITY, -INFINITY, NAN, INFINITY, -INFINITY, denormal, largest};
    int64_t count = rnd_count(&s->graph, n), width = row < 0 ? count : count / s->batch;
    bool huge = false;
    for (int i = rnd_chance(&s->r, 0.6) ? 1 : 3; i > 0 && width > 0; i--) {
        float value = bad[rnd_below(&s->r, 8)];
        rnd_round(type, &value, 1);
        data[(row < 0 ? 0 : row * width) + rnd_below(&s->r, (int)width)] = value;
        huge = huge || (isfinite(value) && value > 1.0f);
    }
    return huge;
}

static float **leaves_copy(const subject *s)
{
    const lf_graph *g = &s->graph.g;
    float **copy = need((size_t)g->count * sizeof *copy);
    for (lf_node n = 0; n < g->count; n++)
        if (s->leaf[n]) {
            size_t size = (size_t)rnd_count(&s->graph, n) * sizeof(float);
            copy[n] = need(size);
            memcpy(copy[n], s->leaf[n], size);
        }
    return copy;
}

static void leaves_free(const subject *s, float **leaf)
{
    for (lf_node n = 0; leaf && n < s->graph.g.count; n++)
        free(leaf[n]);
    free(leaf);
}

/* Rows without anything planted come out as before, bit for bit. */
static bool others_untouched(subject *s, float *const *out, const bool *planted)
{
    for (int32_t o = 0; o < outputs(s); o++) {
        int64_t width = output_count(s, o) / s->batch;
        for (int64_t r = 0; r < s->batch; r++)
            for (int64_t i = r * width; !planted[r] && i < (r + 1) * width; i++)
                if (memcmp(&out[o][i], &s->fused[o][i], sizeof(float)) != 0)
                    return fail(s, "rows beside a planted one",
                                "output %d, row %lld has nothing to do with it, but is %.9g instead of %.9g", (int)o,
                                (long long)r, (double)out[o][i], (double)s->fused[o][i]);
    }
    return true;
}

static bool check_planted_inputs(subject *s, lf_program *fused, lf_program *plain)
{
    const lf_graph *g = &s->graph.g;
    float **leaf = leaves_copy(s), **out = NULL;
    bool *planted = need((size_t)s->batch), *skip = need((size_t)s->batch), any_huge = false;
    for (int i = 1 + rnd_below(&s->r, 3); i > 0 && g->inputs > 0; i--) {
        int32_t in = rnd_below(&s->r, g->inputs);
        int64_t row = s->independent && s->has_rows[in] && s->batch > 0 ? rnd_below(&s->r, (int)s->batch) : -1;
        if (s->independent && row < 0)
            continue; /* an input that every row reads */
        bool huge = plant(s, g->input[in], row, leaf[g->input[in]]);
        any_huge = any_huge || huge;
        if (row >= 0) {
            planted[row] = true;
            skip[row] = skip[row] || huge;
        }
    }
    rnd_judge j = {0};
    bool ok = judge_begin(s, &j, leaf), expect = s->independent || !any_huge;
    out = ok ? run(s, "planted, fused", fused, leaf, 0) : NULL;
    ok = out && (!s->independent || others_untouched(s, out, planted)) &&
         (!expect || judge(s, &j, "planted, fused", out, s->independent ? skip : NULL));
    outputs_free(s, out);
    out = ok ? run(s, "planted, plain", plain, leaf, 0) : NULL;
    ok = out && (!expect || judge(s, &j, "planted, plain", out, s->independent ? skip : NULL));
    outputs_free(s, out);
    rnd_judge_free(&j);
    leaves_free(s, leaf);
    free(planted);
    free(skip);
    s->bench->counts.planted++;
    return ok;
}

static bool check_planted_params(subject *s)
{
    const lf_graph *g = &s->graph.g;
    if (g->params == 0)
        return true;
    float **kept = s->leaf;
    s->leaf = leaves_copy(s);
    lf_node n = g->param[rnd_below(&s->r, g->params)];
    bool huge = plant(s, n, -1, s->leaf[n]), ok = true;
    rnd_judge j = {0};
    lf_program *program = compile(s, s->one, "planted weights", false, NULL);
    float **out = program ? run(s, "planted weights", program, s->leaf, 0) : NULL;
    ok = out && (huge || (judge_begin(s, &j, s->leaf) && judge(s, &j, "planted weights", out, NULL)));
    outputs_free(s, out);
    lf_program_free(program);
    rnd_judge_free(&j);
    leaves_free(s, s->leaf);
    s->leaf = kept;
    return ok;
}

/* ---- all of it ---- */

static bool begin(subject *s)
{
    if (rnd_graph_read(s->c, &s->graph) != LF_OK)
        return fail(s, "", "%s", s->graph.diag.text);
    const lf_graph *g = &s->graph.g;
    s->leaf = need((size_t)g->count * sizeof *s->leaf);
    for (lf_node n = 0; n < g->count; n++) {
        const lf_node_info *info = lf_at(g, n);
        int rank = info->shape.rank;
        s->bench->counts.op[info->op]++;
        if (info->op != LF_OP_input && info->op != LF_OP_param)
            continue;
        s->leaf[n] = need((size_t)rnd_count(&s->graph, n) * sizeof(float));
        rnd_fill(s->c->seed, info->name, rnd_count(&s->graph, n),
                 rank ? lf_extent_at(info->shape.dim[rank - 1], s->graph.dims) : 1, s->leaf[n]);
        rnd_round(info->dtype, s->leaf[n], rnd_count(&s->graph, n));
    }
    size_t length = strlen(s->c->text);
    if (lf_model_read(s->bench->one, "random", s->c->text, length, &s->one) != LF_OK ||
        lf_model_read(s->bench->two, "random", s->c->text, length, &s->two) != LF_OK)
        return fail(s, "reading", "%s", lf_context_message(s->bench->one));
    s->independent = lf_model_rows_independent(s->one, s->has_rows);
    for (int32_t i = 0; i < g->inputs; i++)
        s->has_rows[i] = s->independent && s->has_rows[i];
    s->batch = s->independent ? lf_extent_at(lf_at(g, g->input[0])->shape.dim[0], s->graph.dims) : 1;
    return judge_begin(s, &s->judge, s->leaf);
}

/* One rule off, by turns and by chance one that was used here; no rules; no guards. */
static bool check_rules(subject *s, const lf_program *fused)
{
    int rules = 0;
    char off[64];
    while (lf_rule_at((size_t)rules))
        rules++;
    int rule = rnd_below(&s->r, rules);
    const lf_notes *notes = &fused->fused.notes;
    if (notes->done_count > 0 && rnd_chance(&s->r, 0.6))
        rule = rule_index(notes->done[rnd_below(&s->r, notes->done_count)].rule);
    snprintf(off, sizeof off, "-%s", lf_rule_at((size_t)rule)->name);
    bool ok = true;
    if (rnd_chance(&s->r, 0.6)) {
        s->bench->counts.off[rule]++;
        ok = variant(s, "a rule off", rnd_chance(&s->r, 0.5), (const char *const[]){"rules", off, NULL});
        if (!ok)
            snprintf(s->f->what + strlen(s->f->what), sizeof s->f->what - strlen(s->f->what), " (rules %s)", off);
    }
    if (ok && rnd_chance(&s->r, 0.3))
        ok = variant(s, "no rules", false, (const char *const[]){"rules", "none", NULL});
    if (ok && s->judge.all_finite && rnd_chance(&s->r, 0.4))
        ok = variant(s, "assume_finite", rnd_chance(&s->r, 0.5), (const char *const[]){"assume_finite", "true", NULL});
    return ok;
}

/* How often to try what is not finite: most where something watches for it. */
static int plantings(subject *s, const lf_program *fused)
{
    return fused->task.guarded ? 4 : rnd_chance(&s->r, 0.7);
}

static bool check(subject *s)
{
    lf_program *fused = NULL, *plain = compile(s, s->one, "plain", false, (const char *const[]){"fuse", "false", NULL});
    bool ok = plain && (s->plain = run(s, "plain", plain, s->leaf, 0)) != NULL &&
              judge(s, &s->judge, "plain", s->plain, NULL);
    if (ok)
        fused = compile(s, s->one, "fused", false, NULL);
    ok = fused && (s->fused = run(s, "fused", fused, s->leaf, 0)) != NULL &&
         judge(s, &s->judge, "fused", s->fused, NULL);
    ok = ok && check_threads(s) && check_part(s, fused) && check_rules(s, fused);
    for (int rounds = ok ? plantings(s, fused) : 0; ok && rounds > 0; rounds--)
        ok = check_planted_inputs(s, fused, plain);
    if (ok && rnd_chance(&s->r, 0.3))
        ok = check_planted_params(s);
    lf_program_free(fused);
    lf_program_free(plain);
    return ok;
}

bool rnd_check(rnd_bench *b, const rnd_case *c, rnd_failure *f)
{
    subject s = {.bench = b, .c = c, .f = f, .r = lf_rng_seed(c->seed, "check")};
    f->label[0] = f->what[0] = 0;
    bool ok = begin(&s) && check(&s);
    b->counts.typed += ok && s.judge.typed;
    outputs_free(&s, s.plain);
    outputs_free(&s, s.fused);
    rnd_judge_free(&s.judge);
    leaves_free(&s, s.leaf);
    lf_model_free(s.one);
    lf_model_free(s.two);
    rnd_graph_free(&s.graph);
    b->counts.graphs += ok;
    return ok;
}

bool rnd_bench_begin(rnd_bench *b)
{
    *b = (rnd_bench){0};
    return lf_context_new(&b->one) == LF_OK && lf_context_new(&b->two) == LF_OK &&
           lf_context_set_threads(b->one, 1) == LF_OK && lf_context_set_threads(b->two, 2) == LF_OK;
}

void rnd_bench_end(rnd_bench *b)
{
    lf_context_free(b->one);
    lf_context_free(b->two);
}
