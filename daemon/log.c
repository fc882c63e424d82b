#include "daemon/log.h"

#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum cst_log_level threshold = CST_LOG_INFO;
static bool journal;

static const struct {
    const char *name;
    enum cst_log_level level;
} levels[] = {
    {"error", CST_LOG_ERROR}, {"warning", CST_LOG_WARNING}, {"notice", CST_LOG_NOTICE},
    {"info", CST_LOG_INFO},   {"debug", CST_LOG_DEBUG},
};

/* JOURNAL_STREAM names the device and inode of the journal's socket: stderr may have been
 * redirected since. */
static bool stderr_is_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long device, inode;
    struct stat st;

    return stream != NULL && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
           fstat(STDERR_FILENO, &st) == 0 && st.st_dev == device && st.st_ino == inode;
}

void cst_log_init(enum cst_log_level level)
{
    threshold = level;
    journal = stderr_is_journal();
}

int cst_log_parse(const char *name)
{
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        if (strcmp(levels[i].name, name) == 0) {
            return (int)levels[i].level;
        }
    }
    return 0;
}

static const char *level_name(enum cst_log_level level)
{
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        if (levels[i].level == level) {
            return levels[i].name;
        }
    }
    return "?";
}

/* What comes before the words: the journal's level, or our name. */
static size_t write_head(enum cst_log_level level, char *out, size_t n)
{
    if (journal) {
        (void)snprintf(out, n, "<%d>", (int)level);
    } else if (level <= CST_LOG_WARNING) {
        (void)snprintf(out, n, "cisternd: %s: ", level_name(level));
    } else {
        (void)snprintf(out, n, "cisternd: ");
    }
    return strlen(out);
}

void cst_log(enum cst_log_level level, const char *fmt, ...)
{
    struct pollfd room = {.fd = STDERR_FILENO, .events = POLLOUT};
    char line[1024];
    size_t head, n;
    va_list ap;

    if (level > threshold) {
        return;
    }
    head = write_head(level, line, sizeof line);
    va_start(ap, fmt);
    (void)vsnprintf(line + head, sizeof line - head - 1, fmt, ap);
    va_end(ap);
    n = strlen(line);
    for (size_t i = head; i < n; i++) {
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f) {
            line[i] = '?';
        }
    }
    line[n++] = '\n';
    /* One write, so that lines of several processes do not mix. A full or closed stderr must not
     * stop the daemon: where poll says that there is room, a line fits. */
    if (poll(&room, 1, 0) != 1 || write(STDERR_FILENO, line, n) < 0) {
        return;
    }
}
