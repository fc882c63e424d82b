/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/session/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

/* SO_PEERPIDFD (Linux 6.5) refers to the peer itself, also if the peer is in a container. It fails
 * if the peer is gone, even if a child of the peer still holds the socket. */
int cstd_peer_pidfd(int sock, pid_t pid)
{
    int fd;
    socklen_t n = sizeof fd;

    if (getsockopt(sock, SOL_SOCKET, SO_PEERPIDFD, &fd, &n) == 0) {
        return fd;
    }
    if (errno != ENOPROTOOPT) {
        return -1;
    }
    return pidfd_open(pid, 0);
}

static bool is_up(int sock)
{
    struct pollfd p = {.fd = sock, .events = POLLRDHUP};

    return poll(&p, 1, 0) == 0 || (p.revents & (POLLHUP | POLLERR)) == 0;
}

/* Return all groups of the peer of @sock, the primary group @gid first. A group that is missing
 * here would be neither admitted nor limited, hence an incomplete list is an error. NULL: no
 * memory, or the peer is gone. */
static gid_t *read_groups(int sock, gid_t gid, size_t *n_groups)
{
    socklen_t n = 0; /* bytes */
    gid_t *groups;

    if (getsockopt(sock, SOL_SOCKET, SO_PEERGROUPS, NULL, &n) != 0 && errno != ERANGE) {
        n = 0;
    }
    groups = malloc(sizeof *groups + n);
    if (groups == NULL) {
        return NULL;
    }
    groups[0] = gid;
    if (n > 0 && getsockopt(sock, SOL_SOCKET, SO_PEERGROUPS, groups + 1, &n) != 0) {
        free(groups);
        return NULL;
    }
    *n_groups = 1 + n / sizeof *groups;
    return groups;
}

bool cstd_peer_open(struct cstd_peer *peer, int sock)
{
    struct ucred cred = {.pid = 0};
    socklen_t n = sizeof cred;

    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &n) != 0) {
        return false;
    }
    *peer = (struct cstd_peer){.pid = cred.pid, .uid = cred.uid, .gid = cred.gid, .pidfd = -1};
    peer->groups = read_groups(sock, cred.gid, &peer->n_groups);
    if (peer->groups == NULL) {
        return false;
    }
    peer->pidfd = cstd_peer_pidfd(sock, cred.pid);
    if (!is_up(sock)) {
        /* The peer may have sent a message before it ended, but nobody waits for the answer. */
        cstd_peer_close(peer);
        return false;
    }
    return true;
}

void cstd_peer_close(struct cstd_peer *peer)
{
    free(peer->groups);
    peer->groups = NULL;
    peer->n_groups = 0;
    if (peer->pidfd >= 0) {
        (void)close(peer->pidfd);
        peer->pidfd = -1;
    }
}

/* Return whether a thread of the process of @pidfd still lives. Returns true if @pidfd is -1,
 * because then the end of the process cannot be seen. */
static bool lives(int pidfd)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};

    return pidfd < 0 || poll(&p, 1, 0) <= 0;
}

struct cstd_watch {
    uv_poll_t poll;
    int pidfd;
    cstd_watch_cb cb;
    void *arg;
};

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct cstd_watch *watch = poll->data;

    (void)status;
    (void)events;
    (void)uv_poll_stop(poll);
    watch->cb(watch->arg);
}

struct cstd_watch *cstd_watch_open(uv_loop_t *loop, int pidfd, cstd_watch_cb cb, void *arg)
{
    struct cstd_watch *watch = pidfd >= 0 ? calloc(1, sizeof *watch) : NULL;

    if (watch == NULL) {
        return NULL;
    }
    watch->cb = cb;
    watch->arg = arg;
    watch->pidfd = fcntl(pidfd, F_DUPFD_CLOEXEC, 0);
    if (watch->pidfd < 0) {
        free(watch);
        return NULL;
    }
    if (uv_poll_init(loop, &watch->poll, watch->pidfd) != 0) {
        (void)close(watch->pidfd);
        free(watch);
        return NULL;
    }
    watch->poll.data = watch;
    (void)uv_poll_start(&watch->poll, UV_READABLE, on_readable);
    return watch;
}

static void on_closed(uv_handle_t *handle)
{
    free(handle->data);
}

void cstd_watch_close(struct cstd_watch *watch)
{
    if (watch != NULL) {
        (void)uv_poll_stop(&watch->poll);
        uv_close((uv_handle_t *)&watch->poll, on_closed);
        (void)close(watch->pidfd);
    }
}

bool cstd_watch_lives(const struct cstd_watch *watch)
{
    return lives(watch->pidfd);
}
