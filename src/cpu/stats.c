/* SPDX-License-Identifier: Apache-2.0 */
/* Finishing statistics: partials combined in order of column or of row block, segments and windows taken from the
 * finished row. Each by one thread, in an order its extents fix: so bits depend on nothing else. */
#include <assert.h>
#include <math.h>

#include "cpu/parts.h"

/* Where results [i, ...) of the area's statistics go. */
static void results_at(const lf_stat_at *stat, float *area, int64_t i, float **r)
{
    for (int k = 0; k < stat->results; k++)
        r[k] = area + stat->result[k] + i;
}

/* ---- from partials ---- */

/* exp x to 1e-11 of itself for x <= 0, or NaN; below -700 as at -700. There is one for each strip of a softmax, and the
 * C library's, exact to the last digit, took a tenth of all its time. */
static inline double exp_to_a_float(double x)
{
    const double round = 0x1.8p52; /* added, it leaves no bits below 1 */
    const double within = x < -700 ? -700 : x, n = within * 0x1.71547652b82fep+0 + round;
    const double r = within - (n - round) * 0x1.62e42fefa39efp-1;
    double p = 1.0 / 362880; /* of exp's series; |r| < 0.35 */
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = (p * r + 0.5) * r + 1;
    union { double d; uint64_t bits; } power = {.d = n};
    power.bits = (power.bits + 1023) << 52;
    return (p * r + 1) * power.d;
}

enum { PARTS = 64 }; /* parts */

/* e[i] = exp(largest of part i - largest of the row). part: [n][states], its largest first */
static void exps_of_parts(int64_t n, const double *part, int64_t states, double largest, double *e)
{
    for (int64_t i = 0; i < n; i++)
        e[i] = exp_to_a_float(part[i * states] - largest);
}

/* A row's results, and what makes a softmax of the exps that each of its parts kept; see plan/exps.c. False where that
 * is no number: there is a NaN or +Inf, or all are -Inf. */
static bool softmax_of_parts(int64_t parts, const double *part, int64_t states, float *largest, float *sum,
                             float *factor)
{
    double e[PARTS], total = 0, most = -INFINITY;
    for (int64_t i = 0; i < parts; i++)
        most = part[i * states] > most ? part[i * states] : most;
    *largest = (float)most;
    for (int64_t from = 0; from < parts; from += PARTS) {
        const int64_t n = lf_min64(PARTS, parts - from);
        exps_of_parts(n, part + from * states, states, most, e);
        for (int64_t i = 0; i < n; i++)
            total += e[i] * part[(from + i) * states + 1];
    }
    *sum = (float)total;
    for (int64_t from = 0; from < parts; from += PARTS) {
        const int64_t n = lf_min64(PARTS, parts - from);
        if (parts > PARTS)
            exps_of_parts(n, part + from * states, states, most, e);
        for (int64_t i = 0; i < n; i++)
            factor[from + i] = (float)(e[i] * (1 / total));
    }
    return total == total;
}

/* What the parts of each row come to, for others to go on from. row: which one of the grid is the area's first. */
static void leave_rows(const lf_run *run, const lf_stat_at *stat, float *area, int64_t row, int64_t from, int64_t to)
{
    const double *part = lf_row_partials(stat, area, from);
    float *set = (float *)run->output[stat->port] + (row + from) * stat->states;
    for (int64_t i = from; i < to; i++, set += stat->states) {
        double s[LF_MAX_STATE];
        lf_monoid_begin(stat->monoid, s);
        for (int64_t k = 0; k < stat->strips; k++, part += stat->states)
            lf_monoid_combine(stat->monoid, s, part);
        lf_monoid_leave(stat->monoid, s, set, 1);
    }
}

/* From sets of them, in their order. */
static void resume_rows(const lf_run *run, const lf_stat_at *stat, float *area, int64_t row, int64_t from, int64_t to)
{
    const lf_partials all = {.put = (const float *)run->input[stat->port] + (row + from) * stat->states,
                             .item = stat->states,
                             .part = stat->rows * stat->states,
                             .state = 1,
                             .parts = stat->sets};
    float *r[LF_MAX_RESULTS];
    results_at(stat, area, from, r);
    lf_monoid_settle(stat->monoid, to - from, &all, (double)stat->length, r);
}

static void finish_rows(const lf_stat_at *stat, float *area, int64_t from, int64_t to)
{
    const int64_t each = stat->strips * stat->states;
    const lf_partials all = {.folded = lf_row_partials(stat, area, from),
                             .item = each,
                             .part = stat->states,
                             .state = 1,
                             .parts = stat->strips};
    float *r[LF_MAX_RESULTS];
    results_at(stat, area, from, r);
    if (stat->exps < 0) {
        lf_monoid_settle(stat->monoid, to - from, &all, (double)stat->length, r);
        return;
    }
    float *factor = area + stat->factor + from * stat->strips;
    for (int64_t i = 0; i < to - from; i++, factor += stat->strips) {
        if (softmax_of_parts(stat->strips, all.folded + i * each, stat->states, &r[0][i], &r[1][i], factor))
            continue;
        const lf_partials row = {
            .folded = all.folded + i * each, .part = stat->states, .state = 1, .parts = stat->strips};
        float *const to_row[] = {r[0] + i, r[1] + i};
        lf_monoid_settle(stat->monoid, 1, &row, (double)stat->length, to_row);
    }
}

static void finish_columns(const lf_stat_at *stat, float *area, int64_t from, int64_t to)
{
    const lf_partials all = {.put = area + stat->partial + from,
                             .item = 1,
                             .part = stat->states * stat->width,
                             .state = stat->width,
                             .parts = stat->strips};
    float *r[LF_MAX_RESULTS];
    results_at(stat, area, from, r);
    lf_monoid_settle(stat->monoid, to - from, &all, (double)stat->length, r);
}

/* ---- from the finished row ---- */

/* Some statistics of one row of elements x: the first is number `index` of the row's, and result k goes to r[k]. */
typedef struct row_part {
    const lf_kern *kern;
    const lf_stat_at *stat;
    const float *x;
    int64_t index, count;
    float *r[LF_MAX_RESULTS];
} row_part;

/* Runs of `length` neighbours, `step` apart, the first at x; results from number `at` of the part's on. Those of up to
 * a strip: many at once. */
static void short_spans(const row_part *p, const float *x, int64_t step, int64_t length, int64_t at, int64_t count)
{
    enum { AT_ONCE = 64 };
    const lf_stat_at *stat = p->stat;
    double t[AT_ONCE * LF_MAX_STATE];
    float *r[LF_MAX_RESULTS];
    const lf_partials all = {.folded = t, .item = stat->states, .state = 1, .parts = 1};
    for (int64_t i = 0; i < count; i += AT_ONCE) {
        const int64_t some = lf_min64(AT_ONCE, count - i);
        p->kern->fold[stat->monoid](some, length, x + i * step, step, t);
        for (int k = 0; k < stat->results; k++)
            r[k] = p->r[k] + at + i;
        lf_monoid_settle(stat->monoid, some, &all, (double)length, r);
    }
}

static void spans(const row_part *p, const float *x, int64_t step, int64_t length, int64_t at, int64_t count)
{
    const lf_stat_at *stat = p->stat;
    if (length <= LF_STRIP) {
        short_spans(p, x, step, length, at, count);
        return;
    }
    for (int64_t i = 0; i < count; i++, x += step) {
        double s[LF_MAX_STATE], t[LF_MAX_STATE];
        float r[LF_MAX_RESULTS];
        lf_monoid_begin(stat->monoid, s);
        for (int64_t part = 0; part < length; part += LF_STRIP) {
            p->kern->fold[stat->monoid](1, lf_min64(LF_STRIP, length - part), x + part, 0, t);
            lf_monoid_combine(stat->monoid, s, t);
        }
        lf_monoid_finish(stat->monoid, s, (double)length, r);
        for (int k = 0; k < stat->results; k++)
            p->r[k][at + i] = r[k];
    }
}

/* ---- windows ---- */

/* Windows that have all their taps, the first of them at x: side by side, or where they are long and far apart one
 * after the other, each in order of memory. */
static void whole_windows(const row_part *p, const float *x, int64_t at, int64_t count)
{
    /* taps from which that is faster; apart: further than neighbours are loaded together */
    enum { LONG = 256, LONG_APART = 24 };
    const lf_window *w = &p->stat->window;
    if (w->dilation == 1 && w->kernel >= (w->stride > 2 ? LONG_APART : LONG))
        spans(p, x, w->stride, w->kernel, at, count);
    else
        p->kern->window[p->stat->monoid](count, w->kernel, x, w->stride, w->dilation, (double)w->kernel, p->r[0] + at);
}

/* One window, of which some taps may lie outside its run; start: its first tap, in the run. */
static void edge_window(const row_part *p, const float *run, int64_t start, float *r)
{
    const lf_stat_at *stat = p->stat;
    const lf_window *w = &stat->window;
    int64_t from = 0, to = w->kernel; /* taps inside the run */
    if (start < 0)
        from = lf_ceil_div(-start, w->dilation);
    if (start + (w->kernel - 1) * w->dilation >= stat->length)
        to = lf_max64(from, lf_ceil_div(stat->length - start, w->dilation));
    /* PyTorch's divisor: padding counts where asked to, but not what ceil_mode lets hang over it. */
    int64_t n = w->include_pad ? lf_min64(start + w->kernel, stat->length + w->padding) - start : to - from;
    const float *x = to > from ? run + start + from * w->dilation : run;
    p->kern->window[stat->monoid](1, to - from, x, w->stride, w->dilation, (double)lf_max64(n, 1), r);
}

/* Windows [first, end) of one run, results from number `at` of the part's on. Those in the middle have all their
 * taps. */
static void windows_of_run(const row_part *p, const float *run, int64_t first, int64_t end, int64_t at)
{
    const lf_window *w = &p->stat->window;
    const int64_t last = p->stat->length - 1 - (w->kernel - 1) * w->dilation + w->padding; /* start of the last such */
    const int64_t middle = lf_min64(lf_max64(lf_ceil_div(w->padding, w->stride), first), end);
    const int64_t after = last < 0 ? middle : lf_max64(lf_min64(last / w->stride + 1, end), middle);
    for (int64_t i = first; i < middle; i++)
        edge_window(p, run, i * w->stride - w->padding, p->r[0] + at + (i - first));
    if (after > middle)
        whole_windows(p, run + middle * w->stride - w->padding, at + (middle - first), after - middle);
    for (int64_t i = after; i < end; i++)
        edge_window(p, run, i * w->stride - w->padding, p->r[0] + at + (i - first));
}

static void windows(const row_part *p)
{
    const lf_stat_at *stat = p->stat;
    const lf_window *w = &stat->window;
    assert(stat->results == 1);
    if (w->padding == 0 && stat->length == stat->count * w->stride && (w->kernel - 1) * w->dilation < w->stride) {
        /* windows fill each run without a gap, so the row is as good as one run */
        whole_windows(p, p->x + p->index * w->stride, 0, p->count);
        return;
    }
    for (int64_t i = 0; i < p->count;) {
        const int64_t run = (p->index + i) / stat->count, first = (p->index + i) % stat->count;
        const int64_t end = lf_min64(stat->count, first + p->count - i);
        windows_of_run(p, p->x + run * stat->length, first, end, i);
        i += end - first;
    }
}

/* Row after row: statistics [from, to), counted over rows and then `own`. */
static void finish_within_rows(const lf_run *run, const lf_stat_at *stat, float *area, int64_t area_row, int64_t from,
                               int64_t to)
{
    const float *base = lf_reach_base(run, &stat->from, area); /* f32: lf_group_types */
    row_part p = {.kern = run->instance->kern, .stat = stat};
    for (int64_t i = from; i < to; i += p.count) {
        const int64_t row = i / stat->own;
        p.x = base + lf_side_offset(&stat->from.row, stat->from.home == LF_HOME_BLOCK ? row : row + area_row);
        p.index = i % stat->own;
        p.count = lf_min64(stat->own - p.index, to - i);
        results_at(stat, area, i, p.r);
        if (stat->span == LF_SPAN_WINDOW)
            windows(&p);
        else
            spans(&p, p.x + p.index * stat->length, stat->length, stat->length, 0, p.count);
    }
}

void lf_stat_finish(const lf_run *run, const lf_stat_at *stat, float *area, int64_t area_row, int64_t from, int64_t to)
{
    if (from >= to)
        return;
    switch (stat->span) {
    case LF_SPAN_ROW:
        if (stat->partials == LF_PARTIALS_OUT)
            leave_rows(run, stat, area, area_row, from, to);
        else if (stat->partials == LF_PARTIALS_IN)
            resume_rows(run, stat, area, area_row, from, to);
        else
            finish_rows(stat, area, from, to);
        break;
    case LF_SPAN_COLUMN: finish_columns(stat, area, from, to); break;
    case LF_SPAN_SEGMENT:
    case LF_SPAN_WINDOW: finish_within_rows(run, stat, area, area_row, from, to); break;
    }
}
