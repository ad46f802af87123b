/* SPDX-License-Identifier: Apache-2.0 */
/* Targets of losses, checked before anything is computed. */
#include <inttypes.h>

#include "ir/graph.h"

/* The input whose elements n's are, seen through views; -1: there is none. */
static int32_t input_of(const lf_graph *g, lf_node n)
{
    while (lf_kind_of(g, n) == LF_VIEW)
        n = lf_arg_of(g, n, 0);
    for (int32_t i = 0; i < g->inputs; i++)
        if (g->input[i] == n)
            return i;
    return -1;
}

static lf_status check(const lf_graph *g, lf_node n, const int64_t *dims, const void *const *inputs, lf_diag *diag)
{
    const lf_node target = lf_arg_of(g, n, 1);
    const int32_t from = input_of(g, target);
    const int64_t ignored = (int64_t)lf_attr_of(g, n, "ignore_index")->number;
    const lf_shape *x = &lf_at(g, lf_arg_of(g, n, 0))->shape;
    const int64_t classes = x->dim[x->rank > 1].coef, count = lf_shape_count(&lf_at(g, target)->shape, dims);
    for (int64_t i = 0; from >= 0 && i < count; i++) {
        const int64_t class = ((const int64_t *)inputs[from])[i];
        if (class != ignored && (class < 0 || class >= classes))
            return lf_fail(diag, LF_ERR_DATA,
                           "input %s: target %" PRId64 " is %" PRId64 ", but %s has classes 0 to %" PRId64
                           "; give a target that is to be left out as ignore_index=%" PRId64,
                           lf_at(g, g->input[from])->name, i, class, lf_at(g, n)->name, classes - 1, ignored);
    }
    return LF_OK;
}

lf_status lf_graph_check_targets(const lf_graph *g, const int64_t *dims, const void *const *inputs, lf_diag *diag)
{
    lf_status status = LF_OK;
    bool positions = false;
    for (int32_t i = 0; i < g->inputs; i++)
        positions = positions || lf_at(g, g->input[i])->dtype == LF_I64;
    for (lf_node n = 0; positions && n < g->count && status == LF_OK; n++)
        if (lf_kind_of(g, n) == LF_LOSS)
            status = check(g, n, dims, inputs, diag);
    return status;
}
