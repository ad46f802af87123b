/* SPDX-License-Identifier: Apache-2.0 */
/* A graph under test and short ways to build into it, for the tests of the ir room. Shapes are written as text, and
 * compared as text. One file includes it into one program: everything is static. */
#ifndef LF_TESTS_IR_FIXTURE_H
#define LF_TESTS_IR_FIXTURE_H

#include "base/arena.h"
#include "ir/graph.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static lf_arena arena;
static lf_diag diag;
static lf_graph g;
static int bad;

static inline int setup(void **state)
{
    (void)state;
    lf_arena_init(&arena);
    diag.text[0] = '\0';
    return lf_graph_init(&g, &arena, &diag);
}

static inline int teardown(void **state)
{
    (void)state;
    lf_arena_free(&arena);
    return 0;
}

/* "[B, 32]" */
static inline lf_shape shape(const char *text)
{
    lf_shape s = {0};
    for (const char *at = text + 1; *at && *at != ']'; at += strspn(at, ", ")) {
        size_t length = strcspn(at, ",]");
        lf_extent *e = &s.dim[s.rank++];
        *e = lf_extent_of(1);
        if (isdigit((unsigned char)*at)) {
            e->coef = strtoll(at, NULL, 10);
        } else {
            int symbol;
            assert_int_equal(lf_graph_symbol(&g, at, length, &symbol), LF_OK);
            e->pow[symbol] = 1;
        }
        at += length;
    }
    return s;
}

static inline lf_node leaf(lf_op op, const char *name, lf_dtype dtype, const char *text)
{
    lf_node n = LF_NONE;
    lf_shape s = shape(text);
    assert_int_equal(lf_graph_leaf(&g, op, name, dtype, &s, &n), LF_OK);
    return n;
}

/* An input of that shape under a name of its own. */
static inline lf_node in(const char *text)
{
    char name[16];
    snprintf(name, sizeof name, "x%d", (int)g.count);
    return leaf(LF_OP_input, name, LF_F32, text);
}

static inline lf_node par(const char *text)
{
    char name[16];
    snprintf(name, sizeof name, "w%d", (int)g.count);
    return leaf(LF_OP_param, name, LF_F32, text);
}

#define V(n)       ((lf_arg){.kind = LF_ARG_VALUE, .value = (n)})
#define N(x)       ((lf_arg){.kind = LF_ARG_NUMBER, .number = (x)})
#define B(x)       ((lf_arg){.kind = LF_ARG_BOOL, .number = (x)})
#define S(x)       ((lf_arg){.kind = LF_ARG_STRING, .string = (x)})
#define NONE       ((lf_arg){.kind = LF_ARG_NONE})
#define COUNT(...) (sizeof((const double[]){__VA_ARGS__}) / sizeof(double))
#define L(...)     ((lf_arg){.kind = LF_ARG_LIST, .list = (const double[]){__VA_ARGS__}, .count = COUNT(__VA_ARGS__)})
#define EMPTY      ((lf_arg){.kind = LF_ARG_LIST, .count = 0})
#define ARGS(...)  (lf_arg[]){__VA_ARGS__}, sizeof((lf_arg[]){__VA_ARGS__}) / sizeof(lf_arg)

static inline lf_arg key(const char *name, lf_arg a)
{
    a.key = name;
    return a;
}

static inline lf_node make(const char *name, const char *op, const lf_arg *args, size_t count)
{
    lf_node n = LF_NONE;
    lf_status status = lf_graph_bind(&g, name, op, args, count, &n, &bad);
    if (status)
        print_error("%s\n", diag.text);
    assert_int_equal(status, LF_OK);
    assert_int_equal(bad, -1);
    return n;
}

static inline void gives(const char *want, const char *op, const lf_arg *args, size_t count)
{
    lf_node n = make(NULL, op, args, count);
    assert_string_equal(lf_shape_text(&g, &lf_at(&g, n)->shape), want);
}

/* at: which argument is to blame, -1 for the op. */
static inline void fails(const char *want, int at, const char *op, const lf_arg *args, size_t count)
{
    lf_node n = LF_NONE;
    diag.text[0] = '\0';
    lf_status status = lf_graph_bind(&g, NULL, op, args, count, &n, &bad);
    assert_int_not_equal(status, LF_OK);
    if (!strstr(diag.text, want))
        print_error("wanted \"%s\" in \"%s\"\n", want, diag.text);
    assert_non_null(strstr(diag.text, want));
    assert_int_equal(bad, at);
}

#define OP(op, ...)              make(NULL, op, ARGS(__VA_ARGS__))
#define GIVES(want, op, ...)     gives(want, op, ARGS(__VA_ARGS__))
#define FAILS(want, at, op, ...) fails(want, at, op, ARGS(__VA_ARGS__))

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
