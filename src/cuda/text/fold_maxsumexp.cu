// SPDX-License-Identifier: Apache-2.0
// Two passes where the elements are in registers: the largest, then the sum, one exp an element. A NaN makes both NaN,
// an Inf the sum. In a row each of CHAINS goes its way, so that few wait for the one before.
template <> struct quad_fold<maxsumexp_stat<float>> {
    template <int AT, int SUMS, class Here>
    static __device__ __forceinline__ void of(const float (&v)[SUMS], Here here, maxsumexp_stat<float> (&s)[2])
    {
        enum { CHAINS = 4 };
        float mosts[2][CHAINS], sums[2][CHAINS], most[2], sum[2], less[2];
#pragma unroll
        for (int i = 0; i < 2 * CHAINS; ++i)
            mosts[i / CHAINS][i % CHAINS] = -INFINITY, sums[i / CHAINS][i % CHAINS] = 0.0f;
        const auto chain = [](int i) { return i / 4 % 2 * 2 + i % 2; }; // by column
#pragma unroll
        for (int i = 0; i < HALF; ++i)
            if (here(i / 4, i % 2))
                mosts[i / 2 % 2][chain(i)] = largest(mosts[i / 2 % 2][chain(i)], v[AT + i]);
        for (int which = 0; which < 2; ++which) {
            most[which] = largest(largest(mosts[which][0], mosts[which][1]), largest(mosts[which][2], mosts[which][3]));
            for (int o = 1; o < 4; o *= 2)
                most[which] = largest(most[which], __shfl_xor_sync(~0u, most[which], o));
            less[which] = most[which] == -INFINITY ? 0.0f : most[which]; // all of it -Inf: sum 0
        }
#pragma unroll
        for (int i = 0; i < HALF; ++i)
            if (here(i / 4, i % 2))
                sums[i / 2 % 2][chain(i)] += exp_term(v[AT + i] - less[i / 2 % 2]);
        for (int which = 0; which < 2; ++which) {
            sum[which] = sums[which][0] + sums[which][1] + (sums[which][2] + sums[which][3]);
            for (int o = 1; o < 4; o *= 2)
                sum[which] += __shfl_xor_sync(~0u, sum[which], o); // two numbers: either order gives the same
            s[which].s0 = most[which], s[which].s1 = sum[which];
        }
    }
};
