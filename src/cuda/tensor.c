/* SPDX-License-Identifier: Apache-2.0 */
/* Products on tensor cores, from the host: maps of their operands, weights brought into lines, how many blocks there
 * are. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cuda/device.h"

enum { /* of cuda.h */
    SWIZZLE_128 = 3,
    PROMOTE_NONE = 0,
    PROMOTE_256 = 3
};

int64_t lf_cuda_tensor_blocks(const lf_cuda_kernel *k, const lf_cuda_stage *stage, const int64_t *dims)
{
    const lf_tile *shape = &lf_tile_table[k->source.part[LF_CUDA_MAIN].target.shape];
    const int64_t row_blocks = lf_ceil_div(lf_extent_at(stage->rows, dims), shape->rows),
                  column_tiles = lf_ceil_div(stage->width.coef, k->columns);
    return lf_ceil_div(row_blocks, k->cluster) * k->cluster * column_tiles;
}

/* ---- weights ---- */

/* Of text/weights.cu: what is found out about weights, and the binades of rows of x. (24 of them where a weight is not
 * dense would keep 16 bits of all elements. But one row of a thousand would be done on the ordinary units, where 8192 x
 * 8192 take 2 ms for one row.) */
enum { IS_BEYOND = 1, HAS_SMALL = 2, HAS_UNSEEN = 4, IS_UNEVEN = 8, FEW_UNSEEN = 8 };
enum { ANY_BINADES = 1 << 10, BINADES = 36, FOUND = 2 };

/* The weight of a stage on its way into lines, or those of two products that are made as one, and what is found out
 * about it: on the device, in one piece, a word of IS_BEYOND and so on, how many rows are not 0, for each column how
 * many of these do not see it, then the largest of each column and of all. */
typedef struct weight {
    const lf_cuda_stage *stage;
    const lf_group *group;
    int64_t columns;
    lf_cuda_ptr found, unseen, most;
} weight;

static int launch(const lf_cuda_program *p, const lf_cuda_kernel *k, const char *name, int64_t x, int64_t y,
                  void **params)
{
    const lf_cuda_driver *driver = p->device->driver;
    const lf_cuda_config config = {
        (unsigned)(x < 4096 ? x : 4096), (unsigned)y, 1, (unsigned)k->source.threads, 1, 1, 0, NULL, NULL, 0};
    void *function;
    const int error = driver->function_get(&function, k->module->handle, name);
    return error ? error : driver->launch(&config, function, params, NULL);
}

/* Looks at the columns of one product's weight, or brings its rows into lines. */
static int launch_for(lf_cuda_program *p, const lf_cuda_kernel *k, weight *w, int32_t which, bool look)
{
    enum { SHARES = 64 }; /* of a column's rows */
    const lf_product *product = &w->group->product[which], *first = w->group->product;
    int64_t rows = product->n.coef, row_step = product->w_is_kn ? 1 : w->columns, step = product->w_is_kn ? rows : 1;
    lf_cuda_ptr *from = &p->prepared[p->plan->where[product->weight]],
                lines = p->lines[first->index] + (lf_cuda_ptr)which * LF_BY_TURNS * LF_LINE,
                scale = p->scale[first->index] + (lf_cuda_ptr)which * LF_BY_TURNS * sizeof(float),
                by = p->scale[first->index] + (lf_cuda_ptr)lf_cuda_columns_at(w->stage->width.coef) * sizeof(float);
    void *to_look[] = {from, &row_step, &step, &rows, &w->columns, &w->most},
         *to_put[] = {from, &row_step, &step, &rows, &lines, &scale, &by, &w->most, &w->found, &w->unseen};
    char name[LF_CUDA_SPLIT_NAME];
    return look ? launch(p, k, lf_cuda_find_columns(lf_stored_dtype(p->plan, product->weight)),
                         lf_ceil_div(w->columns, k->source.threads), SHARES, to_look)
                : launch(p, k, lf_cuda_split_weight(w->stage->group, which, name), rows, 1, to_put);
}

static int split(lf_cuda_program *p, const lf_cuda_kernel *k, weight *w)
{
    int error = 0;
    for (int32_t i = 0; i < w->group->products && error == 0 && lf_precision_table[p->target.precision].split; i++)
        error = launch_for(p, k, w, i, true);
    for (int32_t i = 0; i < w->group->products && error == 0; i++)
        error = launch_for(p, k, w, i, false);
    return error;
}

/* Room for its lines and scales, 0 where columns are filled up. */
static lf_status make_lines(lf_cuda_program *p, const weight *w, lf_diag *diag)
{
    const lf_cuda_driver *driver = p->device->driver;
    const int64_t by = w->stage->lines * LF_LINE / (int64_t)sizeof(float), rows = w->stage->width.coef;
    const size_t bytes = (size_t)(rows * w->stage->lines) * LF_LINE,
                 scales = (size_t)(lf_cuda_columns_at(rows) + by) * sizeof(float);
    lf_cuda_ptr *lines = &p->lines[w->group->product->index], *scale = &p->scale[w->group->product->index];
    lf_status status = lf_cuda_alloc(p->device, bytes, "the prepared weights", lines, diag);
    if (status == LF_OK)
        status = lf_cuda_alloc(p->device, scales, "the prepared weights", scale, diag);
    if (status != LF_OK)
        return status;
    p->bytes += bytes + scales;
    int error = driver->set_bytes(*scale, 0, scales, NULL);
    if (error == 0 && rows > w->group->products * w->group->product->n.coef)
        error = driver->set_bytes(*lines, 0, bytes, NULL);
    return lf_cuda_status(p->device, error, "preparing weights", diag);
}

/* found: has room for FOUND words and one for each column. Adds to what is known of the program's weights. */
static lf_status split_weight(lf_cuda_program *p, const lf_cuda_kernel *k, weight *w, unsigned *found, unsigned *all,
                              lf_diag *diag)
{
    const lf_cuda_driver *driver = p->device->driver;
    const size_t words = FOUND + (size_t)w->columns, room = (words + (size_t)w->columns + 1) * sizeof *found;
    lf_status status = make_lines(p, w, diag);
    if (status == LF_OK)
        status = lf_cuda_alloc(p->device, room, "preparing weights", &w->found, diag);
    if (status != LF_OK)
        return status;
    w->unseen = w->found + FOUND * sizeof *found, w->most = w->found + words * sizeof *found;
    int error = driver->set_bytes(w->found, 0, room, NULL);
    error = error ? error : split(p, k, w);
    error = error ? error : driver->to_host(found, w->found, words * sizeof *found, NULL);
    error = error ? error : driver->stream_wait(NULL);
    driver->free(w->found);
    for (size_t i = FOUND; i < words && error == 0; i++)
        if ((int64_t)found[i] * FEW_UNSEEN > found[1])
            found[0] |= HAS_UNSEEN;
    if (found[0] & HAS_SMALL && found[0] & HAS_UNSEEN)
        found[0] |= IS_BEYOND;
    *all |= found[0];
    return lf_cuda_status(p->device, error, "preparing weights", diag);
}

lf_status lf_cuda_tensor_weights(lf_cuda_program *p, const lf_cuda_kernel *k, bool *beyond, lf_diag *diag)
{
    const lf_cuda_part *main = &k->source.part[LF_CUDA_MAIN];
    unsigned all = 0;
    lf_status status = LF_OK;
    for (int32_t i = 0; i < main->stages && status == LF_OK; i++) {
        const lf_cuda_stage *stage = &main->stage[i];
        if (stage->work != LF_CUDA_TENSOR)
            continue;
        const lf_group *group = &p->plan->group[stage->group];
        weight w = {.stage = stage, .group = group, .columns = group->product->k.coef};
        unsigned *found = calloc(FOUND + (size_t)w.columns, sizeof *found);
        status = found ? split_weight(p, k, &w, found, &all, diag) : lf_fail_nomem(diag, "preparing weights");
        free(found);
    }
    *beyond = all & IS_BEYOND;
    p->binades = all & HAS_UNSEEN ? BINADES : ANY_BINADES;
    p->uneven = all & IS_UNEVEN;
    return status;
}

/* ---- maps ---- */

/* Lines of rows, so many apart from one row to the next and from one line to the next, in boxes of some lines of some
 * rows. */
static int encode(const lf_cuda_program *p, unsigned char *map, lf_cuda_ptr at, int64_t rows, int64_t lines,
                  int64_t row_step, int64_t line_step, int box_rows, int box_lines)
{
    const lf_precision_info *precision = &lf_precision_table[p->target.precision];
    if (p->target.unit == LF_UNIT_MMA) { /* threads copy: the address is all they need */
        memcpy(map, &at, sizeof at);
        return 0;
    }
    const uint32_t each = (uint32_t)(LF_LINE / precision->bytes);
    const uint64_t extents[3] = {each, (uint64_t)rows, (uint64_t)lines},
                   stride[2] = {(uint64_t)row_step * LF_LINE, (uint64_t)line_step * LF_LINE};
    const uint32_t box[3] = {each, (uint32_t)box_rows, (uint32_t)box_lines}, steps[3] = {1, 1, 1};
    /* next to a box that lies in one piece is what another block fetches */
    const int promotion = row_step == 1 ? PROMOTE_NONE : PROMOTE_256;
    return p->device->driver->tensor_map(map, precision->map_type, 3, (void *)(uintptr_t)at, extents, stride, box,
                                         steps, 0, SWIZZLE_128, promotion, 0);
}

lf_status lf_cuda_tensor_maps(const lf_cuda_program *p, const lf_cuda_kernel *k, const lf_cuda_stage *stage,
                              const lf_cuda_pass *pass, unsigned char *to, lf_diag *diag)
{
    const lf_cuda_part *main = &k->source.part[LF_CUDA_MAIN];
    const lf_tile *shape = &lf_tile_table[main->target.shape];
    const lf_cuda_ptr w = p->lines[p->plan->group[stage->group].product[0].index];
    if (lf_cuda_tensor_blocks(k, stage, pass->dims) > INT32_MAX)
        return lf_fail(diag, LF_ERR_DATA, "the extents are too large: a product of more than 2^31 tiles");
    const int64_t wanted = lf_extent_at(stage->rows, pass->dims), rows = wanted > 0 ? wanted : 1;
    /* Of an empty batch other stages may have something to do; a map of nothing cannot be made, so it is of memory that
     * is there. So is an input's until lf_cuda_point moves it. */
    const lf_cuda_ptr x = wanted > 0 && stage->x_area >= 0 ? lf_cuda_area_at(main, pass, stage->x_area) : w;
    /* no more than there are: rows of 0 take as long as others */
    const int x_box = !shape->few ? shape->rows : shape->shares_x ? (int)(rows + 15) / 16 * 8 : (int)rows;
    int error = encode(p, to, x, rows, stage->lines, stage->lines, 1, x_box, 1);
    error = error ? error
                  : encode(p, to + LF_CUDA_MAP, w, stage->width.coef, stage->lines, 1, stage->width.coef,
                           lf_tile_w_rows(shape), shape->deep);
    return lf_cuda_status(p->device, error, "describing a product's operands", diag);
}
