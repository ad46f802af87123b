/* SPDX-License-Identifier: Apache-2.0 */
/* This machine as the cost model sees it: measured once, then remembered. */
#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#include "base/cache.h"
#include "base/rng.h"
#include "cpu/cpu.h"
#include "cpu/measure.h"

enum { FORMAT = 4, MOST_FILE = 1 << 14 }; /* FORMAT rises when what is measured, or how, changes */

/* A build for finding mistakes is slow, and must not tell the others that the machine is. */
#if !defined(__OPTIMIZE__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define BUILD "-slow"
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define BUILD "-slow"
#endif
#endif
#ifndef BUILD
#define BUILD ""
#endif

/* ---- what the file is called, and for whom it is ---- */

typedef struct cpu_key {
    char model[96];
    const lf_kern *kern;
    int threads;
} cpu_key;

void lf_cpu_model(char *model, size_t size)
{
    char line[256];
    struct utsname name;
    FILE *file = fopen("/proc/cpuinfo", "r");
    model[0] = '\0';
    while (file && !model[0] && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon)
            snprintf(model, size, "%.*s", (int)strcspn(colon + 1 + (colon[1] == ' '), "\n"),
                     colon + 1 + (colon[1] == ' '));
    }
    if (file)
        fclose(file);
    if (!model[0])
        snprintf(model, size, "%.80s", uname(&name) == 0 ? name.machine : "unknown");
    for (char *c = model; *c; c++)
        if (!isprint((unsigned char)*c))
            *c = '?';
}

/* ---- reading and writing it ---- */

/* Rates that no machine has are damage. */
static bool plausible(double rate)
{
    return rate >= 1e2 && rate <= 1e17;
}

/* One measured number to or from a file. */
typedef bool carry_fn(json_t *root, const char *name, double *rate);

static bool take_rate(json_t *root, const char *name, double *rate)
{
    *rate = json_number_value(json_object_get(root, name));
    return plausible(*rate);
}

static bool give_rate(json_t *root, const char *name, double *rate)
{
    return json_object_set_new(root, name, json_real(*rate)) == 0;
}

static bool carry_named(json_t *root, carry_fn *carry, const char *what, const char *whose, double *rate)
{
    char name[64];
    snprintf(name, sizeof name, "%s %s", what, whose);
    return carry(root, name, rate);
}

static bool carry_monoid(json_t *root, carry_fn *carry, const lf_kern *kern, lf_monoid m, lf_tail_rates *r)
{
    const char *name = lf_monoid_row(m)->name;
    return !kern->fold[m] || (carry_named(root, carry, "fold", name, &r->fold[m]) &&
                              carry_named(root, carry, "span", name, &r->span[m]) &&
                              carry_named(root, carry, "put", name, &r->put[m]) &&
                              (!kern->window[m] || carry_named(root, carry, "window", name, &r->window[m])));
}

/* All that is measured, in either direction. False: one of them failed. */
static bool carry_rates(json_t *root, carry_fn *carry, const lf_kern *kern, lf_cpu_rates *r)
{
    bool good = carry(root, "flops", &r->flops) && carry(root, "row_flops", &r->row_flops) &&
                carry(root, "dot_flops", &r->dot_flops) && carry(root, "packed", &r->packed) &&
                carry(root, "handed", &r->handed) && carry(root, "jobs", &r->jobs) &&
                carry(root, "cache_bytes", &r->cache_bytes);
    for (int i = 0; i < LF_LEVELS && good; i++) {
        char size[16];
        snprintf(size, sizeof size, "%.0f MB", LF_LEVEL_BYTES(i) / LF_LEVEL_BYTES(0));
        good = carry_named(root, carry, "read", size, &r->read[i]) &&
               carry_named(root, carry, "written", size, &r->written[i]);
    }
    for (lf_op op = 0; op < LF_OP_COUNT && good; op++)
        good = !kern->map[op] || carry_named(root, carry, "map", lf_op_row(op)->name, &r->tail.map[op]);
    for (lf_monoid m = 0; m < LF_MONOID_COUNT && good; m++)
        good = carry_monoid(root, carry, kern, m, &r->tail);
    return good;
}

static bool parse_rates(const char *text, size_t length, const cpu_key *key, lf_cpu_rates *out)
{
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, NULL);
    const char *model = json_string_value(json_object_get(root, "cpu")),
               *isa = json_string_value(json_object_get(root, "isa"));
    bool good = model && strcmp(model, key->model) == 0 && isa && strcmp(isa, key->kern->isa) == 0 &&
                json_integer_value(json_object_get(root, "format")) == FORMAT &&
                json_integer_value(json_object_get(root, "threads")) == key->threads &&
                carry_rates(root, take_rate, key->kern, out);
    json_decref(root);
    return good;
}

static json_t *rates_json(const cpu_key *key, lf_cpu_rates *rates)
{
    json_t *root = json_pack("{s:i, s:s, s:s, s:i}", "format", FORMAT, "cpu", key->model, "isa", key->kern->isa,
                             "threads", key->threads);
    if (!root || carry_rates(root, give_rate, key->kern, rates))
        return root;
    json_decref(root);
    return NULL;
}

/* The name of the file under the user's cache: another one for all that is measured under other names, so that versions
 * with other ops leave each other's alone. False: no memory. */
static bool cache_name(const cpu_key *key, char *name, size_t size)
{
    lf_cpu_rates none = {0};
    json_t *root = rates_json(key, &none);
    char *names = root ? json_dumps(root, JSON_COMPACT) : NULL;
    if (names) {
        lf_rng hash = lf_rng_seed(FORMAT, names);
        snprintf(name, size, "cpu-%016llx-%.32s-%d" BUILD ".json", (unsigned long long)lf_rng_u64(&hash),
                 key->kern->isa, key->threads);
    }
    json_decref(root);
    free(names);
    return names != NULL;
}

static bool read_file(const cpu_key *key, char **text, size_t *length)
{
    char name[128];
    *text = NULL;
    return cache_name(key, name, sizeof name) && lf_cache_read(name, MOST_FILE, text, length);
}

static bool load_rates(const cpu_key *key, lf_cpu_rates *out)
{
    char *text;
    size_t length;
    bool good = read_file(key, &text, &length) && parse_rates(text, length, key, out);
    free(text);
    return good;
}

static bool add_moment(json_t *root)
{
    char text[32];
    const time_t now = time(NULL);
    struct tm utc;
    return gmtime_r(&now, &utc) && strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &utc) > 0 &&
           json_object_set_new(root, "measured", json_string(text)) == 0;
}

static void save_rates(const cpu_key *key, lf_cpu_rates *rates)
{
    char name[128];
    json_t *root = rates_json(key, rates);
    char *text = root && add_moment(root) ? json_dumps(root, JSON_INDENT(2)) : NULL;
    if (text && cache_name(key, name, sizeof name))
        lf_cache_write(name, text, strlen(text));
    free(text);
    json_decref(root);
}

lf_status lf_cpu_measured(int threads, lf_str *out, lf_diag *diag)
{
    cpu_key key = {.threads = threads};
    char *text;
    size_t length = 0;
    lf_status status = lf_cpu_kernels(&key.kern, diag);
    if (status != LF_OK)
        return status;
    lf_cpu_model(key.model, sizeof key.model);
    json_t *root = read_file(&key, &text, &length) ? json_loadb(text, length, 0, NULL) : NULL;
    const char *when = json_string_value(json_object_get(root, "measured"));
    if (when)
        lf_str_add(out, when);
    else
        status = lf_fail(diag, LF_ERR_DATA, "not yet with %d thread%s: explain does it, once", threads,
                         threads == 1 ? "" : "s");
    json_decref(root);
    free(text);
    return status;
}

/* ---- the device ---- */

/* A smaller set is no further away: where it seemed so, something came between. */
static void give_levels(const double *rate, double *level)
{
    for (int i = LF_LEVELS - 1; i >= 0; i--)
        level[i] = i + 1 < LF_LEVELS ? fmax(rate[i], level[i + 1]) : rate[i];
}

static void fill_cpu(const cpu_key *key, const lf_cpu_rates *r, lf_device *d)
{
    snprintf(d->title, sizeof d->title, "%s, %d thread%s, %s", key->model, key->threads, key->threads == 1 ? "" : "s",
             key->kern->isa);
    d->flops = d->product_flops = r->flops;
    d->row_flops = r->row_flops;
    d->dot_flops = r->dot_flops;
    d->cpu.handed = r->handed;
    give_levels(r->read, d->cpu.level_read);
    give_levels(r->written, d->cpu.level_written);
    d->bytes = d->cpu.level_read[LF_LEVELS - 1];
    d->write_bytes = d->cpu.level_written[LF_LEVELS - 1];
    d->cache_rate = d->cpu.level_read[0];
    d->cache_bytes = r->cache_bytes;
    d->cpu.tail = r->tail;
    d->x_bytes = d->bytes / r->packed; /* as long as packing takes */
    d->wait_us = d->cpu.wake_us = key->threads > 1 ? 1e6 / r->jobs : 0;
    d->cpu.threads = key->threads;
    d->tile_rows = key->kern->mr;
    d->tile_columns = key->kern->nr;
}

lf_status lf_cpu_device(lf_pool *pool, lf_device *d, lf_diag *diag)
{
    cpu_key key = {.threads = lf_pool_threads(pool)};
    lf_cpu_rates rates = {0};
    /* a loop of the caller's may be of any speed, and tells others nothing */
    const bool remembers = !lf_pool_is_loop(pool);
    lf_status status = lf_cpu_kernels(&key.kern, diag);
    if (status != LF_OK)
        return status;
    lf_cpu_model(key.model, sizeof key.model);
    if (!remembers || !load_rates(&key, &rates)) {
        status = lf_cpu_measure(key.kern, pool, &rates, diag);
        if (status != LF_OK)
            return status;
        if (remembers)
            save_rates(&key, &rates);
    }
    *d = *lf_device_named("cpu");
    fill_cpu(&key, &rates, d);
    return LF_OK;
}
