/* SPDX-License-Identifier: Apache-2.0 */
/* What sort of file begins with some bytes: for messages about a file that was mistaken for another. */
#ifndef LF_IO_KIND_H
#define LF_IO_KIND_H

#include <stddef.h>

typedef enum lf_file_kind {
    LF_FILE_OTHER,
    LF_FILE_TEXT,        /* no control characters at its beginning, and nothing that UTF-8 has not */
    LF_FILE_ARRAY,       /* NumPy's .npy */
    LF_FILE_TORCH,       /* a zip archive or a pickle, as torch.save writes them */
    LF_FILE_SAFETENSORS, /* the length of a JSON object, and that object */
} lf_file_kind;

lf_file_kind lf_file_kind_of(const void *bytes, size_t size);

#endif
