/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the record of a job's activity: commands by their tickets, steps, and a ring that drops
 * the oldest entries. */
#include "daemon/base/record.h"
#include "tests/lib/suite.h"

static const struct cstd_record_job small = {.n_chunks = 10, .n_ranks = 2, .micro_batches = 1};

static void issue(struct cstd_record *record, uint64_t ticket, uint64_t now)
{
    const struct cst_command command = {.ticket = ticket, .chunk = 7, .bytes = 100};

    cstd_record_issue(record, CSTD_RECORD_LOAD, &command, 3, now);
}

static uint64_t count(const struct cstd_record *record)
{
    uint64_t first, end;

    cstd_record_range(record, &first, &end);
    return end - first;
}

/* A command is one interval, with the engine's times and the wait before. */
START_TEST(test_command)
{
    struct cstd_record *record = cstd_record_open(&small);
    const struct cstd_record_interval *i;

    issue(record, 5, 10);
    ck_assert_uint_eq(count(record), 0);
    cstd_record_done(record, 5, 2, 30, 40);
    cstd_record_over(record, 5, 99); /* reported before */
    ck_assert_uint_eq(count(record), 1);
    i = cstd_record_get(record, 0);
    ck_assert_uint_eq(i->kind, CSTD_RECORD_LOAD);
    ck_assert_uint_eq(i->number, 2);
    ck_assert_uint_eq(i->chunk, 7);
    ck_assert_uint_eq(i->rank, 3);
    ck_assert_uint_eq(i->bytes, 100);
    ck_assert_uint_eq(i->asked, 10);
    ck_assert_uint_eq(i->began, 30);
    ck_assert_uint_eq(i->ended, 40);
    cstd_record_close(record);
}
END_TEST

/* If an engine does not report times, a command's interval is from its issue to its end. */
START_TEST(test_untimed)
{
    struct cstd_record *record = cstd_record_open(&small);

    issue(record, 5, 10);
    cstd_record_over(record, 5, 99);
    cstd_record_over(record, 6, 99); /* an unknown ticket */
    ck_assert_uint_eq(count(record), 1);
    ck_assert_uint_eq(cstd_record_get(record, 0)->began, 10);
    ck_assert_uint_eq(cstd_record_get(record, 0)->ended, 99);
    cstd_record_close(record);
}
END_TEST

/* All updates of a step can be under way at a time. Each is recorded in any order of their ends,
 * and so are those that are issued after many have ended. */
START_TEST(test_many)
{
    enum { MANY = 9 * 1000, STRIDE = 7 };
    struct cstd_record *record = cstd_record_open(&small);

    for (unsigned round = 0; round < 3; round++) {
        uint64_t first = 4000 + round * MANY;

        for (uint64_t i = 0; i < MANY; i++) {
            issue(record, first + i, i);
        }
        for (uint64_t i = 0; i < MANY; i++) {
            cstd_record_done(record, first + i * STRIDE % MANY, 1, i, i + 1);
            cstd_record_over(record, first + i * STRIDE % MANY, 99);
        }
        for (uint64_t i = 0; i < MANY; i++) {
            const struct cstd_record_interval *r = cstd_record_get(record, round * MANY + i);

            ck_assert_uint_eq(r->began, i);
            ck_assert_uint_eq(r->asked, i * STRIDE % MANY);
        }
    }
    cstd_record_close(record);
}
END_TEST

/* A step lasts from the sync or the previous commit to its commit. All ranks report it, and it is
 * recorded once. */
START_TEST(test_steps)
{
    struct cstd_record *record = cstd_record_open(&small);
    uint64_t ns;

    cstd_record_commit(record, 1, 7, 50, &ns); /* no sync was seen, so the duration is not known */
    ck_assert_uint_eq(ns, 0);
    cstd_record_begin(record, 1, 100);
    cstd_record_commit(record, 2, 7, 130, &ns);
    ck_assert_uint_eq(ns, 30);
    cstd_record_commit(record, 2, 7, 131, &ns);
    ck_assert_uint_eq(ns, 0);
    cstd_record_commit(record, 3, 7, 180, &ns);
    ck_assert_uint_eq(ns, 50);
    ck_assert_uint_eq(count(record), 2);
    ck_assert_uint_eq(cstd_record_get(record, 1)->kind, CSTD_RECORD_STEP);
    ck_assert_uint_eq(cstd_record_get(record, 1)->step, 3);
    ck_assert_uint_eq(cstd_record_get(record, 1)->began, 130);
    cstd_record_close(record);
}
END_TEST

/* Work has the number of the step that was under way when it ended, although an engine can report
 * it after the commit. The exposed time is that of the step. */
START_TEST(test_step_of_work)
{
    struct cstd_record *record = cstd_record_open(&small);
    uint64_t ns;

    cstd_record_begin(record, 4, 100);
    issue(record, 5, 110);
    issue(record, 6, 110);
    issue(record, 7, 110);
    cstd_record_done(record, 5, 0, 115, 120);
    cstd_record_commit(record, 5, 33, 130, &ns);
    cstd_record_done(record, 6, 0, 121, 129);
    cstd_record_done(record, 7, 0, 125, 131);
    cstd_record_closing(record, 2, 116);
    cstd_record_closing(record, 3, 130); /* This rank did not wait. */
    cstd_record_lease(record, 1, 9, true, 64, 128, 140);
    ck_assert_uint_eq(count(record), 6);
    ck_assert_uint_eq(cstd_record_get(record, 0)->step, 4);
    ck_assert_uint_eq(cstd_record_get(record, 1)->kind, CSTD_RECORD_STEP);
    ck_assert_uint_eq(cstd_record_get(record, 1)->exposed_ns, 33);
    ck_assert_uint_eq(cstd_record_get(record, 2)->step, 4);
    ck_assert_uint_eq(cstd_record_get(record, 3)->step, 5);
    ck_assert_uint_eq(cstd_record_get(record, 4)->kind, CSTD_RECORD_COMMIT);
    ck_assert_uint_eq(cstd_record_get(record, 4)->number, 2);
    ck_assert_uint_eq(cstd_record_get(record, 4)->step, 4);
    ck_assert_uint_eq(cstd_record_get(record, 4)->ended, 130);
    ck_assert_uint_eq(cstd_record_get(record, 5)->kind, CSTD_RECORD_LEASE);
    ck_assert_uint_eq(cstd_record_get(record, 5)->step, 5);
    ck_assert_uint_eq(cstd_record_get(record, 5)->began, 128);
    cstd_record_close(record);
}
END_TEST

/* The newest entries are kept, and their numbers go on. */
START_TEST(test_ring)
{
    struct cstd_record *record = cstd_record_open(&small);
    uint64_t first, end;

    for (uint64_t i = 0; i < CSTD_RECORD_FEWEST + 10; i++) {
        cstd_record_wait(record, 1, (uint32_t)i, true, false, i, i + 5);
    }
    cstd_record_range(record, &first, &end);
    ck_assert_uint_eq(first, 10);
    ck_assert_uint_eq(end, CSTD_RECORD_FEWEST + 10);
    ck_assert_uint_eq(cstd_record_get(record, first)->chunk, 10);
    ck_assert_uint_eq(cstd_record_get(record, end - 1)->chunk, CSTD_RECORD_FEWEST + 9);
    ck_assert(cstd_record_get(record, first)->grad);
    cstd_record_close(record);
}
END_TEST

/* The number of intervals is that of 64 steps, within the limits and a 64th of the job's memory. */
START_TEST(test_size)
{
    static const struct {
        struct cstd_record_job job;
        uint32_t n;
    } cases[] = {
        {{.n_chunks = 10, .n_ranks = 2, .bytes = UINT64_C(1) << 40}, CSTD_RECORD_FEWEST},
        {{.n_chunks = 100, .n_ranks = 4, .bytes = UINT64_C(1) << 40}, 64 * 100 * 19},
        {{.n_chunks = 100, .n_ranks = 4, .micro_batches = 2, .bytes = UINT64_C(1) << 40},
         64 * 100 * 35},
        {{.n_chunks = 100, .n_ranks = 4, .bytes = 20000 * 64 * sizeof(struct cstd_record_interval)},
         20000},
        {{.n_chunks = 100000, .n_ranks = 512, .micro_batches = 1000, .bytes = UINT64_MAX},
         CSTD_RECORD_MOST},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cstd_record *record = cstd_record_open(&cases[i].job);

        ck_assert_uint_eq(cstd_record_intervals(&cases[i].job), cases[i].n);
        ck_assert_uint_ge(cstd_record_bytes(&cases[i].job),
                          cases[i].n * sizeof(struct cstd_record_interval));
        for (uint64_t k = 0; k < cases[i].n + 7; k++) {
            cstd_record_wait(record, 1, (uint32_t)k, true, false, k, k + 5);
        }
        ck_assert_uint_eq(count(record), cases[i].n);
        cstd_record_close(record);
    }
}
END_TEST

/* The kind of a copy follows from its destination and its source. Segments: 12, 10 and 11 are
 * arenas, 13 the table, 24 and 15 slabs, the former of a pool that has moved, 14 an edge, 16 a
 * device reservation. */
START_TEST(test_kinds)
{
    static const uint32_t list[] = {12, 10, 11, 13, 24, 15, 14, 16};
    const struct cstd_record_ids ids = {.v = list, .n = 8, .n_arenas = 3, .n_reservations = 1};
    struct cst_command copy = {.kind = CST_COMMAND_COPY};
    const struct cst_command update = {.kind = CST_COMMAND_UPDATE};

    copy.src[0].segment = 11;
    copy.dst[0].segment = 15;
    ck_assert_int_eq(cstd_record_kind_of(&copy, &ids), CSTD_RECORD_LOAD);
    copy.dst[0].segment = 24;
    ck_assert_int_eq(cstd_record_kind_of(&copy, &ids), CSTD_RECORD_LOAD);
    copy.after_ack = true; /* an update in lent memory */
    ck_assert_int_eq(cstd_record_kind_of(&copy, &ids), CSTD_RECORD_STATES_UP);
    copy.src[0].segment = 24;
    copy.dst[0].segment = 10;
    ck_assert_int_eq(cstd_record_kind_of(&copy, &ids), CSTD_RECORD_STATES_DOWN);
    copy.after_ack = false;
    ck_assert_int_eq(cstd_record_kind_of(&copy, &ids), CSTD_RECORD_STAGE);
    copy.src[0].segment = 99; /* a staging segment */
    ck_assert_int_eq(cstd_record_kind_of(&copy, &ids), CSTD_RECORD_WRITE);
    copy.src[0].segment = 12;
    copy.dst[0].segment = 99;
    ck_assert_int_eq(cstd_record_kind_of(&copy, &ids), CSTD_RECORD_READ);
    copy.src[0].segment = 10; /* a chunk's row is copied to the accelerator for an update */
    copy.dst[0].segment = 16;
    ck_assert_int_eq(cstd_record_kind_of(&copy, &ids), CSTD_RECORD_STATES_UP);
    copy.src[0].segment =
        15; /* a gradient that is on the accelerator is copied to the reservation */
    ck_assert_int_eq(cstd_record_kind_of(&copy, &ids), CSTD_RECORD_STATES_UP);
    copy.src[0].segment = 16;
    copy.dst[0].segment = 12;
    ck_assert_int_eq(cstd_record_kind_of(&copy, &ids), CSTD_RECORD_STATES_DOWN);
    ck_assert_int_eq(cstd_record_kind_of(&update, &ids), CSTD_RECORD_UPDATE);
}
END_TEST

/* Without memory for the record nothing is recorded, and nothing else fails. */
START_TEST(test_none)
{
    uint64_t first, end, ns = 1;

    issue(NULL, 1, 1);
    cstd_record_done(NULL, 1, 0, 1, 2);
    cstd_record_over(NULL, 1, 2);
    cstd_record_wait(NULL, 0, 0, false, false, 1, 2);
    cstd_record_lease(NULL, 0, 0, false, 64, 1, 2);
    cstd_record_closing(NULL, 0, 1);
    cstd_record_begin(NULL, 1, 1);
    cstd_record_commit(NULL, 2, 7, 2, &ns);
    ck_assert_uint_eq(ns, 0);
    cstd_record_range(NULL, &first, &end);
    ck_assert_uint_eq(end, 0);
    cstd_record_close(NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("record");
    TCase *tcase = suite_case(suite, "record", NULL, NULL);

    tcase_add_test(tcase, test_command);
    tcase_add_test(tcase, test_untimed);
    tcase_add_test(tcase, test_many);
    tcase_add_test(tcase, test_steps);
    tcase_add_test(tcase, test_step_of_work);
    tcase_add_test(tcase, test_ring);
    tcase_add_test(tcase, test_size);
    tcase_add_test(tcase, test_kinds);
    tcase_add_test(tcase, test_none);
    return suite_run(suite);
}
