/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of edges: arrays that processes pass to each other and to themselves, and ranks that write
 * nonsense into the memory that they share. check_edge_deaths has the deaths of ranks. */
#include "client/lib/job.h"
#include "proto/edge_memory.h"
#include "tests/lib/child.h"
#include "tests/lib/edge_job.h"
#include "tests/lib/job_rig.h"
#include "tests/lib/patience.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* -- arrays ----------------------------------------------------------------------------------- */

/* The content of array @number: its length, and its bytes. */
static uint64_t length_of(uint32_t number)
{
    return (uint64_t)number * 2654435761u % (SLOT + 1);
}

static void fill(uint8_t *data, uint32_t number, uint32_t salt)
{
    for (uint64_t i = 0; i < length_of(number); i++) {
        data[i] = (uint8_t)(number * 31 + i * 7 + salt);
    }
}

static void check(const uint8_t *data, uint32_t number, uint32_t salt)
{
    uint8_t right[SLOT];

    fill(right, number, salt);
    suite_must(memcmp(data, right, length_of(number)) == 0, "array %u is wrong", number);
}

static void put(struct worker *w, int edge, uint32_t number, uint32_t salt)
{
    uint8_t data[SLOT];

    fill(data, number, salt);
    worker_must(w, cst_put(w->job, edge, number, data, length_of(number), &w->err));
}

static void take(struct worker *w, int edge, uint32_t number, uint32_t salt)
{
    uint8_t data[SLOT];

    worker_must(w, cst_take(w->job, edge, number, data, length_of(number), &w->err));
    check(data, number, salt);
}

/* The order in which the receiver takes the arrays of each group of N_SLOTS. */
static uint32_t shuffled(uint32_t i)
{
    return i - i % N_SLOTS + (i * 2 + i / N_SLOTS) % N_SLOTS;
}

/* Two processes pass a thousand arrays of all lengths to each other. The receiver takes them in
 * another order than they were put, and each array returns. */
START_TEST(arrays_pass_between_two_processes)
{
    enum { N = 999 };
    struct worker w = {0};
    pid_t pid = child_start();

    edge_job_begin(&w, pid == 0 ? 1 : 0, 2);
    /* Each has said on which processors it runs. */
    ck_assert(cst_shared_spins(w.job->edges[THERE].memory.base, 1));
    for (uint32_t i = 0; i < N; i += N_SLOTS) {
        for (uint32_t k = i; pid != 0 && k < i + N_SLOTS; k++) {
            put(&w, THERE, k, 1);
        }
        for (uint32_t k = i; pid == 0 && k < i + N_SLOTS; k++) {
            take(&w, THERE, shuffled(k), 1);
            put(&w, BACK, shuffled(k), 2);
        }
        for (uint32_t k = i; pid != 0 && k < i + N_SLOTS; k++) {
            take(&w, BACK, shuffled(k), 2);
        }
    }
    if (pid != 0) {
        ck_assert(!child_join(pid, "the other rank failed"));
    }
    worker_leave(&w);
    if (pid == 0) {
        _exit(0);
    }
}
END_TEST

/* An array may be as long as a slot, and no longer. A slot is written and read in place. */
START_TEST(slots_are_used_in_place)
{
    struct worker w = {0};
    const void *from;
    void *slot;

    edge_job_begin(&w, 0, 1);
    worker_must(&w, cst_put_begin(w.job, STASH, 8, &slot, &w.err));
    ck_assert_uint_eq((uintptr_t)slot % 64, 0);
    memset(slot, 'x', SLOT);
    ck_assert_int_eq(cst_take_begin(w.job, STASH, 8, &from, &w.err), CST_ENOTFOUND);
    ck_assert_int_eq(cst_put_begin(w.job, STASH, 8, &slot, &w.err), CST_EINVAL);
    worker_must(&w, cst_put_end(w.job, STASH, 8, &w.err));
    ck_assert_int_eq(cst_put_end(w.job, STASH, 8, &w.err), CST_EINVAL);
    worker_must(&w, cst_take_begin(w.job, STASH, 8, &from, &w.err));
    ck_assert_ptr_eq(from, slot);
    ck_assert_int_eq(((const char *)from)[SLOT - 1], 'x');
    worker_must(&w, cst_take_end(w.job, STASH, 8, &w.err));
    ck_assert_int_eq(cst_take_end(w.job, STASH, 8, &w.err), CST_EINVAL);
    worker_leave(&w);
}
END_TEST

/* In an edge to oneself nothing waits for ever: what cannot come is refused. Arrays come back in
 * reverse order. A sync frees all slots, and ends what was between two parts. */
START_TEST(an_edge_to_oneself_is_a_stash)
{
    struct worker w = {0};
    uint8_t data[SLOT];
    void *slot;

    edge_job_begin(&w, 0, 1);
    for (int turn = 0; turn < 2; turn++) {
        for (uint32_t i = 0; i < STASHED; i++) {
            put(&w, STASH, i, 3);
        }
        ck_assert_int_eq(cst_put(w.job, STASH, STASHED, data, 1, &w.err), CST_EINVAL);
        ck_assert_ptr_nonnull(strstr(w.err.text, "all 5 slots are full"));
        ck_assert_int_eq(cst_take(w.job, STASH, STASHED, data, 1, &w.err), CST_ENOTFOUND);
        for (uint32_t i = STASHED; i-- > 0;) {
            take(&w, STASH, i, 3);
        }
    }
    for (uint32_t i = 0; i + 1 < STASHED; i++) {
        put(&w, STASH, i, 3);
    }
    worker_must(&w, cst_put_begin(w.job, STASH, 9, &slot, &w.err));
    worker_must(&w, cst_sync(w.job, NULL, &w.err));
    ck_assert_int_eq(cst_put_end(w.job, STASH, 9, &w.err), CST_EINVAL);
    ck_assert_int_eq(cst_take(w.job, STASH, 0, data, 1, &w.err), CST_ENOTFOUND);
    for (uint32_t i = 0; i < STASHED; i++) {
        put(&w, STASH, i, 4);
    }
    take(&w, STASH, 0, 4);
    worker_leave(&w);
}
END_TEST

/* Copies that were started run in the library's thread. Arrays come back in reverse order, ahead of
 * their use. A sync ends all copies. */
START_TEST(copies_run_beside_the_worker)
{
    static uint8_t data[STASHED][SLOT], back[STASHED][SLOT];
    struct worker w = {0};

    edge_job_begin(&w, 0, 1);
    ck_assert_int_eq(cst_edge_wait(w.job, STASH, 0, &w.err), CST_EINVAL);
    ck_assert_str_eq(w.err.text, "edge 'stash': no copy of array 0 was started");
    ck_assert_int_eq(cst_edge_wait(w.job, N_EDGES, 0, &w.err), CST_EINVAL);
    ck_assert_str_eq(w.err.text, "there is no edge 3, 3 are declared");
    for (int turn = 0; turn < 100; turn++) {
        for (uint32_t i = 0; i < STASHED; i++) {
            fill(data[i], i, (uint32_t)turn);
            worker_must(&w, cst_put_start(w.job, STASH, i, data[i], SLOT, &w.err));
            ck_assert_int_eq(cst_put_start(w.job, STASH, i, data[i], SLOT, &w.err), CST_EINVAL);
            ck_assert_int_eq(cst_put_end(w.job, STASH, i, &w.err), CST_EINVAL);
        }
        if (turn % 10 == 9) { /* The step is given up. */
            worker_must(&w, cst_sync(w.job, NULL, &w.err));
            ck_assert_int_eq(cst_edge_wait(w.job, STASH, 0, &w.err), CST_EINVAL);
            continue;
        }
        for (uint32_t i = 0; i < STASHED; i++) {
            worker_must(&w, cst_edge_wait(w.job, STASH, i, &w.err));
            memset(data[i], 0xee, SLOT);
        }
        for (uint32_t i = STASHED; i-- > 0;) {
            worker_must(&w, cst_take_start(w.job, STASH, i, back[i], SLOT, &w.err));
        }
        for (uint32_t i = STASHED; i-- > 0;) {
            worker_must(&w, cst_edge_wait(w.job, STASH, i, &w.err));
            check(back[i], i, (uint32_t)turn);
        }
    }
    worker_must(&w, cst_put_start(w.job, STASH, 0, data[0], SLOT, &w.err));
    worker_leave(&w); /* The copy ends before the memory is unmapped. */
}
END_TEST

/* Calls that cannot be right are refused, and say why. */
START_TEST(wrong_calls_are_refused)
{
    struct worker w = {0};
    uint8_t data[SLOT + 1] = {0};
    const struct cst_edge_spec late = {"late", 0, 0, 1, 1, false};

    edge_job_open(&w, 0, 1);
    ck_assert_int_eq(cst_edge(w.job, &late), CST_EINVAL);
    ck_assert_int_eq(cst_put(w.job, STASH, 0, data, 1, &w.err), CST_EINVAL); /* no sync */
    worker_must(&w, cst_sync(w.job, NULL, &w.err));
    ck_assert_int_eq(cst_put(w.job, STASH, 0, data, SLOT + 1, &w.err), CST_EINVAL);
    ck_assert_str_eq(w.err.text, "edge 'stash': 3001 bytes, but a slot has 3000");
    ck_assert_int_eq(cst_put(w.job, STASH, 0, NULL, 1, &w.err), CST_EINVAL);
    ck_assert_int_eq(cst_put(w.job, STASH, UINT32_MAX, data, 1, &w.err), CST_EINVAL);
    ck_assert_int_eq(cst_put(w.job, N_EDGES, 0, data, 1, &w.err), CST_EINVAL);
    ck_assert_int_eq(cst_put(w.job, -1, 0, data, 1, &w.err), CST_EINVAL);
    ck_assert_int_eq(cst_put(w.job, STASH, 0, NULL, 0, &w.err), CST_OK);
    worker_leave(&w);
}
END_TEST

/* Declarations that no daemon can accept are refused when they are made, and the job has the
 * cause. */
START_TEST(wrong_declarations_are_refused)
{
    const struct cst_job_spec spec = {.name = "edges", .rank = 0, .world = 2};
    static const struct {
        struct cst_edge_spec edge;
        int status;
    } cases[] = {
        {{"", 0, 1, 1, 1, false}, CST_EINVAL},
        {{"a\n", 0, 1, 1, 1, false}, CST_EINVAL},
        {{"a\xff", 0, 1, 1, 1, false}, CST_EINVAL}, /* No JSON could have this name. */
        {{NULL, 0, 1, 1, 1, false}, CST_EINVAL},
        {{"a", 0, 2, 1, 1, false}, CST_EINVAL},
        {{"a", 2, 0, 1, 1, false}, CST_EINVAL},
        {{"a", 0, 1, 0, 1, false}, CST_EINVAL},
        {{"a", 0, 1, 1, 0, false}, CST_EINVAL},
        {{"a", 0, 1, 1, CST_EDGE_MAX_SLOTS + 1, false}, CST_EINVAL},
        {{"a", 0, 1, UINT64_MAX, 2, false}, CST_EINVAL},
        {{"a", CST_ALL_RANKS, CST_ALL_RANKS, 1, 1, true}, CST_EINVAL},
        {{"a", 0, 1, CST_EDGE_MAX_BYTES, 1, false}, CST_OK},
        {{"a", 0, 1, 1, 1, false}, CST_EEXIST},
    };
    struct worker w = {0};

    worker_open(&w, &spec);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int rc = cst_edge(w.job, &cases[i].edge);

        ck_assert_int_eq(rc, cases[i].status);
        ck_assert(rc == CST_OK || cst_job_error(w.job)->status == rc);
    }
    ck_assert_int_eq(cst_edge(w.job, NULL), CST_EINVAL);
    ck_assert_str_eq(cst_job_error(w.job)->text,
                     "job 'edges': the description of the edge is missing");
    for (int i = 1; i < CST_EDGE_MAX; i++) {
        char name[16];

        (void)snprintf(name, sizeof name, "e%d", i);
        ck_assert_int_eq(cst_edge(w.job, &(struct cst_edge_spec){name, 0, 1, 1, 1, false}), i);
    }
    ck_assert_int_eq(cst_edge(w.job, &(struct cst_edge_spec){"more", 0, 1, 1, 1, false}),
                     CST_EINVAL);
    cst_disconnect(w.client);
}
END_TEST

/* Ranks that declare an edge differently get an error with both values. */
static void disagree(uint64_t slot_bytes, bool on_device, const char *one, const char *other)
{
    struct worker w = {0};
    pid_t pid = child_start();
    uint32_t rank = pid == 0 ? 1 : 0;

    edge_job_declare(&w, rank, 2, rank == 0 ? SLOT : slot_bytes, rank != 0 && on_device);
    ck_assert_int_eq(cst_commit(w.job, NULL, &w.err), CST_EMISMATCH);
    ck_assert_ptr_nonnull(strstr(w.err.text, "edge 'there' has "));
    ck_assert_ptr_nonnull(strstr(w.err.text, one));
    ck_assert_ptr_nonnull(strstr(w.err.text, other));
    cst_disconnect(w.client);
    if (pid == 0) {
        _exit(0);
    }
    ck_assert(!child_join(pid, "the other rank failed"));
}

START_TEST(ranks_that_disagree_are_named)
{
    disagree(SLOT + 64, false, "3 slots of 3000 bytes", "3 slots of 3064 bytes");
}
END_TEST

START_TEST(ranks_that_disagree_about_the_device)
{
    disagree(SLOT, true, "host memory in rank 0", "device memory in rank 1");
}
END_TEST

/* The memory of edges is charged to the budget for host memory, to the byte. It is freed when all
 * ranks have left, and is there again when they come back. */
START_TEST(memory_is_charged_to_the_budget)
{
    const uint64_t bytes =
        cst_edge_bytes(SLOT, N_SLOTS) + cst_edge_bytes(SLOT, 1) + cst_edge_bytes(SLOT, STASHED);
    uint64_t with, until = patience_until(20000);
    struct worker w = {0};

    edge_job_begin(&w, 0, 1);
    with = raw_stat(&witness)->host_used;
    worker_leave(&w);
    while (raw_stat(&witness)->host_used != with - bytes) {
        ck_assert_msg(!patience_over(until), "edges of a job without workers are not freed");
    }
    edge_job_begin(&w, 0, 1);
    ck_assert_uint_eq(raw_stat(&witness)->host_used, with);
    put(&w, STASH, 0, 5);
    take(&w, STASH, 0, 5);
    worker_leave(&w);
}
END_TEST

/* An edge that exceeds the budget is refused by the commit, with the numbers. */
START_TEST(the_budget_limits_edges)
{
    struct worker w = {0};

    edge_job_declare(&w, 0, 1, UINT64_C(1) << 28, false);
    ck_assert_int_eq(cst_commit(w.job, NULL, &w.err), CST_EBUDGET);
    ck_assert_ptr_nonnull(strstr(w.err.text, "host memory"));
    cst_disconnect(w.client);
}
END_TEST

/* -- nonsense --------------------------------------------------------------------------------- */

/* Write random words to the memory of both edges, wherever the head and the words of slots are. */
static void scribble(struct worker *w)
{
    unsigned seed = 1;

    for (;;) {
        for (int e = THERE; e <= BACK; e++) {
            uint64_t *words = w->job->edges[e].memory.base;
            size_t i = (size_t)rand_r(&seed) % (CST_EDGE_PAGE_BYTES / sizeof *words);

            words[i] = (uint64_t)rand_r(&seed) << 33 ^ (uint64_t)rand_r(&seed);
            if (rand_r(&seed) % 4 == 0) { /* What counts for an attempt that runs. */
                words[i] = cst_edge_full(w->job->attempt, (uint32_t)rand_r(&seed) % 8);
            }
        }
        *reached = 1;
        (void)sched_yield();
    }
}

/* A rank writes nonsense all over the shared memory. The other one gets arrays with any content, or
 * its calls end at their limit. It does not crash, and its edge to itself is not affected. */
START_TEST(nonsense_in_the_memory_harms_nobody)
{
    struct worker w = {0}, other = {0};
    uint8_t data[SLOT] = {0};
    uint64_t until = patience_until(20000);
    pid_t pid = child_start();

    if (pid == 0) {
        edge_job_begin(&other, 1, 2);
        scribble(&other);
    }
    edge_job_begin(&w, 0, 2);
    w.job->timeout_ms = 20; /* Of its puts and takes alone. */
    worker_await(reached, 1);
    for (uint32_t i = 0; i < 30; i++) {
        int rc = cst_put(w.job, THERE, i % 8, data, SLOT, &w.err);

        ck_assert_msg(rc == CST_OK || rc == CST_ETIMEDOUT, "%d: %s", rc, w.err.text);
        rc = cst_take(w.job, BACK, i % 8, data, SLOT, &w.err);
        ck_assert_msg(rc == CST_OK || rc == CST_ETIMEDOUT, "%d: %s", rc, w.err.text);
        put(&w, STASH, i, 6);
        take(&w, STASH, i, 6);
    }
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert(child_join(pid, "the other rank should have been killed"));
    while (cst_put(w.job, THERE, 8, data, 1, &w.err) != CST_EPEERDIED) {
        ck_assert_msg(!patience_over(until), "%s", w.err.text);
    }
    cst_disconnect(w.client);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("edges");
    TCase *arrays = suite_case(suite, "arrays", worker_setup, worker_teardown);
    TCase *nonsense = suite_case(suite, "nonsense", worker_setup, worker_teardown);

    tcase_add_test(arrays, arrays_pass_between_two_processes);
    tcase_add_test(arrays, slots_are_used_in_place);
    tcase_add_test(arrays, an_edge_to_oneself_is_a_stash);
    tcase_add_test(arrays, copies_run_beside_the_worker);
    tcase_add_test(arrays, wrong_calls_are_refused);
    tcase_add_test(arrays, wrong_declarations_are_refused);
    tcase_add_test(arrays, ranks_that_disagree_are_named);
    tcase_add_test(arrays, ranks_that_disagree_about_the_device);
    tcase_add_test(arrays, memory_is_charged_to_the_budget);
    tcase_add_test(arrays, the_budget_limits_edges);
    tcase_add_test(nonsense, nonsense_in_the_memory_harms_nobody);
    return suite_run(suite);
}
