// SPDX-License-Identifier: Apache-2.0
// Two passes where the elements are in registers: the largest, then the sum, one exp an element.
template <> struct quad_fold<maxsumexp_stat<float>> {
    template <class Here> static __device__ __forceinline__ maxsumexp_stat<float> of(float (&v)[ACCUMULATORS], int which, Here here)
    {
        float most = -INFINITY, sum = 0.0f;
        bool nan = false;
#pragma unroll
        for (int j = 0; j < ACCUMULATORS / 4; ++j)
#pragma unroll
            for (int w = 0; w < 2; ++w)
                if (here(j, w)) {
                    const float x = v[4 * j + 2 * which + w];
                    most = fmaxf(most, x);
                    nan = nan || x != x;
                }
        for (int o = 1; o < 4; o *= 2)
            most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
        if (most != -INFINITY)
#pragma unroll
            for (int j = 0; j < ACCUMULATORS / 4; ++j)
#pragma unroll
                for (int w = 0; w < 2; ++w)
                    if (here(j, w))
                        sum += expf(v[4 * j + 2 * which + w] - most);
        for (int o = 1; o < 4; o *= 2)
            sum += __shfl_xor_sync(~0u, sum, o); // two numbers: either order gives the same
        maxsumexp_stat<float> s;
        const unsigned all = __ballot_sync(~0u, nan);
        s.s0 = (all >> (threadIdx.x % 32 / 4 * 4)) & 15u ? __int_as_float(0x7fc00000) : most;
        s.s1 = sum;
        return s;
    }
};
