/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays in files, as .npy. */
#include <linfuse_tools.h>

#include <stdlib.h>

#include "base/mem.h"
#include "io/file.h"
#include "io/npy.h"
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
    if (!out)
        return lf_fail_null(&context->diag, "out");
    *out = NULL;
    if (!path)
        return lf_fail_null(&context->diag, "path");
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
    if (!path)
        return lf_fail_null(&context->diag, "path");
    if (rank < 0 || rank > LF_MAX_RANK)
        return lf_fail(&context->diag, LF_ERR_ARG, "`rank` is %d, and must be between 0 and %d", rank, LF_MAX_RANK);
    if (rank > 0 && !extents)
        return lf_fail(&context->diag, LF_ERR_ARG, "`extents` must not be NULL where `rank` is not 0");
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
