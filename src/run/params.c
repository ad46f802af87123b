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

lf_status lf_params_new(lf_program *p)
{
    p->param = calloc((size_t)p->written.params + 1, sizeof *p->param);
    return p->param ? LF_OK : lf_fail_nomem(&p->diag, "the program");
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

/* Which parameter is being given, and whether so many values are what it has. */
static lf_status given_param(lf_program *p, const char *name, const void *data, size_t count, int32_t *index)
{
    if (!p)
        return LF_ERR_ARG;
    lf_program_begin(p);
    if (!name || !data)
        return lf_fail_null(&p->diag, name ? "data" : "name");
    *index = find_param(p, name);
    if (*index < 0)
        return lf_fail(&p->diag, LF_ERR_ARG, "the model has no parameter %.128s", name);
    if (count != lf_param_count(p, *index))
        return lf_fail(&p->diag, LF_ERR_DATA, "parameter %s has %zu elements, not %zu", name, lf_param_count(p, *index),
                       count);
    return LF_OK;
}

lf_status lf_program_set_param(lf_program *program, const char *name, const void *data, size_t count)
{
    int32_t index = -1;
    lf_status status = given_param(program, name, data, count, &index);
    if (status != LF_OK)
        return status;
    void *to;
    status = begin_values(program, index, &to);
    if (status != LF_OK)
        return status;
    copying c = {.from = data, .to = to, .bytes = lf_param_bytes(program, index)};
    /* by all threads: most of it is the first touch of fresh memory */
    lf_pool_run(program->context->pool, (int64_t)((c.bytes + COPIED_AT_ONCE - 1) / COPIED_AT_ONCE), copy_chunk, &c);
    return LF_OK;
}

lf_status lf_program_borrow_param(lf_program *program, const char *name, const void *data, size_t count)
{
    int32_t index = -1;
    lf_status status = given_param(program, name, data, count, &index);
    if (status != LF_OK)
        return status;
    drop_values(program, index);
    program->param[index].host = data;
    return LF_OK;
}

const void *lf_program_param(const lf_program *program, const char *name)
{
    int32_t index = program && name ? find_param(program, name) : -1;
    return index < 0 ? NULL : program->param[index].host;
}

/* ---- from the device ---- */

static lf_status given_on_device(lf_program *p, const char *name, const void *data, size_t count, int32_t *index)
{
    lf_status status = given_param(p, name, data, count, index);
    if (status == LF_OK && !p->on.backend->memory)
        return lf_fail(&p->diag, LF_ERR_ARG, "parameter %s: device memory needs a program compiled for cuda", name);
    return status;
}

lf_status lf_program_set_param_cuda(lf_program *program, const char *name, const void *data, size_t count,
                                    void *stream)
{
    int32_t index = -1;
    char what[WHAT];
    lf_status status = given_on_device(program, name, data, count, &index);
    if (status != LF_OK)
        return status;
    const lf_backend_memory *memory = program->on.backend->memory;
    if (memory->reads_as_given(program->compiled)) { /* the copy stays there */
        drop_values(program, index);
        lf_param *param = &program->param[index];
        status = memory->copy(program->on.device, data, lf_param_bytes(program, index), stream,
                                     describe(program, index, what), &param->device_copy, &program->diag);
        param->device = param->device_copy;
        return status;
    }
    lf_param_leave_device(program, index);
    program->prepared = false;
    status = lf_param_read_device(program, index, data, stream);
    if (status != LF_OK)
        drop_values(program, index); /* there may be anything in it */
    return status;
}

lf_status lf_program_borrow_param_cuda(lf_program *program, const char *name, const void *data, size_t count,
                                       void *stream)
{
    int32_t index = -1;
    lf_status status = given_on_device(program, name, data, count, &index);
    if (status != LF_OK)
        return status;
    const lf_backend_memory *memory = program->on.backend->memory;
    if ((uintptr_t)data % memory->alignment != 0)
        return lf_program_set_param_cuda(program, name, data, count, stream);
    status = memory->wait(program->on.device, stream, &program->diag);
    if (status != LF_OK)
        return status;
    drop_values(program, index);
    program->param[index].device = data; /* read when preparing wants to see it */
    return LF_OK;
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
