/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/revive/handover.h"

#include "daemon/base/daemon_state.h"
#include "daemon/revive/revive.h"
#include "daemon/session/peer.h"
#include "daemon/base/log.h"
#include "proto/cistern.pb-c.h"
#include "proto/frame.h"
#include "proto/reason.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    PROTOCOL_VERSION = 1,
    END_MS = 30000, /* Longest wait for the end of the old daemon. */
};

/* The connection to the old daemon. */
struct link {
    const char *path;
    int sock;
    int pidfd; /* The old daemon's process. */
    uint64_t request;
    bool has_changes; /* The old daemon counts the changes of what it hands over. */
    uint64_t changes; /* Their number at the last request. */
    struct cst_frame_buf in;
    struct cst_frame reply;
};

static int dial(struct link *link, struct cst_err *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer;
    socklen_t n = sizeof peer;

    if (strlen(link->path) >= sizeof address.sun_path) {
        return cst_err_set(err, CST_EINVAL, "%s: too long for the path of a socket", link->path);
    }
    (void)strcpy(address.sun_path, link->path);
    link->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (link->sock < 0 ||
        connect(link->sock, (const struct sockaddr *)&address, sizeof address) != 0) {
        return cst_err_errno(err, CST_ECONN, errno, "%s: no daemon to take over from", link->path);
    }
    if (getsockopt(link->sock, SOL_SOCKET, SO_PEERCRED, &peer, &n) != 0) {
        return cst_err_errno(err, CST_EIO, errno, "%s", link->path);
    }
    link->pidfd = cstd_peer_pidfd(link->sock, peer.pid);
    if (link->pidfd < 0 && peer.pid == 0) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "%s: the daemon there is in another container, whose processes Linux "
                           "shows from version 6.5 on",
                           link->path);
    }
    return link->pidfd >= 0
               ? CST_OK
               : cst_err_errno(err, CST_EIO, errno, "%s: pid %d", link->path, (int)peer.pid);
}

/* Read the words of an Error. */
static int refused(const struct link *link, struct cst_err *err)
{
    const struct cst_frame *frame = &link->reply;
    Cistern__Error *message = cistern__error__unpack(NULL, frame->body_bytes, frame->body);
    int rc = message != NULL ? message->status : CST_EPROTO;

    rc = cst_err_set(err, rc < 0 ? rc : CST_EPROTO, "%s: %.300s", link->path,
                     message != NULL ? message->text : "an error that cannot be read");
    if (message != NULL) {
        (void)cst_err_give_reason(err, cst_reason_of_number(message->reason), rc);
        cistern__error__free_unpacked(message, NULL);
    }
    return rc;
}

/* Make a request, and wait for its reply of type @wanted in link->reply. */
static int call(struct link *link, uint16_t type, const ProtobufCMessage *message, uint16_t wanted,
                struct cst_err *err)
{
    uint8_t body[256];
    struct cst_frame frame = {.type = type, .request = ++link->request, .body = body};
    int rc;

    frame.body_bytes = (uint32_t)protobuf_c_message_pack(message, body);
    rc = cst_frame_send(link->sock, 0, &frame, err);
    if (rc == CST_OK) {
        rc = cst_frame_recv(link->sock, 0, &link->in, &link->reply, err);
    }
    if (rc != CST_OK) {
        return cst_err_prefix(err, "%s", link->path);
    }
    if (link->reply.type == CISTERN__MSG_TYPE__MSG_ERROR) {
        return refused(link, err);
    }
    return link->reply.type == wanted ? CST_OK
                                      : cst_err_set(err, CST_EPROTO, "%s: a reply of type %u",
                                                    link->path, link->reply.type);
}

static int greet(struct link *link, struct cst_err *err)
{
    Cistern__Hello hello = CISTERN__HELLO__INIT;

    hello.min_version = hello.max_version = PROTOCOL_VERSION;
    hello.build = (char *)(uintptr_t) "cisternd";
    return call(link, CISTERN__MSG_TYPE__MSG_HELLO, &hello.base, CISTERN__MSG_TYPE__MSG_WELCOME,
                err);
}

/* Take the descriptors of a reply. *n: number of all that were received. */
static int take(struct link *link, struct cstd_keeper *keeper, uint32_t *n, uint32_t *total,
                struct cst_err *err)
{
    struct cst_frame *frame = &link->reply;
    Cistern__HandoverPart *part =
        cistern__handover_part__unpack(NULL, frame->body_bytes, frame->body);
    int rc = CST_OK;

    if (part == NULL || part->n_names != frame->n_fds || *n + part->n_names > part->total ||
        (part->n_names == 0 && *n < part->total)) {
        rc = cst_err_set(err, CST_EPROTO, "%s: %u descriptors that cannot be right", link->path,
                         frame->n_fds);
    }
    for (uint32_t i = 0; rc == CST_OK && i < frame->n_fds; i++) {
        rc = cstd_keeper_inherit(keeper, part->names[i], frame->fds[i], err);
        frame->fds[i] = -1; /* It was taken over or closed. */
        *n += rc == CST_OK;
    }
    if (part != NULL) {
        *total = part->total;
        link->has_changes = part->has_changes;
        link->changes = part->changes;
        cistern__handover_part__free_unpacked(part, NULL);
    }
    cst_frame_close_fds(frame);
    return rc;
}

static int take_all(struct link *link, struct cstd_keeper *keeper, uint32_t *n, struct cst_err *err)
{
    uint32_t total = 0;
    int rc;

    do {
        Cistern__HandoverGet get = CISTERN__HANDOVER_GET__INIT;

        get.first = *n;
        rc = call(link, CISTERN__MSG_TYPE__MSG_HANDOVER, &get.base,
                  CISTERN__MSG_TYPE__MSG_HANDOVER_PART, err);
        rc = rc == CST_OK ? take(link, keeper, n, &total, err) : rc;
    } while (rc == CST_OK && *n < total);
    return rc;
}

/* Let the old daemon end, and wait for it. */
static int finish(struct link *link, uint32_t n, struct cst_err *err)
{
    Cistern__HandoverEnd end = CISTERN__HANDOVER_END__INIT;
    struct pollfd old = {.fd = link->pidfd, .events = POLLIN};
    int rc;

    end.total = n;
    end.has_changes = link->has_changes;
    end.changes = link->changes;
    rc = call(link, CISTERN__MSG_TYPE__MSG_HANDOVER_END, &end.base, CISTERN__MSG_TYPE__MSG_OK, err);
    if (rc == CST_OK && poll(&old, 1, END_MS) != 1) {
        rc = cst_err_set(err, CST_ETIMEDOUT, "%s: the daemon did not end within %d ms", link->path,
                         END_MS);
    }
    return rc;
}

int cstd_handover_take(const char *path, struct cstd_daemon *daemon, struct cst_err *err)
{
    struct link *link = calloc(1, sizeof *link);
    uint32_t n = 0;
    int rc;

    if (link == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a connection");
    }
    link->path = path;
    link->sock = link->pidfd = -1;
    rc = dial(link, err);
    rc = rc == CST_OK ? greet(link, err) : rc;
    rc = rc == CST_OK ? take_all(link, &daemon->keeper, &n, err) : rc;
    rc = rc == CST_OK ? cstd_revive_prove(daemon, err) : rc;
    rc = rc == CST_OK ? finish(link, n, err) : rc;
    if (rc == CST_OK) {
        cstd_log(CSTD_LOG_NOTICE, "took over from the daemon at %s", path);
    }
    if (link->sock >= 0) {
        (void)close(link->sock);
    }
    if (link->pidfd >= 0) {
        (void)close(link->pidfd);
    }
    free(link);
    return rc;
}
