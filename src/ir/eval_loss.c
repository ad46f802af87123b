/* SPDX-License-Identifier: Apache-2.0 */
/* Losses, as PyTorch computes them: the logarithm of each softmax, then what its target says. */
#include "ir/eval_parts.h"

#include <math.h>

/* The logits of one target: `classes` of them, `step` apart from `first` on. */
typedef struct logits {
    const lf_bound *x;
    int64_t first, step, classes;
} logits;

static double logit(const logits *l, int64_t class)
{
    return lf_read(l->x, l->first + class * l->step);
}

/* Largest, and the logarithm of the sum of exp(x - largest). */
static void normalizer(const logits *l, double *largest, double *log_sum)
{
    double sum = 0;
    *largest = -INFINITY;
    for (int64_t c = 0; c < l->classes; c++)
        if (logit(l, c) > *largest || isnan(logit(l, c)))
            *largest = logit(l, c);
    for (int64_t c = 0; c < l->classes; c++)
        sum += exp(logit(l, c) - *largest);
    *log_sum = log(sum);
}

typedef struct terms {
    const lf_bound *weight; /* of a class; not bound: 1 */
    double smoothing;
    int64_t ignored;
} terms;

/* What one target adds to the sum, and to what a mean divides by. NaN where it is no class. */
static void one_target(const logits *l, const terms *t, int64_t target, double *loss, double *share)
{
    double largest, log_sum, all = 0;
    *loss = *share = 0;
    if (target == t->ignored)
        return;
    *loss = *share = NAN;
    if (target < 0 || target >= l->classes)
        return;
    normalizer(l, &largest, &log_sum);
    *share = lf_is_bound(t->weight) ? lf_read(t->weight, target) : 1;
    *loss = -(logit(l, target) - largest - log_sum) * *share;
    if (t->smoothing == 0)
        return;
    for (int64_t c = 0; c < l->classes; c++)
        all -= (logit(l, c) - largest - log_sum) * (lf_is_bound(t->weight) ? lf_read(t->weight, c) : 1);
    *loss = (1 - t->smoothing) * *loss + t->smoothing / (double)l->classes * all;
}

void lf_eval_loss(const lf_site *s)
{
    enum { MEAN, SUM, NONE };
    const int reduction = (int)lf_attr_of(s->g, s->n, "reduction")->number;
    const lf_node x = lf_at(s->g, s->n)->arg[0];
    const int rank = lf_at(s->g, x)->shape.rank, axis = rank > 1;
    const terms t = {&s->arg[2], lf_attr_of(s->g, s->n, "label_smoothing")->number,
                     (int64_t)lf_attr_of(s->g, s->n, "ignore_index")->number};
    int64_t outer = 1, inner = 1;
    for (int i = 0; i < rank; i++)
        *(i < axis ? &outer : &inner) *= i == axis ? 1 : lf_site_extent(s, x, i);
    logits l = {.x = &s->arg[0], .step = inner, .classes = lf_site_extent(s, x, axis)};
    double total = 0, shares = 0;
    for (int64_t i = 0; i < outer * inner; i++) {
        double loss, share;
        l.first = i / inner * inner * l.classes + i % inner;
        one_target(&l, &t, (int64_t)lf_read(&s->arg[1], i), &loss, &share);
        if (reduction == NONE)
            s->out[i] = loss;
        total += loss;
        shares += share;
    }
    if (reduction != NONE)
        s->out[0] = reduction == MEAN ? total / shares : total;
}
