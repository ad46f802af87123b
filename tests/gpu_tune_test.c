/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes of tiles on a GPU (make test-gpu): a row's bits are the same in all of them, and measuring which is fastest
 * changes nothing but the choice. */
#include "gpu_fixture.h"

#include "cuda/emit.h"

/* Rows kept and waited for, runs, one number a row, guards, two products. */
static const struct { const char *name, *text;
} model[] = {
    {"softmax", "input x f32[B, 500]\nparam w f32[700, 500]\nparam b f32[700]\na = linear(x, w, b)\nc = gelu(a)\n"
                "d = softmax(c, dim=1)\nreturn d\n"},
    {"waiting", "input x f32[B, 256]\nparam w f32[8192, 256]\na = linear(x, w)\nd = softmax(a, dim=1)\nreturn d\n"},
    {"runs",
     "input x f32[B, 300]\nparam w f32[512, 300]\na = linear(x, w)\nc = silu(a)\nd = group_norm(c, 16)\nreturn d\n"},
    {"logsumexp", "input x f32[B, 64]\nparam w f32[1030, 64]\nparam b f32[1030]\na = linear(x, w, b)\n"
                  "c = logsumexp(a, dim=1, keepdim=true)\nd = gelu(c)\nreturn d\n"},
    {"two", "input x f32[B, 96]\nparam v f32[256, 96]\nparam w f32[300, 256]\na = linear(x, v)\nc = gelu(a)\n"
            "d = linear(c, w)\ne = log_softmax(d, dim=1)\nreturn e\n"},
};
enum { MODELS = sizeof model / sizeof *model };

/* All precisions for the first model, those that differ most for the others: each is a kernel to compile in every
 * shape. */
static bool is_tried(int which, int precision)
{
    return which == 0 || precision % 2 == 0;
}

static const int64_t batch[] = {1, 9, 16, 17, 40, 64, 65, 128, 129, 300, 700, 2100};
enum { BATCHES = sizeof batch / sizeof *batch };

static bool told(int shape)
{
    return setenv("LINFUSE_CUDA_SHAPE", lf_tile_table[shape].name, 1) == 0;
}

static rig begin(int which, int precision, const char *more)
{
    char words[96];
    return rig_begin(1, model[which].text, words_of(precision, more, words, sizeof words));
}

/* The GPU's context stays between programs: making it anew for each would take longer than all else. */
static void stay(void)
{
    static bool here;
    if (!here)
        gpu_begin();
    here = true;
}

static bool compile_one(long number)
{
    const int shape = (int)(number % LF_TILE_SHAPES), precision = (int)(number / LF_TILE_SHAPES % precision_count());
    const int which = (int)(number / LF_TILE_SHAPES / precision_count());
    const int64_t few = 1, many = 300;
    size_t bytes;
    if (!is_tried(which, precision))
        return true;
    told(shape);
    stay();
    rig r = begin(which, precision, "");
    OK_CALL(r.call, lf_call_workspace(r.call, lf_tile_table[shape].few ? &few : &many, &bytes));
    rig_end(&r);
    return true;
}

static void all_of_it_compiles(void **state)
{
    (void)state;
    deal((long)MODELS * precision_count() * LF_TILE_SHAPES, compile_one);
}

static void all_shapes_give_the_same_bits(void **state)
{
    (void)state;
    int compared = 0;
    stay();
    for (int m = 0; m < MODELS; m++)
        for (int p = 0; p < precision_count(); p++) {
            tensors first[BATCHES];
            if (!is_tried(m, p))
                continue;
            for (int s = 0; s < LF_TILE_SHAPES; s++) {
                char what[128];
                assert_true(told(s));
                rig r = begin(m, p, "");
                for (int b = 0; b < BATCHES; b++) {
                    if (lf_tile_table[s].few && batch[b] > lf_tile_table[s].rows)
                        continue;
                    tensors t = tensors_begin(r.model, &batch[b]);
                    tensors_run(&t, r.call);
                    snprintf(what, sizeof what, "%s, %s, %s", model[m].name, lf_precision_table[p].name,
                             lf_tile_table[s].name);
                    if (s == 0) {
                        first[b] = t;
                        continue;
                    }
                    assert_same_bits(&first[b], &t, what);
                    compared++;
                    tensors_end(&t);
                }
                rig_end(&r);
            }
            for (int b = 0; b < BATCHES; b++)
                tensors_end(&first[b]);
        }
    unsetenv("LINFUSE_CUDA_SHAPE");
    assert_true(compared > MODELS * BATCHES);
}

/* Every size is measured, and gives what it gave before. */
static void measuring_changes_no_bits(void **state)
{
    (void)state;
    for (int p = 0; p < precision_count(); p += 2)
        for (int b = 0; b < BATCHES; b += 3) {
            rig plain = begin(0, p, ""), tuned = begin(0, p, "tune=true");
            tensors a = tensors_begin(plain.model, &batch[b]), c = tensors_begin(tuned.model, &batch[b]);
            tensors_run(&a, plain.call);
            tensors_run(&c, tuned.call);
            assert_same_bits(&a, &c, "a measured run");
            char *text = NULL;
            const char *units = getenv("LINFUSE_CUDA");
            OK_PROGRAM(tuned.program, lf_program_explain(tuned.program, &batch[b], false, &text));
            if (!units || strcmp(units, "wgmma") == 0)
                assert_non_null(strstr(text, "as measured"));
            lf_string_free(text);
            tensors_end(&a);
            tensors_end(&c);
            rig_end(&plain);
            rig_end(&tuned);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_of_it_compiles),
        cmocka_unit_test(all_shapes_give_the_same_bits),
        cmocka_unit_test(measuring_changes_no_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
