/* SPDX-License-Identifier: Apache-2.0 */
/* A plan compiled for a device: its module, its weights, its launches. */
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "cuda/compile.h"
#include "cuda/device.h"

enum { MOST_WORDS = 500, ROW_BLOCKS = 16 }; /* of Args: CUDA's limit is 4 KB; blocks of a row kernel for each multiprocessor */

static size_t at_least_one(int32_t n)
{
    return n > 0 ? (size_t)n : 1;
}

static lf_status load_module(lf_cuda_program *p, lf_diag *diag)
{
    const lf_cuda_driver *driver = p->device->driver;
    const lf_graph *g = p->plan->graph;
    char arch[16], *cubin;
    size_t size;
    p->words = at_least_one(g->inputs) + at_least_one(p->plan->prepareds) + at_least_one(p->plan->groups) + 2 * at_least_one(g->outputs) +
               at_least_one(p->source.areas) + at_least_one(g->symbols) + LF_CUDA_REDO_WORDS;
    if (p->words > MOST_WORDS)
        return lf_fail(diag, LF_ERR_UNSUPPORTED, "device cuda: the model has more tensors than a kernel takes arguments (%zu)", p->words);
    snprintf(arch, sizeof arch, "sm_%d%d", p->device->major, p->device->minor);
    lf_status status = lf_cuda_compile(p->source.text, arch, &cubin, &size, NULL, diag);
    free(p->source.text);
    p->source.text = NULL;
    if (status == LF_OK)
        status = lf_cuda_status(p->device, driver->module_load(&p->module, cubin), "loading the kernels", diag);
    free(cubin);
    for (int32_t i = 0; i < p->source.launches && status == LF_OK; i++)
        status = lf_cuda_status(p->device, driver->function_get(&p->function[i], p->module, p->source.launch[i].name), "finding a kernel", diag);
    return status;
}

lf_status lf_cuda_program_new(lf_cuda_device *device, const lf_plan *plan, lf_cuda_program **out, lf_diag *diag)
{
    lf_cuda_program *p = *out = calloc(1, sizeof *p);
    if (!p)
        return lf_fail_nomem(diag, "the program");
    p->device = device;
    p->plan = plan;
    p->prepared = calloc(at_least_one(plan->prepareds), sizeof *p->prepared);
    p->narrow = calloc(at_least_one(plan->groups), sizeof *p->narrow);
    lf_status status = p->prepared && p->narrow ? lf_cuda_emit(plan, &p->source, diag) : lf_fail_nomem(diag, "the program");
    if (status == LF_OK && !(p->function = calloc(at_least_one(p->source.launches), sizeof *p->function)))
        status = lf_fail_nomem(diag, "the program");
    if (status == LF_OK)
        status = lf_cuda_enter(device, diag);
    if (status == LF_OK) {
        status = load_module(p, diag);
        lf_cuda_leave(device);
    }
    if (status != LF_OK) {
        lf_cuda_program_free(p);
        *out = NULL;
    }
    return status;
}

static void drop_weights(lf_cuda_program *p)
{
    for (int32_t i = 0; p->prepared && i < p->plan->prepareds; i++)
        p->device->driver->free(p->prepared[i]);
    for (int32_t i = 0; p->narrow && i < p->plan->groups; i++)
        p->device->driver->free(p->narrow[i]);
    for (int32_t i = 0; p->prepared && i < p->plan->prepareds; i++)
        p->prepared[i] = 0;
    for (int32_t i = 0; p->narrow && i < p->plan->groups; i++)
        p->narrow[i] = 0;
    p->bytes = 0;
}

void lf_cuda_program_free(lf_cuda_program *p)
{
    if (!p)
        return;
    if (lf_cuda_enter(p->device, NULL) == LF_OK) {
        drop_weights(p);
        if (p->module)
            p->device->driver->module_unload(p->module);
        lf_cuda_leave(p->device);
    }
    lf_cuda_source_free(&p->source);
    free(p->function);
    free(p->prepared);
    free(p->narrow);
    free(p);
}

/* ---- weights ---- */

static lf_status upload(lf_cuda_program *p, const void *from, size_t bytes, lf_cuda_ptr *to, lf_diag *diag)
{
    lf_status status = lf_cuda_alloc(p->device, bytes, "the prepared weights", to, diag);
    if (status != LF_OK || bytes == 0)
        return status;
    p->bytes += bytes;
    return lf_cuda_status(p->device, p->device->driver->to_device(*to, from, bytes, NULL), "copying weights", diag);
}

static lf_status upload_all(lf_cuda_program *p, const float *const *tensor, const double *const *narrow, lf_diag *diag)
{
    static const int64_t dims[LF_MAX_SYMBOLS] = {1, 1, 1, 1, 1, 1, 1, 1}; /* prepared tensors have no named extent */
    const lf_plan *plan = p->plan;
    lf_status status = LF_OK;
    for (int32_t i = 0; i < plan->prepareds && status == LF_OK; i++)
        if (tensor[i])
            status = upload(p, tensor[i], (size_t)lf_shape_count(&lf_at(plan->graph, plan->prepared[i])->shape, dims) * sizeof(float), &p->prepared[i],
                            diag);
    for (int32_t g = 0; g < plan->groups && status == LF_OK; g++)
        if (narrow[g]) {
            const lf_product *product = &plan->group[g].product;
            status = upload(p, narrow[g], (size_t)(product->n.coef * (product->k.coef + 1)) * sizeof(double), &p->narrow[g], diag);
        }
    if (status == LF_OK) /* host memory is the caller's again */
        status = lf_cuda_status(p->device, p->device->driver->stream_wait(NULL), "copying weights", diag);
    return status;
}

lf_status lf_cuda_program_weights(lf_cuda_program *p, const float *const *tensor, const double *const *narrow, lf_diag *diag)
{
    lf_status status = lf_cuda_enter(p->device, diag);
    if (status != LF_OK)
        return status;
    drop_weights(p);
    status = upload_all(p, tensor, narrow, diag);
    if (status != LF_OK)
        drop_weights(p);
    lf_cuda_leave(p->device);
    return status;
}

size_t lf_cuda_program_bytes(const lf_cuda_program *p)
{
    return p->bytes;
}

/* ---- launches ---- */

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
    }
    return 0;
}

static uint64_t *put(uint64_t *to, const lf_cuda_ptr *from, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        to[i] = from[i];
    return to + at_least_one(count);
}

/* Args, see emit.h. Returns where its Redo begins. */
static uint64_t *fill_arguments(const lf_cuda_program *p, const lf_cuda_pass *pass, uint64_t *to)
{
    const lf_graph *g = p->plan->graph;
    lf_cuda_ptr at = pass->workspace;
    to = put(to, pass->input, g->inputs);
    to = put(to, p->prepared, p->plan->prepareds);
    to = put(to, p->narrow, p->plan->groups);
    to = put(to, pass->output, g->outputs);
    for (int32_t i = 0; i < g->outputs; i++) {
        int64_t elements = lf_shape_count(&lf_at(g, g->output[i])->shape, pass->dims);
        to[i] = (uint64_t)(pass->batch > 0 && elements >= pass->batch ? elements / pass->batch : 1);
    }
    to += at_least_one(g->outputs);
    for (int32_t i = 0; i < p->source.areas; i++) {
        to[i] = at;
        at += (lf_cuda_ptr)area_bytes(&p->source.area[i], pass->dims);
    }
    to += at_least_one(p->source.areas);
    for (int i = 0; i < g->symbols; i++)
        to[i] = (uint64_t)pass->dims[i];
    return to + at_least_one(g->symbols);
}

lf_status lf_cuda_launch_all(const lf_cuda_program *p, const lf_cuda_pass *pass, lf_diag *diag)
{
    const lf_cuda_driver *driver = p->device->driver;
    const lf_cuda_flags *flags = pass->flags;
    uint64_t words[MOST_WORDS] = {0};
    uint64_t *redo = fill_arguments(p, pass, words);
    void *params[] = {words};
    int32_t last = -1;
    redo[0] = (uint64_t)pass->batch;
    if (flags && !pass->again)
        redo[1] = flags->rows, redo[2] = flags->any;
    if (flags && pass->again)
        redo[3] = flags->rows, redo[4] = flags->any;
    for (int32_t i = 0; i < p->source.launches; i++)
        last = blocks_of(p, &p->source.launch[i], pass->dims) > 0 ? i : last;
    for (int32_t i = 0; i <= last; i++) {
        const int64_t blocks = blocks_of(p, &p->source.launch[i], pass->dims);
        if (blocks == 0)
            continue;
        if (blocks > INT32_MAX)
            return lf_fail(diag, LF_ERR_DATA, "the extents are too large: a kernel would have %lld blocks", (long long)blocks);
        if (flags && pass->again && i == last)
            redo[5] = flags->rows, redo[6] = flags->any, redo[7] = flags->done, redo[8] = flags->redone;
        lf_status status = lf_cuda_status(p->device, driver->launch(p->function[i], (unsigned)blocks, 1, 1, LF_CUDA_THREADS, 1, 1, 0, pass->stream, params, NULL),
                                          "launching a kernel", diag);
        if (status != LF_OK)
            return status;
    }
    return LF_OK;
}
