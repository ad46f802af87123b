/* SPDX-License-Identifier: Apache-2.0 */
/* The account as a JSON object. Field names are a promise: docs/cli.md. jansson's constructors take NULL for a child
 * that could not be made and answer NULL themselves, so one check at the end finds any lack of memory. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run/account.h"

/* A number as its unit wants it: rates as they are, microseconds to the nanosecond, anything else whole while a double
 * still counts by ones. */
static json_t *number_json(lf_field_unit unit, double value)
{
    if (unit == LF_AS_US)
        return json_real(nearbyint(value * 1000) / 1000);
    const bool whole = unit == LF_AS_COUNT || unit == LF_AS_FLOP || unit == LF_AS_BYTE;
    return whole && fabs(value) < 9007199254740992.0 ? json_integer((json_int_t)value) : json_real(value);
}

/* Adds a value, which it takes; the object, or NULL (and both are gone) when either is not there or memory ran out. */
static json_t *with(json_t *object, const char *key, json_t *value)
{
    if (object && value && json_object_set_new(object, key, value) == 0)
        return object;
    if (!object)
        json_decref(value);
    json_decref(object);
    return NULL;
}

static json_t *then(json_t *array, json_t *value)
{
    if (array && value && json_array_append_new(array, value) == 0)
        return array;
    if (!array)
        json_decref(value);
    json_decref(array);
    return NULL;
}

static json_t *dims_json(const lf_account *a)
{
    json_t *dims = json_object();
    for (int i = 0; i < a->written->symbols; i++)
        dims = with(dims, a->written->symbol[i], json_integer(a->dims[i]));
    return dims;
}

/* The fields of a section, or of one of its rows, into an object. */
static json_t *with_fields(json_t *object, const lf_account *a, const char *section, int32_t i)
{
    for (const lf_field_row *f = lf_section(section); f; f = lf_next_field(f)) {
        const lf_datum d = f->from(a, i);
        object = with(object, f->field.name,
                      f->unit != LF_AS_TEXT ? number_json(f->unit, d.number)
                      : d.text              ? json_string(d.text)
                                            : json_null());
    }
    return object;
}

/* What a row has beside its fields; NULL: nothing. */
typedef json_t *more_fn(json_t *object, const lf_account *a, int32_t i);

static json_t *section_json(const lf_account *a, const char *section, more_fn *more)
{
    const int32_t count = (int32_t)lf_account_rows(a, section);
    json_t *list = json_array();
    for (int32_t i = 0; i < count; i++) {
        json_t *row = with_fields(json_object(), a, section, i);
        list = then(list, more ? more(row, a, i) : row);
    }
    return list;
}

static json_t *shape_json(const lf_account *a, lf_node n)
{
    const lf_shape *s = &lf_at(a->written, n)->shape;
    json_t *shape = json_array();
    for (int i = 0; i < s->rank; i++)
        shape = then(shape, json_integer(lf_extent_at(s->dim[i], a->dims)));
    return shape;
}

static json_t *with_shape(json_t *op, const lf_account *a, int32_t i)
{
    return with(op, "shape", shape_json(a, a->op[i].node));
}

static json_t *with_covers(json_t *kernel, const lf_account *a, int32_t index)
{
    json_t *covers = json_array();
    for (int32_t i = 0; i < a->ops; i++)
        if (a->op[i].group == index)
            covers = then(covers, json_string(lf_at(a->written, a->op[i].node)->name));
    return with(kernel, "covers", covers);
}

/* Which tiles products are made in, and what the others were expected to take, or took. */
static json_t *tiles_json(const lf_tile_choice *c)
{
    const lf_tile *shape = &lf_tile_table[c->shape];
    json_t *tiles = with(json_object(), "shape", json_string(shape->name)), *all = json_array();
    tiles = with(tiles, "choice", json_string(lf_account_how(c)));
    for (int s = 0; s < LF_TILE_SHAPES; s++)
        if (c->expected[s] > 0) {
            json_t *one = with(json_object(), "shape", json_string(lf_tile_table[s].name));
            one = with(one, "product_us", number_json(LF_AS_US, c->expected[s]));
            if (c->measured[s] > 0)
                one = with(one, "measured_us", number_json(LF_AS_US, c->measured[s]));
            all = then(all, one);
        }
    return with(tiles, "candidates", all);
}

/* Not with json_dumps, which (in 2.14) does not notice when its buffer could not grow for a key, and leaves the key
 * out. */
static char *dump(const json_t *root)
{
    const size_t flags = JSON_INDENT(2) | JSON_REAL_PRECISION(15);
    size_t size = root ? json_dumpb(root, NULL, 0, flags) : 0;
    char *text = size ? malloc(size + 1) : NULL;
    if (text && json_dumpb(root, text, size, flags) != size) {
        free(text);
        return NULL;
    }
    if (text)
        text[size] = '\0';
    return text;
}

/* What rows of a section have beside their fields. */
static more_fn *more_of(const char *section)
{
    return strcmp(section, "ops") == 0 ? with_shape : strcmp(section, "kernels") == 0 ? with_covers : NULL;
}

lf_status lf_account_to_json(const lf_account *a, char **out)
{
    json_t *root = json_object();
    for (size_t i = 0; lf_field_row_at(i); i++) {
        const lf_field *f = &lf_field_row_at(i)->field;
        if (lf_section(f->section) != lf_field_row_at(i))
            continue; /* a section's first field stands for all of them */
        if (strcmp(f->section, "report") == 0)
            root = with(with_fields(root, a, f->section, 0), "dims", dims_json(a));
        else
            root = with(root, f->section, f->each ? section_json(a, f->section, more_of(f->section))
                                                  : with_fields(json_object(), a, f->section, 0));
    }
    if (a->has_choice)
        root = with(root, "tiles", tiles_json(&a->choice));
    *out = dump(root);
    json_decref(root);
    return *out ? LF_OK : LF_ERR_NOMEM;
}
