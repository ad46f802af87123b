/* SPDX-License-Identifier: Apache-2.0 */
/* Plans as one kernel: fixed texts, each part in its namespace, and the kernel that goes through their stages. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda/emit_parts.h"

static const char *const namespaces[LF_CUDA_ROLES] = {"fused", "full_range", "as_written"};

/* ---- fixed texts ---- */

/* Statistics within a row; some monoids have a faster way than one by one. */
static void emit_stats(lf_str *to, const lf_plan *const *plan, int plans)
{
    bool used[LF_MONOID_COUNT];
    lf_used_monoids(plan, plans, used);
    lf_emit_text(to, lf_text_stats);
    if (used[LF_MONOID_moments]) {
        lf_emit_text(to, lf_text_short_moments);
        lf_emit_text(to, lf_text_partials_moments);
    }
    if (used[LF_MONOID_maxsumexp])
        lf_emit_text(to, lf_text_partials_maxsumexp);
    lf_emit_text(to, lf_text_windows);
}

static void emit_texts(lf_str *to, const lf_cuda_source *source)
{
    const lf_plan *plan[LF_CUDA_ROLES];
    for (int i = 0; i < LF_CUDA_ROLES; i++)
        plan[i] = source->part[i].plan;
    lf_str_addf(
        to,
        "enum { THREADS = %d, ALIGNED = %d }; // of a block; the caller's arrays begin at multiples of 16 bytes\n\n",
        source->threads, source->part[LF_CUDA_MAIN].target.aligned);
    lf_emit_text(to, lf_text_ptx);
    lf_emit_text(to, lf_text_types);
    lf_emit_text(to, lf_text_base);
    lf_emit_text(to, lf_text_math);
    lf_emit_ops(to, plan, LF_CUDA_ROLES);
    lf_emit_monoids(to, plan, LF_CUDA_ROLES);
    emit_stats(to, plan, LF_CUDA_ROLES);
    lf_emit_text(to, lf_text_plain);
    if (source->part[LF_CUDA_MAIN].target.unit == LF_UNIT_WGMMA && (source->products > 0 || source->ring > 0))
        lf_emit_text(to, lf_text_ptx_hopper);
    if (source->ring > 0)
        lf_emit_text(to, lf_text_ring);
    if (source->products > 0)
        lf_emit_tensor_texts(to, &source->part[LF_CUDA_MAIN]);
}

/* ---- the kernel ---- */

static void emit_stage_calls(lf_str *to, const lf_cuda_part *part)
{
    const char *name = namespaces[LF_CUDA_MAIN];
    int product = 0;
    for (int32_t i = 0; i < part->stages; i++) {
        /* what stages have stored is seen by copies of hardware only if both sides say so */
        const char *seen = part->stage[i].x_written ? "    written_to_copied();\n" : "";
        if (i > 0)
            lf_str_addf(to, "%s    grid_sync(c);\n%s", seen, seen);
        lf_str_addf(to, "    %s::%s(%s", name, part->stage[i].name, name);
        if (part->stage[i].arrives)
            lf_str_add(to, ", c, arrived");
        if (part->stage[i].work == LF_CUDA_TENSOR) {
            lf_str_addf(to, ", c, &maps.map[%d], &maps.map[%d]", 2 * product, 2 * product + 1);
            product++;
        }
        lf_str_add(to, ");\n");
    }
}

/* The flags of Control that a part which redoes rows goes by. */
static const char *flags_of(lf_cuda_role role)
{
    return role == LF_CUDA_FULL_RANGE ? "beyond" : "watched";
}

/* Rarely run: kept out of the way of what is, and small: there is one barrier for all its stages. Clears the flags it
 * went by. */
static void emit_redo(lf_str *to, const lf_cuda_source *source, lf_cuda_role role)
{
    const lf_cuda_part *part = &source->part[role];
    const char *name = namespaces[role], *flags = flags_of(role);
    lf_str_addf(to,
                "__device__ __noinline__ void redo_%s(const %s::Args &%s, const Control &c)\n{\n#pragma unroll 1\n"
                "    for (int stage = 0; stage <= %d; ++stage) {\n        grid_sync(c);\n",
                name, name, name, (int)part->stages);
    for (int32_t i = 0; i < part->stages; i++)
        lf_str_addf(to, "        if (stage == %d)\n            %s::%s(%s);\n", (int)i, name, part->stage[i].name, name);
    lf_str_addf(to,
                "    }\n    if (blockIdx.x == 0) {\n        const i64 rows = clear_flags(c.%s, c.%s_any, c.batch);\n",
                flags, flags);
    if (role == LF_CUDA_AS_WRITTEN)
        lf_str_add(to, "        if (threadIdx.x == 0)\n            *c.redone = rows;\n");
    else
        lf_str_add(to, "        (void)rows;\n");
    lf_str_add(to, "    }\n}\n\n");
}

static void emit_redo_call(lf_str *to, lf_cuda_role role, bool arrived)
{
    const char *name = namespaces[role], *flags = flags_of(role);
    if (role == LF_CUDA_FULL_RANGE) /* set before a barrier that is long past */
        lf_str_addf(to, "    if (any_set(c.%s_any))\n        redo_%s(%s, c);\n", flags, name, name);
    else /* set until now */
        lf_str_addf(to,
                    "    if (any_watched(c, %s))\n        redo_%s(%s, c);\n"
                    "    else if (blockIdx.x == 0 && threadIdx.x == 0)\n        *c.redone = 0;\n",
                    arrived ? "arrived" : "block_arrive(c)", name, name);
}

/* Blocks that a multiprocessor should have room for, which limits registers. Rows of which two are in registers, of
 * 8192 elements on an H200: 44 us with 2, 64 with 3. With a ring 42 with 2, which its room is for (RING in
 * emit_rows.c). */
static int blocks_wanted(const lf_cuda_source *source)
{
    const lf_cuda_part *main = &source->part[LF_CUDA_MAIN];
    bool ahead = false;
    for (int32_t i = 0; i < main->stages; i++)
        ahead = ahead || main->stage[i].ahead;
    return ahead && source->products == 0 ? 2 : 1; /* products take what registers there are */
}

static void emit_kernel(lf_str *to, const lf_cuda_source *source)
{
    const lf_cuda_part *main = &source->part[LF_CUDA_MAIN];
    for (int role = LF_CUDA_MAIN + 1; role < LF_CUDA_ROLES; role++)
        if (source->part[role].plan)
            emit_redo(to, source, (lf_cuda_role)role);
    if (source->products > 0)
        lf_str_addf(to, "struct Maps {\n    TensorMap map[%d];\n};\n\n", 2 * source->products);
    lf_str_add(to, "extern \"C\" __global__ void ");
    if (source->products > 0 && main->target.unit == LF_UNIT_WGMMA)
        lf_str_addf(to, "__cluster_dims__(%d, 1, 1) ", lf_tile_table[main->target.shape].cluster);
    lf_str_addf(to, "__launch_bounds__(%d, %d)\n", source->threads, blocks_wanted(source));
    lf_str_addf(to, "program(%sconst __grid_constant__ Control c",
                source->products > 0 ? "const __grid_constant__ Maps maps, " : "");
    for (int role = 0; role < LF_CUDA_ROLES; role++)
        if (source->part[role].plan)
            lf_str_addf(to, ", const __grid_constant__ %s::Args %s", namespaces[role], namespaces[role]);
    lf_str_add(to, ")\n{\n");
    const bool arrived = main->stages > 0 && main->stage[main->stages - 1].arrives;
    lf_str_add(to, arrived ? "    unsigned arrived = 0;\n" : "");
    emit_stage_calls(to, main);
    for (int role = LF_CUDA_MAIN + 1; role < LF_CUDA_ROLES; role++)
        if (source->part[role].plan)
            emit_redo_call(to, (lf_cuda_role)role, arrived);
    lf_str_add(to, "}\n");
}

/* ---- all of it ---- */

static bool emit_parts(lf_str *to, lf_cuda_source *source)
{
    bool good = true;
    for (int role = 0; role < LF_CUDA_ROLES; role++) {
        lf_cuda_part *part = &source->part[role];
        if (!part->plan)
            continue;
        lf_emitter e = {.plan = part->plan,
                        .graph = part->plan->graph,
                        .target = part->target,
                        .role = (lf_cuda_role)role,
                        .threads = source->threads,
                        .guarded = role == LF_CUDA_MAIN && source->part[LF_CUDA_AS_WRITTEN].plan &&
                                   !source->part[LF_CUDA_FULL_RANGE].plan, /* which has barriers of its own, before */
                        .out = part,
                        .s = *to};
        lf_emit_part(&e, namespaces[role]);
        good = good && !e.failed;
        *to = e.s;
    }
    return good;
}

lf_status lf_cuda_emit(const lf_plan *plan, const lf_plan *as_written, lf_cuda_target target, lf_cuda_source *out,
                       lf_diag *diag)
{
    const bool tensor = lf_cuda_on_tensor_cores(plan, target);
    assert(plan->options.cut == LF_CUT_NONE && !plan->options.keep_exps);
    *out =
        (lf_cuda_source){.threads = tensor && target.unit == LF_UNIT_WGMMA ? LF_CUDA_TENSOR_THREADS : LF_CUDA_THREADS};
    out->part[LF_CUDA_MAIN] = (lf_cuda_part){.plan = plan, .target = target};
    if (tensor && lf_precision_table[target.precision].split)
        out->part[LF_CUDA_FULL_RANGE].plan = plan;
    out->part[LF_CUDA_AS_WRITTEN].plan = as_written;
    lf_str text = {0}, parts = {0};
    bool good = emit_parts(&parts, out);
    const lf_cuda_part *main = &out->part[LF_CUDA_MAIN];
    for (int32_t i = 0; i < main->stages; i++) {
        out->products += main->stage[i].work == LF_CUDA_TENSOR;
        out->waits = out->waits || main->stage[i].wave > 0;
        out->ring = main->stage[i].ring > out->ring ? main->stage[i].ring : out->ring;
    }
    out->waits = out->waits || main->stages > 1 ||
                 (out->products > 0 && lf_tile_table[target.shape].few) ||
                 out->part[LF_CUDA_FULL_RANGE].plan || as_written;
    emit_texts(&text, out);
    if (parts.text)
        lf_str_addn(&text, parts.text, parts.length);
    good = good && !parts.failed;
    lf_str_free(&parts);
    if (out->products > 0)
        lf_emit_tensor_weights(&text, &out->part[LF_CUDA_MAIN]);
    emit_kernel(&text, out);
    out->text = lf_str_take(&text);
    return out->text && good ? LF_OK : lf_fail_nomem(diag, "the program's CUDA text");
}

void lf_cuda_source_free(lf_cuda_source *source)
{
    free(source->text);
    for (int i = 0; i < LF_CUDA_ROLES; i++) {
        free(source->part[i].stage);
        free(source->part[i].area);
    }
    *source = (lf_cuda_source){0};
}
