/* SPDX-License-Identifier: Apache-2.0 */
/* The product of a block of rows with a strip of columns. Many columns: packed panels through gemm, a run of LF_KBLOCK
 * at a time, every row of the block before the next panel of w. (Few columns: narrow.c.) */
#include <string.h>

#include "cpu/parts.h"

void lf_product_pack_x(const lf_piece *p, int64_t panel, int64_t panel_end, int64_t k0, int64_t k, float *packed)
{
    const lf_product_at *product = &p->group->product;
    const int64_t mr = p->run->instance->kern->mr;
    const float *base = lf_reach_base(p->run, &product->x, p->area);
    for (; panel < panel_end; panel++) {
        int64_t row = lf_row_in(p, &product->x, p->row + panel * mr);
        int64_t rows = lf_min64(mr, p->rows - panel * mr);
        lf_pack_x(&product->x, base, row, rows, mr, k0, k, packed + panel * product->x_panel + k0 * mr);
    }
}

/* w as it lies: [n][k], or [k][n]. */
static const float *weight_as_is(const lf_piece *p)
{
    return lf_reach_base(p->run, &p->group->product.weight, p->area);
}

static const float *weight_prepared(const lf_piece *p)
{
    return p->group->product.weight_fixed ? p->run->weights->product[p->group_index] : NULL;
}

/* The panel of columns [col, col + nr) of w in the run of K that begins at k0: where it was packed before, or packed
 * now. */
static const float *panel_of(const lf_piece *p, const float *prepared, int64_t col, int64_t k0, int64_t k)
{
    const lf_product_at *product = &p->group->product;
    const int64_t nr = p->run->instance->kern->nr;
    if (prepared)
        return prepared + col / nr * product->w_panel + k0 * nr;
    const float *w = weight_as_is(p);
    float *panel = p->scratch + p->group->panel;
    int64_t n = lf_min64(nr, product->n - col);
    if (product->w_is_kn)
        lf_pack_columns(w + k0 * product->n + col, product->n, n, nr, k, panel);
    else
        lf_pack_rows(w + col * product->k + k0, product->k, n, nr, k, panel);
    return panel;
}

/* Asks for part `part` of `parts` of a packed panel, to be in the second-level cache when its turn comes: w is read
 * from far away, and once for a whole block of rows. */
static void ask_for(const float *panel, int64_t floats, int64_t part, int64_t parts)
{
    enum { LINE = 16 };
    const int64_t from = floats * part / parts / LINE * LINE, to = floats * (part + 1) / parts;
    for (int64_t i = from; i < to; i += LINE)
        __builtin_prefetch(panel + i, 0, 2);
}

/* The packed panel that is used after the one of columns [col, col + nr) and the run [k0, k0 + k); NULL after the
 * last. */
static const float *panel_after(const lf_product_at *product, const float *prepared, int64_t nr, int64_t first,
                                int64_t end, int64_t col, int64_t k0, int64_t k)
{
    if (col + nr < end)
        return prepared + (col / nr + 1) * product->w_panel + k0 * nr;
    if (k0 + k < product->k)
        return prepared + first / nr * product->w_panel + (k0 + k) * nr;
    return end < product->n ? prepared + end / nr * product->w_panel : NULL;
}

void lf_product_tile(const lf_piece *p, const float *packed, int64_t strip, float *tile)
{
    const lf_product_at *product = &p->group->product;
    const lf_kern *kern = p->run->instance->kern;
    if (product->narrow) {
        lf_product_narrow(p, tile);
        return;
    }
    const int64_t mr = kern->mr, nr = kern->nr, ldc = product->ldc;
    const int64_t panels = lf_ceil_div(p->rows, mr);
    const int64_t first = strip * LF_STRIP, end = lf_min64(first + LF_STRIP, product->n);
    const float *prepared = weight_prepared(p);
    if (product->k == 0)
        memset(tile, 0, (size_t)(panels * mr * ldc) * sizeof *tile);
    for (int64_t k0 = 0; k0 < product->k; k0 += LF_KBLOCK) {
        const int64_t k = lf_min64(LF_KBLOCK, product->k - k0);
        for (int64_t col = first; col < end; col += nr) {
            const float *w = panel_of(p, prepared, col, k0, k);
            const float *next = prepared ? panel_after(product, prepared, nr, first, end, col, k0, k) : NULL;
            for (int64_t i = 0; i < panels; i++) {
                if (next)
                    ask_for(next, k * nr, i, panels);
                kern->gemm(k, packed + i * product->x_panel + k0 * mr, w, tile + i * mr * ldc + (col - first), ldc,
                           k0 > 0);
            }
        }
    }
}
