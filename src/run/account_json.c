/* SPDX-License-Identifier: Apache-2.0 */
/* The account as a JSON object. Field names are a promise: INTERFACE.md. jansson's constructors take NULL for a child
 * that could not be made and answer NULL themselves, so one check at the end finds any lack of memory. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#include "run/account.h"

/* Whole numbers as such, while a double still counts by ones. */
static json_t *whole(double value)
{
    return fabs(value) < 9007199254740992.0 ? json_integer((json_int_t)value) : json_real(value);
}

/* Microseconds to the nanosecond. */
static json_t *microseconds(double us)
{
    return json_real(nearbyint(us * 1000) / 1000);
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

/* The device's rates: the roof over every op. */
static json_t *peak_json(const lf_account *a)
{
    json_t *peak = with(json_object(), "flops", json_real(a->device->flops));
    peak = with(peak, "product_flops", json_real(a->device->product_flops));
    return with(peak, "bytes", json_real(a->device->bytes));
}

static json_t *shape_json(const lf_account *a, lf_node n)
{
    const lf_shape *s = &lf_at(a->written, n)->shape;
    json_t *shape = json_array();
    for (int i = 0; i < s->rank; i++)
        shape = then(shape, json_integer(lf_extent_at(s->dim[i], a->dims)));
    return shape;
}

/* flops, bytes and us, into an object that has other fields already. */
static json_t *with_cost(json_t *object, lf_cost cost)
{
    return with(with(with(object, "flops", whole(cost.flops)), "bytes", whole(cost.bytes)), "us",
                microseconds(cost.us));
}

static json_t *ops_json(const lf_account *a, const lf_facts *f)
{
    static const char *const fates[] = {"inside", "stored", "prepared", "passed", "gone"};
    json_t *ops = json_array();
    for (int32_t i = 0; i < f->ops; i++) {
        const lf_node_info *info = lf_at(a->written, f->op[i].node);
        json_t *op = with(json_object(), "name", json_string(info->name));
        op = with(op, "op", json_string(lf_op_row(info->op)->name));
        op = with(with_cost(op, f->op[i].cost), "shape", shape_json(a, f->op[i].node));
        ops = then(ops, with(op, "now", json_string(fates[f->op[i].fate])));
    }
    return ops;
}

static json_t *plain_json(const lf_facts *f)
{
    return with_cost(with(json_object(), "launches", json_integer(f->plain_launches)), f->plain);
}

static json_t *fused_json(const lf_account *a, const lf_facts *f)
{
    json_t *fused =
        with_cost(with(json_object(), "launches", json_integer(lf_cost_plan_launches(a->plan, a->device))), f->fused);
    fused = with(fused, "intermediate_bytes", json_integer(f->intermediate_bytes));
    fused = with(fused, "workspace_bytes", json_integer(a->workspace_bytes));
    return with(fused, "prepared_bytes", json_integer(a->prepared_bytes));
}

static json_t *notes_json(const lf_note *notes, int32_t count, bool done)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < count; i++) {
        json_t *note = with(json_object(), "rule", json_string(notes[i].rule));
        if (done)
            note = with(note, "class", json_string(lf_rule_class_name(notes[i].class)));
        note = with(note, "at", json_string(notes[i].at));
        list = then(list, with(note, "why", json_string(notes[i].why)));
    }
    return list;
}

static json_t *phases_json(const lf_account *a, const lf_group *g)
{
    lf_str words = {0};
    lf_account_phases(&words, a, g);
    char *text = lf_str_take(&words);
    json_t *json = text ? json_string(text) : NULL;
    free(text);
    return json;
}

static json_t *kernel_json(const lf_account *a, const lf_facts *f, int32_t index)
{
    const lf_group *g = &a->plan->group[index];
    json_t *covers = json_array();
    for (int32_t i = 0; i < f->ops; i++)
        if (f->op[i].group == index)
            covers = then(covers, json_string(lf_at(a->written, f->op[i].node)->name));
    json_t *kernel = with(with(json_object(), "name", json_string(g->name)), "covers", covers);
    kernel = with(with_cost(kernel, f->kernel[index]), "phases", phases_json(a, g));
    return with(kernel, "why_apart", g->why_apart ? json_string(g->why_apart) : json_null());
}

static json_t *kernels_json(const lf_account *a, const lf_facts *f)
{
    json_t *kernels = json_array();
    for (int32_t i = 0; i < a->plan->groups; i++)
        kernels = then(kernels, kernel_json(a, f, i));
    return kernels;
}

/* Which tiles products are made in, and what the others were expected to take, or took. */
static json_t *tiles_json(const lf_cuda_choice *c)
{
    const lf_tile *shape = &lf_tile_table[c->shape];
    json_t *tiles = with(json_object(), "shape", json_string(shape->name)), *all = json_array();
    tiles = with(tiles, "choice", json_string(lf_account_how(c)));
    for (int s = 0; s < LF_TILE_SHAPES; s++)
        if (c->expected[s] > 0) {
            json_t *one = with(json_object(), "shape", json_string(lf_tile_table[s].name));
            one = with(one, "product_us", microseconds(c->expected[s]));
            if (c->measured[s] > 0)
                one = with(one, "measured_us", microseconds(c->measured[s]));
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

lf_status lf_account_json(const lf_account *a, char **out, lf_diag *diag)
{
    lf_facts f;
    lf_status status = lf_facts_new(a, &f, diag);
    *out = NULL;
    if (status == LF_OK) {
        json_t *root = with(json_object(), "device", json_string(a->device->name));
        root = with(root, "title", json_string(a->device->title));
        root = with(root, "dims", dims_json(a));
        if (a->precision)
            root = with(root, "precision", json_string(a->precision));
        root = with(root, "peak", peak_json(a));
        root = with(root, "ops", ops_json(a, &f));
        root = with(root, "plain", plain_json(&f));
        root = with(root, "fused", fused_json(a, &f));
        root = with(root, "rewrites", notes_json(a->notes->done, a->notes->done_count, true));
        root = with(root, "refused", notes_json(a->notes->refused, a->notes->refused_count, false));
        root = with(root, "kernels", kernels_json(a, &f));
        if (a->choice)
            root = with(root, "tiles", tiles_json(a->choice));
        *out = dump(root);
        json_decref(root);
        if (!*out)
            status = lf_fail_nomem(diag, "the account");
    }
    lf_facts_free(&f);
    return status;
}
