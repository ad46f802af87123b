/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that runs out at every place it can. A scenario is a piece of a program as a user would write it; it is run
 * again and again, and in the n-th run the n-th allocation of the library fails (once, or until the call that needed it
 * is over), until a run gets by without. Each time the call says so and why, leaves nothing behind, works when tried
 * again, and the scenario comes to the same end. */
#include "api_fixture.h"

#include <errno.h>
#include <glob.h>
#include <jansson.h>
#include <pthread.h>
#include <unistd.h>

/* ---- allocations ---- */

enum { TABLE = 1 << 16 };
#define GONE ((void *)1)

static struct {
    pthread_mutex_t lock;
    bool inside;      /* a call of the library is under way: what is allocated then counts */
    long made;        /* so far in this run */
    long fails_at;    /* the number of the one that fails; 0: none does */
    bool lasting;     /* and those after it, while the call is under way */
    bool failed;      /* it has */
    size_t held;      /* not yet freed */
    void *table[TABLE]; /* which these are: open addressing */
} mem = {.lock = PTHREAD_MUTEX_INITIALIZER};

static size_t slot_of(const void *p, bool free_one)
{
    size_t i = ((uintptr_t)p >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 48;
    for (; mem.table[i] && mem.table[i] != p; i = (i + 1) % TABLE)
        if (free_one && mem.table[i] == GONE)
            break;
    return i;
}

static bool may_allocate(void)
{
    pthread_mutex_lock(&mem.lock);
    bool counts = mem.inside, fails = counts && mem.failed && mem.lasting;
    if (counts && ++mem.made == mem.fails_at)
        mem.failed = fails = true;
    pthread_mutex_unlock(&mem.lock);
    return !fails;
}

static void *taken(void *p)
{
    pthread_mutex_lock(&mem.lock);
    if (p && mem.inside) {
        mem.table[slot_of(p, true)] = p;
        mem.held++;
    }
    pthread_mutex_unlock(&mem.lock);
    return p;
}

/* What was not counted when it was taken is not counted when it goes. */
static void given(void *p)
{
    pthread_mutex_lock(&mem.lock);
    size_t i = slot_of(p, false);
    if (p && mem.table[i] == p) {
        mem.table[i] = GONE;
        mem.held--;
    }
    pthread_mutex_unlock(&mem.lock);
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *p, size_t size);
int __real_posix_memalign(void **out, size_t alignment, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
char *__real_strdup(const char *text);
void __real_free(void *p);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *p, size_t size);
int __wrap_posix_memalign(void **out, size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
char *__wrap_strdup(const char *text);
void __wrap_free(void *p);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg);

void *__wrap_malloc(size_t size)
{
    return may_allocate() ? taken(__real_malloc(size)) : NULL;
}

void *__wrap_calloc(size_t count, size_t size)
{
    return may_allocate() ? taken(__real_calloc(count, size)) : NULL;
}

void *__wrap_realloc(void *p, size_t size)
{
    if (!may_allocate())
        return NULL;
    given(p);
    return taken(__real_realloc(p, size)); /* that the real one fails is not what is tested */
}

int __wrap_posix_memalign(void **out, size_t alignment, size_t size)
{
    if (!may_allocate())
        return ENOMEM;
    int error = __real_posix_memalign(out, alignment, size);
    if (error == 0)
        taken(*out);
    return error;
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return may_allocate() ? taken(__real_aligned_alloc(alignment, size)) : NULL;
}

char *__wrap_strdup(const char *text)
{
    return may_allocate() ? taken(__real_strdup(text)) : NULL;
}

void __wrap_free(void *p)
{
    given(p);
    __real_free(p);
}

static int threads_left = -1; /* -1: no end to them */

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg)
{
    if (threads_left == 0)
        return EAGAIN;
    threads_left -= threads_left > 0;
    return __real_pthread_create(thread, attr, start, arg);
}

/* ---- calls that may fail ---- */

static int survived; /* calls that did without the memory they did not get */

static void enter(void)
{
    mem.inside = true;
}

/* Whether memory ran out in the call. */
static bool leave(void)
{
    bool out = mem.failed;
    mem.inside = false;
    mem.failed = false;
    mem.fails_at = out ? 0 : mem.fails_at;
    return out;
}

/* Whether the call is to be made again. */
static bool again(lf_status status, const char *message, const char *call, int line)
{
    if (status == LF_OK) {
        survived++;
        return false;
    }
    if (status == LF_ERR_DATA && strstr(message, "not JSON")) /* jansson's word for a string it found no memory for */
        return true;
    if (status != LF_ERR_NOMEM || !strstr(message, "memory"))
        print_error("%s:%d: %s: %s (%s)\n", __FILE__, line, call, lf_status_name(status), message);
    assert_int_equal(status, LF_ERR_NOMEM);
    assert_non_null(strstr(message, "memory"));
    return true;
}

static const char *at = ""; /* what the call under way is of, for messages */

/* failing: what must hold where the call failed. */
#define TRY_WITH(failing, message, call)                                          \
    do {                                                                          \
        enter();                                                                  \
        lf_status s_ = (call);                                                    \
        if (leave() && again(s_, (message), #call, __LINE__)) {                   \
            assert_true(failing);                                                 \
            enter();                                                              \
            s_ = (call);                                                          \
            leave();                                                              \
        }                                                                         \
        expect(LF_OK, s_, (message), at, __LINE__);                               \
    } while (0)
#define TRY(message, call) TRY_WITH(true, message, call)

/* A call that makes something says that it failed in the pointer too. */
#define MAKE(pointer, message, call)                                              \
    do {                                                                          \
        (pointer) = (void *)&(pointer);                                           \
        TRY_WITH(!(pointer), message, call);                                      \
        assert_non_null(pointer);                                                 \
    } while (0)

/* Forgets whatever a test that failed has left. */
static void start(const char *name)
{
    at = name;
    mem.inside = mem.failed = false;
    mem.fails_at = 0;
    mem.held = 0;
    memset(mem.table, 0, sizeof mem.table);
}

/* Runs it until it gets by. most: how many calls may do without. */
static void exhaust(const char *name, void (*scenario)(void), long least, int most)
{
    start(name);
    scenario(); /* what should come out is kept from this one */
    assert_int_equal(mem.held, 0);
    for (int lasting = 0; lasting < 2; lasting++) {
        long n = 0;
        bool failed;
        survived = 0;
        mem.lasting = lasting != 0;
        do {
            memset(mem.table, 0, sizeof mem.table);
            mem.made = 0;
            mem.fails_at = n += lasting ? 3 : 1; /* with all of them, this takes the sanitizers too long */
            scenario();
            if (mem.held > 0)
                print_error("%s: %zu allocations were left when number %ld failed\n", name, mem.held, n);
            assert_int_equal(mem.held, 0);
            failed = mem.fails_at == 0;
        } while (failed);
        assert_true(n > least); /* or nothing was tested */
        assert_true(survived <= most);
        mem.fails_at = 0;
    }
}

/* Keeps a text from the first time on, and wants the same from then on. Takes text. */
static void same_text(char **kept, char *text)
{
    *kept = *kept ? *kept : __real_strdup(text);
    size_t same = 0;
    while (text[same] && text[same] == (*kept)[same])
        same++;
    if (text[same] != (*kept)[same])
        print_error("%s: other text from here on: %.100s\nwanted: %.100s\n", at, text + same, *kept + same);
    assert_true(text[same] == (*kept)[same]);
    lf_string_free(text);
}

static void same_floats(float **kept, const float *values, size_t count)
{
    if (!*kept) {
        *kept = malloc(count * sizeof *values);
        memcpy(*kept, values, count * sizeof *values);
    }
    assert_memory_equal(*kept, values, count * sizeof *values);
}

/* ---- scenarios ---- */

enum { K = 12, N = 10, ROWS = 70 };

/* Two products behind each other and one beside, a norm, what a rule folds, what a rule guards, numbers that become
 * nodes. */
static const char text[] =
    "input x f32[B, 12]\nparam w f32[10, 12]\nparam b f32[10]\nparam s f32[10]\nparam nw f32[10]\nparam nb f32[10]\n"
    "param u f32[8, 10]\na = linear(x, w, b)\nc = sub(a, s)\nd = mul(c, 0.5)\ne = layer_norm(d, [10], nw, nb)\n"
    "f = gelu(e)\ng = linear(f, u)\nh = softmax(g, dim=1)\nt = linear(x, w)\ni = mean(t, dim=1, keepdim=true)\n"
    "j = add(h, i)\nk = logsumexp(j, dim=1)\nreturn j, k\n";

static lf_context *begin(int threads)
{
    lf_context *context = NULL;
    enter();
    lf_status status = lf_context_new(&context);
    if (leave()) { /* no handle, so no message */
        assert_int_equal(status, LF_ERR_NOMEM);
        assert_null(context);
        enter();
        status = lf_context_new(&context);
        leave();
    }
    assert_int_equal(status, LF_OK);
    OK_CONTEXT(context, lf_context_set_threads(context, threads));
    return context;
}

static lf_model *read_text(lf_context *context)
{
    lf_model *model;
    MAKE(model, lf_context_message(context), lf_model_read(context, "m.lf", text, strlen(text), &model));
    return model;
}

static void reading(void)
{
    static char *kept;
    static float *values;
    lf_context *context = begin(1);
    lf_model *model = read_text(context);
    char *printed;
    MAKE(printed, lf_model_message(model), lf_model_print(model, &printed));
    same_text(&kept, printed);
    enter();
    bool independent = lf_model_rows_independent(model, NULL);
    assert_true(independent != leave()); /* without memory, the careful no */

    static float x[ROWS * K], param[N * K];
    static double j[ROWS * 8], k[ROWS];
    float result[ROWS];
    lf_draw_uniform(1, "x", -1, 1, ROWS * K, x);
    lf_draw_uniform(1, "p", -1, 1, N * K, param); /* one for all of them: the longest */
    const int64_t rows = ROWS, turned[] = {1, ROWS};
    int64_t extents[6][LF_MAX_RANK];
    lf_tensor params[6], input = *F32(x, ROWS, K);
    input.strides = turned; /* so that it is copied */
    for (size_t i = 0; i < 6; i++)
        params[i] = tensor_of(model, LF_PORT_PARAM, i, &rows, extents[i], param);
    TRY(lf_model_message(model), lf_model_eval(model, &input, params, (double *[]){j, k}));
    for (int i = 0; i < ROWS; i++)
        result[i] = (float)k[i];
    same_floats(&values, result, ROWS);
    lf_model_free(model);
    lf_context_free(context);
}

/* Enough of everything for everything that grows to grow. */
static void building(void)
{
    static char *kept;
    lf_context *context = begin(1);
    lf_model *m;
    lf_value x, w;
    char *printed, name[16];
    MAKE(m, lf_context_message(context), lf_model_new(context, &m));
    TRY(lf_model_message(m), lf_model_input(m, "x", LF_F32, 2, (lf_dim[]){{0, "B"}, {K, NULL}}, &x));
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "w%d", i);
        TRY(lf_model_message(m), lf_model_param(m, name, LF_F32, 2, (lf_dim[]){{K, NULL}, {K, NULL}}, &w));
        snprintf(name, sizeof name, "v%d", 4 * i + 3); /* names that were made up for numbers, which then give way */
        TRY(lf_model_message(m), lf_model_op(m, name, "linear", (lf_arg[]){VALUE(x), VALUE(w)}, 2, &x));
        snprintf(name, sizeof name, "v%d", 4 * i + 1);
        TRY(lf_model_message(m), lf_model_op(m, name, "mul", (lf_arg[]){VALUE(x), NUMBER(i + 0.5)}, 2, &x));
    }
    TRY(lf_model_message(m), lf_model_return(m, &x, 1));
    MAKE(printed, lf_model_message(m), lf_model_print(m, &printed));
    same_text(&kept, printed);
    lf_model_free(m);
    lf_context_free(context);
}

static void run_rows(lf_call *call, int64_t rows, float **kept_j, float **kept_k)
{
    static float x[ROWS * K], j[ROWS * 8], k[ROWS];
    lf_draw_uniform(2, "x", -1, 1, ROWS * K, x);
    x[3 * K + 1] = INFINITY; /* a row to be redone */
    TRY(lf_call_message(call), lf_call_set_input(call, 0, F32(x, rows, K)));
    TRY(lf_call_message(call), lf_call_set_output(call, 0, F32(j, rows, 8)));
    TRY(lf_call_message(call), lf_call_set_output(call, 1, F32(k, rows)));
    TRY(lf_call_message(call), lf_call_run(call, NULL));
    assert_int_equal(lf_call_rows_redone(call), 1);
    for (int i = 0; i < 8; i++)
        assert_false(isfinite(j[3 * 8 + i]));
    memset(j + 3 * 8, 0, 8 * sizeof *j); /* NaN has many faces */
    k[3] = 0;
    same_floats(kept_j, j, (size_t)rows * 8);
    same_floats(kept_k, k, (size_t)rows);
}

static lf_program *compile(lf_context *context, lf_model *model, const char *device)
{
    lf_options *options;
    lf_program *program;
    MAKE(options, lf_context_message(context), lf_options_new(context, &options));
    TRY(lf_options_message(options), lf_options_set(options, "device", device));
    TRY(lf_options_message(options), lf_options_set(options, "rules", "all"));
    TRY(lf_options_message(options), lf_options_set(options, "rules", "-dead_code,+dead_code"));
    TRY(lf_options_message(options), lf_options_set(options, "dim.B", "64"));
    MAKE(program, lf_model_message(model), lf_program_new(model, options, &program));
    lf_options_free(options);
    return program;
}

static void running(void)
{
    static float *kept[6], b[N] = {1, 2, 3};
    lf_context *context = begin(2);
    lf_model *model = read_text(context);
    lf_program *program = compile(context, model, "cpu");
    lf_model_free(model);
    lf_call *call;
    TRY(lf_program_message(program), lf_program_draw_params(program, 5));
    TRY(lf_program_message(program), give(program, "b", b));
    TRY(lf_program_message(program), lf_program_prepare(program));
    MAKE(call, lf_program_message(program), lf_call_new(program, &call));
    run_rows(call, 9, &kept[0], &kept[1]);
    run_rows(call, ROWS, &kept[2], &kept[3]); /* more of everything */
    TRY(lf_program_message(program), lf_program_draw_params(program, 6));
    TRY(lf_program_message(program), lf_program_prepare(program));
    run_rows(call, 9, &kept[4], &kept[5]);
    lf_call_free(call);
    lf_program_free(program);
    lf_context_free(context);
}

static void explaining(void)
{
    static char *kept_json, *kept_text;
    lf_context *context = begin(1);
    lf_model *model = read_text(context);
    lf_program *program = compile(context, model, "a100");
    char *json, *people;
    MAKE(json, lf_program_message(program), lf_program_explain(program, NULL, true, &json));
    same_text(&kept_json, json);
    MAKE(people, lf_program_message(program), lf_program_explain(program, NULL, false, &people));
    same_text(&kept_text, people);
    lf_program_free(program);
    lf_model_free(model);
    lf_context_free(context);
}

static void a_page_printed(void)
{
    static const char json[] =
        "{\"ops\": [{\"name\": \"a\", \"op\": \"relu\", \"flops\": 1, \"bytes\": 8, \"us\": 1, \"shape\": [1]}],"
        " \"kernels\": [{\"name\": \"relu\", \"covers\": [\"a\"], \"flops\": 1, \"bytes\": 8, \"us\": 1}],"
        " \"refused\": [{\"at\": \"a\", \"rule\": \"r\"}], \"fallbacks\": [{\"op\": \"sin\"}], \"plain\": {},"
        " \"fused\": {}, \"dims\": {}, \"peak\": {\"flops\": 1e9, \"product_flops\": 1e9, \"bytes\": 1e9}}";
    static char *kept;
    lf_context *context = begin(1);
    char *page;
    MAKE(page, lf_context_message(context), lf_page_print(context, "m", json, true, &page));
    same_text(&kept, page);
    lf_context_free(context);
}

/* Where what was measured of this machine cannot be read for want of memory, it is measured anew: that takes a while,
 * so it is tried at a few places only. */
static void explaining_this_machine(void **state)
{
    (void)state;
    start("this machine");
    lf_context *context = context_of(1);
    lf_model *model = model_of(context, text);
    lf_program *program = program_of(context, model, NULL);
    char *json;
    OK_CONTEXT(context, lf_device_peak(context, "cpu", NULL, NULL)); /* measured and remembered */
    mem.made = mem.fails_at = 0;
    enter();
    OK_CONTEXT(context, lf_device_peak(context, "cpu", NULL, NULL));
    leave();
    long finding = mem.made, tried = 0;
    assert_true(finding > 3);
    for (int lasting = 0; lasting < 2; lasting++) {
        bool failed = true;
        mem.lasting = lasting != 0;
        for (long n = lasting ? finding + 1 : 1; failed; n += n < finding ? finding / 2 : 1, tried++) {
            mem.made = 0;
            mem.fails_at = n;
            MAKE(json, lf_program_message(program), lf_program_explain(program, NULL, n % 2, &json));
            failed = mem.fails_at == 0;
            assert_true(strlen(json) > 100);
            lf_string_free(json);
        }
        mem.fails_at = 0;
    }
    assert_true(tried > 20);
    lf_program_free(program);
    lf_model_free(model);
    lf_context_free(context);
    assert_int_equal(mem.held, 0);
}

static void files(void)
{
    static const float values[6] = {1, 2, 3, 4, 5, 6};
    static const char small[] = "input x f32[B, 3]\nparam w f32[2, 3]\ny = linear(x, w)\nreturn y\n";
    lf_context *context = begin(1);
    lf_array *array;
    lf_model *model;
    lf_program *program;
    for (int i = 0; i < 2; i++) /* to a new file, and over one that is there */
        TRY(lf_context_message(context), lf_array_save(context, "a.npy", F32(values, 2, 3)));
    MAKE(array, lf_context_message(context), lf_array_open(context, "a.npy", &array));
    assert_memory_equal(lf_array_tensor(array).data, values, sizeof values);
    lf_array_free(array);
    MAKE(array, lf_context_message(context), lf_array_open(context, "odd.npy", &array)); /* not aligned, so copied */
    assert_memory_equal(lf_array_tensor(array).data, values, sizeof values);
    lf_array_free(array);
    MAKE(model, lf_context_message(context), lf_model_read(context, "m.lf", small, strlen(small), &model));
    MAKE(program, lf_model_message(model), lf_program_new(model, NULL, &program));
    TRY(lf_program_message(program), lf_program_load_params(program, "w.safetensors"));
    assert_memory_equal(lf_program_param(program, "w").data, values, sizeof values);
    lf_program_free(program);
    lf_model_free(model);
    lf_context_free(context);
}

/* ---- tests ---- */

static void model_read_and_printed(void **state)
{
    (void)state;
    exhaust("reading", reading, 20, 0);
}

static void model_built(void **state)
{
    (void)state;
    exhaust("building", building, 8, 0);
}

static void program_compiled_and_run(void **state)
{
    (void)state;
    exhaust("running", running, 60, 0);
}

static void program_explained(void **state)
{
    (void)state;
    exhaust("explaining", explaining, 100, 0);
    exhaust("a page", a_page_printed, 50, 0);
}

static void files_read_and_written(void **state)
{
    (void)state;
    exhaust("files", files, 20, 0);
}

/* Some threads start, one does not. */
static void threads_that_cannot_be_had(void **state)
{
    (void)state;
    start("threads");
    for (int some = 0; some < 3; some++) {
        lf_context *context = begin(4);
        lf_model *model = read_text(context);
        lf_program *program = (lf_program *)&model;
        double flops;
        threads_left = some;
        enter();
        assert_int_equal(lf_program_new(model, NULL, &program), LF_ERR_NOMEM);
        assert_null(program);
        assert_non_null(strstr(lf_model_message(model), "4 threads"));
        assert_int_equal(lf_device_peak(context, "h200", &flops, NULL), LF_ERR_NOMEM);
        assert_non_null(strstr(lf_context_message(context), "4 threads"));
        threads_left = -1;
        assert_int_equal(lf_program_new(model, NULL, &program), LF_OK);
        leave();
        lf_program_free(program);
        lf_model_free(model);
        lf_context_free(context);
        assert_int_equal(mem.held, 0);
    }
}

/* Two ranks, of which this process plays both: the other one has as many words, which follow. */
static int gather(void *user, const void *mine, size_t bytes, void *all)
{
    unsigned char *to = all;
    int64_t first;
    (void)user;
    memcpy(to, mine, bytes);
    memcpy(to + bytes, mine, bytes);
    memcpy(&first, to + sizeof first, sizeof first); /* as many as this rank has, from word 0 on */
    memcpy(to + bytes, &first, sizeof first);
    return 0;
}

static int sum(void *user, float *numbers, size_t count)
{
    (void)user, (void)numbers, (void)count;
    return 0;
}

/* A loss and its gradients, of all words and of half of them; x in bf16, whose gradient is summed in f32. */
static void losing(void)
{
    enum { TOKENS = 70, WORDS = 30, DEPTH = 9 };
    static float *kept[2];
    static uint16_t x[TOKENS * DEPTH], by_x[TOKENS * DEPTH];
    static float w[WORDS * DEPTH], by_w[WORDS * DEPTH];
    static int64_t target[TOKENS];
    const int64_t xe[] = {TOKENS, DEPTH}, we[] = {WORDS, DEPTH};
    lf_context *context = begin(2);
    lf_loss loss = {.x = {.data = x, .dtype = LF_BF16, .rank = 2, .extents = xe},
                    .weight = {.data = w, .rank = 2, .extents = we},
                    .target = target,
                    .options = LF_LOSS_OPTIONS};
    const lf_loss_gradient by = {.x = {.data = by_x, .dtype = LF_BF16, .rank = 2, .extents = xe},
                                 .weight = {.data = by_w, .rank = 2, .extents = we}};
    const lf_exchange exchange = {.ranks = 2, .gather = gather, .sum = sum};
    double value;
    lf_draw_uniform(2, "w", -1, 1, WORDS * DEPTH, w);
    for (int i = 0; i < TOKENS * DEPTH; i++)
        x[i] = (uint16_t)(0x3e80 + i % 37);
    TRY(lf_context_message(context), lf_loss_step(context, &loss, 1, &value, &by));
    same_floats(&kept[0], by_w, WORDS * DEPTH);
    TRY(lf_context_message(context), lf_context_set_exchange(context, &exchange));
    loss.options.words = 2 * WORDS;
    TRY(lf_context_message(context), lf_loss_step(context, &loss, 1, &value, &by));
    same_floats(&kept[1], by_w, WORDS * DEPTH);
    lf_context_free(context);
}

static void loss_computed(void **state)
{
    (void)state;
    exhaust("a loss", losing, 8, 0);
}

/* ---- a folder of our own ---- */

static char folder[] = "/tmp/linfuse_nomem_test_XXXXXX";

static int write_file(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    bool good = file && fwrite(bytes, 1, size, file) == size;
    return file && fclose(file) == 0 && good ? 0 : -1;
}

static int begin_all(void **state)
{
    (void)state;
    static const char head[] = "\x93NUMPY\1\0\x3c\0{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n";
    static const char header[] = "{\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}";
    const float values[6] = {1, 2, 3, 4, 5, 6};
    char bytes[256] = {(char)(sizeof header - 1)};
    json_set_alloc_funcs(malloc, free); /* jansson's allocations are the library's */
    if (!mkdtemp(folder) || chdir(folder) != 0 || setenv("XDG_CACHE_HOME", folder, 1) != 0)
        return -1;
    memcpy(bytes + 8, header, sizeof header - 1);
    memcpy(bytes + 8 + sizeof header - 1, values, sizeof values);
    if (write_file("w.safetensors", bytes, 8 + sizeof header - 1 + sizeof values) != 0)
        return -1;
    memcpy(bytes, head, sizeof head - 1);
    memcpy(bytes + sizeof head - 1, values, sizeof values);
    return write_file("odd.npy", bytes, sizeof head - 1 + sizeof values);
}

static int end_all(void **state)
{
    (void)state;
    glob_t found;
    if (glob("linfuse/*", 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++)
            remove(found.gl_pathv[i]);
        globfree(&found);
    }
    remove("a.npy");
    remove("odd.npy");
    remove("w.safetensors");
    rmdir("linfuse");
    return chdir("/") == 0 && rmdir(folder) == 0 ? 0 : -1; /* fails where something was left behind */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(model_read_and_printed),
        cmocka_unit_test(model_built),
        cmocka_unit_test(program_compiled_and_run),
        cmocka_unit_test(program_explained),
        cmocka_unit_test(explaining_this_machine),
        cmocka_unit_test(loss_computed),
        cmocka_unit_test(files_read_and_written),
        cmocka_unit_test(threads_that_cannot_be_had),
    };
    return cmocka_run_group_tests_name("nomem", tests, begin_all, end_all);
}
