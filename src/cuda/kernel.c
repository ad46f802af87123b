/* SPDX-License-Identifier: Apache-2.0 */
/* A program's kernels: which one serves how many rows, compiled when it is first wanted. */
#include <stdio.h>
#include <stdlib.h>

#include "cuda/device.h"

enum { MAX_DYNAMIC_SHARED = 8, CLUSTER_DIMENSION = 4 }; /* CUfunction_attribute, CUlaunchAttributeID */

static size_t words_of(const lf_cuda_part *part)
{
    const lf_graph *g = part->plan->graph;
    return lf_words_before_outputs(part->plan) + (size_t)g->outputs + lf_at_least_one(g->outputs) +
           (size_t)part->areas + lf_at_least_one(g->symbols) + LF_CUDA_REDO_WORDS;
}

static int count_resident(const lf_cuda_device *d, lf_cuda_kernel *k)
{
    lf_cuda_attribute cluster = {.id = CLUSTER_DIMENSION, .value = {(uint32_t)k->cluster, 1, 1}};
    lf_cuda_config config = {
        (unsigned)k->cluster, 1, 1, (unsigned)k->source.threads, 1, 1, k->shared, NULL, &cluster, 1};
    int error = k->shared ? d->driver->function_set(k->module->function, MAX_DYNAMIC_SHARED, (int)k->shared) : 0;
    if (!error && k->cluster > 1)
        error = d->driver->clusters(&k->resident, k->module->function, &config);
    else if (!error)
        error = d->driver->blocks(&k->resident, k->module->function, k->source.threads, k->shared);
    k->resident *= k->cluster > 1 ? k->cluster : d->units;
    return error;
}

static lf_status load(const lf_cuda_program *p, lf_cuda_kernel *k, lf_diag *diag)
{
    const lf_cuda_device *d = p->device;
    char arch[16];
    for (int i = 0; i < LF_CUDA_ROLES; i++)
        if (k->source.part[i].plan && words_of(&k->source.part[i]) > LF_CUDA_MOST_WORDS)
            return lf_fail(diag, LF_ERR_UNSUPPORTED,
                           "device cuda: the model has more tensors than a kernel takes arguments (%zu)",
                           words_of(&k->source.part[i]));
    snprintf(arch, sizeof arch, "sm_%d%d%s", d->major, d->minor, p->target.unit == LF_UNIT_WGMMA ? "a" : "");
    lf_status status = lf_cuda_module_take(p->device, arch, k->source.text, &k->module, diag);
    free(k->source.text);
    k->source.text = NULL;
    k->cluster = 1;
    k->shared = LF_CUDA_PLAIN_SHARED;
    if (k->source.products > 0 && p->target.unit == LF_UNIT_WGMMA) {
        const lf_tile_shape shape = k->source.part[LF_CUDA_MAIN].target.shape;
        k->cluster = lf_tile_table[shape].cluster;
        k->columns = lf_tile_table[shape].columns;
        k->shared = lf_cuda_shape_shared(shape, p->target.precision);
    } else if (k->source.products > 0) {
        lf_cuda_mma_shape(d, k->source.part[LF_CUDA_MAIN].target, k);
    }
    if (k->source.ring > k->shared)
        k->shared = k->source.ring;
    if (status == LF_OK)
        status = lf_cuda_status(d, count_resident(d, k), "asking what a kernel takes", diag);
    if (status == LF_OK && k->resident < 1)
        status = lf_fail(diag, LF_ERR_DEVICE, "device cuda: %s has no room for a block of the kernel", d->name);
    return status;
}

static void free_kernel(const lf_cuda_program *p, lf_cuda_kernel *k)
{
    if (!k)
        return;
    if (k->module)
        lf_cuda_module_leave(p->device, k->module);
    lf_cuda_source_free(&k->source);
    free(k);
}

static bool has_room(const lf_cuda_kernel *k)
{
    const lf_cuda_part *main = &k->source.part[LF_CUDA_MAIN];
    for (int32_t i = 0; i < main->stages; i++)
        if (main->stage[i].wave > k->resident)
            return false;
    return true;
}

static lf_status make_for(lf_cuda_program *p, lf_cuda_target target, lf_cuda_kernel **out, lf_diag *diag)
{
    lf_cuda_kernel *k = *out = calloc(1, sizeof *k);
    if (!k)
        return lf_fail_nomem(diag, "the kernel");
    lf_status status = lf_cuda_emit(p->plan, p->as_written ? p->as_written->plan : NULL, target, &k->source, diag);
    if (status == LF_OK)
        status = load(p, k, diag);
    if (status != LF_OK) {
        free_kernel(p, k);
        *out = NULL;
    }
    return status;
}

static lf_status make(lf_cuda_program *p, lf_tile_shape shape, bool aligned, lf_cuda_kernel **out, lf_diag *diag)
{
    lf_cuda_target target = p->target;
    target.shape = shape;
    target.aligned = aligned;
    lf_status status = make_for(p, target, out, diag);
    if (status != LF_OK || has_room(*out))
        return status;
    free_kernel(p, *out);
    target.small = true;
    return make_for(p, target, out, diag);
}

lf_status lf_cuda_kernel_for(lf_cuda_program *p, const int64_t *dims, bool aligned, const lf_cuda_kernel **out,
                             lf_diag *diag)
{
    bool measured;
    return lf_cuda_kernel_of(p, lf_cuda_shape_for(p, dims, &measured), aligned, out, diag);
}

lf_status lf_cuda_kernel_of(lf_cuda_program *p, lf_tile_shape shape, bool aligned, const lf_cuda_kernel **out,
                            lf_diag *diag)
{
    lf_cuda_kernel *_Atomic *place = &p->kernel[shape][!aligned];
    lf_cuda_kernel *k = *place;
    lf_status status = LF_OK;
    if (!k) {
        /* code that is compiled and loaded while the caller captures is no part of the graph */
        int mode = LF_CUDA_RELAXED;
        pthread_mutex_lock(&p->compiling);
        p->device->driver->capture_mode(&mode);
        k = *place;
        if (!k)
            status = make(p, shape, aligned, &k, diag);
        p->device->driver->capture_mode(&mode);
        *place = k;
        pthread_mutex_unlock(&p->compiling);
    }
    *out = k;
    return status;
}

void lf_cuda_kernels_free(lf_cuda_program *p)
{
    for (int i = 0; i < LF_TILE_SHAPES; i++)
        for (int aligned = 0; aligned < 2; aligned++)
            free_kernel(p, p->kernel[i][aligned]);
}
