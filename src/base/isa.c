/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE /* syscall */
#include "base/isa.h"

#include <pthread.h>

static bool has_avx2, has_avx512, has_avx512_bf16, may_use_tiles;

#ifdef __x86_64__

#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

static bool has_tiles;

static bool all(unsigned of, unsigned bits)
{
    return (of & bits) == bits;
}

/* XCR0, which says whose registers the operating system saves. Only where the CPU has OSXSAVE. */
static unsigned saved_registers(void)
{
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static void ask(void)
{
    enum { YMM = 0x6, ZMM = 0xe6 };          /* xmm and upper halves; and masks, upper halves of zmm0-15, zmm16-31 */
    enum { TILES = 0x60000 };                /* their shapes and what they hold */
    enum { BF16 = 1 << 5 };                  /* of leaf 7.1's eax; not every cpuid.h has a name for it */
    enum { BF16_TILES = 1 << 24 | 1 << 22 }; /* of leaf 7's edx: tiles, and bf16 in them */
    unsigned a, b, c, d, more;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !all(c, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C) ||
        !__get_cpuid_count(7, 0, &a, &more, &b, &d))
        return;
    const unsigned saved = saved_registers();
    has_avx2 = all(saved, YMM) && all(more, bit_AVX2);
    has_avx512 = has_avx2 && all(saved, ZMM) && all(more, bit_AVX512F | bit_AVX512DQ | bit_AVX512VL);
    has_tiles = has_avx512 && all(saved, TILES) && all(d, BF16_TILES);
    has_avx512_bf16 = has_avx512 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && all(a, BF16);
}

/* The process for its tile registers. */
static void ask_for_tiles(void)
{
#ifdef SYS_arch_prctl
    enum { REQUEST = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM; not every header has them */
    may_use_tiles = has_tiles && syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#endif
}

#else

static void ask(void)
{
}

static void ask_for_tiles(void)
{
}

#endif

/* Once: under a hypervisor each question takes microseconds. */
static void know(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, ask);
}

bool lf_has_avx2(void)
{
    know();
    return has_avx2;
}

bool lf_has_avx512(void)
{
    know();
    return has_avx512;
}

bool lf_has_avx512_bf16(void)
{
    know();
    return has_avx512_bf16;
}

bool lf_has_amx_bf16(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    know();
    pthread_once(&once, ask_for_tiles);
    return may_use_tiles;
}
