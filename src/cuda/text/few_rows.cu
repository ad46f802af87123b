// SPDX-License-Identifier: Apache-2.0
// Products of few rows on Hopper's tensor cores, at the speed of memory: the weight goes past once, 64 of its rows in
// each block, and is what the tensor cores take from the left, so that x need not be filled up to 64 rows. A block has
// three parts: two threads keep as many stages on their way as fit, four warps bring x into lines, where it does not
// lie so, and multiply, four finish. A cluster of two blocks makes the 128 columns of a partial: both leave their sums
// with the block that finishes their rows. The order of all additions is that of text/wgmma.cu, so a row's bits are
// the same.

template <class T> struct Few {
    enum {
        ROWS = T::ROWS,
        COLUMNS = T::N,
        SUMS = T::SUMS,
        SHARED = T::SHARED, // each block fetches half of x's rows for both
        DEEP = T::DEEP, // lines of a stage: what has to be done for each stage would take longer than to multiply one
        W_LINE = COLUMNS * LINE,
        X_LINE = ROWS * LINE,
        W_BYTES = DEEP * W_LINE,
        STAGE = W_BYTES + DEEP * X_LINE,
        STAGES = T::STAGES,
        AHEAD = 64 * 1024 / W_BYTES, // stages of the weight that are under way at once, see below
        PITCH = PARTIAL + 4,
        SUM_BYTES = T::WAITING * PITCH * 4,
        BARRIERS = 3 * STAGES + 3
    };
    static_assert(T::CM == 2 && COLUMNS == 64 && STAGES * STAGE <= 200 * 1024, "what the parts of a block count on");
};
template <class G> __device__ constexpr bool few_by_pairs() // how a tile is finished, see below
{
    if constexpr (G::PRODUCTS > 1)
        return false;
    else if constexpr (G::HELD)
        return G::STATS < 2 && G::RUN == 0 && sizeof(typename G::Known) <= 16;
    else
        return G::STATS < 2;
}
template <class G> struct Lines { // column tiles of a cluster
    enum { TILES = (Wide<G>::N + PARTIAL - 1) / PARTIAL };
};
// blocks of a cluster that finish rows, and how many each: a warp wants 16 where quads do it
template <class G, class S> struct Owners {
    enum { N = few_by_pairs<G>() || S::ROWS > 16 ? 2 : 1, ROWS = S::ROWS / N, ALL = N * Lines<G>::TILES };
};
struct few_room { // addresses of a block's shared memory
    unsigned stages, sums, full_w, full_x, empty, ready, taken, split, arrived;
};
template <class S> __device__ __forceinline__ few_room few_room_at()
{
    few_room r;
    r.stages = (shared_address(raw) + 1023) & ~1023u;
    r.sums = r.stages + S::STAGES * S::STAGE;
    r.full_w = r.sums + S::SUM_BYTES;
    r.full_x = r.full_w + 8 * S::STAGES;
    r.empty = r.full_x + 8 * S::STAGES;
    r.ready = r.empty + 8 * S::STAGES; // all sums of a tile are there
    r.taken = r.ready + 8;             // and have been read
    r.split = r.taken + 8;             // this block's rows of x are in lines
    r.arrived = r.split + 8;           // at the barrier of all blocks
    return r;
}

// With what was written and read before: once a tile. From each thread: one of a warp would do, but not for racecheck.
__device__ __forceinline__ void barrier_pass(unsigned bar, int rank) { barrier_pass_there(address_in(bar, rank)); }

// ---- copies ----

// The weight does not wait for x: each has a thread and barriers of its own. Of the weight's stages AHEAD are under way
// at once, which keeps memory busy; more would stand in line there, in front of what x's way into lines has to wait
// for, and L2 would have to make room for all of them by writing back what others left.
template <class G, class S>
__device__ __forceinline__ void few_produce_w(const TensorMap *w_map, const few_room &r, int rank)
{
    int s = 0, phase = 0, before = S::STAGES - S::AHEAD, before_phase = 1;
    for (int t = blockIdx.x / 2; t < Lines<G>::TILES; t += gridDim.x / 2)
        for (int line = 0; line < G::LINES; line += S::DEEP) {
            barrier_wait(r.empty + 8 * s, phase ^ 1);
            barrier_wait(r.full_w + 8 * before, before_phase);
            barrier_expect(r.full_w + 8 * s, S::W_BYTES);
            copy_box_once(r.stages + s * S::STAGE, w_map, line, t * PARTIAL + rank * S::COLUMNS, r.full_w + 8 * s);
            if (++s == S::STAGES)
                s = 0, phase ^= 1;
            if (++before == S::STAGES)
                before = 0, before_phase ^= 1;
        }
}
template <class G, class S>
__device__ __forceinline__ void few_produce_x(const Control &c, const TensorMap *x_map, const few_room &r, int rank,
                                              int rows)
{
    // whole groups of eight rows, as they are swizzled
    const int mine = S::SHARED ? (rows + 15) / 16 * 8 : rows, bytes = (S::SHARED ? 2 : 1) * S::DEEP * mine * LINE;
    int s = 0, phase = 0;
    if constexpr (G::BROUGHT) { // into lines, by all blocks
        unsigned before;
        barrier_wait(r.split, 0);
        shared_get(before, r.arrived);
        grid_wait(c, before);
        written_to_copied();
    }
    for (int t = blockIdx.x / 2; t < Lines<G>::TILES; t += gridDim.x / 2)
        for (int line = 0; line < G::LINES; line += S::DEEP) {
            const unsigned to = r.stages + s * S::STAGE + S::W_BYTES, full = r.full_x + 8 * s;
            barrier_wait(r.empty + 8 * s, phase ^ 1);
            barrier_expect(full, bytes);
#pragma unroll
            for (int i = 0; i < S::DEEP; ++i) // past the last line there is 0
                if (S::SHARED)
                    copy_box_to(to + i * S::X_LINE + rank * mine * LINE, x_map, line + i, rank * mine, full, 3);
                else
                    copy_box(to + i * S::X_LINE, x_map, line + i, 0, full);
            if (++s == S::STAGES)
                s = 0, phase ^= 1;
        }
}

// ---- the multiplying warps ----

// For two barriers at once.
__device__ __forceinline__ void barrier_wait_both(unsigned a, unsigned b, int parity)
{
#pragma unroll 1
    for (int spin = 0; spin < (1 << 24); ++spin)
        if (barrier_try_both(a, b, parity))
            return;
    __trap();
}

// Rows of x into lines, G::SPLIT threads each: at once, before the weight's lines are on their way and everything takes
// its turn behind them. The barrier of all blocks that follows is passed by the thread that copies x, and by nobody
// else.
template <class G>
__device__ __forceinline__ void few_split(const typename G::A &a, const Control &c, const few_room &r, int rows)
{
    enum { T = G::SPLIT, EACH_BLOCK = 128 / T };
    const int tid = threadIdx.x - 128;
    unsigned before = 0;
    for (int first = blockIdx.x * EACH_BLOCK; first < rows; first += gridDim.x * EACH_BLOCK)
        // whole warps: those past the end do the last row again
        split_x_row<G>(a, min(first + tid / T, rows - 1), rows, tid % T);
    written_to_copied();
    meet<128>(2);
    if (tid == 0)
        before = grid_arrive(c);
    cluster_wait();
    if (tid == 0) {
        shared_put(r.arrived, before);
        barrier_arrive(r.split, blockIdx.x % 2);
    }
}

// What undoes the scales of a thread's rows.
template <class G, class S>
__device__ __forceinline__ void few_unscale(const typename G::A &a, float (&unscale)[S::SUMS / 2], int row, int rows)
{
#pragma unroll
    for (int i = 0; i < S::SUMS / 2; ++i) {
        const int at = row + i / 2 * 8 + i % 2;
        unscale[i] = G::SCALED && at < rows ? __ldcg(G::x_unscale(a) + at) : 1.0f;
    }
}

// N lines, whole chunks, and whole stages but for the last of a tile. line: the first of them. s, phase: the stage that
// is next. last: the one before, which is released when its products are done.
template <class G, class S, int N, class Release>
__device__ __forceinline__ void multiply_lines(const few_room &r, float (&acc)[S::SUMS], float (&sum)[S::SUMS],
                                               int line, int &s, int &phase, int &last, Release release)
{
    constexpr bool promotes = G::MODE == MODE_FP32;
    // pieces: of a line, each of which is a chunk where there are two
    constexpr int pieces = G::SHORT ? 2 : 1, chunk = promotes ? G::CHUNK : 1, DEEP = S::DEEP;
#pragma unroll
    for (int piece = 0; piece < pieces * N; ++piece) {
        const int i = piece / pieces;
        const bool begins = piece % chunk == 0, ends = promotes && piece % chunk == chunk - 1; // a chunk
        const bool closes = (piece + 1) % pieces == 0 && (i % DEEP == DEEP - 1 || i == N - 1); // a stage
        const unsigned at = s * (S::STAGE >> 4) + piece % pieces * 2;
        if (piece % (pieces * DEEP) == 0)
            barrier_wait_both(r.full_x + 8 * s, r.full_w + 8 * s, phase);
        if (promotes && begins)
            pin(acc);
        wgmma_fence();
        // a chunk's first product clears the sums
        multiply_swapped<stage_mode<G>()>(acc, tile_low(r.stages + S::W_BYTES) + at + i % DEEP * (S::X_LINE >> 4),
                                          tile_low(r.stages) + at + i % DEEP * (S::W_LINE >> 4),
                                          promotes ? !begins : line + i != 0);
        if (closes || ends)
            wgmma_commit();
        if (ends) {
            wgmma_wait<0>();
            pin(acc);
#pragma unroll
            for (int k = 0; k < S::SUMS; ++k)
                sum[k] += acc[k];
        }
        if (!closes)
            continue;
        if (promotes ? i % chunk >= DEEP : line + i >= DEEP) { // the stage before this one
            if (!ends)
                wgmma_wait<1>();
            release(last);
        }
        if (ends)
            release(s);
        last = s;
        if (++s == S::STAGES)
            s = 0, phase ^= 1;
    }
}

template <class G, class S>
__device__ __forceinline__ void few_multiply(const typename G::A &a, const few_room &r, int rank, int rows)
{
    constexpr bool promotes = G::MODE == MODE_FP32;
    constexpr int SUMS = S::SUMS, together = promotes && G::CHUNK > S::DEEP ? (int)G::CHUNK : (int)S::DEEP;
    const int tid = threadIdx.x - 128, column = rank * S::COLUMNS + tid / 32 * 16 + tid % 32 / 4, row = 2 * (tid % 4);
    int s = 0, phase = 0, last = 0, turn = 0;
    const auto release = [&](int stage) {
        if (tid < (S::SHARED ? 2 : 1)) // thread i tells block i
            barrier_arrive(r.empty + 8 * stage, S::SHARED ? tid : rank);
    };
    float acc[SUMS], sum[SUMS], unscale[SUMS / 2];
    for (int t = blockIdx.x / 2; t < Lines<G>::TILES; t += gridDim.x / 2, turn ^= 1) {
        for (int i = 0; i < SUMS; ++i)
            sum[i] = 0;
        if (S::ROWS <= 16) { // they fit into registers: long there when they are wanted
            barrier_wait(r.full_x + 8 * s, phase); // x is there, and so are its scales
            few_unscale<G, S>(a, unscale, row, rows);
        }
        if (!promotes)
            pin(acc);
#pragma unroll 1
        for (int line = 0; line + together <= G::LINES; line += together)
            multiply_lines<G, S, together>(r, acc, sum, line, s, phase, last, release);
        if constexpr (G::LINES % together != 0)
            multiply_lines<G, S, G::LINES % together>(r, acc, sum, G::LINES / together * together, s, phase, last,
                                                      release);
        if (!promotes) {
            wgmma_wait<0>();
            pin(acc);
            release(last);
#pragma unroll
            for (int i = 0; i < SUMS; ++i)
                sum[i] = acc[i];
        }
        if (S::ROWS > 16)
            few_unscale<G, S>(a, unscale, row, rows);
        barrier_wait<true>(r.taken, turn ^ 1);
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            const int at = row + i / 4 * 8 + i % 2; // its row in the tile
            if (at < rows)
                write_there(address_in(r.sums, at / Owners<G, S>::ROWS) +
                                ((at % Owners<G, S>::ROWS) * S::PITCH + column + i / 2 % 2 * 8) * 4,
                            sum[i] * unscale[i / 4 * 2 + i % 2]);
        }
        for (int owner = 0; owner < Owners<G, S>::N; ++owner)
            barrier_pass(r.ready, owner);
    }
}

// ---- the finishing warps ----

__device__ __forceinline__ float2 shared_pair(unsigned a)
{
    float2 v;
    shared_get(v, a);
    return v;
}
__device__ __forceinline__ void finishers_sync() { meet<128>(1); }

// The sums of two rows of a partial, eight apart, as text/finish.cu has them.
template <class S> __device__ __forceinline__ void few_take(float (&v)[HALF], unsigned sums, int row, int lane)
{
#pragma unroll
    for (int i = 0; i < HALF; i += 2) {
        const float2 p = shared_pair(sums + ((row + i / 2 % 2 * 8) * S::PITCH + i / 4 * 8 + 2 * (lane % 4)) * 4);
        v[i] = p.x, v[i + 1] = p.y;
    }
}

// A tile as text/wgmma.cu finishes it, a warp for 16 rows: what feeds several statistics, or statistics of runs.
template <class G, class S, class Taken>
__device__ __forceinline__ void few_finish_by_quads(const typename G::A &a, const Control &c, const few_room &r, int t,
                                                    int first_row, int rows, Taken taken)
{
    constexpr bool BY_PARTS = G::PART < HALF;
    const int tid = threadIdx.x - 256, lane = tid % 32, at = tid / 32 * 16 + lane / 4, row = first_row + at,
              col = of_each<G>(t * PARTIAL) + 2 * (lane % 4);
    const bool any = tid / 32 * 16 < Owners<G, S>::ROWS && first_row + tid / 32 * 16 < rows;
    const float unscale[2] = {1.0f, 1.0f}; // done
    float v[HALF];
    if (any)
        few_take<S>(v, r.sums, at, lane);
    taken();
    if (any)
        finish_half<G, 0, BY_PARTS>(a, v, row, rows, col, t, unscale, 0);
    if constexpr (G::WAITS)
        wait_for_tiles(c, Owners<G, S>::ALL, Owners<G, S>::ALL, tid, true);
    if constexpr (G::HELD && !(is_straight<G>() && BY_PARTS))
        if (any) {
            typename G::Known known[2];
            if constexpr (G::WAITS) {
                G::total(a, row < rows ? row : 0, known[0]);
                G::total(a, row + 8 < rows ? row + 8 : 0, known[1]);
            }
            later_half<G, 0, BY_PARTS>(a, v, row, rows, col, known, 0);
        }
}

// A tile by all threads, a pair of columns each: what the steps leave stays in shared memory, at most one statistic is
// folded from there.
template <class G, class S, class Taken>
__device__ __forceinline__ void few_finish_by_pairs(const typename G::A &a, const Control &c, const few_room &r, int t,
                                                    int first_row, int rows, const float (&s)[2], Taken taken)
{
    const int tid = threadIdx.x - 256, lane = tid % 32, group = tid / 32 * 16, col = t * PARTIAL + tid % 64 * 2,
              here = min((int)Owners<G, S>::ROWS, rows - first_row);
    typename G::Rest rest[2];
#pragma unroll 4
    for (int i = tid / 64; i < here; i += 2) {
        const unsigned at = r.sums + (i * S::PITCH + tid % 64 * 2) * 4;
        float2 p = shared_pair(at);
        if (col < G::N)
            finish_pair<G>(a, p.x, p.y, first_row + i, rows, true, col, 1.0f, s, rest[0]);
        if (G::STATS > 0 || G::HELD)
            shared_put(at, p);
    }
    if constexpr (G::STATS > 0) {
        finishers_sync();
        if (group < here) {
            float v[HALF];
            few_take<S>(v, r.sums, group + lane / 4, lane);
            finish_stats<G, 0>(a, v, first_row + group + lane / 4, first_row + here, t * PARTIAL + 2 * (lane % 4), t,
                               rest);
        }
    }
    if constexpr (G::HELD) {
        typename G::Known known;
        const unsigned row_known = r.sums + PARTIAL * 4; // behind a row's sums
        if constexpr (G::WAITS) {
            wait_for_tiles(c, Owners<G, S>::ALL, Owners<G, S>::ALL, tid, true);
            if (group / 2 < here) { // a quad for a row
                G::total(a, first_row + min(tid / 4, here - 1), known);
#pragma unroll
                for (int i = 0; i < (int)(sizeof known / 4); ++i)
                    shared_put(row_known + tid / 4 * (S::PITCH * 4) + 4 * i, ((const float *)&known)[i]);
            }
            finishers_sync();
        }
#pragma unroll 4
        for (int i = tid / 64; i < here; i += 2) {
#pragma unroll
            for (int j = 0; j < (int)(sizeof known / 4); ++j)
                shared_get(((float *)&known)[j], row_known + i * (S::PITCH * 4) + 4 * j);
            const float2 p = shared_pair(r.sums + (i * S::PITCH + tid % 64 * 2) * 4);
            if (col < G::N)
                later_pair<G>(a, p.x, p.y, first_row + i, rows, true, col, known);
        }
    }
    taken();
}

template <class G, class S>
__device__ __forceinline__ void few_finish(const typename G::A &a, const Control &c, const few_room &r, int rank,
                                           int rows)
{
    int turn = 0;
    const auto taken = [&] { barrier_pass(r.taken, 0), barrier_pass(r.taken, 1); };
    for (int t = blockIdx.x / 2; t < Lines<G>::TILES; t += gridDim.x / 2, turn ^= 1) {
        float s[2] = {1.0f, 1.0f};
        const int col = t * PARTIAL + threadIdx.x % 64 * 2;
        if (few_by_pairs<G>() && G::SCALED && col < G::N)
            load<true, G::N % 2 == 0>(s, G::w_unscale(a) + col);
        barrier_wait<true>(r.ready, turn);
        if constexpr (few_by_pairs<G>())
            few_finish_by_pairs<G, S>(a, c, r, t, rank * Owners<G, S>::ROWS, rows, s, taken);
        else
            few_finish_by_quads<G, S>(a, c, r, t, rank * Owners<G, S>::ROWS, rows, taken);
    }
}

template <class G, class T>
__device__ __forceinline__ void few_rows_product(const typename G::A &a, const Control &c, const TensorMap *x_map,
                                                 const TensorMap *w_map)
{
    typedef Few<T> S;
    const few_room r = few_room_at<S>();
    const int rank = blockIdx.x % 2, part = __shfl_sync(~0u, threadIdx.x / 128, 0), rows = (int)G::rows(a);
    if (rows == 0) // in all blocks: there is no x, and what would be copied in its place nobody waits for
        return;
    if (threadIdx.x < 32) {
        for (int s = threadIdx.x; s < S::STAGES; s += 32)
            barrier_init(r.full_w + 8 * s, 1), barrier_init(r.full_x + 8 * s, 1),
                barrier_init(r.empty + 8 * s, S::SHARED ? 2 : 1);
        if (threadIdx.x == 0)
            barrier_init(r.ready, 2 * 128), barrier_init(r.taken, Owners<G, S>::N * 128), barrier_init(r.split, 1);
        barriers_begun();
        __syncwarp();
    }
    cluster_arrive(); // whoever has to do with others' barriers waits
    if (part == 0) {
        if (threadIdx.x == 0)
            few_produce_w<G, S>(w_map, r, rank);
        cluster_wait();
        if (threadIdx.x == 32)
            few_produce_x<G, S>(c, x_map, r, rank, rows);
    } else if (part == 1) {
        if constexpr (G::BROUGHT)
            few_split<G>(a, c, r, rows);
        else
            cluster_wait();
        few_multiply<G, S>(a, r, rank, rows);
    } else {
        cluster_wait();
        if (rank < Owners<G, S>::N)
            few_finish<G, S>(a, c, r, rank, rows);
    }
    cluster_sync(); // no block goes on while another may still signal it
    for (int s = threadIdx.x; s < S::BARRIERS; s += THREADS)
        barrier_end(r.full_w + 8 * s);
}
