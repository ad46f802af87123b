/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes share a kernel. Nodes are taken in order; each starts alone and is then joined with the groups of its
 * arguments, latest first, wherever the union can be lowered and no third group would stand both before and after
 * it. Then groups whose products multiply the same x are joined likewise. They come second so that what a product goes
 * on with is never split off for the sake of another product. */
#include <stdlib.h>
#include <string.h>

#include "plan/group.h"

/* A set of nodes while grouping. An emptied set has count 0. */
typedef struct node_set {
    lf_node *node; /* ascending */
    int32_t count;
    lf_node product; /* one of its products, all of which multiply the same; LF_NONE: it has none */
    bool across;   /* lowered by itself: joins nothing */
    const char *why_apart;
} node_set;

typedef struct grouping {
    lf_lower_context context;
    lf_arena scratch;    /* of one trial */
    node_set *set;       /* one per node; set[n] is where n began */
    int32_t *set_of;     /* one per node: its set, -1 for leaves, views and fixed nodes */
    int32_t *seen;       /* one per set: the trial that last saw it */
    int32_t *stack;
    int32_t trial;
    lf_node *sibling;    /* one per product: the latest before it that multiplies the same, LF_NONE */
} grouping;

static const char between[] = "another kernel stands between the two";

/* Calls for each set that set s reads from, other than itself: pushes those not seen in this trial. */
static int32_t push_sources(grouping *p, int32_t s, int32_t depth)
{
    const lf_graph *g = p->context.graph;
    for (int32_t i = 0; i < p->set[s].count; i++) {
        const lf_node_info *info = lf_at(g, p->set[s].node[i]);
        for (int a = 0; a < lf_op_row(info->op)->arg_count; a++) {
            int32_t from = info->arg[a] == LF_NONE ? -1 : p->set_of[p->context.base[info->arg[a]]];
            if (from < 0 || p->seen[from] == p->trial)
                continue;
            p->seen[from] = p->trial;
            p->stack[depth++] = from;
        }
    }
    return depth;
}

/* Would joining `into` (which reads `from`) with it put some third set both before and after the union? */
static bool makes_cycle(grouping *p, int32_t into, int32_t from)
{
    p->trial++;
    p->seen[into] = p->seen[from] = p->trial;
    int32_t depth = push_sources(p, into, 0);
    while (depth > 0) {
        int32_t s = p->stack[--depth];
        const lf_graph *g = p->context.graph;
        for (int32_t i = 0; i < p->set[s].count; i++) {
            const lf_node_info *info = lf_at(g, p->set[s].node[i]);
            for (int a = 0; a < lf_op_row(info->op)->arg_count; a++)
                if (info->arg[a] != LF_NONE && p->set_of[p->context.base[info->arg[a]]] == from)
                    return true;
        }
        depth = push_sources(p, s, depth);
    }
    return false;
}

static int32_t merge_sorted(const node_set *a, const node_set *b, lf_node *out)
{
    int32_t i = 0, j = 0, n = 0;
    while (i < a->count || j < b->count)
        out[n++] = j == b->count || (i < a->count && a->node[i] < b->node[j]) ? a->node[i++] : b->node[j++];
    return n;
}

static bool has_room(const node_set *a, const node_set *b)
{
    return a->count + b->count <= LF_MAX_GROUP;
}

/* Lowers the nodes of both sets: *both, for the caller to free, unless something stands in the way: *why. group: what
 * comes of it, in scratch memory; may be NULL. There is room for all. */
static lf_status lower_both(grouping *p, const node_set *a, const node_set *b, lf_node **both, lf_group *group,
                            const char **why)
{
    *both = malloc((size_t)(a->count + b->count) * sizeof **both);
    if (!*both)
        return lf_fail_nomem(p->context.graph->diag, "the plan");
    const int32_t count = merge_sorted(a, b, *both);
    lf_arena_free(&p->scratch);
    lf_status status = lf_lower(&p->context, *both, count, group, why);
    if (status != LF_OK || *why) {
        free(*both);
        *both = NULL;
    }
    return status;
}

/* Joins `from` with `into`, unless something stands in the way: *why. */
static lf_status join(grouping *p, int32_t into, int32_t from, const char **why)
{
    node_set *a = &p->set[into], *b = &p->set[from];
    lf_node *both = NULL;
    *why = NULL;
    if (!has_room(a, b))
        *why = "the kernel would hold too many operations";
    else if (makes_cycle(p, into, from))
        *why = between;
    lf_status status = *why ? LF_OK : lower_both(p, a, b, &both, NULL, why);
    if (!both)
        return status;
    for (int32_t i = 0; i < b->count; i++)
        p->set_of[b->node[i]] = into;
    free(a->node);
    free(b->node);
    a->node = both;
    a->count += b->count;
    a->product = a->product == LF_NONE ? b->product : a->product;
    *b = (node_set){0};
    return LF_OK;
}

/* What a product multiplies, seen through views. */
static lf_node input_of(const grouping *p, lf_node product)
{
    return p->context.base[lf_arg_of(p->context.graph, product, 0)];
}

/* Joins the set of a node with that of an argument of it. */
static lf_status join_argument(grouping *p, int32_t into, int32_t from)
{
    node_set *a = &p->set[into];
    const lf_node ours = a->product, theirs = p->set[from].product;
    const char *why = NULL;
    if (ours != LF_NONE && theirs != LF_NONE) {
        if (input_of(p, ours) != input_of(p, theirs)) /* otherwise share_inputs has the last word */
            a->why_apart = "each product is a kernel of its own, and the value between two is stored";
        return LF_OK;
    }
    const char *keeps_from_apart = p->set[from].why_apart;
    lf_status status = join(p, into, from, &why);
    /* once they are joined, what was said of why `into` stands apart is settled */
    a->why_apart = why ? why : keeps_from_apart;
    return status;
}

/* Are its weight and bias known when weights are prepared? */
static bool is_prepared(const grouping *p, lf_node product)
{
    const lf_graph *g = p->context.graph;
    for (int a = 1; a < lf_op_row(lf_at(g, product)->op)->arg_count; a++)
        if (lf_arg_of(g, product, a) != LF_NONE && !p->context.fixed[lf_arg_of(g, product, a)])
            return false;
    return true;
}

/* Why kernels do not multiply one x by both weights; NULL: they can. */
static const char *unshared(const grouping *p, lf_sharing share_x, lf_node one, lf_node other)
{
    if (share_x == LF_SHARE_NONE)
        return "kernels of this device multiply what they share by one weight only";
    if (!is_prepared(p, one) || !is_prepared(p, other))
        return "products share what they multiply only where weights and biases are prepared";
    return NULL;
}

/* Whole rows that a kernel keeps from one phase for a later one; what is multiplied is not counted. */
static int32_t kept_rows(const lf_group *g)
{
    int32_t count = 0;
    for (int32_t k = 0; k < g->kepts; k++)
        count += !g->kept[k].one_row && !lf_extent_is(g->kept[k].width, 1) &&
                 !(g->x.place == LF_KEPT && g->x.index == k);
    return count;
}

/* *kept: the same of a set, as a kernel. */
static lf_status count_kept(grouping *p, const node_set *s, int32_t *kept)
{
    lf_group group;
    const char *why = NULL;
    lf_arena_free(&p->scratch);
    lf_status status = lf_lower(&p->context, s->node, s->count, &group, &why);
    *kept = status == LF_OK && !why ? kept_rows(&group) : 0;
    return status;
}

static bool reads(const grouping *p, int32_t set, int32_t from)
{
    const lf_graph *g = p->context.graph;
    for (int32_t i = 0; i < p->set[set].count; i++) {
        const lf_node_info *info = lf_at(g, p->set[set].node[i]);
        for (int a = 0; a < lf_op_row(info->op)->arg_count; a++)
            if (info->arg[a] != LF_NONE && p->set_of[p->context.base[info->arg[a]]] == from)
                return true;
    }
    return false;
}

/* Two sets that keep rows and have nothing else in common than x: together they would take fewer rows at a time, and
 * the weights be read more often than that saves (two heads of 8000 columns and a softmax each, by 512: 3% slower). */
static lf_status weigh_rows(grouping *p, int32_t into, int32_t from, const char **why)
{
    int32_t ours = 0, theirs = 0;
    if (reads(p, into, from) || reads(p, from, into))
        return LF_OK;
    lf_status status = count_kept(p, &p->set[into], &ours);
    if (status == LF_OK && ours > 0)
        status = count_kept(p, &p->set[from], &theirs);
    if (ours > 0 && theirs > 0)
        *why = "both kernels keep whole rows for later, and one would have room for fewer of them";
    return status;
}

/* Two sets as one where products are made as one or not at all. What they keep apart may wait in registers there. */
static lf_status weigh_two(grouping *p, int32_t into, int32_t from, const char **why)
{
    lf_group group;
    lf_node *both = NULL;
    int32_t ours = 0, theirs = 0;
    if (!has_room(&p->set[into], &p->set[from])) /* join says so */
        return LF_OK;
    lf_status status = count_kept(p, &p->set[into], &ours);
    if (status == LF_OK)
        status = count_kept(p, &p->set[from], &theirs);
    if (status == LF_OK)
        status = lower_both(p, &p->set[into], &p->set[from], &both, &group, why);
    if (!both)
        return status;
    free(both);
    if (lf_made_as_one(&group) != 2)
        *why = "tensor cores share x between two products of as many columns, which something reads side by side";
    else if (kept_rows(&group) > ours + theirs)
        *why = "one kernel for both products would keep more rows for later";
    return LF_OK;
}

/* Joins the sets of two products that multiply the same. */
static lf_status share(grouping *p, lf_sharing share_x, lf_node product, lf_node other)
{
    int32_t first = p->set_of[other], second = p->set_of[product]; /* in order of execution */
    if (reads(p, first, second) || (!reads(p, second, first) && p->set[first].node[0] > p->set[second].node[0])) {
        first = p->set_of[product];
        second = p->set_of[other];
    }
    const char *why = unshared(p, share_x, product, other), *keeps_first_apart = p->set[first].why_apart;
    if (!why && makes_cycle(p, first, second)) /* join looks the other way */
        why = between;
    lf_status status = why ? LF_OK : weigh_rows(p, first, second, &why);
    if (status == LF_OK && !why && share_x == LF_SHARE_TWO)
        status = weigh_two(p, second, first, &why);
    if (status == LF_OK && !why)
        status = join(p, second, first, &why);
    node_set *s = &p->set[second];
    if (!why && keeps_first_apart)
        s->why_apart = keeps_first_apart;
    else if (why && !s->why_apart)
        s->why_apart = why;
    return status;
}

enum { MOST_SIBLINGS = 8 }; /* tried for a product: bounds planning time on hostile graphs */

/* latest: one per node, LF_NONE everywhere: the latest product so far that multiplies it. */
static lf_status share_inputs(grouping *p, lf_sharing share_x, lf_node *latest)
{
    const lf_graph *g = p->context.graph;
    lf_status status = LF_OK;
    for (lf_node n = 0; n < g->count && status == LF_OK; n++) {
        if (lf_kind_of(g, n) != LF_PRODUCT || p->set_of[n] < 0)
            continue;
        lf_node other = p->sibling[n] = latest[input_of(p, n)];
        latest[input_of(p, n)] = n;
        for (int tried = 0; tried < MOST_SIBLINGS && other != LF_NONE && status == LF_OK; tried++) {
            if (p->set_of[other] != p->set_of[n])
                status = share(p, share_x, n, other);
            other = p->sibling[other];
        }
    }
    return status;
}

/* Starts a set with node n alone and finds out whether it can be lowered in the ordinary way. */
static lf_status begin_set(grouping *p, lf_node n)
{
    node_set *s = &p->set[n];
    s->node = malloc(sizeof *s->node);
    if (!s->node)
        return lf_fail_nomem(p->context.graph->diag, "the plan");
    s->node[0] = n;
    s->count = 1;
    s->product = lf_kind_of(p->context.graph, n) == LF_PRODUCT ? n : LF_NONE;
    p->set_of[n] = n;
    const char *why = NULL;
    lf_arena_free(&p->scratch);
    lf_status status = lf_lower(&p->context, s->node, 1, NULL, &why);
    s->across = why != NULL;
    if (s->across)
        s->why_apart = "it is read across its extents, not along them";
    return status;
}

static lf_status join_arguments(grouping *p, lf_node n)
{
    const lf_node_info *info = lf_at(p->context.graph, n);
    int args = lf_op_row(info->op)->arg_count;
    int32_t tried[LF_MAX_ARGS];
    for (int t = 0; t < args; t++) { /* latest set first */
        int32_t best = -1;
        for (int a = 0; a < args; a++) {
            int32_t from = info->arg[a] == LF_NONE ? -1 : p->set_of[p->context.base[info->arg[a]]];
            bool skip = from < 0 || from == n || p->set[from].across;
            for (int i = 0; i < t; i++)
                skip = skip || tried[i] == from;
            if (!skip && from > best)
                best = from;
        }
        tried[t] = best;
        if (best < 0)
            break;
        lf_status status = join_argument(p, n, best);
        if (status != LF_OK)
            return status;
    }
    return LF_OK;
}

static bool is_member(const lf_graph *g, const bool *fixed, const bool *live, lf_node n)
{
    lf_kind kind = lf_kind_of(g, n);
    return live[n] && !fixed[n] && kind != LF_LEAF && kind != LF_VIEW;
}

static void find_live(const lf_graph *g, bool *live)
{
    for (int32_t i = 0; i < g->outputs; i++)
        live[g->output[i]] = true;
    for (lf_node n = g->count - 1; n >= 0; n--)
        for (int a = 0; live[n] && a < lf_op_row(lf_at(g, n)->op)->arg_count; a++)
            if (lf_at(g, n)->arg[a] != LF_NONE)
                live[lf_at(g, n)->arg[a]] = true;
}

/* Orders sets so that each comes after what it reads; among free ones the one with the smallest first node. */
static lf_status emit_in_order(grouping *p, lf_sets *out, lf_arena *arena)
{
    const lf_graph *g = p->context.graph;
    bool *done = lf_arena_array(arena, (size_t)g->count + 1, sizeof *done);
    if (!done)
        return lf_fail_nomem(g->diag, "the plan");
    /* Depth-first from sets in ascending order of first node; the stack holds sets whose sources are not all out
     * yet. */
    for (lf_node first = 0; first < g->count; first++) {
        if (p->set_of[first] < 0 || done[p->set_of[first]])
            continue;
        int32_t depth = 0;
        p->stack[depth++] = p->set_of[first];
        while (depth > 0) {
            int32_t s = p->stack[depth - 1];
            int32_t before = -1;
            for (int32_t i = 0; i < p->set[s].count && before < 0; i++)
                for (int a = 0; a < LF_MAX_ARGS && a < lf_op_row(lf_at(g, p->set[s].node[i])->op)->arg_count; a++) {
                    lf_node arg = lf_at(g, p->set[s].node[i])->arg[a];
                    int32_t from = arg == LF_NONE ? -1 : p->set_of[p->context.base[arg]];
                    if (from >= 0 && from != s && !done[from])
                        before = from;
                }
            if (before >= 0) {
                p->stack[depth++] = before;
                continue;
            }
            depth--;
            if (done[s])
                continue;
            done[s] = true;
            lf_set *set = &out->set[out->count++];
            set->node = lf_arena_array(arena, (size_t)p->set[s].count, sizeof *set->node);
            if (!set->node)
                return lf_fail_nomem(g->diag, "the plan");
            memcpy(set->node, p->set[s].node, (size_t)p->set[s].count * sizeof *set->node);
            set->count = p->set[s].count;
            set->across = p->set[s].across;
            set->why_apart = p->set[s].why_apart;
        }
    }
    return LF_OK;
}

static lf_status make_groups(grouping *p, lf_plan_options options, const bool *live, lf_node *latest)
{
    const lf_graph *g = p->context.graph;
    lf_status status = LF_OK;
    for (lf_node n = 0; n < g->count && status == LF_OK; n++) {
        if (!is_member(g, p->context.fixed, live, n))
            continue;
        status = begin_set(p, n);
        if (status == LF_OK && options.fuse && !p->set[n].across)
            status = join_arguments(p, n);
    }
    return status == LF_OK && options.fuse ? share_inputs(p, options.share_x, latest) : status;
}

lf_status lf_group_nodes(const lf_lower_context *context, lf_plan_options options, lf_arena *arena, lf_sets *out)
{
    const lf_graph *g = context->graph;
    size_t n = (size_t)g->count + 1;
    grouping p = {.context = *context};
    bool *live = lf_arena_array(arena, n, sizeof *live);
    p.set_of = lf_arena_array(arena, n, sizeof *p.set_of);
    p.seen = lf_arena_array(arena, n, sizeof *p.seen);
    p.stack = lf_arena_array(arena, n, sizeof *p.stack);
    p.set = lf_arena_array(arena, n, sizeof *p.set);
    p.sibling = lf_arena_array(arena, n, sizeof *p.sibling);
    lf_node *latest = lf_arena_array(arena, n, sizeof *latest);
    out->set = lf_arena_array(arena, n, sizeof *out->set);
    out->count = 0;
    if (!live || !p.set_of || !p.seen || !p.stack || !p.set || !p.sibling || !latest || !out->set)
        return lf_fail_nomem(g->diag, "the plan");
    for (size_t i = 0; i < n; i++)
        p.set_of[i] = latest[i] = -1;
    find_live(g, live);
    lf_arena_init(&p.scratch);
    p.context.arena = &p.scratch; /* trials are thrown away */
    lf_status status = make_groups(&p, options, live, latest);
    if (status == LF_OK)
        status = emit_in_order(&p, out, arena);
    for (size_t i = 0; i < n; i++)
        free(p.set[i].node);
    lf_arena_free(&p.scratch);
    return status;
}
