/* SPDX-License-Identifier: Apache-2.0 */
/* What the device's files share. Inside the cuda module. */
#ifndef LF_CUDA_DEVICE_H
#define LF_CUDA_DEVICE_H

#include <pthread.h>

#include "cuda/choose.h"
#include "cuda/cuda.h"
#include "cuda/driver.h"
#include "cuda/emit.h"

struct lf_cuda_device {
    const lf_cuda_driver *driver;
    void *context;
    int ordinal;
    bool primary;         /* we hold a reference of the GPU's own context */
    int major, minor;     /* compute capability */
    int units;            /* multiprocessors */
    int shared_bytes;     /* of shared memory a block can have */
    size_t cache_bytes;   /* L2 */
    double memory_rate;   /* bytes a second on paper; 0: not known */
    char name[128];
    pthread_mutex_t loading;    /* over what follows */
    pthread_cond_t loaded;      /* a module is ready, or failed */
    struct lf_cuda_module *modules;
};

/* A kernel's machine code, shared by the programs that have it. */
typedef struct lf_cuda_module {
    struct lf_cuda_module *next;
    char *code;              /* as lf_cuda_code has it; owned */
    char arch[16];
    int users;
    bool ready;
    void *handle, *function; /* the module, and the kernel in it */
} lf_cuda_module;

/* of Args; bytes of a tensor map; products, so that all parameters fit CUDA's 32 KB; bytes of four floats */
enum { LF_CUDA_MOST_WORDS = 500, LF_CUDA_MAP = 128, LF_CUDA_MOST_PRODUCTS = 64, LF_CUDA_FOUR = 16 };

enum { LF_CUDA_CHOSEN = 256 }; /* choices of shapes that a program remembers: a power of two */

/* A program's kernel for one shape of tiles. */
typedef struct lf_cuda_kernel {
    lf_cuda_source source;   /* its text is dropped once compiled */
    lf_cuda_module *module;
    unsigned shared;         /* bytes of dynamic shared memory */
    int cluster;             /* blocks of a cluster */
    int columns;             /* of a tile of a product on tensor cores */
    int resident;            /* blocks that fit at once */
} lf_cuda_kernel;

struct lf_cuda_program {
    lf_cuda_target target;
    lf_cuda_device *device;  /* borrowed */
    const lf_plan *plan;     /* borrowed */
    const lf_cuda_program *as_written; /* borrowed; NULL: nothing is watched */
    /* for arrays that are aligned and those that are not, each compiled when first wanted */
    lf_cuda_kernel *_Atomic kernel[LF_TILE_SHAPES][2];
    pthread_mutex_t compiling;
    lf_tile_shape told;      /* serves wherever it can; LF_TILE_SHAPES: none does */
    bool tunes;              /* a run at extents that nothing was measured at measures */
    uint64_t text_hash;      /* 0: not known yet; under compiling */
    _Atomic(uint64_t) chosen[LF_CUDA_CHOSEN]; /* see tune.c */
    /* the same plan on the ordinary units, where a weight has too wide a range: all runs are its; NULL: not needed */
    lf_cuda_program *full;
    bool borrows;            /* this is such a program: prepared and narrow are the other's */
    /* one per product: its weight for tensor cores, and what undoes its scales; owned; 0 where there is none */
    lf_cuda_ptr *lines;
    lf_cuda_ptr *scale;
    lf_cuda_ptr *prepared;   /* one per prepared tensor; owned, unless it is lent */
    bool *lent;
    lf_cuda_ptr *narrow;     /* one per product, owned; 0 where there is none */
    /* of its weights on tensor cores, see text/weights.cu: the binades that a row of x may span, and whether columns
     * were balanced */
    int binades;
    bool uneven;
    size_t bytes;
    unsigned weights;        /* how often it was given weights */
};

/* CU_STREAM_CAPTURE_MODE_RELAXED: what a thread may do while one of its streams captures */
enum { LF_CUDA_RELAXED = 2 };

/* Makes the device's context current for what follows; undone by leave. */
lf_status lf_cuda_enter(const lf_cuda_device *d, lf_diag *diag);
void lf_cuda_leave(const lf_cuda_device *d);
/* 0 is fine; anything else becomes a message about `what`. */
lf_status lf_cuda_status(const lf_cuda_device *d, int error, const char *what, lf_diag *diag);
/* Inside enter and leave. bytes 0 gives address 0. Fails: LF_ERR_NOMEM. */
lf_status lf_cuda_alloc(const lf_cuda_device *d, size_t bytes, const char *what, lf_cuda_ptr *out, lf_diag *diag);

/* What is set and counted between stages: struct Control of text/base.cu, on the device. */
typedef struct lf_cuda_control {
    lf_cuda_ptr barrier, beyond, beyond_any, watched, watched_any, redone;
} lf_cuda_control;

/* ---- module.c ---- */

/* A text's machine code for "sm_90a", say, compiled where no program has it yet. out: to be left once. Thread-safe.
 * Inside enter and leave. Fails: as lf_cuda_compile does; LF_ERR_DEVICE. */
lf_status lf_cuda_module_take(lf_cuda_device *d, const char *arch, const char *text, lf_cuda_module **out,
                              lf_diag *diag);
void lf_cuda_module_leave(lf_cuda_device *d, lf_cuda_module *module);

/* One run of a program. */
typedef struct lf_cuda_pass {
    const int64_t *dims;
    int64_t batch;
    const lf_cuda_ptr *input, *output; /* by port */
    lf_cuda_ptr workspace;
    lf_cuda_control control;
} lf_cuda_pass;

/* All a launch needs but its stream. Points into itself: it stays where it is. */
typedef struct lf_cuda_ready {
    _Alignas(64) unsigned char maps[LF_CUDA_MOST_PRODUCTS * 2 * LF_CUDA_MAP];
    uint64_t control[LF_CUDA_CONTROL_WORDS], words[LF_CUDA_ROLES][LF_CUDA_MOST_WORDS];
    lf_cuda_config config; /* gx 0: there is nothing to do */
    lf_cuda_attribute together;
    void *function, *params[2 + LF_CUDA_ROLES];
} lf_cuda_ready;

/* The kernel for these extents, compiled if it is not yet. aligned: the caller's arrays begin at multiples of
 * LF_CUDA_FOUR bytes. Thread-safe. Inside enter and leave, as all that follows. */
lf_status lf_cuda_kernel_for(lf_cuda_program *program, const int64_t *dims, bool aligned, const lf_cuda_kernel **out,
                             lf_diag *diag);
/* The kernel of one shape, likewise. */
lf_status lf_cuda_kernel_of(lf_cuda_program *program, lf_tile_shape shape, bool aligned, const lf_cuda_kernel **out,
                            lf_diag *diag);
void lf_cuda_kernels_free(lf_cuda_program *program);
/* Bytes of the largest part's areas. Fails: LF_ERR_DATA where that overflows. */
lf_status lf_cuda_kernel_workspace(const lf_cuda_kernel *kernel, const int64_t *dims, int64_t *bytes, lf_diag *diag);
lf_status lf_cuda_arrange(const lf_cuda_program *program, const lf_cuda_kernel *kernel, const lf_cuda_pass *pass,
                          lf_cuda_ready *to, lf_diag *diag);
/* Gives it other inputs and outputs, by port, and moves the maps of such inputs; kernel: whose it is. */
lf_status lf_cuda_point(const lf_cuda_device *device, lf_cuda_ready *ready, const lf_cuda_kernel *kernel,
                        const lf_cuda_ptr *input, const lf_cuda_ptr *output, lf_diag *diag);
/* Launches and does not wait. */
lf_status lf_cuda_launch(const lf_cuda_device *device, lf_cuda_ready *ready, void *stream, lf_diag *diag);
/* The i-th area of a part. */
lf_cuda_ptr lf_cuda_area_at(const lf_cuda_part *part, const lf_cuda_pass *pass, int32_t area);

/* ---- tune.c ---- */

/* The shape for these extents. measured: it is not by the cost model. Thread-safe; quick from the second time on. */
lf_tile_shape lf_cuda_shape_for(lf_cuda_program *program, const int64_t *dims, bool *measured);
/* Runs the job in every shape that can serve it, unless that was done before, and remembers which took least, under the
 * user's cache too. Not where the stream captures. Where it cannot be measured, nothing is remembered, and the run that
 * follows tells why if it has to. False: that is still to be done, by a run that does not. */
bool lf_cuda_tune(lf_cuda_program *program, lf_cuda_call *call, const lf_cuda_job *job, bool aligned);
/* Raises bytes to the workspace that measuring at these extents wants, where that is still to be done: the most of all
 * that can serve, or some would not take part. */
void lf_cuda_tune_workspace(lf_cuda_program *program, const int64_t *dims, int64_t *bytes);

/* ---- call.c, for tune.c ---- */

/* Memory a kernel wants for the job; the job's inputs, once; seconds of runs by the device's clock, L2 flushed; what
 * only that wants is given back. */
lf_status lf_cuda_call_reserve(lf_cuda_call *call, const lf_cuda_kernel *kernel, const lf_cuda_job *job, lf_diag *diag);
lf_status lf_cuda_call_bring(lf_cuda_call *call, const lf_cuda_job *job, lf_diag *diag);
lf_status lf_cuda_call_time_kernel(lf_cuda_call *call, const lf_cuda_kernel *kernel, const lf_cuda_job *job,
                                   size_t runs, double *seconds, lf_diag *diag);
void lf_cuda_call_stop_timing(lf_cuda_call *call);

/* ---- tensor.c ---- */

/* Shared memory and tile of a kernel with products on Ampere's tensor cores. */
void lf_cuda_mma_shape(const lf_cuda_device *device, lf_cuda_target target, lf_cuda_kernel *kernel);
/* Blocks such a stage keeps busy at once, of so many that fit. */
int64_t lf_cuda_tensor_blocks(const lf_cuda_kernel *kernel, const lf_cuda_stage *stage, const int64_t *dims);
/* Brings the weights of all its products on tensor cores into lines; prepared tensors are there, and what they ask of x
 * is set. beyond: they are not for tensor cores (text/weights.cu). */
lf_status lf_cuda_tensor_weights(lf_cuda_program *program, const lf_cuda_kernel *kernel, bool *beyond, lf_diag *diag);
/* The tensor maps of x's lines, or of the input that is them, and of the weight's. to: 256 bytes, aligned to 64. */
lf_status lf_cuda_tensor_maps(const lf_cuda_program *program, const lf_cuda_kernel *kernel, const lf_cuda_stage *stage,
                              const lf_cuda_pass *pass, unsigned char *to, lf_diag *diag);

#endif
