/* SPDX-License-Identifier: Apache-2.0 */
/* Double-precision evaluation for test_eval_torch.py, many models a process.
 *
 *   eval_tool ops      prints the public ops: name, kind and signature, a tab between
 *   eval_tool          answers requests on stdin until it ends:
 *
 *     request   "TEXT_BYTES FLOATS DIMS d0 d1 ...\n", then the model's text, then FLOATS f32 of the machine's byte
 *               order: the inputs, then the parameters, each in order of declaration. d0, d1: the named extents, in
 *               order of appearance.
 *     answer    "ok OUTPUTS\n", then for each "RANK e0 e1 ...\n" and its doubles;
 *               or "error STATUS BYTES\n" and a message. */
#include "ir/graph.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct request {
    size_t text_bytes, floats;
    int dims;
    int64_t dim[LF_MAX_SYMBOLS];
    char *text;
    float *data;
} request;

/* False at the end of stdin; a request that breaks off half way ends the process. */
static bool read_request(request *r)
{
    if (scanf("%zu %zu %d", &r->text_bytes, &r->floats, &r->dims) != 3)
        return false;
    if (r->dims < 0 || r->dims > LF_MAX_SYMBOLS)
        exit(2);
    for (int i = 0; i < r->dims; i++)
        if (scanf("%" SCNd64, &r->dim[i]) != 1)
            exit(2);
    r->text = malloc(r->text_bytes + 1);
    r->data = malloc((r->floats + 1) * sizeof(float));
    if (!r->text || !r->data || getchar() != '\n' || fread(r->text, 1, r->text_bytes, stdin) != r->text_bytes ||
        fread(r->data, sizeof(float), r->floats, stdin) != r->floats)
        exit(2);
    return true;
}

/* Hands the request's floats out to inputs and parameters. */
static lf_status bind_leaves(const lf_graph *g, const request *r, lf_bound *bound, lf_diag *diag)
{
    if (g->symbols != r->dims)
        return lf_fail(diag, LF_ERR_ARG, "%d named extents, %d given", g->symbols, r->dims);
    size_t used = 0;
    for (int32_t i = 0; i < g->inputs + g->params; i++) {
        lf_node n = i < g->inputs ? g->input[i] : g->param[i - g->inputs];
        size_t count = (size_t)lf_shape_count(&lf_at(g, n)->shape, r->dim);
        if (count > r->floats - used)
            return lf_fail(diag, LF_ERR_ARG, "%s wants more data than was given", lf_at(g, n)->name);
        bound[n].data = r->data + used;
        used += count;
    }
    return used == r->floats ? LF_OK : lf_fail(diag, LF_ERR_ARG, "%zu floats given, %zu used", r->floats, used);
}

static void write_outputs(const lf_graph *g, const request *r, double *const *out)
{
    printf("ok %d\n", (int)g->outputs);
    for (int32_t i = 0; i < g->outputs; i++) {
        const lf_shape *shape = &lf_at(g, g->output[i])->shape;
        printf("%d", shape->rank);
        for (int axis = 0; axis < shape->rank; axis++)
            printf(" %" PRId64, lf_extent_at(shape->dim[axis], r->dim));
        printf("\n");
        fwrite(out[i], sizeof(double), (size_t)lf_shape_count(shape, r->dim), stdout);
    }
}

static lf_status answer(lf_arena *arena, const request *r, lf_diag *diag)
{
    lf_graph g;
    lf_status status = lf_graph_init(&g, arena, diag);
    if (!status)
        status = lf_text_read(&g, "model", r->text, r->text_bytes);
    if (status)
        return status;
    lf_bound *bound = lf_arena_array(arena, (size_t)g.count, sizeof *bound);
    double **out = lf_arena_array(arena, (size_t)g.outputs, sizeof *out);
    if (!bound || !out)
        return lf_fail_nomem(diag, "the tool");
    status = bind_leaves(&g, r, bound, diag);
    for (int32_t i = 0; i < g.outputs && !status; i++) {
        out[i] = lf_arena_array(arena, (size_t)lf_shape_count(&lf_at(&g, g.output[i])->shape, r->dim), sizeof(double));
        if (!out[i])
            return lf_fail_nomem(diag, "the tool");
    }
    if (!status)
        status = lf_eval(&g, r->dim, bound, g.output, (size_t)g.outputs, out, diag);
    if (!status)
        write_outputs(&g, r, out);
    return status;
}

static int print_ops(void)
{
    for (int op = 0; op < LF_OP_COUNT; op++) {
        const lf_op_info *row = lf_op_row((lf_op)op);
        if (lf_op_public((lf_op)op))
            printf("%s\t%s\t%s\n", row->name, lf_kind_name(row->kind), row->signature);
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return strcmp(argv[1], "ops") == 0 ? print_ops() : 2;
    for (request r; read_request(&r);) {
        lf_arena arena;
        lf_diag diag = {.text = ""};
        lf_arena_init(&arena);
        lf_status status = answer(&arena, &r, &diag);
        if (status)
            printf("error %d %zu\n%s", (int)status, strlen(diag.text), diag.text);
        fflush(stdout);
        lf_arena_free(&arena);
        free(r.text);
        free(r.data);
    }
    return 0;
}
