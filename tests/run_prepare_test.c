/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that are not finite, with every rule that is not exact: the model comes out as it is written whichever weight
 * holds them, and only weights that a rule has folded or dropped are looked at. */
#include "api_fixture.h"

#include "cpu/cpu.h"
#include "plan/plan.h"
#include "prepare/prepare.h"
#include "rewrite/rewrite.h"

#define X      "input x f32[B, 24]\n"
#define LINEAR "param w f32[30, 24]\nparam b f32[30]\na = linear(x, w, b)\n"
#define ROW    "input r f32[B, 1]\n"

static const struct {
    const char *rule, *text;
    const char *params, *checked; /* by their initials */
} laws[] = {
    {"fold_bias", X LINEAR "param c f32[30]\nd = add(a, c)\nreturn d\n", "wbc", "bc"},
    {"fold_bias", X LINEAR "param c f32[30]\nd = sub(c, a)\nreturn d\n", "wbc", "wbc"},
    {"fold_bias", X "param w f32[30, 24]\nparam c f32[30]\na = linear(x, w)\nd = add(a, c)\nreturn d\n", "wc", ""},
    {"fold_scale", X LINEAR "d = mul(a, 0.5)\nreturn d\n", "wb", "wb"},
    {"fold_gain", X LINEAR "param s f32[30]\nd = mul(a, s)\nreturn d\n", "wbs", "wbs"},
    {"fold_input_scale", X "param s f32[24]\ny = mul(x, s)\nparam w f32[30, 24]\nparam b f32[30]\n"
                           "a = linear(y, w, b)\nreturn a\n", "swb", "sw"},
    {"merge_linears", X LINEAR "param v f32[4, 30]\nparam d f32[4]\nc = linear(a, v, d)\nreturn c\n", "wbvd", "wbvd"},
    {"through_held", X LINEAR "c = clamp(a, min=2, max=2)\nd = exp(c)\nreturn d\n", "wb", ""},
    {"norm_of_known", X "param m f32[24]\nparam var f32[24]\nparam w f32[24]\nparam b f32[24]\n"
                        "d = batch_norm(x, m, var, w, b)\nreturn d\n", "mvwb", "vw"},
    {"leaky_relu_twice", X LINEAR "c = leaky_relu(a, 0.1)\nd = leaky_relu(c, 0.2)\nreturn d\n", "wb", ""},
    {"sum_of_linear", X LINEAR "m = mean(a, dim=1)\ng = gelu(m)\nreturn g\n", "wb", "wb"},
    {"sum_through_scale", X ROW LINEAR "c = mul(a, r)\nm = mean(c, dim=1, keepdim=true)\ng = gelu(m)\nreturn g\n", "wb",
     "wb"},
    {"avg_pool_of_linear", X LINEAR "m = avg_pool1d(a, kernel_size=3)\ng = tanh(m)\nreturn g\n", "wb", "wb"},
    {"minus_itself", X "param w f32[1, 24]\nparam b f32[1]\na = linear(x, w, b)\nm = mean(a, dim=1, keepdim=true)\n"
                       "d = sub(a, m)\nreturn d\n", "wb", "wb"},
    {"softmax_of_one", X "param w f32[1, 24]\nparam b f32[1]\na = linear(x, w, b)\nd = softmax(a, dim=1)\nreturn d\n",
     "wb", ""},
    {"softmax_shift", X LINEAR "param c f32[1]\ng = gelu(a)\nd = add(g, c)\ne = softmax(d, dim=1)\nreturn e\n",
     "wbc", "c"},
    /* read elsewhere all the same, and computed with nowhere */
    {"softmax_shift", X LINEAR "param c f32[1]\ng = gelu(a)\nd = add(g, c)\ne = softmax(d, dim=1)\n"
                      "f = minimum(e, c)\nreturn f\n", "wbc", "c"},
    {"softmax_row_shift", X LINEAR "param v f32[1, 24]\nr = linear(x, v)\ne = tanh(r)\nd = add(a, e)\n"
                          "f = softmax(d, dim=1)\nreturn f\n", "wbv", ""},
    {"logsumexp_shift", X LINEAR "c = relu(a)\nd = add(c, 1.5)\ne = logsumexp(d, dim=1)\nreturn e\n", "wb", ""},
    {"exp_of_log_softmax", X LINEAR "c = log_softmax(a, dim=1)\nd = exp(c)\nreturn d\n", "wb", ""},
    {"log_of_softmax", X LINEAR "c = softmax(a, dim=1)\nd = log(c)\nreturn d\n", "wb", ""},
    {"minus_logsumexp", X LINEAR "l = logsumexp(a, dim=1, keepdim=true)\nd = sub(a, l)\nreturn d\n", "wb", ""},
    {"reduce_in_turn", "input x f32[B, 5, 24]\n" LINEAR "c = max(a, dim=[1, 2])\nreturn c\n", "wb", ""},
    {"sum_of_one", X "param w f32[1, 24]\nparam b f32[1]\na = linear(x, w, b)\nd = sum(a, dim=1)\nreturn d\n", "wb",
     ""},
    {"silu_by_hand", X LINEAR "c = sigmoid(a)\nd = mul(a, c)\nreturn d\n", "wb", ""},
    {"swish_by_hand", X LINEAR "c = mul(a, 1.702)\nd = sigmoid(c)\ne = mul(a, d)\nreturn e\n", "wb", ""},
    {"gelu_by_hand", X LINEAR "c = div(a, 1.4142135623730951)\nd = erf(c)\ne = add(d, 1)\nf = mul(a, 0.5)\n"
                     "g = mul(f, e)\nreturn g\n", "wb", ""},
    {"rms_norm_by_hand", X LINEAR "c = pow(a, 2)\nd = mean(c, dim=1, keepdim=true)\ne = add(d, 1e-6)\nf = rsqrt(e)\n"
                         "g = mul(a, f)\nreturn g\n", "wb", ""},
    {"max_through_monotone", X LINEAR "c = tanh(a)\nm = max(c, dim=1)\nreturn m\n", "wb", ""},
};
enum { LAWS = sizeof laws / sizeof *laws };

#define OK(call, message) expect(LF_OK, call, message, __FILE__, __LINE__)

/* A model rewritten and planned, with the plan of it as written. */
typedef struct planned {
    lf_arena arena;
    lf_diag diag;
    lf_graph graph, fused_graph, exact_graph;
    lf_notes notes;
    lf_plan *fused, *exact;
    lf_prepare_want want[8];
} planned;

static void rewritten(planned *p, const lf_rewrite_options *options, lf_graph *out, lf_notes *notes, lf_plan **plan)
{
    lf_node *home = lf_arena_array(&p->arena, (size_t)p->graph.count, sizeof *home);
    lf_plan_options plans = lf_cpu_backend.plans(NULL);
    plans.fuse = true;
    assert_non_null(home);
    OK(lf_graph_init(out, &p->arena, &p->diag), p->diag.text);
    OK(lf_rewrite(&p->graph, options, out, home, notes), p->diag.text);
    OK(lf_plan_build(out, plans, &p->arena, plan), p->diag.text);
}

static void plan_begin(planned *p, const char *text, bool assume_finite)
{
    lf_notes exact_notes;
    memset(p, 0, sizeof *p);
    OK(lf_graph_init(&p->graph, &p->arena, &p->diag), p->diag.text);
    OK(lf_text_read(&p->graph, "test", text, strlen(text)), p->diag.text);
    rewritten(p, &(lf_rewrite_options){.assume_finite = assume_finite}, &p->fused_graph, &p->notes, &p->fused);
    rewritten(p, &(lf_rewrite_options){.as_written = true}, &p->exact_graph, &exact_notes, &p->exact);
    assert_true(p->graph.params <= 8);
    OK(lf_prepare_needs(p->fused, p->exact, p->notes.trusted, p->want, &p->diag), p->diag.text);
}

static bool applied(const planned *p, const char *rule)
{
    for (int32_t i = 0; i < p->notes.done_count; i++)
        if (strcmp(p->notes.done[i].rule, rule) == 0)
            return true;
    return false;
}

static bool is_checked(const planned *p, char initial)
{
    for (int32_t i = 0; i < p->graph.params; i++)
        if (lf_at(&p->graph, p->graph.param[i])->name[0] == initial)
            return p->want[i].check;
    fail_msg("no parameter %c", initial);
    return false;
}

static void only_what_is_folded_or_dropped_is_looked_at(void **state)
{
    (void)state;
    for (size_t i = 0; i < LAWS; i++) {
        planned p;
        plan_begin(&p, laws[i].text, false);
        if (!applied(&p, laws[i].rule))
            fail_msg("law %zu: %s was not applied", i, laws[i].rule);
        for (const char *c = laws[i].params; *c; c++)
            if (is_checked(&p, *c) != (strchr(laws[i].checked, *c) != NULL))
                fail_msg("law %zu, %s: parameter %c is%s checked", i, laws[i].rule, *c,
                         is_checked(&p, *c) ? "" : " not");
        OK(lf_prepare_needs(p.fused, NULL, NULL, p.want, &p.diag), p.diag.text);
        for (const char *c = laws[i].params; *c; c++)
            assert_false(is_checked(&p, *c)); /* nothing could be run instead */
        lf_arena_free(&p.arena);
    }
}

/* A rule without a row in the table would not be tested here. */
static void every_rule_is_here(void **state)
{
    (void)state;
    for (size_t r = 0; lf_rule_at(r); r++) {
        bool found = lf_rule_at(r)->class == LF_EXACT;
        for (size_t i = 0; i < LAWS; i++)
            found = found || strcmp(laws[i].rule, lf_rule_at(r)->name) == 0;
        if (!found)
            fail_msg("no model for rule %s", lf_rule_at(r)->name);
    }
}

/* With the guards switched off nothing else catches what comes from weights: then all that a guarded rule is made of is
 * looked at. */
static void guards_switched_off_trust_weights(void **state)
{
    (void)state;
    static const char *const rules[] = {"softmax_of_one", "softmax_row_shift", "log_of_softmax", "minus_logsumexp"};
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++)
        for (size_t i = 0; i < LAWS; i++) {
            planned p;
            if (strcmp(laws[i].rule, rules[r]) != 0)
                continue;
            plan_begin(&p, laws[i].text, true);
            assert_true(applied(&p, rules[r]));
            for (const char *c = laws[i].params; *c; c++)
                assert_true(is_checked(&p, *c));
            lf_arena_free(&p.arena);
        }
}

static void plant(size_t law, char initial, float bad, const char *words)
{
    rig r = rig_begin(2, laws[law].text, words);
    tensors t = tensors_begin(r.model, (int64_t[]){9});
    char what[96];
    bool planted = false;
    for (size_t i = 0; i < lf_model_port_count(r.model, LF_PORT_PARAM); i++) {
        const char *name = lf_model_port_name(r.model, LF_PORT_PARAM, i);
        const size_t count = port_elements(r.model, LF_PORT_PARAM, i, t.dims);
        const bool variance = strcmp(name, "var") == 0; /* drawn, some would be negative */
        if (name[0] != initial && !variance)
            continue;
        const float *given = lf_program_param(r.program, name).data;
        float *values = malloc(count * sizeof *values);
        assert_true(values && given);
        for (size_t k = 0; k < count; k++)
            values[k] = variance ? 0.5f : given[k];
        if (name[0] == initial)
            values[count * 3 / 7] = bad;
        OK_PROGRAM(r.program, give(r.program, name, values));
        free(values);
        planted = planted || name[0] == initial;
    }
    assert_true(planted);
    OK_PROGRAM(r.program, lf_program_prepare(r.program));
    tensors_run(&t, r.call);
    tensors_eval(&t, r.model, r.program);
    snprintf(what, sizeof what, "law %zu, %s: %g in parameter %c", law, laws[law].rule, (double)bad, initial);
    assert_close(&t, tolerance(30), what);
    tensors_end(&t);
    rig_end(&r);
}

static void the_model_comes_out_as_written(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < LAWS; i++)
        for (const char *c = laws[i].params; *c; c++)
            for (int k = 0; k < 3; k++) {
                plant(i, *c, bad[k], NULL);
                plant(i, *c, bad[k], "assume_finite=true");
            }
}

/* Rounding loses what is folded, and there is no other way to run the model: no rule was applied. */
static void digits_lost_without_a_rule_are_no_reason(void **state)
{
    (void)state;
    rig r = rig_begin(1, X "param p f32[24]\nc = mul(p, 1e-30)\nd = mul(c, 1e-30)\ny = add(x, d)\nreturn y\n", NULL);
    tensors t = tensors_begin(r.model, (int64_t[]){3});
    OK_PROGRAM(r.program, lf_program_prepare(r.program));
    tensors_run(&t, r.call);
    tensors_eval(&t, r.model, r.program);
    assert_close(&t, tolerance(1), "x plus less than the least denormal");
    tensors_end(&t);
    rig_end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digits_lost_without_a_rule_are_no_reason),
        cmocka_unit_test(only_what_is_folded_or_dropped_is_looked_at),
        cmocka_unit_test(every_rule_is_here),
        cmocka_unit_test(guards_switched_off_trust_weights),
        cmocka_unit_test(the_model_comes_out_as_written),
    };
    return cmocka_run_group_tests_name("run_prepare", tests, NULL, NULL);
}
