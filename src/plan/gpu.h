/* SPDX-License-Identifier: Apache-2.0 */
/* What the cost model and the CUDA backend both know about products on a GPU: which units multiply, how they take their
 * operands (precisions.def), and in which tiles (shapes.def). */
#ifndef LF_PLAN_GPU_H
#define LF_PLAN_GPU_H

#include <linfuse.h>

#include <stdbool.h>

enum {
    LF_LINE = 128,      /* bytes of a line of an operand: what tensor cores are fed with at once */
    LF_SHORT_LINES = 3, /* up to so many lines of K split operands' sums are promoted every half line: text/hopper.cu */
    LF_MMA_STAGES = 4,  /* of tiles with mma, at most: as many as there is room for */
    /* bytes of shared memory that a block must have more than, for tiles of over 128 columns with mma: devices of 8.6,
     * 8.9 and 12.0 have 99 KB, all others 163 KB or more */
    LF_MMA_WIDE = 100 << 10
};

/* What multiplies: the ordinary units, tensor cores as Ampere has them (sm_80 and newer), as Hopper has them (sm_90a).
 * Fastest last. */
typedef enum lf_gpu_unit { LF_UNIT_PLAIN, LF_UNIT_MMA, LF_UNIT_WGMMA } lf_gpu_unit;

/* ---- precisions ---- */

typedef enum lf_precision {
#define LF_PRECISION(id, name, words, ...) LF_PRECISION_##id,
#include "plan/precisions.def"
#undef LF_PRECISION
    LF_PRECISIONS
} lf_precision;

typedef struct lf_precision_info {
    const char *id;         /* MODE_<id> in the text of kernels */
    const char *name;       /* for options and people */
    const char *words;      /* behind "Fused products run on the tensor cores" */
    int significand;        /* bits of an operand, the hidden one included */
    int bytes;              /* of one number as tensor cores read it */
    /* an element is the sum of two such numbers: results are as accurate as f32's, rows of too wide a range are redone
     * on the ordinary units, which have no other precision */
    bool split;
    bool scaled;            /* rows are multiplied by powers of two, so that they fit the numbers' range */
    lf_dtype type;          /* of elements that are such numbers; f32: none are */
    bool as_it_lies;        /* Hopper's copies make them of elements of that type, and round f32 on the way */
    int passes;             /* how long multiplying takes, in times of 16-bit operands */
    int map_type;           /* CUtensorMapDataType */
} lf_precision_info;

extern const lf_precision_info lf_precision_table[LF_PRECISIONS];

/* By its name; false where there is none of that name. */
bool lf_precision_find(const char *name, lf_precision *out);

/* Bytes of an element as products read it. */
static inline int lf_precision_bytes(lf_precision p)
{
    return lf_precision_table[p].bytes * (lf_precision_table[p].split ? 2 : 1);
}

/* Elements of a line. */
static inline int lf_line_elements(lf_precision p)
{
    return LF_LINE / lf_precision_bytes(p);
}

/* ---- tiles ---- */

typedef enum lf_tile_shape {
#define LF_TILE(id, name, text, ...) LF_TILE_##id,
#include "plan/shapes.def"
#undef LF_TILE
    LF_TILE_SHAPES
} lf_tile_shape;

typedef struct lf_tile {
    const char *name;       /* for people */
    const char *text;       /* the struct's name in the text of kernels */
    int rows, columns;      /* of a block's tile; few: of a cluster's */
    int cluster;            /* blocks that share what they fetch of the weight; few: that share the columns */
    int raster;             /* row blocks that go past the weight together; 0: all there are */
    int stages;             /* how many are under way in shared memory; few: as many as 200 KB hold */
    int deep;               /* lines of a stage */
    int in_registers;       /* a thread's promoted sums that are there; the others wait in shared memory */
    bool few;               /* all rows are one tile, filled up to eights only: such a product takes no more */
    bool shares_x;          /* few: each block fetches half of x's rows for both */
    bool turns;             /* half of a block's multiplying warps finish a tile while the others multiply the next */
    bool mma;               /* Ampere's tensor cores have it too, without clusters; Hopper's have all */
} lf_tile;

extern const lf_tile lf_tile_table[LF_TILE_SHAPES];

/* By its name; false where there is none of that name. */
bool lf_tile_find(const char *name, lf_tile_shape *out);

/* The tile that units make of a shape in a precision: with mma it has no cluster, and 128 columns where twice as many
 * sums do not fit. shared_bytes: of shared memory a block can have. */
lf_tile lf_tile_on(lf_tile_shape shape, lf_gpu_unit unit, lf_precision precision, int shared_bytes);

/* Have the units tiles of that shape, and other than those of a shape before it? k: extent that is summed over. */
bool lf_tile_serves(lf_tile_shape shape, lf_gpu_unit unit, lf_precision precision, double k);

/* How a shape came to be chosen. */
typedef enum lf_tile_how { LF_TILE_BY_COST, LF_TILE_BY_MEASURE, LF_TILE_AS_TOLD } lf_tile_how;

/* A shape for some extents, and what was known about others: microseconds, 0 where a shape cannot serve them or was not
 * measured. */
typedef struct lf_tile_choice {
    lf_tile_shape shape;
    lf_tile_how how;
    int columns[LF_TILE_SHAPES];     /* of a tile, which with mma are not always the shape's */
    double expected[LF_TILE_SHAPES]; /* of the products alone */
    double measured[LF_TILE_SHAPES]; /* of a whole call */
} lf_tile_choice;

/* Are sums over k promoted every half line? Of split operands, on Hopper. */
bool lf_is_short(lf_gpu_unit unit, lf_precision precision, double k);

#endif
