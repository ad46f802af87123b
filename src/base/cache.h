/* SPDX-License-Identifier: Apache-2.0 */
/* Files under the user's cache, $XDG_CACHE_HOME/linfuse or ~/.cache/linfuse. What cannot be read or written is as good
 * as not there: nothing here fails loudly. */
#ifndef LF_BASE_CACHE_H
#define LF_BASE_CACHE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/str.h"

/* Adds the folder's name to out; false when there is no such place. It need not exist. */
bool lf_cache_folder(lf_str *out);

/* The whole file called name, at most `most` bytes of it. *out: malloc'ed, caller frees. False when there is none, it
 * is longer, or no regular file. */
bool lf_cache_read(const char *name, size_t most, char **out, size_t *length);

/* Written aside and renamed, so that a reader sees all of it or nothing, whoever else writes. */
void lf_cache_write(const char *name, const char *data, size_t length);

#endif
