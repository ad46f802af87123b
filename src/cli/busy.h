/* SPDX-License-Identifier: Apache-2.0 */
/* How busy other programs kept the machine while something was measured. */
#ifndef LF_CLI_BUSY_H
#define LF_CLI_BUSY_H

/* Seconds since some moment: of wall time, of all CPUs' work, of this process's own. */
typedef struct cli_work {
    double wall, all, own;
} cli_work;

/* As it is now; all is negative where the system does not tell. */
cli_work cli_work_now(void);

/* The part of the CPUs' time since then that other programs used, 0 to 1; negative where it is not known or the time is
 * too short. */
double cli_work_of_others(const cli_work *since);

#endif
