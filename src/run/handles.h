/* SPDX-License-Identifier: Apache-2.0 */
/* What stands behind the public handles. */
#ifndef LF_RUN_HANDLES_H
#define LF_RUN_HANDLES_H

#include <stdatomic.h>

#include "base/pool.h"
#include "cpu/cpu.h"
#include "cuda/cuda.h"
#include "plan/plan.h"
#include "rewrite/rewrite.h"

struct lf_context {
    lf_diag diag;
    int threads;          /* 0: one per core */
    lf_parallel_for loop; /* the caller's, with user, borrowed; NULL: threads of our own */
    void *user;
    lf_pool *pool;        /* made for the first program; owned */
    lf_cuda_device *gpu;  /* opened for the first program that wants it; owned */
};

struct lf_model {
    lf_context *context;  /* borrowed */
    lf_diag diag;
    lf_arena arena;
    lf_graph graph;
    bool returned;
};

extern const char lf_not_finished[]; /* a message, for a model without its return */

typedef enum lf_target { LF_TARGET_CPU, LF_TARGET_CUDA, LF_TARGET_MODEL_ONLY } lf_target;

typedef struct lf_dim_hint {
    char name[64];
    int64_t value;
} lf_dim_hint;

typedef struct lf_dim_hints {
    lf_dim_hint hint[LF_MAX_SYMBOLS];
    int count;
} lf_dim_hints;

struct lf_options {
    lf_context *context;  /* borrowed, for lf_options_check */
    lf_diag diag;
    char device[16];
    char precision[8];
    char *rules;          /* owned; NULL: all */
    bool assume_finite, fuse, tune;
    lf_dim_hints weigh, first; /* dim.NAME, first.NAME */
};

/* One way to run the program: a graph, its plan, its prepared weights. */
typedef struct lf_variant {
    lf_graph graph;
    lf_plan *plan;              /* NULL: this variant is not there */
    lf_node *home;              /* one per node of the written graph */
    lf_notes notes;
    bool ready;                 /* prepared, and of use at present */
    lf_cpu_weights *weights;    /* cpu: NULL unless ready */
    lf_cuda_program *cuda;      /* cuda: compiled when first wanted, holds its weights when ready; owned */
} lf_variant;

/* How the rows of the batch run through the model; see lf_graph_rows. */
typedef struct lf_batch {
    bool independent;
    /* the named extent that counts rows, -1 when a number does or the name stands elsewhere too */
    int symbol;
    lf_extent rows;
    bool *input_rows;           /* one per input: does it carry rows? */
} lf_batch;

typedef struct lf_param lf_param;

struct lf_program {
    lf_context *context;        /* borrowed */
    lf_diag diag;
    lf_arena arena;
    lf_graph written;           /* as the user wrote it */
    lf_variant fused;           /* rewritten as the options allow */
    /* rewritten by EXACT rules only: for guarded rows, and for weights that are not finite */
    lf_variant exact;
    bool guarded;               /* fused watches for rows to redo */
    lf_batch batch;
    const lf_kern *kern;
    lf_target target;
    lf_precision precision;     /* cuda: how products take their operands */
    char device[16];
    int64_t hint[LF_MAX_SYMBOLS];
    int64_t first[LF_MAX_SYMBOLS]; /* cuda: extents of the kernel that is compiled with the program */
    /* one per input: its shape in words, made early because calls in other threads share the arena */
    const char **input_text;
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

/* Compiles the variant for the GPU, once. Message in the program. */
lf_status lf_variant_for_cuda(lf_program *program, lf_variant *variant);

/* Starts the threads, or takes the caller's loop, once. Message in the context. */
lf_status lf_context_pool(lf_context *context);

/* The kernels of this machine's instruction set, or of the one LINFUSE_ISA names. Fails: LF_ERR_ARG where that is none
 * this machine can run. */
lf_status lf_pick_kernels(const lf_kern **out, lf_diag *diag);

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
lf_status lf_options_target(const lf_options *options, lf_context *context, lf_target *target, lf_precision *precision,
                            lf_diag *diag);

#endif
