/* SPDX-License-Identifier: Apache-2.0 */
/* Short ways through the public API, for tests of it: a model compiled, the tensors of a call, comparisons. One file
 * includes it into one program: everything is static. Only the public headers are used. */
#ifndef LF_TESTS_API_FIXTURE_H
#define LF_TESTS_API_FIXTURE_H

#include <linfuse_tools.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PORTS = 8, MAX_DIMS = 8 };

static inline void expect(lf_status want, lf_status status, const char *message, const char *file, int line)
{
    if (status != want)
        print_error("%s:%d: %s (%s)\n", file, line, lf_status_name(status), message ? message : "");
    _assert_int_equal((LargestIntegralType)status, (LargestIntegralType)want, file, line);
}

/* Arguments of an op. */
#define VALUE(v)  {.kind = LF_ARG_VALUE, .value = (v)}
#define NUMBER(x) {.kind = LF_ARG_NUMBER, .number = (x)}

/* The message is asked for after the call. */
#define OK_CONTEXT(c, call)                                                                                            \
    do {                                                                                                               \
        lf_status s_ = (call);                                                                                         \
        expect(LF_OK, s_, lf_context_message(c), __FILE__, __LINE__);                                                  \
    } while (0)
#define OK_MODEL(m, call)                                                                                              \
    do {                                                                                                               \
        lf_status s_ = (call);                                                                                         \
        expect(LF_OK, s_, lf_model_message(m), __FILE__, __LINE__);                                                    \
    } while (0)
#define OK_OPTIONS(o, call)                                                                                            \
    do {                                                                                                               \
        lf_status s_ = (call);                                                                                         \
        expect(LF_OK, s_, lf_options_message(o), __FILE__, __LINE__);                                                  \
    } while (0)
#define OK_PROGRAM(p, call)                                                                                            \
    do {                                                                                                               \
        lf_status s_ = (call);                                                                                         \
        expect(LF_OK, s_, lf_program_message(p), __FILE__, __LINE__);                                                  \
    } while (0)
#define OK_CALL(c, call)                                                                                               \
    do {                                                                                                               \
        lf_status s_ = (call);                                                                                         \
        expect(LF_OK, s_, lf_call_message(c), __FILE__, __LINE__);                                                     \
    } while (0)

/* A failure has its status, and words that name the thing. */
static inline void refuses(lf_status want, const char *words, lf_status status, const char *message, int line)
{
    expect(want, status, message, __FILE__, line);
    if (!strstr(message, words))
        print_error("line %d: \"%s\" is not in \"%s\"\n", line, words, message);
    assert_non_null(strstr(message, words));
}
#define REFUSES(status, words, call, message)                                                                          \
    do {                                                                                                               \
        lf_status s_ = (call);                                                                                         \
        refuses(status, words, s_, message, __LINE__);                                                                 \
    } while (0)

/* ---- models and programs ---- */

static inline lf_context *context_of(int threads)
{
    lf_context *context = NULL;
    assert_int_equal(lf_context_new(&context), LF_OK);
    OK_CONTEXT(context, lf_context_set_threads(context, threads));
    return context;
}

static inline lf_model *model_of(lf_context *context, const char *text)
{
    lf_model *model = NULL;
    OK_CONTEXT(context, lf_model_read(context, "test.lf", text, strlen(text), &model));
    return model;
}

/* words: "key=value key=value", or NULL. */
static inline lf_options *options_of(lf_context *context, const char *words)
{
    lf_options *options = NULL;
    OK_CONTEXT(context, lf_options_new(context, &options));
    while (words && *words) {
        char key[64], value[256];
        int used = 0;
        assert_int_equal(sscanf(words, " %63[^=]=%255[^ ]%n", key, value, &used), 2);
        OK_OPTIONS(options, lf_options_set(options, key, value));
        words += used;
    }
    return options;
}

static inline lf_program *program_of(lf_context *context, lf_model *model, const char *words)
{
    lf_program *program = NULL;
    lf_options *options = options_of(context, words);
    OK_MODEL(model, lf_program_new(model, options, &program));
    lf_options_free(options);
    return program;
}

/* A model, compiled, with parameters drawn and prepared, and a call. */
typedef struct rig {
    lf_context *context;
    lf_model *model;
    lf_program *program;
    lf_call *call;
} rig;

static inline rig rig_begin(int threads, const char *text, const char *words)
{
    rig r = {.context = context_of(threads)};
    r.model = model_of(r.context, text);
    r.program = program_of(r.context, r.model, words);
    OK_PROGRAM(r.program, lf_program_draw_params(r.program, 11));
    OK_PROGRAM(r.program, lf_program_prepare(r.program));
    OK_PROGRAM(r.program, lf_call_new(r.program, &r.call));
    return r;
}

static inline void rig_end(rig *r)
{
    lf_call_free(r->call);
    lf_program_free(r->program);
    lf_model_free(r->model);
    lf_context_free(r->context);
}

/* ---- tensors ---- */

/* A tensor of f32 in host memory, for the duration of a block: F32(x, 8, 4) is f32[8, 4]. */
#define EXTENTS(...) (const int64_t[]){__VA_ARGS__}
#define F32(memory_, ...)                                                                                              \
    (&(lf_tensor){.data = (void *)(memory_),                                                                           \
                  .rank = (int)(sizeof EXTENTS(__VA_ARGS__) / sizeof(int64_t)),                                        \
                  .extents = EXTENTS(__VA_ARGS__)})
/* The same in device memory, by an address. */
#define ON_DEVICE(address_, ...)                                                                                       \
    (&(lf_tensor){.data = (void *)(uintptr_t)(address_),                                                               \
                  .rank = (int)(sizeof EXTENTS(__VA_ARGS__) / sizeof(int64_t)),                                        \
                  .extents = EXTENTS(__VA_ARGS__),                                                                     \
                  .memory = LF_DEVICE})

/* What a call reads and writes, by port, and what it should write. */
typedef struct tensors {
    const lf_model *model;
    int64_t dims[MAX_DIMS];
    size_t ins, outs, in_count[MAX_PORTS], out_count[MAX_PORTS];
    float *in[MAX_PORTS], *out[MAX_PORTS];
    double *want[MAX_PORTS];
} tensors;

static inline size_t port_elements(const lf_model *model, lf_port port, size_t index, const int64_t *dims)
{
    size_t count = 1;
    for (int axis = 0; axis < lf_model_port_rank(model, port, index); axis++)
        count *= (size_t)lf_model_port_extent(model, port, index, axis, dims);
    return count;
}

/* dims: as many as the model has names. Inputs are drawn from [-1, 1). */
static inline tensors tensors_begin(const lf_model *model, const int64_t *dims)
{
    tensors t = {.model = model,
                 .ins = lf_model_port_count(model, LF_PORT_INPUT),
                 .outs = lf_model_port_count(model, LF_PORT_OUTPUT)};
    assert_true(t.ins <= MAX_PORTS && t.outs <= MAX_PORTS);
    for (size_t i = 0; i < lf_model_dim_count(model); i++)
        t.dims[i] = dims[i];
    for (size_t i = 0; i < t.ins; i++) {
        t.in_count[i] = port_elements(model, LF_PORT_INPUT, i, t.dims);
        t.in[i] = malloc(t.in_count[i] * sizeof(float) + !t.in_count[i]);
        assert_non_null(t.in[i]);
        lf_draw_uniform(5, lf_model_port_name(model, LF_PORT_INPUT, i), -1.0f, 1.0f, t.in_count[i], t.in[i]);
    }
    for (size_t i = 0; i < t.outs; i++) {
        t.out_count[i] = port_elements(model, LF_PORT_OUTPUT, i, t.dims);
        t.out[i] = malloc(t.out_count[i] * sizeof(float) + !t.out_count[i]);
        t.want[i] = malloc(t.out_count[i] * sizeof(double) + !t.out_count[i]);
        assert_true(t.out[i] && t.want[i]);
        for (size_t k = 0; k < t.out_count[i]; k++)
            t.out[i][k] = 12345.0f;
    }
    return t;
}

static inline void tensors_end(tensors *t)
{
    for (size_t i = 0; i < t->ins; i++)
        free(t->in[i]);
    for (size_t i = 0; i < t->outs; i++) {
        free(t->out[i]);
        free(t->want[i]);
    }
}

/* A parameter's values, row-major, by its declared extents. */
static inline lf_status give_from(lf_memory memory, lf_program *program, const char *name, const void *data,
                                  lf_holding holding)
{
    lf_tensor values = lf_program_param(program, name);
    values.data = (void *)data;
    values.memory = memory;
    return lf_program_set_param(program, name, &values, holding, NULL);
}

static inline lf_status give(lf_program *program, const char *name, const float *data)
{
    return give_from(LF_HOST, program, name, data, LF_COPY);
}

/* From an address in device memory. */
static inline lf_status give_there(lf_program *program, const char *name, uintptr_t address, lf_holding holding)
{
    return give_from(LF_DEVICE, program, name, (const void *)address, holding);
}

static inline lf_status lend_param(lf_program *program, const char *name, const float *data)
{
    return give_from(LF_HOST, program, name, data, LF_BORROW);
}

/* A port's tensor at these extents, which are written to `extents`. */
static inline lf_tensor tensor_of(const lf_model *model, lf_port port, size_t index, const int64_t *dims,
                                  int64_t *extents, void *data)
{
    const int rank = lf_model_port_rank(model, port, index);
    for (int axis = 0; axis < rank; axis++)
        extents[axis] = lf_model_port_extent(model, port, index, axis, dims);
    return (lf_tensor){
        .data = data, .dtype = lf_model_port_dtype(model, port, index), .rank = rank, .extents = extents};
}

static inline void tensors_bind(const tensors *t, lf_call *call)
{
    int64_t extents[LF_MAX_RANK];
    for (size_t i = 0; i < t->ins; i++) {
        const lf_tensor input = tensor_of(t->model, LF_PORT_INPUT, i, t->dims, extents, t->in[i]);
        OK_CALL(call, lf_call_set_input(call, i, &input));
    }
    for (size_t i = 0; i < t->outs; i++) {
        const lf_tensor output = tensor_of(t->model, LF_PORT_OUTPUT, i, t->dims, extents, t->out[i]);
        OK_CALL(call, lf_call_set_output(call, i, &output));
    }
}

/* The fast path, in host memory by so many threads, and in device memory. */
static inline lf_status run_at(lf_call *call, const int64_t *dims, const float *const *in, float *const *out,
                               int threads)
{
    const lf_run_options options = {.threads = threads};
    return lf_call_run_at(call, dims, (const void *const *)in, (void *const *)out, &options);
}

static inline lf_status run_on(lf_call *call, const int64_t *dims, const float *const *in, float *const *out,
                               void *stream, void *workspace, size_t bytes)
{
    const lf_run_options options = {
        .memory = LF_DEVICE, .stream = stream, .workspace = workspace, .workspace_bytes = bytes};
    return lf_call_run_at(call, dims, (const void *const *)in, (void *const *)out, &options);
}

static inline void tensors_run(tensors *t, lf_call *call)
{
    tensors_bind(t, call);
    OK_CALL(call, lf_call_run(call, NULL));
}

/* want: the model's meaning at the program's parameters. */
static inline void tensors_eval(tensors *t, lf_model *model, const lf_program *program)
{
    int64_t extents[MAX_PORTS][LF_MAX_RANK];
    lf_tensor inputs[MAX_PORTS], params[64];
    const size_t count = lf_model_port_count(model, LF_PORT_PARAM);
    assert_true(count <= 64);
    for (size_t i = 0; i < t->ins; i++)
        inputs[i] = tensor_of(model, LF_PORT_INPUT, i, t->dims, extents[i], t->in[i]);
    for (size_t i = 0; i < count; i++)
        params[i] = lf_program_param(program, lf_model_port_name(model, LF_PORT_PARAM, i));
    OK_MODEL(model, lf_model_eval(model, inputs, params, t->want));
}

/* ---- comparisons ---- */

/* Rounding of a sum of k products of numbers around 1, and of a tail behind it; the factor is for tails that take
 * differences (norms) of what was rounded. */
static inline double tolerance(double k)
{
    return 8.0 * (k + 64.0) * 0x1p-24;
}

/* The largest |y - want| / max(|want|, rms(want)); infinite where something is finite on one side only. A number too
 * large for f32 counts as infinite. */
static inline double worst_error(const float *y, const double *want, size_t count)
{
    double squares = 0, finite = 0, worst = 0;
    for (size_t i = 0; i < count; i++)
        if (isfinite((float)want[i])) {
            squares += want[i] * want[i];
            finite++;
        }
    double rms = finite > 0 ? sqrt(squares / finite) : 0;
    for (size_t i = 0; i < count; i++) {
        float w = (float)want[i];
        if (isnan(w) ? isnan(y[i]) : isinf(w) ? y[i] == w : 0)
            continue;
        if (!isfinite(w) || !isfinite(y[i]))
            return INFINITY;
        double scale = fmax(fabs(want[i]), rms), error = fabs((double)y[i] - want[i]);
        worst = fmax(worst, error > 0 ? error / scale : 0);
    }
    return worst;
}

static inline void assert_close(const tensors *t, double most, const char *what)
{
    for (size_t i = 0; i < t->outs; i++) {
        double worst = worst_error(t->out[i], t->want[i], t->out_count[i]);
        if (!(worst <= most))
            print_error("%s: output %zu at dims %lld: error %g, at most %g wanted\n", what, i, (long long)t->dims[0],
                        worst, most);
        assert_true(worst <= most);
    }
}

static inline void assert_same_bits(const tensors *a, const tensors *b, const char *what)
{
    for (size_t i = 0; i < a->outs; i++) {
        assert_int_equal(a->out_count[i], b->out_count[i]);
        if (memcmp(a->out[i], b->out[i], a->out_count[i] * sizeof(float)) != 0) {
            print_error("%s: output %zu at dims %lld has other bits\n", what, i, (long long)a->dims[0]);
            fail();
        }
    }
}

#endif
