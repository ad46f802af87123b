// SPDX-License-Identifier: Apache-2.0
// A statistic of a few neighbours of a finished row. At: at(col), the row's elements.

// A run of few elements, by one lane or by all of a warp.
template <class M> struct short_fold {
    template <class At> static __device__ __forceinline__ M of(At at, i64 from, int length, int lane, int lanes)
    {
        M s;
        s.begin();
        for (int c = lane; c < length; c += lanes)
            s.put(at(from + c));
        return lanes > 1 ? join_lanes(s, 32) : s;
    }
};
