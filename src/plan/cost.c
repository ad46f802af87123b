/* SPDX-License-Identifier: Apache-2.0 */
/* Counting flops and bytes, and what they take. Counts are doubles: at hostile extents they lose digits, never wrap. */
#include <math.h>

#include "base/dtype.h"
#include "plan/cost.h"
#include "plan/tiles.h"
#include "plan/touch.h"

/* ---- sizes ---- */

static double extent(lf_extent e, const int64_t *dims)
{
    double value = (double)e.coef;
    for (int i = 0; i < LF_MAX_SYMBOLS; i++)
        for (int p = 0; p < e.pow[i]; p++)
            value *= (double)dims[i];
    return value;
}

static double shape_elements(const lf_shape *s, const int64_t *dims)
{
    double value = 1;
    for (int i = 0; i < s->rank; i++)
        value *= extent(s->dim[i], dims);
    return value;
}

static double elements(const lf_graph *g, lf_node n, const int64_t *dims)
{
    return shape_elements(&lf_at(g, n)->shape, dims);
}

/* An element. */
static double bytes_of(lf_dtype type)
{
    return (double)lf_dtype_size(type);
}

double lf_cost_bytes(const lf_graph *g, lf_node n, const int64_t *dims)
{
    return elements(g, n, dims) * bytes_of(lf_at(g, n)->dtype);
}

/* ---- work: what is done, before anything is said about time ---- */

typedef struct work {
    double product;           /* flops, by kind of unit */
    double element, function;
    double measured_us;       /* of those whose rates are known one by one */
    double read, written;     /* bytes of memory, each once */
    double cached;            /* bytes read that the last cache still has */
    double operands;          /* bytes among those read that are the product's own */
    double again;             /* bytes of w that have to be read more than once: they take time and are not counted */
} work;

/* rate: of `count` such things a second where that is known, or 0. */
static void add_flops(work *w, double flops_each, double count, double rate)
{
    *(flops_each < LF_FUNCTION_FLOPS ? &w->element : &w->function) += flops_each * count;
    if (rate > 0)
        w->measured_us += 1e6 * count / rate;
}

/* An op on `count` elements, once its statistic, if any, is finished. */
static void add_op(work *w, lf_op op, double count, const lf_device *d)
{
    const lf_op_info *row = lf_op_row(op);
    double put = row->monoid == LF_MONOID_none ? 0 : lf_monoid_row(row->monoid)->flops;
    add_flops(w, row->flops > put ? row->flops - put : 0, count, d->cpu.tail.map[op]);
}

static double work_flops(const work *w)
{
    return w->product + w->element + w->function;
}

/* Between levels by the logarithm of the bytes. */
static double level_rate(const double *rate, double bytes)
{
    double at = bytes > 0 ? log2(bytes / LF_LEVEL_BYTES(0)) / log2(LF_LEVEL_BYTES(1) / LF_LEVEL_BYTES(0)) : 0;
    at = fmin(fmax(at, 0), LF_LEVELS - 1);
    int below = (int)fmin(at, LF_LEVELS - 2);
    return rate[below] + (rate[below + 1] - rate[below]) * (at - below);
}

/* around: bytes that are touched before the same ones are again. */
static double read_rate(double around, const lf_device *d)
{
    return d->cpu.level_read[0] > 0 ? level_rate(d->cpu.level_read, around) : d->bytes;
}

static double memory_us(const work *w, double around, const lf_device *d)
{
    const bool levels = d->cpu.level_read[0] > 0;
    double read = read_rate(around, d), cached = levels ? read : d->cache_rate;
    double write = levels ? level_rate(d->cpu.level_written, around) : d->write_bytes;
    return 1e6 * ((w->read + w->again) / read + w->written / write + w->cached / cached);
}

static double tail_us(const work *w, const lf_device *d)
{
    if (d->cpu.tail.map[LF_OP_add] > 0)
        return w->measured_us;
    return 1e6 * (w->element / d->element_flops + w->function / d->function_flops);
}

/* Two things under way at once, of the shorter of which a share shows. */
static double together(double a, double b, double shown)
{
    return fmax(a, b) + shown * fmin(a, b);
}

/* What takes all threads `us`, and waiting for each other: by them, or by one where it is done before they would. */
static double shared_out(double us, double waiting, const lf_device *d)
{
    return d->cpu.threads > 1 ? fmin(us + waiting + d->cpu.wake_us, us * d->cpu.threads) : us + waiting;
}

/* ---- products ---- */

typedef struct product_cost {
    double m, n, k;
    double input_bytes, weight_bytes; /* all of x and all of w */
    double kept_bytes; /* what a row carries along beside x */
    bool tiles;  /* by tiles; otherwise row by row */
    bool brought; /* then: x is brought into lines before */
    double us;
    double packing; /* of x, which us has in it where there are tiles */
    double tail;    /* of its phase, which us has in it, as tail_us has it */
} product_cost;

/* In our kernels: by tiles or row by row, whichever is sooner done. Fewer tiles than units: K is cut, so that all have
 * work. */
static product_cost cost_product(double m, double n, double k, const lf_device *d)
{
    double down = ceil(m / d->tile_rows), across = ceil(n / d->tile_columns);
    double rounds = down * across / d->units;
    double fill = rounds > 1 ? rounds / ceil(rounds) : 1;
    double rows = fmax(m / d->product_flops, down / d->row_flops);
    double packing = 1e6 * (m * k * d->x_bytes / d->bytes);
    double by_tiles = 1e6 * (2 * rows * across * d->tile_columns * k / fill) + packing;
    if (d->cpu.handed > 0)
        by_tiles += 1e6 * m * n / d->cpu.handed;
    double by_dots = 1e6 * 2 * m * n * k / d->dot_flops;
    return (product_cost){.m = m,
                          .n = n,
                          .k = k,
                          .tiles = by_tiles <= by_dots,
                          .us = fmin(by_tiles, by_dots),
                          .packing = by_tiles <= by_dots ? packing : 0};
}

/* A library's product in fp32 on a GPU's ordinary units, in those of its tiles that are soonest done: the smaller they
 * are, the more units have one, and the less each unit makes of its time. A tile that is not full takes no longer than
 * what is there of it, down to a side of LEAST. Shares from eager's times of small models on an H200
 * (docs/log/cuda-2026-11-16-notes.md): 1024 wide, 40 us a layer more at 128 rows and 62 at 1024. */
static double library_us(double m, double n, double k, double weight_bytes, const lf_device *d)
{
    enum { LEAST = 16 };
    static const struct { double rows, columns, share; } tiles[] = {
        {128, 128, 1}, {128, 64, 0.8}, {64, 128, 0.8}, {64, 64, 0.61}};
    const double unit = d->gpu.plain_flops / d->units;
    double least = INFINITY;
    if (m == 0 || n == 0)
        return 0;
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++) {
        const double rows = fmax(fmin(m, tiles[i].rows), LEAST), columns = fmax(fmin(n, tiles[i].columns), LEAST);
        const double rounds = fmax(1, ceil(m / tiles[i].rows) * ceil(n / tiles[i].columns) / d->units);
        least = fmin(least, 1e6 * rounds * 2 * rows * columns * k / (tiles[i].share * unit));
    }
    return fmax(least, 1e6 * weight_bytes / d->gpu.plain_bytes);
}

/* W is read once where all of it stays in cache, or all of x does; otherwise once for each part of x that does. Where
 * rows come in blocks, once for each of them. */
static void count_product(const product_cost *p, const lf_device *d, work *w)
{
    const double carried = bytes_of(LF_F32) * p->k + p->kept_bytes; /* by a row */
    w->product = 2 * p->m * p->n * p->k;
    if (d->cpu.block_rows > 0 && p->m > 0) {
        const double rows = fmin(d->cpu.block_rows, d->cpu.block_bytes / carried);
        w->again = p->weight_bytes * (ceil(p->m / fmax(1, rows)) - 1);
    } else if (p->weight_bytes > d->cache_bytes && p->input_bytes > d->cache_bytes) {
        w->again = p->weight_bytes * (ceil(p->input_bytes / d->cache_bytes) - 1);
    }
}

/* Does the weight of its one column stay in registers for all rows? */
static bool column_in_registers(const lf_plan *plan, const lf_group *g, const lf_product *p, const lf_device *d)
{
    const lf_gpu_half *gpu = &d->gpu;
    const int64_t k = p->k.coef;
    return gpu->column_step > 0 && lf_extent_is(p->n, 1) && k >= gpu->column_least && k <= gpu->column_most &&
           k % gpu->column_step == 0 && lf_tiled_products(plan) == 0 && lf_is_dense_input(plan, &g->x) &&
           lf_wants_again(g);
}

/* Is it behind another kernel of the same launch? */
static bool is_later_stage(const lf_plan *plan, const lf_group *g, const lf_device *d)
{
    return g > plan->group && d->gpu.stage_us > 0;
}

/* On a GPU's tensor cores, in the shape of tiles that suits it, and bringing x into lines before, unless it lies so. */
static product_cost tiled_product(product_cost c, const lf_plan *plan, const lf_group *g, const lf_product *p,
                                  const lf_device *d)
{
    const lf_tiled tiled = {.m = c.m, .n = c.n, .k = c.k, .tail_us = lf_tile_tail_us(g, p->phase, d->gpu.folded, d),
                            .follows = is_later_stage(plan, g, d)};
    c.tiles = true;
    c.brought = !lf_reads_as_it_lies(plan, g, d->gpu.unit, d->gpu.precision_used);
    c.packing = c.brought ? 1e6 * c.m * c.k * d->x_bytes / d->bytes : 0;
    c.us = lf_tiles_us(&tiled, d) + c.packing;
    c.tail = c.m * c.n * lf_tile_tail_us(g, p->phase, 1, d) / d->units;
    return c;
}

/* All products of a group, one after another, but for two that tensor cores make as one. x is packed for the first that
 * wants it so. */
static product_cost group_product(const lf_plan *plan, const lf_group *g, const int64_t *dims, const lf_device *d)
{
    product_cost all = {0};
    const int32_t each = d->gpu.unit != LF_UNIT_PLAIN && lf_made_as_one(g) == 2 ? 2 : 1;
    for (int32_t i = 0; i < g->products; i += each) {
        const lf_product *p = &g->product[i];
        product_cost c = cost_product(extent(g->rows, dims), each * extent(p->n, dims), extent(p->k, dims), d);
        if (d->gpu.start_us > 0 && !p->narrow)
            c = tiled_product(c, plan, g, p, d);
        all.us += c.us - (all.tiles ? c.packing : 0);
        all.packing = fmax(all.packing, c.packing);
        all.m = c.m;
        all.n += c.n;
        all.k = c.k;
        all.tiles = all.tiles || c.tiles;
        all.brought = all.brought || c.brought;
        all.tail += c.tail;
        all.input_bytes = bytes_of(g->x.dtype) * c.m * c.k;
        for (int32_t w = i; w < i + each; w++)
            all.weight_bytes += bytes_of(lf_stored_dtype(plan, g->product[w].weight)) * extent(p->n, dims) * c.k;
    }
    for (int32_t i = 0; i < g->kepts; i++)
        all.kept_bytes += bytes_of(g->kept[i].dtype) * extent(g->kept[i].width, dims);
    return all;
}

/* Arithmetic and memory of a kernel. shown: as memory_shown. A product hides most of reading its own operands, or is
 * hidden behind it. */
static double work_us(work w, double product, double shown, double around, const lf_device *d)
{
    if (d->cpu.operands_shown > 0) {
        product = together(product, 1e6 * (w.operands + w.again) / read_rate(around, d), d->cpu.operands_shown);
        w.read -= w.operands;
        w.again = 0;
    }
    return together(together(product, tail_us(&w, d), d->tail_shown), memory_us(&w, around, d), shown);
}

/* ---- one op by itself ---- */

bool lf_cost_launches(const lf_graph *g, lf_node n)
{
    lf_kind kind = lf_kind_of(g, n);
    return kind != LF_LEAF && kind != LF_VIEW;
}

static bool computed(const lf_graph *g, lf_node n)
{
    while (lf_kind_of(g, n) == LF_VIEW)
        n = lf_arg_of(g, n, 0);
    return lf_kind_of(g, n) != LF_LEAF;
}

/* Small enough to be in the last cache still, if something has just written it? */
static bool stays(double bytes, const lf_device *d)
{
    return bytes <= d->cache_bytes;
}

static void read_arguments(const lf_graph *g, lf_node n, const int64_t *dims, const lf_device *d, work *w)
{
    const lf_node_info *info = lf_at(g, n);
    for (int i = 0; i < lf_op_row(info->op)->arg_count; i++) {
        lf_node arg = info->arg[i];
        if (arg == LF_NONE || lf_at(g, arg)->op == LF_OP_constant)
            continue;
        double bytes = lf_cost_bytes(g, lf_kind_of(g, n) == LF_MOVE ? n : arg, dims); /* a slice reads what it takes */
        *(computed(g, arg) && stays(bytes, d) ? &w->cached : &w->read) += bytes;
    }
}

/* Elements put into the op's statistic, if it takes one. */
static double op_fed(const lf_graph *g, lf_node n, const int64_t *dims)
{
    if (lf_kind_of(g, n) == LF_POOL)
        return elements(g, n, dims) * (double)lf_window_of(g, n).kernel;
    return elements(g, lf_arg_of(g, n, 0), dims);
}

/* `fed` elements put into a monoid, in spans or parts of them. */
static void add_statistic(work *w, lf_monoid m, lf_span span, double fed, double spans, const lf_device *d)
{
    const lf_tail_rates *r = &d->cpu.tail;
    double rate = span == LF_SPAN_COLUMN ? r->put[m] : span == LF_SPAN_WINDOW ? r->window[m] : r->fold[m];
    add_flops(w, lf_monoid_row(m)->flops, fed, rate);
    if (r->span[m] > 0 && span != LF_SPAN_WINDOW) /* windows are finished as they are taken */
        w->measured_us += 1e6 * fmax(spans, fed / LF_PART) / r->span[m];
}

/* Is its statistic over the first axis alone, which makes it one of columns? */
static bool is_of_columns(const lf_graph *g, lf_node n)
{
    return lf_span_axes(g, n) == 1 && lf_at(g, lf_arg_of(g, n, 0))->shape.rank > 1;
}

/* Statistics that are made ready, as count_tail has them of a kernel: none where they are of columns. */
static double op_spans(const lf_graph *g, lf_node n, const int64_t *dims)
{
    const lf_shape *from = &lf_at(g, lf_arg_of(g, n, 0))->shape;
    const unsigned axes = lf_span_axes(g, n);
    double spans = (double)lf_segments(g, n);
    if (is_of_columns(g, n))
        return 0;
    for (int i = 0; i < from->rank; i++)
        if (!(axes >> i & 1))
            spans *= extent(from->dim[i], dims);
    return spans;
}

/* A loss: classes that one target chooses from. */
static double classes_of(const lf_graph *g, lf_node n)
{
    const lf_shape *x = &lf_at(g, lf_arg_of(g, n, 0))->shape;
    return (double)x->dim[x->rank > 1].coef;
}

/* The statistic, then the op on each element of its value, then a norm's weight and bias. */
static void count_op(const lf_graph *g, lf_node n, const int64_t *dims, const lf_device *d, work *w)
{
    const lf_op_info *row = lf_op_row(lf_at(g, n)->op);
    double outputs = elements(g, n, dims);
    if (row->monoid != LF_MONOID_none && row->kind == LF_POOL)
        add_statistic(w, row->monoid, LF_SPAN_WINDOW, op_fed(g, n, dims), 0, d);
    else if (row->monoid != LF_MONOID_none && !lf_uses_running_stats(g, n))
        add_statistic(w, row->monoid, LF_SPAN_ROW, op_fed(g, n, dims), op_spans(g, n, dims), d);
    if (row->kind == LF_LOSS) {
        const double fed = op_fed(g, n, dims);
        add_statistic(w, LF_MONOID_maxsumexp, LF_SPAN_ROW, fed, fed / classes_of(g, n), d);
        add_op(w, LF_OP_pick, fed, d);
        return;
    }
    add_op(w, lf_at(g, n)->op, outputs, d);
    if (row->kind != LF_NORMALIZE)
        return;
    lf_affine affine = lf_affine_of(g, n);
    const struct { int slot; lf_op op; } after[] = {{affine.weight_slot, LF_OP_mul}, {affine.bias_slot, LF_OP_add}};
    for (int i = 0; i < 2; i++)
        if (after[i].slot >= 0 && lf_arg_of(g, n, after[i].slot) != LF_NONE)
            add_op(w, after[i].op, outputs, d);
}

/* How often every unit waits for the others, as `waits` has it of a kernel. */
static int node_waits(const lf_graph *g, lf_node n)
{
    const lf_op_info *row = lf_op_row(lf_at(g, n)->op);
    return row->monoid != LF_MONOID_none && row->kind != LF_POOL && is_of_columns(g, n);
}

/* How long a product takes, as a library has it or in our kernels, and what it counts. */
static double node_product(const lf_graph *g, lf_node n, const int64_t *dims, const lf_device *d, work *w)
{
    const lf_node_info *info = lf_at(g, n);
    const lf_shape *x = &lf_at(g, info->arg[0])->shape;
    double columns = extent(info->shape.dim[info->shape.rank - 1], dims);
    double rows = columns > 0 ? elements(g, n, dims) / columns : 0;
    product_cost p = cost_product(rows, columns, extent(x->dim[x->rank - 1], dims), d);
    p.input_bytes = bytes_of(lf_at(g, info->arg[0])->dtype) * p.m * p.k;
    p.weight_bytes = bytes_of(lf_at(g, info->arg[1])->dtype) * p.n * p.k;
    count_product(&p, d, w);
    w->operands = p.input_bytes + p.weight_bytes;
    if (info->op == LF_OP_linear && info->arg[2] != LF_NONE)
        add_op(w, LF_OP_add, elements(g, n, dims), d);
    return d->gpu.plain_flops > 0 ? library_us(p.m, p.n, p.k, p.weight_bytes, d) : p.us;
}

lf_cost lf_cost_node(const lf_graph *g, lf_node n, const int64_t *dims, const lf_device *d)
{
    if (!lf_cost_launches(g, n))
        return (lf_cost){0};
    work w = {.written = lf_cost_bytes(g, n, dims)};
    double product = 0;
    read_arguments(g, n, dims, d, &w);
    if (lf_kind_of(g, n) == LF_PRODUCT)
        product = node_product(g, n, dims, d, &w);
    else
        count_op(g, n, dims, d, &w);
    double bytes = w.read + w.written + w.cached;
    double us = work_us(w, product, d->gpu.plain_flops > 0 ? 0 : d->memory_shown, bytes, d);
    return (lf_cost){.flops = work_flops(&w),
                     .bytes = bytes,
                     .us = shared_out(us, node_waits(g, n) * d->wait_us, d) + d->launch_us};
}

static lf_cost plus(lf_cost a, lf_cost b)
{
    return (lf_cost){a.flops + b.flops, a.bytes + b.bytes, a.us + b.us};
}

lf_cost lf_cost_plain_total(const lf_graph *g, const int64_t *dims, const lf_device *d, int32_t *launches)
{
    lf_cost total = {0};
    int32_t count = 0;
    for (lf_node n = 0; n < g->count; n++) {
        total = plus(total, lf_cost_node(g, n, dims, d));
        count += lf_cost_launches(g, n);
    }
    if (launches)
        *launches = count;
    return total;
}

/* ---- a kernel: what it touches ---- */

/* How many different elements: axes that repeat count once. */
static double distinct(const lf_access *a, const int64_t *dims)
{
    double value = 1;
    for (int i = 0; i < a->rank; i++)
        value *= a->stride[i].coef == 0 ? fmin(1, extent(a->extent[i], dims)) : extent(a->extent[i], dims);
    return value;
}

typedef struct touching {
    const lf_plan *plan;
    const lf_group *group;
    const int64_t *dims;
    const lf_device *device;
    work *work;
} touching;

/* Are elements that were touched in a phase still at hand? By rows always, the block is in cache; by phase those of
 * this phase, and what stays in cache. */
static bool near(const touching *t, const lf_touch *now, int32_t phase, double count)
{
    return t->group->schedule == LF_BY_ROWS || phase == now->phase ||
           stays(bytes_of(now->access->dtype) * count, t->device);
}

/* The most elements of the same thing that a touch before this one has left near. Each product multiplies x anew. */
static double touched_before(const touching *t, const lf_touch *at)
{
    double most = 0;
    lf_touch before;
    for (lf_touches all = lf_touches_of(t->group);
         lf_touch_next(&all, &before) && (before.access != at->access || before.phase != at->phase);) {
        if (!before.access || !lf_touches_this(&before, at->place, at->what) || before.access == at->access ||
            !lf_extent_same(before.access->first, at->access->first))
            continue;
        double count = distinct(before.access, t->dims);
        if (near(t, at, before.phase, count))
            most = fmax(most, count);
    }
    return most;
}

static void count_touch(const touching *t, const lf_touch *at)
{
    const lf_access *a = at->access;
    double bytes = bytes_of(a->dtype) * distinct(a, t->dims);
    if (a->place == LF_STAT || a->place == LF_FACTOR)
        return;
    if (a->place == LF_KEPT && (t->group->schedule == LF_BY_ROWS || stays(bytes, t->device)))
        return;
    if (lf_is_write(at)) {
        t->work->written += bytes;
        return;
    }
    double more = bytes - bytes_of(a->dtype) * touched_before(t, at);
    if (more <= 0)
        return;
    bool buffered = a->place == LF_VALUE && t->plan->storage[a->index] == LF_IN_BUFFER;
    if (at->by == LF_TOUCH_X && !(buffered && stays(bytes, t->device)))
        t->work->operands += more;
    *(buffered && stays(bytes, t->device) ? &t->work->cached : &t->work->read) += more;
}

static void count_touches(const touching *t)
{
    lf_touch at;
    for (lf_touches all = lf_touches_of(t->group); lf_touch_next(&all, &at);)
        if (at.access) /* group_work has weights and biases */
            count_touch(t, &at);
}

/* ---- a kernel: what follows its product ---- */

static double grid_rows(const lf_group *g, const lf_phase *phase, const int64_t *dims)
{
    return phase->one_row ? 1 : extent(g->rows, dims);
}

/* Elements put into a statistic. */
static double fed(const lf_group *g, const lf_stat *s, const int64_t *dims)
{
    const lf_phase *phase = &g->phase[s->phase];
    double rows = grid_rows(g, phase, dims);
    if (s->span == LF_SPAN_SEGMENT)
        return rows * extent(s->count, dims) * extent(s->length, dims);
    if (s->span == LF_SPAN_WINDOW)
        return rows * extent(s->groups, dims) * extent(s->count, dims) * (double)s->window.kernel;
    return rows * extent(phase->width, dims);
}

/* Statistics, of a group's. */
static double spans(const lf_group *g, const lf_stat *s, const int64_t *dims)
{
    return grid_rows(g, &g->phase[s->phase], dims) * (s->span == LF_SPAN_SEGMENT ? extent(s->count, dims) : 1);
}

static void count_tail(const lf_group *g, const int64_t *dims, const lf_device *d, work *w)
{
    for (int32_t p = 0; p < g->phases; p++) {
        const lf_phase *phase = &g->phase[p];
        double count = grid_rows(g, phase, dims) * extent(phase->width, dims);
        for (int32_t i = 0; i < phase->steps; i++)
            if (phase->step[i].kind == LF_STEP_OP)
                add_op(w, phase->step[i].op, count, d);
    }
    for (int32_t i = 0; i < g->stats; i++) {
        const lf_stat *s = &g->stat[i];
        add_statistic(w, s->monoid, s->span, fed(g, s, dims), s->span == LF_SPAN_COLUMN ? 0 : spans(g, s, dims), d);
    }
}

/* Does one unit not do all of a row? A GPU's have tiles of it, a CPU's threads share its columns where rows are few. */
static bool shares_rows(const product_cost *product, const lf_device *d)
{
    const int threads = d->cpu.threads;
    return product->tiles && (lf_is_gpu(d) || (threads > 1 && product->m < d->cpu.rows_a_thread * threads));
}

/* How often every unit waits for the others: before each phase where statistics span all rows; where units share a
 * row, before a phase that wants the row's elements again. */
static int waits(const lf_group *g, const product_cost *product, const lf_device *d)
{
    const bool shared = shares_rows(product, d);
    int count = 0;
    for (int32_t p = 1; p < g->phases; p++)
        count += g->schedule == LF_BY_PHASE ||
                 (shared && lf_product_in(g, p - 1) && !lf_extent_is(g->phase[p].width, 1));
    return count;
}

static work group_work(const lf_plan *plan, const lf_group *g, const product_cost *product, const int64_t *dims,
                       const lf_device *d)
{
    work w = {0};
    count_product(product, d, &w);
    w.read += product->m > 0 ? product->weight_bytes : 0;
    w.operands = w.read;
    for (int32_t i = 0; i < g->products; i++) {
        const lf_product *p = &g->product[i];
        const double n = extent(p->n, dims);
        /* read in double precision for every row, unless it is in registers, half of it from nearer than the last cache
         * (measured on an H200) */
        if (p->narrow && d->gpu.stage_us > 0 && !column_in_registers(plan, g, p, d))
            w.cached += sizeof(double) / 2 * product->m * n * product->k;
        if (p->bias != LF_NONE) { /* no step of its own adds it */
            w.read += product->m > 0 ? bytes_of(lf_stored_dtype(plan, p->bias)) * n : 0;
            add_op(&w, LF_OP_add, product->m * n, d);
        }
    }
    count_touches(&(touching){plan, g, dims, d, &w});
    count_tail(g, dims, d, &w);
    return w;
}

/* What all of a plan's kernels touch, which is what comes between a call and the next. */
static double plan_bytes(const lf_plan *plan, const int64_t *dims, const lf_device *d)
{
    double bytes = 0;
    for (int32_t i = 0; i < plan->groups; i++) {
        product_cost product = group_product(plan, &plan->group[i], dims, d);
        work w = group_work(plan, &plan->group[i], &product, dims, d);
        bytes += w.read + w.written + w.cached;
    }
    return bytes;
}

/* What the product's tiles do not do, behind them: later phases, and memory but for the operands, which is hidden but
 * for a share. */
static double tiled_us(work w, const product_cost *product, double around, const lf_device *d)
{
    const double later = fmax(0, tail_us(&w, d) - product->tail);
    w.read -= w.operands;
    w.again = 0;
    return together(product->us + later, memory_us(&w, around, d), d->memory_shown);
}

/* around: as plan_bytes has it. */
static lf_cost cost_group(const lf_plan *plan, const lf_group *g, double around, const int64_t *dims,
                          const lf_device *d)
{
    product_cost product = group_product(plan, g, dims, d);
    work w = group_work(plan, g, &product, dims, d);
    double us = product.tiles && d->gpu.start_us > 0 ? tiled_us(w, &product, around, d)
                                                 : work_us(w, product.us, d->memory_shown, around, d);
    return (lf_cost){.flops = work_flops(&w),
                     .bytes = w.read + w.written + w.cached,
                     .us = shared_out(us, waits(g, &product, d) * d->wait_us, d) +
                           (is_later_stage(plan, g, d) ? d->gpu.stage_us : d->launch_us)};
}

int32_t lf_cost_plan_launches(const lf_plan *plan, const lf_device *d)
{
    return plan->groups > 1 && d->gpu.stage_us > 0 ? 1 : plan->groups;
}

lf_cost lf_cost_group(const lf_plan *plan, const lf_group *g, const int64_t *dims, const lf_device *d)
{
    return cost_group(plan, g, plan_bytes(plan, dims, d), dims, d);
}

lf_cost lf_cost_plan_total(const lf_plan *plan, const int64_t *dims, const lf_device *d)
{
    lf_cost total = {0};
    double around = plan_bytes(plan, dims, d);
    for (int32_t i = 0; i < plan->groups; i++)
        total = plus(total, cost_group(plan, &plan->group[i], around, dims, d));
    return total;
}

/* ---- workspace ---- */

static double group_workspace(const lf_plan *plan, const lf_group *g, const int64_t *dims, const lf_device *d)
{
    double rows = extent(g->rows, dims), row_tiles = ceil(rows / d->tile_rows), bytes = 0;
    product_cost product = group_product(plan, g, dims, d);
    if (product.tiles && lf_is_gpu(d)) /* x in lines, and its rows' scales */
        bytes += (product.brought ? product.m * product.k * lf_precision_bytes(d->gpu.precision_used) : 0) +
                 bytes_of(LF_F32) * product.m;
    for (int32_t i = 0; i < g->stats; i++) {
        const lf_stat *s = &g->stat[i];
        double states = bytes_of(LF_F32) * lf_monoid_row(s->monoid)->states;
        double width = extent(g->phase[s->phase].width, dims);
        if (s->span == LF_SPAN_COLUMN)
            bytes += row_tiles * width * states;
        else if (product.tiles && s->span == LF_SPAN_ROW && lf_product_in(g, s->phase))
            bytes += rows * ceil(width / d->tile_columns) * states;
    }
    return g->stats > 0 ? bytes + sizeof(uint32_t) * row_tiles : bytes; /* a counter for each row of tiles */
}

int64_t lf_cost_workspace(const lf_plan *plan, const int64_t *dims, const lf_device *d)
{
    double most = 0;
    for (int32_t i = 0; i < plan->groups; i++)
        most = fmax(most, group_workspace(plan, &plan->group[i], dims, d));
    return most < 9e18 ? (int64_t)most : INT64_MAX;
}

/* ---- prepared parameters ---- */

/* A weight as its product reads it. */
static double product_weight(const lf_plan *plan, const lf_product *p, const int64_t *dims, const lf_device *d)
{
    const double n = extent(p->n, dims), k = extent(p->k, dims);
    if (p->narrow) /* and its bias, in double precision */
        return 8 * n * (k + 1);
    if (!lf_is_gpu(d))
        return bytes_of(lf_stored_dtype(plan, p->weight)) * k * ceil(n / d->tile_columns) * d->tile_columns;
    const lf_precision precision = d->gpu.precision_used;
    const double lines = n * ceil(k / lf_line_elements(precision)) * LF_LINE, scales = bytes_of(LF_F32) * (n + k);
    /* rows of too wide a range read it as it is */
    const double plain = lf_precision_table[precision].split ? bytes_of(LF_F32) * n * k : 0;
    return lf_is_tiled_product(p) && d->gpu.unit != LF_UNIT_PLAIN ? lines + scales + plain : 0;
}

/* Is there a tensor that is not for products alone? A CPU reads parameters where their owner has them. */
static bool stays_a_tensor(const lf_plan *plan, int32_t prepared, const lf_device *d)
{
    return !plan->packed_only[prepared] &&
           (lf_is_gpu(d) || lf_at(plan->graph, plan->prepared[prepared])->op != LF_OP_param);
}

double lf_cost_prepared(const lf_plan *plan, const int64_t *dims, const lf_device *d)
{
    double bytes = 0;
    for (int32_t i = 0; i < plan->products; i++) {
        bool shared = false;
        for (int32_t before = 0; before < i; before++)
            shared = shared || plan->product[before]->weight == plan->product[i]->weight;
        if (plan->product[i]->weight_fixed && !shared)
            bytes += product_weight(plan, plan->product[i], dims, d);
    }
    for (int32_t i = 0; i < plan->prepareds; i++)
        if (stays_a_tensor(plan, i, d))
            bytes += lf_cost_bytes(plan->graph, plan->prepared[i], dims);
    return bytes;
}
