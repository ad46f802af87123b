/* SPDX-License-Identifier: Apache-2.0 */
/* softmax, log_softmax and logsumexp: shifts, and exp and log around them. */
#include "rewrite/rules.h"

static int axis_of(const lf_rw *rw, lf_node n)
{
    int axis = 0;
    while (!(lf_span_axes(rw->g, n) & 1u << axis) && axis < LF_MAX_RANK - 1)
        axis++;
    return axis;
}

/* softmax over one element = 1, log_softmax 0. GUARDED: of NaN and Inf it is NaN. The value keeps reading x, held at
 * that number, so that it stays a value with rows. */
static lf_node softmax_of_one(lf_rw *rw, lf_node n)
{
    lf_node x = lf_rw_arg(rw, n, 0);
    const lf_shape *s = lf_rw_shape(rw, x);
    if (s->rank == 0 || !lf_extent_is(s->dim[axis_of(rw, n)], 1) || !lf_rw_may_guard(rw))
        return LF_KEEP;
    double value = lf_rw_is(rw, n, LF_OP_softmax) ? 1.0 : 0.0;
    lf_rw_watch(rw, x);
    lf_rw_why(rw, "over one element it is %.0f", value);
    return lf_rw_clamp(rw, x, value, value);
}

/* ---- shifts ---- */

/* x + c, c + x or x - c with c the same along these axes: which argument is x; -1 where it is nothing of the kind. */
static int shifted_slot(const lf_rw *rw, lf_node v, unsigned axes)
{
    int rank = lf_rw_shape(rw, v)->rank;
    for (int slot = 0; slot < 2; slot++)
        if ((lf_rw_is(rw, v, LF_OP_add) || lf_rw_is(rw, v, LF_OP_sub)) && lf_rw_shifted(rw, v, slot) &&
            !lf_rw_fixed(rw, lf_rw_arg(rw, v, slot)) && lf_rw_repeats(rw, lf_rw_arg(rw, v, 1 - slot), rank, axes))
            return slot;
    return -1;
}

/* Whether c can be a witness for n: its extent 0 is n's rows. */
static bool has_rows_of(const lf_rw *rw, lf_node c, lf_node n)
{
    const lf_shape *s = lf_rw_shape(rw, c), *rows = lf_rw_shape(rw, n);
    return rw->options->assume_finite ||
           (rw->facts[c].rows && s->rank > 0 && rows->rank > 0 && lf_extent_same(s->dim[0], rows->dim[0]));
}

/* What n is of, taken apart into x and the shift c. */
static bool find_shift(lf_rw *rw, lf_node n, lf_node *x, lf_node *c)
{
    lf_node v = lf_rw_arg(rw, n, 0);
    int slot = shifted_slot(rw, v, lf_span_axes(rw->g, n));
    if (slot < 0)
        return false;
    *x = lf_rw_arg(rw, v, slot);
    *c = lf_rw_arg(rw, v, 1 - slot);
    return true;
}

static bool alone(lf_rw *rw, lf_node v, const char *what)
{
    if (lf_rw_sole(rw, v))
        return true;
    lf_rw_refuse(rw, "%s is used elsewhere", what);
    return false;
}

/* softmax(x + c) = softmax(x), c a finite number along the axis: a parameter or constant that is trusted to be one.
 * log_softmax too. */
static lf_node softmax_shift(lf_rw *rw, lf_node n)
{
    lf_node x, c;
    if (!find_shift(rw, n, &x, &c) || !lf_rw_finite_leaf(rw, c) || !alone(rw, lf_rw_arg(rw, n, 0), "the shifted value"))
        return LF_KEEP;
    lf_rw_trust(rw, c);
    return lf_rw_like(rw, n, 0, x);
}

/* The same for a c that is computed. GUARDED: x + Inf. */
static lf_node softmax_row_shift(lf_rw *rw, lf_node n)
{
    lf_node x, c;
    if (!find_shift(rw, n, &x, &c) || lf_rw_fixed(rw, c) || !has_rows_of(rw, c, n))
        return LF_KEEP;
    if (!alone(rw, lf_rw_arg(rw, n, 0), "the shifted value") || !lf_rw_may_guard(rw))
        return LF_KEEP;
    lf_rw_watch(rw, c);
    return lf_rw_like(rw, n, 0, x);
}

/* n over x, then the shift that was made before, on a c without n's axes where those go. */
static lf_node shift_after(lf_rw *rw, lf_node n, lf_node x, lf_node c)
{
    lf_node v = lf_rw_arg(rw, n, 0);
    lf_node_info shift = *lf_rw_at(rw, v);
    lf_shape s = *lf_rw_shape(rw, c), left = {0};
    unsigned axes = lf_span_axes(rw->g, n);
    int slot = shift.arg[0] == x && shift.arg[1] == c ? 0 : 1;
    for (int i = 0; i < s.rank; i++)
        if (lf_rw_attr(rw, n, "keepdim") != 0.0 || !(axes & 1u << (i + shift.shape.rank - s.rank)))
            left.dim[left.rank++] = s.dim[i];
    shift.arg[slot] = lf_rw_like(rw, n, 0, x);
    shift.arg[1 - slot] = lf_rw_view(rw, c, &left);
    return lf_rw_make(rw, shift.op, shift.arg, shift.attr);
}

/* logsumexp(x + c) = logsumexp(x) + c for a constant c >= 0 and an x that is never below 0: any other shift may cancel
 * digits that adding it to every element first keeps */
static lf_node logsumexp_shift(lf_rw *rw, lf_node n)
{
    lf_node x, c;
    double value;
    if (!find_shift(rw, n, &x, &c) || !lf_rw_fixed(rw, c))
        return LF_KEEP;
    lf_node v = lf_rw_arg(rw, n, 0);
    bool cancels = !lf_rw_is(rw, v, LF_OP_add) || lf_rw_attr(rw, v, "alpha") != 1.0 || !lf_rw_constant(rw, c, &value) ||
                   value < 0 || !lf_rw_nonnegative(rw, x);
    if (cancels)
        return lf_rw_refuse(rw, "taken out of the logsumexp, the shift may cancel digits");
    return alone(rw, v, "the shifted value") ? shift_after(rw, n, x, c) : LF_KEEP;
}

/* ---- exp and log ---- */

/* exp(log_softmax(x)) = softmax(x) */
static lf_node exp_of_log_softmax(lf_rw *rw, lf_node n)
{
    lf_node inner = lf_rw_arg(rw, n, 0);
    if (!lf_rw_is(rw, inner, LF_OP_log_softmax))
        return LF_KEEP;
    return lf_rw_with(rw, LF_OP_softmax, lf_rw_arg(rw, inner, 0), axis_of(rw, inner));
}

/* log(softmax(x)) = log_softmax(x). GUARDED: a softmax under 2^-126 loses its bits as written, and its logarithm
 * becomes -Inf under 2^-149. The witness is the result times this number, which overflows f32 where the result is below
 * -87, just above log(2^-126). */
static const double TO_OVERFLOW = 0x1.fffffep127 / 87.0;
static lf_node log_of_softmax(lf_rw *rw, lf_node n)
{
    lf_node inner = lf_rw_arg(rw, n, 0);
    if (!lf_rw_is(rw, inner, LF_OP_softmax) || !alone(rw, inner, "the softmax") || !lf_rw_may_guard(rw))
        return LF_KEEP;
    lf_node r = lf_rw_with(rw, LF_OP_log_softmax, lf_rw_arg(rw, inner, 0), axis_of(rw, inner));
    if (r != LF_NONE && !rw->options->assume_finite)
        lf_rw_watch(rw, lf_rw_two(rw, LF_OP_mul, r, lf_rw_number(rw, TO_OVERFLOW)));
    return r;
}

/* x - logsumexp(x) = log_softmax(x). GUARDED by the logsumexp, which log_softmax needs anyway: with +Inf in the row,
 * one has -Inf where the other has NaN. */
static lf_node minus_logsumexp(lf_rw *rw, lf_node n)
{
    lf_node x = lf_rw_arg(rw, n, 0), l = lf_rw_arg(rw, n, 1);
    lf_node lse = lf_kind_of(rw->g, l) == LF_VIEW ? lf_rw_arg(rw, l, 0) : l;
    if (!lf_rw_is(rw, lse, LF_OP_logsumexp) || lf_rw_arg(rw, lse, 0) != x || lf_rw_attr(rw, n, "alpha") != 1.0)
        return LF_KEEP;
    unsigned axes = lf_span_axes(rw->g, lse);
    lf_shape wanted = *lf_rw_shape(rw, x);
    if (axes == 0 || (axes & (axes - 1)) != 0)
        return LF_KEEP;
    wanted.dim[axis_of(rw, lse)] = lf_extent_of(1);
    if (!lf_shape_same(&wanted, lf_rw_shape(rw, l)) || !lf_rw_may_guard(rw))
        return LF_KEEP;
    lf_rw_watch(rw, l);
    return lf_rw_with(rw, LF_OP_log_softmax, x, axis_of(rw, lse));
}

static const lf_rule rules[] = {
    {.info = {"softmax_of_one", "softmax over one element = 1, log_softmax = 0", LF_GUARDED},
     .ops = {LF_OP_softmax, LF_OP_log_softmax},
     .apply = softmax_of_one},
    {.info = {"softmax_shift", "softmax(x + c) = softmax(x) for a parameter or constant c; log_softmax too",
              LF_REROUNDS},
     .gain = "what shifts all elements alike changes nothing",
     .ops = {LF_OP_softmax, LF_OP_log_softmax},
     .apply = softmax_shift},
    {.info = {"softmax_row_shift", "softmax(x + c) = softmax(x) for one c a row; log_softmax too", LF_GUARDED},
     .gain = "what shifts all elements alike changes nothing",
     .ops = {LF_OP_softmax, LF_OP_log_softmax},
     .apply = softmax_row_shift},
    {.info = {"logsumexp_shift", "logsumexp(x + c) = logsumexp(x) + c for c >= 0 and x never below 0", LF_REROUNDS},
     .gain = "the shift is made once instead of for all elements",
     .ops = {LF_OP_logsumexp},
     .apply = logsumexp_shift},
    {.info = {"exp_of_log_softmax", "exp(log_softmax(x)) = softmax(x)", LF_REROUNDS},
     .gain = "the logarithm is taken back at once",
     .ops = {LF_OP_exp},
     .apply = exp_of_log_softmax},
    {.info = {"log_of_softmax", "log(softmax(x)) = log_softmax(x)", LF_GUARDED},
     .gain = "the division and the exponential are not needed",
     .ops = {LF_OP_log},
     .apply = log_of_softmax},
    {.info = {"minus_logsumexp", "x - logsumexp(x) = log_softmax(x)", LF_GUARDED},
     .gain = "one op for two",
     .ops = {LF_OP_sub},
     .apply = minus_logsumexp},
};
const lf_rule_table lf_rules_softmax = LF_TABLE(rules);
