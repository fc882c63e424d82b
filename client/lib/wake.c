/* SPDX-License-Identifier: Apache-2.0 */
#include "client/lib/wake.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* How long to wait until a request is sent again for which the kernel had no memory. */
enum { RETRY_MS = 10 };

static int add(const struct cstc_wake *wake, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

    return epoll_ctl(wake->epoll, EPOLL_CTL_ADD, fd, &event);
}

/* The timer is made here and not when memory is short, because it could not be made then. */
int cstc_wake_open(struct cstc_wake *wake, int sock, struct cst_err *err)
{
    wake->epoll = epoll_create1(EPOLL_CLOEXEC);
    wake->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (wake->epoll < 0 || wake->timer < 0 || add(wake, sock) != 0 || add(wake, wake->timer) != 0) {
        return cst_err_errno(err, CST_EIO, errno, "no descriptor to poll");
    }
    return CST_OK;
}

int cstc_wake_add_socket(struct cstc_wake *wake, int sock, struct cst_err *err)
{
    cstc_wake_resend(wake, sock, CSTC_RESEND_NONE);
    return add(wake, sock) == 0 ? CST_OK : cst_err_errno(err, CST_EIO, errno, "the socket to poll");
}

int cstc_wake_add_device(struct cstc_wake *wake, int fd, struct cst_err *err)
{
    return add(wake, fd) == 0
               ? CST_OK
               : cst_err_errno(err, CST_EINVAL, errno, "the device's descriptor %d", fd);
}

void cstc_wake_close(struct cstc_wake *wake)
{
    if (wake->epoll >= 0) {
        (void)close(wake->epoll);
    }
    if (wake->timer >= 0) {
        (void)close(wake->timer);
    }
    wake->epoll = wake->timer = -1;
}

/* Neither epoll_ctl nor timerfd_settime can fail here: both change what exists. */
void cstc_wake_resend(struct cstc_wake *wake, int sock, enum cstc_resend resend)
{
    enum cstc_resend before = wake->resend;

    if ((resend == CSTC_RESEND_SPACE) != (before == CSTC_RESEND_SPACE)) {
        struct epoll_event event = {
            .events = EPOLLIN | (resend == CSTC_RESEND_SPACE ? EPOLLOUT : 0), .data.fd = sock};

        (void)epoll_ctl(wake->epoll, EPOLL_CTL_MOD, sock, &event);
    }
    /* A timer that has expired polls readable until it is set again. */
    if (resend == CSTC_RESEND_LATER || before == CSTC_RESEND_LATER) {
        struct itimerspec when = {.it_value.tv_nsec =
                                      resend == CSTC_RESEND_LATER ? RETRY_MS * 1000000 : 0};

        (void)timerfd_settime(wake->timer, 0, &when, NULL);
    }
    wake->resend = resend;
}
