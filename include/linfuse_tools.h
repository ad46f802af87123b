/* SPDX-License-Identifier: Apache-2.0 */
/* linfuse_tools: what tests, benchmarks and examples need beside the library proper: .npy files, numbers drawn from a
 * seed, a GPU's clock, a device's peak. The rules of linfuse.h hold here too.
 */
#ifndef LINFUSE_TOOLS_H
#define LINFUSE_TOOLS_H

#include <linfuse.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- .npy files ---- */

/* An array in a .npy file (version 1 to 3, C order, little-endian), mapped into memory. Its elements are f32 ("<f4" in
 * the file), f16 ("<f2"), bf16 ("<V2", as NumPy with the package ml_dtypes writes it) or i64 ("<i8"). */
typedef struct lf_array lf_array;

/* Opens a .npy file.
 * context:  gets the message of a failure.
 * path:     the file. It may change only after the array is freed.
 * out:      the array; free it with lf_array_free. NULL on failure.
 * Fails:    LF_ERR_IO (the file cannot be read), LF_ERR_DATA (it is not such a .npy file), LF_ERR_NOMEM. */
LF_API lf_status lf_array_open(lf_context *context, const char *path, lf_array **out);

/* Frees an array and what was read from it. array: may be NULL. */
LF_API void lf_array_free(lf_array *array);

/* The array as a tensor in host memory, row-major, for reading as long as the array lives. */
LF_API lf_tensor lf_array_tensor(const lf_array *array);

/* Writes a .npy file. A failure leaves no half-written file behind.
 * context:  gets the message of a failure.
 * path:     the file; replaced where it exists.
 * tensor:   row-major, in host memory.
 * Fails:    LF_ERR_ARG, LF_ERR_IO, LF_ERR_UNSUPPORTED (device memory, strides). */
LF_API lf_status lf_array_save(lf_context *context, const char *path, const lf_tensor *tensor);

/* ---- elements ---- */

/* Converts elements from one type of floats to another: exactly where that has more digits; otherwise rounded to
 * nearest, ties to even, and infinite where too large.
 * from:     count of them, at any alignment; may be NULL where count is 0, like `to`.
 * to:       as many; they overlap no element of `from`.
 * Fails:    LF_ERR_ARG (a type that is no float, a NULL). */
LF_API lf_status lf_convert(lf_dtype from_type, const void *from, lf_dtype to_type, void *to, size_t count);

/* ---- text files ---- */

/* Writes a text to a file. A failure leaves what was there before.
 * context:  gets the message of a failure.
 * path:     the file; replaced where it exists.
 * text:     NUL-terminated.
 * Fails:    LF_ERR_IO, LF_ERR_NOMEM. */
LF_API lf_status lf_text_save(lf_context *context, const char *path, const char *text);

/* ---- numbers from a seed ---- */

/* Draws uniform numbers from [low, high): the same ones for the same seed, name and index on every machine.
 * name:   must not be NULL.
 * count:  how many.
 * out:    count numbers; may be NULL where count is 0. */
LF_API void lf_draw_uniform(uint64_t seed, const char *name, float low, float high, size_t count, float *out);

/* Gives a program parameters drawn from a seed and each parameter's name, uniform in +-1/sqrt(last extent).
 * Fails:    LF_ERR_NOMEM. */
LF_API lf_status lf_program_draw_params(lf_program *program, uint64_t seed);

/* ---- time ---- */

/* Runs a call that is bound, several times, and measures each run by the GPU's own clock. The GPU's cache is flushed
 * before each run; copies from and to host memory are not counted.
 * call:     of a program compiled for cuda, with inputs and outputs bound.
 * options:  as for lf_call_run; may be NULL.
 * runs:     how many.
 * seconds:  one per run; may be NULL where runs is 0.
 * Fails:    as lf_call_run; LF_ERR_ARG (a program for the CPU). */
LF_API lf_status lf_call_time(lf_call *call, const lf_run_options *options, size_t runs, double *seconds);

/* What a device can do: its peak of f32 multiply-adds and of memory traffic, per second. "cpu" is measured on this
 * machine with the context's threads, once; the result is kept in the user's cache.
 * context:  gets the message of a failure.
 * device:   as for the option of that name: cpu, cuda, h200, a100.
 * flops:    floating-point operations per second, two for a multiply-add; may be NULL.
 * bytes:    bytes per second; may be NULL.
 * Fails:    LF_ERR_ARG (an unknown device; LINFUSE_ISA names what this machine cannot run), LF_ERR_DEVICE,
 *           LF_ERR_NOMEM. */
LF_API lf_status lf_device_peak(lf_context *context, const char *device, double *flops, double *bytes);

/* ---- messages ---- */

/* The word that somebody who wrote another may have meant: the one that is fewest edits away.
 * word:   what was written; must not be NULL.
 * words:  count of them; one that is NULL is passed over.
 * Returns one of them; NULL where none is near. */
LF_API const char *lf_word_near(const char *word, const char *const *words, size_t count);

/* The rewrite rules, in the order they are tried; NULL past the end.
 * lf_rule_name:     as the option `rules` takes it.
 * lf_rule_law:      what it does, as an equation or in words.
 * lf_rule_class_of: what it promises: EXACT, REROUNDS or GUARDED. */
LF_API const char *lf_rule_name(size_t index);
LF_API const char *lf_rule_law(size_t index);
LF_API const char *lf_rule_class_of(size_t index);

/* A text that a terminal can be given, whatever is in it, such as a file's name: control characters but newline and tab
 * are written as \xNN. The library's own messages are such texts.
 * text:     must not be NULL, nor overlap out.
 * out:      gets the text with a NUL, cut between two characters where it does not fit.
 * capacity: of out, in bytes; 1 or more. */
LF_API void lf_printable(const char *text, char *out, size_t capacity);

/* What this machine has, in words:
 *   system    the operating system, and glibc's version
 *   cpu       the processor's model
 *   isa       the instruction set of the kernels that run here
 *   measured  when the CPU was measured for predictions, on as many threads as the context has
 *   driver    the newest CUDA version that the NVIDIA driver supports
 *   nvrtc     the version of CUDA's run-time compiler
 *   gpu       the GPU that device cuda stands for
 *   cache     the user's cache folder, which need not exist
 * context:  gets the message of a failure.
 * fact:     one of these.
 * out:      the text, NUL-terminated; the caller owns it and frees it with lf_string_free.
 * Fails:    LF_ERR_ARG (no such fact; LINFUSE_ISA names what this machine cannot run), LF_ERR_DEVICE (driver, nvrtc,
 *           gpu: why it cannot be used), LF_ERR_DATA (measured: it was not yet), LF_ERR_IO (neither XDG_CACHE_HOME nor
 *           HOME names a folder). */
LF_API lf_status lf_machine_fact(lf_context *context, const char *fact, char **out);

#ifdef __cplusplus
}
#endif
#endif
