/* SPDX-License-Identifier: Apache-2.0 */
/* Each thing is done for short moments spread over the whole time, since clocks come and go within tenths of a second,
 * and the median moment counts: what is predicted is the usual, and a moment in which somebody else had the core is
 * unusual as long as most are shorter than a time slice. Every thread is timed by itself, while the others do the same:
 * they share clocks, caches and memory. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/median.h"
#include "base/mem.h"
#include "cpu/measure.h"

enum {
    ROUNDS = 3,       /* before, between and after reading and writing memory */
    TRIES = 5,        /* in a round, of each thing */
    /* floats a thread takes at a time from a large buffer: 256 KB, long enough for prefetch to matter */
    PIECE = 1 << 16,
    /* taken of a buffer, the first half only to make caches believe that it is worth keeping: some ten passes */
    PIECES = 3 << 10,
    BATCH = 256,      /* of them, after each of which a slow machine may stop */
    JOBS = 16,        /* in a try */
    DOT_FLOATS = 2 << 10,
    SHORT_SPAN = 16,  /* elements */
    SHORT_RUN = 8     /* of K */
};
/* Seconds: long against the clock's grain, short against a time slice. PRODUCT_MOMENT: long against packing, too. */
static const double MOMENT = 1e-4, PRODUCT_MOMENT = 1e-3, LONG_MOMENT = 5e-2;

typedef struct measuring measuring;

/* One thing to be timed near the core. */
typedef struct thing {
    /* `reps` times in a row, on the thread's own floats */
    void (*work)(const measuring *m, const struct thing *t, float *own);
    lf_op op;
    lf_monoid monoid;
    int64_t span;     /* of a fold: elements */
    int64_t rows, k;  /* of a product */
    int64_t reps;
    double *rate;     /* where repetitions a second go, all threads together */
} thing;

enum { MOST_THINGS = LF_OP_COUNT + 4 * LF_MONOID_COUNT + 5 };

struct measuring {
    const lf_kern *kern;
    lf_pool *pool;
    int threads;
    float *near;      /* [threads][near_floats], each thread's own */
    size_t near_floats;
    thing thing[MOST_THINGS];
    int things, at;   /* at: the one being timed */
    int tries;        /* until now, of each */
    double *moment;   /* [things][threads][ROUNDS * TRIES]: seconds */
    double span_rate[2][LF_MONOID_COUNT]; /* strips a second in spans of SHORT_SPAN, of LF_STRIP */
    double short_rate;                    /* of runs of SHORT_RUN */
    float *buffer;    /* [floats] */
    int64_t floats;
    int64_t pieces;   /* of the buffer that are in use */
    int64_t taken;    /* of them, each as often as it came */
    double took[PIECES];
    double job;       /* the shortest until now, seconds */
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double median(double *x, int64_t count)
{
    return fmax(lf_median(x, (size_t)count), 1e-9);
}

/* ---- near the core ---- */

static float *own_of(const measuring *m, int64_t thread)
{
    return m->near + (size_t)thread * m->near_floats;
}

static double *moments_of(const measuring *m, int index, int64_t thread)
{
    return m->moment + (index * (int64_t)m->threads + thread) * (ROUNDS * TRIES);
}

static void timed_thread(void *arg, int64_t index, int slot)
{
    measuring *m = arg;
    const thing *t = &m->thing[m->at];
    (void)slot;
    const double start = now();
    t->work(m, t, own_of(m, index));
    moments_of(m, m->at, index)[m->tries] = now() - start;
}

/* Finds out how often it fits into a moment. */
static void add_thing(measuring *m, double moment, thing t)
{
    double took = 0;
    for (t.reps = 1; took < moment && t.reps < (int64_t)1 << 30; t.reps *= 2) {
        const double start = now();
        t.work(m, &t, own_of(m, 0));
        took = now() - start;
    }
    t.reps /= 2;
    m->thing[m->things++] = t;
}

static void nothing(void *arg, int64_t index, int slot)
{
    (void)arg, (void)index, (void)slot;
}

/* Jobs of the pool with nothing to do. The shortest counts: there is no work in it that could be unusual, only who else
 * runs. */
static void time_jobs(measuring *m)
{
    for (int i = 0; i < JOBS; i++) {
        const double start = now();
        lf_pool_run(m->pool, 4 * (int64_t)m->threads, nothing, NULL);
        m->job = fmin(m->job, fmax(now() - start, 1e-9));
    }
}

static void time_things(measuring *m)
{
    for (int i = 0; i < TRIES; i++, m->tries++) {
        for (m->at = 0; m->at < m->things; m->at++)
            lf_pool_run(m->pool, m->threads, timed_thread, m);
        time_jobs(m);
    }
}

static void rate_things(measuring *m)
{
    for (int i = 0; i < m->things; i++) {
        *m->thing[i].rate = 0;
        for (int k = 0; k < m->threads; k++)
            *m->thing[i].rate += (double)m->thing[i].reps / median(moments_of(m, i, k), m->tries);
    }
}

/* ---- products ---- */

/* A run as large as it stays in the second-level cache: a strip of w, and rows enough to use it. */
static lf_multiply run_of(int64_t rows, int64_t k)
{
    return (lf_multiply){.rows = rows, .n = LF_STRIP, .k = k, .ldt = LF_STRIP};
}

static int64_t many_rows(const lf_kern *kern)
{
    return 8 * kern->mr;
}

static size_t floats_of_run(const lf_kern *kern)
{
    const lf_multiply run = run_of(many_rows(kern), LF_KBLOCK);
    return (size_t)(LF_KBLOCK + kern->x_floats(run.x_type, run.rows, run.k) +
                    kern->w_floats(run.w_type, run.n, run.k) + run.rows * run.ldt);
}

/* own: a row that all rows and columns are, [LF_KBLOCK]; then x, w and the sums. */
static void multiply(const measuring *m, const thing *t, float *own)
{
    const lf_kern *kern = m->kern;
    lf_multiply run = run_of(t->rows, t->k);
    float *x = own + LF_KBLOCK, *w = x + kern->x_floats(run.x_type, run.rows, run.k);
    run.to = w + kern->w_floats(run.w_type, run.n, run.k);
    run.x = x;
    run.w = w;
    kern->pack_x(run.x_type, run.rows, run.k, own, 0, x);
    kern->pack_w(run.w_type, run.n, run.k, own, 0, false, w);
    for (int64_t i = 0; i < t->reps; i++)
        kern->multiply(&run);
}

static void pack(const measuring *m, const thing *t, float *own)
{
    const int64_t rows = m->kern->mr;
    for (int64_t i = 0; i < t->reps; i++)
        m->kern->pack_x(LF_F32, rows, LF_KBLOCK, own, LF_KBLOCK, own + rows * LF_KBLOCK);
}

static void dots(const measuring *m, const thing *t, float *own)
{
    /* any bits will do: they are small floats in pairs */
    const double *w = (const double *)(const void *)(own + DOT_FLOATS);
    double sum[LF_DOTS];
    for (int64_t i = 0; i < t->reps; i++)
        m->kern->dots(LF_DOTS, 1, DOT_FLOATS, own, 0, w, sum); /* one row, as often as there may be rows */
}

static void add_products(measuring *m, lf_cpu_rates *out)
{
    const int64_t rows = many_rows(m->kern);
    add_thing(m, PRODUCT_MOMENT, (thing){.work = multiply, .rows = rows, .k = LF_KBLOCK, .rate = &out->flops});
    add_thing(m, PRODUCT_MOMENT, (thing){.work = multiply, .rows = rows, .k = SHORT_RUN, .rate = &m->short_rate});
    add_thing(m, PRODUCT_MOMENT, (thing){.work = multiply, .rows = 1, .k = LF_KBLOCK, .rate = &out->row_flops});
    add_thing(m, MOMENT, (thing){.work = pack, .rate = &out->packed});
    add_thing(m, MOMENT, (thing){.work = dots, .rate = &out->dot_flops});
}

/* A tile of depth k takes a + b k: b from a deep one, a from a short one. Noise may not make it nothing. */
static void finish_products(const measuring *m, lf_cpu_rates *out)
{
    const double elements = (double)many_rows(m->kern) * LF_STRIP;
    out->flops *= 2 * elements * LF_KBLOCK;
    out->row_flops *= 2.0 * LF_STRIP * LF_KBLOCK;
    out->packed *= (double)m->kern->mr * LF_KBLOCK;
    out->dot_flops *= 2.0 * LF_DOTS * DOT_FLOATS;
    const double took = 1 / m->short_rate;
    out->handed = elements / fmax(took - 2 * elements * SHORT_RUN / out->flops, took / 16);
}

/* ---- tails: strips that lie in the first-level cache ---- */

/* out = op(x, y, z), as most use it: what a norm takes from a statistic is one number a row. Of a softmax a product is
 * left (plan/exps.c). */
static void map(const measuring *m, const thing *t, float *own)
{
    const float attr[3] = {0}; /* the usual, of ops whose numbers choose a form */
    const bool norm = lf_op_row(t->op)->kind == LF_NORMALIZE;
    const lf_op op = t->op == LF_OP_softmax ? LF_OP_mul : t->op;
    float *y = own + LF_STRIP, *z = y + LF_STRIP, *out = z + LF_STRIP;
    for (int64_t i = 0; i < t->reps; i++)
        (norm ? m->kern->map_one : m->kern->map)[op](LF_STRIP, own, y, z, attr, out);
}

/* A strip of spans side by side, each to its results. */
static void fold(const measuring *m, const thing *t, float *own)
{
    const int64_t spans = LF_STRIP / t->span;
    const int states = lf_monoid_row(t->monoid)->states;
    double state[LF_STRIP * LF_MAX_STATE];
    float *r[LF_MAX_RESULTS];
    const lf_partials all = {.folded = state, .item = states, .state = 1, .parts = 1};
    for (int k = 0; k < LF_MAX_RESULTS; k++)
        r[k] = own + (1 + k) * LF_STRIP;
    for (int64_t i = 0; i < t->reps; i++) {
        m->kern->fold[t->monoid](spans, t->span, own, t->span, state);
        lf_monoid_settle(t->monoid, spans, &all, (double)t->span, r);
    }
}

static void put(const measuring *m, const thing *t, float *own)
{
    for (int64_t i = 0; i < t->reps; i++)
        m->kern->put[t->monoid](LF_STRIP, own, own + LF_STRIP, LF_STRIP);
}

/* Pools: windows of two, side by side. */
static void window(const measuring *m, const thing *t, float *own)
{
    for (int64_t i = 0; i < t->reps; i++)
        m->kern->window[t->monoid](LF_STRIP / 2, 2, own, 2, 1, 2, own + LF_STRIP);
}

static void add_tails(measuring *m, lf_tail_rates *out)
{
    for (lf_op op = 0; op < LF_OP_COUNT; op++)
        if (m->kern->map[op])
            add_thing(m, MOMENT, (thing){.work = map, .op = op, .rate = &out->map[op]});
    for (lf_monoid i = 0; i < LF_MONOID_COUNT; i++) {
        if (!m->kern->fold[i])
            continue;
        add_thing(m, MOMENT, (thing){.work = fold, .monoid = i, .span = SHORT_SPAN, .rate = &m->span_rate[0][i]});
        add_thing(m, MOMENT, (thing){.work = fold, .monoid = i, .span = LF_STRIP, .rate = &m->span_rate[1][i]});
        add_thing(m, MOMENT, (thing){.work = put, .monoid = i, .rate = &out->put[i]});
        if (m->kern->window[i])
            add_thing(m, MOMENT, (thing){.work = window, .monoid = i, .rate = &out->window[i]});
    }
}

/* A span of n elements takes a + b n; both from two lengths. Noise may not make either of them nothing. */
static void finish_folds(const measuring *m, lf_monoid i, lf_tail_rates *out)
{
    const double small = SHORT_SPAN / (LF_STRIP * m->span_rate[0][i]), large = 1 / m->span_rate[1][i];
    const double each = fmax((large - small) / (LF_STRIP - SHORT_SPAN), large / (2 * LF_STRIP));
    out->fold[i] = 1 / each;
    out->span[i] = 1 / fmax(large - LF_STRIP * each, each);
}

static void finish_tails(const measuring *m, lf_tail_rates *out)
{
    for (lf_op op = 0; op < LF_OP_COUNT; op++)
        out->map[op] *= LF_STRIP;
    for (lf_monoid i = 0; i < LF_MONOID_COUNT; i++) {
        if (m->kern->fold[i])
            finish_folds(m, i, out);
        out->put[i] *= LF_STRIP;
        out->window[i] *= LF_STRIP;
    }
}

/* ---- in memory ---- */

static void fill_piece(void *arg, int64_t index, int slot)
{
    const measuring *m = arg;
    float *x = m->buffer + index * PIECE;
    (void)slot;
    for (int64_t i = 0; i < PIECE; i++)
        x[i] = 0.5f;
}

/* From four places at once, as products and tails read: they ask for what comes next, or have several rows under
 * way. */
static void read_piece(void *arg, int64_t index, int slot)
{
    enum { PLACES = 4, APART = PIECE / PLACES };
    measuring *m = arg;
    const float *x = m->buffer + (m->taken + index) % m->pieces * PIECE;
    double sum[PLACES * LF_MAX_STATE];
    (void)slot;
    const double start = now();
    for (int64_t i = 0; i < APART; i += LF_STRIP)
        m->kern->fold[LF_MONOID_sum](PLACES, LF_STRIP, x + i, APART, sum);
    m->took[m->taken + index] = now() - start;
}

/* As stores do it: past the caches where they could not hold it anyway. */
static void write_piece(void *arg, int64_t index, int slot)
{
    measuring *m = arg;
    float *x = m->buffer + (m->taken + index) % m->pieces * PIECE;
    const float *from = m->near;
    const bool past = m->pieces * PIECE * (int64_t)sizeof *x > (int64_t)LF_STREAM_BYTES * m->threads;
    (void)slot;
    const double start = now();
    for (int64_t i = 0; i < PIECE; i += LF_STRIP)
        if (past)
            m->kern->stream(LF_STRIP, from, x + i);
        else
            memcpy(x + i, from, LF_STRIP * sizeof *x);
    m->kern->stream_end();
    m->took[m->taken + index] = now() - start;
}

/* Bytes a second, all threads together: each takes a piece in its median time. */
static double memory_rate(measuring *m, void (*piece)(void *arg, int64_t index, int slot))
{
    const double end = now() + LONG_MOMENT;
    for (m->taken = 0; m->taken < PIECES && (m->taken == 0 || now() < end); m->taken += BATCH)
        lf_pool_run(m->pool, BATCH, piece, m);
    return m->threads * (PIECE * sizeof *m->buffer) / median(m->took + m->taken / 2, m->taken / 2);
}

static void memory_rates(measuring *m, void (*piece)(void *arg, int64_t index, int slot), double *rate)
{
    const int64_t pieces = m->floats / PIECE;
    for (int i = 0; i < LF_LEVELS; i++) {
        const int64_t wanted = (int64_t)(LF_LEVEL_BYTES(i) / (PIECE * sizeof *m->buffer));
        m->pieces = wanted < pieces ? wanted : pieces;
        rate[i] = memory_rate(m, piece);
    }
}

/* As much as the largest level, or what there is. */
static lf_status allocate_buffer(measuring *m)
{
    size_t bytes = (size_t)LF_LEVEL_BYTES(LF_LEVELS - 1);
    for (; bytes >= (size_t)LF_LEVEL_BYTES(0); bytes /= 2) {
        m->buffer = lf_aligned_alloc(bytes);
        m->floats = (int64_t)(bytes / sizeof *m->buffer);
        if (m->buffer)
            return LF_OK;
    }
    return LF_ERR_NOMEM;
}

/* A number with K or M after it, as the kernel prints sizes of caches; 0 when there is none. */
static double read_size(const char *path)
{
    FILE *file = fopen(path, "r");
    unsigned long number = 0;
    char unit = 0;
    if (!file)
        return 0;
    int got = fscanf(file, "%9lu%c", &number, &unit);
    fclose(file);
    return got < 1 ? 0 : (double)number * (unit == 'K' ? 1024 : unit == 'M' ? 1024 * 1024 : 1);
}

/* Of the largest cache the machine names; a virtual machine names its host's, so no more than a few MB a core is
 * counted on. */
static double cache_to_count_on(int threads)
{
    const double least = 1 << 20, usual = 8 << 20, most = 32 << 20, each = 4 << 20;
    double size = 0;
    for (int i = 0; i < 8; i++) {
        char path[80];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        double found = read_size(path);
        size = found > size ? found : size;
    }
    double cap = each * threads > most ? each * threads : most;
    size = size > 0 ? size : usual;
    return size > cap ? cap : size < least ? least : size;
}

/* ---- all of it ---- */

/* Threads beyond the cores add nothing, and waiting for all of them takes long. */
static int threads_that_run(const lf_pool *pool)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int threads = lf_pool_threads(pool);
    return cores >= 1 && cores < threads ? (int)cores : threads;
}

static void measure_all(measuring *m, lf_cpu_rates *out)
{
    for (size_t i = 0; i < m->near_floats * (size_t)m->threads; i++)
        m->near[i] = 0.25f + 0.001f * (float)(i % 97);
    lf_memory_ready(m->buffer, (size_t)m->floats * sizeof *m->buffer);
    lf_pool_run(m->pool, m->floats / PIECE, fill_piece, m);
    add_products(m, out);
    add_tails(m, &out->tail);
    time_things(m);
    memory_rates(m, read_piece, out->read);
    time_things(m);
    memory_rates(m, write_piece, out->written); /* after reading: what went past the caches is not in them */
    time_things(m);
    rate_things(m);
    finish_products(m, out);
    finish_tails(m, &out->tail);
    out->jobs = 1 / m->job;
}

lf_status lf_cpu_measure(const lf_kern *kern, lf_pool *pool, lf_cpu_rates *out, lf_diag *diag)
{
    measuring m = {.kern = kern, .pool = pool, .threads = threads_that_run(pool), .job = 1};
    *out = (lf_cpu_rates){.cache_bytes = cache_to_count_on(m.threads)};
    m.near_floats = (floats_of_run(kern) + 1023) / 1024 * 1024;
    m.near = lf_aligned_alloc(m.near_floats * (size_t)m.threads * sizeof *m.near);
    m.moment = lf_aligned_alloc((size_t)m.threads * MOST_THINGS * ROUNDS * TRIES * sizeof *m.moment);
    lf_status status = m.near && m.moment ? allocate_buffer(&m) : LF_ERR_NOMEM;
    if (status == LF_OK)
        measure_all(&m, out);
    else
        status = lf_fail_nomem(diag, "measuring this machine");
    lf_aligned_free(m.buffer);
    lf_aligned_free(m.moment);
    lf_aligned_free(m.near);
    return status;
}
