/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/passes.h"
#include "plan/touch.h"

typedef struct finding {
    const lf_group *group;
    const lf_product *product;
    lf_held held;
} finding;

static bool repeats_columns(const lf_access *a)
{
    bool still = true;
    for (int i = a->row_axes; i < a->rank; i++)
        still = still && (a->stride[i].coef == 0 || lf_extent_is(a->extent[i], 1));
    return still;
}

/* [count*1, length*0]: one result for each run of neighbouring columns. */
static bool repeats_in_runs(const lf_access *a, int64_t length)
{
    return a->rank == a->row_axes + 2 && lf_extent_is(a->stride[a->row_axes], 1) &&
           a->stride[a->row_axes + 1].coef == 0 && lf_extent_is(a->extent[a->row_axes + 1], length);
}

/* One value is held: the same in all of the phase's loads, and where it was stored. */
static bool holds(finding *f, const lf_access *from)
{
    const lf_store *store = lf_find_store(&f->group->phase[f->product->phase], LF_KEPT, from->index);
    if (!store || !lf_access_same(&store->to, from) || (f->held.kept >= 0 && f->held.kept != from->index))
        return false;
    f->held.kept = from->index;
    f->held.step = store->step;
    return true;
}

static bool knows(finding *f, const lf_access *from)
{
    const lf_stat *st = &f->group->stat[from->index];
    lf_held *held = &f->held;
    if (st->phase != f->product->phase)
        return false;
    if (st->span == LF_SPAN_ROW) {
        held->waits = true;
        return repeats_columns(from);
    }
    if (st->span != LF_SPAN_SEGMENT || !lf_extent_known(st->length) || (held->run >= 0 && held->run != from->index))
        return false;
    held->run = from->index;
    held->length = st->length.coef;
    return held->length > 0 && f->product->n.coef % held->length == 0 && repeats_in_runs(from, held->length) &&
           st->from.place == LF_KEPT && lf_find_store(&f->group->phase[st->phase], LF_KEPT, st->from.index);
}

static bool has_it(finding *f, const lf_touch *load)
{
    switch (load->place) {
    case LF_KEPT: return holds(f, load->access);
    case LF_STAT: return knows(f, load->access);
    case LF_VALUE: return !lf_find_store(&f->group->phase[f->product->phase], LF_VALUE, load->what);
    case LF_FACTOR:
    case LF_OUTPUT: break;
    }
    return false;
}

/* Statistics of the product's phase that are neither of rows nor the one that is held want the value in memory. */
static bool others_do_without(const lf_group *g, int32_t product_phase, const lf_held *held)
{
    for (int32_t i = 0; i < g->stats; i++) {
        const lf_stat *st = &g->stat[i];
        if (st->phase == held->phase ||
            (st->phase == product_phase && st->span == LF_SPAN_ROW && st->step != held->step) ||
            (st->phase == product_phase && st->span != LF_SPAN_ROW && i != held->run))
            return false;
    }
    return held->run < 0 || g->stat[held->run].from.index == held->kept;
}

void lf_group_held(lf_group *g)
{
    const lf_held none = {.phase = -1, .kept = -1, .run = -1};
    finding f = {.group = g, .product = g->product, .held = none};
    lf_touch at;
    g->held = none;
    if (g->products != 1 || !lf_is_tiled_product(f.product))
        return;
    const int32_t phase = f.held.phase = f.product->phase + 1;
    if (phase != g->phases - 1 || g->phase[phase].one_row || !lf_extent_same(g->phase[phase].width, f.product->n))
        return;
    for (lf_touches later = lf_touches_in(g, phase, g->phases); lf_touch_next(&later, &at);)
        if (at.by == LF_TOUCH_LOAD && !has_it(&f, &at))
            return;
    if (f.held.kept >= 0 && others_do_without(g, f.product->phase, &f.held))
        g->held = f.held;
}
