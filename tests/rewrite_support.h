/* SPDX-License-Identifier: Apache-2.0 */
/* Before and after: a model rewritten, printed, and both evaluated in double on numbers of every sort. */
#ifndef REWRITE_SUPPORT_H
#define REWRITE_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "rewrite/rewrite.h"

typedef struct model {
    lf_arena arena;
    lf_diag diag;
    lf_graph g;
} model;

typedef struct rewritten {
    model m;
    lf_notes notes;
    lf_node *home;
} rewritten;

static const int64_t test_dims[LF_MAX_SYMBOLS] = {6, 3, 1, 1, 1, 1, 1, 1};

/* Statements are separated by new lines or "; ". */
static inline void model_read(model *m, const char *statements)
{
    char *text = strdup(statements);
    assert_non_null(text);
    for (char *at = text; (at = strchr(at, ';'));)
        *at = '\n';
    lf_arena_init(&m->arena);
    assert_int_equal(lf_graph_init(&m->g, &m->arena, &m->diag), LF_OK);
    if (lf_text_read(&m->g, "model", text, strlen(text)) != LF_OK)
        fail_msg("%s", m->diag.text);
    free(text);
}

/* What is computed, as text: inputs and parameters left out, statements separated by "; ". Caller frees. */
static inline char *computed_text(const lf_graph *g)
{
    char *text = NULL;
    assert_int_equal(lf_text_print(g, &text), LF_OK);
    char *kept = calloc(1, 2 * strlen(text) + 1);
    assert_non_null(kept);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        if (strncmp(line, "input ", 6) == 0 || strncmp(line, "param ", 6) == 0)
            continue;
        strcat(kept, *kept ? "; " : "");
        strcat(kept, line);
    }
    free(text);
    return kept;
}

static inline void model_rewrite(const model *in, lf_rewrite_options options, rewritten *out)
{
    if (!options.dims)
        options.dims = test_dims;
    lf_arena_init(&out->m.arena);
    assert_int_equal(lf_graph_init(&out->m.g, &out->m.arena, &out->m.diag), LF_OK);
    out->home = calloc((size_t)in->g.count + 1, sizeof *out->home);
    assert_non_null(out->home);
    if (lf_rewrite(&in->g, &options, &out->m.g, out->home, &out->notes) != LF_OK)
        fail_msg("%s", out->m.diag.text);
    if (lf_graph_verify(&out->m.g) != LF_OK)
        fail_msg("%s", out->m.diag.text);
}

static inline void rewritten_free(rewritten *r)
{
    free(r->home);
    lf_arena_free(&r->m.arena);
}

static inline int count_notes(const lf_note *notes, int32_t count, const char *rule)
{
    int found = 0;
    for (int32_t i = 0; i < count; i++)
        found += strcmp(notes[i].rule, rule) == 0;
    return found;
}

static inline const lf_rule_info *rule_named(const char *name)
{
    for (size_t i = 0; lf_rule_at(i); i++)
        if (strcmp(lf_rule_at(i)->name, name) == 0)
            return lf_rule_at(i);
    fail_msg("there is no rule %s", name);
    return NULL;
}

/* ---- numbers ---- */

enum { PLAIN, SPECIAL, HUGE_ONES, SORTS };

static inline double draw_one(lf_rng *rng, int sort)
{
    static const double special[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0};
    static const double huge[] = {3e38, -3e38, 1e30, -1e30, 100, -1000};
    double plain = 4 * lf_rng_unit(rng) - 2;
    bool planted = sort != PLAIN && lf_rng_unit(rng) < 0.12;
    uint64_t pick = lf_rng_u64(rng);
    if (!planted)
        return plain;
    return sort == SPECIAL ? special[pick % 5] : huge[pick % 6];
}

/* Values for every leaf, by name, so that both graphs get the same. Variances are positive; parameters always finite.
 */
static inline lf_bound *draw_leaves(const lf_graph *g, uint64_t seed, int sort)
{
    lf_bound *bound = calloc((size_t)g->count, sizeof *bound);
    assert_non_null(bound);
    for (lf_node n = 0; n < g->count; n++) {
        const lf_node_info *info = lf_at(g, n);
        if (info->op != LF_OP_input && info->op != LF_OP_param)
            continue;
        int64_t count = lf_shape_count(&info->shape, test_dims);
        double *data = malloc((size_t)count * sizeof *data);
        assert_non_null(data);
        lf_rng rng = lf_rng_seed(seed, info->name);
        /* Some rows stay as they are: those have to match, whatever guards there are. */
        for (int64_t i = 0; i < count; i++) {
            int64_t rows = info->shape.rank ? lf_extent_at(info->shape.dim[0], test_dims) : 1;
            bool calm = i / (count / rows) % 3 == 0;
            data[i] = draw_one(&rng, info->op == LF_OP_input && !calm ? sort : PLAIN);
            if (strstr(info->name, "var"))
                data[i] = fabs(data[i]) + 0.25;
        }
        bound[n].f64 = data;
    }
    return bound;
}

static inline void free_leaves(const lf_graph *g, lf_bound *bound)
{
    for (lf_node n = 0; n < g->count; n++)
        free((void *)(uintptr_t)bound[n].f64);
    free(bound);
}

static inline double *evaluate(const lf_graph *g, const lf_bound *bound, lf_node n, int64_t *count)
{
    lf_diag diag;
    *count = lf_shape_count(&lf_at(g, n)->shape, test_dims);
    double *out = malloc((size_t)*count * sizeof *out);
    assert_non_null(out);
    if (lf_eval(g, test_dims, bound, &n, 1, &out, &diag) != LF_OK)
        fail_msg("%s", diag.text);
    return out;
}

/* ---- comparing ---- */

/* The rows a guard flags: those in which its witness, as the f32 it is at run time, is not finite. */
static inline void find_flagged(const lf_graph *g, const lf_bound *bound, bool *flagged, int64_t rows)
{
    memset(flagged, 0, (size_t)rows * sizeof *flagged);
    for (lf_node n = 0; n < g->count; n++) {
        if (lf_at(g, n)->op != LF_OP_guard)
            continue;
        int64_t count, each;
        double *witness = evaluate(g, bound, lf_arg_of(g, n, 1), &count);
        assert_int_equal(count % rows, 0);
        each = count / rows;
        for (int64_t i = 0; i < count; i++)
            if (!isfinite((float)witness[i]))
                flagged[i / each] = true;
        free(witness);
    }
}

static inline bool agree(double a, double b, double scale)
{
    if (isnan(a) || isnan(b))
        return isnan(a) && isnan(b);
    if (isinf(a) || isinf(b))
        return a == b;
    return fabs(a - b) <= 1e-10 * fmax(fmax(fabs(a), fabs(b)), scale);
}

/* Evaluates both on numbers of one sort; rows that are flagged need not agree, and none is when all numbers are plain.
 */
static inline void compare_on(const lf_graph *before, const lf_graph *after, uint64_t seed, int sort, const char *what)
{
    lf_bound *left = draw_leaves(before, seed, sort), *right = draw_leaves(after, seed, sort);
    double scale = sort == HUGE_ONES ? 3e38 * 1e4 : 1.0;
    for (int32_t i = 0; i < before->outputs; i++) {
        int64_t count, same, rows;
        double *a = evaluate(before, left, before->output[i], &count);
        double *b = evaluate(after, right, after->output[i], &same);
        assert_int_equal(count, same);
        const lf_shape *shape = &lf_at(before, before->output[i])->shape;
        rows = shape->rank ? lf_extent_at(shape->dim[0], test_dims) : 1;
        bool flagged[64];
        assert_in_range(rows, 1, 64);
        find_flagged(after, right, flagged, rows);
        for (int64_t k = 0; k < count; k++) {
            int64_t row = k / (count / rows);
            if (flagged[row] && sort == PLAIN)
                fail_msg("%s: row %d is flagged, and all is finite", what, (int)row);
            if (!flagged[row] && !agree(a[k], b[k], scale))
                fail_msg("%s: seed %d sort %d output %d element %d: %g as written, %g rewritten", what, (int)seed, sort,
                         (int)i, (int)k, a[k], b[k]);
        }
        free(a);
        free(b);
    }
    free_leaves(before, left);
    free_leaves(after, right);
}

static inline void compare(const lf_graph *before, const lf_graph *after, const char *what)
{
    assert_int_equal(before->outputs, after->outputs);
    for (uint64_t seed = 1; seed <= 12; seed++)
        for (int sort = 0; sort < SORTS; sort++)
            compare_on(before, after, seed, sort, what);
}

static inline bool has_guard(const lf_graph *g)
{
    for (lf_node n = 0; n < g->count; n++)
        if (lf_at(g, n)->op == LF_OP_guard)
            return true;
    return false;
}

#endif
