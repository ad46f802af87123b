/* SPDX-License-Identifier: Apache-2.0 */
/* What the machine can do, measured without linfuse, so that shares of it are shares of something independent.
 *   peak THREADS        prints the best f32 multiply-add rate (flop/s) and the best rate of reading memory (byte/s):
 *                       the best of many short tries counts, since what else the machine does only makes it slower
 *   peak THREADS now    prints the multiply-add rate of these 20 ms, the median of short tries: what a core that is
 *                       shared with others gives at this moment
 * Compile with -O3 -march=native: the sums have to stay in registers. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#if defined(__AVX512F__)
enum { WIDTH = 16 };
#elif defined(__AVX__)
enum { WIDTH = 8 };
#else
enum { WIDTH = 4 };
#endif
typedef float vec __attribute__((vector_size(WIDTH * sizeof(float))));

enum {
    CHAINS = 12,           /* latency of 4, two units: at least 8 in flight; 12 still fit 16 registers */
    STEPS = 1 << 18,       /* a slice of half a millisecond: some of them fall into quiet moments of a busy machine */
    SLICES = 200,
    SLICES_NOW = 40,
    MOST_THREADS = 64,
    PIECES = 8,            /* of what a thread reads, each timed by itself */
    SWEEPS = 8
};
#define PIECE_BYTES ((size_t)32 << 20) /* times PIECES: past what a core counts on of any cache */

typedef struct worker {
    pthread_t thread;
    pthread_barrier_t *together;
    int slices;
    double flops, bytes;         /* a second, the best slice */
    double usual_flops;          /* the median slice */
    float sink;                  /* keeps results alive */
} worker;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void keep_best(double *best, double rate)
{
    *best = rate > *best ? rate : *best;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void multiply_add(worker *w)
{
    vec sum[CHAINS], a, b;
    double rate[SLICES];
    for (int i = 0; i < WIDTH; i++) {
        a[i] = 0.5f + 0.01f * (float)i;
        b[i] = 0.25f;
        for (int j = 0; j < CHAINS; j++) /* each its own number: of equal chains a compiler keeps one */
            sum[j][i] = (float)j;
    }
    for (int slice = 0; slice < w->slices; slice++) {
        double start = now();
        for (int step = 0; step < STEPS; step++)
#pragma GCC unroll 12
            for (int i = 0; i < CHAINS; i++)
                sum[i] = sum[i] * a + b;
        rate[slice] = 2.0 * WIDTH * CHAINS * STEPS / (now() - start);
        for (int i = 0; i < CHAINS; i++)
            w->sink += sum[i][0];
    }
    qsort(rate, (size_t)w->slices, sizeof *rate, by_size);
    w->usual_flops = rate[w->slices / 2];
    w->flops = rate[w->slices - 1];
}

/* data: [count] */
static float sum_up(const vec *data, size_t count)
{
    vec sum[8] = {{0}};
    for (size_t i = 0; i + 8 <= count; i += 8)
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++)
            sum[j] += data[i + (size_t)j];
    for (int j = 1; j < 8; j++)
        sum[0] += sum[j];
    return sum[0][0];
}

/* All threads at once, since memory is shared: from the first one's start to the last one's end. */
static void read_memory(worker *w)
{
    const size_t piece = PIECE_BYTES / sizeof(vec);
    vec *data = aligned_alloc(64, PIECES * PIECE_BYTES);
    for (size_t i = 0; data && i < PIECES * piece; i++)
        data[i] = (vec){0.5f};
    for (int i = 0; i < SWEEPS * PIECES; i++) {
        pthread_barrier_wait(w->together);
        double start = now();
        if (data)
            w->sink += sum_up(data + (size_t)(i % PIECES) * piece, piece);
        pthread_barrier_wait(w->together);
        keep_best(&w->bytes, data ? (double)PIECE_BYTES / (now() - start) : 0);
    }
    free(data);
}

static void *work(void *arg)
{
    worker *w = arg;
    multiply_add(w);
    if (w->slices == SLICES)
        read_memory(w);
    return NULL;
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    const int slices = argc > 2 ? SLICES_NOW : SLICES;
    worker workers[MOST_THREADS] = {{0}};
    pthread_barrier_t together;
    double flops = 0, bytes = 0, usual = 0;
    threads = threads < 1 ? 1 : threads > MOST_THREADS ? MOST_THREADS : threads;
    pthread_barrier_init(&together, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++) {
        workers[i].together = &together;
        workers[i].slices = slices;
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
            return 1;
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(workers[i].thread, NULL);
        flops += workers[i].flops;
        bytes += workers[i].bytes;
        usual += workers[i].usual_flops;
    }
    pthread_barrier_destroy(&together);
    if (slices == SLICES_NOW)
        printf("%.6g\n", usual);
    else
        printf("%.6g %.6g\n", flops, bytes);
    return 0;
}
