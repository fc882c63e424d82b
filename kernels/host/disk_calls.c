/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/host/disk_calls.h"

#include "proto/clock.h"

#include <errno.h>
#include <inttypes.h>

void cste_disk_calls_init(struct cste_disk_calls *calls, const struct cste_disk_io *io)
{
    calls->io = io;
    (void)pthread_mutex_init(&calls->mutex, NULL);
    TAILQ_INIT(&calls->list);
}

void cste_disk_calls_close(struct cste_disk_calls *calls)
{
    (void)pthread_mutex_destroy(&calls->mutex);
}

void cste_disk_calls_begin(struct cste_disk_calls *calls, struct cste_disk_call *call)
{
    (void)pthread_mutex_lock(&calls->mutex);
    call->began_ns = cst_clock_ns();
    TAILQ_INSERT_TAIL(&calls->list, call, link);
    (void)pthread_mutex_unlock(&calls->mutex);
}

void cste_disk_calls_end(struct cste_disk_calls *calls, struct cste_disk_call *call)
{
    int saved = errno;

    (void)pthread_mutex_lock(&calls->mutex);
    TAILQ_REMOVE(&calls->list, call, link);
    (void)pthread_mutex_unlock(&calls->mutex);
    errno = saved;
}

static int say_late(const struct cste_disk_call *call, uint64_t seconds, struct cst_err *err)
{
    return call->bytes == 0
               ? cst_err_set(err, CST_ETIMEDOUT,
                             "%s %s: the drive has not answered for %" PRIu64 " s", call->what,
                             call->name, seconds)
               : cst_err_set(err, CST_ETIMEDOUT,
                             "%s %" PRIu64 " bytes at %" PRIu64
                             " of %s: the drive has not answered for %" PRIu64 " s",
                             call->what, call->bytes, call->offset, call->name, seconds);
}

int cste_disk_calls_check(struct cste_disk_calls *calls, uint32_t limit_s, unsigned *thread,
                          struct cst_err *err)
{
    const struct cste_disk_call *oldest;
    uint64_t seconds;
    int rc = CST_OK;

    (void)pthread_mutex_lock(&calls->mutex);
    oldest = TAILQ_FIRST(&calls->list);
    seconds = oldest != NULL ? (cst_clock_ns() - oldest->began_ns) / 1000000000u : 0;
    if (oldest != NULL && seconds >= limit_s) {
        *thread = oldest->thread;
        rc = say_late(oldest, seconds, err);
    }
    (void)pthread_mutex_unlock(&calls->mutex);
    return rc;
}
