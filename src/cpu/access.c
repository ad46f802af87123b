/* SPDX-License-Identifier: Apache-2.0 */
/* Accesses as numbers: axes merged to the fewest, elements gathered and scattered along them. */
#include <string.h>

#include "base/mem.h"
#include "cpu/parts.h"

static bool side_init(lf_side *side, const lf_access *a, int from, int to, const int64_t *dims)
{
    *side = (lf_side){.form = LF_FORM_REPEATED};
    for (int i = from; i < to; i++) {
        int64_t extent = lf_extent_at(a->extent[i], dims);
        int64_t stride = lf_extent_at(a->stride[i], dims);
        if (extent < 0 || stride < 0)
            return false;
        if (extent == 1)
            continue;
        int64_t reach;
        if (!lf_mul_i64(extent, stride, &reach) || reach > LF_MAX_ELEMENTS)
            return false;
        int last = side->rank - 1;
        if (last >= 0 && side->stride[last] == reach) { /* the axis before steps over exactly this one */
            side->extent[last] *= extent;
            side->stride[last] = stride;
        } else {
            side->extent[side->rank] = extent;
            side->stride[side->rank] = stride;
            side->rank++;
        }
    }
    bool moves = false;
    for (int i = 0; i < side->rank; i++)
        moves = moves || side->stride[i] != 0;
    if (!moves)
        side->rank = 0;
    else if (side->rank == 1)
        side->form = side->stride[0] == 1 ? LF_FORM_CONTIGUOUS : LF_FORM_STRIDED;
    else if (side->rank == 2 && side->stride[0] == 1 && side->stride[1] == 0)
        side->form = LF_FORM_SPREAD;
    else
        side->form = LF_FORM_WALKED;
    return true;
}

/* A factor for each strip of a row, which is a part of its statistic. */
static lf_access factor_of_strips(const lf_access *a, const int64_t *dims)
{
    const lf_extent strips = lf_extent_of(lf_ceil_div(lf_extent_at(a->extent[1], dims), LF_STRIP));
    return (lf_access){.rank = 3,
                       .row_axes = 1,
                       .extent = {a->extent[0], strips, lf_extent_of(LF_STRIP)},
                       .stride = {strips, lf_extent_of(1), lf_extent_of(0)}};
}

bool lf_reach_sides(lf_reach *r, const lf_access *a, const int64_t *dims)
{
    const lf_access factor = a->place == LF_FACTOR ? factor_of_strips(a, dims) : (lf_access){0};
    a = a->place == LF_FACTOR ? &factor : a;
    r->dtype = a->dtype;
    r->first = lf_extent_at(a->first, dims);
    return r->first >= 0 && side_init(&r->row, a, 0, a->row_axes, dims) &&
           side_init(&r->col, a, a->row_axes, a->rank, dims);
}

/* Takes index apart over the axes; the first takes what is left. */
static int64_t take_apart(const lf_side *side, int64_t index, int64_t *at)
{
    int64_t offset = 0;
    for (int i = side->rank - 1; i >= 0; i--) {
        at[i] = i > 0 ? index % side->extent[i] : index;
        index = i > 0 ? index / side->extent[i] : 0;
        offset += at[i] * side->stride[i];
    }
    return offset;
}

int64_t lf_side_offset(const lf_side *side, int64_t index)
{
    if (side->rank <= 1)
        return side->rank == 0 ? 0 : index * side->stride[0];
    int64_t at[LF_MAX_RANK];
    return take_apart(side, index, at);
}

/* Runs along the innermost axis, one after the other. */
typedef struct runs {
    const lf_side *side;
    int64_t at[LF_MAX_RANK];
    int64_t offset; /* of the run's first element */
} runs;

static runs runs_from(const lf_side *side, int64_t start)
{
    runs r = {.side = side};
    r.offset = take_apart(side, start, r.at);
    return r;
}

static int64_t run_length(const runs *r, int64_t wanted)
{
    int last = r->side->rank - 1;
    return lf_min64(wanted, r->side->extent[last] - r->at[last]);
}

static void run_next(runs *r)
{
    int axis = r->side->rank - 1;
    r->offset -= r->at[axis] * r->side->stride[axis];
    r->at[axis] = 0;
    while (--axis >= 0) {
        r->offset += r->side->stride[axis];
        if (++r->at[axis] < r->side->extent[axis] || axis == 0)
            return;
        r->offset -= r->at[axis] * r->side->stride[axis];
        r->at[axis] = 0;
    }
}

/* n elements `stride` apart, the first at from; and back. */
static void read_apart(lf_dtype type, const void *from, int64_t stride, int64_t n, float *out)
{
    const float *floats = from;
    if (type != LF_F32)
        lf_to_f32(type, from, stride, out, n);
    for (int64_t i = 0; type == LF_F32 && i < n; i++)
        out[i] = floats[i * stride];
}

static void write_apart(lf_dtype type, const float *from, int64_t n, void *to, int64_t stride)
{
    float *floats = to;
    if (type != LF_F32)
        lf_from_f32(type, from, to, stride, n);
    for (int64_t i = 0; type == LF_F32 && i < n; i++)
        floats[i * stride] = from[i];
}

void lf_side_gather(const lf_kern *kern, lf_dtype type, const lf_side *side, const void *base, int64_t start, int64_t n,
                    float *out)
{
    if (n <= 0)
        return;
    switch (side->form) {
    case LF_FORM_REPEATED:
        read_apart(type, base, 0, 1, out);
        for (int64_t i = 1; i < n; i++)
            out[i] = out[0];
        return;
    case LF_FORM_CONTIGUOUS: kern->load[type](n, lf_element_at(type, base, start), out); return;
    case LF_FORM_STRIDED: {
        const int64_t stride = side->stride[0];
        read_apart(type, lf_element_at(type, base, start * stride), stride, n, out);
        return;
    }
    case LF_FORM_SPREAD:
    case LF_FORM_WALKED: break;
    }
    const int64_t stride = side->stride[side->rank - 1];
    for (runs r = runs_from(side, start); n > 0; run_next(&r)) {
        int64_t length = run_length(&r, n);
        read_apart(type, lf_element_at(type, base, r.offset), stride, length, out);
        out += length;
        n -= length;
    }
}

void lf_side_scatter(const lf_kern *kern, lf_dtype type, const lf_side *side, void *base, int64_t start, int64_t n,
                     const float *from)
{
    if (n <= 0)
        return;
    switch (side->form) {
    case LF_FORM_REPEATED: /* one element, however often */ write_apart(type, from + n - 1, 1, base, 0); return;
    case LF_FORM_CONTIGUOUS: kern->store[type](n, from, lf_element_at(type, base, start)); return;
    case LF_FORM_STRIDED: {
        const int64_t stride = side->stride[0];
        write_apart(type, from, n, lf_element_at(type, base, start * stride), stride);
        return;
    }
    case LF_FORM_SPREAD:
    case LF_FORM_WALKED: break;
    }
    const int64_t stride = side->stride[side->rank - 1];
    for (runs r = runs_from(side, start); n > 0; run_next(&r)) {
        int64_t length = run_length(&r, n);
        write_apart(type, from, length, lf_element_at(type, base, r.offset), stride);
        from += length;
        n -= length;
    }
}
