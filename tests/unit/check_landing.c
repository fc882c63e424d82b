/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of micro-batches' gradients on an accelerator in the core: they are copied to landings in
 * host memory, and the node's engine adds them. So are gradients of several accelerators that
 * cannot access each other's memory. */
#include "offload/gradient/landing.h"
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
                                         .landings = CST_LANDINGS_SINGLE,
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

/* -- GPUs that cannot access each other's memory --------------------------------------------- */

static const uint64_t apart[CST_CORE_MAX_WORLD] = {1 << 2, 1 << 1};

/* Open a job of two ranks on two GPUs that cannot access each other's memory. */
static void open_apart(uint32_t n_chunks, uint32_t n_blocks)
{
    rig_open_job(&rig, &(struct rig_job){.n_chunks = n_chunks,
                                         .world = 2,
                                         .n_blocks = n_blocks,
                                         .engines = on_gpus,
                                         .unreachable = apart,
                                         .landings = CST_LANDINGS_SHARED});
    rig_start(&rig, 2);
}

/* Each GPU's engine copies its contribution to a landing of its own, and the node's engine sums
 * both in rank order. The next sum uses other landings, and the one after it waits for the first.
 */
START_TEST(both_ranks_land)
{
    const struct cst_command *reduce;

    open_apart(3, 6);
    for (uint32_t c = 0; c < 3; c++) {
        hand_in(1, c);
        hand_in(0, c);
        reduce = rig_command(&rig, CST_COMMAND_REDUCE, c);
        ck_assert_ptr_nonnull(reduce);
        ck_assert_uint_eq(reduce->node, 0);
        ck_assert_uint_eq(reduce->n_src, 2);
        ck_assert(reduce->may_fail);
        for (uint32_t rank = 0; rank < 2; rank++) {
            const struct cst_command *copy = rig_command(&rig, CST_COMMAND_COPY, 2 * c + rank);

            ck_assert_uint_eq(copy->node, 1 + rank);
            ck_assert_uint_eq(copy->src[0].segment, RIG_POOL_SEGMENT + rank);
            ck_assert_uint_eq(copy->dst[0].segment, segment_of((2 * c + rank) % 4));
            ck_assert_uint_eq(reduce->src[rank].segment, copy->dst[0].segment);
            ck_assert(waits_for(reduce, copy->ticket));
            ck_assert_uint_eq(copy->n_after, c < 2 ? 0 : 1);
            ck_assert(c < 2 || waits_for(copy, rig_command(&rig, CST_COMMAND_REDUCE, 0)->ticket));
        }
    }
    rig_drain(&rig);
    ck_assert_uint_eq(rig_books(&rig, 0).free, 6);
}
END_TEST

/* A contribution that was spilled to the grad row is read there, and the other one is summed by the
 * GPU that has it: no GPU has to access another one. */
START_TEST(spilled)
{
    const struct cst_command *reduce;
    uint64_t grad;

    open_apart(4, 3);
    hand_in(0, 0);
    (void)rig_get_grad(&rig, 0, 1);
    (void)rig_get_grad(&rig, 0, 2);
    (void)rig_fetch_grad(&rig, 0, 3);
    rig_drain(&rig);
    grad = rig_get_grad(&rig, 1, 0);
    (void)rig_hand_in(&rig, 1, 0, grad);
    reduce = rig_command(&rig, CST_COMMAND_REDUCE, 0);
    ck_assert_uint_eq(reduce->node, 2);
    ck_assert_uint_eq(reduce->src[1].segment, RIG_POOL_SEGMENT + 1);
    rig_drain(&rig);
}
END_TEST

/* A GPU is lost with its contribution on the way to host memory: the attempt is void, the job goes
 * on, and the sum that fails with the copy changes nothing. */
START_TEST(one_of_two_lost)
{
    open_apart(2, 4);
    hand_in(0, 0);
    hand_in(1, 0);
    rig_done(&rig, rig_command(&rig, CST_COMMAND_COPY, 1)->ticket, CST_EENGINE, WORDS);
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_INTERRUPTED);
    rig_done(&rig, rig_only(&rig, CST_COMMAND_REDUCE).ticket, CST_ECANCELLED, NULL);
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_INTERRUPTED);
    rig_drain(&rig);
}
END_TEST

/* More ranks than copies may be waited for: the later copies wait for earlier ones. */
START_TEST(many_ranks)
{
    enum { WORLD = 12 };
    uint32_t engines[CST_CORE_MAX_WORLD];
    uint64_t unreachable[CST_CORE_MAX_WORLD];
    const struct cst_command *reduce;

    for (uint32_t rank = 0; rank < WORLD; rank++) {
        engines[rank] = 1 + rank;
        unreachable[rank] = ~(1ull << engines[rank]);
    }
    rig_open_job(&rig, &(struct rig_job){.n_chunks = 1,
                                         .world = WORLD,
                                         .n_blocks = 2,
                                         .engines = engines,
                                         .unreachable = unreachable,
                                         .landings = CST_LANDINGS_SHARED});
    rig_start(&rig, WORLD);
    for (uint32_t rank = 0; rank < WORLD; rank++) {
        hand_in(rank, 0);
    }
    reduce = rig_command(&rig, CST_COMMAND_REDUCE, 0);
    ck_assert_ptr_nonnull(reduce);
    ck_assert_uint_eq(reduce->n_src, WORLD);
    ck_assert_uint_eq(reduce->n_after, CST_LANDING_AT_ONCE);
    for (uint32_t i = 0; i < WORLD; i++) {
        const struct cst_command *copy = rig_command(&rig, CST_COMMAND_COPY, i);

        ck_assert_uint_eq(copy->n_after, i < CST_LANDING_AT_ONCE ? 0 : 1);
        ck_assert(i < WORLD - CST_LANDING_AT_ONCE || waits_for(reduce, copy->ticket));
        ck_assert(
            i < CST_LANDING_AT_ONCE ||
            waits_for(copy, rig_command(&rig, CST_COMMAND_COPY, i - CST_LANDING_AT_ONCE)->ticket));
    }
    rig_drain(&rig);
}
END_TEST

/* Explain says that GPUs cannot access each other's memory. */
START_TEST(apart_explained)
{
    char lines[16][192];
    bool told = false;
    unsigned n;

    open_apart(1, 2);
    n = cst_core_explain(rig.core, 0, lines, 16);
    for (unsigned i = 0; i < n; i++) {
        told = told || strstr(lines[i], "2 contributions are copied from GPUs to host memory, "
                                        "because no GPU can access those of all others") != NULL;
    }
    ck_assert(told);
}
END_TEST

/* A layout without landings for such GPUs is refused. */
START_TEST(no_landings)
{
    struct cst_core_config config;
    struct cst_core *core;
    struct cst_err err;

    open_apart(1, 2);
    rig.layout.lands = CST_LANDINGS_SINGLE;
    config = (struct cst_core_config){.model = &rig.model,
                                      .layout = &rig.layout,
                                      .world = 2,
                                      .arena_segments = rig.pool_segments,
                                      .pools = rig.pools,
                                      .peer_timeout_ns = CST_CORE_NEVER};
    ck_assert_int_eq(cst_core_open(&core, &config, &err), CST_EINVAL);
    ck_assert_str_eq(err.text, "the accelerator of rank 0 cannot access the memory of that of rank "
                               "1, and the layout has no landings for their gradients: it was made "
                               "when it could, or with 'peers = yes' in [gpu]");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("landing");
    TCase *tc = suite_case(suite, "landings", NULL, teardown);
    TCase *peers = suite_case(suite, "peers", NULL, teardown);

    tcase_add_test(tc, both_land);
    tcase_add_test(tc, in_turn);
    tcase_add_test(tc, one_rank_alone);
    tcase_add_test(tc, lost);
    tcase_add_test(tc, failed_sum);
    tcase_add_test(tc, explained);
    tcase_add_test(peers, both_ranks_land);
    tcase_add_test(peers, spilled);
    tcase_add_test(peers, one_of_two_lost);
    tcase_add_test(peers, many_ranks);
    tcase_add_test(peers, apart_explained);
    tcase_add_test(peers, no_landings);
    return suite_run(suite);
}
