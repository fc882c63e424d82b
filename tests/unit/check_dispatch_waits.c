/* SPDX-License-Identifier: Apache-2.0 */
/* Single cases of a core whose model is cut into stages: how the waits of its ranks
 * end, and which edges it may have. */
#include "offload/layout/edge.h"
#include "tests/lib/suite.h"
#include "tests/unit/core_rig.h"

#include <check.h>
#include <string.h>

enum { N_BLOCKS = 5 };

static struct rig rig;
static struct rig_job job;

/* A rank may wait for a unit as long as others do theirs in time. Then it is told for whom it
 * waits. */
START_TEST(a_wait_lasts_while_others_go_on)
{
    const uint64_t timeout_ns = 1000000000;
    uint64_t waiting;

    job = (struct rig_job){
        .n_chunks = 1, .world = 2, .n_blocks = N_BLOCKS, .n_stages = 1, .micro_batches = 4};
    rig_open_job(&rig, &job);
    rig_start(&rig, 2);
    (void)rig_answer(&rig, rig_rank_event(&rig, CST_EV_NEXT, 0));
    waiting = rig_rank_event(&rig, CST_EV_NEXT, 1);
    for (int i = 0; i < 3; i++) {
        rig.now += timeout_ns - 1;
        (void)rig_answer(&rig, rig_rank_event(&rig, CST_EV_NEXT, 0));
        ck_assert(rig_waits(&rig, waiting));
    }
    rig.now += timeout_ns - 1;
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_TICK});
    ck_assert(rig_waits(&rig, waiting));
    ck_assert_uint_eq(cst_core_deadline(rig.core), ++rig.now);
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_TICK});
    ck_assert_int_eq(rig_status(&rig, waiting), CST_ETIMEDOUT);
    ck_assert_ptr_nonnull(strstr(rig_answer(&rig, waiting)->err.text,
                                 "the backward pass of stage 0 over micro-batch 3, which rank 0 "
                                 "has, is not done"));
    rig_close(&rig);
}
END_TEST

/* A rank that ends its unit while a fetch of a gradient waits is told that the unit has ended. */
START_TEST(a_fetch_ends_with_its_unit)
{
    uint64_t waiting;

    job = (struct rig_job){
        .n_chunks = 1, .world = 1, .n_blocks = N_BLOCKS, .n_stages = 1, .micro_batches = 2};
    rig_open_job(&rig, &job);
    rig_start(&rig, 1);
    (void)rig_answer(&rig, rig_rank_event(&rig, CST_EV_NEXT, 0));
    (void)rig_hand_in(&rig, 0, 0, rig_get_grad(&rig, 0, 0));
    (void)rig_answer(&rig, rig_rank_event(&rig, CST_EV_NEXT, 0));
    waiting = rig_fetch_grad(&rig, 0, 0); /* The first one is not summed yet. */
    ck_assert(rig_waits(&rig, waiting));
    (void)rig_rank_event(&rig, CST_EV_NEXT, 0);
    ck_assert_int_eq(rig_status(&rig, waiting), CST_ECANCELLED);
    ck_assert_str_eq(rig_answer(&rig, waiting)->err.text,
                     "rank 0 ended its unit of step 0 meanwhile");
    rig_close(&rig);
}
END_TEST

/* -- numbers ---------------------------------------------------------------------------------- */

static uint64_t report(uint32_t rank, uint64_t unit)
{
    return rig_event(&rig, (struct cst_event){.kind = CST_EV_NEXT,
                                              .rank = rank,
                                              .attempt = rig.attempt,
                                              .unit = unit,
                                              .names_unit = true});
}

static struct cst_work_unit get_unit(uint32_t rank, uint64_t done)
{
    const struct cst_reply *reply = rig_answer(&rig, report(rank, done));

    ck_assert_int_eq(reply->status, CST_OK);
    ck_assert(reply->has_unit);
    return reply->unit;
}

static void refuse(uint32_t rank, uint64_t unit, const char *words)
{
    const struct cst_reply *reply = rig_answer(&rig, report(rank, unit));

    ck_assert_int_eq(reply->status, CST_EINVAL);
    ck_assert_str_eq(reply->err.text, words);
}

/* A rank that asks again for what it has been given gets it again, at the beginning of the step and
 * later. Nothing is done by that. At the end it gets the end again. */
START_TEST(a_repeated_request_gets_the_same_unit)
{
    uint64_t done = 0;

    job = (struct rig_job){
        .n_chunks = 1, .world = 1, .n_blocks = N_BLOCKS, .n_stages = 1, .micro_batches = 3};
    rig_open_job(&rig, &job);
    rig_start(&rig, 1);
    for (uint32_t micro = 0; micro < 3; micro++) {
        const struct cst_work_unit first = get_unit(0, done), again = get_unit(0, done);

        ck_assert_uint_eq(first.micro, micro);
        ck_assert_uint_eq(again.micro, micro);
        ck_assert_uint_eq(again.number, first.number);
        ck_assert_uint_gt(first.number, done);
        done = first.number;
    }
    ck_assert(!rig_answer(&rig, report(0, done))->has_unit);
    ck_assert(!rig_answer(&rig, report(0, done))->has_unit);
    rig_close(&rig);
}
END_TEST

/* Numbers that the rank neither has nor has done last are refused, and nothing is done. After a
 * sync the rank has done none. */
START_TEST(stale_units_are_refused)
{
    struct cst_work_unit a, b;

    job = (struct rig_job){
        .n_chunks = 1, .world = 2, .n_blocks = N_BLOCKS, .n_stages = 1, .micro_batches = 3};
    rig_open_job(&rig, &job);
    rig_start(&rig, 2);
    refuse(0, 1,
           "rank 0 says that it has done unit 1, but it has no unit, and the last one that it has "
           "done is 0");
    a = get_unit(0, 0);
    refuse(1, a.number,
           "rank 1 says that it has done unit 1, but it has no unit, and the last one that it has "
           "done is 0");
    b = get_unit(0, a.number);
    refuse(0, 0,
           "rank 0 says that it has done unit 0, but it has unit 2, the backward pass of stage 0 "
           "over micro-batch 1");
    ck_assert_int_eq(rig_status(&rig, rig_rank_event(&rig, CST_EV_SYNC, 0)), CST_OK);
    refuse(0, b.number,
           "rank 0 says that it has done unit 2, but it has no unit, and the last one that it has "
           "done is 0");
    a = get_unit(0, 0);
    ck_assert_uint_eq(a.number, 3);
    ck_assert_uint_eq(a.micro, 1);
    rig_close(&rig);
}
END_TEST

/* An edge from one rank to another one is refused; all ranks, or one and the same, are not. */
START_TEST(edges_between_two_ranks_are_refused)
{
    struct cst_layout_edge edges[] = {
        {.name = "all", .from = CST_EDGE_ANY, .to = CST_EDGE_ANY},
        {.name = "own", .from = 1, .to = 1},
        {.name = "there", .from = 1, .to = 2},
    };
    struct cst_model model = {.n_stages = 2, .edges = edges, .n_edges = 2};
    struct cst_err err;

    ck_assert_int_eq(cst_core_check_stages(&model, 2, CST_OVERLAP_COMMIT, &err), CST_OK);
    model.n_edges = 3;
    ck_assert_int_eq(cst_core_check_stages(&model, 2, CST_OVERLAP_COMMIT, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "edge 'there' from rank 1 to rank 2"));
}
END_TEST

/* -- ranks that keep a pass ------------------------------------------------------------------- */

/* Of two ranks, one keeps the backward pass of stage 1 and waits for its second unit, which is not
 * ready, because rank 0 has not done the forward pass before. Return the request with which it
 * waits. */
static uint64_t keep_a_pass(void)
{
    uint64_t waiting;

    job = (struct rig_job){
        .n_chunks = 2, .world = 2, .n_blocks = N_BLOCKS, .n_stages = 2, .micro_batches = 2};
    rig_open_job(&rig, &job);
    rig_start(&rig, 2);
    (void)rig_answer(&rig, rig_rank_event(&rig, CST_EV_NEXT, 0));
    (void)rig_answer(&rig, rig_rank_event(&rig, CST_EV_NEXT, 0));
    ck_assert(rig_answer(&rig, rig_rank_event(&rig, CST_EV_NEXT, 1))->unit.backward);
    waiting = rig_rank_event(&rig, CST_EV_NEXT, 1);
    ck_assert(rig_waits(&rig, waiting));
    return waiting;
}

/* Rank 0 does all that is left: its second forward unit and three backward units. */
static void end_alone(void)
{
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert(rig_answer(&rig, rig_rank_event(&rig, CST_EV_NEXT, 0))->has_unit);
    }
    ck_assert(!rig_answer(&rig, rig_rank_event(&rig, CST_EV_NEXT, 0))->has_unit);
    rig_close(&rig);
}

/* A rank hangs up, and its process lives. */
START_TEST(who_hangs_up_without_a_unit_keeps_no_pass)
{
    uint64_t waiting = keep_a_pass();

    (void)rig_rank_event(&rig, CST_EV_HANGUP, 1);
    ck_assert_int_eq(rig_status(&rig, waiting), CST_ECANCELLED);
    end_alone();
}
END_TEST

/* Rank 0 hangs up with a unit, and its process lives. When it is shut out, the step begins again
 * without it, and the other rank does all units. */
START_TEST(the_unit_of_a_rank_that_is_shut_out_is_done_again)
{
    struct cst_work_unit unit;
    uint64_t waiting, sync;

    job = (struct rig_job){
        .n_chunks = 1, .world = 2, .n_blocks = N_BLOCKS, .n_stages = 1, .micro_batches = 2};
    rig_open_job(&rig, &job);
    rig_start(&rig, 2);
    unit = rig_answer(&rig, rig_rank_event(&rig, CST_EV_NEXT, 0))->unit;
    ck_assert_uint_eq(unit.micro, 0);
    ck_assert(!cst_core_held_up_by(rig.core, 0)); /* It is attached. */
    (void)rig_rank_event(&rig, CST_EV_HANGUP, 0);
    waiting = rig_rank_event(&rig, CST_EV_NEXT, 1);
    ck_assert(rig_waits(&rig, waiting));
    ck_assert(cst_core_held_up_by(rig.core, 0));
    (void)rig_rank_event(&rig, CST_EV_SHUT_OUT, 0);
    ck_assert_int_eq(rig_status(&rig, waiting), CST_EPEERDIED);
    ck_assert_str_eq(
        rig_answer(&rig, waiting)->err.text,
        "rank 0 disconnected in step 0 and its process goes on: the step is done again "
        "without it");
    ck_assert(!cst_core_held_up_by(rig.core, 0));
    sync = rig_rank_event(&rig, CST_EV_SYNC, 1);
    ck_assert_int_eq(rig_status(&rig, sync), CST_OK);
    rig.attempt = rig_answer(&rig, sync)->attempt;
    for (uint32_t micro = 0; micro < 2; micro++) {
        unit = rig_answer(&rig, rig_rank_event(&rig, CST_EV_NEXT, 1))->unit;
        ck_assert_uint_eq(unit.micro, micro);
    }
    ck_assert(!rig_answer(&rig, rig_rank_event(&rig, CST_EV_NEXT, 1))->has_unit);
    rig_close(&rig);
}
END_TEST

/* A rank that hung up without a unit holds nobody up, until an attempt is to begin. */
START_TEST(a_sync_waits_for_who_hung_up_until_it_is_shut_out)
{
    uint64_t sync;

    job = (struct rig_job){
        .n_chunks = 1, .world = 2, .n_blocks = N_BLOCKS, .n_stages = 1, .micro_batches = 2};
    rig_open_job(&rig, &job);
    rig_start(&rig, 2);
    (void)rig_rank_event(&rig, CST_EV_HANGUP, 0);
    ck_assert(!cst_core_held_up_by(rig.core, 0));
    (void)rig_rank_event(&rig, CST_EV_DEAD, 1);
    ck_assert(cst_core_held_up_by(rig.core, 0));
    (void)rig_rank_event(&rig, CST_EV_ATTACH, 1);
    sync = rig_rank_event(&rig, CST_EV_SYNC, 1);
    ck_assert(rig_waits(&rig, sync));
    (void)rig_rank_event(&rig, CST_EV_SHUT_OUT, 0);
    ck_assert_int_eq(rig_status(&rig, sync), CST_OK);
    /* The process comes back: it is waited for again. */
    (void)rig_rank_event(&rig, CST_EV_ATTACH, 0);
    (void)rig_rank_event(&rig, CST_EV_DEAD, 1);
    (void)rig_rank_event(&rig, CST_EV_ATTACH, 1);
    sync = rig_rank_event(&rig, CST_EV_SYNC, 1);
    ck_assert(rig_waits(&rig, sync));
    rig_close(&rig);
}
END_TEST

START_TEST(who_cancels_keeps_no_pass)
{
    uint64_t waiting = keep_a_pass();

    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_CANCEL, .rank = 1, .cancel = waiting});
    ck_assert_int_eq(rig_status(&rig, waiting), CST_ECANCELLED);
    end_alone();
}
END_TEST

START_TEST(who_waits_too_long_keeps_no_pass)
{
    uint64_t waiting = keep_a_pass();
    struct cst_work_unit unit;

    rig.now = cst_core_deadline(rig.core);
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_TICK});
    ck_assert_int_eq(rig_status(&rig, waiting), CST_ETIMEDOUT);
    /* It asks again, with the number of the unit that counts as done already. */
    unit = get_unit(1, 3);
    ck_assert_uint_eq(unit.number, 4);
    ck_assert_uint_eq(unit.pass, 2);
    (void)rig_rank_event(&rig, CST_EV_DEAD, 1);
    end_alone();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dispatch_waits");
    TCase *tc = suite_case(suite, "waits", NULL, NULL);

    tcase_add_test(tc, a_wait_lasts_while_others_go_on);
    tcase_add_test(tc, a_fetch_ends_with_its_unit);
    tcase_add_test(tc, a_repeated_request_gets_the_same_unit);
    tcase_add_test(tc, stale_units_are_refused);
    tcase_add_test(tc, edges_between_two_ranks_are_refused);
    tcase_add_test(tc, who_hangs_up_without_a_unit_keeps_no_pass);
    tcase_add_test(tc, the_unit_of_a_rank_that_is_shut_out_is_done_again);
    tcase_add_test(tc, a_sync_waits_for_who_hung_up_until_it_is_shut_out);
    tcase_add_test(tc, who_cancels_keeps_no_pass);
    tcase_add_test(tc, who_waits_too_long_keeps_no_pass);
    return suite_run(suite);
}
