/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU on the host, for tests where there is none: generated CUDA C, compiled as C++ (cuda.h), runs here, one thread
 * at a time, each on a stack of its own. Included by C (machine.c, driver.c, tests) and by the kernels' C++.
 *
 * A thread runs until it waits: for its warp, for a barrier of the block, or for another block. Then the next one of
 * its warp runs, then, when all of that wait, the next warp, in order of thread and block, up or down
 * (host_gpu_downwards). So the order is the same in every run, and where a barrier is missing some warp is too far
 * ahead in one order or in the other. A block's shared memory is copied to where the kernel has it when the block's
 * turn comes. What would hang is an error: a warp or a barrier that not all threads come to, blocks that wait for
 * nothing. So are a vector at an address that is no multiple of its size, and shared memory beyond what the launch
 * asked for.
 *
 * Copies that threads need not wait for are made at once, and threads that a barrier in shared memory lets go on run at
 * once; or (host_gpu_late) copies are made as late as they can be: a thread's own when it waits for them, those by
 * hardware when no thread can do anything else. Products on Hopper are made when they are waited for, and read shared
 * memory then. Blocks of a cluster run together.
 *
 * Fences are nothing here: where one is missing only a GPU shows it. */
#ifndef LF_TESTS_HOST_GPU_MACHINE_H
#define LF_TESTS_HOST_GPU_MACHINE_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct host_gpu_index {
    unsigned x, y, z;
} host_gpu_index;

#pragma GCC visibility push(default) /* for kernels, which are libraries */

/* Of the thread that runs. */
extern host_gpu_index host_gpu_thread, host_gpu_block, host_gpu_block_size, host_gpu_grid_size;
extern unsigned host_gpu_raw_bytes; /* of shared memory that the launch asked for */

/* What a thread may wait for. */
void host_gpu_warp_sync(void);
unsigned long long host_gpu_shuffle(unsigned long long value, unsigned from); /* what lane `from` brings */
/* So many threads of the block meet at barrier id. */
void host_gpu_barrier(int id, int threads);
/* All threads of the block meet; the sum of what they bring. */
int host_gpu_vote(int value);
unsigned host_gpu_f16_of(float number); /* its bits */
/* Until other blocks had their turn. */
void host_gpu_pause(void);
/* The threads of a warp meet, each with something of its own; the last to come does the work for all of them. */
typedef void host_gpu_work(void **of_lanes);
void host_gpu_together(void *mine, host_gpu_work *work);

/* A copy that this thread need not wait for: `given` bytes, then zeros. It belongs to the group that is committed next,
 * and is there when all but the `latest` groups are waited for. */
void host_gpu_copy(void *to, const void *from, unsigned bytes, unsigned given);
void host_gpu_copy_commit(void);
void host_gpu_copy_wait(int latest);

/* ---- of Hopper; places are offsets in raw, ranks those of blocks in a cluster ---- */

int host_gpu_rank(void);
/* The same place in another block. */
void *host_gpu_in_cluster(unsigned place, int rank, unsigned bytes);
void host_gpu_cluster_arrive(void);
void host_gpu_cluster_wait(void);

/* Barriers in shared memory. */
void host_gpu_mbarrier_init(unsigned place, int count);
void host_gpu_mbarrier_end(unsigned place);
/* Expects so many bytes more, and arrives. */
void host_gpu_mbarrier_arrive(unsigned place, int rank, int bytes);
/* Has the phase of this parity ended? Waits until one ends. */
unsigned host_gpu_mbarrier_try(unsigned place, int parity);

/* What stands for a tensor map: boxes of rows of 128 bytes. */
typedef struct host_gpu_map {
    const char *at;
    unsigned long long extent[3], stride[2];
    unsigned box[3];
    int type; /* CUtensorMapDataType */
    unsigned char unused[64];
} host_gpu_map;

/* Copies by hardware, which tell a barrier how many bytes have come. raw_at: the address of place 0, for the swizzle.
 * mask: of ranks. */
void host_gpu_copy_row(unsigned to, const void *from, unsigned bytes, unsigned barrier);
void host_gpu_copy_box(unsigned to, unsigned raw_at, const host_gpu_map *map, int row, int line, unsigned barrier,
                       unsigned mask);

/* A product of four warps, of which this thread's is one and has a quarter of the rows, and its lanes their sums: made
 * when the first of them waits for all but the `latest` groups of products, and all have come so far. */
typedef void host_gpu_product(void **sums, int quarter, unsigned long long left, unsigned long long right, int columns,
                              int keep);
void host_gpu_later(host_gpu_product *product, void **sums, unsigned long long left, unsigned long long right,
                    int columns, int keep);
void host_gpu_later_commit(void);
void host_gpu_later_wait(int latest); /* every thread */
/* The kernel gives up; says why. */
void host_gpu_trap(const char *why);

#pragma GCC visibility pop

/* ---- for tests ---- */

/* Threads and blocks take their turns from the last to the first. At first as LINFUSE_HOST_GPU=down says. */
extern int host_gpu_downwards;
/* Copies that are not waited for are made as late as they can be: when they are waited for; otherwise at once. At first
 * as LINFUSE_HOST_GPU=late says, or =down,late. */
extern int host_gpu_late;
/* Texts are compiled with the one in the place of the other: a mistake that is to be found. NULL: as they are. */
extern const char *host_gpu_change_from, *host_gpu_change_to;

/* ---- for the driver ---- */

/* A kernel as it is called: with the parameters of a launch. */
typedef void host_gpu_kernel(void **params);

/* Where kernels have their shared memory: what they ask for at launch, and their own. */
typedef struct host_gpu_shared {
    unsigned char *raw, *own;
    unsigned raw_bytes, own_bytes; /* raw: of the launch; own: of the kernel */
} host_gpu_shared;

enum { HOST_GPU_MOST_THREADS = 384, HOST_GPU_MOST_BLOCKS = 4, HOST_GPU_RAW = 227 << 10 };

/* Runs a grid to its end. NULL, or why it could not. cluster: blocks of one. together: blocks wait for each other, so
 * all must be resident. */
const char *host_gpu_run(host_gpu_kernel *kernel, void **params, host_gpu_index grid, host_gpu_index block,
                         host_gpu_shared shared, unsigned cluster, int together);

#ifdef __cplusplus
}
#endif

#endif
