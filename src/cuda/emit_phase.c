/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a phase, W elements at a time, and the ops and monoids they name. */
#include "cuda/emit_parts.h"
#include "ir/expr.h"

void lf_emit_text(lf_str *to, const char *text)
{
    lf_str_add(to, text);
    lf_str_add(to, "\n");
}

/* ---- ops ---- */

static bool expands(lf_function f)
{
    return !lf_function_row(f)->on_cuda;
}

/* What stands for a division (text/math.cu): the ordinary one; quotient where the divisor is not tiny, near_quotient
 * where it is finite too, but not for numbers, whose quotients are exact enough; over where a statistic is the divisor,
 * over_root where its root is: the inverse is then computed once for all that share it. */
static const char *divider_of(const lf_expr *tree, const lf_expr *division, const lf_expr **divisor,
                              const void *context)
{
    const lf_kind kind = *(const lf_kind *)context;
    const double small = 0x1p-100, large = 0x1p100;
    if (kind == LF_NORMALIZE && tree == division && !lf_expr_uses(*divisor, 0)) {
        const bool root = (*divisor)->kind == LF_EXPR_CALL && (*divisor)->which == LF_FUNCTION_sqrt;
        *divisor = root ? (*divisor)->arg[0] : *divisor;
        return root ? "over_root" : "over";
    }
    const lf_interval in = lf_expr_interval(*divisor, NULL);
    if (in.low < small)
        return NULL;
    return in.high > large || (*divisor)->kind == LF_EXPR_NUMBER ? "quotient" : "near_quotient";
}

static void emit_op(lf_str *to, lf_op op)
{
    const lf_op_info *row = lf_op_row(op);
    const char *comma = "";
    lf_str_addf(to, "__device__ __forceinline__ float op_%s(", row->name);
    for (int v = 0; v < LF_EXPR_VARIABLE_COUNT; v++)
        if (lf_expr_uses(row->tree, v)) {
            lf_str_addf(to, "%sfloat %c", comma, LF_EXPR_VARIABLES[v]);
            comma = ", ";
        }
    lf_str_add(to, ") { return ");
    lf_expr_print(to, row->tree, &(lf_expr_style){expands, divider_of, &row->kind});
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
    const char *comma = "";
    lf_str_addf(&e->s, "float v%d[W]; EACH v%d[w] = op_%s(", (int)index, (int)index, lf_op_row(s->op)->name);
    for (int i = 0; i < LF_EXPR_VARIABLE_COUNT; i++) {
        if (!lf_expr_uses(lf_op_row(s->op)->tree, i))
            continue;
        lf_str_add(&e->s, comma);
        comma = ", ";
        if (i < LF_EXPR_VALUES)
            lf_str_addf(&e->s, "v%d[w]", (int)s->arg[i]);
        else
            lf_emit_number(e, s->attr[i - LF_EXPR_VALUES]);
    }
    lf_str_addf(&e->s, "); // %s\n", lf_at(e->graph, s->node)->name);
}

/* What a product's LF_STEP_PRODUCT is. In tiles: the sums of a phase's products stand one after another, and a held
 * value stands where the first of them does. In rows: see emit_narrow. */
static void emit_product_value(lf_emitter *e, int32_t index)
{
    const lf_product *p = &e->g->product[index];
    int32_t before = 0;
    for (int32_t i = 0; i < index; i++)
        before += e->g->product[i].phase == p->phase;
    if (!e->tiles)
        lf_str_addf(&e->s, "%s[col + w]", lf_product_name(e, p, (char[LF_PRODUCT_NAME]){0}));
    else if (before == 0)
        lf_str_add(&e->s, "p[w]");
    else
        lf_str_addf(&e->s, "p[%d * W + w]", (int)before);
}

static void emit_step(lf_emitter *e, int32_t phase, int32_t index, int indent)
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
        lf_str_addf(&e->s, "p[w]; // %s\n", lf_at(e->graph, e->g->kept[s->from.index].node)->name);
    else if (s->kind == LF_STEP_PRODUCT) {
        emit_product_value(e, s->product);
        lf_str_add(&e->s, "; // product\n");
    } else {
        lf_emit_number(e, s->number);
        lf_str_add(&e->s, ";\n");
    }
}

void lf_emit_steps(lf_emitter *e, int32_t phase, int indent)
{
    const lf_phase *p = &e->g->phase[phase];
    for (int32_t i = 0; i < p->steps; i++)
        emit_step(e, phase, i, indent);
    for (int32_t i = 0; i < p->watches; i++) {
        lf_emit_indent(e, indent);
        lf_str_addf(&e->s, "%swatch(a.redo, row, rows, v%d);\n", e->tiles ? "if (here) " : "", (int)p->watch[i]);
    }
    for (int32_t i = 0; i < e->g->stats; i++)
        if (e->g->stat[i].phase == phase && e->column[i] >= 0) {
            lf_emit_indent(e, indent);
            lf_str_addf(&e->s, "%sstore<false>(a.area%d + row * ", e->tiles ? "if (here) " : "", (int)e->column[i]);
            lf_emit_extent(e, p->width);
            lf_str_addf(&e->s, " + col, v%d); // for the columns' %s\n", (int)e->g->stat[i].step,
                        lf_monoid_row(e->g->stat[i].monoid)->name);
        }
    for (int32_t i = 0; i < p->stores; i++)
        if (p->store[i].to.place != LF_KEPT || p->store[i].to.index != e->held.kept)
            lf_emit_store(e, &p->store[i], indent);
}
