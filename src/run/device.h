/* SPDX-License-Identifier: Apache-2.0 */
/* A device by name. */
#ifndef LF_RUN_DEVICE_H
#define LF_RUN_DEVICE_H

#include "cpu/kern.h"
#include "base/pool.h"
#include "cuda/cuda.h"
#include "plan/cost.h"

/* The row of the device table called name, or what gpu is costed as where that is "cuda". cpu is this machine: measured
 * with kern on the pool's threads the first time, then remembered in a file under $XDG_CACHE_HOME/linfuse
 * (~/.cache/linfuse), one for each processor, instruction set and number of threads. A file that cannot be read, is
 * damaged or cannot be written is as good as none. With a loop of the caller's it is measured anew each time.
 * Fails: LF_ERR_ARG for an unknown name, with the known ones, or for what LINFUSE_CUDA names; LF_ERR_NOMEM. */
lf_status lf_device_find(const char *name, const lf_cuda_device *gpu, const lf_kern *kern, lf_pool *pool,
                         lf_device *out, lf_diag *diag);

#endif
