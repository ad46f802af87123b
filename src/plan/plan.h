/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes share a kernel, in what order their elements are visited, and what is never stored.
 *
 * A group is one kernel: products that share what they multiply (or none), and phases. A phase visits a grid of rows x
 * width elements with a straight-line program on one element, stores some of its values, and feeds statistics; a
 * statistic is complete once its phase has been over everything it spans, and later phases read its results. Everything
 * is symbolic: one plan serves every value of the named extents. The CPU loops, the CUDA emitter, the cost model and
 * `explain` all read this and nothing else.
 *
 * Example, linear -> logsumexp -> gelu (M x K -> N):
 *     phase 0, width N:  p = product; b = load bias; v = add(p, b)
 *                        feeds statistic 0: maxsumexp of v over the row
 *     phase 1, width 1:  m = load stat 0.r0; s = load stat 0.r1; l = logsumexp(m, s); g = gelu(l)
 *                        stores g
 */
#ifndef LF_PLAN_PLAN_H
#define LF_PLAN_PLAN_H

#include "ir/graph.h"
#include "plan/gpu.h"

/* ---- reading and writing memory ---- */

typedef enum lf_place {
    LF_VALUE, /* a whole tensor: input, prepared parameter, intermediate or output; index is a node */
    LF_KEPT,  /* a value an earlier phase of this group kept; index into kept */
    LF_STAT,  /* a result of a statistic of this group; index into stats, `result` says which */
    /* what makes a softmax of the exps that a statistic of this group kept: exps.c; index into stats. One number for
     * each part of a row that the executor sums up by itself, which all columns of the part read: extents and strides
     * are those of the elements */
    LF_FACTOR,
    LF_OUTPUT /* the memory of output `index` itself: only for copies of what is stored elsewhere too */
} lf_place;

/* Where the elements of a phase's grid lie. The grid's rows are counted by axes 0 .. row_axes-1 and its columns by the
 * others, row-major; element (row, col) lies at first + the sum of index * stride over the axes. A stride of coef 0
 * repeats, a first of coef 0 is none. A kept value or a statistic lies [rows][own width] row-major (one
 * row for those that have one): its axes up to row_axes either step through its rows in order, or are all 0 where it
 * has one row; first lies within a row. */
typedef struct lf_access {
    lf_place place;
    lf_dtype dtype; /* of the elements there, in which extents and strides count: f32 for statistics */
    int32_t index;
    int result;
    int rank, row_axes;
    lf_extent first, extent[LF_MAX_RANK], stride[LF_MAX_RANK];
} lf_access;

/* The same elements in the same places? (Their type follows from the place.) */
bool lf_access_same(const lf_access *a, const lf_access *b);

/* ---- one element: f32 from load to store, whatever types the values have ---- */

typedef enum lf_step_kind {
    LF_STEP_LOAD,    /* from, as f32 */
    LF_STEP_PRODUCT, /* product at this row and column; bias added only if it is narrow */
    LF_STEP_NUMBER,  /* number */
    LF_STEP_OP       /* the expression of op, of up to three steps before it and up to three numbers */
} lf_step_kind;

/* How often a step's value is used in its phase: uses.c. */
typedef struct lf_uses {
    int32_t args;      /* as argument of an op */
    int32_t stores, watches, stats;
} lf_uses;

/* Of those the ones that want the value itself, at the end of the phase; and all. */
static inline int32_t lf_sinks(const lf_uses *u)
{
    return u->stores + u->watches + u->stats;
}

static inline int32_t lf_all_uses(const lf_uses *u)
{
    return u->args + lf_sinks(u);
}

typedef struct lf_step {
    lf_step_kind kind;
    lf_node node;      /* what is computed on behalf of whom: for names */
    lf_access from;
    int32_t product;   /* one of the group's */
    double number;
    lf_op op;
    int32_t arg[3];    /* steps of this phase, -1 where unused */
    double attr[3];    /* a, b, c of the expression */
    lf_uses uses;
    /* OP: an add whose first argument, this step, is a mul that nothing else uses: x * y + z in one go. -1: not so */
    int32_t mul;
} lf_step;

typedef struct lf_store {
    int32_t step;
    lf_access to;      /* LF_VALUE, LF_KEPT or LF_OUTPUT */
    /* The statistic that is fed with the step leaves its exps here instead of the step's value: see lf_stat. */
    bool exps;
} lf_store;

/* ---- statistics ---- */

typedef enum lf_span {
    LF_SPAN_ROW,     /* the whole row: one statistic a row */
    LF_SPAN_SEGMENT, /* `count` runs of `length` neighbouring columns: count statistics a row */
    /* `count` windows over each of `groups` runs of `length` columns: groups * count statistics a row */
    LF_SPAN_WINDOW,
    LF_SPAN_COLUMN   /* all rows: `count` = width statistics, one row of them */
} lf_span;

/* Where a statistic's partials lie: its states, before they are combined and finished. */
typedef enum lf_partials_at {
    LF_PARTIALS_OWN, /* the executor's own, of such parts as it takes rows and columns in, until the phase is over */
    LF_PARTIALS_OUT, /* combined to one set, [rows][states] of f32, that is carried: the plan ends with it */
    /* several such sets are carried here: combined in their order and finished by a phase, which has no steps */
    LF_PARTIALS_IN
} lf_partials_at;

typedef struct lf_stat {
    lf_monoid monoid;
    lf_span span;
    lf_node node;      /* whom it is for */
    int32_t phase;     /* complete when this phase is */
    /* ROW, COLUMN: the step of that phase that is put in, element by element; -1 otherwise, and for LF_PARTIALS_IN */
    int32_t step;
    lf_partials_at partials;
    int32_t carried;   /* OUT, IN: which of what the plan carries they are */
    lf_access from;    /* SEGMENT, WINDOW: the finished row to take it from (a kept value, or a tensor; f32) */
    lf_extent groups, length, count; /* see lf_span; groups is 1 but for WINDOW */
    lf_window window;
    /* ROW, maxsumexp: the store of its phase that takes exp(x - m), for the largest m of the part x is of, as they are
     * calculated to be summed up; a later phase makes a softmax of them by LF_FACTOR. -1: none does */
    int32_t exps;
} lf_stat;

/* Is it taken from a finished row? */
static inline bool lf_takes_row(const lf_stat *s)
{
    return s->step < 0 && s->partials != LF_PARTIALS_IN;
}

/* ---- groups ---- */

typedef struct lf_phase {
    bool one_row;      /* the grid has one row (what follows a column statistic), not the group's */
    lf_extent width;
    lf_step *step;
    lf_store *store;
    int32_t *watch;    /* steps that are witnesses: a row where one is not finite is redone as written */
    int32_t steps, stores, watches;
} lf_phase;

typedef struct lf_kept {
    lf_node node;
    bool one_row;
    lf_dtype dtype;
    lf_extent width;
    int32_t in_output; /* an output whose memory may hold it until that output is written, -1 when there is none */
    int32_t in_input;  /* the port that brings it, where the plan resumes; -1: a phase makes it */
} lf_kept;

enum { LF_NARROW = 8 }; /* columns up to which a product is narrow */

/* y[m, n] = sum over k of x[m, k] * w[n, k] (w[k, n] where w_is_kn); x is the group's. */
typedef struct lf_product {
    lf_node node;
    int32_t index;       /* which of the plan's products it is */
    lf_node weight;      /* whose memory holds w */
    bool weight_fixed;   /* known when weights are prepared; otherwise w is read at every call */
    bool w_is_kn;
    /* A product of a few columns is bound by reading x, so digits are free: it is summed in double precision, with
     * weight and bias as they are before rounding, bias included in LF_STEP_PRODUCT. That keeps the digits of a mean of
     * many columns that became one. */
    bool narrow;
    lf_node bias;        /* narrow: whose memory holds it, LF_NONE where there is none */
    lf_extent n, k;
    int32_t phase;       /* the phase that has its LF_STEP_PRODUCT; all products of a phase are narrow, or none */
    /* Others: the add of the phase that alone uses the product and adds a row of numbers to it, the same for all rows,
     * and the step that loads these: the product can add them while its sums are in registers. -1: there is none */
    int32_t add, row;
} lf_product;

/* A phase that can go on with the product's sums while they are in registers: what a softmax or a norm does once the
 * statistics are known. What it reads is there then, or depends on nothing that the phase before left in memory. */
typedef struct lf_held {
    int32_t phase;   /* -1: there is none; otherwise the last, behind the product's */
    int32_t kept;    /* the value that need not be kept for it, which nothing else reads */
    int32_t step;    /* of the product's phase, that makes it */
    int32_t run;     /* a statistic of segments that it reads, taken from that value; -1: none */
    int64_t length;  /* of these segments */
    bool waits;      /* it reads statistics of whole rows */
} lf_held;

typedef enum lf_schedule {
    LF_BY_ROWS, /* a block of rows goes through all phases while it is in cache; only statistics within a row */
    LF_BY_PHASE /* the whole grid goes through one phase after another: some statistic spans all rows */
} lf_schedule;

typedef struct lf_group {
    const char *name;       /* for people: "linear+logsumexp+gelu" */
    lf_extent rows;
    lf_schedule schedule;
    lf_access x;            /* what its products multiply, rows x K: a tensor, or what an earlier phase kept */
    lf_product *product;    /* in order of node */
    lf_phase *phase;
    lf_stat *stat;
    lf_kept *kept;
    lf_held held;           /* where it has one product, in tiles */
    lf_node *cover;         /* the nodes it computes, in order */
    int32_t products, phases, stats, kepts, covers;
    /* why it could not join the group before it; NULL for the first, or when nothing was tried */
    const char *why_apart;
} lf_group;

typedef enum lf_storage {
    LF_NOT_STORED, /* lives inside a kernel, or nowhere */
    LF_IN_INPUT,   /* index: of the input */
    LF_PREPARED,   /* computed once from parameters */
    LF_IN_OUTPUT,  /* index: of the output */
    LF_IN_BUFFER   /* an intermediate tensor; index: of the buffer */
} lf_storage;

typedef struct lf_buffer {
    lf_node node;
    lf_dtype dtype;
    lf_extent elements;
    int32_t first, last; /* groups that write it first and read it last: memory may be shared outside of that */
} lf_buffer;

/* Several programs can each have some of the columns of a model, as ranks do that share a weight's rows: each stops
 * where the statistics of its rows are wanted, and goes on from those of all. The model is that of one shard; both
 * halves are planned from it, STOP and RESUME, and carry the same. Sets of partials are combined in order of shard, in
 * double precision, so that all ranks get the same bits. One shard gives those of the plan that is not cut and keeps no
 * exps, but for statistics that divide (means, moments), which are rounded once more. */
typedef enum lf_cut { LF_CUT_NONE, LF_CUT_STOP, LF_CUT_RESUME } lf_cut;

/* Which products of one x its kernels can make together. */
typedef enum lf_sharing {
    LF_SHARE_NONE,
    LF_SHARE_TWO, /* two that are made as one: lf_made_as_one */
    LF_SHARE_ALL
} lf_sharing;

/* What a plan is made for. */
typedef struct lf_plan_options {
    bool fuse;      /* false: every op is its own group */
    lf_sharing share_x;
    bool keep_exps; /* its kernels can leave a softmax's exps where its row is summed up: LF_FACTOR; not where cut */
    lf_cut cut;
    int32_t sets;   /* RESUME: of partials, one for each shard of the columns, in order of column */
    lf_extent whole; /* RESUME: columns of all shards together; coef 0: as many as this one has */
} lf_plan_options;

/* What the half that stops leaves for the one that resumes, [sets][rows][width] of f32, row-major. */
typedef struct lf_carried {
    enum { LF_CARRY_PARTIALS, LF_CARRY_KEPT } kind;
    lf_node node;    /* whom the statistic is for; whose values they are */
    int32_t sets;    /* 1, but for the partials a plan resumes from */
    lf_extent rows, width;
} lf_carried;

typedef struct lf_plan {
    const lf_graph *graph; /* borrowed */
    lf_plan_options options; /* what it was made for */
    lf_group *group;       /* in order of execution */
    int32_t groups;
    const lf_product **product; /* of all groups, in that order */
    int32_t products;
    lf_storage *storage;   /* one per node */
    int32_t *where;        /* one per node: the index storage speaks of */
    lf_buffer *buffer;
    int32_t buffers;
    /* prepared tensors, in order of node */
    lf_node *prepared;
    int32_t prepareds;
    bool *packed_only;     /* one per prepared: read by nothing but products, as weight or a narrow one's bias */
    /* where it is cut: ports behind the graph's outputs (STOP) or inputs (RESUME), in this order */
    lf_carried *carried;
    int32_t carrieds;
} lf_plan;

/* Decides which nodes share a kernel.
 * Needs:   a verified graph. Leaves it unchanged.
 * Borrows: g, which outlives the plan. The plan lives in arena.
 * Fails:   LF_ERR_NOMEM (message in g->diag); a node that fits no group gets its own. LF_ERR_UNSUPPORTED where it is to
 *          be cut and cannot be. */
lf_status lf_plan_build(const lf_graph *g, lf_plan_options options, lf_arena *arena, lf_plan **out);

/* Checks a plan's invariants and all that passes have noted. Builds with asserts do so whenever a plan is built.
 * Fails: LF_ERR_ARG with a message that names the group and the fault. */
lf_status lf_plan_verify(const lf_plan *plan, lf_diag *diag);

/* The plan as text: phases, steps, statistics. *out: malloc'ed, caller owns. For tests and debuggers. */
lf_status lf_plan_print(const lf_plan *plan, char **out);

/* What elements of a stored value are: its own type, and f32 where it was computed when parameters were prepared, by
 * more than moving and casting. */
lf_dtype lf_stored_dtype(const lf_plan *plan, lf_node n);

/* An output in whose memory kept value k of a group can wait: one of the same type and extents, written by the value's
 * last reader or later, that none of `kept` (the group's, or a copy) waits in. -1: there is none. */
int32_t lf_kept_output(const lf_plan *plan, const lf_group *g, const lf_kept *kept, int32_t k);

/* Bytes of what the plan stores, at given extents. */
int64_t lf_plan_intermediate_bytes(const lf_plan *plan, const int64_t *dims);

/* ---- operands ---- */

/* An input of the caller's, its elements one after another as the grid has them? */
bool lf_is_dense_input(const lf_plan *plan, const lf_access *a);
/* Can these units multiply a group's x as it lies, an input or an intermediate tensor? Otherwise it is brought into
 * lines. An input must begin at a multiple of 16 bytes, which a plan does not know. */
bool lf_reads_as_it_lies(const lf_plan *plan, const lf_group *g, lf_gpu_unit unit, lf_precision precision);
/* A product of known extents, wide enough for tiles, whose weight can be prepared? And how many of a plan's are, two
 * that are made as one counted once. */
bool lf_is_tiled_product(const lf_product *p);
int32_t lf_tiled_products(const lf_plan *plan);
/* A group's tiled products that tensor cores make as one: its only one, or two of one phase, with as many columns each.
 * The columns of two come by turns, LF_BY_TURNS of each, so that a thread gets the same column of both; the last ones
 * are filled up. 0: it has others, or none. */
enum { LF_BY_TURNS = 8 };
int32_t lf_made_as_one(const lf_group *g);
/* Columns of these, with what they are filled up by. */
int64_t lf_columns_as_one(const lf_group *g);
/* How those of a plan take their operands where a precision is asked for: as it says, but where tensor cores multiply
 * and all products and weights are of one type of 16 bits, in that type. That loses nothing, but where x stays f32 in
 * the kernel, which is then rounded as PyTorch rounds it. */
lf_precision lf_plan_precision(const lf_plan *plan, lf_gpu_unit unit, lf_precision asked);
/* Does a step from a product's phase on load what the products multiply? */
bool lf_wants_again(const lf_group *g);
/* The first product of a phase; NULL where it has none. */
const lf_product *lf_product_in(const lf_group *g, int32_t phase);

#endif
