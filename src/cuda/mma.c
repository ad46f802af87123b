/* SPDX-License-Identifier: Apache-2.0 */
/* Products on tensor cores as Ampere has them, from the host: tiles and shared memory. */
#include "cuda/device.h"

/* Shape in text/mma.cu. Devices of 8.6, 8.9 and 12.0 have 99 KB for a block, all others 163 KB or more. */
void lf_cuda_mma_shape(const lf_cuda_device *d, lf_cuda_target target, lf_cuda_kernel *k)
{
    const bool roomy = d->shared_bytes >= 160 << 10, wide = roomy && target.mode != LF_CUDA_FP32 && target.shape == LF_CUDA_PAIRS;
    const unsigned stages = !roomy || wide ? 3 : 4;
    k->columns = wide ? LF_CUDA_TENSOR_COLUMNS : LF_CUDA_ALONE_COLUMNS;
    k->shared = LF_CUDA_LINE + stages * (unsigned)(LF_CUDA_TENSOR_ROWS + k->columns) * LF_CUDA_LINE;
}
