/* SPDX-License-Identifier: Apache-2.0 */
/* What every consumer of a plan relies on, checked; what passes have noted, counted again. */
#include "plan/touch.h"
#include "plan/types.h"

typedef struct check {
    const lf_plan *plan;
    const lf_group *group;
    lf_diag *diag;
} check;

static lf_status bad(const check *c, const char *what, int64_t at)
{
    return lf_fail(c->diag, LF_ERR_ARG, "plan: group %s: %s (%lld)", c->group->name, what, (long long)at);
}

/* Axes count rows x width of the grid, and the type is that of what lies there. */
static lf_status check_grid(const check *c, const lf_access *a, bool one_row, lf_extent width)
{
    if (a->dtype != lf_access_dtype(c->plan, c->group, a))
        return bad(c, "an access is of another type than what it reads or writes", a->index);
    lf_extent rows = lf_extent_of(1), columns = lf_extent_of(1);
    if (a->rank < 0 || a->row_axes < 0 || a->rank > LF_MAX_RANK || a->row_axes > a->rank)
        return bad(c, "an access has too many axes", a->rank);
    for (int i = 0; i < a->rank; i++)
        if (!lf_extent_mul(i < a->row_axes ? rows : columns, a->extent[i], i < a->row_axes ? &rows : &columns))
            return bad(c, "an access overflows", i);
    bool rows_fit = one_row ? lf_extent_is(rows, 1) : lf_extent_same(rows, c->group->rows);
    return rows_fit && lf_extent_same(columns, width) ? LF_OK : bad(c, "an access does not cover its grid", a->index);
}

/* One past the last element that its columns reach in a row; 0 where a name says how many. */
static int64_t columns_end(const lf_access *a)
{
    bool known = lf_extent_known(a->first);
    int64_t last = a->first.coef;
    for (int i = a->row_axes; i < a->rank; i++) {
        known = known && (a->stride[i].coef == 0 || (lf_extent_known(a->extent[i]) && lf_extent_known(a->stride[i])));
        last += (a->extent[i].coef - 1) * a->stride[i].coef;
    }
    return known ? last + 1 : 0;
}

/* What it names exists, and was finished by an earlier phase. */
static lf_status check_source(const check *c, const lf_access *a, int32_t phase)
{
    const lf_group *g = c->group;
    if (a->index < 0 || (a->place == LF_VALUE && a->index >= c->plan->graph->count))
        return bad(c, "it reads from nowhere", a->index);
    if (a->place == LF_VALUE)
        return c->plan->storage[a->index] == LF_NOT_STORED ? bad(c, "it reads what is not stored", a->index) : LF_OK;
    if (a->place == LF_STAT) {
        if (a->index >= g->stats || a->result >= lf_monoid_row(g->stat[a->index].monoid)->results)
            return bad(c, "it reads a statistic that is not there", a->index);
        if (g->stat[a->index].partials == LF_PARTIALS_OUT)
            return bad(c, "it reads a statistic that is not finished here", a->index);
        return g->stat[a->index].phase < phase ? LF_OK : bad(c, "it reads a statistic before it is complete", a->index);
    }
    if (a->place == LF_FACTOR) {
        if (a->index >= g->stats || g->stat[a->index].exps < 0)
            return bad(c, "it reads a factor of exps that are not kept", a->index);
        return g->stat[a->index].phase < phase ? LF_OK : bad(c, "it reads a factor before it is complete", a->index);
    }
    if (a->place != LF_KEPT || a->index >= g->kepts)
        return bad(c, "it reads from nowhere", a->index);
    if (lf_extent_known(g->kept[a->index].width) && columns_end(a) > g->kept[a->index].width.coef)
        return bad(c, "it reads past the end of a kept value's row", a->index);
    if (g->kept[a->index].in_input >= 0)
        return LF_OK;
    for (int32_t p = 0; p < phase; p++)
        if (lf_find_store(&g->phase[p], LF_KEPT, a->index))
            return LF_OK;
    return bad(c, "it reads a kept value before it is made", a->index);
}

static bool is_step(const lf_phase *p, int32_t step) { return step >= 0 && step < p->steps; }

static lf_uses count_uses(const lf_group *g, int32_t phase, int32_t step)
{
    const lf_phase *p = &g->phase[phase];
    lf_uses uses = {0};
    for (int32_t i = 0; i < p->steps; i++)
        for (int k = 0; k < 3; k++)
            uses.args += p->step[i].kind == LF_STEP_OP && p->step[i].arg[k] == step;
    for (int32_t i = 0; i < p->stores; i++)
        uses.stores += p->store[i].step == step;
    for (int32_t i = 0; i < p->watches; i++)
        uses.watches += p->watch[i] == step;
    for (int32_t i = 0; i < g->stats; i++)
        uses.stats += g->stat[i].phase == phase && g->stat[i].step == step;
    return uses;
}

/* What is noted on a step: its uses, and the mul that goes with an add. */
static lf_status check_notes(const check *c, int32_t phase, int32_t index)
{
    const lf_phase *p = &c->group->phase[phase];
    const lf_step *s = &p->step[index];
    const lf_uses uses = count_uses(c->group, phase, index);
    if (uses.args != s->uses.args || uses.stores != s->uses.stores || uses.watches != s->uses.watches ||
        uses.stats != s->uses.stats)
        return bad(c, "the uses of a step are counted wrong", index);
    if (s->mul >= 0 && (s->op != LF_OP_add || s->mul != s->arg[0] || p->step[s->mul].op != LF_OP_mul ||
                        lf_all_uses(&p->step[s->mul].uses) != 1))
        return bad(c, "what goes with an add is no mul of its own", index);
    return LF_OK;
}

static lf_status check_step(const check *c, int32_t phase, int32_t index)
{
    const lf_phase *p = &c->group->phase[phase];
    const lf_step *s = &p->step[index];
    if (s->kind == LF_STEP_LOAD) {
        lf_status status = check_source(c, &s->from, phase);
        return status == LF_OK ? check_grid(c, &s->from, p->one_row, p->width) : status;
    }
    if (s->kind == LF_STEP_PRODUCT)
        return s->product >= 0 && s->product < c->group->products && c->group->product[s->product].phase == phase
                   ? LF_OK
                   : bad(c, "a product in the wrong phase", phase);
    for (int i = 0; s->kind == LF_STEP_OP && i < 3; i++)
        if (s->arg[i] < -1 || s->arg[i] >= index)
            return bad(c, "a step reads a later one", index);
    return LF_OK;
}

/* Is the store the place of the exps of a statistic that the phase feeds with the same step? */
static bool takes_exps(const lf_group *g, int32_t phase, int32_t store)
{
    const lf_store *s = &g->phase[phase].store[store];
    for (int32_t i = 0; i < g->stats; i++)
        if (g->stat[i].phase == phase && g->stat[i].exps == store && g->stat[i].step == s->step)
            return s->to.place == LF_KEPT && s->to.dtype == LF_F32;
    return false;
}

static lf_status check_store(const check *c, int32_t phase, int32_t index)
{
    const lf_phase *p = &c->group->phase[phase];
    const lf_store *s = &p->store[index];
    const lf_access *to = &s->to;
    if (!is_step(p, s->step))
        return bad(c, "it stores no step", index);
    if (to->place == LF_STAT || to->place == LF_FACTOR || to->index < 0 ||
        to->index >= (to->place == LF_KEPT    ? c->group->kepts
                      : to->place == LF_VALUE ? c->plan->graph->count
                                              : c->plan->graph->outputs))
        return bad(c, "it stores to nowhere", index);
    if (s->exps && !takes_exps(c->group, phase, index))
        return bad(c, "it stores exps of no statistic", index);
    return check_grid(c, to, p->one_row, p->width);
}

static lf_status check_phase(const check *c, int32_t phase)
{
    const lf_phase *p = &c->group->phase[phase];
    lf_status status = LF_OK;
    for (int32_t i = 0; i < p->steps && status == LF_OK; i++)
        status = check_step(c, phase, i);
    for (int32_t i = 0; i < p->stores && status == LF_OK; i++)
        status = check_store(c, phase, i);
    for (int32_t i = 0; i < p->watches && status == LF_OK; i++)
        status = is_step(p, p->watch[i]) && !p->one_row ? LF_OK : bad(c, "it watches what has no rows", i);
    for (int32_t i = 0; i < p->steps && status == LF_OK; i++)
        status = check_notes(c, phase, i);
    return status;
}

/* Whoever reads kept exps multiplies them by their factor, and reads them once. */
static lf_status check_exps(const check *c, int32_t stat)
{
    const lf_group *g = c->group;
    const lf_stat *s = &g->stat[stat];
    lf_touch at;
    if (s->exps >= g->phase[s->phase].stores || !g->phase[s->phase].store[s->exps].exps)
        return bad(c, "a statistic leaves its exps nowhere", stat);
    const int32_t kept = g->phase[s->phase].store[s->exps].to.index;
    if (lf_count_reads(g, LF_KEPT, kept) != 1 || !lf_find_read(g, 0, g->phases, LF_KEPT, kept, &at) ||
        at.by != LF_TOUCH_LOAD)
        return bad(c, "kept exps are read by others than their softmax", stat);
    const lf_phase *p = &g->phase[at.phase];
    for (int32_t i = 0; i < p->steps; i++) {
        const lf_step *by = &p->step[i];
        if (by->kind != LF_STEP_OP || (by->arg[0] != at.index && by->arg[1] != at.index))
            continue;
        const lf_access *other = &p->step[by->arg[by->arg[0] == at.index]].from;
        if (by->op != LF_OP_mul || other->place != LF_FACTOR || other->index != stat)
            return bad(c, "kept exps are read by others than their softmax", stat);
    }
    return LF_OK;
}

/* As one set where the plan stops, as one or more where it resumes. */
static bool is_carried_right(const check *c, const lf_stat *s)
{
    const lf_cut cut = c->plan->options.cut;
    if (s->carried < 0 || s->carried >= c->plan->carrieds || s->span != LF_SPAN_ROW ||
        cut != (s->partials == LF_PARTIALS_IN ? LF_CUT_RESUME : LF_CUT_STOP))
        return false;
    const lf_carried *at = &c->plan->carried[s->carried];
    return at->kind == LF_CARRY_PARTIALS && at->sets >= 1 && (cut == LF_CUT_RESUME || at->sets == 1) &&
           lf_extent_is(at->width, lf_monoid_row(s->monoid)->states);
}

static lf_status check_stat(const check *c, const lf_stat *s)
{
    if (s->phase < 0 || s->phase >= c->group->phases || s->step >= c->group->phase[s->phase].steps)
        return bad(c, "a statistic of nothing", s->phase);
    if (s->partials != LF_PARTIALS_OWN && !is_carried_right(c, s))
        return bad(c, "partials that are not carried so", s->phase);
    if (s->partials == LF_PARTIALS_IN)
        return c->group->phase[s->phase].steps == 0 ? LF_OK : bad(c, "a phase finishes and does more", s->phase);
    if (s->step < 0 && s->span != LF_SPAN_SEGMENT && s->span != LF_SPAN_WINDOW)
        return bad(c, "a statistic without a step", s->phase);
    if (s->step < 0 && s->from.dtype != LF_F32)
        return bad(c, "a statistic is taken from what is not f32", s->phase);
    if (s->step < 0) /* taken once the phase is over: a value kept in that very phase will do */
        return check_source(c, &s->from, s->phase + 1);
    if (s->exps >= 0)
        return check_exps(c, (int32_t)(s - c->group->stat));
    if (s->span == LF_SPAN_COLUMN && c->group->schedule != LF_BY_PHASE)
        return bad(c, "a column statistic in a group by rows", s->phase);
    return LF_OK;
}

/* Is the product's add one of it and of a row, and its only use? */
static bool adds_row(const lf_phase *phase, const lf_product *p, int32_t index)
{
    if (p->narrow || !is_step(phase, p->add) || !is_step(phase, p->row) || phase->step[p->row].kind != LF_STEP_LOAD)
        return false;
    const lf_step *add = &phase->step[p->add];
    const bool second = add->arg[1] != p->row;
    const lf_step *of = &phase->step[add->arg[second]];
    return add->kind == LF_STEP_OP && add->op == LF_OP_add && add->arg[!second] == p->row &&
           of->kind == LF_STEP_PRODUCT && of->product == index && lf_all_uses(&of->uses) == 1;
}

/* Its columns are its phase's, and what all products of the group multiply is there. */
static lf_status check_product(const check *c, const lf_product *p)
{
    if (p->phase < 0 || p->phase >= c->group->phases || p->index < 0 || p->index >= c->plan->products ||
        c->plan->product[p->index] != p)
        return bad(c, "a product of nothing", p->phase);
    if (!lf_extent_same(p->n, c->group->phase[p->phase].width))
        return bad(c, "a product whose columns are not its phase's", p->phase);
    if (lf_product_in(c->group, p->phase)->narrow != p->narrow)
        return bad(c, "a phase of narrow products and others", p->phase);
    if (p->add >= 0 && !adds_row(&c->group->phase[p->phase], p, (int32_t)(p - c->group->product)))
        return bad(c, "a product with what is no bias", p->phase);
    lf_status status = check_source(c, &c->group->x, p->phase);
    return status == LF_OK ? check_grid(c, &c->group->x, false, p->k) : status;
}

/* Nobody else wants what is held in registers; the phase that goes on with it is the last, right behind. */
static lf_status check_held(const check *c)
{
    const lf_group *g = c->group;
    const lf_held *held = &g->held;
    lf_touch at;
    if (held->phase < 0)
        return LF_OK;
    if (g->products != 1 || held->phase != g->phases - 1 || held->phase != g->product[0].phase + 1)
        return bad(c, "a phase goes on in registers that is not behind the product's", held->phase);
    const lf_store *store = lf_find_store(&g->phase[held->phase - 1], LF_KEPT, held->kept);
    if (!store || store->step != held->step)
        return bad(c, "what is held is not made by the product's phase", held->kept);
    for (lf_touches all = lf_touches_of(g); lf_touch_next(&all, &at);)
        if (lf_touches_this(&at, LF_KEPT, held->kept) && !lf_is_write(&at) &&
            (at.by == LF_TOUCH_TAKE ? at.index != held->run : at.by != LF_TOUCH_LOAD || at.phase != held->phase))
            return bad(c, "what is held is read by others, too", held->kept);
    return LF_OK;
}

/* Is what it touches in that group alive there, and a prepared tensor that only products read not read by others? */
static lf_status check_lifetime(const check *c, int32_t group, const lf_touch *at)
{
    const lf_plan *plan = c->plan;
    const int32_t where = plan->where[at->what];
    if (plan->storage[at->what] == LF_PREPARED && at->by != LF_TOUCH_WEIGHT && at->by != LF_TOUCH_BIAS)
        return plan->packed_only[where] ? bad(c, "it reads what only products were to read", at->what) : LF_OK;
    if (plan->storage[at->what] != LF_IN_BUFFER)
        return LF_OK;
    const lf_buffer *b = &plan->buffer[where];
    const bool alive = lf_is_write(at) ? group == b->first : group > b->first && group <= b->last;
    return b->node == at->what && alive ? LF_OK : bad(c, "it touches a buffer before or after its time", at->what);
}

static lf_status check_lifetimes(const check *c, int32_t group)
{
    lf_status status = LF_OK;
    lf_touch at;
    for (lf_touches all = lf_touches_of(c->group); status == LF_OK && lf_touch_next(&all, &at);)
        if (at.place == LF_VALUE)
            status = check_lifetime(c, group, &at);
    return status;
}

/* Every stored value is written by exactly one store. */
static lf_status check_written(const lf_plan *plan, lf_diag *diag)
{
    for (lf_node n = 0; n < plan->graph->count; n++) {
        int writers = 0;
        lf_touch at;
        if (plan->storage[n] != LF_IN_OUTPUT && plan->storage[n] != LF_IN_BUFFER)
            continue;
        for (int32_t i = 0; i < plan->groups; i++)
            for (lf_touches all = lf_touches_of(&plan->group[i]); lf_touch_next(&all, &at);)
                writers += lf_is_write(&at) && lf_touches_this(&at, LF_VALUE, n);
        if (writers != 1)
            return lf_fail(diag, LF_ERR_ARG, "plan: %s is written %d times", lf_at(plan->graph, n)->name, writers);
    }
    return LF_OK;
}

lf_status lf_plan_verify(const lf_plan *plan, lf_diag *diag)
{
    lf_status status = check_written(plan, diag);
    for (int32_t i = 0; i < plan->groups && status == LF_OK; i++) {
        check c = {plan, &plan->group[i], diag};
        for (int32_t p = 0; p < c.group->phases && status == LF_OK; p++)
            status = check_phase(&c, p);
        for (int32_t s = 0; s < c.group->stats && status == LF_OK; s++)
            status = check_stat(&c, &c.group->stat[s]);
        for (int32_t p = 0; p < c.group->products && status == LF_OK; p++)
            status = check_product(&c, &c.group->product[p]);
        if (status == LF_OK)
            status = check_held(&c);
        if (status == LF_OK)
            status = check_lifetimes(&c, i);
    }
    return status;
}
