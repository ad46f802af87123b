/* SPDX-License-Identifier: Apache-2.0 */
/* Calls on a device that has memory and a clock of its own. */
#include <linfuse_tools.h>

#include "run/call.h"

lf_status lf_call_workspace(lf_call *call, const int64_t *dims, size_t *bytes)
{
    if (!call)
        return LF_ERR_ARG;
    if (!bytes)
        return lf_fail_null(&call->diag, "bytes");
    *bytes = 0;
    const lf_backend *backend = call->program->on.backend;
    if (!backend->memory)
        return lf_fail(&call->diag, LF_ERR_ARG, "a workspace %s", lf_needs_device_memory);
    if (!call->program->prepared)
        return lf_fail(&call->diag, LF_ERR_ARG, "%s", lf_not_prepared);
    lf_status status = dims ? lf_graph_check_dims(&call->program->written, dims, &call->diag) : lf_call_learn(call);
    int64_t needed = 0;
    if (status == LF_OK)
        status = backend->workspace(call->program->compiled, dims ? dims : call->dims, &needed, &call->diag);
    *bytes = (size_t)needed;
    return status;
}

lf_status lf_call_time(lf_call *call, const lf_run_options *options, size_t runs, double *seconds)
{
    if (!call)
        return LF_ERR_ARG;
    const lf_backend *backend = call->program->on.backend;
    if (!backend->time)
        return lf_fail(&call->diag, LF_ERR_ARG, "the device has no clock of its own; it %s", lf_needs_device_memory);
    if (runs > 0 && !seconds)
        return lf_fail_null(&call->diag, "seconds");
    lf_status status = lf_call_ready(call, options ? options : &lf_plain_run);
    return status == LF_OK ? backend->time(call->state, &call->job, runs, seconds, &call->diag) : status;
}
