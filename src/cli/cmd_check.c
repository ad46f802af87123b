/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands.h"
#include "cli/compare.h"
#include "cli/report.h"
#include "cli/sample.h"
#include "cli/tensor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { FUSED, PLAIN };

typedef struct trial {
    lf_program *program[2];
    lf_call *call[2];
    cli_tensors inputs, outputs[2];
    cli_facts facts;
    cli_sample sample;
    /* the verdict */
    size_t output;      /* the one that comes nearest to its limit; of it: */
    cli_error error[2];
    double limit;       /* for error[FUSED].rel */
    bool nonfinite_match, ok; /* of all */
    size_t nonfinite; /* values of the fused results */
    int64_t redone;   /* rows */
} trial;

static void trial_end(trial *t)
{
    for (int i = 0; i < 2; i++) {
        lf_call_free(t->call[i]);
        lf_program_free(t->program[i]);
        cli_tensors_free(&t->outputs[i]);
    }
    cli_tensors_free(&t->inputs);
    cli_sample_free(&t->sample);
}

/* ---- running ---- */

static int make_programs(cli_session *s, trial *t)
{
    int code = cli_tensors_inputs(s, &t->inputs);
    if (code == CLI_OK)
        code = cli_program_new(s, true, &t->program[FUSED]);
    if (code == CLI_OK)
        code = cli_program_new(s, false, &t->program[PLAIN]);
    if (code == CLI_OK)
        code = cli_program_facts(s, t->program[FUSED], &t->facts);
    if (code == CLI_OK)
        code = cli_program_params(s, t->program[FUSED]);
    if (code == CLI_OK)
        code = cli_program_params_from(s, t->program[PLAIN], t->program[FUSED]);
    if (code == CLI_OK)
        code = cli_tensors_draw(s, &t->inputs);
    return code;
}

static int run_both(cli_session *s, trial *t)
{
    int code = CLI_OK;
    for (int i = 0; i < 2 && code == CLI_OK; i++) {
        code = cli_program_prepare(t->program[i]);
        if (code == CLI_OK)
            code = cli_call_new(s, t->program[i], &t->inputs, &t->outputs[i], &t->call[i]);
        if (code == CLI_OK)
            code = cli_call_run(t->call[i], NULL);
    }
    if (code == CLI_OK)
        t->redone = lf_call_rows_redone(t->call[FUSED]);
    return code;
}

/* ---- judging ---- */

/* Where row i of the sample begins in an output of all rows. */
static size_t row_start(const cli_sample *sample, int64_t i, size_t row)
{
    return (size_t)(sample->rows ? sample->rows[i] : i) * row;
}

/* The largest extent of anything that goes in: no sum over features has more terms, since the outputs of a product are
 * an extent of its weight; nor has one over the batch. Rows that do not see each other are not summed over. */
static double longest_sum(const cli_session *s, const cli_sample *sample)
{
    static const lf_port ports[] = {LF_PORT_INPUT, LF_PORT_PARAM};
    double longest = 1;
    for (size_t p = 0; p < 2; p++)
        for (size_t i = 0; i < lf_model_port_count(s->model, ports[p]); i++)
            for (int axis = 0; axis < lf_model_port_rank(s->model, ports[p], i); axis++)
                if (!sample->independent || cli_dim_follows(s, ports[p], i, axis, sample->dim) == 0)
                    longest = fmax(longest, (double)lf_model_port_extent(s->model, ports[p], i, axis, s->dims));
    return longest;
}

/* An output of both, and what it should be. Taken whole, an output is one long row: not every model's outputs have as
 * many rows as its inputs. */
typedef struct compared {
    const cli_sample *sample;
    const float *y[2];
    cli_reference ref;
    int64_t rows;
    size_t row; /* elements of one */
} compared;

/* y: of all rows; NULL: the reference at its nearest. */
static cli_error error_of(const compared *c, const float *y)
{
    cli_error_sum sum = {.count = 0};
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; i < c->rows; i++) {
            const size_t at = (size_t)i * c->row;
            const cli_reference ref = {c->ref.exact + at, c->ref.nearest + at};
            (pass == 0 ? cli_error_scale : cli_error_add)(&sum, y ? y + row_start(c->sample, i, c->row) : ref.nearest,
                                                          ref, c->row);
        }
    return cli_error_of(&sum);
}

/* Is any port of a type shorter than f32? */
static bool has_short_types(const cli_session *s)
{
    static const lf_port ports[] = {LF_PORT_INPUT, LF_PORT_PARAM, LF_PORT_OUTPUT};
    for (size_t p = 0; p < 3; p++)
        for (size_t i = 0; i < lf_model_port_count(s->model, ports[p]); i++)
            if (cli_element_bytes(lf_model_port_dtype(s->model, ports[p], i)) < sizeof(float))
                return true;
    return false;
}

/* How many of an output's values have errors of their own, at least. Those of a row may share a statistic's error; rows
 * that do not see each other share none; where they do, what is shared may be shared along any axis. */
static int64_t draws(const cli_sample *sample, const cli_tensor *y)
{
    int64_t shortest = 1;
    for (int axis = 0; axis < y->rank; axis++)
        if (y->extents[axis] > 1 && (shortest == 1 || y->extents[axis] < shortest))
            shortest = y->extents[axis];
    return sample->independent ? sample->count : shortest;
}

static void judge_output(const cli_session *s, trial *t, size_t output, const compared *c)
{
    const lf_dtype type = t->outputs[FUSED].at[output].dtype;
    const cli_error error[2] = {error_of(c, c->y[FUSED]), error_of(c, c->y[PLAIN])};
    const cli_error_source source = {
        .ops = t->facts.ops,
        .longest = longest_sum(s, c->sample),
        .product_unit = lf_precision_unit(s->options->precision ? s->options->precision : "fp32"),
        .plain_rel = error[PLAIN].rel,
        .chance = cli_error_chance(has_short_types(s) ? draws(c->sample, &t->outputs[FUSED].at[output]) : 1),
        .stored_rel = type == LF_F32 ? 0 : error_of(c, NULL).rel,
    };
    const double limit = cli_error_limit(&source);
    t->ok = t->ok && error[FUSED].rel <= limit;
    if (output == 0 || error[FUSED].rel * t->limit > t->error[FUSED].rel * limit) {
        t->output = output;
        t->error[FUSED] = error[FUSED];
        t->error[PLAIN] = error[PLAIN];
        t->limit = limit;
    }
    for (int64_t i = 0; i < c->rows; i++) {
        const size_t at = row_start(c->sample, i, c->row), there = (size_t)i * c->row;
        const cli_reference ref = {c->ref.exact + there, c->ref.nearest + there};
        if (!cli_nonfinite_match(c->y[FUSED] + at, c->y[PLAIN] + at, ref, c->row, &t->nonfinite))
            t->nonfinite_match = false;
    }
}

/* The reference as the type holds it; NULL, with a line said, where there is no memory. */
static float *nearest_of(const double *exact, size_t count, lf_dtype type)
{
    float *out = cli_alloc(count, sizeof *out, "the reference");
    void *bits = out ? cli_alloc(count, cli_element_bytes(type), "the reference") : NULL;
    if (!bits) {
        free(out);
        return NULL;
    }
    for (size_t i = 0; i < count; i++)
        out[i] = (float)exact[i];
    lf_convert(LF_F32, out, type, bits, count);
    lf_convert(type, bits, LF_F32, out, count);
    free(bits);
    return out;
}

static int compare_output(const cli_session *s, trial *t, size_t output)
{
    const cli_sample *sample = &t->sample;
    const cli_tensor *y = &t->outputs[FUSED].at[output];
    compared c = {.sample = sample,
                  .rows = sample->rows ? sample->count : 1,
                  .row = sample->rows ? y->count / (size_t)sample->total : y->count,
                  .ref.exact = sample->outputs[output]};
    float *own[2] = {NULL, NULL}, *nearest = nearest_of(c.ref.exact, (size_t)c.rows * c.row, y->dtype);
    bool there = nearest;
    for (int which = 0; which < 2 && there; which++) {
        c.y[which] = cli_tensor_floats(&t->outputs[which].at[output], &own[which]);
        there = c.y[which];
    }
    c.ref.nearest = nearest;
    if (there)
        judge_output(s, t, output, &c);
    free(own[FUSED]);
    free(own[PLAIN]);
    free(nearest);
    return there ? CLI_OK : CLI_BAD;
}

static int judge(const cli_session *s, trial *t)
{
    int code = CLI_OK;
    t->ok = t->nonfinite_match = true;
    for (size_t i = 0; i < t->outputs[FUSED].count && code == CLI_OK; i++)
        code = compare_output(s, t, i);
    t->ok = t->ok && t->nonfinite_match;
    return code;
}

/* ---- what came out ---- */

static json_t *error_json(const cli_error *e)
{
    return json_pack("{s:o, s:o}", "rel", cli_json_number(e->rel), "max", cli_json_number(e->max));
}

static int print_json(const trial *t)
{
    return cli_json_print(json_pack(
        "{s:b, s:s, s:o, s:o, s:o, s:I, s:I, s:b, s:I, s:I}", "ok", t->ok, "output",
        t->outputs[FUSED].at[t->output].name, "error", error_json(&t->error[FUSED]), "plain_error",
        error_json(&t->error[PLAIN]), "allowed_rel", cli_json_number(t->limit), "rows_checked",
        (json_int_t)t->sample.count, "rows", (json_int_t)t->sample.total, "nonfinite_match", t->nonfinite_match,
        "nonfinite", (json_int_t)t->nonfinite, "rows_redone", (json_int_t)t->redone));
}

static void add_row(cli_table *table, const char *name, double rel, double max)
{
    cli_text text;
    cli_table_add(table, name);
    cli_table_add(table, cli_number(&text, "%.2e", rel));
    cli_table_add(table, cli_number(&text, "%.2e", max));
}

static int print_text(const cli_session *s, const trial *t, const char *device)
{
    cli_table table = {.columns = 3, .align = "lrr"};
    const cli_sample *sample = &t->sample;
    cli_session_print(s, device);
    if (sample->rows)
        printf("Compared with double precision on %lld of %lld rows, chosen at random (all would take long).\n\n",
               (long long)sample->count, (long long)sample->total);
    else
        printf("Compared with double precision on all %lld rows%s.\n\n", (long long)sample->total,
               sample->independent ? "" : " (they depend on each other, or are fixed in number)");
    cli_table_add(&table, "");
    cli_table_add(&table, "relative error");
    cli_table_add(&table, "largest error");
    add_row(&table, "fused", t->error[FUSED].rel, t->error[FUSED].max);
    add_row(&table, "op by op", t->error[PLAIN].rel, t->error[PLAIN].max);
    add_row(&table, "allowed", t->limit, NAN);
    int code = cli_table_print(&table);
    putchar('\n');
    if (t->outputs[FUSED].count > 1)
        printf("Of %zu outputs, these are the errors of %s, which comes nearest to what is allowed.\n",
               t->outputs[FUSED].count, t->outputs[FUSED].at[t->output].name);
    if (!t->nonfinite_match)
        puts("NaN or infinity is not where it belongs.");
    else if (t->nonfinite)
        printf("NaN and infinity (%zu values) are where they belong.\n", t->nonfinite);
    if (t->redone)
        printf("%lld row%s redone as written, where a guarded rewrite met a number that is not finite.\n",
               (long long)t->redone, t->redone == 1 ? " was" : "s were");
    puts(t->ok ? "ok" : "NOT ok: the fused result is not what the model means");
    return code;
}

static int check(cli_session *s, trial *t)
{
    const char *device;
    int code = cli_session_device(s, &device);
    cli_progress_begin("preparing");
    if (code == CLI_OK)
        code = make_programs(s, t);
    cli_progress_say("running fused and op by op");
    if (code == CLI_OK)
        code = run_both(s, t);
    cli_progress_say("computing in double precision");
    if (code == CLI_OK)
        code = cli_sample_choose(s, &t->facts, &t->inputs, &t->sample);
    if (code == CLI_OK)
        code = cli_sample_eval(s, t->program[FUSED], &t->inputs, &t->sample);
    cli_progress_end();
    if (code != CLI_OK)
        return code;
    code = judge(s, t);
    if (code != CLI_OK)
        return code;
    code = s->options->json ? print_json(t) : print_text(s, t, device);
    return code == CLI_OK && !t->ok ? CLI_NOT_OK : code;
}

int cli_check(const cli_options *o)
{
    cli_session s;
    trial t = {.ok = false};
    int code = cli_session_begin(o, &s);
    if (code == CLI_OK)
        code = check(&s, &t);
    trial_end(&t);
    cli_session_end(&s);
    return code;
}
