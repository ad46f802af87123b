/* SPDX-License-Identifier: Apache-2.0 */
/* The roofline of the page, in SVG. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/page.h"

/* The picture, in px: its size, and the margins of the plot. */
enum { WIDTH = 760, HEIGHT = 340, LEFT = 84, RIGHT = 20, TOP = 16, BOTTOM = 46 };
enum {
    NEAR = 22,       /* px: marks nearer than this share a label */
    LABELLED = 4     /* the numbers that a label has room for */
};
static const double plot_right = WIDTH - RIGHT, plot_bottom = HEIGHT - BOTTOM;

/* Middle tones, told apart by those who see no red or green too (Okabe and Ito): readable over white and over black. */
#define FUSED_COLOUR "#009e73"
#define PLAIN_COLOUR "#e69f00"

/* A logarithmic axis of whole decades. */
typedef struct axis {
    int first, last; /* powers of ten */
    double start, scale; /* px: where the first one is, and a decade's width */
} axis;

/* A kernel or an op. */
typedef struct point {
    const char *name; /* borrowed from the object */
    double work, rate; /* FLOP per byte, FLOP per second */
    double x, y;
} point;

/* Where a text may go, in px. */
typedef struct place {
    double x, y;
} place;

/* Room that is taken: middle, and half the width, in px. */
typedef struct taken {
    double x, y, half;
} taken;

/* Marks that are too near to each other to have a label each. */
typedef struct cluster {
    double x, y; /* of the first of them */
    size_t number[LABELLED], count;
} cluster;

typedef struct chart {
    lf_str *s;
    axis x, y;
    double flops, product_flops, bytes; /* what the machine can do in a second */
    point *point;                       /* kernels, then ops */
    size_t points, kernels;
    taken *taken; /* room for the words, and for a mark and a label of each point */
    size_t takens;
} chart;

enum { WORDS = 3 }; /* that stand at the roof, at most */

/* Figures beyond these are nobody's, and an axis to them would not fit numbers. */
static bool is_sane(double value)
{
    return value > 1e-30 && value < 1e30;
}

/* ---- drawing ---- */

static axis axis_of(double low, double high, double start, double end)
{
    axis a = {.first = (int)floor(log10(low)), .start = start};
    a.last = (int)ceil(log10(high));
    if (a.last <= a.first)
        a.last = a.first + 1;
    a.scale = (end - start) / (a.last - a.first);
    return a;
}

static double at(const axis *a, double value)
{
    return a->start + (log10(value) - a->first) * a->scale;
}

static void line(lf_str *s, double x1, double y1, double x2, double y2, const char *more)
{
    lf_str_addf(s, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"currentColor\" %s/>", x1, y1, x2, y2,
                more);
}

static void words(lf_str *s, double x, double y, const char *anchor, const char *text)
{
    lf_str_addf(s, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"11\" fill=\"currentColor\">", x, y,
                anchor);
    lf_page_text(s, text);
    lf_str_add(s, "</text>");
}

static void grid(const chart *c)
{
    static const char faint[] = "stroke-opacity=\".15\"";
    char text[32];
    for (int e = c->x.first; e <= c->x.last; e++) {
        const double x = at(&c->x, pow(10, e));
        line(c->s, x, TOP, x, plot_bottom, faint);
        snprintf(text, sizeof text, "%g", pow(10, e));
        words(c->s, x, plot_bottom + 16, "middle", text);
    }
    for (int e = c->y.first; e <= c->y.last; e++) {
        const double y = at(&c->y, pow(10, e));
        const lf_amount rate = lf_page_amount(LF_AS_FLOP_S, pow(10, e));
        line(c->s, LEFT, y, plot_right, y, faint);
        snprintf(text, sizeof text, "%g%s", strtod(rate.text, NULL), rate.text + strcspn(rate.text, " "));
        words(c->s, LEFT - 6, y + 4, "end", text);
    }
    words(c->s, (LEFT + plot_right) / 2, HEIGHT - 8, "middle", "FLOP per byte moved");
}

/* ---- words and labels, which keep clear of each other and of marks ---- */

enum { HIGH = 7 }; /* px: half the height of a line of text */

/* Is there room for a text of that half width with its middle there? */
static bool has_room(const chart *c, double x, double y, double half)
{
    if (y <= TOP || y >= plot_bottom - 8)
        return false;
    for (size_t i = 0; i < c->takens; i++)
        if (fabs(x - c->taken[i].x) < half + c->taken[i].half && fabs(y - c->taken[i].y) < 2 * HIGH)
            return false;
    return true;
}

static void take(chart *c, double x, double y, double half)
{
    c->taken[c->takens++] = (taken){x, y, half};
}

/* ---- the roof ---- */

/* Words that end at the first of `count` places (x, base line) with room for them; at the first where none has. */
static void roof_words(chart *c, const place *at_end, size_t count, const char *text)
{
    const double half = 3.5 * (double)strlen(text); /* of fonts that are wide, too, such as monospaced ones */
    size_t i = 0;
    while (i < count && !has_room(c, at_end[i].x - half, at_end[i].y - 4, half))
        i++;
    i = i < count ? i : 0;
    words(c->s, at_end[i].x, at_end[i].y, "end", text);
    take(c, at_end[i].x - half, at_end[i].y - 4, half);
}

/* The level part, for one kind of work. */
static void level(chart *c, double rate, const char *name)
{
    const double begin = fmin(rate / c->bytes, pow(10, c->x.last)), y = at(&c->y, rate), end = plot_right - 4;
    const place places[] = {{end, y - 6}, {end, y - 20}, {end, y + 14}, {end, y + 28}};
    char text[64];
    snprintf(text, sizeof text, "%s %s", name, lf_page_amount(LF_AS_FLOP_S, rate).text);
    line(c->s, at(&c->x, begin), y, plot_right, y, "stroke-width=\"2\"");
    roof_words(c, places, sizeof places / sizeof *places, text);
}

/* The slope. */
static void memory(chart *c)
{
    static const double along[] = {0.5, 0.35, 0.65, 0.8, 0.2};
    enum { PLACES = sizeof along / sizeof *along };
    const double start = fmax(pow(10, c->x.first), pow(10, c->y.first) / c->bytes);
    const double ridge = fmin(fmax(c->flops, c->product_flops) / c->bytes, pow(10, c->x.last));
    place places[PLACES];
    char text[64];
    for (int i = 0; i < PLACES; i++) {
        const double work = start * pow(ridge / start, along[i]);
        places[i].x = fmax(at(&c->x, work) - 8, LEFT + 120);
        places[i].y = at(&c->y, work * c->bytes) - 8;
    }
    line(c->s, at(&c->x, start), at(&c->y, start * c->bytes), at(&c->x, ridge), at(&c->y, ridge * c->bytes),
         "stroke-width=\"2\"");
    snprintf(text, sizeof text, "memory %s", lf_page_amount(LF_AS_BYTE_S, c->bytes).text);
    roof_words(c, places, PLACES, text);
}

static void roof(chart *c)
{
    level(c, c->flops, "fp32 peak");
    if (c->product_flops > 1.02 * c->flops)
        level(c, c->product_flops, "tensor cores");
    memory(c);
}

/* Where the roof is over x, in px. */
static double roof_at(const chart *c, double x)
{
    const double work = pow(10, c->x.first + (x - c->x.start) / c->x.scale);
    return at(&c->y, fmin(fmax(c->flops, c->product_flops), c->bytes * work));
}

/* Would a text there cross a line of the roof? */
static bool crosses_roof(const chart *c, double x, double y, double half)
{
    const bool below = roof_at(c, x + half) < y + HIGH; /* its end is not wholly above the roof */
    return below && (roof_at(c, x - half) > y - HIGH || fabs(at(&c->y, c->flops) - y) < HIGH);
}

/* Why a point lies above the roof, where it does. */
static const char *above(const chart *c, const point *p)
{
    if (p->rate > 1.02 * fmax(c->flops, c->product_flops))
        return " (above the roof: functions such as exp count as many operations and take fewer)";
    if (p->rate > 1.02 * c->bytes * p->work)
        return " (above the roof: what it reads is still in a cache)";
    return "";
}

/* ---- points ---- */

static void add_points(chart *c, const json_t *rows)
{
    const json_t *row;
    size_t i;
    json_array_foreach (rows, i, row) {
        const double us = lf_page_number_of(row, "us"), flops = lf_page_number_of(row, "flops");
        const double work = flops / lf_page_number_of(row, "bytes"), rate = flops / (us * 1e-6);
        if (us > 0 && is_sane(work) && is_sane(rate))
            c->point[c->points++] = (point){.name = lf_page_text_of(row, "name"), .work = work, .rate = rate};
    }
}

static void find_axes(chart *c)
{
    const double top = fmax(c->flops, c->product_flops);
    double least_work = top / c->bytes, most_work = least_work, least_rate = top, most_rate = top;
    for (size_t i = 0; i < c->points; i++) {
        least_work = fmin(least_work, c->point[i].work);
        most_work = fmax(most_work, c->point[i].work);
        least_rate = fmin(least_rate, c->point[i].rate);
        most_rate = fmax(most_rate, c->point[i].rate);
    }
    c->x = axis_of(least_work / 2, most_work * 3, LEFT, plot_right);
    c->y = axis_of(least_rate / 2, most_rate * 1.5, plot_bottom, TOP);
    for (size_t i = 0; i < c->points; i++) {
        c->point[i].x = at(&c->x, c->point[i].work);
        c->point[i].y = at(&c->y, c->point[i].rate);
        take(c, c->point[i].x, c->point[i].y, 8);
    }
}

/* Kernels last, so that none hides behind an op. */
static void marks(const chart *c)
{
    for (size_t i = c->kernels; i < c->points; i++)
        lf_str_addf(c->s, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"none\" stroke=\"" PLAIN_COLOUR
                    "\" stroke-width=\"2\"/>", c->point[i].x, c->point[i].y);
    for (size_t i = 0; i < c->kernels; i++)
        lf_str_addf(c->s, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"7\" fill=\"" FUSED_COLOUR "\"/>", c->point[i].x,
                    c->point[i].y);
}

/* The numbers of a cluster near it, in the first place that is free; none where there is no room. */
static void label(chart *c, const cluster *of)
{
    char text[LABELLED * 24 + 8] = "";
    for (size_t i = 0, length = 0; i < of->count && i < LABELLED; i++)
        length += (size_t)snprintf(text + length, sizeof text - length, "%s%zu", i ? ", " : "", of->number[i]);
    const double half = 4.0 * (double)(strlen(text) + (of->count > LABELLED ? 2 : 0)) + 2;
    if (of->count > LABELLED)
        strcat(text, " …");
    const place places[] = {{0, 18}, {half + 12, 1}, {-half - 12, 1}, {0, -18}, {0, 32}, {half + 12, 16},
                                {-half - 12, -16}, {0, -32}, {half + 24, 32}, {-half - 24, -32}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const double x = fmin(fmax(of->x + places[i].x, LEFT + half), plot_right - half);
        const double y = of->y + places[i].y;
        if (has_room(c, x, y, half) && !crosses_roof(c, x, y, half)) {
            take(c, x, y, half);
            words(c->s, x, y + 4, "middle", text);
            return;
        }
    }
}

static bool is_near(const cluster *of, const point *p)
{
    return fabs(of->x - p->x) < NEAR && fabs(of->y - p->y) < NEAR;
}

/* The points' numbers beside them, as the table has them; marks close to each other share a label. */
static bool numbers(chart *c)
{
    cluster *clusters = calloc(c->points + 1, sizeof *clusters);
    size_t count = 0;
    for (size_t i = 0; clusters && i < c->points; i++) {
        size_t k = 0;
        while (k < count && !is_near(&clusters[k], &c->point[i]))
            k++;
        if (k == count)
            clusters[count++] = (cluster){.x = c->point[i].x, .y = c->point[i].y};
        if (clusters[k].count < LABELLED)
            clusters[k].number[clusters[k].count] = i + 1;
        clusters[k].count++;
    }
    for (size_t k = 0; k < count; k++)
        label(c, &clusters[k]);
    const bool done = clusters != NULL;
    free(clusters);
    return done;
}

static void table(const chart *c)
{
    lf_str_add(c->s, "<p class=\"dim\">filled: fused kernels; hollow: ops as written</p><div class=\"scroll\"><table>"
                     "<tr><th class=t></th><th class=t></th><th class=t>work per byte</th><th class=t>rate</th>"
                     "<th class=wrap>name</th></tr>");
    for (size_t i = 0; i < c->points; i++) {
        const point *p = &c->point[i];
        lf_str_addf(c->s, "<tr><td class=t>%zu</td><td class=t>%s</td><td class=t>%.3g FLOP/B</td><td class=t>%s</td>"
                          "<td class=wrap>", i + 1, i < c->kernels ? "kernel" : "op", p->work,
                    lf_page_amount(LF_AS_FLOP_S, p->rate).text);
        lf_page_text(c->s, p->name);
        lf_str_addf(c->s, "%s</td></tr>", above(c, p));
    }
    lf_str_add(c->s, "</table></div>");
}

static bool draw(chart *c)
{
    find_axes(c);
    lf_str_addf(c->s, "<details><summary>Roofline</summary>"
                      "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" aria-label=\"roofline\" width=\"%d\" "
                      "height=\"%d\" viewBox=\"0 0 %d %d\" font-family=\"system-ui,sans-serif\" font-size=\"12\">",
                WIDTH, HEIGHT, WIDTH, HEIGHT);
    grid(c);
    roof(c);
    marks(c);
    const bool done = numbers(c);
    lf_str_add(c->s, "</svg>");
    table(c);
    lf_str_add(c->s, "</details>");
    return done;
}

bool lf_page_roofline(lf_str *s, const json_t *account)
{
    const json_t *peak = json_object_get(account, "peak");
    const json_t *kernels = json_object_get(account, "kernels"), *ops = json_object_get(account, "ops");
    const size_t most = json_array_size(kernels) + json_array_size(ops);
    chart c = {.s = s, .flops = lf_page_number_of(peak, "flops"), .bytes = lf_page_number_of(peak, "bytes"),
               .product_flops = lf_page_number_of(peak, "product_flops")};
    if (!is_sane(c.flops) || !is_sane(c.bytes) || !(c.product_flops < 1e30))
        return true;
    c.point = calloc(most + 1, sizeof *c.point);
    c.taken = calloc(2 * most + WORDS, sizeof *c.taken);
    bool done = c.point && c.taken;
    if (done) {
        add_points(&c, kernels);
        c.kernels = c.points;
        add_points(&c, ops);
        done = draw(&c);
    }
    free(c.point);
    free(c.taken);
    return done;
}
