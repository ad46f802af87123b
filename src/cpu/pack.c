/* SPDX-License-Identifier: Apache-2.0 */
/* Rows and columns laid out as gemm reads them. In runs of LF_KBLOCK, so that what is written stays in the first-level
 * cache while the next row's elements go between those of the last. */
#include <string.h>

#include "cpu/parts.h"

/* to[i * width] = from[i] */
static void interleave(const float *from, int64_t n, int64_t width, float *to)
{
    for (int64_t i = 0; i < n; i++)
        to[i * width] = from[i];
}

/* Four rows at once: a line of `to` is touched a quarter as often. from: four rows ld apart. */
static void interleave4(const float *from, int64_t ld, int64_t n, int64_t width, float *to)
{
    const float *a = from, *b = from + ld, *c = b + ld, *d = c + ld;
    for (int64_t i = 0; i < n; i++) {
        const float four[4] = {a[i], b[i], c[i], d[i]};
        memcpy(to + i * width, four, sizeof four);
    }
}

static void blank(int64_t k, int64_t width, int64_t row, float *to)
{
    for (; row < width; row++)
        for (int64_t i = 0; i < k; i++)
            to[i * width + row] = 0.0f;
}

void lf_pack_rows(const float *from, int64_t ld, int64_t n, int64_t width, int64_t k, float *to)
{
    for (int64_t at = 0; at < k; at += LF_KBLOCK) {
        int64_t run = lf_min64(LF_KBLOCK, k - at);
        int64_t row = 0;
        for (; row + 4 <= n; row += 4)
            interleave4(from + row * ld + at, ld, run, width, to + at * width + row);
        for (; row < n; row++)
            interleave(from + row * ld + at, run, width, to + at * width + row);
        blank(run, width, row, to + at * width);
    }
}

void lf_pack_columns(const float *from, int64_t ld, int64_t n, int64_t width, int64_t k, float *to)
{
    for (int64_t i = 0; i < k; i++, from += ld, to += width) {
        memcpy(to, from, (size_t)n * sizeof *to);
        memset(to + n, 0, (size_t)(width - n) * sizeof *to);
    }
}

void lf_pack_x(const lf_reach *x, const float *base, int64_t row, int64_t rows, int64_t mr, int64_t k0, int64_t k,
               float *to)
{
    bool contiguous = x->col.form == LF_FORM_CONTIGUOUS;
    if (contiguous && x->row.rank == 1) {
        lf_pack_rows(base + row * x->row.stride[0] + k0, x->row.stride[0], rows, mr, k, to);
        return;
    }
    float room[LF_KBLOCK];
    for (int64_t at = 0; at < k; at += LF_KBLOCK) {
        int64_t run = lf_min64(LF_KBLOCK, k - at);
        for (int64_t i = 0; i < rows; i++) {
            const float *from = base + lf_side_offset(&x->row, row + i);
            if (!contiguous)
                lf_side_gather(&x->col, from, k0 + at, run, room);
            interleave(contiguous ? from + k0 + at : room, run, mr, to + at * mr + i);
        }
        blank(run, mr, rows, to + at * mr);
    }
}
