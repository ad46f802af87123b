/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes put in the place of a file, all at once. Inside the io room. */
#ifndef LF_IO_REPLACE_H
#define LF_IO_REPLACE_H

#include <stddef.h>
#include <sys/stat.h>

/* What is to be written: head, then body. Borrowed. */
typedef struct lf_content {
    const void *head, *body;
    size_t head_size, body_size;
} lf_content;

/* Writes it to an open file. 0, or what went wrong, as errno has it. */
int lf_content_write(const lf_content *content, int fd);

/* Makes it the regular file at path, whose permissions it takes over. old: what is at path now, NULL for nothing. 0, or
 * what went wrong; then nothing has changed. */
int lf_content_replace(const lf_content *content, const char *path, const struct stat *old);

#endif
