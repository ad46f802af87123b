/* SPDX-License-Identifier: Apache-2.0 */
/* linfuse_tools.h: what this machine has. */
#include <linfuse_tools.h>

#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/cache.h"
#include "base/str.h"
#include "cpu/cpu.h"
#include "cuda/driver.h"
#include "run/handles.h"

static lf_status system_of(lf_context *context, lf_str *out)
{
    struct utsname name;
    (void)context;
    if (uname(&name) == 0)
        lf_str_addf(out, "%s %s %s", name.sysname, name.release, name.machine);
#ifdef _CS_GNU_LIBC_VERSION
    char libc[64];
    const size_t length = confstr(_CS_GNU_LIBC_VERSION, libc, sizeof libc); /* glibc 2.36 */
    if (length > 0 && length <= sizeof libc)
        lf_str_addf(out, ", %s", libc);
#endif
    return LF_OK;
}

static lf_status cpu(lf_context *context, lf_str *out)
{
    char model[128];
    (void)context;
    lf_cpu_model(model, sizeof model);
    lf_str_add(out, model);
    return LF_OK;
}

static lf_status isa(lf_context *context, lf_str *out)
{
    const lf_kern *kern;
    lf_status status = lf_cpu_kernels(&kern, &context->diag);
    if (status == LF_OK)
        lf_str_add(out, kern->isa);
    return status;
}

static lf_status driver(lf_context *context, lf_str *out)
{
    const lf_cuda_driver *found;
    int version = 0; /* 12040 for 12.4 */
    lf_status status = lf_cuda_driver_find(&found, &context->diag);
    if (status == LF_OK && found->version(&version) != 0)
        status = lf_fail(&context->diag, LF_ERR_DEVICE, "device cuda: the NVIDIA driver does not tell its version");
    if (status == LF_OK)
        lf_str_addf(out, "%d.%d", version / 1000, version % 1000 / 10);
    return status;
}

static lf_status nvrtc(lf_context *context, lf_str *out)
{
    const lf_nvrtc *found;
    int major = 0, minor = 0;
    lf_status status = lf_nvrtc_find(&found, &context->diag);
    if (status == LF_OK && found->version(&major, &minor) != 0)
        status = lf_fail(&context->diag, LF_ERR_DEVICE, "device cuda: the run-time compiler does not tell its version");
    if (status == LF_OK)
        lf_str_addf(out, "%d.%d", major, minor);
    return status;
}

static lf_status gpu(lf_context *context, lf_str *out)
{
    lf_device found;
    lf_status status = lf_context_describe(context, "cuda", &found);
    if (status == LF_OK)
        lf_str_add(out, found.title);
    return status;
}

static lf_status measured(lf_context *context, lf_str *out)
{
    return lf_cpu_measured(lf_context_threads(context), out, &context->diag);
}

static lf_status cache(lf_context *context, lf_str *out)
{
    if (lf_cache_folder(out))
        return LF_OK;
    return lf_fail(&context->diag, LF_ERR_IO, "there is no cache: neither XDG_CACHE_HOME nor HOME names a folder");
}

static const struct fact {
    const char *name;
    lf_status (*find)(lf_context *context, lf_str *out);
} facts[] = {
    {"system", system_of}, {"cpu", cpu},     {"isa", isa}, {"measured", measured},
    {"driver", driver},    {"nvrtc", nvrtc}, {"gpu", gpu}, {"cache", cache},
};

lf_status lf_machine_fact(lf_context *context, const char *fact, char **out)
{
    lf_str text = {0};
    size_t i = 0;
    if (!context)
        return LF_ERR_ARG;
    if (!out)
        return lf_fail_null(&context->diag, "out");
    *out = NULL;
    if (!fact)
        return lf_fail_null(&context->diag, "fact");
    while (i < sizeof facts / sizeof *facts && strcmp(facts[i].name, fact) != 0)
        i++;
    if (i == sizeof facts / sizeof *facts)
        return lf_fail(&context->diag, LF_ERR_ARG,
                       "fact: there is no '%.64s'; it is one of system, cpu, isa, measured, driver, nvrtc, gpu, cache",
                       fact);
    lf_status status = facts[i].find(context, &text);
    if (status != LF_OK)
        return status;
    *out = lf_str_take(&text);
    return *out ? LF_OK : lf_fail_nomem(&context->diag, "a fact about this machine");
}
