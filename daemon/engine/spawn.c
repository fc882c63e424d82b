/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/spawn.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>

extern char **environ;

/* Return the environment without the service manager's variables, which are for the daemon alone: a
 * child that inherited them could speak to the manager in the daemon's name. NULL: no memory. */
static char **make_environment(void)
{
    static const char *const hidden[] = {"NOTIFY_SOCKET=", "WATCHDOG_", "LISTEN_"};
    size_t n = 0, kept = 0;
    char **out;

    while (environ[n] != NULL) {
        n++;
    }
    out = calloc(n + 1, sizeof *out);
    for (size_t i = 0; out != NULL && i < n; i++) {
        bool hide = false;

        for (size_t h = 0; h < sizeof hidden / sizeof *hidden; h++) {
            hide = hide || strncmp(environ[i], hidden[h], strlen(hidden[h])) == 0;
        }
        if (!hide) {
            out[kept++] = environ[i];
        }
    }
    return out;
}

static int spawn(char *const *argv, char **env, int fd, int as, pid_t *pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t set;
    int rc;

    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawnattr_init(&attr);
    /* Ctrl-C in a terminal is meant for the daemon, which stops its engines in good order. */
    (void)posix_spawnattr_setpgroup(&attr, 0);
    (void)sigfillset(&set);
    (void)posix_spawnattr_setsigdefault(&attr, &set);
    (void)sigemptyset(&set);
    (void)posix_spawnattr_setsigmask(&attr, &set);
    (void)posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF |
                                              POSIX_SPAWN_SETSIGMASK);
    rc = posix_spawn_file_actions_adddup2(&actions, fd, as);
    if (rc == 0) {
        rc = posix_spawn(pid, argv[0], &actions, &attr, argv, env);
    }
    (void)posix_spawnattr_destroy(&attr);
    (void)posix_spawn_file_actions_destroy(&actions);
    return rc;
}

int cstd_spawn(char *const *argv, int fd, int as, pid_t *pid, int *pidfd, struct cst_err *err)
{
    char **env = make_environment();
    pid_t child;
    int rc, saved;

    if (env == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for an environment");
    }
    rc = spawn(argv, env, fd, as, &child);
    free(env);
    if (rc != 0) {
        return cst_err_errno(err, CST_EENGINE, rc, "cannot start %s", argv[0]);
    }
    rc = pidfd_open(child, 0);
    if (rc < 0) {
        saved = errno;
        (void)kill(child, SIGKILL);
        (void)waitpid(child, NULL, 0);
        return cst_err_errno(err, CST_EENGINE, saved, "pidfd_open");
    }
    *pid = child;
    *pidfd = rc;
    return CST_OK;
}

void cstd_spawn_undo(pid_t pid, int pidfd)
{
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    (void)close(pidfd);
}
