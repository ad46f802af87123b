/* SPDX-License-Identifier: Apache-2.0 */
/* The header is a Python dict literal. It is read by a parser of just that literal:
 *
 *     header = "{" [entry {"," entry} [","]] "}" newline
 *     entry  = "'descr'" ":" (string | "[" ...)  |  "'fortran_order'" ":" ("True" | "False")  |  "'shape'" ":" tuple
 *     tuple  = "(" ")"  |  "(" int "," ")"  |  "(" int {"," int} [","] ")"          a lone (3) is no tuple
 *
 * with spaces anywhere between. Keys come in any order, each exactly once. */
#include "io/npy.h"

#include "base/dtype.h"
#include "base/mem.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian and used in place");

enum { MAGIC = 6, ALIGN = 64, MAX_DESCR = 48 };

typedef struct parser {
    const char *at, *end;
    const char *name; /* of the file */
    lf_diag *diag;
    /* what was found */
    char descr[MAX_DESCR]; /* cut where longer; control characters as '?' */
    bool structured, fortran;
    lf_npy *npy;
} parser;

static lf_status bad(parser *p, const char *what)
{
    return lf_fail(p->diag, LF_ERR_DATA, "%s: not a .npy file that numpy.save wrote: %s", p->name, what);
}

static void skip_space(parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t'))
        p->at++;
}

/* True, and behind it, where c comes next. */
static bool take(parser *p, char c)
{
    skip_space(p);
    if (p->at == p->end || *p->at != c)
        return false;
    p->at++;
    return true;
}

static bool take_word(parser *p, const char *word)
{
    size_t length = strlen(word);
    skip_space(p);
    if ((size_t)(p->end - p->at) < length || memcmp(p->at, word, length) != 0)
        return false;
    p->at += length;
    return true;
}

/* A string without escapes, in either kind of quotes, copied as far as it fits. */
static bool take_string(parser *p, char *out, size_t capacity)
{
    char quote = take(p, '\'') ? '\'' : take(p, '"') ? '"' : '\0';
    if (!quote)
        return false;
    size_t length = 0;
    for (; p->at < p->end && *p->at != quote; p->at++) {
        if (*p->at == '\\' || *p->at == '\n')
            return false;
        if (length + 1 < capacity)
            out[length++] = *p->at > ' ' && *p->at < 0x7f ? *p->at : '?';
    }
    out[length] = '\0';
    return take(p, quote);
}

/* ---- the three entries ---- */

static lf_status read_descr(parser *p)
{
    if (take(p, '[')) {
        /* A record type: refused in any case, so its brackets need only be skipped for the rest to be understood. */
        int depth = 1;
        for (; depth > 0 && p->at < p->end; p->at++)
            depth += *p->at == '[' ? 1 : *p->at == ']' ? -1 : 0;
        p->structured = true;
        return depth == 0 ? LF_OK : bad(p, "the header's 'descr' does not end");
    }
    return take_string(p, p->descr, sizeof p->descr) ? LF_OK : bad(p, "the header's 'descr' is not a string");
}

static lf_status read_fortran(parser *p)
{
    p->fortran = take_word(p, "True");
    return p->fortran || take_word(p, "False") ? LF_OK : bad(p, "the header's 'fortran_order' is not True or False");
}

static lf_status read_extent(parser *p, int64_t *out)
{
    skip_space(p);
    const char *start = p->at;
    int64_t value = 0;
    for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++)
        if (!lf_mul_i64(value, 10, &value) || !lf_add_i64(value, *p->at - '0', &value))
            return bad(p, "an extent in the header is too large");
    if (p->at == start)
        return bad(p, "the header's 'shape' is not a tuple of whole numbers");
    take(p, 'L'); /* as Python 2 wrote them */
    *out = value;
    return LF_OK;
}

static lf_status read_shape(parser *p)
{
    lf_npy *npy = p->npy;
    if (!take(p, '('))
        return bad(p, "the header's 'shape' is not a tuple");
    bool comma = true; /* nothing may follow but after one */
    while (!take(p, ')')) {
        int64_t extent = 0;
        if (!comma)
            return bad(p, "the header's 'shape' is not a tuple");
        lf_status status = read_extent(p, &extent);
        if (status != LF_OK)
            return status;
        if (npy->rank == LF_MAX_RANK)
            return lf_fail(p->diag, LF_ERR_DATA, "%s: the array has more than %d dimensions; reshape it", p->name,
                           LF_MAX_RANK);
        npy->extents[npy->rank++] = extent;
        comma = take(p, ',');
    }
    return npy->rank == 1 && !comma ? bad(p, "the header's 'shape' is a number, not a tuple") : LF_OK;
}

static lf_status parse_header(parser *p)
{
    static const struct {
        const char *key;
        lf_status (*read)(parser *);
    } entries[] = {{"descr", read_descr}, {"fortran_order", read_fortran}, {"shape", read_shape}};
    enum { ENTRIES = sizeof entries / sizeof *entries };

    unsigned seen = 0;
    bool comma = true;
    if (!take(p, '{'))
        return bad(p, "the header is not a dict");
    while (!take(p, '}')) {
        char key[16];
        size_t i = 0;
        if (!comma || !take_string(p, key, sizeof key) || !take(p, ':'))
            return bad(p, "the header is not a dict");
        while (i < ENTRIES && strcmp(key, entries[i].key) != 0)
            i++;
        if (i == ENTRIES || seen & 1u << i)
            return bad(p, i == ENTRIES ? "the header has an entry that does not belong there"
                                       : "the header says the same thing twice");
        seen |= 1u << i;
        lf_status status = entries[i].read(p);
        if (status != LF_OK)
            return status;
        comma = take(p, ',');
    }
    if (seen != (1u << ENTRIES) - 1)
        return bad(p, "the header lacks 'descr', 'fortran_order' or 'shape'");
    skip_space(p);
    if (p->at < p->end && *p->at == '\n')
        p->at++;
    return p->at == p->end ? LF_OK : bad(p, "the header goes on after its end");
}

/* ---- what it means ---- */

static const char *const codes[] = {
#define LF_DTYPE(name, id, bits, use, npy) [LF_##id] = npy,
#include "base/dtypes.def"
#undef LF_DTYPE
};

static lf_status check_type(const parser *p)
{
    if (p->structured)
        return lf_fail(p->diag, LF_ERR_DATA,
                       "%s holds records; save one field, converted with .astype(\"float32\")", p->name);
    /* The letter is the byte order: little, big, this machine's (little: see above), or none. */
    bool big = p->descr[0] == '>', order = big || (p->descr[0] && strchr("<=|", p->descr[0]));
    const char *type = p->descr + order;
    size_t known = 0;
    while (known < LF_DTYPES && strcmp(type, codes[known]) != 0)
        known++;
    if (big || known == LF_DTYPES)
        return lf_fail(p->diag, LF_ERR_DATA,
                       "%s holds %s%s, not %sf4 (float32), f2, V2 (bfloat16) or i8; convert it with "
                       ".astype(\"float32\") and save it again",
                       p->name, big ? "big-endian " : "", type, big ? "little-endian " : "");
    p->npy->dtype = (lf_dtype)known;
    if (p->fortran && p->npy->rank > 1)
        return lf_fail(p->diag, LF_ERR_DATA,
                       "%s is in Fortran order; convert it with numpy.ascontiguousarray and save it again", p->name);
    return LF_OK;
}

/* rest: the bytes after the header. */
static lf_status check_size(const parser *p, size_t rest)
{
    /* Of the extents that are not 0, so that the order they come in does not matter. */
    const int64_t each = (int64_t)lf_dtype_size(p->npy->dtype);
    int64_t bytes = each;
    bool empty = false;
    for (int i = 0; i < p->npy->rank; i++) {
        if (p->npy->extents[i] == 0)
            empty = true;
        else if (!lf_mul_i64(bytes, p->npy->extents[i], &bytes))
            return lf_fail(p->diag, LF_ERR_DATA, "%s: the header announces more data than any file can hold", p->name);
    }
    p->npy->count = empty ? 0 : bytes / each;
    uint64_t wanted = empty ? 0 : (uint64_t)bytes;
    if (rest < wanted)
        return lf_fail(p->diag, LF_ERR_DATA, "%s is cut short: the header announces %llu bytes of data, there are %zu",
                       p->name, (unsigned long long)wanted, rest);
    if (rest > wanted)
        return lf_fail(p->diag, LF_ERR_DATA,
                       "%s has %llu bytes after the data its header announces; save one array a file", p->name,
                       (unsigned long long)(rest - wanted));
    return LF_OK;
}

static uint32_t little_endian(const unsigned char *bytes, int count)
{
    uint32_t value = 0;
    for (int i = count; i-- > 0;)
        value = value << 8 | bytes[i];
    return value;
}

lf_status lf_npy_read(const void *bytes, size_t n, const char *name, lf_npy *out, lf_diag *diag)
{
    const unsigned char *b = bytes;
    *out = (lf_npy){0};
    parser p = {.name = name, .diag = diag, .npy = out};
    if (n >= 4 && memcmp(b, "PK\3\4", 4) == 0)
        return lf_fail(diag, LF_ERR_DATA, "%s is an .npz archive; save the one array with numpy.save", name);
    if (n < MAGIC || memcmp(b, "\x93NUMPY", MAGIC) != 0)
        return bad(&p, "it does not begin with NumPy's mark");
    if (n < MAGIC + 2)
        return bad(&p, "it ends inside the header");
    int version = b[MAGIC];
    if (version < 1 || version > 3 || b[MAGIC + 1] != 0)
        return lf_fail(diag, LF_ERR_DATA, "%s: .npy version %d.%d is not known here; versions 1.0, 2.0 and 3.0 are",
                       name, version, b[MAGIC + 1]);
    size_t length_bytes = version == 1 ? 2 : 4, prefix = MAGIC + 2 + length_bytes;
    if (n < prefix)
        return bad(&p, "it ends inside the header");
    size_t length = little_endian(b + MAGIC + 2, (int)length_bytes);
    if (n - prefix < length)
        return bad(&p, "it ends inside the header");

    p.at = (const char *)b + prefix;
    p.end = p.at + length;
    out->offset = prefix + length;
    lf_status status = parse_header(&p);
    if (status == LF_OK)
        status = check_type(&p);
    return status == LF_OK ? check_size(&p, n - out->offset) : status;
}

lf_status lf_npy_data(const void *bytes, const lf_npy *npy, const void **data, void **copy, lf_diag *diag)
{
    const size_t each = lf_dtype_size(npy->dtype);
    const char *start = (const char *)bytes + npy->offset;
    *copy = NULL;
    *data = start;
    if ((uintptr_t)start % each == 0)
        return LF_OK;
    size_t size = (size_t)npy->count * each;
    *data = *copy = lf_aligned_alloc(size);
    if (!*copy)
        return lf_fail_nomem(diag, "a copy of an array that is not aligned in its file");
    memcpy(*copy, start, size);
    return LF_OK;
}

/* ---- writing ---- */

lf_status lf_npy_header(lf_dtype dtype, int rank, const int64_t *extents, void *buf, size_t cap, size_t *used)
{
    enum { PREFIX = MAGIC + 4 };
    char dict[LF_NPY_HEADER_MAX];
    if (rank < 0 || rank > LF_MAX_RANK)
        return LF_ERR_ARG;
    int at = snprintf(dict, sizeof dict, "{'descr': '<%s', 'fortran_order': False, 'shape': (", codes[dtype]);
    for (int i = 0; i < rank; i++) {
        if (extents[i] < 0)
            return LF_ERR_ARG;
        at += snprintf(dict + at, sizeof dict - (size_t)at, i + 1 < rank ? "%lld, " : rank == 1 ? "%lld," : "%lld",
                       (long long)extents[i]);
    }
    at += snprintf(dict + at, sizeof dict - (size_t)at, "), }");

    size_t length = (size_t)at, total = (PREFIX + length + 1 + ALIGN - 1) / ALIGN * ALIGN;
    if (total > cap)
        return LF_ERR_ARG;
    unsigned char *b = buf;
    memset(b, ' ', total);
    memcpy(b, "\x93NUMPY\1\0", MAGIC + 2);
    b[MAGIC + 2] = (unsigned char)((total - PREFIX) & 0xff);
    b[MAGIC + 3] = (unsigned char)((total - PREFIX) >> 8);
    memcpy(b + PREFIX, dict, length);
    b[total - 1] = '\n';
    *used = total;
    return LF_OK;
}
