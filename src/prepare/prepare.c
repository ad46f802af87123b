/* SPDX-License-Identifier: Apache-2.0 */
#include "prepare/prepare.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/dtype.h"
#include "base/finite.h"
#include "base/mem.h"
#include "prepare/sums.h"

/* Elements that lf_eval may give at once, in doubles: a gigabyte. Tensors beyond that are evaluated one after the
 * other. */
#define AT_ONCE ((int64_t)1 << 27)

enum { CHUNK = 1 << 18 }; /* elements a thread takes at a time */

/* A row of folded weights that stays below this is not used: with inputs not much smaller than 1, products would be
 * denormals. */
#define LEAST 0x1p-100

typedef struct building {
    lf_prepared *to;
    const lf_plan *plan;
    const void *const *param;
    lf_pool *pool;
    lf_diag *diag;
    bool sound;      /* rounding has lost nothing that counts, and nothing computed is Inf or NaN, so far */
    /* one per node: */
    bool *needed;    /* a prepared tensor is made from it */
    bool *finite;    /* a parameter known to be so */
    lf_bound *bound; /* what lf_eval may take as given: parameters, and sums of them */
    double **sums;   /* the latter; owned */
} building;

static lf_status no_memory(const building *b)
{
    return lf_fail_nomem(b->diag, "the prepared weights");
}

static int64_t elements_of(const lf_plan *plan, lf_node n)
{
    return lf_shape_count(&lf_at(plan->graph, n)->shape, NULL); /* no named extent is among its own */
}

int64_t lf_prepared_count(const lf_plan *plan, int32_t tensor)
{
    return elements_of(plan, plan->prepared[tensor]);
}

/* ---- rounding ---- */

typedef struct rounding {
    const double *exact;
    float *rounded;
    int64_t count, row; /* elements, and how many of them make a row */
    int64_t rows;       /* a thread takes at a time */
    atomic_bool lossy;  /* for some row */
} rounding;

/* Rounds a row, and tells whether nothing was lost by it that counts: all is finite, nothing became a denormal with
 * fewer digits, or 0, and the row is not so small that products with it do. */
static bool round_row(const double *exact, int64_t n, float *rounded)
{
    double largest = 0;
    bool lossy = false, finite = true;
    for (int64_t i = 0; i < n; i++) {
        rounded[i] = (float)exact[i];
        largest = fabs(exact[i]) > largest ? fabs(exact[i]) : largest;
        lossy = lossy || (fabs(exact[i]) < FLT_MIN && rounded[i] != exact[i]);
        finite = finite && fabsf(rounded[i]) <= FLT_MAX;
    }
    return finite && !lossy && (largest == 0 || largest >= LEAST);
}

static void round_rows(void *arg, int64_t index, int slot)
{
    rounding *r = arg;
    (void)slot;
    const int64_t end = lf_min64((index + 1) * r->rows, r->count / r->row);
    for (int64_t i = index * r->rows; i < end; i++)
        if (!round_row(r->exact + i * r->row, r->row, r->rounded + i * r->row))
            atomic_store_explicit(&r->lossy, true, memory_order_relaxed);
}

static int64_t row_of(const building *b, lf_node n)
{
    const lf_shape *shape = &lf_at(b->plan->graph, n)->shape;
    return shape->rank == 0 ? 1 : lf_extent_at(shape->dim[shape->rank - 1], NULL);
}

/* Rounds a tensor of n's shape. */
static void round_all(building *b, lf_node n, const double *exact, float *rounded)
{
    rounding r = {.exact = exact, .rounded = rounded, .count = elements_of(b->plan, n), .row = row_of(b, n)};
    if (r.count == 0)
        return;
    r.rows = lf_max64(1, CHUNK / r.row);
    lf_pool_run(b->pool, lf_ceil_div(r.count / r.row, r.rows), round_rows, &r);
    b->sound = b->sound && !atomic_load_explicit(&r.lossy, memory_order_relaxed);
}

/* ---- evaluation ---- */

/* Memory for what rounded products read: weight and bias as they are before rounding. */
static lf_status make_narrow(building *b)
{
    for (int32_t i = 0; i < b->plan->products; i++) {
        const lf_product *product = b->plan->product[i];
        if (!product->narrow)
            continue;
        const int64_t n = lf_extent_at(product->n, NULL), k = lf_extent_at(product->k, NULL);
        const size_t bytes = (size_t)(n * (k + 1)) * sizeof(double);
        double *w = b->to->narrow[i] = lf_aligned_alloc(bytes);
        if (!w)
            return no_memory(b);
        b->to->bytes += bytes;
        for (int64_t j = 0; j < n; j++)
            w[n * k + j] = 0.0;
    }
    return LF_OK;
}

static double element(const lf_bound *x, int64_t index)
{
    float number;
    if (x->f64)
        return x->f64[index];
    lf_to_f32(x->dtype, (const char *)x->data + (size_t)index * lf_dtype_size(x->dtype), 1, &number, 1);
    return (double)number;
}

/* Hands a prepared tensor's values to the rounded products that read it: a weight as [n][k], a bias as it is. */
static void fill_narrow(const building *b, lf_node node, const lf_bound *values)
{
    for (int32_t i = 0; i < b->plan->products; i++) {
        const lf_product *product = b->plan->product[i];
        if (!product->narrow)
            continue;
        const int64_t n = lf_extent_at(product->n, NULL), k = lf_extent_at(product->k, NULL);
        double *w = b->to->narrow[i];
        for (int64_t j = 0; j < n && product->bias == node; j++)
            w[n * k + j] = element(values, j);
        for (int64_t j = 0; j < n && product->weight == node; j++)
            for (int64_t l = 0; l < k; l++)
                w[j * k + l] = element(values, product->w_is_kn ? l * n + j : j * k + l);
    }
}

/* Rounds a prepared tensor to f32, and then to what it is stored as. */
static lf_status round_prepared(building *b, int32_t index, const double *exact)
{
    const lf_node n = b->plan->prepared[index];
    const lf_dtype type = lf_stored_dtype(b->plan, n);
    const int64_t count = elements_of(b->plan, n);
    float *rounded = lf_aligned_alloc((size_t)count * sizeof *rounded);
    void *stored = type == LF_F32 ? rounded : lf_aligned_alloc((size_t)count * lf_dtype_size(type));
    if (!rounded || !stored) {
        lf_aligned_free(rounded);
        return no_memory(b);
    }
    round_all(b, n, exact, rounded);
    if (type != LF_F32) {
        lf_from_f32(type, rounded, stored, 1, count);
        lf_aligned_free(rounded);
        b->sound = b->sound && lf_all_finite_shared(type, stored, count, b->pool);
    }
    b->to->bytes += (size_t)count * lf_dtype_size(type);
    b->to->tensor[index] = b->to->computed[index] = stored;
    return LF_OK;
}

/* Evaluates count prepared tensors, numbers given by which, and rounds them. */
static lf_status evaluate(building *b, const int32_t *which, size_t count)
{
    const lf_plan *plan = b->plan;
    lf_node *wanted = calloc(count + 1, sizeof *wanted);
    double **exact = calloc(count + 1, sizeof *exact);
    lf_status status = wanted && exact ? LF_OK : no_memory(b);
    for (size_t i = 0; i < count && status == LF_OK; i++) {
        wanted[i] = plan->prepared[which[i]];
        exact[i] = lf_aligned_alloc((size_t)elements_of(b->plan, wanted[i]) * sizeof **exact);
        if (!exact[i])
            status = no_memory(b);
    }
    if (status == LF_OK)
        status = lf_eval(plan->graph, NULL, b->bound, wanted, count, exact, b->diag);
    for (size_t i = 0; i < count && status == LF_OK; i++) {
        status = round_prepared(b, which[i], exact[i]);
        if (status != LF_OK)
            break;
        fill_narrow(b, wanted[i], &(lf_bound){.f64 = exact[i]});
        lf_aligned_free(exact[i]);
        exact[i] = NULL;
    }
    for (size_t i = 0; exact && i < count; i++)
        lf_aligned_free(exact[i]);
    free(exact);
    free(wanted);
    return status;
}

/* A narrow product's constant bias is nobody else's, and no prepared tensor. */
static lf_status fill_unprepared(building *b)
{
    lf_status status = LF_OK;
    for (int32_t i = 0; i < b->plan->products && status == LF_OK; i++) {
        const lf_product *product = b->plan->product[i];
        if (!product->narrow || product->bias == LF_NONE || b->plan->storage[product->bias] == LF_PREPARED)
            continue;
        double *bias = b->to->narrow[i] + lf_extent_at(product->n, NULL) * lf_extent_at(product->k, NULL);
        status = lf_eval(b->plan->graph, NULL, b->bound, &product->bias, 1, &bias, b->diag);
    }
    return status;
}

/* Parameters are borrowed, everything else is evaluated. */
static lf_status prepare_tensors(building *b)
{
    const lf_plan *plan = b->plan;
    const lf_graph *g = plan->graph;
    int32_t *which = calloc((size_t)plan->prepareds + 1, sizeof *which);
    lf_status status = which ? make_narrow(b) : no_memory(b);
    if (status == LF_OK)
        status = fill_unprepared(b);
    size_t count = 0;
    int64_t elements = 0;
    for (int32_t i = 0; i < plan->prepareds && status == LF_OK; i++) {
        lf_node n = plan->prepared[i];
        if (lf_at(g, n)->op == LF_OP_param) {
            b->to->tensor[i] = b->bound[n].data;
            fill_narrow(b, n, &b->bound[n]);
        } else {
            which[count++] = i;
            elements = lf_min64(AT_ONCE + 1, elements + lf_min64(elements_of(b->plan, n), AT_ONCE + 1));
        }
    }
    if (status == LF_OK && count > 0 && elements <= AT_ONCE)
        status = evaluate(b, which, count);
    else
        for (size_t i = 0; i < count && status == LF_OK; i++)
            status = evaluate(b, which + i, 1);
    free(which);
    return status;
}

/* ---- checking ---- */

static bool is_sound(const building *b, const lf_prepare_want *want)
{
    const lf_graph *g = b->plan->graph;
    bool sound = b->sound;
    for (int32_t i = 0; i < g->params && sound; i++)
        if (want[i].check && !b->finite[g->param[i]])
            sound = lf_all_finite_shared(lf_at(g, g->param[i])->dtype, b->param[i], elements_of(b->plan, g->param[i]),
                                         b->pool);
    return sound;
}

/* ---- all of it ---- */

/* What evaluation begins with. */
static lf_status begin(building *b)
{
    const lf_graph *g = b->plan->graph;
    const size_t nodes = (size_t)g->count + 1;
    b->needed = calloc(nodes, sizeof *b->needed);
    b->finite = calloc(nodes, sizeof *b->finite);
    b->bound = calloc(nodes, sizeof *b->bound);
    b->sums = calloc(nodes, sizeof *b->sums);
    if (!b->needed || !b->finite || !b->bound || !b->sums)
        return no_memory(b);
    for (int32_t i = 0; i < g->params; i++)
        b->bound[g->param[i]] = (lf_bound){.data = b->param[i], .dtype = lf_at(g, g->param[i])->dtype};
    for (int32_t i = 0; i < b->plan->prepareds; i++)
        b->needed[b->plan->prepared[i]] = true;
    lf_graph_needed(g, b->needed);
    return lf_sums_bind(g, NULL, b->needed, b->pool, b->bound, b->sums, b->finite, b->diag);
}

static void end(building *b)
{
    for (lf_node n = 0; b->sums && n < b->plan->graph->count; n++)
        lf_aligned_free(b->sums[n]);
    free(b->needed);
    free(b->finite);
    free(b->bound);
    free(b->sums);
}

static lf_status build(building *b, const lf_prepare_want *want)
{
    lf_prepared *to = b->to;
    to->tensor = lf_arena_array(&to->arena, (size_t)b->plan->prepareds + 1, sizeof *to->tensor);
    to->computed = lf_arena_array(&to->arena, (size_t)b->plan->prepareds + 1, sizeof *to->computed);
    to->narrow = lf_arena_array(&to->arena, (size_t)b->plan->products + 1, sizeof *to->narrow);
    if (!to->tensor || !to->computed || !to->narrow)
        return no_memory(b);
    lf_status status = begin(b);
    if (status == LF_OK)
        status = prepare_tensors(b);
    to->sound = status == LF_OK && (!want || is_sound(b, want));
    return status;
}

lf_status lf_prepare(const lf_plan *plan, const void *const *param, const lf_prepare_want *want, lf_pool *pool,
                     lf_prepared **out, lf_diag *diag)
{
    *out = NULL;
    lf_prepared *to = calloc(1, sizeof *to);
    if (!to)
        return lf_fail_nomem(diag, "the prepared weights");
    lf_arena_init(&to->arena);
    to->tensors = plan->prepareds;
    to->products = plan->products;
    building b = {.to = to, .plan = plan, .param = param, .pool = pool, .diag = diag, .sound = true};
    lf_status status = build(&b, want);
    end(&b);
    if (status != LF_OK) {
        lf_prepared_free(to);
        return status;
    }
    *out = to;
    return LF_OK;
}

void lf_prepared_free(lf_prepared *p)
{
    if (!p)
        return;
    for (int32_t i = 0; p->computed && i < p->tensors; i++)
        lf_aligned_free(p->computed[i]);
    for (int32_t i = 0; p->narrow && i < p->products; i++)
        lf_aligned_free(p->narrow[i]);
    lf_arena_free(&p->arena);
    free(p);
}

size_t lf_prepared_bytes(const lf_prepared *p)
{
    return sizeof *p + lf_arena_bytes(&p->arena) + p->bytes;
}

void lf_prepared_drop(lf_prepared *p, const lf_plan *plan, int32_t tensor)
{
    if (!p->computed[tensor])
        return;
    lf_aligned_free(p->computed[tensor]);
    p->tensor[tensor] = p->computed[tensor] = NULL;
    p->bytes -= (size_t)lf_prepared_count(plan, tensor) * lf_dtype_size(lf_stored_dtype(plan, plan->prepared[tensor]));
}
