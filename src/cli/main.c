/* SPDX-License-Identifier: Apache-2.0 */
/* linfuse COMMAND [MODEL] [OPTION...]: everything the library does, from a shell. */
#include "cli/commands.h"
#include "cli/report.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#define TUNE                                                                                                           \
    "  --tune                   on cuda: measure which kernels are fastest at these extents, and remember it on disk"

static const struct command {
    const char *name;
    unsigned takes;
    int (*run)(const cli_options *o);
    const char *usage, *does;
    const char *more; /* for the command's own --help */
} commands[] = {
    {"explain", CLI_TAKES_MODEL | CLI_TAKES_PAGE, cli_explain, "MODEL [--device DEVICE] [--html FILE]",
     "what the model costs as written, what was rewritten, fused and refused, what it costs now",
     "  --html FILE              also write the report as a page that needs no network\n"
     "Needs no GPU, but for --device cuda. A named extent without a value counts as 1024."},
    {"check", CLI_TAKES_MODEL | CLI_TAKES_TUNE, cli_check, "MODEL",
     "runs it fused and op by op, compares both with double precision",
     "Takes all rows where that is quick, else a random sample of them, and says which. A named extent without a\n"
     "value is 1024. Exit status 1: the fused result is less exact than it should be.\n" TUNE},
    {"run", CLI_TAKES_MODEL | CLI_TAKES_DATA | CLI_TAKES_TUNE, cli_run, "MODEL --input x.npy [--output y.npy]",
     "real data in, real data out",
     "  --input [NAME=]FILE.npy  an input's data (f32, f16, bf16 or i64); once for each input\n"
     "  --output [NAME=]FILE.npy where an output goes; without it, a summary of the output is printed\n"
     "NAME= may be left out where the model has one input, or one output.\n" TUNE},
    {"bench", CLI_TAKES_MODEL | CLI_TAKES_RUNS | CLI_TAKES_TUNE, cli_bench, "MODEL [--runs N]",
     "times fused and op-by-op execution, taking turns, in this process",
     "  --runs N                 how often each is run (default: about two seconds' worth, 3 to 100)\n"
     "A named extent without a value is 1024.\n" TUNE},
    {"emit", CLI_TAKES_MODEL | CLI_TAKES_ARCH, cli_emit, "MODEL --arch sm_90a|sm_80", "prints the generated CUDA C",
     "It is the kernel for many rows, in any --precision; for few rows the tiles of products are others."},
    {"ops", 0, cli_ops, "", "the ops a model may use", NULL},
    {"doctor", 0, cli_doctor, "", "what linfuse finds on this machine, for reports of errors", NULL},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static bool is_costed(const char *device) { return !lf_device_runs(device); }

/* An option's words, those that `which` takes; NULL: all. */
static void print_words(const char *before, const char *option, bool (*which)(const char *), const char *between,
                        const char *after)
{
    bool any = false;
    fputs(before, stdout);
    for (size_t i = 0; lf_option_word(option, i); i++)
        if (!which || which(lf_option_word(option, i))) {
            printf("%s%s", any ? between : "", lf_option_word(option, i));
            any = true;
        }
    fputs(after, stdout);
}

static void print_common_options(void)
{
    puts("Options of all commands on a model:\n"
         "  --dim B=1024             the value of a named extent (also: --batch 1024, where there is one)");
    print_words("  --device ", "device", lf_device_runs, "|", "        where it runs; ");
    print_words("explain also takes ", "device", is_costed, ", ", "\n");
    print_words("  --precision ", "precision", NULL, "|", "\n");
    puts("  --threads N              how many threads (default: one per core)\n"
         "  --seed S                 what parameters and inputs are drawn from (default: 0)\n"
         "  --weights FILE           parameters from a safetensors file (default: that beside the model, of its name)\n"
         "  --rules +NAME,-NAME      switch rewrites on and off (all and none are names too)\n"
         "  --assume-finite          leave out the guards against NaN and infinity\n"
         "  --json                   one JSON object on stdout, nothing else there\n"
         "\n"
         "MODEL is an .lf file, a folder with one, or - for standard input. Exit status: 0 fine, 1 a check did not\n"
         "hold, 2 bad usage, model or data, 3 the device is not there.");
}

static void print_help(void)
{
    cli_table table = {.columns = 2, .align = "ll"};
    char line[128];
    puts("linfuse: a fusing compiler for models made of linear layers and what follows them\n\nUsage:");
    for (int i = 0; i < COMMANDS; i++) {
        snprintf(line, sizeof line, "linfuse %s %s", commands[i].name, commands[i].usage);
        cli_table_add(&table, line);
        cli_table_add(&table, commands[i].does);
    }
    cli_table_print(&table);
    puts("  linfuse COMMAND --help, linfuse --version\n");
    print_common_options();
}

static void print_archs(void)
{
    fputs("\n  --arch ARCH              one of ", stdout);
    for (size_t i = 0; lf_arch_name(i); i++)
        printf("%s%s", i ? ", " : "", lf_arch_name(i));
    putchar('\n');
}

static void print_command_help(const struct command *c)
{
    printf("linfuse %s %s\n\n%s.\n", c->name, c->usage, c->does);
    if (c->takes & CLI_TAKES_ARCH)
        print_archs();
    if (c->more)
        printf("%s%s\n", c->takes & CLI_TAKES_ARCH ? "" : "\n", c->more);
    putchar('\n');
    if (c->takes & CLI_TAKES_MODEL)
        print_common_options();
    else
        puts("  --json                   one JSON object on stdout, nothing else there");
}

static int run_command(const struct command *c, int argc, char **argv)
{
    cli_options options;
    int code = cli_options_read(c->name, c->takes, argc, argv, &options);
    if (code == CLI_OK && options.help)
        print_command_help(c);
    else if (code == CLI_OK)
        code = c->run(&options);
    cli_options_free(&options);
    return code;
}

static int dispatch(int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : NULL;
    if (!word)
        return cli_fail("no command given; see linfuse --help");
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
        print_help();
        return CLI_OK;
    }
    if (strcmp(word, "--version") == 0) {
        printf("linfuse %s\n", lf_version());
        return CLI_OK;
    }
    const char *known[COMMANDS + 2] = {"--help", "--version"};
    for (int i = 0; i < COMMANDS; i++) {
        if (strcmp(word, commands[i].name) == 0)
            return run_command(&commands[i], argc - 2, argv + 2);
        known[i + 2] = commands[i].name;
    }
    return cli_fail_unknown(word[0] == '-' ? "option" : "command", word,
                            lf_word_near(word, known, sizeof known / sizeof *known));
}

int main(int argc, char **argv)
{
    /* That a reader went away is told by write, and cli_finish knows what it means. The buffer is larger than what any
     * command prints, as a rule, so that the one flush at the end meets a full disk and knows why. */
    static char buffer[1 << 20];
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    return cli_finish(dispatch(argc, argv));
}
