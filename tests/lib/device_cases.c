/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/device_cases.h"

#include "kernels/math/cast.h"
#include "kernels/math/reduce.h"
#include "kernels/math/undo.h"
#include "tests/lib/engine_rig.h"
#include "tests/lib/suite.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HOST 60 /* id of a segment of host memory next to the job's segments */
#define BORDER (256u << 20)

static uint64_t seed, random_state;

void device_cases_seed(uint64_t value)
{
    seed = value;
    random_state = value * 2 + 1;
}

static void randomise(void *to, uint64_t bytes)
{
    uint8_t *b = to;

    for (uint64_t i = 0; i < bytes; i++) {
        b[i] = (uint8_t)(tiny_random(&random_state) >> 33);
    }
}

/* -- COPY, FILL ----------------------------------------------------------------------------- */

enum way { UP, DOWN, WITHIN, BESIDE, N_WAYS };

static void choose_places(enum way way, struct cst_place *dst, struct cst_place *src)
{
    struct cst_place row = tiny_job_row(&job, BIG, CST_ROW_MASTER);
    struct cst_place other = tiny_job_row(&job, BIG, CST_ROW_MOMENT);
    struct cst_place block = tiny_job_block(&job, BIG, 2);

    *src = way == UP || way == BESIDE ? row : block;
    *dst = way == UP ? block : way == WITHIN ? tiny_job_block(&job, BIG, 0) : other;
}

/* A copy changes every byte of the range and no byte around it: in each direction, with sizes below
 * and above a tile and a page, at odd addresses. */
START_TEST(test_copy)
{
    static const uint64_t sizes[] = {0, 1, 4095, 1 << 20, BIG_ELEMS * 2 - 7};
    static uint8_t before[BIG_ELEMS * 2], what[BIG_ELEMS * 2];
    uint64_t bytes = sizes[_i / N_WAYS];
    struct cst_place src, dst;

    choose_places((enum way)(_i % N_WAYS), &dst, &src);
    randomise(engine_rig_at(src), BIG_ELEMS * 2);
    memcpy(before, engine_rig_at(dst), sizeof before);
    memcpy(what, engine_rig_at(src), sizeof what);
    src.offset += 1;
    dst.offset += 3;
    engine_rig_must(engine_command_copy(dst, src, bytes));
    ck_assert_mem_eq(engine_rig_at(dst), what + 1, bytes);
    dst.offset -= 3;
    ck_assert_mem_eq(engine_rig_at(dst), before, 3);
    ck_assert_mem_eq((uint8_t *)engine_rig_at(dst) + 3 + bytes, before + 3 + bytes,
                     sizeof before - 3 - bytes);
}
END_TEST

/* A fill zeroes the range and changes no byte around it. */
START_TEST(test_fill)
{
    struct cst_place dst =
        _i == 0 ? tiny_job_block(&job, BIG, 0) : tiny_job_row(&job, BIG, CST_ROW_GRAD);
    uint8_t *bytes = engine_rig_at(dst);

    memset(bytes, 0x5a, BIG_ELEMS);
    dst.offset += 5;
    engine_rig_must(engine_command_fill(dst, BIG_ELEMS - 10));
    ck_assert_uint_eq(bytes[4], 0x5a);
    ck_assert_uint_eq(bytes[BIG_ELEMS - 5], 0x5a);
    ck_assert(engine_rig_all_zero(bytes + 5, BIG_ELEMS - 10));
}
END_TEST

#define N_SQUARES 64 /* places in host memory and in device memory */
#define SQUARE 65536
#define N_COPIES 300

/* Many copies and fills at a time, in all directions, have the result of a sequential execution.
 * Each command waits for those whose bytes it reads or overwrites. */
START_TEST(test_tour)
{
    static struct engine_command commands[N_COPIES];
    static uint8_t model[2 * N_SQUARES][SQUARE];
    static uint64_t last[2 * N_SQUARES], reader[2 * N_SQUARES];
    uint64_t bytes = (uint64_t)N_SQUARES * SQUARE;
    struct engine_segment_done gpu = engine_proc_add_device(&proc, HOST + 1, -1, 4u << 20);
    uint8_t *bases[2];
    int fd = engine_proc_memfd(bytes, (void **)&bases[0]);

    ck_assert_int_eq(gpu.status, CST_OK);
    ck_assert_int_eq(engine_proc_add(&proc, HOST, fd, bytes, -1, false, true).status, CST_OK);
    bases[1] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, gpu.fd, 0);
    ck_assert_ptr_ne(bases[1], MAP_FAILED);
    for (int i = 0; i < 2 * N_SQUARES; i++) {
        randomise(model[i], SQUARE);
        memcpy(bases[i / N_SQUARES] + i % N_SQUARES * SQUARE, model[i], SQUARE);
    }
    for (int i = 0; i < N_COPIES; i++) {
        unsigned from = (unsigned)(tiny_random(&random_state) >> 32) % (2 * N_SQUARES);
        unsigned to =
            (from + 1 + (unsigned)(tiny_random(&random_state) >> 32) % (2 * N_SQUARES - 1)) %
            (2 * N_SQUARES);
        struct cst_place src = {.segment = HOST + from / N_SQUARES,
                                .offset = from % N_SQUARES * SQUARE};
        struct cst_place dst = {.segment = HOST + to / N_SQUARES,
                                .offset = to % N_SQUARES * SQUARE};
        bool clear = i % 10 == 9;

        commands[i] =
            clear ? engine_command_fill(dst, SQUARE) : engine_command_copy(dst, src, SQUARE);
        commands[i].ticket = ++ticket;
        commands[i].priority = (Engine__Priority)(i % 3);
        commands[i].after[commands[i].n_after++] = last[from];
        commands[i].after[commands[i].n_after++] = last[to];
        commands[i].after[commands[i].n_after++] = reader[to];
        /* Only one reader of a place is remembered: a second reader waits for the first one. */
        commands[i].after[commands[i].n_after++] = reader[from];
        last[to] = ticket;
        reader[from] = ticket;
        reader[to] = 0;
        if (clear) {
            memset(model[to], 0, SQUARE);
        } else {
            memcpy(model[to], model[from], SQUARE);
        }
    }
    engine_proc_submit(&proc, commands, N_COPIES);
    for (int i = 0; i < N_COPIES; i++) {
        ck_assert_int_eq(engine_proc_wait(&proc, commands[i].ticket)->status, CST_OK);
    }
    for (int i = 0; i < 2 * N_SQUARES; i++) {
        ck_assert_msg(memcmp(bases[i / N_SQUARES] + i % N_SQUARES * SQUARE, model[i], SQUARE) == 0,
                      "seed %" PRIu64 ": place %d differs", seed, i);
    }
}
END_TEST

/* Copied bytes are counted, separately for each direction. */
START_TEST(test_counts)
{
    struct cst_place row = tiny_job_row(&job, 0, CST_ROW_MASTER);
    struct cst_place block = tiny_job_block(&job, 0, 0), next = tiny_job_block(&job, 0, 1);
    Engine__Pong pong;

    engine_rig_must(engine_command_copy(block, row, 1000));
    engine_rig_must(engine_command_copy(row, block, 300));
    engine_rig_must(engine_command_copy(next, block, 50));
    engine_proc_ping(&proc, &pong);
    ck_assert(pong.has_up_bytes && pong.has_down_bytes);
    ck_assert_uint_eq(pong.up_bytes, 1000);
    ck_assert_uint_eq(pong.down_bytes, 300);
    ck_assert_uint_eq(pong.copy_bytes, 1350);
    ck_assert_uint_gt(pong.up_ns, 0);
    ck_assert_uint_gt(pong.down_ns, 0);
}
END_TEST

/* -- REDUCE --------------------------------------------------------------------------------- */

/* Where a contribution of a reduction lies. */
enum source { ON_GPU, ON_HOST, IN_PLACE };

static const struct {
    unsigned n;
    enum source v[4];
} mixes[] = {
    {0, {0}},
    {1, {ON_GPU}},
    {2, {ON_GPU, ON_GPU}},
    {4, {ON_GPU, ON_GPU, ON_GPU, ON_GPU}},
    {1, {IN_PLACE}},
    {2, {ON_GPU, IN_PLACE}},
    {3, {IN_PLACE, ON_GPU, ON_GPU}},
    {3, {ON_HOST, ON_GPU, IN_PLACE}},
    {2, {ON_HOST, ON_HOST}},
    {4, {ON_GPU, IN_PLACE, ON_HOST, ON_GPU}},
};

#define N_MIXES (sizeof mixes / sizeof mixes[0])

static struct cst_place place_of_source(unsigned chunk, unsigned mix, unsigned i)
{
    if (mixes[mix].v[i] == IN_PLACE) {
        return tiny_job_row(&job, chunk, CST_ROW_GRAD);
    }
    return mixes[mix].v[i] == ON_HOST ? tiny_job_row(&job, chunk, CST_ROW_MASTER)
                                      : tiny_job_block(&job, chunk, i);
}

/* Compute the expected sums in @grad, and the expected tiles of the table, with the reference in
 * one thread. */
static void expect(unsigned chunk, unsigned mix, uint64_t mark, uint16_t *grad,
                   struct cst_table_tile *tiles)
{
    const struct cst_table_span *spans =
        cst_table_spans(job.table) + cst_table_chunks(job.table)[chunk].first_span;

    for (unsigned s = 0; s < TINY_SPANS; s++) {
        for (uint64_t i = 0; i < spans[s].n_elems; i += CST_TILE_ELEMS) {
            struct cst_table_tile *tile = &tiles[spans[s].first_tile + i / CST_TILE_ELEMS];
            uint64_t n = spans[s].n_elems - i, first = spans[s].start + i;
            const uint16_t *src[4];

            for (unsigned k = 0; k < mixes[mix].n; k++) {
                src[k] = (uint16_t *)engine_rig_at(place_of_source(chunk, mix, k)) + first;
            }
            n = n < CST_TILE_ELEMS ? n : CST_TILE_ELEMS;
            if (tile->reduce_mark != (uint32_t)mark) {
                tile->sum_squares = cst_reduce_ref(n, mixes[mix].n, src, grad + first);
                tile->reduce_mark = (uint32_t)mark;
            }
        }
    }
}

static struct engine_command reduce(unsigned chunk, unsigned mix, uint64_t mark)
{
    struct engine_command command = tiny_job_reduce(&job, chunk, mark);

    command.n_src = mixes[mix].n;
    for (unsigned i = 0; i < command.n_src; i++) {
        command.src[i] = place_of_source(chunk, mix, i);
    }
    return command;
}

/* Fill the rows with all kinds of bit patterns: NaN of all kinds, infinities, subnormals. */
static void make_hostile(unsigned chunk)
{
    uint64_t bytes = job.n_elems[chunk] * 2;

    randomise(engine_rig_at(tiny_job_row(&job, chunk, CST_ROW_GRAD)), bytes);
    randomise(engine_rig_at(tiny_job_row(&job, chunk, CST_ROW_MASTER)), bytes);
    for (unsigned b = 0; b < 4; b++) {
        randomise(engine_rig_at(tiny_job_block(&job, chunk, b)), bytes);
    }
}

/* Reduce each chunk with the sources @mix, and compare rows, the bytes between them, sums and marks
 * with the reference. */
static void check_reduce(unsigned mix, uint64_t mark)
{
    static uint16_t grad[BIG_ELEMS];
    struct cst_table_tile *tiles = cst_table_tiles(job.table), *expected;

    expected = malloc(job.table->n_tiles * sizeof *expected);
    ck_assert_ptr_nonnull(expected);
    for (unsigned c = 0; c < N_CHUNKS; c++) {
        uint16_t *row = engine_rig_at(tiny_job_row(&job, c, CST_ROW_GRAD));

        memcpy(grad, row, job.n_elems[c] * 2);
        memcpy(expected, tiles, job.table->n_tiles * sizeof *expected);
        expect(c, mix, mark, grad, expected);
        engine_rig_must(reduce(c, mix, mark));
        ck_assert_msg(memcmp(grad, row, job.n_elems[c] * 2) == 0, "mix %u, chunk %u, seed %" PRIu64,
                      mix, c, seed);
        ck_assert_int_eq(memcmp(expected, tiles, job.table->n_tiles * sizeof *expected), 0);
        ck_assert_uint_eq(cst_table_chunks(job.table)[c].reduce_mark, mark);
    }
    free(expected);
}

/* Sums have the reference's bits wherever the contributions lie, and so has a second reduction
 * after the first one. */
START_TEST(test_reduce)
{
    for (unsigned c = 0; c < N_CHUNKS; c++) {
        make_hostile(c);
    }
    check_reduce((unsigned)_i, 1);
    check_reduce((unsigned)_i, 2);
    for (unsigned i = 0; i < N_SLOTS; i++) {
        ck_assert(!cst_undo_holds((struct cst_undo_slot *)job.base[TINY_UNDO] + i));
    }
}
END_TEST

/* A chunk that already has the mark completes at once. If only some tiles have it, the other tiles
 * are done. */
START_TEST(test_marks)
{
    const struct cst_table_span *span = cst_table_spans(job.table) + TINY_SPANS * BIG;
    uint16_t *grad = engine_rig_at(tiny_job_row(&job, BIG, CST_ROW_GRAD));
    unsigned mix = _i == 0 ? 2 : 6;

    cst_table_tiles(job.table)[span->first_tile + 1].reduce_mark = 3;
    cst_table_tiles(job.table)[span->first_tile + 20].reduce_mark = 3;
    check_reduce(mix, 3);
    memset(grad, 0x11, BIG_ELEMS * 2);
    engine_rig_must(reduce(BIG, mix, 3));
    for (uint64_t i = 0; i < BIG_ELEMS; i++) {
        ck_assert_uint_eq(grad[i], 0x1111);
    }
}
END_TEST

/* -- order and refusals --------------------------------------------------------------------- */

/* In a chain within one message, across both lanes and the team, each command reads what the one
 * before it wrote. */
START_TEST(test_chain)
{
    struct cst_place row = tiny_job_row(&job, BIG, CST_ROW_WEIGHT);
    struct cst_place grad = tiny_job_row(&job, BIG, CST_ROW_GRAD);
    struct engine_command chain[5] = {
        engine_command_copy(tiny_job_block(&job, BIG, 0), row, BIG_ELEMS * 2),
        engine_command_copy(tiny_job_block(&job, BIG, 1), tiny_job_block(&job, BIG, 0),
                            BIG_ELEMS * 2),
        reduce(BIG, 2, 1),
        engine_command_copy(tiny_job_block(&job, BIG, 3), grad, BIG_ELEMS * 2),
        engine_command_copy(tiny_job_row(&job, BIG, CST_ROW_MASTER), tiny_job_block(&job, BIG, 3),
                            BIG_ELEMS * 2),
    };
    static uint16_t doubled[BIG_ELEMS];
    struct cst_table_tile *tiles = calloc(job.table->n_tiles, sizeof *tiles);

    for (int i = 0; i < 5; i++) {
        chain[i].ticket = ++ticket;
        chain[i].priority = (Engine__Priority)(2 - i % 3);
        chain[i].after[0] = ticket - 1;
        chain[i].n_after = i > 0;
    }
    engine_proc_submit(&proc, chain, 5);
    ck_assert_int_eq(engine_proc_wait(&proc, ticket)->status, CST_OK);
    memcpy(doubled, engine_rig_at(grad), sizeof doubled);
    expect(BIG, 2, 1, doubled, tiles);
    ck_assert_mem_eq(engine_rig_at(tiny_job_block(&job, BIG, 0)), engine_rig_at(row),
                     BIG_ELEMS * 2);
    ck_assert_mem_eq(engine_rig_at(grad), doubled, sizeof doubled);
    ck_assert_mem_eq(engine_rig_at(tiny_job_row(&job, BIG, CST_ROW_MASTER)), doubled,
                     sizeof doubled);
    for (size_t i = 0; i < 5; i++) {
        ck_assert_uint_eq(proc.done[i].ticket, chain[i].ticket);
    }
    free(tiles);
}
END_TEST

/* Weights are made from master weights, in a block or in host memory, with any length and from any
 * element on. No byte around them changes. */
START_TEST(test_weights)
{
    static const uint64_t sizes[] = {1, 33, 4097, BIG_ELEMS - 5};
    static uint16_t before[BIG_ELEMS], want[BIG_ELEMS];
    struct engine_command convert = {
        .kind = ENGINE__COMMAND_KIND__ROUND,
        .src = {tiny_job_row(&job, BIG, CST_ROW_MASTER)},
        .n_src = 1,
        .dst = {_i % 2 == 0 ? tiny_job_block(&job, BIG, 1) : tiny_job_row(&job, BIG, CST_ROW_GRAD)},
        .n_dst = 1,
        .n_elems = sizes[_i / 2]};
    uint64_t n = convert.n_elems;
    uint16_t *to = engine_rig_at(convert.dst[0]);

    randomise(engine_rig_at(convert.src[0]), BIG_ELEMS * sizeof(float));
    randomise(to, sizeof before);
    memcpy(before, to, sizeof before);
    convert.src[0].offset += 3 * sizeof(float);
    convert.dst[0].offset += sizeof *to;
    cst_cast_ref(n, engine_rig_at(convert.src[0]), want);
    engine_rig_must(convert);
    ck_assert_mem_eq(to + 1, want, n * sizeof *to);
    ck_assert_uint_eq(to[0], before[0]);
    ck_assert_mem_eq(to + 1 + n, before + 1 + n, (BIG_ELEMS - 1 - n) * sizeof *to);
}
END_TEST

/* Commands of a host's engine, and invalid places, are refused with a status and a message, and the
 * engine goes on. */
START_TEST(test_refused)
{
    struct cst_place pool = {.segment = job.ids[TINY_POOL]},
                     arena = {.segment = job.ids[TINY_ARENA]};
    struct cst_place end = {.segment = job.ids[TINY_POOL], .offset = job.gpu_bytes};
    struct engine_command convert = {
        .kind = ENGINE__COMMAND_KIND__SET_MASTER,
        .src = {tiny_job_row(&job, 0, CST_ROW_MASTER)},
        .n_src = 1,
        .dst = {tiny_job_row(&job, 1, CST_ROW_MASTER), tiny_job_row(&job, 1, CST_ROW_WEIGHT),
                tiny_job_row(&job, 1, CST_ROW_MOMENT), tiny_job_row(&job, 1, CST_ROW_MOMENT + 1)},
        .n_dst = 4,
        .n_elems = 100};
    struct engine_command on_gpu = convert, table = tiny_job_reduce(&job, 0, 1);
    struct engine_command short_row = table;

    on_gpu.dst[1] = tiny_job_block(&job, 0, 0);
    table.table = job.ids[TINY_POOL];
    short_row.src[1] = end;
    const struct {
        struct engine_command command;
        int status;
    } refused[] = {
        {tiny_job_update(&job, 0, 1), CST_EUNSUPPORTED},
        {convert, CST_EUNSUPPORTED},
        {on_gpu, CST_EINVAL},
        {table, CST_EINVAL},
        {short_row, CST_EINVAL},
        {engine_command_copy(end, arena, 1), CST_EINVAL},
        {engine_command_copy(pool, pool, 8), CST_EINVAL},
        {engine_command_copy(pool, (struct cst_place){.segment = 77}, 8), CST_ENOTFOUND},
    };

    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        struct engine_completion c = engine_rig_run(refused[i].command);

        ck_assert_msg(c.status == refused[i].status, "%zu: %d %s", i, c.status, c.text);
        ck_assert_uint_gt(strlen(c.text), 0);
    }
    engine_rig_must(engine_command_fill(pool, 8));
}
END_TEST

/* -- borders ---------------------------------------------------------------------------------- */

/* Host memory is registered in pieces, and the driver refuses copies across a border. The engine's
 * copies across a border work in both directions. */
START_TEST(test_border)
{
    uint64_t bytes = 2 * (uint64_t)BORDER + BIG_ELEMS, n = BIG_ELEMS;
    struct cst_place host = {.segment = HOST}, block = tiny_job_block(&job, BIG, 0);
    struct engine_segment_done done;
    uint8_t *base;
    int fd = engine_proc_memfd(bytes, (void **)&base);

    done = engine_proc_add(&proc, HOST, fd, bytes, -1, false, true);
    ck_assert_msg(done.status == CST_OK && done.locked, "%s", done.text);
    for (uint64_t border = BORDER; border < bytes; border += BORDER) {
        host.offset = border - n / 2 - 1;
        randomise(base + host.offset, n);
        engine_rig_must(engine_command_copy(block, host, n));
        ck_assert_mem_eq(engine_rig_at(block), base + host.offset, n);
        randomise(engine_rig_at(block), n);
        engine_rig_must(engine_command_copy(host, block, n));
        ck_assert_mem_eq(engine_rig_at(block), base + host.offset, n);
    }
    ck_assert_int_eq(engine_proc_segment_done(&proc, engine_proc_drop(&proc, HOST, false)).status,
                     CST_OK);
    (void)munmap(base, bytes);
}
END_TEST

/* A grad row across the border of two registrations gets its sums. */
START_TEST(test_row_across_border)
{
    struct cst_place *place = &cst_table_chunks(job.table)[BIG].rows[CST_ROW_GRAD];
    uint64_t bytes = 2 * (uint64_t)BORDER, at = BORDER - BIG_ELEMS - 2;
    struct cst_table_tile *tiles = calloc(job.table->n_tiles, sizeof *tiles);
    static uint16_t grad[BIG_ELEMS];
    uint8_t *base;
    int fd = engine_proc_memfd(bytes, (void **)&base);

    ck_assert_ptr_nonnull(tiles);
    ck_assert_int_eq(engine_proc_add(&proc, HOST, fd, bytes, -1, false, true).status, CST_OK);
    make_hostile(BIG);
    memcpy(grad, base + at, sizeof grad);
    *place = (struct cst_place){.segment = HOST, .offset = at};
    expect(BIG, 2, 1, grad, tiles);
    engine_rig_must(reduce(BIG, 2, 1));
    ck_assert_int_eq(memcmp(base + at, grad, sizeof grad), 0);
    free(tiles);
}
END_TEST

/* -- lists of tests ---------------------------------------------------------------------------- */

void device_cases_add(TCase *tc)
{
    suite_add_loop(tc, test_copy, 0, 5 * N_WAYS);
    suite_add_loop(tc, test_fill, 0, 2);
    tcase_add_test(tc, test_counts);
    suite_add_loop(tc, test_reduce, 0, N_MIXES);
    suite_add_loop(tc, test_marks, 0, 2);
    suite_add_loop(tc, test_weights, 0, 8);
    tcase_add_test(tc, test_refused);
}

void device_cases_add_slow(TCase *tc)
{
    tcase_add_test(tc, test_tour);
    tcase_add_test(tc, test_chain);
    suite_add_loop(tc, test_reduce, 3, 4);
    suite_add_loop(tc, test_reduce, 9, 10);
}

void device_cases_add_borders(TCase *tc)
{
    tcase_add_test(tc, test_border);
    tcase_add_test(tc, test_row_across_border);
}
