/* SPDX-License-Identifier: Apache-2.0 */
/* What all kernel tables share: the monoids one state at a time, and the choice of a table. */
#include <float.h>
#include <stdlib.h>
#include <string.h>
#include <tgmath.h>

#include "cpu/kern_parts.h"

/* A monoid's statements as functions, in double precision. s, t: its states; r: its results. */
typedef struct monoid_fn {
    int states, results;
    bool square; /* its last result is one */
    void (*identity)(double *s);
    void (*put)(double *s, double x);
    void (*fold)(int64_t n, const float *x, double *s);
    void (*combine)(double *s, const double *t);
    void (*finish)(const double *s, double n, double *r);
    void (*settle)(int64_t count, const lf_partials *from, double n, float *const *results);
} monoid_fn;

/* A result as a float. A square out of their range is encoded, unless its root is below it too. */
static inline float result(double r, bool square)
{
    if (!square || (r >= FLT_MIN && r <= FLT_MAX) || !(r > 0 && r < INFINITY && (float)sqrt(r) > 0))
        return (float)r;
    return -(float)sqrt(r);
}

/* A column's last state as put leaves it, and back. */
#define PART_OF_ROOT 0x1p-10

static inline double decoded(float state, bool square)
{
    return square && state < 0 ? state / PART_OF_ROOT * (state / PART_OF_ROOT) : (double)state;
}

static inline float encoded(double state, bool square)
{
    return square && state > FLT_MAX && state < INFINITY ? -(float)(sqrt(state) * PART_OF_ROOT) : (float)state;
}

#define s0 (s[0])
#define s1 (s[1])
#define s2 (s[2])
#define t0 (t[0])
#define t1 (t[1])
#define t2 (t[2])
#define r0 (r[0])
#define r1 (r[1])
#define number double
#define LF_MONOID(name, states, results, least, flops, identity, PUT, combine, finish)                               \
    static void identity_##name(double *s) identity                                                                  \
    static void put_##name(double *s, double x) PUT                                                                  \
    static void fold_##name(int64_t n, const float *x, double *s)                                                    \
    {                                                                                                                \
        identity_##name(s);                                                                                          \
        for (int64_t i = 0; i < n; i++)                                                                              \
            put_##name(s, x[i]);                                                                                     \
    }                                                                                                                \
    static void combine_##name(double *s, const double *t) combine                                                   \
    static void finish_##name(const double *s, double n, double *r)                                                  \
    {                                                                                                                \
        (void)n;                                                                                                     \
        finish                                                                                                       \
    }                                                                                                                \
    static inline __attribute__((always_inline)) void settle_from_##name(                                            \
        const bool folded, int64_t count, const lf_partials *from, double n, float *const *to)                       \
    {                                                                                                                \
        for (int64_t i = 0; i < count; i++) {                                                                        \
            double s[states], t[states], r[results];                                                                 \
            identity_##name(s);                                                                                      \
            for (int64_t part = 0; part < from->parts; part++) {                                                     \
                const int64_t at = i * from->item + part * from->part;                                               \
                for (int k = 0; k < states; k++)                                                                     \
                    t[k] = folded ? from->folded[at + k * from->state]                                               \
                                  : decoded(from->put[at + k * from->state], LF_IS_SQUARE(least) && k == states - 1); \
                combine_##name(s, t);                                                                                \
            }                                                                                                        \
            finish_##name(s, n, r);                                                                                  \
            for (int k = 0; k < results; k++)                                                                        \
                to[k][i] = result(r[k], LF_IS_SQUARE(least) && k == results - 1);                                    \
        }                                                                                                            \
    }                                                                                                                \
    static void settle_##name(int64_t count, const lf_partials *from, double n, float *const *to)                    \
    {                                                                                                                \
        if (from->folded)                                                                                            \
            settle_from_##name(true, count, from, n, to);                                                            \
        else                                                                                                         \
            settle_from_##name(false, count, from, n, to);                                                           \
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
#define LF_MONOID(name, n_states, n_results, least, ...)                                                             \
    [LF_MONOID_##name] = {.states = n_states,                                                                        \
                          .results = n_results,                                                                      \
                          .square = LF_IS_SQUARE(least),                                                             \
                          .identity = identity_##name,                                                               \
                          .put = put_##name,                                                                         \
                          .fold = fold_##name,                                                                       \
                          .combine = combine_##name,                                                                 \
                          .finish = finish_##name,                                                                   \
                          .settle = settle_##name},
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

void lf_monoid_put(lf_monoid m, float x, float *state, int64_t lds)
{
    const int last = monoid[m].states - 1;
    double s[LF_MAX_STATE];
    for (int k = 0; k <= last; k++)
        s[k] = decoded(state[k * lds], monoid[m].square && k == last);
    monoid[m].put(s, x);
    lf_monoid_leave(m, s, state, lds);
}

void lf_monoid_leave(lf_monoid m, const double *s, float *state, int64_t lds)
{
    const int last = monoid[m].states - 1;
    for (int k = 0; k <= last; k++)
        state[k * lds] = encoded(s[k], monoid[m].square && k == last);
}

void lf_monoid_fold(lf_monoid m, int64_t n, const float *x, double *s)
{
    monoid[m].fold(n, x, s);
}

void lf_monoid_combine(lf_monoid m, double *s, const double *t)
{
    monoid[m].combine(s, t);
}

void lf_monoid_finish(lf_monoid m, const double *s, double n, float *r)
{
    double exact[LF_MAX_RESULTS] = {0};
    monoid[m].finish(s, n, exact);
    for (int i = 0; i < monoid[m].results; i++)
        r[i] = result(exact[i], monoid[m].square && i == monoid[m].results - 1);
}

void lf_monoid_settle(lf_monoid m, int64_t count, const lf_partials *from, double n, float *const *r)
{
    monoid[m].settle(count, from, n, r);
}

/* Best first. */
static const lf_kern *const tables[] = {
#if defined(__x86_64__)
    &lf_kern_amx,
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
    /* only the one that is named is asked: amx changes the process (base/isa.h) */
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        if (strcmp(tables[i]->isa, wanted) == 0)
            return tables[i]->usable() ? tables[i] : NULL;
    return NULL;
}
