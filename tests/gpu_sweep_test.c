/* SPDX-License-Identifier: Apache-2.0 */
/* Products of every small extent and of odd large ones on a GPU (make test-gpu), on whole numbers: what comes out is
 * exact, in every precision.
 *
 * M, N and K from 1 to 40, all 64,000 of them, where N and K are named extents (one program, the ordinary units). Where
 * they are numbers, which is what tensor cores ask for, each pair of N and K is a program of its own: every M with each
 * pair (N, K) such that K - 1 = 7 N + 5 j (mod 40) for j = 0..7. These are 320 of the 1,600 pairs; every N and every K
 * from 1 to 40 is there eight times, and so are all 64 pairs of remainders by 8. Programs are compiled by several
 * processes; LINFUSE_WORKERS says how many. The first argument: how many of the 320 pairs (of which ctest runs 80). */
#include "gpu_fixture.h"

enum { MOST = 40, PAIRS = 320 };
static long pairs = PAIRS;

/* sum over k of x[k] w[k] */
static int dot(const float *x, const float *w, int64_t k, int64_t step)
{
    int sum = 0;
    for (int64_t i = 0; i < k; i++)
        sum += (int)x[i] * (int)w[i * step];
    return sum;
}

/* The rows of y = x W^T + b and of its sums, of which every `every`th is looked at, and the last. Returns whether all
 * is exact. */
static bool exact(const tensors *t, const float *w, const float *b, int64_t m, int64_t n, int64_t k, bool kn,
                  int64_t every, const char *what)
{
    for (int64_t i = 0; i < m; i = i < m - 1 && i + every >= m ? m - 1 : i + every) {
        int sum = 0;
        for (int64_t j = 0; j < n; j++) {
            const int want = dot(t->in[0] + i * k, kn ? w + j : w + j * k, k, kn ? n : 1) + (b ? (int)b[j] : 0);
            sum += want;
            if (t->out[0][i * n + j] != (float)want) {
                print_error("%s, %lld x %lld x %lld: element %lld, %lld is %g, not %d\n", what, (long long)m,
                            (long long)n, (long long)k, (long long)i, (long long)j, (double)t->out[0][i * n + j], want);
                return false;
            }
        }
        if (t->out[1][i] != (float)sum) {
            print_error("%s, %lld x %lld x %lld: the sum of row %lld is %g, not %d\n", what, (long long)m, (long long)n,
                        (long long)k, (long long)i, (double)t->out[1][i], sum);
            return false;
        }
    }
    return true;
}

typedef struct shape {
    int n, k;
    bool kn; /* the weight is [K][N] */
} shape;

static bool one_program(shape s, int precision, const int64_t *rows, int count, int64_t every)
{
    char text[512], words[96];
    snprintf(text, sizeof text,
             "input x f32[B, %d]\nparam w f32[%d, %d]\nparam b f32[%d]\na = %s(x, w)\nc = add(a, b)\n"
             "d = sum(c, dim=1)\nreturn c, d\n",
             s.k, s.kn ? s.k : s.n, s.kn ? s.n : s.k, s.n, s.kn ? "matmul" : "linear");
    rig r = rig_begin(1, text, words_of(precision, "rules=none", words, sizeof words));
    const size_t weights = (size_t)s.n * (size_t)s.k;
    float *w = malloc(weights * sizeof *w), *b = malloc((size_t)s.n * sizeof *b);
    assert_true(w && b);
    draw_whole(w, weights, 7, "w");
    draw_whole(b, (size_t)s.n, 7, "b");
    OK_PROGRAM(r.program, give(r.program, "w", w));
    OK_PROGRAM(r.program, give(r.program, "b", b));
    OK_PROGRAM(r.program, lf_program_prepare(r.program));
    bool good = true;
    for (int i = 0; i < count && good; i++) {
        tensors t = tensors_begin(r.model, &rows[i]);
        draw_whole(t.in[0], t.in_count[0], 3, "x");
        memset(t.out[0], 0xff, t.out_count[0] * sizeof(float));
        tensors_run(&t, r.call);
        good = exact(&t, w, b, rows[i], s.n, s.k, s.kn, every, lf_precision_table[precision].name);
        tensors_end(&t);
    }
    free(w);
    free(b);
    rig_end(&r);
    return good;
}

static bool small_pair(long number)
{
    int64_t rows[MOST];
    for (int i = 0; i < MOST; i++)
        rows[i] = i + 1;
    /* 209 goes round all of them; the first 80 have every N, every K and all pairs of remainders by 8 */
    const long pair = number / precision_count() * 209 % PAIRS;
    const int precision = (int)(number % precision_count()), n = (int)(pair % MOST) + 1,
              k = (7 * n + 5 * (int)(pair / MOST)) % MOST + 1;
    return one_program((shape){n, k, pair % 3 == 0}, precision, rows, MOST, 1);
}

static void every_small_product_of_numbers(void **state)
{
    (void)state;
    deal(pairs * precision_count(), small_pair);
}

/* number: K - 1. */
static bool small_named(long number)
{
    static const char text[] =
        "input x f32[M, K]\ninput y f32[K, N]\na = matmul(x, y)\nd = sum(a, dim=1)\nreturn a, d\n";
    static rig r; /* a process has one */
    if (!r.program)
        r = rig_begin(1, text, "device=cuda rules=none");
    bool good = true;
    for (int64_t m = 1; m <= MOST && good; m++)
        for (int64_t n = 1; n <= MOST && good; n++) {
            const int64_t k = number + 1, dims[] = {m, k, n};
            tensors t = tensors_begin(r.model, dims);
            draw_whole(t.in[0], t.in_count[0], 3, "x");
            draw_whole(t.in[1], t.in_count[1], 4, "y");
            memset(t.out[0], 0xff, t.out_count[0] * sizeof(float));
            tensors_run(&t, r.call);
            good = exact(&t, t.in[1], NULL, m, n, k, true, 1, "named extents");
            tensors_end(&t);
        }
    return good;
}

static void every_small_product_of_names(void **state)
{
    (void)state;
    deal(MOST, small_named);
}

/* ---- odd and large ---- */

static const struct { shape s; int64_t rows[3];
} large[] = {
    {{1025, 1027, false}, {1023, 1, 129}}, {{515, 2049, false}, {4099, 33, 65}}, {{33, 65, false}, {100003, 131, 7}},
    {{8191, 1111, true}, {3, 64, 257}},    {{4097, 4095, false}, {127, 128, 2}}, {{257, 9999, true}, {511, 5, 17}},
    {{1, 4097, false}, {2049, 3, 1}},      {{3001, 1, false}, {999, 10, 1}},     {{2048, 512, false}, {8192, 130, 63}},
    {{10007, 77, false}, {301, 16, 128}},
};
enum { LARGE = sizeof large / sizeof *large };

static bool large_one(long number)
{
    const int64_t *rows = large[number / precision_count()].rows;
    return one_program(large[number / precision_count()].s, (int)(number % precision_count()), rows, 3,
                       rows[0] / 37 + 1);
}

static void odd_large_products(void **state)
{
    (void)state;
    deal(LARGE * precision_count(), large_one);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_small_product_of_names),
        cmocka_unit_test(odd_large_products),
        cmocka_unit_test(every_small_product_of_numbers),
    };
    if (argc > 1)
        pairs = strtol(argv[1], NULL, 0);
    if (pairs < 1 || pairs > PAIRS) {
        fprintf(stderr, "gpu_sweep_test: how many pairs of N and K, from 1 to %d\n", PAIRS);
        return 2;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
