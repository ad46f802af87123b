/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of a product on tensor cores as Ampere and everything newer has them. */
#include "cuda/emit_parts.h"

void lf_emit_mma_kernel(lf_emitter *e)
{
    lf_str_addf(&e->s, "extern \"C\" __global__ void __launch_bounds__(%d, 1) g%d_product(const u8 *w, const __grid_constant__ Args a)\n{\n"
                       "    mma_product<g%d>(a, (const u8 *)a.area[%d], w);\n}\n\n",
                LF_CUDA_THREADS, (int)e->group, (int)e->group, (int)e->x_lines);
}
