/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/session.h"

#include "cli/report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the model ---- */

enum { MAX_STDIN = 64 << 20 }; /* bytes; several times what a model may have */

/* All of standard input; *text is the caller's. */
static int read_stdin(char **text, size_t *length)
{
    size_t capacity = 1 << 16, n;
    *length = 0;
    *text = malloc(capacity);
    while (*text && (n = fread(*text + *length, 1, capacity - *length, stdin)) > 0) {
        *length += n;
        if (*length > MAX_STDIN)
            return cli_fail("standard input is longer than any model (%d MB)", MAX_STDIN >> 20);
        if (*length == capacity) {
            char *more = realloc(*text, capacity *= 2);
            if (!more)
                free(*text);
            *text = more;
        }
    }
    if (!*text)
        return cli_fail("no memory to read standard input");
    return ferror(stdin) ? cli_fail("cannot read standard input: %s", strerror(errno)) : CLI_OK;
}

static int read_model(cli_session *s)
{
    const char *path = s->source.model;
    lf_status status;
    if (strcmp(path, "-") == 0) {
        char *text = NULL;
        size_t length;
        int code = read_stdin(&text, &length);
        if (code != CLI_OK) {
            free(text);
            return code;
        }
        status = lf_model_read(s->context, "stdin", text, length, &s->model);
        free(text);
    } else {
        status = lf_model_read_file(s->context, path, &s->model);
    }
    if (status == LF_ERR_MODEL) { /* FILE:LINE:COLUMN: what, the line, a caret: speaks for itself */
        fprintf(stderr, "%s\n", lf_context_message(s->context));
        return CLI_BAD;
    }
    return status == LF_OK ? CLI_OK : cli_fail_status(status, lf_context_message(s->context));
}

/* ---- named extents ---- */

/* "B, T" for messages; "none" where the model has none. */
static const char *dim_names(const cli_session *s, char *out, size_t capacity)
{
    size_t at = 0;
    snprintf(out, capacity, "none");
    for (size_t i = 0; i < s->dim_count && at < capacity; i++)
        at += (size_t)snprintf(out + at, capacity - at, "%s%s", i ? ", " : "", lf_model_dim_name(s->model, i));
    return out;
}

static int set_dim(cli_session *s, const cli_pair *pair)
{
    char names[256];
    size_t i = 0;
    uint64_t value;
    while (i < s->dim_count && strcmp(lf_model_dim_name(s->model, i), pair->name) != 0)
        i++;
    if (i == s->dim_count)
        return cli_fail("--dim %s=%s: the model has no extent of that name (it has: %s)", pair->name, pair->value,
                        dim_names(s, names, sizeof names));
    if (cli_is_too_large(pair->value, INT64_MAX))
        return cli_fail("--dim %s=%s is too large", pair->name, pair->value);
    if (!cli_parse_number(pair->value, INT64_MAX, &value) || value == 0)
        return cli_fail("--dim %s needs a whole number, 1 or more, not '%s'", pair->name, pair->value);
    if (s->dim_told[i] && s->dims[i] != (int64_t)value)
        return cli_fail("--dim %s=%s: %s was given as %lld before", pair->name, pair->value, pair->name,
                        (long long)s->dims[i]);
    s->dims[i] = (int64_t)value;
    s->dim_told[i] = true;
    return CLI_OK;
}

static int read_dims(cli_session *s)
{
    const cli_options *o = s->options;
    char names[256];
    s->dim_count = lf_model_dim_count(s->model);
    s->dims = calloc(s->dim_count + 1, sizeof *s->dims);
    s->dim_told = calloc(s->dim_count + 1, sizeof *s->dim_told);
    if (!s->dims || !s->dim_told)
        return cli_fail("no memory for the named extents");
    for (size_t i = 0; i < s->dim_count; i++)
        s->dims[i] = CLI_DEFAULT_DIM;
    if (o->batch && s->dim_count != 1)
        return cli_fail("--batch is for models with one named extent, and this has %s%s; use --dim NAME=NUMBER",
                        s->dim_count ? "several: " : "", dim_names(s, names, sizeof names));
    if (o->batch) {
        s->dims[0] = o->batch;
        s->dim_told[0] = true;
    }
    for (size_t i = 0; i < o->dims.count; i++) {
        int code = set_dim(s, &o->dims.at[i]);
        if (code != CLI_OK)
            return code;
    }
    return CLI_OK;
}

int64_t cli_dim_follows(const cli_session *s, lf_port port, size_t index, int axis, size_t dim)
{
    int power[LF_MAX_DIMS];
    if (lf_model_port_factors(s->model, port, index, axis, power) < 0 || power[dim] == 0)
        return 0;
    return power[dim] == 1 ? lf_model_port_extent(s->model, port, index, axis, s->dims) / s->dims[dim] : -1;
}

int cli_session_begin(const cli_options *options, cli_session *s)
{
    *s = (cli_session){.options = options};
    lf_status status = lf_context_new(&s->context);
    if (status != LF_OK)
        return cli_fail_status(status, NULL);
    if (options->threads > INT32_MAX)
        return cli_fail("--threads %lld: no machine has as many", (long long)options->threads);
    status = lf_context_set_threads(s->context, (int)options->threads);
    if (status != LF_OK)
        return cli_fail_status(status, lf_context_message(s->context));
    int code = cli_source_find(options, &s->source);
    if (code == CLI_OK)
        code = read_model(s);
    return code == CLI_OK ? read_dims(s) : code;
}

void cli_session_end(cli_session *s)
{
    cli_source_free(&s->source);
    free(s->dims);
    free(s->dim_told);
    lf_model_free(s->model);
    lf_context_free(s->context);
    *s = (cli_session){0};
}

int cli_session_device(const cli_session *s, const char **device)
{
    *device = s->options->device ? s->options->device : "cpu";
    if (lf_device_runs(*device))
        return CLI_OK;
    char known[256] = "";
    const char *word;
    for (size_t i = 0; (word = lf_option_word("device", i)) != NULL && lf_device_runs(word); i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? " or " : "", word);
    return cli_fail("--device %s: this command runs the model, which needs %s", *device, known);
}

void cli_session_print(const cli_session *s, const char *device)
{
    char shown[4096];
    lf_printable(strcmp(s->source.model, "-") == 0 ? "standard input" : s->source.model, shown, sizeof shown);
    fputs(shown, stdout);
    for (size_t i = 0; i < s->dim_count; i++)
        printf(", %s = %lld", lf_model_dim_name(s->model, i), (long long)s->dims[i]);
    printf(", on %s", device);
    if (strcmp(device, "cpu") == 0) {
        int threads = lf_context_threads(s->context);
        printf(" with %d thread%s", threads, threads == 1 ? "" : "s");
    }
    putchar('\n');
    cli_session_print_found(s, stdout);
}

void cli_session_print_found(const cli_session *s, FILE *to)
{
    char shown[4096];
    if (!cli_source_found_weights(s->options, &s->source))
        return;
    lf_printable(s->source.weights, shown, sizeof shown);
    fprintf(to, "The weights are those beside the model, %s.\n", shown);
}

/* ---- programs ---- */

static lf_status set_options(const cli_session *s, bool fuse, lf_options *to)
{
    const cli_options *o = s->options;
    /* emit: as for a GPU, of which there need be none */
    lf_status status = lf_options_set(to, "device", o->device ? o->device : o->arch ? "h200" : "cpu");
    if (status == LF_OK && o->precision)
        status = lf_options_set(to, "precision", o->precision);
    if (status == LF_OK && o->rules)
        status = lf_options_set(to, "rules", o->rules);
    if (status == LF_OK && o->assume_finite)
        status = lf_options_set(to, "assume_finite", "true");
    if (status == LF_OK && o->tune && fuse)
        status = lf_options_set(to, "tune", "true");
    if (status == LF_OK)
        status = lf_options_set(to, "fuse", fuse ? "true" : "false");
    for (size_t i = 0; i < s->dim_count && status == LF_OK; i++) {
        char key[512], value[32];
        snprintf(key, sizeof key, "dim.%s", lf_model_dim_name(s->model, i));
        snprintf(value, sizeof value, "%lld", (long long)s->dims[i]);
        status = lf_options_set(to, key, value);
    }
    return status;
}

int cli_program_new(cli_session *s, bool fuse, lf_program **out)
{
    lf_options *options;
    lf_status status = lf_options_new(s->context, &options);
    if (status != LF_OK)
        return cli_fail_status(status, lf_context_message(s->context));
    int code = CLI_OK;
    status = set_options(s, fuse, options);
    if (status != LF_OK)
        code = cli_fail_status(status, lf_options_message(options));
    else if ((status = lf_program_new(s->model, options, out)) != LF_OK)
        code = cli_fail_status(status, lf_model_message(s->model));
    lf_options_free(options);
    return code;
}

static int program_status(lf_status status, const lf_program *program)
{
    return status == LF_OK ? CLI_OK : cli_fail_status(status, lf_program_message(program));
}

int cli_program_params(const cli_session *s, lf_program *program)
{
    const char *weights = s->source.weights;
    return program_status(weights ? lf_program_load_params(program, weights)
                                  : lf_program_draw_params(program, s->options->seed),
                          program);
}

int cli_program_params_from(const cli_session *s, lf_program *program, const lf_program *other)
{
    lf_status status = LF_OK;
    for (size_t i = 0; i < lf_model_port_count(s->model, LF_PORT_PARAM) && status == LF_OK; i++) {
        const char *name = lf_model_port_name(s->model, LF_PORT_PARAM, i);
        const lf_tensor values = lf_program_param(other, name);
        status = lf_program_set_param(program, name, &values, LF_COPY, NULL);
    }
    return program_status(status, program);
}

int cli_program_prepare(lf_program *program)
{
    return program_status(lf_program_prepare(program), program);
}

/* ---- the account ---- */

int cli_program_facts(const cli_session *s, lf_program *program, cli_facts *out)
{
    lf_account *account;
    lf_status status = lf_program_account(program, s->dims, &account);
    if (status != LF_OK)
        return program_status(status, program);
    *out = (cli_facts){
        .plain_flops = lf_account_number(account, "plain", "flops", 0),
        .plain_bytes = lf_account_number(account, "plain", "bytes", 0),
        .fused_us = lf_account_number(account, "fused", "us", 0),
        .ops = lf_account_rows(account, "ops"),
    };
    lf_account_free(account);
    return CLI_OK;
}
