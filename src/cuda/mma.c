/* SPDX-License-Identifier: Apache-2.0 */
/* Products on tensor cores as Ampere has them, from the host: tiles and shared memory. */
#include "cuda/device.h"

/* Shape in text/mma.cu. */
void lf_cuda_mma_shape(const lf_cuda_device *d, lf_cuda_target target, lf_cuda_kernel *k)
{
    k->columns = lf_tile_on(target.shape, LF_UNIT_MMA, target.precision, d->shared_bytes).columns;
    const int room = d->shared_bytes - lf_cuda_own_shared(LF_CUDA_THREADS) - LF_LINE,
              stage = (LF_CUDA_TILE + k->columns) * LF_LINE, fit = room / stage;
    k->shared = (unsigned)(LF_LINE + (fit < LF_MMA_STAGES ? fit : LF_MMA_STAGES) * stage);
}
