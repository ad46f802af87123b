/* SPDX-License-Identifier: Apache-2.0 */
/* Random models, fused and op by op, against double precision: see random_model.h.
 *
 *     random_test [COUNT [FIRST]]    LINFUSE_SEED=N  another sequence    LINFUSE_LONG=1  many more
 *
 * A case that fails is made small and printed with what it takes to run it again. The closing line counts. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "random_model.h"
#include "rewrite/rewrite.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

enum { MOST_WORKERS = 64, ENOUGH = 4000, FEW = 400, LONG = 40000, MOST_FAILURES = 3 };

typedef struct job {
    uint64_t seed;
    long first, count;
    atomic_long next;
    atomic_int failures;
    pthread_mutex_t lock; /* of printing and sums */
    rnd_counts sum;
} job;

static void report(job *j, long index, const rnd_case *was, const rnd_case *c, const rnd_failure *f)
{
    pthread_mutex_lock(&j->lock);
    printf("FAILED graph %ld (LINFUSE_SEED=%llu random_test 1 %ld): %s\n  %s\n# data seed %llu, B=%lld, S=%lld%s\n%s\n",
           index, (unsigned long long)j->seed, index, f->label, f->what, (unsigned long long)c->seed, (long long)c->b,
           (long long)c->s, strcmp(was->text, c->text) == 0 ? "" : ", made small from a model of more", c->text);
    fflush(stdout);
    pthread_mutex_unlock(&j->lock);
}

/* What this thread is at, for when it does not come back. */
static _Thread_local const rnd_case *at;
static _Thread_local long at_index;

/* Says which graph it was, then dies as it would have. Not safe in every case; better than nothing in most. */
static void crashed(int signal_number)
{
    char line[96];
    int n = snprintf(line, sizeof line, "CRASHED (signal %d) in graph %ld\n", signal_number, at_index);
    if (write(STDOUT_FILENO, line, (size_t)n) == n && at && write(STDOUT_FILENO, at->text, strlen(at->text)) < 0)
        _exit(2);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void one_graph(job *j, rnd_bench *b, long index)
{
    static _Thread_local rnd_case c, small;
    rnd_failure f;
    at = &c;
    at_index = index;
    bool made = false;
    for (uint64_t tries = 0; tries < 64 && !made; tries++) {
        lf_rng r = lf_rng_at(j->seed, "graph", (uint64_t)index * 64 + tries);
        made = rnd_make(lf_rng_u64(&r), &c);
    }
    lf_rng r = lf_rng_at(j->seed, "types", (uint64_t)index);
    if (made && rnd_chance(&r, 0.4))
        rnd_retype(lf_rng_u64(&r), &c);
    if (!made || rnd_check(b, &c, &f))
        return; /* one that was not made is missing from the count */
    rnd_counts kept = b->counts;
    small = c;
    rnd_shrink(b, &small, &f);
    b->counts = kept;
    report(j, index, &c, &small, &f);
    atomic_fetch_add(&j->failures, 1);
}

static void add_counts(rnd_counts *to, const rnd_counts *from)
{
    to->graphs += from->graphs;
    to->typed += from->typed;
    to->programs += from->programs;
    to->elements += from->elements;
    to->unsure += from->unsure;
    to->rows_redone += from->rows_redone;
    to->planted += from->planted;
    to->parts += from->parts;
    for (int i = 0; i < LF_OP_COUNT; i++)
        to->op[i] += from->op[i];
    for (int i = 0; i < RND_RULES; i++) {
        to->fired[i] += from->fired[i];
        to->off[i] += from->off[i];
    }
}

static void *work(void *arg)
{
    job *j = arg;
    rnd_bench b;
    if (!rnd_bench_begin(&b)) {
        atomic_fetch_add(&j->failures, 1);
        return NULL;
    }
    for (;;) {
        long i = atomic_fetch_add(&j->next, 1);
        if (i >= j->first + j->count || atomic_load(&j->failures) >= MOST_FAILURES)
            break;
        one_graph(j, &b, i);
    }
    pthread_mutex_lock(&j->lock);
    add_counts(&j->sum, &b.counts);
    pthread_mutex_unlock(&j->lock);
    rnd_bench_end(&b);
    return NULL;
}

/* Prints a table of names and counts; gives how many of them are 0 and said to matter. */
static int print_ops(const job *j)
{
    int missing = 0, column = 0;
    printf("ops:");
    for (int op = 0; op < LF_OP_COUNT; op++) {
        /* losses take positions, of which random graphs have none: loss_test.c */
        if (!lf_op_public((lf_op)op) || lf_op_row((lf_op)op)->kind == LF_LOSS)
            continue;
        printf("%s%s %lld", column++ % 10 ? ", " : "\n  ", lf_op_row((lf_op)op)->name, (long long)j->sum.op[op]);
        if (j->sum.op[op] == 0 && ++missing)
            printf(" (never)");
    }
    printf("\n");
    return missing;
}

static int print_rules(const job *j)
{
    int missing = 0;
    printf("rules (fired / switched off):");
    for (int i = 0; lf_rule_at((size_t)i); i++) {
        printf("%s%s %lld/%lld", i % 6 ? ", " : "\n  ", lf_rule_at((size_t)i)->name, (long long)j->sum.fired[i],
               (long long)j->sum.off[i]);
        if ((j->sum.fired[i] == 0 || j->sum.off[i] == 0) && ++missing)
            printf(" (never)");
    }
    printf("\n");
    return missing;
}

int main(int argc, char **argv)
{
    static job j = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const char *seed = getenv("LINFUSE_SEED"), *many = getenv("LINFUSE_LONG");
    const char *workers = getenv("LINFUSE_WORKERS"); /* on a GPU most of the time is compiling */
    pthread_t thread[MOST_WORKERS];
    j.seed = seed ? strtoull(seed, NULL, 0) : 1;
    j.count = argc > 1 ? strtol(argv[1], NULL, 0) : many && strcmp(many, "1") == 0 ? LONG : SANITIZED ? FEW : ENOUGH;
    j.first = argc > 2 ? strtol(argv[2], NULL, 0) : 0;
    j.next = j.first;
    if (!SANITIZED) {
        signal(SIGABRT, crashed);
        signal(SIGSEGV, crashed);
        signal(SIGFPE, crashed);
    }
    int started = 0;
    const long wanted = workers ? strtol(workers, NULL, 0) : 2;
    while (started < wanted && started < MOST_WORKERS && pthread_create(&thread[started], NULL, work, &j) == 0)
        started++;
    for (int i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    long failed = j.failures, passed = (long)j.sum.graphs;
    int unseen = print_ops(&j) + print_rules(&j);
    printf("%lld graphs with types other than f32, %lld programs, "
           "%lld elements judged (%.2f%% unsure), %lld rows redone, %lld with numbers planted, %lld run in part\n",
           (long long)j.sum.typed, (long long)j.sum.programs, (long long)j.sum.elements,
           100.0 * (double)j.sum.unsure / (double)(j.sum.elements + 1), (long long)j.sum.rows_redone,
           (long long)j.sum.planted, (long long)j.sum.parts);
    if (failed == 0 && passed < j.count) {
        printf("only %ld graphs were run, not %ld\n", passed, j.count);
        failed++;
    }
    if (j.count >= ENOUGH && failed == 0) { /* a run long enough that chance leaves nothing out */
        if (unseen) {
            printf("%d ops or rules were never met\n", unseen);
            failed++;
        }
        if (j.sum.typed == 0) {
            printf("all were of f32\n");
            failed++;
        }
        if (j.sum.rows_redone == 0 || j.sum.unsure * 10 > j.sum.elements) {
            printf("no row was ever redone, or too little could be judged\n");
            failed++;
        }
    }
    printf("%ld passed, %ld failed\n", passed, failed);
    return failed != 0;
}
