/* SPDX-License-Identifier: Apache-2.0 */
/* The driver: refusals, switches, names, homes, long chains, random graphs, memory that runs out. */
#include "rewrite_support.h"

#include "base/str.h"

#include <time.h>

#define X      "input x f32[B, 4]; "
#define LINEAR X "param w f32[6, 4]; param b f32[6]; a = linear(x, w, b); "

static const lf_note *find_note(const lf_note *notes, int32_t count, const char *rule)
{
    for (int32_t i = 0; i < count; i++)
        if (strcmp(notes[i].rule, rule) == 0)
            return &notes[i];
    return NULL;
}

/* ---- what is left alone ---- */

/* Rewrites that would be wrong for some number, or no gain: with every rule on, nothing changes. */
static void leaves_alone(void **state)
{
    (void)state;
    static const char *const models[] = {
        X "a = mul(x, 0); return a",
        X "a = sub(x, x); return a",
        X "a = div(x, x); return a",
        X "a = sub(0, x); return a",
        X "a = exp(x); b = log(a); return b",
        X "a = log(x); b = exp(a); return b",
        X "a = pow(x, 0); return a",
        X "a = sqrt(x); b = max(a, dim=1); return b",
        X "a = log(x); b = min(a, dim=1); return b",
        X "a = leaky_relu(x, negative_slope=0); b = max(a, dim=1); return b",
        X "a = mul(x, 0); b = max(a, dim=1); return b",
        X "a = gelu(x); b = max(a, dim=1); return b",
        X "a = rsqrt(x); b = abs(a); return b",
        X "a = leaky_relu(x, negative_slope=1e-30); b = leaky_relu(a, negative_slope=1e-30); return b",
        X "a = mul(x, 3); b = softmax(a, dim=1); return b",
        X "a = sub(1, x); b = softmax(a, dim=1); return b",
        X "param p f32[4]; a = add(x, p); b = softmax(a, dim=1); return b",
        X "param p f32[4]; a = add(x, p); b = logsumexp(a, dim=1); return b",
        X "param p f32[4]; a = mul(x, p); b = sum(a, dim=1); return b",
        X "a = sum(x, dim=1); b = logsumexp(x, dim=1); c = add(a, b); return c",
        X "input y f32[4, 3]; a = matmul(x, y); return a",
        LINEAR "c = mul(a, a); return c",
        LINEAR "param p f32[6]; c = div(p, a); return c",
        LINEAR "c = max(a, dim=1); return c",
        LINEAR "c = avg_pool1d(a, kernel_size=3, stride=1, padding=1); return c",
        "input x f32[5, 4]; param w f32[6, 4]; param p f32[5, 1]; a = linear(x, w); b = mul(a, p); return b",
        "input x f32[4, 4]; input w f32[6, 4]; a = linear(x, w); b = mul(a, 2); c = sum(b, dim=1); return c",
    };
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        model before;
        rewritten r;
        model_read(&before, models[i]);
        model_rewrite(&before, (lf_rewrite_options){0}, &r);
        char *was = computed_text(&before.g), *is = computed_text(&r.m.g);
        if (r.notes.done_count > 0 || strcmp(was, is) != 0)
            fail_msg("%s\nbecame\n%s", was, is);
        free(was);
        free(is);
        rewritten_free(&r);
        lf_arena_free(&before.arena);
    }
}

/* ---- refusals ---- */

static void says_why_not(void **state)
{
    (void)state;
    static const struct {
        const char *rule, *at, *why, *text;
    } cases[] = {
        {"fold_scale", "c", "the product is used elsewhere", LINEAR "c = mul(a, 0.5); return c, a"},
        {"fold_gain", "c", "the product is used elsewhere", LINEAR "c = mul(a, 2); return c, a"},
        {"fold_gain", "c", "a guard redoes single rows, and here rows see each other (d)",
         LINEAR "c = mul(a, 2); d = sum(c, dim=0); return d"},
        {"fold_scale", "c", "the product is used elsewhere", LINEAR "c = neg(a); return c, a"},
        {"fold_bias", "c", "the product is used elsewhere", LINEAR "c = add(a, b); d = relu(a); return c, d"},
        {"sum_of_linear", "c", "the product is used elsewhere", LINEAR "c = mean(a, dim=1); return c, a"},
        {"avg_pool_of_linear", "c", "the product is used elsewhere", LINEAR "c = avg_pool1d(a, 2); return c, a"},
        {"avg_pool_of_linear", "c", "6 columns would become 7", LINEAR "c = avg_pool1d(a, 2, 1, 1); return c"},
        {"max_through_monotone", "c", "the relu is used elsewhere", X "a = relu(x); c = max(a, dim=1); return c, a"},
        {"softmax_shift", "c", "the shifted value is used elsewhere",
         X "a = add(x, 1); c = softmax(a, 1); return c, a"},
        {"log_of_softmax", "c", "the softmax is used elsewhere", X "a = softmax(x, 1); c = log(a); return c, a"},
        {"merge_linears", "d", "at batch 6 merging costs more: 0.00012 M against 5.4e-05 M multiply-adds",
         "input x f32[B, 4]; param w f32[1, 4]; param v f32[5, 1]; a = linear(x, w); "
         "d = linear(a, v); return d"},
        {"merge_linears", "d", "the first product is used elsewhere",
         LINEAR "param v f32[1, 6]; d = linear(a, v); return d, a"},
        {"sum_of_linear", "c", "a guard redoes single rows, and here rows see each other (d)",
         LINEAR "c = sum(a, dim=1); d = sum(c, dim=0); return d"},
        {"norm_of_known", "c", "its statistics and weights are not parameters",
         X "input m f32[4]; input var f32[4]; c = batch_norm(x, m, var); return c"},
        {"minus_itself", "c", "whether it is finite cannot be told without computing it", X "c = sub(x, x); return c"},
        {"leaky_relu_twice", "c", "slopes 1e-30 and 1e-30 multiply to 1e-60, which f32 does not hold",
         X "a = leaky_relu(x, 1e-30); c = leaky_relu(a, 1e-30); return c"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        model before;
        rewritten r;
        model_read(&before, cases[i].text);
        model_rewrite(&before, (lf_rewrite_options){0}, &r);
        const lf_note *note = find_note(r.notes.refused, r.notes.refused_count, cases[i].rule);
        if (!note)
            fail_msg("no refusal by %s in %s", cases[i].rule, cases[i].text);
        assert_string_equal(note->why, cases[i].why);
        assert_string_equal(note->at, cases[i].at);
        assert_int_equal(count_notes(r.notes.refused, r.notes.refused_count, cases[i].rule), 1);
        compare(&before.g, &r.m.g, cases[i].text);
        rewritten_free(&r);
        lf_arena_free(&before.arena);
    }
}

/* ---- options ---- */

static void merging_depends_on_batch(void **state)
{
    (void)state;
    model before;
    rewritten r;
    model_read(&before, "input x f32[B, 1000]; param w f32[1000, 1000]; param v f32[1000, 1000]; a = linear(x, w); "
                        "d = linear(a, v); return d");
    int64_t dims[LF_MAX_SYMBOLS] = {1};
    model_rewrite(&before, (lf_rewrite_options){.dims = dims}, &r);
    assert_int_equal(r.notes.done_count, 0);
    assert_string_equal(r.notes.refused[0].why, "at batch 1 merging costs more: 11 M against 2 M multiply-adds");
    rewritten_free(&r);
    dims[0] = 100;
    model_rewrite(&before, (lf_rewrite_options){.dims = dims}, &r);
    assert_int_equal(r.notes.done_count, 1);
    assert_string_equal(r.notes.done[0].why, "one product of 100 M multiply-adds at batch 100 instead of two of 200 M");
    rewritten_free(&r);
    lf_arena_free(&before.arena);
}

static void unknown_rules_are_named(void **state)
{
    (void)state;
    model before;
    rewritten r;
    model_read(&before, X "a = relu(x); return a");
    const lf_rewrite_options options = {.rules = "+all,-fold_bais", .dims = test_dims};
    lf_node home[8];
    lf_arena_init(&r.m.arena);
    assert_int_equal(lf_graph_init(&r.m.g, &r.m.arena, &r.m.diag), LF_OK);
    assert_int_equal(lf_rewrite(&before.g, &options, &r.m.g, home, &r.notes), LF_ERR_ARG);
    assert_string_equal(r.m.diag.text, "there is no rule 'fold_bais'; did you mean fold_bias?");
    lf_arena_free(&r.m.arena);
    lf_arena_init(&r.m.arena);
    assert_int_equal(lf_graph_init(&r.m.g, &r.m.arena, &r.m.diag), LF_OK);
    const lf_rewrite_options far = {.rules = "-nothing_near_it", .dims = test_dims};
    assert_int_equal(lf_rewrite(&before.g, &far, &r.m.g, home, &r.notes), LF_ERR_ARG);
    assert_non_null(strstr(r.m.diag.text, "'nothing_near_it'; there are all, none, "));
    for (size_t i = 0; lf_rule_at(i); i++)
        assert_non_null(strstr(r.m.diag.text, lf_rule_at(i)->name));
    lf_arena_free(&r.m.arena);
    lf_arena_free(&before.arena);
}

static void switches_add_up(void **state)
{
    (void)state;
    static const struct {
        const char *rules;
        int done;
    } cases[] = {
        {NULL, 3},
        {"", 3},
        {"all", 3},
        {"none", 0},
        {"-all", 0},
        {"none,+all", 3},
        {"none, +neg_of_neg", 1},
        {"none neg_of_neg add_zero", 2},
        {"-neg_of_neg", 2},
        {"none,-none", 3},
        {"+none,-neg_of_neg", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        model before;
        rewritten r;
        model_read(&before, X "a = neg(x); b = neg(a); c = sub(b, 0); d = clone(c); e = exp(d); return e");
        model_rewrite(&before, (lf_rewrite_options){.rules = cases[i].rules}, &r);
        assert_int_equal(r.notes.done_count, cases[i].done);
        rewritten_free(&r);
        lf_arena_free(&before.arena);
    }
}

static void dead_code_can_stay(void **state)
{
    (void)state;
    model before;
    rewritten r;
    model_read(&before, X "a = exp(x); b = relu(x); c = log(a); return b");
    model_rewrite(&before, (lf_rewrite_options){.rules = "-dead_code"}, &r);
    assert_int_equal(r.m.g.count, before.g.count);
    rewritten_free(&r);
    model_rewrite(&before, (lf_rewrite_options){0}, &r);
    assert_int_equal(count_notes(r.notes.done, r.notes.done_count, "dead_code"), 2);
    assert_int_equal(r.home[1], LF_NONE);
    assert_int_equal(r.home[3], LF_NONE);
    rewritten_free(&r);
    lf_arena_free(&before.arena);
}

/* ---- the reference models, smaller ---- */

static void check_model(const char *text, const char *wanted, bool assume_finite)
{
    model before;
    rewritten r;
    model_read(&before, text);
    model_rewrite(&before, (lf_rewrite_options){.assume_finite = assume_finite}, &r);
    char *is = computed_text(&r.m.g);
    if (strcmp(is, wanted) != 0)
        fail_msg("wanted\n%s\ngot\n%s", wanted, is);
    free(is);
    if (!assume_finite)
        compare(&before.g, &r.m.g, text);
    rewritten_free(&r);
    lf_arena_free(&before.arena);
}

static void reference_models(void **state)
{
    (void)state;
    check_model(LINEAR
                "c = logsumexp(a, dim=1, keepdim=true); d = leaky_relu(c, 0.01); e = leaky_relu(d, 0.01); f = gelu(e); "
                "g = gelu(f); return g",
                "a = linear(x, w, b); c = logsumexp(a, dim=1, keepdim=true); e = leaky_relu(c, negative_slope=0.0001); "
                "f = gelu(e); g = gelu(f); return g",
                false);
    const char *mean_residual =
        "input x f32[B, 6]; param w f32[6, 6]; param b f32[6]; param s f32[6]; a = linear(x, w, b); c = sub(a, s); "
        "d = mean(c, dim=1, keepdim=true); e = logsumexp(d, dim=1, keepdim=true); f = gelu(e); g = add(f, x); return g";
    check_model(mean_residual,
                "v4 = sub(b, s); v5 = mean(w, dim=0, keepdim=true); v6 = mean(v4, dim=0, keepdim=true); "
                "v7 = linear(x, v5, v6); d = guard(v7, v7); f = gelu(d); g = add(f, x); return g",
                false);
    check_model(mean_residual,
                "v4 = sub(b, s); v5 = mean(w, dim=0, keepdim=true); v6 = mean(v4, dim=0, keepdim=true); "
                "d = linear(x, v5, v6); f = gelu(d); g = add(f, x); return g",
                true);
    check_model(
        LINEAR
        "c = max(a, dim=1, keepdim=true); m = mean(c, dim=1, keepdim=true); d = sub(c, m); e = gelu(d); return e",
        "v3 = abs(x); v4 = sum(v3, dim=1, keepdim=true); v5 = abs(w); v6 = max(v5, dim=[0, 1]); v8 = mul(v6, 2); "
        "v9 = mul(v4, v8); v10 = abs(b); v11 = max(v10, dim=0); v12 = mul(v11, 2); v13 = add(v9, v12); "
        "v14 = guard(v13, v13); e = clamp(v14, min=0, max=0); return e",
        false);
    check_model(LINEAR "c = unsqueeze(a, 1); d = avg_pool1d(c, 2); e = squeeze(d, 1); f = mul(e, 2); g = gelu(f); "
                       "h = max(g, dim=1); return h",
                "v3 = transpose(w, dim0=0, dim1=1); v4 = avg_pool1d(v3, kernel_size=2); v5 = unsqueeze(b, dim=0); "
                "v6 = avg_pool1d(v5, kernel_size=2); v7 = squeeze(v6, dim=0); v8 = transpose(v4, dim0=0, dim1=1); "
                "v10 = mul(v7, 2); v11 = mul(v8, 2); v12 = linear(x, v11, v10); f = guard(v12, v12); g = gelu(f); "
                "h = max(g, dim=1); return h",
                false);
    check_model(
        LINEAR "param m f32[6]; param var f32[6]; param g f32[6]; param h f32[6]; c = batch_norm(a, m, var, g, h); "
               "d = dropout(c, training=false); e = relu(d); return e",
        "v8 = add(var, 1e-05); v9 = rsqrt(v8); v10 = mul(g, v9); v11 = sub(b, m); v12 = mul(v11, v10); "
        "v13 = unsqueeze(v10, dim=1); v14 = mul(w, v13); v15 = add(v12, h); v16 = linear(x, v14, v15); "
        "c = guard(v16, v16); e = relu(c); return e",
        false);
}

static void homes(void **state)
{
    (void)state;
    static const struct {
        const char *value, *home;
    } wanted[] = {
        {"x", "x"}, {"a", "d"}, {"c", "d"}, {"d", "d"}, {"e", "d"}, {"f", "f"}, {"g", NULL}, {"h", "f"},
    };
    model before;
    rewritten r;
    model_read(&before,
               LINEAR "c = mul(a, 2); d = mean(c, dim=1, keepdim=true); e = clone(d); f = gelu(e); g = exp(a); "
                      "h = gelu(d); i = add(f, h); return i");
    model_rewrite(&before, (lf_rewrite_options){0}, &r);
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        lf_node n = lf_graph_find(&before.g, wanted[i].value, 1), home = r.home[n];
        assert_true((home == LF_NONE) == (wanted[i].home == NULL));
        if (wanted[i].home)
            assert_string_equal(lf_at(&r.m.g, home)->name, wanted[i].home);
    }
    rewritten_free(&r);
    lf_arena_free(&before.arena);
}

/* ---- long chains ---- */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One step of a chain, with %d for the value before and %d for this one; the last value is returned as end(v). */
static void run_chain(const char *head, const char *step, const char *end, int length, int32_t most_nodes)
{
    lf_str text = {0};
    lf_str_add(&text, head);
    for (int i = 1; i <= length; i++) {
        char line[256];
        const char *at = step;
        size_t used = 0;
        for (; *at; at++) /* # is the value before, @ this one */
            used += (size_t)(*at == '#'   ? snprintf(line + used, sizeof line - used, "q%d", i - 1)
                             : *at == '@' ? snprintf(line + used, sizeof line - used, "q%d", i)
                                          : snprintf(line + used, sizeof line - used, "%c", *at));
        lf_str_addn(&text, line, used);
    }
    lf_str_addf(&text, end, length);
    char *whole = lf_str_take(&text);
    model before;
    rewritten r;
    model_read(&before, whole);
    double start = seconds();
    model_rewrite(&before, (lf_rewrite_options){0}, &r);
    double took = seconds() - start;
    if (took > 8.0 || r.m.g.count > most_nodes) /* under a second without sanitizers */
        fail_msg("%s: %.2f s, %d nodes", step, took, (int)r.m.g.count);
    rewritten_free(&r);
    lf_arena_free(&before.arena);
    free(whole);
}

static void long_chains_end(void **state)
{
    (void)state;
    enum { LONG = 3000 };
    static const char head[] =
        "input x f32[B, 4]; param w f32[4, 4]; param b f32[4]; param p f32[4]; q0 = linear(x, w, b); ";
    static const char end[] = "return q%d";
    run_chain(head, "@ = relu(#); ", end, LONG, 10);
    run_chain(head, "@ = leaky_relu(#, 0.999); ", end, LONG, 10);
    run_chain(head, "@ = neg(#); ", end, LONG, 10);
    run_chain(head, "@ = clone(#); ", end, LONG, 10);
    run_chain(head, "@ = add(#, p); ", end, LONG, LONG + 10);
    run_chain(head, "@ = mul(#, 1.001); ", end, LONG, 2 * LONG + 10);
    run_chain(head, "@ = gelu(#); ", end, LONG, LONG + 10);
    run_chain(head, "@ = linear(#, w, b); ", end, LONG, 8 * LONG);
    run_chain(head, "@ = add(#, x); ", "z = mean(q%d, dim=1); return z", LONG, 2 * LONG);
    run_chain(head, "@ = sigmoid(#); ", "z = max(q%d, dim=1); return z", LONG, LONG + 10);
    run_chain(head, "@ = softmax(#, dim=1); ", end, LONG, LONG + 10);
    run_chain("input q0 f32[B, 1]; ", "@ = softmax(#, dim=1); ", end, LONG, 4 * LONG);
    run_chain("input q0 f32[B, 4]; ", "s@ = max(#, dim=1, keepdim=true); t@ = sub(#, s@); @ = softmax(t@, dim=1); ",
              end, 1000, 8 * LONG);
    run_chain("input q0 f32[B, 4]; ", "s@ = logsumexp(#, dim=1, keepdim=true); t@ = sub(#, s@); @ = exp(t@); ", end,
              1000, 8 * LONG);
    run_chain("input q0 f32[B, 4]; ", "t@ = unsqueeze(#, 1); u@ = exp(t@); @ = squeeze(u@, 1); ", end, 1000, LONG);
    run_chain(head, "@ = sub(#, #); ", end, LONG, LONG + 30);
}

/* ---- random graphs ---- */

/* Steps from values of one shape to another: F [B, 4], R [B, 1], N [B], H [B, 2], V [B, 2, 2]. */
static const struct {
    const char *text;
    char from, other, to;
} steps[] = {
    {"relu(%s)", 'F', 0, 'F'},
    {"leaky_relu(%s, 0.5)", 'F', 0, 'F'},
    {"leaky_relu(%s, -0.5)", 'F', 0, 'F'},
    {"tanh(%s)", 'F', 0, 'F'},
    {"sigmoid(%s)", 'F', 0, 'F'},
    {"gelu(%s)", 'F', 0, 'F'},
    {"clamp(%s, -1, 0.5)", 'F', 0, 'F'},
    {"hardtanh(%s)", 'F', 0, 'F'},
    {"abs(%s)", 'F', 0, 'F'},
    {"neg(%s)", 'F', 0, 'F'},
    {"add(%s, 0)", 'F', 0, 'F'},
    {"mul(%s, 1)", 'F', 0, 'F'},
    {"add(%s, p)", 'F', 0, 'F'},
    {"mul(%s, p)", 'F', 0, 'F'},
    {"sub(p, %s)", 'F', 0, 'F'},
    {"div(%s, 2)", 'F', 0, 'F'},
    {"mul(%s, -0.5)", 'F', 0, 'F'},
    {"sub(1, %s)", 'F', 0, 'F'},
    {"maximum(%s, 0.25)", 'F', 0, 'F'},
    {"minimum(0.5, %s)", 'F', 0, 'F'},
    {"clone(%s)", 'F', 0, 'F'},
    {"linear(%s, w, p)", 'F', 0, 'F'},
    {"linear(%s, w)", 'F', 0, 'F'},
    {"matmul(%s, w)", 'F', 0, 'F'},
    {"linear(%s, w, p)", 'F', 0, 'F'},
    {"softmax(%s, 1)", 'F', 0, 'F'},
    {"log_softmax(%s, 1)", 'F', 0, 'F'},
    {"add(%s, %s)", 'F', 'F', 'F'},
    {"sub(%s, %s)", 'F', 'F', 'F'},
    {"mul(%s, %s)", 'F', 'F', 'F'},
    {"add(%s, %s)", 'F', 'R', 'F'},
    {"sub(%s, %s)", 'F', 'R', 'F'},
    {"mul(%s, %s)", 'F', 'R', 'F'},
    {"sum(%s, 1, true)", 'F', 0, 'R'},
    {"mean(%s, 1, true)", 'F', 0, 'R'},
    {"max(%s, 1, true)", 'F', 0, 'R'},
    {"min(%s, 1, true)", 'F', 0, 'R'},
    {"logsumexp(%s, 1, true)", 'F', 0, 'R'},
    {"exp(%s)", 'R', 0, 'R'},
    {"tanh(%s)", 'R', 0, 'R'},
    {"mean(%s, 1, true)", 'R', 0, 'R'},
    {"logsumexp(%s, 1, true)", 'R', 0, 'R'},
    {"softmax(%s, 1)", 'R', 0, 'R'},
    {"sub(%s, %s)", 'R', 'R', 'R'},
    {"mul(%s, 2)", 'R', 0, 'R'},
    {"reshape(%s, [-1, 2, 2])", 'F', 0, 'V'},
    {"flatten(%s, 1)", 'V', 0, 'F'},
    {"relu(%s)", 'V', 0, 'V'},
    {"mul(%s, u)", 'V', 0, 'V'},
    {"sub(2, %s)", 'V', 0, 'V'},
    {"sum(%s, [1, 2])", 'V', 0, 'N'},
    {"mean(%s, 2)", 'V', 0, 'H'},
    {"max(%s, 1)", 'V', 0, 'H'},
    {"avg_pool1d(%s, 2)", 'F', 0, 'H'},
    {"linear(%s, h)", 'H', 0, 'F'},
    {"unsqueeze(%s, 1)", 'N', 0, 'R'},
    {"squeeze(%s, 1)", 'R', 0, 'N'},
    {"sum(%s, 1)", 'F', 0, 'N'},
    {"logsumexp(%s, 1)", 'F', 0, 'N'},
    {"tanh(%s)", 'N', 0, 'N'},
    {"mul(%s, u)", 'H', 0, 'H'},
    {"transpose(%s, 1, 2)", 'V', 0, 'V'},
    {"softmax(%s, 2)", 'V', 0, 'V'},
    {"linear(%s, v, p)", 'R', 0, 'F'},
    {"leaky_relu(%s, 0.1)", 'R', 0, 'R'},
    {"batch_norm(%s, p, var, p, p)", 'F', 0, 'F'},
    {"slice(%s, 1, 1, 3)", 'F', 0, 'H'},
    {"slice(%s, 1, 0, None, 2)", 'F', 0, 'H'},
    {"slice(%s, -1, 1)", 'H', 0, 'R'},
    {"slice(%s, 1, -1)", 'F', 0, 'R'},
};

/* The newest value of that sort more often than not, so that chains grow. */
static void pick(lf_rng *rng, const char *sorts, int count, char sort, char *name)
{
    int at = count - 1;
    while (at > 0 && (sorts[at] != sort || lf_rng_unit(rng) < 0.25))
        at--;
    snprintf(name, 16, "%c%d", sorts[at] == sort ? 'q' : '-', at);
}

static char *random_model(uint64_t seed)
{
    lf_rng rng = lf_rng_seed(seed, "graph");
    char sorts[64] = "F";
    int count = 1, length = 3 + (int)(lf_rng_u64(&rng) % 12);
    lf_str text = {0};
    lf_str_add(&text, "input q0 f32[B, 4]; param w f32[4, 4]; param v f32[4, 1]; param p f32[4]; param var f32[4]; "
                      "param u f32[2]; param h f32[4, 2]; ");
    while (count < length) {
        size_t s = lf_rng_u64(&rng) % (sizeof steps / sizeof steps[0]);
        char a[16], b[16] = "";
        pick(&rng, sorts, count, steps[s].from, a);
        if (steps[s].other)
            pick(&rng, sorts, count, steps[s].other, b);
        if (a[0] == '-' || b[0] == '-')
            continue;
        lf_str_addf(&text, "q%d = ", count);
        const char *format = steps[s].text, *first = strstr(format, "%s"), *second = strstr(first + 2, "%s");
        lf_str_addn(&text, format, (size_t)(first - format));
        lf_str_add(&text, a);
        if (second) {
            lf_str_addn(&text, first + 2, (size_t)(second - first - 2));
            lf_str_add(&text, b);
        }
        lf_str_addf(&text, "%s; ", (second ? second : first) + 2);
        sorts[count++] = steps[s].to;
    }
    lf_str_addf(&text, "return q%d", count - 1);
    if (lf_rng_unit(&rng) < 0.3 && count > 3)
        lf_str_addf(&text, ", q%d", count / 2);
    char *model_text = lf_str_take(&text);
    assert_non_null(model_text);
    return model_text;
}

static void random_graphs(void **state)
{
    (void)state;
    const char *many = getenv("LINFUSE_RANDOM_GRAPHS");
    int graphs = many ? atoi(many) : 1500, rewrites = 0;
    for (int i = 0; i < graphs; i++) {
        char *text = random_model((uint64_t)i);
        model before;
        rewritten r;
        model_read(&before, text);
        size_t rules = 0;
        char off[64] = "";
        while (lf_rule_at(rules))
            rules++;
        if (i % 2) /* one rule off in every other graph */
            snprintf(off, sizeof off, "-%s", lf_rule_at((size_t)i / 2 % rules)->name);
        model_rewrite(&before, (lf_rewrite_options){.rules = off}, &r);
        rewrites += r.notes.done_count;
        for (int sort = PLAIN; sort <= SPECIAL; sort++)
            compare_on(&before.g, &r.m.g, (uint64_t)i, sort, text);
        rewritten_free(&r);
        lf_arena_free(&before.arena);
        free(text);
    }
    assert_true(rewrites > graphs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leaves_alone),
        cmocka_unit_test(says_why_not),
        cmocka_unit_test(merging_depends_on_batch),
        cmocka_unit_test(unknown_rules_are_named),
        cmocka_unit_test(switches_add_up),
        cmocka_unit_test(dead_code_can_stay),
        cmocka_unit_test(reference_models),
        cmocka_unit_test(homes),
        cmocka_unit_test(long_chains_end),
        cmocka_unit_test(random_graphs),
    };
    return cmocka_run_group_tests_name("rewrite_driver", tests, NULL, NULL);
}
