/* SPDX-License-Identifier: Apache-2.0 */
/* Redoing rows as written. A guarded rewrite is true for finite numbers; the kernel flags the rows in which its witness
 * was not finite, and here those rows alone are computed again by the plan that uses exact rules only. They are
 * gathered into blocks of LF_REDO_ROWS, so that a batch full of them costs what the model costs as written. A row's
 * bits do not depend on its neighbours, so the last block may be filled up with copies of its last row.
 *
 * Where the batch is not a named extent of its own, the plan cannot be run on fewer rows: it runs on all, and the
 * flagged rows are taken from that. */
#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "run/call.h"

static bool in_blocks(const lf_call *c) { return c->program->batch.symbol >= 0; }

static int64_t block_rows(const lf_call *c)
{
    return in_blocks(c) && c->batch > LF_REDO_ROWS ? LF_REDO_ROWS : c->batch;
}

/* Elements of one row of a port that has so many. */
static size_t row_width(const lf_call *c, size_t count) { return count / (size_t)c->batch; }

static void block_dims(const lf_call *c, int64_t rows, int64_t *dims)
{
    memcpy(dims, c->dims, sizeof c->dims);
    if (in_blocks(c))
        dims[c->program->batch.symbol] = rows;
}

static bool gathers(const lf_call *c, int32_t input) { return in_blocks(c) && c->program->batch.input_rows[input]; }

static lf_status reserve(lf_call *c, float **memory, size_t *size, size_t wanted)
{
    if (wanted <= *size)
        return LF_OK;
    lf_aligned_free(*memory);
    *size = 0;
    *memory = lf_aligned_alloc(wanted * sizeof **memory);
    if (!*memory)
        return lf_fail_nomem(&c->diag, "rows that may have to be redone");
    *size = wanted;
    return LF_OK;
}

lf_status lf_redo_reserve(lf_call *c)
{
    const lf_graph *g = &c->program->written;
    const lf_cpu_instance *instance;
    int64_t rows = block_rows(c), dims[LF_MAX_SYMBOLS];
    lf_status status = LF_OK;
    if (c->batch == 0)
        return LF_OK;
    for (int32_t i = 0; i < g->inputs && status == LF_OK; i++)
        if (gathers(c, i))
            status =
                reserve(c, &c->redo.input[i], &c->redo.input_size[i], row_width(c, c->input_count[i]) * (size_t)rows);
    for (int32_t i = 0; i < g->outputs && status == LF_OK; i++)
        status =
            reserve(c, &c->redo.output[i], &c->redo.output_size[i], row_width(c, c->output_count[i]) * (size_t)rows);
    block_dims(c, rows, dims);
    return status == LF_OK ? lf_call_sized(c, c->program->exact.plan, dims, &instance) : status;
}

void lf_redo_free(lf_call *c)
{
    for (int32_t i = 0; c->redo.input && i < c->program->written.inputs; i++)
        lf_aligned_free(c->redo.input[i]);
    for (int32_t i = 0; c->redo.output && i < c->program->written.outputs; i++)
        lf_aligned_free(c->redo.output[i]);
}

static void copy_row(float *to, int64_t to_row, const float *from, int64_t from_row, size_t width)
{
    if (width > 0) /* an extent other than the batch may be 0, and then nobody has memory */
        memcpy(to + (size_t)to_row * width, from + (size_t)from_row * width, width * sizeof *to);
}

/* Runs one block. row: which rows of the batch it holds, `rows` of them, the first `count` to be stored. */
static void redo_block(lf_call *c, const lf_cpu_instance *instance, const int64_t *row, int64_t count, int64_t rows)
{
    const lf_program *p = c->program;
    const lf_graph *g = &p->written;
    for (int32_t i = 0; i < g->inputs; i++) {
        size_t width = row_width(c, c->input_count[i]);
        for (int64_t r = 0; gathers(c, i) && r < rows; r++)
            copy_row(c->redo.input[i], r, c->input[i], row[r < count ? r : count - 1], width);
        c->redo.feed[i] = gathers(c, i) ? c->redo.input[i] : c->input[i];
    }
    lf_cpu_run(instance, p->exact.weights, c->redo.feed, c->redo.output, c->workspace, NULL, rows, p->context->pool);
    for (int32_t o = 0; o < g->outputs; o++)
        for (int64_t r = 0; r < count; r++)
            copy_row(c->output[o], row[r], c->redo.output[o], r, row_width(c, c->output_count[o]));
}

/* All rows at once, the flagged ones to be stored. */
static void redo_all(lf_call *c, const lf_cpu_instance *instance)
{
    const lf_graph *g = &c->program->written;
    lf_cpu_run(instance, c->program->exact.weights, c->input, c->redo.output, c->workspace, NULL, c->batch,
               c->program->context->pool);
    for (int32_t o = 0; o < g->outputs; o++)
        for (int64_t r = 0; r < c->batch; r++)
            if (c->flagged[r])
                copy_row(c->output[o], r, c->redo.output[o], r, row_width(c, c->output_count[o]));
}

void lf_redo_rows(lf_call *c)
{
    int64_t row[LF_REDO_ROWS], count = 0, rows = block_rows(c), dims[LF_MAX_SYMBOLS];
    const lf_cpu_instance *instance = NULL;
    for (int64_t r = 0; r < c->batch; r++)
        c->rows_redone += c->flagged[r];
    if (c->rows_redone == 0)
        return;
    block_dims(c, rows, dims);
    lf_status status = lf_call_sized(c, c->program->exact.plan, dims, &instance);
    assert(status == LF_OK && "reserved before the run");
    (void)status;
    if (!in_blocks(c)) {
        redo_all(c, instance);
        return;
    }
    for (int64_t r = 0; r < c->batch; r++) {
        if (c->flagged[r])
            row[count++] = r;
        if (count == 0 || (count < LF_REDO_ROWS && r + 1 < c->batch))
            continue;
        redo_block(c, instance, row, count, rows);
        count = 0;
    }
}
