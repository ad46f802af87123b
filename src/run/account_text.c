/* SPDX-License-Identifier: Apache-2.0 */
/* The account as text for people: what it costs as written, what was rewritten and refused, the kernels, what it costs
 * now. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "run/account.h"

enum {
    LINE = 110,       /* columns a paragraph is broken at */
    BAR = 20,         /* of a share of 100% */
    FIRST_WIDTH = 13, /* of the first column of figures, and of the others */
    WIDTH = 10,
    NAME_MOST = 24,   /* a longer name pushes its own row to the right */
    LIST_MOST = 12    /* names of a list before the rest is counted */
};

typedef struct writing {
    lf_str s;
    const lf_account *a;
} writing;

/* ---- layout ---- */

static void right(lf_str *s, const char *text, int width)
{
    lf_str_addf(s, "%*s", width, text);
}

/* Words, broken at LINE columns, lines after the first set in by indent. column: where the first line stands now. */
static void paragraph(lf_str *s, const char *text, size_t column, int indent)
{
    while (*text) {
        size_t word = strcspn(text, " ");
        if (column + word > LINE && column > (size_t)indent) {
            lf_str_addf(s, "\n%*s", indent, "");
            column = (size_t)indent;
        }
        lf_str_addn(s, text, word);
        text += word;
        column += word;
        if (*text == ' ') {
            text++;
            if (*text && column + 1 + strcspn(text, " ") <= LINE) {
                lf_str_add(s, " ");
                column++;
            } else if (*text) {
                lf_str_addf(s, "\n%*s", indent, "");
                column = (size_t)indent;
            }
        }
    }
    lf_str_add(s, "\n");
}

/* "    label  words ..." */
static void labelled(lf_str *s, const char *label, const char *text)
{
    enum { INDENT = 19 };
    lf_str_addf(s, "    %-15s", label);
    paragraph(s, text, INDENT, INDENT);
}

static const char *plural(int64_t count)
{
    return count == 1 ? "" : "es";
}

/* ---- as written ---- */

static void write_headline(writing *w)
{
    const double plain = w->a->plain.us, fused = w->a->fused.us;
    const bool gpu = lf_is_gpu(&w->a->device);
    const bool doubt = lf_account_launches_decide(plain, fused, w->a->plain_host_us);
    const lf_amount gain = lf_account_gain(plain, fused);
    lf_account_predicted(&w->s, gpu, lf_account_amount(LF_AS_US, plain), lf_account_amount(LF_AS_US, fused),
                         doubt ? NULL : &gain);
    lf_str_add(&w->s, "\n");
    if (doubt)
        paragraph(&w->s, lf_account_doubt, 0, 0);
}

static void write_header(writing *w)
{
    const lf_account *a = w->a;
    for (int i = 0; i < a->written->symbols; i++)
        lf_str_addf(&w->s, "%s%s = %lld", i ? ", " : "", a->written->symbol[i], (long long)a->dims[i]);
    lf_str_addf(&w->s, "%s%s: ", a->written->symbols ? " on " : "", a->device.title);
    int listed = 0;
    for (const lf_field_row *f = lf_section("peak"); f; f = lf_next_field(f))
        if (f->field.phrase)
            lf_str_addf(&w->s, "%s%s %s", listed++ ? ", " : "", f->field.phrase,
                        lf_account_amount(f->unit, f->from(a, 0).number).text);
    lf_str_add(&w->s, "\n");
    if (a->device.product_flops > a->device.flops && lf_tiled_products(a->plan) > 0)
        lf_str_addf(&w->s, "Fused products run on the tensor cores%s: %s\n",
                    lf_precision_table[a->device.gpu.precision_used].words,
                    lf_account_amount(LF_AS_FLOP_S, a->device.product_flops).text);
    lf_str_add(&w->s, "\n");
}

static void shape_words(lf_str *s, const lf_account *a, lf_node n)
{
    const lf_shape *shape = &lf_at(a->written, n)->shape;
    for (int i = 0; i < shape->rank; i++)
        lf_str_addf(s, "%s%lld", i ? " x " : "", (long long)lf_extent_at(shape->dim[i], a->dims));
    if (shape->rank == 0)
        lf_str_add(s, "scalar");
}

/* Where the columns of the table begin or end. */
typedef struct columns {
    size_t op, shape, numbers;
} columns;

static size_t longer(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Of a column of the table of ops. */
static const char *heading(const char *field)
{
    const lf_field_row *f = lf_section("ops");
    while (strcmp(f->field.name, field) != 0)
        f = lf_next_field(f);
    return f->field.column;
}

static columns find_columns(writing *w)
{
    size_t name = strlen(heading("name")), op = strlen(heading("op")), shape = strlen("shape");
    for (int32_t i = 0; i < w->a->ops; i++) {
        const lf_node_info *info = lf_at(w->a->written, w->a->op[i].node);
        lf_str text = {0};
        shape_words(&text, w->a, w->a->op[i].node);
        shape = longer(shape, text.length);
        w->s.failed = w->s.failed || text.failed;
        lf_str_free(&text);
        op = longer(op, strlen(lf_op_row(info->op)->name));
        name = longer(name, strlen(info->name) > NAME_MOST ? NAME_MOST : strlen(info->name));
    }
    return (columns){.op = 2 + name + 2, .shape = 2 + name + 2 + op + 2, .numbers = 2 + name + 2 + op + 2 + shape};
}

/* The figures of a section, or of one of its rows, in columns. */
static void write_numbers(lf_str *s, const lf_account *a, const char *section, int32_t row)
{
    int width = FIRST_WIDTH;
    for (const lf_field_row *f = lf_section(section); f; f = lf_next_field(f)) {
        if (!lf_is_figure(f))
            continue;
        const double value = f->from(a, row).number;
        right(s, value > 0 ? lf_account_amount(f->unit, value).text : "-", width);
        width = WIDTH;
    }
}

static void write_row(writing *w, const columns *c, const lf_op_fact *op)
{
    lf_str *s = &w->s;
    const lf_node_info *info = lf_at(w->a->written, op->node);
    double share = w->a->plain.us > 0 ? op->cost.us / w->a->plain.us : 0;
    int bar = (int)floor(share * BAR + 0.5);
    lf_str_addf(s, "  %s", info->name);
    lf_str_pad(s, c->op);
    lf_str_addf(s, "%s%s", strlen(info->name) > NAME_MOST ? "  " : "", lf_op_row(info->op)->name);
    lf_str_pad(s, c->shape);
    shape_words(s, w->a, op->node);
    lf_str_pad(s, c->numbers);
    write_numbers(s, w->a, "ops", (int32_t)(op - w->a->op));
    if (op->cost.us > 0)
        lf_str_addf(s, "  %5.1f%%%s%.*s", 100 * share, bar > 0 ? "  " : "", bar, "####################");
    lf_str_add(s, "\n");
}

static void write_ops(writing *w)
{
    lf_str *s = &w->s;
    columns c = find_columns(w);
    lf_str_addf(s, "As written, op by op: %d launch%s\n", (int)w->a->plain_launches, plural(w->a->plain_launches));
    lf_str_addf(s, "  %s", heading("name"));
    lf_str_pad(s, c.op);
    lf_str_add(s, heading("op"));
    lf_str_pad(s, c.shape);
    lf_str_add(s, "shape");
    lf_str_pad(s, c.numbers);
    int width = FIRST_WIDTH;
    for (const lf_field_row *f = lf_section("ops"); f; f = lf_next_field(f))
        if (lf_is_figure(f)) {
            right(s, f->field.column, width);
            width = WIDTH;
        }
    lf_str_add(s, "   share\n");
    for (int32_t i = 0; i < w->a->ops; i++)
        write_row(w, &c, &w->a->op[i]);
    lf_str_add(s, "  all");
    lf_str_pad(s, c.numbers);
    write_numbers(s, w->a, "plain", 0);
    lf_str_add(s, "\n\n");
}

/* ---- rewrites ---- */

static void write_notes(writing *w, const char *title, const lf_note *notes, int32_t count, bool done)
{
    if (count == 0)
        return;
    lf_str_addf(&w->s, "%s\n", title);
    for (int32_t i = 0; i < count; i++) {
        lf_str_addf(&w->s, "  %s: %s", notes[i].at, notes[i].rule);
        if (done)
            lf_str_addf(&w->s, " (%s; %s)", lf_rule_class_name(notes[i].class),
                        lf_rule_class_words(lf_rule_class_name(notes[i].class)));
        lf_str_add(&w->s, "\n    ");
        paragraph(&w->s, notes[i].why, 4, 4);
    }
    lf_str_add(&w->s, "\n");
}

/* ---- kernels ---- */

/* Is an op in a list: of one kernel (or any, -2), of one fate (or any, -1)? */
static bool chosen(const writing *w, const lf_op_fact *op, int32_t group, int fate)
{
    if (fate >= 0 && ((int)op->fate != fate || !lf_cost_launches(w->a->written, op->node)))
        return false;
    return group == -2 || op->group == group;
}

/* The names of the ops chosen, and what they would take in memory; how many there are. */
static int32_t names_of(const writing *w, int32_t group, int fate, lf_str *names, double *bytes)
{
    int32_t count = 0;
    *bytes = 0;
    for (int32_t i = 0; i < w->a->ops; i++) {
        if (!chosen(w, &w->a->op[i], group, fate))
            continue;
        *bytes += lf_cost_bytes(w->a->written, w->a->op[i].node, w->a->dims);
        if (count < LIST_MOST)
            lf_str_addf(names, "%s%s", count ? ", " : "", lf_at(w->a->written, w->a->op[i].node)->name);
        count++;
    }
    if (count > LIST_MOST)
        lf_str_addf(names, " and %d more", (int)(count - LIST_MOST));
    return count;
}

/* "    label  a, b, c (33.6 MB)"; nothing when none is chosen. */
static void write_list(writing *w, const char *label, int32_t group, int fate, bool with_bytes)
{
    lf_str names = {0};
    double bytes;
    if (names_of(w, group, fate, &names, &bytes) > 0) {
        if (with_bytes)
            lf_str_addf(&names, " (%s)", lf_account_amount(LF_AS_BYTE, bytes).text);
        labelled(&w->s, label, names.text ? names.text : "");
    }
    w->s.failed = w->s.failed || names.failed;
    lf_str_free(&names);
}

/* What a field says on a line of its own; nothing where there is nothing of it. */
static void write_labelled(writing *w, const lf_field_row *f, lf_datum is)
{
    if (f->unit != LF_AS_TEXT && is.number != 0)
        labelled(&w->s, f->field.phrase, lf_account_amount(f->unit, is.number).text);
    else if (is.text)
        labelled(&w->s, f->field.phrase, is.text);
}

static void write_kernel(writing *w, int32_t index)
{
    const lf_group *g = &w->a->plan->group[index];
    lf_str_addf(&w->s, "  %d. %s:", (int)index + 1, g->name);
    const char *between = " ";
    for (const lf_field_row *f = lf_section("kernels"); f; f = lf_next_field(f))
        if (lf_is_figure(f)) {
            lf_str_addf(&w->s, "%s%s", between, lf_account_amount(f->unit, f->from(w->a, index).number).text);
            between = ", ";
        }
    lf_str_add(&w->s, "\n");
    write_list(w, "covers", index, -1, false);
    for (const lf_field_row *f = lf_section("kernels"); f; f = lf_next_field(f))
        if (f->field.phrase && !lf_is_figure(f))
            write_labelled(w, f, f->from(w->a, index));
    write_list(w, lf_fate_table[LF_FATE_INSIDE].words, index, LF_FATE_INSIDE, true);
    write_list(w, lf_fate_table[LF_FATE_STORED].words, index, LF_FATE_STORED, true);
}

static bool any_outside(const writing *w)
{
    for (int32_t i = 0; i < w->a->ops; i++)
        if (w->a->op[i].fate >= LF_FATE_PREPARED && lf_cost_launches(w->a->written, w->a->op[i].node))
            return true;
    return false;
}

static void write_tiles(writing *w)
{
    const lf_tile_choice *c = &w->a->choice;
    const lf_tile *shape = &lf_tile_table[c->shape];
    lf_str words = {0};
    lf_str_addf(&words, "%s, ", shape->name);
    if (shape->few)
        lf_str_addf(&words, "up to %d rows at a time", shape->rows);
    else
        lf_str_addf(&words, "%d x %d", shape->rows, c->columns[c->shape]);
    if (c->how == LF_TILE_BY_COST)
        lf_str_add(&words, ", by the cost model");
    else if (c->how == LF_TILE_AS_TOLD)
        lf_str_add(&words, ", as LINFUSE_CUDA_SHAPE says");
    else
        lf_str_add(&words, ", as measured:");
    for (int s = 0, listed = 0; s < LF_TILE_SHAPES && c->how == LF_TILE_BY_MEASURE; s++)
        if (c->measured[s] > 0)
            lf_str_addf(&words, "%s %s %s", listed++ ? "," : "", lf_tile_table[s].name,
                        lf_account_amount(LF_AS_US, c->measured[s]).text);
    labelled(&w->s, "tiles", words.text ? words.text : "");
    w->s.failed = w->s.failed || words.failed;
    lf_str_free(&words);
}

static void write_kernels(writing *w)
{
    int32_t groups = w->a->plan->groups;
    const int32_t launches = w->a->fused_launches;
    lf_str_addf(&w->s, "Fused: %d launch%s", (int)launches, plural(launches));
    if (launches < groups)
        lf_str_addf(&w->s, " of %d kernels, one after another", (int)groups);
    lf_str_add(&w->s, "\n");
    for (int32_t i = 0; i < groups; i++)
        write_kernel(w, i);
    if (w->a->has_choice)
        write_tiles(w);
    if (any_outside(w))
        lf_str_add(&w->s, "  in no kernel\n");
    write_list(w, lf_fate_table[LF_FATE_PREPARED].words, -2, LF_FATE_PREPARED, false);
    write_list(w, lf_fate_table[LF_FATE_PASSED].words, -2, LF_FATE_PASSED, false);
    write_list(w, lf_fate_table[LF_FATE_GONE].words, -2, LF_FATE_GONE, false);
    lf_str_add(&w->s, "\n");
}

/* ---- what comes of it ---- */

static void write_total(writing *w, const char *label, const char *section, int32_t launches)
{
    lf_str_addf(&w->s, "  %-12s%4d launch%-2s", label, (int)launches, plural(launches));
    write_numbers(&w->s, w->a, section, 0);
}

static void write_gain(writing *w)
{
    lf_str *s = &w->s;
    const double plain = w->a->plain.us, fused = w->a->fused.us, gain = fused > 0 ? plain / fused : 1;
    lf_str_add(s, "Predicted\n");
    write_total(w, "as written", "plain", w->a->plain_launches);
    lf_str_add(s, "\n");
    write_total(w, "fused", "fused", w->a->fused_launches);
    const bool slower = gain < 1 / 1.05;
    lf_str_addf(s,
                lf_account_launches_decide(plain, fused, w->a->plain_host_us) ? "   launches decide\n"
                : gain >= 99.5                                                ? "   %.0f times faster\n"
                : slower                                                      ? "   %.1f times slower\n"
                : gain >= 1.05                                                ? "   %.1f times faster\n"
                                                                              : "   about as fast\n",
                slower ? 1 / gain : gain);
    lf_str_add(s, "  memory:");
    const char *between = " ";
    for (const lf_field_row *f = lf_section("fused"); f; f = lf_next_field(f))
        if (f->field.phrase) {
            const lf_amount amount = lf_account_amount(f->unit, f->from(w->a, 0).number);
            lf_str_addf(s, "%s%s %s", between, amount.text, f->field.phrase);
            between = ", ";
        }
    lf_str_add(s, "\n");
}

lf_status lf_account_to_text(const lf_account *a, char **out)
{
    writing w = {.a = a};
    write_headline(&w);
    write_header(&w);
    write_ops(&w);
    write_notes(&w, "Rewritten", a->notes->done, a->notes->done_count, true);
    write_notes(&w, "Not rewritten", a->notes->refused, a->notes->refused_count, false);
    write_kernels(&w);
    write_gain(&w);
    *out = lf_str_take(&w.s);
    return *out ? LF_OK : LF_ERR_NOMEM;
}
