/* SPDX-License-Identifier: Apache-2.0 */
/* One sweep: the graph is built anew, node by node, each simplified as soon as its arguments are. */
#ifndef LF_REWRITE_SWEEP_H
#define LF_REWRITE_SWEEP_H

#include "rewrite/rules.h"

/* A graph and what stands beside its nodes. */
typedef struct lf_scene {
    const lf_graph *g;
    const lf_rw_facts *facts;
} lf_scene;

typedef struct lf_sweeper {
    lf_rw rw;                                  /* what is being built */
    bool on[LF_MAX_RULES];                     /* one per rule, in order of lf_rule_at */
    int8_t rule_of[LF_OP_COUNT][LF_MAX_RULES]; /* the rules of a root, -1 ends */
    bool resting;                              /* no rules in this sweep: equal values are merged, dead ones left out */
    bool changed;                              /* a rule was applied */
    lf_arena *notes_arena;
    lf_notes *notes;
    int32_t done_capacity;
} lf_sweeper;

/* The driver's own rules, by name. */
extern const char lf_rule_cse[], lf_rule_dce[];
const lf_rule *lf_rule_row(size_t index); /* NULL past the end */
bool lf_rule_on(const lf_sweeper *s, const char *name);

/* Builds what `from` computes into s->rw, whose graph is begun; map (one per node of from) tells where each went,
 * LF_NONE for what nothing needs. Fails: LF_ERR_NOMEM. */
lf_status lf_sweep(lf_sweeper *s, lf_scene from, lf_node *map);

/* live: one per node; what outputs, witnesses and spared values need. uses: by those, outputs counted; may be NULL. */
void lf_scene_live(lf_scene scene, bool *live, int32_t *uses);

lf_status lf_note_done(lf_sweeper *s, const lf_rule *rule, lf_node source, const char *why);

/* Writes the finished graph into out, with guards and names. map: as above, one per node of s->rw.g.
 * Fails: LF_ERR_NOMEM. */
lf_status lf_rewrite_emit(lf_sweeper *s, lf_graph *out, lf_node *map);

#endif
