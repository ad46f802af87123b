/* SPDX-License-Identifier: Apache-2.0 */
/* The facts of an account: what each op as written costs, which kernel computes it now, and whether it is still
 * stored. */
#include <stdlib.h>
#include <string.h>

#include "run/account.h"

/* What is known about the nodes of the rewritten graph. */
typedef struct places {
    lf_node *base;    /* the node whose elements it is, seen through views */
    int32_t *group;   /* the kernel that computes it, -1 when none does */
    bool *fixed;      /* depends on parameters and constants only */
    lf_node *last;    /* the last written value that stands for it: earlier ones were absorbed on the way */
} places;

static bool find_places(const lf_account *a, lf_arena *arena, places *p)
{
    const lf_graph *g = a->plan->graph;
    const size_t count = (size_t)g->count + 1;
    p->base = lf_arena_array(arena, count, sizeof *p->base);
    p->group = lf_arena_array(arena, count, sizeof *p->group);
    p->fixed = lf_arena_array(arena, count, sizeof *p->fixed);
    p->last = lf_arena_array(arena, count, sizeof *p->last);
    if (!p->base || !p->group || !p->fixed || !p->last)
        return false;
    lf_graph_fixed(g, p->fixed);
    for (lf_node n = 0; n < g->count; n++) {
        p->base[n] = lf_kind_of(g, n) == LF_VIEW ? p->base[lf_arg_of(g, n, 0)] : n;
        p->group[n] = -1;
        p->last[n] = LF_NONE;
    }
    for (int32_t i = a->plan->groups - 1; i >= 0; i--) /* the first that covers it computes it; later ones copy */
        for (int32_t c = 0; c < a->plan->group[i].covers; c++)
            p->group[a->plan->group[i].cover[c]] = i;
    for (lf_node n = 0; n < a->written->count; n++)
        if (a->home[n] != LF_NONE && lf_cost_launches(a->written, n))
            p->last[p->base[a->home[n]]] = n;
    return true;
}

static lf_fate fate_of(const lf_account *a, const places *p, lf_node n)
{
    if (a->home[n] == LF_NONE)
        return LF_FATE_GONE;
    lf_node base = p->base[a->home[n]];
    if (p->fixed[base])
        return LF_FATE_PREPARED;
    if (lf_at(a->plan->graph, base)->op == LF_OP_input)
        return LF_FATE_PASSED;
    lf_storage storage = a->plan->storage[base];
    bool stored = storage == LF_IN_OUTPUT || storage == LF_IN_BUFFER;
    return stored && p->last[base] == n ? LF_FATE_STORED : LF_FATE_INSIDE;
}

static lf_op_fact op_fact(const lf_account *a, const places *p, lf_node n)
{
    lf_op_fact f = {
        .node = n, .cost = lf_cost_node(a->written, n, a->dims, &a->device), .fate = fate_of(a, p, n), .group = -1};
    if (a->home[n] != LF_NONE)
        f.group = p->group[p->base[a->home[n]]];
    return f;
}

static const char *phases_of(lf_account *a, const lf_group *g)
{
    lf_str words = {0};
    lf_account_phases(&words, a, g);
    char *text = lf_str_take(&words), *kept = text ? lf_arena_strndup(&a->arena, text, strlen(text)) : NULL;
    free(text);
    return kept;
}

/* What its products share, in words. */
static const char *shared_of(lf_account *a, const lf_group *g)
{
    const lf_node x = g->x.place == LF_KEPT ? g->kept[g->x.index].node : g->x.index;
    return lf_arena_printf(&a->arena, "%d products share %s", (int)g->products, lf_at(a->plan->graph, x)->name);
}

lf_status lf_account_fill(lf_account *a, lf_diag *diag)
{
    places p;
    lf_arena_init(&a->arena);
    a->op = lf_arena_array(&a->arena, (size_t)a->written->count, sizeof *a->op);
    a->kernel = lf_arena_array(&a->arena, (size_t)a->plan->groups, sizeof *a->kernel);
    if (!a->op || !a->kernel || !find_places(a, &a->arena, &p))
        return lf_fail_nomem(diag, "the account");
    for (lf_node n = 0; n < a->written->count; n++)
        if (lf_kind_of(a->written, n) != LF_LEAF)
            a->op[a->ops++] = op_fact(a, &p, n);
    for (int32_t i = 0; i < a->plan->groups; i++) {
        a->kernel[i] = (lf_kernel_fact){.cost = lf_cost_group(a->plan, &a->plan->group[i], a->dims, &a->device),
                                        .phases = phases_of(a, &a->plan->group[i])};
        if (a->plan->group[i].products > 1)
            a->kernel[i].shared = shared_of(a, &a->plan->group[i]);
        if (!a->kernel[i].phases || (a->plan->group[i].products > 1 && !a->kernel[i].shared))
            return lf_fail_nomem(diag, "the account");
    }
    a->plain = lf_cost_plain_total(a->written, a->dims, &a->device, &a->plain_launches);
    a->plain_host_us = lf_account_host_us(lf_is_gpu(&a->device), a->plain_launches);
    a->fused = lf_cost_plan_total(a->plan, a->dims, &a->device);
    a->fused_launches = lf_cost_plan_launches(a->plan, &a->device);
    a->intermediate_bytes = (double)lf_plan_intermediate_bytes(a->plan, a->dims);
    return LF_OK;
}

void lf_account_free(lf_account *account)
{
    if (!account)
        return;
    lf_arena_free(&account->arena);
    free(account);
}
