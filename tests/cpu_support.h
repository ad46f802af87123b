/* SPDX-License-Identifier: Apache-2.0 */
/* A model text run through the CPU executor with everything around it watched: outputs and workspace begin as NaN,
 * with guard words behind them, and results are held against lf_eval in double precision. */
#ifndef LF_TESTS_CPU_SUPPORT_H
#define LF_TESTS_CPU_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "base/rng.h"
#include "cpu/cpu.h"
#include "sanitized.h"

/* A test counts its cases; one that ran none has failed. */
static int64_t cases;

static int begin(void **state)
{
    (void)state;
    cases = 0;
    return 0;
}

static int some_ran(void **state)
{
    (void)state;
    return cases > 0 ? 0 : -1;
}

/* Sanitizers and emulators are slow: then sweeps take longer steps. */
static inline bool rig_slow(void)
{
    return SANITIZED || getenv("LINFUSE_EMULATED");
}

/* Every how many models, where a test goes through a list of them. */
static inline int rig_step(void)
{
    return getenv("LINFUSE_EMULATED") ? 4 : 1;
}

enum { RIG_PORTS = 8, RIG_GUARD = 64 };

/* A model, planned and with weights. */
typedef struct rig {
    lf_arena arena;
    lf_diag diag;
    lf_graph graph;
    lf_plan *plan;
    float **param; /* one per node: the values, each one of its type's */
    void **typed;  /* one per node: the same as elements of that type; param's memory where that is f32 */
    const lf_kern *kern;
    lf_cpu_weights *weights;
} rig;

/* Inputs or outputs of a call: one array a port, as floats and as elements of its type (one and the same for f32). */
typedef struct rig_ports {
    float *data[RIG_PORTS];
    void *typed[RIG_PORTS];
    int64_t count[RIG_PORTS];
} rig_ports;

/* Memory for count elements of the type, or the floats themselves. */
static inline void *rig_typed(lf_dtype type, float *floats, int64_t count)
{
    void *typed = type == LF_F32 ? floats : malloc(lf_dtype_size(type) * (size_t)count);
    assert_non_null(typed);
    return typed;
}

/* Rounds floats to the type, and leaves there what became of them. */
static inline void *rig_round(lf_dtype type, float *floats, int64_t count)
{
    void *typed = rig_typed(type, floats, count + 1);
    if (type != LF_F32) {
        lf_from_f32(type, floats, typed, 1, count);
        lf_to_f32(type, typed, 1, floats, count);
    }
    return typed;
}

/* How numbers are drawn: uniform in [-2, 2); or small integers, which stay exact through products. */
typedef enum rig_draw { RIG_UNIFORM, RIG_INTEGERS } rig_draw;

static inline float rig_number(lf_rng *r, rig_draw draw)
{
    return draw == RIG_UNIFORM ? lf_rng_uniform(r, -2.0f, 2.0f) : (float)((int64_t)(lf_rng_u64(r) % 5) - 2);
}

#define rig_ok(r, call)                                                                                              \
    do {                                                                                                             \
        if ((call) != LF_OK)                                                                                         \
            fail_msg("%s: %s", #call, (r)->diag.text);                                                               \
    } while (0)

/* text with each {X} replaced by the number of that letter: names "NK", numbers {8, 16}. Caller frees. */
static inline char *rig_text(const char *text, const char *names, const int64_t *numbers)
{
    char *out = calloc(1, 16 * strlen(text) + 64), *to = out;
    assert_non_null(out);
    for (; *text; text++) {
        const char *name = text[0] == '{' && text[1] && text[2] == '}' ? strchr(names, text[1]) : NULL;
        if (name) {
            to += sprintf(to, "%lld", (long long)numbers[name - names]);
            text += 2;
        } else {
            *to++ = *text;
        }
    }
    return out;
}

/* Prepares the parameters for the plan, all of them checked. *sound may be NULL. */
static inline lf_status rig_prepare(rig *r, bool pack, lf_pool *pool, bool *sound, lf_cpu_weights **out)
{
    const void *param[16] = {0};
    lf_prepare_want want[16];
    lf_prepared *prepared;
    assert_true(r->graph.params <= 16);
    for (int32_t i = 0; i < r->graph.params; i++) {
        param[i] = r->typed[r->graph.param[i]];
        want[i] = (lf_prepare_want){.read = true, .check = true};
    }
    *out = NULL;
    lf_status status = lf_prepare(r->plan, param, want, pool, &prepared, &r->diag);
    if (status == LF_OK && sound)
        *sound = prepared->sound;
    return status == LF_OK ? lf_cpu_weights_new(r->plan, r->kern, prepared, pack, pool, out, &r->diag) : status;
}

/* Plans as the CPU takes them. */
static inline lf_plan_options rig_options(bool fuse)
{
    lf_plan_options options = lf_cpu_backend.plans(NULL);
    options.fuse = fuse;
    return options;
}

static inline void rig_open_planned(rig *r, const char *text, lf_plan_options options, bool pack, const lf_kern *kern,
                                    lf_pool *pool, rig_draw draw)
{
    memset(r, 0, sizeof *r);
    lf_arena_init(&r->arena);
    rig_ok(r, lf_graph_init(&r->graph, &r->arena, &r->diag));
    rig_ok(r, lf_text_read(&r->graph, "test", text, strlen(text)));
    rig_ok(r, lf_plan_build(&r->graph, options, &r->arena, &r->plan));
    rig_ok(r, lf_plan_verify(r->plan, &r->diag));
    r->param = calloc((size_t)r->graph.count, sizeof *r->param);
    r->typed = calloc((size_t)r->graph.count, sizeof *r->typed);
    assert_true(r->param && r->typed);
    for (int32_t i = 0; i < r->graph.params; i++) {
        lf_node n = r->graph.param[i];
        int64_t count = lf_shape_count(&lf_at(&r->graph, n)->shape, NULL);
        lf_rng rng = lf_rng_seed(7, lf_at(&r->graph, n)->name);
        r->param[n] = malloc((size_t)(count + 1) * sizeof(float));
        assert_non_null(r->param[n]);
        bool variance = strstr(lf_at(&r->graph, n)->name, "var") != NULL;
        for (int64_t k = 0; k < count; k++) {
            r->param[n][k] = rig_number(&rng, draw);
            if (variance)
                r->param[n][k] = fabsf(r->param[n][k]) + 0.5f;
        }
        r->typed[n] = rig_round(lf_at(&r->graph, n)->dtype, r->param[n], count);
    }
    r->kern = kern;
    rig_ok(r, rig_prepare(r, pack, pool, NULL, &r->weights));
}

static inline void rig_open_drawn(rig *r, const char *text, bool fuse, bool pack, const lf_kern *kern, lf_pool *pool,
                                  rig_draw draw)
{
    rig_open_planned(r, text, rig_options(fuse), pack, kern, pool, draw);
}

static inline void rig_open(rig *r, const char *text, bool fuse, const lf_kern *kern)
{
    rig_open_drawn(r, text, fuse, true, kern, NULL, RIG_UNIFORM);
}

static inline void rig_close(rig *r)
{
    lf_cpu_weights_free(r->weights);
    for (int32_t i = 0; i < r->graph.params; i++) {
        const lf_node n = r->graph.param[i];
        if (r->typed && r->typed[n] != r->param[n])
            free(r->typed[n]);
        free(r->param[n]);
    }
    free(r->typed);
    free(r->param);
    lf_arena_free(&r->arena);
}

static inline void rig_ports_free(rig_ports *p)
{
    for (int i = 0; i < RIG_PORTS; i++) {
        if (p->typed[i] != p->data[i])
            free(p->typed[i]);
        free(p->data[i]);
    }
    memset(p, 0, sizeof *p);
}

/* Inputs of the extents dims; element i of an input does not depend on its extents, so a smaller batch is the
 * beginning of a larger one. */
static inline rig_ports rig_inputs(rig *r, const int64_t *dims, rig_draw draw)
{
    rig_ports p = {0};
    assert_true(r->graph.inputs <= RIG_PORTS);
    for (int32_t i = 0; i < r->graph.inputs; i++) {
        const lf_node_info *info = lf_at(&r->graph, r->graph.input[i]);
        lf_rng rng = lf_rng_seed(11, info->name);
        p.count[i] = lf_shape_count(&info->shape, dims);
        p.data[i] = malloc((size_t)(p.count[i] + 1) * sizeof(float));
        assert_non_null(p.data[i]);
        for (int64_t k = 0; k < p.count[i]; k++)
            p.data[i][k] = rig_number(&rng, draw);
        p.typed[i] = rig_round(info->dtype, p.data[i], p.count[i]);
    }
    return p;
}

static inline uint32_t rig_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* A NaN that no computation makes: what nobody may write over, or must not leave behind. */
static inline float rig_poison(void)
{
    const uint32_t bits = 0x7fc5a5a5u;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline bool rig_is_poison(float f)
{
    return rig_bits(f) == rig_bits(rig_poison());
}

static inline void rig_fill(float *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = rig_poison();
}

/* NaN as well, of either narrow type. */
enum { RIG_HALF_POISON = 0x7fc5 };

static inline void rig_check_guard(const float *guard, const char *what)
{
    for (int64_t i = 0; i < RIG_GUARD; i++)
        if (!rig_is_poison(guard[i]))
            fail_msg("%s: written past its end, float %d", what, (int)i);
}

/* Outputs of the extents dims, poisoned, guarded. */
static inline rig_ports rig_outputs(rig *r, const int64_t *dims)
{
    rig_ports p = {0};
    assert_true(r->graph.outputs <= RIG_PORTS);
    for (int32_t i = 0; i < r->graph.outputs; i++) {
        p.count[i] = lf_shape_count(&lf_at(&r->graph, r->graph.output[i])->shape, dims);
        p.data[i] = malloc((size_t)(p.count[i] + RIG_GUARD) * sizeof(float));
        assert_non_null(p.data[i]);
        rig_fill(p.data[i], p.count[i] + RIG_GUARD);
        p.typed[i] = rig_typed(lf_at(&r->graph, r->graph.output[i])->dtype, p.data[i], p.count[i] + RIG_GUARD);
        for (int64_t k = 0; p.typed[i] != p.data[i] && k < p.count[i] + RIG_GUARD; k++)
            ((uint16_t *)p.typed[i])[k] = RIG_HALF_POISON;
    }
    return p;
}

/* Nothing was written past an output's end, and all of it was. Brings its values into data. */
static inline void rig_take_output(const rig *r, rig_ports *out, int32_t i)
{
    if (out->typed[i] != out->data[i]) {
        const uint16_t *half = out->typed[i];
        for (int64_t k = 0; k < out->count[i] + RIG_GUARD; k++)
            if ((half[k] == RIG_HALF_POISON) != (k >= out->count[i]))
                fail_msg("output %d: element %lld of %lld is %04x", (int)i, (long long)k, (long long)out->count[i],
                         half[k]);
        lf_to_f32(lf_at(&r->graph, r->graph.output[i])->dtype, half, 1, out->data[i], out->count[i]);
        return;
    }
    rig_check_guard(out->data[i] + out->count[i], "an output");
    for (int64_t k = 0; k < out->count[i]; k++)
        if (rig_is_poison(out->data[i][k]))
            fail_msg("output %d: element %lld was not written", (int)i, (long long)k);
}

/* One run with pool's threads. flagged may be NULL. */
static inline rig_ports rig_run(rig *r, const int64_t *dims, const rig_ports *in, lf_pool *pool, unsigned char *flagged,
                                int64_t batch)
{
    lf_cpu_instance *instance;
    rig_ok(r, lf_cpu_instance_new(r->plan, r->kern, dims, lf_pool_threads(pool), &instance, &r->diag));
    int64_t floats = (int64_t)(lf_cpu_workspace(instance) / sizeof(float));
    float *workspace = lf_aligned_alloc((size_t)(floats + RIG_GUARD) * sizeof(float));
    assert_non_null(workspace);
    rig_fill(workspace, floats + RIG_GUARD);
    rig_ports out = rig_outputs(r, dims);
    lf_cpu_run(instance, r->weights, (const void *const *)in->typed, out.typed, workspace, flagged, batch, pool);
    rig_check_guard(workspace + floats, "the workspace");
    for (int32_t i = 0; i < r->graph.outputs; i++)
        rig_take_output(r, &out, i);
    lf_aligned_free(workspace);
    lf_cpu_instance_free(instance);
    return out;
}

/* The same in double precision; caller frees each. */
static inline void rig_eval(rig *r, const int64_t *dims, const rig_ports *in, double **out)
{
    lf_bound *bound = calloc((size_t)r->graph.count, sizeof *bound);
    assert_non_null(bound);
    for (int32_t i = 0; i < r->graph.params; i++)
        bound[r->graph.param[i]].data = r->param[r->graph.param[i]];
    for (int32_t i = 0; i < r->graph.inputs; i++)
        bound[r->graph.input[i]].data = in->data[i];
    for (int32_t i = 0; i < r->graph.outputs; i++) {
        const lf_shape *shape = &lf_at(&r->graph, r->graph.output[i])->shape;
        out[i] = malloc((size_t)(lf_shape_count(shape, dims) + 1) * sizeof(double));
        assert_non_null(out[i]);
    }
    rig_ok(r, lf_eval(&r->graph, dims, bound, r->graph.output, (size_t)r->graph.outputs, out, &r->diag));
    free(bound);
}

/* Elements within tolerance of the reference, relative to the larger of the element and the root mean square; NaN
 * and Inf exactly. */
static inline void rig_compare(const char *what, const float *y, const double *ref, int64_t count, double tolerance)
{
    double squares = 0;
    int64_t finite = 0;
    for (int64_t i = 0; i < count; i++)
        if (isfinite(ref[i])) {
            squares += ref[i] * ref[i];
            finite++;
        }
    const double rms = finite ? sqrt(squares / (double)finite) : 0;
    for (int64_t i = 0; i < count; i++) {
        bool same = isnan(ref[i]) ? isnan(y[i])
                    : isinf(ref[i]) ? (double)y[i] == ref[i]
                                    : fabs((double)y[i] - ref[i]) <= tolerance * fmax(fabs(ref[i]), rms);
        if (!same)
            fail_msg("%s: element %lld of %lld is %.9g, not %.17g (rms %g)", what, (long long)i, (long long)count,
                     (double)y[i], ref[i], rms);
    }
}

#endif
