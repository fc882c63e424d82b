/* Updates that go through a room: which, in which commands, and what waits for which of them. And
 * how a room is divided. */
#include "tests/lib/suite.h"
#include "tests/unit/core_rig.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define ENGINE 3
#define ROOM 400

static struct rig rig;

static void teardown(void)
{
    rig_close(&rig);
}

/* Bytes of a buffer for a chunk of the rig: 14 an element up, 14 down. */
#define BUFFER (28ull * RIG_CHUNK_ELEMS)

static void open_room(uint32_t n_chunks, uint64_t bytes, uint32_t k)
{
    struct cst_core_room room = {.engine = ENGINE, .segment = ROOM, .bytes = bytes};

    rig_open_job(&rig, &(struct rig_job){.n_chunks = n_chunks,
                                         .world = 1,
                                         .n_blocks = 2 * n_chunks,
                                         .rooms = &room,
                                         .n_rooms = 1,
                                         .interleave = k});
    rig_start(&rig, 1);
}

/* A step up to its commit; the updates are issued, none is done. */
static void commit(uint32_t n_chunks)
{
    for (uint32_t c = 0; c < n_chunks; c++) {
        uint64_t lease = rig_get(&rig, 0, c);

        ck_assert_int_eq(rig_status(&rig, rig_release(&rig, 0, c, lease)), CST_OK);
    }
    (void)rig_step(&rig, 0);
    while (rig_command(&rig, CST_COMMAND_UPDATE, 0) == NULL) {
        ck_assert_uint_gt(rig.n_commands, 0);
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
}

static const struct cst_command *update_of(uint32_t chunk)
{
    for (unsigned i = 0; rig_command(&rig, CST_COMMAND_UPDATE, i) != NULL; i++) {
        if (rig_command(&rig, CST_COMMAND_UPDATE, i)->chunk == chunk) {
            return rig_command(&rig, CST_COMMAND_UPDATE, i);
        }
    }
    ck_abort_msg("no update of chunk %u", chunk);
    return NULL;
}

/* The @n-th copy of @chunk in that direction. */
static const struct cst_command *copy_of(uint32_t chunk, bool up, unsigned n)
{
    for (unsigned i = 0; rig_command(&rig, CST_COMMAND_COPY, i) != NULL; i++) {
        const struct cst_command *c = rig_command(&rig, CST_COMMAND_COPY, i);

        if (c->chunk == chunk && (up ? c->dst : c->src)[0].segment == ROOM && n-- == 0) {
            return c;
        }
    }
    return NULL;
}

static bool waits_for(const struct cst_command *command, uint64_t ticket)
{
    for (uint32_t i = 0; i < command->n_after; i++) {
        if (command->after[i] == ticket) {
            return true;
        }
    }
    return false;
}

/* -- which ------------------------------------------------------------------------------------ */

/* Of each k chunks in the order of the updates the last one goes through the room. */
START_TEST(every_kth)
{
    open_room(7, 3 * BUFFER, (uint32_t)_i);
    commit(7);
    for (uint32_t c = 0; c < 7; c++) {
        bool there = _i > 0 && (c + 1) % (uint32_t)_i == 0;

        ck_assert_uint_eq(update_of(c)->node, there ? ENGINE : 0);
        ck_assert_uint_eq(update_of(c)->n_out, there ? 4 : 0);
        ck_assert_uint_eq(update_of(c)->n_in, there ? 4 : 0);
    }
    rig_drain(&rig);
}
END_TEST

/* k is set for the commits to come; what it is shows in the numbers, as does what was updated
 * where.
 */
START_TEST(k_changes)
{
    struct cst_core_stats stats;

    open_room(4, 3 * BUFFER, 2);
    commit(4);
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
    commit(4);
    cst_core_stats(rig.core, &stats);
    ck_assert_uint_eq(stats.interleave, 4);
    ck_assert_uint_eq(stats.n_rounds, 1); /* the time that is known is of the updates before */
    ck_assert_uint_eq(stats.last_interleave, 2);
    ck_assert_uint_eq(update_of(1)->node, 0);
    ck_assert_uint_eq(update_of(3)->node, ENGINE);
    rig_drain(&rig);
    cst_core_stats(rig.core, &stats);
    ck_assert_uint_eq(stats.interleave, 4);
    ck_assert_uint_eq(stats.n_device_updates, 3);
    ck_assert_uint_eq(stats.n_rounds, 2);
    ck_assert_uint_eq(stats.last_interleave, 4);
}
END_TEST

/* A room that is too small for a chunk is no room: the node updates it, and says why. */
START_TEST(too_small)
{
    char lines[16][192];
    unsigned n;
    bool said = false;

    open_room(2, BUFFER - 1, 1);
    commit(2);
    ck_assert_uint_eq(update_of(0)->node, 0);
    rig_drain(&rig);
    n = cst_core_explain(rig.core, 0, lines, 16);
    for (unsigned i = 0; i < n; i++) {
        said = said || strstr(lines[i], "larger than the buffers") != NULL;
    }
    ck_assert(said);
}
END_TEST

/* Rooms take turns. */
START_TEST(rooms_take_turns)
{
    struct cst_core_room rooms[] = {{.engine = ENGINE, .segment = ROOM, .bytes = BUFFER},
                                    {.engine = ENGINE + 1, .segment = ROOM + 1, .bytes = BUFFER}};

    rig_open_job(&rig, &(struct rig_job){.n_chunks = 4,
                                         .world = 1,
                                         .n_blocks = 8,
                                         .rooms = rooms,
                                         .n_rooms = 2,
                                         .interleave = 1});
    rig_start(&rig, 1);
    commit(4);
    for (uint32_t c = 0; c < 4; c++) {
        ck_assert_uint_eq(update_of(c)->node, ENGINE + c % 2);
        ck_assert_uint_eq(update_of(c)->in[0].place.segment, ROOM + c % 2);
    }
    rig_drain(&rig);
}
END_TEST

/* -- in which commands ------------------------------------------------------------------------ */

/* Up, update, down: each row comes from where the table says it is and goes back there, the weights
 * first; what overwrites waits until what it overwrites was told to be complete. */
START_TEST(chain)
{
    static const enum cst_row down[] = {CST_ROW_WEIGHT, CST_ROW_MASTER, CST_ROW_EXP_AVG,
                                        CST_ROW_EXP_AVG_SQ};
    const struct cst_command *update;

    open_room(1, 3 * BUFFER, 1);
    commit(1);
    update = update_of(0);
    ck_assert(update->told); /* its engine forgets which COPY failed, when it dies */
    ck_assert_uint_eq(update->n_after, 4);
    for (unsigned i = 0; i < 4; i++) {
        const struct cst_command *up = copy_of(0, true, i);
        const struct cst_layout_row *row = &rig.layout.chunks[0].rows[update->in[i].row];

        ck_assert(up != NULL && waits_for(update, up->ticket));
        ck_assert(up->told);
        ck_assert_uint_eq(up->node, ENGINE);
        ck_assert_uint_eq(up->src[0].segment, RIG_ARENA_SEGMENT + row->segment);
        ck_assert_uint_eq(up->src[0].offset, row->offset);
        ck_assert_uint_eq(up->dst[0].offset, update->in[i].place.offset);
        ck_assert_uint_eq(up->bytes, (update->in[i].row == CST_ROW_GRAD ? 2 : 4) * RIG_CHUNK_ELEMS);
    }
    for (unsigned i = 0; i < 4; i++) {
        const struct cst_command *c = copy_of(0, false, i);
        const struct cst_layout_row *row = &rig.layout.chunks[0].rows[down[i]];

        ck_assert(c != NULL && waits_for(c, update->ticket));
        ck_assert(c->told);
        ck_assert_uint_eq(c->node, ENGINE);
        ck_assert_uint_eq(c->dst[0].segment, RIG_ARENA_SEGMENT + row->segment);
        ck_assert_uint_eq(c->dst[0].offset, row->offset);
        ck_assert_int_eq(update->out[i].row, down[i]);
        ck_assert_uint_eq(c->src[0].offset, update->out[i].place.offset);
        ck_assert_int_eq(c->priority, i == 0 ? CST_PRIORITY_DEMAND : CST_PRIORITY_EVICTION);
    }
    rig_drain(&rig);
}
END_TEST

/* With room for n buffers the chunk that is n behind waits for all copies out of the first's. */
START_TEST(buffers_take_turns)
{
    uint32_t n = (uint32_t)_i;

    open_room(4, n * BUFFER, 1);
    commit(4);
    for (uint32_t c = 1; c < 4; c++) {
        for (unsigned up = 0; up < 4; up++) {
            ck_assert_uint_eq(copy_of(c, true, up)->n_after, c < n ? 0 : 4);
            for (unsigned down = 0; down < 4 && c >= n; down++) {
                ck_assert(waits_for(copy_of(c, true, up), copy_of(c - n, false, down)->ticket));
            }
        }
    }
    rig_drain(&rig);
}
END_TEST

/* -- what waits for what ---------------------------------------------------------------------- */

/* A fetch waits for the weights alone, a read for all that comes down, and so does the next sum. */
START_TEST(waiting)
{
    uint64_t weight, tag, lease;
    const struct cst_command *load = NULL, *read = NULL;

    open_room(1, 3 * BUFFER, 1);
    commit(1);
    weight = copy_of(0, false, 0)->ticket;
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
        ck_assert(waits_for(read, copy_of(0, false, i)->ticket));
    }
    while (rig.commands[0].ticket <= weight) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    lease = rig_get_grad(&rig, 0, 0);
    ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, 0, 0, lease)), CST_OK);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_REDUCE, 0)->n_after, 3);
    for (unsigned i = 0; i < 3; i++) {
        ck_assert(
            waits_for(rig_command(&rig, CST_COMMAND_REDUCE, 0), copy_of(0, false, i)->ticket));
    }
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
}
END_TEST

/* Between the weights and the last of the states the chunk is being updated still. */
START_TEST(states_are_behind)
{
    struct cst_core_stats stats;

    open_room(1, 3 * BUFFER, 1);
    commit(1);
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

/* A gradient that is complete while states of the update before still come down is summed first,
 * and its early update comes behind that: a copy that failed can be made again, and both count. */
START_TEST(early_behind_states)
{
    struct cst_core_room room = {.engine = ENGINE, .segment = ROOM, .bytes = 3 * BUFFER};
    uint64_t state, lease;

    rig_open_job(&rig, &(struct rig_job){.n_chunks = 1,
                                         .world = 1,
                                         .n_blocks = 4,
                                         .rooms = &room,
                                         .n_rooms = 1,
                                         .interleave = 1,
                                         .overlap = CST_OVERLAP_EARLY});
    rig_start(&rig, 1);
    commit(1);
    cst_core_set_interleave(rig.core, 0);
    state = copy_of(0, false, 1)->ticket;
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

/* -- gradients that stay up ------------------------------------------------------------------- */

/* One rank whose pool is on the accelerator, and place for @n_held gradients behind the buffers. */
static void open_device(uint32_t n_chunks, uint32_t world, uint32_t n_held, uint32_t k)
{
    static const uint32_t engines[] = {ENGINE, ENGINE};
    struct cst_core_room room = {
        .engine = ENGINE, .segment = ROOM, .bytes = 3 * BUFFER + n_held * 2ull * RIG_CHUNK_ELEMS};

    rig_open_job(&rig, &(struct rig_job){.n_chunks = n_chunks,
                                         .world = world,
                                         .n_blocks = 2 * n_chunks,
                                         .rooms = &room,
                                         .n_rooms = 1,
                                         .interleave = k,
                                         .engines = engines});
    rig_start(&rig, world);
}

/* The copy of a gradient from the pool into the room, if there is one. */
static const struct cst_command *keep_of(uint32_t chunk)
{
    const struct cst_command *copy = copy_of(chunk, true, 0);

    return copy != NULL && copy->src[0].segment == RIG_POOL_SEGMENT ? copy : NULL;
}

static void hand_in_all(uint32_t n_chunks, uint32_t rank)
{
    for (uint32_t c = 0; c < n_chunks; c++) {
        uint64_t lease = rig_get_grad(&rig, rank, c);

        ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, rank, c, lease)), CST_OK);
    }
}

/* A chunk that went through the room keeps its gradient there, as long as there is place; its sum
 * waits for that copy, and its next update reads it there instead of a copy of the grad row. */
START_TEST(gradient_stays_up)
{
    const struct cst_command *keep, *update;

    open_device(4, 1, 1, 2);
    commit(4);
    ck_assert(copy_of(1, true, 0) != NULL && keep_of(1) == NULL); /* nothing was expected yet */
    rig_drain(&rig);
    for (uint32_t c = 0; c < 4; c++) {
        uint64_t lease = rig_get_grad(&rig, 0, c);

        ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, 0, c, lease)), CST_OK);
        keep = keep_of(c);
        ck_assert_msg((keep != NULL) == (c == 1), "chunk %u", c); /* 3: no place is left */
        if (keep != NULL) {
            ck_assert_uint_eq(keep->dst[0].offset, 3 * BUFFER);
            ck_assert_uint_eq(keep->node, ENGINE);
            ck_assert(waits_for(rig_command(&rig, CST_COMMAND_REDUCE, 0), keep->ticket));
        }
        rig_drain(&rig);
    }
    commit(4);
    update = update_of(1);
    ck_assert_int_eq(update->in[0].row, CST_ROW_GRAD);
    ck_assert_uint_eq(update->in[0].place.offset, 3 * BUFFER);
    ck_assert(copy_of(1, true, 2) != NULL && copy_of(1, true, 3) == NULL);
    ck_assert_uint_lt(update_of(3)->in[0].place.offset, 3 * BUFFER);
    ck_assert(copy_of(3, true, 3) != NULL);
    rig_drain(&rig);
}
END_TEST

/* The sum of two ranks is not one of their contributions: nothing is kept. */
START_TEST(sums_come_down)
{
    open_device(1, 2, 1, 1);
    rig_whole_step(&rig, 1, 2);
    rig_drain(&rig);
    hand_in_all(1, 0);
    hand_in_all(1, 1);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_REDUCE), 1);
    ck_assert(copy_of(0, true, 0) == NULL);
}
END_TEST

/* k has changed, or the attempt is over: what was kept is given up, and its place is free again. */
START_TEST(kept_in_vain)
{
    for (int i = 0; i < 3; i++) {
        open_device(1, 1, 1, 1);
        commit(1);
        rig_drain(&rig);
        hand_in_all(1, 0);
        ck_assert(keep_of(0) != NULL);
        if (i == 0) {
            cst_core_set_interleave(rig.core, 0);
            commit(1);
            ck_assert_uint_eq(update_of(0)->n_out, 0);
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

/* -- states that stay there ------------------------------------------------------------------- */

static void open_states(uint64_t bytes, uint32_t k)
{
    struct cst_core_room room = {.engine = ENGINE, .segment = ROOM, .bytes = 3 * BUFFER};
    struct cst_layout_device device = {
        .engine = ENGINE, .bytes = bytes, .grain = 8192, .room_bytes = room.bytes};

    rig_open_job(&rig, &(struct rig_job){.n_chunks = 3,
                                         .world = 1,
                                         .n_blocks = 6,
                                         .rooms = &room,
                                         .n_rooms = 1,
                                         .interleave = k,
                                         .device = &device});
    rig_start(&rig, 1);
}

/* As many chunks as fit have their states there, the last ones: segments of the accelerator's,
 * whole grains, that are no arenas. Weights and gradients are where they always were. */
START_TEST(last_chunks_stay)
{
    uint64_t states = 12ull * RIG_CHUNK_ELEMS;
    uint64_t bytes = 0;

    open_states((uint64_t)_i * states + 8191, 0);
    for (uint32_t c = 0; c < 3; c++) {
        const struct cst_layout_chunk *chunk = &rig.layout.chunks[c];
        bool there = c >= 3u - (uint32_t)_i;

        ck_assert_uint_eq(chunk->device, there ? ENGINE : 0);
        for (int r = 0; r < CST_ROW_COUNT; r++) {
            uint32_t node = rig.layout.segments[chunk->rows[r].segment].node;

            ck_assert_uint_eq(node, there && r != CST_ROW_WEIGHT && r != CST_ROW_GRAD ? ENGINE : 0);
        }
    }
    for (uint32_t i = 0; i < rig.layout.n_segments; i++) {
        bytes += rig.layout.segments[i].node == ENGINE ? rig.layout.segments[i].bytes : 0;
    }
    ck_assert_uint_eq(bytes, rig.layout.device_bytes);
    ck_assert_uint_eq(bytes % 8192, 0);
    ck_assert_uint_ge(bytes, (uint64_t)_i * states);
    ck_assert_uint_le(bytes, (uint64_t)_i * states + 8191);
    ck_assert_uint_eq(rig.layout.arena_bytes, 3ull * 16 * RIG_CHUNK_ELEMS - (uint64_t)_i * states);
}
END_TEST

/* Whatever k: the accelerator updates them. Only the gradient comes up and the weights go down; the
 * states are copied back home there. */
START_TEST(updated_where_they_are)
{
    const struct cst_command *update;

    open_states(12ull * RIG_CHUNK_ELEMS + 8191, (uint32_t)_i);
    commit(3);
    update = update_of(2);
    ck_assert_uint_eq(update->node, ENGINE);
    ck_assert_uint_eq(update->n_in, 1);
    ck_assert_int_eq(update->in[0].row, CST_ROW_GRAD);
    ck_assert_uint_eq(update->n_out, 4);
    ck_assert(copy_of(2, true, 0) != NULL && copy_of(2, true, 1) == NULL);
    for (unsigned i = 0; i < 4; i++) {
        const struct cst_command *down = copy_of(2, false, i);
        uint32_t segment = down->dst[0].segment - RIG_ARENA_SEGMENT;

        ck_assert(waits_for(down, update->ticket) && down->told);
        ck_assert_uint_eq(rig.layout.segments[segment].node, i == 0 ? 0 : ENGINE);
    }
    for (uint32_t c = 0; c < 2; c++) { /* the others are counted without it */
        ck_assert_uint_eq(update_of(c)->node, _i > 0 && (c + 1) % (uint32_t)_i == 0 ? ENGINE : 0);
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

/* Its engine reads and writes them. A write of master weights: those and zeros there, and then the
 * weights by the node's engine, which ends it. */
START_TEST(read_and_written_there)
{
    uint64_t tag;
    const struct cst_command *last;

    open_states(12ull * RIG_CHUNK_ELEMS + 8191, 0);
    tag = io(CST_EV_READ, 2, CST_ROW_EXP_AVG);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_COPY, 0)->node, ENGINE);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    tag = io(CST_EV_READ, 2, CST_ROW_WEIGHT);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_COPY, 0)->node, 0);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    tag = io(CST_EV_WRITE, 2, CST_ROW_MASTER);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_COPY), 1);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_FILL), 2);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_COPY, 0)->node, ENGINE);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_FILL, 1)->node, ENGINE);
    last = rig_command(&rig, CST_COMMAND_CONVERT, 0);
    ck_assert(last != NULL && last->node == 0 && last->n_dst == 1);
    ck_assert_uint_eq(last->n_after, 3);
    while (rig.n_commands > 1) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
        ck_assert(rig_waits(&rig, tag));
    }
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
}
END_TEST

/* Without a room on that accelerator nobody could update them. */
START_TEST(no_room_for_states)
{
    struct cst_core_config config = {.world = 1, .model = &rig.model, .layout = &rig.layout};
    struct cst_core *core;
    struct cst_err err;

    open_states(12ull * RIG_CHUNK_ELEMS + 8191, 0);
    config.pools = rig.pools;
    ck_assert_int_eq(cst_core_open(&core, &config, &err), CST_EINVAL);
    ck_assert_msg(strstr(err.text, "no room to update it") != NULL, "%s", err.text);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("room");
    TCase *which = tcase_create("which");
    TCase *commands = tcase_create("commands");
    TCase *waits = tcase_create("waits");
    TCase *held = tcase_create("held");
    TCase *device = tcase_create("device");

    tcase_add_checked_fixture(which, NULL, teardown);
    tcase_add_checked_fixture(commands, NULL, teardown);
    tcase_add_checked_fixture(waits, NULL, teardown);
    tcase_add_loop_test(which, every_kth, 0, 9);
    tcase_add_test(which, k_changes);
    tcase_add_test(which, too_small);
    tcase_add_test(which, rooms_take_turns);
    tcase_add_test(commands, chain);
    tcase_add_loop_test(commands, buffers_take_turns, 1, 4);
    tcase_add_test(waits, waiting);
    tcase_add_test(waits, states_are_behind);
    tcase_add_test(waits, early_behind_states);
    tcase_add_checked_fixture(held, NULL, teardown);
    tcase_add_test(held, gradient_stays_up);
    tcase_add_test(held, sums_come_down);
    tcase_add_test(held, kept_in_vain);
    suite_add_tcase(s, held);
    tcase_add_checked_fixture(device, NULL, teardown);
    tcase_add_loop_test(device, last_chunks_stay, 0, 4);
    tcase_add_loop_test(device, updated_where_they_are, 0, 3);
    tcase_add_test(device, read_and_written_there);
    tcase_add_test(device, no_room_for_states);
    suite_add_tcase(s, device);
    suite_add_tcase(s, which);
    suite_add_tcase(s, commands);
    suite_add_tcase(s, waits);
    return suite_run(s);
}
