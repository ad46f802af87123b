/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/sample.h"

#include "cli/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What one core does in double precision, a multiply-add at a time, in a few seconds; and a few GB of doubles. */
static const double QUICK_FLOPS = 4e9, QUICK_BYTES = 1e9;
enum { FEWEST_ROWS = 8 };

/* Whether axis 0 of a port, and no other axis, counts rows by this name; or, where it has none, that no axis does. */
static bool counts_rows(const cli_session *s, lf_port port, size_t index, bool has_rows, size_t dim)
{
    int rank = lf_model_port_rank(s->model, port, index);
    for (int axis = 0; axis < rank; axis++) {
        int64_t n = cli_dim_follows(s, port, index, axis, dim);
        if (axis == 0 && has_rows ? n <= 0 : n != 0)
            return false;
    }
    return rank > 0 || !has_rows;
}

/* The name that counts the model's rows. False where there is none, and rows cannot be taken apart. */
static bool find_row_dim(const cli_session *s, const bool *has_rows, size_t *out)
{
    for (size_t dim = 0; dim < s->dim_count; dim++) {
        bool counts = true, any = false;
        for (size_t i = 0; i < lf_model_port_count(s->model, LF_PORT_INPUT) && counts; i++) {
            counts = counts_rows(s, LF_PORT_INPUT, i, has_rows[i], dim);
            any = any || has_rows[i];
        }
        for (size_t i = 0; i < lf_model_port_count(s->model, LF_PORT_OUTPUT) && counts; i++)
            counts = counts_rows(s, LF_PORT_OUTPUT, i, true, dim);
        for (size_t i = 0; i < lf_model_port_count(s->model, LF_PORT_PARAM) && counts; i++)
            counts = counts_rows(s, LF_PORT_PARAM, i, false, dim);
        if (counts && any) {
            *out = dim;
            return true;
        }
    }
    return false;
}

/* One row at random from each of count equal stretches, and the first and the last row, where blocks of rows begin and
 * end and mistakes with remainders show. */
static int draw_rows(const cli_session *s, cli_sample *out)
{
    float *where = cli_alloc((size_t)out->count, sizeof *where, "the rows to check");
    out->rows = where ? cli_alloc((size_t)out->count, sizeof *out->rows, "the rows to check") : NULL;
    if (!out->rows) {
        free(where);
        return CLI_BAD;
    }
    lf_draw_uniform(s->options->seed, "rows to check", 0.0f, 1.0f, (size_t)out->count, where);
    double stretch = (double)out->total / (double)out->count;
    for (int64_t i = 0; i < out->count; i++) {
        double row = floor(((double)i + (double)where[i]) * stretch);
        out->rows[i] = row < (double)out->total ? (int64_t)row : out->total - 1;
    }
    out->rows[0] = 0;
    out->rows[out->count - 1] = out->total - 1;
    free(where);
    return CLI_OK;
}

int cli_sample_choose(const cli_session *s, const cli_facts *facts, const cli_tensors *inputs, cli_sample *out)
{
    *out = (cli_sample){.total = inputs->count && inputs->at[0].rank ? inputs->at[0].extents[0] : 1};
    bool *has_rows = calloc(inputs->count + 1, sizeof *has_rows);
    if (!has_rows)
        return cli_fail("no memory for the rows to check");
    out->independent = lf_model_rows_independent(s->model, has_rows) && find_row_dim(s, has_rows, &out->dim);
    free(has_rows);
    if (out->independent)
        out->total = s->dims[out->dim];
    out->count = out->total;

    double share = fmin(QUICK_FLOPS / fmax(facts->plain_flops, 1), QUICK_BYTES / fmax(facts->plain_bytes, 1));
    double rows = fmax(floor(share * (double)out->total), FEWEST_ROWS);
    if (share >= 1 || !out->independent || rows >= (double)out->total)
        return CLI_OK;
    out->count = (int64_t)rows;
    return draw_rows(s, out);
}

/* ---- the meaning there ---- */

/* The chosen rows of an input, in new memory. NULL where there is none. */
static void *gather(const cli_sample *sample, const cli_tensor *t)
{
    size_t row = t->count / (size_t)sample->total * cli_element_bytes(t->dtype);
    char *out = cli_alloc((size_t)sample->count, row, "the rows to check");
    for (int64_t i = 0; i < sample->count && out; i++)
        memcpy(out + (size_t)i * row, (const char *)t->data + (size_t)sample->rows[i] * row, row);
    return out;
}

/* Memory for the outputs at the sample's extents, which dims holds. */
static int make_outputs(const cli_session *s, const int64_t *dims, cli_sample *sample)
{
    size_t outputs = lf_model_port_count(s->model, LF_PORT_OUTPUT);
    sample->outputs = calloc(outputs + 1, sizeof *sample->outputs);
    if (!sample->outputs)
        return cli_fail("no memory for the reference in double precision");
    sample->output_count = outputs;
    for (size_t i = 0; i < outputs; i++) {
        size_t count = 1;
        for (int axis = 0; axis < lf_model_port_rank(s->model, LF_PORT_OUTPUT, i); axis++)
            count *= (size_t)lf_model_port_extent(s->model, LF_PORT_OUTPUT, i, axis, dims);
        sample->outputs[i] = cli_alloc(count, sizeof(double), "the reference in double precision");
        if (!sample->outputs[i])
            return CLI_BAD;
    }
    return CLI_OK;
}

typedef struct arguments {
    lf_tensor *inputs, *params;
    int64_t (*extents)[LF_MAX_RANK]; /* per input */
    void **gathered;                 /* per input, NULL where the input is taken whole */
    int64_t *dims;
} arguments;

static int eval(const cli_session *s, const lf_program *program, const cli_tensors *inputs, cli_sample *sample,
                arguments *a)
{
    if (!a->inputs || !a->params || !a->extents || !a->gathered || !a->dims)
        return cli_fail("no memory for the reference in double precision");
    memcpy(a->dims, s->dims, s->dim_count * sizeof *a->dims);
    if (sample->rows)
        a->dims[sample->dim] = sample->count;
    for (size_t i = 0; i < inputs->count; i++) {
        const cli_tensor *t = &inputs->at[i];
        bool rows = sample->rows && t->rank > 0 && cli_dim_follows(s, LF_PORT_INPUT, i, 0, sample->dim) > 0;
        a->gathered[i] = rows ? gather(sample, t) : NULL;
        if (rows && !a->gathered[i])
            return CLI_BAD;
        a->inputs[i] = cli_tensor_as(t);
        if (!rows)
            continue;
        a->inputs[i].data = a->gathered[i];
        a->inputs[i].extents = memcpy(a->extents[i], t->extents, sizeof t->extents);
        a->extents[i][0] = sample->count;
    }
    for (size_t i = 0; i < lf_model_port_count(s->model, LF_PORT_PARAM); i++)
        a->params[i] = lf_program_param(program, lf_model_port_name(s->model, LF_PORT_PARAM, i));
    int code = make_outputs(s, a->dims, sample);
    if (code != CLI_OK)
        return code;
    lf_status status = lf_model_eval(s->model, a->inputs, a->params, sample->outputs);
    return status == LF_OK ? CLI_OK : cli_fail_status(status, lf_model_message(s->model));
}

int cli_sample_eval(const cli_session *s, const lf_program *program, const cli_tensors *inputs, cli_sample *sample)
{
    arguments a = {
        .inputs = calloc(inputs->count + 1, sizeof *a.inputs),
        .params = calloc(lf_model_port_count(s->model, LF_PORT_PARAM) + 1, sizeof *a.params),
        .extents = calloc(inputs->count + 1, sizeof *a.extents),
        .gathered = calloc(inputs->count + 1, sizeof *a.gathered),
        .dims = calloc(s->dim_count + 1, sizeof *a.dims),
    };
    int code = eval(s, program, inputs, sample, &a);
    for (size_t i = 0; i < inputs->count && a.gathered; i++)
        free(a.gathered[i]);
    free(a.gathered);
    free(a.extents);
    free(a.inputs);
    free(a.params);
    free(a.dims);
    return code;
}

void cli_sample_free(cli_sample *sample)
{
    for (size_t i = 0; i < sample->output_count; i++)
        free(sample->outputs[i]);
    free(sample->outputs);
    free(sample->rows);
    *sample = (cli_sample){0};
}
