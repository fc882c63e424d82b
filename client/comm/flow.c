/* SPDX-License-Identifier: Apache-2.0 */
#include "client/comm/flow.h"

#include "client/comm/compare.h"

#include <inttypes.h>

void cstc_flow_init(struct cstc_flow *flow, void *base, uint32_t rank, uint32_t size,
                    size_t slot_bytes, const uint32_t *names)
{
    *flow = (struct cstc_flow){
        .shape = {
            .rank = rank, .size = size, .slot_bytes = slot_bytes, .totals = cst_totals_get()}};
    cstc_channel_init(&flow->channel, base, rank, size, slot_bytes);
    for (uint32_t i = 0; i < size; i++) {
        flow->names[i] = names[i];
    }
}

void cstc_flow_use_device(struct cstc_flow *flow, const struct cstc_transfer_device *device,
                          void *arg, char *const *slots, size_t slot_bytes)
{
    flow->shape.device = device;
    flow->shape.device_arg = arg;
    flow->shape.slot_bytes = slot_bytes;
    flow->channel.apart = slots;
    flow->channel.apart_bytes = slot_bytes;
}

static struct cstc_transfer *call_at(struct cstc_flow *flow, uint64_t number)
{
    return &flow->calls[number % CST_COMM_MAX_CALLS];
}

/* -- comparison of the ranks' calls ----------------------------------------------------------- */

/* Compare what every two ranks send and receive, and derive the number of rounds. All ranks find
 * the same difference. */
static int compare_counts(struct cstc_flow *flow, struct cstc_transfer *t, uint64_t round)
{
    const uint32_t size = flow->shape.size;
    uint64_t sent[CST_COMM_MAX_RANKS], received, most = 0;
    int rc = CST_OK;

    for (uint32_t from = 0; from < size && rc == CST_OK; from++) {
        cstc_compare_read_numbers(sent, cstc_channel_numbers(&flow->channel, from, round), size);
        for (uint32_t to = 0; to < size && rc == CST_OK; to++) {
            most = sent[to] > most ? sent[to] : most;
            cstc_compare_read_numbers(
                &received, cstc_channel_numbers(&flow->channel, to, round) + size + from, 1);
            rc = cstc_compare_counts(flow->n_compared + 1, flow->names[from], sent[to],
                                     flow->names[to], received, &flow->failed);
        }
    }
    cstc_transfer_set_most(t, most);
    return rc;
}

/* All ranks have written the first round of call n_compared, which is @round. */
static int compare(struct cstc_flow *flow, uint64_t round)
{
    struct cstc_transfer *t = call_at(flow, flow->n_compared);
    const struct cstc_compare_side own = {.name = flow->names[flow->shape.rank],
                                          .header = t->header};
    int rc = CST_OK;

    for (uint32_t rank = 0; rank < flow->shape.size && rc == CST_OK; rank++) {
        const struct cstc_compare_side other = {
            .name = flow->names[rank],
            .header = cstc_compare_read(cstc_channel_header(&flow->channel, rank, round))};

        if (rank != flow->shape.rank) {
            rc = cstc_compare_headers(flow->n_compared + 1, &own, &other, &flow->failed);
        }
    }
    if (rc == CST_OK && t->header.op == CST_COMM_ALL_TO_ALL) {
        rc = compare_counts(flow, t, round);
    }
    flow->n_compared += rc == CST_OK;
    return rc;
}

/* -- rounds ----------------------------------------------------------------------------------- */

static void slots_of(const struct cstc_flow *flow, uint64_t round,
                     const char *slots[CST_COMM_MAX_RANKS])
{
    for (uint32_t rank = 0; rank < flow->shape.size; rank++) {
        slots[rank] = cstc_channel_data(&flow->channel, rank, round);
    }
}

/* Return whether the others have written @round, which belongs to call @number and is round @local
 * of it, and the calls are the same. Calls are compared in their order. */
static bool is_there(struct cstc_flow *flow, uint64_t number, uint64_t round, uint64_t local)
{
    return cstc_channel_is_written(&flow->channel, round) &&
           (flow->n_compared > number ||
            (flow->n_compared == number && compare(flow, round - local) == CST_OK));
}

/* The data of a round was written or read. Return whether that is done. */
static bool settle(struct cstc_flow *flow)
{
    const struct cstc_transfer_shape *shape = &flow->shape;

    return shape->device == NULL ||
           shape->device->settle(shape->device_arg, &flow->failed) == CST_OK;
}

static void write_header(const struct cstc_flow *flow, const struct cstc_transfer *t)
{
    const uint64_t round = flow->channel.written;
    uint64_t *numbers = cstc_channel_numbers(&flow->channel, flow->shape.rank, round);

    *cstc_channel_header(&flow->channel, flow->shape.rank, round) = t->header;
    for (uint32_t i = 0; i < flow->shape.size && t->header.op == CST_COMM_ALL_TO_ALL; i++) {
        numbers[i] = t->send[i];
        numbers[flow->shape.size + i] = t->receive[i];
    }
}

/* Write the next round. False: not yet. */
static bool write_one(struct cstc_flow *flow)
{
    struct cstc_transfer *t = call_at(flow, flow->writing);
    const char *slots[CST_COMM_MAX_RANKS] = {NULL};
    const uint64_t local = flow->round_written, round = flow->channel.written;
    uint64_t from = 0;

    if (flow->writing == flow->n_started || (t->n_rounds == 0 && local > 0) ||
        !cstc_channel_is_free(&flow->channel)) {
        return false;
    }
    if (cstc_transfer_needs(t, local, &from)) {
        if (!is_there(flow, flow->writing, round - local + from, from)) {
            return false;
        }
        slots_of(flow, round - local + from, slots);
    }
    cstc_transfer_write(t, &flow->shape, local,
                        cstc_channel_data(&flow->channel, flow->shape.rank, round), slots);
    if (!settle(flow)) {
        return false;
    }
    /* Last, because the others look at the header's cache line in the meantime, and each change of
     * it moves the line to this processor. */
    if (local == 0) {
        write_header(flow, t);
    }
    flow->round_written++;
    cstc_channel_wrote(&flow->channel);
    return true;
}

/* Read the next round. False: not yet. */
static bool read_one(struct cstc_flow *flow)
{
    struct cstc_transfer *t = call_at(flow, flow->n_ended);
    const char *slots[CST_COMM_MAX_RANKS];
    const uint64_t local = flow->round_read, round = flow->channel.read;
    uint64_t until = 0;

    /* The own round is written before those of the others are read. */
    if (round == flow->channel.written || !is_there(flow, flow->n_ended, round, local)) {
        return false;
    }
    if (cstc_transfer_keeps(t, local, &until) && flow->channel.written <= round - local + until) {
        return false;
    }
    slots_of(flow, round, slots);
    cstc_transfer_read(t, &flow->shape, local, slots);
    if (!settle(flow)) {
        return false;
    }
    flow->round_read++;
    cstc_channel_did_read(&flow->channel, flow->round_read == t->n_rounds);
    return true;
}

/* All rounds of call `writing` may be written now: an all-to-all gets to know their number late. */
static void end_writing(struct cstc_flow *flow)
{
    const struct cstc_transfer *t = call_at(flow, flow->writing);

    if (flow->writing < flow->n_started && t->n_rounds > 0 && flow->round_written == t->n_rounds) {
        flow->writing++;
        flow->round_written = 0;
        cstc_channel_ends(&flow->channel);
    }
}

static void end_reading(struct cstc_flow *flow)
{
    if (flow->round_read == call_at(flow, flow->n_ended)->n_rounds) {
        flow->n_ended++;
        flow->round_read = 0;
    }
}

/* Go on as far as possible. Returns whether anything has moved. */
static bool advance(struct cstc_flow *flow)
{
    bool moves = true, moved = false;

    while (moves && flow->failed.status == CST_OK) {
        moves = write_one(flow);
        end_writing(flow);
        if (flow->failed.status == CST_OK && read_one(flow)) {
            moves = true;
            end_writing(flow);
            end_reading(flow);
        }
        moved = moved || moves;
    }
    return moved;
}

/* -- starting and waiting --------------------------------------------------------------------- */

static int failure(const struct cstc_flow *flow, struct cst_err *err)
{
    if (flow->failed.status != CST_OK && err != NULL) {
        *err = flow->failed;
    }
    return flow->failed.status;
}

int cstc_flow_start(struct cstc_flow *flow, const struct cst_comm_call *call, uint64_t *ticket,
                    struct cst_err *err)
{
    int rc = failure(flow, err);

    if (rc != CST_OK) {
        return rc;
    }
    if (flow->n_started - flow->n_ended == CST_COMM_MAX_CALLS) {
        return cst_err_set(err, CST_ENOCREDIT,
                           "%d collectives have not ended: wait for the first of them",
                           CST_COMM_MAX_CALLS);
    }
    rc = cstc_transfer_begin(call_at(flow, flow->n_started), &flow->shape, call, err);
    if (rc == CST_OK) {
        *ticket = ++flow->n_started;
        (void)advance(flow);
    }
    return rc;
}

/* Go on as far as possible. If nothing moves and a rank has closed its communicator, the flow
 * fails. That rank may have done its part before, so this is looked at in the opposite order.
 * Returns whether anything has moved, or the flow has failed. */
static bool advance_or_fail(void *arg)
{
    struct cstc_flow *flow = arg;
    const uint32_t closed = cstc_channel_closed(&flow->channel);
    const bool moved = advance(flow);

    if (!moved && closed < CST_COMM_MAX_RANKS && flow->failed.status == CST_OK) {
        (void)cst_err_set(&flow->failed, CST_ECANCELLED,
                          "rank %" PRIu32 " has closed its communicator", flow->names[closed]);
    }
    return moved || flow->failed.status != CST_OK;
}

int cstc_flow_wait(struct cstc_flow *flow, uint64_t ticket, cstc_flow_wait_fn wait, void *arg,
                   struct cst_err *err)
{
    struct cst_err why;
    int rc = CST_OK;

    if (ticket == 0 || ticket > flow->n_started) {
        return cst_err_set(err, CST_EINVAL, "collective %" PRIu64 " was not started", ticket);
    }
    (void)advance_or_fail(flow);
    while (wait != NULL && rc == CST_OK && flow->n_ended < ticket &&
           flow->failed.status == CST_OK) {
        rc = wait(arg, flow->channel.base, advance_or_fail, flow, &why);
        if (rc != CST_OK && rc != CST_EAGAIN) {
            flow->failed = why;
        }
    }
    if (flow->n_ended >= ticket) {
        return CST_OK;
    }
    return flow->failed.status != CST_OK ? failure(flow, err) : CST_EAGAIN;
}
