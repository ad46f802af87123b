/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <locale.h>
#include <math.h>

#include "fuzz/fuzz_text.c" /* check_text, same_graph: one property, for the fuzzer and for the texts here */
#include "text_every_op.h"

enum { FILE_ROOM = 1 << 16 };

/* A graph and what it lives in. */
typedef struct model {
    lf_arena arena;
    lf_diag diag;
    lf_graph g;
} model;

static lf_status read_text(model *m, const char *text, size_t length)
{
    *m = (model){0};
    assert_int_equal(lf_graph_init(&m->g, &m->arena, &m->diag), LF_OK);
    return lf_text_read(&m->g, "m.lf", text, length);
}

static void read_well(model *m, const char *text)
{
    if (read_text(m, text, strlen(text)) != LF_OK)
        fail_msg("%s", m->diag.text);
}

static void end_model(model *m)
{
    lf_arena_free(&m->arena);
}

/* The text reads, and holds to the property. */
static void check_well(const char *text)
{
    bool was_read = false;
    lf_diag diag;
    const char *wrong = check_text(text, strlen(text), &was_read, &diag);
    if (wrong || !was_read)
        fail_msg("%s: %s\n%s", wrong ? wrong : "refused", diag.text, text);
}

/* Reading the text and printing it gives `printed`. */
static void check_prints(const char *text, const char *printed)
{
    model m;
    char *out = NULL;
    read_well(&m, text);
    assert_int_equal(lf_text_print(&m.g, &out), LF_OK);
    assert_string_equal(out, printed);
    free(out);
    end_model(&m);
    check_well(text);
}

/* ---- models ---- */

static const char *const model_names[] = {"lse_chain",        "gelu_softmax", "mean_residual", "mlp", "group_norm",
                                          "batch_norm_train", "prenorm",      "pool"};
enum { MODELS = sizeof model_names / sizeof *model_names };

/* The file's text, NUL-terminated, into FILE_ROOM bytes. Tests run in the source folder or are told where it is. */
static void load(const char *name, char *text)
{
    const char *root = getenv("LINFUSE_SOURCE_DIR");
    char path[4096];
    snprintf(path, sizeof path, "%s/models/%s.lf", root ? root : ".", name);
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s cannot be opened", path);
    size_t length = fread(text, 1, FILE_ROOM - 1, file);
    text[length] = '\0';
    fclose(file);
}

static void models_round_trip(void **state)
{
    (void)state;
    char text[FILE_ROOM];
    for (int i = 0; i < MODELS; i++) {
        load(model_names[i], text);
        assert_true(text[0] == '#');
        check_well(text);
    }
}

static void reference_model_is_as_described(void **state)
{
    (void)state;
    char text[FILE_ROOM];
    model m;
    load("lse_chain", text);
    read_well(&m, text);
    const lf_op ops[] = {LF_OP_input,      LF_OP_param,      LF_OP_param, LF_OP_linear, LF_OP_logsumexp,
                         LF_OP_leaky_relu, LF_OP_leaky_relu, LF_OP_gelu,  LF_OP_gelu};
    assert_int_equal(m.g.count, sizeof ops / sizeof *ops);
    for (lf_node n = 0; n < m.g.count; n++)
        assert_int_equal(lf_at(&m.g, n)->op, ops[n]);
    assert_string_equal(m.g.symbol[0], "B");
    assert_string_equal(lf_shape_text(&m.g, &lf_at(&m.g, 1)->shape), "[8192, 8192]");
    assert_true(lf_attr_of(&m.g, 5, "negative_slope")->number == 0.01);
    assert_int_equal(m.g.output[0], 8);
    end_model(&m);
}

/* ---- every op ---- */

static void every_op_prints_as_written(void **state)
{
    (void)state;
    model m;
    bool seen[LF_OP_COUNT] = {false};
    check_prints(every_op, every_op);
    read_well(&m, every_op);
    for (lf_node n = 0; n < m.g.count; n++)
        seen[lf_at(&m.g, n)->op] = true;
    end_model(&m);
    for (int op = 0; op < LF_OP_COUNT; op++) { /* an op of one value that is new to the table needs no line above */
        const lf_op_info *row = lf_op_row((lf_op)op);
        char text[128];
        if (!lf_op_public((lf_op)op) || seen[op])
            continue;
        if (row->param_count != 1)
            fail_msg("%s is not in the text", row->name);
        snprintf(text, sizeof text, "input x f32[B, 8]\na = %s(x)\nreturn a\n", row->name);
        check_prints(text, text);
    }
}

/* ---- forms ---- */

#define X "input x f32[B, 8]\n"
#define PRINTS_RELU X "y = relu(x)\nreturn y\n"

static void layout_does_not_matter(void **state)
{
    (void)state;
    check_prints(PRINTS_RELU, PRINTS_RELU);
    check_prints("\n  # c\r\n\tinput x\tf32 [ B ,8 ]# c\r\n\r\ny=relu( x )\r\n\t return\ty #c", PRINTS_RELU);
    check_prints("\xef\xbb\xbfinput x f32[B, 8]\ny = relu(input=x)\nreturn y\n\n# over\n", PRINTS_RELU);
    check_prints("# Gr\xc3\xbc\xc3\x9f" "e \xe6\xa8\xa1\xe5\x9e\x8b \xf0\x9f\x90\xb1\n" PRINTS_RELU, PRINTS_RELU);
    check_prints(X "y = gelu(x, 'tanh')\nreturn y\r", X "y = gelu(x, approximate=\"tanh\")\nreturn y\n");
    check_prints(X "y = sum(x, keepdim=True, dim=None)\nz = sum(x, none, False)\nreturn y,z",
                 X "y = sum(x, keepdim=true)\nz = sum(x)\nreturn y, z\n");
    check_prints("input x f32[]\ny = neg(x)\nreturn y", "input x f32[]\ny = neg(x)\nreturn y\n");
    check_prints(X "y = relu(x)\ninput z f32[B, 8]\np = add(y, z)\nreturn p",
                 X "y = relu(x)\ninput z f32[B, 8]\np = add(y, z)\nreturn p\n");
}

static void names_are_free(void **state)
{
    (void)state;
    check_well("input input f32[input]\nparam param f32[1]\nreturn = add(input, param)\nreturn return\n");
    check_well("input relu f32[relu, 2]\nlinear.0 = relu(relu)\n_ = relu(linear.0)\n.a = tanh(_)\nreturn .a\n");
    check_well("input x f32[B]\nv1 = add(x, 1)\nv2 = add(v1, 2)\nv3 = mul(3, v2)\nv5 = neg(v3)\nreturn v5\n");
}

static void read_number_as(const char *spelling, double value)
{
    char text[512];
    model m;
    snprintf(text, sizeof text, X "y = add(x, %s)\nreturn y\n", spelling);
    read_well(&m, text);
    double got = lf_at(&m.g, lf_arg_of(&m.g, m.g.output[0], 1))->value;
    if (!same_number(got, value))
        fail_msg("%s was read as %a", spelling, got);
    end_model(&m);
    check_well(text);
}

static void numbers_are_exact(void **state)
{
    (void)state;
    read_number_as("7", 7.0);
    read_number_as("+7.", 7.0);
    read_number_as(".5", 0.5);
    read_number_as("-.5e+1", -5.0);
    read_number_as("1E3", 1000.0);
    read_number_as("-0", -0.0);
    read_number_as("0.1", 0.1);
    read_number_as("9007199254740993", 9007199254740992.0);
    read_number_as("2.2250738585072011e-308", 2.2250738585072011e-308);
    read_number_as("1.7976931348623157e308", 1.7976931348623157e308);
    read_number_as("4.9e-324", 4.9e-324);
    read_number_as("1e-400", 0.0);
    read_number_as("inf", INFINITY);
    read_number_as("+inf", INFINITY);
    read_number_as("-inf", -INFINITY);
    read_number_as("100", 100.0);
    read_number_as("1e22", 1e22);
    read_number_as("1e23", 1e23);
}

static void numbers_print_shortest(void **state)
{
    (void)state;
    const char *const shortest[] = {"0.1", "1e-05", "0.30000000000000004", "123456789", "1e+15",
                                    "1.5e+300", "-0", "5e-324", "inf"};
    for (size_t i = 0; i < sizeof shortest / sizeof *shortest; i++) {
        char text[256];
        snprintf(text, sizeof text, X "y = mul(%s, x)\nreturn y\n", shortest[i]);
        check_prints(text, text);
    }
}

static void decimal_point_is_a_point_everywhere(void **state)
{
    (void)state;
    const char *const comma[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "fr_FR.utf8", "nl_NL.UTF-8"};
    bool found = false;
    for (size_t i = 0; i < sizeof comma / sizeof *comma && !found; i++)
        found = setlocale(LC_ALL, comma[i]) != NULL && strcmp(localeconv()->decimal_point, ",") == 0;
    const char *text = X "y = leaky_relu(x, negative_slope=0.25)\nz = add(y, 1.5e-09)\nreturn z\n";
    check_prints(text, text);
    locale_t before = uselocale((locale_t)0);
    read_number_as("0.1", 0.1);
    assert_true(uselocale((locale_t)0) == before); /* the caller's locale is as it was */
    setlocale(LC_ALL, "C");
    check_prints(text, text);
    if (!found)
        print_message("no locale with a decimal comma here: ran in the C locale only\n");
}

/* What rewrites make is printed for people. */
static void internal_nodes_print(void **state)
{
    (void)state;
    model m;
    char *out = NULL;
    lf_node wide, guard, lone;
    read_well(&m, X "y = relu(x)\nreturn y\n");
    lf_shape column = {.rank = 2, .dim = {lf_at(&m.g, 0)->shape.dim[0], lf_extent_of(1)}}, scalar = {0};
    column.dim[0].coef = 2;
    assert_int_equal(lf_graph_constant(&m.g, 1.0, &column, &wide), LF_OK);
    assert_int_equal(lf_graph_op(&m.g, "safe", LF_OP_guard, (lf_node[]){1, 1}, NULL, &guard), LF_OK);
    assert_int_equal(lf_graph_constant(&m.g, 2.5, &scalar, &lone), LF_OK);
    assert_int_equal(lf_graph_return(&m.g, (lf_node[]){guard, lone}, 2), LF_OK);
    assert_int_equal(lf_text_print(&m.g, &out), LF_OK);
    assert_string_equal(out, X "y = relu(x)\nv2 = full([2*B, 1], 1)\nsafe = guard(y, y)\nv4 = full([], 2.5)\n"
                               "return safe, v4\n");
    free(out);
    end_model(&m);
}

/* ---- mistakes ---- */

typedef struct mistake {
    const char *text;
    int line, column;
    const char *says;
} mistake;

static const mistake mistakes[] = {
    /* statements */
    {"", 1, 1, "ends without a return"},
    {"# nothing\n", 1, 10, "ends without a return"},
    {X, 1, 18, "ends without a return"},
    {"inptu x f32[2]\n", 1, 7, "expected '=' after the name, found 'x'"},
    {"42\n", 1, 1, "expected input, param, return or NAME = op(...), found '42'"},
    {"= relu(x)\n", 1, 1, "found '='"},
    {"inf = relu(x)\n", 1, 1, "found 'inf'"},
    {X "return x\ny = relu(x)\n", 3, 1, "nothing may follow return"},
    {X "return x\n\n  return x\n", 4, 3, "nothing may follow return"},
    {X "return\n", 2, 7, "expected the name of a value to return, found the end of the line"},
    {X "return x,\n", 2, 10, "expected the name of a value to return"},
    {X "return x x\n", 2, 10, "expected the end of the line, found 'x'"},
    {X "return y\n", 2, 8, "'y' is not defined"},
    {X "return relu(x)\n", 2, 8, "'relu' is not defined"},
    {X "y = relu(x) z = relu(y)\n", 2, 13, "expected the end of the line, found 'z'"},
    /* types */
    {"input\n", 1, 6, "expected a name for the input, found the end of the line"},
    {"input true f32[2]\n", 1, 7, "'true' has a meaning of its own"},
    {"input x\n", 1, 8, "expected a type"},
    {"input x float32[2]\n", 1, 9, "found 'float32'"},
    {"input x f32\n", 1, 12, "expected '[' after the type, found the end of the line"},
    {"input x f32[\n", 1, 13, "expected an extent"},
    {"input x f32[2\n", 1, 14, "expected ']' or ',' after an extent"},
    {"input x f32[2,]\n", 1, 15, "expected an extent, a positive integer or a name, found ']'"},
    {"input x f32[0]\n", 1, 13, "found '0'"},
    {"input x f32[-1]\n", 1, 13, "found '-1'"},
    {"input x f32[2.0]\n", 1, 13, "found '2.0'"},
    {"input x f32[4, 70368744177665]\n", 1, 16, "the extent '70368744177665' is larger than 2^46"},
    {"input x f32[99999999999999999999999999]\n", 1, 13, "larger than 2^46"},
    {"input x f32[70368744177664, 2]\n", 1, 9, "too many elements"},
    {"input x f32[1, 1, 1, 1, 1, 1, 1, 1, 1]\n", 1, 37, "more than 8 extents"},
    {"input x f32[A,B,C,D,E,F,G,H]\ninput y f32[B, I]\n", 2, 16, "at most 8"},
    {"input x f32[A,B,C,D,E,F,G,H]\ninput y f32[I'z]\n", 2, 14, "no closing '"}, /* one place, not the other's words */
    {X "param w f32[8, B]\n", 2, 16, "a parameter's extents are numbers; 'B' is learnt from an input"},
    {X "param w f32[K]\n", 2, 13, "'K' is learnt from an input"},
    {X "input x f32[2]\n", 2, 7, "'x' is already bound"},
    {X "input y f32[2] = 3\n", 2, 16, "expected the end of the line, found '='"},
    /* calls */
    {X "y\n", 2, 2, "expected '=' after the name, found the end of the line"},
    {X "y =\n", 2, 4, "expected an op after '=', found the end of the line"},
    {X "y = 3\n", 2, 5, "expected an op after '=', found '3'"},
    {X "y = x\n", 2, 6, "expected '(' after the op, found the end of the line"},
    {X "y = x + x\n", 2, 7, "expected '(' after the op, found '+'"},
    {X "x = relu(x)\n", 2, 1, "'x' is already bound"},
    {X "None = relu(x)\n", 2, 1, "'None' has a meaning of its own"},
    {X "y = reul(x)\n", 2, 5, "did you mean relu?"},
    {X "y = cat(x)\n", 2, 5, "there is no op cat; `linfuse ops`"}, /* not gt, which shares one letter */
    {X "y = input(x)\n", 2, 5, "there is no op input"},
    {X "y = guard(x, x)\n", 2, 5, "there is no op guard"},
    {X "y = relu(x\n", 2, 11, "expected ')' or ',' after an argument, found the end of the line"},
    {X "y = relu(x,)\n", 2, 12, "expected an argument, found ')'"},
    {X "y = relu(,x)\n", 2, 10, "expected an argument, found ','"},
    {X "y = relu(x))\n", 2, 12, "expected the end of the line, found ')'"},
    {X "y = relu(gelu(x))\n", 2, 10, "calls do not nest: give 'gelu' a line"},
    {X "y = sum(x, (1, 2))\n", 2, 12, "found '(' (lists: [1, 2])"},
    {X "y = relu(z)\n", 2, 10, "'z' is not defined\n"},
    {X "abc = relu(x)\ny = add(abd, x)\n", 3, 9, "'abd' is not defined; did you mean 'abc'?"},
    {X "abc = relu(x)\nabcd = relu(x)\ny = neg(abce)\n", 4, 9, "did you mean 'abc'?"},
    {X "hidden = relu(x)\ny = neg(hiden)\n", 3, 9, "did you mean 'hidden'?"},
    {X "hidden = relu(x)\ny = neg(hdi)\n", 3, 9, "'hdi' is not defined\n"},
    {X "y = add(x, 1)\nz = neg(v1)\n", 3, 9, "'v1' is not defined"},
    /* arguments that do not fit: bind's words, our place */
    {X "y = relu()\n", 2, 5, "relu: input is missing"},
    {X "y = relu(x, x)\n", 2, 13, "relu: 2 arguments"},
    {X "y = relu(3)\n", 2, 10, "relu: input wants a value, not the number 3"},
    {X "y = gelu(x, approximat=\"tanh\")\n", 2, 13, "there is no parameter approximat"},
    {X "y = gelu(x,  approximate=\"erf\")\n", 2, 14, "it wants \"none\" or \"tanh\""},
    {X "y = gelu(x, approximate=true)\n", 2, 13, "approximate wants a string"},
    {X "y = sum(x, dim=1, dim=1)\n", 2, 19, "dim is given twice"},
    {X "y = sum(input=x, 1)\n", 2, 18, "without a key"},
    {X "y = sum(x, dim=1.5)\n", 2, 12, "1.5"},
    {X "y = sum(x, dim=[0, inf])\n", 2, 12, "inf"},
    {X "y = sum(x, keepdim=1)\n", 2, 12, "keepdim wants true or false, not the number 1"},
    {X "y = add(1, 2)\n", 2, 12, "both sides are numbers"},
    {X "y = softmax(x, dim=2)\n", 2, 5, "dim 2 is out of range"},
    {X "param w f32[4, 9]\ny = linear(x, w)\n", 3, 5, "[4, 9]"},
    {X "y = leaky_relu(x, inf)\n", 2, 19, "finite"},
    {X "y = dropout(x)\n", 2, 5, "training=false"},
    /* tokens */
    {X "y = add(x, nan)\n", 2, 12, "nan is not accepted as a number"},
    {X "y = add(x, -nan)\n", 2, 12, "nan is not accepted as a number"},
    {X "y = sum(x, [nan])\n", 2, 13, "nan is not accepted as a number"},
    {X "y = add(x, -x)\n", 2, 12, "expected a number after '-'"},
    {X "y = add(x, - 1)\n", 2, 12, "expected a number after '-'"},
    {X "y = add(x, 1e999)\n", 2, 12, "'1e999' is too large for a number"},
    {X "y = add(x, 0x10)\n", 2, 12, "'0x10' is not a number"},
    {X "y = add(x, 1.2.3)\n", 2, 12, "'1.2.3' is not a number"},
    {X "y = add(x, 1e)\n", 2, 12, "'1e' is not a number"},
    {X "y = add(x, 1-2)\n", 2, 13, "expected ')' or ',' after an argument, found '-2'"},
    {X "y = sum(x, dim=[1,])\n", 2, 19, "expected a number in the list, found ']'"},
    {X "y = sum(x, dim=[1\n", 2, 18, "expected ']' or ',' in the list"},
    {X "y = sum(x, dim=[x])\n", 2, 17, "expected a number in the list, found 'x'"},
    {X "y = sum(x, dim=[true])\n", 2, 17, "found 'true'"},
    {X "y = sum(x, [1,2,3,4,5,6,7,8,9])\n", 2, 29, "more than 8 numbers in a list"},
    {X "y = gelu(x, approximate=\"tanh)\n", 2, 25, "no closing \""},
    {X "y = gelu(x, 'tanh\")\n", 2, 13, "no closing '"},
    {X "y = relu(x);\n", 2, 12, "unexpected character ';'"},
    {X "y = relu(x) @\n", 2, 13, "unexpected character '@'"},
    {X "y = relu(\xc3\xa9)\n", 2, 10, "unexpected character '\xc3\xa9'"},
    {X "y = gelu(x, '\xc3\xa9\xe6\xa8\xa1', ;)\n", 2, 19, "unexpected character ';'"},
    {X "# \xc3\xa9\xff\n", 2, 4, "byte 0xff is not a UTF-8 character"},
    {X "# \xc0\xaf\n", 2, 3, "byte 0xc0 is not"},
    {X "# \xed\xa0\x80\n", 2, 3, "byte 0xed is not"},
    {X "# \xc2\x9b\n", 2, 3, "byte 0xc2 is not"},
    {X "# \xe6\xa8", 2, 3, "byte 0xe6 is not"},
    {X "y = relu(x)\r# lone\n", 2, 12, "control character 0x0d"},
    {X "y = relu(x) # \x1b[2J\n", 2, 15, "control character 0x1b"},
    {X "\ty\t= relu(\x7f)\n", 2, 11, "control character 0x7f"},
    {"\xef\xbb\xbf@\n", 1, 1, "unexpected character '@'"},
    {X "\xef\xbb\xbf\n", 2, 1, "unexpected character"},
};

/* Refused at this place with these words. */
static void check_mistake(const char *text, size_t length, int line, int column, const char *says)
{
    model m;
    char place[64];
    bool was_read = true;
    snprintf(place, sizeof place, "m.lf:%d:%d: ", line, column);
    if (read_text(&m, text, length) != LF_ERR_MODEL)
        fail_msg("not refused (%s): %s", says, text);
    if (strncmp(m.diag.text, place, strlen(place)) != 0 || !strstr(m.diag.text, says))
        fail_msg("wanted %s%s, got %s", place, says, m.diag.text);
    end_model(&m);
    const char *wrong = check_text(text, length, &was_read, &m.diag);
    if (wrong || was_read)
        fail_msg("%s: %s", wrong ? wrong : "was read", m.diag.text);
}

static void mistakes_have_a_place(void **state)
{
    (void)state;
    for (const mistake *m = mistakes; m < mistakes + sizeof mistakes / sizeof *mistakes; m++)
        check_mistake(m->text, strlen(m->text), m->line, m->column, m->says);
    check_mistake("a\0b", 3, 1, 2, "control character 0x00");
    check_mistake(NULL, 0, 1, 1, "ends without a return");
}

static void check_message(const char *text, const char *message)
{
    model m;
    assert_int_equal(read_text(&m, text, strlen(text)), LF_ERR_MODEL);
    assert_string_equal(m.diag.text, message);
    end_model(&m);
}

static void caret_stands_under_the_mistake(void **state)
{
    (void)state;
    check_message(X "\ty\t= relu(z)\n", "m.lf:2:11: 'z' is not defined\n\ty\t= relu(z)\n\t \t       ^");
    check_message("@\xff", "m.lf:1:2: byte 0xff is not a UTF-8 character\n@?\n ^");
    check_message(X "y = gelu(x, '\xc3\xa9') $ # \xe6\xa8\xa1\n",
                  "m.lf:2:18: unexpected character '$'\ny = gelu(x, '\xc3\xa9') $ # \xe6\xa8\xa1\n                 ^");
    char text[1024], expected[1024];
    /* A long line: 100 characters around the place, dots where it goes on. */
    snprintf(text, sizeof text, "%0400d@%0400d", 0, 0);
    memset(text, ' ', 400);
    snprintf(expected, sizeof expected, "m.lf:1:401: unexpected character '@'\n...%50s@%049d...\n%53s^", "", 0, "");
    check_message(text, expected);
    snprintf(text, sizeof text, "%300s@", "");
    snprintf(expected, sizeof expected, "m.lf:1:301: unexpected character '@'\n...%99s@\n%102s^", "", "");
    check_message(text, expected);
}

/* ---- limits ---- */

static char *repeat(const char *head, const char *part, size_t times, const char *tail)
{
    size_t length = strlen(part);
    char *text = malloc(strlen(head) + length * times + strlen(tail) + 1);
    assert_non_null(text);
    char *at = text + sprintf(text, "%s", head);
    for (size_t i = 0; i < times; i++, at += length)
        memcpy(at, part, length);
    strcpy(at, tail);
    return text;
}

static void check_limit(const char *head, const char *part, size_t times, const char *tail, int line, int column,
                        const char *says)
{
    char *text = repeat(head, part, times, tail);
    if (says)
        check_mistake(text, strlen(text), line, column, says);
    else
        check_well(text);
    free(text);
}

static void limits_have_messages(void **state)
{
    (void)state;
    check_limit("#", "c", 65535, "\n" PRINTS_RELU, 0, 0, NULL);
    check_limit("#", "c", 65536, "\n" PRINTS_RELU, 1, 1, "a line of 65537 bytes; at most 65536 are allowed");
    check_limit(X, "n", 255, " = relu(x)\nreturn x\n", 0, 0, NULL);
    check_limit(X, "n", 256, " = relu(x)\nreturn x\n", 2, 1, "is 256 bytes long; at most 255 are allowed");
    check_limit(X "y = add(x, ", "1", 254, ".)\nreturn x\n", 0, 0, NULL);
    check_limit(X "y = add(x, ", "1", 256, ")\nreturn x\n", 2, 12, "is 256 bytes long");
    check_limit(X "y = gelu(x, '", "s", 254, "')\nreturn x\n", 2, 13, "is 256 bytes long");
    check_limit(X "y = relu(x", ", x", 63, ")\n", 2, 13, "relu: 64 arguments");
    check_limit(X "y = relu(x", ", x", 64, ")\n", 2, 202, "more than 64 arguments in one call");
    check_limit(X "return x", ", x", 1023, "\n", 0, 0, NULL);
    check_limit(X "return x", ", x", 1024, "\n", 2, 3080, "more than 1024 values returned");
    check_limit(PRINTS_RELU, "\n", (16 << 20) - strlen(PRINTS_RELU), "", 0, 0, NULL);
    check_limit(PRINTS_RELU, "\n", (16 << 20) - strlen(PRINTS_RELU) + 1, "", 1, 1, "a text of 16777217 bytes");
}

static void too_many_values_have_a_message(void **state)
{
    (void)state;
    char says[64], *text = malloc((size_t)LF_MAX_NODES * 32), *at = text;
    assert_non_null(text);
    at += sprintf(at, X "n1 = relu(x)\n");
    for (int i = 2; i <= LF_MAX_NODES; i++)
        at += sprintf(at, "n%d = relu(n%d)\n", i, i - 1);
    snprintf(says, sizeof says, "more than %d values in one model", (int)LF_MAX_NODES);
    check_mistake(text, strlen(text), LF_MAX_NODES + 1, 10, says);
    free(text);
}

/* A long file name is cut at its start, and the place stays. */
static void long_file_names_leave_room(void **state)
{
    (void)state;
    model m;
    char *name = repeat("", "\xc3\xa9/", 2000, "end.lf");
    read_well(&m, PRINTS_RELU);
    assert_int_equal(lf_text_read(&m.g, name, "@", 1), LF_ERR_MODEL);
    assert_non_null(strstr(m.diag.text, "/end.lf:1:1: unexpected character '@'\n@\n^"));
    assert_true(strlen(m.diag.text) < 600);
    free(name);
    end_model(&m);
}

/* ---- mutations ---- */

static uint64_t next_random(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

/* Changes, drops, doubles or swaps bytes, pieces and lines of the text; room: FILE_ROOM. */
static size_t mutate(char *text, size_t length, uint64_t *seed)
{
    static const char *const pieces[] = {
        ",", "(", ")", "[", "]", "=", "\n", "\r\n", "#", "\"", "'", " ", "\t", "-", "inf", "nan", "None", "true", "x",
        "0", "1e9", "input ", "param ", "return ", "relu", "dim=", "\xff", "a = add(x, 1)\n", "99999999999999999"};
    size_t at = next_random(seed) % (length + 1), span = next_random(seed) % 9;
    const char *piece = pieces[next_random(seed) % (sizeof pieces / sizeof *pieces)];
    size_t added = strlen(piece);
    switch (next_random(seed) % 4) {
    case 0: /* a byte changes */
        if (at < length)
            text[at] = (char)(next_random(seed) % 256);
        return length;
    case 1: /* bytes go */
        span = span > length - at ? length - at : span;
        memmove(text + at, text + at + span, length - at - span);
        return length - span;
    case 2: /* bytes of elsewhere come in their place */
        span = span > length - at ? length - at : span;
        memmove(text + at, text + next_random(seed) % (length - span + 1), span);
        return length;
    default: /* a piece comes in */
        if (length + added >= FILE_ROOM)
            return length;
        memmove(text + at + added, text + at, length - at);
        memcpy(text + at, piece, added);
        return length + added;
    }
}

static void mutated_texts_are_refused_or_read(void **state)
{
    (void)state;
    static char original[FILE_ROOM], text[FILE_ROOM];
    uint64_t seed = 20240607;
    int read = 0, refused = 0;
    for (int i = 0; i < 20000; i++) {
        if (i % MODELS == 0)
            strcpy(original, every_op);
        else
            load(model_names[i % MODELS], original);
        size_t length = strlen(original);
        memcpy(text, original, length);
        for (uint64_t k = next_random(&seed) % 3 + 1; k > 0; k--)
            length = mutate(text, length, &seed);
        bool was_read = false;
        lf_diag diag;
        const char *wrong = check_text(text, length, &was_read, &diag);
        if (wrong)
            fail_msg("mutation %d: %s: %s\n%.*s", i, wrong, diag.text, (int)length, text);
        *(was_read ? &read : &refused) += 1;
    }
    /* Both ways are taken often, or the mutations are worth nothing. */
    assert_true(read > 1000 && refused > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_round_trip),
        cmocka_unit_test(reference_model_is_as_described),
        cmocka_unit_test(every_op_prints_as_written),
        cmocka_unit_test(layout_does_not_matter),
        cmocka_unit_test(names_are_free),
        cmocka_unit_test(numbers_are_exact),
        cmocka_unit_test(numbers_print_shortest),
        cmocka_unit_test(decimal_point_is_a_point_everywhere),
        cmocka_unit_test(internal_nodes_print),
        cmocka_unit_test(mistakes_have_a_place),
        cmocka_unit_test(caret_stands_under_the_mistake),
        cmocka_unit_test(limits_have_messages),
        cmocka_unit_test(too_many_values_have_a_message),
        cmocka_unit_test(long_file_names_leave_room),
        cmocka_unit_test(mutated_texts_are_refused_or_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
