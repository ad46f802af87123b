// SPDX-License-Identifier: Apache-2.0
// Barriers in shared memory that Hopper's copies by hardware report to. For text/ring.cu and text/hopper.cu.

__device__ __forceinline__ unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
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
// At the same offset in block `rank` of the cluster. No .release.cluster: that would be a full fence in every stage,
// and nothing ordinary was written.
__device__ __forceinline__ void barrier_arrive(unsigned bar, int rank)
{
    asm volatile("{ .reg .b32 r; mapa.shared::cluster.u32 r, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [r]; }" ::"r"(bar), "r"(rank) : "memory");
}
// Bounded: a hang becomes an error on the host. CLUSTER: with what other blocks of the cluster wrote before.
template <bool CLUSTER = false> __device__ __forceinline__ void barrier_wait(unsigned bar, int parity)
{
    unsigned done;
#pragma unroll 1
    for (int spin = 0; spin < (1 << 24); ++spin) {
        if constexpr (CLUSTER)
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                         "selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(bar), "r"(parity) : "memory");
        else
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                         "selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(bar), "r"(parity) : "memory");
        if (done)
            return;
    }
    __trap();
}

// What threads have written, copies may read, and write over: on both sides of the barrier between them.
__device__ __forceinline__ void written_to_copied() { asm volatile("fence.proxy.async;" ::: "memory"); }
// Likewise in shared memory alone: nothing waits for what goes to memory.
__device__ __forceinline__ void shared_to_copied() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
