/* SPDX-License-Identifier: Apache-2.0 */
/* The table of devices, what is worked out from its rows, and the row that a GPU is like. */
#include <ctype.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "plan/cost.h"

static const lf_device measured[] = {
#define LF_DEVICE(id, text, ...) {.name = #id, .title = text, __VA_ARGS__},
#define LF_DEVICE_LIKE(id, text, row, ...)
#include "plan/devices.def"
#undef LF_DEVICE
#undef LF_DEVICE_LIKE
};
enum { MEASURED = sizeof measured / sizeof *measured };

/* Rows that are like another. */
static const struct likeness {
    const char *name, *title, *like, *board;
    int units, shared_bytes;
    lf_paper paper;
} alike[] = {
#define LF_DEVICE(id, text, ...)
#define LF_DEVICE_LIKE(id, text, row, ...) {.name = #id, .title = text, .like = #row, __VA_ARGS__},
#include "plan/devices.def"
#undef LF_DEVICE
#undef LF_DEVICE_LIKE
};
enum { ALIKE = sizeof alike / sizeof *alike, DEVICES = MEASURED + ALIKE };

static lf_device table[DEVICES];
static int filled; /* of it: a row that is like another stands behind that */

static const lf_device *find(const char *name)
{
    for (int i = 0; i < filled; i++)
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}

/* Rates of products, on the tensor cores. */
static void scale_products(lf_device *d, double by)
{
    d->product_flops *= by;
    d->row_flops *= by;
    for (int p = 0; p < LF_PRECISIONS; p++)
        d->gpu.precision[p].flops *= by;
}

/* Each figure of the other row, times how the data sheets compare. */
static lf_device worked_out(const struct likeness *l)
{
    lf_device d = *find(l->like);
    const lf_paper *other = &d.gpu.paper;
    const double flops = l->paper.flops / other->flops, bytes = l->paper.bytes / other->bytes,
                 tensor = l->paper.tensor_flops / other->tensor_flops;
    snprintf(d.name, sizeof d.name, "%s", l->name);
    snprintf(d.title, sizeof d.title, "%s", l->title);
    scale_products(&d, tensor);
    d.flops *= flops;
    d.dot_flops *= flops;
    d.element_flops *= flops;
    d.function_flops *= flops;
    d.cache_rate *= flops; /* as units and their clock, as its two neighbours below */
    d.gpu.tile_bytes *= flops;
    d.gpu.unit_bytes *= flops * d.units / l->units;
    d.gpu.plain_flops *= flops;
    d.gpu.plain_bytes *= bytes;
    d.bytes *= bytes;
    d.write_bytes *= bytes;
    d.cache_bytes *= l->paper.cache_bytes / other->cache_bytes;
    d.units = l->units;
    d.gpu.board = l->board;
    d.gpu.shared_bytes = l->shared_bytes;
    d.gpu.paper = l->paper;
    return d;
}

static void fill_table(void)
{
    for (; filled < MEASURED; filled++)
        table[filled] = measured[filled];
    for (; filled < DEVICES; filled++)
        table[filled] = worked_out(&alike[filled - MEASURED]);
}

const lf_device *lf_device_at(size_t index)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_table);
    return index < DEVICES ? &table[index] : NULL;
}

const lf_device *lf_device_named(const char *name)
{
    return lf_device_at(0) ? find(name) : NULL;
}

/* ---- the row that a GPU is like ---- */

/* The letters of word where it stands in text as a word of its own; 0 where it does not. */
static size_t has_word(const char *text, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word))
        if ((at == text || !isalnum((unsigned char)at[-1])) && !isalnum((unsigned char)at[length]))
            return length;
    return 0;
}

static const lf_device *of_its_board(const char *name)
{
    const lf_device *found = NULL;
    size_t longest = 0;
    for (size_t i = 0; lf_device_at(i); i++)
        if (lf_is_gpu(lf_device_at(i)) && has_word(name, lf_device_at(i)->gpu.board) > longest) {
            found = lf_device_at(i);
            longest = has_word(name, found->gpu.board);
        }
    return found;
}

/* By what factor two rates differ, as a logarithm; where one is not known they do not. */
static double apart(double a, double b)
{
    return a > 0 && b > 0 ? fabs(log(a / b)) : 0;
}

/* any: whatever multiplies there. */
static const lf_device *closest(const lf_gpu_facts *gpu, bool any)
{
    const lf_device *found = NULL;
    double least = INFINITY;
    for (size_t i = 0; lf_device_at(i); i++) {
        const lf_device *d = lf_device_at(i);
        const double by = apart(gpu->units, d->units) + apart(gpu->bytes, d->gpu.paper.bytes);
        if (lf_is_gpu(d) && (any || d->gpu.unit == gpu->unit) && by < least) {
            found = d;
            least = by;
        }
    }
    return found;
}

void lf_device_like(const lf_gpu_facts *gpu, lf_device *out)
{
    const lf_device *board = of_its_board(gpu->name), *same = closest(gpu, false);
    *out = board ? *board : same ? *same : *closest(gpu, true);
    snprintf(out->title, sizeof out->title, board ? "%.128s" : "%.128s, costed as %s (the nearest in the table)",
             gpu->name, out->name);
    scale_products(out, (double)gpu->units / out->units);
    out->units = gpu->units;
    out->gpu.unit = gpu->unit;
    out->gpu.shared_bytes = gpu->shared_bytes;
}

/* ---- precisions ---- */

void lf_device_use(lf_device *d, lf_precision precision)
{
    const lf_precision_info *now = &lf_precision_table[d->gpu.precision_used], *then = &lf_precision_table[precision];
    const lf_precision_rates *known = &d->gpu.precision[precision];
    if (!lf_is_gpu(d) || precision == d->gpu.precision_used)
        return;
    const double flops = known->flops > 0 ? known->flops : d->product_flops * now->passes / then->passes;
    d->row_flops *= flops / d->product_flops;
    d->product_flops = flops;
    d->x_bytes =
        known->x_bytes > 0 ? known->x_bytes : d->x_bytes - lf_precision_bytes(d->gpu.precision_used) +
                                                  lf_precision_bytes(precision);
    d->gpu.precision_used = precision;
}
