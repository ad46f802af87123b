// SPDX-License-Identifier: Apache-2.0
// What text/ptx.cu is, of Hopper: barriers in shared memory, copies by hardware (TMA) that report to them, and what
// blocks of a cluster do to each other. For text/ring.cu, text/wgmma.cu and text/few_rows.cu.

struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};

// ---- barriers in shared memory ----

__device__ __forceinline__ void barrier_init(unsigned bar, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_end(unsigned bar)
{
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void barrier_expect(unsigned bar, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
// Behind the first of all barriers, before anybody uses them.
__device__ __forceinline__ void barriers_begun() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// In this block.
__device__ __forceinline__ void barrier_arrive(unsigned bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
// At the same offset in block `rank` of the cluster. No .release.cluster: that would be a full fence in every stage,
// and nothing ordinary was written.
__device__ __forceinline__ void barrier_arrive(unsigned bar, int rank)
{
    asm volatile("{ .reg .b32 r; mapa.shared::cluster.u32 r, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [r]; }" ::"r"(bar), "r"(rank) : "memory");
}
// Has its phase of this parity ended, or does it soon? CLUSTER: with what other blocks of the cluster wrote before.
template <bool CLUSTER> __device__ __forceinline__ unsigned barrier_try(unsigned bar, int parity)
{
    unsigned done;
    if constexpr (CLUSTER)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    else
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    return done;
}
// Of two barriers at once.
__device__ __forceinline__ unsigned barrier_try_both(unsigned a, unsigned b, int parity)
{
    unsigned done;
    asm volatile("{ .reg .pred p, q; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %3;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 q, [%2], %3;\n"
                 "and.pred p, p, q; selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(a), "r"(b), "r"(parity) : "memory");
    return done;
}
// Bounded: a hang becomes an error on the host.
template <bool CLUSTER = false> __device__ __forceinline__ void barrier_wait(unsigned bar, int parity)
{
#pragma unroll 1
    for (int spin = 0; spin < (1 << 24); ++spin)
        if (barrier_try<CLUSTER>(bar, parity))
            return;
    __trap();
}

// What threads have written, copies may read, and write over: on both sides of the barrier between them.
__device__ __forceinline__ void written_to_copied() { asm volatile("fence.proxy.async;" ::: "memory"); }
// Likewise in shared memory alone: nothing waits for what goes to memory.
__device__ __forceinline__ void shared_to_copied() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- copies by hardware ----

// A row in one piece; both ends at multiples of 16 bytes, as is its length.
__device__ __forceinline__ void copy_row(unsigned to, const float *from, int bytes, unsigned bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(bar) : "memory");
}

// Rows of a line, as many as the map has in a box, into shared memory: this block's, or, at the same offset, that of
// all blocks in mask.
__device__ __forceinline__ void copy_box(unsigned to, const TensorMap *map, int line, int row, unsigned bar)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {0, %2, %3}], [%4];"
                 ::"r"(to), "l"(map), "r"(row), "r"(line), "r"(bar) : "memory");
}
__device__ __forceinline__ void copy_box_to(unsigned to, const TensorMap *map, int line, int row, unsigned bar,
                                            unsigned short mask)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1, {0, %2, %3}], [%4], %5;"
                 ::"r"(to), "l"(map), "r"(row), "r"(line), "r"(bar), "h"(mask) : "memory");
}

// What is read once gives way to whatever else is in L2.
__device__ __forceinline__ void copy_box_once(unsigned to, const TensorMap *map, int line, int row, unsigned bar)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1, {0, %2, %3}], [%4], %5;" // %5: evict_first, as createpolicy makes it
                 ::"r"(to), "l"(map), "r"(row), "r"(line), "r"(bar), "l"(0x12F0000000000000ull) : "memory");
}

// ---- between the blocks of a cluster ----

__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
// All threads of all blocks.
__device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// Where block `rank` has what this one has at the address.
__device__ __forceinline__ unsigned address_in(unsigned address, int rank)
{
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
__device__ __forceinline__ void write_there(unsigned there, float v)
{
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(v) : "memory");
}
// With what was written and read before. there: of address_in
__device__ __forceinline__ void barrier_pass_there(unsigned there)
{
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory");
}

// ---- registers ----

// From one group of warps to others.
template <int to> __device__ __forceinline__ void fewer_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(to));
}
template <int to> __device__ __forceinline__ void more_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(to));
}
// As `meet`, from several places in the code.
template <int threads> __device__ __forceinline__ void meet_from_anywhere(int barrier)
{
    asm volatile("barrier.sync %0, %1;" ::"r"(barrier), "n"(threads) : "memory");
}
