/* SPDX-License-Identifier: Apache-2.0 */
#include "client/comm/agreement.h"

#include "client/comm/compare.h"

_Static_assert(CST_COMM_CALLS == CST_COMM_MAX_CALLS, "an entry for each call that has not ended");

/* What another rank says of a call. */
enum said { NOT_YET, SAID, PASSED };

struct said_call {
    struct cstc_compare_side side;
    uint64_t sent; /* All-to-all: bytes for this rank. */
};

static const struct cstc_transfer *call_at(const struct cst_comm *comm, uint64_t number)
{
    return &comm->flow.calls[number % CST_COMM_MAX_CALLS];
}

static uint64_t *numbers_of(struct cst_comm_slot *entry)
{
    return (uint64_t *)(void *)(entry + 1);
}

/* Each store is ordered after those before it. */
static void store(uint64_t *at, uint64_t value)
{
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}

void cstc_agreement_say(struct cst_comm *comm)
{
    const struct cstc_transfer *t = call_at(comm, comm->n_started);
    struct cst_comm_slot *entry =
        cstc_channel_call(&comm->flow.channel, comm->flow.shape.rank, comm->n_started);

    atomic_store(&entry->written, 0);
    store(&entry->header.op, t->header.op);
    store(&entry->header.type, t->header.type);
    store(&entry->header.root, t->header.root);
    store(&entry->header.n_elems, t->header.n_elems);
    store(&entry->header.counts, t->header.counts);
    for (uint32_t i = 0; i < comm->flow.shape.size && t->header.op == CST_COMM_ALL_TO_ALL; i++) {
        store(&numbers_of(entry)[i], t->send[i]);
    }
    atomic_store(&entry->written, comm->n_started + 1);
    cst_shared_notify(comm->segment.base);
}

/* Read call @number of @rank. *call is set if it is SAID. */
static enum said hear(const struct cst_comm *comm, uint32_t rank, uint64_t number,
                      struct said_call *call)
{
    struct cst_comm_slot *entry = cstc_channel_call(&comm->flow.channel, rank, number);
    const uint64_t written = atomic_load(&entry->written);

    if (written != number + 1) {
        return written > number + 1 ? PASSED : NOT_YET;
    }
    call->side = (struct cstc_compare_side){.name = comm->flow.names[rank],
                                            .header = cstc_compare_read(&entry->header)};
    cstc_compare_read_numbers(&call->sent, &numbers_of(entry)[comm->flow.shape.rank], 1);
    return atomic_load(&entry->written) == written ? SAID : PASSED;
}

/* Compare call n_compared of this rank with that of @rank. CST_EAGAIN: that one is not known. */
static int compare(const struct cst_comm *comm, uint32_t rank, struct cst_err *err)
{
    const uint64_t number = comm->n_compared;
    const struct cstc_transfer *t = call_at(comm, number);
    const struct cstc_compare_side own = {.name = comm->flow.names[comm->flow.shape.rank],
                                          .header = t->header};
    struct said_call theirs;
    const enum said said = hear(comm, rank, number, &theirs);
    int rc;

    if (said != SAID) {
        return said == PASSED ? CST_OK : CST_EAGAIN;
    }
    rc = cstc_compare_headers(number + 1, &own, &theirs.side, err);
    return rc == CST_OK && t->header.op == CST_COMM_ALL_TO_ALL
               ? cstc_compare_counts(number + 1, theirs.side.name, theirs.sent, own.name,
                                     t->receive[rank], err)
               : rc;
}

int cstc_agreement_look(struct cst_comm *comm, uint64_t n_calls, struct cst_err *err)
{
    int rc = CST_OK;

    while (rc == CST_OK && comm->n_compared < n_calls) {
        /* Ranks that are late must not hide a call that differs. */
        for (uint32_t rank = 0; rank < comm->flow.shape.size && rc != CST_EMISMATCH; rank++) {
            if (rank != comm->flow.shape.rank) {
                const int one = compare(comm, rank, err);

                rc = one != CST_OK ? one : rc;
            }
        }
        comm->n_compared += rc == CST_OK;
    }
    return rc == CST_EAGAIN ? CST_OK : rc;
}
