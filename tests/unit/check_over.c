/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of gradients in weight rows in the core: when a chunk's weights are made from its master
 * weights, and when they are copied from their row again. */
#include "tests/lib/suite.h"
#include "tests/unit/core_rig.h"

#include <check.h>
#include <string.h>

static struct rig rig;

static void teardown(void)
{
    rig_close(&rig);
}

static void open_job(uint32_t n_chunks, uint32_t world, uint32_t n_blocks)
{
    rig_open_job(
        &rig, &(struct rig_job){
                  .n_chunks = n_chunks, .world = world, .n_blocks = n_blocks, .grad_over = true});
    rig_start(&rig, world);
}

static void hand_in(uint32_t rank, uint32_t chunk)
{
    uint64_t lease = rig_get_grad(&rig, rank, chunk);

    ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, rank, chunk, lease)), CST_OK);
}

static void forget_weights(uint32_t rank, uint32_t chunk)
{
    (void)rig_event(
        &rig, (struct cst_event){
                  .kind = CST_EV_EVICT, .rank = rank, .attempt = rig.attempt, .chunk = chunk});
}

static uint64_t io(enum cst_event_kind kind, enum cst_row row, uint32_t tensor)
{
    return rig_event(&rig, (struct cst_event){.kind = kind,
                                              .tensor = tensor,
                                              .row = row,
                                              .first = 64,
                                              .n_elems = 10,
                                              .place = {.segment = 7}});
}

static bool is_row(const struct cst_place *place, uint32_t chunk, enum cst_row row, uint64_t bytes)
{
    const struct cst_layout_row *at = &rig.layout.chunks[chunk].rows[row];

    return place->segment == RIG_ARENA_SEGMENT + at->segment && place->offset == at->offset + bytes;
}

/* Check that a fetch by @rank copies the weights from their row or, with @made, makes them from the
 * master weights. Waits for the fetch. */
static void expect_fetch(uint32_t rank, uint32_t chunk, bool made)
{
    enum cst_command_kind kind = made ? CST_COMMAND_ROUND : CST_COMMAND_COPY;
    uint64_t tag = rig_fetch(&rig, rank, chunk);
    const struct cst_command *load = rig_command(&rig, kind, rig_count(&rig, kind) - 1);

    ck_assert_ptr_nonnull(load);
    ck_assert(is_row(&load->src[0], chunk, made ? CST_ROW_MASTER : CST_ROW_WEIGHT, 0));
    ck_assert_uint_eq(load->n_dst, 1);
    ck_assert_uint_eq(load->dst[0].segment, RIG_POOL_SEGMENT + rank);
    ck_assert_uint_eq(made ? load->n_elems : load->bytes / 2, RIG_CHUNK_ELEMS);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    ck_assert_uint_eq(rig_answer(&rig, tag)->home_bytes, 0);
    (void)rig_release(&rig, rank, chunk, rig_answer(&rig, tag)->generation);
    forget_weights(rank, chunk);
}

static uint32_t clean_chunks(void)
{
    struct cst_core_stats stats;

    cst_core_stats(rig.core, &stats);
    return stats.chunks_clean;
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

/* -- fetches ----------------------------------------------------------------------------------- */

/* Weights are copied from their row until the gradient's sum is issued, made from the master
 * weights until the update is issued, and copied again after the update. */
START_TEST(weights_are_made_from_sum_to_update)
{
    const struct cst_command *load, *update;
    uint64_t tag;

    open_job(2, 1, 4);
    expect_fetch(0, 0, false);
    ck_assert(says(0, "takes the place"));
    ck_assert_uint_eq(clean_chunks(), 2);
    hand_in(0, 0);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_REDUCE), 1); /* the sum is not done yet */
    expect_fetch(0, 0, true);
    expect_fetch(0, 0, true);
    expect_fetch(0, 1, false); /* the other chunk is not affected */
    ck_assert(says(0, "computed from its master weights"));
    ck_assert_uint_eq(clean_chunks(), 1);
    hand_in(0, 1);
    rig_drain(&rig);
    tag = rig_step(&rig, 0);
    rig_done(&rig, rig_command(&rig, CST_COMMAND_NORM, 0)->ticket, CST_OK, NULL);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    update = rig_command(&rig, CST_COMMAND_UPDATE, 0);
    ck_assert_ptr_nonnull(update);
    (void)rig_fetch(&rig, 0, update->chunk);
    load = rig_command(&rig, CST_COMMAND_COPY, 0);
    ck_assert_ptr_nonnull(load);
    ck_assert(is_row(&load->src[0], update->chunk, CST_ROW_WEIGHT, 0));
    ck_assert_uint_eq(load->n_after, 1);
    ck_assert_uint_eq(load->after[0], update->ticket);
    rig_drain(&rig);
    ck_assert_uint_eq(clean_chunks(), 2);
}
END_TEST

/* A copy from the row that is under way when the sum is issued is not used: the weights are made
 * instead, and the sum does not wait. */
START_TEST(copy_under_way_is_done_again)
{
    uint64_t lease, tag, copy;

    open_job(1, 1, 4);
    lease = rig_get_grad(&rig, 0, 0);
    tag = rig_fetch(&rig, 0, 0);
    copy = rig_command(&rig, CST_COMMAND_COPY, 0)->ticket;
    (void)rig_hand_in(&rig, 0, 0, lease);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_REDUCE, 0)->n_after, 0);
    rig_done(&rig, copy, CST_OK, NULL);
    ck_assert(rig_waits(&rig, tag));
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_ROUND), 1);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
}
END_TEST

/* A contribution that is spilled also takes the place of the weights: a rank that is behind gets
 * weights made from the master weights. */
START_TEST(staged_contribution_takes_the_row)
{
    const struct cst_command *stage;

    open_job(3, 2, 3);
    for (uint32_t c = 1; c < 3; c++) {
        (void)rig_get(&rig, 0, c);
    }
    hand_in(0, 0);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_REDUCE), 0);
    (void)rig_fetch_grad(&rig, 0, 1);
    stage = rig_command(&rig, CST_COMMAND_COPY, 0);
    ck_assert_ptr_nonnull(stage);
    ck_assert(is_row(&stage->dst[0], 0, CST_ROW_WEIGHT, 0));
    expect_fetch(1, 0, true);
}
END_TEST

/* After an interrupted attempt, and after a skipped step, weights are made from the master weights
 * until the next update. */
START_TEST(void_attempt_and_skipped_step_leave_it)
{
    open_job(1, 1, 4);
    hand_in(0, 0);
    rig_drain(&rig);
    (void)rig_rank_event(&rig, CST_EV_SYNC, 0);
    rig.attempt++;
    expect_fetch(0, 0, true);
    hand_in(0, 0);
    rig.norm = __builtin_inf();
    (void)rig_step(&rig, 0);
    rig_drain(&rig);
    expect_fetch(0, 0, true);
    rig.norm = 1.0;
    hand_in(0, 0);
    (void)rig_step(&rig, 0);
    rig_drain(&rig);
    expect_fetch(0, 0, false);
}
END_TEST

/* -- states ------------------------------------------------------------------------------------ */

/* READ of weights copies them from their row or makes them, from the requested element on. It is
 * repeated if a sum has overtaken it. */
START_TEST(weights_are_read_while_a_gradient_is_there)
{
    const struct cst_command *read;
    uint64_t tag, copy;

    open_job(1, 1, 4);
    tag = io(CST_EV_READ, CST_ROW_WEIGHT, 0);
    copy = rig_command(&rig, CST_COMMAND_COPY, 0)->ticket;
    hand_in(0, 0);
    rig_done(&rig, copy, CST_OK, NULL);
    ck_assert(rig_waits(&rig, tag));
    read = rig_command(&rig, CST_COMMAND_ROUND, 0);
    ck_assert_ptr_nonnull(read);
    ck_assert(is_row(&read->src[0], 0, CST_ROW_MASTER, 64 * 4));
    ck_assert_uint_eq(read->n_elems, 10);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
}
END_TEST

/* READ of the gradient works as long as the gradient exists. */
START_TEST(gradient_is_read_until_its_update)
{
    open_job(1, 1, 4);
    ck_assert_int_eq(rig_status(&rig, io(CST_EV_READ, CST_ROW_GRAD, 0)), CST_EUNSUPPORTED);
    hand_in(0, 0);
    rig_drain(&rig);
    ck_assert(rig_waits(&rig, io(CST_EV_READ, CST_ROW_GRAD, 0)));
    ck_assert(is_row(&rig_command(&rig, CST_COMMAND_COPY, 0)->src[0], 0, CST_ROW_WEIGHT, 64 * 2));
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, rig.tag), CST_OK);
    (void)rig_step(&rig, 0);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, io(CST_EV_READ, CST_ROW_GRAD, 0)), CST_EUNSUPPORTED);
}
END_TEST

/* Weights alone cannot be written. A write of master weights is accepted and destroys the gradient
 * of an interrupted attempt. It does not begin while such a gradient is still being written. */
START_TEST(writes_set_master_weights)
{
    open_job(1, 1, 4);
    ck_assert_int_eq(rig_status(&rig, io(CST_EV_WRITE, CST_ROW_WEIGHT, 0)), CST_EUNSUPPORTED);
    (void)io(CST_EV_WRITE, CST_ROW_MASTER, 0);
    rig_drain(&rig);
    expect_fetch(0, 0, false);
    hand_in(0, 0);
    (void)rig_rank_event(&rig, CST_EV_SYNC, 0);
    rig.attempt++;
    ck_assert_int_eq(rig_status(&rig, io(CST_EV_WRITE, CST_ROW_MASTER, 0)), CST_EBUSY);
    rig_drain(&rig);
    (void)io(CST_EV_WRITE, CST_ROW_MASTER, 0);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_SET_MASTER, 0)->n_dst, 2);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, rig.tag), CST_OK);
    ck_assert_int_eq(rig_status(&rig, io(CST_EV_READ, CST_ROW_GRAD, 0)), CST_EUNSUPPORTED);
    expect_fetch(0, 0, true);
}
END_TEST

/* A sum of no contributions waits for a write of the weights whose place it takes. */
START_TEST(sum_waits_for_a_write)
{
    const struct cst_command *reduce;
    uint64_t write;

    open_job(1, 1, 4);
    (void)io(CST_EV_WRITE, CST_ROW_MASTER, 0);
    write = rig_command(&rig, CST_COMMAND_SET_MASTER, 0)->ticket;
    (void)rig_step(&rig, 0);
    reduce = rig_command(&rig, CST_COMMAND_REDUCE, 0);
    ck_assert_ptr_nonnull(reduce);
    ck_assert_uint_eq(reduce->after[0], write);
    rig_drain(&rig);
}
END_TEST

/* -- refused options --------------------------------------------------------------------------- */

/* Refused if workers copy weights themselves. The engine of a GPU makes the weights in the GPU's
 * pool. */
START_TEST(engines_bring_the_weights)
{
    struct cst_core_config config;
    struct cst_core *core;
    struct cst_err err;
    uint32_t segments[8] = {0};

    open_job(1, 1, 4);
    config = (struct cst_core_config){.model = &rig.model,
                                      .layout = &rig.layout,
                                      .world = 1,
                                      .arena_segments = segments,
                                      .pools = rig.pools};
    rig.pools[0].tier = 1;
    ck_assert_int_eq(cst_core_open(&core, &config, &err), CST_OK);
    cst_core_close(core);
    rig.pools[0].worker_copies = true;
    ck_assert_int_eq(cst_core_open(&core, &config, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "rank 0"));
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("over");
    TCase *tc = suite_case(s, "over", NULL, teardown);

    tcase_add_test(tc, weights_are_made_from_sum_to_update);
    tcase_add_test(tc, copy_under_way_is_done_again);
    tcase_add_test(tc, staged_contribution_takes_the_row);
    tcase_add_test(tc, void_attempt_and_skipped_step_leave_it);
    tcase_add_test(tc, weights_are_read_while_a_gradient_is_there);
    tcase_add_test(tc, gradient_is_read_until_its_update);
    tcase_add_test(tc, writes_set_master_weights);
    tcase_add_test(tc, sum_waits_for_a_write);
    tcase_add_test(tc, engines_bring_the_weights);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
