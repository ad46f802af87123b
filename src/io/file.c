/* SPDX-License-Identifier: Apache-2.0 */
#define _XOPEN_SOURCE 700 /* for realpath */
#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/replace.h"

/* "cannot VERB PATH: REASON", with what to do where the reason alone does not say it. */
static lf_status fail_errno(lf_diag *diag, const char *verb, const char *path, int error)
{
    char reason[128];
    if (strerror_r(error, reason, sizeof reason) != 0)
        snprintf(reason, sizeof reason, "error %d", error);
    const char *advice = error == ENOENT   ? " (check the path)"
                         : error == EACCES ? " (check the permissions of the file and its folder)"
                         : error == ENOSPC ? " (free some space, or write elsewhere)"
                                           : "";
    return lf_fail(diag, error == ENOMEM ? LF_ERR_NOMEM : LF_ERR_IO, "cannot %s %s: %s%s", verb, path, reason, advice);
}

/* ---- reading ---- */

static lf_status check_readable(const char *path, const struct stat *st, lf_diag *diag)
{
    if (S_ISDIR(st->st_mode))
        return lf_fail(diag, LF_ERR_IO, "cannot read %s: it is a directory; name a file in it", path);
    if (!S_ISREG(st->st_mode))
        return lf_fail(diag, LF_ERR_IO, "cannot read %s: it is a pipe or a device; save it to a file first", path);
    if (st->st_size == 0)
        return lf_fail(diag, LF_ERR_IO, "cannot read %s: the file is empty", path);
    if ((uintmax_t)st->st_size > SIZE_MAX)
        return lf_fail(diag, LF_ERR_IO, "cannot read %s: the file is larger than this machine's addresses reach", path);
    return LF_OK;
}

lf_status lf_file_map(const char *path, lf_file *out, lf_diag *diag)
{
    *out = (lf_file){0};
    /* O_NONBLOCK: or opening a pipe that nobody writes to would wait for ever. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return fail_errno(diag, "read", path, errno);
    struct stat st;
    lf_status status = fstat(fd, &st) == 0 ? check_readable(path, &st, diag) : fail_errno(diag, "read", path, errno);
    if (status == LF_OK) {
        void *bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes == MAP_FAILED)
            status = fail_errno(diag, "read", path, errno);
        else
            *out = (lf_file){.bytes = bytes, .size = (size_t)st.st_size};
    }
    close(fd);
    return status;
}

void lf_file_unmap(lf_file *file)
{
    if (file->bytes)
        munmap((void *)(uintptr_t)file->bytes, file->size);
    *file = (lf_file){0};
}

/* ---- writing ---- */

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

lf_status lf_file_write(const char *path, const void *head, size_t head_size, const void *body, size_t body_size,
                        lf_diag *diag)
{
    const lf_content content = {head, body, head_size, body_size};
    struct stat st;
    bool exists = stat(path, &st) == 0;
    if (!exists && errno != ENOENT)
        return fail_errno(diag, "write", path, errno);
    if (exists && S_ISDIR(st.st_mode))
        return lf_fail(diag, LF_ERR_IO, "cannot write %s: it is a directory; name a file in it", path);

    /* /dev/stdout may lead to a regular file that the shell has open: a file renamed over it would not be that one. */
    if (exists && (!S_ISREG(st.st_mode) || starts_with(path, "/dev/") || starts_with(path, "/proc/"))) {
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        int error = fd < 0 ? errno : lf_content_write(&content, fd);
        if (fd >= 0 && close(fd) != 0 && !error) /* some file systems say only then that the disk is full */
            error = errno;
        return error ? fail_errno(diag, "write", path, error) : LF_OK;
    }

    /* Through a link to the file itself, so that the link stays one. One that leads nowhere is replaced. */
    char *resolved = exists ? realpath(path, NULL) : NULL;
    if (exists && !resolved)
        return fail_errno(diag, "write", path, errno);
    int error = lf_content_replace(&content, resolved ? resolved : path, exists ? &st : NULL);
    free(resolved);
    return error ? fail_errno(diag, "write", path, error) : LF_OK;
}
