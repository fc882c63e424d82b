/* SPDX-License-Identifier: Apache-2.0 */
/* Child processes of an experiment. A child is the same program, started again with a role; parent
 * and child exchange messages over a socket. CUDA must not be used between fork and exec. The
 * parent does not use CUDA at all, so that its own context does not change what it measures. */
#ifndef GPU_LINK_H
#define GPU_LINK_H

#include "cistern/status.h"

#include <stdint.h>
#include <sys/types.h>

#define GPU_LINK_VALUES 8 /* Number of values of a message. */

/* A message between parent and child. */
struct gpu_message {
    int32_t status;                 /* A status of cistern; not 0 in a reply: the request failed. */
    uint32_t what;                  /* The verb, which the experiment defines. */
    double values[GPU_LINK_VALUES]; /* The arguments or results, which the verb defines. */
    char text[640];                 /* The error message if `status` is not 0. */
};

/* The parent's end of a connection to a child. */
struct gpu_link {
    pid_t pid; /* The process id of the child. */
    int sock;  /* The socket to the child. */
};

/* Start this program as `--role ROLE`, and fill in @link. CST_EIO: a system call failed. */
int gpu_link_start(struct gpu_link *link, const char *role, struct cst_err *err);

/* In the child, the descriptor of the socket to the parent. */
#define GPU_LINK_FD 3

/* Send @message with a copy of the descriptor @fd (-1: none). CST_ECONN: the other process has
 * ended. */
int gpu_link_send(int sock, const struct gpu_message *message, int fd, struct cst_err *err);

/* Wait for a message for at most @timeout_ms. If @fd is not NULL, *fd is the descriptor that came
 * with the message (-1: none), and the caller closes it. If the status of the message is not 0,
 * returns it and copies the text of the message to @err. CST_ETIMEDOUT: no message came.
 * CST_ECONN: the other process has ended. */
int gpu_link_recv(int sock, int timeout_ms, struct gpu_message *message, int *fd,
                  struct cst_err *err);

/* Send the verb @what with one value and the descriptor @fd, and wait for the reply as
 * gpu_link_recv does. */
int gpu_link_ask(struct gpu_link *link, uint32_t what, double value, int fd,
                 struct gpu_message *answer, int *out_fd, struct cst_err *err);

/* Close the socket and wait until the child has ended. */
void gpu_link_close(struct gpu_link *link);

/* Send SIGKILL to the child, and return when all of its threads have ended. CST_EIO: a system call
 * failed. */
int gpu_link_kill(struct gpu_link *link, struct cst_err *err);

#endif
