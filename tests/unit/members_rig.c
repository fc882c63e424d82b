/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/members_rig.h"

#include <check.h>
#include <stdio.h>

struct members_rig members_rig;

void members_set_up(void)
{
    members_rig = (struct members_rig){
        .now = MEMBERS_SECOND,
        .mute = MEMBERS_RIG_MAX,
        .names = {"ann", "bob", "cid", "dan"},
    };
}

void members_tear_down(void)
{
    for (uint32_t m = 0; m < MEMBERS_RIG_MAX; m++) {
        cst_members_close(members_rig.machines[m]);
    }
}

static void take_action(uint32_t m, const struct cst_members_action *action)
{
    switch (action->kind) {
    case CST_MEMBERS_SEND:
        CST_SET_EACH (to, &action->to) {
            ck_assert(to < MEMBERS_RIG_MAX && to != m && members_rig.n_queue < MEMBERS_RIG_QUEUE);
            members_rig.queue[members_rig.n_queue++] =
                (struct members_sent){m, to, action->message};
        }
        break;
    case CST_MEMBERS_LOG:
        break;
    case CST_MEMBERS_HOLDS:
        members_rig.held[m] = *action;
        members_rig.n_holds[m]++;
        break;
    case CST_MEMBERS_OUT:
    case CST_MEMBERS_WAITS:
        members_rig.out[m] = members_rig.out[m] || action->kind == CST_MEMBERS_OUT;
        snprintf(members_rig.text[m], sizeof members_rig.text[m], "%s", action->text);
        break;
    }
}

int members_feed(uint32_t m, struct cst_members_event event)
{
    int status;

    event.now = members_rig.now;
    members_rig.err = (struct cst_err){.status = CST_OK};
    status =
        cst_members_step(members_rig.machines[m], &event, &members_rig.actions, &members_rig.err);
    ck_assert_int_eq(status, members_rig.err.status);
    for (uint32_t i = 0; status == CST_OK && i < members_rig.actions.n; i++) {
        take_action(m, &members_rig.actions.v[i]);
    }
    return status;
}

/* Deliver all messages, and those that follow from them. */
static void deliver(void)
{
    for (uint32_t i = 0; i < members_rig.n_queue; i++) {
        const struct members_sent sent = members_rig.queue[i];
        const struct cst_members_event event = {
            .kind = CST_MEMBERS_TOLD,
            .machine = sent.from,
            .message = &sent.message,
        };

        if (sent.from == members_rig.mute && sent.message.kind == CST_MEMBERS_TELL) {
            continue;
        }
        if (members_rig.linked[sent.from][sent.to] && members_rig.machines[sent.to] != NULL) {
            ck_assert_int_eq(members_feed(sent.to, event), CST_OK);
        }
    }
    members_rig.n_queue = 0;
}

int members_say(uint32_t m, enum cst_members_event_kind kind, uint32_t machine, bool idle)
{
    int status =
        members_feed(m, (struct cst_members_event){.kind = kind, .machine = machine, .idle = idle});

    deliver();
    return status;
}

void members_connect(uint32_t a, uint32_t b, bool up)
{
    enum cst_members_event_kind kind = up ? CST_MEMBERS_UP : CST_MEMBERS_DOWN;

    members_rig.linked[a][b] = up;
    members_rig.linked[b][a] = up;
    if (members_rig.machines[a] != NULL) {
        (void)members_feed(a, (struct cst_members_event){.kind = kind, .machine = b});
    }
    if (members_rig.machines[b] != NULL) {
        (void)members_feed(b, (struct cst_members_event){.kind = kind, .machine = a});
    }
    deliver();
}

void members_isolate(uint32_t m, bool up)
{
    for (uint32_t other = 0; other < MEMBERS_RIG_MAX; other++) {
        if (other != m && (members_rig.machines[other] != NULL)) {
            members_connect(m, other, up);
        }
    }
}

void members_pass(uint64_t ns)
{
    uint64_t end = members_rig.now + ns;

    for (;;) {
        uint32_t first = MEMBERS_RIG_MAX;
        uint64_t at = end;

        for (uint32_t m = 0; m < MEMBERS_RIG_MAX; m++) {
            if (members_rig.machines[m] != NULL &&
                cst_members_deadline(members_rig.machines[m]) < at) {
                first = m;
                at = cst_members_deadline(members_rig.machines[m]);
            }
        }
        members_rig.now = at > members_rig.now ? at : members_rig.now;
        if (first == MEMBERS_RIG_MAX) {
            return;
        }
        (void)members_say(first, CST_MEMBERS_TIME, 0, false);
    }
}

void members_open(uint32_t m, const struct cst_members_record *record, uint64_t life,
                  uint64_t committed)
{
    const struct cst_members_config config = {
        .self = m,
        .life = life,
        .makes_job = m == 0 && record == NULL && life == 1,
        .wait = MEMBERS_WAIT,
        .committed = committed,
        .names = members_rig.names,
    };

    ck_assert_int_eq(cst_members_open(&members_rig.machines[m], &config, record, members_rig.now,
                                      &members_rig.err),
                     CST_OK);
    (void)members_say(m, CST_MEMBERS_TIME, 0, false);
}

void members_make_job(uint32_t n)
{
    for (uint32_t m = 0; m < n; m++) {
        members_open(m, NULL, m + 1, 0);
    }
    for (uint32_t a = 0; a < n; a++) {
        for (uint32_t b = a + 1; b < n; b++) {
            members_connect(a, b, true);
        }
    }
    for (uint32_t m = 1; m < n; m++) {
        ck_assert_int_eq(members_say(0, CST_MEMBERS_ADD, m, true), CST_OK);
        members_pass(MEMBERS_SECOND);
    }
}

void members_commit(uint32_t m, uint64_t step)
{
    ck_assert_int_eq(
        members_feed(m, (struct cst_members_event){.kind = CST_MEMBERS_COMMITTED, .step = step}),
        CST_OK);
    deliver();
}

uint64_t members_epoch_of(uint32_t m)
{
    return cst_members_record(members_rig.machines[m])->epoch.number;
}

bool members_is_member(uint32_t m, uint32_t of)
{
    return cst_set_has(&cst_members_record(members_rig.machines[of])->epoch.members, m);
}

bool members_all_hold(uint32_t n)
{
    for (uint32_t m = 0; m < n; m++) {
        if (!cst_members_hold(members_rig.machines[m])) {
            return false;
        }
    }
    return true;
}

struct cst_members_record members_stop(uint32_t m)
{
    struct cst_members_record record = *cst_members_record(members_rig.machines[m]);

    cst_members_close(members_rig.machines[m]);
    members_rig.machines[m] = NULL;
    for (uint32_t other = 0; other < MEMBERS_RIG_MAX; other++) {
        if (other != m && members_rig.linked[m][other]) {
            members_connect(m, other, false);
        }
    }
    return record;
}
