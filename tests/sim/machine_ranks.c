/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of the machines: forward over all chunks, backward with gradients, micro-batch by
 * micro-batch, then the step. With stages: one unit after the other, then the step. */
#include "tests/sim/machines.h"

#include <inttypes.h>
#include <string.h>

enum asked { WEIGHT, GRAD, RELEASE, HAND_IN, END, STEP, SYNC, NEXT };

static void turn(struct machines *sim, uint32_t m, uint32_t rank, enum moment_kind kind,
                 uint64_t delay)
{
    moments_push(&sim->moments, (struct moment){.at = sim->now + delay,
                                                .kind = kind,
                                                .node = m,
                                                .rank = rank,
                                                .what = ++sim->machines[m].ranks[rank].turn});
}

static void go(struct machines *sim, uint32_t m, uint32_t rank, uint32_t most)
{
    turn(sim, m, rank, MOMENT_GO, machines_delay(sim, most));
}

/* Fill in what the STEP of @rank says of tensors without a gradient. Sometimes the rank discards
 * one that others have. */
static void say_unused(struct machines *sim, uint32_t m, uint32_t rank, struct cst_event *step)
{
    struct mrank *r = &sim->machines[m].ranks[rank];
    uint32_t number = values_rank(sim, m, rank);

    memset(r->without, 0, sizeof r->without);
    memset(r->discarded, 0, sizeof r->discarded);
    for (uint32_t t = 0; t < sim->n_chunks; t++) {
        uint32_t c = sim->model.tensors[t].chunk;
        bool lies = !sim->harmless && machines_below(sim, 40) == 0 && values_trained(sim, c) &&
                    values_can_lie(sim, r->step, number, c);

        r->lies = r->lies || lies;
        r->without[t / 8] =
            (uint8_t)(r->without[t / 8] | (unsigned)values_is_without(sim, r->step, number, c)
                                              << t % 8);
        r->discarded[t / 8] =
            (uint8_t)(r->discarded[t / 8] |
                      (unsigned)(lies || values_discards(sim, r->step, number, c)) << t % 8);
    }
    step->without = r->without;
    step->n_without = (sim->n_chunks + 7) / 8;
    step->discarded = r->discarded;
    step->n_discarded = (sim->n_chunks + 7) / 8;
}

/* True if the last unit of @r ends with the loss of its micro-batch. */
static bool ends_micro(const struct machines *sim, const struct mrank *r)
{
    return r->unit.number != 0 && r->unit.backward && r->unit.stage + 1 == sim->n_stages;
}

/* Ask the core for something. Returns false if the rank does something else meanwhile. */
static bool ask(struct machines *sim, uint32_t m, uint32_t rank, enum cst_event_kind kind,
                enum asked what, uint32_t chunk, uint64_t generation)
{
    struct mrank *r = &sim->machines[m].ranks[rank];
    uint64_t turns = r->turn;
    struct cst_event event = {.kind = kind,
                              .rank = rank,
                              .tag = ++sim->tag << MACHINES_TAG_SHIFT | rank << 4 | what,
                              .attempt = r->attempt,
                              .chunk = chunk,
                              .generation = generation};

    if (kind == CST_EV_STEP) {
        event.hyper = (struct cst_hyper){.lr = (double)(r->step + 1), .grad_scale = 1};
        event.loss = values_loss(r->step, values_rank(sim, m, rank));
        r->lies = false;
        if (sim->skips) {
            say_unused(sim, m, rank, &event);
        }
    }
    if (kind == CST_EV_NEXT) {
        event.names_unit = true;
        event.unit = r->unit.number;
        event.loss = ends_micro(sim, r) ? values_loss(r->step, values_micro(sim, m, r->unit.micro))
                                        : -1; /* It does not count. */
    }
    machines_feed(sim, m, event);
    return r->turn == turns;
}

/* -- operators -------------------------------------------------------------------------------- */

/* The operators of the rank's unit, or all: from *first on, forward and backward. Returns their
 * number. */
static uint32_t operators_of(const struct machines *sim, const struct mrank *r, uint32_t *first)
{
    uint32_t n = 0;

    *first = 0;
    if (sim->n_stages == 0) {
        return sim->n_operators;
    }
    while (sim->model.operators[*first].stage != r->unit.stage) {
        (*first)++;
    }
    while (*first + n < sim->n_operators &&
           sim->model.operators[*first + n].stage == r->unit.stage) {
        n++;
    }
    return n;
}

/* True if the rank has done all operators of its pass. */
static bool is_through(const struct machines *sim, const struct mrank *r)
{
    uint32_t first, n = operators_of(sim, r, &first);

    return r->at == (sim->n_stages > 0 && !r->unit.backward ? n : 2 * n);
}

static bool is_backward(const struct machines *sim, const struct mrank *r)
{
    uint32_t first;

    return r->at >= operators_of(sim, r, &first);
}

/* The chunk of the operator that the rank is at. */
static uint32_t chunk_at(const struct machines *sim, const struct mrank *r)
{
    uint32_t first, n = operators_of(sim, r, &first);
    uint32_t at = first + (r->at < n ? r->at : 2 * n - 1 - r->at);

    return sim->model.tensors[sim->tensors[at]].chunk;
}

/* Who contributes to a chunk now: the arguments of values_hands_in. */
struct part {
    uint32_t number, micro;
};

static struct part part_of(const struct machines *sim, uint32_t m, const struct mrank *r,
                           uint32_t rank)
{
    return sim->n_stages > 0 ? (struct part){values_micro(sim, m, r->unit.micro), r->unit.stage}
                             : (struct part){values_rank(sim, m, rank), r->micro};
}

static bool has_grad(const struct machines *sim, uint32_t m, const struct mrank *r, uint32_t rank)
{
    struct part part = part_of(sim, m, r, rank);

    return is_backward(sim, r) &&
           values_hands_in(sim, r->step, part.number, part.micro, chunk_at(sim, r));
}

static void begin_operator(struct machines *sim, uint32_t m, uint32_t rank)
{
    struct mrank *r = &sim->machines[m].ranks[rank];
    uint32_t chunk = chunk_at(sim, r);
    bool grad = has_grad(sim, m, r, rank);

    r->waiting = 1 + (uint32_t)grad;
    if (ask(sim, m, rank, CST_EV_FETCH_WEIGHT, WEIGHT, chunk, 0) && grad) {
        (void)ask(sim, m, rank, CST_EV_FETCH_GRAD, GRAD, chunk, 0);
    }
}

/* Sometimes a rank leaves in good order, or gives the step up and syncs. */
static bool wavers(struct machines *sim, uint32_t m, uint32_t rank)
{
    struct mrank *r = &sim->machines[m].ranks[rank];
    uint32_t lot =
        sim->harmless || sim->told + 1 >= sim->options.n_steps ? 1 : machines_below(sim, 700);

    if (lot == 0 && r->at == 0 && (r->micro == 0 || sim->n_stages > 0)) {
        ranks_return(sim, m, rank, machines_delay(sim, 500000));
        machines_feed(sim, m, (struct cst_event){.kind = CST_EV_LEAVE, .rank = rank});
        return true;
    }
    if (lot == 0) {
        r->state = MRANK_IDLE;
        r->first_tag = sim->tag + 1;
        go(sim, m, rank, 10000);
    }
    return lot == 0;
}

/* The rank has done all operators: end the unit, the micro-batch or the step. */
static void end_pass(struct machines *sim, uint32_t m, uint32_t rank)
{
    struct mrank *r = &sim->machines[m].ranks[rank];

    if (sim->n_stages > 0) {
        r->has_unit = false;
        sim->totals->units++;
        (void)ask(sim, m, rank, CST_EV_NEXT, NEXT, 0, 0);
    } else if (r->micro + 1 == sim->micro_batches) {
        r->state = MRANK_STEPS;
        (void)ask(sim, m, rank, CST_EV_STEP, STEP, 0, 0);
    } else if (ask(sim, m, rank, CST_EV_ACCUMULATE, END, 0, 0)) {
        r->micro++;
        r->at = 0;
        go(sim, m, rank, 5000);
    }
}

static void run(struct machines *sim, uint32_t m, uint32_t rank)
{
    struct mrank *r = &sim->machines[m].ranks[rank];

    if (r->state == MRANK_IDLE) {
        r->state = MRANK_SYNCING;
        (void)ask(sim, m, rank, CST_EV_SYNC, SYNC, 0, 0);
        return;
    }
    if (sim->n_stages > 0 && !r->has_unit) {
        (void)ask(sim, m, rank, CST_EV_NEXT, NEXT, 0, 0);
        return;
    }
    while (!is_through(sim, r) && !values_uses(sim, r->step, rank, chunk_at(sim, r))) {
        r->at++;
    }
    if (wavers(sim, m, rank)) {
        return;
    }
    if (is_through(sim, r)) {
        end_pass(sim, m, rank);
    } else {
        begin_operator(sim, m, rank);
    }
}

static void computed(struct machines *sim, uint32_t m, uint32_t rank)
{
    struct machine *at = &sim->machines[m];
    struct mrank *r = &at->ranks[rank];
    uint32_t chunk = chunk_at(sim, r);
    struct part part = part_of(sim, m, r, rank);
    uint64_t weights = memory_read(&at->blocks[rank][r->weight_block]);

    if (weights != sim->weights[r->step][chunk]) {
        machines_fail(sim,
                      "rank %u of machine %u: weights %" PRIx64 " of chunk %u in step %" PRIu64
                      ", not %" PRIx64,
                      rank, m, weights, chunk, r->step, sim->weights[r->step][chunk]);
    }
    if (has_grad(sim, m, r, rank)) {
        at->blocks[rank][r->grad_block].value =
            values_contribution(sim, r->step, part.number, part.micro, chunk, weights);
        if (!ask(sim, m, rank, CST_EV_HAND_IN, HAND_IN, chunk, r->grad)) {
            return;
        }
    }
    if (ask(sim, m, rank, CST_EV_RELEASE, RELEASE, chunk, r->weight)) {
        r->at++;
        go(sim, m, rank, 5000);
    }
}

static void come(struct machines *sim, uint32_t m, uint32_t rank)
{
    if (sim->machines[m].n_writes > 0) {
        turn(sim, m, rank, MOMENT_RETURN, 50000); /* First the weights are written. */
        return;
    }
    /* After a hang-up the process that attaches is the same one, or that one is dead. */
    if (sim->machines[m].ranks[rank].hung_up && machines_below(sim, 2) == 0) {
        machines_feed(sim, m, (struct cst_event){.kind = CST_EV_DEAD, .rank = rank});
    }
    sim->machines[m].ranks[rank].hung_up = false;
    sim->machines[m].ranks[rank].state = MRANK_IDLE;
    machines_feed(sim, m, (struct cst_event){.kind = CST_EV_ATTACH, .rank = rank});
    go(sim, m, rank, 10000);
}

void ranks_turn(struct machines *sim, const struct moment *moment)
{
    if (sim->machines[moment->node].core == NULL ||
        sim->machines[moment->node].ranks[moment->rank].turn != moment->what) {
        return;
    }
    if (moment->kind == MOMENT_GO) {
        run(sim, moment->node, moment->rank);
    } else if (moment->kind == MOMENT_COMPUTED) {
        computed(sim, moment->node, moment->rank);
    } else {
        come(sim, moment->node, moment->rank);
    }
}

void ranks_return(struct machines *sim, uint32_t m, uint32_t rank, uint64_t delay)
{
    sim->machines[m].ranks[rank].state = MRANK_GONE;
    sim->machines[m].ranks[rank].hung_up = false;
    sim->machines[m].ranks[rank].first_tag = sim->tag + 1;
    turn(sim, m, rank, MOMENT_RETURN, delay);
}

/* The connection of a rank ends, and its process goes on. If others wait for what it does, they can
 * get other memory. */
static void hang_up(struct machines *sim, uint32_t m, uint32_t rank)
{
    sim->totals->hangups++;
    sim->machines[m].ranks[rank].hung_up = true;
    machines_feed(sim, m, (struct cst_event){.kind = CST_EV_HANGUP, .rank = rank});
    if (cst_core_held_up_by(sim->machines[m].core, rank) && machines_below(sim, 2) == 0) {
        sim->totals->shut_out++;
        machines_feed(sim, m, (struct cst_event){.kind = CST_EV_SHUT_OUT, .rank = rank});
    }
}

void ranks_die(struct machines *sim, uint32_t m, uint32_t rank)
{
    if (sim->machines[m].core == NULL || sim->machines[m].ranks[rank].state == MRANK_GONE) {
        return;
    }
    sim->totals->deaths++;
    ranks_return(sim, m, rank, machines_delay(sim, 2000000));
    if (machines_below(sim, 3) == 0) {
        hang_up(sim, m, rank);
    } else {
        machines_feed(sim, m, (struct cst_event){.kind = CST_EV_DEAD, .rank = rank});
    }
}

/* -- answers ---------------------------------------------------------------------------------- */

static void start(struct machines *sim, uint32_t m, uint32_t rank, uint64_t step)
{
    struct mrank *r = &sim->machines[m].ranks[rank];

    r->step = step;
    r->micro = r->at = 0;
    r->has_unit = false;
    r->unit.number = 0;
    r->state = step < sim->options.n_steps ? MRANK_RUNS : MRANK_RESTS;
    if (r->state == MRANK_RUNS) {
        go(sim, m, rank, 50000);
    }
}

/* The attempt is over: sync again. */
static void give_up(struct machines *sim, uint32_t m, uint32_t rank)
{
    struct mrank *r = &sim->machines[m].ranks[rank];

    sim->totals->interrupted++;
    r->state = MRANK_IDLE;
    r->first_tag = sim->tag + 1;
    go(sim, m, rank, 100000);
}

static void stepped(struct machines *sim, uint32_t m, uint32_t rank, const struct cst_reply *reply)
{
    struct mrank *r = &sim->machines[m].ranks[rank];
    bool skipped = sim->adam[r->step + 1] == sim->adam[r->step];

    if (r->lies) {
        machines_fail(sim,
                      "rank %u of machine %u has discarded a gradient that others have, and step "
                      "%" PRIu64 " is committed",
                      rank, m, r->step);
    }
    if (reply->step != r->step + 1 || reply->skipped != skipped ||
        reply->loss != values_mean_loss(sim, r->step)) {
        machines_fail(sim, "rank %u of machine %u: step %" PRIu64 " after %" PRIu64 ", loss %g",
                      rank, m, reply->step, r->step, reply->loss);
    }
    sim->told = reply->step > sim->told ? reply->step : sim->told;
    start(sim, m, rank, reply->step);
}

/* The rank has got a unit, or all are done. */
static void take_unit(struct machines *sim, uint32_t m, uint32_t rank,
                      const struct cst_reply *reply)
{
    struct mrank *r = &sim->machines[m].ranks[rank];

    if (!reply->has_unit) {
        r->state = MRANK_STEPS;
        (void)ask(sim, m, rank, CST_EV_STEP, STEP, 0, 0);
        return;
    }
    r->unit = reply->unit;
    r->has_unit = true;
    r->at = 0;
    go(sim, m, rank, 5000);
}

static uint32_t block_of(const struct machine *at, const struct cst_reply *reply)
{
    return (uint32_t)(reply->offset / (2 * at->layout.capacity));
}

void ranks_answer(struct machines *sim, uint32_t m, const struct cst_reply *reply)
{
    uint32_t rank = (uint32_t)(reply->tag >> 4) & 31;
    enum asked what = (enum asked)(reply->tag & 15);
    struct machine *at = &sim->machines[m];
    struct mrank *r = &at->ranks[rank];

    if ((reply->tag & 15) == MACHINES_TAG_WRITE) {
        at->n_writes--;
        replace_written(sim, m);
        return;
    }
    if ((reply->tag & 15) == MACHINES_TAG_READ) {
        machines_read(sim, m, reply);
        return;
    }
    if (reply->tag >> MACHINES_TAG_SHIFT < r->first_tag || r->state == MRANK_GONE) {
        return;
    }
    if (sim->failed && at->record.failed != 0) {
        r->state = MRANK_RESTS;
        return;
    }
    if (reply->status == CST_ELOST && what == SYNC) {
        r->state = MRANK_IDLE; /* Until the machines change, it would be told the same again. */
        turn(sim, m, rank, MOMENT_GO, 3000000);
        return;
    }
    sim->totals->lies += r->lies && reply->status == CST_EMISMATCH;
    if (reply->status == CST_EPEERDIED || reply->status == CST_ECANCELLED ||
        (reply->status == CST_EMISMATCH && sim->skips && !sim->harmless)) {
        give_up(sim, m, rank);
        return;
    }
    if (reply->status != CST_OK) {
        machines_fail(sim, "rank %u of machine %u: request %d: %s", rank, m, (int)what,
                      reply->err.text);
    }
    if (what == SYNC && reply->step < sim->told) {
        machines_fail(sim,
                      "machine %u goes on at step %" PRIu64 ", but step %" PRIu64 " was committed",
                      m, reply->step, sim->told);
    }
    if (what == SYNC) {
        sim->totals->rejoined += sim->n > 1 && r->attempt == reply->attempt;
        r->attempt = reply->attempt;
        start(sim, m, rank, reply->step);
    } else if (what == NEXT) {
        take_unit(sim, m, rank, reply);
    } else if (what == STEP) {
        stepped(sim, m, rank, reply);
    } else if (what == WEIGHT) {
        r->weight = reply->generation;
        r->weight_block = block_of(at, reply);
    } else if (what == GRAD) {
        r->grad = reply->generation;
        r->grad_block = block_of(at, reply);
    }
    if ((what == WEIGHT || what == GRAD) && --r->waiting == 0) {
        turn(sim, m, rank, MOMENT_COMPUTED, machines_delay(sim, 60000));
    }
}
