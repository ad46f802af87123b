/* SPDX-License-Identifier: Apache-2.0 */
/* Who reads and writes what: all that a group touches, in one order. Whoever asks "which step of which phase reads this
 * buffer, kept value, statistic or port" asks here.
 *
 *     lf_touch at;
 *     for (lf_touches all = lf_touches_of(group); lf_touch_next(&all, &at);)
 *         if (lf_touches_this(&at, LF_KEPT, k) && !lf_is_write(&at))
 *             ...                                                                     */
#ifndef LF_PLAN_TOUCH_H
#define LF_PLAN_TOUCH_H

#include "plan/plan.h"

/* What touches it; within a phase in this order. `index` of lf_touch is its number. */
typedef enum lf_toucher {
    LF_TOUCH_X,      /* a product of the phase multiplies it: the first one, on behalf of all */
    LF_TOUCH_WEIGHT, /* it is the weight of a product of the phase */
    LF_TOUCH_BIAS,   /* or the bias of a narrow one */
    LF_TOUCH_LOAD,   /* a step loads it */
    LF_TOUCH_TAKE,   /* a statistic of segments or windows is taken from it, once the phase is over */
    LF_TOUCH_STORE,  /* a store writes it */
    LF_TOUCHERS
} lf_toucher;

typedef struct lf_touch {
    lf_place place;
    int32_t what;            /* as lf_access.index */
    const lf_access *access; /* NULL for weights and biases, which products read as they lie */
    lf_toucher by;
    int32_t phase, index;
} lf_touch;

/* Under way through phases [phase, end) of a group. */
typedef struct lf_touches {
    const lf_group *group;
    int32_t phase, end;
    lf_toucher by;
    int32_t index;
} lf_touches;

lf_touches lf_touches_of(const lf_group *g);
lf_touches lf_touches_in(const lf_group *g, int32_t first, int32_t end);
/* The next touch; false: there is none left. */
bool lf_touch_next(lf_touches *t, lf_touch *out);

static inline bool lf_is_write(const lf_touch *t)
{
    return t->by == LF_TOUCH_STORE;
}

static inline bool lf_touches_this(const lf_touch *t, lf_place place, int32_t what)
{
    return t->place == place && t->what == what;
}

/* The first that reads it in phases [first, end); false: none does. */
bool lf_find_read(const lf_group *g, int32_t first, int32_t end, lf_place place, int32_t what, lf_touch *out);
/* The store of a phase that writes it; NULL: none does. */
const lf_store *lf_find_store(const lf_phase *p, lf_place place, int32_t what);
/* How many reads there are of it. */
int32_t lf_count_reads(const lf_group *g, lf_place place, int32_t what);

#endif
