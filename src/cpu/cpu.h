/* SPDX-License-Identifier: Apache-2.0 */
/* A plan made runnable on the CPU. Three lifetimes:
 *   lf_cpu_weights   a plan's prepared tensors, packed: one per program, remade when parameters change
 *   lf_cpu_instance  a plan at known extents: strides, tiles, offsets, as numbers. Read-only once built
 *   workspace        the bytes one running call needs; the caller's */
#ifndef LF_CPU_CPU_H
#define LF_CPU_CPU_H

#include "backend/backend.h"
#include "base/pool.h"
#include "base/str.h"
#include "cpu/kern.h"
#include "plan/plan.h"
#include "prepare/prepare.h"

typedef struct lf_cpu_weights lf_cpu_weights;
typedef struct lf_cpu_instance lf_cpu_instance;

extern const lf_backend lf_cpu_backend;

/* The kernels of this machine's instruction set, or of the one LINFUSE_ISA names. Fails: LF_ERR_ARG where that is none
 * this machine can run. */
lf_status lf_cpu_kernels(const lf_kern **out, lf_diag *diag);

/* What /proc/cpuinfo calls the processor; the machine's kind where it does not say. */
void lf_cpu_model(char *model, size_t size);

/* What this machine is costed as: measured on the pool's threads the first time, then remembered in a file under
 * $XDG_CACHE_HOME/linfuse (~/.cache/linfuse), one for each processor, instruction set, number of threads and set of
 * things to measure, which changes with the ops there are. A file that cannot be read, is damaged or cannot be written
 * is as good as none. With a loop of the caller's it is measured anew each time. Fails: as above; LF_ERR_NOMEM. */
lf_status lf_cpu_device(lf_pool *pool, lf_device *out, lf_diag *diag);

/* Adds when the machine was measured on so many threads. Fails: LF_ERR_DATA where it was not; as lf_cpu_kernels. */
lf_status lf_cpu_measured(int threads, lf_str *out, lf_diag *diag);

/* Packs a plan's prepared tensors for the products that read them; what is left is read as it lies. Takes prepared, on
 * failure too.
 * pack: false leaves products' weights unpacked, to be packed strip by strip at each call (plans that rarely run).
 * Fails: LF_ERR_NOMEM. */
lf_status lf_cpu_weights_new(const lf_plan *plan, const lf_kern *kern, lf_prepared *prepared, bool pack, lf_pool *pool,
                             lf_cpu_weights **out, lf_diag *diag);
void lf_cpu_weights_free(lf_cpu_weights *w);
size_t lf_cpu_weights_bytes(const lf_cpu_weights *w); /* owned, borrowed parameters not counted */

/* The plan at known extents, for up to `threads` threads at once. Lives on its own; borrows plan and kern.
 * Fails: LF_ERR_NOMEM. LF_ERR_DATA when an extent or a byte count overflows. */
lf_status lf_cpu_instance_new(const lf_plan *plan, const lf_kern *kern, const int64_t *dims, int threads,
                              lf_cpu_instance **out, lf_diag *diag);
void lf_cpu_instance_free(lf_cpu_instance *instance);
size_t lf_cpu_instance_bytes(const lf_cpu_instance *instance);
/* What one run needs beside inputs and outputs, 64-byte aligned. */
size_t lf_cpu_workspace(const lf_cpu_instance *instance);

/* Runs it. Allocates nothing, cannot fail. input, output: by port, row-major, of
 * its type. flagged (one byte per row of the batch,
 * `batch` of them; NULL when the plan watches nothing): set to 1 where a witness was not finite. pool may be NULL. */
void lf_cpu_run(const lf_cpu_instance *instance, const lf_cpu_weights *weights, const void *const *input,
                void *const *output, void *workspace, unsigned char *flagged, int64_t batch, lf_pool *pool);

#endif
