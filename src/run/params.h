/* SPDX-License-Identifier: Apache-2.0 */
/* A program's parameters: where the values of each lie. */
#ifndef LF_RUN_PARAMS_H
#define LF_RUN_PARAMS_H

#include "run/handles.h"

/* The values may lie in host memory, on the device, or in both places; then they are the same values. */
struct lf_param {
    int64_t extents[LF_MAX_RANK];
    const void *host;          /* NULL: not in host memory */
    void *host_copy;           /* owned; where host points. NULL: host is borrowed, or NULL */
    const void *device;        /* NULL: not on the device */
    void *device_copy;         /* owned; where device points. NULL: device is borrowed, or NULL */
    uint64_t fingerprint;      /* of borrowed host memory, when it was prepared */
};

/* Memory for the list, no parameter with values. Message in the program. */
lf_status lf_params_new(lf_program *program);
void lf_params_free(lf_program *program);

/* The name in the model. */
const char *lf_param_name(const lf_program *program, int32_t index);
/* The number of elements, and their bytes. */
size_t lf_param_count(const lf_program *program, int32_t index);
size_t lf_param_bytes(const lf_program *program, int32_t index);
static inline bool lf_param_has_values(const lf_param *p) { return p->host || p->device; }
/* In memory that others may write. */
static inline bool lf_param_is_borrowed_from_host(const lf_param *p) { return p->host && !p->host_copy; }

/* Memory of its own on the host, uninitialized where it is new. Message in the program. */
lf_status lf_param_reserve(lf_program *program, int32_t index, void **out);
/* Its values are no longer in host memory, or no longer on the device. */
void lf_param_leave_host(lf_program *program, int32_t index);
void lf_param_leave_device(lf_program *program, int32_t index);
/* Copies values from an address on the device, once the work on stream is done, to host memory. Message in the
 * program. */
lf_status lf_param_read_device(lf_program *program, int32_t index, const void *from, void *stream);

/* A number that changes with the values: with any byte of up to LF_FINGERPRINT_ALL, with a sample of more. */
enum { LF_FINGERPRINT_ALL = 1 << 16 };
uint64_t lf_fingerprint(const void *data, size_t bytes);

#endif
