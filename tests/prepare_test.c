/* SPDX-License-Identifier: Apache-2.0 */
/* Preparing parameters: the ways around lf_eval give what it gives, and what is computed is looked at for what is not
 * finite. */
#include "cpu_support.h"

#include <errno.h>

#include "cpu/parts.h"
#include "prepare/sums.h"

/* ---- memory that runs out ---- */

static long allocations_left = -1; /* -1: no end to them */

static bool may_allocate(void)
{
    return allocations_left < 0 || allocations_left-- > 0;
}

void *__real_calloc(size_t count, size_t size);
int __real_posix_memalign(void **out, size_t alignment, size_t size);
void *__wrap_calloc(size_t count, size_t size);
int __wrap_posix_memalign(void **out, size_t alignment, size_t size);

void *__wrap_calloc(size_t count, size_t size)
{
    return may_allocate() ? __real_calloc(count, size) : NULL;
}

int __wrap_posix_memalign(void **out, size_t alignment, size_t size)
{
    return may_allocate() ? __real_posix_memalign(out, alignment, size) : ENOMEM;
}

/* ---- pools ---- */

enum { POOLS = 4, ROWS = 90, COLUMNS = 2500 };

static lf_pool *pools[POOLS + 1]; /* of 1 to 4 threads, by number */

static int make_pools(void **state)
{
    (void)state;
    for (int i = 1; i <= POOLS; i++)
        if (lf_pool_new(i, &pools[i]) != LF_OK)
            return -1;
    return 0;
}

static int free_pools(void **state)
{
    (void)state;
    for (int i = 1; i <= POOLS; i++)
        lf_pool_free(pools[i]);
    return 0;
}

/* What lf_sums_bind does with a graph. One per node each. */
typedef struct summed {
    bool *needed, *finite;
    lf_bound *bound;
    double **sums;
} summed;

static summed sum_up(rig *r, int threads)
{
    const size_t nodes = (size_t)r->graph.count;
    summed s = {calloc(nodes, sizeof *s.needed), calloc(nodes, sizeof *s.finite), calloc(nodes, sizeof *s.bound),
                calloc(nodes, sizeof *s.sums)};
    assert_true(s.needed && s.finite && s.bound && s.sums);
    for (int32_t i = 0; i < r->graph.params; i++)
        s.bound[r->graph.param[i]].data = r->param[r->graph.param[i]];
    for (int32_t i = 0; i < r->graph.outputs; i++)
        s.needed[r->graph.output[i]] = true;
    lf_graph_needed(&r->graph, s.needed);
    rig_ok(r, lf_sums_bind(&r->graph, NULL, s.needed, pools[threads], s.bound, s.sums, s.finite, &r->diag));
    return s;
}

static void summed_free(rig *r, summed *s)
{
    for (lf_node n = 0; n < r->graph.count; n++)
        lf_aligned_free(s->sums[n]);
    free(s->needed);
    free(s->finite);
    free(s->bound);
    free(s->sums);
}

/* ---- sums ---- */

#define SUMS                                                                                                           \
    "param w f32[90, 2500]\nparam v f32[9, 10, 50, 50]\nparam few f32[3, 5]\nparam line f32[100000]\n"                 \
    "s = sum(w, dim=0)\nm = mean(w, dim=0, keepdim=true)\ncut = reshape(w, [9, 10, 2500])\nc = sum(cut, dim=[0, 1])\n" \
    "d = mean(v, dim=[0, 1], keepdim=true)\n"                                                                          \
    "inner = sum(cut, dim=1)\nacross = sum(w, dim=1)\nall = sum(w)\nsmall = sum(few, dim=0)\none = sum(line, dim=0)\n" \
    "most = max(w, dim=0)\nreturn s, m, c, d, inner, across, all, small, one, most\n"
static const char *const taken[] = {"s", "m", "c", "d"}, *const left[] = {"inner", "across", "all",
                                                                          "small", "one",    "most"};
enum { TAKEN = sizeof taken / sizeof *taken, LEFT = sizeof left / sizeof *left };

static lf_node named(const rig *r, const char *name)
{
    lf_node n = lf_graph_find(&r->graph, name, strlen(name));
    assert_true(n >= 0);
    return n;
}

/* Sums by all threads have lf_eval's bits, for any number of threads; what is no sum over the rows of a large parameter
 * is left. */
static void sums_are_evals(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, SUMS, false, lf_kern_at(0));
    lf_bound *bound = calloc((size_t)r.graph.count, sizeof *bound);
    double *want = malloc(COLUMNS * sizeof *want);
    assert_true(bound && want);
    for (int32_t i = 0; i < r.graph.params; i++)
        bound[r.graph.param[i]].data = r.param[r.graph.param[i]];
    for (int threads = 1; threads <= POOLS; threads++) {
        summed s = sum_up(&r, threads);
        for (int i = 0; i < TAKEN; i++, cases++) {
            const lf_node n = named(&r, taken[i]);
            rig_ok(&r, lf_eval(&r.graph, NULL, bound, &n, 1, &want, &r.diag));
            assert_non_null(s.sums[n]);
            assert_ptr_equal(s.bound[n].f64, s.sums[n]);
            assert_memory_equal(s.sums[n], want, COLUMNS * sizeof *want);
        }
        for (int i = 0; i < LEFT; i++, cases++)
            assert_null(s.sums[named(&r, left[i])]);
        assert_true(s.finite[named(&r, "w")] && s.finite[named(&r, "v")]);
        assert_false(s.finite[named(&r, "few")] || s.finite[named(&r, "line")]);
        summed_free(&r, &s);
    }
    free(bound);
    free(want);
    rig_close(&r);
}

/* One element anywhere is enough for its parameter not to pass as finite; infinities that cancel are one such. */
static void sums_see_what_is_not_finite(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, SUMS, false, lf_kern_at(0));
    float *w = r.param[named(&r, "w")];
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    static const int at[] = {0, COLUMNS - 1, 45 * COLUMNS + 1024, ROWS * COLUMNS - 1};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        for (size_t k = 0; k < sizeof at / sizeof *at; k++, cases++) {
            const int other = (at[k] + COLUMNS) % (ROWS * COLUMNS);
            const float kept = w[at[k]], kept_other = w[other];
            w[at[k]] = odd[i];
            w[other] = -odd[i];
            summed s = sum_up(&r, 2);
            assert_false(s.finite[named(&r, "w")]);
            assert_true(s.finite[named(&r, "v")]);
            summed_free(&r, &s);
            w[at[k]] = kept;
            w[other] = kept_other;
        }
    rig_close(&r);
}

#define MEAN "input x f32[B, 2500]\nparam w f32[90, 2500]\nparam b f32[90]\nv = mean(w, dim=0, keepdim=true)\n"       \
    "c = mean(b, dim=0, keepdim=true)\na = linear(x, v, c)\nreturn a\n"

/* What narrow products read is the double itself: a parameter's, a sum's, either way round, bias or none. */
static void narrow_weights_are_not_rounded(void **state)
{
    (void)state;
    static const char *const texts[] = {
        MEAN,
        "input x f32[B, 300]\nparam w f32[300, 4]\nparam s f32[4]\nv = mul(w, s)\na = matmul(x, v)\nreturn a\n",
        "input x f32[B, 300]\nparam w f32[5, 300]\na = linear(x, w)\nreturn a\n",
        "input x f32[B, 300]\nparam w f32[300, 3]\na = matmul(x, w)\nreturn a\n",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (int threads = 1; threads <= 2; threads++) {
            rig r;
            rig_open_drawn(&r, texts[i], true, true, lf_kern_at(0), pools[threads], RIG_UNIFORM);
            const lf_product *p = r.plan->product[0];
            assert_true(p->node != LF_NONE && p->narrow && r.weights->prepared->narrow[0]);
            const int64_t n = lf_extent_at(p->n, NULL), k = lf_extent_at(p->k, NULL);
            lf_bound *bound = calloc((size_t)r.graph.count, sizeof *bound);
            double *w = malloc((size_t)(n * k) * sizeof *w), *bias = calloc((size_t)n, sizeof *bias);
            assert_true(bound && w && bias);
            for (int32_t q = 0; q < r.graph.params; q++)
                bound[r.graph.param[q]].data = r.param[r.graph.param[q]];
            rig_ok(&r, lf_eval(&r.graph, NULL, bound, &p->weight, 1, &w, &r.diag));
            if (p->bias != LF_NONE)
                rig_ok(&r, lf_eval(&r.graph, NULL, bound, &p->bias, 1, &bias, &r.diag));
            for (int64_t j = 0; j < n; j++)
                for (int64_t l = 0; l < k; l++, cases++)
                    assert_true(r.weights->prepared->narrow[0][j * k + l] == w[p->w_is_kn ? l * n + j : j * k + l]);
            assert_memory_equal(r.weights->prepared->narrow[0] + n * k, bias, (size_t)n * sizeof *bias);
            free(bound);
            free(w);
            free(bias);
            rig_close(&r);
        }
}

/* Any allocation may fail, sums of large parameters among them: it is said, and nothing is left behind. */
static void memory_runs_out(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, MEAN, true, lf_kern_at(0));
    lf_status status = LF_ERR_NOMEM;
    for (long n = 0; status != LF_OK; n++, cases++) {
        lf_cpu_weights *w = r.weights;
        bool sound = false;
        allocations_left = n;
        status = rig_prepare(&r, true, NULL, &sound, &w);
        bool ran_out = allocations_left < 0;
        allocations_left = -1;
        assert_int_equal(status, ran_out ? LF_ERR_NOMEM : LF_OK);
        assert_true(ran_out ? !w && strstr(r.diag.text, "out of memory") : sound);
        lf_cpu_weights_free(w);
    }
    assert_true(cases > 10);
    rig_close(&r);
}

/* ---- what is looked at ---- */

static void what_is_computed_is_checked(void **state)
{
    (void)state;
    rig r;
    rig_open(&r,
             "input x f32[B, 30]\nparam w f32[20, 30]\nparam s f32[20, 1]\nf = mul(w, s)\na = linear(x, f)\nreturn a\n",
             true, lf_kern_pick());
    lf_node s = lf_graph_find(&r.graph, "s", 1);
    const float odd[] = {NAN, INFINITY, 3e38f}; /* the last becomes Inf in the product */
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++, cases++) {
        bool sound = true;
        lf_cpu_weights *w;
        r.param[s][7] = odd[i];
        for (int k = 0; k < 30; k++)
            r.param[lf_graph_find(&r.graph, "w", 1)][7 * 30 + k] = 2;
        rig_ok(&r, rig_prepare(&r, true, pools[2], &sound, &w));
        assert_false(sound);
        lf_cpu_weights_free(w);
    }
    rig_close(&r);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, some_ran)
    const struct CMUnitTest tests[] = {TEST(sums_are_evals), TEST(sums_see_what_is_not_finite),
                                       TEST(narrow_weights_are_not_rounded), TEST(memory_runs_out),
                                       TEST(what_is_computed_is_checked)};
    return cmocka_run_group_tests_name("prepare", tests, make_pools, free_pools);
}
