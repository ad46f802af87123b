/* SPDX-License-Identifier: Apache-2.0 */
/* A call on a GPU. */
#include <linfuse_tools.h>

#include "run/call.h"

static lf_cuda_job job_of(const lf_call *c)
{
    const lf_program *p = c->program;
    const lf_variant *v = p->fused.ready ? &p->fused : &p->exact;
    return (lf_cuda_job){.program = v->cuda,
                         .dims = c->dims,
                         .batch = c->batch,
                         .input = (const void *const *)c->input,
                         .output = (void *const *)c->output,
                         .on_host = !c->on_device,
                         .stream = c->stream,
                         .lent = c->lent,
                         .lent_bytes = c->lent_bytes};
}

lf_status lf_call_run_cuda(lf_call *c)
{
    const lf_cuda_job job = job_of(c);
    return lf_cuda_call_run(c->cuda, &job, &c->diag);
}

lf_status lf_call_use_stream(lf_call *call, void *stream)
{
    if (!call)
        return LF_ERR_ARG;
    if (!call->cuda)
        return lf_fail(&call->diag, LF_ERR_ARG, "a stream is for programs compiled for cuda");
    call->on_device = true;
    call->stream = stream;
    return LF_OK;
}

/* ---- workspace of the caller's ---- */

static lf_status want_cuda(lf_call *c, const char *what)
{
    if (!c->cuda)
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
    lf_status status = want_cuda(call, "a workspace on the device");
    int64_t wanted = 0;
    dims = dims ? dims : call->dims;
    if (status == LF_OK)
        status = lf_graph_check_dims(g, dims, &call->diag);
    if (status == LF_OK)
        status = lf_cuda_workspace(job_of(call).program, dims, &wanted, &call->diag);
    *bytes = (size_t)wanted;
    return status;
}

lf_status lf_call_workspace(lf_call *call, size_t *bytes)
{
    if (!call)
        return LF_ERR_ARG;
    lf_status status = want_cuda(call, "a workspace on the device");
    if (status == LF_OK)
        status = lf_call_learn(call);
    return status == LF_OK ? lf_call_workspace_at(call, call->dims, bytes) : status;
}

lf_status lf_call_use_workspace(lf_call *call, void *memory, size_t bytes)
{
    if (!call)
        return LF_ERR_ARG;
    if (!call->cuda)
        return lf_fail(&call->diag, LF_ERR_ARG, "a workspace on the device is for programs compiled for cuda");
    call->lent = memory;
    call->lent_bytes = memory ? bytes : 0;
    return LF_OK;
}

lf_status lf_call_run_on(lf_call *call, const int64_t *dims, const float *const *inputs, float *const *outputs,
                         void *stream, void *workspace, size_t workspace_bytes)
{
    lf_status status = lf_call_use_stream(call, stream);
    if (status != LF_OK)
        return status;
    void *const before = call->lent;
    const size_t before_bytes = call->lent_bytes;
    if (workspace) {
        call->lent = workspace;
        call->lent_bytes = workspace_bytes;
    }
    status = lf_call_run_at(call, dims, inputs, outputs, 0);
    call->lent = before;
    call->lent_bytes = before_bytes;
    return status;
}

lf_status lf_call_time(lf_call *call, size_t runs, double *seconds)
{
    if (!call)
        return LF_ERR_ARG;
    if (!call->cuda || (runs > 0 && !seconds))
        return lf_fail(&call->diag, LF_ERR_ARG,
                       "the device's clock times programs compiled for cuda, and wants a place for the times");
    lf_status status = lf_call_ready(call);
    if (status == LF_OK) /* memory, copies of inputs, warm code */
        status = lf_call_run_cuda(call);
    const lf_cuda_job job = job_of(call);
    return status == LF_OK ? lf_cuda_call_time(call->cuda, &job, runs, seconds, &call->diag) : status;
}
