/* SPDX-License-Identifier: Apache-2.0 */
/* What things cost: a roofline over a table of devices. An op or a kernel takes as long as its arithmetic or its bytes,
 * whichever is longer, and a launch. A multiply-add counts as two flops; other ops count as ops.def says. */
#ifndef LF_PLAN_COST_H
#define LF_PLAN_COST_H

#include "plan/plan.h"

/* Elements a second of what follows a product, all units together, where it was measured; 0: ops.def's and
 * monoids.def's flops count. */
typedef struct lf_tail_rates {
    double map[LF_OP_COUNT];          /* an op on an element, its statistic finished */
    double fold[LF_MONOID_COUNT];     /* put into the statistic of a row, or of a run of neighbours */
    /* such a statistic, or a part of one of LF_PART elements, made ready (statistics a second) */
    double span[LF_MONOID_COUNT];
    double put[LF_MONOID_COUNT];      /* put into the statistic of a column */
    double window[LF_MONOID_COUNT];   /* put into that of a window */
} lf_tail_rates;
enum { LF_PART = 256 };

/* Memory by how much of it a call touches: what is little is still in some cache when the next call begins. */
enum { LF_LEVELS = 5 };
#define LF_LEVEL_BYTES(i) (1048576.0 * (double)(1 << 2 * (i)))

/* A tile of a block of a GPU's kernel, or, of few rows, of a cluster's. */
typedef struct lf_tile {
    int rows, columns;
    int cluster;              /* blocks that share what they fetch of the weight; of few rows: that share the columns */
    int raster;               /* row blocks that go past the weight together */
    bool few;                 /* all rows are one tile, filled up to eights only, and the weight goes past once */
    bool turns;               /* half of a unit's warps finish a tile while the others multiply the next */
} lf_tile;
enum { LF_MOST_TILES = 8 };

/* Products by how they take their operands; flops 0: not known. */
enum { LF_PRECISIONS = 4 }; /* fp32 (split), tf32, bf16, fp16 */
typedef struct lf_precision_rates {
    double flops;             /* as product_flops */
    double x_bytes;           /* as x_bytes */
    double w_bytes;           /* of an element of the weight, and of x as products read it */
    int widest;               /* columns of the largest tiles there is room for */
    double turns;             /* up to this k halves of a unit's warps can take turns */
    double unscale_flops;     /* of an element: to undo what its row and its column were multiplied by */
    /* up to this k sums are promoted so often that multiplying takes longer by this share */
    double short_k, short_share;
    int as_it_lies;           /* products read an input so where k is a multiple of this; 0: never */
} lf_precision_rates;

/* One row of devices.def. Rates are per second, and what code reaches rather than what a data sheet says. */
typedef struct lf_device {
    char name[16];
    char title[160];
    double flops;             /* f32 multiply-add on the ordinary units: the peak */
    /* a product op by op, as a library runs it in fp32; 0: op by op runs on our kernels too */
    double plain_flops;
    double plain_bytes;       /* products as written, of a few rows: at which they read the weight */
    double product_flops;     /* an fp32-accurate product in our kernels, whole tiles, every unit busy */
    double row_flops;         /* the same of one row: a tile of few rows takes no less time than this says */
    /* elements of a product that its tiles hand on to a tail; 0: they are in registers already */
    double handed;
    double dot_flops;         /* a product too narrow for tiles, row by row */
    double element_flops;     /* ops of a tail that cost less than LF_FUNCTION_FLOPS */
    double function_flops;    /* those that hold an exp, a log, an erf */
    double bytes;             /* read from memory */
    double write_bytes;       /* written to memory */
    double cache_rate;        /* read from the last cache */
    double cache_bytes;       /* what of a tensor is still in it when the next kernel starts */
    /* never rising; 0: the three rates above are all that is known */
    double level_read[LF_LEVELS], level_written[LF_LEVELS];
    lf_tail_rates tail;
    double launch_us;         /* from one kernel's end to the next one's first useful work */
    /* the same of kernels that are stages of one launch, behind the first; 0: each is a launch of its own */
    double stage_us;
    double wait_us;           /* until all units have finished a phase, inside a kernel */
    double wake_us;           /* until all threads work on a kernel; what one thread has done before is left to it */
    double tail_shown;        /* 0 .. 1: what of the shorter of product and tail is not hidden behind the longer */
    double memory_shown;      /* 0 .. 1: the same of arithmetic and memory, in our kernels */
    /* 0 .. 1: the same of a product and reading its x and w; 0: they are memory like the rest */
    double operands_shown;
    double x_bytes;           /* moved to bring one element of x into the form products read, before they start */
    int x_kept_bytes;         /* workspace for one element of x in that form */
    /* k of a product of one column whose weight stays in registers for all rows; step 0: of none */
    int column_least, column_most, column_step;
    int threads;              /* of which all but one can be left asleep */
    int block_rows;           /* the most rows that w is read once for; 0: as many as stay in cache */
    double block_bytes;       /* and what such rows may carry along, x included */
    int units;                /* what tiles are dealt out to; a last round that is not full costs a whole one */
    int tile_rows, tile_columns;
    /* GPUs; see tiles.h */
    lf_tile tile[LF_MOST_TILES]; /* rows 0: no more of them */
    lf_precision_rates precision[LF_PRECISIONS];
    int widest;
    double turns, unscale_flops, short_k, short_share;
    int as_it_lies;
    double w_bytes;
    double tile_bytes;        /* operands that all units together can fetch, from the last cache */
    double unit_bytes;        /* and one of them, at most */
    /* until the first tile's first products and from the last one's on, where nothing overlaps; 0: there are no
     * tiles */
    double start_us;
    double few_us;            /* the same of few rows, with bringing x into lines, whether it is or not */
    double line_us;           /* of few rows: from a line of 128 bytes to the next, where nothing else holds it up */
    double burst_us;          /* so long units keep their pace; 0: always */
    double slowing;           /* and what comes after takes longer by this share: power is limited */
    double folded;            /* 0 .. 1: what of a statistic's flops it takes to fold a tile that lies in registers */
    double turns_share;       /* by how much multiplying slows down where halves of a unit's warps take turns */
    /* by how much multiplying slows down in tiles of half the columns: x is read from shared memory twice as often */
    double narrow_share;
    /* how much faster a unit multiplies where all others are idle: they share what power there is */
    double idle_gain;
    /* by how much fetching slows down where a block of a cluster has no rows: boxes outside are filled with zeros */
    double empty_block;
    double empty_rows;        /* and where a block has few */
} lf_device;

enum { LF_FUNCTION_FLOPS = 8 }; /* what ops.def counts for one exp, log or erf */

/* The table; NULL past the end. The row of cpu holds guesses until it is measured (run/device.h). */
const lf_device *lf_device_at(size_t index);
/* By its name; NULL where there is none of that name. */
const lf_device *lf_device_named(const char *name);

typedef struct lf_cost {
    double flops;
    double bytes;             /* read and written, whatever is touched counted once */
    double us;
} lf_cost;

/* One op by itself, arguments read from memory and its value written there; views and leaves cost nothing.
 * dims: one per symbol; 0 is an extent like any other. */
lf_cost lf_cost_node(const lf_graph *g, lf_node n, const int64_t *dims, const lf_device *device);

/* Is it a kernel of its own, op by op? False for leaves and views. */
bool lf_cost_launches(const lf_graph *g, lf_node n);

/* How many launches a plan's kernels are. */
int32_t lf_cost_plan_launches(const lf_plan *plan, const lf_device *device);
/* All of a graph's ops one by one. launches may be NULL. */
lf_cost lf_cost_plain_total(const lf_graph *g, const int64_t *dims, const lf_device *device, int32_t *launches);

/* One kernel of a plan, and all of them. */
lf_cost lf_cost_group(const lf_plan *plan, const lf_group *group, const int64_t *dims, const lf_device *device);
lf_cost lf_cost_plan_total(const lf_plan *plan, const int64_t *dims, const lf_device *device);

/* Bytes a call needs beside tensors on a device whose executor is not there to be asked: x as products read it,
 * statistics of rows and columns by tile, counters. Kernels run one after another and share it. */
int64_t lf_cost_workspace(const lf_plan *plan, const int64_t *dims, const lf_device *device);

/* A tensor's bytes; never overflows. */
double lf_cost_bytes(const lf_graph *g, lf_node n, const int64_t *dims);

#endif
