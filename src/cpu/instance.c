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
    lf_layout_take_elements(&size, buffer->dtype, extent(b, buffer->elements), 1);
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
    b->overflow = !lf_reach_sides(r, a, b->dims) || b->overflow;
}

static void home_of_node(const building *b, lf_node node, lf_reach *r)
{
    const lf_plan *plan = b->plan;
    r->index = plan->where[node];
    r->dtype = lf_stored_dtype(plan, node);
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

static void kept_home(const lf_kept *kept, size_t in_area, lf_reach *r)
{
    r->home = kept->in_output >= 0 ? LF_HOME_OUTPUT : kept->in_input >= 0 ? LF_HOME_INPUT : LF_HOME_BLOCK;
    r->index = r->home == LF_HOME_OUTPUT ? kept->in_output : kept->in_input;
    r->offset = r->home == LF_HOME_BLOCK ? in_area : 0;
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
        kept_home(&plan->kept[a->index], in_area[a->index], r);
        break;
    case LF_STAT:
        r->home = LF_HOME_BLOCK;
        r->offset = g->stat[a->index].result[a->result];
        break;
    case LF_FACTOR:
        r->home = LF_HOME_BLOCK;
        r->offset = g->stat[a->index].factor;
        break;
    }
}

/* ---- statistics, product ---- */

static void carried_numbers(const lf_plan *plan, const lf_stat *from, lf_stat_at *s)
{
    const lf_graph *g = plan->graph;
    if (s->partials == LF_PARTIALS_OWN)
        return;
    s->port = from->carried + (s->partials == LF_PARTIALS_IN ? g->inputs : g->outputs);
    s->sets = plan->carried[from->carried].sets;
    s->strips = s->partials == LF_PARTIALS_IN ? 0 : s->strips;
}

static void stat_numbers(building *b, const lf_stat *plan, const lf_group_at *g, lf_stat_at *s)
{
    const lf_phase_at *phase = &g->phase[plan->phase];
    const lf_monoid_info *row = lf_monoid_row(plan->monoid);
    *s = (lf_stat_at){.monoid = plan->monoid,
                      .span = plan->span,
                      .states = row->states,
                      .results = row->results,
                      .phase = plan->phase,
                      .value = lf_use_whole(&g->phase[plan->phase], plan->step),
                      .rows = phase->rows,
                      .own = 1,
                      .window = plan->window,
                      .exps = plan->exps,
                      .partials = plan->partials};
    s->length = extent(b, plan->length);
    s->count = extent(b, plan->count);
    switch (plan->span) {
    case LF_SPAN_ROW:
        s->length = phase->width;
        s->strips = phase->strips;
        carried_numbers(b->plan, plan, s);
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
        assert(plan->span == LF_SPAN_SEGMENT || b->instance->kern->window[s->monoid]);
        reach_sides(b, &plan->from, &s->from);
        break;
    }
}

/* Is x bf16, and all that multiplies it, and has the machine products of such? */
static bool multiplies_bf16(const lf_group_at *g, const lf_kern *kern)
{
    bool all = g->x.dtype == LF_BF16 && kern->has_pairs && kern->has_pairs();
    for (int32_t i = 0; i < g->products; i++)
        all = all && (g->product[i].narrow || g->product[i].weight.dtype == LF_BF16);
    return all;
}

static void product_numbers(building *b, const lf_group *plan, const lf_kern *kern, lf_group_at *g)
{
    g->packs = -1;
    g->k = extent(b, plan->products > 0 ? plan->product[0].k : lf_extent_of(0));
    g->depth = lf_run_depth(g->k);
    if (plan->products > 0)
        reach_sides(b, &plan->x, &g->x);
    for (int32_t i = 0; i < plan->products; i++) {
        const lf_product *from = &plan->product[i];
        lf_product_at *p = &g->product[i];
        *p = (lf_product_at){.index = from->index,
                             .narrow = from->narrow,
                             .weight_fixed = from->weight_fixed,
                             .w_is_kn = from->w_is_kn,
                             .phase = from->phase,
                             .n = extent(b, from->n),
                             .bias = -1,
                             .lands = -1};
        p->ldc = p->narrow ? p->n : lf_min64(LF_STRIP, lf_round_up(p->n, kern->nr));
        p->weight.dtype = lf_stored_dtype(b->plan, from->weight);
        if (!p->narrow && (g->packs < 0 || p->phase < g->packs))
            g->packs = p->phase;
    }
    g->x_type = multiplies_bf16(g, kern) ? LF_BF16 : LF_F32;
    if (!lf_x_in_rows(g)) /* gathered, as floats */
        g->x_type = LF_F32;
    for (int32_t i = 0; i < g->products; i++) /* rows of one strip are as far apart in all */
        for (int32_t k = 0; k < g->products; k++)
            if (g->product[k].phase == g->product[i].phase)
                g->product[i].ldc = lf_max64(g->product[i].ldc, g->product[k].ldc);
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
    g->products = plan->products;
    g->product = array(b, g->products, sizeof *g->product);
    g->phase = array(b, g->phases, sizeof *g->phase);
    g->stat = array(b, g->stats, sizeof *g->stat);
    size_t *in_area = array(b, plan->kepts, sizeof *in_area);
    if (!g->product || !g->phase || !g->stat || !in_area)
        return lf_fail_nomem(b->diag, "the program at this size");
    product_numbers(b, plan, kern, g);
    for (int32_t i = 0; i < g->phases; i++) {
        g->phase[i].width = extent(b, plan->phase[i].width);
        if (!lf_phase_init(g, plan, i, b->instance, b->plan, b->dims, &b->overflow))
            return lf_fail_nomem(b->diag, "the program at this size");
    }
    for (int32_t i = 0; i < g->stats; i++)
        stat_numbers(b, &plan->stat[i], g, &g->stat[i]);
    if (b->overflow)
        return LF_OK;

    lf_layout area = {0}, scratch = {0};
    lf_group_schedule(g, plan, b->instance->kern->mr, b->dims, b->instance->threads);
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
        if (lf_takes_row(&plan->stat[i]))
            reach_home(b, g, plan, in_area, &plan->stat[i].from, &g->stat[i].from);
    if (g->products > 0)
        reach_home(b, g, plan, in_area, &plan->x, &g->x);
    for (int32_t i = 0; i < g->products; i++)
        home_of_node(b, plan->product[i].weight, &g->product[i].weight);
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
