/* SPDX-License-Identifier: Apache-2.0 */
#include "base/guess.h"

#include <string.h>

enum { LONGEST = 128 };

/* Levenshtein distance; both are at most LONGEST letters. */
static int distance(const char *a, size_t a_length, const char *b, size_t b_length)
{
    int above[LONGEST + 1];
    for (size_t j = 0; j <= b_length; j++)
        above[j] = (int)j;
    for (size_t i = 1; i <= a_length; i++) {
        int diagonal = above[0];
        above[0] = (int)i;
        for (size_t j = 1; j <= b_length; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            if (above[j] + 1 < best)
                best = above[j] + 1;
            if (above[j - 1] + 1 < best)
                best = above[j - 1] + 1;
            diagonal = above[j];
            above[j] = best;
        }
    }
    return above[b_length];
}

int lf_guess_most(size_t length)
{
    if (length < 4)
        return 1; /* of three letters two others make any word */
    return length > LONGEST ? LONGEST / 3 : length / 3 > 2 ? (int)(length / 3) : 2;
}

lf_guess lf_guess_of(const char *word, size_t length, int most)
{
    return (lf_guess){.word = word, .length = length, .most = most};
}

void lf_guess_try(lf_guess *guess, const char *word)
{
    const size_t length = strlen(word), longer = length > guess->length ? length : guess->length,
                 shorter = length + guess->length - longer;
    const int most = guess->best ? guess->most - 1 : guess->most;
    if (longer > LONGEST || most < 0 || longer - shorter > (size_t)most)
        return;
    const int edits = distance(guess->word, guess->length, word, length);
    if (edits <= most && (size_t)edits < longer) {
        guess->best = word;
        guess->most = edits;
    }
}
