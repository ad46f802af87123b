/* SPDX-License-Identifier: Apache-2.0 */
/* What a case's text stands for: its graph, its extents, its data. */
#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "random_model.h"

lf_status rnd_graph_read(const rnd_case *c, rnd_graph *out)
{
    lf_arena_init(&out->arena);
    out->diag.text[0] = 0;
    lf_status status = lf_graph_init(&out->g, &out->arena, &out->diag);
    if (status == LF_OK)
        status = lf_text_read(&out->g, "random", c->text, strlen(c->text));
    for (int i = 0; status == LF_OK && i < out->g.symbols; i++)
        out->dims[i] = strcmp(out->g.symbol[i], "B") == 0 ? c->b : c->s;
    return status == LF_OK ? lf_graph_check_dims(&out->g, out->dims, &out->diag) : status;
}

void rnd_graph_free(rnd_graph *g) { lf_arena_free(&g->arena); }

int64_t rnd_count(const rnd_graph *g, lf_node n) { return lf_shape_count(&lf_at(&g->g, n)->shape, g->dims); }

/* Where values come from, by what a leaf's name ends in; the first is for any other. */
static const struct { const char *suffix; float low, high; } styles[] = {
    {"", -1.0f, 1.0f}, {".unit", 0.0f, 1.0f}, {".pos", 0.25f, 1.75f}, {".wide", -6.0f, 6.0f}, {".far", 40.0f, 44.0f},
    {".int", -3.0f, 4.0f}, {".w", -1.7f, 1.7f},
};

static bool ends_in(const char *name, const char *suffix)
{
    size_t n = strlen(name), k = strlen(suffix);
    return n >= k && strcmp(name + n - k, suffix) == 0;
}

void rnd_fill(uint64_t seed, const char *name, int64_t count, int64_t last, float *out)
{
    size_t style = sizeof styles / sizeof styles[0] - 1;
    while (!ends_in(name, styles[style].suffix))
        style--;
    lf_rng r = lf_rng_seed(seed, name);
    float shrink = ends_in(name, ".w") ? 1.0f / sqrtf((float)last) : 1.0f;
    for (int64_t i = 0; i < count; i++) {
        out[i] = shrink * lf_rng_uniform(&r, styles[style].low, styles[style].high);
        if (ends_in(name, ".int"))
            out[i] = floorf(out[i]);
    }
}

void rnd_round(lf_dtype type, float *x, int64_t count)
{
    for (int64_t i = 0; i < count && type != LF_F32; i++) {
        uint32_t bits;
        lf_from_f32(type, &x[i], &bits, 1, 1);
        lf_to_f32(type, &bits, 1, &x[i], 1);
    }
}
