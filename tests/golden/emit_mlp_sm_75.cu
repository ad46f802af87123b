// SPDX-License-Identifier: Apache-2.0
// ---- group 0: linear+gelu ----

// a [B, 256] = rows of 784 elements by hidden.weight [256, 784] transposed
struct g0 {
    typedef Args A;
    enum { W = 4, STATS = 0, PRODUCTS = 1 };
    typedef no_stat First;
    struct Rest {
        __device__ __forceinline__ void begin() { }
        __device__ __forceinline__ void join_lanes(int lanes) { }
    };
    static __device__ __forceinline__ i64 rows(const Args &a) { return a.dim[0]; }
    static __device__ __forceinline__ i64 columns(const Args &a) { return 256; }
    static __device__ __forceinline__ i64 depth(const Args &a) { return 784; }
    static __device__ __forceinline__ float x(const Args &a, i64 row, i64 k) { return *(a.in0 + row * 784 + k); }
    static __device__ __forceinline__ float weight(const Args &a, int product, i64 n, i64 k)
    {
        return read<true>(a.prepared0 + n * 784 + k); // hidden.weight [256, 784]
    }
    static __device__ __forceinline__ bool weight_is_kn(int product) { return false; }
    // phase 0: B x 256
    template <int W>
    static __device__ __forceinline__ void element(const Args &a, const i64 row, const i64 rows, const bool here, const i64 col, float (&p)[W], Rest &rest)
    {
        float v0[W]; EACH v0[w] = p[w]; // product
        float v1[W]; load<true, true>(v1, a.prepared1 + col); // hidden.bias [256]
        float v2[W]; EACH v2[w] = op_add(v0[w], v1[w], 1.0f); // a
        float v3[W]; EACH v3[w] = op_gelu(v2[w], 0.0f); // b
        store_if<true>(here, a.area0 + row * 256 + col, v3); // b [B, 256]
    }
    static __device__ __forceinline__ void end(const Args &a, const i64 row, const int tile, const int tiles, const First &first, const Rest &rest)
    {
    }
};

__device__ __forceinline__ void g0_product(const Args &a)
{
    plain_product<g0, 8, false>(a);
}

// ---- group 1: linear+log_softmax ----

// c [B, 10] = rows of 256 elements by classes.weight [10, 256] transposed
struct g1 {
    typedef Args A;
    enum { W = 1, STATS = 1, PRODUCTS = 1 };
    typedef maxsumexp_stat<float> First;
    struct Rest {
        __device__ __forceinline__ void begin() { }
        __device__ __forceinline__ void join_lanes(int lanes) { }
    };
    static __device__ __forceinline__ i64 rows(const Args &a) { return a.dim[0]; }
    static __device__ __forceinline__ i64 columns(const Args &a) { return 10; }
    static __device__ __forceinline__ i64 depth(const Args &a) { return 256; }
    static __device__ __forceinline__ float x(const Args &a, i64 row, i64 k) { return *(a.area0 + row * 256 + k); }
    static __device__ __forceinline__ float weight(const Args &a, int product, i64 n, i64 k)
    {
        return read<true>(a.prepared2 + n * 256 + k); // classes.weight [10, 256]
    }
    static __device__ __forceinline__ bool weight_is_kn(int product) { return false; }
    // phase 0: B x 10
    template <int W>
    static __device__ __forceinline__ void element(const Args &a, const i64 row, const i64 rows, const bool here, const i64 col, float (&p)[W], Rest &rest)
    {
        float v0[W]; EACH v0[w] = p[w]; // product
        float v1[W]; load<true, true>(v1, a.prepared3 + col); // classes.bias [10]
        float v2[W]; EACH v2[w] = op_add(v0[w], v1[w], 1.0f); // c
        store_if<false>(here, a.area1 + row * 10 + col, v2); // c
        EACH p[w] = v2[w]; // for the maxsumexp of the row
    }
    static __device__ __forceinline__ void end(const Args &a, const i64 row, const int tile, const int tiles, const First &first, const Rest &rest)
    {
        first.set(a.area2 + (row * tiles + tile) * 2);
    }
};

__device__ __forceinline__ void g1_product(const Args &a)
{
    plain_product<g1, 8, false>(a);
}

// A row through phases 1 to 1.
__device__ __forceinline__ void g1_rows1_row(const Args &a, const i64 row, const i64 rows, const int tid)
{
    enum { T = 32 };
    // maxsumexp for d
    float stat0[2];
    partials<maxsumexp_stat>::of<false>(a.area2 + row * ((10 + 127) / 128 * 2), (int)((10 + 127) / 128)).finish((double)10, stat0);
    // phase 1: B x 10
#pragma unroll 4
    for (i64 col = tid * 1; col < 10; col += T * 1) {
        enum { W = 1 };
        float v0[W]; load<false, false>(v0, a.area1 + row * 10 + col); // c
        float v1[W]; EACH v1[w] = stat0[0]; // maxsumexp of d
        float v2[W]; EACH v2[w] = stat0[1]; // maxsumexp of d
        float v3[W]; EACH v3[w] = op_log_softmax(v0[w], v1[w], v2[w]); // d
        store<false>(a.out0 + row * 10 + col, v3); // d [B, 10]
    }
    row_sync<T>();
}

__device__ __forceinline__ void g1_rows1(const Args &a)
{
    enum { T = 32, ROWS = THREADS / T };
    const i64 rows = a.dim[0];
    for (i64 row = (i64)blockIdx.x * ROWS + threadIdx.x / T; row < rows; row += (i64)gridDim.x * ROWS)
        g1_rows1_row(a, row, rows, threadIdx.x % T);
}

} // namespace fused

extern "C" __global__ void __launch_bounds__(256, 1)
program(const __grid_constant__ Control c, const __grid_constant__ fused::Args fused)
{
    fused::g0_product(fused);
    grid_sync(c);
    fused::g1_product(fused);
    grid_sync(c);
    fused::g1_rows1(fused);
}
