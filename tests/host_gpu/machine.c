/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "machine_parts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/dtype.h"

host_gpu_index host_gpu_thread, host_gpu_block, host_gpu_block_size, host_gpu_grid_size;
unsigned host_gpu_raw_bytes;
int host_gpu_downwards, host_gpu_late;

host_gpu_state host_gpu_machine;
#define machine host_gpu_machine

/* ---- a thread's turn ---- */

/* Goes on with `to` on its stack; comes back when somebody does the same with *from. */
void host_gpu_switch(void **from, void *to);
void host_gpu_begin(void);
#if defined(__x86_64__)
__asm__(".text\n"
        ".globl host_gpu_switch\n"
        ".type host_gpu_switch, @function\n"
        "host_gpu_switch:\n"
        "    push %rbp\n    push %rbx\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
        "    mov %rsp, (%rdi)\n"
        "    mov %rsi, %rsp\n"
        "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbx\n    pop %rbp\n"
        "    ret\n");
enum { SAVED = 6, RETURN = 6 }; /* words; the one that holds where to go on */
#elif defined(__aarch64__)
__asm__(".text\n"
        ".globl host_gpu_switch\n"
        ".type host_gpu_switch, %function\n"
        "host_gpu_switch:\n"
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp]\n    stp x21, x22, [sp, #16]\n    stp x23, x24, [sp, #32]\n"
        "    stp x25, x26, [sp, #48]\n    stp x27, x28, [sp, #64]\n    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n    stp d10, d11, [sp, #112]\n    stp d12, d13, [sp, #128]\n"
        "    stp d14, d15, [sp, #144]\n"
        "    mov x9, sp\n    str x9, [x0]\n    mov sp, x1\n"
        "    ldp x19, x20, [sp]\n    ldp x21, x22, [sp, #16]\n    ldp x23, x24, [sp, #32]\n"
        "    ldp x25, x26, [sp, #48]\n    ldp x27, x28, [sp, #64]\n    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n    ldp d10, d11, [sp, #112]\n    ldp d12, d13, [sp, #128]\n"
        "    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    ret\n");
enum { SAVED = 20, RETURN = 11 };
#else
#error "host_gpu_switch is not written for this processor"
#endif

void host_gpu_leave(state as)
{
    thread *t = machine.now;
    t->state = as;
    host_gpu_switch(&t->stack_pointer, machine.scheduler);
}

/* The first that a thread does. */
void host_gpu_begin(void)
{
    machine.kernel(machine.params);
    host_gpu_leave(DONE);
    abort(); /* nobody goes on with it */
}

static void make_ready(thread *t, unsigned index, unsigned char *stack_end)
{
    void **top = (void **)stack_end - SAVED - 2; /* at a call the stack is 8 bytes off a multiple of 16 on x86-64 */
    void (*begin)(void) = host_gpu_begin;
    memset(top, 0, (SAVED + 2) * sizeof *top);
    memcpy(&top[RETURN], &begin, sizeof begin);
    t->stack_pointer = top, t->index = index, t->state = READY;
    t->copies = t->groups = 0;
}

static void run_thread(thread *t)
{
    machine.now = t;
    host_gpu_thread.x = t->index;
    host_gpu_switch(&machine.scheduler, t->stack_pointer);
    machine.moved = machine.moved || t->state != PAUSED;
}

/* ---- what threads call ---- */

void host_gpu_release(block *b, int barrier, unsigned first, unsigned end)
{
    for (unsigned i = first; i < end; i++)
        if (b->thread[i].state == WAITING && b->thread[i].barrier == barrier)
            b->thread[i].state = READY;
}

static void wait_at(int barrier)
{
    machine.now->barrier = barrier;
    host_gpu_leave(WAITING);
}

void host_gpu_barrier(int id, int threads)
{
    block *b = machine.here;
    if (id < 0 || id >= BARRIERS || threads % WARP != 0 || threads > (int)host_gpu_block_size.x)
        host_gpu_trap("a barrier that there is not");
    if (++b->met[id] < threads) {
        wait_at(id);
        return;
    }
    b->met[id] = 0;
    host_gpu_release(b, id, 0, host_gpu_block_size.x);
}

int host_gpu_vote(int value)
{
    block *b = machine.here;
    b->votes += value;
    if (b->met[0] + 1 == (int)host_gpu_block_size.x) {
        b->result = b->votes;
        b->votes = 0;
    }
    host_gpu_barrier(0, (int)host_gpu_block_size.x);
    return b->result;
}

void host_gpu_warp_sync(void)
{
    const unsigned first = machine.now->index / WARP * WARP;
    warp *w = &machine.here->warp[first / WARP];
    if (++w->met < WARP) {
        wait_at(ITS_WARP);
        return;
    }
    w->met = 0;
    w->turn ^= 1;
    host_gpu_release(machine.here, ITS_WARP, first, first + WARP);
}

unsigned long long host_gpu_shuffle(unsigned long long value, unsigned from)
{
    warp *w = &machine.here->warp[machine.now->index / WARP];
    uint64_t *brought = w->value[w->turn];
    brought[machine.now->index % WARP] = value;
    host_gpu_warp_sync();
    return brought[from % WARP];
}

unsigned host_gpu_f16_of(float number)
{
    uint16_t bits;
    lf_from_f32(LF_F16, &number, &bits, 1, 1);
    return bits;
}

void host_gpu_together(void *mine, host_gpu_work *work)
{
    const unsigned lane = machine.now->index % WARP;
    warp *w = &machine.here->warp[machine.now->index / WARP];
    w->mine[lane] = mine;
    if (w->met == WARP - 1)
        work(w->mine);
    host_gpu_warp_sync();
}

void host_gpu_pause(void)
{
    host_gpu_leave(PAUSED);
}

void host_gpu_trap(const char *why)
{
    machine.error = why;
    host_gpu_leave(DONE);
}

/* ---- copies ---- */

static void make_copy(const copy *c)
{
    memcpy(c->to, c->from, c->given);
    memset((char *)c->to + c->given, 0, c->bytes - c->given);
}

void host_gpu_copy(void *to, const void *from, unsigned bytes, unsigned given)
{
    thread *t = machine.now;
    const copy c = {to, from, bytes, given, t->groups};
    if (!host_gpu_late)
        make_copy(&c);
    else if (t->copies < COPIES)
        t->copy[t->copies++] = c;
    else
        host_gpu_trap("more copies under way than this machine remembers");
}

void host_gpu_copy_commit(void)
{
    machine.now->groups++;
}

void host_gpu_copy_wait(int latest)
{
    thread *t = machine.now;
    int made = 0;
    while (made < t->copies && t->copy[made].group < t->groups - latest)
        make_copy(&t->copy[made++]);
    t->copies -= made;
    memmove(t->copy, t->copy + made, (size_t)t->copies * sizeof *t->copy);
}

/* ---- blocks ---- */

static bool begin_block(block *b, unsigned index)
{
    const size_t bytes = machine.shared.raw_bytes + machine.shared.own_bytes, slot = (size_t)(b - machine.block);
    unsigned char *shared = realloc(b->shared, bytes + 1);
    if (!shared)
        return false;
    memset(b->met, 0, sizeof b->met);
    memset(b->warp, 0, sizeof b->warp);
    memset(shared, 0xff, bytes); /* NaN, for whoever reads what nobody has written */
    b->shared = shared, b->index = index, b->alive = true, b->votes = b->cluster_met = b->cluster_turn = 0;
    for (unsigned i = 0; i < host_gpu_block_size.x; i++)
        make_ready(&b->thread[i], i, machine.stacks + (slot * HOST_GPU_MOST_THREADS + i + 1) * STACK);
    return true;
}

/* One of its warps until all of that one's threads wait or are done, or somebody is let go on. False: they did
 * already. */
static bool run_warp(block *b, unsigned first)
{
    bool ran = false, any = true;
    while (any && !machine.error) {
        any = false;
        for (unsigned i = 0; i < WARP && !machine.error && machine.woken < 0; i++) {
            thread *t = &b->thread[first + (host_gpu_downwards ? WARP - 1 - i : i)];
            if (t->state == READY) {
                run_thread(t);
                ran = any = true;
            }
        }
    }
    return ran;
}

/* Until all of its threads wait or are done. Where copies are made at once, so is what they let go on. */
static void run_ready(block *b)
{
    const unsigned warps = host_gpu_block_size.x / WARP;
    unsigned i = 0, idle = 0;
    machine.woken = -1;
    while (idle < warps && !machine.error) {
        unsigned first = (host_gpu_downwards ? warps - 1 - i : i) * WARP;
        if (machine.woken >= 0)
            first = (unsigned)machine.woken / WARP * WARP;
        else
            i = (i + 1) % warps;
        machine.woken = -1;
        idle = run_warp(b, first) ? 0 : idle + 1;
    }
}

/* Until its threads can do no more for now; true where they are done. */
static bool run_block(block *b)
{
    const host_gpu_shared *s = &machine.shared;
    bool done = true, hopes = false; /* for something from elsewhere */
    machine.here = b;
    host_gpu_block.x = b->index;
    memcpy(s->raw, b->shared, s->raw_bytes);
    memcpy(s->own, b->shared + s->raw_bytes, s->own_bytes);
    run_ready(b);
    memcpy(b->shared, s->raw, s->raw_bytes);
    memcpy(b->shared + s->raw_bytes, s->own, s->own_bytes);
    machine.here = NULL;
    for (unsigned i = 0; i < host_gpu_block_size.x; i++) {
        thread *t = &b->thread[i];
        done = done && t->state == DONE;
        hopes = hopes || t->state == PAUSED || t->state == WATCHING ||
                (t->state == WAITING && t->barrier == ITS_CLUSTER);
        t->state = t->state == PAUSED ? READY : t->state;
    }
    b->alive = !done;
    if (!done && !hopes && !machine.error)
        machine.error = "threads of a block wait for others that do not come";
    return done;
}

/* The blocks of a cluster begin together. Returns how many. */
static unsigned begin_cluster(block *b, unsigned begun, unsigned grid)
{
    for (unsigned i = 0; i < machine.cluster; i++)
        if (b[i].alive || begun == grid)
            return 0;
    for (unsigned i = 0; i < machine.cluster; i++)
        if (!begin_block(&b[i], host_gpu_downwards ? grid - 1 - begun - i : begun + i))
            machine.error = "no memory";
    return machine.cluster;
}

/* Blocks that pause are asked again, until all of them do nothing else; then copies by hardware have their turn. */
static void run_blocks(unsigned grid)
{
    unsigned begun = 0, ended = 0;
    while (ended < grid && !machine.error) {
        machine.moved = false;
        for (unsigned i = 0; i < HOST_GPU_MOST_BLOCKS && !machine.error; i++) {
            block *b = &machine.block[i];
            if (i % machine.cluster == 0)
                begun += begin_cluster(b, begun, grid);
            if (b->alive && !machine.error)
                ended += run_block(b);
        }
        if (!machine.moved && !machine.error && !host_gpu_make_box() && !machine.error)
            machine.error = "blocks wait for others that do not come";
    }
}

static bool has_stacks(void)
{
    const size_t bytes = (size_t)HOST_GPU_MOST_BLOCKS * HOST_GPU_MOST_THREADS * STACK;
    if (machine.stacks)
        return true;
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    machine.stacks = memory == MAP_FAILED ? NULL : memory;
    return machine.stacks != NULL;
}

/* Beyond what was asked for nothing may be written. */
static bool is_untouched(const host_gpu_shared *s)
{
    for (unsigned i = s->raw_bytes; i < HOST_GPU_RAW; i++)
        if (s->raw[i] != 0)
            return false;
    return true;
}

const char *host_gpu_run(host_gpu_kernel *kernel, void **params, host_gpu_index grid, host_gpu_index size,
                         host_gpu_shared shared, unsigned cluster, int together)
{
    if (size.x > HOST_GPU_MOST_THREADS || size.x % WARP != 0 || size.y * size.z * grid.z != 1 ||
        shared.raw_bytes > HOST_GPU_RAW || grid.x % cluster != 0 ||
        (together && grid.x * grid.y > HOST_GPU_MOST_BLOCKS))
        return "a launch that is too large";
    if (!has_stacks())
        return "no memory";
    machine.kernel = kernel, machine.params = params, machine.shared = shared, machine.error = NULL;
    machine.cluster = cluster, host_gpu_raw_bytes = shared.raw_bytes;
    host_gpu_block_size = size, host_gpu_grid_size = grid;
    memset(shared.raw + shared.raw_bytes, 0, HOST_GPU_RAW - shared.raw_bytes); /* an earlier launch may have had more */
    for (unsigned y = 0; y < grid.y && !machine.error; y++) {
        host_gpu_block.y = y;
        run_blocks(grid.x);
    }
    host_gpu_forget_boxes();
    for (int i = 0; i < HOST_GPU_MOST_BLOCKS; i++) {
        machine.block[i].alive = false;
        free(machine.block[i].shared);
        machine.block[i].shared = NULL;
    }
    if (!machine.error && !is_untouched(&shared))
        machine.error = "it writes past the shared memory that the launch has";
    return machine.error;
}
