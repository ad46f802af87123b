/* SPDX-License-Identifier: Apache-2.0 */
/* What a product multiplies: how it lies, and who else wants it. Kernels and what they are said to cost go by this. */
#include "base/mem.h"
#include "plan/touch.h"

static lf_storage storage_of(const lf_plan *plan, const lf_access *a)
{
    return a->place == LF_VALUE ? plan->storage[a->index] : LF_NOT_STORED;
}

static bool is_dense(const lf_access *a)
{
    lf_extent next = lf_extent_of(1); /* the stride that an axis has if nothing lies between its steps */
    if (a->first.coef != 0)
        return false;
    for (int i = a->rank - 1; i >= 0; i--)
        if (!lf_extent_is(a->extent[i], 1) &&
            (!lf_extent_same(a->stride[i], next) || !lf_extent_mul(next, a->extent[i], &next)))
            return false;
    return true;
}

bool lf_is_dense_input(const lf_plan *plan, const lf_access *a)
{
    return storage_of(plan, a) == LF_IN_INPUT && is_dense(a);
}

bool lf_reads_as_it_lies(const lf_plan *plan, const lf_group *g, lf_gpu_unit unit, lf_precision precision)
{
    const lf_precision_info *info = &lf_precision_table[precision];
    const lf_storage storage = storage_of(plan, &g->x);
    return unit == LF_UNIT_WGMMA && info->as_it_lies && g->x.dtype == info->type && lf_made_as_one(g) > 0 &&
           g->product->k.coef % lf_line_elements(precision) == 0 &&
           (storage == LF_IN_INPUT || storage == LF_IN_BUFFER) && is_dense(&g->x);
}

bool lf_is_tiled_product(const lf_product *p)
{
    return !p->narrow && p->weight_fixed && lf_extent_known(p->n) && lf_extent_known(p->k);
}

int32_t lf_tiled_products(const lf_plan *plan)
{
    int32_t count = 0;
    for (int32_t i = 0; i < plan->products; i++)
        count += lf_is_tiled_product(plan->product[i]);
    for (int32_t i = 0; i < plan->groups; i++)
        count -= lf_made_as_one(&plan->group[i]) == 2;
    return count;
}

int32_t lf_made_as_one(const lf_group *g)
{
    const lf_product *p = g->product;
    for (int32_t i = 0; i < g->products; i++)
        if (!lf_is_tiled_product(&p[i]))
            return 0;
    const bool two = g->products == 2 && p[0].phase == p[1].phase && lf_extent_same(p[0].n, p[1].n);
    return two || g->products == 1 ? g->products : 0;
}

int64_t lf_columns_as_one(const lf_group *g)
{
    const int64_t columns = g->product[0].n.coef;
    return lf_made_as_one(g) == 2 ? 2 * lf_round_up(columns, LF_BY_TURNS) : columns;
}

/* PyTorch has x and the weight of the type that the product has. */
static bool all_are(const lf_plan *plan, lf_dtype type)
{
    for (int32_t i = 0; i < plan->products; i++) {
        const lf_product *p = plan->product[i];
        if (lf_is_tiled_product(p) &&
            (lf_at(plan->graph, p->node)->dtype != type || lf_stored_dtype(plan, p->weight) != type))
            return false;
    }
    return lf_tiled_products(plan) > 0;
}

lf_precision lf_plan_precision(const lf_plan *plan, lf_gpu_unit unit, lf_precision asked)
{
    for (lf_precision p = 0; p < LF_PRECISIONS && unit != LF_UNIT_PLAIN; p++)
        if (lf_precision_table[p].type != LF_F32 && all_are(plan, lf_precision_table[p].type))
            return p;
    return asked;
}

bool lf_wants_again(const lf_group *g)
{
    int32_t first = 0;
    lf_touch at;
    while (first < g->phases && !lf_product_in(g, first))
        first++;
    for (lf_touches later = lf_touches_in(g, first, g->phases); lf_touch_next(&later, &at);)
        if (at.by == LF_TOUCH_LOAD && lf_touches_this(&at, g->x.place, g->x.index))
            return true;
    return false;
}

const lf_product *lf_product_in(const lf_group *g, int32_t phase)
{
    for (int32_t i = 0; i < g->products; i++)
        if (g->product[i].phase == phase)
            return &g->product[i];
    return NULL;
}
