/* SPDX-License-Identifier: Apache-2.0 */
/* A plan on a device: its weights and its kernels. */
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "cuda/device.h"
#include "plan/touch.h"

/* Copies what another has borrowed. */
static void lend_weights(const lf_cuda_program *p, lf_cuda_program *to)
{
    for (int32_t i = 0; i < p->plan->prepareds; i++)
        to->prepared[i] = p->prepared[i];
    for (int32_t i = 0; i < p->plan->products; i++)
        to->narrow[i] = p->narrow[i];
}

static lf_status compile_for(lf_cuda_program *p, const int64_t *dims, const lf_cuda_kernel **out, lf_diag *diag)
{
    lf_status status = lf_cuda_enter(p->device, diag);
    if (status != LF_OK)
        return status;
    status = lf_cuda_kernel_for(p, dims, true, out, diag);
    lf_cuda_leave(p->device);
    return status;
}

lf_status lf_cuda_program_compile(lf_cuda_program *p, const int64_t *dims, lf_diag *diag)
{
    const lf_cuda_kernel *kernel;
    return compile_for(p, dims, &kernel, diag);
}

lf_status lf_cuda_program_new(lf_cuda_device *device, const lf_plan *plan, lf_cuda_target target,
                              const lf_cuda_program *as_written, const int64_t *dims, lf_cuda_program **out,
                              lf_diag *diag)
{
    lf_cuda_program *p = *out = calloc(1, sizeof *p);
    if (!p)
        return lf_fail_nomem(diag, "the program");
    p->device = device;
    p->plan = plan;
    p->target = target;
    p->as_written = as_written;
    pthread_mutex_init(&p->compiling, NULL);
    p->lines = calloc(lf_at_least_one(plan->products), sizeof *p->lines);
    p->scale = calloc(lf_at_least_one(plan->products), sizeof *p->scale);
    p->prepared = calloc(lf_at_least_one(plan->prepareds), sizeof *p->prepared);
    p->lent = calloc(lf_at_least_one(plan->prepareds), sizeof *p->lent);
    p->narrow = calloc(lf_at_least_one(plan->products), sizeof *p->narrow);
    lf_status status =
        p->lines && p->scale && p->prepared && p->lent && p->narrow ? LF_OK : lf_fail_nomem(diag, "the program");
    if (status == LF_OK)
        status = lf_cuda_shape_told(&p->told, diag);
    if (status == LF_OK && dims)
        status = lf_cuda_program_compile(p, dims, diag);
    if (status != LF_OK) {
        lf_cuda_program_free(p);
        *out = NULL;
    }
    return status;
}

/* lent: which are not its own; NULL: all are. */
static void drop(lf_cuda_program *p, lf_cuda_ptr *list, const bool *lent, int32_t count)
{
    for (int32_t i = 0; list && i < count; i++) {
        if (!lent || !lent[i])
            p->device->driver->free(list[i]);
        list[i] = 0;
    }
}

static void drop_weights(lf_cuda_program *p)
{
    if (!p->borrows) {
        drop(p, p->prepared, p->lent, p->plan->prepareds);
        drop(p, p->narrow, NULL, p->plan->products);
    }
    drop(p, p->lines, NULL, p->plan->products);
    drop(p, p->scale, NULL, p->plan->products);
    p->bytes = 0;
}

void lf_cuda_program_free(lf_cuda_program *p)
{
    if (!p)
        return;
    lf_cuda_program_free(p->full);
    if (lf_cuda_enter(p->device, NULL) == LF_OK) {
        drop_weights(p);
        lf_cuda_kernels_free(p);
        lf_cuda_leave(p->device);
    }
    pthread_mutex_destroy(&p->compiling);
    free(p->lines);
    free(p->scale);
    free(p->prepared);
    free(p->lent);
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

/* Weights as tensor cores read them. Where one has too wide a range, a program for the ordinary units takes over. */
static lf_status into_lines(lf_cuda_program *p, lf_diag *diag)
{
    /* any kernel will do: the weights are the same for all */
    static const int64_t dims[LF_MAX_SYMBOLS] = {1, 1, 1, 1, 1, 1, 1, 1};
    const lf_cuda_kernel *kernel = NULL;
    bool beyond = false;
    /* none of its weights is for tensor cores: no kernel need be there for them */
    if (!lf_cuda_on_tensor_cores(p->plan, p->target))
        return LF_OK;
    for (int i = 0; i < LF_TILE_SHAPES && !kernel; i++)
        kernel = p->kernel[i][0];
    lf_status status = kernel ? LF_OK : lf_cuda_kernel_for(p, dims, true, &kernel, diag);
    if (status == LF_OK)
        status = lf_cuda_tensor_weights(p, kernel, &beyond, diag);
    lf_cuda_program_free(p->full);
    p->full = NULL;
    if (status == LF_OK && beyond)
        status = lf_cuda_program_new(p->device, p->plan, (lf_cuda_target){0}, p->as_written, NULL, &p->full, diag);
    if (p->full) {
        p->full->borrows = true;
        lend_weights(p, p->full);
    }
    return status;
}

/* As text/plain.cu reads it: of every RUN elements of a column first two for each lane of a warp, then two more; then
 * the biases. */
static lf_status upload_narrow(lf_cuda_program *p, const lf_product *product, const double *weight, lf_diag *diag)
{
    enum { RUN = 128 };
    const int64_t n = product->n.coef, k = product->k.coef, pitch = (k + RUN - 1) / RUN * RUN;
    double *lanes = calloc((size_t)(n * (pitch + 1)), sizeof *lanes);
    if (!lanes)
        return lf_fail_nomem(diag, "a narrow product's weight");
    for (int64_t column = 0; column < n; column++)
        for (int64_t i = 0; i < k; i++)
            lanes[column * pitch + i / RUN * RUN + i % 4 / 2 * (RUN / 2) + i % RUN / 4 * 2 + i % 2] =
                weight[column * k + i];
    memcpy(lanes + n * pitch, weight + n * k, (size_t)n * sizeof *lanes);
    lf_status status = upload(p, lanes, (size_t)(n * (pitch + 1)) * sizeof *lanes, &p->narrow[product->index], diag);
    if (status == LF_OK) /* they go with this function */
        status = lf_cuda_status(p->device, p->device->driver->stream_wait(NULL), "copying weights", diag);
    free(lanes);
    return status;
}

static size_t prepared_bytes(const lf_plan *plan, int32_t i)
{
    return (size_t)lf_prepared_count(plan, i) * lf_dtype_size(lf_stored_dtype(plan, plan->prepared[i]));
}

/* Does a kernel read a prepared tensor as it is? A weight in lines is not read again, but for rows of too wide a
 * range. */
static bool is_read(const lf_cuda_program *p, lf_node node)
{
    const bool split = lf_precision_table[p->target.precision].split;
    lf_touch at;
    for (int32_t g = 0; g < p->plan->groups; g++) {
        const lf_group *group = &p->plan->group[g];
        for (lf_touches all = lf_touches_of(group); lf_touch_next(&all, &at);) {
            /* two that are made as one have lines of the first */
            const int32_t which = lf_made_as_one(group) == 2 ? 0 : at.index;
            const bool in_lines = at.by == LF_TOUCH_WEIGHT && p->lines[group->product[which].index] != 0;
            if (lf_touches_this(&at, LF_VALUE, node) && !lf_is_write(&at) && (!in_lines || split))
                return true;
        }
    }
    return false;
}

/* Weights are kept once where that will do. */
static void drop_unread(lf_cuda_program *p)
{
    for (int32_t i = 0; i < p->plan->prepareds; i++) {
        if (p->lent[i] || !p->prepared[i] || is_read(p, p->plan->prepared[i]))
            continue;
        p->device->driver->free(p->prepared[i]);
        p->prepared[i] = 0;
        p->bytes -= prepared_bytes(p->plan, i);
    }
}

static lf_status upload_all(lf_cuda_program *p, const lf_prepared *prepared, const void *const *there, lf_diag *diag)
{
    const lf_plan *plan = p->plan;
    lf_status status = LF_OK;
    for (int32_t i = 0; i < plan->prepareds && status == LF_OK; i++)
        if ((p->lent[i] = there[i] != NULL))
            p->prepared[i] = (lf_cuda_ptr)(uintptr_t)there[i];
        else if (prepared->tensor[i])
            status = upload(p, prepared->tensor[i], prepared_bytes(plan, i), &p->prepared[i], diag);
    for (int32_t i = 0; i < plan->products && status == LF_OK; i++)
        if (prepared->narrow[i])
            status = upload_narrow(p, plan->product[i], prepared->narrow[i], diag);
    if (status == LF_OK)
        status = into_lines(p, diag);
    if (status == LF_OK) /* host memory is the caller's again */
        status = lf_cuda_status(p->device, p->device->driver->stream_wait(NULL), "copying weights", diag);
    if (status == LF_OK)
        drop_unread(p);
    return status;
}

lf_status lf_cuda_program_weights(lf_cuda_program *p, const lf_prepared *prepared, const void *const *there,
                                  lf_diag *diag)
{
    lf_status status = lf_cuda_enter(p->device, diag);
    if (status != LF_OK)
        return status;
    p->weights++;
    drop_weights(p);
    status = upload_all(p, prepared, there, diag);
    if (status != LF_OK)
        drop_weights(p);
    lf_cuda_leave(p->device);
    return status;
}

void lf_cuda_program_tune(lf_cuda_program *p)
{
    p->tunes = true;
}

const void *lf_cuda_program_prepared(const lf_cuda_program *p, int32_t tensor)
{
    return (const void *)(uintptr_t)p->prepared[tensor];
}

size_t lf_cuda_program_bytes(const lf_cuda_program *p)
{
    return p->bytes;
}

lf_status lf_cuda_workspace(lf_cuda_program *program, const int64_t *dims, int64_t *bytes, lf_diag *diag)
{
    lf_cuda_program *p = program->full ? program->full : program;
    const lf_cuda_kernel *kernel;
    lf_status status = compile_for(p, dims, &kernel, diag);
    if (status == LF_OK)
        status = lf_cuda_kernel_workspace(kernel, dims, bytes, diag);
    if (status == LF_OK && p->tunes)
        lf_cuda_tune_workspace(p, dims, bytes);
    return status;
}
