/* SPDX-License-Identifier: Apache-2.0 */
/* Exposed update time: how much later a step is because of its updates.
 *
 * Every event has two times. The first is when it happened. The second, its instant, is when it
 * would have happened if updates took no time and nothing else were different. The core computes
 * the instant from what it observes:
 *
 *   - A command begins when it has been issued, the commands that it waits for have ended, and its
 *     engine has finished earlier commands. Its duration is the same on both clocks, except that
 *     updates take no time on the second one.
 *   - The time that a worker spends between two requests is the same on both clocks. An answer for
 *     which the worker waits comes when the block would be ready.
 *   - A commit comes when the last rank would have asked for it and the last sum would be made.
 *
 *   happened  commit | UPDATE a ------ | COPY a | COPY b | compute a | compute b | commit
 *   instant   commit | COPY a | COPY b | compute a | compute b | commit
 *                                                              |<-- exposed ---->|
 *
 * The exposed time of a step is the increase, from commit to commit, of the time by which a commit
 * lags behind its instant. It includes the wait for updates, for the copies after them, and for
 * what these copies delay on the same link. It does not include what the rank would have waited for
 * anyway.
 *
 * Three things are estimated:
 *
 *   - A copy or sum that is slowed down by an update, because both use the host's memory, would
 *     take as long as it does when no update is in flight.
 *   - Copies that overtook another copy, which waited for its update, would have been made after
 *     it.
 *   - A GPU computes while its worker goes on. The end of its work is predicted from earlier
 *     durations, and corrected whenever the worker gives something back.
 *
 * Slower computation, while updates use the same cores, is not counted, because it is not a
 * wait. */
#include "offload/books/instant.h"

#include "offload/core/core_state.h"

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Tell the pools the time of the event, for their blocks. */
static void tell_pools(struct cst_core *core)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        cst_pool_set_time(&core->ranks[rank].pool, (struct cst_moment){core->now, core->clock.now});
    }
}

/* -- events ----------------------------------------------------------------------------------- */

static bool has_stream(const struct cst_rank *rank)
{
    return cst_tier_is_apart(rank->pool.tier);
}

/* The worker acts now. The time since the last known event of the worker, or of its device for
 * which it may have waited, is the same on both clocks. */
static void move_thread(struct cst_core *core, struct cst_rank *rank)
{
    struct cst_moment from = rank->thread;

    if (has_stream(rank) && rank->stream.at > from.at) {
        from.at = rank->stream.at;
        from.instant = later(from.instant, rank->stream.instant);
    }
    rank->thread.at = core->now;
    rank->thread.instant = earlier(from.instant + (core->now - from.at), core->now);
}

/* Time that the device works on chunk @c, as far as is known. A backward pass takes at least twice
 * as long as a forward pass, so half of it limits the time of the forward pass. */
static uint64_t work_of(const struct cst_core *core, uint32_t c, bool backward)
{
    const uint64_t *work = core->chunks[c].times.work_ns;
    uint64_t half = work[true] / 2;

    return backward || half == 0 || (work[false] > 0 && work[false] < half) ? work[backward] : half;
}

/* Learn the duration: the minimum of the observations, which increases slowly. A device that waited
 * seems to take longer. */
static void learn_work(struct cst_core *core, uint32_t c, bool backward, uint64_t took)
{
    uint64_t *work = &core->chunks[c].times.work_ns[backward];

    if (took > 0 && (*work == 0 || took < *work)) {
        *work = took;
    } else if (took > *work) {
        *work += (took - *work) / 64;
    }
}

/* The device has finished the work for which block @b was granted. If that is earlier or later than
 * predicted, the difference is the same on both clocks. Exception: if the device had nothing left
 * to do when the worker got an answer that it had waited for, both continued from that answer. */
static void move_stream(struct cst_core *core, struct cst_rank *rank, uint32_t b)
{
    const struct cst_block *block = &rank->pool.blocks[b];
    bool backward = rank->pool.grad_of[block->chunk] != CST_NONE;
    struct cst_moment end = block->end;
    uint64_t shift = rank->shift - block->shift, off;

    end.at += shift;
    end.instant += shift;
    learn_work(core, block->chunk, backward, core->now - later(rank->stream.at, block->granted.at));
    if (core->now > end.at && rank->resumed.at > end.at) {
        end.instant = later(end.instant, rank->resumed.instant) + (core->now - rank->resumed.at);
    } else {
        off = core->now - end.at; /* Modulo 2^64, because the difference can be negative. */
        rank->shift += off;
        rank->device.at += off;
        rank->device.instant += off;
        end.instant += off;
    }
    rank->stream.at = core->now;
    rank->stream.instant = earlier(end.instant, core->now);
}

static void give_back(struct cst_core *core, struct cst_rank *rank, uint32_t b)
{
    if (has_stream(rank)) {
        if (b != CST_NONE) {
            move_stream(core, rank, b);
        }
        core->clock.now = rank->stream.instant;
    } else {
        move_thread(core, rank);
        core->clock.now = rank->thread.instant;
    }
}

/* The worker begins to use what it has fetched ahead before it asks for more. */
static void ask(struct cst_core *core, struct cst_rank *rank)
{
    move_thread(core, rank);
    rank->thread.instant = earlier(later(rank->thread.instant, rank->ahead_instant), core->now);
    core->clock.now = rank->thread.instant;
}

/* Nothing that the rank or its device did before counts any more. */
static void begin_anew(const struct cst_core *core, struct cst_rank *rank)
{
    rank->thread = rank->stream = rank->device = (struct cst_moment){core->now, core->clock.now};
    rank->ahead_instant = 0;
}

void cst_instant_begin(struct cst_core *core, const struct cst_event *event)
{
    struct cst_rank *rank = event->rank < core->world ? &core->ranks[event->rank] : NULL;

    core->clock.now = core->now > core->clock.lag ? core->now - core->clock.lag : 0;
    switch (event->kind) {
    case CST_EV_FETCH_WEIGHT:
    case CST_EV_FETCH_GRAD:
        ask(core, rank);
        break;
    case CST_EV_STEP:
        ask(core, rank);
        core->clock.commit = later(core->clock.commit, core->clock.now);
        break;
    case CST_EV_WANT:
    case CST_EV_PREFETCH:
    case CST_EV_EVICT:
    case CST_EV_PREPARE:
        move_thread(core, rank);
        core->clock.now = rank->thread.instant;
        break;
    case CST_EV_RELEASE:
        give_back(core, rank,
                  rank->pool.grad_of[event->chunk] == CST_NONE ? rank->pool.weight_of[event->chunk]
                                                               : CST_NONE);
        break;
    case CST_EV_HAND_IN:
        give_back(core, rank, rank->pool.grad_of[event->chunk]);
        break;
    case CST_EV_ACCUMULATE:
    case CST_EV_NEXT:
        give_back(core, rank, CST_NONE);
        break;
    case CST_EV_ATTACH:
    case CST_EV_SYNC:
        begin_anew(core, rank);
        break;
    case CST_EV_RESUME: /* The ranks have waited for this event, not for updates. */
        for (uint32_t r = 0; core->pause.holds && r < core->world; r++) {
            begin_anew(core, &core->ranks[r]);
        }
        break;
    case CST_EV_UNKEEP:
    case CST_EV_SAVE_END:
        if (core->commit.held_ns != 0 ||
            core->versions.held_ns != 0) { /* The commit waits for this event, not for updates. */
            core->clock.commit = later(core->clock.commit, core->clock.now);
        }
        break;
    case CST_EV_HANGUP:
    case CST_EV_DEAD:
    case CST_EV_SHUT_OUT:
    case CST_EV_LEAVE:
    case CST_EV_SAVE:
    case CST_EV_KEEP:
    case CST_EV_PAUSE:
    case CST_EV_RESTORE:
    case CST_EV_MISSED:
    case CST_EV_REVIVE:
    case CST_EV_READ:
    case CST_EV_WRITE:
    case CST_EV_CANCEL:
    case CST_EV_NODE_DOWN:
    case CST_EV_DONE: /* cst_instant_done handles it. */
    case CST_EV_TICK:
    case CST_EV_SEALED:
    case CST_EV_MACHINES:
    case CST_EV_TOLD:
        break;
    }
    tell_pools(core);
}

/* Predict that the device works with @block, which was just granted, after all work granted before.
 * In a backward pass the block of the gradient represents both. */
static void foresee(const struct cst_core *core, struct cst_rank *rank, struct cst_block *block)
{
    bool backward = rank->begun == CST_BEGUN_WRITING;
    uint64_t work =
        backward && block->state != CST_BLOCK_OPEN ? 0 : work_of(core, block->chunk, backward);

    rank->device.at = later(rank->device.at, block->granted.at) + work;
    rank->device.instant = later(rank->device.instant, block->granted.instant) + work;
    rank->device.instant = earlier(rank->device.instant, rank->device.at);
    block->end = rank->device;
    block->shift = rank->shift;
}

void cst_instant_granted(struct cst_core *core, uint32_t rank, uint32_t b, bool ahead)
{
    struct cst_rank *r = &core->ranks[rank];
    struct cst_block *block = &r->pool.blocks[b];
    uint64_t instant = later(block->last.instant, core->clock.now);

    if (ahead) {
        r->ahead_instant = later(r->ahead_instant, instant);
    } else {
        bool waited = core->now > r->thread.at;

        if (block->state == CST_BLOCK_RESIDENT) {
            r->weight_wait_ns += core->now - r->thread.at;
        }

        r->thread.instant = earlier(later(r->thread.instant, instant), core->now);
        r->thread.at = core->now;
        r->resumed = waited ? r->thread : r->resumed;
    }
    block->granted = (struct cst_moment){core->now, instant};
    if (has_stream(r)) {
        foresee(core, r, block);
    }
}

/* -- commands --------------------------------------------------------------------------------- */

static bool is_update(const struct cst_flight *flight)
{
    return flight->kind == CST_FLIGHT_UPDATE || flight->kind == CST_FLIGHT_STATES ||
           flight->kind == CST_FLIGHT_UPDATE_ON_DEVICE ||
           flight->kind == CST_FLIGHT_DEVICE_UPDATE || flight->kind == CST_FLIGHT_KEEP;
}

/* The lane of a command. An engine executes the commands of a lane one after the other. The copies
 * of a node's engine share one lane for both directions. */
static enum cst_clock_lane lane_of(const struct cst_core *core, const struct cst_flight *flight)
{
    switch (flight->kind) {
    case CST_FLIGHT_REDUCE:
    case CST_FLIGHT_NORM:
    case CST_FLIGHT_UPDATE_ON_DEVICE:
        return CST_CLOCK_TEAM;
    case CST_FLIGHT_UPDATE:
    case CST_FLIGHT_STATES:
        return flight->down ? CST_CLOCK_DOWN : CST_CLOCK_TEAM;
    case CST_FLIGHT_LANDING:
        return CST_CLOCK_DOWN;
    case CST_FLIGHT_SPILL:
        return flight->engine < core->n_nodes ? CST_CLOCK_UP : CST_CLOCK_DOWN;
    case CST_FLIGHT_LOAD:
    case CST_FLIGHT_PIECE:
    case CST_FLIGHT_DEVICE_UPDATE:
    case CST_FLIGHT_KEEP:
    case CST_FLIGHT_READ:
    case CST_FLIGHT_WRITE:
    case CST_FLIGHT_PART:
    case CST_FLIGHT_AHEAD:
    case CST_FLIGHT_PARTIAL:
        break;
    }
    return CST_CLOCK_UP;
}

static struct cst_moment *get_lane(struct cst_core *core, uint32_t engine, enum cst_clock_lane lane)
{
    return &core->clock.lanes[engine < CST_CLOCK_ENGINES ? engine : CST_CLOCK_ENGINES][lane];
}

static uint64_t *idle_of(struct cst_core *core, uint32_t engine)
{
    return &core->clock.idle_ns[engine < CST_CLOCK_ENGINES ? engine : CST_CLOCK_ENGINES];
}

void cst_instant_issued(struct cst_core *core, struct cst_flight *flight)
{
    flight->issued = (struct cst_moment){core->now, core->clock.now};
    if (flight->kind == CST_FLIGHT_LOAD) {
        const struct cst_block *block = &core->ranks[flight->rank].pool.blocks[flight->block];

        flight->issued.instant = later(flight->issued.instant, block->last.instant);
    } else if (flight->kind == CST_FLIGHT_NORM) {
        flight->issued.instant = later(flight->issued.instant, core->clock.commit);
    } else if (flight->kind == CST_FLIGHT_REDUCE) {
        uint64_t end = get_lane(core, flight->engine, CST_CLOCK_TEAM)->instant;

        flight->idle = *idle_of(core, flight->engine) + later(core->clock.now, end) - end;
    }
}

/* The end of what the command waited for, as far as the core remembers it. */
static struct cst_moment before(const struct cst_core *core, const struct cst_flight *flight)
{
    const struct cst_chunk *chunk = &core->chunks[flight->chunk];

    switch (flight->kind) {
    case CST_FLIGHT_LOAD:
        return chunk->times.updated;
    case CST_FLIGHT_REDUCE:
        return (struct cst_moment){
            later(chunk->times.update_end.at, chunk->times.landed.at),
            later(chunk->times.update_end.instant, chunk->times.landed.instant)};
    case CST_FLIGHT_UPDATE:
        return chunk->times.sum_end;
    case CST_FLIGHT_PIECE:
        return core->ranks[flight->peer].pool.blocks[flight->peer_block].last;
    case CST_FLIGHT_SPILL:
    case CST_FLIGHT_LANDING:
    case CST_FLIGHT_NORM:
    case CST_FLIGHT_STATES:
    case CST_FLIGHT_UPDATE_ON_DEVICE:
    case CST_FLIGHT_DEVICE_UPDATE:
    case CST_FLIGHT_KEEP:
    case CST_FLIGHT_READ:
    case CST_FLIGHT_WRITE:
    case CST_FLIGHT_PART:
    case CST_FLIGHT_AHEAD:
    case CST_FLIGHT_PARTIAL:
        break;
    }
    return (struct cst_moment){0, 0};
}

/* Copies into the same pool that were issued before @flight, and that it overtook because they
 * waited for their updates, would have been made first. Assume that they would take as long per
 * element as @flight did (@took). */
static void let_pass(struct cst_core *core, const struct cst_flight *flight, uint64_t begin,
                     uint64_t took, struct cst_moment *lane)
{
    struct cst_pool *pool = &core->ranks[flight->rank].pool;
    const struct cst_block *mine = &pool->blocks[flight->block];
    const struct cst_part *part = &pool->parts[mine->part];
    double each = (double)took / (double)core->layout->chunks[flight->chunk].n_elems;

    for (uint32_t b = part->head[CST_BLOCK_LOADING]; b != CST_NONE; b = pool->blocks[b].next) {
        struct cst_block *block = &pool->blocks[b];
        const struct cst_chunk *chunk = &core->chunks[block->chunk];
        const struct cst_flight *other;

        if (b == flight->block || block->would_end != 0 || block->ticket > flight->ticket ||
            (block->foreseen && !mine->foreseen) ||
            (chunk->update.weight_ticket == 0 && chunk->times.updated.at <= begin)) {
            continue;
        }
        other = cst_flights_find(&core->flights, block->ticket);
        if (other != NULL && other->kind == CST_FLIGHT_LOAD) {
            lane->instant = later(lane->instant, other->issued.instant) +
                            (uint64_t)(each * (double)core->layout->chunks[block->chunk].n_elems);
            block->would_end = lane->instant;
        }
    }
}

/* The duration of the copy or sum @flight, which began at @begin, if no update used the same
 * memory: that of an earlier one while no update was in flight. Copies of backward passes are kept
 * apart, because gradients are copied down at the same time. */
static uint64_t undisturbed(struct cst_core *core, const struct cst_flight *flight, uint64_t begin)
{
    uint64_t *quiet = core->chunks[flight->chunk].times.quiet_ns, took = core->now - begin;
    bool copy = flight->kind == CST_FLIGHT_LOAD;
    bool backward = copy && core->ranks[flight->rank].begun == CST_BEGUN_WRITING;
    uint64_t *same = &quiet[!copy      ? CST_QUIET_SUM
                            : backward ? CST_QUIET_BACKWARD
                                       : CST_QUIET_FORWARD];

    if (core->exposure.n_updates == 0 && core->exposure.quiet_since <= begin) {
        *same = *same == 0 || took < *same ? took : *same + (took - *same) / 16;
        return took;
    }
    took = *same > 0 ? earlier(took, *same) : took;
    return copy && !backward && quiet[CST_QUIET_BACKWARD] > 0
               ? earlier(took, quiet[CST_QUIET_BACKWARD])
               : took;
}

static uint64_t end_load(struct cst_core *core, const struct cst_flight *flight, uint64_t begin,
                         uint64_t ready, struct cst_moment *lane)
{
    struct cst_block *block = &core->ranks[flight->rank].pool.blocks[flight->block];
    uint64_t took = undisturbed(core, flight, begin), end;

    if (block->would_end != 0) {
        end = later(block->would_end, ready);
        block->would_end = 0;
        return end;
    }
    let_pass(core, flight, begin, took, lane);
    lane->instant = later(ready, lane->instant) + took;
    return lane->instant;
}

/* The end of a sum. If it waited for the update before it, it would have been made in the time
 * since then in which its engine had no other sum. */
static uint64_t end_sum(struct cst_core *core, const struct cst_flight *flight, uint64_t begin,
                        uint64_t ready, struct cst_moment *lane)
{
    uint64_t took = undisturbed(core, flight, begin), filled = 0;
    uint64_t *idle = idle_of(core, flight->engine);

    if (ready >= lane->instant) {
        *idle += ready - lane->instant;
        lane->instant = ready + took;
        return lane->instant;
    }
    if (*idle > flight->idle) {
        filled = earlier(*idle - flight->idle, took);
        *idle -= filled;
    }
    lane->instant += took - filled;
    return filled == took ? ready + took : lane->instant;
}

static void move_lane(struct cst_core *core, const struct cst_flight *flight,
                      struct cst_moment *lane)
{
    struct cst_moment after = before(core, flight);
    uint64_t begin = earlier(later(later(flight->issued.at, after.at), lane->at), core->now);
    uint64_t ready = later(flight->issued.instant, after.instant);

    if (is_update(flight)) {
        core->clock.now = ready;
    } else if (flight->kind == CST_FLIGHT_LOAD) {
        core->clock.now = end_load(core, flight, begin, ready, lane);
    } else if (flight->kind == CST_FLIGHT_REDUCE) {
        core->clock.now = end_sum(core, flight, begin, ready, lane);
    } else {
        lane->instant = later(ready, lane->instant) + (core->now - begin);
        core->clock.now = lane->instant;
    }
    core->clock.now = earlier(core->clock.now, core->now);
    lane->at = core->now;
    lane->instant = earlier(lane->instant, core->now);
}

void cst_instant_done(struct cst_core *core, const struct cst_flight *flight)
{
    struct cst_moment end;

    move_lane(core, flight, get_lane(core, flight->engine, lane_of(core, flight)));
    end = (struct cst_moment){core->now, core->clock.now};
    tell_pools(core);
    if (flight->kind == CST_FLIGHT_LOAD || flight->kind == CST_FLIGHT_PIECE) {
        cst_block_note_time(&core->ranks[flight->rank].pool, flight->block);
    }
    if (flight->kind == CST_FLIGHT_LANDING) {
        core->chunks[flight->chunk].times.landed = end;
    }
    if (flight->kind == CST_FLIGHT_UPDATE) {
        core->chunks[flight->chunk].times.update_end = end;
    }
    if (flight->kind == CST_FLIGHT_UPDATE &&
        core->chunks[flight->chunk].update.weight_ticket == flight->ticket) {
        core->chunks[flight->chunk].times.updated = end;
    }
    if (flight->kind == CST_FLIGHT_REDUCE ||
        core->chunks[flight->chunk].gradient.reduce_ticket == flight->ticket) {
        core->chunks[flight->chunk].times.sum_end = end;
        core->clock.commit = later(core->clock.commit, end.instant);
    }
}

/* -- commits ---------------------------------------------------------------------------------- */

void cst_instant_committed(struct cst_core *core)
{
    uint64_t lag = core->now - core->clock.now;

    core->clock.last_exposed_ns = lag > core->clock.lag ? lag - core->clock.lag : 0;
    core->clock.total_exposed_ns += core->clock.last_exposed_ns;
    core->clock.lag = lag;
    core->clock.commit = core->clock.now;
    for (uint32_t rank = 0; rank < core->world; rank++) {
        struct cst_rank *r = &core->ranks[rank];

        r->thread = r->stream = r->device = (struct cst_moment){core->now, core->clock.now};
        r->ahead_instant = 0;
    }
}

const char *cst_instant_check(const struct cst_core *core)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        const struct cst_rank *r = &core->ranks[rank];

        if (r->thread.instant > r->thread.at || r->stream.instant > r->stream.at) {
            return "without updates nothing is later";
        }
    }
    return core->clock.lag > core->now ? "lag" : NULL;
}
