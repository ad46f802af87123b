// SPDX-License-Identifier: Apache-2.0
// Two passes over a row's partials: the largest, then the sum of what is left of each, one exp a partial.
template <> struct partials<maxsumexp_stat> {
    template <bool SMALL> static __device__ __forceinline__ maxsumexp_stat<double> of(const float *partial, int tiles)
    {
        float most = -INFINITY;
        double sum = 0.0;
        const int lane = threadIdx.x % 4;
#pragma unroll(SMALL ? 1 : 16)
        for (int j = 0; j < (tiles + 3) / 4; ++j) { // a count that is known: loads are under way at once
            if (4 * j + lane >= tiles)
                continue;
            const float t = __ldcg((const float2 *)partial + 4 * j + lane).x;
            most = largest(most, t);
        }
        for (int o = 1; o < 4; o *= 2) {
            const float t = __shfl_xor_sync(~0u, most, o);
            most = largest(most, t);
        }
#pragma unroll(SMALL ? 1 : 16)
        for (int j = 0; j < (tiles + 3) / 4; ++j) {
            if (4 * j + lane >= tiles)
                continue;
            const float2 t = __ldcg((const float2 *)partial + 4 * j + lane);
            // all -Inf: nothing, not NaN
            sum += (double)t.y * (double)exp_term(sel(t.y == 0.0f, 0.0f, t.x - most));
        }
        maxsumexp_stat<double> s;
        s.s0 = most, s.s1 = quad_sum(sum);
        return s;
    }
};
