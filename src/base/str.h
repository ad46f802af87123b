/* SPDX-License-Identifier: Apache-2.0 */
/* A string that grows. Failure is sticky: a writer adds line after line and asks once, in lf_str_take. */
#ifndef LF_BASE_STR_H
#define LF_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>

/* All zero is an empty string. text is NULL until something is added and NUL-terminated from then on; owned. */
typedef struct lf_str {
    char *text;
    size_t length;   /* bytes before the NUL */
    size_t capacity; /* bytes behind text, the NUL's among them */
    bool failed;     /* an add found no memory; that add and all after it did nothing */
} lf_str;

/* The text added must not be s->text itself, which may move. */
void lf_str_add(lf_str *s, const char *text);
void lf_str_addn(lf_str *s, const char *text, size_t length);
void lf_str_addf(lf_str *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Spaces until the last line is column characters (UTF-8 code points) wide; nothing where it is that wide already. */
void lf_str_pad(lf_str *s, size_t column);

/* The text, which the caller now owns and frees with free(); NULL if any add failed. Leaves s empty either way. */
char *lf_str_take(lf_str *s);

/* Leaves s empty. */
void lf_str_free(lf_str *s);

#endif
