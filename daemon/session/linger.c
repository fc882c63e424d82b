/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/session/linger.h"

#include "daemon/budget/quota.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* Interval between checks in milliseconds. The kernel does not report when a client reads. */
enum { LOOK_MS = 250 };

struct cstd_linger {
    TAILQ_ENTRY(cstd_linger) link;
    int fd;
    struct cstd_unread unread;
};

static void drop(struct cstd_lingers *lingers, struct cstd_linger *linger)
{
    TAILQ_REMOVE(&lingers->sockets, linger, link);
    (void)close(linger->fd);
    cstd_unread_close(&linger->unread);
    cstd_quota_unref(linger->unread.account);
    free(linger);
}

void cstd_lingers_look(struct cstd_lingers *lingers)
{
    struct cstd_linger *linger, *next;

    for (linger = TAILQ_FIRST(&lingers->sockets); linger != NULL; linger = next) {
        next = TAILQ_NEXT(linger, link);
        cstd_unread_refresh(&linger->unread, linger->fd);
        if (linger->unread.n == 0) {
            drop(lingers, linger);
        }
    }
    if (TAILQ_EMPTY(&lingers->sockets)) {
        (void)uv_timer_stop(&lingers->timer);
    }
}

static void on_timer(uv_timer_t *timer)
{
    cstd_lingers_look(timer->data);
}

void cstd_lingers_init(struct cstd_lingers *lingers, uv_loop_t *loop)
{
    TAILQ_INIT(&lingers->sockets);
    (void)uv_timer_init(loop, &lingers->timer);
    lingers->timer.data = lingers;
}

void cstd_lingers_close_socket(struct cstd_lingers *lingers, int fd, struct cstd_unread *unread)
{
    struct cstd_linger *linger = NULL;

    cstd_unread_refresh(unread, fd);
    if (unread->n > 0) {
        linger = malloc(sizeof *linger);
    }
    if (linger == NULL) {
        cstd_unread_close(unread);
        (void)close(fd);
        return;
    }
    /* The client sees the end of the connection and can still read what was sent. */
    (void)shutdown(fd, SHUT_RDWR);
    *linger = (struct cstd_linger){.fd = fd, .unread = *unread};
    unread->n = 0;
    (void)cstd_quota_ref(linger->unread.account);
    if (TAILQ_EMPTY(&lingers->sockets)) {
        (void)uv_timer_start(&lingers->timer, on_timer, LOOK_MS, LOOK_MS);
    }
    TAILQ_INSERT_TAIL(&lingers->sockets, linger, link);
}

void cstd_lingers_close(struct cstd_lingers *lingers)
{
    while (!TAILQ_EMPTY(&lingers->sockets)) {
        drop(lingers, TAILQ_FIRST(&lingers->sockets));
    }
    uv_close((uv_handle_t *)&lingers->timer, NULL);
}
