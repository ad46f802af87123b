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
    enum { MODE = 0, SCALED = 1, N = 256, LINES = 26, CHUNK = 2, SHORT = 0, SEVERAL = 1, BROUGHT = 1 };
    enum { PART = 32, LONG = 0 };
    static __device__ __forceinline__ const float *x_unscale(const Args &a) { return a.area2; }
    static __device__ __forceinline__ const float *w_unscale(const Args &a) { return a.scale[0]; }
    enum { SPLIT = 32, K = 784, X_ALIGNED = ALIGNED, ROOM = 65536 };
    typedef float X;
    static __device__ __forceinline__ const X *x_row(const Args &a, const i64 row) { return &*(a.in0 + row * 784 + 0); }
    static __device__ __forceinline__ u8 *x_lines(const Args &a, const i64 row) { return (u8 *)a.area1 + row * (LINES * 128); }
    static __device__ __forceinline__ float *x_scale(const Args &a, const i64 row) { return a.area2 + row; }
    static __device__ __forceinline__ const float *x_by(const Args &a) { return a.redo.uneven ? a.scale[0] + 264 : 0; }
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
    enum { MODE = 0, SCALED = 1, N = 10, LINES = 8, CHUNK = 1, SHORT = 0, SEVERAL = 1, BROUGHT = 1 };
    enum { PART = 64, LONG = 0 };
    static __device__ __forceinline__ const float *x_unscale(const Args &a) { return a.area4; }
    static __device__ __forceinline__ const float *w_unscale(const Args &a) { return a.scale[1]; }
    enum { SPLIT = 32, K = 256, X_ALIGNED = true, ROOM = 65536 };
    typedef float X;
    static __device__ __forceinline__ const X *x_row(const Args &a, const i64 row) { return &*(a.area0 + row * 256 + 0); }
    static __device__ __forceinline__ u8 *x_lines(const Args &a, const i64 row) { return (u8 *)a.area3 + row * (LINES * 128); }
    static __device__ __forceinline__ float *x_scale(const Args &a, const i64 row) { return a.area4 + row; }
    static __device__ __forceinline__ const float *x_by(const Args &a) { return a.redo.uneven ? a.scale[1] + 20 : 0; }
    // phase 0: B x 10
    template <int W>
    static __device__ __forceinline__ void element(const Args &a, const i64 row, const i64 rows, const bool here, const i64 col, float (&p)[W], Rest &rest)
    {
        float v0[W]; EACH v0[w] = p[w]; // product
        float v1[W]; load<true, true>(v1, a.prepared3 + col); // classes.bias [10]
        float v2[W]; EACH v2[w] = op_add(v0[w], v1[w], 1.0f); // c
        store_if<false>(here, a.area5 + row * 10 + col, v2); // c
        EACH p[w] = v2[w]; // for the maxsumexp of the row
    }
    static __device__ __forceinline__ void end(const Args &a, const i64 row, const int tile, const int tiles, const First &first, const Rest &rest)
    {
        first.set(a.area6 + (row * tiles + tile) * 2);
    }
    enum { HELD = 0, WAITS = 0, RUN = 0 }; // goes on with what is in registers; for whole rows' statistics; columns of a segment
};

// x into lines of 128 bytes
__device__ __forceinline__ void g1_split(const Args &a)
{
    split_x<g1>(a);
    written_to_copied();
}

__device__ __forceinline__ void g1_product(const Args &a, const Control &c, const TensorMap *x, const TensorMap *w)
{
    tensor_product<g1, Pairs>(a, c, x, w);
}

// A row through phases 1 to 1.
__device__ __forceinline__ void g1_rows1_row(const Args &a, const i64 row, const i64 rows, const int tid)
{
    enum { T = 32 };
    // maxsumexp for d
    float stat0[2];
    partials<maxsumexp_stat>::of<false>(a.area6 + row * ((10 + 127) / 128 * 2), (int)((10 + 127) / 128)).finish((double)10, stat0);
    // phase 1: B x 10
#pragma unroll 4
    for (i64 col = tid * 1; col < 10; col += T * 1) {
        enum { W = 1 };
        float v0[W]; load<false, false>(v0, a.area5 + row * 10 + col); // c
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

namespace full_range {

struct Args {
    const float *in0;            // x [B, 784]
    const float *prepared0;      // hidden.weight [256, 784]
    const float *prepared1;      // hidden.bias [256]
    const float *prepared2;      // classes.weight [10, 256]
    const float *prepared3;      // classes.bias [10]
    const double *narrow[2];     // by product: of few columns, its weight and then its bias
    const float *scale[2];       // by product: what undoes the scaling of a weight's rows
    float *out0;                 // d [B, 10]
    i64 out_each[1];             // elements of each row of the batch
    float *area0;                // b [B, 256]
    float *area1;
    i64 dim[1];                  // B
    Redo redo;
};

// ---- group 0: linear+gelu ----

// a [B, 256] = rows of 784 elements by hidden.weight [256, 784] transposed
struct g0 {
    typedef Args A;
    enum { W = 1, STATS = 0, PRODUCTS = 1 };
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
    plain_product<g0, 4, true>(a);
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
        if (here) { store_out(a.redo, a.out0, 0 + row * 10 + col, a.out_each[0], v2); } // c
        EACH p[w] = v2[w]; // for the maxsumexp of the row
    }
    static __device__ __forceinline__ void end(const Args &a, const i64 row, const int tile, const int tiles, const First &first, const Rest &rest)
    {
        first.set(a.area1 + (row * tiles + tile) * 2);
    }
};

__device__ __forceinline__ void g1_product(const Args &a)
{
    plain_product<g1, 4, true>(a);
}

// A row through phases 1 to 1.
__device__ __forceinline__ void g1_rows1_row(const Args &a, const i64 row, const i64 rows, const int tid)
{
    enum { T = 32 };
    // maxsumexp for d
    float stat0[2];
    partials<maxsumexp_stat>::of<true>(a.area1 + row * ((10 + 127) / 128 * 2), (int)((10 + 127) / 128)).finish((double)10, stat0);
    // phase 1: B x 10
#pragma unroll 1
    for (i64 col = tid * 1; col < 10; col += T * 1) {
        enum { W = 1 };
        float v0[W]; load<false, false>(v0, a.out0 + row * 10 + col); // c
        float v1[W]; EACH v1[w] = stat0[0]; // maxsumexp of d
        float v2[W]; EACH v2[w] = stat0[1]; // maxsumexp of d
        float v3[W]; EACH v3[w] = op_log_softmax(v0[w], v1[w], v2[w]); // d
        store_out(a.redo, a.out0, 0 + row * 10 + col, a.out_each[0], v3); // d [B, 10]
    }
    row_sync<T>();
}

__device__ __forceinline__ void g1_rows1(const Args &a)
{
    enum { T = 32, ROWS = THREADS / T };
    const i64 rows = a.dim[0];
    for (i64 row = (i64)blockIdx.x * ROWS + threadIdx.x / T; row < rows; row += (i64)gridDim.x * ROWS)
        if (!left_out(a.redo, row, rows))
            g1_rows1_row(a, row, rows, threadIdx.x % T);
}

} // namespace full_range

extern "C" __global__ void __launch_bounds__(THREADS) find_weight_columns(const float *from, i64 row_step, i64 step, i64 rows, i64 columns, unsigned *most)
{
    find_columns(from, row_step, step, rows, columns, most);
}

extern "C" __global__ void __launch_bounds__(THREADS) g0_split_weight(const float *from, i64 row_step, i64 step, i64 rows, u8 *to, float *unscale, float *by, const unsigned *most, unsigned *found, unsigned *unseen)
{
    split_weight<32, 0, 784, 26>(from, row_step, step, rows, to, unscale, by, most, found, unseen);
}

extern "C" __global__ void __launch_bounds__(THREADS) g1_split_weight(const float *from, i64 row_step, i64 step, i64 rows, u8 *to, float *unscale, float *by, const unsigned *most, unsigned *found, unsigned *unseen)
{
    split_weight<32, 0, 256, 8>(from, row_step, step, rows, to, unscale, by, most, found, unseen);
}

__device__ __noinline__ void redo_full_range(const full_range::Args &full_range, const Control &c)
{
#pragma unroll 1
    for (int stage = 0; stage <= 3; ++stage) {
        grid_sync(c);
        if (stage == 0)
            full_range::g0_product(full_range);
        if (stage == 1)
            full_range::g1_product(full_range);
        if (stage == 2)
            full_range::g1_rows1(full_range);
    }
    if (blockIdx.x == 0) {
        const i64 rows = clear_flags(c.beyond, c.beyond_any, c.batch);
        (void)rows;
    }
}

struct Maps {
    TensorMap map[4];
};

extern "C" __global__ void __launch_bounds__(256, 1)
program(const __grid_constant__ Maps maps, const __grid_constant__ Control c, const __grid_constant__ fused::Args fused, const __grid_constant__ full_range::Args full_range)
{
    fused::g0_split(fused);
    grid_sync(c);
    fused::g0_product(fused, c, &maps.map[0], &maps.map[1]);
    grid_sync(c);
    fused::g1_split(fused);
    grid_sync(c);
    fused::g1_product(fused, c, &maps.map[2], &maps.map[3]);
    grid_sync(c);
    fused::g1_rows1(fused);
    if (any_set(c.beyond_any))
        redo_full_range(full_range, c);
}
