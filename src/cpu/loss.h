/* SPDX-License-Identifier: Apache-2.0 */
/* Linear and cross-entropy with its gradient, LF_LOSS_TOKENS tokens at a time: what lf_loss_* of linfuse.h do, once
 * arguments are checked. Beside the plan's loops rather than by them: a plan has one walk over its rows, and here the
 * logits of some rows feed three products, of which one is summed over all rows. */
#ifndef LF_CPU_LOSS_H
#define LF_CPU_LOSS_H

#include "base/pool.h"
#include "base/status.h"
#include "cpu/kern.h"

/* A checked loss. Borrows everything. */
typedef struct lf_loss_job {
    const lf_loss *loss;
    const lf_kern *kern;
    lf_pool *pool;
    int64_t tokens, words, depth;  /* M, N, K */
    const int64_t *counted;        /* the tokens that are not left out, in order */
    int64_t counts;
    double all_words, all_weights; /* of the whole vocabulary: words, and their class weights summed up */
} lf_loss_job;

/* ---- numbers of one token: loss_rows.c ---- */

/* A row in double precision, in which parts of it meet. */
typedef struct lf_loss_part {
    double largest, sum, target, all, spread;
} lf_loss_part;
extern const lf_loss_part lf_loss_no_words;
/* b, of words after those of a, into a. */
void lf_loss_part_combine(lf_loss_part *a, const lf_loss_part *b);
lf_loss_part lf_loss_part_of(const lf_loss_row *row);
lf_loss_row lf_loss_row_of(const lf_loss_part *part);

/* What a token's loss is made of: cross-entropy, and z_loss; and what else is asked of it. */
typedef struct lf_loss_numbers {
    double cross_entropy, z, lse, entropy;
} lf_loss_numbers;
lf_loss_numbers lf_loss_numbers_of(const lf_loss_job *job, int64_t token, const lf_loss_row *row);

/* The weight of a token's target. */
double lf_loss_share(const lf_loss_job *job, int64_t token);

/* The gradient of what follows with respect to these numbers. */
typedef lf_loss_numbers lf_loss_seed;

/* The gradient of a token's logits l: exp(l - largest) / divisor - even * class weight - entropy * p (l + shift), for
 * p = exp(l - largest) / sum. The first term of the target's is all * p - hit: one of the two nearly is the other where
 * a token is learnt. */
typedef struct lf_loss_slope {
    float largest, sum, divisor, even, entropy, shift;
    double all, hit;
} lf_loss_slope;
lf_loss_slope lf_loss_slope_of(const lf_loss_job *job, int64_t token, const lf_loss_row *row, const lf_loss_seed *seed);

/* ---- all of them: loss.c ---- */

/* The seed of a token. */
typedef lf_loss_seed lf_loss_seed_of(const void *arg, const lf_loss_job *job, int64_t token);

typedef struct lf_loss_pass {
    lf_loss_row *rows;   /* [M]: statistics, made unless they are `given`; those of tokens left out are not touched */
    bool given;
    bool spread;         /* lf_loss_row.spread is wanted */
    /* NULL: no gradient is wanted */
    const lf_loss_gradient *gradient;
    lf_loss_seed_of *seed;
    const void *arg;     /* seed's */
} lf_loss_pass;

/* Bytes of workspace that a pass takes; 0 where they cannot be counted. */
size_t lf_loss_bytes(const lf_loss_job *job, const lf_loss_gradient *gradient);
/* Fails: LF_ERR_NOMEM. */
lf_status lf_loss_run(const lf_loss_job *job, const lf_loss_pass *pass, lf_diag *diag);

#endif
