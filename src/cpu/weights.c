/* SPDX-License-Identifier: Apache-2.0 */
/* A plan's prepared tensors, packed for the products that read them. */
#include <stdlib.h>

#include "base/mem.h"
#include "cpu/parts.h"

typedef struct packing {
    const lf_kern *kern;
    lf_dtype dtype;
    const void *from;  /* [n][k], or [k][n] */
    float *to;         /* [strips][runs of K] */
    bool is_kn;
    int64_t n, k;
} packing;

/* index: over strips, runs of K. */
static void pack_run(void *arg, int64_t index, int slot)
{
    const packing *p = arg;
    (void)slot;
    const int64_t strip = index / lf_runs(p->k), run = index % lf_runs(p->k);
    const int64_t n = lf_min64(LF_STRIP, p->n - strip * LF_STRIP),
                  k = lf_min64(lf_run_depth(p->k), p->k - run * lf_run_depth(p->k));
    float *to = p->to + lf_w_run_at(p->kern, p->dtype, p->n, p->k, strip, run);
    lf_memory_ready(to, (size_t)p->kern->w_floats(p->kern->w_type[p->dtype], n, k) * sizeof *to);
    lf_w_run_pack(p->kern, p->dtype, p->from, p->n, p->k, p->is_kn, strip, run, to);
}

/* Floats of the packed form; fails (false) on overflow. */
static bool packed_floats(const packing *p, int64_t *floats)
{
    const int64_t rest = p->n % LF_STRIP;
    if (!lf_mul_i64(lf_round_up(p->n, LF_STRIP), p->k, floats) || *floats > INT64_MAX / 64)
        return false;
    *floats = p->n / LF_STRIP * lf_w_runs_floats(p->kern, p->dtype, LF_STRIP, p->k) +
              (rest > 0 ? lf_w_runs_floats(p->kern, p->dtype, rest, p->k) : 0);
    return true;
}

/* The form in which a product reads its weight; shared with an earlier one that reads the same. */
static lf_status pack_product(lf_cpu_weights *w, const lf_plan *plan, const lf_kern *kern, int32_t index, lf_pool *pool,
                              lf_diag *diag)
{
    const lf_product *product = plan->product[index];
    if (!product->weight_fixed || product->narrow)
        return LF_OK;
    for (int32_t i = 0; i < index; i++) {
        const lf_product *other = plan->product[i];
        if (other->weight_fixed && other->weight == product->weight && other->w_is_kn == product->w_is_kn) {
            w->product[index] = w->product[i];
            return LF_OK;
        }
    }
    packing p = {.kern = kern,
                 .dtype = lf_stored_dtype(plan, product->weight),
                 .from = w->prepared->tensor[plan->where[product->weight]],
                 .is_kn = product->w_is_kn,
                 .n = lf_extent_at(product->n, NULL),
                 .k = lf_extent_at(product->k, NULL)};
    int64_t floats;
    if (!packed_floats(&p, &floats))
        return lf_fail_nomem(diag, "the packed weights");
    w->packed[index] = p.to = lf_aligned_alloc((size_t)floats * sizeof *p.to);
    if (!p.to)
        return lf_fail_nomem(diag, "the packed weights");
    w->bytes += (size_t)floats * sizeof *p.to;
    lf_pool_run(pool, lf_ceil_div(p.n, LF_STRIP) * lf_runs(p.k), pack_run, &p);
    w->product[index] = p.to;
    return LF_OK;
}

/* Frees the row-major form of what is only read packed. */
static void drop_unpacked(lf_cpu_weights *w, const lf_plan *plan)
{
    for (int32_t i = 0; i < plan->prepareds; i++) {
        bool as_it_lies = !plan->packed_only[i];
        for (int32_t p = 0; p < plan->products; p++)
            if (plan->product[p]->weight_fixed && plan->product[p]->weight == plan->prepared[i] && !w->product[p] &&
                !w->prepared->narrow[p])
                as_it_lies = true;
        if (!as_it_lies)
            lf_prepared_drop(w->prepared, plan, i);
    }
}

static lf_status build(lf_cpu_weights *w, const lf_plan *plan, const lf_kern *kern, bool pack, lf_pool *pool,
                       lf_diag *diag)
{
    w->product = lf_arena_array(&w->arena, (size_t)plan->products + 1, sizeof *w->product);
    w->packed = lf_arena_array(&w->arena, (size_t)plan->products + 1, sizeof *w->packed);
    lf_status status = w->product && w->packed ? LF_OK : lf_fail_nomem(diag, "the packed weights");
    if (!pack)
        return status;
    for (int32_t i = 0; i < plan->products && status == LF_OK; i++)
        status = pack_product(w, plan, kern, i, pool, diag);
    if (status == LF_OK)
        drop_unpacked(w, plan);
    return status;
}

lf_status lf_cpu_weights_new(const lf_plan *plan, const lf_kern *kern, lf_prepared *prepared, bool pack, lf_pool *pool,
                             lf_cpu_weights **out, lf_diag *diag)
{
    *out = NULL;
    lf_cpu_weights *w = calloc(1, sizeof *w);
    if (!w) {
        lf_prepared_free(prepared);
        return lf_fail_nomem(diag, "the packed weights");
    }
    lf_arena_init(&w->arena);
    w->prepared = prepared;
    w->products = plan->products;
    lf_status status = build(w, plan, kern, pack, pool, diag);
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
    for (int32_t i = 0; w->packed && i < w->products; i++)
        lf_aligned_free(w->packed[i]);
    lf_prepared_free(w->prepared);
    lf_arena_free(&w->arena);
    free(w);
}

size_t lf_cpu_weights_bytes(const lf_cpu_weights *w)
{
    return sizeof *w + lf_arena_bytes(&w->arena) + w->bytes + lf_prepared_bytes(w->prepared);
}
