/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the history of steps: it keeps the whole run in few entries, with sums that stay right.
 */
#include "daemon/base/history.h"
#include "tests/lib/suite.h"

#include <math.h>

static struct cstd_history_step step_of(uint64_t number)
{
    return (struct cstd_history_step){.step = number,
                                      .ended_ns = 100 * number,
                                      .ns = 100,
                                      .exposed_ns = 7,
                                      .tokens = 64,
                                      .loss = 2,
                                      .grad_norm = 3};
}

static void add(struct cstd_history *history, uint64_t number)
{
    const struct cstd_history_step step = step_of(number);

    cstd_history_add(history, &step);
}

/* Every step has an entry as long as there are enough. */
START_TEST(test_each)
{
    struct cstd_history history = {.n = 0};

    for (uint64_t i = 1; i <= CSTD_HISTORY_ENTRIES; i++) {
        add(&history, i);
    }
    ck_assert_uint_eq(history.n, CSTD_HISTORY_ENTRIES);
    ck_assert_uint_eq(history.entries[99].first, 100);
    ck_assert_uint_eq(history.entries[99].n_steps, 1);
    ck_assert_uint_eq(history.entries[99].ended_ns, 10000);
    ck_assert_uint_eq(cstd_history_find(&history, 100), 99);
    ck_assert_uint_eq(cstd_history_find(&history, 0), 0);
    ck_assert_uint_eq(cstd_history_find(&history, CSTD_HISTORY_ENTRIES + 1), history.n);
    cstd_history_close(&history);
}
END_TEST

/* However long the run is, the entries cover all its steps, and nothing is counted twice or lost.
 * Only the last entry can stand for fewer steps than the others. */
START_TEST(test_long)
{
    enum { STEPS = 9 * CSTD_HISTORY_ENTRIES + 5 };
    struct cstd_history history = {.n = 0};
    uint64_t next = 11, ns = 0, tokens = 0;

    for (uint64_t i = 0; i < STEPS; i++) {
        add(&history, 11 + i);
    }
    ck_assert_uint_le(history.n, CSTD_HISTORY_ENTRIES);
    ck_assert_uint_le(history.capacity * sizeof *history.entries, cstd_history_bytes());
    for (uint32_t i = 0; i < history.n; i++) {
        const struct cstd_history_entry *e = &history.entries[i];

        ck_assert_uint_eq(e->first, next);
        ck_assert(i + 1 == history.n ? e->n_steps <= 16 : e->n_steps == 16);
        ck_assert_uint_eq(e->n_losses, e->n_steps);
        ck_assert_double_eq(e->losses / e->n_losses, 2);
        ck_assert_double_eq(e->norms / e->n_norms, 3);
        ck_assert_uint_eq(e->exposed_ns, 7 * (uint64_t)e->n_steps);
        next += e->n_steps;
        ck_assert_uint_eq(e->ended_ns, 100 * (next - 1));
        ns += e->ns;
        tokens += e->tokens;
    }
    ck_assert_uint_eq(next, 11 + STEPS);
    ck_assert_uint_eq(ns, 100 * (uint64_t)STEPS);
    ck_assert_uint_eq(tokens, 64 * (uint64_t)STEPS);
    cstd_history_close(&history);
}
END_TEST

/* A step without a loss, or with one that is not finite, does not spoil those that are merged with
 * it. */
START_TEST(test_not_finite)
{
    struct cstd_history history = {.stride = 3};
    struct cstd_history_step step = step_of(1);

    step.loss = NAN;
    step.grad_norm = INFINITY;
    step.n_skipped = 1;
    cstd_history_add(&history, &step);
    step = step_of(2);
    step.loss = 0;
    cstd_history_add(&history, &step);
    add(&history, 3);
    ck_assert_uint_eq(history.n, 1);
    ck_assert_uint_eq(history.entries[0].n_steps, 3);
    ck_assert_uint_eq(history.entries[0].n_losses, 1);
    ck_assert_double_eq(history.entries[0].losses, 2);
    ck_assert_uint_eq(history.entries[0].n_norms, 2);
    ck_assert_double_eq(history.entries[0].norms, 6);
    ck_assert_uint_eq(history.entries[0].n_skipped, 1);
    cstd_history_close(&history);
}
END_TEST

/* After a step that does not follow the last one, the earlier ones are of another run. */
START_TEST(test_anew)
{
    struct cstd_history history = {.n = 0};

    add(&history, 1);
    add(&history, 2);
    add(&history, 2);
    ck_assert_uint_eq(history.n, 1);
    ck_assert_uint_eq(history.entries[0].first, 2);
    cstd_history_close(&history);
    ck_assert_uint_eq(history.n, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("history");
    TCase *tcase = suite_case(suite, "history", NULL, NULL);

    tcase_add_test(tcase, test_each);
    tcase_add_test(tcase, test_long);
    tcase_add_test(tcase, test_not_finite);
    tcase_add_test(tcase, test_anew);
    return suite_run(suite);
}
