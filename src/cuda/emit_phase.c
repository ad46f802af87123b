/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a phase, W elements at a time, and the ops and monoids they name. */
#include <ctype.h>
#include <string.h>

#include "cuda/emit_parts.h"

void lf_emit_text(lf_str *to, const char *text)
{
    lf_str_add(to, text);
    lf_str_add(to, "\n");
}

/* ---- ops ---- */

/* Ops with a form of their own, where the expression is slower or less exact than what the device has. */
static const struct own_form {
    lf_op op;
    const char *expression;
} own_forms[] = {
    {LF_OP_gelu, "sel(a == 0.0f, gelu_erf(x), x / (1.0f + exp(-1.59576912f * (x + 0.044715f * x * x * x))))"},
    {LF_OP_silu, "x / (1.0f + exp(-x))"}, /* 0 below -88, as PyTorch has it */
    {LF_OP_mish, "mish(x)"},
};

static const char *expression_of(lf_op op)
{
    for (size_t i = 0; i < sizeof own_forms / sizeof *own_forms; i++)
        if (own_forms[i].op == op)
            return own_forms[i].expression;
    return lf_op_row(op)->expression;
}

static const char ROOT[] = "/ sqrt"; /* as norms divide */

/* What stands for a division: the ordinary one; quotient(a, b) where the divisor is not tiny, near_quotient(a, b) where
 * it is finite too; over(a, b) where a statistic is the divisor, over_root(a, b) where its root is: the inverse is then
 * had once for all that share it. */
static const char *divider_of(lf_op op)
{
    static const struct { lf_op op; const char *divider;
    } mild[] = {
        {LF_OP_sigmoid, "near_quotient"}, {LF_OP_gelu, "quotient"},        {LF_OP_silu, "quotient"},
        {LF_OP_hardswish, "quotient"},    {LF_OP_hardsigmoid, "quotient"},
    };
    for (size_t i = 0; i < sizeof mild / sizeof *mild; i++)
        if (mild[i].op == op)
            return mild[i].divider;
    const lf_op_info *row = lf_op_row(op);
    return row->kind != LF_NORMALIZE ? NULL : strstr(row->expression, ROOT) ? "over_root" : "over";
}

/* Where the operand of the division at `at` ends in this direction: behind it parentheses no longer balance, or one of
 * the operators that end it comes. */
static const char *operand_end(const char *at, const char *limit, int dir, const char *stops)
{
    int depth = 0;
    for (at += dir; at != limit; at += dir) {
        depth += *at == '(' ? dir : *at == ')' ? -dir : 0;
        if (depth < 0 || (depth == 0 && strchr(stops, *at)))
            break;
    }
    return at;
}

/* The expression, with its division, of which there is one at most, as a call. */
static void emit_divided(lf_str *to, const char *expression, const char *divider)
{
    const char *at = strchr(expression, '/');
    const char *end = expression + strlen(expression);
    if (!at) {
        lf_str_add(to, expression);
        return;
    }
    const char *from = operand_end(at, expression - 1, -1, "+,") + 1, *until = operand_end(at, end, 1, "+-*/,");
    lf_str_addn(to, expression, (size_t)(from - expression));
    lf_str_addf(to, "%s%s(", from > expression && from[-1] == ',' ? " " : "", divider);
    while (*from == ' ')
        from++;
    lf_str_addn(to, from, (size_t)(at - from) - (at[-1] == ' '));
    const char *divisor = strncmp(at, ROOT, strlen(ROOT)) == 0 ? at + strlen(ROOT) : at + 2;
    lf_str_add(to, ", ");
    lf_str_addn(to, divisor, (size_t)(until - divisor));
    lf_str_add(to, ")");
    lf_str_add(to, until);
}

/* Does the expression name this variable? */
static bool names(const char *expression, char variable)
{
    for (const char *at = expression; (at = strchr(at, variable)); at++) {
        const bool before = at > expression && (isalnum((unsigned char)at[-1]) || at[-1] == '_' || at[-1] == '.');
        if (!before && !isalnum((unsigned char)at[1]) && at[1] != '_')
            return true;
    }
    return false;
}

static const char variables[] = "xyzabc"; /* values, then numbers */

static void emit_op(lf_str *to, lf_op op)
{
    const char *expression = expression_of(op), *comma = "";
    lf_str_addf(to, "__device__ __forceinline__ float op_%s(", lf_op_row(op)->name);
    for (const char *v = variables; *v; v++)
        if (names(expression, *v)) {
            lf_str_addf(to, "%sfloat %c", comma, *v);
            comma = ", ";
        }
    lf_str_add(to, ") { return ");
    if (divider_of(op))
        emit_divided(to, expression, divider_of(op));
    else
        lf_str_add(to, expression);
    lf_str_add(to, "; }\n");
}

void lf_emit_ops(lf_str *to, const lf_plan *const *plan, int plans)
{
    bool used[LF_OP_COUNT] = {false};
    for (int n = 0; n < plans; n++)
        for (int32_t g = 0; plan[n] && g < plan[n]->groups; g++)
            for (int32_t p = 0; p < plan[n]->group[g].phases; p++)
                for (int32_t i = 0; i < plan[n]->group[g].phase[p].steps; i++) {
                    const lf_step *s = &plan[n]->group[g].phase[p].step[i];
                    if (s->kind == LF_STEP_OP)
                        used[s->op] = true;
                }
    for (int op = 0; op < LF_OP_COUNT; op++)
        if (used[op])
            emit_op(to, (lf_op)op);
    lf_str_add(to, "\n");
}

/* ---- monoids ---- */

/* s0, s1, s2 with something around each. */
static void emit_states(lf_str *to, int states, const char *format, const char *between)
{
    for (int i = 0; i < states; i++) {
        lf_str_add(to, i ? between : "");
        for (const char *c = format; *c; c++)
            if (*c == '#')
                lf_str_addf(to, "%d", i);
            else
                lf_str_addn(to, c, 1);
    }
}

static void emit_monoid(lf_str *to, lf_monoid monoid)
{
    const lf_monoid_info *m = lf_monoid_row(monoid);
    static const char inside[] = "    __device__ __forceinline__";
    lf_str_addf(to, "template <typename number> struct %s_stat {\n    enum { STATES = %d, RESULTS = %d };\n    number ",
                m->name, m->states, m->results);
    emit_states(to, m->states, "s#", ", ");
    lf_str_addf(to, ";\n%s void begin() %s\n%s void put(number x) %s\n", inside, m->identity, inside, m->put);
    lf_str_addf(to, "    template <class other> __device__ __forceinline__ void join(const other &t)\n    {\n"
                    "        const number ");
    emit_states(to, m->states, "t# = (number)t.s#", ", ");
    lf_str_addf(to, ";\n        %s\n    }\n%s void finish(number n, float *r) const\n    {\n        number ",
                m->combine, inside);
    emit_states(to, m->results, "r#", ", ");
    lf_str_addf(to, ";\n        %s\n        ", m->finish);
    emit_states(to, m->results, "r[#] = (float)r#;", " ");
    lf_str_addf(to, "\n    }\n%s %s_stat shuffled(int lanes) const\n    {\n        %s_stat t;\n        ", inside,
                m->name, m->name);
    emit_states(to, m->states, "t.s# = __shfl_xor_sync(~0u, s#, lanes);", " ");
    lf_str_addf(to, "\n        return t;\n    }\n%s void get(const float *p) { ", inside);
    emit_states(to, m->states, "s# = p[#];", " ");
    lf_str_addf(to, " }\n%s void set(float *p) const { ", inside);
    emit_states(to, m->states, "p[#] = s#;", " ");
    lf_str_addf(to, " }\n%s void get_strided(const float *p, i64 stride) { ", inside);
    emit_states(to, m->states, "s# = p[# * stride];", " ");
    lf_str_addf(to, " }\n%s void put_strided(float *p, i64 stride) const { ", inside);
    emit_states(to, m->states, "p[# * stride] = s#;", " ");
    lf_str_add(to, " }\n};\n");
}

void lf_used_monoids(const lf_plan *const *plan, int plans, bool *used)
{
    for (int m = 0; m < LF_MONOID_COUNT; m++)
        used[m] = false;
    for (int n = 0; n < plans; n++)
        for (int32_t g = 0; plan[n] && g < plan[n]->groups; g++)
            for (int32_t i = 0; i < plan[n]->group[g].stats; i++)
                used[plan[n]->group[g].stat[i].monoid] = true;
}

void lf_emit_monoids(lf_str *to, const lf_plan *const *plan, int plans)
{
    bool used[LF_MONOID_COUNT];
    lf_used_monoids(plan, plans, used);
    for (int m = 0; m < LF_MONOID_COUNT; m++)
        if (used[m])
            emit_monoid(to, (lf_monoid)m);
    lf_str_add(to, "\n");
}

/* ---- steps ---- */

int lf_emit_lanes(const lf_emitter *e, lf_extent width)
{
    return e->role == LF_CUDA_MAIN && lf_extent_known(width) && width.coef % 4 == 0 ? 4 : 1;
}

static void emit_op_step(lf_emitter *e, const lf_step *s, int32_t index)
{
    const char *expression = expression_of(s->op), *comma = "";
    lf_str_addf(&e->s, "float v%d[W]; EACH v%d[w] = op_%s(", (int)index, (int)index, lf_op_row(s->op)->name);
    for (int i = 0; i < 6; i++) {
        if (!names(expression, variables[i]))
            continue;
        lf_str_add(&e->s, comma);
        comma = ", ";
        if (i < 3)
            lf_str_addf(&e->s, "v%d[w]", (int)s->arg[i]);
        else
            lf_emit_number(e, s->attr[i - 3]);
    }
    lf_str_addf(&e->s, "); // %s\n", lf_at(e->graph, s->node)->name);
}

static void emit_step(lf_emitter *e, int32_t phase, int32_t index, const char *product, int indent)
{
    const lf_step *s = &e->g->phase[phase].step[index];
    const bool held = s->kind == LF_STEP_LOAD && s->from.place == LF_KEPT && phase == e->held.phase;
    if (s->kind == LF_STEP_LOAD && !held) {
        lf_emit_load(e, phase, index, indent);
        return;
    }
    lf_emit_indent(e, indent);
    if (s->kind == LF_STEP_OP) {
        emit_op_step(e, s, index);
        return;
    }
    lf_str_addf(&e->s, "float v%d[W]; EACH v%d[w] = ", (int)index, (int)index);
    if (held)
        lf_str_addf(&e->s, "%s; // %s\n", product, lf_at(e->graph, e->g->kept[s->from.index].node)->name);
    else if (s->kind == LF_STEP_PRODUCT)
        lf_str_addf(&e->s, "%s; // product\n", product);
    else {
        lf_emit_number(e, s->number);
        lf_str_add(&e->s, ";\n");
    }
}

void lf_emit_steps(lf_emitter *e, int32_t phase, const char *product, int indent)
{
    const lf_phase *p = &e->g->phase[phase];
    for (int32_t i = 0; i < p->steps; i++)
        emit_step(e, phase, i, product, indent);
    for (int32_t i = 0; i < p->watches; i++) {
        lf_emit_indent(e, indent);
        lf_str_addf(&e->s, "%swatch(a.redo, row, rows, v%d);\n", e->tiles ? "if (here) " : "", (int)p->watch[i]);
    }
    for (int32_t i = 0; i < e->g->stats; i++)
        if (e->g->stat[i].phase == phase && e->column[i] >= 0) {
            lf_emit_indent(e, indent);
            lf_str_addf(&e->s, "%sstore<false>(a.area[%d] + row * ", e->tiles ? "if (here) " : "", (int)e->column[i]);
            lf_emit_extent(e, p->width);
            lf_str_addf(&e->s, " + col, v%d); // for the columns' %s\n", (int)e->g->stat[i].step,
                        lf_monoid_row(e->g->stat[i].monoid)->name);
        }
    for (int32_t i = 0; i < p->stores; i++)
        if (p->store[i].to.place != LF_KEPT || p->store[i].to.index != e->held.kept)
            lf_emit_store(e, &p->store[i], indent);
}
