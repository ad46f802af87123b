// SPDX-License-Identifier: Apache-2.0
// ---- group 0: layer_norm+linear+silu+add ----

// A row through phases 0 to 1.
__device__ __forceinline__ void g0_rows0_row(const Args &a, const i64 row, const i64 rows, const int tid)
{
    enum { T = 32 };
    // phase 0: B*S x 1024
    fold<moments_stat> fold0;
#pragma unroll 4
    for (i64 col = tid * 4; col < 1024; col += T * 4) {
        enum { W = 4 };
        float v0[W]; load<true, ALIGNED>(v0, a.in0 + row * 1024 + col); // x [B, S, 1024]
        EACH fold0.put(v0[w]);
    }
    row_sync<T>();
    // moments for a
    float stat0[2];
    join_row<T>(fold0.total()).finish((double)1024, stat0);
    // phase 1: B*S x 1024
#pragma unroll 4
    for (i64 col = tid * 4; col < 1024; col += T * 4) {
        enum { W = 4 };
        float v0[W]; load<true, ALIGNED>(v0, a.in0 + row * 1024 + col); // x [B, S, 1024]
        float v1[W]; EACH v1[w] = stat0[0]; // moments of a
        float v2[W]; EACH v2[w] = stat0[1]; // moments of a
        float v3[W]; EACH v3[w] = op_layer_norm(v0[w], v1[w], v2[w], 9.99999997e-07f); // a
        float v4[W]; load<true, true>(v4, a.prepared0 + col); // norm.weight [1024]
        float v5[W]; EACH v5[w] = op_mul(v3[w], v4[w]); // a
        float v6[W]; load<true, true>(v6, a.prepared1 + col); // norm.bias [1024]
        float v7[W]; EACH v7[w] = op_add(v5[w], v6[w], 1.0f); // a
        store<true>(a.area0 + row * 1024 + col, v7); // a
    }
    row_sync<T>();
}

__device__ __forceinline__ void g0_rows0(const Args &a)
{
    enum { T = 32, ROWS = THREADS / T };
    const i64 rows = (a.dim[0] * a.dim[1]);
    for (i64 row = (i64)blockIdx.x * ROWS + threadIdx.x / T; row < rows; row += (i64)gridDim.x * ROWS)
        g0_rows0_row(a, row, rows, threadIdx.x % T);
}

// b [B, S, 1024] = rows of 1024 elements by linear.weight [1024, 1024] transposed
struct g0 {
    typedef Args A;
    enum { W = 4, STATS = 0, PRODUCTS = 1 };
    typedef no_stat First;
    struct Rest {
        __device__ __forceinline__ void begin() { }
        __device__ __forceinline__ void join_lanes(int lanes) { }
    };
    static __device__ __forceinline__ i64 rows(const Args &a) { return (a.dim[0] * a.dim[1]); }
    static __device__ __forceinline__ i64 columns(const Args &a) { return 1024; }
    static __device__ __forceinline__ i64 depth(const Args &a) { return 1024; }
    static __device__ __forceinline__ float x(const Args &a, i64 row, i64 k) { return *(a.area0 + row * 1024 + k); }
    static __device__ __forceinline__ float weight(const Args &a, int product, i64 n, i64 k)
    {
        return read<true>(a.prepared2 + n * 1024 + k); // linear.weight [1024, 1024]
    }
    static __device__ __forceinline__ bool weight_is_kn(int product) { return false; }
    // phase 2: B*S x 1024
    template <int W>
    static __device__ __forceinline__ void element(const Args &a, const i64 row, const i64 rows, const bool here, const i64 col, float (&p)[W], Rest &rest)
    {
        float v0[W]; EACH v0[w] = p[w]; // product
        float v1[W]; load<true, true>(v1, a.prepared3 + col); // linear.bias [1024]
        float v2[W]; EACH v2[w] = op_add(v0[w], v1[w], 1.0f); // b
        float v3[W]; EACH v3[w] = op_silu(v2[w]); // c
        float v4[W]; load<true, ALIGNED>(v4, a.in0 + row * 1024 + col); // x [B, S, 1024]
        float v5[W]; EACH v5[w] = op_add(v4[w], v3[w], 1.0f); // d
        store_if<ALIGNED>(here, a.out0 + row * 1024 + col, v5); // d [B, S, 1024]
    }
    static __device__ __forceinline__ void end(const Args &a, const i64 row, const int tile, const int tiles, const First &first, const Rest &rest)
    {
    }
};

__device__ __forceinline__ void g0_product(const Args &a)
{
    plain_product<g0, 8, false>(a);
}

} // namespace fused

extern "C" __global__ void __launch_bounds__(256, 1)
program(const __grid_constant__ Control c, const __grid_constant__ fused::Args fused)
{
    fused::g0_rows0(fused);
    grid_sync(c);
    fused::g0_product(fused);
}
