/* SPDX-License-Identifier: Apache-2.0 */
/* What one call costs when it comes from C: Linear -> GELU -> Softmax at 8 x 64 x 64, by lf_call_run.
 *   overhead [BATCHES [THREADS]]   prints nanoseconds a call, one line a batch of CALLS calls */
#include <linfuse_tools.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { M = 8, N = 64, K = 64 };
enum { CALLS = 20, WARM_UP = 500 }; /* a batch is short: most are over before another process gets the core */

static const char model_text[] = "input x f32[B, 64]\n"
                                 "param linear.weight f32[64, 64]\n"
                                 "param linear.bias f32[64]\n"
                                 "a = linear(x, linear.weight, linear.bias)\n"
                                 "b = gelu(a)\n"
                                 "c = softmax(b, dim=1)\n"
                                 "return c\n";

static float x[M * K], y[M * N];

static void need(lf_status status, const char *message)
{
    if (status == LF_OK)
        return;
    fprintf(stderr, "overhead: %s: %s\n", lf_status_name(status), message);
    exit(1);
}

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

static double ns_per_call(lf_call *call, int calls)
{
    double start = now_ns();
    for (int i = 0; i < calls; i++)
        need(lf_call_run(call, NULL), lf_call_message(call));
    return (now_ns() - start) / calls;
}

static lf_program *compile(lf_context *context, int threads)
{
    lf_model *model = NULL;
    lf_options *options = NULL;
    lf_program *program = NULL;
    need(lf_context_set_threads(context, threads), lf_context_message(context));
    need(lf_model_read(context, "overhead", model_text, strlen(model_text), &model), lf_context_message(context));
    need(lf_options_new(context, &options), lf_context_message(context));
    need(lf_options_set(options, "dim.B", "8"), lf_options_message(options));
    need(lf_program_new(model, options, &program), lf_model_message(model));
    lf_options_free(options);
    lf_model_free(model);
    need(lf_program_draw_params(program, 1), lf_program_message(program));
    need(lf_program_prepare(program), lf_program_message(program));
    return program;
}

int main(int argc, char **argv)
{
    const int batches = argc > 1 ? atoi(argv[1]) : 100, threads = argc > 2 ? atoi(argv[2]) : 2;
    const lf_tensor input = {.data = x, .rank = 2, .extents = (const int64_t[]){M, K}},
                    output = {.data = y, .rank = 2, .extents = (const int64_t[]){M, N}};
    lf_context *context = NULL;
    lf_call *call = NULL;
    need(lf_context_new(&context), "no context");
    lf_program *program = compile(context, threads);
    need(lf_call_new(program, &call), lf_program_message(program));
    lf_draw_uniform(1, "x", 0, 1, M * K, x);
    need(lf_call_set_input(call, 0, &input), lf_call_message(call));
    need(lf_call_set_output(call, 0, &output), lf_call_message(call));
    ns_per_call(call, WARM_UP);
    for (int i = 0; i < batches; i++)
        printf("%.1f\n", ns_per_call(call, CALLS));
    lf_call_free(call);
    lf_program_free(program);
    lf_context_free(context);
    return 0;
}
