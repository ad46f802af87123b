/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/passes.h"

static void uses_in_phase(lf_group *g, int32_t index)
{
    lf_phase *p = &g->phase[index];
    for (int32_t i = 0; i < p->steps; i++)
        p->step[i].uses = (lf_uses){0};
    for (int32_t i = 0; i < p->steps; i++)
        for (int k = 0; k < 3 && p->step[i].kind == LF_STEP_OP; k++)
            if (p->step[i].arg[k] >= 0)
                p->step[p->step[i].arg[k]].uses.args++;
    for (int32_t i = 0; i < p->stores; i++)
        p->step[p->store[i].step].uses.stores++;
    for (int32_t i = 0; i < p->watches; i++)
        p->step[p->watch[i]].uses.watches++;
    for (int32_t i = 0; i < g->stats; i++)
        if (g->stat[i].phase == index && g->stat[i].step >= 0)
            p->step[g->stat[i].step].uses.stats++;
}

void lf_group_uses(lf_group *g)
{
    for (int32_t i = 0; i < g->phases; i++)
        uses_in_phase(g, i);
}
