/* SPDX-License-Identifier: Apache-2.0 */
/* A private daemon for tests: ./cisternd with ./cistern-engine-host (both in the current folder) on
 * sockets in a temporary folder. It dies with the test process. Everything here fails the running
 * test when something is not as it should be. */
#ifndef DAEMON_PROC_H
#define DAEMON_PROC_H

#include <stdbool.h>
#include <sys/types.h>

struct daemon_proc {
    pid_t pid;
    int notify;       /* NOTIFY_SOCKET's other end */
    char dir[64];     /* temporary folder; the sockets' only home */
    char socket[96];  /* of workers */
    char manager[96]; /* of managers */
    char log[96];     /* its stderr; not in dir. Where a test fails suite_run prints its end */
};

/* Daemons that this process starts from now on run as user @uid, who is not the test's, with a
 * limit of
 * @max_fds open files: as a service does, without the rights of root. */
void daemon_proc_run_as(uid_t uid, unsigned max_fds);

/* Make the folder and start a daemon with small budgets (256 MiB arenas, 64 MiB pools), no GPUs and
 * the options in @args (NULL: none; each
 * "--name=value"; later ones win). Returns when it has said READY=1. */
void daemon_proc_start(struct daemon_proc *proc, const char *const *args);

/* The same with a configuration file that says @config. */
void daemon_proc_start_with(struct daemon_proc *proc, const char *config, const char *const *args);

/* The same with a service manager whose queue is full already. Returns when the daemon listens. */
void daemon_proc_start_unheard(struct daemon_proc *proc);

/* Read what the service manager is sent until a message has @words in it. */
void daemon_proc_hear(struct daemon_proc *proc, const char *words);

/* As daemon_proc_start, in the folder that @proc has already. */
void daemon_proc_restart(struct daemon_proc *proc, const char *const *args);

/* Start one that is expected to refuse: returns its exit status; its words are in proc->log. */
int daemon_proc_refused(struct daemon_proc *proc, const char *const *args);

/* SIGTERM; returns the exit status (128 + n after signal n) when it is gone. The folder must be
 * empty then and is removed. */
int daemon_proc_stop(struct daemon_proc *proc);

/* kill -9. The folder stays. */
void daemon_proc_kill(struct daemon_proc *proc);

/* Descriptors that process @pid has open. */
unsigned daemon_proc_fds(pid_t pid);

/* @text is in the log. */
bool daemon_proc_logged(const struct daemon_proc *proc, const char *text);

#endif
