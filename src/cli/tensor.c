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
    if (!fits || __builtin_mul_overflow(t->count, sizeof(float), &bytes))
        return cli_fail("no memory for %s: more than can be addressed", what);
    t->data = t->own = cli_alloc(t->count, sizeof(float), what);
    return t->own ? CLI_OK : CLI_BAD;
}

/* ---- lists ---- */

/* Data here are floats throughout. */
static int check_types(const cli_session *s)
{
    static const lf_port ports[] = {LF_PORT_INPUT, LF_PORT_PARAM, LF_PORT_OUTPUT};
    for (int p = 0; p < 3; p++)
        for (size_t i = 0; i < lf_model_port_count(s->model, ports[p]); i++)
            if (lf_model_port_dtype(s->model, ports[p], i) != LF_F32)
                return cli_fail("%s is not f32: this command runs models of f32 only; explain takes others too, and "
                                "the library runs them on the cpu",
                                lf_model_port_name(s->model, ports[p], i));
    return CLI_OK;
}

int cli_tensors_new(const cli_session *s, lf_port port, cli_tensors *out)
{
    *out = (cli_tensors){0};
    if (check_types(s) != CLI_OK)
        return CLI_BAD;
    out->count = lf_model_port_count(s->model, port);
    out->at = calloc(out->count + 1, sizeof *out->at);
    if (!out->at) {
        out->count = 0;
        return cli_fail("no memory for the model's inputs and outputs");
    }
    for (size_t i = 0; i < out->count; i++)
        out->at[i].name = lf_model_port_name(s->model, port, i);
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
    return (lf_tensor){.data = (void *)t->data, .dtype = LF_F32, .rank = t->rank, .extents = t->extents};
}

void cli_tensors_draw(const cli_session *s, cli_tensors *inputs)
{
    for (size_t i = 0; i < inputs->count; i++)
        lf_draw_uniform(s->options->seed, inputs->at[i].name, 0.0f, 1.0f, inputs->at[i].count, inputs->at[i].own);
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
