/* SPDX-License-Identifier: Apache-2.0 */
/* Prints a graph as `.lf` text, nodes in their order. Reading the text gives the same graph: names, attributes and
 * numbers to the last bit. What rewrites made and a text cannot say, guards and wide constants, is printed as if it
 * were an op, for people. */
#include "base/dtype.h"
#include "base/str.h"
#include "ir/graph.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The shortest decimal that reads back as the same double. Whole numbers stay in plain digits as far as people read
 * them easily, which 100 as 1e+02 is not. */
static void print_number(lf_str *out, double value)
{
    char text[40];
    if (value == floor(value) && fabs(value) < 1e15) {
        lf_str_addf(out, "%.0f", value);
        return;
    }
    int digits = 1;
    do
        snprintf(text, sizeof text, "%.*g", digits, value);
    while (++digits <= 17 && strtod(text, NULL) != value);
    lf_str_add(out, isnan(value) ? "nan" : text);
}

/* coef, then the named extents: 64, B, 2*B*S. */
static void print_extent(lf_str *out, const lf_graph *g, lf_extent e)
{
    const char *between = "";
    if (e.coef != 1 || lf_extent_known(e)) {
        lf_str_addf(out, "%lld", (long long)e.coef);
        between = "*";
    }
    for (int s = 0; s < g->symbols; s++)
        for (int k = 0; k < e.pow[s]; k++) {
            lf_str_addf(out, "%s%s", between, g->symbol[s]);
            between = "*";
        }
}

static void print_shape(lf_str *out, const lf_graph *g, const lf_shape *shape)
{
    lf_str_add(out, "[");
    for (int i = 0; i < shape->rank; i++) {
        lf_str_add(out, i ? ", " : "");
        print_extent(out, g, shape->dim[i]);
    }
    lf_str_add(out, "]");
}

static void print_list(lf_str *out, const lf_attr *attr)
{
    lf_str_add(out, "[");
    for (int i = 0; i < attr->count; i++)
        lf_str_addf(out, "%s%lld", i ? ", " : "", (long long)attr->list[i]);
    lf_str_add(out, "]");
}

static void print_attr(lf_str *out, const lf_param_info *p, const lf_attr *attr)
{
    bool one = attr->count == 1 && strcmp(p->name, "dim") == 0; /* dim=1 rather than dim=[1] */
    lf_str_addf(out, "%s=", p->name);
    if (attr->none)
        lf_str_add(out, "None");
    else if (p->type == 'B')
        lf_str_add(out, attr->number != 0.0 ? "true" : "false");
    else if (p->type == 'S')
        lf_str_addf(out, "\"%s\"", p->choice[(int)attr->number]);
    else if (p->type == 'L' && one)
        lf_str_addf(out, "%lld", (long long)attr->list[0]);
    else if (p->type == 'L')
        print_list(out, attr);
    else
        print_number(out, attr->number);
}

static bool is_default(const lf_param_info *p, const lf_attr *attr)
{
    if (!p->has_default || p->none != attr->none)
        return false;
    /* Signs count: -0 is another number than the default 0. */
    return attr->none || (p->number == attr->number && signbit(p->number) == signbit(attr->number));
}

/* A value as an argument; numbers written in the model stand for themselves. */
static void print_value(lf_str *out, const lf_graph *g, lf_node n)
{
    const lf_node_info *v = lf_at(g, n);
    if (v->op == LF_OP_constant && v->shape.rank == 0)
        print_number(out, v->value);
    else
        lf_str_add(out, v->name);
}

static void print_call(lf_str *out, const lf_graph *g, const lf_node_info *info)
{
    const lf_op_info *row = lf_op_row(info->op);
    const char *comma = "";
    bool in_place = true; /* every parameter so far was printed by position */
    lf_str_addf(out, "%s = %s(", info->name, row->name);
    for (int i = 0; i < row->param_count; i++) {
        const lf_param_info *p = &row->param[i];
        bool value = p->type == 'T' || p->type == 'V';
        bool absent = value ? info->arg[p->slot] == LF_NONE && p->has_default : is_default(p, &info->attr[p->slot]);
        in_place = in_place && value && !absent;
        if (absent)
            continue;
        lf_str_add(out, comma);
        comma = ", ";
        if (value && !in_place)
            lf_str_addf(out, "%s=", p->name);
        if (!value)
            print_attr(out, p, &info->attr[p->slot]);
        else if (info->arg[p->slot] == LF_NONE)
            lf_str_add(out, "None");
        else
            print_value(out, g, info->arg[p->slot]);
    }
    lf_str_add(out, ")\n");
}

static void print_node(lf_str *out, const lf_graph *g, lf_node n, bool returned)
{
    const lf_node_info *info = lf_at(g, n);
    if (info->op == LF_OP_input || info->op == LF_OP_param) {
        lf_str_addf(out, "%s %s %s", lf_op_row(info->op)->name, info->name, lf_dtype_name(info->dtype));
        print_shape(out, g, &info->shape);
        lf_str_add(out, "\n");
    } else if (info->op != LF_OP_constant) {
        print_call(out, g, info);
    } else if (info->shape.rank > 0 || returned) {
        lf_str_addf(out, "%s = full(", info->name);
        print_shape(out, g, &info->shape);
        lf_str_add(out, ", ");
        print_number(out, info->value);
        lf_str_add(out, ")\n");
    }
}

static bool is_returned(const lf_graph *g, lf_node n)
{
    for (int32_t i = 0; i < g->outputs; i++)
        if (g->output[i] == n)
            return true;
    return false;
}

lf_status lf_text_print(const lf_graph *g, char **out)
{
    *out = NULL;
    /* A decimal comma would not read back. */
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c)
        return lf_fail_nomem(g->diag, "printing the model");
    locale_t before = uselocale(c);
    lf_str text = {0};
    for (lf_node n = 0; n < g->count; n++)
        print_node(&text, g, n, lf_at(g, n)->op == LF_OP_constant && is_returned(g, n));
    for (int32_t i = 0; i < g->outputs; i++)
        lf_str_addf(&text, "%s%s", i ? ", " : "return ", lf_at(g, g->output[i])->name);
    lf_str_add(&text, g->outputs ? "\n" : "");
    uselocale(before);
    freelocale(c);
    *out = lf_str_take(&text);
    return *out ? LF_OK : lf_fail_nomem(g->diag, "printing the model");
}
