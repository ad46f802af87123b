/* SPDX-License-Identifier: Apache-2.0 */
/* Each thing is done a few times and the best time counts: whatever else the machine does can only make it slower. */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "cpu/measure.h"

enum {
    TRIES = 8,                /* short and many: one of them falls into a quiet moment of a busy machine */
    PIECE = 1 << 18,          /* floats a thread takes at a time from a large buffer: 1 MB, long enough for prefetch to matter */
    DOT_FLOATS = 2 << 10
};
#define MOST_BYTES ((size_t)256 << 20)
#define FEWEST_BYTES ((size_t)16 << 20)
static const double SHORT_RUN = 3e-3; /* seconds: long against the clock's and the pool's grain */

typedef struct measuring {
    const lf_kern *kern;
    lf_pool *pool;
    int threads;
    int64_t reps;   /* of what one thread does near the core */
    float *l1;      /* [threads][l1_floats], each thread's own */
    size_t l1_floats;
    float *buffer;  /* [floats] */
    int64_t floats;
    float *sink;    /* [threads]: where results go, so that nothing is left out */
    double *best;   /* [threads]: the shortest time of each */
    void (*timed)(void *arg, int64_t index, int slot); /* what is being timed */
} measuring;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef void piece_fn(void *arg, int64_t index, int slot);

static double best_time(measuring *m, int64_t count, piece_fn *fn)
{
    double best = 1e9;
    for (int i = 0; i < TRIES; i++) {
        double start = now();
        lf_pool_run(m->pool, count, fn, m);
        double took = now() - start;
        best = took < best ? took : best;
    }
    return best > 1e-9 ? best : 1e-9;
}

/* ---- near the core ---- */

/* One thread's share, timed by itself: on a busy machine the threads' quiet moments need not coincide. */
static void timed_piece(void *arg, int64_t index, int slot)
{
    measuring *m = arg;
    double start = now();
    m->timed(m, index, slot);
    double took = now() - start;
    m->best[index] = took < m->best[index] ? took : m->best[index];
}

/* Times a thread-by-thread job and gives repetitions a second, all threads together. */
static double rate_in_l1(measuring *m, piece_fn *fn)
{
    double took = 0, rate = 0;
    for (m->reps = 1; took < SHORT_RUN && m->reps < (int64_t)1 << 30; m->reps *= 2) {
        double start = now();
        fn(m, 0, 0);
        took = now() - start;
    }
    m->reps /= 2;
    m->timed = fn;
    for (int i = 0; i < m->threads; i++)
        m->best[i] = 1e9;
    for (int i = 0; i < TRIES; i++)
        lf_pool_run(m->pool, m->threads, timed_piece, m);
    for (int i = 0; i < m->threads; i++)
        rate += (double)m->reps / (m->best[i] > 1e-9 ? m->best[i] : 1e-9);
    return rate;
}

/* A run as large as it stays in the second-level cache: a strip of w, and rows enough to use it. */
static lf_multiply whole_run(const lf_kern *kern)
{
    return (lf_multiply){.rows = 8 * kern->mr, .n = LF_STRIP, .k = LF_KBLOCK, .ldc = LF_STRIP};
}

static void multiply_piece(void *arg, int64_t index, int slot)
{
    measuring *m = arg;
    const lf_kern *kern = m->kern;
    lf_multiply run = whole_run(kern);
    float *source = m->l1 + (size_t)index * m->l1_floats; /* each row, and each column, is the same [LF_KBLOCK] */
    float *x = source + LF_KBLOCK, *w = x + kern->x_floats(run.rows, run.k);
    run.c = w + kern->w_floats(run.n, run.k);
    run.x = x;
    run.w = w;
    (void)slot;
    kern->pack_x(run.rows, run.k, source, 0, x);
    kern->pack_w(run.n, run.k, source, 0, false, w);
    for (int64_t i = 0; i < m->reps; i++)
        kern->multiply(&run);
    m->sink[index] += run.c[0];
}

static size_t floats_of_run(const lf_kern *kern)
{
    const lf_multiply run = whole_run(kern);
    return (size_t)(LF_KBLOCK + kern->x_floats(run.rows, run.k) + kern->w_floats(run.n, run.k) + run.rows * run.ldc);
}

static void dot_piece(void *arg, int64_t index, int slot)
{
    measuring *m = arg;
    const float *x = m->l1 + (size_t)index * m->l1_floats;
    const double *w = (const double *)(const void *)(x + DOT_FLOATS); /* any bits will do: they are small floats in pairs */
    double sum[LF_DOTS] = {0};
    (void)slot;
    for (int64_t i = 0; i < m->reps; i++)
        m->kern->dots(LF_DOTS, DOT_FLOATS, x, 0, w, sum); /* one row, as often as there may be rows */
    m->sink[index] += (float)sum[0];
}

/* out = op(x, y), strips x and y beside each other. */
static void map_strips(measuring *m, int64_t index, lf_op op)
{
    const float one[3] = {1, 0, 0}; /* add's alpha */
    float *x = m->l1 + (size_t)index * m->l1_floats, *out = x + 2 * LF_STRIP;
    for (int64_t i = 0; i < m->reps; i++)
        m->kern->map[op](LF_STRIP, x, x + LF_STRIP, NULL, one, out);
    m->sink[index] += out[0];
}

static void add_piece(void *arg, int64_t index, int slot)
{
    (void)slot;
    map_strips(arg, index, LF_OP_add);
}

static void exp_piece(void *arg, int64_t index, int slot)
{
    (void)slot;
    map_strips(arg, index, LF_OP_exp);
}

static void measure_arithmetic(measuring *m, lf_cpu_rates *out)
{
    for (size_t i = 0; i < m->l1_floats * (size_t)m->threads; i++)
        m->l1[i] = 0.25f + 0.001f * (float)(i % 97);
    out->elements = LF_STRIP * rate_in_l1(m, add_piece);
    out->functions = LF_STRIP * rate_in_l1(m, exp_piece);
    out->dot_flops = 2.0 * LF_DOTS * DOT_FLOATS * rate_in_l1(m, dot_piece);
    const lf_multiply run = whole_run(m->kern);
    out->flops = 2.0 * (double)(run.rows * run.n * run.k) * rate_in_l1(m, multiply_piece);
}

/* ---- in memory ---- */

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

/* Of the largest cache the machine names; a virtual machine names its host's, so no more than a few MB a core is counted on. */
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

static void fill_piece(void *arg, int64_t index, int slot)
{
    measuring *m = arg;
    float *x = m->buffer + index * PIECE;
    (void)slot;
    for (int64_t i = 0; i < PIECE; i++)
        x[i] = 0.5f;
}

/* Reads a piece of either half. */
static void read_piece(void *arg, int64_t index, int slot)
{
    measuring *m = arg;
    const float *x = m->buffer + index * PIECE, *y = x + m->floats / 2;
    for (int64_t i = 0; i < PIECE; i += LF_STRIP) {
        float sum[2][LF_MAX_STATE];
        m->kern->fold[LF_MONOID_sum](1, LF_STRIP, x + i, 0, sum[0]);
        m->kern->fold[LF_MONOID_sum](1, LF_STRIP, y + i, 0, sum[1]);
        m->sink[slot] += sum[0][0] + sum[1][0];
    }
}

static void copy_piece(void *arg, int64_t index, int slot)
{
    measuring *m = arg;
    float *x = m->buffer + index * PIECE;
    (void)slot;
    memcpy(x + m->floats / 2, x, PIECE * sizeof *x);
}

static lf_status allocate_buffer(measuring *m, double cache)
{
    size_t bytes = FEWEST_BYTES;
    while (bytes < MOST_BYTES && (double)bytes < 4 * cache)
        bytes *= 2;
    for (; bytes >= FEWEST_BYTES; bytes /= 2) {
        m->buffer = lf_aligned_alloc(bytes);
        m->floats = (int64_t)(bytes / sizeof *m->buffer);
        if (m->buffer)
            return LF_OK;
    }
    return LF_ERR_NOMEM;
}

/* Reading and writing at once take t = b / read + b / write. The share of writing is noisy: it is kept within reason. */
static double write_rate(double bytes, double took, double read)
{
    double left = took - bytes / read;
    double rate = left > 0 ? bytes / left : read;
    return rate > read ? read : rate < read / 4 ? read / 4 : rate;
}

static void measure_memory(measuring *m, lf_cpu_rates *out)
{
    const int64_t pieces = m->floats / PIECE;
    const double bytes = (double)m->floats * sizeof *m->buffer;
    lf_pool_run(m->pool, pieces, fill_piece, m);
    out->read_bytes = bytes / best_time(m, pieces / 2, read_piece);
    out->write_bytes = write_rate(bytes / 2, best_time(m, pieces / 2, copy_piece), out->read_bytes);
    int64_t all = m->floats, near = (int64_t)(out->cache_bytes / 2) / (2 * PIECE * (int64_t)sizeof *m->buffer);
    near = near < 1 ? 1 : near > pieces / 2 ? pieces / 2 : near;
    m->floats = 2 * near * PIECE;
    out->cache_rate = 2.0 * (double)near * PIECE * sizeof *m->buffer / best_time(m, near, read_piece);
    out->cache_rate = out->cache_rate > out->read_bytes ? out->cache_rate : out->read_bytes;
    m->floats = all;
}

/* Threads beyond the cores add nothing, and waiting for all of them takes long. */
static int threads_that_run(const lf_pool *pool)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int threads = lf_pool_threads(pool);
    return cores >= 1 && cores < threads ? (int)cores : threads;
}

lf_status lf_cpu_measure(const lf_kern *kern, lf_pool *pool, lf_cpu_rates *out, lf_diag *diag)
{
    measuring m = {.kern = kern, .pool = pool, .threads = threads_that_run(pool)};
    m.l1_floats = (floats_of_run(kern) + 1023) / 1024 * 1024;
    *out = (lf_cpu_rates){.cache_bytes = cache_to_count_on(m.threads)};
    m.l1 = lf_aligned_alloc(m.l1_floats * (size_t)m.threads * sizeof *m.l1);
    m.sink = lf_aligned_alloc((size_t)lf_pool_threads(pool) * sizeof *m.sink);
    m.best = lf_aligned_alloc((size_t)m.threads * sizeof *m.best);
    lf_status status = m.l1 && m.sink && m.best ? allocate_buffer(&m, out->cache_bytes) : LF_ERR_NOMEM;
    if (status == LF_OK) {
        memset(m.sink, 0, (size_t)lf_pool_threads(pool) * sizeof *m.sink);
        measure_arithmetic(&m, out);
        measure_memory(&m, out);
    } else {
        status = lf_fail_nomem(diag, "measuring this machine");
    }
    lf_aligned_free(m.buffer);
    lf_aligned_free(m.best);
    lf_aligned_free(m.sink);
    lf_aligned_free(m.l1);
    return status;
}
