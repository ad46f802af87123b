/* SPDX-License-Identifier: Apache-2.0 */
#include "run/tensor.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"

size_t lf_tensor_count(const lf_tensor *t)
{
    size_t count = 1;
    for (int i = 0; t && i < t->rank; i++)
        count *= (size_t)t->extents[i];
    return t ? count : 0;
}

size_t lf_tensor_bytes(const lf_tensor *t)
{
    return t ? lf_tensor_count(t) * lf_dtype_size(t->dtype) : 0;
}

/* ---- what callers give ---- */

/* What the port declares, and what is wrong: "input x is f32[B, 4], but ...". */
static lf_status misfit(lf_diag *diag, lf_port_ref port, const char *what, ...) __attribute__((format(printf, 3, 4)));
static lf_status misfit(lf_diag *diag, lf_port_ref port, const char *what, ...)
{
    const lf_node_info *info = lf_at(port.graph, port.node);
    char shape[256], text[256];
    va_list args;
    va_start(args, what);
    vsnprintf(text, sizeof text, what, args);
    va_end(args);
    lf_shape_write(port.graph, &info->shape, shape, sizeof shape);
    return lf_fail(diag, LF_ERR_DATA, "%s %s is %s%s, but %s", port.kind, info->name, lf_dtype_name(info->dtype), shape,
                   text);
}

static lf_status check_extents(const lf_tensor *t, lf_port_ref port, lf_diag *diag)
{
    const lf_node_info *info = lf_at(port.graph, port.node);
    bool empty = false;
    for (int i = 0; i < t->rank; i++) {
        const lf_extent declared = info->shape.dim[i];
        if (t->extents[i] < 0 || (lf_extent_known(declared) && !lf_extent_is(declared, t->extents[i])))
            return misfit(diag, port, "extent %d of the tensor is %" PRId64, i, t->extents[i]);
        empty = empty || t->extents[i] == 0;
    }
    return t->data || empty ? LF_OK
                            : lf_fail(diag, LF_ERR_ARG, "%s %s: `data` must not be NULL", port.kind, info->name);
}

lf_status lf_tensor_check(const lf_tensor *t, lf_port_ref port, lf_diag *diag)
{
    const lf_node_info *info = lf_at(port.graph, port.node);
    if (!t)
        return lf_fail(diag, LF_ERR_ARG, "%s %s: the tensor must not be NULL", port.kind, info->name);
    if ((unsigned)t->dtype >= LF_DTYPES)
        return lf_fail(diag, LF_ERR_ARG, "%s %s: `dtype` is %d, which is no dtype", port.kind, info->name,
                       (int)t->dtype);
    if (t->memory != LF_HOST && t->memory != LF_DEVICE)
        return lf_fail(diag, LF_ERR_ARG, "%s %s: `memory` is %d, neither LF_HOST nor LF_DEVICE", port.kind, info->name,
                       (int)t->memory);
    if (t->dtype != info->dtype)
        return misfit(diag, port, "the tensor is %s", lf_dtype_name(t->dtype));
    if (t->rank != info->shape.rank)
        return misfit(diag, port, "the tensor has rank %d", t->rank);
    if (t->rank > 0 && !t->extents)
        return lf_fail(diag, LF_ERR_ARG, "%s %s: `extents` must not be NULL", port.kind, info->name);
    return check_extents(t, port, diag);
}

bool lf_tensor_is_dense(const lf_tensor *t)
{
    int64_t step = 1;
    bool dense = true;
    for (int i = t->rank - 1; t->strides && i >= 0; i--) {
        if (t->extents[i] == 0)
            return true;
        dense = dense && (t->extents[i] == 1 || t->strides[i] == step);
        step *= t->extents[i];
    }
    return dense;
}

lf_status lf_tensor_need_dense(const lf_tensor *t, lf_port_ref port, lf_diag *diag)
{
    return lf_tensor_is_dense(t)
               ? LF_OK
               : lf_fail(diag, LF_ERR_UNSUPPORTED, "%s %s: `strides` must be row-major without gaps; pass a dense copy",
                         port.kind, lf_at(port.graph, port.node)->name);
}

/* ---- elements in order ---- */

/* One axis and those inside it. from, to: bytes. */
static unsigned char *pack_axis(const lf_tensor *t, int axis, const unsigned char *from, unsigned char *to)
{
    const size_t size = lf_dtype_size(t->dtype);
    if (axis == t->rank) {
        memcpy(to, from, size);
        return to + size;
    }
    for (int64_t i = 0; i < t->extents[axis]; i++)
        to = pack_axis(t, axis + 1, from + i * t->strides[axis] * (int64_t)size, to);
    return to;
}

void lf_tensor_pack(const lf_tensor *t, void *to)
{
    if (!lf_tensor_is_dense(t))
        pack_axis(t, 0, t->data, to);
    else if (lf_tensor_count(t) > 0)
        memcpy(to, t->data, lf_tensor_bytes(t));
}

/* ---- named extents ---- */

static int single_symbol(lf_extent e)
{
    for (int s = 0; s < LF_MAX_SYMBOLS; s++)
        if (e.pow[s])
            return s;
    return -1;
}

lf_status lf_learn_dims(const lf_graph *g, const int64_t *const *extents, int64_t *dims, lf_diag *diag)
{
    int32_t from[LF_MAX_SYMBOLS];
    for (int s = 0; s < LF_MAX_SYMBOLS; s++)
        from[s] = -1;
    for (int32_t i = 0; i < g->inputs; i++) {
        const lf_node_info *info = lf_at(g, g->input[i]);
        for (int axis = 0; axis < info->shape.rank; axis++) {
            int s = single_symbol(info->shape.dim[axis]);
            if (s < 0)
                continue;
            if (from[s] >= 0 && dims[s] != extents[i][axis])
                return lf_fail(diag, LF_ERR_DATA, "extent %s is %" PRId64 " in input %s but %" PRId64 " in input %s",
                               g->symbol[s], dims[s], lf_at(g, g->input[from[s]])->name, extents[i][axis], info->name);
            dims[s] = extents[i][axis];
            from[s] = i;
        }
    }
    return lf_graph_check_dims(g, dims, diag);
}
