/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the machine share. */
#ifndef LF_TESTS_HOST_GPU_MACHINE_PARTS_H
#define LF_TESTS_HOST_GPU_MACHINE_PARTS_H

#include <stdbool.h>
#include <stdint.h>

#include "machine.h"

enum { WARP = 32, MOST_WARPS = HOST_GPU_MOST_THREADS / WARP, BARRIERS = 16, STACK = 128 << 10 };
enum { COPIES = 256, LATERS = 64 }; /* that a thread, or a warp, may have under way */
/* what a thread waits for that is no barrier of the block */
enum { ITS_WARP = -1, ITS_CLUSTER = -2, ITS_GROUP = -3 };

typedef enum state { READY, WAITING, WATCHING, PAUSED, DONE } state;

typedef struct copy {
    void *to;
    const void *from;
    unsigned bytes, given;
    int group; /* of the thread's, counted from 0 */
} copy;

typedef struct thread {
    void *stack_pointer; /* where it left off */
    unsigned index;
    state state;
    int barrier;         /* WAITING: for it, or for what is below */
    unsigned watched;    /* WATCHING: where in raw its barrier is */
    int cluster_turn;    /* of its arrival at the cluster's barrier */
    int copies, groups;  /* copies that are not made yet; groups that were committed */
    copy copy[COPIES];   /* in order */
} thread;

typedef struct later {
    host_gpu_product *product;
    void *sums[WARP];
    unsigned long long left, right;
    int columns, keep, group; /* group: of the warp's, counted from 0 */
} later;

typedef struct warp {
    int met;             /* how many wait for the others */
    int turn;            /* which of the two rows of values is being brought: the other may still be read */
    uint64_t value[2][WARP];
    void *mine[WARP];
    int laters, groups;  /* products that are not made yet; groups that were committed */
    later later[LATERS]; /* in order */
} warp;

typedef struct block {
    unsigned index;
    bool alive;
    thread thread[HOST_GPU_MOST_THREADS];
    warp warp[MOST_WARPS];
    int met[BARRIERS], votes, result;
    unsigned char *shared; /* while another block runs: raw, then the kernel's own */
    int cluster_met, cluster_turn; /* at the cluster's barrier: of its first block */
} block;

typedef struct host_gpu_state {
    host_gpu_kernel *kernel;
    void **params;
    host_gpu_shared shared;
    unsigned cluster; /* blocks of one */
    const char *error;
    int woken;  /* a thread of this block that a barrier in shared memory has let go on; -1: none */
    bool moved; /* a thread did something other than to pause once more */
    unsigned char *stacks;
    block block[HOST_GPU_MOST_BLOCKS];
    block *here;
    thread *now;
    void *scheduler; /* its stack pointer, while a thread runs */
} host_gpu_state;

extern host_gpu_state host_gpu_machine;

/* The thread that runs stops; the machine goes on with others. */
void host_gpu_leave(state as);
/* Whoever waits for this barrier goes on. */
void host_gpu_release(block *b, int barrier, unsigned first, unsigned end);
/* The copy by hardware that began first (downwards: last) and is not made yet is; false: there is none. */
bool host_gpu_make_box(void);
void host_gpu_forget_boxes(void);

#endif
