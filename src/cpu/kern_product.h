/* SPDX-License-Identifier: Apache-2.0 */
/* The product by multiply-adds: tiles of up to KERN_MR rows and KERN_NR columns that stay in registers for a run of K.
 * Included by kern_template.h. Contract: kern.h.
 *   x: [panels of up to KERN_MR rows][k][rows of the panel]; the rows are shared out evenly, since a tile of few rows
 *      keeps the machine less busy
 *   w: [panels of KERN_NR columns][k][KERN_NR], columns past n are 0
 * An element is summed in order of k from 0, then added to c, then the bias to it: the same for every number of
 * rows. */
enum { LINE = 64 / sizeof(float) };

static int64_t w_floats(int64_t n, int64_t k)
{
    return ((n + KERN_NR - 1) / KERN_NR * KERN_NR * k + LINE - 1) / LINE * LINE;
}

/* ---- packing ---- */

typedef float quad __attribute__((vector_size(4 * sizeof(float)), aligned(sizeof(float)), may_alias));
#define PICK(u, v, i, j, k, l) __builtin_shufflevector(u, v, i, j, k, l)

/* Four rows of four -> four columns: to[i * width + row] = from[row * ld + i]. */
static inline void turn_four(const float *from, int64_t ld, int64_t width, float *to)
{
    const quad a = *(const quad *)from, b = *(const quad *)(from + ld);
    const quad c = *(const quad *)(from + 2 * ld), d = *(const quad *)(from + 3 * ld);
    const quad ab = PICK(a, b, 0, 4, 1, 5), cd = PICK(c, d, 0, 4, 1, 5);
    const quad ab2 = PICK(a, b, 2, 6, 3, 7), cd2 = PICK(c, d, 2, 6, 3, 7);
    *(quad *)to = PICK(ab, cd, 0, 1, 4, 5);
    *(quad *)(to + width) = PICK(ab, cd, 2, 3, 6, 7);
    *(quad *)(to + 2 * width) = PICK(ab2, cd2, 0, 1, 4, 5);
    *(quad *)(to + 3 * width) = PICK(ab2, cd2, 2, 3, 6, 7);
}

/* to[i * width + row] = from[row * ld + i] for row < m, i < k. The m rows after these are asked for: a run of a row is
 * too short for the machine to guess that another follows. */
static void turn(int64_t m, int64_t k, const float *from, int64_t ld, int64_t width, float *to)
{
    const int64_t whole = m < 4 ? 0 : k / 4 * 4;
    for (int64_t next = 0; whole > 0 && next < m; next += 4) {
        /* the last four may be among those before: cheaper than one by one */
        const int64_t row = next < m - 4 ? next : m - 4;
        for (int64_t i = 0; i < whole; i += 4) {
            if (i % LINE == 0)
                for (int64_t r = row + m; r < row + m + 4; r++)
                    __builtin_prefetch(from + r * ld + i, 0, 3);
            turn_four(from + row * ld + i, ld, width, to + i * width + row);
        }
    }
    for (int64_t r = 0; r < m; r++)
        for (int64_t i = whole; i < k; i++)
            to[i * width + r] = from[r * ld + i];
}

static void pack_w(int64_t n, int64_t k, const float *from, int64_t ld, bool is_kn, float *to)
{
    assert(k >= 1 && k <= LF_KBLOCK && n >= 1 && n <= LF_STRIP);
    for (int64_t col = 0; col < n; col += KERN_NR, to += k * KERN_NR) {
        const int64_t m = n - col < KERN_NR ? n - col : KERN_NR;
        if (is_kn)
            for (int64_t i = 0; i < k; i++)
                memcpy(to + i * KERN_NR, from + i * ld + col, (size_t)m * sizeof *to);
        else
            turn(m, k, from + col * ld, ld, KERN_NR, to);
        for (int64_t i = 0; m < KERN_NR && i < k; i++)
            memset(to + i * KERN_NR + m, 0, (size_t)(KERN_NR - m) * sizeof *to);
    }
}

/* ---- a tile ---- */

/* What is far away must be asked for long before, and a little at a time, or what the tile itself reads waits behind
 * it. Into the second-level cache what comes after many tiles, a quarter of a line a step; a whole line where tiles are
 * few. Into the first-level cache what comes next, where w is read once and reading it is all there is to wait for. */
typedef enum asking { ASK_NOTHING, ASK_FOR_LATER, ASK_FOR_SOON, ASK_FOR_NEXT } asking;
enum {
    LATER_FLOATS = LINE / 4, /* a step */
    SOON_FLOATS = LINE,
    FEW_TILES = 8,           /* cannot ask for all of the next panel at the slower pace */
    NEXT_FLOATS = 4096,      /* ahead of b: 16 KB are under way while memory answers, and a third of an L1 */
    STEPS = 4,               /* at a time, so that counting them costs little; LATER_FLOATS of each are a line */
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
    int64_t apart;     /* floats from one panel of b to the next */
    asking what;
    const float *ahead;
} tile_at;

/* Adds `steps` products to the sums of m rows with the columns of some panels, [m][panels][KERN_NV], and asks for what
 * lies at `ahead`. All but pointers and apart are numbers once this is inlined. */
static inline __attribute__((always_inline)) void steps_of_tile(const int m, const int panels, const int steps,
                                                                const asking what, const float *a, const float *b,
                                                                int64_t apart, const float *ahead, vec *sum)
{
    if (what == ASK_FOR_LATER)
        __builtin_prefetch(ahead, 0, 2);
    UNROLL
    for (int step = 0; step < steps; step++, a += m, b += KERN_NR) {
        if (what == ASK_FOR_SOON)
            __builtin_prefetch(ahead + step * SOON_FLOATS, 0, 2);
        UNROLL
        for (int panel = 0; panel < panels; panel++) {
            vec column[KERN_NV];
            UNROLL
            for (int v = 0; v < KERN_NV; v++)
                column[v] = *(const vec *)(b + panel * apart + v * KERN_LANES);
            UNROLL
            for (int at = 0; at < KERN_NR && what == ASK_FOR_NEXT; at += LINE)
                __builtin_prefetch(ahead + panel * apart + step * KERN_NR + at, 0, 3);
            UNROLL
            for (int i = 0; i < m; i++) {
                UNROLL
                for (int v = 0; v < KERN_NV; v++)
                    add_product(a + i, column[v], sum[(i * panels + panel) * KERN_NV + v]);
            }
        }
    }
}

/* The same for k of them. */
static inline __attribute__((always_inline)) void run_of_tile(const int m, const int panels, const asking what,
                                                              int64_t k, const float *a, const float *b,
                                                              const tile_at *t, vec *sum)
{
    const int each = what == ASK_FOR_LATER ? LATER_FLOATS : what == ASK_FOR_SOON ? SOON_FLOATS : KERN_NR;
    const int64_t apart = t->apart;
    const float *ahead = t->ahead;
    for (; k >= STEPS; k -= STEPS, a += STEPS * m, b += STEPS * KERN_NR, ahead += STEPS * each)
        steps_of_tile(m, panels, STEPS, what, a, b, apart, ahead, sum);
    for (; k > 0; k--, a += m, b += KERN_NR)
        steps_of_tile(m, panels, 1, ASK_NOTHING, a, b, apart, NULL, sum);
}

/* a: [k][m], b: [panels][k][KERN_NR]. */
static inline __attribute__((always_inline)) void tile(const int m, const int panels, int64_t k, const float *a,
                                                       const float *b, const tile_at *t)
{
    vec sum[KERN_MR * KERN_NV];
    UNROLL
    for (int i = 0; i < m * panels * KERN_NV; i++)
        sum[i] = (vec){0};
    if (panels > 1) /* these ask for what comes next, or for nothing */
        run_of_tile(m, panels, panels < MOST_PANELS ? ASK_FOR_NEXT : ASK_NOTHING, k, a, b, t, sum);
    else
        switch (t->what) {
        case ASK_NOTHING: run_of_tile(m, 1, ASK_NOTHING, k, a, b, t, sum); break;
        case ASK_FOR_LATER: run_of_tile(m, 1, ASK_FOR_LATER, k, a, b, t, sum); break;
        case ASK_FOR_SOON: run_of_tile(m, 1, ASK_FOR_SOON, k, a, b, t, sum); break;
        case ASK_FOR_NEXT: run_of_tile(m, 1, ASK_FOR_NEXT, k, a, b, t, sum); break;
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
static void tile_of(int64_t m, int64_t panels, int64_t k, const float *a, const float *b, const tile_at *t)
{
    switch (m) {
#define TILE(rows)                                                                                                   \
    case rows:                                                                                                       \
        if (rows <= KERN_MR && panels == 1)                                                                          \
            tile(rows, 1, k, a, b, t);                                                                               \
        else if (rows <= KERN_MR)                                                                                    \
            tile(rows, PANELS(rows), k, a, b, t);                                                                    \
        return;
        TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6) TILE(7) TILE(8)
        TILE(9) TILE(10) TILE(11) TILE(12) TILE(13) TILE(14) TILE(15) TILE(16)
#undef TILE
    }
}
_Static_assert(KERN_MR <= 16, "tile_of knows as many");

/* ---- all of a run ---- */

static int64_t x_floats(int64_t rows, int64_t k)
{
    return (rows * k + LINE - 1) / LINE * LINE;
}

/* The first row of panel `panel`, of as few panels as can hold the rows. */
static int64_t first_of(int64_t rows, int64_t panel)
{
    const int64_t panels = (rows + KERN_MR - 1) / KERN_MR;
    return rows * panel / panels;
}

static void pack_x(int64_t rows, int64_t k, const float *from, int64_t ld, float *to)
{
    assert(k >= 1 && k <= LF_KBLOCK && rows >= 1);
    for (int64_t panel = 0, row = 0, end; row < rows; panel++, row = end) {
        end = first_of(rows, panel + 1);
        turn(end - row, k, from + row * ld, ld, end - row, to + row * k);
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

/* The part of what comes later that a tile asks for: first of the next panel of w, when that is done of the next run of
 * x. */
static const float *ask(const lf_multiply *p, const float *next_panel, int64_t floats, int64_t *of_panel, int64_t *of_x)
{
    const int64_t panel_floats = p->k * KERN_NR;
    if (next_panel && *of_panel < panel_floats) {
        *of_panel += floats;
        return next_panel + *of_panel - floats;
    }
    if (!p->next_x || *of_x >= p->rows * p->k)
        return NULL;
    *of_x += floats;
    return p->next_x + *of_x - floats;
}

/* Rows of one tile: w is read once, and that is what takes the time. */
static void multiply_few(const lf_multiply *p)
{
    const int64_t panel_floats = p->k * KERN_NR;
    float last[KERN_NR] = {0};
    for (int64_t col = 0, panels; col < p->n; col += panels * KERN_NR) {
        panels = col + PANELS(p->rows) * KERN_NR <= p->n ? PANELS(p->rows) : 1;
        const float *w = p->w + col * p->k;
        const tile_at t = {p->to + col, p->ldt, p->c ? p->c + col : NULL, p->ldc, bias_at(p, col, last), panel_floats,
                           ASK_FOR_NEXT, w + NEXT_FLOATS / panels};
        tile_of(p->rows, panels, p->k, p->x, w, &t);
    }
}

/* A panel of w meets all rows before the next does. */
static void multiply(const lf_multiply *p)
{
    assert(p->k >= 1 && p->k <= LF_KBLOCK && p->n >= 1 && p->n <= LF_STRIP && p->rows >= 1);
    if (p->rows <= KERN_MR) {
        multiply_few(p);
        return;
    }
    const int64_t panel_floats = p->k * KERN_NR;
    const asking pace = p->rows <= FEW_TILES * KERN_MR ? ASK_FOR_SOON : ASK_FOR_LATER;
    int64_t of_x = 0;
    float last[KERN_NR] = {0};
    for (int64_t col = 0; col < p->n; col += KERN_NR) {
        const float *w = p->w + col * p->k, *next_panel = col + KERN_NR < p->n ? w + panel_floats : p->next_w;
        const float *bias = bias_at(p, col, last);
        int64_t of_panel = 0;
        for (int64_t panel = 0, row = 0, end; row < p->rows; panel++, row = end) {
            end = first_of(p->rows, panel + 1);
            const float *ahead =
                ask(p, next_panel, p->k * (pace == ASK_FOR_SOON ? SOON_FLOATS : LATER_FLOATS), &of_panel, &of_x);
            const tile_at t = {
                p->to + row * p->ldt + col, p->ldt, p->c ? p->c + row * p->ldc + col : NULL, p->ldc, bias, 0,
                ahead ? pace : ASK_NOTHING, ahead};
            tile_of(end - row, 1, p->k, p->x + row * p->k, w, &t);
        }
    }
}
