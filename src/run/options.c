/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
        return lf_fail(&context->diag, LF_ERR_ARG, "options want a place for them");
    *out = malloc(sizeof **out);
    if (!*out)
        return lf_fail_nomem(&context->diag, "options");
    lf_options_init(*out);
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

/* One of a few words, NULL-ended. */
static lf_status set_word(lf_options *o, const char *key, const char *value, const char *const *words, char *out,
                          size_t size)
{
    for (int i = 0; words[i]; i++)
        if (strcmp(words[i], value) == 0) {
            snprintf(out, size, "%s", value);
            return LF_OK;
        }
    char known[128] = "";
    for (int i = 0; words[i]; i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", words[i]);
    return lf_fail(&o->diag, LF_ERR_ARG, "%s: '%.64s' is none of %s", key, value, known);
}

static lf_status set_bool(lf_options *o, const char *key, const char *value, bool *out)
{
    if (strcmp(value, "true") != 0 && strcmp(value, "false") != 0)
        return lf_fail(&o->diag, LF_ERR_ARG, "%s: '%.64s' is neither true nor false", key, value);
    *out = value[0] == 't';
    return LF_OK;
}

/* kind: dim. or first. */
static lf_status set_hint(lf_options *o, lf_dim_hints *list, const char *kind, const char *name, const char *value)
{
    char *end;
    errno = 0;
    long long number = strtoll(value, &end, 10);
    if (*value == 0 || *end != 0 || errno != 0 || number < 0 || number > LF_MAX_ELEMENTS)
        return lf_fail(&o->diag, LF_ERR_ARG, "%s%.64s: '%.64s' is not an extent", kind, name, value);
    int at = 0;
    while (at < list->count && strcmp(list->hint[at].name, name) != 0)
        at++;
    if (at == LF_MAX_SYMBOLS || strlen(name) >= sizeof list->hint[at].name)
        return lf_fail(&o->diag, LF_ERR_ARG, "%s%.64s: too many extents, or too long a name", kind, name);
    snprintf(list->hint[at].name, sizeof list->hint[at].name, "%s", name);
    list->hint[at].value = number;
    list->count += at == list->count;
    return LF_OK;
}

static lf_status set_rules(lf_options *o, const char *value)
{
    char *copy = strdup(value);
    if (!copy)
        return lf_fail_nomem(&o->diag, "options");
    free(o->rules);
    o->rules = copy;
    return LF_OK;
}

lf_status lf_options_set(lf_options *options, const char *key, const char *value)
{
    static const char *const devices[] = {"cpu", "cuda", "h200", "a100", NULL};
    static const char *const precisions[] = {"fp32", "tf32", "bf16", "fp16", NULL};
    if (!options)
        return LF_ERR_ARG;
    if (!key || !value)
        return lf_fail(&options->diag, LF_ERR_ARG, "an option wants a key and a value");
    if (strcmp(key, "device") == 0)
        return set_word(options, key, value, devices, options->device, sizeof options->device);
    if (strcmp(key, "precision") == 0)
        return set_word(options, key, value, precisions, options->precision, sizeof options->precision);
    if (strcmp(key, "rules") == 0)
        return set_rules(options, value);
    if (strcmp(key, "assume_finite") == 0)
        return set_bool(options, key, value, &options->assume_finite);
    if (strcmp(key, "fuse") == 0)
        return set_bool(options, key, value, &options->fuse);
    if (strcmp(key, "tune") == 0)
        return set_bool(options, key, value, &options->tune);
    if (strncmp(key, "dim.", 4) == 0)
        return set_hint(options, &options->weigh, "dim.", key + 4, value);
    if (strncmp(key, "first.", 6) == 0)
        return set_hint(options, &options->first, "first.", key + 6, value);
    return lf_fail(
        &options->diag, LF_ERR_ARG,
        "'%.64s' is no option; known: device, precision, rules, assume_finite, fuse, tune, dim.NAME, first.NAME", key);
}
