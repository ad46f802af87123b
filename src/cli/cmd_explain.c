/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands.h"
#include "cli/report.h"
#include "cli/session.h"

#include <stdio.h>
#include <string.h>

static int explain(cli_session *s, lf_program *program)
{
    char *text = NULL;
    /* Costs do not depend on the values of parameters; a file of them that does not fit is still worth saying. */
    int code = s->options->weights ? cli_program_params(s, program) : CLI_OK;
    if (code != CLI_OK)
        return code;
    lf_status status = lf_program_explain(program, s->dims, s->options->json, &text);
    if (status != LF_OK)
        return cli_fail_status(status, lf_program_message(program));
    size_t length = strlen(text);
    fputs(text, stdout);
    if (length == 0 || text[length - 1] != '\n')
        putchar('\n');
    lf_string_free(text);
    return CLI_OK;
}

int cli_explain(const cli_options *o)
{
    cli_session s;
    lf_program *program = NULL;
    int code = cli_session_begin(o, &s);
    if (code == CLI_OK)
        code = cli_program_new(&s, true, &program);
    if (code == CLI_OK)
        code = explain(&s, program);
    lf_program_free(program);
    cli_session_end(&s);
    return code;
}
