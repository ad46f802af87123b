/* SPDX-License-Identifier: Apache-2.0 */
/* A loss's numbers of one token, from statistics of its logits, in double precision. */
#include <math.h>

#include "cpu/loss.h"

const lf_loss_part lf_loss_no_words = {.largest = -INFINITY};

/* What a sum relative to one largest is relative to another; what has no words, or -Inf alone, leaves it alone. */
static double factor(const lf_loss_part *p, double most)
{
    return p->sum == 0 ? 0 : exp(p->largest - most);
}

static double spread(const lf_loss_part *p, double most, double factor)
{
    return factor == 0 ? 0 : factor * (p->spread + (p->largest - most) * p->sum);
}

void lf_loss_part_combine(lf_loss_part *a, const lf_loss_part *b)
{
    const double most = a->largest > b->largest || isnan(a->largest) ? a->largest : b->largest;
    const double f = factor(a, most), g = factor(b, most);
    a->spread = spread(a, most, f) + spread(b, most, g);
    a->sum = (f == 0 ? 0 : f * a->sum) + (g == 0 ? 0 : g * b->sum);
    a->largest = most;
    a->target += b->target;
    a->all += b->all;
}

lf_loss_part lf_loss_part_of(const lf_loss_row *row)
{
    return (lf_loss_part){(double)row->largest, (double)row->sum, (double)row->target, (double)row->all,
                          (double)row->spread};
}

lf_loss_row lf_loss_row_of(const lf_loss_part *part)
{
    return (lf_loss_row){(float)part->largest, (float)part->sum, (float)part->target, (float)part->all,
                         (float)part->spread};
}

double lf_loss_share(const lf_loss_job *job, int64_t token)
{
    const float *weight = job->loss->options.class_weight;
    return weight ? (double)weight[job->loss->target[token]] : 1;
}

lf_loss_numbers lf_loss_numbers_of(const lf_loss_job *job, int64_t token, const lf_loss_row *row)
{
    const lf_loss_options *o = &job->loss->options;
    const double largest = (double)row->largest, sum = (double)row->sum, e = o->label_smoothing;
    lf_loss_numbers n = {.lse = isinf(largest) ? largest : largest + log(sum)};
    /* of the parts: where one word is certain, lse - target would lose digits */
    n.cross_entropy = (largest - (double)row->target + log(sum)) * lf_loss_share(job, token);
    if (e > 0) {
        const double all = (largest + log(sum)) * job->all_weights - (double)row->all;
        n.cross_entropy = (1 - e) * n.cross_entropy + e / job->all_words * all;
    }
    n.z = o->z_loss == 0 ? 0 : o->z_loss * n.lse * n.lse;
    n.entropy = log(sum) - (double)row->spread / sum;
    return n;
}

lf_loss_slope lf_loss_slope_of(const lf_loss_job *job, int64_t token, const lf_loss_row *row, const lf_loss_seed *seed)
{
    const lf_loss_options *o = &job->loss->options;
    const double e = o->label_smoothing, share = (1 - e) * lf_loss_share(job, token), even = e / job->all_words;
    const lf_loss_numbers n = lf_loss_numbers_of(job, token, row);
    double all = seed->cross_entropy * (share + even * job->all_weights) + seed->lse;
    if (o->z_loss != 0)
        all += seed->z * 2 * o->z_loss * n.lse;
    return (lf_loss_slope){.largest = row->largest,
                           .sum = row->sum,
                           .divisor = (float)((double)row->sum / all),
                           .all = all,
                           .hit = seed->cross_entropy * share,
                           .even = (float)(seed->cross_entropy * even),
                           .entropy = (float)seed->entropy,
                           .shift = (float)(n.entropy - n.lse)};
}
