/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kernels/tile_job.h"
#include "tests/lib/adamw.h"

#include <pthread.h>

/* An update is AdamW over each span with the span's scales, and does not change the padding between
 * spans. */
START_TEST(test_update_is_adamw_over_spans)
{
    struct job got;
    struct job want;

    job_open(&got, NULL);
    job_open(&want, NULL);
    got.work.mark = 3;
    ck_assert_uint_eq(
        cst_tile_update_range(&got.work, &hyper, 0, cst_tile_count(&got.work), &got.undo[0])
            .n_elems,
        n_elems_all());
    for (int i = 0; i < N_SPANS; i++) {
        const struct cst_table_span *span = &cst_table_spans(want.work.table)[i];
        const struct cst_rows *rows = &want.work.rows;
        struct cst_update_scalars adamw;

        cst_update_prepare(&adamw, hyper.lr * (double)span->lr_scale, hyper.beta1, hyper.beta2,
                           hyper.eps, hyper.weight_decay * (double)span->decay_scale,
                           hyper.grad_scale, 3);
        adamw_update(&cst_update_ref, &adamw, span->n_elems, rows->grad + span->start, NULL,
                     rows->master + span->start, exp_avg(rows) + span->start,
                     exp_avg_sq(rows) + span->start, rows->weight + span->start);
        for (uint64_t k = 0; k < cst_table_n_tiles(span->n_elems); k++) {
            cst_table_tiles(want.work.table)[span->first_tile + k].update_mark = 3;
        }
    }
    assert_same(&got, &want);
    job_close(&got);
    job_close(&want);
}
END_TEST

/* A reduction sums every span and writes per-tile sums. The norm over the tiles is the norm of the
 * whole gradient. */
START_TEST(test_reduce_fills_tiles)
{
    struct job got;
    struct job want;
    double sum = 0.0;

    job_open(&got, NULL);
    job_open(&want, NULL);
    ck_assert_uint_eq(reduce_all(&got, &got.undo[0]).n_elems, n_elems_all());
    for (int i = 0; i < N_SPANS; i++) {
        const struct cst_table_span *span = &cst_table_spans(want.work.table)[i];

        for (uint64_t k = 0; k < cst_table_n_tiles(span->n_elems); k++) {
            uint64_t at = span->start + k * CST_TILE_ELEMS;
            uint64_t n = span->n_elems - k * CST_TILE_ELEMS;
            struct cst_table_tile *tile = &cst_table_tiles(want.work.table)[span->first_tile + k];
            const uint16_t *src[N_SRC] = {want.src[0] + at, want.src[1] + at, want.src[2] + at};

            n = n < CST_TILE_ELEMS ? n : CST_TILE_ELEMS;
            tile->sum_squares = cst_reduce_ref(n, N_SRC, src, want.work.rows.grad + at);
            tile->reduce_mark = 1;
            sum += tile->sum_squares;
        }
    }
    assert_same(&got, &want);
    ck_assert(sum > 0.0);
    ck_assert(cst_norm_sum(cst_table_tiles(got.work.table), got.work.table->n_tiles) == sum);
    job_close(&got);
    job_close(&want);
}
END_TEST

/* The first micro-batch's sum is stored to the fp32 row, and the next ones are added, each with its
 * own mark. Tiles have the sums of squares of the whole sum, and the update reads that sum. */
START_TEST(test_micro_batches)
{
    struct cst_tile_done done;
    struct job got;
    struct job want;

    job_open_wide(&got, NULL);
    job_open_wide(&want, "ref");
    for (uint64_t m = 1; m <= 3; m++) {
        got.work.mark = m;
        got.work.accumulate = m > 1;
        done = reduce_all(&got, m % 2 == 0 ? &got.undo[0] : NULL);
        ck_assert_uint_eq(done.n_elems, n_elems_all());
        ck_assert_uint_eq(done.bytes, n_elems_all() * (N_SRC * 2u + (m > 1 ? 8u : 4u)));
        done = reduce_all(&got, &got.undo[0]);
        ck_assert_uint_eq(done.n_elems, 0);
        ck_assert_uint_eq(done.bytes, 0);
    }
    got.work.mark = 1;
    ck_assert_uint_eq(cst_tile_update_range(&got.work, &hyper, 0, UINT64_MAX, NULL).n_elems,
                      n_elems_all());
    for (int i = 0; i < N_SPANS; i++) {
        const struct cst_table_span *span = &cst_table_spans(want.work.table)[i];
        const struct cst_rows *rows = &want.work.rows;
        struct cst_update_scalars adamw;

        for (uint64_t k = 0; k < cst_table_n_tiles(span->n_elems); k++) {
            uint64_t at = span->start + k * CST_TILE_ELEMS;
            uint64_t n = span->n_elems - k * CST_TILE_ELEMS;
            struct cst_table_tile *tile = &cst_table_tiles(want.work.table)[span->first_tile + k];
            const uint16_t *src[N_SRC] = {want.src[0] + at, want.src[1] + at, want.src[2] + at};

            n = n < CST_TILE_ELEMS ? n : CST_TILE_ELEMS;
            for (int m = 0; m < 3; m++) {
                tile->sum_squares = cst_accumulate_ref(n, N_SRC, src, m > 0, rows->grad_f32 + at);
            }
            tile->reduce_mark = 3;
            tile->update_mark = 1;
        }
        cst_update_prepare(&adamw, hyper.lr * (double)span->lr_scale, hyper.beta1, hyper.beta2,
                           hyper.eps, hyper.weight_decay * (double)span->decay_scale,
                           hyper.grad_scale, 1);
        adamw_update(&cst_update_ref, &adamw, span->n_elems, NULL, rows->grad_f32 + span->start,
                     rows->master + span->start, exp_avg(rows) + span->start,
                     exp_avg_sq(rows) + span->start, rows->weight + span->start);
    }
    assert_same(&got, &want);
    job_close(&got);
    job_close(&want);
}
END_TEST

/* A tile whose contributions were summed elsewhere ends as if they had been summed here. */
START_TEST(test_sum_made_elsewhere)
{
    struct cst_tile_walk walk;
    struct cst_tile tile;
    struct job got;
    struct job want;

    job_open_wide(&got, NULL);
    job_open_wide(&want, NULL);
    ck_assert_uint_eq(reduce_all(&want, NULL).n_elems, n_elems_all());
    cst_tile_walk_start(&walk, &got.work, 0, UINT64_MAX);
    while (cst_tile_walk_next(&walk, &tile) != NULL) {
        const uint16_t *src[N_SRC] = {got.src[0] + tile.start, got.src[1] + tile.start,
                                      got.src[2] + tile.start};
        struct cst_tile_done done = {0};
        float sum[CST_TILE_ELEMS];

        (void)cst_accumulate_ref(tile.n_elems, N_SRC, src, false, sum);
        ck_assert(cst_tile_reduce_sum(got.work.kernels, sum, &got.work.rows, &tile, &done));
        ck_assert(!cst_tile_reduce_sum(got.work.kernels, sum, &got.work.rows, &tile, &done));
        ck_assert_uint_eq(done.n_elems, tile.n_elems);
        ck_assert_uint_eq(done.bytes, tile.n_elems * sizeof(float));
    }
    assert_same(&got, &want);
    job_close(&got);
    job_close(&want);
}
END_TEST

/* A command that is issued again changes nothing, and the next command does. */
START_TEST(test_marks_skip_what_is_done)
{
    struct job got;
    struct job want;

    job_open(&got, NULL);
    job_open(&want, NULL);
    ck_assert_uint_eq(reduce_all(&got, &got.undo[0]).n_elems, n_elems_all());
    ck_assert_uint_eq(reduce_all(&got, &got.undo[0]).n_elems, 0);
    ck_assert_uint_eq(cst_tile_update_range(&got.work, &hyper, 0, UINT64_MAX, NULL).n_elems,
                      n_elems_all());
    ck_assert_uint_eq(cst_tile_update_range(&got.work, &hyper, 0, UINT64_MAX, NULL).n_elems, 0);
    ck_assert_uint_eq(reduce_all(&want, NULL).n_elems, n_elems_all());
    ck_assert_uint_eq(cst_tile_update_range(&want.work, &hyper, 0, UINT64_MAX, NULL).n_elems,
                      n_elems_all());
    assert_same(&got, &want);
    got.work.mark = 2;
    ck_assert_uint_eq(cst_tile_update_range(&got.work, &hyper, 0, UINT64_MAX, NULL).n_elems,
                      n_elems_all());
    ck_assert_int_ne(memcmp(got.work.rows.master, want.work.rows.master, 400), 0);
    job_close(&got);
    job_close(&want);
}
END_TEST

struct half {
    struct job *job;
    uint64_t first;
    uint64_t count;
    struct cst_undo_slot *undo;
};

static void *update_half(void *arg)
{
    const struct half *half = arg;

    cst_tile_update_range(&half->job->work, &hyper, half->first, half->count, half->undo);
    return NULL;
}

/* Two threads have equal bits with any division of the tiles, with and without undo, in any
 * variant. */
START_TEST(test_ranges_and_threads_give_the_same_bits)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    struct job want;

    if (kernels == NULL) {
        return;
    }
    job_open(&want, "ref");
    cst_tile_update_range(&want.work, &hyper, 0, UINT64_MAX, NULL);
    for (uint64_t cut = 0; cut <= cst_tile_count(&want.work); cut++) {
        struct job got;
        struct half low = {.job = &got, .first = 0, .count = cut};
        struct half high = {.job = &got, .first = cut, .count = UINT64_MAX};
        pthread_t thread;

        job_open(&got, kernels->isa);
        low.undo = &got.undo[0];
        high.undo = cut % 2 == 0 ? &got.undo[1] : NULL;
        ck_assert_int_eq(pthread_create(&thread, NULL, update_half, &low), 0);
        update_half(&high);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        assert_same(&got, &want);
        ck_assert(!cst_undo_holds(&got.undo[0]) && !cst_undo_holds(&got.undo[1]));
        job_close(&got);
    }
    job_close(&want);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tile");
    TCase *tile = suite_case(suite, "tile", NULL, NULL);

    tcase_add_test(tile, test_update_is_adamw_over_spans);
    tcase_add_test(tile, test_reduce_fills_tiles);
    tcase_add_test(tile, test_micro_batches);
    tcase_add_test(tile, test_sum_made_elsewhere);
    tcase_add_test(tile, test_marks_skip_what_is_done);
    tcase_add_loop_test(tile, test_ranges_and_threads_give_the_same_bits, 0, hostile_n_rows());
    return hostile_main(suite);
}
