/* SPDX-License-Identifier: Apache-2.0 */
/* cistern-rank PROGRAM [ARGUMENT]...: runs one rank for `cistern run`, which starts one such
 * process for each rank. Whatever happens to `cistern run`, no process of the rank is left.
 *
 *   cistern run --fd 0--> cistern-rank --fork--> PROGRAM (a process group of its own)
 *                                                   +--> its children, grandchildren, ...
 *
 * - SIGINT, SIGTERM and SIGHUP are passed on to the process group of PROGRAM.
 * - When PROGRAM has ended, what it left behind is killed, and this process ends as PROGRAM did.
 * - File descriptor 0 is a pipe from `cistern run`. When it ends, because `cistern run` closed it
 *   or is gone, all processes of the rank are killed.
 *
 * Processes that leave the process group are found, too: this process adopts orphans of the rank,
 * so that in the end all of them are its own children. PROGRAM reads /dev/null. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CANNOT_START = 126, NOT_FOUND = 127 }; /* Exit statuses, as shells have them. */

/* Become PROGRAM. */
_Noreturn static void become(char **argv, pid_t guard, const sigset_t *mask)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC), error;

    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != guard || null < 0 || dup2(null, STDIN_FILENO) < 0) {
        _exit(CANNOT_START);
    }
    (void)sigprocmask(SIG_SETMASK, mask, NULL);
    (void)execvp(argv[0], argv);
    error = errno;
    (void)fprintf(stderr, "cistern: cannot start %s: %s\n", argv[0], strerror(error));
    _exit(error == ENOENT ? NOT_FOUND : CANNOT_START);
}

static bool has_children(void)
{
    siginfo_t info;

    return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
}

/* Kill the children of this process. Those that are orphans of PROGRAM's children are among them.
 * Returns false if the system does not tell which they are. */
static bool kill_children(void)
{
    FILE *list = fopen("/proc/thread-self/children", "re");
    int pid;

    if (list == NULL) {
        (void)fprintf(stderr,
                      "cistern: the rank may have left processes, because "
                      "/proc/thread-self/children cannot be opened: %s\n",
                      strerror(errno));
        return false;
    }
    while (fscanf(list, "%d", &pid) == 1) {
        (void)kill(pid, SIGKILL);
    }
    (void)fclose(list);
    return true;
}

/* Kill all processes of the rank, and wait for them. Children of a process that is killed become
 * children of this process, so this is repeated until there is none. Returns PROGRAM's status in
 * the form of waitpid. */
static int kill_all(pid_t program)
{
    int status = SIGKILL;

    /* Nobody has waited for PROGRAM yet, hence its number cannot be that of another group. */
    (void)kill(-program, SIGKILL);
    (void)kill(program, SIGKILL);
    while (waitpid(program, &status, 0) < 0 && errno == EINTR) {
    }
    while (has_children() && kill_children()) {
        (void)waitpid(-1, NULL, 0);
    }
    return status;
}

/* End as a process with the status @status of waitpid ended. */
static int end_as(int status)
{
    const int number = WTERMSIG(status);
    sigset_t set;

    if (WIFEXITED(status)) {
        return WEXITSTATUS(status);
    }
    (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0}); /* PROGRAM may have written one already. */
    (void)signal(number, SIG_DFL);
    (void)sigemptyset(&set);
    (void)sigaddset(&set, number);
    (void)sigprocmask(SIG_UNBLOCK, &set, NULL);
    (void)raise(number);
    return 128 + number;
}

/* Wait for orphans that have ended. Returns whether PROGRAM has ended; kill_all waits for it. */
static bool has_ended(pid_t program)
{
    siginfo_t child = {0};

    while (waitid(P_ALL, 0, &child, WEXITED | WNOHANG | WNOWAIT) == 0 && child.si_pid != 0) {
        if (child.si_pid == program) {
            return true;
        }
        (void)waitpid(child.si_pid, NULL, 0);
        child.si_pid = 0;
    }
    return false;
}

/* Handle a signal. Returns whether PROGRAM has ended. */
static bool handle(int signals, pid_t program)
{
    struct signalfd_siginfo info;

    if (read(signals, &info, sizeof info) != (ssize_t)sizeof info) {
        return false;
    }
    if (info.ssi_signo != SIGCHLD) {
        (void)kill(-program, (int)info.ssi_signo);
        return false;
    }
    return has_ended(program);
}

/* Wait until PROGRAM has ended, or until `cistern run` wants it to end. */
static void watch(int signals, pid_t program)
{
    struct pollfd fds[] = {{.fd = STDIN_FILENO, .events = POLLIN},
                           {.fd = signals, .events = POLLIN}};

    for (;;) {
        if (poll(fds, 2, -1) < 0) {
            continue; /* Interrupted. */
        }
        if (fds[0].revents != 0 || (fds[1].revents != 0 && handle(signals, program))) {
            return;
        }
    }
}

int main(int argc, char **argv)
{
    const pid_t self = getpid();
    sigset_t signals, before;
    pid_t program;
    int fd;

    if (argc < 2) {
        (void)fprintf(stderr, "cistern-rank: only 'cistern run' starts this program\n");
        return 2;
    }
    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGCHLD);
    (void)sigaddset(&signals, SIGINT);
    (void)sigaddset(&signals, SIGTERM);
    (void)sigaddset(&signals, SIGHUP);
    (void)sigprocmask(SIG_BLOCK, &signals, &before);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    fd = signalfd(-1, &signals, SFD_CLOEXEC);
    program = fd < 0 ? -1 : fork();
    if (program < 0) {
        (void)fprintf(stderr, "cistern: cannot start %s: %s\n", argv[1], strerror(errno));
        return CANNOT_START;
    }
    if (program == 0) {
        become(argv + 1, self, &before);
    }
    (void)setpgid(program, program); /* A signal must not come before PROGRAM's own call. */
    watch(fd, program);
    return end_as(kill_all(program));
}
