/* SPDX-License-Identifier: Apache-2.0 */
/* What eval.c, the driver, shares with the files that know one kind of op each. Nobody else includes this. */
#ifndef LF_IR_EVAL_PARTS_H
#define LF_IR_EVAL_PARTS_H

#include "base/dtype.h"
#include "ir/graph.h"

/* One node about to be computed: its arguments are, its extents are known. Borrows everything. */
typedef struct lf_site {
    const lf_graph *g;
    lf_node n;
    const int64_t *dims;       /* one per symbol */
    lf_bound arg[LF_MAX_ARGS]; /* by slot, row-major; both pointers NULL where absent (or empty) */
    double *out;               /* the node's shape at dims, row-major */
    double *scratch;           /* as many doubles as the kind's *_scratch asked for */
} lf_site;

/* None of these can fail: the driver has seen to memory, inference to shapes. */
void lf_eval_pointwise(const lf_site *s);
void lf_eval_move(const lf_site *s);
void lf_eval_reduce(const lf_site *s);
void lf_eval_normalize(const lf_site *s);
void lf_eval_pool(const lf_site *s);
void lf_eval_product(const lf_site *s);
void lf_eval_loss(const lf_site *s);

/* Doubles of scratch; at most a few per element of arguments and result, a constant for a product. */
int64_t lf_eval_reduce_scratch(const lf_site *s);
int64_t lf_eval_normalize_scratch(const lf_site *s);
int64_t lf_eval_product_scratch(const lf_site *s);

/* Elements a panel: small enough for the stack and the first-level cache. */
enum { LF_PANEL = 1024 };

static inline bool lf_is_bound(const lf_bound *b)
{
    return b->data || b->f64;
}

static inline double lf_read(const lf_bound *b, int64_t index)
{
    if (b->f64)
        return b->f64[index];
    if (b->dtype == LF_F32)
        return (double)((const float *)b->data)[index];
    if (b->dtype == LF_I64)
        return (double)((const int64_t *)b->data)[index];
    float number;
    lf_to_f32(b->dtype, (const char *)b->data + (size_t)index * lf_dtype_size(b->dtype), 1, &number, 1);
    return (double)number;
}

/* Elements [at, at + count) as doubles: in place where they are doubles already, otherwise converted into room, which
 * holds count. So a parameter of f32 is never doubled as a whole. */
static inline const double *lf_read_panel(const lf_bound *b, int64_t at, int64_t count, double *room)
{
    if (b->f64)
        return b->f64 + at;
    for (int64_t i = 0; i < count; i++)
        room[i] = lf_read(b, at + i);
    return room;
}

/* The extent of an axis of an argument, at the call's names. */
static inline int64_t lf_site_extent(const lf_site *s, lf_node n, int axis)
{
    return lf_extent_at(lf_at(s->g, n)->shape.dim[axis], s->dims);
}

#endif
