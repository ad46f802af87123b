/* SPDX-License-Identifier: Apache-2.0 */
/* A plan at known extents: accesses as numbers, registers for steps, memory for everything. What can overflow is
 * found out here, so that a run cannot fail. */
#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"
#include "cpu/parts.h"

typedef struct building {
    lf_cpu_instance *instance;
    const lf_plan *plan;
    const int64_t *dims;
    lf_diag *diag;
    size_t *buffer; /* one per buffer: offset in the workspace */
    lf_layout area; /* the largest of all groups */
    lf_layout scratch;
    bool overflow;
} building;

static int64_t extent(building *b, lf_extent e)
{
    int64_t value = lf_extent_at(e, b->dims);
    b->overflow = b->overflow || value < 0;
    return lf_max64(value, 0);
}

static void *array(building *b, int32_t count, size_t size)
{
    return lf_arena_array(&b->instance->arena, (size_t)count + 1, size);
}

/* ---- intermediate tensors: those that live at different times share memory ---- */

/* A buffer that is alive, in a list ordered by offset. */
typedef struct placed {
    size_t offset, end;
    int32_t last;
    struct placed *next;
} placed;

/* Takes the first gap that is wide enough, after the dead have been taken out. */
static void place_buffer(building *b, placed **live, placed *mine, const lf_buffer *buffer, lf_layout *total)
{
    for (placed **link = live; *link;)
        if ((*link)->last < buffer->first)
            *link = (*link)->next;
        else
            link = &(*link)->next;
    lf_layout size = {0};
    lf_layout_take(&size, extent(b, buffer->elements), 1, 1);
    placed **link = live;
    mine->offset = 0;
    while (*link && ((*link)->offset < mine->offset || (*link)->offset - mine->offset < size.floats)) {
        mine->offset = (*link)->end > mine->offset ? (*link)->end : mine->offset;
        link = &(*link)->next;
    }
    total->overflow = total->overflow || size.overflow || !lf_add_size(mine->offset, size.floats, &mine->end);
    mine->last = buffer->last;
    mine->next = *link;
    *link = mine;
    total->floats = mine->end > total->floats ? mine->end : total->floats;
}

/* Buffers in order of the group that writes them first. */
static lf_status place_buffers(building *b, lf_layout *total)
{
    const lf_plan *plan = b->plan;
    b->buffer = array(b, plan->buffers, sizeof *b->buffer);
    placed *mine = calloc((size_t)plan->buffers + 1, sizeof *mine);
    int32_t *first = malloc(((size_t)plan->groups + 1) * sizeof *first),
            *next = malloc(((size_t)plan->buffers + 1) * sizeof *next);
    bool memory = b->buffer && mine && first && next;
    placed *live = NULL;
    for (int32_t g = 0; memory && g < plan->groups; g++)
        first[g] = -1;
    for (int32_t i = plan->buffers - 1; memory && i >= 0; i--) {
        next[i] = first[plan->buffer[i].first];
        first[plan->buffer[i].first] = i;
    }
    for (int32_t g = 0; memory && g < plan->groups; g++)
        for (int32_t i = first[g]; i >= 0; i = next[i]) {
            place_buffer(b, &live, &mine[i], &plan->buffer[i], total);
            b->buffer[i] = mine[i].offset;
        }
    free(mine);
    free(first);
    free(next);
    return memory ? LF_OK : lf_fail_nomem(b->diag, "the program at this size");
}

/* ---- accesses ---- */

static void reach_sides(building *b, const lf_access *a, lf_reach *r)
{
    bool fits =
        lf_side_init(&r->row, a, 0, a->row_axes, b->dims) && lf_side_init(&r->col, a, a->row_axes, a->rank, b->dims);
    b->overflow = b->overflow || !fits;
}

static void home_of_node(const building *b, lf_node node, lf_reach *r)
{
    const lf_plan *plan = b->plan;
    r->index = plan->where[node];
    switch (plan->storage[node]) {
    case LF_IN_INPUT: r->home = LF_HOME_INPUT; return;
    case LF_PREPARED: r->home = LF_HOME_PREPARED; return;
    case LF_IN_OUTPUT: r->home = LF_HOME_OUTPUT; return;
    case LF_IN_BUFFER:
        r->home = LF_HOME_BUFFER;
        r->offset = b->buffer[r->index];
        return;
    case LF_NOT_STORED: break;
    }
    assert(!"a group reads or writes a value that is stored nowhere");
}

static void reach_home(const building *b, const lf_group_at *g, const lf_group *plan, const size_t *in_area,
                       const lf_access *a, lf_reach *r)
{
    switch (a->place) {
    case LF_VALUE: home_of_node(b, a->index, r); break;
    case LF_OUTPUT:
        r->home = LF_HOME_OUTPUT;
        r->index = a->index;
        break;
    case LF_KEPT:
        r->home = plan->kept[a->index].in_output >= 0 ? LF_HOME_OUTPUT : LF_HOME_BLOCK;
        r->index = plan->kept[a->index].in_output;
        r->offset = r->home == LF_HOME_BLOCK ? in_area[a->index] : 0;
        break;
    case LF_STAT:
        r->home = LF_HOME_BLOCK;
        r->offset = g->stat[a->index].result[a->result];
        break;
    }
}

/* ---- phases ---- */

static lf_level level_of(const lf_phase_at *p, const lf_step_at *s)
{
    switch (s->kind) {
    case LF_STEP_LOAD:
        if (s->from.row.form != LF_FORM_REPEATED)
            return LF_PER_ROW;
        return s->from.col.form != LF_FORM_REPEATED && !p->along_rows ? LF_PER_STRIP : LF_ONCE;
    case LF_STEP_PRODUCT: return LF_PER_ROW;
    case LF_STEP_NUMBER: return LF_ONCE;
    case LF_STEP_OP: break;
    }
    lf_level level = LF_ONCE;
    for (int i = 0; i < 3; i++)
        if (s->arg[i] >= 0 && p->step[s->arg[i]].level > level)
            level = p->step[s->arg[i]].level;
    return level;
}

static bool is_stored(const lf_phase *plan, int32_t step)
{
    for (int32_t i = 0; i < plan->stores; i++)
        if (plan->store[i].step == step)
            return true;
    return false;
}

/* May the step's elements be used where they lie? Not where stores of the same strip could come before its own. */
static bool in_place(const lf_group *group, const lf_phase *plan, const lf_phase_at *p, int32_t index)
{
    const lf_step_at *s = &p->step[index];
    if (s->kind == LF_STEP_PRODUCT)
        return true;
    if (s->kind != LF_STEP_LOAD || (p->along_rows ? s->from.row.form : s->from.col.form) != LF_FORM_CONTIGUOUS)
        return false;
    const lf_access *from = &plan->step[index].from;
    return from->place != LF_KEPT || group->kept[from->index].in_output < 0 || !is_stored(plan, index);
}

/* last[i]: the last step that reads step i; all of them where a store, a statistic or a witness does. */
static void find_last_uses(const lf_group *group, const lf_phase *plan, int32_t phase, int32_t *last)
{
    for (int32_t i = 0; i < plan->steps; i++) {
        last[i] = i;
        for (int k = 0; k < 3; k++)
            if (plan->step[i].kind == LF_STEP_OP && plan->step[i].arg[k] >= 0)
                last[plan->step[i].arg[k]] = i;
    }
    for (int32_t i = 0; i < plan->stores; i++)
        last[plan->store[i].step] = plan->steps;
    for (int32_t i = 0; i < plan->watches; i++)
        last[plan->watch[i]] = plan->steps;
    for (int32_t i = 0; i < group->stats; i++)
        if (group->stat[i].phase == phase && group->stat[i].step >= 0)
            last[group->stat[i].step] = plan->steps;
}

/* Registers: one for good for each value that outlives a row's strip; the others are handed on when their value was
 * last read. An op may write where its argument lies. last, idle: one per step, scratch. */
static void give_registers(const lf_group *group, const lf_phase *plan, lf_phase_at *p, const int32_t *last,
                           int32_t *idle)
{
    int32_t idles = 0;
    p->registers = 0;
    for (int32_t i = 0; i < p->steps; i++) {
        lf_step_at *s = &p->step[i];
        s->reg = in_place(group, plan, p, i) ? -1 : 0;
        if (s->reg == 0 && s->level != LF_PER_ROW)
            s->reg = p->registers++;
        p->strip_by_strip = p->strip_by_strip || (s->level == LF_PER_STRIP && s->reg >= 0);
    }
    for (int32_t i = 0; i < p->steps; i++) {
        lf_step_at *s = &p->step[i];
        for (int k = 0; k < 3 && s->kind == LF_STEP_OP; k++) {
            bool again = (k > 0 && s->arg[k] == s->arg[0]) || (k > 1 && s->arg[k] == s->arg[1]);
            if (s->arg[k] < 0 || again || last[s->arg[k]] != i || p->step[s->arg[k]].level != LF_PER_ROW ||
                p->step[s->arg[k]].reg < 0)
                continue;
            idle[idles++] = p->step[s->arg[k]].reg;
        }
        if (s->reg < 0 || s->level != LF_PER_ROW)
            continue;
        s->reg = idles > 0 ? idle[--idles] : p->registers++;
        if (last[i] == i) /* read by nobody */
            idle[idles++] = s->reg;
    }
}

static lf_status phase_numbers(building *b, const lf_group *group, int32_t index, lf_group_at *g)
{
    const lf_phase *plan = &group->phase[index];
    lf_phase_at *p = &g->phase[index];
    p->one_row = plan->one_row;
    p->rows = plan->one_row ? 1 : g->rows;
    p->width = extent(b, plan->width);
    p->strips = lf_ceil_div(p->width, LF_STRIP);
    /* a tile of one column has gaps between its rows, so there rows are taken one by one */
    p->along_rows = p->width == 1 && !(g->product.present && g->product.phase == index && !g->product.narrow);
    p->strip_by_strip = g->product.present && g->product.phase == index;
    p->watch = plan->watch;
    p->steps = plan->steps;
    p->stores = plan->stores;
    p->watches = plan->watches;
    p->step = array(b, p->steps, sizeof *p->step);
    p->store = array(b, p->stores, sizeof *p->store);
    int32_t *last = malloc(((size_t)p->steps + 1) * sizeof *last),
            *idle = malloc(((size_t)p->steps + 1) * sizeof *idle);
    if (!p->step || !p->store || !last || !idle) {
        free(last);
        free(idle);
        return lf_fail_nomem(b->diag, "the program at this size");
    }
    for (int32_t i = 0; i < p->steps; i++) {
        const lf_step *from = &plan->step[i];
        lf_step_at *s = &p->step[i];
        *s = (lf_step_at){
            .kind = from->kind, .number = (float)from->number, .arg = {from->arg[0], from->arg[1], from->arg[2]}};
        for (int k = 0; k < 3; k++)
            s->attr[k] = (float)from->attr[k];
        if (s->kind == LF_STEP_LOAD)
            reach_sides(b, &from->from, &s->from);
        if (s->kind == LF_STEP_OP) {
            s->map = b->instance->kern->map[from->op];
            assert(s->map);
        }
        s->level = level_of(p, s);
    }
    for (int32_t i = 0; i < p->stores; i++) {
        p->store[i].step = plan->store[i].step;
        reach_sides(b, &plan->store[i].to, &p->store[i].to);
    }
    find_last_uses(group, plan, index, last);
    give_registers(group, plan, p, last, idle);
    free(last);
    free(idle);
    return LF_OK;
}

/* ---- statistics, product ---- */

static void stat_numbers(building *b, const lf_stat *plan, const lf_group_at *g, lf_stat_at *s)
{
    const lf_phase_at *phase = &g->phase[plan->phase];
    const lf_monoid_info *row = lf_monoid_row(plan->monoid);
    *s = (lf_stat_at){.monoid = plan->monoid,
                      .span = plan->span,
                      .states = row->states,
                      .results = row->results,
                      .phase = plan->phase,
                      .step = plan->step,
                      .rows = phase->rows,
                      .own = 1,
                      .window = plan->window};
    s->length = extent(b, plan->length);
    s->count = extent(b, plan->count);
    switch (plan->span) {
    case LF_SPAN_ROW:
        s->length = phase->width;
        s->strips = phase->strips;
        break;
    case LF_SPAN_COLUMN:
        s->rows = 1;
        s->own = s->width = phase->width;
        s->length = phase->rows;
        break;
    case LF_SPAN_SEGMENT:
    case LF_SPAN_WINDOW:
        s->own = s->count;
        if (plan->span == LF_SPAN_WINDOW && !lf_mul_i64(s->count, extent(b, plan->groups), &s->own))
            b->overflow = true;
        s->step = -1;
        reach_sides(b, &plan->from, &s->from);
        break;
    }
}

static void product_numbers(building *b, const lf_product *plan, const lf_kern *kern, lf_product_at *p)
{
    *p = (lf_product_at){.present = plan->node != LF_NONE};
    if (!p->present)
        return;
    p->phase = plan->phase;
    p->weight_fixed = plan->weight_fixed;
    p->w_is_kn = plan->w_is_kn;
    p->n = extent(b, plan->n);
    p->k = extent(b, plan->k);
    p->narrow = plan->narrow;
    p->ldc = p->narrow ? p->n : lf_min64(LF_STRIP, lf_round_up(p->n, kern->nr));
    reach_sides(b, &plan->x, &p->x);
}

/* ---- groups ---- */

static lf_status group_numbers(building *b, int32_t index)
{
    const lf_group *plan = &b->plan->group[index];
    lf_group_at *g = &b->instance->group[index];
    const lf_kern *kern = b->instance->kern;
    g->rows = extent(b, plan->rows);
    g->phases = plan->phases;
    g->stats = plan->stats;
    g->phase = array(b, g->phases, sizeof *g->phase);
    g->stat = array(b, g->stats, sizeof *g->stat);
    size_t *in_area = array(b, plan->kepts, sizeof *in_area);
    if (!g->phase || !g->stat || !in_area)
        return lf_fail_nomem(b->diag, "the program at this size");
    product_numbers(b, &plan->product, kern, &g->product);
    for (int32_t i = 0; i < g->phases; i++) {
        lf_status status = phase_numbers(b, plan, i, g);
        if (status != LF_OK)
            return status;
    }
    for (int32_t i = 0; i < g->stats; i++)
        stat_numbers(b, &plan->stat[i], g, &g->stat[i]);
    if (b->overflow)
        return LF_OK;

    lf_layout area = {0}, scratch = {0};
    lf_group_schedule(g, plan, b->dims, b->instance->threads);
    lf_group_layout(g, plan, kern, b->dims, in_area, &area, &scratch);
    b->overflow = area.overflow || scratch.overflow;
    b->area.floats = area.floats > b->area.floats ? area.floats : b->area.floats;
    b->scratch.floats = scratch.floats > b->scratch.floats ? scratch.floats : b->scratch.floats;

    for (int32_t i = 0; i < g->phases; i++) {
        for (int32_t k = 0; k < g->phase[i].steps; k++)
            if (g->phase[i].step[k].kind == LF_STEP_LOAD)
                reach_home(b, g, plan, in_area, &plan->phase[i].step[k].from, &g->phase[i].step[k].from);
        for (int32_t k = 0; k < g->phase[i].stores; k++)
            reach_home(b, g, plan, in_area, &plan->phase[i].store[k].to, &g->phase[i].store[k].to);
    }
    for (int32_t i = 0; i < g->stats; i++)
        if (g->stat[i].step < 0)
            reach_home(b, g, plan, in_area, &plan->stat[i].from, &g->stat[i].from);
    if (g->product.present) {
        reach_home(b, g, plan, in_area, &plan->product.x, &g->product.x);
        home_of_node(b, plan->product.weight, &g->product.weight);
    }
    return LF_OK;
}

static lf_status build(building *b)
{
    lf_cpu_instance *instance = b->instance;
    lf_layout total = {0};
    lf_status status = place_buffers(b, &total);
    instance->groups = b->plan->groups;
    instance->group = array(b, instance->groups, sizeof *instance->group);
    if (status == LF_OK && !instance->group)
        status = lf_fail_nomem(b->diag, "the program at this size");
    for (int32_t i = 0; i < instance->groups && status == LF_OK && !b->overflow; i++)
        status = group_numbers(b, i);
    if (status != LF_OK)
        return status;
    instance->shared = lf_layout_take(&total, (int64_t)b->area.floats, 1, 1);
    instance->thread_size = b->scratch.floats;
    instance->thread = lf_layout_take(&total, (int64_t)b->scratch.floats, instance->threads, 1);
    instance->total = total.floats;
    if (b->overflow || total.overflow)
        return lf_fail(b->diag, LF_ERR_DATA, "the extents are too large: a count of elements or bytes overflows");
    return LF_OK;
}

lf_status lf_cpu_instance_new(const lf_plan *plan, const lf_kern *kern, const int64_t *dims, int threads,
                              lf_cpu_instance **out, lf_diag *diag)
{
    assert(threads >= 1);
    *out = NULL;
    lf_cpu_instance *instance = calloc(1, sizeof *instance);
    if (!instance)
        return lf_fail_nomem(diag, "the program at this size");
    lf_arena_init(&instance->arena);
    instance->plan = plan;
    instance->kern = kern;
    instance->threads = threads;
    building b = {.instance = instance, .plan = plan, .dims = dims, .diag = diag};
    lf_status status = build(&b);
    if (status != LF_OK) {
        lf_cpu_instance_free(instance);
        return status;
    }
    *out = instance;
    return LF_OK;
}

void lf_cpu_instance_free(lf_cpu_instance *instance)
{
    if (!instance)
        return;
    lf_arena_free(&instance->arena);
    free(instance);
}

size_t lf_cpu_instance_bytes(const lf_cpu_instance *instance)
{
    return sizeof *instance + lf_arena_bytes(&instance->arena);
}

size_t lf_cpu_workspace(const lf_cpu_instance *instance)
{
    return instance->total * sizeof(float);
}
