// SPDX-License-Identifier: Apache-2.0
// Weights, when they are prepared for products on tensor cores.
//
// In fp32 mode an operand's row has an error of at most 2^-39 of its largest element in every other (text/split.cu). In
// a sum that is less than f32's own rounding, unless what is multiplied by the large elements is so small that only
// small ones count. Two things see to that:
//   - Columns are balanced: one whose largest element is small is multiplied by a power of two, and x's element by what
//     undoes it. What is large in x then counts in some output.
//   - A weight says whether it is dense: nearly every output has a weight of some size for nearly every element of x.
//     If so, what is large in x counts nearly everywhere, and small elements of x or of the weight may vanish. If not
//     (most of it is 0, say, or it is diagonal), outputs may hang on small elements alone, and rows of x with a wide
//     range are done on the ordinary units.
// So the error of a row of outputs, taken together, is within what f32's may be, whatever x and the weight are. (f32's
// is less where large elements of x cancel exactly.) It is not so of every single output: one may lose digits if it
// hangs on small elements of x alone, where the weight is dense because it is one of the few that do not see the large
// ones, where it is not because these are between 2^-17 and 2^-BINADES of the row's largest.
enum { EVEN = 4, MOST_UP = 100 }; // a column may be 2^-EVEN of the largest; 2^MOST_UP is the most it is multiplied by
enum { SEEN = 12, FEW_UNSEEN = 8 }; // 2^-SEEN of a row's largest is a weight of some size; one of 8 may be less
// Where a weight is not dense, 2^-BINADES of a row's largest element is the least that another of x's, or of its own,
// may be. These and the next are cuda/tensor.c's too.
enum { BINADES = 36, ANY_BINADES = 1 << 10 };
enum { IS_BEYOND = 1, HAS_SMALL = 2, HAS_UNSEEN = 4, IS_UNEVEN = 8 }; // of found

__device__ __forceinline__ unsigned magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// The largest magnitude of each column, as bits, and after them that of all. A thread has a column at a time; blocks
// that stand behind one another share its rows.
template <class E>
__device__ __forceinline__ void find_columns(const E *from, i64 row_step, i64 step, i64 rows, i64 columns,
                                             unsigned *most)
{
    unsigned all = 0;
    for (i64 k = (i64)blockIdx.x * THREADS + threadIdx.x; k < columns; k += (i64)gridDim.x * THREADS) {
        unsigned big = 0;
#pragma unroll 4
        for (i64 row = blockIdx.y; row < rows; row += gridDim.y)
            big = max(big, magnitude(read<true>(from + row * row_step + k * step)));
        atomicMax(most + k, big);
        all = max(all, big);
    }
    all = __reduce_max_sync(~0u, all);
    if (threadIdx.x % 32 == 0)
        atomicMax(most + columns, all);
}

// What balances a weight's columns.
template <i64 K> struct weight_columns {
    const unsigned *most; // of find_columns
    __device__ __forceinline__ bool uneven() const { return true; }
    // Column k is multiplied by 2^up(k).
    __device__ __forceinline__ int up(i64 k) const
    {
        const int above = (int)(most[K] >> 23) - max((int)(most[k] >> 23), 1);
        return above <= EVEN ? 0 : min(above, MOST_UP);
    }
    // What x's element is multiplied by: 0 where all of the column is 0, and it does not matter.
    __device__ __forceinline__ float of_x(i64 k) const
    {
        return k >= K || most[K] == 0 ? 1.0f : most[k] == 0 ? 0.0f : __uint_as_float((unsigned)(127 - up(k)) << 23);
    }
    __device__ __forceinline__ float balanced(float v, i64 k) const
    {
        return v * __uint_as_float((unsigned)(127 + up(k)) << 23);
    }
    __device__ __forceinline__ void balance(float (&v)[4], i64 k) const
    {
        constexpr int W = 4;
        EACH v[w] = k + w < K ? balanced(v[w], k + w) : 0.0f;
    }
};

// Of a row, among columns that are not all 0.
struct row_counts {
    unsigned all, unseen;
    __device__ __forceinline__ void join(const row_counts &t) { all += t.all, unseen += t.unseen; }
    __device__ __forceinline__ row_counts shuffled(int lanes) const
    {
        return {__shfl_xor_sync(~0u, all, lanes), __shfl_xor_sync(~0u, unseen, lanes)};
    }
};

// A row of a weight, by T threads: is it dense, for its part? Where it is, each column that it has no weight of some
// size for counts that in `unseen`. here: it is not a row that others look at too.
template <int T, i64 K, class E>
__device__ __forceinline__ void look_at_row(const E *row, i64 step, const row_range &range, int tid, bool here,
                                            const weight_columns<K> &columns, unsigned *found, unsigned *unseen)
{
    const auto is_unseen = [&](i64 k) {
        const int own = (int)(magnitude(columns.balanced(read<true>(row + k * step), k)) >> 23);
        return range.big != 0 && columns.most[k] != 0 && own < (int)(range.big >> 23) - SEEN;
    };
    row_counts counts = {0, 0};
#pragma unroll 1
    for (i64 k = tid; k < K; k += T)
        counts.join({columns.most[k] != 0, is_unseen(k)});
    counts = join_row<T>(counts);
    const bool dense = (i64)counts.unseen * FEW_UNSEEN <= counts.all;
    if (here && dense && counts.unseen != 0) {
#pragma unroll 1
        for (i64 k = tid; k < K; k += T)
            if (is_unseen(k))
                atomicAdd(unseen + k, 1u);
    }
    if (here && tid == 0 && range.big != 0)
        atomicAdd(found + 1, 1u);
    const unsigned is = (is_beyond(range, ANY_BINADES) ? IS_BEYOND : 0) |
                        (is_beyond(range, BINADES) ? HAS_SMALL : 0) | (dense ? 0 : HAS_UNSEEN);
    if (here && tid == 0 && is)
        atomicOr(found, is);
}

// [rows] of K elements, element k of row r at from[r * row_step + k * step], into [LINES][rows]: what is copied at a
// time, a line of some neighbouring rows, lies in one piece, and blocks that go through their lines in step read one
// stretch of memory together. by: what x's elements are to be multiplied by. found: flags, and how many rows are not 0;
// it and unseen are 0 before the first of WEIGHTS, whose rows come by turns, BY_TURNS of each: they are as one weight
// here.
template <int T, int MODE, i64 K, i64 LINES, int WEIGHTS = 1, class E>
__device__ __forceinline__ void split_weight(const E *from, i64 row_step, i64 step, i64 rows, u8 *to,
                                             float *unscale, float *by, const unsigned *most, unsigned *found,
                                             unsigned *unseen)
{
    const weight_columns<K> columns = {most};
    const i64 pitch = WEIGHTS == 1 ? rows * LINE : (rows + BY_TURNS - 1) / BY_TURNS * (BY_TURNS * WEIGHTS * LINE);
    for (i64 first = (i64)blockIdx.x * (THREADS / T); first < rows; first += (i64)gridDim.x * (THREADS / T)) {
        const i64 row = min(first + threadIdx.x / T, rows - 1); // whole warps: those past the end do the last row again
        const E *const at = from + row * row_step;
        const int tid = threadIdx.x % T;
        const i64 place = row + row / BY_TURNS * (BY_TURNS * (WEIGHTS - 1));
        if constexpr (MODE == MODE_FP32) {
            const row_range range = split_row<T, MODE, K, LINES, true, false>(
                at, step, to + place * LINE, unscale + place, tid, columns, pitch);
            look_at_row<T, K>(at, step, range, tid, first + threadIdx.x / T < rows, columns, found, unseen);
        } else {
            split_row<T, MODE, K, LINES, true, false>(at, step, to + place * LINE, unscale + place, tid, x_columns{0},
                                                      pitch);
        }
    }
    if (MODE == MODE_FP32 && blockIdx.x == 0) {
#pragma unroll 1
        for (i64 k = threadIdx.x; k < LINES * Line<MODE>::ELEMENTS; k += THREADS) {
            by[k] = columns.of_x(k);
            if (by[k] != 1.0f)
                atomicOr(found, IS_UNEVEN);
        }
    }
}
