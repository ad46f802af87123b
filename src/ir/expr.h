/* SPDX-License-Identifier: Apache-2.0 */
/* Expressions of ops.def and functions.def as trees. Equal trees are one tree: a pool makes a node once, so that
 * comparing pointers compares expressions. Nodes never change. */
#ifndef LF_IR_EXPR_H
#define LF_IR_EXPR_H

#include <stdint.h>

#include "base/str.h"
#include "ir/ops.h"

typedef enum lf_expr_kind {
    LF_EXPR_NUMBER,
    LF_EXPR_VARIABLE,
    LF_EXPR_NEG,
    LF_EXPR_ADD,
    LF_EXPR_SUB,
    LF_EXPR_MUL,
    LF_EXPR_DIV,
    LF_EXPR_LESS, /* comparisons: 1 or 0, and 0 where one side is NaN, but for UNEQUAL */
    LF_EXPR_MORE,
    LF_EXPR_AT_MOST,
    LF_EXPR_AT_LEAST,
    LF_EXPR_EQUAL,
    LF_EXPR_UNEQUAL,
    LF_EXPR_OR,
    LF_EXPR_SELECT, /* sel(arg[0], arg[1], arg[2]) */
    LF_EXPR_CALL
} lf_expr_kind;

struct lf_expr {
    lf_expr_kind kind;
    int which;     /* VARIABLE: index into LF_EXPR_VARIABLES; CALL: an lf_function */
    double number; /* NUMBER */
    const lf_expr *arg[3]; /* NULL where unused */
};

/* Values, then numbers: what an expression is given, in this order. */
#define LF_EXPR_VARIABLES "xyzabc"
enum { LF_EXPR_VARIABLE_COUNT = 6, LF_EXPR_VALUES = 3 };

/* Where nodes are made. All zero is an empty pool. Not shared between threads while nodes are made in it. */
enum { LF_EXPR_POOL = 2048 };
typedef struct lf_expr_pool {
    lf_expr node[LF_EXPR_POOL];
    int count;
    int16_t slot[2 * LF_EXPR_POOL]; /* by hash, open addressing: 1 + index, 0 is free */
} lf_expr_pool;

/* Exactly this node, nothing simplified. A pool that is full is a mistake of ours: what is parsed is ours too. */
const lf_expr *lf_expr_make(lf_expr_pool *pool, lf_expr_kind kind, int which, double number, const lf_expr *first,
                            const lf_expr *second, const lf_expr *third);
/* NULL where the text is no expression. */
const lf_expr *lf_expr_parse(lf_expr_pool *pool, const char *text);
bool lf_expr_uses(const lf_expr *e, int variable);

/* The value for the variables' values v, in double precision, or as f32 computes it: rounded after each operation. */
double lf_expr_eval(const lf_expr *e, const double v[LF_EXPR_VARIABLE_COUNT]);
double lf_expr_eval_f32(const lf_expr *e, const double v[LF_EXPR_VARIABLE_COUNT]);

/* ---- between which numbers (interval.c) ---- */

/* low <= value <= high, or NaN. */
typedef struct lf_interval {
    double low, high;
    bool plus; /* a zero is never -0 */
} lf_interval;

lf_interval lf_interval_of(double number);
/* Never -0, by its bounds or by `plus`. */
bool lf_interval_is_plus(lf_interval in);

/* Of the value, where each variable is in its interval; v NULL: anywhere. Over the reals: rounding to nearest keeps
 * within bounds that are floats. */
lf_interval lf_expr_interval(const lf_expr *e, const lf_interval v[LF_EXPR_VARIABLE_COUNT]);

/* |value| <= scale |x| + offset for finite x; both infinite where nothing of the kind is known. v may not be NULL. */
typedef struct lf_growth {
    double scale, offset;
} lf_growth;
lf_growth lf_expr_growth(const lf_expr *e, const lf_interval v[LF_EXPR_VARIABLE_COUNT]);

/* ---- laws (laws.c) ---- */

/* Whether the value is not finite wherever that variable is not, whatever the others are. */
bool lf_expr_keeps_nonfinite(const lf_expr *e, int variable);
/* 1 where the value rises with the variable, -1 where it falls, never from a number to NaN, also as it is rounded; the
 * others are numbers in their intervals. 0 where neither is known. */
int lf_expr_direction(const lf_expr *e, int variable, const lf_interval v[LF_EXPR_VARIABLE_COUNT]);

/* ---- derivatives (derive.c) ---- */

/* e derived in a variable, with no more terms than it needs. Exactly 0 where it does not depend on it; a kink is what
 * the branch that sel chooses there makes of it. */
const lf_expr *lf_expr_derive(lf_expr_pool *pool, const lf_expr *e, int variable);

/* ---- as text ---- */

/* How C is written: all as the tree has it where a member is NULL. */
typedef struct lf_expr_style {
    bool (*expands)(lf_function f); /* print the function's value in place of a call */
    /* The name of the function that is called for this division, NULL for '/'. May replace the divisor. tree: the
     * whole that is printed; the division is not part of it where it comes from a function's value. */
    const char *(*divider)(const lf_expr *tree, const lf_expr *division, const lf_expr **divisor, const void *context);
    const void *context;
} lf_expr_style;

/* C of f32, with the parentheses it needs; style may be NULL. */
void lf_expr_print(lf_str *to, const lf_expr *e, const lf_expr_style *style);

#endif
