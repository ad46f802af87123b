/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of a model on which its meaning in double precision is computed, and that meaning there. */
#ifndef LF_CLI_SAMPLE_H
#define LF_CLI_SAMPLE_H

#include "cli/tensor.h"

typedef struct cli_sample {
    int64_t total; /* rows the model has at s->dims */
    int64_t count; /* rows chosen; all of them where count == total */
    int64_t *rows; /* which, rising; NULL where all */
    bool independent; /* rows do not see each other, and a named extent counts them: */
    size_t dim;
    double **outputs; /* of the chosen rows, row-major; one per output of the model */
    size_t output_count;
} cli_sample;

/* Chooses rows: all where double precision is quick at this much work, else a random few, if rows can be told apart.
 * Ended with cli_sample_free in any case. */
int cli_sample_choose(const cli_session *s, const cli_facts *facts, const cli_tensors *inputs, cli_sample *out);
/* Computes the model on them. program holds the parameters. */
int cli_sample_eval(const cli_session *s, const lf_program *program, const cli_tensors *inputs, cli_sample *sample);
void cli_sample_free(cli_sample *sample);

#endif
