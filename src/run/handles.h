/* SPDX-License-Identifier: Apache-2.0 */
/* What stands behind the public handles. */
#ifndef LF_RUN_HANDLES_H
#define LF_RUN_HANDLES_H

#include <stdatomic.h>

#include "backend/backend.h"
#include "base/pool.h"
#include "plan/plan.h"
#include "rewrite/rewrite.h"

enum { LF_BACKENDS = 8 };

/* A backend, and its device once that was wanted. */
typedef struct lf_opened {
    const lf_backend *backend;
    void *device;
    bool open;
} lf_opened;

struct lf_context {
    lf_diag diag;
    int threads;          /* 0: one per core */
    lf_parallel_for loop; /* the caller's, with user, borrowed; NULL: threads of our own, or the process's team */
    void *user;
    lf_exchange exchange; /* the caller's, user borrowed; ranks 0: none */
    lf_openmp team;       /* the process's; its functions are NULL: threads of our own */
    lf_pool *pool;        /* made for the first program; owned */
    lf_opened backend[LF_BACKENDS]; /* devices owned */
    int backends;
};

struct lf_model {
    lf_context *context;  /* borrowed */
    lf_diag diag;
    lf_arena arena;
    lf_graph graph;
    bool returned;
};

extern const char lf_not_finished[];        /* a message, for a model without its return */
extern const char lf_needs_device_memory[]; /* the end of one, for what has to do with a device's own memory */

typedef struct lf_dim_hint {
    char name[64];
    int64_t value;
} lf_dim_hint;

typedef struct lf_dim_hints {
    lf_dim_hint hint[LF_MAX_SYMBOLS];
    int count;
} lf_dim_hints;

struct lf_options {
    lf_context *context;  /* borrowed: whose backends are known; NULL: the defaults need none */
    lf_diag diag;
    char device[16];
    char precision[8];
    char *rules;          /* owned; NULL: all */
    bool assume_finite, fuse, tune, lazy;
    lf_dim_hints weigh, first; /* dim.NAME, first.NAME */
};

/* One way to run the program: a graph and its plan. */
typedef struct lf_variant {
    lf_graph graph;
    lf_plan *plan;              /* NULL: this variant is not there */
    lf_node *home;              /* one per node of the written graph */
    lf_notes notes;
} lf_variant;

typedef struct lf_param lf_param;

struct lf_program {
    lf_context *context;        /* borrowed */
    lf_diag diag;
    lf_arena arena;
    lf_graph written;           /* as the user wrote it */
    lf_variant fused;           /* rewritten as the options allow */
    /* rewritten by EXACT rules only: for guarded rows, and for weights that are not finite */
    lf_variant exact;
    lf_opened on;               /* borrowed from the context */
    lf_backend_task task;
    void *compiled;             /* the backend's; owned */
    char device[16];
    int64_t hint[LF_MAX_SYMBOLS];
    int64_t first[LF_MAX_SYMBOLS]; /* extents of the first call, as far as they are known */
    lf_param *param;            /* one per parameter; owned, see run/params.h */
    bool prepared;
    /* Why the last call asked for could not be made, NULL since the program was used otherwise. Threads may ask at
     * once, so it points to a text that stays, and diag is left alone. */
    _Atomic(const char *) no_call;
    char no_device[96];         /* such a text: for a device that is not run on */
};

/* The pass list: copy -> check -> rewrite -> verify -> plan. Needs: program->written, verified. Message in the
 * program. */
lf_status lf_compile(lf_program *program, const lf_options *options);

/* Starts the threads, or takes the caller's loop, once. Message in the context. */
lf_status lf_context_pool(lf_context *context);

/* The devices that every context has a backend for, by index; NULL past the last. */
const char *lf_backend_name(size_t index);
/* Lets programs be compiled for the devices that one more backend names, which outlives the context.
 * Fails: LF_ERR_ARG where there are LF_BACKENDS of them. */
lf_status lf_context_add_backend(lf_context *context, const lf_backend *backend);
/* The context's backend of that name; NULL: there is none. */
const lf_backend *lf_context_backend(const lf_context *context, const char *device);
/* Opens what serves a device, once: the backend of that name, or else the one without. Message in diag. */
lf_status lf_context_open(lf_context *context, const char *device, lf_opened *out, lf_diag *diag);
/* Opens it and says what it is costed as. Message in the context's. */
lf_status lf_context_describe(lf_context *context, const char *device, lf_device *out);

/* Every function of a program but lf_call_new begins so: what is said from here on is in diag. */
static inline void lf_program_begin(lf_program *program)
{
    atomic_store_explicit(&program->no_call, NULL, memory_order_relaxed);
}

/* Forgets what was prepared; parameters keep their values. */
void lf_program_unprepare(lf_program *program);

/* What the options say without the user's word. */
void lf_options_init(lf_options *options);

/* The device and the precision that options name; the device is opened in context. Fails: LF_ERR_DEVICE;
 * LF_ERR_UNSUPPORTED where the device cannot do what the options ask for. */
lf_status lf_options_open(const lf_options *options, lf_context *context, lf_opened *out, lf_precision *precision,
                          lf_diag *diag);

#endif
