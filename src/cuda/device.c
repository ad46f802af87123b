/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU, its context and its memory. */
#include "cuda/device.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { /* CUdevice_attribute */
    ATTRIBUTE_UNITS = 16,
    ATTRIBUTE_MEMORY_CLOCK = 36, /* kHz */
    ATTRIBUTE_MEMORY_WIDTH = 37, /* bits */
    ATTRIBUTE_L2 = 38,
    ATTRIBUTE_MAJOR = 75,
    ATTRIBUTE_MINOR = 76,
    ATTRIBUTE_SHARED = 97
};
enum { OUT_OF_MEMORY = 2, OLDEST = 7 }; /* CUDA_ERROR_OUT_OF_MEMORY; the first compute capability that is served */

lf_status lf_cuda_status(const lf_cuda_device *d, int error, const char *what, lf_diag *diag)
{
    const char *text = NULL;
    if (error == 0)
        return LF_OK;
    d->driver->error_string(error, &text);
    return lf_fail(diag, error == OUT_OF_MEMORY ? LF_ERR_NOMEM : LF_ERR_DEVICE, "device cuda: %s: %s (error %d)", what,
                   text ? text : "unknown", error);
}

static lf_status choose(lf_cuda_device *d, lf_diag *diag)
{
    const lf_cuda_driver *driver = d->driver;
    int count = 0;
    if (driver->context_current(&d->context) == 0 && d->context) /* a framework's, whose memory we are to work on */
        return lf_cuda_status(d, driver->context_device(&d->ordinal), "asking for the current GPU", diag);
    lf_status status = lf_cuda_status(d, driver->device_count(&count), "counting GPUs", diag);
    if (status == LF_OK && count == 0)
        status = lf_fail(diag, LF_ERR_DEVICE, "device cuda: there is no GPU on this machine");
    if (status == LF_OK)
        status = lf_cuda_status(d, driver->device_get(&d->ordinal, 0), "finding the GPU", diag);
    if (status == LF_OK)
        status = lf_cuda_status(d, driver->primary_retain(&d->context, d->ordinal), "starting the GPU", diag);
    d->primary = status == LF_OK;
    return status;
}

static lf_status describe(lf_cuda_device *d, lf_diag *diag)
{
    const lf_cuda_driver *driver = d->driver;
    int l2 = 0, clock = 0, width = 0;
    int error = driver->device_name(d->name, (int)sizeof d->name, d->ordinal);
    error = error ? error : driver->device_attribute(&d->major, ATTRIBUTE_MAJOR, d->ordinal);
    error = error ? error : driver->device_attribute(&d->minor, ATTRIBUTE_MINOR, d->ordinal);
    error = error ? error : driver->device_attribute(&d->units, ATTRIBUTE_UNITS, d->ordinal);
    error = error ? error : driver->device_attribute(&l2, ATTRIBUTE_L2, d->ordinal);
    error = error ? error : driver->device_attribute(&d->shared_bytes, ATTRIBUTE_SHARED, d->ordinal);
    d->cache_bytes = (size_t)l2;
    if (driver->device_attribute(&clock, ATTRIBUTE_MEMORY_CLOCK, d->ordinal) == 0 &&
        driver->device_attribute(&width, ATTRIBUTE_MEMORY_WIDTH, d->ordinal) == 0)
        d->memory_rate = 2.0 * clock * 1e3 * width / 8; /* twice a clock */
    if (error)
        return lf_cuda_status(d, error, "asking what the GPU is", diag);
    if (d->major < OLDEST)
        return lf_fail(diag, LF_ERR_DEVICE,
                       "device cuda: %s has compute capability %d.%d, and 7.0 is the least that will do", d->name,
                       d->major, d->minor);
    return LF_OK;
}

lf_status lf_cuda_device_open(lf_cuda_device **out, lf_diag *diag)
{
    const lf_nvrtc *compiler;
    lf_cuda_device *d = *out = calloc(1, sizeof *d);
    if (!d)
        return lf_fail_nomem(diag, "the device");
    pthread_mutex_init(&d->loading, NULL);
    pthread_cond_init(&d->loaded, NULL);
    lf_status status = lf_cuda_driver_find(&d->driver, diag);
    if (status == LF_OK)
        status = lf_nvrtc_find(&compiler, diag);
    if (status == LF_OK)
        status = choose(d, diag);
    if (status == LF_OK)
        status = describe(d, diag);
    if (status != LF_OK) {
        lf_cuda_device_close(d);
        *out = NULL;
    }
    return status;
}

void lf_cuda_device_close(lf_cuda_device *d)
{
    if (!d)
        return;
    if (d->primary)
        d->driver->primary_release(d->ordinal);
    pthread_cond_destroy(&d->loaded);
    pthread_mutex_destroy(&d->loading);
    free(d);
}

/* Fastest last. */
static const struct unit {
    const char *name, *arch[5];
    int least, most; /* compute capabilities, 80 for 8.0 */
} units[] = {
    [LF_UNIT_PLAIN] = {"plain", {"sm_70", "sm_75"}, OLDEST * 10, INT_MAX},
    [LF_UNIT_MMA] = {"mma", {"sm_80", "sm_86", "sm_89", "sm_90"}, 80, INT_MAX},
    [LF_UNIT_WGMMA] = {"wgmma", {"sm_90a"}, 90, 90},
};
enum { UNITS = sizeof units / sizeof *units };

lf_plan_options lf_cuda_plans(lf_gpu_unit unit)
{
    return (lf_plan_options){.share_x = unit == LF_UNIT_PLAIN ? LF_SHARE_ALL : LF_SHARE_TWO};
}

const char *lf_cuda_arch(size_t index, lf_gpu_unit *unit)
{
    for (int u = 0; u < UNITS; u++)
        for (const char *const *a = units[u].arch; *a; a++)
            if (index-- == 0) {
                *unit = (lf_gpu_unit)u;
                return *a;
            }
    return NULL;
}

bool lf_cuda_arch_unit(const char *arch, lf_gpu_unit *out)
{
    const char *name;
    for (size_t i = 0; (name = lf_cuda_arch(i, out)) != NULL; i++)
        if (strcmp(name, arch) == 0)
            return true;
    return false;
}

/* The fastest, or the one that is wanted. */
static bool choose_unit(const lf_cuda_device *d, const char *wanted, lf_gpu_unit *out)
{
    const int capability = d->major * 10 + d->minor;
    for (int u = UNITS - 1; u >= 0; u--)
        if (capability >= units[u].least && capability <= units[u].most &&
            (!wanted || !*wanted || strcmp(wanted, units[u].name) == 0)) {
            *out = (lf_gpu_unit)u;
            return true;
        }
    return false;
}

lf_status lf_cuda_device_target(const lf_cuda_device *d, lf_precision precision, lf_cuda_target *out, lf_diag *diag)
{
    const char *wanted = getenv("LINFUSE_CUDA");
    *out = (lf_cuda_target){.precision = precision};
    if (!choose_unit(d, wanted, &out->unit))
        return lf_fail(diag, LF_ERR_ARG, "LINFUSE_CUDA: '%.64s' names no kernels that %s can run (plain, mma, wgmma)",
                       wanted, d->name);
    if (!lf_precision_table[precision].split && out->unit == LF_UNIT_PLAIN)
        return lf_fail(diag, LF_ERR_UNSUPPORTED,
                       "device cuda: %s has compute capability %d.%d; precision %s needs tensor cores, from 8.0 on",
                       d->name, d->major, d->minor, lf_precision_table[precision].name);
    return LF_OK;
}

void lf_cuda_device_costs(const lf_cuda_device *d, lf_gpu_unit unit, lf_device *out)
{
    const lf_gpu_facts gpu = {
        .name = d->name, .unit = unit, .units = d->units, .shared_bytes = d->shared_bytes, .bytes = d->memory_rate};
    lf_device_like(&gpu, out);
}

lf_status lf_cuda_enter(const lf_cuda_device *d, lf_diag *diag)
{
    return lf_cuda_status(d, d->driver->context_push(d->context), "using the GPU", diag);
}

void lf_cuda_leave(const lf_cuda_device *d)
{
    void *popped;
    d->driver->context_pop(&popped);
}

lf_status lf_cuda_alloc(const lf_cuda_device *d, size_t bytes, const char *what, lf_cuda_ptr *out, lf_diag *diag)
{
    *out = 0;
    if (bytes == 0)
        return LF_OK;
    int error = d->driver->alloc(out, bytes);
    if (error == OUT_OF_MEMORY)
        return lf_fail(diag, LF_ERR_NOMEM, "no memory on %s for %s: %zu bytes", d->name, what, bytes);
    return lf_cuda_status(d, error, what, diag);
}

lf_status lf_cuda_device_wait(const lf_cuda_device *d, void *stream, lf_diag *diag)
{
    lf_status status = lf_cuda_enter(d, diag);
    if (status != LF_OK)
        return status;
    const int error = d->driver->stream_wait(stream);
    lf_cuda_leave(d);
    return lf_cuda_status(d, error, "waiting for the GPU", diag);
}

lf_status lf_cuda_device_copy(const lf_cuda_device *d, const void *from, size_t bytes, void *stream, const char *what,
                              void **out, lf_diag *diag)
{
    lf_cuda_ptr copy;
    *out = NULL;
    lf_status status = lf_cuda_enter(d, diag);
    if (status != LF_OK)
        return status;
    status = lf_cuda_alloc(d, bytes, what, &copy, diag);
    if (status == LF_OK && copy) {
        int error = d->driver->copy(copy, (lf_cuda_ptr)(uintptr_t)from, bytes, stream);
        error = error ? error : d->driver->stream_wait(stream);
        status = lf_cuda_status(d, error, what, diag);
    }
    if (status != LF_OK && copy)
        d->driver->free(copy);
    else
        *out = (void *)(uintptr_t)copy;
    lf_cuda_leave(d);
    return status;
}

void lf_cuda_device_drop(const lf_cuda_device *d, void *copy)
{
    if (lf_cuda_enter(d, NULL) == LF_OK) {
        d->driver->free((lf_cuda_ptr)(uintptr_t)copy);
        lf_cuda_leave(d);
    }
}

lf_status lf_cuda_device_read(const lf_cuda_device *d, void *to, const void *from, size_t bytes, void *stream,
                              const char *what, lf_diag *diag)
{
    lf_status status = lf_cuda_enter(d, diag);
    if (status != LF_OK)
        return status;
    int error = d->driver->to_host(to, (lf_cuda_ptr)(uintptr_t)from, bytes, stream);
    error = error ? error : d->driver->stream_wait(stream);
    lf_cuda_leave(d);
    return lf_cuda_status(d, error, what, diag);
}
