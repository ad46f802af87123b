// SPDX-License-Identifier: Apache-2.0
// ---- group 0: linear+gelu+add ----

// A row through phases 0 to 1.
__device__ __forceinline__ void g0_rows0_row(const Args &a, const i64 row, const i64 rows, const int tid)
{
    enum { T = 256 };
    // phase 0: B x 1
    // product of 1 columns, in double precision: v5 [1, 8192]
    __shared__ float product[256 / T][1];
    narrow_product<T, 1, 8192>(product[threadIdx.x / T], &*(a.in[0] + row * 8192 + 0), a.narrow[0], tid);
#pragma unroll 2
    for (i64 col = tid * 1; col < 1; col += T * 1) {
        enum { W = 1 };
        float v0[W]; EACH v0[w] = product[threadIdx.x / T][col + w]; // product
        float v1[W]; EACH v1[w] = op_gelu(v0[w], 0.0f); // e
        watch(a.redo, row, rows, v0);
        EACH { const float one[1] = {v1[w]}; store(a.area[0] + row, one); } // e
    }
    row_sync<T>();
    // phase 1: B x 8192
#pragma unroll 2
    for (i64 col = tid * 4; col < 8192; col += T * 4) {
        enum { W = 4 };
        const float u0 = read<false>(a.area[0] + row); float v0[W]; EACH v0[w] = u0; // e
        float v1[W]; load<true, false>(v1, a.in[0] + row * 8192 + col); // x [B, 8192]
        float v2[W]; EACH v2[w] = op_add(v0[w], v1[w], 1.0f); // f
        store(a.out[0] + row * 8192 + col, v2); // f [B, 8192]
    }
    row_sync<T>();
}

extern "C" __global__ void __launch_bounds__(256) g0_rows0(const Args a)
{
    enum { T = 256, ROWS = 1 };
    const i64 rows = a.dim[0];
    for (i64 row = (i64)blockIdx.x * ROWS + threadIdx.x / T; row < rows; row += (i64)gridDim.x * ROWS)
        g0_rows0_row(a, row, rows, threadIdx.x % T);
}

