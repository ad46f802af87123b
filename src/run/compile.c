/* SPDX-License-Identifier: Apache-2.0 */
/* The pass list. What each pass needs and leaves stands in its header; between any two the graph is verified. */
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "run/handles.h"

enum { DEFAULT_EXTENT = 1024 }; /* what a named extent counts as where nobody says: a common batch */

static lf_status take_hints(lf_program *p, const char *option, const lf_dim_hints *given, int64_t *out)
{
    for (int h = 0; h < given->count; h++) {
        int symbol = 0;
        while (symbol < p->written.symbols && strcmp(p->written.symbol[symbol], given->hint[h].name) != 0)
            symbol++;
        if (symbol == p->written.symbols)
            return lf_fail(&p->diag, LF_ERR_ARG, "%s%s: the model has no extent of that name", option,
                           given->hint[h].name);
        out[symbol] = given->hint[h].value;
    }
    return LF_OK;
}

static lf_status check_options(lf_program *p, const lf_options *o)
{
    lf_status status = lf_options_open(o, p->context, &p->on, &p->task.precision, &p->diag);
    if (status != LF_OK)
        return status;
    memcpy(p->device, o->device, sizeof p->device);
    snprintf(p->no_device, sizeof p->no_device, "device %s can be explained but not run here; compile for cpu",
             p->device);
    for (int i = 0; i < p->written.symbols; i++)
        p->hint[i] = DEFAULT_EXTENT;
    status = take_hints(p, "dim.", &o->weigh, p->hint);
    memcpy(p->first, p->hint, sizeof p->first);
    return status == LF_OK ? take_hints(p, "first.", &o->first, p->first) : status;
}

/* Positions are only ever read by an op that takes them, at the call. */
static lf_status check_dtypes(lf_program *p)
{
    const lf_graph *g = &p->written;
    for (int32_t i = 0; i < g->params; i++)
        if (!lf_dtype_is_float(lf_at(g, g->param[i])->dtype))
            return lf_fail(&p->diag, LF_ERR_MODEL, "parameter %s is %s, which counts positions: declare it as an input",
                           lf_at(g, g->param[i])->name, lf_dtype_name(lf_at(g, g->param[i])->dtype));
    for (int32_t i = 0; i < g->outputs; i++)
        if (!lf_dtype_is_float(lf_at(g, g->output[i])->dtype))
            return lf_fail(&p->diag, LF_ERR_MODEL,
                           "%s is %s, which counts positions: ops may take it, but it cannot be returned",
                           lf_at(g, g->output[i])->name, lf_dtype_name(lf_at(g, g->output[i])->dtype));
    return LF_OK;
}

/* Does the name stand for anything but the first extent of values that carry rows? Then rows cannot be run apart under
 * it. */
static bool only_counts_rows(const lf_graph *g, int symbol, const bool *has_rows)
{
    for (lf_node n = 0; n < g->count; n++)
        for (int axis = 0; axis < lf_at(g, n)->shape.rank; axis++)
            if (lf_at(g, n)->shape.dim[axis].pow[symbol] > (axis == 0 && has_rows[n] ? 1 : 0))
                return false;
    return true;
}

static lf_status find_batch(lf_program *p)
{
    const lf_graph *g = &p->written;
    bool *has_rows = lf_arena_array(&p->arena, (size_t)g->count + 1, sizeof *has_rows);
    if (!has_rows)
        return lf_fail_nomem(&p->diag, "the program");
    p->task.batch = (lf_batch){.independent = lf_graph_rows(g, has_rows, NULL), .symbol = -1, .rows = lf_extent_of(1)};
    if (!p->task.batch.independent)
        return LF_OK;
    p->task.batch.rows = lf_at(g, g->input[0])->shape.dim[0];
    p->task.batch.input_rows = lf_arena_array(&p->arena, (size_t)g->inputs, sizeof(bool));
    if (!p->task.batch.input_rows)
        return lf_fail_nomem(&p->diag, "the program");
    for (int32_t i = 0; i < g->inputs; i++)
        p->task.batch.input_rows[i] = has_rows[g->input[i]];
    for (int s = 0; s < g->symbols; s++)
        if (p->task.batch.rows.pow[s] == 1 && p->task.batch.rows.coef == 1 && only_counts_rows(g, s, has_rows))
            p->task.batch.symbol = s;
    return LF_OK;
}

/* Losses are made of other ops, which are rewritten. */
static lf_status rewrite_expanded(lf_program *p, lf_variant *v, const lf_rewrite_options *rewrite)
{
    lf_graph expanded;
    lf_arena arena;
    lf_arena_init(&arena);
    lf_status status = lf_graph_init(&expanded, &arena, &p->diag);
    if (status == LF_OK)
        status = lf_graph_expand(&p->written, &expanded, v->home);
    lf_node *home = status == LF_OK ? lf_arena_array(&arena, (size_t)expanded.count + 1, sizeof *home) : NULL;
    if (status == LF_OK && !home)
        status = lf_fail_nomem(&p->diag, "the program");
    if (status == LF_OK)
        status = lf_rewrite(&expanded, rewrite, &v->graph, home, &v->notes);
    for (lf_node n = 0; n < p->written.count && status == LF_OK; n++)
        v->home[n] = home[v->home[n]];
    lf_arena_free(&arena);
    return status;
}

static lf_status build_variant(lf_program *p, lf_variant *v, const lf_rewrite_options *rewrite, bool fuse)
{
    lf_status status = lf_graph_init(&v->graph, &p->arena, &p->diag);
    v->home = lf_arena_array(&p->arena, (size_t)p->written.count + 1, sizeof *v->home);
    if (status == LF_OK && !v->home)
        status = lf_fail_nomem(&p->diag, "the program");
    if (status == LF_OK && rewrite)
        status = rewrite_expanded(p, v, rewrite);
    if (status == LF_OK && !rewrite)
        status = lf_graph_expand(&p->written, &v->graph, v->home);
    if (status == LF_OK)
        status = lf_graph_verify(&v->graph);
    lf_plan_options options = {0};
    if (p->on.backend->plans)
        options = p->on.backend->plans(p->on.device);
    options.fuse = fuse;
    return status == LF_OK ? lf_plan_build(&v->graph, options, &p->arena, &v->plan) : status;
}

static bool watches(const lf_plan *plan)
{
    for (int32_t g = 0; g < plan->groups; g++)
        for (int32_t i = 0; i < plan->group[g].phases; i++)
            if (plan->group[g].phase[i].watches > 0)
                return true;
    return false;
}

static bool all_exact(const lf_notes *notes)
{
    for (int32_t i = 0; i < notes->done_count; i++)
        if (notes->done[i].class != LF_EXACT)
            return false;
    return true;
}

lf_status lf_compile(lf_program *p, const lf_options *o)
{
    lf_rewrite_options rewrite = {.rules = o->rules, .assume_finite = o->assume_finite, .dims = p->hint};
    lf_status status = check_options(p, o);
    if (status == LF_OK)
        status = check_dtypes(p);
    if (status == LF_OK)
        status = find_batch(p);
    if (status == LF_OK)
        status = build_variant(p, &p->fused, o->fuse ? &rewrite : NULL, o->fuse);
    if (status != LF_OK)
        return status;
    if (o->fuse && !all_exact(&p->fused.notes)) {
        rewrite.as_written = true;
        status = build_variant(p, &p->exact, &rewrite, true);
    }
    if (status != LF_OK)
        return status;
    p->task.pool = p->context->pool;
    p->task.device = p->device;
    p->task.fused = p->fused.plan;
    p->task.exact = p->exact.plan;
    p->task.guarded = p->exact.plan && watches(p->fused.plan);
    p->task.tune = o->tune;
    p->task.first = o->lazy ? NULL : p->first;
    return p->on.backend->compile(p->on.device, &p->task, &p->compiled, &p->diag);
}
