/* SPDX-License-Identifier: Apache-2.0 */
/* Deaths at each moment of the updates in lent memory: of the daemon, of the accelerator's engine,
 * of the rank that lends, and of the accelerator. A model of the memory says what each command
 * reads and writes. An update that reads anything but the rows of the step before, and its own
 * gradient, fails the test. The same deaths are tested with a device reservation, which must end
 * alike. */
#include "offload/core/revival.h"
#include "tests/lib/suite.h"
#include "tests/unit/reservation_rig.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define N_CHUNKS 24
#define BUFFER_BLOCKS 14
#define N_BLOCKS (3 * BUFFER_BLOCKS + 8)
#define INTERLEAVE 2
#define N_MOMENTS 125 /* Something dies after each number of completions, up to all of them. */
#define N_PARTS 5     /* The moments are divided among so many loops. */

static const enum cst_row rows[] = {CST_ROW_WEIGHT, CST_ROW_MASTER, CST_ROW_MOMENT,
                                    CST_ROW_MOMENT + 1, CST_ROW_GRAD};
enum { N_STATES = 4, N_ROWS = 5 };

/* What the memory at a place has: row contents of one chunk, or nothing whole. */
struct cell {
    struct cst_place place;
    uint64_t value; /* chunk * 1000 + step; of a gradient: plus 500; TORN: anything. */
};
#define TORN UINT64_MAX

static struct rig rig;
static struct cst_table_header *table;
static struct cell cells[1024];
static unsigned n_cells;
static uint64_t seed;

static void clear(void)
{
    rig_close(&rig);
    free(table);
    table = NULL;
    n_cells = 0;
}

static uint64_t draw(uint64_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % n;
}

static void make_table(void)
{
    struct cst_table_header header;

    cst_table_size(&header, N_CHUNKS, N_CHUNKS, N_CHUNKS);
    table = calloc(1, header.total_bytes);
    ck_assert_ptr_nonnull(table);
    *table = header;
}

static void open_job(bool lent)
{
    static const uint32_t engines[] = {RESERVATION_ENGINE};
    struct cst_core_device_reservation reservation = {.engine = RESERVATION_ENGINE, .lent = true};

    if (!lent) {
        reservation = (struct cst_core_device_reservation){.engine = RESERVATION_ENGINE,
                                                           .segment = RESERVATION_SEGMENT,
                                                           .bytes = 3 * RESERVATION_BUFFER};
    }
    rig_open_job(&rig, &(struct rig_job){.n_chunks = N_CHUNKS,
                                         .world = 1,
                                         .n_blocks = N_BLOCKS,
                                         .engines = engines,
                                         .reservations = &reservation,
                                         .n_reservations = 1,
                                         .interleave = INTERLEAVE,
                                         .table = table});
}

/* -- the memory -------------------------------------------------------------------------------- */

static uint64_t *at(struct cst_place place)
{
    for (unsigned i = 0; i < n_cells; i++) {
        if (cells[i].place.segment == place.segment && cells[i].place.offset == place.offset) {
            return &cells[i].value;
        }
    }
    ck_assert_uint_lt(n_cells, sizeof cells / sizeof cells[0]);
    cells[n_cells] = (struct cell){.place = place, .value = TORN};
    return &cells[n_cells++].value;
}

static uint64_t *row_of(uint32_t c, enum cst_row row)
{
    const struct cst_layout_row *r = &rig.layout.chunks[c].rows[row];

    return at((struct cst_place){.segment = RIG_ARENA_SEGMENT + r->segment, .offset = r->offset});
}

static uint64_t *named(const struct cst_command_row *list, uint32_t n, uint32_t c, enum cst_row row)
{
    for (uint32_t i = 0; i < n; i++) {
        if (list[i].row == row) {
            return at(list[i].place);
        }
    }
    return row_of(c, row);
}

static void update(const struct cst_command *command)
{
    uint64_t before = command->chunk * 1000ull + command->mark - 1;

    ck_assert_uint_eq(*named(command->in, command->n_in, command->chunk, CST_ROW_GRAD),
                      before + 501);
    for (unsigned i = 1; i < N_STATES; i++) {
        ck_assert_uint_eq(*named(command->in, command->n_in, command->chunk, rows[i]), before);
    }
    for (unsigned i = 0; i < N_STATES; i++) {
        *named(command->out, command->n_out, command->chunk, rows[i]) = before + 1;
    }
    if (command->node == 0) { /* The engine marks what it updates in place. */
        cst_table_chunks(table)[command->chunk].update_mark = command->mark;
    }
}

/* What @command does. */
static void execute(const struct cst_command *command)
{
    if (command->kind == CST_COMMAND_COPY) {
        *at(command->dst[0]) = *at(command->src[0]);
    } else if (command->kind == CST_COMMAND_UPDATE) {
        update(command);
    }
}

/* What @command has done if its engine was killed while it was executing. Engines restore the tiles
 * that they update in place. */
static void tear(const struct cst_command *command)
{
    if (command->kind == CST_COMMAND_COPY) {
        *at(command->dst[0]) = TORN;
    } else if (command->kind == CST_COMMAND_UPDATE && command->node == RESERVATION_ENGINE) {
        for (uint32_t i = 0; i < command->n_out; i++) {
            *at(command->out[i].place) = TORN;
        }
    }
}

/* -- the run ----------------------------------------------------------------------------------- */

static bool is_ready(const struct cst_command *command)
{
    for (uint32_t i = 0; i < command->n_after; i++) {
        for (unsigned k = 0; k < rig.n_commands; k++) {
            if (rig.commands[k].ticket == command->after[i]) {
                return false;
            }
        }
    }
    return true;
}

/* Execute and complete a command that need not wait. */
static void complete_any(void)
{
    unsigned i = (unsigned)draw(rig.n_commands);
    struct cst_command command;

    while (!is_ready(&rig.commands[i])) {
        i = (i + 1) % rig.n_commands;
    }
    command = rig.commands[i];
    execute(&command);
    rig_done(&rig, command.ticket, CST_OK, NULL);
}

static void complete_all(void)
{
    while (rig.n_commands > 0) {
        complete_any();
    }
}

/* Make two steps, then complete @n commands of the last one's updates. */
static void live(bool lent, unsigned n)
{
    make_table();
    open_job(lent);
    rig_start(&rig, 1);
    rig_whole_step(&rig, N_CHUNKS, 1);
    for (uint32_t c = 0; c < N_CHUNKS; c++) {
        cst_table_chunks(table)[c].update_mark = 1;
    }
    reservation_commit(&rig, N_CHUNKS);
    for (uint32_t c = 0; c < N_CHUNKS; c++) {
        for (unsigned i = 0; i < N_STATES; i++) {
            *row_of(c, rows[i]) = c * 1000ull + 1;
        }
        *row_of(c, CST_ROW_GRAD) = c * 1000ull + 502;
    }
    for (unsigned i = 0; i < n && rig.n_commands > 0; i++) {
        complete_any();
    }
}

/* Fails the test unless each chunk has had its update exactly once. */
static void check_rows(void)
{
    for (uint32_t c = 0; c < N_CHUNKS; c++) {
        for (unsigned i = 0; i < N_STATES; i++) {
            ck_assert_uint_eq(*row_of(c, rows[i]), c * 1000ull + 2);
        }
    }
}

/* Number of updates whose results are being copied down. */
static unsigned count_copying(struct cst_core_record *record)
{
    unsigned n = 0;

    cst_core_record(rig.core, record);
    for (uint32_t i = 0; i < CST_CORE_MAX_COPYING; i++) {
        n += record->copying[i].chunk != 0;
    }
    return n;
}

/* -- deaths ------------------------------------------------------------------------------------ */

/* The engines die with the daemon: what they have is done, half done or not begun. */
static void kill_engines(void)
{
    for (unsigned i = 0; i < rig.n_commands; i++) {
        const struct cst_command *command = &rig.commands[i];

        if (is_ready(command) && draw(2) == 0) {
            execute(command);
        } else if (is_ready(command) && draw(2) == 0) {
            tear(command);
        }
    }
}

/* The daemon dies after each number of completed commands. The next core goes on: what was copied
 * down is copied again from the same blocks, and the rest is updated again. */
static void daemon_dies(bool lent, unsigned n, unsigned *n_copying)
{
    struct cst_core_record record;
    struct cst_err err;

    live(lent, n);
    *n_copying += count_copying(&record);
    kill_engines();
    rig_close(&rig);
    open_job(lent);
    ck_assert_msg(cst_core_may_revive(rig.core, &record, table, &err) == CST_OK, "%s", err.text);
    (void)rig_event(&rig,
                    (struct cst_event){.kind = CST_EV_REVIVE, .record = &record, .table = table});
    complete_all();
    check_rows();
    ck_assert_uint_eq(rig_books(&rig, 0).free, N_BLOCKS);
    rig_start(&rig, 1);
    rig_whole_step(&rig, N_CHUNKS, 1);
    ck_assert_uint_eq(rig_stats(&rig).step, 3);
}

/* Each loop has a fifth of the moments, with and without lent memory. */
START_TEST(of_the_daemon)
{
    unsigned n_lent = 0, n_reserved = 0;

    for (unsigned n = (unsigned)_i; n < N_MOMENTS; n += N_PARTS) {
        seed = n;
        daemon_dies(true, n, &n_lent);
        clear();
        daemon_dies(false, n, &n_reserved);
        clear();
    }
    ck_assert_uint_gt(n_lent, 0);
    ck_assert_uint_gt(n_reserved, 0);
}
END_TEST

/* The accelerator's engine dies: the next one does again what was not reported. */
START_TEST(of_the_engine)
{
    for (unsigned n = (unsigned)_i; n < N_MOMENTS; n += N_PARTS) {
        seed = n;
        live(true, n);
        for (unsigned i = 0; i < rig.n_commands; i++) {
            if (rig.commands[i].node == RESERVATION_ENGINE && is_ready(&rig.commands[i])) {
                (draw(2) == 0 ? execute : tear)(&rig.commands[i]);
            }
        }
        complete_all();
        check_rows();
        clear();
    }
}
END_TEST

/* The worker that uses the pool dies, with and without a fetch that has recalled a buffer. */
START_TEST(of_the_lender)
{
    for (unsigned n = (unsigned)_i; n < N_MOMENTS; n += N_PARTS) {
        seed = n;
        live(true, n);
        for (uint32_t c = 0; n % 2 == 0 && c < N_BLOCKS / 4; c++) {
            (void)rig_fetch(&rig, 0, c);
        }
        (void)rig_rank_event(&rig, CST_EV_DEAD, 0);
        complete_all();
        check_rows();
        ck_assert_uint_eq(rig_books(&rig, 0).free + rig_books(&rig, 0).cached, N_BLOCKS);
        rig_start(&rig, 1);
        rig_whole_step(&rig, N_CHUNKS, 1);
        ck_assert_uint_eq(rig_stats(&rig).step, 3);
        clear();
    }
}
END_TEST

/* Fail all commands of the accelerator, as they come. */
static void lose_accelerator(void)
{
    unsigned i = 0;

    for (unsigned k = 0; k < rig.n_commands; k++) {
        if (rig.commands[k].node == RESERVATION_ENGINE && is_ready(&rig.commands[k])) {
            tear(&rig.commands[k]);
        }
    }
    while (i < rig.n_commands) {
        bool there = rig.commands[i].node == RESERVATION_ENGINE;

        if (there) {
            rig_done(&rig, rig.commands[i].ticket, CST_EENGINE, "lost");
        }
        i = there ? 0 : i + 1;
    }
}

/* The accelerator is lost: the job goes on, unless results were being copied down. Then it fails,
 * as it does with a device reservation. Returns whether results were. */
static bool accelerator_is_lost(bool lent, unsigned n)
{
    struct cst_core_record record;
    unsigned n_copying;
    uint64_t sync;

    live(lent, n);
    n_copying = count_copying(&record);
    lose_accelerator();
    if (n_copying > 0) {
        ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_FAILED);
        sync = rig_rank_event(&rig, CST_EV_SYNC, 0);
        ck_assert_ptr_nonnull(strstr(rig_answer(&rig, sync)->err.text, "are lost:"));
        rig_drain(&rig);
    } else {
        complete_all();
        check_rows();
    }
    return n_copying > 0;
}

START_TEST(of_the_accelerator)
{
    unsigned n_failed = 0;

    for (unsigned n = (unsigned)_i; n < N_MOMENTS; n += N_PARTS) {
        for (unsigned lent = 0; lent < 2; lent++) {
            seed = n;
            n_failed += accelerator_is_lost(lent != 0, n);
            clear();
        }
    }
    ck_assert_uint_gt(n_failed, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("lent deaths");
    TCase *tc = suite_case(suite, "deaths", NULL, NULL);

    tcase_set_timeout(tc, 60);
    suite_add_loop(tc, of_the_daemon, 0, N_PARTS);
    suite_add_loop(tc, of_the_engine, 0, N_PARTS);
    suite_add_loop(tc, of_the_lender, 0, N_PARTS);
    suite_add_loop(tc, of_the_accelerator, 0, N_PARTS);
    return suite_run(suite);
}
