/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands.h"
#include "cli/report.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { SYSTEM, CPU, ISA, MEASURED, DRIVER, NVRTC, GPU, CACHE, FACTS };

/* The facts of lf_machine_fact, and what people call them. */
static const struct label {
    const char *fact, *title;
} labels[FACTS] = {
    [SYSTEM] = {"system", "system"},      [CPU] = {"cpu", "CPU"},       [ISA] = {"isa", "kernels"},
    [MEASURED] = {"measured", "measured"}, [DRIVER] = {"driver", "CUDA driver"}, [NVRTC] = {"nvrtc", "NVRTC"},
    [GPU] = {"gpu", "GPU"},               [CACHE] = {"cache", "cache"},
};

typedef struct findings {
    char *fact[FACTS]; /* NULL where the machine lacks it; then `lacks` says why. Both owned. */
    char *lacks[FACTS];
    int threads;
    uint64_t files, bytes; /* in the cache */
} findings;

/* The regular files of a folder; none where it does not exist. */
static void measure_folder(const char *path, findings *f)
{
    DIR *folder = opendir(path);
    struct dirent *entry;
    struct stat info;
    while (folder && (entry = readdir(folder)))
        if (fstatat(dirfd(folder), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode)) {
            f->files++;
            f->bytes += (uint64_t)info.st_size;
        }
    if (folder)
        closedir(folder);
}

static int find(findings *f)
{
    lf_context *context;
    lf_status status = lf_context_new(&context);
    if (status != LF_OK)
        return cli_fail_status(status, NULL);
    f->threads = lf_context_threads(context);
    for (int i = 0; i < FACTS && status != LF_ERR_NOMEM; i++) {
        status = lf_machine_fact(context, labels[i].fact, &f->fact[i]);
        if (status != LF_OK && !(f->lacks[i] = strdup(lf_context_message(context))))
            status = LF_ERR_NOMEM;
    }
    lf_context_free(context);
    if (status == LF_ERR_NOMEM)
        return cli_fail_status(status, NULL);
    if (f->fact[CACHE])
        measure_folder(f->fact[CACHE], f);
    return CLI_OK;
}

static json_t *cuda_json(const findings *f)
{
    json_t *cuda = json_object();
    for (int i = DRIVER; i <= GPU; i++) {
        char key[32];
        json_object_set_new(cuda, labels[i].fact, f->fact[i] ? json_string(f->fact[i]) : json_null());
        snprintf(key, sizeof key, "%s_error", labels[i].fact);
        if (f->lacks[i])
            json_object_set_new(cuda, key, json_string(f->lacks[i]));
    }
    return cuda;
}

static int print_json(const findings *f)
{
    return cli_json_print(
        json_pack("{s:s, s:s?, s:s?, s:i, s:s?, s:s?, s:o, s:{s:s?, s:I, s:I}}", "version", lf_version(), "system",
                  f->fact[SYSTEM], "cpu", f->fact[CPU], "threads", f->threads, "isa", f->fact[ISA], "measured",
                  f->fact[MEASURED], "cuda",
                  cuda_json(f), "cache", "folder", f->fact[CACHE], "files", (json_int_t)f->files, "bytes",
                  (json_int_t)f->bytes));
}

static int print_text(const findings *f)
{
    cli_table table = {.columns = 2, .align = "ll"};
    cli_text text;
    char line[64];
    cli_table_add(&table, "linfuse");
    cli_table_add(&table, lf_version());
    for (int i = 0; i < FACTS; i++) {
        cli_table_add(&table, labels[i].title);
        cli_table_add(&table, f->fact[i] ? f->fact[i] : f->lacks[i]);
        if (i == CPU) {
            snprintf(line, sizeof line, "%d", f->threads);
            cli_table_add(&table, "threads");
            cli_table_add(&table, line);
        }
    }
    snprintf(line, sizeof line, "%llu file%s, %s", (unsigned long long)f->files, f->files == 1 ? "" : "s",
             cli_bytes(&text, (double)f->bytes));
    cli_table_add(&table, "cached");
    cli_table_add(&table, line);
    return cli_table_print(&table);
}

int cli_doctor(const cli_options *o)
{
    findings f = {.threads = 0};
    int code = find(&f);
    if (code == CLI_OK)
        code = o->json ? print_json(&f) : print_text(&f);
    for (int i = 0; i < FACTS; i++) {
        lf_string_free(f.fact[i]);
        free(f.lacks[i]);
    }
    return code;
}
