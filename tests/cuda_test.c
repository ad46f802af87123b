/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend without a GPU: generated text against tests/golden (LINFUSE_REFRESH=1 writes it anew), kernels
 * through the run-time compiler where it is installed (requirements-test.txt), its cache under damage, and what is said
 * where there is no driver. */
#include "api_fixture.h"
#include "cache_fixture.h"

#include <glob.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/str.h"
#include "cuda/compile.h"
#include "cuda/cuda.h"
#include "cuda/driver.h"
#include "random_model.h"
#include "run/handles.h"

static const char *const arch[] = {"sm_75", "sm_80", "sm_90a"}; /* ordinary units, mma, wgmma */
enum { ARCHS = sizeof arch / sizeof *arch };

static const char *source_dir(void)
{
    const char *source = getenv("LINFUSE_SOURCE_DIR");
    return source ? source : ".";
}

static char *slurp(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    if (f && fseek(f, 0, SEEK_END) == 0) {
        long size = ftell(f);
        rewind(f);
        text = calloc((size_t)size + 1, 1);
        assert_non_null(text);
        assert_int_equal(fread(text, 1, (size_t)size, f), (size_t)size);
    }
    if (f)
        fclose(f);
    return text;
}

/* The kernels of a model's text; caller frees with lf_string_free. */
static char *emitted(const char *text, const char *words, const char *for_arch)
{
    lf_context *context = context_of(1);
    lf_model *model = model_of(context, text);
    lf_program *program = program_of(context, model, words);
    char *out = NULL;
    OK_PROGRAM(program, lf_program_emit(program, for_arch, &out));
    lf_program_free(program);
    lf_model_free(model);
    lf_context_free(context);
    return out;
}

/* ---- text ---- */

/* Elements of every type loaded, multiplied and stored; a weight of another type than x; an intermediate in bf16. */
static const char types_text[] =
    "input x bf16[B, 512]\nparam w bf16[1024, 512]\nparam b bf16[1024]\nparam v f16[3, 1024]\ninput y f16[B, 1024]\n"
    "a = linear(x, w, b)\nc = gelu(a)\nd = softmax(c, dim=1)\ne = to(y, dtype=\"bf16\")\nf = add(d, e)\n"
    "g = to(f, dtype=\"f16\")\nh = linear(g, v)\ni = layer_norm(x, [512])\nreturn f, h, i\n";

/* What is the model's own: from the first group on. */
static const char *own_part(const char *text)
{
    const char *at = strstr(text, "// ---- group 0");
    assert_non_null(at);
    return at;
}

/* name: of the model, up to a dot. */
static void compare_golden(const char *name, const char *model, const char *for_arch)
{
    char golden[1024], *got = emitted(model, NULL, for_arch);
    snprintf(golden, sizeof golden, "%s/tests/golden/emit_%.*s_%s.cu", source_dir(), (int)strcspn(name, "."), name,
             for_arch);
    if (getenv("LINFUSE_REFRESH")) {
        FILE *f = fopen(golden, "wb");
        assert_non_null(f);
        fprintf(f, "// SPDX-License-Identifier: Apache-2.0\n%s", own_part(got));
        assert_int_equal(fclose(f), 0);
    }
    char *want = slurp(golden);
    if (!want)
        print_error("%s is not there; LINFUSE_REFRESH=1 writes it\n", golden);
    assert_non_null(want);
    if (strcmp(own_part(want), own_part(got)) != 0)
        print_error("%s differs from what is generated now (LINFUSE_REFRESH=1 takes it)\n", golden);
    assert_string_equal(own_part(want), own_part(got));
    free(want);
    lf_string_free(got);
}

static void texts_are_as_they_were(void **state)
{
    (void)state;
    char pattern[1024];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/models/*.lf", source_dir());
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_true(found.gl_pathc >= 3);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char *model = slurp(found.gl_pathv[i]);
        for (int a = 0; a < ARCHS; a++)
            compare_golden(strrchr(found.gl_pathv[i], '/') + 1, model, arch[a]);
        free(model);
    }
    globfree(&found);
    for (int a = 0; a < ARCHS; a++)
        compare_golden("types", types_text, arch[a]);
}

/* Any model becomes text, and the same one twice. */
static void any_model_becomes_text(void **state)
{
    (void)state;
    static rnd_case c;
    int made = 0;
    for (uint64_t seed = 1; seed < 400; seed++) {
        if (!rnd_make(seed, &c))
            continue;
        for (int a = 0; a < ARCHS; a++)
            for (int fused = 0; fused < 2; fused++) {
                char *one = emitted(c.text, fused ? "fuse=true" : "fuse=false", arch[a]),
                     *two = emitted(c.text, fused ? "fuse=true" : "fuse=false", arch[a]);
                assert_string_equal(one, two);
                lf_string_free(one);
                lf_string_free(two);
            }
        made++;
    }
    assert_true(made > 100);
}

static void other_architectures_are_refused(void **state)
{
    (void)state;
    rig r = rig_begin(1, "input x f32[B, 4]\ny = relu(x)\nreturn y\n", NULL);
    char *out = NULL;
    assert_int_equal(lf_program_emit(r.program, "sm_10", &out), LF_ERR_ARG);
    assert_non_null(strstr(lf_program_message(r.program), "sm_10"));
    rig_end(&r);
}

/* A row is taken into registers before its phases begin, if it is there by then. */
static void a_row_that_is_made_on_the_way_is_read_again(void **state)
{
    (void)state;
#define PROJECTED(of, results)                                                                                         \
    "input x f32[B, 256]\nparam w f32[3, 256]\ny = softmax(x, dim=1)\na = linear(" of ", w)\n"                        \
    "b = mean(a, dim=1, keepdim=true)\nc = add(b, " of ")\nreturn " results "\n"
    static const struct {
        const char *text;
        bool in_registers;
    } cases[] = {{PROJECTED("x", "c"), true},
                 {PROJECTED("x", "c, y"), true},
                 {PROJECTED("y", "c"), false},
                 {PROJECTED("y", "c, y"), false}};
#undef PROJECTED
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int a = 0; a < ARCHS; a++) {
            char *text = emitted(cases[i].text, NULL, arch[a]);
            if (!strstr(own_part(text), "regs") == cases[i].in_registers)
                print_error("%s", own_part(text));
            assert_int_equal(strstr(own_part(text), "regs") != NULL, cases[i].in_registers);
            lf_string_free(text);
        }
}

/* A program that is not run. */
static rig planned_for_cuda(const char *text)
{
    rig r = {.context = context_of(1)};
    r.model = model_of(r.context, text);
    r.program = program_of(r.context, r.model, "device=h200");
    return r;
}

/* How rows come that a product of one column multiplies and that are wanted again. */
static bool come_by(const char *how, const char *text, lf_gpu_unit unit, bool aligned, unsigned ring)
{
    rig r = planned_for_cuda(text);
    lf_cuda_source source;
    assert_int_equal(lf_cuda_emit(r.program->fused.plan, r.program->task.guarded ? r.program->exact.plan : NULL,
                                  (lf_cuda_target){.unit = unit, .aligned = aligned}, &source, NULL),
                     LF_OK);
    const bool same = strstr(own_part(source.text), how) && source.ring == ring &&
                      !strstr(source.text, "cp.async.bulk") == (ring == 0);
    lf_cuda_source_free(&source);
    rig_end(&r);
    return same;
}

static void long_rows_come_through_a_ring_on_hopper(void **state)
{
    (void)state;
#define ROWS_OF(k)                                                                                                     \
    "input x f32[B, " #k "]\nparam w f32[3, " #k "]\na = linear(x, w)\nb = mean(a, dim=1, keepdim=true)\n"            \
    "c = add(b, x)\nreturn c\n"
    const char *by_registers = "rows_by_registers<ALIGNED, T, 8>(";
    assert_true(come_by("rows_by_ring<T, 8, 2>(", ROWS_OF(8192), LF_UNIT_WGMMA, true, 128 + 2 * (8192 * 4 + 8)));
    assert_true(come_by("rows_by_ring<T, 5, 3>(", ROWS_OF(5120), LF_UNIT_WGMMA, true, 128 + 3 * (5120 * 4 + 8)));
    assert_true(come_by(by_registers, ROWS_OF(8192), LF_UNIT_WGMMA, false, 0));
    assert_true(come_by(by_registers, ROWS_OF(8192), LF_UNIT_MMA, true, 0));
    assert_true(come_by(by_registers, ROWS_OF(8192), LF_UNIT_PLAIN, true, 0));
    /* two rows a block */
    assert_true(come_by(by_registers, ROWS_OF(4096), LF_UNIT_WGMMA, true, 0));
    /* copies do not know what an earlier stage has written */
    assert_true(come_by("rows_by_registers<true, T, 8>(",
                        "input x f32[B, 8192]\nparam w f32[3, 8192]\nparam u f32[1, 8192]\nparam m f32[8192]\n"
                        "param s f32[8192]\na = linear(x, w)\nb = mean(a, dim=1, keepdim=true)\nc = add(b, x)\n"
                        "n = batch_norm(c, m, s, training=true)\nd = linear(n, u)\ne = add(d, n)\nreturn e\n",
                        LF_UNIT_WGMMA, true, 128 + 2 * (8192 * 4 + 8)));
#undef ROWS_OF
}

/* ---- compiling ---- */

static bool compiler_is_there(void)
{
    const lf_nvrtc *nvrtc;
    return lf_nvrtc_find(&nvrtc, NULL) == LF_OK;
}

/* The largest number that stands before these words of the compiler's. */
static long most_before(const char *log, const char *words)
{
    long most = 0;
    for (const char *at = log; (at = strstr(at, words)); at++) {
        const char *from = at;
        while (from > log && from[-1] >= '0' && from[-1] <= '9')
            from--;
        long bytes = strtol(from, NULL, 10);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static long spills(const char *log)
{
    return most_before(log, " bytes spill stores");
}

/* Bytes of shared memory that may be a kernel's own. */
static long own_shared(bool wgmma)
{
    return lf_cuda_own_shared(wgmma ? LF_CUDA_TENSOR_THREADS : LF_CUDA_THREADS);
}

static void assert_fits(const char *log, const char *for_arch)
{
    const long own = most_before(log, " bytes smem"), room = own_shared(strcmp(for_arch, "sm_90a") == 0);
    if (own > room)
        print_error("%s\n%s\n", for_arch, log);
    assert_true(own <= room);
}

static void every_shape_leaves_room_for_the_kernels_own(void **state)
{
    (void)state;
    for (int shape = 0; shape < LF_TILE_SHAPES; shape++)
        for (int p = 0; p < LF_PRECISIONS; p++)
            assert_true(lf_cuda_shape_shared((lf_tile_shape)shape, (lf_precision)p) + own_shared(true) <=
                        227 * 1024);
}

/* wgmma: sums and promoted sums fill the registers of a product's warps; what does not fit is moved out between tiles,
 * not in the loop. mma has room. */
static long most_spilled(const char *for_arch)
{
    return strcmp(for_arch, "sm_80") == 0 ? 0 : 400;
}

static void compile_text(const char *text, const char *for_arch)
{
    lf_diag diag;
    size_t size = 0;
    char *cubin = NULL, *log = NULL;
    lf_status status = lf_cuda_compile(text, for_arch, &cubin, &size, &log, &diag);
    if (status != LF_OK)
        print_error("%s: %s\n", for_arch, diag.text);
    assert_int_equal(status, LF_OK);
    if (strstr(log, "C75") || strstr(log, "warning") || spills(log) > most_spilled(for_arch))
        print_error("%s\n%s\n", for_arch, log);
    assert_null(strstr(log, "C75")); /* serialised wgmma, setmaxnreg ignored */
    assert_null(strstr(log, "warning"));
    assert_true(spills(log) <= most_spilled(for_arch));
    assert_fits(log, for_arch);
    free(cubin);
    free(log);
}

static void compile_for(const char *model, const char *words, const char *for_arch)
{
    char *text = emitted(model, words, for_arch);
    compile_text(text, for_arch);
    lf_string_free(text);
}

/* Shapes of tiles other than the one that is printed. */
static void compile_shapes(const char *model)
{
    const lf_tile *printed = &lf_tile_table[LF_TILE_PAIRS];
    char *text = emitted(model, NULL, "sm_90a"), call[64], cluster[] = "__cluster_dims__(2";
    snprintf(call, sizeof call, "%s<g0, %s>", lf_tile_product(printed), printed->text);
    char *at = strstr(text, call), *dims = strstr(text, cluster);
    assert_non_null(at);
    assert_non_null(dims);
    for (int i = 0; i < LF_TILE_SHAPES; i++) {
        const lf_tile *shape = &lf_tile_table[i];
        lf_str other = {0};
        if (shape->turns)
            continue; /* not in fp32, which this is */
        dims[strlen(cluster) - 1] = (char)('0' + shape->cluster);
        lf_str_addn(&other, text, (size_t)(at - text));
        lf_str_addf(&other, "%s<g0, %s>%s", lf_tile_product(shape), shape->text, at + strlen(call));
        assert_false(other.failed);
        compile_text(other.text, "sm_90a");
        lf_str_free(&other);
    }
    lf_string_free(text);
}

static void every_family_compiles(void **state)
{
    (void)state;
    static const char *const models[] = {"lse_chain",  "gelu_softmax", "mean_residual",
                                         "group_norm", "pool",         "batch_norm_train"};
    if (!compiler_is_there())
        skip();
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char path[1024], *text;
        snprintf(path, sizeof path, "%s/models/%s.lf", source_dir(), models[i]);
        text = slurp(path);
        assert_non_null(text);
        /* what the ordinary units run is in the others' text too, but for the product */
        for (int a = i == 0 ? 0 : 1; a < ARCHS; a++)
            compile_for(text, NULL, arch[a]);
        if (i < 2)
            compile_shapes(text);
        free(text);
    }
    /* two and three products, whose sums want their registers one after the other */
    compile_for("input x f32[B, 96]\nparam v f32[256, 96]\nparam w f32[300, 256]\na = linear(x, v)\nc = gelu(a)\n"
                "d = linear(c, w)\ne = log_softmax(d, dim=1)\nreturn e\n",
                NULL, "sm_90a");
    compile_for("input x f32[B, 1024]\nparam u f32[127, 1024]\nparam m f32[127]\nparam s f32[127]\n"
                "param v f32[2049, 127]\nparam w f32[16, 2049]\na = linear(x, u)\n"
                "b = batch_norm(a, m, s, training=true)\nc = tanh(b)\nd = linear(c, v)\ne = tanh(d)\nf = linear(e, w)\n"
                "g = softmax(f, dim=1)\nh = logsumexp(g, dim=1)\nreturn h\n",
                NULL, "sm_90a");
    /* a narrow product whose rows are in registers beside one on tensor cores; behind one */
    for (int a = 1; a < ARCHS; a++) {
        compile_for("input x f32[B, 512]\nparam w f32[512, 512]\nparam u f32[2, 512]\na = linear(x, u)\n"
                    "b = mean(a, dim=1, keepdim=true)\nc = add(b, x)\nd = linear(c, w)\ne = gelu(d)\nreturn e\n",
                    NULL, arch[a]);
        compile_for("input x f32[B, 2048]\nparam w f32[2048, 2048]\nparam u f32[8, 2048]\na = linear(x, w)\n"
                    "b = gelu(a)\nc = linear(b, u)\nreturn c\n",
                    NULL, arch[a]);
    }
    for (int a = 0; a < ARCHS; a++)
        compile_for(types_text, NULL, arch[a]);
    /* extents that fill no tile, line or pair */
    for (int a = 1; a < ARCHS; a++)
        compile_for("input x f32[B, 37]\nparam w f32[51, 37]\na = linear(x, w)\nb = layer_norm(a, [51])\nreturn b\n",
                    NULL, arch[a]);
}

/* The text for a target, in which these words stand. */
static void compile_target(const rig *r, lf_cuda_target target, const char *words, const char *for_arch)
{
    lf_cuda_source source;
    assert_int_equal(lf_cuda_emit(r->program->fused.plan, NULL, target, &source, NULL), LF_OK);
    assert_non_null(strstr(own_part(source.text), words));
    compile_text(source.text, for_arch);
    lf_cuda_source_free(&source);
}

static lf_cuda_target target_of(int precision, const char *for_arch)
{
    lf_cuda_target target = {.precision = (lf_precision)precision};
    assert_true(lf_cuda_arch_unit(for_arch, &target.unit));
    return target;
}

static void every_precision_compiles(void **state)
{
    (void)state;
    if (!compiler_is_there())
        skip();
    rig r = planned_for_cuda(
        "input x f32[B, 700]\nparam w f32[640, 700]\na = linear(x, w)\nb = gelu(a)\n"
        "c = logsumexp(b, dim=1)\nreturn c\n");
    for (int p = LF_PRECISION_TF32; p < LF_PRECISIONS; p++)
        for (int a = 1; a < ARCHS; a++) {
            lf_cuda_target target = target_of(p, arch[a]);
            for (int turns = 0; turns <= (target.unit == LF_UNIT_WGMMA); turns++) {
                target.shape = turns ? LF_TILE_TURNS : LF_TILE_PAIRS;
                compile_target(&r, target, "BROUGHT = 1", arch[a]);
            }
        }
    rig_end(&r);
}

/* Two products that are made as one, in every precision; a gated MLP, whose last product is another. */
static void two_products_compile(void **state)
{
    (void)state;
    if (!compiler_is_there())
        skip();
    static const char gate[] = "input x %s[B, 704]\nparam g %s[650, 704]\nparam c %s[650]\nparam u %s[650, 704]\n"
                               "param d %s[704, 650]\na = linear(x, g, c)\nb = linear(x, u)\ns = silu(a)\n"
                               "h = mul(s, b)\n%s";
    static const lf_tile_shape shapes[LF_PRECISIONS] = {LF_TILE_FEW16, LF_TILE_FEW64, LF_TILE_TURNS, LF_TILE_ALONE};
    char text[1024];
    snprintf(text, sizeof text, gate, "f32", "f32", "f32", "f32", "f32",
             "l = logsumexp(h, dim=1)\nreturn h, l\n");
    rig r = planned_for_cuda(text);
    for (int p = 0; p < LF_PRECISIONS; p++)
        for (int a = 1; a < ARCHS; a++) {
            lf_cuda_target target = target_of(p, arch[a]);
            compile_target(&r, target, "PRODUCTS = 2", arch[a]);
            target.shape = shapes[p];
            if (target.unit == LF_UNIT_WGMMA)
                compile_target(&r, target, "PRODUCTS = 2", arch[a]);
        }
    rig_end(&r);
    for (int half = 0; half < 2; half++) {
        const char *type = half ? "bf16" : "f32";
        snprintf(text, sizeof text, gate, type, type, type, type, type, "y = linear(h, d)\nreturn y\n");
        for (int a = half; a < ARCHS; a++)
            compile_for(text, NULL, arch[a]);
    }
}

/* Some heads of an MLP, of 7 and 8 columns: rows of a group of threads and rows of a warp. */
static void narrow_products_fit_beside_a_wide_one(void **state)
{
    (void)state;
    if (!compiler_is_there())
        skip();
    static const char *const results[] = {"c", "c, d", "c, d, e", "c, d, e, f"};
    for (int heads = 1; heads <= 4; heads++) {
        char text[1024];
        snprintf(text, sizeof text,
                 "input x f32[B, 512]\nparam w f32[2048, 512]\nparam p f32[8, 2048]\nparam q f32[7, 2048]\n"
                 "param r f32[8, 512]\nparam s f32[7, 512]\na = linear(x, w)\nb = gelu(a)\nc = linear(b, p)\n"
                 "d = linear(b, q)\ne = linear(x, r)\nf = linear(x, s)\nreturn %s\n",
                 results[heads - 1]);
        rig r = planned_for_cuda(text);
        for (int p = LF_PRECISION_FP32; p <= LF_PRECISION_TF32; p++)
            for (int a = 1; a < ARCHS; a++)
                compile_target(&r, target_of(p, arch[a]), "narrow_product<T, 8, 2048>(", arch[a]);
        rig_end(&r);
    }
}

/* A program for the CPU shares x between products, which kernels here cannot: they are printed from another plan. */
static void programs_for_the_cpu_are_emitted_too(void **state)
{
    (void)state;
    static const char text[] = "input x f32[B, 64]\nparam w f32[8, 64]\nparam v f32[7, 64]\na = linear(x, w)\n"
                               "b = linear(x, v)\nc = softmax(a, dim=1)\nreturn c, b\n";
    char *here, *there;
    rig r = rig_begin(1, text, NULL);
    assert_int_equal(r.program->fused.plan->groups, 1);
    OK_PROGRAM(r.program, lf_program_emit(r.program, "sm_80", &here));
    rig_end(&r);
    r = planned_for_cuda(text);
    assert_int_equal(r.program->fused.plan->groups, 2);
    OK_PROGRAM(r.program, lf_program_emit(r.program, "sm_80", &there));
    rig_end(&r);
    assert_string_equal(here, there);
    lf_string_free(here);
    lf_string_free(there);
}

/* What tensor cores are given where products have types of their own. */
static void products_take_what_types_say(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        lf_precision fp32, tf32; /* where those are asked for */
        const char *words;       /* of the text for fp32 */
    } cases[] = {
        {"input x bf16[B, 96]\nparam w bf16[300, 96]\na = linear(x, w)\nreturn a\n", LF_PRECISION_BF16,
         LF_PRECISION_BF16, "typedef bf16 X;"},
        {"input x f16[B, 96]\nparam w f16[96, 300]\na = matmul(x, w)\nb = to(a, dtype=\"f32\")\nreturn b\n",
         LF_PRECISION_FP16, LF_PRECISION_FP16, "g0_split_weight(const f16 *"},
        /* x stays f32 in the kernel, and is rounded where PyTorch rounds it */
        {"input x bf16[B, 96]\nparam w bf16[300, 96]\na = rms_norm(x, [96])\nb = linear(a, w)\nreturn b\n",
         LF_PRECISION_BF16, LF_PRECISION_BF16, "typedef float X;"},
        /* a weight that was calculated is f32 */
        {"input x bf16[B, 96]\nparam w bf16[300, 96]\nv = tanh(w)\na = linear(x, v)\nreturn a\n", LF_PRECISION_FP32,
         LF_PRECISION_TF32, "find_weight_columns(const float *"},
        /* two products, two types */
        {"input x bf16[B, 96]\nparam w bf16[300, 96]\nparam v f32[200, 300]\na = linear(x, w)\n"
         "b = to(a, dtype=\"f32\")\nc = linear(b, v)\nreturn c\n",
         LF_PRECISION_FP32, LF_PRECISION_TF32, "find_bf16_columns(const bf16 *"},
        {"input x f16[B, 96]\nparam w f16[300, 96]\nparam v bf16[200, 300]\na = linear(x, w)\n"
         "b = to(a, dtype=\"bf16\")\nc = linear(b, v)\nreturn c\n",
         LF_PRECISION_FP32, LF_PRECISION_TF32, "find_f16_columns(const f16 *"},
    };
    const bool compiles = compiler_is_there();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig r = planned_for_cuda(cases[i].text);
        const lf_plan *plan = r.program->fused.plan;
        assert_int_equal(lf_plan_precision(plan, LF_UNIT_PLAIN, LF_PRECISION_FP32), LF_PRECISION_FP32);
        for (int a = 1; a < ARCHS; a++) {
            lf_cuda_target target = target_of(LF_PRECISION_FP32, arch[a]);
            assert_int_equal(lf_plan_precision(plan, target.unit, LF_PRECISION_TF32), cases[i].tf32);
            target.precision = lf_plan_precision(plan, target.unit, LF_PRECISION_FP32);
            assert_int_equal(target.precision, cases[i].fp32);
            if (compiles)
                compile_target(&r, target, cases[i].words, arch[a]);
        }
        rig_end(&r);
    }
}

/* x as it lies, in every shape; rows of several columns through a ring. */
static void aligned_inputs_compile(void **state)
{
    (void)state;
    if (!compiler_is_there())
        skip();
    lf_cuda_target target = {.unit = LF_UNIT_WGMMA, .precision = LF_PRECISION_TF32, .aligned = true};
    rig r = planned_for_cuda("input x f32[B, 704]\nparam w f32[640, 704]\na = linear(x, w)\nb = gelu(a)\nreturn b\n");
    for (int shape = 0; shape < LF_TILE_SHAPES; shape++) {
        target.shape = (lf_tile_shape)shape;
        compile_target(&r, target, "BROUGHT = 0", "sm_90a");
    }
    rig_end(&r);
    r = planned_for_cuda("input x bf16[B, 704]\nparam w bf16[640, 704]\na = linear(x, w)\nb = gelu(a)\nreturn b\n");
    target.precision = LF_PRECISION_BF16;
    for (int shape = 0; shape < LF_TILE_SHAPES; shape++) {
        target.shape = (lf_tile_shape)shape;
        compile_target(&r, target, "BROUGHT = 0", "sm_90a");
    }
    rig_end(&r);
    target.precision = LF_PRECISION_TF32;
    r = planned_for_cuda(
        "input x f32[B, 8192]\nparam w f32[2, 8192]\na = linear(x, w)\n"
        "b = logsumexp(a, dim=1, keepdim=true)\nc = add(b, x)\nreturn c\n");
    compile_target(&r, target, "rows_by_ring<", "sm_90a");
    rig_end(&r);
}

/* ---- the cache ---- */

static int own_cache(void **state)
{
    (void)state;
    return cache_begin();
}

static int drop_cache(void **state)
{
    (void)state;
    return cache_end();
}

static const char tiny[] = "extern \"C\" __global__ void nothing(float *x) { *x = 1.0f; }\n";

static void compile_tiny(char **cubin, size_t *size)
{
    lf_diag diag;
    lf_status status = lf_cuda_compile(tiny, "sm_80", cubin, size, NULL, &diag);
    if (status != LF_OK)
        print_error("%s\n", diag.text);
    assert_int_equal(status, LF_OK);
}

static void damaged_entries_are_compiled_anew(void **state)
{
    (void)state;
    char path[256], *first, *again;
    size_t size, again_size;
    if (!compiler_is_there())
        skip();
    compile_tiny(&first, &size);
    assert_int_equal(cache_entries("cuda-", path, sizeof path), 1);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    for (int kind = 0; kind < 4; kind++) { /* a bit in the code, in the key, cut short, empty */
        FILE *f = fopen(path, "r+b");
        assert_non_null(f);
        if (kind < 2) {
            assert_int_equal(fseek(f, kind == 0 ? info.st_size - 40 : 60, SEEK_SET), 0);
            fputc('!', f);
            fputc('?', f);
        } else {
            assert_int_equal(ftruncate(fileno(f), kind == 2 ? info.st_size / 2 : 0), 0);
        }
        fclose(f);
        compile_tiny(&again, &again_size);
        assert_int_equal(again_size, size);
        assert_memory_equal(again, first, size);
        free(again);
        struct stat now;
        assert_int_equal(stat(path, &now), 0);
        assert_int_equal(now.st_size, info.st_size); /* and stored again */
    }
    free(first);
}

static void no_cache_is_no_fault(void **state)
{
    (void)state;
    static const char *const places[] = {"/dev/null/nowhere", "/proc/nowhere", "relative"};
    if (!compiler_is_there())
        skip();
    for (int i = 0; i < 3; i++) {
        char *cubin;
        size_t size;
        assert_int_equal(setenv("XDG_CACHE_HOME", places[i], 1), 0);
        assert_int_equal(setenv("HOME", "/dev/null", 1), 0);
        compile_tiny(&cubin, &size);
        free(cubin);
    }
}

static void processes_share_the_cache(void **state)
{
    (void)state;
    char path[256];
    if (!compiler_is_there())
        skip();
    pid_t child[3];
    for (int i = 0; i < 3; i++) {
        child[i] = fork();
        assert_true(child[i] >= 0);
        if (child[i] == 0) {
            char *cubin = NULL;
            size_t size = 0;
            _exit(lf_cuda_compile(tiny, "sm_80", &cubin, &size, NULL, NULL) == LF_OK && size > 0 ? 0 : 1);
        }
    }
    for (int i = 0; i < 3; i++) {
        int status;
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(cache_entries("cuda-", path, sizeof path), 1);
}

static void bad_text_is_told(void **state)
{
    (void)state;
    lf_diag diag;
    char *cubin;
    size_t size;
    if (!compiler_is_there())
        skip();
    assert_int_equal(lf_cuda_compile("__global__ void f() { nonsense }\n", "sm_80", &cubin, &size, NULL, &diag),
                     LF_ERR_UNSUPPORTED);
    assert_null(cubin);
    assert_non_null(strstr(diag.text, "nonsense"));
}

/* ---- no driver ---- */

static void absence_is_told(void **state)
{
    (void)state;
    const lf_cuda_driver *driver;
    if (lf_cuda_driver_find(&driver, NULL) == LF_OK)
        skip();
    lf_context *context = context_of(1);
    lf_model *model = model_of(context, "input x f32[B, 4]\ny = relu(x)\nreturn y\n");
    lf_options *options = options_of(context, "device=cuda");
    lf_program *program = NULL;
    assert_int_equal(lf_program_new(model, options, &program), LF_ERR_DEVICE);
    assert_null(program);
    assert_non_null(strstr(lf_model_message(model), "libcuda"));
    double flops;
    assert_int_equal(lf_device_peak(context, "cuda", &flops, NULL), LF_ERR_DEVICE);
    lf_options_free(options);
    lf_model_free(model);
    lf_context_free(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_as_they_were),
        cmocka_unit_test(any_model_becomes_text),
        cmocka_unit_test(other_architectures_are_refused),
        cmocka_unit_test(a_row_that_is_made_on_the_way_is_read_again),
        cmocka_unit_test(long_rows_come_through_a_ring_on_hopper),
        cmocka_unit_test(every_shape_leaves_room_for_the_kernels_own),
        cmocka_unit_test_setup_teardown(every_family_compiles, own_cache, drop_cache),
        cmocka_unit_test_setup_teardown(every_precision_compiles, own_cache, drop_cache),
        cmocka_unit_test_setup_teardown(two_products_compile, own_cache, drop_cache),
        cmocka_unit_test_setup_teardown(narrow_products_fit_beside_a_wide_one, own_cache, drop_cache),
        cmocka_unit_test_setup_teardown(products_take_what_types_say, own_cache, drop_cache),
        cmocka_unit_test(programs_for_the_cpu_are_emitted_too),
        cmocka_unit_test_setup_teardown(aligned_inputs_compile, own_cache, drop_cache),
        cmocka_unit_test_setup_teardown(damaged_entries_are_compiled_anew, own_cache, drop_cache),
        cmocka_unit_test_setup_teardown(processes_share_the_cache, own_cache, drop_cache),
        cmocka_unit_test_setup_teardown(bad_text_is_told, own_cache, drop_cache),
        cmocka_unit_test_setup_teardown(no_cache_is_no_fault, own_cache, drop_cache),
        cmocka_unit_test(absence_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
