/* SPDX-License-Identifier: Apache-2.0 */
#include "client/lib/state_io.h"

#include "client/lib/call.h"
#include "proto/cistern.pb-c.h"

#define STAGING_BYTES (4u << 20) /* Requested size; the daemon may give less. */
#define PAGE_BYTES 4096

int cstc_state_open(struct cst_client *client, struct cst_err *err)
{
    Cistern__StagingGet msg = CISTERN__STAGING_GET__INIT;
    struct cstc_call call = {.max_fds = 1};
    struct cst_err why = {0};
    uint64_t bytes;
    int rc;

    if (client->staging.base != NULL) {
        return CST_OK;
    }
    msg.bytes = STAGING_BYTES;
    rc = cstc_call_sync(client, &call, CISTERN__MSG_TYPE__MSG_STAGING, &msg.base,
                        CISTERN__MSG_TYPE__MSG_STAGING_PART, &cistern__staging_part__descriptor,
                        err);
    if (rc != CST_OK) {
        return rc;
    }
    bytes = ((const Cistern__StagingPart *)call.reply)->bytes;
    if (call.n_fds != 1 || bytes < PAGE_BYTES) {
        rc = cst_err_set(&why, CST_EPROTO, "a staging segment of %llu bytes with %u fds",
                         (unsigned long long)bytes, call.n_fds);
    } else {
        rc = cstc_segment_map(&client->staging, call.fds[0], bytes, &why);
    }
    /* A faulty daemon ends the connection; a lack of memory in this process does not. */
    if (rc == CST_EPROTO) {
        rc = cstc_client_distrust(client, &why, err);
    } else if (rc != CST_OK) {
        rc = cst_err_set(err, rc, "staging segment: %.256s", why.text);
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

/* A slot of the staging segment and the piece that is in it. */
struct slot {
    struct cstc_call call;
    struct cstc_state_piece piece;
    void *data;
};

/* A stream that is under way. The slots are used in turn. */
struct run {
    struct cst_client *client;
    const struct cstc_state_stream *stream;
    bool writes;
    struct slot slots[CSTC_STATE_SLOTS];
    uint64_t begun, ended; /* Numbers of pieces. */
    bool at_end;           /* There are no further pieces. */
};

static int send_piece(struct run *run, struct slot *slot, uint64_t offset, struct cst_err *err)
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
    return cstc_call_start(run->client, &slot->call,
                           run->writes ? CISTERN__MSG_TYPE__MSG_TENSOR_WRITE
                                       : CISTERN__MSG_TYPE__MSG_TENSOR_READ,
                           &msg.base, CISTERN__MSG_TYPE__MSG_OK, NULL, err);
}

/* Begin the next piece, if there is one. */
static int begin(struct run *run, struct cst_err *err)
{
    uint64_t i = run->begun % n_slots(run->client), offset = i * cstc_state_most(run->client);
    struct slot *slot = &run->slots[i];
    int rc = CST_OK;

    run->at_end = !run->stream->next(run->stream->arg, &slot->piece);
    if (run->at_end) {
        return CST_OK;
    }
    slot->data = (char *)run->client->staging.base + offset;
    if (run->writes) {
        rc = run->stream->data(run->stream->arg, &slot->piece, slot->data, err);
    }
    if (rc == CST_OK) {
        rc = send_piece(run, slot, offset, err);
    }
    run->begun += rc == CST_OK;
    return rc;
}

/* Wait for the oldest piece, and hand over its data unless @failed. */
static int end(struct run *run, bool failed, struct cst_err *err)
{
    struct slot *slot = &run->slots[run->ended % n_slots(run->client)];
    struct cst_err ignored;
    int rc;

    while (slot->call.state != CSTC_CALL_DONE) {
        /* If the connection ends, the call is finished with the cause. */
        (void)cstc_call_wait(run->client, -1, &ignored);
    }
    rc = cstc_call_result(&slot->call, failed ? &ignored : err);
    cstc_call_reset(&slot->call);
    run->ended++;
    if (rc == CST_OK && !run->writes && !failed) {
        rc = run->stream->data(run->stream->arg, &slot->piece, slot->data, err);
    }
    return rc;
}

static int run_stream(struct cst_client *client, const struct cstc_state_stream *stream,
                      bool writes, struct cst_err *err)
{
    struct run run = {.client = client, .stream = stream, .writes = writes};
    int rc = cstc_client_check(client, err);

    if (rc == CST_OK && client->pending) {
        rc = cst_err_set(err, CST_EBUSY, "another call is pending: repeat it until it has ended");
    }
    while (rc == CST_OK && (!run.at_end || run.ended < run.begun)) {
        if (!run.at_end && run.begun - run.ended < n_slots(client)) {
            rc = begin(&run, err);
        } else {
            rc = end(&run, false, err);
        }
    }
    while (run.ended < run.begun) {
        (void)end(&run, true, err);
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
