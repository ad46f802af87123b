/* SPDX-License-Identifier: Apache-2.0 */
/* Sums and means over a parameter's rows, by all threads. A rewrite makes them of large weights, and lf_eval, which
 * takes one op after the other on one thread, would take ten times as long. A column is summed from its first row to
 * its last, as lf_eval does it, so that the bits are lf_eval's whoever sums which columns. */
#include "prepare/sums.h"

#include <math.h>

#include "base/mem.h"

enum {
    COLUMNS = 1024,       /* a thread takes at a time: the sums, 8 KB, stay in L1; a row's part is a page */
    WORTH_SUMMING = 1 << 16 /* elements; fewer are done before other threads would have woken up */
};

typedef struct summing {
    const float *from; /* [rows][columns] */
    double *to;        /* [columns] */
    int64_t rows, columns;
    double divisor;
} summing;

/* to[i] += a row after the other; rows is small and known where it matters, so that the sums stay in registers
 * meanwhile. */
static inline __attribute__((always_inline)) void add_rows(const float *restrict from, int64_t ld, int rows, int64_t n,
                                                           double *restrict to)
{
    for (int64_t i = 0; i < n; i++) {
        double sum = to[i];
        for (int r = 0; r < rows; r++)
            sum += (double)from[r * ld + i];
        to[i] = sum;
    }
}

static void sum_columns(void *arg, int64_t index, int slot)
{
    enum { AT_ONCE = 8 };
    const summing *s = arg;
    const int64_t col = index * COLUMNS, n = lf_min64(COLUMNS, s->columns - col);
    const float *from = s->from + col;
    double *to = s->to + col;
    int64_t row = 0;
    (void)slot;
    for (int64_t i = 0; i < n; i++)
        to[i] = 0;
    for (; row + AT_ONCE <= s->rows; row += AT_ONCE)
        add_rows(from + row * s->columns, s->columns, AT_ONCE, n, to);
    for (; row < s->rows; row++)
        add_rows(from + row * s->columns, s->columns, 1, n, to);
    for (int64_t i = 0; i < n; i++)
        to[i] /= s->divisor;
}

/* The parameter that n's argument is, as it lies or under another shape; LF_NONE where it is none. */
static lf_node summed_param(const lf_graph *g, lf_node n)
{
    lf_node x = lf_arg_of(g, n, 0);
    while (lf_kind_of(g, x) == LF_VIEW)
        x = lf_arg_of(g, x, 0);
    return lf_at(g, x)->op == LF_OP_param ? x : LF_NONE;
}

/* Whether n is a sum or a mean over the first axes of a parameter and leaves others, and of how many rows and
 * columns. */
static bool sums_rows(const lf_graph *g, const int64_t *dims, lf_node n, summing *out)
{
    const lf_op_info *op = lf_op_row(lf_at(g, n)->op);
    if (op->kind != LF_REDUCE || (op->monoid != LF_MONOID_sum && op->monoid != LF_MONOID_mean) ||
        summed_param(g, n) == LF_NONE)
        return false;
    const lf_shape *x = &lf_at(g, lf_arg_of(g, n, 0))->shape;
    const unsigned axes = lf_span_axes(g, n);
    *out = (summing){.rows = 1, .columns = 1, .divisor = 1};
    if ((axes & (axes + 1)) != 0 || axes == 0 || axes == (1u << x->rank) - 1)
        return false;
    for (int i = 0; i < x->rank; i++)
        *(axes >> i & 1 ? &out->rows : &out->columns) *= lf_extent_at(x->dim[i], dims);
    if (op->monoid == LF_MONOID_mean)
        out->divisor = (double)out->rows;
    return out->rows * out->columns >= WORTH_SUMMING;
}

/* Double sums of f32 do not overflow, so they are finite where all that was summed is. */
static bool finite_sums(const summing *s)
{
    bool finite = true;
    for (int64_t i = 0; i < s->columns; i++)
        finite = finite && isfinite(s->to[i]);
    return finite;
}

lf_status lf_sums_bind(const lf_graph *g, const int64_t *dims, const bool *needed, lf_pool *pool, lf_bound *bound,
                       double **sums, bool *finite, lf_diag *diag)
{
    for (lf_node n = 0; n < g->count; n++) {
        summing s;
        if (!needed[n] || !sums_rows(g, dims, n, &s))
            continue;
        const lf_node param = summed_param(g, n);
        if (bound[param].dtype != LF_F32)
            continue;
        s.from = bound[param].data;
        s.to = sums[n] = lf_aligned_alloc((size_t)s.columns * sizeof *s.to);
        if (!s.to)
            return lf_fail_nomem(diag, "the prepared weights");
        lf_pool_run(pool, lf_ceil_div(s.columns, COLUMNS), sum_columns, &s);
        bound[n] = (lf_bound){.f64 = s.to, .known = true};
        finite[param] = finite[param] || finite_sums(&s);
    }
    return LF_OK;
}
