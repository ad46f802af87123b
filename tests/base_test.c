/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/guess.h"
#include "base/isa.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "base/str.h"

/* ---- status ---- */

static void status_says_and_returns(void **state)
{
    (void)state;
    lf_diag d;
    assert_int_equal(lf_fail(NULL, LF_ERR_IO, "%d", 1), LF_ERR_IO);
    assert_int_equal(lf_fail_nomem(NULL, "x"), LF_ERR_NOMEM);
    assert_int_equal(lf_fail(&d, LF_ERR_ARG, "matmul: K is %d, not %d", 3, 4), LF_ERR_ARG);
    assert_string_equal(d.text, "matmul: K is 3, not 4");
    assert_int_equal(lf_fail(&d, LF_ERR_MODEL, "line %d: %s", 7, d.text), LF_ERR_MODEL);
    assert_string_equal(d.text, "line 7: matmul: K is 3, not 4");
    assert_int_equal(lf_fail_nomem(&d, "the graph"), LF_ERR_NOMEM);
    assert_string_equal(d.text, "out of memory for the graph");
    lf_fail(&d, LF_ERR_ARG, "%s", "");
    assert_string_equal(d.text, "");
}

/* Control characters are shown; what follows is as it was, and a second time changes nothing. */
static void status_is_printable(void **state)
{
    (void)state;
    lf_diag d;
    lf_fail(&d, LF_ERR_IO, "cannot read %s", "a\x1b[31m\r\x7f\xc2\x9b\n\t\xc2\xa0\xc3\xa9");
    assert_string_equal(d.text, "cannot read a\\x1b[31m\\x0d\\x7f\\x9b\n\t\xc2\xa0\xc3\xa9");
    lf_fail(&d, LF_ERR_IO, "%s", d.text);
    assert_string_equal(d.text, "cannot read a\\x1b[31m\\x0d\\x7f\\x9b\n\t\xc2\xa0\xc3\xa9");
}

/* What does not fit is left out whole, be it an escape or a character. */
static void printable_fits(void **state)
{
    (void)state;
    static const char *const want[] = {"", "a", "a", "a", "a", "a\\x1b", "a\\x1b", "a\\x1b\xc3\xa9", "a\\x1b\xc3\xa9"};
    for (size_t capacity = 1; capacity <= sizeof want / sizeof *want; capacity++) {
        char out[16];
        memset(out, '#', sizeof out);
        lf_text_printable("a\x1b\xc3\xa9", out, capacity);
        assert_string_equal(out, want[capacity - 1]);
        assert_int_equal(out[capacity], '#');
    }
}

/* A character of each length, pushed over the end by each number of bytes. */
static void status_cuts_between_characters(void **state)
{
    (void)state;
    static const char *const characters[] = {"x", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
    lf_diag d;
    char text[sizeof d.text + 16];
    for (size_t width = 1; width <= 4; width++) {
        for (size_t start = sizeof d.text - 6; start < sizeof d.text; start++) {
            memset(text, 'a', sizeof text);
            memcpy(text + start, characters[width - 1], width);
            text[sizeof text - 1] = '\0';
            lf_fail(&d, LF_ERR_ARG, "%s", text);
            size_t fits = start + width <= sizeof d.text - 1 ? sizeof d.text - 1 : start;
            assert_int_equal(strlen(d.text), fits);
            assert_memory_equal(d.text, text, fits);
        }
    }
    memset(text, 0x80, sizeof text - 1); /* not UTF-8: any cut will do, but there is one */
    lf_fail(&d, LF_ERR_ARG, "%s", text);
    assert_int_equal(strlen(d.text), sizeof d.text - 1);
}

/* ---- arena ---- */

static void arena_aligned_zeroed_apart(void **state)
{
    (void)state;
    enum { COUNT = 3000 };
    static unsigned char *blocks[COUNT];
    lf_arena a;
    lf_arena_init(&a);
    size_t total = 0;
    for (size_t i = 0; i < COUNT; i++) {
        size_t size = i % 500 == 499 ? 100000 : i % 97;
        blocks[i] = lf_arena_alloc(&a, size);
        assert_non_null(blocks[i]);
        assert_int_equal((uintptr_t)blocks[i] % 16, 0);
        for (size_t k = 0; k < size; k++)
            assert_int_equal(blocks[i][k], 0);
        memset(blocks[i], (int)(i % 251) + 1, size);
        total += size;
    }
    for (size_t i = 0; i < COUNT; i++) {
        size_t size = i % 500 == 499 ? 100000 : i % 97;
        for (size_t k = 0; k < size; k++)
            assert_int_equal(blocks[i][k], i % 251 + 1);
    }
    assert_true(lf_arena_bytes(&a) >= total);
    lf_arena_free(&a);
    assert_int_equal(lf_arena_bytes(&a), 0);
    assert_non_null(lf_arena_alloc(&a, 8));
    lf_arena_free(&a);
    lf_arena_free(&a);
}

static void arena_refuses_absurd_sizes(void **state)
{
    (void)state;
    lf_arena a;
    lf_arena_init(&a);
    assert_non_null(lf_arena_alloc(&a, 0));
    size_t before = lf_arena_bytes(&a);
    for (size_t less = 0; less < 80; less++)
        assert_null(lf_arena_alloc(&a, SIZE_MAX - less));
    assert_null(lf_arena_alloc(&a, PTRDIFF_MAX));
    assert_null(lf_arena_array(&a, SIZE_MAX / 8 + 2, 8)); /* wraps to 8 */
    assert_null(lf_arena_array(&a, SIZE_MAX, SIZE_MAX));
    assert_int_equal(lf_arena_bytes(&a), before);
    assert_non_null(lf_arena_array(&a, 0, SIZE_MAX));
    assert_non_null(lf_arena_array(&a, 5, 8));
    lf_arena_free(&a);
}

static void arena_text(void **state)
{
    (void)state;
    lf_arena a;
    lf_arena_init(&a);
    const char unterminated[3] = {'a', 'b', 'c'};
    assert_string_equal(lf_arena_strndup(&a, unterminated, 3), "abc");
    assert_string_equal(lf_arena_strndup(&a, "abc", 2), "ab");
    assert_string_equal(lf_arena_strndup(&a, "abc", SIZE_MAX), "abc");
    assert_string_equal(lf_arena_strndup(&a, "", 0), "");
    assert_string_equal(lf_arena_printf(&a, "%s[%d]", "x", 12), "x[12]");
    assert_string_equal(lf_arena_printf(&a, "%s", ""), "");
    assert_int_equal(strlen(lf_arena_printf(&a, "%70000d", 1)), 70000);
    lf_arena_free(&a);
}

/* ---- str ---- */

static void str_builds(void **state)
{
    (void)state;
    lf_str s = {0};
    lf_str_add(&s, "ab");
    lf_str_addn(&s, "cdef", 2);
    lf_str_addn(&s, NULL, 0);
    lf_str_addf(&s, " %d %s", 5, "x");
    assert_int_equal(s.length, 8);
    char *text = lf_str_take(&s);
    assert_string_equal(text, "abcd 5 x");
    free(text);
    assert_null(s.text);

    text = lf_str_take(&s); /* nothing added: an empty string, not NULL */
    assert_string_equal(text, "");
    free(text);

    for (int i = 0; i < 1000; i++)
        lf_str_addf(&s, "%03d,", i);
    lf_str_addf(&s, "%5000d", 7);
    assert_int_equal(s.length, 9000);
    assert_int_equal(strlen(s.text), 9000);
    assert_memory_equal(s.text + 4 * 567, "567,", 4);
    lf_str_free(&s);
    lf_str_free(&s);
}

static void str_pads_by_characters(void **state)
{
    (void)state;
    lf_str s = {0};
    lf_str_pad(&s, 0);
    lf_str_pad(&s, 2);
    lf_str_add(&s, "a\n\xc3\xa9\xe2\x82\xac"); /* two characters in five bytes */
    lf_str_pad(&s, 4);
    lf_str_add(&s, "|");
    lf_str_pad(&s, 3);
    lf_str_add(&s, "|");
    char *text = lf_str_take(&s);
    assert_string_equal(text, "  a\n\xc3\xa9\xe2\x82\xac  ||");
    free(text);
}

static void str_failure_sticks(void **state)
{
    (void)state;
    lf_str s = {0};
    lf_str_add(&s, "kept");
    lf_str_pad(&s, SIZE_MAX);
    assert_true(s.failed);
    lf_str_add(&s, "lost");
    lf_str_addf(&s, "%d", 1);
    lf_str_pad(&s, 9);
    assert_string_equal(s.text, "kept");
    assert_null(lf_str_take(&s));
    lf_str_add(&s, "anew");
    char *text = lf_str_take(&s);
    assert_string_equal(text, "anew");
    free(text);
}

/* ---- dtype ---- */

static void dtype_names(void **state)
{
    (void)state;
    static const size_t sizes[] = {[LF_F32] = 4, [LF_F16] = 2, [LF_BF16] = 2, [LF_I64] = 8};
    static const char *const names[] = {[LF_F32] = "f32", [LF_F16] = "f16", [LF_BF16] = "bf16", [LF_I64] = "i64"};
    for (unsigned t = 0; t < 4; t++) {
        lf_dtype parsed = (lf_dtype)((t + 1) % 4);
        assert_int_equal(lf_dtype_size((lf_dtype)t), sizes[t]);
        assert_string_equal(lf_dtype_name((lf_dtype)t), names[t]);
        assert_true(lf_dtype_parse(names[t], strlen(names[t]), &parsed));
        assert_int_equal(parsed, t);
    }
    lf_dtype kept = LF_I64;
    assert_false(lf_dtype_parse("f32x", 4, &kept));
    assert_false(lf_dtype_parse("f3", 2, &kept));
    assert_false(lf_dtype_parse("", 0, &kept));
    assert_int_equal(kept, LF_I64);
    assert_true(lf_dtype_parse("f32[2]", 3, &kept));
    assert_int_equal(kept, LF_F32);
}

static uint32_t bits_of(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

static float from_bits(uint32_t b)
{
    float x;
    memcpy(&x, &b, sizeof x);
    return x;
}

static uint16_t to_half(float x)
{
    uint16_t h;
    lf_from_f32(LF_F16, &x, &h, 1, 1);
    return h;
}

static uint16_t to_bf16(float x)
{
    uint16_t h;
    lf_from_f32(LF_BF16, &x, &h, 1, 1);
    return h;
}

static uint16_t every[65536], back[65536];
static float wide[65536];

static void fill_every(void)
{
    for (unsigned i = 0; i < 65536; i++)
        every[i] = (uint16_t)i;
}

/* Every half against its definition, and back again. */
static void f16_all_round_trip(void **state)
{
    (void)state;
    fill_every();
    lf_to_f32(LF_F16, every, 1, wide, 65536);
    lf_from_f32(LF_F16, wide, back, 1, 65536);
    for (unsigned i = 0; i < 65536; i++) {
        int exponent = (int)(i >> 10 & 31), fraction = (int)(i & 1023);
        assert_int_equal(bits_of(wide[i]) >> 31, i >> 15);
        if (exponent == 31 && fraction) {
            assert_true(isnan(wide[i]));
            assert_int_equal(back[i], i | 0x200);
            continue;
        }
        assert_int_equal(back[i], i);
        double value = exponent == 31  ? HUGE_VAL
                       : exponent == 0 ? ldexp(fraction, -24)
                                       : ldexp(1024 + fraction, exponent - 25);
        assert_true(fabs((double)wide[i]) == value);
    }
}

static void bf16_all_round_trip(void **state)
{
    (void)state;
    fill_every();
    lf_to_f32(LF_BF16, every, 1, wide, 65536);
    lf_from_f32(LF_BF16, wide, back, 1, 65536);
    for (unsigned i = 0; i < 65536; i++) {
        assert_int_equal(bits_of(wide[i]), i << 16);
        assert_int_equal(back[i], isnan(wide[i]) ? i | 0x40 : i);
    }
}

/* Between two neighbours rounding is decided by the halfway point: it goes to the even one, and the floats right beside
 * it to the nearer. With monotonicity that is every float. low = 0x7bff has infinity for a neighbour, as if 2^16. */
static void f16_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (unsigned low = 0; low < 0x7c00; low++) {
        uint16_t ends[2] = {(uint16_t)low, (uint16_t)(low + 1)};
        float x[2];
        lf_to_f32(LF_F16, ends, 1, x, 2);
        if (low + 1 == 0x7c00)
            x[1] = 65536.0f;
        float half = (x[0] + x[1]) / 2; /* exact: one bit more than a half has */
        for (unsigned sign = 0; sign < 2; sign++) {
            float s = sign ? -1.0f : 1.0f;
            unsigned top = sign << 15;
            assert_int_equal(to_half(s * half), top | (low + (low & 1)));
            assert_int_equal(to_half(s * nextafterf(half, x[0])), top | low);
            assert_int_equal(to_half(s * nextafterf(half, x[1])), top | (low + 1));
        }
    }
}

static void bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t low = 0; low < 0x7f80; low++) {
        for (uint32_t top = 0; top <= 0x8000; top += 0x8000) {
            uint32_t b = (top | low) << 16;
            assert_int_equal(to_bf16(from_bits(b | 0x8000)), top | (low + (low & 1)));
            assert_int_equal(to_bf16(from_bits(b | 0x7fff)), top | low);
            assert_int_equal(to_bf16(from_bits(b | 0x8001)), top | (low + 1));
        }
    }
}

static void conversions_of_the_extremes(void **state)
{
    (void)state;
    assert_int_equal(to_half(FLT_MAX), 0x7c00);
    assert_int_equal(to_half(-INFINITY), 0xfc00);
    assert_int_equal(to_half(FLT_MIN), 0);
    assert_int_equal(to_half(from_bits(0x80000001)), 0x8000);
    assert_int_equal(to_bf16(FLT_MAX), 0x7f80);
    assert_int_equal(to_bf16(-INFINITY), 0xff80);
    /* Payloads that a cut would lose, or a rounding carry into infinity or the sign. */
    static const uint32_t nans[] = {0x7f800001, 0xff800001, 0x7fffffff, 0xffffffff, 0x7fc00000, 0x7fa00000};
    for (size_t i = 0; i < sizeof nans / sizeof *nans; i++) {
        unsigned h = to_half(from_bits(nans[i])), b = to_bf16(from_bits(nans[i]));
        assert_true((h & 0x7fff) > 0x7c00 && h >> 15 == nans[i] >> 31);
        assert_true((b & 0x7fff) > 0x7f80 && b >> 15 == nans[i] >> 31);
    }
}

/* ---- mem ---- */

static void mem_aligned(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 63, 64, 65, 4097, 1 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *p = lf_aligned_alloc(sizes[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % LF_ALIGNMENT, 0);
        memset(p, 0xa5, sizes[i]);
        lf_aligned_free(p);
    }
    for (size_t less = 0; less < 130; less++)
        assert_null(lf_aligned_alloc(SIZE_MAX - less));
    assert_null(lf_aligned_alloc(PTRDIFF_MAX));
    lf_aligned_free(NULL);
}

static void mem_made_ready_as_it_was(void **state)
{
    (void)state;
    enum { SIZE = 300001 };
    unsigned char *p = lf_aligned_alloc(SIZE);
    assert_non_null(p);
    for (int i = 0; i < SIZE; i++)
        p[i] = (unsigned char)(i % 251);
    for (size_t from = 0; from <= SIZE; from += 4099)
        for (size_t bytes = 0; from + bytes <= SIZE; bytes = 3 * bytes + 1)
            lf_memory_ready(p + from, bytes);
    for (int i = 0; i < SIZE; i++)
        assert_int_equal(p[i], i % 251);
    lf_aligned_free(p);
}

/* ---- guesses ---- */

static const char *guessed(const char *word, int most)
{
    static const char *const words[] = {"relu", "gelu", "silu", "exp", "logsumexp"};
    lf_guess guess = lf_guess_of(word, strlen(word), most);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        lf_guess_try(&guess, words[i]);
    return guess.best ? guess.best : "";
}

static void guess_is_the_nearest(void **state)
{
    (void)state;
    char longest[200] = {0};
    memset(longest, 'a', sizeof longest - 1);
    assert_string_equal(guessed("gelu", 2), "gelu");
    assert_string_equal(guessed("rellu", 2), "relu");
    assert_string_equal(guessed("sliu", 1), "silu"); /* letters that changed places count once */
    assert_string_equal(guessed("epx", 1), "exp");
    assert_string_equal(guessed("usli", 1), "");
    assert_string_equal(guessed("selu", 2), "relu"); /* the first of three that are one letter away */
    assert_string_equal(guessed("log_sum_exp", 2), "logsumexp");
    assert_string_equal(guessed("log_sum_exp", 1), "");
    assert_string_equal(guessed("", 4), "");
    assert_string_equal(guessed("abc", 3), ""); /* nothing would be left */
    assert_string_equal(guessed(longest, 500), "");
}

static void mem_checked_arithmetic(void **state)
{
    (void)state;
    int64_t i;
    size_t z;
    assert_true(lf_mul_i64(INT64_MAX / 7, 7, &i) && i == INT64_MAX / 7 * 7);
    assert_true(lf_mul_i64(INT64_MIN, 1, &i) && i == INT64_MIN);
    assert_false(lf_mul_i64(INT64_MIN, -1, &i));
    assert_false(lf_mul_i64(INT64_C(1) << 32, INT64_C(1) << 31, &i));
    assert_true(lf_add_i64(INT64_MAX - 1, 1, &i) && i == INT64_MAX);
    assert_false(lf_add_i64(INT64_MAX, 1, &i));
    assert_false(lf_add_i64(INT64_MIN, -1, &i));
    assert_true(lf_mul_size(SIZE_MAX, 1, &z) && z == SIZE_MAX);
    assert_false(lf_mul_size(SIZE_MAX / 2 + 1, 2, &z));
    assert_true(lf_add_size(SIZE_MAX, 0, &z) && z == SIZE_MAX);
    assert_false(lf_add_size(SIZE_MAX, 1, &z));
}

/* ---- rng ---- */

static void rng_repeats_and_jumps(void **state)
{
    (void)state;
    lf_rng a = lf_rng_seed(42, "weights"), b = lf_rng_seed(42, "weights");
    lf_rng other_name = lf_rng_seed(42, "bias"), other_seed = lf_rng_seed(43, "weights");
    for (uint64_t i = 0; i < 1000; i++) {
        lf_rng jumped = lf_rng_at(42, "weights", i);
        uint64_t x = lf_rng_u64(&a);
        assert_true(x == lf_rng_u64(&b));
        assert_true(x == lf_rng_u64(&jumped));
        assert_true(x != lf_rng_u64(&other_name));
        assert_true(x != lf_rng_u64(&other_seed));
    }
    /* The first draw, pinned: recorded results depend on it. */
    lf_rng first = lf_rng_seed(1, "x");
    assert_true(lf_rng_u64(&first) == UINT64_C(0x59a11d765241e6d1));
}

static void rng_stays_in_range(void **state)
{
    (void)state;
    lf_rng r = lf_rng_seed(7, "range");
    double sum = 0;
    enum { DRAWS = 100000 };
    for (int i = 0; i < DRAWS; i++) {
        double u = lf_rng_unit(&r);
        assert_true(u >= 0 && u < 1);
        sum += u;
        float x = lf_rng_uniform(&r, -FLT_MAX, FLT_MAX);
        assert_true(x >= -FLT_MAX && x < FLT_MAX);
        /* Neighbours: half of the draws round up to hi before they are put right. */
        x = lf_rng_uniform(&r, 1.0f, nextafterf(1.0f, 2.0f));
        assert_true(x == 1.0f);
    }
    /* Standard deviation of the mean: sqrt(1 / 12 / DRAWS) = 9.1e-4. Five of them. */
    assert_true(fabs(sum / DRAWS - 0.5) < 4.6e-3);
}

/* ---- instruction sets ---- */

static void isa_is_what_the_compiler_finds(void **state)
{
    (void)state;
    bool avx2 = false, avx512 = false, bf16 = false;
#ifdef __x86_64__
    avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
    bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
#endif
    assert_int_equal(lf_has_avx2(), avx2);
    assert_int_equal(lf_has_avx512(), avx512);
    assert_int_equal(lf_has_avx512_bf16(), bf16);
    assert_true(lf_has_avx512() || !lf_has_amx_bf16());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_says_and_returns),
        cmocka_unit_test(status_is_printable),
        cmocka_unit_test(printable_fits),
        cmocka_unit_test(status_cuts_between_characters),
        cmocka_unit_test(arena_aligned_zeroed_apart),
        cmocka_unit_test(arena_refuses_absurd_sizes),
        cmocka_unit_test(arena_text),
        cmocka_unit_test(str_builds),
        cmocka_unit_test(str_pads_by_characters),
        cmocka_unit_test(str_failure_sticks),
        cmocka_unit_test(dtype_names),
        cmocka_unit_test(f16_all_round_trip),
        cmocka_unit_test(bf16_all_round_trip),
        cmocka_unit_test(f16_rounds_to_nearest_even),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(conversions_of_the_extremes),
        cmocka_unit_test(mem_aligned),
        cmocka_unit_test(mem_made_ready_as_it_was),
        cmocka_unit_test(guess_is_the_nearest),
        cmocka_unit_test(mem_checked_arithmetic),
        cmocka_unit_test(rng_repeats_and_jumps),
        cmocka_unit_test(rng_stays_in_range),
        cmocka_unit_test(isa_is_what_the_compiler_finds),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
