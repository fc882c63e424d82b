/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets of ended sessions whose clients have not read all descriptors that were sent to them.
 * Closing such a socket would not remove the descriptors from the client's queue: they would stay
 * in flight, but the daemon would not count them any more. The socket is therefore shut down but
 * stays open, and its descriptors stay charged, until the kernel reports that the client has read
 * its queue or closed its end. Each socket here has at least one descriptor in flight, and the
 * limits of daemon/session/unread.h therefore bound the number of sockets. Loop thread only. */
#ifndef CST_LINGER_H
#define CST_LINGER_H

#include "daemon/session/unread.h"

#include <sys/queue.h>
#include <uv.h>

struct cstd_linger; /* Private to linger.c. */

struct cstd_lingers {
    TAILQ_HEAD(, cstd_linger) sockets;
    uv_timer_t timer; /* Runs while there are sockets. */
};

/* Initialise an empty list. */
void cstd_lingers_init(struct cstd_lingers *lingers, uv_loop_t *loop);

/* Close @fd as soon as none of the descriptors that @unread counts is in flight: now or later. @fd
 * and the counts of @unread are taken over; the user's account gets a reference until the socket is
 * closed. If memory is short the socket is closed at once, and its descriptors in flight are no
 * longer counted. */
void cstd_lingers_close_socket(struct cstd_lingers *lingers, int fd, struct cstd_unread *unread);

/* Close those sockets now whose descriptors have all been read. A timer does so regularly. */
void cstd_lingers_look(struct cstd_lingers *lingers);

/* Close all sockets at the end of the daemon. */
void cstd_lingers_close(struct cstd_lingers *lingers);

#endif
