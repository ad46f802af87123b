/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands.h"
#include "cli/report.h"
#include "cli/session.h"

#include <stdio.h>

static int emit(cli_session *s, lf_program *program)
{
    char *text = NULL;
    lf_status status = lf_program_emit(program, s->options->arch, &text);
    if (status != LF_OK)
        return cli_fail_status(status, lf_program_message(program));
    int code = CLI_OK;
    if (s->options->json)
        code = cli_json_print(json_pack("{s:s, s:s}", "arch", s->options->arch, "text", text));
    else
        fputs(text, stdout);
    lf_string_free(text);
    return code;
}

int cli_emit(const cli_options *o)
{
    cli_session s;
    lf_program *program = NULL;
    if (!o->arch)
        return cli_fail("emit needs --arch, such as sm_90a or sm_80; see linfuse emit --help");
    int code = cli_session_begin(o, &s);
    if (code == CLI_OK)
        code = cli_program_new(&s, true, &program);
    if (code == CLI_OK)
        code = emit(&s, program);
    lf_program_free(program);
    cli_session_end(&s);
    return code;
}
