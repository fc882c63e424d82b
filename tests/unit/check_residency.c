/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of weights in a pool's blocks, one rule at a time: fetches, eviction, prefetch. tests/sim
 * tests what happens in combination. */
#include "tests/lib/suite.h"
#include "tests/unit/core_rig.h"

#include <check.h>
#include <string.h>

static struct rig rig;

static void teardown(void)
{
    rig_close(&rig);
}

/* -- weights ---------------------------------------------------------------------------------- */

/* A miss copies the chunk's whole weight row into a block of the rank, and is answered when the
 * copy is done. */
START_TEST(miss_is_copied)
{
    struct cst_command copy;
    uint64_t tag;

    rig_open(&rig, 4, 2, 4, 0);
    rig_start(&rig, 2);
    tag = rig_fetch(&rig, 1, 2);
    ck_assert(rig_waits(&rig, tag));
    copy = rig_only(&rig, CST_COMMAND_COPY);
    ck_assert_uint_eq(copy.bytes, 2 * RIG_CHUNK_ELEMS);
    ck_assert_uint_eq(copy.src[0].segment,
                      RIG_ARENA_SEGMENT + rig.layout.chunks[2].rows[0].segment);
    ck_assert_uint_eq(copy.src[0].offset, rig.layout.chunks[2].rows[0].offset);
    ck_assert_uint_eq(copy.dst[0].segment, RIG_POOL_SEGMENT + 1);
    ck_assert_uint_eq(copy.n_after, 0);
    ck_assert_uint_eq(rig_books(&rig, 1).moving, 1);
    rig_done(&rig, copy.ticket, CST_OK, NULL);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    ck_assert(!rig_answer(&rig, tag)->hit);
    ck_assert_uint_eq(rig_answer(&rig, tag)->offset, copy.dst[0].offset);
    ck_assert_uint_eq(rig_books(&rig, 1).leased, 1);
    ck_assert_uint_eq(rig_rank_stats(&rig, 1).misses, 1);
    ck_assert_uint_eq(rig_rank_stats(&rig, 1).bytes_up, 2 * RIG_CHUNK_ELEMS);
}
END_TEST

/* A hit is answered at once. A second lease has the same generation, and the block is cached only
 * when both leases are released. */
START_TEST(hit_is_a_lease_more)
{
    uint64_t first;
    uint64_t tag;

    rig_open(&rig, 4, 1, 4, 0);
    rig_start(&rig, 1);
    first = rig_get(&rig, 0, 1);
    tag = rig_fetch(&rig, 0, 1);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    ck_assert(rig_answer(&rig, tag)->hit);
    ck_assert_uint_eq(rig_answer(&rig, tag)->generation, first);
    ck_assert_uint_eq(rig.n_commands, 0);
    (void)rig_release(&rig, 0, 1, first);
    ck_assert_uint_eq(rig_books(&rig, 0).leased, 1);
    (void)rig_release(&rig, 0, 1, first);
    ck_assert_uint_eq(rig_books(&rig, 0).cached, 1);
    ck_assert_int_eq(rig_status(&rig, rig_release(&rig, 0, 1, first)), CST_ESTALE);
    ck_assert_uint_ne(rig_get(&rig, 0, 1), first);
}
END_TEST

/* A release with another generation than the lease's is stale, and so is any release of a chunk
 * that is not leased. */
START_TEST(wrong_generation_is_stale)
{
    uint64_t weight;
    uint64_t grad;

    rig_open(&rig, 4, 1, 4, 0);
    rig_start(&rig, 1);
    weight = rig_get(&rig, 0, 0);
    grad = rig_get_grad(&rig, 0, 0);
    ck_assert_int_eq(rig_status(&rig, rig_release(&rig, 0, 0, weight + 7)), CST_ESTALE);
    ck_assert_int_eq(rig_status(&rig, rig_release(&rig, 0, 0, 0)), CST_ESTALE);
    ck_assert_int_eq(rig_status(&rig, rig_release(&rig, 0, 2, weight)), CST_ESTALE);
    ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, 0, 0, weight)), CST_ESTALE);
    ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, 0, 1, grad)), CST_ESTALE);
    ck_assert_uint_eq(rig_books(&rig, 0).leased, 2);
}
END_TEST

/* The block whose next use is farthest is evicted, in the first step (_i = 0) by the declared
 * order. At the turn from forward to backward the last used chunks stay; LRU would miss all of
 * them. */
START_TEST(evicts_farthest)
{
    uint64_t fourth;

    rig_open(&rig, 6, 1, 4, 0);
    rig_start(&rig, 1);
    for (int i = 0; i < _i; i++) {
        rig_whole_step(&rig, 6, 1);
    }
    for (uint32_t c = 0; c < 4; c++) {
        (void)rig_release(&rig, 0, c, rig_get(&rig, 0, c));
    }
    /* Of chunks 0 to 3, chunk 0 is used last in backward. */
    fourth = rig_get(&rig, 0, 4);
    (void)rig_release(&rig, 0, 5, rig_get(&rig, 0, 5)); /* then chunk 1 */
    (void)rig_release(&rig, 0, 4, fourth); /* A worker keeps it for its backward pass. */
    ck_assert(!rig_waits(&rig, rig_fetch(&rig, 0, 2)));
    ck_assert(!rig_waits(&rig, rig_fetch(&rig, 0, 3)));
    ck_assert(!rig_waits(&rig, rig_fetch(&rig, 0, 4)));
    ck_assert(!rig_waits(&rig, rig_fetch(&rig, 0, 5)));
}
END_TEST

/* A fetch without a free block waits, is counted, and is served when a block is released. Demand
 * fetches are served before prefetches. */
START_TEST(waits_for_a_block)
{
    uint64_t held[3];
    uint64_t ahead;
    uint64_t first;
    uint64_t second;

    rig_open(&rig, 6, 1, 3, 0);
    rig_start(&rig, 1);
    for (uint32_t c = 0; c < 3; c++) {
        held[c] = rig_get(&rig, 0, c);
    }
    ahead = rig_fetch_ahead(&rig, 0, 3);
    first = rig_fetch(&rig, 0, 4);
    second = rig_fetch(&rig, 0, 5);
    ck_assert_uint_eq(rig.n_commands, 0);
    ck_assert_uint_eq(rig_rank_stats(&rig, 0).waits, 3);
    (void)rig_release(&rig, 0, 1, held[1]);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, first), CST_OK);
    ck_assert(rig_waits(&rig, second) && rig_waits(&rig, ahead));
    (void)rig_release(&rig, 0, 0, held[0]);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, second), CST_OK);
    ck_assert(rig_waits(&rig, ahead));
    (void)rig_release(&rig, 0, 2, held[2]);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, ahead), CST_OK);
}
END_TEST

/* A fetch of a chunk that is in the pool is served although an earlier fetch waits for a block. */
START_TEST(a_hit_waits_for_nobody)
{
    uint64_t waiting;

    rig_open(&rig, 6, 1, 3, 0);
    rig_start(&rig, 1);
    for (uint32_t c = 0; c < 3; c++) {
        (void)rig_get(&rig, 0, c);
    }
    waiting = rig_fetch(&rig, 0, 4);
    ck_assert_int_eq(rig_status(&rig, rig_fetch(&rig, 0, 1)), CST_OK);
    ck_assert(rig_waits(&rig, waiting));
}
END_TEST

/* A copy that the engine fails fails its fetch with the engine's error, and the block becomes
 * free. */
START_TEST(copy_fails)
{
    uint64_t tag;

    rig_open(&rig, 4, 1, 4, 0);
    rig_start(&rig, 1);
    tag = rig_fetch(&rig, 0, 1);
    rig_done(&rig, rig_only(&rig, CST_COMMAND_COPY).ticket, CST_EIO, "bad sector");
    ck_assert_int_eq(rig_status(&rig, tag), CST_EIO);
    ck_assert_ptr_nonnull(strstr(rig_answer(&rig, tag)->err.text, "bad sector"));
    ck_assert_uint_eq(rig_books(&rig, 0).free, 4);
    (void)rig_get(&rig, 0, 1);
}
END_TEST

/* -- prefetch --------------------------------------------------------------------------------- */

/* A prefetch that the worker has to wait for counts as late, and one that is done before counts as
 * a hit. The time for which the worker waits for weights is counted in each case. */
START_TEST(late_is_no_hit)
{
    struct cst_rank_stats stats;

    rig_open(&rig, 4, 1, 4, 1);
    rig_start(&rig, 1);
    rig.now = 100;
    (void)rig_fetch(&rig, 0, 0); /* chunk 0 is being loaded */
    rig.now = 130;
    rig_drain(&rig);
    stats = rig_rank_stats(&rig, 0);
    ck_assert_uint_eq(stats.hits, 0);
    ck_assert_uint_eq(stats.late, 1);
    ck_assert_uint_eq(stats.weight_wait_ns, 30);
    rig.now = 200;
    (void)rig_fetch(&rig, 0, 1); /* loaded while the worker waited for chunk 0 */
    (void)rig_fetch_ahead(&rig, 0, 2);
    rig.now = 250;
    rig_drain(&rig);
    stats = rig_rank_stats(&rig, 0);
    ck_assert_uint_eq(stats.hits, 2);
    ck_assert_uint_eq(stats.late, 1);
    ck_assert_uint_eq(stats.misses, 0);
    ck_assert_uint_eq(stats.weight_wait_ns, 30);
}
END_TEST

static void want(uint32_t chunk)
{
    (void)rig_event(
        &rig,
        (struct cst_event){.kind = CST_EV_WANT, .rank = 0, .attempt = rig.attempt, .chunk = chunk});
}

/* A fetch ahead that itself begins the copy is a hit if the worker does not wait for it. It is late
 * if the worker begins to wait during the copy, and a miss if it does so while there is no block
 * yet. */
START_TEST(what_a_fetch_ahead_counts_as)
{
    struct cst_rank_stats stats;
    uint64_t grad, tag;

    rig_open(&rig, 4, 1, 3, 0); /* no prefetch */
    rig_start(&rig, 1);
    (void)rig_fetch_ahead(&rig, 0, 0);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_rank_stats(&rig, 0).hits, 1);
    (void)rig_get_grad(&rig, 0, 2);
    grad = rig_get_grad(&rig, 0, 3); /* now there is no block */
    tag = rig_fetch_ahead(&rig, 0, 1);
    want(1);
    (void)rig_hand_in(&rig, 0, 3, grad);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_rank_stats(&rig, 0).misses, 1);
    (void)rig_release(&rig, 0, 1, rig_answer(&rig, tag)->generation);
    (void)rig_fetch_ahead(&rig, 0, 2);
    want(2);
    rig_drain(&rig);
    stats = rig_rank_stats(&rig, 0);
    ck_assert_uint_eq(stats.hits, 1);
    ck_assert_uint_eq(stats.late, 1);
    ck_assert_uint_eq(stats.misses, 1);
}
END_TEST

/* In the first step the declared order is the prediction: the next operator's chunk is loaded, and
 * its fetch is a hit when the load is done. */
START_TEST(prefetch_by_declaration)
{
    uint64_t tag;

    rig_open(&rig, 4, 1, 4, 1);
    rig_start(&rig, 1);
    ck_assert_uint_eq(rig_only(&rig, CST_COMMAND_COPY).priority,
                      CST_PRIORITY_PREFETCH); /* chunk 0, since the sync */
    rig_drain(&rig);
    tag = rig_fetch(&rig, 0, 0);
    ck_assert(rig_answer(&rig, tag)->hit);
    ck_assert_uint_eq(rig_only(&rig, CST_COMMAND_COPY).src[0].offset,
                      rig.layout.chunks[1].rows[0].offset);
    tag = rig_fetch(&rig, 0, 1); /* not loaded yet: the fetch joins the copy */
    ck_assert(rig_waits(&rig, tag));
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_COPY), 2); /* chunk 2 is already being loaded */
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    ck_assert(!rig_answer(&rig, tag)->hit);
    ck_assert_uint_eq(rig_rank_stats(&rig, 0).hits, 1);
    ck_assert_uint_eq(rig_rank_stats(&rig, 0).late, 1);
    ck_assert_uint_eq(rig_rank_stats(&rig, 0).misses, 0);
    ck_assert_uint_eq(rig_rank_stats(&rig, 0).prefetches, 3);
}
END_TEST

/* A fetch that joined a copy which a write overtakes waits for the new copy, with a deadline. */
START_TEST(an_overtaken_fetch_has_a_deadline)
{
    uint64_t tag, load;

    rig_open(&rig, 4, 1, 4, 1);
    rig_start(&rig, 1);
    load = rig_only(&rig, CST_COMMAND_COPY).ticket; /* chunk 0, since the sync */
    (void)rig_event(&rig,
                    (struct cst_event){.kind = CST_EV_WRITE, .row = CST_ROW_MASTER, .n_elems = 1});
    tag = rig_fetch(&rig, 0, 0);
    ck_assert_uint_eq(cst_core_deadline(rig.core), CST_CORE_NEVER);
    rig_done(&rig, load, CST_OK, NULL);
    ck_assert(rig_waits(&rig, tag));
    ck_assert_uint_ne(cst_core_deadline(rig.core), CST_CORE_NEVER);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    ck_assert_uint_eq(cst_core_deadline(rig.core), CST_CORE_NEVER);
}
END_TEST

/* From the second step on the record of the last step is the prediction, whatever was declared. */
START_TEST(prefetch_by_trace)
{
    rig_open(&rig, 4, 1, 8, 1);
    rig_start(&rig, 1);
    rig_drain(&rig);
    for (uint32_t c = 4; c-- > 0;) { /* in reverse order */
        (void)rig_release(&rig, 0, c, rig_get(&rig, 0, c));
    }
    (void)rig_step(&rig, 0);
    while (rig_count(&rig, CST_COMMAND_UPDATE) == 0) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_UPDATE, 0)->chunk,
                      3); /* in the order of the next forward */
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_UPDATE, 3)->chunk, 0);
    ck_assert_uint_eq(rig_only(&rig, CST_COMMAND_COPY).src[0].offset,
                      rig.layout.chunks[3].rows[0].offset);
    ck_assert_uint_eq(rig_only(&rig, CST_COMMAND_COPY).n_after,
                      1); /* after the update of its chunk */
    ck_assert_uint_eq(rig_only(&rig, CST_COMMAND_COPY).after[0],
                      rig_command(&rig, CST_COMMAND_UPDATE, 0)->ticket);
}
END_TEST

/* Weights are not loaded if they are used only after the commit, because they would be out of
 * date. */
START_TEST(no_prefetch_past_the_commit)
{
    rig_open(&rig, 4, 1, 8, 2);
    rig_start(&rig, 1);
    rig_whole_step(&rig, 4, 1);
    for (uint32_t c = 0; c < 4; c++) {
        (void)rig_release(&rig, 0, c, rig_get(&rig, 0, c));
    }
    for (uint32_t c = 4; c-- > 0;) {
        (void)rig_release(&rig, 0, c, rig_get(&rig, 0, c));
        (void)rig_hand_in(&rig, 0, c, rig_get_grad(&rig, 0, c));
    }
    rig_drain(&rig);
    ck_assert_uint_eq(rig_books(&rig, 0).moving, 0);
    (void)rig_step(&rig, 0);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_COPY), 0);
}
END_TEST

/* Prefetch leaves a block free for a gradient that is opened before the use of the weights that
 * would be loaded. */
START_TEST(prefetch_leaves_room_for_gradients)
{
    uint64_t grad;
    uint64_t before;

    rig_open(&rig, 4, 1, 3, 1);
    rig_start(&rig, 1);
    rig_drain(&rig);
    rig_whole_step(&rig, 4, 1);
    for (uint32_t c = 0; c < 4; c++) {
        (void)rig_release(&rig, 0, c, rig_get(&rig, 0, c));
    }
    /* Backward begins: the next uses are the gradient and chunk 2, which is cached. */
    (void)rig_get(&rig, 0, 3);
    (void)rig_get(&rig, 0, 2);
    rig_drain(&rig);
    before = rig_rank_stats(&rig, 0).prefetches;
    ck_assert_uint_eq(rig_books(&rig, 0).leased, 2);
    grad = rig_fetch_grad(&rig, 0, 3); /* the third block was kept for the gradient */
    ck_assert_int_eq(rig_status(&rig, grad), CST_OK);
    ck_assert_uint_eq(rig_rank_stats(&rig, 0).prefetches, before);
}
END_TEST

/* The gradients of a rank that is ahead, which wait for other ranks, are spilled before the next
 * weights are fetched, so that no fetch waits for a block. */
START_TEST(gradients_make_room_for_what_comes)
{
    static const uint64_t ranks[] = {3, 3, 3, 3, 3, 3, 3, 3, 2};
    uint64_t kept = 0;

    /* Ranks that do not run the same operators do not wait for each other's gradients. */
    rig_open_job(
        &rig, &(struct rig_job){
                  .n_chunks = 9, .world = 2, .n_blocks = 4, .ranks = ranks, .prefetch_depth = 3});
    rig_start(&rig, 2);
    rig_drain(&rig);
    for (uint32_t c = 0; c < 8; c++) {
        kept = c == 6 ? rig_get(&rig, 0, c) : kept; /* A worker keeps it for its backward pass. */
        (void)rig_release(&rig, 0, c, rig_get(&rig, 0, c));
        rig_drain(&rig);
    }
    for (uint32_t c = 8; c-- > 0;) {
        uint64_t weight = rig_get(&rig, 0, c);
        uint64_t grad = rig_get_grad(&rig, 0, c);

        ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, 0, c, grad)), CST_OK);
        (void)rig_release(&rig, 0, c, weight);
        if (c == 6) {
            (void)rig_release(&rig, 0, c, kept);
        }
        rig_drain(&rig);
    }
    ck_assert_uint_eq(rig_rank_stats(&rig, 0).waits, 0);
    ck_assert_uint_eq(rig_rank_stats(&rig, 0).misses, 0);
    ck_assert_uint_gt(rig_rank_stats(&rig, 0).bytes_down, 0);
}
END_TEST

/* A fetch out of order is counted and served, and prediction continues after it. */
START_TEST(surprises_are_counted)
{
    rig_open(&rig, 6, 1, 12, 1);
    rig_start(&rig, 1);
    rig_drain(&rig);
    rig_whole_step(&rig, 6, 1);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_rank_stats(&rig, 0).surprises, 0);
    (void)rig_get(&rig, 0, 3);
    ck_assert_uint_eq(rig_rank_stats(&rig, 0).surprises, 1);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, rig_fetch(&rig, 0, 4)), CST_OK); /* loaded by prefetch */
    ck_assert_uint_eq(rig_rank_stats(&rig, 0).surprises, 1);
}
END_TEST

/* A fetch does not evict weights that are used sooner than others which are on their way: it waits
 * for these, and evicts the same weights as if they had come already. */
START_TEST(what_comes_for_later_is_evicted)
{
    uint64_t tag;

    rig_open(&rig, 5, 1, 3, 3);
    rig_start(&rig, 1);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_COPY), 3); /* chunks 0, 1 and 2 */
    rig_done(&rig, rig_command(&rig, CST_COMMAND_COPY, 1)->ticket, CST_OK, NULL);
    tag = rig_fetch(&rig, 0, 4); /* the backward pass, which ends with chunk 0, comes next */
    ck_assert(rig_waits(&rig, tag));
    ck_assert_uint_eq(rig_rank_stats(&rig, 0).evictions, 0);
    rig_done(&rig, rig_command(&rig, CST_COMMAND_COPY, 0)->ticket, CST_OK, NULL);
    ck_assert_uint_eq(rig_rank_stats(&rig, 0).evictions, 1);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    ck_assert_int_eq(rig_status(&rig, rig_fetch(&rig, 0, 1)), CST_OK); /* it was not evicted */
}
END_TEST

/* Hints are answered at once and cannot fail. PREFETCH loads if a block is free, and EVICT frees a
 * block that is not leased. */
START_TEST(hints)
{
    struct cst_event hint = {.kind = CST_EV_PREFETCH, .rank = 0, .chunk = 2};
    uint64_t held;

    rig_open(&rig, 4, 1, 4, 0);
    rig_start(&rig, 1);
    hint.attempt = rig.attempt;
    ck_assert_int_eq(rig_status(&rig, rig_event(&rig, hint)), CST_OK);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_books(&rig, 0).cached, 1);
    hint.kind = CST_EV_EVICT;
    ck_assert_int_eq(rig_status(&rig, rig_event(&rig, hint)), CST_OK);
    ck_assert_uint_eq(rig_books(&rig, 0).free, 4);
    held = rig_get(&rig, 0, 2);
    ck_assert_int_eq(rig_status(&rig, rig_event(&rig, hint)), CST_OK);
    ck_assert_uint_eq(rig_books(&rig, 0).leased, 1);
    (void)rig_release(&rig, 0, 2, held);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("residency");
    TCase *weights = suite_case(s, "weights", NULL, teardown);
    TCase *prefetch = suite_case(s, "prefetch", NULL, teardown);

    tcase_add_test(weights, miss_is_copied);
    tcase_add_test(weights, hit_is_a_lease_more);
    tcase_add_test(weights, wrong_generation_is_stale);
    tcase_add_loop_test(weights, evicts_farthest, 0, 2);
    tcase_add_test(weights, waits_for_a_block);
    tcase_add_test(weights, a_hit_waits_for_nobody);
    tcase_add_test(weights, copy_fails);
    tcase_add_test(prefetch, late_is_no_hit);
    tcase_add_test(prefetch, what_a_fetch_ahead_counts_as);
    tcase_add_test(prefetch, prefetch_by_declaration);
    tcase_add_test(prefetch, an_overtaken_fetch_has_a_deadline);
    tcase_add_test(prefetch, prefetch_by_trace);
    tcase_add_test(prefetch, no_prefetch_past_the_commit);
    tcase_add_test(prefetch, prefetch_leaves_room_for_gradients);
    tcase_add_test(prefetch, gradients_make_room_for_what_comes);
    tcase_add_test(prefetch, surprises_are_counted);
    tcase_add_test(prefetch, what_comes_for_later_is_evicted);
    tcase_add_test(prefetch, hints);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
