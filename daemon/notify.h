/* SPDX-License-Identifier: Apache-2.0 */
/* What the service manager hears: READY, STATUS, WATCHDOG, STOPPING. Without NOTIFY_SOCKET all of
 * it does nothing.
 *
 * libsystemd's sd_notify waits when the manager's queue is full (ten datagrams, by default), so
 * this speaks the protocol itself and never waits. What is a state (READY, STATUS, STOPPING) is
 * kept and sent as soon as there is room, the newest only; a WATCHDOG without room is dropped and
 * counted: a later one is as good. Loop thread only. */
#ifndef CST_NOTIFY_H
#define CST_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <uv.h>

struct cst_notify {
    int fd; /* datagrams, non-blocking; -1: there is no manager */
    struct sockaddr_un address;
    socklen_t address_bytes;
    uv_poll_t room; /* active while something waits for room */
    bool ready;     /* READY is to be sent */
    bool stopping;  /* STOPPING is to be sent */
    bool changed;   /* status is to be sent */
    char status[256];
    bool full;          /* the manager's queue was full at the last try: said once */
    uint64_t n_dropped; /* WATCHDOGs */
};

/* How often WATCHDOG=1 should be sent, ms; 0: no watchdog is set. */
uint64_t cst_notify_watchdog_ms(void);

/* Look for NOTIFY_SOCKET. A name that cannot be used is said in the log, once. Nothing of it keeps
 * @loop running. */
void cst_notify_init(struct cst_notify *notify, uv_loop_t *loop);

/* One more try for what waits; the rest is given up. The loop must run once more. */
void cst_notify_close(struct cst_notify *notify);

/* READY is never lost while the daemon runs, unless by STOPPING. */
void cst_notify_ready(struct cst_notify *notify, const char *status);

/* Nothing is sent where @status is the last one. */
void cst_notify_status(struct cst_notify *notify, const char *status);

void cst_notify_alive(struct cst_notify *notify);
void cst_notify_stopping(struct cst_notify *notify);

#endif
