/* SPDX-License-Identifier: Apache-2.0 */
#include "base/str.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Makes room for extra more bytes and the NUL; false, and failed for good, where there is none. */
static bool reserve(lf_str *s, size_t extra)
{
    enum { FIRST = 64 };
    if (s->failed)
        return false;
    if (s->text && extra < s->capacity - s->length)
        return true;
    /* Below half of the address space nothing here can wrap, the doubling included. */
    if (extra >= PTRDIFF_MAX - s->length) {
        s->failed = true;
        return false;
    }
    size_t needed = s->length + extra + 1;
    size_t capacity = s->capacity ? s->capacity * 2 : FIRST;
    if (capacity < needed)
        capacity = needed;
    char *text = realloc(s->text, capacity);
    if (!text) {
        s->failed = true;
        return false;
    }
    s->text = text;
    s->capacity = capacity;
    s->text[s->length] = '\0';
    return true;
}

void lf_str_addn(lf_str *s, const char *text, size_t length)
{
    if (!reserve(s, length))
        return;
    if (length)
        memcpy(s->text + s->length, text, length);
    s->length += length;
    s->text[s->length] = '\0';
}

void lf_str_add(lf_str *s, const char *text)
{
    lf_str_addn(s, text, strlen(text));
}

void lf_str_addf(lf_str *s, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, fmt, args);
    va_end(args);

    if (length < 0) {
        s->failed = true;
    } else if (reserve(s, (size_t)length)) {
        vsnprintf(s->text + s->length, (size_t)length + 1, fmt, again);
        s->length += (size_t)length;
    }
    va_end(again);
}

void lf_str_pad(lf_str *s, size_t column)
{
    size_t width = 0;
    for (size_t i = s->length; i > 0 && s->text[i - 1] != '\n'; i--)
        width += ((unsigned char)s->text[i - 1] & 0xc0) != 0x80; /* continuation bytes start no character */
    if (width >= column || !reserve(s, column - width))
        return;
    memset(s->text + s->length, ' ', column - width);
    s->length += column - width;
    s->text[s->length] = '\0';
}

char *lf_str_take(lf_str *s)
{
    char *text = reserve(s, 0) ? s->text : NULL;
    if (text)
        s->text = NULL;
    lf_str_free(s);
    return text;
}

void lf_str_free(lf_str *s)
{
    free(s->text);
    *s = (lf_str){0};
}
