/* SPDX-License-Identifier: Apache-2.0 */
/* What can be said of a model only once its named extents are known. */
#include <inttypes.h>

#include "ir/graph.h"

/* How many elements of argument 0 one statistic of n is taken over. */
static int64_t spanned(const lf_graph *g, lf_node n, const int64_t *dims)
{
    const lf_shape *s = &lf_at(g, lf_arg_of(g, n, 0))->shape;
    unsigned axes = lf_span_axes(g, n);
    int64_t count = 1;
    for (int i = 0; i < s->rank; i++)
        count *= axes >> i & 1 ? lf_extent_at(s->dim[i], dims) : 1;
    return count / lf_segments(g, n);
}

/* PyTorch will not normalise one value by its own statistic, over channels, and has no largest of none. */
static lf_status check_statistic(const lf_graph *g, lf_node n, const int64_t *dims, lf_diag *diag)
{
    const lf_op_info *row = lf_op_row(lf_at(g, n)->op);
    const char *name = lf_at(g, n)->name;
    if (row->kind == LF_REDUCE && (row->monoid == LF_MONOID_max || row->monoid == LF_MONOID_min) &&
        spanned(g, n, dims) == 0 && lf_shape_count(&lf_at(g, n)->shape, dims) > 0)
        return lf_fail(diag, LF_ERR_DATA, "%s: %s of no elements", name, row->name);
    if (row->kind != LF_NORMALIZE || lf_uses_running_stats(g, n) || !lf_affine_of(g, n).channels)
        return LF_OK;
    /* group_norm's rows count as values too, as they do for PyTorch */
    const bool over_channels = lf_span_axes(g, n) >> 1 & 1;
    int64_t rows = over_channels ? lf_extent_at(lf_at(g, n)->shape.dim[0], dims) : 1;
    if (spanned(g, n, dims) * rows == 1)
        return lf_fail(diag, LF_ERR_DATA, "%s: %s over one value; it wants more for a statistic", name, row->name);
    return LF_OK;
}

lf_status lf_graph_check_dims(const lf_graph *g, const int64_t *dims, lf_diag *diag)
{
    lf_status status = LF_OK;
    for (int s = 0; s < g->symbols; s++)
        if (dims[s] < 0)
            return lf_fail(diag, LF_ERR_DATA, "extent %s cannot be %" PRId64, g->symbol[s], dims[s]);
    for (lf_node n = 0; n < g->count; n++)
        if (lf_shape_count(&lf_at(g, n)->shape, dims) < 0)
            return lf_fail(diag, LF_ERR_DATA, "%s would have more elements than can be counted", lf_at(g, n)->name);
    for (lf_node n = 0; n < g->count && status == LF_OK; n++)
        status = check_statistic(g, n, dims, diag);
    return status;
}
