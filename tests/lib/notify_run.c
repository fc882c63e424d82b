/* SPDX-License-Identifier: Apache-2.0 */
/* notify_run: a service manager for tests. Runs PROGRAM with a NOTIFY_SOCKET and prints the
 * messages that arrive, one line each: first PID=n; then READY_MS=milliseconds since the start,
 * followed by READY=1, STATUS=..., WATCHDOG=1, ...; and at the end EXIT=status or SIGNAL=number.
 * SIGTERM and SIGINT are passed on. Exits with PROGRAM's status (128 + number after a signal).
 *
 *   notify_run [--watchdog USEC] PROGRAM [ARG]... */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* Open a datagram socket with an abstract name that the kernel chooses. @name receives the name in
 * the form of NOTIFY_SOCKET. */
static int open_socket(char name[static 64])
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t n = sizeof address;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address.sun_family) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &n) != 0) {
        perror("notify_run: socket");
        exit(125);
    }
    (void)snprintf(name, 64, "@%.*s", (int)(n - sizeof address.sun_family - 1),
                   address.sun_path + 1);
    return fd;
}

static _Noreturn void run_child(char **argv, const char *socket_name, const char *watchdog_usec,
                                const sigset_t *old_mask)
{
    char pid[16];

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)sigprocmask(SIG_SETMASK, old_mask, NULL);
    (void)setenv("NOTIFY_SOCKET", socket_name, 1);
    if (watchdog_usec != NULL) {
        (void)snprintf(pid, sizeof pid, "%d", (int)getpid());
        (void)setenv("WATCHDOG_USEC", watchdog_usec, 1);
        (void)setenv("WATCHDOG_PID", pid, 1);
    }
    (void)execvp(argv[0], argv);
    (void)fprintf(stderr, "notify_run: %s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

/* Print one datagram, which may contain several lines. */
static void print_message(int fd, double began)
{
    char text[4096];
    ssize_t n = recv(fd, text, sizeof text - 1, MSG_DONTWAIT);
    char *save = NULL;

    if (n <= 0) {
        return;
    }
    text[n] = '\0';
    for (char *line = strtok_r(text, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        if (strcmp(line, "READY=1") == 0) {
            (void)printf("READY_MS=%.3f\n", now_ms() - began);
        }
        (void)puts(line);
    }
    (void)fflush(stdout);
}

/* Print messages and pass on signals until the child has ended and all its messages are printed. */
static int serve(pid_t child, int fd, int signals, double began)
{
    int pidfd = (int)syscall(SYS_pidfd_open, child, 0);
    int status = 0;
    struct pollfd fds[] = {{.fd = fd, .events = POLLIN},
                           {.fd = signals, .events = POLLIN},
                           {.fd = pidfd, .events = POLLIN}};

    while (poll(fds, 3, -1) >= 0 || errno == EINTR) {
        if ((fds[0].revents & POLLIN) != 0) {
            print_message(fd, began);
        } else if ((fds[1].revents & POLLIN) != 0) {
            struct signalfd_siginfo info;

            if (read(signals, &info, sizeof info) == (ssize_t)sizeof info) {
                (void)kill(child, (int)info.ssi_signo);
            }
        } else if ((fds[2].revents & POLLIN) != 0) {
            break;
        }
    }
    (void)waitpid(child, &status, 0);
    return status;
}

int main(int argc, char **argv)
{
    const char *watchdog_usec = NULL;
    char socket_name[64];
    sigset_t mask, old_mask;
    int fd, signals, status;
    double began;
    pid_t child;

    argv++;
    argc--;
    if (argc > 2 && strcmp(argv[0], "--watchdog") == 0) {
        watchdog_usec = argv[1];
        argv += 2;
        argc -= 2;
    }
    if (argc < 1) {
        (void)fputs("usage: notify_run [--watchdog USEC] PROGRAM [ARG]...\n", stderr);
        return 125;
    }
    (void)sigemptyset(&mask);
    (void)sigaddset(&mask, SIGTERM);
    (void)sigaddset(&mask, SIGINT);
    (void)sigprocmask(SIG_BLOCK, &mask, &old_mask);
    signals = signalfd(-1, &mask, SFD_CLOEXEC);
    fd = open_socket(socket_name);
    began = now_ms();
    child = fork();
    if (child == 0) {
        run_child(argv, socket_name, watchdog_usec, &old_mask);
    }
    if (child < 0 || signals < 0) {
        perror("notify_run");
        return 125;
    }
    (void)printf("PID=%d\n", (int)child);
    (void)fflush(stdout);
    status = serve(child, fd, signals, began);
    if (WIFSIGNALED(status)) {
        (void)printf("SIGNAL=%d\n", WTERMSIG(status));
        return 128 + WTERMSIG(status);
    }
    (void)printf("EXIT=%d\n", WEXITSTATUS(status));
    return WEXITSTATUS(status);
}
