/* SPDX-License-Identifier: Apache-2.0 */
/* linear and matmul in double precision. M rows of x, N outputs, K inputs.
 *
 * The right side is taken in panels of DEPTH inputs by WIDTH outputs, converted and laid out [k][n]; for each panel,
 * ROWS rows of x at a time run over it. Every loop that matters runs over n, whose sums are independent, so the
 * compiler may use vectors of any width without changing a sum: an element adds its DEPTH products in order of k, then
 * the panels in order, on every machine (the build fuses no product with its sum). Nothing is skipped: 0 * Inf is
 * NaN. */
#include "ir/eval_parts.h"

#include <string.h>

#include "base/isa.h"

enum {
    ROWS = 4,    /* of x that share a read of the panel; multiply_body is written for this many */
    UNROLL = 4,  /* k at a time, likewise: sums are loaded and stored once for four products */
    DEPTH = 128, /* with WIDTH: 256 KiB of doubles, half of a common second-level cache */
    WIDTH = 256  /* with ROWS: 8 KiB of sums, which stay in the first-level cache */
};

/* The right side: element (k, n) at k * k_stride + n * n_stride. */
typedef struct matrix {
    lf_bound data;
    int64_t k_stride, n_stride;
} matrix;

static int64_t at_most(int64_t count, int64_t limit)
{
    return count < limit ? count : limit;
}

/* panel[DEPTH][WIDTH] = the elements from (k0, n0) on, zeros where there are no more. The zeros meet zeros of x, or
 * sums that are thrown away. */
static void pack_panel(const matrix *m, int64_t k0, int64_t depth, int64_t n0, int64_t width, double *panel)
{
    memset(panel, 0, sizeof(double) * DEPTH * WIDTH);
    /* 16 columns of linear's weight at a time: their cache lines then stay until they are read to the end. */
    for (int64_t from = 0; from < width; from += 16) {
        int64_t to = from + at_most(width - from, 16);
        for (int64_t k = 0; k < depth; k++)
            for (int64_t n = from; n < to; n++)
                panel[k * WIDTH + n] = lf_read(&m->data, (k0 + k) * m->k_stride + (n0 + n) * m->n_stride);
    }
}

/* sums[ROWS][WIDTH] = x[ROWS][DEPTH] panel[DEPTH][WIDTH] */
static inline __attribute__((always_inline)) void multiply_body(const double *restrict x, const double *restrict panel,
                                                                double *restrict sums)
{
    const double *a = x, *b = a + DEPTH, *c = b + DEPTH, *d = c + DEPTH;
    double *restrict s = sums, *restrict t = s + WIDTH, *restrict u = t + WIDTH, *restrict v = u + WIDTH;
    memset(sums, 0, sizeof(double) * ROWS * WIDTH);
    for (int k = 0; k < DEPTH; k += UNROLL) {
        const double *p0 = panel + k * WIDTH, *p1 = p0 + WIDTH, *p2 = p1 + WIDTH, *p3 = p2 + WIDTH;
        double a0 = a[k], a1 = a[k + 1], a2 = a[k + 2], a3 = a[k + 3];
        double b0 = b[k], b1 = b[k + 1], b2 = b[k + 2], b3 = b[k + 3];
        double c0 = c[k], c1 = c[k + 1], c2 = c[k + 2], c3 = c[k + 3];
        double d0 = d[k], d1 = d[k + 1], d2 = d[k + 2], d3 = d[k + 3];
        for (int n = 0; n < WIDTH; n++) {
            s[n] = (((s[n] + a0 * p0[n]) + a1 * p1[n]) + a2 * p2[n]) + a3 * p3[n];
            t[n] = (((t[n] + b0 * p0[n]) + b1 * p1[n]) + b2 * p2[n]) + b3 * p3[n];
            u[n] = (((u[n] + c0 * p0[n]) + c1 * p1[n]) + c2 * p2[n]) + c3 * p3[n];
            v[n] = (((v[n] + d0 * p0[n]) + d1 * p1[n]) + d2 * p2[n]) + d3 * p3[n];
        }
    }
}

typedef void multiply_fn(const double *x, const double *panel, double *sums);

static void multiply_plain(const double *x, const double *panel, double *sums)
{
    multiply_body(x, panel, sums);
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx2"))) static void multiply_avx2(const double *x, const double *panel, double *sums)
{
    multiply_body(x, panel, sums);
}

__attribute__((target("avx512f"))) static void multiply_avx512(const double *x, const double *panel, double *sums)
{
    multiply_body(x, panel, sums);
}

/* Wider vectors, the same sums. */
static multiply_fn *multiply_here(void)
{
    if (lf_has_avx512())
        return multiply_avx512;
    return lf_has_avx2() ? multiply_avx2 : multiply_plain;
}
#else
static multiply_fn *multiply_here(void)
{
    return multiply_plain;
}
#endif

/* Scratch: panel [DEPTH][WIDTH], rows of x [ROWS][DEPTH], sums [ROWS][WIDTH]. */
int64_t lf_eval_product_scratch(const lf_site *s)
{
    (void)s;
    return DEPTH * WIDTH + ROWS * DEPTH + ROWS * WIDTH;
}

/* out[M][N] += x[M][K] panel, where the panel stands at (k0, n0). */
static void multiply_panel(const lf_site *s, multiply_fn *multiply, int64_t rows, int64_t inputs, int64_t outputs,
                           int64_t k0, int64_t n0)
{
    double *panel = s->scratch, *x = panel + DEPTH * WIDTH, *sums = x + ROWS * DEPTH;
    int64_t depth = at_most(inputs - k0, DEPTH), width = at_most(outputs - n0, WIDTH);
    for (int64_t row = 0; row < rows; row += ROWS) {
        int64_t height = at_most(rows - row, ROWS);
        memset(x, 0, sizeof(double) * ROWS * DEPTH);
        for (int64_t i = 0; i < height; i++) {
            const double *from = lf_read_panel(&s->arg[0], (row + i) * inputs + k0, depth, x + i * DEPTH);
            if (from != x + i * DEPTH)
                memcpy(x + i * DEPTH, from, sizeof(double) * (size_t)depth);
        }
        multiply(x, panel, sums);
        for (int64_t i = 0; i < height; i++)
            for (int64_t n = 0; n < width; n++)
                s->out[(row + i) * outputs + n0 + n] += sums[i * WIDTH + n];
    }
}

static void add_bias(const lf_site *s, int64_t rows, int64_t outputs)
{
    for (int64_t row = 0; row < rows; row++)
        for (int64_t n = 0; n < outputs; n++)
            s->out[row * outputs + n] += lf_read(&s->arg[2], n);
}

void lf_eval_product(const lf_site *s)
{
    const lf_node_info *node = lf_at(s->g, s->n);
    const lf_shape *x = &lf_at(s->g, node->arg[0])->shape;
    int64_t inputs = lf_site_extent(s, node->arg[0], x->rank - 1);
    int64_t outputs = lf_site_extent(s, s->n, node->shape.rank - 1), rows = 1;
    for (int axis = 0; axis + 1 < x->rank; axis++)
        rows *= lf_site_extent(s, node->arg[0], axis);

    /* linear's weight is [N, K], matmul's right side [K, N]. */
    bool by_rows = node->op == LF_OP_linear;
    matrix right = {s->arg[1], by_rows ? 1 : outputs, by_rows ? inputs : 1};
    multiply_fn *multiply = multiply_here();

    for (int64_t i = 0; i < rows * outputs; i++)
        s->out[i] = 0;
    for (int64_t n0 = 0; n0 < outputs && rows > 0; n0 += WIDTH) {
        for (int64_t k0 = 0; k0 < inputs; k0 += DEPTH) {
            pack_panel(&right, k0, at_most(inputs - k0, DEPTH), n0, at_most(outputs - n0, WIDTH), s->scratch);
            multiply_panel(s, multiply, rows, inputs, outputs, k0, n0);
        }
    }
    if (lf_is_bound(&s->arg[2]))
        add_bias(s, rows, outputs);
}
