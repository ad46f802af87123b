/* SPDX-License-Identifier: Apache-2.0 */
/* Which parameters preparing looks at. A law that a rewrite has applied to weights holds for finite numbers, and the
 * values it was applied to are told by the graph: whatever is computed from parameters beforehand. What a rule has
 * dropped is told by the rule. All other parameters are read by kernels as the model says, Inf and NaN included. */
#include <stdlib.h>

#include "prepare/prepare.h"

/* Marks the prepared tensors that are computed, and all they are made of. */
static void mark_computed(const lf_plan *plan, bool *needed)
{
    for (int32_t i = 0; i < plan->prepareds; i++)
        if (lf_at(plan->graph, plan->prepared[i])->op != LF_OP_param)
            needed[plan->prepared[i]] = true;
    lf_graph_needed(plan->graph, needed);
}

/* Narrow products' weights and biases, which are read in double precision. */
static void mark_narrow(const lf_plan *plan, bool *needed)
{
    for (int32_t i = 0; i < plan->products; i++) {
        const lf_product *product = plan->product[i];
        if (!product->narrow)
            continue;
        needed[product->weight] = true;
        if (product->bias != LF_NONE)
            needed[product->bias] = true;
    }
}

static void mark_outputs(const lf_plan *plan, bool *needed)
{
    for (int32_t i = 0; i < plan->graph->outputs; i++)
        needed[plan->graph->output[i]] = true;
    lf_graph_needed(plan->graph, needed);
}

typedef void mark_fn(const lf_plan *plan, bool *needed);

/* One per parameter, from the arena: those that mark marks; NULL: no memory. */
static bool *find_params(const lf_plan *plan, mark_fn *mark, lf_arena *arena)
{
    const lf_graph *g = plan->graph;
    bool *needed = lf_arena_array(arena, (size_t)g->count + 1, sizeof *needed),
         *found = lf_arena_array(arena, (size_t)g->params + 1, sizeof *found);
    if (!needed || !found)
        return NULL;
    mark(plan, needed);
    for (int32_t i = 0; i < g->params; i++)
        found[i] = needed[g->param[i]];
    return found;
}

static lf_status find_all(const lf_plan *fused, const lf_plan *as_written, const bool *trusted, lf_prepare_want *want,
                          lf_arena *arena, lf_diag *diag)
{
    const lf_plan *other = as_written ? as_written : fused;
    const bool *computed = find_params(fused, mark_computed, arena), *narrow = find_params(fused, mark_narrow, arena),
               *left = find_params(fused, mark_outputs, arena),
               *other_computed = find_params(other, mark_computed, arena),
               *other_narrow = find_params(other, mark_narrow, arena), *meant = find_params(other, mark_outputs, arena);
    if (!computed || !narrow || !left || !other_computed || !other_narrow || !meant)
        return lf_fail_nomem(diag, "preparing weights");
    for (int32_t i = 0; i < fused->graph->params; i++) {
        want[i].check = as_written && (computed[i] || trusted[i] || (meant[i] && !left[i]));
        want[i].read = want[i].check || computed[i] || narrow[i] || other_computed[i] || other_narrow[i];
    }
    return LF_OK;
}

lf_status lf_prepare_needs(const lf_plan *fused, const lf_plan *as_written, const bool *trusted, lf_prepare_want *want,
                           lf_diag *diag)
{
    lf_arena arena;
    lf_arena_init(&arena);
    lf_status status = find_all(fused, as_written, trusted, want, &arena, diag);
    lf_arena_free(&arena);
    return status;
}
