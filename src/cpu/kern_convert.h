/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of any float type to f32 and back, a vector at a time; what is left over by base/dtype.c, whose bits these
 * are. Included by kern_template.h. */
#include "cpu/kern_vec.h"

static inline vec vec_of_bf16(halves_anywhere h)
{
    return (vec)(__builtin_convertvector(h, uvec) << 16);
}

/* As bf16_of_f32 of dtype.c: a NaN is cut and made quiet. */
static inline halves_anywhere bf16_of_vec(vec v)
{
    const uvec bits = (uvec)v, cut = bits >> 16, rounded = (bits + 0x7fff + (cut & 1)) >> 16;
    const uvec nan = (uvec)(v != v);
    return __builtin_convertvector(((cut | 0x40) & nan) | (rounded & ~nan), halves_anywhere);
}

/* Contract: kern.h. VECTORS: is there a vec_of_NAME and a NAME_of_vec? */
#define DEFINE_CONVERT(name, id, VECTORS)                                                                            \
    static void load_##name(int64_t n, const void *from, float *out)                                                 \
    {                                                                                                                \
        const uint16_t *h = from;                                                                                    \
        int64_t i = 0;                                                                                               \
        for (; VECTORS && i + KERN_LANES <= n; i += KERN_LANES)                                                      \
            store(out + i, vec_of_##name(*(const halves_anywhere *)(h + i)));                                        \
        lf_to_f32(LF_##id, h + i, 1, out + i, n - i);                                                                \
    }                                                                                                                \
    static void store_##name(int64_t n, const float *from, void *out)                                                \
    {                                                                                                                \
        uint16_t *h = out;                                                                                           \
        int64_t i = 0;                                                                                               \
        for (; VECTORS && i + KERN_LANES <= n; i += KERN_LANES)                                                      \
            *(halves_anywhere *)(h + i) = name##_of_vec(load(from + i));                                             \
        lf_from_f32(LF_##id, from + i, h + i, 1, n - i);                                                             \
    }
DEFINE_CONVERT(f16, F16, HAS_F16)
DEFINE_CONVERT(bf16, BF16, true)

static void load_f32(int64_t n, const void *from, float *out)
{
    memcpy(out, from, (size_t)n * sizeof *out);
}

static void load_i64(int64_t n, const void *from, float *out)
{
    lf_to_f32(LF_I64, from, 1, out, n);
}

static void store_f32(int64_t n, const float *from, void *out)
{
    memcpy(out, from, (size_t)n * sizeof *from);
}

/* The table's entries. */
#define LOAD_OF_FLOAT(name) load_##name
#define LOAD_OF_INDEX(name) load_##name
#define STORE_OF_FLOAT(name) store_##name
#define STORE_OF_INDEX(name) NULL
