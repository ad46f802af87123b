/* SPDX-License-Identifier: Apache-2.0 */
/* Products on tensor cores as Ampere has them, from the host: how much shared memory they take, how many blocks there are. */
#include "cuda/device.h"

enum { MAX_DYNAMIC_SHARED = 8 }; /* CUfunction_attribute */

/* Shape in text/mma.cu: tiles of 128 rows by `columns`, so many lines of both operands in `stages`. */
typedef struct shape {
    unsigned columns, stages;
} shape;

static shape shape_on(const lf_cuda_device *d, lf_cuda_mode mode)
{
    enum { ROOMY = 160 << 10 }; /* devices of 8.6, 8.9 and 12.0 have 99 KB, all others 163 KB or more */
    if (d->shared_bytes < ROOMY)
        return (shape){128, 3};
    return mode == LF_CUDA_FP32 ? (shape){128, 4} : (shape){256, 3};
}

static unsigned shared_bytes(shape s)
{
    return LF_CUDA_LINE + s.stages * (LF_CUDA_TENSOR_ROWS + s.columns) * LF_CUDA_LINE;
}

lf_status lf_cuda_mma_ready(lf_cuda_program *p, int32_t index, lf_diag *diag)
{
    const int bytes = (int)shared_bytes(shape_on(p->device, p->source.launch[index].mode));
    return lf_cuda_status(p->device, p->device->driver->function_set(p->function[index], MAX_DYNAMIC_SHARED, bytes), "asking what a kernel takes", diag);
}

lf_status lf_cuda_mma_launch(const lf_cuda_program *p, int32_t index, int64_t rows, void *args, void *stream, lf_diag *diag)
{
    const lf_cuda_launch *l = &p->source.launch[index];
    const shape s = shape_on(p->device, l->mode);
    const int64_t tiles = (rows + LF_CUDA_TENSOR_ROWS - 1) / LF_CUDA_TENSOR_ROWS * ((l->width.coef + s.columns - 1) / s.columns);
    const int64_t fit = p->device->units, rounds = (tiles + fit - 1) / fit;
    lf_cuda_ptr w = p->lines[l->group];
    void *params[] = {&w, args};
    if (tiles > INT32_MAX)
        return lf_fail(diag, LF_ERR_DATA, "the extents are too large: a product of %lld tiles", (long long)tiles);
    int error = p->device->driver->launch(p->function[index], (unsigned)((tiles + rounds - 1) / rounds), 1, 1, LF_CUDA_THREADS, 1, 1, shared_bytes(s), stream, params,
                                          NULL);
    return lf_cuda_status(p->device, error, "launching a product", diag);
}
