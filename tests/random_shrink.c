/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a failing case small: edits its text, keeps every edit after which the same comparison still fails, until none
 * is left that does. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random_model.h"

enum { MOST_LINES = 128, LINE = RND_LINE, MOST_TRIES = 3000 };

typedef struct shrinking {
    rnd_bench *bench;
    rnd_case *best;
    rnd_failure *f;
    int tries;
    char line[MOST_LINES][LINE]; /* of the best case; "" where one is taken away */
    int lines;
} shrinking;

/* ---- lines and words ---- */

static bool in_word(char c) { return isalnum((unsigned char)c) || c == '_' || c == '.'; }

static const char *find_word(const char *line, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = strstr(line, word); at; at = strstr(at + 1, word))
        if ((at == line || !in_word(at[-1])) && !in_word(at[n]) &&
            !(at > line && at[-1] == '-' && isdigit((unsigned char)*word)))
            return at;
    return NULL;
}

void rnd_replace_word(char *line, const char *word, const char *with)
{
    char out[2 * LINE] = "";
    const char *at = line, *hit;
    while ((hit = find_word(at, word)) && strlen(out) + LINE < sizeof out) {
        strncat(out, at, (size_t)(hit - at));
        strcat(out, with);
        at = hit + strlen(word);
    }
    strcat(out, at);
    snprintf(line, LINE, "%.*s", LINE - 1, out);
}

static void split(shrinking *s)
{
    s->lines = 0;
    for (const char *at = s->best->text; *at && s->lines < MOST_LINES;) {
        size_t n = strcspn(at, "\n");
        snprintf(s->line[s->lines++], LINE, "%.*s", (int)n, at);
        at += n + (at[n] == '\n');
    }
}

static bool is_leaf(const char *line) { return strncmp(line, "input ", 6) == 0 || strncmp(line, "param ", 6) == 0; }

/* The name a line makes; false for return. */
static bool name_of(const char *line, char *name)
{
    return sscanf(line, is_leaf(line) ? "%*s %63s" : "%63s", name) == 1 && strcmp(name, "return") != 0;
}

/* Leaves that nobody names go, but for the first: it says which extent is the batch. */
static void drop_unused(char (*line)[LINE], int lines)
{
    for (int i = 1; i < lines; i++) {
        char name[64];
        bool used = !is_leaf(line[i]);
        if (!used && name_of(line[i], name))
            for (int k = 0; k < lines && !used; k++)
                used = k != i && find_word(line[k], name);
        if (!used)
            line[i][0] = 0;
    }
}

/* ---- trying ---- */

/* Does the case made of these lines still fail in the same way? Then it is the best from now on. */
static bool try_lines(shrinking *s, char (*line)[LINE], int64_t b, int64_t extent_s)
{
    rnd_case c = {.seed = s->best->seed, .b = b, .s = extent_s};
    rnd_failure f;
    if (s->tries++ > MOST_TRIES)
        return false;
    drop_unused(line, s->lines);
    for (int i = 0; i < s->lines; i++)
        if (line[i][0])
            strcat(strcat(c.text, line[i]), "\n");
    bool same = strcmp(c.text, s->best->text) == 0 && b == s->best->b && extent_s == s->best->s;
    if (same || rnd_check(s->bench, &c, &f) || strcmp(f.label, s->f->label) != 0)
        return false;
    *s->best = c;
    *s->f = f;
    split(s);
    return true;
}

static bool try_now(shrinking *s, char (*line)[LINE]) { return try_lines(s, line, s->best->b, s->best->s); }

typedef struct lines_copy { char line[MOST_LINES][LINE]; } lines_copy;

static lines_copy *copy_lines(const shrinking *s)
{
    lines_copy *c = malloc(sizeof *c);
    if (!c)
        abort();
    memcpy(c->line, s->line, sizeof c->line);
    return c;
}

/* ---- edits: each tries one kind everywhere; true when something was gained ---- */

static bool fewer_outputs(shrinking *s)
{
    char *at = strchr(s->line[s->lines - 1], ',');
    for (; at; at = strchr(at + 1, ',')) {
        lines_copy *c = copy_lines(s);
        char *last = c->line[s->lines - 1], *cut = last + (at - s->line[s->lines - 1]);
        *cut = 0; /* those before the comma, or those after it */
        bool done = try_now(s, c->line);
        if (!done) {
            memcpy(c->line, s->line, sizeof c->line);
            memmove(last + 7, cut + 2, strlen(cut + 2) + 1);
            done = try_now(s, c->line);
        }
        free(c);
        if (done)
            return true;
    }
    return false;
}

/* An op gives way to one of its arguments, or becomes an input of its shape. */
static bool fewer_ops(shrinking *s)
{
    for (int i = s->lines - 2; i > 0; i--) {
        char name[64], word[64];
        if (is_leaf(s->line[i]) || !name_of(s->line[i], name))
            continue;
        for (const char *at = strchr(s->line[i], '('); at && *at;) {
            at += strcspn(at, " (,=");
            at += strspn(at, " (,=");
            if (sscanf(at, "%63[A-Za-z0-9_.]", word) != 1 || !isalpha((unsigned char)word[0]) ||
                (word[0] != 'v' && word[0] != 'l'))
                continue;
            lines_copy *c = copy_lines(s);
            c->line[i][0] = 0;
            for (int k = i + 1; k < s->lines; k++)
                rnd_replace_word(c->line[k], name, word);
            bool done = try_now(s, c->line);
            free(c);
            if (done)
                return true;
        }
        rnd_graph g;
        bool done = false;
        if (rnd_graph_read(s->best, &g) == LF_OK) {
            lines_copy *c = copy_lines(s);
            lf_node n = lf_graph_find(&g.g, name, strlen(name));
            if (n != LF_NONE) {
                snprintf(c->line[i], LINE, "input %s %s%s", name, lf_dtype_name(lf_at(&g.g, n)->dtype),
                         lf_shape_text(&g.g, &lf_at(&g.g, n)->shape));
                done = try_now(s, c->line);
            }
            free(c);
        }
        rnd_graph_free(&g);
        if (done)
            return true;
    }
    return false;
}

/* An argument other than the first goes: a keyword, a bias, an attribute. */
static bool fewer_arguments(shrinking *s)
{
    for (int i = 1; i < s->lines - 1; i++)
        for (char *at = s->line[i]; !is_leaf(s->line[i]) && (at = strstr(at, ", ")); at++) {
            size_t from = (size_t)(at - s->line[i]), depth = 0, n = 2;
            while (at[n] && (depth || (at[n] != ',' && at[n] != ')'))) {
                depth += at[n] == '[';
                depth -= at[n] == ']' && depth;
                n++;
            }
            lines_copy *c = copy_lines(s);
            memmove(c->line[i] + from, c->line[i] + from + n, strlen(c->line[i] + from + n) + 1);
            bool done = try_now(s, c->line);
            free(c);
            if (done)
                return true;
        }
    return false;
}

static bool smaller_extents(shrinking *s)
{
    const int64_t bs[] = {1, 2, s->best->b / 2, s->best->b - 1};
    for (int i = 0; i < 4; i++) {
        lines_copy *c = copy_lines(s);
        bool done = (bs[i] > 0 && bs[i] < s->best->b && try_lines(s, c->line, bs[i], s->best->s)) ||
                    (i < 2 && bs[i] < s->best->s && try_lines(s, c->line, s->best->b, bs[i]));
        free(c);
        if (done)
            return true;
    }
    for (int n = 257; n > 1; n--) {
        char word[16], with[8];
        bool found = false;
        snprintf(word, sizeof word, "%d", n);
        for (int i = 0; i < s->lines && !found; i++)
            found = is_leaf(s->line[i]) && find_word(s->line[i], word);
        for (int k = 0; found && k < 4; k++) {
            const int to[] = {1, 2, n / 2, n - 1};
            lines_copy *c = copy_lines(s);
            snprintf(with, sizeof with, "%d", to[k]);
            for (int i = 0; i < s->lines; i++)
                rnd_replace_word(c->line[i], word, with);
            bool done = to[k] > 0 && to[k] < n && try_now(s, c->line);
            free(c);
            if (done)
                return true;
        }
    }
    return false;
}

/* One extent of one leaf, and a plainer name for its values. */
static bool plainer_leaves(shrinking *s)
{
    for (int i = 0; i < s->lines; i++) {
        char name[64], plain[64];
        if (!is_leaf(s->line[i]) || !name_of(s->line[i], name) || !strchr(name, '.'))
            continue;
        snprintf(plain, sizeof plain, "%.*s", (int)strcspn(name, "."), name);
        lines_copy *c = copy_lines(s);
        for (int k = 0; k < s->lines; k++)
            rnd_replace_word(c->line[k], name, plain);
        bool done = try_now(s, c->line);
        free(c);
        if (done)
            return true;
    }
    return false;
}

void rnd_shrink(rnd_bench *b, rnd_case *c, rnd_failure *f)
{
    shrinking *s = calloc(1, sizeof *s);
    if (!s)
        abort();
    s->bench = b;
    s->best = c;
    s->f = f;
    split(s);
    while (s->tries <= MOST_TRIES &&
           (fewer_outputs(s) || fewer_ops(s) || fewer_arguments(s) || smaller_extents(s) || plainer_leaves(s)))
        ;
    free(s);
}
