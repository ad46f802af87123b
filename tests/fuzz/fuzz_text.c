/* SPDX-License-Identifier: Apache-2.0 */
/* What holds for every text: it is refused with a place and a caret, or it reads as a graph that verifies, prints, and
 * reads back as the same graph. For libFuzzer; tests/text_test.c includes this file and asks the same of its texts. */
#include "ir/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool same_number(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

static bool same_attr(const lf_param_info *p, const lf_attr *a, const lf_attr *b)
{
    if (a->none || b->none)
        return a->none == b->none;
    if (p->type != 'L')
        return same_number(a->number, b->number);
    return a->count == b->count && memcmp(a->list, b->list, (size_t)a->count * sizeof *a->list) == 0;
}

/* Names of constants are made up and may differ. */
static bool same_node(const lf_node_info *a, const lf_node_info *b)
{
    const lf_op_info *row = lf_op_row(a->op);
    if (a->op != b->op || a->dtype != b->dtype || !lf_shape_same(&a->shape, &b->shape) ||
        !same_number(a->value, b->value) || memcmp(a->arg, b->arg, sizeof a->arg) != 0)
        return false;
    for (int i = 0; i < row->param_count; i++) {
        const lf_param_info *p = &row->param[i];
        if (p->type != 'T' && p->type != 'V' && !same_attr(p, &a->attr[p->slot], &b->attr[p->slot]))
            return false;
    }
    return a->op == LF_OP_constant || strcmp(a->name, b->name) == 0;
}

static bool same_ports(const lf_node *a, int32_t counted_a, const lf_node *b, int32_t counted_b)
{
    return counted_a == counted_b && (counted_a == 0 || memcmp(a, b, (size_t)counted_a * sizeof *a) == 0);
}

static bool same_graph(const lf_graph *a, const lf_graph *b)
{
    bool same = a->count == b->count && a->symbols == b->symbols &&
                same_ports(a->input, a->inputs, b->input, b->inputs) &&
                same_ports(a->param, a->params, b->param, b->params) &&
                same_ports(a->output, a->outputs, b->output, b->outputs);
    for (int s = 0; same && s < a->symbols; s++)
        same = strcmp(a->symbol[s], b->symbol[s]) == 0;
    for (lf_node n = 0; same && n < a->count; n++)
        same = same_node(lf_at(a, n), lf_at(b, n));
    return same;
}

/* NAME:LINE:COLUMN: words, the line, a caret; of an empty line the words alone. */
static bool well_placed(const char *message, const char *name)
{
    int line = 0, column = 0, end = 0;
    size_t length = strlen(name);
    if (strncmp(message, name, length) != 0 || sscanf(message + length, ":%d:%d: %n", &line, &column, &end) < 2)
        return false;
    const char *words = message + length + end, *newline = strchr(words, '\n'), *last = strrchr(message, '\n');
    if (!newline)
        return line > 0 && column == 1 && *words;
    return line > 0 && column > 0 && newline > words && last > newline &&
           strcmp(last + 1 + strspn(last + 1, " \t"), "^") == 0;
}

/* Prints a, which has been read, and reads it back into b. *printed: the text, caller frees. */
static const char *check_round_trip(const lf_graph *a, lf_graph *b, char **printed)
{
    char *again = NULL;
    const char *wrong = NULL;
    if (lf_graph_verify(a) != LF_OK)
        return "a graph that was read does not verify";
    if (lf_text_print(a, printed) != LF_OK)
        return "a graph that was read does not print";
    if (lf_text_read(b, "again", *printed, strlen(*printed)) != LF_OK)
        return "what was printed does not read";
    if (!same_graph(a, b))
        return "what was printed reads as another graph";
    if (lf_text_print(b, &again) != LF_OK || strcmp(*printed, again) != 0)
        wrong = "a graph prints another text the second time";
    free(again);
    return wrong;
}

/* NULL, or what does not hold. *was_read: was the text a model? message (may be NULL) gets the last message. */
static const char *check_text(const char *text, size_t length, bool *was_read, lf_diag *message)
{
    lf_arena arena = {0};
    lf_diag diag = {""};
    lf_graph a, b;
    char *printed = NULL;
    const char *wrong = NULL;
    if (lf_graph_init(&a, &arena, &diag) != LF_OK || lf_graph_init(&b, &arena, &diag) != LF_OK) {
        wrong = "no memory for a graph";
    } else {
        lf_status status = lf_text_read(&a, "fuzz", text, length);
        *was_read = status == LF_OK;
        if (*was_read)
            wrong = check_round_trip(&a, &b, &printed);
        else if (status != LF_ERR_MODEL || !well_placed(diag.text, "fuzz"))
            wrong = "a text was refused without a place";
    }
    if (message)
        *message = diag;
    free(printed);
    lf_arena_free(&arena);
    return wrong;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    lf_diag diag;
    bool was_read = false;
    const char *wrong = check_text((const char *)data, size, &was_read, &diag);
    if (wrong) {
        fprintf(stderr, "%s: %s\n", wrong, diag.text);
        abort();
    }
    return 0;
}
