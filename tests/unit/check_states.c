/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of states in the core: reads and writes, Explain, and the job table. */
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

static uint64_t io(enum cst_event_kind kind, uint32_t tensor, enum cst_row row, uint64_t first,
                   uint64_t n)
{
    return rig_io(&rig, kind, tensor, row, first, n);
}

static const struct cst_layout_row *row_of(uint32_t chunk, enum cst_row row)
{
    return &rig.layout.chunks[chunk].rows[row];
}

/* A read copies the requested elements from their place in the row, and is answered when the copy
 * is done. */
START_TEST(read_copies)
{
    const struct cst_command *copy;
    uint64_t tag;

    rig_open(&rig, 4, 1, 3, 0);
    tag = io(CST_EV_READ, 2, CST_ROW_MOMENT, 10, 7);
    copy = rig_command(&rig, CST_COMMAND_COPY, 0);
    ck_assert_ptr_nonnull(copy);
    ck_assert_uint_eq(copy->src[0].segment, RIG_ARENA_SEGMENT + row_of(2, CST_ROW_MOMENT)->segment);
    ck_assert_uint_eq(copy->src[0].offset, row_of(2, CST_ROW_MOMENT)->offset + 40);
    ck_assert_uint_eq(copy->dst[0].segment, RIG_STAGING_SEGMENT);
    ck_assert_uint_eq(copy->dst[0].offset, 128);
    ck_assert_uint_eq(copy->bytes, 28);
    ck_assert(rig_waits(&rig, tag));
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
}
END_TEST

/* Tensors, rows and ranges that do not exist are refused, and so are writes of gradients. */
START_TEST(bad_ranges)
{
    rig_open(&rig, 4, 1, 3, 0);
    ck_assert_int_eq(rig_status(&rig, io(CST_EV_READ, 4, CST_ROW_WEIGHT, 0, 1)), CST_EINVAL);
    ck_assert_int_eq(rig_status(&rig, io(CST_EV_READ, 0, CST_ROW_COUNT, 0, 1)), CST_EINVAL);
    ck_assert_int_eq(rig_status(&rig, io(CST_EV_READ, 0, CST_ROW_WEIGHT, 0, 0)), CST_EINVAL);
    ck_assert_int_eq(rig_status(&rig, io(CST_EV_READ, 0, CST_ROW_WEIGHT, RIG_CHUNK_ELEMS, 1)),
                     CST_EINVAL);
    ck_assert_int_eq(rig_status(&rig, io(CST_EV_READ, 0, CST_ROW_WEIGHT, 1, RIG_CHUNK_ELEMS)),
                     CST_EINVAL);
    ck_assert_int_eq(rig_status(&rig, io(CST_EV_READ, 0, CST_ROW_WEIGHT, 2, UINT64_MAX)),
                     CST_EINVAL);
    ck_assert_int_eq(rig_status(&rig, io(CST_EV_WRITE, 0, CST_ROW_GRAD, 0, 1)), CST_EINVAL);
    ck_assert_uint_eq(rig.n_commands, 0);
}
END_TEST

/* One command writes master weights, the weights and cleared moments. Other rows are written by a
 * copy. */
START_TEST(write_master)
{
    static const enum cst_row rows[] = {CST_ROW_MASTER, CST_ROW_WEIGHT, CST_ROW_MOMENT,
                                        CST_ROW_MOMENT + 1};
    const struct cst_command *convert;
    uint64_t tag;

    rig_open(&rig, 4, 1, 3, 0);
    tag = io(CST_EV_WRITE, 1, CST_ROW_MASTER, 5, 100);
    convert = rig_command(&rig, CST_COMMAND_SET_MASTER, 0);
    ck_assert_ptr_nonnull(convert);
    ck_assert_uint_eq(convert->n_elems, 100);
    ck_assert_uint_eq(convert->n_dst, 4);
    ck_assert(!convert->from_bf16);
    for (int i = 0; i < 4; i++) {
        ck_assert_uint_eq(convert->dst[i].offset,
                          row_of(1, rows[i])->offset + 5 * (i == 1 ? 2u : 4u));
    }
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    (void)io(CST_EV_WRITE, 1, CST_ROW_WEIGHT, 0, 3);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_COPY, 0)->bytes, 6);
    rig_drain(&rig);
}
END_TEST

/* Destinations of a write of master weights of tensor 1. */
static uint32_t master_rows(void)
{
    uint64_t tag = io(CST_EV_WRITE, 1, CST_ROW_MASTER, 0, RIG_CHUNK_ELEMS);
    uint32_t n = rig_command(&rig, CST_COMMAND_SET_MASTER, 0)->n_dst;

    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    return n;
}

/* Moments in new memory are not cleared, because they are zero, until moments were written there.
 * Once the job has begun, a write of master weights leaves moments alone. */
START_TEST(new_moments_are_zero)
{
    rig_open_job(
        &rig, &(struct rig_job){.n_chunks = 4, .world = 1, .n_blocks = 4, .arenas_are_new = true});
    ck_assert_uint_eq(master_rows(), 2);
    ck_assert_uint_eq(master_rows(), 2);
    if (_i == 0) {
        (void)io(CST_EV_WRITE, 1, CST_ROW_MOMENT, 7, 1);
        ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_COPY, 0)->n_dst, 1);
        rig_drain(&rig);
        ck_assert_uint_eq(master_rows(), 4);
    }
    rig_start(&rig, 1);
    rig_whole_step(&rig, 4, 1);
    rig_drain(&rig);
    ck_assert_uint_eq(master_rows(), 2);
}
END_TEST

static uint64_t io_bf16(enum cst_event_kind kind, uint32_t tensor, enum cst_row row)
{
    return rig_event(&rig, (struct cst_event){.kind = kind,
                                              .tensor = tensor,
                                              .row = row,
                                              .n_elems = 100,
                                              .bf16 = true,
                                              .place = {RIG_STAGING_SEGMENT, 0, 0}});
}

/* Master weights can be written from bf16. Other rows cannot, and no row is read so. */
START_TEST(write_from_bf16)
{
    const struct cst_command *convert;
    uint64_t tag;

    rig_open(&rig, 4, 1, 3, 0);
    tag = io_bf16(CST_EV_WRITE, 1, CST_ROW_MASTER);
    convert = rig_command(&rig, CST_COMMAND_SET_MASTER, 0);
    ck_assert_ptr_nonnull(convert);
    ck_assert(convert->from_bf16);
    ck_assert_uint_eq(convert->n_elems, 100);
    ck_assert_uint_eq(convert->n_dst, 4);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    ck_assert_int_eq(rig_status(&rig, io_bf16(CST_EV_READ, 1, CST_ROW_MASTER)), CST_EINVAL);
    ck_assert_int_eq(rig_status(&rig, io_bf16(CST_EV_WRITE, 1, CST_ROW_WEIGHT)), CST_EINVAL);
    ck_assert_int_eq(rig_status(&rig, io_bf16(CST_EV_WRITE, 1, CST_ROW_MOMENT)), CST_EINVAL);
    ck_assert_uint_eq(rig.n_commands, 0);
}
END_TEST

/* Open a job of a frozen tensor and of one whose states are on an accelerator. */
static void open_with_device_states(void)
{
    static const uint32_t patterns[] = {CST_PATTERN_FROZEN, CST_PATTERN_SHARD};
    const struct cst_core_device_reservation reservation = {
        .engine = 3, .segment = 400, .bytes = 1 << 20};
    const struct cst_layout_device device = {
        .engine = 3, .bytes = 1 << 20, .grain = 8192, .reservation_bytes = reservation.bytes};

    rig_open_job(&rig, &(struct rig_job){.n_chunks = 2,
                                         .world = 1,
                                         .n_blocks = 4,
                                         .patterns = patterns,
                                         .reservations = &reservation,
                                         .n_reservations = 1,
                                         .device = &device});
    ck_assert_uint_ne(rig.layout.chunks[1].tier, 0);
}

/* Moments on an accelerator are cleared, too, by a write of master weights before the job has
 * begun, and stay afterwards. */
START_TEST(write_master_on_device)
{
    open_with_device_states();
    (void)io(CST_EV_WRITE, 1, CST_ROW_MASTER, 0, 100);
    ck_assert_ptr_nonnull(rig_command(&rig, CST_COMMAND_FILL, 1));
    rig_drain(&rig);
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_RESTORE});
    (void)io(CST_EV_WRITE, 1, CST_ROW_MASTER, 0, 100);
    ck_assert_ptr_nonnull(rig_command(&rig, CST_COMMAND_COPY, 0));
    ck_assert_ptr_null(rig_command(&rig, CST_COMMAND_FILL, 0));
    rig_drain(&rig);
}
END_TEST

/* Frozen tensors have no master weights, and the engines of accelerators do not convert them. */
START_TEST(write_from_bf16_refused)
{
    open_with_device_states();
    for (uint32_t t = 0; t < 2; t++) {
        ck_assert_int_eq(rig_status(&rig, io_bf16(CST_EV_WRITE, t, CST_ROW_MASTER)),
                         CST_EUNSUPPORTED);
    }
    ck_assert_uint_eq(rig.n_commands, 0);
}
END_TEST

/* Two writes to one chunk are executed one after the other. */
START_TEST(writes_are_chained)
{
    rig_open(&rig, 4, 1, 3, 0);
    (void)io(CST_EV_WRITE, 1, CST_ROW_MASTER, 0, 100);
    (void)io(CST_EV_WRITE, 1, CST_ROW_MOMENT, 0, 100);
    (void)io(CST_EV_WRITE, 2, CST_ROW_MOMENT, 0, 100);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_COPY, 0)->n_after, 1);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_COPY, 0)->after[0],
                      rig_command(&rig, CST_COMMAND_SET_MASTER, 0)->ticket);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_COPY, 1)->n_after, 0);
    rig_drain(&rig);
}
END_TEST

/* States can be written between steps only: after a rank has fetched or asked for the step a write
 * is refused, and after the commit it is accepted again. */
START_TEST(writes_between_steps)
{
    uint64_t held;

    rig_open(&rig, 4, 1, 4, 0);
    rig_start(&rig, 1);
    ck_assert(rig_waits(&rig, io(CST_EV_WRITE, 1, CST_ROW_MASTER, 0, 1)));
    rig_drain(&rig);
    held = rig_get(&rig, 0, 0);
    ck_assert_int_eq(rig_status(&rig, io(CST_EV_WRITE, 1, CST_ROW_MASTER, 0, 1)), CST_EBUSY);
    (void)rig_release(&rig, 0, 0, held);
    ck_assert_int_eq(rig_status(&rig, io(CST_EV_WRITE, 1, CST_ROW_MASTER, 0, 1)), CST_EBUSY);
    (void)rig_step(&rig, 0);
    rig_drain(&rig);
    ck_assert(rig_waits(&rig, io(CST_EV_WRITE, 1, CST_ROW_MASTER, 0, 1)));
    rig_drain(&rig);
    (void)rig_get(&rig, 0, 0);
    (void)rig_rank_event(&rig, CST_EV_SYNC,
                         0); /* the attempt is over, and a new one has not begun to fetch */
    ck_assert(rig_waits(&rig, io(CST_EV_WRITE, 1, CST_ROW_MASTER, 0, 1)));
    rig_drain(&rig);
}
END_TEST

/* Written weights replace cached ones. A fetch waits until all writes to its chunk are done. */
START_TEST(written_weights_are_fetched)
{
    struct cst_event hint = {.kind = CST_EV_PREFETCH, .chunk = 1};
    uint64_t tag;

    rig_open(&rig, 4, 1, 4, 0);
    rig_start(&rig, 1);
    hint.attempt = rig.attempt;
    (void)rig_event(&rig, hint);
    rig_drain(&rig);
    (void)io(CST_EV_WRITE, 1, CST_ROW_MASTER, 0, 1);
    (void)io(CST_EV_WRITE, 1, CST_ROW_WEIGHT, 0, 1);
    tag = rig_fetch(&rig, 0, 1);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_COPY), 1);
    rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    ck_assert(rig_waits(&rig, tag));
    rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_COPY), 1); /* the load */
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    ck_assert(!rig_answer(&rig, tag)->hit);
}
END_TEST

/* A step that closes waits for writes that were accepted before. */
START_TEST(commit_waits_for_writes)
{
    uint64_t write;
    uint64_t step;

    rig_open(&rig, 2, 1, 3, 0);
    rig_start(&rig, 1);
    (void)io(CST_EV_WRITE, 1, CST_ROW_MASTER, 0, 1);
    write = rig_command(&rig, CST_COMMAND_SET_MASTER, 0)->ticket;
    step = rig_step(&rig, 0);
    while (rig_count(&rig, CST_COMMAND_REDUCE) > 0) {
        rig_done(&rig, rig_command(&rig, CST_COMMAND_REDUCE, 0)->ticket, CST_OK, NULL);
    }
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_NORM), 0);
    rig_done(&rig, write, CST_OK, NULL);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_NORM), 1);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, step), CST_OK);
}
END_TEST

/* A read that a commit overtakes is repeated after the update: it sees all committed steps, and no
 * partial write. */
START_TEST(overtaken_read_is_repeated)
{
    uint64_t copy;
    uint64_t tag;

    rig_open(&rig, 2, 1, 3, 0);
    rig_start(&rig, 1);
    tag = io(CST_EV_READ, 1, CST_ROW_MASTER, 0, 1);
    copy = rig.commands[0].ticket;
    (void)rig_step(&rig, 0);
    while (rig_count(&rig, CST_COMMAND_UPDATE) == 0) {
        rig_done(&rig, rig.commands[1].ticket, CST_OK, NULL);
    }
    rig_done(&rig, copy, CST_OK, NULL);
    ck_assert(rig_waits(&rig, tag));
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_COPY, 0)->n_after, 1);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
}
END_TEST

/* A grad row that holds one rank's contribution cannot be read as a sum. */
START_TEST(torn_gradient_is_not_read)
{
    rig_open(&rig, 6, 2, 3, 0);
    rig_start(&rig, 2);
    for (uint32_t c = 0; c < 3; c++) {
        (void)rig_hand_in(&rig, 1, c, rig_get_grad(&rig, 1, c));
    }
    (void)rig_fetch(&rig, 1, 4);
    rig_drain(&rig); /* the contribution to chunk 2 is in the grad row */
    ck_assert_int_eq(rig_status(&rig, io(CST_EV_READ, 2, CST_ROW_GRAD, 0, 1)), CST_EBUSY);
    ck_assert(rig_waits(&rig, io(CST_EV_READ, 1, CST_ROW_GRAD, 0, 1)));
    (void)rig_rank_event(&rig, CST_EV_DEAD, 0);
    ck_assert_int_eq(rig_status(&rig, io(CST_EV_READ, 2, CST_ROW_GRAD, 0, 1)), CST_EBUSY);
    rig_drain(&rig);
}
END_TEST

/* A read that fails reports the error and has no other effect. A conversion that fails leaves
 * states undefined, so the job fails. */
START_TEST(io_fails)
{
    struct cst_core_stats stats;
    uint64_t tag;

    rig_open(&rig, 2, 1, 3, 0);
    tag = io(CST_EV_READ, 1, CST_ROW_MASTER, 0, 1);
    rig_done(&rig, rig.commands[0].ticket, CST_EIO, "gone");
    ck_assert_int_eq(rig_status(&rig, tag), CST_EIO);
    ck_assert_ptr_nonnull(strstr(rig_answer(&rig, tag)->err.text, "gone"));
    tag = io(CST_EV_WRITE, 1, CST_ROW_WEIGHT, 0, 1);
    rig_done(&rig, rig.commands[0].ticket, CST_EIO, NULL);
    ck_assert_int_eq(rig_status(&rig, tag), CST_EIO);
    cst_core_stats(rig.core, &stats);
    ck_assert_int_eq(stats.phase, CST_PHASE_READY);
    tag = io(CST_EV_WRITE, 1, CST_ROW_MASTER, 0, 1);
    rig_done(&rig, rig.commands[0].ticket, CST_EIO, NULL);
    ck_assert_int_eq(rig_status(&rig, tag), CST_EIO);
    cst_core_stats(rig.core, &stats);
    ck_assert_int_eq(stats.phase, CST_PHASE_FAILED);
    ck_assert_int_eq(rig_status(&rig, io(CST_EV_READ, 1, CST_ROW_MASTER, 0, 1)), CST_EENGINE);
}
END_TEST

/* -- Explain and the job table ---------------------------------------------------------------- */

static bool explained(uint32_t chunk, const char *words)
{
    char lines[16][192];
    unsigned n = cst_core_explain(rig.core, chunk, lines, 16);

    for (unsigned i = 0; i < n; i++) {
        if (strstr(lines[i], words) != NULL) {
            return true;
        }
    }
    return false;
}

/* Explain names the chunk's home, its blocks, what it waits for, and the last eviction. It never
 * writes more lines than the caller has space for. */
START_TEST(explain)
{
    char lines[1][192];

    rig_open(&rig, 6, 2, 3, 0);
    rig_start(&rig, 2);
    ck_assert_uint_eq(cst_core_explain(rig.core, 6, lines, 1), 0);
    ck_assert_uint_eq(cst_core_explain(rig.core, 0, lines, 1), 1);
    ck_assert(explained(0, "chunk 0 of 6"));
    ck_assert(explained(4, "of 4096 elements used"));
    /* For another size class, Explain reports that class's size. */
    rig.layout.classes[1].capacity = 8192;
    rig.layout.chunks[4].size_class = 1;
    ck_assert(explained(4, "of 8192 elements used"));
    rig.layout.chunks[4].size_class = 0;
    ck_assert(explained(0, "rank 1: weights are not in its pool"));
    (void)rig_get(&rig, 0, 0);
    ck_assert(explained(0, "rank 0: weights in block"));
    ck_assert(explained(0, "leased 1 times"));
    (void)rig_hand_in(&rig, 0, 1, rig_get_grad(&rig, 0, 1));
    ck_assert(explained(1, "come from 1 of 2 ranks; rank 1 is missing"));
    (void)rig_fetch(&rig, 0, 5);
    ck_assert(explained(5, "waits for the copy"));
    rig_drain(&rig);
    (void)rig_fetch_grad(&rig, 0, 4);
    ck_assert(explained(4, "gradient waits for a block"));
    rig_drain(&rig);
    ck_assert(explained(1, "rank 0's contribution was moved to the gradient row"));
    for (uint32_t c = 0; c < 4; c++) {
        (void)rig_release(&rig, 1, c, rig_get(&rig, 1, c));
    }
    ck_assert(explained(0, "last evicted from rank 1's pool in step 0 for chunk 3"));
}
END_TEST

/* If a gradient that all ranks have handed in waits for a copy, Explain calls no rank missing. */
START_TEST(explain_a_gradient_that_moves)
{
    rig_open(&rig, 6, 2, 3, 0);
    rig_start(&rig, 2);
    (void)rig_hand_in(&rig, 0, 1, rig_get_grad(&rig, 0, 1));
    (void)rig_get(&rig, 0, 0);
    (void)rig_get(&rig, 0, 5);
    (void)rig_fetch_grad(&rig, 0, 4);
    (void)rig_hand_in(&rig, 1, 1, rig_get_grad(&rig, 1, 1));
    ck_assert(explained(1, "come from all 2 ranks"));
    rig_drain(&rig);
}
END_TEST

/* A core cannot be opened with a pool that cannot run the model, nor with no ranks or too many. */
START_TEST(open_refuses)
{
    struct cst_core_pool pool = {.parts[0] = {.n_blocks = 2, .blocks_per_slab = 2},
                                 .segments = rig.pool_segments};
    struct cst_core_config config;
    struct cst_core *core = NULL;
    struct cst_err err;

    rig_open(&rig, 4, 1, 3, 0);
    config = (struct cst_core_config){
        .model = &rig.model, .layout = &rig.layout, .world = 1, .pools = &pool};
    ck_assert_int_eq(cst_core_open(&core, &config, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "rank 0: 2 blocks"));
    config.world = 0;
    ck_assert_int_eq(cst_core_open(&core, &config, &err), CST_EINVAL);
    config.world = CST_CORE_MAX_WORLD + 1;
    ck_assert_int_eq(cst_core_open(&core, &config, &err), CST_EINVAL);
    ck_assert_ptr_null(core);
}
END_TEST

/* The job table has the places of rows by segment id, and for each span of a chunk its tensor and
 * tiles. */
START_TEST(job_table)
{
    struct cst_table_header sizes;
    struct cst_table_header *table;
    struct cst_core_config config;
    uint32_t arena[8];

    rig_open(&rig, 3, 1, 3, 0);
    for (uint32_t i = 0; i < 8; i++) {
        arena[i] = 70 + i;
    }
    config = (struct cst_core_config){
        .model = &rig.model, .layout = &rig.layout, .arena_segments = arena};
    cst_table_size(&sizes, rig.layout.n_chunks, rig.model.n_tensors, rig.layout.n_tiles);
    table = calloc(1, sizes.total_bytes);
    ck_assert_ptr_nonnull(table);
    *table = sizes;
    cst_core_write_table(&config, table);
    for (uint32_t c = 0; c < 3; c++) {
        const struct cst_table_chunk *chunk = &cst_table_chunks(table)[c];
        const struct cst_table_span *span = &cst_table_spans(table)[chunk->first_span];

        ck_assert_uint_eq(chunk->n_spans, 1);
        ck_assert_uint_eq(chunk->n_elems, RIG_CHUNK_ELEMS);
        ck_assert_uint_eq(chunk->rows[CST_ROW_MASTER].segment,
                          70 + row_of(c, CST_ROW_MASTER)->segment);
        ck_assert_uint_eq(chunk->rows[CST_ROW_MASTER].offset, row_of(c, CST_ROW_MASTER)->offset);
        ck_assert_uint_eq(chunk->update_mark, 0);
        ck_assert_uint_eq(span->start, 0);
        ck_assert_uint_eq(span->n_elems, RIG_CHUNK_ELEMS);
        ck_assert_uint_eq(span->first_tile, c);
        ck_assert_float_eq(span->lr_scale, 1.0f);
    }
    free(table);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("states");
    TCase *rows = suite_case(s, "rows", NULL, teardown);
    TCase *tells = suite_case(s, "tells", NULL, teardown);

    tcase_add_test(rows, read_copies);
    tcase_add_test(rows, bad_ranges);
    tcase_add_test(rows, write_master);
    tcase_add_loop_test(rows, new_moments_are_zero, 0, 2);
    tcase_add_test(rows, write_master_on_device);
    tcase_add_test(rows, write_from_bf16);
    tcase_add_test(rows, write_from_bf16_refused);
    tcase_add_test(rows, writes_are_chained);
    tcase_add_test(rows, writes_between_steps);
    tcase_add_test(rows, written_weights_are_fetched);
    tcase_add_test(rows, commit_waits_for_writes);
    tcase_add_test(rows, overtaken_read_is_repeated);
    tcase_add_test(rows, torn_gradient_is_not_read);
    tcase_add_test(rows, io_fails);
    tcase_add_test(tells, explain);
    tcase_add_test(tells, explain_a_gradient_that_moves);
    tcase_add_test(tells, open_refuses);
    tcase_add_test(tells, job_table);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
