/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/options.h"

#include "cli/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* FILE_OF: a pair that may lack its name */
typedef enum option_kind { FLAG, TEXT, NUMBER, SEED, PAIR, FILE_OF } option_kind;

/* takes 0: every command's. */
static const struct option {
    const char *name;
    unsigned takes;
    option_kind kind;
    size_t offset; /* of its field in cli_options */
    const char *needs;
} table[] = {
    {"json", 0, FLAG, offsetof(cli_options, json), NULL},
    {"help", 0, FLAG, offsetof(cli_options, help), NULL},
    {"dim", CLI_TAKES_MODEL, PAIR, offsetof(cli_options, dims), "NAME=NUMBER"},
    {"batch", CLI_TAKES_MODEL, NUMBER, offsetof(cli_options, batch), "a whole number, 1 or more"},
    {"device", CLI_TAKES_MODEL, TEXT, offsetof(cli_options, device), "a device"},
    {"precision", CLI_TAKES_MODEL, TEXT, offsetof(cli_options, precision), "a precision"},
    {"threads", CLI_TAKES_MODEL, NUMBER, offsetof(cli_options, threads), "a whole number, 1 or more"},
    {"seed", CLI_TAKES_MODEL, SEED, offsetof(cli_options, seed), "a whole number"},
    {"weights", CLI_TAKES_MODEL, TEXT, offsetof(cli_options, weights), "a safetensors file"},
    {"rules", CLI_TAKES_MODEL, TEXT, offsetof(cli_options, rules), "+NAME,-NAME"},
    {"assume-finite", CLI_TAKES_MODEL, FLAG, offsetof(cli_options, assume_finite), NULL},
    {"input", CLI_TAKES_DATA, FILE_OF, offsetof(cli_options, inputs), "[NAME=]FILE.npy"},
    {"output", CLI_TAKES_DATA, FILE_OF, offsetof(cli_options, outputs), "[NAME=]FILE.npy"},
    {"runs", CLI_TAKES_RUNS, NUMBER, offsetof(cli_options, runs), "a whole number, 1 or more"},
    {"tune", CLI_TAKES_TUNE, FLAG, offsetof(cli_options, tune), NULL},
    {"html", CLI_TAKES_PAGE, TEXT, offsetof(cli_options, html), "a file to write the page to"},
    {"arch", CLI_TAKES_ARCH, TEXT, offsetof(cli_options, arch), "an architecture, such as sm_80"},
};

bool cli_parse_number(const char *text, uint64_t highest, uint64_t *out)
{
    uint64_t value = 0;
    if (!*text)
        return false;
    for (; *text; text++) {
        unsigned digit = (unsigned)(*text - '0');
        if (digit > 9 || value > (highest - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *out = value;
    return value <= highest;
}

bool cli_is_too_large(const char *text, uint64_t highest)
{
    uint64_t number;
    return *text && strspn(text, "0123456789") == strlen(text) && !cli_parse_number(text, highest, &number);
}

/* Adds NAME=VALUE; capacity of the list is argc, which no list outgrows. */
static int add_pair(cli_pairs *pairs, int argc, const struct option *option, const char *value)
{
    const char *equals = strchr(value, '='), *file = equals ? equals + 1 : value;
    if (!file[0] || equals == value || (!equals && option->kind != FILE_OF))
        return cli_fail("--%s needs %s, not '%s'; see linfuse --help", option->name, option->needs, value);
    if (!pairs->at)
        pairs->at = calloc((size_t)argc, sizeof *pairs->at);
    char *name = pairs->at && equals ? strndup(value, (size_t)(equals - value)) : NULL;
    if (!pairs->at || (equals && !name))
        return cli_fail("no memory for the command line");
    pairs->at[pairs->count++] = (cli_pair){.name = name, .value = file};
    return CLI_OK;
}

static int set(cli_options *out, const struct option *option, int argc, const char *value)
{
    char *field = (char *)out + option->offset;
    const uint64_t highest = option->kind == SEED ? UINT64_MAX : INT64_MAX;
    uint64_t number;
    switch (option->kind) {
    case FLAG: *(bool *)(void *)field = true; return CLI_OK;
    case TEXT: *(const char **)(void *)field = value; return CLI_OK;
    case PAIR:
    case FILE_OF: return add_pair((cli_pairs *)(void *)field, argc, option, value);
    case NUMBER:
    case SEED:
        if (cli_is_too_large(value, highest))
            return cli_fail("--%s %s is too large: it may be %llu at most", option->name, value,
                            (unsigned long long)highest);
        if (!cli_parse_number(value, highest, &number) ||
            (option->kind == NUMBER && number == 0))
            return cli_fail("--%s needs %s, not '%s'; see linfuse --help", option->name, option->needs, value);
        *(uint64_t *)(void *)field = number;
        return CLI_OK;
    }
    return CLI_OK;
}

/* The option an argument names, up to its '=' or its end; NULL where there is none. */
static const struct option *find(const char *name)
{
    size_t length = strcspn(name, "=");
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strlen(table[i].name) == length && memcmp(table[i].name, name, length) == 0)
            return &table[i];
    return NULL;
}

/* argument: as it was given, of a command that takes no such option. */
static int fail_unknown(unsigned takes, const char *argument)
{
    enum { OPTIONS = sizeof table / sizeof *table };
    const char *known[OPTIONS] = {NULL};
    char near[64], *name = strndup(argument + 2, strcspn(argument + 2, "="));
    if (!name)
        return cli_fail("no memory for the command line");
    for (size_t i = 0; i < OPTIONS; i++)
        if (!table[i].takes || (table[i].takes & takes))
            known[i] = table[i].name;
    const char *found = lf_word_near(name, known, OPTIONS);
    free(name);
    snprintf(near, sizeof near, "--%s", found ? found : "");
    return cli_fail_unknown("option", argument, found ? near : NULL);
}

/* One option and its value; *i moves on over what was used. */
static int read_option(const char *command, unsigned takes, int argc, char **argv, int *i, cli_options *out)
{
    const char *name = argv[*i] + 2, *equals = strchr(name, '=');
    const struct option *option = find(name);
    if (!option)
        return fail_unknown(takes, argv[*i]);
    if (option->takes && !(option->takes & takes))
        return cli_fail("%s takes no option --%s; see linfuse %s --help", command, option->name, command);
    if (option->kind == FLAG) {
        if (equals)
            return cli_fail("--%s takes no value; see linfuse --help", option->name);
        return set(out, option, argc, NULL);
    }
    const char *value = equals ? equals + 1 : *i + 1 < argc ? argv[++*i] : NULL;
    if (!value || !*value)
        return cli_fail("--%s needs %s; see linfuse --help", option->name, option->needs);
    return set(out, option, argc, value);
}

int cli_options_read(const char *command, unsigned takes, int argc, char **argv, cli_options *out)
{
    bool options_end = false;
    *out = (cli_options){0};
    for (int i = 0; i < argc; i++) {
        const char *a = argv[i];
        int code = CLI_OK;
        if (!options_end && strcmp(a, "--") == 0)
            options_end = true;
        else if (!options_end && strcmp(a, "-h") == 0)
            out->help = true;
        else if (!options_end && strncmp(a, "--", 2) == 0)
            code = read_option(command, takes, argc, argv, &i, out);
        else if (!options_end && a[0] == '-' && a[1])
            code = cli_fail_unknown("option", a, NULL);
        else if (!(takes & CLI_TAKES_MODEL))
            code = cli_fail("%s takes no argument, but was given '%s'; see linfuse %s --help", command, a, command);
        else if (out->model)
            code = cli_fail("one model at a time: both '%s' and '%s' were given", out->model, a);
        else
            out->model = a;
        if (code != CLI_OK)
            return code;
    }
    if ((takes & CLI_TAKES_MODEL) && !out->model && !out->help)
        return cli_fail("%s needs a model file; see linfuse %s --help", command, command);
    return CLI_OK;
}

static void free_pairs(cli_pairs *pairs)
{
    for (size_t i = 0; i < pairs->count; i++)
        free(pairs->at[i].name);
    free(pairs->at);
}

void cli_options_free(cli_options *o)
{
    free_pairs(&o->dims);
    free_pairs(&o->inputs);
    free_pairs(&o->outputs);
    *o = (cli_options){0};
}
