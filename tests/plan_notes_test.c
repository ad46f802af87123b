/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan says about itself: who reads and writes what, and what passes have noted on it. */
#include "plan_fixture.h"

#include "plan/touch.h"

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

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(all_that_a_group_touches),
        TEST(products_of_a_phase_multiply_once),
        TEST(touches_of_some_phases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
