/* SPDX-License-Identifier: Apache-2.0 */
/* The loops over groups, phases and blocks of rows. Threads change who does a piece, never what a piece is made of. */
#include <assert.h>

#include "cpu/parts.h"

typedef struct task {
    lf_run run;
    const lf_group_at *group;
    const lf_phase_at *phase;
    const lf_stat_at *stat;
    float *area;    /* whole grid: the grid's */
    int64_t chunk;  /* statistics a call */
} task;

enum { PACK_WORK = 2 }; /* steps that packing an element of x takes as long as */

static float *scratch_of(const lf_run *run, int slot)
{
    assert(slot < run->instance->threads);
    return run->workspace + run->instance->thread + (size_t)slot * run->instance->thread_size;
}

static lf_pool *pool_for(const lf_run *run, double work)
{
    return work < LF_WORTH_WAKING ? NULL : run->pool;
}

static int64_t runs_of(const lf_group_at *g)
{
    return lf_runs(g->k);
}

static void pack_block(const lf_piece *p, float *packed)
{
    for (int64_t run = 0; run < runs_of(p->group); run++)
        lf_product_pack_x(p, run, packed);
}

/* ---- by blocks ---- */

static void run_block(void *arg, int64_t block, int slot)
{
    const task *t = arg;
    const lf_group_at *g = t->group;
    lf_piece p = {.run = &t->run,
                  .group = g,
                  .scratch = scratch_of(&t->run, slot),
                  .block = block};
    p.area = p.scratch + g->block_area;
    p.row = p.area_row = lf_block_row(g, block);
    p.rows = lf_block_rows(g, block, g->rows);
    float *packed = p.scratch + g->packed_x;
    for (int32_t i = 0; i < g->phases; i++) {
        const lf_phase_at *phase = p.phase = &g->phase[i];
        if (i == g->packs)
            pack_block(&p, packed);
        p.strip_end = phase->strips;
        if (phase->steps > 0)
            lf_tail_run(&p, packed);
        for (int32_t s = 0; s < g->stats; s++)
            if (g->stat[s].phase == i)
                lf_stat_finish(&t->run, &g->stat[s], p.area, p.area_row, 0, p.rows * g->stat[s].own);
    }
}

static void group_by_blocks(task *t)
{
    lf_pool_run(pool_for(&t->run, lf_group_work(t->group)), lf_blocks(t->group, t->group->rows), run_block, t);
}

/* ---- whole grid ---- */

static lf_piece piece_of(const task *t, int64_t block, int slot)
{
    lf_piece p = {.run = &t->run,
                  .group = t->group,
                  .phase = t->phase,
                  .area = t->area,
                  .block = block,
                  .row = lf_block_row(t->group, block),
                  .scratch = scratch_of(&t->run, slot)};
    p.rows = lf_block_rows(t->group, block, t->phase->rows);
    return p;
}

static float *shared_x(const task *t, int64_t block)
{
    return t->area + t->group->packed_x + block * t->group->packed_floats;
}

/* index: over blocks, runs of K. */
static void run_pack(void *arg, int64_t index, int slot)
{
    const task *t = arg;
    const int64_t runs = runs_of(t->group);
    lf_piece p = piece_of(t, index / runs, slot);
    lf_product_pack_x(&p, index % runs, shared_x(t, p.block));
}

/* index: over blocks, ranges of strips. */
static void run_piece(void *arg, int64_t index, int slot)
{
    const task *t = arg;
    const lf_group_at *g = t->group;
    const int64_t strips = t->phase->strips, ranges = t->phase->ranges, range = index % ranges;
    lf_piece p = piece_of(t, index / ranges, slot);
    p.strip = strips * range / ranges;
    p.strip_end = strips * (range + 1) / ranges;
    float *packed = g->share_x ? shared_x(t, p.block) : p.scratch + g->packed_x;
    if (!g->share_x && lf_multiplies_packed(g, t->phase))
        pack_block(&p, packed);
    lf_tail_run(&p, packed);
}

static void run_stat(void *arg, int64_t index, int slot)
{
    const task *t = arg;
    (void)slot;
    const int64_t from = index * t->chunk, all = t->stat->rows * t->stat->own;
    lf_stat_finish(&t->run, t->stat, t->area, 0, from, lf_min64(from + t->chunk, all));
}

static void finish_grid(task *t, const lf_stat_at *s)
{
    const int64_t all = s->rows * s->own;
    int64_t each = s->span == LF_SPAN_WINDOW ? s->window.kernel : s->span == LF_SPAN_SEGMENT ? s->length : s->strips;
    each = 4 * lf_max64(each, 1); /* operations a statistic, roughly */
    t->stat = s;
    t->chunk = lf_max64(1, LF_WORTH_WAKING / each);
    lf_pool_run(pool_for(&t->run, (double)each * (double)all), lf_ceil_div(all, t->chunk), run_stat, t);
}

static void phase_over_grid(task *t, int32_t index)
{
    const lf_group_at *g = t->group;
    const lf_phase_at *phase = t->phase = &g->phase[index];
    lf_pool *pool = pool_for(&t->run, lf_phase_work(g, phase));
    lf_pool *packers = pool_for(&t->run, PACK_WORK * (double)g->rows * (double)g->k);
    const int64_t blocks = lf_blocks(g, phase->rows);
    if (phase->steps > 0 && phase->strips > 0 && blocks > 0) {
        if (index == g->packs && g->share_x)
            lf_pool_run(packers, blocks * runs_of(g), run_pack, t);
        lf_pool_run(pool, blocks * phase->ranges, run_piece, t);
    }
    for (int32_t s = 0; s < g->stats; s++)
        if (g->stat[s].phase == index)
            finish_grid(t, &g->stat[s]);
}

void lf_cpu_run(const lf_cpu_instance *instance, const lf_cpu_weights *weights, const void *const *input,
                void *const *output, void *workspace, unsigned char *flagged, int64_t batch, lf_pool *pool)
{
    assert(lf_pool_threads(pool) <= instance->threads);
    task t = {.run = {instance, weights, input, output, workspace, flagged, batch, pool}};
    t.area = t.run.workspace + instance->shared;
    for (int32_t g = 0; g < instance->groups; g++) {
        t.group = &instance->group[g];
        if (!t.group->whole_grid)
            group_by_blocks(&t);
        for (int32_t i = 0; t.group->whole_grid && i < t.group->phases; i++)
            phase_over_grid(&t, i);
    }
}
