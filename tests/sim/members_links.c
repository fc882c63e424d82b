/* SPDX-License-Identifier: Apache-2.0 */
/* Links: items in order, connections that break and are made again. */
#include "tests/sim/members.h"

struct link *link_of(struct world *world, uint32_t a, uint32_t b)
{
    return a < b ? &world->links[a][b] : &world->links[b][a];
}

static void item_free(struct item *item)
{
    free(item->members);
    free(item);
}

void channel_clear(struct channel *channel)
{
    while (channel->first != NULL) {
        struct item *item = channel->first;

        channel->first = item->next;
        item_free(item);
    }
}

static struct item *channel_push(struct world *world, uint32_t from, uint32_t to,
                                 enum item_kind kind, uint64_t connection, uint64_t at)
{
    struct channel *channel = &world->channels[from][to];
    struct item *item = calloc(1, sizeof *item), **end = &channel->first;

    if (item == NULL) {
        abort();
    }
    item->kind = kind;
    item->connection = connection;
    item->at = at > channel->last_at ? at : channel->last_at + 1;
    channel->last_at = item->at;
    while (*end != NULL) {
        end = &(*end)->next;
    }
    *end = item;
    return item;
}

void link_send(struct world *world, uint32_t from, uint32_t to,
               const struct cst_members_message *members, const struct core_message *core)
{
    struct link *link = link_of(world, from, to);
    uint64_t connection = world->view[from][to];
    struct item *item;

    if (connection == 0 || connection != link->connection) {
        return; /* The connection is lost, and this machine does not know it yet. */
    }
    if (world->cut[from][to]) {
        link->lossy = true;
        return;
    }
    item = channel_push(world, from, to, members != NULL ? ITEM_MEMBERS : ITEM_CORE, connection,
                        world_later(world, 0, world_chance(world, 5) ? 2000 : 20));
    if (members != NULL) {
        item->members = malloc(sizeof *members);
        if (item->members == NULL) {
            abort();
        }
        *item->members = *members;
    } else {
        item->core = *core;
    }
}

/* Lose some of the last messages that are under way. */
static void lose_some(struct world *world, uint32_t from, uint32_t to, uint64_t connection)
{
    struct item **at = &world->channels[from][to].first;
    uint32_t kept = world_chance(world, 50) ? UINT32_MAX : world_below(world, 4);

    while (*at != NULL) {
        struct item *item = *at;

        if (item->kind >= ITEM_MEMBERS && item->connection == connection && kept-- == 0) {
            kept = 0;
            *at = item->next;
            item_free(item);
        } else {
            at = &item->next;
        }
    }
}

void link_break(struct world *world, uint32_t a, uint32_t b)
{
    struct link *link = link_of(world, a, b);
    uint64_t connection = link->connection;

    if (connection == 0) {
        return;
    }
    lose_some(world, a, b, connection);
    lose_some(world, b, a, connection);
    (void)channel_push(world, a, b, ITEM_DOWN, connection, world_later(world, 0, 3000));
    (void)channel_push(world, b, a, ITEM_DOWN, connection, world_later(world, 0, 3000));
    *link = (struct link){
        .try_at = world_later(world, 1, 4000),
        .break_at = CST_MEMBERS_NEVER,
    };
}

/* True if the machines can reach each other. */
static bool can_connect(const struct world *world, uint32_t a, uint32_t b)
{
    return !world->cut[a][b] && !world->cut[b][a] && world->machines[a].state == MACHINE_RUNNING &&
           world->machines[b].state == MACHINE_RUNNING;
}

/* True if something passes neither way or one way only. */
static bool is_silent(const struct world *world, uint32_t a, uint32_t b)
{
    return world->cut[a][b] || world->cut[b][a] || world->machines[a].state == MACHINE_STOPPED ||
           world->machines[b].state == MACHINE_STOPPED;
}

uint64_t link_next(const struct world *world, uint32_t a, uint32_t b)
{
    const struct link *link = &world->links[a][b];

    if (link->connection == 0) {
        return can_connect(world, a, b) ? link->try_at : CST_MEMBERS_NEVER;
    }
    if (link->break_at == CST_MEMBERS_NEVER && (link->lossy || is_silent(world, a, b))) {
        return world->now; /* From now on the silence is timed. */
    }
    return link->break_at;
}

void links_turn(struct world *world, uint32_t a, uint32_t b)
{
    struct link *link = &world->links[a][b];

    if (link->connection == 0) {
        link->connection = ++world->connections;
        link->break_at = CST_MEMBERS_NEVER;
        (void)channel_push(world, a, b, ITEM_UP, link->connection, world_later(world, 0, 50));
        (void)channel_push(world, b, a, ITEM_UP, link->connection, world_later(world, 0, 50));
    } else if (link->break_at == CST_MEMBERS_NEVER) {
        link->break_at = world_later(world, 500, 3000);
    } else if (link->lossy || is_silent(world, a, b)) {
        link_break(world, a, b);
    } else {
        link->break_at = CST_MEMBERS_NEVER; /* It was heard again in time. */
    }
}
