/* SPDX-License-Identifier: Apache-2.0 */
/* Machine code on a device: one text is compiled and loaded once, for all programs whose kernel it is, as those of a
 * model's layers are. Who comes while it is under way waits; other texts are compiled meanwhile. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/compile.h"
#include "cuda/device.h"

static lf_cuda_module *find(const lf_cuda_device *d, const char *arch, const char *code)
{
    lf_cuda_module *m = d->modules;
    while (m && (strcmp(m->arch, arch) != 0 || strcmp(m->code, code) != 0))
        m = m->next;
    return m;
}

static void drop(lf_cuda_device *d, lf_cuda_module *m)
{
    lf_cuda_module **at = &d->modules;
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    if (m->handle)
        d->driver->module_unload(m->handle);
    free(m->code);
    free(m);
}

static lf_status load(const lf_cuda_device *d, const char *text, lf_cuda_module *m, lf_diag *diag)
{
    char *cubin;
    size_t size;
    lf_status status = lf_cuda_compile(text, m->arch, &cubin, &size, NULL, diag);
    if (status == LF_OK)
        status = lf_cuda_status(d, d->driver->module_load(&m->handle, cubin), "loading the kernel", diag);
    free(cubin);
    if (status == LF_OK)
        status =
            lf_cuda_status(d, d->driver->function_get(&m->function, m->handle, "program"), "finding the kernel", diag);
    return status;
}

/* For the first who wants it; code: taken. Inside the lock, which others have while it compiles. */
static lf_status make(lf_cuda_device *d, const char *arch, const char *text, char *code, lf_cuda_module **out,
                      lf_diag *diag)
{
    lf_cuda_module *m = calloc(1, sizeof *m);
    if (!m) {
        free(code);
        return lf_fail_nomem(diag, "the kernel");
    }
    *m = (lf_cuda_module){.next = d->modules, .code = code, .users = 1};
    snprintf(m->arch, sizeof m->arch, "%s", arch);
    d->modules = m;
    pthread_mutex_unlock(&d->loading);
    lf_status status = load(d, text, m, diag);
    pthread_mutex_lock(&d->loading);
    m->ready = status == LF_OK;
    if (m->ready)
        *out = m;
    else
        drop(d, m); /* who waits tries it again, and learns why */
    pthread_cond_broadcast(&d->loaded);
    return status;
}

lf_status lf_cuda_module_take(lf_cuda_device *d, const char *arch, const char *text, lf_cuda_module **out,
                              lf_diag *diag)
{
    lf_status status = LF_OK;
    char *code = lf_cuda_code(text);
    lf_cuda_module *m;
    *out = NULL;
    if (!code)
        return lf_fail_nomem(diag, "the kernel");
    pthread_mutex_lock(&d->loading);
    while ((m = find(d, arch, code)) && !m->ready)
        pthread_cond_wait(&d->loaded, &d->loading);
    if (m) {
        m->users++;
        free(code);
        *out = m;
    } else {
        status = make(d, arch, text, code, out, diag);
    }
    pthread_mutex_unlock(&d->loading);
    return status;
}

void lf_cuda_module_leave(lf_cuda_device *d, lf_cuda_module *m)
{
    pthread_mutex_lock(&d->loading);
    if (--m->users == 0)
        drop(d, m);
    pthread_mutex_unlock(&d->loading);
}
