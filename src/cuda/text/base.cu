// SPDX-License-Identifier: Apache-2.0
// What every generated kernel may use: memory a few elements at a time, statistics across threads, rows to be done
// again.
typedef long long i64;
typedef unsigned long long u64;
typedef unsigned char u8;
#undef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#define sel(p, u, v) ((p) ? (u) : (v))
#define EACH _Pragma("unroll") for (int w = 0; w < W; ++w)

// ---- memory ----

extern __shared__ u8 raw[]; // the stage's under way

// What a row's threads hand each other: all of a kernel's shared memory beside raw, whatever its stages are. A warp has
// a part of its own, LF_CUDA_SCRATCH in emit.h, and a row its warps': groups of a block go through the code of a stage
// each in its own time. The last part is for numbers that a row keeps where it is a block's.
enum { SCRATCH = 64 };
__shared__ __align__(16) u8 scratch[THREADS / 32 + 1][SCRATCH];
template <int T> __device__ __forceinline__ u8 *row_scratch()
{
    static_assert(T >= 32, "rows that share a warp have none");
    return scratch[threadIdx.x / T * (T / 32)];
}
__device__ __forceinline__ float *block_kept(int which) { return (float *)scratch[THREADS / 32] + which; }

// W neighbours, in one access where the address allows it. fixed: nobody writes there while the kernel runs. aligned:
// it is known to allow it.
template <bool fixed> __device__ __forceinline__ float read(const float *p) { return fixed ? __ldg(p) : *p; }
template <bool fixed> __device__ __forceinline__ float read(const i64 *p) { return (float)*p; } // a position
template <bool fixed, class E> __device__ __forceinline__ float read(const E *p)
{
    return fixed ? E{__ldg(&p->bits)} : *p;
}
template <bool fixed, bool aligned, int W> __device__ __forceinline__ void load(float (&v)[W], const float *p)
{
    if (W % 4 == 0 && (aligned || ((size_t)p & 15) == 0)) {
#pragma unroll
        for (int i = 0; i < W / 4; ++i) {
            const float4 q = fixed ? __ldg((const float4 *)p + i) : *((const float4 *)p + i);
            v[4 * i] = q.x, v[4 * i + 1] = q.y, v[4 * i + 2] = q.z, v[4 * i + 3] = q.w;
        }
    } else if (W == 2 && (aligned || ((size_t)p & 7) == 0)) {
        const float2 q = fixed ? __ldg((const float2 *)p) : *(const float2 *)p;
        v[0] = q.x, v[W - 1] = q.y;
    } else {
        EACH v[w] = read<fixed>(p + w);
    }
}
template <bool fixed, bool aligned, int W> __device__ __forceinline__ void load(float (&v)[W], const i64 *p)
{
    EACH v[w] = read<fixed>(p + w);
}
template <bool fixed, bool aligned, int W, class E> __device__ __forceinline__ void load(float (&v)[W], const E *p)
{
    if (W % 4 == 0 && (aligned || ((size_t)p & 7) == 0)) {
#pragma unroll
        for (int i = 0; i < W / 4; ++i) {
            const uint2 q = fixed ? __ldg((const uint2 *)p + i) : *((const uint2 *)p + i);
            v[4 * i] = E::low(q.x), v[4 * i + 1] = E::high(q.x);
            v[4 * i + 2] = E::low(q.y), v[4 * i + 3] = E::high(q.y);
        }
    } else if (W == 2 && (aligned || ((size_t)p & 3) == 0)) {
        const unsigned q = fixed ? __ldg((const unsigned *)p) : *(const unsigned *)p;
        v[0] = E::low(q), v[W - 1] = E::high(q);
    } else {
        EACH v[w] = read<fixed>(p + w);
    }
}
template <bool aligned, int W> __device__ __forceinline__ void store(float *p, const float (&v)[W])
{
    if (W % 4 == 0 && (aligned || ((size_t)p & 15) == 0)) {
#pragma unroll
        for (int i = 0; i < W / 4; ++i)
            *((float4 *)p + i) = make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
    } else if (W == 2 && (aligned || ((size_t)p & 7) == 0)) {
        *(float2 *)p = make_float2(v[0], v[W - 1]);
    } else {
        EACH p[w] = v[w];
    }
}
template <bool aligned, int W, class E> __device__ __forceinline__ void store(E *p, const float (&v)[W])
{
    if (W % 4 == 0 && (aligned || ((size_t)p & 7) == 0)) {
#pragma unroll
        for (int i = 0; i < W / 4; ++i)
            *((uint2 *)p + i) = make_uint2(E::pair(v[4 * i], v[4 * i + 1]), E::pair(v[4 * i + 2], v[4 * i + 3]));
    } else if (W == 2 && (aligned || ((size_t)p & 3) == 0)) {
        *(unsigned *)p = E::pair(v[0], v[W - 1]);
    } else {
        EACH p[w].bits = (unsigned short)E::pair(v[w], 0.0f);
    }
}

// The same where `here`. What leads to v is done either way: behind the branch, where the compiler would put it, one
// store's would wait for another's. Not where the address decides how it is stored: v would wait for that in registers.
template <bool aligned, int W, class E>
__device__ __forceinline__ void store_if(bool here, E *p, const float (&v)[W])
{
    float done[W];
    EACH done[w] = v[w];
    if constexpr (aligned || W == 1)
        EACH settle(done[w]);
    if (here)
        store<aligned>(p, done);
}

// ---- stages ----

// A program is one kernel: its stages follow one another, with a barrier of all blocks between two of them. Blocks wait
// for each other, so all of them must be resident. Between runs everything here is 0 but redone and the barrier's top
// bit.
struct Control {
    unsigned *barrier;         // [3] of all blocks; watched_any's word; tiles whose partials are there
    i64 batch;
    u8 *beyond;                // [batch] rows of too wide a range for the tensor cores
    unsigned *beyond_any;
    u8 *watched;               // [batch] rows in which a witness of a guarded rewrite is not finite
    unsigned *watched_any;
    i64 *redone;               // how many of these there were
};

// A word, once `is` says it is what is waited for. Bounded: a hang becomes an error on the host.
template <class Word, class Is> __device__ __forceinline__ Word wait_for(const Word *word, const Is &is)
{
#pragma unroll 1
    for (int spin = 0; spin < (1 << 27); ++spin) {
        const Word now = *(const volatile Word *)word;
        if (is(now))
            return now;
    }
    __trap();
}

// The barrier of all blocks, in two halves, each by one thread of a block. All that was written before the first is
// seen by all that comes after the second, in every block. Arrivals are counted in the word's low bits; the last of
// them makes these 0 and turns the top bit over, which is what is waited for, so that any number of blocks may be next.
__device__ __forceinline__ unsigned grid_arrive(const Control &c)
{
    __threadfence();
    return atomicAdd(c.barrier, blockIdx.x == 0 ? (1u << 31) - (gridDim.x - 1) : 1u);
}
// before: what grid_arrive returned
__device__ __forceinline__ bool all_arrived(unsigned before, unsigned now) { return (int)(before ^ now) < 0; }
__device__ __forceinline__ void grid_wait(const Control &c, unsigned before)
{
    wait_for(c.barrier, [=](unsigned now) { return all_arrived(before, now); });
    __threadfence();
}

// All threads of the block have come; what its thread 0 gets from arriving.
__device__ __forceinline__ unsigned block_arrive(const Control &c)
{
    __syncthreads();
    return threadIdx.x == 0 ? grid_arrive(c) : 0;
}
__device__ __forceinline__ void grid_sync(const Control &c)
{
    const unsigned before = block_arrive(c);
    if (threadIdx.x == 0)
        grid_wait(c, before);
    __syncthreads();
}
// Waits until all blocks have arrived. Has any of them flagged a row before it did? That comes in one load with the
// barrier's word, and is all that is known behind it: there is no fence.
__device__ __forceinline__ bool any_watched(const Control &c, unsigned before)
{
    bool any = false;
    if (threadIdx.x == 0) {
        const auto here = [=](u64 now) { return all_arrived(before, (unsigned)now); };
        any = wait_for((const u64 *)c.barrier, here) >> 32 != 0;
    }
    return __syncthreads_or(any);
}

// ---- rows that are done again ----

// A row of the batch in which a guarded rewrite met a number that is not finite is flagged, and a later stage computes
// it as written; one that the tensor cores cannot hold is computed on the ordinary units.
struct Redo {
    i64 batch;
    u8 *flagged;                // [batch] set where a witness is not finite; NULL: nobody asks
    unsigned *any;              // set with the first of them
    const u8 *wanted;           // [batch] only these rows are wanted, and stored; NULL: all
    u8 *beyond;                 // [batch] set where a row has too wide a range for the tensor cores; NULL: nobody asks
    unsigned *beyond_any;
    int binades;                // of a row of x: see is_beyond in text/split.cu
    int uneven;                 // columns of a weight were balanced: text/weights.cu
};

// Which row of the batch a row of a grid of so many belongs to; -1 where each has to do with all of them.
__device__ __forceinline__ i64 batch_row_here(i64 batch, i64 row, i64 rows)
{
    const i64 each = batch > 0 ? rows / batch : 0;
    return each > 0 && each * batch == rows ? row / each : -1;
}
// Out of line, as what is long and rarely run should be. Where a row is in registers a call would cost those.
__device__ __noinline__ i64 batch_row(i64 batch, i64 row, i64 rows) { return batch_row_here(batch, row, rows); }

// at: of batch_row
__device__ __forceinline__ void flag(const Redo &r, u8 *flags, unsigned *any, i64 at)
{
    if (!flags)
        return;
    const i64 end = at < 0 ? r.batch : at + 1;
#pragma unroll 1
    for (i64 i = max(at, (i64)0); i < end; ++i)
        *(volatile u8 *)(flags + i) = 1; // one by one: it is rare, and memset is long
    *any = 1;
}
// A row of what is brought into lines, of which no memory holds 2^32. No call: the compiler would take long over the
// product's registers.
__device__ __forceinline__ void flag_beyond(const Redo &r, i64 row, i64 rows)
{
    const unsigned all = (unsigned)rows, batch = (unsigned)r.batch,
                   each = r.batch > 0 && r.batch <= rows ? all / batch : 0;
    flag(r, r.beyond, r.beyond_any, each > 0 && each * batch == all ? (i64)((unsigned)row / each) : -1);
}

template <int W> __device__ __forceinline__ void watch(const Redo &r, i64 row, i64 rows, const float (&v)[W])
{
    bool finite = true;
    EACH finite = finite && v[w] - v[w] == 0.0f;
    if (!finite)
        flag(r, r.flagged, r.any, batch_row_here(r.batch, row, rows));
}

__device__ __forceinline__ bool left_out(const Redo &r, i64 row, i64 rows)
{
    if (!r.wanted)
        return false;
    const i64 at = batch_row(r.batch, row, rows);
    return at >= 0 && !r.wanted[at];
}

// Behind a barrier of all blocks.
__device__ __forceinline__ bool any_set(const unsigned *any) { return *(const volatile unsigned *)any != 0; }

// The flags are set back; returns how many there were. One block, behind a barrier of all.
__device__ __forceinline__ i64 clear_flags(u8 *flags, unsigned *any, i64 batch)
{
    i64 count = 0;
    if (threadIdx.x == 0)
        *any = 0;
#pragma unroll 1
    for (i64 first = 0; first < batch; first += THREADS) {
        const i64 i = first + threadIdx.x;
        const bool set = i < batch && flags[i];
        if (set)
            flags[i] = 0;
        count += __syncthreads_count(set);
    }
    return count;
}

// Elements of an output, of which each row of the batch has `each`, as far as they are wanted.
__device__ __noinline__ void store_wanted(const Redo &r, float *out, i64 at, i64 each, const float *v, int count)
{
#pragma unroll 1
    for (int w = 0; w < count; ++w)
        if (r.wanted[(at + w) / each])
            out[at + w] = v[w];
}
template <class E>
__device__ __noinline__ void store_wanted(const Redo &r, E *out, i64 at, i64 each, const float *v, int count)
{
#pragma unroll 1
    for (int w = 0; w < count; ++w)
        if (r.wanted[(at + w) / each])
            store<false>(out + at + w, {v[w]});
}
template <int W, class E>
__device__ __forceinline__ void store_out(const Redo &r, E *out, i64 at, i64 each, const float (&v)[W])
{
    store_wanted(r, out, at, each, v, W);
}

// ---- statistics ----

// Neighbouring lanes' states, joined in order of lane; every lane has the result.
template <class M> __device__ __forceinline__ M join_lanes(M s, int lanes)
{
#pragma unroll 1 // each waits for the one before
    for (int o = 1; o < lanes; o *= 2) {
        M t = s.shuffled(o);
        if (threadIdx.x & o) {
            t.join(s);
            s = t;
        } else {
            s.join(t);
        }
    }
    return s;
}

// The T threads of a row meet: a warp, or one of several groups of a block.
template <int T> __device__ __forceinline__ void row_sync()
{
    if (T <= 32)
        __syncwarp();
    else
        meet<T>(1 + (int)threadIdx.x / T);
}

// The states of the T threads of a row, joined in order of thread. All lanes of a warp come here, whatever their rows.
template <int T, class M> __device__ __forceinline__ M join_row(M s)
{
    s = join_lanes(s, T < 32 ? T : 32);
    if constexpr (T > 32) {
        static_assert(sizeof(M) <= SCRATCH, "one of every warp");
        M *of_warp = (M *)row_scratch<T>();
        row_sync<T>(); // what was there before has been read
        if (threadIdx.x % 32 == 0)
            of_warp[threadIdx.x % T / 32] = s;
        row_sync<T>();
        s = of_warp[0];
        for (int i = 1; i < T / 32; ++i)
            s.join(of_warp[i]);
    }
    return s;
}

// Where no statistic is fed.
struct no_stat {
    __device__ __forceinline__ void begin() {}
    __device__ __forceinline__ void put(float) {}
    __device__ __forceinline__ void join(const no_stat &) {}
    __device__ __forceinline__ no_stat shuffled(int) const { return *this; }
};

// Elements one after another: a few in f32, those partials in double precision.
template <template <typename> class M> struct fold {
    M<float> few;
    M<double> all;
    int n;
    __device__ __forceinline__ fold() : n(0) { few.begin(), all.begin(); }
    __device__ __forceinline__ void put(float x)
    {
        few.put(x);
        if (++n == 64) {
            all.join(few);
            few.begin();
            n = 0;
        }
    }
    __device__ __forceinline__ M<double> total()
    {
        all.join(few);
        return all;
    }
};

// The partials [tiles][states] of one row, joined by four neighbouring lanes, each of which has the result: a lane
// takes every fourth in order, then the lanes in order. They were stored before a barrier of all who did. SMALL: by
// little code.
template <template <typename> class M> struct partials {
    template <bool SMALL> static __device__ __forceinline__ M<double> of(const float *partial, int tiles)
    {
        M<double> s;
        s.begin();
#pragma unroll(SMALL ? 1 : 16)
        for (int i = threadIdx.x % 4; i < tiles; i += 4) {
            M<float> t;
            t.get(partial + (i64)i * M<float>::STATES);
            s.join(t);
        }
        return join_lanes(s, 4);
    }
};
__device__ __forceinline__ double quad_sum(double x)
{
    for (int o = 1; o < 4; o *= 2)
        x += __shfl_xor_sync(~0u, x, o); // two numbers: either order gives the same
    return x;
}
