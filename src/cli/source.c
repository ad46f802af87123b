/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/source.h"

#include "cli/report.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char ending[] = ".lf";

static bool is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* The length of a name without .lf; 0 where it does not end so, or is nothing else. */
static size_t stem(const char *name)
{
    size_t length = strlen(name), ends = sizeof ending - 1;
    return length > ends && strcmp(name + length - ends, ending) == 0 ? length - ends : 0;
}

/* The first `length` bytes of a path, then `rest`; NULL without memory. */
static char *joined(const char *path, size_t length, const char *rest)
{
    size_t more = strlen(rest);
    char *all = malloc(length + more + 1);
    if (all) {
        memcpy(all, path, length);
        memcpy(all + length, rest, more + 1);
    }
    return all;
}

/* The only model in a folder; *name is the caller's. */
static int find_in_folder(const char *folder, char **name)
{
    DIR *entries = opendir(folder);
    struct dirent *entry;
    size_t count = 0;
    bool failed = false;
    while (entries && (entry = readdir(entries)))
        if (stem(entry->d_name) && count++ == 0)
            failed = !(*name = strdup(entry->d_name));
    if (entries)
        closedir(entries);
    if (failed)
        return cli_fail("no memory for the name of the model");
    if (count == 0)
        return cli_fail("the folder %s has no .lf file", folder);
    return count == 1 ? CLI_OK : cli_fail("the folder %s has %zu models: name one of them", folder, count);
}

static int model_in_folder(const char *folder, char **out)
{
    char *name = NULL;
    int code = find_in_folder(folder, &name);
    size_t length = strlen(folder);
    while (length > 0 && folder[length - 1] == '/')
        length--;
    char *slashed = code == CLI_OK ? joined(folder, length, "/") : NULL;
    *out = slashed ? joined(slashed, length + 1, name) : NULL;
    if (code == CLI_OK && !*out)
        code = cli_fail("no memory for the name of the model");
    free(slashed);
    free(name);
    return code;
}

/* The weights beside a model; *out stays NULL where there are none. */
static int find_beside(const char *model, char **out)
{
    size_t length = stem(model);
    if (!length)
        return CLI_OK;
    if (!(*out = joined(model, length, ".safetensors")))
        return cli_fail("no memory for the name of the weights");
    struct stat info; /* of a link itself: one that leads nowhere is to be told of, not passed over */
    if (lstat(*out, &info) != 0) {
        free(*out);
        *out = NULL;
    }
    return CLI_OK;
}

int cli_source_find(const cli_options *o, cli_source *out)
{
    *out = (cli_source){0};
    if (is_folder(o->model)) {
        int code = model_in_folder(o->model, &out->model);
        if (code != CLI_OK)
            return code;
    } else if (!(out->model = strdup(o->model))) {
        return cli_fail("no memory for the name of the model");
    }
    if (!o->weights)
        return find_beside(out->model, &out->weights);
    out->weights = strdup(o->weights);
    return out->weights ? CLI_OK : cli_fail("no memory for the name of the weights");
}

void cli_source_free(cli_source *source)
{
    free(source->model);
    free(source->weights);
    *source = (cli_source){0};
}

bool cli_source_found_weights(const cli_options *options, const cli_source *source)
{
    return source->weights && !options->weights;
}
