/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of saves in the core: which step a save sees, what waits for it, and how it ends; moments
 * in their own format; restored counters. */
#include "tests/lib/suite.h"
#include "tests/unit/core_rig.h"

#include <check.h>
#include <string.h>

enum { N_CHUNKS = 4 };

static struct rig rig;

static void teardown(void)
{
    rig_close(&rig);
}

static uint64_t save(void)
{
    return rig_event(&rig, (struct cst_event){.kind = CST_EV_SAVE});
}

static uint64_t save_end(void)
{
    return rig_event(&rig, (struct cst_event){.kind = CST_EV_SAVE_END});
}

static uint64_t restore(struct cst_counters counters)
{
    return rig_event(&rig, (struct cst_event){.kind = CST_EV_RESTORE, .counters = counters});
}

/* A job cannot be saved before its weights exist, and not twice at a time. */
START_TEST(begin_and_end)
{
    uint64_t tag;

    rig_open(&rig, N_CHUNKS, 1, 4, 0);
    ck_assert_int_eq(rig_status(&rig, save()), CST_EINVAL);
    ck_assert_int_eq(rig_status(&rig, save_end()), CST_EINVAL);
    rig_start(&rig, 1);
    tag = save();
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    ck_assert_uint_eq(rig_answer(&rig, tag)->step, 0);
    ck_assert(rig_stats(&rig).saving);
    ck_assert_int_eq(rig_status(&rig, save()), CST_EBUSY);
    ck_assert_int_eq(rig_status(&rig, rig_io(&rig, CST_EV_WRITE, 0, CST_ROW_MASTER, 0, 1)),
                     CST_EBUSY);
    ck_assert_int_eq(rig_status(&rig, save_end()), CST_OK);
    ck_assert(!rig_stats(&rig).saving);
    ck_assert(rig_waits(&rig, rig_io(&rig, CST_EV_WRITE, 0, CST_ROW_MASTER, 0, 1)));
    rig_drain(&rig);
}
END_TEST

/* The ranks compute the next step while a save reads, and only its commit waits. The updates of the
 * saved step may still be in flight: reads wait for them. */
START_TEST(commit_waits)
{
    uint64_t tag, read, step;

    rig_open(&rig, N_CHUNKS, 1, 2 * N_CHUNKS, 0);
    rig_start(&rig, 1);
    (void)rig_get(&rig, 0, 0);
    step = rig_step(&rig, 0);
    while (rig_waits(&rig, step)) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_UPDATE), N_CHUNKS);
    tag = save();
    ck_assert_uint_eq(rig_answer(&rig, tag)->step, 1);
    read = rig_io(&rig, CST_EV_READ, 2, CST_ROW_MASTER, 0, 8);
    ck_assert_uint_ge(rig_command(&rig, CST_COMMAND_COPY, 0)->n_after, 1);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, read), CST_OK);

    (void)rig_get(&rig, 0, 0);
    step = rig_step(&rig, 0);
    rig_drain(&rig);
    ck_assert(rig_waits(&rig, step));
    ck_assert_uint_eq(rig.n_commands, 0);
    read = rig_io(&rig, CST_EV_READ, 3, CST_ROW_MOMENT, 0, 8);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, read), CST_OK);
    ck_assert(rig_waits(&rig, step));
    rig.now += 5000000;
    ck_assert_int_eq(rig_status(&rig, save_end()), CST_OK);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, step), CST_OK);
    ck_assert_uint_eq(rig_answer(&rig, step)->step, 2);
    ck_assert_uint_ge(rig_stats(&rig).save_wait_ns, 5000000);
}
END_TEST

/* If the norm was issued before, the save is of the step that is being committed. */
START_TEST(save_during_commit)
{
    uint64_t tag, step;

    rig_open(&rig, N_CHUNKS, 1, 2 * N_CHUNKS, 0);
    rig_start(&rig, 1);
    (void)rig_get(&rig, 0, 0);
    step = rig_step(&rig, 0);
    while (rig_count(&rig, CST_COMMAND_NORM) == 0) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    tag = save();
    ck_assert(rig_waits(&rig, tag));
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, step), CST_OK);
    ck_assert_uint_eq(rig_answer(&rig, tag)->step, 1);
    ck_assert_int_eq(rig_status(&rig, save_end()), CST_OK);
}
END_TEST

/* A step with early updates is saved when it is committed; while a save waits or is active, no
 * update is early. A save that waits can be ended, and is then answered. */
START_TEST(early_updates)
{
    struct cst_hyper hyper = {
        .lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .grad_scale = 1.0f};
    uint64_t tag, generation, step;

    rig_open_job(&rig, &(struct rig_job){
                           .n_chunks = 2, .world = 1, .n_blocks = 8, .overlap = CST_OVERLAP_EARLY});
    rig_start(&rig, 1);
    (void)rig_event(
        &rig, (struct cst_event){.kind = CST_EV_PREPARE, .attempt = rig.attempt, .hyper = hyper});
    generation = rig_get_grad(&rig, 0, 0);
    (void)rig_hand_in(&rig, 0, 0, generation);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_stats(&rig).chunks_ahead, 1);
    tag = save();
    ck_assert(rig_waits(&rig, tag));
    ck_assert_int_eq(rig_status(&rig, save_end()), CST_OK);
    ck_assert_int_eq(rig_status(&rig, tag), CST_ECANCELLED);
    tag = save();
    generation = rig_get_grad(&rig, 0, 1);
    (void)rig_hand_in(&rig, 0, 1, generation);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_stats(&rig).chunks_ahead, 1);
    ck_assert(rig_waits(&rig, tag));
    step = rig_event(
        &rig, (struct cst_event){.kind = CST_EV_STEP, .attempt = rig.attempt, .hyper = hyper});
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, step), CST_OK);
    ck_assert_uint_eq(rig_answer(&rig, tag)->step, 1);
}
END_TEST

/* A save that stops reading while a commit waits is ended by the deadline, and is told so. */
START_TEST(stalled)
{
    uint64_t step, deadline;

    rig_open(&rig, N_CHUNKS, 1, 2 * N_CHUNKS, 0);
    rig_start(&rig, 1);
    ck_assert_int_eq(rig_status(&rig, save()), CST_OK);
    ck_assert_uint_eq(cst_core_deadline(rig.core), CST_CORE_NEVER);
    (void)rig_get(&rig, 0, 0);
    step = rig_step(&rig, 0);
    rig_drain(&rig);
    ck_assert(rig_waits(&rig, step));
    deadline = cst_core_deadline(rig.core);
    ck_assert_uint_ne(deadline, CST_CORE_NEVER);
    rig.now += 1000;
    (void)rig_io(&rig, CST_EV_READ, 3, CST_ROW_MOMENT, 0, 8);
    ck_assert_uint_gt(cst_core_deadline(rig.core), deadline);
    rig_drain(&rig);
    rig.now = cst_core_deadline(rig.core);
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_TICK});
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, step), CST_OK);
    ck_assert_int_eq(rig_status(&rig, save_end()), CST_ETIMEDOUT);
    ck_assert_int_eq(rig_status(&rig, save_end()), CST_EINVAL);
}
END_TEST

/* A save that waits for a commit which does not come is refused. */
START_TEST(no_commit)
{
    struct cst_hyper hyper = {
        .lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .grad_scale = 1.0f};
    uint64_t tag, generation;

    rig_open_job(&rig, &(struct rig_job){
                           .n_chunks = 2, .world = 1, .n_blocks = 8, .overlap = CST_OVERLAP_EARLY});
    rig_start(&rig, 1);
    (void)rig_event(
        &rig, (struct cst_event){.kind = CST_EV_PREPARE, .attempt = rig.attempt, .hyper = hyper});
    generation = rig_get_grad(&rig, 0, 0);
    (void)rig_hand_in(&rig, 0, 0, generation);
    rig_drain(&rig);
    tag = save();
    ck_assert(rig_waits(&rig, tag));
    rig.now = cst_core_deadline(rig.core);
    ck_assert_uint_ne(rig.now, CST_CORE_NEVER);
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_TICK});
    ck_assert_int_eq(rig_status(&rig, tag), CST_ETIMEDOUT);
    ck_assert_int_eq(rig_status(&rig, save_end()), CST_EINVAL);
}
END_TEST

/* Moments in their own format are copied, codes and exponents apart; other rows have no such form.
 */
START_TEST(raw_moments)
{
    struct cst_event read = {.kind = CST_EV_READ,
                             .tensor = 1,
                             .row = CST_ROW_MOMENT,
                             .first = 64,
                             .n_elems = 96,
                             .raw = true,
                             .place = {.segment = RIG_STAGING_SEGMENT}};
    const struct cst_layout_row *row;
    const struct cst_command *copy;

    rig_open_job(&rig, &(struct rig_job){
                           .n_chunks = 2, .world = 1, .n_blocks = 8, .moments = CST_MOMENTS_MX8});
    row = &rig.layout.chunks[1].rows[CST_ROW_MOMENT];
    (void)rig_event(&rig, read);
    copy = rig_command(&rig, CST_COMMAND_COPY, 0);
    ck_assert_ptr_nonnull(copy);
    ck_assert_uint_eq(copy->src[0].offset, row->offset + 64);
    ck_assert_uint_eq(copy->bytes, 96);
    read.exponents = true;
    (void)rig_event(&rig, read);
    copy = rig_command(&rig, CST_COMMAND_COPY, 1);
    ck_assert_uint_eq(copy->src[0].offset, row->offset + RIG_CHUNK_ELEMS + 2);
    ck_assert_uint_eq(copy->bytes, 3);
    rig_drain(&rig);

    read.first = 8; /* not the beginning of a block */
    ck_assert_int_eq(rig_status(&rig, rig_event(&rig, read)), CST_EINVAL);
    read.first = RIG_CHUNK_ELEMS - 32; /* up to the end of the tensor */
    read.n_elems = 32;
    read.kind = CST_EV_WRITE;
    (void)rig_event(&rig, read);
    copy = rig_command(&rig, CST_COMMAND_COPY, 0);
    ck_assert_uint_eq(copy->dst[0].offset,
                      row->offset + RIG_CHUNK_ELEMS + (RIG_CHUNK_ELEMS - 32) / 32);
    ck_assert_uint_eq(copy->bytes, 1);
    rig_drain(&rig);
    read.row = CST_ROW_MASTER;
    ck_assert_int_eq(rig_status(&rig, rig_event(&rig, read)), CST_EINVAL);
}
END_TEST

/* A restored job goes on with its counters: the next update has the next Adam step. */
START_TEST(restored)
{
    struct cst_counters counters = {.step = 40, .adam_step = 38, .n_skipped = 2, .n_overflows = 3};
    struct cst_core_stats stats;

    rig_open(&rig, N_CHUNKS, 1, 2 * N_CHUNKS, 0);
    (void)rig_io(&rig, CST_EV_WRITE, 0, CST_ROW_MASTER, 0, 8);
    ck_assert_int_eq(rig_status(&rig, restore(counters)), CST_EBUSY);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, restore(counters)), CST_OK);
    stats = rig_stats(&rig);
    ck_assert(stats.initialised);
    ck_assert_uint_eq(stats.step, 40);
    ck_assert_uint_eq(stats.adam_step, 38);
    ck_assert_uint_eq(stats.n_skipped, 2);
    ck_assert_uint_eq(stats.n_overflows, 3);
    rig_start(&rig, 1);
    (void)rig_get(&rig, 0, 0);
    ck_assert_int_eq(rig_status(&rig, restore(counters)), CST_EBUSY);
    (void)rig_step(&rig, 0);
    while (rig_count(&rig, CST_COMMAND_UPDATE) == 0) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_UPDATE, 0)->mark, 39);
    ck_assert_uint_eq(rig_stats(&rig).step, 41);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("save");
    TCase *tc = suite_case(s, "save", NULL, teardown);

    tcase_add_test(tc, begin_and_end);
    tcase_add_test(tc, commit_waits);
    tcase_add_test(tc, save_during_commit);
    tcase_add_test(tc, early_updates);
    tcase_add_test(tc, stalled);
    tcase_add_test(tc, no_commit);
    tcase_add_test(tc, raw_moments);
    tcase_add_test(tc, restored);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
