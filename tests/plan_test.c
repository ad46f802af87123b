/* SPDX-License-Identifier: Apache-2.0 */
/* The plan room: which nodes share a kernel, in what phases, and what is stored. Models are given as text and planned
 * fused and op by op; every plan made here is verified. The plans of models/ are kept as text under tests/golden;
 * LINFUSE_REFRESH=1 writes them anew. */
#include "plan_fixture.h"
#include "sanitized.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const int64_t dims[LF_MAX_SYMBOLS] = {8, 5, 3, 1, 1, 1, 1, 1}; /* B, S or whichever names come first */

static int64_t stored_bytes(const lf_plan *plan) { return lf_plan_intermediate_bytes(plan, dims); }

#define CASE(name) static void name(__attribute__((unused)) void **state)

/* ---- one product and its tail ---- */

CASE(reduced_tail_stays_reduced)
{
    const lf_plan *plan = plan_of("input x f32[B, 8]\nparam w f32[9, 8]\nparam c f32[9]\na = linear(x, w, c)\n"
                                  "b = logsumexp(a, dim=1, keepdim=true)\nd = leaky_relu(b)\ne = gelu(d)\nreturn e\n");
    GROUPS(plan, "linear+logsumexp+leaky_relu+gelu");
    const lf_group *g = &plan->group[0];
    PHASES(g, "B x 9", "B x 1");
    assert_int_equal(g->schedule, LF_BY_ROWS);
    assert_int_equal(g->stats, 1);
    assert_stat(g, 0, LF_MONOID_maxsumexp, LF_SPAN_ROW, "1", "9");
    assert_int_equal(g->kepts, 0);
    assert_int_equal(g->phase[0].stores, 0);
    assert_null(g->why_apart);
    assert_int_equal(plan->buffers, 0);
    assert_int_equal(stored_bytes(plan), 0);
    assert_true(is_stored(plan, "x", LF_IN_INPUT) && is_stored(plan, "w", LF_PREPARED) &&
                is_stored(plan, "a", LF_NOT_STORED));
    assert_true(is_stored(plan, "e", LF_IN_OUTPUT) && g->product[0].weight_fixed && !g->product[0].w_is_kn);
    assert_true(plan->packed_only[plan->where[named("w")]] && !plan->packed_only[plan->where[named("c")]]);
    assert_true(!g->product[0].narrow && g->product[0].bias == LF_NONE);
}

/* Few columns: the product takes the bias in, and nothing else reads either. */
CASE(narrow_products_add_their_bias)
{
    const lf_plan *plan =
        plan_of("input x f32[B, 8]\nparam w f32[8, 8]\nparam c f32[8]\na = linear(x, w, c)\nb = relu(a)\nreturn b\n");
    const lf_group *g = &plan->group[0];
    assert_true(g->product[0].narrow && g->product[0].bias == named("c"));
    assert_int_equal(g->phase[0].steps, 2); /* product, relu */
    assert_true(plan->packed_only[plan->where[named("w")]] && plan->packed_only[plan->where[named("c")]]);
}

CASE(elements_needed_again_are_kept)
{
    const lf_plan *plan = plan_of(
        "input x f32[B, 8]\nparam w f32[6, 8]\na = linear(x, w)\nb = gelu(a)\nc = softmax(b, dim=-1)\nreturn c\n");
    GROUPS(plan, "linear+gelu+softmax");
    const lf_group *g = &plan->group[0];
    PHASES(g, "B x 6", "B x 6");
    assert_int_equal(g->kepts, 1);
    assert_int_equal(g->kept[0].node, named("b"));
    assert_true(extent_is(g->kept[0].width, "6") && !g->kept[0].one_row);
    assert_int_equal(stored_bytes(plan), 0); /* kept in a block of rows, not as a tensor */
}

CASE(cheap_elements_are_computed_again)
{
    const lf_plan *plan = plan_of("input x f32[B, 8]\na = mul(x, 2)\nb = softmax(a, dim=1)\nreturn b\n");
    GROUPS(plan, "mul+softmax");
    assert_int_equal(plan->group[0].kepts, 0);
    plan = plan_of("input x f32[B, 8]\na = gelu(x)\nb = softmax(a, dim=1)\nreturn b\n");
    GROUPS(plan, "gelu+softmax");
    assert_int_equal(plan->group[0].kepts, 1);
}

CASE(one_statistic_serves_logsumexp_and_softmax)
{
    const lf_plan *plan =
        plan_of("input x f32[B, 8]\nparam w f32[6, 8]\na = linear(x, w)\nl = logsumexp(a, dim=1, keepdim=true)\n"
                "s = softmax(a, dim=1)\nt = log_softmax(a, dim=1)\nm = sub(s, l)\nreturn m, t\n");
    GROUPS(plan, "linear+logsumexp+softmax+log_softmax+sub");
    assert_int_equal(plan->group[0].stats, 1);
    plan = plan_of("input x f32[B, 8]\na = gelu(x)\ns = softmax(a, dim=1)\nm = max(a, dim=1)\nn = layer_norm(a, [8])\n"
                   "return s, m, n\n");
    GROUPS(plan, "gelu+softmax+max+layer_norm");
    assert_int_equal(plan->group[0].stats, 3);
}

CASE(segments_and_windows)
{
    const lf_plan *plan =
        plan_of("input x f32[B, 8]\nparam w f32[12, 8]\nparam s f32[12]\na = linear(x, w)\nb = group_norm(a, 4, s, s)\n"
                "c = hardtanh(b)\nreturn c\n");
    GROUPS(plan, "linear+group_norm+hardtanh");
    assert_stat(&plan->group[0], 0, LF_MONOID_moments, LF_SPAN_SEGMENT, "4", "3");
    assert_int_equal(plan->group[0].stat[0].step, -1);
    assert_int_equal(plan->group[0].stat[0].from.place, LF_KEPT);
    plan = plan_of("input x f32[B, 8]\nparam w f32[12, 8]\na = linear(x, w)\n"
                   "b = max_pool1d(a, 3, stride=2, padding=1)\nc = sum(b, dim=1)\nd = mul(c, 0.5)\nreturn d\n");
    GROUPS(plan, "linear+max_pool1d+sum+mul");
    PHASES(&plan->group[0], "B x 12", "B x 6", "B x 1");
    assert_stat(&plan->group[0], 0, LF_MONOID_max, LF_SPAN_WINDOW, "6", "12");
    assert_stat(&plan->group[0], 1, LF_MONOID_sum, LF_SPAN_ROW, "1", "6");
    assert_int_equal(plan->group[0].stat[0].window.padding, 1);
    plan = plan_of("input x f32[B, 4, 6]\na = mean(x, dim=2)\nb = gelu(a)\nc = max(b, dim=1)\nreturn c\n");
    GROUPS(plan, "mean+gelu+max"); /* a statistic of each run of 6, then one over the 4 of them */
    assert_int_equal(plan->group[0].stats, 2);
}

CASE(norms_over_several_extents)
{
    const lf_plan *plan = plan_of(
        "input x f32[B, 4, 6]\ninput k f32[4, 1]\nparam w f32[4, 6]\na = mul(x, k)\nb = layer_norm(a, [4, 6], w, w)\n"
        "c = relu(b)\nd = max(c, dim=[1, 2])\nreturn d\n");
    GROUPS(plan, "mul+layer_norm+relu+max");
    PHASES(&plan->group[0], "B x 24", "B x 24", "B x 1");
    plan = plan_of("input x f32[B, 4, 6]\nparam w f32[4]\na = instance_norm(x, weight=w, bias=w)\n"
                   "b = rms_norm(a, [6])\nreturn b\n");
    GROUPS(plan, "instance_norm+rms_norm");
    assert_stat(&plan->group[0], 1, LF_MONOID_meansquare, LF_SPAN_ROW, "1", "6");
}

CASE(a_norm_before_a_product_joins_it)
{
    const lf_plan *plan = plan_of(
        "input x f32[B, S, 8]\nparam g f32[8]\nparam w f32[6, 8]\na = layer_norm(x, [8], g, g)\nb = linear(a, w)\n"
        "c = silu(b)\nreturn c\n");
    GROUPS(plan, "layer_norm+linear+silu");
    const lf_group *g = &plan->group[0];
    PHASES(g, "B*S x 8", "B*S x 8", "B*S x 6");
    assert_int_equal(g->product[0].phase, 2);
    assert_int_equal(g->x.place, LF_KEPT);
    assert_true(extent_is(g->product[0].k, "8") && extent_is(g->product[0].n, "6"));
    assert_int_equal(stored_bytes(plan), 0);
}

CASE(residuals)
{
    const lf_plan *plan = plan_of(
        "input x f32[B, 8]\nparam w f32[8, 8]\na = linear(x, w)\nb = mean(a, dim=1, keepdim=true)\nc = gelu(b)\n"
        "d = add(c, x)\nreturn d\n");
    GROUPS(plan, "linear+mean+gelu+add"); /* row of one number, back to the full width */
    PHASES(&plan->group[0], "B x 8", "B x 1", "B x 8");
    plan = plan_of("input x f32[B, 8]\nparam w f32[8, 8]\na = relu(x)\nb = linear(a, w)\nc = add(b, a)\nreturn c\n");
    GROUPS(plan, "relu+linear+add");
    assert_int_equal(stored_bytes(plan), 0);
}

/* ---- several kernels ---- */

CASE(two_linears_are_two_groups)
{
    const lf_plan *plan = plan_of(
        "input x f32[B, 8]\nparam w f32[6, 8]\nparam v f32[3, 6]\na = linear(x, w)\nb = gelu(a)\nc = linear(b, v)\n"
        "d = log_softmax(c, dim=1)\nreturn d\n");
    GROUPS(plan, "linear+gelu", "linear+log_softmax");
    assert_string_equal(plan->group[1].why_apart,
                        "each product is a kernel of its own, and the value between two is stored");
    assert_null(plan->group[0].why_apart);
    assert_int_equal(plan->buffers, 1);
    assert_int_equal(plan->buffer[0].node, named("b"));
    assert_int_equal(plan->buffer[0].first, 0);
    assert_int_equal(plan->buffer[0].last, 1);
    assert_true(is_stored(plan, "b", LF_IN_BUFFER) && is_stored(plan, "a", LF_NOT_STORED));
    assert_int_equal(stored_bytes(plan), 4 * 8 * 6);
}

/* ---- products that share what they multiply ---- */

/* The model that was read last. */
static lf_plan *plan_sharing(lf_sharing share_x)
{
    lf_plan *plan = NULL;
    assert_int_equal(lf_plan_build(&graph, (lf_plan_options){.fuse = true, .share_x = share_x}, &arena, &plan), LF_OK);
    assert_int_equal(lf_plan_verify(plan, &diag), LF_OK);
    return plan;
}

/* Which of the group's products each LF_STEP_PRODUCT of a phase is: "0 1". */
static const char *products_of(const lf_phase *p)
{
    const char *text = "";
    for (int32_t i = 0; i < p->steps; i++)
        if (p->step[i].kind == LF_STEP_PRODUCT)
            text = lf_arena_printf(&arena, "%s%s%d", text, *text ? " " : "", (int)p->step[i].product);
    return text;
}

CASE(gate_and_up_are_one_phase)
{
    const lf_plan *plan =
        plan_of("input x f32[B, 8]\nparam wg f32[12, 8]\nparam wu f32[12, 8]\nparam wd f32[8, 12]\n"
                "g = linear(x, wg)\ns = silu(g)\nu = linear(x, wu)\nh = mul(s, u)\nd = linear(h, wd)\nreturn d\n");
    GROUPS(plan, "linear+silu+linear+mul", "linear");
    const lf_group *g = &plan->group[0];
    PHASES(g, "B x 12");
    assert_int_equal(g->products, 2);
    assert_string_equal(products_of(&g->phase[0]), "0 1");
    assert_true(g->product[0].weight == named("wg") && g->product[1].weight == named("wu"));
    assert_int_equal(plan->products, 3);
    assert_int_equal(g->kepts, 0);
    assert_true(is_stored(plan, "g", LF_NOT_STORED) && is_stored(plan, "s", LF_NOT_STORED) &&
                is_stored(plan, "u", LF_NOT_STORED));
    assert_int_equal(stored_bytes(plan), 4 * 8 * 12);
    assert_null(g->why_apart);
    assert_string_equal(plan->group[1].why_apart,
                        "each product is a kernel of its own, and the value between two is stored");
}

CASE(siblings_are_one_group)
{
    /* of different widths, with and without a bias; w: as linear has it and as matmul does */
    const lf_plan *plan = plan_of("input x f32[B, 8]\nparam wq f32[12, 8]\nparam bq f32[12]\nparam wk f32[4, 8]\n"
                                  "param wv f32[8, 30]\nq = linear(x, wq, bq)\nk = linear(x, wk)\nv = matmul(x, wv)\n"
                                  "return q, k, v\n");
    GROUPS(plan, "linear*2+matmul");
    const lf_group *g = &plan->group[0];
    PHASES(g, "B x 12", "B x 4", "B x 30");
    for (int32_t i = 0; i < 3; i++) {
        assert_string_equal(products_of(&g->phase[i]), lf_arena_printf(&arena, "%d", (int)i));
        assert_int_equal(g->product[i].phase, i);
        assert_int_equal(g->product[i].index, i);
        assert_int_equal(g->product[i].narrow, i == 1);
        assert_int_equal(g->product[i].w_is_kn, i == 2);
    }
    /* of one width: a phase each, but where something reads two of them */
    const char text[] = "input x f32[B, 8]\nparam a f32[12, 8]\nparam b f32[12, 8]\nparam c f32[12, 8]\n"
                        "p = linear(x, a)\nq = linear(x, b)\nr = linear(x, c)\ns = sigmoid(r)\n";
    plan = plan_of(lf_arena_printf(&arena, "%sreturn p, q, s\n", text));
    PHASES(&plan->group[0], "B x 12", "B x 12", "B x 12");
    plan = plan_of(lf_arena_printf(&arena, "%st = mul(p, s)\nreturn t, q\n", text));
    PHASES(&plan->group[0], "B x 12", "B x 12");
    assert_string_equal(products_of(&plan->group[0].phase[0]), "0 2");
    assert_string_equal(products_of(&plan->group[0].phase[1]), "1");
}

CASE(heads_with_statistics_share_x)
{
    const lf_plan *plan = plan_of("input x f32[B, 8]\nparam a f32[8, 12]\nparam b f32[12, 8]\nparam c f32[2, 8]\n"
                                  "r = relu(x)\np = matmul(r, a)\ns = softmax(p, dim=1)\nq = linear(r, b)\n"
                                  "l = logsumexp(q, dim=1, keepdim=true)\nm = linear(r, c)\nreturn s, l, m\n");
    GROUPS(plan, "relu+matmul+softmax+linear+logsumexp+linear");
    const lf_group *g = &plan->group[0];
    PHASES(g, "B x 8", "B x 12", "B x 12", "B x 2", "B x 12", "B x 1");
    assert_int_equal(g->x.place, LF_KEPT); /* r, made on the way */
    assert_true(is_stored(plan, "r", LF_NOT_STORED));
    assert_stat(g, 0, LF_MONOID_maxsumexp, LF_SPAN_ROW, "1", "12");
    assert_int_equal(g->stat[0].phase, 1);
    assert_int_equal(g->stat[1].phase, 2);
    assert_int_equal(g->schedule, LF_BY_ROWS);
}

CASE(siblings_apart_say_why)
{
    const char two[] =
        "input x f32[B, 8]\nparam a f32[12, 8]\nparam b f32[12, 8]\np = linear(x, a)\nq = linear(x, b)\n";
    plan_of(lf_arena_printf(&arena, "%ss = silu(p)\nt = mul(s, q)\nreturn t\n", two));
    const lf_plan *plan = plan_sharing(LF_SHARE_NONE);
    GROUPS(plan, "linear", "linear+silu+mul");
    assert_null(plan->group[0].why_apart);
    assert_string_equal(plan->group[1].why_apart,
                        "kernels of this device multiply what they share by one weight only");
    /* a statistic over all rows */
    plan = plan_of(lf_arena_printf(&arena, "%sm = mean(p, dim=0)\nreturn m, q\n", two));
    GROUPS(plan, "linear+mean", "linear");
    assert_string_equal(
        plan->group[1].why_apart,
        "a statistic over all rows would have the values of every product kept until it is complete");
    /* two softmaxes that know nothing of each other */
    plan = plan_of(
        lf_arena_printf(&arena, "%ss = softmax(p, dim=1)\nt = softmax(q, dim=1)\nreturn s, t\n", two));
    GROUPS(plan, "linear+softmax", "linear+softmax");
    assert_string_equal(plan->group[1].why_apart,
                        "both kernels keep whole rows for later, and one would have room for fewer of them");
    /* a weight of the caller's */
    plan = plan_of("input x f32[B, 8]\ninput y f32[8, 12]\nparam a f32[12, 8]\np = linear(x, a)\nq = matmul(x, y)\n"
                   "return p, q\n");
    GROUPS(plan, "linear", "matmul");
    assert_string_equal(plan->group[1].why_apart,
                        "products share what they multiply only where weights and biases are prepared");
    /* what q goes on with wants a kernel that reads p */
    plan = plan_of("input x f32[B, 8]\nparam a f32[12, 8]\nparam b f32[9, 8]\nparam c f32[9, 12]\np = linear(x, a)\n"
                   "r = linear(p, c)\nq = linear(x, b)\nt = add(q, r)\nreturn t\n");
    GROUPS(plan, "linear", "linear", "linear+add");
    assert_true(covers(&plan->group[2], "q"));
    /* a transpose behind a statistic is what stands in the way, not the statistic */
    plan = plan_of("input x f32[B, 8]\ns = softmax(x, dim=1)\nt = transpose(s, 0, 1)\nreturn t\n");
    GROUPS(plan, "softmax", "transpose");
    assert_string_equal(plan->group[1].why_apart, "a transpose moves data, which wants it stored first");
}

CASE(two_products_are_made_as_one)
{
    const char three[] = "input x f32[B, 8]\nparam a f32[12, 8]\nparam b f32[8, 12]\nparam c f32[12, 8]\n"
                         "p = linear(x, a)\nq = matmul(x, b)\nr = linear(x, c)\ns = silu(p)\n",
               side[] = "tensor cores share x between two products of as many columns, which something reads side by "
                        "side";
    plan_of(lf_arena_printf(&arena, "%st = mul(s, q)\nu = logsumexp(t, dim=1)\nreturn u, r\n", three));
    const lf_plan *plan = plan_sharing(LF_SHARE_TWO);
    GROUPS(plan, "linear+matmul+silu+mul+logsumexp", "linear");
    assert_int_equal(lf_made_as_one(&plan->group[0]), 2);
    assert_int_equal(lf_columns_as_one(&plan->group[0]), 32); /* 12 are filled up to 16 */
    assert_int_equal(lf_made_as_one(&plan->group[1]), 1);
    assert_int_equal(lf_columns_as_one(&plan->group[1]), 12);
    assert_int_equal(lf_tiled_products(plan), 2);
    assert_string_equal(plan->group[1].why_apart, side);
    /* nothing reads both */
    plan_of(lf_arena_printf(&arena, "%sreturn s, q\n", three));
    plan = plan_sharing(LF_SHARE_TWO);
    GROUPS(plan, "linear+silu", "matmul");
    assert_string_equal(plan->group[1].why_apart, side);
    /* a third would be no pair */
    plan_of(lf_arena_printf(&arena, "%st = mul(s, q)\nu = mul(t, r)\nreturn u\n", three));
    plan = plan_sharing(LF_SHARE_TWO);
    assert_int_equal(plan->groups, 2);
    assert_int_equal(lf_made_as_one(&plan->group[0]) + lf_made_as_one(&plan->group[1]), 3);
    /* a statistic between them */
    plan_of(lf_arena_printf(&arena, "%st = softmax(p, dim=1)\nu = mul(t, q)\nreturn u\n", three));
    plan = plan_sharing(LF_SHARE_TWO);
    GROUPS(plan, "matmul", "linear+softmax+mul");
    assert_string_equal(plan->group[1].why_apart, side);
    /* the same, and side by side before: both would be kept until it is known, where apart one is */
    plan_of(lf_arena_printf(&arena, "%st = softmax(p, dim=1)\nu = mul(t, q)\nv = mul(p, q)\nreturn u, v\n", three));
    plan = plan_sharing(LF_SHARE_TWO);
    assert_int_equal(plan->groups, 2);
    assert_string_equal(plan->group[1].why_apart, "one kernel for both products would keep more rows for later");
    /* a narrow one, and one of other columns, that something reads side by side */
    plan_of("input x f32[B, 8]\nparam a f32[12, 8]\nparam b f32[1, 8]\np = linear(x, a)\nq = linear(x, b)\n"
            "r = mul(p, q)\nreturn r\n");
    plan = plan_sharing(LF_SHARE_TWO);
    assert_int_equal(plan->groups, 2);
}

CASE(a_diamond_with_a_product_between_makes_no_cycle)
{
    const lf_plan *plan = plan_of("input x f32[B, 8]\nparam w f32[8, 8]\na = relu(x)\np = linear(a, w)\n"
                                  "q = linear(p, w)\ns = add(q, a)\nreturn s\n");
    GROUPS(plan, "relu+linear", "linear+add");
    assert_true(is_stored(plan, "a", LF_IN_BUFFER) && is_stored(plan, "p", LF_IN_BUFFER));
    /* s may join neither the group of a (p stands between) nor leave q behind */
    plan = plan_of("input x f32[B, 8]\nparam w f32[8, 8]\np = linear(x, w)\na = gelu(p)\nq = linear(a, w)\n"
                   "r = linear(q, w)\ns = add(a, r)\nt = mul(s, p)\nreturn t\n");
    assert_int_equal(plan->groups, 3);
    assert_true(covers(&plan->group[2], "t") && covers(&plan->group[2], "s") && covers(&plan->group[2], "r"));
}

CASE(rows_and_columns_at_once_stand_apart)
{
    const lf_plan *plan = plan_of("input x f32[B, 8]\nparam w f32[6, 8]\na = linear(x, w)\n"
                                  "b = logsumexp(a, dim=[0, 1])\nc = add(a, b)\nreturn c\n");
    GROUPS(plan, "linear", "logsumexp+add");
    assert_string_equal(plan->group[1].why_apart, "its statistic runs over rows and columns at once");
    assert_int_equal(stored_bytes(plan), 4 * 8 * 6);
}

CASE(statistics_over_rows)
{
    const lf_plan *plan =
        plan_of("input x f32[B, 8]\nparam w f32[6, 8]\na = linear(x, w)\nb = sum(a, dim=0)\nc = relu(b)\nreturn c\n");
    GROUPS(plan, "linear+sum+relu");
    PHASES(&plan->group[0], "B x 6", "1 x 6");
    assert_int_equal(plan->group[0].schedule, LF_BY_PHASE);
    assert_stat(&plan->group[0], 0, LF_MONOID_sum, LF_SPAN_COLUMN, "6", "B");
    assert_int_equal(plan->group[0].kepts, 0); /* no [B, 6] anywhere */
    assert_int_equal(stored_bytes(plan), 0);
}

CASE(batch_statistics_keep_in_the_outputs_memory)
{
    const lf_plan *plan = plan_of("input x f32[B, 8]\nparam w f32[6, 8]\nparam s f32[6]\na = linear(x, w)\n"
                                  "b = batch_norm(a, None, None, s, s, training=true)\nc = relu(b)\nreturn c\n");
    GROUPS(plan, "linear+batch_norm+relu");
    const lf_group *g = &plan->group[0];
    assert_int_equal(g->schedule, LF_BY_PHASE);
    assert_int_equal(g->kepts, 1);
    assert_int_equal(g->kept[0].in_output, 0);
    assert_int_equal(stored_bytes(plan), 0);
    /* nothing of that size is returned: it takes memory of its own, and is counted */
    plan =
        plan_of("input x f32[B, 8]\nparam w f32[6, 8]\na = linear(x, w)\nb = batch_norm(a, None, None, training=true)\n"
                "c = sum(b, dim=1)\nreturn c\n");
    GROUPS(plan, "linear+batch_norm+sum");
    assert_int_equal(plan->group[0].kept[0].in_output, -1);
    assert_int_equal(stored_bytes(plan), 4 * 8 * 6);
}

CASE(running_statistics_are_pointwise)
{
    const lf_plan *plan = plan_of("input x f32[B, 3, 7]\nparam m f32[3]\nparam v f32[3]\na = batch_norm(x, m, v)\n"
                                  "b = instance_norm(a, m, v, m, v, use_input_stats=false)\nreturn b\n");
    GROUPS(plan, "batch_norm+instance_norm");
    PHASES(&plan->group[0], "3*B x 7");
    assert_int_equal(plan->group[0].stats, 0);
}

CASE(a_middle_axis_is_read_across)
{
    const lf_plan *plan = plan_of("input x f32[B, S, 7]\na = softmax(x, dim=1)\nb = relu(a)\nreturn b\n");
    GROUPS(plan, "softmax", "relu");
    assert_string_equal(plan->group[0].why_apart, "it is read across its extents, not along them");
    PHASES(&plan->group[0], "7*B x S", "7*B x S");
    assert_true(is_stored(plan, "a", LF_IN_BUFFER));
    plan =
        plan_of("input x f32[B, 3, 7]\nparam s f32[3]\na = batch_norm(x, None, None, s, s, training=true)\nreturn a\n");
    PHASES(&plan->group[0], "3 x 7*B", "3 x 7*B");
    plan = plan_of("input x f32[B, 3, 7]\na = logsumexp(x, dim=[0, 2], keepdim=true)\nreturn a\n");
    PHASES(&plan->group[0], "3 x 7*B", "3 x 1");
    /* an extent of 1 before it does not count */
    plan = plan_of("input x f32[1, 5, 7]\na = softmax(x, dim=1)\nreturn a\n");
    PHASES(&plan->group[0], "5 x 7", "5 x 7");
    assert_int_equal(plan->group[0].schedule, LF_BY_PHASE);
}

CASE(slices_read_other_columns)
{
    const lf_plan *plan = plan_of(
        "input x f32[B, 12]\ninput w f32[10, 12]\na = linear(x, w)\nb = slice(a, 1, 0, 5)\nc = slice(a, 1, 5)\n"
        "d = silu(b)\ne = mul(d, c)\nf = slice(x, 1, 2, 12, 2)\ng = add(e, f)\nreturn g\n");
    GROUPS(plan, "linear+slice*2+silu+mul+slice+add");
    const lf_group *g = &plan->group[0];
    assert_int_equal(g->phases, 2);
    assert_int_equal(g->kepts, 1); /* both halves are read from the one row */
    const lf_phase *p = &g->phase[1];
    assert_true(lf_extent_is(p->width, 5));
    int32_t first[12] = {0}, steps[12] = {0};
    for (int32_t i = 0; i < p->steps; i++)
        if (p->step[i].kind == LF_STEP_LOAD) {
            const lf_access *from = &p->step[i].from;
            first[from->first.coef]++;
            steps[from->stride[from->rank - 1].coef]++;
        }
    assert_int_equal(first[0] + first[5], 2);
    assert_int_equal(first[2], 1);
    assert_int_equal(steps[2], 1);
    /* along an axis that counts rows, what is sliced is stored first */
    plan = plan_of("input x f32[B, 6, 4]\nparam w f32[4, 4]\na = linear(x, w)\nb = slice(a, 1, 0, 2)\n"
                   "c = relu(b)\nreturn a, c\n");
    GROUPS(plan, "linear", "slice+relu");
}

CASE(transposes_read_what_is_stored)
{
    const lf_plan *plan = plan_of(
        "input x f32[B, 8]\nparam w f32[6, 8]\na = linear(x, w)\nb = transpose(a, 0, 1)\nc = relu(b)\nreturn c\n");
    GROUPS(plan, "linear", "transpose+relu");
    assert_string_equal(plan->group[1].why_apart, "a transpose moves data, which wants it stored first");
    PHASES(&plan->group[1], "6 x B");
    plan = plan_of(
        "input x f32[B, 8]\nt = transpose(x, 0, 1)\nr = relu(t)\nq = transpose(r, 0, 1)\ns = add(q, x)\nreturn s\n");
    GROUPS(plan, "transpose+relu", "transpose+add");
    plan = plan_of("input x f32[B, 8]\nparam w f32[8, 6]\nt = transpose(w, 0, 1)\na = linear(x, t)\nreturn a\n");
    GROUPS(plan, "linear"); /* of parameters alone: done when weights are prepared */
    assert_true(is_stored(plan, "t", LF_PREPARED));
}

CASE(a_weight_computed_at_the_call)
{
    const lf_plan *plan = plan_of("input x f32[B, 8]\ninput y f32[B, 8]\nn = rms_norm(y, [8])\na = linear(x, n)\n"
                                  "b = softmax(a, dim=1)\nreturn b\n");
    GROUPS(plan, "rms_norm", "linear+softmax");
    assert_string_equal(plan->group[1].why_apart, "its weight is computed by the other kernel");
    assert_false(plan->group[1].product[0].weight_fixed);
    assert_int_equal(plan->buffer[0].last, 1);
    plan = plan_of("input x f32[B, 8]\ninput y f32[8, S]\na = matmul(x, y)\nreturn a\n");
    assert_true(plan->group[0].product[0].w_is_kn);
}

/* ---- what is returned ---- */

CASE(returned_leaves_views_and_duplicates_are_copied)
{
    const lf_plan *plan = plan_of("input x f32[B, 8]\nparam p f32[8]\nr = relu(x)\nv = reshape(r, [-1])\nc = neg(p)\n"
                                  "return x, p, r, r, v, c\n");
    GROUPS(plan, "relu", "input", "param", "relu", "relu", "neg");
    assert_int_equal(plan->where[named("r")], 2);
    const int32_t copied[] = {0, 1, 3, 4, 5};
    for (int i = 0; i < 5; i++) {
        const lf_group *g = &plan->group[i + 1];
        assert_int_equal(g->phase[0].store[0].to.place, LF_OUTPUT);
        assert_int_equal(g->phase[0].store[0].to.index, copied[i]);
        assert_string_equal(g->why_apart, "the value is returned and also lives elsewhere, so it is copied");
    }
    /* a view alone names the value's memory */
    plan = plan_of("input x f32[B, 8]\nr = relu(x)\nv = flatten(r)\nreturn v\n");
    GROUPS(plan, "relu");
    assert_true(is_stored(plan, "r", LF_IN_OUTPUT));
}

CASE(several_outputs_of_one_group)
{
    const lf_plan *plan = plan_of(
        "input x f32[B, 8]\nparam w f32[6, 8]\na = linear(x, w)\nb = sum(a, dim=1)\nc = max(a, dim=0)\nd = gelu(a)\n"
        "return d, a, b, c\n");
    GROUPS(plan, "linear+sum+max+gelu");
    assert_int_equal(plan->where[named("a")], 1);
    assert_int_equal(plan->where[named("d")], 0);
    assert_int_equal(stored_bytes(plan), 0);
}

CASE(nothing_but_parameters)
{
    const lf_plan *plan =
        plan_of("input x f32[B, 2]\nparam p f32[8]\na = softmax(p, dim=0)\nb = add(a, 1)\nreturn b\n");
    GROUPS(plan, "add"); /* prepared, then copied */
    assert_true(is_stored(plan, "b", LF_PREPARED) && is_stored(plan, "a", LF_NOT_STORED));
    assert_int_equal(plan->group[0].phase[0].step[0].kind, LF_STEP_LOAD);
}

static lf_node two_args(lf_op op, lf_node x, lf_node y)
{
    lf_node args[LF_MAX_ARGS] = {x, y, LF_NONE, LF_NONE, LF_NONE}, n;
    assert_int_equal(lf_graph_op(&graph, NULL, op, args, NULL, &n), LF_OK);
    return n;
}

/* Rewrites make constants with a shape; here one is built by hand. */
CASE(a_constant_output_is_a_number)
{
    read_model("input x f32[B, 2]\na = relu(x)\nreturn a\n");
    lf_node c, sum;
    assert_int_equal(lf_graph_constant(&graph, 1.5, &lf_at(&graph, 0)->shape, &c), LF_OK);
    sum = two_args(LF_OP_add, named("a"), c);
    assert_int_equal(lf_graph_return(&graph, (lf_node[]){c, sum}, 2), LF_OK);
    check_plain();
    const lf_plan *plan = build(true);
    GROUPS(plan, "relu+add", "constant");
    assert_int_equal(plan->group[1].phase[0].step[0].kind, LF_STEP_NUMBER);
    assert_int_equal(plan->storage[c], LF_NOT_STORED);
    assert_int_equal(plan->prepareds, 0);
}

/* A row is redone when its witness is not finite: rows of the batch stay rows of the group, never columns of one. */
CASE(guards_watch_rows)
{
    read_model("input x f32[B, 2, 3]\ninput y f32[B, 1, 1]\na = logsumexp(x, dim=2, keepdim=true)\nreturn a\n");
    lf_node sum = two_args(LF_OP_add, two_args(LF_OP_guard, named("y"), named("y")), named("a"));
    assert_int_equal(lf_graph_return(&graph, (lf_node[]){two_args(LF_OP_guard, sum, named("a"))}, 1), LF_OK);
    check_plain();
    const lf_plan *plan = build(true);
    assert_int_equal(plan->groups, 1);
    assert_true(extent_is(plan->group[0].rows, "B"));
    int32_t watches = 0;
    for (int32_t p = 0; p < plan->group[0].phases; p++)
        watches += plan->group[0].phase[p].watches;
    assert_int_equal(watches, 2);
}

CASE(dead_values_are_left_out)
{
    const lf_plan *plan = plan_of("input x f32[B, 8]\nparam w f32[6, 8]\nd = linear(x, w)\na = relu(x)\nreturn a\n");
    GROUPS(plan, "relu");
    assert_true(is_stored(plan, "d", LF_NOT_STORED) && is_stored(plan, "w", LF_NOT_STORED));
}

CASE(views_between)
{
    const lf_plan *plan = plan_of(
        "input x f32[B, 8]\nparam w f32[12, 8]\na = linear(x, w)\nv = reshape(a, [-1, 3, 4])\nb = softmax(v, dim=2)\n"
        "f = flatten(b, 1)\nc = add(f, a)\nreturn c\n");
    GROUPS(plan, "linear+softmax+add");
    assert_stat(&plan->group[0], 0, LF_MONOID_maxsumexp, LF_SPAN_SEGMENT, "3", "4");
    plan = plan_of("input x f32[B, 12]\na = gelu(x)\nv = reshape(a, [4, -1])\nb = max(v, dim=1)\nreturn b\n");
    GROUPS(plan, "gelu+max"); /* rows of 12 are no rows of 3 B: all of it is one row, cut in four */
    assert_stat(&plan->group[0], 0, LF_MONOID_max, LF_SPAN_SEGMENT, "4", "3*B");
}

/* ---- size ---- */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum { LONG_CHAIN = 5000, FAN = 300 };

static char *text_of(size_t size)
{
    char *text = lf_arena_alloc(&arena, size);
    assert_non_null(text);
    return text;
}

CASE(long_chains_plan_quickly)
{
    char *text = text_of(64 * LONG_CHAIN), *at = text;
    at += sprintf(at, "input x f32[B, 64]\nv0 = add(x, 1)\n");
    for (int i = 1; i < LONG_CHAIN; i++)
        at += sprintf(at, "v%d = %s(v%d)\n", i, i % 7 == 3 ? "gelu" : i % 2 ? "neg" : "abs", i - 1);
    sprintf(at, "return v%d\n", LONG_CHAIN - 1);
    read_model(text);
    double begun = seconds();
    lf_plan *plan = NULL;
    const lf_plan_options options = {.fuse = true, .share_x = LF_SHARE_ALL};
    assert_int_equal(lf_plan_build(&graph, options, &arena, &plan), LF_OK);
    double took = seconds() - begun;
    assert_int_equal(lf_plan_verify(plan, &diag), LF_OK);
    print_message("%d nodes planned in %.3f s, %d groups\n", LONG_CHAIN, took, (int)plan->groups);
    if (!SANITIZED && !getenv("LINFUSE_EMULATED"))
        assert_true(took < 2.0);
    int32_t covered = 0;
    for (int32_t i = 0; i < plan->groups; i++)
        covered += plan->group[i].covers;
    assert_int_equal(covered, LONG_CHAIN);
    assert_true(plan->groups <= LONG_CHAIN / 200 + 1);
    assert_string_equal(plan->group[1].why_apart, "the kernel would hold too many operations");
}

CASE(wide_graphs)
{
    char *text = text_of(64 * 3 * FAN), *at = text; /* one value read by many, all of them summed */
    at += sprintf(at, "input x f32[B, 8]\nparam w f32[8, 8]\nv = linear(x, w)\ns0 = gelu(v)\n");
    for (int i = 1; i < FAN; i++)
        at += sprintf(at, "u%d = mul(v, %d)\ns%d = add(s%d, u%d)\n", i, i, i, i - 1, i);
    sprintf(at, "return s%d\n", FAN - 1);
    const lf_plan *plan = plan_of(text);
    assert_true(plan->groups <= 2 * FAN / 128);
    at = text; /* many inputs, and every one of them returned with something added */
    for (int i = 0; i < 40; i++)
        at += sprintf(at, "input x%d f32[B, 8]\n", i);
    for (int i = 0; i < 40; i++)
        at += sprintf(at, "y%d = add(x%d, x%d)\n", i, i, (i + 1) % 40);
    for (int i = 0; i < 40; i++)
        at += sprintf(at, i ? ", y%d" : "return y%d", i);
    sprintf(at, "\n");
    plan = plan_of(text);
    assert_int_equal(plan->buffers, 0);
}

/* ---- the plans of the reference models, as text ---- */

static char *slurp(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    char *text = text_of(1 << 16);
    size_t n = fread(text, 1, (1 << 16) - 1, f);
    text[n] = 0;
    fclose(f);
    return text;
}

static void compare_golden(const char *model)
{
    char path[1024];
    const char *source = getenv("LINFUSE_SOURCE_DIR"), *name = strrchr(model, '/') + 1;
    snprintf(path, sizeof path, "%s/tests/golden/plan_%.*s.txt", source ? source : ".", (int)strcspn(name, "."), name);
    char *text = slurp(model), *got = NULL;
    assert_non_null(text);
    const lf_plan *plan = plan_of(text);
    assert_int_equal(lf_plan_print(plan, &got), LF_OK);
    if (getenv("LINFUSE_REFRESH")) {
        FILE *f = fopen(path, "wb");
        assert_non_null(f);
        fputs(got, f);
        assert_int_equal(fclose(f), 0);
    }
    const char *want = slurp(path);
    if (!want)
        print_error("%s is not there; LINFUSE_REFRESH=1 writes it\n", path);
    assert_non_null(want);
    if (strcmp(got, want) != 0)
        print_error("%s differs from the plan made now (LINFUSE_REFRESH=1 takes it):\n%s", path, got);
    assert_string_equal(got, want);
    free(got);
}

CASE(golden_plans)
{
    char pattern[1024];
    const char *source = getenv("LINFUSE_SOURCE_DIR");
    snprintf(pattern, sizeof pattern, "%s/models/*.lf", source ? source : ".");
    glob_t found;
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_true(found.gl_pathc >= 3);
    for (size_t i = 0; i < found.gl_pathc; i++)
        compare_golden(found.gl_pathv[i]);
    globfree(&found);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(reduced_tail_stays_reduced),
        TEST(narrow_products_add_their_bias),
        TEST(elements_needed_again_are_kept),
        TEST(cheap_elements_are_computed_again),
        TEST(one_statistic_serves_logsumexp_and_softmax),
        TEST(segments_and_windows),
        TEST(norms_over_several_extents),
        TEST(a_norm_before_a_product_joins_it),
        TEST(residuals),
        TEST(two_linears_are_two_groups),
        TEST(gate_and_up_are_one_phase),
        TEST(siblings_are_one_group),
        TEST(heads_with_statistics_share_x),
        TEST(siblings_apart_say_why),
        TEST(two_products_are_made_as_one),
        TEST(a_diamond_with_a_product_between_makes_no_cycle),
        TEST(rows_and_columns_at_once_stand_apart),
        TEST(statistics_over_rows),
        TEST(batch_statistics_keep_in_the_outputs_memory),
        TEST(running_statistics_are_pointwise),
        TEST(a_middle_axis_is_read_across),
        TEST(slices_read_other_columns),
        TEST(transposes_read_what_is_stored),
        TEST(a_weight_computed_at_the_call),
        TEST(returned_leaves_views_and_duplicates_are_copied),
        TEST(several_outputs_of_one_group),
        TEST(nothing_but_parameters),
        TEST(a_constant_output_is_a_number),
        TEST(guards_watch_rows),
        TEST(dead_values_are_left_out),
        TEST(views_between),
        TEST(long_chains_plan_quickly),
        TEST(wide_graphs),
        TEST(golden_plans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
