/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/guess.h"
#include "base/str.h"
#include "plan/cost.h"
#include "run/handles.h"

void lf_options_init(lf_options *options)
{
    *options = (lf_options){.device = "cpu", .precision = "fp32", .fuse = true};
}

lf_status lf_options_new(lf_context *context, lf_options **out)
{
    if (!context)
        return LF_ERR_ARG;
    if (!out)
        return lf_fail_null(&context->diag, "out");
    *out = malloc(sizeof **out);
    if (!*out)
        return lf_fail_nomem(&context->diag, "options");
    lf_options_init(*out);
    (*out)->context = context;
    return LF_OK;
}

void lf_options_free(lf_options *options)
{
    if (!options)
        return;
    free(options->rules);
    free(options);
}

const char *lf_options_message(const lf_options *options) { return options ? options->diag.text : "no options"; }

/* ---- options whose values are words ---- */

/* Devices to run on, then those that can be costed only. */
static const char *device_word(size_t index)
{
    for (size_t i = 0; lf_backend_name(i); i++)
        if (index-- == 0)
            return lf_backend_name(i);
    for (size_t i = 0; lf_device_at(i); i++)
        if (!lf_device_runs(lf_device_at(i)->name) && index-- == 0)
            return lf_device_at(i)->name;
    return NULL;
}

static const char *precision_word(size_t index)
{
    return index < LF_PRECISIONS ? lf_precision_table[index].name : NULL;
}

static const char *bool_word(size_t index)
{
    static const char *const words[] = {"false", "true", NULL};
    return words[index < 2 ? index : 2];
}

static const struct worded {
    const char *key;
    const char *(*word)(size_t index);
    size_t offset; /* in lf_options: of a char[] that the longest of the words fits, or of a bool */
    size_t size;
} worded[] = {
    {"device", device_word, offsetof(lf_options, device), sizeof(((lf_options *)0)->device)},
    {"precision", precision_word, offsetof(lf_options, precision), sizeof(((lf_options *)0)->precision)},
    {"assume_finite", bool_word, offsetof(lf_options, assume_finite), sizeof(bool)},
    {"fuse", bool_word, offsetof(lf_options, fuse), sizeof(bool)},
    {"tune", bool_word, offsetof(lf_options, tune), sizeof(bool)},
    {"lazy", bool_word, offsetof(lf_options, lazy), sizeof(bool)},
};

static const struct worded *find_worded(const char *key)
{
    for (size_t i = 0; i < sizeof worded / sizeof *worded; i++)
        if (strcmp(worded[i].key, key) == 0)
            return &worded[i];
    return NULL;
}

const char *lf_option_word(const char *key, size_t index)
{
    const struct worded *w = key ? find_worded(key) : NULL;
    return w ? w->word(index) : NULL;
}

/* The keys of all options. */
static const char *option_word(size_t index)
{
    static const char *const others[] = {"rules", "dim.NAME", "first.NAME", NULL};
    const size_t count = sizeof worded / sizeof *worded, last = sizeof others / sizeof *others - 1;
    return index < count ? worded[index].key : others[index - count < last ? index - count : last];
}

/* Of a value that is none of the words: of what kind, and what there is. */
static lf_status refuse(lf_options *o, const char *kind, const char *value, const char *(*word)(size_t index))
{
    lf_str known = {0};
    lf_guess guess = lf_guess_of(value, strlen(value), 2);
    for (size_t i = 0; word(i); i++) {
        lf_str_addf(&known, "%s%s", i ? ", " : "", word(i));
        lf_guess_try(&guess, word(i));
    }
    if (guess.best)
        lf_fail(&o->diag, LF_ERR_ARG, "%s: there is no '%.64s'; did you mean %s? It is one of %s", kind, value,
                guess.best, known.failed ? "several words" : known.text);
    else
        lf_fail(&o->diag, LF_ERR_ARG, "%s: there is no '%.64s'; it is one of %s", kind, value,
                known.failed ? "several words" : known.text);
    lf_str_free(&known);
    return LF_ERR_ARG;
}

/* Is it a device that the context has a backend for, though it stands in no table? */
static bool is_added_device(const lf_options *o, const struct worded *w, const char *value)
{
    return w->word == device_word && o->context && strlen(value) < w->size && lf_context_backend(o->context, value);
}

static lf_status set_word(lf_options *o, const struct worded *w, const char *value)
{
    char *field = (char *)o + w->offset;
    if (is_added_device(o, w, value)) {
        snprintf(field, w->size, "%s", value);
        return LF_OK;
    }
    for (size_t i = 0; w->word(i); i++)
        if (strcmp(w->word(i), value) == 0) {
            if (w->word == bool_word)
                *(bool *)(void *)field = i == 1;
            else
                snprintf(field, w->size, "%s", value);
            return LF_OK;
        }
    return refuse(o, w->key, value, w->word);
}

/* ---- the others ---- */

/* kind: dim. or first. */
static lf_status set_hint(lf_options *o, lf_dim_hints *list, const char *kind, const char *name, const char *value)
{
    char *end;
    errno = 0;
    long long number = strtoll(value, &end, 10);
    if (*value == 0 || *end != 0 || errno != 0 || number < 0 || number > LF_MAX_ELEMENTS)
        return lf_fail(&o->diag, LF_ERR_ARG, "%s%.64s: '%.64s' is not an extent, a whole number of 0 or more", kind,
                       name, value);
    int at = 0;
    while (at < list->count && strcmp(list->hint[at].name, name) != 0)
        at++;
    if (at == LF_MAX_SYMBOLS || strlen(name) >= sizeof list->hint[at].name)
        return lf_fail(&o->diag, LF_ERR_ARG, "%s%.64s: more than %d extents, or a name longer than any extent's", kind,
                       name, LF_MAX_SYMBOLS);
    snprintf(list->hint[at].name, sizeof list->hint[at].name, "%s", name);
    list->hint[at].value = number;
    list->count += at == list->count;
    return LF_OK;
}

static lf_status set_rules(lf_options *o, const char *value)
{
    lf_status status = lf_rules_check(value, &o->diag);
    if (status != LF_OK)
        return status;
    char *copy = strdup(value);
    if (!copy)
        return lf_fail_nomem(&o->diag, "options");
    free(o->rules);
    o->rules = copy;
    return LF_OK;
}

lf_status lf_options_set(lf_options *options, const char *key, const char *value)
{
    if (!options)
        return LF_ERR_ARG;
    if (!key || !value)
        return lf_fail_null(&options->diag, key ? "value" : "key");
    if (find_worded(key))
        return set_word(options, find_worded(key), value);
    if (strcmp(key, "rules") == 0)
        return set_rules(options, value);
    if (strncmp(key, "dim.", 4) == 0)
        return set_hint(options, &options->weigh, "dim.", key + 4, value);
    if (strncmp(key, "first.", 6) == 0)
        return set_hint(options, &options->first, "first.", key + 6, value);
    return refuse(options, "options", key, option_word);
}

lf_status lf_options_open(const lf_options *o, lf_context *context, lf_opened *on, lf_precision *precision,
                          lf_diag *diag)
{
    lf_status status = lf_context_open(context, o->device, on, diag);
    if (status != LF_OK)
        return status;
    lf_precision_find(o->precision, precision);
    status = on->backend->check_precision(on->device, *precision, diag);
    if (status == LF_OK && o->tune && !on->backend->tunes)
        return lf_fail(diag, LF_ERR_UNSUPPORTED,
                       "tune: device %s has nothing to measure and choose from; it needs device cuda", o->device);
    return status;
}

lf_status lf_options_check(lf_options *options)
{
    lf_opened on;
    lf_precision precision;
    if (!options)
        return LF_ERR_ARG;
    return lf_options_open(options, options->context, &on, &precision, &options->diag);
}

double lf_precision_unit(const char *precision)
{
    lf_precision p;
    return precision && lf_precision_find(precision, &p) ? ldexp(1, -lf_precision_table[p].significand - 1) : 0;
}
