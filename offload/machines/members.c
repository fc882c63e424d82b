/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/machines/members_state.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

/* Ballots and numbers of epochs and rounds are counted up one by one: no real one comes near. */
#define CST_MEMBERS_MAX_NUMBER (UINT64_C(1) << 62)

#define CST_MEMBERS_PATIENCE UINT64_C(30000000000) /* ns. */

/* -- messages --------------------------------------------------------------------------------- */

int cst_members_check(const struct cst_members_message *message, struct cst_err *err)
{
    bool tell = message->kind == CST_MEMBERS_TELL;
    bool has_value = message->kind == CST_MEMBERS_ACCEPT ||
                     (message->kind == CST_MEMBERS_PROMISE && message->accepted != 0);

    if (message->kind < CST_MEMBERS_TELL || message->kind > CST_MEMBERS_REFUSED ||
        message->life == 0) {
        return cst_err_set(err, CST_EPROTO, "members: message %d of life %" PRIu64,
                           (int)message->kind, message->life);
    }
    if (message->epoch.number >= CST_MEMBERS_MAX_NUMBER ||
        message->number >= CST_MEMBERS_MAX_NUMBER || message->round >= CST_MEMBERS_MAX_NUMBER ||
        message->ballot >= CST_MEMBERS_MAX_NUMBER || message->accepted >= CST_MEMBERS_MAX_NUMBER) {
        return cst_err_set(err, CST_EPROTO, "members: message %d with a number from 2^62 on",
                           (int)message->kind);
    }
    if (tell ? (message->epoch.number != 0 && message->round == 0)
             : (message->ballot == 0 || has_value != (message->epoch.number != 0) ||
                (has_value && message->epoch.number != message->number + 1))) {
        return cst_err_set(err, CST_EPROTO,
                           "members: message %d: round %" PRIu64 ", ballot %" PRIu64
                           ", a vote of epoch %" PRIu64 " on epoch %" PRIu64,
                           (int)message->kind, message->round, message->ballot, message->number,
                           message->epoch.number);
    }
    return cst_epoch_check(&message->epoch, err);
}

/* Tell machines *to the epoch, the round, and the last recorded commit. */
static void tell(struct cst_members *members, struct cst_set to)
{
    cst_members_send(members, to,
                     (struct cst_members_message){
                         .kind = CST_MEMBERS_TELL,
                         .round = members->record.round,
                         .committed = members->committed,
                         .epoch = members->record.epoch,
                     });
}

/* -- rounds and epochs ------------------------------------------------------------------------ */

/* The round or the epoch is over. */
static void stop(struct cst_members *members)
{
    members->stopped = members->stopped || members->holds;
    members->holds = false;
    members->got = cst_members_belongs(members) ? cst_set_of(members->self) : (struct cst_set){{0}};
}

static void enter_round(struct cst_members *members, uint64_t round)
{
    members->record.round = round;
    stop(members);
    tell(members, members->record.epoch.members);
}

/* ns after which a change is proposed though an attempt is under way. */
static uint64_t plan_wait(uint64_t wait)
{
    return wait != CST_MEMBERS_NEVER ? wait : CST_MEMBERS_PATIENCE;
}

/* Changes that interrupt no attempt may be proposed from @at on, unless none is wanted. */
static void plan_at(struct cst_members *members, uint64_t at)
{
    if (cst_set_none(&members->record.drops) && cst_set_none(&members->record.adds)) {
        members->planned_at = CST_MEMBERS_NEVER;
    } else if (at < members->planned_at) {
        members->planned_at = at;
    }
}

/* Forget what was wanted of managers and is so in the new epoch. */
static void settle_plans(struct cst_members *members)
{
    struct cst_members_record *record = &members->record;

    record->drops = cst_set_intersect(record->drops, record->epoch.members);
    CST_SET_EACH (m, &record->adds) {
        uint64_t life = members->peers[m].life;

        if (cst_set_has(&record->epoch.members, m) &&
            (life == 0 || life == record->epoch.lives[m])) {
            cst_set_drop(&record->adds, m);
        }
    }
    plan_at(members, CST_MEMBERS_NEVER);
}

static void log_epoch(struct cst_members *members, const struct cst_epoch *old)
{
    const struct cst_epoch *epoch = &members->record.epoch;
    struct cst_members_action *action = cst_members_act(members, CST_MEMBERS_LOG);
    struct cst_set came = {{0}}, left = {{0}};
    char names[280], joined[120], gone[120];

    for (uint32_t m = 0; m < CST_SET_MAX; m++) {
        if (epoch->lives[m] != old->lives[m]) {
            cst_set_add(epoch->lives[m] != 0 ? &came : &left, m);
        }
    }
    (void)snprintf(
        action->text, sizeof action->text,
        "epoch %" PRIu64 " follows epoch %" PRIu64 ": its members are %s; added: %s;"
        " removed: %s",
        epoch->number, old->number, cst_members_name(members, &epoch->members, names, sizeof names),
        cst_set_none(&came) ? "none" : cst_members_name(members, &came, joined, sizeof joined),
        cst_set_none(&left) ? "none" : cst_members_name(members, &left, gone, sizeof gone));
}

/* Enter the epoch, which was decided. */
static void enter(struct cst_members *members, const struct cst_epoch *epoch, uint64_t round)
{
    struct cst_members_record *record = &members->record;
    const struct cst_epoch old = record->epoch;

    record->epoch = *epoch;
    record->round = round;
    memset(&record->vote, 0, sizeof record->vote);
    memset(&record->down, 0, sizeof record->down);
    for (uint32_t m = 0; m < CST_SET_MAX; m++) {
        members->peers[m].differs = false;
        if (epoch->lives[m] != old.lives[m]) {
            members->peers[m].since = members->now; /* It has time to appear. */
        }
    }
    settle_plans(members);
    members->proposal.phase = CST_PROPOSAL_NONE;
    members->propose_at = CST_MEMBERS_NEVER;
    members->refused = 0;
    members->again = true;
    members->known = false;
    stop(members);
    log_epoch(members, &old);
    tell(members, cst_set_range(0, CST_SET_MAX));
}

/* -- links and messages ----------------------------------------------------------------------- */

/* What the machine has told counts no more. */
static void lose(struct cst_members *members, uint32_t machine)
{
    struct cst_members_peer *peer = &members->peers[machine];

    peer->up = false;
    peer->told = false;
    peer->differs = false;
    peer->since = members->now;
    if (cst_set_has(&members->got, machine)) {
        enter_round(members, members->record.round + 1);
    }
}

static void come(struct cst_members *members, uint32_t machine)
{
    if (members->peers[machine].up) {
        lose(members, machine);
    }
    members->peers[machine].up = true;
    cst_set_drop(&members->record.down, machine);
    tell(members, cst_set_of(machine));
}

/* The machine is in an epoch with the number of this one and other members, which can happen if a
 * machine was said to be down and was not. */
static void log_difference(struct cst_members *members, uint32_t machine,
                           const struct cst_epoch *epoch)
{
    struct cst_members_action *action = cst_members_act(members, CST_MEMBERS_LOG);
    const struct cst_set one = cst_set_of(machine);
    char name[80], here[200], there[200];

    action->status = CST_EMISMATCH;
    (void)snprintf(action->text, sizeof action->text,
                   "epoch %" PRIu64 " has the members %s here, and %s at %s: a node was said to be"
                   " down and was not. Keep one of the two parts of the job",
                   epoch->number,
                   cst_members_name(members, &members->record.epoch.members, here, sizeof here),
                   cst_members_name(members, &epoch->members, there, sizeof there),
                   cst_members_name(members, &one, name, sizeof name));
}

static void take_tell(struct cst_members *members, uint32_t machine,
                      const struct cst_members_message *message)
{
    struct cst_members_peer *peer = &members->peers[machine];
    struct cst_members_record *record = &members->record;
    bool differs;

    if (peer->told && peer->life != message->life) {
        come(members, machine); /* It has left the job and begun another life, over one link. */
    }
    peer->told = true;
    peer->life = message->life;
    peer->blank = message->epoch.number == 0;
    if (message->epoch.number > record->epoch.number &&
        (record->epoch.number > 0 || cst_epoch_has(&message->epoch, members->self, record->life))) {
        enter(members, &message->epoch, message->round);
    }
    differs = message->epoch.number != 0 && message->epoch.number == record->epoch.number &&
              !cst_epoch_equal(&message->epoch, &record->epoch);
    if (differs && !peer->differs) {
        log_difference(members, machine, &message->epoch);
    }
    peer->differs = differs;
    members->known = members->known || (message->epoch.number >= record->epoch.number &&
                                        cst_epoch_has(&record->epoch, machine, message->life));
    if (!cst_members_belongs(members) || !cst_members_is_present(members, machine) ||
        message->epoch.number != record->epoch.number) {
        return;
    }
    if (message->round > record->round) {
        enter_round(members, message->round);
    }
    if (message->round == record->round) {
        cst_set_add(&members->got, machine);
        peer->commits = message->committed;
    }
}

static int take_message(struct cst_members *members, uint32_t machine,
                        const struct cst_members_message *message, struct cst_err *err)
{
    const struct cst_members_peer *peer = &members->peers[machine];

    if (cst_members_check(message, err) != CST_OK) {
        return CST_EPROTO;
    }
    if (!peer->up) {
        return CST_OK;
    }
    if (message->kind == CST_MEMBERS_TELL) {
        take_tell(members, machine, message);
    } else if (cst_members_belongs(members) && cst_members_is_present(members, machine) &&
               message->life == peer->life && message->number == members->record.epoch.number) {
        cst_members_vote(members, machine, message);
    }
    return CST_OK;
}

/* -- what managers and schedulers say --------------------------------------------------------- */

static int take_drop(struct cst_members *members, const struct cst_members_event *event,
                     struct cst_err *err)
{
    struct cst_members_record *record = &members->record;
    const struct cst_set one = cst_set_of(event->machine);
    struct cst_set left = cst_set_minus(cst_set_minus(record->epoch.members, record->drops), one);
    char name[80];

    (void)cst_members_name(members, &one, name, sizeof name);
    if (!cst_set_has(&record->epoch.members, event->machine)) {
        if (!cst_set_has(&record->adds, event->machine)) {
            return cst_err_set(err, CST_ENOTFOUND, "%s is no member of the job", name);
        }
    } else if (cst_set_none(&left) && cst_members_is_present(members, event->machine)) {
        return cst_err_set(err, CST_EINVAL, "%s is the last member that stays: end the job instead",
                           name);
    } else {
        cst_set_add(&record->drops, event->machine);
        if (!cst_members_is_present(members, event->machine)) {
            cst_set_add(&record->down, event->machine);
        }
    }
    cst_set_drop(&record->adds, event->machine);
    return CST_OK;
}

static int take_add(struct cst_members *members, const struct cst_members_event *event,
                    struct cst_err *err)
{
    struct cst_members_record *record = &members->record;
    const struct cst_members_peer *peer = &members->peers[event->machine];
    const struct cst_set one = cst_set_of(event->machine), renewed = cst_members_renewed(members);
    char name[80];

    (void)cst_members_name(members, &one, name, sizeof name);
    if (cst_set_has(&record->epoch.members, event->machine) &&
        !cst_set_has(&renewed, event->machine)) {
        if (!cst_set_has(&record->drops, event->machine)) {
            return cst_err_set(err, CST_EEXIST, "%s is a member of the job", name);
        }
        cst_set_drop(&record->drops, event->machine);
        return CST_OK;
    }
    if (!peer->up || !peer->told) {
        return cst_err_set(err, CST_ECONN,
                           "there is no link to %s, or it does not take part in the job: see"
                           " 'cistern node list'",
                           name);
    }
    if (!peer->blank) {
        return cst_err_set(err, CST_EBUSY,
                           "%s still has what it had when it was a member: remove the job there"
                           " first",
                           name);
    }
    if (cst_set_has(&renewed, event->machine)) {
        cst_set_add(&record->down, event->machine);
    }
    cst_set_add(&record->adds, event->machine);
    cst_set_drop(&record->drops, event->machine);
    return CST_OK;
}

static int take_word(struct cst_members *members, const struct cst_members_event *event,
                     struct cst_err *err)
{
    int status = CST_OK;

    if (!cst_members_belongs(members)) {
        return cst_err_set(err, CST_EINVAL,
                           "this machine is no member of the job: say it on a member");
    }
    if (event->kind == CST_MEMBERS_GONE) {
        if (event->machine == members->self ||
            !cst_set_has(&members->record.epoch.members, event->machine)) {
            return cst_err_set(err, CST_ENOTFOUND, "machine %" PRIu32 " is no other member",
                               event->machine);
        }
        cst_set_add(&members->record.down, event->machine);
        return CST_OK;
    }
    status = event->kind == CST_MEMBERS_DROP ? take_drop(members, event, err)
                                             : take_add(members, event, err);
    if (status == CST_OK) {
        plan_at(members, event->idle ? event->now : event->now + plan_wait(members->wait));
    }
    return status;
}

/* -- events ----------------------------------------------------------------------------------- */

static int take(struct cst_members *members, const struct cst_members_event *event,
                struct cst_err *err)
{
    switch (event->kind) {
    case CST_MEMBERS_TIME:
        return CST_OK;
    case CST_MEMBERS_UP:
        come(members, event->machine);
        return CST_OK;
    case CST_MEMBERS_DOWN:
        if (members->peers[event->machine].up) {
            lose(members, event->machine);
        }
        return CST_OK;
    case CST_MEMBERS_TOLD:
        return take_message(members, event->machine, event->message, err);
    case CST_MEMBERS_DROP:
    case CST_MEMBERS_ADD:
    case CST_MEMBERS_GONE:
        return take_word(members, event, err);
    case CST_MEMBERS_COMMITTED:
        assert(members->holds && event->step >= members->committed);
        members->committed = event->step;
        plan_at(members, event->now);
        return CST_OK;
    }
    return CST_OK;
}

static void hold(struct cst_members *members)
{
    members->holds =
        members->holds || (cst_members_belongs(members) &&
                           cst_set_equal(&members->got, &members->record.epoch.members));
}

static void say_holds(struct cst_members *members)
{
    struct cst_members_action *action = cst_members_act(members, CST_MEMBERS_HOLDS);

    action->epoch = &members->record.epoch;
    action->round = members->record.round;
    members->peers[members->self].commits = members->committed;
    CST_SET_EACH (m, &members->got) {
        uint64_t commits = members->peers[m].commits;

        if (commits > action->committed) {
            action->recorded = (struct cst_set){{0}};
            action->committed = commits;
        }
        if (commits == action->committed) {
            cst_set_add(&action->recorded, m);
        }
    }
}

/* Say whether the job may go on, if that has changed. */
static void say(struct cst_members *members)
{
    struct cst_set about;
    enum cst_members_reason reason = cst_members_reason(members, members->now, &about);

    if (!members->stopped && reason == members->reason && cst_set_equal(&about, &members->about)) {
        return;
    }
    if (reason != CST_MEMBERS_IS_HELD || members->stopped) {
        struct cst_members_action *action = cst_members_act(
            members, reason == CST_MEMBERS_REMOVED ? CST_MEMBERS_OUT : CST_MEMBERS_WAITS);

        cst_members_explain(members, members->now, action->text, sizeof action->text);
    }
    if (reason == CST_MEMBERS_IS_HELD) {
        say_holds(members);
    }
    members->stopped = false;
    members->reason = reason;
    members->about = about;
}

int cst_members_step(struct cst_members *members, const struct cst_members_event *event,
                     struct cst_members_actions *actions, struct cst_err *err)
{
    struct cst_epoch next;
    int status;

    assert(event->machine < CST_SET_MAX);
    actions->n = 0;
    members->actions = actions;
    members->now = event->now;
    members->again = false;
    status = take(members, event, err);
    if (status != CST_OK) {
        return status;
    }
    hold(members);
    if (cst_members_belongs(members) && cst_members_propose(members, event->now, &next)) {
        enter(members, &next, 1);
        hold(members);
    }
    say(members);
    return CST_OK;
}

/* -- the instance ----------------------------------------------------------------------------- */

static int check_record(const struct cst_members_record *record, struct cst_err *err)
{
    if (record->life == 0 || (record->epoch.number != 0 && record->round == 0)) {
        return cst_err_set(err, CST_EPROTO,
                           "record of members: life %" PRIu64 ", epoch %" PRIu64 ", round %" PRIu64,
                           record->life, record->epoch.number, record->round);
    }
    return cst_epoch_check(&record->epoch, err);
}

static void begin_record(struct cst_members_record *record, const struct cst_members_config *config)
{
    assert(config->life != 0);
    record->life = config->life;
    if (config->makes_job) {
        record->epoch.number = 1;
        cst_epoch_add(&record->epoch, config->self, config->life);
        record->round = 1;
    }
}

int cst_members_open(struct cst_members **out, const struct cst_members_config *config,
                     const struct cst_members_record *record, uint64_t now, struct cst_err *err)
{
    struct cst_members *members;

    if (record != NULL && check_record(record, err) != CST_OK) {
        return CST_EPROTO;
    }
    members = calloc(1, sizeof *members);
    if (members == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for the members of the job: %zu bytes",
                           sizeof *members);
    }
    members->self = config->self;
    members->wait = config->wait;
    members->names = config->names;
    members->committed = config->committed;
    members->now = now;
    members->propose_at = CST_MEMBERS_NEVER;
    members->planned_at = CST_MEMBERS_NEVER;
    for (uint32_t m = 0; m < CST_SET_MAX; m++) {
        members->peers[m].since = now;
    }
    if (record == NULL) {
        begin_record(&members->record, config);
    } else {
        members->record = *record;
        members->record.round++; /* What the machine has told in the last one may be lost. */
    }
    stop(members);
    plan_at(members, now + plan_wait(config->wait));
    *out = members;
    return CST_OK;
}

void cst_members_close(struct cst_members *members)
{
    free(members);
}

uint64_t cst_members_deadline(const struct cst_members *members)
{
    const struct cst_set present = cst_members_present(members);
    const struct cst_set away = cst_set_minus(members->record.epoch.members, present);
    uint64_t first = members->again ? members->now : CST_MEMBERS_NEVER;

    if (!cst_members_belongs(members)) {
        return CST_MEMBERS_NEVER;
    }
    first = members->propose_at < first ? members->propose_at : first;
    if (members->planned_at > members->now && members->planned_at < first) {
        first = members->planned_at;
    }
    CST_SET_EACH (m, &away) {
        uint64_t lost_at = cst_members_lost_at(members, m);

        first = lost_at > members->now && lost_at < first ? lost_at : first;
    }
    return first;
}

const struct cst_members_record *cst_members_record(const struct cst_members *members)
{
    return &members->record;
}

bool cst_members_hold(const struct cst_members *members)
{
    return members->holds;
}
