/* SPDX-License-Identifier: Apache-2.0 */
/* The table of an instruction set: dots, and around them what kern_product.h, kern_maps.h, kern_folds.h,
 * kern_windows.h, kern_moves.h and kern_convert.h hold.
 * A file kern_ISA.c says what its machine has and includes this:
 *   KERN_ISA     its name, unquoted
 *   KERN_LANES   floats in a vector register
 *   KERN_MR      rows of a tile
 *   KERN_NV      vectors in a row of a tile: KERN_MR * KERN_NV sums, KERN_NV columns of b and one element of a are
 *                alive at once and should fit the registers
 *   KERN_USABLE  an expression: may this machine run it?
 *   KERN_PAIRS_USABLE  likewise of add_pair, where kern_vec.h has one
 * Vectors are GNU C's, so that one text gives every machine its own instructions with gcc and clang. */
#include "cpu/kern_parts.h"
#include "cpu/kern_vec.h"

#define KERN_NR (KERN_LANES * KERN_NV)

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)

/* Loops that index registers must be unrolled whole, or the sums live in memory. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

#include "cpu/kern_product.h"

/* Half as many lanes, in double precision. */
enum { KERN_WIDE = KERN_LANES / 2 };
typedef double dvec __attribute__((vector_size(KERN_WIDE * sizeof(double)), may_alias));
typedef double dvec_anywhere
    __attribute__((vector_size(KERN_WIDE * sizeof(double)), aligned(sizeof(double)), may_alias));
typedef float half_anywhere __attribute__((vector_size(KERN_WIDE * sizeof(float)), aligned(sizeof(float)), may_alias));

/* Lane i and lane i + half, then the same with half as many. */
static inline double sum_across_wide(dvec v)
{
#if KERN_LANES == 16 && defined(__AVX512F__)
    const __m256d four = _mm512_castpd512_pd256((__m512d)v) + _mm512_extractf64x4_pd((__m512d)v, 1);
    const __m128d two = _mm256_castpd256_pd128(four) + _mm256_extractf128_pd(four, 1);
    return two[0] + two[1];
#else
    union { dvec v; double d[KERN_WIDE]; } all = {.v = v};
    UNROLL
    for (int half = KERN_WIDE / 2; half > 0; half /= 2) {
        UNROLL
        for (int lane = 0; lane < half; lane++)
            all.d[lane] += all.d[lane + half];
    }
    return all.d[0];
#endif
}

/* ROWS rows against COLUMNS columns: 1, 2 or 4 of them, which share what x takes to become doubles. Element k goes to
 * lane k % KERN_WIDE of one of four sums of a row, shared out among its columns, so that several additions are under
 * way at once. What comes AHEAD floats later is asked for: of these rows, or of those that follow. What the machine
 * asks for by itself ends with a page, which may be no more than a row. */
static inline __attribute__((always_inline)) void dots_of(const int ROWS, const int COLUMNS, int64_t k, const float *x,
                                                          int64_t ldx, const double *w, double *y, int64_t ldy)
{
    enum { SUMS = 4, STEP = SUMS * KERN_WIDE, AHEAD = 512 };
    const int each = SUMS / COLUMNS;
    const int64_t turn = k - AHEAD; /* from here on it is the next rows', or of short rows those some further on */
    const int64_t to_next = turn >= 0 ? ROWS * ldx - turn : ROWS * ldx * (AHEAD / (k + 1) + 1);
    dvec sum[LF_DOTS][SUMS];
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        UNROLL
        for (int s = 0; s < SUMS; s++)
            sum[r][s] = (dvec){0};
    }
    int64_t i = 0;
    for (; i + STEP <= k; i += STEP) {
        const float *later = x + i + (i < turn ? AHEAD : to_next);
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            UNROLL
            for (int line = 0; line < STEP; line += LINE)
                __builtin_prefetch(later + r * ldx + line);
        }
        UNROLL
        for (int v = 0; v < SUMS; v++) {
            dvec weight[SUMS];
            UNROLL
            for (int c = 0; c < COLUMNS; c++)
                weight[c] = *(const dvec_anywhere *)(w + c * k + i + v * KERN_WIDE);
            UNROLL
            for (int r = 0; r < ROWS; r++) {
                const dvec u = load_wide(x + r * ldx + i + v * KERN_WIDE);
                UNROLL
                for (int c = 0; c < COLUMNS; c++)
                    sum[r][c * each + v % each] = mul_add_wide(u, weight[c], sum[r][c * each + v % each]);
            }
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++) {
            union { dvec v; double d[KERN_WIDE]; } total = {.v = sum[r][c * each]};
            if (each == 2)
                total.v += sum[r][c * each + 1];
            else if (each == 4)
                total.v = (total.v + sum[r][1]) + (sum[r][2] + sum[r][3]);
            for (int64_t rest = i; rest < k; rest++)
                total.d[rest % KERN_WIDE] += (double)x[r * ldx + rest] * w[c * k + rest];
            y[r * ldy + c] = sum_across_wide(total.v);
        }
}

static inline __attribute__((always_inline)) void rows_of_dots(const int ROWS, int64_t n, int64_t k, const float *x,
                                                               int64_t ldx, const double *w, double *y)
{
    int64_t j = 0;
    for (; j + 4 <= n; j += 4)
        dots_of(ROWS, 4, k, x, ldx, w + j * k, y + j, n);
    for (; j + 2 <= n; j += 2)
        dots_of(ROWS, 2, k, x, ldx, w + j * k, y + j, n);
    for (; j < n; j++)
        dots_of(ROWS, 1, k, x, ldx, w + j * k, y + j, n);
}

/* Contract: kern.h. x: [rows][ldx], w: [n][k], y: [rows][n]. */
static void dots(int64_t rows, int64_t n, int64_t k, const float *x, int64_t ldx, const double *w, double *y)
{
    /* times four sums; more rows at a time are no faster, and memory comes from more places at once */
    enum { TOGETHER = 2 };
    assert(rows >= 0 && rows <= LF_DOTS && n >= 0 && k >= 0);
    int64_t r = 0;
    for (; r + TOGETHER <= rows; r += TOGETHER)
        rows_of_dots(TOGETHER, n, k, x + r * ldx, ldx, w, y + r * n);
    for (; r < rows; r++)
        rows_of_dots(1, n, k, x + r * ldx, ldx, w, y + r * n);
}

#include "cpu/kern_maps.h"
#include "cpu/kern_folds.h"
#include "cpu/kern_moves.h"
#include "cpu/kern_convert.h"
#include "cpu/kern_windows.h"

static bool usable(void)
{
    return KERN_USABLE;
}

#if HAS_PAIRS
static bool has_pairs(void)
{
    return KERN_PAIRS_USABLE;
}
#endif

/* Of what a second table of the same file has otherwise, each its own. */
#define OWN(function) function
#include "cpu/kern_table.h"
