/* SPDX-License-Identifier: Apache-2.0 */
/* Starting a child process: a program, its arguments, one descriptor that it gets. Loop thread. */
#ifndef CST_SPAWN_H
#define CST_SPAWN_H

#include "cistern/status.h"

#include <sys/types.h>

/* Start @argv[0] with @fd as its descriptor @as (not @fd itself), in a process group of its own,
 * with all signals as they are by default and without the service manager's variables. *pid and
 * *pidfd (close it) are the caller's, to be reaped. CST_EENGINE with the system's words;
 * CST_ENOMEM.
 */
int cst_spawn(char *const *argv, int fd, int as, pid_t *pid, int *pidfd, struct cst_err *err);

#endif
