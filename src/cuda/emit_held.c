/* SPDX-License-Identifier: Apache-2.0 */
/* A phase that goes on with the product's sums in registers: what a softmax or a norm does once the statistics are
 * known. Nothing is kept in memory for it. */
#include "cuda/emit_parts.h"

/* Multiprocessors of an H200, and how many of them waves of whole row blocks must keep busy. */
enum { UNITS = 132, BUSY = 112, SHORTEST = 8 };

/* Blocks that wait for a whole row hold as many tiles as a row has: there must be room for whole rows, and little left
 * over; few rows are one wave in any case. */
static bool has_room(lf_cuda_target target, const lf_product *p, const lf_held *held)
{
    const lf_tile *shape = &lf_tile_table[target.shape];
    const int64_t tiles = (p->n.coef + shape->columns - 1) / shape->columns, blocks = tiles * shape->cluster;
    return !held->waits || (target.unit == LF_UNIT_WGMMA && !target.small && !shape->turns && blocks <= UNITS &&
                            (shape->few || UNITS / blocks * blocks >= BUSY));
}

/* Do segments lie within a partial's columns, each in one thread's sums? */
static bool suits(const lf_held *held)
{
    return held->run < 0 || (held->length >= SHORTEST && LF_CUDA_TILE % held->length == 0);
}

lf_held lf_held_on(lf_cuda_target target, const lf_group *g)
{
    const lf_held none = {.phase = -1, .kept = -1, .run = -1};
    const lf_product *p = lf_tensor_product(target, g);
    return p && g->held.phase >= 0 && suits(&g->held) && has_room(target, p, &g->held) ? g->held : none;
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
    lf_emit_steps(e, held->phase, 2);
    e->tiles = false;
    lf_str_add(&e->s, "    }\n");
}
