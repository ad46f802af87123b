/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/choose.h"

#include <stdio.h>
#include <stdlib.h>

#include "cuda/emit_parts.h"
#include "plan/tiles.h"

bool lf_cuda_serves(const lf_plan *plan, lf_cuda_target target, lf_tile_shape shape, const int64_t *dims)
{
    const lf_tile *tile = &lf_tile_table[shape];
    bool fits = lf_tile_serves(shape, target.unit, target.precision, 0);
    for (int32_t g = 0; g < plan->groups && fits; g++) {
        const lf_product *p = lf_tensor_product(target, &plan->group[g]);
        if (p)
            fits = (!tile->few || lf_extent_at(plan->group[g].rows, dims) <= tile->rows) &&
                   lf_tile_serves(shape, target.unit, target.precision, (double)p->k.coef);
    }
    return fits;
}

/* What a phase behind the product takes to fetch what it could not go on with in registers: written and read again.
 * Whether it can depends on the shape. */
static double kept_us(const lf_group *group, lf_cuda_target target, const lf_device *d,
                      const int64_t *dims)
{
    const lf_product *product = lf_tensor_product(target, group);
    lf_touch at;
    double bytes = 0;
    if (lf_held_on(target, group).phase >= 0)
        return 0;
    for (lf_touches all = lf_touches_in(group, product->phase, product->phase + 1); lf_touch_next(&all, &at);)
        if (lf_is_write(&at) && at.place == LF_KEPT)
            bytes += 4.0 * (double)lf_extent_at(group->rows, dims) * (double)product->n.coef;
    return 2e6 * bytes / (bytes > d->cache_bytes ? d->bytes : d->cache_rate);
}

static double expected_us(const lf_plan *plan, lf_cuda_target target, const lf_device *d, const int64_t *dims)
{
    const lf_tile tile = lf_tile_on(target.shape, target.unit, target.precision, d->gpu.shared_bytes);
    double us = 0;
    for (int32_t g = 0; g < plan->groups; g++) {
        const lf_group *group = &plan->group[g];
        const lf_product *p = lf_tensor_product(target, group);
        if (!p)
            continue;
        const lf_tiled product = {.m = (double)lf_extent_at(group->rows, dims),
                                  .n = (double)lf_columns_as_one(group),
                                  .k = (double)p->k.coef,
                                  .tail_us = lf_tile_tail_us(group, p->phase, d->gpu.folded, d)};
        us += lf_tile_us(&tile, &product, d) + kept_us(group, target, d, dims);
    }
    return us;
}

lf_tile_choice lf_cuda_choose(const lf_plan *plan, lf_cuda_target target, const lf_device *device, const int64_t *dims)
{
    lf_tile_choice choice = {.shape = LF_TILE_PAIRS, .how = LF_TILE_BY_COST};
    lf_device d = *device;
    if (!lf_cuda_on_tensor_cores(plan, target))
        return choice;
    lf_device_use(&d, target.precision);
    for (int s = 0; s < LF_TILE_SHAPES; s++)
        if (lf_cuda_serves(plan, target, (lf_tile_shape)s, dims)) {
            target.shape = (lf_tile_shape)s;
            choice.expected[s] = expected_us(plan, target, &d, dims);
            choice.columns[s] = lf_tile_on(target.shape, target.unit, target.precision, d.gpu.shared_bytes).columns;
            if (choice.expected[s] < choice.expected[choice.shape])
                choice.shape = (lf_tile_shape)s;
        }
    return choice;
}

lf_status lf_cuda_shape_told(lf_tile_shape *out, lf_diag *diag)
{
    const char *name = getenv("LINFUSE_CUDA_SHAPE");
    *out = LF_TILE_SHAPES;
    if (!name || !*name || lf_tile_find(name, out))
        return LF_OK;
    char known[256] = "";
    for (size_t s = 0, used = 0; s < LF_TILE_SHAPES && used < sizeof known; s++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", s ? ", " : "", lf_tile_table[s].name);
    return lf_fail(diag, LF_ERR_ARG, "LINFUSE_CUDA_SHAPE: '%.64s' is no shape of tiles (%s)", name, known);
}
