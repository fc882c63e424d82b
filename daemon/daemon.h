/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's life: start, run, drain. main.c owns the object, and opens, runs and closes it.
 * daemon_state.h says what it has. */
#ifndef CST_DAEMON_H
#define CST_DAEMON_H

#include "daemon/base/daemon_state.h"

struct cst_err;

/* Listen, start the engines and notify the service manager. @config is borrowed until
 * cstd_daemon_close. On failure everything is undone, and @err says why in one line. */
int cstd_daemon_open(struct cstd_daemon *daemon, const struct cstd_settings *config,
                     struct cst_err *err);

/* Run the loop until a signal has begun the shutdown and all work of the shutdown is done. */
void cstd_daemon_run(struct cstd_daemon *daemon);

/* Begin to shut down: stop accepting, answer waiting requests with CST_EDRAINING, remove all jobs
 * and stop the engines. cstd_daemon_run returns when that is done. */
void cstd_daemon_drain(struct cstd_daemon *daemon);

/* Begin to end without removing the jobs, which are kept for the next process: tell the workers,
 * and stop the engines. What engines have not finished, those of the next process do.
 * cstd_daemon_run returns when the engines have ended, and the caller ends the process. */
void cstd_daemon_leave(struct cstd_daemon *daemon);

/* Free everything, after cstd_daemon_run has returned. */
void cstd_daemon_close(struct cstd_daemon *daemon);

#endif
