// SPDX-License-Identifier: Apache-2.0
// ---- group 0: linear+group_norm+hardtanh ----

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
    enum { PART = 32, LONG = 0 };
    static __device__ __forceinline__ const float *x_unscale(const Args &a) { return a.area1; }
    static __device__ __forceinline__ const float *w_unscale(const Args &a) { return a.scale[0]; }
    enum { SPLIT = 32, K = 1024, X_ALIGNED = ALIGNED, ROOM = 65536 };
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
        EACH p[w] = v2[w]; // for phase 1
    }
    static __device__ __forceinline__ void end(const Args &a, const i64 row, const int tile, const int tiles, const First &first, const Rest &rest)
    {
    }
    enum { HELD = 1, WAITS = 0, RUN = 32 }; // goes on with what is in registers; for whole rows' statistics; columns of a segment
    struct Known {
        float stat0[2]; // moments for b
    };
    static __device__ __forceinline__ void total(const Args &a, const i64 row, Known &known)
    {
    }
    typedef moments_stat<float> Run;
    static __device__ __forceinline__ void run(const Run &s, Known &known) { s.finish(32.0f, known.stat0); }
    // phase 1: B x 1024
    template <int W>
    static __device__ __forceinline__ void later(const Args &a, const i64 row, const i64 rows, const bool here, const i64 col, float (&p)[W], const Known &known)
    {
        float v0[W]; EACH v0[w] = p[w]; // a
        float v1[W]; EACH v1[w] = known.stat0[0]; // moments of b
        float v2[W]; EACH v2[w] = known.stat0[1]; // moments of b
        float v3[W]; EACH v3[w] = op_group_norm(v0[w], v1[w], v2[w], 9.99999975e-06f); // b
        float v4[W]; load<true, true>(v4, a.prepared2 + col); // norm.weight [1024]
        float v5[W]; EACH v5[w] = op_mul(v3[w], v4[w]); // b
        float v6[W]; load<true, true>(v6, a.prepared3 + col); // norm.bias [1024]
        float v7[W]; EACH v7[w] = op_add(v5[w], v6[w], 1.0f); // b
        float v8[W]; EACH v8[w] = op_hardtanh(v7[w], -2.0f, 2.0f); // c
        store_if<ALIGNED>(here, a.out0 + row * 1024 + col, v8); // c [B, 1024]
    }
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

} // namespace fused

namespace full_range {

struct Args {
    const float *in0;            // x [B, 1024]
    const float *prepared0;      // linear.weight [1024, 1024]
    const float *prepared1;      // linear.bias [1024]
    const float *prepared2;      // norm.weight [1024]
    const float *prepared3;      // norm.bias [1024]
    const double *narrow[1];     // by product: of few columns, its weight and then its bias
    const float *scale[1];       // by product: what undoes the scaling of a weight's rows
    float *out0;                 // c [B, 1024]
    i64 out_each[1];             // elements of each row of the batch
    float *area0;
    float *area1;
    i64 dim[1];                  // B
    Redo redo;
};

// ---- group 0: linear+group_norm+hardtanh ----

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

// A row through phases 1 to 1.
__device__ __forceinline__ void g0_rows1_row(const Args &a, const i64 row, const i64 rows, const int tid)
{
    enum { T = 32 };
    // moments for b
    segments<T, moments_stat>([&](i64 c) { return *(a.out0 + row * 1024 + c); }, 32, 32, tid, a.area0 + row * 32, a.area1 + row * 32);
    row_sync<T>();
    // phase 1: B x 1024
#pragma unroll 1
    for (i64 col = tid * 1; col < 1024; col += T * 1) {
        enum { W = 1 };
        float v0[W]; load<false, ALIGNED>(v0, a.out0 + row * 1024 + col); // a
        float v1[W]; EACH v1[w] = read<false>(a.area0 + row * 32 + (col + w) / 32); // moments of b
        float v2[W]; EACH v2[w] = read<false>(a.area1 + row * 32 + (col + w) / 32); // moments of b
        float v3[W]; EACH v3[w] = op_group_norm(v0[w], v1[w], v2[w], 9.99999975e-06f); // b
        float v4[W]; load<true, true>(v4, a.prepared2 + col); // norm.weight [1024]
        float v5[W]; EACH v5[w] = op_mul(v3[w], v4[w]); // b
        float v6[W]; load<true, true>(v6, a.prepared3 + col); // norm.bias [1024]
        float v7[W]; EACH v7[w] = op_add(v5[w], v6[w], 1.0f); // b
        float v8[W]; EACH v8[w] = op_hardtanh(v7[w], -2.0f, 2.0f); // c
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
    for (int stage = 0; stage <= 2; ++stage) {
        grid_sync(c);
        if (stage == 0)
            full_range::g0_product(full_range);
        if (stage == 1)
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

extern "C" __global__ void __launch_bounds__(256, 1)
program(const __grid_constant__ Maps maps, const __grid_constant__ Control c, const __grid_constant__ fused::Args fused, const __grid_constant__ full_range::Args full_range)
{
    fused::g0_split(fused);
    grid_sync(c);
    fused::g0_product(fused, c, &maps.map[0], &maps.map[1]);
    if (any_set(c.beyond_any))
        redo_full_range(full_range, c);
}
