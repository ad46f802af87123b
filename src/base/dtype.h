/* SPDX-License-Identifier: Apache-2.0 */
/* Element types, and the 16-bit floats as bits. */
#ifndef LF_BASE_DTYPE_H
#define LF_BASE_DTYPE_H

#include <linfuse.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes an element. */
size_t lf_dtype_size(lf_dtype type);

/* "f32", "f16", "bf16", "i64". */
const char *lf_dtype_name(lf_dtype type);

/* The type whose name is exactly text[0..length); false, and *out untouched, where there is none. */
bool lf_dtype_parse(const char *text, size_t length, lf_dtype *out);

/* count elements of src to dst, which do not overlap. To 16 bits rounds to nearest, ties to even, overflow to infinity,
 * denormals kept; to 32 bits is exact. A NaN keeps its sign and the leading bits of its payload, and between f32 and
 * f16 becomes quiet: the same bits as F16C and the ARM instructions give. */
void lf_f16_to_f32(const uint16_t *src, float *dst, size_t count);
void lf_f32_to_f16(const float *src, uint16_t *dst, size_t count);
void lf_bf16_to_f32(const uint16_t *src, float *dst, size_t count);
void lf_f32_to_bf16(const float *src, uint16_t *dst, size_t count);

#endif
