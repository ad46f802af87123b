/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/safetensors.h"

static void assert_says(const lf_diag *d, const char *what)
{
    if (!strstr(d->text, what))
        fail_msg("\"%s\" does not say \"%s\"", d->text, what);
    assert_null(strchr(d->text, '\n'));
}

/* A file of this header and data that count up. Caller frees; exactly as long as it is, so that overruns are seen. */
static char *st_make(const char *header, size_t data, size_t *n)
{
    size_t length = strlen(header);
    *n = 8 + length + data;
    char *b = calloc(1, *n);
    assert_non_null(b);
    b[0] = (char)(length & 0xff);
    b[1] = (char)(length >> 8);
    memcpy(b + 8, header, length);
    for (size_t i = 0; i < data; i++)
        b[8 + length + i] = (char)i;
    return b;
}

static const char good_header[] =
    "{\"__metadata__\":{\"format\":\"pt\"},"
    "\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[3,27]},"
    "\"flags\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[0,3]},"
    "\"none\":{\"dtype\":\"F64\",\"shape\":[0,9223372036854775807],\"data_offsets\":[3,3]},"
    "\"h\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[27,29]}}   ";

static void safetensors_reads(void **state)
{
    (void)state;
    size_t n;
    lf_safetensors st;
    lf_diag d = {{0}};
    char *b = st_make(good_header, 29, &n);
    if (lf_safetensors_read(b, n, "w.safetensors", &st, &d) != LF_OK)
        fail_msg("%s", d.text);
    assert_int_equal(st.count, 4);
    const lf_tensor_view *w = lf_safetensors_find(&st, "w"), *h = lf_safetensors_find(&st, "h");
    assert_non_null(w);
    assert_non_null(h);
    assert_non_null(lf_safetensors_find(&st, "flags"));
    assert_int_equal(lf_safetensors_find(&st, "none")->count, 0);
    assert_null(lf_safetensors_find(&st, "__metadata__"));
    assert_null(lf_safetensors_find(&st, ""));
    assert_string_equal(w->dtype, "F32");
    assert_int_equal(w->rank, 2);
    assert_int_equal(w->extents[0], 2);
    assert_int_equal(w->extents[1], 3);
    assert_int_equal(w->count, 6);
    assert_ptr_equal(w->data, b + n - 29 + 3);
    assert_int_equal(h->rank, 0);
    assert_int_equal(h->count, 1);

    float out[6];
    assert_int_equal(lf_tensor_read(w, LF_F32, out, &d), LF_OK);
    assert_memory_equal(out, w->data, 24);
    assert_int_equal(lf_tensor_read(h, LF_F32, out, &d), LF_OK);
    uint32_t bits = 0x1c1bu << 16, found;
    memcpy(&found, out, 4);
    assert_int_equal(found, bits);
    assert_int_equal(lf_tensor_read(lf_safetensors_find(&st, "flags"), LF_F32, out, &d), LF_ERR_DATA);
    assert_says(&d, "w.safetensors: tensor 'flags' holds BOOL, not F32; convert");
    lf_safetensors_free(&st);
    lf_safetensors_free(&st);
    free(b);

    b = st_make("{}", 0, &n);
    assert_int_equal(lf_safetensors_read(b, n, "w", &st, &d), LF_OK);
    assert_int_equal(st.count, 0);
    assert_null(lf_safetensors_find(&st, "w"));
    lf_safetensors_free(&st);
    free(b);
}

static void safetensors_widens_halves(void **state)
{
    (void)state;
    enum { COUNT = 1500 }; /* more than a panel */
    static uint16_t halves[COUNT];
    static float out[COUNT + 1];
    for (int i = 0; i < COUNT; i++)
        halves[i] = (uint16_t)(0x3c00 + i % 1024);
    lf_tensor_view t = {.name = "t", .dtype = "F16", .count = COUNT, .size = sizeof halves, .data = halves};
    out[COUNT] = 42.0f;
    assert_int_equal(lf_tensor_read(&t, LF_F32, out, NULL), LF_OK);
    for (int i = 0; i < COUNT; i++)
        assert_true(out[i] == 1.0f + (float)(i % 1024) / 1024.0f);
    assert_true(out[COUNT] == 42.0f);
}

static void safetensors_refuses(void **state)
{
    (void)state;
#define T(dtype, shape, offsets) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
    static const struct {
        const char *header;
        size_t data;
        const char *says;
    } cases[] = {
        {"", 8, "does not begin with {"},
        {"[1]", 8, "does not begin with {"},
        {" {}", 0, "does not begin with {"},
        {"{", 8, "not JSON"},
        {"{}{}", 8, "not JSON"},
        {"{\"a\":1,\"a\":2}", 0, "duplicate"},
        {"{\"a\x01\":1}", 0, "not JSON"},
        {"{\"a\\u0000b\":1}", 0, "not JSON"},
        {"{\"\xff\":1}", 0, "not JSON"},
        {"{\"a\":1}", 0, "w.st: tensor 'a': its description is not a JSON object"},
        {"{\"a\":{}}", 0, "no \"dtype\""},
        {"{\"a\":" T("F33", "[1]", "[0,4]") "}", 4, "its dtype 'F33' is not known"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "no \"shape\" list"},
        {"{\"a\":" T("F32", "1", "[0,4]") "}", 4, "no \"shape\" list"},
        {"{\"a\":" T("F32", "[1.0]", "[0,4]") "}", 4, "not a list of whole numbers"},
        {"{\"a\":" T("F32", "[-1]", "[0,4]") "}", 4, "not a list of whole numbers"},
        {"{\"a\":" T("F32", "[4294967296,4294967296]", "[0,4]") "}", 4, "more elements than can be counted"},
        {"{\"a\":" T("F32", "[4611686018427387904]", "[0,4]") "}", 4, "4 bytes do not fit"},
        {"{\"a\":" T("F32", "[99999999999999999999]", "[0,4]") "}", 4, "not JSON"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "data_offsets"},
        {"{\"a\":" T("F32", "[1]", "[0]") "}", 4, "data_offsets"},
        {"{\"a\":" T("F32", "[1]", "[0,4,8]") "}", 4, "data_offsets"},
        {"{\"a\":" T("F32", "[1]", "[4,0]") "}", 4, "data_offsets"},
        {"{\"a\":" T("F32", "[1]", "[-4,0]") "}", 4, "data_offsets"},
        {"{\"a\":" T("F32", "[1]", "[0.0,4.0]") "}", 4, "data_offsets"},
        {"{\"a\":" T("F32", "[1]", "[0,4]") "}", 3, "end at byte 4, but the file has 3 bytes"},
        {"{\"a\":" T("F32", "[1]", "[9223372036854775803,9223372036854775807]") "}", 4, "end at byte"},
        {"{\"a\":" T("F32", "[2]", "[0,4]") "}", 4, "4 bytes do not fit 2 elements of F32"},
        {"{\"a\":" T("F4", "[3]", "[0,1]") "}", 1, "do not fit 3 elements of F4"},
        {"{\"a\":" T("F32", "[1]", "[0,4]") ",\"b\":" T("F32", "[1]", "[2,6]") "}", 6, "tensors 'a' and 'b' overlap"},
        {"{\"b\":" T("F32", "[1]", "[0,4]") ",\"a\":" T("F32", "[1]", "[0,4]") "}", 4, "overlap"},
        {"{\"two\\nlines\":" T("F7", "[1]", "[0,4]") "}", 4, "tensor 'two?lines'"},
        {"{\"a\":" T("F32", "[1]", "[4,8]") "}", 8, "the 4 bytes before tensor 'a' belong to no tensor"},
        {"{\"a\":" T("F32", "[1]", "[0,4]") ",\"b\":" T("F32", "[1]", "[5,9]") "}", 9, "1 bytes before tensor 'b'"},
        {"{\"a\":" T("F32", "[1]", "[0,4]") "}", 9, "the last 5 bytes belong to no tensor"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n;
        lf_safetensors st;
        lf_diag d;
        char *b = st_make(cases[i].header, cases[i].data, &n);
        assert_int_equal(lf_safetensors_read(b, n, "w.st", &st, &d), LF_ERR_DATA);
        assert_null(st.tensors);
        assert_says(&d, cases[i].says);
        assert_int_equal(strncmp(d.text, "w.st: ", 6), 0);
        free(b);
    }
}

static void safetensors_survives_damage(void **state)
{
    (void)state;
    size_t n;
    lf_safetensors st;
    lf_diag d;
    char *good = st_make(good_header, 29, &n);
    for (size_t cut = 0; cut < n; cut++) {
        char *b = malloc(cut ? cut : 1);
        assert_non_null(b);
        memcpy(b, good, cut);
        assert_int_equal(lf_safetensors_read(b, cut, "w", &st, &d), LF_ERR_DATA);
        free(b);
    }
    static const unsigned char lengths[][8] = {{255, 255, 255, 255, 255, 255, 255, 255}, {0, 0, 0, 0, 0, 0, 0, 128},
                                               {1, 225, 245, 5, 0, 0, 0, 0}, /* 100000001 */
                                               {0, 0, 0, 0, 0, 0, 0, 0}};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memcpy(good, lengths[i], 8);
        assert_int_equal(lf_safetensors_read(good, n, "w", &st, &d), LF_ERR_DATA);
        assert_says(&d, "not a safetensors file");
    }
    free(good);

    enum { DEEP = 60000 }; /* nested far deeper than a parser that calls itself should go */
    char *deep = calloc(1, DEEP + 1);
    assert_non_null(deep);
    memset(deep, '[', DEEP);
    memcpy(deep, "{\"a\":", 5);
    char *b = st_make(deep, 0, &n);
    assert_int_equal(lf_safetensors_read(b, n, "w", &st, &d), LF_ERR_DATA);
    free(b);
    free(deep);
}

/* Our own allocations fail in turn (the JSON library's do not: it may end the process when it has no memory): an error,
 * nothing lost by the sanitizer's count, and at last it works. */
static long allocations_left = -1; /* -1: no end to them */

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);

void *__wrap_calloc(size_t count, size_t size)
{
    if (allocations_left == 0)
        return NULL;
    allocations_left -= allocations_left > 0;
    return __real_calloc(count, size);
}

static void safetensors_without_memory(void **state)
{
    (void)state;
    size_t n;
    lf_safetensors st;
    lf_diag d;
    /* Names too long to share a chunk of the arena. */
    enum { TENSORS = 5, NAME = 5000 };
    char *header = malloc(TENSORS * (NAME + 100)), *at = header;
    assert_non_null(header);
    for (int i = 0; i < TENSORS; i++)
        at += sprintf(at, "%c\"%0*d\":" T("F32", "[0]", "[0,0]"), i ? ',' : '{', NAME, i);
    strcpy(at, "}");
    char *b = st_make(header, 0, &n);
    long failures = 0;
    for (;; failures++) {
        allocations_left = failures;
        lf_status status = lf_safetensors_read(b, n, "w", &st, &d);
        allocations_left = -1;
        if (status == LF_OK)
            break;
        assert_int_equal(status, LF_ERR_NOMEM);
        assert_says(&d, "out of memory");
        assert_null(st.tensors);
        assert_true(failures < 1000);
    }
    assert_true(failures > 2);
    lf_safetensors_free(&st);
    free(b);
    free(header);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(safetensors_reads),
        cmocka_unit_test(safetensors_widens_halves),
        cmocka_unit_test(safetensors_refuses),
        cmocka_unit_test(safetensors_survives_damage),
        cmocka_unit_test(safetensors_without_memory),
    };
    return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
