/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles of products on tensor cores, as host and text of a kernel both need them: from the tables of plan/gpu.h. */
#include "cuda/emit_parts.h"

enum {
    TOUCHED = 32 * 4,             /* words of text/wgmma.cu that are copied so that L1 has them */
    MULTIPLYING = 256,            /* threads of a block that multiply; half of them where rows are few, or a tile's */
    FEW_PITCH = LF_CUDA_TILE + 4, /* floats of a row of sums of text/few_rows.cu */
    FEW_SUMS = 16                 /* such rows of a block, at least */
};

/* Columns of one block's own. */
static int block_columns(const lf_tile *t)
{
    return t->few ? t->columns / t->cluster : t->columns;
}

/* Sums of a thread. */
static int sums(const lf_tile *t)
{
    return t->rows * block_columns(t) / (t->few || t->turns ? MULTIPLYING / 2 : MULTIPLYING);
}

/* Rows of sums that a block of few rows finishes. */
static int few_sums(const lf_tile *t)
{
    return t->shares_x ? t->rows / 2 : FEW_SUMS;
}

const char *lf_tile_product(const lf_tile *t)
{
    return t->few ? "few_rows_product" : "tensor_product";
}

int lf_tile_w_rows(const lf_tile *t)
{
    return t->columns / t->cluster;
}

unsigned lf_cuda_shape_shared(lf_tile_shape shape, lf_precision precision)
{
    const lf_tile *t = &lf_tile_table[shape];
    enum { ALIGNED = 1024, BARRIER = 8, OTHERS = 4 }; /* barriers of few rows' own, and a word */
    const int stage = t->deep * (t->rows + block_columns(t)) * LF_LINE;
    /* sums that do not fit into registers, which is those of split operands alone */
    const int waiting = lf_precision_table[precision].split ? (sums(t) - t->in_registers) * MULTIPLYING * 4 : 0,
              room = t->few ? few_sums(t) * FEW_PITCH * 4 : waiting + TOUCHED;
    return (unsigned)(ALIGNED + t->stages * stage + room + ((t->few ? 3 : 2) * t->stages + OTHERS) * BARRIER);
}

void lf_emit_tables(lf_str *to)
{
    lf_str_addf(to, "// As plan/precisions.def and plan/shapes.def have them.\nenum { LINE = %d }; // bytes\nenum { ",
                LF_LINE);
    for (lf_precision p = 0; p < LF_PRECISIONS; p++)
        lf_str_addf(to, "MODE_%s, ", lf_precision_table[p].id);
    lf_str_add(to, "MODES };\ntemplate <int MODE> struct Line;\n");
    for (lf_precision p = 0; p < LF_PRECISIONS; p++)
        lf_str_addf(to, "template <> struct Line<MODE_%s> { enum { ELEMENTS = %d, SCALED = %d }; };\n",
                    lf_precision_table[p].id, lf_line_elements(p), lf_precision_table[p].scaled);
    lf_str_addf(to, "enum { MMA_STAGES = %d, MMA_WIDE = %d, BY_TURNS = %d };\n", LF_MMA_STAGES, LF_MMA_WIDE,
                LF_BY_TURNS);
    for (lf_tile_shape s = 0; s < LF_TILE_SHAPES; s++) {
        const lf_tile *t = &lf_tile_table[s];
        lf_str_addf(to,
                    "struct %s { enum { ROWS = %d, N = %d, CM = %d, RASTER = %d, STAGES = %d, DEEP = %d, SUMS = %d, "
                    "KEPT = %d, TURNS = %d, SHARED = %d, WAITING = %d }; };\n",
                    t->text, t->rows, block_columns(t), t->cluster, t->raster, t->stages, t->deep, sums(t),
                    t->in_registers, t->turns, t->shares_x, few_sums(t));
    }
    lf_str_add(to, "\n");
}
