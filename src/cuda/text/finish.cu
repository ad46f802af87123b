// SPDX-License-Identifier: Apache-2.0
// What becomes of a product's sums while they are in registers, as tensor cores leave them: a thread holds two rows,
// eight apart, and in each neighbouring pairs of columns, eight apart; a quad of lanes holds a row. Partials of
// statistics are of 128 columns for every kernel, so that a row's bits do not depend on which one is taken for how many
// rows.

//
// Two products of one x are made as one, whose columns come by turns, BY_TURNS of each: the pairs of columns that a
// thread holds are of one and of the other, and it has the same columns of both. Columns are then the tile's, which are
// the product's, or y's, of which there are half as many. Partials are of 128 of the tile's.

enum { PARTIAL = 128, HALF = 64 }; // HALF: sums of a thread in a partial's columns
static_assert(BY_TURNS == 8, "a thread's pairs of columns are eight apart");

// Of the tile's columns: all there are; of y in so many; how many of y's the sums 4 j on are right of the sums 0 on.
template <class G> struct Wide {
    enum { N = G::PRODUCTS == 1 ? (int)G::N : (G::N + BY_TURNS - 1) / BY_TURNS * (BY_TURNS * G::PRODUCTS) };
};
template <class G> __device__ constexpr int of_each(int columns) { return columns / G::PRODUCTS; }
template <class G> __device__ constexpr int right_by(int j) { return j / G::PRODUCTS * 8; }

// y of fewer columns than a partial has: no code for those that are not there. Is there a column `right` of the
// partial's first; parts of them.
template <class G> __device__ constexpr bool fills_partials() { return G::N % of_each<G>(PARTIAL) == 0; }
template <class G> __device__ constexpr bool is_within(int right)
{
    return G::N >= of_each<G>(PARTIAL) || right < G::N;
}
template <class G> __device__ constexpr int parts()
{
    constexpr int part = of_each<G>(2 * G::PART);
    return G::N >= of_each<G>(PARTIAL) ? HALF / G::PART : (G::N + part - 1) / part;
}

// Where much is done with each sum, they are taken PART at a time: code for all of a thread's at once would not stay in
// the instruction cache, and would take seconds to compile. Registers have no index, so there is a piece of code that
// moves each part, and one that does the work.
template <int PART, int SUMS, int P = 0>
__device__ __forceinline__ void take_part(float (&part)[PART], const float (&v)[SUMS], int which)
{
    if (which == P || P == SUMS / PART - 1) {
        asm volatile(""); // keeps this a branch: choosing would take an instruction for each sum and part
#pragma unroll
        for (int i = 0; i < PART; ++i)
            part[i] = v[P * PART + i];
    } else if constexpr (P < SUMS / PART - 1) {
        take_part<PART, SUMS, P + 1>(part, v, which);
    }
}
template <int PART, int SUMS, int P = 0>
__device__ __forceinline__ void put_part(float (&v)[SUMS], const float (&part)[PART], int which)
{
    if (which == P || P == SUMS / PART - 1) {
        asm volatile(""); // likewise
#pragma unroll
        for (int i = 0; i < PART; ++i)
            v[P * PART + i] = part[i];
    } else if constexpr (P < SUMS / PART - 1) {
        put_part<PART, SUMS, P + 1>(v, part, which);
    }
}

// The first BY sums go behind the others. More is moved than by take_part and put_part, by less code.
template <int BY, int SUMS> __device__ __forceinline__ void rotate(float (&v)[SUMS])
{
    float first[BY];
#pragma unroll
    for (int i = 0; i < BY; ++i)
        first[i] = v[i];
#pragma unroll
    for (int i = 0; i < SUMS - BY; ++i)
        v[i] = v[i + BY];
#pragma unroll
    for (int i = 0; i < BY; ++i)
        v[SUMS - BY + i] = first[i];
}

// The second half takes the place of the first, which is done with.
template <int SUMS> __device__ __forceinline__ void move_up(float (&v)[SUMS])
{
#pragma unroll
    for (int i = 0; i < SUMS / 2; ++i)
        v[i] = v[SUMS / 2 + i];
}

// The first statistic over the elements of a thread's two rows in a partial's columns, v[AT..AT + HALF), in order of
// column; a quad of lanes holds a row. here(j, w): is there such a column?
template <class M> struct quad_fold {
    template <int AT, int SUMS, class Here>
    static __device__ __forceinline__ void of(const float (&v)[SUMS], Here here, M (&s)[2])
    {
        s[0].begin(), s[1].begin();
#pragma unroll
        for (int i = 0; i < HALF; ++i)
            if (here(i / 4, i % 2))
                s[i / 2 % 2].put(v[AT + i]);
        s[0] = join_lanes(s[0], 4), s[1] = join_lanes(s[1], 4);
    }
};

// + 0: no -0, whether sums began with 0 or with a product.
template <class G> __device__ __forceinline__ float unscaled(float v, float row, float col)
{
    return G::SCALED ? fmaf(v, row, 0.0f) * col : v;
}

// A pair of neighbouring columns of a row through the phase's steps. here: nothing is stored for a row that is not; row
// is then another that is.
template <class G>
__device__ __forceinline__ void finish_pair(const typename G::A &a, float &v0, float &v1, i64 row, i64 rows, bool here,
                                            int col, float unscale, const float (&s)[2], typename G::Rest &rest)
{
    if (G::N % 2 == 0) {
        float p[2] = {unscaled<G>(v0, unscale, s[0]), unscaled<G>(v1, unscale, s[1])};
        G::template element<2>(a, row, rows, here, col, p, rest);
        v0 = p[0], v1 = p[1];
    } else {
        float p[1] = {unscaled<G>(v0, unscale, s[0])}, q[1] = {unscaled<G>(v1, unscale, s[1])};
        G::template element<1>(a, row, rows, here, col, p, rest);
        if (col + 1 < G::N)
            G::template element<1>(a, row, rows, here, col + 1, q, rest);
        v0 = p[0], v1 = q[0];
    }
}

// The same of two products, whose sums and columns' scales stand one behind the other; what the steps leave is in v[0]
// and v[1].
template <class G>
__device__ __forceinline__ void finish_pairs(const typename G::A &a, float (&v)[2 * G::PRODUCTS], i64 row, i64 rows,
                                             bool here, int col, float unscale, const float (&s)[2 * G::PRODUCTS],
                                             typename G::Rest &rest)
{
    constexpr int W = G::N % 2 == 0 ? 2 : 1;
    float p[2 / W][W * G::PRODUCTS];
#pragma unroll
    for (int i = 0; i < 2 * G::PRODUCTS; ++i)
        p[i % 2 / W][i / 2 * W + i % W] = unscaled<G>(v[i], unscale, s[i]);
    G::template element<W>(a, row, rows, here, col, p[0], rest);
    if constexpr (W == 1)
        if (col + 1 < G::N)
            G::template element<W>(a, row, rows, here, col + 1, p[1], rest);
    v[0] = p[0][0], v[1] = p[2 / W - 1][W - 1];
}

// The statistics of a thread's two rows over a partial's columns: the first from what the steps left in v, the others
// as they were fed.
template <class G, int AT, int SUMS>
__device__ __forceinline__ void finish_stats(const typename G::A &a, const float (&v)[SUMS], i64 row, i64 rows, int col,
                                             int partial, typename G::Rest (&rest)[2])
{
    typename G::First first[2];
    quad_fold<typename G::First>::template of<AT>(
        v,
        [&](int j, int w) {
            const int right = right_by<G>(j);
            return j % G::PRODUCTS == 0 && (fills_partials<G>() || (is_within<G>(right) && col + right + w < G::N));
        },
        first);
#pragma unroll
    for (int which = 0; which < 2; ++which) {
        rest[which].join_lanes(4);
        if (threadIdx.x % 4 == 0 && row + 8 * which < rows)
            G::end(a, row + 8 * which, partial, (Wide<G>::N + PARTIAL - 1) / PARTIAL, first[which], rest[which]);
    }
}

// A product that is long beside its steps, of which nothing is left in registers: both halves of a thread's sums go
// through the same code.
template <class G> __device__ constexpr bool is_by_halves() { return G::LONG && G::PART == HALF && !G::HELD; }

// Statistics are fed from parts that go round where the product is so long that moving is not noticed and all parts are
// there (others would not come round): one piece of code for both halves. Elsewhere parts stay where they are.
template <class G> __device__ constexpr bool is_turned()
{
    return G::PART < HALF && G::LONG && G::STATS > 0 && G::N >= of_each<G>(PARTIAL);
}

// Steps that end with the element, or with a run of elements that lies within a part, take a part through all of it.
template <class G> __device__ constexpr bool is_straight() { return G::STATS == 0 && !(G::HELD && G::WAITS); }

// v[i] on: a pair of columns of both rows, c and the next; of two products first one's and then the other's.
template <class G, int SUMS>
__device__ __forceinline__ void finish_both_rows(const typename G::A &a, float (&v)[SUMS], int i, i64 row, i64 rows,
                                                 int c, const float (&unscale)[2], typename G::Rest (&rest)[2])
{
    float s[2 * G::PRODUCTS];
    const int at = c + c / BY_TURNS * (BY_TURNS * (G::PRODUCTS - 1));
#pragma unroll
    for (int k = 0; k < G::PRODUCTS; ++k) {
        s[2 * k] = s[2 * k + 1] = 1.0f;
        if (G::SCALED)
            load<true, true>(*(float(*)[2])(s + 2 * k), G::w_unscale(a) + at + k * BY_TURNS);
    }
#pragma unroll
    for (int which = 0; which < 2; ++which) {
        float p[2 * G::PRODUCTS];
#pragma unroll
        for (int k = 0; k < 2 * G::PRODUCTS; ++k)
            p[k] = v[i + k / 2 * 4 + 2 * which + k % 2];
        finish_pairs<G>(a, p, min(row + 8 * which, rows - 1), rows, row + 8 * which < rows, c, unscale[which], s,
                        rest[which]);
        v[i + 2 * which] = p[0], v[i + 2 * which + 1] = p[1];
    }
}

// v[AT..AT + PART): columns col on of two rows.
template <class G, int AT, int PART, int SUMS>
__device__ __forceinline__ void finish_part(const typename G::A &a, float (&v)[SUMS], i64 row, i64 rows, int col,
                                            const float (&unscale)[2], typename G::Rest (&rest)[2])
{
#pragma unroll
    // no branch in here where N fills tiles: loads can go ahead of what is done with them, and serve both rows
    for (int j = 0; j < PART / 4; j += G::PRODUCTS) {
        const int c = col + right_by<G>(j), i = AT + 4 * j;
        if (!fills_partials<G>() && (!is_within<G>(right_by<G>(j)) || c >= G::N))
            continue;
        if constexpr (G::PRODUCTS > 1) {
            finish_both_rows<G>(a, v, i, row, rows, c, unscale, rest);
        } else {
            float s[2] = {1.0f, 1.0f};
            if (G::SCALED)
                load<true, G::N % 2 == 0>(s, G::w_unscale(a) + c);
#pragma unroll
            for (int which = 0; which < 2; ++which)
                finish_pair<G>(a, v[i + 2 * which], v[i + 2 * which + 1], min(row + 8 * which, rows - 1), rows,
                               row + 8 * which < rows, c, unscale[which], s, rest[which]);
        }
    }
}
template <class G, int AT, int PART, int SUMS>
__device__ __forceinline__ void later_part(const typename G::A &a, const float (&v)[SUMS], i64 row, i64 rows, int col,
                                           typename G::Known (&known)[2]);

// The columns of one partial. A thread holds two rows, eight apart; neighbouring pairs of columns, eight apart.
// BY_PARTS: of half `half` of the sums; the halves have changed places after it where they are turned, or the second is
// in the first's. Otherwise v[AT] on.
template <class G, int AT, bool BY_PARTS, int SUMS>
__device__ __forceinline__ void finish_half(const typename G::A &a, float (&v)[SUMS], i64 row, i64 rows, int col,
                                            int partial, const float (&unscale)[2], int half)
{
    constexpr int PARTS = HALF / G::PART;
    constexpr bool TURNED = BY_PARTS && is_turned<G>(), STAYS = BY_PARTS && PARTS > 1 && !TURNED;
    typename G::Rest rest[2];
    rest[0].begin(), rest[1].begin();
    if constexpr (TURNED) {
#pragma unroll 1
        for (int p = 0; p < PARTS; ++p) {
            finish_part<G, 0, G::PART>(a, v, row, rows, col + of_each<G>(2 * G::PART) * p, unscale, rest);
            rotate<G::PART>(v);
        }
    } else if constexpr (STAYS) {
#pragma unroll 1
        for (int p = 0; p < parts<G>(); ++p) {
            float part[G::PART];
            const int which = half * PARTS + p, c = col + of_each<G>(2 * G::PART) * p;
            take_part(part, v, which);
            finish_part<G, 0, G::PART>(a, part, row, rows, c, unscale, rest);
            if constexpr (G::HELD && is_straight<G>()) {
                typename G::Known known[2];
                later_part<G, 0, G::PART>(a, part, row, rows, c, known);
            } else if constexpr (G::HELD || G::STATS > 0) {
                put_part(v, part, which);
            }
        }
    } else {
        finish_part<G, AT, HALF>(a, v, row, rows, col, unscale, rest);
    }
    if constexpr (G::STATS > 0) {
        if (!STAYS || SUMS == HALF || half == 0)
            finish_stats<G, TURNED ? SUMS - HALF : AT>(a, v, row, rows, col, partial, rest);
        else // the second half stays where it is; which half it is is known at run time
            finish_stats<G, SUMS - HALF>(a, v, row, rows, col, partial, rest);
    }
    if constexpr (BY_PARTS && PARTS == 1 && SUMS > HALF)
        move_up(v);
}

// ---- a phase that goes on with what the product's phase left in registers ----

// A statistic of a run of 8 STEPS columns of one row, in a quad of lanes: v[AT + 4j] and its neighbour.
template <class M> struct quad_run {
    template <int AT, int STEPS, int SUMS> static __device__ __forceinline__ M of(const float (&v)[SUMS])
    {
        M s;
        s.begin();
#pragma unroll
        for (int i = 0; i < 2 * STEPS; ++i)
            s.put(v[AT + 4 * (i / 2) + i % 2]);
        return join_lanes(s, 4);
    }
};

template <class G>
__device__ __forceinline__ void later_pair(const typename G::A &a, float v0, float v1, i64 row, i64 rows, bool here,
                                           int col, const typename G::Known &known)
{
    if (G::N % 2 == 0) {
        float p[2] = {v0, v1};
        G::template later<2>(a, row, rows, here, col, p, known);
    } else {
        float p[1] = {v0}, q[1] = {v1};
        G::template later<1>(a, row, rows, here, col, p, known);
        if (col + 1 < G::N)
            G::template later<1>(a, row, rows, here, col + 1, q, known);
    }
}

// One run of columns of a part, or all of a part where there are no runs: v[AT] on.
template <class G, int AT, int STEPS, int SUMS>
__device__ __forceinline__ void later_run(const typename G::A &a, const float (&v)[SUMS], i64 row, i64 rows, int col,
                                          typename G::Known (&known)[2])
{
    if constexpr (G::RUN > 0) {
        G::run(quad_run<typename G::Run>::template of<AT, STEPS>(v), known[0]);
        G::run(quad_run<typename G::Run>::template of<AT + 2, STEPS>(v), known[1]);
    }
#pragma unroll
    for (int j = 0; j < STEPS; ++j)
        if (G::N % PARTIAL == 0 || (is_within<G>(8 * j) && col + 8 * j < G::N))
#pragma unroll
            for (int which = 0; which < 2; ++which)
                later_pair<G>(a, v[AT + 4 * j + 2 * which], v[AT + 4 * j + 2 * which + 1],
                              min(row + 8 * which, rows - 1), rows, row + 8 * which < rows, col + 8 * j, known[which]);
}
template <class G, int AT, int STEPS, int RUNS, int SUMS>
__device__ __forceinline__ void later_runs(const typename G::A &a, const float (&v)[SUMS], i64 row, i64 rows, int col,
                                           typename G::Known (&known)[2])
{
    if constexpr (RUNS > 0) {
        later_run<G, AT, STEPS>(a, v, row, rows, col, known);
        later_runs<G, AT + 4 * STEPS, STEPS, RUNS - 1>(a, v, row, rows, col + 8 * STEPS, known);
    }
}
template <class G, int AT, int PART, int SUMS>
__device__ __forceinline__ void later_part(const typename G::A &a, const float (&v)[SUMS], i64 row, i64 rows, int col,
                                           typename G::Known (&known)[2])
{
    constexpr int RUNS = G::RUN > 0 ? 2 * PART / G::RUN : 1;
    later_runs<G, AT, PART / 4 / RUNS, RUNS>(a, v, row, rows, col, known);
}

// The columns of one partial, as finish_half has them.
template <class G, int AT, bool BY_PARTS, int SUMS>
__device__ __forceinline__ void later_half(const typename G::A &a, const float (&v)[SUMS], i64 row, i64 rows, int col,
                                           typename G::Known (&known)[2], int half)
{
    if constexpr (BY_PARTS) {
#pragma unroll 1
        for (int p = 0; p < parts<G>(); ++p) {
            float part[G::PART];
            take_part(part, v, half * (HALF / G::PART) + p);
            later_part<G, 0, G::PART>(a, part, row, rows, col + 2 * G::PART * p, known);
        }
    } else {
        later_part<G, AT, HALF>(a, v, row, rows, col, known);
    }
}
