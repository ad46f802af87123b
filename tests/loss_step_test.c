/* SPDX-License-Identifier: Apache-2.0 */
/* lf_loss_*: values and gradients against the formulas over all logits in double precision; the same bits for any
 * number of threads; ranks; bytes; what is refused. PyTorch beside them: tests/python/test_loss_step.py. */
#include "api_fixture.h"

#include "base/dtype.h"

typedef struct shape {
    int64_t tokens, words, depth;
} shape;

static const shape shapes[] = {{1, 1, 1}, {5, 7, 3}, {193, 300, 33}, {40, 1025, 257}, {385, 17, 64}, {2, 8191, 5}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* Everything there is, in double precision; and as f32, f16 or bf16. */
typedef struct data {
    shape s;
    double *x, *w, *b;
    float *xf, *wf, *bf, *weight;
    void *xt, *wt, *bt;
    int64_t *target;
    lf_loss loss;
    int64_t extents[3][2];
} data;

static float *drawn(const char *name, int64_t count, float size)
{
    float *to = malloc((size_t)count * sizeof *to);
    assert_non_null(to);
    lf_draw_uniform(7, name, -size, size, (size_t)count, to);
    return to;
}

/* Rounded to the type, which is what all calculate from. */
static void *typed(lf_dtype type, float *x, int64_t count, double **wide)
{
    void *to = malloc((size_t)count * 4);
    *wide = malloc((size_t)count * sizeof **wide);
    assert_true(to && *wide);
    lf_retype(LF_F32, x, type, to, count);
    lf_to_f32(type, to, 1, x, count);
    for (int64_t i = 0; i < count; i++)
        (*wide)[i] = (double)x[i];
    return to;
}

static data data_of(shape s, lf_dtype type, const lf_loss_options *options)
{
    data d = {.s = s, .extents = {{s.tokens, s.depth}, {s.words, s.depth}, {s.words}}};
    float *u = drawn("targets", s.tokens, 1);
    d.xf = drawn("x", s.tokens * s.depth, 2);
    d.wf = drawn("w", s.words * s.depth, 1);
    d.bf = drawn("b", s.words, 1);
    d.weight = drawn("weight", s.words, 1);
    d.xt = typed(type, d.xf, s.tokens * s.depth, &d.x);
    d.wt = typed(type, d.wf, s.words * s.depth, &d.w);
    d.bt = typed(type, d.bf, s.words, &d.b);
    d.target = malloc((size_t)s.tokens * sizeof *d.target);
    for (int64_t i = 0; i < s.words; i++)
        d.weight[i] = fabsf(d.weight[i]) + 0.1f;
    for (int64_t i = 0; i < s.tokens; i++) /* mostly one word; some are left out */
        d.target[i] = u[i] < -0.8f ? -100 : u[i] < 0 ? s.words / 2 : (int64_t)(u[i] * (float)s.words);
    free(u);
    d.loss = (lf_loss){.target = d.target, .options = *options};
    if (options->class_weight)
        d.loss.options.class_weight = d.weight;
    return d;
}

/* Where descriptors point: after data_of has returned. */
static void point(data *d, lf_dtype type, bool bias)
{
    d->loss.x = (lf_tensor){.data = d->xt, .dtype = type, .rank = 2, .extents = d->extents[0]};
    d->loss.weight = (lf_tensor){.data = d->wt, .dtype = type, .rank = 2, .extents = d->extents[1]};
    if (bias)
        d->loss.bias = (lf_tensor){.data = d->bt, .dtype = type, .rank = 1, .extents = d->extents[2]};
}

static void data_end(data *d)
{
    void *all[] = {d->x, d->w, d->b, d->xf, d->wf, d->bf, d->weight, d->xt, d->wt, d->bt, d->target};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* ---- the formulas ---- */

typedef struct truth {
    double value, *each, *lse, *entropy; /* [M] */
    double *dx, *dw, *db;
} truth;

typedef struct upstream {
    double each, z, lse, entropy; /* of every token */
} upstream;

static double weight_of(const data *d, int64_t word)
{
    return d->loss.options.class_weight ? (double)d->weight[word] : 1;
}

/* Logits of a token, and their derivative with respect to the product. */
static void logits(const data *d, int64_t token, double *l, double *rate)
{
    const lf_loss_options *o = &d->loss.options;
    const double t = o->temperature == 0 ? 1 : o->temperature;
    for (int64_t c = 0; c < d->s.words; c++) {
        double v = d->loss.bias.data ? d->b[c] : 0;
        for (int64_t k = 0; k < d->s.depth; k++)
            v += d->x[token * d->s.depth + k] * d->w[c * d->s.depth + k];
        const double capped = o->softcap == 0 ? v : o->softcap * tanh(v / o->softcap);
        rate[c] = (o->softcap == 0 ? 1 : 1 - capped / o->softcap * (capped / o->softcap)) / t;
        l[c] = capped / t;
    }
}

static void one_token(const data *d, truth *r, int64_t token, const upstream *up, double *l, double *rate)
{
    const lf_loss_options *o = &d->loss.options;
    const int64_t n = d->s.words, k = d->s.depth, t = d->target[token];
    double most = -INFINITY, sum = 0, all = 0, weights = 0, mean = 0, e = o->label_smoothing;
    logits(d, token, l, rate);
    for (int64_t c = 0; c < n; c++)
        most = fmax(most, l[c]);
    for (int64_t c = 0; c < n; c++) {
        sum += exp(l[c] - most);
        weights += weight_of(d, c);
    }
    const double lse = most + log(sum);
    for (int64_t c = 0; c < n; c++) {
        all += weight_of(d, c) * (lse - l[c]);
        mean += exp(l[c] - lse) * l[c];
    }
    r->lse[token] = lse;
    r->entropy[token] = lse - mean;
    r->each[token] = (1 - e) * weight_of(d, t) * (lse - l[t]) + e / (double)n * all;
    for (int64_t c = 0; c < n; c++) {
        const double p = exp(l[c] - lse), hit = c == t;
        const double g = rate[c] * (up->each * ((1 - e) * weight_of(d, t) * (p - hit) +
                                                e / (double)n * (p * weights - weight_of(d, c))) +
                                    up->z * o->z_loss * 2 * lse * p + up->lse * p -
                                    up->entropy * p * (l[c] - lse + r->entropy[token]));
        r->db[c] += g;
        for (int64_t i = 0; i < k; i++) {
            r->dx[token * k + i] += g * d->w[c * k + i];
            r->dw[c * k + i] += g * d->x[token * k + i];
        }
    }
}

/* up: NULL: of the reduced loss. */
static truth truth_of(const data *d, const upstream *up)
{
    const shape s = d->s;
    truth r = {0};
    double **all[] = {&r.each, &r.lse, &r.entropy, &r.dx, &r.dw, &r.db};
    const int64_t count[] = {s.tokens, s.tokens, s.tokens, s.tokens * s.depth, s.words * s.depth, s.words};
    for (int i = 0; i < 6; i++) {
        *all[i] = calloc((size_t)count[i], sizeof **all[i]);
        assert_non_null(*all[i]);
    }
    double *l = malloc((size_t)s.words * 2 * sizeof *l), weights = 0, z = 0, tokens = 0;
    for (int64_t i = 0; i < s.tokens; i++)
        if (d->target[i] >= 0) {
            weights += weight_of(d, d->target[i]);
            tokens++;
        }
    if (d->loss.options.reduction == LF_SUM)
        weights = tokens = 1;
    const upstream evenly = {1 / weights, 1 / tokens, 0, 0};
    for (int64_t i = 0; i < s.tokens; i++)
        if (d->target[i] >= 0) {
            one_token(d, &r, i, up ? up : &evenly, l, l + s.words);
            r.value += r.each[i] / weights;
            z += d->loss.options.z_loss * r.lse[i] * r.lse[i] / tokens;
            r.each[i] += d->loss.options.z_loss * r.lse[i] * r.lse[i];
        }
    r.value += z;
    free(l);
    return r;
}

static void truth_end(truth *r)
{
    double *all[] = {r->each, r->lse, r->entropy, r->dx, r->dw, r->db};
    for (int i = 0; i < 6; i++)
        free(all[i]);
}

/* ---- ours ---- */

typedef struct ours {
    lf_dtype type;
    void *x, *w, *b;
    lf_loss_gradient gradient;
} ours;

static ours ours_of(const data *d, lf_dtype type, bool bias)
{
    ours o = {.type = type,
              .x = malloc((size_t)(d->s.tokens * d->s.depth) * 4),
              .w = malloc((size_t)(d->s.words * d->s.depth) * 4),
              .b = malloc((size_t)d->s.words * 4)};
    assert_true(o.x && o.w && o.b);
    o.gradient.x = (lf_tensor){.data = o.x, .dtype = type, .rank = 2, .extents = d->extents[0]};
    o.gradient.weight = (lf_tensor){.data = o.w, .dtype = type, .rank = 2, .extents = d->extents[1]};
    if (bias)
        o.gradient.bias = (lf_tensor){.data = o.b, .dtype = type, .rank = 1, .extents = d->extents[2]};
    return o;
}

static void ours_end(ours *o)
{
    free(o->x);
    free(o->w);
    free(o->b);
}

/* The root of the mean square of the error, relative to that of the truth. */
static void check(const char *what, lf_dtype type, const void *got, const double *want, int64_t count, double most)
{
    float *g = malloc((size_t)count * sizeof *g);
    double error = 0, size = 0;
    assert_non_null(g);
    lf_to_f32(type, got, 1, g, count);
    for (int64_t i = 0; i < count; i++) {
        error += ((double)g[i] - want[i]) * ((double)g[i] - want[i]);
        size += want[i] * want[i];
    }
    free(g);
    if (!(sqrt(error) <= most * sqrt(size) + 1e-12))
        fail_msg("%s: error %g of %g", what, sqrt(error), sqrt(size));
}

static double bound(lf_dtype type)
{
    return type == LF_BF16 ? 0x1p-8 : type == LF_F16 ? 0x1p-10 : 2e-6;
}

static void check_gradients(const char *what, const data *d, const ours *o, const truth *r)
{
    char text[160];
    snprintf(text, sizeof text, "%s: x", what);
    check(text, o->type, o->x, r->dx, d->s.tokens * d->s.depth, bound(o->type));
    snprintf(text, sizeof text, "%s: weight", what);
    check(text, o->type, o->w, r->dw, d->s.words * d->s.depth, bound(o->type));
    snprintf(text, sizeof text, "%s: bias", what);
    if (o->gradient.bias.data)
        check(text, o->type, o->b, r->db, d->s.words, bound(o->type));
}

static const float some = 1; /* stands for class weights */
static const lf_loss_options variants[] = {
    {.ignore_index = -100},
    {.ignore_index = -100, .reduction = LF_SUM},
    {.ignore_index = -100, .label_smoothing = 0.1},
    {.ignore_index = -100, .class_weight = &some},
    {.ignore_index = -100, .class_weight = &some, .label_smoothing = 0.3, .z_loss = 1e-2},
    {.ignore_index = -100, .softcap = 3},
    {.ignore_index = -100, .temperature = 0.5, .softcap = 5, .z_loss = 1e-3, .reduction = LF_SUM},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

static void step_is_the_formula(void **state)
{
    (void)state;
    lf_context *context = context_of(2);
    for (int i = 0; i < SHAPES; i++)
        for (int v = 0; v < VARIANTS; v++) {
            const lf_dtype type = (lf_dtype)(v % 3);
            const bool bias = (v + i) % 2;
            char what[64];
            data d = data_of(shapes[i], type, &variants[v]);
            point(&d, type, bias);
            ours o = ours_of(&d, type, bias);
            truth r = truth_of(&d, NULL);
            double value = 0;
            OK_CONTEXT(context, lf_loss_step(context, &d.loss, 1, &value, &o.gradient));
            snprintf(what, sizeof what, "shape %d, variant %d", i, v);
            if (!(fabs(value - r.value) <= 2e-6 * fabs(r.value)) && !(isnan(value) && isnan(r.value)))
                fail_msg("%s: %.9g, not %.17g", what, value, r.value);
            check_gradients(what, &d, &o, &r);
            truth_end(&r);
            ours_end(&o);
            data_end(&d);
        }
    lf_context_free(context);
}

/* By statistics, of ranks that each have some of the words; what is behind has a gradient of each number. */
static void ranks_are_one(void **state)
{
    (void)state;
    enum { MOST = 3 };
    const shape s = {199, 523, 40};
    const upstream up = {.each = 0.5, .z = 0.5, .lse = -0.25, .entropy = 2};
    lf_context *context = context_of(2);
    for (int v = 0; v < VARIANTS; v++)
        for (int ranks = 1; ranks <= MOST; ranks++) {
            data d = data_of(s, LF_F32, &variants[v]);
            point(&d, LF_F32, true);
            truth r = truth_of(&d, &up);
            ours o = ours_of(&d, LF_F32, true), part = ours_of(&d, LF_F32, true);
            lf_loss_row *rows = calloc((size_t)(s.tokens * ranks), sizeof *rows);
            float *by = malloc((size_t)s.tokens * 6 * sizeof *by), *values = by + 3 * s.tokens;
            for (int64_t i = 0; i < s.tokens; i++) {
                by[i] = (float)up.each;
                by[s.tokens + i] = (float)up.lse;
                by[2 * s.tokens + i] = (float)up.entropy;
            }
            lf_loss local[MOST];
            int64_t extents[MOST][2];
            for (int rank = 0; rank < ranks; rank++) { /* uneven shares */
                const int64_t first = s.words * rank * rank / (ranks * ranks),
                              end = s.words * (rank + 1) * (rank + 1) / (ranks * ranks);
                extents[rank][0] = end - first, extents[rank][1] = s.depth;
                local[rank] = d.loss;
                local[rank].weight.data = d.wf + first * s.depth;
                local[rank].weight.extents = local[rank].bias.extents = extents[rank];
                local[rank].bias.data = d.bf + first;
                local[rank].options.first_word = first;
                local[rank].options.words = s.words;
                OK_CONTEXT(context, lf_loss_rows(context, &local[rank], rows + rank * s.tokens));
            }
            OK_CONTEXT(context, lf_loss_combine(context, s.tokens, ranks, rows, rows));
            double value;
            OK_CONTEXT(context, lf_loss_values(context, &d.loss, rows, values, values + s.tokens,
                                               values + 2 * s.tokens, &value));
            check("each", LF_F32, values, r.each, s.tokens, 1e-6);
            check("lse", LF_F32, values + s.tokens, r.lse, s.tokens, 1e-6);
            check("entropy", LF_F32, values + 2 * s.tokens, r.entropy, s.tokens, 1e-6);
            assert_true(fabs(value - r.value) <= 2e-6 * fabs(r.value));
            double stepped;
            OK_CONTEXT(context, lf_loss_step(context, &d.loss, 1, &stepped, NULL));
            assert_true(ranks > 1 || stepped == value); /* one rank is no ranks, to the bit */
            memset(o.x, 0, (size_t)(s.tokens * s.depth) * 4);
            for (int rank = 0; rank < ranks; rank++) {
                lf_loss_gradient g = part.gradient;
                const int64_t first = local[rank].options.first_word;
                g.weight.data = (float *)o.w + first * s.depth;
                g.bias.data = (float *)o.b + first;
                g.weight.extents = g.bias.extents = extents[rank];
                OK_CONTEXT(context, lf_loss_backward(context, &local[rank], rows, by, by + s.tokens,
                                                     by + 2 * s.tokens, &g));
                for (int64_t i = 0; i < s.tokens * s.depth; i++)
                    ((float *)o.x)[i] += ((float *)part.x)[i];
            }
            check_gradients("ranks", &d, &o, &r);
            free(rows);
            free(by);
            ours_end(&part);
            ours_end(&o);
            truth_end(&r);
            data_end(&d);
        }
    lf_context_free(context);
}

static void threads_change_no_bits(void **state)
{
    (void)state;
    const shape s = {400, 1000, 600};
    data d = data_of(s, LF_BF16, &variants[4]);
    point(&d, LF_BF16, true);
    ours o[2] = {ours_of(&d, LF_BF16, true), ours_of(&d, LF_BF16, true)};
    double value[2];
    for (int i = 0; i < 2; i++) {
        lf_context *context = context_of(i == 0 ? 1 : 5); /* more than strips of x's gradient */
        OK_CONTEXT(context, lf_loss_step(context, &d.loss, 3, &value[i], &o[i].gradient));
        lf_context_free(context);
    }
    assert_true(value[0] == value[1]);
    assert_memory_equal(o[0].x, o[1].x, (size_t)(s.tokens * s.depth) * 2);
    assert_memory_equal(o[0].w, o[1].w, (size_t)(s.words * s.depth) * 2);
    assert_memory_equal(o[0].b, o[1].b, (size_t)s.words * 2);
    ours_end(&o[0]);
    ours_end(&o[1]);
    data_end(&d);
}

/* Each gradient alone is what it is with the others; and scale scales. */
static void what_is_not_wanted_is_left(void **state)
{
    (void)state;
    const shape s = {50, 70, 20};
    lf_context *context = context_of(2);
    data d = data_of(s, LF_F32, &variants[0]);
    point(&d, LF_F32, true);
    ours all = ours_of(&d, LF_F32, true), one = ours_of(&d, LF_F32, true);
    OK_CONTEXT(context, lf_loss_step(context, &d.loss, 2, NULL, &all.gradient));
    const lf_loss_gradient x = {.x = one.gradient.x}, w = {.weight = one.gradient.weight},
                           b = {.bias = one.gradient.bias};
    OK_CONTEXT(context, lf_loss_step(context, &d.loss, 2, NULL, &x));
    OK_CONTEXT(context, lf_loss_step(context, &d.loss, 2, NULL, &w));
    OK_CONTEXT(context, lf_loss_step(context, &d.loss, 2, NULL, &b));
    assert_memory_equal(all.x, one.x, (size_t)(s.tokens * s.depth) * 4);
    assert_memory_equal(all.w, one.w, (size_t)(s.words * s.depth) * 4);
    assert_memory_equal(all.b, one.b, (size_t)s.words * 4);
    truth r = truth_of(&d, NULL);
    OK_CONTEXT(context, lf_loss_step(context, &d.loss, 1, NULL, &one.gradient));
    for (int64_t i = 0; i < s.words; i++)
        assert_true(fabs((double)((float *)all.b)[i] - 2 * (double)((float *)one.b)[i]) < 1e-6);
    truth_end(&r);
    ours_end(&all);
    ours_end(&one);
    data_end(&d);
    lf_context_free(context);
}

static void numbers_that_are_not_finite(void **state)
{
    (void)state;
    const int64_t xe[] = {4, 1}, we[] = {3, 1}, target[] = {0, 1, 2, -100};
    float x[] = {1e30f, 1, NAN, 1}, w[] = {1, -INFINITY, -1};
    float dx[4], dw[3];
    lf_context *context = context_of(1);
    lf_loss loss = {.x = {.data = x, .rank = 2, .extents = xe},
                    .weight = {.data = w, .rank = 2, .extents = we},
                    .target = target,
                    .options = LF_LOSS_OPTIONS};
    lf_loss_row rows[4];
    float each[4];
    OK_CONTEXT(context, lf_loss_rows(context, &loss, rows));
    OK_CONTEXT(context, lf_loss_values(context, &loss, rows, each, NULL, NULL, NULL));
    assert_true(each[0] == 0 && isinf(each[1]) && isnan(each[2]) && each[3] == 0);
    w[1] = 0;
    x[2] = -1e30f;
    double value;
    const lf_loss_gradient g = {.x = {.data = dx, .rank = 2, .extents = xe},
                                .weight = {.data = dw, .rank = 2, .extents = we}};
    OK_CONTEXT(context, lf_loss_step(context, &loss, 1, &value, &g));
    assert_true(dx[0] == 0 && dx[2] == 0 && dx[3] == 0 && isfinite(dx[1]));
    const int64_t none[] = {-100, -100, -100, -100};
    loss.target = none;
    OK_CONTEXT(context, lf_loss_step(context, &loss, 1, &value, &g));
    assert_true(isnan(value) && dx[0] == 0 && dw[0] == 0 && dw[2] == 0);
    loss.options.reduction = LF_SUM;
    OK_CONTEXT(context, lf_loss_step(context, &loss, 1, &value, &g));
    assert_true(value == 0);
    lf_context_free(context);
}

/* Counted: far less than all logits, and no more for four times the tokens but what they count themselves. */
static void no_logits_are_stored(void **state)
{
    (void)state;
    const int64_t x[][2] = {{4096, 256}, {16384, 256}}, w[] = {32000, 256};
    int64_t *target = calloc(16384, sizeof *target);
    char *anything = (char *)target; /* nothing is read or written there */
    const size_t apart = (size_t)1 << 28;
    lf_context *context = context_of(2);
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
        const lf_loss loss = {.x = {.data = anything, .dtype = LF_BF16, .rank = 2, .extents = x[i]},
                              .weight = {.data = anything + apart, .dtype = LF_BF16, .rank = 2, .extents = w},
                              .target = target,
                              .options = LF_LOSS_OPTIONS};
        lf_loss_gradient g = {.x = loss.x, .weight = {.data = anything + 2 * apart, .rank = 2, .extents = w}};
        g.x.data = anything + 3 * apart;
        bytes[i] = lf_loss_workspace(context, &loss, &g);
        assert_true(bytes[i] > 0 && bytes[i] < 4096 * 32000 * 4 / 8);
    }
    assert_true(bytes[1] - bytes[0] == (16384 - 4096) * (sizeof(int64_t) + sizeof(lf_loss_row)));
    free(target);
    lf_context_free(context);
}

static void mistakes_are_named(void **state)
{
    (void)state;
    const int64_t xe[] = {2, 3}, we[] = {4, 3}, other[] = {4, 2};
    float x[6] = {0}, w[12] = {0};
    int64_t target[] = {3, 4};
    double value;
    lf_context *context = context_of(1);
    lf_loss loss = {.x = {.data = x, .rank = 2, .extents = xe},
                    .weight = {.data = w, .rank = 2, .extents = we},
                    .target = target,
                    .options = LF_LOSS_OPTIONS};
#define WRONG(status, words) \
    REFUSES(status, words, lf_loss_step(context, &loss, 1, &value, NULL), lf_context_message(context))
    WRONG(LF_ERR_DATA, "target 1 is 4, but words are 0 to 3; one that is to be left out is ignore_index, -100");
    target[1] = 0;
    loss.weight.extents = other;
    WRONG(LF_ERR_DATA, "x: extent 1 is 3, but must be 2");
    loss.weight.extents = we;
    loss.options.label_smoothing = 2;
    WRONG(LF_ERR_DATA, "label_smoothing is 2");
    loss.options.label_smoothing = 0;
    loss.options.words = 9;
    WRONG(LF_ERR_DATA, "weight has 4 of 9 words");
    loss.options.first_word = 6;
    WRONG(LF_ERR_DATA, "words 6 to 9 are not within a vocabulary of 9");
    loss.options.first_word = loss.options.words = 0;
    loss.options.temperature = -1;
    WRONG(LF_ERR_DATA, "temperature -1");
    loss.options.temperature = 0;
    loss.x.dtype = LF_I64;
    WRONG(LF_ERR_DATA, "x: its type is none of");
    loss.x.dtype = LF_F32;
    loss.x.memory = LF_DEVICE;
    WRONG(LF_ERR_UNSUPPORTED, "host memory");
    loss.x.memory = LF_HOST;
    const lf_loss_gradient onto = {.x = {.data = x + 2, .rank = 2, .extents = xe}};
    REFUSES(LF_ERR_ARG, "the gradient of x overlaps x", lf_loss_step(context, &loss, 1, &value, &onto),
            lf_context_message(context));
    loss.target = NULL;
    WRONG(LF_ERR_ARG, "target");
    assert_int_equal(lf_loss_step(NULL, &loss, 1, &value, NULL), LF_ERR_ARG);
    lf_context_free(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(step_is_the_formula),
        cmocka_unit_test(ranks_are_one),
        cmocka_unit_test(threads_change_no_bits),
        cmocka_unit_test(what_is_not_wanted_is_left),
        cmocka_unit_test(numbers_that_are_not_finite),
        cmocka_unit_test(no_logits_are_stored),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
