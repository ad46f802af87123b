/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/touch.h"

lf_touches lf_touches_of(const lf_group *g)
{
    return lf_touches_in(g, 0, g->phases);
}

lf_touches lf_touches_in(const lf_group *g, int32_t first, int32_t end)
{
    return (lf_touches){.group = g, .phase = first, .end = end};
}

static int32_t count_of(const lf_touches *t)
{
    const lf_phase *p = &t->group->phase[t->phase];
    switch (t->by) {
    case LF_TOUCH_X:
    case LF_TOUCH_WEIGHT:
    case LF_TOUCH_BIAS: return t->group->products;
    case LF_TOUCH_LOAD: return p->steps;
    case LF_TOUCH_TAKE: return t->group->stats;
    case LF_TOUCH_STORE: return p->stores;
    case LF_TOUCHERS: break;
    }
    return 0;
}

static void through_access(lf_touch *out, const lf_access *a)
{
    out->access = a;
    out->place = a->place;
    out->what = a->index;
}

/* Number `index` of those that touch so, if it does in this phase. */
static bool is_touch(const lf_touches *t, lf_touch *out)
{
    const lf_group *g = t->group;
    const lf_phase *p = &g->phase[t->phase];
    const int32_t i = t->index;
    *out = (lf_touch){.place = LF_VALUE, .by = t->by, .phase = t->phase, .index = i};
    switch (t->by) {
    case LF_TOUCH_X:
        through_access(out, &g->x);
        return lf_product_in(g, t->phase) == &g->product[i];
    case LF_TOUCH_WEIGHT: out->what = g->product[i].weight; return g->product[i].phase == t->phase;
    case LF_TOUCH_BIAS:
        out->what = g->product[i].bias;
        return g->product[i].phase == t->phase && g->product[i].bias != LF_NONE;
    case LF_TOUCH_LOAD: through_access(out, &p->step[i].from); return p->step[i].kind == LF_STEP_LOAD;
    case LF_TOUCH_TAKE:
        through_access(out, &g->stat[i].from);
        return g->stat[i].phase == t->phase && lf_takes_row(&g->stat[i]);
    case LF_TOUCH_STORE: through_access(out, &p->store[i].to); return true;
    case LF_TOUCHERS: break;
    }
    return false;
}

bool lf_touch_next(lf_touches *t, lf_touch *out)
{
    for (; t->phase < t->end; t->phase++, t->by = LF_TOUCH_X)
        for (; t->by < LF_TOUCHERS; t->by++, t->index = 0)
            while (t->index < count_of(t)) {
                const bool found = is_touch(t, out);
                t->index++;
                if (found)
                    return true;
            }
    return false;
}

bool lf_find_read(const lf_group *g, int32_t first, int32_t end, lf_place place, int32_t what, lf_touch *out)
{
    for (lf_touches t = lf_touches_in(g, first, end); lf_touch_next(&t, out);)
        if (lf_touches_this(out, place, what) && !lf_is_write(out))
            return true;
    return false;
}

const lf_store *lf_find_store(const lf_phase *p, lf_place place, int32_t what)
{
    for (int32_t i = 0; i < p->stores; i++)
        if (p->store[i].to.place == place && p->store[i].to.index == what)
            return &p->store[i];
    return NULL;
}

int32_t lf_count_reads(const lf_group *g, lf_place place, int32_t what)
{
    int32_t count = 0;
    lf_touch at;
    for (lf_touches t = lf_touches_of(g); lf_touch_next(&t, &at);)
        count += lf_touches_this(&at, place, what) && !lf_is_write(&at);
    return count;
}
