// SPDX-License-Identifier: Apache-2.0
// Two passes where the elements are in registers: the largest, then the sum, one exp an element.
template <> struct quad_fold<maxsumexp_stat<float>> {
    template <int AT, int SUMS, class Here> static __device__ __forceinline__ void of(const float (&v)[SUMS], Here here, maxsumexp_stat<float> (&s)[2])
    {
        float most[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
        bool nan[2] = {false, false};
#pragma unroll
        for (int i = 0; i < HALF; ++i)
            if (here(i / 4, i % 2)) {
                most[i / 2 % 2] = fmaxf(most[i / 2 % 2], v[AT + i]);
                nan[i / 2 % 2] = nan[i / 2 % 2] || v[AT + i] != v[AT + i];
            }
        float shift[2];
        for (int which = 0; which < 2; ++which) {
            for (int o = 1; o < 4; o *= 2)
                most[which] = fmaxf(most[which], __shfl_xor_sync(~0u, most[which], o));
            shift[which] = most[which] == -INFINITY ? 0.0f : most[which]; // all of it -Inf: sum 0
        }
#pragma unroll
        for (int i = 0; i < HALF; ++i)
            if (here(i / 4, i % 2))
                sum[i / 2 % 2] += expf(v[AT + i] - shift[i / 2 % 2]);
        for (int which = 0; which < 2; ++which) {
            for (int o = 1; o < 4; o *= 2)
                sum[which] += __shfl_xor_sync(~0u, sum[which], o); // two numbers: either order gives the same
            const unsigned all = __ballot_sync(~0u, nan[which]);
            s[which].s0 = (all >> (threadIdx.x % 32 / 4 * 4)) & 15u ? __int_as_float(0x7fc00000) : most[which];
            s[which].s1 = sum[which];
        }
    }
};
