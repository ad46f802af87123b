/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/cost.h"

#include <string.h>

static const lf_device devices[] = {
#define LF_DEVICE(id, text, ...) {.name = #id, .title = text, __VA_ARGS__},
#include "plan/devices.def"
#undef LF_DEVICE
};

const lf_device *lf_device_at(size_t index)
{
    return index < sizeof devices / sizeof devices[0] ? &devices[index] : NULL;
}

const lf_device *lf_device_named(const char *name)
{
    for (size_t i = 0; lf_device_at(i); i++)
        if (strcmp(lf_device_at(i)->name, name) == 0)
            return lf_device_at(i);
    return NULL;
}
