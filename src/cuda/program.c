/* SPDX-License-Identifier: Apache-2.0 */
/* A plan compiled for a device: its module, its weights, its launches. */
#include <stdio.h>
#include <stdlib.h>

#include "cuda/compile.h"
#include "cuda/device.h"


static lf_status load_module(lf_cuda_program *p, lf_diag *diag)
{
    const lf_cuda_driver *driver = p->device->driver;
    const lf_graph *g = p->plan->graph;
    char arch[16], *cubin;
    size_t size;
    p->words = lf_at_least_one(g->inputs) + lf_at_least_one(p->plan->prepareds) + 2 * lf_at_least_one(p->plan->groups) + 2 * lf_at_least_one(g->outputs) +
               lf_at_least_one(p->source.areas) + lf_at_least_one(g->symbols) + LF_CUDA_REDO_WORDS;
    if (p->words > LF_CUDA_MOST_WORDS)
        return lf_fail(diag, LF_ERR_UNSUPPORTED, "device cuda: the model has more tensors than a kernel takes arguments (%zu)", p->words);
    snprintf(arch, sizeof arch, "sm_%d%d%s", p->device->major, p->device->minor, p->target.wgmma ? "a" : "");
    lf_status status = lf_cuda_compile(p->source.text, arch, &cubin, &size, NULL, diag);
    free(p->source.text);
    p->source.text = NULL;
    if (status == LF_OK)
        status = lf_cuda_status(p->device, driver->module_load(&p->module, cubin), "loading the kernels", diag);
    free(cubin);
    for (int32_t i = 0; i < p->source.launches && status == LF_OK; i++)
        status = lf_cuda_status(p->device, driver->function_get(&p->function[i], p->module, p->source.launch[i].name), "finding a kernel", diag);
    for (int32_t i = 0; i < p->source.launches && status == LF_OK; i++)
        if (p->source.launch[i].work == LF_CUDA_TENSOR)
            status = lf_cuda_tensor_ready(p, i, diag);
    return status;
}

static bool has_wide_products(const lf_cuda_program *p)
{
    for (int32_t i = 0; i < p->source.launches; i++)
        if (p->source.launch[i].work == LF_CUDA_TENSOR && p->source.launch[i].mode == LF_CUDA_FP32)
            return true;
    return false;
}

lf_status lf_cuda_program_new(lf_cuda_device *device, const lf_plan *plan, lf_cuda_target target, lf_cuda_program **out, lf_diag *diag)
{
    lf_cuda_program *p = *out = calloc(1, sizeof *p);
    if (!p)
        return lf_fail_nomem(diag, "the program");
    p->device = device;
    p->plan = plan;
    p->target = target;
    p->lines = calloc(lf_at_least_one(plan->groups), sizeof *p->lines);
    p->scale = calloc(lf_at_least_one(plan->groups), sizeof *p->scale);
    p->prepared = calloc(lf_at_least_one(plan->prepareds), sizeof *p->prepared);
    p->narrow = calloc(lf_at_least_one(plan->groups), sizeof *p->narrow);
    bool room = p->lines && p->scale && p->prepared && p->narrow;
    lf_status status = room ? lf_cuda_emit(plan, target, &p->source, diag) : lf_fail_nomem(diag, "the program");
    if (status == LF_OK) {
        p->function = calloc(lf_at_least_one(p->source.launches), sizeof *p->function);
        p->alone = calloc(lf_at_least_one(p->source.launches), sizeof *p->alone);
        p->few = calloc(lf_at_least_one(p->source.launches), sizeof *p->few);
        p->resident = calloc(lf_at_least_one(p->source.launches), sizeof *p->resident);
        if (!p->function || !p->alone || !p->few || !p->resident)
            status = lf_fail_nomem(diag, "the program");
    }
    if (status == LF_OK)
        status = lf_cuda_enter(device, diag);
    if (status == LF_OK) {
        status = load_module(p, diag);
        lf_cuda_leave(device);
    }
    if (status == LF_OK && has_wide_products(p)) {
        status = lf_cuda_program_new(device, plan, (lf_cuda_target){0}, &p->full, diag);
        if (status == LF_OK)
            p->full->borrows = true;
    }
    if (status != LF_OK) {
        lf_cuda_program_free(p);
        *out = NULL;
    }
    return status;
}

static void drop(lf_cuda_program *p, lf_cuda_ptr *list, int32_t count, bool owned)
{
    for (int32_t i = 0; list && i < count; i++) {
        if (owned)
            p->device->driver->free(list[i]);
        list[i] = 0;
    }
}

static void drop_weights(lf_cuda_program *p)
{
    drop(p, p->prepared, p->plan->prepareds, !p->borrows);
    drop(p, p->narrow, p->plan->groups, !p->borrows);
    drop(p, p->lines, p->plan->groups, true);
    drop(p, p->scale, p->plan->groups, true);
    p->bytes = 0;
}

void lf_cuda_program_free(lf_cuda_program *p)
{
    if (!p)
        return;
    lf_cuda_program_free(p->full);
    if (lf_cuda_enter(p->device, NULL) == LF_OK) {
        drop_weights(p);
        if (p->module)
            p->device->driver->module_unload(p->module);
        lf_cuda_leave(p->device);
    }
    lf_cuda_source_free(&p->source);
    free(p->function);
    free(p->alone);
    free(p->few);
    free(p->resident);
    free(p->lines);
    free(p->scale);
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
    if (status == LF_OK)
        status = lf_cuda_tensor_weights(p, diag);
    for (int32_t i = 0; p->full && i < plan->prepareds; i++)
        p->full->prepared[i] = p->prepared[i];
    for (int32_t i = 0; p->full && i < plan->groups; i++)
        p->full->narrow[i] = p->narrow[i];
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
