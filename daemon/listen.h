/* SPDX-License-Identifier: Apache-2.0 */
/* A listening SOCK_SEQPACKET socket at a path: made here, or inherited from systemd. A lock file
 * beside the path keeps two daemons from sharing it. Knows nothing of who connects. */
#ifndef CST_LISTEN_H
#define CST_LISTEN_H

#include "cistern/status.h"

#include <stdbool.h>
#include <sys/types.h>

struct cst_listen {
    int fd;         /* non-blocking, listening; -1: none */
    int lock_fd;    /* -1: none (activated: systemd owns the path) */
    char path[108]; /* of the socket */
};

/* Listen at @path with file mode @mode. A socket file that nobody listens on is removed first.
 * CST_EBUSY: another daemon (its pid is in the words), or something else that lives, listens there;
 * CST_EIO with the system's words. */
int cst_listen_open(struct cst_listen *listener, const char *path, mode_t mode,
                    struct cst_err *err);

/* Take the sockets that systemd passed: @user is the one named "cistern.sock" (or the first one,
 * unnamed), @manager the one named "manager" or "manager.sock". An fd that was not passed stays -1.
 * CST_EINVAL: what was passed is not a listening SEQPACKET socket. */
int cst_listen_inherit(struct cst_listen *user, struct cst_listen *manager, struct cst_err *err);

/* Stop listening; removes the socket file and the lock file if they are ours. */
void cst_listen_close(struct cst_listen *listener);

#endif
