/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's log: one line per event. Where standard error is the journal, events go to it with
 * their level and with fields to search for (CISTERN_JOB, CISTERN_RANK, CISTERN_UID: `journalctl
 * CISTERN_JOB=run7`); else lines go to standard error, with time and level. Loop thread only.
 * Nothing but daemon/ prints. */
#ifndef CST_LOG_H
#define CST_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum cst_log_level { /* syslog's numbers */
                     CST_LOG_ERROR = 3,
                     CST_LOG_WARNING = 4,
                     CST_LOG_NOTICE = 5,
                     CST_LOG_INFO = 6,
                     CST_LOG_DEBUG = 7,
};

/* What an event is about; all borrowed for the call. */
struct cst_log_about {
    const char *job; /* its name; NULL: no job */
    int64_t rank;    /* of the job; CST_LOG_NONE */
    int64_t uid;     /* the job's owner, or whose process it is; CST_LOG_NONE */
};

#define CST_LOG_NONE (-1)

/* Lines above @level are dropped from now on. Finds out whether stderr is the journal. */
void cst_log_init(enum cst_log_level level);

/* "error", "warning", "notice", "info" or "debug" to its number; 0: none of them. */
int cst_log_parse(const char *name);

/* Write one line; control characters in it are written as \xNN, so that what a peer sent cannot
 * forge lines. Never waits: a line that a full pipe or a slow journal does not take at once is
 * lost. */
void cst_log(enum cst_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* As cst_log, of @about: the line begins with "job 'NAME': " where there is a job. */
void cst_log_about(enum cst_log_level level, const struct cst_log_about *about, const char *fmt,
                   ...) __attribute__((format(printf, 3, 4)));

/* What may happen often is told once a minute. Zeroed: nothing was told yet. */
struct cst_log_pace {
    uint64_t told_ns; /* when the last line was written; 0: never */
};

/* True if a line may be written at @now_ns (of a monotonic clock, not 0), and then it is taken to
 * be written. */
bool cst_log_due(struct cst_log_pace *pace, uint64_t now_ns);

#endif
