/* SPDX-License-Identifier: Apache-2.0 */
/* The pass over the tokens: chunk after chunk its logits, their statistics, then in their place their gradient, and
 * what that gives to x, weight and bias. Threads share the strips of words of a chunk, and its rows; each sum has one
 * order, whoever makes it. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "cpu/loss.h"
#include "cpu/parts.h"

enum { TOKENS = LF_LOSS_TOKENS, ROWS_TOGETHER = 48 };
_Static_assert((int)LF_LOSS_TOKENS == (int)LF_KBLOCK, "what a chunk gives to weight is one run of a product");

/* Where things lie in the workspace, in bytes. */
typedef struct layout {
    size_t x, packed_x, tokens_as_w, logits, parts, slopes, weight, bias, slots; /* the last: one area a slot */
    size_t run_of_x, run_of_w, tile, more, turned, slot;                         /* within a slot's; its size */
    size_t bytes;
} layout;

typedef struct pass {
    const lf_loss_job *job;
    const lf_loss_pass *what;
    const lf_kern *kern;
    layout at;
    char *room;
    int64_t first, tokens; /* the chunk: of those that count */
    int64_t ld;            /* from one row of logits to the next: words, in whole strips */
    int64_t strips;
    int64_t together;      /* rows of x's gradient that a thread makes at once */
} pass;

/* ---- memory ---- */

static size_t take(layout *l, int64_t count, size_t size)
{
    const size_t at = l->bytes;
    l->bytes += ((size_t)count * size + LF_ALIGNMENT - 1) / LF_ALIGNMENT * LF_ALIGNMENT;
    return at;
}

static bool wants(const lf_tensor *t)
{
    return t->data != NULL;
}

static int64_t strips_of(int64_t columns)
{
    return lf_ceil_div(columns, LF_STRIP);
}

static layout lay_out(const lf_loss_job *job, const lf_loss_gradient *gradient)
{
    static const lf_loss_gradient none;
    const lf_loss_gradient *g = gradient ? gradient : &none;
    const lf_kern *kern = job->kern;
    const int64_t tokens = lf_min64(TOKENS, job->counts), strips = strips_of(job->words);
    layout l = {.bytes = 0};
    l.x = take(&l, tokens * job->depth, sizeof(float));
    l.packed_x = take(&l, lf_x_runs_floats(kern, LF_F32, tokens, job->depth), sizeof(float));
    l.logits = take(&l, tokens * strips * LF_STRIP, sizeof(float));
    l.parts = take(&l, tokens * strips, sizeof(lf_loss_part));
    l.slopes = take(&l, tokens, sizeof(lf_loss_slope));
    if (wants(&g->weight))
        l.tokens_as_w = take(&l, strips_of(job->depth) * kern->w_floats(LF_F32, LF_STRIP, TOKENS), sizeof(float));
    if (wants(&g->weight) && g->weight.dtype != LF_F32)
        l.weight = take(&l, job->words * job->depth, sizeof(float));
    if (wants(&g->bias))
        l.bias = take(&l, job->words, sizeof(double));
    l.slots = l.bytes;
    l.run_of_x = take(&l, kern->x_floats(LF_F32, LF_STRIP, LF_KBLOCK), sizeof(float));
    l.run_of_w = take(&l, kern->w_floats(LF_F32, LF_STRIP, LF_KBLOCK), sizeof(float));
    l.tile = take(&l, LF_STRIP * LF_STRIP, sizeof(float));
    l.more = take(&l, LF_STRIP * LF_STRIP, sizeof(float));
    l.turned = take(&l, LF_STRIP * TOKENS, sizeof(float));
    l.slot = l.bytes - l.slots;
    l.run_of_x -= l.slots, l.run_of_w -= l.slots, l.tile -= l.slots, l.more -= l.slots, l.turned -= l.slots;
    l.bytes = l.slots + (size_t)lf_pool_threads(job->pool) * l.slot;
    return l;
}

size_t lf_loss_bytes(const lf_loss_job *job, const lf_loss_gradient *gradient)
{
    return job->counts > 0 ? lay_out(job, gradient).bytes : 0;
}

static float *floats(const pass *p, size_t at)
{
    return (float *)(void *)(p->room + at);
}

static float *in_slot(const pass *p, int slot, size_t at)
{
    return floats(p, p->at.slots + (size_t)slot * p->at.slot + at);
}

static float *logits_of(const pass *p, int64_t row, int64_t strip)
{
    return floats(p, p->at.logits) + row * p->ld + strip * LF_STRIP;
}

static lf_loss_part *part_of(const pass *p, int64_t row, int64_t strip)
{
    return (lf_loss_part *)(void *)(p->room + p->at.parts) + row * p->strips + strip;
}

static lf_loss_slope *slope_of(const pass *p, int64_t row)
{
    return (lf_loss_slope *)(void *)(p->room + p->at.slopes) + row;
}

static int64_t token_of(const pass *p, int64_t row)
{
    return p->job->counted[p->first + row];
}

static int64_t columns_of(int64_t all, int64_t strip)
{
    return lf_min64(LF_STRIP, all - strip * LF_STRIP);
}

/* The column of the token's target in the strip; -1: it is not there. */
static int64_t target_in(const pass *p, int64_t row, int64_t strip)
{
    const int64_t word = p->job->loss->target[token_of(p, row)] - p->job->loss->options.first_word - strip * LF_STRIP;
    return word >= 0 && word < columns_of(p->job->words, strip) ? word : -1;
}

/* ---- products ---- */

static const float one[3] = {1, 0, 0};

static void add_rows(const lf_kern *kern, int64_t rows, int64_t n, const float *from, int64_t ld, float *to,
                     int64_t ldt)
{
    for (int64_t i = 0; i < rows; i++)
        kern->map[LF_OP_add](n, to + i * ldt, from + i * ld, NULL, one, to + i * ldt);
}

/* A product of rows with a strip of w's columns. */
typedef struct product {
    int64_t rows, n, k;    /* n: of all strips */
    const float *packed;   /* the rows' runs, packed; or NULL: then */
    const float *rows_at;  /* [rows][ld], packed here */
    int64_t ld;
    bool is_kn;            /* w is [k][n] */
    float *to;             /* [rows][ldt], with room for whole strips */
    int64_t ldt;
} product;

/* Runs are added as the plan's products add them: LF_RUNS one after the other, then such sums to each other. */
static void multiply(const pass *p, const product *of, int64_t strip, int slot)
{
    const lf_tensor *w = &p->job->loss->weight;
    const lf_kern *kern = p->kern;
    const int64_t runs = lf_runs(of->k), depth = lf_run_depth(of->k);
    float *run_of_w = in_slot(p, slot, p->at.run_of_w), *run_of_x = in_slot(p, slot, p->at.run_of_x);
    lf_multiply m = {.rows = of->rows, .n = columns_of(of->n, strip), .w = run_of_w, .x_type = LF_F32,
                     .w_type = kern->w_type[w->dtype]};
    for (int64_t run = 0; run < runs; run++) {
        const bool more = run >= LF_RUNS;
        m.k = lf_min64(depth, of->k - run * depth);
        lf_w_run_pack(kern, w->dtype, w->data, of->n, of->k, of->is_kn, strip, run, run_of_w);
        m.x = of->packed ? of->packed + run * kern->x_floats(LF_F32, of->rows, depth) : run_of_x;
        if (!of->packed)
            kern->pack_x(LF_F32, of->rows, m.k, of->rows_at + run * depth, of->ld, run_of_x);
        m.to = more ? in_slot(p, slot, p->at.more) : of->to;
        m.ldt = m.ldc = more ? LF_STRIP : of->ldt;
        m.c = run % LF_RUNS > 0 ? m.to : NULL;
        kern->multiply(&m);
        if (more && (run + 1 == runs || (run + 1) % LF_RUNS == 0))
            add_rows(kern, of->rows, m.n, m.to, LF_STRIP, of->to, of->ldt);
    }
}

/* ---- tokens ---- */

static void gather_token(void *arg, int64_t row, int slot)
{
    const pass *p = arg;
    const lf_tensor *x = &p->job->loss->x;
    const int64_t k = p->job->depth;
    (void)slot;
    p->kern->load[x->dtype](k, lf_element_at(x->dtype, x->data, token_of(p, row) * k), floats(p, p->at.x) + row * k);
}

static void pack_tokens(void *arg, int64_t run, int slot)
{
    const pass *p = arg;
    const int64_t k = p->job->depth, depth = lf_run_depth(k);
    (void)slot;
    p->kern->pack_x(LF_F32, p->tokens, lf_min64(depth, k - run * depth), floats(p, p->at.x) + run * depth, k,
                    floats(p, p->at.packed_x) + run * p->kern->x_floats(LF_F32, p->tokens, depth));
}

static float *tokens_as_w(const pass *p, int64_t strip)
{
    return floats(p, p->at.tokens_as_w) + strip * p->kern->w_floats(LF_F32, LF_STRIP, TOKENS);
}

static void pack_tokens_as_w(void *arg, int64_t strip, int slot)
{
    const pass *p = arg;
    (void)slot;
    lf_w_run_pack(p->kern, LF_F32, floats(p, p->at.x), p->job->depth, p->tokens, true, strip, 0, tokens_as_w(p, strip));
}

/* ---- logits and their statistics ---- */

static double temperature_of(const lf_loss_options *o)
{
    return o->temperature == 0 ? 1 : o->temperature;
}

static void scale(const pass *p, int64_t n, float *x, double by)
{
    const float factor = (float)by;
    p->kern->map_one[LF_OP_mul](n, x, &factor, &factor, NULL, x);
}

/* A product's strip of a row becomes logits. */
static void finish_logits(const pass *p, int64_t n, const float *bias, float *l)
{
    const lf_loss_options *o = &p->job->loss->options;
    if (bias)
        p->kern->map[LF_OP_add](n, l, bias, NULL, one, l);
    if (o->softcap != 0) {
        scale(p, n, l, 1 / o->softcap);
        p->kern->map[LF_OP_tanh](n, l, NULL, NULL, NULL, l);
        scale(p, n, l, o->softcap);
    }
    if (temperature_of(o) != 1)
        scale(p, n, l, 1 / temperature_of(o));
}

static const float *class_weight(const pass *p, int64_t strip)
{
    const lf_loss_options *o = &p->job->loss->options;
    return o->class_weight ? o->class_weight + o->first_word + strip * LF_STRIP : NULL;
}

static lf_loss_part strip_part(const pass *p, int64_t row, int64_t strip, int64_t n, const float *l, float *room)
{
    double state[LF_MAX_STATE];
    lf_loss_part part = {.target = 0};
    const int64_t target = target_in(p, row, strip);
    if (p->what->spread)
        p->kern->fold_exps(1, n, l, LF_STRIP, 0, state, room, LF_STRIP);
    else
        p->kern->fold[LF_MONOID_maxsumexp](1, n, l, LF_STRIP, state);
    part.largest = state[0];
    part.sum = state[1];
    for (int64_t i = 0; i < n && p->what->spread && part.sum != 0; i++)
        part.spread += room[i] == 0 ? 0 : (double)room[i] * ((double)l[i] - part.largest);
    if (target >= 0)
        part.target = (double)l[target];
    if (p->job->loss->options.label_smoothing > 0) {
        const float *weight = class_weight(p, strip);
        if (weight)
            p->kern->map[LF_OP_mul](n, l, weight, NULL, NULL, room);
        p->kern->fold[LF_MONOID_sum](1, n, weight ? room : l, LF_STRIP, state);
        part.all = state[0];
    }
    return part;
}

static void make_logits(void *arg, int64_t strip, int slot)
{
    const pass *p = arg;
    const lf_tensor *bias = &p->job->loss->bias;
    const int64_t n = columns_of(p->job->words, strip);
    float *room = in_slot(p, slot, p->at.tile), *added = NULL;
    const product of = {.rows = p->tokens, .n = p->job->words, .k = p->job->depth,
                        .packed = floats(p, p->at.packed_x), .to = logits_of(p, 0, strip), .ldt = p->ld};
    multiply(p, &of, strip, slot);
    if (wants(bias)) {
        added = room + LF_STRIP;
        p->kern->load[bias->dtype](n, lf_element_at(bias->dtype, bias->data, strip * LF_STRIP), added);
    }
    for (int64_t row = 0; row < p->tokens; row++) {
        finish_logits(p, n, added, logits_of(p, row, strip));
        if (!p->what->given)
            *part_of(p, row, strip) = strip_part(p, row, strip, n, logits_of(p, row, strip), room);
    }
}

static void finish_row(void *arg, int64_t row, int slot)
{
    const pass *p = arg;
    const int64_t token = token_of(p, row);
    (void)slot;
    if (!p->what->given) {
        lf_loss_part all = lf_loss_no_words;
        for (int64_t strip = 0; strip < p->strips; strip++)
            lf_loss_part_combine(&all, part_of(p, row, strip));
        p->what->rows[token] = lf_loss_row_of(&all);
    }
    if (p->what->gradient) {
        const lf_loss_seed seed = p->what->seed(p->what->arg, p->job, token);
        *slope_of(p, row) = lf_loss_slope_of(p->job, token, &p->what->rows[token], &seed);
    }
}

/* ---- their gradient, in their place ---- */

/* From that of the logits to that of what the product gave. l: the logits. */
static void through_cap(const pass *p, int64_t n, const float *l, float *g)
{
    const lf_loss_options *o = &p->job->loss->options;
    const float part = (float)(o->softcap == 0 ? 0 : temperature_of(o) / o->softcap);
    const float rate = (float)(1 / temperature_of(o));
    for (int64_t i = 0; i < n; i++)
        g[i] *= rate * (1 - l[i] * part * (l[i] * part));
}

/* room: of two strips. */
static void turn_to_gradient(const pass *p, int64_t row, int64_t strip, int64_t n, float *l, float *room)
{
    const lf_loss_options *o = &p->job->loss->options;
    const lf_loss_slope *s = slope_of(p, row);
    const int64_t target = target_in(p, row, strip);
    const float *weight = class_weight(p, strip);
    const bool capped = o->softcap != 0 || temperature_of(o) != 1;
    const double at_target = target >= 0 ? (double)l[target] - (double)s->largest : 0;
    if (capped || s->entropy != 0)
        memcpy(room, l, (size_t)n * sizeof *l);
    if (s->entropy != 0)
        p->kern->map_one[LF_OP_softmax](n, room, &s->largest, &s->sum, NULL, room + LF_STRIP);
    p->kern->map_one[LF_OP_softmax](n, l, &s->largest, &s->divisor, NULL, l);
    if (target >= 0)
        l[target] = (float)(s->all * exp(at_target) / (double)s->sum - s->hit);
    for (int64_t i = 0; i < n && s->entropy != 0; i++)
        l[i] -= room[LF_STRIP + i] == 0 ? 0 : s->entropy * room[LF_STRIP + i] * (room[i] + s->shift);
    for (int64_t i = 0; i < n && s->even != 0; i++)
        l[i] -= weight ? s->even * weight[i] : s->even;
    if (capped)
        through_cap(p, n, room, l);
}

/* ---- what it gives ---- */

/* [words][depth] in f32. */
static float *weight_sums(const pass *p)
{
    const lf_tensor *w = &p->what->gradient->weight;
    return w->dtype == LF_F32 ? w->data : floats(p, p->at.weight);
}

/* The strip's rows as columns, [words][TOKENS]. */
static void turn(const pass *p, int64_t strip, int64_t n, float *to)
{
    enum { BLOCK = 16 };
    for (int64_t from = 0; from < n; from += BLOCK)
        for (int64_t row = 0; row < p->tokens; row++) {
            const float *l = logits_of(p, row, strip);
            for (int64_t i = from; i < lf_min64(from + BLOCK, n); i++)
                to[i * TOKENS + row] = l[i];
        }
}

/* The chunk's share, of a strip of words. */
static void give_weight(const pass *p, int64_t strip, int64_t n, int slot)
{
    const int64_t k = p->job->depth;
    float *turned = in_slot(p, slot, p->at.turned), *x = in_slot(p, slot, p->at.run_of_x);
    float *tile = in_slot(p, slot, p->at.tile);
    turn(p, strip, n, turned);
    p->kern->pack_x(LF_F32, n, p->tokens, turned, TOKENS, x);
    lf_multiply m = {.rows = n, .k = p->tokens, .x = x, .x_type = LF_F32, .w_type = LF_F32, .to = tile,
                     .ldt = LF_STRIP, .ldc = LF_STRIP};
    for (int64_t column = 0; column < strips_of(k); column++) {
        float *to = weight_sums(p) + strip * LF_STRIP * k + column * LF_STRIP;
        m.n = columns_of(k, column);
        m.w = tokens_as_w(p, column);
        p->kern->multiply(&m);
        if (p->first > 0)
            add_rows(p->kern, n, m.n, tile, LF_STRIP, to, k);
        for (int64_t i = 0; i < n && p->first == 0; i++)
            memcpy(to + i * k, tile + i * LF_STRIP, (size_t)m.n * sizeof *to);
    }
}

static void give_bias(const pass *p, int64_t strip, int64_t n)
{
    double *to = (double *)(void *)(p->room + p->at.bias) + strip * LF_STRIP;
    for (int64_t i = 0; i < n && p->first == 0; i++)
        to[i] = 0;
    for (int64_t row = 0; row < p->tokens; row++)
        for (int64_t i = 0; i < n; i++)
            to[i] += (double)logits_of(p, row, strip)[i];
}

static void give_words(void *arg, int64_t strip, int slot)
{
    const pass *p = arg;
    const int64_t n = columns_of(p->job->words, strip);
    for (int64_t row = 0; row < p->tokens; row++)
        turn_to_gradient(p, row, strip, n, logits_of(p, row, strip), in_slot(p, slot, p->at.tile));
    if (wants(&p->what->gradient->bias))
        give_bias(p, strip, n);
    if (wants(&p->what->gradient->weight))
        give_weight(p, strip, n, slot);
}

/* index: over groups of rows, strips of K. */
static void give_tokens(void *arg, int64_t index, int slot)
{
    const pass *p = arg;
    const lf_tensor *to = &p->what->gradient->x;
    const int64_t strips = strips_of(p->job->depth), strip = index % strips, row = index / strips * p->together;
    float *tile = in_slot(p, slot, p->at.tile);
    const product of = {.rows = lf_min64(p->together, p->tokens - row), .n = p->job->depth, .k = p->job->words,
                        .rows_at = logits_of(p, row, 0), .ld = p->ld, .is_kn = true, .to = tile, .ldt = LF_STRIP};
    multiply(p, &of, strip, slot);
    for (int64_t i = 0; i < of.rows; i++)
        p->kern->store[to->dtype](
            columns_of(of.n, strip), tile + i * LF_STRIP,
            lf_element_at(to->dtype, to->data, token_of(p, row + i) * of.n + strip * LF_STRIP));
}

/* ---- all ---- */

static void run_chunk(pass *p)
{
    const lf_loss_gradient *g = p->what->gradient;
    const int64_t k = p->job->depth;
    lf_pool *pool = p->job->pool;
    lf_pool_run(pool, p->tokens, gather_token, p);
    lf_pool_run(pool, lf_runs(k), pack_tokens, p);
    lf_pool_run(pool, p->strips, make_logits, p);
    lf_pool_run(pool, p->tokens, finish_row, p);
    if (!g)
        return;
    if (wants(&g->weight))
        lf_pool_run(pool, strips_of(k), pack_tokens_as_w, p);
    lf_pool_run(pool, p->strips, give_words, p);
    if (wants(&g->x))
        lf_pool_run(pool, lf_ceil_div(p->tokens, p->together) * strips_of(k), give_tokens, p);
}

/* What was summed up, in its type. */
static void store_words(void *arg, int64_t strip, int slot)
{
    const pass *p = arg;
    const lf_tensor *w = &p->what->gradient->weight, *b = &p->what->gradient->bias;
    const int64_t n = columns_of(p->job->words, strip), k = p->job->depth, at = strip * LF_STRIP;
    if (wants(w) && w->dtype != LF_F32)
        p->kern->store[w->dtype](n * k, weight_sums(p) + at * k, lf_element_at(w->dtype, w->data, at * k));
    if (wants(b)) {
        float *sums = in_slot(p, slot, p->at.tile);
        for (int64_t i = 0; i < n; i++)
            sums[i] = (float)((double *)(void *)(p->room + p->at.bias))[at + i];
        p->kern->store[b->dtype](n, sums, lf_element_at(b->dtype, b->data, at));
    }
}

static void clear(const lf_tensor *t, int64_t count)
{
    if (wants(t))
        memset(t->data, 0, (size_t)count * lf_dtype_size(t->dtype));
}

lf_status lf_loss_run(const lf_loss_job *job, const lf_loss_pass *what, lf_diag *diag)
{
    const lf_loss_gradient *g = what->gradient;
    pass p = {.job = job, .what = what, .kern = job->kern, .strips = strips_of(job->words)};
    if (g && job->counts < job->tokens)
        clear(&g->x, job->tokens * job->depth);
    if (g && job->counts == 0) {
        clear(&g->weight, job->words * job->depth);
        clear(&g->bias, job->words);
    }
    if (job->counts == 0)
        return LF_OK;
    p.at = lay_out(job, g);
    p.ld = p.strips * LF_STRIP;
    /* as many as there are, unless threads would be left without any */
    p.together = lf_pool_threads(job->pool) <= strips_of(job->depth) ? TOKENS : ROWS_TOGETHER;
    p.room = lf_aligned_alloc(p.at.bytes);
    if (!p.room)
        return lf_fail(diag, LF_ERR_NOMEM, "out of memory for the loss's workspace of %zu bytes", p.at.bytes);
    for (p.first = 0; p.first < job->counts; p.first += TOKENS) {
        p.tokens = lf_min64(TOKENS, job->counts - p.first);
        run_chunk(&p);
    }
    if (g)
        lf_pool_run(job->pool, p.strips, store_words, &p);
    lf_aligned_free(p.room);
    return LF_OK;
}
