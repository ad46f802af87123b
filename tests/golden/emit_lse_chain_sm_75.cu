// SPDX-License-Identifier: Apache-2.0
// ---- group 0: linear+logsumexp+leaky_relu+gelu*2 ----

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
        EACH p[w] = v2[w]; // for the maxsumexp of the row
    }
    static __device__ __forceinline__ void end(const Args &a, const i64 row, const int tile, const int tiles, const First &first, const Rest &rest)
    {
        first.set(a.area0 + (row * tiles + tile) * 2);
    }
};

__device__ __forceinline__ void g0_product(const Args &a)
{
    plain_product<g0, 8, false>(a);
}

// A row through phases 1 to 1.
__device__ __forceinline__ void g0_rows1_row(const Args &a, const i64 row, const i64 rows, const int tid)
{
    enum { T = 4 };
    // maxsumexp for b
    float stat0[2];
    partials<maxsumexp_stat>::of<false>(a.area0 + row * ((8192 + 127) / 128 * 2), (int)((8192 + 127) / 128)).finish((double)8192, stat0);
    // phase 1: B x 1
#pragma unroll 4
    for (i64 col = tid * 1; col < 1; col += T * 1) {
        enum { W = 1 };
        float v0[W]; EACH v0[w] = stat0[0]; // maxsumexp of b
        float v1[W]; EACH v1[w] = stat0[1]; // maxsumexp of b
        float v2[W]; EACH v2[w] = op_logsumexp(v0[w], v1[w]); // b
        float v3[W]; EACH v3[w] = op_leaky_relu(v2[w], 9.99999975e-05f); // d
        float v4[W]; EACH v4[w] = op_gelu(v3[w], 0.0f); // e
        float v5[W]; EACH v5[w] = op_gelu(v4[w], 0.0f); // f
        EACH { const float one[1] = {v5[w]}; store<false>(a.out0 + row, one); } // f [B, 1]
    }
    row_sync<T>();
}

__device__ __forceinline__ void g0_rows1(const Args &a)
{
    enum { T = 4, ROWS = THREADS / T };
    const i64 rows = a.dim[0];
    for (i64 first = (i64)blockIdx.x * ROWS; first < rows; first += (i64)gridDim.x * ROWS)
        g0_rows1_row(a, min(first + threadIdx.x / T, rows - 1), rows, threadIdx.x % T); // whole warps: those past the end do the last row again
}

} // namespace fused

extern "C" __global__ void __launch_bounds__(256, 1)
program(const __grid_constant__ Control c, const __grid_constant__ fused::Args fused)
{
    fused::g0_product(fused);
    grid_sync(c);
    fused::g0_rows1(fused);
}
