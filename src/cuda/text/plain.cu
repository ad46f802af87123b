// SPDX-License-Identifier: Apache-2.0
// Products on the ordinary units, for any device and any extents: right before fast.

// The sums of a narrow product's N columns.
template <int N> struct narrow_sums {
    double s[N];
    __device__ __forceinline__ void join(const narrow_sums &t)
    {
#pragma unroll
        for (int n = 0; n < N; ++n)
            s[n] += t.s[n];
    }
    __device__ __forceinline__ narrow_sums shuffled(int lanes) const
    {
        narrow_sums t;
#pragma unroll
        for (int n = 0; n < N; ++n)
            t.s[n] = __shfl_xor_sync(~0u, s[n], lanes);
        return t;
    }
};

// A narrow product's weight lies so that the lanes of a warp, four elements of x each, read it without gaps: of every
// 128 elements first two for each lane, then two more. Columns are PITCH apart; then come the biases.
template <i64 K> struct narrow_weight {
    enum : i64 { RUN = 128, PITCH = (K + RUN - 1) / RUN * RUN };
    static __device__ __forceinline__ double at(const double *column, i64 k)
    {
        return __ldg(column + k / RUN * RUN + k % 4 / 2 * (RUN / 2) + k % RUN / 4 * 2 + k % 2);
    }
    static __device__ __forceinline__ void four(const double *column, i64 k, double (&w)[4]) // k: a multiple of 4
    {
        const double2 *p = (const double2 *)(column + k / RUN * RUN) + k % RUN / 4;
        const double2 u = __ldg(p), v = __ldg(p + RUN / 4);
        w[0] = u.x, w[1] = u.y, w[2] = v.x, w[3] = v.y;
    }
};

template <int N, i64 K>
__device__ __forceinline__ void narrow_four(narrow_sums<N> &sums, const float (&x)[4], const double *weight, i64 k)
{
#pragma unroll
    for (int n = 0; n < N; ++n) {
        double u[4];
        narrow_weight<K>::four(weight + n * narrow_weight<K>::PITCH, k, u);
#pragma unroll
        for (int w = 0; w < 4; ++w)
            sums.s[n] += (double)x[w] * u[w];
    }
}

// The threads' sums and the bias: [N], shared, until the row's threads join something else.
template <int T, int N, i64 K>
__device__ __forceinline__ const float *narrow_end(narrow_sums<N> sums, const double *weight, int tid)
{
    float *y = (float *)row_scratch<T>();
    sums = join_row<T>(sums);
    row_sync<T>(); // what was there before has been read
    if (tid == 0)
#pragma unroll
        for (int n = 0; n < N; ++n)
            y[n] = (float)(sums.s[n] + __ldg(weight + N * narrow_weight<K>::PITCH + n));
    row_sync<T>();
    return y;
}

// y[n] = bias[n] + sum over k of x[k] * weight[n][k], in double precision, by the T threads of a row.
template <int T, int N, i64 K, class E>
__device__ __forceinline__ const float *narrow_product(const E *x, const double *weight, int tid)
{
    constexpr int W = 4;
    narrow_sums<N> all = {};
    if (((size_t)x & (W * sizeof(E) - 1)) == 0) { // no branch between two loads: several are under way at once
#pragma unroll 8
        for (i64 k = (i64)tid * W; k + W <= K; k += T * W) {
            float v[W];
            load<false, true>(v, x + k);
            narrow_four<N, K>(all, v, weight, k);
        }
    } else {
#pragma unroll 2
        for (i64 k = (i64)tid * W; k + W <= K; k += T * W) {
            float v[W];
            load<false, false>(v, x + k);
            narrow_four<N, K>(all, v, weight, k);
        }
    }
    for (i64 k = K / W * W + tid; k < K; k += T)
#pragma unroll
        for (int n = 0; n < N; ++n)
            all.s[n] += (double)x[k] * narrow_weight<K>::at(weight + n * narrow_weight<K>::PITCH, k);
    return narrow_end<T, N, K>(all, weight, tid);
}

// A row in registers, which is wanted again: element k is regs[k / 4 / T][k % 4] of thread k / 4 % T.
template <bool aligned, int T, int TURNS, class E>
__device__ __forceinline__ void bring_row(float (&regs)[TURNS][4], const E *x, int tid)
{
#pragma unroll
    for (int i = 0; i < TURNS; ++i)
        load<false, aligned>(regs[i], x + (i * T + tid) * 4);
}
template <int T, int N, i64 K, int TURNS>
__device__ __forceinline__ const float *register_product(const float (&regs)[TURNS][4], const double *weight, int tid)
{
    narrow_sums<N> all = {};
#pragma unroll
    for (int i = 0; i < TURNS; ++i)
        narrow_four<N, K>(all, regs[i], weight, (i * T + tid) * 4);
    return narrow_end<T, N, K>(all, weight, tid);
}

// Likewise with the weight of a single column in registers too, as that row is, for all rows that follow.
template <int T, i64 K, int TURNS> struct narrow_column {
    double w[TURNS][4];
    __device__ __forceinline__ void load(const double *weight, int tid)
    {
#pragma unroll
        for (int i = 0; i < TURNS; ++i)
            narrow_weight<K>::four(weight, (i * T + tid) * 4, w[i]);
    }
};
template <int T, int N, i64 K, int TURNS>
__device__ __forceinline__ const float *register_product(const float (&regs)[TURNS][4], const double *weight, int tid,
                                                       const narrow_column<T, K, TURNS> &column)
{
    static_assert(N == 1, "one column");
    narrow_sums<N> all = {};
#pragma unroll
    for (int i = 0; i < TURNS; ++i)
#pragma unroll
        for (int w = 0; w < 4; ++w)
            all.s[0] += (double)regs[i][w] * column.w[i][w];
    return narrow_end<T, N, K>(all, weight, tid);
}

// Rows whose stride is the grid's, each in registers and then finished: done(row, regs). x(row): where it begins. The
// next one is on its way meanwhile, in registers too.
template <bool aligned, int T, int TURNS, class X, class Done>
__device__ __forceinline__ void rows_by_registers(const i64 rows, const X &x, const Done &done)
{
    enum { ROWS = THREADS / T };
    const i64 step = (i64)gridDim.x * ROWS;
    const int tid = threadIdx.x % T;
    float regs[TURNS][4], next[TURNS][4];
    i64 row = (i64)blockIdx.x * ROWS + threadIdx.x / T;
    if (row < rows)
        bring_row<aligned, T>(regs, x(row), tid);
    for (; row < rows; row += step) {
        if (row + step < rows)
            bring_row<aligned, T>(next, x(row + step), tid);
        done(row, regs);
#pragma unroll
        for (int i = 0; i < TURNS; ++i)
#pragma unroll
            for (int w = 0; w < 4; ++w)
                regs[i][w] = next[i][w];
    }
}

// A row's values of one of several narrow products: the next one's would take their place.
template <int N> __device__ __forceinline__ void keep_product(float (&kept)[N], const float *product)
{
#pragma unroll
    for (int n = 0; n < N; ++n)
        kept[n] = product[n];
}

// Tiles of 16 RM x 128 of products that multiply the same x, RM x 8 a thread of 256, summed in runs of 256 of K. G:
// x(a, row, k) and weight(a, product, n, k), which lies [K][N] or [N][K], their extents, and what becomes of an
// element:
//   element<W>(a, row, rows, here, col, p, rest)   p: W neighbouring columns of each product; leaves in the first W
//                                                  what the first statistic of rows is fed
//   First, Rest                                    that statistic, and the others, which element feeds itself
//   end(a, row, tile, tiles, first, rest)          stores the partials of a row in this tile of columns
enum { PLAIN_THREADS = 256 };
__device__ __forceinline__ void plain_sync() { meet<PLAIN_THREADS>(8); }

template <class G, int RM, bool SMALL>
__device__ __forceinline__ void plain_tile(const typename G::A &a, i64 row0, i64 col0, int tile, int tiles)
{
    enum { ROWS = 16 * RM, TILE = 128, STEP = 16, RUN = 256, W = G::W };
    float(*xs)[ROWS + 4] = (float(*)[ROWS + 4]) raw,
                      (*ws)[TILE + 4] = (float(*)[TILE + 4])(raw + sizeof(float[STEP][ROWS + 4]));
    const i64 rows = G::rows(a), n = G::columns(a), k = G::depth(a);
    const int tid = threadIdx.x, tx = tid % 16, ty = tid / 16, down = (int)min((i64)ROWS, rows - row0),
              across = (int)min((i64)TILE, n - col0);
    const auto row_of = [&](int i) { return ty * 4 + i / 4 * 64 + i % 4; }; // of the tile
    float acc[RM][8], sum[G::PRODUCTS][RM][8];
// one after another: registers have room for the sums of one product
#pragma unroll(SMALL || G::PRODUCTS > 4 ? 1 : G::PRODUCTS)
    for (int q = 0; q < G::PRODUCTS; ++q) {
#pragma unroll
        for (int i = 0; i < RM; ++i)
#pragma unroll
            for (int j = 0; j < 8; ++j)
                acc[i][j] = sum[q][i][j] = 0.0f;
        // under way while what is there is multiplied; what is small begins with a step of zeros, one more than K has,
        // so that there is one place that fetches
        float x_next[RM] = {}, w_next[8] = {};
        const bool is_kn = G::weight_is_kn(q);
        const auto fetch = [&](i64 k0) {
            const int deep = (int)min((i64)STEP, k - k0);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int line = i * 16 + ty; // 16 threads take 16 neighbours of K
                if (i < RM)
                    x_next[i] = line < down && tx < deep ? G::x(a, row0 + line, k0 + tx) : 0.0f;
                const int c = is_kn ? tid % TILE : line, d = is_kn ? i * 2 + tid / TILE : tx;
                w_next[i] = c < across && d < deep ? G::weight(a, q, col0 + c, k0 + d) : 0.0f;
            }
        };
        if (!SMALL)
            fetch(0);
#pragma unroll 1
        for (i64 k0 = SMALL ? -STEP : 0; k0 < k; k0 += STEP) {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                if (i < RM)
                    xs[tx][i * 16 + ty] = x_next[i];
                ws[is_kn ? i * 2 + tid / TILE : tx][is_kn ? tid % TILE : i * 16 + ty] = w_next[i];
            }
            plain_sync();
            fetch(k0 + STEP);
#pragma unroll(SMALL ? 1 : STEP)
            for (int d = 0; d < STEP; ++d) {
                float u[RM], v[8];
#pragma unroll
                for (int i = 0; i < RM; ++i)
                    u[i] = xs[d][row_of(i)];
#pragma unroll
                for (int j = 0; j < 8; ++j)
                    v[j] = ws[d][tx * 4 + j / 4 * 64 + j % 4];
#pragma unroll
                for (int i = 0; i < RM; ++i)
#pragma unroll
                    for (int j = 0; j < 8; ++j)
                        acc[i][j] = fmaf(u[i], v[j], acc[i][j]);
            }
            plain_sync();
            if ((k0 + STEP) % RUN == 0 || k0 + STEP >= k) {
#pragma unroll
                for (int i = 0; i < RM; ++i)
#pragma unroll
                    for (int j = 0; j < 8; ++j)
                        sum[q][i][j] += acc[i][j], acc[i][j] = 0.0f;
            }
        }
    }
// the sums may lie in local memory, which is touched rarely; eight copies of the steps would take seconds to compile
#pragma unroll 1
    for (int i = 0; i < RM; ++i) {
        const i64 row = row0 + row_of(i);
        const bool here = row < rows && !left_out(a.redo, row, rows);
        typename G::First first;
        typename G::Rest rest;
        first.begin();
        rest.begin();
#pragma unroll(SMALL ? 1 : 8 / W)
        for (int j = 0; j < 8; j += W) {
            const int col = tx * 4 + j / 4 * 64 + j % 4;
            if (!here || col >= across)
                continue;
            float p[G::PRODUCTS * W];
#pragma unroll
            for (int q = 0; q < G::PRODUCTS; ++q)
                EACH p[q * W + w] = sum[q][i][j + w];
            G::template element<W>(a, row, rows, true, col0 + col, p, rest);
            EACH first.put(p[w]);
        }
        if (G::STATS > 0) {
            first = join_lanes(first, 16);
            rest.join_lanes(16);
            if (here && tx == 0)
                G::end(a, row, tile, tiles, first, rest);
        }
    }
}

// SMALL: rows that are done again, few as a rule, by code that is small.
template <class G, int RM, bool SMALL> __device__ __forceinline__ void plain_product(const typename G::A &a)
{
    enum { ROWS = 16 * RM, TILE = 128 };
    const i64 rows = G::rows(a);
    // no memory holds 2^32 tiles
    const unsigned row_tiles = (unsigned)((rows + ROWS - 1) / ROWS),
                   column_tiles = (unsigned)((G::columns(a) + TILE - 1) / TILE);
    if (threadIdx.x >= PLAIN_THREADS)
        return;
#pragma unroll 1
    for (unsigned t = blockIdx.x; t < row_tiles * column_tiles; t += gridDim.x) {
        const unsigned across = t / row_tiles;
        const i64 row0 = (i64)(t - across * row_tiles) * ROWS;
        bool wanted = !a.redo.wanted;
        for (int i = 0; i < ROWS && !wanted; ++i)
            wanted = row0 + i < rows && !left_out(a.redo, row0 + i, rows);
        if (wanted)
            plain_tile<G, RM, SMALL>(a, row0, (i64)across * TILE, (int)across, (int)column_tiles);
    }
}

// ---- statistics of columns: two stages, blocks of rows and then those ----

enum { COLUMN_ROWS = 256 };

// value: [rows][width] -> partial: [blocks of rows][states][width]
template <template <typename> class M>
__device__ __forceinline__ void column_blocks(const float *value, i64 rows, i64 width, float *partial)
{
    const i64 stripes = (width + THREADS - 1) / THREADS, blocks = (rows + COLUMN_ROWS - 1) / COLUMN_ROWS;
    for (i64 at = blockIdx.x; at < stripes * blocks; at += gridDim.x) {
        const i64 block = at / stripes, col = at % stripes * THREADS + threadIdx.x;
        if (col >= width)
            continue;
        fold<M> f;
        for (i64 row = block * COLUMN_ROWS; row < rows && row < (block + 1) * COLUMN_ROWS; ++row)
            f.put(value[row * width + col]);
        M<float> s;
        s.begin();
        s.join(f.total());
        s.put_strided(partial + block * M<float>::STATES * width + col, width);
    }
}

template <template <typename> class M>
__device__ __forceinline__ void column_end(const float *partial, i64 rows, i64 width, float *r0, float *r1)
{
    for (i64 col = (i64)blockIdx.x * THREADS + threadIdx.x; col < width; col += (i64)gridDim.x * THREADS) {
        M<double> s;
        s.begin();
        for (i64 block = 0; block * COLUMN_ROWS < rows; ++block) {
            M<float> t;
            t.get_strided(partial + block * M<float>::STATES * width + col, width);
            s.join(t);
        }
        float r[2];
        s.finish((double)rows, r);
        r0[col] = r[0];
        if (M<float>::RESULTS > 1)
            r1[col] = r[1];
    }
}
