/* SPDX-License-Identifier: Apache-2.0 */
/* Extents as monomials, and shapes made of them. Names are >= 1 and otherwise unknown, so two extents are equal only
 * when they are the same monomial. */
#include "base/mem.h"
#include "ir/graph.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

lf_extent lf_extent_of(int64_t number)
{
    return (lf_extent){.coef = number};
}

bool lf_extent_same(lf_extent a, lf_extent b)
{
    return a.coef == b.coef && memcmp(a.pow, b.pow, sizeof a.pow) == 0;
}

bool lf_extent_known(lf_extent e)
{
    for (int s = 0; s < LF_MAX_SYMBOLS; s++)
        if (e.pow[s])
            return false;
    return true;
}

bool lf_extent_is(lf_extent e, int64_t number)
{
    return e.coef == number && lf_extent_known(e);
}

bool lf_extent_mul(lf_extent a, lf_extent b, lf_extent *out)
{
    lf_extent product;
    if (!lf_mul_i64(a.coef, b.coef, &product.coef))
        return false;
    for (int s = 0; s < LF_MAX_SYMBOLS; s++) {
        int power = a.pow[s] + b.pow[s];
        if (power > UINT8_MAX)
            return false;
        product.pow[s] = (uint8_t)power;
    }
    *out = product;
    return true;
}

bool lf_extent_div(lf_extent a, lf_extent b, lf_extent *out)
{
    if (b.coef == 0 || a.coef % b.coef != 0)
        return false;
    lf_extent quotient = {.coef = a.coef / b.coef};
    for (int s = 0; s < LF_MAX_SYMBOLS; s++) {
        if (a.pow[s] < b.pow[s])
            return false;
        quotient.pow[s] = (uint8_t)(a.pow[s] - b.pow[s]);
    }
    *out = quotient;
    return true;
}

int64_t lf_extent_at(lf_extent e, const int64_t *dims)
{
    int64_t value = e.coef;
    for (int s = 0; s < LF_MAX_SYMBOLS; s++)
        for (int i = 0; i < e.pow[s]; i++)
            if (dims[s] < 0 || !lf_mul_i64(value, dims[s], &value))
                return -1;
    return value > LF_MAX_ELEMENTS ? -1 : value;
}

bool lf_shape_same(const lf_shape *a, const lf_shape *b)
{
    if (a->rank != b->rank)
        return false;
    for (int i = 0; i < a->rank; i++)
        if (!lf_extent_same(a->dim[i], b->dim[i]))
            return false;
    return true;
}

bool lf_shape_elements(const lf_shape *s, lf_extent *out)
{
    lf_extent product = lf_extent_of(1);
    for (int i = 0; i < s->rank; i++)
        if (!lf_extent_mul(product, s->dim[i], &product))
            return false;
    *out = product;
    return true;
}

int64_t lf_shape_count(const lf_shape *s, const int64_t *dims)
{
    int64_t product = 1;
    for (int i = 0; i < s->rank; i++) {
        int64_t extent = lf_extent_at(s->dim[i], dims);
        if (extent < 0 || !lf_mul_i64(product, extent, &product) || product > LF_MAX_ELEMENTS)
            return -1;
    }
    return product;
}

void lf_broadcast_strides(const lf_shape *from, const lf_shape *to, lf_extent *stride)
{
    assert(from->rank <= to->rank);
    int shift = to->rank - from->rank;
    lf_extent step = lf_extent_of(1);
    for (int i = to->rank - 1; i >= 0; i--) {
        stride[i] = lf_extent_of(0);
        if (i < shift || lf_extent_is(from->dim[i - shift], 1))
            continue;
        assert(lf_extent_same(from->dim[i - shift], to->dim[i]));
        stride[i] = step;
        bool fits = lf_extent_mul(step, from->dim[i - shift], &step);
        assert(fits);
        (void)fits;
    }
}

/* Appends to a text of fixed size; what does not fit is cut, which only very long names can cause. */
static void add(char *text, size_t size, const char *more)
{
    size_t length = strlen(text);
    snprintf(text + length, size - length, "%s", more);
}

static void add_extent(const lf_graph *g, lf_extent e, char *text, size_t size)
{
    char number[24];
    const char *between = "";
    if (e.coef != 1 || lf_extent_known(e)) {
        snprintf(number, sizeof number, "%lld", (long long)e.coef);
        add(text, size, number);
        between = "*";
    }
    for (int s = 0; s < LF_MAX_SYMBOLS; s++)
        for (int i = 0; i < e.pow[s]; i++, between = "*") {
            add(text, size, between);
            add(text, size, s < g->symbols ? g->symbol[s] : "?");
        }
}

static const char *keep(const lf_graph *g, const char *text)
{
    const char *kept = lf_arena_strndup(g->arena, text, strlen(text));
    return kept ? kept : "?"; /* texts go into messages: one without memory is better than none */
}

const char *lf_extent_text(const lf_graph *g, lf_extent e)
{
    char text[1024] = "";
    add_extent(g, e, text, sizeof text);
    return keep(g, text);
}

void lf_shape_write(const lf_graph *g, const lf_shape *s, char *text, size_t size)
{
    snprintf(text, size, "[");
    for (int i = 0; i < s->rank; i++) {
        if (i)
            add(text, size, ", ");
        add_extent(g, s->dim[i], text, size);
    }
    add(text, size, "]");
}

const char *lf_shape_text(const lf_graph *g, const lf_shape *s)
{
    char text[1024];
    lf_shape_write(g, s, text, sizeof text);
    return keep(g, text);
}
