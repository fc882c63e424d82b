/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of kernels/engine/recovery: undo slots that a dead engine left in use. */
#include "kernels/engine/recovery.h"
#include "tests/lib/engine_proc.h"
#include "tests/lib/suite.h"
#include "tests/lib/tiny_job.h"

#include <check.h>
#include <signal.h>
#include <string.h>

#define TILE 1 /* the second tile of chunk 0 */

static struct tiny_job job;
static struct cste_segments segments;
static struct cste_segment arena, table;
static struct cste_recovery recovery;
static struct cst_undo_slot *slot;
static uint16_t *grad;
static unsigned n_warned;
static struct cst_err last_warning;

static void warn(const struct cst_err *what)
{
    n_warned++;
    last_warning = *what;
}

static void add(struct cste_segment *segment, enum tiny_segment which)
{
    struct cst_err err;

    *segment = (struct cste_segment){.id = job.ids[which],
                                     .state = CSTE_SEGMENT_READY,
                                     .mem = {.base = job.base[which], .bytes = job.bytes[which]}};
    ck_assert_int_eq(cste_segments_add(&segments, segment, &err), CST_OK);
}

/* Make a tile of 300 elements whose reduction in place with mark 5 was interrupted in the middle.
 * Its old gradients are 1000, 1001, ... */
static void tear(void)
{
    slot->kind = CST_UNDO_REDUCE;
    slot->table = job.ids[TINY_TABLE];
    slot->chunk = 0;
    slot->tile = TILE;
    slot->start = CST_TILE_ELEMS;
    slot->mark = 5;
    slot->n_elems = 300;
    for (uint16_t i = 0; i < 300; i++) {
        slot->grads.bf16[i] = 1000 + i;
        grad[CST_TILE_ELEMS + i] = i < 100 ? 7 : 1000 + i;
    }
    slot->grad_held = 300;
}

static void set_up(void)
{
    uint64_t n_elems = 20000;

    tiny_job_open(&job, 1, &n_elems, 2, 3);
    cste_segments_init(&segments);
    slot = (struct cst_undo_slot *)job.base[TINY_UNDO] + 1;
    recovery = (struct cste_recovery){.slots = job.base[TINY_UNDO], .n_slots = 2};
    grad = (uint16_t *)(void *)((char *)job.base[TINY_ARENA] +
                                tiny_job_row(&job, 0, CST_ROW_GRAD).offset);
    tear();
}

static void tear_down(void)
{
    cste_segments_close(&segments);
    tiny_job_close(&job);
}

static uint32_t try(void)
{
    return cste_recovery_try(&recovery, &segments, warn);
}

static bool torn(void)
{
    return grad[CST_TILE_ELEMS] == 7;
}

/* An incomplete tile waits for its segments, and is restored as soon as all of them are there. */
START_TEST(test_waits)
{
    ck_assert_uint_eq(try(), 1);
    add(&table, TINY_TABLE);
    ck_assert_uint_eq(try(), 1);
    add(&arena, TINY_ARENA);
    arena.state = CSTE_SEGMENT_ADDING;
    ck_assert_uint_eq(try(), 1);
    ck_assert(torn());
    arena.state = CSTE_SEGMENT_READY;
    ck_assert_uint_eq(try(), 0);
    for (unsigned i = 0; i < 300; i++) {
        ck_assert_uint_eq(grad[CST_TILE_ELEMS + i], 1000 + i);
    }
    ck_assert(!cst_undo_holds(slot));
    ck_assert_uint_eq(n_warned, 0);
}
END_TEST

/* A tile that has the slot's mark is complete and does not change. */
START_TEST(test_whole)
{
    cst_table_tiles(job.table)[TILE].reduce_mark = 5;
    add(&table, TINY_TABLE);
    add(&arena, TINY_ARENA);
    ck_assert_uint_eq(try(), 0);
    ck_assert(torn());
    ck_assert(!cst_undo_holds(slot));
}
END_TEST

/* A slot that cannot be right is dropped with a message, and nothing is written. */
START_TEST(test_wrong)
{
    add(&table, TINY_TABLE);
    add(&arena, TINY_ARENA);
    switch (_i) {
    case 0:
        slot->chunk = 1;
        break;
    case 1:
        slot->start = 20000;
        break;
    case 2:
        slot->grad_held = 301;
        break;
    case 3:
        slot->kind = CST_UNDO_PARTIAL + 1;
        break;
    default:
        slot->tile = UINT64_MAX;
        break;
    }
    ck_assert_uint_eq(try(), 0);
    ck_assert_uint_eq(n_warned, 1);
    ck_assert_ptr_nonnull(strstr(last_warning.text, "undo slot 1"));
    ck_assert(torn());
    ck_assert(!cst_undo_holds(slot));
}
END_TEST

/* Nor is a block put back whose codes or exponent are outside their segment. */
START_TEST(test_wrong_block)
{
    struct cst_undo_block block = {.segment = job.ids[TINY_ARENA]};

    add(&table, TINY_TABLE);
    add(&arena, TINY_ARENA);
    *(_i == 0 ? &block.codes : &block.exponent) = UINT64_C(1) << 40;
    cst_undo_drop(slot);
    cst_undo_begin_blocks(slot, &block, 1);
    ck_assert_uint_eq(try(), 0);
    ck_assert_uint_eq(n_warned, 1);
    ck_assert_ptr_nonnull(strstr(last_warning.text, "undo slot 1"));
    ck_assert(!cst_undo_holds(slot));
}
END_TEST

/* A tile of the row of a partial is put back there, as soon as its segment is there, and not into
 * the grad row of the table. A place outside the segment is refused. */
START_TEST(test_partial)
{
    enum { ROW = 77 };
    static float row[20000];
    struct cste_segment segment = {
        .id = ROW, .state = CSTE_SEGMENT_READY, .mem = {.base = (void *)row, .bytes = sizeof row}};
    struct cst_tile tile = {.number = TILE,
                            .start = CST_TILE_ELEMS,
                            .mark = 5,
                            .n_elems = 300,
                            .table = job.ids[TINY_TABLE],
                            .row = {.segment = ROW, .offset = _i == 0 ? 0 : 4}};
    struct cst_err err;

    for (unsigned i = 0; i < 300; i++) {
        row[CST_TILE_ELEMS + i] = (float)i;
    }
    cst_undo_drop(slot);
    cst_undo_begin_accumulate(slot, &tile, row + CST_TILE_ELEMS);
    row[CST_TILE_ELEMS + 7] = 1000;
    add(&table, TINY_TABLE);
    add(&arena, TINY_ARENA);
    ck_assert_uint_eq(try(), 1);
    ck_assert_int_eq(cste_segments_add(&segments, &segment, &err), CST_OK);
    ck_assert_uint_eq(try(), 0);
    ck_assert_uint_eq(n_warned, (unsigned)_i);
    ck_assert_double_eq((double)row[CST_TILE_ELEMS + 7], _i == 0 ? 7 : 1000);
    ck_assert(torn() && !cst_undo_holds(slot));
}
END_TEST

/* A slot that is forgotten is reported. */
START_TEST(test_forget)
{
    ck_assert_uint_eq(try(), 1);
    cste_recovery_forget(&recovery, warn);
    ck_assert_uint_eq(n_warned, 1);
    ck_assert_int_eq(last_warning.status, CST_ELOST);
    ck_assert_uint_eq(try(), 0);
}
END_TEST

static struct cst_undo_slot slots[4];

/* Two threads, and two slots more; the second thread's tile is torn. */
static void use_four_slots(void)
{
    memset(slots, 0, sizeof slots);
    slots[1] = *slot;
    recovery = (struct cste_recovery){.slots = slots, .n_slots = 4, .n_team = 2};
}

static void assert_restored(void)
{
    for (unsigned i = 0; i < 300; i++) {
        ck_assert_uint_eq(grad[CST_TILE_ELEMS + i], 1000 + i);
    }
    ck_assert_uint_eq(n_warned, 0);
}

/* A tile whose segments come late is parked. The threads' slots are not looked at any more, and the
 * tile is restored when the segments come. */
START_TEST(test_park)
{
    use_four_slots();
    ck_assert_uint_eq(try(), 1);
    ck_assert(cste_recovery_park(&recovery));
    ck_assert(!cst_undo_holds(&slots[0]) && !cst_undo_holds(&slots[1]));
    ck_assert(cst_undo_holds(&slots[2]));
    slots[0].grad_held = 1; /* A thread is at work. */
    ck_assert_uint_eq(try(), 1);
    add(&table, TINY_TABLE);
    add(&arena, TINY_ARENA);
    ck_assert_uint_eq(try(), 0);
    assert_restored();
    ck_assert(cst_undo_holds(&slots[0]));
    cste_recovery_forget(&recovery, warn);
    ck_assert(cst_undo_holds(&slots[0]));
    ck_assert_uint_eq(n_warned, 0);
}
END_TEST

/* An engine that is killed while it parks a tile leaves it in both slots, from which the next one
 * restores it. */
START_TEST(test_park_killed)
{
    use_four_slots();
    slots[3] = slots[1];
    add(&table, TINY_TABLE);
    add(&arena, TINY_ARENA);
    ck_assert_uint_eq(try(), 0);
    assert_restored();
}
END_TEST

/* Where there is no room, nothing is parked, and commands must wait. */
START_TEST(test_park_full)
{
    use_four_slots();
    slots[2] = slots[3] = slots[1];
    ck_assert(!cste_recovery_park(&recovery));
    ck_assert(cst_undo_holds(&slots[1]));
    ck_assert_uint_eq(try(), 3);
}
END_TEST

/* The commands of other jobs do not wait for segments of an earlier daemon's job. What still holds
 * a tile when that daemon's jobs are settled is forgotten. */
START_TEST(test_others_go_on)
{
    uint64_t n_elems = 20000;
    const struct engine_command fill = {
        .kind = ENGINE__COMMAND_KIND__FILL, .ticket = 1, .n_dst = 1, .bytes = 100};
    struct engine_command again;
    static struct engine_proc proc;
    struct cst_undo_slot *held;
    struct tiny_job other;

    tiny_job_open(&other, 1, &n_elems, 4, 5);
    held = other.base[TINY_UNDO];
    *held = (struct cst_undo_slot){
        .kind = CST_UNDO_REDUCE, .table = 1000, .mark = 3, .n_elems = 1, .grad_held = 1};
    engine_proc_leave_unsettled();
    engine_proc_open(&proc, 2, 2, other.ids[TINY_UNDO], other.fds[TINY_UNDO],
                     other.bytes[TINY_UNDO]);
    engine_proc_must_add(&proc, other.ids[TINY_POOL], other.fds[TINY_POOL], other.bytes[TINY_POOL]);
    again = fill;
    again.dst[0].segment = other.ids[TINY_POOL];
    engine_proc_submit(&proc, &again, 1);
    ck_assert_int_eq(engine_proc_wait(&proc, 1)->status, CST_OK);
    ck_assert(!cst_undo_holds(&held[0]) && !cst_undo_holds(&held[1]));
    ck_assert(cst_undo_holds(&held[2]));
    (void)engine_proc_send(&proc, ENGINE__MSG_TYPE__ENGINE_SETTLED, NULL, -1);
    again.ticket = 2;
    engine_proc_submit(&proc, &again, 1);
    ck_assert_int_eq(engine_proc_wait(&proc, 2)->status, CST_OK);
    ck_assert(!cst_undo_holds(&held[2]));
    ck_assert_int_eq(engine_proc_close(&proc), 0);
    tiny_job_close(&other);
}
END_TEST

/* If an engine left a tile incomplete, no command runs, not even an unrelated one, before the
 * tile's segments are added and the tile is restored. */
START_TEST(test_commands_wait)
{
    uint64_t n_elems = 2000000;
    struct cst_undo_slot *held;
    static struct engine_proc proc;
    struct tiny_job other;
    uint16_t *first, before;

    tiny_job_open(&other, 1, &n_elems, 2, 5);
    first = (uint16_t *)(void *)((char *)other.base[TINY_ARENA] +
                                 tiny_job_row(&other, 0, CST_ROW_GRAD).offset);
    held = other.base[TINY_UNDO];
    before = first[0];
    *held = (struct cst_undo_slot){.kind = CST_UNDO_REDUCE,
                                   .table = other.ids[TINY_TABLE],
                                   .mark = 3,
                                   .n_elems = 1,
                                   .grads.bf16 = {before}};
    held->grad_held = 1;
    first[0] = (uint16_t)~before;
    engine_proc_open(&proc, 2, 2, other.ids[TINY_UNDO], other.fds[TINY_UNDO],
                     other.bytes[TINY_UNDO]);
    engine_proc_must_add(&proc, other.ids[TINY_TABLE], other.fds[TINY_TABLE],
                         other.bytes[TINY_TABLE]);
    engine_proc_must_add(&proc, other.ids[TINY_POOL], other.fds[TINY_POOL], other.bytes[TINY_POOL]);
    ck_assert_int_eq(kill(proc.pid, SIGSTOP), 0);
    {
        Engine__SegmentAdd add = ENGINE__SEGMENT_ADD__INIT;
        const struct engine_command fill = {.kind = ENGINE__COMMAND_KIND__FILL,
                                            .ticket = 1,
                                            .dst = {{.segment = other.ids[TINY_POOL]}},
                                            .n_dst = 1,
                                            .bytes = 100};

        add.id = other.ids[TINY_ARENA];
        add.bytes = other.bytes[TINY_ARENA];
        add.has_populate = add.populate = 1;
        (void)engine_proc_send(&proc, ENGINE__MSG_TYPE__ENGINE_SEGMENT_ADD, &add.base,
                               other.fds[TINY_ARENA]);
        engine_proc_submit(&proc, &fill, 1);
    }
    ck_assert_int_eq(kill(proc.pid, SIGCONT), 0);
    ck_assert_int_eq(engine_proc_wait(&proc, 1)->status, CST_OK);
    ck_assert_uint_eq(proc.progress_bytes, other.bytes[TINY_ARENA]);
    ck_assert_uint_eq(first[0], before);
    ck_assert(!cst_undo_holds(held));
    ck_assert_int_eq(engine_proc_close(&proc), 0);
    tiny_job_close(&other);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("recovery");
    TCase *tcase = suite_case(suite, "recovery", set_up, tear_down);

    tcase_add_test(tcase, test_waits);
    tcase_add_test(tcase, test_whole);
    tcase_add_loop_test(tcase, test_wrong, 0, 5);
    tcase_add_loop_test(tcase, test_wrong_block, 0, 2);
    tcase_add_loop_test(tcase, test_partial, 0, 2);
    tcase_add_test(tcase, test_forget);
    tcase_add_test(tcase, test_park);
    tcase_add_test(tcase, test_park_killed);
    tcase_add_test(tcase, test_park_full);
    tcase = suite_case(suite, "engine", NULL, NULL);
    tcase_add_test(tcase, test_others_go_on);
    tcase_add_test(tcase, test_commands_wait);
    return suite_run(suite);
}
