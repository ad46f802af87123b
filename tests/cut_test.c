/* SPDX-License-Identifier: Apache-2.0 */
/* Plans cut at their statistics: programs that each have some of a model's columns stop at partials, and others go on
 * from the sets of all, as ranks would. Held against the model in one piece: its bits, and double precision. */
#include "cpu_support.h"

#include "base/pool.h"

enum { COLUMNS = 1000, MOST_SHARDS = 3, ROWS = 37 };

typedef struct sharded {
    const char *name, *text;
    bool wide;         /* the output has the columns of its shard; otherwise all shards have the same */
    bool rounds_again; /* the statistic divides, which in one piece is done before rounding */
    int carried;
} sharded;

/* {N}: columns of the shard */
#define HEAD                                                                                                          \
    "input x f32[B, 64]\nparam w f32[{N}, 64]\nparam c f32[{N}]\nparam s f32[{N}]\nparam t f32[{N}]\n"                 \
    "a = linear(x, w, c)\n"

static const sharded models[] = {
    {"lse_chain",
     HEAD "l = logsumexp(a, dim=1, keepdim=true)\nd = leaky_relu(l)\ny = gelu(d)\nreturn y\n", false, false, 1},
    {"gelu_softmax", HEAD "g = gelu(a)\ny = softmax(g, dim=1)\nreturn y\n", true, false, 2},
    {"layer_norm", HEAD "n = layer_norm(a, [{N}], s, t)\ny = silu(n)\nreturn y\n", true, true, 2},
    {"mean", HEAD "g = gelu(a)\ny = mean(g, dim=1)\nreturn y\n", false, true, 1},
    {"two statistics", HEAD "g = gelu(a)\nm = max(g, dim=1)\nd = sum(g, dim=1)\ny = sub(m, d)\nreturn y\n", false,
     false, 2},
    {"residual", HEAD "g = gelu(a)\nl = logsumexp(g, dim=1, keepdim=true)\ny = sub(g, l)\nreturn y\n", true, false, 2},
    {"norm before", "input x f32[B, 64]\nparam w f32[{N}, 64]\nn = layer_norm(x, [64])\na = linear(n, w)\n"
                    "y = logsumexp(a, dim=1)\nreturn y\n", false, false, 1},
};
enum { MODELS = sizeof models / sizeof models[0] };

static const int64_t splits[][MOST_SHARDS] = {{1000}, {700, 300}, {256, 744}, {257, 600, 143}, {1, 2, 997}};

static lf_pool *pools[2]; /* of one thread, and of three */
static const int64_t dims[LF_MAX_SYMBOLS] = {ROWS};

/* The model of columns [first, first + columns), with these of the whole one's parameters. */
static void open_shard(rig *r, const sharded *m, const rig *whole, int64_t first, int64_t columns,
                       lf_plan_options options)
{
    char *text = rig_text(m->text, "N", &columns);
    rig_open_planned(r, text, options, true, lf_kern_at(0), NULL, RIG_UNIFORM);
    free(text);
    for (int32_t i = 0; whole && i < r->graph.params; i++) {
        const lf_node n = r->graph.param[i];
        const int64_t count = lf_shape_count(&lf_at(&r->graph, n)->shape, NULL), each = count / columns;
        memcpy(r->param[n], whole->param[whole->graph.param[i]] + first * each, (size_t)count * sizeof(float));
    }
    lf_cpu_weights_free(r->weights);
    r->weights = NULL;
    rig_ok(r, rig_prepare(r, true, NULL, NULL, &r->weights));
}

static void run(rig *r, const void *const *in, void *const *out, lf_pool *pool)
{
    lf_cpu_instance *instance;
    rig_ok(r, lf_cpu_instance_new(r->plan, r->kern, dims, lf_pool_threads(pool), &instance, &r->diag));
    const int64_t floats = (int64_t)(lf_cpu_workspace(instance) / sizeof(float));
    float *workspace = lf_aligned_alloc((size_t)(floats + RIG_GUARD) * sizeof(float));
    assert_non_null(workspace);
    rig_fill(workspace, floats + RIG_GUARD);
    lf_cpu_run(instance, r->weights, in, out, workspace, NULL, ROWS, pool);
    rig_check_guard(workspace + floats, "the workspace");
    lf_aligned_free(workspace);
    lf_cpu_instance_free(instance);
}

static int64_t carried_floats(const lf_carried *c)
{
    return lf_extent_at(c->rows, dims) * lf_extent_at(c->width, dims);
}

static float *poisoned(int64_t count)
{
    float *p = malloc((size_t)(count + RIG_GUARD) * sizeof *p);
    assert_non_null(p);
    rig_fill(p, count + RIG_GUARD);
    return p;
}

static void check_filled(const float *p, int64_t count, const char *what)
{
    rig_check_guard(p + count, what);
    for (int64_t i = 0; i < count; i++)
        assert_false(rig_is_poison(p[i]));
}

/* A shard as far as its partials: carried[0 .. plan->carrieds). */
static void stop(rig *r, const float *x, float **carried, lf_pool *pool)
{
    void *out[RIG_PORTS] = {0};
    assert_true(r->graph.outputs + r->plan->carrieds <= RIG_PORTS);
    for (int32_t i = 0; i < r->plan->carrieds; i++)
        out[r->graph.outputs + i] = carried[i] = poisoned(carried_floats(&r->plan->carried[i]));
    run(r, (const void *const[]){x}, out, pool);
    for (int32_t i = 0; i < r->plan->carrieds; i++)
        check_filled(carried[i], carried_floats(&r->plan->carried[i]), "what is carried");
}

/* One shard from the partials of all, to y. */
static void resume(rig *r, const float *x, float *(*carried)[RIG_PORTS], int shards, int shard, float *y, lf_pool *pool)
{
    const void *in[RIG_PORTS] = {x};
    float *sets[RIG_PORTS] = {0};
    for (int32_t i = 0; i < r->plan->carrieds; i++) {
        const lf_carried *c = &r->plan->carried[i];
        const int64_t each = carried_floats(c);
        assert_int_equal(c->sets, c->kind == LF_CARRY_PARTIALS ? shards : 1);
        in[r->graph.inputs + i] = carried[shard][i];
        if (c->kind != LF_CARRY_PARTIALS)
            continue;
        in[r->graph.inputs + i] = sets[i] = malloc((size_t)(each * shards) * sizeof(float));
        assert_non_null(sets[i]);
        for (int s = 0; s < shards; s++)
            memcpy(sets[i] + s * each, carried[s][i], (size_t)each * sizeof(float));
    }
    run(r, in, (void *const[]){y}, pool);
    for (int i = 0; i < RIG_PORTS; i++)
        free(sets[i]);
}

/* All of it in shards; y: [ROWS][COLUMNS], or [ROWS], which all shards agree on. */
static void run_sharded(const sharded *m, const rig *whole, const int64_t *split, const float *x, float *y,
                        lf_pool *pool)
{
    float *carried[MOST_SHARDS][RIG_PORTS] = {{0}};
    int shards = 0;
    int64_t first = 0;
    for (; shards < MOST_SHARDS && split[shards] > 0; first += split[shards++]) {
        rig r;
        open_shard(&r, m, whole, first, split[shards], (lf_plan_options){.fuse = true, .cut = LF_CUT_STOP});
        assert_int_equal(r.plan->carrieds, m->carried);
        stop(&r, x, carried[shards], pool);
        rig_close(&r);
    }
    assert_int_equal(first, COLUMNS);
    first = 0;
    for (int s = 0; s < shards; first += split[s++]) {
        rig r;
        const int64_t width = m->wide ? split[s] : 1;
        float *mine = poisoned(ROWS * width);
        open_shard(&r, m, whole, first, split[s],
                   (lf_plan_options){
                       .fuse = true, .cut = LF_CUT_RESUME, .sets = shards, .whole = lf_extent_of(COLUMNS)});
        assert_int_equal(r.plan->products, 0); /* its weights stay with the other half */
        assert_int_equal(r.plan->groups, 1);
        resume(&r, x, carried, shards, s, mine, pool);
        check_filled(mine, ROWS * width, "an output");
        for (int64_t row = 0; row < ROWS; row++)
            if (m->wide)
                memcpy(y + row * COLUMNS + first, mine + row * width, (size_t)width * sizeof *y);
            else if (s == 0)
                y[row] = mine[row];
            else
                assert_true(rig_bits(y[row]) == rig_bits(mine[row]));
        free(mine);
        rig_close(&r);
    }
    for (int s = 0; s < shards; s++)
        for (int i = 0; i < RIG_PORTS; i++)
            free(carried[s][i]);
}

/* From double precision, relative to the larger of the element and the root mean square. */
static double farthest(const float *y, const double *want, int64_t count)
{
    double squares = 0, most = 0;
    for (int64_t i = 0; i < count; i++)
        squares += want[i] * want[i];
    for (int64_t i = 0; i < count; i++) {
        assert_true(isfinite(y[i]));
        most = fmax(most, fabs(y[i] - want[i]) / fmax(fabs(want[i]), sqrt(squares / (double)count)));
    }
    return most;
}

static void shards_agree_with_the_whole(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        const sharded *m = &models[i];
        const int64_t count = ROWS * (m->wide ? COLUMNS : 1);
        double *want[RIG_PORTS];
        float *y = malloc((size_t)count * sizeof *y), *again = malloc((size_t)count * sizeof *again);
        rig whole;
        assert_true(y && again);
        open_shard(&whole, m, NULL, 0, COLUMNS, (lf_plan_options){.fuse = true});
        rig_ports in = rig_inputs(&whole, dims, RIG_UNIFORM), one = rig_run(&whole, dims, &in, pools[0], NULL, ROWS);
        rig_eval(&whole, dims, &in, want);
        for (size_t k = 0; k < sizeof splits / sizeof splits[0]; k++, cases++) {
            run_sharded(m, &whole, splits[k], in.data[0], y, pools[0]);
            assert_true(farthest(y, want[0], count) <= 2 * farthest(one.data[0], want[0], count) + 2e-7);
            run_sharded(m, &whole, splits[k], in.data[0], again, pools[1]);
            assert_memory_equal(y, again, (size_t)count * sizeof *y); /* whatever the threads */
            if (k == 0 && !m->rounds_again)
                assert_memory_equal(y, one.data[0], (size_t)count * sizeof *y);
        }
        free(want[0]);
        free(y);
        free(again);
        rig_ports_free(&in);
        rig_ports_free(&one);
        rig_close(&whole);
    }
}

/* NaN and infinities of one shard reach all of them. */
static void what_is_not_finite_spreads(void **state)
{
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    rig whole;
    open_shard(&whole, &models[0], NULL, 0, COLUMNS, (lf_plan_options){.fuse = true});
    rig_ports in = rig_inputs(&whole, dims, RIG_UNIFORM);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++, cases++) {
        float y[ROWS];
        whole.param[lf_graph_find(&whole.graph, "c", 1)][900] = bad[i];
        lf_cpu_weights_free(whole.weights);
        rig_ok(&whole, rig_prepare(&whole, true, NULL, NULL, &whole.weights));
        rig_ports one = rig_run(&whole, dims, &in, pools[0], NULL, ROWS);
        run_sharded(&models[0], &whole, splits[1], in.data[0], y, pools[0]);
        for (int row = 0; row < ROWS; row++)
            assert_true(isnan(y[row]) == isnan(one.data[0][row]) && isinf(y[row]) == isinf(one.data[0][row]));
        rig_ports_free(&one);
    }
    rig_ports_free(&in);
    rig_close(&whole);
}

static void refusals_say_why(void **state)
{
    (void)state;
    static const struct { const char *text, *why; } refused[] = {
        {"y = gelu(x)\nreturn y\n", "no statistic of rows"},
        {"y = softmax(x, dim=1)\nz = softmax(y, dim=1)\nreturn z\n", "further statistics of rows follow"},
        {"m = mean(x, dim=0, keepdim=true)\na = sub(x, m)\ny = softmax(a, dim=1)\nreturn y\n",
         "a statistic over all rows"},
        {"n = group_norm(x, 4)\ny = logsumexp(x, dim=1, keepdim=true)\nz = sub(n, y)\nreturn z\n",
         "complete at the same time"},
        {"p = softmax(x, dim=1)\na = linear(p, w)\nreturn a\n", "no statistic of rows"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++, cases++) {
        lf_arena arena;
        lf_diag diag;
        lf_graph graph;
        lf_plan *plan;
        char text[512];
        snprintf(text, sizeof text, "input x f32[B, 64]\nparam w f32[64, 64]\n%s", refused[i].text);
        lf_arena_init(&arena);
        assert_int_equal(lf_graph_init(&graph, &arena, &diag), LF_OK);
        assert_int_equal(lf_text_read(&graph, "test", text, strlen(text)), LF_OK);
        const lf_plan_options cut = {.fuse = true, .cut = LF_CUT_STOP};
        assert_int_equal(lf_plan_build(&graph, cut, &arena, &plan), LF_ERR_UNSUPPORTED);
        if (!strstr(diag.text, refused[i].why))
            fail_msg("'%s' says: %s", refused[i].text, diag.text);
        lf_arena_free(&arena);
    }
}

static int open_pools(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++)
        if (lf_pool_new(i ? 3 : 1, &pools[i]) != LF_OK)
            return -1;
    return 0;
}

static int close_pools(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++)
        lf_pool_free(pools[i]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(shards_agree_with_the_whole, begin, some_ran),
        cmocka_unit_test_setup_teardown(what_is_not_finite_spreads, begin, some_ran),
        cmocka_unit_test_setup_teardown(refusals_say_why, begin, some_ran),
    };
    return cmocka_run_group_tests(tests, open_pools, close_pools);
}
