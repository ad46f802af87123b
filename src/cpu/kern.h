/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel contract: what the CPU loops ask of an instruction set. One table of functions per ISA; kern_scalar.c
 * always exists and is right on any machine, the others are the same contract, faster.
 *
 * For one table, a function gives the same bits for an element whatever its neighbours, its position in a strip, the
 * strip's length or alignment are (but for what is said to depend on the position in a reduction). That is what makes a
 * row's result independent of batch size and threads. (NaN for NaN: its sign may differ.) Different tables may round
 * differently. */
#ifndef LF_CPU_KERN_H
#define LF_CPU_KERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/isa.h"
#include "ir/ops.h"

enum {
    /* The longest strip of elements a tail works on: three of them and a result stay in L1. */
    LF_STRIP = 256,
    /* The longest stretch of one row that steps go over at once: so long that what each call costs is little. */
    LF_STRETCH = 4 * LF_STRIP,
    /* K is summed in runs of at most so many: bounds panel size and error. MKL's are as long where they are shortest
     * (without AVX-512), and products must not be less accurate than its. */
    LF_KBLOCK = 192,
    /* So many runs are added one after the other, then such sums to each other. K = 4096 has no more. */
    LF_RUNS = 22,
    /* Rows of x that may share a load of w. */
    LF_DOTS = 4,
    /* A thread's; past this, what is written does not stay in the second-level cache until it is read. */
    LF_STREAM_BYTES = 4 << 20
};

/* One run of K of a product: to = c + x w^T. */
typedef struct lf_multiply {
    int64_t rows, n, k;           /* rows >= 1, 1 <= n <= LF_STRIP, 1 <= k <= LF_KBLOCK */
    const float *x, *w;           /* a run of x and one of w, as the table's pack_x and pack_w laid them out */
    lf_dtype x_type, w_type;      /* what they are packed as: x as f32, or as bf16 where w is, too */
    const float *c;               /* [rows][ldc], what is added to; or NULL: nothing is */
    int64_t ldc;
    float *to;                    /* [rows][ldt], where the sums go: c or elsewhere */
    int64_t ldt;                  /* at least n rounded up to nr: what lies there past column n is overwritten */
    const float *bias;            /* [n], added to every row last; or NULL */
    const float *next_x, *next_w; /* what the call after this one reads, to be asked for in advance; or NULL */
} lf_multiply;

typedef struct lf_kern {
    const char *isa;             /* "scalar", "avx2", ... as LINFUSE_ISA names it */
    bool (*usable)(void);        /* may this machine run it? */

    /* ---- the product, in runs of K ----
     * A row of c is the same bits whatever other rows are multiplied with it, and however many. */
    int mr, nr;                  /* rows and columns of a tile; nr divides LF_STRIP */
    /* Does this machine multiply bf16 by bf16? Then x of bf16 may be packed as it is, where w is bf16. The bits are the
     * same as with x as f32; but not in amx, which sums in another order (kern_tiles.h): there, whether x is packed so
     * must follow from the model alone. NULL: it does not, and multiply makes f32 of such x again. */
    bool (*has_pairs)(void);
    /* What w of a type is packed as: the type itself, or f32 where the machine has to convert it beforehand. */
    lf_dtype w_type[LF_DTYPES];
    /* Floats that a run packed as `type` takes, a multiple of 16: of `rows` rows of x, of n columns of w. */
    int64_t (*x_floats)(lf_dtype type, int64_t rows, int64_t k);
    int64_t (*w_floats)(lf_dtype type, int64_t n, int64_t k);
    /* Packs a run of `rows` rows of x. from: of that type, f32 or bf16; [rows][ld], k of ld used; at any alignment. */
    void (*pack_x)(lf_dtype type, int64_t rows, int64_t k, const void *from, int64_t ld, float *to);
    /* Packs a run of n columns of w. from: of that type, which is one of w_type; [n][ld] with k elements a column, or
     * [k][ld] where is_kn; at any alignment. */
    void (*pack_w)(lf_dtype type, int64_t n, int64_t k, const void *from, int64_t ld, bool is_kn, float *to);
    void (*multiply)(const lf_multiply *m);

    /* y[i * n + j] = sum over k of x[i * ldx + k] * w[j][k] in double precision, for i < rows <= LF_DOTS and j < n; its
     * order follows from n and k alone. Any alignment. n, k >= 0. */
    void (*dots)(int64_t rows, int64_t n, int64_t k, const float *x, int64_t ldx, const double *w, double *y);

    /* out[i] = op's expression of x[i], y[i], z[i] and attr[0..2], 0 <= n <= LF_STRETCH; out may be x, y or z itself.
     * Unused arguments may be NULL. By lf_op: NULL for ops without an expression of elements. A normalization's attr[1]
     * is 1 where y and z are results of a statistic, of which squares may be encoded (below), and 0 otherwise. */
    void (*map[LF_OP_COUNT])(int64_t n, const float *x, const float *y, const float *z, const float *attr, float *out);

    /* The same bits where y and z are one number each, y[0] and z[0], which out may not hold: their share of the work
     * is done once. NULL for ops that are never of several values. */
    void (*map_one[LF_OP_COUNT])(int64_t n, const float *x, const float *y, const float *z, const float *attr,
                                 float *out);

    /* The same for x * y + z, rounded as mul and add would. */
    void (*mul_add)(int64_t n, const float *x, const float *y, const float *z, const float *attr, float *out);

    /* For i < rows: state[i][..] = the monoid's fold of x[i * ldx + 0..n), 0 <= n <= LF_STRIP, in an order fixed by n
     * alone. state: [rows][lf_monoid_row(m)->states]. Sums are floats that became doubles; but where floats cannot hold
     * them, because they overflow or squares vanish, they were summed in double precision. */
    void (*fold[LF_MONOID_COUNT])(int64_t rows, int64_t n, const float *x, int64_t ldx, double *state);

    /* The fold of maxsumexp, the same bits, which also leaves exps[i * lde + j] = exp(x[i * ldx + j] - state[i][0]) for
     * j < n, each the same bits wherever it stands; 0 where all of a row are -Inf, anything where the sum is NaN. exps
     * lie apart from x. Asks for what lies `ahead` floats further on than each x, little by little, since many at once
     * would be waited for. */
    void (*fold_exps)(int64_t rows, int64_t n, const float *x, int64_t ldx, int64_t ahead, double *state, float *exps,
                      int64_t lde);

    /* For i < windows: r[i] = the monoid's only result for x[i * stride + t * dilation], t < taps, in double precision
     * and in order of t, finished with n as their number. NULL for monoids of several states. */
    void (*window[LF_MONOID_COUNT])(int64_t windows, int64_t taps, const float *x, int64_t stride, int64_t dilation,
                                    double n, float *r);

    /* out[i] = from[(skip + i) / each] for i < n. 0 <= skip < each. */
    void (*spread)(int64_t n, int64_t skip, int64_t each, const float *from, float *out);

    /* to[0..n) = from[0..n), past the caches where the machine can: for what is larger than they are and not read again
     * soon. Before another thread reads `to`, this one calls stream_end. */
    void (*stream)(int64_t n, const float *from, float *to);
    void (*stream_end)(void);

    /* out[i] = from[i] for i < n, from of the type, as lf_to_f32 does. And back, as lf_from_f32 does; NULL for types
     * that are no floats. By lf_dtype. Any alignment of elements; they lie apart. */
    void (*load[LF_DTYPES])(int64_t n, const void *from, float *out);
    void (*store[LF_DTYPES])(int64_t n, const float *from, void *out);

    /* Is none of x[0..n) NaN or Inf? Any alignment, n >= 0. */
    bool (*all_finite)(int64_t n, const float *x);

    /* Column form: for j < n <= LF_STRETCH: put x[j] into states, state number s of column j at state[s * lds + j]. A
     * sum of squares that overflows is encoded (lf_monoid_put). */
    void (*put[LF_MONOID_COUNT])(int64_t n, const float *x, float *state, int64_t lds);
} lf_kern;

/* Shared by all tables (plain C, kern_common.c). Partials meet in double precision: there may be thousands of them, and
 * nothing else of a long sum is left to lose digits. Combines t, a fold's states that come after what s holds, into s;
 * finishes n elements.
 *
 * A result that is a square (a variance, a mean of squares) may be out of the range of floats where its root is not.
 * Then it is encoded: minus its root, which map reads as such. */
void lf_monoid_identity(lf_monoid m, float *s);
void lf_monoid_begin(lf_monoid m, double *s);
void lf_monoid_combine(lf_monoid m, double *s, const double *t);
void lf_monoid_finish(lf_monoid m, const double *s, double n, float *r);
/* A fold in double precision, one element after the other. */
void lf_monoid_fold(lf_monoid m, int64_t n, const float *x, double *s);
/* Column form in double precision: puts x into state[k * lds], states as put leaves them. The last state of a monoid
 * whose last result is a square is a sum of squares; more than a float holds is encoded as minus a part of its root, so
 * small that the root of a million squares is a float. Other sums become infinite. */
#define LF_IS_SQUARE(least) ((least) == 0) /* what is never less than 0 */
void lf_monoid_put(lf_monoid m, float x, float *state, int64_t lds);
/* Leaves s in state[k * lds], as put would. */
void lf_monoid_leave(lf_monoid m, const double *s, float *state, int64_t lds);

/* The states of many statistics: number s of part p of statistic i lies at t[i * item + p * part + s * state]. */
typedef struct lf_partials {
    const double *folded; /* t, as fold leaves them; or NULL */
    const float *put;     /* t, as put and lf_monoid_leave leave them; or NULL */
    int64_t item, part, state;
    int64_t parts;
} lf_partials;
/* All of that for each of `count` statistics, of n elements each: result k of statistic i -> r[k][i]. */
void lf_monoid_settle(lf_monoid m, int64_t count, const lf_partials *from, double n, float *const *r);

/* The tables this machine can run, best first; NULL past the end. */
const lf_kern *lf_kern_at(size_t index);
/* The one to use: the best, or the one LINFUSE_ISA names. NULL when that name is unknown or not usable here. */
const lf_kern *lf_kern_pick(void);

#endif
