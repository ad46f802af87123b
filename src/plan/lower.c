/* SPDX-License-Identifier: Apache-2.0 */
/* Lowering a set of nodes to phases, in two walks over the set. The first places every node: on which grid its elements
 * lie, and on which level, counting how many statistics and changes of grid lie before it. Nodes of one level and grid
 * are one phase, but for products that nothing there brings together: each is a part of its own, with what reads it.
 * The second walk emits their steps. */
#include <assert.h>

#include "plan/lower.h"
#include "plan/span.h"

/* a value this cheap is computed again by a later phase rather than kept: a kept one costs a store and a load */
enum { AGAIN_FLOPS = 4 };

typedef struct member {
    lf_node node;
    lf_grid grid;
    int row_axes;      /* how many axes of the node's shape count the grid's rows */
    int level;
    int32_t part;      /* a member for all that are one phase with it; -1 where no product is */
    int32_t phase, step;
    int32_t kept;      /* -1 until a later phase asks for it */
    int32_t again;     /* flops to compute it anew from tensors, -1 where that cannot be or is too much */
    bool idle;         /* it is computed anew wherever it is read: its own phase does without */
    bool spans;        /* it has a statistic: then */
    lf_spanned spanned;
    int feed_level;
} member;

typedef struct phase_key {
    int level;
    lf_grid grid;
    int32_t part;
} phase_key;

typedef struct lowering {
    lf_builder b;
    const lf_lower_context *context;
    member *m;
    int32_t count;
    phase_key *key;
    int32_t keys;
    int32_t products;
    bool columns;      /* some statistic spans all rows */
} lowering;

/* How a node reads one of its arguments. */
typedef struct reading {
    lf_node base;
    int32_t inside;    /* member, -1 when it is a tensor or a constant */
    bool identity;     /* element for element, on one grid */
    lf_access access;  /* place and index unset when inside */
} reading;

static bool grid_same(lf_grid a, lf_grid b) { return a.one_row == b.one_row && lf_extent_same(a.width, b.width); }

static int32_t find_phase(const lowering *l, int level, lf_grid grid, int32_t part)
{
    for (int32_t i = 0; i < l->keys; i++)
        if (l->key[i].level == level && grid_same(l->key[i].grid, grid) && l->key[i].part == part)
            return i;
    return -1;
}

static void need_phase(lowering *l, int level, lf_grid grid, int32_t part)
{
    if (find_phase(l, level, grid, part) < 0)
        l->key[l->keys++] = (phase_key){level, grid, part};
}

static int32_t phase_of(const lowering *l, int level, lf_grid grid, int32_t part)
{
    int32_t phase = find_phase(l, level, grid, part);
    assert(phase >= 0 && "every level, grid and part in use has its phase");
    return phase;
}

/* Do the strides of axes [from, to) count 0, unit, 2 unit ... in order, as neighbours in memory do? */
static bool strides_natural(const lf_shape *shape, const lf_extent *stride, int from, int to, lf_extent unit)
{
    for (int axis = to - 1; axis >= from; axis--) {
        if (lf_extent_is(shape->dim[axis], 1))
            continue;
        if (!lf_extent_same(stride[axis], unit) || !lf_extent_mul(unit, shape->dim[axis], &unit))
            return false;
    }
    return true;
}

static bool strides_zero(const lf_shape *shape, const lf_extent *stride, int from, int to)
{
    for (int axis = from; axis < to; axis++)
        if (stride[axis].coef != 0 && !lf_extent_is(shape->dim[axis], 1))
            return false;
    return true;
}

/* How a node on `grid` with this shape reads what lies so in base. NULL, or why it cannot while both are in one
 * group. */
static const char *read_so(const lowering *l, const lf_shape *shape, lf_grid grid, int row_axes, lf_node base,
                           const lf_moved *lies, reading *r)
{
    r->base = base;
    r->inside = l->context->slot[base];
    r->identity = false;
    r->access = lf_access_axes(LF_VALUE, base, shape, lies->stride, row_axes);
    r->access.first = lies->first;
    if (r->inside < 0)
        return NULL;
    const member *m = &l->m[r->inside];
    if (m->grid.one_row ? !strides_zero(shape, lies->stride, 0, row_axes)
                        : grid.one_row || !strides_natural(shape, lies->stride, 0, row_axes, m->grid.width))
        return "it is read across rows";
    r->identity = grid_same(m->grid, grid) && lies->first.coef == 0 &&
                  strides_natural(shape, lies->stride, row_axes, shape->rank, lf_extent_of(1));
    return NULL;
}

/* The same of an argument that is broadcast. */
static const char *read_arg(const lowering *l, const lf_shape *shape, lf_grid grid, int row_axes, lf_node arg,
                            reading *r)
{
    lf_moved lies = {.first = {0}};
    lf_broadcast_strides(&lf_at(l->context->graph, arg)->shape, shape, lies.stride);
    return read_so(l, shape, grid, row_axes, l->context->base[arg], &lies, r);
}

/* The same of what a member moves. */
static const char *read_moved(const lowering *l, const member *m, reading *r)
{
    const lf_graph *g = l->context->graph;
    const lf_moved lies = lf_moved_of(g, m->node);
    return read_so(l, &lf_at(g, m->node)->shape, m->grid, m->row_axes, l->context->base[lf_arg_of(g, m->node, 0)],
                   &lies, r);
}

static bool outside(const lowering *l, lf_node arg)
{
    return arg == LF_NONE || l->context->slot[l->context->base[arg]] < 0;
}

/* ---- first walk ---- */

/* The grid of a pointwise node: the group's rows, or one row where all it reads of the group has one row and nothing
 * widens it. */
static const char *pointwise_grid(lowering *l, member *m)
{
    const lf_graph *g = l->context->graph;
    const lf_node_info *info = lf_at(g, m->node);
    lf_extent elements = lf_extents_product(&info->shape, 0, info->shape.rank);
    bool any_inside = false, all_one = true, widest = false;
    for (int i = 0; i < lf_op_row(info->op)->arg_count; i++) {
        if (outside(l, info->arg[i]))
            continue;
        const member *a = &l->m[l->context->slot[l->context->base[info->arg[i]]]];
        any_inside = true;
        all_one = all_one && a->grid.one_row;
        widest = widest || lf_extent_same(a->grid.width, elements);
    }
    if (any_inside && all_one && widest) {
        m->grid = (lf_grid){true, elements};
        m->row_axes = 0;
        return NULL;
    }
    return lf_split_rows(&info->shape, l->b.rows, &m->row_axes, &m->grid.width) ? NULL
                                                                                : "its rows are not those of the group";
}

static const char *place_pointwise(lowering *l, member *m, int args)
{
    const lf_graph *g = l->context->graph;
    const lf_node_info *info = lf_at(g, m->node);
    const char *why = pointwise_grid(l, m);
    if (why)
        return why;
    m->again = lf_op_row(info->op)->kind == LF_POINTWISE ? lf_op_row(info->op)->flops : -1;
    for (int i = 0; i < args; i++) {
        reading r;
        if (info->arg[i] == LF_NONE)
            continue;
        why = read_arg(l, &info->shape, m->grid, m->row_axes, info->arg[i], &r);
        if (why)
            return why;
        int32_t cost = lf_at(g, r.base)->op != LF_OP_constant;
        if (r.inside >= 0) {
            const member *a = &l->m[r.inside];
            int level = a->level + (r.identity ? 0 : 1);
            m->level = level > m->level ? level : m->level;
            cost = r.identity ? a->again : -1;
        }
        m->again = m->again < 0 || cost < 0 ? -1 : m->again + cost;
    }
    m->again = m->again > AGAIN_FLOPS ? -1 : m->again;
    return NULL;
}

static const char *place_product(lowering *l, member *m)
{
    const lf_graph *g = l->context->graph;
    const lf_node_info *info = lf_at(g, m->node);
    l->products++;
    if (!outside(l, info->arg[1]) || (info->op == LF_OP_linear && !outside(l, info->arg[2])))
        return "its weight is computed by the other kernel";
    const lf_shape *x = &lf_at(g, info->arg[0])->shape;
    if (!lf_split_rows(&info->shape, l->b.rows, &m->row_axes, &m->grid.width) || m->row_axes > info->shape.rank - 1 ||
        !lf_extent_same(lf_extents_product(x, 0, x->rank - 1), l->b.rows))
        return "its rows are not those of the group";
    int32_t inside = l->context->slot[l->context->base[info->arg[0]]];
    if (inside >= 0) {
        if (l->m[inside].grid.one_row || !lf_extent_same(l->m[inside].grid.width, x->dim[x->rank - 1]))
            return "its input has other rows than its output";
        m->level = l->m[inside].level + 1;
    }
    return NULL;
}

/* What a spanned node's statistic walks over. */
static lf_grid fed_grid(const member *m) { return (lf_grid){false, m->spanned.width}; }

/* What a reduction reads beside its statistic, on the grid of its value. */
static const char *place_beside(lowering *l, member *m)
{
    const lf_node_info *info = lf_at(l->context->graph, m->node);
    for (int i = 1; i < lf_op_row(info->op)->arg_count; i++) {
        reading r;
        const char *why = read_arg(l, &info->shape, m->grid, m->row_axes, info->arg[i], &r);
        if (why)
            return why;
        const int level = r.inside < 0 ? 0 : l->m[r.inside].level + (r.identity ? 0 : 1);
        m->level = level > m->level ? level : m->level;
    }
    return NULL;
}

/* A node with a statistic of its first argument. */
static const char *place_spanned(lowering *l, member *m)
{
    const lf_graph *g = l->context->graph;
    const lf_node_info *info = lf_at(g, m->node);
    lf_kind kind = lf_kind_of(g, m->node);
    for (int i = 1; i < lf_op_row(info->op)->arg_count && kind != LF_REDUCE; i++)
        if (!outside(l, info->arg[i]))
            return "its weight is computed by the other kernel";
    const char *why = lf_span_classify(g, m->node, l->b.rows, &m->spanned);
    if (why)
        return why;
    int32_t inside = l->context->slot[l->context->base[info->arg[0]]];
    if (inside >= 0 && l->m[inside].grid.one_row)
        return "it reduces what is itself a reduction over rows";
    l->columns = l->columns || m->spanned.span == LF_SPAN_COLUMN;
    m->spans = true;
    m->feed_level = inside >= 0 ? l->m[inside].level : 0;
    m->level = m->feed_level + 1;
    m->row_axes = m->spanned.row_axes;
    m->grid = kind == LF_NORMALIZE ? fed_grid(m) : (lf_grid){m->spanned.span == LF_SPAN_COLUMN, m->spanned.results};
    return kind == LF_REDUCE ? place_beside(l, m) : NULL;
}

/* Elements in another order are read from where they are stored; some of a row's, also from what the group keeps. */
static const char *place_moved(lowering *l, member *m)
{
    const lf_graph *g = l->context->graph;
    const lf_node_info *info = lf_at(g, m->node);
    const bool turned = lf_moved_of(g, m->node).turned, inside = !outside(l, info->arg[0]);
    if (turned && inside)
        return "a transpose moves data, which wants it stored first";
    if (!lf_split_rows(&info->shape, l->b.rows, &m->row_axes, &m->grid.width))
        return "its rows are not those of the group";
    reading r;
    const char *why = read_moved(l, m, &r);
    m->again = turned ? -1 : 1;
    m->level = inside ? l->m[r.inside].level + 1 : 0;
    return why;
}

static const char *place(lowering *l, member *m)
{
    const lf_graph *g = l->context->graph;
    const lf_node_info *info = lf_at(g, m->node);
    const char *why = NULL;
    m->again = -1;
    m->kept = -1;
    switch (lf_kind_of(g, m->node)) {
    case LF_PRODUCT:
        why = place_product(l, m);
        break;
    case LF_REDUCE:
    case LF_POOL:
        why = place_spanned(l, m);
        break;
    case LF_NORMALIZE:
        if (!lf_uses_running_stats(g, m->node)) {
            why = place_spanned(l, m);
            break;
        }
        for (int i = 1; i < lf_op_row(info->op)->arg_count; i++)
            if (!outside(l, info->arg[i]))
                return "its weight is computed by the other kernel";
        why = place_pointwise(l, m, 1);
        break;
    case LF_MOVE:
        why = place_moved(l, m);
        break;
    case LF_POINTWISE:
        why = place_pointwise(l, m, lf_op_row(info->op)->arg_count);
        break;
    case LF_GUARD:
        why = place_pointwise(l, m, 1);
        if (!why && m->row_axes == 0 && info->shape.rank > 0 && !lf_extent_is(info->shape.dim[0], 1))
            why = "rows are redone one by one, and here they would all be one";
        break;
    case LF_LEAF:
    case LF_VIEW:
    case LF_LOSS:
        assert(!"leaves and views are no members, losses are made of others");
    }
    return why;
}

/* ---- parts ---- */

/* How many arguments a node reads element by element, first ones first. */
static int read_in_place(const lf_graph *g, lf_node n)
{
    lf_kind kind = lf_kind_of(g, n);
    return kind == LF_POINTWISE ? lf_op_row(lf_at(g, n)->op)->arg_count
                                : kind == LF_GUARD || (kind == LF_NORMALIZE && lf_uses_running_stats(g, n));
}

static void unite(lowering *l, int32_t part, int32_t with)
{
    for (int32_t i = 0; i < l->count && part != with; i++)
        if (l->m[i].part == part)
            l->m[i].part = with;
}

/* Is a product in the part? */
static bool has_product(const lowering *l, int32_t part)
{
    for (int32_t i = 0; i < l->count; i++)
        if (l->m[i].part == part && lf_kind_of(l->context->graph, l->m[i].node) == LF_PRODUCT)
            return true;
    return false;
}

/* The part, on a level and grid, of the first product there: also that of whatever reads no product. */
static int32_t first_part(const lowering *l, int level, lf_grid grid)
{
    for (int32_t i = 0; i < l->count; i++)
        if (lf_kind_of(l->context->graph, l->m[i].node) == LF_PRODUCT && l->m[i].level == level &&
            grid_same(l->m[i].grid, grid))
            return l->m[i].part;
    return -1;
}

/* The part in whose phase a spanned node's statistic is fed: where its argument is made. */
static int32_t fed_part(const lowering *l, const member *m)
{
    int32_t inside = l->context->slot[l->context->base[lf_arg_of(l->context->graph, m->node, 0)]];
    return inside >= 0 && grid_same(l->m[inside].grid, fed_grid(m)) ? l->m[inside].part
                                                                    : first_part(l, m->feed_level, fed_grid(m));
}

static void find_parts(lowering *l)
{
    const lf_graph *g = l->context->graph;
    for (int32_t i = 0; i < l->count; i++)
        l->m[i].part = i;
    for (int32_t i = 0; i < l->count; i++) {
        const member *m = &l->m[i];
        const lf_node_info *info = lf_at(g, m->node);
        for (int a = 0; a < read_in_place(g, m->node); a++) {
            reading r = {.inside = -1};
            if (info->arg[a] != LF_NONE)
                read_arg(l, &info->shape, m->grid, m->row_axes, info->arg[a], &r);
            if (r.inside >= 0 && r.identity && l->m[r.inside].level == m->level)
                unite(l, m->part, l->m[r.inside].part);
        }
    }
    for (int32_t i = 0; i < l->count; i++)
        if (!has_product(l, l->m[i].part))
            l->m[i].part = first_part(l, l->m[i].level, l->m[i].grid);
}

static bool same_phase(const member *a, const member *b)
{
    return a->level == b->level && a->part == b->part && grid_same(a->grid, b->grid);
}

/* Which values only other phases want, all of which compute them anew. Readers come after what they read. */
static void find_idle(lowering *l)
{
    const lf_graph *g = l->context->graph;
    for (int32_t i = 0; i < l->count; i++)
        l->m[i].idle = l->m[i].again >= 0 && !l->context->stored[l->m[i].node];
    for (int32_t i = l->count - 1; i >= 0; i--) {
        const member *m = &l->m[i];
        const lf_node_info *info = lf_at(g, m->node);
        for (int a = 0; a < lf_op_row(info->op)->arg_count; a++) {
            reading r = {.identity = false};
            if (outside(l, info->arg[a]))
                continue;
            member *from = &l->m[l->context->slot[l->context->base[info->arg[a]]]];
            if (lf_kind_of(g, m->node) == LF_POINTWISE)
                read_arg(l, &info->shape, m->grid, m->row_axes, info->arg[a], &r);
            from->idle = from->idle && r.identity && (!same_phase(m, from) || m->idle);
        }
    }
}

static void find_phases(lowering *l)
{
    find_parts(l);
    find_idle(l);
    for (int32_t i = 0; i < l->count; i++) {
        const member *m = &l->m[i];
        if (m->idle)
            continue;
        if (m->spans)
            need_phase(l, m->feed_level, fed_grid(m), fed_part(l, m));
        need_phase(l, m->level, m->grid, m->part);
    }
}

/* ---- second walk ---- */

static int32_t emit_again(lowering *l, const member *m, int32_t phase);

static lf_access keep(lowering *l, int32_t index, const lf_access *as_read)
{
    member *m = &l->m[index];
    if (m->kept < 0) {
        m->kept = lf_builder_kept(&l->b, m->node, m->grid);
        lf_access to = lf_access_whole(LF_KEPT, m->kept, l->b.rows, m->grid);
        lf_builder_store(&l->b, m->phase, m->step, &to);
    }
    lf_access from = *as_read;
    from.place = LF_KEPT;
    from.index = m->kept;
    return from;
}

/* Is this value already computed anew in the phase? -1 when not. */
static int32_t find_again(const lowering *l, lf_node node, int32_t phase)
{
    const lf_phase *p = &l->b.group->phase[phase];
    for (int32_t i = 0; i < p->steps; i++)
        if (p->step[i].kind == LF_STEP_OP && p->step[i].node == node)
            return i;
    return -1;
}

/* The step that holds, in this phase, argument arg of the node with that shape, grid and rows. */
static int32_t fetch(lowering *l, const lf_shape *shape, lf_grid grid, int row_axes, lf_node arg, int32_t phase)
{
    const lf_graph *g = l->context->graph;
    reading r;
    const char *why = read_arg(l, shape, grid, row_axes, arg, &r);
    assert(!why);
    (void)why;
    if (r.inside < 0)
        return lf_at(g, r.base)->op == LF_OP_constant ? lf_step_number(&l->b, phase, arg, lf_at(g, r.base)->value)
                                                      : lf_step_load(&l->b, phase, arg, &r.access);
    member *m = &l->m[r.inside];
    if (r.identity && m->phase == phase)
        return m->step;
    if (r.identity && m->again >= 0) {
        int32_t step = find_again(l, m->node, phase);
        return step >= 0 ? step : emit_again(l, m, phase);
    }
    lf_access from = keep(l, r.inside, &r.access);
    return lf_step_load(&l->b, phase, arg, &from);
}

static int32_t emit_moved(lowering *l, const member *m, int32_t phase)
{
    reading r;
    const char *why = read_moved(l, m, &r);
    assert(!why);
    (void)why;
    const lf_access from = r.inside >= 0 ? keep(l, r.inside, &r.access) : r.access;
    return lf_step_load(&l->b, phase, m->node, &from);
}

static int32_t emit_op(lowering *l, const member *m, int32_t phase)
{
    const lf_graph *g = l->context->graph;
    const lf_node_info *info = lf_at(g, m->node);
    int32_t arg[3] = {-1, -1, -1};
    double attr[3];
    if (info->op == LF_OP_to) /* the numbers of a phase are f32 whatever they are stored as: a cast is what it casts */
        return fetch(l, &info->shape, m->grid, m->row_axes, info->arg[0], phase);
    for (int i = 0; i < lf_op_row(info->op)->arg_count && i < 3; i++)
        arg[i] = fetch(l, &info->shape, m->grid, m->row_axes, info->arg[i], phase);
    lf_op_numbers(g, m->node, attr);
    return lf_step_op(&l->b, phase, m->node, info->op, arg, attr);
}

/* A value that is cheap, in a phase of whoever reads it. */
static int32_t emit_again(lowering *l, const member *m, int32_t phase)
{
    return lf_kind_of(l->context->graph, m->node) == LF_MOVE ? emit_moved(l, m, phase) : emit_op(l, m, phase);
}

static void emit_product(lowering *l, member *m)
{
    const lf_graph *g = l->context->graph;
    const lf_node_info *info = lf_at(g, m->node);
    const lf_shape *x = &lf_at(g, info->arg[0])->shape;
    lf_product p = {.node = m->node,
                    .weight = l->context->base[info->arg[1]],
                    .w_is_kn = info->op == LF_OP_matmul,
                    .n = m->grid.width,
                    .k = x->dim[x->rank - 1],
                    .phase = m->phase};
    p.weight_fixed = l->context->fixed[p.weight];
    lf_node bias = info->op == LF_OP_linear && info->arg[2] != LF_NONE ? l->context->base[info->arg[2]] : LF_NONE;
    p.narrow =
        p.weight_fixed && (bias == LF_NONE || l->context->fixed[bias]) && lf_extent_known(p.n) && p.n.coef <= LF_NARROW;
    p.bias = p.narrow ? bias : LF_NONE;
    lf_access whole = lf_access_whole(LF_VALUE, l->context->base[info->arg[0]], l->b.rows, (lf_grid){false, p.k});
    int32_t inside = l->context->slot[whole.index];
    const lf_access from = inside >= 0 ? keep(l, inside, &whole) : whole;
    assert(l->b.group->products == 0 || lf_access_same(&l->b.group->x, &from));
    l->b.group->x = from;
    lf_step s = {.kind = LF_STEP_PRODUCT,
                 .node = m->node,
                 .product = lf_builder_product(&l->b, &p),
                 .arg = {-1, -1, -1}};
    m->step = lf_builder_step(&l->b, m->phase, &s);
    if (bias != LF_NONE && !p.narrow) {
        int32_t added = fetch(l, &info->shape, m->grid, m->row_axes, info->arg[2], m->phase);
        m->step = lf_step_op(&l->b, m->phase, m->node, LF_OP_add, (const int32_t[3]){m->step, added, -1},
                             (const double[3]){1.0, 0.0, 0.0});
    }
}

/* Feeds the statistic of a spanned node and gives its number. */
static int32_t emit_stat(lowering *l, const member *m)
{
    const lf_graph *g = l->context->graph;
    lf_node arg = lf_arg_of(g, m->node, 0);
    const lf_shape *shape = &lf_at(g, arg)->shape;
    lf_grid grid = {false, m->spanned.width};
    int32_t phase = phase_of(l, m->feed_level, grid, fed_part(l, m));
    lf_stat stat = {.monoid = lf_op_row(lf_at(g, m->node)->op)->monoid,
                    .span = m->spanned.span,
                    .node = m->node,
                    .phase = phase,
                    .step = -1,
                    .groups = m->spanned.groups,
                    .length = m->spanned.length,
                    .count = m->spanned.count,
                    .window = m->spanned.window};
    if (stat.span == LF_SPAN_SEGMENT || stat.span == LF_SPAN_WINDOW) {
        lf_node base = l->context->base[arg];
        int32_t inside = l->context->slot[base];
        lf_access whole = lf_access_whole(LF_VALUE, base, l->b.rows, grid);
        if (inside >= 0) {
            stat.from = keep(l, inside, &whole);
        } else if (lf_at(g, base)->op == LF_OP_constant || lf_at(g, base)->dtype != LF_F32) {
            const int32_t step = fetch(l, shape, grid, m->spanned.row_axes, arg, phase);
            stat.from = lf_access_whole(LF_KEPT, lf_builder_kept(&l->b, base, grid), l->b.rows, grid);
            lf_builder_store(&l->b, phase, step, &stat.from);
        } else {
            stat.from = whole;
        }
    } else {
        stat.step = fetch(l, shape, grid, m->spanned.row_axes, arg, phase);
    }
    return lf_builder_stat(&l->b, &stat);
}

static void emit_reduced(lowering *l, member *m)
{
    const lf_graph *g = l->context->graph;
    const lf_node_info *info = lf_at(g, m->node);
    const lf_op_info *row = lf_op_row(info->op);
    const int results = lf_monoid_row(row->monoid)->results;
    int32_t stat = emit_stat(l, m), arg[3] = {-1, -1, -1};
    double attr[3];
    for (int i = 1; i < row->arg_count; i++)
        arg[results + i - 1] = fetch(l, &info->shape, m->grid, m->row_axes, info->arg[i], m->phase);
    for (int i = 0; i < results; i++) {
        lf_access from = lf_access_whole(LF_STAT, stat, l->b.rows, m->grid);
        from.result = i;
        arg[i] = lf_step_load(&l->b, m->phase, m->node, &from);
    }
    lf_op_numbers(g, m->node, attr);
    /* one result is the reduced value itself (sum, mean, max, min, pools) */
    m->step = arg[1] < 0 ? arg[0] : lf_step_op(&l->b, m->phase, m->node, lf_at(g, m->node)->op, arg, attr);
}

static void emit_normalized(lowering *l, member *m)
{
    const lf_graph *g = l->context->graph;
    const lf_node_info *info = lf_at(g, m->node);
    int32_t arg[3] = {fetch(l, &info->shape, m->grid, m->row_axes, info->arg[0], m->phase), -1, -1};
    double attr[3];
    lf_op_numbers(g, m->node, attr);
    if (lf_uses_running_stats(g, m->node)) {
        lf_extent stride[LF_MAX_RANK] = {{0}};
        stride[1] = lf_extent_of(1); /* channels */
        for (int i = 1; i <= 2; i++) {
            lf_node base = l->context->base[info->arg[i]];
            lf_access from = lf_access_axes(LF_VALUE, base, &info->shape, stride, m->row_axes);
            arg[i] = lf_at(g, base)->op == LF_OP_constant
                         ? lf_step_number(&l->b, m->phase, info->arg[i], lf_at(g, base)->value)
                         : lf_step_load(&l->b, m->phase, info->arg[i], &from);
        }
    } else {
        int32_t stat = emit_stat(l, m);
        for (int i = 0; i < lf_monoid_row(lf_op_row(info->op)->monoid)->results; i++) {
            lf_access from = lf_span_access(&m->spanned, l->b.rows, stat, i);
            arg[i + 1] = lf_step_load(&l->b, m->phase, m->node, &from);
        }
    }
    m->step = lf_step_op(&l->b, m->phase, m->node, info->op, arg, attr);
    m->step = lf_lower_affine(&l->b, m->phase, m->node, m->step, NULL, m->row_axes);
}

static void emit_guard(lowering *l, member *m)
{
    const lf_node_info *info = lf_at(l->context->graph, m->node);
    m->step = fetch(l, &info->shape, m->grid, m->row_axes, info->arg[0], m->phase);
    int32_t inside = l->context->slot[l->context->base[info->arg[1]]];
    if (inside >= 0) /* watched where it is made, whatever its grid */
        lf_builder_watch(&l->b, l->m[inside].phase, l->m[inside].step);
    else
        lf_builder_watch(&l->b, m->phase, fetch(l, &info->shape, m->grid, m->row_axes, info->arg[1], m->phase));
}

static void emit(lowering *l, member *m)
{
    m->step = m->phase = -1;
    if (m->idle)
        return;
    m->phase = phase_of(l, m->level, m->grid, m->part);
    switch (lf_kind_of(l->context->graph, m->node)) {
    case LF_PRODUCT:
        emit_product(l, m);
        break;
    case LF_REDUCE:
    case LF_POOL:
        emit_reduced(l, m);
        break;
    case LF_NORMALIZE:
        emit_normalized(l, m);
        break;
    case LF_MOVE:
        m->step = emit_moved(l, m, m->phase);
        break;
    case LF_GUARD:
        emit_guard(l, m);
        break;
    default:
        m->step = emit_op(l, m, m->phase);
    }
    if (l->context->stored[m->node]) {
        lf_access to = lf_access_whole(LF_VALUE, m->node, l->b.rows, m->grid);
        lf_builder_store(&l->b, m->phase, m->step, &to);
    }
}

/* ---- both ---- */

/* Phases run level by level; within a level in order of need. Insertion sort: stable, and the list is short. */
static void sort_keys(lowering *l)
{
    for (int32_t i = 1; i < l->keys; i++)
        for (int32_t j = i; j > 0 && l->key[j - 1].level > l->key[j].level; j--) {
            phase_key swapped = l->key[j];
            l->key[j] = l->key[j - 1];
            l->key[j - 1] = swapped;
        }
}

/* *placed: how many nodes could be placed before one could not. */
static const char *lower_with_rows(lowering *l, lf_extent rows, const lf_node *nodes, lf_group *group, int32_t *placed)
{
    if (group)
        *group = (lf_group){0};
    l->b = (lf_builder){.context = l->context, .rows = rows, .group = group};
    l->keys = l->products = 0;
    l->columns = false;
    for (int32_t i = 0; i < l->count; i++) {
        l->m[i] = (member){.node = nodes[i]};
        const char *why = place(l, &l->m[i]);
        *placed = i;
        if (why)
            return why;
    }
    if (l->products > 1 && l->columns)
        return "a statistic over all rows would have the values of every product kept until it is complete";
    if (!group)
        return NULL;
    find_phases(l);
    sort_keys(l);
    for (int32_t i = 0; i < l->keys; i++)
        lf_builder_phase(&l->b, l->key[i].grid);
    for (int32_t i = 0; i < l->count && !l->b.failed; i++)
        emit(l, &l->m[i]);
    lf_builder_finish(&l->b, nodes, l->count);
    return NULL;
}

lf_status lf_lower(const lf_lower_context *context, const lf_node *nodes, int32_t count, lf_group *group,
                   const char **why)
{
    lowering l = {.context = context, .count = count};
    l.m = lf_arena_array(context->arena, (size_t)count, sizeof *l.m);
    l.key = lf_arena_array(context->arena, 2 * (size_t)count, sizeof *l.key);
    if (!l.m || !l.key)
        return lf_fail_nomem(context->graph->diag, "the plan");
    lf_extent rows[LF_MAX_ROW_CHOICES];
    int choices = lf_row_choices(context->graph, nodes, count, rows);
    for (int32_t i = 0; i < count; i++)
        context->slot[nodes[i]] = i;
    *why = "no split into rows and columns fits all of it";
    int32_t most = -1;
    for (int i = 0; i < choices && *why && !l.b.failed; i++) {
        int32_t placed = 0;
        const char *refused = lower_with_rows(&l, rows[i], nodes, group, &placed);
        if (!refused || placed > most) /* what stands in the way where most of it fits is the reason to give */
            *why = refused;
        most = placed > most ? placed : most;
    }
    for (int32_t i = 0; i < count; i++)
        context->slot[nodes[i]] = -1;
    return l.b.failed ? lf_fail_nomem(context->graph->diag, "the plan") : LF_OK;
}
