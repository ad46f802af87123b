/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers that depend only on a seed, a stream's name and a position in it: the same on every machine, and element i
 * of a tensor can be had without the i before it. For weights and test inputs, not for secrets. */
#ifndef LF_BASE_RNG_H
#define LF_BASE_RNG_H

#include <stdint.h>

typedef struct lf_rng {
    uint64_t key;   /* what seed and stream name come to */
    uint64_t index; /* of the next draw */
} lf_rng;

/* At the start of a stream. Streams of different names, or of different seeds, have nothing to do with each other.
 * Borrows the name for the call. */
lf_rng lf_rng_seed(uint64_t seed, const char *stream_name);

/* The same stream with index draws behind it. Each function below is one draw. */
lf_rng lf_rng_at(uint64_t seed, const char *stream_name, uint64_t index);

uint64_t lf_rng_u64(lf_rng *r);

/* In [0, 1), a multiple of 2^-53. */
double lf_rng_unit(lf_rng *r);

/* In [lo, hi), also after rounding to float. Needs finite lo < hi. */
float lf_rng_uniform(lf_rng *r, float lo, float hi);

#endif
