/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors the command holds for a model's inputs and outputs, and calls with them. */
#ifndef LF_CLI_TENSOR_H
#define LF_CLI_TENSOR_H

#include "cli/session.h"

typedef struct cli_tensor {
    const char *name; /* the port's */
    lf_dtype dtype;
    int rank;
    int64_t extents[LF_MAX_RANK];
    size_t count;      /* elements */
    const void *data;  /* so many elements, row-major: own, or the file's */
    void *own;         /* NULL where data is a file's */
    lf_array *file;    /* owned */
    const char *path;  /* of that file, for messages; NULL where there is none */
} cli_tensor;

/* One list of all inputs or all outputs of a model. All zero holds nothing. */
typedef struct cli_tensors {
    cli_tensor *at;
    size_t count;
} cli_tensors;

void cli_tensors_free(cli_tensors *t);

/* The tensor as linfuse takes it. */
lf_tensor cli_tensor_as(const cli_tensor *t);
/* Its elements as f32: where they lie, or converted, in *own, which the caller frees. NULL, with a line said, where
 * there is no memory. */
const float *cli_tensor_floats(const cli_tensor *t, float **own);
/* Bytes of an element. */
size_t cli_element_bytes(lf_dtype dtype);

/* Memory for count elements of size bytes, not zeroed; the caller frees it. NULL, with a line said, where that is more
 * than there is: more than the whole machine has is refused before the system could grant it and fail later. */
void *cli_alloc(size_t count, size_t size, const char *what);

/* The inputs at s->dims, with memory: what cannot be had is said before time is spent on anything else. */
int cli_tensors_inputs(const cli_session *s, cli_tensors *out);
/* Fills them, uniform in [0, 1), from the seed and their names; positions (i64) are all 0, which every axis has.
 * Fails where there is no memory. */
int cli_tensors_draw(const cli_session *s, cli_tensors *inputs);
/* As many tensors as the model has ports of the kind, named and typed, without extents or data. */
int cli_tensors_new(const cli_session *s, lf_port port, cli_tensors *out);
/* Finds count from the extents and gives the tensor memory for its type. */
int cli_tensor_alloc(cli_tensor *t);

/* A call with inputs bound and outputs made (extents and memory) and bound. */
int cli_call_new(const cli_session *s, lf_program *program, const cli_tensors *inputs, cli_tensors *outputs,
                 lf_call **out);
/* Runs it; *seconds by the clock, may be NULL. */
int cli_call_run(lf_call *call, double *seconds);

/* Seconds by a clock that never goes back. */
double cli_now(void);

#endif
