/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses what a worker does in a micro-batch: the operators, their order, and what is left out. */
#include "tests/sim/sim.h"

#include <string.h>

static void shuffle(struct sim *sim, uint32_t *v, uint32_t n)
{
    for (uint32_t i = n; i > 1; i--) {
        uint32_t k = sim_below(sim, i);
        uint32_t x = v[i - 1];

        v[i - 1] = v[k];
        v[k] = x;
    }
}

/* True if the rank does not run the operator: it is not in the operator's group, or leaves it out.
 * Operators of sparse patterns are left out often, others sometimes. */
static bool skips(struct sim *sim, uint32_t rank, uint32_t op)
{
    if (!cst_model_runs(&sim->model, &sim->model.operators[op], rank)) {
        return true;
    }
    return model_may_skip(sim, op) &&
           sim_chance(sim, model_is_sparse(sim, op) ? sim->p_idle : sim->p_skip);
}

uint64_t script_seed(const struct sim *sim, uint32_t rank)
{
    const struct worker *w = &sim->workers[rank];

    return memory_mix(memory_mix(memory_mix(sim->options.seed, rank), w->step), w->micro);
}

/* Forward runs over the operators, backward in the reverse order. If any order can run, the order
 * is sometimes random. */
void script_write(struct sim *sim, uint32_t rank)
{
    struct worker *w = &sim->workers[rank];
    bool skipped[SIM_MAX_OPS] = {false};
    uint64_t rng = sim->rng;
    bool idle;

    /* The generator is seeded by rank, step and micro-batch, so that a repeated attempt is
     * equal. */
    if (sim->steady) {
        sim->rng = script_seed(sim, rank);
    }
    idle = sim_chance(sim, 400); /* the rank runs no operator in this micro-batch */
    memset(w->uses_left, 0, sizeof w->uses_left);
    w->last = w->micro + 1 == sim->micro_batches || sim_chance(sim, 300);
    for (uint32_t c = 0; c < sim->layout.n_chunks; c++) {
        w->keeps[c] = sim->loose && sim_chance(sim, 300);
    }
    w->n_ops = 0;
    w->at = 0;
    w->begun = false;
    w->surprise = SIM_NO_CHUNK;
    for (uint32_t i = 0; i < sim->model.n_operators; i++) {
        skipped[i] = skips(sim, rank, i) || idle;
        if (!skipped[i]) {
            w->ops[w->n_ops++] = i;
        }
    }
    w->n_forward = w->n_ops;
    for (uint32_t i = sim->model.n_operators; i-- > 0;) {
        if (!skipped[i]) {
            w->ops[w->n_ops++] = i;
            for (uint32_t k = 0; k < sim->layout.uses[i].n_chunks; k++) {
                w->uses_left[sim->layout.uses[i].chunks[k]]++;
            }
        }
    }
    if ((sim->loose || (sim->plain && (sim->world <= 2 || sim->grad_fp32))) &&
        sim_chance(sim, 4000)) {
        shuffle(sim, w->ops, w->n_forward);
        shuffle(sim, w->ops + w->n_forward, w->n_ops - w->n_forward);
    }
    sim->rng = sim->steady ? rng : sim->rng;
    w->prepare_at = sim_chance(sim, 8000) ? 0 : sim_below(sim, w->n_ops + 1);
    w->prepared = w->micro > 0 || !sim_chance(sim, sim->p_prepare);
}

float script_lr(const struct sim *sim)
{
    return 0.1f / (float)(sim->step + 1);
}

struct cst_hyper script_hyper(struct sim *sim)
{
    return (struct cst_hyper){
        .lr = !sim_is_calm(sim) && sim_chance(sim, sim->p_mismatch) ? 0.3f : script_lr(sim),
        .beta1 = 0.9f,
        .beta2 = 0.99f,
        .eps = 1e-8f,
        .clip_norm = sim->clip_norm,
        .grad_scale = 0.5f};
}
