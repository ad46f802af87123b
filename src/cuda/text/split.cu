// SPDX-License-Identifier: Apache-2.0
// Operands as the tensor cores read them: lines of 128 bytes, x's [rows][lines], weights' [lines][rows]. MODE says what
// a line holds (Line<MODE>, from plan/precisions.def):
//   fp32: 32 elements, each the sum of two fp16, [hi x32 | lo x32]; the row scaled by a power of two so that its
//         largest lies in [2^14, 2^15)
//   tf32: 32 elements, rounded
//   bf16: 64 elements, rounded
//   fp16: 64 elements, rounded, the row scaled as in fp32

// Four elements from k on, k a multiple of 4, of a row whose lines stand `pitch` bytes apart.
template <int MODE>
__device__ __forceinline__ void put_four(u8 *lines, i64 pitch, i64 k, const float (&v)[4], float scale)
{
    const float s[4] = {v[0] * scale, v[1] * scale, v[2] * scale, v[3] * scale};
    u8 *line = lines + k / Line<MODE>::ELEMENTS * pitch;
    const int at = (int)(k % Line<MODE>::ELEMENTS);
    if (MODE == MODE_FP32) {
        const uint2 hi = make_uint2(halves(s[0], s[1]), halves(s[2], s[3]));
        const uint2 lo = make_uint2(halves(s[0] - half_low(hi.x), s[1] - half_high(hi.x)),
                                    halves(s[2] - half_low(hi.y), s[3] - half_high(hi.y)));
        *(uint2 *)(line + at * 2) = hi;
        *(uint2 *)(line + 64 + at * 2) = lo;
    } else if (MODE == MODE_TF32) {
        *(uint4 *)(line + at * 4) =
            make_uint4(tensor_float(v[0]), tensor_float(v[1]), tensor_float(v[2]), tensor_float(v[3]));
    } else if (MODE == MODE_BF16) {
        *(uint2 *)(line + at * 2) = make_uint2(brain_floats(v[0], v[1]), brain_floats(v[2], v[3]));
    } else {
        *(uint2 *)(line + at * 2) = make_uint2(halves(s[0], s[1]), halves(s[2], s[3]));
    }
}

// The largest magnitude of a row and the smallest that is not 0, as bits: magnitudes order like whole numbers. (small:
// less 1, so that 0 is the largest of all.)
struct row_range {
    unsigned big, small;
    __device__ __forceinline__ void join(const row_range &t) { big = max(big, t.big), small = min(small, t.small); }
    __device__ __forceinline__ row_range shuffled(int lanes) const
    {
        return {__shfl_xor_sync(~0u, big, lanes), __shfl_xor_sync(~0u, small, lanes)};
    }
    __device__ __forceinline__ void put(float x)
    {
        const unsigned bits = __float_as_uint(x) & 0x7fffffffu;
        big = max(big, bits), small = min(small, bits - 1);
    }
};

// Does hi + lo hold the row? Not where something is not finite, nor near the ends of f32's range, where scales would
// leave it; nor where an element is less than 2^-binades of the largest. Down to 2^-17 of that all are as good as
// f32's, from 2^-40 on nothing is left of them. Whether that matters is the weight's to say: see text/weights.cu.
__device__ __forceinline__ bool is_beyond(const row_range &r, int binades)
{
    const int big = (int)(r.big >> 23), small = (int)((r.small + 1) >> 23);
    return r.big != 0 && (big > 127 + 60 || big < 127 - 60 || small < big - binades);
}

// What x's elements are multiplied by where a weight's columns were balanced, by what undoes it. by: NULL: by nothing.
struct x_columns {
    const float *by;
    __device__ __forceinline__ bool uneven() const { return by != 0; }
    __device__ __forceinline__ void balance(float (&v)[4], i64 k) const
    {
        constexpr int W = 4;
        float c[W];
        load<true, true>(c, by + k);
        EACH v[w] = balanced(v[w], c[w]);
    }
    // What becomes 0 by it is still something: of a row that has nothing larger it must be known.
    static __device__ __forceinline__ float balanced(float v, float by)
    {
        const float b = v * by;
        return b == 0.0f && v != 0.0f && by != 0.0f ? __uint_as_float(1) : b;
    }
};

__device__ __forceinline__ int scale_exponent(const row_range &r)
{
    const int big = (int)(r.big >> 23);
    return r.big == 0 || big == 255 ? 0 : min(max(141 - big, -126), 126); // 14 - the exponent of the largest
}

// What the row is multiplied by; unscale gets what undoes it.
template <int MODE> __device__ __forceinline__ float scale_of(const row_range &r, float *unscale, int tid)
{
    const int e = scale_exponent(r);
    if (tid == 0 && Line<MODE>::SCALED)
        *unscale = __uint_as_float((unsigned)(127 - e) << 23);
    return __uint_as_float((unsigned)(127 + e) << 23);
}

// A row that begins at a multiple of four elements, by way of shared memory, where every thread keeps what it is to
// split: all of it is under way at once, by little code.
enum { MOST_TURNS = 16 };
template <int T, int MODE, i64 K, i64 LINES, class E> struct kept_row {
    enum {
        W = 4,
        PADDED = (int)LINES * Line<MODE>::ELEMENTS,
        TURNS = (PADDED + T * W - 1) / (T * W),
        FOUR = W * (int)sizeof(E),
        BYTES = TURNS * THREADS * FOUR
    };
    static __device__ __forceinline__ void fetch(unsigned kept, const E *row, int tid)
    {
#pragma unroll 1
        for (int i = 0; i < TURNS; ++i) {
            const int k = (i * T + tid) * W, bytes = k < K ? FOUR : 0; // 0 is put where there is nothing to copy
            const unsigned to = kept + i * (THREADS * FOUR);
            if constexpr (FOUR == 16)
                copy_async<false>(to, row + (k < K ? k : 0), bytes);
            else
                copy_eight_async(to, row + (k < K ? k : 0), bytes);
        }
    }
    static __device__ __forceinline__ void four(float (&v)[W], unsigned kept, int i)
    {
        if constexpr (FOUR == 16) {
            float4 q;
            shared_get(q, kept + i * (THREADS * FOUR));
            v[0] = q.x, v[1] = q.y, v[2] = q.z, v[3] = q.w;
        } else {
            uint2 q;
            shared_get(q, kept + i * (THREADS * FOUR));
            v[0] = E::low(q.x), v[1] = E::high(q.x), v[2] = E::low(q.y), v[3] = E::high(q.y);
        }
    }
    static __device__ __forceinline__ row_range split(unsigned kept, u8 *lines, float *unscale, int tid,
                                                      const x_columns &columns)
    {
        row_range range = {0, ~0u};
        if (Line<MODE>::SCALED) {
#pragma unroll 2
            for (int i = 0; i < TURNS; ++i) {
                float v[W];
                four(v, kept, i);
                if (columns.uneven())
                    columns.balance(v, min((i * T + tid) * W, PADDED - W));
                EACH range.put(v[w]);
            }
            range = join_row<T>(range);
        }
        const float scale = scale_of<MODE>(range, unscale, tid);
#pragma unroll 2
        for (int i = 0; i < TURNS; ++i) {
            const int k = (i * T + tid) * W;
            float v[W];
            four(v, kept, i);
            if (columns.uneven())
                columns.balance(v, min(k, PADDED - W));
            if (k < PADDED)
                put_four<MODE>(lines, LINE, k, v, scale);
        }
        return range;
    }
};

// One row by T threads into LINES lines, 0 after K elements; k stands `step` apart in `row`. Returns its range. fixed:
// a weight's, which is split once: by little code. known: four of its elements can be had at once, and step is 1. It
// stays in registers where it fits. columns: what balances it. pitch: bytes from one of the row's lines to the next.
template <int T, int MODE, i64 K, i64 LINES, bool fixed, bool known, class Columns, class E>
__device__ __forceinline__ row_range split_row(const E *row, i64 step, u8 *lines, float *unscale, int tid,
                                               const Columns &columns, const i64 pitch = LINE)
{
    constexpr int W = 4;
    constexpr bool SCALED = Line<MODE>::SCALED;
    constexpr i64 PADDED = LINES * Line<MODE>::ELEMENTS, TURNS = (PADDED + T * W - 1) / (T * W);
    constexpr int REGS = TURNS <= MOST_TURNS && !fixed ? (int)TURNS : 1;
    float v[REGS][W];
    const bool aligned = !fixed && K % W == 0 && (known || (step == 1 && ((size_t)row & (W * sizeof(E) - 1)) == 0));
    const auto take = [&](float (&to)[W], i64 k) {
        if (!fixed && step == 1 && k + W <= K)
            load<fixed, false>(to, row + k);
        else
            EACH to[w] = (K % W == 0 ? k : k + w) < K ? read<fixed>(row + (k + w) * step) : 0.0f;
        if (REGS != TURNS && columns.uneven())
            columns.balance(to, k);
    };
    const auto take_aligned = [&](float (&to)[W], i64 k) {
        if (k < K)
            load<fixed, true>(to, row + k);
        else
            EACH to[w] = 0.0f;
        if (REGS != TURNS && columns.uneven())
            columns.balance(to, k);
    };
    row_range range = {0, ~0u};
    if (REGS == TURNS) {
        if (aligned) { // no branch between two loads: all of them are under way at once
#pragma unroll
            for (int i = 0; i < REGS; ++i)
                take_aligned(v[i], ((i64)i * T + tid) * W);
        } else {
#pragma unroll
            for (int i = 0; i < REGS; ++i)
                take(v[i], ((i64)i * T + tid) * W);
        }
        if (columns.uneven()) {
#pragma unroll
            for (int i = 0; i < REGS; ++i)
                columns.balance(v[i], min(((i64)i * T + tid) * W, PADDED - W));
        }
    }
    if (SCALED) {
        if (REGS == TURNS) {
#pragma unroll
            for (int i = 0; i < REGS; ++i)
                EACH range.put(v[i][w]);
        } else {
#pragma unroll(fixed ? 1 : 4)
            for (i64 k = tid * W; k < K; k += T * W) {
                take(v[0], k);
                EACH range.put(v[0][w]);
            }
        }
        range = join_row<T>(range);
    }
    const float scale = scale_of<MODE>(range, unscale, tid);
    if (REGS == TURNS) {
#pragma unroll
        for (int i = 0; i < REGS; ++i) {
            const i64 k = ((i64)i * T + tid) * W;
            if (k < PADDED)
                put_four<MODE>(lines, pitch, k, v[i], scale);
        }
    } else if (aligned) {
#pragma unroll 8
        for (i64 k = tid * W; k < PADDED; k += T * W) {
            take_aligned(v[0], k);
            put_four<MODE>(lines, pitch, k, v[0], scale);
        }
    } else {
#pragma unroll(fixed ? 1 : 4)
        for (i64 k = tid * W; k < PADDED; k += T * W) {
            take(v[0], k);
            put_four<MODE>(lines, pitch, k, v[0], scale);
        }
    }
    return range;
}

// Row `row` of a product's x, by threads tid of G::SPLIT.
template <class G> __device__ __forceinline__ void split_x_row(const typename G::A &a, i64 row, i64 rows, int tid)
{
    const row_range range = split_row<G::SPLIT, G::MODE, G::K, G::LINES, false, G::X_ALIGNED>(
        G::x_row(a, row), 1, G::x_lines(a, row), G::x_scale(a, row), tid, x_columns{G::x_by(a)});
    if (G::MODE == MODE_FP32 && tid == 0 && is_beyond(range, a.redo.binades))
        flag_beyond(a.redo, row, rows);
}

// All rows of a product's x, by all blocks. The next ones are on their way through shared memory while one is split, as
// many as there is room for.
template <class G> __device__ __forceinline__ void split_x(const typename G::A &a)
{
    typedef kept_row<G::SPLIT, G::MODE, G::K, G::LINES, typename G::X> Kept;
    enum { T = G::SPLIT, ROWS = THREADS / T, FIT = G::ROOM / Kept::BYTES, DEEP = FIT < 4 ? FIT : 4 };
    const i64 rows = G::rows(a), step = (i64)gridDim.x * ROWS, begin = (i64)blockIdx.x * ROWS;
    const int tid = threadIdx.x % T;
    // whole warps: those past the end do the last row again
    const auto mine = [&](i64 first) { return min(first + (int)threadIdx.x / T, rows - 1); };
    if constexpr (G::X_ALIGNED && G::K % 4 == 0 && Kept::TURNS <= MOST_TURNS && DEEP > 0) {
        const unsigned kept = ((shared_address(raw) + 15) & ~15u) + threadIdx.x * Kept::FOUR;
        int at = 0, to = 0;
        i64 ahead = begin;
        const auto fetch = [&] {
            if (ahead < rows)
                Kept::fetch(kept + to * Kept::BYTES, G::x_row(a, mine(ahead)), tid);
            copy_commit();
            ahead += step, to = to + 1 == DEEP ? 0 : to + 1;
        };
        int lead = DEEP - 1; // so many are fetched before the first is split
#pragma unroll 1
        for (i64 first = begin; first < rows;) {
            fetch();
            if (--lead >= 0)
                continue;
            copy_wait<DEEP - 1>();
            const i64 row = mine(first);
            const row_range range = Kept::split(kept + at * Kept::BYTES, G::x_lines(a, row), G::x_scale(a, row), tid,
                                                x_columns{G::x_by(a)});
            if (G::MODE == MODE_FP32 && tid == 0 && is_beyond(range, a.redo.binades))
                flag_beyond(a.redo, row, rows);
            first += step, at = at + 1 == DEEP ? 0 : at + 1;
        }
        copy_wait_all();
    } else {
        for (i64 first = begin; first < rows; first += step)
            split_x_row<G>(a, mine(first), rows, tid);
    }
}
