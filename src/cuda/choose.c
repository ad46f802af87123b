/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/choose.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/emit_parts.h"
#include "plan/tiles.h"

/* mma has tiles of 256 columns and of 128, and in fp32 no room for the former: one shape then. */
static bool has_shape(lf_cuda_target target, lf_cuda_shape shape)
{
    if (target.unit == LF_CUDA_WGMMA)
        return true;
    return shape == LF_CUDA_PAIRS ||
           (shape == LF_CUDA_ALONE && target.unit == LF_CUDA_MMA && target.mode != LF_CUDA_FP32);
}

bool lf_cuda_serves(const lf_plan *plan, lf_cuda_target target, lf_cuda_shape shape, const int64_t *dims)
{
    const lf_cuda_shape_info *info = &lf_cuda_shape_table[shape];
    bool fits = has_shape(target, shape);
    for (int32_t g = 0; g < plan->groups && fits; g++) {
        const lf_product *p = lf_tensor_product(target, &plan->group[g]);
        if (p)
            fits = (!info->few || lf_extent_at(plan->group[g].rows, dims) <= info->rows) &&
                   (!info->turns || lf_takes_turns(target, p));
    }
    return fits;
}

static lf_tile tile_of(lf_cuda_target target)
{
    const lf_cuda_shape_info *s = &lf_cuda_shape_table[target.shape];
    lf_tile tile = {.rows = s->rows,
                    .columns = s->columns,
                    .cluster = s->cluster,
                    .raster = s->raster,
                    .few = s->few,
                    .turns = s->turns};
    if (target.unit == LF_CUDA_MMA) {
        tile.cluster = 1;
        tile.columns = target.mode == LF_CUDA_FP32 ? LF_CUDA_TILE : s->columns;
    }
    return tile;
}

/* What a phase behind the product takes to fetch what it could not go on with in registers: written and read again.
 * Whether it can depends on the shape. */
static double kept_us(const lf_plan *plan, const lf_group *group, lf_cuda_target target, const lf_device *d,
                      const int64_t *dims)
{
    const lf_product *product = lf_tensor_product(target, group);
    const lf_emitter e = {.plan = plan, .graph = plan->graph, .target = target, .g = group, .tensor = product};
    const lf_phase *phase = &group->phase[product->phase];
    double bytes = 0;
    if (lf_find_held(&e).phase >= 0)
        return 0;
    for (int32_t i = 0; i < phase->stores; i++)
        if (phase->store[i].to.place == LF_KEPT)
            bytes += 4.0 * (double)lf_extent_at(group->rows, dims) * (double)product->n.coef;
    return 2e6 * bytes / (bytes > d->cache_bytes ? d->bytes : d->cache_rate);
}

static double expected_us(const lf_plan *plan, lf_cuda_target target, const lf_device *d, const int64_t *dims)
{
    const lf_tile tile = tile_of(target);
    double us = 0;
    for (int32_t g = 0; g < plan->groups; g++) {
        const lf_group *group = &plan->group[g];
        const lf_product *p = lf_tensor_product(target, group);
        if (!p)
            continue;
        const lf_tiled product = {.m = (double)lf_extent_at(group->rows, dims),
                                  .n = (double)p->n.coef,
                                  .k = (double)p->k.coef,
                                  .tail_us = lf_tile_tail_us(group, p->phase, d->folded, d)};
        us += lf_tile_us(&tile, &product, d) + kept_us(plan, group, target, d, dims);
    }
    return us;
}

lf_cuda_choice lf_cuda_choose(const lf_plan *plan, lf_cuda_target target, const lf_device *device, const int64_t *dims)
{
    lf_cuda_choice choice = {.shape = LF_CUDA_PAIRS, .how = LF_CUDA_BY_COST};
    lf_device d = *device;
    if (!lf_cuda_on_tensor_cores(plan, target))
        return choice;
    lf_device_use(&d, (int)target.mode);
    for (int s = 0; s < LF_CUDA_SHAPES; s++)
        if (lf_cuda_serves(plan, target, (lf_cuda_shape)s, dims)) {
            target.shape = (lf_cuda_shape)s;
            choice.expected[s] = expected_us(plan, target, &d, dims);
            choice.columns[s] = tile_of(target).columns;
            if (choice.expected[s] < choice.expected[choice.shape])
                choice.shape = (lf_cuda_shape)s;
        }
    return choice;
}

bool lf_cuda_shape_named(const char *name, lf_cuda_shape *out)
{
    for (int s = 0; s < LF_CUDA_SHAPES; s++)
        if (strcmp(lf_cuda_shape_table[s].name, name) == 0) {
            *out = (lf_cuda_shape)s;
            return true;
        }
    return false;
}

lf_status lf_cuda_shape_told(lf_cuda_shape *out, lf_diag *diag)
{
    const char *name = getenv("LINFUSE_CUDA_SHAPE");
    *out = LF_CUDA_SHAPES;
    if (!name || !*name || lf_cuda_shape_named(name, out))
        return LF_OK;
    return lf_fail(
        diag, LF_ERR_ARG,
        "LINFUSE_CUDA_SHAPE: '%.64s' is no shape of tiles (pairs, single, alone, halves, turns, few16, few64)", name);
}
