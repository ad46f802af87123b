/* SPDX-License-Identifier: Apache-2.0 */
/* A product of few columns: a dot product for each element, in double precision with weights that were not rounded. */
#include "cpu/parts.h"

/* c: [rows][ldc = n] */
void lf_product_narrow(const lf_piece *p, float *c)
{
    const lf_product_at *product = &p->group->product;
    const lf_kern *kern = p->run->instance->kern;
    const double *w = p->run->weights->narrow[p->group_index], *bias = w + product->n * product->k;
    const float *base = lf_reach_base(p->run, &product->x, p->area);
    for (int64_t i = 0; i < p->rows; i++) {
        const int64_t row = product->x.home == LF_HOME_BLOCK ? p->row + i - p->area_row : p->row + i;
        const float *x = base + lf_side_offset(&product->x.row, row);
        if (product->x.col.form != LF_FORM_CONTIGUOUS) {
            lf_side_gather(&product->x.col, x, 0, product->k, p->scratch + p->group->x_row);
            x = p->scratch + p->group->x_row;
        }
        for (int64_t j = 0; j < product->n; j++)
            c[i * product->ldc + j] = (float)(bias[j] + kern->dot(product->k, x, w + j * product->k));
    }
}
