/* SPDX-License-Identifier: Apache-2.0 */
/* Trains the smallest language model, without Python: each letter of a text predicts the next. Its embedding and its
 * head are learnt by plain gradient descent; the loss and all gradients come from one call a step, and no logits are
 * stored, however large the vocabulary.
 *   train_head [steps]
 * Built by:  cc train_head.c -o train_head $(pkg-config --cflags --libs linfuse) */
#include <linfuse.h>
#include <linfuse_tools.h> /* numbers from a seed */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 128, DEPTH = 24, TOKENS = 512 };

static const char text[] = "the quick brown fox jumps over the lazy dog, and the lazy dog looks on. ";
static float embedding[WORDS][DEPTH], head[WORDS][DEPTH], x[TOKENS][DEPTH], by_x[TOKENS][DEPTH], by_head[WORDS][DEPTH];
static int64_t letter[TOKENS + 1];

static lf_tensor matrix(void *data, const int64_t *extents)
{
    return (lf_tensor){.data = data, .dtype = LF_F32, .rank = 2, .extents = extents};
}

/* One step of gradient descent; gives the loss before it. */
static double step(lf_context *context, float rate)
{
    const int64_t tokens[] = {TOKENS, DEPTH}, words[] = {WORDS, DEPTH};
    const lf_loss loss = {.x = matrix(x, tokens), .weight = matrix(head, words), .target = letter + 1,
                          .options = LF_LOSS_OPTIONS};
    const lf_loss_gradient by = {.x = matrix(by_x, tokens), .weight = matrix(by_head, words)};
    double value = 0;
    for (int i = 0; i < TOKENS; i++)
        memcpy(x[i], embedding[letter[i]], sizeof x[i]);
    if (lf_loss_step(context, &loss, 1, &value, &by) != LF_OK) {
        fprintf(stderr, "train_head: %s\n", lf_context_message(context));
        exit(1);
    }
    for (int i = 0; i < TOKENS; i++)
        for (int k = 0; k < DEPTH; k++)
            embedding[letter[i]][k] -= rate * by_x[i][k];
    for (int word = 0; word < WORDS; word++)
        for (int k = 0; k < DEPTH; k++)
            head[word][k] -= rate * by_head[word][k];
    return value;
}

int main(int count, char **words)
{
    const int steps = count > 1 ? atoi(words[1]) : 200;
    lf_context *context = NULL;
    if (lf_context_new(&context) != LF_OK)
        return 1;
    for (int i = 0; i <= TOKENS; i++)
        letter[i] = text[(size_t)i % (sizeof text - 1)];
    lf_draw_uniform(1, "embedding", -0.5f, 0.5f, WORDS * DEPTH, embedding[0]);
    lf_draw_uniform(1, "head", -0.5f, 0.5f, WORDS * DEPTH, head[0]);
    for (int i = 0; i < steps; i++) {
        const double value = step(context, 4);
        if (i % 50 == 0 || i == steps - 1)
            printf("step %d: loss %.4f\n", i, value);
    }
    lf_context_free(context);
    return 0;
}
