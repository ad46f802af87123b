/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays in files, as .npy; their elements; texts in files. */
#include <linfuse_tools.h>

#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "io/file.h"
#include "io/npy.h"
#include "run/handles.h"
#include "run/tensor.h"

struct lf_array {
    lf_file file;
    lf_npy npy;
    lf_tensor tensor;
    void *copy; /* owned; NULL where data lies in the file */
};

lf_status lf_array_open(lf_context *context, const char *path, lf_array **out)
{
    if (!context)
        return LF_ERR_ARG;
    if (!out)
        return lf_fail_null(&context->diag, "out");
    *out = NULL;
    if (!path)
        return lf_fail_null(&context->diag, "path");
    lf_array *a = *out = calloc(1, sizeof *a);
    if (!a)
        return lf_fail_nomem(&context->diag, path);
    const void *data = NULL;
    lf_status status = lf_file_map(path, &a->file, &context->diag);
    if (status == LF_OK)
        status = lf_npy_read(a->file.bytes, a->file.size, path, &a->npy, &context->diag);
    if (status == LF_OK)
        status = lf_npy_data(a->file.bytes, &a->npy, &data, &a->copy, &context->diag);
    a->tensor = (lf_tensor){
        .data = (void *)data, .dtype = a->npy.dtype, .rank = a->npy.rank, .extents = a->npy.extents};
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

lf_tensor lf_array_tensor(const lf_array *array) { return array ? array->tensor : (lf_tensor){0}; }

/* What .npy files are written from. */
static lf_status check_saved(const lf_tensor *t, const char *path, lf_diag *diag)
{
    if (t->rank < 0 || t->rank > LF_MAX_RANK)
        return lf_fail(diag, LF_ERR_ARG, "%s: `rank` is %d, and must be between 0 and %d", path, t->rank, LF_MAX_RANK);
    if (t->rank > 0 && !t->extents)
        return lf_fail(diag, LF_ERR_ARG, "%s: `extents` must not be NULL", path);
    if (!lf_dtype_name(t->dtype))
        return lf_fail(diag, LF_ERR_ARG, "%s: `dtype` is %d, which is none", path, (int)t->dtype);
    if (t->memory != LF_HOST || !lf_tensor_is_dense(t))
        return lf_fail(diag, LF_ERR_UNSUPPORTED,
                       "%s: only tensors in host memory, row-major without gaps, can be saved", path);
    return LF_OK;
}

lf_status lf_array_save(lf_context *context, const char *path, const lf_tensor *tensor)
{
    if (!context)
        return LF_ERR_ARG;
    if (!path || !tensor)
        return lf_fail_null(&context->diag, path ? "tensor" : "path");
    lf_status status = check_saved(tensor, path, &context->diag);
    if (status != LF_OK)
        return status;
    unsigned char head[LF_NPY_HEADER_MAX];
    size_t used, bytes = lf_dtype_size(tensor->dtype);
    bool fits = lf_npy_header(tensor->dtype, tensor->rank, tensor->extents, head, sizeof head, &used) == LF_OK;
    for (int i = 0; i < tensor->rank && fits; i++)
        fits = lf_mul_size(bytes, (size_t)tensor->extents[i], &bytes);
    if (!fits)
        return lf_fail(&context->diag, LF_ERR_ARG, "%s: these extents make no array", path);
    if (!tensor->data && bytes > 0)
        return lf_fail(&context->diag, LF_ERR_ARG, "%s: `data` must not be NULL", path);
    return lf_file_write(path, head, used, tensor->data, bytes, &context->diag);
}

/* ---- elements ---- */

lf_status lf_convert(lf_dtype from_type, const void *from, lf_dtype to_type, void *to, size_t count)
{
    if (!lf_dtype_name(from_type) || !lf_dtype_name(to_type) || !lf_dtype_is_float(from_type) ||
        !lf_dtype_is_float(to_type) || (count > 0 && (!from || !to)))
        return LF_ERR_ARG;
    lf_retype(from_type, from, to_type, to, (int64_t)count);
    return LF_OK;
}

/* ---- text files ---- */

lf_status lf_text_save(lf_context *context, const char *path, const char *text)
{
    if (!context)
        return LF_ERR_ARG;
    if (!path || !text)
        return lf_fail_null(&context->diag, path ? "text" : "path");
    return lf_file_write(path, text, strlen(text), NULL, 0, &context->diag);
}
