/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/gpu.h"

#include <string.h>

const lf_precision_info lf_precision_table[LF_PRECISIONS] = {
#define LF_PRECISION(id_, name_, words_, ...)                                                                          \
    [LF_PRECISION_##id_] = {.id = #id_, .name = name_, .words = words_, __VA_ARGS__},
#include "plan/precisions.def"
#undef LF_PRECISION
};

const lf_tile lf_tile_table[LF_TILE_SHAPES] = {
#define LF_TILE(id_, name_, text_, ...) [LF_TILE_##id_] = {.name = name_, .text = text_, __VA_ARGS__},
#include "plan/shapes.def"
#undef LF_TILE
};

bool lf_precision_find(const char *name, lf_precision *out)
{
    for (int p = 0; p < LF_PRECISIONS; p++)
        if (strcmp(lf_precision_table[p].name, name) == 0) {
            *out = (lf_precision)p;
            return true;
        }
    return false;
}

bool lf_tile_find(const char *name, lf_tile_shape *out)
{
    for (int s = 0; s < LF_TILE_SHAPES; s++)
        if (strcmp(lf_tile_table[s].name, name) == 0) {
            *out = (lf_tile_shape)s;
            return true;
        }
    return false;
}

enum { NARROW = 128 }; /* columns of mma's tiles where wider ones do not fit: their sums, or in shared memory */

lf_tile lf_tile_on(lf_tile_shape shape, lf_gpu_unit unit, lf_precision precision, int shared_bytes)
{
    lf_tile tile = lf_tile_table[shape];
    if (unit == LF_UNIT_MMA) {
        tile.cluster = 1;
        if (lf_precision_table[precision].split || shared_bytes <= LF_MMA_WIDE)
            tile.columns = NARROW;
    }
    return tile;
}

bool lf_is_short(lf_gpu_unit unit, lf_precision precision, double k)
{
    return unit == LF_UNIT_WGMMA && lf_precision_table[precision].split &&
           k <= LF_SHORT_LINES * lf_line_elements(precision);
}

bool lf_tile_serves(lf_tile_shape shape, lf_gpu_unit unit, lf_precision precision, double k)
{
    const lf_tile *tile = &lf_tile_table[shape];
    const bool split = lf_precision_table[precision].split;
    if (unit != LF_UNIT_WGMMA) /* one shape is left where all have as many columns */
        return tile->mma && !(split && tile->columns == NARROW);
    return !tile->turns || !split || lf_is_short(unit, precision, k);
}
