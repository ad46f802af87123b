/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA driver and the run-time compiler, found when they are first wanted: one binary serves machines with and
 * without. */
#ifndef LF_CUDA_DRIVER_H
#define LF_CUDA_DRIVER_H

#include <stdint.h>

#include "base/status.h"

typedef uint64_t lf_cuda_ptr; /* an address on the device */

/* CUlaunchAttribute and CUlaunchConfig. */
typedef struct lf_cuda_attribute {
    int id;
    char pad[4];
    uint32_t value[16];
} lf_cuda_attribute;

typedef struct lf_cuda_config {
    unsigned gx, gy, gz, bx, by, bz, shared;
    void *stream;
    lf_cuda_attribute *attribute;
    unsigned attributes;
} lf_cuda_config;

typedef struct lf_cuda_driver {
#define LF_CUDA_FN(field, symbol, parameters) int(*field) parameters;
#include "cuda/driver.def"
} lf_cuda_driver;

typedef struct lf_nvrtc {
#define LF_NVRTC_FN(field, symbol, parameters) int(*field) parameters;
#include "cuda/driver.def"
} lf_nvrtc;

/* Loaded once and for good. Fails: LF_ERR_DEVICE, saying what was looked for. Thread-safe. */
lf_status lf_cuda_driver_find(const lf_cuda_driver **out, lf_diag *diag);
/* LINFUSE_NVRTC names the library where it is in no usual place. */
lf_status lf_nvrtc_find(const lf_nvrtc **out, lf_diag *diag);

#endif
