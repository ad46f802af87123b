/* SPDX-License-Identifier: Apache-2.0 */
/* In each job an atomic counter hands out its indices. Workers come to it in two ways. Those that wait for the next job
 * by spinning are handed it, without a lock: loops that follow each other closely start so. Those that sleep or are
 * busy find it in a queue under one mutex, which is taken a few times a job and thread, never an index. A job lives on
 * its caller's stack: it is in the queue only while the caller works on it, and the caller leaves only when no worker
 * is inside. A team of OpenMP's needs neither: it enters and leaves as a whole. */
#include "base/pool.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "base/mem.h"

enum {
    CACHE_LINE = 64,
    /* Some tens of microseconds of pause instructions, about what a sleep and a wake-up cost: a model's kernels follow
     * each other closer than that, and a pool at rest must not burn a core. */
    SPINS = 1000,
    BRIEFLY = 20 /* until a worker that runs has seen what it was handed */
};

struct job {
    void (*fn)(void *arg, int64_t index, int slot);
    void *arg;
    int64_t count;
    int helpers;                                 /* workers that may be in it at once */
    int (*thread_num)(void);                     /* in a team: lf_openmp's */
    struct job *behind;                          /* in the queue; under the pool's lock */
    _Alignas(CACHE_LINE) _Atomic int64_t next;   /* first index nobody has taken; runs past count */
    _Alignas(CACHE_LINE) _Atomic int inside;     /* workers in it; raised under the lock, lowered without */
};

struct worker {
    /* waiting: it spins, and takes a job that comes instead; nobodys: it sleeps or works */
    _Alignas(CACHE_LINE) _Atomic(struct job *) handed;
    lf_pool *pool;
    int slot;
    pthread_t thread;
};

static struct job waiting, nobodys;

struct lf_pool {
    pthread_mutex_t lock;
    pthread_cond_t wake; /* to workers: a job was queued, or stop was set */
    pthread_cond_t done; /* to callers: a worker left a job */
    struct job *jobs;    /* oldest first; under lock, as is the next */
    int asleep;          /* workers waiting on wake */
    atomic_int patient;  /* callers waiting on done; raised and lowered under lock */
    atomic_uint news;    /* counts jobs queued and stop, for workers that spin */
    bool stop;           /* under lock */
    unsigned generation; /* fork_generation when the pool was made */
    int threads;
    /* Somebody else's loop, or the process's team, in place of the workers; NULL: the workers. With either, nothing
     * that workers use is in use. */
    lf_parallel_for loop;
    void *user;
    lf_openmp team;
    struct worker workers[]; /* threads - 1 */
};

/* How many forks lie between this process and the one that loaded the library. A pool of an older generation has lost
 * its workers, and its lock may have been held by one of them: nothing in it may be waited for. */
static atomic_uint fork_generation;

static int fork_error;

static _Thread_local bool in_job;
static _Thread_local int limit; /* lf_pool_limit; 0: none */

static void forked_child(void)
{
    atomic_fetch_add_explicit(&fork_generation, 1, memory_order_relaxed);
}

/* When the library is loaded, so that no fork after it goes unseen. */
__attribute__((constructor)) static void watch_forks(void)
{
    fork_error = pthread_atfork(NULL, NULL, forked_child);
}

static bool lost_in_fork(const lf_pool *pool)
{
    return pool->generation != atomic_load_explicit(&fork_generation, memory_order_relaxed);
}

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Takes indices until there are none left. Relaxed order is enough for the counter: the lock makes the job visible to
 * a worker, and lowering inside makes the worker's results visible to the caller. */
static void work_on(struct job *job, int slot)
{
    bool outer = in_job;
    in_job = true;
    for (;;) {
        int64_t index = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
        if (index >= job->count)
            break;
        job->fn(job->arg, index, slot);
    }
    in_job = outer;
}

/* All indices here and in order. Nothing is shared, so nothing is atomic: a small model's call makes several such
 * loops, and is over in a microsecond or two. */
static void run_inline(int64_t count, void (*fn)(void *arg, int64_t index, int slot), void *arg)
{
    bool outer = in_job;
    in_job = true;
    for (int64_t index = 0; index < count; index++)
        fn(arg, index, 0);
    in_job = outer;
}

/* Whether a worker may come in. Needs the lock, under which they do. */
static bool has_room(struct job *job)
{
    return atomic_load_explicit(&job->next, memory_order_relaxed) < job->count &&
           atomic_load_explicit(&job->inside, memory_order_relaxed) < job->helpers;
}

/* The oldest job that still has indices, and not as many workers as it may have. Needs the lock. */
static struct job *find_job(const lf_pool *pool)
{
    struct job *job = pool->jobs;
    while (job && !has_room(job))
        job = job->behind;
    return job;
}

/* Works on a job that the worker is inside of, and leaves it. False when fn has forked and this is the child. */
static bool help(lf_pool *pool, struct job *job, int slot)
{
    work_on(job, slot);
    if (lost_in_fork(pool))
        return false;
    /* After this the job may be gone. Either its caller sees that nobody is inside, or this sees that it is patient:
     * both are in the one order that all threads agree on. */
    if (atomic_fetch_sub(&job->inside, 1) == 1 && atomic_load(&pool->patient) > 0) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_broadcast(&pool->done);
        pthread_mutex_unlock(&pool->lock);
    }
    return true;
}

/* Waits a little to be handed a job; NULL where none came, or there is something in the queue. */
static struct job *linger(struct worker *self, unsigned seen)
{
    atomic_store_explicit(&self->handed, &waiting, memory_order_release);
    for (int i = 0; i < SPINS && atomic_load_explicit(&self->pool->news, memory_order_relaxed) == seen &&
                    atomic_load_explicit(&self->handed, memory_order_relaxed) == &waiting;
         i++)
        relax();
    struct job *job = atomic_exchange_explicit(&self->handed, &nobodys, memory_order_acq_rel);
    return job == &waiting ? NULL : job;
}

static void *worker_main(void *arg)
{
    struct worker *self = arg;
    lf_pool *pool = self->pool;
    bool rested = true; /* it has lingered, and nothing came */

    pthread_mutex_lock(&pool->lock);
    while (!pool->stop) {
        struct job *job = find_job(pool);
        if (!job && rested) {
            pool->asleep++;
            pthread_cond_wait(&pool->wake, &pool->lock);
            pool->asleep--;
            rested = false;
            continue;
        }
        const unsigned seen = atomic_load_explicit(&pool->news, memory_order_relaxed);
        if (job)
            atomic_fetch_add_explicit(&job->inside, 1, memory_order_relaxed);
        pthread_mutex_unlock(&pool->lock);
        for (job = job ? job : linger(self, seen); job; job = linger(self, seen))
            if (!help(pool, job, self->slot))
                return NULL;
        pthread_mutex_lock(&pool->lock);
        rested = atomic_load_explicit(&pool->news, memory_order_relaxed) == seen;
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* Starts a worker with the process's signals blocked, so that handlers run on the application's own threads. Faults
 * stay open: they belong to the instruction that raised them. */
static int worker_start(struct worker *w)
{
    sigset_t blocked, before;
    sigfillset(&blocked);
    sigdelset(&blocked, SIGSEGV);
    sigdelset(&blocked, SIGBUS);
    sigdelset(&blocked, SIGFPE);
    sigdelset(&blocked, SIGILL);
    sigdelset(&blocked, SIGTRAP);
    sigdelset(&blocked, SIGABRT);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    int error = pthread_create(&w->thread, NULL, worker_main, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* Ends the first started workers. */
static void workers_stop(lf_pool *pool, int started)
{
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    atomic_fetch_add_explicit(&pool->news, 1, memory_order_relaxed);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < started; i++)
        pthread_join(pool->workers[i].thread, NULL);
}

static void pool_destroy(lf_pool *pool, int started)
{
    workers_stop(pool, started);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    lf_aligned_free(pool);
}

/* Nothing is left behind on failure. */
static bool locks_init(lf_pool *pool)
{
    if (pthread_mutex_init(&pool->lock, NULL) != 0)
        return false;
    if (pthread_cond_init(&pool->wake, NULL) == 0) {
        if (pthread_cond_init(&pool->done, NULL) == 0)
            return true;
        pthread_cond_destroy(&pool->wake);
    }
    pthread_mutex_destroy(&pool->lock);
    return false;
}

/* All 0, on a cache line. */
static lf_pool *pool_alloc(int workers)
{
    const size_t size = sizeof(lf_pool) + (size_t)workers * sizeof(struct worker);
    lf_pool *pool = lf_aligned_alloc(size);
    return pool ? memset(pool, 0, size) : NULL;
}

lf_status lf_pool_new(int threads, lf_pool **out)
{
    *out = NULL;
    if (threads < 1 || threads > LF_POOL_MAX_THREADS)
        return LF_ERR_ARG;
    if (fork_error != 0)
        return LF_ERR_NOMEM;

    lf_pool *pool = pool_alloc(threads - 1);
    if (!pool)
        return LF_ERR_NOMEM;
    if (!locks_init(pool)) {
        lf_aligned_free(pool);
        return LF_ERR_NOMEM;
    }
    atomic_init(&pool->news, 0);
    atomic_init(&pool->patient, 0);
    pool->generation = atomic_load_explicit(&fork_generation, memory_order_relaxed);
    pool->threads = threads;

    for (int i = 0; i < threads - 1; i++) {
        struct worker *w = &pool->workers[i];
        w->pool = pool;
        w->slot = i + 1;
        atomic_init(&w->handed, &nobodys);
        if (worker_start(w) != 0) {
            pool_destroy(pool, i);
            return LF_ERR_NOMEM;
        }
    }
    *out = pool;
    return LF_OK;
}

lf_status lf_pool_new_loop(int threads, lf_parallel_for loop, void *user, lf_pool **out)
{
    *out = NULL;
    if (threads < 1 || threads > LF_POOL_MAX_THREADS || !loop)
        return LF_ERR_ARG;
    lf_pool *pool = pool_alloc(0);
    if (!pool)
        return LF_ERR_NOMEM;
    pool->threads = threads;
    pool->loop = loop;
    pool->user = user;
    *out = pool;
    return LF_OK;
}

lf_status lf_pool_new_team(int threads, const lf_openmp *team, lf_pool **out)
{
    *out = NULL;
    if (threads < 1 || threads > LF_POOL_MAX_THREADS)
        return LF_ERR_ARG;
    lf_pool *pool = fork_error == 0 ? pool_alloc(0) : NULL;
    if (!pool)
        return LF_ERR_NOMEM;
    pool->generation = atomic_load_explicit(&fork_generation, memory_order_relaxed);
    pool->threads = threads;
    pool->team = *team;
    *out = pool;
    return LF_OK;
}

bool lf_pool_is_forked(void)
{
    return atomic_load_explicit(&fork_generation, memory_order_relaxed) > 0;
}

bool lf_pool_is_loop(const lf_pool *pool)
{
    return pool && pool->loop;
}

void lf_pool_free(lf_pool *pool)
{
    if (!pool)
        return;
    if (pool->loop || pool->team.parallel)
        lf_aligned_free(pool);
    else if (lost_in_fork(pool))
        lf_aligned_free(pool); /* the lock may be held by a thread that is not here, so not even destroyed */
    else
        pool_destroy(pool, pool->threads - 1);
}

int lf_pool_threads(const lf_pool *pool)
{
    return pool ? pool->threads : 1;
}

/* Hands the job to workers that wait for one, to at most so many. Returns how many took it: they are inside. */
static int hand_out(lf_pool *pool, struct job *job, int wanted)
{
    int took = 0;
    atomic_init(&job->inside, wanted);
    for (int i = 0; i < pool->threads - 1 && took < wanted; i++) {
        _Atomic(struct job *) *handed = &pool->workers[i].handed;
        struct job *expected = &waiting;
        if (atomic_load_explicit(handed, memory_order_relaxed) == expected &&
            atomic_compare_exchange_strong_explicit(handed, &expected, job, memory_order_acq_rel,
                                                    memory_order_relaxed))
            took++;
    }
    atomic_fetch_sub(&job->inside, wanted - took);
    return took;
}

/* Takes the job back from workers that have not begun: on a busy machine it can take long until they do. */
static void take_back(lf_pool *pool, struct job *job)
{
    for (int i = 0; i < pool->threads - 1; i++) {
        _Atomic(struct job *) *handed = &pool->workers[i].handed;
        struct job *expected = job;
        if (atomic_load_explicit(handed, memory_order_relaxed) == expected &&
            atomic_compare_exchange_strong_explicit(handed, &expected, &waiting, memory_order_relaxed,
                                                    memory_order_relaxed))
            atomic_fetch_sub(&job->inside, 1);
    }
}

static bool is_left(struct job *job, int spins)
{
    for (int i = 0; i < spins; i++) {
        if (atomic_load_explicit(&job->inside, memory_order_acquire) == 0)
            return true;
        relax();
    }
    return false;
}

/* Queues the job and wakes as many sleepers as are wanted. */
static void enqueue(lf_pool *pool, struct job *job, int wanted)
{
    pthread_mutex_lock(&pool->lock);
    struct job **link = &pool->jobs;
    while (*link)
        link = &(*link)->behind;
    *link = job;
    atomic_fetch_add_explicit(&pool->news, 1, memory_order_relaxed);
    bool all = wanted >= pool->asleep;
    pthread_mutex_unlock(&pool->lock);

    if (all)
        pthread_cond_broadcast(&pool->wake);
    else
        for (; wanted > 0; wanted--)
            pthread_cond_signal(&pool->wake);
}

/* Takes the job out of the queue, so that nobody enters any more. */
static void dequeue(lf_pool *pool, struct job *job)
{
    pthread_mutex_lock(&pool->lock);
    struct job **link = &pool->jobs;
    while (*link != job)
        link = &(*link)->behind;
    *link = job->behind;
    pthread_mutex_unlock(&pool->lock);
}

/* Waits until nobody is inside. */
static void wait_for_workers(lf_pool *pool, struct job *job)
{
    if (is_left(job, BRIEFLY))
        return;
    take_back(pool, job);
    if (is_left(job, SPINS))
        return;
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->patient, 1);
    while (atomic_load(&job->inside) != 0)
        pthread_cond_wait(&pool->done, &pool->lock);
    atomic_fetch_sub(&pool->patient, 1);
    pthread_mutex_unlock(&pool->lock);
}

/* A thread of the team. Surplus ones have nothing to do. */
static void work_in_team(void *arg)
{
    struct job *job = arg;
    const int slot = job->thread_num();
    if (slot <= job->helpers)
        work_on(job, slot);
}

void lf_pool_run(lf_pool *pool, int64_t count, void (*fn)(void *arg, int64_t index, int slot), void *arg)
{
    assert(fn);
    if (!pool || pool->threads == 1 || limit == 1 || count <= 1 || in_job || (!pool->loop && lost_in_fork(pool)) ||
        (pool->team.parallel && pool->team.in_parallel())) {
        run_inline(count, fn, arg);
        return;
    }
    if (pool->loop) {
        pool->loop(pool->user, count, fn, arg);
        return;
    }
    struct job job = {.fn = fn,
                      .arg = arg,
                      .count = count,
                      .helpers = (limit > 0 && limit < pool->threads ? limit : pool->threads) - 1};
    atomic_init(&job.next, 0);
    if (pool->team.parallel) {
        job.thread_num = pool->team.thread_num;
        pool->team.parallel(work_in_team, &job, 0, 0);
        return;
    }
    const int most = count - 1 < job.helpers ? (int)(count - 1) : job.helpers;
    const int wanted = most - hand_out(pool, &job, most);
    if (wanted > 0)
        enqueue(pool, &job, wanted);
    work_on(&job, 0);
    /* Asked again: fn may have forked, and this may be the child. */
    if (lost_in_fork(pool))
        return;
    if (wanted > 0)
        dequeue(pool, &job);
    wait_for_workers(pool, &job);
}

int lf_pool_limit(int threads)
{
    int before = limit;
    limit = threads < 0 ? 0 : threads;
    return before;
}
