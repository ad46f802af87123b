/* SPDX-License-Identifier: Apache-2.0 */
/* An OpenMP runtime in the test's own process, found as any other is. New threads for each team, which ThreadSanitizer
 * understands, and more of them than there are cores, if a test wants that. */
#ifndef LF_TESTS_OPENMP_FIXTURE_H
#define LF_TESTS_OPENMP_FIXTURE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { MOST_IN_TEAM = 80 };

static int team_size = 1;                       /* what omp_set_num_threads sets */
static atomic_int teams;                        /* how often a team has worked */
static _Thread_local int number_in_team;
static _Thread_local bool in_team;

typedef struct team_member {
    void (*fn)(void *arg);
    void *arg;
    int number;
} team_member;

static void *team_member_main(void *arg)
{
    const team_member *m = arg;
    number_in_team = m->number;
    in_team = true;
    m->fn(m->arg);
    return NULL;
}

#define EXPORTED __attribute__((visibility("default")))
EXPORTED void GOMP_parallel(void (*fn)(void *arg), void *arg, unsigned threads, unsigned flags);
EXPORTED int omp_get_thread_num(void);
EXPORTED int omp_get_max_threads(void);
EXPORTED int omp_in_parallel(void);

/* The calling thread comes last, when others may have left already. */
void GOMP_parallel(void (*fn)(void *arg), void *arg, unsigned threads, unsigned flags)
{
    pthread_t thread[MOST_IN_TEAM];
    team_member member[MOST_IN_TEAM];
    const int size = in_team ? 1 : threads > 0 ? (int)threads : team_size;
    (void)flags;
    atomic_fetch_add(&teams, 1);
    for (int i = 1; i < size; i++) {
        member[i] = (team_member){fn, arg, i};
        if (pthread_create(&thread[i], NULL, team_member_main, &member[i]) != 0)
            abort();
    }
    const int number = number_in_team;
    const bool before = in_team;
    number_in_team = 0;
    in_team = true;
    fn(arg);
    number_in_team = number;
    in_team = before;
    for (int i = 1; i < size; i++)
        pthread_join(thread[i], NULL);
}

int omp_get_thread_num(void)
{
    return number_in_team;
}

int omp_get_max_threads(void)
{
    return team_size;
}

int omp_in_parallel(void)
{
    return in_team;
}

#endif
