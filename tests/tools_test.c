/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of linfuse_tools.h. lf_call_time wants a GPU: gpu_test.c, call_cuda_test.c. */
#include "api_fixture.h"

#include <unistd.h>

static void arrays_in_files(void **state)
{
    (void)state;
    lf_context *context = context_of(1);
    const float values[6] = {1, 2, 3, 4, 5, INFINITY};
    const int64_t turned[] = {1, 2};
    lf_tensor odd;
    lf_array *array = NULL;
    assert_int_equal(lf_array_open(NULL, "x", &array), LF_ERR_ARG);
    assert_int_equal(lf_array_save(NULL, "x", F32(values, 2, 3)), LF_ERR_ARG);
    REFUSES(LF_ERR_ARG, "`out`", lf_array_open(context, "x", NULL), lf_context_message(context));
    REFUSES(LF_ERR_ARG, "`path`", lf_array_open(context, NULL, &array), lf_context_message(context));
    assert_int_equal(lf_text_save(NULL, "x", "y"), LF_ERR_ARG);
    REFUSES(LF_ERR_ARG, "`path`", lf_text_save(context, NULL, "y"), lf_context_message(context));
    REFUSES(LF_ERR_ARG, "`text`", lf_text_save(context, "x", NULL), lf_context_message(context));
    REFUSES(LF_ERR_IO, "no/such", lf_text_save(context, "no/such/x", "y"), lf_context_message(context));
    REFUSES(LF_ERR_ARG, "`path`", lf_array_save(context, NULL, F32(values, 2, 3)), lf_context_message(context));
    REFUSES(LF_ERR_ARG, "`tensor`", lf_array_save(context, "h.npy", NULL), lf_context_message(context));
    lf_array_free(NULL);
    assert_null(lf_array_tensor(NULL).data);
    OK_CONTEXT(context, lf_array_save(context, "a.npy", F32(values, 2, 3)));
    OK_CONTEXT(context, lf_array_open(context, "a.npy", &array));
    const lf_tensor read = lf_array_tensor(array);
    assert_true(read.dtype == LF_F32 && read.rank == 2 && read.extents[0] == 2 && read.extents[1] == 3);
    assert_true(!read.strides && read.memory == LF_HOST);
    assert_memory_equal(read.data, values, sizeof values);
    lf_array_free(array);
    for (int type = LF_F32; type <= LF_I64; type++) { /* any type, the same bytes */
        odd = *F32(values, 3), odd.dtype = (lf_dtype)type;
        OK_CONTEXT(context, lf_array_save(context, "a.npy", &odd));
        OK_CONTEXT(context, lf_array_open(context, "a.npy", &array));
        assert_int_equal(lf_array_tensor(array).dtype, type);
        assert_memory_equal(lf_array_tensor(array).data, values, lf_tensor_bytes(&odd));
        lf_array_free(array);
    }
    OK_CONTEXT(context, lf_array_save(context, "empty.npy", F32(NULL, 0)));
    OK_CONTEXT(context, lf_array_open(context, "empty.npy", &array));
    assert_int_equal(lf_array_tensor(array).extents[0], 0);
    lf_array_free(array);
    REFUSES(LF_ERR_ARG, "h.npy", lf_array_save(context, "h.npy", F32(values, INT64_C(1) << 40, INT64_C(1) << 40)),
            lf_context_message(context));
    REFUSES(LF_ERR_ARG, "h.npy", lf_array_save(context, "h.npy", F32(values, -1)), lf_context_message(context));
    REFUSES(LF_ERR_ARG, "`data`", lf_array_save(context, "h.npy", F32(NULL, 2, 3)), lf_context_message(context));
    odd = *F32(values, 2, 3), odd.rank = 9;
    REFUSES(LF_ERR_ARG, "`rank` is 9", lf_array_save(context, "h.npy", &odd), lf_context_message(context));
    odd = *F32(values, 2, 3), odd.extents = NULL;
    REFUSES(LF_ERR_ARG, "`extents`", lf_array_save(context, "h.npy", &odd), lf_context_message(context));
    odd = *F32(values, 2, 3), odd.strides = turned;
    REFUSES(LF_ERR_UNSUPPORTED, "row-major", lf_array_save(context, "h.npy", &odd), lf_context_message(context));
    odd = *F32(values, 2, 3), odd.dtype = (lf_dtype)9;
    REFUSES(LF_ERR_ARG, "`dtype` is 9", lf_array_save(context, "h.npy", &odd), lf_context_message(context));
    odd = *F32(values, 2, 3), odd.memory = LF_DEVICE;
    REFUSES(LF_ERR_UNSUPPORTED, "host memory", lf_array_save(context, "h.npy", &odd), lf_context_message(context));
    assert_int_not_equal(access("h.npy", F_OK), 0);
    REFUSES(LF_ERR_IO, "h.npy", lf_array_open(context, "h.npy", &array), lf_context_message(context));
    assert_null(array);
    FILE *file = fopen("x.npy", "wb");
    assert_non_null(file);
    assert_true(fputs("nothing", file) >= 0);
    assert_int_equal(fclose(file), 0);
    REFUSES(LF_ERR_DATA, "x.npy", lf_array_open(context, "x.npy", &array), lf_context_message(context));
    lf_context_free(context);
}

static void elements_are_converted(void **state)
{
    (void)state;
    const float values[] = {1.0f + 0x1p-8f, 65520.0f, -0x1p-24f, NAN};
    const uint16_t wanted[] = {0x3f80, 0x4780, 0xb380}; /* a tie, to even */
    uint16_t bits[4];
    float back[1200];
    assert_int_equal(lf_convert(LF_F32, values, LF_BF16, bits, 4), LF_OK);
    assert_memory_equal(bits, wanted, sizeof wanted);
    assert_int_equal(lf_convert(LF_F32, values, LF_F16, bits, 4), LF_OK);
    assert_int_equal(lf_convert(LF_F16, bits, LF_F32, back, 4), LF_OK);
    assert_true(back[0] == values[0] && back[1] == INFINITY && back[2] == values[2] && isnan(back[3]));
    uint16_t many[1200];
    for (int i = 0; i < 1200; i++)
        many[i] = (uint16_t)(0x3f80 + i % 128);
    assert_int_equal(lf_convert(LF_BF16, many, LF_F32, back, 1200), LF_OK);
    for (int i = 0; i < 1200; i++)
        assert_true(back[i] == 1 + (float)(i % 128) / 128);
    assert_int_equal(lf_convert(LF_F16, NULL, LF_BF16, NULL, 0), LF_OK);
    assert_int_equal(lf_convert(LF_F16, NULL, LF_BF16, bits, 1), LF_ERR_ARG);
    assert_int_equal(lf_convert(LF_I64, NULL, LF_F32, NULL, 0), LF_ERR_ARG);
    assert_int_equal(lf_convert(LF_F32, NULL, (lf_dtype)9, NULL, 0), LF_ERR_ARG);
    assert_null(lf_dtype_name((lf_dtype)-1));
    assert_string_equal(lf_dtype_name(LF_BF16), "bf16");
}

static void numbers_are_drawn(void **state)
{
    (void)state;
    float a[100], b[100], c[100];
    lf_draw_uniform(3, "x", -2.0f, 5.0f, 100, a);
    lf_draw_uniform(3, "x", -2.0f, 5.0f, 50, b);
    lf_draw_uniform(4, "x", -2.0f, 5.0f, 100, c);
    assert_memory_equal(a, b, 50 * sizeof *a);
    assert_memory_not_equal(a, c, sizeof a);
    for (int i = 0; i < 100; i++)
        assert_true(a[i] >= -2.0f && a[i] < 5.0f);
    assert_int_equal(lf_program_draw_params(NULL, 0), LF_ERR_ARG);
}

/* An instruction set that this machine does not have is an error for programs and for the peak alike. */
static void instruction_sets_that_are_not_there(void **state)
{
    (void)state;
    lf_context *context = context_of(1);
    lf_model *model = model_of(context, "input x f32[B]\ny = relu(x)\nreturn y\n");
    lf_program *program = NULL;
    char before[64] = "";
    double flops = 0;
    assert_int_equal(lf_device_peak(NULL, "cpu", NULL, NULL), LF_ERR_ARG);
    REFUSES(LF_ERR_ARG, "`device`", lf_device_peak(context, NULL, NULL, NULL), lf_context_message(context));
    REFUSES(LF_ERR_ARG, "abacus", lf_device_peak(context, "abacus", NULL, NULL), lf_context_message(context));
    if (getenv("LINFUSE_ISA"))
        snprintf(before, sizeof before, "%s", getenv("LINFUSE_ISA"));
    setenv("LINFUSE_ISA", "abacus", 1);
    REFUSES(LF_ERR_ARG, "LINFUSE_ISA", lf_program_new(model, NULL, &program), lf_model_message(model));
    REFUSES(LF_ERR_ARG, "LINFUSE_ISA", lf_device_peak(context, "cpu", &flops, NULL), lf_context_message(context));
    setenv("LINFUSE_ISA", before, 1);
    OK_CONTEXT(context, lf_device_peak(context, "h200", &flops, NULL));
    assert_true(flops > 0);
    lf_model_free(model);
    lf_context_free(context);
}

static void facts_about_the_machine(void **state)
{
    (void)state;
    static const char *const facts[] = {"system", "cpu", "isa", "measured", "driver", "nvrtc", "gpu", "cache"};
    lf_context *context = context_of(1);
    char *text = NULL;
    assert_int_equal(lf_machine_fact(NULL, "cpu", &text), LF_ERR_ARG);
    REFUSES(LF_ERR_ARG, "`out`", lf_machine_fact(context, "cpu", NULL), lf_context_message(context));
    REFUSES(LF_ERR_ARG, "`fact`", lf_machine_fact(context, NULL, &text), lf_context_message(context));
    REFUSES(LF_ERR_ARG, "abacus", lf_machine_fact(context, "abacus", &text), lf_context_message(context));
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        REFUSES(LF_ERR_ARG, facts[i], lf_machine_fact(context, "abacus", &text), lf_context_message(context));
        lf_status status = lf_machine_fact(context, facts[i], &text);
        assert_true(status == LF_OK || !text);
        assert_true(status == LF_OK || status == LF_ERR_DEVICE || status == LF_ERR_IO || status == LF_ERR_DATA);
        assert_true(status != LF_OK || text[0]);
        lf_string_free(text);
    }
    lf_context_free(context);
}

static void rules_are_listed(void **state)
{
    (void)state;
    size_t count = 0;
    for (; lf_rule_name(count); count++) {
        const char *class = lf_rule_class_of(count);
        assert_true(lf_rule_law(count)[0] != '\0');
        assert_true(strcmp(class, "EXACT") == 0 || strcmp(class, "REROUNDS") == 0 || strcmp(class, "GUARDED") == 0);
    }
    assert_true(count > 20);
    assert_null(lf_rule_law(count));
    assert_null(lf_rule_class_of(count));
}

static void words_that_were_meant(void **state)
{
    (void)state;
    const char *const words[] = {"explain", NULL, "check", "emit"};
    assert_string_equal(lf_word_near("chekc", words, 4), "check");
    assert_string_equal(lf_word_near("explian", words, 4), "explain");
    assert_null(lf_word_near("fly", words, 4));
    assert_null(lf_word_near("check", words, 0));
}

static char folder[] = "/tmp/linfuse_tools_test_XXXXXX";

static int enter_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

static int leave_folder(void **state)
{
    (void)state;
    static const char *const files[] = {"a.npy", "empty.npy", "x.npy"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        remove(files[i]);
    return chdir("/") == 0 && rmdir(folder) == 0 ? 0 : -1; /* fails where something else was left behind */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrays_in_files),
        cmocka_unit_test(elements_are_converted),
        cmocka_unit_test(numbers_are_drawn),
        cmocka_unit_test(instruction_sets_that_are_not_there),
        cmocka_unit_test(facts_about_the_machine),
        cmocka_unit_test(rules_are_listed),
        cmocka_unit_test(words_that_were_meant),
    };
    return cmocka_run_group_tests_name("tools", tests, enter_folder, leave_folder);
}
