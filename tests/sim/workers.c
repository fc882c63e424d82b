/* SPDX-License-Identifier: Apache-2.0 */
/* Workers: what libcistern and a training loop do. */
#include "tests/sim/sim.h"

#include <inttypes.h>
#include <string.h>

bool workers_lease_block(const struct sim *sim, uint32_t rank, uint32_t block)
{
    const struct worker *w = &sim->workers[rank];

    for (uint32_t c = 0; c < sim->layout.n_chunks; c++) {
        if ((w->weights[c].held && w->weights[c].block == block) ||
            (w->old[c].held && w->old[c].block == block) ||
            (w->grads[c].held && w->grads[c].block == block)) {
            return true;
        }
    }
    return false;
}

static void forget_leases(struct sim *sim, uint32_t rank)
{
    struct worker *w = &sim->workers[rank];

    fills_end(sim, rank);
    memset(w->weights, 0, sizeof w->weights);
    memset(w->grads, 0, sizeof w->grads);
    memset(w->old, 0, sizeof w->old);
}

void worker_ask(struct sim *sim, uint32_t rank, enum cst_event_kind kind, uint32_t chunk,
                uint64_t generation, bool ahead)
{
    sim_ask(sim,
            (struct cst_event){.kind = kind,
                               .rank = rank,
                               .attempt = sim->workers[rank].attempt,
                               .chunk = chunk,
                               .generation = generation,
                               .ahead = ahead},
            (struct pending){.rank = rank, .chunk = chunk});
}

static const struct cst_layout_use *use_of(const struct sim *sim, const struct worker *w,
                                           uint32_t at)
{
    return &sim->layout.uses[w->ops[at]];
}

static bool uses_chunk(const struct cst_layout_use *use, uint32_t chunk)
{
    for (uint32_t k = 0; k < use->n_chunks; k++) {
        if (use->chunks[k] == chunk) {
            return true;
        }
    }
    return false;
}

static bool is_backward(const struct worker *w)
{
    return w->at >= w->n_forward;
}

/* -- an operator ----------------------------------------------------------------------------- */

static void fetch(struct sim *sim, uint32_t rank, uint32_t chunk, bool ahead)
{
    struct worker *w = &sim->workers[rank];

    /* A chunk that is leased is sometimes fetched again, which must be a hit. */
    if ((!w->weights[chunk].held || sim_chance(sim, 500)) && !w->weight_asked[chunk]) {
        w->weight_asked[chunk] = true;
        worker_ask(sim, rank, CST_EV_FETCH_WEIGHT, chunk, 0, ahead);
    }
}

bool worker_has_blocks(const struct sim *sim, uint32_t rank, uint32_t chunk)
{
    return sim->memory.pools[rank].parts[sim->layout.chunks[chunk].size_class].n_blocks > 0;
}

/* True if an operator of the rank uses @chunk. The rank's pool then has a block for @chunk in
 * addition to those of the running operator. It need not have a block for any other chunk. */
static bool has_room(const struct sim *sim, uint32_t rank, uint32_t chunk)
{
    for (uint32_t i = 0; i < sim->model.n_operators; i++) {
        if (cst_model_runs(&sim->model, &sim->model.operators[i], rank) &&
            uses_chunk(&sim->layout.uses[i], chunk)) {
            return true;
        }
    }
    return false;
}

static void begin_op(struct sim *sim, uint32_t rank)
{
    struct worker *w = &sim->workers[rank];
    const struct cst_layout_use *use = use_of(sim, w, w->at);
    uint32_t at = w->at;

    w->begun = true;
    w->wanted = false;
    for (uint32_t k = 0; k < use->n_chunks && w->state == WORKER_RUN; k++) {
        fetch(sim, rank, use->chunks[k], false);
    }
    for (uint32_t k = 0; k < use->n_chunks && is_backward(w) && w->state == WORKER_RUN; k++) {
        uint32_t c = use->chunks[k];

        if ((!w->grads[c].held || sim_chance(sim, 500)) && !w->grad_asked[c] &&
            model_is_trained(sim, c)) {
            w->grad_asked[c] = true;
            worker_ask(sim, rank, CST_EV_FETCH_GRAD, c, 0, false);
        }
    }
    if (!is_backward(w) && w->surprise == SIM_NO_CHUNK && sim_chance(sim, 300)) {
        /* Fetched instead of a chunk of the next operator. */
        w->surprise = sim_below(sim, sim->layout.n_chunks);
        if (!model_holds(sim, w->surprise, rank) || !has_room(sim, rank, w->surprise)) {
            w->surprise = SIM_NO_CHUNK;
        }
    }
    if (w->surprise != SIM_NO_CHUNK) {
        if (w->state == WORKER_RUN) {
            fetch(sim, rank, w->surprise, false);
        }
        return;
    }
    for (uint32_t k = 0; at + 1 < w->n_ops && w->state == WORKER_RUN &&
                         k < use_of(sim, w, at + 1)->n_chunks && sim_chance(sim, 9000);
         k++) {
        uint32_t c = use_of(sim, w, at + 1)->chunks[k];

        if (!uses_chunk(use, c)) {
            fetch(sim, rank, c, true);
            return;
        }
    }
}

static bool op_is_ready(const struct sim *sim, const struct worker *w)
{
    const struct cst_layout_use *use = use_of(sim, w, w->at);

    for (uint32_t k = 0; k < use->n_chunks; k++) {
        uint32_t c = use->chunks[k];

        if (!w->weights[c].held || w->weight_asked[c] ||
            (is_backward(w) && model_is_trained(sim, c) &&
             (!w->grads[c].held || w->grad_asked[c]))) {
            return false;
        }
    }
    return w->surprise == SIM_NO_CHUNK ||
           (w->weights[w->surprise].held && !w->weight_asked[w->surprise]);
}

/* Send WANT for a weight that the operator lacks, whether or not its fetch was a prefetch. */
static bool want(struct sim *sim, uint32_t rank)
{
    struct worker *w = &sim->workers[rank];
    const struct cst_layout_use *use = use_of(sim, w, w->at);
    uint32_t c = use->chunks[sim_below(sim, use->n_chunks)];

    if (w->wanted || !w->weight_asked[c]) {
        return false;
    }
    w->wanted = true;
    worker_ask(sim, rank, CST_EV_WANT, c, 0, false);
    return true;
}

/* The worker reads the weights of a lease. They must be what they were when the lease was
 * granted. */
static void look_at(struct sim *sim, uint32_t rank, uint32_t chunk, const struct lease *lease)
{
    if (memory_read(&sim->memory.blocks[rank][lease->block]) != lease->value) {
        sim_fail(sim, "rank %u: weights of chunk %u changed under its lease", rank, chunk);
    }
}

/* Release a lease as often as it was granted. */
static void give_back(struct sim *sim, uint32_t rank, uint32_t chunk, struct lease *lease)
{
    fill_end(sim, rank, chunk, lease);
    look_at(sim, rank, chunk, lease);
    while (lease->count > 0 && sim->workers[rank].state == WORKER_RUN) {
        if (--lease->count == 0) {
            lease->held = false;
        }
        worker_ask(sim, rank, CST_EV_RELEASE, chunk, lease->generation, false);
    }
}

static void release(struct sim *sim, uint32_t rank, uint32_t chunk)
{
    give_back(sim, rank, chunk, &sim->workers[rank].weights[chunk]);
}

static void hand_in(struct sim *sim, uint32_t rank, uint32_t chunk)
{
    struct lease *lease = &sim->workers[rank].grads[chunk];
    struct cell *cell = &sim->memory.blocks[rank][lease->block];

    if (memory_read(cell) != lease->value) {
        sim_fail(sim, "rank %u: its gradient of chunk %u changed under its lease", rank, chunk);
    }
    lease->held = false;
    sim->handed[chunk][rank][sim->workers[rank].micro] = lease->value;
    worker_ask(sim, rank, CST_EV_HAND_IN, chunk, lease->generation, false);
}

static void end_op(struct sim *sim, uint32_t rank)
{
    struct worker *w = &sim->workers[rank];
    const struct cst_layout_use *use = use_of(sim, w, w->at);
    const struct cst_layout_use *next = w->at + 1 < w->n_ops ? use_of(sim, w, w->at + 1) : NULL;
    bool backward = is_backward(w);
    bool keep = sim_chance(sim, 5000);

    for (uint32_t k = 0; k < use->n_chunks; k++) { /* the worker has computed with these weights */
        fill_end(sim, rank, use->chunks[k], &w->weights[use->chunks[k]]);
    }
    w->begun = false;
    w->at++;
    for (uint32_t k = 0; k < use->n_chunks && w->state == WORKER_RUN; k++) {
        uint32_t c = use->chunks[k];

        if (backward && --w->uses_left[c] == 0 && model_is_trained(sim, c) && !w->keeps[c]) {
            hand_in(sim, rank, c);
        }
        if (w->state == WORKER_RUN && !(keep && next != NULL && uses_chunk(next, c)) &&
            !(sim->loose && sim_chance(sim, sim->p_hold))) {
            release(sim, rank, c);
        }
        if (w->state == WORKER_RUN && w->old[c].held && sim_chance(sim, 5000)) {
            give_back(sim, rank, c, &w->old[c]);
        }
    }
    if (w->surprise != SIM_NO_CHUNK && w->state == WORKER_RUN) {
        if (w->weights[w->surprise].held) {
            release(sim, rank, w->surprise);
        }
        w->surprise = SIM_NO_CHUNK;
    }
}

/* -- a step ---------------------------------------------------------------------------------- */

/* Find the tensors of chunks of which the rank has handed in no gradient, a bit of @bits each. */
static void find_unused(const struct sim *sim, uint32_t rank, uint8_t *bits)
{
    for (uint32_t t = 0; t < sim->model.n_tensors; t++) {
        bool unused = true;

        for (uint32_t m = 0; m < sim->micro_batches; m++) {
            unused = unused && sim->handed[sim->model.tensors[t].chunk][rank][m] == 0;
        }
        bits[t / 8] = (uint8_t)(bits[t / 8] | (unsigned)unused << t % 8);
    }
}

static void step(struct sim *sim, uint32_t rank)
{
    struct worker *w = &sim->workers[rank];
    uint8_t without[SIM_MAX_OPS / 8 + SIM_MAX_CHUNKS] = {0}; /* more than there are tensors */

    for (uint32_t c = 0; c < sim->layout.n_chunks && w->state == WORKER_RUN; c++) {
        if (w->weights[c].held && (!sim->loose || w->old[c].held || sim_chance(sim, 5000))) {
            release(sim, rank, c);
        }
        w->grads[c].held = false; /* a gradient that was not handed in is discarded */
    }
    if (w->state != WORKER_RUN) {
        return;
    }
    fills_end(sim, rank);
    w->state = WORKER_STEPPING;
    find_unused(sim, rank, without);
    sim_ask(sim,
            (struct cst_event){.kind = CST_EV_STEP,
                               .rank = rank,
                               .attempt = w->attempt,
                               .hyper = script_hyper(sim),
                               .without = without,
                               .n_without = sizeof without,
                               .loss = (double)rank + 1.0},
            (struct pending){.rank = rank});
}

/* End a micro-batch that is not the last one. */
static void accumulate(struct sim *sim, uint32_t rank)
{
    struct worker *w = &sim->workers[rank];

    for (uint32_t c = 0; c < sim->layout.n_chunks; c++) {
        w->grads[c].held = false; /* a gradient that was not handed in is discarded */
    }
    w->micro++;
    script_write(sim, rank);
    worker_ask(sim, rank, CST_EV_ACCUMULATE, 0, 0, false);
}

static bool has_asked(const struct sim *sim, uint32_t rank)
{
    const struct worker *w = &sim->workers[rank];

    for (uint32_t c = 0; c < sim->layout.n_chunks; c++) {
        if (w->weight_asked[c] || w->grad_asked[c]) {
            return true;
        }
    }
    return false;
}

/* Send PREPARE. Rank 0 always sends the right learning rate, so that ranks that agree have the
 * right one. */
static void prepare(struct sim *sim, uint32_t rank)
{
    struct cst_hyper hyper = script_hyper(sim);

    sim->workers[rank].prepared = true;
    if (rank == 0) {
        hyper.lr = script_lr(sim);
    }
    sim_ask(sim,
            (struct cst_event){.kind = CST_EV_PREPARE,
                               .rank = rank,
                               .attempt = sim->workers[rank].attempt,
                               .hyper = hyper},
            (struct pending){.rank = rank});
}

static bool run(struct sim *sim, uint32_t rank)
{
    struct worker *w = &sim->workers[rank];

    if (sim_chance(sim, 3000) && fills_turn(sim, rank)) {
        return true;
    }
    if (!w->prepared && w->at >= w->prepare_at) {
        prepare(sim, rank);
        return true;
    }
    if (w->at == w->n_ops) {
        if (has_asked(sim, rank) && !((w->last || sim->loose) && sim_chance(sim, 500))) {
            return false;
        }
        if (!w->last) {
            accumulate(sim, rank);
            return true;
        }
        step(sim, rank);
        return true;
    }
    if (!w->begun) {
        begin_op(sim, rank);
        return true;
    }
    if (!op_is_ready(sim, w)) {
        return sim_chance(sim, 1000) && want(sim, rank);
    }
    end_op(sim, rank);
    return true;
}

static bool attach(struct sim *sim, uint32_t rank)
{
    struct worker *w = &sim->workers[rank];

    if (sim->ending || !sim_chance(sim, sim->p_return)) {
        return false;
    }
    if (w->state == WORKER_HUNG &&
        sim_chance(sim, 3000)) { /* the process whose connection was closed attaches again */
        worker_give_up(w);
        sim->process[rank]++;
        sim_event(sim, (struct cst_event){.kind = CST_EV_ATTACH, .rank = rank});
        return true;
    }
    if (w->state == WORKER_HUNG) { /* the process ends */
        forget_leases(sim, rank);
        w->state = WORKER_GONE;
        sim_event(sim, (struct cst_event){.kind = CST_EV_DEAD, .rank = rank});
        return true;
    }
    lost_move(sim, rank);
    memset(w, 0, sizeof *w);
    w->state = WORKER_IDLE;
    sim->process[rank]++;
    sim_event(sim, (struct cst_event){.kind = CST_EV_ATTACH, .rank = rank});
    return true;
}

bool worker_turn(struct sim *sim, uint32_t rank)
{
    struct worker *w = &sim->workers[rank];

    if (sim->asleep_until[rank] > sim->n_turns) {
        return false;
    }
    switch (w->state) {
    case WORKER_GONE:
    case WORKER_HUNG:
        return attach(sim, rank);
    case WORKER_IDLE:
        if (sim->ending) {
            return false;
        }
        if (w->lost) {
            sim->n_lost_ranks++;
            worker_die(sim, rank);
            return true;
        }
        forget_leases(sim, rank);
        w->state = WORKER_SYNCING;
        sim_ask(sim, (struct cst_event){.kind = CST_EV_SYNC, .rank = rank},
                (struct pending){.rank = rank});
        return true;
    case WORKER_RUN:
        return run(sim, rank);
    case WORKER_SYNCING:
    case WORKER_STEPPING:
        break;
    }
    return false;
}

/* -- the end ---------------------------------------------------------------------------------- */

void worker_die(struct sim *sim, uint32_t rank)
{
    struct worker *w = &sim->workers[rank];
    uint32_t how = sim_below(sim, 4);

    if (w->state == WORKER_GONE || w->state == WORKER_HUNG) {
        return;
    }
    sim->n_deaths++;
    if (how == 0) {
        forget_leases(sim, rank);
        w->state = WORKER_GONE;
        sim_ask(sim, (struct cst_event){.kind = CST_EV_LEAVE, .rank = rank},
                (struct pending){.rank = rank});
    } else if (how == 1) {
        forget_leases(sim, rank);
        w->state = WORKER_GONE;
        sim_event(sim, (struct cst_event){.kind = CST_EV_DEAD, .rank = rank});
    } else {
        w->state = WORKER_HUNG;
        sim_event(sim, (struct cst_event){.kind = CST_EV_HANGUP, .rank = rank});
    }
}
