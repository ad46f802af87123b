/* SPDX-License-Identifier: Apache-2.0 */
/* A plan made runnable on a GPU. Three lifetimes:
 *   lf_cuda_device   a GPU and its context: the caller's current one, or the first GPU's own
 *   lf_cuda_program  a plan compiled for it, with its weights on the device
 *   lf_cuda_call     the memory one running call needs on the device */
#ifndef LF_CUDA_CUDA_H
#define LF_CUDA_CUDA_H

#include "backend/backend.h"
#include "cuda/choose.h"
#include "cuda/emit.h"
#include "plan/plan.h"
#include "prepare/prepare.h"

enum { LF_CUDA_ALIGNED = 256 }; /* where memory on the device begins, in bytes */

typedef struct lf_cuda_device lf_cuda_device;
typedef struct lf_cuda_program lf_cuda_program;
typedef struct lf_cuda_call lf_cuda_call;

extern const lf_backend lf_cuda_backend;
/* GPUs of the device table, which are not here: programs can be explained and costed, not run. */
extern const lf_backend lf_cuda_costed_backend;

/* Fails: LF_ERR_DEVICE where there is no driver, no GPU, no run-time compiler, or they are too old. */
lf_status lf_cuda_device_open(lf_cuda_device **out, lf_diag *diag);
void lf_cuda_device_close(lf_cuda_device *device);
/* What it is costed as where products are multiplied by these units: see lf_device_like. */
void lf_cuda_device_costs(const lf_cuda_device *device, lf_gpu_unit unit, lf_device *out);

/* Waits for the work on stream. Fails: LF_ERR_DEVICE. */
lf_status lf_cuda_device_wait(const lf_cuda_device *device, void *stream, lf_diag *diag);
/* A copy of bytes on the device, beside them, once the work on stream is done. what: for messages. Fails:
 * LF_ERR_DEVICE, LF_ERR_NOMEM. */
lf_status lf_cuda_device_copy(const lf_cuda_device *device, const void *from, size_t bytes, void *stream,
                              const char *what, void **out, lf_diag *diag);
/* Ends such a copy, once whatever runs on the device is done. */
void lf_cuda_device_drop(const lf_cuda_device *device, void *copy);
/* Brings bytes from an address on the device, once the work on stream is done. Fails: LF_ERR_DEVICE. */
lf_status lf_cuda_device_read(const lf_cuda_device *device, void *to, const void *from, size_t bytes, void *stream,
                              const char *what, lf_diag *diag);

/* The kernels this device is best served with, or those LINFUSE_CUDA names (plain, mma, wgmma). Fails: LF_ERR_ARG where
 * that name is unknown or the device cannot run them, LF_ERR_UNSUPPORTED where they cannot do the precision. */
lf_status lf_cuda_device_target(const lf_cuda_device *device, lf_precision precision, lf_cuda_target *out,
                                lf_diag *diag);

/* How plans are made for kernels whose products these units multiply: the ordinary ones take several weights for what
 * several products multiply, tensor cores two as if they were one. */
lf_plan_options lf_cuda_plans(lf_gpu_unit unit);

/* An architecture that text is emitted for, "sm_80", oldest first, and what multiplies there; NULL past the last. */
const char *lf_cuda_arch(size_t index, lf_gpu_unit *unit);
/* What multiplies on one; false where there is none of that name. */
bool lf_cuda_arch_unit(const char *arch, lf_gpu_unit *out);

/* Borrows device, plan and as_written. as_written: a program for the same inputs that redoes, in the same launch, rows
 * in which a witness is not finite; NULL: none is watched. Rows whose range is too wide for products on tensor cores
 * are done again on the ordinary units, in the same launch. dims: what to compile for at once;
 * NULL: when it is first run. Fails: LF_ERR_NOMEM, LF_ERR_DEVICE, LF_ERR_UNSUPPORTED. */
lf_status lf_cuda_program_new(lf_cuda_device *device, const lf_plan *plan, lf_cuda_target target,
                              const lf_cuda_program *as_written, const int64_t *dims, lf_cuda_program **out,
                              lf_diag *diag);
void lf_cuda_program_free(lf_cuda_program *program);
/* Compiles for these extents where that is still to be done. Thread-safe. Fails: as making it does. */
lf_status lf_cuda_program_compile(lf_cuda_program *program, const int64_t *dims, lf_diag *diag);
/* Gives it its weights, which are copied to the device. there: one per prepared tensor of the plan, addresses on the
 * device of those that lie there and are borrowed instead; NULL for others.
 * Fails: LF_ERR_NOMEM, LF_ERR_DEVICE. */
lf_status lf_cuda_program_weights(lf_cuda_program *program, const lf_prepared *prepared, const void *const *there,
                                  lf_diag *diag);
/* From now on the first run at some extents measures which shape of tiles takes least, unless that is known already,
 * and waits for the device meanwhile. */
void lf_cuda_program_tune(lf_cuda_program *program);
/* The shape for these extents, and what is known about the others. */
lf_tile_choice lf_cuda_program_choice(lf_cuda_program *program, const int64_t *dims);
/* Where a prepared tensor of the plan lies on the device, until it is given weights again; NULL where it is not kept as
 * it is. */
const void *lf_cuda_program_prepared(const lf_cuda_program *program, int32_t tensor);
size_t lf_cuda_program_bytes(const lf_cuda_program *program); /* on the device */
/* Bytes of workspace at these extents. Fails: LF_ERR_DATA where that overflows; as compiling does where that is still
 * to be done. */
lf_status lf_cuda_workspace(lf_cuda_program *program, const int64_t *dims, int64_t *bytes, lf_diag *diag);

/* What a call runs. */
typedef struct lf_cuda_job {
    lf_cuda_program *program;
    const int64_t *dims;
    int64_t batch;                /* rows that can be flagged */
    const void *const *input;     /* by port: addresses on the device, or of host memory */
    void *const *output;
    /* inputs are copied to the device, outputs back, and the run is over when they are there */
    bool on_host;
    void *stream;                 /* a CUstream; NULL: the default one */
    void *lent;                   /* workspace on the device, anything in it; NULL: the call's own */
    size_t lent_bytes;
} lf_cuda_job;

lf_status lf_cuda_call_new(lf_cuda_device *device, lf_cuda_call **out, lf_diag *diag);
void lf_cuda_call_free(lf_cuda_call *call);
/* Runs it: launches on the stream and comes back. After the first run at some extents nothing is allocated, and where
 * workspace is lent nothing but flags is allocated before. A graph that a run was captured into may be launched as long
 * as the call lives: what it has the addresses of stays.
 * Fails: LF_ERR_NOMEM with the bytes asked for, LF_ERR_ARG when what is lent is too little, LF_ERR_DATA when extents
 * are too large, LF_ERR_DEVICE. */
lf_status lf_cuda_call_run(lf_cuda_call *call, const lf_cuda_job *job, lf_diag *diag);
/* Rows the last run redid as written; waits for the stream. */
lf_status lf_cuda_call_redone(lf_cuda_call *call, int64_t *rows, lf_diag *diag);
/* Seconds of `runs` runs by the device's clock, L2 flushed before each; inputs and outputs stay on the device. A first
 * run must be over. */
lf_status lf_cuda_call_time(lf_cuda_call *call, const lf_cuda_job *job, size_t runs, double *seconds, lf_diag *diag);
size_t lf_cuda_call_bytes(const lf_cuda_call *call);

#endif
