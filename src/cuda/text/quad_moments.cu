// SPDX-License-Identifier: Apache-2.0
// Two passes over a run in registers: the mean, then the squared distances from it, corrected for the mean's own
// rounding (Chan, Golub, LeVeque, 1983). Runs are of 8 .. 128 columns, powers of two: elements are divided before they
// are added, so that no sum of finite ones overflows. Where one is NaN or Inf the variance is NaN.
template <> struct quad_run<moments_stat<float>> {
    static __device__ __forceinline__ float total(float x)
    {
        for (int o = 1; o < 4; o *= 2)
            x += __shfl_xor_sync(~0u, x, o); // two numbers: either order gives the same
        return x;
    }
    template <int AT, int STEPS, int SUMS>
    static __device__ __forceinline__ moments_stat<float> of(const float (&v)[SUMS])
    {
        constexpr float length = 8.0f * STEPS, each = 1.0f / length;
        float sum = 0.0f, off = 0.0f, squares = 0.0f;
#pragma unroll
        for (int i = 0; i < 2 * STEPS; ++i)
            sum = fmaf(v[AT + 4 * (i / 2) + i % 2], each, sum);
        const float mean = total(sum);
#pragma unroll
        for (int i = 0; i < 2 * STEPS; ++i) {
            const float d = v[AT + 4 * (i / 2) + i % 2] - mean;
            off += d, squares = fmaf(d, d, squares);
        }
        off = total(off), squares = total(squares);
        const float shift = off * each, spread = squares - off * shift;
        moments_stat<float> s;
        s.s0 = length, s.s1 = mean + shift, s.s2 = spread < 0.0f ? 0.0f : spread;
        return s;
    }
};
