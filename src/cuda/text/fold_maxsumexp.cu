// SPDX-License-Identifier: Apache-2.0
// Two passes where the elements are in registers: the largest, then the sum, one exp an element: 2^(v log2(e) - most log2(e)), in which an element far below the
// largest loses digits that its exp is too small to show. A NaN makes the sum NaN; so does an Inf, and then it is asked which it was.
template <> struct quad_fold<maxsumexp_stat<float>> {
    template <int AT, int SUMS, class Here> static __device__ __forceinline__ void of(const float (&v)[SUMS], Here here, maxsumexp_stat<float> (&s)[2])
    {
        const float log2e = 1.44269504f;
        float most[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f}, shift[2];
#pragma unroll
        for (int i = 0; i < HALF; ++i)
            if (here(i / 4, i % 2))
                most[i / 2 % 2] = fmaxf(most[i / 2 % 2], v[AT + i]);
        for (int which = 0; which < 2; ++which) {
            for (int o = 1; o < 4; o *= 2)
                most[which] = fmaxf(most[which], __shfl_xor_sync(~0u, most[which], o));
            shift[which] = most[which] == -INFINITY ? 0.0f : -most[which] * log2e; // all of it -Inf: sum 0
        }
#pragma unroll
        for (int i = 0; i < HALF; ++i)
            if (here(i / 4, i % 2))
                sum[i / 2 % 2] += power_of_two(fmaf(v[AT + i], log2e, shift[i / 2 % 2]));
        for (int which = 0; which < 2; ++which) {
            for (int o = 1; o < 4; o *= 2)
                sum[which] += __shfl_xor_sync(~0u, sum[which], o); // two numbers: either order gives the same
            s[which].s0 = most[which], s[which].s1 = sum[which];
        }
        if (__any_sync(~0u, sum[0] != sum[0] || sum[1] != sum[1])) {
            bool nan[2] = {false, false};
#pragma unroll
            for (int i = 0; i < HALF; ++i)
                if (here(i / 4, i % 2))
                    nan[i / 2 % 2] = nan[i / 2 % 2] || v[AT + i] != v[AT + i];
            for (int which = 0; which < 2; ++which) {
                const unsigned all = __ballot_sync(~0u, nan[which]);
                if ((all >> (threadIdx.x % 32 / 4 * 4)) & 15u)
                    s[which].s0 = __int_as_float(0x7fc00000);
            }
        }
    }
};
