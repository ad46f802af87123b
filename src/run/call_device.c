/* SPDX-License-Identifier: Apache-2.0 */
/* Calls on a device that has memory and streams of its own. */
#include <linfuse_tools.h>

#include "run/call.h"

static bool has_device_memory(const lf_call *c)
{
    return c->program->on.backend->memory != NULL;
}

lf_status lf_call_use_stream(lf_call *call, void *stream)
{
    if (!call)
        return LF_ERR_ARG;
    if (!has_device_memory(call))
        return lf_fail(&call->diag, LF_ERR_ARG, "a stream is for programs compiled for cuda");
    call->job.on_device = true;
    call->job.stream = stream;
    return LF_OK;
}

/* ---- workspace of the caller's ---- */

static lf_status want_device_memory(lf_call *c, const char *what)
{
    if (!has_device_memory(c))
        return lf_fail(&c->diag, LF_ERR_ARG, "%s is for programs compiled for cuda", what);
    return c->program->prepared ? LF_OK : lf_fail(&c->diag, LF_ERR_ARG, "the program's parameters are not prepared");
}

lf_status lf_call_workspace_at(lf_call *call, const int64_t *dims, size_t *bytes)
{
    if (!call)
        return LF_ERR_ARG;
    const lf_graph *g = &call->program->written;
    if (!bytes || (!dims && g->symbols > 0))
        return lf_fail(&call->diag, LF_ERR_ARG, "asking for the workspace wants extents and a place for the answer");
    lf_status status = want_device_memory(call, "a workspace on the device");
    int64_t wanted = 0;
    dims = dims ? dims : call->dims;
    if (status == LF_OK)
        status = lf_graph_check_dims(g, dims, &call->diag);
    if (status == LF_OK)
        status = call->program->on.backend->workspace(call->program->compiled, dims, &wanted, &call->diag);
    *bytes = (size_t)wanted;
    return status;
}

lf_status lf_call_workspace(lf_call *call, size_t *bytes)
{
    if (!call)
        return LF_ERR_ARG;
    lf_status status = want_device_memory(call, "a workspace on the device");
    if (status == LF_OK)
        status = lf_call_learn(call);
    return status == LF_OK ? lf_call_workspace_at(call, call->dims, bytes) : status;
}

lf_status lf_call_use_workspace(lf_call *call, void *memory, size_t bytes)
{
    if (!call)
        return LF_ERR_ARG;
    if (!has_device_memory(call))
        return lf_fail(&call->diag, LF_ERR_ARG, "a workspace on the device is for programs compiled for cuda");
    call->job.workspace = memory;
    call->job.workspace_bytes = memory ? bytes : 0;
    return LF_OK;
}

lf_status lf_call_run_on(lf_call *call, const int64_t *dims, const float *const *inputs, float *const *outputs,
                         void *stream, void *workspace, size_t workspace_bytes)
{
    lf_status status = lf_call_use_stream(call, stream);
    if (status != LF_OK)
        return status;
    void *const before = call->job.workspace;
    const size_t before_bytes = call->job.workspace_bytes;
    if (workspace) {
        call->job.workspace = workspace;
        call->job.workspace_bytes = workspace_bytes;
    }
    status = lf_call_run_at(call, dims, inputs, outputs, 0);
    call->job.workspace = before;
    call->job.workspace_bytes = before_bytes;
    return status;
}

lf_status lf_call_time(lf_call *call, size_t runs, double *seconds)
{
    if (!call)
        return LF_ERR_ARG;
    const lf_backend *backend = call->program->on.backend;
    if (!backend->time || (runs > 0 && !seconds))
        return lf_fail(&call->diag, LF_ERR_ARG,
                       "the device's clock times programs compiled for cuda, and wants a place for the times");
    lf_status status = lf_call_ready(call);
    return status == LF_OK ? backend->time(call->state, &call->job, runs, seconds, &call->diag) : status;
}
