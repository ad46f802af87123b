/* SPDX-License-Identifier: Apache-2.0 */
/* A plan as text: one line a step, in the order in which a kernel would do it. */
#include "base/dtype.h"
#include "base/str.h"
#include "plan/plan.h"

static const char *span_name(lf_span span)
{
    static const char *const names[] = {"row", "segment", "window", "column"};
    return names[span];
}

static void print_access(lf_str *s, const lf_plan *plan, const lf_access *a)
{
    const lf_graph *g = plan->graph;
    switch (a->place) {
    case LF_VALUE:
        lf_str_addf(s, "%s", lf_at(g, a->index)->name);
        break;
    case LF_KEPT:
        lf_str_addf(s, "kept %d", (int)a->index);
        break;
    case LF_STAT:
        lf_str_addf(s, "stat %d.r%d", (int)a->index, a->result);
        break;
    case LF_FACTOR:
        lf_str_addf(s, "factor of stat %d", (int)a->index);
        break;
    case LF_OUTPUT:
        lf_str_addf(s, "output %d", (int)a->index);
        break;
    }
    if (a->dtype != LF_F32)
        lf_str_addf(s, " %s", lf_dtype_name(a->dtype));
    if (a->first.coef != 0)
        lf_str_addf(s, " + %s", lf_extent_text(g, a->first));
    lf_str_add(s, "[");
    for (int i = 0; i < a->rank; i++)
        lf_str_addf(s, "%s%s*%s", i == 0 ? "" : i == a->row_axes ? " | " : ", ", lf_extent_text(g, a->extent[i]),
                    a->stride[i].coef == 0 ? "0" : lf_extent_text(g, a->stride[i]));
    lf_str_add(s, "]");
}

static void print_step(lf_str *s, const lf_plan *plan, const lf_group *g, const lf_step *step, int32_t index)
{
    lf_str_addf(s, "    %%%d = ", (int)index);
    switch (step->kind) {
    case LF_STEP_LOAD:
        lf_str_add(s, "load ");
        print_access(s, plan, &step->from);
        break;
    case LF_STEP_PRODUCT:
        lf_str_add(s, "product");
        if (g->products > 1)
            lf_str_addf(s, " %d", (int)step->product);
        break;
    case LF_STEP_NUMBER:
        lf_str_addf(s, "%.9g", step->number);
        break;
    case LF_STEP_OP:
        lf_str_addf(s, "%s(", lf_op_row(step->op)->name);
        for (int i = 0; i < 3 && step->arg[i] >= 0; i++)
            lf_str_addf(s, "%s%%%d", i ? ", " : "", (int)step->arg[i]);
        lf_str_addf(s, ")  # %s", lf_at(plan->graph, step->node)->name);
        if (step->mul >= 0)
            lf_str_addf(s, ", with %%%d", (int)step->mul);
        break;
    }
    lf_str_add(s, "\n");
}

static void print_stat(lf_str *s, const lf_plan *plan, const lf_group *g, int32_t i)
{
    static const char *const places[] = {"", ", to partials", ", from partials"};
    const lf_stat *st = &g->stat[i];
    lf_str_addf(s, "    stat %d = %s of ", (int)i, lf_monoid_row(st->monoid)->name);
    if (st->step >= 0)
        lf_str_addf(s, "%%%d", (int)st->step);
    else if (lf_takes_row(st))
        print_access(s, plan, &st->from);
    else
        lf_str_addf(s, "%d sets", (int)plan->carried[st->carried].sets);
    lf_str_addf(s, " over each %s, %s of %s%s\n", span_name(st->span), lf_extent_text(plan->graph, st->count),
                lf_extent_text(plan->graph, st->length), places[st->partials]);
}

static void print_phase(lf_str *s, const lf_plan *plan, const lf_group *g, int32_t index)
{
    const lf_phase *p = &g->phase[index];
    lf_str_addf(s, "  phase %d: %s x %s\n", (int)index, p->one_row ? "1" : lf_extent_text(plan->graph, g->rows),
                lf_extent_text(plan->graph, p->width));
    for (int32_t i = 0; i < p->steps; i++)
        print_step(s, plan, g, &p->step[i], i);
    for (int32_t i = 0; i < p->watches; i++)
        lf_str_addf(s, "    watch %%%d\n", (int)p->watch[i]);
    for (int32_t i = 0; i < p->stores; i++) {
        lf_str_addf(s, "    store %s%%%d to ", p->store[i].exps ? "exps of " : "", (int)p->store[i].step);
        print_access(s, plan, &p->store[i].to);
        lf_str_add(s, "\n");
    }
    if (index == g->held.phase)
        lf_str_addf(s, "    can go on with kept %d in registers\n", (int)g->held.kept);
    for (int32_t i = 0; i < g->stats; i++)
        if (g->stat[i].phase == index)
            print_stat(s, plan, g, i);
}

static void print_product(lf_str *s, const lf_plan *plan, const lf_group *g, const lf_product *p)
{
    lf_str_add(s, "  product ");
    if (g->products > 1)
        lf_str_addf(s, "%d ", (int)(p - g->product));
    lf_str_addf(s, "in phase %d: ", (int)p->phase);
    print_access(s, plan, &g->x);
    lf_str_addf(s, " by %s%s", lf_at(plan->graph, p->weight)->name, p->w_is_kn ? "" : " transposed");
    if (p->bias != LF_NONE)
        lf_str_addf(s, " plus %s", lf_at(plan->graph, p->bias)->name);
    if (p->add >= 0)
        lf_str_addf(s, ", %%%d with it", (int)p->add);
    lf_str_add(s, p->narrow ? ", narrow\n" : "\n");
}

lf_status lf_plan_print(const lf_plan *plan, char **out)
{
    lf_str s = {0};
    for (int32_t i = 0; i < plan->groups; i++) {
        const lf_group *g = &plan->group[i];
        lf_str_addf(&s, "group %d: %s, %s\n", (int)i, g->name, g->schedule == LF_BY_ROWS ? "by rows" : "by phase");
        if (g->why_apart)
            lf_str_addf(&s, "  apart: %s\n", g->why_apart);
        for (int32_t p = 0; p < g->products; p++)
            print_product(&s, plan, g, &g->product[p]);
        for (int32_t k = 0; k < g->kepts; k++)
            lf_str_addf(&s, "  kept %d: %s, width %s%s\n", (int)k, lf_at(plan->graph, g->kept[k].node)->name,
                        lf_extent_text(plan->graph, g->kept[k].width),
                        g->kept[k].in_output >= 0  ? ", in an output's memory"
                        : g->kept[k].in_input >= 0 ? ", an input"
                                                   : "");
        for (int32_t p = 0; p < g->phases; p++)
            print_phase(&s, plan, g, p);
    }
    *out = lf_str_take(&s);
    return *out ? LF_OK : lf_fail_nomem(plan->graph->diag, "the plan's text");
}
