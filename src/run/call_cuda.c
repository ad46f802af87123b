/* SPDX-License-Identifier: Apache-2.0 */
/* A call on a GPU. */
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
                         .stream = c->stream};
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

lf_status lf_call_time(lf_call *call, size_t runs, double *seconds)
{
    if (!call)
        return LF_ERR_ARG;
    if (!call->cuda || (runs > 0 && !seconds))
        return lf_fail(&call->diag, LF_ERR_ARG, "the device's clock times programs compiled for cuda, and wants a place for the times");
    lf_status status = lf_call_ready(call);
    if (status == LF_OK) /* memory, copies of inputs, warm code */
        status = lf_call_run_cuda(call);
    const lf_cuda_job job = job_of(call);
    return status == LF_OK ? lf_cuda_call_time(call->cuda, &job, runs, seconds, &call->diag) : status;
}
