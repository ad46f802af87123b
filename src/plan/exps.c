/* SPDX-License-Identifier: Apache-2.0 */
/* A softmax takes the exp of every element when its row is summed up, and again once the sum is known. The group is
 * rewritten here so that the first are kept, as they are: exp(x - m) for the largest m of the part of the row that is
 * summed up by itself. What is left for later is
 *     exp(x - largest of the row) / sum = exp(x - m) * factor,    factor = exp(m - largest) / sum
 * with one factor a part, in double precision until it is rounded. Executors make parts the same however a group runs,
 * so bits are too.
 *
 * Where the softmax's argument was kept its exps take its place; otherwise they are a kept value more. */
#include <assert.h>
#include <string.h>

#include "plan/passes.h"
#include "plan/touch.h"

/* Where a statistic's softmax is found: step `step` of phase `phase`. */
typedef struct found {
    int32_t phase, step;
} found;

/* ---- is it the same value? ---- */

/* The store of the phase that leaves step u where `from` reads it; -1: none. */
static int32_t store_read_by(const lf_phase *p, int32_t u, const lf_access *from)
{
    for (int32_t i = 0; i < p->stores; i++)
        if (p->store[i].step == u && lf_access_same(&p->store[i].to, from))
            return i;
    return -1;
}

/* Is step v of phase q, element for element, step u of phase p? Stored by p, or calculated by both. */
static bool same_value(const lf_phase *p, int32_t u, const lf_phase *q, int32_t v)
{
    const lf_step *a = &p->step[u], *b = &q->step[v];
    if (b->kind == LF_STEP_LOAD && store_read_by(p, u, &b->from) >= 0)
        return true;
    if (a->kind != b->kind || a->kind == LF_STEP_PRODUCT)
        return false;
    if (a->kind == LF_STEP_LOAD)
        return lf_access_same(&a->from, &b->from);
    if (a->kind == LF_STEP_NUMBER)
        return a->number == b->number;
    if (a->op != b->op || memcmp(a->attr, b->attr, sizeof a->attr) != 0)
        return false;
    for (int k = 0; k < 3; k++)
        if ((a->arg[k] < 0) != (b->arg[k] < 0) || (a->arg[k] >= 0 && !same_value(p, a->arg[k], q, b->arg[k])))
            return false;
    return true;
}

static bool reads_result(const lf_phase *p, int32_t step, int32_t stat, int result)
{
    const lf_step *s = &p->step[step];
    return s->kind == LF_STEP_LOAD && s->from.place == LF_STAT && s->from.index == stat && s->from.result == result;
}

static bool find_softmax(const lf_group *g, int32_t stat, found *at)
{
    const lf_stat *s = &g->stat[stat];
    const lf_phase *fed = &g->phase[s->phase];
    if (s->monoid != LF_MONOID_maxsumexp || s->span != LF_SPAN_ROW || fed->one_row)
        return false;
    for (at->phase = s->phase + 1; at->phase < g->phases; at->phase++) {
        const lf_phase *p = &g->phase[at->phase];
        for (at->step = 0; at->step < p->steps; at->step++) {
            const lf_step *op = &p->step[at->step];
            if (op->kind == LF_STEP_OP && op->op == LF_OP_softmax && !p->one_row &&
                lf_extent_same(p->width, fed->width) && reads_result(p, op->arg[1], stat, 0) &&
                reads_result(p, op->arg[2], stat, 1) && same_value(fed, s->step, p, op->arg[0]))
                return true;
        }
    }
    return false;
}

/* ---- who else reads it? ---- */

/* The store whose place the exps may take, because nobody but the softmax reads what it keeps; -1: none. What the
 * statistic is fed with must not lie there itself, nor be stored elsewhere: it may be returned, and be kept where it is
 * returned. */
static int32_t store_to_take(const lf_group *g, int32_t stat, const found *at)
{
    const lf_stat *s = &g->stat[stat];
    const lf_phase *p = &g->phase[at->phase], *fed = &g->phase[s->phase];
    const int32_t v = p->step[at->step].arg[0];
    const lf_access *from = &p->step[v].from;
    const int32_t store = p->step[v].kind == LF_STEP_LOAD ? store_read_by(fed, s->step, from) : -1;
    const bool alone = store >= 0 && from->place == LF_KEPT && from->dtype == LF_F32 && p->step[v].uses.args == 1 &&
                       lf_sinks(&p->step[v].uses) == 0 && lf_count_reads(g, LF_KEPT, from->index) == 1 &&
                       fed->step[s->step].uses.stores == 1;
    return alone && fed->step[s->step].kind != LF_STEP_LOAD ? store : -1;
}

/* ---- the group rewritten ---- */

/* A copy of array[count], with room for `more`. NULL: no memory. */
static void *longer(lf_arena *arena, const void *array, int32_t count, int32_t more, size_t size)
{
    void *to = lf_arena_array(arena, (size_t)(count + more) + 1, size);
    if (to && count > 0)
        memcpy(to, array, (size_t)count * size);
    return to;
}

/* The phase's steps with the softmax as exps * factor, both loaded right before; what nobody uses any more is left
 * out. */
static bool multiply_instead(lf_group *g, const found *at, const lf_step *exps, const lf_step *factor, lf_arena *arena)
{
    lf_phase *p = &g->phase[at->phase];
    lf_step *step = lf_arena_array(arena, (size_t)p->steps + 3, sizeof *step);
    int32_t *to = lf_arena_array(arena, (size_t)p->steps + 1, sizeof *to); /* where a step went; -1: used, 0: not */
    if (!step || !to)
        return false;
    for (int32_t i = p->steps - 1; i >= 0; i--) {
        to[i] = to[i] != 0 || lf_sinks(&p->step[i].uses) > 0 ? -1 : 0;
        for (int k = 0; k < 3 && to[i] != 0 && i != at->step && p->step[i].kind == LF_STEP_OP; k++)
            if (p->step[i].arg[k] >= 0)
                to[p->step[i].arg[k]] = -1;
    }
    int32_t steps = 0;
    for (int32_t i = 0; i < p->steps; i++) {
        if (to[i] == 0)
            continue;
        lf_step s = p->step[i];
        for (int k = 0; k < 3 && s.kind == LF_STEP_OP && i != at->step; k++)
            s.arg[k] = s.arg[k] < 0 ? -1 : to[s.arg[k]];
        if (i == at->step) {
            step[steps++] = *exps;
            step[steps++] = *factor;
            s = (lf_step){.kind = LF_STEP_OP, .node = s.node, .op = LF_OP_mul, .arg = {steps - 2, steps - 1, -1}};
        }
        to[i] = steps;
        step[steps++] = s;
    }
    for (int32_t i = 0; i < p->stores; i++)
        p->store[i].step = to[p->store[i].step];
    for (int32_t i = 0; i < p->watches; i++)
        p->watch[i] = to[p->watch[i]];
    for (int32_t i = 0; i < g->stats; i++)
        if (g->stat[i].phase == at->phase && g->stat[i].step >= 0)
            g->stat[i].step = to[g->stat[i].step];
    p->step = step;
    p->steps = steps;
    return true;
}

/* A row-major kept value more, and the store that the exps take. Fails: (-1) no memory. */
static int32_t keep_more(lf_group *g, const lf_stat *s, lf_arena *arena)
{
    lf_phase *p = &g->phase[s->phase];
    g->kept = longer(arena, g->kept, g->kepts, 1, sizeof *g->kept);
    p->store = longer(arena, p->store, p->stores, 1, sizeof *p->store);
    if (!g->kept || !p->store)
        return -1;
    g->kept[g->kepts] = (lf_kept){.node = s->node, .dtype = LF_F32, .width = p->width, .in_output = -1, .in_input = -1};
    p->store[p->stores] = (lf_store){.step = s->step,
                                     .to = {.place = LF_KEPT,
                                            .index = g->kepts++,
                                            .rank = 2,
                                            .row_axes = 1,
                                            .extent = {g->rows, p->width},
                                            .stride = {p->width, lf_extent_of(1)}}};
    return p->stores++;
}

static bool keep_exps(lf_group *g, int32_t stat, const found *at, lf_arena *arena)
{
    lf_stat *s = &g->stat[stat];
    s->exps = store_to_take(g, stat, at);
    if (s->exps < 0)
        s->exps = keep_more(g, s, arena);
    if (s->exps < 0)
        return false;
    lf_store *store = &g->phase[s->phase].store[s->exps];
    const lf_step exps = {.kind = LF_STEP_LOAD, .node = s->node, .from = store->to};
    lf_step factor = exps;
    factor.from = (lf_access){.place = LF_FACTOR,
                              .index = stat,
                              .rank = 2,
                              .row_axes = 1,
                              .extent = {g->rows, g->phase[s->phase].width},
                              .stride = {g->phase[s->phase].width, lf_extent_of(1)}};
    store->exps = true;
    if (!multiply_instead(g, at, &exps, &factor, arena))
        return false;
    lf_group_uses(g);
    return true;
}

bool lf_group_keep_exps(lf_group *g, lf_arena *arena)
{
    for (int32_t i = 0; i < g->stats; i++) {
        found at;
        if (!find_softmax(g, i, &at))
            continue;
        /* Where all rows go through a phase before the next begins, exps would be as much memory as the output. */
        if (g->schedule == LF_BY_PHASE && store_to_take(g, i, &at) < 0)
            continue;
        if (!keep_exps(g, i, &at, arena))
            return false;
    }
    return true;
}
