/* SPDX-License-Identifier: Apache-2.0 */
/* A phase's program over a piece of its grid: strip after strip through every step, each a call of a kernel on up to
 * LF_STRIP elements: columns of one row, or several rows where they are short; of some strips at once where rows come
 * one by one. Then what the strip feeds: partials of statistics, witnesses, stores. Sinks come last, so that a value
 * that waits in the memory of the output about to be written is read before. */
#include <string.h>

#include "cpu/parts.h"

/* How far ahead of what is read what comes from memory is asked for, in floats. */
enum { AHEAD = 8 * LF_STRIP, EXPS_AHEAD = 4 * LF_STRIP };

/* A piece with its pointers found. */
typedef struct tail {
    const lf_piece *p;
    const lf_phase_at *phase;
    const lf_kern *kern;
    float *registers;    /* [registers][stretch] */
    const float **value; /* one per step: its elements of the strip at hand, or of the rows from `first` on */
    const void **base;   /* one per step: where its access begins */
    void **to;           /* one per store: the same */
    float **tile;        /* one per product of the group: its strip, [rows][ldc of it]: its tile, or where it lands */
    const float *packed;
    int64_t first;       /* values per row: the row whose element comes first */
} tail;

/* The strip at hand. */
typedef struct strip {
    int64_t row, rows;   /* of the grid; one, or up to phase->together */
    int64_t index;       /* which of a row's strips, the first of those at hand */
    int64_t col, width;  /* columns of each row */
    int64_t n;           /* elements, gaps between rows included */
} strip;

static float *reg(const tail *t, int32_t index)
{
    return t->registers + index * t->phase->stretch;
}

/* ---- steps ---- */

static const float *used(const tail *t, lf_use u)
{
    return u.spread ? reg(t, t->phase->step[u.step].spread_reg) : t->value[u.step];
}

/* The strips at hand, each with its own number for those arguments that are one number a strip. */
static void apply_by_strips(const tail *t, const lf_step_at *s, const strip *at, const float *const *arg, float *out)
{
    const float *a[3] = {arg[0], arg[1], arg[2]};
    for (int64_t i = 0; i < at->n; i += LF_STRIP) {
        for (int k = 1; k < 3 && i > 0; k++) {
            const lf_step_at *from = s->arg[k].step < 0 ? NULL : &t->phase->step[s->arg[k].step];
            const int64_t each = from && from->per_strip ? from->from.col.extent[1] : 0;
            a[k] += each == LF_STRIP || (each > 0 && (at->col + i) % each == 0);
        }
        s->map(lf_min64(LF_STRIP, at->n - i), a[0] + i, a[1], a[2], s->attr, out + i);
    }
}

static void apply(const tail *t, const lf_step_at *s, int64_t n, int64_t row, const strip *at, float *out)
{
    const float *arg[3];
    for (int k = 0; k < 3; k++) {
        const lf_use u = s->arg[k];
        arg[k] = u.step < 0 ? NULL : used(t, u);
        if (u.step >= 0 && !u.spread && s->level == LF_PER_ELEMENT && t->phase->step[u.step].level == LF_PER_ROW)
            arg[k] += row - t->first;
    }
    if (s->by_strips && n > LF_STRIP)
        apply_by_strips(t, s, at, arg, out);
    else
        s->map(n, arg[0], arg[1], arg[2], s->attr, out);
}

static void steps_once(const tail *t)
{
    for (int32_t i = 0; i < t->phase->steps; i++) {
        const lf_step_at *s = &t->phase->step[i];
        if (s->level != LF_ONCE)
            continue;
        t->value[i] = s->reg < 0 ? t->base[i] : reg(t, s->reg);
        if (s->kind == LF_STEP_NUMBER)
            reg(t, s->reg)[0] = s->number;
        else if (s->kind == LF_STEP_OP)
            apply(t, s, 1, 0, NULL, reg(t, s->reg));
        else if (s->reg >= 0)
            lf_side_gather(t->kern, s->from.dtype, &s->from.col, t->base[i], 0, 1, reg(t, s->reg));
        if (s->spread_reg >= 0)
            t->kern->spread(t->phase->stretch, 0, t->phase->stretch, t->value[i], reg(t, s->spread_reg));
    }
}

/* An element for each of up to LF_STRIP rows. */
static void steps_of_rows(tail *t, int64_t row, int64_t rows)
{
    t->first = row;
    for (int32_t i = 0; i < t->phase->steps; i++) {
        const lf_step_at *s = &t->phase->step[i];
        if (s->level != LF_PER_ROW)
            continue;
        const int64_t start = lf_row_in(t->p, &s->from, row);
        t->value[i] = s->reg < 0 ? (const float *)t->base[i] + start : reg(t, s->reg);
        if (s->kind == LF_STEP_OP)
            apply(t, s, rows, row, NULL, reg(t, s->reg));
        else if (s->reg >= 0)
            lf_side_gather(t->kern, s->from.dtype, &s->from.row, t->base[i], start, rows, reg(t, s->reg));
    }
}

/* What rows have in common: once for the columns of a strip, as often as the strip has rows. */
static void steps_of_columns(const tail *t, const strip *at)
{
    for (int32_t i = 0; i < t->phase->steps; i++) {
        const lf_step_at *s = &t->phase->step[i];
        if (s->level != LF_PER_STRIP)
            continue;
        t->value[i] = s->reg < 0 ? (const float *)t->base[i] + at->col : reg(t, s->reg);
        if (s->kind == LF_STEP_OP)
            apply(t, s, at->n, at->row, at, reg(t, s->reg));
        else if (s->reg >= 0)
            for (int64_t r = 0; r < at->rows; r++)
                lf_side_gather(t->kern, s->from.dtype, &s->from.col, t->base[i], at->col, at->width,
                               reg(t, s->reg) + r * t->phase->pitch);
    }
}

/* Loads into a register: columns of a row, or rows one after the other. */
static void gather(const tail *t, const lf_step_at *s, const void *base, const strip *at, float *out)
{
    const lf_dtype type = s->from.dtype;
    const int64_t start = lf_row_in(t->p, &s->from, at->row);
    if (t->phase->width == 1 && t->phase->pitch == 1) {
        lf_side_gather(t->kern, type, &s->from.row, base, start, at->rows, out);
        return;
    }
    for (int64_t r = 0; r < at->rows; r++, out += t->phase->pitch) {
        const void *row = lf_element_at(type, base, lf_side_offset(&s->from.row, start + r));
        if (s->from.col.form == LF_FORM_SPREAD && type == LF_F32) {
            const int64_t each = s->from.col.extent[1];
            t->kern->spread(at->width, at->col % each, each, (const float *)row + at->col / each, out);
        } else {
            lf_side_gather(t->kern, type, &s->from.col, row, at->col, at->width, out);
        }
    }
}

/* Where the elements of a store's strip lie, the first row's; of one whose columns lie side by side. */
static void *place_of(const tail *t, int32_t store, const strip *at)
{
    const lf_reach *to = &t->phase->store[store].to;
    return lf_element_at(to->dtype, t->to[store], lf_side_offset(&to->row, lf_row_in(t->p, to, at->row)) + at->col);
}

/* Asks for what some strips further on will read of a tensor: with so much done between one strip and the next, what
 * the machine asks for by itself comes too late. */
static void ask_ahead(const float *x, int64_t n)
{
    enum { LINE = 16 };
    for (int64_t i = 0; i < n; i += LINE)
        __builtin_prefetch(x + AHEAD + i, 0, 3);
}

/* From a row of the product's strip to the next, in floats. */
static int64_t lead_of(const tail *t, const lf_product_at *product)
{
    return product->lands >= 0 ? t->phase->width : product->ldc;
}

static void step_of_elements(const tail *t, int32_t i, const strip *at)
{
    const lf_step_at *s = &t->phase->step[i];
    float *out = s->to >= 0 ? place_of(t, s->to, at) : s->reg >= 0 ? reg(t, s->reg) : NULL;
    switch (s->kind) {
    case LF_STEP_LOAD:
        if (!out) {
            const int64_t start = lf_row_in(t->p, &s->from, at->row);
            t->value[i] = (const float *)t->base[i] + lf_side_offset(&s->from.row, start);
            if (s->per_strip) {
                t->value[i] += at->col / s->from.col.extent[1];
                return;
            }
            t->value[i] += at->col;
            if (s->far && !s->asked)
                ask_ahead(t->value[i], at->n);
            return;
        }
        gather(t, s, t->base[i], at, out);
        break;
    case LF_STEP_PRODUCT:
        t->value[i] =
            t->tile[s->product] + (at->row - t->p->row) * lead_of(t, &t->p->group->product[s->product]);
        return;
    case LF_STEP_OP: apply(t, s, at->n, at->row, at, out); break;
    case LF_STEP_NUMBER: return;
    }
    t->value[i] = out;
}

static void steps_of_elements(const tail *t, const strip *at)
{
    for (int32_t i = 0; i < t->phase->steps; i++) {
        const lf_step_at *s = &t->phase->step[i];
        if (s->joined)
            continue;
        if (s->level == LF_PER_ELEMENT)
            step_of_elements(t, i, at);
        if (s->per_strip && s->spread_reg >= 0)
            t->kern->spread(at->n, at->col % s->from.col.extent[1], s->from.col.extent[1], t->value[i],
                            reg(t, s->spread_reg));
        else if (s->level == LF_PER_ROW && s->spread_reg >= 0)
            t->kern->spread(at->n, 0, at->rows > 1 ? t->phase->pitch : t->phase->stretch,
                            t->value[i] + (at->row - t->first), reg(t, s->spread_reg));
    }
}

/* ---- sinks ---- */

/* exps: where they are kept, or NULL. */
static void fold(const tail *t, const lf_stat_at *s, int64_t rows, int64_t n, const float *x, int64_t ldx,
                 double *partial, float *exps, int64_t lde)
{
    if (exps)
        t->kern->fold_exps(rows, n, x, ldx, t->phase->step[s->value.step].asked ? EXPS_AHEAD : 0, partial, exps, lde);
    else
        t->kern->fold[s->monoid](rows, n, x, ldx, partial);
}

static void feed(const tail *t, const lf_stat_at *s, const strip *at)
{
    const float *x = used(t, s->value);
    if (s->span == LF_SPAN_ROW) {
        double *partial = lf_row_partials(s, t->p->area, at->row - t->p->area_row) + at->index * s->states;
        float *exps = s->exps >= 0 ? place_of(t, s->exps, at) : NULL;
        if (at->width <= LF_STRIP) {
            fold(t, s, at->rows, at->width, x, t->phase->pitch, partial, exps, s->length);
            return;
        }
        /* one row: its strips as if they were rows */
        const int64_t strips = at->width / LF_STRIP, done = strips * LF_STRIP;
        fold(t, s, strips, LF_STRIP, x, LF_STRIP, partial, exps, LF_STRIP);
        if (done < at->width)
            fold(t, s, 1, at->width - done, x + done, 0, partial + strips * s->states, exps ? exps + done : NULL, 0);
        return;
    }
    float *partial = t->p->area + s->partial + t->p->block * s->states * s->width + at->col;
    for (int64_t r = 0; r < at->rows; r++)
        t->kern->put[s->monoid](at->width, x + r * t->phase->pitch, partial, s->width);
}

/* Which rows of the batch row r of the grid belongs to: one, or all of them where it belongs to none. Any number of
 * threads may flag one. */
static void flag(const tail *t, int64_t row)
{
    const lf_run *run = t->p->run;
    if (!run->flagged)
        return;
    int64_t each = run->batch > 0 ? t->phase->rows / run->batch : 0;
    bool one = each > 0 && t->phase->rows % run->batch == 0;
    for (int64_t i = one ? row / each : 0; i < (one ? row / each + 1 : run->batch); i++)
        __atomic_store_n(&run->flagged[i], 1, __ATOMIC_RELAXED);
}

static void watch(const tail *t, const float *x, const strip *at)
{
    for (int64_t r = 0; r < at->rows; r++)
        if (!t->kern->all_finite(at->width, x + r * t->phase->pitch))
            flag(t, at->row + r);
}

static void store(const tail *t, int32_t index, const strip *at)
{
    const lf_store_at *s = &t->phase->store[index];
    const float *x = used(t, s->value);
    if (s->direct || s->taken)
        return;
    if (s->stream) {
        t->kern->stream(at->n, x, place_of(t, index, at));
        return;
    }
    if (s->packed) {
        t->kern->store[s->to.dtype](at->n, x, place_of(t, index, at));
        return;
    }
    const int64_t start = lf_row_in(t->p, &s->to, at->row);
    if (t->phase->width == 1 && t->phase->pitch == 1)
        lf_side_scatter(t->kern, s->to.dtype, &s->to.row, t->to[index], start, at->rows, x);
    else
        for (int64_t r = 0; r < at->rows; r++)
            lf_side_scatter(t->kern, s->to.dtype, &s->to.col,
                            lf_element_at(s->to.dtype, t->to[index], lf_side_offset(&s->to.row, start + r)), at->col,
                            at->width, x + r * t->phase->pitch);
}

/* One strip, from loads to stores. */
static void run_strip(const tail *t, const strip *at)
{
    const lf_group_at *g = t->p->group;
    steps_of_elements(t, at);
    for (int32_t i = 0; i < g->stats; i++)
        if (&g->phase[g->stat[i].phase] == t->phase && g->stat[i].value.step >= 0)
            feed(t, &g->stat[i], at);
    for (int32_t i = 0; i < t->phase->watches; i++)
        watch(t, used(t, t->phase->watch[i]), at);
    for (int32_t i = 0; i < t->phase->stores; i++)
        store(t, i, at);
}

/* ---- loops ---- */

static strip strip_at(const tail *t, int64_t index, int64_t row, int64_t rows)
{
    const lf_phase_at *phase = t->phase;
    strip at = {.row = row, .rows = rows, .index = index, .col = index * LF_STRIP};
    at.width = lf_min64(phase->stretch, lf_min64(t->p->strip_end * LF_STRIP, phase->width) - at.col);
    at.n = (rows - 1) * phase->pitch + at.width;
    return at;
}

/* The phase's products at the strip, one after another. */
static void multiply(const tail *t, const strip *at)
{
    const lf_piece *p = t->p;
    for (int32_t i = 0; i < p->group->products; i++) {
        const lf_product_at *product = &p->group->product[i];
        if (&p->group->phase[product->phase] != t->phase)
            continue;
        t->tile[i] = product->lands >= 0 ? place_of(t, product->lands, at) : p->scratch + product->tile;
        lf_product_tile(p, product, t->packed, at->index, t->tile[i], lead_of(t, product));
    }
}

/* Tiles of products, then their rows; or the same without a product where rows share work. */
static void by_strips(tail *t)
{
    const lf_piece *p = t->p;
    const int64_t end = p->row + p->rows, together = t->phase->together;
    for (int64_t index = p->strip; index < p->strip_end; index++) {
        strip at = strip_at(t, index, p->row, lf_min64(together, p->rows));
        if (t->phase->product)
            multiply(t, &at);
        steps_of_columns(t, &at);
        for (int64_t row = p->row; row < end; row += LF_STRIP) {
            const int64_t rows_end = lf_min64(row + LF_STRIP, end);
            if (index == p->strip || p->rows > LF_STRIP)
                steps_of_rows(t, row, rows_end - row);
            for (int64_t r = row; r < rows_end; r += together) {
                at = strip_at(t, index, r, lf_min64(together, rows_end - r));
                run_strip(t, &at);
            }
        }
    }
}

static void by_rows(tail *t)
{
    const lf_piece *p = t->p;
    for (int64_t row = p->row; row < p->row + p->rows; row++) {
        if ((row - p->row) % LF_STRIP == 0)
            steps_of_rows(t, row, lf_min64(LF_STRIP, p->row + p->rows - row));
        for (int64_t index = p->strip; index < p->strip_end; index += t->phase->stretch / LF_STRIP) {
            const strip at = strip_at(t, index, row, 1);
            if (t->phase->columns)
                steps_of_columns(t, &at); /* pointers only, see lf_phase_at */
            run_strip(t, &at);
        }
    }
}

/* The piece's column statistics begin empty. */
static void begin_columns(const tail *t)
{
    const lf_piece *p = t->p;
    const int64_t from = p->strip * LF_STRIP, to = lf_min64(p->strip_end * LF_STRIP, t->phase->width);
    for (int32_t i = 0; i < p->group->stats; i++) {
        const lf_stat_at *s = &p->group->stat[i];
        if (&p->group->phase[s->phase] != t->phase || s->span != LF_SPAN_COLUMN)
            continue;
        float identity[LF_MAX_STATE];
        lf_monoid_identity(s->monoid, identity);
        float *partial = p->area + s->partial + p->block * s->states * s->width;
        for (int state = 0; state < s->states; state++)
            for (int64_t col = from; col < to; col++)
                partial[state * s->width + col] = identity[state];
    }
}

void lf_tail_run(const lf_piece *p, const float *packed)
{
    const lf_phase_at *phase = p->phase;
    tail t = {.p = p, .phase = phase, .kern = p->run->instance->kern, .packed = packed};
    t.registers = p->scratch + p->group->registers;
    t.value = (const float **)(void *)(p->scratch + p->group->pointers);
    t.base = (const void **)(t.value + phase->steps);
    t.to = (void **)(t.base + phase->steps);
    t.tile = (float **)(t.to + phase->stores);
    bool streams = false;
    for (int32_t i = 0; i < phase->steps; i++)
        if (phase->step[i].kind == LF_STEP_LOAD)
            t.base[i] = lf_reach_base(p->run, &phase->step[i].from, p->area);
    for (int32_t i = 0; i < phase->stores; i++) {
        t.to[i] = lf_reach_base(p->run, &phase->store[i].to, p->area);
        streams = streams || phase->store[i].stream;
    }
    begin_columns(&t);
    steps_once(&t);
    if (phase->strip_by_strip)
        by_strips(&t);
    else
        by_rows(&t);
    if (streams)
        t.kern->stream_end();
}
