/* SPDX-License-Identifier: Apache-2.0 */
/* A model given as text, its plan, verified, and short ways to look at it. One file includes it into one program:
 * everything is static. */
#ifndef LF_TESTS_PLAN_FIXTURE_H
#define LF_TESTS_PLAN_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "plan/plan.h"

static lf_arena arena;
static lf_diag diag;
static lf_graph graph;

static inline int setup(void **state)
{
    (void)state;
    lf_arena_init(&arena);
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    lf_arena_free(&arena);
    return 0;
}

static inline lf_plan *build(bool fuse)
{
    lf_plan *plan = NULL;
    lf_status status = lf_plan_build(&graph, (lf_plan_options){.fuse = fuse, .share_x = LF_SHARE_ALL}, &arena, &plan);
    if (status == LF_OK)
        status = lf_plan_verify(plan, &diag);
    if (status != LF_OK)
        print_error("%s\n", diag.text);
    assert_int_equal(status, LF_OK);
    return plan;
}

static inline void read_model(const char *text)
{
    assert_int_equal(lf_graph_init(&graph, &arena, &diag), LF_OK);
    lf_status status = lf_text_read(&graph, "test", text, strlen(text));
    if (status != LF_OK)
        print_error("%s\n", diag.text);
    assert_int_equal(status, LF_OK);
}

/* Op by op, every op that computes is a kernel of one node, plus the copies. */
static inline void check_plain(void)
{
    const lf_plan *plain = build(false);
    for (int32_t i = 0; i < plain->groups; i++)
        assert_int_equal(plain->group[i].covers, 1);
}

static inline lf_plan *plan_of(const char *text)
{
    read_model(text);
    check_plain();
    return build(true);
}

static inline lf_node named(const char *name)
{
    lf_node n = lf_graph_find(&graph, name, strlen(name));
    assert_int_not_equal(n, LF_NONE);
    return n;
}

static inline bool is_stored(const lf_plan *plan, const char *name, lf_storage storage)
{
    return plan->storage[named(name)] == storage;
}

static inline bool covers(const lf_group *group, const char *name)
{
    for (int32_t i = 0; i < group->covers; i++)
        if (group->cover[i] == named(name))
            return true;
    return false;
}

static inline bool extent_is(lf_extent e, const char *text) { return strcmp(lf_extent_text(&graph, e), text) == 0; }

static inline void assert_groups(const lf_plan *plan, const char *const *names, int32_t count)
{
    if (plan->groups != count)
        for (int32_t i = 0; i < plan->groups; i++)
            print_error("group %d: %s\n", (int)i, plan->group[i].name);
    assert_int_equal(plan->groups, count);
    for (int32_t i = 0; i < count; i++)
        assert_string_equal(plan->group[i].name, names[i]);
}
#define NAMES(...)                                                                                                     \
    (const char *const[]){__VA_ARGS__}, (int32_t)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))
#define GROUPS(plan, ...) assert_groups(plan, NAMES(__VA_ARGS__))

/* A group's phases: "B x 8", "1 x 8", ... */
static inline void assert_phases(const lf_group *g, const char *const *phases, int32_t count)
{
    assert_int_equal(g->phases, count);
    for (int32_t i = 0; i < count; i++) {
        const char *rows = g->phase[i].one_row ? "1" : lf_extent_text(&graph, g->rows);
        assert_string_equal(lf_arena_printf(&arena, "%s x %s", rows, lf_extent_text(&graph, g->phase[i].width)),
                            phases[i]);
    }
}
#define PHASES(group, ...) assert_phases(group, NAMES(__VA_ARGS__))

static inline void assert_stat(const lf_group *g, int32_t i, lf_monoid monoid, lf_span span, const char *count,
                        const char *length)
{
    assert_true(i < g->stats);
    assert_int_equal(g->stat[i].monoid, monoid);
    assert_int_equal(g->stat[i].span, span);
    assert_string_equal(lf_extent_text(&graph, g->stat[i].count), count);
    assert_string_equal(lf_extent_text(&graph, g->stat[i].length), length);
}

#endif
