/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that ranks of a job share with each other, such as an edge (edge_memory.h) or the memory
 * of a communicator (comm_memory.h): how its processes wait for each other, and how they learn that
 * a rank has died. This module knows only the head of the memory. The user of a segment defines
 * what follows, and its own words there.
 *
 *   +------+---------------------------------------------+
 *   | head | words and data of the user of the segment   |
 *   +------+---------------------------------------------+
 *
 * A process that changes a word for which others may wait calls cst_shared_notify afterwards. A
 * process that waits looks at its words, spins briefly, and then sleeps on the futex `event`. While
 * nobody sleeps, all processes only read the head. The daemon maps the head, too. When an attempt
 * is over, because a rank has died or for any other reason, it writes the attempt's number to
 * `over` and wakes all. A thread that waits for such ends alone, and sleeps most of the time, is
 * not counted as asleep: otherwise each change of a word would be a call of the kernel.
 *
 * Spinning helps only if each process has a processor of its own: otherwise the process that is
 * awaited may need the one of the process that waits. So each of them writes into the head on which
 * processors it may run, and spins if all of them together have enough. Processes can be bound to
 * one processor each, as `cistern run` does it, or all of them to the same few.
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
    _Atomic uint64_t over;   /* Attempts up to this one are over. Written by the daemon. */
    _Atomic uint32_t asleep; /* 1: a process sleeps, or is about to. */
    _Atomic uint32_t event;  /* The futex, which changes with each wake-up. */
    uint8_t pad[CST_SHARED_HEAD_BYTES / 2 - 16];
    /* Bit i mod 512: a process may run on processor i. */
    _Atomic uint64_t processors[CST_SHARED_HEAD_BYTES / 2 / 8];
};

/* What a process waits for. */
struct cst_shared_wait {
    uint64_t attempt; /* The wait ends with this attempt. UINT64_MAX: it does not. */
    /* The processes that wait for each other here: look at the words for about 50 us before
     * sleeping if cst_shared_spins says so for them. 0: sleep at once. */
    uint32_t n_processes;
    bool for_ends; /* Only cst_shared_end and cst_shared_wake have to wake this process. */
    /* Return whether the condition is met. Reads the words with memory_order_seq_cst. */
    bool (*ready)(void *arg);
    void *arg; /* Argument of @ready. */
};

/* Write into @head on which processors the calling thread may run. A process does so before it
 * waits, and need not do it again: with processors that have changed, it spins in vain or sleeps
 * too early. Those of processes that have ended stay there. */
void cst_shared_join(struct cst_shared_head *head);

/* Return whether each of @n_processes processes can have one of the processors that are written in
 * @head. */
bool cst_shared_spins(const struct cst_shared_head *head, uint32_t n_processes);

/* Wake the processes that wait, except those that wait for ends. The caller has changed a word
 * before, with memory_order_seq_cst. */
void cst_shared_notify(struct cst_shared_head *head);

/* As cst_shared_notify, but wake all. */
void cst_shared_wake(struct cst_shared_head *head);

/* The attempts up to @attempt are over: wake all. UINT64_MAX: the memory is given back. */
void cst_shared_end(struct cst_shared_head *head, uint64_t attempt);

/* Wait for @wait, at most @timeout_ms milliseconds. CST_OK: the condition is met. CST_EPEERDIED:
 * `over` says that the attempt is over. CST_ETIMEDOUT: neither. */
int cst_shared_wait(struct cst_shared_head *head, const struct cst_shared_wait *wait,
                    unsigned timeout_ms);

#endif
