/* SPDX-License-Identifier: Apache-2.0 */
/* Machines: the driver of each instance, which stores records and carries out actions, and dies at
 * bad moments. */
#include "tests/sim/members.h"

#include <inttypes.h>
#include <stdio.h>

static const char *const names[CST_SET_MAX] = {"a", "b", "c", "d", "e", "f", "g", "h"};

bool machine_is_member(const struct world *world, uint32_t m)
{
    const struct machine *machine = &world->machines[m];
    const struct cst_members_record *record =
        machine->state == MACHINE_OFF ? &machine->record : cst_members_record(machine->members);

    return (machine->state != MACHINE_OFF || machine->has_record) &&
           cst_epoch_has(&record->epoch, m, record->life);
}

static void open_instance(struct world *world, uint32_t m, bool makes_job)
{
    struct machine *machine = &world->machines[m];
    const struct cst_members_config config = {
        .self = m,
        .life = machine->life,
        .makes_job = makes_job,
        .wait = world->wait,
        .committed = machine->core.step,
        .names = names,
    };
    struct cst_err err = {0};

    if (cst_members_open(&machine->members, &config, machine->has_record ? &machine->record : NULL,
                         world->now, &err) != CST_OK) {
        world_fail(world, "machine %" PRIu32 ": %s", m, err.text);
        return;
    }
    machine->state = MACHINE_RUNNING;
    machine->out = false;
    if (!machine->has_record) {
        memset(&machine->record, 0, sizeof machine->record);
        machine->held = 0;
    }
    machine->has_record = true;
    (void)machine_feed(world, m, (struct cst_members_event){.kind = CST_MEMBERS_TIME});
}

void machine_start(struct world *world, uint32_t m, bool makes_job)
{
    struct machine *machine = &world->machines[m];

    if (!machine->has_record) {
        core_forget(&machine->core, false);
        if (machine->life == 0 || world->rule != MEMBERS_OLD_LIFE) {
            machine->life = world_random(world) | 1;
        }
    }
    open_instance(world, m, makes_job);
}

void machine_die(struct world *world, uint32_t m, bool keeps_record)
{
    struct machine *machine = &world->machines[m];

    cst_members_close(machine->members);
    machine->members = NULL;
    machine->state = MACHINE_OFF;
    machine->has_record = machine->has_record && keeps_record && machine->record.life != 0;
    if (!machine->has_record) {
        memset(&machine->record, 0, sizeof machine->record);
    }
    core_forget(&machine->core, machine->has_record);
    world->totals->deaths++;
    world->totals->lost_records += !machine->has_record;
    for (uint32_t other = 0; other < world->n; other++) {
        if (other != m) {
            link_break(world, m, other);
            channel_clear(&world->channels[other][m]);
            world->view[m][other] = 0;
        }
    }
}

/* The instance is out: the driver begins another life, over the same links. */
static void begin_again(struct world *world, uint32_t m)
{
    struct machine *machine = &world->machines[m];

    cst_members_close(machine->members);
    machine->members = NULL;
    machine->has_record = false;
    machine->life = world_random(world) | 1;
    core_forget(&machine->core, false);
    open_instance(world, m, false);
    for (uint32_t other = 0; other < world->n && machine->state == MACHINE_RUNNING; other++) {
        if (world->view[m][other] != 0) {
            (void)machine_feed(
                world, m, (struct cst_members_event){.kind = CST_MEMBERS_UP, .machine = other});
        }
    }
}

/* A daemon may die at any moment. True: it did. */
static bool dies_here(struct world *world, uint32_t m)
{
    if (world->calm || world->machines[m].record.life == 0 ||
        world_below(world, world->luck) != 0) {
        return false;
    }
    machine_die(world, m, true);
    return true;
}

static void store(struct world *world, uint32_t m)
{
    struct machine *machine = &world->machines[m];
    const struct cst_members_record *record = cst_members_record(machine->members);

    if (world->rule == MEMBERS_NO_STORE && machine->record.life != 0 && world_chance(world, 50)) {
        return;
    }
    if (memcmp(record, &machine->record, sizeof *record) != 0) {
        machine->record = *record;
        check_record(world, m);
    }
}

static void send_to(struct world *world, uint32_t m, struct cst_members_action *action)
{
    if (world->rule == MEMBERS_NO_VALUES && action->message.kind == CST_MEMBERS_PROMISE) {
        action->message.accepted = 0;
        memset(&action->message.epoch, 0, sizeof action->message.epoch);
    }
    CST_SET_EACH (to, &action->to) {
        if (dies_here(world, m)) {
            return;
        }
        link_send(world, m, to, &action->message, NULL);
    }
}

static void act(struct world *world, uint32_t m)
{
    struct machine *machine = &world->machines[m];

    for (uint32_t i = 0; i < world->actions.n && machine->state == MACHINE_RUNNING; i++) {
        struct cst_members_action *action = &world->actions.v[i];

        if (world->verbose && action->kind != CST_MEMBERS_SEND) {
            printf("%12.3f %s: %s\n", (double)world->now / 1e9, names[m],
                   action->kind == CST_MEMBERS_HOLDS ? "holds" : action->text);
        }
        switch (action->kind) {
        case CST_MEMBERS_SEND:
            send_to(world, m, action);
            break;
        case CST_MEMBERS_LOG:
            if (action->status == CST_EMISMATCH && !world->vouched) {
                world_fail(world, "machine %" PRIu32 ": %s", m, action->text);
            }
            break;
        case CST_MEMBERS_HOLDS:
            check_holds(world, m, action);
            core_holds(world, m, action);
            break;
        case CST_MEMBERS_WAITS:
            core_waits(world, m);
            break;
        case CST_MEMBERS_OUT:
            core_waits(world, m);
            machine->out = true;
            break;
        }
    }
}

int machine_feed(struct world *world, uint32_t m, struct cst_members_event event)
{
    struct machine *machine = &world->machines[m];
    struct cst_err err = {0};
    int status;

    event.now = world->now;
    status = cst_members_step(machine->members, &event, &world->actions, &err);
    if (status != CST_OK || dies_here(world, m)) {
        return status;
    }
    store(world, m);
    if (dies_here(world, m)) {
        return status;
    }
    act(world, m);
    machine_tell_commit(world, m);
    if (machine->state == MACHINE_RUNNING && machine->out) {
        begin_again(world, m);
    }
    return status;
}

void machine_tell_commit(struct world *world, uint32_t m)
{
    struct machine *machine = &world->machines[m];
    struct cst_members_event event = {.kind = CST_MEMBERS_COMMITTED};

    if (machine->state != MACHINE_RUNNING || machine->core.new_commit == 0) {
        return;
    }
    event.step = machine->core.new_commit;
    machine->core.new_commit = 0;
    if (cst_members_hold(machine->members)) {
        (void)machine_feed(world, m, event);
    } else if (world->rule != MEMBERS_DEAF_CORE) {
        world_fail(world, "machine %" PRIu32 " commits while no epoch holds", m);
    }
}

void machine_receive(struct world *world, uint32_t m, uint32_t from)
{
    struct channel *channel = &world->channels[from][m];
    struct item *item = channel->first;
    struct cst_members_event event = {.machine = from};

    channel->first = item->next;
    switch (item->kind) {
    case ITEM_UP:
        world->view[m][from] = item->connection;
        event.kind = CST_MEMBERS_UP;
        (void)machine_feed(world, m, event);
        break;
    case ITEM_DOWN:
        if (world->view[m][from] == item->connection) {
            world->view[m][from] = 0;
            event.kind = CST_MEMBERS_DOWN;
            (void)machine_feed(world, m, event);
        }
        break;
    case ITEM_MEMBERS:
        event.kind = CST_MEMBERS_TOLD;
        event.message = item->members;
        if (world->view[m][from] == item->connection && machine_feed(world, m, event) != CST_OK) {
            world_fail(world, "machine %" PRIu32 " refuses a message", m);
        }
        break;
    case ITEM_CORE:
        if (world->view[m][from] == item->connection) {
            core_receive(world, m, from, &item->core);
            machine_tell_commit(world, m);
        }
        break;
    }
    free(item->members);
    free(item);
}
