/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/record.h"

#include <stdlib.h>

/* Number of commands that are tracked, powers of two: at the beginning, and at most. The maximum is
 * nine commands for each of 100 000 chunks with device updates. If more are under way, the oldest
 * are lost. */
enum { FEW = 1 << 12, MOST = 1 << 20, MOST_COMMANDS = 9 };

struct issued {
    uint64_t ticket; /* 0: the slot is free. */
    uint64_t asked;  /* ns */
    uint64_t bytes;
    uint32_t chunk;
    uint16_t kind;
    uint16_t rank;
};

struct cstd_record {
    uint64_t n;    /* Number of intervals ever added. */
    uint64_t step; /* Number of steps committed. */
    /* ns: the last commit, or the sync if it was later; 0: neither has happened. */
    uint64_t began;
    /* ns: when number `step` was committed; 0: this is not known. */
    uint64_t committed;
    /* Table of the commands under way; the low bits of the ticket are the slot; owned. */
    struct issued *in_flight;
    uint64_t n_slots; /* Length of in_flight. */
    uint64_t n_used;  /* Number of slots of in_flight in use. */
    uint64_t n_kept;  /* Length of ring. */
    struct cstd_record_interval ring[];
};

/* The intervals of a step: in each micro-batch each rank leases the weights of a chunk twice and
 * its gradient once, and its weights are loaded once. Engines sum and update the chunk. */
enum { STEPS = 64, OF_RANK = 4, OF_ENGINES = 3, MEMORY_SHARE = 64 };

uint32_t cstd_record_intervals(const struct cstd_record_job *job)
{
    const uint64_t n_micro = job->micro_batches > 1 ? job->micro_batches : 1;
    const uint64_t of_chunk = OF_RANK * n_micro * job->n_ranks + OF_ENGINES;
    const uint64_t most = job->bytes / MEMORY_SHARE / sizeof(struct cstd_record_interval);
    uint64_t n = STEPS * of_chunk * job->n_chunks;

    n = n < most ? n : most;
    n = n < CSTD_RECORD_MOST ? n : CSTD_RECORD_MOST;
    return (uint32_t)(n > CSTD_RECORD_FEWEST ? n : CSTD_RECORD_FEWEST);
}

static uint64_t ring_bytes(const struct cstd_record_job *job)
{
    return sizeof(struct cstd_record) +
           (uint64_t)cstd_record_intervals(job) * sizeof(struct cstd_record_interval);
}

struct cstd_record *cstd_record_open(const struct cstd_record_job *job)
{
    struct cstd_record *record = calloc(1, ring_bytes(job));

    if (record != NULL) {
        record->n_kept = cstd_record_intervals(job);
        record->n_slots = FEW;
        record->in_flight = calloc(record->n_slots, sizeof *record->in_flight);
        if (record->in_flight == NULL) {
            free(record);
            record = NULL;
        }
    }
    return record;
}

uint64_t cstd_record_bytes(const struct cstd_record_job *job)
{
    uint64_t n_slots = FEW;

    while (n_slots < MOST && n_slots < (uint64_t)job->n_chunks * MOST_COMMANDS) {
        n_slots *= 2;
    }
    return ring_bytes(job) + n_slots * sizeof(struct issued);
}

void cstd_record_close(struct cstd_record *record)
{
    if (record != NULL) {
        free(record->in_flight);
    }
    free(record);
}

static struct issued *slot_of(const struct cstd_record *record, uint64_t ticket)
{
    return &record->in_flight[ticket & (record->n_slots - 1)];
}

/* Double the table. Tickets that are in different slots stay in different slots. False: the table
 * has its maximum size, or there is no memory. */
static bool grow(struct cstd_record *record)
{
    struct issued *old = record->in_flight;
    uint64_t n_old = record->n_slots;
    struct issued *more = n_old < MOST ? calloc(2 * n_old, sizeof *more) : NULL;

    if (more == NULL) {
        return false;
    }
    record->in_flight = more;
    record->n_slots = 2 * n_old;
    for (uint64_t i = 0; i < n_old; i++) {
        if (old[i].ticket != 0) {
            *slot_of(record, old[i].ticket) = old[i];
        }
    }
    free(old);
    return true;
}

static struct cstd_record_interval *add(struct cstd_record *record,
                                        const struct cstd_record_interval *interval)
{
    struct cstd_record_interval *at = &record->ring[record->n++ % record->n_kept];

    *at = *interval;
    return at;
}

/* Add an interval of the step that was under way when it ended. An engine's report can come after
 * the commit that followed its work. */
static void add_in_step(struct cstd_record *record, const struct cstd_record_interval *interval)
{
    const bool before = record->committed != 0 && interval->ended <= record->committed;

    add(record, interval)->step = record->step - (before ? 1 : 0);
}

void cstd_record_issue(struct cstd_record *record, enum cstd_record_kind kind,
                       const struct cst_command *command, uint32_t rank, uint64_t now)
{
    if (record == NULL) {
        return;
    }
    /* A job's tickets are consecutive. Two of them meet in a slot only if one is still under way
     * when the numbers have gone round the table. A few slow commands are no reason to grow. */
    while (slot_of(record, command->ticket)->ticket != 0 && 2 * record->n_used > record->n_slots &&
           grow(record)) {
    }
    record->n_used += slot_of(record, command->ticket)->ticket == 0;
    *slot_of(record, command->ticket) =
        (struct issued){.ticket = command->ticket,
                        .asked = now,
                        .bytes = command->bytes,
                        .chunk = kind == CSTD_RECORD_NORM ? UINT32_MAX : command->chunk,
                        .kind = (uint16_t)kind,
                        .rank = (uint16_t)rank};
}

void cstd_record_done(struct cstd_record *record, uint64_t ticket, uint32_t engine, uint64_t began,
                      uint64_t ended)
{
    struct issued *issued = record != NULL ? slot_of(record, ticket) : NULL;

    if (issued == NULL || issued->ticket != ticket) {
        return;
    }
    add_in_step(record, &(struct cstd_record_interval){.kind = issued->kind,
                                                       .number = engine,
                                                       .chunk = issued->chunk,
                                                       .rank = issued->rank,
                                                       .bytes = issued->bytes,
                                                       .asked = issued->asked,
                                                       .began = began,
                                                       .ended = ended > began ? ended : began});
    issued->ticket = 0;
    record->n_used--;
}

void cstd_record_over(struct cstd_record *record, uint64_t ticket, uint64_t now)
{
    if (record != NULL && slot_of(record, ticket)->ticket == ticket) {
        cstd_record_done(record, ticket, 0, slot_of(record, ticket)->asked, now);
    }
}

void cstd_record_wait(struct cstd_record *record, uint32_t rank, uint32_t chunk, bool grad,
                      bool ahead, uint64_t asked, uint64_t now)
{
    if (record != NULL) {
        add_in_step(record, &(struct cstd_record_interval){.kind = CSTD_RECORD_WAIT,
                                                           .number = rank,
                                                           .chunk = chunk,
                                                           .ahead = ahead,
                                                           .grad = grad,
                                                           .rank = CSTD_RECORD_NO_RANK,
                                                           .asked = asked,
                                                           .began = asked,
                                                           .ended = now});
    }
}

void cstd_record_lease(struct cstd_record *record, uint32_t rank, uint32_t chunk, bool grad,
                       uint64_t bytes, uint64_t granted, uint64_t now)
{
    if (record != NULL) {
        add_in_step(record, &(struct cstd_record_interval){.kind = CSTD_RECORD_LEASE,
                                                           .number = rank,
                                                           .chunk = chunk,
                                                           .grad = grad,
                                                           .bytes = bytes,
                                                           .rank = CSTD_RECORD_NO_RANK,
                                                           .asked = granted,
                                                           .began = granted,
                                                           .ended = now});
    }
}

void cstd_record_begin(struct cstd_record *record, uint64_t step, uint64_t now)
{
    if (record != NULL) {
        record->committed = step == record->step ? record->committed : 0;
        record->step = step;
        record->began = now;
    }
}

void cstd_record_commit(struct cstd_record *record, uint64_t step, uint64_t exposed_ns,
                        uint64_t now, uint64_t *ns)
{
    uint64_t took = 0;

    if (record != NULL && step > record->step) {
        took = record->began != 0 ? now - record->began : 0;
        if (took != 0) {
            (void)add(record, &(struct cstd_record_interval){.kind = CSTD_RECORD_STEP,
                                                             .chunk = UINT32_MAX,
                                                             .rank = CSTD_RECORD_NO_RANK,
                                                             .exposed_ns = exposed_ns,
                                                             .step = step,
                                                             .asked = record->began,
                                                             .began = record->began,
                                                             .ended = now});
        }
        record->step = step;
        record->began = record->committed = now;
    }
    if (ns != NULL) {
        *ns = took;
    }
}

void cstd_record_closing(struct cstd_record *record, uint32_t rank, uint64_t asked)
{
    if (record != NULL && record->committed > asked) {
        add_in_step(record, &(struct cstd_record_interval){.kind = CSTD_RECORD_COMMIT,
                                                           .number = rank,
                                                           .chunk = UINT32_MAX,
                                                           .rank = CSTD_RECORD_NO_RANK,
                                                           .asked = asked,
                                                           .began = asked,
                                                           .ended = record->committed});
    }
}

void cstd_record_range(const struct cstd_record *record, uint64_t *first, uint64_t *end)
{
    *end = record != NULL ? record->n : 0;
    *first = record != NULL && *end > record->n_kept ? *end - record->n_kept : 0;
}

const struct cstd_record_interval *cstd_record_get(const struct cstd_record *record, uint64_t i)
{
    return &record->ring[i % record->n_kept];
}

enum place { ARENA, POOL, RESERVATION, OUTSIDE };

/* Return where in a job's memory segment @id is. The ids are in no order, because the slabs of a
 * pool that has moved are younger than those after them. The search is linear: a slab has about a
 * gigabyte, hence segments are few. */
static enum place place_of(const struct cstd_record_ids *ids, uint32_t id)
{
    uint32_t i = 0;

    while (i < ids->n && ids->v[i] != id) {
        i++;
    }
    if (i == ids->n) {
        return OUTSIDE;
    }
    if (i < ids->n_arenas) {
        return ARENA;
    }
    return i < ids->n - ids->n_reservations ? POOL : RESERVATION;
}

/* Of the copies to and from slabs, only those of updates in lent memory wait until the daemon has
 * seen completions (after_ack). */
static enum cstd_record_kind copy_kind(const struct cst_command *command,
                                       const struct cstd_record_ids *ids)
{
    const enum place from = place_of(ids, command->src[0].segment),
                     to = place_of(ids, command->dst[0].segment);

    if (to == POOL) {
        return command->after_ack ? CSTD_RECORD_STATES_UP : CSTD_RECORD_LOAD;
    }
    if (to == RESERVATION) {
        return CSTD_RECORD_STATES_UP;
    }
    if (from == POOL) {
        return command->after_ack ? CSTD_RECORD_STATES_DOWN : CSTD_RECORD_STAGE;
    }
    if (from == RESERVATION) {
        return CSTD_RECORD_STATES_DOWN;
    }
    return to == ARENA ? CSTD_RECORD_WRITE : CSTD_RECORD_READ;
}

enum cstd_record_kind cstd_record_kind_of(const struct cst_command *command,
                                          const struct cstd_record_ids *ids)
{
    switch (command->kind) {
    case CST_COMMAND_COPY:
        return copy_kind(command, ids);
    case CST_COMMAND_REDUCE:
        return CSTD_RECORD_REDUCE;
    case CST_COMMAND_NORM:
        return CSTD_RECORD_NORM;
    case CST_COMMAND_UPDATE:
        return CSTD_RECORD_UPDATE;
    case CST_COMMAND_FILL:
        return CSTD_RECORD_FILL;
    case CST_COMMAND_SET_MASTER:
    case CST_COMMAND_ROUND:
    case CST_COMMAND_ENCODE:
    case CST_COMMAND_DECODE:
    case CST_COMMAND_JOIN:
        return CSTD_RECORD_CONVERT;
    case CST_COMMAND_FLUSH: /* Is in no record. */
        break;
    }
    return CSTD_RECORD_FILL;
}
