/* SPDX-License-Identifier: Apache-2.0 */
/* Whole plans on the CPU, fused and op by op, against double precision; and the promise that bits depend on nothing
 * but a row's own numbers. */
#include "cpu_models.h"
#include "cpu_support.h"
#include "cpu/parts.h"

#include <pthread.h>

typedef struct extents { int64_t n, k; } extents;
static const extents sizes[] = {{1, 7}, {7, 1}, {33, 31}, {255, 257}, {257, 255}, {1000, 64}, {64, 1000}, {520, 300}};
enum { SIZES = sizeof sizes / sizeof sizes[0] };
static const int64_t batches[] = {0, 1, 2, 3, 17, 129};
enum { BATCHES = sizeof batches / sizeof batches[0] };

static char *text_of(const cpu_model *m, extents e)
{
    int64_t g = 1;
    for (int64_t d = 2; d <= 8; d++)
        g = e.n % d == 0 ? d : g;
    return rig_text(m->text, "NKG", (const int64_t[]){e.n, e.k, g});
}

static bool fits(const cpu_model *m, extents e)
{
    return e.n >= m->least && e.k >= (m->least > 1 ? 2 : 1);
}

static lf_pool *pools[5]; /* of 1 to 4 threads, by number */

static int make_pools(void **state)
{
    (void)state;
    for (int i = 1; i <= 4; i++)
        if (lf_pool_new(i, &pools[i]) != LF_OK)
            return -1;
    return 0;
}

static int free_pools(void **state)
{
    (void)state;
    for (int i = 1; i <= 4; i++)
        lf_pool_free(pools[i]);
    return 0;
}

/* ---- against double precision ---- */

/* One run of each rig (the same model, planned in different ways) against one evaluation. */
static void against_double(rig *rigs, int count, const cpu_model *m, extents e, int64_t batch, lf_pool *pool)
{
    const int64_t dims[LF_MAX_SYMBOLS] = {batch};
    const bool compared = batch > 0 || !m->columns; /* over no rows at all there is nothing to compare with */
    rig_ports in = rig_inputs(rigs, dims, RIG_UNIFORM);
    double *ref[RIG_PORTS] = {0};
    if (compared)
        rig_eval(rigs, dims, &in, ref);
    for (int way = 0; way < count; way++, cases++) {
        rig_ports out = rig_run(&rigs[way], dims, &in, pool, NULL, batch);
        for (int32_t i = 0; compared && i < rigs[way].graph.outputs; i++) {
            char what[160];
            snprintf(what, sizeof what, "%s way %d N=%d K=%d B=%d %s output %d", m->name, way, (int)e.n, (int)e.k,
                     (int)batch, rigs[way].kern->isa, (int)i);
            rig_compare(what, out.data[i], ref[i], out.count[i], m->tolerance);
        }
        rig_ports_free(&out);
    }
    for (int i = 0; i < RIG_PORTS; i++)
        free(ref[i]);
    rig_ports_free(&in);
}

/* Fused and op by op. */
static void both_ways(const cpu_model *m, extents e, const int64_t *batch, int count, const lf_kern *kern, int turn)
{
    char *text = text_of(m, e);
    rig rigs[2];
    rig_open(&rigs[0], text, true, kern);
    rig_open(&rigs[1], text, false, kern);
    for (int b = 0; b < count; b++)
        against_double(rigs, 2, m, e, batch[b], pools[1 + (turn + b) % 3]);
    rig_close(&rigs[0]);
    rig_close(&rigs[1]);
    free(text);
}

static void models_match(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i += rig_step())
        for (int s = rig_slow() ? i % 3 : 0; s < SIZES; s += rig_slow() ? 3 : 1)
            if (fits(&models[i], sizes[s]))
                both_ways(&models[i], sizes[s], batches, BATCHES, lf_kern_pick(), i + s);
}

static void models_match_on_every_table(void **state)
{
    (void)state;
    const int64_t batch = 17;
    for (size_t t = 1; lf_kern_at(t); t++) /* the first has had its turn */
        for (int i = 0; i < MODELS; i += rig_step())
            for (int s = rig_slow() ? 3 : 2; s < SIZES; s += rig_slow() ? 8 : 2)
                both_ways(&models[i], sizes[s], &batch, 1, lf_kern_at(t), i);
    cases++; /* where there is no other table */
}

/* Rows of more than a stretch, the last one short; groups of two strips each, and groups that end inside a strip. */
static void long_rows_match(void **state)
{
    (void)state;
    static const extents longer[] = {{4096, 6}, {2 * LF_STRETCH + 3 * LF_STRIP + 5, 3}};
    const int64_t batch = 5;
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int i = 0; i < MODELS; i += rig_step())
            both_ways(&models[i], longer[(t + (size_t)i) % 2], &batch, 1, lf_kern_at(t), i);
    static const cpu_model bare[] = {
        {"bare_groups", "input x f32[B, {N}]\n" AFFINE "b = group_norm(x, {G}, g, h)\nc = mul(b, x)\nreturn c, b\n", 1,
         false, 1e-3},
        {"bare_turned", "input x f32[B, {N}]\na = mean(x, dim=1, keepdim=True)\nb = sub(a, x)\nreturn b\n", 1, false,
         1e-3},
    };
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int i = 0; i < 4; i++)
            both_ways(&bare[i / 2], longer[i % 2], &batch, 1, lf_kern_at(t), i);
}

/* Every pointwise op, as a model of its own and behind a product. */
static void ops_match(void **state)
{
    (void)state;
    for (int op = 0; op < LF_OP_COUNT; op++) {
        const lf_op_info *row = lf_op_row((lf_op)op);
        if (row->kind != LF_POINTWISE || !lf_op_public((lf_op)op))
            continue;
        const char *attributes = op == LF_OP_clamp ? ", -0.5, 0.25"
                                 : op == LF_OP_pow ? ", 3"
                                 : op == LF_OP_to  ? ", \"f32\""
                                                   : "";
        const bool logical = op == LF_OP_logical_and || op == LF_OP_logical_or; /* of tensors alone */
        const char *tensors = row->arg_count == 2 ? ", y" : op == LF_OP_where ? ", y, x" : "";
        const char *others = logical ? ", p" : row->arg_count == 2 ? ", 1.5" : op == LF_OP_where ? ", p, 1.5" : "";
        const char *of = op == LF_OP_log1p ? "p" : "b"; /* close to its pole it magnifies what the product rounded */
        char text[512];
        snprintf(text, sizeof text,
                 "input x f32[B, 300]\ninput y f32[B, 300]\nparam w f32[40, 300]\na = %s(x%s%s)\nb = linear(x, w)\n"
                 "p = abs(b)\nc = %s(%s%s%s)\nreturn a, c\n",
                 row->name, tensors, attributes, row->name, of, others, attributes);
        const cpu_model m = {row->name, text, 1, false, 3e-4};
        const int64_t batch = 19;
        both_ways(&m, (extents){40, 300}, &batch, 1, lf_kern_pick(), 1);
    }
}

/* Small integers stay exact through products and sums, whatever the order. */
static void integers_are_exact(void **state)
{
    (void)state;
    for (size_t t = 0; lf_kern_at(t); t++)
        for (int s = 0; s < SIZES; s++) {
            const cpu_model m = {
                "integers",
                LINEAR "b = sum(a, dim=1)\nc = max(a, dim=1)\nd = relu(a)\ne = sum(a, dim=0)\nreturn b, c, d, e\n", 1,
                true, 0};
            char *text = text_of(&m, sizes[s]);
            rig r;
            rig_open_drawn(&r, text, true, s % 2, lf_kern_at(t), pools[2], RIG_INTEGERS);
            const int64_t dims[LF_MAX_SYMBOLS] = {37};
            rig_ports in = rig_inputs(&r, dims, RIG_INTEGERS), out = rig_run(&r, dims, &in, pools[3], NULL, 37);
            double *ref[RIG_PORTS] = {0};
            rig_eval(&r, dims, &in, ref);
            for (int32_t i = 0; i < r.graph.outputs; i++, cases++) {
                rig_compare("integers", out.data[i], ref[i], out.count[i], 0);
                free(ref[i]);
            }
            rig_ports_free(&in);
            rig_ports_free(&out);
            rig_close(&r);
            free(text);
        }
}

/* ---- the same bits ---- */

static void assert_same_bits(const char *name, const float *a, const float *b, int64_t count, const char *over)
{
    for (int64_t i = 0; i < count; i++)
        if (rig_bits(a[i]) != rig_bits(b[i]))
            fail_msg("%s: element %lld is %.9g and %.9g: bits depend on %s", name, (long long)i, (double)a[i],
                     (double)b[i], over);
}

/* Each output of a batch is the beginning of the same output of a larger one, where rows do not see each other. */
static void same_rows(const cpu_model *m, rig *r, const rig_ports *all, int64_t most, int64_t batch, lf_pool *pool,
                      const char *over)
{
    const int64_t dims[LF_MAX_SYMBOLS] = {batch};
    rig_ports in = rig_inputs(r, dims, RIG_UNIFORM), out = rig_run(r, dims, &in, pool, NULL, batch);
    for (int32_t i = 0; i < r->graph.outputs; i++, cases++) {
        assert_true(batch == most || all->count[i] * batch == out.count[i] * most || out.count[i] == all->count[i]);
        assert_same_bits(m->name, out.data[i], all->data[i], out.count[i], over);
    }
    rig_ports_free(&in);
    rig_ports_free(&out);
}

static void bits_are_a_rows_own(void **state)
{
    (void)state;
    const int64_t most = rig_slow() ? 140 : 300; /* several blocks of rows */
    const extents large = rig_slow() ? (extents){520, 64} : (extents){700, 300};
    for (int i = 0; i < MODELS; i += rig_step())
        for (int fuse = 0; fuse < 2; fuse++) {
            const cpu_model *m = &models[i];
            char *text = text_of(m, large);
            rig r;
            rig_open(&r, text, fuse, lf_kern_pick());
            const int64_t dims[LF_MAX_SYMBOLS] = {most};
            rig_ports in = rig_inputs(&r, dims, RIG_UNIFORM), all = rig_run(&r, dims, &in, pools[1], NULL, most);
            for (int threads = 2; threads <= 4; threads++)
                same_rows(m, &r, &all, most, most, pools[threads], "the number of threads");
            const int64_t fewer[] = {1, 2, 3, 17, 129, most - 1};
            for (size_t b = 0; !m->columns && b < sizeof fewer / sizeof fewer[0]; b += rig_slow() ? 2 : 1)
                for (int threads = 1; threads <= 4; threads += 1 + (int)b % 2)
                    same_rows(m, &r, &all, most, fewer[b], pools[threads], "the batch");
            rig_ports_free(&in);
            rig_ports_free(&all);
            rig_close(&r);
            free(text);
        }
}

static void bits_are_the_same_twenty_times(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i += rig_slow() ? 7 : 3) {
        const cpu_model *m = &models[i];
        char *text = text_of(m, (extents){520, 300});
        rig r;
        rig_open(&r, text, true, lf_kern_pick());
        const int64_t dims[LF_MAX_SYMBOLS] = {129};
        rig_ports in = rig_inputs(&r, dims, RIG_UNIFORM), all = rig_run(&r, dims, &in, pools[3], NULL, 129);
        for (int again = 0; again < 20; again++)
            same_rows(m, &r, &all, 129, 129, pools[3], "chance");
        rig_ports_free(&in);
        rig_ports_free(&all);
        rig_close(&r);
        free(text);
    }
}

/* Weights packed at the call give the bits of weights packed before. */
static void packing_changes_no_bits(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i += rig_step())
        for (int s = 3; s < SIZES; s += 2) {
            char *text = text_of(&models[i], sizes[s]);
            rig packed, plain;
            rig_open_drawn(&packed, text, true, true, lf_kern_pick(), pools[2], RIG_UNIFORM);
            rig_open_drawn(&plain, text, true, false, lf_kern_pick(), NULL, RIG_UNIFORM);
            assert_true(lf_cpu_weights_bytes(packed.weights) > 0 && lf_cpu_weights_bytes(plain.weights) > 0);
            const int64_t dims[LF_MAX_SYMBOLS] = {29};
            rig_ports in = rig_inputs(&packed, dims, RIG_UNIFORM),
                      all = rig_run(&packed, dims, &in, pools[1], NULL, 29);
            same_rows(&models[i], &plain, &all, 29, 29, pools[2], "when weights are packed");
            rig_ports_free(&in);
            rig_ports_free(&all);
            rig_close(&packed);
            rig_close(&plain);
            free(text);
        }
}

/* Products that share x give the bits of products by themselves, whatever x holds. */
static void sharing_changes_no_bits(void **state)
{
    (void)state;
    static const int64_t few[] = {1, 7, 67};
    for (int i = 0; i < MODELS; i++)
        for (int s = i % 2; s < SIZES; s += rig_slow() ? 4 : 2) {
            if (!fits(&models[i], sizes[s]))
                continue;
            const lf_plan_options share = {.fuse = true, .share_x = LF_SHARE_ALL, .keep_exps = true},
                                  alone = {.fuse = true, .keep_exps = true};
            char *text = text_of(&models[i], sizes[s]);
            rig one, other;
            rig_open_planned(&one, text, share, true, lf_kern_at((size_t)s % 2), NULL, RIG_UNIFORM);
            rig_open_planned(&other, text, alone, true, one.kern, NULL, RIG_UNIFORM);
            for (size_t b = 0; b < sizeof few / sizeof few[0] && one.plan->groups < other.plan->groups; b++) {
                const int64_t dims[LF_MAX_SYMBOLS] = {few[b]};
                rig_ports in = rig_inputs(&one, dims, RIG_UNIFORM);
                in.data[0][0] = b == 1 ? NAN : in.data[0][0];
                in.data[0][in.count[0] - 1] = b == 2 ? INFINITY : in.data[0][in.count[0] - 1];
                rig_ports y = rig_run(&one, dims, &in, pools[1 + b], NULL, few[b]),
                          z = rig_run(&other, dims, &in, pools[3 - b], NULL, few[b]);
                for (int32_t o = 0; o < one.graph.outputs; o++, cases++)
                    for (int64_t k = 0; k < y.count[o]; k++)
                        if (!(isnan(y.data[o][k]) && isnan(z.data[o][k]))) /* whose sign may differ */
                            assert_same_bits(models[i].name, &y.data[o][k], &z.data[o][k], 1, "what shares x");
                rig_ports_free(&in);
                rig_ports_free(&y);
                rig_ports_free(&z);
            }
            rig_close(&one);
            rig_close(&other);
            free(text);
        }
}

/* One instance, one set of weights and one pool, many threads at once: each with a workspace of its own. */
typedef struct caller {
    const lf_cpu_instance *instance;
    rig *r;
    const rig_ports *in;
    rig_ports out;
    float *workspace;
    lf_pool *pool;
} caller;

static void *call_often(void *arg)
{
    caller *c = arg;
    for (int i = 0; i < 3; i++)
        lf_cpu_run(c->instance, c->r->weights, (const void *const *)c->in->typed, c->out.typed, c->workspace, NULL, 129,
                   c->pool);
    return NULL;
}

/* Few rows leave threads only the columns of one phase after another to share: eight small ones are nothing to share,
 * though they are enough to do together; one large one is. */
static void small_phases_are_not_shared(void **state)
{
    (void)state;
    char siblings[1024] = "input x f32[B, 256]\n", results[64] = "return ";
    for (int i = 0; i < 8; i++) {
        const size_t at = strlen(siblings), named = strlen(results);
        snprintf(siblings + at, sizeof siblings - at, "param w%d f32[64, 256]\ny%d = linear(x, w%d)\n", i, i, i);
        snprintf(results + named, sizeof results - named, i ? ", y%d" : "y%d", i);
    }
    strcat(strcat(siblings, results), "\n");
    const char *const text[] = {siblings, "input x f32[B, 256]\nparam w f32[512, 256]\ny = linear(x, w)\nreturn y\n"};
    for (int i = 0; i < 2; i++) {
        rig r;
        rig_open(&r, text[i], true, lf_kern_pick());
        lf_cpu_instance *instance;
        rig_ok(&r, lf_cpu_instance_new(r.plan, r.kern, (int64_t[LF_MAX_SYMBOLS]){4}, 2, &instance, &r.diag));
        assert_int_equal(instance->groups, 1);
        assert_int_equal(instance->group[0].whole_grid, i == 1);
        assert_true(lf_group_work(&instance->group[0]) >= LF_WORTH_WAKING);
        lf_cpu_instance_free(instance);
        rig_close(&r);
        cases++;
    }
}

/* The part of the time until the last thread is done that threads spend multiplying: pieces go, in order, to whoever is
 * free, and take as long as they have elements. */
static double busy_share(const lf_group_at *g, int threads)
{
    enum { MOST_THREADS = 16 };
    const lf_phase_at *p = &g->phase[g->packs];
    const int64_t blocks = lf_blocks(g, g->rows), ranges = g->whole_grid ? p->ranges : 1;
    double until[MOST_THREADS] = {0}, all = 0, last = 0;
    assert_true(threads <= MOST_THREADS);
    for (int64_t i = 0; i < blocks * ranges; i++) {
        const int64_t block = i / ranges, range = i % ranges;
        const int64_t strips = p->strips * (range + 1) / ranges - p->strips * range / ranges;
        const double took = (double)(lf_block_rows(g, block, g->rows) * strips);
        int first = 0;
        for (int k = 1; k < threads; k++)
            first = until[k] < until[first] ? k : first;
        until[first] += took;
        all += took;
    }
    for (int k = 0; k < threads; k++)
        last = fmax(last, until[k]);
    return all / last / threads;
}

/* Wherever there are four pieces of 32 rows and a strip for each thread, threads have about as much to do. */
static void threads_have_as_much_to_do(void **state)
{
    (void)state;
    static const int shapes[][3] = {{64, 512, 2048},  {100, 768, 768},  {131, 260, 5000},  {200, 768, 3072},
                                    {300, 3072, 768}, {512, 1024, 4096}, {999, 768, 768},   {1000, 1024, 1024},
                                    {5000, 300, 300}, {1024, 4096, 4096}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int m = shapes[i][0], k = shapes[i][1], n = shapes[i][2];
        char text[128];
        rig r;
        snprintf(text, sizeof text, "input x f32[B, %d]\nparam w f32[%d, %d]\na = linear(x, w)\nreturn a\n", k, n, k);
        rig_open(&r, text, true, lf_kern_pick());
        for (int threads = 2; threads <= 16; threads++) {
            lf_cpu_instance *instance;
            if (m / 32 * ((n + LF_STRIP - 1) / LF_STRIP) < 4 * threads)
                continue;
            rig_ok(&r, lf_cpu_instance_new(r.plan, r.kern, (int64_t[LF_MAX_SYMBOLS]){m}, threads, &instance, &r.diag));
            const double busy = busy_share(&instance->group[0], threads);
            if (busy < 0.8)
                fail_msg("%d x %d x %d with %d threads: they are busy for %.0f%% of the time", m, k, n, threads,
                         100 * busy);
            lf_cpu_instance_free(instance);
            cases++;
        }
        rig_close(&r);
    }
}

/* Few rows of one strip are not cut: each thread would read all of the weight, which takes as long as multiplying. */
static void small_models_stay_on_a_thread(void **state)
{
    (void)state;
    for (int threads = 2; threads <= 64; threads *= 2) {
        rig r;
        rig_open(&r, "input x f32[B, 512]\nparam w f32[256, 512]\na = linear(x, w)\nb = relu(a)\nreturn b\n", true,
                 lf_kern_pick());
        lf_cpu_instance *instance;
        rig_ok(&r, lf_cpu_instance_new(r.plan, r.kern, (int64_t[LF_MAX_SYMBOLS]){4}, threads, &instance, &r.diag));
        assert_true(lf_group_work(&instance->group[0]) >= LF_WORTH_WAKING);
        assert_false(instance->group[0].whole_grid);
        assert_int_equal(lf_blocks(&instance->group[0], 4), 1);
        lf_cpu_instance_free(instance);
        rig_close(&r);
        cases++;
    }
}

static void one_instance_serves_many(void **state)
{
    (void)state;
    enum { CALLERS = 6 };
    for (int i = 0; i < MODELS; i += 5) {
        char *text = text_of(&models[i], (extents){520, 300});
        rig r;
        rig_open(&r, text, true, lf_kern_pick());
        const int64_t dims[LF_MAX_SYMBOLS] = {129};
        rig_ports in = rig_inputs(&r, dims, RIG_UNIFORM), all = rig_run(&r, dims, &in, pools[1], NULL, 129);
        lf_cpu_instance *instance;
        rig_ok(&r, lf_cpu_instance_new(r.plan, r.kern, dims, 2, &instance, &r.diag));
        assert_true(lf_cpu_instance_bytes(instance) > 0);
        caller callers[CALLERS];
        pthread_t threads[CALLERS];
        for (int c = 0; c < CALLERS; c++) {
            callers[c] =
                (caller){.instance = instance, .r = &r, .in = &in, .out = rig_outputs(&r, dims), .pool = pools[2]};
            callers[c].workspace = lf_aligned_alloc(lf_cpu_workspace(instance));
            assert_non_null(callers[c].workspace);
        }
        for (int c = 0; c < CALLERS; c++)
            assert_int_equal(pthread_create(&threads[c], NULL, call_often, &callers[c]), 0);
        for (int c = 0; c < CALLERS; c++) {
            pthread_join(threads[c], NULL);
            for (int32_t o = 0; o < r.graph.outputs; o++, cases++)
                assert_same_bits(models[i].name, callers[c].out.data[o], all.data[o], all.count[o], "who else runs");
            rig_ports_free(&callers[c].out);
            lf_aligned_free(callers[c].workspace);
        }
        lf_cpu_instance_free(instance);
        rig_ports_free(&in);
        rig_ports_free(&all);
        rig_close(&r);
        free(text);
    }
}

/* ---- the edges ---- */

static void nothing_comes_of_no_rows(void **state)
{
    (void)state;
    rig r;
    rig_open(&r,
             "input x f32[B, 300]\na = sum(x, dim=0)\nb = mean(x, dim=0)\nc = max(x, dim=0)\nd = sum(x)\n"
             "return a, b, c, d\n",
             true, lf_kern_pick());
    const int64_t dims[LF_MAX_SYMBOLS] = {0};
    rig_ports in = rig_inputs(&r, dims, RIG_UNIFORM), out = rig_run(&r, dims, &in, pools[2], NULL, 0);
    for (int i = 0; i < 300; i++, cases++)
        assert_true(out.data[0][i] == 0 && isnan(out.data[1][i]) && out.data[2][i] == -INFINITY);
    assert_true(out.data[3][0] == 0);
    rig_ports_free(&in);
    rig_ports_free(&out);
    rig_close(&r);
}

/* A chain far longer than there are registers anywhere. */
static void long_programs_run(void **state)
{
    (void)state;
    enum { LINKS = 240 };
    char text[LINKS * 48 + 128], *to = text;
    to += sprintf(to, "input x f32[B, 300]\nparam p f32[300]\nv0 = add(x, p)\n");
    for (int i = 1; i < LINKS; i++)
        to += sprintf(to, "v%d = %s(v%d, v%d)\n", i, i % 3 ? "sub" : "maximum", i - 1, i / 2);
    sprintf(to, "return v%d, v%d\n", LINKS - 1, LINKS / 2);
    const cpu_model m = {"long", text, 1, false, 1e-3};
    const int64_t batch = 17;
    both_ways(&m, (extents){300, 300}, &batch, 1, lf_kern_pick(), 1);
}

static void too_large_is_said(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, "input x f32[B, S, 300]\nparam w f32[300, 300]\na = linear(x, w)\nb = softmax(a, dim=1)\nreturn b\n",
             true, lf_kern_pick());
    const int64_t large[][2] = {{INT64_C(1) << 40, INT64_C(1) << 40}, {INT64_MAX, 1}, {INT64_C(1) << 45, 3}};
    for (size_t i = 0; i < sizeof large / sizeof large[0]; i++, cases++) {
        const int64_t dims[LF_MAX_SYMBOLS] = {large[i][0], large[i][1]};
        lf_cpu_instance *instance;
        assert_int_equal(lf_cpu_instance_new(r.plan, r.kern, dims, 2, &instance, &r.diag), LF_ERR_DATA);
        assert_null(instance);
        assert_true(strlen(r.diag.text) > 0);
    }
    rig_close(&r);
}

/* A witness that is not finite flags its row of the batch, and no other. */
static void witnesses_flag_their_rows(void **state)
{
    (void)state;
    const char *const texts[] = {
        "input x f32[B, 300]\nv = relu(x)\nt = sum(x, dim=1, keepdim=true)\nreturn v, t\n",
        "input x f32[B, 300]\nparam w f32[70, 300]\nv = linear(x, w)\nt = sum(x, dim=1, keepdim=true)\nreturn v, t\n",
        "input x f32[B, 5, 300]\nv = relu(x)\nt = mul(x, 2)\nreturn v, t\n",
    };
    enum { BATCH = 41 };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        for (int threads = 1; threads <= 3; threads++) {
            rig r = {0};
            lf_arena_init(&r.arena);
            rig_ok(&r, lf_graph_init(&r.graph, &r.arena, &r.diag));
            rig_ok(&r, lf_text_read(&r.graph, "test", texts[i], strlen(texts[i])));
            lf_node guarded, both[LF_MAX_ARGS] = {r.graph.output[0], r.graph.output[1], LF_NONE, LF_NONE, LF_NONE};
            rig_ok(&r, lf_graph_op(&r.graph, NULL, LF_OP_guard, both, NULL, &guarded));
            rig_ok(&r, lf_graph_return(&r.graph, &guarded, 1));
            rig_ok(&r, lf_plan_build(&r.graph, rig_options(true), &r.arena, &r.plan));
            r.param = calloc((size_t)r.graph.count, sizeof *r.param);
            r.typed = calloc((size_t)r.graph.count, sizeof *r.typed);
            assert_true(r.param && r.typed);
            for (int32_t p = 0; p < r.graph.params; p++)
                r.typed[r.graph.param[p]] = r.param[r.graph.param[p]] = calloc(70 * 300, sizeof(float));
            r.kern = lf_kern_pick();
            rig_ok(&r, rig_prepare(&r, true, NULL, NULL, &r.weights));
            const int64_t dims[LF_MAX_SYMBOLS] = {BATCH};
            rig_ports in = rig_inputs(&r, dims, RIG_UNIFORM);
            const int64_t row = in.count[0] / BATCH;
            in.data[0][7 * row + 299] = NAN;
            in.data[0][40 * row + row / 2] = INFINITY;
            unsigned char flagged[BATCH] = {0};
            rig_ports out = rig_run(&r, dims, &in, pools[threads], flagged, BATCH);
            for (int b = 0; b < BATCH; b++, cases++)
                assert_int_equal(flagged[b], b == 7 || b == 40);
            rig_ports_free(&in);
            rig_ports_free(&out);
            rig_close(&r);
        }
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, some_ran)
    const struct CMUnitTest tests[] = {
        TEST(models_match),
        TEST(models_match_on_every_table),
        TEST(long_rows_match),
        TEST(ops_match),
        TEST(integers_are_exact),
        TEST(bits_are_a_rows_own),
        TEST(bits_are_the_same_twenty_times),
        TEST(packing_changes_no_bits),
        TEST(sharing_changes_no_bits),
        TEST(small_phases_are_not_shared),
        TEST(threads_have_as_much_to_do),
        TEST(small_models_stay_on_a_thread),
        TEST(one_instance_serves_many),
        TEST(nothing_comes_of_no_rows),
        TEST(long_programs_run),
        TEST(too_large_is_said),
        TEST(witnesses_flag_their_rows),
    };
    return cmocka_run_group_tests(tests, make_pools, free_pools);
}
