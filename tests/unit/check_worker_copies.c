/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of a pool whose worker copies weights itself: when the worker may copy, and what the core
 * knows of the blocks. */
#include "tests/unit/core_rig.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define ROW_BYTES (2 * RIG_CHUNK_ELEMS)

static struct rig rig;

static void teardown(void)
{
    rig_close(&rig);
}

/* Check that @tag was granted and its weights are to be copied from the chunk's row. Returns the
 * generation. */
static uint64_t to_be_filled(uint64_t tag, uint32_t chunk)
{
    const struct cst_reply *reply = rig_answer(&rig, tag);
    const struct cst_layout_row *row = &rig.layout.chunks[chunk].rows[CST_ROW_WEIGHT];

    ck_assert_int_eq(reply->status, CST_OK);
    ck_assert(!reply->hit);
    ck_assert_uint_eq(reply->home_bytes, ROW_BYTES);
    ck_assert_uint_eq(reply->home.segment, RIG_ARENA_SEGMENT + row->segment);
    ck_assert_uint_eq(reply->home.offset, row->offset);
    return reply->generation;
}

static uint64_t filled(uint64_t tag)
{
    const struct cst_reply *reply = rig_answer(&rig, tag);

    ck_assert_int_eq(reply->status, CST_OK);
    ck_assert(reply->hit);
    ck_assert_uint_eq(reply->home_bytes, 0);
    return reply->generation;
}

/* A miss is answered at once with the row's place, and no engine gets a command. After the release
 * the block is cached: the next fetch is a hit. */
START_TEST(miss_names_the_row)
{
    uint64_t generation;

    rig_open_worker_copies(&rig, 4, 2, 4, 0);
    rig_start(&rig, 2);
    generation = to_be_filled(rig_fetch(&rig, 1, 2), 2);
    ck_assert_uint_eq(rig.n_commands, 0);
    ck_assert_uint_eq(rig_books(&rig, 1).leased, 1);
    ck_assert_uint_eq(rig_rank_stats(&rig, 1).bytes_up, ROW_BYTES);
    (void)rig_release(&rig, 1, 2, generation);
    ck_assert_uint_eq(rig_books(&rig, 1).cached, 1);
    (void)filled(rig_fetch(&rig, 1, 2));
    ck_assert_uint_eq(rig_rank_stats(&rig, 1).bytes_up, ROW_BYTES);
}
END_TEST

/* A second fetch of the chunk before a release gets the place again. One release says that the
 * weights are in the block. */
START_TEST(nothing_is_known_before_a_release)
{
    uint64_t first;

    rig_open_worker_copies(&rig, 4, 1, 4, 0);
    rig_start(&rig, 1);
    first = to_be_filled(rig_fetch(&rig, 0, 1), 1);
    ck_assert_uint_eq(to_be_filled(rig_fetch(&rig, 0, 1), 1), first);
    (void)rig_release(&rig, 0, 1, first);
    ck_assert_uint_eq(rig_books(&rig, 0).leased, 1);
    ck_assert_uint_eq(filled(rig_fetch(&rig, 0, 1)), first);
}
END_TEST

/* A fetch keeps a block and waits for the update of its own chunk, and of no other chunk. */
START_TEST(waits_for_its_update)
{
    uint64_t tag;

    rig_open_worker_copies(&rig, 2, 1, 4, 0);
    rig_start(&rig, 1);
    (void)rig_step(&rig, 0);
    while (rig_count(&rig, CST_COMMAND_UPDATE) == 0) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    tag = rig_fetch(&rig, 0, 1);
    ck_assert(rig_waits(&rig, tag));
    ck_assert_uint_eq(rig_books(&rig, 0).moving, 1);
    rig_done(&rig, rig_command(&rig, CST_COMMAND_UPDATE, 0)->ticket, CST_OK, NULL);
    ck_assert(rig_waits(&rig, tag));
    rig_done(&rig, rig_command(&rig, CST_COMMAND_UPDATE, 0)->ticket, CST_OK, NULL);
    (void)to_be_filled(tag, 1);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_COPY), 0);
}
END_TEST

/* If no fetch waits for the update any more, the block that was kept becomes free when the update
 * ends. */
START_TEST(cancelled_while_it_waits)
{
    uint64_t tag;

    rig_open_worker_copies(&rig, 1, 1, 3, 0);
    rig_start(&rig, 1);
    (void)rig_step(&rig, 0);
    while (rig_count(&rig, CST_COMMAND_UPDATE) == 0) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    tag = rig_fetch(&rig, 0, 0);
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_CANCEL, .cancel = tag});
    ck_assert_int_eq(rig_status(&rig, tag), CST_ECANCELLED);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_books(&rig, 0).free, 3);
    (void)to_be_filled(rig_fetch(&rig, 0, 0), 0);
}
END_TEST

/* If the update fails, the fetches that wait for it are told that the job has failed. */
START_TEST(update_fails)
{
    uint64_t tag;

    rig_open_worker_copies(&rig, 1, 1, 3, 0);
    rig_start(&rig, 1);
    (void)rig_step(&rig, 0);
    while (rig_count(&rig, CST_COMMAND_UPDATE) == 0) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    tag = rig_fetch(&rig, 0, 0);
    rig_done(&rig, rig_command(&rig, CST_COMMAND_UPDATE, 0)->ticket, CST_EIO, "smoke");
    ck_assert_int_eq(rig_status(&rig, tag), CST_EENGINE);
    ck_assert_ptr_nonnull(strstr(rig_answer(&rig, tag)->err.text, "smoke"));
    ck_assert_uint_eq(rig_books(&rig, 0).free, 3);
}
END_TEST

/* A fetch waits for an earlier write of the states. */
START_TEST(waits_for_a_write)
{
    uint64_t tag;

    rig_open_worker_copies(&rig, 2, 1, 4, 0);
    rig_start(&rig, 1);
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_WRITE,
                                             .tensor = 0,
                                             .row = CST_ROW_MASTER,
                                             .n_elems = RIG_CHUNK_ELEMS,
                                             .place = {.segment = 400}});
    tag = rig_fetch(&rig, 0, 0);
    ck_assert(rig_waits(&rig, tag));
    rig_drain(&rig);
    (void)to_be_filled(tag, 0);
}
END_TEST

/* A sync ends leases and does not report copies: blocks that were not released are free, and those
 * that were are cached. */
START_TEST(sync_forgets_what_was_not_released)
{
    uint64_t generation;

    rig_open_worker_copies(&rig, 4, 2, 4, 0);
    rig_start(&rig, 2);
    generation = to_be_filled(rig_fetch(&rig, 0, 0), 0);
    (void)rig_release(&rig, 0, 0, generation);
    (void)filled(rig_fetch(&rig, 0, 0));
    (void)to_be_filled(rig_fetch(&rig, 0, 1), 1);
    (void)rig_rank_event(&rig, CST_EV_SYNC, 0);
    ck_assert_uint_eq(rig_books(&rig, 0).cached, 1);
    ck_assert_uint_eq(rig_books(&rig, 0).free, 3);
}
END_TEST

/* Nothing remains of a worker that died (0) or left (1). Blocks of one that hung up (2) stay until
 * it is dead. */
START_TEST(who_goes_leaves_nothing)
{
    static const enum cst_event_kind how[] = {CST_EV_DEAD, CST_EV_LEAVE, CST_EV_HANGUP};
    uint64_t generation;

    rig_open_worker_copies(&rig, 4, 2, 4, 0);
    rig_start(&rig, 2);
    generation = to_be_filled(rig_fetch(&rig, 0, 0), 0);
    (void)rig_release(&rig, 0, 0, generation);
    (void)to_be_filled(rig_fetch(&rig, 0, 1), 1);
    (void)rig_rank_event(&rig, how[_i], 0);
    if (how[_i] == CST_EV_HANGUP) {
        ck_assert_uint_eq(rig_books(&rig, 0).quarantined, 1);
        (void)rig_rank_event(&rig, CST_EV_DEAD, 0);
    }
    ck_assert_uint_eq(rig_books(&rig, 0).free, 4);
}
END_TEST

/* Weights that a worker has not released at the commit are out of date, whatever its copy brought.
 * Another fetch gets another block. */
START_TEST(commit_overtakes_a_copy)
{
    uint64_t old, tag;

    rig_open_worker_copies(&rig, 1, 1, 3, 0);
    rig_start(&rig, 1);
    old = rig_fetch(&rig, 0, 0);
    (void)to_be_filled(old, 0);
    (void)rig_step(&rig, 0);
    rig_drain(&rig);
    tag = rig_fetch(&rig, 0, 0);
    (void)to_be_filled(tag, 0);
    ck_assert_uint_ne(rig_answer(&rig, tag)->offset, rig_answer(&rig, old)->offset);
    (void)rig_release(&rig, 0, 0, rig_answer(&rig, old)->generation);
    ck_assert_uint_eq(rig_books(&rig, 0).free, 2);
    ck_assert_uint_eq(rig_books(&rig, 0).leased, 1);
}
END_TEST

/* Only the worker loads weights: the trace and hints do not. Whole steps need no copy of weights by
 * an engine. */
START_TEST(no_prefetch)
{
    rig_open_worker_copies(&rig, 4, 2, 4, 1);
    rig_start(&rig, 2);
    (void)rig_event(
        &rig, (struct cst_event){.kind = CST_EV_PREFETCH, .attempt = rig.attempt, .chunk = 3});
    ck_assert_uint_eq(rig.n_commands, 0);
    for (int i = 0; i < 3; i++) {
        rig_whole_step(&rig, 4, 2);
    }
    ck_assert_uint_eq(rig_rank_stats(&rig, 0).prefetches, 0);
    ck_assert_uint_gt(rig_rank_stats(&rig, 0).bytes_up, 0);
    ck_assert_uint_gt(rig_rank_stats(&rig, 0).hits, 0);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("worker_copies");
    TCase *copies = suite_case(s, "copies", NULL, teardown);

    tcase_add_test(copies, miss_names_the_row);
    tcase_add_test(copies, nothing_is_known_before_a_release);
    tcase_add_test(copies, waits_for_its_update);
    tcase_add_test(copies, cancelled_while_it_waits);
    tcase_add_test(copies, update_fails);
    tcase_add_test(copies, waits_for_a_write);
    tcase_add_test(copies, sync_forgets_what_was_not_released);
    tcase_add_loop_test(copies, who_goes_leaves_nothing, 0, 3);
    tcase_add_test(copies, commit_overtakes_a_copy);
    tcase_add_test(copies, no_prefetch);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
