/* SPDX-License-Identifier: Apache-2.0 */
/* A graph copied into another arena, node for node. */
#include <assert.h>
#include <string.h>

#include "ir/graph.h"

lf_status lf_graph_copy(const lf_graph *from, lf_graph *to)
{
    lf_status status = LF_OK;
    for (int i = 0; i < from->symbols && status == LF_OK; i++)
        status = lf_graph_symbol(to, from->symbol[i], strlen(from->symbol[i]), &(int){0});
    for (lf_node n = 0; n < from->count && status == LF_OK; n++) {
        const lf_node_info *info = lf_at(from, n);
        lf_node copy = LF_NONE;
        if (lf_op_row(info->op)->kind == LF_LEAF)
            status = lf_graph_leaf_like(to, info, &copy);
        else
            status = lf_graph_op(to, info->name, info->op, info->arg, info->attr, &copy);
        assert(status != LF_OK || copy == n);
    }
    return status == LF_OK ? lf_graph_return(to, from->output, (size_t)from->outputs) : status;
}
