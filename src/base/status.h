/* SPDX-License-Identifier: Apache-2.0 */
/* One message for one failure. Functions that a caller's input can make fail take a lf_diag and return through
 * lf_fail, so that the code and the words for it are written in the same place. */
#ifndef LF_BASE_STATUS_H
#define LF_BASE_STATUS_H

#include <linfuse.h>

/* Fixed size, so that "out of memory" needs no memory to be said. */
typedef struct lf_diag {
    char text[2048];
} lf_diag;

/* Writes the message into d and returns s.
 * Borrows: everything. d may be NULL (nothing is written); the arguments may point into d->text, so that an outer
 *          function can put its own words in front: lf_fail(d, s, "line %d: %s", line, d->text).
 * Leaves:  a NUL-terminated text, printable (below), cut between two UTF-8 characters where it does not fit. */
lf_status lf_fail(lf_diag *d, lf_status s, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The text with control characters but newline and tab as \xNN, so that a file's name does nothing to a terminal.
 * text: may not overlap out. Leaves out as lf_fail leaves a message. */
void lf_text_printable(const char *text, char *out, size_t capacity);

/* LF_ERR_ARG for an argument that must not be NULL; argument: its name in the public header. */
lf_status lf_fail_null(lf_diag *d, const char *argument);

/* LF_ERR_NOMEM, saying what the memory was for: "the graph's nodes". */
lf_status lf_fail_nomem(lf_diag *d, const char *what);

#endif
