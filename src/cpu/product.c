/* SPDX-License-Identifier: Apache-2.0 */
/* The product of a block of rows with a strip of columns. Many columns: packed runs of x and w through the table's
 * multiply, up to LF_KBLOCK of K at a time. (Few columns: narrow.c.) */
#include <assert.h>
#include <string.h>

#include "cpu/parts.h"

static int64_t depth_of(const lf_group_at *g, int64_t run)
{
    return lf_min64(g->depth, g->k - run * g->depth);
}

void lf_product_pack_x(const lf_piece *p, int64_t run, float *packed)
{
    const lf_group_at *g = p->group;
    const lf_kern *kern = p->run->instance->kern;
    const int64_t k0 = run * g->depth, k = depth_of(g, run), row = lf_row_in(p, &g->x, p->row);
    const void *base = lf_reach_base(p->run, &g->x, p->area);
    float *to = packed + run * kern->x_floats(g->x_type, p->rows, g->depth);
    if (g->x_type == g->x.dtype && lf_x_in_rows(g)) {
        const int64_t ld = g->x.row.rank == 0 ? 0 : g->x.row.stride[0];
        kern->pack_x(g->x_type, p->rows, k, lf_element_at(g->x_type, base, row * ld + k0), ld, to);
        return;
    }
    float *room = p->scratch + g->x_row; /* [rows][LF_KBLOCK] */
    for (int64_t i = 0; i < p->rows; i++)
        lf_side_gather(kern, g->x.dtype, &g->x.col,
                       lf_element_at(g->x.dtype, base, lf_side_offset(&g->x.row, row + i)), k0, k,
                       room + i * LF_KBLOCK);
    kern->pack_x(LF_F32, p->rows, k, room, LF_KBLOCK, to);
}

/* ---- many columns ---- */

/* A panel's columns at a time, which packs them as all at once would, so that they fit a little room as floats. */
static void pack_converted(const lf_kern *kern, lf_dtype type, const void *w, int64_t n, int64_t k, int64_t ld,
                           bool is_kn, float *to)
{
    enum { MOST_COLUMNS = 32 };
    float room[MOST_COLUMNS * LF_KBLOCK];
    assert(kern->nr <= MOST_COLUMNS);
    for (int64_t col = 0, columns; col < n; col += columns, to += kern->nr * k) {
        columns = lf_min64(kern->nr, n - col);
        const int64_t rows = is_kn ? k : columns, width = is_kn ? columns : k;
        const void *from = lf_element_at(type, w, is_kn ? col : col * ld);
        for (int64_t i = 0; i < rows; i++)
            kern->load[type](width, lf_element_at(type, from, i * ld), room + i * width);
        kern->pack_w(LF_F32, columns, k, room, width, is_kn, to);
    }
}

void lf_w_run_pack(const lf_kern *kern, lf_dtype type, const void *w, int64_t n, int64_t k, bool is_kn, int64_t strip,
                   int64_t run, float *to)
{
    const int64_t col = strip * LF_STRIP, k0 = run * lf_run_depth(k), ld = is_kn ? n : k;
    const int64_t columns = lf_min64(LF_STRIP, n - col), depth = lf_min64(lf_run_depth(k), k - k0);
    const void *from = lf_element_at(type, w, is_kn ? k0 * n + col : col * k + k0);
    if (kern->w_type[type] == type)
        kern->pack_w(type, columns, depth, from, ld, is_kn, to);
    else
        pack_converted(kern, type, from, columns, depth, ld, is_kn, to);
}

/* Is its w packed before? */
static bool is_prepared(const lf_piece *p, const lf_product_at *product)
{
    return product->weight_fixed && p->run->weights->product[product->index];
}

/* A run of a strip of w, packed before; NULL past the last strip, and where none is. */
static const float *packed_w(const lf_piece *p, const lf_product_at *product, int64_t strip, int64_t run)
{
    if (strip * LF_STRIP >= product->n || !is_prepared(p, product))
        return NULL;
    return p->run->weights->product[product->index] +
           lf_w_run_at(p->run->instance->kern, product->weight.dtype, product->n, p->group->k, strip, run);
}

/* The same of a w that is known only now. */
static const float *pack_w(const lf_piece *p, const lf_product_at *product, int64_t strip, int64_t run)
{
    float *to = p->scratch + p->group->w_run;
    lf_w_run_pack(p->run->instance->kern, product->weight.dtype, lf_reach_base(p->run, &product->weight, p->area),
                  product->n, p->group->k, product->w_is_kn, strip, run, to);
    return to;
}

/* What is multiplied with when the strip is done: that strip of the phase's next product, or the next one of its
 * first. */
static const float *next_w(const lf_piece *p, const lf_product_at *product, int64_t strip)
{
    const lf_product_at *end = p->group->product + p->group->products;
    for (const lf_product_at *q = product + 1; q < end; q++)
        if (q->phase == product->phase && !q->narrow)
            return packed_w(p, q, strip, 0);
    for (const lf_product_at *q = p->group->product;; q++)
        if (q->phase == product->phase && !q->narrow)
            return packed_w(p, q, strip + 1, 0);
}

/* [n] of the bias for a strip's columns; NULL where the product adds none. */
static const float *bias_of(const lf_piece *p, const lf_product_at *product, int64_t strip)
{
    if (product->bias < 0)
        return NULL;
    const lf_reach *from = &p->group->phase[product->phase].step[product->bias].from;
    return (const float *)lf_reach_base(p->run, from, p->area) + strip * LF_STRIP;
}

/* to += rows, ld from one to the next. */
static void add_rows(const lf_piece *p, int64_t n, const float *rows, int64_t ld, float *to, int64_t ldc)
{
    const float one[3] = {1, 0, 0};
    for (int64_t i = 0; i < p->rows; i++)
        p->run->instance->kern->map[LF_OP_add](n, to + i * ldc, rows + i * ld, NULL, one, to + i * ldc);
}

void lf_product_tile(const lf_piece *p, const lf_product_at *product, const float *packed, int64_t strip, float *to,
                     int64_t ldt)
{
    const lf_kern *kern = p->run->instance->kern;
    if (product->narrow) {
        lf_product_narrow(p, product, to);
        return;
    }
    const bool prepared = is_prepared(p, product);
    const int64_t runs = lf_runs(p->group->k), x_run = kern->x_floats(p->group->x_type, p->rows, p->group->depth);
    float *tile = p->scratch + product->tile, *more = p->scratch + p->group->more;
    const float *bias = bias_of(p, product, strip);
    lf_multiply m = {.rows = p->rows, .n = lf_min64(LF_STRIP, product->n - strip * LF_STRIP), .ldc = product->ldc,
                     .x_type = p->group->x_type, .w_type = kern->w_type[product->weight.dtype]};
    assert(to == tile || (runs >= 1 && runs <= LF_RUNS));
    if (runs == 0)
        memset(tile, 0, (size_t)(p->rows * product->ldc) * sizeof *tile);
    for (int64_t run = 0; run < runs; run++) {
        const bool last = run + 1 == runs;
        float *c = run < LF_RUNS ? tile : more;
        m.k = depth_of(p->group, run);
        m.x = packed + run * x_run;
        m.w = prepared ? packed_w(p, product, strip, run) : pack_w(p, product, strip, run);
        m.c = run % LF_RUNS > 0 ? c : NULL;
        m.to = last && to != tile ? to : c;
        m.ldt = last && to != tile ? ldt : product->ldc;
        m.bias = last && runs <= LF_RUNS ? bias : NULL;
        m.next_w = last ? next_w(p, product, strip) : packed_w(p, product, strip, run + 1);
        m.next_x = runs == 1 || (last && !m.next_w) ? NULL : packed + (last ? 0 : run + 1) * x_run;
        kern->multiply(&m);
        if (run >= LF_RUNS && (last || (run + 1) % LF_RUNS == 0))
            add_rows(p, m.n, more, product->ldc, tile, product->ldc);
    }
    /* Always last, as an op of its own would add it: it is one at other extents (x of one row has a bias of any
     * row). */
    if (bias && (runs == 0 || runs > LF_RUNS))
        add_rows(p, m.n, bias, 0, tile, product->ldc);
}
