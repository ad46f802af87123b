/* SPDX-License-Identifier: Apache-2.0 */
/* Which shape of tiles serves how many rows, without a GPU: what the cost model chooses, what is measured by a driver
 * that stands in for one, and what of that is found again on disk. */
#include "api_fixture.h"
#include "cache_fixture.h"
#include "stand_in_driver.h"

#include "cuda/choose.h"
#include "plan/tiles.h"
#include "run/handles.h"

/* ---- the driver: how long a kernel takes is the test's to say, by its shape ---- */

static int image[LF_TILE_SHAPES];  /* code: an address here, by shape */
static float takes[LF_TILE_SHAPES]; /* ms */
static int timed[LF_TILE_SHAPES], launched;

static int fake_alloc(lf_cuda_ptr *memory, size_t bytes)
{
    static lf_cuda_ptr next = 1 << 20;
    *memory = next;
    next += (bytes + 511) / 512 * 512;
    return 0;
}

static int fake_device_name(char *name, int length, int device)
{
    (void)device;
    snprintf(name, (size_t)length, "NVIDIA Test");
    return 0;
}

static int fake_device_attribute(int *value, int attribute, int device)
{
    (void)device;
    *value = attribute == 75 ? 9 : attribute == 16 ? 132 : attribute == 97 ? 227 << 10 : attribute == 38 ? 50 << 20 : 0;
    return 0;
}

static int fake_module_load(void **module, const void *code)
{
    int shape;
    memcpy(&shape, code, sizeof shape);
    *module = &image[shape];
    return 0;
}

static int fake_function_get(void **function, void *module, const char *name)
{
    (void)name;
    *function = module;
    return 0;
}

static int fake_clusters(int *count, void *function, const lf_cuda_config *config)
{
    (void)function, (void)config;
    *count = 66;
    return 0;
}

static int fake_launch(const lf_cuda_config *config, void *function, void **params, void **extra)
{
    (void)config, (void)params, (void)extra;
    launched = (int)((int *)function - image);
    return 0;
}

static int fake_event_ms(float *ms, void *from, void *to)
{
    (void)from, (void)to;
    timed[launched]++;
    *ms = takes[launched];
    return 0;
}

static void *moved_to;
static int fake_tensor_map_move(void *map, void *address)
{
    (void)map;
    moved_to = address;
    return 0;
}

static void own_functions(lf_cuda_driver *to)
{
    to->tensor_map_move = fake_tensor_map_move;
    to->alloc = fake_alloc;
    to->device_name = fake_device_name;
    to->device_attribute = fake_device_attribute;
    to->module_load = fake_module_load;
    to->function_get = fake_function_get;
    to->clusters = fake_clusters;
    to->launch = fake_launch;
    to->event_ms = fake_event_ms;
}

/* The code is the shape that the text calls its product with. */
lf_status __wrap_lf_cuda_compile(const char *source, const char *arch, char **cubin, size_t *size, char **log,
                                 lf_diag *diag);
lf_status __wrap_lf_cuda_compile(const char *source, const char *arch, char **cubin, size_t *size, char **log,
                                 lf_diag *diag)
{
    (void)arch, (void)log, (void)diag;
    int shape = 0;
    for (int s = 0; s < LF_TILE_SHAPES; s++) {
        char call[64];
        snprintf(call, sizeof call, "%s<g0, %s>", lf_tile_product(&lf_tile_table[s]), lf_tile_table[s].text);
        if (strstr(source, call))
            shape = s;
    }
    *size = sizeof shape;
    *cubin = malloc(*size);
    assert_non_null(*cubin);
    memcpy(*cubin, &shape, sizeof shape);
    return LF_OK;
}

/* ---- around each test ---- */

static int own_cache(void **state)
{
    (void)state;
    for (int s = 0; s < LF_TILE_SHAPES; s++)
        takes[s] = (float)(2 + s);
    capturing = false;
    return cache_begin();
}

static int drop_cache(void **state)
{
    (void)state;
    unsetenv("LINFUSE_CUDA_SHAPE");
    return cache_end();
}

static const char text[] = "input x f32[B, 512]\nparam w f32[1024, 512]\na = linear(x, w)\nb = gelu(a)\nreturn b\n";

static const char renamed[] = "input in f32[B, 512]\nparam layer.weight f32[1024, 512]\n"
                              "linear_0 = linear(in, layer.weight)\ngelu_1 = gelu(linear_0)\nreturn gelu_1\n";

static lf_status run(rig *r, int64_t rows)
{
    const float *in[] = {(const float *)(uintptr_t)0x10000000};
    float *out[] = {(float *)(uintptr_t)0x20000000};
    return run_on(r->call, &rows, in, out, NULL, NULL, 0);
}

/* How often some shape was timed in a run, which is then launched in `last`. */
static int times_of_run(rig *r, int64_t rows, lf_tile_shape *last)
{
    int all = 0;
    memset(timed, 0, sizeof timed);
    OK_CALL(r->call, run(r, rows));
    for (int s = 0; s < LF_TILE_SHAPES; s++)
        all += timed[s];
    *last = (lf_tile_shape)launched;
    return all;
}

static bool explains(rig *r, int64_t rows, const char *words)
{
    char *account = NULL;
    OK_PROGRAM(r->program, lf_program_explain(r->program, &rows, false, &account));
    const bool found = strstr(account, words) != NULL;
    lf_string_free(account);
    return found;
}

/* ---- measuring ---- */

static void the_fastest_is_taken_and_found_again(void **state)
{
    (void)state;
    lf_tile_shape last;
    char path[256];
    takes[LF_TILE_SINGLE] = 1;
    rig r = rig_begin(1, text, "device=cuda tune=true");
    assert_true(times_of_run(&r, 300, &last) > 0);
    assert_int_equal(last, LF_TILE_SINGLE);
    /* every shape that can serve so many rows in fp32, as often as any other */
    for (int s = 0; s < LF_TILE_SHAPES; s++)
        assert_int_equal(timed[s],
                         lf_tile_table[s].few || lf_tile_table[s].turns ? 0 : timed[LF_TILE_PAIRS]);
    assert_int_equal(times_of_run(&r, 300, &last), 0);
    assert_int_equal(last, LF_TILE_SINGLE);
    assert_true(explains(&r, 300, "single, 128 x 256, as measured: pairs 2.00 ms"));
    assert_true(explains(&r, 301, "by the cost model"));
    /* its own name, and whose figures these are */
    assert_true(explains(&r, 301, "on NVIDIA Test, costed as h200 (the nearest in the table): fp32 peak"));
    assert_int_equal(cache_entries("tune-", path, sizeof path), 1);
    assert_true(times_of_run(&r, 16, &last) > 0); /* another size is another choice */
    assert_true(timed[LF_TILE_FEW16] > 0 && timed[LF_TILE_FEW64] > 0);
    assert_int_equal(last, LF_TILE_SINGLE);
    rig_end(&r);
    rig later = rig_begin(1, text, "device=cuda"); /* without measuring */
    assert_int_equal(times_of_run(&later, 300, &last), 0);
    assert_int_equal(last, LF_TILE_SINGLE);
    assert_true(explains(&later, 300, "as measured"));
    rig_end(&later);
    rig same = rig_begin(1, renamed, "device=cuda"); /* a model is what it computes, whatever its values are called */
    assert_true(explains(&same, 300, "as measured"));
    rig_end(&same);
    rig other = rig_begin(1, text, "device=cuda precision=bf16 tune=true"); /* another program */
    assert_true(times_of_run(&other, 300, &last) > 0);
    rig_end(&other);
}

static void damaged_entries_are_measured_anew(void **state)
{
    (void)state;
    lf_tile_shape last;
    char path[256];
    rig r = rig_begin(1, text, "device=cuda tune=true");
    assert_true(times_of_run(&r, 300, &last) > 0);
    assert_int_equal(last, LF_TILE_PAIRS);
    rig_end(&r);
    for (int kind = 0; kind < 4; kind++) { /* another time, another program's, cut short, empty */
        assert_int_equal(cache_entries("tune-", path, sizeof path), 1);
        FILE *f = fopen(path, "r+b");
        assert_non_null(f);
        char entry[4096] = "";
        const size_t length = fread(entry, 1, sizeof entry - 1, f);
        char *at = strstr(entry, kind == 0 ? "\npairs 2" : "\nprogram ");
        assert_non_null(at);
        at += kind == 0 ? 7 : 9;
        *at = *at == '9' ? '8' : '9';
        rewind(f);
        if (kind < 2)
            assert_int_equal(fwrite(entry, 1, length, f), length);
        else
            assert_int_equal(ftruncate(fileno(f), kind == 2 ? (off_t)length / 2 : 0), 0);
        fclose(f);
        rig again = rig_begin(1, text, "device=cuda");
        assert_true(explains(&again, 300, "by the cost model"));
        rig_end(&again);
        again = rig_begin(1, text, "device=cuda tune=true");
        assert_true(times_of_run(&again, 300, &last) > 0);
        assert_int_equal(last, LF_TILE_PAIRS);
        rig_end(&again);
    }
}

static void no_cache_is_no_fault(void **state)
{
    (void)state;
    lf_tile_shape last;
    setenv("XDG_CACHE_HOME", "/dev/null", 1);
    takes[LF_TILE_HALVES] = 1;
    rig r = rig_begin(1, text, "device=cuda tune=true");
    assert_true(times_of_run(&r, 300, &last) > 0);
    assert_int_equal(last, LF_TILE_HALVES);
    assert_int_equal(times_of_run(&r, 300, &last), 0); /* it is remembered while the program lives */
    assert_int_equal(last, LF_TILE_HALVES);
    rig_end(&r);
}

static void what_is_captured_is_not_measured(void **state)
{
    (void)state;
    lf_tile_shape last;
    rig r = rig_begin(1, text, "device=cuda tune=true");
    capturing = true;
    assert_int_equal(times_of_run(&r, 300, &last), 0);
    capturing = false;
    assert_true(times_of_run(&r, 300, &last) > 0);
    rig_end(&r);
}

/* Shapes for few rows, for many, and what an empty batch still has to sum up. */
static void empty_batches_run(void **state)
{
    (void)state;
    static const char sums[] = "input x f32[B, 512]\nparam w f32[1024, 512]\na = linear(x, w)\nb = sum(a, dim=0)\n"
                               "return b\n";
    for (int s = 0; s < LF_TILE_SHAPES; s++) {
        setenv("LINFUSE_CUDA_SHAPE", lf_tile_table[s].name, 1);
        rig r = rig_begin(1, lf_tile_table[s].few ? sums : text, "device=cuda precision=bf16");
        OK_CALL(r.call, run(&r, 0));
        OK_CALL(r.call, run(&r, 5));
        rig_end(&r);
    }
}

/* Where x is multiplied as it lies, another x is another place to copy from. */
static void maps_follow_their_inputs(void **state)
{
    (void)state;
    static const struct {
        const char *words;
        int64_t rows;
        bool as_it_lies;
    } one[] = {{"device=cuda precision=tf32", 300, true},
               {"device=cuda precision=tf32", 5, true},
               {"device=cuda precision=bf16", 300, false},
               {"device=cuda", 300, false}};
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) {
        rig r = rig_begin(1, text, one[i].words);
        float *out[] = {(float *)(uintptr_t)0x20000000};
        for (uintptr_t at = 0x10000000; at < 0x10000400; at += 0x100) {
            const float *in[] = {(const float *)at};
            moved_to = NULL;
            OK_CALL(r.call, run_on(r.call, &one[i].rows, in, out, NULL, NULL, 0));
            assert_ptr_equal(moved_to, one[i].as_it_lies ? (void *)at : NULL);
        }
        rig_end(&r);
    }
}

/* Who lends asks first. Arrays that are not aligned are brought into lines, in memory of the call's own. */
static void lent_workspace_is_enough(void **state)
{
    (void)state;
    rig r = rig_begin(1, text, "device=cuda precision=tf32");
    const int64_t rows = 300;
    size_t bytes = 0;
    OK_CALL(r.call, lf_call_workspace(r.call, &rows, &bytes));
    float *out[] = {(float *)(uintptr_t)0x20000000};
    void *lent = (void *)(uintptr_t)0x30000000;
    for (uintptr_t at = 0x10000000; at <= 0x10000004; at += 4) {
        const float *in[] = {(const float *)at};
        OK_CALL(r.call, run_on(r.call, &rows, in, out, NULL, lent, bytes));
    }
    const float *in[] = {(const float *)(uintptr_t)0x10000000};
    assert_int_equal(run_on(r.call, &rows, in, out, NULL, lent, bytes - 1), LF_ERR_ARG);
    rig_end(&r);
}

static void a_shape_can_be_told(void **state)
{
    (void)state;
    lf_tile_shape last;
    for (int s = 0; s < LF_TILE_SHAPES; s++) {
        const int64_t rows = lf_tile_table[s].few ? lf_tile_table[s].rows : 300;
        setenv("LINFUSE_CUDA_SHAPE", lf_tile_table[s].name, 1);
        rig r = rig_begin(
            1, text, lf_tile_table[s].turns ? "device=cuda tune=true precision=bf16" : "device=cuda tune=true");
        assert_int_equal(times_of_run(&r, rows, &last), 0);
        assert_int_equal(last, s);
        assert_true(explains(&r, rows, "LINFUSE_CUDA_SHAPE"));
        if (lf_tile_table[s].few) { /* more rows than it can */
            times_of_run(&r, rows + 1, &last);
            assert_int_not_equal(last, s);
        }
        rig_end(&r);
    }
    setenv("LINFUSE_CUDA_SHAPE", "round", 1);
    lf_context *context = context_of(1);
    lf_model *model = model_of(context, text);
    lf_options *options = options_of(context, "device=cuda");
    lf_program *program = NULL;
    assert_int_equal(lf_program_new(model, options, &program), LF_ERR_ARG);
    assert_non_null(strstr(lf_model_message(model), "'round'"));
    lf_options_free(options);
    options = options_of(context, "tune=true"); /* the CPU has nothing to measure */
    unsetenv("LINFUSE_CUDA_SHAPE");
    assert_int_equal(lf_program_new(model, options, &program), LF_ERR_UNSUPPORTED);
    lf_options_free(options);
    lf_model_free(model);
    lf_context_free(context);
}

/* ---- the cost model ---- */

static lf_tile_choice choice_of(int64_t n, int64_t k, int64_t rows, lf_cuda_target target)
{
    char model[160];
    snprintf(model, sizeof model,
             "input x f32[B, %lld]\nparam w f32[%lld, %lld]\na = linear(x, w)\nb = gelu(a)\nreturn b\n", (long long)k,
             (long long)n, (long long)k);
    const lf_device *device = lf_device_at(0);
    for (size_t i = 0; lf_device_at(i); i++)
        if (strcmp(lf_device_at(i)->name, target.unit == LF_UNIT_MMA ? "a100" : "h200") == 0)
            device = lf_device_at(i);
    lf_context *context = context_of(1);
    lf_model *m = model_of(context, model);
    lf_program *program = program_of(context, m, "device=h200");
    const lf_tile_choice choice = lf_cuda_choose(program->fused.plan, target, device, &rows);
    lf_program_free(program);
    lf_model_free(m);
    lf_context_free(context);
    return choice;
}

static void choices_can_serve_and_are_the_least(void **state)
{
    (void)state;
    static const int64_t rows[] = {1, 16, 17, 64, 65, 128, 200, 256, 300, 1000, 5000, 100000},
                         extents[] = {1, 100, 1024, 8192};
    for (int unit = LF_UNIT_PLAIN; unit <= LF_UNIT_WGMMA; unit++)
        for (int p = 0; p < LF_PRECISIONS; p++)
            for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
                for (int e = 0; e < 16; e++) {
                    const lf_cuda_target target = {.unit = (lf_gpu_unit)unit, .precision = (lf_precision)p};
                    const lf_tile_choice c = choice_of(extents[e / 4], extents[e % 4], rows[i], target);
                    assert_int_equal(c.how, LF_TILE_BY_COST);
                    assert_true(!lf_tile_table[c.shape].few || rows[i] <= lf_tile_table[c.shape].rows);
                    for (int s = 0; s < LF_TILE_SHAPES; s++) {
                        assert_true(isfinite(c.expected[s]) && c.expected[s] >= 0);
                        assert_true(c.expected[s] == 0 || c.expected[c.shape] <= c.expected[s]);
                        assert_true(unit == LF_UNIT_WGMMA || c.expected[s] == 0 || s == LF_TILE_PAIRS ||
                                    s == LF_TILE_ALONE);
                        assert_true(c.expected[s] == 0 || !lf_tile_table[s].turns || p != LF_PRECISION_FP32 ||
                                    extents[e % 4] <= 96);
                    }
                }
}

/* Few rows: the weight once. One row block: as many blocks as there are columns for. Two: not half of the blocks idle.
 * Many: the largest tiles, or at least what is fetched is shared. */
static void choices_are_what_sizes_call_for(void **state)
{
    (void)state;
    const lf_cuda_target fp32 = {.unit = LF_UNIT_WGMMA}, bf16 = {.unit = LF_UNIT_WGMMA, .precision = LF_PRECISION_BF16};
    assert_true(lf_tile_table[choice_of(8192, 8192, 1, fp32).shape].few);
    assert_true(lf_tile_table[choice_of(8192, 8192, 64, fp32).shape].few);
    assert_int_equal(lf_tile_table[choice_of(8192, 8192, 128, fp32).shape].columns, 128);
    assert_int_equal(lf_tile_table[choice_of(8192, 8192, 256, fp32).shape].columns, 128);
    assert_int_equal(choice_of(8192, 8192, 1024, fp32).shape, LF_TILE_PAIRS);
    assert_int_equal(lf_tile_table[choice_of(8192, 8192, 65536, bf16).shape].cluster, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_fastest_is_taken_and_found_again, own_cache, drop_cache),
        cmocka_unit_test_setup_teardown(damaged_entries_are_measured_anew, own_cache, drop_cache),
        cmocka_unit_test_setup_teardown(no_cache_is_no_fault, own_cache, drop_cache),
        cmocka_unit_test_setup_teardown(what_is_captured_is_not_measured, own_cache, drop_cache),
        cmocka_unit_test_setup_teardown(empty_batches_run, own_cache, drop_cache),
        cmocka_unit_test_setup_teardown(maps_follow_their_inputs, own_cache, drop_cache),
        cmocka_unit_test_setup_teardown(lent_workspace_is_enough, own_cache, drop_cache),
        cmocka_unit_test_setup_teardown(a_shape_can_be_told, own_cache, drop_cache),
        cmocka_unit_test(choices_can_serve_and_are_the_least),
        cmocka_unit_test(choices_are_what_sizes_call_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
