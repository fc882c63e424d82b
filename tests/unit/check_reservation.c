/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of device updates in the core: which chunks, with which commands and dependencies, and how
 * a reservation is divided. */
#include "tests/lib/suite.h"
#include "tests/unit/reservation_rig.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static struct rig rig;

static void teardown(void)
{
    rig_close(&rig);
}

static void open_reservation(uint32_t n_chunks, uint64_t bytes, uint32_t k)
{
    struct cst_core_device_reservation reservation = {
        .engine = RESERVATION_ENGINE, .segment = RESERVATION_SEGMENT, .bytes = bytes};

    rig_open_job(&rig, &(struct rig_job){.n_chunks = n_chunks,
                                         .world = 1,
                                         .n_blocks = 2 * n_chunks,
                                         .reservations = &reservation,
                                         .n_reservations = 1,
                                         .interleave = k});
    rig_start(&rig, 1);
}

/* -- choice of chunks ------------------------------------------------------------------------- */

/* Of every k chunks in the order of updates, the last one uses the reservation. */
START_TEST(every_kth)
{
    open_reservation(7, 3 * RESERVATION_BUFFER, (uint32_t)_i);
    reservation_commit(&rig, 7);
    for (uint32_t c = 0; c < 7; c++) {
        bool there = _i > 0 && (c + 1) % (uint32_t)_i == 0;

        ck_assert_uint_eq(reservation_update(&rig, c)->node, there ? RESERVATION_ENGINE : 0);
        ck_assert_uint_eq(reservation_update(&rig, c)->n_out, there ? 4 : 0);
        ck_assert_uint_eq(reservation_update(&rig, c)->n_in, there ? 4 : 0);
    }
    rig_drain(&rig);
}
END_TEST

/* With the chunks of two nodes, which alternate, every k-th chunk of each node uses the
 * reservation: both engines have equally many left. */
START_TEST(every_kth_per_node)
{
    struct cst_core_device_reservation reservation = {.engine = RESERVATION_ENGINE,
                                                      .segment = RESERVATION_SEGMENT,
                                                      .bytes = 3 * RESERVATION_BUFFER};
    uint32_t k = (uint32_t)_i;

    rig_open_job(&rig, &(struct rig_job){.n_chunks = 12,
                                         .world = 1,
                                         .n_nodes = 2,
                                         .n_blocks = 24,
                                         .reservations = &reservation,
                                         .n_reservations = 1,
                                         .interleave = k});
    rig_start(&rig, 1);
    for (unsigned step = 0; step < 2; step++) {
        reservation_commit(&rig, 12);
        for (uint32_t c = 0; c < 12; c++) {
            bool there = k > 0 && (c / 2 + 1) % k == 0;

            ck_assert_uint_eq(rig.layout.chunks[c].node, c % 2);
            ck_assert_uint_eq(reservation_update(&rig, c)->node,
                              there ? RESERVATION_ENGINE : c % 2);
        }
        rig_drain(&rig);
    }
}
END_TEST

/* A new k holds from the next commit on. Statistics show k and where chunks were updated. */
START_TEST(k_changes)
{
    struct cst_core_stats stats;

    open_reservation(4, 3 * RESERVATION_BUFFER, 2);
    reservation_commit(&rig, 4);
    cst_core_set_interleave(rig.core, 4);
    cst_core_stats(rig.core, &stats);
    ck_assert_uint_eq(stats.interleave, 2);
    ck_assert_uint_eq(stats.chunks_updating, 4);
    rig_drain(&rig);
    cst_core_stats(rig.core, &stats);
    ck_assert_uint_eq(stats.chunks_updating, 0);
    ck_assert_uint_eq(stats.n_updates, 4);
    ck_assert_uint_eq(stats.n_device_updates, 2);
    ck_assert_uint_eq(stats.last_interleave, 2);
    reservation_commit(&rig, 4);
    cst_core_stats(rig.core, &stats);
    ck_assert_uint_eq(stats.interleave, 4);
    ck_assert_uint_eq(stats.n_rounds, 1); /* the known time is that of the updates before */
    ck_assert_uint_eq(stats.last_interleave, 2);
    ck_assert_uint_eq(reservation_update(&rig, 1)->node, 0);
    ck_assert_uint_eq(reservation_update(&rig, 3)->node, RESERVATION_ENGINE);
    rig_drain(&rig);
    cst_core_stats(rig.core, &stats);
    ck_assert_uint_eq(stats.interleave, 4);
    ck_assert_uint_eq(stats.n_device_updates, 3);
    ck_assert_uint_eq(stats.n_rounds, 2);
    ck_assert_uint_eq(stats.last_interleave, 4);
}
END_TEST

/* A reservation that is too small for a chunk is not used: the node updates the chunk, and Explain
 * gives the reason. */
START_TEST(too_small)
{
    char lines[16][192];
    unsigned n;
    bool said = false;

    open_reservation(2, RESERVATION_BUFFER - 1, 1);
    reservation_commit(&rig, 2);
    ck_assert_uint_eq(reservation_update(&rig, 0)->node, 0);
    rig_drain(&rig);
    n = cst_core_explain(rig.core, 0, lines, 16);
    for (unsigned i = 0; i < n; i++) {
        said = said || strstr(lines[i], "larger than the memory for updates") != NULL;
    }
    ck_assert(said);
}
END_TEST

/* Reservations are used in turn. */
START_TEST(reservations_take_turns)
{
    struct cst_core_device_reservation reservations[] = {
        {.engine = RESERVATION_ENGINE, .segment = RESERVATION_SEGMENT, .bytes = RESERVATION_BUFFER},
        {.engine = RESERVATION_ENGINE + 1,
         .segment = RESERVATION_SEGMENT + 1,
         .bytes = RESERVATION_BUFFER}};

    rig_open_job(&rig, &(struct rig_job){.n_chunks = 4,
                                         .world = 1,
                                         .n_blocks = 8,
                                         .reservations = reservations,
                                         .n_reservations = 2,
                                         .interleave = 1});
    rig_start(&rig, 1);
    reservation_commit(&rig, 4);
    for (uint32_t c = 0; c < 4; c++) {
        ck_assert_uint_eq(reservation_update(&rig, c)->node, RESERVATION_ENGINE + c % 2);
        ck_assert_uint_eq(reservation_update(&rig, c)->in[0].place.segment,
                          RESERVATION_SEGMENT + c % 2);
    }
    rig_drain(&rig);
}
END_TEST

/* -- commands of an update -------------------------------------------------------------------- */

/* The commands are copies in, the update, and copies out. Each row comes from its place in the
 * table and goes back there, the weights first. A command that overwrites waits until the
 * completion of the commands that read the old content was reported. */
START_TEST(chain)
{
    static const enum cst_row down[] = {CST_ROW_WEIGHT, CST_ROW_MASTER, CST_ROW_MOMENT,
                                        CST_ROW_MOMENT + 1};
    const struct cst_command *update;

    open_reservation(1, 3 * RESERVATION_BUFFER, 1);
    reservation_commit(&rig, 1);
    update = reservation_update(&rig, 0);
    ck_assert(update->after_ack); /* its engine forgets which COPY has failed when it dies */
    ck_assert_uint_eq(update->n_after, 4);
    for (unsigned i = 0; i < 4; i++) {
        const struct cst_command *up = reservation_copy(&rig, 0, true, i);
        const struct cst_layout_row *row = &rig.layout.chunks[0].rows[update->in[i].row];

        ck_assert(up != NULL && reservation_waits_for(update, up->ticket));
        ck_assert(up->after_ack);
        ck_assert_uint_eq(up->node, RESERVATION_ENGINE);
        ck_assert_uint_eq(up->src[0].segment, RIG_ARENA_SEGMENT + row->segment);
        ck_assert_uint_eq(up->src[0].offset, row->offset);
        ck_assert_uint_eq(up->dst[0].offset, update->in[i].place.offset);
        ck_assert_uint_eq(up->bytes, (update->in[i].row == CST_ROW_GRAD ? 2 : 4) * RIG_CHUNK_ELEMS);
    }
    for (unsigned i = 0; i < 4; i++) {
        const struct cst_command *c = reservation_copy(&rig, 0, false, i);
        const struct cst_layout_row *row = &rig.layout.chunks[0].rows[down[i]];

        ck_assert(c != NULL && reservation_waits_for(c, update->ticket));
        ck_assert(c->after_ack);
        ck_assert_uint_eq(c->node, RESERVATION_ENGINE);
        ck_assert_uint_eq(c->dst[0].segment, RIG_ARENA_SEGMENT + row->segment);
        ck_assert_uint_eq(c->dst[0].offset, row->offset);
        ck_assert_int_eq(update->out[i].row, down[i]);
        ck_assert_uint_eq(c->src[0].offset, update->out[i].place.offset);
        ck_assert_int_eq(c->priority, i == 0 ? CST_PRIORITY_DEMAND : CST_PRIORITY_EVICTION);
    }
    rig_drain(&rig);
}
END_TEST

/* With n buffers, the n-th next chunk waits for all copies out of the first chunk's buffer. */
START_TEST(buffers_take_turns)
{
    uint32_t n = (uint32_t)_i;

    open_reservation(4, n * RESERVATION_BUFFER, 1);
    reservation_commit(&rig, 4);
    for (uint32_t c = 1; c < 4; c++) {
        for (unsigned up = 0; up < 4; up++) {
            ck_assert_uint_eq(reservation_copy(&rig, c, true, up)->n_after, c < n ? 0 : 4);
            for (unsigned down = 0; down < 4 && c >= n; down++) {
                ck_assert(
                    reservation_waits_for(reservation_copy(&rig, c, true, up),
                                          reservation_copy(&rig, c - n, false, down)->ticket));
            }
        }
    }
    rig_drain(&rig);
}
END_TEST

/* -- dependencies ----------------------------------------------------------------------------- */

/* A fetch waits only for the weights. A read, and the next sum, wait for all copies out. */
START_TEST(waiting)
{
    uint64_t weight, tag, lease;
    const struct cst_command *load = NULL, *read = NULL;

    open_reservation(1, 3 * RESERVATION_BUFFER, 1);
    reservation_commit(&rig, 1);
    weight = reservation_copy(&rig, 0, false, 0)->ticket;
    (void)rig_fetch(&rig, 0, 0);
    tag = rig_event(&rig, (struct cst_event){.kind = CST_EV_READ,
                                             .row = CST_ROW_MASTER,
                                             .n_elems = 10,
                                             .place = {.segment = 7}});
    for (unsigned i = 0; i < rig.n_commands; i++) {
        if (rig.commands[i].kind == CST_COMMAND_COPY && rig.commands[i].n_dst > 0) {
            load = rig.commands[i].dst[0].segment == RIG_POOL_SEGMENT ? &rig.commands[i] : load;
            read = rig.commands[i].dst[0].segment == 7 ? &rig.commands[i] : read;
        }
    }
    ck_assert(load != NULL && read != NULL);
    ck_assert_uint_eq(load->n_after, 1);
    ck_assert_uint_eq(load->after[0], weight);
    ck_assert_uint_eq(read->n_after, 4);
    for (unsigned i = 0; i < 4; i++) {
        ck_assert(reservation_waits_for(read, reservation_copy(&rig, 0, false, i)->ticket));
    }
    while (rig.commands[0].ticket <= weight) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    lease = rig_get_grad(&rig, 0, 0);
    ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, 0, 0, lease)), CST_OK);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_REDUCE, 0)->n_after, 3);
    for (unsigned i = 0; i < 3; i++) {
        ck_assert(reservation_waits_for(rig_command(&rig, CST_COMMAND_REDUCE, 0),
                                        reservation_copy(&rig, 0, false, i)->ticket));
    }
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
}
END_TEST

/* Between the copies of the weights and the last state, the chunk still counts as being updated. */
START_TEST(states_are_behind)
{
    struct cst_core_stats stats;

    open_reservation(1, 3 * RESERVATION_BUFFER, 1);
    reservation_commit(&rig, 1);
    for (unsigned left = 4; left > 0; left--) {
        while (rig_count(&rig, CST_COMMAND_COPY) > left) {
            rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
        }
        cst_core_stats(rig.core, &stats);
        ck_assert_uint_eq(stats.chunks_updating, 1);
        ck_assert_uint_eq(stats.n_updates, 0);
    }
    rig_drain(&rig);
    cst_core_stats(rig.core, &stats);
    ck_assert_uint_eq(stats.chunks_updating, 0);
    ck_assert_uint_eq(stats.n_device_updates, 1);
}
END_TEST

/* If a gradient is complete while states of the previous update are still being copied out, it is
 * summed first, and its early update follows. A copy that failed can then be repeated, and both
 * updates count. */
START_TEST(early_behind_states)
{
    struct cst_core_device_reservation reservation = {.engine = RESERVATION_ENGINE,
                                                      .segment = RESERVATION_SEGMENT,
                                                      .bytes = 3 * RESERVATION_BUFFER};
    uint64_t state, lease;

    rig_open_job(&rig, &(struct rig_job){.n_chunks = 1,
                                         .world = 1,
                                         .n_blocks = 4,
                                         .reservations = &reservation,
                                         .n_reservations = 1,
                                         .interleave = 1,
                                         .overlap = CST_OVERLAP_EARLY});
    rig_start(&rig, 1);
    reservation_commit(&rig, 1);
    cst_core_set_interleave(rig.core, 0);
    state = reservation_copy(&rig, 0, false, 1)->ticket;
    while (rig.commands[0].ticket < state) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    (void)rig_event(
        &rig,
        (struct cst_event){
            .kind = CST_EV_PREPARE,
            .attempt = rig.attempt,
            .hyper = {
                .lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .grad_scale = 1.0f}});
    lease = rig_get_grad(&rig, 0, 0);
    ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, 0, 0, lease)), CST_OK);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_REDUCE), 1);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_UPDATE), 0);
    rig_done(&rig, state, CST_EIO, "a fault");
    while (rig_count(&rig, CST_COMMAND_COPY) > 0) {
        rig_done(&rig, rig_command(&rig, CST_COMMAND_COPY, 0)->ticket, CST_OK, NULL);
    }
    rig_drain(&rig);
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_RUNNING);
    ck_assert_uint_eq(rig_stats(&rig).chunks_ahead, 1);
    ck_assert_uint_eq(rig_stats(&rig).n_updates, 2);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("reservation");
    TCase *which = suite_case(s, "which", NULL, teardown);
    TCase *commands = suite_case(s, "commands", NULL, teardown);
    TCase *waits = suite_case(s, "waits", NULL, teardown);

    tcase_add_loop_test(which, every_kth_per_node, 0, 8);
    tcase_add_loop_test(which, every_kth, 0, 9);
    tcase_add_test(which, k_changes);
    tcase_add_test(which, too_small);
    tcase_add_test(which, reservations_take_turns);
    tcase_add_test(commands, chain);
    tcase_add_loop_test(commands, buffers_take_turns, 1, 4);
    tcase_add_test(waits, waiting);
    tcase_add_test(waits, states_are_behind);
    tcase_add_test(waits, early_behind_states);
    return suite_run(s);
}
