/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of ops.def, functions.def and monoids.def as data. Signatures and expressions are parsed once, when a row
 * is first asked for. */
#include "ir/expr.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ops.def writes laws short. */
enum { COMMUTES = LF_LAW_COMMUTES, IDEMPOTENT = LF_LAW_IDEMPOTENT, KEEPS = LF_LAW_KEEPS, HIDDEN = LF_LAW_HIDDEN };

/* Expressions are stringified directly, so that names such as INFINITY or isinf stay as written. */
static lf_op_info op_table[LF_OP_COUNT] = {
#define LF_OP(op_name, op_kind, op_monoid, op_laws, op_flops, op_tolerance, op_signature, ...)                         \
    [LF_OP_##op_name] = {.name = #op_name,                                                                             \
                         .kind = LF_##op_kind,                                                                         \
                         .monoid = LF_MONOID_##op_monoid,                                                              \
                         .laws = op_laws,                                                                              \
                         .flops = op_flops,                                                                            \
                         .tolerance = op_tolerance,                                                                    \
                         .signature = op_signature,                                                                    \
                         .expression = #__VA_ARGS__},
#include "ir/ops.def"
#undef LF_OP
};

/* functions.def: directions, and who has a function. */
enum { FALLS = -1, RISES = 1, BUILT = false, OWN = true };
static lf_function_info function_table[LF_FUNCTION_COUNT] = {
#define LF_NATIVE(f_name, f_params, f_direction, f_low, f_high, ...)                                                   \
    [LF_FUNCTION_##f_name] = {.name = #f_name,                                                                         \
                              .params = #f_params,                                                                     \
                              .direction = f_direction,                                                                \
                              .low = f_low,                                                                            \
                              .high = f_high,                                                                          \
                              .on_cuda = true,                                                                         \
                              .slope = {#__VA_ARGS__}},
#define LF_FUNCTION(f_name, f_params, f_direction, cpu, cuda, f_value, in_first, in_second)                            \
    [LF_FUNCTION_##f_name] = {.name = #f_name,                                                                         \
                              .params = #f_params,                                                                     \
                              .text = #f_value,                                                                        \
                              .direction = f_direction,                                                                \
                              .on_cuda = cuda,                                                                         \
                              .slope = {#in_first, #in_second}},
#include "ir/functions.def"
#undef LF_NATIVE
#undef LF_FUNCTION
};

/* All that is parsed, and what derivatives are made of. */
static lf_expr_pool pool;

static const lf_monoid_info monoid_table[LF_MONOID_COUNT] = {
#define LF_MONOID(m_name, m_states, m_results, m_least, m_flops, m_identity, m_put, m_combine, ...)                    \
    [LF_MONOID_##m_name] = {.name = #m_name,                                                                           \
                            .states = m_states,                                                                        \
                            .results = m_results,                                                                      \
                            .least = m_least,                                                                          \
                            .flops = m_flops,                                                                          \
                            .identity = #m_identity,                                                                   \
                            .put = #m_put,                                                                             \
                            .combine = #m_combine,                                                                     \
                            .finish = #__VA_ARGS__},
#include "ir/monoids.def"
#undef LF_MONOID
};

/* Whether *at starts with word; then steps over it. */
static bool skip(const char **at, const char *word)
{
    size_t length = strlen(word);
    if (strncmp(*at, word, length) != 0)
        return false;
    *at += length;
    return true;
}

/* 'none'|'tanh' */
static void parse_choices(const char **at, lf_param_info *p)
{
    do {
        const char *end;
        bool open = skip(at, "'");
        assert(open && p->choices < LF_MAX_CHOICES);
        (void)open;
        end = strchr(*at, '\'');
        assert(end && (size_t)(end - *at) < sizeof p->choice[0]);
        memcpy(p->choice[p->choices++], *at, (size_t)(end - *at));
        *at = end + 1;
    } while (skip(at, "|"));
}

static void parse_default(const char **at, lf_param_info *p)
{
    p->has_default = true;
    if (skip(at, "None")) {
        assert(p->optional);
        p->none = true;
    } else if (p->type == 'S') {
        parse_choices(at, p);
    } else if (p->type == 'B') {
        p->number = skip(at, "true") ? 1.0 : 0.0;
        bool known = p->number != 0.0 || skip(at, "false");
        assert(known);
        (void)known;
    } else {
        assert(p->type == 'F' || p->type == 'I');
        char *end;
        p->number = strtod(*at, &end);
        assert(end != *at);
        *at = end;
    }
}

/* One "T? name=default". */
static void parse_param(const char **at, lf_op_info *row)
{
    assert(row->param_count < LF_MAX_PARAMS);
    lf_param_info *p = &row->param[row->param_count++];
    p->type = *(*at)++;
    assert(p->type && strchr("TVFIBSL", p->type));
    p->optional = skip(at, "?");
    bool gap = skip(at, " ");
    size_t length = strcspn(*at, "=:, ");
    assert(gap && length > 0 && length < sizeof p->name);
    (void)gap;
    memcpy(p->name, *at, length);
    *at += length;
    p->slot = p->type == 'T' || p->type == 'V' ? row->arg_count++ : row->attr_count++;
    if (skip(at, "="))
        parse_default(at, p);
    else if (skip(at, ":"))
        parse_choices(at, p);
    assert(p->type != 'S' || p->choices > 0);
}

/* "(value x, number a)": each ends in the variable's letter. */
static void parse_function(lf_function_info *row)
{
    for (const char *at = row->params; (at = strpbrk(at, ",)")); at++)
        row->param[row->args++] = (int)(strchr(LF_EXPR_VARIABLES, at[-1]) - LF_EXPR_VARIABLES);
    row->value = row->text ? lf_expr_parse(&pool, row->text) : NULL;
    assert(row->value || !row->text);
    for (int i = 0; i < 2 && row->slope[i]; i++) {
        row->derive_this[i] = skip(&row->slope[i], "derivative_of");
        row->derivative[i] = lf_expr_parse(&pool, row->slope[i]);
        assert(row->derivative[i]);
    }
}

static void parse_tables(void)
{
    for (int f = 0; f < LF_FUNCTION_COUNT; f++)
        parse_function(&function_table[f]);
    for (int op = 0; op < LF_OP_COUNT; op++) {
        lf_op_info *row = &op_table[op];
        const char *at = row->signature;
        while (*at) {
            parse_param(&at, row);
            bool more = skip(&at, ", ");
            assert(more == (*at != '\0'));
            (void)more;
        }
        assert(row->kind == LF_LEAF || row->arg_count > 0);
        row->tree = lf_expr_parse(&pool, row->expression);
        assert(row->tree);
    }
}

static void need_tables(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, parse_tables);
}

const lf_op_info *lf_op_row(lf_op op)
{
    need_tables();
    assert((int)op >= 0 && op < LF_OP_COUNT);
    return &op_table[op];
}

bool lf_op_find(const char *name, size_t length, lf_op *out)
{
    for (int op = 0; op < LF_OP_COUNT; op++)
        if (strlen(op_table[op].name) == length && memcmp(op_table[op].name, name, length) == 0) {
            *out = (lf_op)op;
            return true;
        }
    return false;
}

const lf_function_info *lf_function_row(lf_function f)
{
    need_tables();
    assert((int)f >= 0 && f < LF_FUNCTION_COUNT);
    return &function_table[f];
}

/* While tables are parsed too. */
bool lf_function_find(const char *name, size_t length, int args, lf_function *out)
{
    for (int f = 0; f < LF_FUNCTION_COUNT; f++) {
        const lf_function_info *row = &function_table[f];
        int params = 1;
        for (const char *at = row->params; *at; at++)
            params += *at == ',';
        if (strlen(row->name) == length && memcmp(row->name, name, length) == 0 && params == args) {
            *out = (lf_function)f;
            return true;
        }
    }
    return false;
}

static const lf_expr *derivative[LF_OP_COUNT][LF_EXPR_VALUES];

static void derive_all(void)
{
    for (int op = 0; op < LF_OP_COUNT; op++)
        for (int i = 0; i < LF_EXPR_VALUES; i++)
            derivative[op][i] = lf_expr_derive(&pool, op_table[op].tree, i);
}

const lf_expr *lf_op_derivative(lf_op op, int argument)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    need_tables();
    pthread_once(&once, derive_all);
    assert((int)op >= 0 && op < LF_OP_COUNT && argument >= 0 && argument < LF_EXPR_VALUES);
    return derivative[op][argument];
}

bool lf_op_commutes(lf_op op, double alpha)
{
    return lf_op_row(op)->laws & LF_LAW_COMMUTES && (lf_op_row(op)->attr_count == 0 || alpha == 1.0);
}

bool lf_op_public(lf_op op)
{
    const lf_op_info *row = lf_op_row(op);
    return row->kind != LF_LEAF && row->kind != LF_GUARD && !(row->laws & LF_LAW_HIDDEN);
}

const char *lf_kind_name(lf_kind kind)
{
    static const char *const name[] = {
        [LF_LEAF] = "leaf",     [LF_PRODUCT] = "product",     [LF_POINTWISE] = "pointwise",
        [LF_REDUCE] = "reduce", [LF_NORMALIZE] = "normalize", [LF_POOL] = "pool",
        [LF_VIEW] = "view",     [LF_MOVE] = "move",           [LF_LOSS] = "loss",
        [LF_GUARD] = "guard"};
    assert((size_t)kind < sizeof name / sizeof name[0]);
    return name[kind];
}

const lf_monoid_info *lf_monoid_row(lf_monoid monoid)
{
    assert(monoid >= 0 && monoid < LF_MONOID_COUNT);
    return &monoid_table[monoid];
}
