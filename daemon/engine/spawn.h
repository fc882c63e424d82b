/* SPDX-License-Identifier: Apache-2.0 */
/* Starts a child process: a program, its arguments, and one descriptor for it. Loop thread only. */
#ifndef CST_SPAWN_H
#define CST_SPAWN_H

#include "cistern/status.h"

#include <sys/types.h>

/* Start @argv[0] with @fd as its descriptor @as, which must differ from @fd. The child has a
 * process group of its own, all signals at their defaults, and none of the service manager's
 * variables. The caller reaps *pid and closes *pidfd. CST_EENGINE: the program cannot be started;
 * the words are the system's. CST_ENOMEM. */
int cstd_spawn(char *const *argv, int fd, int as, pid_t *pid, int *pidfd, struct cst_err *err);

/* Kill and reap a child that was started a moment ago, and close @pidfd. */
void cstd_spawn_undo(pid_t pid, int pidfd);

#endif
