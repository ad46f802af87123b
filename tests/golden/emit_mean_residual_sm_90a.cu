// SPDX-License-Identifier: Apache-2.0
// ---- group 0: linear+gelu+add ----

// A row through phases 0 to 1.
__device__ __forceinline__ void g0_rows0_row(const Args &a, const i64 row, const i64 rows, const int tid, const float (&regs)[8][4], const narrow_column<256, 8192, 8> &column, const Control &c, unsigned &arrived)
{
    enum { T = 256 };
    // phase 0: B x 1
    // product of 1 columns, in double precision: v5 [1, 8192]
    const float *const product = register_product<T, 1, 8192>(regs, a.narrow[0], tid, column);
#pragma unroll 4
    for (i64 col = tid * 1; col < 1; col += T * 1) {
        enum { W = 1 };
        float v0[W]; EACH v0[w] = product[col + w]; // product
        float v1[W]; EACH v1[w] = op_gelu(v0[w], 0.0f); // e
        watch(a.redo, row, rows, v0);
        EACH { const float one[1] = {v1[w]}; store<false>(block_kept(0), one); } // e
    }
    row_sync<T>();
    if (tid == 0 && row + gridDim.x >= rows) // nothing is flagged by this block any more
        arrived = grid_arrive(c);
    // phase 1: B x 8192
    const float u1_0 = read<false>(block_kept(0));
#pragma unroll
    for (int turn = 0; turn < 8; ++turn) {
        const i64 col = (turn * T + tid) * 4;
        enum { W = 4 };
        float v0[W]; EACH v0[w] = u1_0; // e
        float v1[W]; EACH v1[w] = regs[turn][w]; // x [B, 8192]
        float v2[W]; EACH v2[w] = op_add(v0[w], v1[w], 1.0f); // f
        store<ALIGNED>(a.out0 + row * 8192 + col, v2); // f [B, 8192]
    }
    row_sync<T>();
}

__device__ __forceinline__ void g0_rows0(const Args &a, const Control &c, unsigned &arrived)
{
    enum { T = 256 };
    const i64 rows = a.dim[0];
    narrow_column<T, 8192, 8> column;
    rows_by_ring<T, 8, 2>(
        rows, [&](const i64 row) { return &*(a.in0 + row * 8192 + 0); },
        [&] { column.load(a.narrow[0], threadIdx.x % T); },
        [&](const i64 row, const float (&regs)[8][4]) { g0_rows0_row(a, row, rows, threadIdx.x % T, regs, column, c, arrived); });
    if (threadIdx.x == 0 && blockIdx.x >= rows)
        arrived = grid_arrive(c);
}

} // namespace fused

namespace as_written {

struct Args {
    const float *in0;            // x [B, 8192]
    const float *prepared0;      // linear.weight [8192, 8192]
    const float *prepared1;      // linear.bias [8192]
    const float *prepared2;      // subtract [8192]
    const double *narrow[1];     // by product: of few columns, its weight and then its bias
    const float *scale[1];       // by product: what undoes the scaling of a weight's rows
    float *out0;                 // f [B, 8192]
    i64 out_each[1];             // elements of each row of the batch
    float *area0;
    float *area1;
    i64 dim[1];                  // B
    Redo redo;
};

// ---- group 0: linear+sub+mean+add+gelu+add ----

// a [B, 8192] = rows of 8192 elements by linear.weight [8192, 8192] transposed
struct g0 {
    typedef Args A;
    enum { W = 1, STATS = 1, PRODUCTS = 1 };
    typedef mean_stat<float> First;
    struct Rest {
        __device__ __forceinline__ void begin() { }
        __device__ __forceinline__ void join_lanes(int lanes) { }
    };
    static __device__ __forceinline__ i64 rows(const Args &a) { return a.dim[0]; }
    static __device__ __forceinline__ i64 columns(const Args &a) { return 8192; }
    static __device__ __forceinline__ i64 depth(const Args &a) { return 8192; }
    static __device__ __forceinline__ float x(const Args &a, i64 row, i64 k) { return *(a.in0 + row * 8192 + k); }
    static __device__ __forceinline__ float weight(const Args &a, int product, i64 n, i64 k)
    {
        return read<true>(a.prepared0 + n * 8192 + k); // linear.weight [8192, 8192]
    }
    static __device__ __forceinline__ bool weight_is_kn(int product) { return false; }
    // phase 0: B x 8192
    template <int W>
    static __device__ __forceinline__ void element(const Args &a, const i64 row, const i64 rows, const bool here, const i64 col, float (&p)[W], Rest &rest)
    {
        float v0[W]; EACH v0[w] = p[w]; // product
        float v1[W]; load<true, true>(v1, a.prepared1 + col); // linear.bias [8192]
        float v2[W]; EACH v2[w] = op_add(v0[w], v1[w], 1.0f); // a
        float v3[W]; load<true, true>(v3, a.prepared2 + col); // subtract [8192]
        float v4[W]; EACH v4[w] = op_sub(v2[w], v3[w], 1.0f); // b
        EACH p[w] = v4[w]; // for the mean of the row
    }
    static __device__ __forceinline__ void end(const Args &a, const i64 row, const int tile, const int tiles, const First &first, const Rest &rest)
    {
        first.set(a.area1 + (row * tiles + tile) * 1);
    }
};

__device__ __forceinline__ void g0_product(const Args &a)
{
    plain_product<g0, 4, true>(a);
}

// A row through phases 1 to 2.
__device__ __forceinline__ void g0_rows1_row(const Args &a, const i64 row, const i64 rows, const int tid)
{
    enum { T = 128 };
    // mean for c
    float stat0[1];
    partials<mean_stat>::of<true>(a.area1 + row * ((8192 + 127) / 128 * 1), (int)((8192 + 127) / 128)).finish((double)8192, stat0);
    // phase 1: B x 1
#pragma unroll 1
    for (i64 col = tid * 1; col < 1; col += T * 1) {
        enum { W = 1 };
        float v0[W]; EACH v0[w] = stat0[0]; // mean of c
        float v1[W]; EACH v1[w] = 0.0f;
        float v2[W]; EACH v2[w] = op_add(v0[w], v1[w], 1.0f); // d
        float v3[W]; EACH v3[w] = op_gelu(v2[w], 0.0f); // e
        EACH { const float one[1] = {v3[w]}; store<false>(a.area0 + row, one); } // e
    }
    row_sync<T>();
    // phase 2: B x 8192
    const float u2_0 = read<false>(a.area0 + row);
#pragma unroll 1
    for (i64 col = tid * 1; col < 8192; col += T * 1) {
        enum { W = 1 };
        float v0[W]; EACH v0[w] = u2_0; // e
        float v1[W]; load<true, ALIGNED>(v1, a.in0 + row * 8192 + col); // x [B, 8192]
        float v2[W]; EACH v2[w] = op_add(v0[w], v1[w], 1.0f); // f
        store_out(a.redo, a.out0, 0 + row * 8192 + col, a.out_each[0], v2); // f [B, 8192]
    }
    row_sync<T>();
}

__device__ __forceinline__ void g0_rows1(const Args &a)
{
    enum { T = 128, ROWS = THREADS / T };
    const i64 rows = a.dim[0];
    for (i64 row = (i64)blockIdx.x * ROWS + threadIdx.x / T; row < rows; row += (i64)gridDim.x * ROWS)
        if (!left_out(a.redo, row, rows))
            g0_rows1_row(a, row, rows, threadIdx.x % T);
}

} // namespace as_written

__device__ __noinline__ void redo_as_written(const as_written::Args &as_written, const Control &c)
{
#pragma unroll 1
    for (int stage = 0; stage <= 2; ++stage) {
        grid_sync(c);
        if (stage == 0)
            as_written::g0_product(as_written);
        if (stage == 1)
            as_written::g0_rows1(as_written);
    }
    if (blockIdx.x == 0) {
        const i64 rows = clear_flags(c.watched, c.watched_any, c.batch);
        if (threadIdx.x == 0)
            *c.redone = rows;
    }
}

extern "C" __global__ void __launch_bounds__(256, 2)
program(const __grid_constant__ Control c, const __grid_constant__ fused::Args fused, const __grid_constant__ as_written::Args as_written)
{
    unsigned arrived = 0;
    fused::g0_rows0(fused, c, arrived);
    if (any_watched(c, arrived))
        redo_as_written(as_written, c);
    else if (blockIdx.x == 0 && threadIdx.x == 0)
        *c.redone = 0;
}
