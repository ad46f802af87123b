/* SPDX-License-Identifier: Apache-2.0 */
/* "Did you mean ...?": the word among several that is fewest edits away from one that is not among them. */
#ifndef LF_BASE_GUESS_H
#define LF_BASE_GUESS_H

#include <stddef.h>

/* Borrows the word and all that are tried. best: the nearest so far, the first of several; NULL where none is near. */
typedef struct lf_guess {
    const char *word;
    size_t length;
    int most;                 /* edits: best has so many, anything else wants fewer */
    const char *best;
} lf_guess;

/* How many letters of a word of this length may be wrong: a third of them, and never fewer than two. */
int lf_guess_most(size_t length);
/* most: insertions, deletions, replacements and swaps of neighbours that a near word may be away. */
lf_guess lf_guess_of(const char *word, size_t length, int most);
/* Tries another word. One of which nothing would be left is not near; one of more than 128 letters is passed over. */
void lf_guess_try(lf_guess *guess, const char *word);

#endif
