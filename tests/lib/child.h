/* SPDX-License-Identifier: Apache-2.0 */
/* Child processes of a test, which may be killed, and memory that they share with the test. All
 * functions fail the test on an error. */
#ifndef CHILD_H
#define CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Zeroed memory that the test shares with its children. Free it with child_unshare. */
void *child_share(size_t bytes);
void child_unshare(void *base, size_t bytes);

/* Fork a child that dies with the test. Returns 0 in the child, and its process id in the test. */
pid_t child_start(void);

/* Wait for the child's end. Returns its status in the form of waitpid. */
int child_wait(pid_t pid);

/* Wait for the child's end. True if SIGKILL ended it, false if it exited with status 0. Otherwise
 * the test fails with the message @words. */
bool child_join(pid_t pid, const char *words);

#endif
