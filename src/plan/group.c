/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes share a kernel. Nodes are taken in order; each starts alone and is then joined with the groups of its
 * arguments, latest first, wherever the union can be lowered and no third group would stand both before and after
 * it. */
#include <stdlib.h>
#include <string.h>

#include "plan/group.h"

/* A set of nodes while grouping. Sets are joined by moving the smaller list; an emptied set has count 0. */
typedef struct node_set {
    lf_node *node; /* ascending */
    int32_t count;
    bool across;   /* lowered by itself: joins nothing */
    const char *why_apart;
} node_set;

typedef struct grouping {
    lf_site site;
    lf_arena scratch;    /* of one trial */
    node_set *set;       /* one per node; set[n] is where n began */
    int32_t *set_of;     /* one per node: its set, -1 for leaves, views and fixed nodes */
    int32_t *seen;       /* one per set: the trial that last saw it */
    int32_t *stack;
    int32_t trial;
} grouping;

/* Calls for each set that set s reads from, other than itself: pushes those not seen in this trial. */
static int32_t push_sources(grouping *p, int32_t s, int32_t depth)
{
    const lf_graph *g = p->site.graph;
    for (int32_t i = 0; i < p->set[s].count; i++) {
        const lf_node_info *info = lf_at(g, p->set[s].node[i]);
        for (int a = 0; a < lf_op_row(info->op)->arg_count; a++) {
            int32_t from = info->arg[a] == LF_NONE ? -1 : p->set_of[p->site.base[info->arg[a]]];
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
        const lf_graph *g = p->site.graph;
        for (int32_t i = 0; i < p->set[s].count; i++) {
            const lf_node_info *info = lf_at(g, p->set[s].node[i]);
            for (int a = 0; a < lf_op_row(info->op)->arg_count; a++)
                if (info->arg[a] != LF_NONE && p->set_of[p->site.base[info->arg[a]]] == from)
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

static lf_status try_join(grouping *p, int32_t into, int32_t from)
{
    node_set *a = &p->set[into], *b = &p->set[from];
    if (a->count + b->count > LF_MAX_GROUP) {
        a->why_apart = "the kernel would hold too many operations";
        return LF_OK;
    }
    if (makes_cycle(p, into, from)) {
        a->why_apart = "another kernel stands between the two";
        return LF_OK;
    }
    lf_node *both = malloc((size_t)(a->count + b->count) * sizeof *both);
    if (!both)
        return lf_fail_nomem(p->site.graph->diag, "the plan");
    int32_t count = merge_sorted(a, b, both);
    const char *why = NULL;
    lf_arena_free(&p->scratch);
    lf_status status = lf_lower(&p->site, both, count, NULL, &why);
    if (status != LF_OK || why) {
        free(both);
        a->why_apart = why;
        return status;
    }
    for (int32_t i = 0; i < b->count; i++)
        p->set_of[b->node[i]] = into;
    free(a->node);
    free(b->node);
    /* what was said of why `into` stands apart is settled; what keeps `from` apart remains */
    a->why_apart = b->why_apart;
    a->node = both;
    a->count = count;
    *b = (node_set){0};
    return LF_OK;
}

/* Starts a set with node n alone and finds out whether it can be lowered in the ordinary way. */
static lf_status begin_set(grouping *p, lf_node n)
{
    node_set *s = &p->set[n];
    s->node = malloc(sizeof *s->node);
    if (!s->node)
        return lf_fail_nomem(p->site.graph->diag, "the plan");
    s->node[0] = n;
    s->count = 1;
    p->set_of[n] = n;
    const char *why = NULL;
    lf_arena_free(&p->scratch);
    lf_status status = lf_lower(&p->site, s->node, 1, NULL, &why);
    s->across = why != NULL;
    if (s->across)
        s->why_apart = "it is read across its extents, not along them";
    return status;
}

static lf_status join_arguments(grouping *p, lf_node n)
{
    const lf_node_info *info = lf_at(p->site.graph, n);
    int args = lf_op_row(info->op)->arg_count;
    int32_t tried[LF_MAX_ARGS];
    for (int t = 0; t < args; t++) { /* latest set first */
        int32_t best = -1;
        for (int a = 0; a < args; a++) {
            int32_t from = info->arg[a] == LF_NONE ? -1 : p->set_of[p->site.base[info->arg[a]]];
            bool skip = from < 0 || from == n || p->set[from].across;
            for (int i = 0; i < t; i++)
                skip = skip || tried[i] == from;
            if (!skip && from > best)
                best = from;
        }
        tried[t] = best;
        if (best < 0)
            break;
        lf_status status = try_join(p, n, best);
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
    const lf_graph *g = p->site.graph;
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
                    int32_t from = arg == LF_NONE ? -1 : p->set_of[p->site.base[arg]];
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

static lf_status make_groups(grouping *p, bool fuse, const bool *live)
{
    const lf_graph *g = p->site.graph;
    lf_status status = LF_OK;
    for (lf_node n = 0; n < g->count && status == LF_OK; n++) {
        if (!is_member(g, p->site.fixed, live, n))
            continue;
        status = begin_set(p, n);
        if (status == LF_OK && fuse && !p->set[n].across)
            status = join_arguments(p, n);
    }
    return status;
}

lf_status lf_group_nodes(const lf_site *site, bool fuse, lf_arena *arena, lf_sets *out)
{
    const lf_graph *g = site->graph;
    size_t n = (size_t)g->count + 1;
    grouping p = {.site = *site};
    bool *live = lf_arena_array(arena, n, sizeof *live);
    p.set_of = lf_arena_array(arena, n, sizeof *p.set_of);
    p.seen = lf_arena_array(arena, n, sizeof *p.seen);
    p.stack = lf_arena_array(arena, n, sizeof *p.stack);
    p.set = lf_arena_array(arena, n, sizeof *p.set);
    out->set = lf_arena_array(arena, n, sizeof *out->set);
    out->count = 0;
    if (!live || !p.set_of || !p.seen || !p.stack || !p.set || !out->set)
        return lf_fail_nomem(g->diag, "the plan");
    for (size_t i = 0; i < n; i++)
        p.set_of[i] = -1;
    find_live(g, live);
    lf_arena_init(&p.scratch);
    p.site.arena = &p.scratch; /* trials are thrown away */
    lf_status status = make_groups(&p, fuse, live);
    if (status == LF_OK)
        status = emit_in_order(&p, out, arena);
    for (size_t i = 0; i < n; i++)
        free(p.set[i].node);
    lf_arena_free(&p.scratch);
    return status;
}
