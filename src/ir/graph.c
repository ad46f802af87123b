/* SPDX-License-Identifier: Apache-2.0 */
/* The graph's storage: nodes, names, leaves, constants, outputs. */
#include "ir/graph.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* ---- names ---- */

/* Open addressing, linear probing, at most half full. A name that was made up gives way when the model claims it: a
 * number in a model's text makes a node, and its made-up name must not take v1 from whoever writes `v1 = ...`. */
struct lf_name_table {
    struct name_entry {
        lf_node node; /* LF_NONE where free */
        bool made_up;
    } *entry;
    uint32_t capacity; /* a power of two */
    uint32_t used;
};

static uint32_t hash_of(const char *name, size_t length)
{
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)name[i]) * 16777619u;
    return hash;
}

/* The entry that holds name, or the free one where it would go. */
static struct name_entry *entry_of(const lf_graph *g, const char *name, size_t length)
{
    struct lf_name_table *t = g->names;
    uint32_t i = hash_of(name, length) & (t->capacity - 1);
    while (t->entry[i].node != LF_NONE) {
        const char *held = g->node[t->entry[i].node].name;
        if (strlen(held) == length && memcmp(held, name, length) == 0)
            break;
        i = (i + 1) & (t->capacity - 1);
    }
    return &t->entry[i];
}

static bool names_resize(lf_graph *g, uint32_t capacity)
{
    struct lf_name_table *t = g->names, old = *t;
    struct name_entry *entry = lf_arena_array(g->arena, capacity, sizeof *entry);
    if (!entry)
        return false;
    for (uint32_t i = 0; i < capacity; i++)
        entry[i].node = LF_NONE;
    t->entry = entry;
    t->capacity = capacity;
    for (uint32_t i = 0; i < old.capacity; i++)
        if (old.entry[i].node != LF_NONE) {
            const char *name = g->node[old.entry[i].node].name;
            *entry_of(g, name, strlen(name)) = old.entry[i];
        }
    return true;
}

/* Room for two more names: one that comes and one that gives way to it. */
static bool names_reserve(lf_graph *g)
{
    struct lf_name_table *t = g->names;
    return t->used + 2 <= t->capacity / 2 || names_resize(g, t->capacity * 2);
}

/* A free name v<n>, or v<n>_<k> where that is taken. NULL when there is no memory. */
static const char *free_name(lf_graph *g, lf_node n)
{
    char name[32];
    snprintf(name, sizeof name, "v%d", (int)n);
    for (int k = 1; entry_of(g, name, strlen(name))->node != LF_NONE; k++)
        snprintf(name, sizeof name, "v%d_%d", (int)n, k);
    return lf_arena_strndup(g->arena, name, strlen(name));
}

/* Gives node n, which is stored already, its name; NULL: one is made up. The name is free or made up. */
static lf_status claim_name(lf_graph *g, lf_node n, const char *name)
{
    if (!names_reserve(g))
        return lf_fail_nomem(g->diag, "the graph's names");
    const char *kept = name ? lf_arena_strndup(g->arena, name, strlen(name)) : free_name(g, n);
    if (!kept)
        return lf_fail_nomem(g->diag, "a name");
    struct name_entry *e = entry_of(g, kept, strlen(kept));
    lf_node displaced = e->node;
    if (displaced != LF_NONE) {
        const char *other = free_name(g, displaced);
        if (!other)
            return lf_fail_nomem(g->diag, "a name");
        *entry_of(g, other, strlen(other)) = (struct name_entry){displaced, true};
        g->node[displaced].name = other;
    }
    *e = (struct name_entry){n, !name};
    g->node[n].name = kept;
    g->names->used++;
    return LF_OK;
}

static bool letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '.';
}

static lf_status check_spelling(lf_graph *g, const char *what, const char *name, size_t length)
{
    if (length == 0)
        return lf_fail(g->diag, LF_ERR_MODEL, "%s has an empty name", what);
    if (length > LF_MAX_NAME)
        return lf_fail(g->diag, LF_ERR_MODEL, "%s has a name of %zu characters; %d are allowed", what, length,
                       (int)LF_MAX_NAME);
    bool number = name[0] == '.' && length > 1 && name[1] >= '0' && name[1] <= '9'; /* .5 reads as one */
    bool fine = letter(name[0]) && !number;
    for (size_t i = 1; i < length; i++)
        fine = fine && (letter(name[i]) || (name[i] >= '0' && name[i] <= '9'));
    if (!fine)
        return lf_fail(g->diag, LF_ERR_MODEL,
                       "'%.*s' is no name for %s: letters, digits, '_' and '.', not starting with a digit", (int)length,
                       name, what);
    return LF_OK;
}

static lf_status check_name(lf_graph *g, const char *name)
{
    size_t length = strlen(name);
    lf_status status = check_spelling(g, "a value", name, length);
    if (status)
        return status;
    static const char *const words[] = {"true", "True", "false", "False", "None", "none", "inf", "nan"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(name, words[i]) == 0)
            return lf_fail(g->diag, LF_ERR_MODEL, "%s has a meaning of its own in a model's text and names no value",
                           name);
    if (lf_graph_find(g, name, length) != LF_NONE)
        return lf_fail(g->diag, LF_ERR_MODEL, "the name %s is taken; a name is bound once", name);
    return LF_OK;
}

/* Made-up names are not found: a text must not reach a value it has not named. */
lf_node lf_graph_find(const lf_graph *g, const char *name, size_t length)
{
    const struct name_entry *e = entry_of(g, name, length);
    return e->made_up ? LF_NONE : e->node;
}

lf_node lf_graph_named(const lf_graph *g, const char *name)
{
    return entry_of(g, name, strlen(name))->node;
}

/* ---- storage ---- */

enum { FIRST_NODES = 32, FIRST_NAMES = 128, FIRST_PORTS = 8 };

lf_status lf_graph_init(lf_graph *g, lf_arena *arena, lf_diag *diag)
{
    *g = (lf_graph){.arena = arena, .diag = diag};
    g->names = lf_arena_alloc(arena, sizeof *g->names);
    g->node = lf_arena_array(arena, FIRST_NODES, sizeof *g->node);
    if (!g->names || !g->node || !names_resize(g, FIRST_NAMES))
        return lf_fail_nomem(diag, "a graph");
    g->capacity = FIRST_NODES;
    return LF_OK;
}

static lf_status append(lf_graph *g, const lf_node_info *info, const char *name, lf_node *out)
{
    if (g->count >= LF_MAX_NODES)
        return lf_fail(g->diag, LF_ERR_MODEL, "more than %d values in one model", (int)LF_MAX_NODES);
    if (g->count == g->capacity) {
        lf_node_info *bigger = lf_arena_array(g->arena, (size_t)g->capacity * 2, sizeof *bigger);
        if (!bigger)
            return lf_fail_nomem(g->diag, "the graph's nodes");
        memcpy(bigger, g->node, (size_t)g->count * sizeof *bigger);
        g->node = bigger;
        g->capacity *= 2;
    }
    g->node[g->count] = *info;
    lf_status status = claim_name(g, g->count, name);
    if (status)
        return status;
    *out = g->count++;
    return LF_OK;
}

/* Ports grow by doubling: a count of FIRST_PORTS * 2^k is a full array. */
static lf_status push(lf_graph *g, lf_node **ports, int32_t *count, lf_node n)
{
    bool full = *count == 0 || (*count >= FIRST_PORTS && (*count & (*count - 1)) == 0);
    if (full) {
        size_t room = *count ? (size_t)*count * 2 : FIRST_PORTS;
        lf_node *bigger = lf_arena_array(g->arena, room, sizeof *bigger);
        if (!bigger)
            return lf_fail_nomem(g->diag, "the graph's inputs");
        if (*count)
            memcpy(bigger, *ports, (size_t)*count * sizeof *bigger);
        *ports = bigger;
    }
    (*ports)[(*count)++] = n;
    return LF_OK;
}

lf_status lf_graph_symbol(lf_graph *g, const char *name, size_t length, int *out)
{
    for (int s = 0; s < g->symbols; s++)
        if (strlen(g->symbol[s]) == length && memcmp(g->symbol[s], name, length) == 0) {
            *out = s;
            return LF_OK;
        }
    lf_status status = check_spelling(g, "an extent", name, length);
    if (status)
        return status;
    if (g->symbols == LF_MAX_SYMBOLS)
        return lf_fail(g->diag, LF_ERR_MODEL, "extent %.*s is one named extent too many; a model has at most %d",
                       (int)length, name, (int)LF_MAX_SYMBOLS);
    const char *kept = lf_arena_strndup(g->arena, name, length);
    if (!kept)
        return lf_fail_nomem(g->diag, "a name");
    g->symbol[g->symbols] = kept;
    *out = g->symbols++;
    return LF_OK;
}

/* ---- leaves ---- */

static lf_status check_extents(lf_graph *g, const char *name, const lf_shape *shape)
{
    if (shape->rank < 0 || shape->rank > LF_MAX_RANK)
        return lf_fail(g->diag, LF_ERR_MODEL, "%s has %d extents; at most %d are allowed", name, shape->rank,
                       (int)LF_MAX_RANK);
    for (int i = 0; i < shape->rank; i++)
        if (shape->dim[i].coef < 1)
            return lf_fail(g->diag, LF_ERR_MODEL, "extent %d of %s is %lld; an extent is a positive number", i, name,
                           (long long)shape->dim[i].coef);
    lf_extent all;
    if (!lf_shape_elements(shape, &all) || all.coef > LF_MAX_ELEMENTS)
        return lf_fail(g->diag, LF_ERR_MODEL, "%s %s has too many elements", name, lf_shape_text(g, shape));
    return LF_OK;
}

/* A number, or one name: what an input's extent can be learnt from. */
static bool plain(lf_extent e)
{
    int names = 0;
    for (int s = 0; s < LF_MAX_SYMBOLS; s++)
        names += e.pow[s];
    return names == 0 || (names == 1 && e.coef == 1);
}

lf_status lf_graph_leaf(lf_graph *g, lf_op op, const char *name, lf_dtype dtype, const lf_shape *shape, lf_node *out)
{
    assert(op == LF_OP_input || op == LF_OP_param);
    lf_status status = check_name(g, name);
    if (!status)
        status = check_extents(g, name, shape);
    if (status)
        return status;
    for (int i = 0; i < shape->rank; i++) {
        if (op == LF_OP_param && !lf_extent_known(shape->dim[i]))
            return lf_fail(g->diag, LF_ERR_MODEL, "parameter %s %s: every extent of a parameter is a number", name,
                           lf_shape_text(g, shape));
        if (!plain(shape->dim[i]))
            return lf_fail(g->diag, LF_ERR_MODEL, "input %s %s: an extent is a number or one name", name,
                           lf_shape_text(g, shape));
    }
    lf_node_info info = {.op = op, .dtype = dtype, .shape = *shape};
    for (int i = 0; i < LF_MAX_ARGS; i++)
        info.arg[i] = LF_NONE;
    lf_node **ports = op == LF_OP_input ? &g->input : &g->param;
    int32_t *count = op == LF_OP_input ? &g->inputs : &g->params;
    status = push(g, ports, count, g->count);
    if (status)
        return status;
    status = append(g, &info, name, out);
    if (status)
        (*count)--; /* the graph stays as it was */
    return status;
}

lf_status lf_graph_constant(lf_graph *g, double value, const lf_shape *shape, lf_node *out)
{
    lf_status status = check_extents(g, "a constant", shape);
    if (status)
        return status;
    lf_node_info info = {.op = LF_OP_constant, .dtype = LF_F32, .shape = *shape, .value = value};
    for (int i = 0; i < LF_MAX_ARGS; i++)
        info.arg[i] = LF_NONE;
    return append(g, &info, NULL, out);
}

lf_status lf_graph_positions(lf_graph *g, lf_extent count, lf_node *out)
{
    assert(lf_extent_known(count) && count.coef >= 1);
    lf_node_info info = {.op = LF_OP_positions, .dtype = LF_F32, .shape = {.rank = 1, .dim = {count}}};
    for (int i = 0; i < LF_MAX_ARGS; i++)
        info.arg[i] = LF_NONE;
    return append(g, &info, NULL, out);
}

lf_status lf_graph_leaf_like(lf_graph *g, const lf_node_info *like, lf_node *out)
{
    if (like->op == LF_OP_constant)
        return lf_graph_constant(g, like->value, &like->shape, out);
    if (like->op == LF_OP_positions)
        return lf_graph_positions(g, like->shape.dim[0], out);
    return lf_graph_leaf(g, like->op, like->name, like->dtype, &like->shape, out);
}

/* ---- ops ---- */

void lf_op_defaults(lf_op op, lf_attr *attrs)
{
    const lf_op_info *row = lf_op_row(op);
    memset(attrs, 0, LF_MAX_ATTRS * sizeof *attrs);
    for (int i = 0; i < row->param_count; i++) {
        const lf_param_info *p = &row->param[i];
        if (p->type == 'T' || p->type == 'V')
            continue;
        attrs[p->slot].number = p->number;
        attrs[p->slot].none = p->none || !p->has_default;
    }
}

lf_status lf_graph_op(lf_graph *g, const char *name, lf_op op, const lf_node *args, const lf_attr *attrs, lf_node *out)
{
    const lf_op_info *row = lf_op_row(op);
    assert(row->kind != LF_LEAF);
    lf_attr defaults[LF_MAX_ATTRS];
    if (!attrs) {
        lf_op_defaults(op, defaults);
        attrs = defaults;
    }
    lf_node_info info = {.op = op};
    for (int i = 0; i < LF_MAX_ARGS; i++)
        info.arg[i] = i < row->arg_count ? args[i] : LF_NONE;
    lf_status status = name ? check_name(g, name) : LF_OK;
    if (!status)
        status = lf_infer(g, op, info.arg, attrs, &info.dtype, &info.shape);
    if (status)
        return status;
    if (row->attr_count > 0) {
        lf_attr *kept = lf_arena_array(g->arena, (size_t)row->attr_count, sizeof *kept);
        if (!kept)
            return lf_fail_nomem(g->diag, "an op's attributes");
        memcpy(kept, attrs, (size_t)row->attr_count * sizeof *kept);
        info.attr = kept;
    }
    return append(g, &info, name, out);
}

lf_status lf_graph_return(lf_graph *g, const lf_node *nodes, size_t count)
{
    if (count == 0 || count > LF_MAX_NODES)
        return lf_fail(g->diag, LF_ERR_MODEL, "a model returns between 1 and %d values, not %zu", (int)LF_MAX_NODES,
                       count);
    lf_node *output = lf_arena_array(g->arena, count, sizeof *output);
    if (!output)
        return lf_fail_nomem(g->diag, "the graph's outputs");
    for (size_t i = 0; i < count; i++) {
        if (nodes[i] < 0 || nodes[i] >= g->count)
            return lf_fail(g->diag, LF_ERR_ARG, "return: value %d is not one of this model's", (int)nodes[i]);
        output[i] = nodes[i];
    }
    g->output = output;
    g->outputs = (int32_t)count;
    return LF_OK;
}
