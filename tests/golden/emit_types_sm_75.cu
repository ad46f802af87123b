// SPDX-License-Identifier: Apache-2.0
// ---- group 0: linear+gelu+softmax+to+add+to ----

// a bf16[B, 1024] = rows of 512 elements by w bf16[1024, 512] transposed
struct g0 {
    typedef Args A;
    enum { W = 4, STATS = 1, PRODUCTS = 1 };
    typedef maxsumexp_stat<float> First;
    struct Rest {
        __device__ __forceinline__ void begin() { }
        __device__ __forceinline__ void join_lanes(int lanes) { }
    };
    static __device__ __forceinline__ i64 rows(const Args &a) { return a.dim[0]; }
    static __device__ __forceinline__ i64 columns(const Args &a) { return 1024; }
    static __device__ __forceinline__ i64 depth(const Args &a) { return 512; }
    static __device__ __forceinline__ float x(const Args &a, i64 row, i64 k) { return *(a.in0 + row * 512 + k); }
    static __device__ __forceinline__ float weight(const Args &a, int product, i64 n, i64 k)
    {
        return read<true>(a.prepared0 + n * 512 + k); // w bf16[1024, 512]
    }
    static __device__ __forceinline__ bool weight_is_kn(int product) { return false; }
    // phase 0: B x 1024
    template <int W>
    static __device__ __forceinline__ void element(const Args &a, const i64 row, const i64 rows, const bool here, const i64 col, float (&p)[W], Rest &rest)
    {
        float v0[W]; EACH v0[w] = p[w]; // product
        float v1[W]; load<true, true>(v1, a.prepared1 + col); // b bf16[1024]
        float v2[W]; EACH v2[w] = op_add(v0[w], v1[w], 1.0f); // a
        float v3[W]; EACH v3[w] = op_gelu(v2[w], 0.0f); // c
        store_if<true>(here, a.area1 + row * 1024 + col, v3); // c
        EACH p[w] = v3[w]; // for the maxsumexp of the row
    }
    static __device__ __forceinline__ void end(const Args &a, const i64 row, const int tile, const int tiles, const First &first, const Rest &rest)
    {
        first.set(a.area2 + (row * tiles + tile) * 2);
    }
};

__device__ __forceinline__ void g0_product(const Args &a)
{
    plain_product<g0, 8, false>(a);
}

// A row through phases 1 to 1.
__device__ __forceinline__ void g0_rows1_row(const Args &a, const i64 row, const i64 rows, const int tid)
{
    enum { T = 32 };
    // maxsumexp for d
    float stat0[2];
    partials<maxsumexp_stat>::of<false>(a.area2 + row * ((1024 + 127) / 128 * 2), (int)((1024 + 127) / 128)).finish((double)1024, stat0);
    // phase 1: B x 1024
#pragma unroll 4
    for (i64 col = tid * 4; col < 1024; col += T * 4) {
        enum { W = 4 };
        float v0[W]; load<false, true>(v0, a.area1 + row * 1024 + col); // c
        float v1[W]; EACH v1[w] = stat0[0]; // maxsumexp of d
        float v2[W]; EACH v2[w] = stat0[1]; // maxsumexp of d
        float v3[W]; EACH v3[w] = op_softmax(v0[w], v1[w], v2[w]); // d
        float v4[W]; load<true, ALIGNED>(v4, a.in1 + row * 1024 + col); // y f16[B, 1024]
        float v5[W]; EACH v5[w] = op_add(v3[w], v4[w], 1.0f); // f
        store<ALIGNED>(a.out0 + row * 1024 + col, v5); // f bf16[B, 1024]
        store<true>(a.area0 + row * 1024 + col, v5); // g f16[B, 1024]
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

// ---- group 1: linear ----

// A row through phases 0 to 0.
__device__ __forceinline__ void g1_rows0_row(const Args &a, const i64 row, const i64 rows, const int tid)
{
    enum { T = 32 };
    // phase 0: B x 3
    // product of 3 columns, in double precision: v f16[3, 1024]
    const float *const product = narrow_product<T, 3, 1024>(&*(a.area0 + row * 1024 + 0), a.narrow[1], tid);
#pragma unroll 4
    for (i64 col = tid * 1; col < 3; col += T * 1) {
        enum { W = 1 };
        float v0[W]; EACH v0[w] = product[col + w]; // product
        store<false>(a.out1 + row * 3 + col, v0); // h f16[B, 3]
    }
    row_sync<T>();
}

__device__ __forceinline__ void g1_rows0(const Args &a)
{
    enum { T = 32, ROWS = THREADS / T };
    const i64 rows = a.dim[0];
    for (i64 row = (i64)blockIdx.x * ROWS + threadIdx.x / T; row < rows; row += (i64)gridDim.x * ROWS)
        g1_rows0_row(a, row, rows, threadIdx.x % T);
}

// ---- group 2: layer_norm ----

// A row through phases 0 to 1.
__device__ __forceinline__ void g2_rows0_row(const Args &a, const i64 row, const i64 rows, const int tid)
{
    enum { T = 32 };
    // phase 0: B x 512
    fold<moments_stat> fold0;
#pragma unroll 4
    for (i64 col = tid * 4; col < 512; col += T * 4) {
        enum { W = 4 };
        float v0[W]; load<true, ALIGNED>(v0, a.in0 + row * 512 + col); // x bf16[B, 512]
        EACH fold0.put(v0[w]);
    }
    row_sync<T>();
    // moments for i
    float stat0[2];
    join_row<T>(fold0.total()).finish((double)512, stat0);
    // phase 1: B x 512
#pragma unroll 4
    for (i64 col = tid * 4; col < 512; col += T * 4) {
        enum { W = 4 };
        float v0[W]; load<true, ALIGNED>(v0, a.in0 + row * 512 + col); // x bf16[B, 512]
        float v1[W]; EACH v1[w] = stat0[0]; // moments of i
        float v2[W]; EACH v2[w] = stat0[1]; // moments of i
        float v3[W]; EACH v3[w] = op_layer_norm(v0[w], v1[w], v2[w], 9.99999975e-06f); // i
        store<ALIGNED>(a.out2 + row * 512 + col, v3); // i bf16[B, 512]
    }
    row_sync<T>();
}

__device__ __forceinline__ void g2_rows0(const Args &a)
{
    enum { T = 32, ROWS = THREADS / T };
    const i64 rows = a.dim[0];
    for (i64 row = (i64)blockIdx.x * ROWS + threadIdx.x / T; row < rows; row += (i64)gridDim.x * ROWS)
        g2_rows0_row(a, row, rows, threadIdx.x % T);
}

} // namespace fused

extern "C" __global__ void __launch_bounds__(256, 1)
program(const __grid_constant__ Control c, const __grid_constant__ fused::Args fused)
{
    fused::g0_product(fused);
    grid_sync(c);
    fused::g0_rows1(fused);
    grid_sync(c);
    fused::g1_rows0(fused);
    grid_sync(c);
    fused::g2_rows0(fused);
}
