/* SPDX-License-Identifier: Apache-2.0 */
/* The parts a group is put together from: phases, steps, accesses, statistics. Lists grow by doubling in the arena:
 * groups are small and the arena goes with the plan. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "plan/lower.h"

/* Room for one more element at the end of a list of `count`; NULL when memory is out. Capacity is count rounded up to a
 * power of two. */
static void *list_push(lf_builder *b, void *list, int32_t count, size_t size)
{
    if (b->failed)
        return NULL;
    if ((count & (count - 1)) == 0) {
        char *grown = lf_arena_array(b->context->arena, count == 0 ? 1 : 2 * (size_t)count, size);
        if (!grown) {
            b->failed = true;
            return NULL;
        }
        if (count > 0)
            memcpy(grown, list, (size_t)count * size);
        return grown;
    }
    return list;
}

int32_t lf_builder_phase(lf_builder *b, lf_grid grid)
{
    lf_group *g = b->group;
    lf_phase *phases = list_push(b, g->phase, g->phases, sizeof *phases);
    if (!phases)
        return 0;
    g->phase = phases;
    g->phase[g->phases] = (lf_phase){.one_row = grid.one_row, .width = grid.width};
    return g->phases++;
}

static bool leaf_step_same(const lf_step *a, const lf_step *b)
{
    if (a->kind != b->kind)
        return false;
    if (a->kind == LF_STEP_LOAD)
        return lf_access_same(&a->from, &b->from);
    return a->kind == LF_STEP_NUMBER && a->number == b->number && signbit(a->number) == signbit(b->number);
}

int32_t lf_builder_step(lf_builder *b, int32_t phase, const lf_step *step)
{
    if (b->failed)
        return 0;
    lf_phase *p = &b->group->phase[phase];
    for (int32_t i = 0; i < p->steps; i++)
        if (leaf_step_same(&p->step[i], step))
            return i;
    lf_step *steps = list_push(b, p->step, p->steps, sizeof *steps);
    if (!steps)
        return 0;
    p->step = steps;
    p->step[p->steps] = *step;
    return p->steps++;
}

void lf_builder_store(lf_builder *b, int32_t phase, int32_t step, const lf_access *to)
{
    if (b->failed)
        return;
    lf_phase *p = &b->group->phase[phase];
    lf_store *stores = list_push(b, p->store, p->stores, sizeof *stores);
    if (!stores)
        return;
    p->store = stores;
    p->store[p->stores++] = (lf_store){.step = step, .to = *to};
}

void lf_builder_watch(lf_builder *b, int32_t phase, int32_t step)
{
    if (b->failed)
        return;
    lf_phase *p = &b->group->phase[phase];
    for (int32_t i = 0; i < p->watches; i++)
        if (p->watch[i] == step)
            return;
    int32_t *watches = list_push(b, p->watch, p->watches, sizeof *watches);
    if (!watches)
        return;
    p->watch = watches;
    p->watch[p->watches++] = step;
}

int32_t lf_builder_kept(lf_builder *b, lf_node node, lf_grid grid)
{
    lf_group *g = b->group;
    lf_kept *kept = list_push(b, g->kept, g->kepts, sizeof *kept);
    if (!kept)
        return 0;
    g->kept = kept;
    g->kept[g->kepts] =
        (lf_kept){.node = node, .one_row = grid.one_row, .width = grid.width, .in_output = -1, .in_input = -1};
    return g->kepts++;
}

static bool stat_same(const lf_stat *a, const lf_stat *b)
{
    return a->monoid == b->monoid && a->span == b->span && a->phase == b->phase && a->step == b->step &&
           lf_access_same(&a->from, &b->from) && lf_extent_same(a->groups, b->groups) &&
           lf_extent_same(a->length, b->length) && lf_extent_same(a->count, b->count) &&
           a->window.kernel == b->window.kernel && a->window.stride == b->window.stride &&
           a->window.padding == b->window.padding && a->window.dilation == b->window.dilation &&
           a->window.include_pad == b->window.include_pad;
}

int32_t lf_builder_stat(lf_builder *b, const lf_stat *stat)
{
    lf_group *g = b->group;
    for (int32_t i = 0; i < g->stats; i++)
        if (stat_same(&g->stat[i], stat))
            return i;
    lf_stat *stats = list_push(b, g->stat, g->stats, sizeof *stats);
    if (!stats)
        return 0;
    g->stat = stats;
    g->stat[g->stats] = *stat;
    g->stat[g->stats].exps = -1;
    return g->stats++;
}

int32_t lf_builder_product(lf_builder *b, const lf_product *product)
{
    lf_group *g = b->group;
    lf_product *products = list_push(b, g->product, g->products, sizeof *products);
    if (!products)
        return 0;
    g->product = products;
    g->product[g->products] = *product;
    return g->products++;
}

int32_t lf_step_load(lf_builder *b, int32_t phase, lf_node node, const lf_access *from)
{
    lf_step s = {.kind = LF_STEP_LOAD, .node = node, .from = *from, .arg = {-1, -1, -1}};
    return lf_builder_step(b, phase, &s);
}

int32_t lf_step_number(lf_builder *b, int32_t phase, lf_node node, double number)
{
    lf_step s = {.kind = LF_STEP_NUMBER, .node = node, .number = number, .arg = {-1, -1, -1}};
    return lf_builder_step(b, phase, &s);
}

int32_t lf_step_op(lf_builder *b, int32_t phase, lf_node node, lf_op op, const int32_t arg[3], const double attr[3])
{
    lf_step s = {.kind = LF_STEP_OP, .node = node, .op = op};
    memcpy(s.arg, arg, sizeof s.arg);
    memcpy(s.attr, attr, sizeof s.attr);
    return lf_builder_step(b, phase, &s);
}

bool lf_access_same(const lf_access *a, const lf_access *b)
{
    if (a->place != b->place || a->index != b->index || a->result != b->result || a->rank != b->rank ||
        a->row_axes != b->row_axes || !lf_extent_same(a->first, b->first))
        return false;
    for (int i = 0; i < a->rank; i++)
        if (!lf_extent_same(a->extent[i], b->extent[i]) || !lf_extent_same(a->stride[i], b->stride[i]))
            return false;
    return true;
}

lf_access lf_access_whole(lf_place place, int32_t index, lf_extent rows, lf_grid grid)
{
    lf_access a = {.place = place, .index = index};
    if (!grid.one_row) {
        a.extent[0] = rows;
        a.stride[0] = grid.width;
        a.rank = a.row_axes = 1;
    }
    a.extent[a.rank] = grid.width;
    a.stride[a.rank] = lf_extent_of(1);
    a.rank++;
    return a;
}

lf_access lf_access_axes(lf_place place, int32_t index, const lf_shape *shape, const lf_extent *stride, int row_axes)
{
    lf_access a = {.place = place, .index = index, .rank = shape->rank, .row_axes = row_axes};
    for (int i = 0; i < shape->rank; i++) {
        a.extent[i] = shape->dim[i];
        a.stride[i] = stride[i];
    }
    return a;
}

lf_extent lf_extents_product(const lf_shape *shape, int from, int to)
{
    lf_extent product = lf_extent_of(1);
    for (int i = from; i < to; i++) {
        bool fits = lf_extent_mul(product, shape->dim[i], &product);
        assert(fits);
        (void)fits;
    }
    return product;
}

int32_t lf_lower_affine(lf_builder *b, int32_t phase, lf_node n, int32_t step, const int *order, int row_axes)
{
    const lf_graph *g = b->context->graph;
    const lf_shape *shape = &lf_at(g, n)->shape;
    lf_affine affine = lf_affine_of(g, n);
    const int slots[2] = {affine.weight_slot, affine.bias_slot};
    const lf_op ops[2] = {LF_OP_mul, LF_OP_add};
    const double one[3] = {1.0, 0.0, 0.0}; /* add's alpha; mul has no number */
    for (int i = 0; i < 2; i++) {
        lf_node arg = slots[i] < 0 ? LF_NONE : lf_arg_of(g, n, slots[i]);
        if (arg == LF_NONE)
            continue;
        lf_extent stride[LF_MAX_RANK] = {{0}};
        if (affine.channels)
            stride[affine.axis] = lf_extent_of(1);
        else
            lf_broadcast_strides(&lf_at(g, arg)->shape, shape, stride);
        lf_shape axes = *shape;
        lf_extent permuted[LF_MAX_RANK] = {{0}};
        for (int a = 0; a < shape->rank; a++) {
            int from = order ? order[a] : a;
            axes.dim[a] = shape->dim[from];
            permuted[a] = stride[from];
        }
        lf_access access = lf_access_axes(LF_VALUE, b->context->base[arg], &axes, permuted, row_axes);
        lf_node base = b->context->base[arg];
        int32_t operand = lf_at(g, base)->op == LF_OP_constant ? lf_step_number(b, phase, arg, lf_at(g, base)->value)
                                                               : lf_step_load(b, phase, arg, &access);
        step = lf_step_op(b, phase, n, ops[i], (const int32_t[3]){step, operand, -1}, one);
    }
    return step;
}

/* "linear+bias..." for people: op names in order, a repeated run counted. */
static const char *group_name(const lf_builder *b, const lf_node *nodes, int32_t count)
{
    const lf_graph *g = b->context->graph;
    char text[128];
    size_t used = 0;
    text[0] = 0;
    for (int32_t i = 0; i < count;) {
        const char *op = lf_op_row(lf_at(g, nodes[i])->op)->name;
        bool hidden = lf_kind_of(g, nodes[i]) == LF_GUARD && count > 1;
        int32_t run = 1;
        while (i + run < count && lf_at(g, nodes[i + run])->op == lf_at(g, nodes[i])->op)
            run++;
        if (!hidden) {
            if (used + strlen(op) + 16 > sizeof text) {
                memcpy(text + used, "+...", 5);
                break;
            }
            int wrote = run > 1 ? snprintf(text + used, sizeof text - used, "%s%s*%d", used ? "+" : "", op, (int)run)
                                : snprintf(text + used, sizeof text - used, "%s%s", used ? "+" : "", op);
            used += (size_t)wrote;
        }
        i += run;
    }
    return lf_arena_strndup(b->context->arena, text, strlen(text));
}

void lf_builder_finish(lf_builder *b, const lf_node *nodes, int32_t count)
{
    if (b->failed)
        return;
    lf_group *g = b->group;
    g->rows = b->rows;
    g->schedule = LF_BY_ROWS;
    for (int32_t i = 0; i < g->stats; i++)
        if (g->stat[i].span == LF_SPAN_COLUMN)
            g->schedule = LF_BY_PHASE;
    g->cover = lf_arena_array(b->context->arena, (size_t)count, sizeof *g->cover);
    g->name = group_name(b, nodes, count);
    if (!g->cover || !g->name) {
        b->failed = true;
        return;
    }
    memcpy(g->cover, nodes, (size_t)count * sizeof *nodes);
    g->covers = count;
}
