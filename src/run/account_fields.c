/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the account's fields, and what callers ask of it. */
#include <math.h>
#include <string.h>

#include "run/account.h"

/* ---- where fields come from ---- */

static const lf_node_info *written(const lf_account *a, int32_t i)
{
    return lf_at(a->written, a->op[i].node);
}

static lf_datum text(const char *value)
{
    return (lf_datum){.text = value};
}

static lf_datum number(double value)
{
    return (lf_datum){.number = value};
}

#define FROM_TEXT text
#define FROM_COUNT number
#define FROM_FLOP number
#define FROM_BYTE number
#define FROM_US number
#define FROM_FLOP_S number
#define FROM_BYTE_S number
#define LF_OBJECT(section)
#define LF_LIST(section, count)
#define LF_FIELD(section, name, unit, column, phrase, from)                                                            \
    static lf_datum section##_##name(const lf_account *a, int32_t i)                                                   \
    {                                                                                                                  \
        (void)i;                                                                                                       \
        return FROM_##unit(from);                                                                                      \
    }
#include "run/report.def"
#undef LF_OBJECT
#undef LF_LIST
#undef LF_FIELD

/* ---- the table ---- */

/* Is the section a list? */
#define LF_OBJECT(section) each_##section = 0,
#define LF_LIST(section, count) each_##section = 1,
#define LF_FIELD(section, name, unit, column, phrase, from)
enum {
#include "run/report.def"
};
#undef LF_OBJECT
#undef LF_LIST
#undef LF_FIELD

#define NAME_TEXT "text"
#define NAME_COUNT "count"
#define NAME_FLOP "FLOP"
#define NAME_BYTE "B"
#define NAME_US "us"
#define NAME_FLOP_S "FLOP/s"
#define NAME_BYTE_S "B/s"
#define LF_OBJECT(section)
#define LF_LIST(section, count)
#define LF_FIELD(section, name, unit, column, phrase, from)                                                            \
    {{#section, #name, NAME_##unit, column, phrase, each_##section}, LF_AS_##unit, section##_##name},
static const lf_field_row rows[] = {
#include "run/report.def"
};
#undef LF_OBJECT
#undef LF_LIST
#undef LF_FIELD
enum { ROWS = sizeof rows / sizeof *rows };

const lf_field_row *lf_field_row_at(size_t index)
{
    return index < ROWS ? &rows[index] : NULL;
}

const lf_field_row *lf_section(const char *section)
{
    for (size_t i = 0; i < ROWS; i++)
        if (strcmp(rows[i].field.section, section) == 0)
            return &rows[i];
    return NULL;
}

const lf_field_row *lf_next_field(const lf_field_row *row)
{
    const lf_field_row *next = row + 1;
    return next < rows + ROWS && strcmp(next->field.section, row->field.section) == 0 ? next : NULL;
}

/* ---- what callers ask ---- */

const lf_field *lf_account_field(size_t index)
{
    return index < ROWS ? &rows[index].field : NULL;
}

size_t lf_account_rows(const lf_account *a, const char *name)
{
    if (!a || !name)
        return 0;
#define LF_OBJECT(section)                                                                                             \
    if (strcmp(name, #section) == 0)                                                                                   \
        return 1;
#define LF_LIST(section, count)                                                                                        \
    if (strcmp(name, #section) == 0)                                                                                   \
        return (size_t)(count);
#define LF_FIELD(section, name, unit, column, phrase, from)
#include "run/report.def"
#undef LF_OBJECT
#undef LF_LIST
#undef LF_FIELD
    return 0;
}

/* The field, where the account has that row of it; NULL where not. */
static const lf_field_row *find(const lf_account *a, const char *section, const char *name, size_t row)
{
    if (!name || row >= lf_account_rows(a, section))
        return NULL;
    for (const lf_field_row *f = lf_section(section); f; f = lf_next_field(f))
        if (strcmp(f->field.name, name) == 0)
            return f;
    return NULL;
}

double lf_account_number(const lf_account *account, const char *section, const char *name, size_t row)
{
    const lf_field_row *f = find(account, section, name, row);
    return f && f->unit != LF_AS_TEXT ? f->from(account, (int32_t)row).number : NAN;
}

const char *lf_account_text(const lf_account *account, const char *section, const char *name, size_t row)
{
    const lf_field_row *f = find(account, section, name, row);
    return f && f->unit == LF_AS_TEXT ? f->from(account, (int32_t)row).text : NULL;
}
