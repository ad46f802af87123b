/* SPDX-License-Identifier: Apache-2.0 */
/* Threads through the public API: the caller's own loop in place of ours, far more threads than cores, threads at rest,
 * many threads that fail at once, and a thousand programs that leave nothing behind. */
#include "api_fixture.h"
#include "api_models.h"
#include "openmp_fixture.h"
#include "sanitized.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { S = 3 };

/* ---- loops of the caller's own ---- */

typedef void body_fn(void *arg, int64_t index, int slot);

enum { SLOTS = 3 };

static atomic_long loops, indices;

static void count_loop(int64_t count)
{
    atomic_fetch_add(&loops, 1);
    atomic_fetch_add(&indices, count);
}

/* user: that the right one arrives. */
static void serial_loop(void *user, int64_t count, body_fn *fn, void *arg)
{
    assert_ptr_equal(user, &loops);
    count_loop(count);
    for (int64_t i = 0; i < count; i++)
        fn(arg, i, 0);
}

/* From the end, and in every slot. */
static void reversed_loop(void *user, int64_t count, body_fn *fn, void *arg)
{
    assert_ptr_equal(user, &loops);
    count_loop(count);
    for (int64_t i = count - 1; i >= 0; i--)
        fn(arg, i, (int)(i % SLOTS));
}

typedef struct team {
    body_fn *fn;
    void *arg;
    int64_t count;
    atomic_int_least64_t next;
} team;

typedef struct member {
    team *team;
    int slot;
    pthread_t thread;
} member;

static void *member_main(void *arg)
{
    const member *m = arg;
    for (int64_t i; (i = atomic_fetch_add(&m->team->next, 1)) < m->team->count;)
        m->team->fn(m->team->arg, i, m->slot);
    return NULL;
}

/* New threads each time; the caller is none of them. */
static void team_loop(void *user, int64_t count, body_fn *fn, void *arg)
{
    assert_ptr_equal(user, &loops);
    count_loop(count);
    team t = {.fn = fn, .arg = arg, .count = count};
    member members[SLOTS];
    for (int i = 0; i < SLOTS; i++) {
        members[i] = (member){.team = &t, .slot = SLOTS - 1 - i};
        assert_int_equal(pthread_create(&members[i].thread, NULL, member_main, &members[i]), 0);
    }
    for (int i = 0; i < SLOTS; i++)
        pthread_join(members[i].thread, NULL);
}

static const struct {
    const char *name;
    lf_parallel_for loop;
} own_loops[] = {{"serial", serial_loop}, {"reversed", reversed_loop}, {"team", team_loop}};

/* One model on some context, which is given up: its outputs at a batch. */
static tensors outputs_of(lf_context *context, const char *text, int64_t batch)
{
    lf_model *model = model_of(context, text);
    lf_program *program = program_of(context, model, NULL);
    lf_call *call;
    OK_PROGRAM(program, lf_program_draw_params(program, 11));
    for (size_t i = 0; i < lf_model_port_count(model, LF_PORT_PARAM); i++) { /* and copied, as a caller's would be */
        const char *name = lf_model_port_name(model, LF_PORT_PARAM, i);
        size_t count = port_elements(model, LF_PORT_PARAM, i, (int64_t[]){1, 1});
        float *copy = malloc(count * sizeof *copy);
        assert_non_null(copy);
        memcpy(copy, lf_program_param(program, name).data, count * sizeof *copy);
        OK_PROGRAM(program, give(program, name, copy));
        free(copy);
    }
    OK_PROGRAM(program, lf_program_prepare(program));
    OK_PROGRAM(program, lf_call_new(program, &call));
    tensors t = tensors_begin(model, (int64_t[]){batch, S});
    tensors_run(&t, call);
    lf_call_free(call);
    lf_program_free(program);
    lf_model_free(model);
    lf_context_free(context);
    return t;
}

/* Enough of everything to be worth several threads; and a sum over a weight's rows. */
static const spread_model wide[] = {
    {"wide softmax",
     "input x f32[B, 600]\nparam w f32[900, 600]\nparam b f32[900]\na = linear(x, w, b)\nc = gelu(a)\n"
     "d = softmax(c, dim=1)\nreturn d\n",
     600},
    {"wide mean",
     "input x f32[B, 1100]\nparam w f32[800, 1100]\nparam b f32[800]\na = linear(x, w, b)\n"
     "c = mean(a, dim=1, keepdim=true)\nd = gelu(c)\nreturn d\n",
     1100},
};
enum { WIDE = sizeof wide / sizeof *wide };

static void same_on_any_loop(const spread_model *m, int64_t batch)
{
    tensors want = outputs_of(context_of(1), m->text, batch);
    for (size_t i = 0; i < sizeof own_loops / sizeof *own_loops; i++) {
        lf_context *context = context_of(SLOTS);
        OK_CONTEXT(context, lf_context_set_parallel_for(context, own_loops[i].loop, &loops));
        tensors got = outputs_of(context, m->text, batch);
        assert_same_bits(&got, &want, m->name);
        tensors_end(&got);
    }
    tensors_end(&want);
}

static void a_loop_of_ones_own(void **state)
{
    (void)state;
    for (int m = 0; m < SPREAD; m++)
        same_on_any_loop(&spread[m], 131);
    for (int m = 0; m < WIDE; m++) {
        atomic_store(&loops, 0);
        atomic_store(&indices, 0);
        same_on_any_loop(&wide[m], 200);
        assert_true(atomic_load(&loops) > 0 && atomic_load(&indices) > atomic_load(&loops));
    }
}

static int count_entries(const char *path)
{
    DIR *folder = opendir(path);
    int count = 0;
    assert_non_null(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static const char files_of[] = "/proc/self/fd", tasks_of[] = "/proc/self/task";
static int tasks_at_first; /* one, and a sanitizer's own */

static void *do_nothing(void *arg)
{
    return arg;
}

/* After the first thread, with which a sanitizer starts its own. */
static int count_tasks(void **state)
{
    (void)state;
    pthread_t thread;
    if (pthread_create(&thread, NULL, do_nothing, NULL) != 0 || pthread_join(thread, NULL) != 0)
        return -1;
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* until it is off the list */
    tasks_at_first = count_entries(tasks_of);
    return 0;
}

/* A thread that was joined is on the list for a moment longer. */
static bool come_down_to(const char *path, int count)
{
    for (int i = 0; i < 1000 && count_entries(path) > count; i++)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    return count_entries(path) <= count;
}

/* Preparation and runs both use it, and no thread is started beside it. */
static void a_loop_does_all_the_work(void **state)
{
    (void)state;
    lf_context *context = context_of(SLOTS);
    OK_CONTEXT(context, lf_context_set_parallel_for(context, serial_loop, &loops));
    lf_model *model = model_of(context, wide[0].text);
    lf_program *program = program_of(context, model, NULL);
    lf_call *call;
    OK_PROGRAM(program, lf_program_draw_params(program, 11));
    atomic_store(&loops, 0);
    OK_PROGRAM(program, lf_program_prepare(program));
    assert_true(atomic_load(&loops) > 0);
    OK_PROGRAM(program, lf_call_new(program, &call));
    tensors t = tensors_begin(model, (int64_t[]){200});
    atomic_store(&loops, 0);
    tensors_run(&t, call);
    assert_true(atomic_load(&loops) > 0);
    assert_true(come_down_to(tasks_of, tasks_at_first));
    tensors_end(&t);
    lf_call_free(call);
    lf_program_free(program);

    assert_int_equal(lf_context_set_parallel_for(context, NULL, NULL), LF_ERR_ARG);
    assert_non_null(strstr(lf_context_message(context), "before the first program"));
    assert_int_equal(lf_context_set_parallel_for(NULL, serial_loop, NULL), LF_ERR_ARG);
    lf_model_free(model);
    lf_context_free(context);
}

/* A loop that was given and taken back is not called. */
static void a_loop_taken_back(void **state)
{
    (void)state;
    lf_context *context = context_of(2);
    OK_CONTEXT(context, lf_context_set_parallel_for(context, serial_loop, &loops));
    OK_CONTEXT(context, lf_context_set_parallel_for(context, NULL, NULL));
    atomic_store(&loops, 0);
    tensors t = outputs_of(context, wide[0].text, 200);
    assert_int_equal(atomic_load(&loops), 0);
    tensors_end(&t);
}

/* What a loop of the caller's makes of this machine is not remembered for others. */
static void a_loop_measures_for_itself(void **state)
{
    (void)state;
    char folder[] = "/tmp/linfuse_threads_test_XXXXXX";
    double flops = 0;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(setenv("XDG_CACHE_HOME", folder, 1), 0);
    lf_context *context = context_of(SLOTS);
    OK_CONTEXT(context, lf_context_set_parallel_for(context, serial_loop, &loops));
    OK_CONTEXT(context, lf_device_peak(context, "cpu", &flops, NULL));
    assert_true(flops > 0);
    lf_context_free(context);
    assert_int_equal(rmdir(folder), 0); /* nothing in it */
}

/* ---- a team of OpenMP's ---- */

/* The same bits as one thread's, and no thread of ours: in a team of as many as the context has, and later in one of
 * fewer and of more. */
static void on_a_team(void **state)
{
    (void)state;
    static const int threads[] = {2, 16, 64};
    for (int m = 0; m < WIDE; m++) {
        tensors want = outputs_of(context_of(1), wide[m].text, 200);
        for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
            lf_context *context = context_of(threads[i]);
            team_size = threads[i];
            OK_CONTEXT(context, lf_context_use_openmp(context));
            team_size += (int)i - 1;
            atomic_store(&teams, 0);
            tensors got = outputs_of(context, wide[m].text, 200);
            assert_true(atomic_load(&teams) > 0);
            assert_true(come_down_to(tasks_of, tasks_at_first));
            assert_same_bits(&got, &want, wide[m].name);
            tensors_end(&got);
        }
        tensors_end(&want);
    }
}

static void refuses_a_team(lf_context *context, lf_status status, const char *why)
{
    assert_int_equal(lf_context_use_openmp(context), status);
    assert_non_null(strstr(lf_context_message(context), why));
}

/* Whose threads are not the context's; where there is a program already, or a fork lies behind; and one taken back. */
static void a_team_refused(void **state)
{
    (void)state;
    lf_context *context = context_of(3);
    team_size = 2;
    refuses_a_team(context, LF_ERR_UNSUPPORTED, "it has 2 threads here, the context has 3");
    team_size = 3;
    pid_t child = fork();
    if (child == 0) {
        const bool good = lf_context_use_openmp(context) == LF_ERR_UNSUPPORTED &&
                          strstr(lf_context_message(context), "stayed behind") != NULL;
        _exit(good ? 0 : 1);
    }
    int exit_status = -1;
    assert_int_equal(waitpid(child, &exit_status, 0), child);
    assert_int_equal(exit_status, 0);

    OK_CONTEXT(context, lf_context_use_openmp(context));
    OK_CONTEXT(context, lf_context_set_parallel_for(context, NULL, NULL));
    atomic_store(&teams, 0);
    lf_model *model = model_of(context, wide[0].text);
    lf_program *program = program_of(context, model, NULL);
    OK_PROGRAM(program, lf_program_draw_params(program, 11));
    OK_PROGRAM(program, lf_program_prepare(program));
    assert_int_equal(atomic_load(&teams), 0);
    refuses_a_team(context, LF_ERR_ARG, "before the first program");
    assert_int_equal(lf_context_use_openmp(NULL), LF_ERR_ARG);
    lf_program_free(program);
    lf_model_free(model);
    lf_context_free(context);
}

/* ---- threads of ours ---- */

/* From two threads to far more than there are cores, at any batch: the same bits, and an end. */
static void many_threads_on_few_cores(void **state)
{
    (void)state;
    static const int threads[] = {2, 7, 64};
    static const int64_t batches[] = {1, 5, 131, 1031}; /* the last: large blocks, then small ones */
    for (int m = 0; m < SPREAD + WIDE; m++) {
        const spread_model *model = m < WIDE ? &wide[m] : &spread[m - WIDE];
        for (size_t b = 0; b < sizeof batches / sizeof *batches; b++) {
            if (SANITIZED && ((size_t)m + b) % 3 != 0)
                continue;
            tensors want = outputs_of(context_of(1), model->text, batches[b]);
            for (int t = 0; t < 3; t++) {
                tensors got = outputs_of(context_of(threads[t]), model->text, batches[b]);
                assert_same_bits(&got, &want, model->name);
                tensors_end(&got);
            }
            tensors_end(&want);
        }
    }
}

static double cpu_seconds(void)
{
    struct timespec t;
    assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t), 0);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Workers that waited by spinning would take one second of processor time for each of theirs; a few times five percent
 * are a busy machine's. */
static void threads_at_rest_cost_nothing(void **state)
{
    (void)state;
    enum { WORKERS = 8, TRIES = 20 };
    rig r = rig_begin(WORKERS, wide[0].text, NULL);
    tensors t = tensors_begin(r.model, (int64_t[]){200});
    bool rested = false;
    for (int i = 0; i < TRIES && !rested; i++) {
        tensors_run(&t, r.call);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL); /* for the last of them to lie down */
        const double before = cpu_seconds();
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
        rested = cpu_seconds() - before < 0.01;
    }
    assert_true(rested);
    tensors_end(&t);
    rig_end(&r);
}

/* ---- many at once ---- */

typedef struct asker {
    lf_program *cannot; /* compiled for a device that is not here */
    lf_program *can;
    bool good;
} asker;

static void *ask_for_calls(void *arg)
{
    asker *a = arg;
    a->good = true;
    for (int i = 0; i < 200; i++) {
        lf_call *call = (lf_call *)a;
        a->good &= lf_call_new(a->cannot, &call) == LF_ERR_DEVICE && !call;
        a->good &= strstr(lf_program_message(a->cannot), "h200") != NULL;
        a->good &= lf_call_new(a->can, NULL) == LF_ERR_ARG;
        a->good &= strstr(lf_program_message(a->can), "`out`") != NULL;
        a->good &= lf_call_new(a->can, &call) == LF_OK;
        lf_call_free(call);
    }
    return NULL;
}

static void calls_refused_to_many_at_once(void **state)
{
    (void)state;
    enum { ASKERS = 4 };
    rig r = rig_begin(1, spread[0].text, NULL);
    lf_program *cannot = program_of(r.context, r.model, "device=h200");
    asker askers[ASKERS];
    pthread_t threads[ASKERS];
    for (int i = 0; i < ASKERS; i++) {
        askers[i] = (asker){.cannot = cannot, .can = r.program};
        assert_int_equal(pthread_create(&threads[i], NULL, ask_for_calls, &askers[i]), 0);
    }
    for (int i = 0; i < ASKERS; i++) {
        pthread_join(threads[i], NULL);
        assert_true(askers[i].good);
    }
    /* And what is said later is about what failed later. */
    assert_int_equal(give(r.program, "nobody", (const float *)&r), LF_ERR_ARG);
    assert_non_null(strstr(lf_program_message(r.program), "nobody"));
    lf_program_free(cannot);
    rig_end(&r);
}

/* ---- a thousand programs ---- */

static long resident_pages(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    long all = 0, resident = 0;
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%ld %ld", &all, &resident), 2);
    fclose(file);
    return resident;
}

/* Each with its own context of two threads. */
static void make_and_free_programs(int count)
{
    for (int i = 0; i < count; i++) {
        rig r = rig_begin(2, spread[i % SPREAD].text, NULL);
        tensors t = tensors_begin(r.model, (int64_t[]){17, S});
        tensors_run(&t, r.call);
        tensors_end(&t);
        rig_end(&r);
    }
}

static void a_thousand_programs_leave_nothing(void **state)
{
    (void)state;
    const int programs = SANITIZED ? 60 : 1000;
    make_and_free_programs(programs / 5);
    const int files = count_entries(files_of);
    const long before = resident_pages();
    make_and_free_programs(programs);
    assert_int_equal(count_entries(files_of), files);
    assert_true(come_down_to(tasks_of, tasks_at_first));
    if (!SANITIZED) /* which keep what was freed, to see who still uses it; and say themselves what leaks */
        assert_true((resident_pages() - before) * sysconf(_SC_PAGESIZE) < 1 << 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_loop_of_ones_own),
        cmocka_unit_test(a_loop_does_all_the_work),
        cmocka_unit_test(a_loop_taken_back),
        cmocka_unit_test(a_loop_measures_for_itself),
        cmocka_unit_test(on_a_team),
        cmocka_unit_test(a_team_refused),
        cmocka_unit_test(many_threads_on_few_cores),
        cmocka_unit_test(threads_at_rest_cost_nothing),
        cmocka_unit_test(calls_refused_to_many_at_once),
        cmocka_unit_test(a_thousand_programs_leave_nothing),
    };
    return cmocka_run_group_tests_name("threads", tests, count_tasks, NULL);
}
