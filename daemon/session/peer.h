/* SPDX-License-Identifier: Apache-2.0 */
/* The identity of a connection's peer process, as the kernel attests it, and whether the process
 * still lives. */
#ifndef CST_PEER_H
#define CST_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <uv.h>

struct cstd_peer {
    pid_t pid; /* 0: the process is in a foreign pid namespace. */
    uid_t uid;
    gid_t gid;
    gid_t *groups;   /* Primary group, then the supplementary groups; owned. */
    size_t n_groups; /* Number of entries in groups. */
    /* Owned. -1: not available; then only the end of the connection shows that the process
     * ended. */
    int pidfd;
};

/* Read what the kernel knows of the peer of @sock. False: the peer is already gone, or there is no
 * memory for its groups. The caller closes @peer with cstd_peer_close. */
bool cstd_peer_open(struct cstd_peer *peer, int sock);
void cstd_peer_close(struct cstd_peer *peer);

/* Open a pidfd, which the caller closes, of the process at the other end of @sock. @pid is its
 * number as the kernel attests it. Before Linux 6.5, the pidfd refers to the process that has @pid
 * now, which is the peer as long as the socket is connected: the caller checks the socket
 * afterwards. -1 with errno: the peer is gone, or its @pid is 0, because it is in a foreign pid
 * namespace, and Linux is older than 6.5. */
int cstd_peer_pidfd(int sock, pid_t pid);

/* -- watching ------------------------------------------------------------------------------- */

struct cstd_watch; /* opaque */
typedef void (*cstd_watch_cb)(void *arg);

/* Call @cb once, on the loop thread, when the process of @pidfd has ended. The watch keeps its own
 * duplicate of @pidfd. NULL: @pidfd is -1, there is no memory or descriptor, or the loop cannot
 * watch it; then only the end of the connection shows that the process ended. */
struct cstd_watch *cstd_watch_open(uv_loop_t *loop, int pidfd, cstd_watch_cb cb, void *arg);

/* Stop watching, and free @watch. @watch may be NULL. */
void cstd_watch_close(struct cstd_watch *watch);

/* Return whether the watched process still lives, as far as that can be known. */
bool cstd_watch_lives(const struct cstd_watch *watch);

#endif
