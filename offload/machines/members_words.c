/* SPDX-License-Identifier: Apache-2.0 */
/* What is said of an instance: to the driver, to other machines, and to users. */
#include "offload/machines/members_state.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

struct cst_members_action *cst_members_act(struct cst_members *members,
                                           enum cst_members_action_kind kind)
{
    struct cst_members_action *action;

    assert(members->actions->n < CST_MEMBERS_MAX_ACTIONS);
    action = &members->actions->v[members->actions->n++];
    memset(action, 0, sizeof *action);
    action->kind = kind;
    return action;
}

void cst_members_send(struct cst_members *members, struct cst_set to,
                      struct cst_members_message message)
{
    struct cst_members_action *action;

    CST_SET_EACH (m, &to) {
        if (!members->peers[m].up) {
            cst_set_drop(&to, m);
        }
    }
    if (cst_set_none(&to)) {
        return;
    }
    action = cst_members_act(members, CST_MEMBERS_SEND);
    action->to = to;
    action->message = message;
    action->message.life = members->record.life;
}

char *cst_members_name(const struct cst_members *members, const struct cst_set *set, char *text,
                       size_t size)
{
    uint32_t n = cst_set_count(set), i = 0;
    size_t at = 0;

    text[0] = '\0';
    CST_SET_EACH (m, set) {
        const char *name = members->names[m];
        const char *join = i == 0 ? "" : i + 1 == n ? " and " : ", ";
        int written = name != NULL ? snprintf(text + at, size - at, "%s%s", join, name)
                                   : snprintf(text + at, size - at, "%smachine %" PRIu32, join, m);

        at = written < 0 || (size_t)written >= size - at ? size - 1 : at + (size_t)written;
        i++;
    }
    return text;
}

enum cst_members_reason cst_members_reason(const struct cst_members *members, uint64_t now,
                                           struct cst_set *about)
{
    const struct cst_epoch *epoch = &members->record.epoch;
    struct cst_set present = cst_members_present(members), down = cst_members_down(members);
    struct cst_set away = cst_set_minus(epoch->members, present), waited = {{0}};

    *about = epoch->members;
    if (!cst_members_belongs(members)) {
        return epoch->number == 0 ? CST_MEMBERS_NOT_ADDED
               : members->known   ? CST_MEMBERS_REMOVED
                                  : CST_MEMBERS_LEAVING;
    }
    if (members->holds) {
        return CST_MEMBERS_IS_HELD;
    }
    if (cst_set_none(&away)) {
        *about = cst_set_minus(epoch->members, members->got);
        return CST_MEMBERS_ROUND;
    }
    *about = away;
    if (!cst_epoch_quorum(epoch, &present, &down)) {
        return CST_MEMBERS_MINORITY;
    }
    CST_SET_EACH (m, &away) {
        if (cst_members_lost_at(members, m) > now) {
            cst_set_add(&waited, m);
        }
    }
    if (!cst_set_none(&waited)) {
        *about = waited;
        return CST_MEMBERS_AWAY;
    }
    return CST_MEMBERS_VOTES;
}

/* Whole seconds until the first of the members in *about is lost, at least 1. */
static uint64_t left_seconds(const struct cst_members *members, uint64_t now,
                             const struct cst_set *about)
{
    uint64_t first = UINT64_MAX;

    CST_SET_EACH (m, about) {
        uint64_t lost_at = cst_members_lost_at(members, m);

        first = lost_at < first ? lost_at : first;
    }
    return first <= now ? 1 : (first - now + 999999999) / 1000000000;
}

/* The members in *about, whose names are @names, are away, and the others may not go on. */
static void explain_minority(const struct cst_members *members, const struct cst_set *about,
                             const char *names, char *text, size_t size)
{
    const uint32_t n = cst_set_count(&members->record.epoch.members);
    const uint32_t n_away = cst_set_count(about), n_here = n - n_away;

    (void)snprintf(text, size,
                   "waits for %s, which %s away: when %s back, the job goes on. %" PRIu32
                   " of %" PRIu32 " nodes %s not enough to go on alone, because the others may do "
                   "so, too. If %s %s lost for good, say so on this node only: 'cistern node drop "
                   "%s'",
                   names, n_away == 1 ? "is" : "are", n_away == 1 ? "it is" : "they are", n_here, n,
                   n_here == 1 ? "is" : "are", n_away == 1 ? "it" : "they",
                   n_away == 1 ? "is" : "are", n_away == 1 ? names : "NAME");
}

void cst_members_explain(const struct cst_members *members, uint64_t now, char *text, size_t size)
{
    const struct cst_epoch *epoch = &members->record.epoch;
    struct cst_set about;
    char names[400];
    enum cst_members_reason reason = cst_members_reason(members, now, &about);
    const uint32_t n_away = cst_set_count(&about);
    const char *are = n_away == 1 ? "is" : "are";

    (void)cst_members_name(members, &about, names, sizeof names);
    switch (reason) {
    case CST_MEMBERS_NO_REASON:
    case CST_MEMBERS_NOT_ADDED:
        (void)snprintf(text, size, "this node waits until a member adds it to the job");
        break;
    case CST_MEMBERS_LEAVING:
        (void)snprintf(text, size,
                       "this node was removed, and stays until a member of epoch %" PRIu64
                       " knows: %s",
                       epoch->number, names);
        break;
    case CST_MEMBERS_REMOVED:
        (void)snprintf(text, size, "this node was removed: the members are %s since epoch %" PRIu64,
                       names, epoch->number);
        break;
    case CST_MEMBERS_AWAY:
        if (members->wait == CST_MEMBERS_NEVER) {
            (void)snprintf(
                text, size,
                "waits for %s, which %s away, because the other nodes do not have what %s "
                "has. If %s lost for good, say so: 'cistern node drop %s'",
                names, are, n_away == 1 ? "it" : "each", n_away == 1 ? "it is" : "they are",
                n_away == 1 ? names : "NAME");
            break;
        }
        (void)snprintf(text, size,
                       "waits for %s, which %s away: in %" PRIu64
                       " s the other nodes go on without what is not back",
                       names, are, left_seconds(members, now, &about));
        break;
    case CST_MEMBERS_MINORITY:
        explain_minority(members, &about, names, text, size);
        break;
    case CST_MEMBERS_VOTES:
        (void)snprintf(text, size, "the nodes vote on going on without %s", names);
        break;
    case CST_MEMBERS_ROUND:
        (void)snprintf(text, size, "waits until %s %s said which step is recorded there", names,
                       n_away == 1 ? "has" : "have");
        break;
    case CST_MEMBERS_IS_HELD:
        (void)snprintf(text, size, "its members are %s (epoch %" PRIu64 ")", names, epoch->number);
        break;
    }
}
