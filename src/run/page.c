/* SPDX-License-Identifier: Apache-2.0 */
/* The account as a page: what it is worth, the way from input to output, and folded away the ops and the roofline.
 *
 * It is made from the JSON object and not from an lf_account, which lives no longer than its program: the object can be
 * kept, sent, and joined of several programs with what PyTorch runs between them. The page neither fetches nor runs
 * anything. In a fragment text takes the colour of the page around it (currentColor) and fills are half transparent, so
 * that it reads on light and on dark ground alike. Boxes are blocks of text that the browser lays out, which fit a
 * phone as well. */
#include "run/page.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/handles.h"

extern const char lf_text_page[]; /* page.css */

typedef struct page {
    lf_str s;
    json_t *account;
    json_t *op;     /* "PART NAME" of each op: its object */
    json_t *kernel; /* "PART NAME" of each op that a kernel covers: the kernel's number from 1 */
    bool failed;    /* no memory for these two */
} page;

/* ---- text ---- */

/* How many bytes the UTF-8 character at p takes; 0 where there is none. p ends with a NUL. */
static size_t character_at(const unsigned char *p)
{
    const size_t length = p[0] < 0x80 ? 1 : p[0] >= 0xf0 && p[0] < 0xf5 ? 4 : p[0] >= 0xe0 && p[0] < 0xf0 ? 3
                          : p[0] >= 0xc2 && p[0] < 0xe0 ? 2 : 0;
    for (size_t i = 1; i < length; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    const bool overlong = (p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xf0 && p[1] < 0x90);
    const bool beyond = (p[0] == 0xed && p[1] >= 0xa0) || (p[0] == 0xf4 && p[1] >= 0x90); /* surrogates, the end */
    return overlong || beyond ? 0 : length;
}

void lf_page_text(lf_str *s, const char *text)
{
    while (*text) {
        const size_t length = character_at((const unsigned char *)text);
        const bool control = ((unsigned char)*text < ' ' && *text != '\n' && *text != '\t') || *text == 0x7f;
        if (*text == '&')
            lf_str_add(s, "&amp;");
        else if (*text == '<')
            lf_str_add(s, "&lt;");
        else if (*text == '>')
            lf_str_add(s, "&gt;");
        else if (*text == '"')
            lf_str_add(s, "&quot;");
        else if (*text == '\'')
            lf_str_add(s, "&#x27;");
        else if (length == 0 || control)
            lf_str_add(s, "\xef\xbf\xbd"); /* U+FFFD */
        else
            lf_str_addn(s, text, length);
        text += length ? length : 1;
    }
}

lf_amount lf_page_amount(lf_field_unit unit, double value)
{
    static const char NO_BREAK[] = "\xc2\xa0"; /* U+00A0: the number and its unit stay on one line */
    const lf_amount plain = lf_account_amount(unit, value);
    const char *space = strchr(plain.text, ' ');
    if (!space)
        return plain;
    lf_amount out;
    snprintf(out.text, sizeof out.text, "%.*s%s%s", (int)(space - plain.text), plain.text, NO_BREAK,
             strcmp(space, " us") == 0 ? "µs" : space + 1);
    return out;
}

/* <tag>text</tag>; tag may have a class: "p class=dim". */
static void element(lf_str *s, const char *tag, const char *text)
{
    lf_str_addf(s, "<%s>", tag);
    lf_page_text(s, text);
    lf_str_addf(s, "</%.*s>", (int)strcspn(tag, " "), tag);
}

/* "1 op", "2 ops". */
static void counted(lf_str *s, size_t count, const char *one, const char *more)
{
    lf_str_addf(s, "%zu %s%s", count, one, count == 1 ? "" : more);
}

static void launches(lf_str *s, const json_t *side)
{
    counted(s, (size_t)fmax(lf_page_number_of(side, "launches"), 0), "launch", "es");
}

/* ---- the object ---- */

const char *lf_page_text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

double lf_page_number_of(const json_t *object, const char *key)
{
    const double value = json_number_value(json_object_get(object, key));
    return isfinite(value) ? value : 0;
}

static json_t *section(const page *p, const char *name)
{
    return json_object_get(p->account, name);
}

/* Which program of several a row is of, from 1. */
static json_int_t part_of(const json_t *row)
{
    const json_t *part = json_object_get(row, "part");
    return part ? json_integer_value(part) : 1;
}

/* What a value is found by, whose name is its program's alone. Caller frees; NULL: no memory. */
static char *key_of(const json_t *row, const char *name)
{
    lf_str s = {0};
    lf_str_addf(&s, "%lld %s", (long long)part_of(row), name);
    return lf_str_take(&s);
}

/* What is known of a value, in p->op or p->kernel. */
static const json_t *known(page *p, const json_t *in, const json_t *row, const char *name)
{
    char *key = key_of(row, name);
    const json_t *found = key ? json_object_get(in, key) : NULL;
    p->failed = p->failed || !key;
    free(key);
    return found;
}

/* Takes value. */
static void know(page *p, json_t *in, const json_t *row, const char *name, json_t *value)
{
    char *key = key_of(row, name);
    if (json_object_set_new(in, key, value) != 0) /* which takes a NULL for a failure, and value in any case */
        p->failed = true;
    free(key);
}

/* The number of the kernel that computes what a rewrite or a refusal stands at; 0: none does. */
static size_t kernel_at(page *p, const json_t *note)
{
    return (size_t)json_integer_value(known(p, p->kernel, note, lf_page_text_of(note, "at")));
}

static void find_all(page *p)
{
    size_t i, c;
    json_t *row, *name;
    p->op = json_object();
    p->kernel = json_object();
    p->failed = !p->op || !p->kernel;
    json_array_foreach (section(p, "ops"), i, row)
        know(p, p->op, row, lf_page_text_of(row, "name"), json_incref(row));
    json_array_foreach (section(p, "kernels"), i, row)
        json_array_foreach (json_object_get(row, "covers"), c, name)
            if (json_is_string(name))
                know(p, p->kernel, row, json_string_value(name), json_integer((json_int_t)i + 1));
}

/* ---- figures ---- */

/* A figure of a row; a dash where there is nothing of it. */
static lf_amount figure(const json_t *row, const lf_field_row *f)
{
    const double value = lf_page_number_of(row, f->field.name);
    return value != 0 ? lf_page_amount(f->unit, value) : (lf_amount){"–"};
}

/* What a field says of a row, on a line of its own; nothing where there is nothing of it. */
static void labelled(lf_str *s, const json_t *row, const lf_field_row *f)
{
    const bool is_text = f->unit == LF_AS_TEXT;
    const double value = is_text ? 0 : lf_page_number_of(row, f->field.name);
    const lf_amount amount = value != 0 ? lf_page_amount(f->unit, value) : (lf_amount){""};
    const char *words = is_text ? lf_page_text_of(row, f->field.name) : amount.text;
    if (!*words)
        return;
    lf_str_addf(s, "<p><span class=\"dim\">%s</span> ", f->field.phrase);
    lf_page_text(s, words);
    lf_str_add(s, "</p>");
}

/* Those of a section that go with words, in one line. words_first: "fp32 peak 1 TFLOP/s", else "1 kB of workspace". */
static void phrases(page *p, const char *name, bool words_first)
{
    const char *between = "";
    for (const lf_field_row *f = lf_section(name); f; f = lf_next_field(f))
        if (f->field.phrase) {
            const lf_amount a = lf_page_amount(f->unit, lf_page_number_of(section(p, name), f->field.name));
            lf_str_addf(&p->s, "%s%s %s", between, words_first ? f->field.phrase : a.text,
                        words_first ? a.text : f->field.phrase);
            between = ", ";
        }
}

static void shape_words(lf_str *s, const json_t *op)
{
    const json_t *shape = json_object_get(op, "shape"), *extent;
    size_t i;
    json_array_foreach (shape, i, extent)
        lf_str_addf(s, "%s%lld", i ? " × " : "", (long long)json_integer_value(extent));
    if (json_array_size(shape) == 0)
        lf_str_add(s, "scalar");
}

/* ---- the head ---- */

/* Ends the sentence; says what to think of it, if anything, in the next. */
static void predicted(page *p, const char *after)
{
    const double plain = lf_page_number_of(section(p, "plain"), "us");
    const double fused = lf_page_number_of(section(p, "fused"), "us");
    const bool gpu = strcmp(lf_page_text_of(p->account, "device"), "cpu") != 0;
    const bool doubt = lf_account_launches_decide(plain, fused, lf_page_number_of(section(p, "plain"), "host_us"));
    const lf_amount gain = lf_account_gain(plain, fused);
    lf_account_predicted(&p->s, gpu, lf_page_amount(LF_AS_US, plain), lf_page_amount(LF_AS_US, fused),
                         doubt ? NULL : &gain);
    lf_str_add(&p->s, after);
    if (doubt)
        lf_str_addf(&p->s, "%s ", lf_account_doubt);
}

/* What it runs on, and at which extents. */
static void conditions(page *p)
{
    const char *key, *between = "";
    json_t *extent;
    json_object_foreach (section(p, "dims"), key, extent) {
        lf_str_add(&p->s, between);
        lf_page_text(&p->s, key);
        lf_str_addf(&p->s, " = %lld", (long long)json_integer_value(extent));
        between = ", ";
    }
    lf_str_add(&p->s, *between ? " on " : "");
    lf_page_text(&p->s, lf_page_text_of(p->account, "title"));
    lf_str_add(&p->s, ": ");
    phrases(p, "peak", true);
    const double products = lf_page_number_of(section(p, "peak"), "product_flops");
    if (products > lf_page_number_of(section(p, "peak"), "flops")) {
        lf_str_add(&p->s, ", ");
        lf_page_text(&p->s, lf_page_text_of(p->account, "precision"));
        lf_str_addf(&p->s, " products on tensor cores %s", lf_page_amount(LF_AS_FLOP_S, products).text);
    }
}

static void head(page *p, const char *title)
{
    lf_str *s = &p->s;
    const json_t *measured = section(p, "measured"), *doubt;
    size_t i;
    lf_str_add(s, "<p class=\"head\">");
    if (title && *title) {
        lf_page_text(s, title);
        lf_str_add(s, ": ");
    }
    if (measured) {
        lf_str_add(s, "<b>Measured on ");
        lf_page_text(s, lf_page_text_of(measured, "where"));
        lf_str_add(s, ": ");
        lf_page_text(s, lf_page_text_of(measured, "headline"));
        lf_str_add(s, "</b></p>");
        json_array_foreach (json_object_get(measured, "doubts"), i, doubt)
            element(s, "p class=dim", json_is_string(doubt) ? json_string_value(doubt) : "");
    }
    if (json_array_size(section(p, "ops")) == 0) {
        lf_str_add(s, measured ? "<p>Nothing of it runs in linfuse.</p>" : "nothing of it runs in linfuse.</p>");
        return;
    }
    lf_str_add(s, measured ? "<p class=\"dim\">" : "<b>");
    predicted(p, measured ? ". " : "</b></p><p class=\"dim\">");
    counted(s, json_array_size(section(p, "ops")), "op", "s");
    lf_str_add(s, " in ");
    counted(s, json_array_size(section(p, "kernels")), "kernel", "s");
    lf_str_add(s, ", ");
    launches(s, section(p, "fused"));
    const size_t elsewhere = json_array_size(section(p, "fallbacks"));
    if (elsewhere > 0) {
        lf_str_add(s, "; ");
        counted(s, elsewhere, "op", "s");
        lf_str_add(s, " in PyTorch, whose time is not predicted");
    }
    lf_str_add(s, ". ");
    conditions(p);
    lf_str_add(s, ". Memory: ");
    phrases(p, "fused", false);
    lf_str_add(s, ".</p>");
}

/* ---- from input to output ---- */

static void arrow(lf_str *s)
{
    lf_str_add(s, "<div class=\"arrow\">↓</div>");
}

/* One of PyTorch's ops. */
static void torch_chip(lf_str *s, const json_t *fallback)
{
    const char *module = lf_page_text_of(fallback, "module");
    lf_str_add(s, "<span class=\"chip apart\">");
    element(s, "b", lf_page_text_of(fallback, "node"));
    lf_str_add(s, " ");
    lf_page_text(s, lf_page_text_of(fallback, "op"));
    lf_str_add(s, *module ? " in " : "");
    lf_page_text(s, module);
    lf_str_add(s, "</span>");
}

/* Is it left to PyTorch after one program and up to the next? */
static bool is_between(const json_t *fallback, json_int_t after, json_int_t upto)
{
    return part_of(fallback) > after && part_of(fallback) <= upto;
}

/* A box of what PyTorch runs there, by reason; nothing where it runs nothing. */
static void torch_box(page *p, json_int_t after, json_int_t upto)
{
    const json_t *fallbacks = section(p, "fallbacks"), *row, *other;
    size_t i, k;
    bool any = false;
    json_array_foreach (fallbacks, i, row) {
        const char *why = lf_page_text_of(row, "why");
        bool told = false;
        json_array_foreach (fallbacks, k, other) {
            if (k == i)
                break;
            told = told || (is_between(other, after, upto) && strcmp(lf_page_text_of(other, "why"), why) == 0);
        }
        if (told || !is_between(row, after, upto))
            continue;
        if (!any)
            lf_str_add(&p->s, "<div class=\"box torch\"><b>PyTorch</b>");
        any = true;
        lf_str_add(&p->s, "<div class=\"chips\">");
        json_array_foreach (fallbacks, k, other)
            if (is_between(other, after, upto) && strcmp(lf_page_text_of(other, "why"), why) == 0)
                torch_chip(&p->s, other);
        lf_str_add(&p->s, "</div>");
        element(&p->s, "p class=dim", why);
    }
    if (any) {
        lf_str_add(&p->s, "</div>");
        arrow(&p->s);
    }
}

static bool is_fate(const json_t *op, lf_fate fate)
{
    return strcmp(lf_page_text_of(op, "now"), lf_fate_table[fate].name) == 0;
}

/* What became of an op's value, in words. */
static const char *fate_of(const json_t *op)
{
    for (int fate = 0; fate < LF_FATES; fate++)
        if (is_fate(op, (lf_fate)fate))
            return lf_fate_table[fate].words;
    return lf_page_text_of(op, "now");
}

/* An op and the shape of what it gives. */
static void op_chip(lf_str *s, const json_t *op)
{
    lf_str_addf(s, "<span class=\"chip%s\">", is_fate(op, LF_FATE_STORED) ? " stored" : "");
    element(s, "b", lf_page_text_of(op, "name"));
    lf_str_add(s, " ");
    lf_page_text(s, lf_page_text_of(op, "op"));
    lf_str_add(s, " ");
    shape_words(s, op);
    lf_str_add(s, "</span>");
}

/* A rule, what it did or why it did not, and of which class it is. */
static void note_line(page *p, const json_t *note, bool done)
{
    const char *at = lf_page_text_of(note, "at"), *class = lf_page_text_of(note, "class");
    const char *words = lf_rule_class_words(class);
    const json_t *op = known(p, p->op, note, at);
    lf_str_add(&p->s, "<p class=\"dim\"><b>");
    lf_page_text(&p->s, at);
    if (op) {
        lf_str_add(&p->s, " = ");
        lf_page_text(&p->s, lf_page_text_of(op, "op"));
        lf_str_add(&p->s, " ");
        shape_words(&p->s, op);
    }
    lf_str_add(&p->s, "</b>: ");
    lf_page_text(&p->s, lf_page_text_of(note, "why"));
    lf_str_add(&p->s, " (");
    lf_page_text(&p->s, lf_page_text_of(note, "rule"));
    lf_str_add(&p->s, !*class ? "" : done ? "; " : "; would be ");
    lf_page_text(&p->s, class);
    lf_str_addf(&p->s, "%s%s)</p>", words ? ": " : "", words ? words : "");
}

/* Of a list of rewrites or refusals those at ops of one kernel, or of none (0), below a heading. */
static void notes_of(page *p, const char *list, size_t kernel, const char *heading)
{
    const json_t *note;
    size_t i;
    bool any = false;
    json_array_foreach (section(p, list), i, note) {
        if (kernel_at(p, note) != kernel)
            continue;
        if (!any)
            element(&p->s, kernel ? "p" : "h4", heading);
        any = true;
        note_line(p, note, strcmp(list, "rewrites") == 0);
    }
}

/* What a kernel does, what it replaces, and by which rules. number: from 1. */
static void kernel_box(page *p, size_t number, const json_t *kernel)
{
    lf_str *s = &p->s;
    const json_t *covers = json_object_get(kernel, "covers"), *name, *op;
    size_t i;
    lf_str_addf(s, "<div class=\"box kernel\"><div class=\"top\"><b>%zu. ", number);
    lf_page_text(s, lf_page_text_of(kernel, "name"));
    lf_str_add(s, "</b><span>");
    const char *between = "";
    for (const lf_field_row *f = lf_section("kernels"); f; f = lf_next_field(f))
        if (lf_is_figure(f)) {
            lf_str_addf(s, "%s%s %s", between, f->field.column, figure(kernel, f).text);
            between = ", ";
        }
    lf_str_add(s, "</span></div>");
    for (const lf_field_row *f = lf_section("kernels"); f; f = lf_next_field(f))
        if (f->field.phrase && !lf_is_figure(f))
            labelled(s, kernel, f);
    lf_str_add(s, "<p><span class=\"dim\">replaces</span> ");
    counted(s, json_array_size(covers), "op", "s");
    lf_str_add(s, "</p><div class=\"chips\">");
    json_array_foreach (covers, i, name)
        if (json_is_string(name) && (op = known(p, p->op, kernel, json_string_value(name))))
            op_chip(s, op);
    lf_str_add(s, "</div>");
    notes_of(p, "rewrites", number, "rewritten");
    notes_of(p, "refused", number, "not rewritten");
    lf_str_add(s, "</div>");
}

/* What no kernel computes. */
static void outside(page *p)
{
    const json_t *op;
    size_t i;
    bool any = false;
    json_array_foreach (section(p, "ops"), i, op) {
        if (is_fate(op, LF_FATE_INSIDE) || known(p, p->kernel, op, lf_page_text_of(op, "name")))
            continue;
        if (!any)
            lf_str_add(&p->s, "<p>In no kernel</p><div class=\"chips\">");
        any = true;
        lf_str_add(&p->s, "<span class=\"chip apart\">");
        element(&p->s, "b", lf_page_text_of(op, "name"));
        lf_str_add(&p->s, " ");
        lf_page_text(&p->s, lf_page_text_of(op, "op"));
        lf_str_add(&p->s, ", ");
        lf_page_text(&p->s, fate_of(op));
        lf_str_add(&p->s, "</span>");
    }
    lf_str_add(&p->s, any ? "</div>" : "");
}

/* A box for each kernel and for each run of PyTorch's ops, in the order in which they run. */
static void flow(page *p)
{
    const json_t *kernel;
    json_int_t part = 0;
    size_t i;
    if (json_array_size(section(p, "kernels")) > 0)
        lf_str_addf(&p->s,
                    "<div class=\"chips\"><span class=\"chip\">%s</span><span class=\"chip stored\">%s</span>"
                    "<span class=\"dim\">times of kernels are predicted</span></div>",
                    lf_fate_table[LF_FATE_INSIDE].words, lf_fate_table[LF_FATE_STORED].words);
    lf_str_add(&p->s, "<div class=\"box end\">input</div>");
    arrow(&p->s);
    json_array_foreach (section(p, "kernels"), i, kernel) {
        if (part_of(kernel) > part) {
            torch_box(p, part, part_of(kernel));
            part = part_of(kernel);
        }
        kernel_box(p, i + 1, kernel);
        arrow(&p->s);
    }
    torch_box(p, part, INT64_MAX);
    lf_str_add(&p->s, "<div class=\"box end\">output</div>");
    outside(p);
    notes_of(p, "rewrites", 0, "Rewritten outside of kernels");
    notes_of(p, "refused", 0, "Not rewritten");
}

/* ---- the ops ---- */

/* Columns before the figures and after them. */
enum { BEFORE_FIGURES = 3, AFTER_FIGURES = 3, BAR = 90 /* px */ };

static size_t figures_of(const char *name)
{
    size_t count = 0;
    for (const lf_field_row *f = lf_section(name); f; f = lf_next_field(f))
        count += lf_is_figure(f);
    return count;
}

static void op_row(page *p, const json_t *op)
{
    lf_str *s = &p->s;
    const double us = lf_page_number_of(op, "us"), all = lf_page_number_of(section(p, "plain"), "us");
    const double share = all > 0 ? fmin(fmax(us / all, 0), 1) : 0;
    lf_str_add(s, "<tr>");
    element(s, "td class=t", lf_page_text_of(op, "name"));
    element(s, "td class=t", lf_page_text_of(op, "op"));
    lf_str_add(s, "<td class=t>");
    shape_words(s, op);
    lf_str_add(s, "</td>");
    for (const lf_field_row *f = lf_section("ops"); f; f = lf_next_field(f))
        if (lf_is_figure(f))
            element(s, "td", figure(op, f).text);
    lf_str_add(s, "<td>");
    if (us > 0)
        lf_str_addf(s, "%.1f%% <span class=\"bar\" style=\"width:%.0fpx\"></span>", 100 * share, fmax(1, BAR * share));
    lf_str_add(s, "</td>");
    element(s, "td class=t", fate_of(op));
    lf_str_add(s, "<td class=t>");
    const json_t *kernel = known(p, p->kernel, op, lf_page_text_of(op, "name"));
    if (kernel)
        lf_str_addf(s, "%lld", (long long)json_integer_value(kernel));
    lf_str_add(s, "</td></tr>");
}

static void op_table(page *p)
{
    lf_str *s = &p->s;
    const json_t *op;
    json_int_t part = 1;
    size_t i;
    lf_str_add(s, "<details><summary>As written, op by op: ");
    launches(s, section(p, "plain"));
    lf_str_add(s, "</summary><div class=\"scroll\"><table><tr><th class=t>value</th><th class=t>op</th>"
                  "<th class=t>shape</th>");
    for (const lf_field_row *f = lf_section("ops"); f; f = lf_next_field(f))
        if (lf_is_figure(f))
            element(s, "th", f->field.column);
    lf_str_add(s, "<th>share</th><th class=t>now</th><th class=t>kernel</th></tr>");
    json_array_foreach (section(p, "ops"), i, op) {
        if (part_of(op) != part || (i == 0 && json_object_get(op, "part")))
            lf_str_addf(s, "<tr><th class=t colspan=%zu>part %lld</th></tr>",
                        BEFORE_FIGURES + figures_of("ops") + AFTER_FIGURES, (long long)part_of(op));
        part = part_of(op);
        op_row(p, op);
    }
    lf_str_add(s, "<tr><th class=t>all</th><th></th><th></th>");
    for (const lf_field_row *f = lf_section("plain"); f; f = lf_next_field(f))
        if (lf_is_figure(f))
            element(s, "th", figure(section(p, "plain"), f).text);
    lf_str_add(s, "<th></th><th></th><th></th></tr></table></div></details>");
}

/* ---- all of it ---- */

static void fragment(page *p, const char *title)
{
    const json_t *note;
    size_t i;
    lf_str_addf(&p->s, "<div class=\"lf-account\"><style>%s</style>", lf_text_page);
    head(p, title);
    flow(p);
    json_array_foreach (section(p, "notes"), i, note)
        element(&p->s, "p", json_is_string(note) ? json_string_value(note) : "");
    if (json_array_size(section(p, "ops")) > 0)
        op_table(p);
    p->failed = !lf_page_roofline(&p->s, p->account) || p->failed;
    lf_str_add(&p->s, "</div>");
}

static void whole_page(page *p, const char *title)
{
    lf_str_add(&p->s, "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">"
                      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">");
    element(&p->s, "title", title && *title ? title : "linfuse");
    lf_str_add(&p->s, "<style>:root{color-scheme:light dark}"
                      "body{margin:1.2em auto;max-width:820px;padding:0 1em;background:#fff;color:#1b1f24}"
                      "@media(prefers-color-scheme:dark){body{background:#14171a;color:#e4e7ea}}</style></head><body>");
    fragment(p, title);
    lf_str_add(&p->s, "</body></html>\n");
}

/* Whether it is an account's object as far as the page cannot do without; key: gets what is missing. */
static bool is_account(const json_t *account, const char **key)
{
    static const char *const lists[] = {"ops", "kernels"}, *const objects[] = {"plain", "fused", "dims"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (!json_is_array(json_object_get(account, *key = lists[i])))
            return false;
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++)
        if (!json_is_object(json_object_get(account, *key = objects[i])))
            return false;
    return true;
}

lf_status lf_page_print(lf_context *context, const char *title, const char *json, bool whole, char **out)
{
    const char *missing = NULL;
    json_error_t error;
    if (out)
        *out = NULL;
    if (!context)
        return LF_ERR_ARG;
    if (!json || !out)
        return lf_fail_null(&context->diag, json ? "out" : "json");
    json_t *account = json_loads(json, JSON_ALLOW_NUL, &error);
    if (!account && (json_error_code(&error) == json_error_out_of_memory || !error.text[0]))
        return lf_fail_nomem(&context->diag, "the account");
    if (!account)
        return lf_fail(&context->diag, LF_ERR_DATA, "`json` is not JSON: %s", error.text);
    if (!is_account(account, &missing)) {
        json_decref(account);
        return lf_fail(&context->diag, LF_ERR_DATA, "`json` is not an account: it has no %s", missing);
    }
    page p = {.account = account};
    find_all(&p);
    if (whole)
        whole_page(&p, title);
    else
        fragment(&p, title);
    json_decref(p.op);
    json_decref(p.kernel);
    json_decref(account);
    char *text = lf_str_take(&p.s);
    if (text && p.failed) {
        free(text);
        text = NULL;
    }
    *out = text;
    return text ? LF_OK : lf_fail_nomem(&context->diag, "the page");
}
