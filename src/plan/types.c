/* SPDX-License-Identifier: Apache-2.0 */
/* What elements are stored as: the types of a lowered group's accesses and kept values. Between loads and stores
 * numbers are f32. */
#include "plan/types.h"

#include "plan/passes.h"

/* Is n a parameter's numbers in another order, or cast? */
static bool is_param_moved(const lf_graph *g, lf_node n)
{
    while (lf_kind_of(g, n) == LF_VIEW || lf_kind_of(g, n) == LF_MOVE || lf_at(g, n)->op == LF_OP_to)
        n = lf_at(g, n)->arg[0];
    return lf_at(g, n)->op == LF_OP_param;
}

lf_dtype lf_stored_dtype(const lf_plan *plan, lf_node n)
{
    const bool computed = plan->storage[n] == LF_PREPARED && !is_param_moved(plan->graph, n);
    return computed ? LF_F32 : lf_at(plan->graph, n)->dtype;
}

lf_dtype lf_access_dtype(const lf_plan *plan, const lf_group *g, const lf_access *a)
{
    switch (a->place) {
    case LF_VALUE: return lf_stored_dtype(plan, a->index);
    case LF_KEPT: return g->kept[a->index].dtype;
    case LF_OUTPUT: return lf_at(plan->graph, plan->graph->output[a->index])->dtype;
    case LF_STAT:
    case LF_FACTOR: break;
    }
    return LF_F32;
}

/* What a group keeps stays inside it, and so is f32. (Rounded, it would be off from the statistics that were taken of
 * it before: where few rows are normalized, further than rounding after every op is.) */
void lf_group_types(const lf_plan *plan, lf_group *g)
{
    for (int32_t i = 0; i < g->kepts; i++)
        g->kept[i].dtype = LF_F32;
    for (int32_t p = 0; p < g->phases; p++) {
        lf_phase *phase = &g->phase[p];
        for (int32_t i = 0; i < phase->steps; i++)
            if (phase->step[i].kind == LF_STEP_LOAD)
                phase->step[i].from.dtype = lf_access_dtype(plan, g, &phase->step[i].from);
        for (int32_t i = 0; i < phase->stores; i++)
            phase->store[i].to.dtype = lf_access_dtype(plan, g, &phase->store[i].to);
    }
    for (int32_t i = 0; i < g->stats; i++)
        if (lf_takes_row(&g->stat[i]))
            g->stat[i].from.dtype = lf_access_dtype(plan, g, &g->stat[i].from);
    if (g->products > 0)
        g->x.dtype = lf_access_dtype(plan, g, &g->x);
}
