/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets of sessions that have ended while their clients had not read all descriptors that they
 * were sent. Closing such a socket would not take the descriptors out of the client's queue: they
 * would stay in flight, and nobody would count them. So the socket is shut down but stays open, and
 * its descriptors stay charged, until the kernel says that the client has read its queue or closed
 * its end. Each socket here has at least one such descriptor, so the limits of daemon/unread.h
 * bound how many there are. Loop thread only. */
#ifndef CST_LINGER_H
#define CST_LINGER_H

#include "daemon/unread.h"

#include <sys/queue.h>
#include <uv.h>

struct cst_linger; /* private */

struct cst_lingers {
    TAILQ_HEAD(, cst_linger) sockets;
    uv_timer_t timer; /* Runs while there are any. */
};

void cst_lingers_init(struct cst_lingers *lingers, uv_loop_t *loop);

/* Close @fd, whose descriptors in flight @unread counts, as soon as none of them is in flight: now,
 * or later. Both are taken over; the user's account gets a reference for as long as it is needed.
 * Without memory the socket is closed at once, and what is in flight is no longer counted. */
void cst_lingers_close_socket(struct cst_lingers *lingers, int fd, struct cst_unread *unread);

/* Close all of them; the daemon ends. */
void cst_lingers_close(struct cst_lingers *lingers);

#endif
