/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of offload/machines/members.h: epochs and rounds of a few machines. tests/sim has the
 * random faults. */
#include "tests/lib/suite.h"
#include "tests/unit/members_rig.h"

#include <check.h>

START_TEST(one_machine_makes_a_job_and_adds_others)
{
    members_make_job(1);
    ck_assert(cst_members_hold(members_rig.machines[0]) && members_epoch_of(0) == 1 &&
              members_rig.n_holds[0] == 1);
    ck_assert_uint_eq(cst_members_deadline(members_rig.machines[0]), CST_MEMBERS_NEVER);
    members_open(1, NULL, 7, 0);
    ck_assert_str_eq(members_rig.text[1], "this node waits until a member adds it to the job");
    members_connect(0, 1, true);
    ck_assert_int_eq(members_say(0, CST_MEMBERS_ADD, 1, true), CST_OK);
    ck_assert(members_all_hold(2) && members_epoch_of(0) == 2 && members_epoch_of(1) == 2);
    ck_assert(cst_epoch_has(members_rig.held[1].epoch, 1, 7) &&
              cst_epoch_has(members_rig.held[1].epoch, 0, 1));
}
END_TEST

START_TEST(two_machines_do_not_decide_alone)
{
    members_make_job(2);
    members_connect(0, 1, false);
    ck_assert(!cst_members_hold(members_rig.machines[0]) &&
              !cst_members_hold(members_rig.machines[1]));
    members_pass(100 * MEMBERS_WAIT);
    ck_assert(members_epoch_of(0) == 2 && members_epoch_of(1) == 2);
    ck_assert_str_eq(members_rig.text[0],
                     "waits for bob, which is away: when it is back, the job goes on. 1 of 2 nodes"
                     " is not enough to go on alone, because the others may do so, too. If it is"
                     " lost for good, say so on this node only: 'cistern node drop bob'");
    ck_assert_int_eq(members_say(0, CST_MEMBERS_DROP, 1, false), CST_OK);
    ck_assert(cst_members_hold(members_rig.machines[0]) && members_epoch_of(0) == 3 &&
              !members_is_member(1, 0));
    members_pass(MEMBERS_WAIT);
    ck_assert(!cst_members_hold(members_rig.machines[1]) && members_epoch_of(1) == 2);
    members_connect(0, 1, true); /* It lives, and learns that it was removed. */
    ck_assert(members_rig.out[1] && !cst_members_hold(members_rig.machines[1]));
    ck_assert_str_eq(members_rig.text[1],
                     "this node was removed: the members are ann since epoch 3");
}
END_TEST

START_TEST(a_machine_is_lost_after_its_time)
{
    members_make_job(3);
    members_isolate(2, false);
    ck_assert_str_eq(members_rig.text[0],
                     "waits for cid, which is away: in 30 s the other nodes go on"
                     " without what is not back");
    members_pass(MEMBERS_WAIT - 1);
    ck_assert(members_epoch_of(0) == 3 && !cst_members_hold(members_rig.machines[0]));
    members_pass(1);
    members_pass(MEMBERS_SECOND);
    ck_assert(members_epoch_of(0) == 4 && members_epoch_of(1) == 4 && members_all_hold(2) &&
              !members_is_member(2, 0));
    ck_assert(members_epoch_of(2) == 3 && !cst_members_hold(members_rig.machines[2]));
}
END_TEST

/* A machine that is added has this time, too, at members to which it has no link yet. */
START_TEST(an_added_machine_has_time_to_appear)
{
    members_make_job(2);
    members_pass(2 * MEMBERS_WAIT);
    members_open(2, NULL, 3, 0);
    members_connect(0, 2, true);
    ck_assert_int_eq(members_say(0, CST_MEMBERS_ADD, 2, true), CST_OK);
    members_pass(MEMBERS_WAIT - MEMBERS_SECOND);
    ck_assert(members_epoch_of(0) == 3 && members_epoch_of(1) == 3 && members_epoch_of(2) == 3);
    members_connect(1, 2, true);
    ck_assert(members_all_hold(3));
}
END_TEST

START_TEST(a_daemon_that_restarts_comes_back_into_the_epoch)
{
    struct cst_members_record record;
    uint64_t round;

    members_make_job(3);
    record = members_stop(1);
    round = record.round;
    members_pass(MEMBERS_WAIT / 2);
    members_open(1, &record, 0, 0);
    members_isolate(1, true);
    ck_assert(members_all_hold(3) && members_epoch_of(0) == 3);
    ck_assert_uint_gt(members_rig.held[0].round, round);
    ck_assert_uint_eq(members_rig.held[0].round, members_rig.held[1].round);
    members_pass(2 * MEMBERS_WAIT);
    ck_assert(members_all_hold(3) && members_epoch_of(0) == 3);
}
END_TEST

/* Not even alone: what the core has sent in a round is never mixed with what a later core sends. */
START_TEST(no_round_holds_twice)
{
    struct cst_members_record record;
    uint64_t round;

    members_make_job(1);
    round = members_rig.held[0].round;
    record = members_stop(0);
    members_open(0, &record, 0, 3);
    ck_assert(cst_members_hold(members_rig.machines[0]) && members_rig.held[0].committed == 3);
    ck_assert_uint_gt(members_rig.held[0].round, round);
}
END_TEST

START_TEST(a_machine_without_its_record_is_a_new_one)
{
    members_make_job(3);
    (void)members_stop(2);
    members_open(2, NULL, 33, 0);
    members_isolate(2, true);
    members_pass(2 * MEMBERS_SECOND); /* Nobody waits for the old one: it is gone. */
    ck_assert(members_epoch_of(0) == 4 && members_all_hold(2) && !members_is_member(2, 0) &&
              members_epoch_of(2) == 0);
    ck_assert_int_eq(members_say(1, CST_MEMBERS_ADD, 2, true), CST_OK);
    members_pass(2 * MEMBERS_SECOND);
    ck_assert(members_epoch_of(2) == 5 && members_all_hold(3));
}
END_TEST

START_TEST(one_of_two_without_its_record_is_added_again)
{
    members_make_job(2);
    (void)members_stop(1);
    members_open(1, NULL, 33, 0);
    members_connect(0, 1, true);
    members_pass(2 * MEMBERS_WAIT);
    ck_assert(members_epoch_of(0) == 2 && !cst_members_hold(members_rig.machines[0]));
    ck_assert_int_eq(members_say(0, CST_MEMBERS_ADD, 1, false), CST_OK);
    ck_assert(members_epoch_of(0) == 3 && members_all_hold(2));
}
END_TEST

START_TEST(all_learn_the_last_recorded_commit)
{
    members_make_job(3);
    for (uint32_t m = 0; m < 3; m++) {
        members_commit(m, 4);
    }
    members_commit(1, 5);
    members_commit(2, 5); /* The first machine has not recorded step 5. */
    members_connect(0, 1, false);
    ck_assert(!members_all_hold(3));
    members_connect(0, 1, true);
    ck_assert(members_all_hold(3));
    for (uint32_t m = 0; m < 3; m++) {
        struct cst_set two = cst_set_range(1, 3);

        ck_assert_uint_eq(members_rig.held[m].committed, 5);
        ck_assert(cst_set_equal(&members_rig.held[m].recorded, &two));
    }
}
END_TEST

START_TEST(a_scheduler_knows_that_a_machine_is_down)
{
    members_make_job(4);
    ck_assert_int_eq(members_say(1, CST_MEMBERS_GONE, 3, false), CST_OK);
    members_pass(MEMBERS_WAIT);
    ck_assert(members_all_hold(4) && members_epoch_of(0) == 4); /* It has a link: it is not down. */
    members_isolate(3, false);
    members_pass(2 * MEMBERS_SECOND);
    ck_assert(members_epoch_of(1) == 5 && members_all_hold(3) && !members_is_member(3, 1));
    /* Two more, at once: the last one needs to be told of both. */
    members_isolate(1, false);
    members_connect(0, 2, false);
    ck_assert_int_eq(members_say(0, CST_MEMBERS_GONE, 1, false), CST_OK);
    members_pass(2 * MEMBERS_WAIT);
    ck_assert(!cst_members_hold(members_rig.machines[0]));
    ck_assert_int_eq(members_say(0, CST_MEMBERS_GONE, 2, false), CST_OK);
    ck_assert(cst_members_hold(members_rig.machines[0]) && members_epoch_of(0) == 6);
}
END_TEST

/* Who comes back is not down any more, and who has a link is asked whatever was said. */
START_TEST(a_link_goes_before_what_was_said)
{
    members_make_job(4);
    members_isolate(0, false);
    ck_assert_int_eq(members_say(0, CST_MEMBERS_GONE, 1, false), CST_OK);
    members_connect(0, 1, true);
    members_connect(0, 1, false);
    ck_assert_int_eq(members_say(0, CST_MEMBERS_GONE, 2, false), CST_OK);
    ck_assert_int_eq(members_say(0, CST_MEMBERS_GONE, 3, false), CST_OK);
    members_pass(2 * MEMBERS_WAIT);
    ck_assert(members_epoch_of(0) == 4 && !cst_members_hold(members_rig.machines[0]));
    members_connect(0, 1, true); /* It went on with the others. */
    ck_assert(members_rig.out[0] && members_epoch_of(0) == 5);
}
END_TEST

START_TEST(who_has_a_link_is_asked)
{
    members_make_job(2);
    ck_assert_int_eq(members_say(0, CST_MEMBERS_GONE, 1, false), CST_OK);
    members_rig.linked[1][0] = false; /* Its answer does not come. */
    ck_assert_int_eq(members_say(0, CST_MEMBERS_DROP, 1, true), CST_OK);
    members_pass(2 * MEMBERS_WAIT);
    ck_assert(members_epoch_of(0) == 2 && members_epoch_of(1) == 2);
}
END_TEST

START_TEST(planned_changes_wait_for_a_commit)
{
    uint64_t begin;

    members_make_job(3);
    ck_assert_int_eq(members_say(0, CST_MEMBERS_DROP, 2, false), CST_OK);
    members_pass(MEMBERS_WAIT / 2);
    ck_assert(members_all_hold(3) && members_epoch_of(0) == 3);
    members_commit(0, 1);
    members_pass(MEMBERS_SECOND);
    ck_assert(members_epoch_of(0) == 4 && members_all_hold(2) && members_rig.out[2]);
    begin = members_rig.now; /* Without a commit it does not wait for ever. */
    ck_assert_int_eq(members_say(1, CST_MEMBERS_DROP, 1, false), CST_OK);
    while (!members_rig.out[1]) {
        ck_assert_uint_le(members_rig.now, begin + MEMBERS_WAIT + MEMBERS_SECOND);
        members_pass(MEMBERS_SECOND / 2);
    }
    ck_assert_uint_ge(members_rig.now, begin + MEMBERS_WAIT);
    ck_assert(members_epoch_of(0) == 5 && cst_members_hold(members_rig.machines[0]));
}
END_TEST

/* One that leaves stays until a member knows, because nobody else might. */
START_TEST(the_last_that_knows_an_epoch_stays)
{
    members_make_job(2);
    members_rig.mute = 0; /* It decides, and nobody hears of it. */
    ck_assert_int_eq(members_say(0, CST_MEMBERS_DROP, 0, true), CST_OK);
    ck_assert(members_epoch_of(0) == 3 && members_epoch_of(1) == 2 && !members_rig.out[0]);
    ck_assert_str_eq(members_rig.text[0],
                     "this node was removed, and stays until a member of epoch 3 knows: bob");
    members_connect(0, 1, false);
    members_rig.mute = MEMBERS_RIG_MAX;
    members_connect(0, 1, true);
    ck_assert(members_epoch_of(1) == 3 && cst_members_hold(members_rig.machines[1]) &&
              members_rig.out[0]);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("members");
    TCase *c = suite_case(s, "members", members_set_up, members_tear_down);

    tcase_add_test(c, one_machine_makes_a_job_and_adds_others);
    tcase_add_test(c, two_machines_do_not_decide_alone);
    tcase_add_test(c, a_machine_is_lost_after_its_time);
    tcase_add_test(c, an_added_machine_has_time_to_appear);
    tcase_add_test(c, a_daemon_that_restarts_comes_back_into_the_epoch);
    tcase_add_test(c, no_round_holds_twice);
    tcase_add_test(c, a_machine_without_its_record_is_a_new_one);
    tcase_add_test(c, one_of_two_without_its_record_is_added_again);
    tcase_add_test(c, all_learn_the_last_recorded_commit);
    tcase_add_test(c, a_scheduler_knows_that_a_machine_is_down);
    tcase_add_test(c, a_link_goes_before_what_was_said);
    tcase_add_test(c, who_has_a_link_is_asked);
    tcase_add_test(c, planned_changes_wait_for_a_commit);
    tcase_add_test(c, the_last_that_knows_an_epoch_stays);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
