/* SPDX-License-Identifier: Apache-2.0 */
/* One thread's use of a program. Inside the run module. */
#ifndef LF_RUN_CALL_H
#define LF_RUN_CALL_H

#include "run/handles.h"

struct lf_call {
    lf_program *program;          /* borrowed */
    lf_diag diag;
    lf_arena arena;
    const void **input;           /* one per input, borrowed; with `bound` */
    bool *bound;
    int64_t (*extent)[LF_MAX_RANK];
    void **output;                /* one per output, borrowed */
    /* What is found out about bindings holds until they change: `learnt` until extents do, `placed` until memory does
     * too. */
    bool learnt;                  /* the next three, and job.batch, are of the inputs bound now, and fit the model */
    int64_t dims[LF_MAX_SYMBOLS];
    size_t *input_count, *output_count; /* elements of each port */
    bool placed;                  /* outputs are bound, and overlap nothing */
    void *state;                  /* the backend's; owned */
    lf_backend_job job;           /* what the next run is: points to the above; its batch is learnt with them */
};

/* Learns the named extents from the inputs, all of which must be bound and agree, and what follows from them. */
lf_status lf_call_learn(lf_call *call);
/* Learns extents and checks bindings: what every run begins with. */
lf_status lf_call_ready(lf_call *call);

#endif
