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
        store_if<ALIGNED>(here, a.out0 + row * 1024 + col, v2); // a
    }
    static __device__ __forceinline__ void end(const Args &a, const i64 row, const int tile, const int tiles, const First &first, const Rest &rest)
    {
    }
};

__device__ __forceinline__ void g0_product(const Args &a)
{
    plain_product<g0, 8, false>(a);
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
#pragma unroll 4
    for (i64 col = tid * 4; col < 1024; col += T * 4) {
        enum { W = 4 };
        float v0[W]; load<false, ALIGNED>(v0, a.out0 + row * 1024 + col); // a
        float v1[W]; load<false, true>(v1, a.area0 + col); // moments of b
        float v2[W]; load<false, true>(v2, a.area1 + col); // moments of b
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

extern "C" __global__ void __launch_bounds__(256, 1)
program(const __grid_constant__ Control c, const __grid_constant__ fused::Args fused)
{
    fused::g0_product(fused);
    grid_sync(c);
    fused::g0_column_blocks0(fused);
    grid_sync(c);
    fused::g0_column_end0(fused);
    grid_sync(c);
    fused::g0_rows1(fused);
}
