/* SPDX-License-Identifier: Apache-2.0 */
/* Which shape of tiles serves how many rows: by the cost model, unless it was measured or is told. Bits do not depend
 * on it. Needs no GPU. */
#ifndef LF_CUDA_CHOOSE_H
#define LF_CUDA_CHOOSE_H

#include "cuda/emit.h"
#include "plan/cost.h"

/* Can the shape serve the plan at these extents? */
bool lf_cuda_serves(const lf_plan *plan, lf_cuda_target target, lf_tile_shape shape, const int64_t *dims);
/* The one that should take least. device: a row of the device table. */
lf_tile_choice lf_cuda_choose(const lf_plan *plan, lf_cuda_target target, const lf_device *device, const int64_t *dims);

/* The one LINFUSE_CUDA_SHAPE names, LF_TILE_SHAPES where it names none. Fails: LF_ERR_ARG for an unknown name. */
lf_status lf_cuda_shape_told(lf_tile_shape *out, lf_diag *diag);

#endif
