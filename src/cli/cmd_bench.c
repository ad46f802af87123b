/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/busy.h"
#include "cli/commands.h"
#include "cli/report.h"
#include "cli/tensor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FEWEST = 3, MOST = 100, GPU_RUNS = 30 }; /* runs of each, where not told */
static const double GPU_STEADY_SECONDS = 0.3;
static const double SECONDS_OF_EACH = 2.0; /* likewise */
static const double BUSY = 0.1;            /* share of the CPUs from which on other programs disturb what is timed */

/* Fused and op by op, side by side. */
typedef struct contest {
    lf_program *program[2];
    lf_call *call[2];
    cli_tensors inputs, outputs[2];
    double *seconds[2]; /* of each run, sorted at the end */
    int64_t runs;
    double compile, prepare; /* seconds, of the fused program */
    double others;           /* the share of the CPUs that other programs used meanwhile; negative: not known */
    double steady;           /* cuda: the fused program's median in a long row of runs; 0 elsewhere */
    cli_facts facts[2];
} contest;

enum { FUSED, PLAIN };

static void contest_end(contest *c)
{
    for (int i = 0; i < 2; i++) {
        lf_call_free(c->call[i]);
        lf_program_free(c->program[i]);
        cli_tensors_free(&c->outputs[i]);
        free(c->seconds[i]);
    }
    cli_tensors_free(&c->inputs);
}

static int make_programs(cli_session *s, contest *c)
{
    int code = cli_tensors_inputs(s, &c->inputs);
    double start = cli_now();
    if (code == CLI_OK)
        code = cli_program_new(s, true, &c->program[FUSED]);
    c->compile = cli_now() - start;
    if (code == CLI_OK)
        code = cli_program_new(s, false, &c->program[PLAIN]);
    if (code == CLI_OK)
        code = cli_program_facts(s, c->program[FUSED], &c->facts[FUSED]);
    if (code == CLI_OK)
        code = cli_program_facts(s, c->program[PLAIN], &c->facts[PLAIN]);
    if (code == CLI_OK)
        code = cli_program_params(s, c->program[FUSED]);
    if (code == CLI_OK)
        code = cli_program_params_from(s, c->program[PLAIN], c->program[FUSED]);
    if (code == CLI_OK)
        code = cli_tensors_draw(s, &c->inputs);
    start = cli_now();
    if (code == CLI_OK)
        code = cli_program_prepare(c->program[FUSED]);
    c->prepare = cli_now() - start;
    return code == CLI_OK ? cli_program_prepare(c->program[PLAIN]) : code;
}

/* The first run of each makes its workspace and says about how long the others will take. */
static int warm_up(cli_session *s, contest *c, const char *device)
{
    double slowest = 1e-9;
    int code = CLI_OK;
    for (int i = 0; i < 2 && code == CLI_OK; i++) {
        double seconds = 0;
        code = cli_call_new(s, c->program[i], &c->inputs, &c->outputs[i], &c->call[i]);
        if (code == CLI_OK)
            code = cli_call_run(c->call[i], &seconds);
        slowest = fmax(slowest, seconds);
    }
    c->runs = s->options->runs;
    if (c->runs == 0 && strcmp(device, "cuda") == 0)
        c->runs = GPU_RUNS;
    if (c->runs == 0)
        c->runs = (int64_t)fmin(fmax(SECONDS_OF_EACH / slowest, FEWEST), MOST);
    for (int i = 0; i < 2 && code == CLI_OK; i++) {
        c->seconds[i] = cli_alloc((size_t)c->runs, sizeof(double), "the times of so many runs");
        code = c->seconds[i] ? CLI_OK : CLI_BAD;
    }
    return code;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Turn by turn, so that whatever else the machine does falls on both. */
static int take_turns(contest *c)
{
    int code = CLI_OK;
    for (int64_t run = 0; run < c->runs && code == CLI_OK; run++)
        for (int i = 0; i < 2 && code == CLI_OK; i++)
            code = cli_call_run(c->call[i], &c->seconds[i][run]);
    for (int i = 0; i < 2 && code == CLI_OK; i++)
        qsort(c->seconds[i], (size_t)c->runs, sizeof(double), by_value);
    return code;
}

static double median_of(const double *sorted, int64_t count)
{
    return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

static double median(const contest *c, int which)
{
    return median_of(c->seconds[which], c->runs);
}

/* ---- on a GPU, by its own clock ---- */

static int gpu_times(lf_call *call, int64_t runs, double *seconds)
{
    const struct timespec rest = {.tv_nsec = 300000000}; /* a GPU that was at its power limit is slower for a while */
    nanosleep(&rest, NULL);
    lf_status status = lf_call_time(call, NULL, (size_t)runs, seconds);
    return status == LF_OK ? CLI_OK : cli_fail_status(status, lf_call_message(call));
}

/* Burst: some runs after a rest, of each. Steady: so many of the fused program that the GPU meets its power limit. */
static int gpu_turns(contest *c)
{
    int code = CLI_OK;
    for (int i = 0; i < 2 && code == CLI_OK; i++) {
        code = gpu_times(c->call[i], c->runs, c->seconds[i]);
        qsort(c->seconds[i], (size_t)c->runs, sizeof(double), by_value);
    }
    const double total = code == CLI_OK ? GPU_STEADY_SECONDS / fmax(median(c, FUSED), 1e-6) : 0;
    const int64_t runs = (int64_t)fmin(fmax(total, MOST), 100 * MOST);
    double *long_row = code == CLI_OK ? cli_alloc((size_t)runs, sizeof(double), "the times of so many runs") : NULL;
    if (!long_row)
        return code == CLI_OK ? CLI_BAD : code;
    code = gpu_times(c->call[FUSED], runs, long_row);
    qsort(long_row + runs / 2, (size_t)(runs - runs / 2), sizeof(double), by_value);
    c->steady = median_of(long_row + runs / 2, runs - runs / 2);
    free(long_row);
    return code;
}

/* ---- what came out ---- */

static json_t *dims_json(const cli_session *s)
{
    json_t *dims = json_object();
    for (size_t i = 0; i < s->dim_count; i++)
        json_object_set_new(dims, lf_model_dim_name(s->model, i), json_integer(s->dims[i]));
    return dims;
}

static int print_json(const cli_session *s, const contest *c, const char *device, double peak)
{
    double fused = median(c, FUSED), plain = median(c, PLAIN);
    json_t *object = json_pack(
        "{s:s, s:o, s:i, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "device", device, "dims",
        dims_json(s), "threads", lf_context_threads(s->context), "runs", (json_int_t)c->runs, "fused_ms",
        cli_json_number(fused * 1e3), "plain_ms", cli_json_number(plain * 1e3), "ratio", cli_json_number(plain / fused),
        "fused_min_ms", cli_json_number(c->seconds[FUSED][0] * 1e3), "plain_min_ms",
        cli_json_number(c->seconds[PLAIN][0] * 1e3), "gflops",
        cli_json_number(c->facts[FUSED].plain_flops / fused / 1e9),
        "peak_gflops", cli_json_number(peak / 1e9), "prepare_ms", cli_json_number(c->prepare * 1e3), "compile_ms",
        cli_json_number(c->compile * 1e3), "predicted_fused_ms", cli_json_number(c->facts[FUSED].fused_us / 1e3),
        "predicted_plain_ms", cli_json_number(c->facts[PLAIN].fused_us / 1e3));
    if (object && c->others >= 0)
        json_object_set_new(object, "others_share_of_cpus", cli_json_number(c->others));
    if (object && c->steady > 0)
        json_object_set_new(object, "steady_ms", cli_json_number(c->steady * 1e3));
    return cli_json_print(object);
}

/* Do the middle halves of both sides' runs overlap? Times are in order. */
static bool is_within_noise(const contest *c)
{
    const int64_t quarter = c->runs / 4, three = c->runs - 1 - quarter;
    return c->seconds[FUSED][quarter] <= c->seconds[PLAIN][three] &&
           c->seconds[PLAIN][quarter] <= c->seconds[FUSED][three];
}

static void add_row(cli_table *table, const char *name, const contest *c, int which)
{
    cli_text t;
    cli_table_add(table, name);
    cli_table_add(table, cli_seconds(&t, median(c, which)));
    cli_table_add(table, cli_seconds(&t, c->seconds[which][0]));
    cli_table_add(table, cli_seconds(&t, c->seconds[which][c->runs - 1]));
    cli_table_add(table, cli_seconds(&t, c->facts[which].fused_us * 1e-6));
    cli_table_add(table, cli_number(&t, "%.1f", c->facts[FUSED].plain_flops / median(c, which) / 1e9));
}

static int print_text(const cli_session *s, const contest *c, const char *device, double peak)
{
    static const char *const heads[] = {"", "median", "fastest", "slowest", "predicted", "GFLOP/s"};
    cli_table table = {.columns = 6, .align = "lrrrrr"};
    cli_text t, u;
    const bool busy = c->others > BUSY;
    double fused = busy ? c->seconds[FUSED][0] : median(c, FUSED);
    double plain = busy ? c->seconds[PLAIN][0] : median(c, PLAIN);
    cli_session_print(s, device);
    printf("%lld run%s of each, taking turns, after one to warm up\n\n", (long long)c->runs, c->runs == 1 ? "" : "s");
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        cli_table_add(&table, heads[i]);
    add_row(&table, "fused", c, FUSED);
    add_row(&table, "op by op", c, PLAIN);
    int code = cli_table_print(&table);
    if (c->steady > 0)
        printf("\n"
               "These are bursts after a rest, by the GPU's clock, its cache flushed before each run; in a long row of "
               "runs the fused median is %s.\n",
               cli_seconds(&t, c->steady));
    printf("\nFused is %.2f times as fast as op by op%s%s.\n", plain / fused, busy ? " by the fastest runs" : "",
           is_within_noise(c) ? ", which is no more than the runs differ among themselves" : "");
    if (busy)
        printf("Other programs used %.0f %% of the CPUs meanwhile: medians are doubtful, the fastest runs less so.\n",
               100 * c->others);
    printf("GFLOP/s counts the model's operations as written; this device's peak is %s%s.\n",
           cli_number(&t, "%.1f", peak / 1e9),
           c->steady > 0 ? "" : " (measured once: cpu-*.json in the cache)");
    printf("Compiling took %s, preparing the parameters %s.\n", cli_seconds(&t, c->compile),
           cli_seconds(&u, c->prepare));
    return code;
}

static int bench(cli_session *s, contest *c)
{
    const char *device;
    double peak = 0, bytes = 0;
    int code = cli_session_device(s, &device);
    cli_progress_begin("preparing");
    if (code == CLI_OK)
        code = make_programs(s, c);
    if (code == CLI_OK) {
        lf_status status = lf_device_peak(s->context, device, &peak, &bytes);
        if (status != LF_OK)
            code = cli_fail_status(status, lf_context_message(s->context));
    }
    cli_progress_say("warming up");
    if (code == CLI_OK)
        code = warm_up(s, c, device);
    cli_progress_say("timing");
    const cli_work before = cli_work_now();
    if (code == CLI_OK)
        code = strcmp(device, "cuda") == 0 ? gpu_turns(c) : take_turns(c);
    c->others = cli_work_of_others(&before);
    cli_progress_end();
    if (code != CLI_OK)
        return code;
    return s->options->json ? print_json(s, c, device, peak) : print_text(s, c, device, peak);
}

int cli_bench(const cli_options *o)
{
    cli_session s;
    contest c = {.runs = 0};
    int code = cli_session_begin(o, &s);
    if (code == CLI_OK)
        code = bench(&s, &c);
    contest_end(&c);
    cli_session_end(&s);
    return code;
}
