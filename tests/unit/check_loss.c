/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the loss of the accelerator with a rank's pool: only the attempt is lost. The pool of
 * rank 0 is on engine 1's accelerator, and that of rank 1 in host memory. */
#include "tests/lib/suite.h"
#include "tests/unit/core_rig.h"

#include <check.h>
#include <string.h>

#define WORDS "engine 1 (GPU-0): it fell off the bus"
#define GPU_ENGINE 1

static const uint32_t engines[] = {GPU_ENGINE, 0};
static struct rig rig;

static void teardown(void)
{
    rig_close(&rig);
}

static void open_job(struct rig_job job)
{
    job.n_chunks = 4;
    job.world = 2;
    job.n_blocks = job.n_blocks > 0 ? job.n_blocks : 8;
    job.engines = engines;
    rig_open_job(&rig, &job);
    rig_start(&rig, 2);
}

/* The status of a command on a lost accelerator, of which there are several (@i). */
static int status(int i)
{
    return i % 2 == 0 ? CST_EENGINE : CST_ELOST;
}

static void lose(uint64_t ticket, int i)
{
    rig_done(&rig, ticket, status(i), WORDS);
}

static void hand_in(uint32_t rank, uint32_t chunk)
{
    ck_assert_int_eq(
        rig_status(&rig, rig_hand_in(&rig, rank, chunk, rig_get_grad(&rig, rank, chunk))), CST_OK);
}

/* Check that rank 0 is told the accelerator and the reason, and that rank 1 is told to repeat the
 * step. */
static void check_told(uint64_t mine, uint64_t theirs, int i)
{
    ck_assert_int_eq(rig_status(&rig, mine), status(i));
    ck_assert_ptr_nonnull(strstr(rig_answer(&rig, mine)->err.text, WORDS));
    ck_assert_ptr_nonnull(strstr(rig_answer(&rig, mine)->err.text, "the pool of rank 0"));
    ck_assert_int_eq(rig_status(&rig, theirs), CST_EPEERDIED);
    ck_assert_ptr_nonnull(strstr(rig_answer(&rig, theirs)->err.text, WORDS));
}

/* Rank 0 gets the error from every request, rank 1 may sync, and states can be read and written
 * meanwhile. Rank 0 leaves and comes back; the next attempt then runs normally. */
static void go_on(int i)
{
    uint64_t fetch, sync, other, read, write;

    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_INTERRUPTED);
    ck_assert(!rig_stats(&rig).closing);
    fetch = rig_fetch(&rig, 0, 2);
    other = rig_fetch(&rig, 1, 2);
    check_told(fetch, other, i);
    ck_assert_int_eq(rig_status(&rig, rig_rank_event(&rig, CST_EV_SYNC, 0)), status(i));
    other = rig_rank_event(&rig, CST_EV_SYNC, 1);
    read = rig_io(&rig, CST_EV_READ, 3, CST_ROW_MASTER, 0, 10);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, read), CST_OK);
    if (rig_stats(&rig).chunks_ahead == 0) {
        write = rig_io(&rig, CST_EV_WRITE, 3, CST_ROW_MASTER, 0, 10);
        rig_drain(&rig);
        ck_assert_int_eq(rig_status(&rig, write), CST_OK);
    }
    ck_assert_int_eq(rig_status(&rig, rig_rank_event(&rig, CST_EV_LEAVE, 0)), CST_OK);
    ck_assert_uint_eq(rig_books(&rig, 0).free, rig_books(&rig, 0).capacity);
    ck_assert(rig_waits(&rig, other));
    (void)rig_rank_event(&rig, CST_EV_ATTACH, 0);
    sync = rig_rank_event(&rig, CST_EV_SYNC, 0);
    ck_assert_int_eq(rig_status(&rig, sync), CST_OK);
    rig.attempt = rig_answer(&rig, sync)->attempt;
}

/* -- a running step --------------------------------------------------------------------------- */

/* A read of a gradient that waits for its sum is cancelled with the sum, because the row then holds
 * no gradient. No read of an unfinished sum begins. */
static void check_void_read(uint64_t tag, uint64_t reduce, int i)
{
    const struct cst_command *read = NULL;
    bool after = false;

    if (i / 2 == 1) {
        ck_assert_int_eq(rig_status(&rig, tag), CST_EBUSY);
        return;
    }
    ck_assert(rig_waits(&rig, tag));
    for (unsigned n = 0; n < rig.n_commands; n++) {
        if (rig.commands[n].n_dst > 0 && rig.commands[n].dst[0].segment == RIG_STAGING_SEGMENT) {
            read = &rig.commands[n];
        }
    }
    ck_assert_ptr_nonnull(read);
    for (uint32_t n = 0; n < read->n_after; n++) {
        after = after || read->after[n] == reduce;
    }
    ck_assert(after);
    rig_done(&rig, read->ticket, CST_ECANCELLED, NULL);
    ck_assert_int_eq(rig_status(&rig, tag), CST_ECANCELLED);
}

/* The sum of both ranks' gradients is lost with the accelerator whose engine was to compute it. */
START_TEST(sum)
{
    uint64_t mine, theirs, grad, reduce;

    open_job((struct rig_job){.grad_fp32 = _i / 2 == 1, .grad_over = _i / 2 == 2});
    hand_in(0, 0);
    hand_in(1, 0);
    mine = rig_fetch(&rig, 0, 1);
    theirs = rig_step(&rig, 1);
    grad = rig_io(&rig, CST_EV_READ, 0, CST_ROW_GRAD, 0, 10);
    ck_assert_uint_eq(rig_only(&rig, CST_COMMAND_REDUCE).node, GPU_ENGINE);
    reduce = rig_only(&rig, CST_COMMAND_REDUCE).ticket;
    lose(reduce, _i);
    check_told(mine, theirs, _i);
    check_void_read(grad, reduce, _i);
    rig_drain(&rig);
    grad = rig_io(&rig, CST_EV_READ, 0, CST_ROW_GRAD, 0, 10);
    ck_assert_int_eq(rig_status(&rig, grad), CST_EBUSY); /* the row holds no complete sum */
    go_on(_i);
    rig_whole_step(&rig, 4, 2);
    ck_assert_uint_eq(rig_stats(&rig).step, 1);
    ck_assert_uint_eq(rig_stats(&rig).attempt, 2);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_stats(&rig).n_updates, 4);
}
END_TEST

/* A gradient that was being spilled is lost with the accelerator. */
START_TEST(staging)
{
    uint64_t mine, theirs;

    open_job((struct rig_job){.n_blocks = 3});
    hand_in(0, 0);
    (void)rig_get_grad(&rig, 0, 1);
    (void)rig_get_grad(&rig, 0, 2);
    mine = rig_fetch_grad(&rig, 0, 3);
    theirs = rig_step(&rig, 1);
    lose(rig_only(&rig, CST_COMMAND_COPY).ticket, _i);
    check_told(mine, theirs, _i);
    go_on(_i);
    rig_whole_step(&rig, 4, 2);
    ck_assert_uint_eq(rig_stats(&rig).step, 1);
}
END_TEST

/* A copy of weights that fails on the accelerator reports the loss, too. */
START_TEST(load)
{
    uint64_t mine, theirs;

    open_job((struct rig_job){0});
    mine = rig_fetch(&rig, 0, 1);
    theirs = rig_step(&rig, 1);
    lose(rig_only(&rig, CST_COMMAND_COPY).ticket, _i);
    ck_assert_int_eq(rig_status(&rig, mine), status(_i));
    ck_assert_int_eq(rig_status(&rig, theirs), CST_EPEERDIED);
    go_on(_i);
    rig_whole_step(&rig, 4, 2);
    ck_assert_uint_eq(rig_stats(&rig).step, 1);
}
END_TEST

/* A sum that was under way when another rank died is no longer needed. Its loss has no effect, and
 * the sum of the next attempt is computed. */
START_TEST(void_sum)
{
    uint64_t old, sync;

    open_job((struct rig_job){0});
    hand_in(0, 0);
    hand_in(1, 0);
    old = rig_only(&rig, CST_COMMAND_REDUCE).ticket;
    (void)rig_rank_event(&rig, CST_EV_DEAD, 1);
    (void)rig_rank_event(&rig, CST_EV_ATTACH, 1);
    (void)rig_rank_event(&rig, CST_EV_SYNC, 0);
    sync = rig_rank_event(&rig, CST_EV_SYNC, 1);
    rig.attempt = rig_answer(&rig, sync)->attempt;
    for (uint32_t rank = 0; rank < 2; rank++) {
        (void)rig_hand_in(&rig, rank, 0,
                          rig_answer(&rig, rig_fetch_grad(&rig, rank, 0))->generation);
    }
    lose(old, _i);
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_RUNNING);
    ck_assert_uint_ne(rig_only(&rig, CST_COMMAND_REDUCE).ticket, old);
    rig_drain(&rig);
}
END_TEST

/* A pool stays on the lost accelerator while rank 0 is attached or a copy into the pool is under
 * way. Then it moves to host memory, and the node's engine copies weights there and computes the
 * sums. */
START_TEST(moved)
{
    const struct cst_core_pool host = {.tier = CST_TIER_HOST};
    uint64_t lost, sync;
    struct cst_err err;

    open_job((struct rig_job){0});
    hand_in(0, 0);
    (void)rig_fetch_ahead(&rig, 0, 3);
    hand_in(1, 0);
    lost = rig_only(&rig, CST_COMMAND_REDUCE).ticket;
    lose(lost, _i);
    ck_assert_int_eq(cst_core_may_move(rig.core, 0, true, &err), CST_EBUSY);
    (void)rig_rank_event(&rig, CST_EV_DEAD, 0);
    ck_assert_uint_gt(rig.n_commands, 0); /* prefetches are under way */
    ck_assert_int_eq(cst_core_may_move(rig.core, 0, true, &err), CST_EBUSY);
    rig_drain(&rig);
    ck_assert_int_eq(cst_core_may_move(rig.core, 0, true, &err), CST_OK);
    cst_core_move_pool(rig.core, 0, &host);
    (void)rig_rank_event(&rig, CST_EV_ATTACH, 0);
    (void)rig_rank_event(&rig, CST_EV_SYNC, 1);
    sync = rig_rank_event(&rig, CST_EV_SYNC, 0);
    rig.attempt = rig_answer(&rig, sync)->attempt;
    (void)rig_fetch(&rig, 0, 1);
    ck_assert_uint_eq(rig_only(&rig, CST_COMMAND_COPY).node, 0);
    rig_drain(&rig);
    hand_in(0, 2);
    hand_in(1, 2);
    ck_assert_uint_eq(rig_only(&rig, CST_COMMAND_REDUCE).node, 0);
    rig_drain(&rig);
}
END_TEST

/* Two ranks have their pools on the lost accelerator. While the other rank is attached and was not
 * told, neither pool moves. */
START_TEST(not_moved)
{
    static const uint32_t both[] = {GPU_ENGINE, GPU_ENGINE};
    struct cst_err err;

    rig_open_on(&rig, 4, 2, 8, 0, both);
    rig_start(&rig, 2);
    (void)rig_rank_event(&rig, CST_EV_DEAD, 0);
    ck_assert_int_eq(cst_core_may_move(rig.core, 0, true, &err), CST_EBUSY);
    ck_assert_ptr_nonnull(strstr(err.text, "rank 1"));
    ck_assert_int_eq(cst_core_may_move(rig.core, 0, false, &err), CST_OK);
    (void)rig_rank_event(&rig, CST_EV_LEAVE, 1);
    ck_assert_int_eq(cst_core_may_move(rig.core, 0, true, &err), CST_OK);
}
END_TEST

/* -- a closing step --------------------------------------------------------------------------- */

/* All ranks have asked for the step when a sum is lost: the step is not committed. */
START_TEST(sum_while_closing)
{
    uint64_t mine, theirs;

    open_job((struct rig_job){0});
    hand_in(0, 0);
    hand_in(1, 0);
    hand_in(0, 1);
    hand_in(1, 1);
    mine = rig_step(&rig, 0);
    theirs = rig_step(&rig, 1);
    ck_assert(rig_stats(&rig).closing);
    if (_i / 2 == 1) { /* another rank dies, which alone would not have prevented the commit */
        (void)rig_rank_event(&rig, CST_EV_DEAD, 1);
        ck_assert(rig_stats(&rig).closing);
    }
    lose(rig_command(&rig, CST_COMMAND_REDUCE, 0)->ticket, _i);
    ck_assert_int_eq(rig_status(&rig, mine), status(_i));
    ck_assert_int_eq(rig_status(&rig, theirs), _i / 2 == 1 ? CST_ECANCELLED : CST_EPEERDIED);
    ck_assert_uint_eq(rig_stats(&rig).step, 0);
    lose(rig_command(&rig, CST_COMMAND_REDUCE, 0)->ticket, _i);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_stats(&rig).step, 0);
    if (_i / 2 == 1) {
        (void)rig_rank_event(&rig, CST_EV_ATTACH, 1);
    }
    go_on(_i);
    rig_whole_step(&rig, 4, 2);
    ck_assert_uint_eq(rig_stats(&rig).step, 1);
}
END_TEST

/* All sums are done, and only prefetches of weights fail: the step is committed, and then the
 * attempt is over. */
START_TEST(load_while_closing)
{
    uint64_t mine, theirs, copy;

    open_job((struct rig_job){0});
    mine = rig_fetch_ahead(&rig, 0, 3);
    copy = rig_only(&rig, CST_COMMAND_COPY).ticket;
    mine = rig_step(&rig, 0);
    theirs = rig_step(&rig, 1);
    lose(copy, _i);
    ck_assert(rig_waits(&rig, mine) && rig_waits(&rig, theirs));
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, mine), CST_OK);
    ck_assert_int_eq(rig_status(&rig, theirs), CST_OK);
    ck_assert_uint_eq(rig_stats(&rig).step, 1);
    go_on(_i);
    rig_whole_step(&rig, 4, 2);
    ck_assert_uint_eq(rig_stats(&rig).step, 2);
}
END_TEST

/* -- two weight rows -------------------------------------------------------------------------- */

static void prepare(uint32_t rank)
{
    const struct cst_hyper hyper = {
        .lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .grad_scale = 1.0f};

    ck_assert_int_eq(rig_status(&rig, rig_event(&rig, (struct cst_event){.kind = CST_EV_PREPARE,
                                                                         .rank = rank,
                                                                         .attempt = rig.attempt,
                                                                         .hyper = hyper})),
                     CST_OK);
}

/* One chunk has had its early update when the sum of another one is lost, while the ranks compute
 * (_i / 2 == 0) or while the step closes. The next attempt completes the step and updates each
 * chunk once. */
START_TEST(early)
{
    uint64_t mine, theirs;

    open_job((struct rig_job){.overlap = CST_OVERLAP_EARLY});
    prepare(0);
    prepare(1);
    hand_in(0, 0);
    hand_in(1, 0);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_stats(&rig).chunks_ahead, 1);
    hand_in(0, 1);
    hand_in(1, 1);
    mine = _i / 2 == 0 ? rig_fetch(&rig, 0, 2) : rig_step(&rig, 0);
    theirs = rig_step(&rig, 1);
    lose(rig_command(&rig, CST_COMMAND_REDUCE, 0)->ticket, _i);
    check_told(mine, theirs, _i);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, rig_io(&rig, CST_EV_READ, 0, CST_ROW_MASTER, 0, 10)),
                     CST_EBUSY);
    go_on(_i);
    ck_assert_uint_eq(rig_stats(&rig).chunks_ahead, 1);
    rig_whole_step(&rig, 4, 2);
    ck_assert_uint_eq(rig_stats(&rig).step, 1);
    ck_assert_uint_eq(rig_stats(&rig).n_dropped, 2);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_stats(&rig).n_updates, 4);
    ck_assert_uint_eq(rig_stats(&rig).adam_step, 1);
}
END_TEST

/* If a sum is lost while the delayed updates of the previous step are under way, these updates go
 * on. */
START_TEST(delayed)
{
    uint64_t mine, theirs;

    open_job((struct rig_job){.overlap = CST_OVERLAP_DELAYED});
    for (uint32_t rank = 0; rank < 2; rank++) {
        for (uint32_t c = 0; c < 4; c++) {
            hand_in(rank, c);
        }
    }
    rig_drain(&rig);
    (void)rig_step(&rig, 0);
    (void)rig_step(&rig, 1);
    rig_done(&rig, rig_only(&rig, CST_COMMAND_NORM).ticket, CST_OK, NULL);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_UPDATE), 4);
    for (uint32_t rank = 0; rank < 2; rank++) {
        (void)rig_hand_in(&rig, rank, 0,
                          rig_answer(&rig, rig_fetch_grad(&rig, rank, 0))->generation);
    }
    mine = rig_step(&rig, 0);
    theirs = rig_fetch_ahead(&rig, 1, 2);
    lose(rig_command(&rig, CST_COMMAND_REDUCE, 0)->ticket, _i);
    check_told(mine, theirs, _i);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_UPDATE), 4);
    go_on(_i);
    rig_whole_step(&rig, 4, 2);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_stats(&rig).step, 2);
    ck_assert_uint_eq(rig_stats(&rig).n_updates, 8);
}
END_TEST

/* -- the engine of a node --------------------------------------------------------------------- */

static void node_down(void)
{
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_NODE_DOWN, .text = "engine 0: dead"});
}

static void expect_down(uint64_t tag)
{
    ck_assert_int_eq(rig_status(&rig, tag), CST_EENGINE);
    ck_assert_ptr_nonnull(strstr(rig_answer(&rig, tag)->err.text, "engine 0: dead"));
}

/* All ranks get the error from every request until they attach again. The engine returns and
 * executes its commands: only the attempt is lost, and the next one runs normally. */
static void come_back(uint64_t at)
{
    uint64_t sync = 0;

    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_INTERRUPTED);
    ck_assert_uint_eq(rig_stats(&rig).step, at);
    for (uint32_t rank = 0; rank < 2; rank++) {
        expect_down(rig_fetch(&rig, rank, 3));
        expect_down(rig_rank_event(&rig, CST_EV_SYNC, rank));
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        (void)rig_rank_event(&rig, CST_EV_DEAD, rank);
        (void)rig_rank_event(&rig, CST_EV_ATTACH, rank);
        sync = rig_rank_event(&rig, CST_EV_SYNC, rank);
    }
    ck_assert_int_eq(rig_status(&rig, sync), CST_OK);
    rig.attempt = rig_answer(&rig, sync)->attempt;
    rig_whole_step(&rig, 4, 2);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_stats(&rig).step, at + 1);
}

/* The engine is lost while weights are copied, and while a sum is computed. */
START_TEST(node_down_in_a_step)
{
    uint64_t fetch;

    open_job((struct rig_job){.grad_fp32 = _i == 1});
    hand_in(0, 0);
    hand_in(1, 0);
    fetch = rig_fetch(&rig, 1, 1);
    ck_assert_uint_gt(rig.n_commands, 0);
    node_down();
    expect_down(fetch);
    come_back(0);
}
END_TEST

/* All ranks have asked for the step, and its sums (_i 0) or its norm (_i 1) are under way: the step
 * is neither committed then nor later. */
START_TEST(node_down_while_closing)
{
    uint64_t mine, theirs;

    open_job((struct rig_job){0});
    for (uint32_t c = 0; c < 4; c++) {
        hand_in(0, c);
        hand_in(1, c);
    }
    mine = rig_step(&rig, 0);
    theirs = rig_step(&rig, 1);
    while (_i == 1 && rig_count(&rig, CST_COMMAND_NORM) == 0) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    ck_assert(rig_stats(&rig).closing);
    node_down();
    ck_assert(!rig_stats(&rig).closing);
    expect_down(mine);
    expect_down(theirs);
    come_back(0);
}
END_TEST

/* Updates of a committed step are under way. They are done when the engine is available again,
 * before the ranks return or with the next step. */
START_TEST(node_down_in_an_update)
{
    open_job((struct rig_job){.overlap = _i / 2 == 1 ? CST_OVERLAP_EARLY : CST_OVERLAP_COMMIT});
    for (uint32_t c = 0; c < 4; c++) {
        hand_in(0, c);
        hand_in(1, c);
    }
    (void)rig_step(&rig, 0);
    (void)rig_step(&rig, 1);
    while (rig_stats(&rig).step == 0) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_UPDATE), 4);
    node_down();
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_UPDATE), 4);
    if (_i % 2 == 0) {
        rig_drain(&rig);
        ck_assert_uint_eq(rig_stats(&rig).n_updates, 4);
    }
    come_back(1);
    ck_assert_uint_eq(rig_stats(&rig).n_updates, 8);
}
END_TEST

/* The workers have left when the unfinished updates are noticed. The job's state shows this. */
START_TEST(node_down_when_all_have_left)
{
    open_job((struct rig_job){0});
    for (uint32_t c = 0; c < 4; c++) {
        hand_in(0, c);
        hand_in(1, c);
    }
    (void)rig_step(&rig, 0);
    (void)rig_step(&rig, 1);
    while (rig_stats(&rig).step == 0) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    (void)rig_rank_event(&rig, CST_EV_LEAVE, 0);
    (void)rig_rank_event(&rig, CST_EV_LEAVE, 1);
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_IDLE);
    node_down();
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_INTERRUPTED);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_stats(&rig).n_updates, 4);
}
END_TEST

/* A job has failed because the update of chunk 1 failed: the states of the other chunks can be
 * read, those of chunk 1 cannot, and nothing can be written. */
START_TEST(what_is_whole_is_read)
{
    open_job((struct rig_job){0});
    for (uint32_t c = 0; c < 4; c++) {
        hand_in(0, c);
        hand_in(1, c);
    }
    (void)rig_step(&rig, 0);
    (void)rig_step(&rig, 1);
    while (rig_stats(&rig).step == 0) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    for (unsigned i = 0; i < rig.n_commands; i++) {
        if (rig.commands[i].kind == CST_COMMAND_UPDATE && rig.commands[i].chunk == 1) {
            rig_done(&rig, rig.commands[i].ticket, CST_EENGINE, "smoke");
            break;
        }
    }
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_FAILED);
    rig_drain(&rig);
    for (uint32_t tensor = 0; tensor < 4; tensor++) {
        uint64_t read = rig_io(&rig, CST_EV_READ, tensor, CST_ROW_MASTER, 0, 10);
        uint64_t write = rig_io(&rig, CST_EV_WRITE, tensor, CST_ROW_MASTER, 0, 10);

        rig_drain(&rig);
        ck_assert_int_eq(rig_status(&rig, read), tensor == 1 ? CST_EENGINE : CST_OK);
        ck_assert_int_eq(rig_status(&rig, write), CST_EENGINE);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("loss");
    TCase *tcase = suite_case(suite, "loss", NULL, teardown);

    tcase_add_loop_test(tcase, sum, 0, 6);
    tcase_add_loop_test(tcase, staging, 0, 2);
    tcase_add_loop_test(tcase, load, 0, 2);
    tcase_add_loop_test(tcase, void_sum, 0, 2);
    tcase_add_loop_test(tcase, moved, 0, 2);
    tcase_add_test(tcase, not_moved);
    tcase_add_loop_test(tcase, sum_while_closing, 0, 4);
    tcase_add_loop_test(tcase, load_while_closing, 0, 2);
    tcase_add_loop_test(tcase, early, 0, 4);
    tcase_add_loop_test(tcase, delayed, 0, 2);
    tcase = suite_case(suite, "node", NULL, teardown);
    tcase_add_loop_test(tcase, node_down_in_a_step, 0, 2);
    tcase_add_loop_test(tcase, node_down_while_closing, 0, 2);
    tcase_add_loop_test(tcase, node_down_in_an_update, 0, 4);
    tcase_add_test(tcase, node_down_when_all_have_left);
    tcase_add_test(tcase, what_is_whole_is_read);
    return suite_run(suite);
}
