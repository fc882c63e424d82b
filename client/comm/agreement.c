/* SPDX-License-Identifier: Apache-2.0 */
#include "client/comm/agreement.h"

#include "client/comm/compare.h"

_Static_assert(CST_COMM_CALLS == CST_COMM_MAX_CALLS, "an entry for each call that has not ended");

/* What another rank says of a call. */
enum said { NOT_YET, SAID, PASSED };

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
        store(&numbers_of(entry)[comm->flow.shape.size + i], t->receive[i]);
    }
    atomic_store(&entry->written, comm->n_started + 1);
    cst_shared_notify(comm->segment.base);
}

/* Return what @rank says of call @number, if its entry has not changed since its numbers were
 * read. */
static enum said hear(const struct cst_comm *comm, uint32_t rank, uint64_t number)
{
    const uint64_t written =
        atomic_load(&cstc_channel_call(&comm->flow.channel, rank, number)->written);

    return written == number + 1 ? SAID : written > number + 1 ? PASSED : NOT_YET;
}

/* Compare call n_compared of this rank with that of @rank. CST_EAGAIN: that one is not known. */
static int compare(const struct cst_comm *comm, uint32_t rank, struct cst_err *err)
{
    const uint64_t number = comm->n_compared;
    const struct cstc_compare_side own = {.name = comm->flow.names[comm->flow.shape.rank],
                                          .header = call_at(comm, number)->header};
    struct cstc_compare_side theirs = {.name = comm->flow.names[rank]};
    enum said said = hear(comm, rank, number);

    if (said == SAID) {
        theirs.header =
            cstc_compare_read(&cstc_channel_call(&comm->flow.channel, rank, number)->header);
        said = hear(comm, rank, number);
    }
    if (said != SAID) {
        return said == PASSED ? CST_OK : CST_EAGAIN;
    }
    return cstc_compare_headers(number + 1, &own, &theirs, err);
}

/* Call n_compared is an all-to-all of ranks @from and @to. Compare what one sends and the other
 * receives, if both have said it. A rank that has passed the call has compared all numbers. */
static int compare_counts(const struct cst_comm *comm, uint32_t from, uint32_t to,
                          struct cst_err *err)
{
    const struct cstc_channel *channel = &comm->flow.channel;
    const uint64_t number = comm->n_compared;
    uint64_t sent, received;

    cstc_compare_read_numbers(&sent, &numbers_of(cstc_channel_call(channel, from, number))[to], 1);
    cstc_compare_read_numbers(
        &received,
        &numbers_of(cstc_channel_call(channel, to, number))[comm->flow.shape.size + from], 1);
    if (hear(comm, from, number) != SAID || hear(comm, to, number) != SAID) {
        return CST_OK;
    }
    return cstc_compare_counts(number + 1, comm->flow.names[from], sent, comm->flow.names[to],
                               received, err);
}

/* Compare call n_compared with all ranks that have said theirs. Ranks that are late must not hide a
 * call that differs. CST_EAGAIN: some are late. */
static int compare_all(const struct cst_comm *comm, struct cst_err *err)
{
    const uint32_t own = comm->flow.shape.rank, size = comm->flow.shape.size;
    const bool has_counts = call_at(comm, comm->n_compared)->header.op == CST_COMM_ALL_TO_ALL;
    uint64_t same = UINT64_C(1) << own; /* Ranks that make the same call, one bit each. */
    int rc = CST_OK;

    for (uint32_t rank = 0; rank < size && rc != CST_EMISMATCH; rank++) {
        const int one = rank == own ? CST_OK : compare(comm, rank, err);

        same |= one == CST_OK ? UINT64_C(1) << rank : 0;
        rc = one != CST_OK ? one : rc;
    }
    for (uint32_t pair = 0; has_counts && pair < size * size && rc != CST_EMISMATCH; pair++) {
        const uint32_t from = pair / size, to = pair % size;

        if ((same >> from & same >> to & 1) != 0 && compare_counts(comm, from, to, err) != CST_OK) {
            rc = CST_EMISMATCH;
        }
    }
    return rc;
}

int cstc_agreement_look(struct cst_comm *comm, uint64_t n_calls, struct cst_err *err)
{
    int rc = CST_OK;

    while (rc == CST_OK && comm->n_compared < n_calls) {
        rc = compare_all(comm, err);
        comm->n_compared += rc == CST_OK;
    }
    return rc == CST_EAGAIN ? CST_OK : rc;
}
