/* SPDX-License-Identifier: Apache-2.0 */
/* The product of a block of rows with a strip of columns. Many columns: packed runs of x and w through the table's
 * multiply, up to LF_KBLOCK of K at a time. (Few columns: narrow.c.) */
#include <assert.h>
#include <string.h>

#include "cpu/parts.h"

static int64_t depth_of(const lf_product_at *product, int64_t run)
{
    return lf_min64(product->depth, product->k - run * product->depth);
}

void lf_product_pack_x(const lf_piece *p, int64_t run, float *packed)
{
    const lf_product_at *product = &p->group->product;
    const lf_kern *kern = p->run->instance->kern;
    const int64_t k0 = run * product->depth, k = depth_of(product, run), row = lf_row_in(p, &product->x, p->row);
    const float *base = lf_reach_base(p->run, &product->x, p->area);
    float *to = packed + run * kern->x_floats(p->rows, product->depth);
    if (lf_product_x_in_rows(product)) {
        const int64_t ld = product->x.row.rank == 0 ? 0 : product->x.row.stride[0];
        kern->pack_x(p->rows, k, base + row * ld + k0, ld, to);
        return;
    }
    float *room = p->scratch + p->group->x_row; /* [rows][LF_KBLOCK] */
    for (int64_t i = 0; i < p->rows; i++)
        lf_side_gather(&product->x.col, base + lf_side_offset(&product->x.row, row + i), k0, k, room + i * LF_KBLOCK);
    kern->pack_x(p->rows, k, room, LF_KBLOCK, to);
}

/* ---- many columns ---- */

/* A run of a strip of w, packed before; NULL past the last strip. */
static const float *packed_w(const lf_piece *p, int64_t strip, int64_t run)
{
    const lf_product_at *product = &p->group->product;
    if (strip * LF_STRIP >= product->n)
        return NULL;
    return p->run->weights->product[p->group_index] +
           lf_w_run_at(p->run->instance->kern, product->n, product->k, strip, run);
}

/* The same of a w that is known only now. */
static const float *pack_w(const lf_piece *p, int64_t strip, int64_t run)
{
    const lf_product_at *product = &p->group->product;
    float *to = p->scratch + p->group->w_run;
    lf_w_run_pack(p->run->instance->kern, lf_reach_base(p->run, &product->weight, p->area), product->n, product->k,
                  product->w_is_kn, strip, run, to);
    return to;
}

/* [n] of the bias for a strip's columns; NULL where the product adds none. */
static const float *bias_of(const lf_piece *p, int64_t strip)
{
    const lf_product_at *product = &p->group->product;
    if (product->bias < 0)
        return NULL;
    const lf_reach *from = &p->group->phase[product->phase].step[product->bias].from;
    return lf_reach_base(p->run, from, p->area) + strip * LF_STRIP;
}

/* to += rows, ld from one to the next. */
static void add_rows(const lf_piece *p, int64_t n, const float *rows, int64_t ld, float *to)
{
    const int64_t ldc = p->group->product.ldc;
    const float one[3] = {1, 0, 0};
    for (int64_t i = 0; i < p->rows; i++)
        p->run->instance->kern->map[LF_OP_add](n, to + i * ldc, rows + i * ld, NULL, one, to + i * ldc);
}

void lf_product_tile(const lf_piece *p, const float *packed, int64_t strip, float *to, int64_t ldt)
{
    const lf_product_at *product = &p->group->product;
    const lf_kern *kern = p->run->instance->kern;
    if (product->narrow) {
        lf_product_narrow(p, to);
        return;
    }
    const bool prepared = product->weight_fixed && p->run->weights->product[p->group_index];
    const int64_t runs = lf_runs(product->k), x_run = kern->x_floats(p->rows, product->depth);
    float *tile = p->scratch + p->group->tile, *more = p->scratch + p->group->more;
    const float *bias = bias_of(p, strip);
    lf_multiply m = {.rows = p->rows, .n = lf_min64(LF_STRIP, product->n - strip * LF_STRIP), .ldc = product->ldc};
    assert(to == tile || (runs >= 1 && runs <= LF_RUNS));
    if (runs == 0)
        memset(tile, 0, (size_t)(p->rows * product->ldc) * sizeof *tile);
    for (int64_t run = 0; run < runs; run++) {
        const bool last = run + 1 == runs;
        float *c = run < LF_RUNS ? tile : more;
        m.k = depth_of(product, run);
        m.x = packed + run * x_run;
        m.w = prepared ? packed_w(p, strip, run) : pack_w(p, strip, run);
        m.c = run % LF_RUNS > 0 ? c : NULL;
        m.to = last && to != tile ? to : c;
        m.ldt = last && to != tile ? ldt : product->ldc;
        m.bias = last && runs <= LF_RUNS ? bias : NULL;
        m.next_w = !prepared ? NULL : last ? packed_w(p, strip + 1, 0) : packed_w(p, strip, run + 1);
        m.next_x = runs == 1 || (last && !m.next_w) ? NULL : packed + (last ? 0 : run + 1) * x_run;
        kern->multiply(&m);
        if (run >= LF_RUNS && (last || (run + 1) % LF_RUNS == 0))
            add_rows(p, m.n, more, product->ldc, tile);
    }
    /* Always last, as an op of its own would add it: it is one at other extents (x of one row has a bias of any
     * row). */
    if (bias && (runs == 0 || runs > LF_RUNS))
        add_rows(p, m.n, bias, 0, tile);
}
