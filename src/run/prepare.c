/* SPDX-License-Identifier: Apache-2.0 */
/* Preparing a program: which parameters are looked at, which variant runs, what each is handed. */
#include <stdlib.h>

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
static lf_status upload_weights(lf_program *p, lf_variant *v, const lf_cpu_weights *made)
{
    const lf_plan *plan = v->plan;
    const void **device = calloc((size_t)plan->prepareds + 1, sizeof *device);
    lf_status status = device ? lf_variant_for_cuda(p, v) : lf_fail_nomem(&p->diag, "preparing weights");
    for (int32_t i = 0; device && i < plan->prepareds; i++)
        for (int32_t k = 0; k < v->graph.params; k++)
            if (plan->prepared[i] == v->graph.param[k])
                device[i] = p->param[k].device || v == &p->fused ? p->param[k].device : kept_for_fused(p, k);
    if (status == LF_OK)
        status = lf_cuda_program_weights(v->cuda, lf_cpu_weights_tensors(made), device, lf_cpu_weights_narrow(made),
                                         &p->diag);
    free(device);
    return status;
}

/* What prepared tensors of the rewritten model are made of; computed: those that are no parameters. NULL: no memory. */
static bool *find_needed(lf_program *p, bool computed)
{
    const lf_graph *g = &p->fused.graph;
    const lf_node *made = p->fused.plan->prepared;
    bool *needed = calloc((size_t)g->count + 1, sizeof *needed);
    if (!needed)
        return NULL;
    for (int32_t i = 0; i < p->fused.plan->prepareds; i++)
        needed[made[i]] = !computed || lf_at(g, made[i])->op != LF_OP_param;
    lf_graph_needed(g, needed);
    return needed;
}

/* Marks the parameters whose values preparing the rewritten model looks at: all where it asks whether they are finite,
 * else those that tensors are made of, or narrow products' weights in double precision. */
static lf_status find_looked_at(lf_program *p, bool *looked)
{
    const lf_plan *plan = p->fused.plan;
    const lf_graph *g = &p->fused.graph;
    bool *needed = find_needed(p, true);
    if (!needed)
        return lf_fail_nomem(&p->diag, "preparing weights");
    for (int32_t i = 0; i < plan->products; i++) {
        const lf_product *product = plan->product[i];
        if (!product->narrow)
            continue;
        needed[product->weight] = true;
        if (product->bias != LF_NONE)
            needed[product->bias] = true;
    }
    for (int32_t i = 0; i < g->params; i++)
        looked[i] = p->exact.plan || needed[g->param[i]];
    free(needed);
    return LF_OK;
}

/* Values that lie on the device alone and are looked at here are copied to host memory. They stay on the device all
 * the same. */
static lf_status read_looked_at(lf_program *p)
{
    bool *looked = calloc((size_t)p->written.params + 1, sizeof *looked);
    lf_status status = looked ? find_looked_at(p, looked) : lf_fail_nomem(&p->diag, "preparing weights");
    for (int32_t i = 0; i < p->written.params && status == LF_OK; i++) {
        if (p->param[i].host || !looked[i])
            continue;
        status = lf_param_read_device(p, i, p->param[i].device, NULL);
        if (status != LF_OK)
            lf_param_leave_host(p, i);
    }
    free(looked);
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

static lf_status prepare_variant(lf_program *p, lf_variant *v, bool pack, bool *finite)
{
    const float **param = calloc((size_t)v->graph.count + 1, sizeof *param);
    if (!param)
        return lf_fail_nomem(&p->diag, "preparing weights");
    for (int32_t i = 0; i < v->graph.params; i++)
        param[v->graph.param[i]] = p->param[i].host;
    lf_cpu_weights *made;
    const bool here = p->target != LF_TARGET_CUDA;
    lf_status status =
        lf_cpu_weights_new(v->plan, p->kern, param, pack && here, p->context->pool, finite, &made, &p->diag);
    free(param);
    if (status != LF_OK)
        return status;
    if (here) {
        v->weights = made;
    } else {
        status = upload_weights(p, v, made);
        lf_cpu_weights_free(made);
    }
    v->ready = status == LF_OK;
    return status;
}

/* Whether the parameters that the rewritten model has no use for any more are finite: what was rewritten away may have
 * met them. */
static lf_status unused_finite(lf_program *p, bool *finite)
{
    const lf_graph *g = &p->fused.graph;
    bool *needed = find_needed(p, false);
    if (!needed)
        return lf_fail_nomem(&p->diag, "preparing weights");
    *finite = true;
    for (int32_t i = 0; i < g->params; i++)
        if (!needed[g->param[i]])
            *finite = *finite && lf_cpu_all_finite(p->param[i].host, (int64_t)lf_param_count(p, i), p->context->pool);
    free(needed);
    return LF_OK;
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
    bool finite = true, unused = true; /* asked only where it would make a difference */
    lf_status status = read_looked_at(p);
    if (status == LF_OK)
        status = prepare_variant(p, &p->fused, true, p->exact.plan ? &finite : NULL);
    if (status == LF_OK && p->exact.plan)
        status = unused_finite(p, &unused);
    if (status == LF_OK && !(finite && unused)) {
        /* Folded weights that are not finite need not give what the model gives as written: run it as written. */
        lf_program_unprepare(p);
        status = prepare_variant(p, &p->exact, true, NULL);
    } else if (status == LF_OK && p->guarded && p->exact.plan) {
        status = prepare_variant(p, &p->exact, false, NULL);
    }
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
