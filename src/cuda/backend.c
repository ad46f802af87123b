/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU as a backend, and GPUs that are not here: those are only costed. */
#include <stdio.h>
#include <stdlib.h>

#include "cuda/cuda.h"

/* ---- a GPU ---- */

typedef struct program {
    lf_cuda_device *device;       /* borrowed */
    lf_backend_task task;
    lf_cuda_program *fused;       /* owned */
    lf_cuda_program *exact;       /* owned; NULL until it is needed */
    bool runs_exact;              /* alone: fused's laws do not hold for the weights there are */
} program;

typedef struct call {
    const program *program;       /* borrowed */
    lf_cuda_call *call;           /* owned */
} call;

static lf_status open_gpu(void **device, lf_diag *diag)
{
    lf_cuda_device *gpu = NULL;
    lf_status status = lf_cuda_device_open(&gpu, diag);
    *device = gpu;
    return status;
}

static void close_gpu(void *device)
{
    lf_cuda_device_close(device);
}

static lf_status check_precision(void *device, lf_precision precision, lf_diag *diag)
{
    lf_cuda_target target;
    return lf_cuda_device_target(device, precision, &target, diag);
}

static lf_plan_options plans(void *device)
{
    lf_cuda_target target;
    if (lf_cuda_device_target(device, LF_PRECISION_FP32, &target, NULL) != LF_OK)
        return (lf_plan_options){0}; /* compiling fails too, and says why */
    return lf_cuda_plans(target.unit);
}

/* With the units that multiply in fp32. */
static lf_status describe(void *device, const char *name, lf_pool *pool, lf_device *out, lf_diag *diag)
{
    lf_cuda_target target;
    (void)name, (void)pool;
    lf_status status = lf_cuda_device_target(device, LF_PRECISION_FP32, &target, diag);
    if (status == LF_OK)
        lf_cuda_device_costs(device, target.unit, out);
    return status;
}

/* What redoes rows as written is rarely met: the ordinary units will do, and where it does so it is part of fused's
 * kernel. */
static lf_status compile_exact(program *p, lf_diag *diag)
{
    const lf_cuda_target plain = {0};
    return p->exact ? LF_OK : lf_cuda_program_new(p->device, p->task.exact, plain, NULL, NULL, &p->exact, diag);
}

static void program_free(void *from)
{
    program *p = from;
    if (!p)
        return;
    lf_cuda_program_free(p->fused);
    lf_cuda_program_free(p->exact);
    free(p);
}

static lf_status compile(void *device, const lf_backend_task *task, void **out, lf_diag *diag)
{
    lf_cuda_target target;
    *out = NULL;
    program *p = calloc(1, sizeof *p);
    if (!p)
        return lf_fail_nomem(diag, "the program");
    *p = (program){.device = device, .task = *task};
    lf_status status = lf_cuda_device_target(device, task->precision, &target, diag);
    if (status == LF_OK)
        p->task.precision = target.precision = lf_plan_precision(task->fused, target.unit, target.precision);
    if (status == LF_OK && task->guarded)
        status = compile_exact(p, diag);
    if (status == LF_OK)
        status = lf_cuda_program_new(device, task->fused, target, p->exact, task->first, &p->fused, diag);
    if (status != LF_OK) {
        program_free(p);
        return status;
    }
    if (task->tune)
        lf_cuda_program_tune(p->fused);
    *out = p;
    return LF_OK;
}

/* The parameter of the graph that a node is; -1: none. */
static int32_t param_of(const lf_graph *g, lf_node n)
{
    for (int32_t i = 0; i < g->params; i++)
        if (g->param[i] == n)
            return i;
    return -1;
}

/* Where fused keeps a parameter on the device; NULL where it does not. */
static const void *kept_by_fused(const program *p, int32_t param)
{
    const lf_plan *plan = p->task.fused;
    for (int32_t i = 0; i < plan->prepareds; i++)
        if (plan->prepared[i] == plan->graph->param[param])
            return lf_cuda_program_prepared(p->fused, i);
    return NULL;
}

/* Tensors that are parameters as they lie on the device stay where they are. shares: with what fused keeps. */
static lf_status upload(const program *p, lf_cuda_program *to, const lf_plan *plan, const lf_prepared *prepared,
                        const void *const *device, bool shares, lf_diag *diag)
{
    const void **there = calloc((size_t)plan->prepareds + 1, sizeof *there);
    if (!there)
        return lf_fail_nomem(diag, "preparing weights");
    for (int32_t i = 0; i < plan->prepareds; i++) {
        const int32_t param = param_of(plan->graph, plan->prepared[i]);
        if (param >= 0)
            there[i] = device[param] || !shares ? device[param] : kept_by_fused(p, param);
    }
    lf_status status = lf_cuda_program_weights(to, prepared, there, diag);
    free(there);
    return status;
}

static lf_status prepare(void *to, const lf_backend_weights *weights, lf_diag *diag)
{
    program *p = to;
    lf_status status = LF_OK;
    if (weights->fused)
        status = upload(p, p->fused, p->task.fused, weights->fused, weights->device, false, diag);
    if (weights->exact && status == LF_OK)
        status = compile_exact(p, diag);
    if (weights->exact && status == LF_OK)
        status = upload(p, p->exact, p->task.exact, weights->exact, weights->device, weights->fused != NULL, diag);
    p->runs_exact = !weights->fused;
    lf_prepared_free(weights->fused);
    lf_prepared_free(weights->exact);
    return status;
}

static void unprepare(void *of)
{
    (void)of; /* what lies on the device is its own, or borrowed from parameters that are not read before the next */
}

static size_t program_bytes(const void *of)
{
    const program *p = of;
    return lf_cuda_program_bytes(p->fused) + (p->exact ? lf_cuda_program_bytes(p->exact) : 0);
}

static lf_cuda_program *running(const program *p)
{
    return p->runs_exact ? p->exact : p->fused;
}

static lf_status compile_for(void *of, const int64_t *dims, lf_diag *diag)
{
    return lf_cuda_program_compile(running(of), dims, diag);
}

static lf_status workspace(void *of, const int64_t *dims, int64_t *bytes, lf_diag *diag)
{
    return lf_cuda_workspace(running(of), dims, bytes, diag);
}

static bool choose(void *of, const int64_t *dims, lf_tile_choice *out)
{
    *out = lf_cuda_program_choice(((program *)of)->fused, dims);
    return out->expected[out->shape] > 0;
}

static lf_status call_new(void *of, void **out)
{
    const program *p = of;
    call *c = *out = calloc(1, sizeof *c);
    if (!c)
        return LF_ERR_NOMEM;
    c->program = p;
    lf_status status = lf_cuda_call_new(p->device, &c->call, NULL);
    if (status != LF_OK) {
        free(c);
        *out = NULL;
    }
    return status;
}

static void call_free(void *of)
{
    call *c = of;
    if (c)
        lf_cuda_call_free(c->call);
    free(c);
}

static lf_cuda_job job_of(const call *c, const lf_backend_job *job)
{
    return (lf_cuda_job){.program = running(c->program),
                         .dims = job->dims,
                         .batch = job->batch,
                         .input = job->input,
                         .output = job->output,
                         .on_host = !job->on_device,
                         .stream = job->stream,
                         .lent = job->workspace,
                         .lent_bytes = job->workspace_bytes};
}

static lf_status run(void *of, const lf_backend_job *job, lf_diag *diag)
{
    call *c = of;
    const lf_cuda_job on_gpu = job_of(c, job);
    return lf_cuda_call_run(c->call, &on_gpu, diag);
}

static lf_status time_runs(void *of, const lf_backend_job *job, size_t runs, double *seconds, lf_diag *diag)
{
    call *c = of;
    const lf_cuda_job on_gpu = job_of(c, job);
    lf_status status = lf_cuda_call_run(c->call, &on_gpu, diag); /* memory, copies of inputs, warm code */
    return status == LF_OK ? lf_cuda_call_time(c->call, &on_gpu, runs, seconds, diag) : status;
}

static int64_t rows_redone(void *of)
{
    int64_t rows = 0;
    return lf_cuda_call_redone(((call *)of)->call, &rows, NULL) == LF_OK ? rows : 0;
}

static size_t call_bytes(const void *of)
{
    return sizeof(call) + lf_cuda_call_bytes(((const call *)of)->call);
}

/* ---- its memory ---- */

static lf_status wait_for(void *device, void *stream, lf_diag *diag)
{
    return lf_cuda_device_wait(device, stream, diag);
}

static lf_status copy(void *device, const void *from, size_t bytes, void *stream, const char *what, void **out,
                      lf_diag *diag)
{
    return lf_cuda_device_copy(device, from, bytes, stream, what, out, diag);
}

static void drop(void *device, void *of)
{
    lf_cuda_device_drop(device, of);
}

static lf_status read_back(void *device, void *to, const void *from, size_t bytes, void *stream, const char *what,
                           lf_diag *diag)
{
    return lf_cuda_device_read(device, to, from, bytes, stream, what, diag);
}

/* Split operands' kernels do, for rows of too wide a range. */
static bool reads_as_given(const void *of)
{
    return lf_precision_table[((const program *)of)->task.precision].split;
}

static const lf_backend_memory memory = {
    .alignment = LF_CUDA_ALIGNED,
    .wait = wait_for,
    .copy = copy,
    .drop = drop,
    .read = read_back,
    .reads_as_given = reads_as_given,
};

const lf_backend lf_cuda_backend = {
    .name = "cuda",
    .tunes = true,
    .memory = &memory,
    .open = open_gpu,
    .close = close_gpu,
    .plans = plans,
    .check_precision = check_precision,
    .describe = describe,
    .compile = compile,
    .program_free = program_free,
    .compile_for = compile_for,
    .prepare = prepare,
    .unprepare = unprepare,
    .program_bytes = program_bytes,
    .workspace = workspace,
    .choose = choose,
    .call_new = call_new,
    .call_free = call_free,
    .run = run,
    .time = time_runs,
    .rows_redone = rows_redone,
    .call_bytes = call_bytes,
};

/* ---- a GPU that is not here ---- */

typedef struct costed {
    const lf_plan *plan;          /* borrowed */
    lf_cuda_target target;
    lf_device device;             /* as it is in the table */
} costed;

/* All devices of the table have tensor cores. */
static lf_plan_options costed_plans(void *device)
{
    (void)device;
    return lf_cuda_plans(LF_UNIT_MMA);
}

static lf_status any_precision(void *device, lf_precision precision, lf_diag *diag)
{
    (void)device, (void)precision, (void)diag;
    return LF_OK;
}

static lf_status describe_row(void *device, const char *name, lf_pool *pool, lf_device *out, lf_diag *diag)
{
    const lf_device *row = lf_device_named(name);
    char known[256] = "";
    (void)device, (void)pool;
    if (row) {
        *out = *row;
        return LF_OK;
    }
    for (size_t i = 0, used = 0; lf_device_at(i) && used < sizeof known; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", lf_device_at(i)->name);
    return lf_fail(diag, LF_ERR_ARG, "device %s: not in the table of devices, which has %s", name, known);
}

static lf_status cost(void *device, const lf_backend_task *task, void **out, lf_diag *diag)
{
    costed *c = *out = calloc(1, sizeof *c);
    if (!c)
        return lf_fail_nomem(diag, "the program");
    lf_status status = describe_row(device, task->device, task->pool, &c->device, diag);
    if (status != LF_OK) {
        free(c);
        *out = NULL;
        return status;
    }
    c->plan = task->fused;
    c->target = (lf_cuda_target){.precision = lf_plan_precision(task->fused, c->device.gpu.unit, task->precision),
                                 .unit = c->device.gpu.unit};
    return LF_OK;
}

static lf_status costed_prepare(void *of, const lf_backend_weights *weights, lf_diag *diag)
{
    (void)of, (void)diag; /* nothing reads them */
    lf_prepared_free(weights->fused);
    lf_prepared_free(weights->exact);
    return LF_OK;
}

static size_t costed_bytes(const void *of)
{
    (void)of;
    return 0;
}

static lf_status costed_workspace(void *of, const int64_t *dims, int64_t *bytes, lf_diag *diag)
{
    const costed *c = of;
    lf_device used = c->device;
    (void)diag;
    lf_device_use(&used, c->target.precision);
    *bytes = lf_cost_workspace(c->plan, dims, &used) + lf_plan_intermediate_bytes(c->plan, dims);
    return LF_OK;
}

static bool costed_choose(void *of, const int64_t *dims, lf_tile_choice *out)
{
    const costed *c = of;
    *out = lf_cuda_choose(c->plan, c->target, &c->device, dims);
    return out->expected[out->shape] > 0;
}

const lf_backend lf_cuda_costed_backend = {
    .plans = costed_plans,
    .check_precision = any_precision,
    .describe = describe_row,
    .compile = cost,
    .program_free = free,
    .prepare = costed_prepare,
    .unprepare = unprepare,
    .program_bytes = costed_bytes,
    .workspace = costed_workspace,
    .choose = costed_choose,
};
