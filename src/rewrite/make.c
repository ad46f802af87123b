/* SPDX-License-Identifier: Apache-2.0 */
/* Making nodes, each once: an equal node is found in a table instead. */
#include "rewrite/rules.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { FIRST_TABLE = 256, FIRST_FACTS = 64 };

static bool is_value(const lf_param_info *p)
{
    return p->type == 'T' || p->type == 'V';
}

/* ---- equality ---- */

static bool same_bits(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

static bool same_attrs(lf_op op, const lf_attr *a, const lf_attr *b)
{
    const lf_op_info *row = lf_op_row(op);
    for (int i = 0; i < row->param_count; i++) {
        const lf_param_info *p = &row->param[i];
        if (is_value(p))
            continue;
        const lf_attr *u = &a[p->slot], *v = &b[p->slot];
        bool same = u->none == v->none;
        if (same && !u->none)
            same = p->type == 'L'
                       ? u->count == v->count && memcmp(u->list, v->list, (size_t)u->count * sizeof u->list[0]) == 0
                       : same_bits(u->number, v->number);
        if (!same)
            return false;
    }
    return true;
}

static bool same_node(const lf_node_info *a, const lf_node_info *b)
{
    if (a->op != b->op)
        return false;
    if (a->op == LF_OP_constant)
        return same_bits(a->value, b->value) && lf_shape_same(&a->shape, &b->shape);
    if (a->op == LF_OP_positions)
        return lf_shape_same(&a->shape, &b->shape);
    if (lf_op_row(a->op)->kind == LF_LEAF)
        return false;
    if (!same_attrs(a->op, a->attr, b->attr))
        return false;
    return memcmp(a->arg, b->arg, sizeof a->arg) == 0 ||
           (lf_op_commutes(a->op, a->attr ? a->attr[0].number : 1.0) && a->arg[0] == b->arg[1] &&
            a->arg[1] == b->arg[0]);
}

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 29);
}

static uint64_t mix_number(uint64_t hash, double number)
{
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    return mix(hash, bits);
}

static uint64_t hash_node(const lf_node_info *a)
{
    const lf_op_info *row = lf_op_row(a->op);
    uint64_t hash = mix(1, (uint64_t)a->op), pair = 0;
    if (a->op == LF_OP_constant)
        return mix_number(mix(hash, (uint64_t)a->shape.rank), a->value);
    for (int i = 0; i < row->arg_count; i++) {
        if (i < 2) /* either order of the first two */
            pair += mix(7, (uint64_t)(a->arg[i] + 1));
        else
            hash = mix(hash, (uint64_t)(a->arg[i] + 1));
    }
    hash = mix(hash, pair);
    for (int i = 0; i < row->param_count; i++) {
        const lf_param_info *p = &row->param[i];
        if (is_value(p))
            continue;
        const lf_attr *attr = &a->attr[p->slot];
        hash = attr->none       ? mix(hash, 3)
               : p->type == 'L' ? mix(hash, (uint64_t)attr->count)
                                : mix_number(hash, attr->number);
        for (int k = 0; p->type == 'L' && k < attr->count; k++)
            hash = mix(hash, (uint64_t)attr->list[k]);
    }
    return hash;
}

/* ---- the table ---- */

static lf_node *entry_of(const lf_rw *rw, const lf_node_info *info)
{
    uint32_t i = (uint32_t)hash_node(info) & (rw->table_capacity - 1);
    while (rw->table[i] != LF_NONE && !same_node(&rw->g->node[rw->table[i]], info))
        i = (i + 1) & (rw->table_capacity - 1);
    return &rw->table[i];
}

static bool table_resize(lf_rw *rw, uint32_t capacity)
{
    lf_node *old = rw->table;
    uint32_t old_capacity = rw->table_capacity;
    lf_node *table = lf_arena_array(rw->g->arena, capacity, sizeof *table);
    if (!table)
        return false;
    for (uint32_t i = 0; i < capacity; i++)
        table[i] = LF_NONE;
    rw->table = table;
    rw->table_capacity = capacity;
    for (uint32_t i = 0; i < old_capacity; i++)
        if (old[i] != LF_NONE)
            *entry_of(rw, &rw->g->node[old[i]]) = old[i];
    return true;
}

static bool reserve(lf_rw *rw)
{
    int32_t count = rw->g->count;
    if ((uint32_t)count + 1 > rw->table_capacity / 2 && !table_resize(rw, rw->table_capacity * 2))
        return false;
    if (count < rw->facts_capacity)
        return true;
    int32_t capacity = rw->facts_capacity * 2;
    lf_rw_facts *facts = lf_arena_array(rw->g->arena, (size_t)capacity, sizeof *facts);
    lf_node *stack = lf_arena_array(rw->g->arena, (size_t)capacity, sizeof *stack);
    if (!facts || !stack)
        return false;
    memcpy(facts, rw->facts, (size_t)count * sizeof *facts);
    rw->facts = facts;
    rw->stack = stack;
    rw->facts_capacity = capacity;
    return true;
}

lf_status lf_rw_begin(lf_rw *rw, lf_arena *arena, lf_diag *diag, const lf_graph *in)
{
    lf_graph *g = lf_arena_alloc(arena, sizeof *g);
    lf_status status = g ? lf_graph_init(g, arena, diag) : LF_ERR_NOMEM;
    for (int i = 0; !status && i < in->symbols; i++) {
        int index;
        status = lf_graph_symbol(g, in->symbol[i], strlen(in->symbol[i]), &index);
    }
    if (status)
        return status;
    rw->g = g;
    rw->facts = lf_arena_array(arena, FIRST_FACTS, sizeof *rw->facts);
    rw->stack = lf_arena_array(arena, FIRST_FACTS, sizeof *rw->stack);
    rw->facts_capacity = FIRST_FACTS;
    rw->table_capacity = 0;
    return rw->facts && rw->stack && table_resize(rw, FIRST_TABLE) ? LF_OK : LF_ERR_NOMEM;
}

/* ---- what is known of a new node ---- */

static void describe(lf_rw *rw, lf_node n)
{
    const lf_node_info *info = lf_rw_at(rw, n);
    lf_rw_facts *s = &rw->facts[n];
    *s = (lf_rw_facts){.forward = LF_NONE, .label = LF_NONE, .source = LF_NONE, .fixed = info->op != LF_OP_input};
    if (rw->root != LF_NONE)
        s->source = rw->facts[rw->root].source;
    for (int i = 0; i < LF_MAX_ARGS; i++) {
        if (info->arg[i] == LF_NONE)
            continue;
        s->fixed = s->fixed && rw->facts[info->arg[i]].fixed;
        s->rows = s->rows || rw->facts[info->arg[i]].rows;
    }
}

/* A dim counts from 0, and lists of them ascend: one spelling for one thing. */
static void normal_attrs(const lf_rw *rw, lf_op op, lf_node x, lf_attr *attrs)
{
    const lf_op_info *row = lf_op_row(op);
    int64_t axes = lf_rw_shape(rw, x)->rank + (op == LF_OP_unsqueeze);
    axes = axes > 0 ? axes : 1;
    for (int i = 0; i < row->param_count; i++) {
        const lf_param_info *p = &row->param[i];
        if (is_value(p) || strncmp(p->name, "dim", 3) != 0 || attrs[p->slot].none)
            continue;
        lf_attr *attr = &attrs[p->slot];
        if (p->type == 'I' && attr->number < 0)
            attr->number += (double)axes;
        for (int k = 0; p->type == 'L' && k < attr->count; k++) {
            int64_t dim = attr->list[k] + (attr->list[k] < 0 ? axes : 0);
            int to = k;
            for (; to > 0 && attr->list[to - 1] > dim; to--)
                attr->list[to] = attr->list[to - 1];
            attr->list[to] = dim;
        }
    }
}

/* What has taken a node's place; itself, where nothing has. */
static lf_node newest(const lf_rw *rw, lf_node n)
{
    while (rw->facts[n].forward != LF_NONE)
        n = rw->facts[n].forward;
    return n;
}

/* The newest node has been made, if status says so. */
static lf_node made(lf_rw *rw, lf_status status)
{
    if (status == LF_ERR_NOMEM)
        rw->status = status;
    if (status)
        return LF_NONE;
    lf_node n = rw->g->count - 1;
    describe(rw, n);
    lf_node *entry = entry_of(rw, lf_rw_at(rw, n));
    if (*entry == LF_NONE)
        *entry = n;
    return n;
}

static bool ready(lf_rw *rw)
{
    if (!rw->status && !reserve(rw))
        rw->status = LF_ERR_NOMEM;
    return !rw->status;
}

static lf_node make(lf_rw *rw, lf_op op, const lf_node *args, const lf_attr *attrs, bool fresh)
{
    const lf_op_info *row = lf_op_row(op);
    lf_attr own[LF_MAX_ATTRS];
    lf_node_info wanted = {.op = op, .attr = own};
    for (int i = 0; i < LF_MAX_ARGS; i++)
        wanted.arg[i] = i < row->arg_count ? args[i] : LF_NONE;
    for (int i = 0; i < row->param_count; i++)
        if (is_value(&row->param[i]) && !row->param[i].optional && wanted.arg[row->param[i].slot] == LF_NONE)
            return LF_NONE;
    if (!ready(rw))
        return LF_NONE;
    if (attrs)
        memcpy(own, attrs, (size_t)row->attr_count * sizeof *own);
    else
        lf_op_defaults(op, own);
    normal_attrs(rw, op, wanted.arg[0], own);
    lf_node found = fresh ? LF_NONE : *entry_of(rw, &wanted);
    if (found != LF_NONE)
        return newest(rw, found);
    lf_node n = LF_NONE;
    return made(rw, lf_graph_op(rw->g, NULL, op, wanted.arg, own, &n));
}

/* ---- making ---- */

lf_node lf_rw_make(lf_rw *rw, lf_op op, const lf_node *args, const lf_attr *attrs)
{
    return make(rw, op, args, attrs, false);
}

lf_node lf_rw_copy(lf_rw *rw, const lf_node_info *info, const lf_node *args, bool fresh)
{
    if (info->op == LF_OP_constant)
        return lf_rw_full(rw, info->value, &info->shape);
    if (lf_op_row(info->op)->kind != LF_LEAF)
        return make(rw, info->op, args, info->attr, fresh);
    lf_node n = LF_NONE, found = ready(rw) && info->op == LF_OP_positions ? *entry_of(rw, info) : LF_NONE;
    if (found != LF_NONE)
        return found;
    return ready(rw) ? made(rw, lf_graph_leaf_like(rw->g, info, &n)) : LF_NONE;
}

bool lf_rw_alike(const lf_rw *rw, lf_node a, lf_node b)
{
    return a == b || same_node(lf_rw_at(rw, a), lf_rw_at(rw, b));
}

lf_node lf_rw_one(lf_rw *rw, lf_op op, lf_node x)
{
    const lf_node args[LF_MAX_ARGS] = {x, LF_NONE, LF_NONE, LF_NONE, LF_NONE};
    return lf_rw_make(rw, op, args, NULL);
}

lf_node lf_rw_two(lf_rw *rw, lf_op op, lf_node x, lf_node y)
{
    const lf_node args[LF_MAX_ARGS] = {x, y, LF_NONE, LF_NONE, LF_NONE};
    return lf_rw_make(rw, op, args, NULL);
}

lf_node lf_rw_like(lf_rw *rw, lf_node n, int slot, lf_node arg)
{
    lf_node_info info = *lf_rw_at(rw, n);
    info.arg[slot] = arg;
    return lf_rw_make(rw, info.op, info.arg, info.attr);
}

lf_node lf_rw_full(lf_rw *rw, double value, const lf_shape *shape)
{
    lf_node_info wanted = {.op = LF_OP_constant, .value = value, .shape = *shape};
    if (!ready(rw))
        return LF_NONE;
    lf_node found = *entry_of(rw, &wanted), n = LF_NONE;
    return found != LF_NONE ? found : made(rw, lf_graph_constant(rw->g, value, shape, &n));
}

lf_node lf_rw_number(lf_rw *rw, double value)
{
    return lf_rw_full(rw, value, &(lf_shape){.rank = 0});
}

lf_node lf_rw_linear(lf_rw *rw, lf_node x, lf_node weight, lf_node bias)
{
    const lf_node args[LF_MAX_ARGS] = {x, weight, bias, LF_NONE, LF_NONE};
    return lf_rw_make(rw, LF_OP_linear, args, NULL);
}

lf_node lf_rw_reduce(lf_rw *rw, lf_op op, lf_node x, unsigned axes, bool keepdim)
{
    lf_attr attrs[LF_MAX_ATTRS];
    lf_op_defaults(op, attrs);
    attrs[0].none = false;
    for (int i = 0; i < LF_MAX_RANK; i++)
        if (axes & 1u << i)
            attrs[0].list[attrs[0].count++] = i;
    attrs[1].number = keepdim;
    const lf_node args[LF_MAX_ARGS] = {x, LF_NONE, LF_NONE, LF_NONE, LF_NONE};
    return lf_rw_make(rw, op, args, attrs);
}

lf_node lf_rw_with(lf_rw *rw, lf_op op, lf_node x, double number)
{
    lf_attr attrs[LF_MAX_ATTRS];
    assert(lf_op_row(op)->attr_count == 1);
    lf_op_defaults(op, attrs);
    attrs[0].none = false;
    attrs[0].number = number;
    const lf_node args[LF_MAX_ARGS] = {x, LF_NONE, LF_NONE, LF_NONE, LF_NONE};
    return lf_rw_make(rw, op, args, attrs);
}

lf_node lf_rw_transpose(lf_rw *rw, lf_node x, int a, int b)
{
    lf_attr attrs[LF_MAX_ATTRS] = {{.number = a}, {.number = b}};
    const lf_node args[LF_MAX_ARGS] = {x, LF_NONE, LF_NONE, LF_NONE, LF_NONE};
    return lf_rw_make(rw, LF_OP_transpose, args, attrs);
}

lf_node lf_rw_clamp(lf_rw *rw, lf_node x, double low, double high)
{
    bool below = low == -INFINITY, above = high == INFINITY;
    if (below && above)
        return x;
    lf_attr attrs[LF_MAX_ATTRS] = {{.none = below, .number = below ? 0 : low},
                                   {.none = above, .number = above ? 0 : high}};
    const lf_node args[LF_MAX_ARGS] = {x, LF_NONE, LF_NONE, LF_NONE, LF_NONE};
    return lf_rw_make(rw, LF_OP_clamp, args, attrs);
}

/* ---- counting uses ---- */

/* What a rule made counts from the moment its answer is taken; a node replaced counts no more. Made nodes come after
 * their arguments, so following arguments that are not yet counted ends; the depth is what one rule makes, which is
 * bounded. */
void lf_rw_count(lf_rw *rw, lf_node n)
{
    if (rw->facts[n].counted)
        return;
    rw->facts[n].counted = true;
    for (int i = 0; i < LF_MAX_ARGS; i++) {
        lf_node arg = lf_rw_arg(rw, n, i);
        if (arg == LF_NONE)
            continue;
        rw->facts[arg].uses++;
        lf_rw_count(rw, arg);
    }
}

/* A chain of what is wanted no more can be as long as the graph: hence the stack. A node comes onto it when its last
 * use goes, so at most once. */
void lf_rw_release(lf_rw *rw, lf_node n)
{
    int32_t depth = 0;
    rw->stack[depth++] = n;
    while (depth > 0) {
        lf_node now = rw->stack[--depth];
        lf_rw_facts *s = &rw->facts[now];
        if (s->uses > 0 || s->watched || s->spared || !s->counted)
            continue;
        s->counted = false;
        for (int i = 0; i < LF_MAX_ARGS; i++) {
            lf_node arg = lf_rw_arg(rw, now, i);
            if (arg != LF_NONE && --rw->facts[arg].uses == 0)
                rw->stack[depth++] = arg;
        }
    }
}
