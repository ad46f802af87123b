/* SPDX-License-Identifier: Apache-2.0 */
/* Every one-argument map of every table this machine can run, at all 2^32 floats, against double precision:
 *
 *     math_exhaustive_tool [STEP [LABEL]]      every STEP-th float; only the case of that label
 *
 * Prints a line for each with the worst error in ulps and where it is, for normal and denormal results apart, and
 * exits 1 if one is off by more than math_reference.c allows. Uses all cores. */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "math_reference.h"

enum { MAX_TABLES = 4, MAX_THREADS = 64 };

typedef struct worst {
    double ulps[2]; /* of denormal, of normal results */
    float at[2];
} worst;

typedef struct walk {
    const math_case *c;
    uint64_t first, last, step;
    worst table[MAX_TABLES];
} walk;

static void note(worst *w, float x, float y, double ref)
{
    int normal = math_normal(ref);
    if ((float)ref == y && w->ulps[normal] >= 0.5) /* the nearest float: most are */
        return;
    double ulps = math_ulps(y, ref);
    if (ulps > w->ulps[normal]) {
        w->ulps[normal] = ulps;
        w->at[normal] = x;
    }
}

static void *walk_floats(void *argument)
{
    walk *w = argument;
    float x[LF_STRIP], y[LF_STRIP];
    double ref[LF_STRIP];
    uint64_t at = w->first;
    while (at < w->last) {
        int64_t n = 0;
        for (; n < LF_STRIP && at < w->last; n++, at += w->step) {
            uint32_t bits = (uint32_t)at;
            memcpy(&x[n], &bits, sizeof bits);
            ref[n] = w->c->reference(x[n], 0, w->c->attr);
        }
        for (int t = 0; t < MAX_TABLES && lf_kern_at((size_t)t); t++) {
            math_run(w->c, (size_t)t, n, x, NULL, y);
            for (int64_t i = 0; i < n; i++)
                note(&w->table[t], x[i], y[i], ref[i]);
        }
    }
    return NULL;
}

/* Whether all tables stay within bounds. */
static bool walk_case(const math_case *c, uint64_t step, int threads)
{
    static walk w[MAX_THREADS];
    pthread_t thread[MAX_THREADS];
    memset(w, 0, sizeof w);
    for (int i = 0; i < threads; i++) {
        w[i].c = c;
        w[i].step = step;
        w[i].first = ((uint64_t)i << 32) / (uint64_t)threads;
        w[i].last = ((uint64_t)(i + 1) << 32) / (uint64_t)threads;
        if (pthread_create(&thread[i], NULL, walk_floats, &w[i]) != 0)
            abort();
    }
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    bool good = true;
    for (int t = 0; t < MAX_TABLES && lf_kern_at((size_t)t); t++) {
        worst all = w[0].table[t];
        for (int i = 1; i < threads; i++)
            for (int k = 0; k < 2; k++)
                if (w[i].table[t].ulps[k] > all.ulps[k]) {
                    all.ulps[k] = w[i].table[t].ulps[k];
                    all.at[k] = w[i].table[t].at[k];
                }
        bool within = all.ulps[1] <= c->ulps && all.ulps[0] <= (c->ulps > 1 ? c->ulps : 1);
        good = good && within;
        printf("%-16s %-7s %7.3f at %-16a %7.3f at %-16a %4g%s\n", c->label, lf_kern_at((size_t)t)->isa, all.ulps[1],
               (double)all.at[1], all.ulps[0], (double)all.at[0], c->ulps, within ? "" : "  TOO FAR");
    }
    fflush(stdout);
    return good;
}

int main(int argc, char **argv)
{
    uint64_t step = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int threads = cores < 1 ? 1 : cores > MAX_THREADS ? MAX_THREADS : (int)cores, walked = 0;
    bool good = step > 0;
    printf("%-16s %-7s %-27s %-27s %s\n", "map", "table", "worst, in ulps", "worst where denormal", "allowed");
    for (size_t i = 0; step > 0 && i < math_case_count; i++)
        if (!math_cases[i].two && (argc < 3 || strcmp(argv[2], math_cases[i].label) == 0)) {
            good = walk_case(&math_cases[i], step, threads) && good;
            walked++;
        }
    return good && walked > 0 ? 0 : 1;
}
