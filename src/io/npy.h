/* SPDX-License-Identifier: Apache-2.0 */
/* NumPy's .npy files (numpy.lib.format, versions 1 to 3): one array, little-endian, in C order. */
#ifndef LF_IO_NPY_H
#define LF_IO_NPY_H

#include "base/status.h"

/* What the header says, checked against the file's size. */
typedef struct lf_npy {
    lf_dtype dtype;
    int rank;
    int64_t extents[LF_MAX_RANK]; /* 0 and above */
    int64_t count;                /* elements: the product of the extents */
    size_t offset;                /* bytes before the data; a multiple of 64 in files NumPy wrote, anything in others */
} lf_npy;

/* Reads the header of a file of n bytes and makes sure the rest is exactly the data it announces.
 * Borrows: bytes for the call; name, which stands in messages.
 * Fails:   LF_ERR_DATA, with words for what the file holds instead and what to do. */
lf_status lf_npy_read(const void *bytes, size_t n, const char *name, lf_npy *out, lf_diag *diag);

/* The elements: in place where they are aligned, otherwise a copy.
 * Needs:   what lf_npy_read found in these bytes.
 * Leaves:  *data, count elements; *copy NULL, or the memory behind *data, which the caller owns (lf_aligned_free).
 * Fails:   LF_ERR_NOMEM. */
lf_status lf_npy_data(const void *bytes, const lf_npy *npy, const void **data, void **copy, lf_diag *diag);

/* Enough for any header lf_npy_header writes: the words take about 70 bytes, an extent at most 22. */
enum { LF_NPY_HEADER_MAX = 320 };

/* The header of a file of these extents, a multiple of 64 bytes long: version 1.0.
 * Fails:   LF_ERR_ARG for a rank or extent out of range, or where cap is too small. */
lf_status lf_npy_header(lf_dtype dtype, int rank, const int64_t *extents, void *buf, size_t cap, size_t *used);

#endif
