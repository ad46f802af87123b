/* SPDX-License-Identifier: Apache-2.0 */
/* The command line, read. */
#ifndef LF_CLI_OPTIONS_H
#define LF_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One NAME=VALUE, as --dim, --input and --output take it; the latter two take a VALUE alone, too. */
typedef struct cli_pair {
    char *name; /* owned; NULL where --input or --output has a file alone: of the model's only one */
    const char *value;
} cli_pair;

typedef struct cli_pairs {
    cli_pair *at; /* in the order given */
    size_t count;
} cli_pairs;

/* Strings are those of argv; NULL where an option was not given. */
typedef struct cli_options {
    const char *model;
    const char *device, *precision, *rules, *weights, *arch, *html;
    bool json, assume_finite, tune, help;
    int64_t batch, threads, runs; /* 0 where not given */
    uint64_t seed;
    cli_pairs dims, inputs, outputs;
} cli_options;

/* Which options a command takes, besides --json and --help. */
enum {
    CLI_TAKES_MODEL = 1, /* MODEL and the common options */
    CLI_TAKES_DATA = 2,  /* --input, --output */
    CLI_TAKES_RUNS = 4,
    CLI_TAKES_ARCH = 8,
    CLI_TAKES_TUNE = 16,
    CLI_TAKES_PAGE = 32
};

/* Reads argv[0..argc), what follows the command's name. Returns CLI_OK or, with a line said, CLI_BAD.
 * Leaves *out to be ended with cli_options_free in both cases. */
int cli_options_read(const char *command, unsigned takes, int argc, char **argv, cli_options *out);
void cli_options_free(cli_options *o);

/* A whole number in decimal, nothing around it. */
bool cli_parse_number(const char *text, uint64_t highest, uint64_t *out);
/* Is it one, but above the highest? */
bool cli_is_too_large(const char *text, uint64_t highest);

#endif
