/* SPDX-License-Identifier: Apache-2.0 */
/* Serves a model that linfuse.save(model, inputs, "dir") wrote, without Python:
 *   serve DIR x.npy [y.npy]     reads DIR/model.lf and DIR/model.safetensors, answers one request, writes y.npy
 *   serve DIR                   answers requests from standard input, a line each: x.npy [y.npy]
 * Built by:  cc serve.c -o serve $(pkg-config --cflags --libs linfuse)
 * The program and the call are made once, before the first request. A server with several threads would share the
 * program and give each thread a call of its own. */
#include <linfuse.h>
#include <linfuse_tools.h> /* .npy files */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct server {
    lf_context *context;
    lf_program *program;
    lf_call *call;
} server;

static int failed(const char *message)
{
    fprintf(stderr, "serve: %s\n", message);
    return 1;
}

static const char *in_folder(char *path, size_t size, const char *folder, const char *file)
{
    snprintf(path, size, "%s/%s", folder, file);
    return path;
}

/* Reads, compiles and prepares: once. */
static int start(server *s, const char *folder)
{
    char path[4096];
    lf_model *model = NULL;
    if (lf_context_new(&s->context) != LF_OK)
        return failed("out of memory");
    if (lf_model_read_file(s->context, in_folder(path, sizeof path, folder, "model.lf"), &model) != LF_OK)
        return failed(lf_context_message(s->context));
    int bad = 0;
    if (lf_model_port_count(model, LF_PORT_INPUT) != 1 || lf_model_port_count(model, LF_PORT_OUTPUT) != 1)
        bad = failed("this small server takes models with one input and one output");
    else if (lf_program_new(model, NULL, &s->program) != LF_OK)
        bad = failed(lf_model_message(model));
    lf_model_free(model);
    if (bad)
        return 1;
    if (lf_program_load_params(s->program, in_folder(path, sizeof path, folder, "model.safetensors")) != LF_OK ||
        lf_program_prepare(s->program) != LF_OK || lf_call_new(s->program, &s->call) != LF_OK)
        return failed(lf_program_message(s->program));
    return 0;
}

/* Runs the model on x, of any batch. y: its data are the caller's to free. */
static int answer(server *s, const lf_tensor *x, lf_tensor *y)
{
    if (lf_call_set_input(s->call, 0, x) != LF_OK || lf_call_output(s->call, 0, y) != LF_OK)
        return failed(lf_call_message(s->call));
    y->data = malloc(lf_tensor_bytes(y) + 1);
    if (!y->data)
        return failed("out of memory");
    if (lf_call_set_output(s->call, 0, y) != LF_OK || lf_call_run(s->call, NULL) != LF_OK)
        return failed(lf_call_message(s->call));
    return 0;
}

/* One request: reads the file input, and writes the file output unless that is NULL. */
static int serve(server *s, const char *input, const char *output)
{
    lf_array *file = NULL;
    if (lf_array_open(s->context, input, &file) != LF_OK)
        return failed(lf_context_message(s->context));
    const lf_tensor x = lf_array_tensor(file);
    lf_tensor y = {.data = NULL};
    int bad = answer(s, &x, &y);
    if (!bad && output && lf_array_save(s->context, output, &y) != LF_OK)
        bad = failed(lf_context_message(s->context));
    if (!bad && y.rank > 0)
        printf("%lld rows served\n", (long long)y.extents[0]);
    fflush(stdout); /* a client that waits for this answer sees it now */
    free(y.data);
    lf_array_free(file);
    return bad;
}

/* Requests from a stream until it ends. One that fails is reported, and the next is served. */
static int serve_all(server *s, FILE *requests)
{
    char line[8192];
    int bad = 0;
    while (fgets(line, sizeof line, requests)) {
        const char *input = strtok(line, " \t\r\n");
        const char *output = strtok(NULL, " \t\r\n");
        if (input)
            bad |= serve(s, input, output);
    }
    return bad;
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 4) {
        fprintf(stderr, "usage: serve DIR INPUT.npy [OUTPUT.npy]\n"
                        "       serve DIR < REQUESTS, a line each: INPUT.npy [OUTPUT.npy]\n");
        return 2;
    }
    server s = {0};
    int bad = start(&s, argv[1]);
    if (!bad)
        bad = argc > 2 ? serve(&s, argv[2], argc > 3 ? argv[3] : NULL) : serve_all(&s, stdin);
    lf_call_free(s.call);
    lf_program_free(s.program);
    lf_context_free(s.context);
    return bad;
}
