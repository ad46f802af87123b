/* SPDX-License-Identifier: Apache-2.0 */
/* How far from its meaning may a model's result be? Not by taste: the model is evaluated again, op by op in double,
 * with the rounding that f32 would do put in between at random, and what that moves is what any order of f32 operations
 * may move, up to a factor. An element that noise turns from a number into NaN or Inf, or back, says nothing and is
 * counted as unsure. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "ir/expr.h"
#include "random_model.h"

#include "plan/gpu.h"

/* FACTOR for what f32 moves; what types move is known better: values are stored, rounded once, or not at all. */
enum { FEW = 2, MANY = 160, FACTOR = 20, TYPES_FACTOR = 3 };
static const double UNIT = 0x1p-24, OVERFLOW = 0x1p126;

/* The op table's expressions, in f32 and in double: what they differ by is what a formula loses on the way to a small
 * result (gelu of -5 is -5 times a number that has cancelled to nothing), and nobody who computes it in f32 can be
 * blamed for. */
static double formula(lf_op op, double x, double y, const double *numbers)
{
    return lf_expr_eval(lf_op_row(op)->tree, (const double[]){x, y, 0, numbers[0], numbers[1], numbers[2]});
}
static double formula_f32(lf_op op, double x, double y, const double *numbers)
{
    return lf_expr_eval_f32(lf_op_row(op)->tree, (const double[]){x, y, 0, numbers[0], numbers[1], numbers[2]});
}

/* ---- one noisy evaluation ---- */

typedef struct noise {
    const rnd_graph *graph;
    lf_graph copy;          /* nodes that are done have become inputs */
    lf_node_info *node;
    lf_bound *bound;        /* one per node */
    double **value;         /* one per node, owned */
    lf_rng r;
    bool quiet;             /* rounding and nothing else: what is exact stays exact */
    bool types;             /* rounding to types, too */
    bool all_finite;
} noise;

/* v as f32 holds it, after an error of up to `amount`. Zeros lose their sign: a rewrite may change it. */
static double rounded(lf_rng *r, double v, double amount)
{
    if (!isfinite(v))
        return v;
    if (v == 0.0 && amount == 0.0)
        return lf_rng_u64(r) & 1 ? 0.0 : -0.0;
    if (amount >= fabs(v) && lf_rng_unit(r) < 0.25)
        return 0.0; /* what may change its sign may vanish */
    if (amount > 0.0)
        v += (2.0 * lf_rng_unit(r) - 1.0) * (amount + (fabs(v) < 0x1p-126 ? 0x1p-149 : 0.0));
    return (double)(float)v;
}

/* Half of a unit in the last place of v in that type. */
static double half_unit(lf_dtype type, double v)
{
    int exponent;
    frexp(v, &exponent); /* |v| < 2^exponent */
    if (!isfinite(v) || v == 0)
        return 0;
    return type == LF_F16 ? ldexp(1, exponent < -13 ? -25 : exponent - 12)
                          : ldexp(1, exponent < -125 ? -134 : exponent - 9);
}

static double stored(lf_dtype type, double v)
{
    float f = (float)v;
    rnd_round(type, &f, 1);
    return (double)f;
}

static bool is_output(const lf_graph *g, lf_node n)
{
    for (int32_t o = 0; o < g->outputs; o++)
        if (g->output[o] == n)
            return true;
    return false;
}

/* What its type makes of count values: as they are stored, or rounded somewhere near, stored or not. */
static void store(noise *z, lf_node n, double *v, int64_t count)
{
    const lf_dtype type = lf_at(&z->graph->g, n)->dtype;
    const bool is_stored = z->quiet || is_output(&z->graph->g, n) || lf_rng_u64(&z->r) & 1;
    for (int64_t i = 0; i < count && type != LF_F32; i++) {
        if (!z->quiet)
            v[i] += (2.0 * lf_rng_unit(&z->r) - 1.0) * half_unit(type, v[i]);
        if (is_stored)
            v[i] = stored(type, v[i]);
    }
}

/* The node's value in double, its argument 0 replaced by `with` where that is given. */
static bool evaluate(noise *z, lf_node n, double *const *with, double *out)
{
    lf_bound kept[LF_MAX_ARGS];
    const lf_node_info *info = &z->node[n];
    for (int i = 0; i < LF_MAX_ARGS; i++)
        if (info->arg[i] != LF_NONE)
            kept[i] = z->bound[info->arg[i]];
    for (int i = 0; i < LF_MAX_ARGS; i++)
        if (info->arg[i] != LF_NONE && with && with[i])
            z->bound[info->arg[i]] = (lf_bound){.f64 = with[i]};
    lf_status status = lf_eval(&z->copy, z->graph->dims, z->bound, &n, 1, &out, &z->copy.diag[0]);
    for (int i = 0; i < LF_MAX_ARGS; i++)
        if (info->arg[i] != LF_NONE)
            z->bound[info->arg[i]] = kept[i];
    return status == LF_OK;
}

static double read_bound(const lf_bound *b, int64_t i)
{
    return b->f64 ? b->f64[i] : (double)((const float *)b->data)[i];
}

/* Sums are as wrong as their terms are large: the same op of all terms without their signs. Others that run over many
 * elements: as wrong as their first argument may be. */
typedef enum effect { PLAIN, SUMS, RUNS } effect;

static effect effect_of(const lf_graph *g, lf_node n)
{
    lf_kind kind = lf_kind_of(g, n);
    lf_monoid monoid = lf_op_row(lf_at(g, n)->op)->monoid;
    if (kind == LF_PRODUCT)
        return SUMS;
    if (kind == LF_REDUCE || kind == LF_POOL)
        return monoid == LF_MONOID_sum || monoid == LF_MONOID_mean  ? SUMS
               : monoid == LF_MONOID_max || monoid == LF_MONOID_min ? PLAIN
                                                                    : RUNS;
    return kind == LF_NORMALIZE ? RUNS : PLAIN;
}

/* How many terms a sum has, at most. */
static double terms(const rnd_graph *g, lf_node n)
{
    const lf_node_info *info = lf_at(&g->g, n);
    const lf_shape *x = &lf_at(&g->g, info->arg[0])->shape;
    if (lf_kind_of(&g->g, n) == LF_PRODUCT)
        return (double)lf_extent_at(x->dim[x->rank - 1], g->dims);
    double all = (double)rnd_count(g, info->arg[0]), left = (double)rnd_count(g, n);
    return left > 0 && all > left ? all / left : 1.0;
}

/* Copies of the arguments: without sign, or with a little noise. */
static bool changed_args(noise *z, lf_node n, effect e, double **out)
{
    lf_monoid monoid = lf_op_row(z->node[n].op)->monoid;
    const bool squares = monoid == LF_MONOID_moments || monoid == LF_MONOID_meansquare;
    const bool on_gpu = getenv("LINFUSE_TEST_DEVICE");
    for (int i = 0; i < LF_MAX_ARGS; i++) {
        lf_node arg = z->node[n].arg[i];
        if (arg == LF_NONE || z->node[arg].op == LF_OP_constant || (e == RUNS && i > 0))
            continue;
        int64_t count = rnd_count(z->graph, arg);
        out[i] = malloc(sizeof(double) * (size_t)(count + 1));
        if (!out[i])
            return false;
        for (int64_t k = 0; k < count; k++) {
            double v = read_bound(&z->bound[arg], k);
            if (squares && on_gpu && isfinite(v) && v * v > OVERFLOW)
                v = NAN; /* its square is more than f32 holds: anything may come of that there */
            out[i][k] = e == SUMS ? fabs(v) : rounded(&z->r, v, z->quiet ? 0.0 : 2.0 * UNIT * fabs(v));
        }
    }
    return true;
}

/* The element of argument `slot` that element i of n reads. */
static double read_arg(const noise *z, lf_node n, int slot, int64_t i)
{
    const lf_shape *to = &z->graph->g.node[n].shape;
    lf_node arg = z->graph->g.node[n].arg[slot];
    lf_extent stride[LF_MAX_RANK];
    int64_t at = 0;
    if (lf_at(&z->graph->g, arg)->op == LF_OP_constant)
        return z->node[arg].value;
    lf_broadcast_strides(&lf_at(&z->graph->g, arg)->shape, to, stride);
    for (int a = to->rank - 1; a >= 0; a--) {
        int64_t extent = lf_extent_at(to->dim[a], z->graph->dims);
        at += i % extent * (stride[a].coef ? lf_extent_at(stride[a], z->graph->dims) : 0);
        i /= extent;
    }
    return read_bound(&z->bound[arg], at);
}

/* What the formula of a pointwise op may lose at element i: the most of three neighbours. Attributes are f32 to it.
 * What it gives in double may differ from `value` too, where one of the two cancels and the other does not. */
static double lost(const noise *z, lf_node n, int64_t i, const double *numbers, double value)
{
    lf_op op = z->graph->g.node[n].op;
    float x = (float)read_arg(z, n, 0, i), y = lf_op_row(op)->arg_count > 1 ? (float)read_arg(z, n, 1, i) : 0.0f;
    double most = fabs(formula(op, (double)x, (double)y, numbers) - value);
    most = isfinite(most) ? most : 0.0;
    for (int k = -1; k < 2 && isfinite(x) && isfinite(y); k++) {
        float near = x * (1.0f + (float)k * 0x1p-22f);
        double off =
            fabs(formula_f32(op, (double)near, (double)y, numbers) - formula(op, (double)near, (double)y, numbers));
        most = isfinite(off) && off > most ? off : most;
    }
    return 3.0 * most;
}

/* What a normalization's bias may have cancelled. */
static double largest_bias(const noise *z, lf_node n)
{
    lf_affine affine = lf_affine_of(&z->graph->g, n);
    lf_node bias = affine.bias_slot < 0 ? LF_NONE : lf_arg_of(&z->graph->g, n, affine.bias_slot);
    double most = 0;
    for (int64_t i = 0; bias != LF_NONE && i < rnd_count(z->graph, bias); i++) {
        double v = fabs(read_bound(&z->bound[bias], i));
        most = isfinite(v) && v > most ? v : most;
    }
    return most;
}

/* Which statistic element i of n's argument belongs to; an index below the argument's count. */
static int64_t span_of(const rnd_graph *graph, lf_node n, int64_t i)
{
    const lf_shape *s = &lf_at(&graph->g, lf_arg_of(&graph->g, n, 0))->shape;
    unsigned axes = lf_span_axes(&graph->g, n);
    int64_t id = 0, run = 1, segments = lf_segments(&graph->g, n);
    if (segments > 1) {
        int64_t each = rnd_count(graph, lf_arg_of(&graph->g, n, 0)) / lf_extent_at(s->dim[0], graph->dims) / segments;
        return i / each;
    }
    for (int a = s->rank - 1; a >= 0; a--) {
        int64_t extent = lf_extent_at(s->dim[a], graph->dims);
        if (!(axes >> a & 1)) {
            id += i % extent * run;
            run *= extent;
        }
        i /= extent;
    }
    return id;
}

/* A mean that is rounded is off by a unit of the numbers it is of, and so is what is left of an element when it is
 * taken away: large where all are alike. Gives for each element that over the deviation; NULL: no such statistic, or no
 * memory. */
static double *mean_rounding(const noise *z, lf_node n, double eps)
{
    const lf_graph *g = &z->graph->g;
    if (lf_kind_of(g, n) != LF_NORMALIZE || lf_op_row(lf_at(g, n)->op)->monoid != LF_MONOID_moments ||
        lf_uses_running_stats(g, n))
        return NULL;
    int64_t count = rnd_count(z->graph, n);
    const lf_bound *x = &z->bound[lf_arg_of(g, n, 0)];
    lf_affine affine = lf_affine_of(g, n);
    double *sums = calloc((size_t)(4 * count + 4), sizeof *sums), *off = calloc((size_t)count + 1, sizeof *off),
           factor = 1.0;
    for (int64_t i = 0; affine.weight_slot >= 0 && i < rnd_count(z->graph, lf_arg_of(g, n, affine.weight_slot)); i++)
        factor = fmax(factor, fabs(read_bound(&z->bound[lf_arg_of(g, n, affine.weight_slot)], i)));
    for (int pass = 0; sums && off && pass < 3; pass++)
        for (int64_t i = 0; i < count; i++) { /* a statistic's count, sum, sum of squared distances, largest */
            double *stat = sums + 4 * span_of(z->graph, n, i), v = read_bound(x, i),
                   mean = stat[0] > 0 ? stat[1] / stat[0] : 0.0;
            if (pass == 0) {
                stat[0] += 1.0;
                stat[1] += v;
                stat[3] = fmax(stat[3], fabs(v));
            } else if (pass == 1) {
                stat[2] += (v - mean) * (v - mean);
            } else {
                off[i] = UNIT * factor * stat[3] / sqrt(stat[2] / stat[0] + eps);
            }
        }
    free(sums);
    return off;
}

/* What a product's terms may be off by because its operands are rounded to the precision that is tested: both of them,
 * by half a unit of theirs. */
static double operand_unit(void)
{
    const char *name = getenv("LINFUSE_TEST_PRECISION");
    lf_precision precision;
    return name && lf_precision_find(name, &precision) && !lf_precision_table[precision].split
               ? ldexp(1, 1 - lf_precision_table[precision].significand)
               : 0;
}

static bool compute(noise *z, lf_node n)
{
    const lf_graph *g = &z->graph->g;
    int64_t count = rnd_count(z->graph, n);
    const lf_op_info *row = lf_op_row(lf_at(g, n)->op);
    double unit = UNIT * row->tolerance, *with[LF_MAX_ARGS] = {0}, *beside = NULL;
    double *out = z->value[n] = malloc(sizeof(double) * (size_t)(count + 1));
    effect e = effect_of(g, n);
    bool ok = out && (e == PLAIN || changed_args(z, n, e, with));
    if (ok && e != PLAIN) { /* SUMS: of what has no signs; RUNS: without the noise before it */
        beside = malloc(sizeof(double) * (size_t)(count + 1));
        ok = beside && evaluate(z, n, e == SUMS ? with : NULL, beside) && evaluate(z, n, e == RUNS ? with : NULL, out);
    } else if (ok) {
        ok = evaluate(z, n, NULL, out);
    }
    if (e == SUMS)
        unit += UNIT * sqrt(terms(z->graph, n)) + (lf_kind_of(g, n) == LF_PRODUCT ? operand_unit() : 0.0);
    bool moves_only = lf_kind_of(g, n) == LF_VIEW || lf_kind_of(g, n) == LF_MOVE;
    bool formulaic = lf_kind_of(g, n) == LF_POINTWISE && row->attr_count + (row->tolerance > 1) > 0;
    bool logarithm = row->monoid == LF_MONOID_maxsumexp && strstr(row->expression, "log"); /* of nearly 1 */
    double numbers[3], cancelled = logarithm ? 1.0 : largest_bias(z, n);
    lf_op_numbers(g, n, numbers);
    double *off = ok ? mean_rounding(z, n, numbers[0]) : NULL;
    for (int64_t i = 0; ok && i < count && !moves_only; i++) {
        double amount = unit * (fabs(out[i]) + cancelled);
        if (e == SUMS && isfinite(beside[i])) {
            amount = unit * beside[i];
            if (beside[i] > OVERFLOW)
                out[i] = NAN; /* a part of the sum may be more than f32 holds */
        }
        if (e == RUNS) /* a statistic's own rounding is as large, and moves what it serves together */
            amount += 2.0 * fabs(out[i] - beside[i]);
        amount += off ? off[i] : 0.0;
        amount = isfinite(amount) ? amount : 0.0;
        if (formulaic && isfinite(out[i]) && !z->quiet)
            amount += lost(z, n, i, numbers, out[i]);
        out[i] = rounded(&z->r, out[i], z->quiet ? 0.0 : amount);
    }
    if (ok && z->types && !moves_only)
        store(z, n, out, count);
    for (int64_t i = 0; ok && i < count && !moves_only; i++)
        z->all_finite = z->all_finite && isfinite(out[i]);
    free(beside);
    free(off);
    for (int i = 0; i < LF_MAX_ARGS; i++)
        free(with[i]);
    return ok;
}

static bool evaluate_noisily(noise *z, const rnd_judge *j)
{
    const lf_graph *g = &z->graph->g;
    bool ok = true;
    for (lf_node n = 0; n < g->count && ok; n++) {
        if (lf_kind_of(g, n) == LF_LEAF) {
            z->node[n].value = (double)(float)z->node[n].value; /* a constant, as f32 has it */
            z->bound[n] = (lf_bound){.data = j->leaf[n]};
            continue;
        }
        ok = compute(z, n);
        z->bound[n] = (lf_bound){.f64 = z->value[n]};
        z->node[n].op = LF_OP_input;
        z->node[n].attr = NULL;
        for (int i = 0; i < LF_MAX_ARGS; i++)
            z->node[n].arg[i] = LF_NONE;
    }
    return ok;
}

/* ---- what noise does to the outputs ---- */

/* Numbers, the two infinities, NaN. */
static int kind_of(double v) { return isnan(v) ? 2 : isinf(v) ? (v > 0 ? 1 : -1) : 0; }

static void widen(rnd_judge *j, int32_t o, const double *value, int noises)
{
    const lf_dtype type = lf_at(&j->graph->g, j->graph->g.output[o])->dtype;
    int64_t count = rnd_count(j->graph, j->graph->g.output[o]);
    for (int64_t i = 0; i < count; i++) {
        double ref = j->ref[o][i], *spread = &j->spread[noises][o][i];
        if (kind_of(ref) != kind_of(stored(type, value[i])))
            *spread = NAN;
        else if (kind_of(ref) == 0 && fabs(value[i] - ref) > *spread)
            *spread = fabs(value[i] - ref);
    }
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static bool find_middle(rnd_judge *j, int32_t o, int noises)
{
    int64_t count = rnd_count(j->graph, j->graph->g.output[o]), sure = 0;
    double *sorted = malloc(sizeof(double) * (size_t)(count + 1));
    for (int64_t i = 0; sorted && i < count; i++)
        if (!isnan(j->spread[noises][o][i]) && kind_of(j->ref[o][i]) == 0)
            sorted[sure++] = j->spread[noises][o][i];
    if (sorted && sure > 0)
        qsort(sorted, (size_t)sure, sizeof *sorted, by_size);
    j->middle[noises][o] = sorted && sure > 0 ? sorted[sure / 2] : 0.0;
    free(sorted);
    return sorted != NULL;
}

static bool draw(rnd_judge *j)
{
    const lf_graph *g = &j->graph->g;
    size_t n = (size_t)g->count + 1;
    noise z = {.graph = j->graph,
               .copy = *g,
               .r = lf_rng_at(j->seed, "noise", (uint64_t)j->draws << 40),
               .quiet = j->draws == 0,
               .types = j->typed && j->draws % 2 == 0,
               .all_finite = true};
    const int noises = z.types ? RND_OF_TYPES : RND_OF_F32;
    z.node = malloc(n * sizeof *z.node);
    z.bound = calloc(n, sizeof *z.bound);
    z.value = calloc(n, sizeof *z.value);
    bool ok = z.node && z.bound && z.value;
    if (ok) {
        memcpy(z.node, g->node, (size_t)g->count * sizeof *z.node);
        z.copy.node = z.node;
        ok = evaluate_noisily(&z, j);
    }
    j->all_finite = j->all_finite && z.all_finite;
    for (int32_t o = 0; ok && o < g->outputs; o++) {
        lf_node from = g->output[o];
        if (z.value[from])
            widen(j, o, z.value[from], noises);
        ok = find_middle(j, o, noises);
    }
    for (size_t i = 0; z.value && i < n; i++)
        free(z.value[i]);
    free(z.node);
    free(z.bound);
    free(z.value);
    j->draws++;
    return ok;
}

bool rnd_judge_begin(rnd_judge *j, const rnd_graph *graph, const float *const *leaf, double **ref, uint64_t seed)
{
    const lf_graph *g = &graph->g;
    *j = (rnd_judge){.graph = graph, .leaf = leaf, .seed = seed, .ref = ref, .all_finite = true};
    for (lf_node n = 0; n < g->count; n++)
        j->typed = j->typed || lf_at(g, n)->dtype != LF_F32;
    for (int32_t o = 0; o < g->outputs; o++)
        for (int64_t i = 0; i < rnd_count(graph, g->output[o]); i++)
            if (kind_of(stored(lf_at(g, g->output[o])->dtype, ref[o][i])) != 0)
                ref[o][i] = stored(lf_at(g, g->output[o])->dtype, ref[o][i]);
    bool ok = true;
    for (int noises = 0; noises < RND_NOISES; noises++) {
        j->spread[noises] = calloc((size_t)g->outputs + 1, sizeof *j->spread[noises]);
        j->middle[noises] = calloc((size_t)g->outputs + 1, sizeof *j->middle[noises]);
        ok = ok && j->spread[noises] && j->middle[noises];
        for (int32_t o = 0; ok && o < g->outputs; o++)
            ok = (j->spread[noises][o] = calloc((size_t)rnd_count(graph, g->output[o]) + 1, sizeof(double))) != NULL;
    }
    while (ok && j->draws < (j->typed ? 2 * FEW : FEW))
        ok = draw(j);
    return ok;
}

void rnd_judge_free(rnd_judge *j)
{
    for (int32_t o = 0; j->graph && o < j->graph->g.outputs; o++) {
        free(j->ref ? j->ref[o] : NULL);
        for (int noises = 0; noises < RND_NOISES; noises++)
            free(j->spread[noises] ? j->spread[noises][o] : NULL);
    }
    free(j->ref);
    for (int noises = 0; noises < RND_NOISES; noises++) {
        free(j->spread[noises]);
        free(j->middle[noises]);
    }
    *j = (rnd_judge){0};
}

/* How far output o may be off at i. */
static double allowance(const rnd_judge *j, int32_t o, int64_t i)
{
    const lf_dtype type = lf_at(&j->graph->g, j->graph->g.output[o])->dtype;
    const double of_types = j->spread[RND_OF_TYPES][o][i] + j->middle[RND_OF_TYPES][o],
                 of_f32 = j->spread[RND_OF_F32][o][i] + j->middle[RND_OF_F32][o] + UNIT * fabs(j->ref[o][i]) +
                          0x1p-149;
    return FACTOR * of_f32 + (j->typed ? TYPES_FACTOR * of_types : 0) +
           (type != LF_F32 ? half_unit(type, j->ref[o][i]) : 0);
}

/* Did noise change what kind of number it is? */
static bool is_unsure(const rnd_judge *j, int32_t o, int64_t i)
{
    return isnan(j->spread[RND_OF_F32][o][i]) || isnan(j->spread[RND_OF_TYPES][o][i]);
}

static bool element_fits(const rnd_judge *j, int32_t o, int64_t i, float got)
{
    double ref = j->ref[o][i];
    if (is_unsure(j, o, i))
        return true;
    if (kind_of(ref) != kind_of((double)got)) /* what noise moves by a good part of itself is near a pole */
        return kind_of(ref) == 0 && fabs(ref) > 1.0 &&
               fmax(j->spread[RND_OF_F32][o][i], j->spread[RND_OF_TYPES][o][i]) > 0.3 * fabs(ref);
    return kind_of(ref) != 0 || fabs((double)got - ref) <= allowance(j, o, i);
}

bool rnd_judge_accepts(rnd_judge *j, int32_t o, const float *got, int64_t from, int64_t to, int64_t *unsure, char *what,
                       size_t size)
{
    for (int64_t i = from; i < to; i++) {
        while (!element_fits(j, o, i, got[i])) {
            if (j->draws < MANY && draw(j)) /* luck? ask for more noise */
                continue;
            snprintf(what, size,
                     "output %d (%s), element %lld is %.9g, but double precision gives %.9g; %.3g off where %.3g are "
                     "allowed",
                     (int)o, lf_at(&j->graph->g, j->graph->g.output[o])->name, (long long)i, (double)got[i],
                     j->ref[o][i], fabs((double)got[i] - j->ref[o][i]), allowance(j, o, i));
            return false;
        }
        *unsure += is_unsure(j, o, i);
    }
    return true;
}
