/* SPDX-License-Identifier: Apache-2.0 */
/* A program's other halves: the same program started again in a role, at the end of a socket. CUDA
 * forbids fork between its use and exec, and the parent stays free of CUDA altogether, so that what
 * it says about memory and processes is not its own context's doing. */
#ifndef GPU_LINK_H
#define GPU_LINK_H

#include "cistern/status.h"

#include <stdint.h>
#include <sys/types.h>

#define GPU_LINK_VALUES 8

/* What goes over the socket. */
struct gpu_message {
    int32_t status;                 /* 0, or what went wrong */
    uint32_t what;                  /* of the experiment */
    double values[GPU_LINK_VALUES]; /* likewise */
    char text[384];                 /* words, where status is not 0 */
};

struct gpu_link {
    pid_t pid;
    int sock;
};

/* Start this program as `--role ROLE`. CST_EIO. */
int gpu_link_start(struct gpu_link *link, const char *role, struct cst_err *err);

/* In the role: the socket to the parent. */
#define GPU_LINK_FD 3

/* Send @message, with @fd (-1: none). CST_ECONN: the other side is gone. */
int gpu_link_send(int sock, const struct gpu_message *message, int fd, struct cst_err *err);

/* Wait for a message, @timeout_ms at most; *fd (may be NULL) is the caller's, -1: none came. A
 * message whose status is not 0 becomes the return value, with its words. CST_ETIMEDOUT, CST_ECONN.
 */
int gpu_link_recv(int sock, int timeout_ms, struct gpu_message *message, int *fd,
                  struct cst_err *err);

/* Say @what with one value and wait for the answer. */
int gpu_link_ask(struct gpu_link *link, uint32_t what, double value, int fd,
                 struct gpu_message *answer, int *out_fd, struct cst_err *err);

/* End it: close the socket, wait. */
void gpu_link_close(struct gpu_link *link);

/* kill -9; returns when the pidfd is readable: all threads are gone. */
int gpu_link_kill(struct gpu_link *link, struct cst_err *err);

#endif
