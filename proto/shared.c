/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/shared.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

_Static_assert(sizeof(struct cst_shared_head) == CST_SHARED_HEAD_BYTES, "size of the head");
_Static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2,
               "atomics that processes share must have no locks");

enum {
    SLEEPS = 1, /* Bit 0 of `event`. */
    CHANGE = 2, /* What a notification adds to `event`. */
    /* Looks at the condition before a process sleeps: about 5 us, less than a sleep and a wake-up
     * take together. */
    SPINS = 100,
    LOOKS_PER_SPIN = 16,
};

static void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void wake_all(struct cst_shared_head *head)
{
    (void)syscall(SYS_futex, &head->event, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void cst_shared_notify(struct cst_shared_head *head)
{
    uint32_t before = atomic_fetch_add(&head->event, CHANGE);

    if ((before & SLEEPS) != 0) {
        /* A process that begins to sleep meanwhile sets the bit again, after it has seen the
         * caller's change. */
        (void)atomic_fetch_and(&head->event, ~(uint32_t)SLEEPS);
        wake_all(head);
    }
}

void cst_shared_end(struct cst_shared_head *head, uint64_t attempt)
{
    atomic_store(&head->over, attempt);
    (void)atomic_fetch_add(&head->event, CHANGE);
    wake_all(head);
}

static uint64_t now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Sleep until `event` differs from @seen, at most @ns nanoseconds. */
static void sleep_on(struct cst_shared_head *head, uint32_t seen, uint64_t ns)
{
    struct timespec limit = {.tv_sec = (time_t)(ns / 1000000000),
                             .tv_nsec = (long)(ns % 1000000000)};

    (void)syscall(SYS_futex, &head->event, FUTEX_WAIT, seen, &limit, NULL, 0);
}

static bool is_over(struct cst_shared_head *head, uint64_t attempt)
{
    return atomic_load(&head->over) >= attempt;
}

/* Look at the condition for a short time. CST_EAGAIN: it is not met yet. */
static int spin(struct cst_shared_head *head, uint64_t attempt, cst_shared_ready_fn ready,
                void *arg)
{
    for (int i = 0; i < SPINS; i++) {
        if (ready(arg)) {
            return CST_OK;
        }
        if (is_over(head, attempt)) {
            return CST_EPEERDIED;
        }
        for (int k = 0; k < LOOKS_PER_SPIN; k++) {
            pause_briefly();
        }
    }
    return CST_EAGAIN;
}

int cst_shared_wait(struct cst_shared_head *head, uint64_t attempt, cst_shared_ready_fn ready,
                    void *arg, unsigned timeout_ms)
{
    int rc = spin(head, attempt, ready, arg);
    uint64_t now, end;

    if (rc != CST_EAGAIN) {
        return rc;
    }
    now = now_ns();
    end = now + (uint64_t)timeout_ms * 1000000;
    for (; now < end; now = now_ns()) {
        /* First the bit, then the condition: a change after this line makes FUTEX_WAIT return. */
        uint32_t seen = atomic_fetch_or(&head->event, SLEEPS) | SLEEPS;

        if (ready(arg)) {
            return CST_OK;
        }
        if (is_over(head, attempt)) {
            return CST_EPEERDIED;
        }
        sleep_on(head, seen, end - now);
    }
    return ready(arg) ? CST_OK : CST_ETIMEDOUT;
}
