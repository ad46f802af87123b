/* SPDX-License-Identifier: Apache-2.0 */
/* A thread of its own shows the line, because the library's calls do not come back before they are done. */
#include "cli/report.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { WIDTH = 78 }; /* fits the narrowest usual terminal, so that the line never wraps and can be wiped */

static struct {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    const char *what; /* guarded by lock, as is stop */
    bool stop;
    bool running; /* the main thread's own */
} progress = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void *show(void *arg)
{
    (void)arg;
    struct timespec next;
    clock_gettime(CLOCK_REALTIME, &next); /* the clock a condition variable waits by */
    int seconds = 0;
    pthread_mutex_lock(&progress.lock);
    while (!progress.stop) {
        next.tv_sec++;
        while (!progress.stop && pthread_cond_timedwait(&progress.changed, &progress.lock, &next) == 0) {
        }
        if (!progress.stop) {
            char line[WIDTH + 1];
            snprintf(line, sizeof line, "%s ... %d s", progress.what, ++seconds);
            fprintf(stderr, "\r%-*s", WIDTH, line);
            fflush(stderr);
        }
    }
    pthread_mutex_unlock(&progress.lock);
    if (seconds > 0) {
        fprintf(stderr, "\r%*s\r", WIDTH, "");
        fflush(stderr);
    }
    return NULL;
}

void cli_progress_begin(const char *what)
{
    if (progress.running || !isatty(STDERR_FILENO))
        return;
    progress.what = what;
    progress.stop = false;
    progress.running = pthread_create(&progress.thread, NULL, show, NULL) == 0; /* without one, nothing is shown */
}

void cli_progress_say(const char *what)
{
    if (!progress.running)
        return;
    pthread_mutex_lock(&progress.lock);
    progress.what = what;
    pthread_mutex_unlock(&progress.lock);
}

void cli_progress_end(void)
{
    if (!progress.running)
        return;
    pthread_mutex_lock(&progress.lock);
    progress.stop = true;
    pthread_cond_signal(&progress.changed);
    pthread_mutex_unlock(&progress.lock);
    pthread_join(progress.thread, NULL);
    progress.running = false;
}
