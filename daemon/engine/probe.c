/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/probe.h"

#include "daemon/engine/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* A driver that starts cold can take many seconds. */
enum { MAX_ANSWER = 16 << 10, PATIENCE_MS = 60000 };

struct cstd_probe {
    cstd_probe_fn fn; /* NULL: the probe was cancelled. */
    void *arg;        /* Argument of fn. */
    pid_t pid;
    int pidfd;
    int fd;             /* The daemon's end of the program's standard output. */
    unsigned n_handles; /* Number of uv handles that are not closed yet. */
    uv_poll_t pid_poll;
    uv_poll_t fd_poll;
    uv_timer_t patience;
    size_t n;                  /* Number of bytes in text. */
    bool too_long;             /* The answer was longer than text. */
    bool late;                 /* The program was killed because it took too long. */
    char text[MAX_ANSWER + 1]; /* The answer, and a NUL. */
};

static void on_handle_closed(uv_handle_t *handle)
{
    struct cstd_probe *probe = handle->data;

    if (--probe->n_handles == 0) {
        free(probe);
    }
}

/* Read some bytes of the answer; bytes beyond MAX_ANSWER are read and dropped, for the program not
 * to block. Returns what read(2) returns. */
static ssize_t read_some(struct cstd_probe *probe)
{
    char more[256];
    bool full = probe->n == MAX_ANSWER;
    ssize_t n = full ? read(probe->fd, more, sizeof more)
                     : read(probe->fd, probe->text + probe->n, MAX_ANSWER - probe->n);

    if (n > 0) {
        probe->n += full ? 0 : (size_t)n;
        probe->too_long = probe->too_long || full;
    }
    return n;
}

static void on_fd(uv_poll_t *poll, int status, int events)
{
    (void)events;
    if (status < 0 || read_some(poll->data) == 0) {
        (void)uv_poll_stop(poll);
    }
}

static void on_patience(uv_timer_t *timer)
{
    struct cstd_probe *probe = timer->data;

    probe->late = true;
    (void)kill(probe->pid, SIGKILL);
}

/* Judge how the program ended. CST_OK: it gave an answer. */
static int judge(const struct cstd_probe *probe, const siginfo_t *info, struct cst_err *err)
{
    if (probe->late) {
        return cst_err_set(err, CST_ETIMEDOUT, "no answer for %d s", PATIENCE_MS / 1000);
    }
    if (info->si_code != CLD_EXITED) {
        return cst_err_set(err, CST_EENGINE, "killed by signal %d (%s)", info->si_status,
                           strsignal(info->si_status));
    }
    if (probe->too_long) {
        return cst_err_set(err, CST_EPROTO, "an answer of more than %d bytes", MAX_ANSWER);
    }
    if (probe->n == 0) { /* The exit status does not matter if the program wrote an answer. */
        return cst_err_set(err, CST_EENGINE, "exited with status %d and printed no error",
                           info->si_status);
    }
    return CST_OK;
}

static void on_pid(uv_poll_t *poll, int status, int events)
{
    struct cstd_probe *probe = poll->data;
    siginfo_t info = {.si_code = CLD_EXITED};
    struct cst_err err = {0};

    (void)status;
    (void)events;
    if (waitid(P_PIDFD, (id_t)probe->pidfd, &info, WEXITED | WNOHANG) == 0 && info.si_pid == 0) {
        return; /* The process has not ended yet. */
    }
    while (read_some(probe) > 0) {
    }
    (void)uv_poll_stop(&probe->pid_poll);
    (void)uv_poll_stop(&probe->fd_poll);
    uv_close((uv_handle_t *)&probe->pid_poll, on_handle_closed);
    uv_close((uv_handle_t *)&probe->fd_poll, on_handle_closed);
    uv_close((uv_handle_t *)&probe->patience, on_handle_closed);
    (void)close(probe->pidfd);
    (void)close(probe->fd);
    probe->text[probe->n] = '\0';
    if (probe->fn != NULL) {
        bool good = judge(probe, &info, &err) == CST_OK;

        probe->fn(probe->arg, probe->text, probe->n, good ? NULL : &err);
    }
}

/* On failure the process has ended, its descriptors are closed, and @probe frees itself. */
static int watch(struct cstd_probe *probe, uv_loop_t *loop, struct cst_err *err)
{
    int rc;

    (void)uv_timer_init(loop, &probe->patience);
    probe->pid_poll.data = probe->fd_poll.data = probe->patience.data = probe;
    probe->n_handles = 1;
    rc = uv_poll_init(loop, &probe->pid_poll, probe->pidfd);
    if (rc == 0) {
        probe->n_handles++;
        rc = uv_poll_init(loop, &probe->fd_poll, probe->fd);
        if (rc != 0) {
            uv_close((uv_handle_t *)&probe->pid_poll, on_handle_closed);
        }
    }
    if (rc != 0) {
        uv_close((uv_handle_t *)&probe->patience, on_handle_closed);
        cstd_spawn_undo(probe->pid, probe->pidfd);
        (void)close(probe->fd);
        return cst_err_set(err, CST_ENOMEM, "a probe cannot be watched: %s", uv_strerror(rc));
    }
    probe->n_handles++;
    (void)uv_poll_start(&probe->pid_poll, UV_READABLE, on_pid);
    (void)uv_poll_start(&probe->fd_poll, UV_READABLE, on_fd);
    (void)uv_timer_start(&probe->patience, on_patience, PATIENCE_MS, 0);
    return CST_OK;
}

int cstd_probe_start(struct cstd_probe **out, uv_loop_t *loop, const char *program,
                     cstd_probe_fn fn, void *arg, struct cst_err *err)
{
    struct cstd_probe *probe = calloc(1, sizeof *probe);
    char *argv[] = {(char *)(uintptr_t)program, (char *)(uintptr_t) "--probe", NULL};
    int ends[2], rc;

    if (probe == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a probe");
    }
    if (pipe2(ends, O_CLOEXEC) != 0) {
        rc = cst_err_errno(err, CST_EENGINE, errno, "pipe");
        goto err_after_alloc;
    }
    rc = cstd_spawn(argv, ends[1], STDOUT_FILENO, &probe->pid, &probe->pidfd, err);
    (void)close(ends[1]);
    if (rc != CST_OK) {
        goto err_after_pipe;
    }
    (void)fcntl(ends[0], F_SETFL, O_NONBLOCK);
    probe->fd = ends[0];
    probe->fn = fn;
    probe->arg = arg;
    rc = watch(probe, loop, err);
    if (rc == CST_OK) {
        *out = probe;
    }
    return rc;

err_after_pipe:
    (void)close(ends[0]);
err_after_alloc:
    free(probe);
    return rc;
}

void cstd_probe_cancel(struct cstd_probe *probe)
{
    probe->fn = NULL;
    /* The process has not been reaped, hence the pid is still its own. */
    (void)kill(probe->pid, SIGKILL);
}
