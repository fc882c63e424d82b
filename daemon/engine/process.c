/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/process.h"

#include "daemon/base/log.h"
#include "daemon/session/outbox.h"
#include "daemon/engine/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ENGINE_FD = 3 };

struct cstd_process {
    const struct cstd_process_ops *ops; /* belongs to the owner */
    void *arg;                          /* Argument of ops: the owner. */
    pid_t pid;
    int pidfd;
    int sock;           /* -1: the daemon's end is closed. */
    bool wants_write;   /* UV_WRITABLE is being polled. */
    bool exited;        /* The process is reaped, and on_exit was called, or it is forgotten. */
    unsigned n_handles; /* Number of uv handles that are not closed yet. */
    uv_poll_t sock_poll;
    uv_poll_t pid_poll;
    uv_timer_t retry;          /* Runs while frames wait for something other than the socket. */
    struct cstd_outbox outbox; /* Frames that cstd_process_send could not send yet. */
    struct cst_frame_buf in;   /* Buffer for one message. */
};

static void on_handle_closed(uv_handle_t *handle)
{
    struct cstd_process *process = handle->data;

    if (--process->n_handles == 0 && process->exited) {
        free(process);
    }
}

static void close_sock(struct cstd_process *process)
{
    if (process->sock < 0) {
        return;
    }
    /* Stop before close: epoll must forget the descriptor first. */
    (void)uv_poll_stop(&process->sock_poll);
    (void)uv_timer_stop(&process->retry);
    uv_close((uv_handle_t *)&process->sock_poll, on_handle_closed);
    uv_close((uv_handle_t *)&process->retry, on_handle_closed);
    (void)close(process->sock);
    process->sock = -1;
    cstd_outbox_close(&process->outbox);
}

/* Read one message and pass it on. CST_OK; CST_EAGAIN: there is none; CST_ECONN and CST_EPROTO: the
 * socket is unusable. */
static int read_one(struct cstd_process *process)
{
    struct cst_frame frame;
    int rc = cst_frame_recv(process->sock, MSG_DONTWAIT, &process->in, &frame, NULL);

    if (rc == CST_OK) {
        process->ops->on_frame(process->arg, &frame);
        cst_frame_close_fds(&frame);
    }
    return rc;
}

static void on_sock(uv_poll_t *poll, int status, int events);

static void poll_sock(struct cstd_process *process, bool write)
{
    process->wants_write = write;
    (void)uv_poll_start(&process->sock_poll, write ? UV_READABLE | UV_WRITABLE : UV_READABLE,
                        on_sock);
}

static void flush(struct cstd_process *process);

static void on_retry(uv_timer_t *timer)
{
    flush(timer->data);
}

/* Wait to send: for the socket or, with @retry, for some time. If the daemon or the machine is
 * short of something, the socket is always writable, and polling it would keep the loop busy. */
static void await(struct cstd_process *process, bool retry)
{
    if (retry) {
        (void)uv_timer_start(&process->retry, on_retry, CSTD_OUTBOX_RETRY_MS, 0);
    }
    if (process->wants_write != !retry) {
        poll_sock(process, !retry);
    }
}

/* Kill an engine to which a message cannot be sent. An engine that missed a message cannot
 * continue. */
static int give_up(struct cstd_process *process, int rc, const struct cst_err *err)
{
    if (rc != CST_ECONN) {
        cstd_log(CSTD_LOG_ERROR, "pid %d: killed, because a message cannot be sent to it: %s",
                 (int)process->pid, err->text);
    }
    cstd_process_kill(process);
    return CST_EENGINE;
}

static void flush(struct cstd_process *process)
{
    struct cst_err err = {0};
    int rc = cstd_outbox_flush(&process->outbox, process->sock, NULL, &err);

    if (rc == CST_EAGAIN) {
        await(process, process->outbox.retry);
    } else if (rc == CST_OK) {
        poll_sock(process, false);
        process->ops->on_writable(process->arg);
    } else {
        (void)give_up(process, rc, &err);
    }
}

static void on_sock(uv_poll_t *poll, int status, int events)
{
    struct cstd_process *process = poll->data;
    int rc = CST_EAGAIN;

    if (status == 0 && (events & UV_READABLE) != 0) {
        rc = read_one(process);
    }
    if (process->sock < 0) {
        return; /* on_frame stopped the process. */
    }
    if (status < 0 || rc == CST_ECONN || rc == CST_EPROTO) {
        /* The process is dying or breaks the protocol. Kill it, to be sure, and wait for the pidfd;
         * on_pid then reads the remaining messages. */
        (void)uv_poll_stop(poll);
        cstd_process_kill(process);
        return;
    }
    if ((events & UV_WRITABLE) != 0) {
        flush(process);
    }
}

/* Deliver what the process sent before it died. A connection reset is reported once, before the
 * messages that remain; hence reading ends after two failures in a row. */
static void drain(struct cstd_process *process)
{
    unsigned n_failed = 0;

    while (n_failed < 2 && process->sock >= 0) {
        n_failed = read_one(process) == CST_OK ? 0 : n_failed + 1;
    }
}

static void describe(const siginfo_t *info, char *text, size_t n)
{
    if (info->si_code == CLD_EXITED) {
        (void)snprintf(text, n, "exited with status %d", info->si_status);
    } else {
        (void)snprintf(text, n, "killed by signal %d (%s)", info->si_status,
                       strsignal(info->si_status));
    }
}

/* Stop to watch for the end of the process. @process frees itself when its handles are closed. */
static void close_pid(struct cstd_process *process)
{
    (void)uv_poll_stop(&process->pid_poll);
    uv_close((uv_handle_t *)&process->pid_poll, on_handle_closed);
    (void)close(process->pidfd);
    close_sock(process);
    process->exited = true;
}

static void on_pid(uv_poll_t *poll, int status, int events)
{
    struct cstd_process *process = poll->data;
    siginfo_t info = {.si_code = CLD_EXITED};
    char how[80];

    (void)status;
    (void)events;
    if (waitid(P_PIDFD, (id_t)process->pidfd, &info, WEXITED | WNOHANG) == 0 && info.si_pid == 0) {
        return; /* The process has not ended yet. */
    }
    drain(process);
    describe(&info, how, sizeof how);
    close_pid(process);
    process->ops->on_exit(process->arg, how);
}

/* Make a socketpair whose second end is not ENGINE_FD: dup2 of a descriptor onto itself would keep
 * CLOEXEC. */
static int make_sockets(int out[2], struct cst_err *err)
{
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, out) != 0) {
        return cst_err_errno(err, CST_EENGINE, errno, "socketpair");
    }
    if (out[1] == ENGINE_FD) {
        int fd = fcntl(out[1], F_DUPFD_CLOEXEC, ENGINE_FD + 1);

        if (fd < 0) {
            int saved = errno;

            (void)close(out[0]);
            (void)close(out[1]);
            return cst_err_errno(err, CST_EENGINE, saved, "dup");
        }
        (void)close(out[1]);
        out[1] = fd;
    }
    return CST_OK;
}

/* Make the engine's end blocking, because engines expect an ordinary blocking socket. O_NONBLOCK
 * belongs to one end, not to the pair. */
static void make_blocking(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    (void)fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
}

/* On failure the process has ended, its descriptors are closed, and @process frees itself. */
static int watch(struct cstd_process *process, uv_loop_t *loop, struct cst_err *err)
{
    int rc;

    (void)uv_timer_init(loop, &process->retry);
    process->sock_poll.data = process->pid_poll.data = process->retry.data = process;
    process->n_handles = 1;
    rc = uv_poll_init(loop, &process->pid_poll, process->pidfd);
    if (rc == 0) {
        process->n_handles++;
        rc = uv_poll_init(loop, &process->sock_poll, process->sock);
        if (rc != 0) {
            uv_close((uv_handle_t *)&process->pid_poll, on_handle_closed);
        }
    }
    if (rc != 0) {
        uv_close((uv_handle_t *)&process->retry, on_handle_closed);
        cstd_spawn_undo(process->pid, process->pidfd);
        process->exited = true;
        (void)close(process->sock);
        return cst_err_set(err, CST_ENOMEM, "an engine cannot be watched: %s", uv_strerror(rc));
    }
    process->n_handles++;
    poll_sock(process, false);
    (void)uv_poll_start(&process->pid_poll, UV_READABLE, on_pid);
    return CST_OK;
}

int cstd_process_start(struct cstd_process **out, uv_loop_t *loop, char *const *argv,
                       const struct cstd_process_ops *ops, void *arg, struct cst_err *err)
{
    struct cstd_process *process = calloc(1, sizeof *process);
    int sockets[2], rc;

    if (process == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for an engine");
    }
    rc = make_sockets(sockets, err);
    if (rc != CST_OK) {
        goto err_after_alloc;
    }
    make_blocking(sockets[1]);
    rc = cstd_spawn(argv, sockets[1], ENGINE_FD, &process->pid, &process->pidfd, err);
    (void)close(sockets[1]);
    if (rc != CST_OK) {
        goto err_after_sockets;
    }
    process->ops = ops;
    process->arg = arg;
    process->sock = sockets[0];
    cstd_outbox_init(&process->outbox, NULL);
    rc = watch(process, loop, err);
    if (rc == CST_OK) {
        *out = process;
    }
    return rc;

err_after_sockets:
    (void)close(sockets[0]);
err_after_alloc:
    free(process);
    return rc;
}

pid_t cstd_process_pid(const struct cstd_process *process)
{
    return process->pid;
}

int cstd_process_send(struct cstd_process *process, const struct cst_frame *frame)
{
    struct cst_err err = {0};
    int rc;

    if (process->sock < 0) {
        return CST_EENGINE;
    }
    rc = cstd_outbox_send(&process->outbox, process->sock, frame, &err);
    if (rc == CST_EAGAIN) {
        await(process, process->outbox.retry);
    }
    return rc == CST_OK || rc == CST_EAGAIN ? CST_OK : give_up(process, rc, &err);
}

int cstd_process_try_send(struct cstd_process *process, const struct cst_frame *frame)
{
    struct cst_err err = {0};
    int rc = CST_EAGAIN;

    if (process->sock < 0) {
        return CST_EENGINE;
    }
    if (!TAILQ_EMPTY(&process->outbox.items)) {
        return CST_EAGAIN; /* on_writable is called when the waiting frames are sent. */
    }
    rc = cst_frame_send(process->sock, MSG_DONTWAIT, frame, &err);
    if (rc == CST_EAGAIN || rc == CST_ENOMEM) {
        await(process, rc == CST_ENOMEM);
        return CST_EAGAIN;
    }
    return rc == CST_OK ? CST_OK : give_up(process, rc, &err);
}

void cstd_process_stop(struct cstd_process *process)
{
    close_sock(process);
}

void cstd_process_kill(struct cstd_process *process)
{
    /* Not by its pid, which can be another's if the process was reaped. */
    (void)pidfd_send_signal(process->pidfd, SIGKILL, NULL, 0);
}

void cstd_process_abandon(struct cstd_process *process)
{
    cstd_process_kill(process);
    close_sock(process);
    uv_unref((uv_handle_t *)&process->pid_poll);
}

void cstd_process_forget(struct cstd_process *process)
{
    close_pid(process);
}
