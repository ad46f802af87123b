/* SPDX-License-Identifier: Apache-2.0 */
#include "io/safetensors.h"

#include "base/dtype.h"
#include "base/mem.h"
#include "io/kind.h"

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian and used in place");

enum {
    PREFIX = 8,
    MAX_HEADER = 100000000, /* bytes, as the reference implementation has it */
    SHOWN = 80              /* bytes of a name shown in a message */
};

/* Everything the reference implementation reads. */
static const struct {
    const char *name;
    int bits;
} dtypes[] = {
    {"F32", 32},    {"F16", 16},    {"BF16", 16},   {"F64", 64},     {"I64", 64},     {"I32", 32},
    {"I16", 16},    {"I8", 8},      {"U64", 64},    {"U32", 32},     {"U16", 16},     {"U8", 8},
    {"BOOL", 8},    {"C64", 64},    {"F8_E4M3", 8}, {"F8_E5M2", 8},  {"F8_E8M0", 8},  {"F8_E4M3FNUZ", 8},
    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F8_E5M2FNUZ", 8},
};

typedef struct reader {
    const char *file;
    const char *tensor; /* being read */
    lf_diag *diag;
    lf_arena *arena;
    const unsigned char *data; /* what the offsets count from */
    size_t data_size;
} reader;

static lf_status bad(const reader *r, const char *what)
{
    return lf_fail(r->diag, LF_ERR_DATA, "%s: tensor '%.*s': %s", r->file, SHOWN, r->tensor, what);
}

/* ---- one tensor ---- */

/* *bits of one element. */
static lf_status read_dtype(const reader *r, const json_t *info, lf_tensor_view *out, int *bits)
{
    const char *text = json_string_value(json_object_get(info, "dtype"));
    if (!text)
        return bad(r, "it has no \"dtype\" string");
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (strcmp(text, dtypes[i].name) == 0) {
            out->dtype = dtypes[i].name;
            *bits = dtypes[i].bits;
            return LF_OK;
        }
    }
    return lf_fail(r->diag, LF_ERR_DATA, "%s: tensor '%.*s': its dtype '%.*s' is not known", r->file, SHOWN, r->tensor,
                   SHOWN, text);
}

static lf_status read_shape(const reader *r, const json_t *info, lf_tensor_view *out)
{
    const json_t *shape = json_object_get(info, "shape");
    size_t rank = json_array_size(shape);
    if (!json_is_array(shape) || rank > INT_MAX)
        return bad(r, "it has no \"shape\" list");
    int64_t *extents = lf_arena_array(r->arena, rank, sizeof *extents);
    if (!extents)
        return lf_fail_nomem(r->diag, "a safetensors header");
    bool empty = false;
    int64_t count = 1; /* of the extents that are not 0, so that their order does not matter */
    for (size_t i = 0; i < rank; i++) {
        const json_t *extent = json_array_get(shape, i);
        extents[i] = json_integer_value(extent);
        if (!json_is_integer(extent) || extents[i] < 0)
            return bad(r, "its shape is not a list of whole numbers");
        if (extents[i] == 0)
            empty = true;
        else if (!lf_mul_i64(count, extents[i], &count))
            return bad(r, "its shape has more elements than can be counted");
    }
    out->rank = (int)rank;
    out->extents = extents;
    out->count = empty ? 0 : count;
    return LF_OK;
}

static lf_status read_offsets(const reader *r, const json_t *info, lf_tensor_view *out)
{
    const json_t *offsets = json_object_get(info, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    json_int_t begin = json_integer_value(first), end = json_integer_value(last);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last) || begin < 0 || end < begin)
        return bad(r, "its \"data_offsets\" are not two whole numbers in order");
    if ((unsigned long long)end > r->data_size)
        return lf_fail(r->diag, LF_ERR_DATA,
                       "%s: tensor '%.*s': its data end at byte %lld, but the file has %zu bytes of data (cut short?)",
                       r->file, SHOWN, r->tensor, (long long)end, r->data_size);
    out->data = r->data + begin;
    out->size = (size_t)(end - begin);
    return LF_OK;
}

static lf_status read_tensor(const reader *r, const json_t *info, lf_tensor_view *out)
{
    int bits = 0;
    if (!json_is_object(info))
        return bad(r, "its description is not a JSON object");
    lf_status status = read_dtype(r, info, out, &bits);
    if (status == LF_OK)
        status = read_shape(r, info, out);
    if (status == LF_OK)
        status = read_offsets(r, info, out);
    if (status != LF_OK)
        return status;
    int64_t wanted;
    if (!lf_mul_i64(out->count, bits, &wanted) || wanted % 8 != 0 || (uint64_t)(wanted / 8) != out->size)
        return lf_fail(r->diag, LF_ERR_DATA, "%s: tensor '%.*s': %zu bytes do not fit %lld elements of %s", r->file,
                       SHOWN, r->tensor, out->size, (long long)out->count, out->dtype);
    out->name = lf_arena_strndup(r->arena, r->tensor, strlen(r->tensor));
    return out->name ? LF_OK : lf_fail_nomem(r->diag, "a safetensors header");
}

/* ---- all of them ---- */

static int by_place(const void *a, const void *b)
{
    const lf_tensor_view *x = a, *y = b;
    uintptr_t p = (uintptr_t)x->data, q = (uintptr_t)y->data;
    if (p != q)
        return p < q ? -1 : 1;
    return x->size < y->size ? -1 : x->size > y->size; /* empty ones first: they take no room */
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const lf_tensor_view *)a)->name, ((const lf_tensor_view *)b)->name);
}

/* Each tensor begins where the one before ends, and the last ends with the file: the format allows neither overlaps nor
 * holes, so that a file holds nothing but what its header names. */
static lf_status check_places(const reader *r, lf_safetensors *file)
{
    size_t next = 0;
    const char *before = NULL;
    qsort(file->tensors, file->count, sizeof *file->tensors, by_place);
    for (size_t i = 0; i < file->count; i++) {
        const lf_tensor_view *t = &file->tensors[i];
        size_t begin = (size_t)((const unsigned char *)t->data - r->data);
        if (begin < next)
            return lf_fail(r->diag, LF_ERR_DATA, "%s: tensors '%.*s' and '%.*s' overlap", r->file, SHOWN, before, SHOWN,
                           t->name);
        if (begin > next)
            return lf_fail(r->diag, LF_ERR_DATA, "%s: the %zu bytes before tensor '%.*s' belong to no tensor", r->file,
                           begin - next, SHOWN, t->name);
        next = begin + t->size;
        before = t->name;
    }
    if (next != r->data_size)
        return lf_fail(r->diag, LF_ERR_DATA, "%s: the last %zu bytes belong to no tensor", r->file,
                       r->data_size - next);
    return LF_OK;
}

static lf_status read_header(reader *r, json_t *header, lf_safetensors *out)
{
    const char *key, *file = lf_arena_strndup(r->arena, r->file, strlen(r->file));
    json_t *info;
    out->tensors = lf_arena_array(r->arena, json_object_size(header), sizeof *out->tensors);
    if (!file || !out->tensors)
        return lf_fail_nomem(r->diag, "a safetensors header");
    json_object_foreach(header, key, info) {
        if (strcmp(key, "__metadata__") == 0)
            continue;
        r->tensor = key;
        out->tensors[out->count].file = file;
        lf_status status = read_tensor(r, info, &out->tensors[out->count]);
        if (status != LF_OK)
            return status;
        out->count++;
    }
    lf_status status = check_places(r, out);
    if (status == LF_OK)
        qsort(out->tensors, out->count, sizeof *out->tensors, by_name);
    return status;
}

/* What the JSON library says may quote the file; a message is one line. */
static void make_printable(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            *text = '?';
}

/* text begins with {, so that what is read is an object. */
static lf_status parse_header(reader *r, const char *text, size_t length, lf_safetensors *out)
{
    json_error_t error;
    json_t *header = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (!header) {
        if (json_error_code(&error) == json_error_out_of_memory || !error.text[0])
            return lf_fail_nomem(r->diag, "a safetensors header");
        make_printable(error.text);
        return lf_fail(r->diag, LF_ERR_DATA, "%s: its header is not JSON as safetensors has it: %s", r->file,
                       error.text);
    }
    lf_status status = read_header(r, header, out);
    json_decref(header);
    return status;
}

/* Names and dtypes are the file's, and may hold anything: a message stays one line. */
static lf_status in_one_line(lf_status status, lf_diag *diag)
{
    for (char *c = diag ? diag->text : NULL; c && *c && status != LF_OK; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            *c = '?';
    return status;
}

/* What a file is that holds something else than weights, and what to do; NULL where nobody can tell. */
static const char *mistaken_for_weights(const void *bytes, size_t n)
{
    switch (lf_file_kind_of(bytes, n)) {
    case LF_FILE_TEXT: return "text, as a model's .lf is; its weights lie in the .safetensors beside it";
    case LF_FILE_ARRAY: return "one array; safetensors.numpy.save_file writes arrays by name";
    case LF_FILE_TORCH: return "what PyTorch saves; safetensors.torch.save_file writes a state_dict()";
    case LF_FILE_SAFETENSORS:
    case LF_FILE_OTHER: break;
    }
    return NULL;
}

lf_status lf_safetensors_read(const void *bytes, size_t n, const char *name, lf_safetensors *out, lf_diag *diag)
{
    const unsigned char *b = bytes;
    uint64_t length = 0;
    *out = (lf_safetensors){0};
    if (n < PREFIX)
        return lf_fail(diag, LF_ERR_DATA, "%s: not a safetensors file: %zu bytes are too few", name, n);
    for (int i = PREFIX; i-- > 0;)
        length = length << 8 | b[i];
    const bool fits = length <= MAX_HEADER && length <= n - PREFIX;
    const char *found = fits ? NULL : mistaken_for_weights(bytes, n);
    if (found)
        return lf_fail(diag, LF_ERR_DATA, "%s: not a safetensors file: it is %s", name, found);
    if (!fits)
        return lf_fail(diag, LF_ERR_DATA,
                       "%s: not a safetensors file, or cut short: a header of %llu bytes in a file of %zu", name,
                       (unsigned long long)length, n);
    if (length == 0 || b[PREFIX] != '{')
        return lf_fail(diag, LF_ERR_DATA, "%s: not a safetensors file: its header does not begin with {", name);

    reader r = {.file = name, .diag = diag, .arena = &out->arena, .data = b + PREFIX + length,
                .data_size = n - PREFIX - (size_t)length};
    lf_status status = parse_header(&r, (const char *)b + PREFIX, (size_t)length, out);
    if (status != LF_OK)
        lf_safetensors_free(out);
    return in_one_line(status, diag);
}

void lf_safetensors_free(lf_safetensors *file)
{
    lf_arena_free(&file->arena);
    *file = (lf_safetensors){0};
}

const lf_tensor_view *lf_safetensors_find(const lf_safetensors *file, const char *name)
{
    lf_tensor_view key = {.name = name};
    return file->count ? bsearch(&key, file->tensors, file->count, sizeof key, by_name) : NULL;
}

/* ---- values ---- */

lf_status lf_tensor_read(const lf_tensor_view *tensor, lf_dtype type, void *out, lf_diag *diag)
{
    static const char *const known[] = {
#define LF_DTYPE(name, id, bits, use, npy) [LF_##id] = #id,
#include "base/dtypes.def"
#undef LF_DTYPE
    };
    size_t at = 0;
    while (at < LF_DTYPES && strcmp(tensor->dtype, known[at]) != 0)
        at++;
    const lf_dtype is = (lf_dtype)at;
    if (at == LF_DTYPES || (is != type && (!lf_dtype_is_float(is) || !lf_dtype_is_float(type))))
        return in_one_line(lf_fail(diag, LF_ERR_DATA,
                                   "%s: tensor '%.*s' holds %s, not F32; convert it with .float() and save it again",
                                   tensor->file, SHOWN, tensor->name, tensor->dtype),
                           diag);
    if (is != type)
        lf_retype(is, tensor->data, type, out, tensor->count);
    else if (tensor->count > 0)
        memcpy(out, tensor->data, tensor->size);
    return LF_OK;
}
