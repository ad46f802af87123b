// SPDX-License-Identifier: Apache-2.0
// Rows that come through a ring in shared memory, several ahead of the one that is under way: hardware copies them
// there, so that memory is busy whatever the threads do.

// The ring of a block, whose T threads take a row together: slot `at` is the next to be taken, and its copy ends the
// phase of its barrier whose parity is `parity`. A slot is waited for only if it was filled: row j of the block lies in
// slot j % SLOTS, filled by begin or when row j - SLOTS was taken, both only if there is such a row.
template <int T, int TURNS, int SLOTS> struct row_ring {
    enum { BYTES = TURNS * T * 16, LIES = 128 }; // at a multiple of that
    u8 *slots; // [SLOTS][BYTES], then a barrier for each
    int at, parity;

    __device__ __forceinline__ unsigned barrier(int slot) const
    {
        return shared_address(slots + SLOTS * BYTES) + 8 * slot;
    }
    // One thread does.
    __device__ __forceinline__ void fill(int slot, const float *from) const
    {
        barrier_expect(barrier(slot), BYTES);
        copy_row(shared_address(slots + slot * BYTES), from, BYTES, barrier(slot));
    }
    template <class X> __device__ __forceinline__ void begin(i64 row, i64 step, i64 rows, const X &x)
    {
        static_assert(T == THREADS, "rows are a block's");
        slots = raw + (-shared_address(raw) & (LIES - 1));
        at = parity = 0;
        if (threadIdx.x == 0) {
            for (int s = 0; s < SLOTS; ++s)
                barrier_init(barrier(s), 1);
            barriers_begun();
        }
        shared_to_copied(); // what an earlier stage wrote where the ring is now, and the barriers
        row_sync<T>();
        if (threadIdx.x == 0)
            for (int s = 0; s < SLOTS && row < rows; ++s, row += step)
                fill(s, x(row));
    }
    // The row that was to come next, into registers; its slot is filled again with row `later`.
    template <class X>
    __device__ __forceinline__ void take(float (&regs)[TURNS][4], i64 later, i64 rows, const X &x)
    {
        barrier_wait(barrier(at), parity);
        bring_row<true, T>(regs, (const float *)(slots + at * BYTES), threadIdx.x);
        // Now everybody has read it. A copy that begins behind this writes over what was read, not written, by threads:
        // that wants no fence. Nor does anybody still wait for the phase before the one that it ends.
        row_sync<T>();
        if (threadIdx.x == 0 && later < rows)
            fill(at, x(later));
        if (++at == SLOTS)
            at = 0, parity ^= 1;
    }
    // All that was filled was taken: nobody waits, no copy is under way. Other stages use the memory as they like.
    __device__ __forceinline__ void end() const
    {
        if (threadIdx.x == 0)
            for (int s = 0; s < SLOTS; ++s)
                barrier_end(barrier(s));
    }
};

// As rows_by_registers does, for rows of an input, which begin at multiples of 16 bytes. begun: to be done when the
// first are on their way.
template <int T, int TURNS, int SLOTS, class X, class Begun, class Done>
__device__ __forceinline__ void rows_by_ring(const i64 rows, const X &x, const Begun &begun, const Done &done)
{
    const i64 step = gridDim.x;
    row_ring<T, TURNS, SLOTS> ring;
    ring.begin(blockIdx.x, step, rows, x);
    begun();
    for (i64 row = blockIdx.x; row < rows; row += step) {
        float regs[TURNS][4];
        ring.take(regs, row + SLOTS * step, rows, x);
        done(row, regs);
    }
    ring.end();
}
