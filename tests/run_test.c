/* SPDX-License-Identifier: Apache-2.0 */
/* Running through the public API: right numbers, the same bits however a row is run, no allocation after the first call
 * at a size, threads, forks, memory, and the account. What calls refuse is in api_test.c, guarded rows in
 * run_guard_test.c. */
#include "api_fixture.h"
#include "api_models.h"

#include <glob.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- counted allocations ---- */

static atomic_long allocations;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *p, size_t size);
int __real_posix_memalign(void **out, size_t alignment, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *p, size_t size);
int __wrap_posix_memalign(void **out, size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);

void *__wrap_malloc(size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __real_calloc(count, size);
}

void *__wrap_realloc(void *p, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __real_realloc(p, size);
}

int __wrap_posix_memalign(void **out, size_t alignment, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __real_posix_memalign(out, alignment, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __real_aligned_alloc(alignment, size);
}

/* ---- right numbers ---- */

enum { S = 3 };

/* Every model at every size, fused and as written, against its meaning; and the two against each other. */
static void results_are_right(void **state)
{
    (void)state;
    static const int64_t sizes[] = {0, 1, 2, 3, 7, 64, 65, 131};
    int cases = 0;
    for (int m = 0; m < SPREAD; m++) {
        rig fused = rig_begin(2, spread[m].text, NULL), plain = rig_begin(2, spread[m].text, "fuse=false");
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            tensors t = tensors_begin(fused.model, (int64_t[]){sizes[i], S}),
                    p = tensors_begin(plain.model, (int64_t[]){sizes[i], S});
            tensors_eval(&t, fused.model, fused.program);
            tensors_run(&t, fused.call);
            assert_close(&t, tolerance(spread[m].k), spread[m].name);
            tensors_run(&p, plain.call);
            for (size_t o = 0; o < p.outs; o++)
                memcpy(p.want[o], t.want[o], p.out_count[o] * sizeof(double));
            assert_close(&p, tolerance(spread[m].k), spread[m].name);
            for (size_t o = 0; o < p.outs; o++)
                for (size_t k = 0; k < p.out_count[o]; k++)
                    p.want[o][k] = t.out[o][k];
            assert_close(&p, 2 * tolerance(spread[m].k), spread[m].name);
            assert_int_equal(lf_call_rows_redone(fused.call), 0);
            tensors_end(&t);
            tensors_end(&p);
            cases++;
        }
        rig_end(&fused);
        rig_end(&plain);
    }
    assert_true(cases == SPREAD * 8);
}

/* The shape a call tells is the port's, and nothing beside the outputs is written: a guard stands behind each. */
static void shapes_are_told(void **state)
{
    (void)state;
    for (int m = 0; m < SPREAD; m++) {
        rig r = rig_begin(1, spread[m].text, NULL);
        tensors t = tensors_begin(r.model, (int64_t[]){5, S});
        tensors_bind(&t, r.call);
        for (size_t o = 0; o < t.outs; o++) {
            lf_tensor y;
            OK_CALL(r.call, lf_call_output(r.call, o, &y));
            assert_int_equal(y.dtype, lf_model_port_dtype(r.model, LF_PORT_OUTPUT, o));
            assert_int_equal(y.rank, lf_model_port_rank(r.model, LF_PORT_OUTPUT, o));
            assert_true(y.data == t.out[o] && !y.strides && y.memory == LF_HOST);
            assert_int_equal(lf_tensor_count(&y), t.out_count[o]);
            assert_int_equal(lf_tensor_bytes(&y), t.out_count[o] * sizeof(float));
            for (int axis = 0; axis < y.rank; axis++)
                assert_int_equal(y.extents[axis], lf_model_port_extent(r.model, LF_PORT_OUTPUT, o, axis, t.dims));
        }
        tensors_end(&t);
        rig_end(&r);
    }
}

/* Small integers: products and sums are exact, so must the result be. */
static void integers_are_exact(void **state)
{
    (void)state;
    rig r = rig_begin(2, LINEAR_45_70 "c = relu(a)\nd = sum(c, dim=1)\nreturn c, d\n", NULL);
    float w[70 * 45], b[70];
    for (int i = 0; i < 70 * 45; i++)
        w[i] = (float)(i * 7 % 9 - 4);
    for (int i = 0; i < 70; i++)
        b[i] = (float)(i % 5 - 2);
    OK_PROGRAM(r.program, give(r.program, "w", w));
    OK_PROGRAM(r.program, give(r.program, "b", b));
    OK_PROGRAM(r.program, lf_program_prepare(r.program));
    tensors t = tensors_begin(r.model, (int64_t[]){67});
    for (size_t i = 0; i < t.in_count[0]; i++)
        t.in[0][i] = (float)(i * 5 % 11) - 5.0f;
    tensors_run(&t, r.call);
    tensors_eval(&t, r.model, r.program);
    assert_close(&t, 0.0, "integers");
    tensors_end(&t);
    rig_end(&r);
}

/* ---- the same bits ---- */

static void a_hundred_runs_and_any_threads(void **state)
{
    (void)state;
    static const int threads[] = {1, 2, 3, 4, 7};
    for (int m = 0; m < SPREAD; m++) {
        rig r[5];
        tensors first = {0};
        for (int i = 0; i < 5; i++)
            r[i] = rig_begin(threads[i], spread[m].text, NULL);
        for (int size = 0; size < 3; size++) {
            static const int64_t sizes[] = {1, 67, 200};
            for (int i = 0; i < 5; i++) {
                for (int run = 0; run < (size == 1 ? 20 : 2); run++) { /* a hundred over the five of them */
                    tensors t = tensors_begin(r[i].model, (int64_t[]){sizes[size], S});
                    tensors_run(&t, r[i].call);
                    if (!first.model)
                        first = t;
                    else {
                        assert_same_bits(&first, &t, spread[m].name);
                        tensors_end(&t);
                    }
                }
            }
            tensors_end(&first);
            first = (tensors){0};
        }
        for (int i = 0; i < 5; i++)
            rig_end(&r[i]);
    }
}

/* Copies row `from` of every input that carries rows; the others are the same in both already. */
static void copy_row(tensors *to, size_t to_row, size_t to_rows, const tensors *from, size_t from_row, size_t from_rows,
                     const bool *has_rows)
{
    for (size_t i = 0; i < from->ins; i++) {
        size_t width = from->in_count[i] / from_rows;
        if (has_rows[i]) {
            assert_int_equal(to->in_count[i], width * to_rows);
            memcpy(to->in[i] + to_row * width, from->in[i] + from_row * width, width * sizeof(float));
        }
    }
}

static void assert_same_row(const tensors *a, size_t a_row, size_t a_rows, const tensors *b, size_t b_row,
                            size_t b_rows, const char *what)
{
    for (size_t o = 0; o < a->outs; o++) {
        size_t width = a->out_count[o] / a_rows;
        assert_int_equal(b->out_count[o], width * b_rows);
        if (memcmp(a->out[o] + a_row * width, b->out[o] + b_row * width, width * sizeof(float)) != 0) {
            print_error("%s: row %zu of %zu has other bits as row %zu of %zu\n", what, a_row, a_rows, b_row, b_rows);
            fail();
        }
    }
}

/* A row's bits depend on that row alone: run by itself, in batches of other sizes, in other places. */
static void rows_do_not_see_each_other(void **state)
{
    (void)state;
    enum { ROWS = 67 };
    int models = 0;
    uint32_t random = 1;
    for (int m = 0; m < SPREAD; m++) {
        rig r = rig_begin(3, spread[m].text, NULL);
        bool has_rows[MAX_PORTS];
        if (lf_model_dim_count(r.model) == 0 || !lf_model_rows_independent(r.model, has_rows)) {
            rig_end(&r);
            continue;
        }
        models++;
        tensors all = tensors_begin(r.model, (int64_t[]){ROWS, S});
        tensors_run(&all, r.call);
        static const size_t sizes[] = {1, 2, 5, 64};
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (size_t first = 0; first + sizes[i] <= ROWS; first += sizes[i]) {
                tensors some = tensors_begin(r.model, (int64_t[]){(int64_t)sizes[i], S});
                for (size_t row = 0; row < sizes[i]; row++)
                    copy_row(&some, row, sizes[i], &all, first + row, ROWS, has_rows);
                tensors_run(&some, r.call);
                for (size_t row = 0; row < sizes[i]; row++)
                    assert_same_row(&all, first + row, ROWS, &some, row, sizes[i], spread[m].name);
                tensors_end(&some);
            }
        for (int round = 0; round < 5; round++) {
            size_t place[ROWS];
            for (size_t row = 0; row < ROWS; row++) {
                size_t other = (random = random * 1664525u + 1013904223u) % (row + 1);
                place[row] = place[other];
                place[other] = row;
            }
            tensors mixed = tensors_begin(r.model, (int64_t[]){ROWS, S});
            for (size_t row = 0; row < ROWS; row++)
                copy_row(&mixed, place[row], ROWS, &all, row, ROWS, has_rows);
            tensors_run(&mixed, r.call);
            for (size_t row = 0; row < ROWS; row++)
                assert_same_row(&all, row, ROWS, &mixed, place[row], ROWS, spread[m].name);
            tensors_end(&mixed);
        }
        tensors_end(&all);
        rig_end(&r);
    }
    assert_true(models >= 8);
}

/* ---- parameters replaced ---- */

static void new_parameters_count_after_prepare(void **state)
{
    (void)state;
    rig r = rig_begin(1, LINEAR_45_70 "c = gelu(a)\nreturn c\n", NULL);
    tensors t = tensors_begin(r.model, (int64_t[]){9}), old = tensors_begin(r.model, (int64_t[]){9});
    tensors_run(&old, r.call);
    float b[70];
    lf_draw_uniform(99, "b", 0.0f, 1.0f, 70, b);
    OK_PROGRAM(r.program, give(r.program, "b", b));
    tensors_bind(&t, r.call);
    assert_int_equal(lf_call_run(r.call, NULL), LF_ERR_ARG);
    assert_non_null(strstr(lf_call_message(r.call), "prepared"));
    for (size_t i = 0; i < t.out_count[0]; i++)
        assert_true(t.out[0][i] == 12345.0f); /* nothing was written */
    OK_PROGRAM(r.program, lf_program_prepare(r.program));
    tensors_run(&t, r.call);
    tensors_eval(&t, r.model, r.program);
    assert_close(&t, tolerance(45), "replaced");
    assert_memory_not_equal(t.out[0], old.out[0], t.out_count[0] * sizeof(float));
    /* And back: the same bits again. */
    OK_PROGRAM(r.program, lf_program_draw_params(r.program, 11));
    OK_PROGRAM(r.program, lf_program_prepare(r.program));
    OK_PROGRAM(r.program, lf_program_prepare(r.program)); /* once more does no harm */
    tensors_run(&t, r.call);
    assert_same_bits(&t, &old, "back");
    tensors_end(&t);
    tensors_end(&old);
    rig_end(&r);
}

/* Several programs of one context and several calls of each, interleaved; options do not leak from one to the other. */
static void programs_and_calls_side_by_side(void **state)
{
    (void)state;
    enum { PROGRAMS = 3, CALLS = 3 };
    static const char *const words[PROGRAMS] = {NULL, "rules=none", "fuse=false"};
    lf_context *context = context_of(2);
    lf_model *model = model_of(context, spread[2].text);
    lf_program *program[PROGRAMS];
    lf_call *call[PROGRAMS][CALLS];
    tensors t[PROGRAMS][CALLS];
    for (int p = 0; p < PROGRAMS; p++) {
        program[p] = program_of(context, model, words[p]);
        OK_PROGRAM(program[p], lf_program_draw_params(program[p], (uint64_t)p));
        OK_PROGRAM(program[p], lf_program_prepare(program[p]));
        for (int c = 0; c < CALLS; c++) {
            OK_PROGRAM(program[p], lf_call_new(program[p], &call[p][c]));
            t[p][c] = tensors_begin(model, (int64_t[]){3 + 20 * c});
        }
    }
    for (int round = 0; round < 2; round++)
        for (int c = 0; c < CALLS; c++)
            for (int p = 0; p < PROGRAMS; p++)
                tensors_run(&t[p][c], call[p][c]);
    for (int p = 0; p < PROGRAMS; p++) {
        for (int c = 0; c < CALLS; c++) {
            tensors_eval(&t[p][c], model, program[p]);
            assert_close(&t[p][c], tolerance(37), words[p] ? words[p] : "all rules");
            tensors_end(&t[p][c]);
            lf_call_free(call[p][c]);
        }
        lf_program_free(program[p]);
    }
    lf_model_free(model);
    lf_context_free(context);
}

/* ---- several threads ---- */

typedef struct user {
    rig *r;
    int64_t rows;
    tensors first, again; /* what the rig's own call gave, what this thread's call gives */
    bool good;
} user;

/* Assertions jump, so they stay on the test's thread. */
static void *use_program(void *arg)
{
    user *u = arg;
    lf_call *call = NULL;
    u->good = lf_call_new(u->r->program, &call) == LF_OK;
    for (int run = 0; run < 30 && u->good; run++) {
        for (size_t i = 0; i < u->again.ins; i++) {
            int64_t extents[LF_MAX_RANK];
            const lf_tensor input =
                tensor_of(u->r->model, LF_PORT_INPUT, i, u->again.dims, extents, u->again.in[i]);
            u->good &= lf_call_set_input(call, i, &input) == LF_OK;
        }
        for (size_t o = 0; o < u->again.outs; o++) {
            lf_tensor output;
            u->good &= lf_call_output(call, o, &output) == LF_OK;
            output.data = u->again.out[o];
            u->good &= lf_call_set_output(call, o, &output) == LF_OK;
        }
        u->good &= lf_call_run(call, NULL) == LF_OK;
        for (size_t o = 0; o < u->again.outs && u->good; o++)
            u->good &= memcmp(u->first.out[o], u->again.out[o], u->again.out_count[o] * sizeof(float)) == 0;
    }
    lf_call_free(call);
    return NULL;
}

static void one_program_in_four_threads(void **state)
{
    (void)state;
    static const int64_t rows[] = {1, 33, 64, 150};
    static const int models[] = {0, 1, 2, 4, 5, 7};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        rig r = rig_begin(3, spread[models[m]].text, NULL);
        user users[4];
        pthread_t threads[4];
        for (int i = 0; i < 4; i++) {
            users[i] = (user){.r = &r, .rows = rows[i], .first = tensors_begin(r.model, (int64_t[]){rows[i], S}),
                              .again = tensors_begin(r.model, (int64_t[]){rows[i], S})};
            if (i % 2 && users[i].again.in_count[0] > 5) /* rows that a guard may have to redo */
                users[i].first.in[0][5] = users[i].again.in[0][5] = INFINITY;
            tensors_run(&users[i].first, r.call);
        }
        for (int i = 0; i < 4; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, use_program, &users[i]), 0);
        for (int i = 0; i < 4; i++)
            pthread_join(threads[i], NULL);
        for (int i = 0; i < 4; i++) {
            assert_true(users[i].good);
            tensors_end(&users[i].first);
            tensors_end(&users[i].again);
        }
        rig_end(&r);
    }
}

/* The child has none of the parent's threads, and must not wait for them. */
static void a_forked_child_runs(void **state)
{
    (void)state;
    rig r = rig_begin(4, spread[0].text, NULL);
    tensors t = tensors_begin(r.model, (int64_t[]){150}), again = tensors_begin(r.model, (int64_t[]){150});
    tensors_run(&t, r.call);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        lf_tensor output;
        bool good = lf_call_output(r.call, 0, &output) == LF_OK;
        output.data = again.out[0];
        good = good && lf_call_set_output(r.call, 0, &output) == LF_OK && lf_call_run(r.call, NULL) == LF_OK &&
                    memcmp(t.out[0], again.out[0], t.out_count[0] * sizeof(float)) == 0;
        rig_end(&r);
        _exit(good ? 0 : 1);
    }
    int status = -1;
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    tensors_run(&again, r.call); /* and the parent goes on */
    assert_same_bits(&t, &again, "after the fork");
    tensors_end(&t);
    tensors_end(&again);
    rig_end(&r);
}

/* ---- memory ---- */

static void no_allocation_after_the_first_call(void **state)
{
    (void)state;
    static const int64_t sizes[] = {65, 1, 130, 12};
    for (int m = 0; m < SPREAD; m++)
        for (int fuse = 0; fuse < 2; fuse++) {
            rig r = rig_begin(2, spread[m].text, fuse ? NULL : "fuse=false");
            tensors t[4];
            for (int i = 0; i < 4; i++) {
                t[i] = tensors_begin(r.model, (int64_t[]){sizes[i], S});
                tensors_run(&t[i], r.call);
            }
            for (int run = 0; run < 12; run++) {
                tensors *at = &t[run % 4];
                at->in[0][0] = run < 4 ? at->in[0][0] : NAN; /* a guarded row redone is no excuse */
                long before = atomic_load(&allocations);
                tensors_run(at, r.call);
                assert_int_equal(atomic_load(&allocations), before);
            }
            for (int i = 0; i < 4; i++)
                tensors_end(&t[i]);
            rig_end(&r);
        }
}

static void memory_is_told_and_bounded(void **state)
{
    (void)state;
    for (int m = 0; m < SPREAD; m++) {
        rig r = rig_begin(2, spread[m].text, NULL);
        size_t given = 0, params, prepared, other, once = 0;
        for (size_t i = 0; i < lf_model_port_count(r.model, LF_PORT_PARAM); i++)
            given += sizeof(float) * port_elements(r.model, LF_PORT_PARAM, i, (int64_t[]){1, 1});
        lf_program_memory(r.program, &params, &prepared, &other);
        assert_int_equal(params, given);
        assert_true(prepared <= 4 * given + (64 << 10)); /* two forms of each, panels filled up */
        assert_true(other > 0 && other < (2 << 20));
        assert_true(lf_call_memory(r.call) > 0);
        for (int round = 0; round < 2; round++) {
            for (int64_t rows = 1; rows <= 100; rows++) {
                tensors t = tensors_begin(r.model, (int64_t[]){rows, S});
                tensors_run(&t, r.call);
                tensors_end(&t);
            }
            once = round == 0 ? lf_call_memory(r.call) : once;
        }
        assert_int_equal(lf_call_memory(r.call), once);
        lf_call *fresh;
        OK_PROGRAM(r.program, lf_call_new(r.program, &fresh));
        size_t empty = lf_call_memory(fresh);
        tensors t = tensors_begin(r.model, (int64_t[]){100, S});
        tensors_run(&t, fresh);
        assert_true(lf_call_memory(fresh) > empty);
        assert_true(once <= 8 * lf_call_memory(fresh)); /* eight sizes are remembered */
        tensors_end(&t);
        lf_call_free(fresh);
        rig_end(&r);
    }
}

/* ---- the account ---- */

/* A reference model with its extents brought down. */
static char *small_reference(const char *name)
{
    static const struct { const char *from, *to; } extents[] = {{"8192", "96"}, {"1024", "64"}};
    char path[512];
    const char *source = getenv("LINFUSE_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/models/%s.lf", source ? source : ".", name);
    FILE *file = fopen(path, "r");
    if (!file)
        print_error("%s is not there\n", path);
    assert_non_null(file);
    char *text = calloc(1, 4096);
    size_t length = fread(text, 1, 4095, file);
    fclose(file);
    for (size_t i = 0; i < 2; i++)
        for (char *at = text; (at = strstr(at, extents[i].from)) != NULL;) {
            memmove(at + strlen(extents[i].to), at + 4, length + 1 - (size_t)(at + 4 - text));
            memcpy(at, extents[i].to, strlen(extents[i].to));
            length -= 4 - strlen(extents[i].to);
        }
    return text;
}

static double number_at(const json_t *root, const char *part, const char *field)
{
    const json_t *value = json_object_get(json_object_get(root, part), field);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static void accounts_of_the_reference_models(void **state)
{
    (void)state;
    static const char *const names[] = {"lse_chain", "mean_residual", "gelu_softmax"};
    static const char *const devices[] = {"cpu", "h200", "a100"};
    for (int m = 0; m < 3; m++) {
        char *text = small_reference(names[m]);
        for (int d = 0; d < 3; d++) {
            char words[64], *json = NULL, *people = NULL;
            lf_context *context = context_of(2);
            lf_model *model = model_of(context, text);
            snprintf(words, sizeof words, "device=%s dim.B=128", devices[d]);
            lf_program *program = program_of(context, model, words);
            OK_PROGRAM(program, lf_program_explain(program, NULL, true, &json));
            json_t *root = json_loads(json, JSON_REJECT_DUPLICATES, NULL);
            assert_non_null(root);
            assert_string_equal(json_string_value(json_object_get(root, "device")), devices[d]);
            assert_int_equal(json_integer_value(json_object_get(json_object_get(root, "dims"), "B")), 128);
            assert_true(number_at(root, "fused", "launches") == 1);
            assert_true(number_at(root, "fused", "intermediate_bytes") == 0);
            assert_true(number_at(root, "plain", "launches") > 1);
            assert_true(number_at(root, "fused", "us") > 0 && number_at(root, "plain", "us") > 0);
            assert_true(json_array_size(json_object_get(root, "ops")) >= 3);
            assert_int_equal(json_array_size(json_object_get(root, "kernels")), 1);
            json_decref(root);
            OK_PROGRAM(program, lf_program_explain(program, (int64_t[]){7}, false, &people));
            assert_true(strlen(people) > 100);
            lf_string_free(json);
            lf_string_free(people);
            lf_program_free(program);
            lf_model_free(model);
            lf_context_free(context);
        }
        free(text);
    }
}

/* Before parameters are prepared the account says what they are expected to take, then what they do. */
static void prepared_bytes_are_counted(void **state)
{
    (void)state;
    static const char *const names[] = {"lse_chain", "gelu_softmax"};
    for (int m = 0; m < 2; m++) {
        char *text = small_reference(names[m]);
        lf_context *context = context_of(2);
        lf_model *model = model_of(context, text);
        lf_program *program = program_of(context, model, "dim.B=128");
        lf_account *before, *after;
        size_t prepared;
        OK_PROGRAM(program, lf_program_account(program, NULL, &before));
        OK_PROGRAM(program, lf_program_draw_params(program, 1));
        OK_PROGRAM(program, lf_program_prepare(program));
        OK_PROGRAM(program, lf_program_account(program, NULL, &after));
        lf_program_memory(program, NULL, &prepared, NULL);
        const double expected = lf_account_number(before, "fused", "prepared_bytes", 0);
        assert_true(lf_account_number(after, "fused", "prepared_bytes", 0) == (double)prepared);
        assert_true(expected > 0 && fabs(expected - (double)prepared) <= 0.05 * (double)prepared + 8192);
        lf_account_free(before);
        lf_account_free(after);
        lf_program_free(program);
        lf_model_free(model);
        lf_context_free(context);
        free(text);
    }
    lf_account_free(NULL);
}

/* Weights in halves stay halves, cast, transposed or scaled afterwards: a call of one row reads half the bytes. */
static void halves_take_half(void **state)
{
    (void)state;
    static const char *const types[] = {"f32", "bf16"};
    double bytes[2], expected[2], moved[2];
    for (int t = 0; t < 2; t++) {
        char text[300];
        snprintf(text, sizeof text,
                 "input x %s[B, 1024]\nparam w %s[512, 1024]\nparam v f32[1024, 512]\nu = to(v, dtype=\"%s\")\n"
                 "a = linear(x, w)\nb = mul(a, 0.5)\nc = neg(b)\nd = matmul(x, u)\nreturn c, d\n",
                 types[t], types[t], types[t]);
        lf_context *context = context_of(1);
        lf_model *model = model_of(context, text);
        lf_program *program = program_of(context, model, "dim.B=1");
        lf_account *account;
        OK_PROGRAM(program, lf_program_account(program, NULL, &account));
        expected[t] = lf_account_number(account, "fused", "prepared_bytes", 0);
        moved[t] = lf_account_number(account, "fused", "bytes", 0);
        lf_account_free(account);
        OK_PROGRAM(program, lf_program_draw_params(program, 1));
        OK_PROGRAM(program, lf_program_prepare(program));
        OK_PROGRAM(program, lf_program_account(program, NULL, &account));
        bytes[t] = lf_account_number(account, "fused", "prepared_bytes", 0);
        lf_account_free(account);
        lf_program_free(program);
        lf_model_free(model);
        lf_context_free(context);
    }
    assert_true(fabs(bytes[0] - 2 * bytes[1]) < 16384 && bytes[0] > 8 * 512 * 1024);
    assert_true(expected[0] == 2 * expected[1] && moved[0] == 2 * moved[1]);
}

static void devices_are_measured(void **state)
{
    (void)state;
    lf_context *context = context_of(2);
    double flops = 0, bytes = 0;
    OK_CONTEXT(context, lf_device_peak(context, "cpu", &flops, &bytes));
    assert_true(flops > 1e8 && bytes > 1e7);
    OK_CONTEXT(context, lf_device_peak(context, "h200", &flops, NULL));
    assert_true(flops > 1e13);
    assert_int_equal(lf_device_peak(context, "abacus", NULL, NULL), LF_ERR_ARG);
    assert_non_null(strstr(lf_context_message(context), "abacus"));
    lf_context_free(context);
}

/* What a test measures on a busy machine is not to be remembered after it. */
static char cache[] = "/tmp/linfuse_run_test_XXXXXX";

static int own_cache(void **state)
{
    (void)state;
    return mkdtemp(cache) ? setenv("XDG_CACHE_HOME", cache, 1) : -1;
}

static int drop_cache(void **state)
{
    (void)state;
    char path[64];
    glob_t files;
    snprintf(path, sizeof path, "%s/linfuse/*", cache);
    if (glob(path, 0, NULL, &files) == 0) {
        for (size_t i = 0; i < files.gl_pathc; i++)
            remove(files.gl_pathv[i]);
        globfree(&files);
    }
    snprintf(path, sizeof path, "%s/linfuse", cache);
    return rmdir(path) == 0 && rmdir(cache) == 0 ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_are_right),
        cmocka_unit_test(shapes_are_told),
        cmocka_unit_test(integers_are_exact),
        cmocka_unit_test(a_hundred_runs_and_any_threads),
        cmocka_unit_test(rows_do_not_see_each_other),
        cmocka_unit_test(new_parameters_count_after_prepare),
        cmocka_unit_test(programs_and_calls_side_by_side),
        cmocka_unit_test(one_program_in_four_threads),
        cmocka_unit_test(a_forked_child_runs),
        cmocka_unit_test(no_allocation_after_the_first_call),
        cmocka_unit_test(memory_is_told_and_bounded),
        cmocka_unit_test(accounts_of_the_reference_models),
        cmocka_unit_test(prepared_bytes_are_counted),
        cmocka_unit_test(halves_take_half),
        cmocka_unit_test(devices_are_measured),
    };
    return cmocka_run_group_tests_name("run", tests, own_cache, drop_cache);
}
