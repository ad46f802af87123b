// SPDX-License-Identifier: Apache-2.0
// ---- group 0: linear+gelu+softmax ----

// a [B, 8192] = rows of 8192 elements by linear.weight [8192, 8192] transposed
struct g0 {
    typedef Args A;
    enum { W = 4, STATS = 1, PRODUCTS = 1 };
    typedef maxsumexp_stat<float> First;
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
        float v3[W]; EACH v3[w] = op_gelu(v2[w], 0.0f); // b
        store_if<true>(here, a.area0 + row * 8192 + col, v3); // b
        EACH p[w] = v3[w]; // for the maxsumexp of the row
    }
    static __device__ __forceinline__ void end(const Args &a, const i64 row, const int tile, const int tiles, const First &first, const Rest &rest)
    {
        first.set(a.area1 + (row * tiles + tile) * 2);
    }
};

__device__ __forceinline__ void g0_product(const Args &a)
{
    plain_product<g0, 8, false>(a);
}

// A row through phases 1 to 1.
__device__ __forceinline__ void g0_rows1_row(const Args &a, const i64 row, const i64 rows, const int tid)
{
    enum { T = 128 };
    // maxsumexp for c
    float stat0[2];
    partials<maxsumexp_stat>::of<false>(a.area1 + row * ((8192 + 127) / 128 * 2), (int)((8192 + 127) / 128)).finish((double)8192, stat0);
    // phase 1: B x 8192
#pragma unroll 4
    for (i64 col = tid * 4; col < 8192; col += T * 4) {
        enum { W = 4 };
        float v0[W]; load<false, true>(v0, a.area0 + row * 8192 + col); // b
        float v1[W]; EACH v1[w] = stat0[0]; // maxsumexp of c
        float v2[W]; EACH v2[w] = stat0[1]; // maxsumexp of c
        float v3[W]; EACH v3[w] = op_softmax(v0[w], v1[w], v2[w]); // c
        store<ALIGNED>(a.out0 + row * 8192 + col, v3); // c [B, 8192]
    }
    row_sync<T>();
}

__device__ __forceinline__ void g0_rows1(const Args &a)
{
    enum { T = 128, ROWS = THREADS / T };
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
    fused::g0_rows1(fused);
}
