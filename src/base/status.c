/* SPDX-License-Identifier: Apache-2.0 */
#include "base/status.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* How many bytes the UTF-8 character that starts with this byte should have; 1 for a byte that starts none. */
static size_t sequence_length(unsigned char lead)
{
    if (lead >= 0xf0)
        return 4;
    if (lead >= 0xe0)
        return 3;
    return lead >= 0xc0 ? 2 : 1;
}

/* The longest prefix of text[0..length) that does not end inside a character. */
static size_t whole_characters(const char *text, size_t length)
{
    size_t lead = length;
    /* A character has at most three continuation bytes; bytes that are not UTF-8 at all are not searched further. */
    for (int back = 0; back < 4 && lead > 0; back++) {
        lead--;
        if (((unsigned char)text[lead] & 0xc0) != 0x80)
            return lead + sequence_length((unsigned char)text[lead]) > length ? lead : length;
    }
    return length;
}

/* The control character that text begins with, of ASCII or of Unicode's second block (C2 80 to C2 9F); else -1. */
static int control_character(const unsigned char *text)
{
    if (text[0] == 0xc2 && text[1] >= 0x80 && text[1] < 0xa0)
        return text[1];
    return (text[0] < ' ' && text[0] != '\n' && text[0] != '\t') || text[0] == 0x7f ? text[0] : -1;
}

void lf_text_printable(const char *text, char *out, size_t capacity)
{
    static const char digits[] = "0123456789abcdef";
    const unsigned char *from = (const unsigned char *)text;
    size_t at = 0;
    for (; *from; from++) {
        const int control = control_character(from);
        const char escape[4] = {'\\', 'x', digits[control >> 4 & 15], digits[control & 15]};
        const size_t size = control < 0 ? 1 : sizeof escape;
        if (at + size >= capacity)
            break;
        memcpy(out + at, control < 0 ? (const char *)from : escape, size);
        at += size;
        from += control >= 0x80;
    }
    out[*from ? whole_characters(out, at) : at] = '\0';
}

lf_status lf_fail(lf_diag *d, lf_status s, const char *fmt, ...)
{
    if (!d)
        return s;

    /* Formatted aside, because the arguments may include d->text itself. */
    char text[sizeof d->text];
    va_list args;
    va_start(args, fmt);
    int wanted = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);

    if (wanted < 0)
        snprintf(text, sizeof text, "(a message that could not be formatted)");
    else if ((size_t)wanted >= sizeof text)
        text[whole_characters(text, sizeof text - 1)] = '\0';
    lf_text_printable(text, d->text, sizeof d->text);
    return s;
}

lf_status lf_fail_null(lf_diag *d, const char *argument)
{
    return lf_fail(d, LF_ERR_ARG, "`%s` must not be NULL", argument);
}

lf_status lf_fail_nomem(lf_diag *d, const char *what)
{
    return lf_fail(d, LF_ERR_NOMEM, "out of memory for %s", what);
}
