/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU as a backend. There is nothing to a device: kernels and threads are a program's. */
#include <stdlib.h>

#include "cpu/call.h"

lf_status lf_cpu_kernels(const lf_kern **out, lf_diag *diag)
{
    *out = lf_kern_pick();
    return *out ? LF_OK : lf_fail(diag, LF_ERR_ARG, "LINFUSE_ISA names no instruction set this machine can run");
}

static lf_status check_precision(void *device, lf_precision precision, lf_diag *diag)
{
    (void)device;
    if (precision == LF_PRECISION_FP32)
        return LF_OK;
    return lf_fail(diag, LF_ERR_UNSUPPORTED, "precision %s: device cpu has only fp32 so far",
                   lf_precision_table[precision].name);
}

static lf_status describe(void *device, const char *name, lf_pool *pool, lf_device *out, lf_diag *diag)
{
    (void)device, (void)name;
    return lf_cpu_device(pool, out, diag);
}

static lf_status compile(void *device, const lf_backend_task *task, void **program, lf_diag *diag)
{
    const lf_kern *kern;
    (void)device;
    lf_status status = lf_cpu_kernels(&kern, diag);
    lf_cpu_program *p = *program = status == LF_OK ? calloc(1, sizeof *p) : NULL;
    if (!p)
        return status == LF_OK ? lf_fail_nomem(diag, "the program") : status;
    *p = (lf_cpu_program){.kern = kern, .task = *task};
    return LF_OK;
}

static void unprepare(void *program)
{
    lf_cpu_program *p = program;
    lf_cpu_weights_free(p->fused);
    lf_cpu_weights_free(p->exact);
    p->fused = p->exact = NULL;
}

static void program_free(void *program)
{
    if (program)
        unprepare(program);
    free(program);
}

/* Rows are rarely redone: then exact's weights are packed as they are wanted. */
static lf_status prepare(void *program, const lf_backend_weights *weights, lf_diag *diag)
{
    lf_cpu_program *p = program;
    lf_status status = LF_OK;
    unprepare(p);
    if (weights->fused)
        status = lf_cpu_weights_new(p->task.fused, p->kern, weights->fused, true, p->task.pool, &p->fused, diag);
    if (weights->exact && status != LF_OK)
        lf_prepared_free(weights->exact);
    else if (weights->exact)
        status = lf_cpu_weights_new(p->task.exact, p->kern, weights->exact, !weights->fused, p->task.pool, &p->exact,
                                    diag);
    if (status != LF_OK)
        unprepare(p);
    return status;
}

static size_t program_bytes(const void *program)
{
    const lf_cpu_program *p = program;
    return (p->fused ? lf_cpu_weights_bytes(p->fused) : 0) + (p->exact ? lf_cpu_weights_bytes(p->exact) : 0);
}

static lf_status workspace(void *program, const int64_t *dims, int64_t *bytes, lf_diag *diag)
{
    const lf_cpu_program *p = program;
    lf_cpu_instance *instance;
    lf_status status =
        lf_cpu_instance_new(p->task.fused, p->kern, dims, lf_pool_threads(p->task.pool), &instance, diag);
    if (status != LF_OK)
        return status;
    *bytes = (int64_t)lf_cpu_workspace(instance);
    lf_cpu_instance_free(instance);
    return LF_OK;
}

static lf_plan_options plans(void *device)
{
    (void)device;
    return (lf_plan_options){.share_x = LF_SHARE_ALL, .keep_exps = true};
}

const lf_backend lf_cpu_backend = {
    .name = "cpu",
    .plans = plans,
    .check_precision = check_precision,
    .describe = describe,
    .compile = compile,
    .program_free = program_free,
    .prepare = prepare,
    .unprepare = unprepare,
    .program_bytes = program_bytes,
    .workspace = workspace,
    .call_new = lf_cpu_call_new,
    .call_free = lf_cpu_call_free,
    .run = lf_cpu_call_run,
    .rows_redone = lf_cpu_call_redone,
    .call_bytes = lf_cpu_call_bytes,
};
