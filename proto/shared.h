/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that ranks of a job share with each other, such as an edge: how its processes wait for
 * each other, and how they learn that a rank has died. This module knows only the head of the
 * memory. The user of a segment defines what follows, and its own words there.
 *
 *   +------+---------------------------------------------+
 *   | head | words and data of the user of the segment   |
 *   +------+---------------------------------------------+
 *
 * A process that changes a word for which others may wait calls cst_shared_notify afterwards. A
 * process that waits looks at its words, spins briefly, and then sleeps on the futex `event`. The
 * daemon maps the head, too. When an attempt is over, because a rank has died or for any other
 * reason, it writes the attempt's number to `over` and wakes all.
 *
 * Nobody may trust the head: every rank can write it. A wrong value wakes a process too early or
 * too late, and does nothing else. Therefore a waiting process repeats its wait after a short time,
 * and asks the daemon before it believes `over`. A head of zeros is valid. Any process and thread
 * that maps the memory may call all functions. */
#ifndef CST_SHARED_H
#define CST_SHARED_H

#include "cistern/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define CST_SHARED_HEAD_BYTES 128 /* Two cache lines, which processors often fetch in pairs. */

struct cst_shared_head {
    _Atomic uint64_t over; /* Attempts up to this one are over. Written by the daemon. */
    /* The futex. Bit 0: a process sleeps. The other bits change with each cst_shared_notify. */
    _Atomic uint32_t event;
    uint8_t pad[CST_SHARED_HEAD_BYTES - 12];
};

/* True if the condition is met for which a process waits. Reads the words with memory_order_acquire
 * or stronger. */
typedef bool (*cst_shared_ready_fn)(void *arg);

/* Wake the processes that wait. The caller has changed a word before. */
void cst_shared_notify(struct cst_shared_head *head);

/* The attempts up to @attempt are over: wake all. UINT64_MAX: the memory is given back. */
void cst_shared_end(struct cst_shared_head *head, uint64_t attempt);

/* Wait until @ready returns true for @arg. CST_OK: it has. CST_EPEERDIED: `over` says that attempt
 * @attempt is over. CST_ETIMEDOUT: neither in @timeout_ms milliseconds. */
int cst_shared_wait(struct cst_shared_head *head, uint64_t attempt, cst_shared_ready_fn ready,
                    void *arg, unsigned timeout_ms);

#endif
