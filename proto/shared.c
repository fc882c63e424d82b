/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/shared.h"

#include "proto/clock.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

_Static_assert(sizeof(struct cst_shared_head) == CST_SHARED_HEAD_BYTES, "size of the head");
_Static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2,
               "atomics that processes share must have no locks");

/* Looks at the condition before a process sleeps. They take about as long as the kernel needs to
 * wake a process on another processor, which is the most that can be lost. */
#define N_LOOKS 2000

enum { N_WORDS = sizeof((struct cst_shared_head *)0)->processors / sizeof(uint64_t) };

void cst_shared_join(struct cst_shared_head *head)
{
    uint64_t words[N_WORDS] = {0};
    cpu_set_t set;

    /* It fails with more processors than the set can have. */
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        memset(words, 0xff, sizeof words);
    } else {
        for (size_t i = 0; i < CPU_SETSIZE; i++) {
            words[i / 64 % N_WORDS] |= (uint64_t)(CPU_ISSET(i, &set) != 0) << i % 64;
        }
    }
    for (size_t i = 0; i < N_WORDS; i++) {
        (void)atomic_fetch_or(&head->processors[i], words[i]);
    }
}

bool cst_shared_spins(const struct cst_shared_head *head, uint32_t n_processes)
{
    uint32_t n = 0;

    for (size_t i = 0; i < N_WORDS && n < n_processes; i++) {
        n += (uint32_t)__builtin_popcountll(
            atomic_load_explicit(&head->processors[i], memory_order_relaxed));
    }
    return n >= n_processes;
}

static void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void cst_shared_wake(struct cst_shared_head *head)
{
    (void)atomic_fetch_add(&head->event, 1);
    (void)syscall(SYS_futex, &head->event, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* A process that goes to sleep reads `event`, stores `asleep`, and looks at the words then. The
 * caller has changed a word before it looks at `asleep`. All accesses are in one order, so either
 * the caller sees that the process sleeps, or the process sees the change. `event` changes after
 * `asleep` is cleared: a process that has announced its sleep before that does not fall asleep. */
void cst_shared_notify(struct cst_shared_head *head)
{
    if (atomic_load(&head->asleep) != 0) {
        atomic_store(&head->asleep, 0);
        cst_shared_wake(head);
    }
}

void cst_shared_end(struct cst_shared_head *head, uint64_t attempt)
{
    atomic_store(&head->over, attempt);
    cst_shared_wake(head);
}

/* Sleep until `event` differs from @seen, at most @ns nanoseconds. */
static void sleep_on(struct cst_shared_head *head, uint32_t seen, uint64_t ns)
{
    struct timespec limit = {.tv_sec = (time_t)(ns / 1000000000),
                             .tv_nsec = (long)(ns % 1000000000)};

    (void)syscall(SYS_futex, &head->event, FUTEX_WAIT, seen, &limit, NULL, 0);
}

/* Look once. CST_EAGAIN: the condition is not met, and the attempt goes on. */
static int look(struct cst_shared_head *head, const struct cst_shared_wait *wait)
{
    if (wait->ready(wait->arg)) {
        return CST_OK;
    }
    return wait->attempt != UINT64_MAX && atomic_load(&head->over) >= wait->attempt ? CST_EPEERDIED
                                                                                    : CST_EAGAIN;
}

int cst_shared_wait(struct cst_shared_head *head, const struct cst_shared_wait *wait,
                    unsigned timeout_ms)
{
    int rc = look(head, wait);
    uint64_t now, end;

    if (rc == CST_EAGAIN && wait->n_processes > 0 && cst_shared_spins(head, wait->n_processes)) {
        for (int i = 0; rc == CST_EAGAIN && i < N_LOOKS; i++) {
            pause_briefly();
            rc = look(head, wait);
        }
    }
    if (rc != CST_EAGAIN) {
        return rc;
    }
    now = cst_clock_ns();
    end = now + (uint64_t)timeout_ms * 1000000;
    for (; now < end; now = cst_clock_ns()) {
        const uint32_t seen = atomic_load(&head->event);

        if (!wait->for_ends) {
            atomic_store(&head->asleep, 1);
        }
        rc = look(head, wait);
        if (rc != CST_EAGAIN) {
            return rc;
        }
        sleep_on(head, seen, end - now);
    }
    return wait->ready(wait->arg) ? CST_OK : CST_ETIMEDOUT;
}
