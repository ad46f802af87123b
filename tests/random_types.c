/* SPDX-License-Identifier: Apache-2.0 */
/* A random model of f32 made one of other types: its leaves get types of their own, and casts come between its ops.
 * What PyTorch would not mix is cast to one type first. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "random_model.h"

enum { WORDS = 8, WORD = 64 };

typedef struct retyping {
    lf_rng r;
    rnd_case made;
    int casts;
} retyping;

static const char *any_type(lf_rng *r)
{
    static const char *const types[] = {"bf16", "f16", "bf16", "f16", "f32"};
    return types[rnd_below(r, sizeof types / sizeof types[0])];
}

static bool add_line(retyping *t, const char *line)
{
    const size_t used = strlen(t->made.text);
    if (used + strlen(line) + 2 > RND_TEXT)
        return false;
    snprintf(t->made.text + used, RND_TEXT - used, "%s\n", line);
    return true;
}

/* Is the model one so far, were it to return `name`? */
static bool reads(retyping *t, const char *name)
{
    rnd_graph graph;
    const size_t used = strlen(t->made.text);
    if (used + strlen(name) + 16 > RND_TEXT)
        return false;
    snprintf(t->made.text + used, RND_TEXT - used, "return %s\n", name);
    const bool good = rnd_graph_read(&t->made, &graph) == LF_OK && graph.g.count < RND_NODES;
    rnd_graph_free(&graph);
    t->made.text[used] = 0;
    return good;
}

/* The values that an op's line reads, each once. */
static int values_of(const char *line, char words[WORDS][WORD])
{
    int count = 0;
    for (const char *at = strchr(line, '('); at && *at && count < WORDS;) {
        at += strcspn(at, " (,=[");
        at += strspn(at, " (,=[");
        if ((*at != 'v' && *at != 'l') || sscanf(at, "%63[A-Za-z0-9_.]", words[count]) != 1 ||
            !strpbrk(words[count], "0123456789"))
            continue;
        int before = 0;
        while (strcmp(words[before], words[count]) != 0)
            before++;
        count += before == count;
    }
    return count;
}

/* A line that casts `word`, which then goes by the cast's name in `line`. */
static bool cast(retyping *t, const char *word, const char *type, char *line)
{
    char name[16], call[RND_LINE];
    snprintf(name, sizeof name, "vt%d", t->casts++);
    snprintf(call, sizeof call, "%s = to(%.*s, dtype=\"%s\")", name, WORD - 1, word, type);
    rnd_replace_word(line, word, name);
    return add_line(t, call);
}

static bool add_op(retyping *t, const char *line)
{
    char words[WORDS][WORD], name[WORD], changed[RND_LINE];
    const size_t used = strlen(t->made.text);
    const int count = values_of(line, words);
    if (sscanf(line, "%63[A-Za-z0-9_.]", name) != 1)
        return false;
    strcpy(changed, line);
    bool good = true;
    if (count > 0 && rnd_chance(&t->r, 0.2))
        good = cast(t, words[rnd_below(&t->r, count)], any_type(&t->r), changed);
    good = good && add_line(t, changed);
    if (good && reads(t, name))
        return true;
    t->made.text[used] = 0;
    const char *type = any_type(&t->r);
    strcpy(changed, line);
    for (int i = 0; i < count; i++)
        if (!cast(t, words[i], type, changed))
            return false;
    return add_line(t, changed) && reads(t, name);
}

bool rnd_retype(uint64_t seed, rnd_case *c)
{
    static const char f32[] = " f32[";
    retyping t = {.r = lf_rng_seed(seed, "types"), .made = {.seed = c->seed, .b = c->b, .s = c->s}};
    const char *input = any_type(&t.r), *param = rnd_chance(&t.r, 0.7) ? input : any_type(&t.r);
    const bool each = rnd_chance(&t.r, 0.3);
    for (const char *at = c->text; *at;) {
        char line[RND_LINE];
        const size_t length = strcspn(at, "\n");
        if (length + 8 > sizeof line)
            return false;
        snprintf(line, sizeof line, "%.*s", (int)length, at);
        const char *type = strncmp(line, "input ", 6) == 0 ? input : strncmp(line, "param ", 6) == 0 ? param : NULL;
        char *typed = type ? strstr(line, f32) : NULL;
        if (typed) {
            char rest[RND_LINE];
            strcpy(rest, typed + strlen(f32));
            snprintf(typed, sizeof line - (size_t)(typed - line), " %s[%s", each ? any_type(&t.r) : type, rest);
        }
        if (type || strncmp(line, "return ", 7) == 0 ? !add_line(&t, line) : !add_op(&t, line))
            return false;
        at += length + (at[length] == '\n');
    }
    *c = t.made;
    return true;
}
