/* SPDX-License-Identifier: Apache-2.0 */
/* Who is on the other side of a connection, as the kernel attests it, and whether that process
 * still lives. */
#ifndef CST_PEER_H
#define CST_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <uv.h>

struct cst_peer {
    pid_t pid; /* 0: in a foreign pid namespace */
    uid_t uid;
    gid_t gid;
    gid_t *groups;   /* primary and supplementary; owned */
    size_t n_groups; /* of them */
    int pidfd;       /* owned; -1: none could be had, so only a hang-up tells of its end */
};

/* Read what the kernel knows of the peer of @sock. False: it is gone already, or there is no memory
 * for its groups. */
bool cst_peer_open(struct cst_peer *peer, int sock);
void cst_peer_close(struct cst_peer *peer);

/* True while a thread of the process behind @pidfd lives; true for -1, where nobody knows. */
bool cst_peer_lives(int pidfd);

/* -- watching ------------------------------------------------------------------------------- */

struct cst_watch; /* opaque */
typedef void (*cst_watch_cb)(void *arg);

/* Have @cb called once when the process behind @pidfd is gone. The watch has its own duplicate of
 * @pidfd. NULL: there is no pidfd or no memory; then only a hang-up tells. */
struct cst_watch *cst_watch_open(uv_loop_t *loop, int pidfd, cst_watch_cb cb, void *arg);

/* Stop watching; frees it. NULL is allowed. */
void cst_watch_close(struct cst_watch *watch);

/* The process lives, as far as one can know. */
bool cst_watch_lives(const struct cst_watch *watch);

#endif
