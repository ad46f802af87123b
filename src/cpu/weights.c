/* SPDX-License-Identifier: Apache-2.0 */
/* A plan's prepared tensors: folded in double precision, rounded once, packed for the products that read them. */
#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cpu/parts.h"

/* Elements that lf_eval may give at once, in doubles: a gigabyte. Tensors beyond that are evaluated one after the
 * other. */
#define AT_ONCE ((int64_t)1 << 27)

enum { CHUNK = 1 << 18 }; /* elements a thread takes at a time */

/* A row of folded weights that stays below this is not used: a denormal's error, 2^-150, could then show in 24 bits
 * even beside inputs of wide range. */
#define LEAST 0x1p-100

typedef struct building {
    lf_cpu_weights *w;
    const lf_plan *plan;
    const lf_kern *kern;
    const float *const *param;
    lf_pool *pool;
    lf_diag *diag;
    const int64_t *dims; /* prepared tensors have no named extent; any values do */
    bool faithful;       /* rounding has kept what was there, so far */
    /* one per node: */
    bool *needed;        /* a prepared tensor is made from it */
    bool *finite;        /* a parameter or a prepared tensor known to be so */
    bool look;           /* whether all is finite is asked for */
    lf_bound *bound;     /* what lf_eval may take as given: parameters, and sums of them */
    double **sums;       /* the latter; owned */
} building;

static lf_status no_memory(const building *b)
{
    return lf_fail_nomem(b->diag, "the prepared weights");
}

static int64_t elements_of(const building *b, lf_node n)
{
    return lf_shape_count(&lf_at(b->plan->graph, n)->shape, b->dims);
}

static float *own(building *b, int64_t floats)
{
    float *p = lf_aligned_alloc((size_t)floats * sizeof *p);
    if (p)
        b->w->bytes += (size_t)floats * sizeof *p;
    return p;
}

static void disown(building *b, float **p, int64_t floats)
{
    lf_aligned_free(*p);
    *p = NULL;
    b->w->bytes -= (size_t)floats * sizeof **p;
}

/* ---- loops over many elements ---- */

typedef struct rounding {
    const double *wide;
    float *narrow;
    int64_t count, row; /* elements, and how many of them make a row */
    int64_t rows;       /* a thread takes at a time */
    atomic_bool lossy;  /* for some row */
} rounding;

/* Rounds a row, and tells whether that kept what was there: nothing vanished, and the row is not so small that
 * denormals have few of its digits. */
static bool round_row(const double *wide, int64_t n, float *narrow)
{
    double largest = 0;
    bool vanished = false;
    for (int64_t i = 0; i < n; i++) {
        narrow[i] = (float)wide[i];
        largest = fabs(wide[i]) > largest ? fabs(wide[i]) : largest;
        vanished = vanished || (narrow[i] == 0.0f && wide[i] != 0.0);
    }
    return !vanished && (largest == 0 || largest >= LEAST);
}

static void round_rows(void *arg, int64_t index, int slot)
{
    rounding *r = arg;
    (void)slot;
    const int64_t end = lf_min64((index + 1) * r->rows, r->count / r->row);
    for (int64_t i = index * r->rows; i < end; i++)
        if (!round_row(r->wide + i * r->row, r->row, r->narrow + i * r->row))
            atomic_store_explicit(&r->lossy, true, memory_order_relaxed);
}

static int64_t row_of(const building *b, lf_node n)
{
    const lf_shape *shape = &lf_at(b->plan->graph, n)->shape;
    return shape->rank == 0 ? 1 : lf_extent_at(shape->dim[shape->rank - 1], b->dims);
}

/* Rounds a tensor of n's shape. */
static void round_all(building *b, lf_node n, const double *wide, float *narrow)
{
    rounding r = {.wide = wide, .narrow = narrow, .count = elements_of(b, n), .row = row_of(b, n)};
    if (r.count == 0)
        return;
    r.rows = lf_max64(1, CHUNK / r.row);
    lf_pool_run(b->pool, lf_ceil_div(r.count / r.row, r.rows), round_rows, &r);
    b->faithful = b->faithful && !atomic_load_explicit(&r.lossy, memory_order_relaxed);
}

typedef struct checking {
    const float *x;
    int64_t count;
    atomic_bool found; /* one that is not finite */
} checking;

static void check_chunk(void *arg, int64_t index, int slot)
{
    checking *c = arg;
    (void)slot;
    if (!lf_all_finite(c->x + index * CHUNK, lf_min64(CHUNK, c->count - index * CHUNK)))
        atomic_store_explicit(&c->found, true, memory_order_relaxed);
}

bool lf_cpu_all_finite(const float *x, int64_t count, lf_pool *pool)
{
    checking c = {.x = x, .count = count};
    lf_pool_run(pool, lf_ceil_div(count, CHUNK), check_chunk, &c);
    return !atomic_load_explicit(&c.found, memory_order_relaxed);
}

/* ---- evaluation ---- */

/* Memory for what narrow products read: weight and bias as they are before rounding. */
static lf_status make_narrow(building *b)
{
    for (int32_t i = 0; i < b->plan->products; i++) {
        const lf_product *product = b->plan->product[i];
        if (!product->narrow)
            continue;
        const int64_t n = lf_extent_at(product->n, b->dims), k = lf_extent_at(product->k, b->dims);
        const size_t bytes = (size_t)(n * (k + 1)) * sizeof(double);
        double *w = b->w->narrow[i] = lf_aligned_alloc(bytes);
        if (!w)
            return no_memory(b);
        b->w->bytes += bytes;
        for (int64_t j = 0; j < n; j++)
            w[n * k + j] = 0.0;
    }
    return LF_OK;
}

static double element(const lf_bound *x, int64_t index)
{
    return x->f64 ? x->f64[index] : (double)x->f32[index];
}

/* Hands a prepared tensor's values to the narrow products that read it: a weight as [n][k], a bias as it is. */
static void fill_narrow(const building *b, lf_node node, const lf_bound *values)
{
    for (int32_t i = 0; i < b->plan->products; i++) {
        const lf_product *product = b->plan->product[i];
        if (!product->narrow)
            continue;
        const int64_t n = lf_extent_at(product->n, b->dims), k = lf_extent_at(product->k, b->dims);
        double *w = b->w->narrow[i];
        for (int64_t j = 0; j < n && product->bias == node; j++)
            w[n * k + j] = element(values, j);
        for (int64_t j = 0; j < n && product->weight == node; j++)
            for (int64_t l = 0; l < k; l++)
                w[j * k + l] = element(values, product->w_is_kn ? l * n + j : j * k + l);
    }
}

/* Evaluates count prepared tensors, numbers given by which, and rounds them. */
static lf_status evaluate(building *b, const int32_t *which, size_t count)
{
    const lf_plan *plan = b->plan;
    lf_node *wanted = calloc(count + 1, sizeof *wanted);
    double **wide = calloc(count + 1, sizeof *wide);
    lf_status status = wanted && wide ? LF_OK : no_memory(b);
    for (size_t i = 0; i < count && status == LF_OK; i++) {
        wanted[i] = plan->prepared[which[i]];
        wide[i] = lf_aligned_alloc((size_t)elements_of(b, wanted[i]) * sizeof **wide);
        if (!wide[i])
            status = no_memory(b);
    }
    if (status == LF_OK)
        status = lf_eval(plan->graph, b->dims, b->bound, wanted, count, wide, b->diag);
    for (size_t i = 0; i < count && status == LF_OK; i++) {
        float *narrow = own(b, elements_of(b, wanted[i]));
        if (!narrow) {
            status = no_memory(b);
            break;
        }
        round_all(b, wanted[i], wide[i], narrow);
        b->w->tensor[which[i]] = b->w->owned[which[i]] = narrow;
        fill_narrow(b, wanted[i], &(lf_bound){.f64 = wide[i]});
        lf_aligned_free(wide[i]);
        wide[i] = NULL;
    }
    for (size_t i = 0; wide && i < count; i++)
        lf_aligned_free(wide[i]);
    free(wide);
    free(wanted);
    return status;
}

/* A narrow product's constant bias is nobody else's, and no prepared tensor. */
static lf_status fill_unprepared(building *b)
{
    lf_status status = LF_OK;
    for (int32_t i = 0; i < b->plan->products && status == LF_OK; i++) {
        const lf_product *product = b->plan->product[i];
        if (!product->narrow || product->bias == LF_NONE ||
            b->plan->storage[product->bias] == LF_PREPARED)
            continue;
        double *bias = b->w->narrow[i] + lf_extent_at(product->n, b->dims) * lf_extent_at(product->k, b->dims);
        status = lf_eval(b->plan->graph, b->dims, b->bound, &product->bias, 1, &bias, b->diag);
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
            b->w->tensor[i] = b->param[n];
            fill_narrow(b, n, &b->bound[n]);
        } else {
            which[count++] = i;
            elements = lf_min64(AT_ONCE + 1, elements + lf_min64(elements_of(b, n), AT_ONCE + 1));
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

/* Every parameter that a prepared tensor is made from, and every prepared tensor. */
static bool find_finite(const building *b)
{
    const lf_plan *plan = b->plan;
    bool finite = b->faithful;
    for (int32_t i = 0; i < plan->prepareds && finite; i++)
        if (b->w->owned[i] && !b->finite[plan->prepared[i]])
            finite = lf_cpu_all_finite(b->w->tensor[i], elements_of(b, plan->prepared[i]), b->pool);
    for (lf_node n = 0; n < plan->graph->count && finite; n++)
        if (b->needed[n] && lf_at(plan->graph, n)->op == LF_OP_param && !b->finite[n])
            finite = lf_cpu_all_finite(b->param[n], elements_of(b, n), b->pool);
    return finite;
}

/* ---- packing ---- */

typedef struct packing {
    const lf_kern *kern;
    const float *from; /* [n][k], or [k][n] */
    float *to;         /* [strips][runs of K] */
    bool is_kn;
    int64_t n, k;
    bool look;         /* for what is not finite */
    atomic_bool found; /* such a one */
} packing;

/* index: over strips, runs of K. */
static void pack_run(void *arg, int64_t index, int slot)
{
    packing *p = arg;
    (void)slot;
    const int64_t strip = index / lf_runs(p->k), run = index % lf_runs(p->k);
    const int64_t n = lf_min64(LF_STRIP, p->n - strip * LF_STRIP),
                  k = lf_min64(lf_run_depth(p->k), p->k - run * lf_run_depth(p->k));
    float *to = p->to + lf_w_run_at(p->kern, p->n, p->k, strip, run);
    lf_memory_ready(to, (size_t)p->kern->w_floats(n, k) * sizeof *to);
    lf_w_run_pack(p->kern, p->from, p->n, p->k, p->is_kn, strip, run, to);
    if (p->look && !lf_all_finite(to, lf_round_up(n, p->kern->nr) * k))
        atomic_store_explicit(&p->found, true, memory_order_relaxed);
}

/* Floats of the packed form; fails (false) on overflow. */
static bool packed_floats(const packing *p, int64_t *floats)
{
    const int64_t rest = p->n % LF_STRIP;
    if (!lf_mul_i64(lf_round_up(p->n, LF_STRIP), p->k, floats) || *floats > INT64_MAX / 64)
        return false;
    *floats = p->n / LF_STRIP * lf_runs_floats(p->kern->w_floats, LF_STRIP, p->k) +
              (rest > 0 ? lf_runs_floats(p->kern->w_floats, rest, p->k) : 0);
    return true;
}

/* The form in which a product reads its weight; shared with an earlier one that reads the same. */
static lf_status pack_product(building *b, int32_t index)
{
    const lf_plan *plan = b->plan;
    const lf_product *product = plan->product[index];
    if (!product->weight_fixed || product->narrow)
        return LF_OK;
    for (int32_t i = 0; i < index; i++) {
        const lf_product *other = plan->product[i];
        if (other->weight_fixed && other->weight == product->weight && other->w_is_kn == product->w_is_kn) {
            b->w->product[index] = b->w->product[i];
            return LF_OK;
        }
    }
    packing p = {.kern = b->kern,
                 .from = b->w->tensor[plan->where[product->weight]],
                 .is_kn = product->w_is_kn,
                 .look = b->look};
    p.n = lf_extent_at(product->n, b->dims);
    p.k = lf_extent_at(product->k, b->dims);
    int64_t floats;
    if (!packed_floats(&p, &floats))
        return no_memory(b);
    b->w->packed[index] = p.to = own(b, floats);
    if (!p.to)
        return no_memory(b);
    lf_pool_run(b->pool, lf_ceil_div(p.n, LF_STRIP) * lf_runs(p.k), pack_run, &p);
    b->w->product[index] = p.to;
    b->finite[product->weight] = p.look && !p.found;
    return LF_OK;
}

/* Frees the row-major form of what is only read packed. */
static void drop_unpacked(building *b)
{
    const lf_plan *plan = b->plan;
    for (int32_t i = 0; i < plan->prepareds; i++) {
        bool as_it_lies = !plan->packed_only[i];
        for (int32_t p = 0; p < plan->products; p++)
            if (plan->product[p]->weight_fixed && plan->product[p]->weight == plan->prepared[i] &&
                !b->w->product[p] && !b->w->narrow[p])
                as_it_lies = true;
        if (as_it_lies || !b->w->owned[i])
            continue;
        disown(b, &b->w->owned[i], elements_of(b, plan->prepared[i]));
        b->w->tensor[i] = NULL;
    }
}

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
    for (lf_node n = 0; n < g->count; n++)
        if (lf_at(g, n)->op == LF_OP_param)
            b->bound[n].f32 = b->param[n];
    for (int32_t i = 0; i < b->plan->prepareds; i++)
        b->needed[b->plan->prepared[i]] = true;
    lf_graph_needed(g, b->needed);
    return lf_sums_bind(g, b->dims, b->needed, b->pool, b->bound, b->sums, b->finite, b->diag);
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

static lf_status build(building *b, bool pack, bool *finite)
{
    lf_cpu_weights *w = b->w;
    w->tensor = lf_arena_array(&w->arena, (size_t)b->plan->prepareds + 1, sizeof *w->tensor);
    w->owned = lf_arena_array(&w->arena, (size_t)b->plan->prepareds + 1, sizeof *w->owned);
    w->product = lf_arena_array(&w->arena, (size_t)b->plan->products + 1, sizeof *w->product);
    w->narrow = lf_arena_array(&w->arena, (size_t)b->plan->products + 1, sizeof *w->narrow);
    w->packed = lf_arena_array(&w->arena, (size_t)b->plan->products + 1, sizeof *w->packed);
    if (!w->tensor || !w->owned || !w->product || !w->narrow || !w->packed)
        return no_memory(b);
    lf_status status = begin(b);
    if (status == LF_OK)
        status = prepare_tensors(b);
    b->look = finite && b->faithful;
    for (int32_t i = 0; i < b->plan->products && status == LF_OK && pack; i++)
        status = pack_product(b, i);
    if (status == LF_OK && finite)
        *finite = find_finite(b); /* what was packed has been looked at while it was in cache */
    if (status == LF_OK && pack)
        drop_unpacked(b);
    return status;
}

lf_status lf_cpu_weights_new(const lf_plan *plan, const lf_kern *kern, const float *const *param, bool pack,
                             lf_pool *pool, bool *finite, lf_cpu_weights **out, lf_diag *diag)
{
    static const int64_t dims[LF_MAX_SYMBOLS] = {1, 1, 1, 1, 1, 1, 1, 1};
    *out = NULL;
    lf_cpu_weights *w = calloc(1, sizeof *w);
    if (!w)
        return lf_fail_nomem(diag, "the prepared weights");
    lf_arena_init(&w->arena);
    w->tensors = plan->prepareds;
    w->products = plan->products;
    building b = {
        .w = w, .plan = plan, .kern = kern, .param = param, .pool = pool, .diag = diag, .dims = dims, .faithful = true};
    lf_status status = build(&b, pack, finite);
    end(&b);
    if (status != LF_OK) {
        lf_cpu_weights_free(w);
        return status;
    }
    *out = w;
    return LF_OK;
}

void lf_cpu_weights_free(lf_cpu_weights *w)
{
    if (!w)
        return;
    for (int32_t i = 0; w->owned && i < w->tensors; i++)
        lf_aligned_free(w->owned[i]);
    for (int32_t i = 0; w->packed && i < w->products; i++)
        lf_aligned_free(w->packed[i]);
    for (int32_t i = 0; w->narrow && i < w->products; i++)
        lf_aligned_free(w->narrow[i]);
    lf_arena_free(&w->arena);
    free(w);
}

size_t lf_cpu_weights_bytes(const lf_cpu_weights *w)
{
    return sizeof *w + lf_arena_bytes(&w->arena) + w->bytes;
}

const float *const *lf_cpu_weights_tensors(const lf_cpu_weights *w)
{
    return w->tensor;
}

const double *const *lf_cpu_weights_narrow(const lf_cpu_weights *w)
{
    return (const double *const *)w->narrow;
}
