/* SPDX-License-Identifier: Apache-2.0 */
/* The table amx: another of the file that includes this, but bf16 is multiplied by bf16 in AMX's tiles. Contract:
 * kern.h. The panels of w are those of kern_product.h: two tiles beside each other, a step after the other.
 *   x: [tiles of 16 rows][steps of 16 pairs][16 rows][16 pairs]; rows and pairs past its own are 0
 * Of a step, the products of first elements of pairs and of second ones are summed apart, each from 0 in order of k;
 * the two sums are added, then that to the sum of the steps before; that of a run is added to c, then the bias to it.
 * The unit takes denormals for 0 and gives 0 for them: runs that say they have tiny numbers are multiplied by ordinary
 * instructions in the same order, which gives the same bits where the unit loses nothing. */
#include "cpu/kern_tile_unit.h"

enum {
    STEP_PAIRS = TILE_ROW_BYTES / (int)sizeof(uint32_t), /* of K */
    PANEL_ROW_BYTES = KERN_NR * (int)sizeof(uint32_t),   /* of one pair */
    PANEL_STEP_BYTES = STEP_PAIRS * PANEL_ROW_BYTES,
    BLOCK_TILES_OF_ROWS = 2                              /* that meet the two of a panel at once */
};
_Static_assert(PANEL_ROW_BYTES == 2 * TILE_ROW_BYTES, "two tiles are as wide as a panel");

static bool usable_in_tiles(void)
{
    return tile_usable() && usable();
}

static bool has_pairs_in_tiles(void)
{
    return true;
}

static inline int64_t steps_of(int64_t k)
{
    return (k + 2 * STEP_PAIRS - 1) / (2 * STEP_PAIRS);
}

static inline int64_t tiles_of(int64_t rows)
{
    return (rows + TILE_ROWS - 1) / TILE_ROWS;
}

static int64_t x_floats_in_tiles(lf_dtype type, int64_t rows, int64_t k)
{
    return type == LF_BF16 ? tiles_of(rows) * steps_of(k) * (TILE_BYTES / (int)sizeof(float)) + LINE
                           : x_floats(type, rows, k);
}

static void pack_x_in_tiles(lf_dtype type, int64_t rows, int64_t k, const void *x, int64_t ld, float *to)
{
    if (type != LF_BF16) {
        pack_x(type, rows, k, x, ld, to);
        return;
    }
    assert(k >= 1 && k <= LF_KBLOCK && rows >= 1);
    const int64_t steps = steps_of(k), row_bytes = k * (int64_t)sizeof(uint16_t);
    bool tiny = false;
    for (int64_t i = 0; i < tiles_of(rows) * TILE_ROWS; i++) {
        const char *from = (const char *)x + (i < rows ? i : 0) * ld * (int64_t)sizeof(uint16_t);
        char *at = (char *)to + i / TILE_ROWS * steps * TILE_BYTES + i % TILE_ROWS * TILE_ROW_BYTES;
        const int64_t bytes = i < rows ? row_bytes : 0;
        for (int64_t step = 0; step < steps; step++) {
            const int64_t done = step * TILE_ROW_BYTES, rest = bytes - done;
            if (rest >= TILE_ROW_BYTES) {
                memcpy(at + step * TILE_BYTES, from + done, TILE_ROW_BYTES);
            } else {
                memset(at + step * TILE_BYTES, 0, TILE_ROW_BYTES);
                if (rest > 0)
                    memcpy(at + step * TILE_BYTES, from + done, (size_t)rest);
            }
        }
        tiny = are_tiny(bytes / (int64_t)sizeof(uint16_t), from) || tiny;
    }
    say_tiny(to, x_floats_in_tiles(type, rows, k), tiny);
}

/* ---- a panel and some rows ---- */

/* What panels and rows come next, a share each step. */
typedef struct asked {
    const char *at, *end;
    int64_t each; /* bytes, whole lines */
} asked;

static asked ask_in_shares(const void *from, int64_t bytes, int64_t shares)
{
    const int64_t lines = from ? (bytes + LINE_BYTES - 1) / LINE_BYTES : 0;
    return (asked){from, (const char *)from + lines * LINE_BYTES, (lines + shares - 1) / shares * LINE_BYTES};
}

static inline void ask_for_share(asked *a)
{
    const char *end = a->end - a->at < a->each ? a->end : a->at + a->each;
    for (; a->at < end; a->at += LINE_BYTES)
        __builtin_prefetch(a->at, 0, 2);
}

/* A panel as the unit reads it. */
typedef struct panel_at {
    const char *w;
    const char *last; /* its last step, filled up with 0 */
    int64_t steps;
    asked *next_w, *next_x;
} panel_at;

/* The sums of `tiles` tiles of rows, 1 or 2, with a panel -> sums: [tiles * TILE_ROWS][KERN_NR]. x: the first tile. */
static inline __attribute__((always_inline)) void sums_of_block(const int tiles, const char *x, const panel_at *panel,
                                                                float *sums)
{
    const int64_t steps = panel->steps;
    tile_zero(0);
    tile_zero(1);
    if (tiles > 1) {
        tile_zero(2);
        tile_zero(3);
    }
    for (int64_t step = 0; step < steps; step++, x += TILE_BYTES) {
        const char *w = step + 1 < steps ? panel->w + step * PANEL_STEP_BYTES : panel->last;
        tile_load(6, w, PANEL_ROW_BYTES);
        tile_load(7, w + TILE_ROW_BYTES, PANEL_ROW_BYTES);
        tile_load(4, x, TILE_ROW_BYTES);
        tile_dot_bf16(0, 4, 6);
        tile_dot_bf16(1, 4, 7);
        if (tiles > 1) {
            tile_load(5, x + steps * TILE_BYTES, TILE_ROW_BYTES);
            tile_dot_bf16(2, 5, 6);
            tile_dot_bf16(3, 5, 7);
        }
        ask_for_share(panel->next_w);
        ask_for_share(panel->next_x);
    }
    tile_store(0, sums, PANEL_ROW_BYTES);
    tile_store(1, sums + TILE_ROWS, PANEL_ROW_BYTES);
    if (tiles > 1) {
        tile_store(2, sums + TILE_ROWS * KERN_NR, PANEL_ROW_BYTES);
        tile_store(3, sums + TILE_ROWS * KERN_NR + TILE_ROWS, PANEL_ROW_BYTES);
    }
}

/* The same by ordinary instructions, for m rows of one tile, whose first is x. */
static inline __attribute__((always_inline)) void sums_of_rows(const int m, const char *x, const panel_at *panel,
                                                               float *sums)
{
    vec total[4 * KERN_NV];
    UNROLL
    for (int i = 0; i < m * KERN_NV; i++)
        total[i] = (vec){0};
    for (int64_t step = 0; step < panel->steps; step++, x += TILE_BYTES) {
        const char *w = step + 1 < panel->steps ? panel->w + step * PANEL_STEP_BYTES : panel->last;
        vec first[4 * KERN_NV], second[4 * KERN_NV];
        UNROLL
        for (int i = 0; i < m * KERN_NV; i++)
            first[i] = second[i] = (vec){0};
        for (int pair = 0; pair < STEP_PAIRS; pair++, w += PANEL_ROW_BYTES) {
            UNROLL
            for (int i = 0; i < m; i++) {
                const uvec words = (uvec)pair_at((const float *)(const void *)(x + i * TILE_ROW_BYTES) + pair);
                UNROLL
                for (int v = 0; v < KERN_NV; v++) {
                    vec *to = first + i * KERN_NV + v, *to2 = second + i * KERN_NV + v;
                    *to = mul_add((vec)(words << 16), column_at(BF16, w, 0, v), *to);
                    *to2 = mul_add((vec)(words & 0xffff0000u), column_at(BF16, w, 1, v), *to2);
                }
            }
        }
        UNROLL
        for (int i = 0; i < m * KERN_NV; i++)
            total[i] += first[i] + second[i];
    }
    UNROLL
    for (int i = 0; i < m * KERN_NV; i++)
        store(sums + i * KERN_LANES, total[i]);
}

/* sums: [rows][KERN_NR] */
static void sums_without_tiles(int64_t rows, const char *x, const panel_at *panel, float *sums)
{
    enum { TOGETHER = 4 };
    for (int64_t row = 0, m; row < rows; row += m, sums += m * KERN_NR) {
        const char *at = x + row / TILE_ROWS * panel->steps * TILE_BYTES + row % TILE_ROWS * TILE_ROW_BYTES;
        m = row + TOGETHER <= rows ? TOGETHER : 1;
        if (m == TOGETHER)
            sums_of_rows(TOGETHER, at, panel, sums);
        else
            sums_of_rows(1, at, panel, sums);
    }
}

/* to = sums + c + bias, of rows from `row` and the columns from `col` on. bias: the panel's, or NULL. */
static void leave_sums(const lf_multiply *p, int64_t row, int64_t rows, int64_t col, const float *bias,
                       const float *sums)
{
    for (int64_t i = row; i < row + rows; i++, sums += KERN_NR) {
        UNROLL
        for (int v = 0; v < KERN_NV; v++) {
            vec at = load(sums + v * KERN_LANES);
            if (p->c)
                at += load(p->c + i * p->ldc + col + v * KERN_LANES);
            if (bias)
                at += load(bias + v * KERN_LANES);
            store(p->to + i * p->ldt + col + v * KERN_LANES, at);
        }
    }
}

/* A panel of w meets all rows before the next does. */
static void multiply_in_tiles(const lf_multiply *p)
{
    enum { BLOCK_ROWS = BLOCK_TILES_OF_ROWS * TILE_ROWS };
    if (p->x_type != LF_BF16) {
        multiply(p);
        return;
    }
    assert(p->k >= 1 && p->k <= LF_KBLOCK && p->n >= 1 && p->n <= LF_STRIP && p->rows >= 1 && p->w_type == LF_BF16);
    const int64_t steps = steps_of(p->k), x_all = x_floats_in_tiles(LF_BF16, p->rows, p->k);
    const int64_t panel_all = panel_bytes(LF_BF16, p->k), last_bytes = panel_all - (steps - 1) * PANEL_STEP_BYTES;
    const int64_t blocks = (p->rows + BLOCK_ROWS - 1) / BLOCK_ROWS, panels = (p->n + KERN_NR - 1) / KERN_NR;
    const bool tiny = says_tiny(p->x, x_all) || says_tiny(p->w, w_floats(LF_BF16, p->n, p->k));
    _Alignas(LINE_BYTES) float sums[BLOCK_ROWS * KERN_NR];
    _Alignas(LINE_BYTES) char last_step[PANEL_STEP_BYTES] = {0};
    float last_bias[KERN_NR] = {0};
    asked next_x = ask_in_shares(p->next_x, x_all * (int64_t)sizeof *p->x, panels * blocks * steps);
    if (!tiny)
        tile_begin();
    for (int64_t col = 0; col < p->n; col += KERN_NR) {
        const char *w = (const char *)p->w + col / KERN_NR * panel_all;
        asked next_w = ask_in_shares(col + KERN_NR < p->n ? w + panel_all : (const char *)p->next_w, panel_all,
                                     blocks * steps);
        panel_at panel = {w, w + (steps - 1) * PANEL_STEP_BYTES, steps, &next_w, &next_x};
        if (last_bytes < PANEL_STEP_BYTES)
            panel.last = memcpy(last_step, panel.last, (size_t)last_bytes);
        const float *bias = bias_at(p, col, last_bias);
        for (int64_t row = 0; row < p->rows; row += BLOCK_ROWS) {
            const int64_t rows = p->rows - row < BLOCK_ROWS ? p->rows - row : BLOCK_ROWS;
            const char *x = (const char *)p->x + row / TILE_ROWS * steps * TILE_BYTES;
            if (tiny)
                sums_without_tiles(rows, x, &panel, sums);
            else if (rows > TILE_ROWS)
                sums_of_block(BLOCK_TILES_OF_ROWS, x, &panel, sums);
            else
                sums_of_block(1, x, &panel, sums);
            leave_sums(p, row, rows, col, bias, sums);
        }
    }
    if (!tiny)
        tile_end();
}

#undef KERN_ISA
#define KERN_ISA amx
#undef OWN
#define OWN(function) function##_in_tiles
#include "cpu/kern_table.h"
