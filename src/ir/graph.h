/* SPDX-License-Identifier: Apache-2.0 */
/* The graph of values: what is to be computed. Nodes are appended and never change; a node's arguments have smaller
 * numbers than it has, so walking 0 .. count-1 meets every value after what it needs. */
#ifndef LF_IR_GRAPH_H
#define LF_IR_GRAPH_H

#include <linfuse.h>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/status.h"
#include "ir/ops.h"

/* Limits against hostile files; each has its message. */
enum {
    LF_MAX_SYMBOLS = LF_MAX_DIMS,
    LF_MAX_ARGS = 5,        /* values of one op */
    LF_MAX_ATTRS = 6,
    LF_MAX_LIST = LF_MAX_RANK,
    LF_MAX_NODES = 1 << 14,
    LF_MAX_NAME = 255
};
#define LF_MAX_ELEMENTS ((int64_t)1 << 46) /* of one tensor: byte counts then stay far from overflow */

typedef int32_t lf_node;
#define LF_NONE ((lf_node)-1)

/* ---- extents: number * product of named extents ---- */

/* coef * B^pow[0] * S^pow[1] ...; coef >= 1 for an extent, 0 stands for a broadcast stride. */
typedef struct lf_extent {
    int64_t coef;
    uint8_t pow[LF_MAX_SYMBOLS];
} lf_extent;

typedef struct lf_shape {
    int rank;
    lf_extent dim[LF_MAX_RANK];
} lf_shape;

lf_extent lf_extent_of(int64_t number);
bool lf_extent_same(lf_extent a, lf_extent b);
bool lf_extent_is(lf_extent e, int64_t number); /* a plain number, and this one */
bool lf_extent_known(lf_extent e);              /* no name in it */
bool lf_extent_mul(lf_extent a, lf_extent b, lf_extent *out);  /* false on overflow */
bool lf_extent_div(lf_extent a, lf_extent b, lf_extent *out);  /* false unless b divides a whatever the names are */
/* dims[i] for symbol i; -1 on overflow past LF_MAX_ELEMENTS */
int64_t lf_extent_at(lf_extent e, const int64_t *dims);
bool lf_shape_same(const lf_shape *a, const lf_shape *b);
bool lf_shape_elements(const lf_shape *s, lf_extent *out);     /* product of all; false on overflow */
int64_t lf_shape_count(const lf_shape *s, const int64_t *dims); /* the same at given names; -1 on overflow */

/* ---- nodes ---- */

typedef struct lf_attr {
    bool none;
    double number;            /* F, I, B (0/1), S (index of the choice) */
    int count;                /* L: how many */
    int64_t list[LF_MAX_LIST];
} lf_attr;

typedef struct lf_node_info {
    lf_op op;
    lf_dtype dtype;
    lf_shape shape;
    lf_node arg[LF_MAX_ARGS]; /* by slot of the signature; LF_NONE where an optional one is absent */
    const lf_attr *attr;      /* by slot; NULL where the op has none */
    double value;             /* constant: every element; a scalar written in the model has rank 0 */
    const char *name;         /* unique among inputs, params and named values; made up (v12) for others */
} lf_node_info;

typedef struct lf_graph {
    lf_arena *arena; /* borrowed: nodes, names and attributes live in it */
    lf_diag *diag;   /* borrowed: where messages go */
    lf_node_info *node;
    int32_t count, capacity;
    const char *symbol[LF_MAX_SYMBOLS];
    int symbols;
    lf_node *input, *param, *output; /* in order of declaration, of return */
    int32_t inputs, params, outputs;
    /* private: name table */
    struct lf_name_table *names;
} lf_graph;

/* An empty graph. Fails: LF_ERR_NOMEM. */
lf_status lf_graph_init(lf_graph *g, lf_arena *arena, lf_diag *diag);

/* Finds or adds a named extent. Fails: LF_ERR_MODEL past LF_MAX_SYMBOLS. */
lf_status lf_graph_symbol(lf_graph *g, const char *name, size_t length, int *out);

/* Appends an input or a parameter (op says which). Every extent of a parameter is a number.
 * Fails: LF_ERR_MODEL (name taken or malformed, extents), LF_ERR_NOMEM. */
lf_status lf_graph_leaf(lf_graph *g, lf_op op, const char *name, lf_dtype dtype, const lf_shape *shape, lf_node *out);
/* Appends a constant: every element of the shape is value. */
lf_status lf_graph_constant(lf_graph *g, double value, const lf_shape *shape, lf_node *out);

/* Appends the numbers 0 to count - 1, f32[count], as a value that is computed with the parameters. */
lf_status lf_graph_positions(lf_graph *g, lf_extent count, lf_node *out);
/* Appends a leaf like that of another graph with the same symbols. */
lf_status lf_graph_leaf_like(lf_graph *g, const lf_node_info *like, lf_node *out);

/* Appends an op with its arguments and attributes in slots, inferring dtype and shape; the checked way in for the
 * reader, the builder and rewrites alike. attrs may be NULL: all defaults. name may be NULL.
 * Fails: LF_ERR_MODEL with a message that names op, argument and extents; LF_ERR_NOMEM. */
lf_status lf_graph_op(lf_graph *g, const char *name, lf_op op, const lf_node *args, const lf_attr *attrs, lf_node *out);

/* Fills attrs (LF_MAX_ATTRS of them) with the op's defaults; none where there is no default, to be filled in. */
void lf_op_defaults(lf_op op, lf_attr *attrs);
/* Whether an attribute fits its parameter: None only where optional, integers, finite numbers (ends of a clamp may be
 * infinite), choices. Fails: LF_ERR_MODEL. */
lf_status lf_attr_check(const lf_op_info *row, const lf_param_info *param, const lf_attr *attr, lf_diag *diag);

/* Binds arguments as written (positions, keys, numbers, lists) to the op's signature, then lf_graph_op. *bad (may be
 * NULL) gets the index of the offending argument, -1 when it is the op as a whole. */
lf_status lf_graph_bind(lf_graph *g, const char *name, const char *op, const lf_arg *args, size_t count, lf_node *out,
                        int *bad);

lf_status lf_graph_return(lf_graph *g, const lf_node *nodes, size_t count);

/* Copies a finished graph into an empty, initialised one: same nodes, same numbers. Fails: LF_ERR_NOMEM. */
lf_status lf_graph_copy(const lf_graph *from, lf_graph *to);

/* Copies a finished graph into an empty, initialised one, each loss made of other ops (expand.c). Values keep their
 * names. into: one per node of `from`: the node that computes it.
 * Fails: LF_ERR_MODEL past LF_MAX_NODES, LF_ERR_NOMEM. */
lf_status lf_graph_expand(const lf_graph *from, lf_graph *to, lf_node *into);

/* The value the model called name, LF_NONE when there is none; made-up names are not found. */
lf_node lf_graph_find(const lf_graph *g, const char *name, size_t length);
/* The same, made-up names included. */
lf_node lf_graph_named(const lf_graph *g, const char *name);

/* Checks every invariant the passes rely on: argument order, slots, shapes as inference gives them, unique names,
 * outputs present. Fails: LF_ERR_MODEL with the node's name. Used between passes. */
lf_status lf_graph_verify(const lf_graph *g);

/* Shape and type inference alone. What an op of narrow numbers yields is narrow, as in PyTorch; numbers written in a
 * model, and other constants, widen nothing. Types that PyTorch would not mix are only refused in what is written
 * (lf_graph_bind): rewrites make parameters of f32 from others. */
lf_status lf_infer(const lf_graph *g, lf_op op, const lf_node *args, const lf_attr *attrs, lf_dtype *dtype,
                   lf_shape *shape);

/* Whether the model can be run at these values of its named extents: no tensor too large to count, no statistic that
 * PyTorch refuses (one value a channel in training, the largest of none). Fails: LF_ERR_DATA. */
lf_status lf_graph_check_dims(const lf_graph *g, const int64_t *dims, lf_diag *diag);

/* Whether every target of a loss is one of its classes, or ignored. inputs: one address per input, row-major, in host
 * memory. Fails: LF_ERR_DATA. */
lf_status lf_graph_check_targets(const lf_graph *g, const int64_t *dims, const void *const *inputs, lf_diag *diag);

/* ---- reading a node ---- */

static inline const lf_node_info *lf_at(const lf_graph *g, lf_node n) { return &g->node[n]; }
static inline lf_kind lf_kind_of(const lf_graph *g, lf_node n) { return lf_op_row(g->node[n].op)->kind; }
static inline size_t lf_bytes_of(const lf_graph *g, lf_node n, size_t count) /* of so many of n's elements */
{
    return count * lf_dtype_size(g->node[n].dtype);
}
static inline lf_node lf_arg_of(const lf_graph *g, lf_node n, int slot) { return g->node[n].arg[slot]; }

/* An attribute by its parameter name; asserts that the op has it. */
const lf_attr *lf_attr_of(const lf_graph *g, lf_node n, const char *name);
/* The a, b, c of the op's expression. POINTWISE: its numbers, bools and choices in order of signature; clamp's open
 * ends become -Inf and +Inf. NORMALIZE: a is eps (None: the f32 epsilon). Unused ones, and those of other kinds, are
 * 0. */
void lf_op_numbers(const lf_graph *g, lf_node n, double numbers[3]);

/* Which axes of argument 0 a REDUCE, NORMALIZE or POOL takes its statistic over, as a bit mask; keepdim and negative
 * dims resolved. group_norm: see lf_segments. */
unsigned lf_span_axes(const lf_graph *g, lf_node n);
/* NORMALIZE: into how many equal runs the elements of one statistic's row are cut: num_groups for group_norm, 1 for
 * others. */
int64_t lf_segments(const lf_graph *g, lf_node n);
/* NORMALIZE: the slots of weight and bias, -1 where they are not given, and the axis of argument 0 from which they (and
 * running statistics) run: the trailing axes for layer_norm and rms_norm, axis 1, the channels, for the others. */
typedef struct lf_affine { int weight_slot, bias_slot, axis; bool channels; } lf_affine;
lf_affine lf_affine_of(const lf_graph *g, lf_node n);
/* batch_norm in eval, instance_norm with use_input_stats=false: no statistic is taken, slots 1 and 2 are used
 * instead. */
bool lf_uses_running_stats(const lf_graph *g, lf_node n);

/* Every `step`-th of an extent, from `start` on; `count` of them. */
typedef struct lf_run_of { int64_t start, step; lf_extent count; } lf_run_of;
/* What slice's numbers mean for an extent, as PyTorch has it: ends clamped, from the end where negative. False where
 * nothing is left, or the extent has a name and is not taken whole. */
bool lf_slice_run(lf_extent extent, const lf_attr *start, const lf_attr *end, const lf_attr *step, lf_run_of *out);
/* MOVE: where its elements lie among those of its argument: at first + the sum of index * stride over its axes; a first
 * of coef 0 is none. turned: in another order. */
typedef struct lf_moved { lf_extent first, stride[LF_MAX_RANK]; bool turned; } lf_moved;
lf_moved lf_moved_of(const lf_graph *g, lf_node n);
/* MOVE: the axes of which it takes some elements only, or exchanges with others. */
unsigned lf_moved_axes(const lf_graph *g, lf_node n);

/* A POOL's window with None resolved. */
typedef struct lf_window { int64_t kernel, stride, padding, dilation; bool include_pad; } lf_window;
lf_window lf_window_of(const lf_graph *g, lf_node n);

/* The shape as text, "[B, 8192]"; lives in the arena. */
const char *lf_shape_text(const lf_graph *g, const lf_shape *s);
const char *lf_extent_text(const lf_graph *g, lf_extent e);
/* The shape as text of at most size bytes, cut where it is longer; needs no memory, so threads may share the graph. */
void lf_shape_write(const lf_graph *g, const lf_shape *s, char *text, size_t size);

/* The strides, by axis of `to`, at which a value of shape `from` is read when broadcast to it: 0 where it repeats.
 * Row-major. Asserts that from broadcasts to `to`. */
void lf_broadcast_strides(const lf_shape *from, const lf_shape *to, lf_extent *stride);

/* True where a value depends on parameters and constants only: it is computed once, when weights are prepared.
 * fixed: one per node. */
void lf_graph_fixed(const lf_graph *g, bool *fixed);
/* Marks, beside the nodes that are marked, whatever they are computed from. needed: one per node. */
void lf_graph_needed(const lf_graph *g, bool *needed);

/* Do the rows (extent 0 of what the batch runs over) not see each other? has_rows: one per node, true where the node's
 * extent 0 runs over rows. False, with *why (a node) set, when some op mixes rows. */
bool lf_graph_rows(const lf_graph *g, bool *has_rows, lf_node *why);

/* ---- text ---- */

/* Reads `.lf`. Fails: LF_ERR_MODEL with NAME:LINE:COLUMN, the line and a caret. */
lf_status lf_text_read(lf_graph *g, const char *name, const char *text, size_t length);
/* Prints text that reads back as the same graph (graphs that came from text or builder; guard and wide constants print
 * as pseudo-ops for people). *out: malloc'ed, caller owns. */
lf_status lf_text_print(const lf_graph *g, char **out);

/* ---- meaning ---- */

/* A tensor bound to a node for eval: row-major, of a float type or double. known: taken as it is although the node is
 * neither input nor parameter. */
typedef struct lf_bound {
    const void *data; /* of dtype; or NULL, and f64 or nothing */
    lf_dtype dtype;
    const double *f64;
    bool known;
} lf_bound;

/* Computes `wanted` nodes in double precision into out[i] (row-major, caller's). bound: one per node, used for inputs
 * and parameters, and for what is `known` (no view, no guard); the rest is computed. dims: one per symbol. Only what is
 * needed for `wanted` is computed; values are freed when their last user is done. Fails: LF_ERR_NOMEM; LF_ERR_DATA when
 * a needed leaf is unbound. */
lf_status lf_eval(const lf_graph *g, const int64_t *dims, const lf_bound *bound, const lf_node *wanted, size_t count,
                  double *const *out, lf_diag *diag);

#endif
