/* The daemon's log: one line per event on stderr. Under systemd (stderr is the journal) lines carry
 * the <N> level prefix, else a word. Loop thread only. Nothing but daemon/ prints. */
#ifndef CST_LOG_H
#define CST_LOG_H

enum cst_log_level { /* syslog's numbers */
                     CST_LOG_ERROR = 3,
                     CST_LOG_WARNING = 4,
                     CST_LOG_NOTICE = 5,
                     CST_LOG_INFO = 6,
                     CST_LOG_DEBUG = 7,
};

/* Lines above @level are dropped from now on. Finds out whether stderr is the journal. */
void cst_log_init(enum cst_log_level level);

/* "error", "warning", "notice", "info" or "debug" to its number; 0: none of them. */
int cst_log_parse(const char *name);

/* Write one line; control characters in it become '?', so that what a peer sent cannot forge lines.
 */
void cst_log(enum cst_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
