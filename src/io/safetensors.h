/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors files: 8 bytes of header length, a JSON header that names tensors, their bytes one after another.
 * https://github.com/huggingface/safetensors#format */
#ifndef LF_IO_SAFETENSORS_H
#define LF_IO_SAFETENSORS_H

#include "base/arena.h"
#include "base/status.h"

typedef struct lf_tensor_view {
    const char *file; /* the name the file was read under, for messages */
    const char *name;
    const char *dtype;      /* as the file spells it: "F32", "BF16" */
    int rank;
    const int64_t *extents; /* 0 and above */
    int64_t count;          /* elements */
    size_t size;            /* bytes */
    const void *data;       /* in the file's bytes, at any alignment */
} lf_tensor_view;

/* All zero holds nothing. */
typedef struct lf_safetensors {
    lf_tensor_view *tensors; /* by name, sorted as strcmp does */
    size_t count;
    lf_arena arena;          /* owns all but the data */
} lf_safetensors;

/* Reads the header and checks all of it: every tensor has a known dtype, the size its shape asks for, and bytes of its
 * own, and there are no other bytes in the file.
 * Borrows: bytes, which outlive *out; name, for the call; it stands in messages.
 * Leaves:  *out, ended with lf_safetensors_free; all zero on failure.
 * Fails:   LF_ERR_DATA in words that name file, tensor and problem; LF_ERR_NOMEM, but for names in the header that the
 *          JSON library finds no memory for: it takes them for bad syntax. */
lf_status lf_safetensors_read(const void *bytes, size_t n, const char *name, lf_safetensors *out, lf_diag *diag);

void lf_safetensors_free(lf_safetensors *file);

/* The tensor of this name, NULL where there is none. Lives as long as the file. */
const lf_tensor_view *lf_safetensors_find(const lf_safetensors *file, const char *name);

/* The tensor's values as elements of a type, out[count]: as they are, or where both types are floats converted, rounded
 * where there are fewer digits.
 * Fails:   LF_ERR_DATA where it holds another type, with what to do. */
lf_status lf_tensor_read(const lf_tensor_view *tensor, lf_dtype type, void *out, lf_diag *diag);

#endif
