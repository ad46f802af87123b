/* SPDX-License-Identifier: Apache-2.0 */
/* A program's launches at given extents. */
#include "base/mem.h"
#include "cuda/device.h"

enum { ROW_BLOCKS = 16 }; /* of a row kernel, for each multiprocessor */

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Bytes of an area, so that each begins on a line of 256. -1 on overflow. */
static int64_t area_bytes(const lf_cuda_area *area, const int64_t *dims)
{
    int64_t rows = lf_extent_at(area->rows, dims), width = lf_extent_at(area->width, dims), floats;
    if (rows < 0 || width < 0 || !lf_mul_i64(ceil_div(rows, area->row_block), ceil_div(width, area->width_block), &floats) ||
        !lf_mul_i64(floats, area->each, &floats) || floats > LF_MAX_ELEMENTS)
        return -1;
    return ceil_div(floats * (int64_t)sizeof(float), 256) * 256;
}

int64_t lf_cuda_workspace(const lf_cuda_program *p, const int64_t *dims)
{
    int64_t total = 0;
    for (int32_t i = 0; i < p->source.areas; i++) {
        int64_t bytes = area_bytes(&p->source.area[i], dims);
        if (bytes < 0 || !lf_add_i64(total, bytes, &total))
            return -1;
    }
    return total;
}

static int64_t blocks_of(const lf_cuda_program *p, const lf_cuda_launch *l, const int64_t *dims)
{
    const int64_t rows = lf_extent_at(l->rows, dims), width = lf_extent_at(l->width, dims);
    switch (l->work) {
    case LF_CUDA_ROWS: {
        const int64_t most = (int64_t)p->device->units * ROW_BLOCKS, wanted = ceil_div(rows, l->rows_a_block);
        return wanted < most ? wanted : most;
    }
    case LF_CUDA_TILES: return ceil_div(rows, LF_CUDA_TILE) * ceil_div(width, LF_CUDA_TILE);
    case LF_CUDA_COLUMN_BLOCKS: return ceil_div(rows, LF_CUDA_COLUMN_ROWS) * ceil_div(width, LF_CUDA_THREADS);
    case LF_CUDA_COLUMN_END: return ceil_div(width, LF_CUDA_THREADS);
    case LF_CUDA_TENSOR: return rows > 0; /* it finds its own */
    }
    return 0;
}

static uint64_t *put(uint64_t *to, const lf_cuda_ptr *from, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        to[i] = from[i];
    return to + lf_at_least_one(count);
}

/* Args, see emit.h. Returns where its Redo begins. */
static uint64_t *fill_arguments(const lf_cuda_program *p, const lf_cuda_pass *pass, uint64_t *to)
{
    const lf_graph *g = p->plan->graph;
    lf_cuda_ptr at = pass->workspace;
    to = put(to, pass->input, g->inputs);
    to = put(to, p->prepared, p->plan->prepareds);
    to = put(to, p->narrow, p->plan->groups);
    to = put(to, p->scale, p->plan->groups);
    to = put(to, pass->output, g->outputs);
    for (int32_t i = 0; i < g->outputs; i++) {
        int64_t elements = lf_shape_count(&lf_at(g, g->output[i])->shape, pass->dims);
        to[i] = (uint64_t)(pass->batch > 0 && elements >= pass->batch ? elements / pass->batch : 1);
    }
    to += lf_at_least_one(g->outputs);
    for (int32_t i = 0; i < p->source.areas; i++) {
        to[i] = at;
        at += (lf_cuda_ptr)area_bytes(&p->source.area[i], pass->dims);
    }
    to += lf_at_least_one(p->source.areas);
    for (int i = 0; i < g->symbols; i++)
        to[i] = (uint64_t)pass->dims[i];
    return to + lf_at_least_one(g->symbols);
}

/* Struct Redo: what is watched, what is wanted. */
static void fill_redo(const lf_cuda_pass *pass, uint64_t *redo)
{
    redo[0] = (uint64_t)pass->batch;
    if (pass->watched)
        redo[1] = pass->watched->rows, redo[2] = pass->watched->any;
    if (pass->wanted)
        redo[3] = pass->wanted->rows, redo[4] = pass->wanted->any;
    if (pass->wide)
        redo[9] = pass->wide->rows, redo[10] = pass->wide->any;
}

static lf_cuda_ptr area_at(const lf_cuda_program *p, const lf_cuda_pass *pass, int32_t area)
{
    lf_cuda_ptr at = pass->workspace;
    for (int32_t i = 0; i < area; i++)
        at += (lf_cuda_ptr)area_bytes(&p->source.area[i], pass->dims);
    return at;
}

static lf_status launch_one(const lf_cuda_program *p, const lf_cuda_pass *pass, int32_t index, int64_t blocks, void *words, lf_diag *diag)
{
    const lf_cuda_launch *l = &p->source.launch[index];
    void *params[] = {words};
    if (blocks > INT32_MAX)
        return lf_fail(diag, LF_ERR_DATA, "the extents are too large: a kernel would have %lld blocks", (long long)blocks);
    if (l->work == LF_CUDA_TENSOR)
        return lf_cuda_tensor_launch(p, index, lf_extent_at(l->rows, pass->dims), area_at(p, pass, l->x_area), words, pass->stream, diag);
    int error = p->device->driver->launch(p->function[index], (unsigned)blocks, 1, 1, LF_CUDA_THREADS, 1, 1, 0, pass->stream, params, NULL);
    return lf_cuda_status(p->device, error, "launching a kernel", diag);
}

lf_status lf_cuda_launch_all(const lf_cuda_program *p, const lf_cuda_pass *pass, lf_diag *diag)
{
    uint64_t words[LF_CUDA_MOST_WORDS] = {0};
    uint64_t *redo = fill_arguments(p, pass, words);
    lf_status status = LF_OK;
    int32_t last = -1;
    fill_redo(pass, redo);
    for (int32_t i = 0; i < p->source.launches; i++)
        last = blocks_of(p, &p->source.launch[i], pass->dims) > 0 ? i : last;
    for (int32_t i = 0; i <= last && status == LF_OK; i++) {
        const int64_t blocks = blocks_of(p, &p->source.launch[i], pass->dims);
        if (pass->wanted && i == last)
            redo[5] = pass->wanted->rows, redo[6] = pass->wanted->any, redo[7] = pass->wanted->done, redo[8] = pass->wanted->redone;
        if (blocks > 0)
            status = launch_one(p, pass, i, blocks, words, diag);
    }
    return status;
}
