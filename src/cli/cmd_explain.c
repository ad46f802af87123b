/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands.h"
#include "cli/report.h"
#include "cli/session.h"

#include <stdio.h>
#include <string.h>

/* The name of a model read from a file. */
static const char *title_of(const char *path)
{
    return strcmp(path, "-") == 0 ? NULL : path;
}

/* The account. The first time on a machine this measures its CPU. */
static int account(const cli_session *s, lf_program *program, bool json, char **out)
{
    cli_progress_begin("measuring this CPU, once");
    lf_status status = lf_program_explain(program, s->dims, json, out);
    cli_progress_end();
    return status == LF_OK ? CLI_OK : cli_fail_status(status, lf_program_message(program));
}

/* Writes the page, all of it or nothing; or prints it. */
static int write_page(const cli_session *s, lf_program *program)
{
    char *json = NULL, *page = NULL;
    const char *path = s->options->html;
    int code = account(s, program, true, &json);
    if (code != CLI_OK)
        return code;
    lf_status status = lf_page_print(s->context, title_of(s->source.model), json, true, &page);
    lf_string_free(json);
    if (status == LF_OK && cli_is_stdout(path))
        fputs(page, stdout);
    else if (status == LF_OK)
        status = lf_text_save(s->context, path, page);
    lf_string_free(page);
    return status == LF_OK ? CLI_OK : cli_fail_status(status, lf_context_message(s->context));
}

static int print(const cli_session *s, lf_program *program)
{
    char *text = NULL;
    int code = account(s, program, s->options->json, &text);
    if (code != CLI_OK)
        return code;
    size_t length = strlen(text);
    fputs(text, stdout);
    if (length == 0 || text[length - 1] != '\n')
        putchar('\n');
    lf_string_free(text);
    return CLI_OK;
}

static int explain(cli_session *s, lf_program *program)
{
    const char *html = s->options->html;
    /* Costs do not depend on the values of parameters; a file of them that does not fit is still worth saying. */
    int code = s->source.weights ? cli_program_params(s, program) : CLI_OK;
    if (code == CLI_OK && html)
        code = write_page(s, program);
    if (code == CLI_OK && !(html && cli_is_stdout(html)))
        code = print(s, program);
    return code;
}

int cli_explain(const cli_options *o)
{
    cli_session s;
    lf_program *program = NULL;
    if (o->json && o->html && cli_is_stdout(o->html))
        return cli_fail("--json and --html both go to standard output; write the page to a file");
    int code = cli_session_begin(o, &s);
    if (code == CLI_OK)
        code = cli_program_new(&s, true, &program);
    if (code == CLI_OK)
        code = explain(&s, program);
    lf_program_free(program);
    cli_session_end(&s);
    return code;
}
