/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of ranks that are ahead of others: they wait for the gradients of the others instead of
 * evicting weights that they need again, but not for ever, and not in a ring. */
#include "tests/unit/core_rig.h"
#include "tests/lib/suite.h"

#include "offload/core/core.h"

#define SECONDS UINT64_C(1000000000)

static struct rig rig;

static void teardown(void)
{
    rig_close(&rig);
}

/* A job whose ranks have the weights of chunks 0 and 1, which are expected again in the backward
 * pass, and a block for one gradient. */
static void open_job(uint32_t world, bool fp32, const uint64_t *ranks)
{
    rig_open_job(&rig, &(struct rig_job){.n_chunks = 6,
                                         .world = world,
                                         .n_blocks = 3,
                                         .micro_batches = fp32 ? 2 : 1,
                                         .ranks = ranks});
    rig_start(&rig, world);
    for (uint32_t rank = 0; rank < world; rank++) {
        for (uint32_t c = 0; c < 2; c++) {
            (void)rig_release(&rig, rank, c, rig_get(&rig, rank, c));
        }
    }
}

static void hand_in(uint32_t rank, uint32_t chunk)
{
    uint64_t lease = rig_get_grad(&rig, rank, chunk);

    ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, rank, chunk, lease)), CST_OK);
}

static uint64_t up_of(uint32_t rank)
{
    return rig_rank_stats(&rig, rank).bytes_up;
}

/* A rank that is ahead waits until the other one has handed in, and its weights stay. _i: the
 * gradient rows are fp32. */
START_TEST(waits_for_others)
{
    uint64_t before, tag;

    open_job(2, _i == 1, NULL);
    before = up_of(1);
    hand_in(1, 4);
    tag = rig_fetch_grad(&rig, 1, 3);
    ck_assert(rig_waits(&rig, tag));
    hand_in(0, 4);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_REDUCE), 1);
    ck_assert(rig_waits(&rig, tag)); /* Now for the engine. */
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    for (uint32_t c = 0; c < 2; c++) {
        ck_assert_int_eq(rig_status(&rig, rig_fetch(&rig, 1, c)), CST_OK);
    }
    ck_assert_uint_eq(up_of(1), before);
    ck_assert_uint_eq(rig_rank_stats(&rig, 1).bytes_down, 2 * RIG_CHUNK_ELEMS);
}
END_TEST

/* An fp32 row takes the gradient of the first rank at once, so that rank waits for nobody. */
START_TEST(first_rank_waits_for_nobody)
{
    uint64_t tag;

    open_job(2, true, NULL);
    hand_in(0, 4);
    tag = rig_fetch_grad(&rig, 0, 3);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_REDUCE), 1);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
}
END_TEST

/* The core asks for a TICK when the wait has lasted long enough. The rank then evicts weights, and
 * waits no more until the step ends. */
START_TEST(not_for_ever)
{
    uint64_t tag;

    open_job(2, false, NULL);
    hand_in(1, 4);
    tag = rig_fetch_grad(&rig, 1, 3);
    ck_assert(rig_waits(&rig, tag));
    ck_assert_uint_le(cst_core_deadline(rig.core), rig.now + 2 * SECONDS);
    rig.now = cst_core_deadline(rig.core);
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_TICK});
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    ck_assert_uint_eq(cst_core_deadline(rig.core), CST_CORE_NEVER);
    ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, 1, 3, rig_answer(&rig, tag)->generation)),
                     CST_OK);
    ck_assert_int_eq(rig_status(&rig, rig_fetch_grad(&rig, 1, 2)), CST_OK);
    ck_assert_uint_eq(rig_rank_stats(&rig, 1).evictions, 2);
}
END_TEST

/* Each of three ranks is ahead of the next one with another chunk: the last one evicts weights. */
START_TEST(not_in_a_ring)
{
    uint64_t tags[3];

    open_job(3, false, NULL);
    for (uint32_t rank = 0; rank < 3; rank++) {
        hand_in(rank, 5 - rank);
    }
    for (uint32_t rank = 0; rank < 3; rank++) {
        tags[rank] = rig_fetch_grad(&rig, rank, 2);
    }
    ck_assert(rig_waits(&rig, tags[0]));
    ck_assert_int_eq(rig_status(&rig, tags[1]), CST_OK);
    ck_assert_int_eq(rig_status(&rig, tags[2]), CST_OK);
}
END_TEST

/* Ranks that run other operators, such as stages of a pipeline, may wait for each other's outputs,
 * and do not wait for gradients. */
START_TEST(not_for_other_stages)
{
    static const uint64_t ranks[] = {3, 3, 3, 3, 3, 1};

    open_job(2, false, ranks);
    hand_in(1, 4);
    ck_assert_int_eq(rig_status(&rig, rig_fetch_grad(&rig, 1, 3)), CST_OK);
}
END_TEST

/* A wait that is cancelled, with its rank's death, leaves no deadline behind. */
START_TEST(ends_with_the_rank)
{
    open_job(2, false, NULL);
    hand_in(1, 4);
    (void)rig_fetch_grad(&rig, 1, 3);
    ck_assert_uint_ne(cst_core_deadline(rig.core), CST_CORE_NEVER);
    (void)rig_rank_event(&rig, CST_EV_HANGUP, 1);
    (void)rig_rank_event(&rig, CST_EV_DEAD, 1);
    ck_assert_uint_eq(cst_core_deadline(rig.core), CST_CORE_NEVER);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("drift");
    TCase *drift = suite_case(s, "drift", NULL, teardown);

    tcase_add_loop_test(drift, waits_for_others, 0, 2);
    tcase_add_test(drift, first_rank_waits_for_nobody);
    tcase_add_test(drift, not_for_ever);
    tcase_add_test(drift, not_in_a_ring);
    tcase_add_test(drift, not_for_other_stages);
    tcase_add_test(drift, ends_with_the_rank);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
