/* SPDX-License-Identifier: Apache-2.0 */
/* One function a command: reads nothing but its options, prints its result, returns the exit status. */
#ifndef LF_CLI_COMMANDS_H
#define LF_CLI_COMMANDS_H

#include "cli/options.h"

int cli_explain(const cli_options *o);
int cli_check(const cli_options *o);
int cli_run(const cli_options *o);
int cli_bench(const cli_options *o);
int cli_emit(const cli_options *o);
int cli_ops(const cli_options *o);
int cli_doctor(const cli_options *o);

#endif
