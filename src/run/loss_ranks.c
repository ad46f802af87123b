/* SPDX-License-Identifier: Apache-2.0 */
#include "run/loss_ranks.h"

#include <inttypes.h>
#include <string.h>

#include "base/mem.h"

/* What a rank sends: its words, and then `numbers_of` floats for each token that counts. */
typedef struct words {
    int64_t first, count;
} words;

/* Only label smoothing asks for the sum of all logits. */
static size_t numbers_of(const lf_loss_job *job)
{
    return job->loss->options.label_smoothing > 0 ? 4 : 3;
}

/* Of one rank, a multiple of 8, so that every rank's are aligned. */
static size_t sent_bytes(const lf_loss_job *job)
{
    const size_t rows = (size_t)job->counts * numbers_of(job) * sizeof(float);
    return sizeof(words) + (rows + 7) / 8 * 8;
}

size_t lf_loss_exchange_bytes(const lf_exchange *exchange, const lf_loss_job *job)
{
    return ((size_t)exchange->ranks + 1) * sent_bytes(job);
}

static void pack(const lf_loss_job *job, const lf_loss_row *rows, unsigned char *to)
{
    const words mine = {job->loss->options.first_word, job->words};
    const size_t bytes = numbers_of(job) * sizeof(float);
    memset(to, 0, sent_bytes(job));
    memcpy(to, &mine, sizeof mine);
    for (int64_t i = 0; i < job->counts; i++) {
        const lf_loss_row *row = &rows[job->counted[i]];
        const float numbers[] = {row->largest, row->sum, row->target, row->all};
        memcpy(to + sizeof mine + (size_t)i * bytes, numbers, bytes);
    }
}

static lf_loss_part part_at(const lf_loss_job *job, const unsigned char *sent, int64_t i)
{
    float numbers[4] = {0};
    const size_t bytes = numbers_of(job) * sizeof(float);
    memcpy(numbers, sent + sizeof(words) + (size_t)i * bytes, bytes);
    return (lf_loss_part){(double)numbers[0], (double)numbers[1], (double)numbers[2], (double)numbers[3], 0};
}

/* All ranks see the same words, so that all of them fail or none. */
static lf_status check_words(const lf_exchange *exchange, const lf_loss_job *job, const unsigned char *all,
                             lf_diag *diag)
{
    int64_t end = 0;
    for (int rank = 0; rank < exchange->ranks; rank++) {
        words has;
        memcpy(&has, all + (size_t)rank * sent_bytes(job), sizeof has);
        if (has.first != end)
            return lf_fail(diag, LF_ERR_DATA,
                           "rank %d has words from %" PRId64 " on, but those before it end at %" PRId64
                           "; words follow one another in order of rank", rank, has.first, end);
        end += has.count;
    }
    if ((double)end != job->all_words)
        return lf_fail(diag, LF_ERR_DATA, "%d ranks have %" PRId64 " of %.0f words", exchange->ranks, end,
                       job->all_words);
    return LF_OK;
}

/* What the ranks sent, to be combined TOGETHER tokens at a time. */
enum { TOGETHER = 64 };
typedef struct meeting {
    const lf_loss_job *job;
    const unsigned char *all; /* [ranks][each bytes] */
    size_t each;
    int ranks;
    lf_loss_row *rows;
} meeting;

static void combine(void *arg, int64_t index, int slot)
{
    const meeting *m = arg;
    (void)slot;
    for (int64_t i = index * TOGETHER; i < lf_min64((index + 1) * TOGETHER, m->job->counts); i++) {
        lf_loss_part sum = part_at(m->job, m->all, i);
        for (int rank = 1; rank < m->ranks; rank++) {
            const lf_loss_part part = part_at(m->job, m->all + (size_t)rank * m->each, i);
            lf_loss_part_combine(&sum, &part);
        }
        m->rows[m->job->counted[i]] = lf_loss_row_of(&sum);
    }
}

lf_status lf_loss_exchange(const lf_exchange *exchange, const lf_loss_job *job, lf_loss_row *rows, void *room,
                           lf_diag *diag)
{
    const size_t each = sent_bytes(job);
    unsigned char *mine = room, *all = mine + each;
    pack(job, rows, mine);
    if (exchange->gather(exchange->user, mine, each, all) != 0)
        return lf_fail(diag, LF_ERR_IO, "the exchange between ranks failed: gather of %zu bytes", each);
    const lf_status status = check_words(exchange, job, all, diag);
    meeting m = {job, all, each, exchange->ranks, rows};
    if (status == LF_OK)
        lf_pool_run(job->pool, lf_ceil_div(job->counts, TOGETHER), combine, &m);
    return status;
}

lf_status lf_loss_sum(const lf_exchange *exchange, float *numbers, size_t count, lf_diag *diag)
{
    if (count > 0 && exchange->sum(exchange->user, numbers, count) != 0)
        return lf_fail(diag, LF_ERR_IO, "the exchange between ranks failed: sum of %zu numbers", count);
    return LF_OK;
}
