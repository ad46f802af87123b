// SPDX-License-Identifier: Apache-2.0
// Products on Hopper's tensor cores. One producer warp keeps stages of both operands on their way (TMA); two groups of four warps multiply, 64
// rows x N columns of a tile each, and run the phase's steps on the sums while they are in registers. Blocks stay for several tiles.
//   Pairs  tiles of 256 columns; a cluster of two blocks, one row block below the other, shares the weight's tile
//   Single tiles of 256 columns, no cluster: where row blocks do not come in pairs
//   Alone  tiles of 128 columns, no cluster: where there are few tiles, more blocks have one
//   Halves tiles of 128 columns, in clusters as Pairs
// The sums go where text/finish.cu takes them, whose partials are of 128 columns either way.
//
// MODE_FP32: a = hi + lo, so a * b is lo*hi + hi*lo + hi*hi. Tensor cores add with truncation: every CHUNK lines the sums so far are added
// to sums of their own, in f32 as it is known. Of these, KEPT are in registers, the others in shared memory.

enum { TILE_M = 128, LINE = 128, A_BYTES = TILE_M * LINE, RASTER = 8 };
struct Pairs { enum { N = 256, CM = 2, STAGES = 4, SUMS = 128, KEPT = 96 }; };
struct Single { enum { N = 256, CM = 1, STAGES = 4, SUMS = 128, KEPT = 96 }; };
struct Alone { enum { N = 128, CM = 1, STAGES = 6, SUMS = 64, KEPT = 64 }; };
struct Halves { enum { N = 128, CM = 2, STAGES = 6, SUMS = 64, KEPT = 64 }; };
template <class S> struct Bytes { enum { B = S::N * LINE, STAGE = A_BYTES + B, SLOTS = (S::SUMS - S::KEPT) * 256 * 4 }; };

struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};

// ---- barriers and copies ----

__device__ __forceinline__ unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void barrier_init(unsigned bar, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_end(unsigned bar) { asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(bar) : "memory"); }
__device__ __forceinline__ void barrier_expect(unsigned bar, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
// At the same offset in block `rank` of the cluster. No .release.cluster: that would be a full fence in every stage, and nothing
// ordinary was written.
__device__ __forceinline__ void barrier_arrive(unsigned bar, int rank)
{
    asm volatile("{ .reg .b32 r; mapa.shared::cluster.u32 r, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [r]; }" ::"r"(bar), "r"(rank) : "memory");
}
// Bounded: a hang becomes an error on the host.
__device__ __forceinline__ void barrier_wait(unsigned bar, int parity)
{
    unsigned done;
#pragma unroll 1
    for (int spin = 0; spin < (1 << 24); ++spin) {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(bar), "r"(parity) : "memory");
        if (done)
            return;
    }
    __trap();
}
__device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// What threads have written, copies may read, and write over: on both sides of the barrier between them.
__device__ __forceinline__ void written_to_copied() { asm volatile("fence.proxy.async;" ::: "memory"); }

// A box of a map into shared memory: this block's, or, at the same offset, that of all blocks in mask.
__device__ __forceinline__ void copy_box(unsigned to, const TensorMap *map, int x, int y, unsigned bar)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}
__device__ __forceinline__ void copy_box_to(unsigned to, const TensorMap *map, int x, int y, unsigned bar, unsigned short mask)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(bar), "h"(mask) : "memory");
}

// ---- wgmma ----

// A tile of 128-byte lines, swizzled: eight lines are 1024 bytes apart. The low word counts 16 bytes: +2 is the next 32 bytes of
// the line.
__device__ __forceinline__ unsigned tile_low(unsigned address) { return (1u << 16) | ((address & 0x3ffff) >> 4); }
__device__ __forceinline__ unsigned long long tile_descriptor(unsigned low) { return ((unsigned long long)((1u << 30) | (1024 >> 4)) << 32) | low; }
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int n> __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory"); }

#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define D64(i) D16(i), D16(i + 16), D16(i + 32), D16(i + 48)
#define R8(a, b, c, d, e, f, g, h) "%" #a ",%" #b ",%" #c ",%" #d ",%" #e ",%" #f ",%" #g ",%" #h
#define R64                                                                                                                        \
    R8(0, 1, 2, 3, 4, 5, 6, 7) "," R8(8, 9, 10, 11, 12, 13, 14, 15) "," R8(16, 17, 18, 19, 20, 21, 22, 23) ","                     \
    R8(24, 25, 26, 27, 28, 29, 30, 31) "," R8(32, 33, 34, 35, 36, 37, 38, 39) "," R8(40, 41, 42, 43, 44, 45, 46, 47) ","           \
    R8(48, 49, 50, 51, 52, 53, 54, 55) "," R8(56, 57, 58, 59, 60, 61, 62, 63)
#define R128                                                                                                                       \
    R64 "," R8(64, 65, 66, 67, 68, 69, 70, 71) "," R8(72, 73, 74, 75, 76, 77, 78, 79) "," R8(80, 81, 82, 83, 84, 85, 86, 87) ","   \
    R8(88, 89, 90, 91, 92, 93, 94, 95) "," R8(96, 97, 98, 99, 100, 101, 102, 103) ","                                              \
    R8(104, 105, 106, 107, 108, 109, 110, 111) "," R8(112, 113, 114, 115, 116, 117, 118, 119) ","                                  \
    R8(120, 121, 122, 123, 124, 125, 126, 127)
// d (64 x N, over four warps) = a b^T + (keep ? d : 0)
#define WGMMA_256(TYPE, TAIL)                                                                                                      \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %130, 0; wgmma.mma_async.sync.aligned.m64n256" TYPE " {" R128                      \
                 "}, %128, %129, p, 1, 1" TAIL "; }" : D64(0), D64(64) : "l"(tile_descriptor(a)), "l"(tile_descriptor(b)), "r"(keep))
#define WGMMA_128(TYPE, TAIL)                                                                                                      \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128" TYPE " {" R64                        \
                 "}, %64, %65, p, 1, 1" TAIL "; }" : D64(0) : "l"(tile_descriptor(a)), "l"(tile_descriptor(b)), "r"(keep))
template <int MODE> __device__ __forceinline__ void multiply(float (&d)[128], unsigned a, unsigned b, int keep)
{
    if constexpr (MODE == MODE_TF32)
        WGMMA_256("k8.f32.tf32.tf32", "");
    else if constexpr (MODE == MODE_BF16)
        WGMMA_256("k16.f32.bf16.bf16", ", 0, 0");
    else
        WGMMA_256("k16.f32.f16.f16", ", 0, 0");
}
template <int MODE> __device__ __forceinline__ void multiply(float (&d)[64], unsigned a, unsigned b, int keep)
{
    if constexpr (MODE == MODE_TF32)
        WGMMA_128("k8.f32.tf32.tf32", "");
    else if constexpr (MODE == MODE_BF16)
        WGMMA_128("k16.f32.bf16.bf16", ", 0, 0");
    else
        WGMMA_128("k16.f32.f16.f16", ", 0, 0");
}

// The other way round, for few rows of x: d (64 columns of y x N rows) = w x^T + (keep ? d : 0). The sums are the same to the last bit.
#define WGMMA_SWAPPED(N, REGISTERS, X, W, KEEP, TYPE, TAIL, ...)                                                                   \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #KEEP ", 0; wgmma.mma_async.sync.aligned.m64n" #N TYPE " {" REGISTERS "}, %" #W ", %" #X    \
                 ", p, 1, 1" TAIL "; }" : __VA_ARGS__ : "l"(tile_descriptor(x)), "l"(tile_descriptor(w)), "r"(keep))
#define MULTIPLY_SWAPPED(N, SUMS, REGISTERS, X, W, KEEP, ...)                                                                      \
    template <int MODE> __device__ __forceinline__ void multiply(float (&d)[SUMS], unsigned x, unsigned w, int keep)               \
    {                                                                                                                              \
        if constexpr (MODE == MODE_TF32)                                                                                           \
            WGMMA_SWAPPED(N, REGISTERS, X, W, KEEP, "k8.f32.tf32.tf32", "", __VA_ARGS__);                                          \
        else if constexpr (MODE == MODE_BF16)                                                                                      \
            WGMMA_SWAPPED(N, REGISTERS, X, W, KEEP, "k16.f32.bf16.bf16", ", 0, 0", __VA_ARGS__);                                   \
        else                                                                                                                       \
            WGMMA_SWAPPED(N, REGISTERS, X, W, KEEP, "k16.f32.f16.f16", ", 0, 0", __VA_ARGS__);                                     \
    }
#define R16 R8(0, 1, 2, 3, 4, 5, 6, 7) "," R8(8, 9, 10, 11, 12, 13, 14, 15)
#define R32 R16 "," R8(16, 17, 18, 19, 20, 21, 22, 23) "," R8(24, 25, 26, 27, 28, 29, 30, 31)
MULTIPLY_SWAPPED(8, 4, "%0,%1,%2,%3", 4, 5, 6, D4(0))
MULTIPLY_SWAPPED(16, 8, R8(0, 1, 2, 3, 4, 5, 6, 7), 8, 9, 10, D4(0), D4(4))
MULTIPLY_SWAPPED(32, 16, R16, 16, 17, 18, D16(0))
MULTIPLY_SWAPPED(64, 32, R32, 32, 33, 34, D16(0), D16(16))

// All products of a stage, in 32-byte steps of a line.
template <int MODE, int SUMS> __device__ __forceinline__ void multiply_stage(float (&acc)[SUMS], unsigned a, unsigned b, int keep)
{
    if (MODE == MODE_FP32) { // the small products first, while the sum is small
        multiply<MODE>(acc, a + 4, b + 0, keep);
        multiply<MODE>(acc, a + 6, b + 2, 1);
        multiply<MODE>(acc, a + 0, b + 4, 1);
        multiply<MODE>(acc, a + 2, b + 6, 1);
        multiply<MODE>(acc, a + 0, b + 0, 1);
        multiply<MODE>(acc, a + 2, b + 2, 1);
    } else {
        multiply<MODE>(acc, a + 0, b + 0, keep);
        multiply<MODE>(acc, a + 2, b + 2, 1);
        multiply<MODE>(acc, a + 4, b + 4, 1);
        multiply<MODE>(acc, a + 6, b + 6, 1);
    }
}

// Registers change here: no use of them moves across.
template <int SUMS> __device__ __forceinline__ void pin(float (&d)[SUMS])
{
#pragma unroll
    for (int i = 0; i < SUMS; ++i)
        asm volatile("" : "+f"(d[i])::"memory");
}

// ---- tiles ----

// Which tiles a cluster takes. Where a phase waits for its rows' statistics with its tile in registers, all tiles of a row block are under way at once, in waves of
// whole row blocks.
template <class G, class S> struct Tiles {
    enum { COLUMNS = (G::N + S::N - 1) / S::N };
    static __device__ __forceinline__ int clusters() { return gridDim.x / S::CM; }
    static __device__ __forceinline__ int high() { return G::WAITS ? clusters() / COLUMNS : RASTER / S::CM; }
    static __device__ __forceinline__ int step() { return G::WAITS ? high() * COLUMNS : clusters(); }
    static __device__ __forceinline__ int first(int tiles) { return (int)blockIdx.x / S::CM < step() ? (int)blockIdx.x / S::CM : tiles; }
};

// Tile t of the cluster -> this block's row block and column tile. Row blocks go fastest, RASTER of them, then columns: x's rows stay in L2
// while the weight streams past them once.
template <class G, class S> __device__ __forceinline__ void tile_at(int t, int row_blocks, int rank, int &mt, int &nt)
{
    constexpr int CM = S::CM, columns = Tiles<G, S>::COLUMNS;
    const int pairs = (row_blocks + CM - 1) / CM, high = Tiles<G, S>::high();
    const int group = t / (high * columns), first = group * high, here = min(high, pairs - first);
    const int r = t - group * high * columns;
    mt = (first + r % here) * CM + rank;
    nt = r / here;
}

template <class G, class S>
__device__ __forceinline__ void produce(const TensorMap *x_map, const TensorMap *w_map, unsigned stages, unsigned full, unsigned empty, int rank, int row_blocks,
                                        int tiles)
{
    constexpr int CM = S::CM, step = G::MODE == MODE_TF32 ? 32 : 64; // elements of the map in a line
    int s = 0, phase = 0, mt, nt;
    for (int t = Tiles<G, S>::first(tiles); t < tiles; t += Tiles<G, S>::step()) {
        tile_at<G, S>(t, row_blocks, rank, mt, nt);
        for (int line = 0; line < G::LINES; ++line) {
            barrier_wait(empty + 8 * s, phase ^ 1);
            barrier_expect(full + 8 * s, Bytes<S>::STAGE); // all that lands here, whoever sends it
            const unsigned to = stages + s * Bytes<S>::STAGE;
            copy_box(to, x_map, line * step, mt * TILE_M, full + 8 * s);
            if (CM == 1)
                copy_box(to + A_BYTES, w_map, line * step, nt * S::N, full + 8 * s);
            else
                copy_box_to(to + A_BYTES + rank * (Bytes<S>::B / CM), w_map, line * step, nt * S::N + rank * (S::N / CM), full + 8 * s, (1 << CM) - 1);
            if (++s == S::STAGES)
                s = 0, phase ^= 1;
        }
    }
}

// ---- what becomes of the sums ----

// The four warps of a group have stored their partials, and go on when all of a wave have; `all`: so many groups since the stage began.
__device__ __forceinline__ void wait_for_tiles(const Control &c, int all, int tid, bool waits)
{
    const int bar = 1 + tid / 128;
    __threadfence();
    asm volatile("bar.sync %0, 128;" ::"r"(bar) : "memory");
    if (tid % 128 == 0) {
        atomicAdd(c.barrier + 2, 1u);
        if (waits)
            wait_for(c.barrier + 2, all);
        __threadfence();
    }
    asm volatile("bar.sync %0, 128;" ::"r"(bar) : "memory");
}

// Tiles up to the end of the wave of tile t.
template <class G, class S> __device__ __forceinline__ int wave_end(int t, int tiles)
{
    const int step = Tiles<G, S>::step();
    return min((t / step + 1) * step, tiles);
}

template <class G, class S> __device__ __forceinline__ void later_tile(const typename G::A &a, float (&v)[S::SUMS], int nt, i64 row, i64 rows, int col)
{
    typename G::Known known[2];
    if constexpr (G::WAITS) { // rows past the last one have no partials: any row's will do
        G::total(a, row < rows ? row : 0, known[0]);
        G::total(a, row + 8 < rows ? row + 8 : 0, known[1]);
    }
    if constexpr (G::PART < HALF) {
#pragma unroll 1
        for (int half = 0; half < S::SUMS / HALF && (G::N % S::N == 0 || nt * S::N + half * PARTIAL < G::N); ++half)
            later_half<G, 0, true>(a, v, row, rows, col + half * PARTIAL, known, half);
    } else {
        later_half<G, 0, false>(a, v, row, rows, col, known, 0);
        if constexpr (S::SUMS > HALF)
            if (G::N % S::N == 0 || nt * S::N + PARTIAL < G::N)
                later_half<G, S::SUMS - HALF, false>(a, v, row, rows, col + PARTIAL, known, 1);
    }
}

template <class G, class S>
__device__ __forceinline__ void finish_tile(const typename G::A &a, const Control &c, float (&v)[S::SUMS], int mt, int nt, int tid, i64 rows, int wave)
{
    const int lane = tid % 32, col = nt * S::N + 2 * (lane % 4), partial = nt * (S::N / PARTIAL);
    const i64 row = (i64)mt * TILE_M + tid / 32 * 16 + lane / 4;
    const float unscale[2] = {G::SCALED && row < rows ? __ldcg(G::x_unscale(a) + row) : 1.0f, G::SCALED && row + 8 < rows ? __ldcg(G::x_unscale(a) + row + 8) : 1.0f};
    if constexpr (G::PART < HALF) {
#pragma unroll 1
        for (int half = 0; half < S::SUMS / HALF && (G::N % S::N == 0 || nt * S::N + half * PARTIAL < G::N); ++half)
            finish_half<G, 0, true>(a, v, row, rows, col + half * PARTIAL, partial + half, unscale, half);
    } else {
        finish_half<G, 0, false>(a, v, row, rows, col, partial, unscale, 0);
        if constexpr (S::SUMS > HALF)
            if (G::N % S::N == 0 || nt * S::N + PARTIAL < G::N)
                finish_half<G, S::SUMS - HALF, false>(a, v, row, rows, col + PARTIAL, partial + 1, unscale, 1);
    }
    if constexpr (G::PART < HALF && S::SUMS > HALF) // a last half that is not there was not turned
        if (G::HELD && G::STATS > 0 && G::N % S::N != 0 && nt * S::N + PARTIAL >= G::N)
            turn(v);
    if constexpr (G::WAITS)
        wait_for_tiles(c, 2 * S::CM * wave, tid, true); // two groups in each block
    if constexpr (G::HELD && !(is_straight<G>() && G::PART < HALF))
        later_tile<G, S>(a, v, nt, row, rows, col);
}

// ---- the multiplying warps ----

__device__ __forceinline__ float4 shared_read(unsigned a)
{
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(a));
    return v;
}
__device__ __forceinline__ void shared_write(unsigned a, float4 v)
{
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(a), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w));
}
template <int SUMS, int KEPT> __device__ __forceinline__ void promote(const float (&acc)[SUMS], float (&sum)[KEPT], unsigned slot)
{
#pragma unroll
    for (int i = 0; i < KEPT; ++i)
        sum[i] += acc[i];
#pragma unroll
    for (int i = KEPT; i < SUMS; i += 4) {
        const unsigned at = slot + (i - KEPT) * 1024;
        const float4 v = shared_read(at);
        shared_write(at, make_float4(v.x + acc[i], v.y + acc[i + 1], v.z + acc[i + 2], v.w + acc[i + 3]));
    }
}

template <class G, class S>
__device__ __forceinline__ void consume(const typename G::A &a, const Control &c, unsigned stages, unsigned full, unsigned empty, unsigned slot, int rank, int row_blocks, int tiles, i64 rows)
{
    constexpr bool promotes = G::MODE == MODE_FP32 && G::LINES > G::CHUNK, once = G::MODE == MODE_FP32 && !promotes; // K of one chunk: its sums are all there is
    constexpr int chunk = promotes ? G::CHUNK : G::LINES, CM = S::CM, SUMS = S::SUMS, KEPT = S::KEPT;
    const int tid = threadIdx.x - 128, group = __shfl_sync(~0u, tid / 128, 0); // the same in all lanes, and known to be
    const int peer = tid % 128;                                               // thread i tells block i that a stage is free
    const unsigned at_a = tile_low(stages + group * (64 * LINE)), at_b = tile_low(stages + A_BYTES);
    int s = 0, phase = 0, last = 0;
    for (int t = Tiles<G, S>::first(tiles); t < tiles; t += Tiles<G, S>::step()) {
        int mt, nt;
        tile_at<G, S>(t, row_blocks, rank, mt, nt);
        if ((i64)mt * TILE_M + group * 64 >= rows) { // no such rows: only hand the stages on
            for (int line = 0; line < G::LINES; ++line) {
                barrier_wait(full + 8 * s, phase);
                asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory"); // all warps: one still at the last tile would miss it once it is filled twice more
                if (peer < CM)
                    barrier_arrive(empty + 8 * s, peer);
                if (++s == S::STAGES)
                    s = 0, phase ^= 1;
            }
            if constexpr (G::WAITS)
                wait_for_tiles(c, 0, tid, false);
            continue;
        }
        float acc[SUMS], sum[KEPT];
        if constexpr (promotes) {
            for (int i = 0; i < KEPT; ++i)
                sum[i] = 0;
            for (int i = KEPT; i < SUMS; i += 4)
                shared_write(slot + (i - KEPT) * 1024, make_float4(0, 0, 0, 0));
        }
        for (int line = 0; line < G::LINES; line += chunk) {
            pin(acc);
#pragma unroll(once ? chunk : 1)
            for (int i = 0; i < chunk; ++i) {
                barrier_wait(full + 8 * s, phase);
                wgmma_fence();
                const unsigned o = s * (Bytes<S>::STAGE >> 4);
                multiply_stage<G::MODE>(acc, at_a + o, at_b + o, i != 0); // a chunk's first product clears the sums
                wgmma_commit();
                if (i > 0) { // one stage stays under way; the one before it is done with
                    wgmma_wait<1>();
                    if (peer < CM)
                        barrier_arrive(empty + 8 * last, peer);
                }
                last = s;
                if (++s == S::STAGES)
                    s = 0, phase ^= 1;
            }
            wgmma_wait<0>();
            pin(acc);
            if (peer < CM)
                barrier_arrive(empty + 8 * last, peer);
            if constexpr (promotes)
                promote(acc, sum, slot); // the other group keeps the tensor cores busy
        }
        if constexpr (promotes) {
#pragma unroll
            for (int i = 0; i < KEPT; ++i)
                acc[i] = sum[i];
#pragma unroll
            for (int i = KEPT; i < SUMS; i += 4) {
                const float4 v = shared_read(slot + (i - KEPT) * 1024);
                acc[i] = v.x, acc[i + 1] = v.y, acc[i + 2] = v.z, acc[i + 3] = v.w;
            }
        }
        finish_tile<G, S>(a, c, acc, mt, nt, tid, rows, wave_end<G, S>(t, tiles));
    }
}

// All warps meet, from two places in the code: a barrier with a number and a count.
__device__ __forceinline__ void registers_free() { asm volatile("bar.sync 9, %0;" ::"n"((int)THREADS) : "memory"); }

template <class G, class S> __device__ __forceinline__ void tensor_product(const typename G::A &a, const Control &c, const TensorMap *x_map, const TensorMap *w_map)
{
    const unsigned stages = (shared_address(raw) + 1023) & ~1023u, slots = stages + S::STAGES * Bytes<S>::STAGE;
    const unsigned full = slots + (G::MODE == MODE_FP32 ? Bytes<S>::SLOTS : 0), empty = full + 8 * S::STAGES;
    constexpr int CM = S::CM;
    const i64 rows = G::rows(a);
    const int rank = blockIdx.x % CM, row_blocks = (int)((rows + TILE_M - 1) / TILE_M), tiles = (row_blocks + CM - 1) / CM * ((G::N + S::N - 1) / S::N);
    if (threadIdx.x == 0) {
        for (int s = 0; s < S::STAGES; ++s)
            barrier_init(full + 8 * s, 1), barrier_init(empty + 8 * s, 2 * CM);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 0) {
            written_to_copied(); // x's lines, by an earlier stage
            produce<G, S>(x_map, w_map, stages, full, empty, rank, row_blocks, tiles);
        }
        __syncwarp();
        registers_free(); // asking for what is not free yet would be a loop that takes turns from those who hold it
        asm volatile("setmaxnreg.inc.sync.aligned.u32 168;"); // as the kernel began
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        consume<G, S>(a, c, stages, full, empty, slots + (threadIdx.x - 128) * 16, rank, row_blocks, tiles, rows);
        asm volatile("setmaxnreg.dec.sync.aligned.u32 168;");
        registers_free();
    }
    cluster_sync(); // no block goes on while another may still signal it
    if (threadIdx.x == 0)
        for (int s = 0; s < 2 * S::STAGES; ++s)
            barrier_end(full + 8 * s);
}
