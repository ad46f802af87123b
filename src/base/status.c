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

    size_t length;
    if (wanted < 0) {
        length = (size_t)snprintf(text, sizeof text, "(a message that could not be formatted)");
    } else if ((size_t)wanted >= sizeof text) {
        length = whole_characters(text, sizeof text - 1);
    } else {
        length = (size_t)wanted;
    }
    memcpy(d->text, text, length);
    d->text[length] = '\0';
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
