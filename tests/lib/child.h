/* SPDX-License-Identifier: Apache-2.0 */
/* Processes of a test's own, which may be killed, and what they tell in memory that they share with
 * it. */
#ifndef CHILD_H
#define CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Zeroed memory that children share. Fails the test. */
void *child_share(size_t bytes);
void child_unshare(void *base, size_t bytes);

/* A child, which dies with the test: 0 in it. Fails the test. */
pid_t child_start(void);

/* Wait for it; its status, as waitpid gives it. */
int child_wait(pid_t pid);

/* Wait for it. True if it died by SIGKILL; false if it ended well; else the test fails, with the
 * child's @words. */
bool child_join(pid_t pid, const char *words);

#endif
