/* SPDX-License-Identifier: Apache-2.0 */
/* The stage of wide products that share a phase: tiles of x times each weight, the phase's steps on each element while
 * it is in registers, and the tile's part of each row's statistics. What follows in later phases is another stage's,
 * which joins the parts. */
#include <stdio.h>

#include "cuda/emit_parts.h"

static const char inside[] = "    static __device__ __forceinline__";

static int products_in(const lf_group *g, int32_t phase)
{
    int count = 0;
    for (int32_t i = 0; i < g->products; i++)
        count += g->product[i].phase == phase;
    return count;
}

/* Which weights of a phase's products are [K][N]. */
static void emit_is_kn(lf_emitter *e, int32_t phase)
{
    int product = 0, found = 0;
    lf_str_addf(&e->s, "%s bool weight_is_kn(int product) { return ", inside);
    for (int32_t i = 0; i < e->g->products; i++)
        if (e->g->product[i].phase == phase) {
            if (e->g->product[i].w_is_kn)
                lf_str_addf(&e->s, "%sproduct == %d", found++ ? " || " : "", product);
            product++;
        }
    lf_str_add(&e->s, found ? "; }\n" : "false; }\n");
}

static void emit_extents(lf_emitter *e, const lf_product *p)
{
    const struct {
        const char *name;
        lf_extent extent;
    } all[] = {{"rows", e->g->rows}, {"columns", p->n}, {"depth", p->k}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        lf_str_addf(&e->s, "%s i64 %s(const Args &a) { return ", inside, all[i].name);
        lf_emit_extent(e, all[i].extent);
        lf_str_add(&e->s, "; }\n");
    }
}

static void emit_weight(lf_emitter *e, const lf_product *p)
{
    lf_str_add(&e->s, "return read<true>(");
    lf_emit_home(e, p->weight);
    lf_str_add(&e->s, p->w_is_kn ? " + k * " : " + n * ");
    lf_emit_extent(e, p->w_is_kn ? p->n : p->k);
    lf_str_add(&e->s, p->w_is_kn ? " + n);" : " + k);");
}

static void emit_operands(lf_emitter *e, int32_t phase)
{
    const int products = products_in(e->g, phase);
    int product = 0;
    lf_str_addf(&e->s, "%s float x(const Args &a, i64 row, i64 k) { return ", inside);
    lf_emit_row_element(e, &e->g->x, "k");
    lf_str_addf(&e->s, "; }\n%s float weight(const Args &a, int product, i64 n, i64 k)\n    {\n", inside);
    for (int32_t i = 0; i < e->g->products; i++) {
        const lf_product *p = &e->g->product[i];
        if (p->phase != phase)
            continue;
        lf_str_add(&e->s, "        ");
        if (++product < products)
            lf_str_addf(&e->s, "if (product == %d) ", product - 1);
        emit_weight(e, p);
        lf_str_add(&e->s, " // ");
        lf_emit_shape(e, p->weight);
        lf_str_add(&e->s, "\n");
    }
    lf_str_add(&e->s, "    }\n");
    emit_is_kn(e, phase);
}

/* The statistics of rows that the product's phase feeds: the first, and the others. */
static void emit_rest(lf_emitter *e, int32_t phase, int32_t first)
{
    lf_str_add(&e->s, "    struct Rest {\n");
    for (int32_t i = first + 1; i < e->g->stats; i++)
        if (lf_is_fed(e, i, phase))
            lf_str_addf(&e->s, "        %s_stat<float> s%d;\n", lf_monoid_row(e->g->stat[i].monoid)->name, (int)i);
    lf_str_add(&e->s, "        __device__ __forceinline__ void begin() {");
    for (int32_t i = first + 1; i < e->g->stats; i++)
        if (lf_is_fed(e, i, phase))
            lf_str_addf(&e->s, " s%d.begin();", (int)i);
    lf_str_add(&e->s, " }\n        __device__ __forceinline__ void join_lanes(int lanes) {");
    for (int32_t i = first + 1; i < e->g->stats; i++)
        if (lf_is_fed(e, i, phase))
            lf_str_addf(&e->s, " s%d = ::join_lanes(s%d, lanes);", (int)i, (int)i);
    lf_str_add(&e->s, " }\n");
    lf_str_add(&e->s, "    };\n");
}

static void emit_element(lf_emitter *e, int32_t phase, int32_t first)
{
    lf_str_addf(&e->s,
                "    // phase %d: %s x %s\n    template <int W>\n"
                "%s void element(const Args &a, const i64 row, const i64 rows, const bool here, const i64 col, "
                "float (&p)[%s], Rest &rest)\n    {\n",
                (int)phase, lf_extent_text(e->graph, e->g->rows), lf_extent_text(e->graph, e->g->phase[phase].width),
                inside, products_in(e->g, phase) > 1 ? "PRODUCTS * W" : "W");
    e->tiles = true;
    lf_emit_steps(e, phase, 2);
    e->tiles = false;
    for (int32_t i = first; i < e->g->stats && first >= 0; i++)
        if (i > first && lf_is_fed(e, i, phase))
            lf_str_addf(&e->s, "        EACH rest.s%d.put(v%d[w]);\n", (int)i, (int)e->g->stat[i].step);
    if (first >= 0)
        lf_str_addf(&e->s, "        EACH p[w] = v%d[w]; // for the %s of the row\n", (int)e->g->stat[first].step,
                    lf_monoid_row(e->g->stat[first].monoid)->name);
    else if (e->held.phase >= 0)
        lf_str_addf(&e->s, "        EACH p[w] = v%d[w]; // for phase %d\n", (int)e->held.step, (int)e->held.phase);
    lf_str_addf(&e->s,
                "    }\n"
                "%s void end(const Args &a, const i64 row, const int tile, const int tiles, const First &first, "
                "const Rest &rest)\n    {\n",
                inside);
    for (int32_t i = first; i < e->g->stats && first >= 0; i++)
        if (lf_is_fed(e, i, phase)) {
            const int states = lf_monoid_row(e->g->stat[i].monoid)->states;
            if (i == first)
                lf_str_add(&e->s, "        first");
            else
                lf_str_addf(&e->s, "        rest.s%d", (int)i);
            lf_str_addf(&e->s, ".set(a.area%d + (row * tiles + tile) * %d);\n", (int)e->partial[i], states);
        }
    lf_str_add(&e->s, "    }\n");
}

/* Of the struct; the group's alone, as a rule. */
static void name_of(const lf_emitter *e, int32_t range, char *name, size_t size)
{
    int products = 0;
    for (int32_t r = 0; r < e->ranges; r++)
        products += e->range[r].product;
    if (products == 1)
        snprintf(name, size, "g%d", (int)e->group);
    else
        snprintf(name, size, "g%d_%d", (int)e->group, (int)e->range[range].first);
}

static void emit_comments(lf_emitter *e, int32_t phase)
{
    for (int32_t i = 0; i < e->g->products; i++) {
        const lf_product *p = &e->g->product[i];
        if (p->phase != phase)
            continue;
        lf_str_add(&e->s, "// ");
        lf_emit_shape(e, p->node);
        lf_str_addf(&e->s, " = rows of %s elements by ", lf_extent_text(e->graph, p->k));
        lf_emit_shape(e, p->weight);
        lf_str_add(&e->s, p->w_is_kn ? "\n" : " transposed\n");
    }
}

void lf_emit_product(lf_emitter *e, int32_t range)
{
    const int32_t phase = e->range[range].first;
    const lf_product *p = lf_product_in(e->g, phase);
    int32_t first = -1, fed = 0;
    char name[24];
    for (int32_t i = e->g->stats - 1; i >= 0; i--)
        if (lf_is_fed(e, i, phase)) {
            first = i;
            fed++;
        }
    name_of(e, range, name, sizeof name);
    emit_comments(e, phase);
    lf_str_addf(&e->s, "struct %s {\n    typedef Args A;\n    enum { W = %d, STATS = %d, PRODUCTS = %d };\n", name,
                lf_emit_lanes(e, p->n), (int)fed, products_in(e->g, phase));
    if (first < 0)
        lf_str_add(&e->s, "    typedef no_stat First;\n");
    else
        lf_str_addf(&e->s, "    typedef %s_stat<float> First;\n", lf_monoid_row(e->g->stat[first].monoid)->name);
    emit_rest(e, phase, first < 0 ? e->g->stats : first);
    emit_extents(e, p);
    if (e->tensor)
        lf_emit_tensor_extents(e);
    else
        emit_operands(e, phase);
    emit_element(e, phase, first);
    if (e->tensor) {
        lf_emit_held(e);
        lf_str_add(&e->s, "};\n\n");
        lf_emit_tensor_stages(e);
        return;
    }
    char stage[sizeof name + sizeof "_product"];
    snprintf(stage, sizeof stage, "%s_product", name);
    lf_str_addf(&e->s,
                "};\n\n__device__ __forceinline__ void %s(const Args &a)\n{\n    plain_product<%s, %d, %s>(a);\n}\n\n",
                stage, name, e->role == LF_CUDA_MAIN ? 8 : 4, e->role == LF_CUDA_MAIN ? "false" : "true");
    lf_emit_stage(e, stage, LF_CUDA_TILES, e->g->rows, p->n);
}
