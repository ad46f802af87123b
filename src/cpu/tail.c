/* SPDX-License-Identifier: Apache-2.0 */
/* A phase's program over a piece of its grid: strip after strip through every step, each a call of a kernel on up to
 * LF_STRIP elements; then what the strip feeds: partials of statistics, witnesses, stores. Sinks come last, so that
 * a value that waits in the memory of the output about to be written is read before. */
#include "cpu/parts.h"

/* A piece with its pointers found. */
typedef struct tail {
    const lf_piece *p;
    const lf_phase_at *phase;
    float *registers;    /* [registers][LF_STRIP] */
    const float **value; /* one per step: its elements of the strip at hand */
    const float **base;  /* one per step: where its access begins */
    float **to;          /* one per store: the same */
    const float *tile;   /* the product's strip, [rows][ldc] */
    const float *packed;
} tail;

static float *register_of(const tail *t, const lf_step_at *s)
{
    return t->registers + (int64_t)s->reg * LF_STRIP;
}

/* n elements of an access: of `row` from column col on, or of the rows from `row` on where strips run along rows. */
static const float *load(const tail *t, const lf_step_at *s, const float *base, int64_t row, int64_t col, int64_t n)
{
    int64_t start = lf_row_in(t->p, &s->from, row);
    const lf_side *side = &s->from.row;
    if (!t->phase->along_rows) {
        base += lf_side_offset(&s->from.row, start);
        start = col;
        side = &s->from.col;
    }
    if (s->reg < 0)
        return base + start;
    lf_side_gather(side, base, start, n, register_of(t, s));
    return register_of(t, s);
}

static void step(const tail *t, int32_t index, int64_t row, int64_t col, int64_t n)
{
    const lf_step_at *s = &t->phase->step[index];
    switch (s->kind) {
    case LF_STEP_LOAD: t->value[index] = load(t, s, t->base[index], row, col, n); break;
    case LF_STEP_PRODUCT: t->value[index] = t->tile + (row - t->p->row) * t->p->group->product.ldc; break;
    case LF_STEP_NUMBER:
        for (int64_t i = 0; i < n; i++)
            register_of(t, s)[i] = s->number;
        t->value[index] = register_of(t, s);
        break;
    case LF_STEP_OP: {
        const float *arg[3];
        for (int i = 0; i < 3; i++)
            arg[i] = s->arg[i] < 0 ? NULL : t->value[s->arg[i]];
        s->map(n, arg[0], arg[1], arg[2], s->attr, register_of(t, s));
        t->value[index] = register_of(t, s);
        break;
    }
    }
}

static void steps_of_level(const tail *t, lf_level level, int64_t row, int64_t col, int64_t n)
{
    for (int32_t i = 0; i < t->phase->steps; i++)
        if (t->phase->step[i].level == level)
            step(t, i, row, col, n);
}

/* ---- sinks ---- */

static void feed_row(const tail *t, const lf_stat_at *s, int64_t row, int64_t strip, int64_t n)
{
    const lf_kern *kern = t->p->run->instance->kern;
    const float *x = t->value[s->step];
    float *partial = t->p->area + s->partial + ((row - t->p->area_row) * s->strips + strip) * s->states;
    if (!t->phase->along_rows)
        kern->fold[s->monoid](n, x, partial);
    else
        for (int64_t i = 0; i < n; i++)
            kern->fold[s->monoid](1, x + i, partial + i * s->states);
}

static void feed_column(const tail *t, const lf_stat_at *s, int64_t col, int64_t n)
{
    const lf_kern *kern = t->p->run->instance->kern;
    const float *x = t->value[s->step];
    float *partial = t->p->area + s->partial + t->p->block * s->states * s->width + col;
    if (!t->phase->along_rows)
        kern->put[s->monoid](n, x, partial, s->width);
    else
        for (int64_t i = 0; i < n; i++)
            kern->put[s->monoid](1, x + i, partial, s->width);
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

static void watch(const tail *t, const float *x, int64_t row, int64_t n)
{
    if (lf_all_finite(x, n))
        return;
    if (!t->phase->along_rows)
        flag(t, row);
    for (int64_t i = 0; t->phase->along_rows && i < n; i++)
        if (!lf_all_finite(x + i, 1))
            flag(t, row + i);
}

static void store(const tail *t, const lf_store_at *s, float *to, int64_t row, int64_t col, int64_t n)
{
    int64_t start = lf_row_in(t->p, &s->to, row);
    if (t->phase->along_rows)
        lf_side_scatter(&s->to.row, to, start, n, t->value[s->step]);
    else
        lf_side_scatter(&s->to.col, to + lf_side_offset(&s->to.row, start), col, n, t->value[s->step]);
}

/* One strip, from loads to stores. */
static void run_strip(const tail *t, int64_t row, int64_t strip, int64_t col, int64_t n)
{
    const lf_group_at *g = t->p->group;
    steps_of_level(t, LF_PER_ROW, row, col, n);
    for (int32_t i = 0; i < g->stats; i++) {
        const lf_stat_at *s = &g->stat[i];
        if (&g->phase[s->phase] != t->phase || s->step < 0)
            continue;
        if (s->span == LF_SPAN_ROW)
            feed_row(t, s, row, strip, n);
        else
            feed_column(t, s, col, n);
    }
    for (int32_t i = 0; i < t->phase->watches; i++)
        watch(t, t->value[t->phase->watch[i]], row, n);
    for (int32_t i = 0; i < t->phase->stores; i++)
        store(t, &t->phase->store[i], t->to[i], row, col, n);
}

/* ---- loops ---- */

static int64_t strip_length(const lf_phase_at *phase, int64_t strip)
{
    return lf_min64(LF_STRIP, phase->width - strip * LF_STRIP);
}

/* A product's tile, then its rows; or the same without a product where rows share work. */
static void by_strips(tail *t)
{
    const lf_piece *p = t->p;
    const bool product = p->group->product.present && t->phase == &p->group->phase[p->group->product.phase];
    float *tile = p->scratch + p->group->tile;
    t->tile = tile;
    for (int64_t strip = p->strip; strip < p->strip_end; strip++) {
        const int64_t n = strip_length(t->phase, strip);
        if (product)
            lf_product_tile(p, t->packed, strip, tile);
        steps_of_level(t, LF_PER_STRIP, p->row, strip * LF_STRIP, n);
        for (int64_t row = p->row; row < p->row + p->rows; row++)
            run_strip(t, row, strip, strip * LF_STRIP, n);
    }
}

static void by_rows(tail *t)
{
    const lf_piece *p = t->p;
    for (int64_t row = p->row; row < p->row + p->rows; row++)
        for (int64_t strip = p->strip; strip < p->strip_end; strip++) {
            const int64_t n = strip_length(t->phase, strip);
            steps_of_level(t, LF_PER_STRIP, row, strip * LF_STRIP, n); /* pointers only, see lf_phase_at */
            run_strip(t, row, strip, strip * LF_STRIP, n);
        }
}

static void along_rows(tail *t)
{
    const lf_piece *p = t->p;
    float *tile = p->scratch + p->group->tile;
    t->tile = tile;
    if (p->group->product.present && t->phase == &p->group->phase[p->group->product.phase])
        lf_product_tile(p, t->packed, 0, tile);
    for (int64_t row = 0; row < p->rows; row += LF_STRIP)
        run_strip(t, p->row + row, 0, 0, lf_min64(LF_STRIP, p->rows - row));
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
    tail t = {.p = p, .phase = phase, .packed = packed};
    t.registers = p->scratch + p->group->registers;
    t.value = (const float **)(void *)(p->scratch + p->group->pointers);
    t.base = t.value + phase->steps;
    t.to = (float **)(t.base + phase->steps);
    for (int32_t i = 0; i < phase->steps; i++)
        if (phase->step[i].kind == LF_STEP_LOAD)
            t.base[i] = lf_reach_base(p->run, &phase->step[i].from, p->area);
    for (int32_t i = 0; i < phase->stores; i++)
        t.to[i] = lf_reach_base(p->run, &phase->store[i].to, p->area);
    begin_columns(&t);
    steps_of_level(&t, LF_ONCE, p->row, 0, LF_STRIP);
    if (phase->along_rows)
        along_rows(&t);
    else if (phase->strip_by_strip)
        by_strips(&t);
    else
        by_rows(&t);
}
