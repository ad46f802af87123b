/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan says about itself: who reads and writes what, and what passes have noted on it. */
#include "plan_fixture.h"

#include "plan/touch.h"

#include "sanitized.h"

#define CASE(name) static void name(__attribute__((unused)) void **state)

/* ---- who reads what ---- */

/* "0 loads x" a line: phase, how it is touched, what. */
static const char *touches(const lf_group *g)
{
    static const char *const words[LF_TOUCHERS] = {"multiplies", "by weight", "by bias", "loads", "takes", "stores"};
    const char *text = "";
    lf_touch at;
    for (lf_touches all = lf_touches_of(g); lf_touch_next(&all, &at);) {
        const char *what = at.place == LF_VALUE  ? lf_at(&graph, at.what)->name
                           : at.place == LF_KEPT ? lf_arena_printf(&arena, "kept %d", (int)at.what)
                           : at.place == LF_STAT ? lf_arena_printf(&arena, "stat %d", (int)at.what)
                                                 : lf_arena_printf(&arena, "output %d", (int)at.what);
        assert_true(!at.access == (at.by == LF_TOUCH_WEIGHT || at.by == LF_TOUCH_BIAS));
        text = lf_arena_printf(&arena, "%s%d %s %s\n", text, (int)at.phase, words[at.by], what);
    }
    return text;
}

CASE(all_that_a_group_touches)
{
    const lf_plan *plan = plan_of("input x f32[B, 8]\nparam w f32[12, 8]\nparam s f32[12]\na = linear(x, w, s)\n"
                                  "b = group_norm(a, 4, s, s)\nc = hardtanh(b)\nreturn c\n");
    GROUPS(plan, "linear+group_norm+hardtanh");
    assert_string_equal(touches(&plan->group[0]), "0 multiplies x\n0 by weight w\n0 loads s\n0 takes kept 0\n"
                                                  "0 stores kept 0\n1 loads kept 0\n1 loads stat 0\n1 loads stat 0\n"
                                                  "1 loads s\n1 stores c\n");
    assert_int_equal(lf_count_reads(&plan->group[0], LF_KEPT, 0), 2);
    assert_int_equal(lf_count_reads(&plan->group[0], LF_STAT, 0), 2);
    assert_int_equal(lf_count_reads(&plan->group[0], LF_VALUE, named("s")), 2);
    assert_int_equal(lf_count_reads(&plan->group[0], LF_VALUE, named("c")), 0); /* written */
}

/* Two narrow products of one x are two touches by weight, and one of what both multiply. */
CASE(products_of_a_phase_multiply_once)
{
    const lf_plan *plan = plan_of("input x f32[B, 8]\nparam w f32[3, 8]\nparam v f32[3, 8]\nparam c f32[3]\n"
                                  "a = linear(x, w, c)\nb = linear(x, v)\ny = mul(a, b)\nreturn y\n");
    GROUPS(plan, "linear*2+mul");
    assert_string_equal(touches(&plan->group[0]),
                        "0 multiplies x\n0 by weight w\n0 by weight v\n0 by bias c\n0 stores y\n");
}

/* A span of phases alone, and the first who reads. */
CASE(touches_of_some_phases)
{
    const lf_plan *plan = plan_of(
        "input x f32[B, 8]\nparam w f32[16, 8]\na = linear(x, w)\nb = gelu(a)\nc = softmax(b, dim=-1)\nreturn c\n");
    const lf_group *g = &plan->group[0];
    lf_touch at;
    lf_touches later = lf_touches_in(g, 1, g->phases);
    assert_true(lf_touch_next(&later, &at) && at.phase == 1 && at.by == LF_TOUCH_LOAD);
    assert_true(lf_find_read(g, 0, g->phases, LF_KEPT, 0, &at) && at.phase == 1);
    assert_ptr_equal(at.access, &g->phase[1].step[at.index].from);
    assert_false(lf_find_read(g, 0, 1, LF_KEPT, 0, &at));
    assert_ptr_equal(lf_find_store(&g->phase[0], LF_KEPT, 0), &g->phase[0].store[0]);
    assert_null(lf_find_store(&g->phase[1], LF_KEPT, 0));
}

/* ---- what passes note ---- */

static const lf_step *step_named(const lf_phase *p, const char *name)
{
    for (int32_t i = p->steps - 1; i >= 0; i--)
        if (p->step[i].node == named(name))
            return &p->step[i];
    fail_msg("no step computes %s", name);
    return NULL;
}

CASE(uses_of_steps)
{
    const lf_plan *plan = plan_of("input x f32[B, 8]\nparam w f32[16, 8]\na = linear(x, w)\nb = gelu(a)\n"
                                  "c = mul(b, a)\nd = sum(b, dim=1)\nreturn b, c, d\n");
    const lf_phase *p = &plan->group[0].phase[0];
    const lf_uses *a = &step_named(p, "a")->uses, *b = &step_named(p, "b")->uses, *c = &step_named(p, "c")->uses;
    assert_true(a->args == 2 && lf_sinks(a) == 0);
    assert_true(b->args == 1 && b->stores == 1 && b->stats == 1 && b->watches == 0 && lf_all_uses(b) == 3);
    assert_true(c->args == 0 && c->stores == 1 && lf_all_uses(c) == 1);
}

/* The product adds what its one reader would; not where it is wanted without, nor what differs from row to row. */
CASE(a_bias_is_the_products)
{
    static const struct { const char *text; bool found; } cases[] = {
        {"a = linear(x, w, c)\ny = gelu(a)\nreturn y\n", true},
        {"a = linear(x, w)\nb = add(c, a)\ny = gelu(b)\nreturn y\n", true},
        {"a = linear(x, w)\nb = add(a, c, alpha=2)\nreturn b\n", false},
        {"a = linear(x, w)\nb = add(a, c)\ny = mul(a, b)\nreturn y\n", false},
        {"a = linear(x, w)\nb = add(a, r)\nreturn b\n", false},
        {"a = linear(x, w)\nb = add(a, 1)\nreturn b\n", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const lf_plan *plan = plan_of(lf_arena_printf(
            &arena, "input x f32[B, 8]\ninput r f32[B, 16]\nparam w f32[16, 8]\nparam c f32[16]\n%s", cases[i].text));
        const lf_group *g = &plan->group[0];
        const lf_product *p = &g->product[0];
        assert_int_equal(p->add >= 0, cases[i].found);
        if (!cases[i].found)
            continue;
        const lf_step *add = &g->phase[0].step[p->add], *row = &g->phase[0].step[p->row];
        assert_true(add->kind == LF_STEP_OP && add->op == LF_OP_add);
        assert_true(row->kind == LF_STEP_LOAD && row->from.index == named("c"));
    }
}

CASE(mul_and_add_in_one_go)
{
    const char *const head = "input x f32[B, 8]\nparam s f32[8]\nparam t f32[8]\n";
    const lf_plan *plan = plan_of(lf_arena_printf(&arena, "%sn = layer_norm(x, [8], s, t)\nreturn n\n", head));
    const lf_phase *p = &plan->group[0].phase[1];
    const lf_step *add = &p->step[p->steps - 1];
    assert_true(add->op == LF_OP_add && add->mul == add->arg[0] && p->step[add->mul].op == LF_OP_mul);
    plan = plan_of(lf_arena_printf(&arena, "%sm = mul(x, s)\nn = add(m, t)\nreturn m, n\n", head)); /* m is stored */
    p = &plan->group[0].phase[0];
    assert_true(p->step[p->steps - 1].op == LF_OP_add && p->step[p->steps - 1].mul == -1);
}

/* Behind a product in tiles: a softmax waits for whole rows, a group norm for its segments, neither keeps a value. */
CASE(what_goes_on_in_registers)
{
    const char *const head = "input x f32[B, 8]\nparam w f32[64, 8]\nparam s f32[64]\na = linear(x, w)\n";
    static const struct { const char *text; bool held, waits; int64_t length; } cases[] = {
        {"y = softmax(a, dim=1)\nreturn y\n", true, true, 0},
        {"b = gelu(a)\ny = group_norm(b, 4, s, s)\nreturn y\n", true, false, 16},
        {"m = max(a, dim=1, keepdim=true)\nb = sub(a, m)\ny = softmax(b, dim=1)\nreturn y\n", false, false, 0},
        {"y = logsumexp(a, dim=1)\nreturn y\n", false, false, 0}, /* wants no elements */
        {"b = softmax(a, dim=1)\nc = sum(b, dim=1)\nreturn c\n", false, false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const lf_plan *plan = plan_of(lf_arena_printf(&arena, "%s%s", head, cases[i].text));
        const lf_held *held = &plan->group[0].held;
        assert_int_equal(plan->groups, 1);
        assert_int_equal(held->phase, cases[i].held ? 1 : -1);
        if (!cases[i].held)
            continue;
        assert_true(held->waits == cases[i].waits && held->length == cases[i].length && held->kept == 0);
        assert_int_equal(plan->group[0].phase[0].store[0].step, held->step);
    }
}

/* ---- kept exps ---- */

static const lf_plan *plan_with_exps(const char *text)
{
    lf_plan *plan = NULL;
    read_model(text);
    lf_status status = lf_plan_build(&graph, (lf_plan_options){.fuse = true, .keep_exps = true}, &arena, &plan);
    if (status == LF_OK)
        status = lf_plan_verify(plan, &diag);
    if (status != LF_OK)
        print_error("%s\n", diag.text);
    assert_int_equal(status, LF_OK);
    return plan;
}

/* In the place of what was kept for the softmax alone. */
CASE(exps_take_the_place_of_their_argument)
{
    const lf_plan *plan = plan_with_exps(
        "input x f32[B, 8]\nparam w f32[16, 8]\na = linear(x, w)\nb = gelu(a)\nc = softmax(b, dim=1)\nreturn c\n");
    const lf_group *g = &plan->group[0];
    const lf_step *last = &g->phase[1].step[g->phase[1].steps - 1];
    assert_int_equal(g->kepts, 1);
    assert_true(g->stat[0].exps == 0 && g->phase[0].store[0].exps);
    assert_true(last->op == LF_OP_mul && last->node == named("c"));
    assert_int_equal(g->phase[1].step[last->arg[0]].from.place, LF_KEPT);
    assert_int_equal(g->phase[1].step[last->arg[1]].from.place, LF_FACTOR);
    assert_int_equal(lf_count_reads(g, LF_STAT, 0), 0); /* the largest and the sum are in the factor */
}

/* Beside what others want: of an input, of what is returned as well. */
CASE(exps_beside_their_argument)
{
    const lf_plan *plan = plan_with_exps("input x f32[B, 8]\na = softmax(x, dim=1)\nreturn a\n");
    assert_int_equal(plan->group[0].kepts, 1);
    assert_int_equal(plan->group[0].stat[0].exps, 0);
    plan = plan_with_exps("input x f32[B, 8]\nparam w f32[16, 8]\na = linear(x, w)\nb = gelu(a)\n"
                          "c = softmax(b, dim=1)\nd = sub(b, c)\nreturn d\n");
    assert_int_equal(plan->group[0].kepts, 2); /* b is read again */
    assert_true(plan->group[0].stat[0].exps >= 0);
}

/* Where all rows come first they would be one more tensor; and kernels that have no use for them get none. */
CASE(no_exps_where_they_do_not_pay)
{
    const char *const text =
        "input x f32[B, 8]\na = softmax(x, dim=1)\nb = sum(x, dim=0)\nc = add(a, b)\nreturn c\n";
    const lf_plan *plan = plan_with_exps(text);
    assert_int_equal(plan->group[0].schedule, LF_BY_PHASE);
    assert_int_equal(plan->group[0].stat[0].exps, -1);
    plan = plan_of("input x f32[B, 8]\na = softmax(x, dim=1)\nreturn a\n");
    assert_int_equal(plan->group[0].stat[0].exps, -1);
}

/* ---- the verifier ---- */

int __real_lf_plan_verify(const lf_plan *plan, lf_diag *to);
int __wrap_lf_plan_verify(const lf_plan *plan, lf_diag *to);

static int verified;

int __wrap_lf_plan_verify(const lf_plan *plan, lf_diag *to)
{
    verified++;
    return __real_lf_plan_verify(plan, to);
}

/* Builds with asserts are the sanitized ones. */
CASE(checked_builds_verify)
{
    lf_plan *plan = NULL;
    read_model("input x f32[B, 8]\na = gelu(x)\nreturn a\n");
    verified = 0;
    assert_int_equal(lf_plan_build(&graph, (lf_plan_options){.fuse = true}, &arena, &plan), LF_OK);
    assert_int_equal(verified, SANITIZED);
}

static void verify_finds(const lf_plan *plan, const char *want)
{
    assert_int_equal(lf_plan_verify(plan, &diag), LF_ERR_ARG);
    if (!strstr(diag.text, want))
        print_error("wanted \"%s\" in \"%s\"\n", want, diag.text);
    assert_non_null(strstr(diag.text, want));
}

/* Changes one thing, sees the verifier name it, and puts it back. */
#define BREAK(plan, what, to, want)                                                                                    \
    do {                                                                                                               \
        const int64_t saved_ = (what);                                                                                 \
        (what) = (to);                                                                                                 \
        verify_finds(plan, want);                                                                                      \
        *(&(what)) = (__typeof__(what))saved_;                                                                         \
        assert_int_equal(lf_plan_verify(plan, &diag), LF_OK);                                                          \
    } while (0)

CASE(the_verifier_names_the_fault)
{
    const lf_plan *plan = plan_with_exps(
        "input x f32[B, 8]\nparam w f32[16, 8]\nparam c f32[16]\nparam v f32[4, 16]\na = linear(x, w, c)\nb = gelu(a)\n"
        "s = softmax(b, dim=1)\ny = transpose(s, dim0=0, dim1=1)\nz = relu(y)\nreturn z\n");
    lf_group *g = &plan->group[0];
    lf_phase *first = &g->phase[0], *second = &g->phase[1];
    lf_product *p = &g->product[0];
    const int32_t mul = second->steps - 1, factor = second->step[mul].arg[1], exps = second->step[mul].arg[0];
    BREAK(plan, first->step[0].uses.args, 7, "uses of a step are counted wrong");
    BREAK(plan, first->step[p->add].arg[1], first->steps, "a step reads a later one");
    BREAK(plan, first->step[p->add].mul, 0, "no mul of its own");
    BREAK(plan, first->step[p->row].from.row_axes, -1, "too many axes");
    BREAK(plan, first->step[p->row].from.extent[1].coef, 3, "does not cover its grid");
    BREAK(plan, first->step[p->row].from.dtype, LF_F16, "another type");
    BREAK(plan, first->store[0].step, first->steps, "it stores no step");
    BREAK(plan, first->store[0].to.index, g->kepts, "it stores to nowhere");
    BREAK(plan, second->step[exps].from.index, g->kepts, "reads from nowhere");
    BREAK(plan, second->step[factor].from.index, 1, "factor of exps that are not kept");
    BREAK(plan, second->step[mul].op, LF_OP_add, "read by others than their softmax");
    BREAK(plan, g->stat[0].exps, 5, "exps of no statistic");
    BREAK(plan, first->store[0].exps, false, "leaves its exps nowhere");
    BREAK(plan, g->stat[0].phase, 9, "exps of no statistic");
    BREAK(plan, p->phase, 1, "a product in the wrong phase");
    BREAK(plan, p->index, 1, "a product of nothing");
    BREAK(plan, p->row, p->add, "what is no bias");
    BREAK(plan, p->narrow, true, "what is no bias");
    BREAK(plan, plan->buffer[0].last, 0, "before or after its time");
    BREAK(plan, plan->packed_only[plan->where[named("c")]], true, "what only products were to read");
    BREAK(plan, plan->storage[named("z")], LF_IN_BUFFER, "before or after its time");
    BREAK(plan, plan->storage[named("x")], LF_NOT_STORED, "it reads what is not stored");
}

CASE(the_verifier_checks_where_slices_lie)
{
    const lf_plan *plan =
        plan_of("input x f32[B, 8]\ny = relu(x)\na = slice(y, 1, 3, 8)\nb = exp(a)\nreturn y, b\n");
    lf_phase *p = &plan->group[0].phase[1];
    assert_int_equal(p->step[0].kind, LF_STEP_LOAD);
    assert_true(lf_extent_is(p->step[0].from.first, 3));
    BREAK(plan, p->step[0].from.first.coef, 4, "past the end of a kept value's row");
    BREAK(plan, p->step[0].from.stride[1].coef, 2, "past the end of a kept value's row");
}

CASE(the_verifier_checks_what_is_held)
{
    const lf_plan *plan =
        plan_of("input x f32[B, 8]\nparam w f32[16, 8]\na = linear(x, w)\ny = softmax(a, dim=1)\nreturn y\n");
    lf_group *g = &plan->group[0];
    assert_int_equal(g->held.phase, 1);
    BREAK(plan, g->held.phase, 0, "not behind the product's");
    BREAK(plan, g->held.kept, 1, "not made by the product's phase");
    BREAK(plan, g->held.step, 9, "not made by the product's phase");
    plan = plan_of("input x f32[B, 8]\nparam w f32[64, 8]\nparam s f32[64]\na = linear(x, w)\n"
                   "y = group_norm(a, 4, s, s)\nreturn y\n");
    BREAK(plan, plan->group[0].held.run, -1, "read by others, too");
}

CASE(the_verifier_checks_what_is_carried)
{
    read_model("input x f32[B, 8]\nparam w f32[16, 8]\na = linear(x, w)\nb = gelu(a)\ny = softmax(b, dim=1)\n"
               "return y\n");
    for (lf_cut cut = LF_CUT_STOP; cut <= LF_CUT_RESUME; cut++) {
        lf_plan *plan = NULL;
        const lf_plan_options options = {.fuse = true, .cut = cut, .sets = 3};
        assert_int_equal(lf_plan_build(&graph, options, &arena, &plan), LF_OK);
        assert_int_equal(lf_plan_verify(plan, &diag), LF_OK);
        assert_int_equal(plan->carrieds, 2);
        assert_int_equal(plan->prepareds, cut == LF_CUT_STOP); /* the half that stops has the weight */
        BREAK(plan, plan->group[0].stat[0].carried, 2, "partials that are not carried so");
        BREAK(plan, plan->carried[0].sets, 0, "partials that are not carried so");
        BREAK(plan, plan->options.cut, LF_CUT_NONE, "partials that are not carried so");
        if (cut == LF_CUT_RESUME)
            BREAK(plan, plan->group[0].kept[0].in_input, -1, "reads a kept value before it is made");
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(all_that_a_group_touches),
        TEST(products_of_a_phase_multiply_once),
        TEST(touches_of_some_phases),
        TEST(uses_of_steps),
        TEST(a_bias_is_the_products),
        TEST(mul_and_add_in_one_go),
        TEST(what_goes_on_in_registers),
        TEST(exps_take_the_place_of_their_argument),
        TEST(exps_beside_their_argument),
        TEST(no_exps_where_they_do_not_pay),
        TEST(checked_builds_verify),
        TEST(the_verifier_names_the_fault),
        TEST(the_verifier_checks_where_slices_lie),
        TEST(the_verifier_checks_what_is_held),
        TEST(the_verifier_checks_what_is_carried),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
