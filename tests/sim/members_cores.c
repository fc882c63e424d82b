/* SPDX-License-Identifier: Apache-2.0 */
/* Cores, which do no more than to commit steps: a member whose work of a step is done says READY to
 * the lowest member, which records the commit when all are, and tells it. */
#include "tests/sim/members.h"

#include <inttypes.h>

static void free_early(struct core *core)
{
    while (core->early != NULL) {
        struct item *item = core->early;

        core->early = item->next;
        free(item);
    }
}

void core_forget(struct core *core, bool keeps_record)
{
    free_early(core);
    if (!keeps_record) {
        core->step = 0;
        memset(core->contents, 0, sizeof core->contents);
    }
    core->new_commit = 0;
    core->holds = false;
    core->work_at = CST_MEMBERS_NEVER;
}

/* Record a commit, of which the driver tells the instance. */
static void record(struct world *world, uint32_t m, uint64_t step, uint64_t content)
{
    struct core *core = &world->machines[m].core;

    if (step >= MEMBERS_MAX_STEPS) {
        world_fail(world, "too many steps");
        return;
    }
    core->step = step;
    core->contents[step] = content;
    core->new_commit = step;
}

static void begin_step(struct world *world, uint32_t m)
{
    struct core *core = &world->machines[m].core;

    core->ready = (struct cst_set){{0}};
    core->work_at = world_later(world, 10, world_chance(world, 10) ? 5000 : 1000);
}

/* Take the commits that a member has recorded and this machine has not. False: none of those that
 * have recorded them is in the round any more. */
static bool catch_up(struct world *world, uint32_t m, const struct cst_members_action *action)
{
    struct core *core = &world->machines[m].core;
    const struct core *from = NULL;

    CST_SET_EACH (x, &action->recorded) {
        if (from == NULL && check_in_round(world, action, x)) {
            from = &world->machines[x].core;
        }
    }
    if (core->step >= action->committed || from == NULL) {
        return core->step >= action->committed;
    }
    if (core->step != 0 && core->step + 1 < action->committed && world->rule == MEMBERS_SOUND) {
        world_fail(world, "machine %" PRIu32 " has recorded step %" PRIu64 ", others %" PRIu64, m,
                   core->step, action->committed);
    }
    for (uint64_t step = core->step + 1; step < action->committed; step++) {
        core->contents[step] = from->contents[step];
    }
    record(world, m, action->committed, from->contents[action->committed]);
    return true;
}

void core_holds(struct world *world, uint32_t m, const struct cst_members_action *action)
{
    struct core *core = &world->machines[m].core;
    struct item *early = core->early;

    core->holds = true;
    core->epoch = action->epoch->number;
    core->round = action->round;
    core->members = action->epoch->members;
    if (catch_up(world, m, action)) {
        begin_step(world, m);
    }
    core->early = NULL;
    while (early != NULL) {
        struct item *item = early;

        early = item->next;
        core_receive(world, m, (uint32_t)item->at, &item->core);
        free(item);
    }
}

void core_waits(struct world *world, uint32_t m)
{
    struct core *core = &world->machines[m].core;

    core->holds = world->rule == MEMBERS_DEAF_CORE && core->holds;
    core->work_at = CST_MEMBERS_NEVER;
}

static void say(struct world *world, uint32_t m, uint32_t to, enum core_kind kind)
{
    struct core *core = &world->machines[m].core;
    struct core_message message = {
        .kind = kind,
        .epoch = core->epoch,
        .round = core->round,
        .step = kind == CORE_READY ? core->step + 1 : core->step,
        .content = core->contents[core->step],
    };

    if (to == m) {
        core_receive(world, m, m, &message);
    } else {
        link_send(world, m, to, NULL, &message);
    }
}

void core_work(struct world *world, uint32_t m)
{
    struct core *core = &world->machines[m].core;

    core->work_at = CST_MEMBERS_NEVER;
    say(world, m, cst_set_first(&core->members), CORE_READY);
}

static void commit(struct world *world, uint32_t m)
{
    struct core *core = &world->machines[m].core;

    record(world, m, core->step + 1, ++world->contents);
    for (uint32_t to = 0; to < world->n; to++) {
        if (to != m && cst_set_has(&core->members, to)) {
            say(world, m, to, CORE_COMMIT);
        }
    }
    if (cst_set_count(&core->members) == 1) {
        begin_step(world, m);
    } else {
        core->ready = (struct cst_set){{0}};
    }
}

/* Keep a message of a round that holds at its sender already. */
static void keep(struct core *core, uint32_t from, const struct core_message *message)
{
    struct item *item = calloc(1, sizeof *item), **end = &core->early;

    if (item == NULL) {
        abort();
    }
    item->at = from;
    item->core = *message;
    while (*end != NULL) {
        end = &(*end)->next;
    }
    *end = item;
}

void core_receive(struct world *world, uint32_t m, uint32_t from,
                  const struct core_message *message)
{
    struct core *core = &world->machines[m].core;
    const struct cst_members_record *now = cst_members_record(world->machines[m].members);
    bool is_now = core->holds && message->epoch == core->epoch && message->round == core->round;

    if (!is_now) {
        if (message->epoch > now->epoch.number ||
            (message->epoch == now->epoch.number && message->round >= now->round)) {
            keep(core, from, message);
        }
        return;
    }
    switch (message->kind) {
    case CORE_READY:
        if (message->step == core->step + 1) {
            cst_set_add(&core->ready, from);
            if (cst_set_equal(&core->ready, &core->members)) {
                commit(world, m);
            }
        }
        break;
    case CORE_COMMIT:
        if (message->step == core->step + 1) {
            record(world, m, message->step, message->content);
            say(world, m, from, CORE_RECORDED);
            begin_step(world, m);
        }
        break;
    case CORE_RECORDED:
        if (message->step == core->step && core->work_at == CST_MEMBERS_NEVER &&
            !cst_set_has(&core->ready, m)) {
            begin_step(world, m);
        }
        break;
    }
}
