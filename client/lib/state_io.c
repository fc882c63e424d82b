/* SPDX-License-Identifier: Apache-2.0 */
#include "client/lib/state_io.h"

#include "client/lib/call.h"
#include "proto/cistern.pb-c.h"
#include "proto/reason.h"

#define STAGING_BYTES (4u << 20) /* Requested size; the daemon may give less. */
#define PAGE_BYTES 4096

int cstc_state_ask(struct cst_client *client, struct cstc_call *call, struct cst_err *err)
{
    Cistern__StagingGet msg = CISTERN__STAGING_GET__INIT;

    msg.bytes = STAGING_BYTES;
    call->max_fds = 1;
    return cstc_call_start(client, call, CISTERN__MSG_TYPE__MSG_STAGING, &msg.base,
                           CISTERN__MSG_TYPE__MSG_STAGING_PART, &cistern__staging_part__descriptor,
                           err);
}

int cstc_state_take(struct cst_client *client, struct cstc_call *call, struct cst_err *err)
{
    uint64_t bytes = ((const Cistern__StagingPart *)call->reply)->bytes;
    struct cst_err why = {0};
    int rc;

    if (call->n_fds != 1 || bytes < PAGE_BYTES) {
        rc = cst_err_set(&why, CST_EPROTO, "a staging segment of %llu bytes with %u fds",
                         (unsigned long long)bytes, call->n_fds);
    } else {
        rc = cstc_segment_map(&client->staging, call->fds[0], bytes, &why);
    }
    /* A faulty daemon ends the connection; a lack of memory in this process does not. */
    if (rc == CST_EPROTO) {
        rc = cstc_client_distrust(client, &why, err);
    } else if (rc != CST_OK) {
        rc = cst_err_give_reason(err, why.reason,
                                 cst_err_set(err, rc, "staging segment: %.256s", why.text));
    }
    cstc_call_reset(call);
    return rc;
}

/* CST_EBUSY: a wait would read the replies of a pending call. */
static int check_idle(const struct cst_client *client, struct cst_err *err)
{
    int rc = cstc_client_check(client, err);

    return rc == CST_OK && client->pending
               ? cst_err_set(err, CST_EBUSY,
                             "another call is pending: repeat it until it has ended")
               : rc;
}

int cstc_state_open(struct cst_client *client, struct cst_err *err)
{
    struct cstc_call call = {0};
    int rc;

    if (client->staging.base != NULL) {
        return CST_OK;
    }
    rc = check_idle(client, err);
    if (rc == CST_OK) {
        rc = cstc_state_ask(client, &call, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    while ((rc = cstc_call_result(&call, err)) == CST_EAGAIN) {
        (void)cstc_call_wait(client, -1, err);
    }
    if (rc == CST_OK) {
        return cstc_state_take(client, &call, err);
    }
    cstc_call_reset(&call);
    return rc;
}

/* The number of slots: one, if the segment is very small. */
static uint64_t n_slots(const struct cst_client *client)
{
    return client->staging.bytes >= CSTC_STATE_SLOTS * PAGE_BYTES ? CSTC_STATE_SLOTS : 1;
}

uint64_t cstc_state_most(const struct cst_client *client)
{
    uint64_t slot = client->staging.bytes / n_slots(client);

    return slot - slot % PAGE_BYTES;
}

static int send_piece(struct cstc_state_run *run, struct cstc_state_slot *slot, uint64_t offset,
                      struct cst_err *err)
{
    Cistern__TensorIo msg = CISTERN__TENSOR_IO__INIT;
    const struct cstc_state_piece *piece = &slot->piece;

    msg.tensor = piece->tensor;
    msg.row = (Cistern__TensorIo__Row)piece->row; /* Both enums have the same numbers. */
    msg.first = piece->first;
    msg.n_elems = piece->n_elems;
    msg.staging_offset = offset;
    msg.has_raw = piece->raw;
    msg.raw = piece->raw;
    msg.has_exponents = piece->exponents;
    msg.exponents = piece->exponents;
    msg.has_of_save = piece->of_save;
    msg.of_save = piece->of_save;
    msg.has_bf16 = piece->bf16;
    msg.bf16 = piece->bf16;
    return cstc_call_start(run->client, &slot->call,
                           run->writes ? CISTERN__MSG_TYPE__MSG_TENSOR_WRITE
                                       : CISTERN__MSG_TYPE__MSG_TENSOR_READ,
                           &msg.base, CISTERN__MSG_TYPE__MSG_OK, NULL, err);
}

/* Begin the next piece, if there is one. */
static int begin(struct cstc_state_run *run, struct cst_err *err)
{
    uint64_t i = run->begun % n_slots(run->client), offset = i * cstc_state_most(run->client);
    struct cstc_state_slot *slot = &run->slots[i];
    int rc = CST_OK;

    run->at_end = !run->stream.next(run->stream.arg, &slot->piece);
    if (run->at_end) {
        return CST_OK;
    }
    slot->data = (char *)run->client->staging.base + offset;
    if (run->writes) {
        rc = run->stream.data(run->stream.arg, &slot->piece, slot->data, err);
    }
    if (rc == CST_OK) {
        rc = send_piece(run, slot, offset, err);
    }
    run->begun += rc == CST_OK;
    return rc;
}

/* End the oldest piece, which has its answer, and hand over its data unless the stream has
 * failed. */
static int end(struct cstc_state_run *run, struct cst_err *err)
{
    struct cstc_state_slot *slot = &run->slots[run->ended % n_slots(run->client)];
    int rc = cstc_call_result(&slot->call, err);

    cstc_call_reset(&slot->call);
    run->ended++;
    if (rc == CST_OK && !run->writes && run->failed.status == CST_OK) {
        rc = run->stream.data(run->stream.arg, &slot->piece, slot->data, err);
    }
    return rc;
}

int cstc_states_advance(struct cstc_state_run *run, struct cst_err *err)
{
    for (;;) {
        const struct cstc_state_slot *oldest = &run->slots[run->ended % n_slots(run->client)];
        bool failed = run->failed.status != CST_OK, goes_on = !failed && !run->at_end;
        struct cst_err why;
        int rc;

        if (goes_on && run->begun - run->ended < n_slots(run->client)) {
            rc = begin(run, &why);
        } else if (run->ended == run->begun) {
            break;
        } else if (oldest->call.state != CSTC_CALL_DONE) {
            return CST_EAGAIN;
        } else {
            rc = end(run, &why);
        }
        if (rc != CST_OK && !failed) {
            run->failed = why;
            run->failed.status = rc;
        }
    }
    if (run->failed.status != CST_OK && err != NULL) {
        *err = run->failed;
    }
    return run->failed.status;
}

static int run_stream(struct cst_client *client, const struct cstc_state_stream *stream,
                      bool writes, struct cst_err *err)
{
    struct cstc_state_run run = {.client = client, .stream = *stream, .writes = writes};
    struct cst_err ignored;
    int rc = check_idle(client, err);

    if (rc != CST_OK) {
        return rc;
    }
    while ((rc = cstc_states_advance(&run, err)) == CST_EAGAIN) {
        /* If the connection ends, the calls are finished with the cause. */
        (void)cstc_call_wait(client, -1, &ignored);
    }
    return rc;
}

int cstc_states_read(struct cst_client *client, const struct cstc_state_stream *stream,
                     struct cst_err *err)
{
    return run_stream(client, stream, false, err);
}

int cstc_states_write(struct cst_client *client, const struct cstc_state_stream *stream,
                      struct cst_err *err)
{
    return run_stream(client, stream, true, err);
}
