/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, streams and graphs of the GPU, for tests of calls on it. Everything is static, as in api_fixture.h. */
#ifndef LF_TESTS_GPU_FIXTURE_H
#define LF_TESTS_GPU_FIXTURE_H

#include "api_fixture.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/driver.h"
#include "plan/gpu.h"

enum { MOST_WORKERS = 64 };

/* The ordinary units, which LINFUSE_CUDA can ask for, have one. */
static inline int precision_count(void)
{
    const char *units = getenv("LINFUSE_CUDA");
    return units && strcmp(units, "plain") == 0 ? 1 : LF_PRECISIONS;
}

/* A model's options: for cuda, in this precision. */
static inline const char *words_of(int precision, const char *more, char *to, size_t size)
{
    snprintf(to, size, "device=cuda precision=%s%s%s", lf_precision_table[precision].name, *more ? " " : "", more);
    return to;
}

/* Whole numbers in -3..3: every product and sum of them is exact, in every precision. */
static inline void draw_whole(float *x, size_t count, uint64_t seed, const char *name)
{
    lf_draw_uniform(seed, name, 0.0f, 7.0f, count, x);
    for (size_t i = 0; i < count; i++)
        x[i] = floorf(x[i]) - 3.0f;
}

/* Runs job(number) for every number below count, dealt out to processes of their own, which a GPU wants to be made
 * before anybody uses it. */
static inline void deal(long count, bool (*job)(long number))
{
    const char *given = getenv("LINFUSE_WORKERS");
    const long wanted = given ? strtol(given, NULL, 0) : 4, workers = wanted < 1              ? 1
                                                                      : wanted > MOST_WORKERS ? MOST_WORKERS
                                                                                              : wanted;
    pid_t child[MOST_WORKERS];
    for (long w = 0; w < workers; w++) {
        child[w] = fork();
        assert_true(child[w] >= 0);
        if (child[w] == 0) {
            /* what fails here ends this process, not a test of its copy of the list */
            setenv("CMOCKA_TEST_ABORT", "1", 1);
            for (long i = w; i < count; i += workers)
                if (!job(i))
                    _exit(1);
            _exit(0);
        }
    }
    int bad = 0;
    for (long w = 0; w < workers; w++) {
        int status;
        assert_int_equal(waitpid(child[w], &status, 0), child[w]);
        bad += status != 0;
    }
    assert_int_equal(bad, 0);
}

typedef struct gpu {
    const lf_cuda_driver *driver;
    void *context;
    int device;
    /* what the library has no use for */
    int (*capture_begin)(void *stream, int mode);
    int (*capture_end)(void *stream, void **graph);
    int (*graph_ready)(void **runnable, void *graph, unsigned long long flags);
    int (*graph_launch)(void *runnable, void *stream);
    int (*runnable_free)(void *runnable);
    int (*graph_free)(void *graph);
} gpu;

#define CUDA(call) assert_int_equal((call), 0)

static inline void take(void *library, const char *name, void *to)
{
    void *function = dlsym(library, name);
    if (!function)
        print_error("the driver has no %s\n", name);
    assert_non_null(function);
    memcpy(to, &function, sizeof function);
}

static inline gpu gpu_begin(void)
{
    gpu g = {0};
    assert_int_equal(lf_cuda_driver_find(&g.driver, NULL), LF_OK);
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); /* there already: a second name for it */
    assert_non_null(library);
    take(library, "cuStreamBeginCapture_v2", &g.capture_begin);
    take(library, "cuStreamEndCapture", &g.capture_end);
    take(library, "cuGraphInstantiateWithFlags", &g.graph_ready);
    take(library, "cuGraphLaunch", &g.graph_launch);
    take(library, "cuGraphExecDestroy", &g.runnable_free);
    take(library, "cuGraphDestroy", &g.graph_free);
    dlclose(library);
    CUDA(g.driver->device_get(&g.device, 0));
    CUDA(g.driver->primary_retain(&g.context, g.device));
    CUDA(g.driver->context_push(g.context));
    return g;
}

static inline void gpu_end(gpu *g)
{
    void *popped;
    CUDA(g->driver->context_pop(&popped));
    CUDA(g->driver->primary_release(g->device));
}

static inline void *gpu_stream(const gpu *g)
{
    void *stream;
    CUDA(g->driver->stream_new(&stream, 1)); /* does not wait for the default one */
    return stream;
}

/* A model's tensors on the device. */
typedef struct on_gpu {
    const gpu *g;
    lf_cuda_ptr in[MAX_PORTS], out[MAX_PORTS], workspace;
    size_t workspace_bytes;
} on_gpu;

static inline lf_cuda_ptr gpu_memory(const gpu *g, size_t bytes)
{
    lf_cuda_ptr memory;
    CUDA(g->driver->alloc(&memory, bytes + !bytes));
    return memory;
}

/* Inputs are there; workspace is what the call asks for. */
static inline on_gpu on_gpu_begin(const gpu *g, const tensors *t, lf_call *call)
{
    on_gpu d = {.g = g};
    for (size_t i = 0; i < t->ins; i++) {
        d.in[i] = gpu_memory(g, t->in_count[i] * sizeof(float));
        CUDA(g->driver->to_device(d.in[i], t->in[i], t->in_count[i] * sizeof(float), NULL));
    }
    for (size_t i = 0; i < t->outs; i++)
        d.out[i] = gpu_memory(g, t->out_count[i] * sizeof(float));
    OK_CALL(call, lf_call_workspace(call, t->dims, &d.workspace_bytes));
    d.workspace = gpu_memory(g, d.workspace_bytes);
    CUDA(g->driver->stream_wait(NULL));
    return d;
}

static inline void on_gpu_end(on_gpu *d)
{
    for (size_t i = 0; i < MAX_PORTS; i++) {
        d->g->driver->free(d->in[i]);
        d->g->driver->free(d->out[i]);
    }
    d->g->driver->free(d->workspace);
}

/* Bytes of 0xff: as floats they are NaN, as counters they are large. */
static inline void on_gpu_poison(const on_gpu *d, const tensors *t, void *stream)
{
    for (size_t i = 0; i < t->outs; i++)
        CUDA(d->g->driver->set_bytes(d->out[i], 0xff, t->out_count[i] * sizeof(float) + !t->out_count[i], stream));
    CUDA(d->g->driver->set_bytes(d->workspace, 0xff, d->workspace_bytes + !d->workspace_bytes, stream));
}

static inline lf_status on_gpu_launch(const on_gpu *d, const tensors *t, lf_call *call, void *stream, bool lend)
{
    const float *in[MAX_PORTS];
    float *out[MAX_PORTS];
    for (size_t i = 0; i < MAX_PORTS; i++) {
        in[i] = (const float *)(uintptr_t)d->in[i];
        out[i] = (float *)(uintptr_t)d->out[i];
    }
    return run_on(call, t->dims, in, out, stream, lend ? (void *)(uintptr_t)d->workspace : NULL,
                          lend ? d->workspace_bytes : 0);
}

/* Outputs into t. */
static inline void on_gpu_fetch(const on_gpu *d, tensors *t, void *stream)
{
    for (size_t i = 0; i < t->outs; i++)
        CUDA(d->g->driver->to_host(t->out[i], d->out[i], t->out_count[i] * sizeof(float), stream));
    CUDA(d->g->driver->stream_wait(stream));
}

#endif
