/* SPDX-License-Identifier: Apache-2.0 */
/* Counting flops and bytes, and what they take. Counts are doubles: at hostile extents they lose digits, never wrap. */
#include <math.h>

#include "base/dtype.h"
#include "plan/cost.h"

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

double lf_cost_bytes(const lf_graph *g, lf_node n, const int64_t *dims)
{
    return elements(g, n, dims) * (double)lf_dtype_size(lf_at(g, n)->dtype);
}

/* ---- work: what is done, before anything is said about time ---- */

typedef struct work {
    double product;           /* flops, by kind of unit */
    double element, function;
    double read, written;     /* bytes of memory, each once */
    double cached;            /* bytes read that the last cache still has */
    double again;             /* bytes that have to be read more than once: they take time and are not counted */
} work;

static void add_flops(work *w, double flops_each, double count)
{
    *(flops_each < LF_FUNCTION_FLOPS ? &w->element : &w->function) += flops_each * count;
}

/* What an op does to one element once its statistic, if any, is finished. */
static double after_statistic(const lf_op_info *row)
{
    double put = row->monoid == LF_MONOID_none ? 0 : lf_monoid_row(row->monoid)->flops;
    return row->flops > put ? row->flops - put : 0;
}

static double work_flops(const work *w)
{
    return w->product + w->element + w->function;
}

static double memory_us(const work *w, const lf_device *d)
{
    return 1e6 * ((w->read + w->again) / d->bytes + w->written / d->write_bytes + w->cached / d->cache_rate);
}

static double tail_us(const work *w, const lf_device *d)
{
    return 1e6 * (w->element / d->element_flops + w->function / d->function_flops);
}

/* Two things under way at once, of the shorter of which a share shows. */
static double together(double a, double b, double shown)
{
    return fmax(a, b) + shown * fmin(a, b);
}

/* ---- products ---- */

typedef struct product_cost {
    double m, n, k;
    bool tiles;  /* by tiles; otherwise row by row */
    double us;
} product_cost;

/* In our kernels: by tiles or row by row, whichever is sooner done. Fewer tiles than units: K is cut, so that all have work. */
static product_cost cost_product(double m, double n, double k, const lf_device *d)
{
    double down = ceil(m / d->tile_rows), across = ceil(n / d->tile_columns);
    double flops = 2 * down * d->tile_rows * across * d->tile_columns * k;
    double rounds = down * across / d->units;
    double fill = rounds > 1 ? rounds / ceil(rounds) : 1;
    double by_tiles = 1e6 * (flops / (d->product_flops * fill) + m * k * d->x_bytes / d->bytes);
    double by_dots = 1e6 * 2 * m * n * k / d->dot_flops;
    return (product_cost){m, n, k, .tiles = by_tiles <= by_dots, .us = fmin(by_tiles, by_dots)};
}

/* W is read once where all of it stays in cache, or all of x does; otherwise once for each part of x that does. */
static void count_product(const product_cost *p, const lf_device *d, work *w)
{
    double weight = 4 * p->n * p->k, x = 4 * p->m * p->k;
    w->product = 2 * p->m * p->n * p->k;
    if (weight > d->cache_bytes && x > d->cache_bytes)
        w->again = weight * (ceil(x / d->cache_bytes) - 1);
}

static product_cost group_product(const lf_group *g, const int64_t *dims, const lf_device *d)
{
    if (g->product.node == LF_NONE)
        return (product_cost){.us = 0};
    return cost_product(extent(g->rows, dims), extent(g->product.n, dims), extent(g->product.k, dims), d);
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
        double bytes = lf_cost_bytes(g, arg, dims);
        *(computed(g, arg) && stays(bytes, d) ? &w->cached : &w->read) += bytes;
    }
}

/* Elements put into the op's statistic, if it takes one. */
static double op_fed(const lf_graph *g, lf_node n, const int64_t *dims)
{
    lf_kind kind = lf_kind_of(g, n);
    if (kind == LF_POOL)
        return elements(g, n, dims) * (double)lf_window_of(g, n).kernel;
    return kind == LF_NORMALIZE && lf_uses_running_stats(g, n) ? 0 : elements(g, lf_arg_of(g, n, 0), dims);
}

/* The statistic, then the op on each element of its value, then a norm's weight and bias. */
static void count_op(const lf_graph *g, lf_node n, const int64_t *dims, work *w)
{
    const lf_op_info *row = lf_op_row(lf_at(g, n)->op);
    double outputs = elements(g, n, dims);
    if (row->monoid != LF_MONOID_none)
        add_flops(w, lf_monoid_row(row->monoid)->flops, op_fed(g, n, dims));
    add_flops(w, after_statistic(row), outputs);
    if (row->kind != LF_NORMALIZE)
        return;
    lf_affine affine = lf_affine_of(g, n);
    const int slots[2] = {affine.weight_slot, affine.bias_slot};
    for (int i = 0; i < 2; i++)
        if (slots[i] >= 0 && lf_arg_of(g, n, slots[i]) != LF_NONE)
            add_flops(w, 1, outputs);
}

/* How long a product takes, as a library has it or in our kernels, and what it counts. */
static double node_product(const lf_graph *g, lf_node n, const int64_t *dims, const lf_device *d, work *w)
{
    const lf_node_info *info = lf_at(g, n);
    const lf_shape *x = &lf_at(g, info->arg[0])->shape;
    double columns = extent(info->shape.dim[info->shape.rank - 1], dims);
    double rows = columns > 0 ? elements(g, n, dims) / columns : 0;
    product_cost p = cost_product(rows, columns, extent(x->dim[x->rank - 1], dims), d);
    count_product(&p, d, w);
    if (info->op == LF_OP_linear && info->arg[2] != LF_NONE)
        add_flops(w, 1, elements(g, n, dims));
    return d->plain_flops > 0 ? 1e6 * w->product / d->plain_flops : p.us;
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
        count_op(g, n, dims, &w);
    double compute = together(product, tail_us(&w, d), d->tail_shown);
    return (lf_cost){.flops = work_flops(&w), .bytes = w.read + w.written + w.cached,
                     .us = fmax(compute, memory_us(&w, d)) + d->launch_us};
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

/* One access of a group. A phase's come in order: x where it has the product, loads, what segments are taken from, stores. */
typedef struct touch {
    const lf_access *access;
    bool write;
    int32_t phase;
} touch;

static bool touch_in_phase(const lf_group *g, int32_t p, int32_t index, touch *out)
{
    const lf_phase *phase = &g->phase[p];
    *out = (touch){.phase = p};
    if (index < phase->steps) {
        out->access = phase->step[index].kind == LF_STEP_LOAD ? &phase->step[index].from : NULL;
        return true;
    }
    index -= phase->steps;
    if (index < g->stats) {
        out->access = g->stat[index].phase == p && g->stat[index].step < 0 ? &g->stat[index].from : NULL;
        return true;
    }
    index -= g->stats;
    if (index >= phase->stores)
        return false;
    out->access = &phase->store[index].to;
    out->write = true;
    return true;
}

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

static bool same_thing(const lf_access *a, const lf_access *b)
{
    return a->place == b->place && a->index == b->index;
}

/* Are elements that were touched in a phase still at hand? By rows always, the block is in cache; by phase those of this phase, and
 * what stays in cache. */
static bool near(const touching *t, const touch *now, int32_t phase, double count)
{
    return t->group->schedule == LF_BY_ROWS || phase == now->phase || stays(4 * count, t->device);
}

/* The most elements of the same thing that an access before this one has touched and that are still near. index: its place in its
 * phase, -1 for the product's x. */
static double touched_before(const touching *t, const touch *at, int32_t index)
{
    const lf_group *g = t->group;
    double most = 0;
    const lf_access *x = &g->product.x;
    if (g->product.node != LF_NONE && at->access != x && at->phase >= g->product.phase && same_thing(x, at->access) &&
        near(t, at, g->product.phase, distinct(x, t->dims)))
        most = distinct(x, t->dims);
    for (int32_t p = 0; p <= at->phase; p++) {
        touch before;
        for (int32_t i = 0; (p < at->phase || i < index) && touch_in_phase(g, p, i, &before); i++) {
            if (!before.access || !same_thing(before.access, at->access))
                continue;
            double count = distinct(before.access, t->dims);
            if (near(t, at, p, count))
                most = fmax(most, count);
        }
    }
    return most;
}

static void count_touch(const touching *t, const touch *at, int32_t index)
{
    const lf_access *a = at->access;
    double bytes = 4 * distinct(a, t->dims);
    if (a->place == LF_STAT)
        return;
    if (a->place == LF_KEPT && (t->group->schedule == LF_BY_ROWS || stays(bytes, t->device)))
        return;
    if (at->write) {
        t->work->written += bytes;
        return;
    }
    double more = bytes - 4 * touched_before(t, at, index);
    if (more <= 0)
        return;
    bool buffered = a->place == LF_VALUE && t->plan->storage[a->index] == LF_IN_BUFFER;
    *(buffered && stays(bytes, t->device) ? &t->work->cached : &t->work->read) += more;
}

static void count_touches(const touching *t)
{
    const lf_group *g = t->group;
    for (int32_t p = 0; p < g->phases; p++) {
        touch at;
        if (g->product.node != LF_NONE && g->product.phase == p)
            count_touch(t, &(touch){&g->product.x, false, p}, -1);
        for (int32_t i = 0; touch_in_phase(g, p, i, &at); i++)
            if (at.access)
                count_touch(t, &at, i);
    }
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

static void count_tail(const lf_group *g, const int64_t *dims, work *w)
{
    for (int32_t p = 0; p < g->phases; p++) {
        const lf_phase *phase = &g->phase[p];
        double count = grid_rows(g, phase, dims) * extent(phase->width, dims);
        for (int32_t i = 0; i < phase->steps; i++)
            if (phase->step[i].kind == LF_STEP_OP)
                add_flops(w, after_statistic(lf_op_row(phase->step[i].op)), count);
    }
    for (int32_t i = 0; i < g->stats; i++)
        add_flops(w, lf_monoid_row(g->stat[i].monoid)->flops, fed(g, &g->stat[i], dims));
}

/* How often every unit waits for the others: before each phase where statistics span all rows; where a row is spread over tiles,
 * before a phase that wants the row's elements again. */
static int waits(const lf_group *g, const product_cost *product)
{
    int count = 0;
    for (int32_t p = 1; p < g->phases; p++)
        count += g->schedule == LF_BY_PHASE ||
                 (product->tiles && p > g->product.phase && !lf_extent_is(g->phase[p].width, 1));
    return count;
}

lf_cost lf_cost_group(const lf_plan *plan, const lf_group *g, const int64_t *dims, const lf_device *d)
{
    work w = {0};
    product_cost product = group_product(g, dims, d);
    count_product(&product, d, &w);
    w.read += product.m > 0 ? 4 * product.n * product.k : 0;
    count_touches(&(touching){plan, g, dims, d, &w});
    count_tail(g, dims, &w);
    double compute = together(product.us, tail_us(&w, d), d->tail_shown);
    return (lf_cost){.flops = work_flops(&w), .bytes = w.read + w.written + w.cached,
                     .us = together(compute, memory_us(&w, d), d->memory_shown) + waits(g, &product) * d->wait_us + d->launch_us};
}

lf_cost lf_cost_plan_total(const lf_plan *plan, const int64_t *dims, const lf_device *d)
{
    lf_cost total = {0};
    for (int32_t i = 0; i < plan->groups; i++)
        total = plus(total, lf_cost_group(plan, &plan->group[i], dims, d));
    return total;
}

/* ---- workspace ---- */

static double group_workspace(const lf_group *g, const int64_t *dims, const lf_device *d)
{
    double rows = extent(g->rows, dims), row_tiles = ceil(rows / d->tile_rows), bytes = 0;
    product_cost product = group_product(g, dims, d);
    if (product.tiles && d->x_kept_bytes > 0)
        bytes += product.m * product.k * d->x_kept_bytes + 4 * product.m; /* and each row's scale */
    for (int32_t i = 0; i < g->stats; i++) {
        const lf_stat *s = &g->stat[i];
        double states = 4.0 * lf_monoid_row(s->monoid)->states, width = extent(g->phase[s->phase].width, dims);
        if (s->span == LF_SPAN_COLUMN)
            bytes += row_tiles * width * states;
        else if (product.tiles && s->span == LF_SPAN_ROW && s->phase == g->product.phase)
            bytes += rows * ceil(width / d->tile_columns) * states;
    }
    return g->stats > 0 ? bytes + 4 * row_tiles : bytes; /* a counter for each row of tiles */
}

int64_t lf_cost_workspace(const lf_plan *plan, const int64_t *dims, const lf_device *d)
{
    double most = 0;
    for (int32_t i = 0; i < plan->groups; i++)
        most = fmax(most, group_workspace(&plan->group[i], dims, d));
    return most < 9e18 ? (int64_t)most : INT64_MAX;
}
