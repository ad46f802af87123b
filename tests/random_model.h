/* SPDX-License-Identifier: Apache-2.0 */
/* Random models, run every way there is and compared with their meaning in double precision. A case is model text, a
 * seed for its data, and the values of its named extents: nothing else, so that a failing case can be made smaller by
 * editing its text. The values of a leaf depend on the seed and the leaf's own name and extents; the end of its name
 * says from what range they are drawn (random_data.c). */
#ifndef LF_TESTS_RANDOM_MODEL_H
#define LF_TESTS_RANDOM_MODEL_H

#include "base/rng.h"
#include "ir/graph.h"

enum { RND_TEXT = 8192, RND_LINE = 256, RND_NODES = 96, RND_LABEL = 64 };

typedef struct rnd_case {
    char text[RND_TEXT];
    uint64_t seed;
    int64_t b, s; /* what the extents named B and S are */
} rnd_case;

/* ---- drawing ---- */

static inline int rnd_below(lf_rng *r, int n) { return (int)(lf_rng_u64(r) % (uint64_t)n); }
static inline bool rnd_chance(lf_rng *r, double p) { return lf_rng_unit(r) < p; }

/* ---- data (random_data.c) ---- */

/* A graph read from a case's text, with an arena of its own and the named extents as numbers. */
typedef struct rnd_graph {
    lf_arena arena;
    lf_diag diag;
    lf_graph g;
    int64_t dims[LF_MAX_SYMBOLS];
} rnd_graph;

lf_status rnd_graph_read(const rnd_case *c, rnd_graph *out); /* to be freed whatever it returns */
void rnd_graph_free(rnd_graph *g);
int64_t rnd_count(const rnd_graph *g, lf_node n);

/* The values of a leaf called name: count of them, `last` being its last extent. */
void rnd_fill(uint64_t seed, const char *name, int64_t count, int64_t last, float *out);
/* Rounds them to what the type holds. */
void rnd_round(lf_dtype type, float *x, int64_t count);

/* ---- the model maker (random_make.c, random_pattern.c) ---- */

typedef struct rnd_maker {
    lf_rng r;
    rnd_case *c;
    rnd_graph read;              /* the text so far, as a graph */
    double *value[RND_NODES];    /* one per node, in double */
    lf_node node[RND_NODES];     /* values that can be used: leaves and results, not numbers */
    bool used[RND_NODES];        /* by node: some op reads it */
    int nodes, ops, products, leaves;
    char lines[RND_TEXT];        /* of the step under way: leaves, then the op */
    int64_t kernel;              /* the window just proposed, for its padding */
    bool large;                  /* blocks, strips and runs of K have ends to meet */
} rnd_maker;

/* A model of its own for each seed. False when nothing came of it (then another seed will). */
bool rnd_make(uint64_t seed, rnd_case *c);

/* Appends what rnd_maker.lines holds plus `op(...)` under a new name; false, and nothing changed, where it does not fit
 * or gives numbers nobody would want. */
bool rnd_append(rnd_maker *m, const char *call);
/* Adds the line of a new leaf to rnd_maker.lines. The name is in memory of the maker's arena. NULL when a param has a
 * name for an extent, or an extent no leaf can have. */
const char *rnd_leaf(rnd_maker *m, bool param, const lf_shape *shape, const char *style);
/* A weight of x for a product, [N, K], or [K, N] where kn; NULL when there is none. */
const char *rnd_weight(rnd_maker *m, lf_node x, bool kn);
int64_t rnd_size(rnd_maker *m, int64_t most);
double rnd_number(rnd_maker *m);

/* Gives a model of f32 other types (random_types.c). False, and nothing changed, when nothing came of it. */
bool rnd_retype(uint64_t seed, rnd_case *c);

/* A short run of ops on the last value that some rewrite is made for. */
void rnd_pattern(rnd_maker *m);

/* ---- the judge (random_judge.c): what may the outputs be? ---- */

/* What moves elements: rounding to f32, which every op does somehow; to a shorter type, where values are stored. */
enum { RND_OF_F32, RND_OF_TYPES, RND_NOISES };

typedef struct rnd_judge {
    const rnd_graph *graph;
    const float *const *leaf;  /* one per node: data of inputs and params, as their types hold them; borrowed */
    uint64_t seed;
    double **ref;              /* one per output: the model's meaning, infinite where its type has no such number */
    /* one per output: the most that rounding noise moved each element; NaN where it changed its kind */
    double **spread[RND_NOISES];
    double *middle[RND_NOISES]; /* one per output: the median of that */
    bool typed;                /* some value is of a shorter type than f32 */
    bool all_finite;           /* every value on the way is a finite f32 */
    int draws;
} rnd_judge;

/* Borrows all; ref is computed by the caller (lf_model_eval) and taken. */
bool rnd_judge_begin(rnd_judge *j, const rnd_graph *graph, const float *const *leaf, double **ref, uint64_t seed);
void rnd_judge_free(rnd_judge *j);
/* Elements [from, to) of output o as they should be; what else: in words. *unsure counts elements that nothing can be
 * said of. */
bool rnd_judge_accepts(rnd_judge *j, int32_t o, const float *got, int64_t from, int64_t to, int64_t *unsure, char *what,
                       size_t size);

/* ---- checking (random_check.c) ---- */

enum { RND_RULES = 64 };

/* What a run of the test adds up. */
typedef struct rnd_counts {
    int64_t graphs, typed, programs, elements, unsure, rows_redone, planted, parts;
    int64_t op[LF_OP_COUNT], fired[RND_RULES], off[RND_RULES];
} rnd_counts;

typedef struct rnd_failure {
    char label[RND_LABEL]; /* which comparison */
    char what[1024];
} rnd_failure;

/* One thread's. */
typedef struct rnd_bench {
    lf_context *one, *two; /* with one thread and with two */
    rnd_counts counts;
} rnd_bench;

bool rnd_bench_begin(rnd_bench *b);
void rnd_bench_end(rnd_bench *b);
/* True when all comparisons hold. False with label "" when the text is no model. */
bool rnd_check(rnd_bench *b, const rnd_case *c, rnd_failure *f);

/* ---- making a failing case small (random_shrink.c) ---- */

void rnd_shrink(rnd_bench *b, rnd_case *c, rnd_failure *f);
/* In a line of RND_LINE bytes, a name becomes another wherever it stands. */
void rnd_replace_word(char *line, const char *word, const char *with);

#endif
