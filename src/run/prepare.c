/* SPDX-License-Identifier: Apache-2.0 */
/* Preparing a program: which variant runs, and what it is handed. */
#include <stdlib.h>

#include "prepare/prepare.h"
#include "run/params.h"

void lf_program_unprepare(lf_program *p)
{
    p->on.backend->unprepare(p->compiled);
    p->prepared = false;
}

/* Values that lie on the device alone and are read here are copied to host memory. They stay on the device all the
 * same. */
static lf_status read_wanted(lf_program *p, const lf_prepare_want *want)
{
    lf_status status = LF_OK;
    for (int32_t i = 0; i < p->written.params && status == LF_OK; i++) {
        if (p->param[i].host || !want[i].read)
            continue;
        status = lf_param_read_device(p, i, p->param[i].device, NULL);
        if (status != LF_OK)
            lf_param_leave_host(p, i);
    }
    return status;
}

static bool reads(const lf_variant *v, int32_t param)
{
    for (int32_t i = 0; i < v->plan->prepareds; i++)
        if (v->plan->prepared[i] == v->graph.param[param])
            return true;
    return false;
}

/* Copies of our own on the device that nobody reads there, and that are in host memory by now: one is enough. */
static void drop_unread(lf_program *p, bool runs_fused, bool runs_exact)
{
    for (int32_t i = 0; i < p->written.params; i++)
        if (p->param[i].device_copy && p->param[i].host && !(runs_fused && reads(&p->fused, i)) &&
            !(runs_exact && reads(&p->exact, i)))
            lf_param_leave_device(p, i);
}

/* What preparing works with, one per parameter each. */
typedef struct lists {
    lf_prepare_want *want;
    const void **host;
    const void **device;
} lists;

/* Evaluates what is to run: the rewritten model, and where it is guarded the model as written; or the latter alone,
 * where weights are found that the laws of rewriting do not hold for. */
static lf_status evaluate(lf_program *p, const lists *l, lf_backend_weights *out)
{
    /* where no law was applied but exact ones, there is nothing to fall back to and nothing to check */
    const lf_prepare_want *want = p->exact.plan ? l->want : NULL;
    lf_status status = lf_prepare(p->fused.plan, l->host, want, p->context->pool, &out->fused, &p->diag);
    if (status != LF_OK)
        return status;
    if (!out->fused->sound) {
        lf_prepared_free(out->fused);
        out->fused = NULL;
    }
    if (!out->fused || p->task.guarded)
        status = lf_prepare(p->exact.plan, l->host, NULL, p->context->pool, &out->exact, &p->diag);
    if (status != LF_OK)
        lf_prepared_free(out->fused);
    return status;
}

static lf_status prepare(lf_program *p, const lists *l)
{
    lf_backend_weights weights = {.device = l->device};
    if (!l->want || !l->host || !l->device)
        return lf_fail_nomem(&p->diag, "preparing weights");
    lf_status status = lf_prepare_needs(p->fused.plan, p->exact.plan, p->fused.notes.trusted, l->want, &p->diag);
    if (status == LF_OK)
        status = read_wanted(p, l->want);
    for (int32_t i = 0; i < p->written.params; i++) {
        l->host[i] = p->param[i].host;
        l->device[i] = p->param[i].device;
    }
    if (status == LF_OK)
        status = evaluate(p, l, &weights);
    if (status != LF_OK)
        return status;
    const bool runs_fused = weights.fused != NULL, runs_exact = weights.exact != NULL;
    status = p->on.backend->prepare(p->compiled, &weights, &p->diag);
    if (status == LF_OK)
        drop_unread(p, runs_fused, runs_exact);
    return status;
}

lf_status lf_program_prepare(lf_program *program)
{
    if (!program)
        return LF_ERR_ARG;
    lf_program_begin(program);
    lf_program *p = program;
    for (int32_t i = 0; i < p->written.params; i++)
        if (!lf_param_has_values(&p->param[i]))
            return lf_fail(&p->diag, LF_ERR_DATA, "parameter %s has no values yet", lf_param_name(p, i));
    lf_program_unprepare(p);
    const size_t count = (size_t)p->written.params + 1;
    const lists l = {calloc(count, sizeof *l.want), calloc(count, sizeof *l.host), calloc(count, sizeof *l.device)};
    lf_status status = prepare(p, &l);
    free(l.want);
    free(l.host);
    free(l.device);
    if (status != LF_OK)
        return status;
    for (int32_t i = 0; i < p->written.params; i++)
        if (lf_param_is_borrowed_from_host(&p->param[i]))
            p->param[i].fingerprint = lf_fingerprint(p->param[i].host, lf_param_bytes(p, i));
    p->prepared = true;
    return LF_OK;
}

bool lf_program_params_hold(const lf_program *program)
{
    for (int32_t i = 0; program && program->prepared && i < program->written.params; i++) {
        const lf_param *param = &program->param[i];
        if (lf_param_is_borrowed_from_host(param) &&
            param->fingerprint != lf_fingerprint(param->host, lf_param_bytes(program, i)))
            return false;
    }
    return true;
}
