/* SPDX-License-Identifier: Apache-2.0 */
/* One engine process and the socket to it: start, frames in both directions, end. Does not
 * interpret the frames. Loop thread only.
 *
 *   start ---> running ---> (stop: our end closed) ---> exited: on_exit, freed
 *                 \-------> (died, or kill) -----------/
 *                  \------> abandoned ----------------/   (or forgotten, at the daemon's end)
 *
 * on_exit is called once, when the process has ended and all frames that it had sent were
 * delivered. */
#ifndef CST_PROCESS_H
#define CST_PROCESS_H

#include "proto/frame.h"

#include <sys/types.h>
#include <uv.h>

struct cstd_process; /* opaque; frees itself after on_exit */

struct cstd_process_ops {
    void (*on_frame)(void *arg,
                     /* Called for each frame. @frame is valid during the call. Its descriptors are
                      * closed afterwards, unless the callee takes them and sets n_fds to 0. */
                     struct cst_frame *frame);
    /* Called when a send may be tried again after cstd_process_try_send returned CST_EAGAIN. */
    void (*on_writable)(void *arg);
    /* Called at the end; @how is for example "killed by signal 9 (Killed)". The process object is
     * invalid afterwards. */
    void (*on_exit)(void *arg, const char *how);
};

/* Start the program @argv[0] with the arguments @argv, which a NULL ends, in a process group of its
 * own. The engine's end of the socket is its fd 3. CST_EENGINE: the program cannot be started; the
 * words are the system's. CST_ENOMEM: there is no memory for it, or the loop cannot watch it. */
int cstd_process_start(struct cstd_process **out, uv_loop_t *loop, char *const *argv,
                       const struct cstd_process_ops *ops, void *arg, struct cst_err *err);

pid_t cstd_process_pid(const struct cstd_process *process);

/* Send @frame, now or as soon as possible. The caller keeps the descriptors in it open until the
 * process has answered or exited. A shortage that is not the process's fault (the socket is full,
 * the machine is short of memory, this user has too many descriptors in flight) only delays the
 * frame. CST_OK; CST_EENGINE: the process is ending, and on_exit follows. */
int cstd_process_send(struct cstd_process *process, const struct cst_frame *frame);

/* Send @frame now, if no other frame waits. CST_EAGAIN: not sent; on_writable will be called.
 * CST_EENGINE: the process is ending, and on_exit follows. */
int cstd_process_try_send(struct cstd_process *process, const struct cst_frame *frame);

/* Close the daemon's end of the socket, upon which an engine ends itself. */
void cstd_process_stop(struct cstd_process *process);

/* Kill a process that may never end, because the kernel waits for a drive, and hear no more of it:
 * our end is closed, and the loop does not run for its sake. on_exit follows when it has ended. */
void cstd_process_abandon(struct cstd_process *process);

/* Free the object of a process that has not ended, at the end of the daemon. on_exit is not
 * called. */
void cstd_process_forget(struct cstd_process *process);

/* Kill the process with SIGKILL; on_exit follows. */
void cstd_process_kill(struct cstd_process *process);

#endif
