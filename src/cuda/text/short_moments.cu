// SPDX-License-Identifier: Apache-2.0
// Two passes over what is in L1: the mean, then the squared distances from it, corrected for the mean's own rounding
// (Chan, Golub, LeVeque, 1983). Where that is not finite the elements are put in one by one, which has NaN and Inf
// where the monoid puts them.
template <> struct short_fold<moments_stat<float>> {
    static __device__ __forceinline__ float total(float x, int lanes)
    {
        for (int o = 1; o < lanes; o *= 2)
            x += __shfl_xor_sync(~0u, x, o); // two numbers: either order gives the same
        return x;
    }
    template <class At>
    static __device__ __forceinline__ moments_stat<float> of(At at, i64 from, int length, int lane, int lanes)
    {
        float sum = 0.0f, off = 0.0f, squares = 0.0f;
        for (int c = lane; c < length; c += lanes)
            sum += at(from + c);
        const float mean = total(sum, lanes) / (float)length;
        for (int c = lane; c < length; c += lanes) {
            const float d = at(from + c) - mean;
            off += d, squares = fmaf(d, d, squares);
        }
        off = total(off, lanes), squares = total(squares, lanes);
        const float shift = off / (float)length, spread = squares - off * shift;
        moments_stat<float> s;
        s.s0 = (float)length, s.s1 = mean + shift, s.s2 = spread > 0.0f ? spread : 0.0f;
        if (mean - mean == 0.0f && spread - spread == 0.0f) // the same in all lanes that share the run
            return s;
        s.begin();
        for (int c = 0; c < length; ++c)
            s.put(at(from + c));
        return s;
    }
};
