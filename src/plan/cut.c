/* SPDX-License-Identifier: Apache-2.0 */
/* A plan cut at the statistics of its last kernel's rows: one half ends with partials, the other begins with sets of
 * them. Both halves are lowered alike and cut here, so that what one leaves is what the other takes. */
#include "plan/passes.h"
#include "plan/touch.h"

typedef struct cutting {
    lf_plan *plan;
    lf_group *group;
    lf_arena *arena;
    int32_t phase; /* it is cut behind this one's elements */
    bool resumes;
} cutting;

/* ---- where ---- */

static const char *check_statistics(const cutting *c)
{
    for (int32_t i = 0; i < c->group->stats; i++) {
        const lf_stat *s = &c->group->stat[i];
        if (s->phase == c->phase && s->span != LF_SPAN_ROW)
            return "a statistic that is not of rows is complete at the same time";
        if (s->phase > c->phase && s->span == LF_SPAN_ROW)
            return "further statistics of rows follow, which would have to be cut at again";
    }
    return NULL;
}

/* What stands behind the cut may go on from what is carried alone, and from inputs and parameters. */
static const char *check_later(const cutting *c)
{
    lf_touch at;
    for (lf_touches later = lf_touches_in(c->group, c->phase + 1, c->group->phases); lf_touch_next(&later, &at);) {
        if (at.by == LF_TOUCH_X)
            return "a product follows the statistics";
        if (at.place == LF_STAT && c->group->stat[at.what].phase < c->phase)
            return "an earlier statistic is read again behind them";
        if (at.place == LF_VALUE && !lf_is_write(&at) && c->plan->storage[at.what] == LF_IN_BUFFER)
            return "another kernel's result is read behind them";
    }
    return NULL;
}

/* Statistics before the product are of what it multiplies, of which everybody has all columns. */
static const char *find_cut(cutting *c)
{
    const lf_group *g = c->group;
    int32_t first = 0;
    for (int32_t i = 0; i < g->products; i++)
        first = g->product[i].phase > first ? g->product[i].phase : first;
    c->phase = g->phases;
    for (int32_t i = 0; i < g->stats; i++)
        if (g->stat[i].span == LF_SPAN_ROW && g->stat[i].phase >= first && g->stat[i].phase < c->phase)
            c->phase = g->stat[i].phase;
    if (c->phase == g->phases)
        return "its last kernel has no statistic of rows";
    if (g->schedule != LF_BY_ROWS)
        return "a statistic over all rows has them all at once";
    const char *why = check_statistics(c);
    return why ? why : check_later(c);
}

/* ---- what is carried ---- */

static bool is_carried(const cutting *c, int32_t kept)
{
    lf_touch at;
    bool stored = false;
    for (int32_t p = 0; p <= c->phase; p++)
        stored = stored || lf_find_store(&c->group->phase[p], LF_KEPT, kept);
    return stored && lf_find_read(c->group, c->phase + 1, c->group->phases, LF_KEPT, kept, &at);
}

static int32_t carry(lf_plan *plan, lf_carried carried)
{
    plan->carried[plan->carrieds] = carried;
    return plan->carrieds++;
}

static bool find_carried(const cutting *c)
{
    lf_plan *plan = c->plan;
    lf_group *g = c->group;
    plan->carried = lf_arena_array(c->arena, (size_t)(g->stats + g->kepts), sizeof *plan->carried);
    if (!plan->carried)
        return false;
    for (int32_t i = 0; i < g->stats; i++) {
        lf_stat *s = &g->stat[i];
        if (s->phase != c->phase)
            continue;
        s->partials = c->resumes ? LF_PARTIALS_IN : LF_PARTIALS_OUT;
        s->step = c->resumes ? -1 : s->step;
        s->carried = carry(plan, (lf_carried){.kind = LF_CARRY_PARTIALS,
                                              .node = s->node,
                                              .sets = c->resumes ? plan->options.sets : 1,
                                              .rows = g->rows,
                                              .width = lf_extent_of(lf_monoid_row(s->monoid)->states)});
    }
    for (int32_t k = 0; k < g->kepts; k++) {
        if (!is_carried(c, k))
            continue;
        const int32_t port = carry(plan, (lf_carried){.kind = LF_CARRY_KEPT,
                                                      .node = g->kept[k].node,
                                                      .sets = 1,
                                                      .rows = g->rows,
                                                      .width = g->kept[k].width});
        *(c->resumes ? &g->kept[k].in_input : &g->kept[k].in_output) =
            port + (c->resumes ? plan->graph->inputs : plan->graph->outputs);
    }
    return true;
}

/* ---- one half ---- */

static void keep_phases(const cutting *c)
{
    lf_group *g = c->group;
    if (!c->resumes) {
        g->phases = c->phase + 1;
        return;
    }
    /* the phase that is cut becomes the one that combines and finishes */
    const lf_extent whole = c->plan->options.whole;
    const lf_extent width = whole.coef > 0 ? whole : g->phase[c->phase].width;
    g->phase += c->phase;
    g->phases -= c->phase;
    g->phase[0] = (lf_phase){.width = width};
    g->products = 0;
    for (int32_t i = 0; i < g->stats; i++)
        g->stat[i].phase -= c->phase;
}

/* to[i]: what number i is now. */
static void renumber(lf_access *a, const int32_t *stat, const int32_t *kept)
{
    if (a->place == LF_STAT)
        a->index = stat[a->index];
    if (a->place == LF_KEPT)
        a->index = kept[a->index];
}

static void renumber_all(lf_group *g, const int32_t *stat, const int32_t *kept)
{
    for (int32_t p = 0; p < g->phases; p++) {
        for (int32_t i = 0; i < g->phase[p].steps; i++)
            if (g->phase[p].step[i].kind == LF_STEP_LOAD)
                renumber(&g->phase[p].step[i].from, stat, kept);
        for (int32_t i = 0; i < g->phase[p].stores; i++)
            renumber(&g->phase[p].store[i].to, stat, kept);
    }
    for (int32_t i = 0; i < g->stats; i++)
        if (lf_takes_row(&g->stat[i]))
            renumber(&g->stat[i].from, stat, kept);
    if (g->products > 0)
        renumber(&g->x, stat, kept);
}

/* Statistics and kept values of the other half go. */
static bool drop_unused(const cutting *c)
{
    lf_group *g = c->group;
    int32_t *stat = lf_arena_array(c->arena, (size_t)g->stats + 1, sizeof *stat);
    int32_t *kept = lf_arena_array(c->arena, (size_t)g->kepts + 1, sizeof *kept), stats = 0, kepts = 0;
    if (!stat || !kept)
        return false;
    for (int32_t i = 0; i < g->stats; i++)
        if (g->stat[i].phase >= 0 && g->stat[i].phase < g->phases) {
            g->stat[stats] = g->stat[i];
            stat[i] = stats++;
        }
    g->stats = stats;
    for (int32_t k = 0; k < g->kepts; k++) {
        lf_touch at;
        bool used = false;
        for (lf_touches all = lf_touches_of(g); !used && lf_touch_next(&all, &at);)
            used = lf_touches_this(&at, LF_KEPT, k);
        if (!used)
            continue;
        g->kept[kepts] = g->kept[k];
        kept[k] = kepts++;
    }
    g->kepts = kepts;
    renumber_all(g, stat, kept);
    return true;
}

/* What this half neither reads nor writes is not stored. */
static bool drop_storage(const cutting *c)
{
    lf_plan *plan = c->plan;
    bool *touched = lf_arena_array(c->arena, (size_t)plan->graph->count, sizeof *touched);
    lf_touch at;
    if (!touched)
        return false;
    for (int32_t i = 0; i < plan->groups; i++)
        for (lf_touches all = lf_touches_of(&plan->group[i]); lf_touch_next(&all, &at);)
            if (at.place == LF_VALUE)
                touched[at.what] = true;
    int32_t prepareds = 0, buffers = 0;
    for (lf_node n = 0; n < plan->graph->count; n++) {
        const int32_t where = plan->where[n];
        if (plan->storage[n] == LF_NOT_STORED || plan->storage[n] == LF_IN_INPUT)
            continue;
        if (!touched[n]) {
            plan->storage[n] = LF_NOT_STORED;
        } else if (plan->storage[n] == LF_PREPARED) {
            plan->prepared[prepareds] = n;
            plan->packed_only[prepareds] = plan->packed_only[where];
            plan->where[n] = prepareds++;
        } else if (plan->storage[n] == LF_IN_BUFFER) {
            plan->buffer[buffers] = plan->buffer[where];
            plan->where[n] = buffers++;
        }
    }
    plan->prepareds = prepareds;
    plan->buffers = buffers;
    return true;
}

lf_status lf_plan_cut(lf_plan *plan, lf_arena *arena)
{
    lf_diag *diag = plan->graph->diag;
    cutting c = {.plan = plan, .arena = arena, .resumes = plan->options.cut == LF_CUT_RESUME};
    c.group = plan->groups > 0 ? &plan->group[plan->groups - 1] : NULL;
    const char *why = c.group ? find_cut(&c) : "it has no kernel";
    if (why)
        return lf_fail(diag, LF_ERR_UNSUPPORTED, "a program cannot stop at partials and go on from them: %s", why);
    if (!find_carried(&c))
        return lf_fail_nomem(diag, "the plan");
    keep_phases(&c);
    if (c.resumes) {
        plan->group = c.group;
        plan->groups = 1;
    }
    if (!drop_unused(&c) || !drop_storage(&c))
        return lf_fail_nomem(diag, "the plan");
    lf_group_uses(c.group);
    lf_group_joins(c.group);
    lf_group_held(c.group);
    return LF_OK;
}
