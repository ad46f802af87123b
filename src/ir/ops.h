/* SPDX-License-Identifier: Apache-2.0 */
/* The op table and the monoid table as data: what every pass reads instead of switching on ops. */
#ifndef LF_IR_OPS_H
#define LF_IR_OPS_H

#include <stdbool.h>
#include <stddef.h>

/* What an op is to the passes. A pass may switch on kinds, never on ops. */
typedef enum lf_kind {
    LF_LEAF,      /* input, param, constant, positions */
    LF_PRODUCT,   /* x W^T, or x W */
    LF_POINTWISE, /* each element by itself, arguments broadcast */
    LF_REDUCE,    /* a statistic over some extents, which go away (or stay as 1) */
    LF_NORMALIZE, /* a statistic over a span, then every element again with it */
    LF_POOL,      /* a statistic over windows of the last extent */
    LF_VIEW,      /* the same elements in the same order under another shape */
    LF_MOVE,      /* elements in another order, or some of them */
    LF_LOSS,      /* what rows lose to their targets; made of other kinds before anything is rewritten */
    LF_GUARD      /* a value and the witness of its rewrite (rewrites only) */
} lf_kind;

enum { /* laws: what rewrites may rely on */
    LF_LAW_COMMUTES = 1,   /* f(x, y) = f(y, x), bit for bit */
    LF_LAW_IDEMPOTENT = 2, /* f(f(x)) = f(x), for one set of attributes */
    LF_LAW_KEEPS = 4,      /* an element of the first value that is not finite leaves one in its row that is not either;
                            * said of ops whose expression does not show it */
    LF_LAW_HIDDEN = 8      /* no law: models cannot name it */
};

typedef enum lf_op {
#define LF_OP(name, ...) LF_OP_##name,
#include "ir/ops.def"
#undef LF_OP
    LF_OP_COUNT
} lf_op;

typedef enum lf_monoid {
    LF_MONOID_none = -1,
#define LF_MONOID(name, ...) LF_MONOID_##name,
#include "ir/monoids.def"
#undef LF_MONOID
    LF_MONOID_COUNT
} lf_monoid;

typedef enum lf_function {
#define LF_NATIVE(name, ...) LF_FUNCTION_##name,
#define LF_FUNCTION(name, ...) LF_FUNCTION_##name,
#include "ir/functions.def"
#undef LF_NATIVE
#undef LF_FUNCTION
    LF_FUNCTION_COUNT
} lf_function;

typedef struct lf_expr lf_expr; /* expr.h */

enum { LF_MAX_PARAMS = 8, LF_MAX_CHOICES = 3, LF_MAX_STATE = 3, LF_MAX_RESULTS = 2 };

/* One parameter of a signature. Values and attributes are counted apart: see slot. */
typedef struct lf_param_info {
    char name[20];
    char type;       /* T V F I B S L, as in ops.def */
    bool optional;   /* the type's '?': None will do */
    bool has_default;
    int slot;        /* T, V: index among the node's args; otherwise index among its attributes */
    double number;   /* default of F, I, B, S (index of the choice); unused for None */
    bool none;       /* the default is None */
    int choices;     /* S: how many */
    char choice[LF_MAX_CHOICES][8];
} lf_param_info;

typedef struct lf_op_info {
    const char *name;
    lf_kind kind;
    lf_monoid monoid;
    int laws;
    int flops;             /* an element */
    int tolerance;         /* units of 2^-24 */
    const char *signature;
    const char *expression;
    const lf_expr *tree;   /* the expression */
    int param_count;
    int arg_count;         /* values: T and V parameters */
    int attr_count;        /* the others */
    lf_param_info param[LF_MAX_PARAMS];
} lf_op_info;

/* A function of expressions. */
typedef struct lf_function_info {
    const char *name, *params;
    const char *text, *slope[2];  /* of value and derivative */
    const lf_expr *value;         /* NULL where it is native */
    const lf_expr *derivative[2]; /* in its parameters that are values */
    bool derive_this[2];          /* derivative is what is to be derived */
    bool on_cuda;                 /* text/math.cu has it */
    int direction;                /* 1 where it rises with its values, -1 where it falls, rounding included, or 0 */
    double low, high;             /* natives: no value lies outside */
    int args, param[3];           /* which variable of its value a parameter is: see LF_EXPR_VARIABLES */
} lf_function_info;

typedef struct lf_monoid_info {
    const char *name;
    int states, results, flops;
    double least; /* the last result is no less, NaN aside */
    const char *identity, *put, *combine, *finish; /* statements, for emitters */
} lf_monoid_info;

/* The row of an op; never NULL for op < LF_OP_COUNT. Thread-safe: the table is built once. */
const lf_op_info *lf_op_row(lf_op op);
/* Looks a name up; false when there is no such op (internal ops are found too). */
bool lf_op_find(const char *name, size_t length, lf_op *out);
/* f(x, y) = f(y, x) for these attributes? add with an alpha does not commute. */
bool lf_op_commutes(lf_op op, double alpha);
/* False for the ops a model text cannot name: leaves and guard. */
bool lf_op_public(lf_op op);
const char *lf_kind_name(lf_kind kind);
/* The row of a function; thread-safe as lf_op_row is. */
const lf_function_info *lf_function_row(lf_function f);
/* False when there is no function of so many arguments. */
bool lf_function_find(const char *name, size_t length, int args, lf_function *out);
/* The op's expression derived in its value number `argument` (0 for x). Attributes are constants; kinks are as PyTorch
 * has them. POINTWISE: the factor of the gradient of that argument. Others: with finished statistics as constants, or
 * as the arguments derived in. All are made when one is first asked for; thread-safe. */
const lf_expr *lf_op_derivative(lf_op op, int argument);
const lf_monoid_info *lf_monoid_row(lf_monoid monoid);

#endif
