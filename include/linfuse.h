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
    LF_ERR_IO,          /* a file cannot be opened, read or written; an exchange between ranks failed */
    LF_ERR_NOMEM,       /* out of memory; the handle stays usable */
    LF_ERR_DEVICE,      /* the device is not there */
    LF_ERR_UNSUPPORTED  /* right, but not something this build does */
} lf_status;

typedef enum lf_dtype { LF_F32 = 0, LF_F16, LF_BF16, LF_I64 } lf_dtype;
/* Its name in model text: "f32", "f16", "bf16", "i64". NULL where there is no such type. */
LF_API const char *lf_dtype_name(lf_dtype dtype);

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

/* ---- tensors ---- */

typedef enum lf_memory { LF_HOST = 0, LF_DEVICE } lf_memory;

/* Where the elements of a tensor are, and what they are. With strides and memory left 0 it is row-major, in host
 * memory. data is not const because outputs have the same descriptor; elements that a function only reads stay as they
 * are. extents and strides are borrowed for the duration of a function, data as long as its description says. */
typedef struct lf_tensor {
    void *data;             /* the first element; NULL only where there are none */
    lf_dtype dtype;
    int rank;               /* 0 to LF_MAX_RANK */
    const int64_t *extents; /* one per axis; may be NULL where rank is 0 */
    const int64_t *strides; /* in elements, one per axis; NULL means row-major without gaps */
    lf_memory memory;
} lf_tensor;

/* The number of elements, and their bytes without gaps: what a buffer for them needs. 0 where tensor is NULL. */
LF_API size_t lf_tensor_count(const lf_tensor *tensor);
LF_API size_t lf_tensor_bytes(const lf_tensor *tensor);

/* The version of the library, "0.2.0": LF_VERSION_* of the header it was built with. */
LF_API const char *lf_version(void);
/* A status in words, such as "bad argument". */
LF_API const char *lf_status_name(lf_status status);

/* ---- context: threads, and messages where there is no other handle yet ---- */

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
 * calls have returned; what they wrote is then visible to the caller of the loop.
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
/* Has everything of this context run by the threads of the OpenMP runtime that the process has loaded (GNU's, LLVM's or
 * Intel's), and starts none. Threads that wait for each other's loops by spinning, as two sets of threads in a process
 * do, take the cores from each other; one set does not. Each calling thread has a team of its own, as in OpenMP.
 * Results do not depend on it, to the bit. Before the first program. lf_context_set_parallel_for undoes it.
 * Fails:   LF_ERR_UNSUPPORTED where no runtime is loaded for all to see, where the calling thread would have another
 *          number of threads there (omp_get_max_threads) than the context has, and in a process that was forked by one
 *          that had linfuse loaded: GNU's runtime does not survive a fork. Then all is as it was. */
LF_API lf_status lf_context_use_openmp(lf_context *context);

/* How this process talks to the others that share its work, by what they have already: MPI, NCCL, sockets. Every rank
 * calls the same functions of linfuse.h in the same order, and so these.
 * gather: gives every rank what each has: `bytes` of `mine` of rank 0, rank 1, ... to `all`, [ranks][bytes].
 * sum:    adds up numbers over ranks, in place, to the same bits on every rank.
 * Both return 0 where it worked, and when all is there. user: handed to both. */
typedef struct lf_exchange {
    int ranks;
    int (*gather)(void *user, const void *mine, size_t bytes, void *all);
    int (*sum)(void *user, float *numbers, size_t count);
    void *user;
} lf_exchange;
/* Has lf_loss_step of this context take a weight with some of the words, the rest of which other ranks have.
 * exchange: copied, its user is borrowed while the context lives. NULL means none; one rank is as none. */
LF_API lf_status lf_context_set_exchange(lf_context *context, const lf_exchange *exchange);

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
/* The element type of a value; LF_F32 where the model has no such value. */
LF_API lf_dtype lf_model_value_dtype(const lf_model *model, lf_value value);
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

/* Evaluates the model as it is written, every op in double precision: slow, and what everything else is tested against.
 * inputs:  one per input, in host memory; they say what the named extents are. May be NULL where there are none.
 * params:  one per parameter, likewise.
 * outputs: for each output, memory for its elements, row-major; NULL only where it has none.
 * Fails:   LF_ERR_DATA (tensors that do not fit the model or each other). */
LF_API lf_status lf_model_eval(lf_model *model, const lf_tensor *inputs, const lf_tensor *params,
                               double *const *outputs);

/* ---- compiling ---- */

/* Options are words, so that new ones need no new symbol:
 *   device      cpu | cuda, and devices that can be costed without being there: h200, a100, h100, ...
 *   precision   fp32 | tf32 | bf16 | fp16
 *   rules       +NAME,-NAME,...               (all, none are names too)
 *   assume_finite, fuse    true | false       (fuse=false: op by op, as written, no rewrites)
 *   tune        true | false                  (cuda: the first run at some extents measures which kernels take least,
 *                                              remembers it on disk, and waits for the device meanwhile; results are
 *                                              the same, to the bit)
 *   lazy        true | false                  (cuda: kernels are compiled by lf_program_compile, or when first
 *                                              wanted, and not with the program)
 *   dim.B       an extent to weigh choices by (the program still serves every value)
 *   first.B     the extent of the first call, where it is known: what a GPU needs for it is compiled with the program
 *               (otherwise for dim.B) */

/* Makes options as they are where nobody says otherwise: device cpu, precision fp32, everything on but tune and
 * lazy.
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
 * key:     the option: "device", "precision", "fuse", ... */
LF_API const char *lf_option_word(const char *key, size_t index);
/* Whether programs run on a device of that name, where one is there; on others they can be costed only. */
LF_API bool lf_device_runs(const char *device);
/* What rounding to a precision takes from an operand of a product, relative to it and on average: 2^-24 in fp32, 2^-9
 * in bf16. 0 where there is no precision of that name. */
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

/* Compiles what runs at these extents need and is not compiled yet: on a GPU seconds of work, which the first run would
 * wait for; on a CPU nothing. Parameters need no values yet. Meanwhile other threads may compile other programs of the
 * context, and one of them may make new ones. A kernel that several programs have is compiled once.
 * dims:    the values of the named extents; NULL: as the options first.NAME and dim.NAME have them.
 * Fails:   LF_ERR_DATA (no such extents), LF_ERR_DEVICE, LF_ERR_UNSUPPORTED. */
LF_API lf_status lf_program_compile(lf_program *program, const int64_t *dims);

/* What becomes of the memory that a parameter is given from. */
typedef enum lf_holding {
    LF_COPY,   /* the values are copied; the memory may go */
    LF_BORROW  /* the memory stays where and as it is until the parameter is given anew or the program is freed */
} lf_holding;

/* Gives a parameter its values. They count from the next lf_program_prepare on.
 * name:    the parameter's.
 * values:  of the declared dtype and extents; not this program's own. In device memory: for programs compiled for cuda.
 * holding: LF_BORROW saves a copy. Values that the caller changed have to be given again. From device memory that does
 *          not begin at a multiple of 256 bytes, values are copied all the same.
 * stream:  device memory: a CUstream whose work the values wait for, NULL is the default one; the function waits too.
 * Fails:   LF_ERR_DATA (dtype, rank or extents are not the model's), LF_ERR_UNSUPPORTED (strides, where values are not
 *          copied from host memory), LF_ERR_DEVICE. After LF_ERR_NOMEM and LF_ERR_DEVICE it may have no values. */
LF_API lf_status lf_program_set_param(lf_program *program, const char *name, const lf_tensor *values,
                                      lf_holding holding, void *stream);
/* Gives all parameters their values, copied from a safetensors file. Other tensors in the file are ignored.
 * Fails:   LF_ERR_IO, LF_ERR_DATA (not such a file; a tensor is missing, or of other extents). Parameters before the
 *          one that failed have their new values. */
LF_API lf_status lf_program_load_params(lf_program *program, const char *path);
/* A parameter's values as given, for reading until it is given anew or prepared; those in host memory where they are in
 * device memory too. data is NULL where there is no such parameter, or it has no values. */
LF_API lf_tensor lf_program_param(const lf_program *program, const char *name);

/* Folds and packs the parameters. Needed before the first run and after parameters changed; no call may run meanwhile.
 * Fails:   LF_ERR_DATA (a parameter has no values), LF_ERR_DEVICE. */
LF_API lf_status lf_program_prepare(lf_program *program);
/* Whether borrowed parameters in host memory still look as they did when they were prepared: every value of those of
 * up to 16384 elements, a sample spread over larger ones. A net under callers who are told of changes by other means,
 * not a proof that nothing changed. True before the first prepare. Any thread may ask while calls run. */
LF_API bool lf_program_params_hold(const lf_program *program);

/* Bytes that the program holds. Any pointer may be NULL.
 * params:   parameters as given, without borrowed ones.
 * prepared: parameters as they were folded and packed.
 * other:    everything else. */
LF_API void lf_program_memory(const lf_program *program, size_t *params, size_t *prepared, size_t *other);

/* ---- the account: what was done, and what it is expected to cost ---- */

/* Costs as written, rewrites, refusals, kernels, costs now. It borrows its program, which must outlive it. */
typedef struct lf_account lf_account;

/* Takes the account of a program, prepared or not.
 * program: gets the message of a failure.
 * dims:    the values of the named extents; NULL: those of the options, where a name without one counts as 1024.
 * out:     the account; free it with lf_account_free.
 * Fails:   LF_ERR_DATA (the model cannot be run at dims). */
LF_API lf_status lf_program_account(lf_program *program, const int64_t *dims, lf_account **out);
LF_API void lf_account_free(lf_account *account);

/* Prints an account.
 * json:    the JSON object of `linfuse explain --json`; otherwise text for people.
 * out:     the text, NUL-terminated; the caller owns it and frees it with lf_string_free. */
LF_API lf_status lf_account_print(const lf_account *account, bool json, char **out);
/* lf_program_account and lf_account_print in one call. */
LF_API lf_status lf_program_explain(lf_program *program, const int64_t *dims, bool json, char **out);

/* Prints the page of an account: HTML that fetches and runs nothing.
 * context: gets the message of a failure.
 * title:   the model's name, for people; may be NULL.
 * json:    the object that lf_account_print gives, NUL-terminated; or that of several programs which run one after
 *          another, with what runs elsewhere between them and what was measured: docs/cli.md.
 * whole:   a page of its own; otherwise a fragment, to stand in the page of a notebook.
 * out:     the text, NUL-terminated, in UTF-8; the caller owns it and frees it with lf_string_free.
 * Fails:   LF_ERR_DATA (not such an object). */
LF_API lf_status lf_page_print(lf_context *context, const char *title, const char *json, bool whole, char **out);

/* A field of the account. */
typedef struct lf_field {
    const char *section; /* "plain", "fused", "ops", "kernels", ...: the object of the JSON object that it stands in */
    const char *name;    /* "us" */
    const char *unit;    /* "text", "count", "FLOP", "B", "us", "FLOP/s", "B/s" */
    const char *column;  /* heading of its column in tables; NULL: it has none */
    const char *phrase;  /* words that go with it in a line of figures, "of workspace"; NULL: it has none */
    bool each;           /* the section is a list, and each of its rows has one */
} lf_field;

/* A field by its place among all, section by section. NULL where index is past the last. */
LF_API const lf_field *lf_account_field(size_t index);
/* The rows of a section: 1 where it is no list, 0 where there is no section of that name. */
LF_API size_t lf_account_rows(const lf_account *account, const char *section);
/* A number of the account.
 * section, name: as lf_field has them: "fused", "workspace_bytes".
 * row:     of a list; otherwise 0.
 * Returns NaN where there is no such number. */
LF_API double lf_account_number(const lf_account *account, const char *section, const char *name, size_t row);
/* A text of the account, likewise; NULL where there is none. It lives as long as the account. */
LF_API const char *lf_account_text(const lf_account *account, const char *section, const char *name, size_t row);

/* Prints the program's kernels as CUDA C; needs no GPU.
 * arch:    sm_70, sm_75 (ordinary units), or sm_80 and newer (tensor cores): one of lf_arch_name's.
 * out:     the text, NUL-terminated; the caller owns it and frees it with lf_string_free.
 * Fails:   LF_ERR_UNSUPPORTED (a precision that needs tensor cores). */
LF_API lf_status lf_program_emit(lf_program *program, const char *arch, char **out);
/* The architectures that it takes, oldest first; NULL past the last. */
LF_API const char *lf_arch_name(size_t index);

/* ---- calling ---- */

/* Makes a call. Any thread may, while others run calls of the same program.
 * program: gets the message of a failure.
 * out:     the call; free it with lf_call_free.
 * Fails:   LF_ERR_DEVICE (a program that can only be explained). */
LF_API lf_status lf_call_new(lf_program *program, lf_call **out);
LF_API void lf_call_free(lf_call *call);
/* The message of the last failure; never NULL. */
LF_API const char *lf_call_message(const lf_call *call);

/* Binds an input. The named extents are learnt from all inputs.
 * index:   from 0.
 * tensor:  row-major, of the declared dtype and rank; its data are borrowed until the input is bound anew. On a GPU,
 *          all tensors of a call are in device memory, or all in host memory, from which a run copies them, and back.
 * Fails:   LF_ERR_DATA (dtype, rank or extents are not the model's), LF_ERR_UNSUPPORTED (strides). */
LF_API lf_status lf_call_set_input(lf_call *call, size_t index, const lf_tensor *tensor);
/* Describes an output for the inputs bound now: dtype, rank, extents, memory. With memory of lf_tensor_bytes in data it
 * is what lf_call_set_output takes.
 * index:   from 0.
 * out:     data is what is bound, or NULL. extents belong to the call and hold until inputs are bound anew.
 * Fails:   LF_ERR_ARG (an input is not bound), LF_ERR_DATA (inputs do not fit each other). */
LF_API lf_status lf_call_output(lf_call *call, size_t index, lf_tensor *out);
/* Binds where an output goes.
 * index:   from 0.
 * tensor:  row-major, of the output's dtype and, when it runs, of its extents; its data are borrowed until the output
 *          is bound anew, and overlap no input and no other output.
 * Fails:   as lf_call_set_input. */
LF_API lf_status lf_call_set_output(lf_call *call, size_t index, const lf_tensor *tensor);

/* How to run. All zero, or NULL in its place, is right for programs on the CPU and for tensors in host memory.
 * The last three are for programs compiled for cuda. */
typedef struct lf_run_options {
    int threads;            /* CPU: how many may work on this run, the caller's included; 0, or more than the context's
                               thread count, means that. Results do not depend on it. */
    lf_memory memory;       /* lf_call_run_at alone: where the addresses are */
    void *stream;           /* a CUstream or cudaStream_t; NULL is the default one */
    void *workspace;        /* device memory for this run, lf_call_workspace bytes at a multiple of 256. What is in it
                               does not matter, before or after. NULL: the call's own memory */
    size_t workspace_bytes;
} lf_run_options;

/* Runs. After the first run at some extents, a run at them allocates nothing. On a GPU with tensors in device memory it
 * launches on the stream and does not wait, and may be captured into a graph, which may be launched as long as the call
 * lives and no parameter of its program is given anew. Runs of one call come one after the other, also on the GPU: on
 * one stream, or ordered by events. Runs of different calls need no order.
 * Programs use the CUDA context that is current when the first of them is compiled in a context of linfuse, or else the
 * first GPU's primary one.
 * options: may be NULL.
 * Fails:   LF_ERR_ARG (parameters not prepared; a tensor not bound, overlapping another or in other memory; too little
 *          workspace, with the bytes), LF_ERR_DATA (tensors that do not fit each other), LF_ERR_DEVICE. */
LF_API lf_status lf_call_run(lf_call *call, const lf_run_options *options);
/* Fast path: binds and runs in one call.
 * dims:    the values of the named extents; may be NULL where there are none.
 * inputs:  one address per input, of as many elements as it has at dims, row-major, borrowed as by lf_call_set_input.
 * outputs: one address per output, likewise.
 * options: may be NULL.
 * Fails:   as lf_call_set_input, lf_call_set_output and lf_call_run. */
LF_API lf_status lf_call_run_at(lf_call *call, const int64_t *dims, const void *const *inputs, void *const *outputs,
                                const lf_run_options *options);
/* How many bytes of device memory a run needs beside inputs, outputs and weights, for tensors that begin at multiples
 * of 16 bytes. For programs compiled for cuda.
 * dims:    the values of the named extents; NULL: those of the inputs bound now.
 * bytes:   gets the answer.
 * Fails:   LF_ERR_DATA (the model cannot be run at dims). */
LF_API lf_status lf_call_workspace(lf_call *call, const int64_t *dims, size_t *bytes);
/* How many rows the last run redid as written, because a guarded rewrite met a number that is not finite. Waits for the
 * stream of a run on a GPU. */
LF_API int64_t lf_call_rows_redone(const lf_call *call);
/* Bytes of workspace the call holds. */
LF_API size_t lf_call_memory(const lf_call *call);

/* ---- the loss of a language model, with its gradient ---- */

/* Linear and cross-entropy for training without Python: of tokens x [M, K] and words weight [N, K] the logits
 * x weight^T + bias, a loss of each token, and the gradients. The M x N logits are never in memory: they are made for
 * LF_LOSS_TOKENS tokens at a time, and used up. A gradient's sums over tokens are of f32, in an order that depends on
 * nothing but the targets; so the bits do not depend on threads. All tensors are in host memory. */
enum { LF_LOSS_TOKENS = 192 };

typedef enum lf_reduction { LF_MEAN = 0, LF_SUM } lf_reduction;

/* How logits become a loss: PyTorch's formulas where PyTorch has them. */
typedef struct lf_loss_options {
    lf_reduction reduction;
    int64_t ignore_index;      /* tokens with this target are left out: they cost nothing, and their gradient is 0 */
    double label_smoothing;    /* from 0 to 1 */
    double softcap;            /* logits are softcap * tanh(linear / softcap); 0: as they are */
    double temperature;        /* logits are then divided by it; 0 means 1 */
    double z_loss;             /* z_loss * logsumexp^2 is added for each token; a mean divides it by their number */
    const float *class_weight; /* one number a word of the whole vocabulary; NULL: all are 1 */
    int64_t first_word, words; /* which of how many words weight's first row is. words 0: weight has all of them */
    int threads;               /* how many may work on it; 0, or more than the context's thread count, means that */
} lf_loss_options;
/* What to begin with: struct lf_loss_options options = LF_LOSS_OPTIONS; */
#define LF_LOSS_OPTIONS {.ignore_index = -100}

/* What a loss is of. Everything is borrowed. */
typedef struct lf_loss {
    lf_tensor x, weight;   /* [M, K], [N, K] of f32, f16 or bf16, row-major */
    lf_tensor bias;        /* [N], of these types; data NULL: there is none */
    const int64_t *target; /* M of them, words of the whole vocabulary */
    lf_loss_options options;
} lf_loss;

/* What a token's loss, and its gradient, take from the logits: statistics over some of the words. Those of several
 * ranks are combined in order of rank. All 0 for tokens that are left out. */
typedef struct lf_loss_row {
    float largest; /* of the logits */
    float sum;     /* of exp(logit - largest) */
    float target;  /* the target's logit; 0 where that is another rank's word */
    float all;     /* sum of class weight * logit: for label_smoothing */
    float spread;  /* sum of exp(logit - largest) * (logit - largest): for entropy */
} lf_loss_row;

/* Gradients to be computed; data NULL: not wanted. x [M, K], weight [N, K], bias [N] of f32, f16 or bf16, overwritten.
 * Where several ranks share the words, x is this rank's share of a sum over ranks. */
typedef struct lf_loss_gradient {
    lf_tensor x, weight, bias;
} lf_loss_gradient;

/* The loss, and its gradients times `scale`, in one pass over the tokens: three products, or one where no gradient is
 * wanted. For a weight that has all words; or, with lf_context_set_exchange, this rank's, which follow those of the
 * rank before: then every rank gives the same x, targets and options but for first_word, and gets the same value and
 * gradient of x, and its own of weight and bias. That is one gather, of at most 16 bytes a token that counts and 16
 * more, one sum where x's gradient is wanted, and four products. What only one rank can meet (LF_ERR_NOMEM, a weight
 * that is refused) ends its step before the exchange, and the others would wait for it: end them, by MPI_Abort say.
 * context:  gets the message of a failure.
 * value:    gets the loss: a sum, or a mean, which is NaN where every token is left out. May be NULL.
 * scale:    the gradient of what follows; 1 where the loss itself is minimised.
 * gradient: may be NULL.
 * Fails:    LF_ERR_DATA (a type, an extent, an option, a target that is no word); LF_ERR_IO where an exchange does. */
LF_API lf_status lf_loss_step(lf_context *context, const lf_loss *loss, double scale, double *value,
                              const lf_loss_gradient *gradient);

/* The statistics of each token over weight's words.
 * rows:     M of them. */
LF_API lf_status lf_loss_rows(lf_context *context, const lf_loss *loss, lf_loss_row *rows);
/* Combines the statistics of several ranks, in order of rank.
 * count:    tokens.
 * parts:    [ranks][count].
 * rows:     count; may be parts. */
LF_API lf_status lf_loss_combine(lf_context *context, int64_t count, int ranks, const lf_loss_row *parts,
                                 lf_loss_row *rows);
/* Numbers of each token from statistics over all words; 0 for those left out. Where the loss is of one token alone,
 * with neither smoothing nor weights nor z_loss, it is minus the logarithm of the target's probability.
 * rows:     M.
 * each, lse, entropy: M numbers each: the loss, logsumexp, entropy of the softmax; any may be NULL.
 * value:    their loss reduced, as lf_loss_step has it; may be NULL. */
LF_API lf_status lf_loss_values(lf_context *context, const lf_loss *loss, const lf_loss_row *rows, float *each,
                                float *lse, float *entropy, double *value);
/* The gradients of these numbers: the tiles of logits are made again, which is four products with lf_loss_rows. The
 * options' reduction does not matter.
 * rows:     M, over all words.
 * by_each, by_lse, by_entropy: M numbers each: what comes from behind; NULL stands for 0.
 * Fails:    as lf_loss_step. */
LF_API lf_status lf_loss_backward(lf_context *context, const lf_loss *loss, const lf_loss_row *rows,
                                  const float *by_each, const float *by_lse, const float *by_entropy,
                                  const lf_loss_gradient *gradient);
/* Bytes that these functions allocate while they run, and free.
 * gradient: which gradients to compute; may be NULL: none. 0 where the tensors do not fit each other. */
LF_API size_t lf_loss_workspace(lf_context *context, const lf_loss *loss, const lf_loss_gradient *gradient);

/* ---- the op table ---- */

/* An op that a model may use: its name, its kind, its arguments with their defaults as PyTorch has them. NULL where
 * index is past the end. */
LF_API const char *lf_op_name(size_t index);
LF_API const char *lf_op_kind(size_t index);
LF_API const char *lf_op_signature(size_t index);

#ifdef __cplusplus
}
#endif
#endif
