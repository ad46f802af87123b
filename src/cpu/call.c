/* SPDX-License-Identifier: Apache-2.0 */
/* A run on the CPU: at known extents, with the workspace that takes, and rows redone where that is called for. */
#include "cpu/call.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

lf_status lf_cpu_call_new(void *program, void **out)
{
    lf_cpu_call *c = *out = calloc(1, sizeof *c);
    if (!c)
        return LF_ERR_NOMEM;
    c->program = program;
    lf_arena_init(&c->arena);
    lf_status status = lf_redo_new(c);
    if (status != LF_OK) {
        lf_cpu_call_free(c);
        *out = NULL;
    }
    return status;
}

void lf_cpu_call_free(void *call)
{
    lf_cpu_call *c = call;
    if (!c)
        return;
    for (int i = 0; i < LF_CALL_SIZES; i++)
        lf_cpu_instance_free(c->sized[i].instance);
    lf_redo_free(c);
    lf_aligned_free(c->workspace);
    free(c->flagged);
    lf_arena_free(&c->arena);
    free(c);
}

static lf_status reserve_workspace(lf_cpu_call *c, size_t bytes, lf_diag *diag)
{
    if (bytes <= c->workspace_size)
        return LF_OK;
    void *grown = lf_aligned_alloc(bytes);
    if (!grown)
        return lf_fail(diag, LF_ERR_NOMEM, "no memory for %zu MB of workspace", bytes >> 20);
    lf_aligned_free(c->workspace);
    c->workspace = grown;
    c->workspace_size = bytes;
    return LF_OK;
}

lf_status lf_call_sized(lf_cpu_call *c, const lf_plan *plan, const int64_t *dims, const lf_cpu_instance **out,
                        lf_diag *diag)
{
    lf_sized *oldest = &c->sized[0];
    size_t symbols = (size_t)plan->graph->symbols;
    for (int i = 0; i < LF_CALL_SIZES; i++) {
        lf_sized *s = &c->sized[i];
        if (s->plan == plan && memcmp(s->dims, dims, symbols * sizeof *dims) == 0) {
            s->used = ++c->clock;
            *out = s->instance;
            return LF_OK;
        }
        oldest = s->used < oldest->used ? s : oldest;
    }
    lf_cpu_instance *made;
    lf_status status =
        lf_cpu_instance_new(plan, c->program->kern, dims, lf_pool_threads(c->program->task.pool), &made, diag);
    if (status == LF_OK && (status = reserve_workspace(c, lf_cpu_workspace(made), diag)) != LF_OK)
        lf_cpu_instance_free(made);
    if (status != LF_OK)
        return status;
    lf_cpu_instance_free(oldest->instance);
    *oldest = (lf_sized){.plan = plan, .instance = made, .used = ++c->clock};
    memcpy(oldest->dims, dims, symbols * sizeof *dims);
    *out = made;
    return LF_OK;
}

static lf_status reserve_flags(lf_cpu_call *c, int64_t batch, lf_diag *diag)
{
    size_t rows = (size_t)batch;
    if (rows > c->flagged_size) {
        free(c->flagged);
        c->flagged_size = 0;
        c->flagged = malloc(rows);
        if (!c->flagged)
            return lf_fail_nomem(diag, "the call");
        c->flagged_size = rows;
    }
    if (rows > 0)
        memset(c->flagged, 0, rows);
    return LF_OK;
}

lf_status lf_cpu_call_run(void *call, const lf_backend_job *job, lf_diag *diag)
{
    lf_cpu_call *c = call;
    const lf_cpu_program *p = c->program;
    const bool guarded = p->fused && p->task.guarded;
    const lf_cpu_instance *instance = NULL;
    lf_status status = LF_OK;
    c->rows_redone = 0;
    if (guarded)
        status = reserve_flags(c, job->batch, diag);
    if (status == LF_OK && guarded)
        status = lf_redo_reserve(c, job, diag);
    if (status == LF_OK)
        status = lf_call_sized(c, p->fused ? p->task.fused : p->task.exact, job->dims, &instance, diag);
    if (status != LF_OK)
        return status;
    lf_cpu_run(instance, p->fused ? p->fused : p->exact, job->input, job->output,
               c->workspace, guarded ? c->flagged : NULL, job->batch, p->task.pool);
    if (guarded)
        lf_redo_rows(c, job);
    return LF_OK;
}

int64_t lf_cpu_call_redone(void *call)
{
    return ((const lf_cpu_call *)call)->rows_redone;
}

size_t lf_cpu_call_bytes(const void *call)
{
    const lf_cpu_call *c = call;
    size_t bytes = sizeof *c + c->workspace_size + c->flagged_size + lf_arena_bytes(&c->arena) + lf_redo_bytes(c);
    for (int i = 0; i < LF_CALL_SIZES; i++)
        bytes += c->sized[i].instance ? lf_cpu_instance_bytes(c->sized[i].instance) : 0;
    return bytes;
}
