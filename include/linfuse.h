/* SPDX-License-Identifier: Apache-2.0 */
/* linfuse: a fusing compiler and runtime for models made of linear layers and what follows them.
 *
 *   lf_model    what is to be computed: read from text, or built op by op
 *   lf_program  the model rewritten, fused and planned; holds the parameters, prepared
 *   lf_call     one thread's use of a program: bound tensors and workspace
 *
 * Rules that hold for every function here:
 * - A function that can fail returns lf_status. Get the message from the handle you called; from the context where
 *   the call makes the first handle. Nothing prints, nothing exits.
 * - LF_ERR_ARG stands for a wrong use of the function: a NULL that it does not allow, an index out of range, a wrong
 *   order of calls. Every function may fail with it, and those that allocate with LF_ERR_NOMEM, so the lists below
 *   name these two only where there is more to say. After a failure the handle stays usable, and the handle or string
 *   that the function should have made is NULL.
 * - A NULL handle is LF_ERR_ARG, without a message; where a function does not return lf_status, it is harmless.
 * - Handles are opaque. *_new, *_read and *_copy make one; the matching *_free ends it and takes NULL.
 *   A context outlives its models and programs, and a program its calls. A model may be freed before its programs.
 * - Pointers are borrowed for the duration of the function unless its description says otherwise.
 * - Strings that a function returns belong to the handle and live as long, unless its description says otherwise.
 * - A context, a model, options and a call belong to one thread at a time. A program may be used by many calls in many
 *   threads at once, as long as nobody changes its parameters meanwhile.
 * Functions for tests, benchmarks and files are in linfuse_tools.h.
 */
#ifndef LINFUSE_H
#define LINFUSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define LF_API __attribute__((visibility("default")))
#else
#define LF_API
#endif

#define LF_VERSION_MAJOR 0
#define LF_VERSION_MINOR 2
#define LF_VERSION_PATCH 0

typedef enum lf_status {
    LF_OK = 0,
    LF_ERR_ARG,         /* a wrong use of a function: a NULL, an unknown name, a wrong order of calls */
    LF_ERR_MODEL,       /* the model is wrong: syntax, shapes, an unknown op */
    LF_ERR_DATA,        /* the data do not fit the model: extents, dtype, a broken file */
    LF_ERR_IO,          /* a file cannot be opened, read or written */
    LF_ERR_NOMEM,       /* out of memory; the handle stays usable */
    LF_ERR_DEVICE,      /* the device is not there */
    LF_ERR_UNSUPPORTED  /* right, but not something this build does */
} lf_status;

typedef enum lf_dtype { LF_F32 = 0, LF_F16, LF_BF16, LF_I64 } lf_dtype;

/* Limits: axes of a tensor, named extents of a model. */
enum { LF_MAX_RANK = 8, LF_MAX_DIMS = 8 };

typedef struct lf_context lf_context;
typedef struct lf_model lf_model;
typedef struct lf_options lf_options;
typedef struct lf_program lf_program;
typedef struct lf_call lf_call;

/* A value of a model: an input, a parameter or an op's result. */
typedef int32_t lf_value;
#define LF_NO_VALUE ((lf_value)-1)

/* The version of the library, "0.2.0": LF_VERSION_* of the header it was built with. */
LF_API const char *lf_version(void);
/* A status in words, such as "bad argument". */
LF_API const char *lf_status_name(lf_status status);

/* ---- context: threads, and messages of what has no handle yet ---- */

/* Makes a context.
 * out:    the context; free it with lf_context_free. */
LF_API lf_status lf_context_new(lf_context **out);
LF_API void lf_context_free(lf_context *context);
/* The message of the last failure; never NULL. */
LF_API const char *lf_context_message(const lf_context *context);

/* Says how many threads calls may use. Before the first program.
 * threads: the caller's thread included, at most 4096; 0 means one per core. */
LF_API lf_status lf_context_set_threads(lf_context *context, int threads);
/* How many threads calls may use. */
LF_API int lf_context_threads(const lf_context *context);

/* A loop of the caller's own in place of linfuse's threads, for a process that has its threads already. It calls
 * fn(arg, index, slot) once for each index in [0, count), in any order and on any threads, and returns when all these
 * calls have returned; what they wrote is then visible to whoever called the loop.
 * user:   as given to lf_context_set_parallel_for.
 * slot:   tells apart calls of fn that run at the same time: it is in [0, lf_context_threads(context)), and no two
 *         calls of one loop are in the same slot at once. The number of a thread within a team is such a slot; so is 0
 *         throughout where one thread does it all.
 * fn neither fails nor waits for other indices. Functions that compute (lf_program_set_param, lf_program_prepare,
 * lf_program_explain, lf_device_peak, lf_call_run) call the loop on their caller's thread, so several loops run at once
 * where several threads call these. Slots of different loops have nothing to do with each other. */
typedef void (*lf_parallel_for)(void *user, int64_t count, void (*fn)(void *arg, int64_t index, int slot), void *arg);
/* Has everything of this context run by loop, and starts no thread. lf_context_set_threads says how many slots there
 * are. Results do not depend on the loop, to the bit. Before the first program.
 * loop:   NULL means linfuse's own threads.
 * user:   handed to loop; borrowed while the context lives; may be NULL. */
LF_API lf_status lf_context_set_parallel_for(lf_context *context, lf_parallel_for loop, void *user);

/* ---- model ---- */

/* Reads model text.
 * context: gets the message of a failure.
 * name:    stands in messages, NAME:LINE:COLUMN: ...
 * text:    length bytes; need not end with a NUL.
 * out:     the model, finished; free it with lf_model_free.
 * Fails:   LF_ERR_MODEL, with the line and a caret. */
LF_API lf_status lf_model_read(lf_context *context, const char *name, const char *text, size_t length, lf_model **out);
/* The same from a file.
 * Fails:   LF_ERR_MODEL, LF_ERR_IO. */
LF_API lf_status lf_model_read_file(lf_context *context, const char *path, lf_model **out);
/* Copies a finished model, possibly into another context.
 * model:   what is copied; it stays as it is.
 * context: of the copy; gets the message of a failure.
 * out:     the copy; free it with lf_model_free. */
LF_API lf_status lf_model_copy(const lf_model *model, lf_context *context, lf_model **out);

/* Makes an empty model, to be built by lf_model_input, lf_model_param and lf_model_op and finished by lf_model_return.
 * out:     the model; free it with lf_model_free. */
LF_API lf_status lf_model_new(lf_context *context, lf_model **out);
LF_API void lf_model_free(lf_model *model);
/* The message of the last failure; never NULL. */
LF_API const char *lf_model_message(const lf_model *model);

/* One extent of a declared type: a number, or a name that is learnt at the call. */
typedef struct lf_dim {
    int64_t number;   /* 1 or more; ignored where there is a name */
    const char *name; /* NULL for a number */
} lf_dim;

/* Declares an input.
 * name:    letters, digits, `_` and `.`, not starting with a digit; not in use yet.
 * rank:    0 to LF_MAX_RANK.
 * dims:    one per axis; may be NULL where rank is 0.
 * out:     the value.
 * Fails:   LF_ERR_MODEL (the name, or an extent). */
LF_API lf_status lf_model_input(lf_model *model, const char *name, lf_dtype dtype, int rank, const lf_dim *dims,
                                lf_value *out);
/* Declares a parameter; every extent is a number. Otherwise as lf_model_input. */
LF_API lf_status lf_model_param(lf_model *model, const char *name, lf_dtype dtype, int rank, const lf_dim *dims,
                                lf_value *out);

/* An argument of an op, as in the text: by position (key NULL) or by PyTorch's parameter name. */
typedef enum lf_arg_kind {
    LF_ARG_VALUE,
    LF_ARG_NUMBER,
    LF_ARG_BOOL,
    LF_ARG_STRING,
    LF_ARG_LIST,
    LF_ARG_NONE
} lf_arg_kind;
typedef struct lf_arg {
    const char *key;
    lf_arg_kind kind;
    lf_value value;       /* LF_ARG_VALUE */
    double number;        /* LF_ARG_NUMBER; LF_ARG_BOOL: 0 or 1 */
    const char *string;   /* LF_ARG_STRING */
    const double *list;   /* LF_ARG_LIST, `count` numbers */
    size_t count;
} lf_arg;

/* Appends `name = op(args...)`.
 * name:    as in lf_model_input; NULL: one is made up.
 * op:      as lf_op_name has it.
 * args:    arg_count of them; may be NULL where that is 0.
 * out:     the value.
 * Fails:   LF_ERR_MODEL, naming the op and the argument or the extents. */
LF_API lf_status lf_model_op(lf_model *model, const char *name, const char *op, const lf_arg *args, size_t arg_count,
                             lf_value *out);
/* The extents of a value, for a builder to check that it built what it meant.
 * dims:    the values of the named extents, in order of their first appearance; may be NULL where there are none.
 * rank:    gets the number of axes.
 * extents: gets one number per axis; room for LF_MAX_RANK. */
LF_API lf_status lf_model_value_shape(lf_model *model, lf_value value, const int64_t *dims, int *rank,
                                      int64_t *extents);
/* Says what the model returns, which finishes it.
 * values:  count of them, 1 or more.
 * Fails:   LF_ERR_MODEL. */
LF_API lf_status lf_model_return(lf_model *model, const lf_value *values, size_t count);

/* Prints a finished model as text that reads back as the same model.
 * out:     the text, NUL-terminated; the caller owns it and frees it with lf_string_free. */
LF_API lf_status lf_model_print(lf_model *model, char **out);
/* Frees a string that the caller owns; NULL is fine. */
LF_API void lf_string_free(char *text);

/* What a model takes and gives. Ports of a kind are counted from 0, in the order of declaration. */
typedef enum lf_port { LF_PORT_INPUT, LF_PORT_PARAM, LF_PORT_OUTPUT } lf_port;
/* The number of ports of a kind. */
LF_API size_t lf_model_port_count(const lf_model *model, lf_port port);
/* A port's name; NULL where index is out of range. */
LF_API const char *lf_model_port_name(const lf_model *model, lf_port port, size_t index);
/* A port's dtype; LF_F32 where index is out of range. */
LF_API lf_dtype lf_model_port_dtype(const lf_model *model, lf_port port, size_t index);
/* A port's number of axes; -1 where index is out of range. */
LF_API int lf_model_port_rank(const lf_model *model, lf_port port, size_t index);
/* An extent of a port.
 * axis:    from 0.
 * dims:    the values of the named extents; may be NULL where there are none.
 * Returns -1 where index or axis is out of range, or dims is missing. */
LF_API int64_t lf_model_port_extent(const lf_model *model, lf_port port, size_t index, int axis, const int64_t *dims);
/* How an extent of a port follows from the named extents: it is the number returned, times each named extent to its
 * power. An extent of an input is a number or one name; an output's may be 2*B or B*S.
 * axis:    from 0.
 * powers:  gets one power per named extent, mostly 0 or 1; may be NULL.
 * Returns -1 where index or axis is out of range. */
LF_API int64_t lf_model_port_factors(const lf_model *model, lf_port port, size_t index, int axis, int *powers);
/* The number of named extents. Wherever an array `dims` is asked for, it has their values in this order. */
LF_API size_t lf_model_dim_count(const lf_model *model);
/* A named extent; NULL where index is out of range. */
LF_API const char *lf_model_dim_name(const lf_model *model, size_t index);
/* Whether the model's rows (extent 0 of what its batch runs over) do not see each other, so that any of them can be
 * computed alone.
 * has_rows: gets one answer per input, whether it carries rows; may be NULL. */
LF_API bool lf_model_rows_independent(const lf_model *model, bool *has_rows);

/* The model's meaning: every op in double precision. inputs, params and outputs are in port order; inputs and params
 * are f32, outputs are caller's doubles, row-major, of the extents the ports have at dims. */
LF_API lf_status lf_model_eval(lf_model *model, const int64_t *dims, const float *const *inputs,
                               const float *const *params, double *const *outputs);

/* ---- compiling ---- */

/* Options are words, so that new ones need no new symbol:
 *   device      cpu | cuda, and devices that can be costed without being there: h200, a100, h100, ...
 *   precision   fp32 | tf32 | bf16 | fp16
 *   rules       +NAME,-NAME,...               (all, none are names too)
 *   assume_finite, fuse    true | false       (fuse=false: op by op, as written, no rewrites)
 *   tune        true | false                  (cuda: the first run at some extents measures which kernels take least,
 *                                              remembers it on disk, and waits for the device meanwhile; results are
 *                                              the same, to the bit)
 *   dim.B       an extent to weigh choices by (the program still serves every value)
 *   first.B     the extent of the first call, where it is known: what a GPU needs for it is compiled with the program
 *               (otherwise for dim.B) */

/* Makes options as they are where nobody says otherwise: device cpu, precision fp32, everything on but tune.
 * out:     the options; free them with lf_options_free. */
LF_API lf_status lf_options_new(lf_context *context, lf_options **out);
LF_API void lf_options_free(lf_options *options);
/* Sets an option.
 * Fails:   LF_ERR_ARG for a key or a value that is none, listing those there are. The names in dim.NAME and first.NAME
 *          are the model's business, and checked by lf_program_new. */
LF_API lf_status lf_options_set(lf_options *options, const char *key, const char *value);
/* Whether programs can be compiled with these options on this machine: the device is there and has the precision.
 * Fails:   as lf_program_new does for that reason: LF_ERR_DEVICE, LF_ERR_UNSUPPORTED. */
LF_API lf_status lf_options_check(lf_options *options);
/* The message of the last failure; never NULL. */
LF_API const char *lf_options_message(const lf_options *options);
/* The words that an option takes, one for each index from 0; NULL past the last, and where it takes no fixed words.
 *   key    the option: "device", "precision", "fuse", ...
 *   index  which word; lives as long as the library */
LF_API const char *lf_option_word(const char *key, size_t index);
/* What rounding to a precision takes from an operand of a product, relative to it and on average: 2^-24 in fp32, 2^-9
 * in bf16. 0 where there is no precision of that name.
 *   precision  as the option of that name has it */
LF_API double lf_precision_unit(const char *precision);

/* Rewrites, fuses and plans a model.
 * model:   finished; copied, so it may be freed. Gets the message of a failure.
 * options: NULL means lf_options_new's.
 * out:     the program; free it with lf_program_free.
 * Fails:   LF_ERR_ARG (an extent that the model does not have), LF_ERR_DEVICE, LF_ERR_UNSUPPORTED. */
LF_API lf_status lf_program_new(lf_model *model, const lf_options *options, lf_program **out);
LF_API void lf_program_free(lf_program *program);
/* The message of the last failure; never NULL. */
LF_API const char *lf_program_message(const lf_program *program);

/* Gives a parameter its values (of its dtype, row-major, the declared extents); they are copied. May be called again:
 * the next prepare makes the change count. */
LF_API lf_status lf_program_set_param(lf_program *program, const char *name, const void *data, size_t count);
/* The same for a program compiled for cuda from the GPU's memory (data: an address there), once the work on stream (a
 * CUstream; NULL is the default one) is done, for which it waits. */
LF_API lf_status lf_program_set_param_cuda(lf_program *program, const char *name, const void *data, size_t count,
                                           void *stream);
/* The same, and the values stay where and as they are until the parameter is given anew or the program is freed: runs
 * read them there where nothing else was made of them (and they begin at a multiple of 256 bytes), and the GPU holds
 * one copy less. */
LF_API lf_status lf_program_borrow_param_cuda(lf_program *program, const char *name, const void *data, size_t count,
                                              void *stream);
/* The same as lf_program_set_param without the copy: the values are borrowed, and stay where and as they are until the
 * parameter is given anew or the program is freed. After a change of them, give them again and prepare. */
LF_API lf_status lf_program_borrow_param(lf_program *program, const char *name, const void *data, size_t count);
/* Whether lent parameters still look as they did when they were prepared: every value of those of up to 16384 elements,
 * a sample spread over larger ones. A net under callers who are told of changes by other means, not a proof that
 * nothing changed. True before the first prepare. Any thread may ask while calls run. */
LF_API bool lf_program_params_hold(const lf_program *program);
/* All parameters of the model from a safetensors file; further tensors in the file are ignored. */
LF_API lf_status lf_program_load_params(lf_program *program, const char *path);
/* Folds and packs the parameters. Needed before the first call and after parameters changed. */
LF_API lf_status lf_program_prepare(lf_program *program);
/* One parameter's values as given, NULL when there are none yet or when they are on the GPU alone. */
LF_API const void *lf_program_param(const lf_program *program, const char *name);

/* Bytes the program holds: parameters as given (borrowed ones are not its own), parameters prepared, everything else.
 * Any pointer may be NULL. */
LF_API void lf_program_memory(const lf_program *program, size_t *params, size_t *prepared, size_t *other);

/* ---- the account: what was done, and what it is expected to cost ---- */

/* Costs as written, rewrites, refusals, kernels, costs now. It borrows its program, which must outlive it. */
typedef struct lf_account lf_account;

/* Takes the account of a program.
 *   program  whose; prepared or not. Messages: lf_program_message
 *   dims     the values of the named extents, in the order of lf_model_dim_name; NULL: those of the options, 1024 where
 *            they have none
 *   out      the account, to be ended with lf_account_free */
LF_API lf_status lf_program_account(lf_program *program, const int64_t *dims, lf_account **out);
LF_API void lf_account_free(lf_account *account);

/* The account as the JSON object of `linfuse explain --json`, or as text for people.
 *   json  which of them
 *   out   the caller's, to be ended with lf_string_free. LF_ERR_NOMEM is all that can fail, but for a NULL */
LF_API lf_status lf_account_print(const lf_account *account, bool json, char **out);
/* lf_program_account and lf_account_print in one call. */
LF_API lf_status lf_program_explain(lf_program *program, const int64_t *dims, bool json, char **out);

/* A field of the account. */
typedef struct lf_field {
    const char *section; /* "plain", "fused", "ops", "kernels", ...: the object of the JSON object that it stands in */
    const char *name;    /* "us" */
    const char *unit;    /* "text", "count", "FLOP", "B", "us", "FLOP/s", "B/s" */
    const char *column;  /* heading of its column in tables; NULL: it has none */
    const char *phrase;  /* words that go with it in a line of figures, "of workspace"; NULL: it has none */
    bool each;           /* the section is a list, and each of its rows has one */
} lf_field;

/* All fields there are, section by section.
 *   index  from 0. Returns NULL past the last */
LF_API const lf_field *lf_account_field(size_t index);
/* The rows of a section: 1 where it is no list, 0 where there is no section of that name. */
LF_API size_t lf_account_rows(const lf_account *account, const char *section);
/* A number of the account.
 *   section, name  as lf_field has them: "fused", "workspace_bytes"
 *   row            of a list; otherwise 0
 * Returns NaN where there is no such number. */
LF_API double lf_account_number(const lf_account *account, const char *section, const char *name, size_t row);
/* A text of the account, likewise; NULL where there is none. It lives as long as the account. */
LF_API const char *lf_account_text(const lf_account *account, const char *section, const char *name, size_t row);

/* The program's kernels as CUDA C for an architecture (sm_70, sm_75: ordinary units; sm_80, sm_86, sm_89, sm_90,
 * sm_90a: tensor cores); needs no GPU. Caller owns *out, lf_string_free. */
LF_API lf_status lf_program_emit(lf_program *program, const char *arch, char **out);

/* ---- calling ---- */

LF_API lf_status lf_call_new(lf_program *program, lf_call **out);
LF_API void lf_call_free(lf_call *call);
LF_API const char *lf_call_message(const lf_call *call);

/* Binds an input: of its dtype, row-major, borrowed until it is bound anew. Named extents are learnt here. */
LF_API lf_status lf_call_set_input(lf_call *call, size_t index, int rank, const int64_t *extents, const void *data);
/* The extents of an output for the inputs bound now; *rank <= LF_MAX_RANK. */
LF_API lf_status lf_call_output_shape(lf_call *call, size_t index, int *rank, int64_t *extents);
/* Binds where an output goes: the caller's memory, row-major, borrowed likewise. It may not overlap an input. */
LF_API lf_status lf_call_set_output(lf_call *call, size_t index, void *data);
/* Runs. After the first run at some extents, a run at them allocates nothing. */
LF_API lf_status lf_call_run(lf_call *call);
/* Binds everything and runs, in one go, for callers to whom every call of a function is dear. dims: the values of the
 * named extents, in the order of lf_model_dim_name (NULL where there are none). inputs, outputs: one address each, in
 * order of declaration, bound as by lf_call_set_input and lf_call_set_output. threads: how many may work on this run,
 * the caller's included; 0 means as many as the context has, more than it has are not had. Results do not depend on
 * it. */
LF_API lf_status lf_call_run_at(lf_call *call, const int64_t *dims, const float *const *inputs, float *const *outputs,
                                int threads);
/* For a program compiled for cuda. Without it inputs and outputs are host memory, which a run copies to the GPU and
 * back before it returns. With it they are the GPU's memory (device addresses as pointers), and a run launches on this
 * stream (a CUstream or cudaStream_t; NULL is the default one), does not synchronise, and may be captured into a graph.
 * Programs use the CUDA context that is current when the first of them is compiled in a context of linfuse, or else the
 * first GPU's primary one. */
LF_API lf_status lf_call_use_stream(lf_call *call, void *stream);
/* cuda: how many bytes of the GPU's memory a run wants beside inputs, outputs and weights, at the extents of the inputs
 * bound now, or at these values of the named extents; for arrays that begin at multiples of 16 bytes. */
LF_API lf_status lf_call_workspace(lf_call *call, size_t *bytes);
LF_API lf_status lf_call_workspace_at(lf_call *call, const int64_t *dims, size_t *bytes);
/* cuda: lends that memory (a device address, a multiple of 256) for the runs to come, in place of the call's own; NULL:
 * the call's own again. Whatever stands in it when a run begins makes no difference, and nothing in it is needed once
 * the run is over. Where a run wants more than was lent, it is LF_ERR_ARG, and the message has the bytes; but where it
 * does for an array's odd address, the call takes memory of its own. */
LF_API lf_status lf_call_use_workspace(lf_call *call, void *memory, size_t bytes);
/* cuda: lf_call_use_stream and lf_call_run_at in one go, workspace (NULL: as lf_call_use_workspace left it) lent for
 * this run alone. Runs of one call must come one after the other, also on the GPU: on one stream, or ordered by events;
 * that includes launches of a graph a run was captured into, which may be launched as long as the call lives and no
 * parameter of its program is given anew. Runs of different calls need no order. */
LF_API lf_status lf_call_run_on(lf_call *call, const int64_t *dims, const float *const *inputs, float *const *outputs,
                                void *stream, void *workspace, size_t workspace_bytes);
/* How many rows the last run redid as written because a guarded rewrite met a number that is not finite. On cuda it
 * waits for the stream. */
LF_API int64_t lf_call_rows_redone(const lf_call *call);
/* Bytes of workspace the call holds. */
LF_API size_t lf_call_memory(const lf_call *call);

/* ---- the op table ---- */

/* The op table: one row an op. NULL where index is past the end. */
LF_API const char *lf_op_name(size_t index);
LF_API const char *lf_op_kind(size_t index);
LF_API const char *lf_op_signature(size_t index);

#ifdef __cplusplus
}
#endif
#endif
