// SPDX-License-Identifier: Apache-2.0
// Statistics of segments and windows of a finished row, by the T threads of the row.

// count runs of `length` neighbours. Long ones are shared by a warp, short ones are a thread's each. A thread's part of
// up to 64 elements and the warp's join of those are in f32, longer parts in double precision.
template <int T, template <typename> class M, class At>
__device__ __forceinline__ void segments(At at, i64 count, i64 length, int tid, float *r0, float *r1)
{
    const bool shared = length >= 64;
    const int lane = shared ? tid % 32 : 0, lanes = shared ? 32 : 1;
    for (i64 i = shared ? tid / 32 : tid; i < count; i += T / lanes) {
        float r[2];
        if (length <= 64 * lanes) {
            short_fold<M<float>>::of(at, i * length, (int)length, lane, lanes).finish((float)length, r);
        } else {
            fold<M> f;
            for (i64 c = lane; c < length; c += lanes)
                f.put(at(i * length + c));
            M<double> s = f.total();
            if (shared)
                s = join_lanes(s, 32);
            s.finish((double)length, r);
        }
        if (lane == 0) {
            r0[i] = r[0];
            if (M<float>::RESULTS > 1)
                r1[i] = r[1];
        }
    }
}

struct Window {
    i64 kernel, stride, padding, dilation;
    bool include_pad;
};

// `count` windows over each of `groups` runs of `length`. The divisor is PyTorch's: padding counts where asked to, but
// not what ceil_mode lets hang over it.
template <int T, template <typename> class M, class At>
__device__ __forceinline__ void windows(At at, i64 groups, i64 count, i64 length, const Window v, int tid, float *r0,
                                        float *r1)
{
    for (i64 i = tid; i < groups * count; i += T) {
        const i64 run = i / count * length, start = i % count * v.stride - v.padding;
        i64 taken = 0;
        fold<M> f;
        for (i64 tap = 0; tap < v.kernel; ++tap) {
            const i64 c = start + tap * v.dilation;
            if (c < 0 || c >= length)
                continue;
            f.put(at(run + c));
            ++taken;
        }
        const i64 end = start + v.kernel < length + v.padding ? start + v.kernel : length + v.padding;
        const i64 n = v.include_pad ? end - start : taken;
        float r[2];
        f.total().finish((double)(n > 1 ? n : 1), r);
        r0[i] = r[0];
        if (M<float>::RESULTS > 1)
            r1[i] = r[1];
    }
}
