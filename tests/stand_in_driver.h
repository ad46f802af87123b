/* SPDX-License-Identifier: Apache-2.0 */
/* A driver that stands in for a GPU's, and a compiler for NVRTC: what is asked of the driver works and does nothing. A
 * test puts functions of its own into it (own_functions), and says what compiling gives: by functions of the compiler,
 * or in the place of lf_cuda_compile. */
#ifndef LF_TESTS_STAND_IN_DRIVER_H
#define LF_TESTS_STAND_IN_DRIVER_H

#include "cuda/compile.h"
#include "cuda/driver.h"

static lf_cuda_driver driver;
static lf_nvrtc compiler; /* no functions but those that own_functions gives it */
static bool capturing;

static void own_functions(lf_cuda_driver *to); /* the test's */

/* All there is on this device is 0. */
static int fake_to_host(void *to, lf_cuda_ptr from, size_t bytes, void *stream)
{
    (void)from, (void)stream;
    memset(to, 0, bytes);
    return 0;
}

static int fake_stream_captures(void *stream, int *captures)
{
    (void)stream;
    *captures = capturing;
    return 0;
}

static int fake_context_current(void **context)
{
    *context = NULL;
    return 0;
}

static int fake_device_count(int *count)
{
    *count = 1;
    return 0;
}

static int fake_blocks(int *count, void *function, int threads, size_t shared)
{
    (void)function, (void)threads, (void)shared;
    *count = 1;
    return 0;
}

/* Refuses what cuTensorMapEncodeTiled does. */
static int fake_tensor_map(void *map, int type, unsigned rank, void *at, const uint64_t *extents,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                           int swizzle, int promotion, int fill)
{
    (void)map, (void)type, (void)strides, (void)steps, (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    bool good = at && (uintptr_t)at % 16 == 0;
    for (unsigned i = 0; i < rank; i++)
        good = good && extents[i] > 0 && box[i] > 0 && box[i] <= 256;
    return good ? 0 : 1;
}

/* Whatever else is asked for works and does nothing. */
static int fine(void)
{
    return 0;
}

lf_status __wrap_lf_cuda_driver_find(const lf_cuda_driver **out, lf_diag *diag);
lf_status __wrap_lf_nvrtc_find(const lf_nvrtc **out, lf_diag *diag);

lf_status __wrap_lf_cuda_driver_find(const lf_cuda_driver **out, lf_diag *diag)
{
    int (*const f)(void) = fine;
    (void)diag;
    for (size_t i = 0; i < sizeof driver / sizeof f; i++)
        memcpy((char *)&driver + i * sizeof f, &f, sizeof f);
    driver.to_host = fake_to_host;
    driver.stream_captures = fake_stream_captures;
    driver.context_current = fake_context_current;
    driver.device_count = fake_device_count;
    driver.blocks = fake_blocks;
    driver.tensor_map = fake_tensor_map;
    own_functions(&driver);
    *out = &driver;
    return LF_OK;
}

lf_status __wrap_lf_nvrtc_find(const lf_nvrtc **out, lf_diag *diag)
{
    (void)diag;
    *out = &compiler;
    return LF_OK;
}

#endif
