/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/span.h"

#include "plan/lower.h"

bool lf_split_rows(const lf_shape *shape, lf_extent rows, int *row_axes, lf_extent *width)
{
    lf_extent counted = lf_extent_of(1);
    for (int axes = 0; axes <= shape->rank; axes++) {
        if (lf_extent_same(counted, rows)) {
            *row_axes = axes;
            *width = lf_extents_product(shape, axes, shape->rank);
            return true;
        }
        if (axes < shape->rank && !lf_extent_mul(counted, shape->dim[axes], &counted))
            return false;
    }
    return false;
}

static bool is_one(const lf_shape *s, int axis) { return lf_extent_is(s->dim[axis], 1); }

/* The columns [row_axes, rank): spanned ones must come last. Gives the product of those before and of those spanned. */
static bool trailing(const lf_shape *s, unsigned axes, int row_axes, lf_extent *before, lf_extent *spanned)
{
    *before = *spanned = lf_extent_of(1);
    bool seen = false;
    for (int i = row_axes; i < s->rank; i++) {
        if (is_one(s, i))
            continue;
        bool in = axes >> i & 1;
        if (seen && !in)
            return false;
        seen = seen || in;
        lf_extent *product = in ? spanned : before;
        if (!lf_extent_mul(*product, s->dim[i], product))
            return false;
    }
    return true;
}

static void within_rows(lf_spanned *out)
{
    out->span = lf_extent_is(out->count, 1) ? LF_SPAN_ROW : LF_SPAN_SEGMENT;
    out->results = out->count;
}

static const char *classify_pool(const lf_graph *g, lf_node n, lf_spanned *out)
{
    const lf_shape *from = &lf_at(g, lf_arg_of(g, n, 0))->shape, *to = &lf_at(g, n)->shape;
    if (out->row_axes > from->rank - 1)
        return "its windows cross rows";
    out->span = LF_SPAN_WINDOW;
    out->groups = lf_extents_product(from, out->row_axes, from->rank - 1);
    out->length = from->dim[from->rank - 1];
    out->count = to->dim[to->rank - 1];
    out->results = lf_extents_product(to, out->row_axes, to->rank);
    out->window = lf_window_of(g, n);
    return NULL;
}

/* group_norm: the elements after axis 0 in `segments` equal runs. */
static const char *classify_segments(const lf_shape *s, int64_t segments, lf_extent rows, lf_spanned *out)
{
    lf_extent all;
    if (!lf_extent_mul(s->dim[0], lf_extent_of(segments), &all) || !lf_extent_div(all, rows, &out->count) ||
        !lf_extent_div(out->width, out->count, &out->length))
        return "its groups cross rows";
    within_rows(out);
    return NULL;
}

const char *lf_span_classify(const lf_graph *g, lf_node n, lf_extent rows, lf_spanned *out)
{
    const lf_shape *s = &lf_at(g, lf_arg_of(g, n, 0))->shape;
    unsigned axes = lf_span_axes(g, n);
    *out = (lf_spanned){.groups = lf_extent_of(1)};
    if (!lf_split_rows(s, rows, &out->row_axes, &out->width))
        return "its rows are not those of the group";
    if (lf_kind_of(g, n) == LF_POOL)
        return classify_pool(g, n, out);
    if (lf_segments(g, n) > 1)
        return classify_segments(s, lf_segments(g, n), rows, out);
    bool some_rows = false, all_rows = true, columns = false;
    for (int i = 0; i < s->rank; i++) {
        bool in = axes >> i & 1;
        if (is_one(s, i))
            continue;
        some_rows = some_rows || (i < out->row_axes && in);
        all_rows = all_rows && (i >= out->row_axes || in);
        columns = columns || (i >= out->row_axes && in);
    }
    if (some_rows && all_rows && !columns) {
        out->span = LF_SPAN_COLUMN;
        out->count = out->results = out->width;
        out->length = rows;
        return NULL;
    }
    if (some_rows)
        return columns ? "its statistic runs over rows and columns at once"
                       : "its statistic runs over some rows but not all";
    if (!trailing(s, axes, out->row_axes, &out->count, &out->length))
        return "its statistic skips neighbouring columns";
    within_rows(out);
    return NULL;
}

lf_access lf_span_access(const lf_spanned *s, lf_extent rows, int32_t stat, int result)
{
    lf_access a = {.place = LF_STAT, .index = stat, .result = result, .row_axes = 1};
    a.extent[0] = rows;
    if (s->span == LF_SPAN_COLUMN) {
        a.rank = 2;
        a.extent[1] = s->width;
        a.stride[1] = lf_extent_of(1);
        return a;
    }
    a.rank = 3;
    a.stride[0] = s->count;
    a.extent[1] = s->count;
    a.stride[1] = lf_extent_of(1);
    a.extent[2] = s->length;
    return a;
}

static int add_choice(lf_extent *rows, int count, lf_extent choice)
{
    for (int i = 0; i < count; i++)
        if (lf_extent_same(rows[i], choice))
            return count;
    if (count < LF_MAX_ROW_CHOICES)
        rows[count++] = choice;
    return count;
}

/* The rows a spanned node would like: what stands before its span, or the span itself where that comes first. */
static int spanned_choice(const lf_graph *g, lf_node n, lf_extent *rows, int count)
{
    const lf_shape *s = &lf_at(g, lf_arg_of(g, n, 0))->shape;
    unsigned axes = lf_span_axes(g, n);
    int first = 0;
    while (first < s->rank && (is_one(s, first) || !(axes >> first & 1)))
        first++;
    int after = first;
    while (after < s->rank && (is_one(s, after) || (axes >> after & 1)))
        after++;
    if (first == s->rank) /* only extents of one: any split will do */
        return count;
    if (after == s->rank)
        return add_choice(rows, count, lf_extents_product(s, 0, first));
    return first == 0 || lf_extent_is(lf_extents_product(s, 0, first), 1)
               ? add_choice(rows, count, lf_extents_product(s, 0, after))
               : count;
}

int lf_row_choices(const lf_graph *g, const lf_node *nodes, int32_t count, lf_extent *rows)
{
    int choices = 0;
    const lf_shape *widest = &lf_at(g, nodes[0])->shape;
    for (int32_t i = 0; i < count; i++) {
        const lf_shape *s = &lf_at(g, nodes[i])->shape;
        lf_kind kind = lf_kind_of(g, nodes[i]);
        widest = s->rank > widest->rank ? s : widest;
        if (kind == LF_PRODUCT) { /* its rows are given */
            rows[0] = lf_extents_product(s, 0, s->rank - 1);
            return 1;
        }
        if (kind == LF_REDUCE || kind == LF_POOL || (kind == LF_NORMALIZE && !lf_uses_running_stats(g, nodes[i])))
            choices = spanned_choice(g, nodes[i], rows, choices);
    }
    /* all but the last extent; and for a chain that began wide and ended narrow, the first node's */
    const lf_shape *first = &lf_at(g, nodes[0])->shape;
    choices = add_choice(rows, choices, lf_extents_product(widest, 0, widest->rank > 0 ? widest->rank - 1 : 0));
    choices = add_choice(rows, choices, lf_extents_product(first, 0, first->rank > 0 ? first->rank - 1 : 0));
    /* fewer extents, so that what lies across rows of the above lies within rows; all of it in one row; each number its
     * own */
    for (int axes = widest->rank - 2; axes > 0; axes--)
        choices = add_choice(rows, choices, lf_extents_product(widest, 0, axes));
    choices = add_choice(rows, choices, lf_extent_of(1));
    return add_choice(rows, choices, lf_extents_product(widest, 0, widest->rank));
}
