/* SPDX-License-Identifier: Apache-2.0 */
/* lf_loss_*: arguments checked, tokens counted, and what is made of statistics. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "cpu/cpu.h"
#include "cpu/loss.h"
#include "run/handles.h"
#include "run/loss_ranks.h"

/* ---- checking ---- */

static lf_status check_tensor(const lf_tensor *t, const char *name, int rank, const int64_t *extents, lf_diag *diag)
{
    if (!lf_dtype_name(t->dtype) || !lf_dtype_is_float(t->dtype))
        return lf_fail(diag, LF_ERR_DATA, "%s: its type is none of f32, f16 and bf16", name);
    if (t->memory != LF_HOST)
        return lf_fail(diag, LF_ERR_UNSUPPORTED, "%s: losses take tensors in host memory so far", name);
    if (t->rank != rank)
        return lf_fail(diag, LF_ERR_DATA, "%s has rank %d; it takes %d", name, t->rank, rank);
    if (!t->extents)
        return lf_fail(diag, LF_ERR_ARG, "%s: `extents` must not be NULL", name);
    for (int64_t axis = rank - 1, step = 1; axis >= 0; step *= t->extents[axis--]) {
        if (t->extents[axis] != extents[axis])
            return lf_fail(diag, LF_ERR_DATA, "%s: extent %d is %" PRId64 ", but must be %" PRId64, name, (int)axis,
                           t->extents[axis], extents[axis]);
        if (t->strides && t->strides[axis] != step && t->extents[axis] != 1)
            return lf_fail(diag, LF_ERR_UNSUPPORTED, "%s: elements must be row-major, without gaps", name);
    }
    return LF_OK;
}

/* x and weight say what all extents are. */
static lf_status read_extents(lf_loss_job *job, const lf_loss *loss, lf_diag *diag)
{
    const lf_tensor *x = &loss->x, *w = &loss->weight;
    int64_t all;
    if (x->rank != 2 || w->rank != 2 || !x->extents || !w->extents)
        return lf_fail(diag, LF_ERR_DATA, "x and weight have rank %d and %d; both take 2", x->rank, w->rank);
    job->tokens = x->extents[0];
    job->words = w->extents[0];
    job->depth = w->extents[1];
    if (job->tokens < 0 || job->words < 1 || job->depth < 1)
        return lf_fail(diag, LF_ERR_DATA, "x [%" PRId64 ", %" PRId64 "] and weight [%" PRId64 ", %" PRId64
                       "]: an extent must be positive", x->extents[0], x->extents[1], job->words, job->depth);
    if (!lf_mul_i64(job->tokens, job->depth, &all) || all > LF_MAX_ELEMENTS ||
        !lf_mul_i64(job->words, job->depth, &all) || all > LF_MAX_ELEMENTS)
        return lf_fail(diag, LF_ERR_DATA, "x or weight has more elements than can be counted");
    if (!w->data || (!x->data && job->tokens > 0) || (!loss->target && job->tokens > 0))
        return lf_fail_null(diag, !w->data ? "weight" : !x->data ? "x" : "target");
    return LF_OK;
}

static lf_status check_options(lf_loss_job *job, const lf_loss *loss, lf_diag *diag)
{
    const lf_loss_options *o = &loss->options;
    const int64_t words = o->words == 0 ? job->words : o->words;
    if (o->reduction != LF_MEAN && o->reduction != LF_SUM)
        return lf_fail(diag, LF_ERR_ARG, "`reduction` is neither LF_MEAN nor LF_SUM");
    if (!(o->label_smoothing >= 0 && o->label_smoothing <= 1))
        return lf_fail(diag, LF_ERR_DATA, "label_smoothing is %g; it lies between 0 and 1", o->label_smoothing);
    if (!(o->softcap >= 0) || isinf(o->softcap) || !(o->temperature >= 0) || isinf(o->temperature))
        return lf_fail(diag, LF_ERR_DATA, "softcap is %g and temperature %g; they are positive, or 0", o->softcap,
                       o->temperature);
    if (!isfinite(o->z_loss))
        return lf_fail(diag, LF_ERR_DATA, "z_loss is %g; it is finite", o->z_loss);
    if (o->first_word < 0 || words < 1 || o->first_word > words - job->words)
        return lf_fail(diag, LF_ERR_DATA, "words %" PRId64 " to %" PRId64 " are not within a vocabulary of %" PRId64,
                       o->first_word, o->first_word + job->words - 1, words);
    job->all_words = (double)words;
    job->all_weights = o->class_weight ? 0 : (double)words;
    for (int64_t i = 0; o->class_weight && i < words; i++)
        job->all_weights += (double)o->class_weight[i];
    return LF_OK;
}

static lf_status check_targets(const lf_loss_job *job, const lf_loss *loss, lf_diag *diag)
{
    for (int64_t i = 0; i < job->tokens; i++) {
        const int64_t t = loss->target[i];
        if (t != loss->options.ignore_index && (t < 0 || (double)t >= job->all_words))
            return lf_fail(diag, LF_ERR_DATA,
                           "target %" PRId64 " is %" PRId64 ", but words are 0 to %.0f; one that is to be left out is "
                           "ignore_index, %" PRId64, i, t, job->all_words - 1, loss->options.ignore_index);
    }
    return LF_OK;
}

static bool overlap(const lf_tensor *a, const lf_tensor *b)
{
    const uintptr_t a0 = (uintptr_t)a->data, b0 = (uintptr_t)b->data;
    return a0 && b0 && a0 < b0 + lf_tensor_bytes(b) && b0 < a0 + lf_tensor_bytes(a);
}

/* They are written while what they are of is still read. */
static lf_status check_apart(const lf_loss *loss, const lf_loss_gradient *g, lf_diag *diag)
{
    static const char *const names[] = {"x", "weight", "bias"};
    const lf_tensor *to[] = {&g->x, &g->weight, &g->bias}, *from[] = {&loss->x, &loss->weight, &loss->bias};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++)
            if (overlap(to[i], from[k]) || (k < i && overlap(to[i], to[k])))
                return lf_fail(diag, LF_ERR_ARG, "the gradient of %s overlaps %s%s", names[i],
                               overlap(to[i], from[k]) ? "" : "that of ", names[k]);
    return LF_OK;
}

static lf_status check_gradient(const lf_loss_job *job, const lf_loss_gradient *g, lf_diag *diag)
{
    const int64_t x[] = {job->tokens, job->depth}, w[] = {job->words, job->depth};
    lf_status status = LF_OK;
    if (g->x.data)
        status = check_tensor(&g->x, "the gradient of x", 2, x, diag);
    if (status == LF_OK && g->weight.data)
        status = check_tensor(&g->weight, "the gradient of weight", 2, w, diag);
    if (status == LF_OK && g->bias.data)
        status = check_tensor(&g->bias, "the gradient of bias", 1, w, diag);
    return status == LF_OK ? check_apart(job->loss, g, diag) : status;
}

static lf_status count_tokens(lf_loss_job *job, const lf_loss *loss, int64_t **counted, lf_diag *diag)
{
    *counted = malloc((size_t)job->tokens * sizeof **counted + 1);
    if (!*counted)
        return lf_fail_nomem(diag, "the tokens that count");
    for (int64_t i = 0; i < job->tokens; i++)
        if (loss->target[i] != loss->options.ignore_index)
            (*counted)[job->counts++] = i;
    job->counted = *counted;
    return LF_OK;
}

/* *counted: the job's; to be freed, on failure too. */
static lf_status begin(lf_context *context, const lf_loss *loss, const lf_loss_gradient *gradient, lf_loss_job *job,
                       int64_t **counted)
{
    lf_diag *diag = &context->diag;
    *job = (lf_loss_job){.loss = loss};
    *counted = NULL;
    lf_status status = loss ? read_extents(job, loss, diag) : lf_fail_null(diag, "loss");
    const int64_t x[] = {job->tokens, job->depth}, w[] = {job->words, job->depth};
    if (status == LF_OK)
        status = check_tensor(&loss->x, "x", 2, x, diag);
    if (status == LF_OK)
        status = check_tensor(&loss->weight, "weight", 2, w, diag);
    if (status == LF_OK && loss->bias.data)
        status = check_tensor(&loss->bias, "bias", 1, w, diag);
    if (status == LF_OK)
        status = check_options(job, loss, diag);
    if (status == LF_OK)
        status = check_targets(job, loss, diag);
    if (status == LF_OK && gradient)
        status = check_gradient(job, gradient, diag);
    if (status == LF_OK)
        status = lf_context_pool(context);
    if (status == LF_OK)
        status = lf_cpu_kernels(&job->kern, diag);
    job->pool = context->pool;
    return status == LF_OK ? count_tokens(job, loss, counted, diag) : status;
}

static lf_status run(lf_context *context, const lf_loss_job *job, const lf_loss_pass *pass)
{
    const int before = lf_pool_limit(job->loss->options.threads);
    const lf_status status = lf_loss_run(job, pass, &context->diag);
    lf_pool_limit(before);
    return status;
}

/* ---- reductions ---- */

/* What sums of cross-entropy and of z_loss are divided by. */
typedef struct divisors {
    double cross_entropy, z;
} divisors;

static divisors divisors_of(const lf_loss_job *job)
{
    if (job->loss->options.reduction == LF_SUM)
        return (divisors){1, 1};
    divisors d = {0, (double)job->counts};
    for (int64_t i = 0; i < job->counts; i++)
        d.cross_entropy += lf_loss_share(job, job->counted[i]);
    return d;
}

static double reduced(const lf_loss_job *job, const lf_loss_row *rows)
{
    const divisors by = divisors_of(job);
    double cross_entropy = 0, z = 0;
    for (int64_t i = 0; i < job->counts; i++) {
        const lf_loss_numbers n = lf_loss_numbers_of(job, job->counted[i], &rows[job->counted[i]]);
        cross_entropy += n.cross_entropy;
        z += n.z;
    }
    cross_entropy /= by.cross_entropy;
    return job->loss->options.z_loss == 0 ? cross_entropy : cross_entropy + z / by.z;
}

/* ---- in one pass ---- */

typedef struct evenly {
    double scale;
    divisors by;
} evenly;

static lf_loss_seed seed_evenly(const void *arg, const lf_loss_job *job, int64_t token)
{
    const evenly *e = arg;
    (void)job, (void)token;
    return (lf_loss_seed){.cross_entropy = e->scale / e->by.cross_entropy, .z = e->scale / e->by.z};
}

/* Whether the words are split over ranks. */
static bool over_ranks(const lf_context *context, const lf_loss_job *job)
{
    return context->exchange.ranks > 1 && job->all_words != (double)job->words;
}

/* The gradient with x's in f32, in which it is summed over ranks: in place, or in a buffer of its own. */
static lf_loss_gradient in_f32(const lf_loss_job *job, const lf_loss_gradient *gradient, float *x)
{
    lf_loss_gradient wide = *gradient;
    if (x)
        wide.x = (lf_tensor){.data = x, .dtype = LF_F32, .rank = 2, .extents = job->loss->x.extents};
    return wide;
}

static bool needs_f32(const lf_loss_gradient *gradient)
{
    return gradient && gradient->x.data && gradient->x.dtype != LF_F32;
}

/* By statistics: each rank's, all ranks', and then this rank's share of the gradients, of which x's is summed up. */
static lf_status step_over_ranks(lf_context *context, const lf_loss_job *job, lf_loss_row *rows, const evenly *e,
                                 const lf_loss_gradient *gradient)
{
    const lf_exchange *exchange = &context->exchange;
    const size_t numbers = (size_t)(job->tokens * job->depth);
    void *room = malloc(lf_loss_exchange_bytes(exchange, job));
    float *x = needs_f32(gradient) ? malloc(numbers * sizeof *x + 1) : NULL;
    lf_status status = LF_OK;
    if (!room || (needs_f32(gradient) && !x))
        status = lf_fail_nomem(&context->diag, "what ranks exchange");
    if (status == LF_OK)
        status = run(context, job, &(lf_loss_pass){.rows = rows});
    if (status == LF_OK) {
        const int before = lf_pool_limit(job->loss->options.threads);
        status = lf_loss_exchange(exchange, job, rows, room, &context->diag);
        lf_pool_limit(before);
    }
    if (status == LF_OK && gradient) {
        const lf_loss_gradient wide = in_f32(job, gradient, x);
        status = run(context, job,
                     &(lf_loss_pass){.rows = rows, .given = true, .gradient = &wide, .seed = seed_evenly, .arg = e});
        if (status == LF_OK && wide.x.data)
            status = lf_loss_sum(exchange, wide.x.data, numbers, &context->diag);
        if (status == LF_OK && x)
            lf_retype(LF_F32, x, gradient->x.dtype, gradient->x.data, (int64_t)numbers);
    }
    free(room);
    free(x);
    return status;
}

lf_status lf_loss_step(lf_context *context, const lf_loss *loss, double scale, double *value,
                       const lf_loss_gradient *gradient)
{
    lf_loss_job job;
    int64_t *counted;
    if (!context)
        return LF_ERR_ARG;
    lf_status status = begin(context, loss, gradient, &job, &counted);
    if (status == LF_OK && job.all_words != (double)job.words && !over_ranks(context, &job))
        status = lf_fail(&context->diag, LF_ERR_DATA,
                         "weight has %" PRId64 " of %.0f words; a step takes all, or an exchange between ranks "
                         "(lf_context_set_exchange), or lf_loss_rows", job.words, job.all_words);
    lf_loss_row *rows = status == LF_OK ? malloc((size_t)job.tokens * sizeof *rows + 1) : NULL;
    if (status == LF_OK && !rows)
        status = lf_fail_nomem(&context->diag, "the loss's rows");
    if (status == LF_OK) {
        const evenly e = {scale, divisors_of(&job)};
        const lf_loss_pass all = {.rows = rows, .gradient = gradient, .seed = seed_evenly, .arg = &e};
        status = over_ranks(context, &job) ? step_over_ranks(context, &job, rows, &e, gradient)
                                           : run(context, &job, &all);
    }
    if (status == LF_OK && value)
        *value = reduced(&job, rows);
    free(rows);
    free(counted);
    return status;
}

/* ---- by statistics ---- */

lf_status lf_loss_rows(lf_context *context, const lf_loss *loss, lf_loss_row *rows)
{
    lf_loss_job job;
    int64_t *counted;
    if (!context)
        return LF_ERR_ARG;
    lf_status status = begin(context, loss, NULL, &job, &counted);
    if (status == LF_OK && !rows && job.tokens > 0)
        status = lf_fail_null(&context->diag, "rows");
    if (status == LF_OK && job.tokens > 0) {
        memset(rows, 0, (size_t)job.tokens * sizeof *rows);
        status = run(context, &job, &(lf_loss_pass){.rows = rows, .spread = true});
    }
    free(counted);
    return status;
}

lf_status lf_loss_combine(lf_context *context, int64_t count, int ranks, const lf_loss_row *parts, lf_loss_row *rows)
{
    if (!context)
        return LF_ERR_ARG;
    if (count < 0 || ranks < 1)
        return lf_fail(&context->diag, LF_ERR_ARG, "%" PRId64 " tokens of %d ranks cannot be combined", count, ranks);
    if ((!parts || !rows) && count > 0)
        return lf_fail_null(&context->diag, parts ? "rows" : "parts");
    for (int64_t i = 0; i < count; i++) {
        lf_loss_part all = lf_loss_part_of(&parts[i]);
        for (int rank = 1; rank < ranks; rank++) {
            const lf_loss_part part = lf_loss_part_of(&parts[rank * count + i]);
            lf_loss_part_combine(&all, &part);
        }
        rows[i] = lf_loss_row_of(&all);
    }
    return LF_OK;
}

static void give(float *to, int64_t token, double number)
{
    if (to)
        to[token] = (float)number;
}

lf_status lf_loss_values(lf_context *context, const lf_loss *loss, const lf_loss_row *rows, float *each, float *lse,
                         float *entropy, double *value)
{
    lf_loss_job job;
    int64_t *counted;
    if (!context)
        return LF_ERR_ARG;
    lf_status status = begin(context, loss, NULL, &job, &counted);
    if (status == LF_OK && !rows && job.tokens > 0)
        status = lf_fail_null(&context->diag, "rows");
    for (int64_t i = 0; i < job.tokens && status == LF_OK; i++) {
        const bool counts = loss->target[i] != loss->options.ignore_index;
        const lf_loss_numbers n = counts ? lf_loss_numbers_of(&job, i, &rows[i]) : (lf_loss_numbers){0};
        give(each, i, n.cross_entropy + n.z);
        give(lse, i, n.lse);
        give(entropy, i, n.entropy);
    }
    if (status == LF_OK && value)
        *value = reduced(&job, rows);
    free(counted);
    return status;
}

typedef struct arrays {
    const float *each, *lse, *entropy;
} arrays;

static lf_loss_seed seed_of_arrays(const void *arg, const lf_loss_job *job, int64_t token)
{
    const arrays *a = arg;
    const double each = a->each ? (double)a->each[token] : 0;
    (void)job;
    return (lf_loss_seed){.cross_entropy = each,
                          .z = each,
                          .lse = a->lse ? (double)a->lse[token] : 0,
                          .entropy = a->entropy ? (double)a->entropy[token] : 0};
}

lf_status lf_loss_backward(lf_context *context, const lf_loss *loss, const lf_loss_row *rows, const float *by_each,
                           const float *by_lse, const float *by_entropy, const lf_loss_gradient *gradient)
{
    lf_loss_job job;
    int64_t *counted;
    if (!context)
        return LF_ERR_ARG;
    lf_status status = begin(context, loss, gradient, &job, &counted);
    if (status == LF_OK && (!gradient || (!rows && job.tokens > 0)))
        status = lf_fail_null(&context->diag, gradient ? "rows" : "gradient");
    if (status == LF_OK) {
        const arrays a = {by_each, by_lse, by_entropy};
        status = run(context, &job,
                     &(lf_loss_pass){.rows = (lf_loss_row *)(uintptr_t)rows, .given = true, .gradient = gradient,
                                     .seed = seed_of_arrays, .arg = &a});
    }
    free(counted);
    return status;
}

size_t lf_loss_workspace(lf_context *context, const lf_loss *loss, const lf_loss_gradient *gradient)
{
    lf_loss_job job;
    int64_t *counted;
    size_t bytes = 0;
    if (context && begin(context, loss, gradient, &job, &counted) == LF_OK)
        bytes = lf_loss_bytes(&job, gradient) +
                (size_t)job.tokens * (sizeof *counted + sizeof(lf_loss_row)); /* those that count; a step's rows */
    if (bytes > 0 && over_ranks(context, &job))
        bytes += lf_loss_exchange_bytes(&context->exchange, &job) +
                 (needs_f32(gradient) ? (size_t)(job.tokens * job.depth) * sizeof(float) : 0);
    if (context)
        free(counted);
    return bytes;
}
