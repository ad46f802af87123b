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
#include "cpu/call.h"

static bool in_blocks(const lf_cpu_call *c) { return c->program->task.batch.symbol >= 0; }

static int64_t block_rows(const lf_cpu_call *c, const lf_backend_job *job)
{
    return in_blocks(c) && job->batch > LF_REDO_ROWS ? LF_REDO_ROWS : job->batch;
}

/* Bytes of one row of a port that has so many elements. */
static size_t row_bytes(const lf_graph *g, const lf_backend_job *job, lf_node port, size_t count)
{
    return lf_bytes_of(g, port, count / (size_t)job->batch);
}

static void block_dims(const lf_cpu_call *c, const lf_backend_job *job, int64_t rows, int64_t *dims)
{
    memcpy(dims, job->dims, LF_MAX_SYMBOLS * sizeof *dims);
    if (in_blocks(c))
        dims[c->program->task.batch.symbol] = rows;
}

static bool gathers(const lf_cpu_call *c, int32_t input)
{
    return in_blocks(c) && c->program->task.batch.input_rows[input];
}

lf_status lf_redo_new(lf_cpu_call *c)
{
    const lf_graph *g = c->program->task.fused->graph;
    const size_t in = (size_t)g->inputs + 1, outs = (size_t)g->outputs + 1;
    lf_redo *r = &c->redo;
    if (!c->program->task.guarded)
        return LF_OK;
    r->input = lf_arena_array(&c->arena, in, sizeof *r->input);
    r->feed = lf_arena_array(&c->arena, in, sizeof *r->feed);
    r->input_size = lf_arena_array(&c->arena, in, sizeof *r->input_size);
    r->output = lf_arena_array(&c->arena, outs, sizeof *r->output);
    r->output_size = lf_arena_array(&c->arena, outs, sizeof *r->output_size);
    return r->input && r->feed && r->input_size && r->output && r->output_size ? LF_OK : LF_ERR_NOMEM;
}

static lf_status reserve(void **memory, size_t *size, size_t wanted, lf_diag *diag)
{
    if (wanted <= *size)
        return LF_OK;
    lf_aligned_free(*memory);
    *size = 0;
    *memory = lf_aligned_alloc(wanted);
    if (!*memory)
        return lf_fail_nomem(diag, "rows that may have to be redone");
    *size = wanted;
    return LF_OK;
}

lf_status lf_redo_reserve(lf_cpu_call *c, const lf_backend_job *job, lf_diag *diag)
{
    const lf_graph *g = c->program->task.exact->graph;
    const lf_cpu_instance *instance;
    const int64_t rows = block_rows(c, job);
    int64_t dims[LF_MAX_SYMBOLS];
    lf_status status = LF_OK;
    if (job->batch == 0)
        return LF_OK;
    for (int32_t i = 0; i < g->inputs && status == LF_OK; i++)
        if (gathers(c, i))
            status = reserve(&c->redo.input[i], &c->redo.input_size[i],
                             row_bytes(g, job, g->input[i], job->input_count[i]) * (size_t)rows, diag);
    for (int32_t i = 0; i < g->outputs && status == LF_OK; i++)
        status = reserve(&c->redo.output[i], &c->redo.output_size[i],
                         row_bytes(g, job, g->output[i], job->output_count[i]) * (size_t)rows, diag);
    block_dims(c, job, rows, dims);
    return status == LF_OK ? lf_call_sized(c, c->program->task.exact, dims, &instance, diag) : status;
}

void lf_redo_free(lf_cpu_call *c)
{
    const lf_graph *g = c->program->task.fused->graph;
    for (int32_t i = 0; c->redo.input && i < g->inputs; i++)
        lf_aligned_free(c->redo.input[i]);
    for (int32_t i = 0; c->redo.output && i < g->outputs; i++)
        lf_aligned_free(c->redo.output[i]);
}

size_t lf_redo_bytes(const lf_cpu_call *c)
{
    const lf_graph *g = c->program->task.fused->graph;
    size_t bytes = 0;
    for (int32_t i = 0; c->redo.input && i < g->inputs; i++)
        bytes += c->redo.input_size[i];
    for (int32_t i = 0; c->redo.output && i < g->outputs; i++)
        bytes += c->redo.output_size[i];
    return bytes;
}

static void copy_row(void *to, int64_t to_row, const void *from, int64_t from_row, size_t bytes)
{
    if (bytes > 0) /* an extent other than the batch may be 0, and then nobody has memory */
        memcpy((char *)to + (size_t)to_row * bytes, (const char *)from + (size_t)from_row * bytes, bytes);
}

/* Runs one block. row: which rows of the batch it holds, `rows` of them, the first `count` to be stored. */
static void redo_block(lf_cpu_call *c, const lf_backend_job *job, const lf_cpu_instance *instance, const int64_t *row,
                       int64_t count, int64_t rows)
{
    const lf_cpu_program *p = c->program;
    const lf_graph *g = p->task.exact->graph;
    for (int32_t i = 0; i < g->inputs; i++) {
        size_t bytes = row_bytes(g, job, g->input[i], job->input_count[i]);
        for (int64_t r = 0; gathers(c, i) && r < rows; r++)
            copy_row(c->redo.input[i], r, job->input[i], row[r < count ? r : count - 1], bytes);
        c->redo.feed[i] = gathers(c, i) ? c->redo.input[i] : job->input[i];
    }
    lf_cpu_run(instance, p->exact, c->redo.feed, c->redo.output, c->workspace, NULL, rows, p->task.pool);
    for (int32_t o = 0; o < g->outputs; o++)
        for (int64_t r = 0; r < count; r++)
            copy_row(job->output[o], row[r], c->redo.output[o], r,
                     row_bytes(g, job, g->output[o], job->output_count[o]));
}

/* All rows at once, the flagged ones to be stored. */
static void redo_all(lf_cpu_call *c, const lf_backend_job *job, const lf_cpu_instance *instance)
{
    const lf_cpu_program *p = c->program;
    const lf_graph *g = p->task.exact->graph;
    lf_cpu_run(instance, p->exact, job->input, c->redo.output, c->workspace, NULL, job->batch, p->task.pool);
    for (int32_t o = 0; o < g->outputs; o++)
        for (int64_t r = 0; r < job->batch; r++)
            if (c->flagged[r])
                copy_row(job->output[o], r, c->redo.output[o], r,
                         row_bytes(g, job, g->output[o], job->output_count[o]));
}

void lf_redo_rows(lf_cpu_call *c, const lf_backend_job *job)
{
    int64_t row[LF_REDO_ROWS], count = 0, rows = block_rows(c, job), dims[LF_MAX_SYMBOLS];
    const lf_cpu_instance *instance = NULL;
    for (int64_t r = 0; r < job->batch; r++)
        c->rows_redone += c->flagged[r];
    if (c->rows_redone == 0)
        return;
    block_dims(c, job, rows, dims);
    lf_status status = lf_call_sized(c, c->program->task.exact, dims, &instance, NULL);
    assert(status == LF_OK && "reserved before the run");
    (void)status;
    if (!in_blocks(c)) {
        redo_all(c, job, instance);
        return;
    }
    for (int64_t r = 0; r < job->batch; r++) {
        if (c->flagged[r])
            row[count++] = r;
        if (count == 0 || (count < LF_REDO_ROWS && r + 1 < job->batch))
            continue;
        redo_block(c, job, instance, row, count, rows);
        count = 0;
    }
}
