/* SPDX-License-Identifier: Apache-2.0 */
/* The new file is made beside the old one, since only within a file system can it take its place at once. Best without
 * a name (O_TMPFILE): it gets one when it is whole, and if the process is killed before, nothing is left of it. Where
 * that is not to be had, under a name of its own from the start. */
#define _GNU_SOURCE /* for O_TMPFILE */
#include "io/replace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NOT_THIS_WAY = -1 }; /* beside what errno has: try the other one */

/* 0, or what went wrong. */
static int write_all(int fd, const void *bytes, size_t size)
{
    enum { AT_ONCE = 1 << 30 }; /* Linux writes no more than about 2 GiB a call */
    const char *p = bytes;
    while (size > 0) {
        ssize_t n = write(fd, p, size < AT_ONCE ? size : AT_ONCE);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : EIO;
        p += n;
        size -= (size_t)n;
    }
    return 0;
}

int lf_content_write(const lf_content *content, int fd)
{
    int error = write_all(fd, content->head, content->head_size);
    return error ? error : write_all(fd, content->body, content->body_size);
}

/* ---- names ---- */

/* A name beside path, and its folder, in one piece of memory. */
typedef struct beside {
    const char *path;
    char *name;
    size_t capacity;
    int folder; /* length, with the slash */
} beside;

/* Whether there was memory for it; to be freed. */
static int beside_init(beside *b, const char *path)
{
    const char *slash = strrchr(path, '/');
    b->path = path;
    b->folder = slash ? (int)(slash - path) + 1 : 0;
    b->capacity = (size_t)b->folder + 64;
    b->name = malloc(b->capacity);
    return b->name != NULL;
}

/* The next name; one in use was left behind by a process of the same number that was killed. */
static const char *next_name(beside *b)
{
    static atomic_uint counter;
    snprintf(b->name, b->capacity, "%.*s.linfuse-%ld-%u.tmp", b->folder, b->path, (long)getpid(),
             atomic_fetch_add(&counter, 1));
    return b->name;
}

/* ---- the two ways ---- */

static int fill(const lf_content *content, int fd, const struct stat *old)
{
    if (old && fchmod(fd, old->st_mode & 0777) != 0)
        return errno;
    return lf_content_write(content, fd);
}

/* The file at b->name takes the place of what is at b->path, or goes. */
static int move_there(const beside *b)
{
    if (rename(b->name, b->path) == 0)
        return 0;
    int error = errno;
    unlink(b->name);
    return error;
}

static int replace_named(const lf_content *content, beside *b, const struct stat *old)
{
    int fd;
    do
        fd = open(next_name(b), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    while (fd < 0 && errno == EEXIST);
    if (fd < 0)
        return errno;
    int error = fill(content, fd, old);
    if (close(fd) != 0 && !error) /* some file systems say only then that the disk is full */
        error = errno;
    if (!error)
        return move_there(b);
    unlink(b->name);
    return error;
}

#ifdef O_TMPFILE
/* Names the whole file: at once where nothing is in the way, or beside it, to be moved there. */
static int give_name(int fd, beside *b)
{
    char self[32];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    if (linkat(AT_FDCWD, self, AT_FDCWD, b->path, AT_SYMLINK_FOLLOW) == 0)
        return 0;
    int linked;
    do
        linked = linkat(AT_FDCWD, self, AT_FDCWD, next_name(b), AT_SYMLINK_FOLLOW);
    while (linked != 0 && errno == EEXIST);
    return linked == 0 ? move_there(b) : NOT_THIS_WAY;
}

static int replace_unnamed(const lf_content *content, beside *b, const struct stat *old)
{
    snprintf(b->name, b->capacity, "%.*s", b->folder > 0 ? b->folder : 1, b->folder > 0 ? b->path : ".");
    int fd = open(b->name, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    if (fd < 0)
        return NOT_THIS_WAY;
    int error = fill(content, fd, old);
    /* A second descriptor closed says what closing would say, while the first can still be named. */
    int second = error ? -1 : dup(fd);
    if (second >= 0 && close(second) != 0)
        error = errno;
    if (!error)
        error = give_name(fd, b);
    close(fd);
    return error;
}
#else
static int replace_unnamed(const lf_content *content, beside *b, const struct stat *old)
{
    (void)content, (void)b, (void)old;
    return NOT_THIS_WAY;
}
#endif

int lf_content_replace(const lf_content *content, const char *path, const struct stat *old)
{
    /* Renaming needs leave to write to the folder only; a file marked read-only is still not ours to replace. */
    if (old && faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) != 0)
        return errno;
    beside b;
    if (!beside_init(&b, path))
        return ENOMEM;
    int error = replace_unnamed(content, &b, old);
    if (error == NOT_THIS_WAY)
        error = replace_named(content, &b, old);
    free(b.name);
    return error;
}
