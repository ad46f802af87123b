// SPDX-License-Identifier: Apache-2.0
// ---- group 0: linear+batch_norm+relu ----

// a [B, 1024] = rows of 1024 elements by linear.weight [1024, 1024] transposed
struct g0 {
    typedef Args A;
    enum { W = 4, STATS = 0, PRODUCTS = 1 };
    typedef no_stat First;
    struct Rest {
        __device__ __forceinline__ void begin() { }
        __device__ __forceinline__ void join_lanes(int lanes) { }
    };
    static __device__ __forceinline__ i64 rows(const Args &a) { return a.dim[0]; }
    static __device__ __forceinline__ i64 columns(const Args &a) { return 1024; }
    static __device__ __forceinline__ i64 depth(const Args &a) { return 1024; }
    enum { MODE = 0, SCALED = 1, N = 1024, LINES = 32, CHUNK = 2, SHORT = 0, SEVERAL = 0, BROUGHT = 1 };
    enum { PART = 64, LONG = 0 };
    static __device__ __forceinline__ const float *x_unscale(const Args &a) { return a.area1; }
    static __device__ __forceinline__ const float *w_unscale(const Args &a) { return a.scale[0]; }
    static __device__ __forceinline__ const float *vector(const Args &a, const int i, const i64 col) { return i == 0 ? a.scale[0] + col : i == 1 ? &*(a.prepared1 + col) : 0; }
    enum { VECTORS = 2 }; // the tail reads of each column
    enum { SPLIT = 32, K = 1024, X_ALIGNED = ALIGNED, ROOM = 196608 };
    typedef float X;
    static __device__ __forceinline__ const X *x_row(const Args &a, const i64 row) { return &*(a.in0 + row * 1024 + 0); }
    static __device__ __forceinline__ u8 *x_lines(const Args &a, const i64 row) { return (u8 *)a.area0 + row * (LINES * 128); }
    static __device__ __forceinline__ float *x_scale(const Args &a, const i64 row) { return a.area1 + row; }
    static __device__ __forceinline__ const float *x_by(const Args &a) { return a.redo.uneven ? a.scale[0] + 1032 : 0; }
    // phase 0: B x 1024
    template <int W>
    static __device__ __forceinline__ void element(const Args &a, const i64 row, const i64 rows, const bool here, const i64 col, float (&p)[W], Rest &rest)
    {
        float v0[W]; EACH v0[w] = p[w]; // product
        float v1[W]; load<true, true>(v1, a.prepared1 + col); // linear.bias [1024]
        float v2[W]; EACH v2[w] = op_add(v0[w], v1[w], 1.0f); // a
        if (here) store<false>(a.area4 + row * 1024 + col, v2); // for the columns' moments
        store_if<ALIGNED>(here, a.out0 + row * 1024 + col, v2); // a
    }
    static __device__ __forceinline__ void end(const Args &a, const i64 row, const int tile, const int tiles, const First &first, const Rest &rest)
    {
    }
    enum { HELD = 0, WAITS = 0, RUN = 0 }; // goes on with what is in registers; for whole rows' statistics; columns of a segment
};

// x into lines of 128 bytes
__device__ __forceinline__ void g0_split(const Args &a)
{
    split_x<g0>(a);
    written_to_copied();
}

__device__ __forceinline__ void g0_product(const Args &a, const Control &c, const TensorMap *x, const TensorMap *w)
{
    tensor_product<g0, Pairs>(a, c, x, w);
}

// moments of each column, for b
__device__ __forceinline__ void g0_column_blocks0(const Args &a)
{
    column_blocks<moments_stat>(a.area4, a.dim[0], 1024, a.area5);
}

__device__ __forceinline__ void g0_column_end0(const Args &a)
{
    column_end<moments_stat>(a.area5, a.dim[0], 1024, a.area2, a.area3);
}

// A row through phases 1 to 1.
__device__ __forceinline__ void g0_rows1_row(const Args &a, const i64 row, const i64 rows, const int tid)
{
    enum { T = 32 };
    // phase 1: B x 1024
#pragma unroll 4
    for (i64 col = tid * 4; col < 1024; col += T * 4) {
        enum { W = 4 };
        float v0[W]; load<false, ALIGNED>(v0, a.out0 + row * 1024 + col); // a
        float v1[W]; load<false, true>(v1, a.area2 + col); // moments of b
        float v2[W]; load<false, true>(v2, a.area3 + col); // moments of b
        float v3[W]; EACH v3[w] = op_batch_norm(v0[w], v1[w], v2[w], 9.99999975e-06f); // b
        float v4[W]; load<true, true>(v4, a.prepared4 + col); // norm.weight [1024]
        float v5[W]; EACH v5[w] = op_mul(v3[w], v4[w]); // b
        float v6[W]; load<true, true>(v6, a.prepared5 + col); // norm.bias [1024]
        float v7[W]; EACH v7[w] = op_add(v5[w], v6[w], 1.0f); // b
        float v8[W]; EACH v8[w] = op_relu(v7[w]); // c
        store<ALIGNED>(a.out0 + row * 1024 + col, v8); // c [B, 1024]
    }
    row_sync<T>();
}

__device__ __forceinline__ void g0_rows1(const Args &a)
{
    enum { T = 32, ROWS = THREADS / T };
    const i64 rows = a.dim[0];
    for (i64 row = (i64)blockIdx.x * ROWS + threadIdx.x / T; row < rows; row += (i64)gridDim.x * ROWS)
        g0_rows1_row(a, row, rows, threadIdx.x % T);
}

} // namespace fused

namespace full_range {

struct Args {
    const float *in0;            // x [B, 1024]
    const float *prepared0;      // linear.weight [1024, 1024]
    const float *prepared1;      // linear.bias [1024]
    const float *prepared2;      // norm.running_mean [1024]
    const float *prepared3;      // norm.running_var [1024]
    const float *prepared4;      // norm.weight [1024]
    const float *prepared5;      // norm.bias [1024]
    const double *narrow[1];     // by product: of few columns, its weight and then its bias
    const float *scale[1];       // by product: what undoes the scaling of a weight's rows
    float *out0;                 // c [B, 1024]
    i64 out_each[1];             // elements of each row of the batch
    float *area0;
    float *area1;
    float *area2;
    float *area3;
    i64 dim[1];                  // B
    Redo redo;
};

// ---- group 0: linear+batch_norm+relu ----

// a [B, 1024] = rows of 1024 elements by linear.weight [1024, 1024] transposed
struct g0 {
    typedef Args A;
    enum { W = 1, STATS = 0, PRODUCTS = 1 };
    typedef no_stat First;
    struct Rest {
        __device__ __forceinline__ void begin() { }
        __device__ __forceinline__ void join_lanes(int lanes) { }
    };
    static __device__ __forceinline__ i64 rows(const Args &a) { return a.dim[0]; }
    static __device__ __forceinline__ i64 columns(const Args &a) { return 1024; }
    static __device__ __forceinline__ i64 depth(const Args &a) { return 1024; }
    static __device__ __forceinline__ float x(const Args &a, i64 row, i64 k) { return *(a.in0 + row * 1024 + k); }
    static __device__ __forceinline__ float weight(const Args &a, int product, i64 n, i64 k)
    {
        return read<true>(a.prepared0 + n * 1024 + k); // linear.weight [1024, 1024]
    }
    static __device__ __forceinline__ bool weight_is_kn(int product) { return false; }
    // phase 0: B x 1024
    template <int W>
    static __device__ __forceinline__ void element(const Args &a, const i64 row, const i64 rows, const bool here, const i64 col, float (&p)[W], Rest &rest)
    {
        float v0[W]; EACH v0[w] = p[w]; // product
        float v1[W]; load<true, true>(v1, a.prepared1 + col); // linear.bias [1024]
        float v2[W]; EACH v2[w] = op_add(v0[w], v1[w], 1.0f); // a
        if (here) store<false>(a.area2 + row * 1024 + col, v2); // for the columns' moments
        if (here) { store_out(a.redo, a.out0, 0 + row * 1024 + col, a.out_each[0], v2); } // a
    }
    static __device__ __forceinline__ void end(const Args &a, const i64 row, const int tile, const int tiles, const First &first, const Rest &rest)
    {
    }
};

__device__ __forceinline__ void g0_product(const Args &a)
{
    plain_product<g0, 4, true>(a);
}

// moments of each column, for b
__device__ __forceinline__ void g0_column_blocks0(const Args &a)
{
    column_blocks<moments_stat>(a.area2, a.dim[0], 1024, a.area3);
}

__device__ __forceinline__ void g0_column_end0(const Args &a)
{
    column_end<moments_stat>(a.area3, a.dim[0], 1024, a.area0, a.area1);
}

// A row through phases 1 to 1.
__device__ __forceinline__ void g0_rows1_row(const Args &a, const i64 row, const i64 rows, const int tid)
{
    enum { T = 32 };
    // phase 1: B x 1024
#pragma unroll 1
    for (i64 col = tid * 1; col < 1024; col += T * 1) {
        enum { W = 1 };
        float v0[W]; load<false, ALIGNED>(v0, a.out0 + row * 1024 + col); // a
        float v1[W]; load<false, true>(v1, a.area0 + col); // moments of b
        float v2[W]; load<false, true>(v2, a.area1 + col); // moments of b
        float v3[W]; EACH v3[w] = op_batch_norm(v0[w], v1[w], v2[w], 9.99999975e-06f); // b
        float v4[W]; load<true, true>(v4, a.prepared4 + col); // norm.weight [1024]
        float v5[W]; EACH v5[w] = op_mul(v3[w], v4[w]); // b
        float v6[W]; load<true, true>(v6, a.prepared5 + col); // norm.bias [1024]
        float v7[W]; EACH v7[w] = op_add(v5[w], v6[w], 1.0f); // b
        float v8[W]; EACH v8[w] = op_relu(v7[w]); // c
        store_out(a.redo, a.out0, 0 + row * 1024 + col, a.out_each[0], v8); // c [B, 1024]
    }
    row_sync<T>();
}

__device__ __forceinline__ void g0_rows1(const Args &a)
{
    enum { T = 32, ROWS = THREADS / T };
    const i64 rows = a.dim[0];
    for (i64 row = (i64)blockIdx.x * ROWS + threadIdx.x / T; row < rows; row += (i64)gridDim.x * ROWS)
        if (!left_out(a.redo, row, rows))
            g0_rows1_row(a, row, rows, threadIdx.x % T);
}

} // namespace full_range

extern "C" __global__ void __launch_bounds__(THREADS) find_weight_columns(const float *from, i64 row_step, i64 step, i64 rows, i64 columns, unsigned *most)
{
    find_columns(from, row_step, step, rows, columns, most);
}

extern "C" __global__ void __launch_bounds__(THREADS) g0_split_weight(const float *from, i64 row_step, i64 step, i64 rows, u8 *to, float *unscale, float *by, const unsigned *most, unsigned *found, unsigned *unseen)
{
    split_weight<32, 0, 1024, 32>(from, row_step, step, rows, to, unscale, by, most, found, unseen);
}

__device__ __noinline__ void redo_full_range(const full_range::Args &full_range, const Control &c)
{
#pragma unroll 1
    for (int stage = 0; stage <= 4; ++stage) {
        grid_sync(c);
        if (stage == 0)
            full_range::g0_product(full_range);
        if (stage == 1)
            full_range::g0_column_blocks0(full_range);
        if (stage == 2)
            full_range::g0_column_end0(full_range);
        if (stage == 3)
            full_range::g0_rows1(full_range);
    }
    if (blockIdx.x == 0) {
        const i64 rows = clear_flags(c.beyond, c.beyond_any, c.batch);
        (void)rows;
    }
}

struct Maps {
    TensorMap map[2];
};

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)
program(const __grid_constant__ Maps maps, const __grid_constant__ Control c, const __grid_constant__ fused::Args fused, const __grid_constant__ full_range::Args full_range)
{
    fused::g0_split(fused);
    grid_sync(c);
    fused::g0_product(fused, c, &maps.map[0], &maps.map[1]);
    grid_sync(c);
    fused::g0_column_blocks0(fused);
    grid_sync(c);
    fused::g0_column_end0(fused);
    grid_sync(c);
    fused::g0_rows1(fused);
    if (any_set(c.beyond_any))
        redo_full_range(full_range, c);
}
