/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles are dealt out to units in rounds, and a last round that is not full takes as long as a whole one. A tile takes as long as its multiplications or as fetching
 * its operands, whichever is longer, and then its tail, which nothing hides: both halves of a block are at the same tile. All of it takes no less than memory does. */
#include <math.h>

#include "plan/tiles.h"

/* Rows of a tile that are multiplied: its two halves of 64, or only the first; of few rows, eights. */
static double rows_done(const lf_tile *t, double m)
{
    if (t->few)
        return fmin(t->rows, 8 * ceil(m / 8));
    return m <= t->rows / 2 ? t->rows / 2 : t->rows;
}

/* Bytes of memory: the weight once for each group of row blocks, x once, what is stored left to the tail. */
static double memory_bytes(const lf_tile *t, const lf_tiled *p, const lf_device *d)
{
    const double weight = p->n * p->k * d->w_bytes, x = p->m * p->k * d->w_bytes;
    const double groups = t->few ? 1 : ceil(p->m / (t->rows * fmax(t->raster, t->cluster)));
    return x + weight * (weight > d->cache_bytes ? groups : 1);
}

double lf_tile_us(const lf_tile *t, const lf_tiled *p, const lf_device *d)
{
    if (p->m == 0)
        return 0;
    const double down = t->few ? 1 : ceil(ceil(p->m / t->rows) / t->cluster), across = ceil(p->n / t->columns);
    const double rounds = ceil(down * across / floor((double)d->units / t->cluster));
    const double rows = rows_done(t, p->m), columns = t->few ? (double)t->columns / t->cluster : t->columns;
    const double multiplied = 2 * rows * columns * p->k / (d->product_flops / d->units);
    const double fetched = (rows + (t->few ? columns : columns / t->cluster)) * p->k * d->w_bytes / (d->tile_bytes / d->units);
    const double tile = 1e6 * fmax(multiplied, fetched) + fmin(rows, p->m) * columns * p->tail_us + d->tile_us;
    return fmax(rounds * tile, 1e6 * memory_bytes(t, p, d) / d->bytes);
}

double lf_tiles_us(const lf_tiled *p, const lf_device *d)
{
    double least = 0;
    for (int i = 0; i < LF_MOST_TILES && d->tile[i].rows > 0; i++) {
        const lf_tile *t = &d->tile[i];
        if (t->columns > d->widest || (t->few && p->m > t->rows))
            continue;
        const double us = lf_tile_us(t, p, d);
        least = least == 0 || us < least ? us : least;
    }
    return least;
}

void lf_device_use(lf_device *d, int precision)
{
    const lf_precision_rates *r = &d->precision[precision];
    if (r->flops <= 0)
        return;
    d->row_flops *= r->flops / d->product_flops;
    d->product_flops = r->flops;
    d->x_bytes = r->x_bytes;
    d->x_kept_bytes = (int)r->w_bytes;
    d->w_bytes = r->w_bytes;
    d->widest = r->widest;
}

double lf_tile_tail_us(const lf_group *g, const lf_device *d)
{
    const lf_phase *phase = &g->phase[g->product.phase];
    double element = 0, function = 0;
    for (int32_t i = 0; i < phase->steps; i++)
        if (phase->step[i].kind == LF_STEP_OP) {
            const double flops = lf_op_row(phase->step[i].op)->flops;
            *(flops < LF_FUNCTION_FLOPS ? &element : &function) += flops;
        }
    for (int32_t i = 0; i < g->stats; i++)
        if (g->stat[i].phase == g->product.phase) {
            const double flops = lf_monoid_row(g->stat[i].monoid)->flops;
            *(flops < LF_FUNCTION_FLOPS ? &element : &function) += flops;
        }
    return 1e6 * d->units * (element / d->element_flops + function / d->function_flops);
}
