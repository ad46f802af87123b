/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of a product's columns: a product with the sum of its rows of weights. All GUARDED, for Infs of both signs among
 * the columns meet in other sums; the witness is the small product itself, which an Inf or NaN in x makes Inf or NaN.
 */
#include "rewrite/rules.h"

/* A linear, or a view of one, whose columns are the axes from `first` on. */
typedef struct columns {
    lf_fixed_linear p;
    lf_node product;
    int first;
} columns;

/* Whether v is such, and these axes of it lie among its columns; extents of 1 lie anywhere. */
static bool columns_of(const lf_rw *rw, lf_node v, unsigned axes, columns *out)
{
    const lf_shape *s = lf_rw_shape(rw, v);
    columns c = {.product = v};
    if (lf_kind_of(rw->g, v) == LF_VIEW)
        c.product = lf_rw_arg(rw, v, 0);
    if (!lf_rw_fixed_linear(rw, c.product, &c.p))
        return false;
    lf_extent run = lf_extent_of(1);
    bool reached = false;
    for (c.first = s->rank; c.first > 0 && !reached;) {
        c.first--;
        reached = lf_extent_mul(run, s->dim[c.first], &run) && lf_extent_is(run, c.p.n);
    }
    bool inside = reached, any = false;
    for (int i = 0; i < s->rank; i++) {
        bool wide = axes & 1u << i && !lf_extent_is(s->dim[i], 1);
        inside = inside && (!wide || i >= c.first);
        any = any || wide;
    }
    *out = c;
    return inside && any;
}

/* A refusal where the product, or the view of it, is used elsewhere too. */
static bool columns_alone(lf_rw *rw, lf_node v, const columns *c)
{
    if (lf_rw_sole(rw, v) && lf_rw_sole(rw, c->product))
        return true;
    lf_rw_refuse(rw, "the product is used elsewhere");
    return false;
}

/* W [N, ...] or b [N], its first axis cut as v cuts the columns, those axes reduced, and put together again: [N', ...].
 */
static lf_node reduced_rows(lf_rw *rw, lf_op op, lf_node weights, const lf_shape *v, int first, unsigned axes)
{
    lf_shape own = *lf_rw_shape(rw, weights), cut = {0}, joined = own;
    unsigned gone = axes >> first;
    lf_extent kept = lf_extent_of(1);
    for (int i = first; i < v->rank; i++) {
        if (!(axes & 1u << i) && !lf_extent_mul(kept, v->dim[i], &kept))
            return LF_NONE;
        cut.dim[cut.rank++] = v->dim[i];
    }
    if (cut.rank + own.rank - 1 > LF_MAX_RANK)
        return LF_NONE;
    for (int i = 1; i < own.rank; i++)
        cut.dim[cut.rank++] = own.dim[i];
    joined.dim[0] = kept;
    return lf_rw_view(rw, lf_rw_reduce(rw, op, lf_rw_view(rw, weights, &cut), gone, true), &joined);
}

/* sum over columns of linear(x, W, b) = linear(x, sum over rows of W, sum of b); likewise mean; likewise parts of the
 * columns, through a view that cuts them */
static lf_node sum_of_linear(lf_rw *rw, lf_node n)
{
    lf_op op = lf_rw_at(rw, n)->op;
    lf_node v = lf_rw_arg(rw, n, 0);
    lf_shape cut = *lf_rw_shape(rw, v), shape = *lf_rw_shape(rw, n);
    unsigned axes = lf_span_axes(rw->g, n);
    columns c;
    if (!columns_of(rw, v, axes, &c) || !columns_alone(rw, v, &c) || !lf_rw_may_guard(rw))
        return LF_KEEP;
    axes &= ~((1u << c.first) - 1);
    lf_node weight = reduced_rows(rw, op, c.p.weight, &cut, c.first, axes), bias = LF_NONE;
    if (weight == LF_NONE)
        return LF_KEEP;
    if (c.p.bias != LF_NONE && (bias = reduced_rows(rw, op, c.p.bias, &cut, c.first, axes)) == LF_NONE)
        return LF_KEEP;
    lf_rw_why(rw, "%lld columns become %lld", (long long)c.p.n, (long long)lf_rw_shape(rw, weight)->dim[0].coef);
    lf_node r = lf_rw_linear(rw, c.p.x, weight, bias);
    lf_rw_watch(rw, r);
    return lf_rw_view(rw, r, &shape);
}

/* avg_pool1d(linear(x, W, b)) = linear(x, avg_pool1d over the rows of W, avg_pool1d(b)): each window is a weighted sum
 * of columns, padding and all; where that leaves fewer columns */
static lf_node avg_pool_of_linear(lf_rw *rw, lf_node n)
{
    lf_node v = lf_rw_arg(rw, n, 0);
    lf_node_info info = *lf_rw_at(rw, n);
    int last = info.shape.rank - 1;
    columns c;
    if (!columns_of(rw, v, 1u << last, &c) || !lf_extent_is(lf_rw_shape(rw, v)->dim[last], c.p.n))
        return LF_KEEP;
    if (info.shape.dim[last].coef >= c.p.n)
        return lf_rw_refuse(rw, "%lld columns would become %lld", (long long)c.p.n,
                            (long long)info.shape.dim[last].coef);
    if (!columns_alone(rw, v, &c) || !lf_rw_may_guard(rw))
        return LF_KEEP;
    lf_node weight = lf_rw_like(rw, n, 0, lf_rw_transpose(rw, c.p.weight, 0, 1)), bias = LF_NONE;
    if (c.p.bias != LF_NONE) {
        bias = lf_rw_like(rw, n, 0, lf_rw_with(rw, LF_OP_unsqueeze, c.p.bias, 0));
        bias = lf_rw_view(rw, bias, &(lf_shape){.rank = 1, .dim = {info.shape.dim[last]}});
        if (bias == LF_NONE)
            return LF_KEEP;
    }
    if (weight == LF_NONE)
        return LF_KEEP;
    lf_rw_why(rw, "%lld columns become %lld", (long long)c.p.n, (long long)info.shape.dim[last].coef);
    lf_node r = lf_rw_linear(rw, c.p.x, lf_rw_transpose(rw, weight, 0, 1), bias);
    lf_rw_watch(rw, r);
    return lf_rw_view(rw, r, &info.shape);
}

/* ---- through what lies between ---- */

enum { MAX_BETWEEN = 64 };

/* From the reduced value down to the product: the nodes, and which argument of each leads on. */
typedef struct path {
    lf_node node[MAX_BETWEEN];
    int slot[MAX_BETWEEN], count;
} path;

/* Whether the sum of v = f(a, y) is f(sum of a, y): negation, or a factor of each row's own. Not a sum or difference: a
 * and y may cancel, and their sums would have been rounded apart. (With a y that is fixed, fold_bias has put it into
 * the product.) */
static bool passes(const lf_rw *rw, lf_node v, int slot, unsigned axes)
{
    if (lf_rw_is(rw, v, LF_OP_neg))
        return slot == 0;
    bool scales = lf_rw_is(rw, v, LF_OP_mul) || (lf_rw_is(rw, v, LF_OP_div) && slot == 0);
    return scales && lf_rw_same_shape(rw, lf_rw_arg(rw, v, slot), v) &&
           lf_rw_repeats(rw, lf_rw_arg(rw, v, 1 - slot), lf_rw_shape(rw, v)->rank, axes);
}

/* Every value on the way has one user, so that the ways down from different sums share nothing and the search is short.
 */
static bool find_product(const lf_rw *rw, lf_node v, unsigned axes, path *p)
{
    columns c;
    if (columns_of(rw, v, axes, &c))
        return lf_rw_sole(rw, v) && lf_rw_sole(rw, c.product);
    if (p->count == MAX_BETWEEN || lf_rw_fixed(rw, v) || !lf_rw_sole(rw, v) || lf_kind_of(rw->g, v) != LF_POINTWISE)
        return false;
    int here = p->count;
    for (int slot = 0; slot < 2; slot++) {
        if (lf_rw_arg(rw, v, slot) == LF_NONE || !passes(rw, v, slot, axes))
            continue;
        p->node[here] = v;
        p->slot[here] = slot;
        p->count = here + 1;
        if (find_product(rw, lf_rw_arg(rw, v, slot), axes, p))
            return true;
    }
    p->count = here;
    return false;
}

/* mean(a * r) = mean(a) * r for r one number a row; likewise /, negation, and sum: where that leads to a product whose
 * columns are all that is summed. */
static lf_node sum_through_scale(lf_rw *rw, lf_node n)
{
    lf_op op = lf_rw_at(rw, n)->op;
    lf_node v = lf_rw_arg(rw, n, 0);
    lf_shape shape = *lf_rw_shape(rw, n);
    unsigned axes = lf_span_axes(rw->g, n);
    path p = {.count = 0};
    if (!find_product(rw, v, axes, &p) || p.count == 0 || !lf_rw_may_guard(rw))
        return LF_KEEP;
    lf_node product = lf_rw_arg(rw, p.node[p.count - 1], p.slot[p.count - 1]);
    lf_node r = lf_rw_reduce(rw, op, product, axes, true);
    for (int i = p.count - 1; i >= 0 && r != LF_NONE; i--)
        r = lf_rw_like(rw, p.node[i], p.slot[i], r);
    if (r == LF_NONE)
        return LF_KEEP;
    lf_rw_watch(rw, r);
    lf_rw_why(rw, "the %s of a product needs one column, and %d op%s between %s not in the way", lf_op_row(op)->name,
              p.count, p.count > 1 ? "s" : "", p.count > 1 ? "are" : "is");
    return lf_rw_view(rw, r, &shape);
}

static const lf_rule rules[] = {
    {.info = {"sum_of_linear",
              "sum of linear(x, W, b) over columns = linear(x, sum of W over rows, sum of b); mean too", LF_GUARDED},
     .ops = {LF_OP_sum, LF_OP_mean},
     .apply = sum_of_linear},
    {.info = {"sum_through_scale", "mean(a * r) = mean(a) * r for one r a row; / and sum too", LF_GUARDED},
     .ops = {LF_OP_sum, LF_OP_mean},
     .apply = sum_through_scale},
    {.info = {"avg_pool_of_linear", "avg_pool1d(linear(x, W, b)) = linear(x, avg_pool1d(W), avg_pool1d(b))",
              LF_GUARDED},
     .ops = {LF_OP_avg_pool1d},
     .apply = avg_pool_of_linear},
};
const lf_rule_table lf_rules_collapse = LF_TABLE(rules);
