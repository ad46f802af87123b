/* SPDX-License-Identifier: Apache-2.0 */
/* SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014) in its closed form: draw
 * number i is a mix of key + (i + 1) * GOLDEN, so that no draw needs the one before. */
#include "base/rng.h"

#include <assert.h>
#include <math.h>

static const uint64_t GOLDEN = 0x9e3779b97f4a7c15; /* 2^64 / golden ratio, odd: visits every state */

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

/* FNV-1a, 64 bits. */
static uint64_t hash_name(const char *name)
{
    uint64_t h = 0xcbf29ce484222325;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 0x100000001b3;
    return h;
}

lf_rng lf_rng_at(uint64_t seed, const char *stream_name, uint64_t index)
{
    /* Mixed twice: the keys of neighbouring seeds must not lie a small multiple of GOLDEN apart, or their streams would
     * be the same one, shifted. */
    uint64_t key = mix(mix(seed + GOLDEN) ^ hash_name(stream_name));
    return (lf_rng){.key = key, .index = index};
}

lf_rng lf_rng_seed(uint64_t seed, const char *stream_name)
{
    return lf_rng_at(seed, stream_name, 0);
}

uint64_t lf_rng_u64(lf_rng *r)
{
    r->index++;
    return mix(r->key + r->index * GOLDEN);
}

double lf_rng_unit(lf_rng *r)
{
    return (double)(lf_rng_u64(r) >> 11) * 0x1p-53;
}

float lf_rng_uniform(lf_rng *r, float lo, float hi)
{
    assert(lo < hi);
    float x = (float)(lo + ((double)hi - lo) * lf_rng_unit(r));
    /* Rounding is monotone, so x >= lo, but it may reach hi. */
    return x < hi ? x : nextafterf(hi, lo);
}
