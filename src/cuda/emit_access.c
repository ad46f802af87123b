/* SPDX-License-Identifier: Apache-2.0 */
/* Accesses as expressions: where an element of a phase's grid lies, given row and col. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "cuda/emit_parts.h"

void lf_emit_indent(lf_emitter *e, int indent)
{
    for (int i = 0; i < indent; i++)
        lf_str_add(&e->s, "    ");
}

static int factors(lf_extent extent)
{
    int n = extent.coef != 1;
    for (int s = 0; s < LF_MAX_SYMBOLS; s++)
        n += extent.pow[s];
    return n;
}

void lf_emit_extent(lf_emitter *e, lf_extent extent)
{
    const int n = factors(extent);
    int put = 0;
    if (n > 1)
        lf_str_add(&e->s, "(");
    if (extent.coef != 1 || n == 0) {
        lf_str_addf(&e->s, "%lld", (long long)extent.coef);
        put++;
    }
    for (int s = 0; s < LF_MAX_SYMBOLS; s++)
        for (int i = 0; i < extent.pow[s]; i++)
            lf_str_addf(&e->s, "%sa.dim[%d]", put++ ? " * " : "", s);
    if (n > 1)
        lf_str_add(&e->s, ")");
}

void lf_emit_number(lf_emitter *e, double number)
{
    char text[32];
    const float value = (float)number;
    if (isnan(value)) {
        lf_str_add(&e->s, "__int_as_float(0x7fc00000)");
        return;
    }
    if (isinf(value)) {
        lf_str_add(&e->s, value < 0 ? "-INFINITY" : "INFINITY");
        return;
    }
    snprintf(text, sizeof text, "%.9g", (double)value);
    lf_str_addf(&e->s, "%s%sf", text, strpbrk(text, ".e") ? "" : ".0");
}

void lf_emit_shape(lf_emitter *e, lf_node node)
{
    const lf_node_info *info = lf_at(e->graph, node);
    const lf_dtype type = lf_stored_dtype(e->plan, node);
    lf_str_addf(&e->s, "%s %s%s", info->name, type == LF_F32 ? "" : lf_dtype_name(type),
                lf_shape_text(e->graph, &info->shape));
}

/* ---- axes: those of one element left out, neighbours that step as one made one ---- */

typedef struct axis {
    lf_extent extent, stride;
} axis;

static int merged_axes(const lf_access *a, int from, int to, axis *out)
{
    int count = 0;
    bool moves = false;
    for (int i = from; i < to; i++) {
        lf_extent reach;
        if (lf_extent_is(a->extent[i], 1))
            continue;
        moves = moves || a->stride[i].coef != 0;
        bool still = a->stride[i].coef == 0;
        bool joins = count > 0 && (still ? out[count - 1].stride.coef == 0
                                         : lf_extent_mul(a->extent[i], a->stride[i], &reach) &&
                                               lf_extent_same(out[count - 1].stride, reach));
        if (joins && lf_extent_mul(out[count - 1].extent, a->extent[i], &out[count - 1].extent))
            out[count - 1].stride = a->stride[i];
        else
            out[count++] = (axis){a->extent[i], a->stride[i]};
    }
    return moves ? count : 0;
}

/* The sum of index * stride, an expression of `index`, itself one. */
static void emit_offset(lf_emitter *e, const axis *at, int count, const char *index)
{
    bool first = true;
    for (int i = 0; i < count; i++) {
        if (at[i].stride.coef == 0)
            continue;
        lf_str_addf(&e->s, "%s%s", first ? "" : " + ", index);
        first = false;
        for (int inner = i + 1; inner < count; inner++) {
            lf_str_add(&e->s, " / ");
            lf_emit_extent(e, at[inner].extent);
        }
        if (i > 0) { /* the first takes what is left */
            lf_str_add(&e->s, " % ");
            lf_emit_extent(e, at[i].extent);
        }
        if (!lf_extent_is(at[i].stride, 1)) {
            lf_str_add(&e->s, " * ");
            lf_emit_extent(e, at[i].stride);
        }
    }
}

const char *lf_emit_type(lf_dtype type)
{
    return type == LF_F32 ? "float" : lf_dtype_name(type);
}

/* In memory that nobody writes during a launch? */
static bool is_fixed_home(const lf_emitter *e, lf_node node)
{
    return e->plan->storage[node] == LF_IN_INPUT || e->plan->storage[node] == LF_PREPARED;
}

void lf_emit_home(lf_emitter *e, lf_node node)
{
    static const char *const name[] = {
        [LF_IN_INPUT] = "in", [LF_PREPARED] = "prepared", [LF_IN_OUTPUT] = "out", [LF_IN_BUFFER] = "area"};
    assert(e->plan->storage[node] != LF_NOT_STORED);
    lf_str_addf(&e->s, "a.%s%d", name[e->plan->storage[node]], (int)e->plan->where[node]);
}

/* The output whose memory an access is of, -1 where it is another's. */
static int32_t output_of(const lf_emitter *e, const lf_access *a)
{
    switch (a->place) {
    case LF_VALUE: return e->plan->storage[a->index] == LF_IN_OUTPUT ? e->plan->where[a->index] : -1;
    case LF_KEPT: return e->kept[a->index] < 0 ? e->home[a->index].in_output : -1;
    case LF_OUTPUT: return a->index;
    case LF_STAT:
    case LF_FACTOR: return -1; /* plans for CUDA have none */
    }
    return -1;
}

static bool is_in_block(const lf_emitter *e, const lf_access *a)
{
    return a->place == LF_KEPT && e->kept[a->index] == LF_IN_BLOCK;
}

static void emit_base(lf_emitter *e, const lf_access *a)
{
    const int32_t output = output_of(e, a);
    if (a->place == LF_VALUE)
        lf_emit_home(e, a->index);
    else if (output >= 0)
        lf_str_addf(&e->s, "a.out%d", (int)output);
    else if (is_in_block(e, a))
        lf_str_addf(&e->s, "block_kept(%d)", (int)a->index);
    else
        lf_str_addf(&e->s, "a.area%d", (int)(a->place == LF_KEPT ? e->kept[a->index] : e->result[a->index][a->result]));
}

static bool is_fixed(const lf_emitter *e, const lf_access *a)
{
    return a->place == LF_VALUE && is_fixed_home(e, a->index);
}

/* " + first + row ... + col ...", what there is of it. */
static void emit_sides(lf_emitter *e, const lf_access *a, const char *col)
{
    axis at[LF_MAX_RANK];
    if (a->first.coef != 0) {
        lf_str_add(&e->s, " + ");
        lf_emit_extent(e, a->first);
    }
    int count = is_in_block(e, a) ? 0 : merged_axes(a, 0, a->row_axes, at);
    if (count > 0) {
        lf_str_add(&e->s, " + ");
        emit_offset(e, at, count, "row");
    }
    count = merged_axes(a, a->row_axes, a->rank, at);
    if (count > 0) {
        lf_str_add(&e->s, " + ");
        emit_offset(e, at, count, col);
    }
}

/* ---- loads and stores ---- */

typedef enum form { REPEATED, CONTIGUOUS, OTHER } form;

static form columns_of(const lf_access *a)
{
    axis at[LF_MAX_RANK];
    const int count = merged_axes(a, a->row_axes, a->rank, at);
    return count == 0 ? REPEATED : count == 1 && lf_extent_is(at[0].stride, 1) ? CONTIGUOUS : OTHER;
}

bool lf_is_column_vector(const lf_emitter *e, const lf_access *a)
{
    axis at[LF_MAX_RANK];
    return is_fixed(e, a) && a->first.coef == 0 && merged_axes(a, 0, a->row_axes, at) == 0 &&
           columns_of(a) == CONTIGUOUS;
}

/* Do four neighbours from a multiple of four on lie at a multiple of four? Where rows do: in memory of our own; in the
 * caller's, if that does (ALIGNED). */
const char *lf_emit_aligned(const lf_emitter *e, const lf_access *a)
{
    axis at[LF_MAX_RANK];
    const int count = merged_axes(a, 0, a->row_axes, at);
    const bool ours = a->place == LF_STAT || (a->place == LF_KEPT && e->kept[a->index] >= 0) ||
                      (a->place == LF_VALUE &&
                       (e->plan->storage[a->index] == LF_PREPARED || e->plan->storage[a->index] == LF_IN_BUFFER));
    bool rows = a->first.coef % 4 == 0;
    for (int i = 0; i < count; i++)
        rows = rows && at[i].stride.coef % 4 == 0;
    return !rows ? "false" : ours ? "true" : "ALIGNED";
}

static void emit_comment(lf_emitter *e, const lf_access *a, lf_node node)
{
    lf_str_add(&e->s, " // ");
    if (a->place == LF_VALUE)
        lf_emit_shape(e, a->index);
    else if (a->place == LF_STAT)
        lf_str_addf(&e->s, "%s of %s", lf_monoid_row(e->g->stat[a->index].monoid)->name,
                    lf_at(e->graph, e->g->stat[a->index].node)->name);
    else
        lf_str_add(&e->s, lf_at(e->graph, a->place == LF_OUTPUT ? e->graph->output[a->index] : node)->name);
    lf_str_add(&e->s, "\n");
}

static void emit_repeated(lf_emitter *e, const lf_access *a, int32_t phase, int32_t step)
{
    lf_str_addf(&e->s, "const float u%d_%d = read<%s>(", (int)phase, (int)step, is_fixed(e, a) ? "true" : "false");
    emit_base(e, a);
    emit_sides(e, a, "col");
    lf_str_add(&e->s, ");");
}

static bool is_register(const lf_emitter *e, int32_t phase, const lf_access *a)
{
    return a->place == LF_STAT && (phase == e->held.phase || e->g->stat[a->index].span == LF_SPAN_ROW) &&
           lf_finished_in(e, a->index) == lf_range_of(e, phase);
}

bool lf_is_row_in_registers(const lf_emitter *e, int32_t phase, const lf_access *a)
{
    const lf_access *x = &e->g->x;
    axis ours[LF_MAX_RANK], theirs[LF_MAX_RANK];
    if (a->place != x->place || a->index != x->index ||
        !lf_extent_same(e->g->phase[phase].width, e->g->product[0].k) || columns_of(a) != CONTIGUOUS)
        return false;
    const int count = merged_axes(a, 0, a->row_axes, ours);
    bool same = count == merged_axes(x, 0, x->row_axes, theirs) && lf_extent_same(a->first, x->first);
    for (int i = 0; same && i < count; i++)
        same = lf_extent_same(ours[i].extent, theirs[i].extent) && lf_extent_same(ours[i].stride, theirs[i].stride);
    return same;
}

void lf_emit_loads_ahead(lf_emitter *e, int32_t phase, int indent)
{
    lf_touch at;
    for (lf_touches all = lf_touches_in(e->g, phase, phase + 1); lf_touch_next(&all, &at);) {
        if (at.by != LF_TOUCH_LOAD || is_register(e, phase, at.access) || columns_of(at.access) != REPEATED)
            continue;
        lf_emit_indent(e, indent);
        emit_repeated(e, at.access, phase, at.index);
        lf_str_add(&e->s, "\n");
    }
}

void lf_emit_load(lf_emitter *e, int32_t phase, int32_t step, int indent)
{
    const lf_step *s = &e->g->phase[phase].step[step];
    const lf_access *a = &s->from;
    const char *fixed = is_fixed(e, a) ? "true" : "false";
    lf_emit_indent(e, indent);
    if (is_register(e, phase, a)) {
        lf_str_addf(&e->s, "float v%d[W]; EACH v%d[w] = %sstat%d[%d];", (int)step, (int)step,
                    phase == e->held.phase ? "known." : "", (int)a->index, a->result);
        emit_comment(e, a, s->node);
        return;
    }
    if (e->register_turns > 0 && lf_is_row_in_registers(e, phase, a)) {
        lf_str_addf(&e->s, "float v%d[W]; EACH v%d[w] = regs[turn][w];", (int)step, (int)step);
        emit_comment(e, a, s->node);
        return;
    }
    switch (columns_of(a)) {
    case REPEATED:
        if (!e->ahead) {
            emit_repeated(e, a, phase, step);
            lf_str_add(&e->s, " ");
        }
        lf_str_addf(&e->s, "float v%d[W]; EACH v%d[w] = u%d_%d;", (int)step, (int)step, (int)phase, (int)step);
        break;
    case CONTIGUOUS:
        lf_str_addf(&e->s, "float v%d[W]; load<%s, %s>(v%d, ", (int)step, fixed, lf_emit_aligned(e, a), (int)step);
        emit_base(e, a);
        emit_sides(e, a, "col");
        lf_str_add(&e->s, ");");
        break;
    case OTHER:
        lf_str_addf(&e->s, "float v%d[W]; EACH v%d[w] = read<%s>(", (int)step, (int)step, fixed);
        emit_base(e, a);
        emit_sides(e, a, "(col + w)");
        lf_str_add(&e->s, ");");
        break;
    }
    emit_comment(e, a, s->node);
}

void lf_emit_store(lf_emitter *e, const lf_store *store, int indent)
{
    const lf_access *a = &store->to;
    const int32_t output = output_of(e, a);
    const bool together = columns_of(a) == CONTIGUOUS;
    const bool again = output >= 0 && e->role != LF_CUDA_MAIN; /* only the rows that are wanted */
    const bool branch = e->tiles && (again || !together), chosen = e->tiles && !branch;
    const char *col = together ? "col" : "(col + w)";
    lf_emit_indent(e, indent);
    lf_str_add(&e->s, branch ? "if (here) { " : "");
    if (!together)
        lf_str_addf(&e->s, "EACH { const float one[1] = {v%d[w]}; ", (int)store->step);
    if (again) {
        lf_str_add(&e->s, "store_out(a.redo, ");
        lf_str_addf(&e->s, "a.out%d, 0", (int)output);
        emit_sides(e, a, col);
        lf_str_addf(&e->s, ", a.out_each[%d]", (int)output);
    } else {
        lf_str_addf(&e->s, "%s<%s>(%s", chosen ? "store_if" : "store", together ? lf_emit_aligned(e, a) : "false",
                    chosen ? "here, " : "");
        emit_base(e, a);
        emit_sides(e, a, col);
    }
    if (together)
        lf_str_addf(&e->s, ", v%d);", (int)store->step);
    else
        lf_str_add(&e->s, ", one); }");
    lf_str_add(&e->s, branch ? " }" : "");
    emit_comment(e, a, a->place == LF_KEPT ? e->g->kept[a->index].node : LF_NONE);
}

void lf_emit_row_element(lf_emitter *e, const lf_access *from, const char *column)
{
    lf_str_add(&e->s, "*(");
    emit_base(e, from);
    emit_sides(e, from, column);
    lf_str_add(&e->s, ")");
}
