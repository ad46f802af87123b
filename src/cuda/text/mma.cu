// SPDX-License-Identifier: Apache-2.0
// Products on tensor cores as Ampere and everything newer has them. 256 threads copy lines of both operands into shared
// memory, several stages ahead (cp.async), and multiply: eight warps, each a part of the tile 64 columns wide. Blocks
// stay for several tiles. At the end of a tile neighbouring warps swap halves, so that a warp has 16 rows of 128
// columns, and the sums go where text/finish.cu takes them.
//
// MODE_FP32: a = hi + lo, so a * b is lo*hi + hi*lo + hi*hi. Tensor cores add with truncation: every CHUNK lines the
// sums so far are added to sums of their own, in f32 as it is known.

// Shared memory that a block can have; mma.c asks the device.
#if __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200
enum { SHARED = 99 << 10 };
#elif __CUDA_ARCH__ < 900
enum { SHARED = 163 << 10 };
#else
enum { SHARED = 227 << 10 };
#endif

enum { TILE_M = 128, SIXTEEN = 16 * LINE }; // SIXTEEN: bytes of a line of 16 rows
template <int PRECISION, class T> struct Shape {
    static_assert(T::ROWS == TILE_M, "eight warps share so many rows");
    enum {
        MODE = PRECISION,
        TERMS = MODE == MODE_FP32 ? 2 : 1,                     // hi and lo
        STEPS = 4 / TERMS,                                     // of 32 bytes in a line, for each term
        N = SHARED > MMA_WIDE && MODE != MODE_FP32 ? (int)T::N : 128, // of a tile, as lf_tile_on
        RASTER = T::RASTER,
        STAGE = (TILE_M + N) * LINE,
        FIT = (SHARED - (int)sizeof scratch - LINE) / STAGE,
        STAGES = FIT < MMA_STAGES ? (int)FIT : MMA_STAGES,
        ACROSS = N / 64,                                       // warps side by side
        DEEP = TILE_M * ACROSS / 8 / 16,                       // of a warp: blocks of 16 rows
        SUMS = DEEP * 32,
        Q = 2                                                  // blocks of 16 columns that are multiplied at once
    };
};

// Where the lines of an operand are, in the place of a tensor map.
struct alignas(64) TensorMap {
    const u8 *lines;
    u8 unused[120];
};

// ---- instructions ----

__device__ __forceinline__ void pair_sync() { meet<64>(1 + threadIdx.x / 64); }

// d (16 x 8) = a b^T + (fresh ? 0 : d), over 32 bytes of a line
template <int MODE> __device__ __forceinline__ void multiply(float *d, const unsigned *a, const unsigned *b, bool fresh)
{
    if (MODE == MODE_TF32)
        mma_tf32(d, a, b);
    else if (MODE == MODE_BF16)
        mma_bf16(d, a, b);
    else if (fresh)
        mma_f16_fresh(d, a, b);
    else
        mma_f16(d, a, b);
}

// ---- lines on their way into shared memory ----

// What threads have written, copies of threads read: nothing to do.
__device__ __forceinline__ void written_to_copied() {}

// Tile t -> row block and column tile. Row blocks go fastest, RASTER of them, then columns: x's rows stay in L2 while
// the weight streams past them once.
template <class G, class S> __device__ __forceinline__ void tile_at(int t, int row_blocks, int &mt, int &nt)
{
    constexpr int N = S::N, columns = (Wide<G>::N + N - 1) / N;
    const int group = t / (S::RASTER * columns), first = group * S::RASTER,
              here = min((int)S::RASTER, row_blocks - first);
    const int r = t - group * S::RASTER * columns;
    mt = first + r % here;
    nt = r / here;
}

// Line after line of tile after tile. Eight threads copy the line of a row; the 16 bytes c of row r go where c ^ r % 8
// would be, so that eight rows of a column lie in different banks. After the last tile nothing is copied, and the
// groups that are waited for are empty.
template <class G, class S> struct Feed {
    // ROWS: copied at once
    enum { N = S::N, ALL = Wide<G>::N, ROWS = 32, OF_X = TILE_M / ROWS, COPIES = OF_X + N / ROWS };
    const u8 *x, *w, *from_x, *from_w;
    i64 rows;
    unsigned to, here; // this thread's place in a stage; bit i: copy i has something to take
    int row_blocks, tiles, tile, line;
    __device__ __forceinline__ Feed(const u8 *x, const u8 *w, i64 rows, int row_blocks, int tiles)
        : x(x), w(w), from_x(x), from_w(w), rows(rows),
          to(threadIdx.x / 8 * LINE + (threadIdx.x ^ threadIdx.x / 8) % 8 * 16), row_blocks(row_blocks), tiles(tiles),
          tile(blockIdx.x), line(0)
    {
        aim();
    }
    __device__ __forceinline__ void aim()
    {
        here = 0;
        if (tile >= tiles)
            return;
        int mt, nt;
        tile_at<G, S>(tile, row_blocks, mt, nt);
        const i64 row = (i64)mt * TILE_M + threadIdx.x / 8, column = (i64)nt * N + threadIdx.x / 8;
        from_x = x + row * (G::LINES * LINE) + threadIdx.x % 8 * 16;
        from_w = w + column * LINE + threadIdx.x % 8 * 16;
#pragma unroll
        for (int i = 0; i < COPIES; ++i)
            here |= (unsigned)(i < OF_X ? row + i * ROWS < rows : ALL % N == 0 || column + (i - OF_X) * ROWS < ALL)
                    << i;
    }
    __device__ __forceinline__ void copy(int i, unsigned stage) const
    {
        const u8 *from = i < OF_X ? from_x + (i64)i * ROWS * (G::LINES * LINE) : from_w + (i64)(i - OF_X) * ROWS * LINE;
        const bool is_here = here >> (i >= OF_X && ALL % N == 0 ? OF_X : i) & 1;
        copy_async<true>(stage + to + i * (ROWS * LINE), from, is_here ? 16 : 0);
    }
    __device__ __forceinline__ void end_line()
    {
        copy_commit();
        from_x += LINE, from_w += (i64)ALL * LINE;
        if (++line == G::LINES) {
            line = 0, tile += gridDim.x;
            aim();
        }
    }
    __device__ __forceinline__ void copy_line(unsigned stage)
    {
#pragma unroll
        for (int i = 0; i < COPIES; ++i)
            copy(i, stage);
        end_line();
    }
};

// ---- multiplying ----

// What a warp has of a line in registers: of x one step, of the weight one piece, which is 16 Q columns of a step; and
// the next ones. at_a, at_b: where this lane's row begins in the stage.
template <class S> struct Fragments {
    enum { Q = S::Q, PIECES = 4 / Q }; // of a warp's 64 columns
    unsigned a[2][S::TERMS][S::DEEP][4], b[2][S::TERMS][Q][4], at_a, at_b;
    __device__ __forceinline__ Fragments()
    {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int row_a = warp / S::ACROSS * (S::DEEP * 16) + lane % 16,
                  row_b = warp % S::ACROSS * 64 + lane / 16 * 8 + lane % 8;
        at_a = row_a * LINE + (lane / 16 ^ row_a % 8) * 16;
        at_b = (TILE_M + row_b) * LINE + (lane / 8 % 2 ^ row_b % 8) * 16;
    }
    // Piece p of a line: step p / PIECES, columns p % PIECES.
    __device__ __forceinline__ void load(unsigned stage, int p)
    {
        const int step = p / PIECES;
#pragma unroll
        for (int t = 0; t < S::TERMS; ++t)
#pragma unroll
            for (int q = 0; q < Q; ++q)
                matrices(b[p % 2][t][q], (stage + at_b ^ (step + 2 * t) * 32) + (p % PIECES * Q + q) * SIXTEEN);
        if (p % PIECES == 0)
#pragma unroll
            for (int t = 0; t < S::TERMS; ++t)
#pragma unroll
                for (int i = 0; i < S::DEEP; ++i)
                    matrices(a[step % 2][t][i], (stage + at_a ^ (step + 2 * t) * 32) + i * SIXTEEN);
    }
    __device__ __forceinline__ void product(float (&acc)[S::SUMS], int p, int ta, int tb, bool fresh)
    {
#pragma unroll
        for (int i = 0; i < S::DEEP; ++i)
#pragma unroll
            for (int j = 0; j < 2 * Q; ++j)
                multiply<S::MODE>(acc + i * 32 + (p % PIECES * 2 * Q + j) * 4, a[p / PIECES % 2][ta][i],
                                  b[p % 2][tb][j / 2] + j % 2 * 2, fresh);
    }
    __device__ __forceinline__ void products(float (&acc)[S::SUMS], int p, bool fresh)
    {
        if constexpr (S::MODE == MODE_FP32) { // the small ones first, while the sum is small
            product(acc, p, 1, 0, fresh);
            product(acc, p, 0, 1, false);
        }
        product(acc, p, 0, 0, false);
    }
};

// The columns of piece p of so many.
template <int PIECES, int SUMS>
__device__ __forceinline__ void promote(const float (&acc)[SUMS], float (&sum)[SUMS], int p)
{
    constexpr int each = 32 / PIECES;
#pragma unroll
    for (int i = 0; i < SUMS / PIECES; ++i)
        sum[i / each * 32 + p * each + i % each] += acc[i / each * 32 + p * each + i % each];
}

// Stages in turn: the one that is read, and the one before it, which all are done with and which takes the next line
// that is copied.
template <class G, class S> struct Stages {
    unsigned first, now, before;
    Feed<G, S> feed;
    __device__ __forceinline__ Stages(const u8 *x, const u8 *w, i64 rows, int row_blocks, int tiles, unsigned first)
        : first(first), now(first + (S::STAGES - 1) * S::STAGE), feed(x, w, rows, row_blocks, tiles)
    {
#pragma unroll 1
        for (int s = 0; s < S::STAGES - 1; ++s)
            feed.copy_line(first + s * S::STAGE);
        turn();
    }
    // All of the line is copied but for the latest; to the next line that is read.
    __device__ __forceinline__ void turn()
    {
        copy_wait<S::STAGES - 2>();
        __syncthreads();
        before = now;
        now = now == first + (S::STAGES - 1) * S::STAGE ? first : now + S::STAGE;
    }
};

// All lines of a tile.
template <class G, class S>
__device__ __forceinline__ void multiply_tile(float (&acc)[S::SUMS], Fragments<S> &f, Stages<G, S> &stages)
{
    constexpr bool promotes = G::MODE == MODE_FP32;
    constexpr int chunk = promotes ? G::CHUNK : 1, across = Fragments<S>::PIECES, pieces = S::STEPS * across,
                  copies = Feed<G, S>::COPIES;
    float sum[S::SUMS];
#pragma unroll
    for (int i = 0; i < S::SUMS; ++i)
        (promotes ? sum[i] : acc[i]) = 0.0f;
#pragma unroll 1
    for (int line = 0; line < G::LINES; line += chunk) {
#pragma unroll
        for (int c = 0; c < chunk; ++c) {
#pragma unroll
            for (int p = 0; p < pieces; ++p) {
                if (p == pieces - 1) { // what is left of this line is in registers
                    stages.feed.end_line();
                    stages.turn();
                }
                f.load(stages.now, (p + 1) % pieces);
                f.products(acc, p, promotes && c == 0 && p < across);
                if (p < pieces - 1)
#pragma unroll
                    for (int i = p * copies / (pieces - 1); i < (p + 1) * copies / (pieces - 1); ++i)
                        stages.feed.copy(i, stages.before);
                if (promotes && c == chunk - 1 && p > pieces - across)
                    promote<across>(acc, sum, p % across - 1); // while the next product is under way
            }
        }
        if (promotes)
            promote<across>(acc, sum, across - 1);
    }
    if (promotes)
#pragma unroll
        for (int i = 0; i < S::SUMS; ++i)
            acc[i] = sum[i];
}

// ---- what becomes of the sums ----

// Two neighbouring warps have the same rows, 64 columns each: the left one takes the upper half of the rows, the right
// one the lower half, through the stage that is free. Leaves [rows / 16][16 pairs of columns ...], 64 sums for 16 rows,
// as one finish_half takes them.
template <int SUMS> __device__ __forceinline__ void swap_halves(float (&v)[SUMS], unsigned stage)
{
    const bool right = threadIdx.x & 32;
    const unsigned pair = stage + threadIdx.x / 64 * (64 * 32 * 4), mine = pair + threadIdx.x % 64 * 16,
                   other = pair + (threadIdx.x ^ 32) % 64 * 16;
#pragma unroll
    for (int half = 0; half < SUMS / 64; ++half) {
        if (half > 0)
            pair_sync(); // what was there has been read
#pragma unroll
        for (int i = 0; i < 32; i += 4) {
            const int u = half * 32 + i, l = SUMS / 2 + u;
            shared_put(mine + i * 256, make_float4(right ? v[u] : v[l], right ? v[u + 1] : v[l + 1],
                                                   right ? v[u + 2] : v[l + 2], right ? v[u + 3] : v[l + 3]));
        }
        pair_sync();
#pragma unroll
        for (int i = 0; i < 32; i += 4) {
            const int u = half * 32 + i, l = SUMS / 2 + u;
            float4 q;
            shared_get(q, other + i * 256);
            const float got[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                v[u + k] = right ? got[k] : v[u + k];
                v[l + k] = right ? v[l + k] : got[k];
            }
        }
    }
    // Block b of 16 rows is now v[32 b ..] in the left 64 columns and v[SUMS / 2 + 32 b ..] in the right ones.
    float w[SUMS];
#pragma unroll
    for (int i = 0; i < SUMS; ++i)
        w[i] = v[i / 32 % 2 * (SUMS / 2) + i / 64 * 32 + i % 32];
#pragma unroll
    for (int i = 0; i < SUMS; ++i)
        v[i] = w[i];
}

template <class G, class S>
__device__ __forceinline__ void finish_tile(const typename G::A &a, float (&v)[S::SUMS], i64 row, i64 rows, int nt)
{
    static_assert(!G::WAITS, "row blocks are under way in any number");
    const int lane = threadIdx.x % 32, partial = nt * (S::N / PARTIAL) + threadIdx.x / 32 % S::ACROSS / 2,
              col = of_each<G>(partial * PARTIAL) + 2 * (lane % 4);
    if (Wide<G>::N % S::N != 0 && partial * PARTIAL >= Wide<G>::N)
        return;
    row += lane / 4;
    const auto unscale = [&](i64 r) { return G::SCALED && r < rows ? __ldcg(G::x_unscale(a) + r) : 1.0f; };
    if constexpr (G::PART < HALF) {
#pragma unroll 1
        for (int half = 0; half < S::SUMS / HALF; ++half) {
            const float u[2] = {unscale(row + 16 * half), unscale(row + 16 * half + 8)};
            finish_half<G, 0, true>(a, v, row + 16 * half, rows, col, partial, u, half);
        }
    } else {
        const float u[2] = {unscale(row), unscale(row + 8)};
        finish_half<G, 0, false>(a, v, row, rows, col, partial, u, 0);
        if constexpr (S::SUMS > HALF) {
            const float l[2] = {unscale(row + 16), unscale(row + 24)};
            finish_half<G, HALF, false>(a, v, row + 16, rows, col, partial, l, 1);
        }
    }
    if constexpr (G::HELD && !(is_straight<G>() && G::PART < HALF)) {
        typename G::Known known[2];
        if constexpr (G::PART < HALF) {
#pragma unroll 1
            for (int half = 0; half < S::SUMS / HALF; ++half)
                later_half<G, 0, true>(a, v, row + 16 * half, rows, col, known, half);
        } else {
            later_half<G, 0, false>(a, v, row, rows, col, known, 0);
            if constexpr (S::SUMS > HALF)
                later_half<G, HALF, false>(a, v, row + 16, rows, col, known, 1);
        }
    }
}

// x: [rows][LINES], w: [LINES][N], lines as text/split.cu makes them. All threads come out of it together, and shared
// memory is free.
template <class G, class P>
__device__ __forceinline__ void tensor_product(const typename G::A &a, const Control &, const TensorMap *x,
                                               const TensorMap *w)
{
    typedef Shape<G::MODE, P> S;
    const i64 rows = G::rows(a);
    const int row_blocks = (int)((rows + TILE_M - 1) / TILE_M), tiles = row_blocks * ((Wide<G>::N + S::N - 1) / S::N),
              warp = threadIdx.x / 32;
    Stages<G, S> stages(x->lines, w->lines, rows, row_blocks, tiles, (shared_address(raw) + LINE - 1) & ~(LINE - 1u));
    Fragments<S> f;
    f.load(stages.now, 0);
#pragma unroll 1
    for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
        int mt, nt;
        tile_at<G, S>(t, row_blocks, mt, nt);
        const i64 row = (i64)mt * TILE_M + warp / S::ACROSS * (S::DEEP * 16);
        float v[S::SUMS];
        multiply_tile<G, S>(v, f, stages);
        swap_halves(v, stages.before);
        __syncthreads(); // the stage that was swapped through can be filled
        finish_tile<G, S>(a, v, row + warp % 2 * (S::DEEP * 8), rows, nt);
    }
    copy_wait<0>();
    __syncthreads();
}
