/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of two weight rows: which row is read, which is written and when; early and delayed
 * updates. */
#include "tests/unit/core_rig.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <math.h>
#include <string.h>

static struct rig rig;

static void teardown(void)
{
    rig_close(&rig);
}

static void open_early(uint32_t n_chunks, uint32_t world)
{
    rig_open_job(&rig, &(struct rig_job){.n_chunks = n_chunks,
                                         .world = world,
                                         .n_blocks = 8,
                                         .overlap = CST_OVERLAP_EARLY});
    rig_start(&rig, world);
}

static void open_delayed(uint64_t from)
{
    rig_open_job(&rig, &(struct rig_job){.n_chunks = 1,
                                         .world = 1,
                                         .n_blocks = 8,
                                         .overlap = CST_OVERLAP_DELAYED,
                                         .delay_from = from});
    rig_start(&rig, 1);
}

static struct cst_hyper hyper(float lr)
{
    return (struct cst_hyper){
        .lr = lr, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .grad_scale = 1.0f};
}

static uint64_t prepare(uint32_t rank, struct cst_hyper what)
{
    return rig_event(
        &rig, (struct cst_event){
                  .kind = CST_EV_PREPARE, .rank = rank, .attempt = rig.attempt, .hyper = what});
}

static uint64_t step_with(uint32_t rank, struct cst_hyper what)
{
    return rig_event(&rig,
                     (struct cst_event){
                         .kind = CST_EV_STEP, .rank = rank, .attempt = rig.attempt, .hyper = what});
}

static bool is_row(struct cst_place place, uint32_t chunk, enum cst_row row)
{
    const struct cst_layout_chunk *c = &rig.layout.chunks[chunk];
    const struct cst_layout_row *at =
        row == CST_ROW_WEIGHT_OTHER ? &c->other_weight : &c->rows[row];

    return place.segment == RIG_ARENA_SEGMENT + at->segment && place.offset == at->offset;
}

/* The row to which the @n-th update under way writes its weights. */
static enum cst_row target(unsigned n)
{
    const struct cst_command *update = rig_command(&rig, CST_COMMAND_UPDATE, n);

    if (update->n_out == 0) {
        return CST_ROW_WEIGHT;
    }
    ck_assert_uint_eq(update->n_out, 1);
    ck_assert_int_eq(update->out[0].row, CST_ROW_WEIGHT);
    ck_assert(is_row(update->out[0].place, update->chunk, CST_ROW_WEIGHT_OTHER));
    return CST_ROW_WEIGHT_OTHER;
}

/* The row from which a fetch of @chunk by rank 0, which has no block of it, copies. */
static enum cst_row source(uint32_t chunk)
{
    const struct cst_command *copy;
    uint64_t tag = rig_fetch(&rig, 0, chunk);
    enum cst_row row;

    ck_assert(rig_waits(&rig, tag));
    copy = rig_command(&rig, CST_COMMAND_COPY, 0);
    ck_assert_ptr_nonnull(copy);
    row = is_row(copy->src[0], chunk, CST_ROW_WEIGHT) ? CST_ROW_WEIGHT : CST_ROW_WEIGHT_OTHER;
    ck_assert(is_row(copy->src[0], chunk, row));
    rig_drain(&rig);
    (void)rig_release(&rig, 0, chunk, rig_answer(&rig, tag)->generation);
    return row;
}

static uint64_t read_row(enum cst_row row)
{
    return rig_event(&rig,
                     (struct cst_event){
                         .kind = CST_EV_READ, .row = row, .n_elems = 4, .place = {.segment = 900}});
}

static uint64_t write_row(enum cst_row row)
{
    return rig_event(
        &rig, (struct cst_event){
                  .kind = CST_EV_WRITE, .row = row, .n_elems = 4, .place = {.segment = 900}});
}

static void hand_in(uint32_t rank, uint32_t chunk)
{
    uint64_t grad = rig_get_grad(&rig, rank, chunk);

    ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, rank, chunk, grad)), CST_OK);
}

/* True if Explain of chunk 0 contains @words. */
static bool explains(const char *words)
{
    char lines[32][192];
    unsigned n = cst_core_explain(rig.core, 0, lines, 32);
    bool found = false;

    for (unsigned i = 0; i < n; i++) {
        found = found || strstr(lines[i], words) != NULL;
    }
    return found;
}

/* -- early ------------------------------------------------------------------------------------- */

/* If all ranks have prepared, the update is issued with the last hand-in, also computes the sum,
 * and writes the weight row that is not read. The commit changes the side: later fetches read what
 * the update wrote. */
START_TEST(early_and_fused)
{
    const struct cst_command *update;

    open_early(2, 2);
    ck_assert_int_eq(rig_status(&rig, prepare(0, hyper(0.1f))), CST_OK);
    ck_assert_int_eq(rig_status(&rig, prepare(1, hyper(0.1f))), CST_OK);
    hand_in(0, 1);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_UPDATE), 0);
    hand_in(1, 1);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_REDUCE), 0);
    update = rig_command(&rig, CST_COMMAND_UPDATE, 0);
    ck_assert_ptr_nonnull(update);
    ck_assert_uint_eq(update->chunk, 1);
    ck_assert_uint_eq(update->n_src, 2);
    ck_assert_int_eq(update->priority, CST_PRIORITY_DEMAND); /* the commit waits for the update */
    ck_assert(update->guard);
    ck_assert_uint_eq(update->mark, 1);
    ck_assert_int_eq(target(0), CST_ROW_WEIGHT_OTHER);
    ck_assert_uint_eq(rig_stats(&rig).chunks_ahead, 1);
    rig_drain(&rig);
    ck_assert_int_eq(source(1), CST_ROW_WEIGHT); /* not committed yet */
    for (uint32_t rank = 0; rank < 2; rank++) {
        (void)step_with(rank, hyper(0.1f));
    }
    while (rig_stats(&rig).step == 0) { /* chunk 0 has no gradient: zeros, and its update */
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    ck_assert_uint_eq(rig_stats(&rig).chunks_ahead, 0);
    rig_drain(&rig);
    ck_assert_int_eq(source(0), CST_ROW_WEIGHT_OTHER);
    ck_assert_int_eq(source(1), CST_ROW_WEIGHT_OTHER);
    ck_assert_uint_eq(rig_stats(&rig).n_updates, 2);
}
END_TEST

/* If another update is under way, the sum is a command of its own that is executed first, because
 * the commit waits for it. Then its update is executed before the updates that wait. */
START_TEST(behind_is_not_fused)
{
    open_early(3, 1);
    ck_assert_int_eq(rig_status(&rig, prepare(0, hyper(0.1f))), CST_OK);
    hand_in(0, 2);
    ck_assert_uint_eq(rig_only(&rig, CST_COMMAND_UPDATE).n_src, 1);
    hand_in(0, 1);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_UPDATE), 1);
    rig_done(&rig, rig_only(&rig, CST_COMMAND_REDUCE).ticket, CST_OK, NULL);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_UPDATE), 2);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_UPDATE, 1)->n_src, 0);
    ck_assert_int_eq(rig_command(&rig, CST_COMMAND_UPDATE, 1)->priority, CST_PRIORITY_PREFETCH);
    ck_assert(rig_command(&rig, CST_COMMAND_UPDATE, 1)->newest_first);
    rig_drain(&rig);
    hand_in(0, 0);
    ck_assert_uint_eq(rig_only(&rig, CST_COMMAND_UPDATE).n_src, 1);
}
END_TEST

/* With three contributions the sum is a command of its own, and its update follows before the
 * commit. */
START_TEST(early_behind_a_sum)
{
    open_early(1, 3);
    for (uint32_t rank = 0; rank < 3; rank++) {
        (void)prepare(rank, hyper(0.1f));
    }
    for (uint32_t rank = 0; rank < 3; rank++) {
        hand_in(rank, 0);
    }
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_UPDATE), 0);
    rig_done(&rig, rig_command(&rig, CST_COMMAND_REDUCE, 0)->ticket, CST_OK, NULL);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_UPDATE, 0)->n_src, 0);
    ck_assert_int_eq(rig_command(&rig, CST_COMMAND_UPDATE, 0)->priority, CST_PRIORITY_PREFETCH);
    ck_assert(rig_command(&rig, CST_COMMAND_UPDATE, 0)->guard);
}
END_TEST

/* If a rank has not prepared, or clips, the update waits for the commit, and a step that is not
 * finite is skipped. _i: which. */
START_TEST(not_early)
{
    struct cst_hyper what = hyper(0.1f);
    uint64_t tag = 0;

    open_early(1, 2);
    what.clip_norm = _i == 0 ? 0.0f : 1.0f;
    for (uint32_t rank = 0; rank < 2; rank++) {
        if (_i == 1 || rank == 0) {
            (void)prepare(rank, what);
        }
        hand_in(rank, 0);
    }
    rig_drain(&rig);
    ck_assert_uint_eq(rig_stats(&rig).chunks_ahead, 0);
    rig.norm = INFINITY;
    for (uint32_t rank = 0; rank < 2; rank++) {
        tag = step_with(rank, what);
    }
    rig_drain(&rig);
    ck_assert(rig_answer(&rig, tag)->skipped);
    ck_assert(rig_answer(&rig, tag)->overflow);
    ck_assert_uint_eq(rig_stats(&rig).n_overflows, 1);
    ck_assert_int_eq(source(0), CST_ROW_WEIGHT);
}
END_TEST

/* In a step that was prepared, values that are not finite only spare their tiles, whether or not an
 * update was early. */
START_TEST(guarded)
{
    uint64_t tag;

    open_early(2, 1);
    (void)prepare(0, hyper(0.1f));
    hand_in(0, 0);
    rig_drain(&rig);
    rig.norm = NAN;
    tag = step_with(0, hyper(0.1f));
    while (rig_stats(&rig).step == 0) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    ck_assert(!rig_answer(&rig, tag)->skipped);
    ck_assert(rig_answer(&rig, tag)->overflow);
    ck_assert_uint_eq(rig_stats(&rig).n_overflows, 1);
    ck_assert(isnan(rig_answer(&rig, tag)->grad_norm));
    ck_assert_uint_eq(rig_stats(&rig).n_skipped, 0);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_stats(&rig).n_updates, 2);
    ck_assert_int_eq(source(0), CST_ROW_WEIGHT_OTHER);
    ck_assert_int_eq(source(1), CST_ROW_WEIGHT_OTHER);
}
END_TEST

/* The attempt ends after an early update. The next attempt reads the old weights; its gradient is
 * dropped and counted, nothing is summed or updated again, and the commit changes the side. _i: the
 * death comes before or after the update's end. */
START_TEST(interrupted)
{
    uint64_t ticket;

    open_early(1, 2);
    for (uint32_t rank = 0; rank < 2; rank++) {
        (void)prepare(rank, hyper(0.1f));
        hand_in(rank, 0);
    }
    ticket = rig_command(&rig, CST_COMMAND_UPDATE, 0)->ticket;
    if (_i == 1) {
        rig_done(&rig, ticket, CST_OK, NULL);
    }
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_DEAD, .rank = 1});
    ck_assert_int_eq(rig_status(&rig, write_row(CST_ROW_MASTER)), CST_EBUSY);
    ck_assert_int_eq(rig_status(&rig, read_row(CST_ROW_MOMENT)), CST_EBUSY);
    ck_assert(explains("updated before the commit of step 0"));
    ck_assert(explains("a gradient that is handed in again is ignored"));
    rig_start(&rig, 2);
    if (_i == 0) {
        rig_done(&rig, ticket, CST_OK, NULL);
    }
    ck_assert_int_eq(source(0), CST_ROW_WEIGHT);
    for (uint32_t rank = 0; rank < 2; rank++) {
        ck_assert_int_eq(rig_status(&rig, prepare(rank, hyper(0.1f))), CST_OK);
        hand_in(rank, 0);
        /* Handed in only once. */
        ck_assert_int_eq(rig_status(&rig, rig_fetch_grad(&rig, rank, 0)), CST_EINVAL);
    }
    ck_assert_uint_eq(rig_stats(&rig).n_dropped, 2);
    ck_assert_uint_eq(rig.n_commands, 0);
    (void)step_with(0, hyper(0.1f));
    (void)step_with(1, hyper(0.1f));
    rig_drain(&rig);
    ck_assert_uint_eq(rig_stats(&rig).step, 1);
    ck_assert_uint_eq(rig_stats(&rig).n_updates, 1);
    ck_assert_int_eq(source(0), CST_ROW_WEIGHT_OTHER);
}
END_TEST

/* Ranks that leave in a step whose early updates have begun leave it interrupted, because it can
 * only be completed. */
START_TEST(left_ahead)
{
    open_early(1, 2);
    for (uint32_t rank = 0; rank < 2; rank++) {
        (void)prepare(rank, hyper(0.1f));
        hand_in(rank, 0);
    }
    rig_drain(&rig);
    for (uint32_t rank = 0; rank < 2; rank++) {
        (void)rig_rank_event(&rig, CST_EV_LEAVE, rank);
    }
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_INTERRUPTED);
}
END_TEST

/* The norm reads the tiles' sums, which an update with its sum writes: the norm also waits for such
 * an update of an interrupted attempt. */
START_TEST(norm_behind_a_fused_update)
{
    open_early(1, 1);
    (void)prepare(0, hyper(0.1f));
    hand_in(0, 0);
    (void)rig_rank_event(&rig, CST_EV_SYNC, 0);
    rig.attempt++;
    (void)step_with(0, hyper(0.1f));
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_NORM), 0);
    rig_done(&rig, rig_command(&rig, CST_COMMAND_UPDATE, 0)->ticket, CST_OK, NULL);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_NORM), 1);
}
END_TEST

/* A step that is repeated with other hyper-parameters than its updates had is refused, prepared or
 * not. With equal ones it goes on. _i: prepared. */
START_TEST(done_again_with_others)
{
    uint64_t tag;

    open_early(1, 1);
    (void)prepare(0, hyper(0.1f));
    hand_in(0, 0);
    (void)rig_rank_event(&rig, CST_EV_SYNC, 0);
    rig.attempt++;
    tag = _i == 1 ? prepare(0, hyper(0.2f)) : step_with(0, hyper(0.2f));
    ck_assert_int_eq(rig_status(&rig, tag), CST_EMISMATCH);
    ck_assert_ptr_nonnull(strstr(rig_answer(&rig, tag)->err.text, "lr is 0.1"));
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_INTERRUPTED);
    (void)rig_rank_event(&rig, CST_EV_SYNC, 0);
    rig.attempt++;
    tag = step_with(0, hyper(0.1f));
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
}
END_TEST

/* Different PREPAREs end the attempt, as different STEPs do, and so does a STEP that differs from
 * its PREPARE. A second equal PREPARE has no effect, and a different one is refused. */
START_TEST(promises)
{
    uint64_t tag;

    open_early(1, 2);
    ck_assert_int_eq(rig_status(&rig, prepare(0, hyper(0.1f))), CST_OK);
    ck_assert_int_eq(rig_status(&rig, prepare(0, hyper(0.1f))), CST_OK);
    ck_assert_int_eq(rig_status(&rig, prepare(0, hyper(0.2f))), CST_EINVAL);
    ck_assert_int_eq(rig_status(&rig, prepare(1, hyper(INFINITY))), CST_EINVAL);
    tag = prepare(1, hyper(0.2f));
    ck_assert_int_eq(rig_status(&rig, tag), CST_EMISMATCH);
    ck_assert_ptr_nonnull(strstr(rig_answer(&rig, tag)->err.text, "in rank 1"));
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_INTERRUPTED);
    rig_start(&rig, 2);
    (void)prepare(0, hyper(0.1f));
    tag = step_with(0, hyper(0.2f));
    ck_assert_int_eq(rig_status(&rig, tag), CST_EMISMATCH);
    ck_assert_ptr_nonnull(strstr(rig_answer(&rig, tag)->err.text, "prepared"));
    rig_start(&rig, 2);
    (void)step_with(0, hyper(0.1f));
    ck_assert_int_eq(rig_status(&rig, prepare(0, hyper(0.1f))), CST_EINVAL);
}
END_TEST

/* While a chunk has an uncommitted early update, its committed weights can be read, but neither its
 * other states nor its gradient, which went into the update. */
START_TEST(reads_while_ahead)
{
    uint64_t tag;

    open_early(1, 1);
    (void)prepare(0, hyper(0.1f));
    tag = read_row(CST_ROW_MASTER); /* the copy is under way when the update begins */
    hand_in(0, 0);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_EBUSY);
    ck_assert_int_eq(rig_status(&rig, read_row(CST_ROW_MOMENT + 1)), CST_EBUSY);
    ck_assert_int_eq(rig_status(&rig, read_row(CST_ROW_GRAD)), CST_EUNSUPPORTED);
    tag = read_row(CST_ROW_WEIGHT);
    ck_assert(is_row(rig_command(&rig, CST_COMMAND_COPY, 0)->src[0], 0, CST_ROW_WEIGHT));
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    (void)step_with(0, hyper(0.1f));
    rig_drain(&rig);
    tag = read_row(CST_ROW_MASTER);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
}
END_TEST

/* A fetch after the commit waits only for the early update of its own chunk, if that is not
 * done. */
START_TEST(fetch_waits_for_its_update)
{
    uint64_t tag;

    open_early(1, 3);
    for (uint32_t rank = 0; rank < 3; rank++) {
        (void)prepare(rank, hyper(0.1f));
    }
    for (uint32_t rank = 0; rank < 3; rank++) {
        hand_in(rank, 0);
    }
    rig_done(&rig, rig_command(&rig, CST_COMMAND_REDUCE, 0)->ticket, CST_OK, NULL);
    for (uint32_t rank = 0; rank < 3; rank++) {
        (void)step_with(rank, hyper(0.1f));
    }
    rig_done(&rig, rig_command(&rig, CST_COMMAND_NORM, 0)->ticket, CST_OK, NULL);
    ck_assert_uint_eq(rig_stats(&rig).step, 1);
    tag = rig_fetch(&rig, 0, 0);
    ck_assert(rig_waits(&rig, tag));
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_COPY, 0)->n_after, 1);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_COPY, 0)->after[0],
                      rig_command(&rig, CST_COMMAND_UPDATE, 0)->ticket);
    ck_assert(is_row(rig_command(&rig, CST_COMMAND_COPY, 0)->src[0], 0, CST_ROW_WEIGHT_OTHER));
}
END_TEST

/* -- delayed ----------------------------------------------------------------------------------- */

static void delayed_step(void)
{
    hand_in(0, 0);
    (void)rig_step(&rig, 0);
    while (rig_count(&rig, CST_COMMAND_UPDATE) == 0 && rig.n_commands > 0) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
}

/* Step i + 1 reads the weights that step i read; the result of update i is read from commit i + 1
 * on. Before delay_from the next step waits for its update. */
START_TEST(one_step_behind)
{
    open_delayed(1);
    delayed_step();
    ck_assert_int_eq(target(0), CST_ROW_WEIGHT_OTHER);
    rig_drain(&rig);
    ck_assert_int_eq(source(0), CST_ROW_WEIGHT_OTHER); /* result of update 0 */
    delayed_step();
    ck_assert_int_eq(target(0), CST_ROW_WEIGHT);
    /* Still the result of update 0, while update 1 is under way. */
    ck_assert(rig_answer(&rig, rig_fetch(&rig, 0, 0))->hit);
    ck_assert(explains("writes the weight row that fetches do not read yet"));
    ck_assert(explains("fetches read the second weight row"));
    rig_drain(&rig);
    delayed_step();
    ck_assert_int_eq(target(0), CST_ROW_WEIGHT_OTHER);
    rig_drain(&rig);
    ck_assert_int_eq(source(0), CST_ROW_WEIGHT); /* result of update 1 */
}
END_TEST

/* A skipped step writes nothing, but the previous update becomes visible. */
START_TEST(behind_a_skipped_step)
{
    open_delayed(0);
    delayed_step();
    rig_drain(&rig);
    ck_assert_int_eq(source(0), CST_ROW_WEIGHT);
    rig.norm = NAN;
    delayed_step();
    ck_assert_uint_eq(rig_stats(&rig).n_skipped, 1);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_UPDATE), 0);
    ck_assert_int_eq(source(0), CST_ROW_WEIGHT_OTHER);
    rig.norm = 1.0;
    delayed_step();
    ck_assert_int_eq(target(0), CST_ROW_WEIGHT);
}
END_TEST

/* Reads see all committed updates. A write of weights ends the delay for all chunks: it goes to the
 * row of the last update, which fetches then read. */
START_TEST(reads_and_writes_of_delayed)
{
    open_delayed(0);
    delayed_step();
    rig_drain(&rig);
    (void)read_row(CST_ROW_WEIGHT);
    ck_assert(is_row(rig_command(&rig, CST_COMMAND_COPY, 0)->src[0], 0, CST_ROW_WEIGHT_OTHER));
    rig_drain(&rig);
    ck_assert_int_eq(source(0), CST_ROW_WEIGHT);
    delayed_step();
    rig_drain(&rig);
    (void)write_row(CST_ROW_MASTER);
    ck_assert(is_row(rig_command(&rig, CST_COMMAND_SET_MASTER, 0)->dst[1], 0, CST_ROW_WEIGHT));
    rig_drain(&rig);
    ck_assert_int_eq(source(0), CST_ROW_WEIGHT);
}
END_TEST

/* Without a second weight row updates are neither early nor delayed. */
START_TEST(needs_two_rows)
{
    const struct cst_core_config config = {.model = &rig.model,
                                           .layout = &rig.layout,
                                           .world = 1,
                                           .pools = rig.pools,
                                           .policy.overlap = CST_OVERLAP_EARLY};
    struct cst_core *core;
    struct cst_err err;

    rig_open(&rig, 1, 1, 4, 0);
    ck_assert_int_eq(cst_core_open(&core, &config, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "second weight row"));
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("overlap");
    TCase *early = suite_case(s, "early", NULL, teardown);
    TCase *delayed = suite_case(s, "delayed", NULL, teardown);

    tcase_add_test(early, early_and_fused);
    tcase_add_test(early, behind_is_not_fused);
    tcase_add_test(early, early_behind_a_sum);
    tcase_add_loop_test(early, not_early, 0, 2);
    tcase_add_test(early, guarded);
    tcase_add_loop_test(early, interrupted, 0, 2);
    tcase_add_test(early, left_ahead);
    tcase_add_test(early, norm_behind_a_fused_update);
    tcase_add_loop_test(early, done_again_with_others, 0, 2);
    tcase_add_test(early, promises);
    tcase_add_test(early, reads_while_ahead);
    tcase_add_test(early, fetch_waits_for_its_update);
    tcase_add_test(delayed, one_step_behind);
    tcase_add_test(delayed, behind_a_skipped_step);
    tcase_add_test(delayed, reads_and_writes_of_delayed);
    tcase_add_test(delayed, needs_two_rows);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
