/* SPDX-License-Identifier: Apache-2.0 */
/* The call handle: bindings, extents learnt from them, and the run itself. */
#include "run/call.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Any number of threads may fail at once. why: stays. */
static lf_status fail_new(lf_program *program, lf_status status, const char *why)
{
    atomic_store_explicit(&program->no_call, why, memory_order_relaxed);
    return status;
}

lf_status lf_call_new(lf_program *program, lf_call **out)
{
    static const char no_memory[] = "out of memory for the call";
    if (!program)
        return LF_ERR_ARG;
    if (!out)
        return fail_new(program, LF_ERR_ARG, "`out` must not be NULL");
    *out = NULL;
    if (!program->on.backend->call_new)
        return fail_new(program, LF_ERR_DEVICE, program->no_device);
    lf_call *c = calloc(1, sizeof *c);
    if (!c)
        return fail_new(program, LF_ERR_NOMEM, no_memory);
    const lf_graph *g = &program->written;
    size_t in = (size_t)g->inputs + 1, outs = (size_t)g->outputs + 1;
    c->program = program;
    lf_arena_init(&c->arena);
    c->input = lf_arena_array(&c->arena, in, sizeof *c->input);
    c->bound = lf_arena_array(&c->arena, in, sizeof *c->bound);
    c->extent = lf_arena_array(&c->arena, in, sizeof *c->extent);
    c->output = lf_arena_array(&c->arena, outs, sizeof *c->output);
    c->input_count = lf_arena_array(&c->arena, in, sizeof *c->input_count);
    c->output_count = lf_arena_array(&c->arena, outs, sizeof *c->output_count);
    if (!c->input || !c->bound || !c->extent || !c->output || !c->input_count || !c->output_count ||
        program->on.backend->call_new(program->compiled, &c->state) != LF_OK) {
        lf_call_free(c);
        return fail_new(program, LF_ERR_NOMEM, no_memory);
    }
    c->job = (lf_backend_job){.dims = c->dims,
                              .input = (const void *const *)c->input,
                              .output = (void *const *)c->output,
                              .input_count = c->input_count,
                              .output_count = c->output_count};
    *out = c;
    return LF_OK;
}

void lf_call_free(lf_call *call)
{
    if (!call)
        return;
    call->program->on.backend->call_free(call->state);
    lf_arena_free(&call->arena);
    free(call);
}

const char *lf_call_message(const lf_call *call) { return call ? call->diag.text : "no call"; }

/* ---- bindings ---- */

static int single_symbol(lf_extent e)
{
    for (int s = 0; s < LF_MAX_SYMBOLS; s++)
        if (e.pow[s])
            return s;
    return -1;
}

lf_status lf_call_set_input(lf_call *call, size_t index, int rank, const int64_t *extents, const void *data)
{
    if (!call)
        return LF_ERR_ARG;
    const lf_graph *g = &call->program->written;
    if (index >= (size_t)g->inputs)
        return lf_fail(&call->diag, LF_ERR_ARG, "the model has %d inputs, there is no input %zu", (int)g->inputs,
                       index);
    const lf_node_info *info = lf_at(g, g->input[index]);
    if (rank != info->shape.rank || (rank > 0 && !extents))
        return lf_fail(&call->diag, LF_ERR_DATA, "input %s is %s, rank %d, but the data have rank %d", info->name,
                       call->program->input_text[index], info->shape.rank, rank);
    bool empty = false;
    for (int i = 0; i < rank; i++) {
        bool named = single_symbol(info->shape.dim[i]) >= 0;
        if (extents[i] < 0 || (!named && !lf_extent_is(info->shape.dim[i], extents[i])))
            return lf_fail(&call->diag, LF_ERR_DATA, "input %s is %s, but extent %d of the data is %" PRId64,
                           info->name, call->program->input_text[index], i, extents[i]);
        empty = empty || extents[i] == 0;
    }
    if (!data && !empty)
        return lf_fail(&call->diag, LF_ERR_ARG, "input %s: no data", info->name);
    if (!call->bound[index] || (rank > 0 && memcmp(call->extent[index], extents, (size_t)rank * sizeof *extents) != 0))
        call->learnt = false;
    call->placed = false;
    call->input[index] = data;
    call->bound[index] = true;
    for (int i = 0; i < rank; i++)
        call->extent[index][i] = extents[i];
    return LF_OK;
}

static size_t elements(const lf_call *c, lf_node port)
{
    return (size_t)lf_shape_count(&lf_at(&c->program->written, port)->shape, c->dims);
}

lf_status lf_call_learn(lf_call *c)
{
    const lf_graph *g = &c->program->written;
    if (c->learnt)
        return LF_OK;
    int32_t from[LF_MAX_SYMBOLS];
    for (int s = 0; s < LF_MAX_SYMBOLS; s++)
        from[s] = -1;
    for (int32_t i = 0; i < g->inputs; i++) {
        const lf_node_info *info = lf_at(g, g->input[i]);
        if (!c->bound[i])
            return lf_fail(&c->diag, LF_ERR_ARG, "input %s is not bound", info->name);
        for (int axis = 0; axis < info->shape.rank; axis++) {
            int s = single_symbol(info->shape.dim[axis]);
            int64_t extent = c->extent[i][axis];
            if (s < 0)
                continue;
            if (from[s] >= 0 && c->dims[s] != extent)
                return lf_fail(&c->diag, LF_ERR_DATA,
                               "extent %s is %" PRId64 " in input %s but %" PRId64 " in input %s", g->symbol[s],
                               c->dims[s], lf_at(g, g->input[from[s]])->name, extent, info->name);
            c->dims[s] = extent;
            from[s] = i;
        }
    }
    lf_status status = lf_graph_check_dims(g, c->dims, &c->diag);
    if (status != LF_OK)
        return status;
    for (int32_t i = 0; i < g->inputs; i++)
        c->input_count[i] = elements(c, g->input[i]);
    for (int32_t o = 0; o < g->outputs; o++)
        c->output_count[o] = elements(c, g->output[o]);
    c->job.batch = lf_extent_at(c->program->task.batch.rows, c->dims);
    c->learnt = true;
    return LF_OK;
}

lf_status lf_call_output_shape(lf_call *call, size_t index, int *rank, int64_t *extents)
{
    if (!call)
        return LF_ERR_ARG;
    const lf_graph *g = &call->program->written;
    if (index >= (size_t)g->outputs || !rank || !extents)
        return lf_fail(&call->diag, LF_ERR_ARG, "the model has %d outputs, there is no output %zu", (int)g->outputs,
                       index);
    lf_status status = lf_call_learn(call);
    if (status != LF_OK)
        return status;
    const lf_shape *s = &lf_at(g, g->output[index])->shape;
    *rank = s->rank;
    for (int i = 0; i < s->rank; i++)
        extents[i] = lf_extent_at(s->dim[i], call->dims);
    return LF_OK;
}

lf_status lf_call_set_output(lf_call *call, size_t index, void *data)
{
    if (!call)
        return LF_ERR_ARG;
    if (index >= (size_t)call->program->written.outputs)
        return lf_fail(&call->diag, LF_ERR_ARG, "the model has %d outputs, there is no output %zu",
                       (int)call->program->written.outputs, index);
    call->output[index] = data;
    call->placed = false;
    return LF_OK;
}

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    uintptr_t a0 = (uintptr_t)a, b0 = (uintptr_t)b;
    return a_bytes && b_bytes && a0 < b0 + b_bytes && b0 < a0 + a_bytes;
}

static lf_status check_outputs(lf_call *c)
{
    const lf_graph *g = &c->program->written;
    if (c->placed)
        return LF_OK;
    for (int32_t o = 0; o < g->outputs; o++) {
        size_t bytes = lf_bytes_of(g, g->output[o], c->output_count[o]);
        const char *name = lf_at(g, g->output[o])->name;
        if (!c->output[o] && bytes > 0)
            return lf_fail(&c->diag, LF_ERR_ARG, "output %s is not bound", name);
        for (int32_t i = 0; i < g->inputs; i++)
            if (overlap(c->output[o], bytes, c->input[i], lf_bytes_of(g, g->input[i], c->input_count[i])))
                return lf_fail(&c->diag, LF_ERR_ARG, "output %s overlaps input %s", name, lf_at(g, g->input[i])->name);
        for (int32_t i = 0; i < o; i++)
            if (overlap(c->output[o], bytes, c->output[i], lf_bytes_of(g, g->output[i], c->output_count[i])))
                return lf_fail(&c->diag, LF_ERR_ARG, "output %s overlaps output %s", name,
                               lf_at(g, g->output[i])->name);
    }
    c->placed = true;
    return LF_OK;
}

/* ---- running ---- */

lf_status lf_call_ready(lf_call *c)
{
    if (!c->program->prepared)
        return lf_fail(&c->diag, LF_ERR_ARG, "the program's parameters are not prepared");
    lf_status status = lf_call_learn(c);
    return status == LF_OK ? check_outputs(c) : status;
}

lf_status lf_call_run(lf_call *call)
{
    if (!call)
        return LF_ERR_ARG;
    lf_status status = lf_call_ready(call);
    if (status != LF_OK)
        return status;
    return call->program->on.backend->run(call->state, &call->job, &call->diag);
}

/* The inputs' extents at these values of the names; what is known of the old ones goes. */
static void take_dims(lf_call *c, const int64_t *dims)
{
    const lf_graph *g = &c->program->written;
    for (int32_t i = 0; i < g->inputs; i++) {
        const lf_shape *s = &lf_at(g, g->input[i])->shape;
        for (int axis = 0; axis < s->rank; axis++)
            c->extent[i][axis] = lf_extent_at(s->dim[axis], dims);
        c->bound[i] = true;
    }
    c->learnt = false;
}

lf_status lf_call_run_at(lf_call *call, const int64_t *dims, const float *const *inputs, float *const *outputs,
                         int threads)
{
    if (!call)
        return LF_ERR_ARG;
    const lf_graph *g = &call->program->written;
    if ((!dims && g->symbols > 0) || (!inputs && g->inputs > 0) || (!outputs && g->outputs > 0))
        return lf_fail(&call->diag, LF_ERR_ARG, "a run in one go wants extents, inputs and outputs");
    for (int s = 0; s < g->symbols; s++)
        if (dims[s] < 0)
            return lf_fail(&call->diag, LF_ERR_DATA, "extent %s cannot be %" PRId64, g->symbol[s], dims[s]);
    if (!call->learnt || (g->symbols > 0 && memcmp(call->dims, dims, (size_t)g->symbols * sizeof *dims) != 0))
        take_dims(call, dims);
    for (int32_t i = 0; i < g->inputs; i++)
        call->input[i] = inputs[i];
    for (int32_t o = 0; o < g->outputs; o++)
        call->output[o] = outputs[o];
    call->placed = false;
    lf_status status = lf_call_learn(call);
    for (int32_t i = 0; i < g->inputs && status == LF_OK; i++)
        if (!inputs[i] && call->input_count[i] > 0)
            status = lf_fail(&call->diag, LF_ERR_ARG, "input %s: no data", lf_at(g, g->input[i])->name);
    if (status != LF_OK) {
        memset(call->bound, 0, (size_t)g->inputs * sizeof *call->bound);
        call->learnt = false;
        return status;
    }
    int before = lf_pool_limit(threads);
    status = lf_call_run(call);
    lf_pool_limit(before);
    return status;
}

int64_t lf_call_rows_redone(const lf_call *call)
{
    return call ? call->program->on.backend->rows_redone(call->state) : 0;
}

size_t lf_call_memory(const lf_call *call)
{
    if (!call)
        return 0;
    return sizeof *call + lf_arena_bytes(&call->arena) + call->program->on.backend->call_bytes(call->state);
}
