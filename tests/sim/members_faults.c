/* SPDX-License-Identifier: Apache-2.0 */
/* Faults, and managers who speak at any moment. */
#include "offload/machines/members_state.h"
#include "tests/sim/members.h"

#include <inttypes.h>

/* -- managers --------------------------------------------------------------------------------- */

/* True if nobody but those in the epoch of machine @m goes on with the job. */
static bool is_only_part(const struct world *world, uint32_t m)
{
    const struct cst_epoch *epoch = &cst_members_record(world->machines[m].members)->epoch;

    for (uint32_t x = 0; x < world->n; x++) {
        const struct machine *machine = &world->machines[x];
        const struct cst_epoch *other = machine->state == MACHINE_OFF
                                            ? &machine->record.epoch
                                            : &cst_members_record(machine->members)->epoch;

        if (x != m && !machine->for_good && machine_is_member(world, x) &&
            other->number >= epoch->number &&
            !(cst_epoch_equal(other, epoch) && cst_epoch_has(epoch, x, machine->life))) {
            return false;
        }
    }
    return true;
}

/* May a manager say at machine @m that @x is down? If not everybody who is said to be down in this
 * epoch is so for good, at most half may be said to be down. */
static bool may_say_down(struct world *world, uint32_t m, uint32_t x)
{
    const struct cst_members_record *record = cst_members_record(world->machines[m].members);
    const struct cst_epoch *epoch = &record->epoch;
    struct cst_set all = cst_set_intersect(
        cst_set_union(world->words[epoch->number], cst_set_of(x)), epoch->members);
    struct cst_set here = cst_set_union(record->down, cst_set_of(x));
    bool few = 2 * cst_set_count(&all) <= cst_set_count(&epoch->members);
    bool lie = !check_is_over(world, epoch, x);

    here = cst_set_intersect(here, epoch->members);
    if (world->rule == MEMBERS_ANY_WORD) {
        return true;
    }
    if (lie) {
        world->lied[epoch->number] = world->lied[epoch->number] || (world->lies && few);
        world->totals->lies += world->lies && few;
        return world->lies && few;
    }
    if (few) {
        return true;
    }
    if (world->lied[epoch->number] || !is_only_part(world, m)) {
        return false;
    }
    world->vouched = true;
    world->totals->vouched++;
    return true;
}

static void drop(struct world *world, uint32_t m, uint32_t x, bool gone)
{
    struct cst_members *members = world->machines[m].members;
    const struct cst_epoch *epoch = &cst_members_record(members)->epoch;
    bool says_down = gone || (x != m && !cst_members_is_present(members, x));

    if (cst_set_has(&epoch->members, x) && says_down && !may_say_down(world, m, x)) {
        return;
    }
    if (says_down) {
        cst_set_add(&world->words[epoch->number], x);
    }
    world->totals->words++;
    (void)machine_feed(world, m,
                       (struct cst_members_event){
                           .kind = gone ? CST_MEMBERS_GONE : CST_MEMBERS_DROP,
                           .machine = x,
                           .idle = world_chance(world, 50),
                       });
}

/* To add a machine again that has lost its record says that its old life is down. */
static bool may_add(struct world *world, uint32_t m, uint32_t x)
{
    const struct cst_members *members = world->machines[m].members;
    struct cst_set renewed = cst_members_renewed(members);

    if (!cst_set_has(&renewed, x)) {
        return true;
    }
    if (!may_say_down(world, m, x)) {
        return false;
    }
    cst_set_add(&world->words[members->record.epoch.number], x);
    return true;
}

static void add(struct world *world, uint32_t m, uint32_t x)
{
    struct cst_members_event event = {
        .kind = CST_MEMBERS_ADD,
        .machine = x,
        .idle = world_chance(world, 50),
    };

    if (world->machines[m].state == MACHINE_RUNNING && may_add(world, m, x)) {
        world->totals->adds += machine_feed(world, m, event) == CST_OK;
    }
}

/* When all faults are over: the manager says of all that are gone for good that they are down, in
 * the part with the highest epoch, and ends other parts with an epoch of this number. */
static void put_right(struct world *world)
{
    uint32_t top = world->n;
    struct cst_epoch epoch;

    for (uint32_t m = 0; m < world->n; m++) {
        if (machine_is_member(world, m) &&
            (top == world->n ||
             cst_members_record(world->machines[m].members)->epoch.number >
                 cst_members_record(world->machines[top].members)->epoch.number)) {
            top = m;
        }
    }
    if (top == world->n) {
        return;
    }
    epoch = cst_members_record(world->machines[top].members)->epoch;
    for (uint32_t m = 0; m < world->n; m++) {
        const struct cst_epoch *other = machine_is_member(world, m)
                                            ? &cst_members_record(world->machines[m].members)->epoch
                                            : &epoch;

        if (other->number == epoch.number && !cst_epoch_equal(other, &epoch)) {
            machine_die(world, m, false);
            machine_start(world, m, false);
        }
    }
    CST_SET_EACH (x, &epoch.members) {
        if (check_is_over(world, &epoch, x) && machine_is_member(world, top)) {
            drop(world, top, x, false);
        }
    }
}

void manager_turn(struct world *world)
{
    uint32_t m = world_below(world, world->n), x = world_below(world, world->n);

    world->manager_at = world_later(world, 100, 3000);
    if (world->calm) {
        put_right(world);
    } else if (world->now < world->mischief_from) {
        world->manager_at = world_later(world, 10, 100);
        add(world, 0, x);
    } else if (world->machines[m].state == MACHINE_RUNNING && machine_is_member(world, m)) {
        if (world_chance(world, 70)) {
            add(world, m, x);
        } else {
            drop(world, m, x, world_chance(world, 30) && x != m);
        }
    }
}

/* -- faults ----------------------------------------------------------------------------------- */

static void start_all(struct world *world, uint32_t percent)
{
    for (uint32_t m = 0; m < world->n; m++) {
        if (world->machines[m].state == MACHINE_OFF && !world->machines[m].for_good &&
            world_chance(world, percent)) {
            machine_start(world, m, false);
        }
    }
}

static void resume(struct world *world, uint32_t m)
{
    if (world->machines[m].state == MACHINE_STOPPED) {
        world->machines[m].state = MACHINE_RUNNING;
    }
}

/* Cut the machines into two parts: both ways, or one way. */
static void partition(struct world *world)
{
    uint32_t part = 1 + world_below(world, (1u << world->n) - 2);
    bool one_way = world_chance(world, 30);

    for (uint32_t a = 0; a < world->n; a++) {
        for (uint32_t b = 0; b < world->n; b++) {
            bool there = (part >> a & 1) != 0, back = (part >> b & 1) != 0;

            world->cut[a][b] = a != b && (one_way ? there && !back : there != back);
        }
    }
}

static void cut_one(struct world *world, uint32_t a, uint32_t b)
{
    if (a != b) {
        world->cut[a][b] = true;
        world->cut[b][a] = world_chance(world, 50);
    }
}

static void kill_one(struct world *world, uint32_t m)
{
    bool keeps = world->lies || world_chance(world, 60);

    if (world->machines[m].state == MACHINE_RUNNING) {
        machine_die(world, m, keeps);
        world->machines[m].for_good = !keeps && world_chance(world, 40);
    }
}

void mischief_turn(struct world *world)
{
    uint32_t m = world_below(world, world->n), other = world_below(world, world->n);

    world->mischief_at = world_later(world, 10, world_chance(world, 20) ? world->pause_ms : 3000);
    switch (world_below(world, 10)) {
    case 0:
        world->totals->cuts++;
        partition(world);
        break;
    case 1:
    case 2:
        world->totals->cuts++;
        cut_one(world, m, other);
        break;
    case 3:
    case 4:
        memset(world->cut, 0, sizeof world->cut);
        break;
    case 5:
        kill_one(world, m);
        break;
    case 6:
    case 7:
        start_all(world, 60);
        break;
    case 8:
        if (world->machines[m].state == MACHINE_RUNNING) {
            world->totals->stops++;
            world->machines[m].state = MACHINE_STOPPED;
        }
        break;
    default:
        resume(world, m);
        resume(world, other);
        break;
    }
}

void mischief_end(struct world *world)
{
    world->calm = true;
    world->mischief_at = CST_MEMBERS_NEVER;
    memset(world->cut, 0, sizeof world->cut);
    for (uint32_t m = 0; m < world->n; m++) {
        resume(world, m);
    }
    start_all(world, 100);
    world->manager_at = world_later(world, 5000, 8000);
}
