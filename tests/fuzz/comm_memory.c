/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the memory of a communicator, in which any rank can write anything. Two or three ranks in
 * one thread call collectives. An input is a list of steps:
 *
 *   byte 0              number of ranks and bytes in a slot
 *   START rank op       the rank starts its next call
 *   GO rank             the rank goes on as far as possible
 *   WRITE at u16 u64    a process writes anywhere
 *   CLOSE rank          the rank closes its communicator
 *   READY rank yes      the rank says whether it can use the transport
 *
 * Nothing outside of the memory and of the arrays is accessed, and before the first WRITE each call
 * has the right result. */
#include "client/comm/flow.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/steps.h"
#include "tests/lib/collective.h"

#include <stdbool.h>
#include <string.h>

const char fuzz_name[] = "comm_memory";

enum op { START, GO, WRITE, CLOSE, READY, N_OPS };
enum { MOST_RANKS = 3, MOST_CALLS = 6, MOST_ELEMS = 300, ATTEMPT = 1 };

struct member {
    struct cstc_flow flow;
    struct collective calls[MOST_CALLS];
    uint64_t tickets[MOST_CALLS];
    uint32_t n_started, n_ended;
    bool failed;
};

struct group {
    void *base;
    size_t bytes;
    uint32_t size;
    bool scribbled; /* Results may be wrong now. */
    struct member members[MOST_RANKS];
};

static struct group group;

size_t fuzz_seed(uint8_t *out, size_t max)
{
    size_t n = 0;

    fuzz_must(max >= 128, "room for the seed");
    out[n++] = 3;
    for (uint8_t op = 0; op < 6; op++) {
        for (uint8_t rank = 0; rank < 3; rank++) {
            out[n++] = START;
            out[n++] = rank;
            out[n++] = op;
        }
        for (uint8_t rank = 0; rank < 3; rank++) {
            out[n++] = GO;
            out[n++] = rank;
        }
    }
    return n;
}

/* The memory and the flows of groups before their first call, by number of ranks and slot size.
 * They are kept, because asking the processor for its instructions takes longer than most inputs.
 */
static struct {
    void *base;
    struct cstc_flow flows[MOST_RANKS];
} fresh[2][3];

static void open_group(uint8_t kind)
{
    const uint32_t names[] = {10, 11, 12}, size = 2 + kind % 2;
    const size_t slot_bytes = 64 * size << kind / 2 % 3, bytes = cst_comm_bytes(size, slot_bytes);
    void **base = &fresh[kind % 2][kind / 2 % 3].base;
    struct cstc_flow *flows = fresh[kind % 2][kind / 2 % 3].flows;

    if (*base == NULL) {
        *base = aligned_alloc(CST_COMM_PAGE_BYTES, bytes);
        fuzz_must(*base != NULL, "memory");
        for (uint32_t rank = 0; rank < size; rank++) {
            cstc_flow_init(&flows[rank], *base, rank, size, slot_bytes, names);
        }
    }
    memset(*base, 0, bytes);
    group.base = *base;
    group.bytes = bytes;
    group.size = size;
    group.scribbled = false;
    for (uint32_t rank = 0; rank < size; rank++) {
        struct member *member = &group.members[rank];

        member->flow = flows[rank];
        member->n_started = member->n_ended = 0;
        member->failed = false;
    }
}

static void close_group(void)
{
    for (uint32_t rank = 0; rank < group.size; rank++) {
        for (uint32_t i = 0; i < group.members[rank].n_started; i++) {
            collective_free(&group.members[rank].calls[i]);
        }
    }
}

/* Check the status @rc of a call of @member. */
static void check(struct member *member, int rc, const struct cst_err *err)
{
    if (rc != CST_OK && rc != CST_EAGAIN) {
        fuzz_must(err->status == rc && err->text[0] != '\0', "a failure has words");
        member->failed = true;
    }
}

static void start(struct member *member, uint32_t rank, uint64_t op)
{
    struct cst_err err = {0};
    struct collective *call = &member->calls[member->n_started];

    if (member->n_started == MOST_CALLS || member->failed) {
        return;
    }
    collective_make(call, 1, member->n_started, rank, group.size, MOST_ELEMS,
                    (enum cst_comm_op)(op % 7));
    check(member,
          cstc_flow_start(&member->flow, &call->call, &member->tickets[member->n_started], &err),
          &err);
    member->n_started++;
}

static void go_on(struct member *member)
{
    struct cst_err err = {0};
    int rc;

    if (member->n_ended == member->n_started || member->failed) {
        return;
    }
    rc = cstc_flow_wait(&member->flow, member->tickets[member->n_ended], NULL, NULL, &err);
    check(member, rc, &err);
    if (rc == CST_OK) {
        fuzz_must(group.scribbled || collective_is_right(&member->calls[member->n_ended]),
                  "a call has the right result");
        member->n_ended++;
    }
}

static void scribble(struct bytes *in)
{
    const size_t at = take(in, 2) % (group.bytes - 8);
    const uint64_t value = take(in, 8);

    memcpy((char *)group.base + at, &value, sizeof value);
    group.scribbled = true;
}

static void step(struct bytes *in)
{
    const enum op op = (enum op)(take(in, 1) % N_OPS);
    const uint32_t rank = op == WRITE ? 0 : (uint32_t)(take(in, 1) % group.size);
    struct member *member = &group.members[rank];
    uint32_t other;

    switch (op) {
    case START:
        start(member, rank, take(in, 1));
        break;
    case GO:
        go_on(member);
        break;
    case WRITE:
        scribble(in);
        break;
    case CLOSE:
        cstc_channel_close(&member->flow.channel);
        fuzz_must(cstc_channel_closed(&member->flow.channel) <= CST_COMM_MAX_RANKS,
                  "a rank that has closed is a rank");
        break;
    case READY:
        (take(in, 1) % 2 == 0 ? cstc_channel_say_ready
                              : cstc_channel_refuse)(&member->flow.channel);
        (void)cstc_channel_ask(&member->flow.channel, &other);
        break;
    case N_OPS:
    default:
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct bytes in = {.at = data, .end = data + n};

    if (n == 0) {
        return 0;
    }
    open_group((uint8_t)take(&in, 1));
    while (in.at < in.end) {
        step(&in);
    }
    close_group();
    return 0;
}
