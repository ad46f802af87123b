/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands.h"
#include "cli/compare.h"
#include "cli/report.h"
#include "cli/sample.h"
#include "cli/tensor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { FUSED, PLAIN };

typedef struct trial {
    lf_program *program[2];
    lf_call *call[2];
    cli_tensors inputs, outputs[2];
    cli_facts facts;
    cli_sample sample;
    /* the verdict */
    cli_error error[2]; /* the worst of any output */
    double limit;       /* for error[FUSED].rel */
    bool nonfinite_match, ok;
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
        cli_tensors_draw(s, &t->inputs);
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

static void compare_output(trial *t, size_t output)
{
    const cli_sample *sample = &t->sample;
    const double *ref = sample->outputs[output];
    const float *y[2] = {t->outputs[FUSED].at[output].data, t->outputs[PLAIN].at[output].data};
    size_t count = t->outputs[FUSED].at[output].count;
    /* Taken whole, an output is one long row: not every model's outputs have as many rows as its inputs. */
    int64_t rows = sample->rows ? sample->count : 1;
    size_t row = sample->rows ? count / (size_t)sample->total : count;
    for (int which = 0; which < 2; which++) {
        cli_error_sum sum = {.count = 0};
        for (int64_t i = 0; i < rows; i++)
            cli_error_scale(&sum, y[which] + row_start(sample, i, row), ref + (size_t)i * row, row);
        for (int64_t i = 0; i < rows; i++)
            cli_error_add(&sum, y[which] + row_start(sample, i, row), ref + (size_t)i * row, row);
        cli_error error = cli_error_of(&sum);
        t->error[which].rel = fmax(t->error[which].rel, error.rel);
        t->error[which].max = fmax(t->error[which].max, error.max);
    }
    for (int64_t i = 0; i < rows; i++) {
        size_t at = row_start(sample, i, row);
        if (!cli_nonfinite_match(y[FUSED] + at, y[PLAIN] + at, ref + (size_t)i * row, row, &t->nonfinite))
            t->nonfinite_match = false;
    }
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

static void judge(const cli_session *s, trial *t)
{
    t->nonfinite_match = true;
    for (size_t i = 0; i < t->outputs[FUSED].count; i++)
        compare_output(t, i);
    t->limit = cli_error_limit(t->error[PLAIN].rel, longest_sum(s, &t->sample), t->facts.ops,
                               lf_precision_unit(s->options->precision ? s->options->precision : "fp32"));
    t->ok = t->nonfinite_match && t->error[FUSED].rel <= t->limit;
}

/* ---- what came out ---- */

static json_t *error_json(const cli_error *e)
{
    return json_pack("{s:o, s:o}", "rel", cli_json_number(e->rel), "max", cli_json_number(e->max));
}

static int print_json(const trial *t)
{
    return cli_json_print(json_pack("{s:b, s:o, s:o, s:o, s:I, s:I, s:b, s:I, s:I}", "ok", t->ok, "error",
                                    error_json(&t->error[FUSED]), "plain_error", error_json(&t->error[PLAIN]),
                                    "allowed_rel", cli_json_number(t->limit), "rows_checked",
                                    (json_int_t)t->sample.count, "rows", (json_int_t)t->sample.total,
                                    "nonfinite_match", t->nonfinite_match, "nonfinite", (json_int_t)t->nonfinite,
                                    "rows_redone", (json_int_t)t->redone));
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
    judge(s, t);
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
