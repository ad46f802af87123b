/* SPDX-License-Identifier: Apache-2.0 */
/* Products on tensor cores, from the host: maps of their operands, weights brought into lines, how many blocks there
 * are. */
#include <stdio.h>
#include <string.h>

#include "cuda/device.h"

enum { /* of cuda.h */
    TYPE_FLOAT16 = 6,
    TYPE_BFLOAT16 = 9,
    TYPE_TFLOAT32 = 11,
    SWIZZLE_128 = 3,
    PROMOTE_NONE = 0,
    PROMOTE_256 = 3
};
enum { SCALE_ROOM = 8 }; /* floats past the last scale that a pair may read */

int64_t lf_cuda_tensor_blocks(const lf_cuda_kernel *k, const lf_cuda_stage *stage, const int64_t *dims)
{
    const lf_cuda_shape_info *shape = &lf_cuda_shape_table[k->source.part[LF_CUDA_MAIN].target.shape];
    const int64_t row_blocks = (lf_extent_at(stage->rows, dims) + shape->rows - 1) / shape->rows,
                  column_tiles = (stage->width.coef + k->columns - 1) / k->columns;
    return (row_blocks + k->cluster - 1) / k->cluster * k->cluster * column_tiles;
}

/* ---- weights ---- */

static lf_status split_weight(lf_cuda_program *p, const lf_cuda_kernel *k, const lf_cuda_stage *stage, lf_cuda_ptr wide,
                              lf_diag *diag)
{
    const lf_cuda_driver *driver = p->device->driver;
    const lf_product *product = &p->plan->group[stage->group].product;
    int64_t rows = product->n.coef, row_step = product->w_is_kn ? 1 : product->k.coef,
            step = product->w_is_kn ? product->n.coef : 1;
    const size_t bytes = (size_t)(rows * stage->lines) * LF_CUDA_LINE,
                 scales = (size_t)(rows + SCALE_ROOM) * sizeof(float);
    void *function;
    char name[48];
    snprintf(name, sizeof name, "g%d_split_weight", (int)stage->group);
    lf_status status = lf_cuda_alloc(p->device, bytes, "the prepared weights", &p->lines[stage->group], diag);
    if (status == LF_OK)
        status = lf_cuda_alloc(p->device, scales, "the prepared weights", &p->scale[stage->group], diag);
    if (status != LF_OK)
        return status;
    p->bytes += bytes + scales;
    lf_cuda_ptr *from = &p->prepared[p->plan->where[product->weight]];
    void *params[] = {from, &row_step, &step, &rows, &p->lines[stage->group], &p->scale[stage->group], &wide};
    const lf_cuda_config config = {
        (unsigned)(rows < 4096 ? rows : 4096), 1, 1, (unsigned)k->source.threads, 1, 1, 0, NULL, NULL, 0};
    int error = driver->function_get(&function, k->module, name);
    error = error ? error : driver->set_bytes(p->scale[stage->group], 0, scales, NULL);
    error = error ? error : driver->launch(&config, function, params, NULL);
    return lf_cuda_status(p->device, error, "preparing weights", diag);
}

lf_status lf_cuda_tensor_weights(lf_cuda_program *p, const lf_cuda_kernel *k, bool *is_wide, lf_diag *diag)
{
    const lf_cuda_driver *driver = p->device->driver;
    const lf_cuda_part *main = &k->source.part[LF_CUDA_MAIN];
    lf_cuda_ptr wide = 0;
    unsigned found = 0;
    *is_wide = false;
    if (k->source.products == 0)
        return LF_OK;
    lf_status status = lf_cuda_alloc(p->device, sizeof found, "preparing weights", &wide, diag);
    if (status == LF_OK)
        status = lf_cuda_status(p->device, driver->set_bytes(wide, 0, sizeof found, NULL), "preparing weights", diag);
    for (int32_t i = 0; i < main->stages && status == LF_OK; i++)
        if (main->stage[i].work == LF_CUDA_TENSOR)
            status = split_weight(p, k, &main->stage[i], wide, diag);
    if (status == LF_OK)
        status =
            lf_cuda_status(p->device, driver->to_host(&found, wide, sizeof found, NULL), "preparing weights", diag);
    if (status == LF_OK)
        status = lf_cuda_status(p->device, driver->stream_wait(NULL), "preparing weights", diag);
    driver->free(wide);
    *is_wide = found != 0;
    return status;
}

/* ---- maps ---- */

/* Lines of rows, so many apart from one row to the next and from one line to the next, in boxes of some lines of some
 * rows. */
static int encode(const lf_cuda_program *p, unsigned char *map, lf_cuda_ptr at, int64_t rows, int64_t lines,
                  int64_t row_step, int64_t line_step, int box_rows, int box_lines)
{
    const lf_cuda_mode mode = p->target.mode;
    if (p->target.unit == LF_CUDA_MMA) { /* threads copy: the address is all they need */
        memcpy(map, &at, sizeof at);
        return 0;
    }
    const int type = mode == LF_CUDA_TF32 ? TYPE_TFLOAT32 : mode == LF_CUDA_BF16 ? TYPE_BFLOAT16 : TYPE_FLOAT16;
    const uint32_t each = mode == LF_CUDA_TF32 ? 32 : 64;
    const uint64_t extents[3] = {each, (uint64_t)rows, (uint64_t)lines},
                   stride[2] = {(uint64_t)row_step * LF_CUDA_LINE, (uint64_t)line_step * LF_CUDA_LINE};
    const uint32_t box[3] = {each, (uint32_t)box_rows, (uint32_t)box_lines}, steps[3] = {1, 1, 1};
    /* next to a box that lies in one piece is what another block fetches */
    const int promotion = row_step == 1 ? PROMOTE_NONE : PROMOTE_256;
    return p->device->driver->tensor_map(map, type, 3, (void *)(uintptr_t)at, extents, stride, box, steps, 0,
                                         SWIZZLE_128, promotion, 0);
}

lf_status lf_cuda_tensor_maps(const lf_cuda_program *p, const lf_cuda_kernel *k, const lf_cuda_stage *stage,
                              const lf_cuda_pass *pass, unsigned char *to, lf_diag *diag)
{
    const lf_cuda_part *main = &k->source.part[LF_CUDA_MAIN];
    const lf_cuda_shape_info *shape = &lf_cuda_shape_table[main->target.shape];
    const lf_cuda_ptr w = p->lines[stage->group];
    if (lf_cuda_tensor_blocks(k, stage, pass->dims) > INT32_MAX)
        return lf_fail(diag, LF_ERR_DATA, "the extents are too large: a product of more than 2^31 tiles");
    const int64_t wanted = lf_extent_at(stage->rows, pass->dims), rows = wanted > 0 ? wanted : 1;
    /* Of an empty batch other stages may have something to do; a map of nothing cannot be made, so it is of memory that
     * is there. So is an input's until lf_cuda_point moves it. */
    const lf_cuda_ptr x = wanted > 0 && stage->x_area >= 0 ? lf_cuda_area_at(main, pass, stage->x_area) : w;
    /* no more than there are: rows of 0 take as long as others */
    const int x_box = !shape->few ? shape->rows : shape->x_shared ? (int)(rows + 15) / 16 * 8 : (int)rows;
    int error = encode(p, to, x, rows, stage->lines, stage->lines, 1, x_box, 1);
    error = error ? error
                  : encode(p, to + LF_CUDA_MAP, w, stage->width.coef, stage->lines, 1, stage->width.coef, shape->w_box,
                           shape->w_lines);
    return lf_cuda_status(p->device, error, "describing a product's operands", diag);
}
