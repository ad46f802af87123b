/* SPDX-License-Identifier: Apache-2.0 */
/* The product on AMX: fp32's accuracy out of bf16 products, sixteen of which cost what one multiply-add does. Included by
 * kern_template.h after kern_product.h, whose multiply it stands before. Contract: kern.h.
 *
 * A float is the sum of three bf16, h + m + l, exactly: 24 bits of it in three times 8. Of the nine products of parts the
 * six largest are summed, in float, by the tiles; what is left out (m l, l m, l l) is below 2^-24 of the product, and
 * as often too much as too little, since the parts of x are rounded to nearest. Fewer sums are added to one another than
 * in a plain product, so the result is no less accurate: tests/kern_test.c.
 *
 * Tiles know no denormals, and Inf or NaN have no parts. So a run of a row of x, or a run of w, of which an element is not
 * 0 and lies outside [2^-60, 2^50] or [2^-40, 2^50], is multiplied by kern_product.h instead. Only the run's own elements decide.
 *
 *   x: groups of 32 rows, each a line that says which of them are odd (a bit each) and [steps of 32 of k][l, m, h][1 or 2
 *      tiles][16 rows][32 bf16]; an odd row has its floats' upper halves for h and lower halves for m
 *   w: a line that says whether the run is odd, then as kern_product.h has it: parts are made at the call, because three bf16
 *      take half as much again to read as a float, and reading w is what a product of few rows waits for */
#include <sys/syscall.h>
#include <unistd.h>

enum {
    TILE = 16,         /* rows of a tile, and lines: a tile is 1 KB */
    DEPTH = 32,         /* elements of k in a tile */
    GROUP = 2 * TILE,  /* rows, and columns, of the four sums that stay in tiles */
    PARTS = 3,
    TILE_RUN = 128,    /* of k: a group of x is then 24 KB and stays in L1 while columns pass by */
    TILE_FLOATS = TILE * LINE
};

/* ---- may we? ---- */

/* The system saves tiles only for processes that have asked for it. */
static bool tiles_usable(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & bit_AMX_TILE) || !(d & bit_AMX_BF16))
        return false;
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & bit_AVX512BF16))
        return false;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

/* ---- packing ---- */

static int64_t steps_of(int64_t k)
{
    return (k + DEPTH - 1) / DEPTH;
}

/* Of a group of `rows` rows. */
static int64_t group_floats(int64_t rows, int64_t k)
{
    return LINE + steps_of(k) * PARTS * ((rows + TILE - 1) / TILE) * TILE_FLOATS;
}

static int64_t tiles_x_floats(int64_t rows, int64_t k)
{
    return rows / GROUP * group_floats(GROUP, k) + (rows % GROUP ? group_floats(rows % GROUP, k) : 0);
}

static int64_t tiles_w_floats(int64_t n, int64_t k)
{
    return LINE + w_floats(n, k);
}

#define FLOAT_BITS_2_TO(n) ((uint32_t)(127 + (n)) << 23)

/* Whether an element is neither 0 nor between 2^least and 2^50 in size. */
static inline uvec outside(vec v, int least)
{
    const uvec size = (uvec)v & 0x7fffffffu;
    return (uvec)(size != 0) & (uvec)(size - FLOAT_BITS_2_TO(least) > FLOAT_BITS_2_TO(50) - FLOAT_BITS_2_TO(least));
}

static inline bool any_set(uvec mask)
{
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
}

/* 32 floats rounded to bf16, and taken away from them. */
static inline __m512i take_part(vec v[2])
{
    const __m512i part = (__m512i)_mm512_cvtne2ps_pbh((__m512)v[1], (__m512)v[0]);
    const __m256i half[2] = {_mm512_castsi512_si256(part), _mm512_extracti64x4_epi64(part, 1)};
    for (int i = 0; i < 2; i++)
        v[i] -= (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(half[i]), 16);
    return part;
}

static inline void load_step(int64_t k, const float *from, vec v[2])
{
    for (int i = 0; i < 2; i++) {
        const int64_t n = k - i * LINE;
        v[i] = n >= LINE ? load(from + i * LINE) : n > 0 ? load_some(n, from + i * LINE, 0.0f) : (vec){0};
    }
}

/* One row of a group; to: where its part l of step 0 goes, step: floats from one step to the next, part: from l to m to h. */
static bool pack_row(int64_t k, const float *from, float *to, int64_t step, int64_t part)
{
    uvec odd = {0};
    for (int64_t at = 0; at < k; at += DEPTH) {
        vec v[2];
        load_step(k - at, from + at, v);
        odd |= outside(v[0], -60) | outside(v[1], -60);
        for (int i = PARTS - 1; i >= 0; i--)
            _mm512_store_si512(to + at / DEPTH * step + i * part, take_part(v));
    }
    if (!any_set(odd))
        return false;
    for (int64_t at = 0; at < k; at += DEPTH) {
        vec v[2];
        load_step(k - at, from + at, v);
        for (int i = 0; i < 2; i++) {
            float *line = to + at / DEPTH * step + i * LINE / 2;
            _mm256_store_si256((__m256i *)(void *)(line + 2 * part), _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)v[i], 16)));
            _mm256_store_si256((__m256i *)(void *)(line + part), _mm512_cvtepi32_epi16((__m512i)v[i]));
        }
    }
    return true;
}

static void tiles_pack_x(int64_t all, int64_t k, const float *from, int64_t ld, float *to)
{
    assert(k >= 1 && k <= LF_KBLOCK && all >= 1);
    for (int64_t first = 0; first < all; first += GROUP, to += group_floats(GROUP, k)) {
        const int64_t rows = all - first < GROUP ? all - first : GROUP, tiles = (rows + TILE - 1) / TILE;
        uint32_t odd = 0;
        for (int64_t i = 0; i < rows; i++)
            odd |= (uint32_t)pack_row(k, from + (first + i) * ld, to + LINE + i * LINE, PARTS * tiles * TILE_FLOATS,
                                      tiles * TILE_FLOATS)
                   << i;
        for (int64_t at = 0; at < steps_of(k) * PARTS && rows % TILE > 0; at++) /* the rows that are missing in the last tile */
            memset(to + LINE + (at * tiles + tiles - 1) * TILE_FLOATS + rows % TILE * LINE, 0,
                   (size_t)((TILE - rows % TILE) * LINE) * sizeof *to);
        memcpy(to, &odd, sizeof odd);
    }
}

static void tiles_pack_w(int64_t n, int64_t k, const float *from, int64_t ld, bool is_kn, float *to)
{
    uvec odd = {0};
    pack_w(n, k, from, ld, is_kn, to + LINE);
    for (int64_t at = 0; at < w_floats(n, k); at += LINE)
        odd |= outside(load(to + LINE + at), -40);
    const uint32_t flag = k < DEPTH || any_set(odd); /* a step that is mostly empty costs as much as a full one */
    memcpy(to, &flag, sizeof flag);
}

/* A group of rows of a run: where it lies, and what it is. */
typedef struct row_group {
    const float *at;
    int64_t row, rows, tiles;
    uint32_t odd;
} row_group;

static row_group group_at(const lf_multiply *p, int64_t row)
{
    row_group g = {.at = p->x + row / GROUP * group_floats(GROUP, p->k), .row = row};
    g.rows = p->rows - row < GROUP ? p->rows - row : GROUP;
    g.tiles = (g.rows + TILE - 1) / TILE;
    memcpy(&g.odd, g.at, sizeof g.odd);
    return g;
}

/* ---- rows and columns that tiles cannot do ---- */

/* Rows [row, row + m) of a group as they were -> to [k][m]. */
static void unpack_rows(const row_group *g, int64_t row, int64_t m, int64_t k, float *to)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t s = 0; s < k; s++) {
            uint32_t bits[PARTS];
            float part[PARTS], *x = &to[s * m + i];
            for (int p = 0; p < PARTS; p++) {
                const float *line = g->at + LINE + (s / DEPTH * PARTS + p) * g->tiles * TILE_FLOATS + (row + i) * LINE;
                uint16_t upper;
                memcpy(&upper, (const char *)line + s % DEPTH * (int64_t)sizeof upper, sizeof upper);
                bits[p] = (uint32_t)upper << 16;
            }
            memcpy(part, bits, sizeof part);
            *x = part[2] + part[1] + part[0];
            if (g->odd >> (row + i) & 1)
                memcpy(x, &(uint32_t){bits[2] | bits[1] >> 16}, sizeof *x);
        }
}

/* Rows [row, row + m) of a group by multiply-adds. */
static void multiply_rows(const lf_multiply *p, const row_group *g, int64_t row, int64_t m)
{
    float *a = p->scratch, *c = p->c + (g->row + row) * p->ldc;
    unpack_rows(g, row, m, p->k, a);
    for (int64_t col = 0; col < p->n; col += KERN_NR)
        tile_of(m, p->k, a, p->w + LINE + col * p->k, c + col, p->ldc, p->add, NULL);
}

/* ---- the tiles ---- */

/* A pair of rows of w, cut into parts: each float's upper half, then that of the rest. Line: 16 columns, two of k each. */
static inline void part_pair(vec even, vec odd, float *to)
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000u);
    for (int part = 0; part < PARTS; part++, to += 2 * TILE_FLOATS) {
        const __m512i e = (__m512i)even, o = (__m512i)odd;
        _mm512_store_si512(to, _mm512_or_si512(_mm512_srli_epi32(e, 16), _mm512_and_si512(o, upper)));
        even -= (vec)_mm512_and_si512(e, upper);
        odd -= (vec)_mm512_and_si512(o, upper);
    }
}

/* w: [k][KERN_NR] -> to [steps][h, m, l][2 tiles][16 pairs][16 columns][2]. */
static void part_panel(int64_t k, const float *w, float *to)
{
    for (; k > 0; k -= DEPTH, w += DEPTH * KERN_NR, to += 2 * PARTS * TILE_FLOATS)
        for (int64_t i = 0; i < DEPTH; i += 2)
            for (int t = 0; t < 2; t++) {
                const float *pair = w + i * KERN_NR + t * LINE;
                part_pair(i < k ? load(pair) : (vec){0}, i + 1 < k ? load(pair + KERN_NR) : (vec){0},
                          to + t * TILE_FLOATS + i / 2 * LINE);
            }
}

/* The compiler does not know that tiles are read from memory and written to it. */
#define MEMORY_IS_READ_AND_WRITTEN() __asm__ volatile("" ::: "memory")

/* Sums 0, 1: first and second columns of the first rows; 2, 3: of the second rows. 4, 5: parts of x, 6, 7: parts of w.
 * Each step goes round the six products so that every next one needs only two of its four tiles loaded. */
#define LOAD_X(part)                                                                                                 \
    _tile_loadd(4, x + (part) * 2 * TILE_FLOATS, 64);                                                                \
    _tile_loadd(5, x + ((part) * 2 + 1) * TILE_FLOATS, 64)
#define LOAD_W(part)                                                                                                 \
    _tile_loadd(6, w + (part) * 2 * TILE_FLOATS, 64);                                                                \
    _tile_loadd(7, w + ((part) * 2 + 1) * TILE_FLOATS, 64)
#define TIMES_FIRST()                                                                                                \
    _tile_dpbf16ps(0, 4, 6);                                                                                         \
    _tile_dpbf16ps(1, 4, 7)
#define TIMES()                                                                                                      \
    TIMES_FIRST();                                                                                                   \
    _tile_dpbf16ps(2, 5, 6);                                                                                         \
    _tile_dpbf16ps(3, 5, 7)
enum { X_L, X_M, X_H, W_H = 0, W_M, W_L };

static void sums_of_two(int64_t steps, const float *x, const float *w, float *sums)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (; steps > 0; steps--, x += 2 * PARTS * TILE_FLOATS, w += 2 * PARTS * TILE_FLOATS) {
        LOAD_X(X_L);
        LOAD_W(W_H);
        TIMES();
        LOAD_X(X_M);
        TIMES();
        LOAD_W(W_M);
        TIMES();
        LOAD_X(X_H);
        TIMES();
        LOAD_W(W_L);
        TIMES();
        LOAD_W(W_H);
        TIMES();
    }
    _tile_stored(0, sums, GROUP * sizeof *sums);
    _tile_stored(1, sums + TILE, GROUP * sizeof *sums);
    _tile_stored(2, sums + TILE * GROUP, GROUP * sizeof *sums);
    _tile_stored(3, sums + TILE * GROUP + TILE, GROUP * sizeof *sums);
}

/* The same for a group of one tile of rows. */
static void sums_of_one(int64_t steps, const float *x, const float *w, float *sums)
{
    _tile_zero(0);
    _tile_zero(1);
    for (; steps > 0; steps--, x += PARTS * TILE_FLOATS, w += 2 * PARTS * TILE_FLOATS) {
        _tile_loadd(4, x + X_L * TILE_FLOATS, 64);
        LOAD_W(W_H);
        TIMES_FIRST();
        _tile_loadd(4, x + X_M * TILE_FLOATS, 64);
        TIMES_FIRST();
        LOAD_W(W_M);
        TIMES_FIRST();
        _tile_loadd(4, x + X_H * TILE_FLOATS, 64);
        TIMES_FIRST();
        LOAD_W(W_L);
        TIMES_FIRST();
        LOAD_W(W_H);
        TIMES_FIRST();
    }
    _tile_stored(0, sums, GROUP * sizeof *sums);
    _tile_stored(1, sums + TILE, GROUP * sizeof *sums);
}

/* sums: [rows][GROUP], odd rows left out. */
static void add_sums(const float *sums, int64_t rows, uint32_t odd, bool add, float *c, int64_t ldc)
{
    for (int64_t i = 0; i < rows; i++) {
        if (odd >> i & 1)
            continue;
        for (int v = 0; v < 2; v++) {
            vec sum = load(sums + i * GROUP + v * LINE);
            if (add)
                sum += load(c + i * ldc + v * LINE);
            store(c + i * ldc + v * LINE, sum);
        }
    }
}

static void configure(void)
{
    struct { uint8_t palette, start, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } tiles = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        tiles.bytes[i] = 64;
        tiles.rows[i] = TILE;
    }
    _tile_loadconfig(&tiles);
}

/* Asks for what the next call reads, `lines` at a time. */
typedef struct asking {
    const float *at, *end, *then, *then_end;
} asking;

static inline void ask(asking *a, int64_t lines)
{
    for (; lines > 0; lines--) {
        if (a->at >= a->end) {
            a->at = a->then;
            a->end = a->then_end;
            a->then = a->then_end = NULL;
            if (!a->at)
                return;
        }
        __builtin_prefetch(a->at, 0, 2);
        a->at += LINE;
    }
}

enum {
    PARTED_FLOATS = GROUP * TILE_RUN * PARTS / 2,
    SUMS_FLOATS = GROUP * GROUP,
    TILES_SCRATCH = PARTED_FLOATS + SUMS_FLOATS
};
_Static_assert(TILES_SCRATCH >= KERN_MR * LF_KBLOCK, "unpack_rows has room");

/* Columns [col, col + GROUP), elements [k0, k0 + TILE_RUN) of k, all rows. */
static void multiply_panel(const lf_multiply *p, int64_t col, int64_t k0, asking *next, int64_t lines)
{
    float *parted = p->scratch, *sums = parted + PARTED_FLOATS;
    const int64_t k = p->k - k0 < TILE_RUN ? p->k - k0 : TILE_RUN;
    part_panel(k, p->w + LINE + col * p->k + k0 * KERN_NR, parted);
    MEMORY_IS_READ_AND_WRITTEN();
    for (int64_t row = 0; row < p->rows; row += GROUP) {
        const row_group g = group_at(p, row);
        const float *x = g.at + LINE + k0 / DEPTH * PARTS * g.tiles * TILE_FLOATS;
        if (g.tiles == 2)
            sums_of_two(steps_of(k), x, parted, sums);
        else
            sums_of_one(steps_of(k), x, parted, sums);
        MEMORY_IS_READ_AND_WRITTEN();
        add_sums(sums, g.rows, g.odd, p->add || k0 > 0, p->c + row * p->ldc + col, p->ldc);
        ask(next, lines);
    }
}

static void multiply_by_tiles(const lf_multiply *p)
{
    const int64_t x_all = p->next_x ? tiles_x_floats(p->rows, LF_KBLOCK) : 0;
    const int64_t w_all = p->next_w ? tiles_w_floats(p->n, LF_KBLOCK) : 0;
    const int64_t blocks = (p->rows + GROUP - 1) / GROUP * ((p->n + GROUP - 1) / GROUP) * (LF_KBLOCK / TILE_RUN);
    asking next = {p->next_w, p->next_w + w_all, p->next_x, p->next_x + x_all};
    configure();
    for (int64_t k0 = 0; k0 < p->k; k0 += TILE_RUN)
        for (int64_t col = 0; col < p->n; col += GROUP)
            multiply_panel(p, col, k0, &next, (x_all + w_all) / LINE / blocks + 1);
    _tile_release();
}

static void tiles_multiply(const lf_multiply *p)
{
    assert(p->k >= 1 && p->k <= LF_KBLOCK && p->n >= 1 && p->n <= LF_STRIP && p->rows >= 1);
    uint32_t odd_w;
    memcpy(&odd_w, p->w, sizeof odd_w);
    if (!odd_w)
        multiply_by_tiles(p);
    for (int64_t row = 0; row < p->rows; row += GROUP) {
        const row_group g = group_at(p, row);
        for (int64_t i = 0; i < g.rows && odd_w; i += KERN_MR)
            multiply_rows(p, &g, i, g.rows - i < KERN_MR ? g.rows - i : KERN_MR);
        for (int64_t i = 0; i < g.rows && !odd_w; i++)
            if (g.odd >> i & 1)
                multiply_rows(p, &g, i, 1);
    }
}
