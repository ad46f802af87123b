/* SPDX-License-Identifier: Apache-2.0 */
/* What rules ask of a value, and what they say about themselves. */
#include "rewrite/rules.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

double lf_rw_attr(const lf_rw *rw, lf_node n, const char *name)
{
    return lf_attr_of(rw->g, n, name)->number;
}

bool lf_rw_same_shape(const lf_rw *rw, lf_node a, lf_node b)
{
    return lf_shape_same(lf_rw_shape(rw, a), lf_rw_shape(rw, b));
}

bool lf_rw_constant(const lf_rw *rw, lf_node n, double *value)
{
    if (!lf_rw_is(rw, n, LF_OP_constant) || !(fabs(lf_rw_at(rw, n)->value) <= FLT_MAX))
        return false;
    *value = lf_rw_at(rw, n)->value;
    return true;
}

bool lf_rw_finite_leaf(const lf_rw *rw, lf_node n)
{
    double value;
    return lf_rw_is(rw, n, LF_OP_param) || lf_rw_constant(rw, n, &value);
}

bool lf_rw_sole(const lf_rw *rw, lf_node n)
{
    const lf_rw_facts *s = &rw->facts[n];
    return s->uses == 1 && !s->watched && !s->spared;
}

void lf_rw_intervals(const lf_rw *rw, lf_node n, lf_interval v[LF_EXPR_VARIABLE_COUNT])
{
    const lf_node_info *info = lf_rw_at(rw, n);
    const lf_op_info *row = lf_op_row(info->op);
    double numbers[3];
    lf_op_numbers(rw->g, n, numbers);
    for (int i = 0; i < LF_EXPR_VALUES; i++) {
        double c;
        const bool constant = row->kind == LF_POINTWISE && i < row->arg_count && lf_rw_constant(rw, info->arg[i], &c);
        v[i] = constant ? lf_interval_of(c) : (lf_interval){-INFINITY, INFINITY, false};
        v[LF_EXPR_VALUES + i] = lf_interval_of(numbers[i]);
    }
    if (row->monoid != LF_MONOID_none) {
        const lf_monoid_info *monoid = lf_monoid_row(row->monoid);
        /* REDUCE: results begin at x, NORMALIZE: at y */
        v[monoid->results - (row->kind == LF_NORMALIZE ? 0 : 1)].low = monoid->least;
    }
}

/* By its own op alone; a weight and a bias, as norms have them, come after the expression. */
static lf_interval interval_of(const lf_rw *rw, lf_node n)
{
    const lf_op_info *row = lf_op_row(lf_rw_at(rw, n)->op);
    const lf_affine affine = lf_affine_of(rw->g, n);
    lf_interval v[LF_EXPR_VARIABLE_COUNT];
    if ((row->kind != LF_POINTWISE && row->kind != LF_NORMALIZE) || affine.weight_slot >= 0 || affine.bias_slot >= 0)
        return (lf_interval){-INFINITY, INFINITY, false};
    lf_rw_intervals(rw, n, v);
    return lf_expr_interval(row->tree, v);
}

bool lf_rw_nonnegative(const lf_rw *rw, lf_node n)
{
    return interval_of(rw, n).low >= 0;
}

bool lf_rw_never_minus_zero(const lf_rw *rw, lf_node n)
{
    return lf_interval_is_plus(interval_of(rw, n));
}

bool lf_rw_repeats(const lf_rw *rw, lf_node n, int rank, unsigned axes)
{
    const lf_shape *s = lf_rw_shape(rw, n);
    for (int i = 0; i < s->rank && s->rank <= rank; i++)
        if (axes & 1u << (i + rank - s->rank) && !lf_extent_is(s->dim[i], 1))
            return false;
    return s->rank <= rank;
}

bool lf_rw_keeps_nonfinite(const lf_rw *rw, lf_node n, int slot)
{
    const lf_op_info *row = lf_op_row(lf_rw_at(rw, n)->op);
    const bool shown = row->kind == LF_POINTWISE || row->kind == LF_VIEW;
    return shown ? lf_expr_keeps_nonfinite(row->tree, slot) : slot == 0 && row->laws & LF_LAW_KEEPS;
}

double lf_rw_extent(const lf_rw *rw, lf_extent e)
{
    double value = (double)e.coef;
    for (int s = 0; s < LF_MAX_SYMBOLS; s++)
        for (int i = 0; i < e.pow[s]; i++)
            value *= rw->options->dims && rw->options->dims[s] > 0 ? (double)rw->options->dims[s] : 1024.0;
    return value;
}

bool lf_rw_shifted(const lf_rw *rw, lf_node n, int x_slot)
{
    bool add = lf_rw_is(rw, n, LF_OP_add), sub = lf_rw_is(rw, n, LF_OP_sub);
    if (!(add || (sub && x_slot == 0)) || !lf_rw_same_shape(rw, n, lf_rw_arg(rw, n, x_slot)))
        return false;
    return x_slot == 0 || lf_rw_attr(rw, n, "alpha") == 1.0;
}

bool lf_rw_fixed_linear(const lf_rw *rw, lf_node n, lf_fixed_linear *out)
{
    if (!lf_rw_is(rw, n, LF_OP_linear) || lf_rw_fixed(rw, n))
        return false;
    lf_fixed_linear p = {.x = lf_rw_arg(rw, n, 0), .weight = lf_rw_arg(rw, n, 1), .bias = lf_rw_arg(rw, n, 2)};
    const lf_shape *w = lf_rw_shape(rw, p.weight);
    if (!lf_rw_fixed(rw, p.weight) || (p.bias != LF_NONE && !lf_rw_fixed(rw, p.bias)))
        return false;
    if (!lf_extent_known(w->dim[0]) || !lf_extent_known(w->dim[1]))
        return false;
    p.n = w->dim[0].coef;
    p.k = w->dim[1].coef;
    *out = p;
    return true;
}

/* ---- saying ---- */

void lf_rw_why(lf_rw *rw, const char *fmt, ...)
{
    va_list list;
    va_start(list, fmt);
    vsnprintf(rw->why, sizeof rw->why, fmt, list);
    va_end(list);
}

static bool already_refused(const lf_rw *rw, const lf_note *note)
{
    for (int32_t i = rw->refused_count - 1; i >= 0 && i >= rw->refused_count - 16; i--)
        if (rw->refused[i].rule == note->rule && rw->refused[i].at == note->at)
            return true;
    return false;
}

lf_node lf_rw_refuse(lf_rw *rw, const char *fmt, ...)
{
    char text[256];
    va_list list;
    va_start(list, fmt);
    vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    lf_node source = rw->facts[rw->root].source;
    lf_note note = {rw->rule->info.name, rw->rule->info.class, source == LF_NONE ? "" : rw->in->node[source].name,
                    NULL};
    if (rw->status || already_refused(rw, &note))
        return LF_KEEP;
    if (rw->refused_count == rw->refused_capacity) {
        int32_t capacity = rw->refused_capacity ? rw->refused_capacity * 2 : 16;
        lf_note *bigger = lf_arena_array(rw->g->arena, (size_t)capacity, sizeof *bigger);
        if (bigger && rw->refused_count)
            memcpy(bigger, rw->refused, (size_t)rw->refused_count * sizeof *bigger);
        rw->refused = bigger ? bigger : rw->refused;
        rw->refused_capacity = bigger ? capacity : rw->refused_capacity;
        rw->status = bigger ? LF_OK : LF_ERR_NOMEM;
    }
    note.why = lf_arena_strndup(rw->g->arena, text, sizeof text);
    if (!note.why)
        rw->status = LF_ERR_NOMEM;
    if (!rw->status)
        rw->refused[rw->refused_count++] = note;
    return LF_KEEP;
}

bool lf_rw_may_guard(lf_rw *rw)
{
    if (rw->options->assume_finite)
        return true;
    if (!rw->rows) {
        const char *name = rw->rows_why == LF_NONE ? "the model" : rw->in->node[rw->rows_why].name;
        lf_rw_refuse(rw, "a guard redoes single rows, and here rows see each other (%s)", name);
        return false;
    }
    return rw->facts[rw->root].rows;
}

void lf_rw_watch(lf_rw *rw, lf_node witness)
{
    if (rw->options->assume_finite || witness == LF_NONE)
        return;
    while (lf_kind_of(rw->g, witness) == LF_VIEW) { /* what a view shows is watched where it is made */
        lf_node x = lf_rw_arg(rw, witness, 0);
        if (lf_rw_shape(rw, x)->rank == 0 ||
            !lf_extent_same(lf_rw_shape(rw, x)->dim[0], lf_rw_shape(rw, witness)->dim[0]))
            break;
        witness = x;
    }
    if (!lf_rw_fixed(rw, witness))
        rw->asked[rw->asked_count++] = witness;
}

void lf_rw_trust(lf_rw *rw, lf_node fixed)
{
    assert(lf_rw_fixed(rw, fixed) && rw->trusts == LF_NONE);
    rw->trusts = fixed;
}
