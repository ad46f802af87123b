/* SPDX-License-Identifier: Apache-2.0 */
/* The account: what its JSON holds and that it adds up, what the text looks like, and what happens when memory runs
 * out. Rewritten graphs and notes are made by hand here, so that nothing depends on which rules there are. Texts are
 * kept under tests/golden; LINFUSE_REFRESH=1 writes them anew. */
#include "run/account.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory that runs out ---- */

static long allocations, fail_at = -1; /* the allocation that fails, counted from 0; -1: none */

static bool out_of_memory(void)
{
    return allocations++ == fail_at;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);

void *__wrap_malloc(size_t size)
{
    return out_of_memory() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return out_of_memory() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    return out_of_memory() ? NULL : __real_realloc(old, size);
}

/* jansson has its own way to malloc. */
static void *json_memory(size_t size)
{
    return malloc(size);
}

/* ---- an account under test ---- */

static lf_arena arena;
static lf_diag diag;
static lf_graph written, rewritten;
static lf_node home[64];
static lf_notes notes;
static int64_t dims[LF_MAX_SYMBOLS];
static lf_account account;

static int setup(void **state)
{
    (void)state;
    lf_arena_init(&arena);
    notes = (lf_notes){0};
    memset(dims, 0, sizeof dims);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    lf_arena_free(&arena);
    lf_arena_free(&account.arena);
    return 0;
}

static void read_into(lf_graph *g, const char *text)
{
    assert_int_equal(lf_graph_init(g, &arena, &diag), LF_OK);
    if (lf_text_read(g, "test", text, strlen(text)) != LF_OK)
        fail_msg("%s", diag.text);
    assert_true(g->count <= 64);
}

static const lf_device *device(const char *name)
{
    const lf_device *found = lf_device_named(name);
    if (!found)
        fail_msg("no device %s", name);
    return found;
}

/* The account of a model and of what it became. homes: "a>a b>c" says where written values went; one that is not named
 * there and whose name the new graph has too went to that; any other is dead. */
static void take(const char *before, const char *after, const char *homes, const char *on)
{
    lf_plan *plan;
    read_into(&written, before);
    read_into(&rewritten, after);
    for (lf_node n = 0; n < written.count; n++)
        home[n] = lf_graph_named(&rewritten, lf_at(&written, n)->name);
    for (const char *at = homes; *at; at += strcspn(at, " "), at += *at == ' ') {
        char from[32] = "", to[32] = "";
        assert_int_equal(sscanf(at, "%31[^>]>%31s", from, to), 2);
        home[lf_graph_named(&written, from)] = lf_graph_named(&rewritten, to);
    }
    const bool cpu = strcmp(on, "cpu") == 0;
    const lf_plan_options options = {.fuse = true, .share_x = cpu ? LF_SHARE_ALL : LF_SHARE_TWO, .keep_exps = cpu};
    assert_int_equal(lf_plan_build(&rewritten, options, &arena, &plan), LF_OK);
    lf_arena_free(&account.arena);
    account = (lf_account){
        .written = &written, .home = home, .notes = &notes, .plan = plan, .device = *device(on), .precision = "fp32"};
    memcpy(account.dims, dims, sizeof dims);
    account.workspace_bytes = (double)lf_cost_workspace(plan, dims, &account.device);
    assert_int_equal(lf_account_fill(&account, &diag), LF_OK);
}

static void take_same(const char *text, const char *on)
{
    take(text, text, "", on);
}

static json_t *json_of_account(void)
{
    char *text;
    assert_int_equal(lf_account_to_json(&account, &text), LF_OK);
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    free(text);
    return root;
}

/* ---- models ---- */

static const char lse_chain[] = "input x f32[B, 8192]\n"
                                "param w f32[8192, 8192]\n"
                                "param b f32[8192]\n"
                                "a = linear(x, w, b)\n"
                                "s = logsumexp(a, dim=1, keepdim=true)\n"
                                "c = leaky_relu(s)\n"
                                "d = leaky_relu(c)\n"
                                "e = gelu(d)\n"
                                "return e\n";
static const char lse_chain_after[] = "input x f32[B, 8192]\n"
                                      "param w f32[8192, 8192]\n"
                                      "param b f32[8192]\n"
                                      "a = linear(x, w, b)\n"
                                      "s = logsumexp(a, dim=1, keepdim=true)\n"
                                      "d = leaky_relu(s, negative_slope=0.0001)\n"
                                      "e = gelu(d)\n"
                                      "return e\n";
static lf_note lse_done[] = {
    {"leaky_relu_of_leaky_relu", LF_EXACT, "d", "the slopes multiply where the value is negative"}};
static lf_note lse_refused[] = {{"merge_linears", LF_REROUNDS, "a",
                                 "there is only one linear layer, and this sentence goes on for longer than a line is "
                                 "wide, to see where it is broken"}};

/* Everything that can become of a value: t is prepared, u is gone, v is a view, k the input again, h is stored between
 * two kernels. */
static const char fates[] = "input x f32[B, 64]\n"
                            "param w f32[32, 64]\n"
                            "param w2 f32[16, 32]\n"
                            "param b f32[32]\n"
                            "k = mul(x, 1)\n"
                            "t = mul(b, 2)\n"
                            "a = linear(k, w, t)\n"
                            "u = exp(a)\n"
                            "h = relu(a)\n"
                            "v = unsqueeze(h, 0)\n"
                            "y = linear(v, w2)\n"
                            "z = softmax(y, dim=2)\n"
                            "return z\n";
static const char fates_after[] = "input x f32[B, 64]\n"
                                  "param w f32[32, 64]\n"
                                  "param w2 f32[16, 32]\n"
                                  "param b f32[32]\n"
                                  "t = mul(b, 2)\n"
                                  "a = linear(x, w, t)\n"
                                  "h = relu(a)\n"
                                  "v = unsqueeze(h, 0)\n"
                                  "y = linear(v, w2)\n"
                                  "z = softmax(y, dim=2)\n"
                                  "return z\n";

static void take_lse_chain(const char *on)
{
    dims[0] = 1024;
    notes = (lf_notes){lse_done, lse_refused, 1, 1, NULL};
    take(lse_chain, lse_chain_after, "c>d", on);
}

static void take_fates(const char *on)
{
    dims[0] = 100;
    take(fates, fates_after, "k>x", on);
}

/* ---- JSON ---- */

static void has(const json_t *object, const char *keys, int type)
{
    for (const char *at = keys; *at; at += strcspn(at, " "), at += *at == ' ') {
        char key[32];
        snprintf(key, sizeof key, "%.*s", (int)strcspn(at, " "), at);
        const json_t *value = json_object_get(object, key);
        if (!value || (type == JSON_REAL ? !json_is_number(value) : (int)json_typeof(value) != type))
            fail_msg("field %s is not there, or of another type", key);
    }
}

static double number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static double sum(const json_t *list, const char *key)
{
    double total = 0;
    for (size_t i = 0; i < json_array_size(list); i++)
        total += number(json_array_get(list, i), key);
    return total;
}

static void json_has_its_fields(void **state)
{
    (void)state;
    take_lse_chain("h200");
    json_t *root = json_of_account();
    has(root, "device", JSON_STRING);
    has(root, "dims plain fused", JSON_OBJECT);
    has(root, "ops rewrites refused kernels", JSON_ARRAY);
    has(json_object_get(root, "dims"), "B", JSON_INTEGER);
    const json_t *op = json_array_get(json_object_get(root, "ops"), 0);
    has(op, "name op", JSON_STRING);
    has(op, "flops bytes", JSON_INTEGER);
    has(op, "us", JSON_REAL);
    has(json_object_get(root, "plain"), "launches flops bytes", JSON_INTEGER);
    has(json_object_get(root, "plain"), "us", JSON_REAL);
    has(json_object_get(root, "fused"), "launches flops bytes intermediate_bytes workspace_bytes", JSON_INTEGER);
    has(json_object_get(root, "fused"), "us", JSON_REAL);
    has(json_array_get(json_object_get(root, "rewrites"), 0), "rule class at why", JSON_STRING);
    has(json_array_get(json_object_get(root, "refused"), 0), "rule at why", JSON_STRING);
    const json_t *kernel = json_array_get(json_object_get(root, "kernels"), 0);
    has(kernel, "name phases", JSON_STRING);
    has(kernel, "covers", JSON_ARRAY);
    has(kernel, "us", JSON_REAL);
    assert_string_equal(json_string_value(json_object_get(root, "device")), "h200");
    json_decref(root);
}

static void json_adds_up(void **state)
{
    static const char *const keys[] = {"flops", "bytes", "us"};
    (void)state;
    for (int model = 0; model < 2; model++)
        for (size_t d = 0; lf_device_at(d); d++) {
            (model ? take_fates : take_lse_chain)(lf_device_at(d)->name);
            json_t *root = json_of_account();
            for (int k = 0; k < 3; k++) {
                double plain = number(json_object_get(root, "plain"), keys[k]),
                       fused = number(json_object_get(root, "fused"), keys[k]);
                assert_true(fabs(sum(json_object_get(root, "ops"), keys[k]) - plain) < 0.01);
                assert_true(fabs(sum(json_object_get(root, "kernels"), keys[k]) - fused) < 0.01);
                assert_true(plain > 0 && fused > 0);
            }
            json_decref(root);
        }
}

/* Where the JSON object has a row of a section. */
static const json_t *row_of(const json_t *root, const lf_field *f, size_t row)
{
    const json_t *at = strcmp(f->section, "report") == 0 ? root : json_object_get(root, f->section);
    return f->each ? json_array_get(at, row) : at;
}

/* Every row of report.def stands in the JSON object, with the number or text that callers get, and what it says of
 * itself (a heading, a phrase) stands in the text. */
static void every_field_shows(void **state)
{
    char *text;
    size_t fields = 0, numbers = 0, texts = 0;
    (void)state;
    take_lse_chain("h200");
    json_t *root = json_of_account();
    assert_int_equal(lf_account_to_text(&account, &text), LF_OK);
    for (const lf_field *f; (f = lf_account_field(fields)) != NULL; fields++) {
        assert_true(lf_account_rows(&account, f->section) >= 1);
        if (f->each)
            assert_int_equal(lf_account_rows(&account, f->section), json_array_size(json_object_get(root, f->section)));
        bool shown = false; /* some row has it */
        for (size_t i = 0; i < lf_account_rows(&account, f->section); i++) {
            const json_t *value = json_object_get(row_of(root, f, i), f->name);
            const char *said = lf_account_text(&account, f->section, f->name, i);
            const double got = lf_account_number(&account, f->section, f->name, i);
            shown = shown || said || !isnan(got);
            if (!value)
                fail_msg("%s.%s is not in the JSON object", f->section, f->name);
            if (strcmp(f->unit, "text") == 0) {
                assert_true(isnan(got) && (said ? json_is_string(value) : json_is_null(value)));
                if (said)
                    assert_string_equal(json_string_value(value), said);
                texts += said != NULL;
            } else {
                assert_true(!said && fabs(json_number_value(value) - got) < 0.001);
                numbers++;
            }
        }
        if (f->phrase && shown && !strstr(text, f->phrase))
            fail_msg("'%s' is not in the text", f->phrase);
        if (f->column && strcmp(f->unit, "text") != 0 && !strstr(text, f->column))
            fail_msg("'%s' is not in the text", f->column);
    }
    assert_true(fields > 30 && numbers > 20 && texts > 20);
    assert_null(lf_account_field(SIZE_MAX));
    free(text);
    json_decref(root);
}

static void what_is_not_there_has_no_number(void **state)
{
    (void)state;
    take_lse_chain("h200");
    assert_true(lf_account_number(&account, "fused", "launches", 0) == 1);
    assert_string_equal(lf_account_text(&account, "ops", "op", 1), "logsumexp");
    assert_true(isnan(lf_account_number(&account, "fused", "launches", 1)));
    assert_true(isnan(lf_account_number(&account, "ops", "us", 5)));
    assert_true(isnan(lf_account_number(&account, "ops", "name", 0)));
    assert_true(isnan(lf_account_number(&account, "fused", "wings", 0)));
    assert_true(isnan(lf_account_number(&account, "wings", "us", 0)));
    assert_true(isnan(lf_account_number(&account, NULL, "us", 0)) && isnan(lf_account_number(NULL, "plain", "us", 0)));
    assert_true(isnan(lf_account_number(&account, "plain", NULL, 0)));
    assert_null(lf_account_text(&account, "ops", "us", 0));
    assert_int_equal(lf_account_rows(&account, "wings"), 0);
    assert_int_equal(lf_account_rows(&account, "ops"), 5);
}

static void one_launch_and_nothing_between(void **state)
{
    (void)state;
    take_lse_chain("a100");
    json_t *root = json_of_account();
    const json_t *fused = json_object_get(root, "fused");
    assert_int_equal(number(json_object_get(root, "plain"), "launches"), 5);
    assert_int_equal(number(fused, "launches"), 1);
    assert_int_equal(number(fused, "intermediate_bytes"), 0);
    const json_t *covers = json_object_get(json_array_get(json_object_get(root, "kernels"), 0), "covers");
    char *text = json_dumps(covers, JSON_COMPACT);
    assert_string_equal(text, "[\"a\",\"s\",\"c\",\"d\",\"e\"]");
    free(text);
    json_decref(root);
}

static const char *now_of(const json_t *root, const char *name)
{
    const json_t *ops = json_object_get(root, "ops");
    for (size_t i = 0; i < json_array_size(ops); i++) {
        const json_t *op = json_array_get(ops, i);
        if (strcmp(json_string_value(json_object_get(op, "name")), name) == 0)
            return json_string_value(json_object_get(op, "now"));
    }
    return "absent";
}

static void what_became_of_each_value(void **state)
{
    static const char *const wanted[][2] = {{"k", "passed"}, {"t", "prepared"}, {"a", "inside"}, {"u", "gone"},
                                            {"h", "stored"}, {"y", "inside"},   {"z", "stored"}};
    (void)state;
    take_fates("h200");
    json_t *root = json_of_account();
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        assert_string_equal(now_of(root, wanted[i][0]), wanted[i][1]);
    const json_t *kernels = json_object_get(root, "kernels");
    assert_int_equal(json_array_size(kernels), 2);
    char *first = json_dumps(json_object_get(json_array_get(kernels, 0), "covers"), JSON_COMPACT);
    char *second = json_dumps(json_object_get(json_array_get(kernels, 1), "covers"), JSON_COMPACT);
    assert_string_equal(first, "[\"a\",\"h\",\"v\"]"); /* a view goes with what it views */
    assert_string_equal(second, "[\"y\",\"z\"]");
    assert_true(json_is_string(json_object_get(json_array_get(kernels, 1), "why_apart")));
    assert_int_equal(number(json_object_get(root, "plain"), "launches"), 7);
    assert_int_equal(number(json_object_get(root, "fused"), "intermediate_bytes"), 4 * 100 * 32);
    free(first);
    free(second);
    json_decref(root);
}

static void products_that_share_are_named(void **state)
{
    static const char model[] = "input x f32[B, 64]\nparam a f32[96, 64]\nparam b f32[96, 64]\nparam c f32[32, 64]\n"
                                "p = linear(x, a)\nq = linear(x, b)\nr = mul(p, q)\ns = linear(x, c)\nreturn r, s\n";
    static const struct { const char *device, *shared, *why; size_t kernels; } wanted[] = {
        {"cpu", "3 products share x", NULL, 1},
        {"h200", NULL,
         "tensor cores share x between two products of as many columns, which something reads side by side", 2}};
    (void)state;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        take_same(model, wanted[i].device);
        json_t *root = json_of_account();
        const json_t *kernels = json_object_get(root, "kernels");
        const json_t *last = json_array_get(kernels, json_array_size(kernels) - 1);
        const char *shared = json_string_value(json_object_get(last, "shared")),
                   *why = json_string_value(json_object_get(last, "why_apart"));
        assert_int_equal(json_array_size(kernels), wanted[i].kernels);
        assert_true(wanted[i].shared ? shared && strcmp(shared, wanted[i].shared) == 0 : !shared);
        assert_true(wanted[i].why ? why && strcmp(why, wanted[i].why) == 0 : !why);
        char *text;
        assert_int_equal(lf_account_to_text(&account, &text), LF_OK);
        assert_non_null(strstr(text, wanted[i].shared ? wanted[i].shared : "2 products share x"));
        free(text);
        json_decref(root);
    }
}

static void no_rows_no_names(void **state)
{
    char *text;
    (void)state;
    take_same("input x f32[4, 8]\na = relu(x)\nreturn a\n", "h200");
    json_t *root = json_of_account();
    assert_int_equal(json_object_size(json_object_get(root, "dims")), 0);
    json_decref(root);
    dims[0] = 0;
    take_same("input x f32[B, 8]\na = softmax(x, dim=1)\nreturn a\n", "h200");
    json_decref(json_of_account());
    assert_int_equal(lf_account_to_text(&account, &text), LF_OK);
    free(text);
}

/* ---- text ---- */

static void check_golden(const char *name)
{
    static char path[512], wanted[1 << 14];
    const char *source = getenv("LINFUSE_SOURCE_DIR");
    char *got;
    snprintf(path, sizeof path, "%s/tests/golden/account_%s.txt", source ? source : ".", name);
    assert_int_equal(lf_account_to_text(&account, &got), LF_OK);
    if (getenv("LINFUSE_REFRESH")) {
        FILE *file = fopen(path, "wb");
        assert_non_null(file);
        fputs(got, file);
        assert_int_equal(fclose(file), 0);
    }
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s is not there; LINFUSE_REFRESH=1 writes it", path);
    wanted[fread(wanted, 1, sizeof wanted - 1, file)] = '\0';
    fclose(file);
    if (strcmp(got, wanted) != 0)
        fail_msg("%s differs from the account made now (LINFUSE_REFRESH=1 takes it):\n%s", path, got);
    free(got);
}

static void text_of_one_kernel(void **state)
{
    (void)state;
    take_lse_chain("h200");
    account.prepared_bytes = 268435456;
    check_golden("lse_chain");
}

static void text_of_two_kernels(void **state)
{
    (void)state;
    take_fates("a100");
    check_golden("fates");
}

/* What a prediction compares is said, and where launches decide instead. */
static void text_says_what_is_compared(void **state)
{
    static const char text[] = "input x f32[B, 256]\nparam w f32[256, 256]\na = linear(x, w)\nb = softmax(a, dim=1)\n"
                               "return b\n";
    static const struct { const char *on, *words; int64_t rows; bool doubtful; } cases[] = {
        {"cpu", "Predicted, linfuse's own kernels: without fusion ", 128, false},
        {"h200", "Predicted: op by op with cuBLAS in fp32 ", 128, true}, /* slower than a captured eager, measured */
        {"h200", "Predicted: op by op with cuBLAS in fp32 ", 65536, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *got;
        dims[0] = cases[i].rows;
        take_same(text, cases[i].on);
        assert_int_equal(lf_account_to_text(&account, &got), LF_OK);
        assert_memory_equal(got, cases[i].words, strlen(cases[i].words));
        assert_int_equal(strstr(got, "\nThese are the GPU's times alone. ") != NULL, cases[i].doubtful);
        assert_int_equal(strstr(got, "   launches decide\n") != NULL, cases[i].doubtful);
        assert_int_equal(strstr(got, "slower\n") != NULL, false);
        free(got);
    }
    assert_true(lf_account_launches_decide(15, 18, lf_account_host_us(true, 2)));
    assert_false(lf_account_launches_decide(15, 25, lf_account_host_us(true, 2))); /* too long for them to matter */
    assert_false(lf_account_launches_decide(15, 18, lf_account_host_us(false, 2)));
}

/* What kernels do, in words. */
static void phases_in_words(void **state)
{
    static const struct { const char *ops, *words; } cases[] = {
        {"a = softmax(x, dim=2)", "max and sum of exp of each row; then softmax on 8 values a row"},
        {"a = layer_norm(x, [8], q, q)", "mean and variance of each row; then layer_norm on 8 values a row"},
        {"a = rms_norm(x, [8])", "mean of squares of each row; then rms_norm on 8 values a row"},
        {"a = transpose(x, 1, 2)", "transpose on 6 values a row"},
        {"a = linear(x, w)", "product 30 x 8 x 8"},
        {"b = relu(x)\na = relu(b)", "relu twice on 8 values a row"},
        {"b = max_pool1d(x, 2)\na = relu(b)", "max of each of 4 windows of 2 columns; then relu on 4 values a row"},
    };
    (void)state;
    dims[0] = 5;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[256];
        lf_str words = {0};
        snprintf(text, sizeof text, "input x f32[B, 6, 8]\nparam w f32[8, 8]\nparam q f32[8]\n%s\nreturn a\n",
                 cases[i].ops);
        take_same(text, "h200");
        assert_int_equal(account.plan->groups, 1);
        lf_account_phases(&words, &account, &account.plan->group[0]);
        assert_string_equal(words.text, cases[i].words);
        lf_str_free(&words);
    }
}

/* ---- memory ---- */

static void memory_may_run_out(void **state)
{
    lf_status (*const writers[])(const lf_account *, char **) = {lf_account_to_json, lf_account_to_text};
    (void)state;
    take_fates("h200");
    json_set_alloc_funcs(json_memory, free);
    lf_status filled = LF_ERR_NOMEM;
    for (long at = 0; filled != LF_OK; at++) {
        lf_arena_free(&account.arena);
        account.ops = 0;
        allocations = 0;
        fail_at = at;
        filled = lf_account_fill(&account, &diag);
        fail_at = -1;
        assert_true(filled == LF_OK || filled == LF_ERR_NOMEM);
    }
    for (size_t i = 0; i < 2; i++) {
        lf_status status = LF_ERR_NOMEM;
        for (long at = 0; status != LF_OK; at++) {
            char *text;
            allocations = 0;
            fail_at = at;
            status = writers[i](&account, &text);
            fail_at = -1;
            assert_true(status == LF_OK || status == LF_ERR_NOMEM);
            assert_true((status == LF_OK) == (text != NULL));
            free(text);
        }
        assert_true(allocations > 5);
    }
    json_set_alloc_funcs(malloc, free);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(json_has_its_fields, setup, teardown),
        cmocka_unit_test_setup_teardown(json_adds_up, setup, teardown),
        cmocka_unit_test_setup_teardown(every_field_shows, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_not_there_has_no_number, setup, teardown),
        cmocka_unit_test_setup_teardown(one_launch_and_nothing_between, setup, teardown),
        cmocka_unit_test_setup_teardown(what_became_of_each_value, setup, teardown),
        cmocka_unit_test_setup_teardown(products_that_share_are_named, setup, teardown),
        cmocka_unit_test_setup_teardown(no_rows_no_names, setup, teardown),
        cmocka_unit_test_setup_teardown(text_of_one_kernel, setup, teardown),
        cmocka_unit_test_setup_teardown(text_says_what_is_compared, setup, teardown),
        cmocka_unit_test_setup_teardown(text_of_two_kernels, setup, teardown),
        cmocka_unit_test_setup_teardown(phases_in_words, setup, teardown),
        cmocka_unit_test_setup_teardown(memory_may_run_out, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
