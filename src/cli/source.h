/* SPDX-License-Identifier: Apache-2.0 */
/* Which files a command reads: the model's, and that of its weights. */
#ifndef LF_CLI_SOURCE_H
#define LF_CLI_SOURCE_H

#include "cli/options.h"

typedef struct cli_source {
    char *model;   /* owned; "-": standard input */
    char *weights; /* owned; NULL where parameters are drawn */
} cli_source;

/* The model as given, or the only .lf file of a folder; the weights as --weights gives them, else model.safetensors
 * beside model.lf where that is there. Returns CLI_OK or, with a line said, CLI_BAD. Ended with cli_source_free in both
 * cases. */
int cli_source_find(const cli_options *options, cli_source *out);
void cli_source_free(cli_source *source);

/* Do the weights come from a file that no option names? */
bool cli_source_found_weights(const cli_options *options, const cli_source *source);

#endif
