/* SPDX-License-Identifier: Apache-2.0 */
/* A private daemon for tests: ./cisternd with ./cistern-engine-host, both in the current folder, on
 * sockets in a temporary folder. The daemon dies with the test process. All functions fail the
 * running test on an error. */
#ifndef DAEMON_PROC_H
#define DAEMON_PROC_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* A daemon process, its sockets and its files. */
struct daemon_proc {
    pid_t pid;
    pid_t runner;     /* notify_run, which runs the daemon if it is kept; 0: the test runs it */
    int notify;       /* the test's end of NOTIFY_SOCKET */
    char dir[64];     /* temporary folder, which contains only the sockets */
    char socket[96];  /* path of the socket for workers */
    char config[32];  /* configuration file, which a daemon that is kept reads again; or empty */
    char manager[96]; /* path of the socket for managers */
    /* Path of the daemon's stderr, outside of `dir`. If a test fails, suite_run prints the end of
     * this file. */
    char log[96];
};

/* Run daemons that are started from now on as user @uid, who must not be the user of the test, with
 * a limit of @max_fds open files. This is how a service without root's rights runs. */
void daemon_proc_run_as(uid_t uid, unsigned max_fds);

/* Run daemons that are started from now on by tests/lib/notify_run --keep. It starts a daemon that
 * was killed again, which goes on with the jobs of the one before. */
void daemon_proc_keep(void);

/* Run daemons that are started from now on with the faults whose files are in @folder (see
 * faulty_daemon.c). */
void daemon_proc_fault(const char *folder);

/* Start tests/lib/slow_daemon from now on, whose devices in [paced] only copy. */
void daemon_proc_slow(void);

/* Start tests/lib/drives_daemon from now on, for which each file for states is on its own drive. */
void daemon_proc_drives(void);

/* Kill the daemon, which is kept, with SIGKILL, and wait until the next one is ready. */
void daemon_proc_kill_kept(struct daemon_proc *proc);

/* Make the folder and start a daemon with small budgets (256 MiB of arenas, 64 MiB of pools), no
 * GPUs, and the options @args. Each option is "--name=value"; @args ends with NULL, and may be
 * NULL. A later option overrides an earlier one. Returns when the daemon has sent READY=1. */
void daemon_proc_start(struct daemon_proc *proc, const char *const *args);

/* Like daemon_proc_start, with a configuration file whose content is @config. */
void daemon_proc_start_with(struct daemon_proc *proc, const char *config, const char *const *args);

/* Like daemon_proc_start, with a service manager whose socket queue is already full. Returns when
 * the daemon listens. */
void daemon_proc_start_unheard(struct daemon_proc *proc);

/* Read the messages to the service manager until one contains @words. */
void daemon_proc_hear(struct daemon_proc *proc, const char *words);

/* Like daemon_proc_start, in the folder that @proc already has. */
void daemon_proc_restart(struct daemon_proc *proc, const char *const *args);

/* Start a daemon that must refuse to run. Returns its exit status; its messages are in
 * proc->log. */
int daemon_proc_refused(struct daemon_proc *proc, const char *const *args);

/* Send SIGTERM and wait for the daemon's end. Returns the exit status, or 128 + n after signal n.
 * The folder must then be empty, and is removed. */
int daemon_proc_stop(struct daemon_proc *proc);

/* Kill the daemon with SIGKILL. The folder stays. */
void daemon_proc_kill(struct daemon_proc *proc);

/* Number of descriptors that process @pid has open. */
unsigned daemon_proc_fds(pid_t pid);

/* Bytes of the heap and the stacks of process @pid that are present. */
uint64_t daemon_proc_heap(pid_t pid);

/* True if the log contains @text. */
bool daemon_proc_logged(const struct daemon_proc *proc, const char *text);

#endif
