/* SPDX-License-Identifier: Apache-2.0 */
/* Nanoseconds an element of the CPU's maps and folds, on one core, beside the C library and SLEEF (libsleef-dev); not
 * part of the build. From the source folder:
 *
 *     cc -O2 -mavx512f -mfma -Isrc -Iinclude bench/math_speed.c build/release/liblinfuse.a -ljansson -lsleef -lm
 *     -lpthread -o /tmp/math_speed
 *
 * A strip of LF_STRIP numbers in cache, from -6 to 6 and so past no end of any function; the best of many runs. */
#include <immintrin.h>
#include <math.h>
#include <sleef.h>
#include <stdio.h>
#include <time.h>

#include "cpu/kern.h"

enum { TRIES = 400, ROUNDS = 64 };

static float x[LF_STRIP], out[LF_STRIP], state[4];
static const float erf_kind[3] = {0}, tanh_kind[3] = {1};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

#define BEST(...)                                                                                                    \
    do {                                                                                                             \
        double best = INFINITY;                                                                                      \
        for (int try = 0; try < TRIES; try++) {                                                                      \
            double from = now();                                                                                     \
            for (int round = 0; round < ROUNDS; round++) {                                                           \
                __VA_ARGS__;                                                                                         \
                __asm__ volatile("" ::: "memory");                                                                   \
            }                                                                                                        \
            double took = (now() - from) / (ROUNDS * LF_STRIP);                                                      \
            best = took < best ? took : best;                                                                        \
        }                                                                                                            \
        printf(" %9.3f", best);                                                                                      \
    } while (0)

#define LIBM(EXPRESSION)                                                                                             \
    BEST(for (int i = 0; i < LF_STRIP; i++) {                                                                        \
        const float v = x[i];                                                                                        \
        out[i] = (EXPRESSION);                                                                                       \
    })
#define WIDE8(EXPRESSION)                                                                                            \
    BEST(for (int i = 0; i < LF_STRIP; i += 8) {                                                                     \
        const __m256 v = _mm256_loadu_ps(x + i);                                                                     \
        _mm256_storeu_ps(out + i, (EXPRESSION));                                                                     \
    })
#define WIDE16(EXPRESSION)                                                                                           \
    BEST(for (int i = 0; i < LF_STRIP; i += 16) {                                                                    \
        const __m512 v = _mm512_loadu_ps(x + i);                                                                     \
        _mm512_storeu_ps(out + i, (EXPRESSION));                                                                     \
    })

/* Vectors of GNU C: plain operators work on them. */
#define HALF8 _mm256_set1_ps(0.70710678f)
#define HALF16 _mm512_set1_ps(0.70710678f)

int main(void)
{
    const lf_op maps[] = {LF_OP_exp,     LF_OP_log,  LF_OP_tanh, LF_OP_gelu,     LF_OP_gelu,
                          LF_OP_sigmoid, LF_OP_silu, LF_OP_mish, LF_OP_softplus, LF_OP_elu};
    const char *name[] = {"exp", "log", "tanh", "gelu erf", "gelu tanh", "sigmoid", "silu", "mish", "softplus", "elu"};
    const float plain[3] = {1, 20, 0};
    for (int i = 0; i < LF_STRIP; i++)
        x[i] = -6.0f + 12.0f * (float)((i * 37) % LF_STRIP) / LF_STRIP;
    printf("%-24s", "ns an element");
    for (int i = 0; i < 10; i++)
        printf(" %9s", name[i]);
    printf(" %9s %9s %9s %9s\n", "max", "sum", "maxsumexp", "moments");
    for (size_t t = 0; lf_kern_at(t); t++) {
        const lf_kern *k = lf_kern_at(t);
        printf("%-24s", k->isa);
        for (int i = 0; i < 10; i++) {
            const float *attr = maps[i] == LF_OP_gelu ? (i == 3 ? erf_kind : tanh_kind) : plain;
            BEST(k->map[maps[i]](LF_STRIP, x, NULL, NULL, attr, out));
        }
        BEST(k->fold[LF_MONOID_max](1, LF_STRIP, x, 0, state));
        BEST(k->fold[LF_MONOID_sum](1, LF_STRIP, x, 0, state));
        BEST(k->fold[LF_MONOID_maxsumexp](1, LF_STRIP, x, 0, state));
        BEST(k->fold[LF_MONOID_moments](1, LF_STRIP, x, 0, state));
        printf("\n");
    }
    printf("%-24s", "SLEEF u10 avx512f");
    WIDE16(Sleef_expf16_u10(v));
    WIDE16(Sleef_logf16_u10(v));
    WIDE16(Sleef_tanhf16_u10(v));
    WIDE16(v * 0.5f * (1.0f + Sleef_erff16_u10(v * HALF16)));
    WIDE16(v * 0.5f * (1.0f + Sleef_tanhf16_u10(0.79788456f * (v + 0.044715f * v * v * v))));
    WIDE16(1.0f / (1.0f + Sleef_expf16_u10(-v)));
    WIDE16(v / (1.0f + Sleef_expf16_u10(-v)));
    WIDE16(v * Sleef_tanhf16_u10(Sleef_log1pf16_u10(Sleef_expf16_u10(v))));
    WIDE16(Sleef_log1pf16_u10(Sleef_expf16_u10(v)));
    printf("\n%-24s", "SLEEF u10 avx2");
    WIDE8(Sleef_expf8_u10(v));
    WIDE8(Sleef_logf8_u10(v));
    WIDE8(Sleef_tanhf8_u10(v));
    WIDE8(v * 0.5f * (1.0f + Sleef_erff8_u10(v * HALF8)));
    WIDE8(v * 0.5f * (1.0f + Sleef_tanhf8_u10(0.79788456f * (v + 0.044715f * v * v * v))));
    WIDE8(1.0f / (1.0f + Sleef_expf8_u10(-v)));
    WIDE8(v / (1.0f + Sleef_expf8_u10(-v)));
    WIDE8(v * Sleef_tanhf8_u10(Sleef_log1pf8_u10(Sleef_expf8_u10(v))));
    WIDE8(Sleef_log1pf8_u10(Sleef_expf8_u10(v)));
    printf("\n%-24s", "C library");
    LIBM(expf(v));
    LIBM(logf(v));
    LIBM(tanhf(v));
    LIBM(v * 0.5f * (1.0f + erff(v * 0.70710678f)));
    LIBM(v * 0.5f * (1.0f + tanhf(0.79788456f * (v + 0.044715f * v * v * v))));
    LIBM(1.0f / (1.0f + expf(-v)));
    LIBM(v / (1.0f + expf(-v)));
    LIBM(v * tanhf(log1pf(expf(v))));
    LIBM(log1pf(expf(v)));
    LIBM(v > 0 ? v : expm1f(v));
    printf("\n");
    return 0;
}
