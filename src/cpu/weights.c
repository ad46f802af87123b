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

/* A row of folded weights that stays below this is not used: a denormal's error, 2^-150, could then show in 24 bits even beside inputs of wide range. */
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

typedef struct sweep {
    const double *wide; /* rounded into narrow, or NULL */
    float *narrow;
    const float *check; /* looked at for values that are not finite, or NULL */
    int64_t count, row; /* elements, and how many of them make a row */
    int64_t rows;       /* a thread takes at a time */
    atomic_bool found;  /* a row that is wanting */
} sweep;

/* Rounds a row, and tells whether that kept what was there: nothing vanished, and the row is not so small that denormals have few of
 * its digits. */
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

static void sweep_rows(void *arg, int64_t index, int slot)
{
    sweep *s = arg;
    (void)slot;
    const int64_t end = lf_min64((index + 1) * s->rows, s->count / s->row);
    for (int64_t r = index * s->rows; r < end; r++) {
        const int64_t at = r * s->row;
        if (!(s->wide ? round_row(s->wide + at, s->row, s->narrow + at) : lf_all_finite(s->check + at, s->row)))
            atomic_store_explicit(&s->found, true, memory_order_relaxed);
    }
}

/* Whether no row was found wanting. */
static bool sweep_all(lf_pool *pool, sweep *s)
{
    if (s->count == 0)
        return true;
    s->rows = lf_max64(1, CHUNK / s->row);
    lf_pool_run(pool, lf_ceil_div(s->count / s->row, s->rows), sweep_rows, s);
    return !atomic_load_explicit(&s->found, memory_order_relaxed);
}

static int64_t row_of(const building *b, lf_node n)
{
    const lf_shape *shape = &lf_at(b->plan->graph, n)->shape;
    return shape->rank == 0 ? 1 : lf_extent_at(shape->dim[shape->rank - 1], b->dims);
}

static bool all_finite(const building *b, lf_node n, const float *x)
{
    return sweep_all(b->pool, &(sweep){.check = x, .count = elements_of(b, n), .row = row_of(b, n)});
}

/* ---- evaluation ---- */

/* Evaluates count prepared tensors, numbers given by which, and rounds them. */
static lf_status evaluate(building *b, const lf_bound *bound, const int32_t *which, size_t count)
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
        status = lf_eval(plan->graph, b->dims, bound, wanted, count, wide, b->diag);
    for (size_t i = 0; i < count && status == LF_OK; i++) {
        const int64_t elements = elements_of(b, wanted[i]);
        float *narrow = own(b, elements);
        if (!narrow) {
            status = no_memory(b);
            break;
        }
        sweep rounding = {.wide = wide[i], .narrow = narrow, .count = elements, .row = row_of(b, wanted[i])};
        b->faithful = sweep_all(b->pool, &rounding) && b->faithful;
        b->w->tensor[which[i]] = b->w->owned[which[i]] = narrow;
        lf_aligned_free(wide[i]);
        wide[i] = NULL;
    }
    for (size_t i = 0; wide && i < count; i++)
        lf_aligned_free(wide[i]);
    free(wide);
    free(wanted);
    return status;
}

/* w [k][n] turned over: to [n][k]. */
static void turn_over(const double *w, int64_t n, int64_t k, double *to)
{
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; j < n; j++)
            to[j * k + i] = w[i * n + j];
}

/* A narrow product's weight and bias, evaluated and not rounded. */
static lf_status prepare_narrow(building *b, const lf_bound *bound, int32_t index)
{
    const lf_product *product = &b->plan->group[index].product;
    if (product->node == LF_NONE || !product->narrow)
        return LF_OK;
    const int64_t n = lf_extent_at(product->n, b->dims), k = lf_extent_at(product->k, b->dims);
    const size_t bytes = (size_t)(n * (k + 1)) * sizeof(double);
    double *w = b->w->narrow[index] = lf_aligned_alloc(bytes);
    double *turned = product->w_is_kn ? lf_aligned_alloc((size_t)(n * k) * sizeof *turned) : NULL;
    if (!w || (product->w_is_kn && !turned)) {
        lf_aligned_free(turned);
        return no_memory(b);
    }
    b->w->bytes += bytes;
    for (int64_t j = 0; j < n; j++)
        w[n * k + j] = 0.0;
    const lf_node wanted[2] = {product->weight, product->bias};
    double *const out[2] = {turned ? turned : w, w + n * k};
    lf_status status = lf_eval(b->plan->graph, b->dims, bound, wanted, product->bias == LF_NONE ? 1 : 2, out, b->diag);
    if (turned && status == LF_OK)
        turn_over(turned, n, k, w);
    lf_aligned_free(turned);
    return status;
}

/* Parameters are borrowed, everything else is evaluated. */
static lf_status prepare_tensors(building *b)
{
    const lf_plan *plan = b->plan;
    const lf_graph *g = plan->graph;
    lf_bound *bound = calloc((size_t)g->count + 1, sizeof *bound);
    int32_t *which = calloc((size_t)plan->prepareds + 1, sizeof *which);
    lf_status status = bound && which ? LF_OK : no_memory(b);
    size_t count = 0;
    int64_t elements = 0;
    for (lf_node n = 0; n < g->count && status == LF_OK; n++)
        if (lf_at(g, n)->op == LF_OP_param)
            bound[n].f32 = b->param[n];
    for (int32_t i = 0; i < plan->prepareds && status == LF_OK; i++) {
        lf_node n = plan->prepared[i];
        if (lf_at(g, n)->op == LF_OP_param) {
            b->w->tensor[i] = b->param[n];
        } else {
            which[count++] = i;
            elements = lf_min64(AT_ONCE + 1, elements + lf_min64(elements_of(b, n), AT_ONCE + 1));
        }
    }
    if (status == LF_OK && count > 0 && elements <= AT_ONCE)
        status = evaluate(b, bound, which, count);
    else
        for (size_t i = 0; i < count && status == LF_OK; i++)
            status = evaluate(b, bound, which + i, 1);
    for (int32_t i = 0; i < plan->groups && status == LF_OK; i++)
        status = prepare_narrow(b, bound, i);
    free(bound);
    free(which);
    return status;
}

/* Every parameter that a prepared tensor is made from, and every prepared tensor. */
static lf_status find_finite(building *b, bool *finite)
{
    const lf_plan *plan = b->plan;
    const lf_graph *g = plan->graph;
    bool *needed = calloc((size_t)g->count + 1, sizeof *needed);
    if (!needed)
        return no_memory(b);
    *finite = b->faithful;
    for (int32_t i = 0; i < plan->prepareds; i++) {
        needed[plan->prepared[i]] = true;
        if (b->w->owned[i])
            *finite = *finite && all_finite(b, plan->prepared[i], b->w->tensor[i]);
    }
    for (lf_node n = g->count - 1; n >= 0; n--) {
        if (!needed[n])
            continue;
        const lf_node_info *info = lf_at(g, n);
        if (info->op == LF_OP_param)
            *finite = *finite && all_finite(b, n, b->param[n]);
        for (int a = 0; a < lf_op_row(info->op)->arg_count; a++)
            if (info->arg[a] != LF_NONE)
                needed[info->arg[a]] = true;
    }
    free(needed);
    return LF_OK;
}

/* ---- packing ---- */

typedef struct packing {
    const lf_kern *kern;
    const float *from; /* [n][k], or [k][n] */
    float *to;         /* [strips][runs of K] */
    bool is_kn;
    int64_t n, k;
} packing;

/* index: over strips, runs of K. */
static void pack_run(void *arg, int64_t index, int slot)
{
    const packing *p = arg;
    (void)slot;
    const int64_t runs = lf_runs(p->k), depth = lf_run_depth(p->k);
    const int64_t col = index / runs * LF_STRIP, k0 = index % runs * depth;
    const int64_t n = lf_min64(LF_STRIP, p->n - col), k = lf_min64(depth, p->k - k0);
    float *to = p->to + index / runs * lf_runs_floats(p->kern->w_floats, LF_STRIP, p->k) +
                index % runs * p->kern->w_floats(n, depth);
    if (p->is_kn)
        p->kern->pack_w(n, k, p->from + k0 * p->n + col, p->n, true, to);
    else
        p->kern->pack_w(n, k, p->from + col * p->k + k0, p->k, false, to);
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

/* The form in which group's product reads its weight; shared with an earlier group that reads the same. */
static lf_status pack_product(building *b, int32_t index)
{
    const lf_plan *plan = b->plan;
    const lf_product *product = &plan->group[index].product;
    if (product->node == LF_NONE || !product->weight_fixed || product->narrow)
        return LF_OK;
    for (int32_t i = 0; i < index; i++) {
        const lf_product *other = &plan->group[i].product;
        if (other->node != LF_NONE && other->weight_fixed && other->weight == product->weight &&
            other->w_is_kn == product->w_is_kn) {
            b->w->product[index] = b->w->product[i];
            return LF_OK;
        }
    }
    packing p = {.kern = b->kern, .from = b->w->tensor[plan->where[product->weight]], .is_kn = product->w_is_kn};
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
    return LF_OK;
}

/* Frees the row-major form of what is only read packed. */
static void drop_unpacked(building *b)
{
    const lf_plan *plan = b->plan;
    for (int32_t i = 0; i < plan->prepareds; i++) {
        bool as_it_lies = !plan->packed_only[i];
        for (int32_t g = 0; g < plan->groups; g++) {
            const lf_product *product = &plan->group[g].product;
            if (product->node != LF_NONE && product->weight_fixed && product->weight == plan->prepared[i] &&
                !b->w->product[g] && !b->w->narrow[g])
                as_it_lies = true;
        }
        if (as_it_lies || !b->w->owned[i])
            continue;
        disown(b, &b->w->owned[i], elements_of(b, plan->prepared[i]));
        b->w->tensor[i] = NULL;
    }
}

static lf_status build(building *b, bool pack, bool *finite)
{
    lf_cpu_weights *w = b->w;
    w->tensor = lf_arena_array(&w->arena, (size_t)b->plan->prepareds + 1, sizeof *w->tensor);
    w->owned = lf_arena_array(&w->arena, (size_t)b->plan->prepareds + 1, sizeof *w->owned);
    w->product = lf_arena_array(&w->arena, (size_t)b->plan->groups + 1, sizeof *w->product);
    w->narrow = lf_arena_array(&w->arena, (size_t)b->plan->groups + 1, sizeof *w->narrow);
    w->packed = lf_arena_array(&w->arena, (size_t)b->plan->groups + 1, sizeof *w->packed);
    if (!w->tensor || !w->owned || !w->product || !w->narrow || !w->packed)
        return no_memory(b);
    lf_status status = prepare_tensors(b);
    if (status == LF_OK && finite)
        status = find_finite(b, finite);
    for (int32_t g = 0; g < b->plan->groups && status == LF_OK && pack; g++)
        status = pack_product(b, g);
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
    w->groups = plan->groups;
    building b = {.w = w, .plan = plan, .kern = kern, .param = param, .pool = pool, .diag = diag, .dims = dims, .faithful = true};
    lf_status status = build(&b, pack, finite);
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
    for (int32_t g = 0; w->packed && g < w->groups; g++)
        lf_aligned_free(w->packed[g]);
    for (int32_t g = 0; w->narrow && g < w->groups; g++)
        lf_aligned_free(w->narrow[g]);
    lf_arena_free(&w->arena);
    free(w);
}

size_t lf_cpu_weights_bytes(const lf_cpu_weights *w)
{
    return sizeof *w + lf_arena_bytes(&w->arena) + w->bytes;
}
