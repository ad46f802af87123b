/* SPDX-License-Identifier: Apache-2.0 */
/* The product with a few columns: a dot product in double precision for each element, several rows and columns at a
 * time, so that w and x are loaded once for all of them and more of x is on its way from memory. */
#include "cpu/parts.h"

/* Rows [i, i + rows) of the piece, which lie ldx apart from x on, times every column. */
static void rows_by_columns(const lf_piece *p, const lf_product_at *product, int64_t i, int64_t rows, const float *x,
                            int64_t ldx, float *c)
{
    const int64_t k = p->group->k;
    const double *w = p->run->weights->prepared->narrow[product->index], *bias = w + product->n * k;
    double sum[LF_DOTS * LF_NARROW];
    p->run->instance->kern->dots(rows, product->n, k, x, ldx, w, sum);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < product->n; j++)
            c[(i + r) * product->ldc + j] = (float)(bias[j] + sum[r * product->n + j]);
}

void lf_product_narrow(const lf_piece *p, const lf_product_at *product, float *c)
{
    const lf_reach *x = &p->group->x;
    const void *base = lf_reach_base(p->run, x, p->area);
    const bool in_place = lf_x_rows_in_place(p->group);
    const bool evenly = in_place && x->row.rank == 1;
    const int64_t step = evenly ? LF_DOTS : 1;
    for (int64_t i = 0; i < p->rows; i += step) {
        const void *there = lf_element_at(x->dtype, base, lf_side_offset(&x->row, lf_row_in(p, x, p->row + i)));
        const float *row = in_place ? there : p->scratch + p->group->x_row;
        if (!in_place)
            lf_side_gather(p->run->instance->kern, x->dtype, &x->col, there, 0, p->group->k,
                           p->scratch + p->group->x_row);
        rows_by_columns(p, product, i, lf_min64(step, p->rows - i), row, evenly ? x->row.stride[0] : 0, c);
    }
}
