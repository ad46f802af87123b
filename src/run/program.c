/* SPDX-License-Identifier: Apache-2.0 */
/* The program handle: making it, the memory it has, and what can be said of it. */
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "cuda/cuda.h"
#include "cuda/emit.h"
#include "run/account.h"
#include "run/params.h"

static lf_status begin(lf_program *p, lf_model *model)
{
    lf_arena_init(&p->arena);
    p->context = model->context;
    lf_status status = lf_context_pool(p->context);
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

lf_status lf_program_compile(lf_program *program, const int64_t *dims)
{
    if (!program)
        return LF_ERR_ARG;
    lf_program *p = program;
    lf_program_begin(p);
    lf_status status = dims ? lf_graph_check_dims(&p->written, dims, &p->diag) : LF_OK;
    if (status == LF_OK && p->on.backend->compile_for)
        status = p->on.backend->compile_for(p->compiled, dims ? dims : p->first, &p->diag);
    return status;
}

void lf_program_free(lf_program *program)
{
    if (!program)
        return;
    if (program->compiled)
        program->on.backend->program_free(program->compiled);
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
        const size_t bytes = lf_param_bytes(program, i);
        given += program->param[i].host_copy ? bytes : 0;
        made += program->param[i].device_copy ? bytes : 0;
    }
    made += program ? program->on.backend->program_bytes(program->compiled) : 0;
    if (params)
        *params = given;
    if (prepared)
        *prepared = made;
    if (other)
        *other = program ? sizeof *program + lf_arena_bytes(&program->arena) : 0;
}

/* The plan as these kernels for CUDA take it: another where it was made for a device whose kernels can do more or
 * less. */
static lf_status plan_for_cuda(const lf_plan *plan, lf_gpu_unit unit, lf_arena *arena, const lf_plan **out)
{
    lf_plan_options options = lf_cuda_plans(unit);
    lf_plan *made = NULL;
    options.fuse = plan->options.fuse;
    *out = plan;
    if (options.share_x == plan->options.share_x && options.keep_exps == plan->options.keep_exps)
        return LF_OK;
    lf_status status = lf_plan_build(plan->graph, options, arena, &made);
    *out = made;
    return status;
}

static lf_status emit(lf_program *p, lf_cuda_target target, lf_arena *arena, char **out)
{
    lf_cuda_source source = {0};
    const lf_plan *fused = NULL, *exact = NULL;
    lf_status status = plan_for_cuda(p->fused.plan, target.unit, arena, &fused);
    if (status == LF_OK && p->task.guarded)
        status = plan_for_cuda(p->exact.plan, target.unit, arena, &exact);
    if (status == LF_OK) {
        target.precision = lf_plan_precision(fused, target.unit, target.precision);
        status = lf_cuda_emit(fused, exact, target, &source, &p->diag);
    }
    *out = source.text;
    source.text = NULL;
    lf_cuda_source_free(&source);
    return status;
}

const char *lf_arch_name(size_t index)
{
    lf_gpu_unit unit;
    return lf_cuda_arch(index, &unit);
}

static lf_status refuse_arch(const char *arch, lf_diag *diag)
{
    lf_str known = {0};
    for (size_t i = 0; lf_arch_name(i); i++)
        lf_str_addf(&known, "%s%s", i ? ", " : "", lf_arch_name(i));
    lf_fail(diag, LF_ERR_ARG, "arch '%.64s' is none of %s", arch, known.failed ? "those there are" : known.text);
    lf_str_free(&known);
    return LF_ERR_ARG;
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
    lf_cuda_target target = {.precision = program->task.precision, .aligned = true};
    if (!lf_cuda_arch_unit(arch, &target.unit))
        return refuse_arch(arch, &program->diag);
    if (target.unit == LF_UNIT_PLAIN && !lf_precision_table[target.precision].split)
        return lf_fail(&program->diag, LF_ERR_UNSUPPORTED,
                       "arch %s: precision %s needs tensor cores, from sm_80 on", arch,
                       lf_precision_table[target.precision].name);
    lf_arena arena;
    lf_arena_init(&arena);
    lf_status status = emit(program, target, &arena, out);
    lf_arena_free(&arena);
    return status;
}
