/* SPDX-License-Identifier: Apache-2.0 */
/* How long a product takes in tiles of one shape or another on a GPU's tensor cores: what shapes are chosen by. */
#ifndef LF_PLAN_TILES_H
#define LF_PLAN_TILES_H

#include "plan/cost.h"

/* A product [m][n] over k, and what follows it while it is in registers. */
typedef struct lf_tiled {
    double m, n, k;
    double tail_us; /* of a sum, on one unit */
    bool follows;   /* behind another kernel of the same launch, which nothing needs to start */
} lf_tiled;

/* Microseconds, from where x is in lines on. */
double lf_tile_us(const lf_tile *tile, const lf_tiled *product, const lf_device *device);

/* The least that any of the tiles takes which the device's units have; 0 where there are none. */
double lf_tiles_us(const lf_tiled *product, const lf_device *device);

/* Microseconds of what a group does with each sum of its products in their phase, on one unit of the device.
 * folded: the share of a statistic's flops that count. */
double lf_tile_tail_us(const lf_group *group, int32_t phase, double folded, const lf_device *device);

#endif
