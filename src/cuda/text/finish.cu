// SPDX-License-Identifier: Apache-2.0
// What becomes of a product's sums while they are in registers, as tensor cores leave them: a thread holds two rows, eight apart, and in each neighbouring pairs of
// columns, eight apart; a quad of lanes holds a row. Partials of statistics are of 128 columns for every kernel, so that a row's bits do not depend on which one is
// taken for how many rows.

enum { PARTIAL = 128, HALF = 64 }; // HALF: sums of a thread in a partial's columns

// The sums of a thread are taken PART at a time, by a loop that turns them round: where much is done with each, code for all of them at once
// would not stay in the instruction cache, and would take seconds to compile. Where little is done, turning would take longer.
template <int PART, int SUMS> __device__ __forceinline__ void turn(float (&v)[SUMS])
{
    float first[PART];
#pragma unroll
    for (int i = 0; i < PART; ++i)
        first[i] = v[i];
#pragma unroll
    for (int i = 0; i + PART < SUMS; ++i)
        v[i] = v[i + PART];
#pragma unroll
    for (int i = 0; i < PART; ++i)
        v[SUMS - PART + i] = first[i];
}

// The first statistic over the elements of a thread's two rows in a partial's columns, v[AT..AT + HALF), in order of column; a quad of lanes holds a
// row. here(j, w): is there such a column?
template <class M> struct quad_fold {
    template <int AT, int SUMS, class Here> static __device__ __forceinline__ void of(const float (&v)[SUMS], Here here, M (&s)[2])
    {
        s[0].begin(), s[1].begin();
#pragma unroll
        for (int i = 0; i < HALF; ++i)
            if (here(i / 4, i % 2))
                s[i / 2 % 2].put(v[AT + i]);
        s[0] = join_lanes(s[0], 4), s[1] = join_lanes(s[1], 4);
    }
};

// A pair of neighbouring columns of a row through the phase's steps.
template <class G> __device__ __forceinline__ void finish_pair(const typename G::A &a, float &v0, float &v1, i64 row, i64 rows, int col, float unscale, const float (&s)[2],
                                                               typename G::Rest &rest)
{
    if (G::N % 2 == 0) {
        float p[2] = {v0 * unscale * s[0], v1 * unscale * s[1]};
        G::template element<2>(a, row, rows, col, p, rest);
        v0 = p[0], v1 = p[1];
    } else {
        float p[1] = {v0 * unscale * s[0]}, q[1] = {v1 * unscale * s[1]};
        G::template element<1>(a, row, rows, col, p, rest);
        if (col + 1 < G::N)
            G::template element<1>(a, row, rows, col + 1, q, rest);
        v0 = p[0], v1 = q[0];
    }
}

// The statistics of a thread's two rows over a partial's columns: the first from what the steps left in v, the others as they were fed.
template <class G, int AT, int SUMS>
__device__ __forceinline__ void finish_stats(const typename G::A &a, const float (&v)[SUMS], i64 row, i64 rows, int col, int partial, typename G::Rest (&rest)[2])
{
    typename G::First first[2];
    quad_fold<typename G::First>::template of<AT>(v, [&](int j, int w) { return G::N % PARTIAL == 0 || col + 8 * j + w < G::N; }, first);
#pragma unroll
    for (int which = 0; which < 2; ++which) {
        rest[which].join_lanes(4);
        if (threadIdx.x % 4 == 0 && row + 8 * which < rows)
            G::end(a, row + 8 * which, partial, (G::N + PARTIAL - 1) / PARTIAL, first[which], rest[which]);
    }
}

// The columns of one partial. A thread holds two rows, eight apart; neighbouring pairs of columns, eight apart. With TURNS the sums are the first of v
// and end up as its last.
template <class G, int AT, bool TURNS, int SUMS>
__device__ __forceinline__ void finish_half(const typename G::A &a, float (&v)[SUMS], i64 row, i64 rows, int col, int partial, const float (&unscale)[2])
{
    constexpr int PART = TURNS ? G::PART : HALF;
    const auto here = [&](int j, int w) { return G::N % PARTIAL == 0 || col + 8 * j + w < G::N; };
    typename G::Rest rest[2];
    rest[0].begin(), rest[1].begin();
#pragma unroll 1
    for (int part = 0; part < HALF / PART; ++part) {
#pragma unroll
        for (int which = 0; which < 2; ++which) {
            if (row + 8 * which >= rows)
                continue;
#pragma unroll
            for (int j = 0; j < PART / 4; ++j) { // no branch in here where N fills tiles: loads can go ahead of what is done with them
                const int at = part * (PART / 4) + j, c = col + 8 * at, i = AT + 4 * j + 2 * which;
                if (!here(at, 0))
                    continue;
                float s[2] = {1.0f, 1.0f};
                if (G::SCALED)
                    load<true, G::N % 2 == 0>(s, G::w_unscale(a) + c);
                finish_pair<G>(a, v[i], v[i + 1], row + 8 * which, rows, c, unscale[which], s, rest[which]);
            }
        }
        if (TURNS)
            turn<PART>(v);
    }
    if constexpr (G::STATS > 0)
        finish_stats<G, TURNS ? SUMS - HALF : AT>(a, v, row, rows, col, partial, rest);
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

template <class G> __device__ __forceinline__ void later_pair(const typename G::A &a, float v0, float v1, i64 row, i64 rows, int col, const typename G::Known &known)
{
    if (G::N % 2 == 0) {
        float p[2] = {v0, v1};
        G::template later<2>(a, row, rows, col, p, known);
    } else {
        float p[1] = {v0}, q[1] = {v1};
        G::template later<1>(a, row, rows, col, p, known);
        if (col + 1 < G::N)
            G::template later<1>(a, row, rows, col + 1, q, known);
    }
}

// One run of columns of a part, or all of a part where there are no runs: v[AT] on.
template <class G, int AT, int STEPS, int SUMS>
__device__ __forceinline__ void later_run(const typename G::A &a, const float (&v)[SUMS], i64 row, i64 rows, int col, typename G::Known &known)
{
    if constexpr (G::RUN > 0)
        G::run(quad_run<typename G::Run>::template of<AT, STEPS>(v), known);
    if (row >= rows)
        return;
#pragma unroll
    for (int j = 0; j < STEPS; ++j)
        if (G::N % PARTIAL == 0 || col + 8 * j < G::N)
            later_pair<G>(a, v[AT + 4 * j], v[AT + 4 * j + 1], row, rows, col + 8 * j, known);
}
template <class G, int AT, int STEPS, int RUNS, int SUMS>
__device__ __forceinline__ void later_runs(const typename G::A &a, const float (&v)[SUMS], i64 row, i64 rows, int col, typename G::Known (&known)[2])
{
    if constexpr (RUNS > 0) {
        later_run<G, AT, STEPS>(a, v, row, rows, col, known[0]);
        later_run<G, AT + 2, STEPS>(a, v, row + 8, rows, col, known[1]);
        later_runs<G, AT + 4 * STEPS, STEPS, RUNS - 1>(a, v, row, rows, col + 8 * STEPS, known);
    }
}

// The columns of one partial, as finish_half has them.
template <class G, int AT, bool TURNS, int SUMS>
__device__ __forceinline__ void later_half(const typename G::A &a, float (&v)[SUMS], i64 row, i64 rows, int col, typename G::Known (&known)[2])
{
    constexpr int PART = TURNS ? G::PART : HALF, RUNS = G::RUN > 0 ? 2 * PART / G::RUN : 1;
#pragma unroll 1
    for (int part = 0; part < HALF / PART; ++part) {
        later_runs<G, AT, PART / 4 / RUNS, RUNS>(a, v, row, rows, col + 2 * PART * part, known);
        if (TURNS)
            turn<PART>(v);
    }
}
