/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors that were sent to a client and that the client may not have received yet.
 *
 * The kernel limits how many descriptors of one user are in flight on Unix sockets: sent, and
 * received by nobody. The limit is the sender's RLIMIT_NOFILE, for all sockets together. A client
 * that never reads could use up what the daemon needs for its engines and its other clients.
 * Therefore each session may have CSTD_UNREAD_SESSION descriptors in flight, its user as many as
 * [quota] allows, and all sessions together a quarter of the limit.
 *
 * The kernel tells what was received: SIOCOUTQ is 0 when all messages that were sent on a socket
 * have been taken out of its queue (a message that was only looked at with MSG_PEEK has not). Until
 * then, all descriptors sent since the socket was last seen empty count as unread; the count is
 * never too small. Loop thread only. */
#ifndef CST_UNREAD_H
#define CST_UNREAD_H

#include "daemon/budget/quota.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    /* Most descriptors in flight to one session: two replies with the most descriptors. */
    CSTD_UNREAD_SESSION = 32,
};

/* The daemon's count. */
struct cstd_unread_total {
    uint32_t n;       /* Number of descriptors in flight to all sessions. */
    uint32_t waiting; /* Number of duplicates that all sessions' outboxes hold. */
    uint32_t limit;   /* Limit of n, and of waiting. */
};

/* A session's count. The session sets total and account; the rest is zeroed. */
struct cstd_unread {
    struct cstd_unread_total *total; /* belongs to the daemon */
    /* The user's account; NULL: not limited by quotas (a manager). */
    struct cstd_quota_account *account;
    uint32_t n; /* Number of descriptors in flight to the session. */
    /* Valid if n > 0: when the first of the n descriptors was sent (monotonic time). */
    uint64_t since_ns;
};

/* Set the limit from the present RLIMIT_NOFILE: a quarter of it, but at least the descriptors of
 * one reply. */
void cstd_unread_init(struct cstd_unread_total *total);

/* Set the count to 0. The socket is closed, and daemon/session/linger.h has taken care of the
 * descriptors in flight. */
void cstd_unread_close(struct cstd_unread *unread);

/* Set the count to 0 if everything that was sent on @sock has been received. */
void cstd_unread_refresh(struct cstd_unread *unread, int sock);

/* Return whether a message with @n_fds descriptors may be sent on @sock now. Calls
 * cstd_unread_refresh first if the count is at a limit. */
bool cstd_unread_admits(struct cstd_unread *unread, int sock, unsigned n_fds);

/* Return the limit that @n_fds more descriptors would exceed; CSTD_UNREAD_FITS: none. */
enum cstd_unread_limit { CSTD_UNREAD_FITS, CSTD_UNREAD_OWN, CSTD_UNREAD_USER, CSTD_UNREAD_ALL };
enum cstd_unread_limit cstd_unread_limit(const struct cstd_unread *unread, unsigned n_fds);

/* Return the limit, of those that the session shares with others, that @n_fds more descriptors
 * would exceed: CSTD_UNREAD_ALL, CSTD_UNREAD_USER, or CSTD_UNREAD_FITS for none. */
enum cstd_unread_limit cstd_unread_shared_limit(const struct cstd_unread *unread, unsigned n_fds);

/* Count @n_fds descriptors that were sent. */
void cstd_unread_sent(struct cstd_unread *unread, unsigned n_fds);

/* Count @n_fds duplicates that the outbox keeps until they can be sent, or no longer keeps. False:
 * all sessions together hold too many; nothing is counted. */
bool cstd_unread_keep(struct cstd_unread *unread, unsigned n_fds);
void cstd_unread_unkeep(struct cstd_unread *unread, unsigned n_fds);

#endif
