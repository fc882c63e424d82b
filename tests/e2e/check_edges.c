/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of edges: arrays that processes pass to each other and to themselves, deaths while they
 * wait, and ranks that write nonsense into the memory that they share. */
#include "cistern/cistern.h"
#include "client/lib/job.h"
#include "proto/edge_memory.h"
#include "proto/shared.h"
#include "tests/lib/child.h"
#include "tests/lib/job_rig.h"
#include "tests/lib/patience.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THERE, BACK, STASH, N_EDGES, SLOT = 3000, N_SLOTS = 3, STASHED = 5 };

/* What the processes of a test tell each other. */
struct board {
    _Atomic uint32_t reached; /* Number of the last point that children have reached. */
};

static struct board *board;

struct worker {
    struct cst_client *client;
    struct cst_job *job;
    uint64_t step;
    struct cst_err err;
};

static void must(struct worker *w, int rc)
{
    suite_must(rc == CST_OK, "%s", w->err.text);
}

static void declare(struct worker *w, uint32_t rank, uint32_t world, uint64_t slot_bytes,
                    bool on_device)
{
    const struct cst_job_spec spec = {.name = "edges", .rank = rank, .world = world};
    const struct cst_edge_spec edges[N_EDGES] = {
        {"there", 0, world - 1, slot_bytes, N_SLOTS, on_device},
        {"back", world - 1, 0, SLOT, 1, false},
        {"stash", 0, 0, SLOT, STASHED, false},
    };
    int tensor;

    must(w, cst_connect(&w->client, proc.socket, &w->err));
    must(w, cst_job_open(&w->job, w->client, &spec, &w->err));
    for (int i = 0; i < N_EDGES; i++) {
        ck_assert_int_eq(cst_edge(w->job, &edges[i]), i);
    }
    tensor = cst_tensor(w->job, "t", CST_BF16, 1, (int64_t[]){100}, CST_GROUP_ALL);
    ck_assert_int_eq(tensor, 0);
    ck_assert_int_eq(cst_operator(w->job, "o", &tensor, 1), 0);
}

static void open_worker(struct worker *w, uint32_t rank, uint32_t world)
{
    declare(w, rank, world, SLOT, false);
    must(w, cst_commit(w->job, NULL, &w->err));
}

static void begin(struct worker *w, uint32_t rank, uint32_t world)
{
    open_worker(w, rank, world);
    must(w, cst_sync(w->job, &w->step, &w->err));
}

static void leave(struct worker *w)
{
    must(w, cst_job_leave(w->job, &w->err));
    cst_disconnect(w->client);
}

static void setup(void)
{
    job_rig_setup();
    board = child_share(sizeof *board);
}

static void teardown(void)
{
    settle_remove_jobs(&witness);
    child_unshare(board, sizeof *board);
    job_rig_teardown();
}

static void wait_reached(uint32_t point)
{
    uint64_t until = patience_until(20000);

    while (board->reached < point) {
        suite_must(!patience_over(until), "the child has not reached point %u", point);
        (void)poll(NULL, 0, 1);
    }
}

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
    must(w, cst_put(w->job, edge, number, data, length_of(number), &w->err));
}

static void take(struct worker *w, int edge, uint32_t number, uint32_t salt)
{
    uint8_t data[SLOT];

    must(w, cst_take(w->job, edge, number, data, length_of(number), &w->err));
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

    begin(&w, pid == 0 ? 1 : 0, 2);
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
    leave(&w);
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

    begin(&w, 0, 1);
    must(&w, cst_put_begin(w.job, STASH, 8, &slot, &w.err));
    ck_assert_uint_eq((uintptr_t)slot % 64, 0);
    memset(slot, 'x', SLOT);
    ck_assert_int_eq(cst_take_begin(w.job, STASH, 8, &from, &w.err), CST_ENOTFOUND);
    ck_assert_int_eq(cst_put_begin(w.job, STASH, 8, &slot, &w.err), CST_EINVAL);
    must(&w, cst_put_end(w.job, STASH, 8, &w.err));
    ck_assert_int_eq(cst_put_end(w.job, STASH, 8, &w.err), CST_EINVAL);
    must(&w, cst_take_begin(w.job, STASH, 8, &from, &w.err));
    ck_assert_ptr_eq(from, slot);
    ck_assert_int_eq(((const char *)from)[SLOT - 1], 'x');
    must(&w, cst_take_end(w.job, STASH, 8, &w.err));
    ck_assert_int_eq(cst_take_end(w.job, STASH, 8, &w.err), CST_EINVAL);
    leave(&w);
}
END_TEST

/* In an edge to oneself nothing waits for ever: what cannot come is refused. Arrays come back in
 * reverse order. A sync frees all slots, and ends what was between two parts. */
START_TEST(an_edge_to_oneself_is_a_stash)
{
    struct worker w = {0};
    uint8_t data[SLOT];
    void *slot;

    begin(&w, 0, 1);
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
    must(&w, cst_put_begin(w.job, STASH, 9, &slot, &w.err));
    must(&w, cst_sync(w.job, NULL, &w.err));
    ck_assert_int_eq(cst_put_end(w.job, STASH, 9, &w.err), CST_EINVAL);
    ck_assert_int_eq(cst_take(w.job, STASH, 0, data, 1, &w.err), CST_ENOTFOUND);
    for (uint32_t i = 0; i < STASHED; i++) {
        put(&w, STASH, i, 4);
    }
    take(&w, STASH, 0, 4);
    leave(&w);
}
END_TEST

/* Copies that were started run in the library's thread. Arrays come back in reverse order, ahead of
 * their use. A sync ends all copies. */
START_TEST(copies_run_beside_the_worker)
{
    static uint8_t data[STASHED][SLOT], back[STASHED][SLOT];
    struct worker w = {0};

    begin(&w, 0, 1);
    ck_assert_int_eq(cst_edge_wait(w.job, STASH, 0, &w.err), CST_EINVAL);
    for (int turn = 0; turn < 100; turn++) {
        for (uint32_t i = 0; i < STASHED; i++) {
            fill(data[i], i, (uint32_t)turn);
            must(&w, cst_put_start(w.job, STASH, i, data[i], SLOT, &w.err));
            ck_assert_int_eq(cst_put_start(w.job, STASH, i, data[i], SLOT, &w.err), CST_EINVAL);
            ck_assert_int_eq(cst_put_end(w.job, STASH, i, &w.err), CST_EINVAL);
        }
        if (turn % 10 == 9) { /* The step is given up. */
            must(&w, cst_sync(w.job, NULL, &w.err));
            ck_assert_int_eq(cst_edge_wait(w.job, STASH, 0, &w.err), CST_EINVAL);
            continue;
        }
        for (uint32_t i = 0; i < STASHED; i++) {
            must(&w, cst_edge_wait(w.job, STASH, i, &w.err));
            memset(data[i], 0xee, SLOT);
        }
        for (uint32_t i = STASHED; i-- > 0;) {
            must(&w, cst_take_start(w.job, STASH, i, back[i], SLOT, &w.err));
        }
        for (uint32_t i = STASHED; i-- > 0;) {
            must(&w, cst_edge_wait(w.job, STASH, i, &w.err));
            check(back[i], i, (uint32_t)turn);
        }
    }
    must(&w, cst_put_start(w.job, STASH, 0, data[0], SLOT, &w.err));
    leave(&w); /* The copy ends before the memory is unmapped. */
}
END_TEST

/* Calls that cannot be right are refused, and say why. */
START_TEST(wrong_calls_are_refused)
{
    struct worker w = {0};
    uint8_t data[SLOT + 1] = {0};
    const struct cst_edge_spec late = {"late", 0, 0, 1, 1, false};

    open_worker(&w, 0, 1);
    ck_assert_int_eq(cst_edge(w.job, &late), CST_EINVAL);
    ck_assert_int_eq(cst_put(w.job, STASH, 0, data, 1, &w.err), CST_EINVAL); /* no sync */
    must(&w, cst_sync(w.job, NULL, &w.err));
    ck_assert_int_eq(cst_put(w.job, STASH, 0, data, SLOT + 1, &w.err), CST_EINVAL);
    ck_assert_str_eq(w.err.text, "edge 'stash': 3001 bytes, but a slot has 3000");
    ck_assert_int_eq(cst_put(w.job, STASH, 0, NULL, 1, &w.err), CST_EINVAL);
    ck_assert_int_eq(cst_put(w.job, STASH, UINT32_MAX, data, 1, &w.err), CST_EINVAL);
    ck_assert_int_eq(cst_put(w.job, N_EDGES, 0, data, 1, &w.err), CST_EINVAL);
    ck_assert_int_eq(cst_put(w.job, -1, 0, data, 1, &w.err), CST_EINVAL);
    ck_assert_int_eq(cst_put(w.job, STASH, 0, NULL, 0, &w.err), CST_OK);
    leave(&w);
}
END_TEST

/* Declarations that no daemon can accept are refused when they are made. */
START_TEST(wrong_declarations_are_refused)
{
    const struct cst_job_spec spec = {.name = "edges", .rank = 0, .world = 2};
    static const struct {
        struct cst_edge_spec edge;
        int status;
    } cases[] = {
        {{"", 0, 1, 1, 1, false}, CST_EINVAL},
        {{"a\n", 0, 1, 1, 1, false}, CST_EINVAL},
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

    must(&w, cst_connect(&w.client, proc.socket, &w.err));
    must(&w, cst_job_open(&w.job, w.client, &spec, &w.err));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int rc = cst_edge(w.job, &cases[i].edge);

        ck_assert_int_eq(rc, cases[i].status);
    }
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

    declare(&w, rank, 2, rank == 0 ? SLOT : slot_bytes, rank != 0 && on_device);
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

    begin(&w, 0, 1);
    with = raw_stat(&witness)->host_used;
    leave(&w);
    while (raw_stat(&witness)->host_used != with - bytes) {
        ck_assert_msg(!patience_over(until), "edges of a job without workers are not freed");
    }
    begin(&w, 0, 1);
    ck_assert_uint_eq(raw_stat(&witness)->host_used, with);
    put(&w, STASH, 0, 5);
    take(&w, STASH, 0, 5);
    leave(&w);
}
END_TEST

/* An edge that exceeds the budget is refused by the commit, with the numbers. */
START_TEST(the_budget_limits_edges)
{
    struct worker w = {0};

    declare(&w, 0, 1, UINT64_C(1) << 28, false);
    ck_assert_int_eq(cst_commit(w.job, NULL, &w.err), CST_EBUDGET);
    ck_assert_ptr_nonnull(strstr(w.err.text, "host memory"));
    cst_disconnect(w.client);
}
END_TEST

/* -- deaths ----------------------------------------------------------------------------------- */

enum { RELAYED = 4, STEPS = 3, CALLS = STEPS * RELAYED * 2 };

static uint32_t n_calls, dies_before; /* Number of calls of this process; UINT32_MAX: no death. */

static void count_call(void)
{
    if (n_calls++ == dies_before) {
        (void)raise(SIGKILL);
    }
}

/* The first byte of array @number in the present attempt. */
static uint8_t mark_of(const struct worker *w, uint32_t number)
{
    return (uint8_t)(w->job->attempt * 16 + number);
}

/* Pass RELAYED arrays there and back. Each array names the attempt in which it was put. The status
 * is CST_EPEERDIED if the other rank died. */
static int relay(struct worker *w, uint32_t rank)
{
    uint8_t data[SLOT];
    int rc = CST_OK;

    for (uint32_t i = 0; i < RELAYED && rc == CST_OK; i++) {
        for (int half = 0; half < 2 && rc == CST_OK; half++) {
            int edge = half == 0 ? THERE : BACK;
            bool puts = (rank == 0) == (half == 0);

            data[0] = puts ? mark_of(w, i) : 0;
            count_call();
            rc = puts ? cst_put(w->job, edge, i, data, 1, &w->err)
                      : cst_take(w->job, edge, i, data, 1, &w->err);
            suite_must(rc != CST_OK || data[0] == mark_of(w, i),
                       "array %u of another attempt was taken", i);
        }
    }
    return rc;
}

/* Do the steps that are left, and repeat those in which the other rank died. */
static void train(struct worker *w, uint32_t rank)
{
    const struct cst_hyper_params params = {.lr = 0.1};
    struct cst_step_result result;
    char other[16];
    int rc = CST_EPEERDIED;

    (void)snprintf(other, sizeof other, "rank %u ", 1 - rank);
    while (w->step < STEPS) {
        if (rc != CST_OK) {
            rc = cst_sync(w->job, &w->step, &w->err);
        }
        rc = rc == CST_OK ? relay(w, rank) : rc;
        rc = rc == CST_OK ? cst_step(w->job, &params, &result, &w->err) : rc;
        w->step = rc == CST_OK ? result.step : w->step;
        suite_must(rc == CST_OK || (rc == CST_EPEERDIED && strstr(w->err.text, other) != NULL),
                   "%d: %s", rc, w->err.text);
    }
}

/* Start a process that trains as @rank, and kills itself before call number @dies of an edge. */
static pid_t start_trainer(uint32_t rank, uint32_t dies)
{
    pid_t pid = child_start();
    struct worker w = {0};

    if (pid == 0) {
        dies_before = dies;
        open_worker(&w, rank, 2);
        board->reached++;
        w.step = cst_job_steps(w.job);
        train(&w, rank);
        leave(&w);
        _exit(0);
    }
    return pid;
}

/* A rank dies before each of its calls, in turn. The other one is told which rank it was, wherever
 * it waits, and both do the step again. Nothing of the earlier attempt is taken. */
START_TEST(the_death_of_a_rank_ends_all_waits)
{
    uint32_t dying = (uint32_t)_i % 2, call = (uint32_t)_i / 2 * 5 % CALLS;
    pid_t pids[2];

    for (uint32_t r = 0; r < 2; r++) {
        pids[r] = start_trainer(r, r == dying ? call : UINT32_MAX);
    }
    ck_assert(child_join(pids[dying], "the rank should have been killed"));
    pids[dying] = start_trainer(dying, UINT32_MAX);
    for (uint32_t r = 0; r < 2; r++) {
        ck_assert(!child_join(pids[r], "a rank failed"));
    }
}
END_TEST

/* A rank is killed at any moment, within a call too. It is named, and both do the step again. */
START_TEST(the_death_of_a_rank_at_any_moment_is_named)
{
    unsigned seed = (unsigned)_i + 1;
    uint32_t dying = (uint32_t)_i % 2;
    pid_t pids[2];

    for (uint32_t r = 0; r < 2; r++) {
        pids[r] = start_trainer(r, UINT32_MAX);
    }
    wait_reached(2);
    (void)usleep((unsigned)rand_r(&seed) % 12000);
    ck_assert_int_eq(kill(pids[dying], SIGKILL), 0);
    if (child_join(pids[dying], "a rank failed")) {
        pids[dying] = start_trainer(dying, UINT32_MAX);
    } else {
        pids[dying] = 0; /* It had ended. */
    }
    for (uint32_t r = 0; r < 2; r++) {
        ck_assert(pids[r] == 0 || !child_join(pids[r], "a rank failed"));
    }
}
END_TEST

/* Wait as rank 0 for what never comes, in a child process that has the edge's call @_i. Returns
 * when the child waits. The child expects the status @status and the words @words. */
static pid_t start_waiter(bool put_too, int status, const char *words)
{
    pid_t pid = child_start();
    struct worker w = {0};
    uint8_t data[SLOT] = {0};
    int rc = CST_OK;

    if (pid != 0) {
        return pid;
    }
    begin(&w, 0, 2);
    board->reached++;
    /* When the job is removed, its memory becomes zeros, and slots look free. */
    for (uint32_t i = 0; put_too && rc == CST_OK; i++) {
        rc = cst_put(w.job, THERE, i, data, 1, &w.err);
    }
    rc = put_too ? rc : cst_take(w.job, BACK, 0, data, 1, &w.err);
    suite_must(rc == status && strstr(w.err.text, words) != NULL, "%d: %s", rc, w.err.text);
    _exit(0);
}

/* A rank waits in a put or a take, and the other one is killed, which does not call anything. */
START_TEST(a_waiting_rank_is_told_of_a_death)
{
    pid_t other = child_start(), waiter;
    struct worker w = {0};

    if (other == 0) {
        begin(&w, 1, 2);
        (void)pause();
    }
    waiter = start_waiter(_i == 0, CST_EPEERDIED, "rank 1 ");
    wait_reached(1);
    (void)usleep(20000); /* So that the rank probably sleeps. It must be told in any case. */
    ck_assert_int_eq(kill(other, SIGKILL), 0);
    ck_assert(!child_join(waiter, "the waiting rank failed"));
    ck_assert(child_join(other, "the other rank should have been killed"));
}
END_TEST

/* Clear the first edge again and again, as the daemon does after the removal of a job: the head, so
 * that the waiting rank does not see there that it is over, and the slots so often that no single
 * wait lasts long. */
static void clear_again(struct worker *w)
{
    struct cst_shared_head *head = w->job->edges[THERE].memory.base;

    for (;;) {
        uint64_t until = patience_until(250);

        memset(head, 0, CST_EDGE_PAGE_BYTES);
        while (!patience_over(until)) {
            atomic_store(&head->over, 0);
        }
    }
}

/* A rank waits, and the job is removed or the daemon is killed. */
START_TEST(every_wait_ends)
{
    pid_t other = child_start(), waiter;
    struct worker w = {0};

    if (other == 0) {
        begin(&w, 1, 2);
        board->reached++;
        if (_i == 0) {
            clear_again(&w);
        }
        (void)pause();
    }
    waiter = start_waiter(_i == 0, _i < 2 ? CST_ENOTFOUND : CST_ECONN, _i < 2 ? "removed" : "");
    wait_reached(2); /* Both have synced. */
    if (_i < 2) {
        ck_assert_int_eq(raw_job_remove(&witness, "edges"), CST_OK);
        ck_assert(!child_join(waiter, "the waiting rank failed"));
        ck_assert_int_eq(kill(other, SIGKILL), 0);
        ck_assert(child_join(other, "the other rank should have been killed"));
        return;
    }
    daemon_proc_kill(&proc);
    ck_assert(!child_join(waiter, "the waiting rank failed"));
    ck_assert_int_eq(kill(other, SIGKILL), 0);
    ck_assert(child_join(other, "the other rank should have been killed"));
    daemon_proc_restart(&proc, NULL);
    raw_close(&witness);
    raw_open(&witness, proc.manager);
    base_fds = settle_base_fds(&witness, &proc);
}
END_TEST

/* A rank whose partner neither puts nor takes is told so after timeout_ms. */
START_TEST(a_wait_has_a_limit)
{
    struct worker w = {0}, other = {0};
    uint8_t data[SLOT] = {0};
    pid_t pid = child_start();

    if (pid == 0) {
        begin(&other, 1, 2);
        (void)pause();
    }
    begin(&w, 0, 2);
    w.job->timeout_ms = 200; /* Of its puts and takes alone. */
    ck_assert_int_eq(cst_take(w.job, BACK, 7, data, 1, &w.err), CST_ETIMEDOUT);
    ck_assert_str_eq(w.err.text, "edge 'back': rank 1 did not put array 7 in 200 ms");
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        must(&w, cst_put(w.job, THERE, i, data, 1, &w.err));
    }
    ck_assert_int_eq(cst_put(w.job, THERE, N_SLOTS, data, 1, &w.err), CST_ETIMEDOUT);
    ck_assert_str_eq(w.err.text, "edge 'there': rank 1 freed no slot in 200 ms (array 3)");
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert(child_join(pid, "the other rank should have been killed"));
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
        board->reached = 1;
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
        begin(&other, 1, 2);
        scribble(&other);
    }
    begin(&w, 0, 2);
    w.job->timeout_ms = 20; /* Of its puts and takes alone. */
    wait_reached(1);
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
    TCase *arrays = suite_case(suite, "arrays", setup, teardown);
    TCase *deaths = suite_case(suite, "deaths", setup, teardown);
    TCase *nonsense = suite_case(suite, "nonsense", setup, teardown);
    bool every = suite_stride(3) == 1, is_sparse = suite_is_sparse();

    dies_before = UINT32_MAX;
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
    tcase_add_loop_test(deaths, the_death_of_a_rank_ends_all_waits, 0,
                        every       ? 2 * CALLS
                        : is_sparse ? 4
                                    : 16);
    tcase_add_loop_test(deaths, the_death_of_a_rank_at_any_moment_is_named, 0,
                        every       ? 200
                        : is_sparse ? 1
                                    : 4);
    tcase_add_loop_test(deaths, a_waiting_rank_is_told_of_a_death, 0, 2);
    tcase_add_loop_test(deaths, every_wait_ends, 0, 3);
    tcase_add_test(deaths, a_wait_has_a_limit);
    tcase_add_test(nonsense, nonsense_in_the_memory_harms_nobody);
    return suite_run(suite);
}
