/* SPDX-License-Identifier: Apache-2.0 */
/* The work of a command: what it moves, which lane and link it uses, and which cores and memory.
 * The rates of updates are those of the machine's engines and devices; everything else follows from
 * bytes. Device updates take their time on the accelerator, whatever else it computes. */
#include "offload/layout/matrices.h"
#include "offload/simulate/simulate.h"

/* Bytes per element of the sum for which `reduce` is measured: two contributions and the result. */
#define REDUCE_BYTES 6
#define TILE_BYTES 16  /* Bytes per tile of the table that a norm reads. */
#define COPY_THREADS 4 /* Maximum number of threads of a node's copy thread pool. */

static const struct cst_rates_node *node_rates(const struct cst_sim *sim, uint32_t node)
{
    const struct cst_rates *rates = sim->config->rates;

    return &rates->nodes[node < rates->n_nodes ? node : rates->n_nodes - 1];
}

static double ns(double amount, double per_s)
{
    return per_s > 0 ? amount / per_s * 1e9 : 0;
}

/* Bytes that a copy writes. Weights that are made on the way are read as fp32. */
static uint64_t copied_bytes(const struct cst_command *command)
{
    return cst_command_converts(command->kind) ? 2 * command->n_elems : command->bytes;
}

/* Set the memory traffic of the effort to @bytes in effort->left, limited to what the node can
 * do. */
static void use_memory(const struct cst_sim *sim, struct cst_effort *effort, double bytes)
{
    double pass = node_rates(sim, effort->node)->pass / 1e9;

    effort->bytes = effort->left > 0 ? bytes / effort->left : 0;
    effort->bytes = pass > 0 && effort->bytes > pass ? pass : effort->bytes;
}

static double lane_cores(const struct cst_sim *sim, uint32_t node)
{
    uint32_t cores = node_rates(sim, node)->cores;

    return cores == 0 ? 1 : cores < COPY_THREADS ? cores : COPY_THREADS;
}

static uint32_t slab_rank(const struct cst_place *place)
{
    return place->segment < CST_SIM_POOL_SEGMENT
               ? CST_NONE
               : (place->segment - CST_SIM_POOL_SEGMENT) / CST_SIM_POOL_STRIDE;
}

/* Cost of a copy between two ranks' devices or within one: for the represented ranks other than
 * @owner. */
static void cost_peer_copy(struct cst_sim *sim, struct cst_sim_command *c, double bytes,
                           uint32_t owner)
{
    const struct cst_sim_engine *engine = &sim->engines[c->engine];
    const struct cst_sim_worker *worker = &sim->workers[c->rank];
    double remote = owner == c->rank ? 1 - 1 / worker->stands_for : 1;
    const struct cst_rates_device *d = engine->rates;

    c->copied_to = (uint64_t)(remote * bytes * worker->stands_for);
    c->effort.left = ns((1 - remote) * 2 * bytes, d->memory) + d->copy_latency_s * 1e9;
    if (d->peer > 0) {
        c->effort.left += ns(remote * bytes, d->peer);
    } else if (remote > 0) { /* Down one link and up the other one. */
        c->effort.left += ns(remote * bytes, d->up);
        c->effort.link = CST_LINK_UP;
    }
}

/* Cost of a copy of @bytes by the engine of a node. */
static void cost_node_copy(struct cst_sim *sim, struct cst_sim_command *c, double bytes)
{
    const uint32_t node = sim->engines[c->engine].node;
    const struct cst_rates_node *n = node_rates(sim, node);

    c->lane = CST_SIM_UP;
    c->effort.left = ns(bytes, n->copy > 0 ? n->copy : n->pass / 2);
    c->effort.cores = lane_cores(sim, node);
    use_memory(sim, &c->effort, 2 * bytes);
}

static void cost_copy(struct cst_sim *sim, struct cst_sim_command *c,
                      const struct cst_command *command)
{
    const struct cst_sim_engine *engine = &sim->engines[c->engine];
    bool up = c->kind != CST_FLIGHT_SPILL && c->kind != CST_FLIGHT_LANDING;
    double bytes = (double)copied_bytes(command);

    c->lane = up ? CST_SIM_UP : CST_SIM_DOWN;
    if (engine->rates == NULL) {
        cost_node_copy(sim, c,
                       bytes * sim->workers[c->rank].stands_for *
                           (cst_command_converts(command->kind) ? 1.5 : 1));
        return;
    }
    if (c->kind == CST_FLIGHT_PIECE && slab_rank(&command->src[0]) != CST_NONE) {
        cost_peer_copy(sim, c, bytes, slab_rank(&command->src[0]));
        return;
    }
    c->effort.device = engine->device;
    c->effort.link = up ? CST_LINK_UP : CST_LINK_DOWN;
    c->effort.left = ns(bytes, up ? engine->rates->up : engine->rates->down) +
                     engine->rates->copy_latency_s * 1e9;
    c->effort.bytes = bytes * sim->workers[c->rank].stands_for / c->effort.left;
}

/* Number of contributions that a source in host memory stands for. If the only rank represents
 * several, which compute on devices, a node's engine finds one of each in landings. */
static double count_landed(const struct cst_sim *sim, const struct cst_sim_engine *engine)
{
    bool lands = engine->rates == NULL && sim->world == 1 && sim->workers[0].device != CST_NONE;

    return lands ? sim->workers[0].stands_for : 1;
}

/* Number of contributions; *peers and *host: those on other GPUs and in host memory. */
static double count_sources(const struct cst_sim *sim, const struct cst_sim_engine *engine,
                            const struct cst_command *command, double *peers, double *host)
{
    double n = 0;

    *peers = 0;
    *host = 0;
    for (uint32_t i = 0; i < command->n_src; i++) {
        uint32_t rank = slab_rank(&command->src[i]);
        double ranks = rank == CST_NONE ? count_landed(sim, engine) : sim->workers[rank].stands_for;

        n += ranks;
        if (rank == CST_NONE || sim->workers[rank].device == CST_NONE) {
            *host += ranks;
        } else {
            bool own = sim->workers[rank].device == engine->device;

            /* The other ranks that it represents have devices of their own. */
            *peers += own ? ranks - 1 : ranks;
        }
    }
    return n;
}

static void cost_reduce(struct cst_sim *sim, struct cst_sim_command *c,
                        const struct cst_command *command)
{
    const struct cst_sim_engine *engine = &sim->engines[c->engine];
    const struct cst_layout *layout = sim->config->core->layout;
    const struct cst_layout_chunk *chunk = &layout->chunks[c->chunk];
    double elems = (double)chunk->n_elems;
    double grad = (double)cst_layout_grad_bytes(layout, chunk) / elems;
    double source = (double)cst_dtype_bytes(chunk->dtype);
    double sum = grad * (command->accumulate ? 2 : 1); /* Accumulating also reads the sum. */
    double peers, host, n = count_sources(sim, engine, command, &peers, &host);
    const struct cst_rates_node *node = node_rates(sim, engine->node);
    double bytes = elems * (source * n + sum), up, down;

    c->lane = CST_SIM_TEAM;
    if (engine->rates == NULL) {
        c->effort.left =
            node->reduce > 0 ? ns(bytes / REDUCE_BYTES, node->reduce) : ns(bytes, node->pass);
        c->effort.cores = node->cores;
        use_memory(sim, &c->effort, bytes);
        return;
    }
    /* Reads and writes use both directions of the link at the same time. */
    down = ns(elems * grad, engine->rates->down);
    up = ns(elems * (sum - grad + source * host), engine->rates->up) +
         ns(source * elems * peers,
            engine->rates->peer > 0 ? engine->rates->peer : engine->rates->up);
    c->effort.device = engine->device;
    c->effort.link = CST_LINK_DOWN;
    c->effort.left = (up > down ? up : down) + engine->rates->copy_latency_s * 1e9;
    c->copied_to = (uint64_t)(source * elems * peers);
    use_memory(sim, &c->effort, elems * (sum + source * host));
    if (engine->lanes[CST_SIM_TEAM].width >
        1) { /* The represented ranks have links of their own. */
        c->effort.link = CST_LINK_NONE;
    }
}

/* Additional work of an update that makes the sum, as a share: it reads the first contribution
 * instead of the gradient. @bytes: those of the update of an element of type @dtype. */
static double sum_share(const struct cst_sim *sim, const struct cst_command *command,
                        enum cst_dtype dtype, double bytes)
{
    double n = 0;

    for (uint32_t i = 0; i < command->n_src; i++) {
        uint32_t rank = slab_rank(&command->src[i]);

        n += rank == CST_NONE ? 1 : sim->workers[rank].stands_for;
    }
    return n > 1 ? (double)cst_dtype_bytes(dtype) * (n - 1) / bytes : 0;
}

/* Elements of the job's optimizer that take as long as the update of @chunk without products. Rates
 * of updates are those of bf16 tensors, and time is proportional to bytes. */
static double update_elems(const struct cst_layout *layout, const struct cst_layout_chunk *chunk)
{
    const struct cst_layout_states states = cst_layout_states_of(&layout->states, chunk->muon);

    return (double)chunk->n_elems * cst_layout_update_bytes(&states, 2, chunk->dtype) /
           cst_layout_update_bytes(&layout->states, 2, CST_BF16);
}

/* Time of the products of @chunk, which Muon updates, on its node. */
static double products_ns(const struct cst_sim *sim, const struct cst_layout_chunk *chunk)
{
    const struct cst_core_config *core = sim->config->core;
    const struct cst_rates_node *node = node_rates(sim, chunk->node);
    uint32_t cores = node->cores > 0 ? node->cores : 1;

    return ns(cst_matrices_core_flops(core->layout, core->model, chunk, cores),
              node->products / cores);
}

static void cost_update(struct cst_sim *sim, struct cst_sim_command *c,
                        const struct cst_command *command)
{
    const struct cst_layout *layout = sim->config->core->layout;
    const struct cst_layout_chunk *chunk = &layout->chunks[c->chunk];
    const struct cst_layout_states states = cst_layout_states_of(&layout->states, chunk->muon);
    double elems = (double)chunk->n_elems, work = update_elems(layout, chunk);
    double bytes = cst_layout_update_bytes(&states, layout->grad_bytes, chunk->dtype);
    double sums = sum_share(sim, command, chunk->dtype, bytes);

    c->lane = CST_SIM_TEAM;
    c->effort.left = ns(work * (1 + sums), node_rates(sim, c->effort.node)->update) +
                     (chunk->muon ? products_ns(sim, chunk) : 0);
    c->effort.cores = node_rates(sim, c->effort.node)->cores;
    use_memory(sim, &c->effort, elems * bytes * (1 + sums));
}

/* -- device updates --------------------------------------------------------------------------- */

/* True if the copy stays within the accelerator: a kept gradient, or states whose home it is. */
static bool stays_there(const struct cst_sim *sim, const struct cst_sim_command *c)
{
    return c->kind == CST_FLIGHT_KEEP ||
           (c->kind == CST_FLIGHT_STATES &&
            cst_tier_is_apart(sim->config->core->layout->chunks[c->chunk].tier));
}

/* True if the copy brings rows to a buffer, false if it brings results back. */
static bool brings(const struct cst_sim_command *c)
{
    return c->kind == CST_FLIGHT_DEVICE_UPDATE || c->kind == CST_FLIGHT_AHEAD;
}

static void cost_reservation_copy(struct cst_sim *sim, struct cst_sim_command *c,
                                  const struct cst_command *command)
{
    const struct cst_sim_engine *engine = &sim->engines[c->engine];
    bool up = brings(c);
    double bytes = (double)command->bytes;

    if (engine->rates == NULL) {
        cost_node_copy(sim, c, bytes);
        return;
    }
    if (engine->is_drive) {
        c->effort.node = sim->config->core->layout->chunks[c->chunk].node;
    }
    c->lane = up ? CST_SIM_UP : CST_SIM_DOWN;
    c->effort.left = engine->rates->copy_latency_s * 1e9;
    if (!engine->is_drive && stays_there(sim, c)) {
        c->lane = CST_SIM_UP; /* The same lane as in cste_device_lane. */
        c->effort.left += ns(2 * bytes, engine->rates->memory);
        return;
    }
    c->effort.device = engine->device;
    c->effort.link = up ? CST_LINK_UP : CST_LINK_DOWN;
    c->effort.left += ns(bytes, up ? engine->rates->up : engine->rates->down);
    use_memory(sim, &c->effort, bytes);
}

static void cost_device_update(struct cst_sim *sim, struct cst_sim_command *c)
{
    const struct cst_layout *layout = sim->config->core->layout;
    const struct cst_layout_chunk *chunk = &layout->chunks[c->chunk];
    const struct cst_rates_device *rates = sim->engines[c->engine].rates;

    c->lane = CST_SIM_DEVICE_UPDATES;
    c->effort.left = ns(update_elems(layout, chunk), rates->update) +
                     ns(chunk->muon_flops, cst_rates_products(rates));
}

static bool is_of_reservation(const struct cst_sim_command *c)
{
    return brings(c) || c->kind == CST_FLIGHT_UPDATE || c->kind == CST_FLIGHT_STATES ||
           c->kind == CST_FLIGHT_KEEP;
}

/* -- kinds of commands ------------------------------------------------------------------------ */

void cst_sim_cost(struct cst_sim *sim, struct cst_sim_command *c, const struct cst_command *command)
{
    c->effort.node = sim->engines[c->engine].node;
    c->effort.owner = c;
    switch (command->kind) {
    case CST_COMMAND_COPY:
    case CST_COMMAND_SET_MASTER:
    case CST_COMMAND_ROUND: /* Of weights, into a block. */
    case CST_COMMAND_ENCODE:
    case CST_COMMAND_DECODE:
    case CST_COMMAND_JOIN:
        if (is_of_reservation(c)) {
            cost_reservation_copy(sim, c, command);
        } else {
            cost_copy(sim, c, command);
        }
        break;
    case CST_COMMAND_REDUCE:
        cost_reduce(sim, c, command);
        break;
    case CST_COMMAND_UPDATE:
        if (c->kind == CST_FLIGHT_UPDATE_ON_DEVICE && sim->engines[c->engine].rates != NULL) {
            cost_device_update(sim, c);
        } else {
            cost_update(sim, c, command);
        }
        break;
    case CST_COMMAND_NORM:
        c->lane = CST_SIM_TEAM;
        c->effort.cores = 1;
        c->effort.left =
            ns((double)sim->config->core->layout->n_tiles * TILE_BYTES * node_rates(sim, 0)->cores,
               node_rates(sim, 0)->pass);
        break;
    case CST_COMMAND_FILL:
    case CST_COMMAND_FLUSH:
        break;
    }
}

/* True if the command makes a sum; an update can, too. */
static bool is_sum(const struct cst_sim_command *c, const struct cst_command *command)
{
    return c->kind == CST_FLIGHT_REDUCE || command->kind == CST_COMMAND_UPDATE;
}

/* Count the bytes of a copy of a device reservation. */
static void count_reservation_copy(struct cst_sim *sim, const struct cst_sim_command *c,
                                   uint64_t bytes)
{
    const struct cst_sim_engine *engine = &sim->engines[c->engine];

    if (engine->is_drive) {
        *(brings(c) ? &sim->disk_read : &sim->disk_written) += bytes;
        sim->disk_ahead += c->kind == CST_FLIGHT_AHEAD ? bytes : 0;
    } else if (engine->rates != NULL && !stays_there(sim, c)) {
        *(brings(c) ? &sim->states_up : &sim->states_down) += bytes;
    }
}

void cst_sim_count(struct cst_sim *sim, const struct cst_sim_command *c,
                   const struct cst_command *command)
{
    uint64_t bytes = cst_layout_weight_bytes(&sim->config->core->layout->chunks[c->chunk]);

    if (c->kind == CST_FLIGHT_LOAD) {
        sim->moved_up += copied_bytes(command) * (uint64_t)sim->workers[c->rank].stands_for;
    } else if (c->kind == CST_FLIGHT_SPILL || c->kind == CST_FLIGHT_LANDING) {
        sim->moved_down += command->bytes * (uint64_t)sim->workers[c->rank].stands_for;
    }
    if (command->kind == CST_COMMAND_COPY && is_of_reservation(c)) {
        count_reservation_copy(sim, c, command->bytes);
    }
    for (uint32_t i = 0; is_sum(c, command) && i < command->n_src; i++) {
        uint32_t rank = slab_rank(&command->src[i]);

        sim->moved_down += rank == CST_NONE ? 0 : bytes * (uint64_t)sim->workers[rank].stands_for;
    }
}
