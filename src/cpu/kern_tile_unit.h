/* SPDX-License-Identifier: Apache-2.0 */
/* The instructions of AMX's tile unit that kern_tiles.h uses. A program that has other functions of these names, which
 * KERN_TILE_UNIT includes, gets the same kernels without the unit: tests/tile_emulation.h.
 *
 * Tiles 0 to 7 are named by a literal. All are of 16 rows of 64 bytes. Tile registers belong to a thread; they are in
 * use from tile_begin to tile_end, between which nothing else is called. */
#ifndef LF_CPU_KERN_TILE_UNIT_H
#define LF_CPU_KERN_TILE_UNIT_H

enum { TILE_ROWS = 16, TILE_ROW_BYTES = 64, TILE_BYTES = TILE_ROWS * TILE_ROW_BYTES, TILES = 8 };

#ifdef KERN_TILE_UNIT
#include KERN_TILE_UNIT
#else

static inline bool tile_usable(void)
{
    return lf_has_amx_bf16();
}

/* As the instruction reads it: palette 1 is that of these tiles. */
typedef struct tile_shapes {
    uint8_t palette, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_shapes;

static inline void tile_begin(void)
{
    tile_shapes all = {.palette = 1};
    for (int i = 0; i < TILES; i++) {
        all.row_bytes[i] = TILE_ROW_BYTES;
        all.rows[i] = TILE_ROWS;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(all));
}

/* From here on the operating system has no tiles to keep. */
static inline void tile_end(void)
{
    __asm__ volatile("tilerelease" : : : "memory");
}

#define tile_zero(t) __asm__ volatile("tilezero %%tmm" #t : : : "memory")
/* from, to: rows, `pitch` bytes apart */
#define tile_load(t, from, pitch)                                                                                    \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t : : "r"(from), "r"((int64_t)(pitch)) : "memory")
#define tile_store(t, to, pitch)                                                                                     \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" : : "r"(to), "r"((int64_t)(pitch)) : "memory")
/* sum[i][j] += pairs of row i of x with those of column j of w, [pairs][columns]. For each element the products of
 * first numbers and of second ones are summed in order, each from 0 and rounded once a product; the two sums are added,
 * then that to sum[i][j]. Denormals are taken for 0, and 0 is given for them. */
#define tile_dot_bf16(sum, x, w) __asm__ volatile("tdpbf16ps %%tmm" #w ", %%tmm" #x ", %%tmm" #sum : : : "memory")

#endif
#endif
