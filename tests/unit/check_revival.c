/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of offload/core/revival: a core that goes on from the record and the job table of an
 * earlier one repeats exactly the updates that were not complete, and nothing whose states are not
 * proven. */
#include "offload/core/revival.h"

#include "tests/lib/suite.h"
#include "tests/unit/reservation_rig.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { N_CHUNKS = 4 };

static struct rig rig;
static struct cst_table_header *table;
static struct cst_core_record record;
static struct cst_err err;

static void setup(void)
{
    struct cst_table_header header;

    cst_table_size(&header, N_CHUNKS, N_CHUNKS, N_CHUNKS);
    table = calloc(1, header.total_bytes);
    ck_assert_ptr_nonnull(table);
    *table = header;
    for (uint32_t i = 0; i < N_CHUNKS; i++) {
        cst_table_tiles(table)[i].reduce_mark = 77;
        cst_table_chunks(table)[i].reduce_mark = 77;
    }
}

static void teardown(void)
{
    rig_close(&rig);
    free(table);
}

static void open_job(enum cst_overlap overlap)
{
    rig_open_job(
        &rig, &(struct rig_job){
                  .n_chunks = N_CHUNKS, .world = 1, .n_blocks = 2 * N_CHUNKS, .overlap = overlap});
}

/* Make steps until @n are committed, and leave the updates of the last one in flight. Then take the
 * record, as if the daemon died now. */
static void live(enum cst_overlap overlap, unsigned n)
{
    uint64_t step;

    open_job(overlap);
    rig_start(&rig, 1);
    for (unsigned i = 0; i + 1 < n; i++) {
        rig_whole_step(&rig, N_CHUNKS, 1);
    }
    (void)rig_get(&rig, 0, 0);
    step = rig_step(&rig, 0);
    while (rig_waits(&rig, step)) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    cst_core_record(rig.core, &record);
    ck_assert_uint_eq(record.counters.step, n);
}

/* The marks that the engines have left. */
static void mark(uint64_t first, uint64_t second, uint64_t third, uint64_t fourth)
{
    const uint64_t marks[] = {first, second, third, fourth};

    for (uint32_t i = 0; i < N_CHUNKS; i++) {
        cst_table_chunks(table)[i].update_mark = marks[i];
    }
}

/* A new core goes on. */
static void revive(enum cst_overlap overlap)
{
    rig_close(&rig);
    open_job(overlap);
    ck_assert_int_eq(cst_core_may_revive(rig.core, &record, table, &err), CST_OK);
    (void)rig_event(&rig,
                    (struct cst_event){.kind = CST_EV_REVIVE, .record = &record, .table = table});
}

static void refused_in(enum cst_overlap overlap, const char *words)
{
    rig_close(&rig);
    open_job(overlap);
    ck_assert_int_eq(cst_core_may_revive(rig.core, &record, table, &err), CST_ELOST);
    ck_assert_msg(strstr(err.text, words) != NULL, "%s", err.text);
}

static void refused(const char *words)
{
    refused_in(CST_OVERLAP_COMMIT, words);
}

/* Two of four updates were complete: the two others are made again, as they were issued first. Then
 * the job goes on. */
static void repeat(enum cst_overlap overlap)
{
    struct cst_command was[N_CHUNKS];

    live(overlap, 3);
    for (unsigned i = 0; i < N_CHUNKS; i++) {
        const struct cst_command *update = rig_command(&rig, CST_COMMAND_UPDATE, i);

        ck_assert_ptr_nonnull(update);
        was[update->chunk] = *update;
    }
    mark(3, 2, 3, 2);
    revive(overlap);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_UPDATE), 2);
    for (unsigned i = 0; i < 2; i++) {
        const struct cst_command *update = rig_command(&rig, CST_COMMAND_UPDATE, i);
        const struct cst_command *same = &was[update->chunk];

        ck_assert_uint_eq(update->chunk, 2 * i + 1);
        ck_assert_uint_eq(update->mark, same->mark);
        ck_assert_int_eq(memcmp(&update->hyper, &same->hyper, sizeof update->hyper), 0);
        ck_assert_int_eq(update->guard, same->guard);
        ck_assert_uint_eq(update->n_out, same->n_out);
        ck_assert_int_eq(memcmp(update->out, same->out, update->n_out * sizeof *update->out), 0);
    }
    ck_assert_uint_eq(rig_stats(&rig).step, 3);
    ck_assert_uint_eq(rig_stats(&rig).adam_step, 3);
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_INTERRUPTED);
    for (uint32_t i = 0; i < N_CHUNKS; i++) {
        ck_assert_uint_eq(cst_table_tiles(table)[i].reduce_mark, CST_MARK_NONE);
        ck_assert_uint_eq(cst_table_chunks(table)[i].reduce_mark, CST_MARK_NONE);
    }
    rig_drain(&rig);
    rig_start(&rig, 1);
    rig_whole_step(&rig, N_CHUNKS, 1);
    ck_assert_uint_eq(rig_stats(&rig).step, 4);
}

START_TEST(commit)
{
    repeat(CST_OVERLAP_COMMIT);
}
END_TEST

START_TEST(early)
{
    repeat(CST_OVERLAP_EARLY);
}
END_TEST

START_TEST(delayed)
{
    repeat(CST_OVERLAP_DELAYED);
}
END_TEST

/* The record of a core that was revived is that of the core before. */
START_TEST(same_record)
{
    struct cst_core_record again;

    live(CST_OVERLAP_DELAYED, 3);
    mark(3, 3, 3, 3);
    revive(CST_OVERLAP_DELAYED);
    ck_assert_uint_eq(rig.n_commands, 0);
    cst_core_record(rig.core, &again);
    ck_assert_int_eq(memcmp(&record, &again, sizeof record), 0);
}
END_TEST

/* Updates of the uncommitted step that are complete are kept, and the step can only be repeated
 * with the same hyper-parameters. */
START_TEST(ahead)
{
    struct cst_event step = {.kind = CST_EV_STEP};

    live(CST_OVERLAP_EARLY, 2);
    record.early = 1;
    record.early_hyper = record.hyper;
    mark(3, 2, 3, 2);
    revive(CST_OVERLAP_EARLY);
    ck_assert_uint_eq(rig.n_commands, 0);
    ck_assert_uint_eq(rig_stats(&rig).chunks_ahead, 2);
    rig_start(&rig, 1);
    step.attempt = rig.attempt;
    step.hyper = record.hyper;
    step.hyper.lr *= 2;
    ck_assert_int_eq(rig_status(&rig, rig_event(&rig, step)), CST_EMISMATCH);
}
END_TEST

/* After states were restored from a checkpoint, the marks of earlier updates mean nothing. */
START_TEST(restored)
{
    live(CST_OVERLAP_COMMIT, 2);
    record.restored_adam_step = record.counters.adam_step;
    mark(0, 9, 1, 0);
    revive(CST_OVERLAP_COMMIT);
    ck_assert_uint_eq(rig.n_commands, 0);
    record.restored_adam_step = 1;
    mark(0, 2, 9, 0);
    revive(CST_OVERLAP_COMMIT);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_UPDATE), 3);
    rig_drain(&rig);
}
END_TEST

static void open_with_reservation(enum cst_overlap overlap)
{
    struct cst_core_device_reservation reservation = {.engine = RESERVATION_ENGINE,
                                                      .segment = RESERVATION_SEGMENT,
                                                      .bytes = 3 * RESERVATION_BUFFER};

    rig_open_job(&rig, &(struct rig_job){.n_chunks = N_CHUNKS,
                                         .world = 1,
                                         .n_blocks = 2 * N_CHUNKS,
                                         .reservations = &reservation,
                                         .n_reservations = 1,
                                         .interleave = 2,
                                         .overlap = overlap,
                                         .table = table});
}

/* Complete the commands of chunk 1's device update until its results are copied back. These COPYs
 * are stored in @down. */
static void copy_back_begins(struct cst_command down[4])
{
    const struct cst_command *copy;

    while ((copy = reservation_copy(&rig, 1, true, 0)) != NULL) {
        rig_done(&rig, copy->ticket, CST_OK, NULL);
    }
    for (unsigned i = 0; i < 4; i++) {
        copy = reservation_copy(&rig, 1, false, i);
        ck_assert_ptr_nonnull(copy);
        down[i] = *copy;
    }
    rig_done(&rig, reservation_update(&rig, 1)->ticket, CST_OK, NULL);
}

/* Of two device updates one was being copied back, and of the other one nothing was: the COPYs of
 * the first are made again from the same buffer to the same rows, and the node makes the second. */
START_TEST(device_updates)
{
    struct cst_command down[4];

    open_with_reservation((enum cst_overlap)_i);
    rig_start(&rig, 1);
    rig_whole_step(&rig, N_CHUNKS, 1);
    rig_drain(&rig);
    ck_assert_uint_eq(cst_table_chunks(table)[1].update_mark, 1);
    ck_assert_uint_eq(cst_table_chunks(table)[3].update_mark, 1);
    reservation_commit(&rig, N_CHUNKS);
    copy_back_begins(down);
    cst_core_record(rig.core, &record);
    mark(2, 1, 1, 1);

    rig_close(&rig);
    open_with_reservation((enum cst_overlap)_i);
    ck_assert_int_eq(cst_core_may_revive(rig.core, &record, table, &err), CST_OK);
    (void)rig_event(&rig,
                    (struct cst_event){.kind = CST_EV_REVIVE, .record = &record, .table = table});
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_COPY), 4);
    for (unsigned i = 0; i < 4; i++) {
        const struct cst_command *copy = reservation_copy(&rig, 1, false, i);

        ck_assert_ptr_nonnull(copy);
        ck_assert_uint_eq(copy->node, RESERVATION_ENGINE);
        ck_assert_uint_eq(copy->bytes, down[i].bytes);
        ck_assert_int_eq(memcmp(copy->src, down[i].src, sizeof copy->src[0]), 0);
        ck_assert_int_eq(memcmp(copy->dst, down[i].dst, sizeof copy->dst[0]), 0);
    }
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_UPDATE), 2);
    ck_assert_uint_eq(reservation_update(&rig, 2)->node, 0);
    ck_assert_uint_eq(reservation_update(&rig, 3)->node, 0);
    rig_drain(&rig);
    ck_assert_uint_eq(cst_table_chunks(table)[1].update_mark, 2);
    rig_start(&rig, 1);
    rig_whole_step(&rig, N_CHUNKS, 1);
    ck_assert_uint_eq(rig_stats(&rig).step, 3);
}
END_TEST

/* A record that does not fit the device reservations is refused. */
START_TEST(no_such_buffer)
{
    live(CST_OVERLAP_COMMIT, 1);
    mark(1, 1, 1, 1);
    record.copying[0].chunk = 1;
    refused("its record has an update in buffer 0 of device reservation 0, which does not exist");
}
END_TEST

/* Without the undo slots, complete updates are as good as before, and others may be torn. */
START_TEST(without_undo)
{
    live(CST_OVERLAP_COMMIT, 3);
    record.undo_lost = 1;
    mark(3, 2, 3, 3);
    refused("an update of chunk 1 was cut off");
    mark(3, 3, 3, 3);
    revive(CST_OVERLAP_COMMIT);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_UPDATE), 0);
    record.early = 1;
    mark(4, 3, 4, 4);
    refused_in(CST_OVERLAP_EARLY, "an update of chunk 1 was cut off");
}
END_TEST

/* A record whose checksum is right may still say what no job can be. It is refused with words, and
 * no row is looked for that the layout does not have. */
START_TEST(impossible_flags)
{
    uint8_t *const flags[] = {&record.second, &record.delayed, &record.early};
    uint8_t *const any[] = {&record.guard, &record.has_hyper, &record.undo_lost, &record.second};

    live(CST_OVERLAP_COMMIT, 3);
    mark(3, 2, 3, 2);
    for (unsigned i = 0; i < 3; i++) {
        *flags[i] = 1;
        refused("its record names a second weight row, and its layout has none");
        *flags[i] = 0;
    }
    for (unsigned i = 0; i < 4; i++) {
        uint8_t was = *any[i];

        *any[i] = 0x42;
        refused("its record has a flag that is neither 0 nor 1");
        *any[i] = was;
    }
    record.early = 1;
    refused_in(CST_OVERLAP_DELAYED, "its record has early updates, and the job makes none");
    record.early = 0;
    record.delayed = 1;
    refused_in(CST_OVERLAP_EARLY, "its record has delayed updates, and the job makes none");
    record.delayed = record.has_hyper = 0;
    refused("optimizer step 3 after step 0 was restored, without hyper-parameters");
    record.has_hyper = 1;
    record.restored_adam_step = 4;
    refused("optimizer step 3 after step 4 was restored");
}
END_TEST

START_TEST(not_proven)
{
    live(CST_OVERLAP_COMMIT, 3);
    mark(3, 1, 3, 3);
    refused("the last update of chunk 1 was number 1, but the last step has number 3");
    mark(3, 3, 3, 3);
    record.n_writes = 2;
    refused("2 writes of its states were under way");
    record.n_writes = 0;
    record.failed = 1;
    refused("it had failed");
    record.failed = 0;
    record.initialised = 0;
    refused("its ranks had not begun their first step");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("revival");
    TCase *tc = suite_case(s, "core", setup, teardown);

    tcase_add_test(tc, commit);
    tcase_add_test(tc, early);
    tcase_add_test(tc, delayed);
    tcase_add_test(tc, same_record);
    tcase_add_test(tc, ahead);
    tcase_add_test(tc, restored);
    tcase_add_loop_test(tc, device_updates, CST_OVERLAP_COMMIT, CST_OVERLAP_DELAYED + 1);
    tcase_add_test(tc, no_such_buffer);
    tcase_add_test(tc, without_undo);
    tcase_add_test(tc, impossible_flags);
    tcase_add_test(tc, not_proven);
    return suite_run(s);
}
