/* SPDX-License-Identifier: Apache-2.0 */
/* The call handle: bindings, extents learnt from them, and the run itself. */
#include "run/call.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "run/tensor.h"

const char lf_not_prepared[] = "the parameters are not prepared: lf_program_prepare does it";
const char lf_needs_device_memory[] = "needs a program compiled for cuda";

/* Any number of threads may fail at once. why: stays. */
static lf_status fail_new(lf_program *program, lf_status status, const char *why)
{
    atomic_store_explicit(&program->no_call, why, memory_order_relaxed);
    return status;
}

/* Lists of ins inputs and outs outputs, 1 or more. False: no memory. */
static bool make_ports(lf_call *c, size_t ins, size_t outs)
{
    c->input = lf_arena_array(&c->arena, ins, sizeof *c->input);
    c->in = lf_arena_array(&c->arena, ins, sizeof *c->in);
    c->in_extents = lf_arena_array(&c->arena, ins, sizeof *c->in_extents);
    c->input_count = lf_arena_array(&c->arena, ins, sizeof *c->input_count);
    c->output = lf_arena_array(&c->arena, outs, sizeof *c->output);
    c->out = lf_arena_array(&c->arena, outs, sizeof *c->out);
    c->output_extent = lf_arena_array(&c->arena, outs, sizeof *c->output_extent);
    c->output_count = lf_arena_array(&c->arena, outs, sizeof *c->output_count);
    return c->input && c->in && c->in_extents && c->input_count && c->output && c->out && c->output_extent &&
           c->output_count;
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
    c->program = program;
    lf_arena_init(&c->arena);
    if (!make_ports(c, (size_t)g->inputs + 1, (size_t)g->outputs + 1) ||
        program->on.backend->call_new(program->compiled, &c->state) != LF_OK) {
        lf_call_free(c);
        return fail_new(program, LF_ERR_NOMEM, no_memory);
    }
    for (int32_t i = 0; i < g->inputs; i++)
        c->in_extents[i] = c->in[i].extent;
    c->job = (lf_backend_job){.dims = c->dims,
                              .input = c->input,
                              .output = c->output,
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

static bool has_device_memory(const lf_call *c) { return c->program->on.backend->memory != NULL; }

/* What a call asks of a tensor beside its port's dtype and shape. */
static lf_status check_tensor(lf_call *c, const lf_tensor *t, lf_port_ref port)
{
    lf_status status = lf_tensor_check(t, port, &c->diag);
    if (status == LF_OK)
        status = lf_tensor_need_dense(t, port, &c->diag);
    if (status == LF_OK && t->memory == LF_DEVICE && !has_device_memory(c))
        return lf_fail(&c->diag, LF_ERR_ARG, "%s %s: device memory %s", port.kind, lf_at(port.graph, port.node)->name,
                       lf_needs_device_memory);
    return status;
}

lf_status lf_call_set_input(lf_call *call, size_t index, const lf_tensor *tensor)
{
    if (!call)
        return LF_ERR_ARG;
    const lf_graph *g = &call->program->written;
    if (index >= (size_t)g->inputs)
        return lf_fail(&call->diag, LF_ERR_ARG, "the model has %d inputs, there is no input %zu", (int)g->inputs,
                       index);
    lf_status status = check_tensor(call, tensor, (lf_port_ref){"input", g, g->input[index]});
    if (status != LF_OK)
        return status;
    lf_binding *in = &call->in[index];
    const size_t bytes = (size_t)tensor->rank * sizeof *tensor->extents;
    if (!in->bound || (bytes > 0 && memcmp(in->extent, tensor->extents, bytes) != 0))
        call->learnt = false;
    if (in->memory != tensor->memory)
        call->fits = false;
    call->placed = false;
    call->input[index] = tensor->data;
    in->bound = true;
    in->memory = tensor->memory;
    if (bytes > 0)
        memcpy(in->extent, tensor->extents, bytes);
    return LF_OK;
}

static size_t product(const int64_t *extents, int rank)
{
    size_t count = 1;
    for (int i = 0; i < rank; i++)
        count *= (size_t)extents[i];
    return count;
}

lf_status lf_call_learn(lf_call *c)
{
    const lf_graph *g = &c->program->written;
    if (c->learnt)
        return LF_OK;
    for (int32_t i = 0; i < g->inputs; i++)
        if (!c->in[i].bound)
            return lf_fail(&c->diag, LF_ERR_ARG, "input %s is not bound", lf_at(g, g->input[i])->name);
    lf_status status = lf_learn_dims(g, c->in_extents, c->dims, &c->diag);
    if (status != LF_OK)
        return status;
    for (int32_t i = 0; i < g->inputs; i++)
        c->input_count[i] = product(c->in[i].extent, lf_at(g, g->input[i])->shape.rank);
    for (int32_t o = 0; o < g->outputs; o++) {
        const lf_shape *s = &lf_at(g, g->output[o])->shape;
        for (int axis = 0; axis < s->rank; axis++)
            c->output_extent[o][axis] = lf_extent_at(s->dim[axis], c->dims);
        c->output_count[o] = product(c->output_extent[o], s->rank);
    }
    c->job.batch = lf_extent_at(c->program->task.batch.rows, c->dims);
    c->learnt = true;
    c->fits = c->placed = false;
    return LF_OK;
}

static lf_status no_output(lf_call *c, size_t index)
{
    return lf_fail(&c->diag, LF_ERR_ARG, "the model has %d outputs, there is no output %zu",
                   (int)c->program->written.outputs, index);
}

lf_status lf_call_output(lf_call *call, size_t index, lf_tensor *out)
{
    if (!call)
        return LF_ERR_ARG;
    const lf_graph *g = &call->program->written;
    if (index >= (size_t)g->outputs)
        return no_output(call, index);
    if (!out)
        return lf_fail_null(&call->diag, "out");
    lf_status status = lf_call_learn(call);
    if (status != LF_OK)
        return status;
    const lf_node_info *info = lf_at(g, g->output[index]);
    *out = (lf_tensor){.data = call->output[index],
                       .dtype = info->dtype,
                       .rank = info->shape.rank,
                       .extents = call->output_extent[index],
                       .memory = g->inputs > 0 ? call->in[0].memory : LF_HOST};
    return LF_OK;
}

lf_status lf_call_set_output(lf_call *call, size_t index, const lf_tensor *tensor)
{
    if (!call)
        return LF_ERR_ARG;
    const lf_graph *g = &call->program->written;
    if (index >= (size_t)g->outputs)
        return no_output(call, index);
    lf_status status = check_tensor(call, tensor, (lf_port_ref){"output", g, g->output[index]});
    if (status != LF_OK)
        return status;
    lf_binding *out = &call->out[index];
    call->output[index] = tensor->data;
    out->bound = true;
    out->memory = tensor->memory;
    for (int i = 0; i < tensor->rank; i++)
        out->extent[i] = tensor->extents[i];
    call->fits = call->placed = false;
    return LF_OK;
}

static lf_status check_room(lf_call *c, int32_t output)
{
    const lf_node_info *info = lf_at(&c->program->written, c->program->written.output[output]);
    const int64_t *wanted = c->output_extent[output], *there = c->out[output].extent;
    for (int i = 0; c->out[output].bound && i < info->shape.rank; i++)
        if (wanted[i] != there[i])
            return lf_fail(&c->diag, LF_ERR_DATA,
                           "output %s: extent %d is %" PRId64 " for these inputs, but the tensor bound has %" PRId64,
                           info->name, i, wanted[i], there[i]);
    return LF_OK;
}

/* Outputs of the extents that the inputs ask for, and one sort of memory. */
static lf_status check_fit(lf_call *c)
{
    const lf_graph *g = &c->program->written;
    if (c->fits)
        return LF_OK;
    c->memory = g->inputs > 0 ? c->in[0].memory : c->out[0].memory;
    bool same = true;
    for (int32_t i = 0; i < g->inputs; i++)
        same = same && c->in[i].memory == c->memory;
    for (int32_t o = 0; o < g->outputs; o++) {
        lf_status status = check_room(c, o);
        if (status != LF_OK)
            return status;
        same = same && (!c->out[o].bound || c->out[o].memory == c->memory);
    }
    if (!same)
        return lf_fail(&c->diag, LF_ERR_ARG, "some tensors are in host memory and some in device memory");
    c->fits = true;
    return LF_OK;
}

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    uintptr_t a0 = (uintptr_t)a, b0 = (uintptr_t)b;
    return a_bytes && b_bytes && a0 < b0 + b_bytes && b0 < a0 + a_bytes;
}

static lf_status check_places(lf_call *c)
{
    const lf_graph *g = &c->program->written;
    if (c->placed)
        return LF_OK;
    for (int32_t o = 0; o < g->outputs; o++) {
        const size_t bytes = lf_bytes_of(g, g->output[o], c->output_count[o]);
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

static lf_status check_options(lf_call *c, const lf_run_options *options)
{
    if (has_device_memory(c) || (!options->stream && !options->workspace))
        return LF_OK;
    return lf_fail(&c->diag, LF_ERR_ARG, "`%s` %s", options->stream ? "stream" : "workspace", lf_needs_device_memory);
}

lf_status lf_call_ready(lf_call *c, const lf_run_options *options)
{
    if (!c->program->prepared)
        return lf_fail(&c->diag, LF_ERR_ARG, "%s", lf_not_prepared);
    lf_status status = check_options(c, options);
    if (status == LF_OK)
        status = lf_call_learn(c);
    if (status == LF_OK)
        status = check_fit(c);
    if (status == LF_OK)
        status = check_places(c);
    c->job.on_device = c->memory == LF_DEVICE;
    c->job.stream = options->stream;
    c->job.workspace = options->workspace;
    c->job.workspace_bytes = options->workspace_bytes;
    return status;
}

const lf_run_options lf_plain_run;

lf_status lf_call_run(lf_call *call, const lf_run_options *options)
{
    if (!call)
        return LF_ERR_ARG;
    options = options ? options : &lf_plain_run;
    lf_status status = lf_call_ready(call, options);
    if (status != LF_OK)
        return status;
    if (call->memory == LF_HOST)
        status = lf_graph_check_targets(&call->program->written, call->dims, call->input, &call->diag);
    if (status != LF_OK)
        return status;
    const int before = lf_pool_limit(options->threads);
    status = call->program->on.backend->run(call->state, &call->job, &call->diag);
    lf_pool_limit(before);
    return status;
}

/* ---- the fast path ---- */

/* The inputs' extents at these values of the names; what is known of the old ones goes. */
static void take_dims(lf_call *c, const int64_t *dims)
{
    const lf_graph *g = &c->program->written;
    for (int32_t i = 0; i < g->inputs; i++) {
        const lf_shape *s = &lf_at(g, g->input[i])->shape;
        for (int axis = 0; axis < s->rank; axis++)
            c->in[i].extent[axis] = lf_extent_at(s->dim[axis], dims);
        c->in[i].bound = true;
    }
    c->learnt = false;
}

/* All tensors are what they have to be at the extents learnt, in this sort of memory. */
static void take_fit(lf_call *c, lf_memory memory)
{
    const lf_graph *g = &c->program->written;
    for (int32_t i = 0; i < g->inputs; i++)
        c->in[i].memory = memory;
    for (int32_t o = 0; o < g->outputs; o++) {
        c->out[o] = (lf_binding){.bound = true, .memory = memory};
        memcpy(c->out[o].extent, c->output_extent[o], sizeof c->out[o].extent);
    }
    c->memory = memory;
    c->fits = true;
}

static lf_status check_addresses(lf_call *c, const int64_t *dims, const void *const *inputs, void *const *outputs,
                                 const lf_run_options *options)
{
    const lf_graph *g = &c->program->written;
    if (!dims && g->symbols > 0)
        return lf_fail_null(&c->diag, "dims");
    if ((!inputs && g->inputs > 0) || !outputs)
        return lf_fail_null(&c->diag, outputs ? "inputs" : "outputs");
    if (options->memory == LF_DEVICE && !has_device_memory(c))
        return lf_fail(&c->diag, LF_ERR_ARG, "`memory`: device memory %s", lf_needs_device_memory);
    for (int s = 0; s < g->symbols; s++)
        if (dims[s] < 0)
            return lf_fail(&c->diag, LF_ERR_DATA, "extent %s is %" PRId64 ", but must be 0 or more", g->symbol[s],
                           dims[s]);
    return LF_OK;
}

static lf_status bind_addresses(lf_call *c, const int64_t *dims, const void *const *inputs, void *const *outputs,
                                lf_memory memory)
{
    const lf_graph *g = &c->program->written;
    if (!c->learnt || (g->symbols > 0 && memcmp(c->dims, dims, (size_t)g->symbols * sizeof *dims) != 0)) {
        if (g->symbols > 0 && lf_graph_check_dims(g, dims, &c->diag) != LF_OK)
            return LF_ERR_DATA;
        take_dims(c, dims);
    }
    for (int32_t i = 0; i < g->inputs; i++)
        c->input[i] = inputs[i];
    for (int32_t o = 0; o < g->outputs; o++)
        c->output[o] = outputs[o];
    c->placed = false;
    lf_status status = lf_call_learn(c);
    for (int32_t i = 0; i < g->inputs && status == LF_OK; i++)
        if (!inputs[i] && c->input_count[i] > 0)
            status = lf_fail(&c->diag, LF_ERR_ARG, "input %s: the address must not be NULL",
                             lf_at(g, g->input[i])->name);
    if (status == LF_OK && (!c->fits || c->memory != memory))
        take_fit(c, memory);
    for (int32_t i = 0; i < g->inputs && status != LF_OK; i++)
        c->in[i].bound = c->learnt = false;
    return status;
}

lf_status lf_call_run_at(lf_call *call, const int64_t *dims, const void *const *inputs, void *const *outputs,
                         const lf_run_options *options)
{
    if (!call)
        return LF_ERR_ARG;
    options = options ? options : &lf_plain_run;
    lf_status status = check_addresses(call, dims, inputs, outputs, options);
    if (status == LF_OK)
        status = bind_addresses(call, dims, inputs, outputs, options->memory);
    return status == LF_OK ? lf_call_run(call, options) : status;
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
