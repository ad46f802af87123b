/* SPDX-License-Identifier: Apache-2.0 */
/* What the device's files share. Inside the cuda room. */
#ifndef LF_CUDA_DEVICE_H
#define LF_CUDA_DEVICE_H

#include "cuda/cuda.h"
#include "cuda/driver.h"
#include "cuda/emit.h"

struct lf_cuda_device {
    const lf_cuda_driver *driver;
    void *context;
    int ordinal;
    bool primary;         /* we hold a reference of the GPU's own context */
    int major, minor;     /* compute capability */
    int units;            /* multiprocessors */
    int shared_bytes;     /* of shared memory a block can have */
    size_t cache_bytes;   /* L2 */
    char name[128];
};

enum { LF_CUDA_MOST_WORDS = 500 }; /* of Args: CUDA's limit is 4 KB */

/* Empty arrays of Args have one word. */
static inline size_t lf_at_least_one(int32_t n)
{
    return n > 0 ? (size_t)n : 1;
}

struct lf_cuda_program {
    lf_cuda_target target;
    lf_cuda_device *device;  /* borrowed */
    const lf_plan *plan;     /* borrowed */
    lf_cuda_source source;   /* its text is dropped once compiled */
    void *module;
    void **function;         /* one per launch */
    void **alone;            /* one per launch: TENSOR's kernel without clusters */
    int *resident;           /* one per launch: TENSOR's clusters that fit at once */
    lf_cuda_program *full;   /* the same plan on the ordinary units, for rows and weights of too wide a range; NULL: not needed */
    bool borrows;            /* this is such a program: prepared and narrow are the other's */
    bool wide_weights;       /* a weight has too wide a range: all runs are full's */
    lf_cuda_ptr *lines;      /* one per group: the weight of a TENSOR launch, and what undoes its scales; owned; 0 where there is none */
    lf_cuda_ptr *scale;
    lf_cuda_ptr *prepared;   /* one per prepared tensor, owned */
    lf_cuda_ptr *narrow;     /* one per group, owned; 0 where there is none */
    size_t bytes;
    size_t words;            /* of Args */
};

/* Makes the device's context current for what follows; undone by leave. */
lf_status lf_cuda_enter(const lf_cuda_device *d, lf_diag *diag);
void lf_cuda_leave(const lf_cuda_device *d);
/* 0 is fine; anything else becomes a message about `what`. */
lf_status lf_cuda_status(const lf_cuda_device *d, int error, const char *what, lf_diag *diag);
/* Inside enter and leave. bytes 0 gives address 0. Fails: LF_ERR_NOMEM. */
lf_status lf_cuda_alloc(const lf_cuda_device *d, size_t bytes, const char *what, lf_cuda_ptr *out, lf_diag *diag);

/* The rows that are flagged, and what is counted about them, on the device. */
typedef struct lf_cuda_flags {
    lf_cuda_ptr any, done, redone, rows; /* struct Redo's any, done, redone and flags */
} lf_cuda_flags;

/* One pass of a program over its launches. */
typedef struct lf_cuda_pass {
    const int64_t *dims;
    int64_t batch;
    const lf_cuda_ptr *input, *output; /* by port */
    lf_cuda_ptr workspace;
    const lf_cuda_flags *watched;      /* set where a witness is not finite; NULL: nothing is watched */
    const lf_cuda_flags *wide;         /* set where a row's range is too wide; NULL: nobody asks */
    const lf_cuda_flags *wanted;       /* only these rows are done, and the flags are set back; NULL: all rows */
    void *stream;
} lf_cuda_pass;

/* How many multiply-and-carry-on blocks a launch on tensor cores has at once, from its functions. Inside enter and leave. */
lf_status lf_cuda_tensor_ready(lf_cuda_program *program, int32_t launch, lf_diag *diag);
/* Brings the weights of all TENSOR launches into lines; prepared tensors are there. Inside enter and leave. */
lf_status lf_cuda_tensor_weights(lf_cuda_program *program, lf_diag *diag);
/* Launches one. x_lines: x as its split left it, [rows][lines]. args: struct Args. */
lf_status lf_cuda_tensor_launch(const lf_cuda_program *program, int32_t launch, int64_t rows, lf_cuda_ptr x_lines, void *args, void *stream, lf_diag *diag);

/* The same two for tensor cores as Ampere has them; mma.c. */
lf_status lf_cuda_mma_ready(lf_cuda_program *program, int32_t launch, lf_diag *diag);
lf_status lf_cuda_mma_launch(const lf_cuda_program *program, int32_t launch, int64_t rows, void *args, void *stream, lf_diag *diag);

/* Inside enter and leave. Launches and does not wait. */
lf_status lf_cuda_launch_all(const lf_cuda_program *program, const lf_cuda_pass *pass, lf_diag *diag);

#endif
