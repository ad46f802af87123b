/* SPDX-License-Identifier: Apache-2.0 */
/* Two steps that can be done in one go. Whether they are is the executor's choice: it goes by how the operands lie. */
#include "plan/passes.h"

static bool is_sum(const lf_step *s)
{
    return s->kind == LF_STEP_OP && s->op == LF_OP_add && s->attr[0] == 1.0; /* x + alpha y */
}

/* Is it loaded, and the same for all rows? */
static bool is_row(const lf_step *s)
{
    if (s->kind != LF_STEP_LOAD)
        return false;
    for (int i = 0; i < s->from.row_axes; i++)
        if (s->from.stride[i].coef != 0 && !lf_extent_is(s->from.extent[i], 1))
            return false;
    return true;
}

/* A norm's weight and bias are a mul and then an add; the first thing that most products want is a bias. */
static void joins_in_phase(lf_group *g, lf_phase *p)
{
    for (int32_t i = 0; i < p->steps; i++) {
        lf_step *s = &p->step[i];
        s->mul = -1;
        if (!is_sum(s))
            continue;
        const lf_step *first = &p->step[s->arg[0]], *second = &p->step[s->arg[1]];
        if (first->kind == LF_STEP_OP && first->op == LF_OP_mul && lf_all_uses(&first->uses) == 1)
            s->mul = s->arg[0];
        const bool swapped = second->kind == LF_STEP_PRODUCT;
        const lf_step *of = swapped ? second : first, *row = swapped ? first : second;
        if (of->kind != LF_STEP_PRODUCT || lf_all_uses(&of->uses) != 1 || !is_row(row) ||
            g->product[of->product].narrow)
            continue;
        g->product[of->product].add = i;
        g->product[of->product].row = s->arg[!swapped];
    }
}

void lf_group_joins(lf_group *g)
{
    for (int32_t i = 0; i < g->products; i++)
        g->product[i].add = g->product[i].row = -1;
    for (int32_t i = 0; i < g->phases; i++)
        joins_in_phase(g, &g->phase[i]);
}
