/* SPDX-License-Identifier: Apache-2.0 */
/* What a linear takes into its weight and bias. The new weights are nodes over parameters: computed once, in double. */
#include "rewrite/rules.h"

#include <math.h>

/* c beside a product's N columns: a vector [N] or a single number, of rank 1 at most; LF_NONE for anything else. */
static lf_node column(lf_rw *rw, lf_node c, int64_t n)
{
    lf_shape s = *lf_rw_shape(rw, c);
    if (!lf_rw_fixed(rw, c) || (s.rank > 1 && !lf_rw_repeats(rw, c, s.rank, (1u << (s.rank - 1)) - 1)))
        return LF_NONE;
    lf_extent last = s.rank ? s.dim[s.rank - 1] : lf_extent_of(1);
    if (!lf_extent_is(last, n) && !lf_extent_is(last, 1))
        return LF_NONE;
    return s.rank > 1 ? lf_rw_view(rw, c, &(lf_shape){.rank = 1, .dim = {last}}) : c;
}

/* The same beside a weight's N rows. */
static lf_node row_factor(lf_rw *rw, lf_node c)
{
    return c != LF_NONE && lf_rw_shape(rw, c)->rank == 1 ? lf_rw_with(rw, LF_OP_unsqueeze, c, 1) : c;
}

/* The product at that slot, with the fixed column at the other; a refusal where the product is used elsewhere too. */
static bool beside_product(lf_rw *rw, lf_node n, int slot, lf_fixed_linear *p, lf_node *c)
{
    lf_node product = lf_rw_arg(rw, n, slot), other = lf_rw_arg(rw, n, 1 - slot);
    if (!lf_rw_fixed_linear(rw, product, p) || !lf_rw_same_shape(rw, product, n))
        return false;
    *c = column(rw, other, p->n);
    if (*c != LF_NONE && !lf_rw_sole(rw, product))
        *c = lf_rw_refuse(rw, "the product is used elsewhere");
    return *c != LF_NONE;
}

/* May the weight take in a factor? One of f16 or bf16 would become f32: twice as much to read, and nothing for
 * instructions that multiply bf16. Says why not. */
static bool takes_factor(lf_rw *rw, const lf_fixed_linear *p)
{
    const bool takes = lf_rw_at(rw, p->weight)->dtype == LF_F32;
    if (!takes)
        lf_rw_refuse(rw, "the weight would no longer be of its short type");
    return takes;
}

static lf_node bias_or_zero(lf_rw *rw, const lf_fixed_linear *p)
{
    lf_shape shape = {.rank = 1, .dim = {lf_extent_of(p->n)}};
    return p->bias != LF_NONE ? p->bias : lf_rw_full(rw, 0.0, &shape);
}

/* linear(x, W, b) + c = linear(x, W, b + c); likewise -; c - linear(x, W, b) = linear(x, -W, c - b) */
static lf_node fold_bias(lf_rw *rw, lf_node n)
{
    lf_fixed_linear p;
    lf_node c;
    if (beside_product(rw, n, 0, &p, &c)) {
        bool whole = lf_rw_shape(rw, c)->rank == 1 && lf_extent_is(lf_rw_shape(rw, c)->dim[0], p.n);
        if (p.bias == LF_NONE && whole && lf_rw_is(rw, n, LF_OP_add) && lf_rw_attr(rw, n, "alpha") == 1.0)
            return lf_rw_linear(rw, p.x, p.weight, c);
        const lf_node args[LF_MAX_ARGS] = {bias_or_zero(rw, &p), c, LF_NONE, LF_NONE, LF_NONE};
        lf_node bias = lf_rw_make(rw, lf_rw_at(rw, n)->op, args, lf_rw_at(rw, n)->attr);
        return bias == LF_NONE ? LF_KEEP : lf_rw_linear(rw, p.x, p.weight, bias);
    }
    if (lf_rw_attr(rw, n, "alpha") != 1.0 || !beside_product(rw, n, 1, &p, &c))
        return LF_KEEP;
    if (lf_rw_is(rw, n, LF_OP_sub) && !takes_factor(rw, &p))
        return LF_KEEP;
    lf_node bias = lf_rw_two(rw, lf_rw_at(rw, n)->op, c, bias_or_zero(rw, &p));
    lf_node weight = lf_rw_is(rw, n, LF_OP_sub) ? lf_rw_one(rw, LF_OP_neg, p.weight) : p.weight;
    return bias == LF_NONE ? LF_KEEP : lf_rw_linear(rw, p.x, weight, bias);
}

/* Whether a factor, or divisor, may make anything larger: all but constants that are seen not to. */
static bool may_enlarge(const lf_rw *rw, lf_op op, lf_node s)
{
    double value;
    return !lf_rw_constant(rw, s, &value) || (op == LF_OP_div ? !(fabs(value) >= 1.0) : fabs(value) > 1.0);
}

/* linear(x, W, b) * s = linear(x, W * s, b * s), s down the rows of W; likewise /. Only such s as may enlarge, or only
 * others. */
static lf_node scaled_product(lf_rw *rw, lf_node n, bool enlarging)
{
    lf_op op = lf_rw_at(rw, n)->op;
    for (int slot = 0; slot < (op == LF_OP_div ? 1 : 2); slot++) {
        lf_fixed_linear p;
        lf_node s = lf_rw_arg(rw, n, 1 - slot);
        if (may_enlarge(rw, op, s) != enlarging || !beside_product(rw, n, slot, &p, &s))
            continue;
        if ((enlarging && !lf_rw_may_guard(rw)) || !takes_factor(rw, &p))
            return LF_KEEP;
        lf_node bias = p.bias == LF_NONE ? LF_NONE : lf_rw_two(rw, op, p.bias, s);
        return lf_rw_linear(rw, p.x, lf_rw_two(rw, op, p.weight, row_factor(rw, s)), bias);
    }
    return LF_KEEP;
}

/* For an s of at most 1: what is added up is nowhere larger than as written. Likewise negation. */
static lf_node fold_scale(lf_rw *rw, lf_node n)
{
    lf_node product = lf_rw_arg(rw, n, 0);
    lf_fixed_linear p;
    if (!lf_rw_is(rw, n, LF_OP_neg))
        return scaled_product(rw, n, false);
    if (!lf_rw_fixed_linear(rw, product, &p))
        return LF_KEEP;
    if (!lf_rw_sole(rw, product))
        return lf_rw_refuse(rw, "the product is used elsewhere");
    if (!takes_factor(rw, &p))
        return LF_KEEP;
    lf_node bias = p.bias == LF_NONE ? LF_NONE : lf_rw_one(rw, LF_OP_neg, p.bias);
    return lf_rw_linear(rw, p.x, lf_rw_one(rw, LF_OP_neg, p.weight), bias);
}

/* For any other s. GUARDED: sums may overflow on the way to a result that is finite. */
static lf_node fold_gain(lf_rw *rw, lf_node n)
{
    lf_node r = scaled_product(rw, n, true);
    lf_rw_watch(rw, r);
    return r;
}

/* linear(x * s, W, b) = linear(x, W * s, b), s along the columns of W; likewise / */
static lf_node fold_input_scale(lf_rw *rw, lf_node n)
{
    lf_fixed_linear p;
    if (!lf_rw_fixed_linear(rw, n, &p) || (!lf_rw_is(rw, p.x, LF_OP_mul) && !lf_rw_is(rw, p.x, LF_OP_div)))
        return LF_KEEP;
    lf_op op = lf_rw_at(rw, p.x)->op;
    for (int slot = 0; slot < (op == LF_OP_mul ? 2 : 1); slot++) {
        lf_node x = lf_rw_arg(rw, p.x, slot), s = lf_rw_arg(rw, p.x, 1 - slot);
        if (lf_rw_fixed(rw, x) || !lf_rw_fixed(rw, s) || !lf_rw_same_shape(rw, x, p.x))
            continue;
        if (!lf_rw_sole(rw, p.x))
            return lf_rw_refuse(rw, "the scaled value is used elsewhere");
        s = column(rw, s, p.k);
        if (s != LF_NONE && !takes_factor(rw, &p))
            return LF_KEEP;
        if (s != LF_NONE)
            return lf_rw_linear(rw, x, lf_rw_two(rw, op, p.weight, s), p.bias);
    }
    return LF_KEEP;
}

/* matmul(x, w) = linear(x, w transposed) for a fixed w: products then have one form */
static lf_node matmul_as_linear(lf_rw *rw, lf_node n)
{
    lf_node x = lf_rw_arg(rw, n, 0), w = lf_rw_arg(rw, n, 1);
    if (!lf_rw_fixed(rw, w))
        return LF_KEEP;
    bool turned = lf_rw_is(rw, w, LF_OP_transpose) && lf_rw_attr(rw, w, "dim0") != lf_rw_attr(rw, w, "dim1");
    return lf_rw_linear(rw, x, turned ? lf_rw_arg(rw, w, 0) : lf_rw_transpose(rw, w, 0, 1), LF_NONE);
}

/* How often preparing the weights is taken to pay: the merged weight costs N2 N1 K once. */
static const double CALLS = 100.0;

/* linear(linear(x, W1, b1), W2, b2) = linear(x, W2 W1, W2 b1 + b2), where that is less work: M (N1 K + N2 N1) against M
 * N2 K and a hundredth of N2 N1 K. GUARDED: Infs of both signs meet in other sums. */
static lf_node merge_linears(lf_rw *rw, lf_node n)
{
    lf_fixed_linear outer, inner;
    if (!lf_rw_fixed_linear(rw, n, &outer) || !lf_rw_fixed_linear(rw, outer.x, &inner))
        return LF_KEEP;
    lf_extent rows = lf_extent_of(1);
    const lf_shape *shape = lf_rw_shape(rw, n);
    bool fits = true;
    for (int i = 0; i < shape->rank - 1; i++)
        fits = fits && lf_extent_mul(rows, shape->dim[i], &rows);
    if (!fits)
        return LF_KEEP;
    double m = lf_rw_extent(rw, rows), n1 = (double)inner.n, n2 = (double)outer.n, k = (double)inner.k;
    double apart = m * (n1 * k + n2 * n1), merged = m * n2 * k + n2 * n1 * k / CALLS;
    if (!(merged < apart))
        return lf_rw_refuse(rw, "at batch %.0f merging costs more: %.3g M against %.3g M multiply-adds", m,
                            merged / 1e6, apart / 1e6);
    if (!lf_rw_sole(rw, outer.x))
        return lf_rw_refuse(rw, "the first product is used elsewhere");
    if (!lf_rw_may_guard(rw))
        return LF_KEEP;
    lf_node bias = outer.bias;
    if (inner.bias != LF_NONE) {
        lf_node b1 = lf_rw_with(rw, LF_OP_unsqueeze, inner.bias, 0);
        bias = lf_rw_view(rw, lf_rw_linear(rw, b1, outer.weight, outer.bias),
                          &(lf_shape){.rank = 1, .dim = {lf_extent_of(outer.n)}});
        if (bias == LF_NONE)
            return LF_KEEP;
    }
    lf_node r = lf_rw_linear(rw, inner.x, lf_rw_two(rw, LF_OP_matmul, outer.weight, inner.weight), bias);
    lf_rw_watch(rw, r);
    lf_rw_why(rw, "one product of %.3g M multiply-adds at batch %.0f instead of two of %.3g M", m * n2 * k / 1e6, m,
              apart / 1e6);
    return r;
}

static const lf_rule rules[] = {
    {.info = {"matmul_as_linear", "matmul(x, w) = linear(x, w transposed) for a fixed w", LF_EXACT},
     .gain = "the right side is known beforehand",
     .ops = {LF_OP_matmul},
     .apply = matmul_as_linear},
    {.info = {"fold_bias", "linear(x, W, b) + c = linear(x, W, b + c)", LF_REROUNDS},
     .gain = "the bias takes it in",
     .ops = {LF_OP_add, LF_OP_sub},
     .apply = fold_bias},
    {.info = {"fold_scale", "linear(x, W, b) * s = linear(x, W * s, b * s) for |s| <= 1", LF_REROUNDS},
     .gain = "the weights take it in",
     .ops = {LF_OP_mul, LF_OP_div, LF_OP_neg},
     .apply = fold_scale},
    {.info = {"fold_gain", "linear(x, W, b) * s = linear(x, W * s, b * s) for any s", LF_GUARDED},
     .gain = "the weights take it in",
     .ops = {LF_OP_mul, LF_OP_div},
     .apply = fold_gain},
    {.info = {"fold_input_scale", "linear(x * s, W, b) = linear(x, W * s, b)", LF_REROUNDS},
     .gain = "the weights take it in",
     .ops = {LF_OP_linear},
     .apply = fold_input_scale},
    {.info = {"merge_linears", "linear(linear(x, W1, b1), W2, b2) = linear(x, W2 W1, W2 b1 + b2)", LF_GUARDED},
     .ops = {LF_OP_linear},
     .apply = merge_linears},
};
const lf_rule_table lf_rules_linear = LF_TABLE(rules);
