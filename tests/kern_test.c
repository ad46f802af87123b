/* SPDX-License-Identifier: Apache-2.0 */
/* Product, dot and the maps of every table this machine can run, swept over lengths, strides, alignments and special
 * values, with guard words around what they write. The monoids: kern_fold_test.c. */
#include "cpu_support.h"
#include "ir/expr.h"

#include <float.h>
#include <math.h>

enum { LONGEST = 70, GUARD = 32 };
#define UNIT 0x1p-24

/* ---- tables ---- */

static void tables_are_whole(void **state)
{
    (void)state;
    for (size_t i = 0; lf_kern_at(i); i++, cases++) {
        const lf_kern *k = lf_kern_at(i);
        assert_true(k->usable());
        assert_true(k->mr >= 1 && k->nr >= 1 && LF_STRIP % k->nr == 0);
        for (int op = 0; op < LF_OP_COUNT; op++) {
            lf_kind kind = lf_op_row((lf_op)op)->kind;
            assert_int_equal(k->map[op] != NULL, kind != LF_LEAF && kind != LF_PRODUCT && kind != LF_LOSS);
        }
        for (int m = 0; m < LF_MONOID_COUNT; m++)
            assert_true(k->fold[m] && k->put[m]);
        assert_int_equal(setenv("LINFUSE_ISA", k->isa, 1), 0);
        assert_ptr_equal(lf_kern_pick(), k);
    }
    assert_int_equal(setenv("LINFUSE_ISA", "abacus", 1), 0);
    assert_null(lf_kern_pick());
    assert_int_equal(unsetenv("LINFUSE_ISA"), 0);
    assert_ptr_equal(lf_kern_pick(), lf_kern_at(0));
    assert_null(lf_kern_at(cases));
    assert_string_equal(lf_kern_at((size_t)cases - 1)->isa, "scalar");
}

/* ---- the product ---- */

typedef struct product_rig {
    const lf_kern *kern;
    lf_dtype x_type, type; /* that x is packed as; that w is, one that the table packs w as */
    int64_t rows, n, k, ldc, ldx, ldw;
    float *x, *w;   /* [rows][ldx], and [n][ldw] or [k][ldw], what its type holds */
    float *bias;    /* [n], or NULL */
    bool is_kn;
    float *c;       /* guard, [rows][ldc], guard */
    float *before;
    int64_t size;
} product_rig;

static float *floats(int64_t count)
{
    float *p = lf_aligned_alloc(sizeof(float) * (size_t)count);
    assert_non_null(p);
    rig_fill(p, count);
    return p;
}

static float drawn(lf_rng *r, bool exact)
{
    return exact ? (float)((int)(lf_rng_u64(r) % 9) - 4) : lf_rng_uniform(r, -1, 1);
}

static float w_at(const product_rig *g, int64_t j, int64_t s)
{
    return g->is_kn ? g->w[s * g->ldw + j] : g->w[j * g->ldw + s];
}

/* Packs, with guards behind the packed runs, and multiplies. */
static void product_run(product_rig *g, bool add)
{
    const lf_kern *kern = g->kern;
    const int64_t x_floats = kern->x_floats(g->x_type, g->rows, g->k), w_floats = kern->w_floats(g->type, g->n, g->k);
    const int64_t w_count = (g->is_kn ? g->k : g->n) * g->ldw;
    const int64_t x_count = (g->rows - 1) * g->ldx + g->k;
    char *elements = malloc((size_t)(w_count + x_count) * sizeof(float) + 4);
    assert_non_null(elements);
    char *typed = elements + 2, *typed_x = typed + w_count * 4 + 2; /* at any address */
    lf_from_f32(g->type, g->w, typed, 1, w_count);
    lf_from_f32(g->x_type, g->x, typed_x, 1, x_count);
    assert_true(x_floats % 16 == 0 && w_floats % 16 == 0);
    float *x = floats(x_floats + GUARD), *w = floats(w_floats + GUARD);
    kern->pack_x(g->x_type, g->rows, g->k, typed_x, g->ldx, x);
    kern->pack_w(g->type, g->n, g->k, typed, g->ldw, g->is_kn, w);
    free(elements);
    const float *from = (g->n % 2 ? g->before : g->c) + GUARD; /* what is added lies elsewhere, or where the sums go */
    lf_multiply m = {.rows = g->rows,
                     .n = g->n,
                     .k = g->k,
                     .x = x,
                     .w = w,
                     .x_type = g->x_type,
                     .w_type = g->type,
                     .c = add ? from : NULL,
                     .ldc = g->ldc,
                     .to = g->c + GUARD,
                     .ldt = g->ldc,
                     .bias = g->bias,
                     .next_x = add ? x : NULL,
                     .next_w = add ? w : NULL};
    kern->multiply(&m);
    for (int i = 0; i < GUARD; i++)
        if (!rig_is_poison(x[x_floats + i]) || !rig_is_poison(w[w_floats + i]))
            fail_msg("%s: %d x %d x %d wrote behind a packed run", kern->isa, (int)g->rows, (int)g->n, (int)g->k);
    lf_aligned_free(x);
    lf_aligned_free(w);
}

/* Exact for small integers. Otherwise as good as a sum in any order of products rounded each by itself. */
static void product_case(product_rig *g, bool add, bool exact)
{
    const lf_kern *kern = g->kern;
    const int64_t padded = (g->n + kern->nr - 1) / kern->nr * kern->nr;
    rig_fill(g->c, g->size);
    for (int64_t i = 0; i < g->rows; i++)
        for (int64_t j = 0; j < padded; j++)
            g->c[GUARD + i * g->ldc + j] = (float)(i - j);
    memcpy(g->before, g->c, (size_t)g->size * sizeof *g->c);
    product_run(g, add);
    cases++;
    for (int64_t at = 0; at < g->size; at++) {
        int64_t i = (at - GUARD) / g->ldc, j = (at - GUARD) % g->ldc;
        if (at < GUARD || i >= g->rows || j >= padded) {
            if (!rig_is_poison(g->c[at]))
                fail_msg("%s: %d x %d x %d, ldc=%d, wrote outside its rows", kern->isa, (int)g->rows, (int)g->n,
                         (int)g->k, (int)g->ldc);
            continue;
        }
        if (j >= g->n)
            continue;
        double sum = (add ? (double)g->before[at] : 0) + (g->bias ? (double)g->bias[j] : 0);
        double size = fabs(add ? (double)g->before[at] : 0) + fabs(g->bias ? (double)g->bias[j] : 0);
        for (int64_t s = 0; s < g->k; s++) {
            double product = (double)g->x[i * g->ldx + s] * (double)w_at(g, j, s);
            sum += product;
            size += fabs(product);
        }
        double bound = exact ? 0 : (double)(g->k + 2) * UNIT * size;
        if (!(fabs((double)g->c[at] - sum) <= bound))
            fail_msg("%s: %d x %d x %d in %s (%d, %d) is %.9g, not %.17g", kern->isa, (int)g->rows, (int)g->n,
                     (int)g->k, lf_dtype_name(g->type), (int)i, (int)j, (double)g->c[at], sum);
    }
}

static void round_all(lf_dtype type, float *x, int64_t count)
{
    uint32_t bits;
    for (int64_t i = 0; i < count && type != LF_F32; i++) {
        lf_from_f32(type, x + i, &bits, 1, 1);
        lf_to_f32(type, &bits, 1, x + i, 1);
    }
}

/* Does the table sum products of bf16 in the order of AMX's tiles? */
static bool sums_in_tiles(const lf_kern *kern)
{
    return strcmp(kern->isa, "amx") == 0;
}

/* So many that there are three tiles of rows. */
static int64_t most_rows(const lf_kern *kern)
{
    return sums_in_tiles(kern) ? 2 * 16 + 3 : 2 * kern->mr + 3;
}

/* An element in that order: of 32 of k at a time the even ones and the odd ones apart, then both. */
static float sum_in_tiles(const product_rig *g, int64_t i, int64_t j, bool add)
{
    float sum = 0;
    for (int64_t from = 0; from < g->k; from += 32) {
        float part[2] = {0, 0};
        for (int64_t s = from; s < g->k && s < from + 32; s++)
            part[s % 2] = fmaf(g->x[i * g->ldx + s], w_at(g, j, s), part[s % 2]);
        sum += part[0] + part[1];
    }
    sum += add ? g->before[GUARD + i * g->ldc + j] : 0;
    return sum + (g->bias ? g->bias[j] : 0);
}

/* Multiplies anew with x packed as pairs of bf16: the bits of x as f32, or those of the table's own order. */
static void pairs_match(product_rig *g, bool add)
{
    float *results[2];
    for (int pairs = 0; pairs < 2; pairs++, cases++) {
        g->x_type = pairs ? LF_BF16 : LF_F32;
        memcpy(g->c, g->before, (size_t)g->size * sizeof *g->c);
        product_run(g, add);
        results[pairs] = floats(g->size);
        memcpy(results[pairs], g->c, (size_t)g->size * sizeof *g->c);
    }
    g->x_type = LF_F32;
    for (int64_t i = 0; i < g->rows && sums_in_tiles(g->kern); i++)
        for (int64_t j = 0; j < g->n; j++)
            results[0][GUARD + i * g->ldc + j] = sum_in_tiles(g, i, j, add);
    for (int64_t i = 0; i < g->rows; i++)
        if (memcmp(results[0] + GUARD + i * g->ldc, results[1] + GUARD + i * g->ldc, sizeof(float) * (size_t)g->n) != 0)
            fail_msg("%s: %d x %d x %d, row %d: pairs of bf16 give other bits", g->kern->isa, (int)g->rows, (int)g->n,
                     (int)g->k, (int)i);
    lf_aligned_free(results[0]);
    lf_aligned_free(results[1]);
}

/* What an instruction that knows no denormals would lose: in x, in w, and only in the products. */
static void plant_tiny(product_rig *g, int which)
{
    for (int64_t i = 0; i < g->rows; i++)
        g->x[i * g->ldx + i % g->k] = which == 0 ? 0x1.8p-130f : which == 1 ? 1.0f : 0x1p-60f;
    for (int64_t i = 0; i < g->n; i++)
        g->w[g->is_kn ? i % g->k * g->ldw + i : i * g->ldw + i % g->k] = which == 0   ? 1.0f
                                                                         : which == 1 ? -0x1p-133f
                                                                                      : 0x1p-70f;
}

static void product_sweep(const lf_kern *kern, lf_dtype type, int64_t rows, int64_t n, int64_t k, bool is_kn)
{
    product_rig g = {.kern = kern, .type = type, .rows = rows, .n = n, .k = k, .is_kn = is_kn};
    g.ldc = (n + kern->nr - 1) / kern->nr * kern->nr + (n % 3) * 3;
    g.ldx = k + n % 2;
    g.ldw = (is_kn ? n : k) + rows % 3;
    g.size = 2 * GUARD + rows * g.ldc;
    g.x = floats(rows * g.ldx);
    g.w = floats((is_kn ? k : n) * g.ldw);
    g.c = floats(g.size);
    g.before = floats(g.size);
    g.bias = rows % 2 ? floats(n) : NULL;
    /* a table without an instruction for pairs takes them, too */
    const bool pairs = type == LF_BF16 && (!kern->has_pairs || kern->has_pairs());
    for (int exact = 0; exact < 2; exact++) {
        lf_rng r = lf_rng_seed(1, exact ? "integers" : "reals");
        for (int64_t i = 0; i < rows * k; i++)
            g.x[i / k * g.ldx + i % k] = drawn(&r, exact);
        if (type == LF_BF16)
            round_all(type, g.x, rows * g.ldx);
        for (int64_t i = 0; i < n * k; i++)
            g.w[is_kn ? i / n * g.ldw + i % n : i / k * g.ldw + i % k] = drawn(&r, exact);
        round_all(type, g.w, (is_kn ? k : n) * g.ldw);
        for (int64_t i = 0; i < n && g.bias; i++)
            g.bias[i] = drawn(&r, exact);
        for (int add = 0; add < 2; add++) {
            product_case(&g, add, exact);
            if (pairs)
                pairs_match(&g, add);
        }
    }
    for (int tiny = 0; tiny < 3 && pairs; tiny++) {
        plant_tiny(&g, tiny);
        pairs_match(&g, tiny % 2);
    }
    lf_aligned_free(g.x);
    lf_aligned_free(g.w);
    lf_aligned_free(g.c);
    lf_aligned_free(g.before);
    lf_aligned_free(g.bias);
}

static void multiply_is_a_product(void **state)
{
    (void)state;
    const int64_t depths[] = {1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, LF_KBLOCK - 1, LF_KBLOCK};
    for (size_t t = 0; lf_kern_at(t); t++) {
        const lf_kern *kern = lf_kern_at(t);
        const int64_t columns[] = {1, 7, kern->nr - 1, kern->nr, kern->nr + 1, 3 * kern->nr + 5, 255, LF_STRIP};
        for (int type = 0; type < LF_DTYPES; type++) {
            if (!lf_dtype_is_float((lf_dtype)type) || kern->w_type[type] != (lf_dtype)type)
                continue;
            for (int64_t rows = 1; rows <= most_rows(kern); rows++)
                for (size_t d = 0; d < sizeof depths / sizeof depths[0]; d++)
                    product_sweep(kern, (lf_dtype)type, rows, columns[(rows + (int64_t)d) % 8], depths[d],
                                  (rows + (int64_t)d) % 3 == 0);
            for (size_t c = 0; c < sizeof columns / sizeof columns[0]; c++)
                product_sweep(kern, (lf_dtype)type, kern->mr + 1, columns[c], LF_KBLOCK, c % 2);
        }
    }
}

/* A row's bits depend neither on where it stands nor on how many rows there are. */
static void rows_apart(const lf_kern *kern, lf_dtype x_type, lf_dtype type)
{
    const int64_t k = LF_KBLOCK - 11, n = 2 * kern->nr + 3, most = most_rows(kern);
    float *first = NULL;
    for (int64_t rows = 1; rows <= most; rows++, cases++) {
        product_rig g = {
            .kern = kern, .x_type = x_type, .type = type, .rows = rows, .n = n, .k = k, .ldx = 0, .ldw = k};
        g.ldc = 3 * kern->nr;
        g.size = 2 * GUARD + rows * g.ldc;
        g.x = floats(k);
        g.w = floats(n * k);
        g.c = floats(g.size);
        lf_rng r = lf_rng_seed(2, "alike");
        for (int64_t i = 0; i < k; i++)
            g.x[i] = drawn(&r, false);
        for (int64_t i = 0; i < n * k; i++)
            g.w[i] = drawn(&r, false);
        product_run(&g, false);
        if (!first) {
            first = floats(n);
            memcpy(first, g.c + GUARD, sizeof(float) * (size_t)n);
        }
        for (int64_t i = 0; i < rows; i++)
            assert_memory_equal(first, g.c + GUARD + i * g.ldc, sizeof(float) * (size_t)n);
        lf_aligned_free(g.x);
        lf_aligned_free(g.w);
        lf_aligned_free(g.c);
    }
    lf_aligned_free(first);
}

static void multiply_keeps_rows_apart(void **state)
{
    (void)state;
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int type = 0; type < LF_DTYPES; type++)
            if (lf_dtype_is_float((lf_dtype)type) && lf_kern_at(t)->w_type[type] == (lf_dtype)type) {
                rows_apart(lf_kern_at(t), LF_F32, (lf_dtype)type);
                if (type == LF_BF16)
                    rows_apart(lf_kern_at(t), LF_BF16, LF_BF16);
            }
}

/* Rows at any alignment and distance, each as if it were alone; no more of them written than asked for. */
static void dot_case(const lf_kern *kern, int64_t n, int64_t k, bool exact)
{
    enum { SHIFTS = 4 };
    const int64_t ldx = k + 3;
    float *x = malloc(sizeof(float) * (size_t)(LF_DOTS * ldx + SHIFTS));
    double *w = malloc(sizeof(double) * (size_t)(n * k + SHIFTS)), first[LF_DOTS * LF_NARROW],
           y[LF_DOTS * LF_NARROW + 1];
    assert_true(x && w);
    for (int shift = 0; shift < SHIFTS; shift++)
        for (int64_t rows = LF_DOTS; rows >= 0; rows--, cases++) {
            lf_rng r = lf_rng_seed(3, "dot");
            for (int64_t i = 0; i < LF_DOTS * ldx; i++)
                x[shift + i] = exact ? (float)((int)(lf_rng_u64(&r) % 9) - 4) : lf_rng_uniform(&r, -1, 1);
            double *at = w + SHIFTS - 1 - shift;
            for (int64_t i = 0; i < n * k; i++)
                at[i] = exact ? (double)((int)(lf_rng_u64(&r) % 9) - 4) : 2 * lf_rng_unit(&r) - 1;
            y[rows * n] = -77;
            kern->dots(rows, n, k, x + shift, ldx, at, y);
            assert_true(y[rows * n] == -77);
            for (int64_t e = 0; e < rows * n; e++) {
                double sum = 0, size = 0;
                for (int64_t i = 0; i < k; i++) {
                    double product = (double)x[shift + e / n * ldx + i] * at[e % n * k + i];
                    sum += product;
                    size += fabs(product);
                }
                first[e] = shift == 0 && rows == LF_DOTS ? y[e] : first[e];
                if (memcmp(&y[e], &first[e], sizeof y[e]) != 0 ||
                    !(fabs(y[e] - sum) <= (exact ? 0 : (double)k * DBL_EPSILON * size)))
                    fail_msg("%s: dot N=%d K=%d, element %d of %d rows, is %.17g, not %.17g", kern->isa, (int)n, (int)k,
                             (int)e, (int)rows, y[e], sum);
            }
        }
    free(x);
    free(w);
}

static void dot_is_a_product(void **state)
{
    (void)state;
    const int64_t longer[] = {127, 128, 255, 256, 257, 511, 512, 513, 1000, 8192};
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int exact = 0; exact < 2; exact++) {
            for (int64_t k = 0; k <= LONGEST; k++)
                for (int64_t n = 1; n <= LF_NARROW; n++)
                    dot_case(lf_kern_at(t), n, k, exact);
            for (size_t i = 0; i < sizeof longer / sizeof longer[0]; i++)
                for (int64_t n = 1; n <= LF_NARROW; n += 3)
                    dot_case(lf_kern_at(t), n, longer[i], exact);
        }
}

/* ---- maps ---- */

static const float special[] = {
    0.0f,    -0.0f, INFINITY, -INFINITY, NAN,      1.0f,   -1.0f,   0.5f,    -0.5f,    2.0f,        -2.0f,
    3.0f,    -3.0f, 6.0f,     20.0f,     -20.0f,   20.5f,  50.0f,   -50.0f,  88.7f,    -88.7f,      110.0f,
    -110.0f, 1e-8f, -1e-8f,   FLT_MIN,   -FLT_MIN, 1e-45f, -1e-45f, FLT_MAX, -FLT_MAX, 16777216.0f,
};
enum { SPECIALS = sizeof special / sizeof special[0], ELEMENTS = SPECIALS * SPECIALS + 512 };

/* Every pair of special values, then random ones. z: a random order of the specials, positive from the random ones
 * on. */
static void draw_arguments(float *x, float *y, float *z)
{
    lf_rng r = lf_rng_seed(4, "maps");
    for (int i = 0; i < ELEMENTS; i++) {
        bool chosen = i < SPECIALS * SPECIALS;
        x[i] = chosen ? special[i % SPECIALS] : lf_rng_uniform(&r, -8, 8);
        y[i] = chosen ? special[i / SPECIALS] : lf_rng_uniform(&r, -8, 8);
        z[i] = chosen ? special[lf_rng_u64(&r) % SPECIALS] : lf_rng_uniform(&r, 0.125f, 8);
    }
}

/* How far off an element may be: tolerance roundings of the result, as many of each argument, and where arguments of
 * different size meet in a sum (two values, or 1 + erf(x)), of the largest argument. */
typedef struct margin {
    double ref, moved, largest;
    int tolerance;
} margin;

static bool close_enough(float y, const margin *m)
{
    if (isnan(m->ref))
        return isnan(y);
    if (isinf(m->ref) || m->tolerance == 0)
        return y == (float)m->ref;
    if (isinf(y)) /* overflow on the way, near the end of the range */
        return fabs(m->ref) >= FLT_MAX / 16 && (y > 0) == (m->ref > 0);
    double allowed = m->tolerance * (UNIT * fmax(fabs(m->ref), m->largest) + m->moved) +
                     0x1p-149 * fmax(1, m->largest) * m->tolerance;
    return fabs((double)y - m->ref) <= allowed;
}

/* Bits of an element are the same in every strip length, at every alignment, in place and not. */
static void check_positions(const lf_kern *kern, lf_op op, const float *x, const float *y, const float *z,
                            const float *attr)
{
    enum { SHIFTS = 3 };
    float alone[LONGEST], out[LONGEST + SHIFTS + 2 * GUARD], in[3][LONGEST + SHIFTS];
    for (int i = 0; i < LONGEST; i++)
        kern->map[op](1, x + i, y + i, z + i, attr, alone + i);
    for (int n = 0; n <= LONGEST; n++)
        for (int shift = 0; shift < SHIFTS; shift++)
            for (int place = 0; place < 4; place++, cases++) {
                memcpy(in[0] + shift, x, sizeof(float) * (size_t)n);
                memcpy(in[1] + (shift + 1) % SHIFTS, y, sizeof(float) * (size_t)n);
                memcpy(in[2] + shift, z, sizeof(float) * (size_t)n);
                float *arg[3] = {in[0] + shift, in[1] + (shift + 1) % SHIFTS, in[2] + shift};
                rig_fill(out, (int64_t)(sizeof out / sizeof out[0]));
                float *to = place == 0 ? out + GUARD + shift : arg[place - 1];
                kern->map[op](n, arg[0], arg[1], arg[2], attr, to);
                for (int i = 0; i < n; i++)
                    if (rig_bits(to[i]) != rig_bits(alone[i]) && !(isnan(to[i]) && isnan(alone[i])))
                        fail_msg("%s: %s, element %d of %d: %.9g, alone %.9g", kern->isa, lf_op_row(op)->name, i, n,
                                 (double)to[i], (double)alone[i]);
                for (int i = 0; i < GUARD; i++)
                    assert_true(rig_is_poison(out[i]) && (place > 0 || rig_is_poison(out[GUARD + shift + n + i])));
            }
}

/* A model of one op over `elements`: op(x), op(x, y) or op(x, y, z), with attributes as text. */
static void eval_op(lf_op op, const char *attributes, const float *x, const float *y, const float *z, int64_t elements,
                    double *out, float attr[3])
{
    static const char *const inputs[] = {"", "input y f32[E]\n", "input y f32[E]\ninput z f32[E]\n"},
                      *const more[] = {"", ", y", ", y, z"};
    const int others = lf_op_row(op)->arg_count - 1;
    lf_arena arena;
    lf_diag diag = {0};
    lf_graph g;
    lf_arena_init(&arena);
    char text[512];
    int length = snprintf(text, sizeof text, "input x f32[E]\n%sv = %s(x%s%s%s)\nreturn v\n", inputs[others],
                          lf_op_row(op)->name, more[others], *attributes ? ", " : "", attributes);
    lf_status status = lf_graph_init(&g, &arena, &diag);
    if (status != LF_OK || lf_text_read(&g, "map", text, (size_t)length) != LF_OK)
        fail_msg("%s", diag.text);
    lf_bound bound[4] = {{.data = x}, {.data = y}, {.data = z}, {0}};
    if (lf_eval(&g, &elements, bound, g.output, 1, &out, &diag) != LF_OK)
        fail_msg("%s", diag.text);
    double numbers[3];
    lf_op_numbers(&g, g.output[0], numbers);
    for (int i = 0; i < 3; i++)
        attr[i] = (float)numbers[i];
    lf_arena_free(&arena);
}

/* Attributes worth trying beside the defaults; those of ops that have no defaults must be here. */
static const struct {
    const char *op, *attributes;
} tries[] = {
    {"leaky_relu", "0.25"}, {"leaky_relu", "-2"}, {"gelu", "approximate=\"tanh\""},
    {"softplus", "2, 10"},  {"clamp", "-0.5, 2"}, {"clamp", "max=1"},
    {"clamp", "min=0"},     {"clamp", "2, -2"},   {"hardtanh", "-0.25, 3"},
    {"elu", "0.5"},         {"celu", "2"},        {"pow", "2"},
    {"pow", "3"},           {"pow", "-1"},        {"pow", "1.5"},
    {"pow", "0"},           {"pow", "0.5"},       {"pow", "-0.5"},
    {"add", "alpha=-0.25"}, {"sub", "alpha=0.5"}, {"add", "alpha=0"},
    {"to", "\"f32\""},
};

static void check_op(const lf_kern *kern, lf_op op, const char *attributes, const float *x, const float *y,
                     const float *z)
{
    static float out[ELEMENTS], nudged[ELEMENTS];
    static double ref[ELEMENTS], moved[ELEMENTS];
    const lf_op_info *row = lf_op_row(op);
    const bool two = row->arg_count == 2;
    float attr[3];
    for (int i = 0; i < ELEMENTS; i++)
        nudged[i] = x[i] * (float)(1 + 2 * UNIT);
    eval_op(op, attributes, nudged, y, z, ELEMENTS, moved, attr);
    eval_op(op, attributes, x, y, z, ELEMENTS, ref, attr);
    for (int i = 0; i < ELEMENTS; i += LF_STRIP)
        kern->map[op](ELEMENTS - i < LF_STRIP ? ELEMENTS - i : LF_STRIP, x + i, y + i, z + i, attr, out + i);
    for (int i = 0; i < ELEMENTS; i++, cases++) {
        margin m = {.ref = ref[i], .moved = fabs(moved[i] - ref[i]), .tolerance = row->tolerance};
        if (!isfinite(m.moved))
            m.moved = 0;
        if (two)
            m.largest = fmax(isfinite(x[i]) ? fabs((double)x[i]) : 0,
                             isfinite(y[i]) ? fabs((double)y[i] * (attr[0] != 0 ? attr[0] : 1)) : 0);
        if (op == LF_OP_mul || op == LF_OP_div)
            m.largest = 0;
        if (op == LF_OP_gelu && isfinite(x[i]))
            m.largest = fabs((double)x[i]);
        if (!close_enough(out[i], &m))
            fail_msg("%s: %s(%.9g, %.9g; %s) is %.9g, not %.17g", kern->isa, row->name, (double)x[i], (double)y[i],
                     attributes, (double)out[i], ref[i]);
    }
    check_positions(kern, op, x + SPECIALS * SPECIALS - LONGEST / 2, y + SPECIALS * SPECIALS - LONGEST / 2,
                    z + SPECIALS * SPECIALS - LONGEST / 2, attr);
}

static void maps_are_the_ops(void **state)
{
    (void)state;
    static float x[ELEMENTS], y[ELEMENTS], z[ELEMENTS];
    draw_arguments(x, y, z);
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int op = 0; op < LF_OP_COUNT; op++) {
            const lf_op_info *row = lf_op_row((lf_op)op);
            if (row->kind != LF_POINTWISE || !lf_op_public((lf_op)op))
                continue;
            bool required = false;
            for (int i = 0; i < row->param_count; i++)
                required = required || (row->param[i].type != 'T' && row->param[i].type != 'V' &&
                                        (!row->param[i].has_default || row->param[i].none));
            int64_t before = cases;
            if (!required)
                check_op(lf_kern_at(t), (lf_op)op, "", x, y, z);
            for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++)
                if (strcmp(tries[i].op, row->name) == 0)
                    check_op(lf_kern_at(t), (lf_op)op, tries[i].attributes, x, y, z);
            if (cases == before)
                fail_msg("%s: no attributes to try it with", row->name);
        }
}

/* One number for y and one for z are the same bits as that number in every place. */
static void one_number_is_many(void **state)
{
    (void)state;
    static float x[ELEMENTS], y[ELEMENTS], z[ELEMENTS];
    draw_arguments(x, y, z);
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int op = 0; op < LF_OP_COUNT; op++)
            for (int i = 0; lf_kern_at(t)->map_one[op] && i < ELEMENTS; i += 5) {
                const float attr[3] = {i % 2 ? 1.0f : 0.3f, 1.0f, 2.0f};
                const int n = i % LONGEST, from = (7 * i) % (ELEMENTS - LONGEST);
                float ys[LONGEST], zs[LONGEST], out[LONGEST + GUARD], one[LONGEST + GUARD];
                for (int k = 0; k < n; k++) {
                    ys[k] = y[i];
                    zs[k] = z[i];
                }
                rig_fill(one, LONGEST + GUARD);
                lf_kern_at(t)->map[op](n, x + from, ys, zs, attr, out);
                lf_kern_at(t)->map_one[op](n, x + from, y + i, z + i, attr, one);
                for (int k = 0; k < n; k++, cases++)
                    if (rig_bits(out[k]) != rig_bits(one[k]) && !(isnan(out[k]) && isnan(one[k])))
                        fail_msg("%s: %s(%.9g, %.9g, %.9g) is %.9g, or with one number %.9g", lf_kern_at(t)->isa,
                                 lf_op_row((lf_op)op)->name, (double)x[from + k], (double)y[i], (double)z[i],
                                 (double)out[k], (double)one[k]);
                for (int k = n; k < LONGEST + GUARD; k++)
                    assert_true(rig_is_poison(one[k]));
            }
}

/* mul and add at once, with their bits. */
static void mul_add_is_both(void **state)
{
    (void)state;
    static float x[ELEMENTS], y[ELEMENTS], z[ELEMENTS];
    const float attr[3] = {1.0f, 0.0f, 0.0f};
    draw_arguments(x, y, z);
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int i = 0; i + LONGEST <= ELEMENTS; i += 9) {
            const int n = i % LONGEST;
            float both[LONGEST + GUARD], out[LONGEST];
            rig_fill(both, LONGEST + GUARD);
            lf_kern_at(t)->map[LF_OP_mul](n, x + i, y + i, NULL, NULL, out);
            lf_kern_at(t)->map[LF_OP_add](n, out, z + i, NULL, attr, out);
            lf_kern_at(t)->mul_add(n, x + i, y + i, z + i, NULL, both);
            for (int k = 0; k < n; k++, cases++)
                assert_true(rig_bits(out[k]) == rig_bits(both[k]) || (isnan(out[k]) && isnan(both[k])));
            for (int k = n; k < LONGEST + GUARD; k++)
                assert_true(rig_is_poison(both[k]));
        }
}

/* The other expressions, of elements and statistics, against themselves in double precision. */
static double wide(lf_op op, double x, double y, double z)
{
    return lf_expr_eval(lf_op_row(op)->tree, (const double[]){x, y, z, 0.5, 0, 2});
}

static void maps_are_their_expressions(void **state)
{
    (void)state;
    static float x[ELEMENTS], y[ELEMENTS], z[ELEMENTS], out[ELEMENTS];
    const float attr[3] = {0.5f, 0.0f, 2.0f};
    draw_arguments(x, y, z);
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int op = 0; op < LF_OP_COUNT; op++) {
            const lf_op_info *row = lf_op_row((lf_op)op);
            if ((row->kind == LF_POINTWISE && lf_op_public((lf_op)op)) || !lf_kern_at(t)->map[op])
                continue;
            for (int i = 0; i < ELEMENTS; i += LF_STRIP)
                lf_kern_at(t)->map[op](ELEMENTS - i < LF_STRIP ? ELEMENTS - i : LF_STRIP, x + i, y + i, z + i, attr,
                                       out + i);
            for (int i = SPECIALS * SPECIALS; i < ELEMENTS; i++, cases++) {
                margin m = {.ref = wide((lf_op)op, x[i], y[i], z[i]), .tolerance = row->tolerance};
                m.largest = fmax(fabs((double)x[i]), fabs((double)y[i]));
                m.moved = fabs(wide((lf_op)op, x[i] * (1 + UNIT), y[i], z[i]) - m.ref);
                if (!close_enough(out[i], &m))
                    fail_msg("%s: %s(%.9g, %.9g, %.9g) is %.9g, not %.17g", lf_kern_at(t)->isa, row->name, (double)x[i],
                             (double)y[i], (double)z[i], (double)out[i], m.ref);
            }
            check_positions(lf_kern_at(t), (lf_op)op, x + SPECIALS * SPECIALS, y + SPECIALS * SPECIALS,
                            z + SPECIALS * SPECIALS, attr);
        }
}

/* Some squares are encoded as minus their roots, as kern.h has it: those lanes alone are read so. */
static void squares_may_be_encoded(void **state)
{
    (void)state;
    static const float roots[] = {3.4e38f, 1e30f, 2e19f, 5e-20f, 1e-25f, 1e-37f};
    enum { N = 61, ROOTS = sizeof roots / sizeof roots[0] };
    float x[N], y[N], z[N], out[N + GUARD], plain[N + GUARD], one[N + GUARD];
    lf_rng r = lf_rng_seed(14, "encoded");
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int op = 0; op < LF_OP_COUNT; op++) {
            const lf_monoid m = lf_op_row((lf_op)op)->monoid;
            if (lf_op_row((lf_op)op)->kind != LF_NORMALIZE || lf_monoid_row(m)->least != 0)
                continue;
            float *square = m == LF_MONOID_moments ? z : y; /* where there is a mean, y is that */
            for (int every = 1; every < 40; every += 6)
                for (int tiny = 0; tiny < 2; tiny++) {
                    const float attr[3] = {tiny ? 0.0f : 1e-5f, 1.0f, 0.0f}, usual[3] = {attr[0], 0.0f, 0.0f};
                    for (int i = 0; i < N; i++) {
                        const float root = i % every ? 1.0f : roots[i / every % ROOTS];
                        x[i] = lf_rng_uniform(&r, -1, 1) * root;
                        y[i] = lf_rng_uniform(&r, -1, 1) * root;
                        square[i] = i % every ? lf_rng_uniform(&r, 0.5f, 2) : -root;
                    }
                    rig_fill(out, N + GUARD);
                    rig_fill(one, N + GUARD);
                    lf_kern_at(t)->map[op](N, x, y, z, attr, out);
                    lf_kern_at(t)->map[op](N, x, y, z, usual, plain);
                    for (int i = 0; i < N; i++, cases++) {
                        lf_kern_at(t)->map_one[op](1, x + i, y + i, z + i, attr, one);
                        const double root = (double)square[i], mean = m == LF_MONOID_moments ? (double)y[i] : 0;
                        const double want = ((double)x[i] - mean) / sqrt(root * root + (double)attr[0]);
                        assert_true(rig_bits(one[0]) == rig_bits(out[i]));
                        if (i % every ? rig_bits(out[i]) != rig_bits(plain[i])
                                      : !(fabs((double)out[i] - want) <= 6 * UNIT * fabs(want) + 0x1p-149))
                            fail_msg("%s: %s of element %d is %.9g, not %.9g", lf_kern_at(t)->isa,
                                     lf_op_row((lf_op)op)->name, i, (double)out[i], want);
                    }
                    assert_true(rig_is_poison(out[N]) && rig_is_poison(one[1]));
                }
        }
}

/* One element that is not finite is found wherever it stands; the largest and smallest that are finite are not. */
static void what_is_not_finite_is_found(void **state)
{
    (void)state;
    enum { MOST = 150 };
    static const float fine[] = {0.0f, -0.0f, FLT_MAX, -FLT_MAX, 0x1p-149f, -1.0f}, evil[] = {NAN, INFINITY, -INFINITY};
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int n = 0; n <= MOST; n++) {
            float x[1 + MOST + 1], *at = x + n % 2;
            x[0] = x[n % 2 + n] = NAN; /* beside what is asked for */
            for (int i = 0; i < n; i++)
                at[i] = fine[i % 6];
            assert_true(lf_kern_at(t)->all_finite(n, at));
            for (int i = 0; i < n; i++, cases++) {
                at[i] = evil[i % 3];
                assert_false(lf_kern_at(t)->all_finite(n, at));
                at[i] = fine[i % 6];
            }
        }
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, some_ran)
    const struct CMUnitTest tests[] = {
        TEST(tables_are_whole), TEST(multiply_is_a_product), TEST(multiply_keeps_rows_apart),
        TEST(dot_is_a_product), TEST(maps_are_the_ops),      TEST(maps_are_their_expressions),
        TEST(dot_is_a_product), TEST(maps_are_the_ops),      TEST(squares_may_be_encoded),
        TEST(one_number_is_many), TEST(mul_add_is_both),     TEST(what_is_not_finite_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
