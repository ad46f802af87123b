/* SPDX-License-Identifier: Apache-2.0 */
/* The meaning of a graph: every op in double precision, node after node. What each kind does stands in
 * eval_pointwise.c, eval_span.c and eval_product.c; this file walks, and owns all memory. */
#include "ir/eval_parts.h"

#include <stdlib.h>
#include <string.h>

typedef struct kind_eval {
    void (*eval)(const lf_site *s);       /* NULL: nothing is computed, the elements are argument 0's or a leaf's */
    int64_t (*scratch)(const lf_site *s); /* doubles; NULL: none */
} kind_eval;

static const kind_eval eval_of[] = {
    [LF_LEAF] = {NULL, NULL},
    [LF_PRODUCT] = {lf_eval_product, lf_eval_product_scratch},
    [LF_POINTWISE] = {lf_eval_pointwise, NULL},
    [LF_REDUCE] = {lf_eval_reduce, lf_eval_reduce_scratch},
    [LF_NORMALIZE] = {lf_eval_normalize, lf_eval_normalize_scratch},
    [LF_POOL] = {lf_eval_pool, NULL},
    [LF_VIEW] = {NULL, NULL},
    [LF_MOVE] = {lf_eval_move, NULL},
    [LF_LOSS] = {lf_eval_loss, NULL},
    [LF_GUARD] = {NULL, NULL},
};

/* What is known of a node during one evaluation. Views and guards hold nothing: their elements are their holder's. */
typedef struct value {
    bool needed;
    lf_node holder; /* the node whose elements these are; itself where it is no view */
    size_t uses;    /* of a holder: how many times it will still be read */
    lf_bound data;  /* of a holder, once it has been reached */
    double *owned;  /* the same, where it is ours to free */
    size_t wanted;  /* index + 1 of the first of `wanted` that asks for this node; 0: none does */
} value;

typedef struct evaluation {
    const lf_graph *g;
    const int64_t *dims;
    const lf_bound *bound;
    double *const *out;
    size_t *next_wanted; /* by index of wanted: index + 1 of the next that asks for the same node */
    value *value;        /* one per node */
    lf_diag *diag;
} evaluation;

/* A view, and a guard, is its first argument under another shape. */
static bool is_alias(lf_kind kind)
{
    return kind == LF_VIEW || kind == LF_GUARD;
}

/* How many arguments are read: a guard's witness is not. */
static int args_read(const lf_graph *g, lf_node n)
{
    return is_alias(lf_kind_of(g, n)) ? 1 : lf_op_row(lf_at(g, n)->op)->arg_count;
}

/* Marks what is needed, finds holders, and counts how often each will be read. */
static void count_uses(evaluation *e, const lf_node *wanted, size_t count)
{
    const lf_graph *g = e->g;
    for (lf_node n = 0; n < g->count; n++)
        e->value[n].holder = is_alias(lf_kind_of(g, n)) ? e->value[lf_at(g, n)->arg[0]].holder : n;
    for (size_t i = count; i-- > 0;) {
        value *v = &e->value[wanted[i]];
        v->needed = true;
        e->next_wanted[i] = v->wanted;
        v->wanted = i + 1;
        e->value[v->holder].uses++;
    }
    for (lf_node n = g->count - 1; n >= 0; n--) {
        if (!e->value[n].needed || e->bound[n].known)
            continue;
        for (int k = 0; k < args_read(g, n); k++) {
            lf_node arg = lf_at(g, n)->arg[k];
            if (arg == LF_NONE)
                continue;
            e->value[arg].needed = true;
            if (!is_alias(lf_kind_of(g, n)))
                e->value[e->value[arg].holder].uses++;
        }
    }
}

/* One reading is over; the last one frees. */
static void done_with(evaluation *e, lf_node n)
{
    value *v = &e->value[e->value[n].holder];
    if (--v->uses == 0) {
        free(v->owned);
        v->owned = NULL;
    }
}

static double *new_doubles(int64_t count)
{
    return malloc(sizeof(double) * (size_t)(count > 0 ? count : 1));
}

/* Memory for a holder's elements: the caller's own where the node is wanted, otherwise ours until its last use. */
static double *new_value(evaluation *e, lf_node n, int64_t count)
{
    value *v = &e->value[n];
    double *to = v->wanted ? e->out[v->wanted - 1] : (v->owned = new_doubles(count));
    v->data = (lf_bound){.f64 = to};
    return to;
}

static lf_status reach_leaf(evaluation *e, lf_node n, int64_t count)
{
    const lf_node_info *node = lf_at(e->g, n);
    if (node->op == LF_OP_constant || node->op == LF_OP_positions) {
        double *to = new_value(e, n, count);
        if (!to && count > 0)
            return lf_fail_nomem(e->diag, "a constant in double precision");
        for (int64_t i = 0; i < count; i++)
            to[i] = node->op == LF_OP_positions ? (double)i : node->value;
        return LF_OK;
    }
    e->value[n].data = e->bound[n];
    if (count > 0 && !lf_is_bound(&e->bound[n]))
        return lf_fail(e->diag, LF_ERR_DATA, "%s has no data", node->name);
    return LF_OK;
}

static lf_status compute(evaluation *e, lf_node n, int64_t count)
{
    const lf_node_info *node = lf_at(e->g, n);
    const kind_eval *kind = &eval_of[lf_kind_of(e->g, n)];
    lf_site site = {.g = e->g, .n = n, .dims = e->dims, .out = new_value(e, n, count)};
    for (int k = 0; k < args_read(e->g, n); k++)
        if (node->arg[k] != LF_NONE)
            site.arg[k] = e->value[e->value[node->arg[k]].holder].data;
    if (kind->scratch)
        site.scratch = new_doubles(kind->scratch(&site));
    if ((!site.out && count > 0) || (kind->scratch && !site.scratch)) {
        free(site.scratch);
        return lf_fail(e->diag, LF_ERR_NOMEM, "out of memory for %s = %s(...), %lld elements in double precision",
                       node->name, lf_op_row(node->op)->name, (long long)count);
    }
    if (count > 0)
        kind->eval(&site);
    free(site.scratch);
    for (int k = 0; k < args_read(e->g, n); k++)
        if (node->arg[k] != LF_NONE)
            done_with(e, node->arg[k]);
    return LF_OK;
}

/* Copies to every place that asked for the node and did not lend its memory to it. */
static void give_out(evaluation *e, lf_node n, int64_t count)
{
    const lf_bound *from = &e->value[e->value[n].holder].data;
    for (size_t i = e->value[n].wanted; i; i = e->next_wanted[i - 1]) {
        double *to = e->out[i - 1];
        if (to != from->f64 && count > 0) {
            if (from->f64)
                memcpy(to, from->f64, sizeof(double) * (size_t)count);
            else
                for (int64_t j = 0; j < count; j++)
                    to[j] = lf_read(from, j);
        }
        done_with(e, n);
    }
}

static lf_status reach(evaluation *e, lf_node n)
{
    lf_kind kind = lf_kind_of(e->g, n);
    int64_t count = lf_shape_count(&lf_at(e->g, n)->shape, e->dims);
    lf_status status = LF_OK;
    if (count < 0)
        return lf_fail(e->diag, LF_ERR_DATA, "%s has too many elements at these extents", lf_at(e->g, n)->name);
    if (kind == LF_LEAF || e->bound[n].known)
        status = reach_leaf(e, n, count);
    else if (!is_alias(kind))
        status = compute(e, n, count);
    if (status == LF_OK)
        give_out(e, n, count);
    return status;
}

lf_status lf_eval(const lf_graph *g, const int64_t *dims, const lf_bound *bound, const lf_node *wanted, size_t count,
                  double *const *out, lf_diag *diag)
{
    evaluation e = {.g = g, .dims = dims, .bound = bound, .out = out, .diag = diag};
    lf_status status = LF_OK;
    e.value = calloc((size_t)g->count + 1, sizeof *e.value);
    e.next_wanted = calloc(count + 1, sizeof *e.next_wanted);
    if (!e.value || !e.next_wanted) {
        status = lf_fail_nomem(diag, "evaluation in double precision");
    } else {
        count_uses(&e, wanted, count);
        for (lf_node n = 0; n < g->count && status == LF_OK; n++)
            if (e.value[n].needed)
                status = reach(&e, n);
    }
    for (lf_node n = 0; e.value && n < g->count; n++)
        free(e.value[n].owned);
    free(e.value);
    free(e.next_wanted);
    return status;
}
