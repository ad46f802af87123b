/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan reads of its parameters, made ready: evaluated in double precision, rounded once to f32, checked. A
 * backend then brings it into the form its kernels read, packed or on a device. */
#ifndef LF_PREPARE_PREPARE_H
#define LF_PREPARE_PREPARE_H

#include "base/pool.h"
#include "plan/plan.h"

/* A plan's prepared tensors. */
typedef struct lf_prepared {
    lf_arena arena;
    int32_t tensors, products; /* of the plan */
    /* one per prepared tensor, row-major, of what lf_stored_dtype says: computed, or a parameter as it lies (borrowed);
     * NULL where the parameter is not in host memory, and where it was dropped */
    const void **tensor;
    void **computed;         /* one per prepared tensor: those that tensor points to which were computed; owned */
    /* one per product: w [n][k], then the bias [n], not rounded; owned; NULL: it is not narrow */
    double **narrow;
    size_t bytes;            /* owned */
    /* Whether what a rewrite folded is what the model means: every parameter that was to be checked is finite, so is
     * every tensor computed, and rounding lost none to underflow. true where nothing was to be checked. */
    bool sound;
} lf_prepared;

/* What preparing wants of the parameters, by index; see lf_prepare_needs. */
typedef struct lf_prepare_want {
    bool read;  /* its values, in host memory */
    bool check; /* whether they are finite; then they are read, too */
} lf_prepare_want;

/* Finds what preparing fused wants of its graph's parameters. as_written: the plan that runs instead where fused cannot
 * be relied on, NULL where fused was rewritten by exact rules alone: then nothing is checked. Otherwise a parameter is
 * checked if a tensor of fused is computed from it, if a rule trusts it (lf_notes.trusted), and if as_written alone
 * reads it. Parameters that kernels read as they were given are not looked at: no law was applied to them.
 * want: one per parameter.
 * Fails: LF_ERR_NOMEM. */
lf_status lf_prepare_needs(const lf_plan *fused, const lf_plan *as_written, const bool *trusted, lf_prepare_want *want,
                           lf_diag *diag);

/* Evaluates the plan's prepared tensors, by all threads of pool where it pays.
 * param: one per parameter of the plan's graph, its values (borrowed while the result lives); NULL where they are not
 *        in host memory, for parameters that need not be read.
 * want:  one per parameter, of which `check` counts; NULL: nothing is checked.
 * Fails: LF_ERR_NOMEM. */
lf_status lf_prepare(const lf_plan *plan, const void *const *param, const lf_prepare_want *want, lf_pool *pool,
                     lf_prepared **out, lf_diag *diag);
void lf_prepared_free(lf_prepared *prepared);
/* Bytes owned: not parameters as they lie. */
size_t lf_prepared_bytes(const lf_prepared *prepared);
/* Frees a computed tensor, for a backend that has it in another form; one that was not computed stays. */
void lf_prepared_drop(lf_prepared *prepared, const lf_plan *plan, int32_t tensor);

/* The elements of a plan's prepared tensor: no named extent is among its own. */
int64_t lf_prepared_count(const lf_plan *plan, int32_t tensor);

#endif
