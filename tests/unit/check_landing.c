/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of micro-batches' gradients on an accelerator in the core: they are copied to landings in
 * host memory, and the node's engine adds them. */
#include "tests/lib/suite.h"
#include "tests/unit/core_rig.h"

#include <check.h>
#include <string.h>

#define WORDS "the accelerator is gone"

static struct rig rig;
static const uint32_t on_gpus[CST_CORE_MAX_WORLD] = {1, 2};

static void teardown(void)
{
    rig_close(&rig);
}

/* Open a job with two micro-batches per step. The pool of rank 0 is on the accelerator of engine 1,
 * and that of rank 1 on the one of engine 2. */
static void open_job(uint32_t n_chunks, uint32_t world, const uint64_t *ranks)
{
    rig_open_job(&rig, &(struct rig_job){.n_chunks = n_chunks,
                                         .world = world,
                                         .n_blocks = 2 * n_chunks,
                                         .ranks = ranks,
                                         .engines = on_gpus,
                                         .landings = true,
                                         .micro_batches = 2});
    rig_start(&rig, world);
}

static void hand_in(uint32_t rank, uint32_t chunk)
{
    uint64_t lease = rig_get_grad(&rig, rank, chunk);

    ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, rank, chunk, lease)), CST_OK);
}

static bool waits_for(const struct cst_command *command, uint64_t ticket)
{
    bool waits = false;

    for (uint32_t i = 0; i < command->n_after; i++) {
        waits = waits || command->after[i] == ticket;
    }
    return waits;
}

static uint32_t segment_of(uint32_t landing)
{
    return RIG_ARENA_SEGMENT + rig.layout.landings[landing].segment;
}

/* Check that the @n-th copy under way brings a gradient from engine 1's accelerator to @landing,
 * and that the @n-th sum under way, on engine 0, reads it there. */
static void check_landing(unsigned n, uint32_t chunk, uint32_t landing, bool adds)
{
    const struct cst_command *copy = rig_command(&rig, CST_COMMAND_COPY, n);
    const struct cst_command *reduce = rig_command(&rig, CST_COMMAND_REDUCE, n);

    ck_assert_ptr_nonnull(copy);
    ck_assert_uint_eq(copy->node, 1);
    ck_assert_uint_eq(copy->src[0].segment, RIG_POOL_SEGMENT);
    ck_assert_uint_eq(copy->dst[0].segment, segment_of(landing));
    ck_assert_uint_eq(copy->bytes, 2 * RIG_CHUNK_ELEMS);
    ck_assert_ptr_nonnull(reduce);
    ck_assert_uint_eq(reduce->node, 0);
    ck_assert_uint_eq(reduce->chunk, chunk);
    ck_assert_uint_eq(reduce->n_src, 1);
    ck_assert_uint_eq(reduce->src[0].segment, segment_of(landing));
    ck_assert(reduce->accumulate == adds);
    ck_assert(waits_for(reduce, copy->ticket));
    /* Otherwise the next copy to the landing would fail with this sum. */
    ck_assert(reduce->may_fail);
}

/* The gradients of both micro-batches are copied to landings, 2 bytes per element, and the second
 * one is added to the first. The block is free when the sum is done, not before. */
START_TEST(both_land)
{
    open_job(1, 1, NULL);
    hand_in(0, 0);
    check_landing(0, 0, 0, false);
    rig_done(&rig, rig_only(&rig, CST_COMMAND_COPY).ticket, CST_OK, NULL);
    ck_assert_uint_eq(rig_books(&rig, 0).free, 1);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_books(&rig, 0).free, 2);
    (void)rig_rank_event(&rig, CST_EV_ACCUMULATE, 0);
    hand_in(0, 0);
    check_landing(0, 0, 1, true);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_rank_stats(&rig, 0).bytes_down, 2 * 2 * RIG_CHUNK_ELEMS);
}
END_TEST

/* A landing is written again only when the sum that reads it is done. */
START_TEST(in_turn)
{
    open_job(3, 1, NULL);
    for (uint32_t c = 0; c < 3; c++) {
        hand_in(0, c);
        check_landing(c, c, c % CST_LAYOUT_LANDINGS, false);
    }
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_COPY, 1)->n_after, 0);
    ck_assert(waits_for(rig_command(&rig, CST_COMMAND_COPY, 2),
                        rig_command(&rig, CST_COMMAND_REDUCE, 0)->ticket));
}
END_TEST

/* If several ranks contribute to a chunk, an accelerator computes the sum. */
START_TEST(one_rank_alone)
{
    static const uint64_t ranks[] = {3, 1};

    open_job(2, 2, ranks);
    hand_in(0, 0);
    hand_in(1, 0);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_COPY), 0);
    ck_assert_uint_ne(rig_only(&rig, CST_COMMAND_REDUCE).node, 0);
    rig_drain(&rig);
    hand_in(0, 1);
    check_landing(0, 1, 0, false);
}
END_TEST

/* If an accelerator is lost with a gradient, the attempt is interrupted, but the job does not fail.
 * A sum that fails because its copy failed changes nothing more. */
START_TEST(lost)
{
    uint64_t fetch;

    open_job(2, 1, NULL);
    hand_in(0, 0);
    rig_done(&rig, rig_only(&rig, CST_COMMAND_COPY).ticket, CST_EENGINE, WORDS);
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_INTERRUPTED);
    rig_done(&rig, rig_only(&rig, CST_COMMAND_REDUCE).ticket, CST_ECANCELLED, NULL);
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_INTERRUPTED);
    fetch = rig_fetch(&rig, 0, 1);
    ck_assert_int_eq(rig_status(&rig, fetch), CST_EENGINE);
    ck_assert_ptr_nonnull(strstr(rig_answer(&rig, fetch)->err.text, WORDS));
}
END_TEST

/* A sum that the processor cannot compute fails the job. It is not mistaken for a lost
 * accelerator. */
START_TEST(failed_sum)
{
    open_job(1, 1, NULL);
    hand_in(0, 0);
    rig_done(&rig, rig_only(&rig, CST_COMMAND_COPY).ticket, CST_OK, NULL);
    rig_done(&rig, rig_only(&rig, CST_COMMAND_REDUCE).ticket, CST_EIO, "no memory there");
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_FAILED);
}
END_TEST

/* Explain says where the sum is computed, and why. */
START_TEST(explained)
{
    char lines[16][192];
    bool told = false;
    unsigned n;

    open_job(1, 1, NULL);
    n = cst_core_explain(rig.core, 0, lines, 16);
    for (unsigned i = 0; i < n; i++) {
        told = told || strstr(lines[i], "the gradient is copied to host memory") != NULL;
    }
    ck_assert(told);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("landing");
    TCase *tc = suite_case(suite, "landings", NULL, teardown);

    tcase_add_test(tc, both_land);
    tcase_add_test(tc, in_turn);
    tcase_add_test(tc, one_rank_alone);
    tcase_add_test(tc, lost);
    tcase_add_test(tc, failed_sum);
    tcase_add_test(tc, explained);
    return suite_run(suite);
}
