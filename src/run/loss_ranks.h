/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks that share the words of a loss tell each other, by the caller's own exchange. */
#ifndef LF_RUN_LOSS_RANKS_H
#define LF_RUN_LOSS_RANKS_H

#include "cpu/loss.h"

/* Bytes of workspace that lf_loss_exchange takes. */
size_t lf_loss_exchange_bytes(const lf_exchange *exchange, const lf_loss_job *job);
/* Statistics over all words, from those over this rank's: one gather of at most 16 bytes a token that counts, and of 16
 * that say which words a rank has. Combined in order of rank, in double precision: every rank has the same bits.
 * rows:   [M], in and out.
 * room:   lf_loss_exchange_bytes, aligned for int64_t.
 * Fails:  LF_ERR_DATA where the ranks' words do not follow one another; LF_ERR_IO where the exchange failed. */
lf_status lf_loss_exchange(const lf_exchange *exchange, const lf_loss_job *job, lf_loss_row *rows, void *room,
                           lf_diag *diag);
/* Numbers summed over ranks, in place. Fails: LF_ERR_IO. */
lf_status lf_loss_sum(const lf_exchange *exchange, float *numbers, size_t count, lf_diag *diag);

#endif
