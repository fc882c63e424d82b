/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/search_queue.h"

#include <stdlib.h>

struct cstd_search_user {
    LIST_ENTRY(cstd_search_user) link;
    uid_t uid;
    uint64_t spent_ns;                      /* Time of the user's searches that have ended. */
    bool running[CSTD_SEARCH_SIZES];        /* The user has a running search of the size. */
    TAILQ_HEAD(, cstd_search_turn) waiting; /* Smallest first; among equal ones the oldest. */
};

static enum cstd_search_size size_of(const struct cstd_search_turn *turn)
{
    return turn->work <= CSTD_SEARCH_SMALL_WORK ? CSTD_SEARCH_SMALL : CSTD_SEARCH_LARGE;
}

void cstd_search_queue_init(struct cstd_search_queue *queue)
{
    *queue = (struct cstd_search_queue){0};
    LIST_INIT(&queue->users);
}

void cstd_search_queue_close(struct cstd_search_queue *queue)
{
    while (!LIST_EMPTY(&queue->users)) {
        struct cstd_search_user *user = LIST_FIRST(&queue->users);

        LIST_REMOVE(user, link);
        free(user);
    }
    queue->floor_ns = 0;
}

/* Accounts are kept as long as any search waits or runs. If an account ended with its user's last
 * search, a user could begin a new account with each search. */
static void close_if_idle(struct cstd_search_queue *queue)
{
    if (queue->n_waiting == 0 && queue->n_running[CSTD_SEARCH_SMALL] == 0 &&
        queue->n_running[CSTD_SEARCH_LARGE] == 0) {
        cstd_search_queue_close(queue);
    }
}

static struct cstd_search_user *find_user(struct cstd_search_queue *queue, uid_t uid)
{
    struct cstd_search_user *user;

    LIST_FOREACH(user, &queue->users, link)
    {
        if (user->uid == uid) {
            return user;
        }
    }
    user = calloc(1, sizeof *user);
    if (user != NULL) {
        user->uid = uid;
        /* With 0 a new user would go before all others for a long time. */
        user->spent_ns = queue->floor_ns;
        TAILQ_INIT(&user->waiting);
        LIST_INSERT_HEAD(&queue->users, user, link);
    }
    return user;
}

int cstd_search_queue_add(struct cstd_search_queue *queue, struct cstd_search_turn *turn, uid_t uid,
                          uint64_t work, struct cst_err *err)
{
    struct cstd_search_user *user = find_user(queue, uid);
    struct cstd_search_turn *other;

    if (user == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a plan");
    }
    *turn = (struct cstd_search_turn){.user = user, .work = work};
    TAILQ_FOREACH(other, &user->waiting, link)
    {
        if (other->work > work) {
            break;
        }
    }
    if (other != NULL) {
        TAILQ_INSERT_BEFORE(other, turn, link);
    } else {
        TAILQ_INSERT_TAIL(&user->waiting, turn, link);
    }
    queue->n_waiting++;
    return CST_OK;
}

/* Return the smallest search of @user that may run now; NULL: none. */
static struct cstd_search_turn *first_of(const struct cstd_search_queue *queue,
                                         const struct cstd_search_user *user)
{
    struct cstd_search_turn *turn;

    TAILQ_FOREACH(turn, &user->waiting, link)
    {
        enum cstd_search_size size = size_of(turn);

        if (!user->running[size] && queue->n_running[size] < CSTD_SEARCH_THREADS) {
            return turn;
        }
    }
    return NULL;
}

static bool goes_before(const struct cstd_search_turn *a, const struct cstd_search_turn *b)
{
    if (b == NULL || a->user->spent_ns != b->user->spent_ns) {
        return b == NULL || a->user->spent_ns < b->user->spent_ns;
    }
    return a->work < b->work;
}

struct cstd_search_turn *cstd_search_queue_next(struct cstd_search_queue *queue)
{
    struct cstd_search_turn *best = NULL;
    struct cstd_search_user *user;

    LIST_FOREACH(user, &queue->users, link)
    {
        struct cstd_search_turn *turn = first_of(queue, user);

        best = turn != NULL && goes_before(turn, best) ? turn : best;
    }
    if (best == NULL) {
        return NULL;
    }
    user = best->user;
    TAILQ_REMOVE(&user->waiting, best, link);
    best->running = true;
    user->running[size_of(best)] = true;
    queue->floor_ns = user->spent_ns > queue->floor_ns ? user->spent_ns : queue->floor_ns;
    queue->n_running[size_of(best)]++;
    queue->n_waiting--;
    return best;
}

void cstd_search_queue_done(struct cstd_search_queue *queue, struct cstd_search_turn *turn,
                            uint64_t ns)
{
    turn->user->spent_ns += ns;
    turn->user->running[size_of(turn)] = false;
    turn->running = false;
    queue->n_running[size_of(turn)]--;
    close_if_idle(queue);
}

void cstd_search_queue_remove(struct cstd_search_queue *queue, struct cstd_search_turn *turn)
{
    TAILQ_REMOVE(&turn->user->waiting, turn, link);
    queue->n_waiting--;
    close_if_idle(queue);
}
