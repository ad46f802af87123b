/* SPDX-License-Identifier: Apache-2.0 */
/* A phase that goes on with the product's sums in registers: what a softmax or a norm does once the statistics are
 * known. Nothing is kept in memory for it. */
#include "cuda/emit_parts.h"

/* Multiprocessors of an H200, and how many of them waves of whole row blocks must keep busy. */
enum { UNITS = 132, BUSY = 112, SHORTEST = 8 };

static bool repeats_columns(const lf_access *a)
{
    bool still = true;
    for (int i = a->row_axes; i < a->rank; i++)
        still = still && (a->stride[i].coef == 0 || lf_extent_is(a->extent[i], 1));
    return still;
}

/* [count*1, length*0]: one result for each run of neighbouring columns. */
static bool repeats_in_runs(const lf_access *a, int64_t length)
{
    return a->rank == a->row_axes + 2 && lf_extent_is(a->stride[a->row_axes], 1) &&
           a->stride[a->row_axes + 1].coef == 0 && lf_extent_is(a->extent[a->row_axes + 1], length);
}

/* One value is held: the same in all of the phase's loads, and where it was stored. */
static bool holds(const lf_phase *before, const lf_access *from, lf_held *held)
{
    const lf_store *store = lf_find_store(before, LF_KEPT, from->index);
    if (!store || !lf_access_same(&store->to, from) || (held->kept >= 0 && held->kept != from->index))
        return false;
    held->kept = from->index;
    held->step = store->step;
    return true;
}

static bool knows(const lf_emitter *e, const lf_access *from, lf_held *held)
{
    const lf_stat *st = &e->g->stat[from->index];
    if (st->phase != e->tensor->phase)
        return false;
    if (st->span == LF_SPAN_ROW) {
        held->waits = true;
        return repeats_columns(from);
    }
    if (st->span != LF_SPAN_SEGMENT || !lf_extent_known(st->length) || (held->run >= 0 && held->run != from->index))
        return false;
    held->run = from->index;
    held->length = st->length.coef;
    return held->length >= SHORTEST && LF_CUDA_TILE % held->length == 0 && e->tensor->n.coef % held->length == 0 &&
           repeats_in_runs(from, held->length) && st->from.place == LF_KEPT &&
           lf_find_store(&e->g->phase[st->phase], LF_KEPT, st->from.index);
}

/* Statistics of the product's phase that are neither of rows nor the one that is held want the value in memory. */
static bool others_do_without(const lf_emitter *e, const lf_held *held)
{
    for (int32_t i = 0; i < e->g->stats; i++) {
        const lf_stat *st = &e->g->stat[i];
        if (st->phase == held->phase ||
            (st->phase == e->tensor->phase && st->span == LF_SPAN_ROW && st->step != held->step) ||
            (st->phase == e->tensor->phase && st->span != LF_SPAN_ROW && i != held->run))
            return false;
    }
    return held->run < 0 || e->g->stat[held->run].from.index == held->kept;
}

/* Blocks that wait for a whole row hold as many tiles as a row has: there must be room for whole rows, and little left
 * over; few rows are one wave in any case. */
static bool has_room(const lf_emitter *e, const lf_held *held)
{
    const lf_tile *shape = &lf_tile_table[e->target.shape];
    const int64_t tiles = (e->tensor->n.coef + shape->columns - 1) / shape->columns, blocks = tiles * shape->cluster;
    return !held->waits || (e->target.unit == LF_UNIT_WGMMA && !e->target.small && !shape->turns && blocks <= UNITS &&
                            (shape->few || UNITS / blocks * blocks >= BUSY));
}

lf_held lf_find_held(const lf_emitter *e)
{
    const lf_held none = {.phase = -1, .kept = -1, .run = -1};
    const lf_group *g = e->g;
    lf_held held = none;
    if (!e->tensor)
        return none;
    const int32_t before = e->tensor->phase, phase = before + 1;
    if (phase != g->phases - 1 || g->phase[phase].one_row || !lf_extent_same(g->phase[phase].width, e->tensor->n))
        return none;
    held.phase = phase;
    for (int32_t i = 0; i < g->phase[phase].steps; i++) {
        const lf_step *s = &g->phase[phase].step[i];
        bool good = s->kind != LF_STEP_PRODUCT;
        if (s->kind == LF_STEP_LOAD && s->from.place == LF_KEPT)
            good = holds(&g->phase[before], &s->from, &held);
        else if (s->kind == LF_STEP_LOAD && s->from.place == LF_STAT)
            good = knows(e, &s->from, &held);
        else if (s->kind == LF_STEP_LOAD)
            good = s->from.place == LF_VALUE && !lf_find_store(&g->phase[before], LF_VALUE, s->from.index);
        if (!good)
            return none;
    }
    return held.kept >= 0 && others_do_without(e, &held) && has_room(e, &held) ? held : none;
}

/* ---- text ---- */

static void emit_known(lf_emitter *e)
{
    lf_str_add(&e->s, "    struct Known {\n");
    for (int32_t i = 0; i < e->g->stats; i++)
        if (e->g->stat[i].phase == e->tensor->phase)
            lf_str_addf(&e->s, "        float stat%d[%d]; // %s for %s\n", (int)i,
                        lf_monoid_row(e->g->stat[i].monoid)->results, lf_monoid_row(e->g->stat[i].monoid)->name,
                        lf_at(e->graph, e->g->stat[i].node)->name);
    lf_str_add(&e->s, "    };\n"
                      "    static __device__ __forceinline__ void total(const Args &a, const i64 row, Known &known)\n"
                      "    {\n");
    for (int32_t i = 0; i < e->g->stats; i++)
        if (lf_is_fed(e, i, e->tensor->phase)) {
            lf_str_add(&e->s, "        ");
            lf_emit_partials(e, i);
            lf_str_addf(&e->s, ".finish((double)%lld, known.stat%d);\n", (long long)e->tensor->n.coef, (int)i);
        }
    lf_str_add(&e->s, "    }\n");
    if (e->held.run >= 0)
        lf_str_addf(&e->s,
                    "    typedef %s_stat<float> Run;\n"
                    "    static __device__ __forceinline__ void run(const Run &s, Known &known) { s.finish(%lld.0f, "
                    "known.stat%d); }\n",
                    lf_monoid_row(e->g->stat[e->held.run].monoid)->name, (long long)e->held.length, (int)e->held.run);
}

void lf_emit_held(lf_emitter *e)
{
    const lf_held *held = &e->held;
    lf_str_addf(&e->s,
                "    enum { HELD = %d, WAITS = %d, RUN = %lld }; // goes on with what is in registers; "
                "for whole rows' statistics; columns of a segment\n",
                held->phase >= 0, held->waits, (long long)held->length);
    if (held->phase < 0)
        return;
    emit_known(e);
    lf_str_addf(&e->s,
                "    // phase %d: %s x %s\n    template <int W>\n"
                "    static __device__ __forceinline__ void later(const Args &a, const i64 row, const i64 rows, "
                "const bool here, const i64 col, float (&p)[W], const Known &known)\n    {\n",
                (int)held->phase, lf_extent_text(e->graph, e->g->rows),
                lf_extent_text(e->graph, e->g->phase[held->phase].width));
    e->tiles = true;
    lf_emit_steps(e, held->phase, "p[w]", 2);
    e->tiles = false;
    lf_str_add(&e->s, "    }\n");
}
