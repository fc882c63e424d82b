/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of cst_tile_update in all its forms: the rows that are read and written, their places, and
 * the gradient. */
#include "tests/kernels/tile_job.h"

#include <math.h>

/* A form of job_ways, and the place to which rows are written. */
struct turn {
    const struct cst_kernels *kernels;
    const struct job_way *way;
    bool elsewhere;
};

#define N_TURNS (2 * N_WAYS)

static bool turn_of(int i, struct turn *turn)
{
    *turn = (struct turn){.kernels = hostile_row(i / N_TURNS),
                          .way = &job_ways[i % N_TURNS / 2],
                          .elsewhere = i % 2 == 1};
    return turn->kernels != NULL && !(turn->elsewhere && turn->way->over);
}

static size_t moments_bytes(void)
{
    return CHUNK_ELEMS * sizeof(float);
}

/* Give @job other rows to write to, filled with a value that no update writes. close_job frees
 * them. */
static void give_out(struct job *job)
{
    const struct cst_rows *rows = &job->work.rows;
    struct cst_rows *out = &job->work.out;

    job->work.elsewhere = true;
    *out = (struct cst_rows){0};
    if (rows->weight != NULL) {
        out->weight = malloc(CHUNK_ELEMS * sizeof *out->weight);
        memset(out->weight, 0x5a, CHUNK_ELEMS * sizeof *out->weight);
    }
    if (rows->master != NULL) {
        out->master = malloc(master_bytes(rows, CHUNK_ELEMS));
    } else {
        out->remainder = malloc(master_bytes(rows, CHUNK_ELEMS));
    }
    memset(master_row(out), 0x5a, master_bytes(rows, CHUNK_ELEMS));
    for (int k = 0; k < 2; k++) {
        out->moments[k].values = malloc(moments_bytes());
        memset(out->moments[k].values, 0x5a, moments_bytes());
        if (rows->moments[k].exponents != NULL) {
            out->moments[k].exponents = (uint8_t *)out->moments[k].values + CHUNK_ELEMS;
        }
    }
}

/* Close @job and the rows that it was given to write to, if any. */
static void close_job(struct job *job)
{
    if (job->work.elsewhere) {
        free(job->work.out.weight);
        free(master_row(&job->work.out));
        free(job->work.out.moments[0].values);
        free(job->work.out.moments[1].values);
    }
    job_close(job);
}

static void assert_same_moments(const struct job *job, const struct cst_rows *got,
                                const struct cst_rows *want, uint64_t at, uint64_t n)
{
    const enum cst_moments format = (enum cst_moments)job->work.table->moments;
    size_t bytes = format == CST_MOMENTS_MX8 ? 1 : format == CST_MOMENTS_BF16 ? 2 : 4;

    for (int k = 0; k < 2; k++) {
        ck_assert_mem_eq((uint8_t *)got->moments[k].values + at * bytes,
                         (uint8_t *)want->moments[k].values + at * bytes, n * bytes);
        if (format == CST_MOMENTS_MX8) {
            ck_assert_mem_eq(got->moments[k].exponents + at / CST_MX8_BLOCK,
                             want->moments[k].exponents + at / CST_MX8_BLOCK,
                             (n + CST_MX8_BLOCK - 1) / CST_MX8_BLOCK);
        }
    }
}

/* Check that every span of @got, wherever it was written, equals that of @want, which was written
 * in place. */
static void assert_same_spans(const struct job *got, const struct job *want)
{
    const struct cst_rows *a = got->work.elsewhere ? &got->work.out : &got->work.rows;
    const struct cst_rows *b = &want->work.rows;
    bool second = cst_optimizer_n_moments((enum cst_optimizer)got->work.table->optimizer) == 2;

    for (int i = 0; i < N_SPANS; i++) {
        uint64_t at = span_start[i], n = span_elems[i];

        if (a->weight != NULL) {
            ck_assert_mem_eq(a->weight + at, b->weight + at, n * sizeof *a->weight);
        }
        ck_assert_mem_eq((char *)master_row(a) + master_bytes(a, at),
                         (char *)master_row(b) + master_bytes(b, at), master_bytes(a, n));
        if (second) {
            assert_same_moments(got, a, b, at, n);
        }
    }
}

/* The update by its definition, in place: first the contributions are summed, then each span is
 * updated by one call of the reference, with the random numbers of the span's tiles. */
static void want_update(struct job *want, uint64_t mark)
{
    static uint16_t sums[CHUNK_ELEMS];
    static float wide_sums[CHUNK_ELEMS];
    const struct cst_table_header *table = want->work.table;
    const struct cst_rows *rows = &want->work.rows;

    for (int i = 0; i < N_SPANS; i++) {
        const struct cst_table_span *span = &cst_table_spans(want->work.table)[i];
        const struct cst_update_random random = {
            .seed = table->seed, .t = mark, .element = span->first_tile * CST_TILE_ELEMS};
        uint64_t at = span->start;
        struct cst_update_rows given = {.grad_bf16 = rows->grad == NULL ? NULL : rows->grad + at,
                                        .grad_fp32 =
                                            rows->grad_f32 == NULL ? NULL : rows->grad_f32 + at,
                                        .weight = rows->weight == NULL ? NULL : rows->weight + at};
        struct cst_update_scalars scalars;

        if (rows->master != NULL) {
            given.master = rows->master + at;
            given.master_in = rows->master_in == NULL ? given.master : rows->master_in + at;
        } else {
            given.weight_in = rows->weight_in + at;
            given.remainder_in = given.remainder = rows->remainder + at;
        }
        for (int k = 0; k < 2; k++) {
            given.moments[k] = (struct cst_update_moment){
                .values = (uint8_t *)rows->moments[k].values +
                          at * (table->moments == CST_MOMENTS_MX8    ? 1
                                : table->moments == CST_MOMENTS_BF16 ? 2
                                                                     : 4),
                .exponents = rows->moments[k].exponents == NULL
                                 ? NULL
                                 : rows->moments[k].exponents + at / CST_MX8_BLOCK};
            given.moments_in[k] = given.moments[k];
        }
        for (uint64_t k = 0; k < cst_table_n_tiles(span->n_elems); k++) {
            uint64_t start = at + k * CST_TILE_ELEMS, n = at + span->n_elems - start;
            struct cst_table_tile *tile = &cst_table_tiles(want->work.table)[span->first_tile + k];
            const uint16_t *src[N_SRC] = {want->src[0] + start, want->src[1] + start,
                                          want->src[2] + start};

            n = n < CST_TILE_ELEMS ? n : CST_TILE_ELEMS;
            tile->update_mark = (uint32_t)mark;
            if (want->work.n_src == 0) {
                continue;
            }
            tile->reduce_mark = CST_MARK_NONE;
            if (table->grad_bytes == sizeof(float)) {
                tile->sum_squares = cst_accumulate_ref(n, N_SRC, src, false, wide_sums + start);
                given.grad_fp32 = wide_sums + at;
            } else {
                tile->sum_squares = cst_reduce_ref(n, N_SRC, src, sums + start);
                given.grad_bf16 = sums + at;
            }
        }
        cst_update_prepare(&scalars, hyper.lr * (double)span->lr_scale, hyper.beta1, hyper.beta2,
                           hyper.eps, hyper.weight_decay * (double)span->decay_scale,
                           hyper.grad_scale, mark);
        cst_update_ref.v[table->optimizer][table->moments][table->rounding](
            &scalars, &random, span->n_elems, &given, NULL);
    }
}

/* Bytes of @job's rows and contributions that one pass moves. */
static uint64_t moved(const struct job *job)
{
    const struct cst_table_header *table = job->work.table;
    const uint64_t n_moments = cst_optimizer_n_moments((enum cst_optimizer)table->optimizer);
    const uint64_t grad = job->work.n_src > 0               ? job->work.n_src * 2
                          : job->work.rows.grad_f32 != NULL ? 4
                                                            : 2;
    const bool whole = job->work.rows.master != NULL && job->work.rows.weight != NULL;
    uint64_t bytes = n_elems_all() * (8 + (whole ? 2u : 0u) + grad);

    for (int i = 0; i < N_SPANS; i++) {
        uint64_t n = span_elems[i];
        uint64_t one = table->moments == CST_MOMENTS_MX8    ? n + (n + 31) / 32
                       : table->moments == CST_MOMENTS_BF16 ? 2 * n
                                                            : 4 * n;

        bytes += 2 * n_moments * one;
    }
    return bytes;
}

/* In place: marks are stored, a second update changes nothing, and padding stays. Elsewhere: equal
 * values are written, nothing that is read changes, there are no marks, and the update can be
 * repeated. With contributions the grad row is not needed, and tiles get their sums of squares.
 * Counted bytes are those of one pass. */
START_TEST(test_ways)
{
    struct turn turn;
    struct job got, want, before;

    if (!turn_of(_i, &turn)) {
        return;
    }
    job_open_way(&got, turn.kernels->isa, turn.way);
    job_open_way(&want, "ref", turn.way);
    job_open_way(&before, "ref", turn.way);
    if (turn.elsewhere) {
        give_out(&got);
    }
    got.work.mark = 3;
    want_update(&want, 3);
    for (int again = 0; again < 2; again++) {
        struct cst_tile_done done = cst_tile_update_range(&got.work, &hyper, 0, UINT64_MAX,
                                                          turn.elsewhere ? NULL : &got.undo[0]);
        bool all = again == 0 || turn.elsewhere;

        ck_assert_uint_eq(done.n_elems, all ? n_elems_all() : 0);
        ck_assert_uint_eq(done.bytes, all ? moved(&got) : 0);
        assert_same_spans(&got, &want);
        if (!turn.elsewhere) {
            assert_same(&got, &want);
        }
    }
    if (turn.elsewhere) {
        for (uint64_t i = 0; i < want.work.table->n_tiles; i++) {
            ck_assert(cst_table_tiles(got.work.table)[i].sum_squares ==
                      cst_table_tiles(want.work.table)[i].sum_squares);
            cst_table_tiles(got.work.table)[i].sum_squares = 0.0;
        }
        assert_same(&got, &before);
    }
    close_job(&got);
    job_close(&want);
    job_close(&before);
}
END_TEST

/* Set the master weight and the weight of element @i to those of @from, which are kept. */
static void keep(const struct cst_rows *to, const struct cst_rows *from, uint64_t i)
{
    if (from->weight == NULL) {
        to->master[i] = from->master_in[i];
    } else if (from->master != NULL) {
        to->master[i] = from->master[i];
        to->weight[i] = cst_fp32_to_bf16(from->master[i]);
    } else {
        to->remainder[i] = from->remainder[i];
        to->weight[i] = from->weight_in[i];
    }
}

/* With a guard, a tile whose gradient is not finite, or so large that its square would not be,
 * keeps its states, in place and elsewhere, and its weights are those of its master weights. Other
 * tiles are updated, and all have the mark. */
START_TEST(test_guard)
{
    struct turn turn;
    struct job got, want, before;
    const bool finite = _i % 2 == 1;
    const double sum = finite ? 1e76 : (double)INFINITY;
    /* First element of the second tile of the second span. */
    const uint64_t bad = 128 + CST_TILE_ELEMS;

    if (!turn_of(_i / 2, &turn)) {
        return;
    }
    job_open_way(&got, turn.kernels->isa, turn.way);
    job_open_way(&want, "ref", turn.way);
    job_open_way(&before, "ref", turn.way);
    got.work.guard = true;
    if (turn.elsewhere) {
        give_out(&got);
    }
    if (turn.way->fused) {
        /* 0x7e96 is 1e38. */
        got.src[1][bad + 7] = want.src[1][bad + 7] = finite ? 0x7e96 : 0x7f80;
    } else {
        cst_table_tiles(got.work.table)[2].sum_squares = sum;
        cst_table_tiles(want.work.table)[2].sum_squares = sum;
    }
    want_update(&want, 1);
    for (uint64_t i = bad; i < bad + CST_TILE_ELEMS; i++) {
        keep(&want.work.rows, &before.work.rows, i);
    }
    for (int k = 0; k < 2; k++) { /* the rows began as zeros */
        size_t bytes = turn.way->moments == CST_MOMENTS_MX8    ? 1
                       : turn.way->moments == CST_MOMENTS_BF16 ? 2
                                                               : 4;

        memset((uint8_t *)want.work.rows.moments[k].values + bad * bytes, 0,
               CST_TILE_ELEMS * bytes);
        if (turn.way->moments == CST_MOMENTS_MX8) {
            memset(want.work.rows.moments[k].exponents + bad / CST_MX8_BLOCK, 0,
                   CST_TILE_ELEMS / CST_MX8_BLOCK);
        }
    }
    ck_assert_uint_eq(cst_tile_update_range(&got.work, &hyper, 0, UINT64_MAX,
                                            turn.elsewhere ? NULL : &got.undo[0])
                          .n_elems,
                      n_elems_all());
    assert_same_spans(&got, &want);
    if (!turn.elsewhere) {
        ck_assert(!cst_undo_holds(&got.undo[0]));
        assert_same(&got, &want);
    }
    close_job(&got);
    job_close(&want);
    job_close(&before);
}
END_TEST

/* Any division of the tiles between threads gives equal bits, in every format. */
START_TEST(test_any_division)
{
    struct turn turn;
    struct job want;

    if (!turn_of(_i, &turn)) {
        return;
    }
    job_open_way(&want, turn.kernels->isa, turn.way);
    cst_tile_update_range(&want.work, &hyper, 0, UINT64_MAX, NULL);
    for (uint64_t cut = 0; cut <= cst_tile_count(&want.work); cut++) {
        struct job got;

        job_open_way(&got, turn.kernels->isa, turn.way);
        if (turn.elsewhere) {
            give_out(&got);
        }
        cst_tile_update_range(&got.work, &hyper, cut, UINT64_MAX, NULL);
        cst_tile_update_range(&got.work, &hyper, 0, cut, NULL);
        assert_same_spans(&got, &want);
        close_job(&got);
    }
    job_close(&want);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tile_update");
    TCase *tile = suite_case(suite, "update", NULL, NULL);
    int n = N_TURNS * hostile_n_rows();

    tcase_add_loop_test(tile, test_ways, 0, n);
    tcase_add_loop_test(tile, test_guard, 0, 2 * n);
    tcase_add_loop_test(tile, test_any_division, 0, n);
    return hostile_main(suite);
}
