/* SPDX-License-Identifier: Apache-2.0 */
/* Commands at engines. A command waits for its message and for the commands in its `after`. Then it
 * is in the queue of its lane and priority. A more urgent command interrupts a less urgent one,
 * like the pieces in kernels/engine/thread_pool.h. A node's engine has a thread pool that copies
 * and a team that computes. A GPU's engine has a thread pool for each direction, a team whose sums
 * use the link down, and a lane for device updates. A drive's engine has a thread pool that reads
 * and one that writes. */
#include "offload/simulate/simulate.h"

#include <assert.h>
#include <stdlib.h>

static struct cst_sim_command *command_of(struct cst_ticket *ticket)
{
    return (struct cst_sim_command *)(void *)((char *)ticket -
                                              offsetof(struct cst_sim_command, ticket));
}

/* The command with @ticket, which must be in flight. */
static struct cst_sim_command *get(const struct cst_sim *sim, uint64_t ticket)
{
    struct cst_ticket *found = cst_ticket_graph_find(&sim->tickets, ticket);

    assert(found != NULL);
    return command_of(found);
}

/* Add a command, which waits for its own message and for those of @after that have not ended.
 * NULL: no memory. */
static struct cst_sim_command *add(struct cst_sim *sim, uint64_t ticket, const uint64_t *after,
                                   uint32_t n_after)
{
    struct cst_sim_command *c = calloc(1, sizeof *c);
    uint64_t waits[CST_COMMAND_MAX_AFTER];
    uint32_t n = 0;
    struct cst_err err;

    if (c == NULL) {
        return NULL;
    }
    for (uint32_t i = 0; i < n_after; i++) {
        struct cst_ticket *first = cst_ticket_graph_find(&sim->tickets, after[i]);

        if (first != NULL && !command_of(first)->ended) {
            waits[n++] = after[i];
        }
    }
    c->ticket = (struct cst_ticket){.number = ticket, .edges = c->edges, .n_waits = 1};
    (void)cst_ticket_graph_add(&sim->tickets, &c->ticket, waits, n, &err);
    return c;
}

static void drop(struct cst_sim *sim, struct cst_sim_command *c)
{
    cst_ticket_graph_drop(&sim->tickets, &c->ticket);
    free(c);
}

/* -- lanes ---------------------------------------------------------------------------------- */

static void push(struct cst_sim_lane *lane, struct cst_sim_command *c, bool first)
{
    struct cst_sim_command **head = &lane->head[c->class], **tail = &lane->tail[c->class];

    c->next = first ? *head : NULL;
    if (*head == NULL) {
        *head = *tail = c;
    } else if (first) {
        *head = c;
    } else {
        (*tail)->next = c;
        *tail = c;
    }
}

static struct cst_sim_command *pop(struct cst_sim_lane *lane)
{
    for (unsigned class = 0; class <= CST_PRIORITY_EVICTION; class ++) {
        struct cst_sim_command *c = lane->head[class];

        if (c != NULL) {
            lane->head[class] = c->next;
            return c;
        }
    }
    return NULL;
}

static void run(struct cst_sim *sim, struct cst_sim_lane *lane, struct cst_sim_command *c)
{
    lane->running = c;
    lane->n_running++;
    if (!c->begun) {
        c->begun = true;
        c->begin = sim->now;
    }
    cst_sim_start(sim, &c->effort);
}

static void run_next(struct cst_sim *sim, struct cst_sim_lane *lane)
{
    struct cst_sim_command *c = lane->n_running < lane->width ? pop(lane) : NULL;

    if (c != NULL) {
        run(sim, lane, c);
    }
}

static void enqueue(struct cst_sim *sim, struct cst_sim_command *c)
{
    struct cst_sim_lane *lane = &sim->engines[c->engine].lanes[c->lane];
    bool interrupts = lane->width == 1 && lane->n_running == 1 && lane->running->class > c->class;

    push(lane, c, c->newest_first);
    if (interrupts) {
        cst_shared_rates_stop(&sim->machine, &lane->running->effort);
        lane->n_running--;
        push(lane, lane->running, true);
    }
    run_next(sim, lane);
}

/* -- life of a command ------------------------------------------------------------------------ */

static void release(struct cst_sim *sim, struct cst_sim_command *c)
{
    struct cst_ticket *ready;

    cst_ticket_graph_release(&sim->tickets, &c->ticket);
    while ((ready = cst_ticket_graph_take(&sim->tickets)) != NULL) {
        enqueue(sim, command_of(ready));
    }
}

void cst_sim_submit(struct cst_sim *sim, const struct cst_command *command)
{
    const struct cst_flight *flight = cst_flights_find(&sim->core->flights, command->ticket);
    struct cst_sim_command *c = add(sim, command->ticket, command->after, command->n_after);

    if (c == NULL) {
        cst_sim_out_of_memory(sim);
        return;
    }
    c->kind = flight->kind;
    c->chunk = flight->kind == CST_FLIGHT_NORM ? 0 : flight->chunk;
    c->rank = flight->rank;
    c->engine = command->node;
    c->class = (unsigned)command->priority;
    c->after_ack = command->after_ack;
    c->newest_first = command->newest_first;
    cst_sim_cost(sim, c, command);
    cst_sim_count(sim, c, command);
    cst_sim_timer(sim, sim->hop_ns, CST_SIM_COMMAND, command->ticket);
}

void cst_sim_arrived(struct cst_sim *sim, uint64_t ticket)
{
    release(sim, get(sim, ticket));
}

static enum cst_lane_kind lane_of(const struct cst_sim *sim, const struct cst_sim_command *c)
{
    const struct cst_sim_engine *engine = &sim->engines[c->engine];

    if (engine->is_drive) {
        return c->lane == CST_SIM_UP ? CST_LANE_READ : CST_LANE_WRITE;
    }
    switch (c->kind) {
    case CST_FLIGHT_REDUCE:
        return CST_LANE_REDUCE;
    case CST_FLIGHT_UPDATE:
    case CST_FLIGHT_STATES:
    case CST_FLIGHT_UPDATE_ON_DEVICE:
    case CST_FLIGHT_DEVICE_UPDATE:
    case CST_FLIGHT_KEEP:
        /* A node copies only the weights, out of a buffer of host memory. */
        return engine->rates == NULL && c->lane == CST_SIM_UP ? CST_LANE_UP
               : c->lane == CST_SIM_UP                        ? CST_LANE_STATES_UP
               : c->lane == CST_SIM_DOWN                      ? CST_LANE_STATES_DOWN
                                                              : CST_LANE_UPDATE;
    case CST_FLIGHT_LOAD:
    case CST_FLIGHT_PIECE:
    case CST_FLIGHT_SPILL:
    case CST_FLIGHT_LANDING:
    case CST_FLIGHT_NORM:
    case CST_FLIGHT_READ:
    case CST_FLIGHT_WRITE:
    case CST_FLIGHT_PART:
    case CST_FLIGHT_AHEAD:
    case CST_FLIGHT_PARTIAL:
        break;
    }
    return c->copied_to > 0 ? CST_LANE_PEER : c->lane == CST_SIM_DOWN ? CST_LANE_DOWN : CST_LANE_UP;
}

static void note_interval(struct cst_sim *sim, const struct cst_sim_command *c)
{
    const struct cst_sim_engine *engine = &sim->engines[c->engine];
    enum cst_lane_kind lane = lane_of(sim, c);
    uint32_t number = lane == CST_LANE_UPDATE || lane == CST_LANE_REDUCE ? c->engine
                      : engine->is_drive      ? c->engine - (sim->n_engines - sim->n_drives)
                      : engine->rates == NULL ? engine->node
                                              : engine->device;

    if (c->kind != CST_FLIGHT_NORM) {
        cst_sim_interval(sim, lane, number, c->chunk, false, c->begin);
    }
}

/* Wake the commands that wait for @c. The daemon sends those of another engine, and those with
 * `after_ack`, when it has seen the completion. */
static void wake(struct cst_sim *sim, const struct cst_sim_command *c)
{
    for (const struct cst_ticket_edge *edge = c->ticket.waiters; edge != NULL; edge = edge->next) {
        struct cst_sim_command *next = command_of(edge->waiter);

        if (next->engine == c->engine && !next->after_ack) {
            release(sim, next);
        } else {
            cst_sim_timer(sim, 2 * sim->hop_ns, CST_SIM_COMMAND, next->ticket.number);
        }
    }
}

void cst_sim_ended(struct cst_sim *sim, struct cst_sim_command *c)
{
    struct cst_sim_lane *lane = &sim->engines[c->engine].lanes[c->lane];

    c->ended = true;
    lane->n_running--;
    note_interval(sim, c);
    sim->peer_bytes += c->copied_to;
    run_next(sim, lane);
    wake(sim, c);
    cst_sim_timer(sim, sim->hop_ns, CST_SIM_DONE, c->ticket.number);
}

void cst_sim_done(struct cst_sim *sim, uint64_t ticket)
{
    struct cst_event event = {.kind = CST_EV_DONE, .ticket = ticket};

    drop(sim, get(sim, ticket));
    sim->event(sim, &event);
}

/* -- open ----------------------------------------------------------------------------------- */

int cst_sim_engines_open(struct cst_sim *sim)
{
    struct cst_err err;

    sim->engines = calloc(sim->n_engines, sizeof *sim->engines);
    if (cst_ticket_graph_open(&sim->tickets, &err) != CST_OK || sim->engines == NULL) {
        return CST_ENOMEM;
    }
    for (uint32_t i = 0; i < sim->n_engines; i++) {
        struct cst_sim_engine *e = &sim->engines[i];

        *e = (struct cst_sim_engine){.node = i < sim->n_nodes ? i : 0, .device = CST_NONE};
        if (i >= sim->n_nodes) {
            e->device = i - sim->n_nodes;
            e->rates = cst_sim_device(sim, e->device);
            e->is_drive = e->rates == &sim->drive;
        }
        /* Distribute the GPUs evenly over the nodes. A drive uses the node of each chunk. */
        if (i >= sim->n_nodes && !e->is_drive) {
            e->node = e->device * sim->n_nodes / (sim->n_engines - sim->n_drives - sim->n_nodes);
        }
        for (unsigned lane = 0; lane < CST_SIM_LANES; lane++) {
            e->lanes[lane].width = 1;
        }
    }
    for (uint32_t rank = 0; sim->config->stands_for != NULL && rank < sim->world; rank++) {
        uint32_t tier = sim->config->core->pools[rank].tier;

        if (cst_tier_is_apart(tier)) {
            sim->engines[tier].lanes[CST_SIM_TEAM].width = sim->config->stands_for[rank];
        }
    }
    return CST_OK;
}

void cst_sim_engines_close(struct cst_sim *sim)
{
    /* The graph is all zeros if opening failed before. */
    for (uint32_t i = 0; sim->tickets.buckets != NULL && i < sim->tickets.n_buckets; i++) {
        for (struct cst_ticket *ticket = sim->tickets.buckets[i], *next; ticket != NULL;
             ticket = next) {
            next = ticket->chain;
            free(command_of(ticket));
        }
    }
    cst_ticket_graph_close(&sim->tickets);
    free(sim->engines);
}
