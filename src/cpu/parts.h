/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the CPU executor share: a plan as numbers, and a run of it. Inside the cpu module; kernels do not
 * see this.
 *
 * Rows are worked on in blocks. A block has an area of memory for what its rows carry from phase to phase: kept values,
 * statistics, partials. A group runs in one of two ways, with the same bits:
 *   by blocks   a thread takes a block through all phases; the area is the thread's
 *   whole grid  all threads take one phase after another; there is one area for all rows
 * Either way the work is cut into pieces (a block's rows times some strips of columns), and strips are always the same
 * LF_STRIP columns. */
#ifndef LF_CPU_PARTS_H
#define LF_CPU_PARTS_H

#include "base/mem.h"
#include "cpu/cpu.h"

/* ---- accesses as numbers ---- */

typedef enum lf_form {
    LF_FORM_REPEATED,   /* the same element for every index */
    LF_FORM_CONTIGUOUS, /* neighbours lie side by side */
    LF_FORM_STRIDED,    /* one axis */
    LF_FORM_SPREAD,     /* neighbours that lie side by side, each several times in a row */
    LF_FORM_WALKED      /* several axes */
} lf_form;

/* The rows of an access, or its columns. Index i, taken apart row-major over the extents, lies at the sum of index *
 * stride elements. Axes of one element are left out, neighbours that step as one are one. */
typedef struct lf_side {
    lf_form form;
    int rank;
    int64_t extent[LF_MAX_RANK], stride[LF_MAX_RANK];
} lf_side;

typedef enum lf_home {
    LF_HOME_INPUT,    /* index: of the input */
    LF_HOME_PREPARED, /* index: of the prepared tensor */
    LF_HOME_OUTPUT,   /* index: of the output */
    LF_HOME_BUFFER,   /* offset: in the workspace */
    LF_HOME_BLOCK     /* offset: in the block's area; its rows count from the block's first */
} lf_home;

typedef struct lf_reach {
    lf_home home;
    lf_dtype dtype;
    int32_t index;
    size_t offset; /* in floats */
    int64_t first; /* the element of row 0 and column 0 */
    lf_side row, col;
} lf_reach;

/* The type and the sides of an access; its home is left alone. Fails (false): an extent or a stride overflows. */
bool lf_reach_sides(lf_reach *r, const lf_access *a, const int64_t *dims);
int64_t lf_side_offset(const lf_side *side, int64_t index);
/* out[i] = element start + i of the side, which lies from base on and is of that type; and back, rounded to it. 0 <=
 * n. */
void lf_side_gather(const lf_kern *kern, lf_dtype type, const lf_side *side, const void *base, int64_t start, int64_t n,
                    float *out);
void lf_side_scatter(const lf_kern *kern, lf_dtype type, const lf_side *side, void *base, int64_t start, int64_t n,
                     const float *from);

/* Where an element is: base, `index` elements on. */
static inline void *lf_element_at(lf_dtype type, const void *base, int64_t index)
{
    return (char *)(uintptr_t)base + index * (int64_t)lf_dtype_size(type);
}

/* ---- a plan at known extents ---- */

typedef enum lf_level { /* what a step's value depends on: how often it is computed. Two values together: | */
    LF_ONCE = 0,       /* nothing: once a piece, one element */
    LF_PER_STRIP = 1,  /* the column: once a strip */
    /* the row: an element a row, for up to LF_STRIP rows at a time. Where columns are one: PER_ELEMENT */
    LF_PER_ROW = 2,
    LF_PER_ELEMENT = 3
} lf_level;

/* A step's value as others use it: its elements as they are, or where there is one element for many each as often as
 * the strip at hand needs it. */
typedef struct lf_use {
    int32_t step; /* -1: none */
    bool spread;
} lf_use;

typedef struct lf_step_at {
    lf_step_kind kind;
    lf_level level;
    int32_t reg;        /* the register it is computed into; -1: the value is used where it lies, or see to */
    int32_t spread_reg; /* the register it is spread into; -1: nobody asks for that */
    int32_t to;         /* the store in whose memory it is computed; -1: none */
    bool packed;        /* LOAD: rows lie side by side, as in a strip of several of them */
    bool per_strip;     /* LOAD: one element for all of a strip */
    /* LOAD: elements are used where they lie and come from memory: no phase shortly before has read the tensor */
    bool far;
    bool asked;         /* LOAD: it is far, and the fold that takes it asks for what comes next */
    bool by_strips;     /* OP: an argument is one number for all of a strip, and the map takes it as such */
    bool joined;        /* part of a later step: nothing is left to do */
    int32_t product;    /* PRODUCT: of the group's */
    lf_reach from;
    float number;
    void (*map)(int64_t n, const float *x, const float *y, const float *z, const float *attr, float *out);
    lf_use arg[3];
    float attr[3];
} lf_step_at;

typedef struct lf_store_at {
    lf_use value;
    lf_reach to;
    bool packed; /* as in lf_step_at */
    bool direct; /* computed where it goes: nothing is left to do */
    bool taken;  /* a statistic leaves its exps there instead */
    bool stream; /* past the caches: it is large, and nobody reads it soon */
} lf_store_at;

typedef struct lf_phase_at {
    bool one_row;
    int64_t rows, width; /* of the whole grid */
    int64_t strips;
    int64_t ranges;      /* whole grid: into how many runs of strips a block's columns are cut */
    bool product;        /* some product is this phase's */
    int64_t together;    /* rows in a strip: several where they are short, then there is one strip a row */
    int64_t pitch;       /* from one of them to the next, in floats: the width, or with gaps as in the product's tile */
    bool columns;        /* some step is LF_PER_STRIP */
    /* columns that steps go over at once, and floats of a register: LF_STRIP, or more where rows come one by one */
    int64_t stretch;
    bool strip_by_strip; /* rows are the inner loop: there is a product tile, or work that rows share */
    lf_step_at *step;
    lf_store_at *store;
    lf_use *watch;
    int32_t steps, stores, watches, registers;
} lf_phase_at;

typedef struct lf_stat_at {
    lf_monoid monoid;
    lf_span span;
    int states, results;
    int32_t phase;
    lf_use value;                     /* ROW, COLUMN: what is put in */
    int64_t rows;                     /* of statistics: 1 where there is one row of them */
    int64_t own;                      /* statistics a row */
    int64_t length, count;            /* as in lf_stat; ROW: length is the width, COLUMN: the rows */
    lf_partials_at partials;
    int32_t port;                     /* not OWN: the output or input where their sets are */
    int64_t sets;
    /* ROW: partials a row, 0 where they come in sets; COLUMN: partials a column, one a block of rows */
    int64_t strips;
    int64_t width;                    /* COLUMN: columns */
    lf_window window;
    lf_reach from;
    size_t result[LF_MAX_RESULTS];    /* offsets in the block's area: [rows of the block][own] */
    size_t partial;                   /* also: ROW doubles [rows][strips][states], COLUMN [strips][states][width] */
    int32_t exps;                     /* the store of its phase that takes its exps; -1: they are not kept */
    size_t factor;                    /* of kept ones: [rows of it][strips], also in the area */
} lf_stat_at;

/* Partials of a row of a ROW statistic, counted from the area's first: [strips][states]. */
static inline double *lf_row_partials(const lf_stat_at *s, float *area, int64_t row)
{
    return (double *)(void *)(area + s->partial) + row * s->strips * s->states;
}

typedef struct lf_product_at {
    int32_t index;           /* of the plan's products */
    bool narrow;             /* as in lf_product: a dot product for each element */
    bool weight_fixed, w_is_kn;
    int32_t phase;
    int64_t n;
    int64_t ldc;             /* of the product tile, the same for all of a phase */
    int32_t bias;            /* the step that loads what the product adds to each row itself; -1: none */
    /* the store of its phase, of a kept value, in whose memory its last run ends; -1: in the tile */
    int32_t lands;
    lf_reach weight;
    size_t tile;             /* offset in a thread's scratch: [block_rows][ldc] */
} lf_product_at;

typedef struct lf_group_at {
    int64_t rows;
    bool whole_grid;
    int64_t block_rows;      /* of the first whole_blocks blocks; those after have small_rows, but for the last */
    int64_t whole_blocks, small_rows;
    lf_reach x;              /* what its products multiply, rows x k */
    lf_dtype x_type;         /* what it is packed as */
    int64_t k;
    int64_t depth;           /* elements of k in a run, but for the last */
    lf_product_at *product;
    lf_phase_at *phase;
    lf_stat_at *stat;
    int32_t products, phases, stats;
    int32_t packs;           /* the first phase that multiplies packed x; -1: none does */
    bool share_x;            /* x is packed once for all pieces, into the block's area */
    size_t packed_x;         /* shared: [blocks][runs of K], in the area; else one block, in scratch */
    int64_t packed_floats;   /* shared: from one block to the next */
    /* offsets in floats in a thread's scratch */
    size_t block_area;       /* by blocks only */
    size_t more;             /* like a product's tile, for the sum of some runs of K where they are many */
    size_t w_run;            /* a run of a strip of w, where w was not packed before */
    size_t x_row;            /* of x that is not contiguous: narrow [k], else [block_rows][LF_KBLOCK] */
    size_t registers;        /* [registers][the phase's stretch] */
    size_t pointers;         /* value of every step, base of every step and store */
} lf_group_at;

struct lf_cpu_instance {
    const lf_plan *plan; /* borrowed */
    const lf_kern *kern; /* borrowed */
    lf_arena arena;
    lf_group_at *group;
    int32_t groups;
    int threads;
    /* the workspace in floats: intermediate tensors, from `shared` on the grids' area, from `thread` on scratch */
    size_t shared, thread, thread_size, total;
};

/* ---- phases.c, instance.c, layout.c ---- */

/* A phase as numbers: levels of its steps, registers, how its values are had. Needs g's rows and product, and the
 * phase's width. Leaves open where accesses begin.
 * Fails: (false) when memory runs out. An extent that overflows is noted in *overflow. */
bool lf_phase_init(lf_group_at *g, const lf_group *group, int32_t index, lf_cpu_instance *instance, const lf_plan *plan,
                   const int64_t *dims, bool *overflow);
/* A step's value with an element for every element of a strip; none where step is -1. */
lf_use lf_use_whole(const lf_phase_at *p, int32_t step);

/* Memory to be laid out, in floats; every part begins on a cache line. */
typedef struct lf_layout {
    size_t floats;
    bool overflow;
} lf_layout;

/* Takes a * b * c floats and gives their offset; or a * b elements. */
size_t lf_layout_take(lf_layout *l, int64_t a, int64_t b, int64_t c);
size_t lf_layout_take_elements(lf_layout *l, lf_dtype type, int64_t a, int64_t b);

/* Decides how the group runs, its blocks, and lays out its area and scratch; needs its phases, product and statistics
 * as numbers. mr: rows of a tile. area, scratch: what the group needs of either. in_area: one per kept value, its
 * offset in the area (those in outputs have none). */
void lf_group_schedule(lf_group_at *g, const lf_group *plan, int mr, const int64_t *dims, int threads);
void lf_group_layout(lf_group_at *g, const lf_group *plan, const lf_kern *kern, const int64_t *dims, size_t *in_area,
                     lf_layout *area, lf_layout *scratch);

/* Less work than this is done before other threads would have woken up: some ten microseconds of it. */
enum { LF_WORTH_WAKING = 1 << 16 };
/* What a phase does, in steps on elements, very roughly. */
double lf_phase_work(const lf_group_at *g, const lf_phase_at *phase);
double lf_group_work(const lf_group_at *g);

/* Blocks of rows of a phase, and where one begins. */
static inline int64_t lf_blocks(const lf_group_at *g, int64_t rows)
{
    const int64_t whole = g->whole_blocks * g->block_rows;
    return rows <= whole ? lf_ceil_div(rows, g->block_rows)
                         : g->whole_blocks + lf_ceil_div(rows - whole, g->small_rows);
}

static inline int64_t lf_block_row(const lf_group_at *g, int64_t block)
{
    const int64_t small = lf_max64(block - g->whole_blocks, 0);
    return (block - small) * g->block_rows + small * g->small_rows;
}

static inline int64_t lf_block_rows(const lf_group_at *g, int64_t block, int64_t rows)
{
    return lf_min64(block < g->whole_blocks ? g->block_rows : g->small_rows, rows - lf_block_row(g, block));
}

/* Elements of K in a run: as many in each as can be, because a short sum beside a long one gains less accuracy than the
 * long one costs. The last run has what is left. */
static inline int64_t lf_run_depth(int64_t k)
{
    return k <= LF_KBLOCK ? lf_max64(k, 1) : lf_round_up(lf_ceil_div(k, lf_ceil_div(k, LF_KBLOCK)), 8);
}

static inline int64_t lf_runs(int64_t k)
{
    return lf_ceil_div(k, lf_run_depth(k));
}

/* What all runs of K of some rows of x packed as a type, or of some columns of w of a type, take when packed. Every run
 * but the last takes as much as the first. */
static inline int64_t lf_x_runs_floats(const lf_kern *kern, lf_dtype type, int64_t rows, int64_t k)
{
    const int64_t depth = lf_run_depth(k), rest = k % depth;
    return k / depth * kern->x_floats(type, rows, depth) + (rest > 0 ? kern->x_floats(type, rows, rest) : 0);
}

static inline int64_t lf_w_runs_floats(const lf_kern *kern, lf_dtype type, int64_t columns, int64_t k)
{
    const int64_t depth = lf_run_depth(k), rest = k % depth;
    const lf_dtype packed = kern->w_type[type];
    return k / depth * kern->w_floats(packed, columns, depth) + (rest > 0 ? kern->w_floats(packed, columns, rest) : 0);
}

/* Where run `run` of strip `strip` of a packed w [n][k] of a type begins. */
static inline int64_t lf_w_run_at(const lf_kern *kern, lf_dtype type, int64_t n, int64_t k, int64_t strip, int64_t run)
{
    return strip * lf_w_runs_floats(kern, type, LF_STRIP, k) +
           run * kern->w_floats(kern->w_type[type], lf_min64(LF_STRIP, n - strip * LF_STRIP), lf_run_depth(k));
}

/* product.c: packs it. w: [n][k], or [k][n] where is_kn, of that type. */
void lf_w_run_pack(const lf_kern *kern, lf_dtype type, const void *w, int64_t n, int64_t k, bool is_kn, int64_t strip,
                   int64_t run, float *to);

/* Do the rows of x lie as rows of consecutive elements of the type that they are packed as, evenly apart? */
static inline bool lf_x_in_rows(const lf_group_at *g)
{
    return g->x.dtype == g->x_type && g->x.row.rank <= 1 && (g->x.col.form == LF_FORM_CONTIGUOUS || g->k == 1);
}

/* Does each row of x lie as consecutive floats? */
static inline bool lf_x_rows_in_place(const lf_group_at *g)
{
    return g->x.dtype == LF_F32 && (g->x.col.form == LF_FORM_CONTIGUOUS || g->k <= 1);
}

/* Is some product of the phase multiplied from packed x? */
static inline bool lf_multiplies_packed(const lf_group_at *g, const lf_phase_at *phase)
{
    for (int32_t i = 0; i < g->products; i++)
        if (&g->phase[g->product[i].phase] == phase && !g->product[i].narrow)
            return true;
    return false;
}

/* ---- weights.c ---- */

struct lf_cpu_weights {
    lf_arena arena;
    lf_prepared *prepared; /* owned; tensors of which only the packed form is read are gone from it */
    int32_t products;      /* of the plan */
    const float **product; /* one per product: [strips][runs of K], each as the table packs it; NULL: read the tensor */
    float **packed;        /* one per product: to be freed; NULL where shared or not packed */
    size_t bytes;          /* of packed */
};

/* ---- a run ---- */

typedef struct lf_run {
    const lf_cpu_instance *instance;
    const lf_cpu_weights *weights;
    const void *const *input;
    void *const *output;
    float *workspace;
    unsigned char *flagged;
    int64_t batch;
    lf_pool *pool;
} lf_run;

/* A block's rows times the strips [strip, strip_end) in one phase, worked on by one thread. */
typedef struct lf_piece {
    const lf_run *run;
    const lf_group_at *group;
    const lf_phase_at *phase;
    float *area;           /* the block's, or the grid's */
    float *scratch;        /* the thread's */
    int64_t area_row;      /* the row of the grid that is row 0 of the area */
    int64_t block;         /* number of the block */
    int64_t row, rows;     /* of the grid */
    int64_t strip, strip_end;
} lf_piece;

/* Where what an access is of begins. */
static inline void *lf_home_base(const lf_run *run, const lf_reach *r, float *area)
{
    switch (r->home) {
    case LF_HOME_INPUT:
        return (void *)(uintptr_t)run->input[r->index];
    case LF_HOME_PREPARED:
        return (void *)(uintptr_t)run->weights->prepared->tensor[r->index];
    case LF_HOME_OUTPUT:
        return run->output[r->index];
    case LF_HOME_BUFFER:
        return run->workspace + r->offset;
    case LF_HOME_BLOCK:
        return area + r->offset;
    }
    return NULL;
}

/* Where an access begins. */
static inline void *lf_reach_base(const lf_run *run, const lf_reach *r, float *area)
{
    return lf_element_at(r->dtype, lf_home_base(run, r, area), r->first);
}

/* The row of an access that row `row` of the grid is. */
static inline int64_t lf_row_in(const lf_piece *p, const lf_reach *r, int64_t row)
{
    return r->home == LF_HOME_BLOCK ? row - p->area_row : row;
}

/* product.c: packs the block's x, run `run` of K, into the block's packed x. */
void lf_product_pack_x(const lf_piece *p, int64_t run, float *packed);
/* One product of the piece's rows with one strip of columns -> to [rows][ldt]: its tile, or where it lands.
 * packed: the block's x. */
void lf_product_tile(const lf_piece *p, const lf_product_at *product, const float *packed, int64_t strip, float *to,
                     int64_t ldt);
/* narrow.c: all of a narrow product's piece -> c [rows][ldc]. */
void lf_product_narrow(const lf_piece *p, const lf_product_at *product, float *c);

/* tail.c: the phase's program over the piece, product tiles included. packed: the block's x, NULL without a product. */
void lf_tail_run(const lf_piece *p, const float *packed);

/* stats.c: finishes statistics [from, to) of those of the area, counted over rows and then `own`. */
void lf_stat_finish(const lf_run *run, const lf_stat_at *s, float *area, int64_t area_row, int64_t from, int64_t to);

#endif
