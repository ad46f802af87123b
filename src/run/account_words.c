/* SPDX-License-Identifier: Apache-2.0 */
/* Amounts, what became of values and what a kernel does, in words. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "plan/touch.h"
#include "run/account.h"

/* ---- amounts ---- */

/* Three digits and the unit that makes them readable; units: smallest first, a thousand apart. */
static lf_amount readable(double value, const char *const *units, int count)
{
    lf_amount out;
    int i = 0;
    for (; value >= 999.5 && i + 1 < count; i++)
        value /= 1000;
    const char *form = value >= 99.95 ? "%.0f %s" : value >= 9.995 ? "%.1f %s" : "%.2f %s";
    snprintf(out.text, sizeof out.text, value == floor(value) && i == 0 ? "%.0f %s" : form, value, units[i]);
    return out;
}

lf_amount lf_account_amount(lf_field_unit unit, double value)
{
    static const struct { const char *units[6]; int count; } scales[] = {
        [LF_AS_FLOP] = {{"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"}, 6},
        [LF_AS_BYTE] = {{"B", "kB", "MB", "GB", "TB"}, 5},
        [LF_AS_US] = {{"us", "ms", "s"}, 3},
        [LF_AS_FLOP_S] = {{"FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s"}, 6},
        [LF_AS_BYTE_S] = {{"B/s", "kB/s", "MB/s", "GB/s", "TB/s"}, 5},
    };
    lf_amount plain;
    snprintf(plain.text, sizeof plain.text, "%.0f", value);
    return unit == LF_AS_COUNT ? plain : readable(value, scales[unit].units, scales[unit].count);
}

lf_amount lf_account_gain(double plain_us, double fused_us)
{
    lf_amount out;
    const double gain = fused_us > 0 ? plain_us / fused_us : 1;
    snprintf(out.text, sizeof out.text, gain >= 9.95 ? "%.0fx" : gain >= 0.995 ? "%.1fx" : "%.2fx", gain);
    return out;
}

void lf_account_predicted(lf_str *s, bool gpu, lf_amount plain, lf_amount fused, const lf_amount *gain)
{
    lf_str_addf(s, "Predicted%s %s, fused %s%s%s%s",
                gpu ? ": op by op with cuBLAS in fp32" : ", linfuse's own kernels: without fusion", plain.text,
                fused.text, gain ? ": " : "", gain ? gain->text : "",
                gpu ? "" : " (for PyTorch: linfuse.bench)");
}

double lf_account_host_us(bool gpu, int32_t launches)
{
    /* eager: 36 us for three, where linfuse's call takes 30 (bench/results/door-2026-11-16-nvidia-h200.md, 8 x 64 x
     * 64) */
    static const double LAUNCH_US = 12;
    return gpu ? LAUNCH_US * launches : 0;
}

bool lf_account_launches_decide(double plain_us, double fused_us, double plain_host_us)
{
    return plain_us < fused_us && fused_us <= plain_host_us;
}

const char lf_account_doubt[] = "These are the GPU's times alone. PyTorch takes longer than either to launch its "
                                "kernels, so launches decide: linfuse.bench measures calls.";

const lf_fate_row lf_fate_table[] = {
    [LF_FATE_INSIDE] = {"inside", "never stored"},      [LF_FATE_STORED] = {"stored", "stored"},
    [LF_FATE_PREPARED] = {"prepared", "with weights"},  [LF_FATE_PASSED] = {"passed", "same as input"},
    [LF_FATE_GONE] = {"gone", "not needed"},
};

/* ---- what a kernel does ---- */

/* What a statistic is called where its name is not what a person would say. */
static const char *monoid_words(lf_monoid m)
{
    static const char *const words[LF_MONOID_COUNT] = {
        [LF_MONOID_maxsumexp] = "max and sum of exp",
        [LF_MONOID_moments] = "mean and variance",
        [LF_MONOID_meansquare] = "mean of squares",
    };
    return words[m] ? words[m] : lf_monoid_row(m)->name;
}

/* Names one after another; the same one again is counted instead. */
typedef struct listing {
    lf_str *s;
    const char *last;
    int run;        /* how often last has come */
    int names;
} listing;

static void end_run(listing *l)
{
    if (l->run == 2)
        lf_str_add(l->s, " twice");
    else if (l->run > 2)
        lf_str_addf(l->s, " %d times", l->run);
    l->run = 0;
}

static void name(listing *l, const char *text)
{
    if (l->run > 0 && strcmp(l->last, text) == 0) {
        l->run++;
        return;
    }
    end_run(l);
    lf_str_addf(l->s, "%s%s", l->names++ ? ", " : "", text);
    l->last = text;
    l->run = 1;
}

const char *lf_account_how(const lf_tile_choice *choice)
{
    static const char *const words[] = {
        [LF_TILE_BY_COST] = "cost model", [LF_TILE_BY_MEASURE] = "measured", [LF_TILE_AS_TOLD] = "told"};
    return words[choice->how];
}

static long long at(lf_extent e, const int64_t *dims)
{
    return (long long)lf_extent_at(e, dims);
}

static void product_words(listing *l, const lf_account *a, const lf_group *g, const lf_product *p)
{
    char text[96];
    snprintf(text, sizeof text, "product %lld x %lld x %lld", at(g->rows, a->dims), at(p->n, a->dims),
             at(p->k, a->dims));
    name(l, text);
    l->run = 0; /* the text goes out of scope */
    if (p->bias != LF_NONE) /* of a narrow one, which no step adds */
        name(l, "bias");
}

/* An op once for its node, whatever steps it takes: a norm with weight and bias takes three. */
static void step_words(listing *l, const lf_account *a, const lf_group *g, const lf_phase *phase, int32_t i)
{
    const lf_step *step = &phase->step[i];
    lf_kind kind = lf_kind_of(a->plan->graph, step->node);
    if (step->kind == LF_STEP_PRODUCT)
        product_words(l, a, g, &g->product[step->product]);
    else if (step->kind == LF_STEP_OP && kind == LF_PRODUCT)
        name(l, "bias");
    else if (step->kind == LF_STEP_OP &&
             (i == 0 || phase->step[i - 1].kind != LF_STEP_OP || phase->step[i - 1].node != step->node)) {
        for (int32_t before = 0; before < i; before++)
            if (phase->step[before].kind == LF_STEP_OP && phase->step[before].node == step->node)
                return;
        name(l, lf_op_row(lf_at(a->plan->graph, step->node)->op)->name);
    } else if (step->kind == LF_STEP_LOAD && kind == LF_MOVE &&
               !(step->from.place == LF_VALUE && step->from.index == step->node)) /* moved here, not before */
        name(l, lf_op_row(lf_at(a->plan->graph, step->node)->op)->name);
}

static void stat_words(lf_str *s, const lf_account *a, const lf_stat *stat)
{
    lf_str_addf(s, "%s of each ", monoid_words(stat->monoid));
    if (stat->span == LF_SPAN_ROW)
        lf_str_add(s, "row");
    else if (stat->span == LF_SPAN_COLUMN)
        lf_str_add(s, "column");
    else if (stat->span == LF_SPAN_SEGMENT)
        lf_str_addf(s, "of %lld runs of %lld columns", at(stat->count, a->dims), at(stat->length, a->dims));
    else
        lf_str_addf(s, "of %lld windows of %lld columns", at(stat->groups, a->dims) * at(stat->count, a->dims),
                    (long long)stat->window.kernel);
}

/* How many values a row what was listed is done on; left out for the product's own columns. */
static void width_words(lf_str *s, const lf_account *a, const lf_group *g, int32_t p)
{
    const lf_phase *phase = &g->phase[p];
    long long width = at(phase->width, a->dims);
    if (lf_product_in(g, p))
        return;
    lf_str_addf(s, " on %lld value%s %s", width, width == 1 ? "" : "s", phase->one_row ? "in all" : "a row");
}

static bool keeps_rows(const lf_group *g, int32_t phase)
{
    lf_touch at;
    for (lf_touches all = lf_touches_in(g, phase, phase + 1); lf_touch_next(&all, &at);)
        if (lf_is_write(&at) && at.place == LF_KEPT && !lf_extent_is(g->kept[at.what].width, 1))
            return true;
    return false;
}

static void phase_words(lf_str *s, const lf_account *a, const lf_group *g, int32_t p)
{
    const lf_phase *phase = &g->phase[p];
    listing l = {.s = s};
    for (int32_t i = 0; i < phase->steps; i++)
        step_words(&l, a, g, phase, i);
    end_run(&l);
    if (l.names > 0)
        width_words(s, a, g, p);
    for (int32_t i = 0; i < g->stats; i++)
        if (g->stat[i].phase == p) {
            lf_str_add(s, l.names++ ? ", " : "");
            stat_words(s, a, &g->stat[i]);
        }
    if (l.names == 0)
        lf_str_add(s, "copy");
    if (keeps_rows(g, p))
        lf_str_add(s, g->schedule == LF_BY_ROWS ? ", the rows kept at hand" : ", all rows kept");
}

void lf_account_phases(lf_str *s, const lf_account *a, const lf_group *g)
{
    for (int32_t p = 0; p < g->phases; p++) {
        lf_str_add(s, p ? "; then " : "");
        phase_words(s, a, g, p);
    }
}
