/* SPDX-License-Identifier: Apache-2.0 */
/* Products on tensor cores: what goes into the product's struct, and the stages around it: one brings x into lines,
 * unless it is an input that lies so, one multiplies. A kernel of its own brings the weight into lines when it is
 * prepared. */
#include <stdio.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "cuda/emit_parts.h"

/* Lines of 32 of K between promotions. Tensor cores cut off what no longer fits beside their sum, always toward 0, so
 * the longer it stays there the more is lost: of the rms of random results 1.1e-7 at one line, 2.2e-7 at two, 4.5e-7 at
 * four (H200, at any K that is longer). What f32 itself loses grows with K: 0.9e-7 at 64, 1.5 to 2.3e-7 at 128 .. 1024,
 * 3.9e-7 at 4096 (cuBLAS; for a few rows it adds up parts of K, and loses as little at 8192). Products are promoted so
 * often that they lose no more, which makes short ones 0 to 8% slower and long ones 2%. Up to three lines even that is
 * too much beside cuBLAS's four sums of K / 4: see SHORT in text/hopper.cu. Ampere's tensor cores keep a bit less. */
static int lines_of_chunk(int64_t lines)
{
    return lines <= 16 ? 1 : 2;
}

const lf_product *lf_tensor_product(lf_cuda_target target, const lf_group *g)
{
    return target.unit != LF_UNIT_PLAIN && lf_made_as_one(g) > 0 ? g->product : NULL;
}

bool lf_cuda_on_tensor_cores(const lf_plan *plan, lf_cuda_target target)
{
    for (int32_t g = 0; g < plan->groups; g++)
        if (lf_tensor_product(target, &plan->group[g]))
            return true;
    return false;
}

static bool is_split(lf_cuda_target target)
{
    return lf_precision_table[target.precision].split;
}

int64_t lf_tensor_lines(lf_cuda_target target, const lf_product *p, int *chunk)
{
    const int each = lf_line_elements(target.precision);
    const int64_t lines = lf_ceil_div(p->k.coef, each);
    *chunk = is_split(target) ? lines_of_chunk(lines) : 1;
    return lf_ceil_div(lines, *chunk) * *chunk;
}

static bool is_scaled(const lf_emitter *e)
{
    return lf_precision_table[e->target.precision].scaled;
}

/* How many of a thread's 64 sums in a partial's columns the steps' code is written out for; see text/finish.cu.
 * Measured: logsumexp alone wants all, gelu and silu few. */
enum { ALL = 64, SOME = 32, FEW = 16, MUCH = 8, LOTS = 14, LONG = 64 /* lines */ };

/* In fp32, where tensor cores take three times as long, FEW cost gelu nothing that can be measured on Hopper (but silu
 * 1%), and are compiled sooner. */
static int sums_at_a_time(lf_cuda_target target, int flops)
{
    const bool few = flops > LOTS && is_split(target) && target.unit == LF_UNIT_WGMMA;
    return flops <= MUCH ? ALL : few ? FEW : SOME;
}

static void emit_parts(lf_emitter *e)
{
    const lf_phase *p = &e->g->phase[e->tensor->phase];
    int steps = 0;
    for (int32_t i = 0; i < p->steps; i++)
        steps += p->step[i].kind == LF_STEP_OP ? lf_op_row(p->step[i].op)->flops : 0;
    int chunk;
    const int64_t lines = is_split(e->target) ? lf_tensor_lines(e->target, e->tensor, &chunk) : 0;
    const bool is_long = lines > LONG; /* then the time of moving sums, which small code does, is not noticed */
    int part = e->held.run >= 0 ? SOME : sums_at_a_time(e->target, steps);
    /* what is done with all of them takes long to compile, twice over; this moves them most */
    if (lines > 2 * LONG && e->held.waits && part == ALL)
        part = SOME;
    const int run = (int)e->held.length / 2; /* a thread's sums of a segment, which are taken together */
    lf_str_addf(&e->s, "    enum { PART = %d, LONG = %d };\n", part > run ? part : run, is_long);
}

void lf_place_x(lf_emitter *e, int32_t *of_input, int32_t *of_area)
{
    *of_input = *of_area = -1;
    if (!lf_reads_as_it_lies(e->plan, e->g, e->target.unit, e->target.precision))
        return;
    const int32_t where = e->plan->where[e->g->x.index];
    if (e->plan->storage[e->g->x.index] == LF_IN_BUFFER)
        *of_area = where; /* area i is buffer i */
    else if (e->target.aligned)
        *of_input = where;
}

/* Rows by a warp, by a group of threads where they are long, by a part of a warp where they are short. */
static int split_threads(const lf_product *p)
{
    return p->k.coef > 1024 ? 128 : p->k.coef > 128 ? 32 : 8;
}

/* Bytes of shared memory in which rows of x can wait to be brought into lines: all shapes have them, but few rows',
 * which fetch into theirs meanwhile. */
static int split_room(lf_cuda_target target)
{
    return lf_tile_table[target.shape].few ? 0 : target.unit == LF_UNIT_WGMMA ? 192 * 1024 : 64 * 1024;
}

/* A row of x, by SPLIT threads, and its lines. */
static void emit_split_row(lf_emitter *e)
{
    lf_str_addf(&e->s,
                "    enum { SPLIT = %d, K = %lld, X_ALIGNED = %s, ROOM = %d };\n"
                "    typedef %s X;\n"
                "    static __device__ __forceinline__ const X *x_row(const Args &a, const i64 row) { return &",
                split_threads(e->tensor), (long long)e->tensor->k.coef, lf_emit_aligned(e, &e->g->x),
                split_room(e->target), lf_emit_type(e->g->x.dtype));
    lf_emit_row_element(e, &e->g->x, "0");
    lf_str_addf(&e->s,
                "; }\n"
                "    static __device__ __forceinline__ u8 *x_lines(const Args &a, const i64 row) "
                "{ return (u8 *)a.area%d + row * (LINES * %d); }\n"
                "    static __device__ __forceinline__ float *x_scale(const Args &a, const i64 row) "
                "{ return a.area%d + row; }\n"
                "    static __device__ __forceinline__ const float *x_by(const Args &a) { return ",
                (int)e->x_lines, LF_LINE, (int)e->x_scale);
    if (is_split(e->target))
        lf_str_addf(&e->s, "a.redo.uneven ? a.scale[%d] + %lld : ", (int)e->tensor->index,
                    (long long)lf_cuda_columns_at(lf_columns_as_one(e->g)));
    lf_str_add(&e->s, "0; }\n");
}

/* What a phase reads of every column: biases, weights of norms. They are touched by words, which those of shorter
 * elements need not begin with. */
static int emit_phase_vectors(lf_emitter *e, int32_t phase, int count)
{
    lf_touch at;
    for (lf_touches all = lf_touches_in(e->g, phase, phase + 1); lf_touch_next(&all, &at);) {
        if (at.by != LF_TOUCH_LOAD || at.access->dtype != LF_F32 || !lf_is_column_vector(e, at.access))
            continue;
        lf_str_addf(&e->s, "i == %d ? &", count++);
        lf_emit_row_element(e, at.access, "col");
        lf_str_add(&e->s, " : ");
    }
    return count;
}

static void emit_vectors(lf_emitter *e)
{
    const bool two = lf_made_as_one(e->g) == 2; /* words of 32 columns are then two lines */
    int count = 0;
    lf_str_add(&e->s, "    static __device__ __forceinline__ const float *vector(const Args &a, const int i, "
                      "const i64 col) { return ");
    if (is_scaled(e))
        lf_str_addf(&e->s, "i == %d ? a.scale[%d] + %scol : ", count++, (int)e->tensor->index, two ? "2 * " : "");
    if (is_scaled(e) && two)
        lf_str_addf(&e->s, "i == %d ? a.scale[%d] + 2 * col + %d : ", count++, (int)e->tensor->index,
                    LF_LINE / (int)sizeof(float));
    count = emit_phase_vectors(e, e->tensor->phase, count);
    if (e->held.phase >= 0)
        count = emit_phase_vectors(e, e->held.phase, count);
    lf_str_addf(&e->s, "0; }\n    enum { VECTORS = %d }; // the tail reads of each column\n", count);
}

void lf_emit_tensor_extents(lf_emitter *e)
{
    const lf_product *p = e->tensor;
    int chunk;
    const int64_t lines = lf_tensor_lines(e->target, p, &chunk);
    lf_str_addf(&e->s,
                "    enum { MODE = %d, SCALED = %d, N = %lld, LINES = %lld, CHUNK = %d, SHORT = %d, SEVERAL = %d, "
                "BROUGHT = %d };\n",
                (int)e->target.precision, is_scaled(e), (long long)p->n.coef, (long long)lines, chunk,
                lf_is_short(e->target.unit, e->target.precision, (double)p->k.coef), lf_tiled_products(e->plan) > 1,
                e->x_brought);
    emit_parts(e);
    lf_str_addf(&e->s,
                "    static __device__ __forceinline__ const float *x_unscale(const Args &a) { return a.area%d; }\n",
                (int)e->x_scale);
    lf_str_addf(&e->s,
                "    static __device__ __forceinline__ const float *w_unscale(const Args &a) { return a.scale[%d]; }\n",
                (int)e->tensor->index);
    if (e->target.unit == LF_UNIT_WGMMA && !lf_tile_table[e->target.shape].few)
        emit_vectors(e);
    if (e->x_brought)
        emit_split_row(e);
}

static void emit_split(lf_emitter *e)
{
    char name[32];
    snprintf(name, sizeof name, "g%d_split", (int)e->group);
    lf_str_addf(&e->s,
                "// x into lines of 128 bytes\n__device__ __forceinline__ void %s(const Args &a)\n{\n"
                "    split_x<g%d>(a);\n    written_to_copied();\n}\n\n",
                name, (int)e->group);
    lf_cuda_stage *stage = lf_emit_stage(e, name, LF_CUDA_SPLIT, e->g->rows, e->tensor->k);
    if (stage)
        stage->rows_a_block = e->threads / split_threads(e->tensor);
}

void lf_emit_tensor_stages(lf_emitter *e)
{
    const lf_tile *shape = &lf_tile_table[e->target.shape];
    int chunk;
    const int64_t lines = lf_tensor_lines(e->target, e->tensor, &chunk);
    char name[32];
    if (!shape->few && e->x_brought) /* those do it themselves */
        emit_split(e);
    snprintf(name, sizeof name, "g%d_product", (int)e->group);
    lf_str_addf(&e->s,
                "__device__ __forceinline__ void %s(const Args &a, const Control &c, const TensorMap *x, "
                "const TensorMap *w)\n{\n    %s<g%d, %s>(a, c, x, w);\n}\n\n",
                name, lf_tile_product(shape), (int)e->group, shape->text);
    const lf_extent columns = lf_extent_of(lf_columns_as_one(e->g));
    lf_cuda_stage *stage = lf_emit_stage(e, name, LF_CUDA_TENSOR, e->g->rows, columns);
    if (stage) {
        stage->x_area = e->x_lines;
        stage->x_input = e->x_input;
        stage->x_written = !e->x_brought && e->x_lines >= 0;
        stage->lines = lines;
        stage->wave = e->held.waits ? lf_ceil_div(columns.coef, shape->columns) * shape->cluster : 0;
    }
}

const char *lf_cuda_find_columns(lf_dtype weight)
{
    static const char *const names[] = {
        [LF_F32] = "find_weight_columns", [LF_F16] = "find_f16_columns", [LF_BF16] = "find_bf16_columns"};
    return names[weight];
}

static void emit_find_columns(lf_str *to, const lf_cuda_part *part)
{
    bool done[LF_DTYPES] = {false};
    for (int32_t i = 0; i < part->plan->products; i++) {
        const lf_product *p = part->plan->product[i];
        const lf_dtype type = lf_is_tiled_product(p) ? lf_stored_dtype(part->plan, p->weight) : LF_F32;
        if (lf_is_tiled_product(p) && !done[type])
            lf_str_addf(to,
                        "extern \"C\" __global__ void __launch_bounds__(THREADS) %s(const %s *from, i64 row_step, "
                        "i64 step, i64 rows, i64 columns, unsigned *most)\n{\n"
                        "    find_columns(from, row_step, step, rows, columns, most);\n}\n\n",
                        lf_cuda_find_columns(type), lf_emit_type(type));
        done[type] = done[type] || lf_is_tiled_product(p);
    }
}

const char *lf_cuda_split_weight(int32_t group, int32_t weight, char *name)
{
    static const char *const which[] = {"", "other_"};
    snprintf(name, LF_CUDA_SPLIT_NAME, "g%d_split_%sweight", (int)group, which[weight]);
    return name;
}

static void emit_split_weight(lf_str *to, const lf_cuda_part *part, const lf_cuda_stage *stage, int32_t weight)
{
    const lf_group *g = &part->plan->group[stage->group];
    const lf_product *p = &g->product[weight];
    char name[LF_CUDA_SPLIT_NAME];
    lf_str_addf(to,
                "extern \"C\" __global__ void __launch_bounds__(THREADS) %s(const %s *from, "
                "i64 row_step, i64 step, i64 rows, u8 *to, float *unscale, float *by, const unsigned *most, "
                "unsigned *found, unsigned *unseen)\n{\n"
                "    split_weight<%d, %d, %lld, %lld%s>(from, row_step, step, rows, to, unscale, by, most, "
                "found, unseen);\n}\n\n",
                lf_cuda_split_weight(stage->group, weight, name),
                lf_emit_type(lf_stored_dtype(part->plan, p->weight)), split_threads(p), (int)part->target.precision,
                (long long)p->k.coef, (long long)stage->lines, g->products == 2 ? ", 2" : "");
}

void lf_emit_tensor_weights(lf_str *to, const lf_cuda_part *part)
{
    if (is_split(part->target))
        emit_find_columns(to, part);
    for (int32_t i = 0; i < part->stages; i++) {
        const lf_cuda_stage *stage = &part->stage[i];
        for (int32_t w = 0; stage->work == LF_CUDA_TENSOR && w < part->plan->group[stage->group].products; w++)
            emit_split_weight(to, part, stage, w);
    }
}

/* Statistics that are taken from registers: some have a better way to do that than one by one. */
static const struct own_fold {
    lf_monoid monoid;
    const char *text;
} own_folds[] = {
    {LF_MONOID_maxsumexp, lf_text_fold_maxsumexp},
    {LF_MONOID_moments, lf_text_quad_moments},
};

static bool feeds(const lf_cuda_part *part, lf_monoid monoid)
{
    for (int32_t g = 0; g < part->plan->groups; g++) {
        const lf_group *group = &part->plan->group[g];
        const lf_product *p = lf_tensor_product(part->target, group);
        for (int32_t i = 0; i < group->stats && p; i++)
            if (group->stat[i].monoid == monoid && group->stat[i].phase == p->phase)
                return true;
    }
    return false;
}

void lf_emit_tensor_texts(lf_str *to, const lf_cuda_part *part)
{
    const bool mma = part->target.unit == LF_UNIT_MMA;
    const char *const texts[] = {lf_text_split, lf_text_weights, lf_text_finish, mma ? lf_text_mma : lf_text_hopper,
                                 mma ? "" : lf_text_ptx_wgmma, mma ? "" : lf_text_wgmma, mma ? "" : lf_text_few_rows};
    lf_emit_tables(to);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        lf_emit_text(to, texts[i]);
    for (size_t i = 0; i < sizeof own_folds / sizeof *own_folds; i++)
        if (feeds(part, own_folds[i].monoid))
            lf_emit_text(to, own_folds[i].text);
}
