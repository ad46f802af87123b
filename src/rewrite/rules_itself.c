/* SPDX-License-Identifier: Apache-2.0 */
/* A value minus itself, as a value minus its mean over one element becomes. It is 0 unless it is NaN or Inf, and
 * whether it can be is told from x alone, so that the product behind it need not be computed. */
#include "rewrite/rules.h"

#include <math.h>

/* |v| <= scale * |product| + offset, for the values between a product and v and for what is rounded on the way. */
typedef struct bound {
    double scale, offset;
    lf_fixed_linear p;
} bound;

/* How large an op of one value can make it. Another type may be too small for it. */
static bool pointwise_bound(const lf_rw *rw, lf_node n, double *scale, double *offset)
{
    lf_interval v[LF_EXPR_VARIABLE_COUNT];
    if (lf_rw_at(rw, n)->dtype != lf_rw_at(rw, lf_rw_arg(rw, n, 0))->dtype)
        return false;
    lf_rw_intervals(rw, n, v);
    const lf_growth g = lf_expr_growth(lf_op_row(lf_rw_at(rw, n)->op)->tree, v);
    *scale = fmax(1.0, g.scale); /* x itself is on the way */
    *offset = g.offset;
    return isfinite(g.scale) && isfinite(g.offset);
}

/* Sums add as many as there are; a mean is a sum first. */
static bool reduce_bound(const lf_rw *rw, lf_node n, double *scale, double *offset)
{
    const lf_shape *x = lf_rw_shape(rw, lf_rw_arg(rw, n, 0));
    unsigned axes = lf_span_axes(rw->g, n);
    double count = 1;
    for (int i = 0; i < x->rank; i++)
        if (axes & 1u << i) {
            if (!lf_extent_known(x->dim[i]))
                return false;
            count *= (double)x->dim[i].coef;
        }
    *scale = lf_rw_is(rw, n, LF_OP_sum) || lf_rw_is(rw, n, LF_OP_mean) ? count : 1.0;
    *offset = lf_rw_is(rw, n, LF_OP_logsumexp) ? log(count) : 0.0;
    return true;
}

/* From v, wanted `uses` times, down to a product wanted by nothing else. */
static bool bound_of(const lf_rw *rw, lf_node v, int32_t uses, bound *b)
{
    *b = (bound){.scale = 1, .offset = 0};
    for (;; v = lf_rw_arg(rw, v, 0), uses = 1) {
        if (rw->facts[v].uses != uses || rw->facts[v].watched || rw->facts[v].spared || lf_rw_fixed(rw, v))
            return false;
        if (lf_rw_fixed_linear(rw, v, &b->p))
            return true;
        double scale = 1, offset = 0;
        lf_kind kind = lf_kind_of(rw->g, v);
        bool one = lf_op_row(lf_rw_at(rw, v)->op)->arg_count == 1;
        if (kind == LF_POINTWISE ? !one || !pointwise_bound(rw, v, &scale, &offset)
            : kind == LF_REDUCE  ? !reduce_bound(rw, v, &scale, &offset)
                                 : kind != LF_VIEW)
            return false;
        b->offset += b->scale * offset;
        b->scale *= scale;
    }
}

/* The largest magnitude among weights, times a number: fixed. */
static lf_node largest(lf_rw *rw, lf_node weights, double times)
{
    lf_shape s = *lf_rw_shape(rw, weights);
    lf_node most = lf_rw_reduce(rw, LF_OP_max, lf_rw_one(rw, LF_OP_abs, weights), (1u << s.rank) - 1, false);
    return lf_rw_two(rw, LF_OP_mul, most, lf_rw_number(rw, times));
}

/* sum |x| max |W| + max |b|, scaled as the bound says and doubled, which is more than rounding takes: [B, 1, ...] of
 * that rank. Finite only where every number of that row on the way to v is. */
static lf_node magnitude(lf_rw *rw, const bound *b, int rank)
{
    lf_shape x = *lf_rw_shape(rw, b->p.x), row = {.rank = rank, .dim = {x.dim[0]}};
    for (int i = 1; i < rank; i++)
        row.dim[i] = lf_extent_of(1);
    lf_node sum = lf_rw_reduce(rw, LF_OP_sum, lf_rw_one(rw, LF_OP_abs, b->p.x), ((1u << x.rank) - 1) & ~1u, true);
    lf_node w = lf_rw_two(rw, LF_OP_mul, sum, largest(rw, b->p.weight, 2 * b->scale));
    if (b->p.bias != LF_NONE)
        w = lf_rw_two(rw, LF_OP_add, w, largest(rw, b->p.bias, 2 * b->scale));
    if (b->offset > 0)
        w = lf_rw_two(rw, LF_OP_add, w, lf_rw_number(rw, 2 * b->offset));
    return lf_rw_view(rw, w, &row);
}

/* v - v = 0. GUARDED: NaN - NaN, Inf - Inf. The 0 is the witness held at 0, so that it stays a value with rows. */
static lf_node minus_itself(lf_rw *rw, lf_node n)
{
    lf_node v = lf_rw_arg(rw, n, 0);
    lf_shape shape = *lf_rw_shape(rw, n);
    bound b;
    if (v != lf_rw_arg(rw, n, 1) || lf_rw_attr(rw, n, "alpha") != 1.0)
        return LF_KEEP;
    if (!bound_of(rw, v, 2, &b))
        return lf_rw_refuse(rw, "whether it is finite cannot be told without computing it");
    const lf_shape *x = lf_rw_shape(rw, b.p.x);
    bool rows = rw->facts[b.p.x].rows && shape.rank > 0 && lf_extent_same(x->dim[0], shape.dim[0]);
    if (!rows || shape.rank == 0 || !lf_rw_may_guard(rw))
        return LF_KEEP;
    lf_node w = magnitude(rw, &b, shape.rank);
    if (w == LF_NONE)
        return LF_KEEP;
    lf_rw_watch(rw, w);
    lf_rw_why(rw, "it is 0, and the product of %lld columns before it goes", (long long)b.p.n);
    lf_node zero = lf_rw_clamp(rw, w, 0.0, 0.0);
    shape.dim[0] = lf_extent_of(1);
    bool wide = false;
    for (int i = 1; i < shape.rank; i++)
        wide = wide || !lf_extent_is(shape.dim[i], 1);
    return wide ? lf_rw_two(rw, LF_OP_add, zero, lf_rw_full(rw, 0.0, &shape)) : zero;
}

static const lf_rule rules[] = {
    {.info = {"minus_itself", "v - v = 0, where x alone tells whether v is finite", LF_GUARDED},
     .ops = {LF_OP_sub},
     .apply = minus_itself},
};
const lf_rule_table lf_rules_itself = LF_TABLE(rules);
