/* SPDX-License-Identifier: Apache-2.0 */
/* The finished graph, written out: names as they were, a guard after every watched value. */
#include "rewrite/sweep.h"

#include <string.h>

typedef struct emission {
    lf_sweeper *s;
    lf_graph *out;
    lf_node *map; /* node of rw.g -> node of out that its users read */
    bool *live;
    int32_t *uses;
    lf_node *hung;    /* witnesses that nothing else needs, each fitted to the output it hangs on */
    int32_t *hung_on; /* index of that output */
    int32_t hung_count;
    bool *renamed; /* outputs whose name goes to the guard that hangs on them */
} emission;

/* ---- witnesses that nothing else reads ---- */

/* A witness hangs on an output as it is where it broadcasts to it. */
static bool hangs_on(const lf_rw *rw, lf_node witness, lf_node output)
{
    const lf_shape *w = lf_rw_shape(rw, witness), *o = lf_rw_shape(rw, output);
    if (w->rank != o->rank || w->rank == 0 || !lf_extent_same(w->dim[0], o->dim[0]))
        return false;
    for (int i = 1; i < w->rank; i++)
        if (!lf_extent_is(w->dim[i], 1) && !lf_extent_same(w->dim[i], o->dim[i]))
            return false;
    return true;
}

/* Otherwise one number a row stands for it: what is not finite stays so in a sum of magnitudes. */
static lf_node one_a_row(lf_rw *rw, lf_node witness, int rank)
{
    const lf_shape *w = lf_rw_shape(rw, witness);
    lf_shape row = {.rank = rank, .dim = {w->dim[0]}};
    unsigned others = 0;
    for (int i = 1; i < rank; i++)
        row.dim[i] = lf_extent_of(1);
    for (int i = 1; i < w->rank; i++)
        others |= lf_extent_is(w->dim[i], 1) ? 0 : 1u << i;
    if (others)
        witness = lf_rw_reduce(rw, LF_OP_sum, lf_rw_one(rw, LF_OP_abs, witness), others, true);
    return lf_rw_view(rw, witness, &row);
}

static lf_status hang(emission *e, lf_node witness)
{
    lf_rw *rw = &e->s->rw;
    int32_t on = 0;
    while (on < rw->g->outputs && !hangs_on(rw, witness, rw->g->output[on]))
        on++;
    if (on == rw->g->outputs) {
        on = 0;
        witness = one_a_row(rw, witness, lf_rw_shape(rw, rw->g->output[0])->rank);
    }
    if (witness == LF_NONE)
        return LF_ERR_NOMEM;
    e->hung[e->hung_count] = witness;
    e->hung_on[e->hung_count++] = on;
    return LF_OK;
}

/* Needs rows, and then every output has them (lf_graph_rows). */
static lf_status hang_lone_witnesses(emission *e)
{
    lf_rw *rw = &e->s->rw;
    lf_status status = LF_OK;
    int32_t count = rw->g->count;
    lf_scene_live((lf_scene){rw->g, rw->facts}, e->live, e->uses);
    for (lf_node n = 0; !status && n < count; n++) {
        if (!rw->facts[n].watched || e->uses[n] > 0)
            continue;
        status = hang(e, n);
        rw->facts[n].watched = false;
        rw->facts[n].spared = true;
        if (!status)
            rw->facts[e->hung[e->hung_count - 1]].spared = true;
    }
    return status ? status : rw->status;
}

/* ---- nodes ---- */

static const char *name_of(const emission *e, lf_node n)
{
    const lf_rw *rw = &e->s->rw;
    lf_node label = rw->facts[n].label;
    if (label == LF_NONE)
        return NULL;
    const char *name = rw->in->node[label].name;
    return lf_graph_find(e->out, name, strlen(name)) == LF_NONE ? name : NULL;
}

static lf_status guard(emission *e, const char *name, lf_node value, lf_node witness, lf_node *out)
{
    const lf_node args[LF_MAX_ARGS] = {value, witness, LF_NONE, LF_NONE, LF_NONE};
    return lf_graph_op(e->out, name, LF_OP_guard, args, NULL, out);
}

static lf_status write_node(emission *e, lf_node n)
{
    const lf_node_info *info = lf_rw_at(&e->s->rw, n);
    bool watched = e->s->rw.facts[n].watched, leaf = lf_op_row(info->op)->kind == LF_LEAF;
    lf_node args[LF_MAX_ARGS], made = LF_NONE;
    for (int i = 0; i < LF_MAX_ARGS; i++)
        args[i] = info->arg[i] == LF_NONE ? LF_NONE : e->map[info->arg[i]];
    lf_status status;
    if (leaf)
        status = lf_graph_leaf_like(e->out, info, &made);
    else
        status =
            lf_graph_op(e->out, watched || e->renamed[n] ? NULL : name_of(e, n), info->op, args, info->attr, &made);
    if (!status && watched)
        status = guard(e, leaf || e->renamed[n] ? NULL : name_of(e, n), made, made, &made);
    e->map[n] = made;
    return status;
}

static lf_status write_outputs(emission *e)
{
    lf_rw *rw = &e->s->rw;
    lf_status status = LF_OK;
    lf_node *output = lf_arena_array(e->out->arena, (size_t)rw->g->outputs, sizeof *output);
    if (!output)
        return LF_ERR_NOMEM;
    for (int32_t i = 0; i < rw->g->outputs; i++)
        output[i] = e->map[rw->g->output[i]];
    for (int32_t i = 0; !status && i < e->hung_count; i++) {
        int32_t on = e->hung_on[i];
        bool last = true;
        for (int32_t k = i + 1; k < e->hung_count; k++)
            last = last && e->hung_on[k] != on;
        const char *name = last ? name_of(e, rw->g->output[on]) : NULL;
        status = guard(e, name, output[on], e->map[e->hung[i]], &output[on]);
    }
    return status ? status : lf_graph_return(e->out, output, (size_t)rw->g->outputs);
}

/* A value that is returned bears the name it is returned by, where others have become one with it. */
static void name_outputs(lf_rw *rw)
{
    for (int32_t i = rw->g->outputs - 1; i >= 0; i--)
        if (lf_kind_of(rw->g, rw->g->output[i]) != LF_LEAF)
            rw->facts[rw->g->output[i]].label = rw->in->output[i];
}

static lf_status write_all(emission *e)
{
    lf_rw *rw = &e->s->rw;
    lf_status status = LF_OK;
    name_outputs(rw);
    lf_scene_live((lf_scene){rw->g, rw->facts}, e->live, NULL);
    for (lf_node n = 0; !status && n < rw->g->count; n++) {
        lf_op op = lf_rw_at(rw, n)->op;
        e->map[n] = LF_NONE;
        if (e->live[n] || op == LF_OP_input || op == LF_OP_param)
            status = write_node(e, n);
    }
    return status ? status : write_outputs(e);
}

lf_status lf_rewrite_emit(lf_sweeper *s, lf_graph *out, lf_node *map)
{
    lf_rw *rw = &s->rw;
    lf_arena *arena = rw->g->arena;
    size_t count = (size_t)rw->g->count;
    emission e = {.s = s,
                  .out = out,
                  .live = lf_arena_array(arena, count, sizeof *e.live),
                  .uses = lf_arena_array(arena, count, sizeof *e.uses),
                  .hung = lf_arena_array(arena, count, sizeof *e.hung),
                  .hung_on = lf_arena_array(arena, count, sizeof *e.hung_on)};
    if (!e.live || !e.uses || !e.hung || !e.hung_on)
        return LF_ERR_NOMEM;
    lf_status status = hang_lone_witnesses(&e);
    if (status)
        return status;
    size_t grown = (size_t)rw->g->count; /* hanging a witness makes a few nodes */
    e.map = lf_arena_array(arena, grown, sizeof *e.map);
    e.live = lf_arena_array(arena, grown, sizeof *e.live);
    e.renamed = lf_arena_array(arena, grown, sizeof *e.renamed);
    if (!e.map || !e.live || !e.renamed)
        return LF_ERR_NOMEM;
    for (int32_t i = 0; i < e.hung_count; i++)
        e.renamed[rw->g->output[e.hung_on[i]]] = true;
    status = write_all(&e);
    memcpy(map, e.map, count * sizeof *map);
    return status;
}
