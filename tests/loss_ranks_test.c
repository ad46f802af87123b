/* SPDX-License-Identifier: Apache-2.0 */
/* lf_loss_step with its words split over ranks, by an exchange: threads of one process as ranks, beside one that has
 * all words. Under MPI: tests/python/test_examples.py. */
#include "api_fixture.h"

#include <pthread.h>

#include "base/dtype.h"

enum { TOKENS = 205, WORDS = 97, DEPTH = 21, MOST = 4 };

/* Where the ranks meet. */
typedef struct meeting {
    pthread_barrier_t all_here;
    int ranks;
    const unsigned char *sent[MOST];
    float *summed[MOST];
    size_t gathered, sums; /* of rank 0: bytes, numbers */
    bool fails;
} meeting;

typedef struct member {
    meeting *at;
    int rank;
} member;

static int gather(void *user, const void *mine, size_t bytes, void *all)
{
    const member *m = user;
    meeting *at = m->at;
    at->sent[m->rank] = mine;
    if (m->rank == 0)
        at->gathered += bytes;
    pthread_barrier_wait(&at->all_here);
    for (int rank = 0; rank < at->ranks; rank++)
        memcpy((unsigned char *)all + (size_t)rank * bytes, at->sent[rank], bytes);
    pthread_barrier_wait(&at->all_here);
    return at->fails;
}

static int sum(void *user, float *numbers, size_t count)
{
    const member *m = user;
    meeting *at = m->at;
    at->summed[m->rank] = numbers;
    if (m->rank == 0)
        at->sums += count;
    pthread_barrier_wait(&at->all_here);
    float *total = malloc(count * sizeof *total);
    assert_non_null(total);
    for (size_t i = 0; i < count; i++) {
        total[i] = at->summed[0][i];
        for (int rank = 1; rank < at->ranks; rank++)
            total[i] += at->summed[rank][i];
    }
    pthread_barrier_wait(&at->all_here);
    memcpy(numbers, total, count * sizeof *total);
    free(total);
    return 0;
}

/* ---- what they compute ---- */

static float xf[TOKENS * DEPTH], wf[WORDS * DEPTH], bf[WORDS], class_weight[WORDS];
static uint16_t xh[TOKENS * DEPTH], wh[WORDS * DEPTH];
static int64_t target[TOKENS];

typedef struct case_of {
    lf_dtype type;
    int ranks;
    const int64_t *ends; /* of each rank's words */
    lf_loss_options options;
} case_of;

/* A rank, and what it gets. */
typedef struct one {
    const case_of *what;
    member who;
    int64_t first, words;
    bool exchange;
    lf_status status;
    char message[256];
    double value;
    float dx[TOKENS * DEPTH], dw[WORDS * DEPTH], db[WORDS]; /* the first as x's type has it */
} one;

static void *step(void *arg)
{
    one *o = arg;
    const int64_t x[] = {TOKENS, DEPTH}, w[] = {o->words, DEPTH};
    const lf_dtype type = o->what->type;
    const bool wide = type == LF_F32;
    lf_context *context = NULL;
    lf_loss loss = {
        .x = {.data = wide ? (void *)xf : xh, .dtype = type, .rank = 2, .extents = x},
        .weight = {.data = wide ? (void *)(wf + o->first * DEPTH) : wh + o->first * DEPTH, .dtype = type, .rank = 2,
                   .extents = w},
        .bias = {.data = bf + o->first, .rank = 1, .extents = w},
        .target = target,
        .options = o->what->options,
    };
    const lf_loss_gradient by = {.x = {.data = o->dx, .dtype = type, .rank = 2, .extents = x},
                                 .weight = {.data = o->dw, .rank = 2, .extents = w},
                                 .bias = {.data = o->db, .rank = 1, .extents = w}};
    loss.options.first_word = o->first;
    loss.options.words = WORDS;
    assert_int_equal(lf_context_new(&context), LF_OK);
    assert_int_equal(lf_context_set_threads(context, 1), LF_OK);
    const lf_exchange exchange = {.ranks = o->what->ranks, .gather = gather, .sum = sum, .user = &o->who};
    if (o->exchange)
        assert_int_equal(lf_context_set_exchange(context, &exchange), LF_OK);
    o->status = lf_loss_step(context, &loss, 0.5, &o->value, &by);
    snprintf(o->message, sizeof o->message, "%s", lf_context_message(context));
    lf_context_free(context);
    return NULL;
}

/* All ranks, side by side. found: what each has. */
static void run_ranks(const case_of *what, meeting *at, one *found)
{
    pthread_t thread[MOST];
    *at = (meeting){.ranks = what->ranks, .fails = at->fails};
    assert_int_equal(pthread_barrier_init(&at->all_here, NULL, (unsigned)what->ranks), 0);
    for (int rank = 0; rank < what->ranks; rank++) {
        const int64_t first = rank == 0 ? 0 : what->ends[rank - 1];
        found[rank] = (one){.what = what, .who = {at, rank}, .first = first, .words = what->ends[rank] - first,
                            .exchange = true};
        assert_int_equal(pthread_create(&thread[rank], NULL, step, &found[rank]), 0);
    }
    for (int rank = 0; rank < what->ranks; rank++)
        assert_int_equal(pthread_join(thread[rank], NULL), 0);
    pthread_barrier_destroy(&at->all_here);
}

static void draw(void)
{
    float u[TOKENS];
    lf_draw_uniform(3, "x", -1, 1, TOKENS * DEPTH, xf);
    lf_draw_uniform(3, "w", -1, 1, WORDS * DEPTH, wf);
    lf_draw_uniform(3, "b", -1, 1, WORDS, bf);
    lf_draw_uniform(3, "c", 0.1f, 1, WORDS, class_weight);
    lf_draw_uniform(3, "t", 0, 1, TOKENS, u);
    lf_retype(LF_F32, xf, LF_BF16, xh, TOKENS * DEPTH);
    lf_retype(LF_F32, wf, LF_BF16, wh, WORDS * DEPTH);
    for (int i = 0; i < TOKENS; i++)
        target[i] = i % 5 == 0 ? -100 : (int64_t)(u[i] * WORDS);
}

static double distance(const float *got, const float *want, int64_t count)
{
    double error = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        error += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        size += (double)want[i] * (double)want[i];
    }
    return sqrt(error) - 3e-6 * sqrt(size);
}

static const int64_t *const splits[] = {NULL, (const int64_t[]){97}, (const int64_t[]){60, 97},
                                        (const int64_t[]){1, 50, 97}, (const int64_t[]){13, 14, 80, 97}};
static const lf_loss_options variants[] = {
    {.ignore_index = -100},
    {.ignore_index = -100, .reduction = LF_SUM, .label_smoothing = 0.2},
    {.ignore_index = -100, .class_weight = class_weight, .label_smoothing = 0.1, .z_loss = 0.01, .softcap = 4,
     .temperature = 0.7},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

/* Values and gradients are those of one that has all words: to the bit for one rank, and then nothing is sent. */
static void ranks_are_one(void **state)
{
    static one found[MOST], whole;
    (void)state;
    draw();
    for (int ranks = 1; ranks <= MOST; ranks++)
        for (int v = 0; v < VARIANTS; v++) {
            const case_of what = {LF_F32, ranks, splits[ranks], variants[v]};
            meeting at = {0};
            whole = (one){.what = &what, .words = WORDS};
            step(&whole);
            assert_int_equal(whole.status, LF_OK);
            run_ranks(&what, &at, found);
            const size_t row = variants[v].label_smoothing > 0 ? 16 : 12, counts = TOKENS - TOKENS / 5;
            assert_int_equal(at.gathered, ranks == 1 ? 0 : 16 + (counts * row + 7) / 8 * 8);
            assert_int_equal(at.sums, ranks == 1 ? 0 : TOKENS * DEPTH);
            for (int rank = 0; rank < ranks; rank++) {
                const one *o = &found[rank];
                const size_t words = (size_t)o->words;
                assert_int_equal(o->status, LF_OK);
                assert_memory_equal(&o->value, &found[0].value, sizeof o->value);
                assert_memory_equal(o->dx, found[0].dx, sizeof o->dx);
                assert_true(fabs(o->value - whole.value) <= 1e-6 * fabs(whole.value));
                assert_true(distance(o->dx, whole.dx, TOKENS * DEPTH) <= 0);
                assert_true(distance(o->dw, whole.dw + o->first * DEPTH, o->words * DEPTH) <= 0);
                assert_true(distance(o->db, whole.db + o->first, o->words) <= 0);
                if (ranks == 1) {
                    assert_memory_equal(&o->value, &whole.value, sizeof o->value);
                    assert_memory_equal(o->dx, whole.dx, sizeof o->dx);
                    assert_memory_equal(o->dw, whole.dw, words * DEPTH * sizeof *o->dw);
                    assert_memory_equal(o->db, whole.db, words * sizeof *o->db);
                }
            }
        }
}

/* In bf16 x's gradient is summed in f32 and rounded once. */
static void half_precision(void **state)
{
    static one found[MOST], whole;
    static float got[TOKENS * DEPTH], want[TOKENS * DEPTH];
    const case_of what = {LF_BF16, 3, splits[3], variants[0]};
    meeting at = {0};
    (void)state;
    draw();
    whole = (one){.what = &what, .words = WORDS};
    step(&whole);
    run_ranks(&what, &at, found);
    lf_to_f32(LF_BF16, whole.dx, 1, want, TOKENS * DEPTH);
    for (int rank = 0; rank < 3; rank++) {
        assert_int_equal(found[rank].status, LF_OK);
        assert_memory_equal(found[rank].dx, found[0].dx, sizeof found[0].dx);
        assert_true(fabs(found[rank].value - whole.value) <= 1e-6 * fabs(whole.value));
        lf_to_f32(LF_BF16, found[rank].dx, 1, got, TOKENS * DEPTH);
        for (int i = 0; i < TOKENS * DEPTH; i++) /* the last digit at most: where rounding is nearly a tie */
            assert_true(fabsf(got[i] - want[i]) <= 0x1p-7f * fabsf(want[i]));
    }
}

/* Ranks whose words are nobody's target; and targets that are all left out. */
static void ranks_without_targets(void **state)
{
    static one found[MOST], whole;
    const case_of what = {LF_F32, 4, splits[4], variants[0]};
    meeting at = {0};
    (void)state;
    draw();
    for (int i = 0; i < TOKENS; i++)
        target[i] = target[i] < 0 ? target[i] : WORDS - 1;
    whole = (one){.what = &what, .words = WORDS};
    step(&whole);
    run_ranks(&what, &at, found);
    for (int rank = 0; rank < 4; rank++) {
        assert_int_equal(found[rank].status, LF_OK);
        assert_true(fabs(found[rank].value - whole.value) <= 1e-6 * fabs(whole.value));
        assert_true(distance(found[rank].dx, whole.dx, TOKENS * DEPTH) <= 0);
    }
    for (int i = 0; i < TOKENS; i++)
        target[i] = -100;
    run_ranks(&what, &at, found);
    for (int rank = 0; rank < 4; rank++) {
        assert_int_equal(found[rank].status, LF_OK);
        assert_true(isnan(found[rank].value) && found[rank].dx[0] == 0 && found[rank].dw[0] == 0);
    }
    assert_int_equal(at.gathered, 16);
}

/* What all ranks can see is an error of all; nobody waits. */
static void mistakes_are_everyones(void **state)
{
    static one found[MOST];
    const int64_t gap[] = {30, 60, 96};
    const case_of short_of_one = {LF_F32, 3, gap, variants[0]}, fine = {LF_F32, 3, splits[3], variants[0]};
    meeting at = {0}, failing = {.fails = true};
    lf_context *context = NULL;
    (void)state;
    draw();
    run_ranks(&short_of_one, &at, found);
    for (int rank = 0; rank < 3; rank++) {
        assert_int_equal(found[rank].status, LF_ERR_DATA);
        assert_string_equal(found[rank].message, "3 ranks have 96 of 97 words");
    }
    run_ranks(&fine, &failing, found);
    for (int rank = 0; rank < 3; rank++) {
        assert_int_equal(found[rank].status, LF_ERR_IO);
        assert_non_null(strstr(found[rank].message, "the exchange between ranks failed: gather of"));
    }
    target[7] = WORDS;
    run_ranks(&fine, &at, found);
    for (int rank = 0; rank < 3; rank++)
        assert_int_equal(found[rank].status, LF_ERR_DATA);
    assert_int_equal(lf_context_new(&context), LF_OK);
    lf_exchange exchange = {.ranks = 0, .gather = gather, .sum = sum};
    REFUSES(LF_ERR_ARG, "exchange: between 0 ranks", lf_context_set_exchange(context, &exchange),
            lf_context_message(context));
    exchange = (lf_exchange){.ranks = 2, .gather = gather};
    REFUSES(LF_ERR_ARG, "sum", lf_context_set_exchange(context, &exchange), lf_context_message(context));
    assert_int_equal(lf_context_set_exchange(context, NULL), LF_OK);
    assert_int_equal(lf_context_set_exchange(NULL, &exchange), LF_ERR_ARG);
    lf_context_free(context);
}

/* In order of rank, and each word once. */
static void words_follow_one_another(void **state)
{
    static one found[2];
    meeting at = {.ranks = 2};
    const case_of what = {LF_F32, 2, splits[2], variants[0]};
    pthread_t thread;
    (void)state;
    draw();
    assert_int_equal(pthread_barrier_init(&at.all_here, NULL, 2), 0);
    for (int rank = 0; rank < 2; rank++) /* both have the words from 30 on */
        found[rank] = (one){.what = &what, .who = {&at, rank}, .first = 30, .words = 40, .exchange = true};
    assert_int_equal(pthread_create(&thread, NULL, step, &found[1]), 0);
    step(&found[0]);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_barrier_destroy(&at.all_here);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(found[rank].status, LF_ERR_DATA);
        assert_non_null(strstr(found[rank].message, "rank 0 has words from 30 on, but those before it end at 0"));
    }
}

/* What is exchanged is counted. */
static void workspace_counts_the_exchange(void **state)
{
    const int64_t x[] = {TOKENS, DEPTH}, w[] = {40, DEPTH};
    member who = {0};
    const lf_exchange exchange = {.ranks = 4, .gather = gather, .sum = sum, .user = &who};
    lf_context *context = NULL;
    (void)state;
    draw();
    lf_loss loss = {.x = {.data = xh, .dtype = LF_BF16, .rank = 2, .extents = x},
                    .weight = {.data = wh, .dtype = LF_BF16, .rank = 2, .extents = w},
                    .target = target,
                    .options = {.ignore_index = -100, .words = WORDS}};
    static uint16_t to[TOKENS * DEPTH];
    const lf_loss_gradient by = {.x = {.data = to, .dtype = LF_BF16, .rank = 2, .extents = x}};
    assert_int_equal(lf_context_new(&context), LF_OK);
    const size_t alone = lf_loss_workspace(context, &loss, &by);
    assert_int_equal(lf_context_set_exchange(context, &exchange), LF_OK);
    const size_t counts = TOKENS - TOKENS / 5;
    assert_int_equal(lf_loss_workspace(context, &loss, &by) - alone,
                     5 * (16 + counts * 12) + TOKENS * DEPTH * sizeof(float));
    lf_context_free(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_are_one),
        cmocka_unit_test(half_precision),
        cmocka_unit_test(ranks_without_targets),
        cmocka_unit_test(mistakes_are_everyones),
        cmocka_unit_test(words_follow_one_another),
        cmocka_unit_test(workspace_counts_the_exchange),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
