/* SPDX-License-Identifier: Apache-2.0 */
/* Files in and out: arrays as .npy, parameters as safetensors. */
#include <stdlib.h>

#include "base/mem.h"
#include "base/str.h"
#include "io/file.h"
#include "io/npy.h"
#include "io/safetensors.h"
#include "run/handles.h"

struct lf_array {
    lf_file file;
    lf_npy npy;
    const float *data;
    float *copy; /* owned; NULL where data lies in the file */
};

lf_status lf_array_open(lf_context *context, const char *path, lf_array **out)
{
    if (!context)
        return LF_ERR_ARG;
    if (!path || !out)
        return lf_fail(&context->diag, LF_ERR_ARG, "opening an array wants a path and a place for the array");
    lf_array *a = *out = calloc(1, sizeof *a);
    if (!a)
        return lf_fail_nomem(&context->diag, path);
    lf_status status = lf_file_map(path, &a->file, &context->diag);
    if (status == LF_OK)
        status = lf_npy_read(a->file.bytes, a->file.size, path, &a->npy, &context->diag);
    if (status == LF_OK)
        status = lf_npy_floats(a->file.bytes, &a->npy, &a->data, &a->copy, &context->diag);
    if (status != LF_OK) {
        lf_array_free(a);
        *out = NULL;
    }
    return status;
}

void lf_array_free(lf_array *array)
{
    if (!array)
        return;
    lf_file_unmap(&array->file);
    lf_aligned_free(array->copy);
    free(array);
}

int lf_array_rank(const lf_array *array) { return array ? array->npy.rank : -1; }
const int64_t *lf_array_extents(const lf_array *array) { return array ? array->npy.extents : NULL; }
const float *lf_array_data(const lf_array *array) { return array ? array->data : NULL; }

lf_status lf_array_save(lf_context *context, const char *path, int rank, const int64_t *extents, const float *data)
{
    if (!context)
        return LF_ERR_ARG;
    if (!path || rank < 0 || rank > LF_MAX_RANK || (rank > 0 && !extents))
        return lf_fail(&context->diag, LF_ERR_ARG, "saving an array wants a path and a rank between 0 and %d",
                       LF_MAX_RANK);
    unsigned char head[LF_NPY_HEADER_MAX];
    size_t used, bytes = sizeof *data;
    bool fits = lf_npy_header(rank, extents, head, sizeof head, &used) == LF_OK;
    for (int i = 0; i < rank && fits; i++)
        fits = lf_mul_size(bytes, (size_t)extents[i], &bytes);
    if (!fits)
        return lf_fail(&context->diag, LF_ERR_ARG, "%s: these extents make no array", path);
    if (!data && bytes > 0)
        return lf_fail(&context->diag, LF_ERR_ARG, "%s: no data", path);
    return lf_file_write(path, head, used, data, bytes, &context->diag);
}

void lf_param_leave_here(lf_program *p, int32_t index)
{
    lf_aligned_free(p->copied[index]);
    p->copied[index] = NULL;
    p->param[index] = NULL;
}

static lf_status fail_extents(lf_program *p, const lf_node_info *info, const lf_tensor_view *t, const char *path)
{
    lf_str text = {0};
    for (int i = 0; i < t->rank; i++)
        lf_str_addf(&text, "%s%lld", i > 0 ? ", " : "", (long long)t->extents[i]);
    char *extents = lf_str_take(&text); /* NULL: no memory for it */
    lf_status status = lf_fail(&p->diag, LF_ERR_DATA, "%s: tensor %s is [%s], and the model wants %s", path, info->name,
                               extents ? extents : "...", lf_shape_text(&p->written, &info->shape));
    free(extents);
    return status;
}

/* One parameter from the tensor of its name. */
static lf_status load_param(lf_program *p, int32_t index, const lf_safetensors *file, const char *path)
{
    const lf_node_info *info = lf_at(&p->written, p->written.param[index]);
    const lf_tensor_view *t = lf_safetensors_find(file, info->name);
    if (!t)
        return lf_fail(&p->diag, LF_ERR_DATA, "%s: holds no tensor %s, which the model wants as %s", path, info->name,
                       lf_shape_text(&p->written, &info->shape));
    bool same = t->rank == info->shape.rank;
    for (int i = 0; same && i < t->rank; i++)
        same = lf_extent_is(info->shape.dim[i], t->extents[i]);
    if (!same)
        return fail_extents(p, info, t, path);
    bool copied = p->copied[index] != NULL;
    float *memory;
    lf_status status = lf_param_memory(p, index, &memory);
    if (status == LF_OK)
        status = lf_tensor_floats(t, memory, &p->diag);
    if (status != LF_OK && !copied) /* without values, still or now */
        lf_param_leave_here(p, index);
    return status;
}

lf_status lf_program_load_params(lf_program *program, const char *path)
{
    if (!program)
        return LF_ERR_ARG;
    lf_program_begin(program);
    if (!path)
        return lf_fail(&program->diag, LF_ERR_ARG, "loading parameters wants a path");
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
