/* SPDX-License-Identifier: Apache-2.0 */
/* Building a plan: group, decide what is stored where, lower each group, note lifetimes. */
#include <assert.h>
#include <string.h>

#include "base/dtype.h"
#include "plan/group.h"
#include "plan/passes.h"
#include "plan/touch.h"

typedef struct building {
    lf_lower_context context;
    lf_plan *plan;
    lf_sets sets;
    int32_t *set_of;  /* one per node: its set, -1 where it has none */
    int32_t *copy_of; /* one per output: the base node to copy into it, LF_NONE where a group writes it */
} building;

/* The node whose elements n is, seen through views. */
static void find_bases(const lf_graph *g, lf_node *base)
{
    for (lf_node n = 0; n < g->count; n++)
        base[n] = lf_kind_of(g, n) == LF_VIEW ? base[lf_arg_of(g, n, 0)] : n;
}

/* Outputs take the memory the caller gives them. The first output that names a computed value is where that value
 * lives; any other (an input, a parameter, a constant, a second name) is copied. */
static void place_outputs(building *b)
{
    const lf_graph *g = b->context.graph;
    for (int32_t i = 0; i < g->outputs; i++) {
        lf_node base = b->context.base[g->output[i]];
        b->copy_of[i] = LF_NONE;
        if (b->set_of[base] >= 0 && b->plan->storage[base] == LF_NOT_STORED) {
            b->plan->storage[base] = LF_IN_OUTPUT;
            b->plan->where[base] = i;
            b->context.stored[base] = true;
        } else {
            b->copy_of[i] = base;
        }
    }
}

/* Everything else that a group reads and another has written is an intermediate; what is fixed is prepared. */
static void place_value(building *b, lf_node arg, int32_t reader, bool element)
{
    const lf_graph *g = b->context.graph;
    lf_plan *plan = b->plan;
    lf_node base = b->context.base[arg];
    if (b->context.fixed[base]) {
        if (!element || lf_at(g, base)->op != LF_OP_constant)
            plan->storage[base] = LF_PREPARED;
        return;
    }
    if (b->set_of[base] < 0 || b->set_of[base] == reader)
        return;
    b->context.stored[base] = true;
    if (plan->storage[base] == LF_NOT_STORED) {
        plan->storage[base] = LF_IN_BUFFER;
        plan->buffers++;
    }
}

static bool is_weight(const lf_graph *g, lf_node n, int slot) { return lf_kind_of(g, n) == LF_PRODUCT && slot == 1; }

static void place_arguments(building *b)
{
    const lf_graph *g = b->context.graph;
    for (int32_t s = 0; s < b->sets.count; s++)
        for (int32_t i = 0; i < b->sets.set[s].count; i++) {
            lf_node n = b->sets.set[s].node[i];
            for (int a = 0; a < lf_op_row(lf_at(g, n)->op)->arg_count; a++)
                if (lf_arg_of(g, n, a) != LF_NONE)
                    place_value(b, lf_arg_of(g, n, a), s, !is_weight(g, n, a));
        }
    for (int32_t i = 0; i < g->outputs; i++)
        if (b->copy_of[i] != LF_NONE)
            place_value(b, b->copy_of[i], -1, true);
}

/* Numbers buffers and prepared tensors, and finds which of the latter only products read. */
static lf_status number_storage(building *b, lf_arena *arena)
{
    const lf_graph *g = b->context.graph;
    lf_plan *plan = b->plan;
    for (lf_node n = 0; n < g->count; n++)
        plan->prepareds += plan->storage[n] == LF_PREPARED;
    plan->buffer = lf_arena_array(arena, (size_t)plan->buffers, sizeof *plan->buffer);
    plan->prepared = lf_arena_array(arena, (size_t)plan->prepareds, sizeof *plan->prepared);
    plan->packed_only = lf_arena_array(arena, (size_t)plan->prepareds, sizeof *plan->packed_only);
    if (!plan->buffer || !plan->prepared || !plan->packed_only)
        return lf_fail_nomem(g->diag, "the plan");
    int32_t buffers = 0, prepareds = 0;
    for (lf_node n = 0; n < g->count; n++) {
        if (plan->storage[n] == LF_IN_BUFFER) {
            plan->where[n] = buffers;
            plan->buffer[buffers++] =
                (lf_buffer){.node = n,
                            .dtype = lf_at(g, n)->dtype,
                            .elements = lf_extents_product(&lf_at(g, n)->shape, 0, lf_at(g, n)->shape.rank),
                            .first = b->set_of[n],
                            .last = b->set_of[n]};
        } else if (plan->storage[n] == LF_PREPARED) {
            plan->where[n] = prepareds;
            plan->packed_only[prepareds] = true;
            plan->prepared[prepareds++] = n;
        }
    }
    for (int32_t i = 0; i < g->inputs; i++) {
        plan->storage[g->input[i]] = LF_IN_INPUT;
        plan->where[g->input[i]] = i;
    }
    return LF_OK;
}

static void note_read(lf_plan *plan, int32_t group, const lf_touch *at)
{
    const int32_t where = plan->where[at->what];
    if (plan->storage[at->what] == LF_IN_BUFFER && plan->buffer[where].last < group)
        plan->buffer[where].last = group;
    if (plan->storage[at->what] == LF_PREPARED && at->by != LF_TOUCH_WEIGHT && at->by != LF_TOUCH_BIAS)
        plan->packed_only[where] = false;
}

/* Lifetimes of buffers, and who reads prepared tensors as such, from what the groups really read. */
static void note_reads(lf_plan *plan)
{
    lf_touch at;
    for (int32_t i = 0; i < plan->groups; i++)
        for (lf_touches all = lf_touches_of(&plan->group[i]); lf_touch_next(&all, &at);)
            if (at.place == LF_VALUE && !lf_is_write(&at))
                note_read(plan, i, &at);
}

/* The last phase that reads kept value k; *along: whether that phase reads it element for element only. */
static int32_t last_read(const lf_group *g, int32_t k, lf_extent rows, bool *along)
{
    int32_t last = -1;
    const lf_access whole = lf_access_whole(LF_KEPT, k, rows, (lf_grid){false, g->kept[k].width});
    lf_touch at;
    *along = true;
    for (lf_touches all = lf_touches_of(g); lf_touch_next(&all, &at);) {
        if (!lf_touches_this(&at, LF_KEPT, k) || lf_is_write(&at))
            continue;
        *along = (*along || last != at.phase) && at.by == LF_TOUCH_LOAD && lf_access_same(at.access, &whole);
        last = at.phase;
    }
    return last;
}

int32_t lf_kept_output(const lf_plan *plan, const lf_group *g, const lf_kept *kept, int32_t k)
{
    bool along;
    const int32_t last = last_read(g, k, g->rows, &along);
    lf_touch at;
    if (kept[k].one_row)
        return -1;
    if (plan->storage[kept[k].node] == LF_IN_OUTPUT && lf_at(plan->graph, kept[k].node)->dtype == kept[k].dtype)
        return plan->where[kept[k].node]; /* it is returned, so it lies there anyway */
    for (lf_touches later = lf_touches_in(g, last + !along, g->phases); lf_touch_next(&later, &at);) {
        if (!lf_is_write(&at) || at.place != LF_VALUE || plan->storage[at.what] != LF_IN_OUTPUT ||
            at.access->row_axes != 1 || at.access->dtype != kept[k].dtype ||
            !lf_extent_same(at.access->stride[0], kept[k].width))
            continue;
        bool taken = false;
        for (int32_t other = 0; other < g->kepts; other++)
            taken = taken || kept[other].in_output == plan->where[at.what];
        if (!taken)
            return plan->where[at.what];
    }
    return -1;
}

static void keep_in_outputs(const lf_plan *plan, lf_group *g)
{
    for (int32_t k = 0; k < g->kepts && g->schedule == LF_BY_PHASE; k++)
        g->kept[k].in_output = lf_kept_output(plan, g, g->kept, k);
}

static lf_status number_products(lf_plan *plan, lf_arena *arena)
{
    for (int32_t i = 0; i < plan->groups; i++)
        plan->products += plan->group[i].products;
    plan->product = lf_arena_array(arena, (size_t)plan->products, sizeof *plan->product);
    if (!plan->product)
        return lf_fail_nomem(plan->graph->diag, "the plan");
    int32_t index = 0;
    for (int32_t i = 0; i < plan->groups; i++)
        for (int32_t p = 0; p < plan->group[i].products; p++) {
            plan->group[i].product[p].index = index;
            plan->product[index++] = &plan->group[i].product[p];
        }
    return LF_OK;
}

static lf_status run_passes(const building *b, lf_group *g)
{
    lf_group_types(b->plan, g);
    keep_in_outputs(b->plan, g);
    lf_group_uses(g);
    if (b->plan->options.keep_exps && !lf_group_keep_exps(g, b->context.arena))
        return lf_fail_nomem(b->plan->graph->diag, "the plan");
    lf_group_joins(g);
    lf_group_held(g);
    return LF_OK;
}

static lf_status lower_groups(building *b)
{
    lf_plan *plan = b->plan;
    lf_status status = LF_OK;
    for (int32_t i = 0; i < b->sets.count && status == LF_OK; i++) {
        lf_group *group = &plan->group[plan->groups++];
        const lf_set *set = &b->sets.set[i];
        const char *why = NULL;
        status = set->across ? lf_lower_across(&b->context, set->node[0], group)
                             : lf_lower(&b->context, set->node, set->count, group, &why);
        group->why_apart = set->why_apart;
        if (status == LF_OK)
            status = run_passes(b, group);
    }
    for (int32_t i = 0; i < b->context.graph->outputs && status == LF_OK; i++)
        if (b->copy_of[i] != LF_NONE) {
            status = lf_lower_copy(&b->context, b->copy_of[i], i, &plan->group[plan->groups]);
            if (status == LF_OK)
                status = run_passes(b, &plan->group[plan->groups]);
            plan->group[plan->groups++].why_apart = "the value is returned and also lives elsewhere, so it is copied";
        }
    return status;
}

static lf_status allocate(building *b, const lf_graph *g, lf_arena *arena)
{
    size_t n = (size_t)g->count + 1;
    bool *fixed = lf_arena_array(arena, n, sizeof *fixed);
    lf_node *base = lf_arena_array(arena, n, sizeof *base);
    b->context = (lf_lower_context){.graph = g, .arena = arena, .fixed = fixed, .base = base};
    b->context.stored = lf_arena_array(arena, n, sizeof(bool));
    b->context.slot = lf_arena_array(arena, n, sizeof(int32_t));
    b->set_of = lf_arena_array(arena, n, sizeof *b->set_of);
    b->copy_of = lf_arena_array(arena, (size_t)g->outputs, sizeof *b->copy_of);
    b->plan = lf_arena_alloc(arena, sizeof *b->plan);
    if (!fixed || !base || !b->context.stored || !b->context.slot || !b->set_of || !b->copy_of || !b->plan)
        return lf_fail_nomem(g->diag, "the plan");
    b->plan->graph = g;
    b->plan->storage = lf_arena_array(arena, n, sizeof *b->plan->storage);
    b->plan->where = lf_arena_array(arena, n, sizeof *b->plan->where);
    if (!b->plan->storage || !b->plan->where)
        return lf_fail_nomem(g->diag, "the plan");
    lf_graph_fixed(g, fixed);
    find_bases(g, base);
    for (size_t i = 0; i < n; i++)
        b->context.slot[i] = b->set_of[i] = -1;
    return LF_OK;
}

lf_status lf_plan_build(const lf_graph *g, lf_plan_options options, lf_arena *arena, lf_plan **out)
{
    building b = {0};
    lf_status status = allocate(&b, g, arena);
    if (status == LF_OK)
        status = lf_group_nodes(&b.context, options, arena, &b.sets);
    if (status != LF_OK)
        return status;
    options.keep_exps = options.keep_exps && options.cut == LF_CUT_NONE;
    b.plan->options = options;
    for (int32_t s = 0; s < b.sets.count; s++)
        for (int32_t i = 0; i < b.sets.set[s].count; i++)
            b.set_of[b.sets.set[s].node[i]] = s;
    b.plan->group = lf_arena_array(arena, (size_t)b.sets.count + (size_t)g->outputs, sizeof *b.plan->group);
    if (!b.plan->group)
        return lf_fail_nomem(g->diag, "the plan");
    place_outputs(&b);
    place_arguments(&b);
    status = number_storage(&b, arena);
    if (status == LF_OK)
        status = lower_groups(&b);
    if (status == LF_OK && options.cut != LF_CUT_NONE)
        status = lf_plan_cut(b.plan, arena);
    if (status == LF_OK)
        status = number_products(b.plan, arena);
    if (status == LF_OK)
        note_reads(b.plan);
    assert(status != LF_OK || lf_plan_verify(b.plan, g->diag) == LF_OK);
    *out = b.plan;
    return status;
}

int64_t lf_plan_intermediate_bytes(const lf_plan *plan, const int64_t *dims)
{
    int64_t bytes = 0;
    for (int32_t i = 0; i < plan->buffers; i++)
        bytes += (int64_t)lf_dtype_size(plan->buffer[i].dtype) * lf_extent_at(plan->buffer[i].elements, dims);
    for (int32_t i = 0; i < plan->groups; i++) {
        const lf_group *g = &plan->group[i];
        for (int32_t k = 0; k < g->kepts && g->schedule == LF_BY_PHASE; k++)
            if (!g->kept[k].one_row && g->kept[k].in_output < 0)
                bytes += (int64_t)lf_dtype_size(g->kept[k].dtype) * lf_extent_at(g->rows, dims) *
                         lf_extent_at(g->kept[k].width, dims);
    }
    return bytes;
}
