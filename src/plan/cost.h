/* SPDX-License-Identifier: Apache-2.0 */
/* What things cost: a roofline over a table of devices. An op or a kernel takes as long as its arithmetic or its bytes,
 * whichever is longer, and a launch. A multiply-add counts as two flops; other ops count as ops.def says. */
#ifndef LF_PLAN_COST_H
#define LF_PLAN_COST_H

#include "plan/gpu.h"
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

/* A CPU's half of a device: how threads, caches and the loops of cpu/ behave. */
typedef struct lf_cpu_half {
    double handed;            /* elements of a product that its tiles hand on to a tail */
    /* bytes a second by how much is touched, never rising; 0: bytes, write_bytes and cache_rate are all that is
     * known */
    double level_read[LF_LEVELS], level_written[LF_LEVELS];
    lf_tail_rates tail;
    double wake_us;           /* until all threads work on a kernel; what one thread has done before is left to it */
    /* 0 .. 1: what of the shorter of a product and reading its x and w is not hidden behind the longer; 0: they are
     * memory like the rest */
    double operands_shown;
    int threads;              /* of which all but one can be left asleep */
    int block_rows;           /* the most rows that w is read once for; 0: as many as stay in cache */
    double block_bytes;       /* and what such rows may carry along, x included */
    int rows_a_thread;        /* fewer behind a product, and threads share the columns of rows */
} lf_cpu_half;

/* What a product's rate is in a precision other than fp32. */
typedef struct lf_precision_rates {
    double flops;             /* as product_flops; 0: not measured, then by the table's passes */
    double x_bytes;           /* as x_bytes */
} lf_precision_rates;

/* What a GPU's data sheet says of it. */
typedef struct lf_paper {
    double flops;             /* f32 on the ordinary units */
    double tensor_flops;      /* of 16-bit operands on the tensor cores, no zeros left out */
    double bytes;             /* memory, a second */
    double cache_bytes;       /* L2 */
} lf_paper;

/* A GPU's half of a device: how tiles, launches and stages behave. A CPU has 0 in all of it. */
typedef struct lf_gpu_half {
    const char *board;        /* what the driver's name for it has in it: "NVIDIA H100 80GB HBM3" has H100 */
    lf_gpu_unit unit;         /* what multiplies */
    lf_precision precision_used; /* how products take their operands: see lf_device_use */
    int shared_bytes;         /* of shared memory a block can have */
    lf_paper paper;
    double plain_flops;       /* a product op by op, as a library runs it in fp32, where all units have whole tiles */
    double plain_bytes;       /* at which they read the weight, where rows are few */
    /* as launch_us, of kernels that are stages of one launch, behind the first; 0: each is a launch of its own */
    double stage_us;
    /* k of a product of one column whose weight stays in registers for all rows; step 0: of none */
    int column_least, column_most, column_step;
    lf_precision_rates precision[LF_PRECISIONS]; /* of all but fp32, which the device's own figures are of */
    double short_share;       /* by how much multiplying slows down where lf_is_short */
    double tile_bytes;        /* operands that all units together can fetch, from the last cache */
    double unit_bytes;        /* and one of them, at most */
    /* until the first tile's first products and from the last one's on, where nothing overlaps, once a launch: a later
     * stage has stage_us alone (measured on an H200: 12 us a layer 256 wide behind the first, which takes 21); 0: there
     * are no tiles */
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
} lf_gpu_half;

/* One row of devices.def. Rates are per second, and what code reaches rather than what a data sheet says. */
typedef struct lf_device {
    char name[16];
    char title[192];
    double flops;             /* f32 multiply-add on the ordinary units: the peak */
    double product_flops;     /* an fp32-accurate product in our kernels, whole tiles, every unit busy */
    double row_flops;         /* the same of one row: a tile of few rows takes no less time than this says */
    double dot_flops;         /* a product too narrow for tiles, row by row */
    double element_flops;     /* ops of a tail that cost less than LF_FUNCTION_FLOPS */
    double function_flops;    /* those that hold an exp, a log, an erf */
    double bytes;             /* read from memory */
    double write_bytes;       /* written to memory */
    double cache_rate;        /* read from the last cache */
    double cache_bytes;       /* what of a tensor is still in it when the next kernel starts */
    double launch_us;         /* from one kernel's end to the next one's first useful work */
    double wait_us;           /* until all units have finished a phase, inside a kernel */
    double tail_shown;        /* 0 .. 1: what of the shorter of product and tail is not hidden behind the longer */
    double memory_shown;      /* 0 .. 1: the same of arithmetic and memory, in our kernels */
    double x_bytes;           /* moved to bring one element of x into the form products read, before they start */
    int units;                /* what tiles are dealt out to; a last round that is not full costs a whole one */
    int tile_rows, tile_columns;
    lf_cpu_half cpu;
    lf_gpu_half gpu;
} lf_device;

/* Is its half of a device the GPU's? */
static inline bool lf_is_gpu(const lf_device *d)
{
    return d->gpu.board != NULL;
}

enum { LF_FUNCTION_FLOPS = 8 }; /* what ops.def counts for one exp, log or erf */

/* The table; NULL past the end. The row of cpu holds guesses until it is measured (lf_cpu_device). */
const lf_device *lf_device_at(size_t index);
/* By its name; NULL where there is none of that name. */
const lf_device *lf_device_named(const char *name);

/* What a driver says of a GPU. */
typedef struct lf_gpu_facts {
    const char *name;         /* "NVIDIA H100 80GB HBM3" */
    lf_gpu_unit unit;
    int units;                /* multiprocessors */
    int shared_bytes;
    double bytes;             /* of memory, a second, on paper; 0: not known */
} lf_gpu_facts;

/* A GPU that is there: the row of the table that comes closest, with its own name, units and rates of products.
 * Closest is the row whose board stands in the GPU's name as a word of its own (the longest of several: "H100 PCIe"
 * before "H100"). Where there is none: of the rows with the same units to multiply (of all, where there is none either)
 * the one whose multiprocessors and whose memory's rate on paper differ by the smallest factors, multiplied; the first
 * of several. out->name is that row's; the title is the GPU's name, and says where costs are another board's. */
void lf_device_like(const lf_gpu_facts *gpu, lf_device *out);

/* The device as it is for products whose operands are taken so; of a CPU there is one way. Once: of a row that is fp32
 * still. */
void lf_device_use(lf_device *device, lf_precision precision);

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

/* Bytes that a plan's prepared parameters are expected to take on a device: weights as products read them, and what was
 * computed of parameters. On a GPU also the parameters that kernels read as they are. */
double lf_cost_prepared(const lf_plan *plan, const int64_t *dims, const lf_device *device);

/* A tensor's bytes; never overflows. */
double lf_cost_bytes(const lf_graph *g, lf_node n, const int64_t *dims);

#endif
