/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of offload/base/flight: commands under way are found by ticket after any insertions and
 * removals, in little time. */
#include "offload/base/flight.h"
#include "cistern/status.h"
#include "tests/lib/suite.h"

#include <check.h>

#define MOST 300

/* Compared with a list, from a seed: tickets ascend with gaps, and commands complete in any
 * order. */
START_TEST(finds_what_is_under_way)
{
    struct cst_flights flights;
    struct cst_flight found;
    uint64_t random = (uint64_t)_i + 1;
    uint64_t tickets[MOST];
    uint64_t last = 0;
    uint32_t n = 0;

    cst_flights_init(&flights);
    for (int turn = 0; turn < 20000; turn++) {
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        if (n < MOST && (random >> 60) < 8) {
            struct cst_flight flight = {.kind = CST_FLIGHT_LOAD};

            last += 1 + (random >> 40) % ((random >> 50) % 8 == 0 ? 5000 : 2);
            flight.ticket = last;
            flight.chunk = (uint32_t)last * 3;
            ck_assert_int_eq(cst_flights_reserve(&flights, n + 1), CST_OK);
            cst_flights_add(&flights, &flight);
            tickets[n++] = last;
        } else if (n > 0) {
            uint32_t i = (uint32_t)(random >> 33) % n;

            ck_assert(cst_flights_take(&flights, tickets[i], &found));
            ck_assert_uint_eq(found.chunk, (uint32_t)tickets[i] * 3);
            ck_assert(!cst_flights_take(&flights, tickets[i], &found));
            tickets[i] = tickets[--n];
        }
        ck_assert_uint_eq(flights.n, n);
        if (turn % 100 == 0) {
            for (uint32_t i = 0; i < n; i++) {
                ck_assert_uint_eq(cst_flights_find(&flights, tickets[i])->ticket, tickets[i]);
            }
            ck_assert_ptr_null(cst_flights_find(&flights, last + 1));
        }
    }
    cst_flights_close(&flights);
}
END_TEST

/* Each of many commands that complete in order is removed without a look at the others; otherwise
 * this test would take minutes. */
START_TEST(many_in_a_row)
{
    const uint32_t n = 400000;
    uint32_t n_taken = 0;
    struct cst_flights flights;
    struct cst_flight found;

    cst_flights_init(&flights);
    ck_assert_int_eq(cst_flights_reserve(&flights, n), CST_OK);
    for (uint32_t i = 1; i <= n; i++) {
        cst_flights_add(&flights, &(struct cst_flight){.ticket = i});
    }
    for (uint32_t i = 1; i <= n; i++) {
        n_taken += cst_flights_take(&flights, i, &found);
    }
    ck_assert_uint_eq(n_taken, n);
    ck_assert_uint_eq(flights.n, 0);
    cst_flights_close(&flights);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("flight");
    TCase *tc = suite_case(s, "flight", NULL, NULL);

    tcase_add_loop_test(tc, finds_what_is_under_way, 0, 6);
    tcase_add_test(tc, many_in_a_row);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
