/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct symbol {
    const char *name;
    size_t offset; /* of its field */
} symbol;

static const symbol driver_symbols[] = {
#define LF_CUDA_FN(field, symbol, parameters) {#symbol, offsetof(lf_cuda_driver, field)},
#include "cuda/driver.def"
};
static const symbol nvrtc_symbols[] = {
#define LF_NVRTC_FN(field, symbol, parameters) {#symbol, offsetof(lf_nvrtc, field)},
#include "cuda/driver.def"
};

/* Newest first. Where the loader does not know them, the toolkit's own folder does. */
static const char *const driver_files[] = {"libcuda.so.1", "libcuda.so", NULL};
static const char *const nvrtc_files[] = {"libnvrtc.so.13",
                                          "libnvrtc.so.12",
                                          "libnvrtc.so",
                                          "/usr/local/cuda/lib64/libnvrtc.so.13",
                                          "/usr/local/cuda/lib64/libnvrtc.so.12",
                                          "/usr/local/cuda/lib64/libnvrtc.so",
                                          NULL};

/* Fills a table of functions from the first file that is there. What is wrong goes into why. */
static bool load(const char *const *files, const symbol *symbols, size_t count, void *table, char *why, size_t size)
{
    void *library = NULL;
    for (; *files && !library; files++)
        library = dlopen(*files, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(why, size, "it is not on this machine");
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        void *function = dlsym(library, symbols[i].name);
        if (!function) {
            snprintf(why, size, "it is too old: it has no %s", symbols[i].name);
            dlclose(library);
            return false;
        }
        memcpy((char *)table + symbols[i].offset, &function, sizeof function);
    }
    return true;
}

static pthread_once_t driver_once = PTHREAD_ONCE_INIT, nvrtc_once = PTHREAD_ONCE_INIT;
static lf_cuda_driver driver;
static lf_nvrtc nvrtc;
static bool driver_there, nvrtc_there;
static char driver_why[128], nvrtc_why[128];

static void find_driver(void)
{
    driver_there = load(driver_files, driver_symbols, sizeof driver_symbols / sizeof *driver_symbols, &driver,
                        driver_why, sizeof driver_why);
    if (driver_there && driver.init(0) != 0) {
        snprintf(driver_why, sizeof driver_why, "it finds no GPU it can use");
        driver_there = false;
    }
}

static void find_nvrtc(void)
{
    const char *named = getenv("LINFUSE_NVRTC");
    const char *const one[] = {named, NULL};
    nvrtc_there = load(named && *named ? one : nvrtc_files, nvrtc_symbols, sizeof nvrtc_symbols / sizeof *nvrtc_symbols,
                       &nvrtc, nvrtc_why, sizeof nvrtc_why);
}

lf_status lf_cuda_driver_find(const lf_cuda_driver **out, lf_diag *diag)
{
    pthread_once(&driver_once, find_driver);
    *out = &driver;
    return driver_there ? LF_OK
                        : lf_fail(diag, LF_ERR_DEVICE,
                                  "device cuda: the NVIDIA driver (libcuda.so.1) cannot be used: %s", driver_why);
}

lf_status lf_nvrtc_find(const lf_nvrtc **out, lf_diag *diag)
{
    pthread_once(&nvrtc_once, find_nvrtc);
    *out = &nvrtc;
    return nvrtc_there ? LF_OK
                       : lf_fail(diag, LF_ERR_DEVICE,
                                 "device cuda: the run-time compiler (libnvrtc.so, or the file LINFUSE_NVRTC names) "
                                 "cannot be used: %s",
                                 nvrtc_why);
}
