/* SPDX-License-Identifier: Apache-2.0 */
/* The same function, less work: named laws applied until none fits.
 *
 * A rule looks at one node of a graph it may append to, and answers a node of the same shape that computes the same
 * value, or LF_KEEP. It never changes a node. What it declined for a reason a person would want to know, it notes. */
#ifndef LF_REWRITE_REWRITE_H
#define LF_REWRITE_REWRITE_H

#include "ir/graph.h"

#define LF_KEEP LF_NONE

/* A rule's class: classes.def. */
typedef enum lf_rule_class {
#define LF_CLASS(name, words) LF_##name,
#include "rewrite/classes.def"
#undef LF_CLASS
    LF_RULE_CLASSES
} lf_rule_class;
const char *lf_rule_class_name(lf_rule_class c); /* "EXACT", ... */
/* What a class means, in a few words, by its name; NULL where there is no such class. */
const char *lf_rule_class_words(const char *name);

typedef struct lf_rewrite_options {
    const char *rules;   /* "+name,-name,all,none"; NULL: every rule */
    bool assume_finite;  /* no guards: GUARDED rules become ASSUMES_FINITE */
    bool as_written;     /* only EXACT rules: what guarded rows, and weights that are not finite, fall back to */
    const int64_t *dims; /* one per symbol: the extents to weigh choices by; NULL, or 0 for one: 1024 */
} lf_rewrite_options;

typedef struct lf_note {
    const char *rule;
    lf_rule_class class;
    const char *at;  /* the name of the value, as written */
    const char *why; /* one sentence */
} lf_note;

typedef struct lf_notes {
    lf_note *done, *refused;
    int32_t done_count, refused_count;
    /* one per parameter: a rule that was applied holds only if it is finite, though nothing may be computed from it any
     * more */
    bool *trusted;
} lf_notes;

/* Rewrites `in` into `out`, an initialised empty graph with an arena of its own lifetime; notes live in that arena too.
 * Needs:   a verified graph. Leaves it unchanged.
 * Leaves:  a verified graph without dead nodes or common subexpressions (unless those rules are switched off); same
 *          inputs, params (all of them, in order), outputs and symbols. Values keep the names they had as written;
 *          where several have become one, an output's name wins.
 *          guard(v, v) stands right after a value v that a guarded rule made; a witness that nothing else reads hangs
 *          on an output it broadcasts to. A guard's place means nothing: a row that any witness flags is redone as a
 *          whole.
 *          home: one per node of `in`; the node of `out` that computes it, or that of the nearest user which has
 *          absorbed it; LF_NONE when no output needs it.
 *          notes: what was done, in order; what was refused, as it stands at the end.
 * Fails:   LF_ERR_ARG (as lf_rules_check), LF_ERR_NOMEM. */
lf_status lf_rewrite(const lf_graph *in, const lf_rewrite_options *options, lf_graph *out, lf_node *home,
                     lf_notes *notes);

/* Whether every name in rules is one. rules: as in lf_rewrite_options.
 * Fails: LF_ERR_ARG, listing the rules there are; LF_ERR_NOMEM. */
lf_status lf_rules_check(const char *rules, lf_diag *diag);

/* The rules, for `explain`, tests and documentation, in the order they are tried: NULL past the end. */
typedef struct lf_rule_info {
    const char *name, *law;
    lf_rule_class class;
} lf_rule_info;
const lf_rule_info *lf_rule_at(size_t index);

#endif
