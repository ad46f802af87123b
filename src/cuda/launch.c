/* SPDX-License-Identifier: Apache-2.0 */
/* A program's launch at given extents. */
#include <string.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "cuda/device.h"

/* blocks of a kernel that waits for nobody, for each multiprocessor; CUlaunchAttributeID */
enum { ROW_BLOCKS = 16, COOPERATIVE = 2 };

/* Bytes of an area, so that each begins on a line of 256. -1 on overflow. */
static int64_t area_bytes(const lf_cuda_area *area, const int64_t *dims)
{
    int64_t rows = lf_extent_at(area->rows, dims), width = lf_extent_at(area->width, dims), elements;
    if (rows < 0 || width < 0 ||
        !lf_mul_i64(lf_ceil_div(rows, area->row_block), lf_ceil_div(width, area->width_block), &elements) ||
        !lf_mul_i64(elements, area->each, &elements) || elements > LF_MAX_ELEMENTS)
        return -1;
    return lf_ceil_div(elements * (int64_t)lf_dtype_size(area->dtype), 256) * 256;
}

lf_status lf_cuda_kernel_workspace(const lf_cuda_kernel *k, const int64_t *dims, int64_t *out, lf_diag *diag)
{
    int64_t most = 0;
    /* parts run one after another, and nothing is left from one to the next */
    for (int role = 0; role < LF_CUDA_ROLES; role++) {
        const lf_cuda_part *part = &k->source.part[role];
        int64_t total = 0;
        for (int32_t i = 0; i < part->areas; i++) {
            int64_t bytes = area_bytes(&part->area[i], dims);
            if (bytes < 0 || !lf_add_i64(total, bytes, &total))
                return lf_fail(diag, LF_ERR_DATA, "the extents are too large: a count of elements or bytes overflows");
        }
        most = total > most ? total : most;
    }
    *out = most;
    return LF_OK;
}

/* How many blocks a stage could keep busy. */
static int64_t blocks_of(const lf_cuda_kernel *k, const lf_cuda_stage *s, const int64_t *dims)
{
    const int64_t rows = lf_extent_at(s->rows, dims), width = lf_extent_at(s->width, dims);
    switch (s->work) {
    case LF_CUDA_SPLIT:
    case LF_CUDA_ROWS: return lf_ceil_div(rows, s->rows_a_block);
    case LF_CUDA_TILES: return lf_ceil_div(rows, LF_CUDA_TILE) * lf_ceil_div(width, LF_CUDA_TILE);
    case LF_CUDA_COLUMN_BLOCKS: return lf_ceil_div(rows, LF_CUDA_COLUMN_ROWS) * lf_ceil_div(width, LF_CUDA_THREADS);
    case LF_CUDA_COLUMN_END: return lf_ceil_div(width, LF_CUDA_THREADS);
    case LF_CUDA_TENSOR: return lf_cuda_tensor_blocks(k, s, dims);
    }
    return 0;
}

/* Blocks of the launch, 0 where there is nothing to do. */
static int64_t grid_of(const lf_cuda_program *p, const lf_cuda_kernel *k, const int64_t *dims)
{
    const lf_cuda_part *main = &k->source.part[LF_CUDA_MAIN];
    /* tiles are dealt out to blocks that stay; rows come ahead of time where a block takes several */
    const bool stays = k->source.waits || k->source.products > 0 || k->source.ring > 0;
    const int64_t fit = stays ? k->resident : (int64_t)p->device->units * ROW_BLOCKS;
    int64_t most = 0;
    for (int32_t i = 0; i < main->stages; i++) {
        const int64_t wanted = blocks_of(k, &main->stage[i], dims);
        most = wanted > most ? wanted : most;
    }
    return lf_ceil_div(most < fit ? most : fit, k->cluster) * k->cluster;
}

static void put(uint64_t *to, const lf_cuda_ptr *from, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        to[i] = from[i];
}

lf_cuda_ptr lf_cuda_area_at(const lf_cuda_part *part, const lf_cuda_pass *pass, int32_t area)
{
    lf_cuda_ptr at = pass->workspace;
    for (int32_t i = 0; i < area; i++)
        at += (lf_cuda_ptr)area_bytes(&part->area[i], pass->dims);
    return at;
}

/* weights: whose they are. Returns where its Redo begins. */
static uint64_t *fill_arguments(const lf_cuda_part *part, const lf_cuda_program *weights, const lf_cuda_pass *pass,
                                uint64_t *to)
{
    const lf_plan *plan = part->plan;
    const lf_graph *g = plan->graph;
    lf_cuda_ptr at = pass->workspace;
    put(to += g->inputs, weights->prepared, plan->prepareds);
    put(to += plan->prepareds, weights->narrow, plan->products);
    put(to += lf_at_least_one(plan->products), weights->scale, plan->products);
    to += lf_at_least_one(plan->products) + (size_t)g->outputs;
    for (int32_t i = 0; i < g->outputs; i++) {
        int64_t elements = lf_shape_count(&lf_at(g, g->output[i])->shape, pass->dims);
        to[i] = (uint64_t)(pass->batch > 0 && elements >= pass->batch ? elements / pass->batch : 1);
    }
    to += lf_at_least_one(g->outputs);
    for (int32_t i = 0; i < part->areas; i++) {
        to[i] = at;
        at += (lf_cuda_ptr)area_bytes(&part->area[i], pass->dims);
    }
    to += part->areas;
    for (int i = 0; i < g->symbols; i++)
        to[i] = (uint64_t)pass->dims[i];
    return to + lf_at_least_one(g->symbols);
}

/* Maps of inputs that are multiplied as they are. An empty one is never copied from. */
static int move_maps(const lf_cuda_device *d, lf_cuda_ready *ready, const lf_cuda_kernel *k, const lf_cuda_ptr *input)
{
    const lf_cuda_part *main = &k->source.part[LF_CUDA_MAIN];
    unsigned char *map = ready->maps;
    int error = 0;
    for (int32_t i = 0; i < main->stages && error == 0; i++)
        if (main->stage[i].work == LF_CUDA_TENSOR) {
            if (main->stage[i].x_area < 0 && input[main->stage[i].x_input])
                error = d->driver->tensor_map_move(map, (void *)(uintptr_t)input[main->stage[i].x_input]);
            map += 2 * LF_CUDA_MAP;
        }
    return error;
}

lf_status lf_cuda_point(const lf_cuda_device *d, lf_cuda_ready *ready, const lf_cuda_kernel *k,
                        const lf_cuda_ptr *input, const lf_cuda_ptr *output, lf_diag *diag)
{
    for (int role = 0; role < LF_CUDA_ROLES; role++) {
        const lf_plan *plan = k->source.part[role].plan;
        if (!plan)
            continue;
        put(ready->words[role], input, plan->graph->inputs);
        put(ready->words[role] + lf_words_before_outputs(plan), output, plan->graph->outputs);
    }
    return lf_cuda_status(d, move_maps(d, ready, k, input), "describing a product's operands", diag);
}

/* Struct Redo: what is watched, what is wanted, what is too wide and when. */
static void fill_redo(const lf_cuda_program *p, const lf_cuda_kernel *k, lf_cuda_role role, const lf_cuda_pass *pass,
                      uint64_t *redo)
{
    const lf_cuda_control *c = &pass->control;
    redo[0] = (uint64_t)pass->batch;
    if (k->source.part[LF_CUDA_AS_WRITTEN].plan && role != LF_CUDA_AS_WRITTEN)
        redo[1] = c->watched, redo[2] = c->watched_any;
    if (role != LF_CUDA_MAIN)
        redo[3] = role == LF_CUDA_FULL_RANGE ? c->beyond : c->watched;
    if (k->source.part[LF_CUDA_FULL_RANGE].plan && role == LF_CUDA_MAIN)
        redo[4] = c->beyond, redo[5] = c->beyond_any;
    redo[6] = (uint64_t)p->binades | (uint64_t)p->uneven << 32;
}

static lf_status fill_maps(const lf_cuda_program *p, const lf_cuda_kernel *k, const lf_cuda_pass *pass,
                           unsigned char *maps, lf_diag *diag)
{
    const lf_cuda_part *main = &k->source.part[LF_CUDA_MAIN];
    lf_status status = LF_OK;
    for (int32_t i = 0; i < main->stages && status == LF_OK; i++)
        if (main->stage[i].work == LF_CUDA_TENSOR) {
            status = lf_cuda_tensor_maps(p, k, &main->stage[i], pass, maps, diag);
            maps += 2 * LF_CUDA_MAP;
        }
    return status;
}

lf_status lf_cuda_arrange(const lf_cuda_program *p, const lf_cuda_kernel *k, const lf_cuda_pass *pass,
                          lf_cuda_ready *to, lf_diag *diag)
{
    const lf_cuda_control *c = &pass->control;
    const uint64_t control[LF_CUDA_CONTROL_WORDS] = {c->barrier, (uint64_t)pass->batch, c->beyond,  c->beyond_any,
                                                     c->watched, c->watched_any,        c->redone};
    void **next = to->params;
    to->together = (lf_cuda_attribute){.id = COOPERATIVE, .value = {1}};
    to->config = (lf_cuda_config){(unsigned)grid_of(p, k, pass->dims),
                                  1,
                                  1,
                                  (unsigned)k->source.threads,
                                  1,
                                  1,
                                  k->shared,
                                  NULL,
                                  &to->together,
                                  k->source.waits ? 1 : 0};
    to->function = k->module->function;
    if (k->source.products > 0) {
        lf_status status = fill_maps(p, k, pass, to->maps, diag);
        if (status != LF_OK)
            return status;
        *next++ = to->maps;
    }
    memcpy(to->control, control, sizeof control);
    *next++ = to->control;
    for (int role = 0; role < LF_CUDA_ROLES; role++) {
        const lf_cuda_part *part = &k->source.part[role];
        if (!part->plan)
            continue;
        memset(to->words[role], 0, sizeof to->words[role]);
        fill_redo(p, k, (lf_cuda_role)role, pass,
                  fill_arguments(part, role == LF_CUDA_AS_WRITTEN ? p->as_written : p, pass, to->words[role]));
        *next++ = to->words[role];
    }
    return lf_cuda_point(p->device, to, k, pass->input, pass->output, diag);
}

lf_status lf_cuda_launch(const lf_cuda_device *d, lf_cuda_ready *ready, void *stream, lf_diag *diag)
{
    if (ready->config.gx == 0)
        return LF_OK;
    ready->config.stream = stream;
    return lf_cuda_status(d, d->driver->launch(&ready->config, ready->function, ready->params, NULL),
                          "launching the program", diag);
}
