/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/pool.h"
#include "openmp_fixture.h"
#include "sanitized.h"

enum { THREADS = 4, INDICES = 5000 };

/* What one job saw. Assertions jump, so they stay on the test's thread: fn only counts. */
typedef struct tally {
    atomic_int hits[INDICES];
    atomic_int busy[THREADS]; /* calls under way in each slot */
    atomic_int wrong;
    pthread_t caller;
    int64_t plain[INDICES]; /* not atomic: TSan sees whether the pool orders it before the caller's reads */
} tally;

static void count_call(void *arg, int64_t index, int slot)
{
    tally *t = arg;
    bool on_caller = pthread_equal(pthread_self(), t->caller) != 0;
    if (slot < 0 || slot >= THREADS || on_caller != (slot == 0)) {
        atomic_fetch_add(&t->wrong, 1);
        return;
    }
    if (atomic_fetch_add(&t->busy[slot], 1) != 0)
        atomic_fetch_add(&t->wrong, 1);
    atomic_fetch_add(&t->hits[index], 1);
    t->plain[index] = index * 3;
    atomic_fetch_sub(&t->busy[slot], 1);
}

/* Runs count indices; whether each was called exactly once, in a slot of its own. */
static bool runs_each_once(lf_pool *pool, tally *t, int64_t count)
{
    memset(t, 0, sizeof *t);
    t->caller = pthread_self();
    lf_pool_run(pool, count, count_call, t);
    bool good = atomic_load(&t->wrong) == 0;
    for (int64_t i = 0; i < INDICES; i++) {
        good &= atomic_load(&t->hits[i]) == (i < count);
        good &= t->plain[i] == (i < count ? i * 3 : 0);
    }
    return good;
}

static void pool_each_index_once(void **state)
{
    (void)state;
    static tally t;
    static const int64_t counts[] = {INDICES, 0, 1, 2, 3, THREADS, 100, -1, INT64_MIN};
    for (int threads = 0; threads <= THREADS; threads++) {
        lf_pool *pool = NULL;
        if (threads > 0)
            assert_int_equal(lf_pool_new(threads, &pool), LF_OK);
        assert_int_equal(lf_pool_threads(pool), threads ? threads : 1);
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
            assert_true(runs_each_once(pool, &t, counts[i]));
        for (int i = 0; i < 200; i++)
            assert_true(runs_each_once(pool, &t, i % 7));
        lf_pool_free(pool);
    }
}

typedef struct caller {
    lf_pool *pool;
    tally seen;
    bool good;
} caller;

static void *caller_main(void *arg)
{
    caller *c = arg;
    c->good = true;
    for (int i = 0; i < 50; i++)
        c->good &= runs_each_once(c->pool, &c->seen, i % 2 ? 3 : 400);
    return NULL;
}

static void pool_four_callers(void **state)
{
    (void)state;
    static caller callers[4];
    lf_pool *pool;
    pthread_t threads[4];
    assert_int_equal(lf_pool_new(THREADS, &pool), LF_OK);
    for (int i = 0; i < 4; i++) {
        callers[i].pool = pool;
        assert_int_equal(pthread_create(&threads[i], NULL, caller_main, &callers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_true(callers[i].good);
    }
    lf_pool_free(pool);
}

typedef struct gate {
    lf_pool *pool;
    atomic_int entered;
    atomic_bool open;
} gate;

static void pause_briefly(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void wait_at_gate(void *arg, int64_t index, int slot)
{
    (void)index, (void)slot;
    gate *g = arg;
    atomic_fetch_add(&g->entered, 1);
    while (!atomic_load(&g->open))
        pause_briefly();
}

static void *hold_all_workers(void *arg)
{
    gate *g = arg;
    lf_pool_run(g->pool, THREADS, wait_at_gate, g);
    return NULL;
}

typedef struct sums {
    int64_t sum[THREADS]; /* not atomic: loops are in order */
} sums;

static void add_index(void *arg, int64_t index, int slot)
{
    sums *s = arg;
    (void)slot;
    s->sum[index] += index + 1;
}

/* Loops that follow each other closely are handed to workers that wait for them, and taken back from those that have
 * not begun: each index of each loop once, and not after its loop has ended. */
static void pool_short_loops_in_a_row(void **state)
{
    (void)state;
    enum { LOOPS = 20000 };
    lf_pool *pool;
    sums s = {{0}};
    assert_int_equal(lf_pool_new(THREADS, &pool), LF_OK);
    for (int i = 0; i < LOOPS; i++)
        lf_pool_run(pool, THREADS, add_index, &s);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(s.sum[i], (int64_t)LOOPS * (i + 1));
    lf_pool_free(pool);
}

/* One job has every worker and does not end before the other has run. */
static void pool_gets_on_without_workers(void **state)
{
    (void)state;
    static tally t;
    gate g = {.entered = 0};
    pthread_t holder;
    assert_int_equal(lf_pool_new(THREADS, &g.pool), LF_OK);
    assert_int_equal(pthread_create(&holder, NULL, hold_all_workers, &g), 0);
    while (atomic_load(&g.entered) < THREADS)
        pause_briefly();
    assert_true(runs_each_once(g.pool, &t, 1000));
    atomic_store(&g.open, true);
    pthread_join(holder, NULL);
    lf_pool_free(g.pool);
}

/* Idle between jobs long enough for the workers to sleep; the gate then needs every one of them. */
static void pool_wakes_sleepers(void **state)
{
    (void)state;
    gate g = {.entered = 0};
    assert_int_equal(lf_pool_new(THREADS, &g.pool), LF_OK);
    for (int round = 1; round <= 5; round++) {
        for (int i = 0; i < 5; i++)
            pause_briefly();
        pthread_t holder;
        atomic_store(&g.entered, 0);
        atomic_store(&g.open, false);
        assert_int_equal(pthread_create(&holder, NULL, hold_all_workers, &g), 0);
        while (atomic_load(&g.entered) < THREADS)
            pause_briefly();
        atomic_store(&g.open, true);
        pthread_join(holder, NULL);
    }
    lf_pool_free(g.pool);
}

typedef struct nest {
    lf_pool *pool;
    atomic_int inner_calls, wrong;
} nest;

typedef struct inner {
    nest *n;
    pthread_t outer_thread;
    int64_t expected; /* inline means in order too */
} inner;

static void inner_call(void *arg, int64_t index, int slot)
{
    inner *in = arg;
    if (slot != 0 || index != in->expected++ || !pthread_equal(pthread_self(), in->outer_thread))
        atomic_fetch_add(&in->n->wrong, 1);
    atomic_fetch_add(&in->n->inner_calls, 1);
}

static void outer_call(void *arg, int64_t index, int slot)
{
    (void)index, (void)slot;
    nest *n = arg;
    inner in = {.n = n, .outer_thread = pthread_self()};
    lf_pool_run(n->pool, 10, inner_call, &in);
}

static void pool_nested_runs_inline(void **state)
{
    (void)state;
    static tally t;
    nest n = {.wrong = 0};
    assert_int_equal(lf_pool_new(THREADS, &n.pool), LF_OK);
    lf_pool_run(n.pool, 200, outer_call, &n);
    assert_int_equal(atomic_load(&n.inner_calls), 2000);
    assert_int_equal(atomic_load(&n.wrong), 0);
    assert_true(runs_each_once(n.pool, &t, 100)); /* and the mark of being inside is gone again */
    lf_pool_free(n.pool);
}

/* ---- pool and fork ---- */

/* A child that hangs is ended by its alarm, and then has no exit status 0. A worker's child has inherited the worker's
 * blocked signals. */
static void begin_child(void)
{
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    pthread_sigmask(SIG_UNBLOCK, &alarms, NULL);
    alarm(60);
}

static bool child_succeeded(pid_t child)
{
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void pool_survives_fork(void **state)
{
    (void)state;
    static tally t;
    lf_pool *pool;
    assert_int_equal(lf_pool_new(THREADS, &pool), LF_OK);
    assert_true(runs_each_once(pool, &t, 100));
    pid_t child = fork();
    if (child == 0) {
        begin_child();
        bool good = runs_each_once(pool, &t, 1000) && runs_each_once(pool, &t, 10);
        lf_pool_free(pool);
        /* A pool of the child's own has workers again. TSan allows no thread after such a fork. */
        if (!SANITIZED) {
            good &= lf_pool_new(THREADS, &pool) == LF_OK && runs_each_once(pool, &t, 1000);
            lf_pool_free(pool);
        }
        _exit(good ? 0 : 1);
    }
    assert_true(child_succeeded(child));
    assert_true(runs_each_once(pool, &t, 1000));
    lf_pool_free(pool);
}

typedef struct hammer {
    lf_pool *pool;
    atomic_bool stop;
} hammer;

static void do_nothing(void *arg, int64_t index, int slot)
{
    (void)arg, (void)index, (void)slot;
}

static void *hammer_main(void *arg)
{
    hammer *h = arg;
    while (!atomic_load(&h->stop))
        lf_pool_run(h->pool, 2, do_nothing, NULL);
    return NULL;
}

/* Forks while other threads are in and out of the pool's lock: some child inherits it locked. */
static void pool_survives_fork_under_load(void **state)
{
    (void)state;
    static tally t;
    hammer h = {.stop = false};
    pthread_t threads[2];
    assert_int_equal(lf_pool_new(THREADS, &h.pool), LF_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, hammer_main, &h), 0);
    bool good = true;
    for (int i = 0; i < 40; i++) {
        pid_t child = fork();
        if (child == 0) {
            begin_child();
            bool ran = runs_each_once(h.pool, &t, 50);
            lf_pool_free(h.pool);
            _exit(ran ? 0 : 1);
        }
        good &= child_succeeded(child);
    }
    atomic_store(&h.stop, true);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    assert_true(good);
    lf_pool_free(h.pool);
}

typedef struct inside_fork {
    int slot_to_fork;
    pid_t parent;
    atomic_int children, failed, entered;
} inside_fork;

/* Every thread is held until all are in, so that the wanted slot is among them. Only the parent waits; the child
 * returns into the pool, as slot 0 to its caller and as a worker to the end of its thread. */
static void fork_in_job(void *arg, int64_t index, int slot)
{
    (void)index;
    inside_fork *f = arg;
    if (getpid() != f->parent)
        return;
    atomic_fetch_add(&f->entered, 1);
    while (atomic_load(&f->entered) < THREADS)
        pause_briefly();
    if (slot != f->slot_to_fork)
        return;
    fflush(NULL); /* or a worker's child, which ends through exit(), would print it a second time */
    pid_t child = fork();
    if (child == 0) {
        begin_child();
        return;
    }
    atomic_fetch_add(&f->children, 1);
    if (!child_succeeded(child))
        atomic_fetch_add(&f->failed, 1);
}

static void pool_fn_may_fork(void **state)
{
    (void)state;
    static tally t;
    lf_pool *pool;
    assert_int_equal(lf_pool_new(THREADS, &pool), LF_OK);
    for (int slot = 0; slot < 2; slot++) {
        /* A worker's child ends by leaving its last thread, through exit() and the sanitizers' checks, which do not
         * expect to run there. */
        if (slot > 0 && SANITIZED)
            break;
        inside_fork f = {.slot_to_fork = slot, .parent = getpid()};
        lf_pool_run(pool, THREADS, fork_in_job, &f);
        if (getpid() != f.parent)
            _exit(runs_each_once(pool, &t, 100) ? 0 : 1);
        assert_int_equal(atomic_load(&f.children), 1);
        assert_int_equal(atomic_load(&f.failed), 0);
        assert_true(runs_each_once(pool, &t, 100));
    }
    lf_pool_free(pool);
}

static void loop_in_order(void *user, int64_t count, void (*fn)(void *arg, int64_t index, int slot), void *arg)
{
    ++*(int *)user;
    for (int64_t i = 0; i < count; i++)
        fn(arg, i, 0);
}

/* A loop of somebody else's has every job that is worth one, in a forked child too. */
static void pool_of_a_loop(void **state)
{
    (void)state;
    static tally t;
    int loops = 0;
    lf_pool *pool;
    assert_int_equal(lf_pool_new_loop(THREADS, loop_in_order, &loops, &pool), LF_OK);
    assert_true(lf_pool_is_loop(pool));
    assert_int_equal(lf_pool_threads(pool), THREADS);
    assert_true(runs_each_once(pool, &t, 100) && runs_each_once(pool, &t, 2) && runs_each_once(pool, &t, 1) &&
                runs_each_once(pool, &t, 0));
    assert_int_equal(loops, 2);
    pid_t child = fork();
    if (child == 0) {
        begin_child();
        bool good = runs_each_once(pool, &t, 100) && loops == 3;
        lf_pool_free(pool);
        _exit(good ? 0 : 1);
    }
    assert_true(child_succeeded(child));
    lf_pool_free(pool);
}

static lf_pool *pool_on_team(int threads)
{
    lf_openmp team;
    lf_pool *pool;
    assert_true(lf_openmp_find(&team));
    assert_int_equal(lf_pool_new_team(threads, &team, &pool), LF_OK);
    return pool;
}

/* The team works on every job that is worth one: a team that is smaller than the pool, as large, and larger, of which
 * the surplus has nothing to do. */
static void pool_on_a_team(void **state)
{
    (void)state;
    static tally t;
    lf_pool *pool = pool_on_team(THREADS);
    assert_false(lf_pool_is_loop(pool));
    assert_int_equal(lf_pool_threads(pool), THREADS);
    for (team_size = 1; team_size <= THREADS + 3; team_size++) {
        atomic_store(&teams, 0);
        assert_true(runs_each_once(pool, &t, 100) && runs_each_once(pool, &t, 2) && runs_each_once(pool, &t, 1) &&
                    runs_each_once(pool, &t, 0) && runs_each_once(pool, &t, INDICES));
        assert_int_equal(atomic_load(&teams), 3);
    }
    lf_pool_free(pool);
}

static void run_nest(void *arg)
{
    outer_call(arg, 0, 0);
}

/* Inside its own jobs, and where the caller is in a team already. */
static void pool_on_a_team_nested(void **state)
{
    (void)state;
    nest n = {.pool = pool_on_team(THREADS)};
    team_size = THREADS;
    lf_pool_run(n.pool, 200, outer_call, &n);
    assert_int_equal(atomic_load(&n.inner_calls), 2000);
    GOMP_parallel(run_nest, &n, THREADS, 0);
    assert_int_equal(atomic_load(&n.inner_calls), 2000 + 10 * THREADS);
    assert_int_equal(atomic_load(&n.wrong), 0);
    lf_pool_free(n.pool);
}

/* A child calls no team: GNU's would wait for threads that stayed behind. */
static void pool_on_a_team_survives_fork(void **state)
{
    (void)state;
    static tally t;
    lf_pool *pool = pool_on_team(THREADS);
    team_size = THREADS;
    assert_true(runs_each_once(pool, &t, 100));
    assert_false(lf_pool_is_forked());
    atomic_store(&teams, 0);
    pid_t child = fork();
    if (child == 0) {
        begin_child();
        bool good = lf_pool_is_forked() && runs_each_once(pool, &t, 100) && atomic_load(&teams) == 0;
        lf_pool_free(pool);
        _exit(good ? 0 : 1);
    }
    assert_true(child_succeeded(child));
    assert_true(runs_each_once(pool, &t, 100));
    lf_pool_free(pool);
}

/* How many calls were under way at once, at most. */
typedef struct crowd {
    atomic_int inside, most;
} crowd;

static void linger_in_crowd(void *arg, int64_t index, int slot)
{
    crowd *c = arg;
    (void)index;
    (void)slot;
    int now = atomic_fetch_add(&c->inside, 1) + 1, most = atomic_load(&c->most);
    while (now > most && !atomic_compare_exchange_weak(&c->most, &most, now))
        ;
    pause_briefly();
    atomic_fetch_sub(&c->inside, 1);
}

static void keeps_to_a_limit(lf_pool *pool)
{
    static tally t;
    for (int most = 1; most <= THREADS + 1; most++) {
        crowd c = {0};
        assert_int_equal(lf_pool_limit(most), 0);
        lf_pool_run(pool, 40, linger_in_crowd, &c);
        assert_true(runs_each_once(pool, &t, 100));
        assert_int_equal(lf_pool_limit(0), most);
        assert_true(atomic_load(&c.most) <= most);
        assert_true(most == 1 || atomic_load(&c.most) > 1);
    }
    assert_int_equal(lf_pool_limit(-3), 0);
    assert_int_equal(lf_pool_limit(0), 0);
    lf_pool_free(pool);
}

static void pool_keeps_to_a_limit(void **state)
{
    (void)state;
    lf_pool *pool;
    assert_int_equal(lf_pool_new(THREADS, &pool), LF_OK);
    keeps_to_a_limit(pool);
    team_size = THREADS + 1;
    keeps_to_a_limit(pool_on_team(THREADS));
}

static void pool_refuses(void **state)
{
    (void)state;
    lf_pool *pool = (lf_pool *)&pool;
    assert_int_equal(lf_pool_new(0, &pool), LF_ERR_ARG);
    assert_null(pool);
    assert_int_equal(lf_pool_new(-1, &pool), LF_ERR_ARG);
    assert_int_equal(lf_pool_new(LF_POOL_MAX_THREADS + 1, &pool), LF_ERR_ARG);
    pool = (lf_pool *)&pool;
    assert_int_equal(lf_pool_new_loop(0, loop_in_order, NULL, &pool), LF_ERR_ARG);
    assert_null(pool);
    assert_int_equal(lf_pool_new_loop(2, NULL, NULL, &pool), LF_ERR_ARG);
    assert_int_equal(lf_pool_new_team(0, &(lf_openmp){0}, &pool), LF_ERR_ARG);
    assert_null(pool);
    assert_false(lf_pool_is_loop(NULL));
    lf_pool_free(NULL);
}

/* In a child with little address space some threads start and then one does not. The sanitizers need theirs. */
static void pool_without_threads_to_be_had(void **state)
{
    (void)state;
    if (SANITIZED)
        skip();
    pid_t child = fork();
    if (child == 0) {
        begin_child();
        struct rlimit limit = {.rlim_cur = 256u << 20, .rlim_max = 256u << 20};
        lf_pool *pool = (lf_pool *)&limit;
        bool good = setrlimit(RLIMIT_AS, &limit) == 0 && lf_pool_new(1000, &pool) == LF_ERR_NOMEM && !pool;
        static tally t;
        good &= lf_pool_new(2, &pool) == LF_OK && runs_each_once(pool, &t, 100);
        lf_pool_free(pool);
        _exit(good ? 0 : 1);
    }
    assert_true(child_succeeded(child));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pool_each_index_once),
        cmocka_unit_test(pool_four_callers),
        cmocka_unit_test(pool_short_loops_in_a_row),
        cmocka_unit_test(pool_gets_on_without_workers),
        cmocka_unit_test(pool_wakes_sleepers),
        cmocka_unit_test(pool_nested_runs_inline),
        cmocka_unit_test(pool_survives_fork),
        cmocka_unit_test(pool_survives_fork_under_load),
        cmocka_unit_test(pool_fn_may_fork),
        cmocka_unit_test(pool_of_a_loop),
        cmocka_unit_test(pool_on_a_team),
        cmocka_unit_test(pool_on_a_team_nested),
        cmocka_unit_test(pool_on_a_team_survives_fork),
        cmocka_unit_test(pool_keeps_to_a_limit),
        cmocka_unit_test(pool_refuses),
        cmocka_unit_test(pool_without_threads_to_be_had),
    };
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
