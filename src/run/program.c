/* SPDX-License-Identifier: Apache-2.0 */
/* The program handle: parameters as given, parameters prepared, and the account of it all. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cuda/emit.h"
#include "plan/tiles.h"
#include "run/account.h"
#include "run/device.h"
#include "run/handles.h"

static lf_status begin(lf_program *p, lf_model *model)
{
    lf_arena_init(&p->arena);
    p->context = model->context;
    p->kern = lf_kern_pick();
    if (!p->kern)
        return lf_fail(&p->diag, LF_ERR_ARG, "LINFUSE_ISA names no instruction set this machine can run");
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
        return lf_fail(&model->diag, LF_ERR_ARG, "compiling wants a place for the program");
    *out = NULL;
    if (!model->returned)
        return lf_fail(&model->diag, LF_ERR_ARG, "the model is not finished: it returns nothing yet");
    lf_options_init(&defaults);
    lf_program *p = calloc(1, sizeof *p);
    if (!p)
        return lf_fail_nomem(&model->diag, "the program");
    lf_status status = begin(p, model);
    if (status == LF_OK)
        status = lf_compile(p, options ? options : &defaults);
    if (status == LF_OK) {
        p->param = calloc((size_t)p->written.params + 1, sizeof *p->param);
        p->copied = calloc((size_t)p->written.params + 1, sizeof *p->copied);
        p->there = calloc((size_t)p->written.params + 1, sizeof *p->there);
        p->held = calloc((size_t)p->written.params + 1, sizeof *p->held);
        p->looks = calloc((size_t)p->written.params + 1, sizeof *p->looks);
        if (!p->param || !p->copied || !p->there || !p->held || !p->looks)
            status = lf_fail_nomem(&p->diag, "the program");
    }
    if (status != LF_OK) {
        model->diag = p->diag;
        lf_program_free(p);
        return status;
    }
    *out = p;
    return LF_OK;
}

static void drop_weights(lf_program *p)
{
    lf_cpu_weights_free(p->fused.weights);
    lf_cpu_weights_free(p->exact.weights);
    p->fused.weights = p->exact.weights = NULL;
    p->fused.ready = p->exact.ready = false;
    p->prepared = false;
}

/* The parameter lies no longer on the GPU. */
static void leave_there(lf_program *p, int32_t index)
{
    if (p->held[index])
        lf_cuda_device_drop(p->context->gpu, p->held[index]);
    p->there[index] = p->held[index] = NULL;
}

/* The parameter has no values, and nobody uses those it had. */
static void give_up_param(lf_program *p, int32_t index)
{
    drop_weights(p); /* they may point into the memory that goes */
    lf_param_leave_here(p, index);
    leave_there(p, index);
}

void lf_program_free(lf_program *program)
{
    if (!program)
        return;
    drop_weights(program);
    lf_cuda_program_free(program->fused.cuda);
    lf_cuda_program_free(program->exact.cuda);
    const bool made = program->param && program->copied && program->there && program->held;
    for (int32_t i = 0; made && i < program->written.params; i++)
        give_up_param(program, i);
    free(program->copied);
    free(program->there);
    free(program->held);
    free(program->looks);
    free(program->param);
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

/* ---- parameters ---- */

size_t lf_param_count(const lf_program *p, int32_t index)
{
    return (size_t)lf_shape_count(&lf_at(&p->written, p->written.param[index])->shape, p->hint);
}

static int32_t find_param(const lf_program *p, const char *name)
{
    for (int32_t i = 0; i < p->written.params; i++)
        if (strcmp(lf_at(&p->written, p->written.param[i])->name, name) == 0)
            return i;
    return -1;
}

/* Room for its values here. */
static lf_status make_room(lf_program *p, int32_t index, float **out)
{
    if (!p->copied[index])
        p->copied[index] = lf_aligned_alloc(lf_param_count(p, index) * sizeof(float));
    p->param[index] = *out = p->copied[index];
    return *out ? LF_OK
                : lf_fail(&p->diag, LF_ERR_NOMEM, "no memory for parameter %s",
                          lf_at(&p->written, p->written.param[index])->name);
}

lf_status lf_param_memory(lf_program *p, int32_t index, float **out)
{
    leave_there(p, index);
    p->prepared = false;
    return make_room(p, index, out);
}

typedef struct copying {
    const float *from;
    float *to;
    size_t count;
} copying;

enum { COPIED_AT_ONCE = 1 << 18 }; /* elements */

static void copy_chunk(void *arg, int64_t index, int slot)
{
    const copying *c = arg;
    const size_t at = (size_t)index * COPIED_AT_ONCE, left = c->count - at;
    const size_t bytes = (left < COPIED_AT_ONCE ? left : COPIED_AT_ONCE) * sizeof *c->to;
    (void)slot;
    lf_memory_ready(c->to + at, bytes);
    memcpy(c->to + at, c->from + at, bytes);
}

/* Which parameter is being given, and whether so many values are what it has. */
static lf_status given_param(lf_program *p, const char *name, const float *data, size_t count, int32_t *index)
{
    if (!p)
        return LF_ERR_ARG;
    lf_program_begin(p);
    if (!name || !data)
        return lf_fail(&p->diag, LF_ERR_ARG, "a parameter wants its name and its values");
    *index = find_param(p, name);
    if (*index < 0)
        return lf_fail(&p->diag, LF_ERR_ARG, "the model has no parameter %.128s", name);
    if (count != lf_param_count(p, *index))
        return lf_fail(&p->diag, LF_ERR_DATA, "parameter %s has %zu elements, not %zu", name, lf_param_count(p, *index),
                       count);
    return LF_OK;
}

lf_status lf_program_set_param(lf_program *program, const char *name, const float *data, size_t count)
{
    int32_t index = -1;
    lf_status status = given_param(program, name, data, count, &index);
    if (status != LF_OK)
        return status;
    copying c = {.from = data, .count = count};
    status = lf_param_memory(program, index, &c.to);
    if (status == LF_OK) /* by all threads: most of it is the first touch of fresh memory */
        lf_pool_run(program->context->pool, (int64_t)((count + COPIED_AT_ONCE - 1) / COPIED_AT_ONCE), copy_chunk, &c);
    return status;
}

enum { WHAT = 160 };

static const char *say_param(const lf_program *p, int32_t index, char *to)
{
    snprintf(to, WHAT, "parameter %s", lf_at(&p->written, p->written.param[index])->name);
    return to;
}

/* Checks what is given from the GPU's memory. */
static lf_status given_there(lf_program *p, const char *name, const float *data, size_t count, int32_t *index)
{
    lf_status status = given_param(p, name, data, count, index);
    if (status == LF_OK && p->target != LF_TARGET_CUDA)
        return lf_fail(&p->diag, LF_ERR_ARG, "parameter %s: memory of the GPU is for programs compiled for cuda", name);
    return status;
}

lf_status lf_program_set_param_cuda(lf_program *program, const char *name, const float *data, size_t count,
                                    void *stream)
{
    int32_t index = -1;
    float *to;
    char what[WHAT];
    lf_status status = given_there(program, name, data, count, &index);
    if (status != LF_OK)
        return status;
    if (program->mode == LF_CUDA_FP32) { /* where kernels read weights as they are, too: the copy stays there */
        give_up_param(program, index);
        status = lf_cuda_device_copy(program->context->gpu, data, count * sizeof *data, stream,
                                     say_param(program, index, what), &program->held[index], &program->diag);
        program->there[index] = program->held[index];
        return status;
    }
    status = lf_param_memory(program, index, &to);
    if (status == LF_OK)
        status = lf_cuda_device_read(program->context->gpu, to, data, count * sizeof *to, stream,
                                     say_param(program, index, what), &program->diag);
    if (status != LF_OK)
        give_up_param(program, index); /* there may be anything in it */
    return status;
}

lf_status lf_program_borrow_param_cuda(lf_program *program, const char *name, const float *data, size_t count,
                                       void *stream)
{
    int32_t index = -1;
    if ((uintptr_t)data % LF_CUDA_ALIGNED != 0) /* kernels have it so of memory of our own */
        return lf_program_set_param_cuda(program, name, data, count, stream);
    lf_status status = given_there(program, name, data, count, &index);
    if (status == LF_OK)
        status = lf_cuda_device_wait(program->context->gpu, stream, &program->diag);
    if (status != LF_OK)
        return status;
    give_up_param(program, index);
    program->there[index] = data; /* read when preparing wants to see it */
    return LF_OK;
}

lf_status lf_program_borrow_param(lf_program *program, const char *name, const float *data, size_t count)
{
    int32_t index = -1;
    lf_status status = given_param(program, name, data, count, &index);
    if (status != LF_OK)
        return status;
    give_up_param(program, index);
    program->param[index] = data;
    return LF_OK;
}

lf_status lf_program_draw_params(lf_program *program, uint64_t seed)
{
    lf_status status = LF_OK;
    if (!program)
        return LF_ERR_ARG;
    lf_program_begin(program);
    for (int32_t i = 0; i < program->written.params && status == LF_OK; i++) {
        const lf_node_info *info = lf_at(&program->written, program->written.param[i]);
        int64_t last = info->shape.rank > 0 ? lf_extent_at(info->shape.dim[info->shape.rank - 1], program->hint) : 1;
        float bound = (float)(1.0 / sqrt((double)last)), *memory;
        status = lf_param_memory(program, i, &memory);
        if (status == LF_OK)
            lf_draw_uniform(seed, info->name, -bound, bound, lf_param_count(program, i), memory);
    }
    return status;
}

const float *lf_program_param(const lf_program *program, const char *name)
{
    int32_t index = program && name ? find_param(program, name) : -1;
    return index < 0 ? NULL : program->param[index];
}

/* ---- preparing ---- */

/* Where the rewritten model's program keeps a parameter on the GPU; NULL where it does not. */
static const void *kept_for_fused(const lf_program *p, int32_t param)
{
    const lf_plan *plan = p->fused.plan;
    for (int32_t i = 0; p->fused.ready && i < plan->prepareds; i++)
        if (plan->prepared[i] == p->fused.graph.param[param])
            return lf_cuda_program_prepared(p->fused.cuda, i);
    return NULL;
}

/* Prepared tensors onto the GPU; those that are parameters as they lie there stay where they are, and both programs
 * share what is there. */
static lf_status upload_weights(lf_program *p, lf_variant *v, const lf_cpu_weights *made)
{
    const lf_plan *plan = v->plan;
    const void **there = calloc((size_t)plan->prepareds + 1, sizeof *there);
    lf_status status = there ? lf_variant_for_cuda(p, v) : lf_fail_nomem(&p->diag, "preparing weights");
    for (int32_t i = 0; there && i < plan->prepareds; i++)
        for (int32_t k = 0; k < v->graph.params; k++)
            if (plan->prepared[i] == v->graph.param[k])
                there[i] = p->there[k] || v == &p->fused ? p->there[k] : kept_for_fused(p, k);
    if (status == LF_OK)
        status = lf_cuda_program_weights(v->cuda, lf_cpu_weights_tensors(made), there, lf_cpu_weights_narrow(made),
                                         &p->diag);
    free(there);
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
    for (int32_t i = 0; i < plan->groups; i++) {
        const lf_product *product = &plan->group[i].product;
        if (product->node == LF_NONE || !product->narrow)
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

/* Values that lie on the GPU alone and are looked at here come over. They stay where they are all the same. */
static lf_status read_from_there(lf_program *p)
{
    bool *looked = calloc((size_t)p->written.params + 1, sizeof *looked);
    lf_status status = looked ? find_looked_at(p, looked) : lf_fail_nomem(&p->diag, "preparing weights");
    for (int32_t i = 0; i < p->written.params && status == LF_OK; i++) {
        float *to;
        char what[WHAT];
        if (p->param[i] || !looked[i])
            continue;
        status = make_room(p, i, &to);
        if (status == LF_OK)
            status = lf_cuda_device_read(p->context->gpu, to, p->there[i], lf_param_count(p, i) * sizeof *to, NULL,
                                         say_param(p, i, what), &p->diag);
        if (status != LF_OK)
            lf_param_leave_here(p, i);
    }
    free(looked);
    return status;
}

/* Does a program that is ready read the parameter where it lies? */
static bool is_read_there(const lf_program *p, int32_t param)
{
    const lf_variant *variant[] = {&p->fused, &p->exact};
    for (int v = 0; v < 2; v++)
        for (int32_t i = 0; variant[v]->ready && i < variant[v]->plan->prepareds; i++)
            if (variant[v]->plan->prepared[i] == variant[v]->graph.param[param])
                return true;
    return false;
}

/* Our own copies that nobody reads there and that came over here: one is enough. */
static void drop_unread(lf_program *p)
{
    for (int32_t i = 0; i < p->written.params; i++)
        if (p->held[i] && p->param[i] && !is_read_there(p, i))
            leave_there(p, i);
}

static lf_status prepare_variant(lf_program *p, lf_variant *v, bool pack, bool *finite)
{
    const float **param = calloc((size_t)v->graph.count + 1, sizeof *param);
    if (!param)
        return lf_fail_nomem(&p->diag, "preparing weights");
    for (int32_t i = 0; i < v->graph.params; i++)
        param[v->graph.param[i]] = p->param[i];
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
            *finite = *finite && lf_cpu_all_finite(p->param[i], (int64_t)lf_param_count(p, i), p->context->pool);
    free(needed);
    return LF_OK;
}

/* Lent in this machine's own memory, which others may write. */
static bool is_lent_here(const lf_program *p, int32_t index)
{
    return p->param[index] && !p->copied[index];
}

lf_status lf_program_prepare(lf_program *program)
{
    if (!program)
        return LF_ERR_ARG;
    lf_program_begin(program);
    lf_program *p = program;
    for (int32_t i = 0; i < p->written.params; i++)
        if (!p->param[i] && !p->there[i])
            return lf_fail(&p->diag, LF_ERR_DATA, "parameter %s has no values yet",
                           lf_at(&p->written, p->written.param[i])->name);
    drop_weights(p);
    bool finite = true, unused = true; /* asked only where it would make a difference */
    lf_status status = read_from_there(p);
    if (status == LF_OK)
        status = prepare_variant(p, &p->fused, true, p->exact.plan ? &finite : NULL);
    if (status == LF_OK && p->exact.plan)
        status = unused_finite(p, &unused);
    if (status == LF_OK && !(finite && unused)) {
        /* Folded weights that are not finite need not give what the model gives as written: run it as written. */
        drop_weights(p);
        status = prepare_variant(p, &p->exact, true, NULL);
    } else if (status == LF_OK && p->guarded && p->exact.plan) {
        status = prepare_variant(p, &p->exact, false, NULL);
    }
    if (status != LF_OK) {
        drop_weights(p);
        return status;
    }
    drop_unread(p);
    for (int32_t i = 0; i < p->written.params; i++)
        p->looks[i] = is_lent_here(p, i) ? lf_look(p->param[i], lf_param_count(p, i)) : 0;
    p->prepared = true;
    return LF_OK;
}

bool lf_program_params_hold(const lf_program *program)
{
    for (int32_t i = 0; program && program->prepared && i < program->written.params; i++)
        if (is_lent_here(program, i) && program->looks[i] != lf_look(program->param[i], lf_param_count(program, i)))
            return false;
    return true;
}

void lf_program_memory(const lf_program *program, size_t *params, size_t *prepared, size_t *other)
{
    size_t given = 0, made = 0;
    for (int32_t i = 0; program && i < program->written.params; i++) {
        const size_t bytes = lf_param_count(program, i) * sizeof(float);
        given += program->copied[i] ? bytes : 0;
        made += program->held[i] ? bytes : 0;
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
    lf_cuda_target target = {.mode = p->mode, .unit = strcmp(device->name, "a100") == 0 ? LF_CUDA_MMA : LF_CUDA_WGMMA};
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
        return lf_fail(&program->diag, LF_ERR_ARG, "explaining wants a place for the text");
    *out = NULL;
    lf_program *p = program;
    lf_device device;
    lf_account account = {.written = &p->written,
                          .home = p->fused.home,
                          .notes = &p->fused.notes,
                          .plan = p->fused.plan,
                          .device = &device,
                          .dims = dims ? dims : p->hint,
                          .precision = lf_precision_name(p->mode)};
    lf_status status = lf_graph_check_dims(&p->written, account.dims, &p->diag);
    if (status == LF_OK)
        status = lf_device_find(p->target == LF_TARGET_CUDA ? lf_cuda_device_like(p->context->gpu) : p->device, p->kern,
                                p->context->pool, &device, &p->diag);
    if (status == LF_OK)
        lf_device_use(&device, (int)p->mode);
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
    lf_cuda_target target = {.mode = program->mode, .aligned = true};
    if (!out || !arch || !lf_cuda_arch_unit(arch, &target.unit))
        return lf_fail(&program->diag, LF_ERR_ARG,
                       "arch: '%.64s' is none of sm_70, sm_75, sm_80, sm_86, sm_89, sm_90, sm_90a", arch ? arch : "");
    if (target.unit == LF_CUDA_PLAIN && target.mode != LF_CUDA_FP32)
        return lf_fail(&program->diag, LF_ERR_UNSUPPORTED,
                       "arch %s: precisions other than fp32 need tensor cores, from sm_80 on", arch);
    lf_cuda_source source;
    lf_status status = lf_cuda_emit(program->fused.plan, program->guarded ? program->exact.plan : NULL, target, &source,
                                    &program->diag);
    *out = source.text;
    source.text = NULL;
    lf_cuda_source_free(&source);
    return status;
}
