/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/cost.h"

static const lf_device devices[] = {
#define LF_DEVICE(id, text, ...) {.name = #id, .title = text, __VA_ARGS__},
#include "plan/devices.def"
#undef LF_DEVICE
};

const lf_device *lf_device_at(size_t index)
{
    return index < sizeof devices / sizeof devices[0] ? &devices[index] : NULL;
}
