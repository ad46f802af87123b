/* SPDX-License-Identifier: Apache-2.0 */
/* The account: what a model costs as written, what was rewritten, fused and refused, and why, what it costs now. It
 * reads what the other rooms decided and decides nothing. */
#ifndef LF_RUN_ACCOUNT_H
#define LF_RUN_ACCOUNT_H

#include "base/str.h"
#include "cuda/choose.h"
#include "plan/cost.h"
#include "plan/plan.h"
#include "rewrite/rewrite.h"

typedef struct lf_account {
    const lf_graph *written;   /* as the user wrote it */
    /* one per written node: the rewritten node that stands for it, LF_NONE when it is dead */
    const lf_node *home;
    const lf_notes *notes;
    const lf_plan *plan;       /* plan->graph is the rewritten graph */
    const lf_device *device;
    const int64_t *dims;       /* one per symbol */
    int64_t workspace_bytes;   /* what a call needs beside tensors, on this device */
    int64_t prepared_bytes;
    const char *precision;     /* fp32, tf32, bf16, fp16: how products take their operands */
    const lf_cuda_choice *choice; /* of tiles; NULL: there is none to make */
} lf_account;

/* *out: malloc'ed, caller owns. Fails: LF_ERR_NOMEM. */
lf_status lf_account_json(const lf_account *a, char **out, lf_diag *diag);
lf_status lf_account_text(const lf_account *a, char **out, lf_diag *diag);

/* ---- what both of them print; inside the account's files ---- */

typedef enum lf_fate {
    LF_FATE_INSIDE,   /* lives inside a kernel, never in memory */
    LF_FATE_STORED,   /* returned, or stored between kernels */
    LF_FATE_PREPARED, /* known once the parameters are: computed with the weights */
    LF_FATE_PASSED,   /* an input under another name */
    LF_FATE_GONE      /* nothing needs it */
} lf_fate;

/* An op as written. */
typedef struct lf_op_fact {
    lf_node node;
    lf_cost cost;
    int32_t group;             /* the kernel that computes it, -1 when none does */
    lf_fate fate;
} lf_op_fact;

typedef struct lf_facts {
    lf_arena arena;
    lf_op_fact *op;            /* in order of writing; views are ops too, and cost nothing */
    int32_t ops;
    lf_cost *kernel;           /* one per group of the plan */
    lf_cost plain, fused;
    int32_t plain_launches;
    int64_t intermediate_bytes;
} lf_facts;

/* Leaves facts to be freed, whatever it returns. Fails: LF_ERR_NOMEM. */
lf_status lf_facts_new(const lf_account *a, lf_facts *out, lf_diag *diag);
void lf_facts_free(lf_facts *facts);

/* How the tiles came to be chosen, in a word. */
const char *lf_account_how(const lf_cuda_choice *choice);

/* A kernel's phases in one line of words: "product 1024 x 8192 x 8192, bias, then ...". */
void lf_account_phases(lf_str *s, const lf_account *a, const lf_group *g);

#endif
