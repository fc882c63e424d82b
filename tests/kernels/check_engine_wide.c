/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the engine process with fp32 gradients of micro-batches, and with large segments. */
#include "tests/lib/engine_rig.h"
#include "tests/lib/adamw.h"

#include "kernels/math/kernels.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *row(unsigned chunk, enum cst_row which)
{
    return engine_rig_at(tiny_job_row(&job, chunk, which));
}

static void set_up_wide(void)
{
    engine_rig_setup_wide(false);
}

/* The expected tiles of @chunk after a reduction of blocks 0 and 1 into @grad, by the reference. */
static void wide_here(unsigned chunk, bool accumulate, uint64_t mark, float *grad,
                      struct cst_table_tile *tiles)
{
    const struct cst_table_span *spans =
        cst_table_spans(job.table) + cst_table_chunks(job.table)[chunk].first_span;

    for (unsigned s = 0; s < TINY_SPANS; s++) {
        for (uint64_t i = 0; i < spans[s].n_elems; i += CST_TILE_ELEMS) {
            uint64_t n = spans[s].n_elems - i, first = spans[s].start + i;
            struct cst_table_tile *tile = &tiles[spans[s].first_tile + i / CST_TILE_ELEMS];
            const uint16_t *src[2];

            for (unsigned b = 0; b < 2; b++) {
                src[b] = (const uint16_t *)engine_rig_at(tiny_job_block(&job, chunk, b)) + first;
            }
            n = n < CST_TILE_ELEMS ? n : CST_TILE_ELEMS;
            tile->sum_squares = cst_accumulate_ref(n, 2, src, accumulate, grad + first);
            tile->reduce_mark = (uint32_t)mark;
        }
    }
}

/* Three micro-batches in fp32 on three threads have the bits of the reference in row, sums and
 * marks. Padding does not change, and a command that is issued again adds nothing. */
START_TEST(test_micro_batches)
{
    struct cst_table_tile *tiles = malloc(job.table->n_tiles * sizeof *tiles);
    float *grad = malloc(BIG_ELEMS * sizeof *grad);

    ck_assert(tiles != NULL && grad != NULL);
    for (unsigned c = 0; c < N_CHUNKS; c++) {
        memcpy(tiles, cst_table_tiles(job.table), job.table->n_tiles * sizeof *tiles);
        memcpy(grad, row(c, CST_ROW_GRAD), job.n_elems[c] * sizeof *grad);
        for (uint64_t m = 1; m <= 3; m++) {
            struct engine_command reduce = tiny_job_reduce(&job, c, m);

            reduce.accumulate = m > 1;
            wide_here(c, m > 1, m, grad, tiles);
            engine_rig_must(reduce);
            engine_rig_must(reduce);
            ck_assert_int_eq(memcmp(row(c, CST_ROW_GRAD), grad, job.n_elems[c] * sizeof *grad), 0);
            ck_assert_int_eq(
                memcmp(cst_table_tiles(job.table), tiles, job.table->n_tiles * sizeof *tiles), 0);
        }
        ck_assert_uint_eq(cst_table_chunks(job.table)[c].reduce_mark, 3);
    }
    free(tiles);
    free(grad);
}
END_TEST

/* An update reads the fp32 gradient without rounding it to bf16. */
START_TEST(test_wide_update)
{
    struct engine_command how = tiny_job_update(&job, BIG, 1);
    const struct cst_table_span *spans =
        cst_table_spans(job.table) + cst_table_chunks(job.table)[BIG].first_span;
    const enum cst_row which[3] = {CST_ROW_MASTER, CST_ROW_MOMENT, CST_ROW_MOMENT + 1};
    const float *grad = row(BIG, CST_ROW_GRAD);
    uint16_t *weight = calloc(BIG_ELEMS, sizeof *weight);
    float *want[3];

    ck_assert_ptr_nonnull(weight);
    for (int r = 0; r < 3; r++) {
        want[r] = malloc(BIG_ELEMS * sizeof(float));
        ck_assert_ptr_nonnull(want[r]);
        memcpy(want[r], row(BIG, which[r]), BIG_ELEMS * sizeof(float));
    }
    engine_rig_must(how);
    for (unsigned s = 0; s < TINY_SPANS; s++) {
        uint64_t at = spans[s].start;
        struct cst_update_scalars hyper;

        cst_update_prepare(&hyper, (double)how.lr * (double)spans[s].lr_scale, (double)how.beta1,
                           (double)how.beta2, (double)how.eps,
                           (double)how.weight_decay * (double)spans[s].decay_scale, how.grad_scale,
                           1);
        adamw_update(&cst_update_ref, &hyper, spans[s].n_elems, NULL, grad + at, want[0] + at,
                     want[1] + at, want[2] + at, weight + at);
        ck_assert_int_eq(memcmp((uint16_t *)row(BIG, CST_ROW_WEIGHT) + at, weight + at,
                                spans[s].n_elems * sizeof *weight),
                         0);
    }
    for (int r = 0; r < 3; r++) {
        ck_assert_int_eq(memcmp(row(BIG, which[r]), want[r], BIG_ELEMS * sizeof(float)), 0);
        free(want[r]);
    }
    free(weight);
}
END_TEST

/* A contribution that lies in the fp32 row is refused, also at the row's start. */
START_TEST(test_wide_lies)
{
    struct engine_command reduce = tiny_job_reduce(&job, BIG, 1);

    reduce.src[0] = tiny_job_row(&job, BIG, CST_ROW_GRAD);
    ck_assert_int_eq(engine_rig_run(reduce).status, CST_EINVAL);
    reduce.src[0].offset += job.n_elems[BIG] * 4 - 2;
    ck_assert_int_eq(engine_rig_run(reduce).status, CST_EINVAL);
    reduce.src[0].offset = tiny_job_row(&job, BIG, CST_ROW_GRAD).offset - job.n_elems[BIG] * 2;
    engine_rig_must(reduce);
}
END_TEST

/* The sums of tile sums that a REDUCE of @n_src fp32 rows leaves in the grad row of BIG. */
static void add_partials(const float *const rows[], uint32_t n_src, float *grad,
                         struct cst_table_tile *tiles)
{
    const struct cst_table_span *spans =
        cst_table_spans(job.table) + cst_table_chunks(job.table)[BIG].first_span;

    for (unsigned s = 0; s < TINY_SPANS; s++) {
        for (uint64_t i = 0; i < spans[s].n_elems; i += CST_TILE_ELEMS) {
            uint64_t n = spans[s].n_elems - i, first = spans[s].start + i;
            const float *src[3];

            for (uint32_t r = 0; r < n_src; r++) {
                src[r] = rows[r] + first;
            }
            n = n < CST_TILE_ELEMS ? n : CST_TILE_ELEMS;
            tiles[spans[s].first_tile + i / CST_TILE_ELEMS].sum_squares =
                cst_accumulate_fp32_ref(n, n_src, src, false, grad + first);
        }
    }
}

/* Sums of rank blocks: REDUCEs into rows of their own, of several contributions and one after the
 * other, leave the grad row alone; a REDUCE of these rows and of the grad row adds them in fp32. */
START_TEST(test_partials)
{
    const uint64_t bytes = BIG_ELEMS * sizeof(float);
    struct cst_table_tile *tiles = malloc(job.table->n_tiles * sizeof *tiles);
    float *grad = malloc(bytes), *other = malloc(bytes), *second = malloc(bytes), *base;
    int fd = engine_proc_memfd(2 * bytes, (void **)&base);
    const struct cst_place place = {.segment = 50, .offset = bytes};
    struct engine_command reduce = tiny_job_reduce(&job, BIG, 1);

    ck_assert(tiles != NULL && grad != NULL && other != NULL && second != NULL);
    engine_proc_must_add(&proc, 50, fd, 2 * bytes);
    memcpy(tiles, cst_table_tiles(job.table), job.table->n_tiles * sizeof *tiles);
    memcpy(grad, row(BIG, CST_ROW_GRAD), bytes);
    memcpy(second, base + BIG_ELEMS, bytes);
    for (uint64_t m = 1; m <= 2; m++) {
        wide_here(BIG, m > 1, m, second, tiles);
        reduce.mark = m;
        reduce.accumulate = m > 1;
        reduce.dst[0] = place;
        reduce.n_dst = 1;
        engine_rig_must(reduce);
        engine_rig_must(reduce); /* A command that is issued again adds nothing. */
        ck_assert_int_eq(memcmp(base + BIG_ELEMS, second, bytes), 0);
        ck_assert_int_eq(memcmp(row(BIG, CST_ROW_GRAD), grad, bytes), 0);
    }
    engine_rig_must(tiny_job_reduce(&job, BIG, 3));
    memcpy(other, row(BIG, CST_ROW_GRAD), bytes);
    memcpy(base, second, bytes);
    reduce = (struct engine_command){.kind = ENGINE__COMMAND_KIND__REDUCE,
                                     .table = reduce.table,
                                     .chunk = BIG,
                                     .mark = 4,
                                     .partials = true,
                                     .n_src = 3};
    reduce.src[0] = place;
    reduce.src[1] = tiny_job_row(&job, BIG, CST_ROW_GRAD);
    reduce.src[2] = (struct cst_place){.segment = 50};
    memcpy(grad, other, bytes);
    add_partials((const float *const[]){second, other, second}, 3, grad, tiles);
    engine_rig_must(reduce);
    ck_assert_int_eq(memcmp(row(BIG, CST_ROW_GRAD), grad, bytes), 0);
    for (uint64_t t = 0; t < job.table->n_tiles; t++) {
        ck_assert(cst_table_tiles(job.table)[t].reduce_mark != 4 ||
                  memcmp(&cst_table_tiles(job.table)[t].sum_squares, &tiles[t].sum_squares,
                         sizeof tiles[t].sum_squares) == 0);
    }
    ck_assert_uint_eq(cst_table_chunks(job.table)[BIG].reduce_mark, 4);
    reduce.mark = 5; /* A source that overlaps the row, and a row outside its segment. */
    reduce.src[2] = reduce.src[1];
    reduce.src[2].offset += 4;
    ck_assert_int_eq(engine_rig_run(reduce).status, CST_EINVAL);
    reduce.src[2] = reduce.src[1];
    reduce.n_dst = 1;
    reduce.dst[0] = (struct cst_place){.segment = 50, .offset = bytes + 4};
    ck_assert_int_eq(engine_rig_run(reduce).status, CST_EINVAL);
    free(tiles);
    free(grad);
    free(other);
    free(second);
}
END_TEST

#define LARGE (3ull << 30) /* sparse; an fp32 row of 3/4 x 2^30 elements has this size */

/* A segment much larger than 256 MiB is mapped. Copies and sums reach its end, where a chunk's grad
 * row was moved to, across 2^31 bytes. */
START_TEST(test_large_segment)
{
    struct cst_place *place = &cst_table_chunks(job.table)[BIG].rows[CST_ROW_GRAD];
    uint64_t bytes = job.n_elems[BIG] * 4;
    struct cst_table_tile *tiles = calloc(job.table->n_tiles, sizeof *tiles);
    float *grad = malloc(bytes);
    char *base;
    int fd = engine_proc_memfd(LARGE, (void **)&base);
    static const uint64_t at[] = {(1ull << 31) - 4096 * 3, LARGE - BIG_ELEMS * 4};

    ck_assert(tiles != NULL && grad != NULL);
    engine_proc_must_add(&proc, 50, fd, LARGE);
    memcpy(grad, row(BIG, CST_ROW_GRAD), bytes);
    engine_rig_must(
        engine_command_copy((struct cst_place){.segment = 50, .offset = at[_i]}, *place, bytes));
    *place = (struct cst_place){.segment = 50, .offset = at[_i]};
    for (uint64_t m = 1; m <= 2; m++) {
        struct engine_command reduce = tiny_job_reduce(&job, BIG, m);

        reduce.accumulate = m > 1;
        wide_here(BIG, m > 1, m, grad, tiles);
        engine_rig_must(reduce);
    }
    ck_assert_int_eq(memcmp(base + at[_i], grad, bytes), 0);
    free(tiles);
    free(grad);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine_wide");
    TCase *wide = suite_case(suite, "wide", set_up_wide, engine_rig_teardown);

    tcase_add_test(wide, test_micro_batches);
    tcase_add_test(wide, test_wide_update);
    tcase_add_test(wide, test_wide_lies);
    tcase_add_test(wide, test_partials);
    tcase_add_loop_test(wide, test_large_segment, 0, 2);
    return suite_run(suite);
}
