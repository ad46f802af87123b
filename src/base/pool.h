/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that share the indices of a loop. */
#ifndef LF_BASE_POOL_H
#define LF_BASE_POOL_H

#include <linfuse.h>

#include <stdbool.h>
#include <stdint.h>

#include "base/openmp.h"

/* More than any machine has; asking for more is taken for a mistake. */
enum { LF_POOL_MAX_THREADS = 4096 };

typedef struct lf_pool lf_pool;

/* A pool of threads threads, the caller of lf_pool_run counted as one of them: threads - 1 are started.
 * Leaves: *out the pool, owned by the caller; NULL on failure, with no thread left behind.
 * Fails:  LF_ERR_ARG unless 1 <= threads <= LF_POOL_MAX_THREADS; LF_ERR_NOMEM for memory or for a thread. */
lf_status lf_pool_new(int threads, lf_pool **out);

/* A pool that hands its jobs to a loop of somebody else's, and has no threads of its own. threads: how many slots the
 * loop uses. What the loop must do is said in linfuse.h. Borrows user.
 * Fails:  as above. */
lf_status lf_pool_new_loop(int threads, lf_parallel_for loop, void *user, lf_pool **out);
/* Whether it is such a pool; false for NULL. */
bool lf_pool_is_loop(const lf_pool *pool);

/* A pool whose jobs the team of the calling thread works on, and which has no threads of its own: as many of the team
 * as there are threads of the pool, the others do nothing. Inside a parallel region jobs run inline.
 * Fails:  as above. */
lf_status lf_pool_new_team(int threads, const lf_openmp *team, lf_pool **out);
/* Whether this process was forked by another that had the library loaded. GNU's runtime has lost its threads in such a
 * process, and waits for them for ever: it may have no team. */
bool lf_pool_is_forked(void);

/* Takes pool, or NULL. Needs no lf_pool_run under way. In a forked child it frees the memory and joins nobody. */
void lf_pool_free(lf_pool *pool);

/* As given to lf_pool_new; 1 for NULL. What per-slot scratch is sized by. */
int lf_pool_threads(const lf_pool *pool);

/* Calls fn(arg, index, slot) once for each index in [0, count), and returns when all calls have; what they wrote is
 * then visible to the caller. Indices are handed out in order, one at a time, to whoever is free; or as somebody else's
 * loop likes.
 *
 * slot is in [0, lf_pool_threads(pool)), and no two calls of one job run in the same slot at the same time; the calling
 * thread is slot 0 (unless a loop of somebody else's numbers it otherwise). Two jobs at once do share slots: scratch
 * belongs to the job, not to the pool.
 *
 * Any number of threads may call this on one pool at the same time. Each works on its own job, so each gets on even
 * when every worker is busy elsewhere. Allocates nothing.
 *
 * Runs inline, all in slot 0, where pool is NULL or has one thread, where count is 1, inside another job's fn, and in
 * a process forked after lf_pool_new or lf_pool_new_team, which has inherited no threads. If fn itself forks, the
 * child's copy of that job ends without the indices that other threads had taken; where a team works on it, fn may not
 * fork. */
void lf_pool_run(lf_pool *pool, int64_t count, void (*fn)(void *arg, int64_t index, int slot), void *arg);

/* From here on jobs of the calling thread are worked on by at most so many threads, itself included; 0 or less: by all.
 * Returns what held before, for the caller to put back. What a loop of somebody else's does is up to it, unless the
 * limit is 1: then it is not called. */
int lf_pool_limit(int threads);

#endif
