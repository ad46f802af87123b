/* SPDX-License-Identifier: Apache-2.0 */
#include "io/kind.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { LOOK = 64 }; /* bytes of a text to look at */

static bool is_text(const unsigned char *b, size_t size)
{
    for (size_t i = 0; i < size && i < LOOK; i++)
        if ((b[i] < ' ' && b[i] != '\n' && b[i] != '\r' && b[i] != '\t') || b[i] == 127 || b[i] >= 0xf8)
            return false;
    return size > 0;
}

static bool is_safetensors(const unsigned char *b, size_t size)
{
    uint64_t header = 0; /* the length of the JSON object that follows, little-endian */
    for (size_t i = 0; i < sizeof header && i < size; i++)
        header |= (uint64_t)b[i] << 8 * i;
    return size > sizeof header && header <= size - sizeof header && b[sizeof header] == '{';
}

lf_file_kind lf_file_kind_of(const void *bytes, size_t size)
{
    const unsigned char *b = bytes;
    if (is_safetensors(b, size))
        return LF_FILE_SAFETENSORS;
    if (size >= 6 && memcmp(b, "\x93NUMPY", 6) == 0)
        return LF_FILE_ARRAY;
    if (size >= 4 && memcmp(b, "PK\3\4", 4) == 0)
        return LF_FILE_TORCH;
    if (size >= 2 && b[0] == 0x80 && b[1] <= 5) /* a pickle of protocol 2 to 5 */
        return LF_FILE_TORCH;
    return is_text(b, size) ? LF_FILE_TEXT : LF_FILE_OTHER;
}
