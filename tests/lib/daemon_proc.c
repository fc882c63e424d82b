/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/daemon_proc.h"

#include "tests/lib/patience.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_ARGS = 24, WORD_MS = 20000 };

/* User of the daemon, set by daemon_proc_run_as. 0: the test's user. */
static uid_t run_uid;
static unsigned run_max_fds;
static bool run_kept; /* Set by daemon_proc_keep. */
static const char *run_program = "./cisternd";

void daemon_proc_run_as(uid_t uid, unsigned max_fds)
{
    run_uid = uid;
    run_max_fds = max_fds;
}

void daemon_proc_keep(void)
{
    run_kept = true;
}

void daemon_proc_fault(const char *folder)
{
    run_program = "./tests/lib/faulty_daemon";
    (void)setenv("CST_TEST_FAULTS", folder, 1);
    (void)setenv("CISTERN_ENGINE_HOST", "./cistern-engine-host", 1);
}

void daemon_proc_slow(void)
{
    run_program = "./tests/lib/slow_daemon";
    (void)setenv("CISTERN_ENGINE_HOST", "./tests/lib/slow_engine", 1);
}

void daemon_proc_drives(void)
{
    run_program = "./tests/lib/drives_daemon";
    (void)setenv("CISTERN_ENGINE_HOST", "./cistern-engine-host", 1);
}

static void become_service(void)
{
    const struct rlimit limit = {.rlim_cur = run_max_fds, .rlim_max = run_max_fds};

    if (run_uid != 0 &&
        (setrlimit(RLIMIT_NOFILE, &limit) != 0 || setgroups(0, NULL) != 0 ||
         setresgid(run_uid, run_uid, run_uid) != 0 || setresuid(run_uid, run_uid, run_uid) != 0)) {
        perror("the user of the daemon");
        _exit(126);
    }
}

/* Open a datagram socket with an abstract name, which needs no cleanup. */
static int open_notify(char *name, size_t n)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), len;
    static unsigned serial;

    ck_assert_int_ge(fd, 0);
    len = snprintf(name, n, "@cistern-test-%d-%u", (int)getpid(), serial++);
    memcpy(address.sun_path, name, (size_t)len);
    address.sun_path[0] = '\0';
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)len)),
                     0);
    return fd;
}

static void run(const struct daemon_proc *proc, const char *notify, const char *const *args)
{
    static char options[4][128];
    const char *argv[MAX_ARGS] = {"./tests/lib/notify_run",
                                  "--keep",
                                  run_program,
                                  options[0],
                                  options[1],
                                  "--host-memory=256M",
                                  "--pool-memory=64M",
                                  "--config=/dev/null",
                                  "--gpus=none"};
    const char **program = run_kept ? argv : argv + 2;
    int log = open(proc->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    unsigned n = 9;

    (void)snprintf(options[0], sizeof options[0], "--socket=%s", proc->socket);
    (void)snprintf(options[1], sizeof options[1], "--manager-socket=%s", proc->manager);
    while (args != NULL && *args != NULL && n + 1 < MAX_ARGS) {
        argv[n++] = *args++;
    }
    become_service();
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)dup2(log, STDERR_FILENO);
    if (run_kept) {
        (void)dup2(log, STDOUT_FILENO); /* For count_kept. */
    }
    (void)setenv("NOTIFY_SOCKET", notify, 1);
    (void)execv(program[0], (char *const *)(uintptr_t)program);
    perror(program[0]);
    _exit(126);
}

static void fork_daemon(struct daemon_proc *proc, const char *name, const char *const *args)
{
    proc->pid = fork();
    ck_assert_int_ge(proc->pid, 0);
    if (proc->pid == 0) {
        run(proc, name, args);
    }
}

/* An engine of the test that is not there would be started again and again. */
static void check_engine(const char *variable)
{
    const char *path = getenv(variable);

    ck_assert_msg(path == NULL || path[0] != '.' || access(path, X_OK) == 0,
                  "%s is %s: %s; build it with 'make' or 'make check-lib'", variable, path,
                  strerror(errno));
}

static void spawn(struct daemon_proc *proc, const char *const *args)
{
    char name[64];

    check_engine("CISTERN_ENGINE_HOST");
    check_engine("CISTERN_ENGINE_CUDA");
    proc->notify = open_notify(name, sizeof name);
    fork_daemon(proc, name, args);
}

/* Look through what notify_run has said about daemons. Returns how many got ready. *pid: the
 * process id of the last one. */
static unsigned count_kept(const struct daemon_proc *proc, pid_t *pid)
{
    FILE *file = fopen(proc->log, "re");
    char line[1200];
    unsigned n = 0;

    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        n += strcmp(line, "READY=1\n") == 0;
        if (strncmp(line, "PID=", 4) == 0) {
            *pid = (pid_t)strtol(line + 4, NULL, 10);
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return n;
}

/* Wait until @n daemons have got ready, the last of which is there. */
static void await_kept(struct daemon_proc *proc, unsigned n)
{
    for (uint64_t until = patience_until(WORD_MS); count_kept(proc, &proc->pid) < n;) {
        ck_assert_msg(!patience_over(until), "the daemon did not get ready");
        (void)usleep(1000);
    }
}

void daemon_proc_kill_kept(struct daemon_proc *proc)
{
    const unsigned n = count_kept(proc, &proc->pid);

    ck_assert_int_eq(kill(proc->pid, SIGKILL), 0);
    await_kept(proc, n + 1);
}

static void await_ready(struct daemon_proc *proc)
{
    struct pollfd p = {.fd = proc->notify, .events = POLLIN};
    char text[512];
    ssize_t n;

    for (;;) {
        ck_assert_msg(poll(&p, 1, patience_ms(WORD_MS)) == 1, "the daemon did not get ready");
        n = recv(proc->notify, text, sizeof text - 1, 0);
        ck_assert_int_gt(n, 0);
        text[n] = '\0';
        if (strncmp(text, "READY=1", 7) == 0) {
            return;
        }
    }
}

static void make_folder(struct daemon_proc *proc)
{
    (void)snprintf(proc->dir, sizeof proc->dir, SUITE_LOG "XXXXXX", suite_pid());
    ck_assert_ptr_nonnull(mkdtemp(proc->dir));
    if (run_uid != 0) {
        ck_assert_int_eq(chown(proc->dir, run_uid, run_uid), 0);
    }
    (void)snprintf(proc->socket, sizeof proc->socket, "%s/cistern.sock", proc->dir);
    (void)snprintf(proc->manager, sizeof proc->manager, "%s/manager.sock", proc->dir);
    (void)snprintf(proc->log, sizeof proc->log, "%s.log", proc->dir);
}

void daemon_proc_restart(struct daemon_proc *proc, const char *const *args)
{
    spawn(proc, args);
    proc->runner = run_kept ? proc->pid : 0;
    if (run_kept) {
        await_kept(proc, 1);
    } else {
        await_ready(proc);
    }
}

void daemon_proc_start(struct daemon_proc *proc, const char *const *args)
{
    make_folder(proc);
    daemon_proc_restart(proc, args);
}

void daemon_proc_start_with(struct daemon_proc *proc, const char *config, const char *const *args)
{
    char path[] = "/tmp/cistern-conf-XXXXXX", option[64];
    const char *all[16] = {option};
    int fd = mkstemp(path), n = 1;

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, config, strlen(config)), (ssize_t)strlen(config));
    (void)snprintf(option, sizeof option, "--config=%s", path);
    while (args != NULL && *args != NULL) {
        ck_assert_int_lt(n, 15);
        all[n++] = *args++;
    }
    daemon_proc_start(proc, all);
    (void)close(fd);
    if (run_kept) {
        (void)snprintf(proc->config, sizeof proc->config, "%s", path);
    } else {
        (void)unlink(path);
    }
}

/* Send datagrams to the abstract socket @name until its queue is full. */
static void fill_queue(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t n = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name));

    ck_assert_int_ge(fd, 0);
    memcpy(address.sun_path, name, strlen(name));
    address.sun_path[0] = '\0';
    while (sendto(fd, "X_FULL=1", 8, MSG_DONTWAIT, (struct sockaddr *)&address, n) == 8) {
    }
    ck_assert_int_eq(errno, EAGAIN);
    (void)close(fd);
}

void daemon_proc_start_unheard(struct daemon_proc *proc)
{
    char name[64];

    make_folder(proc);
    proc->notify = open_notify(name, sizeof name);
    fill_queue(name);
    fork_daemon(proc, name, NULL);
    for (uint64_t until = patience_until(WORD_MS); !daemon_proc_logged(proc, "listening at");) {
        ck_assert_msg(!patience_over(until), "the daemon does not listen");
        (void)usleep(1000);
    }
}

void daemon_proc_hear(struct daemon_proc *proc, const char *words)
{
    char text[512] = "";

    while (strstr(text, words) == NULL) {
        struct pollfd p = {.fd = proc->notify, .events = POLLIN};
        ssize_t n;

        ck_assert_msg(poll(&p, 1, patience_ms(WORD_MS)) == 1, "the daemon never says '%s'", words);
        n = recv(proc->notify, text, sizeof text - 1, 0);
        ck_assert_int_ge(n, 0);
        text[n] = '\0';
    }
}

/* Wait for the daemon's end. Returns the status in a shell's form. */
static int reap(struct daemon_proc *proc)
{
    const pid_t pid = proc->runner != 0 ? proc->runner : proc->pid;
    int status;

    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    (void)close(proc->notify);
    proc->pid = proc->runner = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int daemon_proc_refused(struct daemon_proc *proc, const char *const *args)
{
    spawn(proc, args);
    return reap(proc);
}

int daemon_proc_stop(struct daemon_proc *proc)
{
    int status;

    ck_assert_int_eq(kill(proc->runner != 0 ? proc->runner : proc->pid, SIGTERM), 0);
    status = reap(proc);
    ck_assert_msg(rmdir(proc->dir) == 0, "%s: %s", proc->dir, strerror(errno));
    (void)unlink(proc->log);
    if (proc->config[0] != '\0') {
        (void)unlink(proc->config);
    }
    return status;
}

void daemon_proc_kill(struct daemon_proc *proc)
{
    ck_assert_int_eq(kill(proc->pid, SIGKILL), 0);
    (void)reap(proc);
}

unsigned daemon_proc_fds(pid_t pid)
{
    char path[32];
    DIR *dir;
    unsigned n = 0;

    (void)snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    dir = opendir(path);
    ck_assert_ptr_nonnull(dir);
    for (const struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        n += e->d_name[0] != '.';
    }
    (void)closedir(dir);
    return n;
}

uint64_t daemon_proc_heap(pid_t pid)
{
    char path[40], line[128];
    unsigned long long kib = 0;
    FILE *file;

    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file) != NULL && sscanf(line, "RssAnon: %llu", &kib) != 1) {
    }
    (void)fclose(file);
    return kib << 10;
}

bool daemon_proc_logged(const struct daemon_proc *proc, const char *text)
{
    char line[1200];
    FILE *file = fopen(proc->log, "re");
    bool found = false;

    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        found = found || strstr(line, text) != NULL;
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return found;
}
