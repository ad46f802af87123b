/* SPDX-License-Identifier: Apache-2.0 */
/* The account: what a model costs as written, what was rewritten, fused and refused, and why, what it costs now. It
 * reads what the other modules decided and decides nothing. Its fields are report.def's. */
#ifndef LF_RUN_ACCOUNT_H
#define LF_RUN_ACCOUNT_H

#include "base/arena.h"
#include "base/str.h"
#include "plan/cost.h"
#include "plan/plan.h"
#include "rewrite/rewrite.h"

typedef enum lf_fate {
    LF_FATE_INSIDE,   /* lives inside a kernel, never in memory */
    LF_FATE_STORED,   /* returned, or stored between kernels */
    LF_FATE_PREPARED, /* known once the parameters are: computed with the weights */
    LF_FATE_PASSED,   /* an input under another name */
    LF_FATE_GONE,     /* nothing needs it */
    LF_FATES
} lf_fate;

typedef struct lf_fate_row {
    const char *name;          /* in JSON */
    const char *words;         /* for people */
} lf_fate_row;
extern const lf_fate_row lf_fate_table[LF_FATES];

/* An op as written. */
typedef struct lf_op_fact {
    lf_node node;
    lf_cost cost;
    int32_t group;             /* the kernel that computes it, -1 when none does */
    lf_fate fate;
} lf_op_fact;

typedef struct lf_kernel_fact {
    lf_cost cost;
    const char *phases;        /* in one line of words: "product 1024 x 8192 x 8192, bias, then ..." */
    const char *shared;        /* "3 products share x"; NULL where it has no more than one */
} lf_kernel_fact;

struct lf_account {
    /* what is known of a program; borrowed, unless it is a value */
    const lf_graph *written;   /* as the user wrote it */
    /* one per written node: the rewritten node that stands for it, LF_NONE when it is dead */
    const lf_node *home;
    const lf_notes *notes;
    const lf_plan *plan;       /* plan->graph is the rewritten graph */
    lf_device device;
    int64_t dims[LF_MAX_SYMBOLS];
    double workspace_bytes;    /* what a call needs beside tensors, on this device */
    double prepared_bytes;     /* of prepared parameters: what they take, or are expected to */
    const char *precision;     /* how products take their operands */
    lf_tile_choice choice;     /* of tiles, where has_choice */
    bool has_choice;

    /* what follows from it: lf_account_fill */
    lf_arena arena;
    lf_op_fact *op;            /* in order of writing; views are ops too, and cost nothing */
    int32_t ops;
    lf_kernel_fact *kernel;    /* one per group of the plan */
    lf_cost plain, fused;
    int32_t plain_launches, fused_launches;
    double plain_host_us; /* as lf_account_host_us has it */
    double intermediate_bytes;
};

/* Works out the second half of it. Leaves an arena to be freed, whatever it returns. Fails: LF_ERR_NOMEM. */
lf_status lf_account_fill(lf_account *a, lf_diag *diag);

/* *out: malloc'ed, caller owns. Fails: LF_ERR_NOMEM. */
lf_status lf_account_to_json(const lf_account *a, char **out);
lf_status lf_account_to_text(const lf_account *a, char **out);

/* ---- what they and the page print; inside the account's files ---- */

/* How a field is written. */
typedef enum lf_field_unit {
    LF_AS_TEXT, LF_AS_COUNT, LF_AS_FLOP, LF_AS_BYTE, LF_AS_US, LF_AS_FLOP_S, LF_AS_BYTE_S
} lf_field_unit;

typedef struct lf_datum {
    const char *text;          /* TEXT; NULL: there is none */
    double number;             /* anything else */
} lf_datum;

/* One row of report.def. */
typedef struct lf_field_row {
    lf_field field;
    lf_field_unit unit;
    lf_datum (*from)(const lf_account *a, int32_t i);
} lf_field_row;

/* Does it stand in a column, or in a line, of figures? */
static inline bool lf_is_figure(const lf_field_row *f)
{
    return f->field.column && f->unit != LF_AS_TEXT;
}

/* The table; NULL past the end. The fields of a section stand together. */
const lf_field_row *lf_field_row_at(size_t index);
/* The first of a section's. NULL: there is no such section. */
const lf_field_row *lf_section(const char *section);
/* The next of the same section; NULL after the last. */
const lf_field_row *lf_next_field(const lf_field_row *row);

typedef struct lf_amount {
    char text[32];
} lf_amount;

/* A finite amount as its unit wants it; not of TEXT. */
lf_amount lf_account_amount(lf_field_unit unit, double value);
/* What PyTorch takes on the host for so many launches; none on a CPU. */
double lf_account_host_us(bool gpu, int32_t launches);
/* Is fusion predicted to be slower, but PyTorch's launches take longer still? Then which is faster is not for kernels
 * to say. */
bool lf_account_launches_decide(double plain_us, double fused_us, double plain_host_us);
/* How many times as fast: "1.7x". */
lf_amount lf_account_gain(double plain_us, double fused_us);
/* What fusion is expected to be worth. What is compared is said, since nothing of it was run: lf_cost_node knows a
 * GPU's products op by op as a library has them. gain: NULL where launches decide. */
void lf_account_predicted(lf_str *s, bool gpu, lf_amount plain, lf_amount fused, const lf_amount *gain);
/* A sentence for where launches decide. */
extern const char lf_account_doubt[];

/* A kernel's phases in words. */
void lf_account_phases(lf_str *s, const lf_account *a, const lf_group *g);
/* How the tiles came to be chosen, in a word. */
const char *lf_account_how(const lf_tile_choice *choice);

#endif
