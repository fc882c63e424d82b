/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of micro-batches in the core, one rule at a time: what is added to the sum, when, and in
 * which order. */
#include "tests/lib/suite.h"
#include "tests/unit/core_rig.h"

#include <check.h>
#include <string.h>

#define MICRO 3

static struct rig rig;

static void teardown(void)
{
    rig_close(&rig);
}

static void open_job(uint32_t n_chunks, uint32_t world, uint32_t n_blocks)
{
    rig_open_job(&rig, &(struct rig_job){.n_chunks = n_chunks,
                                         .world = world,
                                         .n_blocks = n_blocks,
                                         .micro_batches = MICRO});
    rig_start(&rig, world);
}

/* Open a job in which each rank has two blocks left for gradients. The third block has leased
 * weights of the last chunk. */
static void open_short(uint32_t n_chunks, uint32_t world)
{
    open_job(n_chunks + 1, world, 3);
    for (uint32_t rank = 0; rank < world; rank++) {
        (void)rig_get(&rig, rank, n_chunks);
    }
}

static uint64_t accumulate(uint32_t rank)
{
    return rig_rank_event(&rig, CST_EV_ACCUMULATE, rank);
}

static void hand_in(uint32_t rank, uint32_t chunk)
{
    uint64_t lease = rig_get_grad(&rig, rank, chunk);

    ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, rank, chunk, lease)), CST_OK);
}

/* The only sum under way. Checks that it has @n_src contributions, the first of them from @first's
 * pool. */
static const struct cst_command *only_reduce(uint32_t chunk, bool adds, uint32_t n_src,
                                             uint32_t first)
{
    const struct cst_command *reduce = rig_command(&rig, CST_COMMAND_REDUCE, 0);

    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_REDUCE), 1);
    ck_assert_uint_eq(reduce->chunk, chunk);
    ck_assert(reduce->accumulate == adds);
    ck_assert_uint_eq(reduce->n_src, n_src);
    ck_assert_uint_eq(reduce->src[0].segment, RIG_POOL_SEGMENT + first);
    return reduce;
}

static uint32_t micro_of(uint32_t rank)
{
    struct cst_rank_stats stats;

    cst_core_rank_stats(rig.core, rank, &stats);
    return stats.micro;
}

static uint64_t waits_of(uint32_t rank)
{
    struct cst_rank_stats stats;

    cst_core_rank_stats(rig.core, rank, &stats);
    return stats.waits;
}

static uint64_t read_grad(uint32_t tensor)
{
    return rig_event(&rig, (struct cst_event){.kind = CST_EV_READ,
                                              .tensor = tensor,
                                              .row = CST_ROW_GRAD,
                                              .n_elems = 10,
                                              .place = {.segment = 7}});
}

static bool says(uint32_t chunk, const char *words)
{
    char lines[24][192];
    unsigned n = cst_core_explain(rig.core, chunk, lines, 24);

    for (unsigned i = 0; i < n; i++) {
        if (strstr(lines[i], words) != NULL) {
            return true;
        }
    }
    return false;
}

/* -- sums -------------------------------------------------------------------------------------- */

/* The sum of the first micro-batch is written to the row, and those of the next ones are added,
 * each as a command with its own number. The step's norm and update wait for the last one. */
START_TEST(sums_are_added)
{
    uint64_t mark = 0;
    uint64_t tag = 0;

    open_job(1, 2, 2);
    for (uint32_t m = 0; m < MICRO; m++) {
        const struct cst_command *reduce;

        hand_in(1, 0);
        ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_REDUCE), 0);
        hand_in(0, 0);
        reduce = only_reduce(0, m > 0, 2, 0);
        ck_assert_uint_eq(reduce->src[1].segment, RIG_POOL_SEGMENT + 1);
        ck_assert_uint_ne(reduce->mark, mark);
        mark = reduce->mark;
        rig_drain(&rig);
        for (uint32_t rank = 0; rank < 2 && m + 1 < MICRO; rank++) {
            ck_assert_int_eq(rig_status(&rig, accumulate(rank)), CST_OK);
        }
    }
    (void)rig_step(&rig, 0);
    ck_assert_uint_eq(rig.n_commands, 0);
    tag = rig_step(&rig, 1);
    ck_assert_uint_eq(rig.n_commands, 1);
    rig_done(&rig, rig_command(&rig, CST_COMMAND_NORM, 0)->ticket, CST_OK, NULL);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_UPDATE), 1);
    ck_assert_uint_eq(micro_of(0), 0);
    hand_in(0, 0); /* the first sum of the next step is written again, after the update */
    hand_in(1, 0);
    ck_assert(!rig_command(&rig, CST_COMMAND_REDUCE, 0)->accumulate);
    rig_drain(&rig);
}
END_TEST

/* A rank that ends a micro-batch, or asks for the step, without having handed a chunk in
 * contributes zero to the chunk. */
START_TEST(missing_is_zero)
{
    uint64_t tag;

    open_job(1, 3, 2);
    hand_in(1, 0);
    (void)accumulate(0);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_REDUCE), 0);
    (void)rig_step(&rig, 2);
    (void)only_reduce(0, false, 1, 1);
    rig_drain(&rig);
    (void)rig_step(&rig, 0);
    tag = rig_step(&rig, 1);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_REDUCE), 0); /* nothing more was handed in */
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
}
END_TEST

/* A chunk that no rank handed in, in any micro-batch of the step, has a gradient of zeros. */
START_TEST(nothing_is_zero)
{
    uint64_t tag;

    open_job(1, 2, 2);
    (void)accumulate(0);
    (void)rig_step(&rig, 0);
    tag = rig_step(&rig, 1);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_REDUCE), 1);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_REDUCE, 0)->n_src, 0);
    ck_assert(!rig_command(&rig, CST_COMMAND_REDUCE, 0)->accumulate);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
}
END_TEST

/* A contribution of a rank that is ahead waits for the earlier micro-batches, even if that rank
 * contributed nothing to them. */
START_TEST(order_is_by_micro_batch)
{
    open_job(1, 2, 2);
    (void)accumulate(0);
    hand_in(0, 0); /* for the second micro-batch */
    ck_assert_uint_eq(rig.n_commands, 0);
    hand_in(1, 0); /* for the first micro-batch */
    (void)only_reduce(0, false, 1, 1);
    rig_drain(&rig);
    ck_assert_uint_eq(rig.n_commands, 0);
    (void)accumulate(1);
    hand_in(1, 0);
    (void)only_reduce(0, true, 2, 0);
    rig_drain(&rig);
}
END_TEST

/* Ranks may have different numbers of micro-batches, and fewer than the job allows. */
START_TEST(fewer_are_legal)
{
    uint64_t tag;

    open_job(1, 2, 2);
    hand_in(1, 0);
    (void)rig_step(&rig, 1);
    hand_in(0, 0);
    (void)only_reduce(0, false, 2, 0);
    rig_drain(&rig);
    (void)accumulate(0);
    hand_in(0, 0);
    (void)only_reduce(0, true, 1, 0);
    tag = rig_step(&rig, 0);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_NORM), 0);
    rig_done(&rig, rig_command(&rig, CST_COMMAND_REDUCE, 0)->ticket, CST_OK, NULL);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_NORM), 1);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
}
END_TEST

/* -- ranks ------------------------------------------------------------------------------------- */

/* Without fp32 grad rows there are no micro-batches. */
START_TEST(needs_fp32_rows)
{
    struct cst_core_config config = {.model = &rig.model,
                                     .layout = &rig.layout,
                                     .world = 1,
                                     .pools = rig.pools,
                                     .micro_batches = 2};
    struct cst_core *core = NULL;
    struct cst_err err;

    rig_open(&rig, 1, 1, 2, 0);
    ck_assert_int_eq(cst_core_open(&core, &config, &err), CST_EINVAL);
    ck_assert(strstr(err.text, "fp32") != NULL);
    ck_assert_ptr_null(core);
}
END_TEST

/* The last micro-batch ends with the step only. A job with one micro-batch per step cannot use
 * ACCUMULATE. */
START_TEST(too_many)
{
    uint64_t tag;

    open_job(1, 1, 2);
    ck_assert_int_eq(rig_status(&rig, accumulate(0)), CST_OK);
    ck_assert_int_eq(rig_status(&rig, accumulate(0)), CST_OK);
    tag = accumulate(0);
    ck_assert_int_eq(rig_status(&rig, tag), CST_EINVAL);
    ck_assert(strstr(rig_answer(&rig, tag)->err.text, "micro-batch 3 of 3") != NULL);
    ck_assert_uint_eq(micro_of(0), 2);
    (void)rig_step(&rig, 0);
    ck_assert_int_eq(rig_status(&rig, accumulate(0)), CST_EINVAL);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, accumulate(0)), CST_OK); /* a micro-batch of the next step */
    rig_close(&rig);
    rig_open(&rig, 1, 1, 2, 0);
    rig_start(&rig, 1);
    ck_assert_int_eq(rig_status(&rig, accumulate(0)), CST_EINVAL);
}
END_TEST

/* A gradient is handed in once per micro-batch. */
START_TEST(once_in_each)
{
    open_job(2, 1, 3);
    hand_in(0, 0);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, rig_fetch_grad(&rig, 0, 0)), CST_EINVAL);
    (void)accumulate(0);
    hand_in(0, 0);
    ck_assert_int_eq(rig_status(&rig, rig_fetch_grad(&rig, 0, 0)), CST_EINVAL);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, rig_fetch_grad(&rig, 0, 0)), CST_EINVAL);
}
END_TEST

/* A rank that is ahead and opens a gradient again waits until its previous one is in the row. The
 * wait is counted, and the rank's other fetches go on. */
START_TEST(ahead_waits_for_itself)
{
    uint64_t tag;

    open_job(2, 2, 3);
    hand_in(0, 0);
    (void)accumulate(0);
    tag = rig_fetch_grad(&rig, 0, 0);
    ck_assert(rig_waits(&rig, tag));
    ck_assert_uint_eq(waits_of(0), 1);
    ck_assert_uint_eq(rig.n_commands, 0);
    (void)rig_get(&rig, 0, 1);
    ck_assert(rig_waits(&rig, tag));
    hand_in(1, 0);
    ck_assert(rig_waits(&rig, tag));
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    ck_assert(!rig_answer(&rig, tag)->hit);
}
END_TEST

/* This wait ends with an error if the other ranks never come. */
START_TEST(wait_for_itself_ends)
{
    uint64_t tag;

    open_job(1, 2, 2);
    hand_in(0, 0);
    (void)accumulate(0);
    tag = rig_fetch_grad(&rig, 0, 0);
    rig.now = cst_core_deadline(rig.core);
    ck_assert_uint_ne(rig.now, CST_CORE_NEVER);
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_TICK});
    ck_assert_int_eq(rig_status(&rig, tag), CST_ETIMEDOUT);
    ck_assert(strstr(rig_answer(&rig, tag)->err.text, "in micro-batch 1") != NULL);
}
END_TEST

/* The end of a micro-batch discards open gradients, which then count as zero, and pending fetches
 * of gradients. Fetches of weights go on. */
START_TEST(end_of_micro_batch)
{
    uint64_t lease;
    uint64_t grad;
    uint64_t weight;

    open_job(4, 2, 3);
    (void)rig_get(&rig, 0, 0);
    (void)rig_get(&rig, 0, 1);
    lease = rig_get_grad(&rig, 0, 0);
    grad = rig_fetch_grad(&rig, 0, 1);
    weight = rig_fetch(&rig, 0, 2);
    ck_assert(rig_waits(&rig, grad) && rig_waits(&rig, weight));
    (void)accumulate(0);
    ck_assert_int_eq(rig_status(&rig, grad), CST_ECANCELLED);
    ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, 0, 0, lease)), CST_ESTALE);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, weight), CST_OK);
    hand_in(1, 0);
    (void)only_reduce(0, false, 1, 1);
    rig_drain(&rig);
}
END_TEST

/* -- a pool without free blocks ---------------------------------------------------------------- */

/* If the pool lacks blocks, the first rank's contribution is added before the others have come, and
 * theirs are added later. */
START_TEST(first_rank_is_added_early)
{
    uint64_t tag;

    open_short(3, 2);
    hand_in(0, 0);
    hand_in(0, 1);
    ck_assert_uint_eq(rig.n_commands, 0);
    tag = rig_fetch_grad(&rig, 0, 2);
    (void)only_reduce(1, false, 1, 0);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    ck_assert(says(1, "1 of its ranks' contributions were added early"));
    ck_assert_int_eq(rig_status(&rig, rig_fetch_grad(&rig, 0, 1)), CST_EINVAL);
    hand_in(1, 1);
    (void)only_reduce(1, true, 1, 1);
    rig_drain(&rig);
    hand_in(1, 0);
    (void)only_reduce(0, false, 2, 0); /* the block of this chunk was not needed */
    rig_drain(&rig);
}
END_TEST

/* The contribution of another rank is not added before that of the first rank. It waits until the
 * first rank has handed in or gone on. */
START_TEST(others_wait_for_the_first)
{
    uint64_t tag;

    open_short(3, 3);
    hand_in(1, 0);
    hand_in(1, 1);
    tag = rig_fetch_grad(&rig, 1, 2);
    ck_assert_uint_eq(rig.n_commands, 0);
    hand_in(0, 1);
    (void)only_reduce(1, false, 2, 0); /* both contributions, without rank 2 */
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_REDUCE, 0)->src[1].segment,
                      RIG_POOL_SEGMENT + 1);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    tag = rig_fetch(&rig, 1, 0);
    ck_assert(rig_waits(&rig, tag));
    ck_assert_uint_eq(rig.n_commands, 0);
    (void)accumulate(0);
    (void)only_reduce(0, false, 1, 1);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
}
END_TEST

/* A rank that was left out of such a sum cannot hand in any more, even if it cancels its step. */
START_TEST(passed_over)
{
    uint64_t step;

    open_short(3, 3);
    step = rig_step(&rig, 0);
    hand_in(1, 0);
    hand_in(1, 1);
    (void)rig_fetch_grad(&rig, 1, 2);
    (void)only_reduce(1, false, 1, 1);
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_CANCEL, .rank = 0, .cancel = step});
    ck_assert_int_eq(rig_status(&rig, step), CST_ECANCELLED);
    ck_assert_int_eq(rig_status(&rig, rig_fetch_grad(&rig, 0, 1)), CST_EINVAL);
    ck_assert_int_eq(rig_status(&rig, rig_fetch_grad(&rig, 0, 0)), CST_OK);
    rig_drain(&rig);
}
END_TEST

/* Ranks that open different gradients in any order, with the smallest pools, do not deadlock. */
START_TEST(no_ring_of_waits)
{
    static const uint32_t order[3][4] = {{0, 1, 2, 3}, {2, 3, 0, 1}, {3, 1, 0, 2}};
    uint64_t tag[3] = {0};
    uint32_t at[3] = {0};
    bool stuck = false;

    open_short(4, 3);
    while (!stuck) {
        stuck = true;
        for (uint32_t rank = 0; rank < 3; rank++) {
            uint32_t chunk = order[rank][at[rank] % 4];

            if (at[rank] == 4) {
                continue;
            }
            if (tag[rank] == 0) {
                tag[rank] = rig_fetch_grad(&rig, rank, chunk);
            }
            if (!rig_waits(&rig, tag[rank])) {
                uint64_t lease = rig_answer(&rig, tag[rank])->generation;

                ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, rank, chunk, lease)), CST_OK);
                tag[rank] = 0;
                at[rank]++;
                stuck = false;
            }
        }
        stuck = stuck && rig.n_commands == 0;
        rig_drain(&rig);
    }
    for (uint32_t rank = 0; rank < 3; rank++) {
        ck_assert_uint_eq(at[rank], 4);
    }
}
END_TEST

/* -- interrupted attempts ---------------------------------------------------------------------- */

/* An interrupted attempt drops all its micro-batches. The next attempt begins with the first one,
 * and writes the row after the commands that are still under way. */
START_TEST(interrupted_drops_all)
{
    uint64_t tag;

    open_job(1, 2, 2);
    hand_in(0, 0);
    hand_in(1, 0);
    rig_drain(&rig);
    (void)accumulate(0);
    (void)accumulate(1);
    hand_in(0, 0);
    hand_in(1, 0);
    (void)only_reduce(0, true, 2, 0);
    (void)rig_rank_event(&rig, CST_EV_DEAD, 1);
    ck_assert_uint_eq(micro_of(0), 0);
    (void)rig_rank_event(&rig, CST_EV_ATTACH, 1);
    (void)rig_rank_event(&rig, CST_EV_SYNC, 0);
    tag = rig_rank_event(&rig, CST_EV_SYNC, 1);
    rig.attempt = rig_answer(&rig, tag)->attempt;
    tag = rig_fetch_grad(&rig, 0, 0);
    (void)rig_hand_in(&rig, 0, 0, rig_answer(&rig, tag)->generation);
    tag = rig_fetch_grad(&rig, 1, 0);
    (void)rig_hand_in(&rig, 1, 0, rig_answer(&rig, tag)->generation);
    /* The sum of the interrupted attempt. */
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_REDUCE), 1);
    rig_done(&rig, rig_command(&rig, CST_COMMAND_REDUCE, 0)->ticket, CST_OK, NULL);
    (void)only_reduce(0, false, 2, 0);
    rig_drain(&rig);
}
END_TEST

/* The gradient can be read as bf16 when the step's sum is complete. It cannot be read when only
 * some micro-batches are in the row, nor after an attempt that left them there. */
START_TEST(partial_sum_is_not_read)
{
    uint64_t tag;

    open_job(1, 1, 2);
    ck_assert(rig_waits(&rig, read_grad(0)));
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_ROUND, 0)->n_dst, 1);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_ROUND, 0)->n_elems, 10);
    rig_drain(&rig);
    hand_in(0, 0);
    ck_assert_int_eq(rig_status(&rig, read_grad(0)), CST_EBUSY);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, read_grad(0)), CST_EBUSY);
    tag = rig_rank_event(&rig, CST_EV_SYNC, 0);
    ck_assert_int_eq(rig_status(&rig, read_grad(0)), CST_EBUSY);
    rig.attempt = rig_answer(&rig, tag)->attempt;
    hand_in(0, 0);
    (void)rig_step(&rig, 0);
    rig_drain(&rig);
    ck_assert(rig_waits(&rig, read_grad(0)));
    rig_drain(&rig);
}
END_TEST

/* Explain names the current micro-batch and the ranks that wait for it. */
START_TEST(explain_says_micro_batch)
{
    open_short(3, 2);
    hand_in(0, 0);
    ck_assert(says(0, "micro-batch 1 of at most 3"));
    hand_in(1, 0);
    rig_drain(&rig);
    (void)accumulate(0);
    hand_in(0, 0);
    ck_assert(says(0, "micro-batch 2 of at most 3"));
    hand_in(0, 1);
    (void)accumulate(0);
    (void)rig_fetch_grad(&rig, 0, 0);
    ck_assert(
        says(0, "rank 0: a fetch of its gradient waits for the sum of the micro-batch before"));
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("micro");
    TCase *sums = suite_case(s, "sums", NULL, teardown);
    TCase *ranks = suite_case(s, "ranks", NULL, teardown);
    TCase *full = suite_case(s, "pools", NULL, teardown);
    TCase *ends = suite_case(s, "ends", NULL, teardown);

    tcase_add_test(sums, sums_are_added);
    tcase_add_test(sums, missing_is_zero);
    tcase_add_test(sums, nothing_is_zero);
    tcase_add_test(sums, order_is_by_micro_batch);
    tcase_add_test(sums, fewer_are_legal);
    tcase_add_test(ranks, needs_fp32_rows);
    tcase_add_test(ranks, too_many);
    tcase_add_test(ranks, once_in_each);
    tcase_add_test(ranks, ahead_waits_for_itself);
    tcase_add_test(ranks, wait_for_itself_ends);
    tcase_add_test(ranks, end_of_micro_batch);
    tcase_add_test(full, first_rank_is_added_early);
    tcase_add_test(full, others_wait_for_the_first);
    tcase_add_test(full, passed_over);
    tcase_add_test(full, no_ring_of_waits);
    tcase_add_test(ends, interrupted_drops_all);
    tcase_add_test(ends, partial_sum_is_not_read);
    tcase_add_test(ends, explain_says_micro_batch);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
