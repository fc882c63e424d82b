/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the times of updates: how long updates are under way, and how much later the next commit
 * is because of them. */
#include "tests/unit/core_rig.h"
#include "tests/lib/suite.h"

#include <check.h>

#define N_CHUNKS 3

static struct rig rig;

static void teardown(void)
{
    rig_close(&rig);
}

/* Commit a step at time 1000, so that the updates of all chunks, and nothing else, are under
 * way. */
static void commit(uint32_t world)
{
    for (uint32_t c = 0; c < N_CHUNKS; c++) {
        for (uint32_t rank = 0; rank < world; rank++) {
            (void)rig_release(&rig, rank, c, rig_get(&rig, rank, c));
            (void)rig_hand_in(&rig, rank, c, rig_get_grad(&rig, rank, c));
        }
    }
    for (uint32_t rank = 0; rank < world; rank++) {
        (void)rig_step(&rig, rank);
    }
    rig.now = 1000;
    while (rig_count(&rig, CST_COMMAND_UPDATE) == 0) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_UPDATE), N_CHUNKS);
}

/* Complete the update of @chunk at @now. */
static void update_ends(uint32_t chunk, uint64_t now)
{
    unsigned n = 0;

    rig.now = now;
    while (rig_command(&rig, CST_COMMAND_UPDATE, n)->chunk != chunk) {
        n++;
    }
    rig_done(&rig, rig_command(&rig, CST_COMMAND_UPDATE, n)->ticket, CST_OK, NULL);
}

/* Run the next step to its commit without another wait. Returns how much later the commit was
 * because of the updates before it. */
static uint64_t exposed(uint32_t world)
{
    rig_drain(&rig);
    rig.now += 1000;
    for (uint32_t rank = 0; rank < world; rank++) {
        (void)rig_step(&rig, rank);
    }
    rig_drain(&rig);
    ck_assert_uint_eq(rig_stats(&rig).step, 2);
    return rig_stats(&rig).last_exposed_ns;
}

static uint64_t fetch_at(uint64_t now, uint32_t rank, uint32_t chunk)
{
    rig.now = now;
    return rig_fetch(&rig, rank, chunk);
}

/* If no fetch waits, the updates take from their issue to the end of the last one, and none of that
 * time is exposed. */
START_TEST(hidden)
{
    rig_open(&rig, N_CHUNKS, 1, 8, 0);
    rig_start(&rig, 1);
    commit(1);
    update_ends(0, 1100);
    update_ends(2, 1200);
    ck_assert_uint_eq(rig_stats(&rig).last_update_ns, 0); /* not all updates are done */
    update_ends(1, 1450);
    ck_assert_uint_eq(rig_stats(&rig).last_update_ns, 450);
    ck_assert_uint_eq(rig_stats(&rig).update_ns, 450);
    ck_assert_uint_eq(rig_stats(&rig).n_updates, N_CHUNKS);
    ck_assert_uint_eq(exposed(1), 0);
}
END_TEST

/* A worker waits for the update of its chunk and for the copy after it. Without the update the copy
 * would have been made at once, so the wait for the update is exposed. */
START_TEST(a_demand_waits)
{
    uint64_t tag;

    rig_open(&rig, N_CHUNKS, 1, 8, 0);
    rig_start(&rig, 1);
    commit(1);
    tag = fetch_at(1010, 0, 0);
    update_ends(0, 1100);
    rig.now = 1190;
    ck_assert(rig_waits(&rig, tag));
    rig_done(&rig, rig_command(&rig, CST_COMMAND_COPY, 0)->ticket, CST_OK, NULL);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    update_ends(1, 1200);
    update_ends(2, 1300);
    ck_assert_uint_eq(rig_stats(&rig).last_update_ns, 300);
    ck_assert_uint_eq(exposed(1), 90);
}
END_TEST

/* Complete the copy of the weights of @chunk at @now. */
static void copy_ends(uint32_t chunk, uint64_t now)
{
    unsigned n = 0;

    rig.now = now;
    while (rig_command(&rig, CST_COMMAND_COPY, n)->chunk != chunk) {
        n++;
    }
    rig_done(&rig, rig_command(&rig, CST_COMMAND_COPY, n)->ticket, CST_OK, NULL);
}

/* A prefetch waits for a copy that was late itself because of an update. Both copies would have
 * been made earlier. */
START_TEST(a_copy_behind_a_late_copy)
{
    rig_open(&rig, N_CHUNKS, 1, 8, 0);
    rig_start(&rig, 1);
    commit(1);
    (void)fetch_at(1010, 0, 0);
    (void)rig_fetch_ahead(&rig, 0, 1);
    update_ends(0, 1100);
    update_ends(1, 1110);
    update_ends(2, 1120);
    copy_ends(0, 1150); /* 50 after its update; instants 1010 to 1060 */
    rig.now = 1180;     /* 30 of work; instant 1090 */
    (void)rig_event(&rig, (struct cst_event){
                              .kind = CST_EV_WANT, .rank = 0, .attempt = rig.attempt, .chunk = 1});
    /* 50 after the first copy; instants 1060 to 1110, so 20 of the wait remain. */
    copy_ends(1, 1200);
    ck_assert_uint_eq(exposed(1), 90);
}
END_TEST

/* A wait for a copy without an update is not exposed time. */
START_TEST(a_copy_without_an_update)
{
    rig_open(&rig, N_CHUNKS, 1, 8, 0);
    rig_start(&rig, 1);
    commit(1);
    update_ends(0, 1100);
    update_ends(1, 1100);
    update_ends(2, 1100);
    (void)fetch_at(1300, 0, 0);
    copy_ends(0, 1400);
    ck_assert_uint_eq(exposed(1), 0);
}
END_TEST

/* Several waits of one rank at a time count once, and waits of several ranks are not added: the
 * commit would come when the last rank would ask for it. */
START_TEST(waits_are_united)
{
    rig_open(&rig, N_CHUNKS, 2, 8, 0);
    rig_start(&rig, 2);
    commit(2);
    (void)fetch_at(1010, 0, 0);
    (void)fetch_at(1020, 0, 1);
    (void)fetch_at(1030, 1, 2);
    update_ends(0, 1100);
    copy_ends(0, 1100);
    update_ends(1, 1150);
    copy_ends(1, 1150); /* rank 0, instead of at 1020 */
    update_ends(2, 1170);
    copy_ends(2, 1170); /* rank 1, instead of at 1030 */
    /* Both ask for the commit at once, and rank 0 would be the last. */
    ck_assert_uint_eq(exposed(2), 130);
    ck_assert_uint_eq(rig_stats(&rig).exposed_ns, 130);
}
END_TEST

/* A prefetch is hidden behind compute until the worker says that it waits. */
START_TEST(ahead_until_wanted)
{
    uint64_t tag;

    rig_open(&rig, N_CHUNKS, 1, 8, 0);
    rig_start(&rig, 1);
    commit(1);
    rig.now = 1010;
    (void)rig_fetch_ahead(&rig, 0, 0);
    rig.now = 1070;
    tag = rig_event(&rig, (struct cst_event){
                              .kind = CST_EV_WANT, .rank = 0, .attempt = rig.attempt, .chunk = 0});
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    update_ends(0, 1100);
    update_ends(1, 1100);
    update_ends(2, 1100);
    ck_assert_uint_eq(exposed(1), 30);
}
END_TEST

/* A WANT of a fetch that waits for a block moves the fetch to the demand fetches. A WANT that
 * matches no fetch is answered as well. */
START_TEST(want_goes_before_what_is_ahead)
{
    uint64_t first, second, weight;

    rig_open(&rig, N_CHUNKS, 1, 3, 0);
    rig_start(&rig, 1);
    weight = rig_get(&rig, 0, 0);
    (void)rig_get_grad(&rig, 0, 0);
    (void)rig_get_grad(&rig, 0, 1);
    first = rig_fetch_ahead(&rig, 0, 1);
    second = rig_fetch_ahead(&rig, 0, 2);
    for (uint32_t c = 0; c < N_CHUNKS; c += 2) {
        ck_assert_int_eq(rig_status(&rig, rig_event(&rig, (struct cst_event){.kind = CST_EV_WANT,
                                                                             .attempt = rig.attempt,
                                                                             .chunk = c})),
                         CST_OK);
    }
    (void)rig_release(&rig, 0, 0, weight);
    rig_drain(&rig);
    ck_assert(rig_waits(&rig, first));
    ck_assert_int_eq(rig_status(&rig, second), CST_OK);
}
END_TEST

/* A fetch that waits for a block until its chunk is updated has not waited for the update. */
START_TEST(not_while_a_block_is_missing)
{
    rig_open(&rig, N_CHUNKS, 1, 3, 0);
    rig_start(&rig, 1);
    commit(1);
    for (uint32_t c = 0; c < N_CHUNKS; c++) {
        ck_assert_int_eq(rig_status(&rig, rig_fetch_grad(&rig, 0, c)), CST_OK);
    }
    (void)fetch_at(1020, 0, 1);
    update_ends(0, 1050);
    update_ends(2, 1100);
    update_ends(1, 1200);
    ck_assert_uint_eq(exposed(1), 0);
}
END_TEST

/* A worker that gives up waiting ends its wait by its own choice. A worker that copies weights
 * itself waits only for the update. */
START_TEST(cancelled)
{
    uint64_t tag;

    rig_open_worker_copies(&rig, N_CHUNKS, 1, 8, 0);
    rig_start(&rig, 1);
    commit(1);
    tag = fetch_at(1010, 0, 0);
    rig.now = 1030;
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_CANCEL, .rank = 0, .cancel = tag});
    ck_assert_int_eq(rig_status(&rig, tag), CST_ECANCELLED);
    (void)fetch_at(1040, 0, 1);
    update_ends(0, 1100);
    update_ends(1, 1150);
    update_ends(2, 1160);
    ck_assert_uint_eq(exposed(1), 110);
}
END_TEST

/* A skipped step has no updates: the times stay those of the last step that had some. */
START_TEST(skipped)
{
    rig_open(&rig, N_CHUNKS, 1, 8, 0);
    rig_start(&rig, 1);
    commit(1);
    update_ends(0, 1100);
    update_ends(1, 1100);
    update_ends(2, 1100);
    rig.norm = 0.0 / 0.0;
    rig.now = 2000;
    (void)rig_step(&rig, 0);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_stats(&rig).n_skipped, 1);
    ck_assert_uint_eq(rig_stats(&rig).n_rounds, 1);
    ck_assert_uint_eq(rig_stats(&rig).last_update_ns, 100);
    ck_assert_uint_eq(rig_stats(&rig).update_ns, 100);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("exposure");
    TCase *tc = suite_case(s, "exposure", NULL, teardown);

    tcase_add_test(tc, hidden);
    tcase_add_test(tc, a_demand_waits);
    tcase_add_test(tc, a_copy_behind_a_late_copy);
    tcase_add_test(tc, a_copy_without_an_update);
    tcase_add_test(tc, waits_are_united);
    tcase_add_test(tc, ahead_until_wanted);
    tcase_add_test(tc, want_goes_before_what_is_ahead);
    tcase_add_test(tc, not_while_a_block_is_missing);
    tcase_add_test(tc, cancelled);
    tcase_add_test(tc, skipped);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
