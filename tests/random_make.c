/* SPDX-License-Identifier: Apache-2.0 */
/* Random models over the whole op table. Nothing here knows an op by name: what an op is given follows from its kind
 * and from the types and names of its parameters, and whatever does not fit is refused by the reader and thrown
 * away. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random_model.h"

enum { MOST_OPS = 14, MOST_PRODUCTS = 3, MOST_RANK = 4, CALL = 512 };
static const int64_t MOST_ELEMENTS[2] = {6000, 50000};  /* of a value, in a small and in a large model */
static const double MOST_WORK[2] = {4e5, 4e6};          /* multiply-adds of a product */

/* ---- drawing numbers ---- */

int64_t rnd_size(rnd_maker *m, int64_t most)
{
    static const int16_t sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 8, 9, 12, 15, 16, 16, 17, 24, 31,
                                    32, 33, 63, 64, 65, 129, 257, 255, 256, 300, 513, 770, 1025};
    for (int i = 0; i < 16; i++) {
        int64_t size = sizes[rnd_below(&m->r, m->large ? 30 : 24)];
        if (size <= most)
            return size;
    }
    return 1;
}

double rnd_number(rnd_maker *m)
{
    static const double numbers[] = {0, 1, -1, 2, 0.5, -0.5, 0.01, 3, -2, 1.5, 0.125, 10, -7};
    return rnd_chance(&m->r, 0.7) ? numbers[rnd_below(&m->r, sizeof numbers / sizeof numbers[0])]
                                  : 0.01 * (rnd_below(&m->r, 401) - 200);
}

/* ---- appending ---- */

static void forget(rnd_maker *m, lf_node from)
{
    for (lf_node n = from; n < RND_NODES; n++) {
        free(m->value[n]);
        m->value[n] = NULL;
    }
}

/* Computes the values of nodes that are new: all before them are known and stand as inputs. */
static bool learn_values(rnd_maker *m, lf_node from)
{
    lf_graph *g = &m->read.g;
    lf_bound bound[RND_NODES] = {{0}};
    lf_graph copy = *g;
    copy.node = lf_arena_array(&m->read.arena, (size_t)g->count, sizeof *copy.node);
    if (!copy.node)
        return false;
    memcpy(copy.node, g->node, (size_t)g->count * sizeof *copy.node);
    for (lf_node n = 0; n < g->count; n++) {
        int64_t count = rnd_count(&m->read, n);
        if (n >= from) {
            m->value[n] = malloc(sizeof(double) * (size_t)(count + 1));
            if (!m->value[n])
                return false;
            const lf_node_info *info = lf_at(g, n);
            if (info->op == LF_OP_input || info->op == LF_OP_param) {
                float *data = lf_arena_array(&m->read.arena, (size_t)count + 1, sizeof *data);
                int rank = info->shape.rank;
                rnd_fill(m->c->seed, info->name, count,
                         rank ? lf_extent_at(info->shape.dim[rank - 1], m->read.dims) : 1, data);
                for (int64_t i = 0; i < count; i++)
                    m->value[n][i] = (double)data[i];
            } else if (lf_eval(&copy, m->read.dims, bound, &n, 1, &m->value[n], &m->read.diag) != LF_OK) {
                return false;
            }
        }
        bound[n] = (lf_bound){.f64 = m->value[n]};
        if (copy.node[n].op != LF_OP_constant)
            copy.node[n].op = LF_OP_input;
    }
    return true;
}

/* Numbers that a model's author would want: mostly finite, neither huge nor vanishing. */
static bool sensible(rnd_maker *m, lf_node n)
{
    double most = 0;
    for (int64_t i = 0, count = rnd_count(&m->read, n); i < count; i++)
        most = isfinite(m->value[n][i]) ? fmax(most, fabs(m->value[n][i])) : INFINITY;
    return (most < 1e4 && (most == 0.0 || most > 1e-6)) || rnd_chance(&m->r, 0.02);
}

static bool reread(rnd_maker *m, const char *end)
{
    size_t length = strlen(m->c->text);
    if (length + strlen(end) + 1 > RND_TEXT)
        return false;
    strcpy(m->c->text + length, end);
    rnd_graph_free(&m->read);
    bool ok = rnd_graph_read(m->c, &m->read) == LF_OK && m->read.g.count < RND_NODES;
    m->c->text[length] = 0;
    return ok;
}

static void note_nodes(rnd_maker *m, lf_node from)
{
    const lf_graph *g = &m->read.g;
    for (lf_node n = from; n < g->count; n++) {
        if (lf_at(g, n)->op == LF_OP_constant)
            continue;
        m->node[m->nodes++] = n;
        for (int i = 0; i < LF_MAX_ARGS; i++)
            if (lf_at(g, n)->arg[i] != LF_NONE)
                m->used[lf_at(g, n)->arg[i]] = true;
    }
    m->products += lf_kind_of(g, g->count - 1) == LF_PRODUCT;
}

/* As rnd_append; without a call only the leaves are new. */
static bool append(rnd_maker *m, const char *call)
{
    char line[CALL + 64] = "", end[96];
    size_t before = strlen(m->c->text);
    lf_node known = before ? m->read.g.count : 0;
    if (call)
        snprintf(line, sizeof line, "v%d = %s\n", m->ops, call);
    if (before + strlen(m->lines) + strlen(line) + 128 > RND_TEXT)
        return false;
    strcat(m->c->text, m->lines);
    strcat(m->c->text, line);
    m->lines[0] = 0;
    if (call)
        snprintf(end, sizeof end, "return v%d\n", m->ops);
    else
        snprintf(end, sizeof end, "return l0\n");
    bool ok = reread(m, end);
    if (ok && call) {
        lf_node n = m->read.g.count - 1;
        ok = lf_at(&m->read.g, n)->shape.rank <= MOST_RANK && rnd_count(&m->read, n) <= MOST_ELEMENTS[m->large];
    }
    ok = ok && learn_values(m, known) && (!call || sensible(m, m->read.g.count - 1));
    if (ok) {
        note_nodes(m, known);
        m->ops += call != NULL;
        return true;
    }
    forget(m, known);
    m->c->text[before] = 0;
    if (before) {
        snprintf(end, sizeof end, "return %s\n", m->ops ? lf_arena_printf(&m->read.arena, "v%d", m->ops - 1) : "l0");
        reread(m, end);
    }
    return false;
}

bool rnd_append(rnd_maker *m, const char *call) { return append(m, call); }

/* ---- leaves ---- */

const char *rnd_leaf(rnd_maker *m, bool param, const lf_shape *shape, const char *style)
{
    char extents[128] = "";
    for (int i = 0; i < shape->rank; i++) {
        const char *text = lf_extent_text(&m->read.g, shape->dim[i]);
        if ((param && !lf_extent_known(shape->dim[i])) || strchr(text, '*') || strlen(extents) + strlen(text) > 100)
            return NULL;
        strcat(strcat(extents, i ? ", " : ""), text);
    }
    const char *name = lf_arena_printf(&m->read.arena, "l%d%s", m->leaves++, style);
    snprintf(m->lines + strlen(m->lines), sizeof m->lines - strlen(m->lines), "%s %s f32[%s]\n",
             param ? "param" : "input", name, extents);
    return name;
}

static const char *any_style(rnd_maker *m)
{
    static const char *const styles[] = {"", "", ".unit", ".pos", ".pos", ".wide", ".int", ".far"};
    int far = rnd_chance(&m->r, 0.2) ? 8 : 7;
    return styles[rnd_below(&m->r, far)];
}

static bool all_known(const lf_shape *s)
{
    for (int i = 0; i < s->rank; i++)
        if (!lf_extent_known(s->dim[i]))
            return false;
    return true;
}

const char *rnd_weight(rnd_maker *m, lf_node x, bool kn)
{
    const lf_shape *s = &lf_at(&m->read.g, x)->shape;
    if (s->rank < 2 || m->products >= MOST_PRODUCTS)
        return NULL;
    lf_extent k = s->dim[s->rank - 1], n;
    double work = (double)rnd_count(&m->read, x);
    n = lf_extent_of(rnd_size(m, (int64_t)(MOST_WORK[m->large] / work)));
    if (m->read.g.symbols > 1 && rnd_chance(&m->r, 0.05))
        n = (lf_extent){.coef = 1, .pow = {0, 1}};
    lf_shape w = {.rank = 2, .dim = {kn ? k : n, kn ? n : k}};
    return rnd_leaf(m, all_known(&w) && rnd_chance(&m->r, 0.85), &w, ".w");
}

/* Something to stand beside a value of that shape: [N], [M, 1], [1, N], all of it, a part of its axes, one number, or
 * itself. */
static const char *operand(rnd_maker *m, lf_node x)
{
    lf_shape s = lf_at(&m->read.g, x)->shape;
    int form = rnd_below(&m->r, 12), drop = 0;
    if (form < 3 || s.rank == 0)
        return lf_arena_printf(&m->read.arena, "%.9g", rnd_number(m));
    if (form == 3)
        return lf_at(&m->read.g, x)->name;
    if (form < 6)
        return lf_at(&m->read.g, m->node[rnd_below(&m->r, m->nodes)])->name;
    for (int i = 0; i < s.rank; i++) {
        bool keep = form == 6 ? i == s.rank - 1 : form == 7 ? i == 0 : form == 8 || rnd_chance(&m->r, 0.5);
        if (!keep || strchr(lf_extent_text(&m->read.g, s.dim[i]), '*'))
            s.dim[i] = lf_extent_of(1);
    }
    while (drop < s.rank && lf_extent_is(s.dim[drop], 1) && rnd_chance(&m->r, 0.6))
        drop++;
    for (int i = drop; i < s.rank; i++)
        s.dim[i - drop] = s.dim[i];
    s.rank -= drop;
    if (form == 11 && s.rank > 0 && s.rank < MOST_RANK && rnd_chance(&m->r, 0.3)) { /* it widens the value */
        for (int i = s.rank++; i > 0; i--)
            s.dim[i] = s.dim[i - 1];
        s.dim[0] = lf_extent_of(rnd_size(m, 4));
    }
    return rnd_leaf(m, all_known(&s) && rnd_chance(&m->r, 0.6), &s, any_style(m));
}

/* ---- what an op is given ---- */

/* A vector of a normalization: as long as what is normalized, or as there are channels. */
static const char *vector(rnd_maker *m, const lf_op_info *row, lf_node x, const lf_param_info *p, int trailing)
{
    const lf_shape *s = &lf_at(&m->read.g, x)->shape;
    lf_shape v = {.rank = 1, .dim = {s->rank > 1 ? s->dim[1] : lf_extent_of(1)}};
    for (int i = 0; i < row->param_count; i++)
        if (strcmp(row->param[i].name, "normalized_shape") == 0 && s->rank >= trailing) {
            v.rank = trailing;
            memcpy(v.dim, s->dim + s->rank - trailing, (size_t)trailing * sizeof *v.dim);
        }
    bool variance = strstr(p->name, "var") != NULL;
    return rnd_leaf(m, all_known(&v) && rnd_chance(&m->r, 0.9), &v, variance ? ".pos" : any_style(m));
}

static const char *number_for(rnd_maker *m, const char *name)
{
    static const struct { const char *name; double low, high; } ranges[] = {
        {"eps", 1e-6, 0.1}, {"negative_slope", -0.2, 1.6}, {"alpha", 0.2, 2}, {"beta", 0.5, 2}, {"threshold", 5, 20},
        {"p", 0, 0.9}, {"min_val", -2, 0}, {"max_val", 0, 2},
    };
    static const double exponents[] = {2, 2, 3, 1, 0, 0.5, -1, 1.5, -2};
    if (strcmp(name, "exponent") == 0)
        return lf_arena_printf(&m->read.arena, "%g", exponents[rnd_below(&m->r, 9)]);
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (strcmp(name, ranges[i].name) == 0 && rnd_chance(&m->r, 0.9))
            return lf_arena_printf(&m->read.arena, "%.4g",
                                   ranges[i].low + lf_rng_unit(&m->r) * (ranges[i].high - ranges[i].low));
    return lf_arena_printf(&m->read.arena, "%.9g", rnd_number(m));
}

/* An end of a slice, from either side; now and then past the last element. */
static int64_t slice_end(rnd_maker *m, const lf_shape *s)
{
    const int64_t extent = s->rank > 0 ? s->dim[s->rank - 1].coef : 1, at = rnd_below(&m->r, (int)extent + 2);
    return rnd_chance(&m->r, 0.3) ? at - extent : at;
}

static int64_t integer_for(rnd_maker *m, const char *name, const lf_shape *s)
{
    int rank = s->rank;
    if (strcmp(name, "start") == 0 || strcmp(name, "end") == 0)
        return slice_end(m, s);
    if (strcmp(name, "step") == 0)
        return 1 + rnd_below(&m->r, 3);
    if (strcmp(name, "kernel_size") == 0)
        return m->kernel = 1 + rnd_below(&m->r, 5);
    if (strcmp(name, "stride") == 0 || strcmp(name, "dilation") == 0)
        return 1 + rnd_below(&m->r, 3);
    if (strcmp(name, "padding") == 0)
        return rnd_below(&m->r, (int)(m->kernel / 2 + 1));
    if (strcmp(name, "num_groups") == 0) {
        int64_t channels = rank > 1 ? s->dim[1].coef : 1, groups = 1 + rnd_below(&m->r, 8);
        while (channels % groups)
            groups--;
        return groups;
    }
    return rnd_below(&m->r, 2 * rank + 2) - rank - (rank > 0); /* an axis, from either end; sometimes one past */
}

/* A shape with the elements of s: axes merged, cut, or left; names go where the -1 is. */
static const char *reshaped(rnd_maker *m, const lf_shape *s)
{
    char list[128] = "";
    int open = -1;
    for (int i = 0; i < s->rank; i++)
        open = !lf_extent_known(s->dim[i]) ? i : open;
    for (int i = 0, first = 1; i < s->rank; i++) {
        char one[64];
        int64_t size = s->dim[i].coef;
        if (i == open || (i + 1 == s->rank && open < 0 && rnd_chance(&m->r, 0.3))) {
            snprintf(one, sizeof one, "-1");
            open = i;
        } else if (!lf_extent_known(s->dim[i]) || (i + 1 < s->rank && i + 1 == open && rnd_chance(&m->r, 0.3))) {
            continue; /* swallowed by the -1 */
        } else if (i + 1 < s->rank && lf_extent_known(s->dim[i + 1]) && i + 1 != open && rnd_chance(&m->r, 0.3)) {
            snprintf(one, sizeof one, "%lld", (long long)(size * s->dim[++i].coef));
        } else {
            int64_t cut = 1 + rnd_below(&m->r, 6);
            if (size % cut == 0 && rnd_chance(&m->r, 0.6))
                snprintf(one, sizeof one, "%lld, %lld", (long long)cut, (long long)(size / cut));
            else
                snprintf(one, sizeof one, "%lld", (long long)size);
        }
        strcat(strcat(list, first ? "" : ", "), one);
        first = 0;
    }
    return lf_arena_printf(&m->read.arena, "[%s]", list);
}

static const char *list_for(rnd_maker *m, const char *name, const lf_shape *s, int trailing)
{
    char list[128] = "";
    if (strcmp(name, "shape") == 0)
        return reshaped(m, s);
    bool lengths = strcmp(name, "normalized_shape") == 0;
    for (int i = 0, first = 1; i < s->rank; i++) {
        char one[32];
        if (lengths ? i < s->rank - trailing : !rnd_chance(&m->r, i + 1 == s->rank ? 0.7 : i == 0 ? 0.08 : 0.3))
            continue;
        int64_t axis = rnd_chance(&m->r, 0.5) ? i : i - s->rank;
        snprintf(one, sizeof one, "%s%lld", first ? "" : ", ", (long long)(lengths ? s->dim[i].coef : axis));
        strcat(list, one);
        first = 0;
    }
    bool bare = !strchr(list, ',') && *list && rnd_chance(&m->r, 0.7);
    return lf_arena_printf(&m->read.arena, bare ? "%s" : "[%s]", list);
}

static const char *attribute(rnd_maker *m, const lf_param_info *p, const lf_shape *s, int trailing)
{
    if (p->optional && rnd_chance(&m->r, p->type == 'L' ? 0.05 : 0.3))
        return "None";
    switch (p->type) {
    case 'F': return number_for(m, p->name);
    case 'I': return lf_arena_printf(&m->read.arena, "%lld", (long long)integer_for(m, p->name, s));
    case 'B': return rnd_chance(&m->r, 0.5) ? "true" : "false";
    case 'S': { /* a type: f32, until others can be run */
        const int choices = strcmp(p->name, "dtype") == 0 ? 1 : p->choices;
        return lf_arena_printf(&m->read.arena, "\"%s\"", p->choice[rnd_below(&m->r, choices)]);
    }
    default: return list_for(m, p->name, s, trailing);
    }
}

static const char *argument(rnd_maker *m, const lf_op_info *row, const lf_param_info *p, lf_node x, int trailing)
{
    if (p->slot == 0 && (p->type == 'T' || rnd_chance(&m->r, 0.85)))
        return lf_at(&m->read.g, x)->name;
    if (p->optional && rnd_chance(&m->r, strstr(p->name, "running") ? 0.2 : 0.4))
        return "None";
    if (row->kind == LF_PRODUCT && p->slot == 1)
        return rnd_weight(m, x, strcmp(p->name, "weight") != 0);
    if (row->kind == LF_PRODUCT) { /* a bias: as long as the weight just drawn */
        char n[24];
        const char *w = strrchr(m->lines, '[');
        if (!w || sscanf(w, "[%23[^],]", n) != 1)
            return "None";
        snprintf(m->lines + strlen(m->lines), sizeof m->lines - strlen(m->lines), "%s l%d f32[%s]\n",
                 n[0] < 'A' ? "param" : "input", m->leaves, n);
        return lf_arena_printf(&m->read.arena, "l%d", m->leaves++);
    }
    if (row->kind == LF_NORMALIZE)
        return vector(m, row, x, p, trailing);
    return operand(m, x);
}

/* Proposes op(x, ...). */
static bool propose(rnd_maker *m, const lf_op_info *row, lf_node x)
{
    const lf_shape s = lf_at(&m->read.g, x)->shape;
    int trailing = s.rank > 1 && rnd_chance(&m->r, 0.3) ? 2 : 1;
    char call[CALL];
    size_t used = (size_t)snprintf(call, sizeof call, "%s(", row->name);
    bool positional = true;
    m->lines[0] = 0;
    for (int i = 0; i < row->param_count; i++) {
        const lf_param_info *p = &row->param[i];
        bool value = p->type == 'T' || p->type == 'V';
        bool all_axes = p->type == 'L' && p->none; /* what is reduced over everything is seldom what anyone wants */
        if (!value && p->has_default && rnd_chance(&m->r, all_axes ? 0.04 : 0.45)) {
            positional = false;
            continue;
        }
        const char *text = value ? argument(m, row, p, x, trailing) : attribute(m, p, &s, trailing);
        if (!text || used + strlen(text) + 32 > sizeof call)
            return false;
        positional = positional && (value || rnd_chance(&m->r, 0.6));
        used += (size_t)snprintf(call + used, sizeof call - used, "%s%s%s%s", i ? ", " : "", positional ? "" : p->name,
                                 positional ? "" : "=", text);
    }
    snprintf(call + used, sizeof call - used, ")");
    return rnd_append(m, call);
}

static lf_node pick(rnd_maker *m)
{
    lf_node n = m->node[m->nodes - 1];
    for (int tries = rnd_chance(&m->r, 0.3) ? 4 : 0; tries > 0; tries--) {
        n = m->node[rnd_below(&m->r, m->nodes)];
        /* what is made of parameters alone is prepared, not run: now and then */
        if (lf_at(&m->read.g, n)->op != LF_OP_param)
            break;
    }
    return n;
}

/* Ops that came after the others: what a seed gives without them stays as it was. */
static bool is_late(lf_op op)
{
    static const char *const names[] = {"slice", "gt", "lt", "ge", "le", "eq", "ne", "logical_and", "logical_or",
                                        "logical_not", "where"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(lf_op_row(op)->name, names[i]) == 0)
            return true;
    return false;
}

static int weight_of(lf_op op, bool late)
{
    static const int weight[] = {[LF_PRODUCT] = 4, [LF_POINTWISE] = 2, [LF_REDUCE] = 3, [LF_NORMALIZE] = 2,
                                 [LF_POOL] = 2, [LF_VIEW] = 1, [LF_MOVE] = 2, [LF_GUARD] = 0};
    return lf_op_public(op) && is_late(op) == late ? weight[lf_op_row(op)->kind] : 0;
}

static const lf_op_info *draw_op(rnd_maker *m, bool late)
{
    int all = 0;
    for (int op = 0; op < LF_OP_COUNT; op++)
        all += weight_of((lf_op)op, late);
    int at = rnd_below(&m->r, all), op = 0;
    for (; (at -= weight_of((lf_op)op, late)) >= 0; op++)
        ;
    return lf_op_row((lf_op)op);
}

/* Goes on with late ops, and others of what they gave, in a share of the models and with numbers of its own. */
static void add_late(rnd_maker *m, uint64_t seed)
{
    const lf_rng before = m->r;
    m->r = lf_rng_seed(seed, "late");
    const int wanted = rnd_chance(&m->r, 0.4) ? m->ops + 1 + rnd_below(&m->r, 6) : 0;
    for (int tries = 0; tries < 6 * MOST_OPS && m->ops < wanted; tries++)
        propose(m, draw_op(m, rnd_chance(&m->r, 0.5)), pick(m));
    m->r = before;
}

/* ---- the whole ---- */

static bool begin(rnd_maker *m)
{
    static const int16_t batches[] = {1,  2,  3,  4,  5,   7,   8,   9,   16,  17,  31, 33,
                                      64, 65, 67, 96, 127, 128, 129, 255, 257, 300, 521};
    m->c->b = batches[rnd_below(&m->r, m->large ? 23 : 17)];
    m->c->s = 1 + rnd_below(&m->r, 6);
    int rank = 2 + (rnd_chance(&m->r, 0.35) ? 1 + rnd_chance(&m->r, 0.3) : 0);
    bool named = rnd_chance(&m->r, 0.9), second = rank > 2 && rnd_chance(&m->r, 0.3);
    char extents[96];
    int64_t left = MOST_ELEMENTS[m->large] / (named ? m->c->b : 8);
    size_t used = (size_t)(named ? snprintf(extents, sizeof extents, "B")
                                 : snprintf(extents, sizeof extents, "%d", 1 + rnd_below(&m->r, 9)));
    for (int i = 1; i < rank; i++) {
        int64_t size = rnd_size(m, i + 1 < rank && left > 8 ? 8 : left);
        if (i == 1 && second)
            used += (size_t)snprintf(extents + used, sizeof extents - used, ", S");
        else
            used += (size_t)snprintf(extents + used, sizeof extents - used, ", %lld", (long long)size);
        left /= i == 1 && second ? m->c->s : size;
    }
    snprintf(m->lines, sizeof m->lines, "input l0 f32[%s]\n", extents);
    m->leaves = 1;
    return append(m, NULL);
}

/* Returns what nothing else reads, and now and then something on the way, a leaf, or a value twice. */
static bool end(rnd_maker *m)
{
    char line[512] = "return ";
    int count = 0;
    for (int i = m->nodes - 1; i >= 0; i--) {
        const lf_node_info *info = lf_at(&m->read.g, m->node[i]);
        bool leaf = info->op == LF_OP_input || info->op == LF_OP_param;
        double chance = i == m->nodes - 1 ? 1.0 : leaf ? 0.01 : m->used[m->node[i]] ? 0.08 : 0.7;
        for (int twice = 0; twice < 2 && count < 6; twice++) {
            if (!rnd_chance(&m->r, twice ? 0.02 : chance))
                break;
            snprintf(line + strlen(line), sizeof line - strlen(line), "%s%s", count ? ", " : "", info->name);
            count++;
        }
    }
    strcat(line, "\n");
    if (strlen(m->c->text) + strlen(line) + 1 > RND_TEXT)
        return false;
    strcat(m->c->text, line);
    return true;
}

bool rnd_make(uint64_t seed, rnd_case *c)
{
    rnd_maker m = {.c = c, .r = lf_rng_seed(seed, "model")};
    m.large = rnd_chance(&m.r, 0.06);
    c->seed = seed;
    c->text[0] = 0;
    int wanted = 1 + rnd_below(&m.r, MOST_OPS);
    bool ok = begin(&m);
    if (ok && rnd_chance(&m.r, 0.45)) { /* a product early on: it is what all this is about */
        lf_op linear;
        ok = lf_op_find("linear", 6, &linear);
        propose(&m, lf_op_row(linear), m.node[0]);
    } else if (ok && rnd_chance(&m.r, 0.6)) {
        rnd_pattern(&m);
    }
    for (int tries = 0; ok && tries < 12 * MOST_OPS && m.ops < wanted; tries++) {
        if (rnd_chance(&m.r, 0.15))
            rnd_pattern(&m);
        else
            propose(&m, draw_op(&m, false), pick(&m));
    }
    if (ok)
        add_late(&m, seed);
    ok = ok && m.ops > 0 && end(&m);
    forget(&m, 0);
    rnd_graph_free(&m.read);
    return ok;
}
