/* SPDX-License-Identifier: Apache-2.0 */
/* A phase as numbers: what each step depends on and so how often it is computed, in which register, how its value is
 * had by those that use it, and how stores reach memory. */
#include <assert.h>
#include <stdlib.h>

#include "cpu/parts.h"
#include "plan/touch.h"

typedef struct phasing {
    const lf_group *group;
    const lf_phase *plan;
    int32_t index;
    lf_group_at *g;
    lf_phase_at *p;
    const lf_cpu_instance *instance;
    const lf_plan *all;
} phasing;

/* ---- levels ---- */

static lf_level level_of(const lf_phase_at *p, const lf_step *plan, const lf_step_at *s)
{
    unsigned level = LF_ONCE;
    switch (s->kind) {
    case LF_STEP_LOAD:
        level = (s->from.row.form != LF_FORM_REPEATED ? LF_PER_ROW : LF_ONCE) |
                (s->from.col.form != LF_FORM_REPEATED ? LF_PER_STRIP : LF_ONCE);
        break;
    case LF_STEP_PRODUCT: level = LF_PER_ELEMENT; break;
    case LF_STEP_NUMBER: break;
    case LF_STEP_OP:
        for (int i = 0; i < 3; i++)
            if (plan->arg[i] >= 0)
                level |= p->step[plan->arg[i]].level;
        break;
    }
    return level == LF_PER_ROW && p->width == 1 ? LF_PER_ELEMENT : (lf_level)level;
}

/* ---- uses ---- */

static lf_use spread(lf_phase_at *p, int32_t step)
{
    lf_step_at *s = &p->step[step];
    if (s->spread_reg < 0)
        s->spread_reg = p->registers++;
    return (lf_use){step, true};
}

/* A value that has less than an element for each of a strip, for who wants them all. */
static lf_use whole(lf_phase_at *p, int32_t step)
{
    const lf_step_at *s = &p->step[step];
    const bool less = s->level == LF_ONCE || s->level == LF_PER_ROW || s->per_strip;
    return less ? spread(p, step) : (lf_use){step, false};
}

lf_use lf_use_whole(const lf_phase_at *p, int32_t step)
{
    return (lf_use){step, step >= 0 && p->step[step].spread_reg >= 0};
}

/* Is the argument one number where the op works on many? */
static bool is_one(const lf_step_at *arg, const lf_step_at *op)
{
    if (op->level == LF_ONCE)
        return false;
    return arg->level == LF_ONCE || arg->per_strip || (arg->level == LF_PER_ROW && op->level == LF_PER_ELEMENT);
}

static bool is_fed(const phasing *f, const lf_stat *stat)
{
    return stat->phase == f->index && stat->step >= 0;
}

/* A weight and a bias for each column, as norms have them, are taken together. */
static bool join_mul(const phasing *f, int32_t index)
{
    lf_phase_at *p = f->p;
    const lf_step *plan = &f->plan->step[index], *mul = plan->mul >= 0 ? &f->plan->step[plan->mul] : NULL;
    lf_step_at *s = &p->step[index];
    if (!mul || p->step[mul->arg[0]].level != LF_PER_ELEMENT || p->step[mul->arg[1]].level != LF_PER_STRIP ||
        p->step[plan->arg[1]].level != LF_PER_STRIP)
        return false;
    p->step[plan->mul].joined = true;
    s->map = f->instance->kern->mul_add;
    s->arg[0] = (lf_use){mul->arg[0], false};
    s->arg[1] = (lf_use){mul->arg[1], false};
    s->arg[2] = (lf_use){plan->arg[1], false};
    return true;
}

/* One number as second and third argument goes as it is, where the rows of a strip have it in common; otherwise it is
 * spread. */
static void give_arguments(const phasing *f, int32_t index)
{
    lf_phase_at *p = f->p;
    const lf_step *plan = &f->plan->step[index];
    lf_step_at *s = &p->step[index];
    const bool swap = lf_op_commutes(plan->op, plan->attr[0]) && is_one(&p->step[plan->arg[0]], s) &&
                      !is_one(&p->step[plan->arg[1]], s);
    const int32_t args[3] = {plan->arg[swap], plan->arg[!swap], plan->arg[2]};
    bool some = false, every = true;
    for (int k = 0; k < 3; k++) {
        s->arg[k] = (lf_use){args[k], false};
        if (args[k] < 0)
            continue;
        const lf_step_at *arg = &p->step[args[k]];
        const bool one = is_one(arg, s);
        some = some || one;
        every = every && one == (k > 0) && !(one && arg->level == LF_PER_ROW && p->together > 1);
    }
    s->map = f->instance->kern->map[plan->op];
    if (some && every && f->instance->kern->map_one[plan->op]) {
        s->map = f->instance->kern->map_one[plan->op];
        for (int k = 1; k < 3; k++)
            s->by_strips = s->by_strips || (args[k] >= 0 && p->step[args[k]].per_strip);
        return;
    }
    for (int k = 0; k < 3; k++)
        if (args[k] >= 0 && is_one(&p->step[args[k]], s))
            s->arg[k] = spread(p, args[k]);
    assert(s->map);
}

static bool give_uses(const phasing *f, lf_arena *arena)
{
    lf_phase_at *p = f->p;
    p->watch = lf_arena_array(arena, (size_t)p->watches + 1, sizeof *p->watch);
    if (!p->watch)
        return false;
    for (int32_t i = 0; i < p->steps; i++)
        if (p->step[i].kind == LF_STEP_OP && !join_mul(f, i))
            give_arguments(f, i);
    for (int32_t i = 0; i < p->stores; i++)
        p->store[i].value = whole(p, f->plan->store[i].step);
    for (int32_t i = 0; i < p->watches; i++)
        p->watch[i] = whole(p, f->plan->watch[i]);
    for (int32_t i = 0; i < f->group->stats; i++)
        if (is_fed(f, &f->group->stat[i]))
            whole(p, f->group->stat[i].step);
    return true;
}

/* ---- where values lie ---- */

/* Do the rows of a strip lie side by side there? */
static bool is_packed(const lf_phase_at *p, const lf_reach *r)
{
    if (p->together == 1)
        return r->col.form == LF_FORM_CONTIGUOUS;
    if (p->pitch != p->width)
        return false;
    return p->width == 1 ? r->row.form == LF_FORM_CONTIGUOUS
                         : r->col.form == LF_FORM_CONTIGUOUS && r->row.rank == 1 && r->row.stride[0] == p->width;
}

/* Does the step read what waits in an output's memory? */
static bool waits_in_output(const phasing *f, int32_t step)
{
    const lf_access *from = &f->plan->step[step].from;
    return f->plan->step[step].kind == LF_STEP_LOAD && from->place == LF_KEPT &&
           f->group->kept[from->index].in_output >= 0;
}

/* May the step's elements be used where they lie? Not what is to be converted, nor where stores of the same strip could
 * come before its own. */
static bool in_place(const phasing *f, int32_t step)
{
    const lf_step_at *s = &f->p->step[step];
    if (s->kind == LF_STEP_PRODUCT)
        return true;
    if (s->kind != LF_STEP_LOAD || s->from.dtype != LF_F32 ||
        (waits_in_output(f, step) && f->plan->step[step].uses.stores > 0))
        return false;
    switch (s->level) {
    case LF_ONCE: return true;
    case LF_PER_STRIP: return f->p->together == 1 && s->from.col.form == LF_FORM_CONTIGUOUS;
    case LF_PER_ROW: return s->from.row.form == LF_FORM_CONTIGUOUS;
    case LF_PER_ELEMENT: return s->packed || s->per_strip;
    }
    return false;
}

/* Does the group read the stored tensor in a later phase? */
static bool is_read_later(const phasing *f, lf_node node)
{
    const bool output = f->all->storage[node] == LF_IN_OUTPUT;
    lf_touch at;
    for (lf_touches later = lf_touches_in(f->group, f->index, f->group->phases); lf_touch_next(&later, &at);) {
        if (lf_is_write(&at))
            continue;
        if (lf_touches_this(&at, LF_VALUE, node))
            return true;
        if (at.by == LF_TOUCH_LOAD && at.phase > f->index && at.place == LF_KEPT && output &&
            f->group->kept[at.what].in_output == f->all->where[node])
            return true;
    }
    return false;
}

/* Has the group read the loaded tensor in an earlier phase, and no w passed through the caches since? */
static bool is_read_before(const phasing *f, const lf_access *from)
{
    const lf_group *group = f->group;
    lf_touch at;
    int32_t since = 0;
    for (int32_t i = 0; i <= f->index; i++)
        if (lf_multiplies_packed(f->g, &f->g->phase[i]))
            since = i;
    for (lf_touches before = lf_touches_in(group, since, f->index); lf_touch_next(&before, &at);)
        if (lf_touches_this(&at, from->place, from->index) &&
            (at.by == LF_TOUCH_LOAD || (at.by == LF_TOUCH_X && group->product[at.index].narrow)))
            return true;
    return false;
}

/* Does the step use elements of a large tensor where they lie, which come from memory? */
static bool is_far(const phasing *f, int32_t step)
{
    const lf_access *from = &f->plan->step[step].from;
    const lf_step_at *s = &f->p->step[step];
    return from->place == LF_VALUE &&
           (f->all->storage[from->index] == LF_IN_INPUT || f->all->storage[from->index] == LF_IN_BUFFER) &&
           s->level == LF_PER_ELEMENT && !s->per_strip && in_place(f, step) && !is_read_before(f, from);
}

static bool leaves_exps(const phasing *f, int32_t step)
{
    for (int32_t i = 0; i < f->plan->stores; i++)
        if (f->plan->store[i].exps && f->plan->store[i].step == step)
            return true;
    return false;
}

static bool is_streamed(const phasing *f, int32_t store)
{
    const lf_access *to = &f->plan->store[store].to;
    const double bytes = sizeof(float) * (double)f->p->rows * (double)f->p->width;
    return to->place == LF_VALUE && to->dtype == LF_F32 && f->p->store[store].packed &&
           bytes > (double)LF_STREAM_BYTES * f->instance->threads && !is_read_later(f, to->index);
}

/* May the step be computed where the store takes it? Only the last, after which no other step reads what lies there;
 * and what waits there may not be wanted by a sink either. */
static bool is_direct(const phasing *f, int32_t store)
{
    const lf_store_at *s = &f->p->store[store];
    const int32_t step = s->value.step;
    if (s->to.dtype != LF_F32 || s->stream || s->taken || s->value.spread || !s->packed || step != f->p->steps - 1 ||
        f->p->step[step].to >= 0 || f->p->step[step].kind != LF_STEP_OP || f->p->step[step].level != LF_PER_ELEMENT)
        return false;
    for (int32_t i = 0; i < f->plan->watches; i++)
        if (waits_in_output(f, f->plan->watch[i]))
            return false;
    for (int32_t i = 0; i < f->group->stats; i++)
        if (is_fed(f, &f->group->stat[i]) && waits_in_output(f, f->group->stat[i].step))
            return false;
    return true;
}

/* May the product end where the store keeps it? Whole tiles only: what lies past them would be overwritten. Sums over
 * many runs are put together in the tile. */
static bool lands_there(const phasing *f, int32_t store)
{
    const lf_access *to = &f->plan->store[store].to;
    const lf_store_at *s = &f->p->store[store];
    const lf_step_at *step = &f->p->step[s->value.step];
    const lf_product_at *product = step->kind == LF_STEP_PRODUCT ? &f->g->product[step->product] : NULL;
    return product && product->lands < 0 && !product->narrow && to->place == LF_KEPT && to->dtype == LF_F32 &&
           f->group->kept[to->index].in_output < 0 && s->packed && !s->taken &&
           product->n % f->instance->kern->nr == 0 && f->g->k > 0 && lf_runs(f->g->k) <= LF_RUNS;
}

static void give_memory(const phasing *f)
{
    lf_phase_at *p = f->p;
    for (int32_t i = 0; i < p->steps; i++) {
        const bool load = p->step[i].kind == LF_STEP_LOAD;
        p->step[i].packed = load && is_packed(p, &p->step[i].from);
        p->step[i].far = load && is_far(f, i);
        p->step[i].asked = p->step[i].far && leaves_exps(f, i);
    }
    for (int32_t i = 0; i < p->stores; i++) {
        lf_store_at *s = &p->store[i];
        s->packed = is_packed(p, &s->to);
        s->taken = f->plan->store[i].exps;
        s->stream = is_streamed(f, i);
        s->direct = is_direct(f, i);
        if (s->direct)
            p->step[s->value.step].to = i;
        else if (lands_there(f, i)) {
            s->direct = true;
            f->g->product[p->step[s->value.step].product].lands = i;
        }
    }
}

/* ---- registers ---- */

/* last[i]: the last step that reads step i; all of them where a store, a statistic or a witness does. */
static void find_last_uses(const phasing *f, int32_t *last)
{
    const lf_phase *plan = f->plan;
    for (int32_t i = 0; i < plan->steps; i++) {
        const lf_step_at *s = &f->p->step[i];
        last[i] = i;
        for (int k = 0; k < 3; k++)
            if (s->kind == LF_STEP_OP && s->arg[k].step >= 0)
                last[s->arg[k].step] = i;
    }
    for (int32_t i = 0; i < plan->steps; i++)
        if (lf_sinks(&plan->step[i].uses) > 0)
            last[i] = plan->steps;
}

/* Registers: one for good for each value that outlives a strip of elements; the others are handed on when their value
 * was last read. An op may write where its argument lies. last, idle: one per step, scratch. */
static void give_registers(const phasing *f, const int32_t *last, int32_t *idle)
{
    lf_phase_at *p = f->p;
    int32_t idles = 0;
    for (int32_t i = 0; i < p->steps; i++) {
        lf_step_at *s = &p->step[i];
        s->reg = in_place(f, i) || s->joined || s->to >= 0 ? -1 : 0;
        if (s->reg == 0 && s->level != LF_PER_ELEMENT)
            s->reg = p->registers++;
        p->columns = p->columns || s->level == LF_PER_STRIP;
        p->strip_by_strip = p->strip_by_strip || (s->level == LF_PER_STRIP && s->reg >= 0);
    }
    for (int32_t i = 0; i < p->steps; i++) {
        lf_step_at *s = &p->step[i];
        for (int k = 0; k < 3 && s->kind == LF_STEP_OP; k++) {
            const int32_t arg = s->arg[k].step;
            bool again = (k > 0 && arg == s->arg[0].step) || (k > 1 && arg == s->arg[1].step);
            if (arg < 0 || again || last[arg] != i || p->step[arg].level != LF_PER_ELEMENT || p->step[arg].reg < 0)
                continue;
            idle[idles++] = p->step[arg].reg;
        }
        if (s->reg < 0 || s->level != LF_PER_ELEMENT)
            continue;
        s->reg = idles > 0 ? idle[--idles] : p->registers++;
        if (last[i] == i) /* read by nobody */
            idle[idles++] = s->reg;
    }
}

/* ---- the product's bias ---- */

/* Does the load find its numbers, one for each column, side by side? */
static bool is_row(const lf_phase_at *p, int32_t step)
{
    return p->step[step].level == LF_PER_STRIP && p->step[step].from.col.form == LF_FORM_CONTIGUOUS &&
           p->step[step].from.dtype == LF_F32;
}

/* The first thing most products want is a bias. The product adds it while its sums are in registers: then the step that
 * would is the product. */
static void take_biases(const phasing *f)
{
    lf_phase_at *p = f->p;
    for (int32_t i = 0; i < f->group->products; i++) {
        const lf_product *product = &f->group->product[i];
        if (product->phase != f->index || product->add < 0 || !is_row(p, product->row))
            continue;
        p->step[product->add].kind = LF_STEP_PRODUCT;
        p->step[product->add].product = i;
        if (lf_all_uses(&f->plan->step[product->row].uses) == 1)
            p->step[product->row].level = LF_ONCE; /* a pointer, found once */
        f->g->product[i].bias = product->row;
    }
}

/* ---- all of it ---- */

/* Rows that are short come several to a strip. */
static void give_strips(const phasing *f)
{
    lf_phase_at *p = f->p;
    p->strips = lf_ceil_div(p->width, LF_STRIP);
    p->pitch = p->width;
    p->product = false;
    for (int32_t i = 0; i < f->g->products; i++)
        if (f->g->product[i].phase == f->index) {
            p->pitch = lf_max64(f->g->product[i].ldc, p->width);
            p->product = true;
        }
    p->together = p->pitch > 0 && p->pitch <= LF_STRIP / 2 ? LF_STRIP / p->pitch : 1;
    p->strip_by_strip = p->product || p->together > 1;
}

/* Is it a normalization by a statistic of the group, not by one the caller has? kern.h's map wants to know. */
static bool reads_statistic(const lf_phase *plan, const lf_step *s)
{
    return s->kind == LF_STEP_OP && lf_op_row(s->op)->kind == LF_NORMALIZE &&
           plan->step[s->arg[1]].kind == LF_STEP_LOAD && plan->step[s->arg[1]].from.place == LF_STAT;
}

static bool give_steps(const phasing *f, lf_arena *arena, const int64_t *dims, bool *overflow)
{
    lf_phase_at *p = f->p;
    p->step = lf_arena_array(arena, (size_t)p->steps + 1, sizeof *p->step);
    p->store = lf_arena_array(arena, (size_t)p->stores + 1, sizeof *p->store);
    if (!p->step || !p->store)
        return false;
    for (int32_t i = 0; i < p->steps; i++) {
        const lf_step *from = &f->plan->step[i];
        lf_step_at *s = &p->step[i];
        *s = (lf_step_at){
            .kind = from->kind, .product = from->product, .number = (float)from->number, .spread_reg = -1, .to = -1};
        for (int k = 0; k < 3; k++)
            s->attr[k] = (float)from->attr[k];
        if (reads_statistic(f->plan, from))
            s->attr[1] = 1.0f;
        if (s->kind == LF_STEP_LOAD)
            *overflow = !lf_reach_sides(&s->from, &from->from, dims) || *overflow;
        s->level = level_of(p, from, s);
        s->per_strip = s->level == LF_PER_ELEMENT && s->from.dtype == LF_F32 && s->from.col.form == LF_FORM_SPREAD &&
                       s->from.col.extent[1] % LF_STRIP == 0;
    }
    for (int32_t i = 0; i < p->stores; i++)
        *overflow = !lf_reach_sides(&p->store[i].to, &f->plan->store[i].to, dims) || *overflow;
    return true;
}

bool lf_phase_init(lf_group_at *g, const lf_group *group, int32_t index, lf_cpu_instance *instance, const lf_plan *plan,
                   const int64_t *dims, bool *overflow)
{
    lf_phase_at *p = &g->phase[index];
    const phasing f = {group, &group->phase[index], index, g, p, instance, plan};
    p->one_row = f.plan->one_row;
    p->rows = p->one_row ? 1 : g->rows;
    p->steps = f.plan->steps;
    p->stores = f.plan->stores;
    p->watches = f.plan->watches;
    p->registers = 0;
    p->columns = false;
    give_strips(&f);
    if (!give_steps(&f, &instance->arena, dims, overflow))
        return false;
    if (p->product)
        take_biases(&f);
    if (!give_uses(&f, &instance->arena))
        return false;
    int32_t *last = malloc(((size_t)p->steps + 1) * sizeof *last),
            *idle = malloc(((size_t)p->steps + 1) * sizeof *idle);
    if (last && idle) {
        give_memory(&f);
        find_last_uses(&f, last);
        give_registers(&f, last, idle);
    }
    const bool memory = last && idle;
    free(last);
    free(idle);
    p->stretch = p->strip_by_strip ? LF_STRIP : LF_STRETCH;
    for (int32_t i = 0; i < p->steps; i++)
        if (p->step[i].far && !p->step[i].asked) /* much at once would be waited for */
            p->stretch = LF_STRIP;
    return memory;
}
