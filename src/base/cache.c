/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool lf_cache_folder(lf_str *out)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (xdg && xdg[0] == '/')
        lf_str_addf(out, "%s/linfuse", xdg);
    else if (home && home[0] == '/')
        lf_str_addf(out, "%s/.cache/linfuse", home);
    else
        return false;
    return true;
}

/* The folder and the one that it stands in, where they are missing. */
static void make(char *folder)
{
    char *slash = strrchr(folder, '/');
    *slash = '\0';
    mkdir(folder, 0700);
    *slash = '/';
    mkdir(folder, 0755);
}

/* NULL when there is no such folder, or no memory for its name. Caller frees. */
static char *path_of(const char *name, bool makes_folder)
{
    lf_str path = {0};
    if (!lf_cache_folder(&path))
        return NULL;
    if (makes_folder && path.text)
        make(path.text);
    lf_str_addf(&path, "/%s", name);
    return lf_str_take(&path);
}

static bool read_all(int file, char *to, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t got = read(file, to + done, length - done);
        if (got == 0 || (got < 0 && errno != EINTR))
            return false;
        done += got > 0 ? (size_t)got : 0;
    }
    return true;
}

bool lf_cache_read(const char *name, size_t most, char **out, size_t *length)
{
    char *path = path_of(name, false);
    /* nonblocking: it may be anything, a pipe even */
    int file = path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    struct stat info;
    bool good = false;
    *out = NULL;
    free(path);
    if (file < 0)
        return false;
    if (fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_size >= 0 && (size_t)info.st_size <= most) {
        *length = (size_t)info.st_size;
        *out = malloc(*length + 1);
        good = *out && read_all(file, *out, *length);
    }
    close(file);
    if (!good) {
        free(*out);
        *out = NULL;
    }
    return good;
}

static bool write_all(int file, const char *data, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t put = write(file, data + done, length - done);
        if (put < 0 && errno != EINTR)
            return false;
        done += put > 0 ? (size_t)put : 0;
    }
    return true;
}

void lf_cache_write(const char *name, const char *data, size_t length)
{
    char *path = path_of(name, true);
    lf_str aside = {0};
    if (path)
        lf_str_addf(&aside, "%s.XXXXXX", path);
    int file = aside.text && !aside.failed ? mkstemp(aside.text) : -1;
    if (file >= 0) {
        bool written = write_all(file, data, length);
        written = close(file) == 0 && written;
        if (!written || rename(aside.text, path) != 0)
            unlink(aside.text);
    }
    lf_str_free(&aside);
    free(path);
}
