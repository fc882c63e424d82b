/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors that were sent to a client and that it may not have received yet.
 *
 * The kernel limits how many descriptors of one user are in flight on Unix sockets: sent, and not
 * received by anybody. The limit is the sender's RLIMIT_NOFILE, whichever sockets they are on. A
 * client that never reads could use up what the daemon needs for its engines and its other clients.
 * So each session may have CST_UNREAD_SESSION of them, its user as many as [quota] allows, and all
 * sessions together a quarter of that limit.
 *
 * What was received is not what a client says but what the kernel says: SIOCOUTQ is 0 when
 * everything that was sent on a socket has been taken out of its queue (a message that was looked
 * at with MSG_PEEK has not). Until then all descriptors sent since the socket was last seen empty
 * count as unread, so the count errs towards more only. Loop thread only. */
#ifndef CST_UNREAD_H
#define CST_UNREAD_H

#include "daemon/quota.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    CST_UNREAD_SESSION = 32, /* Descriptors in flight to one session: two replies full of them. */
};

/* The daemon's account. */
struct cst_unread_total {
    uint32_t n;       /* Descriptors in flight to all sessions. */
    uint32_t waiting; /* Duplicates that all sessions' outboxes hold. */
    uint32_t limit;   /* Of each of these two. */
};

/* A session's account. Zeroed otherwise. */
struct cst_unread {
    struct cst_unread_total *total;    /* the daemon's */
    struct cst_quota_account *account; /* its user's; NULL: nobody's (a manager) */
    uint32_t n;                        /* Descriptors in flight to this session. */
    uint64_t since_ns; /* With n > 0: when the first of them was sent (monotonic time). */
};

/* Set the limit from RLIMIT_NOFILE as it is now: a quarter of it, but no less than one reply can
 * carry. */
void cst_unread_init(struct cst_unread_total *total);

/* Set the count to 0: the socket is closed, and daemon/linger.h saw to what was in flight. */
void cst_unread_close(struct cst_unread *unread);

/* Set the count to 0 if everything that was sent on @sock has been received. */
void cst_unread_refresh(struct cst_unread *unread, int sock);

/* A message with @n_fds descriptors may be sent on @sock now. Refreshes the session's count where
 * that decides. */
bool cst_unread_admits(struct cst_unread *unread, int sock, unsigned n_fds);

/* Which limit does not admit @n_fds more now. */
enum cst_unread_limit { CST_UNREAD_FITS, CST_UNREAD_OWN, CST_UNREAD_USER, CST_UNREAD_ALL };
enum cst_unread_limit cst_unread_limit(const struct cst_unread *unread, unsigned n_fds);

/* Which of the limits that the session shares with others is reached: CST_UNREAD_ALL,
 * CST_UNREAD_USER, or CST_UNREAD_FITS: none. */
enum cst_unread_limit cst_unread_shared_limit(const struct cst_unread *unread, unsigned n_fds);

/* @n_fds descriptors were sent. */
void cst_unread_sent(struct cst_unread *unread, unsigned n_fds);

/* Keep @n_fds duplicates in the outbox until they can be sent. False: all sessions together have
 * too many. */
bool cst_unread_keep(struct cst_unread *unread, unsigned n_fds);
void cst_unread_unkeep(struct cst_unread *unread, unsigned n_fds);

#endif
