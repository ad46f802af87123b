/* SPDX-License-Identifier: Apache-2.0 */
#include "base/openmp.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

bool lf_openmp_find(lf_openmp *out)
{
    static const struct {
        const char *name;
        size_t offset;
    } symbols[] = {{"GOMP_parallel", offsetof(lf_openmp, parallel)},
                   {"omp_get_thread_num", offsetof(lf_openmp, thread_num)},
                   {"omp_get_max_threads", offsetof(lf_openmp, max_threads)},
                   {"omp_in_parallel", offsetof(lf_openmp, in_parallel)}};
    void *all = dlopen(NULL, RTLD_NOW);
    if (!all)
        return false;
    bool found = true;
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *function = dlsym(all, symbols[i].name);
        found = found && function;
        memcpy((char *)out + symbols[i].offset, &function, sizeof function);
    }
    dlclose(all);
    return found;
}
