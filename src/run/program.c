/* SPDX-License-Identifier: Apache-2.0 */
/* The program handle: making it, the memory it has, and what can be said of it. */
#include <stdlib.h>
#include <string.h>

#include "cuda/emit.h"
#include "plan/tiles.h"
#include "run/account.h"
#include "run/device.h"
#include "run/params.h"

static lf_status begin(lf_program *p, lf_model *model)
{
    lf_arena_init(&p->arena);
    p->context = model->context;
    lf_status status = lf_pick_kernels(&p->kern, &p->diag);
    if (status != LF_OK)
        return status;
    status = lf_context_pool(p->context);
    if (status != LF_OK) {
        p->diag = p->context->diag;
        return status;
    }
    status = lf_graph_init(&p->written, &p->arena, &p->diag);
    return status == LF_OK ? lf_graph_copy(&model->graph, &p->written) : status;
}

lf_status lf_program_new(lf_model *model, const lf_options *options, lf_program **out)
{
    lf_options defaults;
    if (!model)
        return LF_ERR_ARG;
    if (!out)
        return lf_fail_null(&model->diag, "out");
    *out = NULL;
    if (!model->returned)
        return lf_fail(&model->diag, LF_ERR_ARG, "%s", lf_not_finished);
    lf_options_init(&defaults);
    lf_program *p = calloc(1, sizeof *p);
    if (!p)
        return lf_fail_nomem(&model->diag, "the program");
    lf_status status = begin(p, model);
    if (status == LF_OK)
        status = lf_compile(p, options ? options : &defaults);
    if (status == LF_OK)
        status = lf_params_new(p);
    if (status != LF_OK) {
        model->diag = p->diag;
        lf_program_free(p);
        return status;
    }
    *out = p;
    return LF_OK;
}

void lf_program_free(lf_program *program)
{
    if (!program)
        return;
    lf_program_unprepare(program);
    lf_cuda_program_free(program->fused.cuda);
    lf_cuda_program_free(program->exact.cuda);
    lf_params_free(program);
    lf_arena_free(&program->arena);
    free(program);
}

const char *lf_program_message(const lf_program *program)
{
    if (!program)
        return "no program";
    const char *no_call = atomic_load_explicit(&program->no_call, memory_order_relaxed);
    return no_call ? no_call : program->diag.text;
}

void lf_program_memory(const lf_program *program, size_t *params, size_t *prepared, size_t *other)
{
    size_t given = 0, made = 0;
    for (int32_t i = 0; program && i < program->written.params; i++) {
        const size_t bytes = lf_param_count(program, i) * sizeof(float);
        given += program->param[i].host_copy ? bytes : 0;
        made += program->param[i].device_copy ? bytes : 0;
    }
    if (program && program->fused.weights)
        made += lf_cpu_weights_bytes(program->fused.weights);
    if (program && program->exact.weights)
        made += lf_cpu_weights_bytes(program->exact.weights);
    if (program && program->fused.cuda)
        made += lf_cuda_program_bytes(program->fused.cuda);
    if (program && program->exact.cuda)
        made += lf_cuda_program_bytes(program->exact.cuda);
    if (params)
        *params = given;
    if (prepared)
        *prepared = made;
    if (other)
        *other = program ? sizeof *program + lf_arena_bytes(&program->arena) : 0;
}

/* ---- account ---- */

static lf_status cpu_workspace(lf_program *p, const int64_t *dims, int64_t *bytes)
{
    lf_cpu_instance *instance;
    lf_status status =
        lf_cpu_instance_new(p->fused.plan, p->kern, dims, lf_context_threads(p->context), &instance, &p->diag);
    if (status != LF_OK)
        return status;
    *bytes = (int64_t)lf_cpu_workspace(instance) - lf_plan_intermediate_bytes(p->fused.plan, dims);
    *bytes = *bytes < 0 ? 0 : *bytes; /* buffers whose lives do not overlap share memory */
    lf_cpu_instance_free(instance);
    return LF_OK;
}

/* The tiles products on tensor cores are made in: as the program has them, or as they would be on a device that is only
 * costed. */
static const lf_cuda_choice *find_choice(lf_program *p, const lf_device *device, const int64_t *dims,
                                         lf_cuda_choice *out)
{
    lf_cuda_target target = {.precision = p->precision, .unit = device->gpu.unit};
    if (p->target == LF_TARGET_CPU)
        return NULL;
    *out = p->target == LF_TARGET_CUDA ? lf_cuda_program_choice(p->fused.cuda, dims)
                                       : lf_cuda_choose(p->fused.plan, target, device, dims);
    return out->expected[out->shape] > 0 ? out : NULL;
}

lf_status lf_program_explain(lf_program *program, const int64_t *dims, bool json, char **out)
{
    if (!program)
        return LF_ERR_ARG;
    lf_program_begin(program);
    if (!out)
        return lf_fail_null(&program->diag, "out");
    *out = NULL;
    lf_program *p = program;
    lf_device device;
    lf_account account = {.written = &p->written,
                          .home = p->fused.home,
                          .notes = &p->fused.notes,
                          .plan = p->fused.plan,
                          .device = &device,
                          .dims = dims ? dims : p->hint,
                          .precision = lf_precision_table[p->precision].name};
    lf_status status = lf_graph_check_dims(&p->written, account.dims, &p->diag);
    if (status == LF_OK)
        status = lf_device_find(p->device, p->context->gpu, p->kern, p->context->pool, &device, &p->diag);
    if (status == LF_OK)
        lf_device_use(&device, p->precision);
    if (status == LF_OK && p->target == LF_TARGET_CUDA) {
        status = lf_cuda_workspace(p->fused.cuda, account.dims, &account.workspace_bytes, &p->diag);
        account.workspace_bytes -= lf_plan_intermediate_bytes(p->fused.plan, account.dims);
    }
    if (status == LF_OK && p->target == LF_TARGET_CPU)
        status = cpu_workspace(p, account.dims, &account.workspace_bytes);
    else if (status == LF_OK && p->target != LF_TARGET_CUDA)
        account.workspace_bytes = lf_cost_workspace(p->fused.plan, account.dims, &device);
    if (status != LF_OK)
        return status;
    lf_cuda_choice choice;
    account.choice = find_choice(p, &device, account.dims, &choice);
    return json ? lf_account_json(&account, out, &p->diag) : lf_account_text(&account, out, &p->diag);
}

lf_status lf_program_emit(lf_program *program, const char *arch, char **out)
{
    if (!program)
        return LF_ERR_ARG;
    lf_program_begin(program);
    if (!out)
        return lf_fail_null(&program->diag, "out");
    *out = NULL;
    if (!arch)
        return lf_fail_null(&program->diag, "arch");
    lf_cuda_target target = {.precision = program->precision, .aligned = true};
    if (!lf_cuda_arch_unit(arch, &target.unit))
        return lf_fail(&program->diag, LF_ERR_ARG,
                       "arch '%.64s' is none of sm_70, sm_75, sm_80, sm_86, sm_89, sm_90, sm_90a", arch);
    if (target.unit == LF_UNIT_PLAIN && !lf_precision_table[target.precision].split)
        return lf_fail(&program->diag, LF_ERR_UNSUPPORTED,
                       "arch %s: precision %s needs tensor cores, from sm_80 on", arch,
                       lf_precision_table[target.precision].name);
    lf_cuda_source source;
    lf_status status = lf_cuda_emit(program->fused.plan, program->guarded ? program->exact.plan : NULL, target, &source,
                                    &program->diag);
    *out = source.text;
    source.text = NULL;
    lf_cuda_source_free(&source);
    return status;
}
