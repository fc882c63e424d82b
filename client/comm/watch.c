/* SPDX-License-Identifier: Apache-2.0 */
#include "client/comm/watch.h"

#include "client/comm/agreement.h"
#include "client/comm/progress.h"

#include <poll.h>
#include <signal.h>

/* Time between two looks at the connection. The end of the daemon wakes nobody. */
#define LOOK_MS 100

/* Called with the lock. */
static bool differ(struct cst_comm *comm)
{
    return cstc_agreement_look(comm, comm->n_started, NULL) != CST_OK;
}

/* Return whether the thread has something to do. */
static bool is_woken(void *arg)
{
    struct cst_comm *comm = arg;
    bool is;

    (void)pthread_mutex_lock(&comm->watch.lock);
    is = comm->watch.quits || cstc_progress_is_lost(comm) || differ(comm) ||
         cstc_progress_missing(comm, comm->n_started) < CST_COMM_MAX_RANKS;
    (void)pthread_mutex_unlock(&comm->watch.lock);
    return is;
}

/* Return whether the connection to the daemon has ended. Called with the lock, and reads nothing.
 */
static bool is_hung_up(const struct cstc_watch *watch)
{
    struct pollfd fd = {.fd = watch->sock};

    return watch->sock < 0 || (poll(&fd, 1, 0) > 0 && (fd.revents & (POLLHUP | POLLERR)) != 0);
}

static bool quits(void *arg)
{
    struct cst_comm *comm = arg;
    bool does;

    (void)pthread_mutex_lock(&comm->watch.lock);
    does = comm->watch.quits;
    (void)pthread_mutex_unlock(&comm->watch.lock);
    return does;
}

/* Give up what does not end by itself: a rank may leave as soon as its last call has ended. */
static void give_up(struct cst_comm *comm)
{
    const struct cst_shared_wait wait = {
        .attempt = UINT64_MAX, .for_ends = true, .ready = quits, .arg = comm};
    bool ends = false;

    for (unsigned ms = 0; !ends; ms += LOOK_MS) {
        enum cstc_ends how;

        (void)pthread_mutex_lock(&comm->watch.lock);
        comm->watch.has_noticed = true;
        how = differ(comm) ? CSTC_ENDS_NEVER : cstc_progress_ends(comm);
        ends = comm->watch.quits || how != CSTC_ENDS_PROBABLY || ms >= CSTC_PROGRESS_END_MS;
        if (ends && !comm->watch.quits && how != CSTC_ENDS_SURELY) {
            comm->device->stop(comm->device_arg);
            comm->watch.has_stopped = true;
        }
        (void)pthread_mutex_unlock(&comm->watch.lock);
        if (!ends) {
            (void)cst_shared_wait(comm->segment.base, &wait, LOOK_MS);
        }
    }
}

static void *watch(void *arg)
{
    struct cst_comm *comm = arg;
    const struct cst_shared_wait wait = {
        .attempt = comm->watch.attempt, .for_ends = true, .ready = is_woken, .arg = comm};
    bool is_over = false;

    while (!is_over) {
        const int rc = cst_shared_wait(comm->segment.base, &wait, LOOK_MS);

        (void)pthread_mutex_lock(&comm->watch.lock);
        is_over = rc != CST_ETIMEDOUT || comm->watch.has_failed || is_hung_up(&comm->watch);
        (void)pthread_mutex_unlock(&comm->watch.lock);
    }
    give_up(comm);
    return NULL;
}

void cstc_watch_init(struct cst_comm *comm)
{
    comm->watch = (struct cstc_watch){.lock = PTHREAD_MUTEX_INITIALIZER, .sock = -1};
}

/* All signals are blocked in the thread: they belong to the program's own threads. */
int cstc_watch_start(struct cst_comm *comm, struct cst_err *err)
{
    sigset_t all, before;
    int rc;

    comm->watch.attempt = comm->job->attempt;
    comm->watch.sock = comm->job->client->sock;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&comm->watch.thread, NULL, watch, comm);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        return cst_err_errno(err, CST_ENOMEM, rc, "starting the thread that watches ranks");
    }
    comm->watch.runs = true;
    return CST_OK;
}

void cstc_watch_hang_up(struct cst_comm *comm)
{
    (void)pthread_mutex_lock(&comm->watch.lock);
    comm->watch.sock = -1;
    (void)pthread_mutex_unlock(&comm->watch.lock);
}

void cstc_watch_fail(struct cst_comm *comm)
{
    (void)pthread_mutex_lock(&comm->watch.lock);
    comm->watch.has_failed = true;
    (void)pthread_mutex_unlock(&comm->watch.lock);
}

void cstc_watch_end(struct cst_comm *comm, bool forked)
{
    struct cst_comm_control *control = comm->segment.base;

    if (!comm->watch.runs || forked) {
        return;
    }
    (void)pthread_mutex_lock(&comm->watch.lock);
    comm->watch.quits = true;
    (void)pthread_mutex_unlock(&comm->watch.lock);
    cst_shared_wake(&control->head);
    (void)pthread_join(comm->watch.thread, NULL);
    comm->watch.runs = false;
}
