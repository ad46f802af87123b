/* SPDX-License-Identifier: Apache-2.0 */
/* A program's choice of shapes: remembered while it lives, measured where that is wanted, and kept under the user's
 * cache for programs to come. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cache.h"
#include "base/median.h"
#include "base/rng.h"
#include "base/str.h"
#include "cuda/compile.h"
#include "cuda/device.h"

enum { MOST_ENTRY = 4096, FEWEST_ROUNDS = 5, MOST_ROUNDS = 25 };
static const double ALL_ROUNDS = 0.15; /* seconds */
/* of an entry's file; of the last byte of what is remembered */
enum { FORMAT = 1, KNOWN = 0x80, MEASURED = 0x40, SHAPE = 0x3f };

/* ---- under the user's cache: a file for each program and extents, of what it is about, microseconds of shapes and a
 * checksum ---- */

static uint64_t hash(const char *text)
{
    lf_rng r = lf_rng_seed(FORMAT, text);
    return lf_rng_u64(&r);
}

/* What the program's text would be for one shape: all its kernels change with it. 0: no memory for that. */
static uint64_t hash_of_program(const lf_cuda_program *p)
{
    lf_cuda_target target = p->target;
    lf_cuda_source source;
    target.shape = LF_TILE_PAIRS;
    target.aligned = true;
    lf_status status = lf_cuda_emit(p->plan, p->as_written ? p->as_written->plan : NULL, target, &source, NULL);
    char *code = status == LF_OK ? lf_cuda_code(source.text) : NULL;
    const uint64_t found = code ? hash(code) : 0;
    free(code);
    lf_cuda_source_free(&source);
    return found;
}

/* The lines an entry begins with, and its name. */
static bool entry_head(lf_cuda_program *p, const int64_t *dims, lf_str *head, char *name, size_t size)
{
    pthread_mutex_lock(&p->compiling);
    if (p->text_hash == 0)
        p->text_hash = hash_of_program(p);
    pthread_mutex_unlock(&p->compiling);
    lf_str_addf(head, "linfuse tune %d\n%s, %d units\nprogram %016llx at", FORMAT, p->device->name, p->device->units,
                (unsigned long long)p->text_hash);
    for (int i = 0; i < p->plan->graph->symbols; i++)
        lf_str_addf(head, " %lld", (long long)dims[i]);
    lf_str_add(head, "\n");
    if (head->failed || p->text_hash == 0)
        return false;
    snprintf(name, size, "tune-%016llx.txt", (unsigned long long)hash(head->text));
    return true;
}

/* "pairs 540.1\n" and so on, up to "sum ..."; false where anything else stands there. */
static bool read_times(char *text, double *measured)
{
    char *end, *sum = strstr(text, "sum ");
    for (char *line = text; sum && line < sum; line = end + 1) {
        lf_tile_shape shape;
        char *space = strchr(line, ' ');
        if (!space || space > sum)
            return false;
        *space = '\0';
        if (!lf_tile_find(line, &shape))
            return false;
        measured[shape] = strtod(space + 1, &end);
        if (*end != '\n' || !(measured[shape] > 0))
            return false;
    }
    return sum != NULL;
}

static bool load_times(lf_cuda_program *p, const int64_t *dims, double *measured)
{
    char name[40], *text = NULL;
    size_t length;
    lf_str head = {0};
    bool good = entry_head(p, dims, &head, name, sizeof name) && lf_cache_read(name, MOST_ENTRY, &text, &length);
    if (good) {
        text[length] = '\0'; /* there is room for it */
        char *sum = strstr(text, "sum ");
        good = sum && length > head.length && memcmp(text, head.text, head.length) == 0;
        const unsigned long long said = good ? strtoull(sum + 4, NULL, 16) : 0;
        if (good) {
            const char was = *sum;
            *sum = '\0';
            good = said == hash(text);
            *sum = was;
        }
        good = good && read_times(text + head.length, measured);
    }
    free(text);
    lf_str_free(&head);
    return good;
}

static void save_times(lf_cuda_program *p, const int64_t *dims, const double *measured)
{
    char name[40];
    lf_str entry = {0};
    if (entry_head(p, dims, &entry, name, sizeof name)) {
        for (int s = 0; s < LF_TILE_SHAPES; s++)
            if (measured[s] > 0)
                lf_str_addf(&entry, "%s %.3f\n", lf_tile_table[s].name, measured[s]);
        lf_str_addf(&entry, "sum %016llx\n", entry.failed ? 0 : (unsigned long long)hash(entry.text));
        if (!entry.failed)
            lf_cache_write(name, entry.text, entry.length);
    }
    lf_str_free(&entry);
}

/* The fastest of those that can serve; LF_TILE_SHAPES where none was measured. */
static lf_tile_shape fastest(const lf_cuda_program *p, const int64_t *dims, const double *measured)
{
    int best = LF_TILE_SHAPES;
    for (int s = 0; s < LF_TILE_SHAPES; s++)
        if (measured[s] > 0 && lf_cuda_serves(p->plan, p->target, (lf_tile_shape)s, dims) &&
            (best == LF_TILE_SHAPES || measured[s] < measured[best]))
            best = s;
    return (lf_tile_shape)best;
}

/* ---- while the program lives ---- */

/* The extents mixed, all but the last byte; two that meet cost time and nothing else. */
static uint64_t mixed(const lf_cuda_program *p, const int64_t *dims)
{
    uint64_t h = 0x9e3779b97f4a7c15u;
    for (int i = 0; i < p->plan->graph->symbols; i++) {
        h = (h ^ (uint64_t)dims[i]) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    return h & ~(uint64_t)0xff;
}

static _Atomic(uint64_t) *place_of(lf_cuda_program *p, uint64_t mix)
{
    return &p->chosen[mix >> 8 & (LF_CUDA_CHOSEN - 1)];
}

static void remember(lf_cuda_program *p, const int64_t *dims, lf_tile_shape shape, bool measured)
{
    const uint64_t mix = mixed(p, dims);
    *place_of(p, mix) = mix | KNOWN | (measured ? MEASURED : 0) | (uint64_t)shape;
}

lf_tile_choice lf_cuda_program_choice(lf_cuda_program *p, const int64_t *dims)
{
    lf_device device;
    lf_cuda_device_costs(p->device, p->target.unit, &device);
    lf_tile_choice choice = lf_cuda_choose(p->plan, p->target, &device, dims);
    if (!lf_cuda_on_tensor_cores(p->plan, p->target))
        return choice;
    const bool known = load_times(p, dims, choice.measured);
    const lf_tile_shape best = known ? fastest(p, dims, choice.measured) : LF_TILE_SHAPES;
    if (p->told != LF_TILE_SHAPES && lf_cuda_serves(p->plan, p->target, p->told, dims)) {
        choice.shape = p->told;
        choice.how = LF_TILE_AS_TOLD;
    } else if (best != LF_TILE_SHAPES) {
        choice.shape = best;
        choice.how = LF_TILE_BY_MEASURE;
    }
    return choice;
}

lf_tile_shape lf_cuda_shape_for(lf_cuda_program *p, const int64_t *dims, bool *measured)
{
    const uint64_t mix = mixed(p, dims), found = *place_of(p, mix);
    lf_tile_shape shape = (lf_tile_shape)(found & SHAPE);
    if ((found & KNOWN) && (found & ~(uint64_t)0xff) == mix && lf_cuda_serves(p->plan, p->target, shape, dims)) {
        *measured = found & MEASURED;
        return shape;
    }
    const lf_tile_choice choice = lf_cuda_program_choice(p, dims);
    *measured = choice.how != LF_TILE_BY_COST;
    remember(p, dims, choice.shape, *measured);
    return choice.shape;
}

/* ---- measuring ---- */

typedef struct candidates {
    const lf_cuda_kernel *kernel[LF_TILE_SHAPES]; /* NULL: it does not take part */
    double seconds[LF_TILE_SHAPES][MOST_ROUNDS];
    int count;
} candidates;

/* Whoever cannot be compiled, or wants more memory than there is, does not take part. */
static void find_candidates(lf_cuda_program *p, lf_cuda_call *call, const lf_cuda_job *job, bool aligned, candidates *c)
{
    lf_diag ignored;
    for (int s = 0; s < LF_TILE_SHAPES; s++) {
        const lf_cuda_kernel *kernel;
        if (!lf_cuda_serves(p->plan, p->target, (lf_tile_shape)s, job->dims) ||
            lf_cuda_kernel_of(p, (lf_tile_shape)s, aligned, &kernel, &ignored) != LF_OK ||
            lf_cuda_call_reserve(call, kernel, job, &ignored) != LF_OK)
            continue;
        c->kernel[s] = kernel;
        c->count++;
    }
}

void lf_cuda_tune_workspace(lf_cuda_program *p, const int64_t *dims, int64_t *bytes)
{
    lf_diag ignored;
    bool known;
    lf_cuda_shape_for(p, dims, &known);
    for (int s = 0; s < LF_TILE_SHAPES && !known; s++) {
        const lf_cuda_kernel *kernel;
        int64_t wanted;
        if (lf_cuda_serves(p->plan, p->target, (lf_tile_shape)s, dims) &&
            lf_cuda_kernel_of(p, (lf_tile_shape)s, true, &kernel, &ignored) == LF_OK &&
            lf_cuda_kernel_workspace(kernel, dims, &wanted, &ignored) == LF_OK && wanted > *bytes)
            *bytes = wanted;
    }
}

/* One run of each in turn, so that whatever else the device does falls on all of them. */
static lf_status take_turns(lf_cuda_call *call, const lf_cuda_job *job, candidates *c, int rounds, lf_diag *diag)
{
    lf_status status = LF_OK;
    for (int round = 0; round < rounds; round++)
        for (int s = 0; s < LF_TILE_SHAPES && status == LF_OK; s++)
            if (c->kernel[s])
                status = lf_cuda_call_time_kernel(call, c->kernel[s], job, 1, &c->seconds[s][round], diag);
    return status;
}

static lf_status measure(lf_cuda_call *call, const lf_cuda_job *job, candidates *c, double *measured, lf_diag *diag)
{
    double all = 1e-9;
    lf_status status = lf_cuda_call_bring(call, job, diag);
    for (int warm = 0; warm < 2 && status == LF_OK; warm++)
        status = take_turns(call, job, c, 1, diag);
    for (int s = 0; s < LF_TILE_SHAPES; s++)
        all += c->seconds[s][0];
    const int rounds = (int)fmin(fmax(ALL_ROUNDS / all, FEWEST_ROUNDS), MOST_ROUNDS);
    if (status == LF_OK)
        status = take_turns(call, job, c, rounds, diag);
    for (int s = 0; s < LF_TILE_SHAPES && status == LF_OK; s++)
        if (c->kernel[s])
            measured[s] = 1e6 * lf_median(c->seconds[s], (size_t)rounds);
    return status;
}

bool lf_cuda_tune(lf_cuda_program *p, lf_cuda_call *call, const lf_cuda_job *job, bool aligned)
{
    candidates c = {.count = 0};
    double measured[LF_TILE_SHAPES] = {0};
    lf_diag ignored;
    bool known;
    int captures = 0;
    lf_cuda_shape_for(p, job->dims, &known);
    if (known || !lf_cuda_on_tensor_cores(p->plan, p->target))
        return true;
    /* what is captured does not run: there is nothing to measure */
    if (p->device->driver->stream_captures(job->stream, &captures) != 0 || captures)
        return false;
    find_candidates(p, call, job, aligned, &c);
    const bool good = c.count > 1 && measure(call, job, &c, measured, &ignored) == LF_OK;
    lf_cuda_call_stop_timing(call);
    if (good) {
        remember(p, job->dims, fastest(p, job->dims, measured), true);
        save_times(p, job->dims, measured);
    }
    return true;
}
