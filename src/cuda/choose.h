/* SPDX-License-Identifier: Apache-2.0 */
/* Which shape of tiles serves how many rows: by the cost model, unless it was measured or is told. Bits do not depend
 * on it. Needs no GPU. */
#ifndef LF_CUDA_CHOOSE_H
#define LF_CUDA_CHOOSE_H

#include "cuda/emit.h"
#include "plan/cost.h"

typedef enum lf_cuda_how { LF_CUDA_BY_COST, LF_CUDA_BY_MEASURE, LF_CUDA_AS_TOLD } lf_cuda_how;

/* A shape for some extents, and what was known about others: microseconds, 0 where a shape cannot serve them or was not
 * measured. */
typedef struct lf_cuda_choice {
    lf_tile_shape shape;
    lf_cuda_how how;
    int columns[LF_TILE_SHAPES];     /* of a tile, which with mma are not always the shape's */
    double expected[LF_TILE_SHAPES]; /* of the products alone */
    double measured[LF_TILE_SHAPES]; /* of a whole call */
} lf_cuda_choice;

/* Can the shape serve the plan at these extents? */
bool lf_cuda_serves(const lf_plan *plan, lf_cuda_target target, lf_tile_shape shape, const int64_t *dims);
/* The one that should take least. device: a row of the device table. */
lf_cuda_choice lf_cuda_choose(const lf_plan *plan, lf_cuda_target target, const lf_device *device, const int64_t *dims);

/* The one LINFUSE_CUDA_SHAPE names, LF_TILE_SHAPES where it names none. Fails: LF_ERR_ARG for an unknown name. */
lf_status lf_cuda_shape_told(lf_tile_shape *out, lf_diag *diag);

#endif
