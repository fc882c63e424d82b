/* Commands at engines. One waits for its message and for the commands that it names; then it stands
 * in its lane's queue of its priority, and what is more urgent interrupts what is less, as pieces
 * do in kernels/crew.h. A node's engine has a crew that copies and a team that computes; a GPU's
 * has a crew for each direction, and a team whose sums go down the link. */
#include "offload/plan/play.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define REDUCE_BYTES                                                                               \
    6                  /* same: two contributions and their sum, which the rate is measured with   \
                        */
#define TILE_BYTES 16  /* of the table that a norm reads */
#define COPY_THREADS 4 /* of a node's crew, at most */

/* -- the ring of commands ------------------------------------------------------------------- */

static struct cst_play_command *find(const struct cst_play *play, uint64_t ticket)
{
    struct cst_play_command *c = play->commands[ticket & (play->commands_capacity - 1)];

    return c != NULL && c->ticket == ticket ? c : NULL;
}

/* It is under way. */
static struct cst_play_command *get(const struct cst_play *play, uint64_t ticket)
{
    struct cst_play_command *c = play->commands[ticket & (play->commands_capacity - 1)];

    assert(c != NULL && c->ticket == ticket);
    return c;
}

/* Tickets are dense, so that a ring of twice the span of those under way has no two in one slot. */
static int grow(struct cst_play *play)
{
    uint64_t capacity = 2 * play->commands_capacity;
    struct cst_play_command **ring = calloc(capacity, sizeof(*ring));

    if (ring == NULL) {
        return CST_ENOMEM;
    }
    for (uint64_t i = 0; i < play->commands_capacity; i++) {
        if (play->commands[i] != NULL) {
            ring[play->commands[i]->ticket & (capacity - 1)] = play->commands[i];
        }
    }
    free(play->commands);
    play->commands = ring;
    play->commands_capacity = capacity;
    return CST_OK;
}

static struct cst_play_command *add(struct cst_play *play, uint64_t ticket)
{
    struct cst_play_command *c;

    while (play->commands[ticket & (play->commands_capacity - 1)] != NULL) {
        if (grow(play) != CST_OK) {
            return NULL;
        }
    }
    c = calloc(1, sizeof *c);
    if (c != NULL) {
        c->ticket = ticket;
        play->commands[ticket & (play->commands_capacity - 1)] = c;
        play->n_commands++;
    }
    return c;
}

static void drop(struct cst_play *play, struct cst_play_command *c)
{
    play->commands[c->ticket & (play->commands_capacity - 1)] = NULL;
    play->n_commands--;
    free(c);
}

/* -- how much work -------------------------------------------------------------------------- */

static const struct cst_rates_node *node_rates(const struct cst_play *play, uint32_t node)
{
    const struct cst_rates *rates = play->config->rates;

    return &rates->nodes[node < rates->n_nodes ? node : rates->n_nodes - 1];
}

static double ns(double amount, double per_s)
{
    return per_s > 0 ? amount / per_s * 1e9 : 0;
}

/* That a copy brings; weights that are made on the way are read as fp32. */
static uint64_t copied_bytes(const struct cst_command *command)
{
    return command->kind == CST_COMMAND_CONVERT ? 2 * command->n_elems : command->bytes;
}

/* The memory traffic of @bytes in @effort->left; never more than the node can do. */
static void use_memory(const struct cst_play *play, struct cst_effort *effort, double bytes)
{
    double pass = node_rates(play, effort->node)->pass / 1e9;

    effort->bytes = effort->left > 0 ? bytes / effort->left : 0;
    effort->bytes = pass > 0 && effort->bytes > pass ? pass : effort->bytes;
}

static double crew_cores(const struct cst_play *play, uint32_t node)
{
    uint32_t cores = node_rates(play, node)->cores;

    return cores == 0 ? 1 : cores < COPY_THREADS ? cores : COPY_THREADS;
}

static uint32_t slab_rank(const struct cst_place *place)
{
    return place->segment < CST_PLAY_POOL_SEGMENT
               ? CST_NONE
               : (place->segment - CST_PLAY_POOL_SEGMENT) / CST_PLAY_POOL_STRIDE;
}

/* A copy between two ranks' devices, or within one: the part of the ranks that do not have it at
 * home. */
static void cost_peer_copy(struct cst_play *play, struct cst_play_command *c, double bytes,
                           uint32_t owner)
{
    const struct cst_play_engine *engine = &play->engines[c->engine];
    const struct cst_play_worker *worker = &play->workers[c->rank];
    double remote = owner == c->rank ? 1 - 1 / worker->stands_for : 1;
    const struct cst_rates_device *d = engine->rates;

    c->copied_to = (uint64_t)(remote * bytes * worker->stands_for);
    c->effort.left = ns((1 - remote) * 2 * bytes, d->memory) + d->copy_latency_s * 1e9;
    if (d->peer > 0) {
        c->effort.left += ns(remote * bytes, d->peer);
    } else if (remote > 0) { /* down one link and up the other */
        c->effort.left += ns(remote * bytes, d->up);
        c->effort.link = CST_LINK_UP;
    }
}

static void cost_copy(struct cst_play *play, struct cst_play_command *c,
                      const struct cst_command *command)
{
    const struct cst_play_engine *engine = &play->engines[c->engine];
    bool up = c->kind != CST_FLIGHT_STAGE;
    double bytes = (double)copied_bytes(command);
    uint32_t owner = cst_play_owner(play, c->chunk);

    c->lane = up ? CST_PLAY_UP : CST_PLAY_DOWN;
    if (engine->rates == NULL) {
        const struct cst_rates_node *n = node_rates(play, engine->node);

        c->lane = CST_PLAY_UP;
        bytes *=
            play->workers[c->rank].stands_for * (command->kind == CST_COMMAND_CONVERT ? 1.5 : 1);
        c->effort.left = ns(bytes, n->copy > 0 ? n->copy : n->pass / 2);
        c->effort.cores = crew_cores(play, engine->node);
        use_memory(play, &c->effort, 2 * bytes);
        return;
    }
    if (c->kind == CST_FLIGHT_PIECE) {
        owner = slab_rank(&command->src[0]);
    }
    if (owner != CST_NONE) {
        cost_peer_copy(play, c, bytes, owner);
        return;
    }
    c->effort.device = engine->device;
    c->effort.link = up ? CST_LINK_UP : CST_LINK_DOWN;
    c->effort.left = ns(bytes, up ? engine->rates->up : engine->rates->down) +
                     engine->rates->copy_latency_s * 1e9;
    c->effort.bytes = bytes * play->workers[c->rank].stands_for / c->effort.left;
}

/* Contributions, and how many of them are not in the memory of the GPU of @engine. */
static double count_sources(const struct cst_play *play, const struct cst_play_engine *engine,
                            const struct cst_command *command, double *peers, double *host)
{
    double n = 0;

    *peers = 0;
    *host = 0;
    for (uint32_t i = 0; i < command->n_src; i++) {
        uint32_t rank = slab_rank(&command->src[i]);
        double ranks = rank == CST_NONE ? 1 : play->workers[rank].stands_for;

        n += ranks;
        if (rank == CST_NONE || play->workers[rank].device == CST_NONE) {
            *host += ranks;
        } else {
            bool own = play->workers[rank].device == engine->device;

            *peers += own ? ranks - 1 : ranks; /* whom it stands for have devices of their own */
        }
    }
    return n;
}

static void cost_reduce(struct cst_play *play, struct cst_play_command *c,
                        const struct cst_command *command)
{
    const struct cst_play_engine *engine = &play->engines[c->engine];
    double elems = (double)play->config->core->layout->chunks[c->chunk].n_elems;
    double grad = play->config->core->layout->grad_bytes;
    double sum = grad * (command->accumulate ? 2 : 1); /* read, too */
    double peers, host, n = count_sources(play, engine, command, &peers, &host);
    const struct cst_rates_node *node = node_rates(play, engine->node);
    double bytes = elems * (2 * n + sum), up, down;

    c->lane = CST_PLAY_TEAM;
    if (engine->rates == NULL) {
        c->effort.left =
            node->reduce > 0 ? ns(bytes / REDUCE_BYTES, node->reduce) : ns(bytes, node->pass);
        c->effort.cores = node->cores;
        use_memory(play, &c->effort, bytes);
        return;
    }
    /* What is read comes while what is written goes. */
    down = ns(elems * grad, engine->rates->down);
    up = ns(elems * (sum - grad + 2 * host), engine->rates->up) +
         ns(2 * elems * peers, engine->rates->peer > 0 ? engine->rates->peer : engine->rates->up);
    c->effort.device = engine->device;
    c->effort.link = CST_LINK_DOWN;
    c->effort.left = (up > down ? up : down) + engine->rates->copy_latency_s * 1e9;
    if (cst_play_owner(play, c->chunk) != CST_NONE) {
        c->effort.link = CST_LINK_NONE;
        c->effort.left = up + ns(bytes, engine->rates->memory);
    }
    c->copied_to = (uint64_t)(2 * elems * peers);
    use_memory(play, &c->effort, elems * (sum + 2 * host));
    if (engine->lanes[CST_PLAY_TEAM].width >
        1) { /* ranks that are stood for have links of their own */
        c->effort.link = CST_LINK_NONE;
    }
}

/* Of an element, on disk. */
static double disk_bytes(const struct cst_play *play, uint32_t chunk)
{
    const struct cst_layout *layout = play->config->core->layout;
    double bytes = 0;

    for (int row = 0; play->config->disk_rows != NULL && row < CST_ROW_COUNT; row++) {
        bool there = (play->config->disk_rows[chunk] & 1u << row) != 0;

        bytes += !there ? 0
                        : (double)cst_layout_row_bytes(&layout->states, 2, row, CST_MX8_BLOCK) /
                              CST_MX8_BLOCK;
    }
    return bytes;
}

static void cost_update(struct cst_play *play, struct cst_play_command *c)
{
    const struct cst_rates *rates = play->config->rates;
    const struct cst_layout *layout = play->config->core->layout;
    uint32_t owner = cst_play_owner(play, c->chunk);
    double elems = (double)layout->chunks[c->chunk].n_elems;
    double disk = disk_bytes(play, c->chunk);

    c->lane = CST_PLAY_TEAM;
    if (owner != CST_NONE) {
        const struct cst_play_worker *w = &play->workers[owner];

        c->engine = play->n_nodes + w->device;
        c->effort.left = ns(elems, w->rates->update);
        return;
    }
    c->effort.left = ns(elems, node_rates(play, c->effort.node)->update);
    c->effort.cores = node_rates(play, c->effort.node)->cores;
    use_memory(play, &c->effort,
               elems * cst_layout_update_bytes(&layout->states, layout->grad_bytes));
    if (disk > 0) { /* the rows come and go while others' are updated: what is slower counts */
        double io = ns(elems * disk, rates->disk_read) + ns(elems * disk, rates->disk_write);

        c->effort.left = io > c->effort.left ? io : c->effort.left;
    }
}

static void cost(struct cst_play *play, struct cst_play_command *c,
                 const struct cst_command *command)
{
    c->effort.node = play->engines[c->engine].node;
    c->effort.owner = c;
    switch (command->kind) {
    case CST_COMMAND_COPY:
    case CST_COMMAND_CONVERT: /* of weights, into a block */
        cost_copy(play, c, command);
        break;
    case CST_COMMAND_REDUCE:
        cost_reduce(play, c, command);
        break;
    case CST_COMMAND_UPDATE:
        cost_update(play, c);
        break;
    case CST_COMMAND_NORM:
        c->lane = CST_PLAY_TEAM;
        c->effort.cores = 1;
        c->effort.left = ns((double)play->config->core->layout->n_tiles * TILE_BYTES *
                                node_rates(play, 0)->cores,
                            node_rates(play, 0)->pass);
        break;
    case CST_COMMAND_FILL:
        break;
    }
}

/* What the core must have counted. */
static void count_bytes(struct cst_play *play, const struct cst_play_command *c,
                        const struct cst_command *command)
{
    uint64_t row = 2 * play->config->core->layout->chunks[c->chunk].n_elems;
    uint64_t up = play->moved_up, down = play->moved_down;

    if (c->kind == CST_FLIGHT_LOAD) {
        play->moved_up += copied_bytes(command) * (uint64_t)play->workers[c->rank].stands_for;
    } else if (c->kind == CST_FLIGHT_STAGE) {
        play->moved_down += command->bytes * (uint64_t)play->workers[c->rank].stands_for;
    }
    for (uint32_t i = 0; c->kind == CST_FLIGHT_REDUCE && i < command->n_src; i++) {
        uint32_t rank = slab_rank(&command->src[i]);

        play->moved_down += rank == CST_NONE ? 0 : row * (uint64_t)play->workers[rank].stands_for;
    }
    if (c->kind != CST_FLIGHT_NORM && cst_play_owner(play, c->chunk) == CST_NONE) {
        play->host_up += play->moved_up - up;
        play->host_down += play->moved_down - down;
    }
}

/* -- lanes ---------------------------------------------------------------------------------- */

static void push(struct cst_play_lane *lane, struct cst_play_command *c, bool first)
{
    struct cst_play_command **head = &lane->head[c->class], **tail = &lane->tail[c->class];

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

static struct cst_play_command *pop(struct cst_play_lane *lane)
{
    for (unsigned class = 0; class <= CST_PRIORITY_EVICTION; class ++) {
        struct cst_play_command *c = lane->head[class];

        if (c != NULL) {
            lane->head[class] = c->next;
            return c;
        }
    }
    return NULL;
}

static void run(struct cst_play *play, struct cst_play_lane *lane, struct cst_play_command *c)
{
    lane->running = c;
    lane->n_running++;
    if (!c->begun) {
        c->begun = true;
        c->begin = play->now;
    }
    cst_play_start(play, &c->effort);
}

static void run_next(struct cst_play *play, struct cst_play_lane *lane)
{
    struct cst_play_command *c = lane->n_running < lane->width ? pop(lane) : NULL;

    if (c != NULL) {
        run(play, lane, c);
    }
}

static void enqueue(struct cst_play *play, struct cst_play_command *c)
{
    struct cst_play_lane *lane = &play->engines[c->engine].lanes[c->lane];
    bool interrupts = lane->width == 1 && lane->n_running == 1 && lane->running->class > c->class;

    push(lane, c, false);
    if (interrupts) {
        cst_machine_stop(&play->machine, &lane->running->effort);
        lane->n_running--;
        push(lane, lane->running, true);
    }
    run_next(play, lane);
}

/* -- life ----------------------------------------------------------------------------------- */

static void release(struct cst_play *play, struct cst_play_command *c)
{
    if (--c->n_waits == 0) {
        enqueue(play, c);
    }
}

void cst_play_submit(struct cst_play *play, const struct cst_command *command)
{
    const struct cst_flight *flight = cst_flights_find(&play->core->flights, command->ticket);
    struct cst_play_command *c = add(play, command->ticket);

    if (c == NULL) {
        cst_play_out_of_memory(play);
        return;
    }
    c->kind = flight->kind;
    c->chunk = flight->kind == CST_FLIGHT_NORM ? 0 : flight->chunk;
    c->rank = flight->rank;
    c->engine = command->node;
    c->class = (unsigned)command->priority;
    cost(play, c, command);
    count_bytes(play, c, command);
    c->n_waits = 1;
    for (uint32_t i = 0; i < command->n_after; i++) {
        struct cst_play_command *first = find(play, command->after[i]);

        if (first != NULL && !first->ended) {
            c->next_after[i] = first->after_me;
            first->after_me = command->ticket * CST_COMMAND_MAX_AFTER + i;
            c->n_waits++;
        }
    }
    cst_play_timer(play, play->hop_ns, CST_PLAY_COMMAND, command->ticket);
}

void cst_play_arrived(struct cst_play *play, uint64_t ticket)
{
    release(play, get(play, ticket));
}

static void note_interval(struct cst_play *play, const struct cst_play_command *c)
{
    const struct cst_play_engine *engine = &play->engines[c->engine];
    bool update = c->kind == CST_FLIGHT_UPDATE, reduce = c->kind == CST_FLIGHT_REDUCE;

    if (update || reduce) {
        cst_play_interval(play, update ? CST_LANE_UPDATE : CST_LANE_REDUCE, c->engine, c->chunk,
                          false, c->begin);
    } else if (c->kind == CST_FLIGHT_LOAD || c->kind == CST_FLIGHT_PIECE ||
               c->kind == CST_FLIGHT_STAGE) {
        enum cst_lane_kind lane = c->copied_to > 0              ? CST_LANE_PEER
                                  : c->kind != CST_FLIGHT_STAGE ? CST_LANE_UP
                                                                : CST_LANE_DOWN;

        cst_play_interval(play, lane, engine->rates == NULL ? engine->node : engine->device,
                          c->chunk, false, c->begin);
    }
}

/* What waits for a command of another engine is given out by the daemon, when it hears of the end.
 */
static void wake(struct cst_play *play, const struct cst_play_command *c)
{
    for (uint64_t at = c->after_me; at != 0;) {
        struct cst_play_command *next = get(play, at / CST_COMMAND_MAX_AFTER);

        at = next->next_after[at % CST_COMMAND_MAX_AFTER];
        if (next->engine == c->engine) {
            release(play, next);
        } else {
            cst_play_timer(play, 2 * play->hop_ns, CST_PLAY_COMMAND, next->ticket);
        }
    }
}

void cst_play_ended(struct cst_play *play, struct cst_play_command *c)
{
    struct cst_play_lane *lane = &play->engines[c->engine].lanes[c->lane];

    c->ended = true;
    lane->n_running--;
    note_interval(play, c);
    play->peer_bytes += c->copied_to;
    if (c->kind == CST_FLIGHT_UPDATE) {
        play->updated_at[c->chunk] = play->now;
    }
    run_next(play, lane);
    wake(play, c);
    cst_play_timer(play, play->hop_ns, CST_PLAY_DONE, c->ticket);
}

void cst_play_done(struct cst_play *play, uint64_t ticket)
{
    struct cst_event event = {.kind = CST_EV_DONE, .ticket = ticket};

    drop(play, get(play, ticket));
    cst_play_event(play, &event);
}

/* -- open ----------------------------------------------------------------------------------- */

int cst_play_engines_open(struct cst_play *play)
{
    play->commands_capacity = 256;
    play->commands = calloc(play->commands_capacity, sizeof(*play->commands));
    play->engines = calloc(play->n_engines, sizeof *play->engines);
    if (play->commands == NULL || play->engines == NULL) {
        return CST_ENOMEM;
    }
    for (uint32_t i = 0; i < play->n_engines; i++) {
        struct cst_play_engine *e = &play->engines[i];

        *e = (struct cst_play_engine){.node = i < play->n_nodes ? i : 0, .device = CST_NONE};
        if (i >= play->n_nodes) {
            e->device = i - play->n_nodes;
            e->rates = cst_play_device(play, e->device);
            e->node = e->device * play->n_nodes / (play->n_engines - play->n_nodes);
        }
        for (unsigned lane = 0; lane < CST_PLAY_LANES; lane++) {
            e->lanes[lane].width = 1;
        }
    }
    for (uint32_t rank = 0; play->config->stands_for != NULL && rank < play->world; rank++) {
        uint32_t engine = play->config->core->pools[rank].engine;

        if (engine != 0) {
            play->engines[engine].lanes[CST_PLAY_TEAM].width = play->config->stands_for[rank];
        }
    }
    return CST_OK;
}

void cst_play_engines_close(struct cst_play *play)
{
    for (uint64_t i = 0; play->commands != NULL && i < play->commands_capacity; i++) {
        free(play->commands[i]);
    }
    free(play->commands);
    free(play->engines);
}
