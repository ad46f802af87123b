/* SPDX-License-Identifier: Apache-2.0 */
/* How a group runs (by blocks of rows, or phase after phase over the whole grid), how many rows a block has, and
 * where everything it needs lies. None of these change a result's bits, but for the blocks of column statistics,
 * which are therefore the same for any number of threads. */
#include <unistd.h>

#include "base/mem.h"
#include "cpu/parts.h"

enum {
    /* The most rows of a block: with 256, w is read from memory a 256th as often as it is multiplied with, which hides
     * behind the multiplying. COLUMN_ROWS: where columns have statistics, whose bits depend on it. */
    GEMM_ROWS = 256,
    COLUMN_ROWS = 128,
    OTHER_ROWS = 256,
    /* Where w is near, in tiles. */
    BLOCK_TILES = 9,
    SMALL_TILES = 3,
    /* What the rows of a block may carry along. A product makes so much of each row that the last-level cache will
     * do; otherwise rows should stay in the second level between phases. */
    GEMM_BYTES = 8 << 20,
    OTHER_BYTES = 1 << 19,
    /* Fewer rows for each thread than this, and threads share w instead: each reading all of it would take longer than
     * multiplying. NEAR: where w is, which is read several times as fast. */
    GEMM_ROWS_A_THREAD = 64,
    NEAR_ROWS_A_THREAD = 16,
    OTHER_ROWS_A_THREAD = 4,
    /* With so many a strip of w is read as fast as it is multiplied with; fewer are done no sooner. NEAR: as above;
     * SHARED: all of w stays in the last-level cache, of SHARED_BYTES at least. */
    ROWS_A_READ = 32,
    SHARED_ROWS_A_READ = 16,
    NEAR_ROWS_A_READ = 8,
    SHARED_BYTES = 8 << 20,
    /* What a tile costs beside its rows, and a strip beside its tiles, in rows. */
    TILE_ROWS = 2,
    STRIP_ROWS = 4,
    /* What a loop that threads share costs: 2 us and more with many threads, in steps on elements. */
    LOOP_WORK = 1 << 14,
    /* A product does about so many operations while a step does one. */
    PRODUCT_RATE = 16,
    FLOATS_IN_DOUBLE = sizeof(double) / sizeof(float)
};

size_t lf_layout_take_elements(lf_layout *l, lf_dtype type, int64_t a, int64_t b)
{
    int64_t bytes;
    if (a < 0 || b < 0 || !lf_mul_i64(a, b, &bytes) || !lf_mul_i64(bytes, (int64_t)lf_dtype_size(type), &bytes)) {
        l->overflow = true;
        return l->floats;
    }
    return lf_layout_take(l, lf_ceil_div(bytes, sizeof(float)), 1, 1);
}

size_t lf_layout_take(lf_layout *l, int64_t a, int64_t b, int64_t c)
{
    size_t at = l->floats, size;
    const size_t most = SIZE_MAX / (2 * sizeof(float)); /* so that bytes, rounded up, still fit */
    if (a < 0 || b < 0 || c < 0 || !lf_mul_size((size_t)a, (size_t)b, &size) || !lf_mul_size(size, (size_t)c, &size) ||
        size > most || !lf_add_size(at, (size + 15) / 16 * 16, &l->floats) || l->floats > most)
        l->overflow = true;
    return at;
}

static bool has_columns(const lf_group_at *g)
{
    for (int32_t i = 0; i < g->stats; i++)
        if (g->stat[i].span == LF_SPAN_COLUMN)
            return true;
    return false;
}

static bool has_one_row(const lf_group_at *g, const lf_group *plan)
{
    bool found = false;
    for (int32_t i = 0; i < g->phases; i++)
        found = found || g->phase[i].one_row;
    for (int32_t i = 0; i < plan->kepts; i++)
        found = found || plan->kept[i].one_row;
    return found;
}

/* What a row takes along from phase to phase. */
static double bytes_a_row(const lf_group_at *g, const lf_group *plan, bool gemm, const int64_t *dims)
{
    /* x where it is packed, or where a product reads it again after another */
    double floats = gemm || g->products > 1 ? (double)g->k : 0.0, kept = 0, widest = 0;
    for (int32_t i = 0; i < plan->kepts; i++)
        kept += (double)lf_dtype_size(plan->kept[i].dtype) * (double)lf_extent_at(plan->kept[i].width, dims);
    for (int32_t i = 0; i < g->phases; i++)
        widest = (double)g->phase[i].width > widest ? (double)g->phase[i].width : widest;
    for (int32_t i = 0; i < g->stats; i++)
        floats += (double)(g->stat[i].own * g->stat[i].results +
                           g->stat[i].strips * g->stat[i].states * FLOATS_IN_DOUBLE);
    return kept + sizeof(float) * (floats + (gemm ? 0.0 : widest));
}

/* When the last thread is done, in rows: threads take blocks in order, each block costs its rows and `fixed` more. */
static int64_t time_of(int64_t rows, int64_t block, int threads, int64_t fixed)
{
    int64_t whole = rows / block, rest = rows % block;
    int64_t time = whole / threads * (block + fixed);
    if (whole % threads > 0)
        return time + block + fixed;
    return rest > 0 ? time + rest + fixed : time;
}

static int64_t best_block(int64_t rows, int64_t most, int threads, int64_t fixed)
{
    int64_t best = 1;
    for (int64_t block = 1; block <= most; block++)
        if (time_of(rows, block, threads, fixed) <= time_of(rows, best, threads, fixed))
            best = block;
    return best;
}

static int64_t second_level_cache(void)
{
    enum { USUAL = 1 << 20 };
    long cache = 0;
#ifdef _SC_LEVEL2_CACHE_SIZE /* not everywhere */
    cache = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    return cache > 0 ? cache : USUAL;
}

/* A tile and a run of packed x together should take no more than a third of the second-level cache: w passes through
 * it, and what else the machine does. */
static int64_t gemm_rows(bool columns)
{
    enum { ROW_BYTES = (LF_STRIP + LF_KBLOCK) * sizeof(float) };
    return columns ? COLUMN_ROWS : lf_min64(GEMM_ROWS, second_level_cache() / 3 / ROW_BYTES);
}

static double w_bytes(const lf_group_at *g)
{
    double columns = 0;
    for (int32_t i = 0; i < g->products; i++)
        columns += (double)g->product[i].n;
    return columns * (double)g->k * sizeof(float);
}

/* All of w is small enough to be met again soon: to read it once more, for fewer rows at a time, costs little. */
static bool w_is_near(const lf_group_at *g)
{
    return w_bytes(g) <= 2.0 * (double)second_level_cache();
}

/* The fewest rows for each thread with which threads do not share w. */
static int64_t rows_a_thread(const lf_group_at *g)
{
    return g->packs < 0 ? OTHER_ROWS_A_THREAD : w_is_near(g) ? NEAR_ROWS_A_THREAD : GEMM_ROWS_A_THREAD;
}

/* Cores are never equally fast for long. So blocks of some tiles, then, when each thread has about one left to do, of
 * few: who is ahead takes more of them. False where there are too few rows for that, or no room for a block. */
static bool cut_for_balance(lf_group_at *g, int64_t limit, int mr, int threads)
{
    const int64_t block = BLOCK_TILES * mr, small = SMALL_TILES * mr;
    const int64_t whole = (g->rows - threads * block) / block, rest = g->rows - whole * block;
    if (threads == 1 || whole < threads || block > limit)
        return false;
    g->block_rows = block;
    g->whole_blocks = whole;
    g->small_rows = lf_ceil_div(rest, rest / small / threads * threads); /* as many for each thread */
    return true;
}

double lf_phase_work(const lf_group_at *g, const lf_phase_at *phase)
{
    double each = phase->steps + phase->stores;
    for (int32_t i = 0; i < g->products; i++)
        if (phase == &g->phase[g->product[i].phase])
            each += 2.0 * (double)g->k / PRODUCT_RATE;
    return each * (double)phase->rows * (double)phase->width;
}

double lf_group_work(const lf_group_at *g)
{
    double work = 0;
    for (int32_t i = 0; i < g->phases; i++)
        work += lf_phase_work(g, &g->phase[i]);
    return work;
}

static bool has_phase_worth_waking(const lf_group_at *g)
{
    for (int32_t i = 0; i < g->phases; i++)
        if (lf_phase_work(g, &g->phase[i]) >= LF_WORTH_WAKING)
            return true;
    return false;
}

/* ---- whole grids: a block's columns are cut, too ---- */

/* How long a thread takes to multiply so many rows by a strip of w, in rows. Few wait for the strip to be read. */
static int64_t piece_time(const lf_group_at *g, int mr, int64_t rows)
{
    const int64_t read = w_is_near(g)                  ? NEAR_ROWS_A_READ
                         : w_bytes(g) <= SHARED_BYTES ? SHARED_ROWS_A_READ
                                                      : ROWS_A_READ;
    return g->packs < 0 ? rows + 1 : lf_max64(rows + TILE_ROWS * lf_ceil_div(rows, mr) + STRIP_ROWS, read);
}

/* When the last thread is done with a grid of so many blocks and strips. Threads are never equally fast, so a part of a
 * piece is waited for at the end. */
static double grid_time(const lf_group_at *g, int mr, int64_t blocks, int64_t strips, int threads)
{
    const double piece = (double)piece_time(g, mr, lf_ceil_div(g->rows, blocks));
    return piece * ((double)lf_ceil_div(blocks * strips, threads) + (threads > 1 ? 0.25 : 0));
}

static int64_t widest(const lf_group_at *g)
{
    int64_t strips = 1;
    for (int32_t i = 0; i < g->phases; i++)
        strips = lf_max64(strips, g->phase[i].strips);
    return strips;
}

/* Into how many blocks to cut the rows, of at most `most` rows each. */
static int64_t best_blocks(const lf_group_at *g, int64_t most, int mr, int threads)
{
    const int64_t strips = widest(g), least = lf_max64(lf_ceil_div(g->rows, most), 1);
    const int64_t last = lf_min64(lf_max64(least, lf_ceil_div(8 * (int64_t)threads, strips)), lf_max64(g->rows, 1));
    int64_t best = least;
    for (int64_t blocks = least; blocks <= last; blocks++)
        if (grid_time(g, mr, blocks, strips, threads) < grid_time(g, mr, best, strips, threads))
            best = blocks;
    return best;
}

/* Do threads save more by sharing the grid than their meetings cost? */
static bool is_worth_sharing(const lf_group_at *g, int64_t most, int mr, int threads)
{
    const int64_t strips = widest(g);
    const double alone = grid_time(g, mr, best_blocks(g, most, mr, 1), strips, 1);
    const double together = grid_time(g, mr, best_blocks(g, most, mr, threads), strips, threads);
    return lf_group_work(g) * (1 - together / alone) > (double)LOOP_WORK * g->phases;
}

/* Into how many runs of strips to cut the columns of a phase's blocks. A few pieces a thread even out what they take;
 * columns are cut only where blocks do not suffice, and so that the last thread is done soonest. */
static int64_t best_ranges(const lf_group_at *g, const lf_phase_at *phase, int threads)
{
    const int64_t blocks = lf_blocks(g, phase->rows), strips = phase->strips;
    if (blocks == 0 || strips == 0 || (lf_multiplies_packed(g, phase) && !g->share_x))
        return 1;
    const int64_t least = lf_min64(strips, lf_ceil_div(4 * (int64_t)threads, blocks));
    int64_t best = least, soonest = INT64_MAX;
    for (int64_t ranges = least; ranges <= lf_min64(strips, 2 * least); ranges++) {
        const int64_t time = lf_ceil_div(blocks * ranges, threads) * lf_ceil_div(strips, ranges);
        best = time < soonest ? ranges : best;
        soonest = lf_min64(time, soonest);
    }
    return best;
}

static void schedule_grid(lf_group_at *g, int64_t most, int mr, int threads)
{
    g->block_rows = has_columns(g) ? most : lf_max64(lf_ceil_div(g->rows, best_blocks(g, most, mr, threads)), 1);
    g->small_rows = g->block_rows;
    g->share_x = g->packs >= 0 && lf_blocks(g, g->rows) < 4 * (int64_t)threads;
    for (int32_t i = 0; i < g->phases; i++)
        g->phase[i].ranges = best_ranges(g, &g->phase[i], threads);
}

void lf_group_schedule(lf_group_at *g, const lf_group *plan, int mr, const int64_t *dims, int threads)
{
    const bool gemm = g->packs >= 0;
    const int64_t most = gemm ? gemm_rows(has_columns(g)) : OTHER_ROWS;
    bool few_rows = g->rows / threads < rows_a_thread(g);
    /* One thread will do it where there is little to do, or where few rows leave only the columns of one phase after
     * another to share, and that saves little: nothing is cut for others then. */
    if (lf_group_work(g) < LF_WORTH_WAKING ||
        (few_rows && (!has_phase_worth_waking(g) || !is_worth_sharing(g, most, mr, threads))))
        threads = 1;
    few_rows = few_rows && threads > 1;
    g->whole_grid = plan->schedule == LF_BY_PHASE || has_columns(g) || has_one_row(g, plan) || few_rows;
    g->whole_blocks = 0;
    if (g->whole_grid) {
        schedule_grid(g, most, mr, threads);
        return;
    }
    const double fit = (gemm ? GEMM_BYTES : OTHER_BYTES) / (sizeof(float) + bytes_a_row(g, plan, gemm, dims));
    int64_t limit = fit < (double)most ? lf_max64((int64_t)fit, 1) : most;
    if (!gemm && g->products > 1 && limit > LF_DOTS)
        limit -= limit % LF_DOTS; /* those share loads of w */
    if (gemm && w_is_near(g) && cut_for_balance(g, limit, mr, threads))
        return;
    g->block_rows = g->small_rows = best_block(g->rows, limit, threads, gemm ? 8 : 1);
}

/* Floats a block of x takes when packed. */
static int64_t x_floats(const lf_group_at *g, const lf_kern *kern, lf_layout *l)
{
    int64_t elements;
    if (!lf_mul_i64(g->block_rows, g->k, &elements) || elements > INT64_MAX / 64) {
        l->overflow = true;
        return 0;
    }
    return lf_x_runs_floats(kern, g->x_type, g->block_rows, g->k);
}

/* What rows carry from phase to phase. */
static void layout_area(lf_group_at *g, const lf_group *plan, const lf_kern *kern, const int64_t *dims, size_t *in_area,
                        lf_layout *area)
{
    const int64_t rows = g->whole_grid ? g->rows : g->block_rows;
    for (int32_t i = 0; i < plan->kepts; i++)
        if (plan->kept[i].in_output < 0 && plan->kept[i].in_input < 0)
            in_area[i] = lf_layout_take_elements(area, plan->kept[i].dtype, plan->kept[i].one_row ? 1 : rows,
                                                 lf_extent_at(plan->kept[i].width, dims));
    for (int32_t i = 0; i < g->stats; i++) {
        lf_stat_at *s = &g->stat[i];
        const int64_t stat_rows = s->span == LF_SPAN_COLUMN || g->phase[s->phase].one_row ? 1 : rows;
        if (s->span == LF_SPAN_COLUMN)
            s->strips = lf_blocks(g, g->phase[s->phase].rows);
        for (int k = 0; k < s->results; k++)
            s->result[k] = lf_layout_take(area, stat_rows, s->own, 1);
        if (s->span == LF_SPAN_ROW)
            s->partial = lf_layout_take(area, stat_rows, s->strips, s->states * FLOATS_IN_DOUBLE);
        if (s->span == LF_SPAN_COLUMN)
            s->partial = lf_layout_take(area, s->strips, s->states, s->width);
        if (s->exps >= 0)
            s->factor = lf_layout_take(area, stat_rows, s->strips, 1);
    }
    if (g->share_x) {
        g->packed_floats = x_floats(g, kern, area);
        g->packed_x = lf_layout_take(area, lf_blocks(g, g->rows), g->packed_floats, 1);
    }
}

/* How many products of its phase come before it? */
static int32_t place_in_phase(const lf_group_at *g, int32_t product)
{
    int32_t place = 0;
    for (int32_t i = 0; i < product; i++)
        place += g->product[i].phase == g->product[product].phase;
    return place;
}

/* A tile for each product of a phase; other phases have theirs in the same memory. */
static void layout_tiles(lf_group_at *g, lf_layout *scratch)
{
    for (int32_t place = 0, found = 1; found > 0; place++) {
        int64_t widest = 0;
        found = 0;
        for (int32_t i = 0; i < g->products; i++)
            if (place_in_phase(g, i) == place) {
                widest = lf_max64(widest, g->product[i].ldc);
                found++;
            }
        const size_t at = lf_layout_take(scratch, found > 0 ? g->block_rows : 0, widest, 1);
        for (int32_t i = 0; i < g->products; i++)
            if (place_in_phase(g, i) == place)
                g->product[i].tile = at;
    }
}

static void layout_scratch(lf_group_at *g, const lf_kern *kern, lf_layout *scratch)
{
    int64_t registers = 0, pointers = 0;
    for (int32_t i = 0; i < g->phases; i++) {
        registers = lf_max64(registers, g->phase[i].registers * g->phase[i].stretch);
        pointers = lf_max64(pointers, 2 * (int64_t)g->phase[i].steps + g->phase[i].stores + g->products);
    }
    g->registers = lf_layout_take(scratch, registers, 1, 1);
    g->pointers = lf_layout_take(scratch, pointers, sizeof(void *) / sizeof(float), 1);
    if (g->products == 0)
        return;
    int64_t x_row = 0, more = 0, w_run = 0;
    layout_tiles(g, scratch);
    for (int32_t i = 0; i < g->products; i++) {
        const lf_product_at *p = &g->product[i];
        if (p->narrow) {
            x_row = lf_max64(x_row, lf_x_rows_in_place(g) ? 0 : g->k);
            continue;
        }
        x_row = lf_max64(x_row, lf_x_in_rows(g) ? 0 : g->block_rows * LF_KBLOCK);
        more = lf_max64(more, lf_runs(g->k) > LF_RUNS ? p->ldc : 0);
        const lf_dtype packed = kern->w_type[p->weight.dtype];
        w_run = lf_max64(w_run, kern->w_floats(packed, lf_min64(p->n, LF_STRIP), lf_min64(g->k, LF_KBLOCK)));
    }
    g->more = lf_layout_take(scratch, g->block_rows, more, 1);
    g->x_row = lf_layout_take(scratch, x_row, 1, 1);
    g->w_run = lf_layout_take(scratch, w_run, 1, 1);
    if (g->packs >= 0 && !g->share_x)
        g->packed_x = lf_layout_take(scratch, x_floats(g, kern, scratch), 1, 1);
}

void lf_group_layout(lf_group_at *g, const lf_group *plan, const lf_kern *kern, const int64_t *dims, size_t *in_area,
                     lf_layout *area, lf_layout *scratch)
{
    lf_layout own = {0};
    layout_area(g, plan, kern, dims, in_area, &own);
    layout_scratch(g, kern, scratch);
    if (g->whole_grid)
        *area = own;
    else
        g->block_area = lf_layout_take(scratch, (int64_t)own.floats, 1, 1);
    area->overflow = area->overflow || own.overflow;
}
