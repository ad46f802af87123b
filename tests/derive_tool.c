/* SPDX-License-Identifier: Apache-2.0 */
/* Derivatives of ops for test_derivatives.py.
 *
 *   derive_tool print OP ARGUMENT    the derivative, as C
 *   derive_tool eval                 answers requests on stdin until it ends:
 *
 *     request   "OP ARGUMENT PRECISION COUNT\n", then COUNT times six doubles of the machine's byte order: x y z a b c.
 *               ARGUMENT: 0 for x, 1 for y, -1 for the value itself. PRECISION: 64, or 32 for f32's rounding.
 *     answer    COUNT doubles */
#include "ir/expr.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const lf_expr *tree_of(const char *name, int argument)
{
    lf_op op;
    if (!lf_op_find(name, strlen(name), &op) || argument < -1 || argument >= LF_EXPR_VALUES)
        exit(2);
    return argument < 0 ? lf_op_row(op)->tree : lf_op_derivative(op, argument);
}

static int print(const char *name, int argument)
{
    lf_str s = {0};
    lf_expr_print(&s, tree_of(name, argument), NULL);
    char *text = lf_str_take(&s);
    if (!text)
        return 1;
    puts(text);
    free(text);
    return 0;
}

static int evaluate(void)
{
    char name[32];
    int argument, precision;
    long count;
    while (scanf("%31s %d %d %ld", name, &argument, &precision, &count) == 4 && getchar() == '\n') {
        const lf_expr *tree = tree_of(name, argument);
        for (long i = 0; i < count; i++) {
            double v[LF_EXPR_VARIABLE_COUNT];
            if (fread(v, sizeof *v, LF_EXPR_VARIABLE_COUNT, stdin) != LF_EXPR_VARIABLE_COUNT)
                return 2;
            const double value = precision == 32 ? lf_expr_eval_f32(tree, v) : lf_expr_eval(tree, v);
            fwrite(&value, sizeof value, 1, stdout);
        }
        fflush(stdout);
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "print") == 0)
        return print(argv[2], atoi(argv[3]));
    return argc == 2 && strcmp(argv[1], "eval") == 0 ? evaluate() : 2;
}
