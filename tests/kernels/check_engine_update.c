/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the engine process's UPDATE in every form. The forms are compared with REDUCE followed
 * by UPDATE in place; the kernels' tests cover the formulas. */
#include "tests/lib/engine_proc.h"
#include "tests/lib/tiny_job.h"

#include "kernels/math/cast.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_CHUNKS 2
#define BIG 1 /* chunk with several pieces per thread */
#define N_SLOTS 3
#define RESERVATION                                                                                \
    60 /* segment for rows elsewhere: its first half is read, and its second half written */
#define MARK 3
#define UNTOUCHED 0x77 /* initial contents of the reservation */

static const uint64_t n_elems[N_CHUNKS] = {9024, 600000};

static const struct tiny_states kinds[] = {
    {.optimizer = CST_OPTIMIZER_ADAMW, .two_weights = true},
    {.optimizer = CST_OPTIMIZER_ADAMW, .moments = CST_MOMENTS_BF16, .two_weights = true},
    {.optimizer = CST_OPTIMIZER_ADAMW, .moments = CST_MOMENTS_MX8, .two_weights = true},
    {.optimizer = CST_OPTIMIZER_ADAM,
     .moments = CST_MOMENTS_MX8,
     .rounding = CST_ROUNDING_NEAREST,
     .grad_bytes = 4,
     .two_weights = true},
    {.optimizer = CST_OPTIMIZER_LION, .moments = CST_MOMENTS_MX8, .two_weights = true},
    {.optimizer = CST_OPTIMIZER_SGD, .grad_bytes = 4, .two_weights = true},
};

#define N_KINDS ((int)(sizeof kinds / sizeof kinds[0]))

static struct tiny_job want, got; /* two jobs in one engine that begin with equal bytes */
static struct engine_proc proc;
static uint64_t ticket;
static uint8_t *reservation;
static uint64_t reservation_half;

static void add_segments(const struct tiny_job *job)
{
    for (int s = 0; s < TINY_UNDO; s++) {
        engine_proc_must_add(&proc, job->ids[s], job->fds[s], job->bytes[s]);
    }
}

static void open_jobs(const struct tiny_states *states)
{
    int fd;

    tiny_job_open_as(&want, states, N_CHUNKS, n_elems, N_SLOTS, 7);
    tiny_job_open_as(&got, states, N_CHUNKS, n_elems, N_SLOTS, 7);
    for (int s = 0; s < TINY_SEGMENTS; s++) {
        got.ids[s] += 10;
    }
    tiny_job_fill(&got, 7);
    tiny_job_start(&want, &proc, 3, 2, 0);
    add_segments(&got);
    reservation_half = got.bytes[TINY_ARENA];
    fd = engine_proc_memfd(2 * reservation_half, (void **)&reservation);
    memset(reservation, UNTOUCHED, 2 * reservation_half);
    engine_proc_must_add(&proc, RESERVATION, fd, 2 * reservation_half);
}

static void close_jobs(void)
{
    ck_assert_int_eq(engine_proc_close(&proc), 0);
    tiny_job_close(&want);
    tiny_job_close(&got);
}

static struct engine_completion run(struct engine_command command)
{
    const struct engine_completion *c;

    command.ticket = ++ticket;
    engine_proc_submit(&proc, &command, 1);
    c = engine_proc_wait(&proc, command.ticket);
    ck_assert_ptr_nonnull(c);
    return *c;
}

static void must(struct engine_command command)
{
    struct engine_completion c = run(command);

    ck_assert_msg(c.status == CST_OK, "%s", c.text);
}

/* -- rows ----------------------------------------------------------------------------------- */

static uint8_t *arena_row(const struct tiny_job *job, unsigned chunk, enum cst_row row)
{
    return (uint8_t *)job->base[TINY_ARENA] + tiny_job_row(job, chunk, row).offset;
}

/* A row of @got in the reservation, at the offset that the row has in the arena. */
static struct cst_place reservation_row(unsigned chunk, enum cst_row row, bool written)
{
    return (struct cst_place){.segment = RESERVATION,
                              .offset = tiny_job_row(&got, chunk, row).offset +
                                        written * reservation_half};
}

static uint8_t *reservation_at(unsigned chunk, enum cst_row row, bool written)
{
    return reservation + reservation_row(chunk, row, written).offset;
}

/* True if two rows have equal elements. Padding between tensors does not count. */
static bool same_row(unsigned chunk, enum cst_row row, const uint8_t *a, const uint8_t *b)
{
    bool codes = want.states.moments == CST_MOMENTS_MX8 &&
                 (row == CST_ROW_MOMENT || row == CST_ROW_MOMENT + 1);
    uint64_t size = codes ? 1 : tiny_job_row_bytes(&want, chunk, row) / n_elems[chunk];
    bool same = true;

    for (unsigned s = 0; s < TINY_SPANS; s++) {
        const struct cst_table_span *span = &cst_table_spans(want.table)[chunk * TINY_SPANS + s];
        uint64_t block = n_elems[chunk] + span->start / CST_MX8_BLOCK;

        same = same &&
               memcmp(a + span->start * size, b + span->start * size, span->n_elems * size) == 0;
        same = same && (!codes || memcmp(a + block, b + block,
                                         (span->n_elems + CST_MX8_BLOCK - 1) / CST_MX8_BLOCK) == 0);
    }
    return same;
}

static void assert_same(unsigned chunk, enum cst_row row, const uint8_t *a, const uint8_t *b)
{
    if (tiny_job_has(&want, row)) {
        ck_assert_msg(same_row(chunk, row, a, b), "chunk %u, row %d", chunk, (int)row);
    }
}

static const enum cst_row states[] = {CST_ROW_MASTER, CST_ROW_MOMENT, CST_ROW_MOMENT + 1};

static void assert_same_states(unsigned chunk)
{
    for (int i = 0; i < 3; i++) {
        if (tiny_job_has(&want, states[i])) {
            assert_same(chunk, states[i], arena_row(&want, chunk, states[i]),
                        arena_row(&got, chunk, states[i]));
        }
    }
}

static void assert_same_sums(unsigned chunk)
{
    const struct cst_table_span *spans = cst_table_spans(want.table) + chunk * TINY_SPANS;

    for (unsigned s = 0; s < TINY_SPANS; s++) {
        for (uint64_t t = 0; t < cst_table_n_tiles(spans[s].n_elems); t++) {
            uint64_t i = spans[s].first_tile + t;

            ck_assert(memcmp(&cst_table_tiles(want.table)[i].sum_squares,
                             &cst_table_tiles(got.table)[i].sum_squares, sizeof(double)) == 0);
        }
    }
}

/* -- commands ------------------------------------------------------------------------------- */

/* Add @n contributions of @job, none of which is the grad row. */
static void add_sources(struct engine_command *command, const struct tiny_job *job, unsigned chunk,
                        unsigned n)
{
    command->n_src = 0;
    for (unsigned i = 0; i < n; i++) {
        command->src[command->n_src++] = tiny_job_block(job, chunk, i);
    }
}

static struct engine_command reduce(const struct tiny_job *job, unsigned chunk, unsigned n_src)
{
    struct engine_command command = tiny_job_reduce(job, chunk, MARK);

    add_sources(&command, job, chunk, n_src);
    return command;
}

static struct engine_row elsewhere(unsigned chunk, enum cst_row row, bool written)
{
    return (struct engine_row){.row = row, .place = reservation_row(chunk, row, written)};
}

/* UPDATE of @got's chunk that writes to the reservation, and with @from_reservation also reads
 * there. */
static struct engine_command update_elsewhere(unsigned chunk, bool from_reservation)
{
    static const enum cst_row rows[] = {CST_ROW_GRAD, CST_ROW_WEIGHT, CST_ROW_MASTER,
                                        CST_ROW_MOMENT, CST_ROW_MOMENT + 1};
    struct engine_command command = tiny_job_update(&got, chunk, MARK);

    for (int i = 0; i < CST_ROW_COUNT; i++) {
        if (!tiny_job_has(&got, rows[i])) {
            continue;
        }
        if (rows[i] != CST_ROW_WEIGHT && from_reservation) {
            command.in[command.n_in++] = elsewhere(chunk, rows[i], false);
        }
        if (rows[i] != CST_ROW_GRAD) {
            command.out[command.n_out++] = elsewhere(chunk, rows[i], true);
        }
    }
    return command;
}

/* -- equal bits ----------------------------------------------------------------------------- */

/* An update that writes elsewhere, and reads at home or elsewhere, has the bits of an update in
 * place. It does not change what it reads, marks no tile, and can be repeated. */
START_TEST(test_elsewhere)
{
    uint8_t *before;

    open_jobs(&kinds[_i]);
    before = malloc(reservation_half);
    ck_assert_ptr_nonnull(before);
    for (unsigned c = 0; c < N_CHUNKS; c++) {
        must(reduce(&want, c, 2));
        must(reduce(&got, c, 2));
    }
    memcpy(before, got.base[TINY_ARENA], reservation_half);
    memcpy(reservation, got.base[TINY_ARENA], reservation_half);
    for (unsigned c = 0; c < N_CHUNKS; c++) {
        must(tiny_job_update(&want, c, MARK));
        must(update_elsewhere(c, c == 0));
        must(update_elsewhere(c, c != 0));
        for (int row = 0; row < CST_ROW_COUNT; row++) {
            if (row != CST_ROW_GRAD && tiny_job_has(&got, (enum cst_row)row)) {
                assert_same(c, (enum cst_row)row, arena_row(&want, c, (enum cst_row)row),
                            reservation_at(c, (enum cst_row)row, true));
            }
        }
        ck_assert_uint_eq(cst_table_chunks(got.table)[c].update_mark, 0);
    }
    ck_assert_int_eq(memcmp(before, got.base[TINY_ARENA], reservation_half), 0);
    ck_assert_int_eq(memcmp(before, reservation, reservation_half), 0);
    ck_assert_uint_eq(cst_table_tiles(got.table)[0].update_mark, 0);
    free(before);
    close_jobs();
}
END_TEST

/* Contributions that are summed in the update's pass have the results of REDUCE and UPDATE: states,
 * weights, sums of squares. The grad row does not change. */
START_TEST(test_fused)
{
    uint8_t *grad;

    open_jobs(&kinds[_i]);
    grad = malloc(tiny_job_row_bytes(&got, BIG, CST_ROW_GRAD));
    ck_assert_ptr_nonnull(grad);
    memcpy(grad, arena_row(&got, BIG, CST_ROW_GRAD), tiny_job_row_bytes(&got, BIG, CST_ROW_GRAD));
    for (unsigned n = 1; n <= 3; n++) {
        struct engine_command fused = tiny_job_update(&got, BIG, n), sum = reduce(&want, BIG, n);

        sum.mark = n;
        must(sum);
        must(tiny_job_update(&want, BIG, n));
        add_sources(&fused, &got, BIG, n);
        must(fused);
        assert_same_states(BIG);
        assert_same(BIG, CST_ROW_WEIGHT, arena_row(&want, BIG, CST_ROW_WEIGHT),
                    arena_row(&got, BIG, CST_ROW_WEIGHT));
        assert_same_sums(BIG);
        ck_assert_uint_eq(cst_table_chunks(got.table)[BIG].update_mark, n);
        ck_assert_uint_eq(cst_table_chunks(got.table)[BIG].reduce_mark, CST_MARK_NONE);
    }
    ck_assert_int_eq(memcmp(grad, arena_row(&got, BIG, CST_ROW_GRAD),
                            tiny_job_row_bytes(&got, BIG, CST_ROW_GRAD)),
                     0);
    free(grad);
    close_jobs();
}
END_TEST

/* The numbers of steps and of reductions are independent. A REDUCE is executed although the UPDATE
 * before it, which made a sum, had an equal number, and so is such an UPDATE after that REDUCE. */
START_TEST(test_same_number)
{
    const struct cst_table_chunk *chunk;
    const struct cst_table_tile *tile;

    open_jobs(&kinds[_i]);
    chunk = &cst_table_chunks(got.table)[BIG];
    tile = &cst_table_tiles(got.table)[cst_table_spans(got.table)[chunk->first_span].first_tile];
    must(reduce(&want, BIG, 3));
    for (unsigned n = 1; n <= 2; n++) {
        struct engine_command fused = tiny_job_update(&got, BIG, n), sum = reduce(&got, BIG, 3);

        sum.mark = n;
        add_sources(&fused, &got, BIG, 2);
        if (n == 2) {
            must(sum);
        }
        must(fused);
        ck_assert_uint_eq(tile->reduce_mark, CST_MARK_NONE);
        ck_assert_uint_eq(tile->update_mark, n);
        must(sum);
        ck_assert_uint_eq(chunk->reduce_mark, n);
        assert_same(BIG, CST_ROW_GRAD, arena_row(&want, BIG, CST_ROW_GRAD),
                    arena_row(&got, BIG, CST_ROW_GRAD));
        assert_same_sums(BIG);
    }
    close_jobs();
}
END_TEST

/* An update can sum in its pass and also write elsewhere. */
START_TEST(test_fused_elsewhere)
{
    struct engine_command fused;

    open_jobs(&kinds[_i]);
    must(reduce(&want, BIG, 3));
    must(tiny_job_update(&want, BIG, MARK));
    fused = update_elsewhere(BIG, false);
    add_sources(&fused, &got, BIG, 3);
    must(fused);
    for (int i = 0; i < 3; i++) {
        if (tiny_job_has(&want, states[i])) {
            assert_same(BIG, states[i], arena_row(&want, BIG, states[i]),
                        reservation_at(BIG, states[i], true));
        }
    }
    assert_same(BIG, CST_ROW_WEIGHT, arena_row(&want, BIG, CST_ROW_WEIGHT),
                reservation_at(BIG, CST_ROW_WEIGHT, true));
    assert_same_sums(BIG);
    close_jobs();
}
END_TEST

/* The weights go to the given weight row, and the other one does not change. States are updated in
 * place and marked. */
START_TEST(test_other_weight)
{
    uint64_t bytes = n_elems[BIG] * 2;
    uint8_t *before = malloc(bytes);

    ck_assert_ptr_nonnull(before);
    open_jobs(&kinds[_i]);
    for (uint64_t mark = 1; mark <= 2; mark++) {
        enum cst_row to = mark == 1 ? (enum cst_row)CST_ROW_WEIGHT_OTHER : CST_ROW_WEIGHT;
        enum cst_row stays = mark == 1 ? CST_ROW_WEIGHT : (enum cst_row)CST_ROW_WEIGHT_OTHER;
        struct engine_command update = tiny_job_update(&got, BIG, mark);

        memcpy(before, arena_row(&got, BIG, stays), bytes);
        update.out[update.n_out++] =
            (struct engine_row){.row = CST_ROW_WEIGHT, .place = tiny_job_row(&got, BIG, to)};
        must(tiny_job_update(&want, BIG, mark));
        must(update);
        assert_same_states(BIG);
        assert_same(BIG, CST_ROW_WEIGHT, arena_row(&want, BIG, CST_ROW_WEIGHT),
                    arena_row(&got, BIG, to));
        ck_assert_int_eq(memcmp(before, arena_row(&got, BIG, stays), bytes), 0);
        ck_assert_uint_eq(cst_table_chunks(got.table)[BIG].update_mark, mark);
    }
    free(before);
    close_jobs();
}
END_TEST

/* -- guard ---------------------------------------------------------------------------------- */

/* Make one element infinite in @job's first contribution, in the second tile of the first tensor of
 * chunk BIG. */
static void poison(const struct tiny_job *job)
{
    uint16_t *block =
        (uint16_t *)((char *)job->base[TINY_POOL] + tiny_job_block(job, BIG, 0).offset);

    block[CST_TILE_ELEMS + 5] = 0x7f80;
}

/* With a guard, a tile with gradients that are not finite keeps its states, and its weights are
 * those of its master weights. Other tiles are updated as without a guard. */
START_TEST(test_guard)
{
    struct engine_command update;
    float *master;
    uint16_t *weight, *weights;
    unsigned n_wrong = 0;

    open_jobs(&kinds[_i]);
    poison(&got);
    master = (float *)(void *)arena_row(&got, BIG, CST_ROW_MASTER);
    weight = (uint16_t *)(void *)arena_row(&got, BIG, CST_ROW_WEIGHT);
    weights = (uint16_t *)(void *)arena_row(&want, BIG, CST_ROW_WEIGHT);
    must(reduce(&want, BIG, 2));
    must(tiny_job_update(&want, BIG, MARK));
    update = tiny_job_update(&got, BIG, MARK);
    update.guard = true;
    if (_i % 2 == 0) {
        must(reduce(&got, BIG, 2));
    } else {
        add_sources(&update, &got, BIG, 2);
    }
    must(update);
    tiny_job_fill(&want, 7);
    for (uint64_t i = 0; i < CST_TILE_ELEMS; i++) {
        uint64_t at = CST_TILE_ELEMS + i;

        n_wrong += master[at] != ((float *)(void *)arena_row(&want, BIG, CST_ROW_MASTER))[at];
        n_wrong += weight[at] != cst_fp32_to_bf16(master[at]);
    }
    ck_assert_uint_eq(n_wrong, 0);
    ck_assert(master[CST_TILE_ELEMS - 1] !=
              ((float *)(void *)arena_row(&want, BIG, CST_ROW_MASTER))[CST_TILE_ELEMS - 1]);
    ck_assert_uint_eq(cst_table_chunks(got.table)[BIG].update_mark, MARK);
    must(reduce(&want, BIG, 2));
    must(tiny_job_update(&want, BIG, MARK));
    ck_assert_int_eq(memcmp(weight, weights, CST_TILE_ELEMS * 2), 0);
    ck_assert_int_eq(
        memcmp(weight + 2 * CST_TILE_ELEMS, weights + 2 * CST_TILE_ELEMS, CST_TILE_ELEMS * 2), 0);
    close_jobs();
}
END_TEST

/* With rows elsewhere such a tile is copied unchanged. */
START_TEST(test_guard_elsewhere)
{
    struct engine_command update;
    uint64_t at = CST_TILE_ELEMS * sizeof(float);

    open_jobs(&kinds[_i]);
    poison(&got);
    must(reduce(&got, BIG, 2));
    update = update_elsewhere(BIG, false);
    update.guard = true;
    must(update);
    ck_assert_int_eq(memcmp(reservation_at(BIG, CST_ROW_MASTER, true) + at,
                            arena_row(&got, BIG, CST_ROW_MASTER) + at, at),
                     0);
    ck_assert_int_ne(
        memcmp(reservation_at(BIG, CST_ROW_MASTER, true), arena_row(&got, BIG, CST_ROW_MASTER), at),
        0);
    close_jobs();
}
END_TEST

/* -- invalid commands ----------------------------------------------------------------------- */

static struct engine_row *row_of(struct engine_row *rows, unsigned n, enum cst_row row)
{
    for (unsigned i = 0; i < n; i++) {
        if (rows[i].row == (uint32_t)row) {
            return &rows[i];
        }
    }
    ck_abort_msg("no row %d", (int)row);
    return NULL;
}

/* Invalid updates are refused with a message each, and change nothing. */
START_TEST(test_lies)
{
    struct engine_command good, in_place, bad[17];
    uint8_t *before;
    unsigned n = 0;

    open_jobs(&kinds[0]);
    good = update_elsewhere(BIG, true);
    in_place = tiny_job_update(&got, BIG, MARK);
    in_place.out[in_place.n_out++] = (struct engine_row){
        .row = CST_ROW_WEIGHT, .place = tiny_job_row(&got, BIG, CST_ROW_WEIGHT_OTHER)};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        bad[i] = i < 12 ? good : in_place;
    }
    /* elsewhere: a row is missing, occurs twice, does not exist, or cannot be read or written */
    bad[n++].n_out--;
    bad[n++].out[1].row = bad[0].out[0].row;
    bad[n++].out[1].row = 77;
    bad[n++].in[0].row = CST_ROW_WEIGHT;
    bad[n++].out[1].row = CST_ROW_GRAD;
    /* a row behind its segment's end, in no segment, or overlapping another one that is written or
     * read */
    row_of(bad[n].out, 4, CST_ROW_MASTER)->place.offset =
        2 * reservation_half - n_elems[BIG] * 4 + 4;
    n++;
    row_of(bad[n].in, 4, CST_ROW_MASTER)->place.segment = 99;
    n++;
    row_of(bad[n].out, 4, CST_ROW_MASTER)->place.offset =
        row_of(bad[n].out, 4, CST_ROW_MOMENT)->place.offset + 4;
    n++;
    row_of(bad[n].out, 4, CST_ROW_WEIGHT)->place = row_of(bad[n].in, 4, CST_ROW_GRAD)->place;
    n++;
    /* a gradient in addition to contributions; a contribution at a place that is written */
    add_sources(&bad[n++], &got, BIG, 2);
    bad[n].n_in = 0;
    bad[n].src[bad[n].n_src++] = row_of(bad[n].out, 4, CST_ROW_WEIGHT)->place;
    /* a scratch, although Muon does not update the chunk */
    bad[++n].n_dst = 1;
    bad[n++].dst[0] = row_of(good.in, 4, CST_ROW_GRAD)->place;
    /* in place: rows that are read elsewhere, weights at another place, contributions that are
     * overwritten */
    bad[n].in[bad[n].n_in++] = elsewhere(BIG, CST_ROW_GRAD, false);
    n++;
    bad[n++].out[0].place.offset += 64;
    bad[n++].out[0].place = reservation_row(BIG, CST_ROW_WEIGHT, true);
    bad[n].src[bad[n].n_src++] = tiny_job_row(&got, BIG, (enum cst_row)CST_ROW_WEIGHT_OTHER);
    n++;
    bad[n].src[bad[n].n_src++] = tiny_job_row(&got, BIG, CST_ROW_MASTER);
    n++;
    ck_assert_uint_eq(n, sizeof bad / sizeof bad[0]);
    before = malloc(reservation_half);
    ck_assert_ptr_nonnull(before);
    memcpy(before, got.base[TINY_ARENA], reservation_half);
    for (unsigned i = 0; i < n; i++) {
        struct engine_completion c = run(bad[i]);

        ck_assert_msg(c.status == CST_EINVAL || c.status == CST_ENOTFOUND, "lie %u: %d: %s", i,
                      c.status, c.text);
        ck_assert_uint_gt(strlen(c.text), 0);
    }
    ck_assert_int_eq(memcmp(before, got.base[TINY_ARENA], reservation_half), 0);
    ck_assert(reservation[0] == UNTOUCHED &&
              memcmp(reservation, reservation + 1, 2 * reservation_half - 1) == 0);
    must(reduce(&got, BIG, 2));
    memcpy(reservation, got.base[TINY_ARENA], reservation_half);
    must(good);
    must(in_place);
    free(before);
    close_jobs();
}
END_TEST

/* A row that the optimizer does not have cannot be named. */
START_TEST(test_no_second)
{
    struct engine_command update;

    open_jobs(&kinds[4]);
    update = update_elsewhere(BIG, false);
    update.out[update.n_out++] =
        (struct engine_row){.row = CST_ROW_MOMENT + 1, .place = {.segment = RESERVATION}};
    ck_assert_int_eq(run(update).status, CST_EINVAL);
    close_jobs();
}
END_TEST

/* -- counters ------------------------------------------------------------------------------- */

/* Counted bytes are those of the update's form per element. A tile that is skipped counts none. */
START_TEST(test_bytes)
{
    /* Bytes per element, without codes. */
    static const uint64_t bytes[] = {28, 20, 12, 14, 12, 22};
    /* Number of rows of codes that are moved. */
    static const uint64_t codes[] = {0, 0, 4, 4, 2, 0};
    uint64_t n = 0, full = 0;
    struct engine_command fused;
    Engine__Pong pong;

    _Static_assert(sizeof bytes / sizeof bytes[0] == sizeof kinds / sizeof kinds[0],
                   "of each kind");
    open_jobs(&kinds[_i]);
    for (unsigned s = 0; s < TINY_SPANS; s++) {
        uint64_t elems = cst_table_spans(got.table)[BIG * TINY_SPANS + s].n_elems;

        n += elems;
        full += elems * bytes[_i] + codes[_i] * (elems + (elems + 31) / 32);
    }
    must(tiny_job_update(&got, BIG, 1));
    engine_proc_ping(&proc, &pong);
    ck_assert_uint_eq(pong.update_elems, n);
    ck_assert_uint_eq(pong.update_bytes, full);
    must(tiny_job_update(&got, BIG, 1));
    engine_proc_ping(&proc, &pong);
    ck_assert_uint_eq(pong.update_elems, n);
    ck_assert_uint_eq(pong.update_bytes, full);
    fused = tiny_job_update(&got, BIG, 2);
    add_sources(&fused, &got, BIG, 3);
    must(fused);
    engine_proc_ping(&proc, &pong);
    ck_assert_uint_eq(pong.update_bytes, 2 * full + n * (6 - got.states.grad_bytes));
    close_jobs();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine_update");
    TCase *tcase = suite_case(suite, "update", NULL, NULL);

    suite_add_loop(tcase, test_elsewhere, 0, N_KINDS);
    suite_add_loop(tcase, test_fused, 0, N_KINDS);
    suite_add_loop(tcase, test_same_number, 0, N_KINDS);
    suite_add_loop(tcase, test_fused_elsewhere, 0, N_KINDS);
    suite_add_loop(tcase, test_other_weight, 0, N_KINDS);
    suite_add_loop(tcase, test_guard, 0, N_KINDS);
    suite_add_loop(tcase, test_guard_elsewhere, 0, N_KINDS);
    tcase_add_test(tcase, test_lies);
    tcase_add_test(tcase, test_no_second);
    suite_add_loop(tcase, test_bytes, 0, N_KINDS);
    return suite_run(suite);
}
