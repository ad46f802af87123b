/* SPDX-License-Identifier: Apache-2.0 */
/* One thread's use of a program. Inside the run module. */
#ifndef LF_RUN_CALL_H
#define LF_RUN_CALL_H

#include "run/handles.h"

/* What is bound to a port, beside its address. */
typedef struct lf_binding {
    bool bound;
    lf_memory memory;
    int64_t extent[LF_MAX_RANK];
} lf_binding;

struct lf_call {
    lf_program *program;          /* borrowed */
    lf_diag diag;
    lf_arena arena;
    const void **input;           /* one per input, borrowed */
    void **output;                /* one per output, borrowed */
    lf_binding *in, *out;         /* likewise */
    const int64_t **in_extents;   /* one per input: in[i].extent */
    /* What is found out about bindings holds until they change: `learnt` until extents of inputs do, `fits` until
     * those of outputs or the sort of memory do, `placed` until any address does. */
    bool learnt;                  /* the next four, and job.batch, are of the inputs bound now, and fit the model */
    int64_t dims[LF_MAX_SYMBOLS];
    size_t *input_count, *output_count; /* elements of each port */
    int64_t (*output_extent)[LF_MAX_RANK]; /* as the inputs ask for */
    bool fits;                    /* outputs have room for these, and everything is in `memory` */
    lf_memory memory;
    bool placed;                  /* outputs are bound, and overlap nothing */
    void *state;                  /* the backend's; owned */
    lf_backend_job job;           /* what the next run is: points to the above; its batch is learnt with them */
};

extern const char lf_not_prepared[];      /* a message */
extern const lf_run_options lf_plain_run; /* what NULL stands for */

/* Learns the named extents from the inputs, all of which must be bound and agree, and what follows from them. */
lf_status lf_call_learn(lf_call *call);
/* Learns extents, checks bindings and options, and fills in the job: what every run begins with. */
lf_status lf_call_ready(lf_call *call, const lf_run_options *options);

#endif
