/* SPDX-License-Identifier: Apache-2.0 */
/* A quick fingerprint of values, to notice that somebody changed them without telling. */
#include <string.h>

#include "run/params.h"

enum {
    LANES = 16,   /* a cache line of floats, and one or more registers */
    SPOTS = 64,   /* of a large tensor: a line each, spread evenly. A step of an optimizer changes nearly every value */
};

/* Two sums a lane, as in Fletcher's checksum: the second weighs by position, so that an exchange is seen as well. */
typedef struct sums {
    uint32_t plain[LANES], weighed[LANES];
} sums;

static void add_lines(sums *s, const float *data, size_t lines)
{
    for (size_t line = 0; line < lines; line++) {
        uint32_t bits[LANES];
        memcpy(bits, data + line * LANES, sizeof bits);
        for (int i = 0; i < LANES; i++) {
            s->plain[i] += bits[i];
            s->weighed[i] += s->plain[i];
        }
    }
}

uint64_t lf_fingerprint(const float *data, size_t count)
{
    sums s = {0};
    const size_t lines = count / LANES, rest = count % LANES;
    if (count <= LF_FINGERPRINT_ALL) {
        float last[LANES] = {0};
        add_lines(&s, data, lines);
        if (rest > 0)
            memcpy(last, data + lines * LANES, rest * sizeof *last);
        add_lines(&s, last, 1);
    } else {
        for (size_t spot = 0; spot < SPOTS; spot++)
            add_lines(&s, data + (lines - 1) * spot / (SPOTS - 1) * LANES, 1);
    }
    uint64_t hash = count;
    for (int i = 0; i < LANES; i++)
        hash = (hash ^ ((uint64_t)s.weighed[i] << 32 | s.plain[i])) * 0x9e3779b97f4a7c15u;
    return hash;
}
