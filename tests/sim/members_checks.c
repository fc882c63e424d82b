/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/members.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

void world_fail(struct world *world, const char *fmt, ...)
{
    int n;
    va_list ap;

    if (world->failure[0] != '\0') {
        return;
    }
    n = snprintf(world->failure, sizeof world->failure, "seed %" PRIu64 ", %.6f s: ", world->seed,
                 (double)world->now / 1e9);
    va_start(ap, fmt);
    (void)vsnprintf(world->failure + n, sizeof world->failure - (size_t)n, fmt, ap);
    va_end(ap);
}

void check_record(struct world *world, uint32_t m)
{
    const struct cst_members_record *record = &world->machines[m].record;
    struct cst_epoch *decided = &world->decided[record->epoch.number % MEMBERS_MAX_EPOCHS];

    if (record->epoch.number == 0) {
        return;
    }
    if (record->epoch.number >= MEMBERS_MAX_EPOCHS) {
        world_fail(world, "too many epochs");
        return;
    }
    if (decided->number == 0) {
        *decided = record->epoch;
        world->totals->epochs++;
    } else if (!world->vouched && !cst_epoch_equal(decided, &record->epoch)) {
        world_fail(world, "machine %" PRIu32 ": epoch %" PRIu64 " has two sets of members", m,
                   record->epoch.number);
    }
}

bool check_in_round(const struct world *world, const struct cst_members_action *action, uint32_t m)
{
    const struct machine *machine = &world->machines[m];
    const struct cst_members_record *record =
        machine->state == MACHINE_OFF ? &machine->record : cst_members_record(machine->members);

    return machine_is_member(world, m) && record->round == action->round &&
           cst_epoch_equal(&record->epoch, action->epoch);
}

void check_holds(struct world *world, uint32_t m, const struct cst_members_action *action)
{
    struct machine *machine = &world->machines[m];

    for (uint32_t x = 0; x < world->n; x++) {
        const struct machine *other = &world->machines[x];

        if (x != m && machine_is_member(world, x) && other->held == action->epoch->number &&
            !cst_epoch_equal(&other->held_epoch, action->epoch)) {
            world_fail(world, "epoch %" PRIu64 " holds with two sets of members", other->held);
        }
        if (!check_in_round(world, action, x)) {
            continue;
        }
        if (other->core.step > action->committed) {
            world_fail(world,
                       "machine %" PRIu32 " is told step %" PRIu64 ", and machine %" PRIu32
                       " has recorded step %" PRIu64,
                       m, action->committed, x, other->core.step);
        }
        for (uint64_t step = 1; step <= other->core.step && step <= machine->core.step; step++) {
            if (other->core.contents[step] != machine->core.contents[step]) {
                world_fail(world, "step %" PRIu64 " was committed twice, differently", step);
            }
        }
    }
    machine->held = action->epoch->number;
    machine->held_epoch = *action->epoch;
}

/* True if an epoch and round holds at @m and at all its other members. */
static bool goes_on(const struct world *world, uint32_t m)
{
    const struct core *core = &world->machines[m].core;

    if (world->machines[m].state == MACHINE_OFF || !core->holds) {
        return false;
    }
    CST_SET_EACH (x, &core->members) {
        const struct core *other = &world->machines[x].core;

        if (world->machines[x].state == MACHINE_OFF || !other->holds ||
            other->epoch != core->epoch || other->round != core->round ||
            !cst_set_equal(&other->members, &core->members)) {
            return false;
        }
    }
    return true;
}

void check_groups(struct world *world)
{
    uint32_t first = world->n;

    for (uint32_t m = 0; m < world->n; m++) {
        if (!goes_on(world, m)) {
            continue;
        }
        if (first == world->n) {
            first = m;
        }
        if (!cst_set_has(&world->machines[first].core.members, m)) {
            world_fail(world,
                       "machine %" PRIu32 " goes on in epoch %" PRIu64 ", and machine %" PRIu32
                       " in epoch %" PRIu64,
                       first, world->machines[first].core.epoch, m, world->machines[m].core.epoch);
        }
    }
}

bool check_is_over(const struct world *world, const struct cst_epoch *epoch, uint32_t x)
{
    const struct machine *machine = &world->machines[x];

    return machine->for_good || machine->life != epoch->lives[x] ||
           (machine->state == MACHINE_OFF && !machine->has_record);
}

bool check_job_lives(const struct world *world)
{
    const struct cst_epoch *last = &world->machines[0].record.epoch;

    for (uint32_t m = 0; m < world->n; m++) {
        const struct cst_epoch *epoch = &world->machines[m].record.epoch;

        if (machine_is_member(world, m)) {
            return true;
        }
        last = epoch->number > last->number ? epoch : last;
    }
    CST_SET_EACH (x, &last->members) {
        if (!check_is_over(world, last, x)) {
            return true;
        }
    }
    return false;
}

bool check_settled(const struct world *world)
{
    for (uint32_t m = 0; m < world->n; m++) {
        if (machine_is_member(world, m) && !goes_on(world, m)) {
            return false;
        }
    }
    return true;
}
