/* SPDX-License-Identifier: Apache-2.0 */
/* A call's memory on the device, its runs, and how long they take. */
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "cuda/device.h"

/* bytes before the flags, and what is in them besides the barrier's words, one of which is WATCHED_ANY */
enum { CONTROL = 64, WATCHED_ANY = 4, BEYOND_ANY = 16, REDONE = 24 };
enum { NON_BLOCKING = 1 }; /* CU_STREAM_NON_BLOCKING */

/* Memory that grows and is reused. */
typedef struct room {
    lf_cuda_ptr at;
    size_t bytes;
} room;

/* Memory that graphs may still have the address of. */
typedef struct kept {
    struct kept *next;
    room room;
} kept;

/* What a launch was made ready for: all that its parameters come from, but for the addresses of inputs and outputs. */
typedef struct occasion {
    const lf_cuda_kernel *kernel; /* NULL: there is none */
    const lf_cuda_program *program;
    unsigned weights;
    bool aligned;
    int64_t dims[LF_MAX_SYMBOLS], batch;
    const void *lent;
    size_t lent_bytes;
} occasion;

struct lf_cuda_call {
    lf_cuda_device *device; /* borrowed */
    lf_cuda_ready *ready;   /* the last launch, owned; it serves again on the same occasion */
    occasion occasion;
    room workspace, flags, flush;
    lf_cuda_ptr areas;      /* where the last run's workspace began: the call's own, or what was lent */
    bool captured;          /* into a graph, with the workspace there is */
    kept *kept;
    bool watched;           /* the last run watched for rows to redo */
    room *in, *out;         /* by port: copies of host memory */
    lf_cuda_ptr *input, *output;
    int32_t inputs, outputs;
    void *stream;           /* of the last run */
};

lf_status lf_cuda_call_new(lf_cuda_device *device, lf_cuda_call **out, lf_diag *diag)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return lf_fail_nomem(diag, "the call");
    (*out)->device = device;
    (*out)->ready = lf_aligned_alloc(sizeof *(*out)->ready);
    if ((*out)->ready)
        return LF_OK;
    free(*out);
    *out = NULL;
    return lf_fail_nomem(diag, "the call");
}

void lf_cuda_call_free(lf_cuda_call *c)
{
    if (!c)
        return;
    if (lf_cuda_enter(c->device, NULL) == LF_OK) {
        c->device->driver->free(c->workspace.at);
        c->device->driver->free(c->flags.at);
        c->device->driver->free(c->flush.at);
        for (const kept *k = c->kept; k; k = k->next)
            c->device->driver->free(k->room.at);
        for (int32_t i = 0; c->in && i < c->inputs; i++)
            c->device->driver->free(c->in[i].at);
        for (int32_t i = 0; c->out && i < c->outputs; i++)
            c->device->driver->free(c->out[i].at);
        lf_cuda_leave(c->device);
    }
    while (c->kept) {
        kept *next = c->kept->next;
        free(c->kept);
        c->kept = next;
    }
    free(c->in);
    free(c->out);
    free(c->input);
    free(c->output);
    lf_aligned_free(c->ready);
    free(c);
}

size_t lf_cuda_call_bytes(const lf_cuda_call *c)
{
    size_t bytes = sizeof *c + sizeof *c->ready + c->workspace.bytes + c->flags.bytes + c->flush.bytes;
    for (const kept *k = c->kept; k; k = k->next)
        bytes += k->room.bytes;
    for (int32_t i = 0; i < c->inputs; i++)
        bytes += c->in[i].bytes;
    for (int32_t i = 0; i < c->outputs; i++)
        bytes += c->out[i].bytes;
    return bytes;
}

/* ---- memory ---- */

static lf_status reserve(lf_cuda_call *c, room *r, size_t bytes, const char *what, lf_diag *diag)
{
    if (bytes <= r->bytes)
        return LF_OK;
    c->device->driver->free(r->at); /* waits for whoever still uses it */
    *r = (room){0};
    lf_status status = lf_cuda_alloc(c->device, bytes, what, &r->at, diag);
    if (status == LF_OK)
        r->bytes = bytes;
    return status;
}

static lf_status reserve_ports(lf_cuda_call *c, const lf_graph *g, lf_diag *diag)
{
    if (c->in)
        return LF_OK;
    c->inputs = g->inputs;
    c->outputs = g->outputs;
    c->in = calloc((size_t)g->inputs + 1, sizeof *c->in);
    c->out = calloc((size_t)g->outputs + 1, sizeof *c->out);
    c->input = calloc((size_t)g->inputs + 1, sizeof *c->input);
    c->output = calloc((size_t)g->outputs + 1, sizeof *c->output);
    if (c->in && c->out && c->input && c->output)
        return LF_OK;
    free(c->in);
    free(c->out);
    free(c->input);
    free(c->output);
    c->in = c->out = NULL;
    c->input = c->output = NULL;
    c->inputs = c->outputs = 0;
    return lf_fail_nomem(diag, "the call");
}

/* Where a weight has too wide a range, all runs are those of the program for the ordinary units. */
static lf_cuda_program *runner(const lf_cuda_job *job)
{
    return job->program->full ? job->program->full : job->program;
}

/* Puts memory aside that may not be freed yet. */
static lf_status keep(lf_cuda_call *c, room *r, lf_diag *diag)
{
    kept *k = r->bytes > 0 ? malloc(sizeof *k) : NULL;
    if (r->bytes == 0)
        return LF_OK;
    if (!k)
        return lf_fail_nomem(diag, "the call");
    *k = (kept){c->kept, *r};
    c->kept = k;
    *r = (room){0};
    return LF_OK;
}

static lf_status ask_capture(const lf_cuda_call *c, const lf_cuda_job *job, int *captures, lf_diag *diag)
{
    *captures = 0;
    return lf_cuda_status(c->device, c->device->driver->stream_captures(job->stream, captures),
                          "asking about the stream", diag);
}

/* What is allocated or cleared while the caller captures is no part of the graph, and must not spoil it: the mode is
 * the thread's. */
static lf_status reserve_workspace(lf_cuda_call *c, const lf_cuda_job *job, size_t bytes, lf_diag *diag)
{
    const lf_cuda_driver *driver = c->device->driver;
    int captures, mode = LF_CUDA_RELAXED;
    lf_status status = ask_capture(c, job, &captures, diag);
    if (status == LF_OK && bytes > c->workspace.bytes) {
        if (c->captured || captures)
            status = keep(c, &c->workspace, diag);
        if (status != LF_OK)
            return status;
        c->captured = false;
        driver->capture_mode(&mode);
        status = reserve(c, &c->workspace, bytes, "workspace", diag);
        driver->capture_mode(&mode);
    }
    c->areas = c->workspace.at;
    c->captured = c->captured || captures;
    return status;
}

static lf_status use_lent(lf_cuda_call *c, const lf_cuda_job *job, size_t bytes, lf_diag *diag)
{
    if (job->lent_bytes < bytes)
        return lf_fail(diag, LF_ERR_ARG, "a run at these extents wants %zu bytes of workspace, %zu were lent", bytes,
                       job->lent_bytes);
    if ((uintptr_t)job->lent % LF_CUDA_ALIGNED != 0)
        return lf_fail(diag, LF_ERR_ARG, "workspace begins at a multiple of %d bytes, what was lent does not",
                       LF_CUDA_ALIGNED);
    c->areas = (lf_cuda_ptr)(uintptr_t)job->lent;
    return LF_OK;
}

static size_t rows_bytes(const lf_cuda_job *job)
{
    return ((size_t)job->batch + CONTROL - 1) / CONTROL * CONTROL;
}

static lf_status clear_flags(lf_cuda_call *c, lf_diag *diag)
{
    const lf_cuda_driver *driver = c->device->driver;
    void *stream = NULL; /* of our own: the caller's may be capturing, and then does nothing yet */
    int error = driver->stream_new(&stream, NON_BLOCKING);
    error = error ? error : driver->set_bytes(c->flags.at, 0, c->flags.bytes, stream);
    error = error ? error : driver->stream_wait(stream);
    if (stream)
        driver->stream_free(stream);
    return lf_cuda_status(c->device, error, "clearing flags", diag);
}

/* What is counted, then two sets of flags, one for each row. Kernels leave all at 0 but the barrier's top bit and how
 * many rows were redone, whose places do not depend on how many rows there are. */
static lf_status reserve_flags(lf_cuda_call *c, const lf_cuda_job *job, lf_diag *diag)
{
    const size_t bytes = CONTROL + 2 * rows_bytes(job);
    int mode = LF_CUDA_RELAXED;
    if (bytes <= c->flags.bytes)
        return LF_OK;
    lf_status status = keep(c, &c->flags, diag);
    if (status != LF_OK)
        return status;
    c->device->driver->capture_mode(&mode);
    status = reserve(c, &c->flags, bytes, "the rows' flags", diag);
    if (status == LF_OK)
        status = clear_flags(c, diag);
    if (status != LF_OK) {
        c->device->driver->free(c->flags.at);
        c->flags = (room){0};
    }
    c->device->driver->capture_mode(&mode);
    return status;
}

/* Arrays on the host are copied to where they are. */
static bool are_aligned(const lf_cuda_job *job)
{
    const lf_graph *g = job->program->plan->graph;
    uintptr_t bits = 0;
    for (int32_t i = 0; i < g->inputs && !job->on_host; i++)
        bits |= (uintptr_t)job->input[i];
    for (int32_t i = 0; i < g->outputs && !job->on_host; i++)
        bits |= (uintptr_t)job->output[i];
    return bits % LF_CUDA_FOUR == 0;
}

lf_status lf_cuda_call_reserve(lf_cuda_call *c, const lf_cuda_kernel *kernel, const lf_cuda_job *job, lf_diag *diag)
{
    int64_t bytes = 0;
    lf_status status = lf_cuda_kernel_workspace(kernel, job->dims, &bytes, diag);
    if (status == LF_OK)
        status = reserve_ports(c, job->program->plan->graph, diag);
    /* who lends has asked what aligned arrays want; others may have to be brought into lines besides */
    const bool lends = job->lent && ((size_t)bytes <= job->lent_bytes || are_aligned(job));
    if (status == LF_OK)
        status = lends ? use_lent(c, job, (size_t)bytes, diag) : reserve_workspace(c, job, (size_t)bytes, diag);
    return status == LF_OK && kernel->source.waits ? reserve_flags(c, job, diag) : status;
}

static size_t port_bytes(const lf_graph *g, lf_node port, const int64_t *dims)
{
    return (size_t)lf_shape_count(&lf_at(g, port)->shape, dims) * lf_dtype_size(lf_at(g, port)->dtype);
}

lf_status lf_cuda_call_bring(lf_cuda_call *c, const lf_cuda_job *job, lf_diag *diag)
{
    const lf_graph *g = job->program->plan->graph;
    lf_status status = LF_OK;
    for (int32_t i = 0; i < g->inputs && status == LF_OK; i++) {
        c->input[i] = (lf_cuda_ptr)(uintptr_t)job->input[i];
        if (!job->on_host)
            continue;
        const size_t bytes = port_bytes(g, g->input[i], job->dims);
        status = reserve(c, &c->in[i], bytes, "a copy of the inputs", diag);
        if (status == LF_OK && bytes > 0)
            status =
                lf_cuda_status(c->device, c->device->driver->to_device(c->in[i].at, job->input[i], bytes, job->stream),
                               "copying inputs", diag);
        c->input[i] = c->in[i].at;
    }
    for (int32_t i = 0; i < g->outputs && status == LF_OK; i++) {
        c->output[i] = (lf_cuda_ptr)(uintptr_t)job->output[i];
        if (!job->on_host)
            continue;
        status = reserve(c, &c->out[i], port_bytes(g, g->output[i], job->dims), "a copy of the outputs", diag);
        c->output[i] = c->out[i].at;
    }
    return status;
}

static lf_status take_outputs(lf_cuda_call *c, const lf_cuda_job *job, lf_diag *diag)
{
    const lf_graph *g = job->program->plan->graph;
    lf_status status = LF_OK;
    for (int32_t i = 0; i < g->outputs && status == LF_OK; i++) {
        const size_t bytes = port_bytes(g, g->output[i], job->dims);
        if (bytes > 0)
            status =
                lf_cuda_status(c->device, c->device->driver->to_host(job->output[i], c->out[i].at, bytes, job->stream),
                               "copying outputs", diag);
    }
    return status == LF_OK ? lf_cuda_status(c->device, c->device->driver->stream_wait(job->stream), "running", diag)
                           : status;
}

/* ---- running ---- */

static lf_status launch(lf_cuda_call *c, const lf_cuda_kernel *kernel, const lf_cuda_job *job, lf_diag *diag)
{
    const lf_cuda_ptr at = c->flags.at;
    const lf_cuda_pass pass = {.dims = job->dims,
                               .batch = job->batch,
                               .input = c->input,
                               .output = c->output,
                               .workspace = c->areas,
                               .control = {.barrier = at,
                                           .beyond_any = at + BEYOND_ANY,
                                           .watched_any = at + WATCHED_ANY,
                                           .redone = at + REDONE,
                                           .beyond = at + CONTROL,
                                           .watched = at + CONTROL + rows_bytes(job)}};
    c->occasion.kernel = NULL; /* who calls knows whether it serves again */
    lf_status status = lf_cuda_arrange(runner(job), kernel, &pass, c->ready, diag);
    c->watched = status == LF_OK && job->program->as_written && c->ready->config.gx > 0;
    return status == LF_OK ? lf_cuda_launch(c->device, c->ready, job->stream, diag) : status;
}

static unsigned weights_of(const lf_cuda_program *p)
{
    return p->weights + (p->as_written ? p->as_written->weights : 0);
}

static void remember(lf_cuda_call *c, const lf_cuda_kernel *kernel, const lf_cuda_job *job)
{
    c->occasion = (occasion){.kernel = kernel, .program = job->program, .weights = weights_of(job->program),
                             .aligned = are_aligned(job), .batch = job->batch, .lent = job->lent,
                             .lent_bytes = job->lent_bytes};
    memcpy(c->occasion.dims, job->dims, (size_t)job->program->plan->graph->symbols * sizeof *job->dims);
}

static bool serves_again(const lf_cuda_call *c, const lf_cuda_job *job)
{
    const occasion *o = &c->occasion;
    bool same = o->kernel && o->program == job->program && !job->on_host && o->weights == weights_of(job->program) &&
                o->aligned == are_aligned(job) && o->batch == job->batch && o->lent == job->lent &&
                o->lent_bytes == job->lent_bytes;
    for (int i = 0; same && i < job->program->plan->graph->symbols; i++)
        same = o->dims[i] == job->dims[i];
    return same;
}

/* All that is to do then is to tell it the arrays and to launch it: memory and maps are as they were. */
static lf_status run_again(lf_cuda_call *c, const lf_cuda_job *job, lf_diag *diag)
{
    int captures = 0;
    c->stream = job->stream;
    lf_status status = job->lent ? LF_OK : ask_capture(c, job, &captures, diag);
    c->captured = c->captured || captures;
    if (status == LF_OK)
        status = lf_cuda_call_bring(c, job, diag);
    if (status == LF_OK)
        status = lf_cuda_point(c->device, c->ready, c->occasion.kernel, c->input, c->output, diag);
    return status == LF_OK ? lf_cuda_launch(c->device, c->ready, job->stream, diag) : status;
}

static lf_status run(lf_cuda_call *c, const lf_cuda_job *job, lf_diag *diag)
{
    const lf_cuda_kernel *kernel;
    c->occasion.kernel = NULL; /* memory may go that it has the address of */
    c->stream = job->stream;
    /* which kernel it is */
    const bool settled = !runner(job)->tunes || lf_cuda_tune(runner(job), c, job, are_aligned(job));
    lf_status status = lf_cuda_kernel_for(runner(job), job->dims, are_aligned(job), &kernel, diag);
    if (status == LF_OK)
        status = lf_cuda_call_reserve(c, kernel, job, diag);
    if (status == LF_OK)
        status = lf_cuda_call_bring(c, job, diag);
    if (status == LF_OK)
        status = launch(c, kernel, job, diag);
    if (status == LF_OK && !job->on_host && settled)
        remember(c, kernel, job);
    return status == LF_OK && job->on_host ? take_outputs(c, job, diag) : status;
}

lf_status lf_cuda_call_run(lf_cuda_call *c, const lf_cuda_job *job, lf_diag *diag)
{
    lf_status status = lf_cuda_enter(c->device, diag);
    if (status != LF_OK)
        return status;
    status = serves_again(c, job) ? run_again(c, job, diag) : run(c, job, diag);
    lf_cuda_leave(c->device);
    return status;
}

lf_status lf_cuda_call_redone(lf_cuda_call *c, int64_t *rows, lf_diag *diag)
{
    *rows = 0;
    if (!c->watched)
        return LF_OK;
    lf_status status = lf_cuda_enter(c->device, diag);
    if (status != LF_OK)
        return status;
    status = lf_cuda_status(c->device, c->device->driver->to_host(rows, c->flags.at + REDONE, sizeof *rows, c->stream),
                            "counting rows", diag);
    if (status == LF_OK)
        status = lf_cuda_status(c->device, c->device->driver->stream_wait(c->stream), "counting rows", diag);
    lf_cuda_leave(c->device);
    return status;
}

/* ---- timing ---- */

/* L2 is flushed by writing several times as much as it holds. */
static lf_status time_one(lf_cuda_call *c, const lf_cuda_kernel *kernel, const lf_cuda_job *job, void *const event[2],
                          double *seconds, lf_diag *diag)
{
    const lf_cuda_driver *driver = c->device->driver;
    float ms = 0;
    int error = driver->set_bytes(c->flush.at, 1, c->flush.bytes, job->stream);
    error = error ? error : driver->event_record(event[0], job->stream);
    lf_status status = lf_cuda_status(c->device, error, "timing", diag);
    if (status == LF_OK)
        status = launch(c, kernel, job, diag);
    if (status != LF_OK)
        return status;
    error = driver->event_record(event[1], job->stream);
    error = error ? error : driver->event_wait(event[1]);
    error = error ? error : driver->event_ms(&ms, event[0], event[1]);
    *seconds = ms * 1e-3;
    return lf_cuda_status(c->device, error, "timing", diag);
}

lf_status lf_cuda_call_time_kernel(lf_cuda_call *c, const lf_cuda_kernel *kernel, const lf_cuda_job *job, size_t runs,
                                   double *seconds, lf_diag *diag)
{
    const lf_cuda_driver *driver = c->device->driver;
    void *event[2] = {NULL, NULL};
    lf_status status = reserve(c, &c->flush, 4 * c->device->cache_bytes + 1, "flushing the cache", diag);
    if (status == LF_OK)
        status = lf_cuda_status(c->device, driver->event_new(&event[0], 0), "timing", diag);
    if (status == LF_OK)
        status = lf_cuda_status(c->device, driver->event_new(&event[1], 0), "timing", diag);
    for (size_t i = 0; i < runs && status == LF_OK; i++)
        status = time_one(c, kernel, job, event, &seconds[i], diag);
    for (int i = 0; i < 2; i++)
        if (event[i])
            driver->event_free(event[i]);
    return status;
}

void lf_cuda_call_stop_timing(lf_cuda_call *c)
{
    c->device->driver->free(c->flush.at);
    c->flush = (room){0};
}

lf_status lf_cuda_call_time(lf_cuda_call *c, const lf_cuda_job *job, size_t runs, double *seconds, lf_diag *diag)
{
    const lf_cuda_kernel *kernel;
    lf_status status = lf_cuda_enter(c->device, diag);
    if (status != LF_OK)
        return status;
    status = lf_cuda_kernel_for(runner(job), job->dims, are_aligned(job), &kernel, diag);
    if (status == LF_OK)
        status = lf_cuda_call_time_kernel(c, kernel, job, runs, seconds, diag);
    lf_cuda_leave(c->device);
    return status;
}
