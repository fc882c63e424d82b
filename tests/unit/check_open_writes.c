/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of offload/core/open_writes: writes of states that the death of a daemon has cut off are
 * awaited again, and what they may have torn is not read, saved or trained with meanwhile. */
#include "offload/core/open_writes.h"

#include "tests/lib/suite.h"
#include "tests/unit/core_rig.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { N_CHUNKS = 2, WORLD = 2, PIECE = 512 };

static struct rig rig;
static struct cst_table_header *table;
static struct cst_core_record record;
static struct cst_err err;
static enum cst_moments moments;

static void open_job(void)
{
    rig_open_job(&rig, &(struct rig_job){.n_chunks = N_CHUNKS,
                                         .world = WORLD,
                                         .n_blocks = 2 * N_CHUNKS,
                                         .moments = moments});
}

/* A job that has begun and rests between two steps. */
static void live(void)
{
    struct cst_table_header header;

    cst_table_size(&header, N_CHUNKS, N_CHUNKS, N_CHUNKS);
    table = calloc(1, header.total_bytes);
    ck_assert_ptr_nonnull(table);
    *table = header;
    open_job();
    rig_start(&rig, WORLD);
}

static void teardown(void)
{
    rig_close(&rig);
    free(table);
    moments = CST_MOMENTS_FP32;
}

/* Let rank @rank write elements of @row of tensor 0. */
static uint64_t write_as(uint32_t rank, enum cst_row row, uint64_t first, uint64_t n)
{
    return rig_event(&rig,
                     (struct cst_event){.kind = CST_EV_WRITE,
                                        .rank = rank,
                                        .row = row,
                                        .first = first,
                                        .n_elems = n,
                                        .place = {RIG_STAGING_SEGMENT, 0, RIG_STAGING_OFFSET}});
}

static int may_revive(void)
{
    cst_core_record(rig.core, &record);
    rig_close(&rig);
    open_job();
    return cst_core_may_revive(rig.core, &record, table, &err);
}

/* The daemon dies now, and the next one goes on. */
static void die(void)
{
    ck_assert_msg(may_revive() == CST_OK, "%s", err.text);
    (void)rig_event(&rig,
                    (struct cst_event){.kind = CST_EV_REVIVE, .record = &record, .table = table});
    for (uint32_t r = 0; r < WORLD; r++) {
        (void)rig_rank_event(&rig, CST_EV_ATTACH, r);
    }
}

static uint32_t n_left(void)
{
    return rig_stats(&rig).n_writes_left;
}

static void must_refuse(uint64_t tag, int status, const char *words)
{
    const struct cst_reply *reply = rig_reply(&rig, tag);

    ck_assert_ptr_nonnull(reply);
    ck_assert_int_eq(reply->status, status);
    ck_assert_msg(strstr(reply->err.text, words) != NULL, "%s", reply->err.text);
}

/* Until the write is repeated, its chunk cannot be read, the job cannot be saved, the rank cannot
 * sync without it, and the others wait. */
START_TEST(awaited)
{
    uint64_t sync;

    live();
    (void)write_as(1, CST_ROW_MASTER, 0, PIECE);
    (void)write_as(1, CST_ROW_MOMENT, 0, PIECE);
    die();
    ck_assert_uint_eq(n_left(), 2);
    must_refuse(rig_io(&rig, CST_EV_READ, 0, CST_ROW_MASTER, 0, 1), CST_EBUSY,
                "rank 1 was writing states of chunk 0 when the daemon ended");
    ck_assert(rig_waits(&rig, rig_io(&rig, CST_EV_READ, 1, CST_ROW_MASTER, 0, 1)));
    rig_drain(&rig);
    must_refuse(rig_rank_event(&rig, CST_EV_SAVE, 0), CST_EBUSY, "saved when it has written");
    sync = rig_rank_event(&rig, CST_EV_SYNC, 0);
    must_refuse(rig_rank_event(&rig, CST_EV_SYNC, 1), CST_ELOST, "has not written them again");
    ck_assert(rig_waits(&rig, sync));
    (void)write_as(1, CST_ROW_MASTER, 0, PIECE);
    rig_drain(&rig);
    ck_assert_uint_eq(n_left(), 1);
    must_refuse(rig_rank_event(&rig, CST_EV_SYNC, 1), CST_ELOST, "has not written them again");
    (void)write_as(1, CST_ROW_MOMENT, 0, PIECE);
    ck_assert_uint_eq(n_left(), 1); /* It is under way. */
    rig_drain(&rig);
    ck_assert_uint_eq(n_left(), 0);
    ck_assert_int_eq(rig_status(&rig, rig_rank_event(&rig, CST_EV_SYNC, 1)), CST_OK);
    ck_assert_int_eq(rig_status(&rig, sync), CST_OK);
    ck_assert(rig_waits(&rig, rig_io(&rig, CST_EV_READ, 0, CST_ROW_MASTER, 0, 1)));
    rig_drain(&rig);
}
END_TEST

/* A rank that never comes back does not let the others begin. */
START_TEST(nobody_repeats)
{
    uint64_t sync;

    live();
    (void)write_as(1, CST_ROW_MASTER, 0, PIECE);
    die();
    (void)rig_rank_event(&rig, CST_EV_DEAD, 1);
    (void)rig_rank_event(&rig, CST_EV_ATTACH, 1);
    sync = rig_rank_event(&rig, CST_EV_SYNC, 0);
    must_refuse(rig_rank_event(&rig, CST_EV_SYNC, 1), CST_ELOST, "load the last checkpoint");
    ck_assert(rig_waits(&rig, sync));
    /* Any rank can write the range. */
    (void)write_as(0, CST_ROW_MASTER, 0, RIG_CHUNK_ELEMS);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, rig_rank_event(&rig, CST_EV_SYNC, 1)), CST_OK);
    ck_assert_int_eq(rig_status(&rig, sync), CST_OK);
}
END_TEST

/* A write that fails repairs nothing, and neither does one of another row or range. */
START_TEST(not_repeated)
{
    live();
    (void)write_as(0, CST_ROW_MOMENT, PIECE, PIECE);
    die();
    (void)write_as(0, CST_ROW_MOMENT, PIECE, PIECE);
    rig_done(&rig, rig.commands[0].ticket, CST_EIO, "a fault");
    (void)write_as(0, CST_ROW_MOMENT + 1, PIECE, PIECE);
    (void)write_as(0, CST_ROW_MOMENT, 0, PIECE);
    (void)write_as(0, CST_ROW_MOMENT, 2 * PIECE, PIECE);
    (void)write_as(0, CST_ROW_MOMENT, PIECE + CST_MX8_BLOCK, PIECE - 2 * CST_MX8_BLOCK);
    rig_drain(&rig);
    ck_assert_uint_eq(n_left(), 1);
}
END_TEST

/* A write can be repeated in other pieces, from its beginning or its end on, also if the daemon
 * dies again in between. */
START_TEST(in_pieces)
{
    live();
    (void)write_as(0, CST_ROW_MOMENT, 0, RIG_CHUNK_ELEMS);
    die();
    for (uint64_t at = 0; at < RIG_CHUNK_ELEMS; at += PIECE) {
        ck_assert_uint_ge(n_left(), 1);
        (void)write_as(0, CST_ROW_MOMENT, _i == 0 ? at : RIG_CHUNK_ELEMS - PIECE - at, PIECE);
        if (at == (uint64_t)3 * PIECE) {
            die(); /* This piece is left, too. */
            ck_assert_uint_eq(n_left(), 2);
            (void)write_as(0, CST_ROW_MOMENT, _i == 0 ? at : RIG_CHUNK_ELEMS - PIECE - at, PIECE);
        }
        rig_drain(&rig);
    }
    ck_assert_uint_eq(n_left(), 0);
}
END_TEST

/* Of moments in blocks, a piece that ends within a block repairs the whole blocks alone. */
START_TEST(blocks)
{
    moments = CST_MOMENTS_MX8;
    live();
    (void)write_as(0, CST_ROW_MOMENT, 0, RIG_CHUNK_ELEMS);
    die();
    (void)write_as(0, CST_ROW_MOMENT, 0, PIECE + 5);
    (void)write_as(0, CST_ROW_MOMENT, PIECE + 5, RIG_CHUNK_ELEMS - PIECE - 5);
    rig_drain(&rig);
    ck_assert_uint_eq(n_left(), 1);
    (void)write_as(0, CST_ROW_MOMENT, PIECE, RIG_CHUNK_ELEMS - PIECE);
    rig_drain(&rig);
    ck_assert_uint_eq(n_left(), 0);
}
END_TEST

/* What cannot be repeated: a part of a block, more writes than can be recorded, and a record of a
 * write that does not exist. */
START_TEST(refused)
{
    moments = CST_MOMENTS_MX8;
    live();
    (void)write_as(0, CST_ROW_MOMENT, 0, PIECE + 5);
    ck_assert_int_eq(may_revive(), CST_ELOST);
    ck_assert_ptr_nonnull(strstr(err.text, "within a block of 32 elements"));
    rig_start(&rig, WORLD);
    for (uint64_t i = 0; i <= CST_CORE_MAX_OPEN_WRITES; i++) {
        (void)write_as(0, CST_ROW_MASTER, i, 1);
    }
    ck_assert_int_eq(may_revive(), CST_ELOST);
    ck_assert_ptr_nonnull(
        strstr(err.text, "65 writes of its states were under way, and only 64 of them"));
    rig_start(&rig, WORLD);
    (void)write_as(0, CST_ROW_MASTER, 0, PIECE);
    ck_assert_int_eq(may_revive(), CST_OK);
    record.writes[0].at = RIG_CHUNK_ELEMS;
    ck_assert_int_eq(cst_core_may_revive(rig.core, &record, table, &err), CST_ELOST);
    ck_assert_ptr_nonnull(strstr(err.text, "which does not exist"));
    record.writes[0] = (struct cst_open_write){.chunk = N_CHUNKS, .n_elems = 1};
    ck_assert_int_eq(cst_core_may_revive(rig.core, &record, table, &err), CST_ELOST);
}
END_TEST

/* The end of a write that found no place in the list, and of one before it. */
START_TEST(full_list)
{
    live();
    for (uint64_t i = 0; i < CST_CORE_MAX_OPEN_WRITES + 3; i++) {
        (void)write_as(0, CST_ROW_MASTER, i, 1);
    }
    for (int i = 0; i < 3; i++) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    cst_core_record(rig.core, &record);
    ck_assert_uint_eq(record.n_writes, CST_CORE_MAX_OPEN_WRITES);
    ck_assert_uint_eq(record.writes[CST_CORE_MAX_OPEN_WRITES - 4].n_elems, 1);
    ck_assert_uint_eq(record.writes[CST_CORE_MAX_OPEN_WRITES - 3].n_elems, 0);
    rig_drain(&rig);
    ck_assert_int_eq(may_revive(), CST_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("open_writes");
    TCase *tcase = suite_case(suite, "core", NULL, teardown);

    tcase_add_test(tcase, awaited);
    tcase_add_test(tcase, nobody_repeats);
    tcase_add_test(tcase, not_repeated);
    tcase_add_loop_test(tcase, in_pieces, 0, 2);
    tcase_add_test(tcase, blocks);
    tcase_add_test(tcase, refused);
    tcase_add_test(tcase, full_list);
    return suite_run(suite);
}
