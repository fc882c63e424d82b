/* SPDX-License-Identifier: Apache-2.0 */
/* How a thread of a device's driver wakes the thread that waits for the device. The driver calls a
 * function some time later, possibly after the communicator is closed and its memory unmapped.
 * Therefore the argument of the function is a number, by which it finds the memory or nothing. */
#ifndef CSTC_WAKEUP_H
#define CSTC_WAKEUP_H

#include "proto/shared.h"

struct cstc_wakeup {
    struct cstc_wakeup *next, **link; /* In the list of all; link NULL: not in it. */
    struct cst_shared_head *head;     /* Borrowed: on which the thread sleeps. */
    uintptr_t number;                 /* From 1 on, never used again. */
};

/* From now on, cstc_wakeup_call with the argument of @wakeup wakes the threads that sleep on @head.
 * Any thread. */
void cstc_wakeup_open(struct cstc_wakeup *wakeup, struct cst_shared_head *head);

/* cstc_wakeup_call does nothing for @wakeup afterwards. @wakeup is open, or zeroed. Any thread. In
 * a forked child the list is empty, and there is nothing to close. */
void cstc_wakeup_close(struct cstc_wakeup *wakeup);

/* The argument of cstc_wakeup_call for @wakeup. */
void *cstc_wakeup_arg(const struct cstc_wakeup *wakeup);

/* Wake the threads that sleep. Nothing happens if the wakeup is closed. Any thread; calls no
 * function of a driver. */
void cstc_wakeup_call(void *arg);

#endif
