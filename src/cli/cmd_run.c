/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands.h"
#include "cli/report.h"
#include "cli/tensor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names on the command line ---- */

/* "x, y" for messages. */
static const char *names_of(const cli_tensors *t, char *out, size_t capacity)
{
    size_t at = 0;
    snprintf(out, capacity, "none");
    for (size_t i = 0; i < t->count && at < capacity; i++)
        at += (size_t)snprintf(out + at, capacity - at, "%s%s", i ? ", " : "", t->at[i].name);
    return out;
}

/* Does the pair go by that name? One without a name does; check_names makes sure that there is but one to go by. */
static bool is_of(const cli_pair *pair, const char *name)
{
    return !pair->name || strcmp(pair->name, name) == 0;
}

/* Makes sure that every name given is one of these, and given once; a file without a name needs a model with one. */
static int check_names(const cli_pairs *pairs, const char *option, const cli_tensors *known)
{
    char names[512];
    for (size_t i = 0; i < pairs->count; i++) {
        size_t at = 0;
        if (!pairs->at[i].name && known->count != 1)
            return cli_fail("--%s %s: the model has %zu %ss (%s); give NAME=%s", option,
                            pairs->at[i].value, known->count, option, names_of(known, names, sizeof names),
                            pairs->at[i].value);
        while (at < known->count && !is_of(&pairs->at[i], known->at[at].name))
            at++;
        if (at == known->count)
            return cli_fail("--%s %s=%s: the model has no %s of that name (it has: %s)", option, pairs->at[i].name,
                            pairs->at[i].value, option, names_of(known, names, sizeof names));
        for (size_t before = 0; before < i; before++)
            if (known->count == 1 || strcmp(pairs->at[before].name, pairs->at[i].name) == 0)
                return cli_fail("--%s %s is given twice", option, known->at[at].name);
    }
    return CLI_OK;
}

static const char *value_of(const cli_pairs *pairs, const char *name)
{
    for (size_t i = 0; i < pairs->count; i++)
        if (is_of(&pairs->at[i], name))
            return pairs->at[i].value;
    return NULL;
}

/* Of two outputs in one file, one would be lost. */
static int check_files_differ(const cli_pairs *outputs)
{
    for (size_t i = 0; i < outputs->count; i++)
        for (size_t before = 0; before < i; before++)
            if (strcmp(outputs->at[before].value, outputs->at[i].value) == 0 &&
                strncmp(outputs->at[i].value, "/dev/", 5) != 0)
                return cli_fail("--output %s and --output %s are both to be written to %s", outputs->at[before].name,
                                outputs->at[i].name, outputs->at[i].value);
    return CLI_OK;
}

static bool writes_to_stdout(const cli_options *o)
{
    for (size_t i = 0; i < o->outputs.count; i++)
        if (cli_is_stdout(o->outputs.at[i].value))
            return true;
    return false;
}

/* ---- data in ---- */

/* The file's elements, or as floats of the input's type; those that cannot be converted are left to be refused. */
static int take_elements(cli_tensor *t, const lf_tensor *from)
{
    const lf_dtype declared = t->dtype;
    t->dtype = from->dtype;
    t->data = from->data;
    if (declared == from->dtype || lf_convert(from->dtype, NULL, declared, NULL, 0) != LF_OK)
        return CLI_OK;
    t->dtype = declared;
    if (cli_tensor_alloc(t) != CLI_OK)
        return CLI_BAD;
    lf_convert(from->dtype, from->data, declared, t->own, t->count);
    return CLI_OK;
}

static int open_input(const cli_session *s, cli_tensor *t)
{
    const char *path = value_of(&s->options->inputs, t->name);
    if (!path)
        return cli_fail("input %s is missing; give it with --input %s=FILE.npy", t->name, t->name);
    lf_status status = lf_array_open(s->context, path, &t->file);
    if (status != LF_OK)
        return cli_fail_status(status, lf_context_message(s->context));
    t->path = path;
    const lf_tensor tensor = lf_array_tensor(t->file);
    t->rank = tensor.rank;
    memcpy(t->extents, tensor.extents, (size_t)t->rank * sizeof *t->extents);
    return take_elements(t, &tensor);
}

/* Extents that were told must be those of the data. Untold ones are not guessed from it: choices would be weighed by
 * them, and a row's bits then depend on its neighbours. An axis is of a name if its extent follows that name's
 * value. */
static int check_told_dims(const cli_session *s, const cli_tensors *inputs)
{
    for (size_t dim = 0; dim < s->dim_count; dim++)
        for (size_t i = 0; s->dim_told[dim] && i < inputs->count; i++) {
            const cli_tensor *t = &inputs->at[i];
            for (int axis = 0; axis < t->rank && axis < lf_model_port_rank(s->model, LF_PORT_INPUT, i); axis++)
                if (cli_dim_follows(s, LF_PORT_INPUT, i, axis, dim) == 1 && t->extents[axis] != s->dims[dim])
                    return cli_fail("%s is said to be %lld, but it is %lld in input %s",
                                    lf_model_dim_name(s->model, dim), (long long)s->dims[dim],
                                    (long long)t->extents[axis], t->name);
        }
    return CLI_OK;
}

static int open_inputs(cli_session *s, cli_tensors *inputs)
{
    int code = cli_tensors_new(s, LF_PORT_INPUT, inputs);
    if (code == CLI_OK)
        code = check_names(&s->options->inputs, "input", inputs);
    for (size_t i = 0; i < inputs->count && code == CLI_OK; i++)
        code = open_input(s, &inputs->at[i]);
    return code == CLI_OK ? check_told_dims(s, inputs) : code;
}

/* ---- data out ---- */

static int save_outputs(const cli_session *s, const cli_tensors *outputs)
{
    for (size_t i = 0; i < outputs->count; i++) {
        const cli_tensor *t = &outputs->at[i];
        const char *path = value_of(&s->options->outputs, t->name);
        const lf_tensor tensor = cli_tensor_as(t);
        lf_status status = path ? lf_array_save(s->context, path, &tensor) : LF_OK;
        if (status != LF_OK)
            return cli_fail_status(status, lf_context_message(s->context));
    }
    return CLI_OK;
}

static int print_json(const cli_session *s, const cli_tensors *outputs, double seconds, int64_t redone)
{
    json_t *list = json_array();
    for (size_t i = 0; i < outputs->count; i++) {
        const cli_tensor *t = &outputs->at[i];
        json_array_append_new(list, json_pack("{s:s, s:s, s:o, s:s?}", "name", t->name, "dtype",
                                              lf_dtype_name(t->dtype), "shape", cli_json_shape(t->rank, t->extents),
                                              "file", value_of(&s->options->outputs, t->name)));
    }
    return cli_json_print(json_pack("{s:o, s:o, s:I}", "outputs", list, "ms", cli_json_number(seconds * 1e3),
                                    "rows_redone", (json_int_t)redone));
}

/* Least, mean and most of the finite values, how many are not finite, and the first few. */
static void print_summary(FILE *to, const float *x, size_t count)
{
    enum { FIRST = 4 };
    double least = INFINITY, most = -INFINITY, sum = 0;
    size_t finite = 0;
    for (size_t i = 0; i < count; i++) {
        double v = (double)x[i];
        if (!isfinite(v))
            continue;
        finite++;
        sum += v;
        least = fmin(least, v);
        most = fmax(most, v);
    }
    if (finite)
        fprintf(to, ", min %.6g, mean %.6g, max %.6g", least, sum / (double)finite, most);
    if (finite < count)
        fprintf(to, ", %zu not finite", count - finite);
    fprintf(to, count ? "; begins" : ", no values");
    for (size_t i = 0; i < count && i < FIRST; i++)
        fprintf(to, " %.6g", (double)x[i]);
    fprintf(to, "\n");
}

static int print_output(FILE *to, const cli_tensor *t, const char *path)
{
    char shape[CLI_SHAPE];
    float *own = NULL;
    const float *floats = path ? NULL : cli_tensor_floats(t, &own);
    if (!path && !floats)
        return CLI_BAD;
    fprintf(to, "%s: %s%s", t->name, t->dtype == LF_F32 ? "" : lf_dtype_name(t->dtype),
            cli_shape(shape, t->rank, t->extents));
    if (path) {
        char shown[4096];
        lf_printable(path, shown, sizeof shown);
        fprintf(to, ", written to %s\n", shown);
    } else {
        print_summary(to, floats, t->count);
    }
    free(own);
    return CLI_OK;
}

static int print_text(const cli_session *s, const cli_tensors *outputs, double seconds, int64_t redone)
{
    FILE *to = writes_to_stdout(s->options) ? stderr : stdout;
    cli_text text;
    for (size_t i = 0; i < outputs->count; i++) {
        const cli_tensor *t = &outputs->at[i];
        if (print_output(to, t, value_of(&s->options->outputs, t->name)) != CLI_OK)
            return CLI_BAD;
    }
    cli_session_print_found(s, to);
    if (!s->source.weights && lf_model_port_count(s->model, LF_PORT_PARAM))
        fprintf(to,
                "No --weights were given, and none lie beside the model: the parameters were drawn from seed %llu.\n",
                (unsigned long long)s->options->seed);
    if (redone)
        fprintf(to, "%lld row%s redone as written, where a guarded rewrite met a number that is not finite.\n",
                (long long)redone, redone == 1 ? " was" : "s were");
    fprintf(to, "Ran in %s.\n", cli_seconds(&text, seconds));
    return CLI_OK;
}

/* ---- the command ---- */

typedef struct job {
    cli_tensors inputs, outputs;
    lf_program *program;
    lf_call *call;
} job;

static int run(cli_session *s, job *j)
{
    const cli_options *o = s->options;
    const char *device;
    double seconds = 0;
    int code = cli_session_device(s, &device);
    if (code == CLI_OK && o->json && writes_to_stdout(o))
        code = cli_fail("--json and an output both go to standard output; write the output to a file");
    if (code == CLI_OK)
        code = cli_tensors_new(s, LF_PORT_OUTPUT, &j->outputs);
    if (code == CLI_OK)
        code = check_names(&o->outputs, "output", &j->outputs);
    if (code == CLI_OK)
        code = check_files_differ(&o->outputs);
    cli_tensors_free(&j->outputs);
    if (code == CLI_OK)
        code = open_inputs(s, &j->inputs);
    cli_progress_begin("preparing");
    if (code == CLI_OK)
        code = cli_program_new(s, true, &j->program);
    if (code == CLI_OK)
        code = cli_program_params(s, j->program);
    if (code == CLI_OK)
        code = cli_program_prepare(j->program);
    if (code == CLI_OK)
        code = cli_call_new(s, j->program, &j->inputs, &j->outputs, &j->call);
    cli_progress_say("running");
    if (code == CLI_OK)
        code = cli_call_run(j->call, &seconds);
    cli_progress_say("writing");
    if (code == CLI_OK)
        code = save_outputs(s, &j->outputs);
    cli_progress_end();
    if (code != CLI_OK)
        return code;
    int64_t redone = lf_call_rows_redone(j->call);
    if (o->json)
        return print_json(s, &j->outputs, seconds, redone);
    return print_text(s, &j->outputs, seconds, redone);
}

int cli_run(const cli_options *o)
{
    cli_session s;
    job j = {.program = NULL};
    int code = cli_session_begin(o, &s);
    if (code == CLI_OK)
        code = run(&s, &j);
    lf_call_free(j.call);
    lf_program_free(j.program);
    cli_tensors_free(&j.outputs);
    cli_tensors_free(&j.inputs);
    cli_session_end(&s);
    return code;
}
