/* SPDX-License-Identifier: Apache-2.0 */
/* What every command on a model needs: the model, its named extents, programs of it. All functions that return int
 * return an exit status and have said what is wrong where it is not CLI_OK. */
#ifndef LF_CLI_SESSION_H
#define LF_CLI_SESSION_H

#include "cli/options.h"
#include "cli/source.h"

#include <linfuse_tools.h>
#include <stdio.h>

typedef struct cli_session {
    const cli_options *options; /* borrowed */
    cli_source source;
    lf_context *context;
    lf_model *model;
    size_t dim_count;
    int64_t *dims; /* value of each named extent: as told on the command line, or DEFAULT_DIM */
    bool *dim_told;
} cli_session;

/* What lf_program_explain takes for a name without a value, and so what check and bench take. */
enum { CLI_DEFAULT_DIM = 1024 };

/* Finds and reads the model ("-": standard input), and --dim, --batch and --threads. Ended with cli_session_end in any
 * case. */
int cli_session_begin(const cli_options *options, cli_session *s);
void cli_session_end(cli_session *s);

/* How an extent of a port follows a name's value: 0 not at all, n where it is n times the value, -1 in another way. */
int64_t cli_dim_follows(const cli_session *s, lf_port port, size_t index, int axis, size_t dim);

/* The device the model is to run on: cpu unless told. Fails for one that can only be explained. */
int cli_session_device(const cli_session *s, const char **device);

/* A program as the command line asks for it: fused, or op by op as written. Without parameters yet. */
int cli_program_new(cli_session *s, bool fuse, lf_program **out);
/* Its parameters: from a file of weights, else drawn from the seed; or those of another program of the same model. */
int cli_program_params(const cli_session *s, lf_program *program);
int cli_program_params_from(const cli_session *s, lf_program *program, const lf_program *other);
int cli_program_prepare(lf_program *program);

/* What the account says that other commands need: of the model as written, and now. */
typedef struct cli_facts {
    double plain_flops, plain_bytes, fused_us;
    size_t ops;
} cli_facts;
int cli_program_facts(const cli_session *s, lf_program *program, cli_facts *out);

/* "x.lf, B = 1024, on cpu with 4 threads", and the weights that lay beside x.lf: printed on stdout. */
void cli_session_print(const cli_session *s, const char *device);
/* Which weights are used that no option names; nothing where there are none. */
void cli_session_print_found(const cli_session *s, FILE *to);

#endif
