/* SPDX-License-Identifier: Apache-2.0 */
/* A run: what happens next, and when it is over. */
#include "tests/sim/members.h"

#include <inttypes.h>
#include <stdio.h>

#define MS UINT64_C(1000000)

/* Virtual time of the faults, and how long after their end an epoch must hold: a member that does
 * not come back is lost after `wait`, links are made within 4 s, and a manager speaks every 3 s. */
#define FAULTS (90000 * MS)
#define SETTLE(world) ((world)->wait + 30000 * MS)

/* splitmix64 */
uint64_t world_random(struct world *world)
{
    uint64_t x = world->rng += 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint32_t world_below(struct world *world, uint32_t n)
{
    return (uint32_t)(world_random(world) % n);
}

bool world_chance(struct world *world, uint32_t percent)
{
    return world_below(world, 100) < percent;
}

uint64_t world_later(struct world *world, uint32_t least, uint32_t most)
{
    return world->now + least * MS + world_random(world) % ((most - least) * MS + 1);
}

/* What can happen next: the kind, of which machines, and when. */
enum happening { NOTHING, TIMER, WORK, RECEIVE, LINK, MISCHIEF, MANAGER };

struct next {
    enum happening kind;
    uint32_t a, b;
    uint64_t at;
};

static void consider(struct next *next, enum happening kind, uint32_t a, uint32_t b, uint64_t at)
{
    if (at < next->at) {
        *next = (struct next){kind, a, b, at};
    }
}

static struct next find_next(const struct world *world)
{
    struct next next = {.at = CST_MEMBERS_NEVER};

    consider(&next, MISCHIEF, 0, 0, world->mischief_at);
    consider(&next, MANAGER, 0, 0, world->manager_at);
    for (uint32_t a = 0; a < world->n; a++) {
        const struct machine *machine = &world->machines[a];

        for (uint32_t b = a + 1; b < world->n; b++) {
            consider(&next, LINK, a, b, link_next(world, a, b));
        }
        if (machine->state != MACHINE_RUNNING) {
            continue;
        }
        consider(&next, TIMER, a, 0, cst_members_deadline(machine->members));
        consider(&next, WORK, a, 0, machine->core.work_at);
        for (uint32_t b = 0; b < world->n; b++) {
            if (b != a && world->channels[b][a].first != NULL) {
                consider(&next, RECEIVE, a, b, world->channels[b][a].first->at);
            }
        }
    }
    return next;
}

static void happen(struct world *world, const struct next *next)
{
    world->now = next->at > world->now ? next->at : world->now;
    switch (next->kind) {
    case NOTHING:
        world_fail(world, "nothing happens any more");
        break;
    case TIMER:
        (void)machine_feed(world, next->a, (struct cst_members_event){.kind = CST_MEMBERS_TIME});
        break;
    case WORK:
        core_work(world, next->a);
        machine_tell_commit(world, next->a);
        break;
    case RECEIVE:
        machine_receive(world, next->a, next->b);
        break;
    case LINK:
        links_turn(world, next->a, next->b);
        break;
    case MISCHIEF:
        mischief_turn(world);
        break;
    case MANAGER:
        manager_turn(world);
        break;
    }
}

static void open_world(struct world *world)
{
    world->n = 2 + world_below(world, MEMBERS_MAX - 1);
    world->wait = world_later(world, 1000, 30000);
    world->lies = world_chance(world, 40);
    world->luck = 200 + world_below(world, 5000);
    for (uint32_t a = 0; a < world->n; a++) {
        world->machines[a].core.work_at = CST_MEMBERS_NEVER;
        for (uint32_t b = a + 1; b < world->n; b++) {
            world->links[a][b] = (struct link){
                .try_at = world_later(world, 0, 500),
                .break_at = CST_MEMBERS_NEVER,
            };
        }
    }
    for (uint32_t m = 0; m < world->n; m++) {
        machine_start(world, m, m == 0);
    }
    world->mischief_from = world_later(world, 0, 5000);
    world->mischief_at = world->mischief_from;
    world->pause_ms = 4000 + world_below(world, 40000);
    world->manager_at = world_later(world, 100, 1000);
}

static void close_world(struct world *world)
{
    for (uint32_t a = 0; a < world->n; a++) {
        core_forget(&world->machines[a].core, false);
        cst_members_close(world->machines[a].members);
        for (uint32_t b = 0; b < world->n; b++) {
            channel_clear(&world->channels[a][b]);
        }
    }
}

static bool turn(struct world *world)
{
    struct next next = find_next(world);

    happen(world, &next);
    world->totals->turns++;
    check_groups(world);
    return world->failure[0] == '\0';
}

/* Without faults, an epoch must hold everywhere in time, and steps be committed in it. */
static void settle(struct world *world)
{
    uint64_t begin = world->now, end = begin + SETTLE(world), commits = 0;
    bool was = false;

    while (check_job_lives(world) && turn(world) && (!was || world->contents < commits + 2)) {
        bool is = check_settled(world);

        if (is && !was) {
            commits = world->contents;
            if (world->now - begin > world->totals->longest_ns) {
                world->totals->longest_ns = world->now - begin;
            }
        }
        was = is;
        if (world->now > end) {
            world_fail(world, "no epoch holds %.0f s after the last fault",
                       (double)(end - begin) / 1e9);
        }
    }
    if (world->lies && !check_job_lives(world)) {
        world_fail(world, "no machine is a member, and none has lost its record");
    }
}

bool members_run(uint64_t seed, enum members_rule rule, bool verbose, struct members_totals *totals,
                 char *failure)
{
    struct world *world = calloc(1, sizeof *world);
    bool well;

    if (world == NULL) {
        abort();
    }
    world->seed = seed;
    world->rng = seed;
    world->rule = rule;
    world->verbose = verbose;
    world->totals = totals;
    open_world(world);
    while (world->now < FAULTS && turn(world)) {
    }
    if (world->failure[0] == '\0') {
        mischief_end(world);
        settle(world);
    }
    totals->runs++;
    totals->steps += world->contents;
    well = world->failure[0] == '\0';
    memcpy(failure, world->failure, sizeof world->failure);
    close_world(world);
    free(world);
    return well;
}
