/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of device updates in lent memory: which blocks are lent, that buffers do not overlap, and
 * that a fetch gets its block back. check_lent_deaths.c has the deaths. */
#include "tests/lib/suite.h"
#include "tests/unit/reservation_rig.h"

#include <check.h>
#include <string.h>

#define BUFFER_BLOCKS 14 /* blocks of a buffer: 14 bytes of an element in, 14 out, 2 a block */
#define MIN_BLOCKS 3     /* a chunk's weights and gradient, and the next weights */
#define N_CHUNKS 8

static struct rig rig;

static void teardown(void)
{
    rig_close(&rig);
}

static void open_lent(uint32_t n_blocks, uint32_t k)
{
    static const uint32_t engines[] = {RESERVATION_ENGINE};
    struct cst_core_device_reservation reservation = {.engine = RESERVATION_ENGINE, .lent = true};

    rig_open_job(&rig, &(struct rig_job){.n_chunks = N_CHUNKS,
                                         .world = 1,
                                         .n_blocks = n_blocks,
                                         .engines = engines,
                                         .reservations = &reservation,
                                         .n_reservations = 1,
                                         .interleave = k});
    rig_start(&rig, 1);
}

static unsigned count_updates(uint32_t engine)
{
    unsigned n = 0;

    for (uint32_t c = 0; c < N_CHUNKS; c++) {
        n += reservation_update(&rig, c)->node == engine;
    }
    return n;
}

/* -- blocks ------------------------------------------------------------------------------------ */

/* As many buffers are lent as blocks allow, at most three, and the fewest blocks with which the
 * rank can run are not. Everything is returned when the updates are complete. */
START_TEST(spare_blocks)
{
    static const struct {
        uint32_t n_blocks, n_buffers;
    } cases[] = {
        {BUFFER_BLOCKS + MIN_BLOCKS - 1, 0},     {BUFFER_BLOCKS + MIN_BLOCKS, 1},
        {2 * BUFFER_BLOCKS + MIN_BLOCKS - 1, 1}, {2 * BUFFER_BLOCKS + MIN_BLOCKS, 2},
        {3 * BUFFER_BLOCKS + MIN_BLOCKS, 3},     {5 * BUFFER_BLOCKS + MIN_BLOCKS, 3},
    };
    uint32_t n_buffers = cases[_i].n_buffers;

    open_lent(cases[_i].n_blocks, 1);
    reservation_commit(&rig, N_CHUNKS);
    ck_assert_uint_eq(count_updates(RESERVATION_ENGINE), n_buffers > 0 ? N_CHUNKS : 0);
    ck_assert_uint_eq(rig_books(&rig, 0).moving, n_buffers * BUFFER_BLOCKS);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_books(&rig, 0).free, cases[_i].n_blocks);
    ck_assert_uint_eq(rig_stats(&rig).n_lent_updates, n_buffers > 0 ? N_CHUNKS : 0);
    ck_assert_uint_eq(rig_stats(&rig).n_device_updates, n_buffers > 0 ? N_CHUNKS : 0);
}
END_TEST

/* Fails the test if the @n places overlap, or begin before offset @first of the pool. */
static void check_places(const struct cst_place *places, const uint64_t *bytes, unsigned n,
                         uint64_t first)
{
    for (unsigned i = 0; i < n; i++) {
        ck_assert_uint_eq(places[i].segment, RIG_POOL_SEGMENT);
        ck_assert_uint_ge(places[i].offset, first);
        for (unsigned k = 0; k < i; k++) {
            ck_assert(places[i].offset + bytes[i] <= places[k].offset ||
                      places[k].offset + bytes[k] <= places[i].offset);
        }
    }
}

/* The rows of all buffers are apart from each other, and from the blocks that are not lent. */
START_TEST(rows_are_apart)
{
    uint32_t n_blocks = 3 * BUFFER_BLOCKS + MIN_BLOCKS;
    struct cst_place places[32];
    uint64_t bytes[32];
    unsigned n = 0;

    open_lent(n_blocks, 1);
    reservation_commit(&rig, N_CHUNKS);
    for (uint32_t c = 0; c < 3; c++) { /* the first updates enter one buffer each */
        const struct cst_command *update = reservation_update(&rig, c);

        for (uint32_t i = 0; i < update->n_in; i++) {
            bytes[n] = (update->in[i].row == CST_ROW_GRAD ? 2 : 4) * RIG_CHUNK_ELEMS;
            places[n++] = update->in[i].place;
        }
        for (uint32_t i = 0; i < update->n_out; i++) {
            bytes[n] = (update->out[i].row == CST_ROW_WEIGHT ? 2 : 4) * RIG_CHUNK_ELEMS;
            places[n++] = update->out[i].place;
        }
    }
    ck_assert_uint_eq(n, 24);
    /* The 45 blocks have 22 pairs, of which all but the first are lent. */
    check_places(places, bytes, n, 2 * 2 * RIG_CHUNK_ELEMS);
    rig_drain(&rig);
}
END_TEST

/* A block that a worker still uses at the commit is not lent, nor is any block beside it in the
 * buffer: the nodes make the updates. */
START_TEST(block_in_use)
{
    uint64_t lease;

    open_lent(BUFFER_BLOCKS + MIN_BLOCKS, 1);
    for (uint32_t c = 0; c < MIN_BLOCKS; c++) { /* the third one is in a block of the buffer */
        lease = rig_get(&rig, 0, c);
    }
    ck_assert_uint_ne(lease, 0);
    (void)rig_step(&rig, 0);
    while (rig_command(&rig, CST_COMMAND_UPDATE, 0) == NULL) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    ck_assert_uint_eq(count_updates(0), N_CHUNKS);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_stats(&rig).n_device_updates, 0);
}
END_TEST

/* -- recalls ----------------------------------------------------------------------------------- */

static bool is_recalled(uint64_t ticket)
{
    for (unsigned i = 0; i < rig.n_recalls; i++) {
        if (rig.recalls[i] == ticket) {
            return true;
        }
    }
    return false;
}

/* A recalled COPY up of a chunk other than @begun, or the UPDATE that waits for it; NULL: none is
 * left. */
static const struct cst_command *find_dropped(uint32_t begun)
{
    for (unsigned i = 0; i < rig.n_commands; i++) {
        const struct cst_command *command = &rig.commands[i];

        bool fails = is_recalled(command->ticket);

        for (uint32_t k = 0; command->kind == CST_COMMAND_UPDATE && k < command->n_after; k++) {
            fails = fails || is_recalled(command->after[k]);
        }
        if (command->chunk != begun && fails) {
            return command;
        }
    }
    return NULL;
}

/* A COPY down whose chunk is updated by its node instead; NULL: none is left. */
static const struct cst_command *find_replaced(void)
{
    for (unsigned i = 0; i < rig.n_commands; i++) {
        for (unsigned k = 0; k < rig.commands[i].n_replaces; k++) {
            for (unsigned j = 0; j < rig.n_commands; j++) {
                if (rig.commands[j].ticket == rig.commands[i].replaces[k]) {
                    return &rig.commands[j];
                }
            }
        }
    }
    return NULL;
}

/* Do what a driver does with recalls, if an engine has begun the update of chunk @begun only. */
static void drop_recalled(uint32_t begun)
{
    const struct cst_command *command;

    while ((command = find_dropped(begun)) != NULL || (command = find_replaced()) != NULL) {
        rig_done(&rig, command->ticket, CST_ECANCELLED, "recalled");
    }
}

/* True if a sentence about @chunk has @words. */
static bool explains(uint32_t chunk, const char *words)
{
    char lines[24][192];
    unsigned n = cst_core_explain(rig.core, chunk, lines, 24);
    bool any = false;

    for (unsigned i = 0; i < n; i++) {
        any = any || strstr(lines[i], words) != NULL;
    }
    return any;
}

/* A fetch that finds no free block gets one when the update that was under way in the lent blocks
 * is complete. The nodes make the other updates. No failure is counted. */
START_TEST(fetch_recalls)
{
    uint64_t tags[MIN_BLOCKS + 1];

    open_lent(BUFFER_BLOCKS + MIN_BLOCKS, 1);
    reservation_commit(&rig, N_CHUNKS);
    for (uint32_t c = 0; c < MIN_BLOCKS; c++) {
        tags[c] = rig_fetch(&rig, 0, c);
        ck_assert_uint_eq(rig.n_recalls, 0);
    }
    tags[MIN_BLOCKS] = rig_fetch(&rig, 0, MIN_BLOCKS);
    ck_assert_uint_eq(rig.n_recalls, 4 * N_CHUNKS); /* the COPYs up */
    drop_recalled(0);
    ck_assert_uint_eq(count_updates(RESERVATION_ENGINE), 1);
    ck_assert_uint_eq(count_updates(0), N_CHUNKS - 1);
    ck_assert(rig_waits(&rig, tags[MIN_BLOCKS]));
    for (uint32_t n = 0; n < 9; n++) { /* 4 COPYs up, UPDATE and 4 COPYs down of chunk 0 */
        unsigned i = 0;

        while (rig.commands[i].chunk != 0) {
            i++;
        }
        rig_done(&rig, rig.commands[i].ticket, CST_OK, NULL);
    }
    ck_assert_uint_eq(rig_stats(&rig).n_lent_updates, 1);
    ck_assert_uint_eq(rig_books(&rig, 0).free, BUFFER_BLOCKS - 1); /* the fetch has one */
    rig_drain(&rig);
    for (uint32_t c = 0; c <= MIN_BLOCKS; c++) {
        ck_assert_int_eq(rig_status(&rig, tags[c]), CST_OK);
    }
    ck_assert_uint_eq(rig_stats(&rig).n_reservation_failures, 0);
    ck_assert_uint_eq(rig_stats(&rig).n_updates, N_CHUNKS);
    ck_assert_uint_eq(rig_stats(&rig).n_lent_updates, 1);
    ck_assert(explains(0, "updated on the accelerator of engine 3"));
    ck_assert(explains(1, "the pools that lend memory for updates had no empty blocks for it"));
}
END_TEST

/* The updates that were recalled are made in another buffer that is lent, if there is one. */
START_TEST(updates_move)
{
    uint64_t tags[MIN_BLOCKS + 1];

    open_lent(2 * BUFFER_BLOCKS + MIN_BLOCKS, 1);
    reservation_commit(&rig, N_CHUNKS);
    for (uint32_t c = 0; c <= MIN_BLOCKS; c++) {
        tags[c] = rig_fetch(&rig, 0, c);
    }
    ck_assert_uint_eq(rig.n_recalls, 4 * N_CHUNKS / 2);
    drop_recalled(1); /* buffer 1 is recalled; its first update has begun */
    ck_assert_uint_eq(count_updates(RESERVATION_ENGINE), N_CHUNKS);
    rig_drain(&rig);
    for (uint32_t c = 0; c <= MIN_BLOCKS; c++) {
        ck_assert_int_eq(rig_status(&rig, tags[c]), CST_OK);
    }
    ck_assert_uint_eq(rig_stats(&rig).n_reservation_failures, 0);
    ck_assert_uint_eq(rig_stats(&rig).n_updates, N_CHUNKS);
    ck_assert_uint_eq(rig_stats(&rig).n_lent_updates, N_CHUNKS);
}
END_TEST

/* An accelerator fails while the buffer is recalled: this is a failure, and the node makes the
 * update. */
START_TEST(failure_during_a_recall)
{
    unsigned n = 0;

    open_lent(BUFFER_BLOCKS + MIN_BLOCKS, 1);
    reservation_commit(&rig, N_CHUNKS);
    for (uint32_t c = 0; c <= MIN_BLOCKS; c++) {
        (void)rig_fetch(&rig, 0, c);
    }
    drop_recalled(0);
    while (n < 5) { /* 4 COPYs up, and the UPDATE of chunk 0 */
        unsigned i = 0;

        while (rig.commands[i].chunk != 0) {
            i++;
        }
        n++;
        rig_done(&rig, rig.commands[i].ticket, n < 5 ? CST_OK : CST_EGPU,
                 n < 5 ? NULL : "launch failed");
    }
    ck_assert_uint_eq(rig_stats(&rig).n_reservation_failures, 1);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_stats(&rig).n_updates, N_CHUNKS);
    ck_assert_uint_eq(rig_stats(&rig).n_lent_updates, 0);
}
END_TEST

/* A driver may ignore recalls: the fetch then waits until all updates in the buffer are
 * complete. */
START_TEST(recall_ignored)
{
    uint64_t tags[MIN_BLOCKS + 1];

    open_lent(BUFFER_BLOCKS + MIN_BLOCKS, 1);
    reservation_commit(&rig, N_CHUNKS);
    for (uint32_t c = 0; c <= MIN_BLOCKS; c++) {
        tags[c] = rig_fetch(&rig, 0, c);
    }
    rig_drain(&rig);
    for (uint32_t c = 0; c <= MIN_BLOCKS; c++) {
        ck_assert_int_eq(rig_status(&rig, tags[c]), CST_OK);
    }
    ck_assert_uint_eq(rig_stats(&rig).n_lent_updates, N_CHUNKS);
    for (uint32_t c = 0; c <= MIN_BLOCKS; c++) {
        ck_assert_int_eq(
            rig_status(&rig, rig_release(&rig, 0, c, rig_answer(&rig, tags[c])->generation)),
            CST_OK);
    }
    reservation_commit(&rig, N_CHUNKS); /* the buffer is lent again */
    ck_assert_uint_eq(count_updates(RESERVATION_ENGINE), N_CHUNKS);
    rig_drain(&rig);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("lent");
    TCase *blocks = suite_case(suite, "blocks", NULL, teardown);
    TCase *recalls = suite_case(suite, "recalls", NULL, teardown);

    tcase_add_loop_test(blocks, spare_blocks, 0, 6);
    tcase_add_test(blocks, rows_are_apart);
    tcase_add_test(blocks, block_in_use);
    tcase_add_test(recalls, fetch_recalls);
    tcase_add_test(recalls, updates_move);
    tcase_add_test(recalls, failure_during_a_recall);
    tcase_add_test(recalls, recall_ignored);
    return suite_run(suite);
}
