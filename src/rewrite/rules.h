/* SPDX-License-Identifier: Apache-2.0 */
/* What the rules share: the row of a rule, the graph they build in, and the few things they say.
 *
 * Guards while rewriting: a guarded rule answers its value and asks for a witness to be watched; no guard node stands
 * in a rule's way. A watch moves along with its value through ops that keep what is not finite (sweep.c), and the
 * guard nodes are put where the watched values are once no rule fits any more (emit.c). That is sound wherever a guard
 * stands: a row in which any witness is not finite is redone as a whole. */
#ifndef LF_REWRITE_RULES_H
#define LF_REWRITE_RULES_H

#include "ir/expr.h"
#include "rewrite/rewrite.h"

typedef struct lf_rw lf_rw;

enum { LF_MAX_ROOTS = 8, LF_MAX_RULES = 64 };

typedef struct lf_rule {
    lf_rule_info info;
    const char *gain;                       /* why it was applied, unless the rule says it better (lf_rw_why) */
    unsigned kinds;                         /* root: any op of these kinds, 1u << kind */
    lf_op ops[LF_MAX_ROOTS];                /* root: or one of these ops; LF_OP_input ends the list */
    lf_node (*apply)(lf_rw *rw, lf_node n); /* NULL: done by the driver itself */
    bool in_fixed;                          /* also where weights are prepared; other rules leave that alone */
} lf_rule;

/* One table a file; the driver tries the rules of a root in this order. */
typedef struct lf_rule_table {
    const lf_rule *rule;
    size_t count;
} lf_rule_table;
extern const lf_rule_table lf_rules_neutral, lf_rules_clamp, lf_rules_shape, lf_rules_slice, lf_rules_norm,
    lf_rules_linear, lf_rules_collapse, lf_rules_reduce, lf_rules_itself, lf_rules_softmax, lf_rules_spelled,
    lf_rules_driver;

/* Beside each node of the graph being built. */
typedef struct lf_rw_facts {
    int32_t uses;    /* by nodes that are wanted, those still to come counted; outputs too; being watched is no use */
    int32_t slices;  /* uses that are slices of one axis, which take no more of it together than there is; else 0 */
    lf_node forward; /* what has replaced it, LF_NONE */
    lf_node label;   /* the node as written whose value this is, LF_NONE */
    lf_node source;  /* the node as written it was made for: where notes say it is */
    bool fixed;      /* known when weights are prepared */
    bool rows;       /* extent 0 runs over rows, given that rows do not see each other */
    bool watched;    /* a witness */
    bool spared;     /* dead as written, but dead_code is switched off */
    bool counted;    /* its uses of its arguments are counted */
} lf_rw_facts;

/* The state of one sweep. */
struct lf_rw {
    lf_graph *g;        /* being built: rules append to it through the functions below */
    lf_rw_facts *facts; /* one per node of g; moves when nodes are made */
    lf_node *stack;     /* as long as facts, for walks */
    int32_t facts_capacity;
    lf_node *table;     /* nodes by what they compute, open addressing */
    uint32_t table_capacity;

    const lf_graph *in; /* as written */
    const lf_rewrite_options *options;
    bool rows;        /* rows do not see each other */
    lf_node rows_why; /* the node as written that mixes them */

    const lf_rule *rule; /* being tried */
    lf_node root;
    char why[256];
    lf_node asked[2]; /* witnesses the rule wants watched if its answer is taken */
    int asked_count;
    lf_node trusts;   /* the fixed value that the rule wants to be finite if its answer is taken, LF_NONE */
    lf_note *refused; /* of this sweep */
    int32_t refused_count, refused_capacity;
    lf_status status; /* LF_ERR_NOMEM sticks; everything made after it is LF_NONE */
};

/* ---- making nodes (make.c): an equal node is found rather than made again; LF_NONE for an argument that has to be
 * there, and for what inference refuses, gives LF_NONE ---- */

lf_node lf_rw_make(lf_rw *rw, lf_op op, const lf_node *args, const lf_attr *attrs); /* attrs NULL: defaults */
lf_node lf_rw_one(lf_rw *rw, lf_op op, lf_node x);
lf_node lf_rw_two(lf_rw *rw, lf_op op, lf_node x, lf_node y);
lf_node lf_rw_like(lf_rw *rw, lf_node n, int slot, lf_node arg); /* n with another argument */
lf_node lf_rw_number(lf_rw *rw, double value);
lf_node lf_rw_full(lf_rw *rw, double value, const lf_shape *shape);
lf_node lf_rw_linear(lf_rw *rw, lf_node x, lf_node weight, lf_node bias); /* bias may be LF_NONE */
lf_node lf_rw_reduce(lf_rw *rw, lf_op op, lf_node x, unsigned axes, bool keepdim);
/* The op with its one number: softmax or unsqueeze with their dim, leaky_relu with its slope. */
lf_node lf_rw_with(lf_rw *rw, lf_op op, lf_node x, double number);
lf_node lf_rw_transpose(lf_rw *rw, lf_node x, int a, int b);
lf_node lf_rw_clamp(lf_rw *rw, lf_node x, double low, double high); /* x itself when both ends are open */
lf_node lf_rw_view(lf_rw *rw, lf_node x, const lf_shape *shape);    /* x itself when it has that shape */

/* For the driver. */
lf_status lf_rw_begin(lf_rw *rw, lf_arena *arena, lf_diag *diag, const lf_graph *in);
lf_node lf_rw_copy(lf_rw *rw, const lf_node_info *info, const lf_node *args, bool fresh); /* fresh: not looked up */
bool lf_rw_alike(const lf_rw *rw, lf_node a, lf_node b); /* the same op of the same arguments and attributes */
void lf_rw_count(lf_rw *rw, lf_node n);                  /* counts what n and what was made for it use */
void lf_rw_release(lf_rw *rw, lf_node n);                /* n is wanted no more */

/* ---- asking (ask.c) ---- */

static inline const lf_node_info *lf_rw_at(const lf_rw *rw, lf_node n)
{
    return &rw->g->node[n];
}
static inline const lf_shape *lf_rw_shape(const lf_rw *rw, lf_node n)
{
    return &rw->g->node[n].shape;
}
static inline lf_node lf_rw_arg(const lf_rw *rw, lf_node n, int slot)
{
    return rw->g->node[n].arg[slot];
}
static inline bool lf_rw_is(const lf_rw *rw, lf_node n, lf_op op)
{
    return n != LF_NONE && rw->g->node[n].op == op;
}
static inline bool lf_rw_fixed(const lf_rw *rw, lf_node n)
{
    return rw->facts[n].fixed;
}

double lf_rw_attr(const lf_rw *rw, lf_node n, const char *name);
bool lf_rw_same_shape(const lf_rw *rw, lf_node a, lf_node b);
/* A constant that is finite as f32. */
bool lf_rw_constant(const lf_rw *rw, lf_node n, double *value);
/* Finite without being looked at: a parameter, or such a constant. */
bool lf_rw_finite_leaf(const lf_rw *rw, lf_node n);
/* Wanted by one value only, and not watched. */
bool lf_rw_sole(const lf_rw *rw, lf_node n);
/* Where the variables of n's expression lie, going by n alone: its numbers, constants, and statistics' results. */
void lf_rw_intervals(const lf_rw *rw, lf_node n, lf_interval v[LF_EXPR_VARIABLE_COUNT]);
/* Never below 0 (NaN aside); nor -0 either. */
bool lf_rw_nonnegative(const lf_rw *rw, lf_node n);
bool lf_rw_never_minus_zero(const lf_rw *rw, lf_node n);
/* True where n repeats over each of these axes of a value of that rank. */
bool lf_rw_repeats(const lf_rw *rw, lf_node n, int rank, unsigned axes);
/* True where an element of argument `slot` that is not finite leaves one in the same row of n that is not either. */
bool lf_rw_keeps_nonfinite(const lf_rw *rw, lf_node n, int slot);
/* An extent at the numbers to weigh choices by (a name without one counts as 1024). */
double lf_rw_extent(const lf_rw *rw, lf_extent e);
/* add and sub with the value on the left and the rest on the right: true, and the shape of x is that of n. add(y, x)
 * counts unless alpha scales x; sub(y, x) does not. */
bool lf_rw_shifted(const lf_rw *rw, lf_node n, int x_slot);

/* A linear of fixed weight and bias (LF_NONE where absent); N and K are numbers. */
typedef struct lf_fixed_linear {
    lf_node x, weight, bias;
    int64_t n, k;
} lf_fixed_linear;
bool lf_rw_fixed_linear(const lf_rw *rw, lf_node n, lf_fixed_linear *out);

/* ---- saying ---- */

__attribute__((format(printf, 2, 3))) void lf_rw_why(lf_rw *rw, const char *fmt, ...);
__attribute__((format(printf, 2, 3))) lf_node lf_rw_refuse(lf_rw *rw, const char *fmt, ...); /* LF_KEEP */
/* Whether the root may be guarded: rows are independent and it has some, or no guard is wanted. Notes a refusal. */
bool lf_rw_may_guard(lf_rw *rw);
/* Asks for a witness; its extent 0 is that of the root. */
void lf_rw_watch(lf_rw *rw, lf_node witness);
/* Says that the answer holds only if this fixed value is finite. For a value that the rule drops: what is computed from
 * parameters is looked at without being named. */
void lf_rw_trust(lf_rw *rw, lf_node fixed);

#define LF_KIND(kind)   (1u << (kind))
#define LF_TABLE(rules) {(rules), sizeof(rules) / sizeof(rules)[0]}

#endif
