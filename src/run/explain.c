/* SPDX-License-Identifier: Apache-2.0 */
/* The account of a program, for its callers: what it runs on, what it needs there. */
#include <stdlib.h>
#include <string.h>

#include "run/account.h"
#include "run/device.h"
#include "run/handles.h"

/* What a call needs beside tensors. */
static lf_status cpu_workspace(lf_program *p, const int64_t *dims, double *bytes)
{
    lf_cpu_instance *instance;
    lf_status status =
        lf_cpu_instance_new(p->fused.plan, p->kern, dims, lf_context_threads(p->context), &instance, &p->diag);
    if (status != LF_OK)
        return status;
    *bytes = (double)((int64_t)lf_cpu_workspace(instance) - lf_plan_intermediate_bytes(p->fused.plan, dims));
    *bytes = *bytes < 0 ? 0 : *bytes; /* buffers whose lives do not overlap share memory */
    lf_cpu_instance_free(instance);
    return LF_OK;
}

static lf_status gpu_workspace(lf_program *p, const int64_t *dims, double *bytes)
{
    int64_t all = 0;
    lf_status status = lf_cuda_workspace(p->fused.cuda, dims, &all, &p->diag);
    *bytes = (double)(all - lf_plan_intermediate_bytes(p->fused.plan, dims));
    return status;
}

static lf_status find_workspace(lf_program *p, lf_account *a)
{
    if (p->target == LF_TARGET_CPU)
        return cpu_workspace(p, a->dims, &a->workspace_bytes);
    if (p->target == LF_TARGET_CUDA)
        return gpu_workspace(p, a->dims, &a->workspace_bytes);
    a->workspace_bytes = (double)lf_cost_workspace(p->fused.plan, a->dims, &a->device);
    return LF_OK;
}

/* As prepared; until then as they are expected to become. */
static double find_prepared(const lf_program *p, const lf_account *a)
{
    size_t bytes;
    lf_program_memory(p, NULL, &bytes, NULL);
    return p->prepared ? (double)bytes : lf_cost_prepared(p->fused.plan, a->dims, &a->device);
}

/* The tiles products on tensor cores are made in: as the program has them, or as they would be on a device that is only
 * costed. */
static void find_choice(lf_program *p, lf_account *a)
{
    const lf_cuda_target target = {.precision = p->precision, .unit = a->device.gpu.unit};
    if (p->target == LF_TARGET_CPU)
        return;
    a->choice = p->target == LF_TARGET_CUDA ? lf_cuda_program_choice(p->fused.cuda, a->dims)
                                            : lf_cuda_choose(p->fused.plan, target, &a->device, a->dims);
    a->has_choice = a->choice.expected[a->choice.shape] > 0;
}

lf_status lf_program_account(lf_program *program, const int64_t *dims, lf_account **out)
{
    if (!program)
        return LF_ERR_ARG;
    lf_program *p = program;
    lf_program_begin(p);
    if (!out)
        return lf_fail_null(&p->diag, "out");
    lf_account *a = *out = calloc(1, sizeof *a);
    if (!a)
        return lf_fail_nomem(&p->diag, "the account");
    a->written = &p->written;
    a->home = p->fused.home;
    a->notes = &p->fused.notes;
    a->plan = p->fused.plan;
    a->precision = lf_precision_table[p->precision].name;
    memcpy(a->dims, dims ? dims : p->hint, (size_t)p->written.symbols * sizeof *dims);
    lf_status status = lf_graph_check_dims(&p->written, a->dims, &p->diag);
    if (status == LF_OK)
        status = lf_device_find(p->device, p->context->gpu, p->kern, p->context->pool, &a->device, &p->diag);
    if (status == LF_OK) {
        lf_device_use(&a->device, p->precision);
        status = find_workspace(p, a);
    }
    if (status == LF_OK) {
        a->prepared_bytes = find_prepared(p, a);
        find_choice(p, a);
        status = lf_account_fill(a, &p->diag);
    }
    if (status != LF_OK) {
        lf_account_free(a);
        *out = NULL;
    }
    return status;
}

lf_status lf_account_print(const lf_account *account, bool json, char **out)
{
    if (!account || !out)
        return LF_ERR_ARG;
    return json ? lf_account_to_json(account, out) : lf_account_to_text(account, out);
}

lf_status lf_program_explain(lf_program *program, const int64_t *dims, bool json, char **out)
{
    lf_account *account;
    if (program && !out) {
        lf_program_begin(program);
        return lf_fail_null(&program->diag, "out");
    }
    lf_status status = lf_program_account(program, dims, &account);
    if (out)
        *out = NULL;
    if (status != LF_OK)
        return status;
    status = lf_account_print(account, json, out);
    lf_account_free(account);
    return status == LF_OK ? LF_OK : lf_fail_nomem(&program->diag, "the account");
}
