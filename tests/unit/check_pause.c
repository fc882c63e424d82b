/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of pauses in the core: when a job is held, what waits then, what goes on, and what happens
 * at the resume. */
#include "tests/lib/suite.h"
#include "tests/unit/core_rig.h"

#include <check.h>

enum { N_CHUNKS = 4 };

static struct rig rig;

static void teardown(void)
{
    rig_close(&rig);
}

static void pause_job(bool release)
{
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_PAUSE, .release = release});
}

static void resume(void)
{
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_RESUME});
}

static enum cst_pause_state state(void)
{
    return rig_stats(&rig).pause;
}

static void hand_in(uint32_t rank, uint32_t chunk)
{
    uint64_t lease = rig_get_grad(&rig, rank, chunk);

    ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, rank, chunk, lease)), CST_OK);
}

/* A job between two steps is paused at once. What a rank asks for then waits, and is granted at the
 * resume, although its weights are in a block. */
START_TEST(holds_between_steps)
{
    uint64_t weight, grad;

    rig_open(&rig, N_CHUNKS, 2, 2 * N_CHUNKS, 0);
    rig_start(&rig, 2);
    rig_whole_step(&rig, N_CHUNKS, 2);
    rig_drain(&rig);
    ck_assert_int_eq(state(), CST_PAUSE_NONE);
    pause_job(false);
    ck_assert_int_eq(state(), CST_PAUSE_PAUSED);
    ck_assert(!rig_stats(&rig).pools_empty);
    weight = rig_fetch(&rig, 0, 0);
    grad = rig_fetch_grad(&rig, 1, 0);
    ck_assert_int_eq(rig_status(&rig, rig_rank_event(&rig, CST_EV_PREFETCH, 1)), CST_OK);
    ck_assert(rig_waits(&rig, weight) && rig_waits(&rig, grad));
    ck_assert_uint_eq(rig.n_commands, 0);
    resume();
    ck_assert_int_eq(state(), CST_PAUSE_NONE);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, weight), CST_OK);
    ck_assert_int_eq(rig_status(&rig, grad), CST_OK);
}
END_TEST

/* A step that is under way is committed first, and its updates are completed. */
START_TEST(completes_the_step)
{
    uint64_t step, next;

    rig_open(&rig, N_CHUNKS, 1, 2 * N_CHUNKS, 0);
    rig_start(&rig, 1);
    hand_in(0, 1);
    pause_job(false);
    ck_assert_int_eq(state(), CST_PAUSE_ASKED);
    hand_in(0, 2);
    step = rig_step(&rig, 0);
    while (rig_waits(&rig, step)) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    ck_assert_uint_eq(rig_answer(&rig, step)->step, 1);
    ck_assert_int_eq(state(), CST_PAUSE_HELD);
    next = rig_fetch(&rig, 0, 0);
    rig_drain(&rig);
    ck_assert_int_eq(state(), CST_PAUSE_PAUSED);
    ck_assert_uint_eq(rig_stats(&rig).chunks_clean, N_CHUNKS);
    ck_assert(rig_waits(&rig, next));
    resume();
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, next), CST_OK);
}
END_TEST

/* A step for which all ranks ask during a pause closes after it. */
START_TEST(step_waits)
{
    uint64_t tags[2];

    rig_open(&rig, N_CHUNKS, 2, 2 * N_CHUNKS, 0);
    rig_start(&rig, 2);
    pause_job(false);
    tags[0] = rig_step(&rig, 0);
    tags[1] = rig_step(&rig, 1);
    rig_drain(&rig);
    ck_assert(rig_waits(&rig, tags[0]) && rig_waits(&rig, tags[1]));
    ck_assert_int_eq(state(), CST_PAUSE_PAUSED);
    resume();
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tags[0]), CST_OK);
    ck_assert_uint_eq(rig_answer(&rig, tags[1])->step, 1);
}
END_TEST

/* No wait has a deadline during a pause, and each begins anew at the resume. */
START_TEST(deadlines_stop)
{
    const uint64_t week = UINT64_C(604800000000000);
    uint64_t step;

    rig_open(&rig, N_CHUNKS, 2, 2 * N_CHUNKS, 0);
    rig_start(&rig, 2);
    pause_job(false);
    step = rig_step(&rig, 0);
    ck_assert_uint_eq(cst_core_deadline(rig.core), CST_CORE_NEVER);
    rig.now += week;
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_TICK});
    ck_assert(rig_waits(&rig, step));
    resume();
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_TICK});
    ck_assert(rig_waits(&rig, step));
    ck_assert_uint_gt(cst_core_deadline(rig.core), rig.now);
    ck_assert_uint_lt(cst_core_deadline(rig.core), CST_CORE_NEVER);
    rig.now = cst_core_deadline(rig.core) + 1;
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_TICK});
    ck_assert_int_eq(rig_status(&rig, step), CST_ETIMEDOUT);
}
END_TEST

/* Pools are emptied when no rank has a lease: weights that are fetched later are loaded again. */
START_TEST(releases_pools)
{
    uint64_t lease, weight;

    rig_open(&rig, N_CHUNKS, 1, 2 * N_CHUNKS, 0);
    rig_start(&rig, 1);
    lease = rig_get(&rig, 0, 3);
    (void)rig_get(&rig, 0, 2);
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_HANGUP, .rank = 0});
    pause_job(true);
    ck_assert_int_eq(state(), CST_PAUSE_PAUSED);
    ck_assert(!rig_stats(&rig).pools_empty); /* The process may still read its blocks. */
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_DEAD, .rank = 0});
    ck_assert(rig_stats(&rig).pools_empty);
    ck_assert_uint_eq(rig_books(&rig, 0).free, 2 * N_CHUNKS);
    (void)lease;
    resume();
    ck_assert(!rig_stats(&rig).pools_empty);
    rig_start(&rig, 1);
    weight = rig_fetch(&rig, 0, 3);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_COPY), 1);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, weight), CST_OK);
    /* Between steps the weights need no death to leave. */
    (void)rig_release(&rig, 0, 3, rig_answer(&rig, weight)->generation);
    (void)rig_step(&rig, 0);
    rig_drain(&rig);
    pause_job(false);
    ck_assert(!rig_stats(&rig).pools_empty);
    pause_job(true);
    ck_assert(rig_stats(&rig).pools_empty);
}
END_TEST

/* No attempt begins during a pause. A rank that dies ends the attempt, and the others wait in their
 * sync. */
START_TEST(deaths_and_syncs)
{
    uint64_t fetch, syncs[2];

    rig_open(&rig, N_CHUNKS, 2, 2 * N_CHUNKS, 0);
    rig_start(&rig, 2);
    pause_job(false);
    fetch = rig_fetch(&rig, 0, 0);
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_DEAD, .rank = 1});
    ck_assert_int_eq(rig_status(&rig, fetch), CST_EPEERDIED);
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_ATTACH, .rank = 1});
    syncs[0] = rig_rank_event(&rig, CST_EV_SYNC, 0);
    syncs[1] = rig_rank_event(&rig, CST_EV_SYNC, 1);
    ck_assert(rig_waits(&rig, syncs[0]) && rig_waits(&rig, syncs[1]));
    ck_assert_int_eq(state(), CST_PAUSE_PAUSED);
    resume();
    ck_assert_int_eq(rig_status(&rig, syncs[0]), CST_OK);
    ck_assert_uint_eq(rig_answer(&rig, syncs[1])->attempt, 2);
}
END_TEST

/* Saves and reads go on during a pause. */
START_TEST(saves_go_on)
{
    uint64_t save, read;

    rig_open(&rig, N_CHUNKS, 1, 2 * N_CHUNKS, 0);
    rig_start(&rig, 1);
    rig_whole_step(&rig, N_CHUNKS, 1);
    pause_job(true);
    rig_drain(&rig);
    save = rig_event(&rig, (struct cst_event){.kind = CST_EV_SAVE});
    ck_assert_uint_eq(rig_answer(&rig, save)->step, 1);
    read = rig_io(&rig, CST_EV_READ, 0, CST_ROW_MASTER, 0, 8);
    ck_assert_int_eq(state(), CST_PAUSE_PAUSED);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, read), CST_OK);
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_SAVE_END});
    resume();
    rig_whole_step(&rig, N_CHUNKS, 1);
    ck_assert_uint_eq(rig_stats(&rig).step, 2);
}
END_TEST

/* A step whose updates began before its commit is completed first, also after an interruption. */
START_TEST(early_step_is_completed)
{
    static const struct cst_hyper hyper = {
        .lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .grad_scale = 1};
    uint64_t sync;

    rig_open_job(&rig, &(struct rig_job){
                           .n_chunks = 1, .world = 1, .n_blocks = 4, .overlap = CST_OVERLAP_EARLY});
    rig_start(&rig, 1);
    (void)rig_event(
        &rig, (struct cst_event){.kind = CST_EV_PREPARE, .attempt = rig.attempt, .hyper = hyper});
    hand_in(0, 0);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_stats(&rig).chunks_ahead, 1);
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_DEAD, .rank = 0});
    pause_job(false);
    ck_assert_int_eq(state(), CST_PAUSE_ASKED);
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_ATTACH, .rank = 0});
    sync = rig_rank_event(&rig, CST_EV_SYNC, 0);
    ck_assert_int_eq(rig_status(&rig, sync), CST_OK);
    rig.attempt = rig_answer(&rig, sync)->attempt;
    (void)rig_event(
        &rig, (struct cst_event){.kind = CST_EV_STEP, .attempt = rig.attempt, .hyper = hyper});
    rig_drain(&rig);
    ck_assert_uint_eq(rig_stats(&rig).step, 1);
    ck_assert_int_eq(state(), CST_PAUSE_PAUSED);
}
END_TEST

/* The ranks of a dispatched job get no unit during a pause. */
START_TEST(units_wait)
{
    uint64_t next;

    rig_open_job(&rig,
                 &(struct rig_job){
                     .n_chunks = 2, .world = 1, .n_blocks = 4, .n_stages = 2, .micro_batches = 2});
    rig_start(&rig, 1);
    pause_job(true);
    ck_assert(rig_stats(&rig).pools_empty);
    next = rig_rank_event(&rig, CST_EV_NEXT, 0);
    ck_assert(rig_waits(&rig, next));
    resume();
    ck_assert(rig_answer(&rig, next)->has_unit);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("pause");
    TCase *tc = suite_case(s, "pause", NULL, teardown);

    tcase_add_test(tc, holds_between_steps);
    tcase_add_test(tc, completes_the_step);
    tcase_add_test(tc, step_waits);
    tcase_add_test(tc, deadlines_stop);
    tcase_add_test(tc, releases_pools);
    tcase_add_test(tc, deaths_and_syncs);
    tcase_add_test(tc, saves_go_on);
    tcase_add_test(tc, early_step_is_completed);
    tcase_add_test(tc, units_wait);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
