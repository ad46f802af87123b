/* SPDX-License-Identifier: Apache-2.0 */
/* The two stages of a statistic over all rows. */
#include <stdio.h>

#include "cuda/emit_parts.h"

static void emit_stage(lf_emitter *e, int32_t index, const char *part, const char *arguments, lf_cuda_work work)
{
    const lf_stat *st = &e->g->stat[index];
    const lf_phase *p = &e->g->phase[st->phase];
    const lf_extent rows = p->one_row ? lf_extent_of(1) : e->g->rows;
    char name[32];
    snprintf(name, sizeof name, "g%d_%s%d", (int)e->group, part, (int)index);
    lf_str_addf(&e->s, "__device__ __forceinline__ void %s(const Args &a)\n{\n    %s<%s_stat>(a.area%d, ", name, part,
                lf_monoid_row(st->monoid)->name,
                (int)(work == LF_CUDA_COLUMN_BLOCKS ? e->column[index] : e->partial[index]));
    lf_emit_extent(e, rows);
    lf_str_add(&e->s, ", ");
    lf_emit_extent(e, p->width);
    lf_str_addf(&e->s, ", %s);\n}\n\n", arguments);
    lf_emit_stage(e, name, work, rows, p->width);
}

void lf_emit_columns(lf_emitter *e, int32_t stat)
{
    char arguments[64];
    lf_str_addf(&e->s, "// %s of each column, for %s\n", lf_monoid_row(e->g->stat[stat].monoid)->name,
                lf_at(e->graph, e->g->stat[stat].node)->name);
    snprintf(arguments, sizeof arguments, "a.area%d", (int)e->partial[stat]);
    emit_stage(e, stat, "column_blocks", arguments, LF_CUDA_COLUMN_BLOCKS);
    if (e->result[stat][1] < 0)
        snprintf(arguments, sizeof arguments, "a.area%d, 0", (int)e->result[stat][0]);
    else
        snprintf(arguments, sizeof arguments, "a.area%d, a.area%d", (int)e->result[stat][0],
                 (int)e->result[stat][1]);
    emit_stage(e, stat, "column_end", arguments, LF_CUDA_COLUMN_END);
}
