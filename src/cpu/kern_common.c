/* SPDX-License-Identifier: Apache-2.0 */
/* What all kernel tables share: the monoids one state at a time, and the choice of a table. */
#include <stdlib.h>
#include <string.h>
#include <tgmath.h>

#include "cpu/kern_parts.h"

/* A monoid's statements as functions, in double precision. s, t: its states; r: its results. */
typedef struct monoid_fn {
    int states, results;
    void (*identity)(double *s);
    void (*combine)(double *s, const double *t);
    void (*finish)(const double *s, double n, double *r);
    void (*settle)(int64_t count, const lf_partials *from, double n, float *const *results);
} monoid_fn;

#define s0 (s[0])
#define s1 (s[1])
#define s2 (s[2])
#define t0 (t[0])
#define t1 (t[1])
#define t2 (t[2])
#define r0 (r[0])
#define r1 (r[1])
#define number double
#define LF_MONOID(name, states, results, least, flops, identity, put, combine, finish)                               \
    static void identity_##name(double *s) identity                                                                  \
    static void combine_##name(double *s, const double *t) combine                                                   \
    static void finish_##name(const double *s, double n, double *r)                                                  \
    {                                                                                                                \
        (void)n;                                                                                                     \
        finish                                                                                                       \
    }                                                                                                                \
    static void settle_##name(int64_t count, const lf_partials *from, double n, float *const *to)                    \
    {                                                                                                                \
        for (int64_t i = 0; i < count; i++) {                                                                        \
            double s[states], t[states], r[results];                                                                 \
            identity_##name(s);                                                                                      \
            for (int64_t part = 0; part < from->parts; part++) {                                                     \
                for (int k = 0; k < states; k++)                                                                     \
                    t[k] = from->t[i * from->item + part * from->part + k * from->state];                            \
                combine_##name(s, t);                                                                                \
            }                                                                                                        \
            finish_##name(s, n, r);                                                                                  \
            for (int k = 0; k < results; k++)                                                                        \
                to[k][i] = (float)r[k];                                                                              \
        }                                                                                                            \
    }
#include "ir/monoids.def"
#undef LF_MONOID
#undef number
#undef s0
#undef s1
#undef s2
#undef t0
#undef t1
#undef t2
#undef r0
#undef r1

static const monoid_fn monoid[LF_MONOID_COUNT] = {
#define LF_MONOID(name, states, results, ...)                                                       \
    [LF_MONOID_##name] = {states, results, identity_##name, combine_##name, finish_##name, settle_##name},
#include "ir/monoids.def"
#undef LF_MONOID
};

void lf_monoid_begin(lf_monoid m, double *s)
{
    monoid[m].identity(s);
}

void lf_monoid_identity(lf_monoid m, float *s)
{
    double state[LF_MAX_STATE];
    monoid[m].identity(state);
    for (int i = 0; i < monoid[m].states; i++)
        s[i] = (float)state[i];
}

void lf_monoid_combine(lf_monoid m, double *s, const float *t)
{
    double state[LF_MAX_STATE] = {0};
    for (int i = 0; i < monoid[m].states; i++)
        state[i] = t[i];
    monoid[m].combine(s, state);
}

void lf_monoid_finish(lf_monoid m, const double *s, double n, float *r)
{
    double result[LF_MAX_RESULTS] = {0};
    monoid[m].finish(s, n, result);
    for (int i = 0; i < monoid[m].results; i++)
        r[i] = (float)result[i];
}

void lf_monoid_settle(lf_monoid m, int64_t count, const lf_partials *from, double n, float *const *r)
{
    monoid[m].settle(count, from, n, r);
}

/* Best first. */
static const lf_kern *const tables[] = {
#if defined(__x86_64__)
    &lf_kern_avx512,
    &lf_kern_avx2,
#elif defined(__aarch64__)
    &lf_kern_neon,
#endif
    &lf_kern_scalar,
};

const lf_kern *lf_kern_at(size_t index)
{
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        if (tables[i]->usable() && index-- == 0)
            return tables[i];
    return NULL;
}

const lf_kern *lf_kern_pick(void)
{
    const char *wanted = getenv("LINFUSE_ISA");
    if (!wanted || !*wanted)
        return lf_kern_at(0);
    for (size_t i = 0; lf_kern_at(i); i++)
        if (strcmp(lf_kern_at(i)->isa, wanted) == 0)
            return lf_kern_at(i);
    return NULL;
}
