/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cpu/cpu.h"
#include "cuda/cuda.h"
#include "ir/ops.h"
#include "run/handles.h"

/* What every context begins with; one without a name is among them. */
static const lf_backend *const built_in[] = {&lf_cpu_backend, &lf_cuda_backend, &lf_cuda_costed_backend};

#define TEXT(number) #number
#define DOTTED(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)

const char *lf_version(void) { return DOTTED(LF_VERSION_MAJOR, LF_VERSION_MINOR, LF_VERSION_PATCH); }

const char *lf_status_name(lf_status status)
{
    static const char *const names[] = {
        "ok",         "bad argument", "bad model", "bad data", "input/output error", "out of memory", "no such device",
        "unsupported"};
    return (size_t)status < sizeof names / sizeof *names ? names[status] : "unknown status";
}

lf_status lf_context_new(lf_context **out)
{
    if (!out)
        return LF_ERR_ARG;
    *out = calloc(1, sizeof **out);
    for (size_t i = 0; *out && i < sizeof built_in / sizeof *built_in; i++)
        lf_context_add_backend(*out, built_in[i]);
    return *out ? LF_OK : LF_ERR_NOMEM;
}

void lf_context_free(lf_context *context)
{
    if (!context)
        return;
    for (int i = 0; i < context->backends; i++)
        if (context->backend[i].open && context->backend[i].backend->close)
            context->backend[i].backend->close(context->backend[i].device);
    lf_pool_free(context->pool);
    free(context);
}

const char *lf_context_message(const lf_context *context) { return context ? context->diag.text : "no context"; }

lf_status lf_context_set_threads(lf_context *context, int threads)
{
    if (!context)
        return LF_ERR_ARG;
    if (threads < 0 || threads > 4096)
        return lf_fail(&context->diag, LF_ERR_ARG, "threads: %d is not between 0 (one per core) and 4096", threads);
    if (context->pool)
        return lf_fail(&context->diag, LF_ERR_ARG, "threads: set them before the first program is made");
    context->threads = threads;
    return LF_OK;
}

lf_status lf_context_set_parallel_for(lf_context *context, lf_parallel_for loop, void *user)
{
    if (!context)
        return LF_ERR_ARG;
    if (context->pool)
        return lf_fail(&context->diag, LF_ERR_ARG, "parallel_for: set it before the first program is made");
    context->loop = loop;
    context->user = user;
    context->team = (lf_openmp){0};
    return LF_OK;
}

lf_status lf_context_use_openmp(lf_context *context)
{
    lf_openmp team;
    if (!context)
        return LF_ERR_ARG;
    if (context->pool)
        return lf_fail(&context->diag, LF_ERR_ARG, "openmp: use it before the first program is made");
    if (lf_pool_is_forked())
        return lf_fail(&context->diag, LF_ERR_UNSUPPORTED,
                       "openmp: its threads stayed behind when this process was forked");
    if (!lf_openmp_find(&team))
        return lf_fail(&context->diag, LF_ERR_UNSUPPORTED, "openmp: this process has loaded no runtime");
    if (team.max_threads() != lf_context_threads(context))
        return lf_fail(&context->diag, LF_ERR_UNSUPPORTED, "openmp: it has %d threads here, the context has %d",
                       team.max_threads(), lf_context_threads(context));
    context->loop = NULL;
    context->team = team;
    return LF_OK;
}

lf_status lf_context_set_exchange(lf_context *context, const lf_exchange *exchange)
{
    if (!context)
        return LF_ERR_ARG;
    if (!exchange) {
        context->exchange = (lf_exchange){0};
        return LF_OK;
    }
    if (exchange->ranks < 1)
        return lf_fail(&context->diag, LF_ERR_ARG, "exchange: between %d ranks", exchange->ranks);
    if (!exchange->gather || !exchange->sum)
        return lf_fail_null(&context->diag, exchange->gather ? "sum" : "gather");
    context->exchange = *exchange;
    return LF_OK;
}

int lf_context_threads(const lf_context *context)
{
    if (context && context->threads > 0)
        return context->threads;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores < 1 ? 1 : cores > 4096 ? 4096 : (int)cores;
}

lf_status lf_context_pool(lf_context *context)
{
    if (context->pool)
        return LF_OK;
    const int threads = lf_context_threads(context);
    if (context->loop && lf_pool_new_loop(threads, context->loop, context->user, &context->pool) != LF_OK)
        return lf_fail_nomem(&context->diag, "the caller's loop");
    if (context->team.parallel && lf_pool_new_team(threads, &context->team, &context->pool) != LF_OK)
        return lf_fail_nomem(&context->diag, "the process's threads");
    if (!context->pool && lf_pool_new(threads, &context->pool) != LF_OK)
        return lf_fail(&context->diag, LF_ERR_NOMEM,
                       "%d threads could not be started: no memory, or no more are allowed; ask for fewer", threads);
    return LF_OK;
}

/* ---- backends ---- */

const char *lf_backend_name(size_t index)
{
    for (size_t i = 0; i < sizeof built_in / sizeof *built_in; i++)
        if (built_in[i]->name && index-- == 0)
            return built_in[i]->name;
    return NULL;
}

bool lf_device_runs(const char *device)
{
    bool found = false;
    for (size_t i = 0; device && lf_backend_name(i); i++)
        found = found || strcmp(lf_backend_name(i), device) == 0;
    return found;
}

lf_status lf_context_add_backend(lf_context *context, const lf_backend *backend)
{
    if (context->backends == LF_BACKENDS)
        return lf_fail(&context->diag, LF_ERR_ARG, "a context has no room for more than %d backends", LF_BACKENDS);
    context->backend[context->backends++].backend = backend;
    return LF_OK;
}

const lf_backend *lf_context_backend(const lf_context *context, const char *device)
{
    for (int i = 0; i < context->backends; i++)
        if (context->backend[i].backend->name && strcmp(context->backend[i].backend->name, device) == 0)
            return context->backend[i].backend;
    return NULL;
}

lf_status lf_context_open(lf_context *context, const char *device, lf_opened *out, lf_diag *diag)
{
    const lf_backend *backend = lf_context_backend(context, device);
    lf_opened *at = context->backend;
    while (backend ? at->backend != backend : at->backend->name != NULL)
        at++;
    lf_status status = at->open || !at->backend->open ? LF_OK : at->backend->open(&at->device, diag);
    at->open = at->open || status == LF_OK;
    *out = *at;
    return status;
}

/* ---- the op table ---- */

/* The i-th op a model text can name, LF_OP_COUNT past the end. */
static lf_op public_op(size_t index)
{
    for (int op = 0; op < LF_OP_COUNT; op++)
        if (lf_op_public((lf_op)op) && index-- == 0)
            return (lf_op)op;
    return LF_OP_COUNT;
}

const char *lf_op_name(size_t index)
{
    lf_op op = public_op(index);
    return op == LF_OP_COUNT ? NULL : lf_op_row(op)->name;
}

const char *lf_op_kind(size_t index)
{
    lf_op op = public_op(index);
    return op == LF_OP_COUNT ? NULL : lf_kind_name(lf_op_row(op)->kind);
}

const char *lf_op_signature(size_t index)
{
    lf_op op = public_op(index);
    return op == LF_OP_COUNT ? NULL : lf_op_row(op)->signature;
}

lf_status lf_context_describe(lf_context *context, const char *device, lf_device *out)
{
    lf_opened on;
    lf_status status = lf_context_pool(context);
    if (status == LF_OK)
        status = lf_context_open(context, device, &on, &context->diag);
    if (status == LF_OK)
        status = on.backend->describe(on.device, device, context->pool, out, &context->diag);
    return status;
}
