/* SPDX-License-Identifier: Apache-2.0 */
/* Calls on a GPU (make test-gpu): the same bits over runs, streams, batches and threads, whatever stood in outputs and
 * workspace; graphs; too little memory; parameters from the GPU's memory. */
#include "gpu_fixture.h"

#include <pthread.h>

/* Something of everything that is fused in a way of its own: rows kept, segments, one number a row, columns, guards,
 * two products, a narrow one, no product. */
static const struct { const char *name, *text; double k;
} model[] = {
    {"softmax",
     "input x f32[B, 500]\nparam w f32[700, 500]\nparam b f32[700]\na = linear(x, w, b)\nc = gelu(a)\n"
     "d = softmax(c, dim=1)\nreturn d\n",
     500},
    {"norms",
     "input x f32[B, 300]\nparam w f32[512, 300]\na = linear(x, w)\nc = group_norm(a, 8)\nd = layer_norm(c, [512])\n"
     "e = max(d, dim=1)\nreturn d, e\n",
     300},
    {"logsumexp",
     "input x f32[B, 256]\nparam w f32[1030, 256]\nparam b f32[1030]\na = linear(x, w, b)\n"
     "c = logsumexp(a, dim=1, keepdim=true)\nd = gelu(c)\nreturn d\n",
     256},
    {"columns",
     "input x f32[B, 128]\nparam w f32[200, 128]\nparam m f32[200]\nparam v f32[200]\na = linear(x, w)\n"
     "c = batch_norm(a, m, v, training=true)\nd = relu(c)\nreturn d\n",
     128},
    {"guarded",
     "input x f32[B, 512]\nparam w f32[400, 512]\na = linear(x, w)\nc = mean(a, dim=1, keepdim=true)\nd = gelu(c)\n"
     "e = add(d, x)\nreturn e\n",
     512},
    {"two",
     "input x f32[B, 96]\nparam v f32[256, 96]\nparam w f32[10, 256]\na = linear(x, v)\nc = gelu(a)\nd = linear(c, w)\n"
     "e = log_softmax(d, dim=1)\nreturn e\n",
     256},
    {"pooled",
     "input x f32[B, 64]\nparam w f32[192, 64]\na = linear(x, w)\nc = unsqueeze(a, 1)\nd = avg_pool1d(c, 4)\n"
     "e = squeeze(d, 1)\nf = sum(e, dim=1)\nreturn e, f\n",
     64},
    {"bare",
     "input x f32[B, 333]\na = softmax(x, dim=1)\nc = layer_norm(x, [333])\nd = sum(x, dim=0)\nreturn a, c, d\n", 8},
};
enum { MODELS = sizeof model / sizeof *model, COLUMNS = 3, BARE = 7 };

static rig begin(int which, int precision)
{
    char words[96];
    return rig_begin(1, model[which].text, words_of(precision, "", words, sizeof words));
}

/* Kernels for few rows and for many. */
static bool compile_one(long number)
{
    static const int64_t rows[] = {2, 17, 70, 300};
    rig r = begin((int)(number / precision_count()), (int)(number % precision_count()));
    for (int i = 0; i < 4; i++) {
        size_t bytes;
        OK_CALL(r.call, lf_call_workspace(r.call, &rows[i], &bytes));
    }
    rig_end(&r);
    return true;
}

/* And are then found on disk by what follows. */
static void all_of_it_compiles(void **state)
{
    (void)state;
    deal(MODELS * precision_count(), compile_one);
}

/* What a number of a tail may be off by, where the product's operands have so many digits. */
static double most(int which, int precision)
{
    const lf_precision_info *p = &lf_precision_table[precision];
    return tolerance(model[which].k) + (p->split ? 0 : 16 * ldexp(1, -p->significand));
}

static void a_hundred_runs_have_the_same_bits(void **state)
{
    (void)state;
    gpu g = gpu_begin();
    void *const stream[] = {NULL, gpu_stream(&g), gpu_stream(&g)};
    for (int m = 0; m < MODELS; m++)
        for (int p = 0; p < precision_count(); p++) {
            rig r = begin(m, p);
            const int64_t rows = 300;
            tensors first = tensors_begin(r.model, &rows), next = tensors_begin(r.model, &rows);
            on_gpu d = on_gpu_begin(&g, &first, r.call);
            for (int i = 0; i < 100; i++) {
                void *s = stream[i % 3];
                on_gpu_poison(&d, &first, s);
                OK_CALL(r.call, on_gpu_launch(&d, &first, r.call, s, i % 2 == 0));
                on_gpu_fetch(&d, i ? &next : &first, s);
                if (i)
                    assert_same_bits(&first, &next, model[m].name);
            }
            tensors_eval(&first, r.model, r.program);
            assert_close(&first, most(m, p), model[m].name);
            on_gpu_end(&d);
            tensors_end(&first);
            tensors_end(&next);
            rig_end(&r);
        }
    for (int i = 1; i < 3; i++)
        g.driver->stream_free(stream[i]);
    gpu_end(&g);
}

/* A row's bits do not depend on how many rows there are beside it. */
static void a_rows_bits_are_its_own(void **state)
{
    (void)state;
    static const int64_t batch[] = {1, 2, 3, 16, 17, 64, 65, 127, 128, 129, 256, 300};
    const int64_t all = 300;
    for (int m = 0; m < BARE; m++)
        for (int p = 0; p < precision_count() && m != COLUMNS; p++) {
            rig r = begin(m, p);
            tensors whole = tensors_begin(r.model, &all);
            tensors_run(&whole, r.call);
            for (size_t k = 0; k < sizeof batch / sizeof *batch; k++) {
                tensors some = tensors_begin(r.model, &batch[k]);
                const int64_t from = all - batch[k];
                const size_t width = some.in_count[0] / (size_t)batch[k];
                memcpy(some.in[0], whole.in[0] + (size_t)from * width, some.in_count[0] * sizeof(float));
                tensors_run(&some, r.call);
                for (size_t o = 0; o < some.outs; o++) {
                    const size_t each = some.out_count[o] / (size_t)batch[k];
                    if (memcmp(some.out[o], whole.out[o] + (size_t)from * each, some.out_count[o] * sizeof(float)) !=
                        0) {
                        print_error("%s, %s: %lld rows have other bits than the same rows of %lld\n", model[m].name,
                                    lf_precision_table[p].name, (long long)batch[k], (long long)all);
                        fail();
                    }
                }
                tensors_end(&some);
            }
            tensors_end(&whole);
            rig_end(&r);
        }
}

/* ---- graphs ---- */

static void replay(const gpu *g, const on_gpu *d, tensors *t, void *runnable, void *stream)
{
    on_gpu_poison(d, t, stream);
    CUDA(g->graph_launch(runnable, stream));
    on_gpu_fetch(d, t, stream);
}

/* The first run at its size included, with workspace lent and with the call's own; larger runs in between do the graph
 * no harm. */
static void runs_can_be_captured(void **state)
{
    (void)state;
    gpu g = gpu_begin();
    void *stream = gpu_stream(&g);
    for (int m = 0; m < MODELS; m++)
        for (int way = 0; way < 4; way++) {
            const bool lend = way % 2, before = way / 2;
            const int64_t rows = 200, more = 3000;
            rig r = begin(m, 0);
            lf_call *other = NULL;
            OK_PROGRAM(r.program, lf_call_new(r.program, &other));
            tensors t = tensors_begin(r.model, &rows), want = tensors_begin(r.model, &rows),
                    large = tensors_begin(r.model, &more);
            tensors_run(&want, other);
            on_gpu d = on_gpu_begin(&g, &t, r.call), wide = on_gpu_begin(&g, &large, r.call);
            if (before) {
                OK_CALL(r.call, on_gpu_launch(&d, &t, r.call, stream, lend));
                CUDA(g.driver->stream_wait(stream));
            }
            void *graph = NULL, *runnable = NULL;
            CUDA(g.capture_begin(stream, 0)); /* the strictest mode */
            OK_CALL(r.call, on_gpu_launch(&d, &t, r.call, stream, lend));
            CUDA(g.capture_end(stream, &graph));
            CUDA(g.graph_ready(&runnable, graph, 0));
            for (int i = 0; i < 3; i++) {
                replay(&g, &d, &t, runnable, stream);
                assert_same_bits(&t, &want, model[m].name);
            }
            OK_CALL(r.call, on_gpu_launch(&wide, &large, r.call, stream, false));
            for (size_t i = 0; i < t.in_count[0]; i++) /* other values in the same place */
                t.in[0][i] = want.in[0][i] = -want.in[0][i] * 0.5f;
            CUDA(g.driver->to_device(d.in[0], t.in[0], t.in_count[0] * sizeof(float), stream));
            tensors_run(&want, other);
            replay(&g, &d, &t, runnable, stream);
            assert_same_bits(&t, &want, model[m].name);
            g.runnable_free(runnable);
            g.graph_free(graph);
            on_gpu_end(&d);
            on_gpu_end(&wide);
            tensors_end(&t);
            tensors_end(&want);
            tensors_end(&large);
            lf_call_free(other);
            rig_end(&r);
        }
    g.driver->stream_free(stream);
    gpu_end(&g);
}

/* Rows that are done again, by graph: flags are set, used and set back within each launch of it. */
static void graphs_redo_rows(void **state)
{
    (void)state;
    gpu g = gpu_begin();
    void *stream = gpu_stream(&g), *graph = NULL, *runnable = NULL;
    const int64_t rows = 200;
    rig r = begin(4, 0);
    tensors t = tensors_begin(r.model, &rows), want = tensors_begin(r.model, &rows);
    on_gpu d = on_gpu_begin(&g, &t, r.call);
    CUDA(g.capture_begin(stream, 0));
    OK_CALL(r.call, on_gpu_launch(&d, &t, r.call, stream, true));
    CUDA(g.capture_end(stream, &graph));
    CUDA(g.graph_ready(&runnable, graph, 0));
    for (int bad = 0; bad < 6; bad++) {
        for (int i = 0; i < bad % 4; i++)
            t.in[0][(37 * i + 5) * 512 + i] = want.in[0][(37 * i + 5) * 512 + i] = INFINITY;
        CUDA(g.driver->to_device(d.in[0], t.in[0], t.in_count[0] * sizeof(float), stream));
        tensors_eval(&want, r.model, r.program);
        replay(&g, &d, &t, runnable, stream);
        memcpy(want.out[0], t.out[0], t.out_count[0] * sizeof(float));
        assert_close(&want, tolerance(512), "rows done again by a graph");
        assert_int_equal(lf_call_rows_redone(r.call), bad < 4 ? bad : 3);
    }
    g.runnable_free(runnable);
    g.graph_free(graph);
    on_gpu_end(&d);
    tensors_end(&t);
    tensors_end(&want);
    g.driver->stream_free(stream);
    rig_end(&r);
    gpu_end(&g);
}

/* ---- threads ---- */

enum { THREADS = 8, TURNS = 30, SIZES = 4 };
static const int64_t sizes[SIZES] = {2, 70, 128, 300};

typedef struct worker {
    const gpu *g;
    lf_model *model;
    lf_program *program;
    const tensors *want; /* one per size */
    int number;
    bool good;
} worker;

static void *work(void *arg)
{
    worker *w = arg;
    const gpu *g = w->g;
    lf_call *call = NULL;
    void *stream = NULL, *popped;
    bool good = g->driver->context_push(g->context) == 0 && lf_call_new(w->program, &call) == LF_OK &&
                g->driver->stream_new(&stream, 1) == 0;
    for (int i = 0; i < TURNS && good; i++) {
        const tensors *want = &w->want[(i + w->number) % SIZES];
        tensors t = tensors_begin(w->model, want->dims);
        on_gpu d = on_gpu_begin(g, &t, call);
        on_gpu_poison(&d, &t, stream);
        good = on_gpu_launch(&d, &t, call, stream, i % 2 == 0) == LF_OK;
        on_gpu_fetch(&d, &t, stream);
        for (size_t o = 0; o < t.outs && good; o++)
            good = memcmp(t.out[o], want->out[o], t.out_count[o] * sizeof(float)) == 0;
        on_gpu_end(&d);
        tensors_end(&t);
    }
    if (stream)
        g->driver->stream_free(stream);
    lf_call_free(call);
    g->driver->context_pop(&popped);
    w->good = good;
    return NULL;
}

static void threads_run_one_program_at_once(void **state)
{
    (void)state;
    gpu g = gpu_begin();
    for (int m = 0; m < MODELS; m++) {
        rig r = begin(m, m % precision_count());
        tensors want[SIZES];
        for (int i = 0; i < SIZES; i++) {
            want[i] = tensors_begin(r.model, &sizes[i]);
            tensors_run(&want[i], r.call);
        }
        worker w[THREADS];
        pthread_t thread[THREADS];
        for (int i = 0; i < THREADS; i++) {
            w[i] = (worker){.g = &g, .model = r.model, .program = r.program, .want = want, .number = i};
            assert_int_equal(pthread_create(&thread[i], NULL, work, &w[i]), 0);
        }
        for (int i = 0; i < THREADS; i++)
            pthread_join(thread[i], NULL);
        for (int i = 0; i < THREADS; i++) {
            if (!w[i].good)
                print_error("%s: thread %d got other bits, or none\n", model[m].name, i);
            assert_true(w[i].good);
        }
        for (int i = 0; i < SIZES; i++)
            tensors_end(&want[i]);
        rig_end(&r);
    }
    gpu_end(&g);
}

/* ---- memory ---- */

static void too_little_memory_is_told(void **state)
{
    (void)state;
    gpu g = gpu_begin();
    const int64_t rows = 100, many = 400000000; /* 800 GB of x alone, 400 of its lines in bf16 */
    const float *in[] = {(const float *)(uintptr_t)4096};
    float *out[] = {(float *)(uintptr_t)((size_t)1 << 46)};
    for (int p = 0; p < precision_count(); p++) {
        rig r = begin(0, p);
        tensors before = tensors_begin(r.model, &rows), after = tensors_begin(r.model, &rows);
        tensors_run(&before, r.call);
        for (int device = 0; device < 2; device++) { /* copies of host memory; workspace */
            size_t bytes = 0;
            lf_status status = device ? run_on(r.call, &many, in, out, NULL, NULL, 0)
                                      : run_at(r.call, &many, in, out, 0);
            OK_CALL(r.call, lf_call_workspace(r.call, &many, &bytes));
            if (device && bytes >> 38 == 0) /* little enough to be had: then there is nothing to see */
                continue;
            expect(LF_ERR_NOMEM, status, lf_call_message(r.call), __FILE__, __LINE__);
            const char *number = strpbrk(strstr(lf_call_message(r.call), "for "), "0123456789");
            assert_non_null(number);
            assert_true(strtoull(number, NULL, 10) >= (size_t)1 << 38);
            assert_non_null(strstr(number, "bytes"));
            lf_call *next = NULL;
            OK_PROGRAM(r.program, lf_call_new(r.program, &next));
            tensors_run(&after, next);
            assert_same_bits(&before, &after, "the next call");
            lf_call_free(next);
            if (!device)
                tensors_run(&after, r.call);
            assert_same_bits(&before, &after, "the same call");
        }
        tensors_end(&before);
        tensors_end(&after);
        rig_end(&r);
    }
    gpu_end(&g);
}

static void lent_workspace_must_be_enough(void **state)
{
    (void)state;
    gpu g = gpu_begin();
    const int64_t rows = 100;
    rig r = begin(0, 0);
    tensors t = tensors_begin(r.model, &rows), want = tensors_begin(r.model, &rows);
    on_gpu d = on_gpu_begin(&g, &t, r.call);
    tensors_run(&want, r.call);
    char bytes[64];
    snprintf(bytes, sizeof bytes, "%zu bytes", d.workspace_bytes);
    if (d.workspace_bytes > 0) {
        d.workspace_bytes -= 1;
        assert_int_equal(on_gpu_launch(&d, &t, r.call, NULL, true), LF_ERR_ARG);
        assert_non_null(strstr(lf_call_message(r.call), bytes));
        d.workspace_bytes += 1;
    }
    on_gpu_poison(&d, &t, NULL);
    OK_CALL(r.call, on_gpu_launch(&d, &t, r.call, NULL, true));
    on_gpu_fetch(&d, &t, NULL);
    assert_same_bits(&t, &want, "lent workspace");
    on_gpu_end(&d);
    tensors_end(&t);
    tensors_end(&want);
    rig_end(&r);
    gpu_end(&g);
}

static void parameters_are_taken_from_the_device(void **state)
{
    (void)state;
    gpu g = gpu_begin();
    const int64_t rows = 60;
    rig r = begin(0, 0);
    tensors drawn = tensors_begin(r.model, &rows), given = tensors_begin(r.model, &rows);
    tensors_run(&drawn, r.call);
    static const struct { const char *name; size_t count; } param[] = {{"w", 700 * 500}, {"b", 700}};
    size_t held[3];
    for (int way = 0; way < 3; way++) { /* copied, borrowed, borrowed where it cannot be */
        lf_program *second = program_of(r.context, r.model, "device=cuda");
        lf_cuda_ptr at[2];
        for (int i = 0; i < 2; i++) {
            at[i] = gpu_memory(&g, (param[i].count + 1) * sizeof(float));
            const lf_cuda_ptr data = at[i] + (way == 2) * sizeof(float);
            CUDA(g.driver->to_device(data, lf_program_param(r.program, param[i].name).data,
                                     param[i].count * sizeof(float), NULL));
            OK_PROGRAM(second, give_there(second, param[i].name, (uintptr_t)data, way ? LF_BORROW : LF_COPY));
            if (!way)
                CUDA(g.driver->set_bytes(at[i], 0xff, param[i].count * sizeof(float), NULL)); /* ours again */
        }
        lf_call *call = NULL;
        OK_PROGRAM(second, lf_program_prepare(second));
        OK_PROGRAM(second, lf_call_new(second, &call));
        for (int again = 0; again < 2; again++) {
            tensors_run(&given, call);
            assert_same_bits(&drawn, &given, "parameters from the device");
            /* a row that is done again, from the weights as they were given */
            given.in[0][7] = drawn.in[0][7] = INFINITY;
            tensors_run(&drawn, r.call);
        }
        given.in[0][7] = drawn.in[0][7] = 0.5f;
        tensors_run(&drawn, r.call);
        lf_program_memory(second, NULL, &held[way], NULL);
        lf_call_free(call);
        lf_program_free(second);
        for (int i = 0; i < 2; i++)
            CUDA(g.driver->free(at[i])); /* still there: it was not ours to free */
    }
    assert_true(held[1] + 700 * 500 * sizeof(float) <= held[0]);
    assert_int_equal(held[2], held[0]);
    tensors_end(&drawn);
    tensors_end(&given);
    rig_end(&r);
    gpu_end(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_of_it_compiles), /* before anything else here uses the GPU */
        cmocka_unit_test(a_hundred_runs_have_the_same_bits), cmocka_unit_test(a_rows_bits_are_its_own),
        cmocka_unit_test(runs_can_be_captured),              cmocka_unit_test(graphs_redo_rows),
        cmocka_unit_test(threads_run_one_program_at_once),   cmocka_unit_test(too_little_memory_is_told),
        cmocka_unit_test(lent_workspace_must_be_enough),     cmocka_unit_test(parameters_are_taken_from_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
