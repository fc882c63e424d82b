/* SPDX-License-Identifier: Apache-2.0 */
/* Notifications to the service manager: READY, STATUS, WATCHDOG and STOPPING, and descriptors for
 * its store. All functions do nothing if NOTIFY_SOCKET is not set. Loop thread only.
 *
 * libsystemd's sd_notify blocks when the manager's queue is full (ten datagrams by default). This
 * module therefore speaks the protocol itself and never blocks. READY, STATUS and STOPPING are
 * states: the newest one is kept, and sent as soon as the queue has space. A WATCHDOG for which
 * there is no space is dropped and counted, because a later one serves as well. Messages about
 * descriptors wait in a queue, and are sent before the states. */
#ifndef CST_NOTIFY_H
#define CST_NOTIFY_H

#include "cistern/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <uv.h>

struct cstd_notify_store; /* private: one file */

struct cstd_notify {
    int fd; /* Datagram socket, non-blocking; -1: there is no service manager. */
    struct sockaddr_un address;
    socklen_t address_bytes;
    uv_poll_t room; /* Polls for space in the manager's queue; active while a message waits. */
    bool ready;     /* READY is still to be sent. */
    bool stopping;  /* STOPPING is still to be sent. */
    bool changed;   /* The text in status is still to be sent. */
    char status[256];
    STAILQ_HEAD(, cstd_notify_store) stores; /* Messages about descriptors that wait. */
    /* The manager's queue was full at the last attempt. Limits the warning to one per full
     * queue. */
    bool full;
    uint64_t n_dropped; /* Number of WATCHDOG messages that were dropped. */
};

/* Return the interval in ms at which WATCHDOG=1 should be sent. 0: no watchdog is configured. */
uint64_t cstd_notify_watchdog_ms(void);

/* Open the socket that NOTIFY_SOCKET names. An unusable name is logged once. The handles of @notify
 * do not keep @loop running. */
void cstd_notify_init(struct cstd_notify *notify, uv_loop_t *loop);

/* Try once more to send the messages that wait, drop the rest, and close. The loop must run once
 * more afterwards, for the handle to be closed. */
void cstd_notify_close(struct cstd_notify *notify);

/* Send READY with @status. READY is kept until it can be sent; only cstd_notify_stopping cancels
 * it. */
void cstd_notify_ready(struct cstd_notify *notify, const char *status);

/* Send @status, unless it equals the last status. */
void cstd_notify_status(struct cstd_notify *notify, const char *status);

/* Ask the manager to store the @n descriptors @fds under @name, and to remove those under @name
 * from its store. Both are sent in the order of the calls. The descriptors stay the caller's, which
 * may close them at once. CST_ENOMEM: out of memory or descriptors. */
int cstd_notify_store(struct cstd_notify *notify, const char *name, const int *fds, uint32_t n,
                      struct cst_err *err);
void cstd_notify_unstore(struct cstd_notify *notify, const char *name);

/* Send WATCHDOG=1. Also retries the states that wait. */
void cstd_notify_alive(struct cstd_notify *notify);
/* Send STOPPING with the status "shutting down". */
void cstd_notify_stopping(struct cstd_notify *notify);

#endif
