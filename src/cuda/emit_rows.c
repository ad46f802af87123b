/* SPDX-License-Identifier: Apache-2.0 */
/* Stages that go row by row: T threads take a row through a range of phases, with everything that is complete within a
 * row. */
#include <stdio.h>
#include <string.h>

#include "cuda/emit_parts.h"

/* Rows of more than LONG elements take a group of threads, others a warp; those of one the lanes that join partials. A
 * row that is multiplied and wanted again stays in registers, MOST of which it may take in each thread. */
enum { LONG = 1024, BLOCK = 256, GROUP = 128, WARP = 32, QUAD = 4, MOST = 32 };

/* Bytes of a block's shared memory in which coming rows wait, each BLOCK * MOST elements at most: two or more. Two
 * blocks of a multiprocessor have 128 KB on their way, three times what memory takes to be busy; more would leave less
 * of the 256 KB for the cache that the weight of several columns is read from for every row (64 KB of doubles each; of
 * one it is in registers), and three rows were slower than two also there. What lies there, in bytes: a ring of
 * text/ring.cu begins at a multiple of LIES, a line of the cache, and has a BARRIER for each row. */
enum { RING = 64 << 10, LIES = 128, BARRIER = 8 };

static bool is_long(lf_extent width)
{
    return !lf_extent_known(width) || width.coef > LONG;
}

/* The first narrow product of the range; NULL where it has none. */
static const lf_product *narrow_in(const lf_emitter *e, const lf_range *r)
{
    for (int32_t phase = r->first; phase < r->end && !r->product; phase++)
        if (lf_product_in(e->g, phase))
            return lf_product_in(e->g, phase);
    return NULL;
}

/* From the plan alone: bits must not depend on the batch. */
static int threads_a_row(const lf_emitter *e, const lf_range *r)
{
    const lf_product *narrow = narrow_in(e, r);
    bool long_rows = narrow && is_long(narrow->k), one = e->role == LF_CUDA_MAIN && !narrow;
    for (int32_t p = r->first; p < r->end; p++) {
        long_rows = long_rows || is_long(e->g->phase[p].width);
        one = one && lf_extent_is(e->g->phase[p].width, 1);
    }
    const bool all = narrow && lf_extent_known(narrow->k) && narrow->k.coef > GROUP * MOST && e->threads == BLOCK;
    return all ? BLOCK : long_rows ? GROUP : one ? QUAD : WARP;
}

bool lf_is_of_block(const lf_emitter *e, int32_t kept)
{
    lf_touch at;
    if (e->role != LF_CUDA_MAIN || e->ranges > 1 || threads_a_row(e, e->range) != e->threads ||
        kept >= LF_CUDA_SCRATCH / (int32_t)sizeof(float) || e->g->kept[kept].one_row ||
        !lf_extent_is(e->g->kept[kept].width, 1))
        return false;
    for (lf_touches all = lf_touches_of(e->g); lf_touch_next(&all, &at);)
        if (lf_touches_this(&at, LF_KEPT, kept) && (at.by == LF_TOUCH_X || at.by == LF_TOUCH_TAKE))
            return false;
    return true;
}

/* ---- statistics ---- */

static void emit_finish(lf_emitter *e, int32_t index)
{
    const lf_stat *st = &e->g->stat[index];
    lf_str_add(&e->s, ".finish((double)");
    lf_emit_extent(e, e->g->phase[st->phase].width);
    lf_str_addf(&e->s, ", stat%d);\n", (int)index);
    for (int k = 0; k < lf_monoid_row(st->monoid)->results; k++)
        if (e->result[index][k] >= 0)
            lf_str_addf(&e->s, "    if (tid == 0) a.area%d[row] = stat%d[%d];\n", (int)e->result[index][k],
                        (int)index, k);
}

static void emit_stat_comment(lf_emitter *e, int32_t index)
{
    const lf_stat *st = &e->g->stat[index];
    lf_str_addf(&e->s, "    // %s for %s\n", lf_monoid_row(st->monoid)->name, lf_at(e->graph, st->node)->name);
}

int lf_partial_columns(const lf_emitter *e)
{
    return e->tensor ? LF_CUDA_TILE / lf_made_as_one(e->g) : LF_CUDA_TILE;
}

void lf_emit_partials(lf_emitter *e, int32_t stat)
{
    const int columns = lf_partial_columns(e);
    const lf_monoid_info *m = lf_monoid_row(e->g->stat[stat].monoid);
    const lf_extent width = e->g->phase[e->g->stat[stat].phase].width;
    lf_str_addf(&e->s, "partials<%s_stat>::of<%s>(a.area%d + row * ((", m->name,
                e->role == LF_CUDA_MAIN ? "false" : "true", (int)e->partial[stat]);
    lf_emit_extent(e, width);
    lf_str_addf(&e->s, " + %d) / %d * %d), (int)((", columns - 1, columns, m->states);
    lf_emit_extent(e, width);
    lf_str_addf(&e->s, " + %d) / %d))", columns - 1, columns);
}

/* ROW: from what the threads of this row have folded, or from a product's partials. */
static void emit_row_stat(lf_emitter *e, int32_t index, bool partials)
{
    const lf_stat *st = &e->g->stat[index];
    const lf_monoid_info *m = lf_monoid_row(st->monoid);
    emit_stat_comment(e, index);
    lf_str_addf(&e->s, "    float stat%d[%d];\n    ", (int)index, m->results);
    if (partials)
        lf_emit_partials(e, index);
    else
        lf_str_addf(&e->s, "join_row<T>(fold%d.total())", (int)index);
    emit_finish(e, index);
}

static void emit_results(lf_emitter *e, int32_t index, lf_extent own)
{
    for (int k = 0; k < LF_MAX_RESULTS; k++) {
        if (e->result[index][k] < 0) {
            lf_str_add(&e->s, ", 0");
            continue;
        }
        lf_str_addf(&e->s, ", a.area%d + row * ", (int)e->result[index][k]);
        lf_emit_extent(e, own);
    }
    lf_str_add(&e->s, ");\n    row_sync<T>();\n");
}

/* SEGMENT, WINDOW: from the finished row. */
static void emit_inner_stat(lf_emitter *e, int32_t index)
{
    const lf_stat *st = &e->g->stat[index];
    const bool window = st->span == LF_SPAN_WINDOW;
    lf_extent own = st->count;
    if (window && !lf_extent_mul(st->count, st->groups, &own))
        e->failed = true; /* the reader allows no such extents */
    emit_stat_comment(e, index);
    lf_str_addf(&e->s, "    %s<T, %s_stat>([&](i64 c) { return ", window ? "windows" : "segments",
                lf_monoid_row(st->monoid)->name);
    lf_emit_row_element(e, &st->from, "c");
    lf_str_add(&e->s, "; }, ");
    if (window) {
        lf_emit_extent(e, st->groups);
        lf_str_add(&e->s, ", ");
    }
    lf_emit_extent(e, st->count);
    lf_str_add(&e->s, ", ");
    lf_emit_extent(e, st->length);
    if (window)
        lf_str_addf(&e->s, ", Window{%lld, %lld, %lld, %lld, %s}", (long long)st->window.kernel,
                    (long long)st->window.stride, (long long)st->window.padding, (long long)st->window.dilation,
                    st->window.include_pad ? "true" : "false");
    lf_str_add(&e->s, ", tid");
    emit_results(e, index, own);
}

static void emit_stat(lf_emitter *e, int32_t index, bool partials)
{
    if (e->g->stat[index].span == LF_SPAN_ROW)
        emit_row_stat(e, index, partials);
    else
        emit_inner_stat(e, index);
}

/* ---- phases ---- */

/* Does a phase of the range store what the product multiplies? Then it is not there when the row begins. */
static bool is_made_on_the_way(const lf_emitter *e, const lf_range *r)
{
    for (int32_t phase = r->first; phase < r->end; phase++)
        if (lf_find_store(&e->g->phase[phase], e->g->x.place, e->g->x.index))
            return true;
    return false;
}

/* The turns in which a row's threads hold the row a narrow product multiplies, where a later phase of the range reads
 * that too; 0: it is not in registers. */
static int register_turns(const lf_emitter *e, const lf_range *r, int threads)
{
    const lf_product *p = narrow_in(e, r);
    if (e->role != LF_CUDA_MAIN || !p || p->k.coef % (4 * threads) != 0 || p->k.coef > threads * MOST ||
        is_made_on_the_way(e, r))
        return 0;
    lf_touch at;
    for (lf_touches later = lf_touches_in(e->g, p->phase, r->end); lf_touch_next(&later, &at);)
        if (at.by == LF_TOUCH_LOAD && lf_is_row_in_registers(e, at.phase, at.access))
            return (int)p->k.coef / (4 * threads);
    return 0;
}

const char *lf_product_name(const lf_emitter *e, const lf_product *p, char *name)
{
    if (e->g->products == 1)
        return strcpy(name, "product");
    snprintf(name, LF_PRODUCT_NAME, "product%d", (int)(p - e->g->product));
    return name;
}

/* The values lie in shared memory until the row's threads join something; those of several products are kept. */
static void emit_narrow(lf_emitter *e, const lf_product *p)
{
    char name[LF_PRODUCT_NAME];
    const bool alone = e->g->products == 1;
    lf_product_name(e, p, name);
    lf_str_addf(&e->s, "    // product of %lld columns, in double precision: ", (long long)p->n.coef);
    lf_emit_shape(e, p->weight);
    if (alone)
        lf_str_addf(&e->s, "\n    const float *const %s = ", name);
    else
        lf_str_addf(&e->s, "\n    float %s[%lld];\n    keep_product(%s, ", name, (long long)p->n.coef, name);
    lf_str_addf(&e->s, "%s_product<T, %lld, %lld>(", e->register_turns > 0 ? "register" : "narrow",
                (long long)p->n.coef, (long long)p->k.coef);
    if (e->register_turns > 0) {
        lf_str_add(&e->s, "regs");
    } else {
        lf_str_add(&e->s, "&");
        lf_emit_row_element(e, &e->g->x, "0");
    }
    lf_str_addf(&e->s, ", a.narrow[%d], tid%s)%s;\n", (int)p->index, e->weight_in_registers ? ", column" : "",
                alone ? "" : ")");
}

static void emit_phase(lf_emitter *e, int32_t phase)
{
    const lf_phase *p = &e->g->phase[phase];
    const int lanes = lf_emit_lanes(e, p->width);
    lf_str_addf(&e->s, "    // phase %d: %s x %s\n", (int)phase,
                p->one_row ? "1" : lf_extent_text(e->graph, e->g->rows), lf_extent_text(e->graph, p->width));
    for (int32_t i = 0; i < e->g->products; i++)
        if (e->g->product[i].phase == phase)
            emit_narrow(e, &e->g->product[i]);
    for (int32_t i = 0; i < e->g->stats; i++)
        if (lf_is_fed(e, i, phase))
            lf_str_addf(&e->s, "    fold<%s_stat> fold%d;\n", lf_monoid_row(e->g->stat[i].monoid)->name, (int)i);
    if (p->steps > 0) {
        lf_emit_loads_ahead(e, phase, 1);
        e->ahead = true;
        if (e->register_turns > 0 && lf_extent_same(p->width, e->g->product[0].k)) {
            lf_str_addf(&e->s,
                        "#pragma unroll\n    for (int turn = 0; turn < %d; ++turn) {\n"
                        "        const i64 col = (turn * T + tid) * 4;\n",
                        e->register_turns);
        } else {
            /* few rows are done again, by code that is small */
            lf_str_addf(&e->s, "#pragma unroll %d\n    for (i64 col = tid * %d; col < ",
                        e->role == LF_CUDA_MAIN ? 4 : 1, lanes);
            lf_emit_extent(e, p->width);
            lf_str_addf(&e->s, "; col += T * %d) {\n", lanes);
        }
        lf_str_addf(&e->s, "        enum { W = %d };\n", lanes);
        lf_emit_steps(e, phase, 2);
        e->ahead = false;
        for (int32_t i = 0; i < e->g->stats; i++)
            if (lf_is_fed(e, i, phase))
                lf_str_addf(&e->s, "        EACH fold%d.put(v%d[w]);\n", (int)i, (int)e->g->stat[i].step);
        lf_str_add(&e->s, "    }\n    row_sync<T>();\n");
    }
    for (int32_t i = 0; i < e->g->stats; i++)
        if (e->g->stat[i].phase == phase && e->g->stat[i].span != LF_SPAN_COLUMN)
            emit_stat(e, i, false);
    if (phase == e->arrives)
        lf_str_add(&e->s, "    if (tid == 0 && row + gridDim.x >= rows) // nothing is flagged by this block any more\n"
                          "        arrived = grid_arrive(c);\n");
}

/* The last phase in which a block's last row may be flagged, where what follows it need not be seen by whoever does
 * rows again: the stores of that row, for which the others then do not wait. -1 where that is not so, or a block has
 * several rows at a time. */
static int32_t arrival(const lf_emitter *e, int32_t range, int threads)
{
    const lf_range *r = &e->range[range];
    int32_t last = -1;
    if (!e->guarded || threads != e->threads || e->group != e->plan->groups - 1 || range != e->ranges - 1)
        return -1;
    for (int32_t i = 0; i < e->g->stats; i++)
        if (e->column[i] >= 0 && e->g->stat[i].phase >= r->first)
            return -1; /* a stage of its own follows */
    for (int32_t phase = r->first; phase < r->end; phase++)
        if (e->g->phase[phase].watches > 0)
            last = phase;
    return last;
}

/* What the functions of rows take besides, and are given, where blocks arrive early. */
static const char *arrival_taken(const lf_emitter *e)
{
    return e->arrives >= 0 ? ", const Control &c, unsigned &arrived" : "";
}
static const char *arrival_given(const lf_emitter *e)
{
    return e->arrives >= 0 ? ", c, arrived" : "";
}

/* Every so many rows are a block's. */
static void emit_turns(lf_emitter *e, const char *name, int threads)
{
    if (threads < WARP)
        lf_str_addf(&e->s,
                    ";\n    for (i64 first = (i64)blockIdx.x * ROWS; first < rows; first += (i64)gridDim.x * ROWS)\n"
                    "        %s_row(a, min(first + threadIdx.x / T, rows - 1), rows, threadIdx.x %% T); "
                    "// whole warps: those past the end do the last row again\n",
                    name);
    else
        lf_str_addf(&e->s,
                    ";\n"
                    "    for (i64 row = (i64)blockIdx.x * ROWS + threadIdx.x / T; row < rows; "
                    "row += (i64)gridDim.x * ROWS)\n%s%s_row(a, row, rows, threadIdx.x %% T%s);\n",
                    e->role != LF_CUDA_MAIN ? "        if (!left_out(a.redo, row, rows))\n            " : "        ",
                    name, arrival_given(e));
}

/* The slots of the ring in which rows of an input wait for registers; 0 where they come in those. Only an input's:
 * what an earlier stage wrote would have to be made known to copies first. */
static int ring_slots(const lf_emitter *e, int threads)
{
    const bool whole = e->target.unit == LF_UNIT_WGMMA && e->target.aligned && threads == e->threads;
    return whole && e->g->x.dtype == LF_F32 && lf_is_dense_input(e->plan, &e->g->x)
               ? RING / (int)(e->g->product[0].k.coef * (int64_t)sizeof(float))
               : 0;
}

static unsigned ring_bytes(const lf_emitter *e, int slots)
{
    return slots > 0 ? (unsigned)(LIES + slots * (e->g->product[0].k.coef * (int64_t)sizeof(float) + BARRIER)) : 0;
}

/* Likewise, with a row in registers and others on their way. */
static void emit_rows_ahead(lf_emitter *e, const char *name, int turns, int slots)
{
    lf_str_add(&e->s, ";\n");
    if (e->weight_in_registers)
        lf_str_addf(&e->s, "    narrow_column<T, %lld, %d> column;\n", (long long)e->g->product[0].k.coef, turns);
    if (slots > 0)
        lf_str_addf(&e->s, "    rows_by_ring<T, %d, %d>(\n", turns, slots);
    else
        lf_str_addf(&e->s, "    rows_by_registers<%s, T, %d>(\n", lf_emit_aligned(e, &e->g->x), turns);
    lf_str_add(&e->s, "        rows, [&](const i64 row) { return &");
    lf_emit_row_element(e, &e->g->x, "0");
    lf_str_add(&e->s, "; },\n");
    if (e->weight_in_registers)
        lf_str_addf(&e->s, "        [&] { column.load(a.narrow[%d], threadIdx.x %% T); },\n",
                    (int)e->weight_in_registers->index);
    else if (slots > 0)
        lf_str_add(&e->s, "        [] {},\n");
    lf_str_addf(&e->s,
                "        [&](const i64 row, const float (&regs)[%d][4]) { "
                "%s_row(a, row, rows, threadIdx.x %% T, regs%s%s); });\n",
                turns, name, e->weight_in_registers ? ", column" : "", arrival_given(e));
}

void lf_emit_rows(lf_emitter *e, int32_t range)
{
    const lf_range *r = &e->range[range];
    const int threads = threads_a_row(e, r);
    const lf_extent rows = e->g->phase[r->first].one_row ? lf_extent_of(1) : e->g->rows;
    char name[32];
    e->register_turns = register_turns(e, r, threads);
    e->arrives = arrival(e, range, threads);
    snprintf(name, sizeof name, "g%d_rows%d", (int)e->group, (int)r->first);
    const int turns = e->register_turns, slots = turns > 0 ? ring_slots(e, threads) : 0;
    lf_str_addf(&e->s,
                "// A row through phases %d to %d.\n"
                "__device__ __forceinline__ void %s_row(const Args &a, const i64 row, const i64 rows, const int tid",
                (int)r->first, (int)r->end - 1, name);
    /* a double is two registers an element; the next row, which would take one, is in the ring */
    const lf_product *narrow = narrow_in(e, r);
    e->weight_in_registers = slots > 0 && e->g->products == 1 && lf_extent_is(narrow->n, 1) ? narrow : NULL;
    if (turns > 0)
        lf_str_addf(&e->s, ", const float (&regs)[%d][4]", turns);
    if (e->weight_in_registers)
        lf_str_addf(&e->s, ", const narrow_column<%d, %lld, %d> &column", threads, (long long)e->g->product[0].k.coef,
                    turns);
    lf_str_addf(&e->s, "%s)\n{\n    enum { T = %d };\n", arrival_taken(e), threads);
    for (int32_t i = 0; i < e->g->stats; i++)
        if (lf_finished_in(e, i) == range && lf_range_of(e, e->g->stat[i].phase) != range)
            emit_stat(e, i, true);
    for (int32_t p = r->first; p < r->end; p++)
        emit_phase(e, p);
    e->register_turns = 0;
    lf_str_addf(&e->s,
                "}\n\n__device__ __forceinline__ void %s(const Args &a%s)\n{\n    enum { T = %d%s };\n"
                "    const i64 rows = ",
                name, arrival_taken(e), threads, turns > 0 ? "" : ", ROWS = THREADS / T");
    lf_emit_extent(e, rows);
    if (turns > 0)
        emit_rows_ahead(e, name, turns, slots);
    else
        emit_turns(e, name, threads);
    if (e->arrives >= 0)
        lf_str_add(&e->s, "    if (threadIdx.x == 0 && blockIdx.x >= rows)\n        arrived = grid_arrive(c);\n");
    lf_str_add(&e->s, "}\n\n");
    e->weight_in_registers = NULL;
    lf_cuda_stage *stage = lf_emit_stage(e, name, LF_CUDA_ROWS, rows, e->g->phase[r->first].width);
    if (stage)
        stage->rows_a_block = e->threads / threads, stage->ahead = turns > 0, stage->ring = ring_bytes(e, slots),
        stage->arrives = e->arrives >= 0;
}
