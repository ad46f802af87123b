/* SPDX-License-Identifier: Apache-2.0 */
/* What the command tells the outside: exit statuses, error lines, numbers with units, tables, JSON, progress. */
#ifndef LF_CLI_REPORT_H
#define LF_CLI_REPORT_H

#include <jansson.h>
#include <linfuse_tools.h>

enum { CLI_OK = 0, CLI_NOT_OK = 1, CLI_BAD = 2, CLI_NO_DEVICE = 3 };

/* Says one line on stderr, with `linfuse: ` in front, and returns CLI_BAD. */
int cli_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* The same for a word that there is none of: "unknown WHAT 'WORD'; did you mean NEAR? ...". near: NULL where none
 * is. */
int cli_fail_unknown(const char *what, const char *word, const char *near);

/* The same for what the library said; the exit status is the one that fits. */
int cli_fail_status(lf_status status, const char *message);

/* Is it a name of standard output? */
bool cli_is_stdout(const char *path);

/* Sends out what was printed on stdout. Returns code, or CLI_BAD with a line said where it could not be written. That
 * nobody reads on is no failure: the exit status says what it would have said, however much was read. */
int cli_finish(int code);

/* ---- numbers for people; each writes into the text and returns it ---- */

typedef struct cli_text {
    char text[48];
} cli_text;

const char *cli_seconds(cli_text *t, double seconds); /* 1.23 ms */
const char *cli_bytes(cli_text *t, double bytes);     /* 268 MB, in powers of 1000 */
const char *cli_number(cli_text *t, const char *fmt, double value);
/* [1024, 8192] of at most LF_MAX_RANK extents; caller's buffer of CLI_SHAPE bytes. */
enum { CLI_SHAPE = 22 * LF_MAX_RANK + 4 };
const char *cli_shape(char *out, int rank, const int64_t *extents);

/* ---- tables ---- */

/* Cells row by row, each as wide as its column asks for. All zero, with columns and align set, is an empty table. */
typedef struct cli_table {
    size_t columns;
    const char *align; /* a letter a column: 'l' or 'r' */
    char **cells;
    size_t count, capacity;
    bool failed; /* no memory for a cell */
} cli_table;

void cli_table_add(cli_table *t, const char *cell);
/* Prints on stdout, indented by two, and empties the table. Returns CLI_OK or CLI_BAD. */
int cli_table_print(cli_table *t);

/* ---- JSON ---- */

/* JSON has no NaN and no infinity: null stands for them. */
json_t *cli_json_number(double value);
json_t *cli_json_shape(int rank, const int64_t *extents);
/* Prints the object on stdout and takes it. NULL, or one that lacks a value for want of memory, fails. */
int cli_json_print(json_t *object);

/* ---- progress ---- */

/* From here to the end a line on stderr says what goes on and for how long, once it has gone on for over a second, if
 * stderr is a terminal; it is gone afterwards. Calls do not nest; cli_fail ends it. The text is borrowed until the end,
 * or until cli_progress_say names another. */
void cli_progress_begin(const char *what);
void cli_progress_say(const char *what);
void cli_progress_end(void);

#endif
