/* SPDX-License-Identifier: Apache-2.0 */
/* Rewriting when memory runs out, at each allocation in turn: LF_ERR_NOMEM, and nothing is left behind (the leak
 * checker of the sanitized builds looks). */
#include "rewrite_support.h"

static long allocations_left = -1; /* -1: no limit */
static long allocations_made;

static bool allowed(void)
{
    allocations_made++;
    if (allocations_left == 0)
        return false;
    allocations_left -= allocations_left > 0;
    return true;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);

void *__wrap_malloc(size_t size)
{
    return allowed() ? __real_malloc(size) : NULL;
}

void *__wrap_calloc(size_t count, size_t size)
{
    return allowed() ? __real_calloc(count, size) : NULL;
}

void *__wrap_realloc(void *old, size_t size)
{
    return allowed() ? __real_realloc(old, size) : NULL;
}

/* One rewrite with at most so many allocations. */
static lf_status attempt(const model *before, const char *rules, long limit)
{
    lf_rewrite_options options = {.rules = rules, .dims = test_dims};
    lf_node home[64];
    lf_notes notes;
    model after;
    assert_in_range(before->g.count, 1, 64);
    lf_arena_init(&after.arena);
    assert_int_equal(lf_graph_init(&after.g, &after.arena, &after.diag), LF_OK);
    allocations_left = limit;
    lf_status status = lf_rewrite(&before->g, &options, &after.g, home, &notes);
    allocations_left = -1;
    if (status == LF_ERR_NOMEM)
        assert_non_null(strstr(after.diag.text, "out of memory"));
    lf_arena_free(&after.arena);
    return status;
}

static void memory_runs_out(void **state)
{
    (void)state;
    static const char *const models[] = {
        "input x f32[B, 6]; param w f32[6, 6]; param b f32[6]; param s f32[6]; a = linear(x, w, b); c = sub(a, s); "
        "d = mean(c, dim=1, keepdim=true); e = logsumexp(d, dim=1, keepdim=true); f = gelu(e); g = add(f, x); return g",
        "input x f32[B, 4]; param w f32[6, 4]; a = linear(x, w); c = sub(a, 2); d = reshape(c, [-1, 2, 3]); "
        "e = sum(d, dim=1); f = add(e, 0); g = softmax(f, 1); h = log(g); i = max(h, dim=1); k = relu(x); return i, x",
        "input x f32[B, 4]; param w f32[6, 4]; param v f32[2, 6]; a = linear(x, w); b = linear(a, v); c = max(b, 1, "
        "true); "
        "d = sub(c, c); e = gelu(d); f = mul(a, 2); return e, f",
    };
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        model before;
        model_read(&before, models[i]);
        long limit = 0, failed = 0;
        while (attempt(&before, NULL, limit) != LF_OK) {
            failed++;
            limit++;
        }
        assert_true(failed > 10);
        assert_int_equal(attempt(&before, "nonsense", -1), LF_ERR_ARG);
        assert_int_equal(attempt(&before, "nonsense", 2), LF_ERR_NOMEM);
        lf_arena_free(&before.arena);
    }
    assert_true(allocations_made > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(memory_runs_out)};
    return cmocka_run_group_tests_name("rewrite_memory", tests, NULL, NULL);
}
