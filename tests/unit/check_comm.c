/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives without a daemon: the ranks are threads with a flow each, in one piece of memory. */
#include "client/comm/flow.h"
#include "client/comm/wakeup.h"
#include "tests/lib/collective.h"
#include "tests/lib/patience.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { IN_FLIGHT = 4 };

/* The memory of a communicator, and what its ranks do. */
struct group {
    uint32_t size;
    size_t slot_bytes;
    void *base; /* Exactly as long as the memory must be. */
    uint64_t seed;
    size_t most; /* Elements of an array, about. */
    unsigned n_calls;
    bool may_fail; /* Calls may fail, or have wrong results. */
};

struct member {
    struct group *group;
    uint32_t rank;
    pthread_t thread;
    unsigned n_wrong; /* Calls with wrong results. */
    struct cst_err err;
};

static void open_group(struct group *g, uint32_t size, size_t slot_bytes)
{
    /* The longest arrays take about twelve slots. */
    *g = (struct group){.size = size, .slot_bytes = slot_bytes, .most = slot_bytes * 3};
    g->base = aligned_alloc(CST_COMM_PAGE_BYTES, cst_comm_bytes(size, slot_bytes));
    ck_assert_ptr_nonnull(g->base);
    memset(g->base, 0, cst_comm_bytes(size, slot_bytes));
    cst_shared_join(g->base);
}

static void open_flow(struct cstc_flow *flow, const struct group *g, uint32_t rank)
{
    uint32_t names[CST_COMM_MAX_RANKS];

    for (uint32_t i = 0; i < g->size; i++) {
        names[i] = 10 + i;
    }
    cstc_flow_init(flow, g->base, rank, g->size, g->slot_bytes, names);
}

/* cstc_flow_wait_fn: waits as a rank of attempt 1, and ends waits that would not end. */
static int wait_some(void *arg, struct cst_shared_head *head, bool (*ready)(void *ready_arg),
                     void *ready_arg, struct cst_err *err)
{
    const struct group *g = arg;
    const struct cst_shared_wait wait = {
        .attempt = 1, .n_processes = g->size, .ready = ready, .arg = ready_arg};
    const int rc = cst_shared_wait(head, &wait, g->may_fail ? 300u : (unsigned)patience_ms(60000));

    return rc == CST_OK ? rc : cst_err_set(err, rc, "the wait has ended");
}

/* Call n_calls random collectives, of which up to IN_FLIGHT are under way. */
static void *run(void *arg)
{
    struct member *m = arg;
    struct group *g = m->group;
    struct collective c[IN_FLIGHT];
    uint64_t tickets[IN_FLIGHT], begun = 0, ended = 0;
    struct cstc_flow *flow = malloc(sizeof *flow);

    open_flow(flow, g, m->rank);
    while (ended < g->n_calls && m->err.status == CST_OK) {
        const uint64_t i = begun % IN_FLIGHT, first = ended % IN_FLIGHT;
        /* Each rank waits at other places. */
        const bool starts = begun - ended < IN_FLIGHT && (begun * 31 + ended * 7 + m->rank) % 3 > 0;

        if (begun < g->n_calls && (starts || begun == ended)) {
            collective_make(&c[i], g->seed, begun, m->rank, g->size, g->most, 0);
            begun++;
            (void)cstc_flow_start(flow, &c[i].call, &tickets[i], &m->err);
        } else if (cstc_flow_wait(flow, tickets[first], wait_some, g, &m->err) == CST_OK) {
            m->n_wrong += !collective_is_right(&c[first]);
            collective_free(&c[first]);
            ended++;
        }
    }
    /* The others shall not wait for this rank. */
    if (m->err.status != CST_OK && !g->may_fail) {
        cst_shared_end(g->base, 1);
    }
    for (; ended < begun; ended++) {
        collective_free(&c[ended % IN_FLIGHT]);
    }
    free(flow);
    return NULL;
}

static void run_all(struct group *g, struct member members[COLLECTIVE_MAX_RANKS])
{
    for (uint32_t rank = 0; rank < g->size; rank++) {
        members[rank] = (struct member){.group = g, .rank = rank};
        ck_assert_int_eq(pthread_create(&members[rank].thread, NULL, run, &members[rank]), 0);
    }
    for (uint32_t rank = 0; rank < g->size; rank++) {
        ck_assert_int_eq(pthread_join(members[rank].thread, NULL), 0);
    }
}

/* Random calls of 1 to 8 ranks have the bits of the serial model, with slots of a few elements and
 * with slots that hold most arrays. "make soak" makes a hundred times as many. */
START_TEST(calls_agree_with_the_model)
{
    const size_t slots[] = {64, 640, 4096};
    const unsigned times = getenv("CST_TEST_EVERY") != NULL ? 100 : 1;

    for (size_t s = 0; s < sizeof slots / sizeof slots[0]; s++) {
        const uint32_t size = (uint32_t)_i;
        struct member members[COLLECTIVE_MAX_RANKS];
        struct group g;

        open_group(&g, size, slots[s] < 64 * size ? 64 * size : slots[s]);
        g.seed = suite_seed();
        g.n_calls = times * (suite_is_sparse() ? 10 : 40);
        run_all(&g, members);
        for (uint32_t rank = 0; rank < size; rank++) {
            ck_assert_msg(members[rank].err.status == CST_OK, "rank %u: %s", rank,
                          members[rank].err.text);
            ck_assert_uint_eq(members[rank].n_wrong, 0);
        }
        free(g.base);
    }
}
END_TEST

#ifndef __SANITIZE_THREAD__
static bool scribbling;

static void *scribble(void *arg)
{
    struct group *g = arg;
    const size_t n = cst_comm_bytes(g->size, g->slot_bytes) / sizeof(uint64_t);
    unsigned state = (unsigned)g->seed;

    while (__atomic_load_n(&scribbling, __ATOMIC_RELAXED)) {
        const size_t word = (size_t)rand_r(&state) % n;
        const uint64_t values[] = {0, 1, UINT64_MAX, (uint64_t)rand_r(&state), 0x8000000080000000u};

        /* The end of the attempt is not written, or all calls would end at once. */
        if (word > 0) {
            __atomic_store_n((uint64_t *)g->base + word, values[rand_r(&state) % 5],
                             __ATOMIC_RELAXED);
        }
    }
    return NULL;
}

/* A process that writes anything anywhere into the memory makes calls fail or have wrong results,
 * and no rank accesses other memory. The memory has no byte to spare (AddressSanitizer). */
START_TEST(scribbled_memory_is_no_address)
{
    for (unsigned turn = 0; turn < (suite_is_sparse() ? 2 : 6); turn++) {
        struct member members[COLLECTIVE_MAX_RANKS];
        pthread_t thread;
        struct group g;

        open_group(&g, 3, 640);
        g.seed = suite_seed();
        g.n_calls = 200;
        g.may_fail = true;
        __atomic_store_n(&scribbling, true, __ATOMIC_RELAXED);
        ck_assert_int_eq(pthread_create(&thread, NULL, scribble, &g), 0);
        run_all(&g, members);
        __atomic_store_n(&scribbling, false, __ATOMIC_RELAXED);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        free(g.base);
    }
}
END_TEST
#endif

/* -- one thread ------------------------------------------------------------------------------- */

/* Two ranks in one thread, which can call only what does not wait. */
struct pair {
    struct group g;
    struct cstc_flow flows[2];
    uint64_t tickets[2];
    struct cst_err errs[2];
};

static void open_pair(struct pair *p)
{
    open_group(&p->g, 2, 640);
    open_flow(&p->flows[0], &p->g, 0);
    open_flow(&p->flows[1], &p->g, 1);
}

/* What was written 2^32 rounds ago is not taken for the present round: short calls leave slots out,
 * which then keep it. */
START_TEST(old_rounds_are_not_believed)
{
    const uint64_t later = UINT64_C(1) << 32;
    struct cstc_channel *channels[2];
    struct pair p;

    open_pair(&p);
    for (uint32_t i = 0; i < 2; i++) {
        channels[i] = &p.flows[i].channel;
        channels[i]->written = 2;
        cstc_channel_wrote(channels[i]);
    }
    ck_assert(cstc_channel_is_written(channels[0], 2));
    ck_assert(!cstc_channel_is_written(channels[0], later + 2));
    channels[1]->written = later + 2;
    cstc_channel_wrote(channels[1]);
    ck_assert(cstc_channel_is_written(channels[0], later + 2));
    free(p.g.base);
}
END_TEST

static int start(struct pair *p, uint32_t rank, const struct cst_comm_call *call)
{
    return cstc_flow_start(&p->flows[rank], call, &p->tickets[rank], &p->errs[rank]);
}

static int try(struct pair *p, uint32_t rank)
{
    return cstc_flow_wait(&p->flows[rank], p->tickets[rank], NULL, NULL, &p->errs[rank]);
}

/* The calls of two ranks that differ in anything fail in both, and the error names both. */
START_TEST(different_calls_are_named)
{
    float a[64] = {0}, b[64] = {0};
    const size_t even[] = {8, 8}, odd[] = {7, 9};
    const struct cst_comm_call calls[] = {
        {.op = CST_COMM_BARRIER},
        {.op = CST_COMM_BROADCAST, .type = CST_COMM_FP32, .n_elems = 16, .in = a, .out = b},
        {.op = CST_COMM_BROADCAST,
         .type = CST_COMM_FP32,
         .n_elems = 16,
         .in = a,
         .out = b,
         .root = 1},
        {.op = CST_COMM_ALL_REDUCE, .type = CST_COMM_FP32, .n_elems = 16, .in = a, .out = b},
        {.op = CST_COMM_ALL_REDUCE, .type = CST_COMM_BF16, .n_elems = 16, .in = a, .out = b},
        {.op = CST_COMM_ALL_REDUCE, .type = CST_COMM_FP32, .n_elems = 15, .in = a, .out = b},
        {.op = CST_COMM_ALL_GATHER, .type = CST_COMM_FP32, .counts = even, .in = a, .out = b},
        {.op = CST_COMM_ALL_GATHER, .type = CST_COMM_FP32, .counts = odd, .in = a, .out = b},
        {.op = CST_COMM_REDUCE_SCATTER, .type = CST_COMM_FP32, .counts = even, .in = a, .out = b},
        {.op = CST_COMM_ALL_TO_ALL,
         .type = CST_COMM_FP32,
         .counts = even,
         .recv_counts = even,
         .in = a,
         .out = b},
    };
    const size_t n = sizeof calls / sizeof calls[0];

    for (size_t i = 0; i < n * n; i++) {
        struct pair p;

        if (i / n == i % n) {
            continue;
        }
        open_pair(&p);
        ck_assert_int_eq(start(&p, 0, &calls[i / n]), CST_OK);
        ck_assert_int_eq(start(&p, 1, &calls[i % n]), CST_OK);
        for (uint32_t rank = 0; rank < 2; rank++) {
            ck_assert_int_eq(try(&p, rank), CST_EMISMATCH);
            ck_assert_ptr_nonnull(strstr(p.errs[rank].text, "collective 1: rank 10 calls "));
            ck_assert_ptr_nonnull(strstr(p.errs[rank].text, ", rank 11 calls "));
            /* No further call begins. */
            ck_assert_int_eq(start(&p, rank, &calls[0]), CST_EMISMATCH);
        }
        free(p.g.base);
    }
}
END_TEST

/* What one rank sends must be what the other one expects. Otherwise the call fails in all ranks,
 * also in those whose own numbers are right, and also if the others have closed their communicators
 * before a rank looks. _i: the rank that looks last. */
START_TEST(different_counts_are_named)
{
    const uint32_t size = 3;
    static const size_t sent[3][3] = {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}};
    static const size_t received[3][3] = {{1, 4, 7}, {2, 5, 8}, {3, 7, 9}};
    char in[24] = {0}, out[24] = {0};
    struct group g;
    struct cstc_flow flows[3];
    uint64_t tickets[3];
    struct cst_err err;

    open_group(&g, size, 4096);
    for (uint32_t rank = 0; rank < size; rank++) {
        const struct cst_comm_call call = {.op = CST_COMM_ALL_TO_ALL,
                                           .type = CST_COMM_BYTE,
                                           .in = in,
                                           .out = out,
                                           .counts = sent[rank],
                                           .recv_counts = received[rank]};

        open_flow(&flows[rank], &g, rank);
        ck_assert_int_eq(cstc_flow_start(&flows[rank], &call, &tickets[rank], &err), CST_OK);
    }
    for (uint32_t i = 1; i <= size; i++) {
        const uint32_t rank = ((uint32_t)_i + i) % size;

        ck_assert_int_eq(cstc_flow_wait(&flows[rank], tickets[rank], NULL, NULL, &err),
                         CST_EMISMATCH);
        ck_assert_str_eq(err.text, "collective 1: rank 11 calls all_to_all and sends 6 bytes to "
                                   "rank 12, which calls all_to_all and receives 7 bytes");
        cstc_channel_close(&flows[rank].channel);
    }
    free(g.base);
}
END_TEST

/* After a rank has closed its communicator, calls whose data is there end, and all others fail and
 * name it. */
START_TEST(a_closed_communicator_ends_calls)
{
    const struct cst_comm_call call = {.op = CST_COMM_BARRIER};
    struct pair p;

    open_pair(&p);
    ck_assert_int_eq(start(&p, 0, &call), CST_OK);
    ck_assert_int_eq(try(&p, 0), CST_EAGAIN);
    ck_assert_int_eq(start(&p, 1, &call), CST_OK);
    cstc_channel_close(&p.flows[1].channel);
    ck_assert_int_eq(try(&p, 0), CST_OK);
    ck_assert_int_eq(start(&p, 0, &call), CST_OK);
    ck_assert_int_eq(try(&p, 0), CST_ECANCELLED);
    ck_assert_str_eq(p.errs[0].text, "rank 11 has closed its communicator");
    ck_assert_int_eq(start(&p, 0, &call), CST_ECANCELLED);
    free(p.g.base);
}
END_TEST

/* Return the answer of rank @rank of the pair, with the rank that it is about. */
static enum cstc_channel_answer ask(const struct pair *p, uint32_t rank, uint32_t *about)
{
    *about = CST_COMM_MAX_RANKS;
    return cstc_channel_ask(&p->flows[rank].channel, about);
}

/* Whether the ranks can use a transport: all say so, or one refuses. A rank that has closed its
 * communicator only counts if it has said nothing. */
START_TEST(a_transport_is_agreed_upon)
{
    uint32_t about;
    struct pair p;

    open_pair(&p);
    ck_assert_int_eq(ask(&p, 0, &about), CSTC_CHANNEL_UNKNOWN);
    cstc_channel_say_ready(&p.flows[0].channel);
    ck_assert_int_eq(ask(&p, 0, &about), CSTC_CHANNEL_UNKNOWN);
    ck_assert_uint_eq(about, 1);
    cstc_channel_say_ready(&p.flows[1].channel);
    cstc_channel_close(&p.flows[1].channel);
    ck_assert_int_eq(ask(&p, 0, &about), CSTC_CHANNEL_READY);
    free(p.g.base);

    open_pair(&p);
    cstc_channel_say_ready(&p.flows[0].channel);
    cstc_channel_close(&p.flows[0].channel);
    ck_assert_int_eq(ask(&p, 1, &about), CSTC_CHANNEL_UNKNOWN);
    cstc_channel_close(&p.flows[1].channel);
    ck_assert_int_eq(ask(&p, 0, &about), CSTC_CHANNEL_LEFT);
    ck_assert_uint_eq(about, 1);
    free(p.g.base);

    open_pair(&p);
    cstc_channel_refuse(&p.flows[1].channel);
    cstc_channel_close(&p.flows[1].channel);
    ck_assert_int_eq(ask(&p, 0, &about), CSTC_CHANNEL_REFUSED);
    cstc_channel_say_ready(&p.flows[0].channel); /* Too late. */
    ck_assert_int_eq(ask(&p, 0, &about), CSTC_CHANNEL_REFUSED);
    ck_assert_int_eq(ask(&p, 1, &about), CSTC_CHANNEL_REFUSED);
    free(p.g.base);
}
END_TEST

/* cstc_flow_wait_fn */
static int wait_less(void *arg, struct cst_shared_head *head, bool (*ready)(void *ready_arg),
                     void *ready_arg, struct cst_err *err)
{
    const int *rc = arg;

    (void)head;
    ck_assert(!ready(ready_arg));
    return *rc == CST_EAGAIN ? *rc : cst_err_set(err, *rc, "the wait has ended");
}

/* A wait that is given up leaves the call as it is, and a wait that fails ends all calls. */
START_TEST(a_failed_wait_ends_calls)
{
    const struct cst_comm_call call = {.op = CST_COMM_BARRIER};
    int rc = CST_EAGAIN;
    struct pair p;

    open_pair(&p);
    ck_assert_int_eq(start(&p, 0, &call), CST_OK);
    ck_assert_int_eq(cstc_flow_wait(&p.flows[0], 1, wait_less, &rc, &p.errs[0]), CST_EAGAIN);
    ck_assert_int_eq(start(&p, 0, &call), CST_OK);
    rc = CST_ETIMEDOUT;
    ck_assert_int_eq(cstc_flow_wait(&p.flows[0], 1, wait_less, &rc, &p.errs[0]), CST_ETIMEDOUT);
    ck_assert_str_eq(p.errs[0].text, "the wait has ended");
    ck_assert_int_eq(start(&p, 1, &call), CST_OK);
    ck_assert_int_eq(try(&p, 0), CST_ETIMEDOUT);
    free(p.g.base);
}
END_TEST

/* The number of calls under way is limited, and calls that were not started cannot be awaited. */
START_TEST(calls_are_limited)
{
    const struct cst_comm_call call = {.op = CST_COMM_BARRIER};
    struct pair p;

    open_pair(&p);
    for (int i = 0; i < CST_COMM_MAX_CALLS; i++) {
        ck_assert_int_eq(start(&p, 0, &call), CST_OK);
    }
    ck_assert_int_eq(start(&p, 0, &call), CST_ENOCREDIT);
    for (int i = 0; i < CST_COMM_MAX_CALLS; i++) {
        ck_assert_int_eq(start(&p, 1, &call), CST_OK);
        (void)try(&p, 0);
    }
    (void)try(&p, 1);
    ck_assert_int_eq(try(&p, 0), CST_OK);
    ck_assert_int_eq(try(&p, 1), CST_OK);
    ck_assert_int_eq(start(&p, 0, &call), CST_OK);
    p.tickets[0]++;
    ck_assert_int_eq(try(&p, 0), CST_EINVAL);
    free(p.g.base);
}
END_TEST

/* Arguments that cannot be are refused, and cost nothing. */
START_TEST(bad_calls_are_refused)
{
    float a[64] = {0}, b[64] = {0};
    const size_t few[] = {8, 8}, many[] = {SIZE_MAX / 2, SIZE_MAX / 2}, mine[] = {3, 1};
    const struct cst_comm_call calls[] = {
        {.op = 0},
        {.op = 7},
        {.op = CST_COMM_ALL_REDUCE, .n_elems = 4, .in = a, .out = b},
        {.op = CST_COMM_ALL_REDUCE, .type = 4, .n_elems = 4, .in = a, .out = b},
        {.op = CST_COMM_ALL_REDUCE, .type = CST_COMM_BYTE, .n_elems = 4, .in = a, .out = b},
        {.op = CST_COMM_ALL_REDUCE, .type = CST_COMM_FP32, .n_elems = 4, .out = b},
        {.op = CST_COMM_ALL_REDUCE, .type = CST_COMM_FP32, .n_elems = 4, .in = a},
        {.op = CST_COMM_ALL_REDUCE,
         .type = CST_COMM_FP32,
         .n_elems = SIZE_MAX / 4,
         .in = a,
         .out = b},
        {.op = CST_COMM_ALL_REDUCE,
         .type = CST_COMM_FP32,
         .n_elems = 4,
         .in = (char *)a + 2,
         .out = b},
        {.op = CST_COMM_BROADCAST,
         .type = CST_COMM_FP32,
         .n_elems = 4,
         .in = a,
         .out = b,
         .root = 2},
        {.op = CST_COMM_ALL_GATHER, .type = CST_COMM_FP32, .in = a, .out = b},
        {.op = CST_COMM_ALL_GATHER, .type = CST_COMM_FP32, .in = a, .out = b, .counts = many},
        {.op = CST_COMM_REDUCE_SCATTER, .type = CST_COMM_BYTE, .in = a, .out = b, .counts = few},
        {.op = CST_COMM_ALL_TO_ALL, .type = CST_COMM_FP32, .in = a, .out = b, .counts = few},
        {.op = CST_COMM_ALL_TO_ALL,
         .type = CST_COMM_FP32,
         .in = a,
         .out = b,
         .counts = few,
         .recv_counts = mine},
    };
    struct pair p;

    open_pair(&p);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        ck_assert_msg(start(&p, 0, &calls[i]) == CST_EINVAL, "call %zu", i);
    }
    ck_assert_int_eq(start(&p, 0, &(struct cst_comm_call){.op = CST_COMM_BARRIER}), CST_OK);
    ck_assert_uint_eq(p.tickets[0], 1);
    free(p.g.base);
}
END_TEST

/* -- wake-ups --------------------------------------------------------------------------------- */

/* A driver's thread wakes those that sleep on the memory of its communicator, and nobody if that is
 * closed, even if another communicator has taken the same place. */
START_TEST(a_late_wake_up_finds_nothing)
{
    struct cst_shared_head heads[2] = {{.asleep = 1}, {.asleep = 1}};
    struct cstc_wakeup wakeups[2] = {{0}};
    void *args[2];

    cstc_wakeup_close(&wakeups[0]); /* It was never open. */
    for (int i = 0; i < 2; i++) {
        cstc_wakeup_open(&wakeups[i], &heads[i]);
        args[i] = cstc_wakeup_arg(&wakeups[i]);
    }
    cstc_wakeup_call(args[0]);
    ck_assert_uint_eq(heads[0].event, 1);
    ck_assert_uint_eq(heads[1].event, 0);
    cstc_wakeup_close(&wakeups[0]);
    cstc_wakeup_open(&wakeups[0], &heads[0]);
    heads[0].asleep = 1;
    cstc_wakeup_call(args[0]);
    ck_assert_uint_eq(heads[0].event, 1);
    cstc_wakeup_call(cstc_wakeup_arg(&wakeups[0]));
    ck_assert_uint_eq(heads[0].event, 2);
    cstc_wakeup_close(&wakeups[1]);
    cstc_wakeup_close(&wakeups[0]);
    cstc_wakeup_call(args[1]);
    ck_assert_uint_eq(heads[1].event, 0);
}
END_TEST

/* -- threads ---------------------------------------------------------------------------------- */

/* Ranks that are threads need no job. The memory is there until the last of them has closed its
 * communicator, and a rank that waits for one that has gets its number. */
START_TEST(threads_need_no_job)
{
    struct cst_comm *comms[3];
    uint64_t tickets[3];
    float in[3] = {1, 2, 3}, out[3];
    struct cst_err err;

    ck_assert_int_eq(cst_comm_open_threads(comms, 0, &err), CST_EINVAL);
    ck_assert_int_eq(cst_comm_open_threads(comms, CST_COMM_MAX_THREADS + 1, &err), CST_EINVAL);
    ck_assert_int_eq(cst_comm_open_threads(comms, 3, &err), CST_OK);
    for (int turn = 0; turn < 2; turn++) {
        for (uint32_t r = 0; r < 3; r++) {
            const struct cst_comm_call call = {.op = CST_COMM_ALL_REDUCE,
                                               .type = CST_COMM_FP32,
                                               .in = &in[r],
                                               .out = &out[r],
                                               .n_elems = 1};

            ck_assert_uint_eq(cst_comm_rank(comms[r]), r);
            ck_assert_uint_eq(cst_comm_size(comms[r]), 3);
            ck_assert_int_eq(cst_comm_start(comms[r], &call, &tickets[r], &err), CST_OK);
        }
        ck_assert_int_eq(cst_comm_try_wait(comms[2], tickets[2], &err), CST_OK);
        ck_assert_int_eq(cst_comm_wait(comms[0], tickets[0], &err), CST_OK);
        ck_assert_int_eq(cst_comm_wait(comms[1], tickets[1], &err), CST_OK);
        ck_assert(out[0] == 6 && out[1] == 6 && out[2] == 6);
    }
    ck_assert_int_eq(cst_comm_start(comms[0], NULL, tickets, &err), CST_EINVAL);
    ck_assert_int_eq(cst_comm_start(comms[0], &(struct cst_comm_call){.op = 1}, NULL, &err),
                     CST_EINVAL);
    cst_comm_close(comms[1]);
    ck_assert_int_eq(cst_comm_barrier(comms[0], &err), CST_ECANCELLED);
    ck_assert_str_eq(err.text, "rank 1 has closed its communicator");
    cst_comm_close(comms[0]);
    ck_assert_int_eq(cst_comm_barrier(comms[2], &err), CST_ECANCELLED);
    cst_comm_close(comms[2]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("comm");
    TCase *model = suite_case(suite, "model", NULL, NULL),
          *rules = suite_case(suite, "rules", NULL, NULL);

    tcase_add_loop_test(model, calls_agree_with_the_model, 1, COLLECTIVE_MAX_RANKS + 1);
#ifndef __SANITIZE_THREAD__
    tcase_add_test(model, scribbled_memory_is_no_address);
#endif
    tcase_add_test(rules, old_rounds_are_not_believed);
    tcase_add_test(rules, different_calls_are_named);
    tcase_add_loop_test(rules, different_counts_are_named, 0, 3);
    tcase_add_test(rules, a_closed_communicator_ends_calls);
    tcase_add_test(rules, a_transport_is_agreed_upon);
    tcase_add_test(rules, a_failed_wait_ends_calls);
    tcase_add_test(rules, calls_are_limited);
    tcase_add_test(rules, bad_calls_are_refused);
    tcase_add_test(rules, a_late_wake_up_finds_nothing);
    tcase_add_test(rules, threads_need_no_job);
    return suite_run(suite);
}
