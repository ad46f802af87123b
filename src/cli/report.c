/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/report.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- failures ---- */

int cli_fail(const char *fmt, ...)
{
    char text[4096], shown[sizeof text];
    va_list args;
    cli_progress_end();
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    lf_printable(text, shown, sizeof shown);
    for (char *c = shown; *c; c++)
        if (*c == '\n')
            *c = ' ';
    fprintf(stderr, "linfuse: %s\n", shown);
    return CLI_BAD;
}

int cli_fail_unknown(const char *what, const char *word, const char *near)
{
    return cli_fail("unknown %s '%s'; %s%s%see linfuse --help", what, word, near ? "did you mean " : "",
                    near ? near : "", near ? "? S" : "s");
}

int cli_fail_status(lf_status status, const char *message)
{
    cli_fail("%s", message && message[0] ? message : lf_status_name(status));
    return status == LF_ERR_DEVICE ? CLI_NO_DEVICE : CLI_BAD;
}

/* Was it closed at the other end, as `head` does when it has enough? Asked of the pipe itself, since a write that
 * failed earlier has left no errno. */
static bool reader_has_left(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO};
    return poll(&out, 1, 0) == 1 && (out.revents & POLLERR);
}

int cli_finish(int code)
{
    errno = 0;
    if ((fflush(stdout) == 0 && !ferror(stdout)) || errno == EPIPE || reader_has_left())
        return code;
    return cli_fail("cannot write to standard output: %s", errno ? strerror(errno) : "an earlier write failed");
}

bool cli_is_stdout(const char *path)
{
    return strcmp(path, "/dev/stdout") == 0 || strcmp(path, "/dev/fd/1") == 0 || strcmp(path, "/proc/self/fd/1") == 0;
}

/* ---- numbers ---- */

const char *cli_number(cli_text *t, const char *fmt, double value)
{
    if (isnan(value))
        snprintf(t->text, sizeof t->text, "-");
    else if (isinf(value))
        snprintf(t->text, sizeof t->text, value > 0 ? "inf" : "-inf");
    else
        snprintf(t->text, sizeof t->text, fmt, value);
    return t->text;
}

/* Three digits that count: 1.23, 12.3, 123. */
static const char *scaled(cli_text *t, double value, const char *unit)
{
    char fmt[24];
    snprintf(fmt, sizeof fmt, "%%.%df %s", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, unit);
    return cli_number(t, fmt, value);
}

const char *cli_seconds(cli_text *t, double seconds)
{
    if (seconds < 1e-3)
        return scaled(t, seconds * 1e6, "us");
    return seconds < 1 ? scaled(t, seconds * 1e3, "ms") : scaled(t, seconds, "s");
}

const char *cli_bytes(cli_text *t, double bytes)
{
    static const char *const units[] = {"kB", "MB", "GB", "TB", "PB", "EB"};
    size_t unit = 0;
    if (bytes < 1000)
        return cli_number(t, "%.0f bytes", bytes);
    for (bytes /= 1000; bytes >= 999.5 && unit + 1 < sizeof units / sizeof *units; bytes /= 1000)
        unit++;
    return scaled(t, bytes, units[unit]);
}

const char *cli_shape(char *out, int rank, const int64_t *extents)
{
    size_t at = 0;
    out[at++] = '[';
    for (int i = 0; i < rank; i++)
        at += (size_t)snprintf(out + at, CLI_SHAPE - at, "%s%lld", i ? ", " : "", (long long)extents[i]);
    snprintf(out + at, CLI_SHAPE - at, "]");
    return out;
}

/* ---- tables ---- */

void cli_table_add(cli_table *t, const char *cell)
{
    if (t->count == t->capacity) {
        size_t capacity = t->capacity ? t->capacity * 2 : 64;
        char **cells = realloc(t->cells, capacity * sizeof *cells);
        if (!cells) {
            t->failed = true;
            return;
        }
        t->cells = cells;
        t->capacity = capacity;
    }
    char *copy = strdup(cell);
    if (!copy)
        t->failed = true;
    else
        t->cells[t->count++] = copy;
}

/* Characters, not bytes: those that begin one in UTF-8. */
static int width_of(const char *text)
{
    int width = 0;
    for (; *text; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

static int column_width(const cli_table *t, size_t column)
{
    int widest = 0;
    for (size_t i = column; i < t->count; i += t->columns)
        if (width_of(t->cells[i]) > widest)
            widest = width_of(t->cells[i]);
    return widest;
}

int cli_table_print(cli_table *t)
{
    bool failed = t->failed;
    for (size_t i = 0; i < t->count && !failed; i++) {
        size_t column = i % t->columns;
        bool last = column + 1 == t->columns;
        int pad = column_width(t, column) - width_of(t->cells[i]);
        bool right = t->align[column] == 'r';
        printf("  %*s%s%*s%s", right ? pad : 0, "", t->cells[i], right || last ? 0 : pad, "", last ? "\n" : "");
    }
    for (size_t i = 0; i < t->count; i++)
        free(t->cells[i]);
    free(t->cells);
    *t = (cli_table){.columns = t->columns, .align = t->align};
    return failed ? cli_fail("no memory to print a table") : CLI_OK;
}

/* ---- JSON ---- */

json_t *cli_json_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *cli_json_shape(int rank, const int64_t *extents)
{
    json_t *list = json_array();
    for (int i = 0; i < rank; i++)
        json_array_append_new(list, json_integer(extents[i]));
    return list;
}

int cli_json_print(json_t *object)
{
    char *text = object ? json_dumps(object, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(object);
    if (!text)
        return cli_fail("no memory to print the result as JSON");
    puts(text);
    free(text);
    return CLI_OK;
}
