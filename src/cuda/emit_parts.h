/* SPDX-License-Identifier: Apache-2.0 */
/* What the emitter's files share. Inside the cuda module. */
#ifndef LF_CUDA_EMIT_PARTS_H
#define LF_CUDA_EMIT_PARTS_H

#include "base/str.h"
#include "cuda/emit.h"
#include "plan/touch.h"

/* Phases [first, end) of a group that one stage runs. */
typedef struct lf_range {
    int32_t first, end;
    bool product; /* tiles of the wide product; otherwise row by row */
} lf_range;

enum { LF_IN_BLOCK = -2 };

typedef struct lf_emitter {
    const lf_plan *plan;
    const lf_graph *graph;
    lf_cuda_target target;
    lf_cuda_role role;
    int threads;             /* of a block */
    lf_cuda_part *out;
    lf_str s;
    bool failed;             /* no memory for something other than text */
    bool ahead;              /* what is the same for all columns is loaded already */
    bool tiles;              /* elements of a tile, of which some rows may not be `here` */
    /* a row that a narrow product multiplies is in registers, in so many turns of its threads; 0: it is not */
    int register_turns;
    const lf_product *weight_in_registers; /* and so is this one's weight, of one column */
    bool guarded;            /* behind the last stage all blocks meet, and rows that were flagged are done again */
    int32_t arrives;         /* the phase behind which a block arrives there with its last row; -1: at the end */
    /* the group under way */
    const lf_group *g;
    int32_t group;
    lf_range *range;         /* one per phase at most */
    int32_t ranges;
    const lf_product *tensor; /* its product, where that is on tensor cores; NULL */
    lf_held held;            /* then: the phase after it, where this target goes on with what is in registers */
    int32_t x_lines, x_scale; /* then: areas of x as they read it; x_lines is -1 where input x_input is that */
    int32_t x_input;
    bool x_brought;          /* into lines, for this product */
    lf_kept *home;           /* one per kept value: the group's, but for the output it waits in */
    /* one per kept value: its area; -1 where it lies in an output, LF_IN_BLOCK in shared memory of its row's block */
    int32_t *kept;
    /* one per statistic: the areas of its results, -1 where they stay in registers */
    int32_t (*result)[LF_MAX_RESULTS];
    int32_t *partial;        /* one per statistic: the area of its partials, -1 */
    int32_t *column;         /* one per statistic: the area of what a column statistic is taken from, -1 */
} lf_emitter;

/* Fixed texts, from src/cuda/text. */
extern const char lf_text_partials_maxsumexp[], lf_text_partials_moments[], lf_text_quad_moments[];
extern const char lf_text_ptx[], lf_text_ptx_hopper[], lf_text_ptx_wgmma[];
extern const char lf_text_types[], lf_text_base[], lf_text_math[], lf_text_plain[], lf_text_stats[], lf_text_windows[],
    lf_text_short_moments[], lf_text_split[], lf_text_finish[], lf_text_mma[], lf_text_hopper[], lf_text_wgmma[],
    lf_text_few_rows[], lf_text_weights[], lf_text_fold_maxsumexp[], lf_text_ring[];

/* ---- emit_access.c ---- */

/* An extent as an expression of a.dim; in parentheses where it has several factors. */
void lf_emit_extent(lf_emitter *e, lf_extent extent);
/* A number as a float literal. */
void lf_emit_number(lf_emitter *e, double number);
/* "[B][8192] name" of a node, for comments. */
void lf_emit_shape(lf_emitter *e, lf_node node);
/* What elements of a type are called; float where they are f32. */
const char *lf_emit_type(lf_dtype type);
/* The pointer a node's elements begin at, to their type. */
void lf_emit_home(lf_emitter *e, lf_node node);
/* `float vI[W];` and the loading of step I, at `row` and `col`. */
void lf_emit_load(lf_emitter *e, int32_t phase, int32_t step, int indent);
/* Loads that are the same for all columns, before the loop over them; those are left out within it while `ahead`. */
void lf_emit_loads_ahead(lf_emitter *e, int32_t phase, int indent);
/* One store of a phase. */
void lf_emit_store(lf_emitter *e, const lf_store *store, int indent);
/* The element at column `column` of the row a segment's or window's statistic is taken from, as an expression. */
void lf_emit_row_element(lf_emitter *e, const lf_access *from, const char *column);
/* May four neighbours from a multiple of four on be had at once? As an expression. */
const char *lf_emit_aligned(const lf_emitter *e, const lf_access *a);
/* The same for every row, column after column, and written by nobody while the kernel runs? */
bool lf_is_column_vector(const lf_emitter *e, const lf_access *a);
/* Does a load of this phase read what the group's narrow product multiplies, column by column as that does? */
bool lf_is_row_in_registers(const lf_emitter *e, int32_t phase, const lf_access *from);
void lf_emit_indent(lf_emitter *e, int indent);

/* ---- emit_phase.c ---- */

/* All steps, then watches and stores. */
void lf_emit_steps(lf_emitter *e, int32_t phase, int indent);
/* Elements at a time: 4 where the width is known to be a multiple of that, 1 elsewhere, and where rows are done again,
 * which should be little code. */
int lf_emit_lanes(const lf_emitter *e, lf_extent width);
/* A fixed text, and a line after it. */
void lf_emit_text(lf_str *to, const char *text);
/* Which monoids these plans (some NULL) have statistics of. */
void lf_used_monoids(const lf_plan *const *plan, int plans, bool *used);
/* The functions of all ops of these plans (some NULL), and the monoids' types. */
void lf_emit_ops(lf_str *to, const lf_plan *const *plan, int plans);
void lf_emit_monoids(lf_str *to, const lf_plan *const *plan, int plans);

/* ---- emit_rows.c, emit_product.c, emit_columns.c: stages ---- */

void lf_emit_rows(lf_emitter *e, int32_t range);
/* What a row's values of a narrow product are called; returns name. */
enum { LF_PRODUCT_NAME = 24 };
const char *lf_product_name(const lf_emitter *e, const lf_product *p, char *name);
/* Is this kept value a number that only the block which has its row asks for? */
bool lf_is_of_block(const lf_emitter *e, int32_t kept);
/* Columns of a partial of a row's statistic that a product's phase feeds. */
int lf_partial_columns(const lf_emitter *e);
/* The joined partials of a row's statistic, as an expression. */
void lf_emit_partials(lf_emitter *e, int32_t stat);
void lf_emit_product(lf_emitter *e, int32_t range);
void lf_emit_columns(lf_emitter *e, int32_t stat);

/* ---- emit_tensor.c ---- */

/* The first of the group's products, if it has such as tensor cores make as one; NULL where it has none, or others. */
const lf_product *lf_tensor_product(lf_cuda_target target, const lf_group *g);
/* Lines of a row of x or of the weight: a whole number of chunks between promotions, of *chunk lines each. */
int64_t lf_tensor_lines(lf_cuda_target target, const lf_product *p, int *chunk);
/* The input, or the area of an intermediate tensor, that is x's lines as it is, its tensor map rounding f32 as it
 * copies; -1 and -1 where x is to be brought into lines. */
void lf_place_x(lf_emitter *e, int32_t *of_input, int32_t *of_area);
/* What the struct of a product says for tensor cores, and its stages. */
void lf_emit_tensor_extents(lf_emitter *e);
void lf_emit_tensor_stages(lf_emitter *e);
/* shape.c: what the texts below know of precisions and tiles. */
void lf_emit_tables(lf_str *to);
/* The kernels that bring a part's weights into lines when they are prepared. */
void lf_emit_tensor_weights(lf_str *to, const lf_cuda_part *part);
/* The fixed texts a part with products on tensor cores needs. */
void lf_emit_tensor_texts(lf_str *to, const lf_cuda_part *part);

/* ---- emit_held.c ---- */

/* What is held in registers for the phase after the product's, where such a kernel can: the group's, or nothing. */
lf_held lf_held_on(lf_cuda_target target, const lf_group *g);
/* What the struct of a product says about it. */
void lf_emit_held(lf_emitter *e);

/* ---- emit_part.c ---- */

/* One plan in a namespace of its own: Args, and all its stages. Adds to e->s; e->out gets stages and areas. */
void lf_emit_part(lf_emitter *e, const char *name);
bool lf_is_fed(const lf_emitter *e, int32_t stat, int32_t phase); /* a ROW statistic that the phase's steps feed */
int32_t lf_range_of(const lf_emitter *e, int32_t phase);
/* The range in which a statistic's results are made: that of its phase, or the one after a product. -1 for columns. */
int32_t lf_finished_in(const lf_emitter *e, int32_t stat);
lf_cuda_stage *lf_emit_stage(lf_emitter *e, const char *name, lf_cuda_work work, lf_extent rows, lf_extent width);

#endif
