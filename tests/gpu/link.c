/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/link.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ANSWER_MS 60000 /* the slowest requests take seconds */

extern char **environ;

int gpu_link_start(struct gpu_link *link, const char *role, struct cst_err *err)
{
    char *argv[] = {"experiments", "--role", (char *)(uintptr_t)role, NULL};
    posix_spawn_file_actions_t actions;
    int pair[2], rc;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        return cst_err_errno(err, CST_EIO, errno, "socketpair");
    }
    if (pair[1] == GPU_LINK_FD) { /* dup2 onto itself would keep the close-on-exec flag */
        (void)fcntl(pair[1], F_SETFD, 0);
    }
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_adddup2(&actions, pair[1], GPU_LINK_FD);
    rc = posix_spawn(&link->pid, "/proc/self/exe", &actions, NULL, argv, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)close(pair[1]);
    if (rc != 0) {
        (void)close(pair[0]);
        return cst_err_errno(err, CST_EIO, rc, "starting role %s", role);
    }
    link->sock = pair[0];
    return CST_OK;
}

int gpu_link_send(int sock, const struct gpu_message *message, int fd, struct cst_err *err)
{
    struct iovec iov = {.iov_base = (void *)(uintptr_t)message, .iov_len = sizeof *message};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (fd >= 0) {
        struct cmsghdr *cmsg;

        msg.msg_control = control.bytes;
        msg.msg_controllen = sizeof control.bytes;
        cmsg = CMSG_FIRSTHDR(&msg);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(cmsg), &fd, sizeof fd);
    }
    if (sendmsg(sock, &msg, MSG_NOSIGNAL) != (ssize_t)sizeof *message) {
        return cst_err_errno(err, CST_ECONN, errno, "sendmsg");
    }
    return CST_OK;
}

int gpu_link_recv(int sock, int timeout_ms, struct gpu_message *message, int *fd,
                  struct cst_err *err)
{
    struct iovec iov = {.iov_base = message, .iov_len = sizeof *message};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof control.bytes};
    struct pollfd p = {.fd = sock, .events = POLLIN};
    struct cmsghdr *cmsg;
    int came = -1, n = poll(&p, 1, timeout_ms);
    ssize_t bytes;

    if (n == 0) {
        return cst_err_set(err, CST_ETIMEDOUT, "no answer within %d ms", timeout_ms);
    }
    bytes = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
    if (bytes != (ssize_t)sizeof *message) {
        return cst_err_set(err, CST_ECONN, "the other process is gone (%zd bytes)", bytes);
    }
    cmsg = CMSG_FIRSTHDR(&msg);
    if (cmsg != NULL && cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_RIGHTS) {
        memcpy(&came, CMSG_DATA(cmsg), sizeof came);
    }
    if (fd != NULL) {
        *fd = came;
    } else if (came >= 0) {
        (void)close(came);
    }
    message->text[sizeof message->text - 1] = '\0';
    return message->status == 0 ? CST_OK : cst_err_set(err, message->status, "%s", message->text);
}

int gpu_link_ask(struct gpu_link *link, uint32_t what, double value, int fd,
                 struct gpu_message *answer, int *out_fd, struct cst_err *err)
{
    struct gpu_message message = {.what = what, .values = {value}};
    int rc = gpu_link_send(link->sock, &message, fd, err);

    return rc == CST_OK ? gpu_link_recv(link->sock, ANSWER_MS, answer, out_fd, err) : rc;
}

void gpu_link_close(struct gpu_link *link)
{
    if (link->pid > 0) {
        (void)close(link->sock);
        (void)waitpid(link->pid, NULL, 0);
        link->pid = 0;
    }
}

int gpu_link_kill(struct gpu_link *link, struct cst_err *err)
{
    int fd = (int)syscall(SYS_pidfd_open, link->pid, 0);
    struct pollfd p = {.fd = fd, .events = POLLIN};

    if (fd < 0) {
        return cst_err_errno(err, CST_EIO, errno, "pidfd_open");
    }
    (void)kill(link->pid, SIGKILL);
    while (poll(&p, 1, -1) < 0 && errno == EINTR) {
    }
    (void)close(fd);
    return CST_OK;
}
