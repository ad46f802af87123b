/* SPDX-License-Identifier: Apache-2.0 */
/* Giving a program its parameters: copied, borrowed, drawn, read from a file; from host memory or from the device. */
#include "run/params.h"

#include <linfuse_tools.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "base/str.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "run/tensor.h"

lf_status lf_params_new(lf_program *p)
{
    const lf_graph *g = &p->written;
    p->param = calloc((size_t)g->params + 1, sizeof *p->param);
    if (!p->param)
        return lf_fail_nomem(&p->diag, "the program");
    for (int32_t i = 0; i < g->params; i++)
        for (int axis = 0; axis < lf_at(g, g->param[i])->shape.rank; axis++)
            p->param[i].extents[axis] = lf_at(g, g->param[i])->shape.dim[axis].coef;
    return LF_OK;
}

void lf_params_free(lf_program *p)
{
    for (int32_t i = 0; p->param && i < p->written.params; i++) {
        lf_param_leave_host(p, i);
        lf_param_leave_device(p, i);
    }
    free(p->param);
}

const char *lf_param_name(const lf_program *p, int32_t index)
{
    return lf_at(&p->written, p->written.param[index])->name;
}

size_t lf_param_count(const lf_program *p, int32_t index)
{
    return (size_t)lf_shape_count(&lf_at(&p->written, p->written.param[index])->shape, p->hint);
}

size_t lf_param_bytes(const lf_program *p, int32_t index)
{
    return lf_param_count(p, index) * lf_dtype_size(lf_at(&p->written, p->written.param[index])->dtype);
}

static int32_t find_param(const lf_program *p, const char *name)
{
    for (int32_t i = 0; i < p->written.params; i++)
        if (strcmp(lf_param_name(p, i), name) == 0)
            return i;
    return -1;
}

/* ---- where the values lie ---- */

lf_status lf_param_reserve(lf_program *p, int32_t index, void **out)
{
    lf_param *param = &p->param[index];
    if (!param->host_copy)
        param->host_copy = lf_aligned_alloc(lf_param_bytes(p, index));
    param->host = *out = param->host_copy;
    return *out ? LF_OK : lf_fail(&p->diag, LF_ERR_NOMEM, "no memory for parameter %s", lf_param_name(p, index));
}

void lf_param_leave_host(lf_program *p, int32_t index)
{
    lf_param *param = &p->param[index];
    lf_aligned_free(param->host_copy);
    param->host = param->host_copy = NULL;
}

void lf_param_leave_device(lf_program *p, int32_t index)
{
    lf_param *param = &p->param[index];
    if (param->device_copy)
        p->on.backend->memory->drop(p->on.device, param->device_copy);
    param->device = param->device_copy = NULL;
}

/* New values are about to be written to memory of its own on the host. */
static lf_status begin_values(lf_program *p, int32_t index, void **out)
{
    lf_param_leave_device(p, index);
    p->prepared = false;
    return lf_param_reserve(p, index, out);
}

/* The parameter has no values, and nobody uses those it had. */
static void drop_values(lf_program *p, int32_t index)
{
    lf_program_unprepare(p); /* what is prepared may point into the memory that goes */
    lf_param_leave_host(p, index);
    lf_param_leave_device(p, index);
}

enum { WHAT = 160 };

static const char *describe(const lf_program *p, int32_t index, char *to)
{
    snprintf(to, WHAT, "parameter %s", lf_param_name(p, index));
    return to;
}

lf_status lf_param_read_device(lf_program *p, int32_t index, const void *from, void *stream)
{
    void *to;
    char what[WHAT];
    lf_status status = lf_param_reserve(p, index, &to);
    return status == LF_OK ? p->on.backend->memory->read(p->on.device, to, from, lf_param_bytes(p, index), stream,
                                                         describe(p, index, what), &p->diag)
                           : status;
}

/* ---- from host memory ---- */

typedef struct copying {
    const char *from;
    char *to;
    size_t bytes;
} copying;

enum { COPIED_AT_ONCE = 1 << 20 }; /* bytes */

static void copy_chunk(void *arg, int64_t index, int slot)
{
    const copying *c = arg;
    const size_t at = (size_t)index * COPIED_AT_ONCE, left = c->bytes - at;
    const size_t bytes = left < COPIED_AT_ONCE ? left : COPIED_AT_ONCE;
    (void)slot;
    lf_memory_ready(c->to + at, bytes);
    memcpy(c->to + at, c->from + at, bytes);
}

static lf_status copy_from_host(lf_program *p, int32_t index, const lf_tensor *values)
{
    void *to;
    lf_status status = begin_values(p, index, &to);
    if (status != LF_OK)
        return status;
    copying c = {.from = values->data, .to = to, .bytes = lf_tensor_bytes(values)};
    if (!lf_tensor_is_dense(values))
        lf_tensor_pack(values, to);
    else /* by all threads: most of it is the first touch of fresh memory */
        lf_pool_run(p->context->pool, (int64_t)((c.bytes + COPIED_AT_ONCE - 1) / COPIED_AT_ONCE), copy_chunk, &c);
    return LF_OK;
}

static lf_status borrow_from_host(lf_program *p, int32_t index, const lf_tensor *values)
{
    drop_values(p, index);
    p->param[index].host = values->data;
    return LF_OK;
}

/* ---- from the device ---- */

static lf_status copy_from_device(lf_program *p, int32_t index, const lf_tensor *values, void *stream)
{
    char what[WHAT];
    const lf_backend_memory *memory = p->on.backend->memory;
    if (memory->reads_as_given(p->compiled)) { /* the copy stays there */
        drop_values(p, index);
        lf_param *param = &p->param[index];
        lf_status status = memory->copy(p->on.device, values->data, lf_tensor_bytes(values), stream,
                                        describe(p, index, what), &param->device_copy, &p->diag);
        param->device = param->device_copy;
        return status;
    }
    lf_param_leave_device(p, index);
    p->prepared = false;
    lf_status status = lf_param_read_device(p, index, values->data, stream);
    if (status != LF_OK)
        drop_values(p, index); /* there may be anything in it */
    return status;
}

static lf_status borrow_from_device(lf_program *p, int32_t index, const lf_tensor *values, void *stream)
{
    lf_status status = p->on.backend->memory->wait(p->on.device, stream, &p->diag);
    if (status != LF_OK)
        return status;
    drop_values(p, index);
    p->param[index].device = values->data; /* read when preparing wants to see it */
    return LF_OK;
}

/* ---- from either ---- */

static lf_status check_values(lf_program *p, int32_t index, const lf_tensor *values, lf_holding holding, void *stream)
{
    const lf_port_ref port = {"parameter", &p->written, p->written.param[index]};
    lf_status status = lf_tensor_check(values, port, &p->diag);
    if (status != LF_OK)
        return status;
    const bool device = values->memory == LF_DEVICE;
    if ((device || stream) && !p->on.backend->memory)
        return lf_fail(&p->diag, LF_ERR_ARG, "parameter %s: %s %s", lf_param_name(p, index),
                       device ? "device memory" : "`stream`", lf_needs_device_memory);
    if (holding != LF_COPY && holding != LF_BORROW)
        return lf_fail(&p->diag, LF_ERR_ARG, "`holding` is %d, neither LF_COPY nor LF_BORROW", (int)holding);
    return device || holding == LF_BORROW ? lf_tensor_need_dense(values, port, &p->diag) : LF_OK;
}

lf_status lf_program_set_param(lf_program *program, const char *name, const lf_tensor *values, lf_holding holding,
                               void *stream)
{
    if (!program)
        return LF_ERR_ARG;
    lf_program_begin(program);
    if (!name || !values)
        return lf_fail_null(&program->diag, name ? "values" : "name");
    const int32_t index = find_param(program, name);
    if (index < 0)
        return lf_fail(&program->diag, LF_ERR_ARG, "the model has no parameter %.128s", name);
    lf_status status = check_values(program, index, values, holding, stream);
    if (status != LF_OK)
        return status;
    if (values->memory == LF_HOST)
        return holding == LF_COPY ? copy_from_host(program, index, values) : borrow_from_host(program, index, values);
    /* kernels rely on how memory of our own is aligned */
    const bool aligned = (uintptr_t)values->data % program->on.backend->memory->alignment == 0;
    return holding == LF_BORROW && aligned ? borrow_from_device(program, index, values, stream)
                                           : copy_from_device(program, index, values, stream);
}

lf_tensor lf_program_param(const lf_program *program, const char *name)
{
    const int32_t index = program && name ? find_param(program, name) : -1;
    if (index < 0)
        return (lf_tensor){0};
    const lf_param *param = &program->param[index];
    const lf_node_info *info = lf_at(&program->written, program->written.param[index]);
    return (lf_tensor){.data = (void *)(param->host ? param->host : param->device), /* to be read only */
                       .dtype = info->dtype,
                       .rank = info->shape.rank,
                       .extents = param->extents,
                       .memory = param->host || !param->device ? LF_HOST : LF_DEVICE};
}

/* ---- drawn ---- */

static lf_status draw(lf_program *p, const lf_node_info *info, uint64_t seed, float bound, size_t count, void *to)
{
    float *drawn = info->dtype == LF_F32 ? to : lf_aligned_alloc(count * sizeof *drawn);
    if (!drawn)
        return lf_fail(&p->diag, LF_ERR_NOMEM, "no memory for parameter %s", info->name);
    lf_draw_uniform(seed, info->name, -bound, bound, count, drawn);
    if (info->dtype == LF_F32)
        return LF_OK;
    lf_from_f32(info->dtype, drawn, to, 1, (int64_t)count);
    lf_aligned_free(drawn);
    return LF_OK;
}

lf_status lf_program_draw_params(lf_program *program, uint64_t seed)
{
    lf_status status = LF_OK;
    if (!program)
        return LF_ERR_ARG;
    lf_program_begin(program);
    for (int32_t i = 0; i < program->written.params && status == LF_OK; i++) {
        const lf_node_info *info = lf_at(&program->written, program->written.param[i]);
        int64_t last = info->shape.rank > 0 ? lf_extent_at(info->shape.dim[info->shape.rank - 1], program->hint) : 1;
        float bound = (float)(1.0 / sqrt((double)last));
        void *memory;
        status = begin_values(program, i, &memory);
        if (status == LF_OK)
            status = draw(program, info, seed, bound, lf_param_count(program, i), memory);
        if (status != LF_OK)
            lf_param_leave_host(program, i);
    }
    return status;
}

/* ---- from a file ---- */

static lf_status fail_extents(lf_program *p, const lf_node_info *info, const lf_tensor_view *t, const char *path)
{
    lf_str text = {0};
    for (int i = 0; i < t->rank; i++)
        lf_str_addf(&text, "%s%lld", i > 0 ? ", " : "", (long long)t->extents[i]);
    char *extents = lf_str_take(&text); /* NULL: no memory for it */
    lf_status status = lf_fail(&p->diag, LF_ERR_DATA, "%s: tensor %s is [%s], but the model declares %s", path,
                               info->name, extents ? extents : "...", lf_shape_text(&p->written, &info->shape));
    free(extents);
    return status;
}

/* One parameter from the tensor of its name. */
static lf_status load_param(lf_program *p, int32_t index, const lf_safetensors *file, const char *path)
{
    const lf_node_info *info = lf_at(&p->written, p->written.param[index]);
    const lf_tensor_view *t = lf_safetensors_find(file, info->name);
    if (!t)
        return lf_fail(&p->diag, LF_ERR_DATA, "%s: there is no tensor %s, which the model declares as %s", path,
                       info->name, lf_shape_text(&p->written, &info->shape));
    bool same = t->rank == info->shape.rank;
    for (int i = 0; same && i < t->rank; i++)
        same = lf_extent_is(info->shape.dim[i], t->extents[i]);
    if (!same)
        return fail_extents(p, info, t, path);
    bool copied = p->param[index].host_copy != NULL;
    void *memory;
    lf_status status = begin_values(p, index, &memory);
    if (status == LF_OK)
        status = lf_tensor_read(t, info->dtype, memory, &p->diag);
    if (status != LF_OK && !copied) /* without values, still or now */
        lf_param_leave_host(p, index);
    return status;
}

lf_status lf_program_load_params(lf_program *program, const char *path)
{
    if (!program)
        return LF_ERR_ARG;
    lf_program_begin(program);
    if (!path)
        return lf_fail_null(&program->diag, "path");
    lf_file file;
    lf_safetensors tensors = {0};
    lf_status status = lf_file_map(path, &file, &program->diag);
    if (status != LF_OK)
        return status;
    status = lf_safetensors_read(file.bytes, file.size, path, &tensors, &program->diag);
    for (int32_t i = 0; i < program->written.params && status == LF_OK; i++)
        status = load_param(program, i, &tensors, path);
    lf_safetensors_free(&tensors);
    lf_file_unmap(&file);
    return status;
}
