// SPDX-License-Identifier: Apache-2.0
// Products of few rows on Hopper's tensor cores, at the speed of memory: the weight goes past once, 64 of its rows in each block, and is what the tensor cores
// take from the left, so that x need not be filled up to 64 rows. A block has three parts: one thread keeps as many stages on their way as fit, four warps
// multiply, four finish. A cluster of two blocks makes the 128 columns of a partial: both leave their sums with the block that finishes their rows.
// The order of all additions is that of text/wgmma.cu, so a row's bits are the same.

template <int MOST> struct Few {
    enum {
        ROWS = MOST, COLUMNS = 64, SUMS = ROWS / 2, SHARED = ROWS > 16, // SHARED: each block fetches half of x's rows for both
        W_BYTES = COLUMNS * LINE, X_BYTES = ROWS * LINE, STAGE = W_BYTES + X_BYTES, STAGES = 200 * 1024 / STAGE,
        OWNERS = ROWS > 16 ? 2 : 1, HELD = ROWS / OWNERS, // blocks of a cluster that finish rows, and how many each
        PITCH = PARTIAL + 4, HELD_BYTES = (HELD < 16 ? 16 : HELD) * PITCH * 4
    };
};
struct few_room { // addresses of a block's shared memory
    unsigned stages, sums, full, empty, ready, taken;
};
template <class S> __device__ __forceinline__ few_room few_room_at()
{
    few_room r;
    r.stages = (shared_address(raw) + 1023) & ~1023u;
    r.sums = r.stages + S::STAGES * S::STAGE;
    r.full = r.sums + S::HELD_BYTES;
    r.empty = r.full + 8 * S::STAGES;
    r.ready = r.empty + 8 * S::STAGES; // all sums of a tile are there
    r.taken = r.ready + 8;             // and have been read
    return r;
}

// ---- between the blocks of a cluster ----

__device__ __forceinline__ unsigned address_in(unsigned address, int rank)
{
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
__device__ __forceinline__ void write_there(unsigned there, float v) { asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(v) : "memory"); }
// With what was written and read before: once a tile.
__device__ __forceinline__ void barrier_pass(unsigned bar, int rank)
{
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(address_in(bar, rank)) : "memory");
}
__device__ __forceinline__ void barrier_wait_cluster(unsigned bar, int parity)
{
    barrier_wait(bar, parity);
    asm volatile("fence.acq_rel.cluster;" ::: "memory");
}

// ---- copies ----

__device__ __forceinline__ void barrier_expect_more(unsigned bar, int bytes)
{
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

template <class G> struct Lines { // elements of the map in a line; column tiles of a cluster
    enum { STEP = G::MODE == MODE_TF32 ? 32 : 64, TILES = (G::N + PARTIAL - 1) / PARTIAL };
};

// What does not need x, so that it can be under way before x is there: barriers, and the weight's part of the first stages.
template <class G, class S> __device__ __forceinline__ void few_rows_begin(const TensorMap *w_map)
{
    const few_room r = few_room_at<S>();
    if (threadIdx.x == 0) {
        for (int s = 0; s < S::STAGES; ++s)
            barrier_init(r.full + 8 * s, 1), barrier_init(r.empty + 8 * s, S::SHARED ? 2 : 1);
        barrier_init(r.ready, 2 * 128), barrier_init(r.taken, S::OWNERS * 128);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        if (blockIdx.x / 2 < Lines<G>::TILES)
            for (int s = 0; s < S::STAGES && s < G::LINES; ++s) {
                barrier_expect_more(r.full + 8 * s, S::W_BYTES);
                copy_box(r.stages + s * S::STAGE, w_map, s * Lines<G>::STEP, blockIdx.x * S::COLUMNS, r.full + 8 * s);
            }
    }
    cluster_sync();
}

template <class G, class S> __device__ __forceinline__ void few_produce(const TensorMap *x_map, const TensorMap *w_map, const few_room &r, int rank)
{
    int s = 0, phase = 0, begun = S::STAGES;
    for (int t = blockIdx.x / 2; t < Lines<G>::TILES; t += gridDim.x / 2, begun = 0)
        for (int line = 0; line < G::LINES; ++line) {
            const unsigned to = r.stages + s * S::STAGE, full = r.full + 8 * s;
            const int x = line * Lines<G>::STEP;
            barrier_wait(r.empty + 8 * s, phase ^ 1);
            barrier_expect(full, line < begun ? S::X_BYTES : S::STAGE);
            if (line >= begun)
                copy_box(to, w_map, x, t * PARTIAL + rank * S::COLUMNS, full);
            if (S::SHARED)
                copy_box_to(to + S::W_BYTES + rank * (S::X_BYTES / 2), x_map, x, rank * (S::ROWS / 2), full, 3);
            else
                copy_box(to + S::W_BYTES, x_map, x, 0, full);
            if (++s == S::STAGES)
                s = 0, phase ^= 1;
        }
}

// ---- the multiplying warps ----

template <class G, class S> __device__ __forceinline__ void few_multiply(const few_room &r, int rank)
{
    constexpr bool promotes = G::MODE == MODE_FP32;
    constexpr int chunk = promotes ? G::CHUNK : G::LINES, SUMS = S::SUMS;
    const int tid = threadIdx.x - 128, column = rank * S::COLUMNS + tid / 32 * 16 + tid % 32 / 4, row = 2 * (tid % 4);
    const unsigned at_w = tile_low(r.stages), at_x = tile_low(r.stages + S::W_BYTES);
    int s = 0, phase = 0, last = 0, turn = 0;
    const auto release = [&](int stage) {
        if (tid < (S::SHARED ? 2 : 1)) // thread i tells block i
            barrier_arrive(r.empty + 8 * stage, S::SHARED ? tid : rank);
    };
    for (int t = blockIdx.x / 2; t < Lines<G>::TILES; t += gridDim.x / 2, turn ^= 1) {
        float acc[SUMS], sum[SUMS];
        for (int i = 0; i < SUMS; ++i)
            sum[i] = 0;
        for (int line = 0; line < G::LINES; line += chunk) {
            pin(acc);
#pragma unroll(promotes ? chunk : 1)
            for (int i = 0; i < chunk; ++i) {
                barrier_wait(r.full + 8 * s, phase);
                wgmma_fence();
                const unsigned o = s * (S::STAGE >> 4);
                multiply_stage<G::MODE>(acc, at_x + o, at_w + o, i != 0);
                wgmma_commit();
                if (i > 0) {
                    wgmma_wait<1>();
                    release(last);
                }
                last = s;
                if (++s == S::STAGES)
                    s = 0, phase ^= 1;
            }
            wgmma_wait<0>();
            pin(acc);
            release(last);
#pragma unroll
            for (int i = 0; i < SUMS; ++i)
                sum[i] = promotes ? sum[i] + acc[i] : acc[i];
        }
        barrier_wait_cluster(r.taken, turn ^ 1);
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            const int at = row + i / 4 * 8 + i % 2; // its row in the tile
            write_there(address_in(r.sums, at / S::HELD) + ((at % S::HELD) * S::PITCH + column + i / 2 % 2 * 8) * 4, sum[i]);
        }
        for (int owner = 0; owner < S::OWNERS; ++owner)
            barrier_pass(r.ready, owner);
    }
}

// ---- the finishing warps ----

__device__ __forceinline__ float2 shared_pair(unsigned a)
{
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(a) : "memory");
    return v;
}
__device__ __forceinline__ void finishers_sync() { asm volatile("bar.sync 1, 128;" ::: "memory"); }

// The sums of two rows of a partial, eight apart, as text/finish.cu has them.
template <class S> __device__ __forceinline__ void few_take(float (&v)[HALF], unsigned sums, int row, int lane)
{
#pragma unroll
    for (int i = 0; i < HALF; i += 2) {
        const float2 p = row + i / 2 % 2 * 8 < S::HELD ? shared_pair(sums + ((row + i / 2 % 2 * 8) * S::PITCH + i / 4 * 8 + 2 * (lane % 4)) * 4) : make_float2(0, 0);
        v[i] = p.x, v[i + 1] = p.y;
    }
}

template <class G, class S> __device__ __forceinline__ void few_finish(const typename G::A &a, const few_room &r, int rank, i64 rows)
{
    const int tid = threadIdx.x - 256, lane = tid % 32, group = tid / 32 * 16, first_row = rank * S::HELD;
    const i64 row = first_row + group + lane / 4; // of those that a warp folds
    const bool folds = group < S::HELD && first_row + group < rows;
    int turn = 0;
    const auto taken = [&] { barrier_pass(r.taken, 0), barrier_pass(r.taken, 1); };
    for (int t = blockIdx.x / 2; t < Lines<G>::TILES; t += gridDim.x / 2, turn ^= 1) {
        const int col = t * PARTIAL + 2 * (lane % 4);
        float v[HALF];
        if constexpr (G::STATS > 1) { // the others are fed as elements come, each by one thread
            barrier_wait_cluster(r.ready, turn);
            if (folds)
                few_take<S>(v, r.sums, group + lane / 4, lane);
            taken();
            if (folds) {
                const float unscale[2] = {G::SCALED && row < rows ? __ldcg(G::x_unscale(a) + row) : 1.0f, G::SCALED && row + 8 < rows ? __ldcg(G::x_unscale(a) + row + 8) : 1.0f};
                finish_half<G, 0, (G::PART < HALF)>(a, v, row, rows, col, t, unscale);
            }
        } else { // elements by all threads, a pair of columns each, then the statistic
            const int mine = t * PARTIAL + tid % 64 * 2;
            const bool some = mine < G::N;
            float s[2] = {1.0f, 1.0f};
            typename G::Rest rest[2];
            if (G::SCALED && some)
                load<true, G::N % 2 == 0>(s, G::w_unscale(a) + mine);
            barrier_wait_cluster(r.ready, turn);
#pragma unroll 4
            for (int i = tid / 64; i < S::HELD && first_row + i < rows; i += 2) {
                const unsigned at = r.sums + (i * S::PITCH + tid % 64 * 2) * 4;
                float2 p = shared_pair(at);
                if (some)
                    finish_pair<G>(a, p.x, p.y, first_row + i, rows, mine, G::SCALED ? __ldcg(G::x_unscale(a) + first_row + i) : 1.0f, s, rest[0]);
                if (G::STATS > 0)
                    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(p.x), "f"(p.y) : "memory");
            }
            if constexpr (G::STATS > 0) {
                finishers_sync();
                if (folds)
                    few_take<S>(v, r.sums, group + lane / 4, lane);
            }
            taken();
            if constexpr (G::STATS > 0)
                if (folds)
                    finish_stats<G, 0>(a, v, row, rows, col, t, rest);
        }
    }
}

template <class G, class S> __device__ __forceinline__ void few_rows_end(const typename G::A &a, const TensorMap *x_map, const TensorMap *w_map)
{
    const few_room r = few_room_at<S>();
    const int rank = blockIdx.x % 2, part = __shfl_sync(~0u, threadIdx.x / 128, 0);
    const i64 rows = G::rows(a);
    if (part == 0) {
        if (threadIdx.x == 0) {
            written_to_copied(); // x's lines, by an earlier stage
            few_produce<G, S>(x_map, w_map, r, rank);
        }
    } else if (part == 1) {
        few_multiply<G, S>(r, rank);
    } else if (rank < S::OWNERS) {
        few_finish<G, S>(a, r, rank, rows);
    }
    cluster_sync(); // no block goes on while another may still signal it
    if (threadIdx.x == 0)
        for (int s = 0; s < 2 * S::STAGES + 2; ++s)
            barrier_end(r.full + 8 * s);
}

template <class G, class S> __device__ __forceinline__ void few_rows_product(const typename G::A &a, const TensorMap *x_map, const TensorMap *w_map)
{
    few_rows_begin<G, S>(w_map);
    few_rows_end<G, S>(a, x_map, w_map);
}
