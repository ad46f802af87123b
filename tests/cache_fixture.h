/* SPDX-License-Identifier: Apache-2.0 */
/* A cache folder of a test's own, and what is in it. */
#ifndef LF_TESTS_CACHE_FIXTURE_H
#define LF_TESTS_CACHE_FIXTURE_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char cache[64];

static inline int cache_begin(void)
{
    snprintf(cache, sizeof cache, "/tmp/linfuse_test_cache_XXXXXX");
    return mkdtemp(cache) ? setenv("XDG_CACHE_HOME", cache, 1) : -1;
}

static inline int cache_end(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", cache);
    return system(command);
}

/* How many entries have names that begin so; the path of one of them. */
static inline int cache_entries(const char *prefix, char *path, size_t size)
{
    char folder[128];
    int count = 0;
    snprintf(folder, sizeof folder, "%s/linfuse", cache);
    DIR *dir = opendir(folder);
    for (struct dirent *d; dir && (d = readdir(dir));)
        if (strncmp(d->d_name, prefix, strlen(prefix)) == 0) {
            snprintf(path, size, "%s/%.100s", folder, d->d_name);
            count++;
        }
    if (dir)
        closedir(dir);
    return count;
}

#endif
