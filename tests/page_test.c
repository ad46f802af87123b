/* SPDX-License-Identifier: Apache-2.0 */
/* The page of an account's object, whatever that object is: an account becomes well-formed HTML, anything else an error
 * that says what is missing. (What the page says is tested from Python: test_account.py, test_account_page.py.) */
#include <linfuse_tools.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static lf_context *context;

static int setup(void **state)
{
    (void)state;
    return lf_context_new(&context) == LF_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    lf_context_free(context);
    return 0;
}

/* An account with ops of PyTorch around it, a note and a measurement: every field that the page reads. */
static json_t *an_account(void)
{
    static const char text[] = "input x f32[B, 8]\nparam w f32[16, 8]\nparam s f32[16]\n"
                               "a = linear(x, w)\nb = mul(a, s)\nc = softmax(a, dim=1)\n"
                               "d = leaky_relu(b)\ne = leaky_relu(d)\nreturn a, c, e\n";
    lf_model *model;
    lf_options *options;
    lf_program *program;
    char *json;
    assert_int_equal(lf_model_read(context, "m", text, strlen(text), &model), LF_OK);
    assert_int_equal(lf_options_new(context, &options), LF_OK);
    assert_int_equal(lf_options_set(options, "device", "h200"), LF_OK);
    assert_int_equal(lf_program_new(model, options, &program), LF_OK);
    assert_int_equal(lf_program_explain(program, NULL, true, &json), LF_OK);
    json_t *account = json_loads(json, 0, NULL);
    assert_non_null(account);
    assert_true(json_array_size(json_object_get(account, "rewrites")) > 0);
    assert_true(json_array_size(json_object_get(account, "refused")) > 0);
    lf_string_free(json);
    lf_program_free(program);
    lf_options_free(options);
    lf_model_free(model);
    json_t *more = json_pack("{s:[{s:s, s:s, s:s, s:s, s:i}, {s:s, s:s, s:s, s:s, s:i}], s:[s], s:{s:s, s:s, s:[s]}}",
                             "fallbacks", "node", "n", "op", "torch.sin", "module", "m", "why", "no op", "part", 1,
                             "node", "o", "op", "torch.cos", "module", "", "why", "no op", "part", 9, "notes", "a note",
                             "measured", "headline", "twice as fast", "where", "cpu", "doubts", "a <busy> machine");
    assert_non_null(more);
    assert_int_equal(json_object_update(account, more), 0);
    json_decref(more);
    return account;
}

/* Every tag that is opened is closed, in order, and nothing stands outside of quotes and tags that would be one. */
static void assert_well_formed(const char *page)
{
    char open[64][16];
    int depth = 0;
    for (const char *p = page; *p; p++) {
        assert_true((unsigned char)*p >= ' ' || *p == '\n' || *p == '\t');
        if (*p != '<')
            continue;
        const char *name = p + 1 + (p[1] == '/');
        const size_t length = strcspn(name, " >"), end = strcspn(p, ">");
        assert_true(length < sizeof open[0] && p[end] == '>');
        if (p[1] == '/') {
            assert_true(depth > 0);
            depth--;
            assert_true(strlen(open[depth]) == length && strncmp(open[depth], name, length) == 0);
        } else if (p[1] != '!' && p[end - 1] != '/' && strncmp(name, "meta", 4) != 0) {
            assert_true(depth < 64);
            snprintf(open[depth++], sizeof open[0], "%.*s", (int)length, name);
        }
        p += end;
    }
    assert_int_equal(depth, 0);
}

/* What becomes of the object; the page, if it is one, is well-formed. */
static lf_status page_of(const json_t *account)
{
    char *json = json_dumps(account, JSON_ENCODE_ANY), *page;
    assert_non_null(json);
    const lf_status status = lf_page_print(context, "<a title>", json, true, &page);
    if (status == LF_OK)
        assert_well_formed(page);
    else
        assert_null(page);
    lf_string_free(page);
    free(json);
    return status;
}

static void an_account_becomes_a_page(void **state)
{
    (void)state;
    static const char *const has[] = {"&lt;a title&gt;: ", "Measured on cpu: twice as fast", "a &lt;busy&gt; machine",
                                      "torch.sin in m", "a note", "would be GUARDED", "REROUNDS: rounds differently",
                                      "Roofline"};
    json_t *account = an_account();
    char *json = json_dumps(account, 0), *page, *fragment;
    assert_int_equal(lf_page_print(context, "<a title>", json, true, &page), LF_OK);
    assert_int_equal(lf_page_print(context, "<a title>", json, false, &fragment), LF_OK);
    assert_well_formed(page);
    assert_non_null(strstr(page, fragment));
    for (size_t i = 0; i < sizeof has / sizeof *has; i++)
        assert_non_null(strstr(fragment, has[i]));
    lf_string_free(page);
    lf_string_free(fragment);
    free(json);
    json_decref(account);
}

/* Replaces one value after another, at every depth, by `with` (NULL: takes it out), and looks at the page. */
static void replace_each(const json_t *root, json_t *at, json_t *with, int *tried)
{
    const char *key;
    json_t *value, *keys = json_array(); /* as they were, since what is put back comes last */
    json_object_foreach (at, key, value)
        json_array_append_new(keys, json_string(key));
    for (size_t i = 0; i < json_array_size(keys); i++) {
        key = json_string_value(json_array_get(keys, i));
        value = json_incref(json_object_get(at, key));
        replace_each(root, value, with, tried);
        assert_int_equal(with ? json_object_set(at, key, with) : json_object_del(at, key), 0);
        const lf_status status = page_of(root);
        assert_true(status == LF_OK || (status == LF_ERR_DATA && at == root));
        assert_int_equal(json_object_set_new(at, key, value), 0);
        ++*tried;
    }
    json_decref(keys);
    for (size_t i = 0; i < json_array_size(at); i++) {
        value = json_incref(json_array_get(at, i));
        replace_each(root, value, with, tried);
        assert_int_equal(json_array_set(at, i, with ? with : json_null()), 0);
        assert_int_equal(page_of(root), LF_OK);
        assert_int_equal(json_array_set_new(at, i, value), 0);
        ++*tried;
    }
}

static void anything_may_be_missing_or_of_another_type(void **state)
{
    (void)state;
    json_t *account = an_account();
    json_t *with[] = {NULL, json_null(), json_string("<&\"'\x01\x7f"), json_integer(-1), json_integer(INT64_MAX),
                      json_real(1e308), json_real(-5e-324), json_array(), json_object(), json_pack("[[]]")};
    int tried = 0;
    for (size_t i = 0; i < sizeof with / sizeof *with; i++) {
        replace_each(account, account, with[i], &tried);
        json_decref(with[i]);
    }
    assert_true(tried > 1000);
    json_decref(account);
}

static void what_is_no_account_is_refused(void **state)
{
    (void)state;
    static const struct { const char *json, *says; } wrong[] = {
        {"", "`json` is not JSON"},
        {"[1", "`json` is not JSON"},
        {"[]", "it has no ops"},
        {"{\"ops\": 1}", "it has no ops"},
        {"{\"ops\": [], \"kernels\": [], \"plain\": {}}", "it has no fused"},
    };
    char *page;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(lf_page_print(context, NULL, wrong[i].json, true, &page), LF_ERR_DATA);
        assert_non_null(strstr(lf_context_message(context), wrong[i].says));
        assert_null(page);
    }
    assert_int_equal(lf_page_print(context, NULL, NULL, true, &page), LF_ERR_ARG);
    assert_non_null(strstr(lf_context_message(context), "`json`"));
    assert_int_equal(lf_page_print(context, NULL, "{}", true, NULL), LF_ERR_ARG);
    assert_non_null(strstr(lf_context_message(context), "`out`"));
    assert_int_equal(lf_page_print(NULL, NULL, "{}", true, &page), LF_ERR_ARG);
}

static void titles_are_text(void **state)
{
    (void)state;
    static const struct { const char *title, *html; } titles[] = {
        {NULL, "<title>linfuse</title>"},
        {"", "<title>linfuse</title>"},
        {"</title><b a=\"'\">&", "<title>&lt;/title&gt;&lt;b a=&quot;&#x27;&quot;&gt;&amp;</title>"},
        {"\xc3\xa9\xe2\x86\x93\xf0\x9f\x99\x82", "<title>\xc3\xa9\xe2\x86\x93\xf0\x9f\x99\x82</title>"},
        /* cut short, too long a form, half of a pair, past the end, a byte that begins nothing */
        {"\xe2\x86", "<title>\xef\xbf\xbd\xef\xbf\xbd</title>"},
        {"\xc0\xaf", "<title>\xef\xbf\xbd\xef\xbf\xbd</title>"},
        {"\xed\xa0\x80", "<title>\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd</title>"},
        {"\xf4\x90\x80\x80", "<title>\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd</title>"},
        {"\x1b\xff", "<title>\xef\xbf\xbd\xef\xbf\xbd</title>"},
    };
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++) {
        char *page;
        static const char empty[] = "{\"ops\": [], \"kernels\": [], \"plain\": {}, \"fused\": {}, \"dims\": {}}";
        assert_int_equal(lf_page_print(context, titles[i].title, empty, true, &page), LF_OK);
        assert_non_null(strstr(page, titles[i].html));
        assert_well_formed(page);
        lf_string_free(page);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_account_becomes_a_page),
        cmocka_unit_test(anything_may_be_missing_or_of_another_type),
        cmocka_unit_test(what_is_no_account_is_refused),
        cmocka_unit_test(titles_are_text),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
