/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of text/ptx_hopper.cu, in its place, for the machine of machine.h. */

struct alignas(64) TensorMap {
    host_gpu_map map;
};

inline void barrier_init(unsigned bar, int count) { host_gpu_mbarrier_init(bar - RAW_AT, count); }
inline void barrier_end(unsigned bar) { host_gpu_mbarrier_end(bar - RAW_AT); }
inline void barrier_expect(unsigned bar, int bytes) { host_gpu_mbarrier_arrive(bar - RAW_AT, host_gpu_rank(), bytes); }
inline void barriers_begun() {}
inline void barrier_arrive(unsigned bar) { host_gpu_mbarrier_arrive(bar - RAW_AT, host_gpu_rank(), 0); }
inline void barrier_arrive(unsigned bar, int rank) { host_gpu_mbarrier_arrive(bar - RAW_AT, rank, 0); }
template <bool CLUSTER> inline unsigned barrier_try(unsigned bar, int parity)
{
    return host_gpu_mbarrier_try(bar - RAW_AT, parity);
}
inline unsigned barrier_try_both(unsigned a, unsigned b, int parity)
{
    const unsigned done = barrier_try<false>(a, parity);
    return barrier_try<false>(b, parity) && done;
}
template <bool CLUSTER = false> inline void barrier_wait(unsigned bar, int parity)
{
    while (!barrier_try<CLUSTER>(bar, parity))
        ;
}
inline void written_to_copied() {} // one thread runs at a time
inline void shared_to_copied() {}

inline void copy_row(unsigned to, const float *from, int bytes, unsigned bar)
{
    if (to % 16 != 0 || (size_t)from % 16 != 0 || bytes % 16 != 0)
        host_gpu_trap("a misaligned address");
    host_gpu_copy_row(to - RAW_AT, from, (unsigned)bytes, bar - RAW_AT);
}
inline void copy_box_to(unsigned to, const TensorMap *map, int line, int row, unsigned bar, unsigned short mask)
{
    if (to % 128 != 0) // of boxes that are swizzled
        host_gpu_trap("a misaligned address");
    host_gpu_copy_box(to - RAW_AT, RAW_AT, &map->map, row, line, bar - RAW_AT, mask);
}
inline void copy_box(unsigned to, const TensorMap *map, int line, int row, unsigned bar)
{
    copy_box_to(to, map, line, row, bar, (unsigned short)(1 << host_gpu_rank()));
}
inline void copy_box_once(unsigned to, const TensorMap *map, int line, int row, unsigned bar)
{
    copy_box(to, map, line, row, bar);
}

inline void cluster_arrive() { host_gpu_cluster_arrive(); }
inline void cluster_wait() { host_gpu_cluster_wait(); }
inline void cluster_sync() { cluster_arrive(), cluster_wait(); }
enum { RANK_AT = 24, IN_BLOCK = (1 << RANK_AT) - 1 }; // bits of an address in the cluster
inline unsigned address_in(unsigned address, int rank) { return address | (unsigned)rank << RANK_AT; }
inline void write_there(unsigned there, float v)
{
    memcpy(host_gpu_in_cluster((there & IN_BLOCK) - RAW_AT, (int)(there >> RANK_AT), sizeof v), &v, sizeof v);
}
inline void barrier_pass_there(unsigned there)
{
    barrier_arrive(there & IN_BLOCK, (int)(there >> RANK_AT));
}
template <int to> inline void fewer_registers() {}
template <int to> inline void more_registers() {}
template <int threads> inline void meet_from_anywhere(int barrier) { meet<threads>(barrier); }
