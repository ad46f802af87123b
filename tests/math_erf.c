/* SPDX-License-Identifier: Apache-2.0 */
/* erf of src/cpu/kern_math.h, which no op of the table calls by itself, compiled here to be measured like the ops.
 * By hand, for another machine's vectors: -DKERN_LANES=8 -mavx2 -mfma or -DKERN_LANES=16 -mavx512f. */
#ifndef KERN_LANES
#define KERN_LANES 4
#endif
#include "cpu/kern_math.h"

#include "math_reference.h"

void math_erf(int64_t n, const float *x, float *out)
{
    for (int64_t i = 0; i < n; i += KERN_LANES)
        if (n - i >= KERN_LANES)
            store(out + i, erf(load(x + i)));
        else
            store_some(n - i, out + i, erf(load_some(n - i, x + i, 0.0f)));
}
