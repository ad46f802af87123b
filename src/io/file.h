/* SPDX-License-Identifier: Apache-2.0 */
/* Whole files: read by memory map, written all or not at all. */
#ifndef LF_IO_FILE_H
#define LF_IO_FILE_H

#include "base/status.h"

/* A regular file of at least one byte, mapped read-only. All zero is none. */
typedef struct lf_file {
    const void *bytes; /* size bytes, page-aligned; owned */
    size_t size;
} lf_file;

/* Leaves:  *out the map, to be ended with lf_file_unmap; all zero on failure.
 * Fails:   LF_ERR_IO for a path that is missing, forbidden, empty, a directory or otherwise not a regular file, in
 *          words that name it. A file that is shortened while mapped is beyond help: to read past its new end is
 *          SIGBUS. */
lf_status lf_file_map(const char *path, lf_file *out, lf_diag *diag);

/* Takes an all-zero file too, and leaves one. */
void lf_file_unmap(lf_file *file);

/* Writes head and then body (either may be of 0 bytes). A regular file appears whole or not at all: the bytes go to a
 * new file beside it, which then takes its place, its permissions kept; on failure what was there before is untouched.
 * Where the file system allows it the new file has no name until it is whole, so that nothing of it is left even if the
 * process is killed. A symbolic link is followed. A device, a pipe and whatever else is named under /dev or /proc is
 * written to directly.
 * Fails:   LF_ERR_IO, LF_ERR_NOMEM. */
lf_status lf_file_write(const char *path, const void *head, size_t head_size, const void *body, size_t body_size,
                        lf_diag *diag);

#endif
