/* SPDX-License-Identifier: Apache-2.0 */
/* Products on tensor cores as Ampere has them, from the host: tiles and shared memory. */
#include "cuda/device.h"

/* Shape in text/mma.cu. */
void lf_cuda_mma_shape(const lf_cuda_device *d, lf_cuda_target target, lf_cuda_kernel *k)
{
    /* devices of 8.6, 8.9 and 12.0 have 99 KB for a block, all others 163 KB or more */
    enum { LEAST = 100 << 10, MOST_STAGES = 4 };
    const bool wide = d->shared_bytes > LEAST && target.mode != LF_CUDA_FP32 && target.shape == LF_CUDA_PAIRS;
    k->columns = wide ? 2 * LF_CUDA_TILE : LF_CUDA_TILE;
    const int room = d->shared_bytes - lf_cuda_own_shared(LF_CUDA_THREADS) - LF_CUDA_LINE,
              stage = (LF_CUDA_TILE + k->columns) * LF_CUDA_LINE, fit = room / stage;
    k->shared = (unsigned)(LF_CUDA_LINE + (fit < MOST_STAGES ? fit : MOST_STAGES) * stage);
}
