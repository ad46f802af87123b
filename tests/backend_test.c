/* SPDX-License-Identifier: Apache-2.0 */
/* A backend that only writes down what it is asked for: what a third one would see. run/ knows nothing of it. */
#include "api_fixture.h"

#include "run/handles.h"

/* ---- the recorder ---- */

static char said[4096]; /* since it was last looked at */
static lf_status answer; /* to what can fail */
static bool fused_given, exact_given;
static int of_device, of_program, of_call; /* whose addresses stand for these */
static const void *params_on_device[2];
static lf_backend_job last;

static lf_status say(const char *what, lf_diag *diag)
{
    snprintf(said + strlen(said), sizeof said - strlen(said), "%s%s", said[0] ? " " : "", what);
    return answer == LF_OK || !diag ? answer : lf_fail(diag, answer, "the recorder says no to %s", what);
}

/* All that was asked for since. */
static void assert_said(const char *want)
{
    assert_string_equal(said, want);
    said[0] = '\0';
}

static lf_status open_device(void **device, lf_diag *diag)
{
    *device = &of_device;
    return say("open", diag);
}

static void close_device(void *device)
{
    assert_ptr_equal(device, &of_device);
    say("close", NULL);
}

static lf_status check_precision(void *device, lf_precision precision, lf_diag *diag)
{
    assert_ptr_equal(device, &of_device);
    return precision == LF_PRECISION_TF32 ? lf_fail(diag, LF_ERR_UNSUPPORTED, "the recorder says no to tf32") : LF_OK;
}

static lf_status describe(void *device, const char *name, lf_pool *pool, lf_device *out, lf_diag *diag)
{
    assert_non_null(pool);
    assert_ptr_equal(device, &of_device);
    assert_string_equal(name, "recorder");
    *out = *lf_device_named("h200");
    return say("describe", diag);
}

static lf_status compile(void *device, const lf_backend_task *task, void **program, lf_diag *diag)
{
    assert_ptr_equal(device, &of_device);
    assert_string_equal(task->device, "recorder");
    assert_true(task->pool && task->fused && task->first);
    *program = answer == LF_OK ? &of_program : NULL;
    char text[64];
    snprintf(text, sizeof text, "compile(%s%s%s)", lf_precision_table[task->precision].name,
             task->guarded ? ", guarded" : "", task->exact ? ", exact" : "");
    return say(text, diag);
}

static void program_free(void *program)
{
    assert_ptr_equal(program, &of_program);
    say("program_free", NULL);
}

static lf_status prepare(void *program, const lf_backend_weights *weights, lf_diag *diag)
{
    assert_ptr_equal(program, &of_program);
    fused_given = weights->fused != NULL;
    exact_given = weights->exact != NULL;
    memcpy(params_on_device, weights->device, sizeof params_on_device);
    lf_prepared_free(weights->fused);
    lf_prepared_free(weights->exact);
    return say("prepare", diag);
}

static void unprepare(void *program)
{
    assert_ptr_equal(program, &of_program);
    say("unprepare", NULL);
}

static size_t program_bytes(const void *program)
{
    assert_ptr_equal(program, &of_program);
    return 12345;
}

static lf_status workspace(void *program, const int64_t *dims, int64_t *bytes, lf_diag *diag)
{
    assert_ptr_equal(program, &of_program);
    *bytes = 1000 * dims[0];
    return say("workspace", diag);
}

static lf_status call_new(void *program, void **call)
{
    assert_ptr_equal(program, &of_program);
    *call = answer == LF_OK ? &of_call : NULL;
    return say("call_new", NULL);
}

static void call_free(void *call)
{
    if (call)
        say("call_free", NULL);
}

static lf_status run(void *call, const lf_backend_job *job, lf_diag *diag)
{
    assert_ptr_equal(call, &of_call);
    last = *job;
    return say("run", diag);
}

static int64_t rows_redone(void *call)
{
    assert_ptr_equal(call, &of_call);
    return 7;
}

static size_t call_bytes(const void *call)
{
    assert_ptr_equal(call, &of_call);
    return 678;
}

static lf_status wait_for(void *device, void *stream, lf_diag *diag)
{
    assert_ptr_equal(device, &of_device);
    (void)stream;
    return say("wait", diag);
}

static lf_status copy(void *device, const void *from, size_t bytes, void *stream, const char *what, void **out,
                      lf_diag *diag)
{
    assert_ptr_equal(device, &of_device);
    (void)from, (void)bytes, (void)stream, (void)what;
    *out = &of_device;
    return say("copy", diag);
}

static void drop(void *device, void *of)
{
    assert_ptr_equal(device, &of_device);
    assert_ptr_equal(of, &of_device);
    say("drop", NULL);
}

static lf_status read_back(void *device, void *to, const void *from, size_t bytes, void *stream, const char *what,
                           lf_diag *diag)
{
    assert_ptr_equal(device, &of_device);
    (void)from, (void)stream, (void)what;
    memset(to, 0, bytes);
    return say("read", diag);
}

static bool reads_as_given(const void *program)
{
    assert_ptr_equal(program, &of_program);
    return true;
}

static const lf_backend_memory memory = {.alignment = 64,
                                         .wait = wait_for,
                                         .copy = copy,
                                         .drop = drop,
                                         .read = read_back,
                                         .reads_as_given = reads_as_given};

static const lf_backend recorder = {.name = "recorder",
                                    .memory = &memory,
                                    .open = open_device,
                                    .close = close_device,
                                    .check_precision = check_precision,
                                    .describe = describe,
                                    .compile = compile,
                                    .program_free = program_free,
                                    .prepare = prepare,
                                    .unprepare = unprepare,
                                    .program_bytes = program_bytes,
                                    .workspace = workspace,
                                    .call_new = call_new,
                                    .call_free = call_free,
                                    .run = run,
                                    .rows_redone = rows_redone,
                                    .call_bytes = call_bytes};

/* ---- the tests ---- */

static const char plain_text[] = "input x f32[B, 4]\nparam w f32[3, 4]\na = linear(x, w)\nreturn a\n";
static const char guarded_text[] = "input x f32[B, 24]\nparam w f32[30, 24]\nparam b f32[30]\na = linear(x, w, b)\n"
                                   "m = mean(a, dim=1)\ng = gelu(m)\nreturn g\n";

static lf_context *context_with_recorder(void)
{
    lf_context *context = context_of(1);
    OK_CONTEXT(context, lf_context_add_backend(context, &recorder));
    answer = LF_OK;
    said[0] = '\0';
    return context;
}

/* From compiling to freeing: what is asked for, in what order, and what comes back out of the public functions. */
static void a_backend_of_somebody_elses(void **state)
{
    (void)state;
    rig r = {.context = context_with_recorder()};
    const float x[20] = {0};
    float w[12] = {1}, y[15];
    const int64_t five = 5;
    size_t prepared, bytes;
    char *text = NULL;
    r.model = model_of(r.context, plain_text);
    r.program = program_of(r.context, r.model, "device=recorder precision=bf16");
    assert_said("open compile(bf16)");
    OK_PROGRAM(r.program, give(r.program, "w", w));
    OK_PROGRAM(r.program, lf_program_prepare(r.program));
    assert_said("unprepare prepare");
    assert_true(fused_given && !exact_given && !params_on_device[0]);
    lf_program_memory(r.program, NULL, &prepared, NULL);
    assert_int_equal(prepared, 12345);
    OK_PROGRAM(r.program, lf_program_explain(r.program, &five, true, &text));
    assert_said("describe workspace");
    assert_non_null(strstr(text, "\"workspace_bytes\": 5000"));
    lf_string_free(text);

    OK_PROGRAM(r.program, lf_call_new(r.program, &r.call));
    OK_CALL(r.call, run_at(r.call, &five, (const float *const[]){x}, (float *const[]){y}, 0));
    assert_said("call_new run");
    assert_true(last.batch == 5 && last.dims[0] == 5 && last.input[0] == x && last.output[0] == y && !last.on_device);
    assert_true(last.input_count[0] == 20 && last.output_count[0] == 15 && !last.stream && !last.workspace);
    OK_CALL(r.call, run_on(r.call, &five, (const float *const[]){x}, (float *const[]){y}, &bytes, w, sizeof w));
    assert_said("run");
    assert_true(last.on_device && last.stream == &bytes && last.workspace == w && last.workspace_bytes == sizeof w);
    OK_CALL(r.call, lf_call_workspace(r.call, &five, &bytes));
    assert_said("workspace");
    assert_int_equal(bytes, 5000);
    assert_int_equal(lf_call_rows_redone(r.call), 7);
    assert_true(lf_call_memory(r.call) > 678);
    rig_end(&r);
    assert_said("call_free program_free close");
}

/* Parameters that lie in its memory stay there, and come to the host only where they are looked at. */
static void its_memory(void **state)
{
    (void)state;
    rig r = {.context = context_with_recorder()};
    static _Alignas(64) const float there[721];
    r.model = model_of(r.context, guarded_text);
    r.program = program_of(r.context, r.model, "device=recorder");
    assert_said("open compile(fp32, guarded, exact)");
    OK_PROGRAM(r.program, give_there(r.program, "w", (uintptr_t)there, LF_COPY));
    assert_said("unprepare copy");
    OK_PROGRAM(r.program, give_there(r.program, "w", (uintptr_t)there, LF_BORROW));
    assert_said("wait unprepare drop");
    OK_PROGRAM(r.program, give_there(r.program, "b", (uintptr_t)(there + 1), LF_BORROW)); /* not aligned */
    assert_said("unprepare copy");
    OK_PROGRAM(r.program, lf_program_prepare(r.program));
    assert_said("unprepare read read prepare"); /* folded from both */
    assert_true(fused_given && exact_given && params_on_device[0] == there && params_on_device[1] == &of_device);
    rig_end(&r);
    assert_said("program_free drop close");
}

/* Weights that a law does not hold for: the model as written alone. */
static void weights_that_are_not_finite(void **state)
{
    (void)state;
    rig r = {.context = context_with_recorder()};
    float w[720] = {0}, b[30] = {0};
    r.model = model_of(r.context, guarded_text);
    r.program = program_of(r.context, r.model, "device=recorder");
    for (int bad = 0; bad < 2; bad++) {
        w[17] = bad ? NAN : 1;
        OK_PROGRAM(r.program, give(r.program, "w", w));
        OK_PROGRAM(r.program, give(r.program, "b", b));
        OK_PROGRAM(r.program, lf_program_prepare(r.program));
        assert_true(exact_given && fused_given == !bad);
    }
    rig_end(&r);
}

/* What it refuses is refused in its words, and nothing is freed that was not made. */
static void what_it_refuses(void **state)
{
    (void)state;
    rig r = {.context = context_with_recorder()};
    const int64_t one = 1;
    const float x[4] = {0}, w[12] = {0};
    float y[3];
    char *text;
    lf_options *options = NULL;
    r.model = model_of(r.context, plain_text);
    options = options_of(r.context, "device=recorder precision=tf32");
    assert_int_equal(lf_options_check(options), LF_ERR_UNSUPPORTED);
    assert_int_equal(lf_program_new(r.model, options, &r.program), LF_ERR_UNSUPPORTED);
    assert_non_null(strstr(lf_model_message(r.model), "no to tf32"));
    assert_said("open");
    OK_OPTIONS(options, lf_options_set(options, "precision", "fp32"));
    OK_OPTIONS(options, lf_options_set(options, "tune", "true"));
    assert_int_equal(lf_program_new(r.model, options, &r.program), LF_ERR_UNSUPPORTED);
    OK_OPTIONS(options, lf_options_set(options, "tune", "false"));
    answer = LF_ERR_DEVICE;
    assert_int_equal(lf_program_new(r.model, options, &r.program), LF_ERR_DEVICE);
    assert_non_null(strstr(lf_model_message(r.model), "no to compile"));
    assert_said("compile(fp32)");
    answer = LF_OK;
    OK_MODEL(r.model, lf_program_new(r.model, options, &r.program));
    OK_PROGRAM(r.program, give(r.program, "w", w));
    answer = LF_ERR_DEVICE;
    assert_int_equal(lf_program_prepare(r.program), LF_ERR_DEVICE);
    assert_non_null(strstr(lf_program_message(r.program), "no to prepare"));
    assert_int_equal(lf_program_explain(r.program, &one, true, &text), LF_ERR_DEVICE);
    assert_int_equal(lf_call_new(r.program, &r.call), LF_ERR_NOMEM);
    answer = LF_OK;
    OK_PROGRAM(r.program, lf_program_prepare(r.program));
    OK_PROGRAM(r.program, lf_call_new(r.program, &r.call));
    answer = LF_ERR_DATA;
    assert_int_equal(run_at(r.call, &one, (const float *const[]){x}, (float *const[]){y}, 0), LF_ERR_DATA);
    assert_non_null(strstr(lf_call_message(r.call), "no to run"));
    double seconds; /* it has no clock */
    assert_int_equal(lf_call_time(r.call, NULL, 1, &seconds), LF_ERR_ARG);
    lf_options_free(options);
    said[0] = '\0';
    rig_end(&r);
    assert_said("call_free program_free close");
}

/* A device that cannot be opened is asked for again, and not closed. */
static void a_device_that_is_not_there(void **state)
{
    (void)state;
    lf_context *context = context_with_recorder();
    lf_model *model = model_of(context, plain_text);
    lf_options *options = options_of(context, "device=recorder");
    lf_program *program;
    answer = LF_ERR_DEVICE;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(lf_program_new(model, options, &program), LF_ERR_DEVICE);
        assert_non_null(strstr(lf_model_message(model), "no to open"));
        assert_said("open");
    }
    lf_options_free(options);
    lf_model_free(model);
    lf_context_free(context);
    assert_said("");
}

/* Its word is known where it was added, and nowhere else; there is an end to how many a context has. */
static void whose_backends_they_are(void **state)
{
    (void)state;
    lf_context *with = context_with_recorder(), *without = context_of(1);
    lf_options *options = NULL;
    OK_CONTEXT(without, lf_options_new(without, &options));
    assert_int_equal(lf_options_set(options, "device", "recorder"), LF_ERR_ARG);
    lf_options_free(options);
    int added = 0;
    while (lf_context_add_backend(with, &recorder) == LF_OK)
        added++;
    assert_true(added > 0 && added < LF_BACKENDS);
    lf_context_free(with);
    lf_context_free(without);
    assert_said("");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_backend_of_somebody_elses), cmocka_unit_test(its_memory),
        cmocka_unit_test(weights_that_are_not_finite), cmocka_unit_test(what_it_refuses),
        cmocka_unit_test(a_device_that_is_not_there),  cmocka_unit_test(whose_backends_they_are),
    };
    return cmocka_run_group_tests_name("backend", tests, NULL, NULL);
}
