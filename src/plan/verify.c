/* SPDX-License-Identifier: Apache-2.0 */
/* What every consumer of a plan relies on, checked: tests run it on every plan they make. */
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
    if (a->rank > LF_MAX_RANK || a->row_axes > a->rank)
        return bad(c, "an access has too many axes", a->rank);
    for (int i = 0; i < a->rank; i++)
        if (!lf_extent_mul(i < a->row_axes ? rows : columns, a->extent[i], i < a->row_axes ? &rows : &columns))
            return bad(c, "an access overflows", i);
    bool rows_fit = one_row ? lf_extent_is(rows, 1) : lf_extent_same(rows, c->group->rows);
    return rows_fit && lf_extent_same(columns, width) ? LF_OK : bad(c, "an access does not cover its grid", a->index);
}

/* What it names exists, and was finished by an earlier phase. */
static lf_status check_source(const check *c, const lf_access *a, int32_t phase)
{
    const lf_group *g = c->group;
    if (a->place == LF_VALUE)
        return c->plan->storage[a->index] == LF_NOT_STORED ? bad(c, "it reads what is not stored", a->index) : LF_OK;
    if (a->place == LF_STAT) {
        if (a->index >= g->stats || a->result >= lf_monoid_row(g->stat[a->index].monoid)->results)
            return bad(c, "it reads a statistic that is not there", a->index);
        return g->stat[a->index].phase < phase ? LF_OK : bad(c, "it reads a statistic before it is complete", a->index);
    }
    if (a->place == LF_FACTOR) {
        if (a->index >= g->stats || g->stat[a->index].exps < 0)
            return bad(c, "it reads a factor of exps that are not kept", a->index);
        return g->stat[a->index].phase < phase ? LF_OK : bad(c, "it reads a factor before it is complete", a->index);
    }
    if (a->place != LF_KEPT || a->index >= g->kepts)
        return bad(c, "it reads from nowhere", a->index);
    for (int32_t p = 0; p < phase; p++)
        if (lf_find_store(&g->phase[p], LF_KEPT, a->index))
            return LF_OK;
    return bad(c, "it reads a kept value before it is made", a->index);
}

static lf_status check_step(const check *c, int32_t phase, int32_t index)
{
    const lf_phase *p = &c->group->phase[phase];
    const lf_step *s = &p->step[index];
    if (s->kind == LF_STEP_LOAD) {
        lf_status status = check_grid(c, &s->from, p->one_row, p->width);
        return status == LF_OK ? check_source(c, &s->from, phase) : status;
    }
    if (s->kind == LF_STEP_PRODUCT)
        return s->product < c->group->products && c->group->product[s->product].phase == phase
                   ? LF_OK
                   : bad(c, "a product in the wrong phase", phase);
    for (int i = 0; s->kind == LF_STEP_OP && i < 3; i++)
        if (s->arg[i] >= index)
            return bad(c, "a step reads a later one", index);
    return LF_OK;
}

static lf_status check_phase(const check *c, int32_t phase)
{
    const lf_phase *p = &c->group->phase[phase];
    lf_status status = LF_OK;
    for (int32_t i = 0; i < p->steps && status == LF_OK; i++)
        status = check_step(c, phase, i);
    for (int32_t i = 0; i < p->stores && status == LF_OK; i++)
        status = p->store[i].step < p->steps ? check_grid(c, &p->store[i].to, p->one_row, p->width)
                                             : bad(c, "it stores no step", i);
    for (int32_t i = 0; i < p->watches && status == LF_OK; i++)
        status = p->watch[i] < p->steps && !p->one_row ? LF_OK : bad(c, "it watches what has no rows", i);
    return status;
}

static lf_status check_stat(const check *c, const lf_stat *s)
{
    if (s->phase >= c->group->phases || (s->step >= 0 && s->step >= c->group->phase[s->phase].steps))
        return bad(c, "a statistic of nothing", s->phase);
    if (s->step < 0 && s->span != LF_SPAN_SEGMENT && s->span != LF_SPAN_WINDOW)
        return bad(c, "a statistic without a step", s->phase);
    if (s->step < 0 && s->from.dtype != LF_F32)
        return bad(c, "a statistic is taken from what is not f32", s->phase);
    if (s->step < 0) /* taken once the phase is over: a value kept in that very phase will do */
        return check_source(c, &s->from, s->phase + 1);
    if (s->span == LF_SPAN_COLUMN && c->group->schedule != LF_BY_PHASE)
        return bad(c, "a column statistic in a group by rows", s->phase);
    return LF_OK;
}

/* Its columns are its phase's, and what all products of the group multiply is there. */
static lf_status check_product(const check *c, const lf_product *p)
{
    if (p->phase >= c->group->phases || c->plan->product[p->index] != p)
        return bad(c, "a product of nothing", p->phase);
    if (!lf_extent_same(p->n, c->group->phase[p->phase].width))
        return bad(c, "a product whose columns are not its phase's", p->phase);
    if (lf_product_in(c->group, p->phase)->narrow != p->narrow)
        return bad(c, "a phase of narrow products and others", p->phase);
    lf_status status = check_source(c, &c->group->x, p->phase);
    return status == LF_OK ? check_grid(c, &c->group->x, false, p->k) : status;
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
    }
    return status;
}
