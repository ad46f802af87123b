/* SPDX-License-Identifier: Apache-2.0 */
/* A plan as a list of stages. A group becomes ranges of phases: what is complete within a row goes on in one stage; a
 * wide product's phase is one of its own, and whatever needs all rows begins another. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/emit_parts.h"

enum { FIELD_COLUMNS = 32 }; /* where comments on the fields of Args begin */

/* ---- what the source lists ---- */

static void *grown(lf_emitter *e, void *list, int32_t count, size_t size)
{
    void *more = e->failed ? NULL : realloc(list, (size_t)(count + 1) * size);
    e->failed = e->failed || !more;
    return more;
}

static int32_t add_area(lf_emitter *e, lf_cuda_area area)
{
    lf_cuda_area *list = grown(e, e->out->area, e->out->areas, sizeof *list);
    if (!list)
        return 0;
    e->out->area = list;
    list[e->out->areas] = area;
    return e->out->areas++;
}

static int32_t whole_area(lf_emitter *e, bool one_row, lf_extent width, int64_t each, lf_dtype type)
{
    return add_area(e, (lf_cuda_area){one_row ? lf_extent_of(1) : e->g->rows, width, 1, 1, each, type});
}

lf_cuda_stage *lf_emit_stage(lf_emitter *e, const char *name, lf_cuda_work work, lf_extent rows, lf_extent width)
{
    lf_cuda_stage *list = grown(e, e->out->stage, e->out->stages, sizeof *list);
    if (!list)
        return NULL;
    e->out->stage = list;
    lf_cuda_stage *l = &list[e->out->stages++];
    *l = (lf_cuda_stage){.work = work, .group = e->group, .rows = rows, .width = width, .rows_a_block = 1};
    memcpy(l->name, name, strlen(name) < sizeof l->name ? strlen(name) : sizeof l->name - 1);
    return l;
}

/* ---- ranges ---- */

/* Is a statistic of columns complete after it? */
static bool ends_columns(const lf_group *g, int32_t phase)
{
    for (int32_t i = 0; i < g->stats; i++)
        if (g->stat[i].phase == phase && g->stat[i].span == LF_SPAN_COLUMN)
            return true;
    return false;
}

static bool is_wide_product(const lf_group *g, int32_t phase)
{
    const lf_product *p = lf_product_in(g, phase); /* all of a phase are wide, or none */
    return p && !p->narrow;
}

static void find_ranges(lf_emitter *e)
{
    const lf_group *g = e->g;
    e->ranges = 0;
    for (int32_t p = 0; p < g->phases; p++) {
        const bool product = is_wide_product(g, p);
        bool begins = p != e->held.phase && (p == 0 || product || is_wide_product(g, p - 1) || ends_columns(g, p - 1) ||
                                             g->phase[p].one_row != g->phase[p - 1].one_row);
        if (begins)
            e->range[e->ranges++] = (lf_range){.first = p, .product = product};
        e->range[e->ranges - 1].end = p + 1;
    }
}

int32_t lf_range_of(const lf_emitter *e, int32_t phase)
{
    int32_t r = 0;
    while (e->range[r].end <= phase)
        r++;
    return r;
}

bool lf_is_fed(const lf_emitter *e, int32_t stat, int32_t phase)
{
    const lf_stat *s = &e->g->stat[stat];
    return s->phase == phase && s->span == LF_SPAN_ROW;
}

/* Products multiply the same x, so none of their phases reads a statistic of another's: what the first of them feeds is
 * finished behind the last. */
int32_t lf_finished_in(const lf_emitter *e, int32_t stat)
{
    const lf_stat *s = &e->g->stat[stat];
    if (s->span == LF_SPAN_COLUMN)
        return -1;
    int32_t r = lf_range_of(e, s->phase);
    if (e->range[r].product && e->held.phase < 0)
        while (++r < e->ranges && (e->range[r].product || e->g->phase[e->range[r].first].one_row))
            ;
    return r < e->ranges ? r : -1;
}

/* ---- memory ---- */

static bool read_elsewhere(const lf_emitter *e, int32_t stat)
{
    lf_touch at;
    for (lf_touches all = lf_touches_of(e->g); lf_touch_next(&all, &at);)
        if (lf_touches_this(&at, LF_STAT, stat) && lf_range_of(e, at.phase) != lf_finished_in(e, stat))
            return true;
    return false;
}

static void place_stat(lf_emitter *e, int32_t i)
{
    const lf_stat *s = &e->g->stat[i];
    const lf_monoid_info *m = lf_monoid_row(s->monoid);
    const lf_phase *p = &e->g->phase[s->phase];
    lf_extent own = s->span == LF_SPAN_ROW ? lf_extent_of(1) : s->span == LF_SPAN_COLUMN ? p->width : s->count;
    if (s->span == LF_SPAN_WINDOW && !lf_extent_mul(s->count, s->groups, &own))
        e->failed = true; /* the reader allows no such extents */
    e->partial[i] = e->column[i] = -1;
    for (int k = 0; k < LF_MAX_RESULTS; k++) {
        bool stored = k < m->results && i != e->held.run && (s->span != LF_SPAN_ROW || read_elsewhere(e, i));
        e->result[i][k] = stored ? whole_area(e, p->one_row || s->span == LF_SPAN_COLUMN, own, 1, LF_F32) : -1;
    }
    if (s->span == LF_SPAN_ROW && e->range[lf_range_of(e, s->phase)].product)
        e->partial[i] = add_area(e, (lf_cuda_area){e->g->rows, p->width, 1, lf_partial_columns(e), m->states, LF_F32});
    if (s->span == LF_SPAN_COLUMN) {
        e->column[i] = whole_area(e, p->one_row, p->width, 1, LF_F32);
        e->partial[i] = add_area(e, (lf_cuda_area){p->one_row ? lf_extent_of(1) : e->g->rows, p->width,
                                                   LF_CUDA_COLUMN_ROWS, 1, m->states, LF_F32});
    }
}

/* Where rows are done again, values wait in outputs if they can: memory for all rows would lie there for nothing most
 * of the time. The first time they lie beside them, which is faster: loads do not wait for stores that may be to the
 * same place. */
static void find_homes(lf_emitter *e)
{
    for (int32_t k = 0; k < e->g->kepts; k++)
        e->home[k] = e->g->kept[k];
    for (int32_t k = 0; k < e->g->kepts && e->role != LF_CUDA_MAIN; k++)
        if (e->home[k].in_output < 0)
            e->home[k].in_output = lf_kept_output(e->plan, e->g, e->home, k);
}

static bool begin_group(lf_emitter *e, int32_t index)
{
    const lf_group *g = e->g = &e->plan->group[index];
    e->group = index;
    e->range = calloc((size_t)g->phases + 1, sizeof *e->range);
    e->kept = calloc((size_t)g->kepts + 1, sizeof *e->kept);
    e->home = calloc((size_t)g->kepts + 1, sizeof *e->home);
    e->result = calloc((size_t)g->stats + 1, sizeof *e->result);
    e->partial = calloc((size_t)g->stats + 1, sizeof *e->partial);
    e->column = calloc((size_t)g->stats + 1, sizeof *e->column);
    if (!e->range || !e->kept || !e->home || !e->result || !e->partial || !e->column)
        return false;
    find_homes(e);
    e->tensor = lf_tensor_product(e->target, g);
    e->held = lf_held_on(e->target, g);
    find_ranges(e);
    if (e->tensor) {
        int chunk;
        lf_place_x(e, &e->x_input, &e->x_lines);
        e->x_brought = e->x_input < 0 && e->x_lines < 0;
        if (e->x_brought)
            e->x_lines = whole_area(e, false, lf_extent_of(lf_tensor_lines(e->target, e->tensor, &chunk)),
                                    LF_LINE / (int)sizeof(float), LF_F32);
        e->x_scale = whole_area(e, false, lf_extent_of(1), 1, LF_F32);
    }
    for (int32_t k = 0; k < g->kepts; k++)
        e->kept[k] = e->home[k].in_output >= 0 || k == e->held.kept ? -1
                     : lf_is_of_block(e, k)
                         ? LF_IN_BLOCK
                         : whole_area(e, g->kept[k].one_row, g->kept[k].width, 1, g->kept[k].dtype);
    for (int32_t i = 0; i < g->stats; i++)
        place_stat(e, i);
    return true;
}

static void end_group(lf_emitter *e)
{
    free(e->range);
    free(e->kept);
    free(e->home);
    free(e->result);
    free(e->partial);
    free(e->column);
}

static void emit_group(lf_emitter *e, int32_t index)
{
    if (!begin_group(e, index)) {
        e->failed = true;
        end_group(e);
        return;
    }
    lf_str_addf(&e->s, "// ---- group %d: %s ----\n\n", (int)index, e->g->name);
    for (int32_t r = 0; r < e->ranges; r++) {
        if (e->range[r].product)
            lf_emit_product(e, r);
        else
            lf_emit_rows(e, r);
        for (int32_t i = 0; i < e->g->stats; i++)
            if (e->g->stat[i].span == LF_SPAN_COLUMN && lf_range_of(e, e->g->stat[i].phase) == r)
                lf_emit_columns(e, i);
    }
    end_group(e);
}

/* ---- all of it ---- */

/* A field of Args; what is said of it follows. */
static void begin_field(lf_emitter *e, const char *type, const char *name, int32_t number, const char *end)
{
    lf_str_addf(&e->s, "    %s%s%d%s", type, name, (int)number, end);
    lf_str_pad(&e->s, FIELD_COLUMNS);
    lf_str_add(&e->s, " // ");
}

/* A tensor's memory, of its type. */
static void emit_pointer(lf_emitter *e, const char *qualifier, const char *name, int32_t number, lf_node node)
{
    char type[32];
    snprintf(type, sizeof type, "%s%s *", qualifier, lf_emit_type(lf_stored_dtype(e->plan, node)));
    begin_field(e, type, name, number, ";");
    lf_emit_shape(e, node);
    lf_str_add(&e->s, "\n");
}

static void emit_arguments(lf_emitter *e, lf_str *to)
{
    const lf_plan *plan = e->plan;
    const int products = (int)lf_at_least_one(plan->products);
    lf_str body = e->s;
    e->s = *to;
    lf_str_add(&e->s, "struct Args {\n");
    for (int32_t i = 0; i < e->graph->inputs; i++)
        emit_pointer(e, "const ", "in", i, e->graph->input[i]);
    for (int32_t i = 0; i < plan->prepareds; i++)
        emit_pointer(e, "const ", "prepared", i, plan->prepared[i]);
    begin_field(e, "const double *", "narrow[", products, "];");
    lf_str_add(&e->s, "by product: of few columns, its weight and then its bias\n");
    begin_field(e, "const float *", "scale[", products, "];");
    lf_str_add(&e->s, "by product: what undoes the scaling of a weight's rows\n");
    for (int32_t i = 0; i < e->graph->outputs; i++)
        emit_pointer(e, "", "out", i, e->graph->output[i]);
    begin_field(e, "i64 ", "out_each[", (int32_t)lf_at_least_one(e->graph->outputs), "];");
    lf_str_add(&e->s, "elements of each row of the batch\n");
    for (int32_t i = 0; i < plan->buffers; i++)
        emit_pointer(e, "", "area", i, plan->buffer[i].node);
    for (int32_t i = plan->buffers; i < e->out->areas; i++)
        lf_str_addf(&e->s, "    %s *area%d;\n", lf_emit_type(e->out->area[i].dtype), (int)i);
    begin_field(e, "i64 ", "dim[", (int32_t)lf_at_least_one(e->graph->symbols), "];");
    for (int i = 0; i < e->graph->symbols; i++)
        lf_str_addf(&e->s, "%s%s", i ? ", " : "", e->graph->symbol[i]);
    lf_str_add(&e->s, "\n    Redo redo;\n};\n\n");
    *to = e->s;
    e->s = body;
}

void lf_emit_part(lf_emitter *e, const char *name)
{
    lf_str head = {0}, before = e->s;
    e->s = (lf_str){0};
    for (int32_t i = 0; i < e->plan->buffers; i++) /* area i is buffer i */
        add_area(e, (lf_cuda_area){e->plan->buffer[i].elements, lf_extent_of(1), 1, 1, 1, e->plan->buffer[i].dtype});
    for (int32_t i = 0; i < e->plan->groups && !e->failed; i++)
        emit_group(e, i);
    emit_arguments(e, &head);
    lf_str_addf(&before, "namespace %s {\n\n", name);
    if (head.text)
        lf_str_addn(&before, head.text, head.length);
    if (e->s.text)
        lf_str_addn(&before, e->s.text, e->s.length);
    lf_str_addf(&before, "} // namespace %s\n\n", name);
    e->failed = e->failed || e->s.failed || head.failed;
    lf_str_free(&e->s);
    lf_str_free(&head);
    e->s = before;
}
