/* What the service manager hears: READY, STATUS, WATCHDOG, STOPPING. Without NOTIFY_SOCKET all of
 * it does nothing. */
#ifndef CST_NOTIFY_H
#define CST_NOTIFY_H

#include <stdint.h>

/* How often WATCHDOG=1 should be sent, ms; 0: no watchdog is set. */
uint64_t cst_notify_watchdog_ms(void);

void cst_notify_ready(const char *status);
void cst_notify_status(const char *status);
void cst_notify_alive(void);
void cst_notify_stopping(void);

#endif
