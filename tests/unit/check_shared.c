/* SPDX-License-Identifier: Apache-2.0 */
/* How processes wait in memory that they share (proto/shared.h): here threads, in a head alone. */
#include "proto/shared.h"
#include "tests/lib/patience.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

enum { N_THREADS = 3, LONG_MS = 60000 };

static struct cst_shared_head head;

/* Processors that the head tells apart. */
enum { N_BITS = 8 * (int)sizeof head.processors };

static void setup(void)
{
    head = (struct cst_shared_head){0};
    cst_shared_join(&head);
}

/* -- a word ----------------------------------------------------------------------------------- */

/* A wait for a word to reach a value. */
struct word {
    _Atomic uint32_t *at;
    uint32_t value;
    unsigned n_looks;
};

static bool has_value(void *arg)
{
    struct word *w = arg;

    w->n_looks++;
    return (int32_t)(atomic_load(w->at) - w->value) >= 0;
}

static int wait_for(struct word *w, uint64_t attempt, uint32_t n_processes, unsigned ms)
{
    const struct cst_shared_wait wait = {
        .attempt = attempt, .n_processes = n_processes, .ready = has_value, .arg = w};

    return cst_shared_wait(&head, &wait, ms);
}

/* A condition that is met, and an attempt that is over, end a wait at once: the condition first,
 * because a rank that has died may have done its part before. */
START_TEST(what_is_there_is_not_awaited)
{
    _Atomic uint32_t word = 1;
    struct word met = {.at = &word, .value = 1}, open = {.at = &word, .value = 2};

    cst_shared_end(&head, 7);
    ck_assert_int_eq(wait_for(&met, 7, (uint32_t)_i, 0), CST_OK);
    ck_assert_int_eq(wait_for(&open, 7, (uint32_t)_i, (unsigned)patience_ms(LONG_MS)),
                     CST_EPEERDIED);
    ck_assert_int_eq(wait_for(&open, 6, (uint32_t)_i, (unsigned)patience_ms(LONG_MS)),
                     CST_EPEERDIED);
    ck_assert_int_eq(wait_for(&open, 8, (uint32_t)_i, 0), CST_ETIMEDOUT);
    ck_assert_int_eq(wait_for(&open, 8, (uint32_t)_i, 2), CST_ETIMEDOUT);
}
END_TEST

/* -- threads ---------------------------------------------------------------------------------- */

/* Threads that count in turns: thread i waits until the count is i, modulo their number. */
struct counter {
    _Atomic uint32_t *count;
    uint32_t first, until;
    uint32_t n_processes;
    int rc;
    pthread_t thread;
};

static void *count(void *arg)
{
    struct counter *c = arg;

    for (uint32_t i = c->first; c->rc == CST_OK && i < c->until; i += N_THREADS) {
        struct word w = {.at = c->count, .value = i};

        c->rc = wait_for(&w, 1, c->n_processes, (unsigned)patience_ms(LONG_MS));
        if (c->rc == CST_OK) {
            atomic_store(c->count, i + 1);
            cst_shared_notify(&head);
        }
    }
    return NULL;
}

/* No wake-up is lost, whether the threads spin or not: a lost one would be a wait of a minute. */
START_TEST(no_wake_up_is_lost)
{
    struct counter counters[N_THREADS];
    _Atomic uint32_t word = 0;
    const uint32_t until = suite_is_sparse() ? 3000 : 60000;

    for (uint32_t i = 0; i < N_THREADS; i++) {
        counters[i] = (struct counter){
            .count = &word, .first = i, .until = until, .n_processes = (uint32_t)_i};
        ck_assert_int_eq(pthread_create(&counters[i].thread, NULL, count, &counters[i]), 0);
    }
    for (uint32_t i = 0; i < N_THREADS; i++) {
        ck_assert_int_eq(pthread_join(counters[i].thread, NULL), 0);
        ck_assert_int_eq(counters[i].rc, CST_OK);
    }
    ck_assert_uint_eq(atomic_load(&word), until);
}
END_TEST

/* Wait until a thread sleeps, or is about to. */
static void await_sleeper(void)
{
    while (atomic_load(&head.asleep) == 0) {
        (void)sched_yield();
    }
}

/* The end of an attempt wakes all that sleep. An attempt that goes on is not ended by an earlier
 * one. */
START_TEST(the_end_wakes_all)
{
    struct counter counters[N_THREADS];
    _Atomic uint32_t word = 0;

    for (uint32_t i = 0; i < N_THREADS; i++) {
        counters[i] = (struct counter){.count = &word, .first = 1, .until = 2};
        ck_assert_int_eq(pthread_create(&counters[i].thread, NULL, count, &counters[i]), 0);
    }
    await_sleeper();
    cst_shared_end(&head, 0);
    cst_shared_end(&head, _i == 0 ? 1 : UINT64_MAX);
    for (uint32_t i = 0; i < N_THREADS; i++) {
        ck_assert_int_eq(pthread_join(counters[i].thread, NULL), 0);
        ck_assert_int_eq(counters[i].rc, CST_EPEERDIED);
    }
}
END_TEST

/* A thread that waits for ends alone: it counts with the main thread. */
static void *count_by_wakes(void *arg)
{
    struct counter *c = arg;

    for (uint32_t i = c->first; c->rc == CST_OK && i < c->until; i += 2) {
        struct word w = {.at = c->count, .value = i};
        const struct cst_shared_wait wait = {
            .attempt = 1, .for_ends = true, .ready = has_value, .arg = &w};

        c->rc = cst_shared_wait(&head, &wait, (unsigned)patience_ms(LONG_MS));
        if (c->rc == CST_OK) {
            atomic_store(c->count, i + 1);
            cst_shared_wake(&head);
        }
    }
    return NULL;
}

/* Threads that wait for ends are not counted as asleep, so that a notification costs nothing while
 * they sleep. cst_shared_wake wakes them all the same: a lost one would be a wait of a minute. */
START_TEST(who_waits_for_ends_is_not_asleep)
{
    _Atomic uint32_t word = 0;
    struct counter counters[2];

    for (uint32_t i = 0; i < 2; i++) {
        counters[i] = (struct counter){.count = &word, .first = i, .until = 3000};
        ck_assert_int_eq(pthread_create(&counters[i].thread, NULL, count_by_wakes, &counters[i]),
                         0);
    }
    for (uint32_t i = 0; i < 2; i++) {
        ck_assert_int_eq(pthread_join(counters[i].thread, NULL), 0);
        ck_assert_int_eq(counters[i].rc, CST_OK);
    }
    ck_assert_uint_eq(atomic_load(&head.asleep), 0);
    ck_assert_int_eq(wait_for(&(struct word){.at = &word, .value = 3001}, 1, false, 1),
                     CST_ETIMEDOUT);
    ck_assert_uint_eq(atomic_load(&head.asleep), 1);
}
END_TEST

/* While nobody sleeps, a notification writes nothing: the cache line of the head stays with all
 * processors. */
START_TEST(a_notification_without_sleepers_writes_nothing)
{
    cst_shared_notify(&head);
    ck_assert_uint_eq(atomic_load(&head.event), 0);
    atomic_store(&head.asleep, 1);
    cst_shared_notify(&head);
    ck_assert_uint_eq(atomic_load(&head.event), 1);
    ck_assert_uint_eq(atomic_load(&head.asleep), 0);
}
END_TEST

/* Processes that are bound to one processor each spin if these are different ones, and those that
 * are bound to the same processor do not. A wait that does not spin looks at most twice. */
START_TEST(processes_spin_if_each_has_a_processor)
{
    _Atomic uint32_t word = 0;
    cpu_set_t all, one;
    uint32_t n_all, n = 0;

    ck_assert_int_eq(sched_getaffinity(0, sizeof all, &all), 0);
    n_all = CPU_COUNT(&all) < N_BITS ? (uint32_t)CPU_COUNT(&all) : N_BITS;
    ck_assert(cst_shared_spins(&head, n_all));
    ck_assert(!cst_shared_spins(&head, n_all + 1));
    head = (struct cst_shared_head){0};
    for (size_t processor = 0; processor < N_BITS; processor++) {
        if (CPU_ISSET(processor, &all)) {
            struct word open = {.at = &word, .value = 1};

            CPU_ZERO(&one);
            CPU_SET(processor, &one);
            ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
            ck_assert(!cst_shared_spins(&head, n + 1));
            ck_assert_int_eq(wait_for(&open, 1, n + 1, 0), CST_ETIMEDOUT);
            ck_assert_uint_le(open.n_looks, 2);
            cst_shared_join(&head);
            cst_shared_join(&head);
            n++;
            ck_assert(cst_shared_spins(&head, n));
            ck_assert_int_eq(wait_for(&open, 1, n, 0), CST_ETIMEDOUT);
            ck_assert_uint_gt(open.n_looks, 100);
        }
    }
    ck_assert_int_eq(sched_setaffinity(0, sizeof all, &all), 0);
}
END_TEST

/* -- wrong values ----------------------------------------------------------------------------- */

static bool scribbling;

/* @arg: NULL, or something else to write into `over`, too. */
static void *scribble(void *arg)
{
    unsigned state = 1;

    while (__atomic_load_n(&scribbling, __ATOMIC_RELAXED)) {
        const uint32_t values[] = {0, 1, UINT32_MAX, (uint32_t)rand_r(&state)};
        const uint64_t over[] = {1, UINT64_MAX - 1, UINT64_MAX, UINT64_MAX};

        if (arg != NULL) {
            atomic_store(&head.over, over[rand_r(&state) % 4]);
        }
        atomic_store(&head.event, values[rand_r(&state) % 4]);
        atomic_store(&head.asleep, values[rand_r(&state) % 4]);
    }
    return NULL;
}

/* Wrong values in the head make a wait longer or shorter, and nothing else: it ends in its time,
 * and says that the condition is met only if it is. The wait for attempt UINT64_MAX ends with no
 * attempt, whatever is in `over`. */
START_TEST(a_scribbled_head_is_not_believed)
{
    const uint64_t attempt = _i == 0 ? 1 : UINT64_MAX;
    _Atomic uint32_t word = 0;
    pthread_t thread;

    __atomic_store_n(&scribbling, true, __ATOMIC_RELAXED);
    ck_assert_int_eq(pthread_create(&thread, NULL, scribble, _i == 0 ? NULL : &head), 0);
    for (uint32_t i = 0; i < 20; i++) {
        struct word open = {.at = &word, .value = i + 1};

        ck_assert_int_eq(wait_for(&open, attempt, 0, 2), CST_ETIMEDOUT);
        ck_assert_uint_ge(open.n_looks, 2);
        atomic_store(&word, i + 1);
        ck_assert_int_eq(wait_for(&open, attempt, 0, 2), CST_OK);
    }
    __atomic_store_n(&scribbling, false, __ATOMIC_RELAXED);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shared");
    TCase *tc = suite_case(suite, "shared", setup, NULL);

    tcase_add_loop_test(tc, what_is_there_is_not_awaited, 0, 2);
    tcase_add_loop_test(tc, no_wake_up_is_lost, 0, 2);
    tcase_add_loop_test(tc, the_end_wakes_all, 0, 2);
    tcase_add_test(tc, who_waits_for_ends_is_not_asleep);
    tcase_add_test(tc, a_notification_without_sleepers_writes_nothing);
    tcase_add_test(tc, processes_spin_if_each_has_a_processor);
    tcase_add_loop_test(tc, a_scribbled_head_is_not_believed, 0, 2);
    return suite_run(suite);
}
