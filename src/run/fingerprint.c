/* SPDX-License-Identifier: Apache-2.0 */
/* A quick fingerprint of values, to notice that somebody changed them without telling. */
#include <string.h>

#include "run/params.h"

enum {
    LANES = 16,   /* words of a cache line, and one or more registers */
    LINE = LANES * sizeof(uint32_t),
    SPOTS = 64,   /* of a large tensor: a line each, spread evenly. A step of an optimizer changes nearly every value */
};

/* Two sums a lane, as in Fletcher's checksum: the second weighs by position, so that an exchange is seen as well. */
typedef struct sums {
    uint32_t plain[LANES], weighed[LANES];
} sums;

static void add_lines(sums *s, const unsigned char *data, size_t lines)
{
    for (size_t line = 0; line < lines; line++) {
        uint32_t bits[LANES];
        memcpy(bits, data + line * LINE, sizeof bits);
        for (int i = 0; i < LANES; i++) {
            s->plain[i] += bits[i];
            s->weighed[i] += s->plain[i];
        }
    }
}

uint64_t lf_fingerprint(const void *values, size_t bytes)
{
    const unsigned char *data = values;
    sums s = {0};
    const size_t lines = bytes / LINE, rest = bytes % LINE;
    if (bytes <= LF_FINGERPRINT_ALL) {
        unsigned char last[LINE] = {0};
        add_lines(&s, data, lines);
        if (rest > 0)
            memcpy(last, data + lines * LINE, rest);
        add_lines(&s, last, 1);
    } else {
        for (size_t spot = 0; spot < SPOTS; spot++)
            add_lines(&s, data + (lines - 1) * spot / (SPOTS - 1) * LINE, 1);
    }
    uint64_t hash = bytes;
    for (int i = 0; i < LANES; i++)
        hash = (hash ^ ((uint64_t)s.weighed[i] << 32 | s.plain[i])) * 0x9e3779b97f4a7c15u;
    return hash;
}
