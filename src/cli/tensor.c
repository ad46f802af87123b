/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/tensor.h"

#include "cli/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

double cli_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- memory ---- */

/* Bytes of the machine, HUGE where it does not say. */
static double machine_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (double)pages * (double)size : 1e30;
}

void *cli_alloc(size_t count, size_t size, const char *what)
{
    double bytes = (double)count * (double)size;
    void *p = bytes <= machine_memory() ? malloc(count ? count * size : 1) : NULL;
    if (!p) {
        cli_text wanted, there;
        cli_fail("no memory for %s: %s, on a machine of %s", what, cli_bytes(&wanted, bytes),
                 cli_bytes(&there, machine_memory()));
    }
    return p;
}

size_t cli_element_bytes(lf_dtype dtype)
{
    return lf_tensor_bytes(&(lf_tensor){.dtype = dtype});
}

int cli_tensor_alloc(cli_tensor *t)
{
    char shape[CLI_SHAPE], what[CLI_SHAPE + 300];
    bool fits = true;
    size_t bytes;
    t->count = 1;
    for (int i = 0; i < t->rank; i++) {
        if (t->extents[i] < 0) /* the library does not go so far: there is no number to show */
            return cli_fail("%.256s would have more elements than can be counted", t->name);
        fits = fits && !__builtin_mul_overflow(t->count, (size_t)t->extents[i], &t->count);
    }
    snprintf(what, sizeof what, "%.256s %s", t->name, cli_shape(shape, t->rank, t->extents));
    if (!fits || __builtin_mul_overflow(t->count, cli_element_bytes(t->dtype), &bytes))
        return cli_fail("no memory for %s: more than can be addressed", what);
    t->data = t->own = cli_alloc(t->count, cli_element_bytes(t->dtype), what);
    return t->own ? CLI_OK : CLI_BAD;
}

/* ---- lists ---- */

int cli_tensors_new(const cli_session *s, lf_port port, cli_tensors *out)
{
    *out = (cli_tensors){0};
    out->count = lf_model_port_count(s->model, port);
    out->at = calloc(out->count + 1, sizeof *out->at);
    if (!out->at) {
        out->count = 0;
        return cli_fail("no memory for the model's inputs and outputs");
    }
    for (size_t i = 0; i < out->count; i++) {
        out->at[i].name = lf_model_port_name(s->model, port, i);
        out->at[i].dtype = lf_model_port_dtype(s->model, port, i);
    }
    return CLI_OK;
}

void cli_tensors_free(cli_tensors *t)
{
    for (size_t i = 0; i < t->count; i++) {
        free(t->at[i].own);
        lf_array_free(t->at[i].file);
    }
    free(t->at);
    *t = (cli_tensors){0};
}

int cli_tensors_inputs(const cli_session *s, cli_tensors *out)
{
    int code = cli_tensors_new(s, LF_PORT_INPUT, out);
    for (size_t i = 0; i < out->count && code == CLI_OK; i++) {
        cli_tensor *t = &out->at[i];
        t->rank = lf_model_port_rank(s->model, LF_PORT_INPUT, i);
        for (int axis = 0; axis < t->rank; axis++)
            t->extents[axis] = lf_model_port_extent(s->model, LF_PORT_INPUT, i, axis, s->dims);
        code = cli_tensor_alloc(t);
    }
    return code;
}

lf_tensor cli_tensor_as(const cli_tensor *t)
{
    return (lf_tensor){.data = (void *)t->data, .dtype = t->dtype, .rank = t->rank, .extents = t->extents};
}

const float *cli_tensor_floats(const cli_tensor *t, float **own)
{
    *own = NULL;
    if (t->dtype == LF_F32)
        return t->data;
    *own = cli_alloc(t->count, sizeof **own, t->name);
    if (*own)
        lf_convert(t->dtype, t->data, LF_F32, *own, t->count);
    return *own;
}

static int draw(const cli_session *s, cli_tensor *t)
{
    if (t->dtype == LF_I64) {
        memset(t->own, 0, t->count * cli_element_bytes(t->dtype));
        return CLI_OK;
    }
    float *drawn = t->dtype == LF_F32 ? t->own : cli_alloc(t->count, sizeof *drawn, t->name);
    if (!drawn)
        return CLI_BAD;
    lf_draw_uniform(s->options->seed, t->name, 0.0f, 1.0f, t->count, drawn);
    if (drawn == t->own)
        return CLI_OK;
    lf_convert(LF_F32, drawn, t->dtype, t->own, t->count);
    free(drawn);
    return CLI_OK;
}

int cli_tensors_draw(const cli_session *s, cli_tensors *inputs)
{
    int code = CLI_OK;
    for (size_t i = 0; i < inputs->count && code == CLI_OK; i++)
        code = draw(s, &inputs->at[i]);
    return code;
}

/* ---- calls ---- */

static int call_status(lf_status status, const lf_call *call)
{
    return status == LF_OK ? CLI_OK : cli_fail_status(status, lf_call_message(call));
}

static int bind(lf_call *call, const cli_tensors *inputs, cli_tensors *outputs)
{
    int code = CLI_OK;
    for (size_t i = 0; i < inputs->count && code == CLI_OK; i++) {
        const cli_tensor *t = &inputs->at[i];
        const lf_tensor tensor = cli_tensor_as(t);
        lf_status status = lf_call_set_input(call, i, &tensor);
        if (status != LF_OK && t->path)
            return cli_fail("%s: %s", t->path, lf_call_message(call));
        code = call_status(status, call);
    }
    for (size_t i = 0; i < outputs->count && code == CLI_OK; i++) {
        cli_tensor *t = &outputs->at[i];
        lf_tensor tensor;
        code = call_status(lf_call_output(call, i, &tensor), call);
        if (code != CLI_OK)
            return code;
        t->rank = tensor.rank;
        memcpy(t->extents, tensor.extents, (size_t)t->rank * sizeof *t->extents);
        code = cli_tensor_alloc(t);
        tensor.data = t->own;
        if (code == CLI_OK)
            code = call_status(lf_call_set_output(call, i, &tensor), call);
    }
    return code;
}

int cli_call_new(const cli_session *s, lf_program *program, const cli_tensors *inputs, cli_tensors *outputs,
                 lf_call **out)
{
    lf_status status = lf_call_new(program, out);
    if (status != LF_OK)
        return cli_fail_status(status, lf_program_message(program));
    int code = cli_tensors_new(s, LF_PORT_OUTPUT, outputs);
    return code == CLI_OK ? bind(*out, inputs, outputs) : code;
}

int cli_call_run(lf_call *call, double *seconds)
{
    double start = cli_now();
    lf_status status = lf_call_run(call, NULL);
    if (seconds)
        *seconds = cli_now() - start;
    return call_status(status, call);
}
