/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands.h"
#include "cli/report.h"

#include <stdio.h>

static int print_json(void)
{
    json_t *ops = json_array();
    for (size_t i = 0; lf_op_name(i); i++)
        json_array_append_new(ops, json_pack("{s:s, s:s, s:s}", "name", lf_op_name(i), "kind", lf_op_kind(i),
                                             "signature", lf_op_signature(i)));
    return cli_json_print(json_pack("{s:o}", "ops", ops));
}

int cli_ops(const cli_options *o)
{
    if (o->json)
        return print_json();
    cli_table table = {.columns = 3, .align = "lll"};
    cli_table_add(&table, "op");
    cli_table_add(&table, "kind");
    cli_table_add(&table, "arguments and defaults");
    for (size_t i = 0; lf_op_name(i); i++) {
        cli_table_add(&table, lf_op_name(i));
        cli_table_add(&table, lf_op_kind(i));
        cli_table_add(&table, lf_op_signature(i));
    }
    int code = cli_table_print(&table);
    /* The letters of lf_op_signature. */
    puts("\n  T a value, V a value or a number, F a number, I a whole number, B true or false, S one of the words\n"
         "  after it, L a list of whole numbers; ? after a letter: None will do.");
    return code;
}
