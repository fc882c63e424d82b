/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of offload/machines/members.h: what it refuses, and what it says to users. */
#include "tests/lib/suite.h"
#include "tests/unit/members_rig.h"

#include <check.h>

START_TEST(wrong_words_are_refused)
{
    members_make_job(2);
    members_open(2, NULL, 3, 0);
    ck_assert_int_eq(members_say(0, CST_MEMBERS_ADD, 2, true), CST_ECONN);
    ck_assert_ptr_nonnull(strstr(members_rig.err.text, "no link to cid"));
    ck_assert_int_eq(members_say(0, CST_MEMBERS_ADD, 1, true), CST_EEXIST);
    ck_assert_int_eq(members_say(0, CST_MEMBERS_DROP, 2, true), CST_ENOTFOUND);
    ck_assert_str_eq(members_rig.err.text, "cid is no member of the job");
    ck_assert_int_eq(members_say(0, CST_MEMBERS_GONE, 0, true), CST_ENOTFOUND);
    ck_assert_int_eq(members_say(2, CST_MEMBERS_DROP, 0, true), CST_EINVAL);
    ck_assert_int_eq(members_say(0, CST_MEMBERS_DROP, 1, false), CST_OK);
    ck_assert_int_eq(members_say(0, CST_MEMBERS_DROP, 0, true), CST_EINVAL);
    ck_assert_str_eq(members_rig.err.text,
                     "ann is the last member that stays: end the job instead");
    ck_assert_int_eq(members_say(0, CST_MEMBERS_ADD, 1, true),
                     CST_OK); /* It takes the DROP back. */
    members_pass(2 * MEMBERS_WAIT);
    ck_assert(members_epoch_of(0) == 2 && members_all_hold(2));
    ck_assert_int_eq(members_say(0, CST_MEMBERS_DROP, 1, true), CST_OK);
    members_pass(MEMBERS_SECOND);
    ck_assert(members_rig.out[1]);
    ck_assert_int_eq(members_say(0, CST_MEMBERS_ADD, 1, true), CST_EBUSY);
    members_connect(0, 2, true);
    ck_assert_int_eq(members_say(0, CST_MEMBERS_ADD, 2, false), CST_OK);
    ck_assert_int_eq(members_say(0, CST_MEMBERS_DROP, 2, false),
                     CST_OK); /* It takes the ADD back. */
    members_pass(2 * MEMBERS_WAIT);
    ck_assert(members_epoch_of(0) == 3 && members_epoch_of(2) == 0);
}
END_TEST

/* Break a message in one of several ways. False: there is no such way. */
static bool break_message(struct cst_members_message *message, int way)
{
    switch (way) {
    case 0:
        message->kind = (enum cst_members_kind)0;
        return true;
    case 1:
        message->kind = (enum cst_members_kind)(CST_MEMBERS_REFUSED + 1);
        return true;
    case 2:
        message->life = 0;
        return true;
    case 3:
        message->round = 0;
        return true;
    case 4:
        message->round = UINT64_MAX;
        return true;
    case 5:
        message->epoch.number = 0;
        return true;
    case 6:
        message->epoch.number = UINT64_MAX;
        return true;
    case 7:
        message->epoch.lives[1] = 0;
        return true;
    case 8:
        message->epoch.lives[100] = 1;
        return true;
    case 9:
        message->kind = CST_MEMBERS_ACCEPT; /* Of the wrong epoch. */
        message->ballot = 1;
        message->number = message->epoch.number;
        return true;
    case 10:
        message->kind = CST_MEMBERS_PROMISE; /* With a value that nobody has accepted. */
        message->ballot = 1;
        message->number = message->epoch.number - 1;
        return true;
    case 11:
        message->kind = CST_MEMBERS_PREPARE; /* Without a ballot. */
        message->epoch = (struct cst_epoch){.number = 0};
        return true;
    default:
        return false;
    }
}

START_TEST(messages_that_are_none_are_refused)
{
    struct cst_members_record before;

    members_make_job(2);
    before = *cst_members_record(members_rig.machines[0]);
    for (int way = 0;; way++) {
        struct cst_members_message message = {
            .kind = CST_MEMBERS_TELL,
            .life = 2,
            .round = before.round,
            .epoch = before.epoch,
        };
        struct cst_members_event event = {
            .kind = CST_MEMBERS_TOLD,
            .machine = 1,
            .message = &message,
        };

        if (!break_message(&message, way)) {
            ck_assert_int_eq(members_feed(0, event), CST_OK);
            break;
        }
        ck_assert_msg(members_feed(0, event) == CST_EPROTO, "way %d: %s", way,
                      members_rig.err.text);
        ck_assert(memcmp(&before, cst_members_record(members_rig.machines[0]), sizeof before) == 0);
        ck_assert(cst_members_hold(members_rig.machines[0]));
    }
}
END_TEST

START_TEST(a_record_that_is_none_is_refused)
{
    struct cst_members_config config = {
        .self = 0, .wait = MEMBERS_WAIT, .names = members_rig.names};
    struct cst_members_record record, bad;
    struct cst_members *members = NULL;

    members_make_job(2);
    record = *cst_members_record(members_rig.machines[0]);
    for (int way = 0; way < 3; way++) {
        bad = record;
        bad.life = way == 0 ? 0 : bad.life;
        bad.round = way == 1 ? 0 : bad.round;
        bad.epoch.lives[3] = way == 2;
        ck_assert_int_eq(
            cst_members_open(&members, &config, &bad, members_rig.now, &members_rig.err),
            CST_EPROTO);
        ck_assert_ptr_null(members);
    }
}
END_TEST

/* Sentences for users, while time passes. */
START_TEST(an_instance_explains_itself)
{
    char words[640];

    members_make_job(3);
    cst_members_explain(members_rig.machines[0], members_rig.now, words, sizeof words);
    ck_assert_str_eq(words, "its members are ann, bob and cid (epoch 3)");
    members_isolate(2, false);
    cst_members_explain(members_rig.machines[0], members_rig.now + 12 * MEMBERS_SECOND, words,
                        sizeof words);
    ck_assert_str_eq(words, "waits for cid, which is away: in 18 s the other nodes go on"
                            " without what is not back");
    members_connect(0, 1, false);
    cst_members_explain(members_rig.machines[0], members_rig.now, words, sizeof words);
    ck_assert_str_eq(words,
                     "waits for bob and cid, which are away: when they are back, the job goes"
                     " on. 1 of 3 nodes is not enough to go on alone, because the others may"
                     " do so, too. If they are lost for good, say so on this node only:"
                     " 'cistern node drop NAME'");
    cst_members_explain(members_rig.machines[0], members_rig.now, words, 20);
    ck_assert_uint_eq(strlen(words), 19);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("members words");
    TCase *c = suite_case(s, "members words", members_set_up, members_tear_down);

    tcase_add_test(c, wrong_words_are_refused);
    tcase_add_test(c, messages_that_are_none_are_refused);
    tcase_add_test(c, a_record_that_is_none_is_refused);
    tcase_add_test(c, an_instance_explains_itself);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
