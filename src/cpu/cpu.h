/* SPDX-License-Identifier: Apache-2.0 */
/* A plan made runnable on the CPU. Three lifetimes:
 *   lf_cpu_weights   a plan's prepared tensors, folded and packed: one per program, remade when parameters change
 *   lf_cpu_instance  a plan at known extents: strides, tiles, offsets, as numbers. Read-only once built
 *   workspace        the bytes one running call needs; the caller's */
#ifndef LF_CPU_CPU_H
#define LF_CPU_CPU_H

#include "base/pool.h"
#include "cpu/kern.h"
#include "plan/plan.h"

typedef struct lf_cpu_weights lf_cpu_weights;
typedef struct lf_cpu_instance lf_cpu_instance;

/* Evaluates the plan's prepared tensors in double, rounds them once to f32, packs those that products read.
 * param: one per node of the plan's graph, the values of its parameters (borrowed while the weights live: a parameter
 *        that nothing folds or packs is read in place).
 * pack:  false leaves products' weights unpacked, to be packed strip by strip at each call (plans that rarely run).
 * finite (may be NULL): set to whether every parameter the plan reads and every prepared tensor is finite, and rounding
 *        lost none of the latter to underflow: if not, folding may have changed what the model computes.
 * Fails: LF_ERR_NOMEM. */
lf_status lf_cpu_weights_new(const lf_plan *plan, const lf_kern *kern, const float *const *param, bool pack,
                             lf_pool *pool, bool *finite, lf_cpu_weights **out, lf_diag *diag);
void lf_cpu_weights_free(lf_cpu_weights *w);
size_t lf_cpu_weights_bytes(const lf_cpu_weights *w); /* owned, borrowed parameters not counted */
/* What was prepared, for another backend to take: row-major tensors, one per prepared (NULL where only a packed form is
 * left), and narrow products' weight [n][k] and bias [n], one per product of the plan (NULL for others). */
const float *const *lf_cpu_weights_tensors(const lf_cpu_weights *w);
const double *const *lf_cpu_weights_narrow(const lf_cpu_weights *w);

/* Is none of x[0..count) Inf or NaN? By all threads. */
bool lf_cpu_all_finite(const float *x, int64_t count, lf_pool *pool);

/* The plan at known extents, for up to `threads` threads at once. Lives on its own; borrows plan and kern.
 * Fails: LF_ERR_NOMEM. LF_ERR_DATA when an extent or a byte count overflows. */
lf_status lf_cpu_instance_new(const lf_plan *plan, const lf_kern *kern, const int64_t *dims, int threads,
                              lf_cpu_instance **out, lf_diag *diag);
void lf_cpu_instance_free(lf_cpu_instance *instance);
size_t lf_cpu_instance_bytes(const lf_cpu_instance *instance);
/* What one run needs beside inputs and outputs, 64-byte aligned. */
size_t lf_cpu_workspace(const lf_cpu_instance *instance);

/* Runs it. Allocates nothing, cannot fail. input, output: by port, row-major. flagged (one byte per row of the batch,
 * `batch` of them; NULL when the plan watches nothing): set to 1 where a witness was not finite. pool may be NULL. */
void lf_cpu_run(const lf_cpu_instance *instance, const lf_cpu_weights *weights, const float *const *input,
                float *const *output, void *workspace, unsigned char *flagged, int64_t batch, lf_pool *pool);

#endif
