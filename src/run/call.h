/* SPDX-License-Identifier: Apache-2.0 */
/* One thread's use of a program. Inside the run module. */
#ifndef LF_RUN_CALL_H
#define LF_RUN_CALL_H

#include "run/handles.h"

enum {
    LF_CALL_SIZES = 8,  /* how many different sets of extents a call remembers how to run */
    LF_REDO_ROWS = 64   /* rows redone at a time: W is then read once for all of them */
};

/* A plan of the program at known extents. */
typedef struct lf_sized {
    const lf_plan *plan;          /* NULL: free */
    int64_t dims[LF_MAX_SYMBOLS];
    lf_cpu_instance *instance;
    uint64_t used;                /* when it was last wanted */
} lf_sized;

/* What redoing rows needs. Rows are gathered from inputs, run as written, scattered to outputs. */
typedef struct lf_redo {
    float **input, **output;      /* one per port; owned; NULL where the port carries no rows */
    const float **feed;           /* one per input: what a block is run on, gathered or the caller's own */
    size_t *input_size, *output_size; /* floats they hold */
} lf_redo;

struct lf_call {
    lf_program *program;          /* borrowed */
    lf_diag diag;
    lf_arena arena;
    const float **input;          /* one per input, borrowed; with `bound` */
    bool *bound;
    int64_t (*extent)[LF_MAX_RANK];
    float **output;               /* one per output, borrowed */
    /* What is found out about bindings holds until they change: `learnt` until extents do, `placed` until memory does
     * too. */
    bool learnt;                  /* the next four are of the inputs bound now, and fit the model */
    int64_t dims[LF_MAX_SYMBOLS];
    int64_t batch;                /* rows */
    size_t *input_count, *output_count; /* elements of each port */
    bool placed;                  /* outputs are bound, and overlap nothing */
    lf_sized sized[LF_CALL_SIZES];
    uint64_t clock;
    void *workspace;
    size_t workspace_size;
    unsigned char *flagged;       /* one per row of the batch */
    size_t flagged_size;
    lf_redo redo;
    int64_t rows_redone;
    lf_cuda_call *cuda;           /* on a GPU; owned */
    bool on_device;               /* inputs and outputs are the device's, and run does not wait */
    void *stream;
    void *lent;                   /* workspace for runs on a GPU; NULL: the call's own */
    size_t lent_bytes;
};

/* The plan at these extents, made at most once while remembered, with workspace to match. Message in the call. */
lf_status lf_call_sized(lf_call *call, const lf_plan *plan, const int64_t *dims, const lf_cpu_instance **out);

/* Makes room for rows of this call's extents to be redone. */
lf_status lf_redo_reserve(lf_call *call);
/* Redoes the flagged rows as written. Cannot fail once room is reserved. */
void lf_redo_rows(lf_call *call);
void lf_redo_free(lf_call *call);

/* lf_call_run on a GPU, extents learnt and outputs checked. */
lf_status lf_call_run_cuda(lf_call *call);

/* Learns the named extents from the inputs, all of which must be bound and agree, and what follows from them. */
lf_status lf_call_learn(lf_call *call);
/* Learns extents and checks bindings: what every run begins with. */
lf_status lf_call_ready(lf_call *call);

#endif
