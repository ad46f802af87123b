// SPDX-License-Identifier: Apache-2.0
// Products on Hopper's tensor cores. One producer warp keeps stages of both operands on their way (TMA); two groups of
// four warps multiply, 64 rows x N columns of a tile each, and run the phase's steps on the sums while they are in
// registers. Blocks stay for several tiles, whose shapes plan/shapes.def has.
// The sums go where text/finish.cu takes them, whose partials are of 128 columns either way.
//
// MODE_FP32: a = hi + lo, so a * b is lo*hi + hi*lo + hi*hi. Tensor cores add with truncation: every CHUNK lines the
// sums so far are added to sums of their own, in f32 as it is known. Of these, KEPT are in registers, the others in
// shared memory. Short K: see SHORT.

enum { TILE_M = 128, A_BYTES = TILE_M * LINE, TOUCHED = 32 * 4 };
template <class S> struct Bytes {
    static_assert(S::ROWS == TILE_M && S::DEEP == 1, "two groups of 64 rows, a line at a time");
    enum { B = S::N * LINE, STAGE = A_BYTES + B, SLOTS = (S::SUMS - S::KEPT) * 256 * 4 };
};

// ---- tiles ----

// Which tiles a cluster takes. Where a phase waits for its rows' statistics with its tile in registers, all tiles of a
// row block are under way at once, in waves of whole row blocks.
template <class G, class S> struct Tiles {
    enum { COLUMNS = (Wide<G>::N + S::N - 1) / S::N };
    static __device__ __forceinline__ int clusters() { return gridDim.x / S::CM; }
    static __device__ __forceinline__ int high() { return G::WAITS ? clusters() / COLUMNS : S::RASTER / S::CM; }
    static __device__ __forceinline__ int step() { return G::WAITS ? high() * COLUMNS : clusters(); }
    static __device__ __forceinline__ int first(int tiles)
    {
        return (int)blockIdx.x / S::CM < step() ? (int)blockIdx.x / S::CM : tiles;
    }
};

// Tile t of the cluster -> this block's row block and column tile. Row blocks go fastest, RASTER of them, then columns:
// x's rows stay in L2 while the weight streams past them once.
template <class G, class S> __device__ __forceinline__ void tile_at(int t, int row_blocks, int rank, int &mt, int &nt)
{
    constexpr int CM = S::CM, columns = Tiles<G, S>::COLUMNS;
    const int pairs = (row_blocks + CM - 1) / CM, high = Tiles<G, S>::high();
    const int group = t / (high * columns), first = group * high, here = min(high, pairs - first);
    const int r = t - group * high * columns;
    nt = here == high ? r / high : r / here; // by a constant, as a rule
    mt = (first + r - nt * here) * CM + rank;
}

template <class G, class S>
__device__ __forceinline__ void produce(const TensorMap *x_map, const TensorMap *w_map, unsigned stages, unsigned full,
                                        unsigned empty, int rank, int row_blocks, int tiles)
{
    constexpr int CM = S::CM;
    int s = 0, phase = 0, mt, nt;
    for (int t = Tiles<G, S>::first(tiles); t < tiles; t += Tiles<G, S>::step()) {
        tile_at<G, S>(t, row_blocks, rank, mt, nt);
#pragma unroll 1
        for (int line = 0; line < G::LINES; ++line) {
            barrier_wait(empty + 8 * s, phase ^ 1);
            barrier_expect(full + 8 * s, Bytes<S>::STAGE); // all that lands here, whoever sends it
            const unsigned to = stages + s * Bytes<S>::STAGE;
            copy_box(to, x_map, line, mt * TILE_M, full + 8 * s);
            if (CM == 1)
                copy_box(to + A_BYTES, w_map, line, nt * S::N, full + 8 * s);
            else
                copy_box_to(to + A_BYTES + rank * (Bytes<S>::B / CM), w_map, line, nt * S::N + rank * (S::N / CM),
                            full + 8 * s, (1 << CM) - 1);
            if (++s == S::STAGES)
                s = 0, phase ^= 1;
        }
    }
}

// ---- what becomes of the sums ----

// The four warps of a group have stored their partials, and go on when all of a wave have; `all`: so many groups since
// the stage began. With the last of its `end` the count is 0 again.
__device__ __forceinline__ void wait_for_tiles(const Control &c, unsigned all, unsigned end, int tid, bool waits)
{
    const int bar = 1 + tid / 128;
    meet<128>(bar);
    if (tid % 128 == 0) {
        __threadfence(); // of all that was stored before the barrier
        atomicInc(c.barrier + 2, end - 1);
        if (waits) // this one is counted, so 0 is the end
            wait_for(c.barrier + 2, [=](unsigned now) { return now >= all || now == 0; });
        __threadfence();
    }
    meet<128>(bar);
}

// Tiles up to the end of the wave of tile t.
template <class G, class S> __device__ __forceinline__ int wave_end(int t, int tiles)
{
    const int step = Tiles<G, S>::step();
    return min((t / step + 1) * step, tiles);
}

// What half of a thread's sums is: the next columns of its rows, or the rows 64 below.
template <class G, class S> __device__ __forceinline__ bool half_is_there(int nt, int half)
{
    constexpr int N = Wide<G>::N;
    return S::TURNS || N % S::N == 0 || ((half == 0 || N > PARTIAL) && nt * S::N + half * PARTIAL < N);
}

template <class G, class S>
__device__ __forceinline__ void later_tile(const typename G::A &a, float (&v)[S::SUMS], int nt, i64 row, i64 rows,
                                           int col)
{
    constexpr int DOWN = S::TURNS ? 64 : 0, ACROSS = S::TURNS ? 0 : PARTIAL;
    typename G::Known known[2];
    static_assert(!(G::WAITS && S::TURNS), "rows' statistics are those of one half");
    if constexpr (G::WAITS) { // rows past the last one have no partials: any row's will do
        G::total(a, row < rows ? row : 0, known[0]);
        G::total(a, row + 8 < rows ? row + 8 : 0, known[1]);
    }
    if constexpr (G::PART < HALF) {
#pragma unroll 1
        for (int half = 0; half < S::SUMS / HALF && half_is_there<G, S>(nt, half); ++half)
            later_half<G, 0, true>(a, v, row + half * DOWN, rows, col + half * ACROSS, known, half);
    } else {
        later_half<G, 0, false>(a, v, row, rows, col, known, 0);
        if constexpr (S::SUMS > HALF)
            if (half_is_there<G, S>(nt, 1))
                later_half<G, S::SUMS - HALF, false>(a, v, row + DOWN, rows, col + ACROSS, known, 1);
    }
}

// What the tail reads of each column, L1 has by then: a word of every line of 128 bytes is copied while the product is
// under way, to where nobody reads it. Where tiles are by turns the other group's products hide the wait.
template <class G, class S>
__device__ __forceinline__ void touch_vectors(const typename G::A &a, int nt, unsigned touched, int tid)
{
    constexpr int N = of_each<G>(S::N), LINES = N * 4 / 128;
    if (!S::TURNS && tid < min(32, G::VECTORS * LINES)) { // of more than a warp has lanes for, not the last
        const float *from = G::vector(a, tid / LINES, min(nt * N + tid % LINES * 32, (int)G::N - 1));
        copy_word_async(touched, from);
    }
}

// What undoes the scaling of a thread's rows: two, and where tiles are by turns two more 64 below.
template <class G, class S>
__device__ __forceinline__ void fetch_unscale(const typename G::A &a, i64 row, i64 rows, float (&unscale)[2][2])
{
#pragma unroll
    for (int i = 0; i < (S::TURNS ? 4 : 2); ++i) {
        const i64 at = row + i / 2 * 64 + i % 2 * 8;
        unscale[i / 2][i % 2] = G::SCALED && at < rows ? __ldcg(G::x_unscale(a) + at) : 1.0f;
    }
}

template <class G, class S>
__device__ __forceinline__ void finish_tile(const typename G::A &a, const Control &c, float (&v)[S::SUMS],
                                            const float (&unscale)[2][2], int nt, int tid, i64 row, i64 rows, int wave,
                                            int tiles)
{
    constexpr int DOWN = S::TURNS ? 64 : 0, ACROSS = S::TURNS ? 0 : PARTIAL;
    const int col = nt * of_each<G>(S::N) + 2 * (tid % 4), partial = nt * (S::N / PARTIAL);
    if constexpr (G::PART < HALF || is_by_halves<G>()) {
#pragma unroll 1
        for (int half = 0; half < S::SUMS / HALF && half_is_there<G, S>(nt, half); ++half) {
            const bool lower = S::TURNS && half == 1;
            const float here[2] = {lower ? unscale[1][0] : unscale[0][0], lower ? unscale[1][1] : unscale[0][1]};
            finish_half<G, 0, true>(a, v, row + half * DOWN, rows, col + half * of_each<G>(ACROSS),
                                    partial + half * (ACROSS / PARTIAL), here, half);
        }
    } else {
        finish_half<G, 0, false>(a, v, row, rows, col, partial, unscale[0], 0);
        if constexpr (S::SUMS > HALF)
            if (half_is_there<G, S>(nt, 1))
                finish_half<G, S::SUMS - HALF, false>(a, v, row + DOWN, rows, col + of_each<G>(ACROSS),
                                                      partial + ACROSS / PARTIAL, unscale[S::TURNS], 1);
    }
    if constexpr (is_turned<G>() && S::SUMS > HALF) // a last half that is not there was not turned
        if (G::HELD && !half_is_there<G, S>(nt, 1))
            rotate<S::SUMS / 2>(v);
    if constexpr (G::WAITS)
        wait_for_tiles(c, 2 * S::CM * wave, 2 * S::CM * tiles, tid, true); // two groups in each block
    if constexpr (G::HELD && !(is_straight<G>() && G::PART < HALF))
        later_tile<G, S>(a, v, nt, row, rows, col);
}

// ---- the multiplying warps ----

__device__ __forceinline__ float4 shared_read(unsigned a)
{
    float4 v;
    shared_get(v, a);
    return v;
}
// The sums so far, KEPT of a thread's in registers and the others at `slot` on.
template <int SUMS, int KEPT> __device__ __forceinline__ void begin_sums(float (&sum)[KEPT], unsigned slot)
{
    for (int i = 0; i < KEPT; ++i)
        sum[i] = 0;
    for (int i = KEPT; i < SUMS; i += 4)
        shared_put(slot + (i - KEPT) * 1024, make_float4(0, 0, 0, 0));
}
template <int SUMS, int KEPT>
__device__ __forceinline__ void promote(const float (&acc)[SUMS], float (&sum)[KEPT], unsigned slot)
{
#pragma unroll
    for (int i = 0; i < KEPT; ++i)
        sum[i] += acc[i];
#pragma unroll
    for (int i = KEPT; i < SUMS; i += 4) {
        const unsigned at = slot + (i - KEPT) * 1024;
        const float4 v = shared_read(at);
        shared_put(at, make_float4(v.x + acc[i], v.y + acc[i + 1], v.z + acc[i + 2], v.w + acc[i + 3]));
    }
}
template <int SUMS, int KEPT>
__device__ __forceinline__ void end_sums(float (&acc)[SUMS], const float (&sum)[KEPT], unsigned slot)
{
#pragma unroll
    for (int i = 0; i < KEPT; ++i)
        acc[i] = sum[i];
#pragma unroll
    for (int i = KEPT; i < SUMS; i += 4) {
        const float4 v = shared_read(slot + (i - KEPT) * 1024);
        acc[i] = v.x, acc[i + 1] = v.y, acc[i + 2] = v.z, acc[i + 3] = v.w;
    }
}

// Where the stages are, and which comes next.
template <class S> struct Ring {
    unsigned full, empty;
    int at, phase, last;
    __device__ __forceinline__ void wait() { barrier_wait(full + 8 * at, phase); }
    __device__ __forceinline__ void next()
    {
        last = at;
        if (++at == S::STAGES)
            at = 0, phase ^= 1;
    }
    __device__ __forceinline__ void skip(int lines)
    {
        phase ^= (at + lines) / S::STAGES & 1, at = (at + lines) % S::STAGES;
    }
    // Thread i of a group tells block i that a stage is free.
    __device__ __forceinline__ void free(int stage, int peer)
    {
        if (peer < S::CM)
            barrier_arrive(empty + 8 * stage, peer);
    }
};

// A tile's sums, 64 rows by each group.
template <class G, class S>
__device__ __forceinline__ void sum_tile(float (&acc)[S::SUMS], Ring<S> &ring, unsigned at_a, unsigned at_b,
                                         unsigned slot, int peer)
{
    constexpr bool promotes = G::MODE == MODE_FP32;
    constexpr int pieces = G::SHORT ? 2 : 1, chunk = promotes ? G::CHUNK : G::LINES; // pieces: of a line
    float sum[S::KEPT];
    if constexpr (promotes)
        begin_sums<S::SUMS>(sum, slot);
#pragma unroll 1
    for (int piece = 0; piece < pieces * G::LINES; piece += chunk) {
        const bool ends = (piece + 1) % pieces == 0; // the line
        pin(acc);
#pragma unroll 1
        for (int i = 0; i < chunk; ++i) {
            ring.wait();
            wgmma_fence();
            const unsigned o = ring.at * (Bytes<S>::STAGE >> 4) + piece % pieces * 2;
            multiply_stage<stage_mode<G>()>(acc, at_a + o, at_b + o, i != 0); // a chunk's first product clears the sums
            wgmma_commit();
            if (i > 0) { // one stage stays under way; the one before it is done with
                wgmma_wait<1>();
                ring.free(ring.last, peer);
            }
            if (ends)
                ring.next();
        }
        wgmma_wait<0>();
        pin(acc);
        if (ends)
            ring.free(ring.last, peer);
        if constexpr (promotes)
            promote(acc, sum, slot); // the other group keeps the tensor cores busy
    }
    if constexpr (promotes)
        end_sums(acc, sum, slot);
}

// The other group's turn comes when all four warps of this one have seen its tile's lines: one that has not would miss
// its own turn if both went on without it.
__device__ __forceinline__ void pass_turn(unsigned turn)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        barrier_arrive(turn);
}

// From the upper half of x's rows in a stage to the lower one, as descriptors count, or of the weight's likewise.
enum { LOWER = 64 * LINE >> 4 };

// All 128 rows by one group, upper ones and lower ones. next: the other group's turn.
template <class G, class S>
__device__ __forceinline__ void sum_tile_alone(float (&upper)[HALF], float (&lower)[HALF], Ring<S> &ring, unsigned at_a,
                                               unsigned at_b, unsigned next, int peer)
{
    pin(upper), pin(lower);
#pragma unroll 1
    for (int line = 0; line < G::LINES; ++line) {
        ring.wait();
        const unsigned o = ring.at * (Bytes<S>::STAGE >> 4);
        wgmma_fence();
        multiply_stage<G::MODE>(upper, at_a + o, at_b + o, line != 0);
        multiply_stage<G::MODE>(lower, at_a + o + LOWER, at_b + o, line != 0);
        wgmma_commit();
        if (line > 0) {
            wgmma_wait<1>();
            ring.free(ring.last, peer);
        }
        ring.next();
    }
    pass_turn(next);
    wgmma_wait<0>();
    pin(upper), pin(lower);
    ring.free(ring.last, peer);
}

// The same where K is short: each piece's sums by themselves, added to those before, a quarter of the tile at a time:
// while one is added the next is multiplied.
template <class G, class S>
__device__ __forceinline__ void sum_short_tile(float (&upper)[HALF], float (&lower)[HALF], Ring<S> &ring, unsigned at_a,
                                               unsigned at_b, unsigned next, int peer)
{
    constexpr int QUARTER = HALF / 2, LAST = 2 * G::LINES - 1; // two pieces in a line
    float even[QUARTER], odd[QUARTER];                         // quarters under way
    const int first = ring.at;
    const auto stage = [&](int piece) { return (first + piece / 2) % S::STAGES; };
    const auto place = [&](int piece) { return stage(piece) * (Bytes<S>::STAGE >> 4) + piece % 2 * 2; };
    const auto multiply = [&](float (&quarter)[QUARTER], unsigned down, unsigned across, int piece) {
        pin(quarter);
        wgmma_fence();
        multiply_stage<stage_mode<G>()>(quarter, at_a + place(piece) + down, at_b + place(piece) + across, 0);
        wgmma_commit();
    };
    const auto add = [&](float *sum, float (&quarter)[QUARTER]) {
        pin(quarter), pin(*(float(*)[QUARTER])sum);
#pragma unroll
        for (int i = 0; i < QUARTER; ++i)
            sum[i] += quarter[i];
        pin(*(float(*)[QUARTER])sum);
    };
    const auto add_three = [&](int piece) { // the first of them is on its way; leaves the last one so
        multiply(odd, 0, LOWER, piece);
        wgmma_wait<1>();
        add(upper, even);
        multiply(even, LOWER, 0, piece);
        wgmma_wait<1>();
        add(upper + QUARTER, odd);
        multiply(odd, LOWER, LOWER, piece);
        wgmma_wait<1>();
        add(lower, even);
    };
    for (int line = 0; line < G::LINES; ++line) {
        ring.wait();
        ring.next();
    }
    pass_turn(next);
    pin(upper), pin(lower);
    wgmma_fence();
    multiply_stage<stage_mode<G>()>(upper, at_a + place(0), at_b + place(0), 0);
    multiply_stage<stage_mode<G>()>(lower, at_a + place(0) + LOWER, at_b + place(0), 0);
    wgmma_commit();
    multiply(even, 0, 0, 1);
#pragma unroll // or the compiler has each product wait for the one before it (C7515)
    for (int piece = 1; piece < LAST; ++piece) {
        add_three(piece);
        multiply(even, 0, 0, piece + 1);
        wgmma_wait<1>();
        if (piece % 2 == 1)
            ring.free(stage(piece), peer);
        add(lower + QUARTER, odd);
    }
    add_three(LAST);
    wgmma_wait<0>();
    ring.free(stage(LAST), peer);
    add(lower + QUARTER, odd);
}

template <class G, class S>
__device__ __forceinline__ void consume(const typename G::A &a, const Control &c, unsigned stages, unsigned full,
                                        unsigned empty, unsigned turns, unsigned slot, int rank, int row_blocks,
                                        int tiles, i64 rows)
{
    // group: the same in all lanes, and known to be
    const int tid = threadIdx.x - 128, group = __shfl_sync(~0u, tid / 128, 0), peer = tid % 128;
    const unsigned at_a = tile_low(stages + (S::TURNS ? 0 : group * (64 * LINE))), at_b = tile_low(stages + A_BYTES);
    Ring<S> ring = {full, empty, 0, 0, 0};
    int turn = 0, after = 0; // whose, and how often the other has ended
    for (int t = Tiles<G, S>::first(tiles); t < tiles; t += Tiles<G, S>::step()) {
        int mt, nt;
        if (S::TURNS && (turn ^= 1) == group) { // the other's
            ring.skip(G::LINES);
            continue;
        }
        tile_at<G, S>(t, row_blocks, rank, mt, nt);
        // not before the other has seen all of its lines: a stage filled twice more would look as if it were not filled
        if (S::TURNS && (group == 1 || after > 0))
            barrier_wait(turns + 8 * group, (after - (group == 0)) & 1);
        ++after;
        if ((i64)mt * TILE_M + (S::TURNS ? 0 : group * 64) >= rows) { // no such rows: only hand the stages on
            for (int line = 0; line < G::LINES; ++line) {
                ring.wait();
                // all warps: one still at the last tile would miss it once it is filled twice more
                meet<128>(1 + group);
                ring.free(ring.at, peer);
                ring.next();
            }
            if (S::TURNS)
                pass_turn(turns + 8 * (group ^ 1));
            if constexpr (G::WAITS)
                wait_for_tiles(c, 0, 2 * S::CM * tiles, tid, false);
            continue;
        }
        const auto row = [&] { return (i64)mt * TILE_M + (S::TURNS ? peer : tid) / 32 * 16 + tid % 32 / 4; };
        float acc[S::SUMS], unscale[2][2];
        touch_vectors<G, S>(a, nt, full - TOUCHED + tid * 4, tid);
        if (S::TURNS) // there when the sums are; other shapes have no registers left for them
            fetch_unscale<G, S>(a, row(), rows, unscale);
        if constexpr (G::SEVERAL) // or the compiler has room for the sums of each from the kernel's beginning on
            for (int i = 0; i < S::SUMS; ++i)
                acc[i] = 0;
        if constexpr (S::TURNS && G::SHORT)
            sum_short_tile<G, S>(*(float(*)[HALF])acc, *(float(*)[HALF])(acc + HALF), ring, at_a, at_b,
                                 turns + 8 * (group ^ 1), peer);
        else if constexpr (S::TURNS)
            sum_tile_alone<G, S>(*(float(*)[HALF])acc, *(float(*)[HALF])(acc + HALF), ring, at_a, at_b,
                                 turns + 8 * (group ^ 1), peer);
        else
            sum_tile<G, S>(acc, ring, at_a, at_b, slot, peer);
        // products want all their sums in registers, also those of columns that are not there: without it those of two
        // products may be done one by one (C7511)
        pin(acc);
        if (!S::TURNS)
            fetch_unscale<G, S>(a, row(), rows, unscale);
        finish_tile<G, S>(a, c, acc, unscale, nt, tid, row(), rows, wave_end<G, S>(t, tiles), tiles);
    }
    copy_wait_all(); // later stages have other uses for the room
}

// All warps meet, from two places in the code: a barrier with a number and a count, and not "aligned", which would have
// all come from one.
__device__ __forceinline__ void registers_free() { meet_from_anywhere<THREADS>(9); }

template <class G, class S>
__device__ __forceinline__ void tensor_product(const typename G::A &a, const Control &c, const TensorMap *x_map,
                                               const TensorMap *w_map)
{
    const unsigned stages = (shared_address(raw) + 1023) & ~1023u, slots = stages + S::STAGES * Bytes<S>::STAGE;
    const unsigned full = slots + (G::MODE == MODE_FP32 ? Bytes<S>::SLOTS : 0) + TOUCHED, empty = full + 8 * S::STAGES,
                   turns = empty + 8 * S::STAGES;
    constexpr int CM = S::CM;
    const i64 rows = G::rows(a);
    const int rank = blockIdx.x % CM, row_blocks = (int)((rows + TILE_M - 1) / TILE_M),
              tiles = (row_blocks + CM - 1) / CM * Tiles<G, S>::COLUMNS;
    if (threadIdx.x == 0) {
        for (int s = 0; s < S::STAGES; ++s)
            barrier_init(full + 8 * s, 1), barrier_init(empty + 8 * s, S::TURNS ? CM : 2 * CM);
        barrier_init(turns, 4), barrier_init(turns + 8, 4);
        barriers_begun();
    }
    cluster_sync();
    if (threadIdx.x < 128) {
        fewer_registers<24>();
        if (threadIdx.x == 0) {
            written_to_copied(); // x's lines, where an earlier stage made them
            produce<G, S>(x_map, w_map, stages, full, empty, rank, row_blocks, tiles);
        }
        __syncwarp();
        registers_free(); // asking for what is not free yet would be a loop that takes turns from those who hold it
        more_registers<168>(); // as the kernel began
    } else {
        more_registers<240>();
        consume<G, S>(a, c, stages, full, empty, turns, slots + (threadIdx.x - 128) * 16, rank, row_blocks, tiles,
                      rows);
        fewer_registers<168>();
        registers_free();
    }
    cluster_sync(); // no block goes on while another may still signal it
    if (threadIdx.x == 0)
        for (int s = 0; s < 2 * S::STAGES + 2; ++s)
            barrier_end(full + 8 * s);
}
