/* SPDX-License-Identifier: Apache-2.0 */
#include "base/guess.h"

#include <string.h>

enum { LONGEST = 128 };

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Levenshtein distance, but two letters that changed places count once; both are at most LONGEST letters. */
static int distance(const char *a, size_t a_length, const char *b, size_t b_length)
{
    int rows[3][LONGEST + 1]; /* [i % 3][j]: of a's first i letters from b's first j */
    for (size_t j = 0; j <= b_length; j++)
        rows[0][j] = (int)j;
    for (size_t i = 1; i <= a_length; i++) {
        int *row = rows[i % 3];
        const int *above = rows[(i + 2) % 3], *two_above = rows[(i + 1) % 3];
        row[0] = (int)i;
        for (size_t j = 1; j <= b_length; j++) {
            row[j] = least(above[j - 1] + (a[i - 1] != b[j - 1]), least(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = least(row[j], two_above[j - 2] + 1);
        }
    }
    return rows[a_length % 3][b_length];
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
