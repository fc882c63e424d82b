/* SPDX-License-Identifier: Apache-2.0 */
/* notify_run: a service manager for tests. Runs PROGRAM with a NOTIFY_SOCKET and prints the
 * messages that arrive, one line each: first PID=n; then READY_MS=milliseconds since the start,
 * followed by READY=1, STATUS=..., WATCHDOG=1, ...; and at the end EXIT=status or SIGNAL=number.
 * SIGTERM and SIGINT are passed on. Exits with PROGRAM's status (128 + number after a signal).
 *
 * With --keep it has a store of descriptors, as systemd has for a service. If PROGRAM is killed, or
 * ends after SIGUSR1, which it gets as SIGTERM, it is started again with the descriptors.
 *
 *   notify_run [--watchdog USEC] [--keep] PROGRAM [ARG]... */
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <poll.h>
#include <signal.h>
#include <stdalign.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
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

enum { MAX_STORED = 4096, MAX_FDS = 253 };

/* The store: descriptors with their names. */
static struct {
    char name[64];
    int fd;
} stored[MAX_STORED];
static unsigned n_stored;
static bool keep; /* --keep */

/* Pass the stored descriptors on, as sd_listen_fds(3) expects them. */
static void pass_stored(void)
{
    static char names[MAX_STORED * sizeof stored->name];
    char text[16];

    for (unsigned i = 0; i < n_stored; i++) { /* First out of the way of the numbers from 3 on. */
        stored[i].fd = fcntl(stored[i].fd, F_DUPFD, 3 + MAX_STORED);
    }
    for (unsigned i = 0; i < n_stored; i++) {
        (void)dup2(stored[i].fd, 3 + (int)i);
        (void)close(stored[i].fd);
        (void)strcat(strcat(names, i > 0 ? ":" : ""), stored[i].name);
    }
    (void)snprintf(text, sizeof text, "%d", (int)getpid());
    (void)setenv("LISTEN_PID", text, 1);
    (void)snprintf(text, sizeof text, "%u", n_stored);
    (void)setenv("LISTEN_FDS", text, 1);
    (void)setenv("LISTEN_FDNAMES", names, 1);
}

static _Noreturn void run_child(char **argv, const char *socket_name, const char *watchdog_usec,
                                const sigset_t *old_mask)
{
    char pid[16];

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)sigprocmask(SIG_SETMASK, old_mask, NULL);
    if (keep) {
        (void)setenv("FDSTORE", "4096", 1);
        if (n_stored > 0) {
            pass_stored();
        }
    }
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

/* The name in a message about the store. */
static void read_name(const char *text, char out[static 64])
{
    const char *at = strstr(text, "FDNAME=");

    (void)snprintf(out, 64, "%.*s", at != NULL ? (int)strcspn(at + 7, "\n") : 0,
                   at != NULL ? at + 7 : "");
}

/* True if the open file @fd is in the store already. systemd compares in the same way. */
static bool is_stored(int fd)
{
    for (unsigned i = 0; i < n_stored; i++) {
        if (syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, fd, stored[i].fd) == 0) {
            return true;
        }
    }
    return false;
}

static void store(const char *text, const int *fds, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        if (n_stored == MAX_STORED || is_stored(fds[i])) {
            (void)close(fds[i]);
            continue;
        }
        read_name(text, stored[n_stored].name);
        stored[n_stored++].fd = fds[i];
    }
}

static void remove_stored(const char *text)
{
    char name[64];
    unsigned n = 0;

    read_name(text, name);
    for (unsigned i = 0; i < n_stored; i++) {
        if (strcmp(stored[i].name, name) == 0) {
            (void)close(stored[i].fd);
        } else {
            stored[n++] = stored[i];
        }
    }
    n_stored = n;
}

/* Receive a datagram and its descriptors. Returns its length; 0: there is none. */
static ssize_t receive(int fd, char *text, size_t size, int *fds, unsigned *n_fds)
{
    alignas(struct cmsghdr) char control[CMSG_SPACE(MAX_FDS * sizeof(int))];
    struct iovec part = {.iov_base = text, .iov_len = size - 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof control};
    ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    const struct cmsghdr *header = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;

    *n_fds = 0;
    if (header != NULL && header->cmsg_type == SCM_RIGHTS) {
        *n_fds = (unsigned)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(header), *n_fds * sizeof(int));
    }
    text[n > 0 ? n : 0] = '\0';
    return n > 0 ? n : 0;
}

/* Print one datagram, which may contain several lines. */
static void print_message(int fd, double began)
{
    char text[4096];
    int fds[MAX_FDS];
    unsigned n_fds;
    char *save = NULL;

    if (receive(fd, text, sizeof text, fds, &n_fds) == 0) {
        return;
    }
    if (strstr(text, "FDSTOREREMOVE=1") != NULL) {
        remove_stored(text);
    } else {
        store(text, fds, n_fds);
    }
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
static bool again; /* The child is ended in order to be started again. */

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
                again = info.ssi_signo == SIGUSR1;
                (void)kill(child, again ? SIGTERM : (int)info.ssi_signo);
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
    if (argc > 1 && strcmp(argv[0], "--keep") == 0) {
        keep = true;
        argv++;
        argc--;
    }
    if (argc < 1) {
        (void)fputs("usage: notify_run [--watchdog USEC] [--keep] PROGRAM [ARG]...\n", stderr);
        return 125;
    }
    (void)sigemptyset(&mask);
    (void)sigaddset(&mask, SIGTERM);
    (void)sigaddset(&mask, SIGINT);
    (void)sigaddset(&mask, SIGUSR1);
    (void)sigprocmask(SIG_BLOCK, &mask, &old_mask);
    signals = signalfd(-1, &mask, SFD_CLOEXEC);
    fd = open_socket(socket_name);
    if (signals < 0) {
        perror("notify_run");
        return 125;
    }
    do {
        again = false;
        began = now_ms();
        child = fork();
        if (child == 0) {
            run_child(argv, socket_name, watchdog_usec, &old_mask);
        }
        if (child < 0) {
            perror("notify_run");
            return 125;
        }
        (void)printf("PID=%d\n", (int)child);
        (void)fflush(stdout);
        status = serve(child, fd, signals, began);
        (void)printf(WIFSIGNALED(status) ? "SIGNAL=%d\n" : "EXIT=%d\n",
                     WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        (void)fflush(stdout);
    } while (keep && (again || WIFSIGNALED(status)));
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
