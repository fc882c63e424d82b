/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the engine process's commands. The engine is driven over its socket as by the daemon. */
#include "tests/lib/engine_rig.h"
#include "tests/lib/adamw.h"

#include "kernels/math/kernels.h"
#include "kernels/math/undo.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void set_up(void)
{
    engine_rig_setup(false);
}

static void *row(unsigned chunk, enum cst_row which)
{
    return engine_rig_at(tiny_job_row(&job, chunk, which));
}

/* -- COPY, FILL, conversions ---------------------------------------------------------------- */

/* A copy changes every byte of the range and no byte around it, with sizes below, at and above a
 * piece. */
START_TEST(test_copy)
{
    static const uint64_t sizes[] = {0, 1, 4095, 1 << 20, BIG_ELEMS * 2 - 1};
    static uint8_t before[BIG_ELEMS * 2];
    struct cst_place src = tiny_job_row(&job, BIG, CST_ROW_WEIGHT);
    struct cst_place dst = tiny_job_block(&job, BIG, 2);
    uint64_t bytes = sizes[_i];

    memcpy(before, engine_rig_at(dst), sizeof before);
    src.offset += 1;
    dst.offset += 3;
    engine_rig_must(engine_command_copy(dst, src, bytes - (bytes > 4096 ? 4096 : 0)));
    bytes -= bytes > 4096 ? 4096 : 0;
    ck_assert_mem_eq(engine_rig_at(dst), engine_rig_at(src), bytes);
    dst.offset -= 3;
    ck_assert_mem_eq(engine_rig_at(dst), before, 3);
    ck_assert_mem_eq((uint8_t *)engine_rig_at(dst) + 3 + bytes, before + 3 + bytes,
                     sizeof before - 3 - bytes);
}
END_TEST

/* A copy of the whole arena, which has many pieces. */
START_TEST(test_copy_large)
{
    uint64_t bytes = job.bytes[TINY_ARENA];
    void *base;
    int fd = engine_proc_memfd(bytes, &base);

    engine_proc_must_add(&proc, 50, fd, bytes);
    engine_rig_must(engine_command_copy((struct cst_place){.segment = 50},
                                        (struct cst_place){.segment = job.ids[TINY_ARENA]}, bytes));
    ck_assert_int_eq(memcmp(base, job.base[TINY_ARENA], bytes), 0);
}
END_TEST

/* A fill zeroes the range and changes no byte around it. */
START_TEST(test_fill)
{
    struct cst_place dst = tiny_job_block(&job, BIG, 0);
    uint8_t *bytes = engine_rig_at(dst);

    memset(bytes, 0x5a, BIG_ELEMS);
    dst.offset += 5;
    engine_rig_must(engine_command_fill(dst, BIG_ELEMS - 10));
    ck_assert_uint_eq(bytes[4], 0x5a);
    ck_assert_uint_eq(bytes[BIG_ELEMS - 5], 0x5a);
    ck_assert(engine_rig_all_zero(bytes + 5, BIG_ELEMS - 10));
}
END_TEST

/* A conversion of fp32 values writes master weights, bf16 weights and zero moments. */
START_TEST(test_convert)
{
    uint64_t n = BIG_ELEMS / 2 + 1, bytes = n * sizeof(float), n_wrong = 0;
    struct engine_command convert = {.kind = ENGINE__COMMAND_KIND__SET_MASTER,
                                     .src = {{.segment = 50}},
                                     .n_src = 1,
                                     .dst = {tiny_job_row(&job, BIG, CST_ROW_MASTER),
                                             tiny_job_row(&job, BIG, CST_ROW_WEIGHT),
                                             tiny_job_row(&job, BIG, CST_ROW_MOMENT),
                                             tiny_job_row(&job, BIG, CST_ROW_MOMENT + 1)},
                                     .n_dst = 4,
                                     .n_elems = n};
    float *values, after = ((float *)row(BIG, CST_ROW_MOMENT))[n];
    const uint16_t *weight = row(BIG, CST_ROW_WEIGHT);
    int fd = engine_proc_memfd(bytes, (void **)&values);

    for (uint64_t i = 0; i < n; i++) {
        values[i] = (float)((int64_t)i - 200000) * 0.37f;
    }
    engine_proc_must_add(&proc, 50, fd, bytes);
    engine_rig_must(convert);
    ck_assert_int_eq(memcmp(row(BIG, CST_ROW_MASTER), values, bytes), 0);
    for (uint64_t i = 0; i < n; i++) {
        n_wrong += weight[i] != cst_fp32_to_bf16(values[i]);
    }
    ck_assert_uint_eq(n_wrong, 0);
    ck_assert(engine_rig_all_zero(row(BIG, CST_ROW_MOMENT), bytes));
    ck_assert(engine_rig_all_zero(row(BIG, CST_ROW_MOMENT + 1), bytes));
    ck_assert(((float *)row(BIG, CST_ROW_MOMENT))[n] == after);
}
END_TEST

/* ROUND writes bf16 values there and nothing else. This is how fp32
 * gradients are read. */
START_TEST(test_convert_to_bf16)
{
    uint64_t n = BIG_ELEMS - 3, n_wrong = 0;
    const float *values = row(BIG, CST_ROW_MOMENT);
    const uint16_t *got = engine_rig_at(tiny_job_block(&job, BIG, 0));
    uint16_t after = got[n];
    struct engine_command convert = {.kind = ENGINE__COMMAND_KIND__ROUND,
                                     .src = {tiny_job_row(&job, BIG, CST_ROW_MOMENT)},
                                     .n_src = 1,
                                     .dst = {tiny_job_block(&job, BIG, 0)},
                                     .n_dst = 1,
                                     .n_elems = n};
    float *before = malloc(BIG_ELEMS * sizeof *before);

    ck_assert_ptr_nonnull(before);
    memcpy(before, values, BIG_ELEMS * sizeof *before);
    engine_rig_must(convert);
    for (uint64_t i = 0; i < n; i++) {
        n_wrong += got[i] != cst_fp32_to_bf16(values[i]);
    }
    ck_assert_uint_eq(n_wrong, 0);
    ck_assert_uint_eq(got[n], after);
    ck_assert_int_eq(memcmp(before, values, BIG_ELEMS * sizeof *before), 0);
    free(before);
}
END_TEST

/* -- REDUCE, NORM, UPDATE ------------------------------------------------------------------- */

/* Reduce @chunk of job @j in this process, tile by tile with the reference kernels. */
static void reduce_here(struct tiny_job *j, unsigned chunk, uint64_t mark)
{
    struct cst_table_chunk *entry = &cst_table_chunks(j->table)[chunk];
    uint16_t *grad = (uint16_t *)((char *)j->base[TINY_ARENA] + entry->rows[CST_ROW_GRAD].offset);

    for (uint32_t s = entry->first_span; s < entry->first_span + entry->n_spans; s++) {
        struct cst_table_span *span = &cst_table_spans(j->table)[s];

        for (uint64_t i = 0; i < span->n_elems; i += CST_TILE_ELEMS) {
            struct cst_table_tile *tile =
                &cst_table_tiles(j->table)[span->first_tile + i / CST_TILE_ELEMS];
            uint64_t n = span->n_elems - i, first = span->start + i;
            const uint16_t *src[3] = {grad + first, NULL, NULL};

            for (unsigned b = 0; b < 2; b++) {
                src[1 + b] =
                    (uint16_t *)((char *)j->base[TINY_POOL] + tiny_job_block(j, chunk, b).offset) +
                    first;
            }
            n = n < CST_TILE_ELEMS ? n : CST_TILE_ELEMS;
            tile->sum_squares = cst_reduce_ref(n, 3, src, grad + first);
            tile->reduce_mark = (uint32_t)mark;
        }
    }
    entry->reduce_mark = mark;
}

static void update_here(struct tiny_job *j, unsigned chunk, uint64_t mark)
{
    struct engine_command how = tiny_job_update(j, chunk, mark);
    struct cst_table_chunk *entry = &cst_table_chunks(j->table)[chunk];
    char *rows[CST_ROW_COUNT];

    for (int r = 0; r < CST_ROW_COUNT; r++) {
        rows[r] = (char *)j->base[TINY_ARENA] + entry->rows[r].offset;
    }
    for (uint32_t s = entry->first_span; s < entry->first_span + entry->n_spans; s++) {
        struct cst_table_span *span = &cst_table_spans(j->table)[s];
        struct cst_update_scalars hyper;

        cst_update_prepare(&hyper, (double)how.lr * (double)span->lr_scale, (double)how.beta1,
                           (double)how.beta2, (double)how.eps,
                           (double)how.weight_decay * (double)span->decay_scale, how.grad_scale,
                           mark);
        adamw_update(&cst_update_ref, &hyper, span->n_elems,
                     (uint16_t *)rows[CST_ROW_GRAD] + span->start, NULL,
                     (float *)rows[CST_ROW_MASTER] + span->start,
                     (float *)rows[CST_ROW_MOMENT] + span->start,
                     (float *)rows[CST_ROW_MOMENT + 1] + span->start,
                     (uint16_t *)rows[CST_ROW_WEIGHT] + span->start);
        for (uint64_t i = 0; i < cst_table_n_tiles(span->n_elems); i++) {
            cst_table_tiles(j->table)[span->first_tile + i].update_mark = (uint32_t)mark;
        }
    }
    entry->update_mark = mark;
}

/* REDUCE, NORM and UPDATE on three threads have the bits of the reference kernels in one thread,
 * and change nothing else. */
START_TEST(test_step)
{
    uint64_t n_elems[N_CHUNKS] = {9000, BIG_ELEMS, 20000};
    struct engine_completion norm;
    struct tiny_job here;

    tiny_job_open(&here, N_CHUNKS, n_elems, N_SLOTS, 7);
    for (uint64_t mark = 1; mark <= 2; mark++) {
        for (unsigned c = 0; c < N_CHUNKS; c++) {
            engine_rig_must(tiny_job_reduce(&job, c, mark));
            reduce_here(&here, c, mark);
        }
        norm = engine_rig_run((struct engine_command){.kind = ENGINE__COMMAND_KIND__NORM,
                                                      .table = job.ids[TINY_TABLE]});
        ck_assert_int_eq(norm.status, CST_OK);
        ck_assert(norm.value > 0.0);
        ck_assert(norm.value == cst_norm_sum(cst_table_tiles(here.table), here.table->n_tiles));
        for (unsigned c = 0; c < N_CHUNKS; c++) {
            engine_rig_must(tiny_job_update(&job, c, mark));
            update_here(&here, c, mark);
        }
        ck_assert(tiny_job_same(&job, &here));
    }
    tiny_job_close(&here);
}
END_TEST

/* A reduction of no sources writes zeros to the spans only, and zero sums. */
START_TEST(test_reduce_nothing)
{
    const struct cst_table_span *spans = cst_table_spans(job.table) + TINY_SPANS * BIG;
    struct engine_command reduce = tiny_job_reduce(&job, BIG, 9);
    uint16_t *grad = row(BIG, CST_ROW_GRAD);
    unsigned n_wrong = 0;

    memset(grad, 0x11, job.n_elems[BIG] * 2);
    reduce.n_src = 0;
    engine_rig_must(reduce);
    for (uint64_t i = 0; i < job.n_elems[BIG]; i++) {
        bool in_span = false;

        for (int s = 0; s < TINY_SPANS; s++) {
            in_span = in_span || (i >= spans[s].start && i < spans[s].start + spans[s].n_elems);
        }
        n_wrong += grad[i] != (in_span ? 0 : 0x1111);
    }
    ck_assert_uint_eq(n_wrong, 0);
    ck_assert(cst_table_tiles(job.table)[spans[0].first_tile].sum_squares == 0.0);
    ck_assert_uint_eq(cst_table_chunks(job.table)[BIG].reduce_mark, 9);
}
END_TEST

/* A chunk that already has the mark completes at once and is not changed. */
START_TEST(test_marked)
{
    static uint8_t before[BIG_ELEMS * 4];

    engine_rig_must(tiny_job_reduce(&job, BIG, 4));
    engine_rig_must(tiny_job_update(&job, BIG, 4));
    memcpy(before, row(BIG, CST_ROW_MASTER), sizeof before);
    engine_rig_must(tiny_job_reduce(&job, BIG, 4));
    engine_rig_must(tiny_job_update(&job, BIG, 4));
    ck_assert_mem_eq(row(BIG, CST_ROW_MASTER), before, sizeof before);
    engine_rig_must(tiny_job_update(&job, BIG, 5));
    ck_assert_mem_ne(row(BIG, CST_ROW_MASTER), before, sizeof before);
}
END_TEST

/* If only some tiles of a chunk have the mark, the other tiles are done. */
START_TEST(test_marked_tiles)
{
    const struct cst_table_span *span = cst_table_spans(job.table) + TINY_SPANS * BIG;
    struct cst_table_tile *tile = &cst_table_tiles(job.table)[span->first_tile + 1];
    float before[2] = {((float *)row(BIG, CST_ROW_MASTER))[CST_TILE_ELEMS - 1],
                       ((float *)row(BIG, CST_ROW_MASTER))[CST_TILE_ELEMS]};

    tile->update_mark = 6;
    engine_rig_must(tiny_job_update(&job, BIG, 6));
    ck_assert(((float *)row(BIG, CST_ROW_MASTER))[CST_TILE_ELEMS - 1] != before[0]);
    ck_assert(((float *)row(BIG, CST_ROW_MASTER))[CST_TILE_ELEMS] == before[1]);
    ck_assert_uint_eq(cst_table_chunks(job.table)[BIG].update_mark, 6);
}
END_TEST

/* Adding to a bf16 row, and reducing or updating a frozen chunk, are refused, and the engine goes
 * on. */
START_TEST(test_accumulate_refused)
{
    struct engine_command reduce = tiny_job_reduce(&job, 0, 1);
    struct cst_table_chunk *chunk = &cst_table_chunks(job.table)[0];

    reduce.accumulate = true;
    ck_assert_int_eq(engine_rig_run(reduce).status, CST_EINVAL);
    reduce.accumulate = false;
    reduce.src[0] = tiny_job_block(&job, 0, 2);
    chunk->n_spans = 0;
    for (int r = CST_ROW_GRAD; r < CST_ROW_COUNT; r++) {
        chunk->rows[r] = (struct cst_place){.segment = CST_PLACE_NONE};
    }
    ck_assert_int_eq(engine_rig_run(reduce).status, CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(engine_rig_run(reduce).text, "frozen"));
    ck_assert_int_eq(engine_rig_run(tiny_job_update(&job, 0, 1)).status, CST_EINVAL);
    engine_rig_must(engine_command_copy(tiny_job_block(&job, 0, 0),
                                        tiny_job_row(&job, 0, CST_ROW_WEIGHT), 1000));
    engine_rig_must(tiny_job_reduce(&job, 1, 1));
}
END_TEST

/* -- order ---------------------------------------------------------------------------------- */

/* In a chain within one message, each command reads what the one before it wrote. */
START_TEST(test_chain)
{
    struct engine_command chain[4] = {
        engine_command_fill(tiny_job_block(&job, BIG, 0), BIG_ELEMS * 2),
        engine_command_copy(tiny_job_block(&job, BIG, 1), tiny_job_block(&job, BIG, 0),
                            BIG_ELEMS * 2),
        engine_command_copy(tiny_job_block(&job, BIG, 2), tiny_job_block(&job, BIG, 1),
                            BIG_ELEMS * 2),
        engine_command_copy(tiny_job_block(&job, BIG, 3), tiny_job_block(&job, BIG, 2),
                            BIG_ELEMS * 2)};
    const uint8_t *last = engine_rig_at(tiny_job_block(&job, BIG, 3));

    for (int i = 0; i < 4; i++) {
        chain[i].ticket = ++ticket;
        chain[i].priority = (Engine__Priority)(2 - i % 3);
        chain[i].after[0] = ticket - 1;
        chain[i].n_after = i > 0;
    }
    engine_proc_submit(&proc, chain, 4);
    ck_assert_int_eq(engine_proc_wait(&proc, ticket)->status, CST_OK);
    ck_assert(engine_rig_all_zero(last, BIG_ELEMS * 2));
    for (size_t i = 0; i < 4; i++) {
        ck_assert_uint_eq(proc.done[i].ticket, chain[i].ticket);
    }
}
END_TEST

/* A command that waits for eight others, all of lower priority, reads what each of them wrote. */
START_TEST(test_after_eight)
{
    const uint64_t part = BIG_ELEMS * 2 / 8;
    struct cst_place from = tiny_job_block(&job, BIG, 0), to = tiny_job_block(&job, BIG, 1);
    struct engine_command c[9];

    for (unsigned i = 0; i < 8; i++) {
        c[i] = engine_command_fill(
            (struct cst_place){.segment = from.segment, .offset = from.offset + i * part}, part);
        c[i].priority = ENGINE__PRIORITY__EVICTION;
        c[i].ticket = ++ticket;
    }
    c[8] = engine_command_copy(to, from, BIG_ELEMS * 2);
    c[8].ticket = ++ticket;
    for (unsigned i = 0; i < 8; i++) {
        c[8].after[c[8].n_after++] = c[i].ticket;
    }
    engine_proc_submit(&proc, c, 9);
    ck_assert_int_eq(engine_proc_wait(&proc, ticket)->status, CST_OK);
    ck_assert(engine_rig_all_zero(engine_rig_at(to), BIG_ELEMS * 2));
}
END_TEST

/* Commands that wait for a failed command are cancelled with a message and do nothing. Other
 * commands are not affected. */
START_TEST(test_cancelled)
{
    struct engine_command c[3] = {
        engine_command_copy(tiny_job_block(&job, 0, 0), (struct cst_place){.segment = 77}, 8),
        engine_command_fill(tiny_job_block(&job, 0, 1), 100),
        engine_command_fill(tiny_job_block(&job, 0, 2), 100)};
    const uint8_t *kept = engine_rig_at(tiny_job_block(&job, 0, 1));
    uint8_t before[100];

    memcpy(before, kept, sizeof before);
    for (int i = 0; i < 3; i++) {
        c[i].ticket = ++ticket;
    }
    c[1].after[c[1].n_after++] = c[0].ticket;
    engine_proc_submit(&proc, c, 3);
    ck_assert_int_eq(engine_proc_wait(&proc, c[0].ticket)->status, CST_ENOTFOUND);
    ck_assert_ptr_nonnull(strstr(engine_proc_find(&proc, c[0].ticket)->text, "segment 77"));
    ck_assert_int_eq(engine_proc_wait(&proc, c[1].ticket)->status, CST_ECANCELLED);
    ck_assert_int_eq(engine_proc_wait(&proc, c[2].ticket)->status, CST_OK);
    ck_assert_mem_eq(kept, before, sizeof before);
}
END_TEST

/* -- invalid commands ----------------------------------------------------------------------- */

/* Invalid commands are refused with a status and a message each, and the engine goes on. */
START_TEST(test_lies)
{
    const struct cst_place arena = {.segment = job.ids[TINY_ARENA]};
    const struct cst_place pool = {.segment = job.ids[TINY_POOL]};
    const struct cst_place end = {.segment = job.ids[TINY_POOL], .offset = job.bytes[TINY_POOL]};
    const struct cst_place far = {.segment = job.ids[TINY_POOL], .offset = UINT64_MAX - 3};
    const struct cst_place undo = {.segment = job.ids[TINY_UNDO]};
    struct engine_command across = tiny_job_reduce(&job, BIG, 1), odd = across, short_row = across;
    struct engine_command no_table = tiny_job_update(&job, 0, 1), no_chunk = no_table;
    struct engine_command no_mark = no_table, norm = no_table;
    struct engine_command convert = {.kind = ENGINE__COMMAND_KIND__SET_MASTER,
                                     .src = {arena},
                                     .n_src = 1,
                                     .dst = {pool, pool, pool, pool},
                                     .n_dst = 4,
                                     .n_elems = 100};
    struct engine_command huge = convert, two = engine_command_copy(pool, arena, 1),
                          none = engine_command_fill(pool, 1);
    struct engine_command kind = engine_command_fill(pool, 1);

    across.src[1] = tiny_job_row(&job, BIG, CST_ROW_GRAD);
    across.src[1].offset += 2;
    odd.src[1].offset += 1;
    short_row.src[2] = end;
    no_table.table = job.ids[TINY_ARENA];
    no_chunk.chunk = N_CHUNKS;
    no_mark.mark = 1ull << 32;
    norm.kind = ENGINE__COMMAND_KIND__NORM;
    norm.table = 1000;
    huge.n_elems = UINT64_MAX / 2;
    two.n_src = 2;
    none.n_dst = 0;
    kind.kind = (Engine__CommandKind)77;
    const struct {
        struct engine_command command;
        int status;
    } lies[] = {
        {engine_command_copy(pool, arena, UINT64_MAX), CST_EINVAL},
        {engine_command_copy(end, arena, 1), CST_EINVAL},
        {engine_command_copy(far, arena, 4), CST_EINVAL},
        {engine_command_copy(arena, far, 8), CST_EINVAL},
        {engine_command_copy(pool, (struct cst_place){0}, 1), CST_ENOTFOUND},
        {engine_command_copy(pool, pool, 8), CST_EINVAL},
        {engine_command_fill(undo, 8), CST_ENOTFOUND},
        {engine_command_fill(pool, job.bytes[TINY_POOL] + 1), CST_EINVAL},
        {across, CST_EINVAL},
        {odd, CST_EINVAL},
        {short_row, CST_EINVAL},
        {no_table, CST_EINVAL},
        {no_chunk, CST_EINVAL},
        {no_mark, CST_EINVAL},
        {norm, CST_ENOTFOUND},
        {convert, CST_EINVAL},
        {huge, CST_EINVAL},
        {two, CST_EINVAL},
        {none, CST_EINVAL},
        {kind, CST_EUNSUPPORTED},
    };
    Engine__Pong pong;

    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        struct engine_completion c = engine_rig_run(lies[i].command);

        ck_assert_msg(c.status == lies[i].status, "lie %zu: %s: %s", i, cst_status_name(c.status),
                      c.text);
        ck_assert_uint_gt(strlen(c.text), 0);
    }
    engine_proc_ping(&proc, &pong);
    ck_assert_uint_eq(pong.in_flight, 0);
    ck_assert_uint_eq(pong.commands, sizeof lies / sizeof lies[0]);
}
END_TEST

/* A table that contradicts itself is refused. */
START_TEST(test_wrong_table)
{
    cst_table_spans(job.table)[0].n_elems = UINT64_MAX;
    ck_assert_int_eq(engine_rig_run(tiny_job_update(&job, 0, 1)).status, CST_EINVAL);
    job.table->magic = 0;
    ck_assert_int_eq(engine_rig_run(tiny_job_update(&job, 1, 1)).status, CST_EINVAL);
}
END_TEST

/* -- many commands -------------------------------------------------------------------------- */

#define N_MANY 30000

/* A daemon that submits without reading loses nothing: each completion arrives in the end, once. */
START_TEST(test_no_reading)
{
    static struct engine_command many[N_MANY];
    static uint8_t seen[N_MANY];
    Engine__Pong pong;

    for (uint64_t i = 0; i < N_MANY; i++) {
        many[i] = engine_command_fill(
            (struct cst_place){.segment = i % 3 == 0 ? 99 : job.ids[TINY_POOL], .offset = i},
            i % 2);
        many[i].ticket = i + 1;
    }
    engine_proc_submit(&proc, many, N_MANY);
    (void)engine_proc_wait(&proc, N_MANY);
    do {
        engine_proc_ping(&proc, &pong);
    } while (pong.in_flight > 0);
    while (proc.n_done < N_MANY) {
        ck_assert(engine_proc_read(&proc, -1));
    }
    for (size_t i = 0; i < proc.n_done; i++) {
        uint64_t t = proc.done[i].ticket - 1;

        ck_assert_uint_lt(t, N_MANY);
        ck_assert_int_eq(proc.done[i].status, t % 3 == 0 ? CST_ENOTFOUND : CST_OK);
        seen[t]++;
    }
    ck_assert_uint_eq(proc.n_done, N_MANY);
    for (size_t i = 0; i < N_MANY; i++) {
        ck_assert_uint_eq(seen[i], 1);
    }
}
END_TEST

/* PONG counts the elements and bytes of tensors, without the padding between them. */
START_TEST(test_counters)
{
    uint64_t n_elems = 0;
    Engine__Pong pong;

    engine_rig_must(engine_command_copy(tiny_job_block(&job, BIG, 2),
                                        tiny_job_row(&job, BIG, CST_ROW_WEIGHT), BIG_ELEMS * 2));
    engine_rig_must(tiny_job_reduce(&job, BIG, 1));
    engine_rig_must(tiny_job_update(&job, BIG, 1));
    engine_proc_ping(&proc, &pong);
    ck_assert_uint_eq(pong.commands, 3);
    ck_assert_uint_eq(pong.in_flight, 0);
    ck_assert_uint_eq(pong.copy_bytes, BIG_ELEMS * 2);
    for (unsigned s = 0; s < TINY_SPANS; s++) {
        n_elems += cst_table_spans(job.table)[TINY_SPANS * BIG + s].n_elems;
    }
    ck_assert_uint_eq(pong.reduce_elems, n_elems);
    ck_assert_uint_eq(pong.update_elems, n_elems);
    ck_assert_uint_eq(pong.reduce_bytes, n_elems * (3 * 2 + 2));
    ck_assert_uint_eq(pong.update_bytes, n_elems * 28);
    ck_assert_uint_gt(pong.copy_ns, 0);
    ck_assert_uint_gt(pong.update_ns, 0);
    ck_assert_uint_ge(pong.progress, 3);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine");
    TCase *tcase = suite_case(suite, "commands", set_up, engine_rig_teardown);

    tcase_add_loop_test(tcase, test_copy, 0, 5);
    tcase_add_test(tcase, test_copy_large);
    tcase_add_test(tcase, test_fill);
    tcase_add_test(tcase, test_convert);
    tcase_add_test(tcase, test_convert_to_bf16);
    tcase_add_test(tcase, test_step);
    tcase_add_test(tcase, test_accumulate_refused);
    tcase_add_test(tcase, test_reduce_nothing);
    tcase_add_test(tcase, test_marked);
    tcase_add_test(tcase, test_marked_tiles);
    tcase_add_test(tcase, test_chain);
    tcase_add_test(tcase, test_after_eight);
    tcase_add_test(tcase, test_cancelled);
    tcase_add_test(tcase, test_lies);
    tcase_add_test(tcase, test_wrong_table);
    tcase_add_test(tcase, test_no_reading);
    tcase_add_test(tcase, test_counters);
    return suite_run(suite);
}
