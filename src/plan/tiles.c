/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles are dealt out to units in rounds, and a last round that is not full takes as long as a whole one. A tile takes
 * as long as its multiplications or as fetching its operands, whichever is longer, and then its tail, which nothing
 * hides where both halves of a block are at the same tile. Memory is under way meanwhile. */
#include <math.h>

#include "plan/tiles.h"

/* Two things under way at once, neither of which hides all of the other where they take about as long. */
static double beside(double a, double b)
{
    return cbrt(a * a * a + b * b * b);
}

/* Of an element of the weight, and of x as products read it. */
static double w_bytes(const lf_device *d)
{
    return lf_precision_bytes(d->gpu.precision_used);
}

/* Microseconds of fetching so many rows of k elements, of x or of the weight, by one of `busy` units that do so at
 * once. */
static double fetch_us(double rows, double k, double busy, const lf_device *d)
{
    return 1e6 * rows * k * w_bytes(d) / fmin(d->gpu.unit_bytes, d->gpu.tile_bytes / busy);
}

/* The weight goes past once, 64 rows of it in each block. So few products are under way that each line of 128 bytes
 * waits for the one before it. */
static double few_us(const lf_tile *t, const lf_tiled *p, const lf_device *d)
{
    const double rows = fmin(t->rows, 8 * ceil(p->m / 8)), columns = (double)t->columns / t->cluster;
    const double rounds = ceil(ceil(p->n / t->columns) / floor((double)d->units / t->cluster)),
                 blocks = ceil(p->n / columns);
    const double lines = ceil(p->k * w_bytes(d) / 128) * d->gpu.line_us,
                 fetched = fetch_us(columns + rows, p->k, blocks / rounds, d);
    const double tile = fmax(lines, fetched) + rows * columns * p->tail_us;
    return (p->follows ? 0 : d->gpu.few_us) + beside(rounds * tile, 1e6 * p->n * p->k * w_bytes(d) / d->bytes);
}

/* Row blocks in groups of `raster` go past the weight, which is read again for each group where it does not stay in
 * cache. */
static double memory_bytes(const lf_tile *t, const lf_tiled *p, const lf_device *d)
{
    const double weight = p->n * p->k * w_bytes(d), x = p->m * p->k * w_bytes(d);
    return x + weight * (weight > d->cache_bytes ? ceil(p->m / (t->rows * fmax(t->raster, t->cluster))) : 1);
}

/* By how much boxes that lie outside x slow fetching down: of a cluster's block that has no rows at all, of a block
 * that has few. */
static double empty_share(const lf_tile *t, double m, const lf_device *d)
{
    const double down = ceil(m / t->rows), last = m - (down - 1) * t->rows;
    return fmod(down, t->cluster) != 0 ? d->gpu.empty_block : d->gpu.empty_rows * (1 - last / t->rows);
}

/* Two take turns at multiplying, and each finishes its tile, which takes it `tail`, while the other multiplies. */
static double turns_us(double rounds, double multiplied, double tail)
{
    const double by_products = rounds * multiplied + tail,
                 by_tails = ceil(rounds / 2) * (multiplied + tail) + (fmod(rounds, 2) == 0 ? multiplied : 0);
    return fmax(by_products, by_tails);
}

double lf_tile_us(const lf_tile *t, const lf_tiled *p, const lf_device *d)
{
    if (p->m == 0)
        return 0;
    if (t->few)
        return few_us(t, p, d);
    const double down = ceil(p->m / t->rows), across = ceil(p->n / t->columns),
                 clusters = ceil(down / t->cluster) * across;
    const double rounds = ceil(clusters / floor((double)d->units / t->cluster)), busy = down * across / rounds;
    const double rate = d->product_flops / d->units * (1 + d->gpu.idle_gain * (1 - busy / d->units));
    /* multiplied: both halves of a tile, or the first */
    const double rows = p->m <= t->rows / 2.0 ? t->rows / 2.0 : t->rows;
    const double often = lf_is_short(d->gpu.unit, d->gpu.precision_used, p->k) ? d->gpu.short_share : 0,
                 narrow = t->turns                       ? d->gpu.turns_share
                          : t->columns < d->tile_columns ? d->gpu.narrow_share
                                                         : 0;
    const double multiplied = 2e6 * rows * t->columns * p->k / rate * (1 + narrow + often),
                 fetched = fetch_us(t->rows + (double)t->columns / t->cluster, p->k, busy, d);
    const double tail = fmin(t->rows, p->m) * t->columns * p->tail_us;
    /* of the last round, where row blocks end */
    const double last = fmax(multiplied, fetched * (1 + empty_share(t, p->m, d)));
    const double each = fmax(multiplied, fetched), all = t->turns ? turns_us(rounds, each, 2 * tail) - each + last
                                                                  : (rounds - 1) * each + last + rounds * tail;
    const double slowed = d->gpu.burst_us > 0 ? d->gpu.slowing * fmax(0, all - d->gpu.burst_us) : 0;
    return (p->follows ? 0 : d->gpu.start_us) + beside(all + slowed, 1e6 * memory_bytes(t, p, d) / d->bytes);
}

double lf_tiles_us(const lf_tiled *p, const lf_device *d)
{
    const lf_gpu_half *gpu = &d->gpu;
    double least = 0;
    for (lf_tile_shape s = 0; s < LF_TILE_SHAPES && gpu->start_us > 0; s++) {
        const lf_tile t = lf_tile_on(s, gpu->unit, gpu->precision_used, gpu->shared_bytes);
        if (!lf_tile_serves(s, gpu->unit, gpu->precision_used, p->k) || (t.few && p->m > t.rows))
            continue;
        const double us = lf_tile_us(&t, p, d);
        least = least == 0 || us < least ? us : least;
    }
    return least;
}

double lf_tile_tail_us(const lf_group *g, int32_t index, double folded, const lf_device *d)
{
    const lf_phase *phase = &g->phase[index];
    enum { UNSCALE = 3 }; /* flops of a sum: to undo what its row and its column were multiplied by */
    const double sums = lf_made_as_one(g) == 2 ? 2 : 1; /* of an element */
    double element = lf_precision_table[d->gpu.precision_used].scaled ? UNSCALE * sums : 0, function = 0;
    for (int32_t i = 0; i < phase->steps; i++)
        if (phase->step[i].kind == LF_STEP_OP) {
            const double flops = lf_op_row(phase->step[i].op)->flops;
            *(flops < LF_FUNCTION_FLOPS ? &element : &function) += flops;
        }
    for (int32_t i = 0; i < g->stats; i++)
        if (g->stat[i].phase == index) {
            const double flops = lf_monoid_row(g->stat[i].monoid)->flops;
            *(flops < LF_FUNCTION_FLOPS ? &element : &function) += folded * flops;
        }
    return 1e6 * d->units * (element / d->element_flops + function / d->function_flops) / sums;
}
