/* SPDX-License-Identifier: Apache-2.0 */
/* Which values have rows, and whether rows see each other. Where a guess would be needed the answer is no: a wrong yes
 * gives wrong numbers, a wrong no only costs time. */
#include "ir/graph.h"

#include <string.h>

typedef struct walk {
    const lf_graph *g;
    bool *rows;       /* one per node */
    lf_extent extent; /* of the batch axis: a number or one name */
} walk;

static bool starts_with_batch(const walk *w, const lf_shape *s)
{
    return s->rank > 0 && lf_extent_same(s->dim[0], w->extent);
}

/* A row axis meets only row axes, or values that repeat over it. */
static bool pointwise(const walk *w, lf_node n)
{
    const lf_node_info *node = lf_at(w->g, n);
    bool any = false;
    for (int i = 0; i < LF_MAX_ARGS; i++)
        any = any || (node->arg[i] != LF_NONE && w->rows[node->arg[i]]);
    w->rows[n] = any;
    for (int i = 0; any && i < LF_MAX_ARGS; i++) {
        if (node->arg[i] == LF_NONE)
            continue;
        const lf_shape *s = &lf_at(w->g, node->arg[i])->shape;
        bool top = s->rank == node->shape.rank; /* its axis 0 is the result's */
        if (w->rows[node->arg[i]] ? !top || !starts_with_batch(w, &node->shape) : top && !lf_extent_is(s->dim[0], 1))
            return false;
    }
    return true;
}

/* Ops that carry the rows of argument 0 through, if they do; no other argument may have rows. */
static bool through(const walk *w, lf_node n)
{
    const lf_node_info *node = lf_at(w->g, n);
    for (int i = 1; i < LF_MAX_ARGS; i++)
        if (node->arg[i] != LF_NONE && w->rows[node->arg[i]])
            return false;
    w->rows[n] = w->rows[node->arg[0]];
    if (!w->rows[n])
        return true;
    switch (lf_kind_of(w->g, n)) {
    case LF_PRODUCT: return lf_at(w->g, node->arg[0])->shape.rank >= 2;
    case LF_REDUCE:
    case LF_NORMALIZE:
    case LF_POOL: return !(lf_span_axes(w->g, n) & 1u);
    case LF_VIEW: return starts_with_batch(w, &node->shape); /* row-major: the same leading extent is the same rows */
    case LF_MOVE: return !(lf_moved_axes(w->g, n) & 1u);
    default: return false;
    }
}

/* An input is a batch of rows when it starts as the first one does. A constant is the same in every row. */
static bool leaf(const walk *w, lf_node n)
{
    const lf_node_info *node = lf_at(w->g, n);
    int least = node->op == LF_OP_constant && !lf_extent_known(w->extent) ? 1 : 2;
    w->rows[n] = node->op != LF_OP_param && node->shape.rank >= least && starts_with_batch(w, &node->shape);
    return true;
}

/* A batch extent with a name stands on row axes and nowhere else: with fewer rows, it means something else there. */
static bool name_stays(const walk *w, lf_node n)
{
    const lf_shape *s = &lf_at(w->g, n)->shape;
    for (int i = w->rows[n] ? 1 : 0; i < s->rank; i++)
        for (int k = 0; k < LF_MAX_SYMBOLS; k++)
            if (w->extent.pow[k] && s->dim[i].pow[k])
                return false;
    return true;
}

static bool visit(const walk *w, lf_node n)
{
    switch (lf_kind_of(w->g, n)) {
    case LF_LEAF: return leaf(w, n);
    case LF_POINTWISE:
    case LF_GUARD: return pointwise(w, n);
    default: return through(w, n);
    }
}

static bool mixes(lf_node n, lf_node *why)
{
    if (why)
        *why = n;
    return false;
}

bool lf_graph_rows(const lf_graph *g, bool *has_rows, lf_node *why)
{
    memset(has_rows, 0, (size_t)g->count * sizeof *has_rows);
    if (g->inputs == 0)
        return mixes(g->outputs ? g->output[0] : LF_NONE, why);
    const lf_shape *first = &lf_at(g, g->input[0])->shape;
    if (first->rank < 2)
        return mixes(g->input[0], why);
    walk w = {g, has_rows, first->dim[0]};
    for (lf_node n = 0; n < g->count; n++)
        if (!visit(&w, n) || !name_stays(&w, n))
            return mixes(n, why);
    for (int32_t i = 0; i < g->outputs; i++)
        if (!has_rows[g->output[i]])
            return mixes(g->output[i], why);
    return true;
}
