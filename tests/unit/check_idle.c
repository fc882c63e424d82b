/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of offload/books/idle: which chunks a step leaves as they are, the steps that tensors have
 * missed, and how both outlive a core. */
#include "offload/books/idle.h"

#include "offload/core/revival.h"
#include "tests/lib/suite.h"
#include "tests/unit/core_rig.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_CHUNKS = 3 };

static struct rig rig;
static struct cst_table_header *table;
static struct cst_err err;

static void setup(void)
{
    struct cst_table_header header;

    cst_table_size(&header, N_CHUNKS, N_CHUNKS, N_CHUNKS);
    cst_table_add_steps(&header);
    table = calloc(1, header.total_bytes);
    ck_assert_ptr_nonnull(table);
    *table = header;
    for (uint32_t c = 0; c < N_CHUNKS; c++) {
        cst_table_chunks(table)[c] = (struct cst_table_chunk){.first_span = c, .n_spans = 1};
    }
}

static void teardown(void)
{
    rig_close(&rig);
    free(table);
}

static void open_core(uint32_t world, enum cst_overlap overlap)
{
    rig_open_job(&rig, &(struct rig_job){.n_chunks = N_CHUNKS,
                                         .world = world,
                                         .n_blocks = 2 * N_CHUNKS,
                                         .overlap = overlap,
                                         .skips_unused = true,
                                         .table = table});
}

static void open_job(uint32_t world, enum cst_overlap overlap)
{
    open_core(world, overlap);
    rig_start(&rig, world);
}

/* Let @rank hand in the gradients of the chunks @chunks, one bit each. */
static void hand_in(uint32_t rank, unsigned chunks)
{
    for (uint32_t c = 0; c < N_CHUNKS; c++) {
        if ((chunks >> c & 1) != 0) {
            (void)rig_hand_in(&rig, rank, c, rig_get_grad(&rig, rank, c));
        }
    }
}

/* Ask for the step of @rank, which has no gradients of the tensors @without and discards those of
 * @discarded, one bit each. */
static uint64_t ask(uint32_t rank, unsigned without, unsigned discarded)
{
    const uint8_t bits[2] = {(uint8_t)without, (uint8_t)discarded};

    return rig_event(
        &rig,
        (struct cst_event){
            .kind = CST_EV_STEP,
            .rank = rank,
            .attempt = rig.attempt,
            .without = &bits[0],
            .n_without = 1,
            .discarded = &bits[1],
            .n_discarded = 1,
            .hyper = {
                .lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .grad_scale = 1.0f}});
}

/* Complete commands until the step is committed, but no update. */
static void commit(uint64_t tag)
{
    while (rig_waits(&rig, tag)) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
}

/* The chunks for which an update is in flight, one bit each. */
static unsigned updated(void)
{
    unsigned chunks = 0;

    for (unsigned i = 0; i < rig_count(&rig, CST_COMMAND_UPDATE); i++) {
        chunks |= 1u << rig_command(&rig, CST_COMMAND_UPDATE, i)->chunk;
    }
    return chunks;
}

/* Complete the updates, as engines do. */
static void complete(void)
{
    for (unsigned i = 0; i < rig_count(&rig, CST_COMMAND_UPDATE); i++) {
        const struct cst_command *update = rig_command(&rig, CST_COMMAND_UPDATE, i);

        cst_table_chunks(table)[update->chunk].update_mark = update->mark;
    }
    rig_drain(&rig);
}

/* Make a step of one rank with gradients of @chunks, and complete it. */
static void whole_step(unsigned chunks)
{
    hand_in(0, chunks);
    commit(ask(0, ~chunks, 0));
    ck_assert_uint_eq(updated(), chunks);
    complete();
}

static void missed_are(uint64_t first, uint64_t second, uint64_t third)
{
    const uint64_t want[N_CHUNKS] = {first, second, third};
    uint64_t missed[N_CHUNKS];

    cst_core_missed_steps(rig.core, missed);
    for (int i = 0; i < N_CHUNKS; i++) {
        ck_assert_uint_eq(missed[i], want[i]);
    }
}

/* Chunks without a gradient have no update, and their weights stay in the pool. */
START_TEST(skipped)
{
    open_job(1, CST_OVERLAP_COMMIT);
    for (uint32_t c = 0; c < N_CHUNKS; c++) {
        (void)rig_release(&rig, 0, c, rig_get(&rig, 0, c));
    }
    hand_in(0, 5);
    commit(ask(0, 2, 0));
    ck_assert_uint_eq(updated(), 5);
    complete();
    ck_assert(rig_answer(&rig, rig_fetch(&rig, 0, 1))->hit);
    missed_are(0, 1, 0);
    whole_step(2);
    whole_step(0);
    missed_are(2, 2, 2);
    whole_step(7);
    for (uint64_t i = 0; i < N_CHUNKS; i++) {
        const struct cst_table_steps *steps = cst_table_steps(table, i, 4);

        ck_assert_uint_eq(steps->missed, 2);
        ck_assert_uint_eq(steps->last, 4);
    }
}
END_TEST

/* What the steps of tensors were before stays in the table until the step is committed. */
START_TEST(two_steps_are_kept)
{
    uint64_t tag;

    open_job(1, CST_OVERLAP_COMMIT);
    whole_step(1);
    whole_step(3);
    hand_in(0, 4);
    tag = ask(0, 3, 0);
    while (rig_count(&rig, CST_COMMAND_NORM) == 0) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    ck_assert_uint_eq(rig_only(&rig, CST_COMMAND_NORM).mark, 3);
    ck_assert_uint_eq(cst_table_steps(table, 1, 2)->missed, 1);
    ck_assert_uint_eq(cst_table_steps(table, 1, 3)->missed, 2);
    missed_are(0, 1, 2);
    commit(tag);
    missed_are(1, 2, 2);
}
END_TEST

/* A step whose norm is not finite is not one of the optimizer. */
START_TEST(not_finite)
{
    open_job(1, CST_OVERLAP_COMMIT);
    rig.norm = (double)INFINITY;
    hand_in(0, 1);
    commit(ask(0, 6, 0));
    ck_assert_uint_eq(updated(), 0);
    missed_are(0, 0, 0);
    rig_drain(&rig);
    rig.norm = 1;
    whole_step(2);
    missed_are(1, 0, 1);
}
END_TEST

/* A tensor is idle if no rank has a gradient of it. A rank that says nothing has all. */
START_TEST(ranks)
{
    open_job(2, CST_OVERLAP_COMMIT);
    hand_in(0, 1);
    hand_in(1, 2);
    (void)ask(0, 6, 0);
    commit(ask(1, 5, 0));
    ck_assert_uint_eq(updated(), 3);
    complete();
    hand_in(0, 1);
    (void)ask(0, 6, 0);
    commit(rig_step(&rig, 1));
    ck_assert_uint_eq(updated(), 7);
    complete();
    missed_are(0, 0, 1);
}
END_TEST

/* All ranks that have a gradient discard it, or none. */
START_TEST(discarded)
{
    uint64_t first, second;

    open_job(2, CST_OVERLAP_COMMIT);
    hand_in(0, 3);
    hand_in(1, 3);
    (void)ask(0, 4, 2);
    commit(ask(1, 4, 2));
    ck_assert_uint_eq(updated(), 1);
    complete();
    hand_in(0, 3);
    (void)ask(0, 4, 2);
    commit(ask(1, 6, 0)); /* Rank 1 has none. */
    ck_assert_uint_eq(updated(), 1);
    complete();
    hand_in(0, 3);
    hand_in(1, 3);
    first = ask(0, 4, 2);
    second = ask(1, 4, 0);
    ck_assert_int_eq(rig_status(&rig, first), CST_EMISMATCH);
    ck_assert_int_eq(rig_status(&rig, second), CST_EMISMATCH);
    ck_assert_msg(strstr(rig_answer(&rig, second)->err.text,
                         "rank 0 discards its gradient of tensor") != NULL,
                  "%s", rig_answer(&rig, second)->err.text);
}
END_TEST

/* With two weight rows, an update brings the weights of an idle chunk to the other row. */
START_TEST(delayed)
{
    open_job(1, CST_OVERLAP_DELAYED);
    for (int i = 0; i < 3; i++) {
        hand_in(0, 1);
        commit(ask(0, 6, 0));
        ck_assert_uint_eq(updated(), 7);
        complete();
    }
    missed_are(0, 3, 3);
}
END_TEST

static int revive(const struct cst_core_record *record)
{
    int rc;

    rig_close(&rig);
    open_core(1, CST_OVERLAP_COMMIT);
    rc = cst_core_may_revive(rig.core, record, table, &err);
    if (rc == CST_OK) {
        (void)rig_event(
            &rig, (struct cst_event){.kind = CST_EV_REVIVE, .record = record, .table = table});
    }
    return rc;
}

/* A new core repeats the updates of the last step that are not complete, whatever the number of the
 * update before, and no others; the counts go on. */
START_TEST(revived)
{
    struct cst_core_record record;

    open_job(1, CST_OVERLAP_COMMIT);
    whole_step(7);
    whole_step(1);
    whole_step(1);
    hand_in(0, 6);
    commit(ask(0, 1, 0));
    ck_assert_uint_eq(updated(), 6);
    cst_core_record(rig.core, &record);
    cst_table_chunks(table)[2].update_mark = 4;
    ck_assert_int_eq(revive(&record), CST_OK);
    ck_assert_uint_eq(updated(), 2);
    ck_assert_uint_eq(rig_only(&rig, CST_COMMAND_UPDATE).mark, 4);
    missed_are(1, 2, 2);
    complete();
    rig_start(&rig, 1);
    whole_step(1);
    missed_are(1, 3, 3);
    /* The last update of an idle chunk was complete before the step. */
    cst_core_record(rig.core, &record);
    cst_table_chunks(table)[2].update_mark = 3;
    ck_assert_int_eq(revive(&record), CST_ELOST);
    cst_table_chunks(table)[2].update_mark = 4;
    ck_assert_int_eq(revive(&record), CST_OK);
    ck_assert_uint_eq(rig.n_commands, 0);
}
END_TEST

/* The daemon died after the core had written the steps of the next commit, and before the record.
 */
START_TEST(died_in_the_commit)
{
    struct cst_core_record record;

    open_job(1, CST_OVERLAP_COMMIT);
    whole_step(7);
    whole_step(3);
    cst_core_record(rig.core, &record);
    hand_in(0, 4);
    commit(ask(0, 3, 0));
    ck_assert_int_eq(revive(&record), CST_OK);
    ck_assert_uint_eq(rig.n_commands, 0);
    missed_are(0, 0, 1);
}
END_TEST

static void tell_missed(uint64_t first, uint64_t n, const uint64_t *missed, int status)
{
    uint64_t tag = rig_event(
        &rig,
        (struct cst_event){.kind = CST_EV_MISSED, .first = first, .n_elems = n, .missed = missed});

    ck_assert_int_eq(rig_status(&rig, tag), status);
}

/* Steps that were missed before a checkpoint are told in portions. A restore without them, or with
 * more than there are, is as if there were none, or all. */
START_TEST(restored)
{
    const uint64_t missed[N_CHUNKS + 1] = {4, 99, 6, 0};
    struct cst_event restore = {.kind = CST_EV_RESTORE, .counters = {.step = 10, .adam_step = 10}};
    struct cst_core_record record;

    open_job(1, CST_OVERLAP_COMMIT);
    tell_missed(0, N_CHUNKS + 1, missed, CST_EINVAL);
    tell_missed(UINT64_MAX, 2, missed, CST_EINVAL);
    tell_missed(0, 2, missed, CST_OK);
    tell_missed(2, 1, missed + 2, CST_OK);
    ck_assert_int_eq(rig_status(&rig, rig_event(&rig, restore)), CST_OK);
    missed_are(4, 10, 6);
    rig_start(&rig, 1);
    whole_step(1);
    missed_are(4, 11, 7);
    cst_core_record(rig.core, &record);
    cst_table_chunks(table)[1].update_mark = 1234; /* Of before. */
    ck_assert_int_eq(revive(&record), CST_OK);
    ck_assert_uint_eq(rig.n_commands, 0);
    missed_are(4, 11, 7);
    tell_missed(0, 1, missed, CST_OK);
    tell_missed(0, 0, missed, CST_OK);
    ck_assert_int_eq(rig_status(&rig, rig_event(&rig, restore)), CST_OK);
    missed_are(0, 0, 0);
}
END_TEST

static void refused(struct cst_core_policy policy, uint32_t n_stages, const char *words)
{
    struct cst_core *core;
    struct cst_core_config config = {.model = &rig.model,
                                     .layout = &rig.layout,
                                     .world = 1,
                                     .arena_segments = (uint32_t[RIG_MAX]){0},
                                     .pools = rig.pools,
                                     .policy = policy,
                                     .micro_batches = n_stages > 0 ? 2 : 1};

    ck_assert_int_eq(cst_core_open(&core, &config, &err), CST_EINVAL);
    ck_assert_msg(strstr(err.text, words) != NULL, "%s", err.text);
}

/* Early updates begin before it is known which tensors have no gradient. */
START_TEST(not_with_early_updates)
{
    open_job(1, CST_OVERLAP_DELAYED);
    refused((struct cst_core_policy){.overlap = CST_OVERLAP_EARLY}, 0, "with early updates");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("idle");
    TCase *tc = suite_case(s, "core", setup, teardown);

    tcase_add_test(tc, skipped);
    tcase_add_test(tc, two_steps_are_kept);
    tcase_add_test(tc, not_finite);
    tcase_add_test(tc, ranks);
    tcase_add_test(tc, discarded);
    tcase_add_test(tc, delayed);
    tcase_add_test(tc, revived);
    tcase_add_test(tc, died_in_the_commit);
    tcase_add_test(tc, restored);
    tcase_add_test(tc, not_with_early_updates);
    return suite_run(s);
}
