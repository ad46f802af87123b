/* SPDX-License-Identifier: Apache-2.0 */
/* Integer arithmetic throughout, so that the results do not depend on the rounding mode, on flush-to-zero, or on what
 * the compiler was allowed to assume about NaN. */
#include "base/dtype.h"

#include <assert.h>
#include <string.h>

static const char *const names[] = {
#define LF_DTYPE(name, id, bits, use, npy) [LF_##id] = #name,
#include "base/dtypes.def"
#undef LF_DTYPE
};
_Static_assert(sizeof names / sizeof *names == LF_DTYPES, "a row for each of lf_dtype, and no other");

const char *lf_dtype_name(lf_dtype type)
{
    return (unsigned)type < LF_DTYPES ? names[type] : NULL;
}

bool lf_dtype_parse(const char *text, size_t length, lf_dtype *out)
{
    for (size_t t = 0; t < LF_DTYPES; t++) {
        if (strlen(names[t]) == length && memcmp(names[t], text, length) == 0) {
            *out = (lf_dtype)t;
            return true;
        }
    }
    return false;
}

/* f32: sign 1, exponent 8 (bias 127), fraction 23.  f16: 1, 5 (bias 15), 10.  bf16: the upper half of an f32. */

enum {
    F32_INF = 0x7f800000,
    F16_INF = 0x7c00,
    F16_QUIET = 0x0200,
    BF16_QUIET = 0x0040,
    REBIAS = 127 - 15
};

/* bits / 2^shift, to nearest, ties to even. A carry out of the fraction lands in the exponent, which is right: it is
 * the next power of two, or infinity after the largest finite value. */
static uint32_t round_shift(uint32_t bits, unsigned shift)
{
    uint32_t below_half = (1u << (shift - 1)) - 1;
    return (bits + below_half + ((bits >> shift) & 1)) >> shift;
}

static uint32_t f32_of_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = (h >> 10) & 0x1f;
    uint32_t fraction = h & 0x3ff;

    if (exponent == 0x1f)
        return sign | F32_INF | (fraction ? (fraction | F16_QUIET) << 13 : 0);
    if (exponent == 0) {
        if (fraction == 0)
            return sign;
        /* fraction * 2^-24: shift its leading one up to the implicit bit, 21 zeros from the top of the word. */
        uint32_t shift = (uint32_t)__builtin_clz(fraction) - 21;
        exponent = 1 - shift; /* may wrap below zero; the bias brings it back */
        fraction = (fraction << shift) & 0x3ff;
    }
    return sign | (exponent + REBIAS) << 23 | fraction << 13;
}

static uint16_t f16_of_f32(uint32_t bits)
{
    const uint32_t f16_overflow = 0x47800000; /* 2^16 */
    const uint32_t f16_normal = 0x38800000;   /* 2^-14, the least normal f16 */
    const uint32_t f16_vanish = 0x33000000;   /* 2^-25, half of the least f16: it and all below round to zero */
    uint32_t sign = (bits >> 16) & 0x8000;
    uint32_t magnitude = bits & 0x7fffffff;
    uint32_t result;

    if (magnitude > F32_INF) {
        result = F16_INF | F16_QUIET | ((magnitude >> 13) & 0x3ff);
    } else if (magnitude >= f16_overflow) {
        result = F16_INF;
    } else if (magnitude >= f16_normal) {
        result = round_shift(magnitude - ((uint32_t)REBIAS << 23), 13);
    } else if (magnitude > f16_vanish) {
        /* significand * 2^(exponent - 150), wanted as a multiple of 2^-24 */
        uint32_t significand = (magnitude & 0x7fffff) | 0x800000;
        result = round_shift(significand, 126 - (magnitude >> 23));
    } else {
        result = 0;
    }
    return (uint16_t)(sign | result);
}

static uint16_t bf16_of_f32(uint32_t bits)
{
    /* Rounding could carry a NaN's payload away and leave an infinity, so NaN is cut and made quiet. */
    if ((bits & 0x7fffffff) > F32_INF)
        return (uint16_t)(bits >> 16 | BF16_QUIET);
    return (uint16_t)round_shift(bits, 16);
}

static uint32_t f32_of_bf16(uint16_t bits)
{
    return (uint32_t)bits << 16;
}

static uint32_t f32_of_f32(uint32_t bits)
{
    return bits;
}

/* ---- arrays ---- */

/* Read and written as bits: a float variable in between could quieten a NaN on some machines. */
#define CONVERT_FLOAT(name, type)                                                                                    \
    static void read_##name(const unsigned char *from, int64_t stride, float *to, int64_t count)                     \
    {                                                                                                                \
        for (int64_t i = 0; i < count; i++) {                                                                        \
            type bits;                                                                                               \
            memcpy(&bits, from + i * stride * (int64_t)sizeof bits, sizeof bits);                                    \
            const uint32_t f32 = f32_of_##name(bits);                                                                \
            memcpy(to + i, &f32, sizeof f32);                                                                        \
        }                                                                                                            \
    }                                                                                                                \
    static void write_##name(const float *from, unsigned char *to, int64_t stride, int64_t count)                    \
    {                                                                                                                \
        for (int64_t i = 0; i < count; i++) {                                                                        \
            uint32_t f32;                                                                                            \
            memcpy(&f32, from + i, sizeof f32);                                                                      \
            const type bits = name##_of_f32(f32);                                                                    \
            memcpy(to + i * stride * (int64_t)sizeof bits, &bits, sizeof bits);                                      \
        }                                                                                                            \
    }
#define CONVERT_INDEX(name, type)                                                                                    \
    static void read_##name(const unsigned char *from, int64_t stride, float *to, int64_t count)                     \
    {                                                                                                                \
        for (int64_t i = 0; i < count; i++) {                                                                        \
            type position;                                                                                           \
            memcpy(&position, from + i * stride * (int64_t)sizeof position, sizeof position);                        \
            to[i] = (float)position;                                                                                 \
        }                                                                                                            \
    }
#define LF_DTYPE(name, id, bits, use, npy) CONVERT_##use(name, bits)
#include "base/dtypes.def"
#undef LF_DTYPE

/* write is NULL: it is no FLOAT. */
static const struct {
    void (*read)(const unsigned char *from, int64_t stride, float *to, int64_t count);
    void (*write)(const float *from, unsigned char *to, int64_t stride, int64_t count);
} converts[] = {
#define ROW_FLOAT(name) {read_##name, write_##name}
#define ROW_INDEX(name) {read_##name, NULL}
#define LF_DTYPE(name, id, bits, use, npy) [LF_##id] = ROW_##use(name),
#include "base/dtypes.def"
#undef LF_DTYPE
};

bool lf_dtype_is_float(lf_dtype type)
{
    assert((unsigned)type < LF_DTYPES);
    return converts[type].write != NULL;
}

void lf_to_f32(lf_dtype type, const void *from, int64_t stride, float *to, int64_t count)
{
    assert((unsigned)type < LF_DTYPES);
    converts[type].read(from, stride, to, count);
}

void lf_from_f32(lf_dtype type, const float *from, void *to, int64_t stride, int64_t count)
{
    assert(lf_dtype_is_float(type));
    converts[type].write(from, to, stride, count);
}

void lf_retype(lf_dtype from_type, const void *from, lf_dtype to_type, void *to, int64_t count)
{
    enum { AT_ONCE = 512 };
    const size_t from_bytes = lf_dtype_size(from_type), to_bytes = lf_dtype_size(to_type);
    for (int64_t at = 0; at < count; at += AT_ONCE) {
        float floats[AT_ONCE];
        const int64_t n = count - at < AT_ONCE ? count - at : AT_ONCE;
        lf_to_f32(from_type, (const char *)from + (size_t)at * from_bytes, 1, floats, n);
        lf_from_f32(to_type, floats, (char *)to + (size_t)at * to_bytes, 1, n);
    }
}
