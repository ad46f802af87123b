/* SPDX-License-Identifier: Apache-2.0 */
#include "rewrite/sweep.h"

#include <assert.h>
#include <string.h>

enum {
    MAX_STEPS = 64, /* rules applied to one value in one sweep; the next sweep goes on */
    ROOM = 1024     /* nodes kept free for those still to be copied's sake: more than one rule makes */
};

void lf_scene_live(lf_scene scene, bool *live, int32_t *uses)
{
    const lf_graph *g = scene.g;
    memset(live, 0, (size_t)g->count * sizeof *live);
    if (uses)
        memset(uses, 0, (size_t)g->count * sizeof *uses);
    for (int32_t i = 0; i < g->outputs; i++) {
        live[g->output[i]] = true;
        if (uses)
            uses[g->output[i]]++;
    }
    for (lf_node n = g->count - 1; n >= 0; n--) {
        live[n] = live[n] || scene.facts[n].watched || scene.facts[n].spared;
        for (int i = 0; live[n] && i < LF_MAX_ARGS; i++) {
            lf_node arg = g->node[n].arg[i];
            if (arg == LF_NONE)
                continue;
            live[arg] = true;
            if (uses)
                uses[arg]++;
        }
    }
}

lf_status lf_note_done(lf_sweeper *s, const lf_rule *rule, lf_node source, const char *why)
{
    lf_notes *notes = s->notes;
    if (notes->done_count == s->done_capacity) {
        int32_t capacity = s->done_capacity ? s->done_capacity * 2 : 16;
        lf_note *bigger = lf_arena_array(s->notes_arena, (size_t)capacity, sizeof *bigger);
        if (!bigger)
            return LF_ERR_NOMEM;
        if (notes->done_count)
            memcpy(bigger, notes->done, (size_t)notes->done_count * sizeof *bigger);
        notes->done = bigger;
        s->done_capacity = capacity;
    }
    const char *at = source == LF_NONE ? "" : s->rw.in->node[source].name;
    lf_note note = {rule->info.name, rule->info.class, lf_arena_strndup(s->notes_arena, at, strlen(at)),
                    lf_arena_strndup(s->notes_arena, why, strlen(why))};
    if (note.class == LF_GUARDED && s->rw.options->assume_finite)
        note.class = LF_ASSUMES_FINITE;
    if (!note.at || !note.why)
        return LF_ERR_NOMEM;
    notes->done[notes->done_count++] = note;
    return LF_OK;
}

/* ---- one rule ---- */

/* Marks the parameters that n is computed from. */
static void trust(lf_sweeper *s, lf_node n)
{
    lf_rw *rw = &s->rw;
    bool *below = lf_arena_array(rw->g->arena, (size_t)rw->g->count, sizeof *below);
    if (!below) {
        rw->status = LF_ERR_NOMEM;
        return;
    }
    below[n] = true;
    lf_graph_needed(rw->g, below);
    for (int32_t i = 0; i < rw->g->params; i++)
        s->notes->trusted[i] = s->notes->trusted[i] || below[rw->g->param[i]];
}

/* r computes what n did: its name, its watch and its place go to r. */
static void replace(lf_sweeper *s, lf_node n, lf_node r)
{
    lf_rw *rw = &s->rw;
    lf_rw_count(rw, r);
    lf_rw_facts *old = &rw->facts[n], *new = &rw->facts[r];
    if (new->label == LF_NONE) {
        new->label = old->label;
        new->source = old->source;
    }
    old->label = LF_NONE;
    old->forward = r;
    new->watched = new->watched || (old->watched && !new->fixed);
    old->watched = false;
    if (rw->trusts != LF_NONE)
        trust(s, rw->trusts);
    if (rw->rule->info.class == LF_GUARDED && rw->options->assume_finite)
        trust(s, n); /* no guard stands behind it */
    for (int i = 0; i < rw->asked_count; i++) {
        lf_rw_count(rw, rw->asked[i]);
        rw->facts[rw->asked[i]].watched = true;
    }
    lf_rw_release(rw, n);
}

static lf_node try_rule(lf_sweeper *s, const lf_rule *rule, lf_node n)
{
    lf_rw *rw = &s->rw;
    rw->rule = rule;
    rw->root = n;
    rw->why[0] = '\0';
    rw->asked_count = 0;
    rw->trusts = LF_NONE;
    lf_node r = rule->apply(rw, n);
    if (rw->status || r == LF_KEEP || lf_rw_alike(rw, r, n) || lf_rw_at(rw, r)->dtype != lf_rw_at(rw, n)->dtype)
        return LF_KEEP;
    bool fits = lf_rw_same_shape(rw, r, n);
    assert(fits);
    return fits ? r : LF_KEEP;
}

static lf_node try_rules(lf_sweeper *s, lf_node n)
{
    lf_rw *rw = &s->rw;
    const int8_t *candidate = s->rule_of[lf_rw_at(rw, n)->op];
    for (; *candidate >= 0; candidate++) {
        const lf_rule *rule = lf_rule_row((size_t)*candidate);
        if (!s->on[*candidate] || (lf_rw_fixed(rw, n) && !rule->in_fixed))
            continue;
        lf_node r = try_rule(s, rule, n);
        if (rw->status)
            return LF_KEEP;
        if (r == LF_KEEP)
            continue;
        rw->status = lf_note_done(s, rule, rw->facts[n].source, rw->why[0] ? rw->why : rule->gain);
        s->changed = true;
        return r;
    }
    return LF_KEEP;
}

static lf_node settle(lf_sweeper *s, lf_node n, int32_t still_to_come)
{
    for (int step = 0; step < MAX_STEPS && !s->resting; step++) {
        int32_t before = s->rw.g->count;
        if (before + still_to_come + ROOM > LF_MAX_NODES)
            break;
        lf_node r = try_rules(s, n);
        if (s->rw.status || r == LF_KEEP)
            break;
        replace(s, n, r);
        n = r;
        if (r < before)
            break; /* it has been through this already */
    }
    return n;
}

/* ---- one node ---- */

/* A watched value whose only user keeps what is not finite hands its watch on, so that the two may become one; not to a
 * value with more elements, all of which would have to be looked at. */
static void hand_on_watch(lf_rw *rw, lf_node n)
{
    for (int i = 0; i < LF_MAX_ARGS; i++) {
        lf_node arg = lf_rw_arg(rw, n, i);
        if (arg == LF_NONE || !rw->facts[arg].watched || rw->facts[arg].uses != 1 || !lf_rw_keeps_nonfinite(rw, n, i))
            continue;
        lf_extent have, more, times;
        bool small = lf_shape_elements(lf_rw_shape(rw, arg), &have) && lf_shape_elements(lf_rw_shape(rw, n), &more) &&
                     lf_extent_div(have, more, &times);
        if (!small)
            continue;
        rw->facts[arg].watched = false;
        rw->facts[n].watched = true;
    }
}

static bool is_op(const lf_graph *g, lf_node n)
{
    return lf_kind_of(g, n) != LF_LEAF;
}

static lf_status note_merged(lf_sweeper *s, const lf_rw_facts *gone, lf_node into)
{
    if (gone->label == LF_NONE)
        return LF_OK;
    lf_node same = s->rw.facts[into].source;
    char why[LF_MAX_NAME + 64] = "it is computed already";
    if (same != LF_NONE && same != gone->label) {
        strcpy(why, "the same value as ");
        strncat(why, s->rw.in->node[same].name, LF_MAX_NAME);
    }
    for (size_t i = 0; lf_rule_row(i); i++)
        if (lf_rule_row(i)->info.name == lf_rule_cse)
            return lf_note_done(s, lf_rule_row(i), gone->label, why);
    return LF_OK;
}

static lf_node visit(lf_sweeper *s, lf_scene from, lf_node n, const lf_node *map, bool merge)
{
    lf_rw *rw = &s->rw;
    const lf_node_info *info = &from.g->node[n];
    lf_node args[LF_MAX_ARGS];
    for (int i = 0; i < LF_MAX_ARGS; i++)
        args[i] = info->arg[i] == LF_NONE ? LF_NONE : map[info->arg[i]];
    int32_t before = rw->g->count;
    rw->root = LF_NONE;
    lf_node b = lf_rw_copy(rw, info, args, !merge);
    if (b == LF_NONE)
        return LF_NONE;
    lf_rw_facts *facts = &rw->facts[b];
    bool counted = facts->counted;
    for (int i = 0; counted && i < LF_MAX_ARGS; i++)
        if (args[i] != LF_NONE)
            rw->facts[args[i]].uses--;
    facts->counted = true; /* its uses were counted when those of `from` were */
    if (counted && is_op(from.g, n))
        rw->status = note_merged(s, &from.facts[n], b);
    if (facts->label == LF_NONE) {
        facts->label = from.facts[n].label;
        facts->source = from.facts[n].source;
    }
    if (!is_op(from.g, n))
        facts->rows = from.facts[n].rows;
    facts->watched = facts->watched || from.facts[n].watched;
    if (b >= before && is_op(from.g, n)) {
        hand_on_watch(rw, b);
        b = settle(s, b, from.g->count - n);
    }
    rw->facts[b].spared = rw->facts[b].spared || from.facts[n].spared;
    return b;
}

/* What slices take of one value. */
typedef struct slicing {
    int32_t slices;
    int axis;
    int64_t taken; /* of the axis; more than there is where it is several axes' */
} slicing;

/* cut: one per node. */
static void count_slices(lf_scene from, const bool *live, slicing *cut)
{
    for (lf_node n = 0; n < from.g->count; n++) {
        const lf_node_info *info = &from.g->node[n];
        if (!live[n] || info->op != LF_OP_slice)
            continue;
        slicing *of = &cut[info->arg[0]];
        const unsigned axes = lf_moved_axes(from.g, n);
        for (int axis = 0; axis < info->shape.rank; axis++)
            if (axes >> axis & 1) {
                of->taken += of->slices > 0 && of->axis != axis ? LF_MAX_ELEMENTS : info->shape.dim[axis].coef;
                of->axis = axis;
            }
        of->slices++;
    }
    for (lf_node n = 0; n < from.g->count; n++)
        if (cut[n].slices > 0 && cut[n].taken > from.g->node[n].shape.dim[cut[n].axis].coef)
            cut[n].slices = 0;
}

lf_status lf_sweep(lf_sweeper *s, lf_scene from, lf_node *map)
{
    lf_rw *rw = &s->rw;
    size_t count = (size_t)from.g->count;
    bool merge = lf_rule_on(s, lf_rule_cse);
    bool *live = lf_arena_array(rw->g->arena, count, sizeof *live);
    int32_t *uses = lf_arena_array(rw->g->arena, count, sizeof *uses);
    slicing *cut = lf_arena_array(rw->g->arena, count, sizeof *cut);
    if (!live || !uses || !cut)
        return LF_ERR_NOMEM;
    lf_scene_live(from, live, uses);
    count_slices(from, live, cut);
    for (lf_node n = 0; n < from.g->count && !rw->status; n++) {
        lf_op op = from.g->node[n].op;
        map[n] = LF_NONE;
        if (!live[n] && op != LF_OP_input && op != LF_OP_param)
            continue;
        lf_node r = visit(s, from, n, map, merge);
        if (r == LF_NONE)
            return rw->status ? rw->status : LF_ERR_NOMEM;
        rw->facts[r].uses += uses[n];
        rw->facts[r].slices += cut[n].slices;
        map[n] = r;
    }
    if (rw->status)
        return rw->status;
    lf_node *output = lf_arena_array(rw->g->arena, (size_t)from.g->outputs, sizeof *output);
    for (int32_t i = 0; output && i < from.g->outputs; i++)
        output[i] = map[from.g->output[i]];
    return output ? lf_graph_return(rw->g, output, (size_t)from.g->outputs) : LF_ERR_NOMEM;
}
