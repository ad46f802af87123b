/* SPDX-License-Identifier: Apache-2.0 */
/* The OpenMP runtime of the process, where it has loaded one. linfuse is not linked with any. */
#ifndef LF_BASE_OPENMP_H
#define LF_BASE_OPENMP_H

#include <stdbool.h>

/* By the names of GNU's runtime, which LLVM's and Intel's have as well. */
typedef struct lf_openmp {
    /* GOMP_parallel: calls fn(arg) once in each thread of the calling thread's team; returns when all are done.
     * threads: how many; 0: as many as the team has, so that none is started or ended. flags: 0 */
    void (*parallel)(void (*fn)(void *arg), void *arg, unsigned threads, unsigned flags);
    int (*thread_num)(void);  /* omp_get_thread_num: within the team; the calling thread has 0 */
    int (*max_threads)(void); /* omp_get_max_threads: of a team that the calling thread would have now */
    int (*in_parallel)(void); /* omp_in_parallel */
} lf_openmp;

/* Finds the one that calls from other libraries lead to. False: there is none. */
bool lf_openmp_find(lf_openmp *out);

#endif
