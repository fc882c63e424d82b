/* SPDX-License-Identifier: Apache-2.0 */
/* cst_lease_fits: whether gradients can be handed in that are not the next ones in the declared
 * order. It simulates the backward passes that have not ended. */
#include "offload/worker/lease.h"

/* How many gradients are open in the simulation, per size class. What it knows of each chunk is in
 * the chunk's fields sim_left and sim_open. */
struct simulation {
    struct cst_leases *leases;
    uint32_t n_open[CST_LEASE_MAX_CLASSES];
};

void cst_lease_count_most(struct cst_leases *leases)
{
    const struct cst_lease_model *model = &leases->model;
    uint32_t n_trained[CST_LEASE_MAX_CLASSES] = {0};

    for (uint32_t c = 0; c < model->n_chunks; c++) {
        n_trained[model->traits[c].size_class] += model->traits[c].trains;
    }
    for (uint32_t i = 0; i < leases->way.n; i++) {
        uint32_t n, in_class[CST_LEASE_MAX_CLASSES] = {0};
        const uint32_t *chunks = cst_lease_op_chunks(leases, leases->way.ops[i], &n);

        for (uint32_t k = 0; k < n; k++) {
            uint32_t class = model->traits[chunks[k]].size_class;

            if (++in_class[class] > leases->most_weights[class]) {
                leases->most_weights[class] = in_class[class];
            }
        }
    }
    leases->always_fits = true;
    for (uint32_t class = 0; class < CST_LEASE_MAX_CLASSES; class ++) {
        if (n_trained[class] + leases->most_weights[class] > model->blocks[class]) {
            leases->always_fits = false;
        }
    }
}

static struct simulation begin_simulation(struct cst_leases *leases)
{
    struct simulation sim = {.leases = leases};

    for (uint32_t c = 0; c < leases->model.n_chunks; c++) {
        struct cst_lease_chunk *chunk = &leases->chunks[c];

        chunk->sim_left = chunk->uses_left;
        chunk->sim_open = chunk->grad.state != CST_LEASE_FREE;
    }
    for (uint32_t class = 0; class < CST_LEASE_MAX_CLASSES; class ++) {
        sim.n_open[class] = leases->n_open_in[class];
    }
    return sim;
}

/* Play the backward pass of @op. Return whether the pool has blocks for it. */
static bool simulate_op(struct simulation *sim, uint32_t op)
{
    const struct cst_lease_model *model = &sim->leases->model;
    const struct cst_lease_operator *o = &model->operators[op];
    uint32_t n, n_weights[CST_LEASE_MAX_CLASSES] = {0};
    const uint32_t *chunks = cst_lease_op_chunks(sim->leases, op, &n);

    for (uint32_t i = 0; i < n; i++) {
        const struct cst_lease_trait *trait = &model->traits[chunks[i]];
        struct cst_lease_chunk *chunk = &sim->leases->chunks[chunks[i]];

        n_weights[trait->size_class]++;
        sim->n_open[trait->size_class] += trait->trains && !chunk->sim_open;
        chunk->sim_open = trait->trains;
    }
    for (uint32_t class = 0; class < CST_LEASE_MAX_CLASSES; class ++) {
        if (n_weights[class] > 0 && n_weights[class] + sim->n_open[class] > model->blocks[class]) {
            return false;
        }
    }
    for (uint32_t i = 0; !sim->leases->op_done[op] && i < o->n_tensors; i++) {
        uint32_t c = model->tensor_chunk[o->tensors[i]];
        struct cst_lease_chunk *chunk = &sim->leases->chunks[c];

        if (--chunk->sim_left == 0 && chunk->sim_open) {
            chunk->sim_open = false;
            sim->n_open[model->traits[c].size_class]--;
        }
    }
    return true;
}

/* Return whether the weights of any operator find blocks beside the open gradients. */
static bool has_blocks_for_weights(const struct simulation *sim)
{
    for (uint32_t class = 0; class < CST_LEASE_MAX_CLASSES; class ++) {
        uint32_t most = sim->leases->most_weights[class];

        if (most > 0 && sim->n_open[class] + most > sim->leases->model.blocks[class]) {
            return false;
        }
    }
    return true;
}

bool cst_lease_fits(struct cst_leases *leases, uint32_t op)
{
    struct simulation sim;

    if (leases->always_fits) {
        return true;
    }
    sim = begin_simulation(leases);
    if (!simulate_op(&sim, op) || !has_blocks_for_weights(&sim)) {
        return false;
    }
    for (uint32_t i = leases->way.n; i-- > 0;) {
        uint32_t next = leases->way.ops[i];

        if (next != op && !leases->op_done[next] && !simulate_op(&sim, next)) {
            return false;
        }
    }
    return true;
}
