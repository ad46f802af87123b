/* SPDX-License-Identifier: Apache-2.0 */
/* Finishing statistics: partials combined in order of column or of row block, segments and windows taken from the
 * finished row. One statistic at a time, by one thread, in an order its extents fix: so bits depend on nothing else. */
#include "cpu/parts.h"

/* Folds n elements of a row, from column col on, into s, which holds what came before. */
static void fold_more(const lf_run *run, const lf_stat_at *stat, const float *row, int64_t col, int64_t n, double *s)
{
    const lf_kern *kern = run->instance->kern;
    float room[LF_STRIP], t[LF_MAX_STATE];
    for (int64_t at = 0; at < n; at += LF_STRIP) {
        const int64_t length = lf_min64(LF_STRIP, n - at);
        const float *x = row + col + at;
        if (stat->from.col.form != LF_FORM_CONTIGUOUS) {
            lf_side_gather(&stat->from.col, row, col + at, length, room);
            x = room;
        }
        kern->fold[stat->monoid](length, x, t);
        lf_monoid_combine(stat->monoid, s, t);
    }
}

static void window(const lf_run *run, const lf_stat_at *stat, const float *row, int64_t index, double *s, double *n)
{
    const lf_window *w = &stat->window;
    const int64_t run_of = index / stat->count * stat->length;
    const int64_t start = index % stat->count * w->stride - w->padding;
    int64_t from = 0, to = w->kernel; /* taps inside the run */
    if (start < 0)
        from = lf_ceil_div(-start, w->dilation);
    if (start + (w->kernel - 1) * w->dilation >= stat->length)
        to = lf_max64(from, lf_ceil_div(stat->length - start, w->dilation));
    if (w->dilation == 1)
        fold_more(run, stat, row, run_of + start + from, to - from, s);
    else
        for (int64_t tap = from; tap < to; tap++)
            fold_more(run, stat, row, run_of + start + tap * w->dilation, 1, s);
    /* PyTorch's divisor: padding counts where asked to, but not what ceil_mode lets hang over it. */
    int64_t count = w->include_pad ? lf_min64(start + w->kernel, stat->length + w->padding) - start : to - from;
    *n = (double)lf_max64(count, 1);
}

/* [strips][states] of one row. */
static void combine_row(const lf_stat_at *stat, const float *partial, double *s)
{
    for (int64_t strip = 0; strip < stat->strips; strip++)
        lf_monoid_combine(stat->monoid, s, partial + strip * stat->states);
}

/* [blocks][states][width], one column of it. */
static void combine_column(const lf_stat_at *stat, const float *partial, int64_t col, double *s)
{
    for (int64_t block = 0; block < stat->strips; block++) {
        float t[LF_MAX_STATE];
        for (int i = 0; i < stat->states; i++)
            t[i] = partial[(block * stat->states + i) * stat->width + col];
        lf_monoid_combine(stat->monoid, s, t);
    }
}

void lf_stat_finish(const lf_run *run, const lf_stat_at *stat, float *area, int64_t area_row, int64_t from, int64_t to)
{
    const float *base = stat->step < 0 ? lf_reach_base(run, &stat->from, area) : NULL;
    for (int64_t i = from; i < to; i++) {
        const int64_t row = i / stat->own, index = i % stat->own;
        double s[LF_MAX_STATE], n = (double)stat->length;
        float r[LF_MAX_RESULTS] = {0};
        const float *x = base;
        if (x)
            x += lf_side_offset(&stat->from.row, stat->from.home == LF_HOME_BLOCK ? row : row + area_row);
        lf_monoid_begin(stat->monoid, s);
        switch (stat->span) {
        case LF_SPAN_ROW: combine_row(stat, area + stat->partial + row * stat->strips * stat->states, s); break;
        case LF_SPAN_COLUMN: combine_column(stat, area + stat->partial, index, s); break;
        case LF_SPAN_SEGMENT: fold_more(run, stat, x, index * stat->length, stat->length, s); break;
        case LF_SPAN_WINDOW: window(run, stat, x, index, s, &n); break;
        }
        lf_monoid_finish(stat->monoid, s, n, r);
        for (int k = 0; k < stat->results; k++)
            area[stat->result[k] + (size_t)i] = r[k];
    }
}
