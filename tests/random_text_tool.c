/* SPDX-License-Identifier: Apache-2.0 */
/* Random models with their data, for comparing one build's results with another's, to the bit (tools/bits).
 *
 *     random_text_tool COUNT     writes for each: "TEXT_BYTES LEAVES\n", the model's text, and for each input and then
 *                                each parameter "NAME RANK e0 e1 ...\n" and its f32 values */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random_model.h"

static bool write_leaf(const rnd_graph *graph, lf_node n, uint64_t seed)
{
    const lf_node_info *info = lf_at(&graph->g, n);
    const int rank = info->shape.rank;
    const int64_t count = rnd_count(graph, n);
    float *values = malloc(((size_t)count + 1) * sizeof *values);
    if (!values)
        return false;
    printf("%s %d", info->name, rank);
    for (int axis = 0; axis < rank; axis++)
        printf(" %" PRId64, lf_extent_at(info->shape.dim[axis], graph->dims));
    printf("\n");
    rnd_fill(seed, info->name, count, rank > 0 ? lf_extent_at(info->shape.dim[rank - 1], graph->dims) : 1, values);
    const bool written = fwrite(values, sizeof *values, (size_t)count, stdout) == (size_t)count;
    free(values);
    return written;
}

static bool write_case(const rnd_case *c)
{
    rnd_graph graph;
    bool written = rnd_graph_read(c, &graph) == LF_OK;
    const lf_graph *g = &graph.g;
    if (written)
        printf("%zu %d\n%s", strlen(c->text), g->inputs + g->params, c->text);
    for (int32_t i = 0; written && i < g->inputs; i++)
        written = write_leaf(&graph, g->input[i], c->seed);
    for (int32_t i = 0; written && i < g->params; i++)
        written = write_leaf(&graph, g->param[i], c->seed);
    rnd_graph_free(&graph);
    return written;
}

int main(int argc, char **argv)
{
    static rnd_case c;
    const long count = argc > 1 ? strtol(argv[1], NULL, 0) : 0;
    uint64_t seed = 1;
    for (long made = 0; made < count; seed++)
        if (rnd_make(seed, &c) && (made++, !write_case(&c)))
            return 1;
    return 0;
}
