/* SPDX-License-Identifier: Apache-2.0 */
/* Preparing a program: which variant runs, and what it is handed. */
#include <stdlib.h>

#include "prepare/prepare.h"
#include "run/params.h"

void lf_program_unprepare(lf_program *p)
{
    lf_cpu_weights_free(p->fused.weights);
    lf_cpu_weights_free(p->exact.weights);
    p->fused.weights = p->exact.weights = NULL;
    p->fused.ready = p->exact.ready = false;
    p->prepared = false;
}

/* Where the rewritten model's program keeps a parameter on the device; NULL where it does not. */
static const void *kept_for_fused(const lf_program *p, int32_t param)
{
    const lf_plan *plan = p->fused.plan;
    for (int32_t i = 0; p->fused.ready && i < plan->prepareds; i++)
        if (plan->prepared[i] == p->fused.graph.param[param])
            return lf_cuda_program_prepared(p->fused.cuda, i);
    return NULL;
}

/* Copies prepared tensors to the device. Those that are parameters as they lie there stay where they are, and both
 * variants share them. */
static lf_status upload_weights(lf_program *p, lf_variant *v, const lf_prepared *prepared)
{
    const lf_plan *plan = v->plan;
    const void **device = calloc((size_t)plan->prepareds + 1, sizeof *device);
    lf_status status = device ? lf_variant_for_cuda(p, v) : lf_fail_nomem(&p->diag, "preparing weights");
    for (int32_t i = 0; device && i < plan->prepareds; i++)
        for (int32_t k = 0; k < v->graph.params; k++)
            if (plan->prepared[i] == v->graph.param[k])
                device[i] = p->param[k].device || v == &p->fused ? p->param[k].device : kept_for_fused(p, k);
    if (status == LF_OK)
        status = lf_cuda_program_weights(v->cuda, prepared, device, &p->diag);
    free(device);
    return status;
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

/* Does a variant that is ready read the parameter from the device as it is? */
static bool is_read_as_it_is(const lf_program *p, int32_t param)
{
    const lf_variant *variant[] = {&p->fused, &p->exact};
    for (int v = 0; v < 2; v++)
        for (int32_t i = 0; variant[v]->ready && i < variant[v]->plan->prepareds; i++)
            if (variant[v]->plan->prepared[i] == variant[v]->graph.param[param])
                return true;
    return false;
}

/* Copies of our own on the device that nobody reads there, and that are in host memory by now: one is enough. */
static void drop_unread(lf_program *p)
{
    for (int32_t i = 0; i < p->written.params; i++)
        if (p->param[i].device_copy && p->param[i].host && !is_read_as_it_is(p, i))
            lf_param_leave_device(p, i);
}

/* Hands the variant what was prepared for it, which is taken. pack: where it is to run often. */
static lf_status take_prepared(lf_program *p, lf_variant *v, lf_prepared *prepared, bool pack)
{
    lf_status status;
    if (p->target == LF_TARGET_CUDA) {
        status = upload_weights(p, v, prepared);
        lf_prepared_free(prepared);
    } else {
        status = lf_cpu_weights_new(v->plan, p->kern, prepared, pack, p->context->pool, &v->weights, &p->diag);
    }
    v->ready = status == LF_OK;
    return status;
}

/* param: one per parameter, its values in host memory. */
static lf_status prepare_exact(lf_program *p, const float *const *param, bool pack)
{
    lf_prepared *prepared;
    lf_status status = lf_prepare(p->exact.plan, param, NULL, p->context->pool, &prepared, &p->diag);
    return status == LF_OK ? take_prepared(p, &p->exact, prepared, pack) : status;
}

/* Prepares the rewritten model; where weights are found that its laws do not hold for, the model as written instead. */
static lf_status prepare_variants(lf_program *p, const float *const *param, const lf_prepare_want *want)
{
    lf_prepared *prepared;
    lf_status status = lf_prepare(p->fused.plan, param, want, p->context->pool, &prepared, &p->diag);
    if (status != LF_OK)
        return status;
    if (!prepared->sound) {
        lf_prepared_free(prepared);
        return prepare_exact(p, param, true);
    }
    status = take_prepared(p, &p->fused, prepared, true);
    return status == LF_OK && p->guarded && p->exact.plan ? prepare_exact(p, param, false) : status;
}

static lf_status prepare(lf_program *p, lf_prepare_want *want, const float **param)
{
    if (!want || !param)
        return lf_fail_nomem(&p->diag, "preparing weights");
    lf_status status = lf_prepare_needs(p->fused.plan, p->exact.plan, p->fused.notes.trusted, want, &p->diag);
    if (status == LF_OK)
        status = read_wanted(p, want);
    for (int32_t i = 0; i < p->written.params; i++)
        param[i] = p->param[i].host;
    return status == LF_OK ? prepare_variants(p, param, want) : status;
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
    lf_prepare_want *want = calloc((size_t)p->written.params + 1, sizeof *want);
    const float **param = calloc((size_t)p->written.params + 1, sizeof *param);
    lf_status status = prepare(p, want, param);
    free(want);
    free(param);
    if (status != LF_OK) {
        lf_program_unprepare(p);
        return status;
    }
    drop_unread(p);
    for (int32_t i = 0; i < p->written.params; i++)
        if (lf_param_is_borrowed_from_host(&p->param[i]))
            p->param[i].fingerprint = lf_fingerprint(p->param[i].host, lf_param_count(p, i));
    p->prepared = true;
    return LF_OK;
}

bool lf_program_params_hold(const lf_program *program)
{
    for (int32_t i = 0; program && program->prepared && i < program->written.params; i++) {
        const lf_param *param = &program->param[i];
        if (lf_param_is_borrowed_from_host(param) &&
            param->fingerprint != lf_fingerprint(param->host, lf_param_count(program, i)))
            return false;
    }
    return true;
}
