/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/engine/bandwidth_share.h"

#include "kernels/engine/thread_pool.h"
#include "proto/clock.h"

#include <stdlib.h>
#include <time.h>

/* Interval between checks of the copies of other engines, in nanoseconds. */
#define LOOK_NS 200000

int cste_bandwidth_share_open(struct cste_bandwidth_share *budget, double share, unsigned n_threads,
                              struct cst_err *err)
{
    pthread_condattr_t monotonic;

    if (!(share >= 0.0 && share <= CSTE_BANDWIDTH_SHARE_MAX_SHARE)) {
        return cst_err_set(err, CST_EINVAL, "share of copies %g, allowed 0 to %g", share,
                           CSTE_BANDWIDTH_SHARE_MAX_SHARE);
    }
    *budget = (struct cste_bandwidth_share){.share = share,
                                            .debts = calloc(n_threads, sizeof *budget->debts)};
    if (budget->debts == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for the budget of %u threads", n_threads);
    }
    (void)pthread_mutex_init(&budget->mutex, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&budget->quiet, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    return CST_OK;
}

void cste_bandwidth_share_watch(struct cste_bandwidth_share *budget,
                                const struct cst_traffic *slots, uint32_t n)
{
    budget->slots = slots;
    budget->n_slots = n;
}

void cste_bandwidth_share_close(struct cste_bandwidth_share *budget)
{
    (void)pthread_cond_destroy(&budget->quiet);
    (void)pthread_mutex_destroy(&budget->mutex);
    free(budget->debts);
}

void cste_bandwidth_share_begin(struct cste_bandwidth_share *budget, uint64_t now_ns)
{
    (void)pthread_mutex_lock(&budget->mutex);
    if (budget->n_copies++ == 0) {
        budget->since_ns = now_ns;
    }
    (void)pthread_mutex_unlock(&budget->mutex);
}

void cste_bandwidth_share_end(struct cste_bandwidth_share *budget)
{
    (void)pthread_mutex_lock(&budget->mutex);
    if (--budget->n_copies == 0) {
        (void)pthread_cond_broadcast(&budget->quiet);
    }
    (void)pthread_mutex_unlock(&budget->mutex);
}

static bool others_copy(const struct cste_bandwidth_share *budget)
{
    return cst_traffic_any(budget->slots, budget->n_slots);
}

/* Returns since when there are copies; UINT64_MAX: there are none. It is not known when the copies
 * of other engines began; these copies count from @began_ns. Called with the mutex held. */
static uint64_t copies_since(const struct cste_bandwidth_share *budget, uint64_t began_ns)
{
    if (others_copy(budget)) {
        return began_ns;
    }
    return budget->n_copies > 0 ? budget->since_ns : UINT64_MAX;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Returns the part of the @busy_ns of a piece that overlapped with copies. */
static uint64_t beside_copies(struct cste_bandwidth_share *budget, uint64_t began_ns,
                              uint64_t ended_ns, uint64_t busy_ns)
{
    uint64_t from;

    (void)pthread_mutex_lock(&budget->mutex);
    from = copies_since(budget, began_ns);
    (void)pthread_mutex_unlock(&budget->mutex);
    from = began_ns > from ? began_ns : from;
    if (from >= ended_ns) {
        return 0;
    }
    return busy_ns < ended_ns - from ? busy_ns : ended_ns - from;
}

void cste_bandwidth_share_spend(struct cste_bandwidth_share *budget, unsigned thread,
                                uint64_t began_ns, uint64_t ended_ns, uint64_t busy_ns)
{
    struct cste_bandwidth_share_debt *debt = &budget->debts[thread];
    uint64_t counts = beside_copies(budget, began_ns, ended_ns, busy_ns);
    int64_t idle = (int64_t)(ended_ns - debt->until_ns) - (int64_t)busy_ns;

    debt->until_ns = ended_ns;
    /* Idle time reduces a debt. A thread without debt earns no credit by idle time. */
    if (debt->owed_ns > 0) {
        debt->owed_ns = larger(debt->owed_ns - idle, -CSTE_BANDWIDTH_SHARE_LEAST_NS);
    }
    /* After the end of copies, at most one sleep of the debt is kept. */
    if (counts == 0 && debt->owed_ns > CSTE_BANDWIDTH_SHARE_LEAST_NS) {
        debt->owed_ns = CSTE_BANDWIDTH_SHARE_LEAST_NS;
    }
    debt->owed_ns += (int64_t)((double)counts * (budget->share / (1.0 - budget->share)));
}

/* Returns when the pause of @thread ends; 0: no pause is due. Called with the mutex held. */
static uint64_t due(const struct cste_bandwidth_share *budget, unsigned thread, uint64_t now_ns)
{
    const struct cste_bandwidth_share_debt *debt = &budget->debts[thread];
    uint64_t until = debt->until_ns + (uint64_t)debt->owed_ns;

    return debt->owed_ns >= CSTE_BANDWIDTH_SHARE_LEAST_NS && until > now_ns &&
                   (budget->n_copies > 0 || others_copy(budget))
               ? until
               : 0;
}

uint64_t cste_bandwidth_share_due(struct cste_bandwidth_share *budget, unsigned thread,
                                  uint64_t now_ns)
{
    uint64_t until;

    (void)pthread_mutex_lock(&budget->mutex);
    until = due(budget, thread, now_ns);
    (void)pthread_mutex_unlock(&budget->mutex);
    return until;
}

/* Returns when a pausing thread wakes up. Other engines do not signal the end of their copies; the
 * thread checks them every LOOK_NS. Called with the mutex held. */
static struct timespec until_then(const struct cste_bandwidth_share *budget, uint64_t until,
                                  uint64_t now)
{
    if (budget->n_copies == 0 && until > now + LOOK_NS) {
        until = now + LOOK_NS;
    }
    return (struct timespec){.tv_sec = (time_t)(until / 1000000000u),
                             .tv_nsec = (long)(until % 1000000000u)};
}

void cste_bandwidth_share_hold(struct cste_bandwidth_share *budget, unsigned thread)
{
    uint64_t began = cst_clock_ns(), now = began, until;

    (void)pthread_mutex_lock(&budget->mutex);
    while ((until = due(budget, thread, now)) != 0) {
        struct timespec ts = until_then(budget, until, now);

        (void)pthread_cond_timedwait(&budget->quiet, &budget->mutex, &ts);
        now = cst_clock_ns();
    }
    budget->held_ns += now - began;
    (void)pthread_mutex_unlock(&budget->mutex);
}

uint64_t cste_bandwidth_share_held_ns(struct cste_bandwidth_share *budget)
{
    uint64_t held;

    (void)pthread_mutex_lock(&budget->mutex);
    held = budget->held_ns;
    (void)pthread_mutex_unlock(&budget->mutex);
    return held;
}
