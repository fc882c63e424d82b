/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which the daemon reads requests: users take turns. Each user has a queue of sessions
 * whose sockets have a request to read. One request of the first user is read, then that user goes
 * to the end of the line. A user with a hundred busy sessions therefore delays the request of
 * another user by one request, and not by a hundred.
 *
 * This module decides the order alone. It knows nothing of sockets and sessions, and allocates
 * nothing. Loop thread only. */
#ifndef CST_TURNS_H
#define CST_TURNS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/queue.h>

struct cstd_turn_user;

/* A session's place in the line, embedded in the session. Zeroed: not in the line. */
struct cstd_turn {
    TAILQ_ENTRY(cstd_turn) link; /* in its user's queue */
    struct cstd_turn_user *user; /* the owner of the queue; NULL: the session is not in the line */
};

/* A user's place in the line, embedded in the user's account. */
struct cstd_turn_user {
    TAILQ_ENTRY(cstd_turn_user) link; /* in the line, while @queue is not empty */
    TAILQ_HEAD(, cstd_turn) queue;    /* this user's sessions with a request to read */
};

/* The line. */
struct cstd_turns {
    TAILQ_HEAD(, cstd_turn_user) users;
};

static inline void cstd_turns_init(struct cstd_turns *turns)
{
    TAILQ_INIT(&turns->users);
}

static inline void cstd_turns_init_user(struct cstd_turn_user *user)
{
    TAILQ_INIT(&user->queue);
}

/* Put @turn at the end of the queue of @user. No effect if it is in the line already. */
static inline void cstd_turns_add(struct cstd_turns *turns, struct cstd_turn_user *user,
                                  struct cstd_turn *turn)
{
    if (turn->user != NULL) {
        return;
    }
    if (TAILQ_EMPTY(&user->queue)) {
        TAILQ_INSERT_TAIL(&turns->users, user, link);
    }
    turn->user = user;
    TAILQ_INSERT_TAIL(&user->queue, turn, link);
}

/* Take @turn out of the line. No effect if it is not in the line. */
static inline void cstd_turns_remove(struct cstd_turns *turns, struct cstd_turn *turn)
{
    struct cstd_turn_user *user = turn->user;

    if (user == NULL) {
        return;
    }
    turn->user = NULL;
    TAILQ_REMOVE(&user->queue, turn, link);
    if (TAILQ_EMPTY(&user->queue)) {
        TAILQ_REMOVE(&turns->users, user, link);
    }
}

/* Take the next turn out of the line, and send its user to the end of the line. NULL: the line is
 * empty. */
static inline struct cstd_turn *cstd_turns_next(struct cstd_turns *turns)
{
    struct cstd_turn_user *user = TAILQ_FIRST(&turns->users);
    struct cstd_turn *turn;

    if (user == NULL) {
        return NULL;
    }
    turn = TAILQ_FIRST(&user->queue);
    TAILQ_REMOVE(&turns->users, user, link);
    TAILQ_INSERT_TAIL(&turns->users, user, link);
    cstd_turns_remove(turns, turn);
    return turn;
}

#endif
