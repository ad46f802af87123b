/* SPDX-License-Identifier: Apache-2.0 */
/* What run/ needs of a device: one struct of functions, which cpu/ and cuda/ each have one of. Three lifetimes, each a
 * pointer that only the backend looks into:
 *   device   opened when a context first wants it, closed with the context
 *   program  plans made executable, with their weights
 *   call     what one thread's runs of a program need
 * Calls of a program run in several threads at once; everything else happens in one at a time. */
#ifndef LF_BACKEND_BACKEND_H
#define LF_BACKEND_BACKEND_H

#include "base/pool.h"
#include "plan/cost.h"
#include "plan/gpu.h"
#include "plan/plan.h"
#include "prepare/prepare.h"

/* How the rows of the batch run through the model; see lf_graph_rows. */
typedef struct lf_batch {
    bool independent;
    /* the named extent that counts rows, -1 when a number does or the name stands elsewhere too */
    int symbol;
    lf_extent rows;
    bool *input_rows;           /* one per input: does it carry rows? */
} lf_batch;

/* What is compiled. All that it points to is borrowed, and outlives the program. */
typedef struct lf_backend_task {
    lf_pool *pool;              /* of the context */
    const char *device;         /* as the options name it */
    lf_plan *fused;             /* of the model rewritten as the options allow */
    lf_plan *exact;             /* of the model rewritten by exact rules alone; NULL: fused is that */
    /* fused watches for rows (lf_phase.watch) that are then to be run by exact, which is there */
    bool guarded;
    lf_batch batch;
    lf_precision precision;     /* how products take their operands */
    bool tune;                  /* measure what there is to choose from */
    /* extents of the first call, as far as they are known, one per symbol: what it needs is compiled with the program;
     * NULL: not until it is wanted */
    const int64_t *first;
} lf_backend_task;

/* What a program is given before it runs, and whenever parameters changed: fused alone, both where the task is guarded,
 * or exact alone: then it runs instead of fused, whose laws do not hold for these weights. */
typedef struct lf_backend_weights {
    lf_prepared *fused, *exact; /* NULL: not run; taken, on failure too */
    /* one per parameter: where its values lie on the device, as they were given; NULL where they do not. A plan's
     * tensor that is such a parameter may be in host memory, too, or only here. */
    const void *const *device;
} lf_backend_weights;

/* What a run reads and writes. */
typedef struct lf_backend_job {
    const int64_t *dims;        /* LF_MAX_SYMBOLS of them */
    int64_t batch;              /* rows */
    const void *const *input;   /* by port, row-major: addresses on the device, or of host memory */
    void *const *output;
    const size_t *input_count, *output_count; /* elements of each port */
    /* For devices with memory of their own: the arrays lie there, and the run is over when the stream says so.
     * Otherwise they are host memory, and it is over when it returns. */
    bool on_device;
    void *stream;
    void *workspace;            /* on the device; NULL: the call's own */
    size_t workspace_bytes;
} lf_backend_job;

/* For devices whose memory is not the host's. stream: what is under way on it is waited for; NULL: the default one.
 * what: names the copy in messages. All fail with LF_ERR_DEVICE, copy with LF_ERR_NOMEM as well. */
typedef struct lf_backend_memory {
    size_t alignment;           /* where kernels have parameters begin, in bytes */
    lf_status (*wait)(void *device, void *stream, lf_diag *diag);
    /* A copy beside it on the device, and its end. */
    lf_status (*copy)(void *device, const void *from, size_t bytes, void *stream, const char *what, void **out,
                      lf_diag *diag);
    void (*drop)(void *device, void *copy);
    /* From the device to host memory. */
    lf_status (*read)(void *device, void *to, const void *from, size_t bytes, void *stream, const char *what,
                      lf_diag *diag);
    /* Do kernels read weights as they are given, so that a copy of them on the device is not a second one? */
    bool (*reads_as_given)(const void *program);
} lf_backend_memory;

typedef struct lf_backend {
    const char *name;                /* the option's word; NULL: serves devices that no other backend does */
    bool tunes;                      /* has something to measure and choose from */
    const lf_backend_memory *memory; /* NULL: works in host memory */

    /* Both NULL: there is nothing to open, and device is NULL everywhere. close and call_free take NULL. */
    lf_status (*open)(void **device, lf_diag *diag);
    void (*close)(void *device);
    /* How plans are made for it, whether they fuse or not. NULL: in no special way. */
    lf_plan_options (*plans)(void *device);
    /* Can products take their operands so? Fails: LF_ERR_UNSUPPORTED; LF_ERR_ARG for what the environment asks for. */
    lf_status (*check_precision)(void *device, lf_precision precision, lf_diag *diag);
    /* What it is costed as. name: as the options name it. Fails: LF_ERR_ARG where it is not known. */
    lf_status (*describe)(void *device, const char *name, lf_pool *pool, lf_device *out, lf_diag *diag);

    lf_status (*compile)(void *device, const lf_backend_task *task, void **program, lf_diag *diag);
    void (*program_free)(void *program);
    /* Compiles what a run at these extents needs, while other programs are compiled or made. NULL: all is there. */
    lf_status (*compile_for)(void *program, const int64_t *dims, lf_diag *diag);
    lf_status (*prepare)(void *program, const lf_backend_weights *weights, lf_diag *diag);
    void (*unprepare)(void *program); /* forgets them: what they were made of is about to go */
    size_t (*program_bytes)(const void *program); /* of weights */
    /* What a run needs beside inputs and outputs. Fails: LF_ERR_DATA where it cannot be counted. */
    lf_status (*workspace)(void *program, const int64_t *dims, int64_t *bytes, lf_diag *diag);
    /* Which tiles products are made in; false where there is no choice. NULL: there never is. */
    bool (*choose)(void *program, const int64_t *dims, lf_tile_choice *out);

    /* NULL, with all that follows: programs can be explained but not run. Fails: LF_ERR_NOMEM. */
    lf_status (*call_new)(void *program, void **call);
    void (*call_free)(void *call);
    /* After the first run at some extents, a run at them allocates nothing. */
    lf_status (*run)(void *call, const lf_backend_job *job, lf_diag *diag);
    /* Seconds of so many runs by the device's clock, after a first one; NULL: the device has none. */
    lf_status (*time)(void *call, const lf_backend_job *job, size_t runs, double *seconds, lf_diag *diag);
    int64_t (*rows_redone)(void *call); /* by exact, in the last run */
    size_t (*call_bytes)(const void *call);
} lf_backend;

#endif
