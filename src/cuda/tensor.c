/* SPDX-License-Identifier: Apache-2.0 */
/* Products on tensor cores, from the host: maps of their operands, weights brought into lines, how many blocks there are. */
#include <stdio.h>

#include "cuda/device.h"

enum { /* of cuda.h */
    TYPE_FLOAT16 = 6,
    TYPE_BFLOAT16 = 9,
    TYPE_TFLOAT32 = 11,
    SWIZZLE_128 = 3,
    PROMOTE_256 = 3,
    MAX_DYNAMIC_SHARED = 8,  /* CUfunction_attribute */
    CLUSTER_DIMENSION = 4    /* CUlaunchAttributeID */
};
enum { SLOTS = 32 * 256 * 4, SCALE_ROOM = 8 }; /* as in text/wgmma.cu; floats past the last scale that a pair may read */

/* Pairs: four stages, and sums in shared memory. Alone: six stages. */
static unsigned shared_bytes(lf_cuda_mode mode, bool alone)
{
    const unsigned stages = alone ? 6 : 4, columns = alone ? LF_CUDA_ALONE_COLUMNS : LF_CUDA_TENSOR_COLUMNS;
    return 1024 + stages * (LF_CUDA_TENSOR_ROWS + columns) * LF_CUDA_LINE + (mode == LF_CUDA_FP32 && !alone ? SLOTS : 0) + 2 * stages * 8;
}

lf_status lf_cuda_tensor_ready(lf_cuda_program *p, int32_t index, lf_diag *diag)
{
    if (p->target.unit == LF_CUDA_MMA)
        return lf_cuda_mma_ready(p, index, diag);
    const lf_cuda_driver *driver = p->device->driver;
    const lf_cuda_launch *l = &p->source.launch[index];
    const unsigned shared = shared_bytes(l->mode, false);
    lf_cuda_attribute cluster = {.id = CLUSTER_DIMENSION, .value = {2, 1, 1}};
    lf_cuda_config config = {2, 1, 1, LF_CUDA_TENSOR_THREADS, 1, 1, shared, NULL, &cluster, 1};
    char name[48];
    snprintf(name, sizeof name, "%s_alone", l->name);
    int error = driver->function_get(&p->alone[index], p->module, name);
    error = error ? error : driver->function_set(p->function[index], MAX_DYNAMIC_SHARED, (int)shared);
    error = error ? error : driver->function_set(p->alone[index], MAX_DYNAMIC_SHARED, (int)shared_bytes(l->mode, true));
    error = error ? error : driver->clusters(&p->resident[index], p->function[index], &config);
    if (!error && p->resident[index] < 1)
        return lf_fail(diag, LF_ERR_DEVICE, "device cuda: %s has no room for a cluster of two blocks", p->device->name);
    return lf_cuda_status(p->device, error, "asking what a kernel takes", diag);
}

/* ---- weights ---- */

static lf_status split_weight(lf_cuda_program *p, int32_t index, lf_cuda_ptr wide, lf_diag *diag)
{
    const lf_cuda_driver *driver = p->device->driver;
    const lf_cuda_launch *l = &p->source.launch[index];
    const lf_product *product = &p->plan->group[l->group].product;
    int64_t rows = product->n.coef, row_step = product->w_is_kn ? 1 : product->k.coef, step = product->w_is_kn ? product->n.coef : 1;
    const size_t bytes = (size_t)(rows * l->lines) * LF_CUDA_LINE, scales = (size_t)(rows + SCALE_ROOM) * sizeof(float);
    void *function;
    char name[48];
    snprintf(name, sizeof name, "g%d_split_weight", (int)l->group);
    lf_status status = lf_cuda_alloc(p->device, bytes, "the prepared weights", &p->lines[l->group], diag);
    if (status == LF_OK)
        status = lf_cuda_alloc(p->device, scales, "the prepared weights", &p->scale[l->group], diag);
    if (status != LF_OK)
        return status;
    p->bytes += bytes + scales;
    lf_cuda_ptr *from = &p->prepared[p->plan->where[product->weight]];
    void *params[] = {from, &row_step, &step, &rows, &p->lines[l->group], &p->scale[l->group], &wide};
    int error = driver->function_get(&function, p->module, name);
    error = error ? error : driver->set_bytes(p->scale[l->group], 0, scales, NULL);
    error = error ? error : driver->launch(function, (unsigned)(rows < 4096 ? rows : 4096), 1, 1, LF_CUDA_THREADS, 1, 1, 0, NULL, params, NULL);
    return lf_cuda_status(p->device, error, "preparing weights", diag);
}

lf_status lf_cuda_tensor_weights(lf_cuda_program *p, lf_diag *diag)
{
    const lf_cuda_driver *driver = p->device->driver;
    lf_cuda_ptr wide = 0;
    unsigned found = 0;
    bool any = false;
    lf_status status = LF_OK;
    p->wide_weights = false;
    for (int32_t i = 0; i < p->source.launches; i++)
        any = any || p->source.launch[i].work == LF_CUDA_TENSOR;
    if (!any)
        return LF_OK;
    status = lf_cuda_alloc(p->device, sizeof found, "preparing weights", &wide, diag);
    if (status == LF_OK)
        status = lf_cuda_status(p->device, driver->set_bytes(wide, 0, sizeof found, NULL), "preparing weights", diag);
    for (int32_t i = 0; i < p->source.launches && status == LF_OK; i++)
        if (p->source.launch[i].work == LF_CUDA_TENSOR)
            status = split_weight(p, i, wide, diag);
    if (status == LF_OK)
        status = lf_cuda_status(p->device, driver->to_host(&found, wide, sizeof found, NULL), "preparing weights", diag);
    if (status == LF_OK)
        status = lf_cuda_status(p->device, driver->stream_wait(NULL), "preparing weights", diag);
    driver->free(wide);
    p->wide_weights = found != 0;
    return status;
}

/* ---- launching ---- */

/* [rows] of lines, in boxes of one line of box_rows rows. */
static int encode(const lf_cuda_program *p, void *map, lf_cuda_mode mode, lf_cuda_ptr at, int64_t rows, int64_t lines, int box_rows)
{
    const int type = mode == LF_CUDA_TF32 ? TYPE_TFLOAT32 : mode == LF_CUDA_BF16 ? TYPE_BFLOAT16 : TYPE_FLOAT16;
    const uint32_t each = mode == LF_CUDA_TF32 ? 32 : 64;
    const uint64_t extents[2] = {(uint64_t)lines * each, (uint64_t)rows}, stride[1] = {(uint64_t)lines * LF_CUDA_LINE};
    const uint32_t box[2] = {each, (uint32_t)box_rows}, steps[2] = {1, 1};
    return p->device->driver->tensor_map(map, type, 2, (void *)(uintptr_t)at, extents, stride, box, steps, 0, SWIZZLE_128, PROMOTE_256, 0);
}

lf_status lf_cuda_tensor_launch(const lf_cuda_program *p, int32_t index, int64_t rows, lf_cuda_ptr x_lines, void *args, void *stream, lf_diag *diag)
{
    if (p->target.unit == LF_CUDA_MMA)
        return lf_cuda_mma_launch(p, index, rows, args, stream, diag);
    const lf_cuda_launch *l = &p->source.launch[index];
    const int64_t row_blocks = (rows + LF_CUDA_TENSOR_ROWS - 1) / LF_CUDA_TENSOR_ROWS;
    const bool alone = row_blocks == 1;
    const int cluster = alone ? 1 : 2, columns = alone ? LF_CUDA_ALONE_COLUMNS : LF_CUDA_TENSOR_COLUMNS;
    const int64_t column_tiles = (l->width.coef + columns - 1) / columns;
    const int64_t fit = alone ? p->device->units : p->resident[index], tiles = (row_blocks + cluster - 1) / cluster * column_tiles;
    const int64_t rounds = (tiles + fit - 1) / fit, clusters = (tiles + rounds - 1) / rounds; /* no more than the rounds need */
    _Alignas(64) unsigned char x[128], w[128];
    void *params[] = {x, w, args};
    int error = encode(p, x, l->mode, x_lines, rows, l->lines, LF_CUDA_TENSOR_ROWS);
    error = error ? error : encode(p, w, l->mode, p->lines[l->group], l->width.coef, l->lines, columns / cluster);
    if (tiles > INT32_MAX)
        return lf_fail(diag, LF_ERR_DATA, "the extents are too large: a product of %lld tiles", (long long)tiles);
    if (!error)
        error = p->device->driver->launch(alone ? p->alone[index] : p->function[index], (unsigned)(clusters * cluster), 1, 1, LF_CUDA_TENSOR_THREADS, 1, 1,
                                          shared_bytes(l->mode, alone), stream, params, NULL);
    return lf_cuda_status(p->device, error, "launching a product", diag);
}
