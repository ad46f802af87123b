/* SPDX-License-Identifier: Apache-2.0 */
/* Reads `.lf` text into a graph: a hand lexer and a parser that goes line by line.
 *
 *     statement = ("input" | "param") NAME type | NAME "=" OP "(" [arg {"," arg}] ")" | "return" NAME {"," NAME}
 *     type      = ("f32" | "f16" | "bf16" | "i64") "[" [extent {"," extent}] "]"
 *     arg       = [KEY "="] (NAME | number | "true" | "false" | "None" | string | "[" [number {"," number}] "]")
 *
 * input, param and return are words only where a statement needs them: before `=` and in arguments they name values.
 * What an op's arguments mean is not known here: lf_graph_bind decides, and says which argument it dislikes. */
#include "base/dtype.h"
#include "base/guess.h"
#include "ir/graph.h"

#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_TEXT = 16 << 20,   /* bytes: a model of LF_MAX_NODES ordinary lines is a tenth of it */
    MAX_LINE = 64 << 10,   /* bytes */
    MAX_WORD = LF_MAX_NAME, /* bytes of one name, number or string */
    MAX_CALL = 64,         /* arguments as written; no op has as many */
    MAX_RETURN = 1024,
    SHOWN = 100,           /* characters of a line shown with a message */
    SHOWN_FILE = 512,      /* bytes; with MAX_MESSAGE and the line at 4 bytes a character this fits lf_diag */
    MAX_MESSAGE = 800,
    NEAR = 2               /* edits between a name and what is suggested for it */
};

enum { T_END = 256, T_NAME, T_NUMBER, T_STRING, T_BAD }; /* other tokens are their character */

typedef struct token {
    int kind;
    const char *at; /* in the line; a string's quotes are in it */
    size_t length;
} token;

typedef struct reader {
    lf_graph *g;
    const char *file;
    const char *line, *end; /* the line being read, without its end */
    int number;             /* of the line, from 1 */
    token tok;              /* the token to be looked at */
    lf_status status;       /* the first failure; everything after it is ignored */
    bool returned;
    char found[64];         /* quoted's result */
} reader;

/* ---- characters ---- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
static bool is_control(char c) { return (unsigned char)c < ' ' || c == 0x7f; }
static bool is_word(char c) { return is_letter(c) || is_digit(c) || c == '.'; }

/* Bytes of the UTF-8 character at s, 0 where there is none: overlong forms, surrogates and the control characters
 * U+0080..9F, which some terminals obey, count as none. */
static size_t character(const char *s, const char *end)
{
    unsigned char lead = (unsigned char)*s;
    size_t length = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
    if (length == 0 || (size_t)(end - s) < length)
        return 0;
    for (size_t i = 1; i < length; i++)
        if (((unsigned char)s[i] & 0xc0) != 0x80)
            return 0;
    unsigned char second = length > 1 ? (unsigned char)s[1] : 0;
    if ((lead == 0xc2 && second < 0xa0) || (lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ||
        (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f))
        return 0;
    return length;
}

/* The same, never 0: a byte that belongs to no character is one by itself. */
static size_t step(const char *s, const char *end)
{
    size_t length = character(s, end);
    return length ? length : 1;
}

/* The longest prefix of text[0..length) of at most limit bytes that ends between two characters. */
static size_t cut(const char *text, size_t length, size_t limit)
{
    if (length <= limit)
        return length;
    while (limit > 0 && ((unsigned char)text[limit] & 0xc0) == 0x80)
        limit--;
    return limit;
}

static const char *copy(char *to, const char *text, size_t length)
{
    memcpy(to, text, length);
    to[length] = '\0';
    return to;
}

/* ---- messages ---- */

/* The line around its character number `column` (from 0) and, under it, a caret. out: 5 * SHOWN + 16 bytes. */
static void show_line(const reader *p, size_t column, char *out)
{
    size_t total = 0, i = 0;
    for (const char *s = p->line; s < p->end; s += step(s, p->end))
        total++;
    size_t first = column > SHOWN / 2 && total > SHOWN ? column - SHOWN / 2 : 0;
    if (total > SHOWN && first > total - SHOWN)
        first = total - SHOWN;
    char caret[SHOWN + 8], *c = caret + sprintf(caret, first ? "   " : "");
    out += sprintf(out, first ? "..." : "");
    for (const char *s = p->line; s < p->end && i < first + SHOWN; s += step(s, p->end), i++) {
        if (i < first)
            continue;
        size_t length = character(s, p->end);
        bool seen = length > 0 && (*s == '\t' || !is_control(*s));
        memcpy(out, seen ? s : "?", seen ? length : 1);
        out += seen ? length : 1;
        if (i < column)
            *c++ = *s == '\t' ? '\t' : ' ';
    }
    *c = '\0';
    sprintf(out, "%s\n%s^", i < total ? "..." : "", caret);
}

/* Fails at a place in the current line. Only the first failure of a read is kept. */
__attribute__((format(printf, 4, 5)))
static bool fail(reader *p, lf_status status, const char *at, const char *fmt, ...)
{
    if (p->status != LF_OK)
        return false;
    char message[sizeof p->g->diag->text], shown[5 * SHOWN + 16];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    message[cut(message, strlen(message), MAX_MESSAGE)] = '\0';
    size_t column = 0;
    for (const char *s = p->line; s < at; s += step(s, p->end))
        column++;
    show_line(p, column, shown);

    /* Of a long path the end tells more than the beginning. */
    size_t length = strlen(p->file);
    const char *file = length > SHOWN_FILE ? p->file + (length - SHOWN_FILE) : p->file;
    while (((unsigned char)*file & 0xc0) == 0x80)
        file++;
    const bool empty = p->line == p->end; /* then there is nothing to show */
    p->status = lf_fail(p->g->diag, status, "%s:%d:%zu: %s%s%s", file, p->number, column + 1, message,
                        empty ? "" : "\n", empty ? "" : shown);
    return false;
}

#define FAIL(p, at, ...) fail(p, LF_ERR_MODEL, at, __VA_ARGS__)

/* Passes on what a graph function said, with a place in front. */
static bool fail_graph(reader *p, lf_status status, const char *at)
{
    return fail(p, status, at, "%s", p->g->diag ? p->g->diag->text : "");
}

/* The token as a message names it; good until the next call. */
static const char *quoted(reader *p, token t)
{
    size_t length = cut(t.at, t.length, 48);
    if (t.kind == T_END)
        snprintf(p->found, sizeof p->found, "the end of the line");
    else
        snprintf(p->found, sizeof p->found, "'%.*s%s'", (int)length, t.at, length < t.length ? "..." : "");
    return p->found;
}

/* ---- tokens ---- */

static bool is(token t, const char *word)
{
    return t.kind == T_NAME && strlen(word) == t.length && memcmp(word, t.at, t.length) == 0;
}

/* Bytes of the name or number that starts at s; a number may have a sign at its start and after an e. */
static size_t word_length(const char *s, const char *end, bool number)
{
    size_t length = 1;
    for (; s + length < end; length++) {
        bool exponent = number && length > 1 && (s[length - 1] == 'e' || s[length - 1] == 'E');
        if (!is_word(s[length]) && !(exponent && (s[length] == '-' || s[length] == '+')))
            break;
    }
    return length;
}

/* The token at s, which is not a space. A wrong one has been reported and is T_BAD, which no statement accepts. */
static token lex_at(reader *p, const char *s)
{
    if (s == p->end || *s == '#')
        return (token){T_END, s, 0};
    token t = {*s, s, step(s, p->end)};
    bool point = *s == '.' && s + 1 < p->end && is_digit(s[1]);
    if (is_digit(*s) || *s == '-' || *s == '+' || point) {
        t = (token){T_NUMBER, s, word_length(s, p->end, true)};
    } else if (is_word(*s)) {
        t = (token){T_NAME, s, word_length(s, p->end, false)};
        t.kind = is(t, "inf") || is(t, "nan") ? T_NUMBER : T_NAME;
    } else if (*s == '"' || *s == '\'') {
        const char *close = memchr(s + 1, *s, (size_t)(p->end - s) - 1);
        if (!close)
            FAIL(p, s, "this string has no closing %c on its line", *s);
        t = (token){T_STRING, s, close ? (size_t)(close - s) + 1 : 1};
    } else if (!strchr("=(),[]", *s)) {
        FAIL(p, s, "unexpected character %s", quoted(p, t));
    }
    if (t.length > MAX_WORD)
        FAIL(p, s, "%s is %zu bytes long; at most %d are allowed", quoted(p, t), t.length, MAX_WORD);
    if (p->status != LF_OK)
        t.kind = T_BAD;
    return t;
}

static void lex(reader *p)
{
    const char *s = p->tok.at + p->tok.length;
    while (s < p->end && (*s == ' ' || *s == '\t'))
        s++;
    p->tok = lex_at(p, s);
}

/* Hands out the token looked at and goes to the next. */
static token take(reader *p)
{
    token t = p->tok;
    lex(p);
    return t;
}

static bool accept(reader *p, int kind)
{
    if (p->tok.kind != kind)
        return false;
    take(p);
    return p->status == LF_OK;
}

static bool expect(reader *p, int kind, const char *where)
{
    if (p->tok.kind != kind)
        return FAIL(p, p->tok.at, "expected '%c' %s, found %s", kind, where, quoted(p, p->tok));
    take(p);
    return p->status == LF_OK;
}

static bool expect_end(reader *p)
{
    return p->tok.kind == T_END || FAIL(p, p->tok.at, "expected the end of the line, found %s", quoted(p, p->tok));
}

/* The words that stand for themselves. */
static const lf_arg *find_literal(token t)
{
    static const lf_arg table[] = {
        {.key = "true", .kind = LF_ARG_BOOL, .number = 1},  {.key = "True", .kind = LF_ARG_BOOL, .number = 1},
        {.key = "false", .kind = LF_ARG_BOOL, .number = 0}, {.key = "False", .kind = LF_ARG_BOOL, .number = 0},
        {.key = "None", .kind = LF_ARG_NONE},               {.key = "none", .kind = LF_ARG_NONE},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (is(t, table[i].key))
            return &table[i];
    return NULL;
}

/* The name of the value that is fewest edits away from t, NULL where none is near. */
static const char *nearest(const lf_graph *g, token t)
{
    lf_guess guess = lf_guess_of(t.at, t.length, NEAR);
    for (lf_node n = 0; n < g->count; n++)
        if (lf_at(g, n)->op != LF_OP_constant)
            lf_guess_try(&guess, lf_at(g, n)->name);
    return guess.best;
}

/* ---- names ---- */

/* The name is there, is not a word with a meaning of its own and is not bound yet. */
static bool check_new_name(reader *p, token t, const char *what)
{
    if (t.kind != T_NAME)
        return FAIL(p, t.at, "expected a name for the %s, found %s", what, quoted(p, t));
    if (find_literal(t))
        return FAIL(p, t.at, "'%.*s' has a meaning of its own and cannot name a value", (int)t.length, t.at);
    if (lf_graph_find(p->g, t.at, t.length) != LF_NONE)
        return FAIL(p, t.at, "'%.*s' is already bound", (int)t.length, t.at);
    return true;
}

static bool find_value(reader *p, token t, lf_node *out)
{
    *out = lf_graph_find(p->g, t.at, t.length);
    if (*out != LF_NONE && lf_at(p->g, *out)->op != LF_OP_constant)
        return true;
    const char *near = nearest(p->g, t);
    return FAIL(p, t.at, "'%.*s' is not defined%s%s%s", (int)t.length, t.at, near ? "; did you mean '" : "",
                near ? near : "", near ? "'?" : "");
}

/* ---- numbers ---- */

/* The number a T_NUMBER token, inf or nan spells; correctly rounded (lf_text_read has set the C locale for strtod). */
static bool read_number(reader *p, token t, double *out)
{
    char text[MAX_WORD + 1], *end;
    copy(text, t.at, t.length);
    bool sign = *text == '-' || *text == '+', infinite = strcmp(text + sign, "inf") == 0;
    *out = strtod(text, &end);
    /* strtod also knows hexadecimal and further words. */
    bool decimal = strspn(text, "0123456789.eE+-") == t.length && end == text + t.length;
    if (strcmp(text + sign, "nan") == 0)
        return FAIL(p, t.at, "nan is not accepted as a number");
    if (sign && !infinite && (t.length == 1 || is_letter(text[1])))
        return FAIL(p, t.at, "expected a number after '%c' (for values there are neg, add and sub)", *text);
    if (!infinite && !decimal)
        return FAIL(p, t.at, "%s is not a number", quoted(p, t));
    if (!infinite && isinf(*out))
        return FAIL(p, t.at, "%s is too large for a number (the infinite one is written inf)", quoted(p, t));
    return true;
}

/* ---- calls ---- */

/* What an lf_arg of a call borrows. */
typedef struct written {
    const char *at;
    char key[MAX_WORD + 1], string[MAX_WORD + 1];
    double list[LF_MAX_LIST];
} written;

/* The numbers of a list; its [ is behind. */
static bool read_list(reader *p, double *list, size_t *count)
{
    if (accept(p, ']'))
        return true;
    do {
        token t = take(p);
        if (t.kind != T_NUMBER)
            return FAIL(p, t.at, "expected a number in the list, found %s", quoted(p, t));
        if (*count == LF_MAX_LIST)
            return FAIL(p, t.at, "more than %d numbers in a list", LF_MAX_LIST);
        if (!read_number(p, t, &list[(*count)++]))
            return false;
    } while (accept(p, ','));
    return expect(p, ']', "or ',' in the list");
}

/* What stands after the key, if there was one; its first token is t. */
static bool read_value(reader *p, token t, lf_arg *arg, written *w)
{
    const lf_arg *word = find_literal(t);
    if (t.kind == T_NUMBER) {
        arg->kind = LF_ARG_NUMBER;
        return read_number(p, t, &arg->number);
    }
    if (word) {
        arg->kind = word->kind;
        arg->number = word->number;
        return true;
    }
    if (t.kind == T_STRING) {
        arg->kind = LF_ARG_STRING;
        arg->string = copy(w->string, t.at + 1, t.length - 2);
        return true;
    }
    if (t.kind == '[') {
        arg->kind = LF_ARG_LIST;
        arg->list = w->list;
        return read_list(p, w->list, &arg->count);
    }
    if (t.kind != T_NAME)
        return FAIL(p, t.at, "expected an argument, found %s%s", quoted(p, t), t.kind == '(' ? " (lists: [1, 2])" : "");
    if (p->tok.kind == '(')
        return FAIL(p, t.at, "calls do not nest: give %s a line and a name of its own", quoted(p, t));
    arg->kind = LF_ARG_VALUE;
    return find_value(p, t, &arg->value);
}

static bool read_arg(reader *p, lf_arg *arg, written *w)
{
    *arg = (lf_arg){.value = LF_NO_VALUE};
    token t = take(p);
    w->at = t.at;
    if (t.kind == T_NAME && accept(p, '=')) {
        arg->key = copy(w->key, t.at, t.length);
        t = take(p);
    }
    return read_value(p, t, arg, w);
}

/* NAME = OP(args); the name and the = are behind. */
static bool read_assignment(reader *p, token name)
{
    lf_arg args[MAX_CALL];
    written as[MAX_CALL];
    char name_text[MAX_WORD + 1], op_text[MAX_WORD + 1];
    size_t count = 0;
    if (!check_new_name(p, name, "value"))
        return false;
    token op = take(p);
    if (op.kind != T_NAME)
        return FAIL(p, op.at, "expected an op after '=', found %s", quoted(p, op));
    if (!expect(p, '(', "after the op"))
        return false;
    if (!accept(p, ')')) {
        do {
            if (count == MAX_CALL)
                return FAIL(p, p->tok.at, "more than %d arguments in one call", MAX_CALL);
            if (!read_arg(p, &args[count], &as[count]))
                return false;
            count++;
        } while (accept(p, ','));
        if (!expect(p, ')', "or ',' after an argument"))
            return false;
    }
    if (!expect_end(p))
        return false;
    lf_node node;
    int bad = -1;
    copy(name_text, name.at, name.length);
    copy(op_text, op.at, op.length);
    lf_status s = lf_graph_bind(p->g, name_text, op_text, args, count, &node, &bad);
    return s == LF_OK || fail_graph(p, s, bad >= 0 && (size_t)bad < count ? as[bad].at : op.at);
}

/* ---- other statements ---- */

static bool read_extent(reader *p, bool is_param, lf_extent *out)
{
    token t = take(p);
    if (t.kind == T_NAME) {
        int symbol;
        if (is_param)
            return FAIL(p, t.at, "a parameter's extents are numbers; %s is learnt from an input", quoted(p, t));
        /* Where what follows the name is no token, that has been said, and must not be written over. */
        lf_status s = p->status != LF_OK ? p->status : lf_graph_symbol(p->g, t.at, t.length, &symbol);
        if (s != LF_OK)
            return fail_graph(p, s, t.at);
        *out = lf_extent_of(1);
        out->pow[symbol] = 1;
        return true;
    }
    int64_t value = 0;
    size_t digits = 0;
    while (t.kind == T_NUMBER && digits < t.length && is_digit(t.at[digits]) && value <= LF_MAX_ELEMENTS)
        value = value * 10 + (t.at[digits++] - '0');
    if (value > LF_MAX_ELEMENTS)
        return FAIL(p, t.at, "the extent %s is larger than 2^46", quoted(p, t));
    if (t.kind != T_NUMBER || digits < t.length || value == 0)
        return FAIL(p, t.at, "expected an extent, a positive integer or a name, found %s", quoted(p, t));
    *out = lf_extent_of(value);
    return true;
}

/* input NAME TYPE or param NAME TYPE; the first word is behind. */
static bool read_leaf(reader *p, lf_op op)
{
    const char *what = lf_op_row(op)->name;
    token name = take(p);
    if (!check_new_name(p, name, what))
        return false;
    token type = take(p);
    lf_dtype dtype;
    if (type.kind != T_NAME || !lf_dtype_parse(type.at, type.length, &dtype))
        return FAIL(p, type.at, "expected a type (f32, f16, bf16 or i64, then [extents]), found %s", quoted(p, type));
    if (!expect(p, '[', "after the type"))
        return false;
    lf_shape shape = {0};
    if (!accept(p, ']')) {
        do {
            if (shape.rank == LF_MAX_RANK)
                return FAIL(p, p->tok.at, "more than %d extents", LF_MAX_RANK);
            if (!read_extent(p, op == LF_OP_param, &shape.dim[shape.rank++]))
                return false;
        } while (accept(p, ','));
        if (!expect(p, ']', "or ',' after an extent"))
            return false;
    }
    if (!expect_end(p))
        return false;
    char text[MAX_WORD + 1];
    lf_node node;
    lf_status s = lf_graph_leaf(p->g, op, copy(text, name.at, name.length), dtype, &shape, &node);
    return s == LF_OK || fail_graph(p, s, type.at);
}

static bool read_return(reader *p, token word)
{
    lf_node nodes[MAX_RETURN];
    size_t count = 0;
    do {
        token t = take(p);
        if (t.kind != T_NAME)
            return FAIL(p, t.at, "expected the name of a value to return, found %s", quoted(p, t));
        if (count == MAX_RETURN)
            return FAIL(p, t.at, "more than %d values returned", MAX_RETURN);
        if (!find_value(p, t, &nodes[count++]))
            return false;
    } while (accept(p, ','));
    if (!expect_end(p))
        return false;
    lf_status s = lf_graph_return(p->g, nodes, count);
    p->returned = true;
    return s == LF_OK || fail_graph(p, s, word.at);
}

static bool read_statement(reader *p)
{
    lex(p);
    token word = take(p);
    if (word.kind == T_END)
        return true;
    if (p->returned)
        return FAIL(p, word.at, "nothing may follow return");
    if (word.kind != T_NAME)
        return FAIL(p, word.at, "expected input, param, return or NAME = op(...), found %s", quoted(p, word));
    if (accept(p, '='))
        return read_assignment(p, word);
    if (is(word, "input") || is(word, "param"))
        return read_leaf(p, is(word, "input") ? LF_OP_input : LF_OP_param);
    if (is(word, "return"))
        return read_return(p, word);
    return FAIL(p, p->tok.at, "expected '=' after the name, found %s (or is input, param or return meant?)",
                quoted(p, p->tok));
}

/* ---- lines ---- */

/* Nothing in the line could be taken for something else than what is seen: UTF-8, and no control character but tabs. */
static bool check_characters(reader *p)
{
    if (p->end - p->line > MAX_LINE)
        return FAIL(p, p->line, "a line of %td bytes; at most %d are allowed", p->end - p->line, MAX_LINE);
    for (const char *s = p->line; s < p->end; s += step(s, p->end)) {
        if (character(s, p->end) == 0)
            return FAIL(p, s, "byte 0x%02x is not a UTF-8 character", (unsigned)(unsigned char)*s);
        if (is_control(*s) && *s != '\t')
            return FAIL(p, s, "control character 0x%02x", (unsigned)(unsigned char)*s);
    }
    return true;
}

static void read_lines(reader *p, const char *text, const char *end)
{
    bool more;
    do {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        p->number++;
        p->line = text;
        p->end = newline ? newline : end;
        p->end -= p->end > p->line && p->end[-1] == '\r';
        p->tok = (token){T_END, text, 0};
        text = newline ? newline + 1 : end;
        more = check_characters(p) && read_statement(p);
    } while (more && text < end);
    if (more && !p->returned)
        FAIL(p, p->end, "the model ends without a return");
}

lf_status lf_text_read(lf_graph *g, const char *name, const char *text, size_t length)
{
    reader p = {.g = g, .file = name ? name : "model", .line = "", .number = 1};
    p.end = p.line;
    if (length > MAX_TEXT) {
        FAIL(&p, p.line, "a text of %zu bytes; at most %d are allowed", length, MAX_TEXT);
        return p.status;
    }
    text = length ? text : ""; /* may be NULL */
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c)
        return lf_fail_nomem(g->diag, "reading the model");
    locale_t before = uselocale(c);
    size_t mark = length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    p.number = 0;
    read_lines(&p, text + mark, text + length);
    uselocale(before);
    freelocale(c);
    return p.status;
}
