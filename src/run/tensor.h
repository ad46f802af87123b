/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor descriptors as callers give them: whether they are what a port declares, and their elements in order. */
#ifndef LF_RUN_TENSOR_H
#define LF_RUN_TENSOR_H

#include "base/status.h"
#include "ir/graph.h"

/* A port that a tensor is for. */
typedef struct lf_port_ref {
    const char *kind;           /* "input", "output", "parameter" */
    const lf_graph *graph;
    lf_node node;
} lf_port_ref;

/* Whether t is well-formed and of the declared dtype, rank and fixed extents, with data unless it is empty. t may be
 * NULL. Fails: LF_ERR_ARG, LF_ERR_DATA, with a message that names the port and the field. */
lf_status lf_tensor_check(const lf_tensor *t, lf_port_ref port, lf_diag *diag);

/* Whether the elements are row-major without gaps; the stride of an axis of extent 1 says nothing. */
bool lf_tensor_is_dense(const lf_tensor *t);
/* Fails, LF_ERR_UNSUPPORTED, where they are not. */
lf_status lf_tensor_need_dense(const lf_tensor *t, lf_port_ref port, lf_diag *diag);

/* The elements of a tensor in host memory, copied to `to` in row-major order without gaps. */
void lf_tensor_pack(const lf_tensor *t, void *to);

/* Learns the named extents from those of the inputs, which agree with the model's ranks and numbers, and checks that
 * the model can be run there. extents: one list per input. dims: one per name. Fails: LF_ERR_DATA. */
lf_status lf_learn_dims(const lf_graph *g, const int64_t *const *extents, int64_t *dims, lf_diag *diag);

#endif
