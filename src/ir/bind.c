/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments as written, bound to the op's signature: positions first, then keys, then defaults. Every mistake is a
 * message that names the op and the parameter. */
#include "base/dtype.h"
#include "base/guess.h"
#include "ir/graph.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Beyond this a double no longer holds every integer. */
#define LARGEST_INTEGER 9007199254740992.0

typedef struct binding {
    lf_graph *g;
    const lf_op_info *row;
    const lf_arg *args;
    int from[LF_MAX_PARAMS]; /* which argument a parameter got, -1 for none */
    int bad;                 /* the argument a failure is about */
    lf_node arg[LF_MAX_ARGS];
    lf_attr attr[LF_MAX_ATTRS];
} binding;

__attribute__((format(printf, 3, 4))) static lf_status wrong(binding *b, int bad, const char *fmt, ...)
{
    char text[1024];
    va_list list;
    va_start(list, fmt);
    vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    b->bad = bad;
    return lf_fail(b->g->diag, LF_ERR_MODEL, "%s: %s", b->row->name, text);
}

/* ---- the op ---- */

/* The public op whose name is nearest, NULL when none is near. */
static const char *nearest_op(const char *name)
{
    const size_t length = strlen(name);
    lf_guess guess = lf_guess_of(name, length, lf_guess_most(length));
    for (int op = 0; op < LF_OP_COUNT; op++)
        if (lf_op_public((lf_op)op))
            lf_guess_try(&guess, lf_op_row((lf_op)op)->name);
    return guess.best;
}

static lf_status find_op(lf_graph *g, const char *name, lf_op *op)
{
    if (lf_op_find(name, strlen(name), op) && lf_op_public(*op))
        return LF_OK;
    const char *nearest = nearest_op(name);
    if (nearest)
        return lf_fail(g->diag, LF_ERR_MODEL, "there is no op %s; did you mean %s?", name, nearest);
    return lf_fail(g->diag, LF_ERR_MODEL, "there is no op %.64s; `linfuse ops` lists them", name);
}

/* ---- which argument goes where ---- */

/* "input, weight, bias" */
static const char *param_names(const lf_op_info *row, char *text, size_t size)
{
    text[0] = '\0';
    for (int i = 0; i < row->param_count; i++) {
        size_t length = strlen(text);
        snprintf(text + length, size - length, "%s%s", i ? ", " : "", row->param[i].name);
    }
    return text;
}

static lf_status match(binding *b, size_t count)
{
    char names[LF_MAX_PARAMS * 24];
    bool keyed = false;
    for (int i = 0; i < LF_MAX_PARAMS; i++)
        b->from[i] = -1;
    for (int i = 0; i < (int)count; i++) {
        const char *key = b->args[i].key;
        int p = i;
        if (key) {
            keyed = true;
            for (p = 0; p < b->row->param_count && strcmp(b->row->param[p].name, key) != 0; p++)
                ;
            if (p == b->row->param_count)
                return wrong(b, i, "there is no parameter %.64s; it takes (%s)", key,
                             param_names(b->row, names, sizeof names));
        } else if (keyed) {
            return wrong(b, i, "an argument without a key follows one with a key");
        } else if (p >= b->row->param_count) {
            return wrong(b, i, "%zu arguments, but it takes at most %d (%s)", count, b->row->param_count,
                         param_names(b->row, names, sizeof names));
        }
        if (b->from[p] >= 0)
            return wrong(b, i, "%s is given twice", b->row->param[p].name);
        b->from[p] = i;
    }
    return LF_OK;
}

/* ---- one argument ---- */

/* What an argument is, for messages: "the number 3". */
static const char *describe(const lf_graph *g, const lf_arg *a, char *text, size_t size)
{
    switch (a->kind) {
    case LF_ARG_VALUE:
        snprintf(text, size, "the value %.200s",
                 a->value >= 0 && a->value < g->count ? g->node[a->value].name : "(unknown)");
        break;
    case LF_ARG_NUMBER: snprintf(text, size, "the number %g", a->number); break;
    case LF_ARG_BOOL: snprintf(text, size, a->number != 0.0 ? "true" : "false"); break;
    case LF_ARG_STRING: snprintf(text, size, "the string \"%.64s\"", a->string ? a->string : ""); break;
    case LF_ARG_LIST: snprintf(text, size, "a list"); break;
    default: snprintf(text, size, "None"); break;
    }
    return text;
}

static const char *wanted(const lf_param_info *p)
{
    switch (p->type) {
    case 'T': return "a value";
    case 'V': return "a value or a number";
    case 'F': return "a number";
    case 'I': return "an integer";
    case 'B': return "true or false";
    case 'S': return "a string";
    default: return "an integer or a list of integers";
    }
}

static lf_status bind_value(binding *b, int i, const lf_param_info *p)
{
    const lf_arg *a = &b->args[i];
    if (a->value < 0 || a->value >= b->g->count) {
        b->bad = i;
        return lf_fail(b->g->diag, LF_ERR_ARG, "%s: %s is value %d, which is not one of this model's", b->row->name,
                       p->name, (int)a->value);
    }
    b->arg[p->slot] = a->value;
    return LF_OK;
}

static lf_status bind_choice(binding *b, int i, const lf_param_info *p)
{
    const char *given = b->args[i].string ? b->args[i].string : "";
    char text[64] = "";
    for (int c = 0; c < p->choices; c++) {
        if (strcmp(p->choice[c], given) == 0) {
            b->attr[p->slot].number = c;
            return LF_OK;
        }
        size_t length = strlen(text);
        snprintf(text + length, sizeof text - length, "%s\"%s\"", c ? " or " : "", p->choice[c]);
    }
    return wrong(b, i, "%s is \"%.64s\"; it wants %s", p->name, given, text);
}

static lf_status bind_list(binding *b, int i, const lf_param_info *p)
{
    const lf_arg *a = &b->args[i];
    const double *list = a->kind == LF_ARG_LIST ? a->list : &a->number;
    size_t count = a->kind == LF_ARG_LIST ? a->count : 1;
    lf_attr *attr = &b->attr[p->slot];
    if (count > LF_MAX_LIST)
        return wrong(b, i, "%s has %zu numbers; at most %d are allowed", p->name, count, (int)LF_MAX_LIST);
    attr->count = (int)count;
    for (size_t k = 0; k < count; k++) {
        if (!(fabs(list[k]) <= LARGEST_INTEGER) || list[k] != floor(list[k]))
            return wrong(b, i, "%s has %g in it; it wants integers", p->name, list[k]);
        attr->list[k] = (int64_t)list[k];
    }
    return LF_OK;
}

/* PyTorch's pools take (2,) where they mean 2: nn.AvgPool1d keeps its window so. */
static bool single(const lf_op_info *row, const lf_arg *a)
{
    return row->kind == LF_POOL && a->kind == LF_ARG_LIST && a->count == 1;
}

static lf_status bind_one(binding *b, int i, const lf_param_info *p)
{
    const lf_arg *a = &b->args[i];
    bool value = p->type == 'T' || p->type == 'V', number = p->type == 'F' || p->type == 'I';
    lf_attr *attr = value ? NULL : &b->attr[p->slot];
    if (attr)
        *attr = (lf_attr){0};
    lf_status status = LF_OK;
    if (a->kind == LF_ARG_NONE && p->optional) {
        if (attr)
            attr->none = true;
        return LF_OK;
    }
    if (value && a->kind == LF_ARG_VALUE)
        return bind_value(b, i, p);
    if (p->type == 'V' && a->kind == LF_ARG_NUMBER)
        return LF_OK; /* becomes a constant once everything else fits */
    if (number && (a->kind == LF_ARG_NUMBER || single(b->row, a)))
        attr->number = a->kind == LF_ARG_NUMBER ? a->number : a->list[0];
    else if (p->type == 'B' && a->kind == LF_ARG_BOOL)
        attr->number = a->number != 0.0;
    else if (p->type == 'S' && a->kind == LF_ARG_STRING)
        status = bind_choice(b, i, p);
    else if (p->type == 'L' && (a->kind == LF_ARG_NUMBER || a->kind == LF_ARG_LIST))
        status = bind_list(b, i, p);
    else {
        char text[256];
        return wrong(b, i, "%s wants %s%s, not %s", p->name, wanted(p), p->optional ? " or None" : "",
                     describe(b->g, a, text, sizeof text));
    }
    b->bad = i;
    return status ? status : lf_attr_check(b->row, p, attr, b->g->diag);
}

lf_status lf_attr_check(const lf_op_info *row, const lf_param_info *p, const lf_attr *attr, lf_diag *diag)
{
    if (attr->none)
        return p->optional ? LF_OK : lf_fail(diag, LF_ERR_MODEL, "%s: %s is missing", row->name, p->name);
    double v = attr->number;
    bool end = strncmp(p->name, "min", 3) == 0 || strncmp(p->name, "max", 3) == 0; /* of a clamp, a hardtanh */
    switch (p->type) {
    case 'F':
        if (isnan(v) || (isinf(v) && !end))
            return lf_fail(diag, LF_ERR_MODEL, "%s: %s is %g; it wants a finite number", row->name, p->name, v);
        break;
    case 'I':
        if (!(fabs(v) <= LARGEST_INTEGER) || v != floor(v))
            return lf_fail(diag, LF_ERR_MODEL, "%s: %s is %g; it wants an integer", row->name, p->name, v);
        break;
    case 'B':
        if (v != 0.0 && v != 1.0)
            return lf_fail(diag, LF_ERR_MODEL, "%s: %s is neither true nor false", row->name, p->name);
        break;
    case 'S':
        if (!(v >= 0.0 && v < p->choices) || v != floor(v))
            return lf_fail(diag, LF_ERR_MODEL, "%s: %s is none of its choices", row->name, p->name);
        break;
    case 'L':
        if (attr->count < 0 || attr->count > LF_MAX_LIST)
            return lf_fail(diag, LF_ERR_MODEL, "%s: %s has %d numbers", row->name, p->name, attr->count);
        for (int i = 0; i < attr->count; i++) /* so that arithmetic on them stays far from overflow */
            if (attr->list[i] > LF_MAX_ELEMENTS || attr->list[i] < -LF_MAX_ELEMENTS)
                return lf_fail(diag, LF_ERR_MODEL, "%s: %s has %lld in it, which is too large", row->name, p->name,
                               (long long)attr->list[i]);
        break;
    default: assert(!"attributes have no other type");
    }
    return LF_OK;
}

/* ---- all of them ---- */

/* Numbers that stand where a value may: constants of rank 0. At least one argument is a value. */
static lf_status bind_numbers(binding *b)
{
    const lf_shape scalar = {0};
    int numbers = 0, places = 0, last = -1;
    for (int i = 0; i < b->row->param_count; i++)
        if (b->row->param[i].type == 'V') {
            places++;
            if (b->args[b->from[i]].kind == LF_ARG_NUMBER) {
                numbers++;
                last = b->from[i];
            }
        } else if (b->row->param[i].type == 'T') {
            places++;
        }
    if (numbers > 0 && numbers == places)
        return wrong(b, last, "both sides are numbers; one has to be a value");
    for (int i = 0; i < b->row->param_count; i++) {
        const lf_param_info *p = &b->row->param[i];
        if (p->type != 'V' || b->args[b->from[i]].kind != LF_ARG_NUMBER)
            continue;
        lf_status status = lf_graph_constant(b->g, b->args[b->from[i]].number, &scalar, &b->arg[p->slot]);
        if (status)
            return status;
    }
    return LF_OK;
}

static lf_status bind(binding *b, size_t count)
{
    lf_status status = match(b, count);
    for (int i = 0; !status && i < b->row->param_count; i++) {
        const lf_param_info *p = &b->row->param[i];
        char names[LF_MAX_PARAMS * 24];
        if (b->from[i] >= 0)
            status = bind_one(b, b->from[i], p);
        else if (!p->has_default)
            status = wrong(b, -1, "%s is missing; it takes (%s)", p->name, param_names(b->row, names, sizeof names));
    }
    if (status)
        return status;
    b->bad = -1;
    return bind_numbers(b);
}

/* What PyTorch would refuse to mix: a product's operands are of one type, and so are a loss's input and weight; a
 * norm's other values are of its input's type, or of f32. (Positions are inference's business.) */
static lf_status check_types(binding *b)
{
    const lf_kind kind = b->row->kind;
    const lf_dtype first = b->row->arg_count > 0 ? b->g->node[b->arg[0]].dtype : LF_F32;
    for (int i = 0; i < b->row->param_count && (kind == LF_PRODUCT || kind == LF_NORMALIZE || kind == LF_LOSS); i++) {
        const lf_param_info *p = &b->row->param[i];
        if ((p->type != 'T' && p->type != 'V') || b->arg[p->slot] == LF_NONE)
            continue;
        const lf_node_info *arg = &b->g->node[b->arg[p->slot]];
        if (arg->dtype == first || (kind == LF_NORMALIZE && arg->dtype == LF_F32) || !lf_dtype_is_float(arg->dtype))
            continue;
        return wrong(b, b->from[i],
                     "%s %s is %s, and %s %s is %s; PyTorch does not mix them here: cast one with to(...)",
                     b->row->param[0].name, b->g->node[b->arg[0]].name, lf_dtype_name(first), p->name, arg->name,
                     lf_dtype_name(arg->dtype));
    }
    return LF_OK;
}

lf_status lf_graph_bind(lf_graph *g, const char *name, const char *op, const lf_arg *args, size_t count, lf_node *out,
                        int *bad)
{
    binding b = {.g = g, .args = args, .bad = -1};
    lf_op found;
    lf_status status = find_op(g, op, &found);
    if (!status) {
        b.row = lf_op_row(found);
        lf_op_defaults(found, b.attr);
        for (int i = 0; i < LF_MAX_ARGS; i++)
            b.arg[i] = LF_NONE;
        status = bind(&b, count);
    }
    if (!status)
        status = check_types(&b);
    if (!status)
        status = lf_graph_op(g, name, found, b.arg, b.attr, out);
    if (bad)
        *bad = b.bad;
    return status;
}
