/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of groups, frozen chunks and missing gradients in the core, one rule at a time. check_micro
 * tests micro-batches. */
#include "tests/lib/suite.h"
#include "tests/unit/core_rig.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static struct rig rig;

static void teardown(void)
{
    rig_close(&rig);
}

static uint64_t io(enum cst_event_kind kind, uint32_t tensor, enum cst_row row)
{
    return rig_event(
        &rig,
        (struct cst_event){
            .kind = kind, .tensor = tensor, .row = row, .n_elems = 10, .place = {.segment = 7}});
}

/* Check that a request for @chunk is refused with @status and a message that contains @word. */
static void refused(enum cst_event_kind kind, uint32_t rank, uint32_t chunk, int status,
                    const char *word)
{
    uint64_t tag = rig_event(
        &rig,
        (struct cst_event){.kind = kind, .rank = rank, .attempt = rig.attempt, .chunk = chunk});

    ck_assert_int_eq(rig_status(&rig, tag), status);
    ck_assert_msg(strstr(rig_answer(&rig, tag)->err.text, word) != NULL, "'%s' is not in: %s", word,
                  rig_answer(&rig, tag)->err.text);
}

static void hand_in(uint32_t rank, uint32_t chunk)
{
    uint64_t lease = rig_get_grad(&rig, rank, chunk);

    ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, rank, chunk, lease)), CST_OK);
}

/* -- groups ----------------------------------------------------------------------------------- */

/* Chunk 0 belongs to all ranks, chunk 1 to ranks 0 and 1, chunk 2 to rank 2, chunk 3 to ranks 1 and
 * 2. */
static void open_groups(void)
{
    static const uint64_t ranks[] = {0, 0x3, 0x4, 0x6};

    rig_open_job(&rig, &(struct rig_job){.n_chunks = 4, .world = 3, .n_blocks = 6, .ranks = ranks});
    rig_start(&rig, 3);
}

/* A sum waits for all ranks of its group, and for no other rank. */
START_TEST(sum_waits_for_its_group)
{
    const struct cst_command *reduce;

    open_groups();
    hand_in(1, 1);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_REDUCE), 0);
    hand_in(0, 1);
    reduce = rig_command(&rig, CST_COMMAND_REDUCE, 0);
    ck_assert(reduce != NULL && reduce->chunk == 1);
    ck_assert_uint_eq(reduce->n_src, 2);
    ck_assert_uint_eq(reduce->src[0].segment, RIG_POOL_SEGMENT);
    ck_assert_uint_eq(reduce->src[1].segment, RIG_POOL_SEGMENT + 1);
    ck_assert(!reduce->accumulate);
    hand_in(2, 2); /* the only rank of the group */
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_REDUCE), 2);
    rig_drain(&rig);
    hand_in(0, 0);
    hand_in(1, 0);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_REDUCE), 0);
    hand_in(2, 0);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_REDUCE, 0)->n_src, 3);
}
END_TEST

/* A rank outside of a chunk's group can neither fetch nor hand in, and the error names the
 * group. */
START_TEST(others_are_refused)
{
    static const enum cst_event_kind kinds[] = {CST_EV_FETCH_WEIGHT, CST_EV_FETCH_GRAD,
                                                CST_EV_HAND_IN, CST_EV_PREFETCH};

    open_groups();
    for (unsigned i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        refused(kinds[i], 2, 1, CST_EINVAL, "group 1 (ranks 0, 1): rank 2");
        refused(kinds[i], 0, 2, CST_EINVAL, "group 2 (rank 2): rank 0");
    }
    ck_assert_uint_eq(rig.n_commands, 0);
    hand_in(0, 1); /* the group goes on */
}
END_TEST

/* A step waits for all ranks, including those outside of the groups that have handed in. The norm
 * covers all chunks, and each chunk is updated. */
START_TEST(step_is_everybodys)
{
    uint64_t tag[3];

    open_groups();
    hand_in(0, 1);
    hand_in(1, 1);
    rig_drain(&rig);
    tag[0] = rig_step(&rig, 0);
    tag[1] = rig_step(&rig, 1);
    rig_drain(&rig);
    ck_assert(rig_waits(&rig, tag[0]) && rig_waits(&rig, tag[1]));
    tag[2] = rig_step(&rig, 2);
    /* Zeros for chunks that no rank handed in. */
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_REDUCE), 3);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_REDUCE, 0)->n_src, 0);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_NORM), 0);
    while (rig_count(&rig, CST_COMMAND_REDUCE) > 0) {
        rig_done(&rig, rig_command(&rig, CST_COMMAND_REDUCE, 0)->ticket, CST_OK, NULL);
    }
    rig_done(&rig, rig_command(&rig, CST_COMMAND_NORM, 0)->ticket, CST_OK, NULL);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_UPDATE), 4);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(rig_status(&rig, tag[i]), CST_OK);
    }
    rig_drain(&rig);
}
END_TEST

/* A death ends the attempt for all ranks, including those outside of the dead rank's groups. */
START_TEST(death_is_everybodys)
{
    uint64_t tag;

    open_groups();
    tag = rig_step(&rig, 0);
    (void)rig_rank_event(&rig, CST_EV_DEAD, 2);
    ck_assert_int_eq(rig_status(&rig, tag), CST_EPEERDIED);
}
END_TEST

/* If the pool lacks blocks, a gradient that waits for the other rank of its group is spilled, and
 * the sum adds it from the grad row. */
START_TEST(group_is_staged)
{
    static const uint64_t ranks[] = {0x6, 0x6, 0x6, 0};
    const struct cst_command *reduce;
    uint64_t tag;

    rig_open_job(&rig, &(struct rig_job){.n_chunks = 4, .world = 3, .n_blocks = 3, .ranks = ranks});
    rig_start(&rig, 3);
    for (uint32_t c = 0; c < 3; c++) {
        hand_in(2, c);
    }
    tag = rig_fetch_grad(&rig, 2, 3);
    ck_assert(rig_waits(&rig, tag));
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_COPY), 1);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    hand_in(1, 2); /* the last gradient of rank 2 was spilled */
    reduce = rig_command(&rig, CST_COMMAND_REDUCE, 0);
    ck_assert(reduce != NULL && reduce->chunk == 2 && reduce->n_src == 2);
    ck_assert_uint_eq(reduce->src[0].segment, RIG_POOL_SEGMENT + 1);
    ck_assert_uint_lt(reduce->src[1].segment, RIG_POOL_SEGMENT);
    rig_drain(&rig);
}
END_TEST

/* An expert without tokens is neither fetched nor handed in, by some or all ranks. The step is
 * complete, and the expert is no surprise in the next step. */
START_TEST(idle_expert_is_zero)
{
    static const uint32_t patterns[] = {CST_PATTERN_SHARD, CST_PATTERN_EXPERT, CST_PATTERN_EXPERT};
    const struct cst_command *reduce;
    uint64_t tag = 0;

    rig_open_job(&rig,
                 &(struct rig_job){.n_chunks = 3, .world = 3, .n_blocks = 6, .patterns = patterns});
    rig_start(&rig, 3);
    hand_in(1, 1);
    for (uint32_t rank = 0; rank < 3; rank++) {
        hand_in(rank, 0);
        tag = rig_step(&rig, rank);
    }
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_REDUCE), 3);
    for (unsigned i = 0; (reduce = rig_command(&rig, CST_COMMAND_REDUCE, i)) != NULL; i++) {
        ck_assert_uint_eq(reduce->n_src, reduce->chunk == 0 ? 3 : reduce->chunk == 1 ? 1 : 0);
    }
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    rig_whole_step(&rig, 3, 3);
}
END_TEST

/* -- frozen ------------------------------------------------------------------------------------ */

/* Chunk 1 is frozen. */
static void open_frozen(bool with_base)
{
    static const uint32_t patterns[] = {CST_PATTERN_SHARD, CST_PATTERN_FROZEN, CST_PATTERN_SHARD};

    rig_open_job(&rig, &(struct rig_job){.n_chunks = 3,
                                         .world = 2,
                                         .n_blocks = 6,
                                         .patterns = patterns,
                                         .with_base = with_base});
    rig_start(&rig, 2);
}

/* A frozen chunk has no gradient to fetch or hand in, no sum and no update, and the norm does not
 * wait for it. Its cached weights stay valid when others are updated. */
START_TEST(frozen_is_not_trained)
{
    uint64_t tag;

    open_frozen(false);
    refused(CST_EV_FETCH_GRAD, 0, 1, CST_EINVAL, "frozen");
    refused(CST_EV_HAND_IN, 0, 1, CST_EINVAL, "frozen");
    (void)rig_release(&rig, 0, 1, rig_get(&rig, 0, 1));
    (void)rig_release(&rig, 0, 0, rig_get(&rig, 0, 0));
    (void)rig_step(&rig, 0);
    tag = rig_step(&rig, 1);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_REDUCE), 2);
    while (rig_count(&rig, CST_COMMAND_REDUCE) > 0) {
        ck_assert_uint_ne(rig_command(&rig, CST_COMMAND_REDUCE, 0)->chunk, 1);
        rig_done(&rig, rig_command(&rig, CST_COMMAND_REDUCE, 0)->ticket, CST_OK, NULL);
    }
    rig_done(&rig, rig_command(&rig, CST_COMMAND_NORM, 0)->ticket, CST_OK, NULL);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_UPDATE), 2);
    ck_assert_uint_ne(rig_command(&rig, CST_COMMAND_UPDATE, 0)->chunk, 1);
    ck_assert_uint_ne(rig_command(&rig, CST_COMMAND_UPDATE, 1)->chunk, 1);
    tag = rig_fetch(&rig, 0, 1);
    ck_assert(rig_answer(&rig, tag)->hit);
    ck_assert(rig_waits(&rig, rig_fetch(&rig, 0, 0)));
    rig_drain(&rig);
}
END_TEST

/* A job with frozen chunks only can step: there are no sums, and the norm is zero. */
START_TEST(all_frozen)
{
    static const uint32_t patterns[] = {CST_PATTERN_FROZEN};
    uint64_t tag;

    rig_open_job(&rig,
                 &(struct rig_job){.n_chunks = 1, .world = 1, .n_blocks = 2, .patterns = patterns});
    rig_start(&rig, 1);
    tag = rig_step(&rig, 0);
    ck_assert_uint_eq(rig.n_commands, 1);
    rig_done(&rig, rig_command(&rig, CST_COMMAND_NORM, 0)->ticket, CST_OK, NULL);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    ck_assert_uint_eq(rig.n_commands, 0);
}
END_TEST

/* The weights of a frozen chunk can be read. It has no states or gradients to read. */
START_TEST(frozen_rows_are_read)
{
    uint64_t tag;

    open_frozen(false);
    ck_assert_int_eq(rig_status(&rig, io(CST_EV_READ, 1, CST_ROW_MASTER)), CST_EUNSUPPORTED);
    ck_assert_int_eq(rig_status(&rig, io(CST_EV_READ, 1, CST_ROW_GRAD)), CST_EUNSUPPORTED);
    ck_assert_int_eq(rig_status(&rig, io(CST_EV_READ, 1, CST_ROW_MOMENT)), CST_EUNSUPPORTED);
    ck_assert_int_eq(rig_status(&rig, io(CST_EV_WRITE, 1, CST_ROW_MOMENT + 1)), CST_EUNSUPPORTED);
    tag = io(CST_EV_READ, 1, CST_ROW_WEIGHT);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_COPY), 1);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    ck_assert(rig_waits(&rig, io(CST_EV_READ, 0, CST_ROW_MASTER))); /* the chunk is trained */
    rig_drain(&rig);
}
END_TEST

/* A write of master weights to a frozen tensor sets its weights and nothing else. */
START_TEST(frozen_master_sets_weights)
{
    const struct cst_layout_row *row;
    const struct cst_command *convert;
    uint64_t tag;

    open_frozen(false);
    tag = io(CST_EV_WRITE, 1, CST_ROW_MASTER);
    row = &rig.layout.chunks[1].rows[CST_ROW_WEIGHT];
    convert = rig_command(&rig, CST_COMMAND_ROUND, 0);
    ck_assert(convert != NULL);
    ck_assert_uint_eq(convert->n_dst, 1);
    ck_assert_uint_eq(convert->dst[0].segment, RIG_ARENA_SEGMENT + row->segment);
    ck_assert_uint_eq(convert->dst[0].offset, row->offset);
    ck_assert_uint_eq(convert->n_elems, 10);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    (void)io(CST_EV_WRITE, 0, CST_ROW_MASTER);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_SET_MASTER, 0)->n_dst, 2);
    rig_drain(&rig);
}
END_TEST

/* The base job's chunks can be read like others, but never written. */
START_TEST(base_is_not_written)
{
    uint64_t tag;

    open_frozen(true);
    ck_assert_int_eq(rig_status(&rig, io(CST_EV_WRITE, 1, CST_ROW_MASTER)), CST_EDENIED);
    tag = io(CST_EV_WRITE, 1, CST_ROW_WEIGHT);
    ck_assert_int_eq(rig_status(&rig, tag), CST_EDENIED);
    ck_assert(strstr(rig_answer(&rig, tag)->err.text, "'t1'") != NULL);
    ck_assert_uint_eq(rig.n_commands, 0);
    ck_assert(rig_waits(&rig, io(CST_EV_READ, 1, CST_ROW_WEIGHT)));
    (void)rig_get(&rig, 0, 1);
    ck_assert(rig_waits(&rig, rig_fetch(&rig, 0, 0)));
    rig_drain(&rig);
}
END_TEST

/* In the job table a frozen chunk has the place of its weights and no spans. The spans of other
 * chunks are consecutive. */
START_TEST(table_of_frozen)
{
    struct cst_table_header size;
    struct cst_table_header *table;
    const uint32_t segments[8] = {11, 12, 13, 14, 15, 16, 17, 18};
    struct cst_core_config config = {
        .model = &rig.model, .layout = &rig.layout, .arena_segments = segments};

    open_frozen(false);
    cst_table_size(&size, 3, 2, rig.layout.n_tiles);
    table = calloc(1, size.total_bytes);
    ck_assert_ptr_nonnull(table);
    *table = size;
    cst_core_write_table(&config, table);
    ck_assert_uint_eq(table->grad_bytes, 2);
    ck_assert_uint_eq(cst_table_chunks(table)[1].n_spans, 0);
    ck_assert_uint_ne(cst_table_chunks(table)[1].rows[CST_ROW_WEIGHT].segment, CST_PLACE_NONE);
    for (int r = CST_ROW_GRAD; r < CST_ROW_COUNT; r++) {
        ck_assert_uint_eq(cst_table_chunks(table)[1].rows[r].segment, CST_PLACE_NONE);
        ck_assert_uint_ne(cst_table_chunks(table)[2].rows[r].segment, CST_PLACE_NONE);
    }
    ck_assert_uint_eq(cst_table_chunks(table)[0].first_span, 0);
    ck_assert_uint_eq(cst_table_chunks(table)[2].first_span, 1);
    ck_assert_uint_eq(cst_table_spans(table)[1].n_elems, rig.model.tensors[2].n_elems);
    ck_assert_uint_eq(cst_table_spans(table)[1].first_tile, rig.model.tensors[2].first_tile);
    free(table);
}
END_TEST

/* -- explain ----------------------------------------------------------------------------------- */

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

/* Explain says which ranks hold a chunk, with which pattern, and for which ranks it waits. It does
 * not mention other ranks. */
START_TEST(explain_says_whose)
{
    open_groups();
    hand_in(2, 3);
    ck_assert(says(3, "pattern shard"));
    ck_assert(says(3, "group 3: ranks 1, 2"));
    ck_assert(says(3, "come from 1 of 2 ranks; rank 1 is missing"));
    ck_assert(says(3, "rank 2: gradient in block"));
    ck_assert(!says(3, "rank 0:"));
    ck_assert(says(2, "group 2: rank 2"));
}
END_TEST

START_TEST(explain_says_frozen)
{
    open_frozen(true);
    ck_assert(says(1, "pattern frozen"));
    ck_assert(says(1, "frozen: weights only"));
    ck_assert(says(1, "they belong to the base job"));
    ck_assert(!says(1, "its states are current"));
    ck_assert(!says(0, "frozen"));
}
END_TEST

/* -- numbers ---------------------------------------------------------------------------------- */

/* The numbers of sums skip those whose low half is 0, because in a tile's mark 0 means none. */
START_TEST(marks)
{
    rig_open_job(&rig, &(struct rig_job){.n_chunks = 1,
                                         .world = 1,
                                         .n_blocks = 4,
                                         .first_ticket = (1ull << 32) - (unsigned)_i});
    rig_start(&rig, 1);
    for (int step = 0; step < 4; step++) {
        hand_in(0, 0);
        ck_assert(cst_table_is_mark(rig_only(&rig, CST_COMMAND_REDUCE).mark));
        rig_drain(&rig);
        (void)rig_step(&rig, 0);
        rig_drain(&rig);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("schedule");
    TCase *groups = suite_case(s, "groups", NULL, teardown);
    TCase *frozen = suite_case(s, "frozen", NULL, teardown);
    TCase *explain = suite_case(s, "explain", NULL, teardown);
    TCase *numbers = suite_case(s, "numbers", NULL, teardown);

    tcase_add_loop_test(numbers, marks, 1, 9);
    tcase_add_test(groups, sum_waits_for_its_group);
    tcase_add_test(groups, others_are_refused);
    tcase_add_test(groups, step_is_everybodys);
    tcase_add_test(groups, death_is_everybodys);
    tcase_add_test(groups, group_is_staged);
    tcase_add_test(groups, idle_expert_is_zero);
    tcase_add_test(frozen, frozen_is_not_trained);
    tcase_add_test(frozen, all_frozen);
    tcase_add_test(frozen, frozen_rows_are_read);
    tcase_add_test(frozen, frozen_master_sets_weights);
    tcase_add_test(frozen, base_is_not_written);
    tcase_add_test(frozen, table_of_frozen);
    tcase_add_test(explain, explain_says_whose);
    tcase_add_test(explain, explain_says_frozen);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
