/* SPDX-License-Identifier: Apache-2.0 */
/* The product by multiply-adds: tiles of up to KERN_MR rows and KERN_NR columns that stay in registers for a run of K.
 * Included by kern_template.h. Contract: kern.h.
 *   x: [panels of up to KERN_MR rows][k][rows of the panel]; the rows are shared out evenly, since a tile of few rows
 *      keeps the machine less busy; as f32, or as bf16 in pairs, likewise with (k + 1) / 2 pairs in the place of k
 *   w: [panels of KERN_NR columns][k][KERN_NR], columns past n are 0; as f32, or as halves, which become f32 when they
 *      are read: f16 likewise; bf16 in pairs of neighbours in k, [panels][(k + 1) / 2][KERN_NR][2], so that a shift or
 *      a mask of 32 bits makes an f32 of either
 * An element is summed in order of k from 0 (of a pair of bf16 the second comes first), then added to c, then the bias
 * to it: the same for every number of rows.
 *
 * Pairs of x and w meet in vdpbf16ps, which is two multiply-adds of f32, the second element's first, each rounded once:
 * the same bits, but that it takes denormals for 0 and gives 0 for them. No number below 2^-56 but 0 in either operand
 * means that no sum of products is denormal: all are multiples of 2^-126. The last line of a packed run of bf16 says
 * whether that is so; where it is not, the pairs of x become f32. */
enum { LINE_BYTES = 64, LINE = LINE_BYTES / sizeof(float) };

/* What weights of a type are kept as: what the machine converts for nothing. */
#define W_TYPES {[LF_F32] = LF_F32, [LF_F16] = HAS_F16 ? LF_F16 : LF_F32, [LF_BF16] = LF_BF16}

static inline int64_t panel_bytes(const lf_dtype type, int64_t k)
{
    return type == LF_F32    ? k * KERN_NR * (int64_t)sizeof(float)
           : type == LF_BF16 ? (k + 1) / 2 * KERN_NR * (int64_t)sizeof(uint32_t)
                             : k * KERN_NR * (int64_t)sizeof(uint16_t);
}

static int64_t w_floats(lf_dtype type, int64_t n, int64_t k)
{
    const int64_t bytes = (n + KERN_NR - 1) / KERN_NR * panel_bytes(type, k);
    return (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE + (type == LF_BF16 ? LINE : 0);
}

static int64_t x_floats(lf_dtype type, int64_t rows, int64_t k)
{
    const int64_t floats = rows * (type == LF_BF16 ? (k + 1) / 2 : k);
    return (floats + LINE - 1) / LINE * LINE + (type == LF_BF16 ? LINE : 0);
}

/* ---- numbers whose products may be denormal ---- */

/* Are any of n? Any alignment. */
static bool are_tiny(int64_t n, const void *from)
{
    enum { LEAST = (127 - 56) << 7, MAGNITUDE = 0x7fff };
    uint16_t found = 0;
    for (int64_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, (const char *)from + i * (int64_t)sizeof bits, sizeof bits);
        found |= (uint16_t)((uint16_t)((bits & MAGNITUDE) - 1) < LEAST - 1);
    }
    return found;
}

/* Of a run of `floats` floats. */
static void say_tiny(float *run, int64_t floats, bool tiny)
{
    run[floats - LINE] = tiny;
}

static bool says_tiny(const float *run, int64_t floats)
{
    return run[floats - LINE] != 0;
}

/* ---- packing ---- */

/* Words of 32 bits: an f32, or two halves, at any address. */
typedef uint32_t quad __attribute__((vector_size(4 * sizeof(uint32_t)), aligned(1), may_alias));
#define PICK(u, v, i, j, k, l) __builtin_shufflevector(u, v, i, j, k, l)

/* Four rows of four words, `pitch` bytes apart -> four columns: word i of row `row` to to[i * width + row]. */
static inline void turn_four(const char *from, int64_t pitch, int64_t width, float *to)
{
    const quad a = *(const quad *)from, b = *(const quad *)(from + pitch);
    const quad c = *(const quad *)(from + 2 * pitch), d = *(const quad *)(from + 3 * pitch);
    const quad ab = PICK(a, b, 0, 4, 1, 5), cd = PICK(c, d, 0, 4, 1, 5);
    const quad ab2 = PICK(a, b, 2, 6, 3, 7), cd2 = PICK(c, d, 2, 6, 3, 7);
    *(quad *)to = PICK(ab, cd, 0, 1, 4, 5);
    *(quad *)(to + width) = PICK(ab, cd, 2, 3, 6, 7);
    *(quad *)(to + 2 * width) = PICK(ab2, cd2, 0, 1, 4, 5);
    *(quad *)(to + 3 * width) = PICK(ab2, cd2, 2, 3, 6, 7);
}

/* The same of m rows of k words. The m rows after these are asked for: a run of a row is too short for the machine to
 * guess that another follows. */
static void turn(int64_t m, int64_t k, const void *rows, int64_t pitch, int64_t width, float *to)
{
    enum { WORD = sizeof(uint32_t) };
    const char *from = rows;
    const int64_t whole = m < 4 ? 0 : k / 4 * 4;
    for (int64_t next = 0; whole > 0 && next < m; next += 4) {
        /* the last four may be among those before: cheaper than one by one */
        const int64_t row = next < m - 4 ? next : m - 4;
        for (int64_t i = 0; i < whole; i += 4) {
            if (i % LINE == 0)
                for (int64_t r = row + m; r < row + m + 4; r++)
                    __builtin_prefetch(from + r * pitch + i * WORD, 0, 3);
            turn_four(from + row * pitch + i * WORD, pitch, width, to + i * width + row);
        }
    }
    for (int64_t r = 0; r < m; r++)
        for (int64_t i = whole; i < k; i++)
            memcpy(to + i * width + r, from + r * pitch + i * WORD, WORD);
}

/* One panel of m columns. from: its first column's first element, the next column, or the next of k where is_kn, ld
 * elements further on. */
static void pack_f32(int64_t m, int64_t k, const float *from, int64_t ld, bool is_kn, float *to)
{
    if (!is_kn)
        turn(m, k, from, ld * (int64_t)sizeof *from, KERN_NR, to);
    for (int64_t i = 0; is_kn && i < k; i++)
        memcpy(to + i * KERN_NR, from + i * ld, (size_t)m * sizeof *to);
}

static void pack_f16(int64_t m, int64_t k, const uint16_t *from, int64_t ld, bool is_kn, uint16_t *to)
{
    const int64_t along_m = is_kn ? 1 : ld, along_k = is_kn ? ld : 1;
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; j < m; j++)
            memcpy(to + i * KERN_NR + j, from + i * along_k + j * along_m, sizeof *to);
}

static void pack_bf16(int64_t m, int64_t k, const uint16_t *from, int64_t ld, bool is_kn, float *to)
{
    const int64_t pairs = k / 2, along_m = is_kn ? 1 : ld, along_k = is_kn ? ld : 1;
    if (!is_kn)
        turn(m, pairs, from, ld * (int64_t)sizeof *from, KERN_NR, to);
    for (int64_t i = is_kn ? 0 : pairs; i < (k + 1) / 2; i++)
        for (int64_t j = 0; j < m; j++) {
            uint16_t pair[2] = {0, 0};
            memcpy(pair, from + 2 * i * along_k + j * along_m, sizeof pair[0]);
            if (2 * i + 1 < k)
                memcpy(pair + 1, from + (2 * i + 1) * along_k + j * along_m, sizeof pair[1]);
            memcpy(to + i * KERN_NR + j, pair, sizeof pair);
        }
}

static void pack_w(lf_dtype type, int64_t n, int64_t k, const void *from, int64_t ld, bool is_kn, float *to)
{
    assert(k >= 1 && k <= LF_KBLOCK && n >= 1 && n <= LF_STRIP);
    const int64_t panel = panel_bytes(type, k), next = (is_kn ? 1 : ld) * (int64_t)lf_dtype_size(type);
    char *at = (char *)to;
    for (int64_t col = 0; col < n; col += KERN_NR, at += panel) {
        const int64_t m = n - col < KERN_NR ? n - col : KERN_NR;
        const void *first = (const char *)from + col * next;
        if (m < KERN_NR)
            memset(at, 0, (size_t)panel);
        if (type == LF_F32)
            pack_f32(m, k, first, ld, is_kn, (float *)(void *)at);
        else if (type == LF_F16)
            pack_f16(m, k, first, ld, is_kn, (uint16_t *)(void *)at);
        else
            pack_bf16(m, k, first, ld, is_kn, (float *)(void *)at);
    }
    if (type != LF_BF16)
        return;
    bool tiny = false;
    for (int64_t i = 0; i < (is_kn ? k : n); i++)
        tiny = are_tiny(is_kn ? n : k, (const uint16_t *)from + i * ld) || tiny;
    say_tiny(to, w_floats(type, n, k), tiny);
}

/* ---- a tile ---- */

/* What is multiplied: f32 with w of a type, or PAIRS of bf16 with each other, as words of 32 bits. */
typedef enum form { F32 = LF_F32, F16 = LF_F16, BF16 = LF_BF16, PAIRS = LF_DTYPES } form;

/* Bytes of a panel of w that a step takes: of k, or of PAIRS. */
#define STEP_BYTES(of) (KERN_NR * ((of) == F32 || (of) == PAIRS ? 4 : 2))

/* What is far away must be asked for long before, and a little at a time, or what the tile itself reads waits behind
 * it. Into the second-level cache what comes after many tiles, a quarter of a line a step; a whole line where tiles are
 * few. Into the first-level cache what comes next, where w is read once and reading it is all there is to wait for. */
typedef enum asking { ASK_NOTHING, ASK_FOR_LATER, ASK_FOR_SOON, ASK_FOR_NEXT } asking;
enum {
    LATER_BYTES = LINE_BYTES / 4, /* a step */
    SOON_BYTES = LINE_BYTES,
    FEW_TILES = 8,                /* cannot ask for all of the next panel at the slower pace */
    NEXT_BYTES = 16384,           /* ahead of b: under way while memory answers, and a third of an L1 */
    STEPS = 4,                    /* at a time, so that counting them costs little; LATER_BYTES of each are a line */
    MOST_PANELS = 4
};

/* Panels of w that a tile of so few rows has registers for. A machine reads several places at once faster than one:
 * four a quarter faster, for which it then needs not be asked. */
#define PANELS(rows) ((rows) * 4 <= KERN_MR ? 4 : (rows) * 2 <= KERN_MR ? 2 : 1)

/* What a tile is made of, but for a and b, and what it asks for. */
typedef struct tile_at {
    float *to;         /* [m][ldt] */
    int64_t ldt;
    const float *c;    /* [m][ldc], added; or NULL */
    int64_t ldc;
    const float *bias; /* [panels * KERN_NR], then; or NULL */
    int64_t apart;     /* bytes from one panel of b to the next */
    asking what;
    const char *ahead;
} tile_at;

/* Vector v of what step `step` from b on multiplies with. */
static inline __attribute__((always_inline)) vec column_at(const form of, const char *b, const int step, const int v)
{
    if (of == F32 || of == PAIRS)
        return *(const vec *)(const void *)(b + (step * KERN_NR + v * KERN_LANES) * (int)sizeof(float));
    if (of == F16)
        return vec_of_f16(*(const halves_anywhere *)(const void *)(b + (step * KERN_NR + v * KERN_LANES) *
                                                                           (int)sizeof(uint16_t)));
    const uvec pair = *(const uvec *)(const void *)(b + (step / 2 * KERN_NR + v * KERN_LANES) * (int)sizeof(uint32_t));
    return step % 2 ? (vec)(pair & 0xffff0000u) : (vec)(pair << 16);
}

/* A pair of x in every lane: bits, whatever float they are. */
static inline __attribute__((always_inline)) vec pair_at(const float *a)
{
    uint32_t bits;
    memcpy(&bits, a, sizeof bits);
    return (vec)(bits - (uvec){0});
}

/* Adds `steps` products to the sums of m rows with the columns of some panels, [m][panels][KERN_NV], and asks for what
 * lies at `ahead`. All but pointers and apart are numbers once this is inlined. */
static inline __attribute__((always_inline)) void steps_of_tile(const int m, const int panels, const form of,
                                                                const int steps, const asking what, const float *a,
                                                                const char *b, int64_t apart, const char *ahead,
                                                                vec *sum)
{
    const int step_bytes = STEP_BYTES(of);
    if (what == ASK_FOR_LATER)
        __builtin_prefetch(ahead, 0, 2);
    UNROLL
    for (int turn = 0; turn < steps; turn++) {
        const int step = of == BF16 && steps > 1 ? turn ^ 1 : turn;
        if (what == ASK_FOR_SOON)
            __builtin_prefetch(ahead + turn * SOON_BYTES, 0, 2);
        UNROLL
        for (int panel = 0; panel < panels; panel++) {
            vec column[KERN_NV];
            UNROLL
            for (int v = 0; v < KERN_NV; v++)
                column[v] = column_at(of, b + panel * apart, step, v);
            UNROLL
            for (int at = 0; at < step_bytes && what == ASK_FOR_NEXT; at += LINE_BYTES)
                __builtin_prefetch(ahead + panel * apart + turn * step_bytes + at, 0, 3);
            UNROLL
            for (int i = 0; i < m; i++) {
                const vec pair = of == PAIRS ? pair_at(a + step * m + i) : (vec){0};
                UNROLL
                for (int v = 0; v < KERN_NV; v++) {
                    vec *to = sum + (i * panels + panel) * KERN_NV + v;
                    if (of == PAIRS)
                        add_pair(pair, column[v], *to);
                    else
                        add_product(a + step * m + i, column[v], *to);
                }
            }
        }
    }
}

/* The same for k of them. */
static inline __attribute__((always_inline)) void run_of_tile(const int m, const int panels, const form of,
                                                              const asking what, int64_t k, const float *a,
                                                              const char *b, const tile_at *t, vec *sum)
{
    const int each = what == ASK_FOR_LATER ? LATER_BYTES : what == ASK_FOR_SOON ? SOON_BYTES : STEP_BYTES(of);
    const int unit = of == BF16 ? 2 : 1;
    const int64_t apart = t->apart;
    const char *ahead = t->ahead;
    for (; k >= STEPS; k -= STEPS, a += STEPS * m, b += STEPS * STEP_BYTES(of), ahead += STEPS * each)
        steps_of_tile(m, panels, of, STEPS, what, a, b, apart, ahead, sum);
    for (; k >= unit; k -= unit, a += unit * m, b += unit * STEP_BYTES(of))
        steps_of_tile(m, panels, of, unit, ASK_NOTHING, a, b, apart, NULL, sum);
    if (k > 0)
        steps_of_tile(m, panels, of, 1, ASK_NOTHING, a, b, apart, NULL, sum);
}

/* Several panels of halves end so soon that what the machine asks for by itself comes late: each asks for its own next
 * bytes, and before its end for those of the panel that takes its place. */
static inline __attribute__((always_inline)) void halves_of_panels(const int m, const form of, int64_t k,
                                                                   const float *a, const char *b, const tile_at *t,
                                                                   vec *sum)
{
    const int64_t shift = NEXT_BYTES / MOST_PANELS, rest = shift / STEP_BYTES(of);
    const int64_t here = k > rest ? (k - rest) / STEPS * STEPS : 0;
    tile_at at = *t;
    at.ahead = b + shift;
    run_of_tile(m, MOST_PANELS, of, ASK_FOR_NEXT, here, a, b, &at, sum);
    at.ahead += here * STEP_BYTES(of) + (MOST_PANELS - 1) * t->apart;
    run_of_tile(m, MOST_PANELS, of, ASK_FOR_NEXT, k - here, a + here * m, b + here * STEP_BYTES(of), &at, sum);
}

/* a: [k][m], b: panels; k: steps. */
static inline __attribute__((always_inline)) void tile(const int m, const int panels, const form of, int64_t k,
                                                       const float *a, const char *b, const tile_at *t)
{
    vec sum[KERN_MR * KERN_NV];
    UNROLL
    for (int i = 0; i < m * panels * KERN_NV; i++)
        sum[i] = (vec){0};
    if (panels == MOST_PANELS && of != F32)
        halves_of_panels(m, of, k, a, b, t, sum);
    else if (panels > 1) /* these ask for what comes next, or for nothing */
        run_of_tile(m, panels, of, panels < MOST_PANELS ? ASK_FOR_NEXT : ASK_NOTHING, k, a, b, t, sum);
    else
        switch (t->what) {
        case ASK_NOTHING: run_of_tile(m, 1, of, ASK_NOTHING, k, a, b, t, sum); break;
        case ASK_FOR_LATER: run_of_tile(m, 1, of, ASK_FOR_LATER, k, a, b, t, sum); break;
        case ASK_FOR_SOON: run_of_tile(m, 1, of, ASK_FOR_SOON, k, a, b, t, sum); break;
        case ASK_FOR_NEXT: run_of_tile(m, 1, of, ASK_FOR_NEXT, k, a, b, t, sum); break;
        }
    UNROLL
    for (int i = 0; i < m; i++) {
        UNROLL
        for (int v = 0; v < panels * KERN_NV; v++) {
            vec *at = sum + i * panels * KERN_NV + v;
            if (t->c)
                *at += load(t->c + i * t->ldc + v * KERN_LANES);
            if (t->bias)
                *at += load(t->bias + v * KERN_LANES);
            store(t->to + i * t->ldt + v * KERN_LANES, *at);
        }
    }
}

/* panels: 1 or PANELS(m) */
#define DEFINE_TILE_OF(of)                                                                                           \
    static void tile_of_##of(int64_t m, int64_t panels, int64_t k, const float *a, const char *b, const tile_at *t)  \
    {                                                                                                                \
        switch (m) {                                                                                                 \
            TILE(1, of) TILE(2, of) TILE(3, of) TILE(4, of) TILE(5, of) TILE(6, of) TILE(7, of) TILE(8, of)          \
            TILE(9, of) TILE(10, of) TILE(11, of) TILE(12, of) TILE(13, of) TILE(14, of) TILE(15, of) TILE(16, of)   \
        }                                                                                                            \
    }
#define TILE(rows, of)                                                                                               \
    case rows:                                                                                                       \
        if (rows <= KERN_MR && panels == 1)                                                                          \
            tile(rows, 1, of, k, a, b, t);                                                                           \
        else if (rows <= KERN_MR)                                                                                    \
            tile(rows, PANELS(rows), of, k, a, b, t);                                                                \
        return;
DEFINE_TILE_OF(F32)
DEFINE_TILE_OF(BF16)
/* What W_TYPES and has_pairs rule out is never asked for. */
#if HAS_F16
DEFINE_TILE_OF(F16)
#else
#define tile_of_F16 tile_of_F32
#endif
#if HAS_PAIRS
DEFINE_TILE_OF(PAIRS)
#else
#define tile_of_PAIRS tile_of_F32
#endif
#undef TILE

static void tile_of(form of, int64_t m, int64_t panels, int64_t k, const float *a, const char *b, const tile_at *t)
{
    switch (of) {
    case F32: tile_of_F32(m, panels, k, a, b, t); return;
    case F16: tile_of_F16(m, panels, k, a, b, t); return;
    case BF16: tile_of_BF16(m, panels, k, a, b, t); return;
    case PAIRS: tile_of_PAIRS(m, panels, k, a, b, t); return;
    }
}
_Static_assert(KERN_MR <= 16, "tile_of knows as many");

/* ---- all of a run ---- */

/* The first row of panel `panel`, of as few panels as can hold the rows. */
static int64_t first_of(int64_t rows, int64_t panel)
{
    const int64_t panels = (rows + KERN_MR - 1) / KERN_MR;
    return rows * panel / panels;
}

static void pack_x(lf_dtype type, int64_t rows, int64_t k, const void *x, int64_t ld, float *to)
{
    assert(k >= 1 && k <= LF_KBLOCK && rows >= 1 && (type == LF_F32 || type == LF_BF16));
    const char *from = x;
    const bool pairs = type == LF_BF16;
    const int64_t words = pairs ? (k + 1) / 2 : k, whole = pairs ? k / 2 : k, pitch = ld * (int64_t)lf_dtype_size(type);
    for (int64_t panel = 0, row = 0, end; row < rows; panel++, row = end) {
        end = first_of(rows, panel + 1);
        float *at = to + row * words;
        turn(end - row, whole, from + row * pitch, pitch, end - row, at);
        for (int64_t i = row; whole < words && i < end; i++) {
            uint16_t pair[2] = {0, 0};
            memcpy(pair, from + i * pitch + (k - 1) * (int64_t)sizeof *pair, sizeof *pair);
            memcpy(at + whole * (end - row) + i - row, pair, sizeof pair);
        }
    }
    if (!pairs)
        return;
    bool tiny = false;
    for (int64_t i = 0; i < rows; i++)
        tiny = are_tiny(k, from + i * pitch) || tiny;
    say_tiny(to, x_floats(type, rows, k), tiny);
}

/* Pairs of m rows -> [k][m] of f32. */
static void unpair(int64_t m, int64_t k, const float *pairs, float *to)
{
    for (int64_t i = 0; i < k; i++)
        for (int64_t row = 0; row < m; row++) {
            uint32_t word;
            memcpy(&word, pairs + i / 2 * m + row, sizeof word);
            word = i % 2 ? word & 0xffff0000u : word << 16;
            memcpy(to + i * m + row, &word, sizeof word);
        }
}

/* The bias of the columns from col on; where they end inside a panel, in `last`: [KERN_NR], 0 from there on. NULL:
 * none. */
static const float *bias_at(const lf_multiply *p, int64_t col, float *last)
{
    if (!p->bias || p->n - col >= KERN_NR)
        return p->bias ? p->bias + col : NULL;
    return memcpy(last, p->bias + col, (size_t)(p->n - col) * sizeof *last);
}

/* How a run is multiplied. */
typedef struct method {
    form of;
    bool unpair;     /* x first becomes f32, some rows at a time */
    int64_t steps;   /* of a tile */
    int64_t words;   /* of a row of packed x */
    int64_t panel;   /* bytes */
} method;

static method method_of(const lf_multiply *p)
{
    method how = {.of = (form)p->w_type, .steps = p->k, .words = p->k, .panel = panel_bytes(p->w_type, p->k)};
    if (p->x_type != LF_BF16)
        return how;
    assert(p->x_type == p->w_type);
    how.words = (p->k + 1) / 2;
    how.unpair = !HAS_PAIRS || says_tiny(p->x, x_floats(p->x_type, p->rows, p->k)) ||
                 says_tiny(p->w, w_floats(p->w_type, p->n, p->k));
    if (!how.unpair) {
        how.of = PAIRS;
        how.steps = how.words;
    }
    return how;
}

/* The part of what comes later that a tile asks for: first of the next panel of w, when that is done of the next run of
 * x. */
static const char *ask(const lf_multiply *p, const method *how, const char *next_panel, int64_t bytes,
                       int64_t *of_panel, int64_t *of_x)
{
    if (next_panel && *of_panel < how->panel) {
        *of_panel += bytes;
        return next_panel + *of_panel - bytes;
    }
    if (!p->next_x || *of_x >= p->rows * how->words * (int64_t)sizeof *p->next_x)
        return NULL;
    *of_x += bytes;
    return (const char *)p->next_x + *of_x - bytes;
}

/* One tile, or several beside each other. */
static void multiply_tile(const lf_multiply *p, const method *how, int64_t row, int64_t m, int64_t panels,
                          const char *w, const tile_at *t)
{
    const float *x = p->x + row * how->words;
    float room[LF_KBLOCK * KERN_MR];
    if (how->unpair) {
        unpair(m, p->k, x, room);
        x = room;
    }
    tile_of(how->of, m, panels, how->steps, x, w, t);
}

/* Rows of one tile: w is read once, and that is what takes the time. */
static void multiply_few(const lf_multiply *p, const method *how)
{
    float last[KERN_NR] = {0};
    for (int64_t col = 0, panels; col < p->n; col += panels * KERN_NR) {
        panels = col + PANELS(p->rows) * KERN_NR <= p->n ? PANELS(p->rows) : 1;
        const char *w = (const char *)p->w + col / KERN_NR * how->panel;
        const tile_at t = {p->to + col, p->ldt, p->c ? p->c + col : NULL, p->ldc, bias_at(p, col, last), how->panel,
                           ASK_FOR_NEXT, w + NEXT_BYTES / panels};
        multiply_tile(p, how, 0, p->rows, panels, w, &t);
    }
}

/* A panel of w meets all rows before the next does. */
static void multiply(const lf_multiply *p)
{
    assert(p->k >= 1 && p->k <= LF_KBLOCK && p->n >= 1 && p->n <= LF_STRIP && p->rows >= 1);
    const method how = method_of(p);
    if (p->rows <= KERN_MR) {
        multiply_few(p, &how);
        return;
    }
    const asking pace = p->rows <= FEW_TILES * KERN_MR ? ASK_FOR_SOON : ASK_FOR_LATER;
    const int64_t asked = how.steps * (pace == ASK_FOR_SOON ? SOON_BYTES : LATER_BYTES);
    int64_t of_x = 0;
    float last[KERN_NR] = {0};
    for (int64_t col = 0; col < p->n; col += KERN_NR) {
        const char *w = (const char *)p->w + col / KERN_NR * how.panel,
                   *next_panel = col + KERN_NR < p->n ? w + how.panel : (const char *)p->next_w;
        const float *bias = bias_at(p, col, last);
        int64_t of_panel = 0;
        for (int64_t panel = 0, row = 0, end; row < p->rows; panel++, row = end) {
            end = first_of(p->rows, panel + 1);
            const char *ahead = ask(p, &how, next_panel, asked, &of_panel, &of_x);
            const tile_at t = {
                p->to + row * p->ldt + col, p->ldt, p->c ? p->c + row * p->ldc + col : NULL, p->ldc, bias, 0,
                ahead ? pace : ASK_NOTHING, ahead};
            multiply_tile(p, &how, row, end - row, 1, w, &t);
        }
    }
}
