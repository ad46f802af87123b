/* SPDX-License-Identifier: Apache-2.0 */
/* The driver: sweeps until no rule fits. */
#include "rewrite/rewrite.h"

#include "base/guess.h"
#include "base/str.h"
#include "rewrite/sweep.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* What a chain needs that each sweep shortens by one; longer ones end correct but not shortest. */
enum { MAX_SWEEPS = 48 };

/* ---- the rules ---- */

const char lf_rule_cse[] = "common_subexpression", lf_rule_dce[] = "dead_code";

static const lf_rule driver_rules[] = {
    {.info = {lf_rule_cse, "two nodes of one op, arguments and attributes are one", LF_EXACT}},
    {.info = {lf_rule_dce, "what no output needs is not computed", LF_EXACT}, .gain = "nothing needs it"},
};
const lf_rule_table lf_rules_driver = LF_TABLE(driver_rules);

static const lf_rule_table *const tables[] = {
    &lf_rules_neutral,  &lf_rules_clamp,  &lf_rules_shape,  &lf_rules_slice,   &lf_rules_norm,   &lf_rules_linear,
    &lf_rules_collapse, &lf_rules_reduce, &lf_rules_itself, &lf_rules_softmax, &lf_rules_spelled, &lf_rules_driver,
};

const lf_rule *lf_rule_row(size_t index)
{
    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++) {
        if (index < tables[t]->count)
            return &tables[t]->rule[index];
        index -= tables[t]->count;
    }
    return NULL;
}

const lf_rule_info *lf_rule_at(size_t index)
{
    const lf_rule *rule = lf_rule_row(index);
    return rule ? &rule->info : NULL;
}

static const struct { const char *name, *words; } classes[] = {
#define LF_CLASS(name, words) {#name, words},
#include "rewrite/classes.def"
#undef LF_CLASS
};

const char *lf_rule_class_name(lf_rule_class c)
{
    return (unsigned)c < LF_RULE_CLASSES ? classes[c].name : "?";
}

const char *lf_rule_class_words(const char *name)
{
    for (int c = 0; c < LF_RULE_CLASSES; c++)
        if (strcmp(classes[c].name, name) == 0)
            return classes[c].words;
    return NULL;
}

bool lf_rule_on(const lf_sweeper *s, const char *name)
{
    for (size_t i = 0; lf_rule_row(i); i++)
        if (strcmp(lf_rule_row(i)->info.name, name) == 0)
            return s->on[i];
    return false;
}

/* ---- switches ---- */

static lf_status unknown_rule(lf_diag *diag, const char *name, size_t length)
{
    lf_str known = {0};
    lf_guess guess = lf_guess_of(name, length, lf_guess_most(length));
    lf_guess_try(&guess, "all");
    lf_guess_try(&guess, "none");
    for (size_t i = 0; lf_rule_row(i); i++) {
        lf_str_addf(&known, "%s%s", i ? ", " : "", lf_rule_row(i)->info.name);
        lf_guess_try(&guess, lf_rule_row(i)->info.name);
    }
    char *text = lf_str_take(&known);
    lf_status status;
    if (guess.best)
        status = lf_fail(diag, LF_ERR_ARG, "there is no rule '%.*s'; did you mean %s?", (int)length, name, guess.best);
    else if (text)
        status = lf_fail(diag, LF_ERR_ARG, "there is no rule '%.*s'; there are all, none, %s", (int)length, name, text);
    else
        status = lf_fail_nomem(diag, "a message");
    free(text);
    return status;
}

static bool is_word(const char *name, size_t length, const char *word)
{
    return strlen(word) == length && memcmp(name, word, length) == 0;
}

/* One of +name, -name, name, where all and none are names too. */
static lf_status switch_rule(bool *on_of, lf_diag *diag, const char *word, size_t length)
{
    bool on = word[0] != '-', sign = word[0] == '-' || word[0] == '+', found = false;
    const char *name = word + sign;
    length -= sign;
    bool all = is_word(name, length, "all"), none = is_word(name, length, "none");
    for (size_t i = 0; lf_rule_row(i); i++) {
        if (!all && !none && !is_word(name, length, lf_rule_row(i)->info.name))
            continue;
        found = true;
        on_of[i] = none ? !on : on;
    }
    return found ? LF_OK : unknown_rule(diag, name, length);
}

/* on: one per rule. */
static lf_status read_switches(bool *on, lf_diag *diag, const char *rules)
{
    for (size_t i = 0; lf_rule_row(i); i++)
        on[i] = true;
    lf_status status = LF_OK;
    for (const char *at = rules; at && *at && !status;) {
        at += strspn(at, ", \t");
        size_t length = strcspn(at, ", \t");
        if (length)
            status = switch_rule(on, diag, at, length);
        at += length;
    }
    return status;
}

lf_status lf_rules_check(const char *rules, lf_diag *diag)
{
    bool on[LF_MAX_RULES];
    return read_switches(on, diag, rules);
}

static lf_status choose_rules(lf_sweeper *s, lf_diag *diag, const lf_rewrite_options *options)
{
    lf_status status = read_switches(s->on, diag, options->rules);
    for (size_t i = 0; lf_rule_row(i); i++)
        s->on[i] = s->on[i] && (!options->as_written || lf_rule_row(i)->info.class == LF_EXACT);
    return status;
}

/* ---- the rules of each root ---- */

static bool roots_at(const lf_rule *rule, lf_op op)
{
    if (!rule->apply || op == LF_OP_input)
        return false;
    if (rule->kinds & LF_KIND(lf_op_row(op)->kind))
        return true;
    for (int i = 0; i < LF_MAX_ROOTS && rule->ops[i] != LF_OP_input; i++)
        if (rule->ops[i] == op)
            return true;
    return false;
}

static void index_rules(lf_sweeper *s)
{
    for (int op = 0; op < LF_OP_COUNT; op++) {
        int count = 0;
        for (size_t i = 0; lf_rule_row(i); i++) {
            assert(i < LF_MAX_RULES - 1);
            if (roots_at(lf_rule_row(i), (lf_op)op))
                s->rule_of[op][count++] = (int8_t)i;
        }
        s->rule_of[op][count] = -1;
    }
}

/* ---- before and after ---- */

/* What stands beside the nodes as written. Notes what is dead. */
static lf_status first_scene(lf_sweeper *s, lf_arena *arena, lf_scene *scene)
{
    const lf_graph *in = s->rw.in;
    size_t count = (size_t)in->count;
    lf_rw_facts *facts = lf_arena_array(arena, count, sizeof *facts);
    bool *flag = lf_arena_array(arena, count, sizeof *flag);
    if (!facts || !flag)
        return LF_ERR_NOMEM;
    s->rw.rows = lf_graph_rows(in, flag, &s->rw.rows_why);
    for (lf_node n = 0; n < in->count; n++)
        facts[n] = (lf_rw_facts){.forward = LF_NONE, .label = n, .source = n, .rows = s->rw.rows && flag[n]};
    *scene = (lf_scene){in, facts};
    lf_scene_live(*scene, flag, NULL);
    const lf_rule *dead = NULL;
    for (size_t i = 0; lf_rule_row(i); i++)
        dead = lf_rule_row(i)->info.name == lf_rule_dce ? lf_rule_row(i) : dead;
    lf_status status = LF_OK;
    for (lf_node n = 0; n < in->count && !status; n++) {
        if (flag[n] || lf_kind_of(in, n) == LF_LEAF)
            continue;
        facts[n].spared = !lf_rule_on(s, lf_rule_dce);
        if (!facts[n].spared)
            status = lf_note_done(s, dead, n, dead->gain);
    }
    return status;
}

/* home[n] follows n; a value that is gone belongs to its nearest user that is not. */
static void settle_homes(const lf_graph *in, const bool *live, bool *own, lf_node *home)
{
    for (lf_node n = 0; n < in->count; n++)
        own[n] = home[n] != LF_NONE;
    for (lf_node n = in->count - 1; n >= 0; n--)
        for (int i = 0; live[n] && home[n] != LF_NONE && i < LF_MAX_ARGS; i++) {
            lf_node arg = in->node[n].arg[i];
            if (arg != LF_NONE && !own[arg])
                home[arg] = home[n];
        }
}

static void follow(lf_node *home, int32_t count, const lf_node *map)
{
    for (int32_t i = 0; i < count; i++)
        home[i] = home[i] == LF_NONE ? LF_NONE : map[home[i]];
}

static lf_status keep_refusals(lf_sweeper *s, lf_arena *arena)
{
    const lf_rw *rw = &s->rw;
    s->notes->refused = lf_arena_array(arena, (size_t)rw->refused_count, sizeof *rw->refused);
    for (int32_t i = 0; s->notes->refused && i < rw->refused_count; i++) {
        lf_note *to = &s->notes->refused[s->notes->refused_count++];
        *to = rw->refused[i];
        to->at = lf_arena_strndup(arena, to->at, strlen(to->at));
        to->why = lf_arena_strndup(arena, to->why, strlen(to->why));
        if (!to->at || !to->why)
            return LF_ERR_NOMEM;
    }
    return s->notes->refused ? LF_OK : LF_ERR_NOMEM;
}

/* ---- all of it ---- */

static lf_status one_sweep(lf_sweeper *s, lf_arena *arena, lf_diag *diag, lf_scene from, lf_node *home)
{
    lf_rw *rw = &s->rw;
    s->changed = false;
    rw->refused = NULL;
    rw->refused_count = rw->refused_capacity = 0;
    lf_status status = lf_rw_begin(rw, arena, diag, rw->in);
    lf_node *map = status ? NULL : lf_arena_array(arena, (size_t)from.g->count, sizeof *map);
    if (!map)
        return LF_ERR_NOMEM;
    status = lf_sweep(s, from, map);
    if (!status)
        follow(home, rw->in->count, map);
    return status;
}

/* Two arenas take turns: a sweep reads the graph in one and builds in the other. The first only merges and drops, so
 * that rules meet true counts of uses. */
static lf_status sweep_all(lf_sweeper *s, lf_arena arena[2], lf_diag *diag, lf_node *home, int *last)
{
    lf_scene from = {0};
    lf_status status = first_scene(s, &arena[1], &from);
    bool more = true;
    for (int i = 0; more && !status && i < MAX_SWEEPS; i++) {
        *last = i % 2;
        s->resting = i == 0;
        status = one_sweep(s, &arena[*last], diag, from, home);
        from = (lf_scene){s->rw.g, s->rw.facts};
        lf_arena_free(&arena[!*last]);
        more = s->changed || s->resting;
    }
    return status;
}

static lf_status finish(lf_sweeper *s, lf_arena *scratch, lf_graph *out, lf_node *home)
{
    const lf_graph *in = s->rw.in;
    lf_node *map = lf_arena_array(scratch, (size_t)s->rw.g->count, sizeof *map);
    lf_rw_facts *facts = lf_arena_array(scratch, (size_t)in->count, sizeof *facts);
    bool *live = lf_arena_array(scratch, (size_t)in->count, sizeof *live);
    bool *own = lf_arena_array(scratch, (size_t)in->count, sizeof *own);
    if (!map || !facts || !live || !own)
        return LF_ERR_NOMEM;
    lf_status status = lf_rewrite_emit(s, out, map);
    if (status)
        return status;
    follow(home, in->count, map);
    lf_scene_live((lf_scene){in, facts}, live, NULL);
    settle_homes(in, live, own, home);
    return keep_refusals(s, out->arena);
}

lf_status lf_rewrite(const lf_graph *in, const lf_rewrite_options *options, lf_graph *out, lf_node *home,
                     lf_notes *notes)
{
    *notes = (lf_notes){0};
    lf_sweeper *s = calloc(1, sizeof *s);
    lf_diag *diag = calloc(1, sizeof *diag); /* for what inference refuses a rule: nobody else's business */
    lf_arena arena[2];
    lf_arena_init(&arena[0]);
    lf_arena_init(&arena[1]);
    int last = 0;
    lf_status status = s && diag ? LF_OK : LF_ERR_NOMEM;
    for (int i = 0; !status && i < in->symbols; i++) {
        int index;
        status = lf_graph_symbol(out, in->symbol[i], strlen(in->symbol[i]), &index);
    }
    if (!status) {
        s->rw.in = in;
        s->rw.options = options;
        s->notes = notes;
        s->notes_arena = out->arena;
        for (lf_node n = 0; n < in->count; n++)
            home[n] = n;
        status = choose_rules(s, out->diag, options);
    }
    if (!status && !(notes->trusted = lf_arena_array(out->arena, (size_t)in->params + 1, sizeof *notes->trusted)))
        status = LF_ERR_NOMEM;
    if (!status) {
        index_rules(s);
        status = sweep_all(s, arena, diag, home, &last);
    }
    if (!status)
        status = finish(s, &arena[last], out, home);
    lf_arena_free(&arena[0]);
    lf_arena_free(&arena[1]);
    free(diag);
    free(s);
    return status == LF_ERR_NOMEM ? lf_fail_nomem(out->diag, "rewriting the model") : status;
}
