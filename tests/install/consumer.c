/* SPDX-License-Identifier: Apache-2.0 */
/* A program as someone outside would write it: y = relu(linear(x, w, b)), built op by op, run, compared with sums done
 * by hand. Small integers: the numbers must match exactly. Exit status 0 when they do. */
#include <linfuse.h>

#include <stdio.h>
#include <string.h>

enum { M = 3, K = 4, N = 2 };

static int failed(const char *what, lf_status status, const char *message)
{
    fprintf(stderr, "%s: %s: %s\n", what, lf_status_name(status), message);
    return 1;
}

/* Builds the model into *model. */
static lf_status build(lf_model *model)
{
    const lf_dim x_dims[] = {{0, "B"}, {K, NULL}}, w_dims[] = {{N, NULL}, {K, NULL}}, b_dims[] = {{N, NULL}};
    lf_value x, w, b, a, y;
    lf_status status;
    if ((status = lf_model_input(model, "x", LF_F32, 2, x_dims, &x)) != LF_OK ||
        (status = lf_model_param(model, "w", LF_F32, 2, w_dims, &w)) != LF_OK ||
        (status = lf_model_param(model, "b", LF_F32, 1, b_dims, &b)) != LF_OK)
        return status;
    lf_arg args[3];
    memset(args, 0, sizeof args);
    args[0].kind = args[1].kind = args[2].kind = LF_ARG_VALUE;
    args[0].value = x;
    args[1].value = w;
    args[2].value = b;
    if ((status = lf_model_op(model, "a", "linear", args, 3, &a)) != LF_OK)
        return status;
    args[0].value = a;
    if ((status = lf_model_op(model, "y", "relu", args, 1, &y)) != LF_OK)
        return status;
    return lf_model_return(model, &y, 1);
}

static lf_tensor tensor(const float *data, int rank, const int64_t *extents)
{
    lf_tensor made;
    memset(&made, 0, sizeof made);
    made.data = (void *)data;
    made.dtype = LF_F32;
    made.rank = rank;
    made.extents = extents;
    return made;
}

/* Runs the program once on x (M by K) into y (M by N). */
static int run(lf_program *program, const float *x, float *y)
{
    const int64_t x_extents[] = {M, K};
    lf_tensor in, out;
    lf_call *call = NULL;
    lf_status status = lf_call_new(program, &call);
    if (status != LF_OK)
        return failed("lf_call_new", status, lf_program_message(program));
    in = tensor(x, 2, x_extents);
    if ((status = lf_call_set_input(call, 0, &in)) != LF_OK || (status = lf_call_output(call, 0, &out)) != LF_OK) {
        failed("input", status, lf_call_message(call));
        lf_call_free(call);
        return 1;
    }
    int bad = out.rank != 2 || out.extents[0] != M || out.extents[1] != N;
    if (bad)
        fprintf(stderr, "the output's shape is wrong\n");
    out.data = y;
    if (!bad && ((status = lf_call_set_output(call, 0, &out)) != LF_OK || (status = lf_call_run(call, NULL)) != LF_OK))
        bad = failed("run", status, lf_call_message(call));
    lf_call_free(call);
    return bad;
}

static int compile_and_run(lf_model *model, const float *x, const float *w, const float *b, float *y)
{
    lf_program *program = NULL;
    lf_status status = lf_program_new(model, NULL, &program);
    if (status != LF_OK)
        return failed("lf_program_new", status, lf_model_message(model));
    int bad = 0;
    const int64_t w_extents[] = {N, K}, b_extents[] = {N};
    const lf_tensor weight = tensor(w, 2, w_extents), bias = tensor(b, 1, b_extents);
    if ((status = lf_program_set_param(program, "w", &weight, LF_COPY, NULL)) != LF_OK ||
        (status = lf_program_set_param(program, "b", &bias, LF_COPY, NULL)) != LF_OK ||
        (status = lf_program_prepare(program)) != LF_OK)
        bad = failed("parameters", status, lf_program_message(program));
    if (!bad)
        bad = run(program, x, y);
    lf_program_free(program);
    return bad;
}

int main(void)
{
    const float x[M * K] = {1, 2, 3, 4, -1, 0, 2, 1, 0, 5, -3, 2}; /* M by K */
    const float w[N * K] = {1, -1, 2, 0, -2, 1, 0, 3};             /* N by K */
    const float b[N] = {-4, 1};
    float y[M * N] = {0}; /* M by N */

    lf_context *context = NULL;
    lf_status status = lf_context_new(&context);
    if (status != LF_OK)
        return failed("lf_context_new", status, "no context");
    lf_model *model = NULL;
    int bad = 0;
    if ((status = lf_model_new(context, &model)) != LF_OK)
        bad = failed("lf_model_new", status, lf_context_message(context));
    else if ((status = build(model)) != LF_OK)
        bad = failed("model", status, lf_model_message(model));
    else
        bad = compile_and_run(model, x, w, b, y);
    lf_model_free(model);
    lf_context_free(context);

    for (int m = 0; m < M && !bad; m++) {
        for (int n = 0; n < N && !bad; n++) {
            float want = b[n];
            for (int k = 0; k < K; k++)
                want += x[m * K + k] * w[n * K + k];
            want = want < 0 ? 0 : want;
            if (y[m * N + n] != want) {
                fprintf(stderr, "y[%d, %d] is %g, not %g\n", m, n, (double)y[m * N + n], (double)want);
                bad = 1;
            }
        }
    }
    return bad;
}
