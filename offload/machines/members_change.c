/* SPDX-License-Identifier: Apache-2.0 */
/* When a member proposes the next epoch, and its part in the vote. */
#include "offload/machines/members_state.h"

bool cst_members_is_present(const struct cst_members *members, uint32_t machine)
{
    const struct cst_members_peer *peer = &members->peers[machine];

    if (machine == members->self) {
        return cst_members_belongs(members);
    }
    return peer->up && peer->told && !peer->differs &&
           cst_epoch_has(&members->record.epoch, machine, peer->life);
}

struct cst_set cst_members_present(const struct cst_members *members)
{
    struct cst_set set = {{0}};

    CST_SET_EACH (m, &members->record.epoch.members) {
        if (cst_members_is_present(members, m)) {
            cst_set_add(&set, m);
        }
    }
    return set;
}

struct cst_set cst_members_renewed(const struct cst_members *members)
{
    struct cst_set set = {{0}};

    CST_SET_EACH (m, &members->record.epoch.members) {
        const struct cst_members_peer *peer = &members->peers[m];

        if (m != members->self && peer->up && peer->told &&
            peer->life != members->record.epoch.lives[m]) {
            cst_set_add(&set, m);
        }
    }
    return set;
}

struct cst_set cst_members_down(const struct cst_members *members)
{
    return cst_set_minus(members->record.down, cst_members_present(members));
}

uint64_t cst_members_lost_at(const struct cst_members *members, uint32_t machine)
{
    uint64_t since = members->peers[machine].since;
    struct cst_set down = cst_members_down(members), renewed = cst_members_renewed(members);

    if (cst_set_has(&down, machine) || cst_set_has(&renewed, machine)) {
        return 0;
    }
    return since > UINT64_MAX - members->wait ? UINT64_MAX : since + members->wait;
}

/* Apply to *epoch what managers have asked for. A machine that is to be added and has lost its link
 * waits for it, and one that is to be removed stays while it is the last. */
static void apply_plans(const struct cst_members *members, struct cst_epoch *epoch)
{
    CST_SET_EACH (m, &members->record.adds) {
        const struct cst_members_peer *peer = &members->peers[m];

        if (peer->up && peer->told && peer->blank) {
            cst_epoch_add(epoch, m, peer->life);
        }
    }
    if (!cst_set_within(&epoch->members, &members->record.drops)) {
        CST_SET_EACH (m, &members->record.drops) {
            cst_epoch_drop(epoch, m);
        }
    }
}

bool cst_members_wanted(const struct cst_members *members, uint64_t now, struct cst_epoch *out)
{
    const struct cst_epoch *epoch = &members->record.epoch;
    struct cst_set present = cst_members_present(members);
    struct cst_set down = cst_members_down(members);
    struct cst_set away = cst_set_minus(epoch->members, present);

    *out = *epoch;
    CST_SET_EACH (m, &away) {
        if (cst_members_lost_at(members, m) <= now) {
            cst_epoch_drop(out, m);
        }
    }
    if (now >= members->planned_at || !members->holds) {
        apply_plans(members, out);
    }
    if (cst_epoch_equal(out, epoch) || cst_set_none(&out->members)) {
        return false;
    }
    out->number++;
    return cst_epoch_quorum(epoch, &present, &down);
}

/* How long this machine leaves it to the members with lower numbers to propose, in ns. */
static uint64_t turn_ns(const struct cst_members *members)
{
    struct cst_set present = cst_members_present(members);

    return CST_MEMBERS_RETRY * cst_set_count_below(&present, members->self);
}

static void send_vote(struct cst_members *members, enum cst_members_kind kind)
{
    const struct cst_proposal *proposal = &members->proposal;
    struct cst_set to = cst_members_present(members);
    struct cst_members_message message = {
        .kind = kind,
        .number = members->record.epoch.number,
        .ballot = proposal->ballot,
    };

    if (kind == CST_MEMBERS_ACCEPT) {
        message.epoch = proposal->value;
    }
    cst_members_send(members, to, message);
}

/* Begin the ballot that is due, if something is to change. */
static void begin(struct cst_members *members, uint64_t now)
{
    struct cst_epoch wanted;
    struct cst_set present = cst_members_present(members);

    if (!cst_members_wanted(members, now, &wanted)) {
        members->propose_at = CST_MEMBERS_NEVER;
        if (members->proposal.phase == CST_PROPOSAL_PREPARING) {
            members->proposal.phase = CST_PROPOSAL_NONE; /* A value that is proposed stays so. */
        }
        return;
    }
    if (members->propose_at == CST_MEMBERS_NEVER) {
        members->propose_at = now + turn_ns(members);
    }
    if (now < members->propose_at) {
        return;
    }
    members->propose_at = now + CST_MEMBERS_RETRY * cst_set_count(&present) + turn_ns(members);
    cst_proposal_begin(&members->proposal, &members->record.vote, members->self, members->refused);
    send_vote(members, CST_MEMBERS_PREPARE);
}

bool cst_members_propose(struct cst_members *members, uint64_t now, struct cst_epoch *out)
{
    struct cst_proposal *proposal = &members->proposal;
    const struct cst_epoch *epoch = &members->record.epoch;
    struct cst_set down = cst_members_down(members);
    struct cst_epoch wanted;

    begin(members, now);
    if (proposal->phase == CST_PROPOSAL_PREPARING &&
        cst_epoch_quorum(epoch, &proposal->answered, &down)) {
        if ((!cst_members_wanted(members, now, &wanted) && proposal->accepted == 0) ||
            !cst_proposal_propose(proposal, &members->record.vote, members->self, &wanted)) {
            proposal->phase = CST_PROPOSAL_NONE;
            return false;
        }
        send_vote(members, CST_MEMBERS_ACCEPT);
    }
    if (proposal->phase == CST_PROPOSAL_ACCEPTING &&
        cst_epoch_quorum(epoch, &proposal->answered, &down)) {
        *out = proposal->value;
        return true;
    }
    return false;
}

/* Answer PREPARE and ACCEPT. */
static void answer(struct cst_members *members, uint32_t from,
                   const struct cst_members_message *message)
{
    struct cst_vote *vote = &members->record.vote;
    bool prepare = message->kind == CST_MEMBERS_PREPARE;
    struct cst_members_message reply = {
        .kind = prepare ? CST_MEMBERS_PROMISE : CST_MEMBERS_ACCEPTED,
        .number = members->record.epoch.number,
        .ballot = message->ballot,
    };

    if (prepare && cst_vote_promise(vote, message->ballot)) {
        reply.accepted = vote->accepted;
        reply.epoch = vote->value;
    } else if (prepare || !cst_vote_accept(vote, message->ballot, &message->epoch)) {
        reply.kind = CST_MEMBERS_REFUSED;
        reply.ballot = vote->promised;
    }
    cst_members_send(members, cst_set_of(from), reply);
}

void cst_members_vote(struct cst_members *members, uint32_t from,
                      const struct cst_members_message *message)
{
    switch (message->kind) {
    case CST_MEMBERS_PREPARE:
    case CST_MEMBERS_ACCEPT:
        answer(members, from, message);
        break;
    case CST_MEMBERS_PROMISE:
        cst_proposal_promised(&members->proposal, from, message->ballot, message->accepted,
                              &message->epoch);
        break;
    case CST_MEMBERS_ACCEPTED:
        cst_proposal_accepted(&members->proposal, from, message->ballot);
        break;
    case CST_MEMBERS_REFUSED:
        if (message->ballot > members->refused) {
            members->refused = message->ballot;
        }
        break;
    case CST_MEMBERS_TELL:
        break; /* It is no part of a vote. */
    }
}
