/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/busy.h"

#include <math.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    return clock_gettime(clock, &t) == 0 ? (double)t.tv_sec + 1e-9 * (double)t.tv_nsec : 0;
}

/* The first line of /proc/stat: ticks since the machine started, of all CPUs. */
static double work_of_all(void)
{
    enum { USER, NICE, SYSTEM, IDLE, IOWAIT, IRQ, SOFTIRQ, STEAL, FIELDS };
    unsigned long long t[FIELDS] = {0};
    FILE *file = fopen("/proc/stat", "re");
    if (!file)
        return -1;
    const int found = fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &t[USER], &t[NICE], &t[SYSTEM],
                             &t[IDLE], &t[IOWAIT], &t[IRQ], &t[SOFTIRQ], &t[STEAL]);
    fclose(file);
    const unsigned long long ticks = t[USER] + t[NICE] + t[SYSTEM] + t[IRQ] + t[SOFTIRQ] + t[STEAL];
    return found == FIELDS ? (double)ticks / (double)sysconf(_SC_CLK_TCK) : -1;
}

cli_work cli_work_now(void)
{
    return (cli_work){seconds_of(CLOCK_MONOTONIC), work_of_all(), seconds_of(CLOCK_PROCESS_CPUTIME_ID)};
}

double cli_work_of_others(const cli_work *since)
{
    static const double shortest = 0.1; /* seconds: ticks are hundredths */
    const cli_work now = cli_work_now();
    const double room = (now.wall - since->wall) * (double)sysconf(_SC_NPROCESSORS_ONLN);
    if (since->all < 0 || now.all < 0 || now.wall - since->wall < shortest)
        return -1;
    return fmin(fmax((now.all - since->all - (now.own - since->own)) / room, 0), 1);
}
