/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a .npy file: refused in one line, or read, and then written as ours and read again to the same. */
#include "base/dtype.h"
#include "base/mem.h"
#include "io/npy.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    lf_npy npy, again;
    lf_diag d = {{0}};
    if (lf_npy_read(bytes, n, "x.npy", &npy, &d) != LF_OK) {
        assert(d.text[0] && !strchr(d.text, '\n'));
        return 0;
    }
    size_t size = (size_t)npy.count * lf_dtype_size(npy.dtype), used;
    assert(npy.offset <= n && n - npy.offset == size);

    const void *data;
    void *copy;
    if (lf_npy_data(bytes, &npy, &data, &copy, &d) != LF_OK)
        return 0;
    char *file = malloc(LF_NPY_HEADER_MAX + size);
    assert(file);
    assert(lf_npy_header(npy.dtype, npy.rank, npy.extents, file, LF_NPY_HEADER_MAX, &used) == LF_OK);
    memcpy(file + used, data, size);
    assert(lf_npy_read(file, used + size, "y.npy", &again, &d) == LF_OK);
    assert(again.dtype == npy.dtype && again.rank == npy.rank && again.count == npy.count && again.offset % 64 == 0);
    assert(memcmp(again.extents, npy.extents, sizeof npy.extents) == 0);
    free(file);
    lf_aligned_free(copy);
    return 0;
}
