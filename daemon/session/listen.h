/* SPDX-License-Identifier: Apache-2.0 */
/* A listening SOCK_SEQPACKET socket at a path, created by the daemon or inherited from systemd. A
 * lock file next to the path prevents two daemons from using it. The module does not accept
 * connections. */
#ifndef CST_LISTEN_H
#define CST_LISTEN_H

#include "cistern/status.h"

#include <stdbool.h>
#include <sys/types.h>

struct cstd_keeper;

struct cstd_listen {
    int fd; /* The listening, non-blocking socket; -1: none. */
    /* The locked lock file; -1: none (an inherited socket's path belongs to systemd). */
    int lock_fd;
    char path[108]; /* Path of the socket. */
};

/* Listen at @path with file mode @mode. A socket file without a listener is removed first.
 * CST_EBUSY: another daemon (@err has its pid) or another process listens at @path; CST_EEXIST:
 * @path is not a socket; CST_EINVAL: @path is too long; CST_EIO: another system error. */
int cstd_listen_open(struct cstd_listen *listener, const char *path, mode_t mode,
                     struct cst_err *err);

/* Check, as far as that is possible without doing it, that cstd_listen_open can listen at @user and
 * at @manager when the daemon that listens at @manager has ended. Statuses as of
 * cstd_listen_open. */
int cstd_listen_check(const char *user, const char *manager, struct cst_err *err);

/* Take the descriptors that systemd passed. @keeper gets those of its store, @manager the socket
 * named "manager" or "manager.sock", @user the first other one. fd stays -1 if no socket was
 * passed. CST_EINVAL: a passed descriptor is not a listening SEQPACKET socket, or LISTEN_FDS is
 * invalid; CST_EIO: another system error; CST_ENOMEM. */
int cstd_listen_inherit(struct cstd_listen *user, struct cstd_listen *manager,
                        struct cstd_keeper *keeper, struct cst_err *err);

/* Let the kernel refuse descriptors in messages to the socket @fd, or not (SO_PASSRIGHTS).
 * Listening sockets refuse them, and connections inherit that: hardly any request carries
 * descriptors, and closing one that a peer has chosen (a socket with SO_LINGER, a file on the
 * peer's own file system) can block as long as the peer likes. Kernels before 6.16 do not have the
 * option; descriptors are closed there when they arrive. */
void cstd_listen_allow_descriptors(int fd, bool allowed);

/* Stop listening. The socket file and the lock file are removed if the daemon created them. */
void cstd_listen_close(struct cstd_listen *listener);

#endif
