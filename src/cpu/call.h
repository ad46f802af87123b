/* SPDX-License-Identifier: Apache-2.0 */
/* A program on the CPU, and one thread's runs of it. Inside the cpu module. */
#ifndef LF_CPU_CALL_H
#define LF_CPU_CALL_H

#include "cpu/cpu.h"

enum {
    LF_CALL_SIZES = 8,  /* how many different sets of extents a call remembers how to run */
    LF_REDO_ROWS = 64   /* rows redone at a time: W is then read once for all of them */
};

typedef struct lf_cpu_program {
    const lf_kern *kern;
    lf_backend_task task;
    lf_cpu_weights *fused, *exact; /* owned; NULL: not run */
} lf_cpu_program;

/* A plan of the program at known extents. */
typedef struct lf_sized {
    const lf_plan *plan;          /* NULL: free */
    int64_t dims[LF_MAX_SYMBOLS];
    lf_cpu_instance *instance;
    uint64_t used;                /* when it was last wanted */
} lf_sized;

/* What redoing rows needs. Rows are gathered from inputs, run as written, scattered to outputs. */
typedef struct lf_redo {
    void **input, **output;       /* one per port; owned; NULL where the port carries no rows */
    const void **feed;            /* one per input: what a block is run on, gathered or the caller's own */
    size_t *input_size, *output_size; /* bytes they hold */
} lf_redo;

typedef struct lf_cpu_call {
    const lf_cpu_program *program; /* borrowed */
    lf_arena arena;
    lf_sized sized[LF_CALL_SIZES];
    uint64_t clock;
    void *workspace;
    size_t workspace_size;
    unsigned char *flagged;       /* one per row of the batch */
    size_t flagged_size;
    lf_redo redo;
    int64_t rows_redone;          /* by the last run */
} lf_cpu_call;

lf_status lf_cpu_call_new(void *program, void **out);
void lf_cpu_call_free(void *call);
lf_status lf_cpu_call_run(void *call, const lf_backend_job *job, lf_diag *diag);
int64_t lf_cpu_call_redone(void *call);
size_t lf_cpu_call_bytes(const void *call);

/* The plan at these extents, made at most once while remembered, with workspace to match. */
lf_status lf_call_sized(lf_cpu_call *call, const lf_plan *plan, const int64_t *dims, const lf_cpu_instance **out,
                        lf_diag *diag);

/* ---- redo.c ---- */

lf_status lf_redo_new(lf_cpu_call *call);
void lf_redo_free(lf_cpu_call *call);
size_t lf_redo_bytes(const lf_cpu_call *call);
/* Makes room for rows of this job's extents to be redone. */
lf_status lf_redo_reserve(lf_cpu_call *call, const lf_backend_job *job, lf_diag *diag);
/* Redoes the flagged rows as written. Cannot fail once room is reserved. */
void lf_redo_rows(lf_cpu_call *call, const lf_backend_job *job);

#endif
