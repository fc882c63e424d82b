/* SPDX-License-Identifier: Apache-2.0 */
/* One engine process and the socket to it: start, frames both ways, end. Knows nothing of what the
 * frames say. Loop thread only.
 *
 *   start ---> running ---> (stop: our end closed) ---> exited: on_exit, freed
 *                 \-------> (died, or kill) -----------/
 *
 * The end is always the process's own: on_exit comes once, after every frame that it had sent. */
#ifndef CST_PROCESS_H
#define CST_PROCESS_H

#include "proto/frame.h"

#include <sys/types.h>
#include <uv.h>

struct cst_process; /* opaque; frees itself after on_exit */

struct cst_process_ops {
    void (*on_frame)(void *arg,
                     struct cst_frame *frame);   /* valid during the call; descriptors that it does
                                                    not take out (n_fds := 0) are closed after it */
    void (*on_writable)(void *arg);              /* after CST_EAGAIN of cst_process_try_send */
    void (*on_exit)(void *arg, const char *how); /* "killed by signal 9 (Killed)"; the process
                                                    object is invalid afterwards */
};

/* Start the program and arguments @argv (NULL behind them) with its end of the socket as fd 3, in a
 * process group of its own. CST_EENGINE with the system's words. */
int cst_process_start(struct cst_process **out, uv_loop_t *loop, char *const *argv,
                      const struct cst_process_ops *ops, void *arg, struct cst_err *err);

pid_t cst_process_pid(const struct cst_process *process);

/* Send @frame, now or when that is possible. The descriptors in it must stay open until the process
 * has answered or exited. An error of sending that is not the process's (the socket is full, the
 * machine is short of memory, this user has too many descriptors in flight) is waited out. CST_OK,
 * or CST_EENGINE: the process is going (on_exit follows). */
int cst_process_send(struct cst_process *process, const struct cst_frame *frame);

/* Send @frame now, after everything that waits. CST_EAGAIN: not sent, on_writable will be called;
 * CST_EENGINE: as above. */
int cst_process_try_send(struct cst_process *process, const struct cst_frame *frame);

/* Close our end: an engine ends itself then. */
void cst_process_stop(struct cst_process *process);

void cst_process_kill(struct cst_process *process);

#endif
