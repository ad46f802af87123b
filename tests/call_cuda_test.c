/* SPDX-License-Identifier: Apache-2.0 */
/* What calls for a GPU ask of its driver, seen by a driver that stands in for it: memory, streams, captures. Nothing is
 * computed. */
#include "api_fixture.h"
#include "stand_in_driver.h"

#include "cuda/emit.h"

#include <pthread.h>
#include <time.h>

/* ---- the driver ---- */

enum { BLOCKS = 256, OUT_OF_MEMORY = 2, NOT_READABLE = 700, IN_CAPTURE = 900, UNITS = 16, MAJOR = 75, L2 = 38 };

static struct { lf_cuda_ptr at; size_t bytes; } block[BLOCKS]; /* memory that was handed out and not taken back */
static size_t limit, allocs, frees, launches, waits, brought; /* brought: bytes, to the host */
static _Atomic size_t compiles, loads, unloads;
static _Atomic bool slow, refusing; /* what the compiler is */
static int capability = 8;
static bool unreadable; /* nothing comes to the host */
static int mode; /* 0: what is unsafe while something is captured fails */

static bool forbidden(void)
{
    return capturing && mode != 2;
}

static int fake_alloc(lf_cuda_ptr *memory, size_t bytes)
{
    static lf_cuda_ptr next = 1 << 20;
    assert_false(forbidden());
    if (bytes > limit)
        return OUT_OF_MEMORY;
    for (int i = 0; i < BLOCKS; i++)
        if (!block[i].at) {
            block[i].at = *memory = next;
            block[i].bytes = bytes;
            next += (bytes + 511) / 512 * 512;
            allocs++;
            return 0;
        }
    fail_msg("more blocks than the test has room for");
    return OUT_OF_MEMORY;
}

static int fake_free(lf_cuda_ptr memory)
{
    if (memory == 0)
        return 0;
    assert_false(capturing); /* it waits for the device */
    for (int i = 0; i < BLOCKS; i++)
        if (block[i].at == memory) {
            block[i].at = 0;
            frees++;
            return 0;
        }
    fail_msg("freed what was not handed out");
    return 1;
}

static bool is_there(lf_cuda_ptr at, size_t bytes)
{
    for (int i = 0; i < BLOCKS; i++)
        if (block[i].at && at >= block[i].at && at + bytes <= block[i].at + block[i].bytes)
            return true;
    return false;
}

static int fake_set_bytes(lf_cuda_ptr to, unsigned char value, size_t bytes, void *stream)
{
    (void)value;
    assert_true(is_there(to, bytes));
    assert_true(!capturing || stream); /* the default stream waits for others */
    return 0;
}

static int fake_bring(void *to, lf_cuda_ptr from, size_t bytes, void *stream)
{
    if (unreadable)
        return NOT_READABLE;
    brought += bytes;
    return fake_to_host(to, from, bytes, stream);
}

static int fake_copy(lf_cuda_ptr to, lf_cuda_ptr from, size_t bytes, void *stream)
{
    (void)from, (void)stream;
    assert_true(is_there(to, bytes));
    return 0;
}

static int fake_stream_wait(void *stream)
{
    assert_true(!capturing || (stream && !forbidden()));
    waits++;
    return 0;
}

static int fake_stream_new(void **stream, unsigned flags)
{
    assert_int_equal(flags, 1);
    *stream = &driver;
    return 0;
}

static int fake_capture_mode(int *other)
{
    int before = mode;
    mode = *other;
    *other = before;
    return 0;
}

static int fake_pointer(void **out)
{
    *out = &driver;
    return 0;
}

static int fake_primary_retain(void **context, int device)
{
    (void)device;
    return fake_pointer(context);
}

static int fake_device_attribute(int *value, int attribute, int device)
{
    (void)device;
    *value = attribute == MAJOR ? capability : attribute == UNITS ? 4 : attribute == L2 ? 1 << 20 : 0;
    return 0;
}

static int fake_module_load(void **module, const void *image)
{
    (void)image;
    assert_false(forbidden());
    loads++;
    return fake_pointer(module);
}

static int fake_module_unload(void *module)
{
    (void)module;
    unloads++;
    return 0;
}

static int fake_function_get(void **function, void *module, const char *name)
{
    (void)module;
    (void)name;
    return fake_pointer(function);
}

static int fake_clusters(int *count, void *function, const lf_cuda_config *config)
{
    (void)function, (void)config;
    *count = 2;
    return 0;
}

enum { ARGS = 13 };             /* words of the Args of norm_text's first part before its Redo, see emit.h */
static uint64_t words[2][ARGS]; /* of both parts in the last launch, where asked for */
static bool looking;
static lf_cuda_config launched; /* the last */

static int fake_launch(const lf_cuda_config *config, void *function, void **params, void **extra)
{
    (void)function, (void)extra;
    launched = *config;
    for (int i = 0; i < 2 && looking; i++)
        memcpy(words[i], params[2 + i], sizeof words[i]); /* behind maps and Control */
    launches++;
    return 0;
}

static void own_functions(lf_cuda_driver *to)
{
    to->alloc = fake_alloc;
    to->free = fake_free;
    to->set_bytes = fake_set_bytes;
    to->to_host = fake_bring;
    to->copy = fake_copy;
    to->stream_wait = fake_stream_wait;
    to->stream_new = fake_stream_new;
    to->capture_mode = fake_capture_mode;
    to->device_attribute = fake_device_attribute;
    to->primary_retain = fake_primary_retain;
    to->module_load = fake_module_load;
    to->module_unload = fake_module_unload;
    to->function_get = fake_function_get;
    to->clusters = fake_clusters;
    to->launch = fake_launch;
}

lf_status __wrap_lf_cuda_compile(const char *source, const char *arch, char **cubin, size_t *size, char **log,
                                 lf_diag *diag);
lf_status __wrap_lf_cuda_compile(const char *source, const char *arch, char **cubin, size_t *size, char **log,
                                 lf_diag *diag)
{
    (void)source, (void)arch, (void)log;
    compiles++;
    if (slow) /* until others have come to wait for it */
        nanosleep(&(struct timespec){.tv_nsec = 100 * 1000 * 1000}, NULL);
    *cubin = refusing ? NULL : calloc(1, 1);
    *size = 1;
    return *cubin ? LF_OK : lf_fail(diag, LF_ERR_UNSUPPORTED, "refused");
}

/* ---- the tests ---- */

static const char norm_text[] = "input x f32[B, 40]\nparam w f32[48, 40]\na = linear(x, w)\nc = layer_norm(a, [48])\n"
                                "d = max(c, dim=1)\nreturn c, d\n";
static const char large_text[] =
    "input x f32[B, 1024]\nparam w f32[1024, 1024]\na = linear(x, w)\nc = gelu(a)\nd = max(c, dim=1)\nreturn c, d\n";
static const char guard_text[] = "input x f32[B, 40]\nparam w f32[48, 40]\na = linear(x, w)\n"
                                 "c = mean(a, dim=1, keepdim=true)\nd = gelu(c)\ne = add(d, x)\nreturn e\n";

static const char long_text[] = "input x f32[B, 8192]\nparam w f32[3, 8192]\na = linear(x, w)\n"
                                "c = mean(a, dim=1, keepdim=true)\nd = gelu(c)\ne = add(d, x)\nreturn e\n";

static rig begin_with(const char *text, const char *options)
{
    memset(block, 0, sizeof block);
    limit = (size_t)1 << 30;
    capturing = false;
    mode = 0;
    compiles = loads = unloads = 0;
    rig r = rig_begin(1, text, options);
    allocs = frees = launches = waits = 0;
    return r;
}

static rig begin(const char *text)
{
    return begin_with(text, "device=cuda");
}

static void end(rig *r)
{
    capturing = false;
    rig_end(r);
    for (int i = 0; i < BLOCKS; i++)
        assert_false(block[i].at);
}

static lf_status run(rig *r, int64_t rows, void *stream, lf_cuda_ptr workspace, size_t bytes)
{
    const float *in[] = {(const float *)(uintptr_t)0x10000000};
    float *out[] = {(float *)(uintptr_t)0x20000000, (float *)(uintptr_t)0x30000000};
    return run_on(r->call, &rows, in, out, stream, (void *)(uintptr_t)workspace, bytes);
}

static size_t workspace_at(rig *r, int64_t rows)
{
    size_t bytes = 0;
    OK_CALL(r->call, lf_call_workspace(r->call, &rows, &bytes));
    return bytes;
}

static void a_run_at_a_known_size_allocates_nothing(void **state)
{
    (void)state;
    static const char *const texts[] = {norm_text, guard_text};
    for (int k = 0; k < 2; k++) {
        rig r = begin(texts[k]);
        OK_CALL(r.call, run(&r, 300, NULL, 0, 0));
        const size_t before = allocs, waited = waits;
        assert_true(launches > 0);
        for (int64_t rows = 300; rows >= 0; rows -= 100)
            OK_CALL(r.call, run(&r, rows, NULL, 0, 0));
        assert_int_equal(allocs, before);
        assert_int_equal(waits, waited);
        end(&r);
    }
}

/* A kernel is compiled with the program, for the rows of the first call where they are known; others when they are
 * wanted. */
static void the_first_calls_kernel_comes_with_the_program(void **state)
{
    (void)state;
    static const struct {
        const char *options;
        size_t with, after;
    } cases[] = {{"device=cuda", 1, 2}, {"device=cuda dim.B=8", 1, 1}, {"device=cuda first.B=8", 1, 1}};
    capability = 9; /* whose kernels for few rows are others */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig r = begin_with(large_text, cases[i].options);
        assert_int_equal(compiles, cases[i].with);
        OK_CALL(r.call, run(&r, 8, NULL, 0, 0));
        assert_int_equal(compiles, cases[i].after);
        OK_CALL(r.call, run(&r, 1000, NULL, 0, 0));
        assert_int_equal(compiles, 2);
        end(&r);
    }
    capability = 8;
}

static const char renamed_text[] = "input in f32[B, 40]\nparam layer.weight f32[48, 40]\n"
                                   "linear_0 = linear(in, layer.weight)\nnorm_1 = layer_norm(linear_0, [48])\n"
                                   "max_2 = max(norm_1, dim=1)\nreturn norm_1, max_2\n";

static lf_program *lazy_program(lf_context *context, const char *text)
{
    lf_model *model = model_of(context, text);
    lf_program *program = program_of(context, model, "device=cuda lazy=true");
    lf_model_free(model);
    return program;
}

/* A lazy program's, for the rows that are told, before it has weights. */
static void kernels_are_compiled_when_that_is_asked_for(void **state)
{
    (void)state;
    const int64_t rows = 8, none = -5;
    rig r = begin(norm_text);
    compiles = 0;
    lf_program *program = lazy_program(r.context, large_text);
    assert_int_equal(compiles, 0);
    REFUSES(LF_ERR_DATA, "-5", lf_program_compile(program, &none), lf_program_message(program));
    OK_PROGRAM(program, lf_program_compile(program, &rows));
    assert_int_equal(compiles, 1);
    OK_PROGRAM(program, lf_program_draw_params(program, 11));
    OK_PROGRAM(program, lf_program_prepare(program));
    OK_PROGRAM(program, lf_program_compile(program, &rows));
    OK_PROGRAM(program, lf_program_compile(program, NULL)); /* the same, here */
    assert_int_equal(compiles, 1);
    lf_program_free(program);
    end(&r);
    rig here = rig_begin(1, norm_text, NULL);
    OK_PROGRAM(here.program, lf_program_compile(here.program, &rows));
    REFUSES(LF_ERR_DATA, "-5", lf_program_compile(here.program, &none), lf_program_message(here.program));
    rig_end(&here);
}

/* As a model's layers: one kernel under other names, which stays as long as somebody has it. */
static void programs_share_kernels(void **state)
{
    (void)state;
    rig r = begin(norm_text);
    lf_program *other = lazy_program(r.context, renamed_text);
    OK_PROGRAM(other, lf_program_compile(other, NULL));
    assert_int_equal(compiles, 1);
    assert_int_equal(loads, 1);
    lf_program_free(other);
    OK_CALL(r.call, run(&r, 300, NULL, 0, 0));
    assert_int_equal(unloads, 0);
    end(&r);
    assert_int_equal(unloads, 1);
}

static void *compile_in_thread(void *program)
{
    return lf_program_compile(program, NULL) == LF_OK ? NULL : program;
}

/* Several threads at once: who wants what is under way waits for it; what fails fails for each, and is tried again. */
static void kernels_are_compiled_side_by_side(void **state)
{
    (void)state;
    enum { PROGRAMS = 6, KERNELS = 3 };
    static const char *const texts[PROGRAMS] = {norm_text, guard_text, renamed_text, large_text, norm_text, guard_text};
    lf_program *program[PROGRAMS];
    pthread_t thread[PROGRAMS];
    rig r = begin("input x f32[B, 40]\ny = gelu(x)\nreturn y\n");
    for (int i = 0; i < PROGRAMS; i++)
        program[i] = lazy_program(r.context, texts[i]);
    for (int again = 0; again < 2; again++) {
        slow = true;
        refusing = again == 0;
        compiles = loads = 0;
        for (int i = 0; i < PROGRAMS; i++)
            assert_int_equal(pthread_create(&thread[i], NULL, compile_in_thread, program[i]), 0);
        for (int i = 0; i < PROGRAMS; i++) {
            void *failed;
            pthread_join(thread[i], &failed);
            assert_true(failed == (again ? NULL : program[i]));
            if (failed)
                assert_string_equal(lf_program_message(program[i]), "refused");
        }
        slow = refusing = false;
        assert_int_equal(compiles, again ? KERNELS : PROGRAMS);
        assert_int_equal(loads, again ? KERNELS : 0);
    }
    for (int i = 0; i < PROGRAMS; i++)
        lf_program_free(program[i]);
    assert_int_equal(unloads, KERNELS);
    end(&r);
}

/* Of a run like the last one only the arrays are looked at: they, and all else that may have changed, must be this
 * run's. */
static void a_run_like_the_last_has_its_own_arrays(void **state)
{
    (void)state;
    enum { IN = 0, PREPARED = 1, OUT = 4, ROWS = 12 };
    const float *in[] = {(const float *)(uintptr_t)0x11000000};
    float *out[] = {(float *)(uintptr_t)0x21000000, (float *)(uintptr_t)0x31000000};
    uint64_t before[2][ARGS];
    int64_t rows = 300;
    rig r = begin(norm_text);
    OK_CALL(r.call, run(&r, rows, NULL, 0, 0));
    looking = true;
    OK_CALL(r.call, run(&r, rows, NULL, 0, 0));
    assert_int_equal(words[0][IN], 0x10000000);
    assert_int_equal(words[0][ROWS], rows);
    memcpy(before, words, sizeof words);
    OK_CALL(r.call, run_on(r.call, &rows, in, out, NULL, NULL, 0));
    for (int i = 0; i < 2; i++) {
        before[i][IN] = 0x11000000, before[i][OUT] = 0x21000000, before[i][OUT + 1] = 0x31000000;
        assert_memory_equal(words[i], before[i], (OUT + 2) * sizeof words[i][0]);
    }
    assert_memory_equal(words[0], before[0], sizeof before[0]);
    lf_cuda_ptr away = 0;
    assert_int_equal(fake_alloc(&away, 1 << 20), 0); /* so that the weights come to lie elsewhere */
    looking = false; /* preparing launches kernels of its own */
    OK_PROGRAM(r.program, lf_program_prepare(r.program));
    looking = true;
    OK_CALL(r.call, run_on(r.call, &rows, in, out, NULL, NULL, 0));
    assert_int_not_equal(words[0][PREPARED], before[0][PREPARED]);
    assert_true(is_there(words[0][PREPARED], 48 * 40 * sizeof(float)));
    rows = 200;
    OK_CALL(r.call, run_on(r.call, &rows, in, out, NULL, NULL, 0));
    assert_int_equal(words[0][ROWS], rows);
    looking = false;
    assert_int_equal(fake_free(away), 0);
    end(&r);
}

static void lent_workspace_takes_the_place_of_the_calls_own(void **state)
{
    (void)state;
    const lf_cuda_ptr lent = 0x40000000;
    rig r = begin(norm_text);
    const size_t bytes = workspace_at(&r, 300), held = lf_call_memory(r.call);
    assert_true(bytes > 0);
    assert_true(workspace_at(&r, 600) > bytes);
    OK_CALL(r.call, run(&r, 300, NULL, lent, bytes));
    assert_true(lf_call_memory(r.call) - held <= 1024); /* flags, which must stay as they are from run to run */
    const size_t before = allocs;
    char want[64];
    snprintf(want, sizeof want, "%zu bytes", bytes);
    assert_int_equal(run(&r, 300, NULL, lent, bytes - 1), LF_ERR_ARG);
    assert_non_null(strstr(lf_call_message(r.call), want));
    assert_int_equal(run(&r, 300, NULL, lent + 4, bytes), LF_ERR_ARG);
    OK_CALL(r.call, run(&r, 300, NULL, lent, bytes));
    size_t again = 0;
    OK_CALL(r.call, lf_call_set_input(r.call, 0, ON_DEVICE(0x10000000, 300, 40)));
    OK_CALL(r.call, lf_call_workspace(r.call, NULL, &again));
    assert_int_equal(again, bytes);
    const lf_run_options options = {.workspace = (void *)(uintptr_t)lent, .workspace_bytes = bytes};
    OK_CALL(r.call, lf_call_run(r.call, &options));
    assert_int_equal(allocs, before);
    OK_CALL(r.call, lf_call_run(r.call, NULL)); /* lent for that run alone */
    assert_int_equal(allocs, before + 1);
    end(&r);
}

/* Also the first at its size; and what the graph has the addresses of outlives later, larger runs. */
static void a_run_can_be_captured(void **state)
{
    (void)state;
    static const char *const texts[] = {norm_text, guard_text};
    for (int k = 0; k < 2; k++)
        for (int first = 0; first < 2; first++) {
            rig r = begin(texts[k]);
            int stream;
            if (!first)
                OK_CALL(r.call, run(&r, 300, &stream, 0, 0));
            capturing = true;
            OK_CALL(r.call, run(&r, 300, &stream, 0, 0));
            capturing = false;
            assert_int_equal(mode, 0);
            OK_CALL(r.call, run(&r, 3000, &stream, 0, 0));
            OK_CALL(r.call, run(&r, 300, &stream, 0, 0));
            assert_int_equal(frees, 0);
            OK_CALL(r.call, run(&r, 30000, &stream, 0, 0)); /* no graph knows of the second one */
            assert_int_equal(frees, workspace_at(&r, 1) > 0);
            end(&r);
        }
}

static void too_little_memory_is_told(void **state)
{
    (void)state;
    rig r = begin(norm_text);
    const size_t bytes = workspace_at(&r, 300);
    limit = bytes - 1;
    char want[64];
    snprintf(want, sizeof want, "%zu bytes", bytes);
    assert_int_equal(run(&r, 300, NULL, 0, 0), LF_ERR_NOMEM);
    assert_non_null(strstr(lf_call_message(r.call), want));
    OK_CALL(r.call, run(&r, 100, NULL, 0, 0));
    limit = bytes;
    OK_CALL(r.call, run(&r, 300, NULL, 0, 0));
    end(&r);
}

/* One copy less on the device, and what is the caller's is not freed (the driver would say so). */
static void lent_parameters_stay_the_callers(void **state)
{
    (void)state;
    const uintptr_t at = 0x50000000, beside = at + 4; /* where kernels have it, and where they have not */
    size_t copied, lent, cannot;
    rig r = begin(norm_text);
    OK_PROGRAM(r.program, give_there(r.program, "w", at, LF_COPY));
    OK_PROGRAM(r.program, lf_program_prepare(r.program));
    lf_program_memory(r.program, NULL, &copied, NULL);
    OK_PROGRAM(r.program, give_there(r.program, "w", at, LF_BORROW));
    OK_PROGRAM(r.program, lf_program_prepare(r.program));
    lf_program_memory(r.program, NULL, &lent, NULL);
    assert_int_equal(lent + 48 * 40 * sizeof(float), copied);
    OK_CALL(r.call, run(&r, 300, NULL, 0, 0));
    OK_PROGRAM(r.program, give_there(r.program, "w", beside, LF_BORROW));
    OK_PROGRAM(r.program, lf_program_prepare(r.program));
    lf_program_memory(r.program, NULL, &cannot, NULL);
    assert_int_equal(cannot, copied);
    end(&r);
}

/* Bytes that copying w to the device takes. */
static size_t bytes_of_w(const char *text, const char *options)
{
    size_t copied, lent;
    rig r = begin_with(text, options);
    lf_program_memory(r.program, NULL, &copied, NULL);
    OK_PROGRAM(r.program, give_there(r.program, "w", 0x50000000, LF_BORROW));
    OK_PROGRAM(r.program, lf_program_prepare(r.program));
    lf_program_memory(r.program, NULL, &lent, NULL);
    OK_CALL(r.call, run(&r, 300, NULL, 0, 0));
    end(&r);
    return copied - lent;
}

/* As it is only where kernels read it so: for rows of too wide a range, of which only fp32 knows, and for rows that are
 * redone as written, who share it. */
static void a_weight_is_kept_once(void **state)
{
    (void)state;
    static const char both_text[] = "input x f32[B, 40]\nparam w f32[48, 40]\nparam u f32[56, 48]\na = linear(x, w)\n"
                                    "b = gelu(a)\nc = linear(b, u)\nd = mean(c, dim=1)\nreturn b, d\n";
    assert_int_equal(bytes_of_w(norm_text, "device=cuda"), 48 * 40 * sizeof(float));
    assert_int_equal(bytes_of_w(norm_text, "device=cuda precision=bf16"), 0);
    assert_int_equal(bytes_of_w(both_text, "device=cuda"), 48 * 40 * sizeof(float));
    assert_int_equal(bytes_of_w(both_text, "device=cuda precision=bf16"), 48 * 40 * sizeof(float));
}

/* Bytes that come to the host when w and then all else is prepared from the GPU's memory. */
static size_t brought_by(const char *text, const char *options, bool borrowed)
{
    rig r = begin_with(text, options);
    brought = 0;
    OK_PROGRAM(r.program, give_there(r.program, "w", 0x50000000, borrowed ? LF_BORROW : LF_COPY));
    for (int again = 0; again < 2; again++) { /* the second time from what is still there */
        OK_PROGRAM(r.program, lf_program_prepare(r.program));
        OK_CALL(r.call, run(&r, 300, NULL, 0, 0));
    }
    end(&r);
    return brought;
}

/* Weights of a large layer change at every step of a training, and the way to the host and back takes longer than the
 * layer does. */
static void parameters_stay_on_the_device(void **state)
{
    (void)state;
    static const char narrow_text[] = "input x f32[B, 40]\nparam w f32[3, 40]\na = linear(x, w)\nreturn a\n";
    static const char slopes_text[] = "input x f32[B, 40]\nparam w f32[48, 40]\nparam b f32[48]\na = linear(x, w)\n"
                                      "c = add(a, b)\nd = leaky_relu(c)\ne = leaky_relu(d)\nreturn e\n";
    enum { ALL = 48 * 40 * sizeof(float), FOUND = (2 + 40) * sizeof(unsigned) };
    for (int borrowed = 0; borrowed < 2; borrowed++) {
        /* only what is found out about its range, each time */
        assert_int_equal(brought_by(norm_text, "device=cuda", borrowed), 2 * FOUND);
        /* once: what they are folded from, looked at for what is not finite, or wanted in double precision */
        assert_in_range(brought_by(guard_text, "device=cuda", borrowed), ALL, ALL + 2 * FOUND);
        assert_int_equal(brought_by(narrow_text, "device=cuda", borrowed), 3 * 40 * sizeof(float));
        /* a rule that is not exact, and leaves the weights as they are */
        assert_int_equal(brought_by(slopes_text, "device=cuda", borrowed), 2 * FOUND);
    }
    /* where kernels read lines alone, no second copy is kept on the device */
    assert_int_equal(brought_by(norm_text, "device=cuda precision=bf16", false), ALL + 2 * FOUND);
    assert_int_equal(brought_by(norm_text, "device=cuda precision=bf16", true), 2 * FOUND);
}

/* A copy that cannot be made leaves the parameter without values, and says so; given again, it works. */
static void a_copy_that_cannot_be_made_is_told(void **state)
{
    (void)state;
    const uintptr_t at = 0x50000000;
    rig r = begin(norm_text);
    limit = 100;
    assert_int_equal(give_there(r.program, "w", at, LF_COPY), LF_ERR_NOMEM);
    assert_non_null(strstr(lf_program_message(r.program), "parameter"));
    limit = (size_t)1 << 30;
    assert_int_equal(lf_program_prepare(r.program), LF_ERR_DATA);
    assert_non_null(strstr(lf_program_message(r.program), "w has no values"));
    OK_PROGRAM(r.program, give_there(r.program, "w", at, LF_COPY));
    OK_PROGRAM(r.program, give_there(r.program, "w", at, LF_COPY)); /* the first is not lost */
    OK_PROGRAM(r.program, lf_program_prepare(r.program));
    assert_int_equal(lf_program_param(r.program, "w").memory, LF_DEVICE);
    OK_CALL(r.call, run(&r, 300, NULL, 0, 0));
    end(&r);
}

/* Values that did not come over are none: what there is room for is never taken for them. */
static void a_read_that_fails_leaves_no_values(void **state)
{
    (void)state;
    const uintptr_t at = 0x50000000;
    size_t given;
    rig r = begin_with(norm_text, "device=cuda precision=bf16");
    unreadable = true;
    assert_int_equal(give_there(r.program, "w", at, LF_COPY), LF_ERR_DEVICE);
    assert_non_null(strstr(lf_program_message(r.program), "parameter w"));
    unreadable = false;
    assert_null(lf_program_param(r.program, "w").data);
    assert_int_equal(lf_program_prepare(r.program), LF_ERR_DATA);
    end(&r);
    r = begin(guard_text);
    OK_PROGRAM(r.program, give_there(r.program, "w", at, LF_BORROW));
    lf_program_memory(r.program, &given, NULL, NULL);
    const size_t before = given;
    unreadable = true;
    assert_int_equal(lf_program_prepare(r.program), LF_ERR_DEVICE);
    unreadable = false;
    lf_program_memory(r.program, &given, NULL, NULL);
    assert_int_equal(given, before);
    assert_true(lf_program_param(r.program, "w").data == (void *)at); /* there alone */
    OK_PROGRAM(r.program, lf_program_prepare(r.program));
    assert_int_equal(lf_program_param(r.program, "w").memory, LF_HOST);
    OK_CALL(r.call, run(&r, 300, NULL, 0, 0));
    end(&r);
}

/* Two rows of 32 KB, and a barrier for each. The grid is blocks that are there at once, one on each of four
 * multiprocessors, also where no block waits for another; or as many as there are rows. */
static void coming_rows_get_their_shared_memory(void **state)
{
    (void)state;
    static const char *const options[] = {"device=cuda", "device=cuda assume_finite=true"};
    enum { ALIGNED = 0x10000000, RING = 128 + 2 * (8192 * 4 + 8) };
    for (int i = 0; i < 2; i++) {
        capability = 9;
        rig r = begin_with(long_text, options[i]);
        for (int64_t rows = 0; rows < 8; rows++) {
            memset(&launched, 0, sizeof launched);
            OK_CALL(r.call, run(&r, rows, NULL, 0, 0));
            assert_int_equal(launched.gx, rows < 4 ? rows : 4);
            assert_int_equal(launched.shared, rows > 0 ? RING : 0);
        }
        const float *in[] = {(const float *)(uintptr_t)(ALIGNED + 4)};
        float *out[] = {(float *)(uintptr_t)(2 * ALIGNED)};
        OK_CALL(r.call, run_on(r.call, (int64_t[]){7}, in, out, NULL, NULL, 0));
        assert_int_equal(launched.shared, LF_CUDA_PLAIN_SHARED);
        end(&r);
        capability = 8;
        r = begin_with(long_text, options[i]);
        OK_CALL(r.call, run(&r, 7, NULL, 0, 0));
        assert_int_equal(launched.shared, LF_CUDA_PLAIN_SHARED);
        end(&r);
    }
}

static void wrong_questions_are_told(void **state)
{
    (void)state;
    const int64_t rows = 5, none = -5;
    size_t bytes;
    rig r = begin(norm_text);
    REFUSES(LF_ERR_ARG, "input x is not bound", lf_call_workspace(r.call, NULL, &bytes), lf_call_message(r.call));
    REFUSES(LF_ERR_ARG, "`bytes`", lf_call_workspace(r.call, &rows, NULL), lf_call_message(r.call));
    REFUSES(LF_ERR_DATA, "-5", lf_call_workspace(r.call, &none, &bytes), lf_call_message(r.call));
    const int64_t turned[] = {1, 48};
    lf_tensor w = *ON_DEVICE(0x50000000, 48, 40);
    w.strides = turned;
    REFUSES(LF_ERR_UNSUPPORTED, "parameter w: `strides`", lf_program_set_param(r.program, "w", &w, LF_COPY, NULL),
            lf_program_message(r.program));
    end(&r);
    rig here = rig_begin(1, norm_text, NULL);
    REFUSES(LF_ERR_ARG, "cuda", lf_call_workspace(here.call, &rows, &bytes), lf_call_message(here.call));
    REFUSES(LF_ERR_ARG, "`memory`", run(&here, 5, NULL, 0, 0), lf_call_message(here.call));
    REFUSES(LF_ERR_ARG, "device memory", give_there(here.program, "w", 0x50000000, LF_COPY),
            lf_program_message(here.program));
    REFUSES(LF_ERR_ARG, "input x: device memory", lf_call_set_input(here.call, 0, ON_DEVICE(0x50000000, 5, 40)),
            lf_call_message(here.call));
    REFUSES(LF_ERR_ARG, "cuda", lf_call_time(here.call, NULL, 0, NULL), lf_call_message(here.call));
    rig_end(&here);
}

/* Tensors of one run are all in host memory or all in device memory, by the fast path and without it, in turns. */
static void one_sort_of_memory(void **state)
{
    (void)state;
    static float x[300 * 40], y[300 * 48], z[300];
    rig r = begin(norm_text);
    lf_tensor out[2];
    OK_CALL(r.call, lf_call_set_input(r.call, 0, ON_DEVICE(0x10000000, 300, 40)));
    for (size_t o = 0; o < 2; o++) {
        OK_CALL(r.call, lf_call_output(r.call, o, &out[o]));
        assert_int_equal(out[o].memory, LF_DEVICE);
        out[o].data = o ? (void *)z : (void *)y;
        out[o].memory = LF_HOST;
        OK_CALL(r.call, lf_call_set_output(r.call, o, &out[o]));
    }
    REFUSES(LF_ERR_ARG, "some tensors are in host memory and some in device memory", lf_call_run(r.call, NULL),
            lf_call_message(r.call));
    brought = 0;
    OK_CALL(r.call, run(&r, 300, NULL, 0, 0)); /* all there */
    OK_CALL(r.call, lf_call_run(r.call, NULL));
    assert_int_equal(brought, 0);
    const float *in[] = {x};
    float *to[] = {y, z};
    OK_CALL(r.call, run_at(r.call, (int64_t[]){300}, in, to, 0)); /* all here */
    assert_int_equal(brought, lf_tensor_bytes(&out[0]) + lf_tensor_bytes(&out[1]));
    brought = 0;
    OK_CALL(r.call, lf_call_set_input(r.call, 0, ON_DEVICE(0x10000000, 300, 40)));
    assert_int_equal(lf_call_run(r.call, NULL), LF_ERR_ARG);
    end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_at_a_known_size_allocates_nothing),
        cmocka_unit_test(lent_workspace_takes_the_place_of_the_calls_own),
        cmocka_unit_test(a_run_can_be_captured),
        cmocka_unit_test(too_little_memory_is_told),
        cmocka_unit_test(lent_parameters_stay_the_callers),
        cmocka_unit_test(wrong_questions_are_told),
        cmocka_unit_test(one_sort_of_memory),
        cmocka_unit_test(coming_rows_get_their_shared_memory),
        cmocka_unit_test(the_first_calls_kernel_comes_with_the_program),
        cmocka_unit_test(kernels_are_compiled_when_that_is_asked_for),
        cmocka_unit_test(programs_share_kernels),
        cmocka_unit_test(kernels_are_compiled_side_by_side),
        cmocka_unit_test(a_run_like_the_last_has_its_own_arrays),
        cmocka_unit_test(a_weight_is_kept_once),
        cmocka_unit_test(parameters_stay_on_the_device),
        cmocka_unit_test(a_copy_that_cannot_be_made_is_told),
        cmocka_unit_test(a_read_that_fails_leaves_no_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
