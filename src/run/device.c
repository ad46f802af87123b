/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/rng.h"
#include "base/str.h"
#include "cpu/measure.h"
#include "run/device.h"

enum { FORMAT = 1, MOST_FILE = 1 << 14 }; /* FORMAT rises when what is measured, or how, changes */

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
    const char *isa;
    int threads;
} cpu_key;

/* What /proc/cpuinfo calls the processor; the machine's kind where it does not say. */
static void find_model(char *model, size_t size)
{
    char line[256];
    struct utsname name;
    FILE *file = fopen("/proc/cpuinfo", "r");
    model[0] = '\0';
    while (file && !model[0] && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon)
            snprintf(model, size, "%.*s", (int)strcspn(colon + 1 + (colon[1] == ' '), "\n"), colon + 1 + (colon[1] == ' '));
    }
    if (file)
        fclose(file);
    if (!model[0])
        snprintf(model, size, "%.80s", uname(&name) == 0 ? name.machine : "unknown");
    for (char *c = model; *c; c++)
        if (!isprint((unsigned char)*c))
            *c = '?';
}

/* The path of the file under the user's cache, NULL when there is none or no memory for it. Caller frees. */
static char *cache_path(const cpu_key *key, bool make)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    lf_str path = {0};
    if (xdg && xdg[0] == '/')
        lf_str_add(&path, xdg);
    else if (home && home[0] == '/')
        lf_str_addf(&path, "%s/.cache", home);
    else
        return NULL;
    if (make && path.text)
        mkdir(path.text, 0700);
    lf_str_add(&path, "/linfuse");
    if (make && path.text)
        mkdir(path.text, 0755);
    lf_rng hash = lf_rng_seed(FORMAT, key->model);
    lf_str_addf(&path, "/cpu-%016llx-%s-%d" BUILD ".json", (unsigned long long)lf_rng_u64(&hash), key->isa, key->threads);
    return lf_str_take(&path);
}

/* ---- reading and writing it ---- */

/* The measured numbers by name, for both directions. */
static const struct rate_field {
    const char *name;
    size_t offset;
} rate_fields[] = {
    {"flops", offsetof(lf_cpu_rates, flops)},
    {"dot_flops", offsetof(lf_cpu_rates, dot_flops)},
    {"elements", offsetof(lf_cpu_rates, elements)},
    {"functions", offsetof(lf_cpu_rates, functions)},
    {"read_bytes", offsetof(lf_cpu_rates, read_bytes)},
    {"write_bytes", offsetof(lf_cpu_rates, write_bytes)},
    {"cache_rate", offsetof(lf_cpu_rates, cache_rate)},
    {"cache_bytes", offsetof(lf_cpu_rates, cache_bytes)},
};
enum { RATE_FIELDS = sizeof rate_fields / sizeof rate_fields[0] };

static double *rate_at(lf_cpu_rates *r, size_t i)
{
    return (double *)((char *)r + rate_fields[i].offset);
}

/* Rates that no machine has are damage. */
static bool plausible(double rate)
{
    return rate >= 1e5 && rate <= 1e17;
}

static bool parse_rates(const char *text, size_t length, const cpu_key *key, lf_cpu_rates *out)
{
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, NULL);
    const char *model = json_string_value(json_object_get(root, "cpu")), *isa = json_string_value(json_object_get(root, "isa"));
    bool good = model && strcmp(model, key->model) == 0 && isa && strcmp(isa, key->isa) == 0 &&
                json_integer_value(json_object_get(root, "format")) == FORMAT &&
                json_integer_value(json_object_get(root, "threads")) == key->threads;
    for (size_t i = 0; i < RATE_FIELDS && good; i++) {
        *rate_at(out, i) = json_number_value(json_object_get(root, rate_fields[i].name));
        good = plausible(*rate_at(out, i));
    }
    json_decref(root);
    return good;
}

static bool load_rates(const cpu_key *key, lf_cpu_rates *out)
{
    char *path = cache_path(key, false), text[MOST_FILE];
    int file = path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1; /* nonblocking: it may be anything, a pipe even */
    struct stat info;
    size_t length = 0;
    free(path);
    if (file < 0)
        return false;
    if (fstat(file, &info) == 0 && S_ISREG(info.st_mode))
        for (ssize_t got = 1; got > 0 && length < sizeof text; length += got > 0 ? (size_t)got : 0)
            got = read(file, text + length, sizeof text - length);
    close(file);
    return length < sizeof text && parse_rates(text, length, key, out);
}

static json_t *rates_json(const cpu_key *key, lf_cpu_rates *rates)
{
    json_t *root = json_pack("{s:i, s:s, s:s, s:i}", "format", FORMAT, "cpu", key->model, "isa", key->isa, "threads", key->threads);
    for (size_t i = 0; i < RATE_FIELDS && root; i++)
        if (json_object_set_new(root, rate_fields[i].name, json_real(*rate_at(rates, i))) != 0) {
            json_decref(root);
            root = NULL;
        }
    return root;
}

/* Written aside and renamed, so that a reader sees all of it or nothing. What fails is left undone. */
static void save_rates(const cpu_key *key, lf_cpu_rates *rates)
{
    char *path = cache_path(key, true);
    json_t *root = path ? rates_json(key, rates) : NULL;
    lf_str aside = {0};
    if (root)
        lf_str_addf(&aside, "%s.XXXXXX", path);
    int file = aside.text && !aside.failed ? mkstemp(aside.text) : -1;
    if (file >= 0) {
        bool written = json_dumpfd(root, file, JSON_INDENT(2)) == 0;
        written = close(file) == 0 && written;
        if (!written || rename(aside.text, path) != 0)
            unlink(aside.text);
    }
    lf_str_free(&aside);
    json_decref(root);
    free(path);
}

/* ---- the device ---- */

/* A product over blocks that come and go reaches this much of what gemm does on panels that stay in L1. */
static const double PRODUCT_SHARE = 0.9;

static void fill_cpu(const cpu_key *key, const lf_kern *kern, const lf_cpu_rates *r, lf_device *d)
{
    snprintf(d->title, sizeof d->title, "%s, %d thread%s, %s", key->model, key->threads, key->threads == 1 ? "" : "s", key->isa);
    d->flops = r->flops;
    d->product_flops = PRODUCT_SHARE * r->flops;
    d->dot_flops = r->dot_flops;
    d->element_flops = r->elements;
    d->function_flops = LF_FUNCTION_FLOPS * r->functions;
    d->bytes = r->read_bytes;
    d->write_bytes = r->write_bytes;
    d->cache_rate = r->cache_rate;
    d->cache_bytes = r->cache_bytes;
    d->tile_rows = kern->mr;
    d->tile_columns = kern->nr;
}

static lf_status this_machine(const lf_kern *kern, lf_pool *pool, lf_device *d, lf_diag *diag)
{
    cpu_key key = {.isa = kern->isa, .threads = lf_pool_threads(pool)};
    lf_cpu_rates rates = {0};
    const bool remembers = !lf_pool_is_loop(pool); /* a loop of the caller's may be of any speed, and tells others nothing */
    find_model(key.model, sizeof key.model);
    if (!remembers || !load_rates(&key, &rates)) {
        lf_status status = lf_cpu_measure(kern, pool, &rates, diag);
        if (status != LF_OK)
            return status;
        if (remembers)
            save_rates(&key, &rates);
    }
    fill_cpu(&key, kern, &rates, d);
    return LF_OK;
}

lf_status lf_device_find(const char *name, const lf_kern *kern, lf_pool *pool, lf_device *out, lf_diag *diag)
{
    char known[256] = "";
    size_t used = 0;
    for (size_t i = 0; lf_device_at(i); i++) {
        const lf_device *row = lf_device_at(i);
        if (strcmp(row->name, name) == 0) {
            *out = *row;
            return strcmp(name, "cpu") == 0 ? this_machine(kern, pool, out, diag) : LF_OK;
        }
        if (used < sizeof known)
            used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", row->name);
    }
    return lf_fail(diag, LF_ERR_ARG, "device %s: not in the table of devices, which has %s", name, known);
}
