/* SPDX-License-Identifier: Apache-2.0 */
/* The account of a program, for its callers: what it runs on, what it needs there. */
#include <stdlib.h>
#include <string.h>

#include "run/account.h"
#include "run/handles.h"

/* What a call needs beside tensors. */
static lf_status find_workspace(lf_program *p, lf_account *a)
{
    int64_t all = 0;
    lf_status status = p->on.backend->workspace(p->compiled, a->dims, &all, &p->diag);
    all -= lf_plan_intermediate_bytes(p->fused.plan, a->dims);
    a->workspace_bytes = all < 0 ? 0 : (double)all; /* buffers whose lives do not overlap share memory */
    return status;
}

/* As prepared; until then as they are expected to become. */
static double find_prepared(const lf_program *p, const lf_account *a)
{
    size_t bytes;
    lf_program_memory(p, NULL, &bytes, NULL);
    return p->prepared ? (double)bytes : lf_cost_prepared(p->fused.plan, a->dims, &a->device);
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
    memcpy(a->dims, dims ? dims : p->hint, (size_t)p->written.symbols * sizeof *dims);
    lf_status status = lf_graph_check_dims(&p->written, a->dims, &p->diag);
    if (status == LF_OK)
        status = p->on.backend->describe(p->on.device, p->device, p->context->pool, &a->device, &p->diag);
    if (status == LF_OK) {
        const lf_precision precision = lf_plan_precision(a->plan, a->device.gpu.unit, p->task.precision);
        a->precision = lf_precision_table[precision].name;
        lf_device_use(&a->device, precision);
        status = find_workspace(p, a);
    }
    if (status == LF_OK) {
        a->prepared_bytes = find_prepared(p, a);
        a->has_choice = p->on.backend->choose && p->on.backend->choose(p->compiled, a->dims, &a->choice);
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
