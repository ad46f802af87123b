/* SPDX-License-Identifier: Apache-2.0 */
/* train_head.c with its vocabulary split over the processes of MPI: each has some of the head's rows and learns them;
 * the embedding is everyone's, and stays the same on all, bit for bit. On one process it is train_head.
 *   mpirun -n 4 mpi_head [steps]
 * Built by:  mpicc mpi_head.c -o mpi_head $(pkg-config --cflags --libs linfuse) */
#include <linfuse.h>
#include <linfuse_tools.h> /* numbers from a seed */
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 128, DEPTH = 24, TOKENS = 512 };

static const char text[] = "the quick brown fox jumps over the lazy dog, and the lazy dog looks on. ";
static float embedding[WORDS][DEPTH], head[WORDS][DEPTH], x[TOKENS][DEPTH], by_x[TOKENS][DEPTH], by_head[WORDS][DEPTH];
static int64_t letter[TOKENS + 1];
static int rank, ranks, first, end; /* this process's words */

static int gather(void *user, const void *mine, size_t bytes, void *all)
{
    (void)user;
    return MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
}

/* By way of the first process: MPI_Allreduce may round differently on each. */
static int sum(void *user, float *numbers, size_t count)
{
    const void *from = rank == 0 ? MPI_IN_PLACE : numbers;
    (void)user;
    const int failed = MPI_Reduce(from, numbers, (int)count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
    return failed ? failed : MPI_Bcast(numbers, (int)count, MPI_FLOAT, 0, MPI_COMM_WORLD);
}

static lf_tensor matrix(void *data, const int64_t *extents)
{
    return (lf_tensor){.data = data, .dtype = LF_F32, .rank = 2, .extents = extents};
}

/* One step of gradient descent; gives the loss before it. */
static double step(lf_context *context, float rate)
{
    const int64_t tokens[] = {TOKENS, DEPTH}, words[] = {end - first, DEPTH};
    lf_loss loss = {.x = matrix(x, tokens), .weight = matrix(head[first], words), .target = letter + 1,
                    .options = LF_LOSS_OPTIONS};
    const lf_loss_gradient by = {.x = matrix(by_x, tokens), .weight = matrix(by_head[first], words)};
    double value = 0;
    loss.options.first_word = first;
    loss.options.words = WORDS;
    for (int i = 0; i < TOKENS; i++)
        memcpy(x[i], embedding[letter[i]], sizeof x[i]);
    if (lf_loss_step(context, &loss, 1, &value, &by) != LF_OK) {
        fprintf(stderr, "mpi_head: %s\n", lf_context_message(context));
        MPI_Abort(MPI_COMM_WORLD, 1); /* the others may wait for this one */
    }
    for (int i = 0; i < TOKENS; i++)
        for (int k = 0; k < DEPTH; k++)
            embedding[letter[i]][k] -= rate * by_x[i][k];
    for (int word = first; word < end; word++)
        for (int k = 0; k < DEPTH; k++)
            head[word][k] -= rate * by_head[word][k];
    return value;
}

static void train(lf_context *context, int steps)
{
    for (int i = 0; i <= TOKENS; i++)
        letter[i] = text[(size_t)i % (sizeof text - 1)];
    lf_draw_uniform(1, "embedding", -0.5f, 0.5f, WORDS * DEPTH, embedding[0]);
    lf_draw_uniform(1, "head", -0.5f, 0.5f, WORDS * DEPTH, head[0]);
    for (int i = 0; i < steps; i++) {
        const double value = step(context, 4);
        if (rank == 0 && (i % 50 == 0 || i == steps - 1))
            printf("step %d: loss %.4f\n", i, value);
    }
}

int main(int count, char **words)
{
    lf_context *context = NULL;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    /* The later a rank, the more words it has. No letter of the text is among the first 32. */
    first = WORDS * rank * (rank + 1) / (ranks * (ranks + 1));
    end = WORDS * (rank + 1) * (rank + 2) / (ranks * (ranks + 1));
    const lf_exchange exchange = {.ranks = ranks, .gather = gather, .sum = sum};
    if (end == first || lf_context_new(&context) != LF_OK || lf_context_set_threads(context, 1) != LF_OK ||
        lf_context_set_exchange(context, &exchange) != LF_OK) {
        fprintf(stderr, "mpi_head: %d processes are too many for %d words, or out of memory\n", ranks, WORDS);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    train(context, count > 1 ? atoi(words[1]) : 200);
    lf_context_free(context);
    MPI_Finalize();
    return 0;
}
