/* SPDX-License-Identifier: Apache-2.0 */
/* What needs a GPU (make test-gpu): products of odd extents, exactness, sameness of bits, rows that the tensor cores
 * cannot hold, guards, device memory and streams. Random models run there too (random_test,
 * LINFUSE_TEST_DEVICE=cuda). */
#include "gpu_fixture.h"

#ifdef HOST_GPU_FOLDER /* on the host (host_gpu/) there are few blocks, and no timing to depend on */
#define MANY_COLUMNS "2000"
enum { AGAIN = 1 };
#else
#define MANY_COLUMNS "20000"
enum { AGAIN = 10 };
#endif

static void set_whole_params(rig *r)
{
    static const int64_t dims[MAX_DIMS] = {1, 1, 1, 1, 1, 1, 1, 1}; /* parameters have no named extent */
    for (size_t i = 0; i < lf_model_port_count(r->model, LF_PORT_PARAM); i++) {
        const char *name = lf_model_port_name(r->model, LF_PORT_PARAM, i);
        size_t count = port_elements(r->model, LF_PORT_PARAM, i, dims);
        float *data = malloc(count * sizeof *data);
        assert_non_null(data);
        draw_whole(data, count, 7, name);
        OK_PROGRAM(r->program, give(r->program, name, data));
        free(data);
    }
    OK_PROGRAM(r->program, lf_program_prepare(r->program));
}

typedef struct product_shape {
    int n, k;
    bool kn;
} product_shape;

static void assert_whole_numbers_are_exact(const product_shape *shape, size_t shapes, const char *words)
{
    static const int64_t rows[] = {1, 2, 15, 16, 17, 31, 64, 65, 127, 128, 129, 200, 257, 1000};
    for (size_t s = 0; s < shapes; s++) {
        char text[512];
        snprintf(text, sizeof text,
                 "input x f32[B, %d]\nparam w f32[%d, %d]\nparam b f32[%d]\na = %s(x, w)\nc = add(a, b)\n"
                 "d = sum(c, dim=1)\nreturn c, d\n",
                 shape[s].k, shape[s].kn ? shape[s].k : shape[s].n, shape[s].kn ? shape[s].n : shape[s].k, shape[s].n,
                 shape[s].kn ? "matmul" : "linear");
        rig r = rig_begin(1, text, words);
        set_whole_params(&r);
        for (size_t m = 0; m < sizeof rows / sizeof *rows; m++) {
            tensors t = tensors_begin(r.model, &rows[m]);
            draw_whole(t.in[0], t.in_count[0], 3, "x");
            tensors_eval(&t, r.model, r.program);
            tensors_run(&t, r.call);
            for (size_t o = 0; o < t.outs; o++)
                for (size_t i = 0; i < t.out_count[o]; i++)
                    if ((double)t.out[o][i] != t.want[o][i]) {
                        print_error("%s: %d x %d, %lld rows, output %zu, element %zu: %g, not %g\n", words, shape[s].n,
                                    shape[s].k, (long long)rows[m], o, i, (double)t.out[o][i], t.want[o][i]);
                        fail();
                    }
            tensors_end(&t);
        }
        rig_end(&r);
    }
}

/* Rows sum up to what they should, whatever the extents: tiles, lines and pairs that are not full. */
static void whole_numbers_are_exact(void **state)
{
    (void)state;
    static const product_shape shape[] = {{9, 1, false},     {33, 17, false},  {40, 40, true},   {255, 64, false},
                                          {256, 128, false}, {257, 129, true}, {300, 96, false}, {511, 1000, false},
                                          {1030, 36, false}, {64, 5000, false}};
    assert_whole_numbers_are_exact(shape, sizeof shape / sizeof *shape, "device=cuda rules=none");
}

static void whole_numbers_are_exact_in_every_precision(void **state)
{
    (void)state;
    static const product_shape shape[] = {{33, 17, false}, {257, 129, true}, {511, 1000, false}};
    char words[96];
    for (int i = 1; i < precision_count(); i++) /* fp32 above */
        assert_whole_numbers_are_exact(shape, sizeof shape / sizeof *shape,
                                       words_of(i, "rules=none", words, sizeof words));
}

typedef struct occasion {
    int64_t dims[2];
    int64_t elements; /* of all outputs */
} occasion;

/* What is 0 is exactly that; the rest, numbers of about 0.3, is right to the digits of any precision. */
static void assert_right_on(const char *text, const occasion *on, size_t occasions)
{
    for (int i = 0; i < precision_count(); i++) {
        char words[96];
        rig r = rig_begin(1, text, words_of(i, "", words, sizeof words));
        for (size_t m = 0; m < occasions; m++) {
            int64_t seen = 0;
            tensors t = tensors_begin(r.model, on[m].dims);
            tensors_eval(&t, r.model, r.program);
            tensors_run(&t, r.call);
            for (size_t o = 0; o < t.outs; o++)
                for (size_t at = 0; at < t.out_count[o]; at++, seen++)
                    assert_true(t.want[o][at] == 0 ? t.out[o][at] == 0.0f
                                                   : fabs((double)t.out[o][at] - t.want[o][at]) < 0.01);
            assert_int_equal(seen, on[m].elements);
            tensors_end(&t);
        }
        rig_end(&r);
    }
}

/* Nothing to multiply, and columns to sum up all the same. */
static void empty_batches_have_sums_of_columns(void **state)
{
    (void)state;
    static const occasion on[] = {{{0}, 96}, {{3}, 4 * 96}, {{0}, 96}};
    assert_right_on("input x f32[B, 72]\nparam w f32[96, 72]\na = linear(x, w)\nc = sum(a, dim=0)\nreturn a, c\n", on,
                    sizeof on / sizeof *on);
}

/* One of two products has nothing to multiply, in shapes for few rows and for many; the other's is right. */
static void one_product_may_be_empty(void **state)
{
    (void)state;
    static const occasion on[] = {{{0, 5}, 5 * 1024},     {{5, 0}, 5 * 1024}, {{0, 40}, 40 * 1024},
                                  {{300, 0}, 300 * 1024}, {{0, 0}, 0},        {{7, 9}, 16 * 1024}};
    assert_right_on("input x f32[B, 2048]\ninput y f32[T, 2048]\nparam w f32[1024, 2048]\nparam v f32[1024, 2048]\n"
                    "a = linear(x, w)\nb = linear(y, v)\nreturn a, b\n",
                    on, sizeof on / sizeof *on);
}

static const char softmax_text[] = "input x f32[B, 500]\nparam w f32[700, 500]\nparam b f32[700]\na = linear(x, w, b)\n"
                                   "c = gelu(a)\nd = softmax(c, dim=1)\nreturn d\n";
static const char norm_text[] = "input x f32[B, 300]\nparam w f32[512, 300]\na = linear(x, w)\nc = group_norm(a, 8)\n"
                                "d = layer_norm(c, [512])\ne = max(d, dim=1)\nreturn d, e\n";

/* three statistics from the product; more columns than all blocks take at once */
static const char stats_text[] = "input x f32[B, 500]\nparam w f32[333, 500]\na = linear(x, w)\n"
                                 "b = logsumexp(a, dim=1)\nc = max(a, dim=1)\nd = layer_norm(a, [333])\n"
                                 "return b, c, d\n";
static const char long_text[] = "input x f32[B, 150]\nparam w f32[" MANY_COLUMNS ", 150]\na = linear(x, w)\n"
                                "b = silu(a)\nc = logsumexp(b, dim=1)\nreturn b, c\n";

/* a product of one column: its rows come through a ring, or are made by the stage that multiplies them */
static const char ring_text[] = "input x f32[B, 8192]\nparam w f32[3, 8192]\na = linear(x, w)\n"
                                "b = mean(a, dim=1, keepdim=true)\nc = add(b, x)\nreturn c\n";
static const char made_text[] = "input x f32[B, 256]\nparam w f32[3, 256]\ny = softmax(x, dim=1)\na = linear(y, w)\n"
                                "b = mean(a, dim=1, keepdim=true)\nc = add(b, y)\nreturn c\n";

/* parts of a row that begin where no four neighbours do */
static const char slices_text[] = "input x f32[B, 300]\nparam w f32[520, 300]\na = linear(x, w)\n"
                                  "c = slice(a, 1, 0, 259)\nd = slice(a, 1, 261)\ne = silu(c)\nf = mul(e, d)\n"
                                  "s = softmax(f, dim=1)\ng = slice(x, 1, 1, None, 2)\nreturn a, s, g\n";
/* K is whole lines: tf32 takes x as it lies, and its map rounds */
static const char lines_text[] = "input x f32[B, 512]\nparam w f32[300, 512]\na = linear(x, w)\nreturn a\n";
/* the same of what has to be brought into lines first */
static const char brought_text[] =
    "input x f32[B, 512]\nparam w f32[300, 512]\ny = abs(x)\na = linear(y, w)\nreturn a\n";

/* What rounding to tf32 could do in more ways than one: elements halfway between two of its numbers, and the ends of
 * the range. None is negative. */
static void plant_halves(float *x, size_t count)
{
    static const uint32_t ends[] = {0x7f7fffff, 0x7f7ff000, 0x7f7ff001, 0x7f800000, 0x7fc00000,
                                    0x7f800001, 0x00000001, 0x00000fff, 0x00001000, 0x007ff000};
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits = i % 3 == 0 ? (bits & ~UINT32_C(0x1fff)) | 0x1000 : i % 1999 == 1998 ? ends[i / 1999 % 10] : bits;
        bits &= INT32_MAX;
        memcpy(&x[i], &bits, sizeof bits);
    }
}

/* A row has the same bits alone, among few and among many. */
static void assert_parts_same(rig *r, const tensors *all)
{
    static const int64_t parts[] = {1, 2, 8, 15, 16, 17, 33, 40, 64, 65, 128};
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
        const size_t part = (size_t)parts[k], from = 17;
        tensors some = tensors_begin(r->model, &parts[k]);
        const size_t width = some.in_count[0] / part;
        memcpy(some.in[0], all->in[0] + from * width, some.in_count[0] * sizeof(float));
        tensors_run(&some, r->call);
        for (size_t o = 0; o < some.outs; o++)
            if (memcmp(some.out[o], all->out[o] + from * (some.out_count[o] / part),
                       some.out_count[o] * sizeof(float)) != 0) {
                print_error("%zu rows by themselves: output %zu has other bits\n", part, o);
                fail();
            }
        tensors_end(&some);
    }
}

/* The same bits in every run, and for a row whatever its neighbours. */
static void bits_are_the_same(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } runs[] = {{softmax_text, "device=cuda"},
                {lines_text, "device=cuda precision=tf32"},
                {lines_text, "device=cuda precision=bf16"},
                {softmax_text, "device=cuda precision=tf32"},
                {softmax_text, "device=cuda precision=bf16"},
                {norm_text, "device=cuda"},
                {slices_text, "device=cuda"},
                {stats_text, "device=cuda"},
                {long_text, "device=cuda"},
                {ring_text, "device=cuda"},
                {made_text, "device=cuda"}};
    for (size_t k = 0; k < sizeof runs / sizeof *runs; k++) {
        if (precision_count() == 1 && strcmp(runs[k].words, "device=cuda") != 0)
            continue;
        rig r = rig_begin(1, runs[k].text, runs[k].words);
        const int64_t rows = runs[k].text == ring_text ? 1500 : 300; /* several times around */
        tensors all = tensors_begin(r.model, &rows), again = tensors_begin(r.model, &rows);
        if (runs[k].text == lines_text) {
            plant_halves(all.in[0], all.in_count[0]);
            plant_halves(again.in[0], again.in_count[0]);
        }
        tensors_run(&all, r.call);
        for (int i = 0; i < AGAIN; i++) {
            tensors_run(&again, r.call);
            assert_same_bits(&all, &again, "run again");
        }
        assert_parts_same(&r, &all);
        if (strcmp(runs[k].words, "device=cuda") == 0) {
            tensors_eval(&all, r.model, r.program);
            assert_close(&all, tolerance(500), "softmax and norms");
        }
        tensors_end(&all);
        tensors_end(&again);
        rig_end(&r);
    }
}

/* As x lies and brought into lines: the same bits, in every precision. */
static void lines_are_the_same(void **state)
{
    (void)state;
    static const int64_t rows[] = {3, 40, 300};
    for (int k = 0; k < precision_count(); k++)
        for (size_t m = 0; m < sizeof rows / sizeof *rows; m++) {
            char words[96];
            words_of(k, "", words, sizeof words);
            rig one = rig_begin(1, lines_text, words), other = rig_begin(1, brought_text, words);
            tensors lies = tensors_begin(one.model, &rows[m]), brought = tensors_begin(other.model, &rows[m]);
            plant_halves(lies.in[0], lies.in_count[0]);
            plant_halves(brought.in[0], brought.in_count[0]);
            tensors_run(&lies, one.call);
            tensors_run(&brought, other.call);
            assert_same_bits(&lies, &brought, "brought into lines");
            tensors_end(&lies);
            tensors_end(&brought);
            rig_end(&one);
            rig_end(&other);
        }
}

/* Error of each row by itself: a row of 1e-30 beside one of 1e30 counts as much. */
static void assert_rows_close(const tensors *t, size_t rows, double most, const char *what)
{
    for (size_t o = 0; o < t->outs; o++) {
        const size_t width = t->out_count[o] / rows;
        for (size_t i = 0; i < rows; i++) {
            double worst = worst_error(t->out[o] + i * width, t->want[o] + i * width, width);
            if (!(worst <= most))
                print_error("%s: output %zu, row %zu: error %g, at most %g wanted\n", what, o, i, worst, most);
            assert_true(worst <= most);
        }
    }
}

/* Rows that two halves cannot hold: not finite, of wide range, tiny, huge; and weights likewise. */
static void wide_rows_keep_their_digits(void **state)
{
    (void)state;
    static const char text[] = "input x f32[B, 256]\nparam w f32[320, 256]\na = linear(x, w)\nreturn a\n";
    const int64_t rows = 300;
    rig r = rig_begin(1, text, "device=cuda");
    for (int weights = 0; weights < 3; weights++) {
        float *w = malloc(320 * 256 * sizeof *w);
        assert_non_null(w);
        lf_draw_uniform(4, "w", -0.1f, 0.1f, 320 * 256, w);
        if (weights == 1)
            for (int i = 0; i < 256; i++) /* nothing for the large elements of row 9, below */
                w[5 * 256 + i] *= i % 2 ? 1e-18f : 0.0f;
        if (weights == 2)
            w[77 * 256 + 3] = INFINITY, w[78 * 256 + 3] = NAN;
        OK_PROGRAM(r.program, give(r.program, "w", w));
        OK_PROGRAM(r.program, lf_program_prepare(r.program));
        tensors t = tensors_begin(r.model, &rows);
        float *x = t.in[0];
        x[3 * 256 + 7] = INFINITY;
        x[4 * 256 + 8] = NAN;
        x[5 * 256 + 9] = -INFINITY;
        for (int i = 0; i < 256; i++) {
            x[9 * 256 + i] *= i % 2 ? 1e-30f : 1e4f;
            x[10 * 256 + i] *= 1e-37f;
            x[11 * 256 + i] *= 1e30f;
            x[12 * 256 + i] = 0.0f;
        }
        tensors_eval(&t, r.model, r.program);
        tensors_run(&t, r.call);
        assert_rows_close(&t, (size_t)rows, 1e-5, "wide rows");
        tensors_end(&t);
        free(w);
    }
    rig_end(&r);
}

/* How x and w are spread over f32's range, so that what is large in one meets what is small in the other. */
typedef enum spread { DENSE, TABULAR, DEAD, BLOCKS, PRUNED, EMPTY, FAR_APART, FEW_OUTPUTS, SPREADS } spread;
enum { SPREAD_N = 320, SPREAD_K = 256 };

static float spread_weight(spread how, int n, int k)
{
    switch (how) {
    case TABULAR: return ldexpf(1.0f, 30 - k * 7 % 61); /* each feature in a unit of its own */
    case DEAD: return k % 16 == 3 ? 1e-25f : 1.0f;
    case BLOCKS: return n % 8 == k % 8 ? 1.0f : 0.0f;
    case PRUNED: return (n * 31 + k * 17) % 5 < 2 ? 1.0f : 0.0f;
    case EMPTY: return k == 5 ? 0.0f : n == 9 ? 0.0f : 1.0f;
    case FAR_APART: return k % 2 ? 1e15f : 1e-15f;
    case FEW_OUTPUTS: return n % 8 || (n % 16 == 0 && k < 16) ? 0.0f : 1.0f; /* half of them do not see some columns */
    default: return 1.0f;
    }
}

static float spread_x(spread how, int row, int k)
{
    switch (how) {
    case DENSE: return (k + row) % 3 ? powf(10.0f, (float)(-(k * 13 + row) % 37)) : 1.0f;
    case TABULAR: return ldexpf(1.0f, k * 7 % 61 - 30);
    case DEAD: return k % 16 == 3 ? 1e25f : 1.0f;
    case BLOCKS: return powf(10.0f, -1.5f * (float)(k % 8)); /* outputs of some blocks are of small elements alone */
    case PRUNED: return (k + row) % 11 ? 1.0f : 1e-12f;
    case EMPTY: return k == 5 ? 1e25f : 1.0f;
    case FAR_APART: return k % 2 ? 0.0f : 1e-20f;
    case FEW_OUTPUTS: return k < 16 ? 1.0f : 1e-12f;
    default: return 1.0f;
    }
}

/* Of an output, against the sum of the magnitudes it is made of. */
static void assert_sums_close(const tensors *t, const float *w, size_t rows, double most, int what)
{
    for (size_t m = 0; m < rows; m++)
        for (int n = 0; n < SPREAD_N; n++) {
            const float *x = t->in[0] + m * SPREAD_K;
            const size_t at = m * SPREAD_N + (size_t)n;
            double sum = 0, error = fabs((double)t->out[0][at] - t->want[0][at]);
            for (int k = 0; k < SPREAD_K; k++)
                sum += fabs((double)x[k] * (double)w[n * SPREAD_K + k]);
            if (!(error <= most * sum))
                print_error("spread %d, row %zu, output %d: error %g of %g\n", what, m, n, error, sum);
            assert_true(error <= most * sum);
        }
}

/* Small elements may vanish only where they do not count. */
static void spread_rows_keep_their_digits(void **state)
{
    (void)state;
    static const char text[] = "input x f32[B, 256]\nparam w f32[320, 256]\na = linear(x, w)\nreturn a\n";
    static const int64_t batches[] = {3, 40, 300};
    rig r = rig_begin(1, text, "device=cuda");
    float *w = malloc(SPREAD_N * SPREAD_K * sizeof *w);
    assert_non_null(w);
    for (int how = 0; how < SPREADS; how++) {
        lf_draw_uniform(4, "w", -0.1f, 0.1f, SPREAD_N * SPREAD_K, w);
        for (int i = 0; i < SPREAD_N * SPREAD_K; i++)
            w[i] *= spread_weight((spread)how, i / SPREAD_K, i % SPREAD_K);
        OK_PROGRAM(r.program, give(r.program, "w", w));
        OK_PROGRAM(r.program, lf_program_prepare(r.program));
        for (size_t b = 0; b < sizeof batches / sizeof *batches; b++) {
            tensors t = tensors_begin(r.model, &batches[b]);
            for (size_t i = 0; i < t.in_count[0]; i++)
                t.in[0][i] *= spread_x((spread)how, (int)(i / SPREAD_K), (int)(i % SPREAD_K));
            tensors_eval(&t, r.model, r.program);
            tensors_run(&t, r.call);
            assert_sums_close(&t, w, (size_t)batches[b], 0x1p-21, how);
            if (how == EMPTY) { /* an infinity meets nothing but zeros, which makes NaN of it */
                t.in[0][SPREAD_K + 5] = INFINITY;
                tensors_eval(&t, r.model, r.program);
                tensors_run(&t, r.call);
                assert_rows_close(&t, (size_t)batches[b], 1e-5, "an infinity and an empty column");
            }
            tensors_end(&t);
        }
    }
    free(w);
    rig_end(&r);
}

/* Whole numbers around a large one, which f32 has exactly: what makes an exponent of them must lose nothing, or softmax
 * would be as far off as the large one's last place. A power of two times as much leaves one column, or equal ones. */
static void large_logits_keep_their_digits(void **state)
{
    (void)state;
    enum { N = 300, K = 64 };
    static const char text[] = "input x f32[B, 64]\nparam w f32[300, 64]\nparam b f32[300]\na = linear(x, w, b)\n"
                               "c = softmax(a, dim=1)\nd = logsumexp(a, dim=1)\nreturn c, d\n";
    static const float base[] = {0.0f, 5003.0f, -70001.0f, 1000003.0f}, times[] = {1.0f, 0x1p30f, 0x1p110f};
    static const int64_t rows[] = {1, 16, 300};
    float *w = malloc(N * K * sizeof *w), b[N];
    assert_non_null(w);
    for (size_t at = 0; at < sizeof base / sizeof *base; at++) {
        rig r = rig_begin(1, text, "device=cuda");
        draw_whole(w, N * K, 5, "w");
        for (int i = 0; i < N; i++)
            b[i] = base[at];
        OK_PROGRAM(r.program, give(r.program, "w", w));
        OK_PROGRAM(r.program, give(r.program, "b", b));
        OK_PROGRAM(r.program, lf_program_prepare(r.program));
        for (size_t m = 0; m < sizeof rows / sizeof *rows; m++)
            for (size_t s = 0; s < (base[at] == 0.0f ? sizeof times / sizeof *times : 1); s++) {
                tensors t = tensors_begin(r.model, &rows[m]);
                draw_whole(t.in[0], t.in_count[0], 6, "x");
                for (size_t i = 0; i < t.in_count[0]; i++)
                    t.in[0][i] = t.in[0][i] == 3.0f ? times[s] : 0.0f; /* a seventh: differences of ten or so */
                tensors_eval(&t, r.model, r.program);
                tensors_run(&t, r.call);
                assert_rows_close(&t, (size_t)rows[m], 2e-6, "large logits");
                tensors_end(&t);
            }
        rig_end(&r);
    }
    free(w);
}

static void assert_flagged_rows_are_redone(rig *r, size_t width, size_t rows)
{
    const int64_t batch = (int64_t)rows, none = 0;
    const size_t first = 7 % rows, last = rows - 1;
    tensors t = tensors_begin(r->model, &batch), clean = tensors_begin(r->model, &batch);
    tensors empty = tensors_begin(r->model, &none);
    tensors_run(&clean, r->call);
    assert_int_equal(lf_call_rows_redone(r->call), 0);
    t.in[0][first * width + 3] = INFINITY;
    t.in[0][last * width + 5] = NAN;
    tensors_eval(&t, r->model, r->program);
    for (int twice = 0; twice < 2; twice++) {
        tensors_run(&t, r->call);
        assert_close(&t, tolerance((double)width), "guarded rows");
        assert_int_equal(lf_call_rows_redone(r->call), first == last ? 1 : 2);
        for (size_t i = 0; i < rows; i++)
            if (i != first && i != last)
                assert_memory_equal(t.out[0] + i * width, clean.out[0] + i * width, width * sizeof(float));
    }
    tensors_run(&empty, r->call); /* launches nothing, and has no rows */
    assert_int_equal(lf_call_rows_redone(r->call), 0);
    tensors_run(&clean, r->call); /* flags are clean again */
    assert_int_equal(lf_call_rows_redone(r->call), 0);
    tensors_end(&t);
    tensors_end(&clean);
    tensors_end(&empty);
}

/* Rows of 8192 are a block's each, which arrives at the barrier before it has stored the last of its own. */
static void guarded_rows_are_redone(void **state)
{
    (void)state;
    static const size_t widths[] = {512, 8192};
    static const int64_t batches[] = {1, 200, 700, 2, 300}; /* of one call: as many blocks as each wants */
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        char text[256];
        snprintf(text, sizeof text,
                 "input x f32[B, %zu]\nparam w f32[400, %zu]\nparam b f32[400]\na = linear(x, w, b)\n"
                 "c = mean(a, dim=1, keepdim=true)\nd = gelu(c)\ne = add(d, x)\nreturn e\n",
                 widths[w], widths[w]);
        rig r = rig_begin(1, text, "device=cuda");
        for (size_t m = 0; m < sizeof batches / sizeof *batches; m++)
            assert_flagged_rows_are_redone(&r, widths[w], (size_t)batches[m]);
        rig_end(&r);
    }
}

static void other_precisions_are_as_good_as_their_digits(void **state)
{
    (void)state;
    static const double most[LF_PRECISIONS] = {2e-6, 2e-3, 2e-2, 2e-3};
    const int64_t rows = 260;
    for (int i = 0; i < precision_count(); i++) {
        char words[96];
        rig r = rig_begin(1, "input x f32[B, 900]\nparam w f32[600, 900]\na = linear(x, w)\nreturn a\n",
                          words_of(i, "", words, sizeof words));
        tensors t = tensors_begin(r.model, &rows);
        tensors_eval(&t, r.model, r.program);
        tensors_run(&t, r.call);
        assert_close(&t, most[i], lf_precision_table[i].name);
        tensors_end(&t);
        rig_end(&r);
    }
}

/* Device memory, the default stream, nothing copied: the same bits as from host memory. */
static void device_memory_is_taken(void **state)
{
    (void)state;
    const lf_cuda_driver *driver;
    assert_int_equal(lf_cuda_driver_find(&driver, NULL), LF_OK);
    rig r = rig_begin(1, softmax_text, "device=cuda");
    const int64_t rows = 70;
    tensors t = tensors_begin(r.model, &rows), host = tensors_begin(r.model, &rows);
    tensors_run(&host, r.call);
    void *context;
    int device;
    lf_cuda_ptr in, out;
    assert_int_equal(driver->device_get(&device, 0), 0);
    assert_int_equal(driver->primary_retain(&context, device), 0);
    assert_int_equal(driver->context_push(context), 0);
    assert_int_equal(driver->alloc(&in, t.in_count[0] * 4), 0);
    assert_int_equal(driver->alloc(&out, t.out_count[0] * 4), 0);
    assert_int_equal(driver->to_device(in, t.in[0], t.in_count[0] * 4, NULL), 0);
    OK_CALL(r.call, lf_call_set_input(r.call, 0, ON_DEVICE(in, rows, 500)));
    lf_tensor y;
    OK_CALL(r.call, lf_call_output(r.call, 0, &y));
    y.data = (void *)(uintptr_t)out;
    OK_CALL(r.call, lf_call_set_output(r.call, 0, &y));
    OK_CALL(r.call, lf_call_run(r.call, NULL));
    assert_int_equal(driver->to_host(t.out[0], out, t.out_count[0] * 4, NULL), 0);
    assert_int_equal(driver->stream_wait(NULL), 0);
    assert_same_bits(&t, &host, "device memory");
    driver->free(in);
    driver->free(out);
    driver->context_pop(&context);
    driver->primary_release(device);
    tensors_end(&t);
    tensors_end(&host);
    rig_end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_numbers_are_exact),     cmocka_unit_test(whole_numbers_are_exact_in_every_precision),
        cmocka_unit_test(bits_are_the_same),       cmocka_unit_test(wide_rows_keep_their_digits),
        cmocka_unit_test(spread_rows_keep_their_digits),
        cmocka_unit_test(guarded_rows_are_redone),     cmocka_unit_test(other_precisions_are_as_good_as_their_digits),
        cmocka_unit_test(device_memory_is_taken),      cmocka_unit_test(empty_batches_have_sums_of_columns),
        cmocka_unit_test(one_product_may_be_empty),    cmocka_unit_test(lines_are_the_same),
        cmocka_unit_test(large_logits_keep_their_digits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
