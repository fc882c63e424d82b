/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of data that stays in device memory between updates: gradients that a reservation keeps for
 * the next update, and states in device memory. */
#include "tests/lib/suite.h"
#include "tests/unit/reservation_rig.h"

#include <check.h>
#include <string.h>

static struct rig rig;

static void teardown(void)
{
    rig_close(&rig);
}

/* -- gradients kept in a reservation ----------------------------------------------------------- */

/* Open one rank whose pool is on the accelerator. The reservation keeps @n_held gradients in
 * addition to its buffers. */
static void open_device(uint32_t n_chunks, uint32_t world, uint32_t n_held, uint32_t k)
{
    static const uint32_t engines[] = {RESERVATION_ENGINE, RESERVATION_ENGINE};
    struct cst_core_device_reservation reservation = {.engine = RESERVATION_ENGINE,
                                                      .segment = RESERVATION_SEGMENT,
                                                      .bytes = 3 * RESERVATION_BUFFER +
                                                               n_held * 2ull * RIG_CHUNK_ELEMS};

    rig_open_job(&rig, &(struct rig_job){.n_chunks = n_chunks,
                                         .world = world,
                                         .n_blocks = 2 * n_chunks,
                                         .reservations = &reservation,
                                         .n_reservations = 1,
                                         .interleave = k,
                                         .engines = engines});
    rig_start(&rig, world);
}

/* The copy of the chunk's gradient from the pool to the reservation, or NULL. */
static const struct cst_command *keep_of(uint32_t chunk)
{
    const struct cst_command *copy = reservation_copy(&rig, chunk, true, 0);

    return copy != NULL && copy->src[0].segment == RIG_POOL_SEGMENT ? copy : NULL;
}

static void hand_in_all(uint32_t n_chunks, uint32_t rank)
{
    for (uint32_t c = 0; c < n_chunks; c++) {
        uint64_t lease = rig_get_grad(&rig, rank, c);

        ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, rank, c, lease)), CST_OK);
    }
}

/* A chunk that used the reservation keeps its gradient there as long as there is space. Its sum
 * waits for that copy, and its next update reads the gradient there instead of copying the grad
 * row. */
START_TEST(gradient_stays_up)
{
    const struct cst_command *keep, *update;

    open_device(4, 1, 1, 2);
    reservation_commit(&rig, 4);
    ck_assert(reservation_copy(&rig, 1, true, 0) != NULL &&
              keep_of(1) == NULL); /* nothing was expected yet */
    rig_drain(&rig);
    for (uint32_t c = 0; c < 4; c++) {
        uint64_t lease = rig_get_grad(&rig, 0, c);

        ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, 0, c, lease)), CST_OK);
        keep = keep_of(c);
        ck_assert_msg((keep != NULL) == (c == 1), "chunk %u", c); /* chunk 3: no space is left */
        if (keep != NULL) {
            ck_assert_uint_eq(keep->dst[0].offset, 3 * RESERVATION_BUFFER);
            ck_assert_uint_eq(keep->node, RESERVATION_ENGINE);
            ck_assert(
                reservation_waits_for(rig_command(&rig, CST_COMMAND_REDUCE, 0), keep->ticket));
        }
        rig_drain(&rig);
    }
    reservation_commit(&rig, 4);
    update = reservation_update(&rig, 1);
    ck_assert_int_eq(update->in[0].row, CST_ROW_GRAD);
    ck_assert_uint_eq(update->in[0].place.offset, 3 * RESERVATION_BUFFER);
    ck_assert(reservation_copy(&rig, 1, true, 2) != NULL &&
              reservation_copy(&rig, 1, true, 3) == NULL);
    ck_assert_uint_lt(reservation_update(&rig, 3)->in[0].place.offset, 3 * RESERVATION_BUFFER);
    ck_assert(reservation_copy(&rig, 3, true, 3) != NULL);
    rig_drain(&rig);
}
END_TEST

/* The sum of two ranks differs from each contribution, so no gradient is kept. */
START_TEST(sums_come_down)
{
    open_device(1, 2, 1, 1);
    rig_whole_step(&rig, 1, 2);
    rig_drain(&rig);
    hand_in_all(1, 0);
    hand_in_all(1, 1);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_REDUCE), 1);
    ck_assert(reservation_copy(&rig, 0, true, 0) == NULL);
}
END_TEST

/* When k has changed, or the attempt is over, kept gradients are given up, and their space is free
 * again. */
START_TEST(kept_in_vain)
{
    for (int i = 0; i < 3; i++) {
        open_device(1, 1, 1, 1);
        reservation_commit(&rig, 1);
        rig_drain(&rig);
        hand_in_all(1, 0);
        ck_assert(keep_of(0) != NULL);
        if (i == 0) {
            cst_core_set_interleave(rig.core, 0);
            reservation_commit(&rig, 1);
            ck_assert_uint_eq(reservation_update(&rig, 0)->n_out, 0);
        } else {
            if (i == 1) {
                rig_drain(&rig);
            }
            (void)rig_rank_event(&rig, CST_EV_DEAD, 0);
            (void)rig_rank_event(&rig, CST_EV_ATTACH, 0);
        }
        rig_drain(&rig);
        if (i < 2) {
            rig_close(&rig);
        }
    }
}
END_TEST

/* -- states in device memory ------------------------------------------------------------------ */

static void open_states(uint64_t bytes, uint32_t k)
{
    struct cst_core_device_reservation reservation = {.engine = RESERVATION_ENGINE,
                                                      .segment = RESERVATION_SEGMENT,
                                                      .bytes = 3 * RESERVATION_BUFFER};
    struct cst_layout_device device = {.engine = RESERVATION_ENGINE,
                                       .bytes = bytes,
                                       .grain = 8192,
                                       .reservation_bytes = reservation.bytes};

    rig_open_job(&rig, &(struct rig_job){.n_chunks = 3,
                                         .world = 1,
                                         .n_blocks = 6,
                                         .reservations = &reservation,
                                         .n_reservations = 1,
                                         .interleave = k,
                                         .device = &device});
    rig_start(&rig, 1);
}

/* As many of the last chunks as fit have their states in device memory: segments of the accelerator
 * with a multiple of the grain, which are not arenas. Weights and gradients stay in host memory. */
START_TEST(last_chunks_stay)
{
    uint64_t states = 12ull * RIG_CHUNK_ELEMS;
    uint64_t bytes = 0;

    open_states((uint64_t)_i * states + 8191, 0);
    for (uint32_t c = 0; c < 3; c++) {
        const struct cst_layout_chunk *chunk = &rig.layout.chunks[c];
        bool there = c >= 3u - (uint32_t)_i;

        ck_assert_uint_eq(chunk->tier, there ? RESERVATION_ENGINE : 0);
        for (int r = 0; r < CST_ROW_COUNT; r++) {
            uint32_t tier = rig.layout.segments[chunk->rows[r].segment].tier;

            ck_assert_uint_eq(
                tier, there && r != CST_ROW_WEIGHT && r != CST_ROW_GRAD ? RESERVATION_ENGINE : 0);
        }
    }
    for (uint32_t i = 0; i < rig.layout.n_segments; i++) {
        bytes +=
            rig.layout.segments[i].tier == RESERVATION_ENGINE ? rig.layout.segments[i].bytes : 0;
    }
    ck_assert_uint_eq(bytes, rig.layout.device_bytes);
    ck_assert_uint_eq(bytes % 8192, 0);
    ck_assert_uint_ge(bytes, (uint64_t)_i * states);
    ck_assert_uint_le(bytes, (uint64_t)_i * states + 8191);
    ck_assert_uint_eq(rig.layout.arena_bytes, 3ull * 16 * RIG_CHUNK_ELEMS - (uint64_t)_i * states);
}
END_TEST

/* The accelerator updates these chunks whatever k is. Only the gradient is copied in and the
 * weights are copied out. The states are copied back to their rows within the device. */
START_TEST(updated_where_they_are)
{
    const struct cst_command *update;

    open_states(12ull * RIG_CHUNK_ELEMS + 8191, (uint32_t)_i);
    reservation_commit(&rig, 3);
    update = reservation_update(&rig, 2);
    ck_assert_uint_eq(update->node, RESERVATION_ENGINE);
    ck_assert_uint_eq(update->n_in, 1);
    ck_assert_int_eq(update->in[0].row, CST_ROW_GRAD);
    ck_assert_uint_eq(update->n_out, 4);
    ck_assert(reservation_copy(&rig, 2, true, 0) != NULL &&
              reservation_copy(&rig, 2, true, 1) == NULL);
    for (unsigned i = 0; i < 4; i++) {
        const struct cst_command *down = reservation_copy(&rig, 2, false, i);
        uint32_t segment = down->dst[0].segment - RIG_ARENA_SEGMENT;

        ck_assert(reservation_waits_for(down, update->ticket) && down->after_ack);
        ck_assert_uint_eq(rig.layout.segments[segment].tier, i == 0 ? 0 : RESERVATION_ENGINE);
    }
    for (uint32_t c = 0; c < 2; c++) { /* other chunks are counted without it */
        ck_assert_uint_eq(reservation_update(&rig, c)->node,
                          _i > 0 && (c + 1) % (uint32_t)_i == 0 ? RESERVATION_ENGINE : 0);
    }
    rig_drain(&rig);
}
END_TEST

static uint64_t io(enum cst_event_kind kind, uint32_t tensor, enum cst_row row)
{
    return rig_event(
        &rig,
        (struct cst_event){
            .kind = kind, .tensor = tensor, .row = row, .n_elems = 10, .place = {.segment = 7}});
}

/* The accelerator's engine reads and writes these states. A write of master weights writes them
 * there, and moments stay; then the node's engine writes the weights, which completes the write. */
START_TEST(read_and_written_there)
{
    uint64_t tag;
    const struct cst_command *last;

    open_states(12ull * RIG_CHUNK_ELEMS + 8191, 0);
    tag = io(CST_EV_READ, 2, CST_ROW_MOMENT);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_COPY, 0)->node, RESERVATION_ENGINE);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    tag = io(CST_EV_READ, 2, CST_ROW_WEIGHT);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_COPY, 0)->node, 0);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    tag = io(CST_EV_WRITE, 2, CST_ROW_MASTER);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_COPY), 1);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_FILL), 0);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_COPY, 0)->node, RESERVATION_ENGINE);
    last = rig_command(&rig, CST_COMMAND_ROUND, 0);
    ck_assert(last != NULL && last->node == 0 && last->n_dst == 1);
    ck_assert_uint_eq(last->n_after, 1);
    while (rig.n_commands > 1) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
        ck_assert(rig_waits(&rig, tag));
    }
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
}
END_TEST

/* States in device memory without a reservation on that accelerator are refused, because they could
 * not be updated. */
START_TEST(no_reservation_for_states)
{
    struct cst_core_config config = {.world = 1, .model = &rig.model, .layout = &rig.layout};
    struct cst_core *core;
    struct cst_err err;

    open_states(12ull * RIG_CHUNK_ELEMS + 8191, 0);
    config.pools = rig.pools;
    ck_assert_int_eq(cst_core_open(&core, &config, &err), CST_EINVAL);
    ck_assert_msg(strstr(err.text, "no memory to update it") != NULL, "%s", err.text);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("reservation_stays");
    TCase *held = suite_case(s, "held", NULL, teardown);
    TCase *device = suite_case(s, "device", NULL, teardown);

    tcase_add_test(held, gradient_stays_up);
    tcase_add_test(held, sums_come_down);
    tcase_add_test(held, kept_in_vain);
    tcase_add_loop_test(device, last_chunks_stay, 0, 4);
    tcase_add_loop_test(device, updated_where_they_are, 0, 3);
    tcase_add_test(device, read_and_written_there);
    tcase_add_test(device, no_reservation_for_states);
    return suite_run(s);
}
