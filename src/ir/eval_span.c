/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions, normalisations and pools. Statistics are taken the plain way, in several passes (largest first, then the
 * sum of what is left; mean first, then distances from it), and share nothing with the one-pass monoids that the
 * emitters use: each can so be checked against the other. */
#include "ir/eval_parts.h"

#include <assert.h>
#include <math.h>

/* ---- which elements belong to which statistic ---- */

/* The elements, in order, cut into runs: the last group of neighbouring axes of which all or none are reduced. A run
 * belongs to one statistic (step 0) or each of its elements to the next one (step 1). */
typedef struct span {
    int groups;
    int64_t extent[LF_MAX_RANK + 1]; /* of groups of axes; one more for group_norm's cut */
    int64_t stride[LF_MAX_RANK + 1]; /* in statistics; 0 where reduced */
    int64_t runs, length, step;
    int64_t stats, each; /* how many statistics, of how many elements */
} span;

/* One run at a time, in order. */
typedef struct run {
    int64_t number, stat;
    int64_t index[LF_MAX_RANK + 1];
} run;

static void run_next(const span *sp, run *r)
{
    r->number++;
    for (int g = sp->groups - 2; g >= 0; g--) {
        r->stat += sp->stride[g];
        if (++r->index[g] < sp->extent[g])
            return;
        r->index[g] = 0;
        r->stat -= sp->stride[g] * sp->extent[g];
    }
}

/* Cuts argument 0's elements by the axes in the mask; the reduced elements of a statistic into `segments` equal parts,
 * which wants them last. */
static span span_of(const lf_site *s, unsigned axes, int64_t segments)
{
    lf_node x = lf_at(s->g, s->n)->arg[0];
    int rank = lf_at(s->g, x)->shape.rank;
    bool reduced[LF_MAX_RANK + 1] = {false};
    span sp = {.groups = 0};

    for (int axis = 0; axis < rank; axis++) {
        bool taken = axes >> axis & 1;
        if (sp.groups == 0 || reduced[sp.groups - 1] != taken) {
            reduced[sp.groups] = taken;
            sp.extent[sp.groups++] = 1;
        }
        sp.extent[sp.groups - 1] *= lf_site_extent(s, x, axis);
    }
    if (sp.groups == 0)
        sp.extent[sp.groups++] = 1;
    if (segments > 1) {
        assert(reduced[sp.groups - 1] && sp.groups <= LF_MAX_RANK && sp.extent[sp.groups - 1] % segments == 0);
        sp.extent[sp.groups] = sp.extent[sp.groups - 1] / segments;
        reduced[sp.groups] = true;
        reduced[sp.groups - 1] = false;
        sp.extent[sp.groups - 1] = segments;
        sp.groups++;
    }

    sp.stats = sp.each = sp.runs = 1;
    for (int g = sp.groups - 1; g >= 0; g--) {
        sp.stride[g] = reduced[g] ? 0 : sp.stats;
        *(reduced[g] ? &sp.each : &sp.stats) *= sp.extent[g];
        if (g < sp.groups - 1)
            sp.runs *= sp.extent[g];
    }
    sp.length = sp.extent[sp.groups - 1];
    sp.step = sp.stride[sp.groups - 1] ? 1 : 0;
    if (sp.length == 0)
        sp.runs = 0;
    return sp;
}

/* ---- passes over all elements ---- */

/* What an element adds to a sum, given an earlier result m of its statistic. */
typedef double term_fn(double x, double m);

static inline double term_itself(double x, double m)
{
    (void)m;
    return x;
}

static inline double term_square(double x, double m)
{
    (void)m;
    return x * x;
}

static inline double term_distance(double x, double m)
{
    return x - m;
}

static inline double term_square_distance(double x, double m)
{
    return (x - m) * (x - m);
}

static inline double term_exp(double x, double m)
{
    return exp(x - m);
}

/* sum[o] = the terms of statistic o; a panel is summed by itself first, so that the error grows with the panels rather
 * than with the elements. m and sum: one per statistic. */
static inline __attribute__((always_inline)) void sum_terms(const span *sp, const lf_bound *x, term_fn *term,
                                                            const double *m, double *sum)
{
    double room[LF_PANEL];
    for (int64_t o = 0; o < sp->stats; o++)
        sum[o] = 0;
    for (run r = {0}; r.number < sp->runs; run_next(sp, &r)) {
        for (int64_t from = 0; from < sp->length; from += LF_PANEL) {
            int64_t count = sp->length - from < LF_PANEL ? sp->length - from : LF_PANEL;
            const double *panel = lf_read_panel(x, r.number * sp->length + from, count, room);
            if (sp->step) {
                double *to = sum + r.stat + from;
                const double *given = m + r.stat + from;
                for (int64_t i = 0; i < count; i++)
                    to[i] += term(panel[i], given[i]);
            } else {
                double part = 0;
                for (int64_t i = 0; i < count; i++)
                    part += term(panel[i], m[r.stat]);
                sum[r.stat] += part;
            }
        }
    }
}

/* best[o] = sign * the largest of sign * x, or NaN where there is one; -sign * Inf where there is nothing. */
static void find_extreme(const span *sp, const lf_bound *x, double sign, double *best)
{
    double room[LF_PANEL];
    for (int64_t o = 0; o < sp->stats; o++)
        best[o] = -sign * INFINITY;
    for (run r = {0}; r.number < sp->runs; run_next(sp, &r)) {
        for (int64_t from = 0; from < sp->length; from += LF_PANEL) {
            int64_t count = sp->length - from < LF_PANEL ? sp->length - from : LF_PANEL;
            const double *panel = lf_read_panel(x, r.number * sp->length + from, count, room);
            double *to = best + r.stat + sp->step * from;
            for (int64_t i = 0; i < count; i++, to += sp->step)
                if (sign * panel[i] > sign * *to || isnan(panel[i]))
                    *to = panel[i];
        }
    }
}

/* ---- statistics, one function a monoid ---- */

/* r0, r1: the results, one of each per statistic. Both are the function's to use as it goes. */
typedef void stat_fn(const span *sp, const lf_bound *x, double *r0, double *r1);

static void divide_by_count(const span *sp, double *r)
{
    for (int64_t o = 0; o < sp->stats; o++)
        r[o] /= (double)sp->each;
}

static void stat_sum(const span *sp, const lf_bound *x, double *r0, double *r1)
{
    (void)r1;
    sum_terms(sp, x, term_itself, r0, r0);
}

static void stat_mean(const span *sp, const lf_bound *x, double *r0, double *r1)
{
    stat_sum(sp, x, r0, r1);
    divide_by_count(sp, r0);
}

static void stat_meansquare(const span *sp, const lf_bound *x, double *r0, double *r1)
{
    (void)r1;
    sum_terms(sp, x, term_square, r0, r0);
    divide_by_count(sp, r0);
}

static void stat_max(const span *sp, const lf_bound *x, double *r0, double *r1)
{
    (void)r1;
    find_extreme(sp, x, 1, r0);
}

static void stat_min(const span *sp, const lf_bound *x, double *r0, double *r1)
{
    (void)r1;
    find_extreme(sp, x, -1, r0);
}

/* Largest, and the sum of exp(x - largest): NaN where the largest is infinite. */
static void stat_maxsumexp(const span *sp, const lf_bound *x, double *r0, double *r1)
{
    find_extreme(sp, x, 1, r0);
    sum_terms(sp, x, term_exp, r0, r1);
}

/* Mean and biased variance. The mean is corrected by the mean of what it leaves, so that equal elements have a variance
 * of 0 and not of a rounding error, which a small eps would blow up. */
static void stat_moments(const span *sp, const lf_bound *x, double *r0, double *r1)
{
    stat_mean(sp, x, r0, r1);
    sum_terms(sp, x, term_distance, r0, r1);
    divide_by_count(sp, r1);
    for (int64_t o = 0; o < sp->stats; o++)
        r0[o] += r1[o];
    sum_terms(sp, x, term_square_distance, r0, r1);
    divide_by_count(sp, r1);
}

static stat_fn *const statistic_of[LF_MONOID_COUNT] = {
#define LF_MONOID(name, ...) [LF_MONOID_##name] = stat_##name,
#include "ir/monoids.def"
#undef LF_MONOID
};

/* ---- what an op makes of its statistic ---- */

/* REDUCE: the value, x being what stands beside the statistic (0: nothing); NORMALIZE: the element x anew. a: eps, for
 * those that have one. */
typedef double finish_fn(double x, double r0, double r1, double a);

static double finish_result(double x, double r0, double r1, double a)
{
    (void)x, (void)r1, (void)a;
    return r0;
}

static double finish_logsumexp(double x, double r0, double r1, double a)
{
    (void)x, (void)a;
    return isinf(r0) ? r0 : r0 + log(r1);
}

static double finish_above(double x, double r0, double r1, double a)
{
    (void)a;
    return r0 - x + log(r1);
}

static double finish_softmax(double x, double r0, double r1, double a)
{
    (void)a;
    return exp(x - r0) / r1;
}

static double finish_log_softmax(double x, double r0, double r1, double a)
{
    (void)a;
    return x - r0 - log(r1);
}

static double finish_moments(double x, double r0, double r1, double a)
{
    return (x - r0) / sqrt(r1 + a);
}

static double finish_rms_norm(double x, double r0, double r1, double a)
{
    (void)r1;
    return x / sqrt(r0 + a);
}

#define finish_sum           finish_result
#define finish_mean          finish_result
#define finish_max           finish_result
#define finish_min           finish_result
#define finish_layer_norm    finish_moments
#define finish_group_norm    finish_moments
#define finish_instance_norm finish_moments
#define finish_batch_norm    finish_moments

/* The windows' counterpart: the elements [begin, end) of x's row at `row`, `step` apart; `whole`: what a mean divides
 * by. */
typedef double window_fn(const lf_bound *x, int64_t row, int64_t begin, int64_t end, int64_t step, int64_t whole);

static double window_avg_pool1d(const lf_bound *x, int64_t row, int64_t begin, int64_t end, int64_t step, int64_t whole)
{
    double sum = 0;
    for (int64_t i = begin; i < end; i += step)
        sum += lf_read(x, row + i);
    return begin < end ? sum / (double)whole : 0; /* PyTorch: a window of padding alone is 0 */
}

/* Padding is -Inf, and NaN wins. */
static double window_max_pool1d(const lf_bound *x, int64_t row, int64_t begin, int64_t end, int64_t step, int64_t whole)
{
    (void)whole;
    double best = -INFINITY;
    for (int64_t i = begin; i < end; i += step) {
        double value = lf_read(x, row + i);
        if (value > best || isnan(value))
            best = value;
    }
    return best;
}

/* By op: REDUCE and NORMALIZE have a finish, POOL a window; a row of ops.def without its function does not compile. */
#define FN_LEAF(name)      {0}
#define FN_PRODUCT(name)   {0}
#define FN_POINTWISE(name) {0}
#define FN_REDUCE(name)    {.finish = finish_##name}
#define FN_NORMALIZE(name) {.finish = finish_##name}
#define FN_POOL(name)      {.window = window_##name}
#define FN_VIEW(name)      {0}
#define FN_MOVE(name)      {0}
#define FN_LOSS(name)      {0}
#define FN_GUARD(name)     {0}
static const struct {
    finish_fn *finish;
    window_fn *window;
} function_of[LF_OP_COUNT] = {
#define LF_OP(name, kind, ...) [LF_OP_##name] = FN_##kind(name),
#include "ir/ops.def"
#undef LF_OP
};

/* ---- the kinds ---- */

/* r0, r1: sp->stats each; r1 is 0 where the statistic has one result. */
static void take_statistic(const lf_site *s, const span *sp, double *r0, double *r1)
{
    for (int64_t o = 0; o < sp->stats; o++)
        r1[o] = 0;
    statistic_of[lf_op_row(lf_at(s->g, s->n)->op)->monoid](sp, &s->arg[0], r0, r1);
}

static finish_fn *site_finish(const lf_site *s)
{
    return function_of[lf_at(s->g, s->n)->op].finish;
}

static span reduce_span(const lf_site *s)
{
    return span_of(s, lf_span_axes(s->g, s->n), 1);
}

int64_t lf_eval_reduce_scratch(const lf_site *s)
{
    return reduce_span(s).stats;
}

/* Results come in the order of the axes that stay, which is the result's own order, keepdim or not. */
void lf_eval_reduce(const lf_site *s)
{
    span sp = reduce_span(s);
    finish_fn *finish = site_finish(s);
    take_statistic(s, &sp, s->out, s->scratch);
    for (int64_t o = 0; o < sp.stats; o++)
        s->out[o] = finish(lf_is_bound(&s->arg[1]) ? lf_read(&s->arg[1], o) : 0, s->out[o], s->scratch[o], 0);
}

/* With running statistics there is one a channel, whatever the op would have taken its own over. */
static span normalize_span(const lf_site *s)
{
    if (lf_uses_running_stats(s->g, s->n))
        return span_of(s, ~(1u << 1), 1);
    return span_of(s, lf_span_axes(s->g, s->n), lf_segments(s->g, s->n));
}

int64_t lf_eval_normalize_scratch(const lf_site *s)
{
    return 2 * normalize_span(s).stats;
}

/* out *= weight, out += bias; factor i holds for `inner` neighbours, and the factors repeat. */
static void apply_affine(const lf_site *s, int64_t total)
{
    lf_affine affine = lf_affine_of(s->g, s->n);
    const lf_bound none = {0};
    const lf_bound *weight = affine.weight_slot >= 0 ? &s->arg[affine.weight_slot] : &none;
    const lf_bound *bias = affine.bias_slot >= 0 ? &s->arg[affine.bias_slot] : &none;
    if (!lf_is_bound(weight) && !lf_is_bound(bias))
        return;

    lf_node x = lf_at(s->g, s->n)->arg[0];
    int64_t factors = 1, inner = 1;
    for (int axis = affine.axis; axis < lf_at(s->g, x)->shape.rank; axis++)
        *(affine.channels && axis > affine.axis ? &inner : &factors) *= lf_site_extent(s, x, axis);

    double *out = s->out;
    for (int64_t done = 0; done < total; done += factors * inner) {
        for (int64_t f = 0; f < factors; f++) {
            double w = lf_is_bound(weight) ? lf_read(weight, f) : 1, b = lf_is_bound(bias) ? lf_read(bias, f) : 0;
            for (int64_t i = 0; i < inner; i++, out++)
                *out = *out * w + b;
        }
    }
}

void lf_eval_normalize(const lf_site *s)
{
    span sp = normalize_span(s);
    const lf_bound *x = &s->arg[0];
    double *r0 = s->scratch, *r1 = s->scratch + sp.stats;
    if (lf_uses_running_stats(s->g, s->n)) {
        for (int64_t o = 0; o < sp.stats; o++) {
            r0[o] = lf_read(&s->arg[1], o);
            r1[o] = lf_read(&s->arg[2], o);
        }
    } else {
        take_statistic(s, &sp, r0, r1);
    }

    finish_fn *finish = site_finish(s);
    double numbers[3];
    lf_op_numbers(s->g, s->n, numbers);
    for (run r = {0}; r.number < sp.runs; run_next(&sp, &r)) {
        int64_t at = r.number * sp.length;
        for (int64_t i = 0; i < sp.length; i++) {
            int64_t o = r.stat + i * sp.step;
            s->out[at + i] = finish(lf_read(x, at + i), r0[o], r1[o], numbers[0]);
        }
    }
    apply_affine(s, sp.runs * sp.length);
}

/* avg_pool's divisor as PyTorch has it: with the padding counted, the window as far as it reaches into the padded row
 * (less than the kernel where ceil_mode lets it hang over); without, the elements there are. */
void lf_eval_pool(const lf_site *s)
{
    const lf_node_info *node = lf_at(s->g, s->n);
    window_fn *window = function_of[node->op].window;
    lf_window win = lf_window_of(s->g, s->n);
    int last = node->shape.rank - 1;
    int64_t length = lf_site_extent(s, node->arg[0], last), results = lf_site_extent(s, s->n, last);
    int64_t rows = 1;
    for (int axis = 0; axis < last; axis++)
        rows *= lf_site_extent(s, s->n, axis);

    double *out = s->out;
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t j = 0; j < results; j++) {
            int64_t begin = j * win.stride - win.padding;
            int64_t end = begin + (win.kernel - 1) * win.dilation + 1;
            int64_t reach = end < length + win.padding ? end : length + win.padding;
            int64_t whole = reach - begin;
            if (begin < 0) /* the first element at or after 0 that the dilation meets */
                begin += (-begin + win.dilation - 1) / win.dilation * win.dilation;
            end = reach < length ? reach : length;
            *out++ = window(&s->arg[0], row * length, begin, end, win.dilation, win.include_pad ? whole : end - begin);
        }
    }
}
