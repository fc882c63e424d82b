/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "client/lib/client.h"

#include "client/lib/call.h"
#include "client/lib/job.h"
#include "client/lib/task.h"
#include "proto/cistern.pb-c.h"
#include "proto/clock.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

const char *cst_version(void)
{
    return PACKAGE_VERSION;
}

/* Bytes of the name of a user or group, and of the buffer for the entry that has it. */
enum { NAME = 256, ENTRY = 1024 };

/* Bytes of a path in an error. Longer ones are cut. */
enum { FULL_PATH = 256 };

/* Write the name of the group @gid to @out, or its number if it has no name. */
static void name_group(gid_t gid, char out[NAME])
{
    struct group entry, *found = NULL;
    char buffer[ENTRY];

    if (getgrgid_r(gid, &entry, buffer, sizeof buffer, &found) == 0 && found != NULL) {
        (void)snprintf(out, NAME, "%s", found->gr_name);
    } else {
        (void)snprintf(out, NAME, "%u", (unsigned)gid);
    }
}

/* Write the name of the user @uid to @out as sudo takes it, or its number if it has no name. */
static void name_user(uid_t uid, char out[NAME])
{
    struct passwd entry, *found = NULL;
    char buffer[ENTRY];

    if (getpwuid_r(uid, &entry, buffer, sizeof buffer, &found) == 0 && found != NULL) {
        (void)snprintf(out, NAME, "%s", found->pw_name);
    } else {
        (void)snprintf(out, NAME, "#%u", (unsigned)uid);
    }
}

/* Make the error for a socket @path that this user cannot connect to. The mode of the socket says
 * who can. */
static int not_permitted(const char *path, struct cst_err *err)
{
    char name[NAME];
    struct stat st;

    if (stat(path, &st) != 0) {
        return cst_err_set(err, CST_EDENIED,
                           "permission denied at %s: uid %u cannot search a directory of this path",
                           path, (unsigned)geteuid());
    }
    if ((st.st_mode & S_IWGRP) != 0) {
        name_group(st.st_gid, name);
        return cst_err_set(err, CST_EDENIED,
                           "permission denied at %1$s: only members of the group '%2$s' can "
                           "connect (adduser USER %2$s, then log in again)",
                           path, name);
    }
    name_user(st.st_uid, name);
    return cst_err_set(err, CST_EDENIED,
                       "permission denied at %1$s: only the user '%2$s' can connect (sudo -u "
                       "'%2$s' ...)",
                       path, name);
}

/* Write the absolute path of @path, as `cisternd --socket` takes it, to @out. */
static const char *absolute(const char *path, char out[FULL_PATH])
{
    char here[FULL_PATH / 2];

    if (path[0] == '/' || getcwd(here, sizeof here) == NULL) {
        (void)snprintf(out, FULL_PATH, "%s", path);
    } else {
        (void)snprintf(out, FULL_PATH, "%s/%s", strcmp(here, "/") == 0 ? "" : here, path);
    }
    return out;
}

/* Make the error for a socket @path at which nobody listens, with the command that changes it. */
static int no_daemon(const char *path, struct cst_err *err)
{
    char full[FULL_PATH], directory[FULL_PATH];

    if (strcmp(path, CST_DEFAULT_SOCKET) == 0) {
        return cst_err_set(err, CST_ECONN,
                           "no daemon listens at %s: start it with 'systemctl start "
                           "cisternd.socket', or give the socket of another one (--socket, "
                           "CISTERN_SOCKET)",
                           path);
    }
    (void)absolute(path, full);
    (void)snprintf(directory, sizeof directory, "%s", full);
    directory[strrchr(full, '/') != NULL ? strrchr(full, '/') - full : 0] = '\0';
    if (directory[0] != '\0' && access(directory, F_OK) != 0) {
        return cst_err_set(err, CST_ECONN,
                           "no daemon listens at %1$s, because there is no directory %2$s: start "
                           "one with 'mkdir -p %2$s && cisternd --socket %1$s'",
                           full, directory);
    }
    if (strcmp(full + strlen(directory), "/manager.sock") == 0) {
        return cst_err_set(err, CST_ECONN,
                           "no daemon listens at %1$s/manager.sock: start one with 'cisternd "
                           "--socket %1$s/cistern.sock', or name the manager socket of another one "
                           "(--manager-socket)",
                           directory);
    }
    return cst_err_set(err, CST_ECONN,
                       "no daemon listens at %1$s: start one with 'cisternd --socket %1$s'", full);
}

/* Make the error for a connect() to @path that failed with @errnum, with a remedy. */
static int cannot_connect(const char *path, int errnum, struct cst_err *err)
{
    struct stat st;

    if (stat(path, &st) == 0 && !S_ISSOCK(st.st_mode)) {
        return cst_err_set(err, CST_ECONN,
                           "%s is a %s and not the socket of a daemon: give the path of a socket "
                           "(--socket, CISTERN_SOCKET), which is " CST_DEFAULT_SOCKET
                           " without them",
                           path, S_ISDIR(st.st_mode) ? "directory" : "file");
    }
    if (errnum == EACCES) {
        return not_permitted(path, err);
    }
    if (errnum == ENOENT || errnum == ENOTDIR || errnum == ECONNREFUSED) {
        return no_daemon(path, err);
    }
    return cst_err_errno(err, CST_ECONN, errnum, "no connection to a daemon at %s", path);
}

/* How often a limit is asked whether the wait is to stop. */
enum { ASK_MS = 100 };

int cstc_limit_left(const struct cstc_limit *limit)
{
    const uint64_t now = cst_clock_ns();
    const uint64_t ms = now < limit->end_ns ? (limit->end_ns - now) / 1000000 + 1 : 0;

    if (limit->stop == NULL) {
        return (int)ms;
    }
    return limit->stop() ? 0 : (int)(ms < ASK_MS ? ms : ASK_MS);
}

static struct cstc_limit usual_limit(void)
{
    return (struct cstc_limit){cst_clock_ns() + CSTC_CLIENT_HELLO_MS * UINT64_C(1000000), NULL};
}

/* Connect @sock. SO_SNDTIMEO limits how long connect() waits if the daemon's backlog is full. 0, or
 * the number of the error. */
static int connect_within(int sock, const struct sockaddr_un *addr, const struct cstc_limit *limit)
{
    int ms, rc = -1;

    errno = EAGAIN;
    while (rc != 0 && (errno == EINTR || errno == EAGAIN) && (ms = cstc_limit_left(limit)) > 0) {
        const struct timeval wait = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000L};

        (void)setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
        rc = connect(sock, (const struct sockaddr *)addr, sizeof *addr);
    }
    return rc == 0 ? 0 : errno;
}

static int dial(const char *path, int *out, const struct cstc_limit *limit, struct cst_err *err)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    size_t n = strlen(path);
    int sock, errnum;

    if (n == 0 || n >= sizeof addr.sun_path) {
        return cst_err_set(err, CST_EINVAL,
                           "socket path of %zu bytes, 1 to %zu are possible: name the socket "
                           "through a link to its directory (ln -s DIRECTORY /tmp/cistern)",
                           n, sizeof addr.sun_path - 1);
    }
    memcpy(addr.sun_path, path, n + 1);
    sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (sock < 0) {
        return cst_err_errno(err, CST_EIO, errno, "socket");
    }
    errnum = connect_within(sock, &addr, limit);
    if (errnum != 0) {
        (void)close(sock);
        return cannot_connect(path, errnum, err);
    }
    *out = sock;
    return CST_OK;
}

/* Exchange Hello and Welcome. A daemon without a common version of the protocol answers with
 * CST_EVERSION and a text of its own. */
static int hello(struct cst_client *client, const struct cstc_limit *limit, struct cst_err *err)
{
    Cistern__Hello msg = CISTERN__HELLO__INIT;
    const Cistern__Welcome *welcome;
    struct cstc_call call = {0};
    const uint64_t begin_ns = cst_clock_ns();
    int rc;

    msg.min_version = CSTC_PROTOCOL_VERSION;
    msg.max_version = CSTC_PROTOCOL_VERSION;
    msg.build = (char *)(uintptr_t) "libcistern " PACKAGE_VERSION;
    rc = cstc_call_start(client, &call, CISTERN__MSG_TYPE__MSG_HELLO, &msg.base,
                         CISTERN__MSG_TYPE__MSG_WELCOME, &cistern__welcome__descriptor, err);
    if (rc != CST_OK) {
        return rc;
    }
    while ((rc = cstc_call_result(&call, err)) == CST_EAGAIN) {
        const int left_ms = cstc_limit_left(limit);

        if (left_ms > 0) {
            (void)cstc_call_wait(client, left_ms, err);
        } else {
            /* Finishes the call, which is on this stack and linked into the client. */
            cstc_client_die(client, &(struct cst_err){.status = CST_ECONN});
            return cst_err_set(err, CST_ECONN, "daemon at %s: no welcome within %.0f ms",
                               client->path, (double)(cst_clock_ns() - begin_ns) * 1e-6);
        }
    }
    if (rc != CST_OK) {
        goto out;
    }
    welcome = (const Cistern__Welcome *)call.reply;
    if (welcome->version != CSTC_PROTOCOL_VERSION) {
        rc = cst_err_set(err, CST_EVERSION,
                         "daemon at %s speaks version %u of the protocol, this library version %d",
                         client->path, welcome->version, CSTC_PROTOCOL_VERSION);
    } else if (welcome->credits == 0 || welcome->max_batch == 0) {
        rc = cst_err_set(err, CST_EPROTO, "daemon at %s: welcome with %u credits, batches of %u",
                         client->path, welcome->credits, welcome->max_batch);
    }
    if (rc == CST_OK) {
        client->credits = welcome->credits;
        client->max_batch = welcome->max_batch;
        client->epoch = welcome->epoch;
        (void)snprintf(client->build, sizeof client->build, "%s",
                       welcome->build != NULL ? welcome->build : "unknown");
    }
out:
    cstc_call_reset(&call);
    return rc;
}

int cstc_client_reopen(struct cst_client *client, struct cst_err *err)
{
    const struct cstc_limit limit = usual_limit();
    int rc = dial(client->path, &client->sock, &limit, err);

    if (rc != CST_OK) {
        return rc;
    }
    client->dead = client->farewell = (struct cst_err){0};
    client->credits = 1; /* For the Hello; Welcome has the number. */
    rc = cstc_wake_add_socket(&client->wake, client->sock, err);
    rc = rc == CST_OK ? hello(client, &limit, err) : rc;
    if (rc != CST_OK) {
        cstc_client_die(client, err);
    }
    return rc;
}

int cst_connect(struct cst_client **out, const char *path, struct cst_err *err)
{
    const struct cstc_limit limit = usual_limit();

    return cstc_client_connect(out, path, &limit, err);
}

int cstc_client_connect(struct cst_client **out, const char *path, const struct cstc_limit *limit,
                        struct cst_err *err)
{
    struct cst_client *client;
    int rc, sock = -1;

    if (path == NULL) {
        /* A privileged program must not follow the environment of its user. */
        path = secure_getenv("CISTERN_SOCKET");
    }
    if (path == NULL || path[0] == '\0') {
        path = CST_DEFAULT_SOCKET;
    }
    rc = dial(path, &sock, limit, err);
    if (rc != CST_OK) {
        return rc;
    }
    client = calloc(1, sizeof *client);
    if (client == NULL) {
        (void)close(sock);
        return cst_err_set(err, CST_ENOMEM, "no memory for a connection");
    }
    client->sock = sock;
    client->wake.epoll = client->wake.timer = -1;
    client->watched = -1;
    (void)snprintf(client->path, sizeof client->path, "%s", path);
    client->credits = 1; /* For the Hello; Welcome has the number. */
    client->queue_end = &client->queue;
    cstc_fork_register(client);
    rc = cstc_wake_open(&client->wake, sock, err);
    rc = rc == CST_OK ? hello(client, limit, err) : rc;
    if (rc != CST_OK) {
        cst_disconnect(client);
        return rc;
    }
    *out = client;
    return CST_OK;
}

void cst_disconnect(struct cst_client *client)
{
    struct cst_err cause;

    if (client == NULL) {
        return;
    }
    if (client->job != NULL && !client->forked) {
        /* Wait for the device first: when the connection is closed, the daemon may give the blocks
         * to another worker. */
        (void)cstc_device_finish(client->job, NULL);
    }
    cstc_fork_forget(client);
    (void)cst_err_set(&cause, CST_ECONN, "disconnected");
    /* Comes before the job is freed, because the job contains calls that are linked into the
     * client. */
    cstc_client_die(client, &cause);
    if (client->job != NULL) {
        client->free_job(client->job);
    }
    if (!client->forked) { /* A forked child has neither the mapping nor the files of a save. */
        cstc_task_close(client);
        cstc_segment_unmap(&client->staging);
    }
    cstc_wake_close(&client->wake);
    free(client);
}

int cst_client_fd(const struct cst_client *client)
{
    int rc = cstc_client_check(client, NULL);

    /* The descriptor also tells when to try again to connect. */
    return rc == CST_OK || client->reconnects || (rc == CST_EPEERDIED && client->returns)
               ? client->wake.epoll
               : rc;
}

bool cst_client_is_pending(const struct cst_client *client)
{
    return client->pending;
}

int cst_ping(struct cst_client *client, uint64_t *ns_out, struct cst_err *err)
{
    struct cstc_call call = {0};
    uint64_t from = cst_clock_ns();
    int rc = cstc_call_sync(client, &call, CISTERN__MSG_TYPE__MSG_PING, NULL,
                            CISTERN__MSG_TYPE__MSG_PONG, NULL, err);

    if (rc != CST_OK) {
        return rc;
    }
    if (ns_out != NULL) {
        *ns_out = cst_clock_ns() - from;
    }
    cstc_call_reset(&call);
    return CST_OK;
}
