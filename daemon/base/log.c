/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/log.h"

#include "proto/text.h"

#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static enum cstd_log_level threshold = CSTD_LOG_INFO;
static bool journal;        /* Standard error is the journal. */
static int journal_fd = -1; /* Socket for sending to the journal; -1: not opened yet. */

const char *const cstd_log_names[] = {"error", "warning", "notice", "info", "debug", NULL};

/* True if standard error is the journal. JOURNAL_STREAM has the device and inode of the journal's
 * socket; they are compared because standard error may have been redirected. */
static bool stderr_is_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long device, inode;
    struct stat st;

    return stream != NULL && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
           fstat(STDERR_FILENO, &st) == 0 && st.st_dev == device && st.st_ino == inode;
}

void cstd_log_init(enum cstd_log_level level)
{
    threshold = level;
    journal = stderr_is_journal();
}

bool cstd_log_due(struct cstd_log_pace *pace, uint64_t now_ns)
{
    if (pace->told_ns != 0 && now_ns - pace->told_ns < UINT64_C(60000000000)) {
        return false;
    }
    pace->told_ns = now_ns;
    return true;
}

/* -- lines about one user -----------------------------------------------------------------------
 */

enum {
    MOST_AT_ONCE = 200, /* Lines about a user without a pause. */
    PER_SECOND = 20,    /* Lines about a user for each second after that. */
    USERS = 64,         /* Users whose lines are counted at one time. */
    LINE_NS = 1000000000 / PER_SECOND,
};

/* What was written about a user. Zeroed: nothing. */
struct share {
    bool used;
    int64_t uid;
    /* Time at which all lines are earned; at most MOST_AT_ONCE lines after the present. */
    uint64_t earned_ns;
    uint64_t n_left_out; /* Lines that were left out since the last one that was written. */
};

static struct share shares[USERS];

/* Return the share of @uid. If all are in use, the user's whose lines were earned first is given
 * up. */
static struct share *share_of(int64_t uid)
{
    struct share *oldest = &shares[0];

    for (unsigned i = 0; i < USERS; i++) {
        if (shares[i].used && shares[i].uid == uid) {
            return &shares[i];
        }
        if (!shares[i].used || (oldest->used && shares[i].earned_ns < oldest->earned_ns)) {
            oldest = &shares[i];
        }
    }
    *oldest = (struct share){.used = true, .uid = uid};
    return oldest;
}

bool cstd_log_admits(int64_t uid, uint64_t now_ns, uint64_t *n_left_out)
{
    struct share *share = share_of(uid);
    uint64_t earned = share->earned_ns > now_ns ? share->earned_ns : now_ns;

    *n_left_out = 0;
    if (earned - now_ns >= (uint64_t)MOST_AT_ONCE * LINE_NS) {
        share->n_left_out++;
        return false;
    }
    share->earned_ns = earned + LINE_NS;
    *n_left_out = share->n_left_out;
    share->n_left_out = 0;
    return true;
}

/* -- writing ------------------------------------------------------------------------------------
 */

/* Compose the words of an event, and replace control characters, which a terminal could obey. */
__attribute__((format(printf, 4, 0))) static void
write_words(const struct cstd_log_about *about, char *out, size_t n, const char *fmt, va_list ap)
{
    size_t used = 0;

    if (about != NULL && about->job != NULL) {
        (void)snprintf(out, n, "job '%s': ", about->job);
        used = strlen(out);
    }
    (void)vsnprintf(out + used, n - used, fmt, ap);
    cst_text_clean(out, n);
}

/* Send one datagram in the journal's native protocol, with one line "FIELD=value" for each field.
 * False: the journal did not accept it. */
static bool send_to_journal(enum cstd_log_level level, const struct cstd_log_about *about,
                            const char *words)
{
    static const struct sockaddr_un address = {.sun_family = AF_UNIX,
                                               .sun_path = "/run/systemd/journal/socket"};
    char fields[1536];
    int n = snprintf(fields, sizeof fields, "PRIORITY=%d\nSYSLOG_IDENTIFIER=cisternd\nMESSAGE=%s\n",
                     (int)level, words);

    if (about != NULL && about->job != NULL) {
        n += snprintf(fields + n, sizeof fields - (size_t)n, "CISTERN_JOB=%s\n", about->job);
    }
    if (about != NULL && about->rank != CSTD_LOG_NONE) {
        n += snprintf(fields + n, sizeof fields - (size_t)n, "CISTERN_RANK=%" PRId64 "\n",
                      about->rank);
    }
    if (about != NULL && about->uid != CSTD_LOG_NONE) {
        n += snprintf(fields + n, sizeof fields - (size_t)n, "CISTERN_UID=%" PRId64 "\n",
                      about->uid);
    }
    if (journal_fd < 0) {
        journal_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    }
    return journal_fd >= 0 && sendto(journal_fd, fields, (size_t)n, MSG_NOSIGNAL,
                                     (const struct sockaddr *)&address, sizeof address) == n;
}

/* Write the beginning of a line on standard error: time, name and level, or for the journal the
 * level in its own notation "<N>". */
static size_t write_head(enum cstd_log_level level, char *out, size_t n)
{
    struct timespec now;
    struct tm utc;
    char day[32];

    if (journal) {
        (void)snprintf(out, n, "<%d>", (int)level);
    } else {
        (void)clock_gettime(CLOCK_REALTIME, &now);
        (void)strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", gmtime_r(&now.tv_sec, &utc));
        (void)snprintf(out, n, "%s.%03dZ cisternd: %s: ", day, (int)(now.tv_nsec / 1000000),
                       cstd_log_names[level - CSTD_LOG_ERROR]);
    }
    return strlen(out);
}

/* Write a line to standard error with a single write, because lines of several processes must not
 * mix. A full or closed stderr must not stop the daemon: the line is only written if poll reports
 * space, and then it fits. */
static void write_to_stderr(enum cstd_log_level level, const char *words)
{
    struct pollfd room = {.fd = STDERR_FILENO, .events = POLLOUT};
    char line[1200];
    size_t n = write_head(level, line, sizeof line);

    (void)snprintf(line + n, sizeof line - n, "%s\n", words);
    /* There is nobody to report a failure to. */
    if (poll(&room, 1, 0) != 1 || write(STDERR_FILENO, line, strlen(line)) < 0) {
        return;
    }
}

static void put(enum cstd_log_level level, const struct cstd_log_about *about, const char *words)
{
    /* Standard error reaches the journal as well, but without the fields. */
    if (!journal || !send_to_journal(level, about, words)) {
        write_to_stderr(level, words);
    }
}

/* Return whether an event about @about may be written, and say how many were not before it. Lines
 * for debugging, which only who looks for a fault turns on, are not counted. */
static bool admits(enum cstd_log_level level, const struct cstd_log_about *about)
{
    struct timespec now;
    uint64_t n_left_out;
    char words[128];

    if (about == NULL || about->uid == CSTD_LOG_NONE || level == CSTD_LOG_DEBUG) {
        return true;
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    if (!cstd_log_admits(about->uid, (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec,
                         &n_left_out)) {
        return false;
    }
    if (n_left_out > 0) {
        (void)snprintf(words, sizeof words,
                       "%" PRIu64 " lines about uid %" PRId64
                       " were left out: more than %d a second",
                       n_left_out, about->uid, PER_SECOND);
        put(CSTD_LOG_WARNING, &(struct cstd_log_about){.rank = CSTD_LOG_NONE, .uid = about->uid},
            words);
    }
    return true;
}

__attribute__((format(printf, 3, 0))) static void write_event(enum cstd_log_level level,
                                                              const struct cstd_log_about *about,
                                                              const char *fmt, va_list ap)
{
    char words[1024];

    if (level > threshold) {
        return;
    }
    if (!admits(level, about)) {
        return;
    }
    write_words(about, words, sizeof words, fmt, ap);
    put(level, about, words);
}

void cstd_log(enum cstd_log_level level, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    write_event(level, NULL, fmt, ap);
    va_end(ap);
}

void cstd_log_about(enum cstd_log_level level, const struct cstd_log_about *about, const char *fmt,
                    ...)
{
    va_list ap;

    va_start(ap, fmt);
    write_event(level, about, fmt, ap);
    va_end(ap);
}
