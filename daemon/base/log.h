/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's log, one line per event. If standard error is the systemd journal, events are sent
 * to the journal with their level and with fields for searching (CISTERN_JOB, CISTERN_RANK,
 * CISTERN_UID: `journalctl CISTERN_JOB=run7`). Otherwise lines with time and level are written to
 * standard error. Only modules in daemon/ log. Loop thread only. */
#ifndef CST_LOG_H
#define CST_LOG_H

#include <stdbool.h>
#include <stdint.h>

/* The numbers are syslog's. */
enum cstd_log_level {
    CSTD_LOG_ERROR = 3,
    CSTD_LOG_WARNING = 4,
    CSTD_LOG_NOTICE = 5,
    CSTD_LOG_INFO = 6,
    CSTD_LOG_DEBUG = 7,
};

/* Names of the levels from CSTD_LOG_ERROR on, then NULL. */
extern const char *const cstd_log_names[];

/* What an event is about. Pointers are only used during the call. */
struct cstd_log_about {
    const char *job; /* Name of the job; NULL: none. */
    int64_t rank;    /* Rank in the job, or CSTD_LOG_NONE. */
    int64_t uid;     /* Owner of the job or of the process, or CSTD_LOG_NONE. */
};

#define CSTD_LOG_NONE (-1)

/* Set the threshold: lines above @level are dropped. Also determines whether standard error is the
 * journal. */
void cstd_log_init(enum cstd_log_level level);

/* Write one line. Control characters are written as \xNN, and a peer's text therefore cannot forge
 * lines. The function never waits: a line that a full pipe or a slow journal does not accept at
 * once is lost. */
void cstd_log(enum cstd_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Like cstd_log, for an event of @about. The line begins with "job 'NAME': " if there is a job. An
 * event of a user is left out if there are too many (cstd_log_admits). Events that a client can
 * cause are therefore written with the client's uid. */
void cstd_log_about(enum cstd_log_level level, const struct cstd_log_about *about, const char *fmt,
                    ...) __attribute__((format(printf, 3, 4)));

/* Return whether a line about @uid may be written at @now_ns (monotonic): up to 200 at once, and 20
 * a second after that, so that no user fills the log. The line then counts as written, and
 * *n_left_out is the number of lines that were left out before it. */
bool cstd_log_admits(int64_t uid, uint64_t now_ns, uint64_t *n_left_out);

/* Limits a kind of line to one per minute. Zeroed: no line was written yet. */
struct cstd_log_pace {
    uint64_t told_ns; /* Time of the last line, ns; 0: never. */
};

/* True if a line may be written at @now_ns (monotonic, not 0). The line then counts as written. */
bool cstd_log_due(struct cstd_log_pace *pace, uint64_t now_ns);

#endif
