// SPDX-License-Identifier: Apache-2.0
// Two passes over a row's partials: the mean of all, then the distances of theirs from it. No division but one.
template <> struct partials<moments_stat> {
    template <bool SMALL> static __device__ __forceinline__ moments_stat<double> of(const float *partial, int tiles)
    {
        double count = 0.0, sum = 0.0, squares = 0.0;
        const int lane = threadIdx.x % 4;
#pragma unroll(SMALL ? 1 : 8)
        for (int j = 0; j < (tiles + 3) / 4; ++j) { // a count that is known: loads are under way at once
            const int i = 4 * j + lane;
            if (i >= tiles)
                continue;
            const double n = __ldcg(partial + 3 * i);
            count += n, sum += n * __ldcg(partial + 3 * i + 1);
        }
        moments_stat<double> s;
        s.s0 = quad_sum(count), s.s1 = quad_sum(sum) / s.s0;
#pragma unroll(SMALL ? 1 : 8)
        for (int j = 0; j < (tiles + 3) / 4; ++j) {
            const int i = 4 * j + lane;
            if (i >= tiles)
                continue;
            const double off = (double)__ldcg(partial + 3 * i + 1) - s.s1;
            squares += (double)__ldcg(partial + 3 * i + 2) + __ldcg(partial + 3 * i) * off * off;
        }
        s.s2 = quad_sum(squares);
        return s;
    }
};
