/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of offload/machines/members.h on a few machines whose messages come at once. tests/sim has
 * the random faults. */
#include "offload/machines/members.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdio.h>

enum { MAX = 4, MAX_QUEUE = 256 };

#define SECOND UINT64_C(1000000000)
#define WAIT (30 * SECOND)

struct sent {
    uint32_t from, to;
    struct cst_members_message message;
};

static const char *const names[CST_SET_MAX] = {"ann", "bob", "cid", "dan"};
static struct cst_members *machines[MAX];
static bool linked[MAX][MAX];
static uint64_t now;
static struct sent queue[MAX_QUEUE];
static uint32_t n_queue;
static struct cst_members_actions actions;
static struct cst_err err;
/* Per machine: the last HOLDS, the number of HOLDS and WAITS, the last text, and whether it is OUT.
 */
static struct cst_members_action held[MAX];
static uint32_t n_holds[MAX], n_waits[MAX];
static char text[MAX][640];
static bool out[MAX];
/* What this machine says of its epoch is lost. MAX: that of none. */
static uint32_t mute = MAX;

static void set_up(void)
{
    now = SECOND;
}

static void tear_down(void)
{
    for (uint32_t m = 0; m < MAX; m++) {
        cst_members_close(machines[m]);
    }
}

static void take_action(uint32_t m, const struct cst_members_action *action)
{
    switch (action->kind) {
    case CST_MEMBERS_SEND:
        CST_SET_EACH (to, &action->to) {
            ck_assert(to < MAX && to != m && n_queue < MAX_QUEUE);
            queue[n_queue++] = (struct sent){m, to, action->message};
        }
        break;
    case CST_MEMBERS_LOG:
        break;
    case CST_MEMBERS_HOLDS:
        held[m] = *action;
        n_holds[m]++;
        break;
    case CST_MEMBERS_OUT:
        out[m] = true;
        snprintf(text[m], sizeof text[m], "%s", action->text);
        break;
    case CST_MEMBERS_WAITS:
        n_waits[m]++;
        snprintf(text[m], sizeof text[m], "%s", action->text);
        break;
    }
}

static int feed(uint32_t m, struct cst_members_event event)
{
    int status;

    event.now = now;
    err = (struct cst_err){.status = CST_OK};
    status = cst_members_step(machines[m], &event, &actions, &err);
    ck_assert_int_eq(status, err.status);
    for (uint32_t i = 0; status == CST_OK && i < actions.n; i++) {
        take_action(m, &actions.v[i]);
    }
    return status;
}

/* Deliver all messages, and those that follow from them. */
static void deliver(void)
{
    for (uint32_t i = 0; i < n_queue; i++) {
        const struct sent sent = queue[i];
        const struct cst_members_event event = {
            .kind = CST_MEMBERS_TOLD,
            .machine = sent.from,
            .message = &sent.message,
        };

        if (sent.from == mute && sent.message.kind == CST_MEMBERS_TELL) {
            continue;
        }
        if (linked[sent.from][sent.to] && machines[sent.to] != NULL) {
            ck_assert_int_eq(feed(sent.to, event), CST_OK);
        }
    }
    n_queue = 0;
}

static int say(uint32_t m, enum cst_members_event_kind kind, uint32_t machine, bool idle)
{
    int status =
        feed(m, (struct cst_members_event){.kind = kind, .machine = machine, .idle = idle});

    deliver();
    return status;
}

static void connect(uint32_t a, uint32_t b, bool up)
{
    enum cst_members_event_kind kind = up ? CST_MEMBERS_UP : CST_MEMBERS_DOWN;

    linked[a][b] = up;
    linked[b][a] = up;
    if (machines[a] != NULL) {
        (void)feed(a, (struct cst_members_event){.kind = kind, .machine = b});
    }
    if (machines[b] != NULL) {
        (void)feed(b, (struct cst_members_event){.kind = kind, .machine = a});
    }
    deliver();
}

static void isolate(uint32_t m, bool up)
{
    for (uint32_t other = 0; other < MAX; other++) {
        if (other != m && (machines[other] != NULL)) {
            connect(m, other, up);
        }
    }
}

/* Let time pass. Each machine is told when its deadline has come. */
static void pass(uint64_t ns)
{
    uint64_t end = now + ns;

    for (;;) {
        uint32_t first = MAX;
        uint64_t at = end;

        for (uint32_t m = 0; m < MAX; m++) {
            if (machines[m] != NULL && cst_members_deadline(machines[m]) < at) {
                first = m;
                at = cst_members_deadline(machines[m]);
            }
        }
        now = at > now ? at : now;
        if (first == MAX) {
            return;
        }
        (void)say(first, CST_MEMBERS_TIME, 0, false);
    }
}

static void open_machine(uint32_t m, const struct cst_members_record *record, uint64_t life,
                         uint64_t committed)
{
    const struct cst_members_config config = {
        .self = m,
        .life = life,
        .makes_job = m == 0 && record == NULL && life == 1,
        .wait = WAIT,
        .committed = committed,
        .names = names,
    };

    ck_assert_int_eq(cst_members_open(&machines[m], &config, record, now, &err), CST_OK);
    (void)say(m, CST_MEMBERS_TIME, 0, false);
}

/* Make a job with the first @n machines. */
static void make_job(uint32_t n)
{
    for (uint32_t m = 0; m < n; m++) {
        open_machine(m, NULL, m + 1, 0);
    }
    for (uint32_t a = 0; a < n; a++) {
        for (uint32_t b = a + 1; b < n; b++) {
            connect(a, b, true);
        }
    }
    for (uint32_t m = 1; m < n; m++) {
        ck_assert_int_eq(say(0, CST_MEMBERS_ADD, m, true), CST_OK);
        pass(SECOND);
    }
}

static void commit(uint32_t m, uint64_t step)
{
    ck_assert_int_eq(
        feed(m, (struct cst_members_event){.kind = CST_MEMBERS_COMMITTED, .step = step}), CST_OK);
    deliver();
}

static uint64_t epoch_of(uint32_t m)
{
    return cst_members_record(machines[m])->epoch.number;
}

static bool is_member(uint32_t m, uint32_t of)
{
    return cst_set_has(&cst_members_record(machines[of])->epoch.members, m);
}

static bool all_hold(uint32_t n)
{
    for (uint32_t m = 0; m < n; m++) {
        if (!cst_members_hold(machines[m])) {
            return false;
        }
    }
    return true;
}

/* Close the instance as a daemon that ends, and return its record. */
static struct cst_members_record stop_daemon(uint32_t m)
{
    struct cst_members_record record = *cst_members_record(machines[m]);

    cst_members_close(machines[m]);
    machines[m] = NULL;
    for (uint32_t other = 0; other < MAX; other++) {
        if (other != m && linked[m][other]) {
            connect(m, other, false);
        }
    }
    return record;
}

START_TEST(one_machine_makes_a_job_and_adds_others)
{
    make_job(1);
    ck_assert(cst_members_hold(machines[0]) && epoch_of(0) == 1 && n_holds[0] == 1);
    ck_assert_uint_eq(cst_members_deadline(machines[0]), CST_MEMBERS_NEVER);
    open_machine(1, NULL, 7, 0);
    ck_assert_str_eq(text[1], "this machine waits until a member adds it to the job");
    connect(0, 1, true);
    ck_assert_int_eq(say(0, CST_MEMBERS_ADD, 1, true), CST_OK);
    ck_assert(all_hold(2) && epoch_of(0) == 2 && epoch_of(1) == 2);
    ck_assert(cst_epoch_has(held[1].epoch, 1, 7) && cst_epoch_has(held[1].epoch, 0, 1));
}
END_TEST

START_TEST(two_machines_do_not_decide_alone)
{
    make_job(2);
    connect(0, 1, false);
    ck_assert(!cst_members_hold(machines[0]) && !cst_members_hold(machines[1]));
    pass(100 * WAIT);
    ck_assert(epoch_of(0) == 2 && epoch_of(1) == 2);
    ck_assert_str_eq(text[0],
                     "waits for bob, which is away: 1 of 2 machines is not enough to go on, because"
                     " the others may do so, too. If it is switched off for good, say so with"
                     " 'cistern node drop', on this machine only");
    ck_assert_int_eq(say(0, CST_MEMBERS_DROP, 1, false), CST_OK);
    ck_assert(cst_members_hold(machines[0]) && epoch_of(0) == 3 && !is_member(1, 0));
    pass(WAIT);
    ck_assert(!cst_members_hold(machines[1]) && epoch_of(1) == 2);
    connect(0, 1, true); /* It lives, and learns that it was removed. */
    ck_assert(out[1] && !cst_members_hold(machines[1]));
    ck_assert_str_eq(text[1], "this machine was removed: the members are ann since epoch 3");
}
END_TEST

START_TEST(a_machine_is_lost_after_its_time)
{
    make_job(3);
    isolate(2, false);
    ck_assert_str_eq(text[0], "waits for cid, which is away: in 30 s the other machines go on"
                              " without what is not back");
    pass(WAIT - 1);
    ck_assert(epoch_of(0) == 3 && !cst_members_hold(machines[0]));
    pass(1);
    pass(SECOND);
    ck_assert(epoch_of(0) == 4 && epoch_of(1) == 4 && all_hold(2) && !is_member(2, 0));
    ck_assert(epoch_of(2) == 3 && !cst_members_hold(machines[2]));
}
END_TEST

/* A machine that is added has this time, too, at members to which it has no link yet. */
START_TEST(an_added_machine_has_time_to_appear)
{
    make_job(2);
    pass(2 * WAIT);
    open_machine(2, NULL, 3, 0);
    connect(0, 2, true);
    ck_assert_int_eq(say(0, CST_MEMBERS_ADD, 2, true), CST_OK);
    pass(WAIT - SECOND);
    ck_assert(epoch_of(0) == 3 && epoch_of(1) == 3 && epoch_of(2) == 3);
    connect(1, 2, true);
    ck_assert(all_hold(3));
}
END_TEST

START_TEST(a_daemon_that_restarts_comes_back_into_the_epoch)
{
    struct cst_members_record record;
    uint64_t round;

    make_job(3);
    record = stop_daemon(1);
    round = record.round;
    pass(WAIT / 2);
    open_machine(1, &record, 0, 0);
    isolate(1, true);
    ck_assert(all_hold(3) && epoch_of(0) == 3);
    ck_assert_uint_gt(held[0].round, round);
    ck_assert_uint_eq(held[0].round, held[1].round);
    pass(2 * WAIT);
    ck_assert(all_hold(3) && epoch_of(0) == 3);
}
END_TEST

/* Not even alone: what the core has sent in a round is never mixed with what a later core sends. */
START_TEST(no_round_holds_twice)
{
    struct cst_members_record record;
    uint64_t round;

    make_job(1);
    round = held[0].round;
    record = stop_daemon(0);
    open_machine(0, &record, 0, 3);
    ck_assert(cst_members_hold(machines[0]) && held[0].committed == 3);
    ck_assert_uint_gt(held[0].round, round);
}
END_TEST

START_TEST(a_machine_without_its_record_is_a_new_one)
{
    make_job(3);
    (void)stop_daemon(2);
    open_machine(2, NULL, 33, 0);
    isolate(2, true);
    pass(2 * SECOND); /* Nobody waits for the old one: it is gone. */
    ck_assert(epoch_of(0) == 4 && all_hold(2) && !is_member(2, 0) && epoch_of(2) == 0);
    ck_assert_int_eq(say(1, CST_MEMBERS_ADD, 2, true), CST_OK);
    pass(2 * SECOND);
    ck_assert(epoch_of(2) == 5 && all_hold(3));
}
END_TEST

START_TEST(one_of_two_without_its_record_is_added_again)
{
    make_job(2);
    (void)stop_daemon(1);
    open_machine(1, NULL, 33, 0);
    connect(0, 1, true);
    pass(2 * WAIT);
    ck_assert(epoch_of(0) == 2 && !cst_members_hold(machines[0]));
    ck_assert_int_eq(say(0, CST_MEMBERS_ADD, 1, false), CST_OK);
    ck_assert(epoch_of(0) == 3 && all_hold(2));
}
END_TEST

START_TEST(all_learn_the_last_recorded_commit)
{
    make_job(3);
    for (uint32_t m = 0; m < 3; m++) {
        commit(m, 4);
    }
    commit(1, 5);
    commit(2, 5); /* The first machine has not recorded step 5. */
    connect(0, 1, false);
    ck_assert(!all_hold(3));
    connect(0, 1, true);
    ck_assert(all_hold(3));
    for (uint32_t m = 0; m < 3; m++) {
        struct cst_set two = cst_set_range(1, 3);

        ck_assert_uint_eq(held[m].committed, 5);
        ck_assert(cst_set_equal(&held[m].recorded, &two));
    }
}
END_TEST

START_TEST(a_scheduler_knows_that_a_machine_is_down)
{
    make_job(4);
    ck_assert_int_eq(say(1, CST_MEMBERS_GONE, 3, false), CST_OK);
    pass(WAIT);
    ck_assert(all_hold(4) && epoch_of(0) == 4); /* It has a link: it is not down. */
    isolate(3, false);
    pass(2 * SECOND);
    ck_assert(epoch_of(1) == 5 && all_hold(3) && !is_member(3, 1));
    /* Two more, at once: the last one needs to be told of both. */
    isolate(1, false);
    connect(0, 2, false);
    ck_assert_int_eq(say(0, CST_MEMBERS_GONE, 1, false), CST_OK);
    pass(2 * WAIT);
    ck_assert(!cst_members_hold(machines[0]));
    ck_assert_int_eq(say(0, CST_MEMBERS_GONE, 2, false), CST_OK);
    ck_assert(cst_members_hold(machines[0]) && epoch_of(0) == 6);
}
END_TEST

/* Who comes back is not down any more, and who has a link is asked whatever was said. */
START_TEST(a_link_goes_before_what_was_said)
{
    make_job(4);
    isolate(0, false);
    ck_assert_int_eq(say(0, CST_MEMBERS_GONE, 1, false), CST_OK);
    connect(0, 1, true);
    connect(0, 1, false);
    ck_assert_int_eq(say(0, CST_MEMBERS_GONE, 2, false), CST_OK);
    ck_assert_int_eq(say(0, CST_MEMBERS_GONE, 3, false), CST_OK);
    pass(2 * WAIT);
    ck_assert(epoch_of(0) == 4 && !cst_members_hold(machines[0]));
    connect(0, 1, true); /* It went on with the others. */
    ck_assert(out[0] && epoch_of(0) == 5);
}
END_TEST

START_TEST(who_has_a_link_is_asked)
{
    make_job(2);
    ck_assert_int_eq(say(0, CST_MEMBERS_GONE, 1, false), CST_OK);
    linked[1][0] = false; /* Its answer does not come. */
    ck_assert_int_eq(say(0, CST_MEMBERS_DROP, 1, true), CST_OK);
    pass(2 * WAIT);
    ck_assert(epoch_of(0) == 2 && epoch_of(1) == 2);
}
END_TEST

START_TEST(planned_changes_wait_for_a_commit)
{
    uint64_t begin;

    make_job(3);
    ck_assert_int_eq(say(0, CST_MEMBERS_DROP, 2, false), CST_OK);
    pass(WAIT / 2);
    ck_assert(all_hold(3) && epoch_of(0) == 3);
    commit(0, 1);
    pass(SECOND);
    ck_assert(epoch_of(0) == 4 && all_hold(2) && out[2]);
    begin = now; /* Without a commit it does not wait for ever. */
    ck_assert_int_eq(say(1, CST_MEMBERS_DROP, 1, false), CST_OK);
    while (!out[1]) {
        ck_assert_uint_le(now, begin + WAIT + SECOND);
        pass(SECOND / 2);
    }
    ck_assert_uint_ge(now, begin + WAIT);
    ck_assert(epoch_of(0) == 5 && cst_members_hold(machines[0]));
}
END_TEST

/* One that leaves stays until a member knows, because nobody else might. */
START_TEST(the_last_that_knows_an_epoch_stays)
{
    make_job(2);
    mute = 0; /* It decides, and nobody hears of it. */
    ck_assert_int_eq(say(0, CST_MEMBERS_DROP, 0, true), CST_OK);
    ck_assert(epoch_of(0) == 3 && epoch_of(1) == 2 && !out[0]);
    ck_assert_str_eq(text[0],
                     "this machine was removed, and stays until a member of epoch 3 knows: bob");
    connect(0, 1, false);
    mute = MAX;
    connect(0, 1, true);
    ck_assert(epoch_of(1) == 3 && cst_members_hold(machines[1]) && out[0]);
}
END_TEST

START_TEST(wrong_words_are_refused)
{
    make_job(2);
    open_machine(2, NULL, 3, 0);
    ck_assert_int_eq(say(0, CST_MEMBERS_ADD, 2, true), CST_ECONN);
    ck_assert_ptr_nonnull(strstr(err.text, "no link to cid"));
    ck_assert_int_eq(say(0, CST_MEMBERS_ADD, 1, true), CST_EEXIST);
    ck_assert_int_eq(say(0, CST_MEMBERS_DROP, 2, true), CST_ENOTFOUND);
    ck_assert_str_eq(err.text, "cid is no member of the job");
    ck_assert_int_eq(say(0, CST_MEMBERS_GONE, 0, true), CST_ENOTFOUND);
    ck_assert_int_eq(say(2, CST_MEMBERS_DROP, 0, true), CST_EINVAL);
    ck_assert_int_eq(say(0, CST_MEMBERS_DROP, 1, false), CST_OK);
    ck_assert_int_eq(say(0, CST_MEMBERS_DROP, 0, true), CST_EINVAL);
    ck_assert_str_eq(err.text, "ann is the last member that stays: end the job instead");
    ck_assert_int_eq(say(0, CST_MEMBERS_ADD, 1, true), CST_OK); /* It takes the DROP back. */
    pass(2 * WAIT);
    ck_assert(epoch_of(0) == 2 && all_hold(2));
    ck_assert_int_eq(say(0, CST_MEMBERS_DROP, 1, true), CST_OK);
    pass(SECOND);
    ck_assert(out[1]);
    ck_assert_int_eq(say(0, CST_MEMBERS_ADD, 1, true), CST_EBUSY);
    connect(0, 2, true);
    ck_assert_int_eq(say(0, CST_MEMBERS_ADD, 2, false), CST_OK);
    ck_assert_int_eq(say(0, CST_MEMBERS_DROP, 2, false), CST_OK); /* It takes the ADD back. */
    pass(2 * WAIT);
    ck_assert(epoch_of(0) == 3 && epoch_of(2) == 0);
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

    make_job(2);
    before = *cst_members_record(machines[0]);
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
            ck_assert_int_eq(feed(0, event), CST_OK);
            break;
        }
        ck_assert_msg(feed(0, event) == CST_EPROTO, "way %d: %s", way, err.text);
        ck_assert(memcmp(&before, cst_members_record(machines[0]), sizeof before) == 0);
        ck_assert(cst_members_hold(machines[0]));
    }
}
END_TEST

START_TEST(a_record_that_is_none_is_refused)
{
    struct cst_members_config config = {.self = 0, .wait = WAIT, .names = names};
    struct cst_members_record record, bad;
    struct cst_members *members = NULL;

    make_job(2);
    record = *cst_members_record(machines[0]);
    for (int way = 0; way < 3; way++) {
        bad = record;
        bad.life = way == 0 ? 0 : bad.life;
        bad.round = way == 1 ? 0 : bad.round;
        bad.epoch.lives[3] = way == 2;
        ck_assert_int_eq(cst_members_open(&members, &config, &bad, now, &err), CST_EPROTO);
        ck_assert_ptr_null(members);
    }
}
END_TEST

/* Sentences for users, while time passes. */
START_TEST(an_instance_explains_itself)
{
    char words[640];

    make_job(3);
    cst_members_explain(machines[0], now, words, sizeof words);
    ck_assert_str_eq(words, "epoch 3 holds, with ann, bob and cid");
    isolate(2, false);
    cst_members_explain(machines[0], now + 12 * SECOND, words, sizeof words);
    ck_assert_str_eq(words, "waits for cid, which is away: in 18 s the other machines go on"
                            " without what is not back");
    connect(0, 1, false);
    cst_members_explain(machines[0], now, words, sizeof words);
    ck_assert_str_eq(words, "waits for bob and cid, which are away: 1 of 3 machines is not enough"
                            " to go on, because the others may do so, too. If they are switched off"
                            " for good, say so with 'cistern node drop', on this machine only");
    cst_members_explain(machines[0], now, words, 20);
    ck_assert_uint_eq(strlen(words), 19);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("members");
    TCase *c = suite_case(s, "members", set_up, tear_down);

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
