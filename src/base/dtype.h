/* SPDX-License-Identifier: Apache-2.0 */
/* Element types (dtypes.def), and the 16-bit floats as bits. */
#ifndef LF_BASE_DTYPE_H
#define LF_BASE_DTYPE_H

#include <linfuse.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How many there are. */
enum {
    LF_DTYPES = 0
#define LF_DTYPE(...) +1
#include "base/dtypes.def"
#undef LF_DTYPE
};

/* Bytes an element. */
static inline size_t lf_dtype_size(lf_dtype type)
{
    switch (type) {
#define LF_DTYPE(name, id, bits, use, npy)                                                                           \
    case LF_##id: return sizeof(bits);
#include "base/dtypes.def"
#undef LF_DTYPE
    }
    return 0;
}

/* The type whose name is exactly text[0..length); false, and *out untouched, where there is none. */
bool lf_dtype_parse(const char *text, size_t length, lf_dtype *out);

/* Is it one that kernels calculate with, in f32? */
bool lf_dtype_is_float(lf_dtype type);

/* to[i] = from[i * stride] for i < count: exact, but for positions past 2^24, which are rounded. Back, to a float type:
 * rounded to nearest, ties to even, overflow to infinity, denormals kept. A NaN keeps its sign and the leading bits of
 * its payload, and between f32 and f16, or from f32 to bf16, becomes quiet: the same bits as F16C and the ARM
 * instructions give. Elements may lie at any address. */
void lf_to_f32(lf_dtype type, const void *from, int64_t stride, float *to, int64_t count);
void lf_from_f32(lf_dtype type, const float *from, void *to, int64_t stride, int64_t count);
/* The same from one float type to another, count elements side by side that do not overlap. */
void lf_retype(lf_dtype from_type, const void *from, lf_dtype to_type, void *to, int64_t count);

#endif
