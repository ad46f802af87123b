/* SPDX-License-Identifier: Apache-2.0 */
/* What the machine has of Hopper: clusters, barriers in shared memory, copies by hardware, products that are made
 * later. */
#include <string.h>

#include "machine_parts.h"

#define machine host_gpu_machine

/* ---- clusters ---- */

static block *first_of(block *b)
{
    const size_t slot = (size_t)(b - machine.block);
    return &machine.block[slot - slot % machine.cluster];
}

static block *at_rank(block *first, unsigned rank)
{
    for (unsigned i = 0; i < machine.cluster; i++)
        if (first[i].alive && first[i].index % machine.cluster == rank)
            return &first[i];
    return NULL;
}

static unsigned char *raw_of(block *b)
{
    return b == machine.here ? machine.shared.raw : b->shared;
}

int host_gpu_rank(void)
{
    return (int)(machine.here->index % machine.cluster);
}

void *host_gpu_in_cluster(unsigned place, int rank, unsigned bytes)
{
    block *b = at_rank(first_of(machine.here), (unsigned)rank);
    if (place > machine.shared.raw_bytes || bytes > machine.shared.raw_bytes - place)
        host_gpu_trap("shared memory that there is not");
    if (!b)
        host_gpu_trap("a block of the cluster that has ended");
    return raw_of(b) + place;
}

void host_gpu_cluster_arrive(void)
{
    block *first = first_of(machine.here);
    machine.now->cluster_turn = first->cluster_turn;
    if (++first->cluster_met < (int)(machine.cluster * host_gpu_block_size.x))
        return;
    first->cluster_met = 0;
    first->cluster_turn++;
    for (unsigned i = 0; i < machine.cluster; i++)
        host_gpu_release(&first[i], ITS_CLUSTER, 0, host_gpu_block_size.x);
}

void host_gpu_cluster_wait(void)
{
    if (machine.now->cluster_turn != first_of(machine.here)->cluster_turn)
        return;
    machine.now->barrier = ITS_CLUSTER;
    host_gpu_leave(WAITING);
}

/* ---- barriers in shared memory ---- */

/* The 64 bits of one. Memory that nobody has written is none. */
typedef struct mbarrier {
    int32_t bytes;        /* that are still to come */
    uint16_t left;        /* arrivals */
    uint16_t twice_count; /* of arrivals that end a phase; and the parity of the phase */
} mbarrier;

enum { NONE = UINT16_MAX };

static void put(block *b, unsigned place, mbarrier m)
{
    memcpy(raw_of(b) + place, &m, sizeof m);
}

static mbarrier get(block *b, unsigned place)
{
    mbarrier m;
    memcpy(&m, raw_of(b) + place, sizeof m);
    return m;
}

/* In this block; it is one. */
static mbarrier get_here(unsigned place)
{
    mbarrier m;
    memcpy(&m, host_gpu_in_cluster(place, host_gpu_rank(), sizeof m), sizeof m);
    if (m.twice_count == NONE)
        host_gpu_trap("a barrier that was not begun");
    return m;
}

/* Something has come. */
static void tell(block *b, unsigned place, mbarrier m)
{
    if (m.left == 0 && m.bytes == 0) {
        m.twice_count ^= 1;
        m.left = m.twice_count / 2;
        for (unsigned i = 0; i < host_gpu_block_size.x; i++)
            if (b->thread[i].state == WATCHING && b->thread[i].watched == place) {
                b->thread[i].state = READY;
                machine.woken = b == machine.here && !host_gpu_late ? (int)i : machine.woken;
            }
    }
    put(b, place, m);
}

void host_gpu_mbarrier_init(unsigned place, int count)
{
    host_gpu_in_cluster(place, host_gpu_rank(), sizeof(mbarrier));
    put(machine.here, place, (mbarrier){0, (uint16_t)count, (uint16_t)(2 * count)});
}

void host_gpu_mbarrier_end(unsigned place)
{
    get_here(place);
    put(machine.here, place, (mbarrier){0, 0, NONE});
}

void host_gpu_mbarrier_arrive(unsigned place, int rank, int bytes)
{
    host_gpu_in_cluster(place, rank, sizeof(mbarrier));
    block *b = at_rank(first_of(machine.here), (unsigned)rank);
    mbarrier m = get(b, place);
    if (m.twice_count == NONE)
        host_gpu_trap("a barrier that was not begun");
    if (m.left == 0)
        host_gpu_trap("more arrive at a barrier than it waits for");
    m.left--;
    m.bytes += bytes;
    tell(b, place, m);
}

unsigned host_gpu_mbarrier_try(unsigned place, int parity)
{
    if ((get_here(place).twice_count & 1) == (parity & 1)) {
        machine.now->watched = place;
        host_gpu_leave(WATCHING);
    }
    return (get_here(place).twice_count & 1) != (parity & 1);
}

/* ---- copies by hardware ---- */

enum { BOXES = 256, ROW = 128 };

typedef struct box {
    block *first;     /* of the cluster */
    unsigned to, raw_at, barrier, mask;
    const void *from; /* a row of so many bytes; NULL: a box of the map */
    unsigned bytes;
    host_gpu_map map;
    int row, line;
} box;

static box boxes[BOXES];
static int box_count;

/* As a map of tf32 rounds: to nearest, ties to even. */
static void round_to_tf32(unsigned char *row)
{
    uint32_t words[ROW / 4];
    memcpy(words, row, sizeof words);
    for (int i = 0; i < ROW / 4; i++)
        words[i] = (words[i] & INT32_MAX) > 0x7f800000 ? INT32_MAX
                                                       : (words[i] + 0xfff + (words[i] >> 13 & 1)) & ~UINT32_C(0x1fff);
    memcpy(row, words, sizeof words);
}

static void copy_map_row(const box *x, unsigned char *raw, unsigned to, uint64_t row, uint64_t line)
{
    enum { TF32 = 11 };
    const host_gpu_map *m = &x->map;
    unsigned char data[ROW] = {0};
    if (row < m->extent[1] && line < m->extent[2])
        memcpy(data, m->at + row * m->stride[0] + line * m->stride[1], ROW);
    if (m->type == TF32)
        round_to_tf32(data);
    for (unsigned i = 0; i < ROW; i += 16) {
        const unsigned at = x->raw_at + to + i, swizzled = at ^ (at >> 7 & 7) << 4;
        memcpy(raw + (swizzled - x->raw_at), data + i, 16);
    }
}

static void make(const box *x)
{
    for (unsigned rank = 0; rank < machine.cluster; rank++) {
        block *b = at_rank(x->first, rank);
        if (!(x->mask >> rank & 1))
            continue;
        if (!b || get(b, x->barrier).twice_count == NONE) {
            machine.error = "a copy into a block, or for a barrier, that has ended";
            return;
        }
        unsigned char *raw = raw_of(b);
        if (x->from)
            memcpy(raw + x->to, x->from, x->bytes);
        else
            for (unsigned i = 0; i < x->map.box[1] * x->map.box[2]; i++)
                copy_map_row(x, raw, x->to + i * ROW, (uint64_t)x->row + i % x->map.box[1],
                             (uint64_t)x->line + i / x->map.box[1]);
        mbarrier m = get(b, x->barrier);
        m.bytes -= (int32_t)x->bytes;
        tell(b, x->barrier, m);
    }
}

static void begin(box x)
{
    host_gpu_in_cluster(x.to, host_gpu_rank(), x.bytes);
    get_here(x.barrier);
    x.first = first_of(machine.here);
    if (!host_gpu_late)
        make(&x);
    else if (box_count < BOXES)
        boxes[box_count++] = x;
    else
        host_gpu_trap("more copies under way than this machine remembers");
}

void host_gpu_copy_row(unsigned to, const void *from, unsigned bytes, unsigned barrier)
{
    begin((box){.to = to, .from = from, .bytes = bytes, .barrier = barrier, .mask = 1u << host_gpu_rank()});
}

void host_gpu_copy_box(unsigned to, unsigned raw_at, const host_gpu_map *map, int row, int line, unsigned barrier,
                       unsigned mask)
{
    begin((box){.to = to,
                .raw_at = raw_at,
                .bytes = map->box[1] * map->box[2] * ROW,
                .map = *map,
                .row = row,
                .line = line,
                .barrier = barrier,
                .mask = mask});
}

bool host_gpu_make_box(void)
{
    if (box_count == 0)
        return false;
    const int which = host_gpu_downwards ? box_count - 1 : 0;
    const box x = boxes[which];
    box_count--;
    memmove(&boxes[which], &boxes[which + 1], (size_t)(box_count - which) * sizeof x);
    make(&x);
    return true;
}

void host_gpu_forget_boxes(void)
{
    if (box_count > 0 && !machine.error)
        machine.error = "a copy that nobody waits for";
    box_count = 0;
}

/* ---- products ---- */

enum { GROUP = 4 }; /* warps that multiply together */

static warp *this_warp(void)
{
    return &machine.here->warp[machine.now->index / WARP];
}

void host_gpu_later(host_gpu_product *product, void **sums, unsigned long long left, unsigned long long right,
                    int columns, int keep)
{
    warp *w = this_warp();
    if (w->laters == LATERS)
        host_gpu_trap("more products under way than this machine remembers");
    later *l = &w->later[w->laters++];
    *l = (later){
        .product = product, .left = left, .right = right, .columns = columns, .keep = keep, .group = w->groups};
    memcpy(l->sums, sums, sizeof l->sums);
}

static warp *first_of_group(void)
{
    return &machine.here->warp[machine.now->index / WARP / GROUP * GROUP];
}

void host_gpu_later_commit(void)
{
    const unsigned threads = GROUP * WARP, first = machine.now->index / threads * threads;
    this_warp()->groups++;
    host_gpu_release(machine.here, ITS_GROUP, first, first + threads);
}

static bool all_committed(int groups)
{
    for (int i = 0; i < GROUP; i++)
        if (first_of_group()[i].groups < groups)
            return false;
    return true;
}

static void make_products(warp *w, int quarter, int groups)
{
    int made = 0;
    for (; made < w->laters && w->later[made].group < groups; made++) {
        later *l = &w->later[made];
        l->product(l->sums, quarter, l->left, l->right, l->columns, l->keep);
    }
    w->laters -= made;
    memmove(w->later, w->later + made, (size_t)w->laters * sizeof *w->later);
}

void host_gpu_later_wait(int latest)
{
    const int groups = this_warp()->groups - latest;
    while (!all_committed(groups)) {
        machine.now->barrier = ITS_GROUP;
        host_gpu_leave(WAITING);
    }
    for (int i = 0; i < GROUP; i++)
        make_products(&first_of_group()[i], i, groups);
    host_gpu_warp_sync();
}
